"""Which edit last wrote each line of a file: its edits are taken back one by one, the newest first."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from difflib import SequenceMatcher
from typing import Generic, TypeVar

from msgspec import Struct

from weft.exchange.file_changes import FileEdit, Hunk, Swap, edits_of, lines_of
from weft.kernel.enums import FileKind
from weft.ledger.api import Ledger, WantedPath
from weft.ledger.model import ToolCall, Turn

# --- Which edit last wrote each line of a text: edits are taken back one by one, the newest first.

K = TypeVar("K")


class Blame(Struct, Generic[K]):
    """For every line who wrote it, None where that is not known; and whose edits found no place."""

    lines: list[K | None]
    unplaced: list[K]


class _Entry(Struct):
    """A line of some version of the file, and which line of the last version it is; None: it was replaced since."""

    text: str
    last: int | None


def blame(text: str, edits: Iterable[tuple[K, FileEdit]]) -> Blame[K]:
    """Who wrote which line, of edits that come newest first."""
    lines = lines_of(text)
    blamed: Blame[K] = Blame([None] * len(lines), [])
    undoing = _Undoing([_Entry(line, n) for n, line in enumerate(lines)])
    for key, edit in edits:
        own_lines, placed = undoing.take_back(edit)
        for n in own_lines:
            if blamed.lines[n] is None:
                blamed.lines[n] = key
        if not placed:
            blamed.unplaced.append(key)
        if edit.whole is not None or edit.deleted:
            break
    return blamed


def last_text(edits: Iterable[FileEdit]) -> str | None:
    """The text after these edits, the oldest first; None where no turn wrote it whole, or an edit does not fit."""
    text: str | None = None
    for edit in edits:
        if edit.whole is not None or edit.deleted:
            text = edit.whole
        elif text is not None:
            text = _applied(text, edit)
    return text


def _applied(text: str, edit: FileEdit) -> str | None:
    for swap in edit.swaps:
        if swap.old not in text:
            return None
        text = text.replace(swap.old, swap.new) if swap.everywhere else text.replace(swap.old, swap.new, 1)
    lines, ended = lines_of(text), text.endswith("\n")
    shift = 0
    for hunk in edit.hunks:
        expected = None if hunk.old_start is None else hunk.old_start - 1 + shift
        position = _place(lines, hunk.before, expected)
        if position is None:
            return None
        lines[position : position + len(hunk.before)] = hunk.after
        shift += len(hunk.after) - len(hunk.before)
    return "\n".join(lines) + ("\n" if ended else "")


class _Undoing:
    """A file's text on its way back."""

    def __init__(self, entries: list[_Entry]) -> None:
        self._entries = entries

    def take_back(self, edit: FileEdit) -> tuple[list[int], bool]:
        """The lines of the last version that this edit wrote, and whether all of it was found."""
        if edit.deleted:
            return [], True
        if edit.whole is not None:
            return self._unwrite(lines_of(edit.whole))
        own_lines: list[int] = []
        placed = True
        for hunk in reversed(edit.hunks):
            placed &= self._unpatch(hunk, own_lines)
        for swap in reversed(edit.swaps):
            placed &= self._unswap(swap, own_lines)
        return own_lines, placed

    def _unwrite(self, lines: list[str]) -> tuple[list[int], bool]:
        """A whole text: every line that is still there is its own; before it lies nothing that is known."""
        now = [entry.text for entry in self._entries]
        blocks = SequenceMatcher(None, now, lines, autojunk=False).get_matching_blocks()
        kept_entries = [entry for block in blocks for entry in self._entries[block.a : block.a + block.size]]
        own_lines = [entry.last for entry in kept_entries if entry.last is not None]
        self._entries = []
        return own_lines, bool(own_lines) or now == lines

    def _unpatch(self, hunk: Hunk, own_lines: list[int]) -> bool:
        now = [entry.text for entry in self._entries]
        position = _place(now, hunk.after, None if hunk.new_start is None else hunk.new_start - 1)
        if position is None:
            return False
        entries_here = iter(self._entries[position : position + len(hunk.after)])
        before: list[_Entry] = []
        for sign, text in hunk.lines:
            if sign == "-":
                before.append(_Entry(text, None))
            elif sign == "+":
                _note(next(entries_here), own_lines)
            else:
                before.append(next(entries_here))
        self._entries[position : position + len(hunk.after)] = before
        return True

    def _unswap(self, swap: Swap, own_lines: list[int]) -> bool:
        """A text that only went leaves nothing to find, and nothing that anybody wrote."""
        if not swap.new:
            return True
        is_found = False
        while (position := self._position_of(swap)) is not None:
            self._swap_back(swap, position, own_lines)
            is_found = True
            if not swap.everywhere or swap.new in swap.old:
                break
        return is_found

    def _position_of(self, swap: Swap) -> int | None:
        """Where the new text stands; of several places one where the old text, put back, would stand alone."""
        text = self._text
        places = list(_occurrences(text, swap.new))
        alone = (
            position
            for position in places
            if swap.old and swap.old not in f"{text[:position]}\0{text[position + len(swap.new) :]}"
        )
        return next(alone, next(iter(places), None))

    def _swap_back(self, swap: Swap, position: int, own_lines: list[int]) -> None:
        text = self._text
        end = position + len(swap.new)
        first = text.count("\n", 0, position)
        last = first + swap.new.count("\n")
        lead, tail = text[text.rfind("\n", 0, position) + 1 : position], text[end:].split("\n", 1)[0]
        before = f"{lead}{swap.old}{tail}".split("\n")
        after = self._entries[first : last + 1]
        rebuilt: list[_Entry] = []
        compared = SequenceMatcher(None, [entry.text for entry in after], before, autojunk=False)
        for kind, a, b, c, d in compared.get_opcodes():
            if kind == "equal":
                rebuilt += after[a:b]
            else:
                for entry in after[a:b]:
                    _note(entry, own_lines)
                rebuilt += [_Entry(line, None) for line in before[c:d]]
        self._entries[first : last + 1] = rebuilt

    @property
    def _text(self) -> str:
        return "\n".join(entry.text for entry in self._entries) + "\n"


