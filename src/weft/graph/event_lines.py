"""Events of the agent graph's schema as lines of JSON, on their way out and in.

- A line that this program wrote carries its stream, what it follows and the salts of its texts: the event is made again
from it and held against its id.
- A line of another program says what happened alone. Its runs become imported turns, whose native ids they keep; what
belongs to no run is kept as it is, and is seen in the graph where `foreign_events` knows its kind.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from hashlib import sha256
from typing import Any

import msgspec
from msgspec import UNSET, Struct, UnsetType

from weft.graph.foreign_events import SHAPES, ApartShape, EventShape, OutsideShape
from weft.graph.nodes import ReadableContents, event_from_shape, inputs_shown, run_of_original, shape_of
from weft.kernel.clock import iso_from_ms, ms_from_iso
from weft.kernel.contents import ROW_BYTES, content_ref, dumps, json_bytes, json_value, text_bytes
from weft.kernel.enums import InterruptionReason, MessageRole, RunReason, ToolCallStatus
from weft.kernel.errors import InvalidFact, InvalidInput, quoted
from weft.kernel.events import Event, ModelRequest, Substitution, UnknownEvent, encode
from weft.kernel.foreign_input import KINDS, content_refs, json_values
from weft.ledger.imports.imported_turns import (
    Mark,
    NativeCall,
    NativeInterruption,
    NativeMessage,
    NativeRequest,
    NativeTurn,
    Tokens,
)
from weft.ledger.model import ImagePart, Part, ReasoningPart, TextPart
from weft.ledger.upkeep.facts_file import (
    LINE_LIMIT,
    LINE_VALUES,
    Fact,
    NewContent,
    checked_line,
    content_lines,
    content_of_line,
)
from weft.ledger.views.rows import TurnRow, decoded, load_turn, run_events
from weft.store.port import ReadTxn

SALTS, LINE = "salts", "line"
"""Fields of a line beside those of the schema: the salts of its texts by their references; the event's own bytes, where
the fields do not give them again."""
ENVELOPE = ("v", "stream", "prev", "replica")


# --- Out.


class EventLines:
    """The events of one moment as lines."""

    def __init__(self, txn: ReadTxn) -> None:
        self._txn, self._contents = txn, ReadableContents(txn)

    def lines(self, numbers: Iterable[int] | None = None) -> Iterator[bytes]:
        """Those of these arrival numbers, or all, in the order of arrival."""
        facts = self._txn.facts
        lines = facts.lines() if numbers is None else ((n, facts.line(n)) for n in numbers)
        for n, line in lines:
            if line is not None:
                yield from self._of_event(n, line)

    def _of_event(self, n: int, line: bytes) -> Iterator[bytes]:
        """The event, behind those of its contents that its own line cannot hold."""
        event, id = decoded(n, line), sha256(line).hexdigest()
        shape = shape_of(self._contents, n, id, line, event)
        if isinstance(event, ModelRequest):
            shape.update(inputs_shown(self._txn, event, id))
        if isinstance(event, Substitution):
            shape.update(run_of_original(self._txn, event))
        contents = list(self._contents_of(event))
        salted = {ref: salt.hex() for ref, _, salt, size in contents if size <= ROW_BYTES}
        whole = {**shape, SALTS: salted} if salted else shape
        if len(salted) == len(contents) and _gives_event(whole, line):
            yield json_bytes(whole, "event")
            return
        for _, number, _, _ in contents:
            yield from content_lines(self._txn.facts, number)
        yield json_bytes({**shape, LINE: line.decode()}, "event")

    def _contents_of(self, event: Event | UnknownEvent) -> Iterator[tuple[str, int, bytes, int]]:
        """The contents that an event names and that are here: reference, number, salt and size."""
        for ref in dict.fromkeys(content_refs(event)):
            n = self._txn.facts.find_content(bytes.fromhex(ref))
            row = n and self._txn.sql.fetch_row("SELECT salt, size FROM content WHERE n = ?", (n,))
            if n and row and row[0]:
                yield ref, n, bytes(row[0]), row[1]


def _gives_event(shape: dict[str, Any], line: bytes) -> bool:
    """Whether the fields of a line give the very event again."""
    try:
        return encode(_rebuilt_event(shape, SaltedTexts(shape.get(SALTS, {})))) == line
    except InvalidInput:
        return False


def thread_events(txn: ReadTxn, turn: TurnRow) -> list[int]:
    """The arrival numbers of the events of a turn's thread: its ancestors' and those of the compactions that they
    name, too."""
    waiting: list[str | None] = [turn.id]
    turns: dict[str, TurnRow] = {}
    while waiting:
        id = waiting.pop()
        if id is None or id in turns or (row := load_turn(txn.sql, id)) is None:
            continue
        turns[id] = row
        waiting += [row.parent, row.compaction]
    return sorted(stored.n for row in turns.values() for stored in run_events(txn.facts, row))


# --- In: lines that carry what their events are verified by.


class SaltedTexts:
    """Texts that become contents again: each by the salt under which it has one of the references."""

    def __init__(self, salts: Any) -> None:
        try:
            self._salts = {bytes.fromhex(ref): bytes.fromhex(salt) for ref, salt in dict(salts).items()}
        except (TypeError, ValueError, AttributeError) as error:
            raise InvalidInput(
                "its salts are no salts by references", "write its texts and salts as `emit` does"
            ) from error
        self.contents: dict[str, NewContent] = {}

    def _find_reference(self, data: bytes) -> str | None:
        for ref, salt in self._salts.items():
            if content_ref(salt, data) == ref:
                self.contents[ref.hex()] = NewContent(ref, salt, data)
                return ref.hex()
        return None

    def _put_text(self, data: bytes) -> str:
        ref = self._find_reference(data)
        if ref is None:
            raise InvalidInput("a text of it has no salt", "write its texts and salts as `emit` does")
        return ref

    def put_text(self, text: str) -> str:
        return self._put_text(text_bytes(text))

    def put_json(self, value: Any) -> str:
        return self._put_text(json_bytes(value, "content"))

    def put_name(self, name: str) -> str | None:
        return self._find_reference(text_bytes(name))


def _rebuilt_event(shape: dict[str, Any], texts: SaltedTexts) -> Event:
    return event_from_shape(shape, texts, **{name: shape[name] for name in ENVELOPE if name in shape})


def is_verifiable(value: dict[str, Any]) -> bool:
    """Whether a line says where its event stands, so that it can be held against its id."""
    return "event_id" in value and "stream" in value and "prev" in value


def _verified_facts(value: dict[str, Any], where: str) -> list[Fact]:
    """The event of a line behind its contents. Raises InvalidFact where it is not the event of its id."""
    if isinstance(value.get(LINE), str):
        facts: list[Fact] = []
        line = text_bytes(value[LINE])
    else:
        try:
            texts = SaltedTexts(value.get(SALTS, {}))
            line = encode(_rebuilt_event(value, texts))
        except InvalidInput as error:
            raise InvalidFact(where, str(error)) from error
        facts = list(texts.contents.values())
    new = checked_line(line, where)
    if new.id.hex() != value["event_id"]:
        raise InvalidFact(where, f"the event hashes to {new.id.hex()}, not to {quoted(value['event_id'])}")
    return [*facts, new]


# --- In: events of other programs, as the schema has them.

NOT_TAKEN = "nothing was taken in; docs/events.md lists the kinds of events and their fields"


class _Occurrence(Struct, kw_only=True):
    """What all events of a run have."""

    ts: str
    run_id: str
    agent_id: str
    event_id: str | UnsetType = UNSET
    session_id: str | UnsetType = UNSET
    correlation_id: str | UnsetType = UNSET


class _Started(_Occurrence):
    reason: str | UnsetType = UNSET


class _Finished(_Occurrence):
    exit: str | UnsetType = UNSET
    summary_ref: OutsideShape | UnsetType = UNSET


class _MessageShape(Struct):
    role: MessageRole | UnsetType = UNSET
    id: str | UnsetType = UNSET
    content: str | list[dict[str, Any]] | UnsetType = UNSET
    parts: list[dict[str, Any]] | UnsetType = UNSET


class _Appended(_Occurrence):
    list: str = "main"
    message: _MessageShape | UnsetType = UNSET
    message_ref: str | UnsetType = UNSET


class _Requested(_Occurrence):
    model: str
    provider: str | UnsetType = UNSET
    params: dict[str, Any] | UnsetType = UNSET
    tools_spec: Any = UNSET
    input_refs: list[str | EventShape] | UnsetType = UNSET


class _UsageShape(Struct):
    prompt_tokens: int | UnsetType = UNSET
    completion_tokens: int | UnsetType = UNSET


class _Answered(_Occurrence):
    output: _MessageShape | UnsetType = UNSET
    output_ref: str | UnsetType = UNSET
    request_id: str | UnsetType = UNSET
    usage: _UsageShape | UnsetType = UNSET
    finish_reason: str | UnsetType = UNSET
    stream_ref: OutsideShape | UnsetType = UNSET


class _Called(_Occurrence):
    tool: str
    call_id: str
    args: Any
    server: str | UnsetType = UNSET
    requested_by: EventShape | UnsetType = UNSET


class _ErrorShape(Struct):
    message: str
    code: str | UnsetType = UNSET
    details: Any = UNSET


class _Resulted(_Occurrence):
    call_id: str
    status: ToolCallStatus
    result: Any = UNSET
    error: _ErrorShape | UnsetType = UNSET


class _Interrupted(_Occurrence):
    reason: InterruptionReason
    affects: list[EventShape] | UnsetType = UNSET


_OF_RUNS: dict[str, type[_Occurrence]] = {
    "run_started": _Started,
    "run_finished": _Finished,
    "history_append": _Appended,
    "model_request": _Requested,
    "model_response": _Answered,
    "tool_call": _Called,
    "tool_result": _Resulted,
    "interruption": _Interrupted,
}
"""The kinds that turns are made of. All others are kept as they are."""


_FRACTION_DIGITS = 9


def _moment_of(text: str) -> int:
    """The milliseconds of a time in UTC, with any number of digits behind the second, or none. Raises InvalidInput."""
    seconds, _, fraction = text.removesuffix("Z").partition(".")
    is_plain = text.endswith("Z") and fraction.isascii() and len(fraction) <= _FRACTION_DIGITS
    if not is_plain or not (fraction.isdigit() or "." not in text):
        raise InvalidInput(f"{quoted(text)} is no time in UTC", "write it like 2026-11-15T01:58:12Z")
    return ms_from_iso(f"{seconds}.{fraction[:3].ljust(3, '0')}Z")


def _convert_event(value: dict[str, Any], kind: type[Any], where: str) -> Any:
    given = {name: field for name, field in value.items() if field is not None}
    try:
        event = msgspec.convert(given, kind)
        _moment_of(event.ts)
    except (msgspec.ValidationError, InvalidInput) as error:
        raise InvalidFact(where, f"is no {quoted(value.get('kind'))} event: {error}", NOT_TAKEN) from error
    return event


def native_id(value: dict[str, Any]) -> str:
    """What an event of another program is known by: its own id, else the hash of what it says."""
    id = value.get("event_id")
    return id if isinstance(id, str) and id else sha256(dumps(value)).hexdigest()


class ForeignRun:
    """A run of another program, as a turn in the making."""

    def __init__(self, run: str) -> None:
        self.name = run
        self._start_name: str | None = None
        self._end_name: str | None = None
        self._item_names: list[list[str]] = []
        """The events of each item, by their names: a call's, and its result's."""
        self._mark_names: list[str] = []
        self._model: str | None = None
        self._items: list[NativeMessage | NativeCall] = []
        self._marks: list[Mark] = []
        self._calls: dict[str, int] = {}
        self._names: dict[str, None] = {}
        self._items_by_name: dict[str, int] = {}
        """Of what is an item: its event's id, a message's own id."""
        self._requests: dict[str, int] = {}
        """Of marks that are requests: the event's id, what they are correlated by."""
        self._said: list[list[Any]] = []
        self._correlations: dict[str, None] = {}
        self._started: int | None = None
        self._ended: int | None = None
        self._reason: RunReason | None = None
        self._summary: tuple[str, str] | None = None
        self._error: str | None = None
        self.lines: list[bytes] = []
        """Its events, as long as nothing was said or called in it: it is no turn then."""

    def add(self, value: dict[str, Any], event: _Occurrence, where: str) -> None:
        name, at = native_id(value), _moment_of(event.ts)
        if name in self._names:  # the same event once more
            return
        self._names[name] = None
        self._started = at if self._started is None else self._started
        self._ended = at
        if event.correlation_id:
            self._correlations[event.correlation_id] = None
        match event:
            case _Started():
                self._start_name = name
                self._begin(event)
            case _Requested():
                self._add_request(event, name, at)
            case _Appended():
                shape = event.message or _MessageShape()
                self._add_message(shape, shape.role or MessageRole.USER, event.message_ref, name, at)
            case _Answered():
                self._add_answer(event, name, at)
            case _Called():
                self._add_call(event, name, at)
            case _Resulted():
                self._end_call(event, name, where, at)
            case _Interrupted():
                self._add_interruption(event, name, at)
            case _Finished():
                self._end_name = name
                self._finish(event)
        self.lines = [] if self._items else [*self.lines, json_bytes(value, "event")]

    def _note_words(self, *words: Any) -> None:
        self._said.append(list(words))

    def _begin(self, event: _Started) -> None:
        if event.reason in tuple(RunReason):
            self._reason = RunReason(event.reason)
            self._note_words("start", event.reason)

    def _finish(self, event: _Finished) -> None:
        if event.summary_ref is not UNSET:
            self._summary = event.summary_ref.kind, event.summary_ref.id
            self._note_words("summary", *self._summary)
        if event.exit == "error":
            self._error = "error"
            self._note_words("error")

    def _add_request(self, event: _Requested, name: str, at: int) -> None:
        self._model = event.model
        mark = NativeRequest(
            place=len(self._items),
            model=event.model,
            provider=event.provider or None,
            params=event.params or None,
            tools_spec=None if event.tools_spec is UNSET else event.tools_spec,
            correlation=event.correlation_id or None,
            inputs=self._inputs_of(event),
            at=at,
        )
        for known_as in (name, event.correlation_id):
            if known_as:
                self._requests[known_as] = len(self._marks)
        self._add_mark(mark, name)

    def _inputs_of(self, event: _Requested) -> tuple[int, ...] | None:
        """The items of this run that a request was sent; None where it was sent anything else, too."""
        if event.input_refs is UNSET:
            return None
        names = (ref if isinstance(ref, str) else ref.event_id for ref in event.input_refs)
        places = [self._items_by_name.get(name) for name in names]
        return None if None in places else tuple(place for place in places if place is not None)

    def _add_interruption(self, event: _Interrupted, name: str, at: int) -> None:
        affected = [ref.event_id for ref in event.affects or ()]
        calls = [self._items_by_name[name] for name in affected if name in self._items_by_name]
        requests = tuple(self._requests[name] for name in affected if name in self._requests)
        self._add_mark(
            NativeInterruption(
                place=len(self._items), reason=event.reason, calls=tuple(calls), requests=requests, at=at
            ),
            name,
        )

    def _add_mark(self, mark: Mark, name: str) -> None:
        self._marks.append(mark)
        self._mark_names.append(name)
        self._note_words(type(mark).__name__, msgspec.to_builtins(mark))

    def _add_message(
        self, shape: _MessageShape, role: MessageRole, named: str | UnsetType, name: str, at: int, **more: Any
    ) -> None:
        native = shape.id or named or None
        for known_as in (name, native):
            if known_as:
                self._items_by_name[known_as] = len(self._items)
        message = NativeMessage(role=role, parts=tuple(_shape_parts(shape)), native=native, at=at, **more)
        self._note_words("message", msgspec.to_builtins(message))
        self._items.append(message)
        self._item_names.append([name])

    def _add_answer(self, event: _Answered, name: str, at: int) -> None:
        usage = event.usage or _UsageShape()
        request = self._requests.get(event.request_id or "", self._requests.get(event.correlation_id or ""))
        asked = None if request is None else self._marks[request]
        correlation = event.correlation_id or (asked.correlation if isinstance(asked, NativeRequest) else None)
        self._add_message(
            event.output or _MessageShape(),
            MessageRole.ASSISTANT,
            event.output_ref,
            name,
            at,
            model=asked.model if isinstance(asked, NativeRequest) else self._model,
            provider=asked.provider if isinstance(asked, NativeRequest) else None,
            tokens=Tokens(input=usage.prompt_tokens or None, output=usage.completion_tokens or None),
            finish_reason=event.finish_reason or None,
            request=request,
            correlation=correlation,
            stream=None if event.stream_ref is UNSET else (event.stream_ref.kind, event.stream_ref.id),
            metadata=None if correlation is None else {"correlation_id": correlation},
        )

    def _add_call(self, event: _Called, name: str, at: int) -> None:
        self._calls[event.call_id] = self._items_by_name[name] = len(self._items)
        correlation = event.correlation_id or None
        call = NativeCall(
            id=event.call_id,
            name=event.tool,
            arguments=event.args,
            at=at,
            server=event.server or None,
            asked_by=self._asking_answer(event),
            correlation=correlation,
            detail=None if correlation is None else {"correlation_id": correlation},
        )
        self._note_words("call", msgspec.to_builtins(call))
        self._items.append(call)
        self._item_names.append([name])

    def _asking_answer(self, event: _Called) -> int | None:
        """The answer that asked for a call: the one that it names, else the last one before it."""
        if event.requested_by is not UNSET:
            return self._items_by_name.get(event.requested_by.event_id)
        answers = [
            place
            for place, item in enumerate(self._items)
            if isinstance(item, NativeMessage) and item.role is MessageRole.ASSISTANT
        ]
        return answers[-1] if answers else None

    def _end_call(self, event: _Resulted, name: str, where: str, at: int) -> None:
        place = self._calls.pop(event.call_id, None)
        if place is None:
            raise InvalidFact(where, f"ends the call {quoted(event.call_id)}, which its run has not begun")
        error = None if event.error is UNSET else event.error
        ended = msgspec.structs.replace(
            self._items[place],
            result=event.result,
            error=None if error is None else error.message,
            error_code=None if error is None else error.code or None,
            error_details=UNSET if error is None else error.details,
            status=event.status,
            done=at,
        )
        self._items_by_name[name] = place
        self._note_words("result", msgspec.to_builtins(ended))
        self._items[place] = ended
        self._item_names[place].append(name)

    def event_names(self) -> list[str | None]:
        """What the events of its turn are called here, in their order; None: the run has no such event."""
        names: list[str | None] = [self._start_name]
        marks = list(zip(self._marks, self._mark_names, strict=True))
        for place, of_item in enumerate(self._item_names):
            while marks and marks[0][0].place <= place:
                names.append(marks.pop(0)[1])
            names += of_item
        return [*names, *(name for _, name in marks), self._end_name]

    def turn(self, parent: int | None) -> NativeTurn:
        return NativeTurn(
            key=self.name,
            records=(json_bytes(self._said, "run"),),
            names=(self.name, *self._names),
            items=tuple(self._items),
            parent=parent,
            error=self._error,
            marks=tuple(self._marks),
            has_events=True,
            reason=self._reason,
            summary=self._summary,
            started=self._started,
            ended=self._ended,
            metadata={"correlation_ids": list(self._correlations)} if self._correlations else None,
        )


