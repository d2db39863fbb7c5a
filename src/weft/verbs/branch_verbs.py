"""Branches of a conversation and their files: forked, merged, picked from and summed up; the last turn undone, and the
files of any turn brought back.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from msgspec import UNSET, Struct, UnsetType

from weft.kernel.enums import FileKind, ResourceKind, RestoreOutcome, VolumeMode
from weft.kernel.errors import InvalidInput, NotFound
from weft.ledger.api import Snapshot
from weft.verbs.answers import Answer, Listing, PickedTurn, SummaryTurn
from weft.verbs.declaration import (
    HERE,
    SESSION,
    LatestSession,
    Machine,
    OpenMode,
    RequestError,
    RetryKey,
    Revision,
    TypedForm,
    arg,
    opt,
    verb,
)
from weft.verbs.exchange_answers import (
    CheckedOutFiles,
    ForkedSession,
    ForkPlan,
    MergedBranch,
    MergeObstacle,
    PlannedCopy,
    PlannedUndo,
    ReconstructedFiles,
    ReconstructionGap,
    UndoneFiles,
    UndoneTurn,
)
from weft.verbs.session_verbs import named_or_latest

if TYPE_CHECKING:
    from weft.ledger.api import Ledger, ResourceRestore
    from weft.programs.program_records import Program
    from weft.runtime.resources.turn_files import DirectoryChanges, ForkedResources, ForkPlanner, PlanLine, UndoneHead

CHANGE_FILES = "resource:change"

Expected = Annotated[str | None, opt("Fail unless the session's head is REV.", metavar="REV")]


def expected_head(ledger: Ledger, rev: str | None) -> str | UnsetType:
    return UNSET if rev is None else ledger.resolve(rev)


# --- `fork`: a new session that stands at any turn, with what it works with.


class TrustedCopy(Struct, frozen=True):
    """A copy of a folder that is trusted as the folder is that it was made from."""

    copy: str
    original: str
    for_work: bool


class Fork(Answer, frozen=True, kw_only=True):
    DOCUMENT: ClassVar[str] = "forked"

    forked: ForkedSession
    origin: str | None
    """The tool that its turns were imported from."""
    trusted: Sequence[TrustedCopy] = ()
    not_removed: Sequence[str] = ()
    """Why a resource could not be removed; that is tried again later."""
    is_whole: bool = True
    """Whether everything could be copied and removed."""


class UnbegunFork(Answer, frozen=True, kw_only=True):
    """A second session that begins as one does that has not begun. `forked` is None where it is only planned."""

    DOCUMENT: ClassVar[str] = "forked"

    forked: ForkedSession | None
    label: str
    origin: str


def _check_fork(label: str | None, named: str | None, files: VolumeMode | None, plan: str | None) -> None:
    if (label is None) == (named is None):
        raise RequestError("give the new session one label: `weft fork REV LABEL`")
    if files is not None and plan is not None:
        raise RequestError("decide once: {files} or {plan}")


@verb(
    "fork",
    right="session:create",
    method="fork",
    opens=OpenMode.WRITING,
    reads_with=("dry_run",),
    check=_check_fork,
)
def fork(
    ledger: Ledger,
    rev: Revision,
    label: Annotated[str | None, arg("The new session's label.")] = None,
    named: Annotated[
        str | None, opt("The new session's label, instead of the argument.", "--label", metavar="LABEL")
    ] = None,
    agent: Annotated[
        str | None, opt("The agent that the new session belongs to.", metavar="NAME", old=("--persona",))
    ] = None,
    files: Annotated[VolumeMode | None, opt("One decision about everything that the session works with.")] = None,
    plan: Annotated[
        str | None,
        opt("Decisions as JSON, as --dry-run --json prints them.", metavar="FILE", typed=TypedForm.FILE),
    ] = None,
    folder: Annotated[
        str | None, opt("Where the copy of the working directory goes.", "--in", metavar="DIR", is_path=True)
    ] = None,
    dry_run: Annotated[bool, opt("Show what would become of files and other resources; fork nothing.")] = False,
    *,
    machine: Machine = HERE,
) -> Fork | ForkPlan | UnbegunFork:
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
    name = str(named if label is None else label)
    if (unbegun := _unbegun_session(ledger, rev)) is not None:
        if (files, plan, folder) != (None,) * 3:
            raise RequestError(
                "a session without a turn works with nothing yet: leave out {files}, {plan} and {folder}"
            )
        return _fork_unbegun(ledger, unbegun, name, agent, is_planned=dry_run)
    planner, lines = _planned(ledger, machine, rev, name, files, plan, folder)
    if dry_run:
        return ForkPlan(resources=planned_copies(lines, name))
    if planner is None or not lines:
        forked = ForkedSession(session=ledger.fork(rev, label=name, persona=agent), resources=[])
        return Fork(forked=forked, origin=origin_of(ledger, name))
    point = ledger.point(rev)
    parent = point.session or ledger.turn(point.turn_id).session_id
    done = planner.carry_out(rev, name, lines, persona=agent)
    _set_workspace(ledger, parent, done)
    return Fork(
        trusted=_trusted_copies(machine, done),
        not_removed=list(done.not_removed),
        forked=ForkedSession(
            session=ledger.session(done.session), resources=planned_copies(done.lines, name, done.restores)
        ),
        origin=origin_of(ledger, name),
        is_whole=not (done.failures or done.not_removed),
    )


def _unbegun_session(ledger: Ledger, rev: str) -> Program | None:
    """The session of this name where no turn was ever in it."""
    from weft.programs import Programs

    try:
        session = ledger.session(rev)
    except NotFound:
        return None
    is_begun = session.head is not None or bool(ledger.reflog(session.id, limit=1))
    return None if is_begun else Programs(ledger).get(session.id, "session")


def _fork_unbegun(ledger: Ledger, origin: Program, label: str, agent: str | None, *, is_planned: bool) -> UnbegunFork:
    """Nothing of a conversation is there to leave."""
    from weft.programs import Programs
    from weft.programs.program_records import parse_address
    from weft.programs.program_writer import ensure_vouched

    config = {**ensure_vouched(origin).config} if isinstance(origin.config, dict) else {}
    address = config.pop("owner", None)
    owner = agent or (None if address is None else parse_address(address).name)
    if is_planned:
        return UnbegunFork(forked=None, label=label, origin=origin.name)
    Programs(ledger).create_session(label, owner=owner, config=config or None)
    forked = ForkedSession(session=ledger.session(label), resources=[])
    return UnbegunFork(forked=forked, label=label, origin=origin.name)


def _planned(
    ledger: Ledger,
    machine: Machine,
    rev: str,
    label: str,
    mode: VolumeMode | None,
    plan: str | None,
    folder: str | None,
) -> tuple[ForkPlanner | None, list[PlanLine]]:
    """None where the ledger has no resources at all: nothing of them is loaded then."""
    if not ledger.resources.list():
        if folder is not None or plan is not None:
            raise RequestError("the session works with no folder that could be copied: leave out {folder} and {plan}")
        return None, []
    from weft.runtime.resources.turn_files import ForkPlanner

    planner = ForkPlanner(ledger, machine.drivers())
    lines = planner.propose(rev, label)
    if plan is not None:
        lines = planner.read(lines, plan.encode(), label)
    return planner, planner.changed(lines, mode, folder)


def origin_of(ledger: Ledger, rev: str) -> str | None:
    """What a turn or its session was imported from; None for what was recorded here."""
    point = ledger.point(rev)
    session = None if point.session is None else ledger.session(point.session)
    return ledger.turn(point.turn_id).origin or (None if session is None else session.origin)


def planned_copies(lines: Sequence[PlanLine], fork: str, restores: Sequence[ResourceRestore] = ()) -> list[PlannedCopy]:
    """A plan, and what came of it, as it is told; `fork` is the label of the new session."""
    by_snapshot = {restore.snapshot: restore for restore in restores}
    return [_copy(line, fork, by_snapshot.get(line.snapshot.id if line.snapshot else "")) for line in lines]


def _copy(line: PlanLine, fork: str, restore: ResourceRestore | None) -> PlannedCopy:
    owner = line.resource.owner
    origin = None if owner is None else owner.name or owner.id
    return PlannedCopy(
        resource_id=line.resource.id,
        name=line.resource.name,
        kind=line.resource.kind.value,
        mode=line.mode,
        why=line.why,
        kept_by=None if line.mode is not VolumeMode.KEEP else fork if line.is_kept_by_fork else origin,
        snapshot_id=None if line.snapshot is None else line.snapshot.id,
        size_bytes=None if line.snapshot is None else line.snapshot.size_bytes,
        place=line.place,
        changed_since=line.changed_since if line.mode is VolumeMode.SNAPSHOT else 0,
        skipped=0 if line.snapshot is None else skipped_count(line.snapshot),
        outcome=None if restore is None else restore.outcome,
        error=None if restore is None else restore.error,
    )


def skipped_count(snapshot: Snapshot) -> int:
    """How many paths are not in a snapshot."""
    skipped = [note for note in snapshot.skipped or () if isinstance(note, dict)]
    return sum(int(note["more"]) if "more" in note else 1 for note in skipped)


def _copied(done: ForkedResources) -> set[str]:
    """The snapshots of which there is a copy now."""
    return {restore.snapshot for restore in done.restores if restore.outcome is RestoreOutcome.OK}


def _set_workspace(ledger: Ledger, origin: str | None, done: ForkedResources) -> None:
    """Where the session that was forked works in a folder by its configuration, the fork works in its copy."""
    from weft.programs import Programs

    session = None if origin is None else Programs(ledger).get(origin, "session")
    config = None if session is None or session.unvouched else session.config  # the fork makes no folder its owner's
    folder = config.get("workspace") if isinstance(config, dict) else None
    copied = _copied(done)
    for line in done.lines:
        is_copied = line.snapshot is not None and line.snapshot.id in copied
        if folder is not None and is_copied and line.resource.place == os.path.realpath(folder):
            Programs(ledger).change(done.session, {"workspace": line.place})
            return


def _trusted_copies(machine: Machine, done: ForkedResources) -> list[TrustedCopy]:
    """The copies of folders are trusted as those that they were made from: else the fork would lose their rules."""
    copied, trusted = _copied(done), []
    for line in done.lines:
        is_copied = line.snapshot is not None and line.snapshot.id in copied
        if is_copied and line.place is not None and line.resource.kind is ResourceKind.DIRECTORY:
            original, copy = line.resource.place, line.place
            if machine.trust.trust_copy(original, copy):
                trusted.append(TrustedCopy(copy, original, machine.trust.is_trusted_for_work(copy)))
    return trusted


# --- `merge`: a branch brought back, its files by a three-way merge.


class Merge(Answer, frozen=True, kw_only=True):
    DOCUMENT: ClassVar[str] = "merged"

    merged: MergedBranch
    label: str
    error: str | None = None
    """Why the files were not written."""


def _check_merge(text: str | None, pick: bool) -> None:
    if pick and text is not None:
        raise RequestError("bring the turn itself or a summary: {pick}, or --text and --file")


def _checked_summary(text: str | None, hint: str) -> str:
    if text is None or not text.strip():
        raise InvalidInput("the summary is empty", hint)
    return text


def _summary(help: str, missing: str, file_help: str) -> Any:
    return opt(
        help,
        metavar="TEXT",
        what="summary",
        from_file=file_help,
        file_spelling="--file",
        is_piped_without="pick",
        missing=missing,
    )


@verb("merge", right="turn:merge", method="merges.summarize", opens=OpenMode.WRITING, check=_check_merge)
def merge(
    ledger: Ledger,
    branch: Revision,
    into: Annotated[str, opt("The session that gets it.", metavar="SESSION", names=SESSION)],
    text: Annotated[
        str | None,
        _summary(
            "What the branch found, as a turn of the session.",
            "no summary was given: use --text or --file, or pipe it in; --pick brings the last turn itself",
            "Read that from here; - is standard input.",
        ),
    ] = None,
    pick: Annotated[bool, opt("Bring the last turn of the branch itself, instead of a summary.")] = False,
    *,
    machine: Machine = HERE,
) -> Merge:
    """Bring a branch back into a session: what it found, and its files.

    The conversation gets one turn, as `weft summarize` or `weft cherry-pick` make it. The files are merged as git
    merges three versions: those of the branch, those of the session, and those of the turn where they parted. With
    conflicts nothing at all is done; they are listed, and the exit code is 1.
    """
    from weft.runtime.resources.turn_files import TurnFiles

    hint = "say what the branch found: use --text or --file, or pipe it in; --pick brings the last turn itself"
    summary = "" if pick else _checked_summary(text, hint)
    files = TurnFiles(ledger, machine.directories())
    merged = files.merge(branch, into) if ledger.resources.list(kind="directory") else None
    conflicts = [MergeObstacle(conflict.path, conflict.why) for conflict in merged.merge.conflicts] if merged else []
    if conflicts:
        return Merge(merged=MergedBranch(turn=None, place=None, conflicts=conflicts), label=into)
    if pick:
        turn = ledger.merges.cherry_pick(branch, onto=into)[0]
    else:
        turn = ledger.merges.summarize(branch, into=into, text=summary)
    running: Mapping[str, str] = {}
    error = None
    if merged is not None:
        running = machine.self_running(files.changes_of_merge(merged), [merged.resource.place])
        done = files.apply_merge(merged, turn.id)
        if done is not None and done.outcome is not RestoreOutcome.OK:
            error = done.error or "somebody works on them"
    return Merge(
        merged=MergedBranch(
            turn=turn,
            place=None if merged is None else merged.resource.place,
            conflicts=[],
            runs_by_itself=dict(running),
        ),
        label=ledger.session(into).label,
        error=error,
    )


# --- `cherry-pick` and `summarize`: turns of another branch said again, and what it found.


class PickedTurns(Listing[PickedTurn], frozen=True, kw_only=True):
    IS_ONE_DOCUMENT: ClassVar[bool] = True

    label: str
    """Of the session that got them."""


@verb("cherry-pick", right="turn:merge", method="merges.cherry_pick", opens=OpenMode.WRITING)
def cherry_pick(
    ledger: Ledger,
    turn: Annotated[tuple[str, ...], arg("The turns.", names=SESSION)],
    onto: Annotated[str, opt("The session that gets them.", metavar="SESSION", names=SESSION)],
    expected: Expected = None,
    retry_key: RetryKey = None,
) -> PickedTurns:
    """Apply turns of another branch to a session.

    Each becomes a new turn there, which says the same by the same contents and names its source; in this order, all of
    them or none. Nothing is moved or rewritten. What they cost is counted once, where they were made.
    """
    pinned = expected_head(ledger, expected)
    turns = ledger.merges.cherry_pick(list(turn), onto=onto, expected=pinned, key=retry_key)
    label = ledger.session(onto).label
    sources = [ledger.merges.provenance(new_turn.id)[0].source_id for new_turn in turns]
    picked = [PickedTurn(turn=new_turn, source_id=id) for new_turn, id in zip(turns, sources, strict=True)]
    return PickedTurns(items=picked, label=label)


class Summary(Answer, frozen=True, kw_only=True):
    DOCUMENT: ClassVar[str] = "summary"

    summary: SummaryTurn
    label: str


@verb("summarize", right="turn:merge", method="merges.summarize", opens=OpenMode.WRITING)
def summarize(
    ledger: Ledger,
    branch: Revision,
    into: Annotated[str, opt("The session that is told.", metavar="SESSION", names=SESSION)],
    text: Annotated[
        str | None,
        _summary(
            "The summary.",
            "no summary was given: use --text or --file, or pipe it in",
            "Read the summary from here; - is standard input.",
        ),
    ] = None,
    expected: Expected = None,
    retry_key: RetryKey = None,
) -> Summary:
    """Tell a session what another branch found.

    BRANCH is a session or a turn. The summary becomes a turn of the session, which names the branch by its last turn;
    without --text it is read from standard input. Nothing is moved or rewritten.
    """
    words = _checked_summary(text, "say what the branch found: use --text or --file, or pipe it in")
    pinned = expected_head(ledger, expected)
    turn = ledger.merges.summarize(branch, into=into, text=words, expected=pinned, key=retry_key)
    label, (origin, *_) = ledger.session(into).label, ledger.merges.provenance(turn.id)
    return Summary(summary=SummaryTurn(turn=turn, source_id=origin.source_id, left_id=origin.left_id), label=label)


# --- `undo`: the last turn of a session taken back, with its files.


class Undo(Answer, frozen=True, kw_only=True):
    """`written`: how many files the turn wrote, told where no directory is restored."""

    DOCUMENT: ClassVar[str] = "undone"

    undone: UndoneTurn | PlannedUndo
    label: str
    before: str | None
    head: str | None
    written: int

    @property
    def is_done(self) -> bool:
        return isinstance(self.undone, UndoneTurn)


def _check_undo(redo: bool, files: str) -> None:
    if redo and files == "keep":
        raise RequestError("{redo} brings back what the undo took, files with it: leave {files} out")


@verb("undo", right="session:move", opens=OpenMode.WRITING, reads_with=("dry_run",), check=_check_undo)
def undo(
    ledger: Ledger,
    session: Annotated[LatestSession, arg(is_needed=True, may_lack_turn_with="redo")] = None,
    redo: Annotated[bool, opt("Take the last undo back; again, the one before it.")] = False,
    files: Annotated[
        Literal["restore", "keep"],
        opt("With keep they stay as they are: the conversation alone goes back. Default: restore."),
    ] = "restore",
    dry_run: Annotated[bool, opt("Show what would become of the head and of files; do nothing.")] = False,
    force: Annotated[bool, opt("Also where another session works in the directory by now.")] = False,
    *,
    machine: Machine = HERE,
) -> Undo:
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
    from weft.runtime.resources.turn_files import TurnFiles

    name = named_or_latest(ledger, session, with_turn=not redo)  # an undo can leave it without one
    if name is None:
        raise NotFound("session", None)
    keeps_files, label = files == "keep", ledger.session(name).label
    turns = TurnFiles(ledger, machine.directories())
    if dry_run:
        plan = turns.plan_redo(label) if redo else turns.plan_undo(label, keeps_files=keeps_files)
        planned = PlannedUndo(
            label=plan.session,
            before_id=plan.before,
            head_id=plan.head,
            directories=[_counts(changes) for changes in turns.present_changes(plan, force=force)],
        )
        written = 0 if redo else _written(ledger, plan.before)
        return Undo(undone=planned, label=plan.session, before=plan.before, head=plan.head, written=written)
    done = turns.redo(label, force=force) if redo else turns.undo(label, force=force, keeps_files=keeps_files)
    undone = UndoneTurn(
        session=ledger.session(label), before_id=done.before, directories=_directories(done), notes=list(done.left)
    )
    written = 0 if redo else _written(ledger, done.before)
    return Undo(undone=undone, label=label, before=done.before, head=done.head, written=written)


def _written(ledger: Ledger, turn: str | None) -> int:
    return 0 if turn is None else len(written_paths(ledger, turn))


def written_paths(ledger: Ledger, turn: str) -> set[str]:
    """The files that a turn is noted to have written."""
    notes = ledger.listing().files(message.id for message in ledger.messages(turn))
    return {file.path for files in notes.values() for file in files if file.kind == FileKind.WRITTEN}


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


# --- `checkout`: the files of any turn, beside the working directory or over it.


class Checkout(Answer, frozen=True, kw_only=True):
    DOCUMENT: ClassVar[str] = "files"

    files: CheckedOutFiles
    snapshot: Snapshot
    kept: str | None
    """The snapshot of what was there before."""


def _check_checkout(to: str | None, resource: str | None, reconstruct: bool, record: bool, yes: bool = False) -> None:
    if reconstruct and (to is None or resource is not None or yes):
        raise RequestError("{reconstruct} goes with {to} alone, and {record}")
    if record and not reconstruct:
        raise RequestError("{record} goes with {reconstruct}")


@verb("checkout", right=CHANGE_FILES, opens=OpenMode.WRITING, check=_check_checkout, is_slow=True)
def checkout(
    ledger: Ledger,
    rev: Annotated[Revision, arg(is_latest=True)],
    to: Annotated[
        str | None,
        opt("A new folder for the files; the working directory stays as it is.", metavar="DIR", is_path=True),
    ] = None,
    resource: Annotated[str | None, opt("Which directory, where the turn worked in several.", metavar="NAME")] = None,
    reconstruct: Annotated[
        bool, opt("Put together what the session tells of its files, where nobody kept them; with --to.")
    ] = False,
    record: Annotated[bool, opt("With --reconstruct: record it as a snapshot that says it is inferred.")] = False,
    *,
    machine: Machine = HERE,
) -> Checkout | ReconstructedFiles:
    """Bring back the files of a turn.

    REV is a session or a turn. The files are what its working directory was like after that turn. Without --to they
    replace what is there now, which is kept first: only files that Weft keeps are touched, never ignored ones.

    With --reconstruct they are put together from the edits that the session tells, and what is not known is listed:
    such files are not the whole folder.

    docs/branches.md#files-that-nobody-kept says how files are put together.
    """
    from weft.runtime.resources.turn_files import TurnFiles

    ledger.authority.ensure_allowed(CHANGE_FILES)  # in a new folder nothing of the ledger is changed that asks for it
    if reconstruct and to is not None:
        return _reconstructed(ledger, machine, rev, to, is_recorded=record)
    turn = ledger.resolve(rev)
    done = TurnFiles(ledger, machine.directories()).check_out(turn, to, resource=resource)
    files = CheckedOutFiles(turn_id=turn, snapshot_id=done.snapshot.id, place=done.place, notes=list(done.notes))
    return Checkout(files=files, snapshot=done.snapshot, kept=None if done.kept is None else done.kept.id)


def _reconstructed(ledger: Ledger, machine: Machine, rev: str, to: str, *, is_recorded: bool) -> ReconstructedFiles:
    from weft.runtime.resources.turn_files import check_out_reconstruction, record_reconstruction

    reconstruction = check_out_reconstruction(ledger, rev, to)
    snapshot = record_reconstruction(ledger, machine.directories(), reconstruction) if is_recorded else None
    return ReconstructedFiles(
        turn_id=reconstruction.turn,
        place=os.path.abspath(to),
        files=len(reconstruction.files),
        deleted=list(reconstruction.deleted),
        gaps=[ReconstructionGap(path=gap.path, why=gap.why.value, turn_id=gap.turn) for gap in reconstruction.gaps],
        snapshot_id=None if snapshot is None else snapshot.id,
    )
