"""What a terminal shows of `weft sessions`, and of what is done with one: `session`, its label and names, where it
stands and stood; of branches of a conversation and their files: `weft fork`, `merge`, `cherry-pick` and `summarize`,
`undo` of the last turn, and `checkout` of the files of any.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, NamedTuple

from weft.kernel.typed_names import shell_line, shell_word
from weft.ledger.model import Session
from weft.ledger.read.session_list import meaningful_title
from weft.surfaces.cli import turn_lists
from weft.surfaces.cli.arguments import NO_PROJECT
from weft.surfaces.cli.command_line import DIFFERENT, OK, UNFINISHED, Call, confirm
from weft.surfaces.cli.command_line import undo as undo_line
from weft.surfaces.cli.ledgers.exports import ways_on
from weft.surfaces.cli.ledgers.import_job import note_import
from weft.surfaces.cli.programs.program_call import line_of, result_lines
from weft.surfaces.cli.progress import abbreviated, counted
from weft.surfaces.cli.screen import MINUTE, Line, Screen, Span, local_minute, local_time, session_time
from weft.surfaces.cli.turn_files import (
    MOST_LISTED,
    note_self_running,
    plan_lines,
    short_change_lines,
    skipped_lines,
    turn_files,
)
from weft.surfaces.cli.turn_lists import short
from weft.surfaces.cli.user_files import find_ledger
from weft.surfaces.cli.verb_commands import asks_first, group_of, show_listing, shows
from weft.surfaces.plain_text import cut, safe
from weft.verbs import branch_verbs, reading_verbs, session_verbs
from weft.verbs.answers import Listing, SessionEntry
from weft.verbs.declaration import Column, Shown, Table, opt
from weft.verbs.exchange_answers import ForkPlan, ReconstructedFiles, UndoneFiles, UndoneTurn

if TYPE_CHECKING:
    from weft.ledger.api import Ledger, Unification
    from weft.ledger.model import Branch, HeadMove, SessionAlias
    from weft.programs import Program
    from weft.runtime.invoke.invocation import InvocationResult


# --- `weft sessions`: every label, what it is about and where it stands.

SESSIONS_HEADER = ("session", "origin", "project", "turns", "tokens", "last change", "title")
SESSIONS_SPARE = ("origin", "tokens", "project", "turns")
STATUS_STYLES = {"archived": "dim", "deleted": "bad"}
PROJECT_COLUMNS = 20
NOTHING = "no sessions yet: `weft record --session main …` makes one with its first turn"


@shows(session_verbs.sessions)
def show_sessions(call: Call, page: session_verbs.SessionPage, limit: int | None) -> None:
    if call.server is None:
        note_import(call, find_ledger(call.ledger))
    if page.items:
        rows = _columns(page.items, call.screen.terminal)
        call.screen.table(*rows, numbers=("turns", "tokens"), spare=SESSIONS_SPARE)
    for entry in page.items:
        if entry.listed.branches:
            label = entry.listed.session.label
            call.note(f"{label} was moved elsewhere, too: `weft settle {shell_word(label)}` joins them")
    turn_lists.note_left_out(call, page.provisional, "counted")
    if page.further:
        call.note(
            f"{counted(page.further, 'more session')}: `weft sessions -n N` lists more, --project and --since fewer"
            + call.page_hint(page.next)
        )
    if page.hidden:
        verb = "is" if page.hidden == 1 else "are"
        call.note(f"{counted(page.hidden, 'session')} of subagents {verb} not shown: --subagents lists them")
    if page.without_turn:
        verb = "is" if page.without_turn == 1 else "are"
        sessions = counted(page.without_turn, "session")
        call.note(f"{sessions} of imports or rooms without a turn {verb} not shown: --all lists them")
    if not (page.items or page.hidden or page.further or page.without_turn):
        is_filtered = page.why_none == "filters" or limit is not None
        call.note(NO_PROJECT if page.why_none == "project" else "no such sessions" if is_filtered else NOTHING)


def _columns(entries: Sequence[SessionEntry], terminal: bool) -> tuple[list[list[Span | str]], Sequence[str]]:
    """A table's rows and header. On a terminal a column that is empty, or tells only what is made here, is left out."""
    labels = {entry.listed.session.label for entry in entries}
    rows: list[list[Span | str]] = []
    for entry in entries:
        rows.append(_row(entry, terminal, entry.listed.session.parent_session in labels))
        rows += [_branch_row(branch, terminal) for branch in entry.listed.branches]
    if not terminal:
        return rows, SESSIONS_HEADER
    dull = {"origin": {"weft"}, "project": {""}, "tokens": {""}}
    columns = [i for i, name in enumerate(SESSIONS_HEADER) if {str(row[i]) for row in rows} != dull.get(name)]
    return [[row[i] for i in columns] for row in rows], [SESSIONS_HEADER[i] for i in columns]


