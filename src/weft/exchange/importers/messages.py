"""Files of messages in the forms of chat APIs, whoever wrote them.

A file is one conversation as a document, many in a list, or lines that are messages or
conversations.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

from msgspec import UNSET, Struct

from weft.exchange.importers.foreign_files import (
    BOM,
    Record,
    document_elements,
    first_objects,
    read_document,
    read_whole,
    records,
    report_damage,
)
from weft.exchange.importers.foreign_values import (
    JsonObject,
    UniqueKeys,
    epoch_millis,
    fingerprint,
    mapping,
    present,
    sequence,
    storable,
    text,
)
from weft.exchange.importers.native_turns import PendingCall, finished_items, identity
from weft.exchange.importers.port import (
    NativeMessage,
    NativeSession,
    NativeTurn,
    Place,
    Report,
    Source,
    Tokens,
    Transcript,
)
from weft.kernel.enums import MessageRole, ToolCallStatus
from weft.kernel.errors import InvalidInput
from weft.kernel.events import Usage
from weft.ledger.dialects import MessageTurn, TranslatedMessage, is_api_message, joined, split_turns, translated
from weft.ledger.model import NewMessage, Part, TextPart, ToolResultPart, ToolUsePart

# --- Conversations as files hold them: what counts as a message, and where the messages of a conversation are.

LISTS = ("messages", "conversations", "conversation")
"""Names that the list of messages goes by."""
CONVERSATION_LISTS = ("conversations", "data", "items", "rows", "examples")
"""Names that a list of conversations goes by."""
ID_FIELDS = ("id", "conversation_id", "session_id", "uuid")
TIME_FIELDS = ("created_at", "create_time", "created", "timestamp")
LOOKED_AT = 8
"""So many messages tell whether a list is one of messages."""


class Conversation(Struct, frozen=True):
    """One conversation: its messages, and the object around them, if there is one."""

    messages: list[Any]
    around: JsonObject

    @property
    def id(self) -> str | None:
        return next((id for name in ID_FIELDS if (id := text(self.around.get(name))) is not None), None)

    @property
    def created(self) -> int | None:
        times = (epoch_millis(self.around.get(name)) for name in TIME_FIELDS)
        return next((time for time in times if time is not None), None)


def is_message_list(value: Any) -> bool:
    """Is it a list of messages, of which somebody says one?"""
    messages = sequence(value)
    first = messages[:LOOKED_AT]
    return bool(first) and all(is_api_message(message) for message in first) and any(map(_is_spoken, messages))


def _is_spoken(message: Any) -> bool:
    return {"role", "from"} & mapping(message).keys() != set()


def conversation_of(value: Any) -> Conversation | None:
    """The conversation that a value is; None if it is none."""
    if is_message_list(value):
        return Conversation(value, {})
    around = mapping(value)
    name = next((name for name in LISTS if is_message_list(around.get(name))), None)
    if name is None:
        return None
    other_fields = {key: field for key, field in around.items() if key != name}
    system = other_fields.get("system")
    lead = [{"role": "system", "content": system}] if isinstance(system, str | list) and system else []
    return Conversation([*lead, *around[name]], other_fields)


def conversations_in(value: Any) -> Iterator[Any]:
    """The elements of a list of conversations, or of an object that has such a list."""
    if isinstance(value, list):
        yield from value
        return
    for name in CONVERSATION_LISTS:
        member = mapping(value).get(name)
        if isinstance(member, list) and any(conversation_of(value) is not None for value in member[:LOOKED_AT]):
            yield from member


def session_id(conversation: Conversation, beginning: Any) -> str:
    """The file's own id, told apart by how the conversation begins: ids in such files are often numbers of rows."""
    own_id = conversation.id
    return fingerprint(beginning, 32) if own_id is None else f"{own_id}@{fingerprint(beginning)}"


# --- The messages of one conversation as native turns.


class TimedMessage(TranslatedMessage, frozen=True, kw_only=True):
    """A message of a file, with the time that the file tells."""

    at: int | None = None


class SourceSpan(Struct, frozen=True):
    """Where in the source a conversation lies."""

    offset: int
    end: int


def read_messages(values: Iterable[Any], report: Report, *, counts: bool, line: int | None = None) -> list[NewMessage]:
    """The messages that can be read. `counts`: each is a record of the source, and counted as one."""
    messages: list[NewMessage] = []
    for number, value in enumerate(values, 1):
        kind = _kind(value)
        try:
            translated_messages = _translated(value, f"message {number}")
        except InvalidInput as error:
            report.problem(line, f"{error}"[:300])
            translated_messages = None
        report.found += counts
        if translated_messages is None:
            report.kept[kind] += counts
            report.unknown[kind] += counts
        else:
            report.mapped[kind] += counts
            messages += translated_messages
    return joined(messages)


def _kind(value: Any) -> str:
    fields = mapping(value)
    names = [fields.get(name) for name in ("role", "from", "type")]
    return next((str(name)[:80] for name in names if isinstance(name, str)), type(value).__name__)


