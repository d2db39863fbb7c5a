"""Sessions of other tools, in words that every origin shares, and the events made of them: the
chain of a turn, under the origin's own ids and nothing else; and sightings, what a source tells of
a turn or a session beside what was said.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from hashlib import sha256
from typing import Any

import orjson
from msgspec import UNSET, Struct, UnsetType

from weft.kernel.clock import LAST_ULID, decode, encode, iso_from_ms
from weft.kernel.contents import MAX_INTEGER, ImportSecret, PreparedContent, json_bytes, text_bytes
from weft.kernel.enums import (
    AgentRole,
    CompactionTrigger,
    CompactionType,
    InterruptionReason,
    LinkReason,
    MessageRole,
    MessageSource,
    RunExit,
    RunReason,
    ToolCallStatus,
    TurnType,
)
from weft.kernel.errors import InvalidInput, NoCanonicalForm
from weft.kernel.events import (
    ErrorFact,
    Event,
    EventRef,
    ExtRef,
    FileFact,
    ForkPoint,
    HistoryAppend,
    ImageFact,
    Interruption,
    LintFact,
    MessageFact,
    ModelRequest,
    ModelResponse,
    Named,
    PartFact,
    ReasoningFact,
    RequestInput,
    RunFinished,
    RunStarted,
    SeenCall,
    SeenCompaction,
    SeenContext,
    SeenMessage,
    TextFact,
    ToolCallRequested,
    ToolResult,
    Usage,
    import_stream,
    run_stream,
)
from weft.kernel.events import encode as encode_event
from weft.kernel.ledger_events import CompactionRecorded, Sighting
from weft.ledger.dialects import one_hour_part
from weft.ledger.model import IMPORTED_AGENT, FileNote, ImagePart, LintNote, Part, ReasoningPart, TextPart
from weft.ledger.read.search_index import TextWords
from weft.ledger.views.sightings import is_dated
from weft.ledger.write.transaction import MESSAGE_ROOM, ContentForms

# --- Sessions of other tools, in words that every origin shares: what the ledger takes from an importer.


class Tokens(Struct, frozen=True, kw_only=True):
    """What one provider response cost, in disjoint parts, as the origin itself counted; None where it says nothing.

    `input` excludes cache reads and writes; `output` includes reasoning; `cache_write` includes `cache_write_1h`, what
    was written to be kept for an hour.
    """

    input: int | None = None
    output: int | None = None
    cached: int | None = None
    cache_write: int | None = None
    cache_write_1h: int | None = None
    reasoning: int | None = None


class JsonContent(Struct, frozen=True, gc=False):
    """A JSON value as the bytes that the ledger keeps of it, in place of the value."""

    data: bytes
    is_exact: bool
    """False: the value has no exact form as JSON of other programs (too deep, lone surrogates, long integers)."""


class EncodedEvents(Struct, frozen=True, gc=False):
    """Events that are made and hashed, with the contents that they name, both in the order in which they are kept."""

    contents: tuple[PreparedContent, ...]
    lines: tuple[bytes, ...]
    ids: tuple[bytes, ...]
    events: tuple[Event, ...] = ()
    """The same as objects; nothing where another process made them."""


class TurnDraft(Struct, frozen=True, gc=False):
    """The events of a turn as they are if it hangs where its source alone says, and if nobody knows it yet."""

    id: str
    grows_from: str | None
    """The digest of its parent."""
    compacts: tuple[str | None, str | None]
    """The last turn that it summarises and the first that it keeps, if it is a compaction."""
    session: str
    file: str
    chain: EncodedEvents
    sighting: EncodedEvents


class PackedStretch(Struct, frozen=True, gc=False):
    """Bytes of a source from one place to another, as `kept_sources.pack` makes them."""

    start: int
    end: int
    packed: bytes


class PreparedTurn(Struct):
    """What can be worked out of a turn without looking into the ledger."""

    source: str
    """The digest of its records, as `ImportSecret.source` makes it."""
    size: int
    """Of its records, in bytes."""
    words: tuple[tuple[str, bool, TextWords], ...]
    """Of its contents, by their references and by whether search reads them as JSON."""
    last_time: int | None
    keys: tuple[bytes, ...]
    """Of its native ids, as `NativeNames` makes them: stand for `names`, which stay there."""
    draft: TurnDraft | None = None
    stretches: tuple[PackedStretch, ...] = ()
    """What is kept of the source with the batch that this turn ends."""
    items: bytes = b""
    """The turn's items, packed by whoever hands it over."""


