"""What tool calls changed in files, and which of these changes last wrote each line of a file.

Arguments by the names that tools give them; changes, in every way that tools tell them, as signed
lines under a path; and edits as they can be applied and taken back. To know who wrote a line, the
edits of its file are taken back one by one, the newest first.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from difflib import SequenceMatcher
from typing import Any, Generic, TypeVar

from msgspec import Struct, field

from weft.kernel.enums import FileKind
from weft.ledger.api import Ledger, WantedPath
from weft.ledger.model import ToolCall, Turn

# --- A tool call's arguments, by the names that tools give them.

PATHS = ("file_path", "filePath", "absolute_path", "notebook_path", "target_file", "filename", "path", "file")
OLD = ("old_string", "oldString", "old_str", "oldText", "old_text", "old")
NEW = ("new_string", "newString", "new_str", "newText", "new_text", "new")
EVERYWHERE = ("replace_all", "replaceAll")
PATCHES = ("patch", "input", "diff", "unified_diff")
WRITTEN = ("content", "file_text", "contents")


def opened(arguments: Any) -> Any:
    """Arguments as a value, where the origin has them as the text of one."""
    if isinstance(arguments, str) and arguments[:1] in "{[" and arguments:
        try:
            value = json.loads(arguments)
        except (ValueError, RecursionError):
            return arguments
        return value if isinstance(value, dict) else arguments
    return arguments


def text_at(arguments: Any, names: tuple[str, ...]) -> str | None:
    """The first of these arguments that is a text."""
    if not isinstance(arguments, dict):
        return None
    return next((arguments[name] for name in names if isinstance(arguments.get(name), str)), None)


# --- Changes to files, in every way that tools tell them, as signed lines under a path.

HEADERS = ("Index: ", "=====", "--- ", "+++ ", "diff --git ", "index ", "new file mode", "deleted file mode")
MOST_COMPARED = 2000
DELETED = "- (deleted)"
"""Stands for all lines of a file that was deleted without telling them."""
BEGIN = "*** Begin Patch"
_FILE = re.compile(r"\*\*\* (Add|Update|Delete) File: (.*)")
_QUOTED = re.compile(r'"(\*\*\* Begin Patch(?:[^"\\\n]++|\\.)*+)')
"""Up to its end, which is a quote, or a line that ends too early. Nothing is looked at twice: what begins within runs
into the same end."""
_NEW_START = re.compile(r"@@ -\d+(?:,\d+)? \+(\d+)")


class FileChange(Struct):
    """What became of one file: lines that begin with +, -, a space or @@."""

    path: str | None
    lines: list[str] = field(default_factory=list)
    start: int | None = None
    """The first line of the file that is told of."""

    @property
    def counts(self) -> str:
        added, removed = (sum(line.startswith(sign) for line in self.lines) for sign in "+-")
        return f"+{added} -{removed}"


def changes_of(arguments: Any, detail: Any) -> list[FileChange]:
    """What a call changed, as its outcome or its arguments tell; empty where it changed nothing."""
    return patched_changes(arguments, detail) or [change for change in (_asked_change(arguments),) if change.lines]


def patched_changes(arguments: Any, detail: Any) -> list[FileChange]:
    """What a patch tells, line by line: the tool's own, or the one it was given."""
    path = text_at(arguments, PATHS)
    for candidates in (_from_detail(detail, path), _patch_changes(arguments, path)):
        changes = [change for change in candidates if change.lines]
        if changes:
            return changes
    return []


def _from_detail(detail: Any, path: str | None) -> Iterator[FileChange]:
    if not isinstance(detail, dict):
        return
    hunks = detail.get("structuredPatch")
    if isinstance(hunks, list) and hunks:
        yield from _structured(hunks, path)
        return
    for holder in (detail, detail.get("metadata"), *_events(detail)):
        if not isinstance(holder, dict):
            continue
        if isinstance(by_path := holder.get("changes"), dict):
            yield from (_one_of(changed_path, change) for changed_path, change in by_path.items())
        elif isinstance(text := holder.get("diff") or holder.get("unified_diff"), str):
            yield from parse_patch(text, path)


def _events(detail: dict[str, Any]) -> list[Any]:
    events = detail.get("events")
    return events if isinstance(events, list) else []