def _translated(value: Any, label: str) -> list[TranslatedMessage] | None:
    fields = mapping(value)
    messages = translated(fields, MessageRole.USER, label, keeps_unknown=True) if fields else None
    if messages is None:
        return None
    times = (epoch_millis(fields.get(name)) for name in TIME_FIELDS)
    message_time = next((time for time in times if time is not None), None)
    if message_time is None:
        return messages
    return [
        TimedMessage(**{name: getattr(message, name) for name in message.__struct_fields__}, at=message_time)
        for message in messages
    ]


def native_turns(
    messages: list[NewMessage], place: SourceSpan, *, is_open: bool, model: str | None
) -> list[NativeTurn]:
    """`is_open`: the source may still grow by the end of the last turn."""
    turns: list[NativeTurn] = []
    keys, before = UniqueKeys(), ""
    split = split_turns(messages)
    for number, turn in enumerate(split):
        items = finished_items(list(_Items(model).walk(turn)))  # whole, so that calls have their outcomes
        records = identity(items)
        beginning = [fingerprint(record.decode("utf-8", "replace"), 32) for record in records[: len(turn.query) + 1]]
        key = keys.claim(fingerprint([before, beginning], 32))
        before = fingerprint([before, [record.decode("utf-8", "replace") for record in records]], 32)
        times = [item.at for item in items if item.at is not None]
        turns.append(
            NativeTurn(
                key=key,
                records=records,
                items=items,
                parent=number - 1 if number else None,
                closed=not (is_open and number == len(split) - 1),
                started=min(times, default=None),
                ended=max(times, default=None),
                offset=place.offset,
                end=place.end,
            )
        )
    return turns


class _Items:
    """The items of one turn, while its messages are walked."""

    def __init__(self, model: str | None) -> None:
        self._model = model
        self._waiting: dict[str, deque[PendingCall]] = {}

    def walk(self, turn: MessageTurn) -> Iterator[NativeMessage | PendingCall]:
        for message in (*turn.query, *turn.response):
            parts = message.content if isinstance(message.content, tuple) else (TextPart(message.content),)
            calls = [self._call(part, message) for part in parts if isinstance(part, ToolUsePart)]
            results = [part for part in parts if isinstance(part, ToolResultPart)]
            stray_results = [part for part in results if not self._answer(part, _time(message))]
            other_parts = [part for part in parts if not isinstance(part, ToolUsePart | ToolResultPart)]
            other_parts += [_result_text(part) for part in stray_results]
            if other_parts or calls or not results:
                yield self._message(message, tuple(other_parts))
            yield from calls

    def _message(self, message: NewMessage, parts: tuple[Part, ...]) -> NativeMessage:
        is_answer = message.role == MessageRole.ASSISTANT
        usage = message.usage if isinstance(message, TranslatedMessage) else UNSET
        return NativeMessage(
            role=message.role,
            parts=parts,
            at=_time(message),
            model=message.model or (self._model if is_answer else None),
            tokens=_tokens(usage) if isinstance(usage, Usage) else None,
            finish_reason=message.finish_reason if isinstance(message, TranslatedMessage) else None,
            metadata=storable(message.metadata),
        )

    def _call(self, part: ToolUsePart, message: NewMessage) -> PendingCall:
        call = PendingCall(part.id, part.name, storable(part.input), at=_time(message))
        self._waiting.setdefault(part.id, deque()).append(call)
        return call

    def _answer(self, part: ToolResultPart, time: int | None) -> bool:
        waiting = self._waiting.get(part.tool_call_id)
        if not waiting:
            return False
        call = waiting.popleft()
        call.answer(storable(part.output), ToolCallStatus.ERROR if part.is_error is True else ToolCallStatus.OK)
        call.done = time
        return True


def _result_text(part: ToolResultPart) -> TextPart:
    """A result of which no call is known."""
    return TextPart(part.output if isinstance(part.output, str) else str(storable(part.output)))


def _time(message: NewMessage) -> int | None:
    return message.at if isinstance(message, TimedMessage) else None


def _tokens(usage: Usage) -> Tokens:
    def count(value: Any) -> int | None:
        return value if isinstance(value, int) else None

    return Tokens(
        input=count(usage.input_tokens),
        output=count(usage.output_tokens),
        cached=count(usage.cached_input_tokens),
        cache_write=count(usage.cache_write_tokens),
        cache_write_1h=count(usage.cache_write_1h_tokens),
        reasoning=count(usage.reasoning_tokens),
    )


# --- Files of messages: one conversation as a document, many in a list, or lines that are messages or conversations.

LINES = frozenset({".jsonl", ".ndjson"})
LIST_BEGINS = re.compile(rb"\s*\[")
LONG_BEGINS = re.compile(rb'\s*(?:\[\s*)?\{\s*"(?:messages|conversations?)"\s*:\s*\[\s*\{\s*"(?:role|from)"\s*:\s*"')
"""How a file begins of which the first message is longer than what is looked at."""