def _note(entry: _Entry, own_lines: list[int]) -> None:
    if entry.last is not None:
        own_lines.append(entry.last)


def _occurrences(text: str, needle: str) -> Iterator[int]:
    position = text.find(needle)
    while position >= 0:
        yield position
        position = text.find(needle, position + 1)


def _place(lines: Sequence[str], block: Sequence[str], expected: int | None) -> int | None:
    """Where these lines stand together: at the wanted place, else at the nearest to it, else at the first."""
    if not block:
        return None if expected is None else min(expected + 1, len(lines))
    size, sought = len(block), [*block]
    firsts = (position for position in range(len(lines) - size + 1) if lines[position] == sought[0])
    places = [position for position in firsts if [*lines[position : position + size]] == sought]
    if expected is None:
        return next(iter(places), None)
    return min(places, key=lambda position: abs(position - expected), default=None)


# --- A file's edits as the ledger knows them, the newest first.


class TurnEdit(Struct, frozen=True):
    """What one call of a turn did to the file."""

    turn: Turn
    call: ToolCall
    edit: FileEdit


class FileBlame(Struct, frozen=True):
    """A text and who wrote its lines."""

    lines: list[str]
    blame: Blame[TurnEdit]


def edits_to(ledger: Ledger, path: str) -> Iterator[TurnEdit]:
    """The edits of turns that noted to have written this file, the newest first."""
    wanted_path = WantedPath(path)
    turns = dict.fromkeys(touch.turn_id for touch in ledger.files(path) if touch.kind == FileKind.WRITTEN)
    for turn_id in turns:
        turn = ledger.turn(turn_id)
        for call in reversed(ledger.tool_calls(turn_id)):
            if call.outcome not in (None, "ok"):
                continue
            for edit in reversed(edits_of(call.arguments, call.metadata)):
                if edit.path is not None and wanted_path.fits(edit.path, turn.workspace_path):
                    yield TurnEdit(turn, call, edit)


def blame_file(ledger: Ledger, path: str, text: str | None) -> FileBlame | None:
    """Who wrote the lines of a text, or of what the recorded edits leave where none is given; None where they leave
    nothing that is known as a whole."""
    edits = list(edits_to(ledger, path))
    if text is None:
        text = last_text(turn_edit.edit for turn_edit in reversed(edits))
    if text is None:
        return None
    return FileBlame(lines_of(text), blame(text, ((turn_edit, turn_edit.edit) for turn_edit in edits)))
