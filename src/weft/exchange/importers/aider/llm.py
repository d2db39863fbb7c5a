"""The log of what the model was sent and gave back: every request whole, every line after the name of its speaker."""

from __future__ import annotations

import re
from collections.abc import Iterator

from msgspec import Struct, field

from weft.exchange.importers.port import Report, Source
from weft.exchange.importers.transcript import NativeMessage, NativeSession, NativeTurn, Transcript
from weft.exchange.importers.values import canonical
from weft.kernel.enums import MessageRole, MessageSource
from weft.ledger.model import TextPart

ENTRY = re.compile(r"(TO LLM|LLM RESPONSE) (\d{4}-\d\d-\d\dT[\d:]+)")
SPOKEN = re.compile(r"(SYSTEM|USER|ASSISTANT|TOOL)(?: (.*))?")
RULE = "-------"
ROLES = {
    "SYSTEM": MessageRole.SYSTEM,
    "USER": MessageRole.USER,
    "ASSISTANT": MessageRole.ASSISTANT,
    "TOOL": MessageRole.TOOL,
}


class Entry(Struct):
    kind: str
    literal: str
    offset: int
    end: int
    lines: list[str] = field(default_factory=list)


def is_log(head: bytes) -> bool:
    return ENTRY.fullmatch(head.split(b"\n", 1)[0].decode(errors="replace").strip()) is not None


def entries(source: Source) -> Iterator[Entry]:
    entry, offset = None, 0
    with source.path.open("rb") as file:
        for raw in file:
            line = raw.decode("utf-8", "surrogateescape").rstrip("\r\n")
            if (found := ENTRY.fullmatch(line)) is not None:
                if entry is not None:
                    yield entry
                entry = Entry(found[1], found[2], offset, offset)
            elif entry is not None:
                entry.lines.append(line)
            offset += len(raw)
            if entry is not None:
                entry.end = offset
    if entry is not None:
        yield entry


def messages(lines: list[str]) -> list[tuple[str, str]]:
    """Who said what: a rule begins a message, and each of its lines names its speaker."""
    found: list[tuple[str, list[str]]] = []
    is_new = True
    for line in lines:
        spoken = SPOKEN.fullmatch(line)
        if line == RULE:
            is_new = True
        elif spoken is not None and (is_new or not found or found[-1][0] != spoken[1]):
            found.append((spoken[1], [spoken[2] or ""]))
            is_new = False
        elif found:
            found[-1][1].append((spoken[2] or "") if spoken is not None else line)
    return [(who, "\n".join(said).strip("\n")) for who, said in found]


def read_log(source: Source, session: str, report: Report) -> Iterator[Transcript]:
    """A turn for each request: what it asks last, and the response. All that it repeats before is beside it."""
    yield Transcript(
        session=NativeSession(id=session, title="what the model was sent"), turns=_turns(source, session, report)
    )


def _turns(source: Source, session: str, report: Report) -> Iterator[NativeTurn]:
    number, request = 0, None
    for entry in entries(source):
        report.found += 1
        report.mapped["request" if entry.kind == "TO LLM" else "response"] += 1
        if entry.kind == "TO LLM" and request is not None:
            yield _turn(session, number, request, None)
            number += 1
        if entry.kind == "TO LLM":
            request = entry
            continue
        yield _turn(session, number, request, entry)
        number, request = number + 1, None
    if request is not None:
        yield _turn(session, number, request, None)


def _turn(session: str, number: int, request: Entry | None, response: Entry | None) -> NativeTurn:
    asked = messages(request.lines) if request is not None else []
    last = max((place for place, (who, _) in enumerate(asked) if who == "USER"), default=None)
    said = [] if last is None else asked[last:]
    given = messages(response.lines) if response is not None else []
    literal = next((each.literal for each in (request, response) if each is not None), None)
    items = [
        NativeMessage(
            role=ROLES[who],
            parts=(TextPart(words),) if words else (),
            literal_time=entry.literal,
            source=MessageSource.EVENT if who != "ASSISTANT" else None,
            metadata={"context_messages": last} if entry is request and last else None,
        )
        for entry, spoken in ((request, said), (response, given))
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
