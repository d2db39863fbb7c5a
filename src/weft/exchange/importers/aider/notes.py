"""What aider's own lines tell: version and model, files, commits, tokens and costs."""

from __future__ import annotations

import re
from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace

from weft.exchange.importers.transcript import Tokens
from weft.exchange.importers.values import present
from weft.kernel.enums import FileKind
from weft.ledger.model import FileNote

VERSION = re.compile(r"Aider v(\S+)")
MODEL = re.compile(r"(?:Main model|Models?): (\S+?)(?: with ([\w-]+) edit format)?(?:,.*)?")
REPOSITORY = re.compile(r"Git repo: (.+?)(?: with [\d,]+ files)?")
TOKENS = re.compile(r"Tokens: (?P<sent>[\d.,]+[kM]?) sent(?P<rest>.*)")
OLDER = re.compile(r"([\d,]+) prompt tokens, ([\d,]+) completion tokens(?:, \$([\d.]+) cost)?")
COUNT = re.compile(r"([\d.,]+[kM]?) (received|cache write|cache hit)")
COST = re.compile(r"Cost: \$([\d.]+) message")
APPLIED = re.compile(r"Applied edit to (.+)")
ADDED = re.compile(r"Added (.+?) to (?:the chat|read-only files)\.?")
COMMIT = re.compile(r"Commit ([0-9a-f]{7,40}) (.*)")
STOPPED = re.compile(r"\^C.*|.*KeyboardInterrupt.*")


class Settings(Struct, frozen=True):
    """What turns run with, as the lines before them tell."""

    version: str | None = None
    model: str | None = None
    edit_format: str | None = None
    repository: str | None = None

    def told(self, line: str) -> Settings:
        if (found := VERSION.fullmatch(line)) is not None:
            return replace(self, version=found[1])
        if (found := MODEL.fullmatch(line)) is not None:
            return replace(self, model=found[1], edit_format=found[2] or self.edit_format)
        if (found := REPOSITORY.fullmatch(line)) is not None and found[1] != "none":
            return replace(self, repository=found[1])
        return self

    def config(self) -> dict[str, Any] | None:
        return present(model=self.model, edit_format=self.edit_format)


class Told(Struct):
    """What an output tells of the answer before it, or of the one that follows."""

    tokens: Tokens | None = None
    cost: float | None = None
    files: list[FileNote] = field(default_factory=list)
    commits: list[dict[str, str]] = field(default_factory=list)
    is_stopped: bool = False


def told(lines: list[str]) -> Told:
    found = Told()
    for line in map(str.strip, lines):
        if (tokens := TOKENS.match(line)) is not None:
            found.tokens = _tokens(tokens["sent"], tokens["rest"])
            cost = COST.search(line)
            found.cost = _money(cost[1]) if cost is not None else None
        elif (older := OLDER.fullmatch(line)) is not None:
            found.tokens = Tokens(input=_number(older[1]), output=_number(older[2]))
            found.cost = _money(older[3])
        elif (applied := APPLIED.fullmatch(line)) is not None:
            found.files.append(FileNote(kind=FileKind.WRITTEN, path=applied[1]))
        elif (added := ADDED.fullmatch(line)) is not None:
            found.files.append(FileNote(kind=FileKind.ATTACHED, path=added[1]))
        elif (commit := COMMIT.fullmatch(line)) is not None:
            found.commits.append({"commit": commit[1], "message": commit[2]})
        found.is_stopped |= STOPPED.fullmatch(line) is not None
    return found


def _tokens(sent: str, rest: str) -> Tokens:
    """As it printed them, which is rounded; what was sent includes the cache."""
    counts = {name: _number(count) for count, name in COUNT.findall(rest)}
    cached, written = counts.get("cache hit"), counts.get("cache write")
    given = _number(sent)
    fresh = None if given is None else max(given - (cached or 0) - (written or 0), 0)
    return Tokens(input=fresh, output=counts.get("received"), cached=cached, cache_write=written)


def _money(words: str | None) -> float | None:
    try:
        return None if words is None else float(words.rstrip("."))
    except ValueError:
        return None


def _number(words: str) -> int | None:
    scale = {"k": 1_000, "M": 1_000_000}.get(words[-1], 1)
    try:
        return round(float(words.rstrip("kM").replace(",", "").rstrip(".")) * scale)
    except (ValueError, OverflowError):
        return None
