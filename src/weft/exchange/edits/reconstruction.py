"""The files of a turn, put together from what its session tells: texts that were written or read whole, and the edits
that were made to them since.

It is no snapshot. A file is given where every step to it is told exactly; whatever is not is a gap, with why. What no
call of the session touched is not known at all. Commands of a shell are not followed: those that may have written leave
a gap without a path, and the files that they name are not known any more. Paths outside of the workspace are left out.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from enum import StrEnum
from pathlib import PurePosixPath

from msgspec import Struct

from weft.exchange.edits.edits import Hunk, Swap
from weft.exchange.edits.file_accesses import FileAccess, file_accesses
from weft.exchange.edits.shell_commands import effect_of, shell_command
from weft.kernel.enums import ToolCallStatus
from weft.kernel.errors import NotFound
from weft.ledger.api import Ledger
from weft.ledger.model import ToolCall, Turn

MOST_TEXT = 16 * 1024 * 1024
MOST_FILES = 100_000
MOST_SUBAGENTS = 4
"""So many of them may have started each other."""
_DRIVE = re.compile(r"[A-Za-z]:[\\/]")
_REPOSITORY = ".git"


class GapReason(StrEnum):
    """Why a file is not known."""

    BASE_UNKNOWN = "its text before the edit is not told"
    NO_MATCH = "an edit does not fit the text that is known"
    CHANGE_UNKNOWN = "how it was changed is not told"
    SHELL = "a command that cannot be followed may have changed it"
    NO_OUTCOME = "whether the change was made is not told"
    OUTSIDE = "it lies outside of the workspace"
    NOT_TEXT = "it is no text that can be written"
    TOO_LARGE = "it is too large"
    SUBAGENT = "what a subagent did is not known"


class Gap(Struct, frozen=True, kw_only=True):
    """Something that is not known."""

    path: str | None
    """None: it is not known of which file."""
    why: GapReason
    turn: str
    """In which turn it came to be."""


class Reconstruction(Struct, frozen=True, kw_only=True):
    """The files of a workspace after a turn, as far as its session tells."""

    turn: str
    workspace: str | None
    files: dict[str, bytes]
    """By path below the workspace."""
    deleted: tuple[str, ...]
    gaps: tuple[Gap, ...]


def reconstruct(ledger: Ledger, rev: str) -> Reconstruction:
    """What the edits of the turns up to this one leave."""
    turns = list(ledger.thread(rev).turns)
    workspace = _workspace(turns)
    files = _WorkspaceFiles(ledger, workspace)
    for turn in turns:
        files.follow(turn)
    return files.result(ledger.resolve(rev))


def _workspace(turns: Iterable[Turn]) -> str | None:
    """The folder that the turns worked in: of one inside of the other the outer one, else the first."""
    found: str | None = None
    for turn in turns:
        place = None if turn.workspace_path is None else _posix(turn.workspace_path)
        if place is not None and (found is None or PurePosixPath(found).is_relative_to(place)):
            found = place
    return found


class _KnownFile(Struct):
    """A text, or why there is none; neither: it is deleted."""

    text: str | None = None
    gap: Gap | None = None


class _WorkspaceFiles:
    """The files of a workspace on their way through the turns."""

    def __init__(self, ledger: Ledger, workspace: str | None) -> None:
        self._ledger, self._workspace = ledger, workspace
        self._files: dict[str, _KnownFile] = {}
        self._others: dict[tuple[str | None, GapReason], Gap] = {}
        """Gaps that are of no file here."""

    def follow(self, turn: Turn, depth: int = 0) -> None:
        for call in self._ledger.tool_calls(turn.id):
            self._follow_call(turn, call)
            if call.spawned_session is not None:
                self._follow_subagent(turn, call.spawned_session, depth)

    def result(self, turn: str) -> Reconstruction:
        files: dict[str, bytes] = {}
        gaps = [*self._others.values(), *(file.gap for file in self._files.values() if file.gap is not None)]
        for path, file in self._files.items():
            if file.text is not None:
                try:
                    files[path] = file.text.encode()
                except UnicodeEncodeError:
                    gaps.append(Gap(path=path, why=GapReason.NOT_TEXT, turn=turn))
        return Reconstruction(
            turn=turn,
            workspace=self._workspace,
            files=dict(sorted(files.items())),
            deleted=tuple(sorted(path for path, file in self._files.items() if file == _KnownFile())),
            gaps=tuple(sorted(gaps, key=lambda gap: (gap.path or "", gap.why))),
        )

    # --- calls ------------------------------------------------------------------------------------------------------

    def _follow_call(self, turn: Turn, call: ToolCall) -> None:
        """A change that failed, or that nobody allowed, changed nothing; a command that failed may have."""
        if call.outcome == ToolCallStatus.CANCELED:
            return
        accesses = file_accesses(call.name, call.arguments, call.result, call.metadata)
        command = None if accesses else shell_command(call.name, call.arguments)
        if command is not None:
            self._run(turn, command)
        for access in accesses if call.outcome != ToolCallStatus.ERROR else ():
            self._take(turn, access, is_sure=call.outcome == ToolCallStatus.OK)

    def _follow_subagent(self, turn: Turn, session: str, depth: int) -> None:
        try:
            turns = list(self._ledger.thread(session).turns) if depth < MOST_SUBAGENTS else None
        except NotFound:
            turns = None
        if turns is None:
            self._leave(turn, None, GapReason.SUBAGENT)
        for each in turns or ():
            self.follow(each, depth + 1)

    def _run(self, turn: Turn, command: str) -> None:
        effect = effect_of(command)
        if effect.is_reading:
            return
        self._leave(turn, None, GapReason.SHELL)
        if effect.changes_all:
            for path in self._files:
                self._files[path] = _KnownFile(gap=Gap(path=path, why=GapReason.SHELL, turn=turn.id))
        named = {place for word in effect.paths if (place := self._place(turn, word)) is not None}
        for path in [path for path in self._files if path in named or not named.isdisjoint(_above(path))]:
            self._files[path] = _KnownFile(gap=Gap(path=path, why=GapReason.SHELL, turn=turn.id))

    def _take(self, turn: Turn, access: FileAccess, *, is_sure: bool) -> None:
        path = self._place(turn, access.path)
        if path is None:
            if not access.is_read:
                self._leave(turn, None, GapReason.OUTSIDE)
            return
        if len(self._files) >= MOST_FILES and path not in self._files:
            self._leave(turn, None, GapReason.TOO_LARGE)
            return
        if access.is_read and not is_sure:
            return
        known = self._files.get(path)
        after = _after(known, access) if is_sure else GapReason.NO_OUTCOME
        if isinstance(after, str) and not isinstance(after, GapReason) and len(after) > MOST_TEXT:
            after = GapReason.TOO_LARGE
        if isinstance(after, GapReason):
            self._files[path] = _KnownFile(gap=Gap(path=path, why=after, turn=turn.id))
            return
        self._files[path] = _KnownFile(text=after)
        for folder in _above(path) if after is not None else ():
            self._files.pop(folder, None)  # it is a folder now

    def _leave(self, turn: Turn, path: str | None, why: GapReason) -> None:
        self._others.setdefault((path, why), Gap(path=path, why=why, turn=turn.id))

    def _place(self, turn: Turn, path: str) -> str | None:
        """The path below the workspace; None where it lies elsewhere, or in the store of a repository."""
        own = turn.workspace_path or self._workspace
        if self._workspace is None or own is None or "\0" in path:
            return None
        place = PurePosixPath(os.path.normpath(os.path.join(_posix(own), _posix(path))))
        if not place.is_relative_to(self._workspace):
            return None
        parts = place.relative_to(self._workspace).parts
        is_fine = bool(parts) and not any(part.lower() == _REPOSITORY or part == ".." for part in parts)
        return "/".join(parts) if is_fine else None


def _posix(path: str) -> str:
    """A path of another system in the form that this one compares."""
    return os.path.normpath(path.replace("\\", "/") if _DRIVE.match(path) else path)


def _above(path: str) -> Iterator[str]:
    return (str(folder) for folder in PurePosixPath(path).parents if folder.parts)


# --- edits -----------------------------------------------------------------------------------------------------------


def _after(known: _KnownFile | None, access: FileAccess) -> str | GapReason | None:
    """The text after what a call tells; None: the file is gone."""
    if access.is_deleted:
        return None
    if access.whole is not None:
        return access.whole
    if access.is_vague:
        return GapReason.CHANGE_UNKNOWN
    text = _base(known, access)
    return GapReason.BASE_UNKNOWN if text is None else _edited(text, access)


def _base(known: _KnownFile | None, access: FileAccess) -> str | None:
    """The text before an edit: nothing, where the edit says that there was nothing, and nobody knows better."""
    if known is not None and (known.text is not None or known.gap is not None):
        return known.text
    return "" if access.swaps and not access.swaps[0].old else None


def _edited(text: str, access: FileAccess) -> str | GapReason:
    if not access.swaps:
        return _text_or_gap(_patched(text, access.hunks))
    swapped = _swapped(text, access.swaps)
    if access.hunks and swapped is not None and swapped != _patched(text, access.hunks):
        return GapReason.NO_MATCH  # the tool saw another text: somebody else had changed it
    return _text_or_gap(swapped)


def _text_or_gap(text: str | None) -> str | GapReason:
    return GapReason.NO_MATCH if text is None else text


def _swapped(text: str, swaps: Iterable[Swap]) -> str | None:
    """None where a text that is to be replaced is not there, or stands at several places of which one is meant."""
    for swap in swaps:
        if not swap.old:
            if text:
                return None
            text = swap.new
            continue
        count = text.count(swap.old)
        if count == 0 or (count > 1 and not swap.everywhere):
            return None
        text = text.replace(swap.old, swap.new)
        if len(text) > MOST_TEXT:
            return None
    return text


def _patched(text: str, hunks: Iterable[Hunk]) -> str | None:
    """None where a hunk fits nowhere, or at several places none of which is the one that it names."""
    lines, shift, is_any = text.split("\n"), 0, False
    for hunk in hunks:
        is_any = True
        before, after = hunk.before, hunk.after
        wanted = None if hunk.old_start is None else hunk.old_start - 1 + shift
        at = _place_of(lines, before, wanted)
        if at is None:
            return None
        lines[at : at + len(before)] = after
        shift += len(after) - len(before)
    return "\n".join(lines) if is_any else None


def _place_of(lines: list[str], block: list[str], wanted: int | None) -> int | None:
    if not block:
        return None  # where it goes is told by a number that means the line before or after it, by whose it is
    size = len(block)
    if wanted is not None and wanted >= 0 and lines[wanted : wanted + size] == block:
        return wanted
    firsts = [at for at, line in enumerate(lines[: len(lines) - size + 1]) if line == block[0]]
    places = [at for at in firsts[:_MOST_PLACES] if lines[at : at + size] == block]
    return places[0] if len(places) == 1 and len(firsts) <= _MOST_PLACES else None


_MOST_PLACES = 1000
"""A hunk whose first line stands at more places, and not where it says, is not looked for."""