class NativeMessage(Struct, frozen=True, kw_only=True):
    """One message of a turn; an assistant's is one response of its provider. Its tool calls follow it as calls."""

    role: MessageRole
    parts: tuple[Part, ...]
    """Identity: text, reasoning and images in the origin's order. Tool uses and results are not parts but calls."""
    native: str | None = None
    """Identity: the origin's own id of this message."""
    request: int | None = None
    """Identity: which mark of its turn is the request that it answers."""
    correlation: str | None = None
    """Identity: what the origin calls the requests, answers and calls that belong together."""
    stream: tuple[str, str] | None = None
    """Identity: kind and id of what the answer was streamed as."""

    at: int | None = None
    """Seen: Unix milliseconds; None where the origin has no usable time."""
    literal_time: str | None = None
    """Seen: the origin's own words for it, where they name no zone or are no time."""
    source: MessageSource | None = None
    model: str | None = None
    provider: str | None = None
    tokens: Tokens | None = None
    finish_reason: str | None = None
    context: Any = None
    """Seen: what was injected beside the message (rules, hook output, selections), as JSON."""
    metadata: Any = None
    files: tuple[FileNote, ...] = ()
    lints: tuple[LintNote, ...] = ()


class NativeCall(Struct, frozen=True, kw_only=True):
    """One tool call of the assistant message before it, with its outcome."""

    id: str
    """Identity: the origin's call id; it may repeat."""
    name: str
    arguments: Any
    """Identity: a JSON value; a string where the origin has raw text."""
    result: Any = UNSET
    """Identity: what the model was given back (text or JSON)."""
    error: str | None = None
    status: ToolCallStatus | None = None
    """None: no outcome was recorded."""
    server: str | None = None
    """Identity: where the tool runs, if the origin tells."""
    asked_by: int | None = None
    """Identity: which item of its turn is the answer that asks for it, where the origin itself tells."""
    correlation: str | None = None
    error_code: str | None = None
    error_details: Any = UNSET

    at: int | None = None
    """Seen."""
    done: int | None = None
    spawned: str | None = None
    """Seen: native id of the session that this call started (a subagent)."""
    detail: Any = None
    """Seen: what the origin keeps about the outcome beside what the model was given (exit code, patch, diff)."""
    files: tuple[FileNote, ...] = ()
    lints: tuple[LintNote, ...] = ()


Item = NativeMessage | NativeCall


class NativeRequest(Struct, frozen=True, kw_only=True):
    """That a model was asked, of an origin that tells it apart from the answer. All of it is identity."""

    place: int
    """Before which item of its turn."""
    model: str
    provider: str | None = None
    params: Any = None
    tools_spec: Any = None
    correlation: str | None = None
    inputs: tuple[int, ...] | None = None
    """The items that it was sent, in order; None: not known, or not all of them lie in its turn."""
    at: int | None = None


class NativeInterruption(Struct, frozen=True, kw_only=True):
    """That something was cut short, of an origin that says why. All of it is identity."""

    place: int
    """Before which item of its turn; behind all of them the turn itself is cut short."""
    reason: InterruptionReason
    calls: tuple[int, ...] = ()
    """The items among those before it whose calls it ended; none: those that are open at the end."""
    requests: tuple[int, ...] = ()
    """The marks before it whose requests it ended."""
    at: int | None = None


Mark = NativeRequest | NativeInterruption


class NativeCompaction(Struct, frozen=True, kw_only=True):
    """A turn that summarised what came before it."""

    summary: str
    """Identity; empty where the origin keeps none."""
    through: int | None = None
    """Index of the last turn summarised; None: the turn's parent."""
    first_kept: int | None = None
    """Index of the first turn kept in context, where any was."""

    model: str | None = None
    """Seen."""
    trigger: str | None = None
    tokens_before: int | None = None
    tokens_after: int | None = None
    duration_ms: int | None = None
    metadata: Any = None


class NativeLink(Struct, frozen=True, kw_only=True):
    """A parent that this file only names: it lies in another one, perhaps not imported yet."""

    to: str
    """Native id of a record (message, turn) or, with `session`, of nothing more than that session's last turn then."""
    why: LinkReason
    session: str | None = None