def _row(entry: SessionEntry, terminal: bool, below: bool) -> list[Span | str]:
    listed, session, when = entry.listed, entry.listed.session, session_time(entry.listed.session)
    title = listed.title
    if entry.provisional:
        subject = title or turn_lists.provisional_subject(entry.provisional[0].turn)
        title = f"[{turn_lists.PROVISIONAL_MARK}] {subject}"
    if session.status != "active":
        title = f"[{session.status}] {title}"
    label = f"{'  ' if below else ''}{listed.short_label}" if terminal else session.label
    return [
        Span(label, "label"),
        session.origin,
        cut(safe(listed.project), PROJECT_COLUMNS) if terminal else listed.project,
        str(listed.depth),
        abbreviated(listed.total_tokens) if terminal else str(listed.total_tokens),
        when[:MINUTE] if terminal else when,
        Span(" ".join(title.split()), STATUS_STYLES.get(session.status, "")),
    ]


def _branch_row(branch: Branch, terminal: bool) -> list[Span | str]:
    """Where another ledger left the session that stands above it."""
    when = local_time(branch.changed_at)
    place = "no turn" if branch.head is None else short(branch.head)
    name = f"  {branch.name}" if terminal else branch.name
    return [Span(name, "label"), "", "", "", "", when[:MINUTE] if terminal else when, f"[moved elsewhere] to {place}"]


# --- `weft session`: a session as a program.


@shows(
    session_verbs.session_create,
    session_verbs.session_configure,
    session_verbs.session_pause,
    session_verbs.session_resume,
    session_verbs.session_complete,
)
def show_changed_session(call: Call, program: Program) -> None:
    call.screen.show(*line_of(program))


@shows(session_verbs.session_send)
def show_sent(
    call: Call,
    invoked: InvocationResult,
    stream: Annotated[bool, opt("Show the answer as it comes.")] = False,
) -> None:
    for line in () if stream else result_lines(invoked.result):
        call.screen.show(*line)


@shows(session_verbs.session_history)
def show_history(call: Call, history: session_verbs.SessionHistory | session_verbs.WrittenLog) -> None:
    if isinstance(history, session_verbs.WrittenLog):
        call.note(f"written to {history.path}")
        return
    for entry in history.items:
        message = entry.value["message"]
        by = f" {message['model']}" if "model" in message else ""
        call.screen.show(Span(f"{message['role']}{by}", "label"), Span(f" {entry.value.get('timestamp', '')}", "dim"))
        for line in message["content"].split("\n"):
            call.screen.show(f"  {line}")
    if history.session is not None and not history.items:
        call.note(f"nothing was said yet; `weft session send {shell_word(history.session)} TEXT` begins")


@shows(session_verbs.session_promote)
def show_promoted(call: Call, promoted: Session, key: str) -> None:
    call.screen.show(Span(key, "label"), " leads to ", Span(promoted.label, "label"))


@shows(session_verbs.session_unify)
def show_unified(call: Call, unified: Unification | Session) -> None:
    if isinstance(unified, Session):
        call.screen.show(Span(unified.label, "label"), " is a session of its own again")
        return
    stays, names = Span(unified.session.label, "label"), ", ".join(unified.names)
    archived = Span(unified.archived.label, "label")
    verb = "leads" if len(unified.names) == 1 else "lead"
    call.screen.show(Span(names, "label"), f" {verb} to ", stays)
    call.screen.show(
        Span(short(unified.summary.id), "id"), " on ", stays, " tells of ", archived, ", which is archived"
    )
    call.note(undo_line("session", "unify", unified.archived.label, "--undo"))


# --- Labels and other names.


