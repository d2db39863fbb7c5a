"""The chat history as blocks: what opens a session, what a person typed, what aider printed, what the model said.

A person's lines begin with `####` and what aider prints with `>`, but so may lines of an answer. Aider ends each of its
own lines with two spaces, which an answer rarely does; so in a session with such a prompt only lines that have them are
aider's. (An editor may have taken them away.) An output of several lines is marked on its first alone, and has them on
its last.

Aider's own lines tell its version and model, files, commits, tokens and costs.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace

from weft.exchange.importers.port import Tokens
from weft.exchange.importers.records.jsonl import text_lines
from weft.exchange.importers.records.values import present
from weft.kernel.enums import FileKind
from weft.ledger.model import FileNote

HEADER = re.compile(r"# aider chat started at (.*\S|.)\s*")
HEADER_START = b"# aider chat started at "
HARD = "  "


class Kind(StrEnum):
    HEADER = "session"
    PROMPT = "prompt"
    OUTPUT = "output"
    ANSWER = "answer"


class Block(Struct):
    kind: Kind
    line: int
    offset: int
    end: int
    lines: list[str] = field(default_factory=list)

    @property
    def text(self) -> str:
        return "\n".join(self.lines).strip("\n")


def blocks(path: Path) -> Iterator[Block]:
    """Every block in order. What comes before the first session is as it is."""
    with path.open("rb") as file:
        reader = _Reader(_strictness(path))
        offset = 0
        for number, raw in enumerate(text_lines(file), 1):
            line = raw.decode("utf-8", "surrogateescape").rstrip("\r\n")
            if number == 1:
                line = line.removeprefix("\ufeff")
            done = reader.take(line, number, offset, offset + len(raw))
            offset += len(raw)
            if done is not None:
                yield done
        if reader.block is not None and reader.block.lines:
            yield reader.block


def _strictness(path: Path) -> list[bool]:
    """For what comes before the first session, and for each session: has a prompt the two spaces?"""
    found = [False]
    with path.open("rb") as file:
        for raw in text_lines(file):
            if raw.startswith(HEADER_START):
                found.append(False)
            elif raw.startswith(b"####") and raw[4:5] == b" ":
                found[-1] |= raw.rstrip(b"\r\n").endswith(HARD.encode())
    return found


class _Reader:
    """Line after line."""

    def __init__(self, strictness: list[bool]) -> None:
        self._strictness = iter(strictness)
        self._is_strict = next(self._strictness)
        self.block: Block | None = None
        self._goes_on = False
        """The output has more lines, which bear no mark."""
        self._is_blank = True
        self._is_prompted = False

    def take(self, line: str, number: int, offset: int, end: int) -> Block | None:
        """The block that a line ends, if it does."""
        kind, words = self._kind(line)
        if kind is None:
            if self.block is not None and self.block.kind is Kind.ANSWER:
                self.block.lines.append("")
            self._is_blank = True
            return None
        done, block = None, self.block
        is_apart = kind in (Kind.HEADER, Kind.PROMPT) and (self._is_blank or kind is Kind.HEADER)
        if block is None or block.kind is not kind or is_apart:
            done, block = block, Block(kind, number, offset, end)
        self.block = block
        block.lines.append(words)
        block.end = end
        self._is_blank = False
        self._is_prompted = kind is Kind.PROMPT or (self._is_prompted and kind is not Kind.HEADER)
        return done

    def _kind(self, line: str) -> tuple[Kind | None, str]:
        if (header := HEADER.fullmatch(line)) is not None:
            self._goes_on = False
            self._is_strict = next(self._strictness, self._is_strict)
            return Kind.HEADER, header[1]
        is_hard = line.endswith(HARD) or not self._is_strict
        if line.startswith("####") and line[4:5] in (" ", "") and is_hard:
            self._goes_on = False
            return Kind.PROMPT, line[5:].removesuffix(HARD)
        if self._goes_on:
            self._goes_on = not line.endswith(HARD)
            return Kind.OUTPUT, line.removesuffix(HARD)
        is_answering = self.block is not None and self.block.kind is Kind.ANSWER
        if line.startswith(">") and line[1:2] in (" ", "") and (is_hard or not is_answering):
            self._goes_on = not is_hard
            return Kind.OUTPUT, line[2:].removesuffix(HARD)
        if not line.strip():
            return None, ""
        return (Kind.ANSWER if self._is_prompted else Kind.OUTPUT), line


VERSION = re.compile(r"Aider v(\S+)")
MODEL = re.compile(r"(?:Main model|Models?): (\S+?)(?: with ([\w-]+) edit format)?(?:,.*)?")
REPOSITORY = re.compile(r"Git repo: (.+?)(?: with [\d,]+ files)?")
TOKENS = re.compile(r"Tokens: (?P<sent>[\d.,]+[kM]?) sent(?P<rest>.*)")
OLDER = re.compile(r"([\d,]+) prompt tokens, ([\d,]+) completion tokens(?:, \$([\d.]+) cost)?")
COUNT = re.compile(r"(?<![\d.,])([\d.,]++[kM]?) (received|cache write|cache hit)")
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

    def changed(self, line: str) -> Settings:
        if (match := VERSION.fullmatch(line)) is not None:
            return replace(self, version=match[1])
        if (match := MODEL.fullmatch(line)) is not None:
            return replace(self, model=match[1], edit_format=match[2] or self.edit_format)
        if (match := REPOSITORY.fullmatch(line)) is not None and match[1] != "none":
            return replace(self, repository=match[1])
        return self

    def config(self) -> dict[str, Any] | None:
        return present(model=self.model, edit_format=self.edit_format)


class Notes(Struct):
    """What an output tells of the answer before it, or of the one that follows."""

    tokens: Tokens | None = None
    cost: float | None = None
    files: list[FileNote] = field(default_factory=list)
    commits: list[dict[str, str]] = field(default_factory=list)
    is_stopped: bool = False


def notes_of(lines: list[str]) -> Notes:
    notes = Notes()
    for line in map(str.strip, lines):
        if (tokens := TOKENS.match(line)) is not None:
            notes.tokens = _tokens(tokens["sent"], tokens["rest"])
            cost = COST.search(line)
            notes.cost = _money(cost[1]) if cost is not None else None
        elif (older := OLDER.fullmatch(line)) is not None:
            notes.tokens = Tokens(input=_number(older[1]), output=_number(older[2]))
            notes.cost = _money(older[3])
        elif (applied := APPLIED.fullmatch(line)) is not None:
            notes.files.append(FileNote(kind=FileKind.WRITTEN, path=applied[1]))
        elif (added := ADDED.fullmatch(line)) is not None:
            notes.files.append(FileNote(kind=FileKind.ATTACHED, path=added[1]))
        elif (commit := COMMIT.fullmatch(line)) is not None:
            notes.commits.append({"commit": commit[1], "message": commit[2]})
        notes.is_stopped |= STOPPED.fullmatch(line) is not None
    return notes


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
