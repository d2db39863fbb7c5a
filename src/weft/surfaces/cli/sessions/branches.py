"""Branches of a conversation and their files: `weft fork`, `merge`, `cherry-pick` and
`summarize`, `undo` of the last turn, and `checkout` of the files of any.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import click

from weft.kernel.contents import decode_utf8
from weft.kernel.enums import RestoreOutcome, VolumeMode
from weft.kernel.typed_names import shell_line
from weft.surfaces.cli import arguments
from weft.surfaces.cli.arguments import complete_labels, expected_head, expected_option, key_option, read_input
from weft.surfaces.cli.command_line import DIFFERENT, OK, UNFINISHED, Call, confirm, undo
from weft.surfaces.cli.command_line import command as weft_command
from weft.surfaces.cli.ledgers.exports import origin_of, ways_on
from weft.surfaces.cli.progress import counted, progress
from weft.surfaces.cli.screen import Line, Span
from weft.surfaces.cli.turn_files import (
    MOST_LISTED,
    file_change,
    ledger_directories,
    note_self_running,
    self_running_changes,
    short_change_lines,
    skipped_lines,
    turn_files,
    written_paths,
)
from weft.surfaces.cli.turn_lists import place_in_latest, require_named_or_latest, short
from weft.surfaces.plain_text import safe
from weft.verbs.answers import PickedTurn, SummaryTurn
from weft.verbs.exchange_answers import (
    CheckedOutFiles,
    ForkedSession,
    ForkPlan,
    MergedBranch,
    MergeObstacle,
    PlannedUndo,
    ReconstructedFiles,
    ReconstructionGap,
    UndoneFiles,
    UndoneTurn,
)

if TYPE_CHECKING:
    from weft.ledger.api import Ledger, Snapshot
    from weft.programs.program_records import Program
    from weft.runtime.resources.turn_files import (
        DirectoryChanges,
        ForkPlanner,
        PlanLine,
        TurnFiles,
        UndoneHead,
        UndoPlan,
    )


# --- `weft fork`: a new session that stands at any turn, with what it works with.


@weft_command("fork")
@arguments.rev()
@click.argument("label", required=False)
@click.option("--label", "named", metavar="LABEL", help="The new session's label, instead of the argument.")
@click.option(
    "--agent",
    "persona",
    cls=arguments.RenamedOption,
    old=("--persona",),
    metavar="NAME",
    help="The agent that the new session belongs to.",
)
@click.option(
    "--files",
    type=click.Choice([mode.value for mode in VolumeMode]),
    help="One decision about everything that the session works with.",
)
@click.option(
    "--plan", "plan_file", metavar="FILE", type=click.Path(), help="Decisions as JSON, as --dry-run --json prints them."
)
@click.option("--in", "folder", metavar="DIR", help="Where the copy of the working directory goes.")
@click.option("--dry-run", is_flag=True, help="Show what would become of files and other resources; fork nothing.")
def fork_command(
    call: Call,
    rev: str,
    label: str | None,
    named: str | None,
    persona: str | None,
    files: str | None,
    plan_file: str | None,
    folder: str | None,
    dry_run: bool,
) -> int:
    """Start a new session at any turn.

    REV is a turn, or the digest of an event inside one, or a session without a turn: then the new session begins as it
    does, with the same agent and configuration. Of the conversation nothing is copied. What the session works
    with, such as a working directory, is copied as it was at that turn where it can be, beside the original; what
    cannot be copied stays where it is. `--files keep` copies nothing. Exits with 9 where a copy could not be made; the
    new session is there all the same.

    docs/branches.md#the-files-of-a-turn tells how files are kept. Where the working directory is no longer what it was
    at that turn, the copy has what it was, and says so.

    A plan is a list such as `[{"resource": "site", "mode": "keep", "kept_by": "fork"}]`: mode is keep, snapshot or
    discard; a resource that is kept belongs to one session afterwards, origin or fork; place says where a copy goes.
    What `weft fork REV LABEL --dry-run --json` prints is a plan, too, for the same label. With discard nobody owns the
    resource any more: what weft made itself is kept and removed, everything else stays. What another session owns by
    now is neither discarded nor taken.
    """
    if (label is None) == (named is None):
        raise click.UsageError("give the new session one label: `weft fork REV LABEL`")
    if files is not None and plan_file is not None:
        raise click.UsageError("decide once: --files or --plan")
    request = _ForkRequest(rev, str(named if label is None else label), persona, files, plan_file, folder)
    with call.reading() if dry_run else call.writing() as ledger:
        if (unbegun := _unbegun_session(ledger, rev)) is not None:
            _fork_unbegun(call, ledger, unbegun, request, dry_run=dry_run)
            return OK
        planner, lines = _planned_copies(ledger, request)
        if dry_run:
            return _show(call, request, lines)
        if planner is None or not lines:
            forked = ForkedSession(session=ledger.fork(rev, label=request.label, persona=persona), resources=[])
            code = OK
        else:
            forked, code = _carry_out(call, ledger, planner, request, lines)
        origin = origin_of(ledger, request.label)
    _show_forked(call, forked, origin)
    return code


def _unbegun_session(ledger: Ledger, rev: str) -> Program | None:
    """The session of this name where no turn was ever in it."""
    from weft.kernel.errors import NotFound
    from weft.programs import Programs

    try:
        session = ledger.session(rev)
    except NotFound:
        return None
    is_begun = session.head is not None or bool(ledger.reflog(session.id, limit=1))
    return None if is_begun else Programs(ledger).get(session.id, "session")


def _fork_unbegun(call: Call, ledger: Ledger, origin: Program, request: _ForkRequest, *, dry_run: bool) -> None:
    """A second session that begins as one does that has not begun: nothing of a conversation is there to leave."""
    from weft.programs import Programs
    from weft.programs.program_records import parse_address
    from weft.programs.program_writer import ensure_vouched

    if request.mode is not None or request.written is not None or request.folder is not None:
        raise click.UsageError("a session without a turn works with nothing yet: leave out --files, --plan and --in")
    config = {**ensure_vouched(origin).config} if isinstance(origin.config, dict) else {}
    address = config.pop("owner", None)
    owner = request.persona or (None if address is None else parse_address(address).name)
    if dry_run:
        call.note(f"{safe(origin.name)} has no turn: {safe(request.label)} would begin as it does")
        return
    Programs(ledger).create_session(request.label, owner=owner, config=config or None)
    forked = ForkedSession(session=ledger.session(request.label), resources=[])
    call.answer(forked, [Span(request.label, "label"), f" begins as {safe(origin.name)} does, without a turn"])
    call.note(undo("session", "delete", request.label))


class _ForkRequest:
    """What was asked for."""

    def __init__(
        self, rev: str, label: str, persona: str | None, files: str | None, plan_file: str | None, folder: str | None
    ) -> None:
        self.rev, self.label, self.persona, self.folder = rev, label, persona, folder
        self.mode = None if files is None else VolumeMode(files)
        self.written = None if plan_file is None else Path(plan_file).read_bytes()


def _planned_copies(ledger: Ledger, request: _ForkRequest) -> tuple[ForkPlanner | None, list[PlanLine]]:
    """None where the ledger has no resources at all: nothing of them is loaded then."""
    if not ledger.resources.list():
        if request.folder is not None or request.written is not None:
            raise click.UsageError("the session works with no folder that could be copied: leave out --in and --plan")
        return None, []
    from weft.runtime.resources.turn_files import ForkPlanner
    from weft.surfaces.cli.work.sandbox_access import resource_drivers

    planner = ForkPlanner(ledger, resource_drivers(ledger))
    lines = planner.propose(request.rev, request.label)
    if request.written is not None:
        lines = planner.read(lines, request.written, request.label)
    return planner, planner.changed(lines, request.mode, request.folder)


def _show(call: Call, request: _ForkRequest, lines: list[PlanLine]) -> int:
    from weft.surfaces.cli.turn_files import plan_lines, planned_copies

    copies = planned_copies(lines, request.label)
    if call.json:
        call.document(ForkPlan(resources=copies))
    elif not copies:
        call.screen.show("the session works with nothing beside the conversation")
    for line in () if call.json else plan_lines(copies, is_done=False):
        call.screen.show(*line)
    return OK


def _carry_out(
    call: Call, ledger: Ledger, planner: ForkPlanner, request: _ForkRequest, lines: list[PlanLine]
) -> tuple[ForkedSession, int]:
    from weft.surfaces.cli.turn_files import planned_copies, set_workspace, trust_copies

    point = ledger.point(request.rev)
    origin = point.session or ledger.turn(point.turn_id).session_id
    done = planner.carry_out(request.rev, request.label, lines, persona=request.persona)
    set_workspace(ledger, origin, done)
    trust_copies(call, done)
    for why in done.not_removed:
        call.note(Span(f"not removed, and tried again later: {why}", "warn"))
    copies = planned_copies(done.lines, request.label, done.restores)
    code = UNFINISHED if done.failures or done.not_removed else OK
    return ForkedSession(session=ledger.session(done.session), resources=copies), code


def _show_forked(call: Call, forked: ForkedSession, origin: str | None) -> None:
    from weft.surfaces.cli.turn_files import plan_lines

    session = forked.session
    line: Line = [Span(session.label, "label"), " stands at ", Span(short(str(session.head)), "id")]
    call.answer(forked, line, *plan_lines(forked.resources, is_done=True))
    for copy in forked.resources:
        if copy.changed_since:
            words = ("resource", "snapshot", copy.name, "--turn", str(session.head), "--again")
            call.note(f"the copy is of that turn; after `weft {shell_line(words)}` a fork has the present state")
    call.note(f"go on there {ways_on(session.label, origin)}")


# --- `weft merge`: a branch brought back, its files by a three-way merge.

NO_MERGE_TEXT = "no summary was given: use --text or --file, or pipe it in; --pick brings the last turn itself"
MERGE_HINT = "say what the branch found: use --text or --file, or pipe it in; --pick brings the last turn itself"


@weft_command("merge")
@arguments.rev("branch")
@click.option(
    "--into", metavar="SESSION", required=True, shell_complete=complete_labels, help="The session that gets it."
)
@click.option("--text", metavar="TEXT", help="What the branch found, as a turn of the session.")
@click.option("--file", metavar="FILE", type=click.Path(), help="Read that from here; - is standard input.")
@click.option("--pick", is_flag=True, help="Bring the last turn of the branch itself, instead of a summary.")
def merge_command(call: Call, branch: str, into: str, text: str | None, file: str | None, pick: bool) -> int:
    """Bring a branch back into a session: what it found, and its files.

    The conversation gets one turn, as `weft summarize` or `weft cherry-pick` make it. The files are merged as git
    merges three versions: those of the branch, those of the session, and those of the turn where they parted. With
    conflicts nothing at all is done; they are listed, and the exit code is 1.
    """
    if pick and (text is not None or file is not None):
        raise click.UsageError("bring the turn itself or a summary: --pick, or --text and --file")
    summary = None if pick else _checked_summary(_read_summary(file) if text is None else text, MERGE_HINT)
    with call.writing() as ledger:
        files = turn_files(ledger)
        merged = files.merge(branch, into) if ledger.resources.list(kind="directory") else None
        obstacles = (
            [MergeObstacle(conflict.path, conflict.why) for conflict in merged.merge.conflicts] if merged else []
        )
        if obstacles:
            return _refuse(call, branch, obstacles)
        if summary is None:
            turn = ledger.merges.cherry_pick(branch, onto=into)[0]
        else:
            turn = ledger.merges.summarize(branch, into=into, text=summary)
        running = (
            {} if merged is None else self_running_changes(files.changes_of_merge(merged), [merged.resource.place])
        )
        done = None if merged is None else files.apply_merge(merged, turn.id)
        label = ledger.session(into).label
    place = None if merged is None else merged.resource.place
    files_text = "; no files were kept of it" if place is None else f"; its files are in {safe(place)}"
    call.answer(
        MergedBranch(turn=turn, place=place, conflicts=[], runs_by_itself=running),
        [Span(short(turn.id), "id"), " on ", Span(label, "label"), files_text],
    )
    note_self_running(call, running)
    call.note(f"undo: weft {shell_line(('undo', label))}")
    if done is not None and done.outcome is not RestoreOutcome.OK:
        call.note(f"the files were not written: {safe(done.error or 'somebody works on them')}")
        return UNFINISHED
    return OK


def _read_summary(file: str | None) -> str:
    return decode_utf8(read_input(file, NO_MERGE_TEXT), "summary").rstrip("\n")


def _checked_summary(text: str, hint: str) -> str:
    from weft.kernel.errors import InvalidInput

    if not text.strip():
        raise InvalidInput("the summary is empty", hint)
    return text


def _refuse(call: Call, branch: str, obstacles: list[MergeObstacle]) -> int:
    lines: list[Line] = [["  ", Span(safe(obstacle.path), "bad"), f"  {safe(obstacle.why)}"] for obstacle in obstacles]
    head = [f"{counted(len(obstacles), 'path')} in conflict; nothing was changed"]
    call.answer(MergedBranch(turn=None, place=None, conflicts=obstacles), head, *lines)
    call.note(
        f"look at the files of the branch with `weft {shell_line(('checkout', branch, '--to', 'DIR'))}`, settle the"
        " conflicts, and try again"
    )
    return DIFFERENT


# --- `weft cherry-pick`: turns of another branch, said again on a session.


@weft_command("cherry-pick")
@click.argument("turn", nargs=-1, required=True, shell_complete=complete_labels)
@click.option(
    "--onto", metavar="SESSION", required=True, shell_complete=complete_labels, help="The session that gets them."
)
@expected_option
@key_option
def cherry_pick_command(call: Call, turn: tuple[str, ...], onto: str, expected: str | None, key: str | None) -> None:
    """Apply turns of another branch to a session.

    Each becomes a new turn there, which says the same by the same contents and names its source; in this order, all of
    them or none. Nothing is moved or rewritten. What they cost is counted once, where they were made.
    """
    with call.writing() as ledger:
        pinned = expected_head(ledger, expected)
        turns = ledger.merges.cherry_pick(list(turn), onto=onto, expected=pinned, key=key)
        label, sources = (
            ledger.session(onto).label,
            [ledger.merges.provenance(new_turn.id)[0].source_id for new_turn in turns],
        )
    if call.json:
        call.document([PickedTurn(turn=turn, source_id=id) for turn, id in zip(turns, sources, strict=True)])
        return
    for new_turn, source in zip(turns, sources, strict=True):
        call.screen.show(
            Span(short(new_turn.id), "id"), " on ", Span(label, "label"), " from ", Span(short(source), "id")
        )
    call.note(undo("restore", label, *([str(len(turns))] if len(turns) > 1 else [])))


# --- `weft summarize`: what a branch found, told on another session.

NO_SUMMARY_TEXT = "no summary was given: use --text or --file, or pipe it in"
SUMMARY_HINT = "say what the branch found: use --text or --file, or pipe it in"


@weft_command("summarize")
@arguments.rev("branch")
@click.option(
    "--into", metavar="SESSION", required=True, shell_complete=complete_labels, help="The session that is told."
)
@click.option("--text", metavar="TEXT", help="The summary.")
@click.option("--file", metavar="FILE", type=click.Path(), help="Read the summary from here; - is standard input.")
@expected_option
@key_option
def summarize_command(
    call: Call, branch: str, into: str, text: str | None, file: str | None, expected: str | None, key: str | None
) -> None:
    """Tell a session what another branch found.

    BRANCH is a session or a turn. The summary becomes a turn of the session, which names the branch by its last turn;
    without --text it is read from standard input. Nothing is moved or rewritten.
    """
    if text is not None and file is not None:
        raise click.UsageError("give the summary once: --text or --file")
    summary = decode_utf8(read_input(file, NO_SUMMARY_TEXT), "summary").rstrip("\n") if text is None else text
    _checked_summary(summary, SUMMARY_HINT)
    with call.writing() as ledger:
        turn = ledger.merges.summarize(
            branch, into=into, text=summary, expected=expected_head(ledger, expected), key=key
        )
        label, (origin, *_) = ledger.session(into).label, ledger.merges.provenance(turn.id)
    if call.json:
        call.document(SummaryTurn(turn=turn, source_id=origin.source_id, left_id=origin.left_id))
        return
    line: Line = [Span(short(turn.id), "id"), " on ", Span(label, "label"), " sums up the branch to "]
    line = [*line, Span(short(origin.source_id), "id")]
    if origin.left_id is not None:
        line = [*line, ", which left at ", Span(short(origin.left_id), "id")]
    call.screen.show(*line)
    call.note(undo("restore", label))


# --- `weft undo`: the last turn of a session taken back, with its files.


@weft_command("undo")
@arguments.session(required=False)
@click.option("--redo", is_flag=True, help="Take the last undo back; again, the one before it.")
@click.option(
    "--files",
    type=click.Choice(("restore", "keep")),
    default="restore",
    help="With keep they stay as they are: the conversation alone goes back. Default: restore.",
)
@click.option("--dry-run", is_flag=True, help="Show what would become of the head and of files; do nothing.")
@click.option("--force", is_flag=True, help="Also where another session works in the directory by now.")
def undo_command(call: Call, session: str | None, redo: bool, files: str, dry_run: bool, force: bool) -> int:
    """Take back the last turn of a session, and its files.

    The head goes back by one turn, and the working directory to what it was before that turn changed it, also by
    commands of a shell. In a folder that is trusted for work, so do the references, HEAD and index of its git
    repository, and files that it ignores, except those that were too large to keep. What is there now is kept first:
    `weft undo --redo` brings both back, one undo after the other until the head is moved otherwise. Where it is not
    known what the directory was like, nothing is done, unless the files are to stay as they are. Of a turn that was
    imported nothing was kept: its files stay as they are. Without SESSION it is the latest one.

    Exits with 9 where the head moved and files could not be restored.

    docs/permissions.md#folders-that-are-trusted-for-work says what trusted for work means.
    """
    keeps_files = files == "keep"
    if redo and keeps_files:
        raise click.UsageError("--redo brings back what the undo took, files with it: leave --files out")
    with call.reading() if dry_run else call.writing() as ledger:
        name = require_named_or_latest(call, ledger, session, with_turn=not redo)  # an undo can leave it without one
        label = ledger.session(name).label
        turns = turn_files(ledger)
        if dry_run:
            plan = turns.plan_redo(label) if redo else turns.plan_undo(label, keeps_files=keeps_files)
            written = 0 if redo else _written(ledger, plan.before)
            return _show_undo(call, turns, plan, _Outcome(written, keeps_files, is_done=False), force=force)
        done = turns.redo(label, force=force) if redo else turns.undo(label, force=force, keeps_files=keeps_files)
        answer = UndoneTurn(
            session=ledger.session(label),
            before_id=done.before,
            directories=_directories(done),
            notes=list(done.left),
        )
        outcome = _Outcome(0 if redo else _written(ledger, done.before), keeps_files, is_done=True)
    left: list[Line] = [[Span(f"  left as it was: {safe(note)}", "warn")] for note in answer.notes]
    moved = _moved_line(label, done.before, done.head)
    call.answer(answer, moved, *_directory_lines(answer.directories, outcome), *left)
    call.note(undo("undo", label) if redo else undo("undo", label, "--redo"))
    return UNFINISHED if any(directory.error is not None for directory in answer.directories) else OK


class _Outcome(NamedTuple):
    """What is told where no directory is restored: how many files the turn wrote, and whether they were to stay."""

    written: int
    keeps_files: bool
    is_done: bool

    def __str__(self) -> str:
        if self.written == 0:
            return f"no files {'were' if self.is_done else 'would be'} touched"
        they = "it stays as it is" if self.written == 1 else "they stay as they are"
        wrote = f"this turn wrote {counted(self.written, 'file')}; "
        if self.keeps_files:
            return wrote + they
        return f"{wrote}what {'it was' if self.written == 1 else 'they were'} before it is not known, so {they}"


def _written(ledger: Ledger, turn: str | None) -> int:
    return 0 if turn is None else len(written_paths(ledger, turn))


def _show_undo(call: Call, files: TurnFiles, plan: UndoPlan, outcome: _Outcome, *, force: bool) -> int:
    answer = PlannedUndo(
        label=plan.session,
        before_id=plan.before,
        head_id=plan.head,
        directories=[_counts(changes) for changes in files.present_changes(plan, force=force)],
    )
    moved = [*_moved_line(plan.session, plan.before, plan.head), Span(" (nothing was done)", "dim")]
    call.answer(answer, moved, *_directory_lines(answer.directories, outcome))
    return OK


def _directories(done: UndoneHead) -> list[UndoneFiles]:
    return [
        _counts(
            changes,
            None
            if restore.outcome is RestoreOutcome.OK
            else restore.error or "somebody works on them; it is done after them",
        )
        for restore, changes in zip(done.restores, done.changes, strict=True)
    ]


def _counts(changes: DirectoryChanges, error: str | None = None) -> UndoneFiles:
    return UndoneFiles(
        place=changes.place,
        changed=changes.changed,
        removed=changes.removed,
        restored=changes.restored,
        is_whole=changes.is_whole,
        error=error,
    )


def _directory_lines(directories: list[UndoneFiles], outcome: _Outcome) -> list[Line]:
    if not directories:
        return [["  ", str(outcome)]]
    return [["  ", safe(files.place), ": ", *_files_line(files, is_done=outcome.is_done)] for files in directories]


def _files_line(files: UndoneFiles, *, is_done: bool) -> Line:
    if files.error is not None:
        return [Span(f"files were not restored: {safe(files.error)}", "bad")]
    counts = [f"{files.changed} changed", f"{files.removed} removed", f"{files.restored} restored"]
    are = "are" if is_done else "would be"
    kept_words = f"; git and the ignored files that were kept {are} as they were, new ignored files stay"
    beside = kept_words if files.is_whole else ""
    if files.changed + files.removed + files.restored == 0:
        return [f"no file differs{beside}"]
    paths = counted(files.changed + files.removed + files.restored, "path")
    return [f"{paths}{'' if is_done else ' would be'}: {', '.join(counts)}{beside}"]


def _moved_line(label: str, before: str | None, head: str | None) -> Line:
    return [Span(label, "label"), ": ", *_place_words(before), " -> ", *_place_words(head)]


def _place_words(turn: str | None) -> Line:
    return [Span("no turn" if turn is None else short(turn), "id")]


# --- `weft checkout`: the files of any turn, beside the working directory or over it.


@weft_command("checkout")
@arguments.rev()
@click.option("--to", metavar="DIR", help="A new folder for the files; the working directory stays as it is.")
@click.option("--resource", metavar="NAME", help="Which directory, where the turn worked in several.")
@click.option("-y", "--yes", is_flag=True, help="Overwrite the working directory without asking.")
@click.option(
    "--reconstruct",
    is_flag=True,
    help="Put together what the session tells of its files, where nobody kept them; with --to.",
)
@click.option("--record", is_flag=True, help="With --reconstruct: record it as a snapshot that says it is inferred.")
def checkout_command(
    call: Call, rev: str, to: str | None, resource: str | None, yes: bool, reconstruct: bool, record: bool
) -> None:
    """Bring back the files of a turn.

    REV is a session or a turn. The files are what its working directory was like after that turn. Without --to they
    replace what is there now, which is kept first: only files that Weft keeps are touched, never ignored ones.

    With --reconstruct they are put together from the edits that the session tells, and what is not known is listed:
    such files are not the whole folder.

    docs/branches.md#files-that-nobody-kept says how files are put together.
    """
    if reconstruct:
        if to is None or resource is not None or yes:
            raise click.UsageError("--reconstruct goes with --to alone, and --record")
        _check_out_reconstruction(call, rev, to, is_recorded=record)
        return
    if record:
        raise click.UsageError("--record goes with --reconstruct")
    with call.writing() as ledger:
        name = place_in_latest(call, ledger, rev)
        files, turn = turn_files(ledger), ledger.resolve(name)
        snapshot = files.snapshot_of(turn, resource)
        if to is None:
            _ask_first(call, ledger, files, snapshot, is_sure=yes)
        with progress(call, "checkout", by_itself=True):
            done = files.check_out(turn, to, resource=resource)
    answer = CheckedOutFiles(turn_id=turn, snapshot_id=done.snapshot.id, place=done.place, notes=list(done.notes))
    call.answer(answer, [safe(done.place), " has the files of ", Span(short(turn), "id")])
    for note in done.notes:
        call.note(safe(note))
    if done.snapshot.is_inferred:
        call.note("this is a reconstruction: what the session did not touch is not in it")
        for line in skipped_lines(done.snapshot):
            call.note(*line)
    if done.kept is not None:
        call.note(undo("resource", "restore", done.kept.id, "--yes"))


def _ask_first(call: Call, ledger: Ledger, files: TurnFiles, snapshot: Snapshot, *, is_sure: bool) -> None:
    """Show what would change in the directory, and ask."""
    place = ledger.resources.get(snapshot.resource)
    changes = [file_change(change) for change in files.changes_of_checkout(snapshot)]
    call.note(f"{counted(len(changes), 'path')} of {safe(place.place)} would change")
    for line in short_change_lines(changes):
        call.note(*line)
    if changes:
        confirm(call, "overwrite them?", "say --yes, or --to DIR for a folder beside it", is_sure=is_sure)


def _check_out_reconstruction(call: Call, rev: str, to: str, *, is_recorded: bool) -> None:
    from weft.runtime.resources.turn_files import check_out_reconstruction, record_reconstruction

    with call.writing() as ledger:
        name = place_in_latest(call, ledger, rev)
        with progress(call, "checkout", by_itself=True):
            reconstruction = check_out_reconstruction(ledger, name, to)
        snapshot = record_reconstruction(ledger, ledger_directories(ledger), reconstruction) if is_recorded else None
    answer = ReconstructedFiles(
        turn_id=reconstruction.turn,
        place=os.path.abspath(to),
        files=len(reconstruction.files),
        deleted=list(reconstruction.deleted),
        gaps=[ReconstructionGap(path=gap.path, why=gap.why.value, turn_id=gap.turn) for gap in reconstruction.gaps],
        snapshot_id=None if snapshot is None else snapshot.id,
    )
    call.answer(
        answer,
        [
            safe(answer.place),
            f" has {counted(answer.files, 'file')} that ",
            Span(short(reconstruction.turn), "id"),
            " tells of",
        ],
    )
    _note_gaps(call, answer)


def _note_gaps(call: Call, answer: ReconstructedFiles) -> None:
    call.note("this is a reconstruction: what the session did not touch is not in it")
    for gap in answer.gaps[:MOST_LISTED]:
        where = "some files" if gap.path is None else safe(gap.path)
        call.note(Span(where, "warn"), f": {gap.why}")
    if len(answer.gaps) > MOST_LISTED:
        call.note(f"… {counted(len(answer.gaps) - MOST_LISTED, 'more gap')}; --json lists all")