@shows(session_verbs.rename)
def show_renamed(call: Call, renamed: session_verbs.MovedSession) -> None:
    before, label = renamed.before.label, renamed.session.label
    call.screen.show(Span(before, "label"), " is now ", Span(label, "label"))
    call.note(undo_line("rename", label, before))


@shows(session_verbs.alias)
def show_alias(call: Call, answer: Session | Listing[SessionAlias], alias: str) -> None:
    if isinstance(answer, Listing):
        show_listing(call, session_verbs.ALIASES, answer)
    else:
        call.screen.show(Span(alias, "label"), " is another name for ", Span(answer.label, "label"))


@shows(session_verbs.archive)
def show_archived(
    call: Call, answer: Session | Sequence[Session] | Listing[Session], undo: bool, dry_run: bool
) -> None:
    if isinstance(answer, Listing):
        show_listing(call, ARCHIVED, answer)
        if answer.items:
            sessions = counted(len(answer.items), "session")
            call.note(f"{sessions} archived; `weft archive --undo SESSION` makes one active again")
        return
    changed = [answer] if isinstance(answer, Session) else answer
    for session in changed:
        call.screen.show(
            Span(session.label, "label"), " would be " if dry_run else " is ", "active" if undo else "archived"
        )
    if not changed:
        call.note("no such sessions")
    if changed and not (undo or dry_run):
        call.note(undo_line("archive", "--undo", *(session.label for session in changed)))


ARCHIVED = Table(
    (
        Column("session", "label", Shown.LABEL),
        Column("last change", session_time),
        Column("title", lambda session: meaningful_title(session.title) or ""),
    ),
    "nothing is archived",
)


@shows(session_verbs.delete)
def show_deleted(call: Call, gone: Session) -> None:
    call.screen.show(Span(gone.label, "label"), " is deleted; its turns stay")
    call.note(undo_line("restore", gone.label))


# --- The head of a session.


@shows(session_verbs.move)
def show_moved(call: Call, moved: session_verbs.MovedSession) -> None:
    label = moved.session.label
    call.screen.show(Span(label, "label"), ": ", *_place(moved.before), " -> ", *_place(moved.session))
    call.note(undo_line("restore", label))


def _place(session: Session) -> Line:
    if session.head is None:
        return [Span("no turn", "id")]
    inside = "" if session.head_event is None else f" at event {session.head_event}"
    return [Span(short(session.head), "id"), inside]


@shows(session_verbs.restore)
def show_restored(call: Call, restored: Session) -> None:
    call.screen.show(*_stand_line(restored.label, restored.head))


def _stand_line(name: str, head: str | None) -> Line:
    return [Span(name, "label"), " stands at ", Span("no turn" if head is None else short(head), "id")]


REFLOG_HEADER = ("name", "turn", "when", "why", "reason")
REFLOG_SPARE = ("turn",)
LABEL_COLUMNS, OTHER_COLUMNS = 12, 46
"""So many columns a label has at least, and so many the rest of its line."""


@shows(session_verbs.reflog)
def show_reflog(call: Call, reflog: session_verbs.Reflog, ledger: Ledger) -> None:
    session = reflog.session
    if session is None:
        return
    if not reflog.items:
        call.note(f"session {session.label!r} has not moved yet: its first turn will be the first line here")
        return
    terminal = call.screen.terminal
    label = _label(call.screen, ledger, session) if terminal else session.label
    rows = [_reflog_row(label, move, terminal) for move in reflog.items]
    call.screen.table(rows, REFLOG_HEADER, spare=REFLOG_SPARE)


def _label(screen: Screen, ledger: Ledger, session: Session) -> str:
    """What to type for a session, as far as a terminal has room for it."""
    shown = ledger.listing().short_labels().get(session.label, session.label)
    return cut(safe(shown), max(LABEL_COLUMNS, screen.columns - OTHER_COLUMNS))


def _reflog_row(label: str, move: HeadMove, terminal: bool) -> tuple[Span | str, ...]:
    turn = "-" if move.turn_id is None else short(move.turn_id)
    name = Span(f"{label}@{{{move.number}}}", "label")
    when = (local_minute if terminal else local_time)(move.changed_at)
    return name, Span(turn, "id"), when, move.why, move.reason or ""