def _shape_parts(shape: _MessageShape) -> Iterator[Part]:
    """What of a message is its words. Uses of tools and their results are events of their own."""
    content = shape.parts if shape.parts is not UNSET else shape.content
    if isinstance(content, str):
        yield TextPart(content)
        return
    for part in content or ():
        text = part.get("text")
        match part.get("type"):
            case "text" if isinstance(text, str):
                yield TextPart(text)
            case "reasoning" if isinstance(text, str):
                yield ReasoningPart(text)
            case "image_url" if isinstance(part.get("url"), str):
                yield ImagePart(part["url"])


class ForeignSession(Struct):
    """What one agent, or one session of it, did: its runs in order, and other events, line by line."""

    runs: dict[str, ForeignRun]
    others: list[bytes]

    def told_runs(self) -> list[ForeignRun]:
        """The runs in which something was said or called."""
        return [run for run in self.runs.values() if not run.lines]

    def turns(self) -> list[NativeTurn]:
        """These runs, each the child of the one before it."""
        return [run.turn(place - 1 if place else None) for place, run in enumerate(self.told_runs())]

    def kept(self) -> list[bytes]:
        """The events that no turn is made of."""
        return [*(line for run in self.runs.values() for line in run.lines), *self.others]


# --- In: a whole file.


