"""The table that `make prove` prints: what the fault tests counted, the parts of one test added up."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from msgspec import Struct

_NUMBER = re.compile(r"\d{1,3}(?:,\d{3})+|\d+(?:\.\d+)?")
_PART = re.compile(r"(?:-|\[)\d+\]$")


class Counted(Struct, frozen=True):
    """What one test counted, in words with numbers, and how long that took."""

    test: str
    words: str
    seconds: float

    @property
    def name(self) -> str:
        return whole_test(self.test)


def whole_test(test: str) -> str:
    """The test without the number of its part."""
    found = _PART.sub("", test)
    return found + "]" if found != test and "[" in found else found


def table(counted: Iterable[Counted]) -> Iterator[str]:
    """One row per test and wording; the numbers of its parts are summed."""
    groups: dict[tuple[str, str], list[Counted]] = {}
    for one in sorted(counted, key=lambda one: one.test):
        groups.setdefault((one.name, _NUMBER.sub("#", one.words)), []).append(one)
    yield "| test | counted | seconds |"
    yield "|---|---|---|"
    for (name, _), parts in groups.items():
        words = parts[0].words if len(parts) == 1 else _added([part.words for part in parts])
        yield f"| `{name}` | {words} | {sum(part.seconds for part in parts):.0f} |"


def _added(texts: list[str]) -> str:
    """The same words, each number the sum of those at its place."""
    sums = [sum(int(n.replace(",", "")) for n in column) for column in zip(*map(_NUMBER.findall, texts), strict=True)]
    rest = iter(sums)
    return _NUMBER.sub(lambda _: f"{next(rest):,}", texts[0])
