"""The chain of an imported turn: what was said, under the origin's own ids, and nothing else.

Its envelope has no time and no replica; so the same history gives the same events in every ledger that shares the
import secret.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from hashlib import sha256
from typing import Any

import orjson
from msgspec import UNSET, UnsetType

from weft.kernel.clock import LAST_ULID, decode, encode
from weft.kernel.contents import Prepared, json_bytes, text_bytes
from weft.kernel.dag_events import (
    HistoryAppend,
    Interruption,
    ModelResponse,
    RunFinished,
    RunStarted,
    ToolCallRequested,
    ToolResult,
)
from weft.kernel.enums import (
    AgentRole,
    CompactionType,
    InterruptionReason,
    MessageRole,
    RunExit,
    ToolCallStatus,
    TurnType,
)
from weft.kernel.errors import InvalidInput, NoCanonicalForm
from weft.kernel.events import Event, run_stream
from weft.kernel.events import encode as encode_event
from weft.kernel.fields import (
    ErrorFact,
    EventRef,
    ForkPoint,
    ImageFact,
    MessageFact,
    Named,
    PartFact,
    ReasoningFact,
    TextFact,
)
from weft.kernel.imported import ImportSecret
from weft.kernel.ledger_events import CompactionRecorded
from weft.ledger.imports.natives import EncodedEvents, JsonContent, NativeCall, NativeMessage, NativeTurn
from weft.ledger.model import IMPORTED_AGENT, ImagePart, Part, ReasoningPart, TextPart
from weft.ledger.write.append import MESSAGE_ROOM, ContentForms

NAMELESS = "unknown"


class EventDraft(ContentForms):
    """Events of an import in the making, with the contents that they name. No ledger knows of them yet."""

    __slots__ = ("_contents", "_events", "_ids", "_lines", "_secret")

    def __init__(self, secret: ImportSecret) -> None:
        self._secret = secret
        self._contents: dict[bytes, Prepared] = {}
        self._events: list[Event] = []
        self._lines: list[bytes] = []
        self._ids: list[bytes] = []

    def put_bytes(self, data: bytes) -> str:
        content = self._secret.prepare(data)
        self._contents[content.ref] = content
        return content.ref.hex()

    def add_event(self, event: Event) -> str:
        line = encode_event(event)
        digest = sha256(line).digest()
        self._events.append(event)
        self._lines.append(line)
        self._ids.append(digest)
        return digest.hex()

    def encoded(self) -> EncodedEvents:
        return EncodedEvents(tuple(self._contents.values()), tuple(self._lines), tuple(self._ids), tuple(self._events))


def put_value(contents: ContentForms, value: Any) -> str:
    return contents.put_bytes(value_bytes(value))


def value_bytes(value: Any) -> bytes:
    """A JSON value, as importers read it from JSON; one that has no exact form (too deep) is kept as its text."""
    return value.data if isinstance(value, JsonContent) else json_content(value).data


def json_content(value: Any) -> JsonContent:
    try:
        return JsonContent(orjson.dumps(value), True)
    except orjson.JSONEncodeError:
        pass
    try:
        return JsonContent(json_bytes(value, "value"), False)
    except (InvalidInput, NoCanonicalForm, RecursionError):
        return JsonContent(text_bytes(_as_text(value)), False)


def _as_text(value: Any) -> str:
    """Its JSON, however deeply it is nested."""
    pieces: list[str] = []
    waiting: list[tuple[bool, Any]] = [(False, value)]
    while waiting:
        is_text, each = waiting.pop()
        if is_text:
            pieces.append(each)
        elif isinstance(each, dict | list | tuple):
            waiting += reversed(list(_nested(each)))
        else:
            pieces.append(json.dumps(each, default=str, ensure_ascii=False))
    return "".join(pieces)


def _nested(value: Any) -> Iterator[tuple[bool, Any]]:
    """What an object or a list is written as: texts, and values between them."""
    is_object = isinstance(value, dict)
    yield True, "{" if is_object else "["
    for i, each in enumerate(value.items() if is_object else value):
        name = f"{json.dumps(str(each[0]), ensure_ascii=False)}: " if is_object else ""
        yield True, (", " if i else "") + name
        yield False, each[1] if is_object else each
    yield True, "}" if is_object else "]"


def named(contents: ContentForms, name: str | None) -> Named:
    return contents.named(name if isinstance(name, str) and name else NAMELESS, "name")


def opening_bytes(turn: NativeTurn) -> list[bytes]:
    """What a turn begins with, as its contents: the texts of its prompt; of a turn without one those of its first
    message that says something, else the arguments of its first call."""
    messages = [item for item in turn.items if isinstance(item, NativeMessage) and item.parts]
    prompt = next((message for message in messages if message.role == MessageRole.USER), None)
    opening = prompt or (messages[0] if messages else None)
    if opening is None:
        calls = (value_bytes(item.arguments) for item in turn.items if isinstance(item, NativeCall))
        return [data for data in [next(calls, None)] if data is not None]
    texts = [part for part in opening.parts if isinstance(part, TextPart)]
    return [text_bytes(_words(part)) for part in texts or opening.parts]


def _words(part: Part) -> str:
    if isinstance(part, TextPart | ReasoningPart):
        return str(part.text)
    return str(part.url) if isinstance(part, ImagePart) else ""


class Chain:
    """Writes one turn's events into a draft."""

    def __init__(self, draft: EventDraft, turn_id: str) -> None:
        self.draft, self.id = draft, turn_id
        self._envelope: dict[str, Any] = {"stream": run_stream(turn_id), "actor": IMPORTED_AGENT}
        self._number = decode(turn_id)
        self._prev: str | None = None
        self._messages = 0
        self._answer: str | UnsetType = UNSET
        self._open: list[EventRef] = []

    def write(self, turn: NativeTurn, start: RunStarted, through: str | None, first_kept: str | None) -> str:
        """All events; returns the last one's id, the thread digest."""
        self._prev = self.draft.add_event(start)
        for item in turn.items:
            if isinstance(item, NativeCall):
                self._call(item)
            else:
                self._message(item)
        if turn.compaction is not None:
            self._compaction(turn.compaction.summary, through or self.id, first_kept)
        if turn.interrupted:
            self._add(Interruption, reason=InterruptionReason.CANCELED, affects=tuple(self._open))
        error = UNSET if turn.error is None else self._error(turn.error)
        exit = RunExit.SUCCESS if turn.error is None else RunExit.ERROR
        return self._add(RunFinished, exit=exit, response=self._answer, error=error)

    def _add(self, kind: type[Event], **fields: Any) -> str:
        self._prev = self.draft.add_event(kind(prev=self._prev, **self._envelope, **fields))
        return self._prev

    def _message(self, message: NativeMessage) -> None:
        if self._messages >= MESSAGE_ROOM - 1:
            raise InvalidInput(f"a turn holds at most {MESSAGE_ROOM - 1} messages", "split it into several turns")
        self._messages += 1
        fact = MessageFact(
            id=encode(self._number + self._messages & LAST_ULID),
            role=message.role,
            parts=tuple(map(self._part, message.parts)),
            native=UNSET if message.native is None else self.draft.put_text(message.native),
        )
        if message.role == MessageRole.ASSISTANT:
            self._answer = fact.id
            self._add(ModelResponse, correlation_id=self.id, output=fact)
        else:
            self._add(HistoryAppend, list="main", message=fact)

    def _part(self, part: Part) -> PartFact:
        put = self.draft.put_text
        if isinstance(part, TextPart):
            return TextFact(text=put(part.text))
        if isinstance(part, ReasoningPart):
            return ReasoningFact(text=put(part.text))
        if isinstance(part, ImagePart):
            return ImageFact(url=put(part.url))
        raise InvalidInput(f"a native message holds no {type(part).__name__}", "tool uses and results are calls")

    def _call(self, call: NativeCall) -> None:
        draft = self.draft
        call_id = draft.put_text(call.id)
        event = self._add(
            ToolCallRequested,
            tool=named(draft, call.name),
            call_id=call_id,
            args=put_value(draft, call.arguments),
            correlation_id=self.id,
            message=self._answer,
        )
        if call.status is None and call.result is UNSET and call.error is None:
            self._open.append(EventRef(event))
            return
        self._add(
            ToolResult,
            call=EventRef(event),
            call_id=call_id,
            status=call.status or (ToolCallStatus.OK if call.error is None else ToolCallStatus.ERROR),
            correlation_id=self.id,
            result=UNSET if call.result is UNSET else put_value(draft, call.result),
            error=UNSET if call.error is None else self._error(call.error),
        )

    def _error(self, text: str) -> ErrorFact:
        return ErrorFact(code="error", message=self.draft.put_text(text))

    def _compaction(self, summary: str, through: str, first_kept: str | None) -> None:
        self._add(
            CompactionRecorded,
            summary=self.draft.put_text(summary),
            summarized_through=through,
            first_kept=UNSET if first_kept is None else first_kept,
            compaction_type=CompactionType.SUMMARY,
            model=NAMELESS,
        )


def encoded_chain(
    turn: NativeTurn,
    id: str,
    *,
    secret: ImportSecret,
    fork: ForkPoint | None,
    mapping: str,
    source: str,
    compacts: tuple[str | None, str | None],
) -> EncodedEvents:
    """All events of a turn, of which the last one's id is the thread digest. `compacts` are the last turn that a
    compaction summarised and the first that it kept."""
    draft = EventDraft(secret)
    start = RunStarted(
        stream=run_stream(id),
        prev=None,
        actor=IMPORTED_AGENT,
        turn_type=TurnType.NORMAL if turn.compaction is None else TurnType.COMPACTION,
        role=AgentRole.UNIFIED,
        fork=UNSET if fork is None else fork,
        origin=mapping.rpartition("/")[0],
        mapping=mapping,
        source=source,
        native=draft.put_text(turn.key),
    )
    Chain(draft, id).write(turn, start, *compacts)
    return draft.encoded()
