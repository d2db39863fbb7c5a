"""The chat history as blocks: what opens a session, what a person typed, what aider printed, what the model said.

A person's lines begin with `####` and what aider prints with `>`, but so may lines of an answer. Aider ends each of its
own lines with two spaces, which an answer rarely does; so in a session with such a prompt only lines that have them are
aider's. (An editor may have taken them away.) An output of several lines is marked on its first alone, and has them on
its last.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path

from msgspec import Struct, field

HEADER = re.compile(r"# aider chat started at (.+?)\s*")
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
        for number, raw in enumerate(file, 1):
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
        for raw in file:
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
