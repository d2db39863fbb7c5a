"""A small importer for the tests of everything around importers: one JSON object a line.

{"session": "s", "title": ...} describes the session; {"id", "parent", "ask", "answer", "calls", ...} is a whole turn.
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from weft.exchange.importers.foreign_files import first_objects, records
from weft.exchange.importers.port import (
    NativeCall,
    NativeCompaction,
    NativeLink,
    NativeMessage,
    NativeSession,
    NativeTurn,
    Place,
    Report,
    Source,
    Tokens,
    Transcript,
)
from weft.kernel.enums import LinkReason, MessageRole, MessageSource, ToolCallStatus
from weft.ledger.model import FileNote, LintNote, TextPart


class Toy:
    origin = "toy"
    mapping = 1

    def places(self, home: Path, environment: Mapping[str, str]) -> list[Place]:
        return [Place(home / ".toy", "toy sessions")]

    def recognises(self, source: Source) -> bool:
        return any("session" in found for found in first_objects(source.head))

    def is_part(self, source: Source) -> bool:
        return source.path.name.endswith(".part.json")

    def read(self, source: Source, report: Report) -> Iterator[Transcript]:
        found = list(records(source, report))
        head = next((record.value for record in found if "session" in record.value), None)
        if head is None:
            report.kept["other"] += len(found)
            return
        session = NativeSession(id=head["session"])
        turns: list[NativeTurn] = []
        places: dict[str, int] = {}
        for record in found:
            value = record.value
            if "session" in value:
                session.title, session.workspace = value.get("title"), value.get("workspace")
                session.parent, session.task = value.get("parent"), value.get("task")
                report.mapped["session"] += 1
            elif isinstance(value.get("id"), str) and value["id"] not in places:
                places[value["id"]] = len(turns)
                turns.append(_turn(value, places, record.offset, record.end))
                report.mapped["turn"] += 1
            else:
                report.kept["other"] += 1
                report.unknown["other"] += 1
        yield Transcript(session=session, turns=turns)


def _turn(value: dict[str, Any], places: dict[str, int], offset: int, end: int) -> NativeTurn:
    said = {name: value.get(name) for name in ("id", "ask", "answer", "calls", "summary")}
    items: list[NativeMessage | NativeCall] = []
    if "ask" in value:
        items.append(
            NativeMessage(
                role=MessageRole.USER,
                parts=(TextPart(value["ask"]),),
                native=value["id"],
                at=value.get("at"),
                source=MessageSource.HUMAN,
            )
        )
    if "answer" in value:
        items.append(
            NativeMessage(
                role=MessageRole.ASSISTANT,
                parts=(TextPart(value["answer"]),),
                native=f"{value['id']}-answer",
                at=value.get("at"),
                model=value.get("model"),
                tokens=Tokens(**value["tokens"]) if "tokens" in value else None,
                lints=tuple(LintNote(message=text) for text in value.get("lints", ())),
            )
        )
    items += [_call(call) for call in value.get("calls", ())]
    link = value.get("link")
    summary = value.get("summary")
    return NativeTurn(
        key=value["id"],
        records=(json.dumps(said, sort_keys=True).encode(),),
        names=(value["id"],),
        items=tuple(items),
        parent=places[value["parent"]] if value.get("parent") in places else None,
        link=NativeLink(to=link, why=LinkReason.CONTINUATION) if link else None,
        compaction=None if summary is None else NativeCompaction(summary=summary, trigger="auto", tokens_before=9),
        closed=not value.get("open", False),
        answered=value.get("answered", False),
        error=value.get("error"),
        interrupted=value.get("interrupted", False),
        started=value.get("at"),
        ended=value.get("at"),
        workspace=value.get("workspace"),
        git_branch=value.get("branch"),
        version=value.get("version"),
        offset=offset,
        end=end,
    )


def _call(call: dict[str, Any]) -> NativeCall:
    return NativeCall(
        id=call["id"],
        name=call["name"],
        arguments=call.get("arguments", {}),
        status=ToolCallStatus.OK if "result" in call else None,
        spawned=call.get("spawned"),
        detail=call.get("detail"),
        files=tuple(FileNote(kind="read", path=path) for path in call.get("files", ())),  # type: ignore[arg-type]
        **({"result": call["result"]} if "result" in call else {}),
    )
