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
    found: Blame[K] = Blame([None] * len(lines), [])
    undoing = _Undoing([_Entry(line, n) for n, line in enumerate(lines)])
    for key, edit in edits:
        own, placed = undoing.take_back(edit)
        for n in own:
            if found.lines[n] is None:
                found.lines[n] = key
        if not placed:
            found.unplaced.append(key)
        if edit.whole is not None or edit.deleted:
            break
    return found


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
        wanted = None if hunk.old_start is None else hunk.old_start - 1 + shift
        at = _place(lines, hunk.before, wanted)
        if at is None:
            return None
        lines[at : at + len(hunk.before)] = hunk.after
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
        own: list[int] = []
        placed = True
        for hunk in reversed(edit.hunks):
            placed &= self._unpatch(hunk, own)
        for swap in reversed(edit.swaps):
            placed &= self._unswap(swap, own)
        return own, placed

    def _unwrite(self, lines: list[str]) -> tuple[list[int], bool]:
        """A whole text: every line that is still there is its own; before it lies nothing that is known."""
        now = [entry.text for entry in self._entries]
        blocks = SequenceMatcher(None, now, lines, autojunk=False).get_matching_blocks()
        kept = [entry for block in blocks for entry in self._entries[block.a : block.a + block.size]]
        own = [entry.last for entry in kept if entry.last is not None]
        self._entries = []
        return own, bool(own) or now == lines

    def _unpatch(self, hunk: Hunk, own: list[int]) -> bool:
        now = [entry.text for entry in self._entries]
        at = _place(now, hunk.after, None if hunk.new_start is None else hunk.new_start - 1)
        if at is None:
            return False
        here = iter(self._entries[at : at + len(hunk.after)])
        before: list[_Entry] = []
        for sign, text in hunk.lines:
            if sign == "-":
                before.append(_Entry(text, None))
            elif sign == "+":
                _note(next(here), own)
            else:
                before.append(next(here))
        self._entries[at : at + len(hunk.after)] = before
        return True

    def _unswap(self, swap: Swap, own: list[int]) -> bool:
        """A text that only went leaves nothing to find, and nothing that anybody wrote."""
        if not swap.new:
            return True
        found = False
        while (at := self._standing(swap)) is not None:
            self._swap_back(swap, at, own)
            found = True
            if not swap.everywhere or swap.new in swap.old:
                break
        return found

    def _standing(self, swap: Swap) -> int | None:
        """Where the new text stands; of several places one where the old text, put back, would stand alone."""
        text = self._text
        places = list(_occurrences(text, swap.new))
        alone = (at for at in places if swap.old and swap.old not in f"{text[:at]}\0{text[at + len(swap.new) :]}")
        return next(alone, next(iter(places), None))

    def _swap_back(self, swap: Swap, at: int, own: list[int]) -> None:
        text = self._text
        end = at + len(swap.new)
        first = text.count("\n", 0, at)
        last = first + swap.new.count("\n")
        lead, tail = text[text.rfind("\n", 0, at) + 1 : at], text[end:].split("\n", 1)[0]
        before = f"{lead}{swap.old}{tail}".split("\n")
        after = self._entries[first : last + 1]
        made: list[_Entry] = []
        compared = SequenceMatcher(None, [entry.text for entry in after], before, autojunk=False)
        for kind, a, b, c, d in compared.get_opcodes():
            if kind == "equal":
                made += after[a:b]
            else:
                for entry in after[a:b]:
                    _note(entry, own)
                made += [_Entry(line, None) for line in before[c:d]]
        self._entries[first : last + 1] = made

    @property
    def _text(self) -> str:
        return "\n".join(entry.text for entry in self._entries) + "\n"


def _note(entry: _Entry, own: list[int]) -> None:
    if entry.last is not None:
        own.append(entry.last)


def _occurrences(text: str, part: str) -> Iterator[int]:
    at = text.find(part)
    while at >= 0:
        yield at
        at = text.find(part, at + 1)


def _place(lines: Sequence[str], block: Sequence[str], wanted: int | None) -> int | None:
    """Where these lines stand together: at the wanted place, else at the nearest to it, else at the first."""
    if not block:
        return None if wanted is None else min(wanted + 1, len(lines))
    size, sought = len(block), [*block]
    firsts = (at for at in range(len(lines) - size + 1) if lines[at] == sought[0])
    places = [at for at in firsts if [*lines[at : at + size]] == sought]
    if wanted is None:
        return next(iter(places), None)
    return min(places, key=lambda at: abs(at - wanted), default=None)


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
    wanted = WantedPath(path)
    turns = dict.fromkeys(touch.turn_id for touch in ledger.files(path) if touch.kind == FileKind.WRITTEN)
    for turn_id in turns:
        turn = ledger.turn(turn_id)
        for call in reversed(ledger.tool_calls(turn_id)):
            if call.outcome not in (None, "ok"):
                continue
            for edit in reversed(edits_of(call.arguments, call.metadata)):
                if edit.path is not None and wanted.fits(edit.path, turn.workspace_path):
                    yield TurnEdit(turn, call, edit)


def blame_file(ledger: Ledger, path: str, text: str | None) -> FileBlame | None:
    """Who wrote the lines of a text, or of what the recorded edits leave where none is given; None where they leave
    nothing that is known as a whole."""
    edits = list(edits_to(ledger, path))
    if text is None:
        text = last_text(each.edit for each in reversed(edits))
    if text is None:
        return None
    return FileBlame(lines_of(text), blame(text, ((each, each.edit) for each in edits)))