def _one_of(path: str, change: Any) -> FileChange:
    """One file of a table of changes: a diff of it, or the text that was added or deleted."""
    inner = next((change[name] for name in ("update", "add", "delete") if isinstance(change.get(name), dict)), change)
    text = inner.get("unified_diff")
    if isinstance(text, str):
        return next(iter(parse_patch(text, path)), FileChange(path))
    content = inner.get("content")
    sign = "-" if change.get("type") == "delete" or "delete" in change else "+"
    return FileChange(path, _signed_lines(sign, content) if isinstance(content, str) else [])


def _structured(hunks: list[Any], path: str | None) -> Iterator[FileChange]:
    change = FileChange(path)
    for hunk in hunks:
        if not isinstance(hunk, dict) or not isinstance(hunk.get("lines"), list):
            continue
        numbers = [hunk.get(name) for name in ("oldStart", "oldLines", "newStart", "newLines")]
        if all(isinstance(number, int) for number in numbers):
            change.lines.append("@@ -{},{} +{},{} @@".format(*numbers))
            change.start = change.start or numbers[2]
        change.lines += [line for line in hunk["lines"] if isinstance(line, str)]
    yield change


def _patch_changes(arguments: Any, path: str | None) -> Iterator[FileChange]:
    if isinstance(arguments, str):
        yield from _patch_in(arguments)
    elif isinstance(arguments, dict):
        texts = [arguments[name] for name in PATCHES if isinstance(arguments.get(name), str)]
        text = next((text for text in texts if _is_patch(text)), None)
        if text is not None:
            yield from parse_patch(text, path)


def _asked_change(arguments: Any) -> FileChange:
    """Texts that were to be exchanged, or a whole one that was to be written."""
    change = FileChange(text_at(arguments, PATHS))
    for swap in swaps_in(arguments):
        change.lines += _swapped_lines(swap)
    text = text_at(arguments, WRITTEN)
    if not change.lines and change.path is not None and text is not None:
        change.lines, change.start = _signed_lines("+", text), None
    return change


def swaps_in(arguments: Any) -> list[Any]:
    """One exchange of texts, or a list of them."""
    if not isinstance(arguments, dict):
        return []
    edits = arguments.get("edits")
    return [*edits] if isinstance(edits, list) else [arguments]


def _is_patch(text: str) -> bool:
    return BEGIN in text or bool(re.search(r"^@@ ", text, re.MULTILINE))


def _patch_in(text: str) -> Iterator[FileChange]:
    """A patch that is the text, or that stands quoted in a program."""
    for quoted in _QUOTED.finditer(text):
        if text[quoted.end() : quoted.end() + 1] != '"':
            continue
        try:
            yield from parse_patch(json.loads(f'"{quoted[1]}"'), None)
        except ValueError:
            continue
    if text.lstrip().startswith(BEGIN):
        yield from parse_patch(text, None)


def parse_patch(text: str, path: str | None) -> Iterator[FileChange]:
    """A unified diff, or one between `*** Begin Patch` and `*** End Patch`; files come one after the other."""
    change = FileChange(path)
    sign = ""
    for line in _lines(text):
        if file_match := _FILE.match(line):
            yield change
            change, sign = FileChange(file_match[2].strip()), "-" if file_match[1] == "Delete" else ""
        elif line.startswith("diff --git ") and change.lines:
            yield change
            change = FileChange(line.rpartition(" b/")[2] or path)
        elif not line.startswith(("*** ", *HEADERS)):
            change.lines.append(line)
            if change.start is None and (start_match := _NEW_START.match(line)):
                change.start = int(start_match[1])
    if sign and not change.lines:
        change.lines.append(DELETED)
    yield change


def _swapped_lines(swap: Any) -> list[str]:
    """An exchange of one text for another, line by line."""
    old, new = text_at(swap, OLD), text_at(swap, NEW)
    if old is None or new is None:
        return []
    before, after = _lines(old), _lines(new)
    if len(before) + len(after) > MOST_COMPARED:
        return [*(f"-{line}" for line in before), *(f"+{line}" for line in after)]
    return list(_compared(before, after))


def _compared(before: list[str], after: list[str]) -> Iterator[str]:
    from difflib import SequenceMatcher

    for kind, a, b, c, d in SequenceMatcher(None, before, after, autojunk=False).get_opcodes():
        if kind == "equal":
            yield from _context_around(before[a:b], first=a == 0, last=b == len(before))
        else:
            yield from (f"-{line}" for line in before[a:b])
            yield from (f"+{line}" for line in after[c:d])


