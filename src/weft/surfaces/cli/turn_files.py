"""The files of turns and the resources of sessions, as people read them: what changed, what
was kept, what a fork does with them; the folders that are kept when turns end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from weft.kernel.clock import SystemClock
from weft.kernel.enums import ResourceCapability, ResourceKind, RestoreOutcome, VolumeMode
from weft.kernel.errors import WeftError
from weft.kernel.permission_subjects import self_running_words
from weft.surfaces.cli.command_line import Call
from weft.surfaces.cli.progress import counted, size_text
from weft.surfaces.cli.screen import Line, Span, local_time
from weft.surfaces.cli.turn_lists import short
from weft.surfaces.cli.work.sandbox_access import ignored_self_running, ledger_directories, self_running_changes
from weft.surfaces.plain_text import safe
from weft.verbs.branch_verbs import skipped_count
from weft.verbs.exchange_answers import ChangedFile, PlannedCopy

if TYPE_CHECKING:
    from weft.exchange.importing.run import OnEnded
    from weft.ledger.api import Ledger, Owner, Resource, Snapshot
    from weft.runtime.folder_snapshots.snapshot_objects import ChangedPath
    from weft.runtime.resources.turn_files import TurnFiles
    from weft.runtime.resources.workspace_snapshots import KeptFolder


# --- What the commands share that work on the files of turns.

LETTERS = {"added": "A", "deleted": "D", "modified": "M", "mode": "P", "kind": "T"}
STYLES = {"A": "good", "D": "bad"}
MOST_LISTED, MOST_NAMED = 20, 10


def turn_files(ledger: Ledger) -> TurnFiles:
    from weft.runtime.resources.turn_files import TurnFiles

    return TurnFiles(ledger, ledger_directories(ledger))


class TurnNotes(Struct, frozen=True):
    """What people are told of files when a turn has ended."""

    runs_by_itself: dict[str, str] = {}
    """What it changed that something runs by itself, each with what runs it."""
    not_kept: tuple[str, ...] = ()
    """What it could change unasked and an undo does not give back."""

    git_changes: tuple[str, ...] = ()
    """What of git's is not what it was before it, in words."""

    def fields(self) -> dict[str, Any]:
        """As they stand in every form that tells of a turn."""
        return {
            "runs_by_itself": self.runs_by_itself,
            "not_kept": list(self.not_kept),
            "git_changes": list(self.git_changes),
        }


def turn_notes_of(call: Call, ledger: Ledger, turns: Iterable[str]) -> TurnNotes:
    """Of these turns together. Where it cannot be told, that is said: whatever the turns gave is there all the same.
    Turns without tool calls changed nothing."""
    with_calls = [turn for turn in dict.fromkeys(turns) if ledger.turn(turn).tool_call_count]
    if not with_calls:
        return TurnNotes()
    try:
        files = turn_files(ledger)
        changes = [change for turn in with_calls for change in files.changes_of_turn(turn)]
        places = dict.fromkeys(place for turn in with_calls for place in files.places_of_turn(turn))
        not_kept = dict.fromkeys(path for turn in with_calls for path in files.not_kept_before(turn))
        running = self_running_changes(changes, places) | ignored_self_running(files, with_calls)
    except WeftError as error:
        call.note(f"whether it changed what runs by itself is not known: {safe(str(error))}")
        return TurnNotes()
    git_changes = git_changes_since(call, files, with_calls)
    return TurnNotes(dict(sorted(running.items())), tuple(not_kept), tuple(git_changes))


def git_changes_since(call: Call, files: TurnFiles, turns: Sequence[str]) -> list[str]:
    """What of git's is not what it was before these turns, in words. Where it cannot be told, that is said."""
    try:
        return [change.words for change in files.git_changes_since(turns)]
    except (WeftError, OSError) as error:
        call.note(f"what changed in git's folders is not known: {safe(str(error))}")
        return []


def note_git_changes(call: Call, changes: Sequence[str]) -> None:
    """Say where `HEAD`, branches and the index were changed: a commit leaves no other trace in the files."""
    for words in changes[:MOST_LISTED]:
        call.note(f"git in {safe(words)}")
    if len(changes) > MOST_LISTED:
        call.note(f"and {counted(len(changes) - MOST_LISTED, 'more change')} in git's folders")


