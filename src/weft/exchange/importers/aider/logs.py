"""What lies beside the chat history: when a person typed what, and what the model was sent and gave back.

The history of inputs has no answers. The log of the model has every request whole, every line after the name of its
speaker.
"""

from __future__ import annotations

import os
import re
from collections import defaultdict, deque
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from msgspec import Struct, field

from weft.exchange.importers.limits import SIDECAR_BYTES
from weft.exchange.importers.port import NativeMessage, NativeSession, NativeTurn, Report, Source, Transcript
from weft.exchange.importers.records.jsonl import text_lines
from weft.exchange.importers.records.values import canonical
from weft.exchange.importers.sidecars import open_beneath
from weft.kernel.enums import MessageRole, MessageSource
from weft.ledger.model import TextPart

NAME = ".aider.input.history"


class Input(Struct, frozen=True):
    literal: str
    """When, in the local time of the machine it was typed at."""
    text: str
    offset: int
    end: int


def inputs(file: BinaryIO) -> Iterator[Input]:
    """`# time`, then what was typed, a `+` before each line."""
    literal, lines, offset, start, end = "", [], 0, 0, 0
    for raw in text_lines(file):
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
            with open_beneath(path, path.parent) as file:
                found = list(inputs(file)) if os.fstat(file.fileno()).st_size <= SIDECAR_BYTES else []
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


ENTRY = re.compile(r"(TO LLM|LLM RESPONSE) (\d{4}-\d\d-\d\dT[\d:]+)")
SPOKEN = re.compile(r"(SYSTEM|USER|ASSISTANT|TOOL)(?: (.*))?")
RULE = "-------"
ROLES = {
    "SYSTEM": MessageRole.SYSTEM,
    "USER": MessageRole.USER,
    "ASSISTANT": MessageRole.ASSISTANT,
    "TOOL": MessageRole.TOOL,
}


class LogEntry(Struct):
    kind: str
    literal: str
    offset: int
    end: int
    lines: list[str] = field(default_factory=list)


def is_log(head: bytes) -> bool:
    return ENTRY.fullmatch(head.split(b"\n", 1)[0].decode(errors="replace").strip()) is not None


def log_entries(source: Source) -> Iterator[LogEntry]:
    entry, offset = None, 0
    with source.path.open("rb") as file:
        for raw in text_lines(file):
            line = raw.decode("utf-8", "surrogateescape").rstrip("\r\n")
            if (match := ENTRY.fullmatch(line)) is not None:
                if entry is not None:
                    yield entry
                entry = LogEntry(match[1], match[2], offset, offset)
            elif entry is not None:
                entry.lines.append(line)
            offset += len(raw)
            if entry is not None:
                entry.end = offset
    if entry is not None:
        yield entry


def log_messages(lines: list[str]) -> list[tuple[str, str]]:
    """Who said what: a rule begins a message, and each of its lines names its speaker."""
    textses: list[tuple[str, list[str]]] = []
    is_new = True
    for line in lines:
        spoken = SPOKEN.fullmatch(line)
        if line == RULE:
            is_new = True
        elif spoken is not None and (is_new or not textses or textses[-1][0] != spoken[1]):
            textses.append((spoken[1], [spoken[2] or ""]))
            is_new = False
        elif textses:
            textses[-1][1].append((spoken[2] or "") if spoken is not None else line)
    return [(who, "\n".join(texts).strip("\n")) for who, texts in textses]


def read_log(source: Source, session: str, report: Report) -> Iterator[Transcript]:
    """A turn for each request: what it asks last, and the response. All that it repeats before is beside it."""
    yield Transcript(
        session=NativeSession(id=session, title="what the model was sent"), turns=_log_turns(source, session, report)
    )


def _log_turns(source: Source, session: str, report: Report) -> Iterator[NativeTurn]:
    number, request = 0, None
    for entry in log_entries(source):
        report.found += 1
        report.mapped["request" if entry.kind == "TO LLM" else "response"] += 1
        if entry.kind == "TO LLM" and request is not None:
            yield _log_turn(session, number, request, None)
            number += 1
        if entry.kind == "TO LLM":
            request = entry
            continue
        yield _log_turn(session, number, request, entry)
        number, request = number + 1, None
    if request is not None:
        yield _log_turn(session, number, request, None)


def _log_turn(session: str, number: int, request: LogEntry | None, response: LogEntry | None) -> NativeTurn:
    asked = log_messages(request.lines) if request is not None else []
    last = max((place for place, (who, _) in enumerate(asked) if who == "USER"), default=None)
    new_messages = [] if last is None else asked[last:]
    given = log_messages(response.lines) if response is not None else []
    literal = next((each.literal for each in (request, response) if each is not None), None)
    items = [
        NativeMessage(
            role=ROLES[who],
            parts=(TextPart(words),) if words else (),
            literal_time=entry.literal,
            source=MessageSource.EVENT if who != "ASSISTANT" else None,
            metadata={"context_messages": last} if entry is request and last else None,
        )
        for entry, spoken in ((request, new_messages), (response, given))
        if entry is not None
        for who, words in spoken
    ]
    ends = [each for each in (request, response) if each is not None]
    return NativeTurn(
        key=f"{session}#{number}",
        records=(canonical(["llm", literal, number, asked, given]),),
        items=tuple(items),
        parent=number - 1 if number else None,
        closed=response is not None,
        literal_time=literal,
        offset=ends[0].offset if ends else 0,
        end=ends[-1].end if ends else 0,
    )