class NativeTurn(Struct, kw_only=True):
    """A prompt up to the next one."""

    key: str
    """Native id by which versions of this turn are recognised: normally that of its first prompt. Turns of other
    sessions must not have it, unless they are copies; a second answer to one prompt is `<prompt id>#<first id
    of the answer>`."""
    records: tuple[bytes, ...]
    """Identity: the normalised native records, each reduced to native ids and contents, in order. Two copies of a
    turn have equal ones; a longer or rewritten version has not."""
    names: tuple[str, ...] = ()
    """Native ids of all its records (for links from other files)."""
    items: tuple[Item, ...] = ()
    parent: int | None = None
    """Index of the parent among the turns already given; None: a root of this file."""
    link: NativeLink | None = None
    compaction: NativeCompaction | None = None
    closed: bool = True
    """False: the open tail of a file that may still be written to."""
    answered: bool = False
    """Its last record says that the model had nothing more to do. It ends with that, unless more comes soon."""
    error: str | None = None
    interrupted: bool = False
    marks: tuple[Mark, ...] = ()
    """Requests and interruptions between the items, in order."""
    has_events: bool = False
    """The origin tells of events: their times, and what an answer cost and why it ended, are identity, too."""
    reason: RunReason | None = None
    """Why it began, of such an origin."""
    summary: tuple[str, str] | None = None
    """Kind and id of what such an origin has as its summary."""

    started: int | None = None
    """Seen, as all below."""
    ended: int | None = None
    literal_time: str | None = None
    role: AgentRole = AgentRole.UNIFIED
    workspace: str | None = None
    git_branch: str | None = None
    version: str | None = None
    permissions: Any = None
    tools: tuple[str, ...] | None = None
    toolset: str | None = None
    config: Any = None
    metadata: Any = None
    offset: int = 0
    """Where its first record begins in the source, and where its last one ends."""
    end: int = 0
    places: tuple[tuple[int, int], ...] = ()
    """Where each of its records lies, where they lie as they are; else nothing."""
    prepared: PreparedTurn | None = None
    """Of a turn that another process read: stands for `records`, which stay there."""
    load_items: Callable[[], tuple[Item, ...]] | None = None
    """Of such a turn: its items, which are not here until somebody needs them."""

    @property
    def last_time(self) -> int | None:
        """The latest time that any of its records tells, in Unix milliseconds; None where none does."""
        if self.prepared is not None:
            return self.prepared.last_time
        ends = (item.done for item in self.items if isinstance(item, NativeCall))
        times = (self.started, self.ended, *(item.at for item in self.items), *ends)
        return max((time for time in times if time is not None), default=None)


class NativeSession(Struct, kw_only=True):
    """A session as its origin knows it."""

    id: str
    title: str | None = None
    workspace: str | None = None
    git_branch: str | None = None
    version: str | None = None
    created: int | None = None
    parent: str | None = None
    """Native id of the session that started this one (a subagent's)."""
    spawn_call: str | None = None
    """Native id of the parent's tool call, where this file itself names it."""
    task: str | None = None
    agent: str | None = None
    archived: bool = False
    told_at: int | None = None
    """When this was told, of a source that is written anew, or beside which some of it stands: the latest holds. Of one
    that only grows the longest does."""
    metadata: Any = None


# --- The chain of an imported turn: what was said, under the origin's own ids, and nothing else.

NAMELESS = "unknown"


class EventDraft(ContentForms):
    """Events of an import in the making, with the contents that they name. No ledger knows of them yet."""

    __slots__ = ("_contents", "_events", "_ids", "_lines", "_secret")

    def __init__(self, secret: ImportSecret) -> None:
        self._secret = secret
        self._contents: dict[bytes, PreparedContent] = {}
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
            waiting += reversed(list(_nested_values(each)))
        else:
            pieces.append(json.dumps(each, default=str, ensure_ascii=False))
    return "".join(pieces)


def _nested_values(value: Any) -> Iterator[tuple[bool, Any]]:
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
    return [text_bytes(_words_of_part(part)) for part in texts or opening.parts]


def _words_of_part(part: Part) -> str:
    if isinstance(part, TextPart | ReasoningPart):
        return str(part.text)
    return str(part.url) if isinstance(part, ImagePart) else ""