@shows(session_verbs.settle)
def show_settled(call: Call, settled: Session | session_verbs.SessionBranches) -> None:
    if not isinstance(settled, session_verbs.SessionBranches):
        call.screen.show(*_stand_line(settled.label, settled.head))
        call.note("other ledgers follow with their next pull")
        return
    label = settled.session.label
    call.screen.show(*_stand_line(label, settled.session.head))
    for branch in settled.items:
        call.screen.show(*_stand_line(branch.name, branch.head))
    call.note(f"choose: `weft settle {shell_word(label)} --ours`, --theirs, --to REV or --fork LABEL")


session_command = group_of(
    session_verbs.session_group,
    session_verbs.session_create,
    session_verbs.session_configure,
    session_verbs.session_send,
    session_verbs.session_history,
    session_verbs.session_promote,
    session_verbs.session_unify,
    session_verbs.session_pause,
    session_verbs.session_resume,
    session_verbs.session_complete,
)


# --- `weft fork`: a new session that stands at any turn, with what it works with.


def _fork_code(answer: branch_verbs.Fork | ForkPlan | branch_verbs.UnbegunFork) -> int:
    return UNFINISHED if isinstance(answer, branch_verbs.Fork) and not answer.is_whole else OK


@shows(branch_verbs.fork, exit_code=_fork_code)
def show_forked(call: Call, answer: branch_verbs.Fork | ForkPlan | branch_verbs.UnbegunFork) -> None:
    if isinstance(answer, branch_verbs.UnbegunFork):
        label, origin = safe(answer.label), safe(answer.origin)
        if answer.forked is None:
            call.note(f"{origin} has no turn: {label} would begin as it does")
            return
        call.screen.show(Span(answer.label, "label"), f" begins as {origin} does, without a turn")
        call.note(undo_line("delete", answer.label))
        return
    if isinstance(answer, ForkPlan):
        if not answer.resources:
            call.screen.show("the session works with nothing beside the conversation")
        for line in plan_lines(answer.resources, is_done=False):
            call.screen.show(*line)
        return
    for trusted in answer.trusted:
        how = "trusted for work" if trusted.for_work else "trusted"
        call.note(f"{safe(trusted.copy)} is {how} as {safe(trusted.original)} is")
    for why in answer.not_removed:
        call.note(Span(f"not removed, and tried again later: {why}", "warn"))
    session, copies = answer.forked.session, answer.forked.resources
    call.screen.show(Span(session.label, "label"), " stands at ", Span(short(str(session.head)), "id"))
    for line in plan_lines(copies, is_done=True):
        call.screen.show(*line)
    for copy in copies:
        if copy.changed_since:
            words = ("resource", "snapshot", copy.name, "--turn", str(session.head), "--again")
            call.note(f"the copy is of that turn; after `weft {shell_line(words)}` a fork has the present state")
    call.note(f"go on there {ways_on(session.label, answer.origin)}")


# --- `weft merge`, `cherry-pick` and `summarize`.


def _merge_code(answer: branch_verbs.Merge) -> int:
    if answer.merged.conflicts:
        return DIFFERENT
    return OK if answer.error is None else UNFINISHED


@shows(branch_verbs.merge, exit_code=_merge_code)
def show_merged(call: Call, answer: branch_verbs.Merge, branch: str) -> None:
    merged = answer.merged
    if merged.turn is None:
        call.screen.show(f"{counted(len(merged.conflicts), 'path')} in conflict; nothing was changed")
        for obstacle in merged.conflicts:
            call.screen.show("  ", Span(safe(obstacle.path), "bad"), f"  {safe(obstacle.why)}")
        look = f"weft {shell_line(('checkout', branch, '--to', 'DIR'))}"
        call.note(f"look at the files of the branch with `{look}`, settle the conflicts, and try again")
        return
    files = "; no files were kept of it" if merged.place is None else f"; its files are in {safe(merged.place)}"
    call.screen.show(Span(short(merged.turn.id), "id"), " on ", Span(answer.label, "label"), files)
    note_self_running(call, merged.runs_by_itself)
    call.note(undo_line("undo", answer.label))
    if answer.error is not None:
        call.note(f"the files were not written: {safe(answer.error)}")


@shows(branch_verbs.cherry_pick)
def show_picked(call: Call, picked: branch_verbs.PickedTurns) -> None:
    for item in picked.items:
        label, source = Span(picked.label, "label"), Span(short(item.source_id), "id")
        call.screen.show(Span(short(item.turn.id), "id"), " on ", label, " from ", source)
    call.note(undo_line("restore", picked.label, *([str(len(picked.items))] if len(picked.items) > 1 else [])))


