"""The difference between two versions of a file, line by line, in the unified form that people know.

Whoever approves a change sees all of it. What both versions begin and end with is found first. Which lines stay
between is found by Myers's algorithm, up to a number of steps; beyond it everything between is shown as taken out and
put in. So no pair of files takes more than a moment, and what is shown always leads from the one to the other.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from msgspec import Struct

CONTEXT_LINES = 3
MOST_COMPARED_LINES = 50_000
"""Of both versions, without what they begin and end with."""
MOST_CHANGED_LINES = 800
"""Lines that are taken out and put in; the search takes the square of it."""
MOST_COMPARISONS = 2_000_000
NO_NEWLINE = "\\ No newline at end of file"


class ChangedLines(Struct, frozen=True):
    """Lines `old_start` to `old_end` of the one version stand as `new_start` to `new_end` in the other; counted from
    0, the ends are not part of it."""

    old_start: int
    old_end: int
    new_start: int
    new_end: int


def shown_bytes(data: bytes) -> str:
    """As text; bytes that are no UTF-8 are shown as `\\xNN`."""
    return data.decode(errors="backslashreplace")


class FileDifference:
    """What the new bytes of a file change; `before` is None where there is no file yet."""

    def __init__(self, path: str, before: bytes | None, after: bytes) -> None:
        self._path, self._is_new = path, before is None
        before = before or b""
        start = _same_start(before, after)
        old_end, new_end = _same_end(before, after, start)
        self._first_line = before.count(b"\n", 0, start)
        self._lead = _last_lines(before[:start])
        self._tail = _first_lines(before[old_end:])
        self._old, self._new = before[start:old_end], after[start:new_end]
        self._has_many = _line_count(self._old) + _line_count(self._new) > MOST_COMPARED_LINES
        self.changes = self._changes()

    def _changes(self) -> list[ChangedLines]:
        """In lines of the whole file."""
        base, old_count, new_count = self._first_line, _line_count(self._old), _line_count(self._new)
        pairs = [] if self._has_many else _staying_lines(_lines(self._old), _lines(self._new))
        changes: list[ChangedLines] = []
        old_at, new_at = 0, 0
        for old_line, new_line in [*pairs, (old_count, new_count)]:
            if old_line > old_at or new_line > new_at:
                changes.append(ChangedLines(base + old_at, base + old_line, base + new_at, base + new_line))
            old_at, new_at = old_line + 1, new_line + 1
        return changes

    def ranges(self, most: int) -> list[list[int]]:
        """The first and the last line of each range of the new file that was changed, from 1; where there are more
        than `most`, what lies between the further ones is joined."""
        ranges = [[change.new_start + 1, max(change.new_end, change.new_start + 1)] for change in self.changes]
        return ranges if len(ranges) <= most else [*ranges[: most - 1], [ranges[most - 1][0], ranges[-1][1]]]

    def unified(self) -> str:
        """Empty where nothing changes."""
        if not self.changes and not self._is_new:
            return ""
        lead, tail = _lines(self._lead), _lines(self._tail)
        base = self._first_line - len(lead)
        head = f"--- {'/dev/null' if self._is_new else f'a/{self._path}'}\n+++ b/{self._path}\n"
        if self._has_many:
            (change,) = self.changes
            place = _place(change.old_start - len(lead), change.old_end + len(tail), change, len(lead), len(tail))
            parts = ((" ", self._lead), ("-", self._old), ("+", self._new), (" ", self._tail))
            return head + place + "".join(_marked(sign, part) for sign, part in parts)
        old, new = [*lead, *_lines(self._old), *tail], [*lead, *_lines(self._new), *tail]
        return head + "".join(_hunk_text(hunk, old, new, base) for hunk in _hunks(self.changes))


def _same_start(before: bytes, after: bytes) -> int:
    """How many bytes of whole lines both begin with."""
    same, beyond = 0, min(len(before), len(after)) + 1
    while beyond - same > 1:
        middle = (same + beyond) // 2
        same, beyond = (middle, beyond) if before[same:middle] == after[same:middle] else (same, middle)
    return same if same == len(before) == len(after) else before.rfind(b"\n", 0, same) + 1


def _same_end(before: bytes, after: bytes, start: int) -> tuple[int, int]:
    """Where the whole lines begin that both end with, in each of them; not before `start`."""
    old, new = len(before), len(after)
    same, beyond = 0, min(old, new) - start + 1
    while beyond - same > 1:
        middle = (same + beyond) // 2
        is_same = before[old - middle : old - same] == after[new - middle : new - same]
        same, beyond = (middle, beyond) if is_same else (same, middle)
    old, new = old - same, new - same
    if all(at == start or data[at - 1 : at] == b"\n" for data, at in ((before, old), (after, new))):
        return old, new
    line_end = before.find(b"\n", old)
    rest = len(before) - line_end - 1 if line_end >= 0 else 0
    return len(before) - rest, len(after) - rest


def _lines(data: bytes) -> list[bytes]:
    """With their ends; only a line feed ends one."""
    *lines, last = data.split(b"\n")
    return [line + b"\n" for line in lines] + ([last] if last else [])


def _line_count(data: bytes) -> int:
    return data.count(b"\n") + (data[-1:] not in (b"", b"\n"))


def _first_lines(data: bytes) -> bytes:
    position = 0
    for _ in range(CONTEXT_LINES):
        line_end = data.find(b"\n", position)
        if line_end < 0:
            return data
        position = line_end + 1
    return data[:position]


def _last_lines(data: bytes) -> bytes:
    """`data` ends with a line feed, or is empty."""
    position = len(data)
    for _ in range(CONTEXT_LINES):
        if position <= 0:
            break
        position = data.rfind(b"\n", 0, position - 1) + 1
    return data[position:]


def _staying_lines(old: Sequence[bytes], new: Sequence[bytes]) -> list[tuple[int, int]]:
    """The pairs of lines that stay, in order; none where finding them would take too long."""
    furthest: dict[int, int] = {1: 0}
    trace: list[dict[int, int]] = []
    comparisons = 0
    for distance in range(min(len(old) + len(new), MOST_CHANGED_LINES) + 1):
        trace.append(furthest.copy())
        for diagonal in range(-distance, distance + 1, 2):
            before = _diagonal_before(furthest, diagonal, distance)
            begin = furthest[before] + (before < diagonal)
            x, y = begin, begin - diagonal
            while x < len(old) and y < len(new) and old[x] == new[y]:
                x, y = x + 1, y + 1
            furthest[diagonal] = x
            if x >= len(old) and y >= len(new):
                return _pairs_back(trace, len(old), len(new))
            comparisons += x - begin
        if comparisons > MOST_COMPARISONS:
            break
    return []


def _diagonal_before(furthest: dict[int, int], diagonal: int, distance: int) -> int:
    """From which diagonal this one is reached: by a line put in from the one above, by one taken out from below."""
    is_put_in = diagonal == -distance or (diagonal != distance and furthest[diagonal - 1] < furthest[diagonal + 1])
    return diagonal + 1 if is_put_in else diagonal - 1


def _pairs_back(trace: Sequence[dict[int, int]], x: int, y: int) -> list[tuple[int, int]]:
    pairs: list[tuple[int, int]] = []
    for distance in range(len(trace) - 1, -1, -1):
        before = _diagonal_before(trace[distance], x - y, distance)
        before_x = trace[distance][before]
        before_y = before_x - before
        while x > before_x and y > before_y:
            x, y = x - 1, y - 1
            pairs.append((x, y))
        x, y = before_x, before_y
    return pairs[::-1]


def _hunks(changes: Sequence[ChangedLines]) -> Iterator[list[ChangedLines]]:
    """Changes whose surrounding lines would touch stand together."""
    hunk: list[ChangedLines] = []
    for change in changes:
        if hunk and change.old_start - hunk[-1].old_end > 2 * CONTEXT_LINES:
            yield hunk
            hunk = []
        hunk.append(change)
    if hunk:
        yield hunk


def _hunk_text(hunk: Sequence[ChangedLines], old: Sequence[bytes], new: Sequence[bytes], base: int) -> str:
    """`old` and `new` begin with line `base` of the file."""
    start = max(base, hunk[0].old_start - CONTEXT_LINES)
    end = min(base + len(old), hunk[-1].old_end + CONTEXT_LINES)
    ends = ChangedLines(hunk[0].old_start, hunk[-1].old_end, hunk[0].new_start, hunk[-1].new_end)
    text = [_place(start, end, ends, hunk[0].old_start - start, end - hunk[-1].old_end)]
    position = start
    for change in hunk:
        text.append(_marked(" ", b"".join(old[position - base : change.old_start - base])))
        text.append(_marked("-", b"".join(old[change.old_start - base : change.old_end - base])))
        text.append(_marked("+", b"".join(new[change.new_start - base : change.new_end - base])))
        position = change.old_end
    text.append(_marked(" ", b"".join(old[position - base : end - base])))
    return "".join(text)


def _place(start: int, end: int, change: ChangedLines, lead: int, tail: int) -> str:
    return f"@@ -{_range(start, end)} +{_range(change.new_start - lead, change.new_end + tail)} @@\n"


def _range(start: int, end: int) -> str:
    """As `diff` writes it: from 1, the number of lines only where it is not 1, and an empty range after a line."""
    count = end - start
    return f"{start + 1}" if count == 1 else f"{start + bool(count)},{count}"


def _marked(sign: str, data: bytes) -> str:
    """Each line with its sign before it."""
    if not data:
        return ""
    text = shown_bytes(data)
    ends = text.endswith("\n")
    marked = sign + (text[:-1] if ends else text).replace("\n", f"\n{sign}")
    return f"{marked}\n" if ends else f"{marked}\n{NO_NEWLINE}\n"