class IngestedEvents(Struct, frozen=True, kw_only=True):
    """What an ingestion of events brought."""

    events: int = 0
    """New events that were held against their ids."""
    contents: int = 0
    known: int = 0
    """Events, contents and turns that were here already."""
    turns: int = 0
    """New turns that other programs' events tell of."""
    kept: int = 0
    """Other programs' events that no turn is made of: they are kept as they are, and decide nothing."""


class ApartEvent(Struct, frozen=True):
    """An event of another program that belongs to no run and is seen in the graph."""

    shape: ApartShape
    name: str
    """What it is known by."""
    at: str


class ReadEvents(Struct):
    """What lines tell, all of it checked: facts by the number of their line, and sessions of other programs."""

    facts: list[tuple[int, Fact]]
    sessions: dict[str, ForeignSession]
    apart: list[ApartEvent]
    references: set[bytes]
    """The contents among the facts: several lines may bring the same one, which counts once."""

    def add_fact(self, number: int, fact: Fact) -> None:
        if isinstance(fact, NewContent):
            if fact.ref in self.references:
                return
            self.references.add(fact.ref)
        self.facts.append((number, fact))


def read_events(events: Iterable[bytes | str | dict[str, Any]], origin: str) -> ReadEvents:
    """Every event checked. Raises InvalidFact with the line of the first that is none."""
    read = ReadEvents([], {}, [], set())
    pieces: list[bytes] = []
    for number, item in enumerate(events, 1):
        where = f"line {number}"
        value = _json_object(item, where)
        if value is None:
            continue
        if "ref" in value and "kind" not in value:
            if (content := content_of_line(value, where, pieces)) is not None:
                read.add_fact(number, content)
        elif is_verifiable(value):
            for fact in _verified_facts(value, where):
                read.add_fact(number, fact)
        else:
            _take_foreign(read, value, where, origin)
    if pieces:
        raise InvalidFact("the last line", "ends in the middle of a content")
    return read