@shows(branch_verbs.summarize)
def show_summarized(call: Call, answer: branch_verbs.Summary) -> None:
    summary, label = answer.summary, answer.label
    line: Line = [Span(short(summary.turn.id), "id"), " on ", Span(label, "label"), " sums up the branch to "]
    line = [*line, Span(short(summary.source_id), "id")]
    if summary.left_id is not None:
        line = [*line, ", which left at ", Span(short(summary.left_id), "id")]
    call.screen.show(*line)
    call.note(undo_line("restore", label))


# --- `weft undo`: the last turn of a session taken back, with its files.


def _undo_code(answer: branch_verbs.Undo) -> int:
    return UNFINISHED if any(directory.error is not None for directory in answer.undone.directories) else OK


@shows(branch_verbs.undo, exit_code=_undo_code)
def show_undone(call: Call, answer: branch_verbs.Undo, redo: bool, files: str) -> None:
    line: Line = [Span(answer.label, "label"), ": ", *_turn_place(answer.before), " -> ", *_turn_place(answer.head)]
    if not answer.is_done:
        line = [*line, Span(" (nothing was done)", "dim")]
    call.screen.show(*line)
    outcome = _Outcome(answer.written, files == "keep", is_done=answer.is_done)
    for directory_line in _directory_lines(answer.undone.directories, outcome):
        call.screen.show(*directory_line)
    if isinstance(answer.undone, UndoneTurn):
        for note in answer.undone.notes:
            call.screen.show(Span(f"  left as it was: {safe(note)}", "warn"))
        call.note(undo_line("undo", answer.label) if redo else undo_line("undo", answer.label, "--redo"))


def _turn_place(turn: str | None) -> Line:
    return [Span("no turn" if turn is None else short(turn), "id")]


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


@asks_first(branch_verbs.checkout)
def ask_to_overwrite(
    call: Call,
    ledger: Ledger,
    rev: str,
    to: str | None,
    resource: str | None,
    yes: Annotated[
        bool, opt("Overwrite the working directory without asking.", "-y", "--yes", before="reconstruct")
    ] = False,
) -> None:
    """Show what would change in the directory, and ask."""
    if to is not None:
        return
    files = turn_files(ledger)
    snapshot = files.snapshot_of(ledger.resolve(rev), resource)
    place = ledger.resources.get(snapshot.resource)
    changes = [reading_verbs.file_change(change) for change in files.changes_of_checkout(snapshot)]
    call.note(f"{counted(len(changes), 'path')} of {safe(place.place)} would change")
    for line in short_change_lines(changes):
        call.note(*line)
    if changes:
        confirm(call, "overwrite them?", "say --yes, or --to DIR for a folder beside it", is_sure=yes)


@shows(branch_verbs.checkout)
def show_checked_out(call: Call, answer: branch_verbs.Checkout | ReconstructedFiles) -> None:
    if isinstance(answer, ReconstructedFiles):
        files = f" has {counted(answer.files, 'file')} that "
        call.screen.show(safe(answer.place), files, Span(short(answer.turn_id), "id"), " tells of")
        _note_gaps(call, answer)
        return
    call.screen.show(safe(answer.files.place), " has the files of ", Span(short(answer.files.turn_id), "id"))
    for note in answer.files.notes:
        call.note(safe(note))
    if answer.snapshot.is_inferred:
        call.note("this is a reconstruction: what the session did not touch is not in it")
        for line in skipped_lines(answer.snapshot):
            call.note(*line)
    if answer.kept is not None:
        call.note(undo_line("resource", "restore", answer.kept, "--yes"))


def _note_gaps(call: Call, answer: ReconstructedFiles) -> None:
    call.note("this is a reconstruction: what the session did not touch is not in it")
    for gap in answer.gaps[:MOST_LISTED]:
        where = "some files" if gap.path is None else safe(gap.path)
        call.note(Span(where, "warn"), f": {gap.why}")
    if len(answer.gaps) > MOST_LISTED:
        call.note(f"… {counted(len(answer.gaps) - MOST_LISTED, 'more gap')}; --json lists all")