class ImportedTurnEvents:
    """Writes one turn's events into a draft."""

    def __init__(self, draft: EventDraft, turn_id: str, *, has_events: bool = False) -> None:
        self.draft, self.id = draft, turn_id
        self._envelope: dict[str, Any] = {"stream": run_stream(turn_id), "actor": IMPORTED_AGENT}
        self._number = decode(turn_id)
        self._prev: str | None = None
        self._seen_messages = 0
        self._answer: str | UnsetType = UNSET
        self._open: list[EventRef] = []
        self._has_events = has_events
        self._items: list[tuple[str, str | None]] = []
        """The event that brought each item so far, and the id of the message that it is."""
        self._marks: list[str] = []
        """The event of each mark so far."""

    def write(self, turn: NativeTurn, start: RunStarted, through: str | None, first_kept: str | None) -> str:
        """All events; returns the last one's id, the thread digest."""
        self._prev = self.draft.add_event(start)
        for place, item in enumerate(turn.items):
            self._add_marks(turn, place)
            if isinstance(item, NativeCall):
                self._add_call(item)
            else:
                self._add_message(item)
        if turn.compaction is not None:
            self._add_compaction(turn.compaction.summary, through or self.id, first_kept)
        self._add_marks(turn, len(turn.items))
        if turn.interrupted:
            self._add_event(Interruption, reason=InterruptionReason.CANCELED, affects=tuple(self._open))
        error = UNSET if turn.error is None else self._error_fact(turn.error)
        exit = RunExit.SUCCESS if turn.error is None else RunExit.ERROR
        summary = UNSET if turn.summary is None else self._outside_ref(turn.summary)
        fields = {"exit": exit, "response": self._answer, "error": error, "summary_ref": summary}
        return self._add_event(RunFinished, at=turn.ended, **fields)

    def _add_event(self, kind: type[Event], *, at: int | None = None, **fields: Any) -> str:
        time = event_time(at) if self._has_events else UNSET
        self._prev = self.draft.add_event(kind(prev=self._prev, ts=time, **self._envelope, **fields))
        return self._prev

    def _add_marks(self, turn: NativeTurn, place: int) -> None:
        while len(self._marks) < len(turn.marks) and turn.marks[len(self._marks)].place <= place:
            mark = turn.marks[len(self._marks)]
            if isinstance(mark, NativeRequest):
                self._marks.append(self._add_request(mark))
            else:
                self._marks.append(self._add_interruption(mark, goes_on=mark.place < len(turn.items)))

    def _add_request(self, mark: NativeRequest) -> str:
        draft, inputs = self.draft, mark.inputs
        then = () if inputs is None else tuple(self._input_entry(item) for item in inputs)
        return self._add_event(
            ModelRequest,
            at=mark.at,
            model=named(draft, mark.model),
            correlation_id=self._correlation(mark.correlation),
            provider=UNSET if mark.provider is None else named(draft, mark.provider),
            params=UNSET if mark.params is None else put_value(draft, mark.params),
            input=UNSET if inputs is None else RequestInput(base=None, keep=0, then=then),
            tools_spec=UNSET if mark.tools_spec is None else put_value(draft, mark.tools_spec),
        )

    def _input_entry(self, item: int) -> str | EventRef:
        event, message = self._items[item]
        return EventRef(event) if message is None else message

    def _add_interruption(self, mark: NativeInterruption, *, goes_on: bool) -> str:
        events = [*(self._items[item][0] for item in mark.calls), *(self._marks[each] for each in mark.requests)]
        affects = tuple(map(EventRef, events)) or tuple(self._open)
        fields = {"reason": mark.reason, "affects": affects, "goes_on": goes_on or UNSET}
        return self._add_event(Interruption, at=mark.at, **fields)

    def _correlation(self, text: str | None) -> str:
        """The id under which the events of one correlation belong together here: one of this turn's own."""
        if text is None:
            return self.id
        digest = sha256(text_bytes(f"{self.id}:{text}")).digest()
        return encode(int.from_bytes(digest[:16]) & LAST_ULID)

    def _outside_ref(self, named_as: tuple[str, str]) -> ExtRef:
        return ExtRef(kind=named(self.draft, named_as[0]), id=self.draft.put_text(named_as[1]))

    def _add_message(self, message: NativeMessage) -> None:
        if self._seen_messages >= MESSAGE_ROOM - 1:
            raise InvalidInput(f"a turn holds at most {MESSAGE_ROOM - 1} messages", "split it into several turns")
        self._seen_messages += 1
        fact = MessageFact(
            id=encode(self._number + self._seen_messages & LAST_ULID),
            role=message.role,
            parts=tuple(map(self._part_fact, message.parts)),
            native=UNSET if message.native is None else self.draft.put_text(message.native),
        )
        if message.role == MessageRole.ASSISTANT:
            self._answer = fact.id
            event = self._add_event(
                ModelResponse,
                at=message.at,
                correlation_id=self._correlation(message.correlation),
                output=fact,
                **self._answer_fields(message),
            )
        else:
            event = self._add_event(HistoryAppend, at=message.at, list="main", message=fact)
        self._items.append((event, fact.id))

    def _answer_fields(self, message: NativeMessage) -> dict[str, Any]:
        """What an origin that tells of events says of an answer beside its words."""
        if not self._has_events:
            return {}
        finish, stream = message.finish_reason, message.stream
        return {
            "request_id": UNSET if message.request is None else self._marks[message.request],
            "usage": UNSET if message.tokens is None else usage(message.tokens),
            "finish_reason": UNSET if finish is None else named(self.draft, finish),
            "stream_ref": UNSET if stream is None else self._outside_ref(stream),
        }

    def _part_fact(self, part: Part) -> PartFact:
        put = self.draft.put_text
        if isinstance(part, TextPart):
            return TextFact(text=put(part.text))
        if isinstance(part, ReasoningPart):
            return ReasoningFact(text=put(part.text))
        if isinstance(part, ImagePart):
            return ImageFact(url=put(part.url))
        raise InvalidInput(f"a native message holds no {type(part).__name__}", "tool uses and results are calls")

    def _add_call(self, call: NativeCall) -> None:
        draft = self.draft
        call_id, correlation = draft.put_text(call.id), self._correlation(call.correlation)
        event = self._add_event(
            ToolCallRequested,
            at=call.at,
            tool=named(draft, call.name),
            call_id=call_id,
            args=put_value(draft, call.arguments),
            correlation_id=correlation,
            server=UNSET if call.server is None else named(draft, call.server),
            requested_by=UNSET if call.asked_by is None else EventRef(self._items[call.asked_by][0]),
            message=self._answer,
        )
        self._items.append((event, None))
        if call.status is None and call.result is UNSET and call.error is None:
            self._open.append(EventRef(event))
            return
        self._add_event(
            ToolResult,
            at=call.done,
            call=EventRef(event),
            call_id=call_id,
            status=call.status or (ToolCallStatus.OK if call.error is None else ToolCallStatus.ERROR),
            correlation_id=correlation,
            result=UNSET if call.result is UNSET else put_value(draft, call.result),
            error=UNSET if call.error is None else self._error_fact(call.error, call.error_code, call.error_details),
        )

    def _error_fact(self, text: str, code: str | None = None, details: Any = UNSET) -> ErrorFact:
        return ErrorFact(
            code="error" if code is None else named(self.draft, code),
            message=self.draft.put_text(text),
            details=UNSET if details is UNSET else put_value(self.draft, details),
        )

    def _add_compaction(self, summary: str, through: str, first_kept: str | None) -> None:
        self._add_event(
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
        ts=event_time(turn.started) if turn.has_events else UNSET,
        reason=UNSET if turn.reason is None else turn.reason,
        turn_type=TurnType.NORMAL if turn.compaction is None else TurnType.COMPACTION,
        role=AgentRole.UNIFIED,
        fork=UNSET if fork is None else fork,
        origin=mapping.rpartition("/")[0],
        mapping=mapping,
        source=source,
        native=draft.put_text(turn.key),
    )
    ImportedTurnEvents(draft, id, has_events=turn.has_events).write(turn, start, *compacts)
    return draft.encoded()