def note_turn(call: Call, notes: TurnNotes) -> None:
    """Say it where the turn ends."""
    note_self_running(call, notes.runs_by_itself)
    note_git_changes(call, notes.git_changes)
    if notes.not_kept:
        named, more = notes.not_kept[:MOST_NAMED], len(notes.not_kept) - MOST_NAMED
        names = ", ".join(map(safe, named)) + (f" and {counted(more, 'other path')}" if more > 0 else "")
        call.note(
            Span(f"`weft undo` does not give back what is too large to keep, hidden, or cannot be read: {names}", "dim")
        )


def note_self_running(call: Call, runners: Mapping[str, str]) -> None:
    """Say it where people look at what changed."""
    if words := self_running_words(runners):
        call.note(Span(safe(words), "warn"))


def change_lines(changes: Sequence[ChangedFile]) -> Iterator[Line]:
    for change in changes:
        letter = LETTERS.get(change.status, "?")
        yield [Span(letter, STYLES.get(letter, "id")), " ", safe(change.path)]
        for line in change.lines or ():
            yield [Span(safe(line), {"+": "good", "-": "bad", "@": "dim"}.get(line[:1], ""))]


def short_change_lines(changes: Sequence[ChangedFile]) -> Iterator[Line]:
    """The first of them, for whoever is asked whether they may be made."""
    yield from change_lines(changes[:MOST_LISTED])
    if len(changes) > MOST_LISTED:
        yield [Span(f"… and {counted(len(changes) - MOST_LISTED, 'more path')}", "dim")]


# --- Resources and snapshots as people read them.

MOST_SKIPPED, MOST_CHANGES = 10, 20
INFERRED = Span("reconstruction", "warn")
"""The state of a snapshot that was put together from what a session tells."""
STATE_STYLES = {"ok": "good", "error": "bad", "requested": "warn", "discarded": "dim"}


def owner_text(owner: Owner | None) -> str:
    if owner is None:
        return "nobody"
    return f"{owner.kind} {owner.name or owner.id}"


def resource_row(resource: Resource) -> list[Span | str]:
    return [
        Span(short(resource.id), "id"),
        Span(resource.name, "label"),
        resource.kind.value,
        owner_text(resource.owner),
        resource.liveness.value,
        resource.place if resource.is_own else f"{resource.place} (of another ledger)",
    ]


def restored_text(resource: Resource) -> str:
    """Where snapshots of it can be brought back."""
    from weft.runtime.resources.drivers import RESTORED_AS_NEW

    if not resource.can(ResourceCapability.RESTORE):
        return "never"
    return "as a new one only, not in place" if resource.kind in RESTORED_AS_NEW else "in place, or as a new one"


def resource_lines(resource: Resource) -> list[Line]:
    made_by = ", made by weft" if resource.is_made else ""
    lines: list[Line] = [[f"{resource.kind.value} ", Span(resource.name, "label"), " ", Span(resource.id, "id")]]
    probed = "" if resource.probed_at is None else f", {local_time(resource.probed_at)}"
    for what, value in (
        ("place", resource.place + made_by),
        ("owner", owner_text(resource.owner)),
        ("can", ", ".join(resource.capabilities) or "nothing"),
        ("restored", restored_text(resource)),
        ("alive", resource.liveness.value + probed),
        ("declared", f"{local_time(resource.declared_at)} by {resource.declared_by}"),
    ):
        lines.append([Span(f"  {what:<9}", "dim"), value])
    for use in resource.uses:
        where = "" if use.mount is None else f" at {use.mount}"
        lines.append([Span(f"  {use.way:<9}", "dim"), f"{owner_text(use.user)}{where}, {use.mode.value}"])
    for part in resource.parts:
        lines.append([Span("  part     ", "dim"), f"{part.part.value} ", Span(part.resource, "id")])
    for handle in resource.handles:
        able = ", ".join(handle.capabilities) or "nothing"
        lines.append([Span("  handle   ", "dim"), f"{handle.provider} {handle.provider_id:.12}: {able}"])
    return lines