class Messages:
    origin = "messages"
    mapping = 1
    is_generic = True

    def places(self, home: Path, environment: Mapping[str, str]) -> list[Place]:
        """They lie wherever somebody saved them."""
        return []

    def recognises(self, source: Source) -> bool:
        head = source.head.removeprefix(BOM)
        if source.path.suffix in LINES:
            objects = first_objects(head, 4)
            return bool(objects) and (
                all(conversation_of(value) is not None for value in objects) or is_message_list(objects)
            )
        if head.lstrip()[:1] not in (b"{", b"["):
            return False
        value = read_document(head).value
        if conversation_of(value) is not None:
            return True
        first_values = islice(conversations_in(value), LOOKED_AT)
        if any(conversation_of(first_value) is not None for first_value in first_values):
            return True
        return source.size > len(source.head) and LONG_BEGINS.match(head) is not None

    def is_part(self, source: Source) -> bool:
        return False

    def read(self, source: Source, report: Report) -> Iterator[Transcript]:
        if source.path.suffix in LINES:
            yield from _read_lines(source, report)
        elif LIST_BEGINS.match(source.head.removeprefix(BOM)):
            yield from _read_list(source, report)
        else:
            yield from _read_object(source, report)


def _read_lines(source: Source, report: Report) -> Iterator[Transcript]:
    """Conversations are given one by one; messages are one conversation together."""
    lines: list[Record] = []
    for record in records(source, report):
        if (conversation := conversation_of(record.value)) is not None:
            report.mapped["conversation"] += 1
            messages = read_messages(conversation.messages, report, counts=False, line=record.line)
            yield _one_of_many(conversation, messages, SourceSpan(record.offset, record.end))
        elif is_api_message(record.value):
            lines.append(record)
        else:
            report.kept["line"] += 1
            report.unknown["line"] += 1
    if lines:
        report.found -= len(lines)  # they are counted again, by their roles
        messages = read_messages((record.value for record in lines), report, counts=True)
        place = SourceSpan(lines[0].offset, lines[-1].end)
        yield _alone(Conversation([], {}), messages, place)


def _read_list(source: Source, report: Report) -> Iterator[Transcript]:
    """A list of conversations, or of the messages of one."""
    values: list[Any] = []
    for element in document_elements(source.path):
        report.budget.take_bytes(len(element.data))
        if not element.is_whole:
            report.found += 1
            report.damaged += 1
            report.problem(None, f"what lies from byte {element.offset} to {element.end} cannot be read")
        elif (conversation := conversation_of(element.value)) is not None:
            report.found += 1
            report.mapped["conversation"] += 1
            messages = read_messages(conversation.messages, report, counts=False)
            yield _one_of_many(conversation, messages, SourceSpan(element.offset, element.end))
        else:
            values.append(element.value)
    if values:
        messages = read_messages(values, report, counts=True)
        if messages:
            yield _alone(Conversation([], {}), messages, SourceSpan(0, source.size))


def _read_object(source: Source, report: Report) -> Iterator[Transcript]:
    document = read_document(read_whole(source))
    report_damage(document, report)
    place = SourceSpan(0, source.size)
    if (conversation := conversation_of(document.value)) is not None:
        yield _alone(conversation, read_messages(conversation.messages, report, counts=True), place)
        return
    for value in conversations_in(document.value):
        report.found += 1
        if (conversation := conversation_of(value)) is None:
            report.kept["entry"] += 1
            report.unknown["entry"] += 1
            continue
        report.mapped["conversation"] += 1
        yield _one_of_many(conversation, read_messages(conversation.messages, report, counts=False), place)


def _alone(conversation: Conversation, messages: list[NewMessage], place: SourceSpan) -> Transcript:
    """The only conversation of its source, which may still grow: it is known by its first turn."""
    turns = native_turns(messages, place, is_open=True, model=_model(conversation))
    return Transcript(session=_session(conversation, turns[0].key if turns else ""), turns=turns)


def _one_of_many(conversation: Conversation, messages: list[NewMessage], place: SourceSpan) -> Transcript:
    """One of the conversations of a source: known by all that it says."""
    turns = native_turns(messages, place, is_open=False, model=_model(conversation))
    records = [record.decode("utf-8", "replace") for turn in turns for record in turn.records]
    return Transcript(session=_session(conversation, fingerprint(records, 32)), turns=turns)


def _model(conversation: Conversation) -> str | None:
    return text(conversation.around.get("model"))


def _session(conversation: Conversation, beginning: Any) -> NativeSession:
    around = conversation.around
    return NativeSession(
        id=session_id(conversation, beginning),
        title=text(around.get("title")),
        created=conversation.created,
        metadata=present(id=conversation.id, source=text(around.get("source")), metadata=around.get("metadata")),
    )
