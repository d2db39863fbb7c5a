"""What the commands share that work on the files of turns."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from weft.kernel.enums import FileKind
from weft.kernel.errors import WeftError
from weft.kernel.permission_subjects import self_running, self_running_words
from weft.surfaces.cli.call import Call
from weft.surfaces.cli.figures import counted
from weft.surfaces.cli.screen import Line, Span
from weft.surfaces.plain_text import safe
from weft.surfaces.wire.turn_files import ChangedFile

if TYPE_CHECKING:
    from weft.ledger.api import Ledger
    from weft.runtime.folder_snapshots.snapshot_objects import ChangedPath
    from weft.runtime.resources.local_drivers import DirectoryDriver
    from weft.runtime.resources.turn_files import TurnFiles

LETTERS = {"added": "A", "deleted": "D", "modified": "M", "mode": "P", "kind": "T"}
STYLES = {"A": "good", "D": "bad"}
MOST_LISTED, MOST_NAMED = 20, 10


def turn_files(ledger: Ledger) -> TurnFiles:
    from weft.runtime.resources.turn_files import TurnFiles

    return TurnFiles(ledger, ledger_directories(ledger))


def ledger_directories(ledger: Ledger) -> DirectoryDriver:
    """What keeps working directories for a ledger, as the person configured it."""
    from weft.surfaces.cli.resource_access import directory_driver, load_resource_settings

    return directory_driver(ledger, load_resource_settings().snapshots)


def written_paths(ledger: Ledger, turn: str) -> set[str]:
    """The files that a turn is noted to have written."""
    notes = ledger.listing().files(message.id for message in ledger.messages(turn))
    return {file.path for files in notes.values() for file in files if file.kind == FileKind.WRITTEN}


def file_change(change: ChangedPath, lines: list[str] | None = None) -> ChangedFile:
    from weft.runtime.folder_snapshots.snapshot_objects import readable_path

    return ChangedFile(
        path=readable_path(change.path),
        status=change.status.value,
        old_kind=None if change.old_kind is None else change.old_kind.value,
        new_kind=None if change.new_kind is None else change.new_kind.value,
        lines=lines,
    )


def self_running_changes(changes: Iterable[ChangedPath]) -> dict[str, str]:
    """Those of the changed paths that are still there and that something runs by itself."""
    from weft.runtime.folder_snapshots.snapshot_objects import ChangeStatus, readable_path

    return self_running(readable_path(one.path) for one in changes if one.status is not ChangeStatus.DELETED)


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
        not_kept = dict.fromkeys(path for turn in with_calls for path in files.not_kept_before(turn))
    except WeftError as error:
        call.note(f"whether it changed what runs by itself is not known: {safe(str(error))}")
        return TurnNotes()
    git_changes = git_changes_since(call, files, with_calls)
    return TurnNotes(dict(sorted(self_running_changes(changes).items())), tuple(not_kept), tuple(git_changes))


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
        call.note(Span(f"`weft undo` does not give back what is too large to keep, or cannot be read: {names}", "dim"))


def note_self_running(call: Call, runners: Mapping[str, str]) -> None:
    """Say it where people look at what changed."""
    if words := self_running_words(runners):
        call.note(Span(safe(words), "warn"))


def change_lines(changes: Sequence[ChangedFile]) -> Iterator[Line]:
    for change in changes:
        letter = LETTERS.get(change.status, "?")
        yield [Span(letter, STYLES.get(letter, "id")), " ", safe(change.path)]
        for line in change.lines or ():
            yield [Span(safe(line), {"+": "good", "-": "bad", "@": "dim"}.get(line[:1], "text"))]


def short_change_lines(changes: Sequence[ChangedFile]) -> Iterator[Line]:
    """The first of them, for whoever is asked whether they may be made."""
    yield from change_lines(changes[:MOST_LISTED])
    if len(changes) > MOST_LISTED:
        yield [Span(f"… and {counted(len(changes) - MOST_LISTED, 'more path')}", "dim")]