def snapshot_row(snapshot: Snapshot, *, is_here: bool) -> list[Span | str]:
    state = INFERRED if snapshot.is_inferred else Span(snapshot.state.value, STATE_STYLES[snapshot.state.value])
    return [
        Span(short(snapshot.id), "id"),
        local_time(snapshot.created_at),
        state if is_here else Span("not here", "warn"),
        "" if snapshot.size_bytes is None else size_text(snapshot.size_bytes),
        snapshot.method or "",
        "" if snapshot.run is None else ("before " if snapshot.is_before else "after ") + short(snapshot.run),
        snapshot.error or (f"without {counted(missing, 'path')}" if (missing := skipped_count(snapshot)) else ""),
    ]


def snapshot_lines(resource: Resource, snapshot: Snapshot) -> list[Line]:
    """What was kept, how and how much, or why it was not; and what is not in it."""
    if snapshot.error is not None:
        return [[Span(resource.name, "label"), Span(f" was not kept: {snapshot.error}", "bad")]]
    size = "" if snapshot.size_bytes is None else f", {size_text(snapshot.size_bytes)}"
    lines: list[Line] = [
        ["kept ", Span(resource.name, "label"), " as ", Span(snapshot.id, "id"), f" ({snapshot.method}{size})"]
    ]
    return [*lines, *skipped_lines(snapshot)]


def skipped_lines(snapshot: Snapshot) -> list[Line]:
    skipped = [note for note in snapshot.skipped or () if isinstance(note, dict)]
    listed = [note for note in skipped if "path" in note]
    more = sum(int(note["more"]) for note in skipped if "more" in note) + max(0, len(listed) - MOST_SKIPPED)
    lines: list[Line] = [
        [Span(f"  without {note['path']}: {str(note.get('why', '')).replace('_', ' ')}", "warn")]
        for note in listed[:MOST_SKIPPED]
    ]
    return [*lines, [Span(f"  and {more} more", "warn")]] if more else lines


def restore_lines(changes: Sequence[ChangedPath]) -> list[Line]:
    """What a restore would do to a folder."""
    words = {
        "added": "write",
        "deleted": "remove",
        "modified": "write",
        "mode": "change the mode of",
        "kind": "replace",
    }
    lines: list[Line] = [[f"  {words[change.status.value]} {change.path}"] for change in changes[:MOST_CHANGES]]
    more = len(changes) - MOST_CHANGES
    return [*lines, [f"  and {counted(more, 'more change')}"]] if more > 0 else lines


# --- What `weft fork` does with the resources of a session: shows the plan, carries it out, tells what came of it.


def plan_lines(copies: Sequence[PlannedCopy], *, is_done: bool) -> Iterator[Line]:
    for copy in copies:
        yield ["  ", Span(copy.name, "label"), " ", *_copy_line(copy, is_done=is_done)]


def _copy_line(copy: PlannedCopy, *, is_done: bool) -> Line:
    if copy.mode is VolumeMode.DISCARD:
        return [f"{'is' if is_done else 'would be'} nobody's any more; only what weft made of it is removed"]
    if copy.mode is VolumeMode.KEEP:
        return [f"stays with {copy.kept_by} ({copy.why})"]
    details = ", ".join((copy.why, *_details(copy)))
    if not is_done:
        return [f"would be copied to {copy.place} ({details})"]
    if copy.outcome is RestoreOutcome.OK:
        return [f"was copied to {copy.place} ({details})"]
    reason = copy.error or "somebody works on it; the broker copies it later"
    return [Span(f"could not be copied: {reason}", "bad")]


def _details(copy: PlannedCopy) -> Iterator[str]:
    """How large it is, and what is not in it."""
    if copy.size_bytes is not None:
        yield size_text(copy.size_bytes)
    if copy.changed_since:
        yield f"without what changed since in {counted(copy.changed_since, 'path')}"
    if copy.skipped:
        yield f"without {counted(copy.skipped, 'path')} that could not be kept"
    if copy.kind == ResourceKind.DIRECTORY:
        yield "without .git and ignored files"


# --- `weft import --watch --files DIR`: the folders that are kept when turns of other tools end.


@contextmanager
def kept_folders(
    ledger: Ledger, folders: Sequence[str], report: Callable[[KeptFolder], None]
) -> Iterator[OnEnded | None]:
    """Who is to be told of turns that ended; None where no folder is named."""
    if not folders:
        yield None
        return
    from weft.runtime.resources.workspace_snapshots import FollowedFolders

    paths = [Path(folder) for folder in folders]
    with FollowedFolders(ledger, ledger_directories(ledger), paths, SystemClock(), report) as followed:
        yield followed.on_ended