def _context_around(lines: list[str], *, first: bool, last: bool, context_lines: int = 2) -> Iterable[str]:
    """Lines that did not change: those beside a change, and a mark for the others."""
    if first and last:
        return []
    head, tail = (0 if first else context_lines), (0 if last else context_lines)
    if len(lines) <= head + tail:
        return [f" {line}" for line in lines]
    kept_tail = lines[len(lines) - tail :] if tail else []
    between = ["@@"] if head and tail else []
    return [f" {line}" for line in lines[:head]] + between + [f" {line}" for line in kept_tail]


def _signed_lines(sign: str, text: str) -> list[str]:
    return [f"{sign}{line}" for line in _lines(text)]


def _lines(text: str) -> list[str]:
    """Lines end with a line feed or a carriage return; a form feed or U+2028 stays in its line, where it is shown."""
    lines = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    return lines if lines[-1] else lines[:-1]


# --- Edits of files as they can be applied and taken back: hunks of a patch, one text in another's place, a whole
# text.

_START = re.compile(r"@@ -(\d+)(?:,\d+)? \+(\d+)(?:,\d+)? @@")


class Hunk(Struct, frozen=True):
    """Neighbouring lines, each with a sign: a space stays, `-` goes, `+` comes."""

    lines: tuple[tuple[str, str], ...]
    old_start: int | None = None
    new_start: int | None = None

    @property
    def before(self) -> list[str]:
        return [text for sign, text in self.lines if sign != "+"]

    @property
    def after(self) -> list[str]:
        return [text for sign, text in self.lines if sign != "-"]


class Swap(Struct, frozen=True):
    """One text in another's place, once or wherever it stands."""

    old: str
    new: str
    everywhere: bool = False


class FileEdit(Struct, frozen=True):
    """What one call did to one file."""

    path: str | None
    hunks: tuple[Hunk, ...] = ()
    swaps: tuple[Swap, ...] = ()
    whole: str | None = None
    """All that the file holds since."""
    deleted: bool = False


def edits_of(arguments: Any, detail: Any) -> list[FileEdit]:
    """What a call did to files, as exactly as its outcome or its arguments tell."""
    arguments = opened(arguments)
    changes = patched_changes(arguments, detail)
    if changes:
        return [patch_edit(change) for change in changes]
    path = text_at(arguments, PATHS)
    swaps = tuple(swap for swap_fields in swaps_in(arguments) if (swap := _swap(swap_fields)) is not None)
    if swaps:
        return [FileEdit(path, swaps=swaps)]
    whole_text = text_at(arguments, WRITTEN)
    return [FileEdit(path, whole=whole_text)] if path is not None and whole_text is not None else []


def patch_edit(change: FileChange) -> FileEdit:
    if change.lines == [DELETED]:
        return FileEdit(change.path, deleted=True)
    hunks: list[Hunk] = []
    lines: list[tuple[str, str]] = []
    starts: tuple[int | None, int | None] = (None, None)
    for line in [*change.lines, "@@"]:
        if line.startswith("@@"):
            if lines:
                hunks.append(Hunk(tuple(lines), *starts))
            start_match = _START.match(line)
            lines, starts = [], (int(start_match[1]), int(start_match[2])) if start_match else (None, None)
        elif line[:1] in ("+", "-", " "):
            lines.append((line[0], line[1:]))
        elif not line:
            lines.append((" ", ""))
    is_new = len(hunks) == 1 and hunks[0].new_start is None and all(sign == "+" for sign, _ in hunks[0].lines)
    if is_new:
        return FileEdit(change.path, whole="\n".join(hunks[0].after))
    return FileEdit(change.path, hunks=tuple(hunks))


def _swap(fields: Any) -> Swap | None:
    old, new = text_at(fields, OLD), text_at(fields, NEW)
    if old is None or new is None:
        return None
    return Swap(old, new, any(fields.get(name) is True for name in EVERYWHERE))


def lines_of(text: str) -> list[str]:
    """The lines of a file's text; the end of the last line begins no other."""
    lines = text.replace("\r\n", "\n").split("\n")
    if lines[-1] == "":
        lines.pop()
    return lines


# --- Which edit last wrote each line of a text: edits are taken back one by one, the newest first.

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