# --- Sightings: what a source tells of a turn or a session beside what was said.

TRIGGERS = {
    "auto": CompactionTrigger.CONTEXT_LIMIT,
    "manual": CompactionTrigger.MANUAL,
    "overflow": CompactionTrigger.OVERFLOW_RECOVERY,
}
NOTES = 256
"""Files, lints or injected things of one kind that a message keeps as such; a call may have matched thousands. The
verbatim copy has them all."""


class SightingMaker(Struct, frozen=True):
    """Makes sightings, and puts what was seen into contents."""

    contents: ContentForms
    origin: str
    session: str
    session_ids: Any
    """Native session ids to ours."""
    file: str

    def turn(self, turn_id: str, turn: NativeTurn) -> Sighting:
        return Sighting(
            stream=import_stream(turn_id),
            prev=None,
            actor=IMPORTED_AGENT,
            origin=self.origin,
            session=self.session,
            turn=turn_id,
            started=moment(turn.started),
            ended=moment(turn.ended),
            literal_time=self._text_content(turn.literal_time),
            workspace=self._text_content(turn.workspace),
            git_branch=self._text_content(turn.git_branch),
            version=self._text_content(turn.version),
            role=UNSET if turn.role == AgentRole.UNIFIED else turn.role,
            toolset=self._named_value(turn.toolset),
            tools=UNSET if turn.tools is None else put_value(self.contents, list(turn.tools)),
            permissions=self._json_content(turn.permissions),
            config=self._json_content(turn.config),
            metadata=self._json_content(turn.metadata),
            messages=self._seen_messages(turn) or UNSET,
            calls=self._seen_calls(turn) or UNSET,
            compaction=UNSET if turn.compaction is None else self._seen_compaction(turn.compaction),
            file=self.contents.put_text(self.file),
            offset=turn.offset,
            end=turn.end,
        )

    def copy(self, turn_id: str, turn: NativeTurn) -> Sighting:
        """That a session holds a turn which Weft itself wrote there."""
        return Sighting(
            stream=import_stream(turn_id),
            prev=None,
            actor=IMPORTED_AGENT,
            origin=self.origin,
            session=self.session,
            turn=turn_id,
            file=self.contents.put_text(self.file),
            offset=turn.offset,
            end=turn.end,
        )

    def session_sighting(self, session: NativeSession, end: int) -> Sighting:
        """What the source tells of the session itself, up to its `end`."""
        return Sighting(
            stream=import_stream(self.session),
            prev=None,
            actor=IMPORTED_AGENT,
            origin=self.origin,
            session=self.session,
            started=moment(session.created),
            ended=moment(session.told_at),
            title=self._text_content(session.title),
            workspace=self._text_content(session.workspace),
            git_branch=self._text_content(session.git_branch),
            version=self._text_content(session.version),
            agent=self._named_value(session.agent),
            parent=UNSET if session.parent is None else self.session_ids(session.parent),
            spawn_call=self._text_content(session.spawn_call),
            task=self._text_content(session.task),
            metadata=self._json_content(session.metadata),
            archived=True if session.archived else UNSET,
            file=self.contents.put_text(self.file),
            end=end,
        )

    def kept(self, raw: bytes, start: int, end: int) -> Sighting:
        """A stretch of the source, compressed."""
        return Sighting(
            stream=import_stream(self.session),
            prev=None,
            actor=IMPORTED_AGENT,
            origin=self.origin,
            session=self.session,
            file=self.contents.put_text(self.file),
            offset=start,
            end=end,
            raw=self.contents.put_bytes(raw),
        )

    def _text_content(self, text: str | None) -> str | UnsetType:
        return UNSET if text is None else self.contents.put_text(text)

    def _json_content(self, value: Any) -> str | UnsetType:
        return UNSET if value is None else put_value(self.contents, value)

    def _named_value(self, name: str | None) -> Named | UnsetType:
        return UNSET if not name else named(self.contents, name)

    def _seen_messages(self, turn: NativeTurn) -> tuple[SeenMessage, ...]:
        """Files and lints of a call belong to the message that made it."""
        messages: list[tuple[NativeMessage, list[FileNote], list[LintNote]]] = []
        for item in turn.items:
            if isinstance(item, NativeMessage):
                messages.append((item, list(item.files), list(item.lints)))
            elif messages:
                messages[-1][1].extend(item.files)
                messages[-1][2].extend(item.lints)
        seen = (self._seen_message(k, *each) for k, each in enumerate(messages))
        return tuple(each for each in seen if each is not None)

    def _seen_message(
        self, k: int, message: NativeMessage, files: list[FileNote], lints: list[LintNote]
    ) -> SeenMessage | None:
        made = SeenMessage(
            k=k,
            at=moment(message.at),
            literal_time=self._text_content(message.literal_time),
            source=UNSET if message.source is None else message.source,
            model=self._named_value(message.model),
            provider=self._named_value(message.provider),
            usage=UNSET if message.tokens is None else usage(message.tokens),
            finish_reason=self._named_value(message.finish_reason),
            context=self._seen_context(message.context) or UNSET,
            metadata=self._json_content(message.metadata),
            files=tuple(self._file(note) for note in files[:NOTES]) or UNSET,
            lints=tuple(self._lint_fact(note) for note in lints[:NOTES]) or UNSET,
        )
        return None if made == SeenMessage(k=k) else made

    def _seen_context(self, context: Any) -> tuple[SeenContext, ...]:
        """Thing by thing: the same rules and listings stand beside many messages, and are kept once."""
        if context is None:
            return ()
        things = context if isinstance(context, dict) else {"context": context}
        return tuple(
            SeenContext(name=named(self.contents, name), value=put_value(self.contents, value), listed=listed or UNSET)
            for name, given in things.items()
            for listed, values in [(isinstance(given, list), given if isinstance(given, list) else [given])]
            for value in values[:NOTES]
        )

    def _file(self, note: FileNote) -> FileFact:
        path = self.contents.put_text(note.path)
        return FileFact(kind=note.kind, path=path, line_start=number(note.line_start), line_end=number(note.line_end))

    def _lint_fact(self, note: LintNote) -> LintFact:
        return LintFact(
            path=self._text_content(note.path),
            message=self._text_content(note.message),
            source=self._named_value(note.source),
            start_line=number(note.start_line),
            start_col=number(note.start_col),
            end_line=number(note.end_line),
            end_col=number(note.end_col),
            severity=note.severity or UNSET,
        )

    def _seen_calls(self, turn: NativeTurn) -> tuple[SeenCall, ...]:
        calls = [item for item in turn.items if isinstance(item, NativeCall)]
        seen = (
            SeenCall(
                k=k,
                at=moment(call.at),
                done=moment(call.done),
                detail=self._json_content(call.detail),
                spawned=UNSET if call.spawned is None else self.session_ids(call.spawned),
            )
            for k, call in enumerate(calls)
        )
        return tuple(each for each in seen if each != SeenCall(k=each.k))

    def _seen_compaction(self, compaction: NativeCompaction) -> SeenCompaction:
        return SeenCompaction(
            model=self._named_value(compaction.model),
            trigger=TRIGGERS.get(compaction.trigger or "", UNSET),
            tokens_before=count(compaction.tokens_before),
            tokens_after=count(compaction.tokens_after),
            duration_ms=count(compaction.duration_ms),
            metadata=self._json_content(compaction.metadata),
        )