def _json_object(item: bytes | str | dict[str, Any], where: str) -> dict[str, Any] | None:
    if isinstance(item, dict):
        return item
    if not isinstance(item, str | bytes | bytearray | memoryview):
        raise InvalidFact(where, "is not an object", NOT_TAKEN)
    line = item.encode(errors="surrogatepass") if isinstance(item, str) else bytes(item)
    if not line.strip():
        return None
    if len(line) > LINE_LIMIT:
        raise InvalidFact(where, f"is longer than {LINE_LIMIT} bytes")
    if (count := json_values(line, LINE_VALUES)) > LINE_VALUES:
        raise InvalidFact(where, f"holds {count} values or more; {LINE_VALUES} is the most")
    try:
        value = json_value(line)
    except (ValueError, RecursionError) as error:
        raise InvalidFact(where, f"is no JSON: {error}", NOT_TAKEN) from error
    if not isinstance(value, dict):
        raise InvalidFact(where, "is not an object", NOT_TAKEN)
    return value


def _take_foreign(read: ReadEvents, value: dict[str, Any], where: str, origin: str) -> None:
    kind = value.get("kind")
    if not isinstance(kind, str) or kind not in KINDS.kinds:
        fault = "has no kind" if kind is None else f"{quoted(kind)} is no kind of event"
        raise InvalidFact(where, fault, NOT_TAKEN)
    shape = _OF_RUNS.get(kind)
    event = _convert_event(value, SHAPES.get(kind, ApartShape) if shape is None else shape, where)
    name = event.session_id or event.agent_id or origin
    session = read.sessions.setdefault(name, ForeignSession({}, []))
    if shape is None:
        session.others.append(json_bytes(value, "event"))
        if kind in SHAPES:
            read.apart.append(ApartEvent(event, native_id(value), iso_from_ms(_moment_of(event.ts))))
        return
    session.runs.setdefault(event.run_id, ForeignRun(event.run_id)).add(value, event, where)
