"""The history of inputs: when a person typed what, without the answers."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterator
from pathlib import Path

from msgspec import Struct

NAME = ".aider.input.history"
LARGEST = 64 * 1024 * 1024


class Input(Struct, frozen=True):
    literal: str
    """When, in the local time of the machine it was typed at."""
    text: str
    offset: int
    end: int


def inputs(path: Path) -> Iterator[Input]:
    """`# time`, then what was typed, a `+` before each line."""
    literal, lines, offset, start, end = "", [], 0, 0, 0
    with path.open("rb") as file:
        for raw in file:
            line = raw.decode("utf-8", "surrogateescape").rstrip("\r\n")
            if line.startswith("+") and literal:
                lines.append(line[1:])
                end = offset + len(raw)
            elif line.startswith("# "):
                if lines:
                    yield Input(literal, "\n".join(lines), start, end)
                literal, lines, start = line[2:].strip(), [], offset
            offset += len(raw)
    if lines:
        yield Input(literal, "\n".join(lines), start, end)


class Times:
    """When prompts were typed: each text's times in order."""

    def __init__(self, beside: Path) -> None:
        self._times: dict[str, deque[str]] = defaultdict(deque)
        path = beside.with_name(NAME)
        try:
            found = list(inputs(path)) if path.is_file() and path.stat().st_size <= LARGEST else []
        except OSError:
            found = []
        for each in found:
            self._times[each.text.strip()].append(each.literal)

    def of(self, words: str, since: str | None) -> str | None:
        """The first that is not before its session."""
        waiting = self._times.get(words.strip())
        while waiting and since is not None and waiting[0] < since:
            waiting.popleft()
        return waiting.popleft() if waiting else None