def encoded_sighting(
    turn: NativeTurn, id: str, *, secret: ImportSecret, origin: str, session: str, file: str
) -> EncodedEvents:
    """What a source tells of a turn with this id."""
    draft = EventDraft(secret)
    draft.add_event(SightingMaker(draft, origin, session, secret.session_id, file).turn(id, turn))
    return draft.encoded()


def number(value: Any) -> int | UnsetType:
    """A whole number that every reader holds exactly; an origin may have written anything."""
    return value if type(value) is int and abs(value) <= MAX_INTEGER else UNSET


def event_time(value: int | None) -> str | UnsetType:
    """The time of an event, where calendars have it."""
    at = moment(value)
    return UNSET if at is UNSET else iso_from_ms(at)


def moment(value: Any) -> int | UnsetType:
    """A time that calendars have; an origin may have counted in other units."""
    return value if type(value) is int and is_dated(value) else UNSET


def count(value: Any) -> int | UnsetType:
    return value if type(value) is int and 0 <= value <= MAX_INTEGER else UNSET


def usage(tokens: Tokens) -> Usage | UnsetType:
    written, one_hour = count(tokens.cache_write), count(tokens.cache_write_1h)
    if one_hour is not UNSET:
        one_hour = one_hour_part(one_hour, None if written is UNSET else written)
    made = Usage(
        input_tokens=count(tokens.input),
        output_tokens=count(tokens.output),
        cached_input_tokens=count(tokens.cached),
        cache_write_tokens=written,
        cache_write_1h_tokens=one_hour,
        reasoning_tokens=count(tokens.reasoning),
    )
    return UNSET if made == Usage() else made
