"""Logs of the `dsh` harness, which begin with a header like pi's and go on as numbered events of turns and steps."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, BinaryIO

import orjson
from msgspec import Struct, field

from weft.exchange.importers.jsonl import Record, record_at, records
from weft.exchange.importers.pi.calls import Call
from weft.exchange.importers.pi.content import Said, said
from weft.exchange.importers.port import Report, Source
from weft.exchange.importers.transcript import (
    NativeCompaction,
    NativeMessage,
    NativeSession,
    NativeTurn,
    Tokens,
    Transcript,
)
from weft.exchange.importers.values import canonical, mapping, millis, present, sequence, text, whole
from weft.kernel.enums import MessageRole, MessageSource
from weft.ledger.model import TextPart

SAID = frozenset({"user/message", "assistant/message", "tool/call", "tool/result", "compaction/summary", "turn/end"})
SETTINGS = {"request/context": ("provider", "model", "contextWindow"), "permission/preset": ("preset",)}
KNOWN = frozenset(
    "turn/start step/start step/end assistant/chunk text-chunks reasoning-chunks tool-call-chunks request/header "
    "agent-preset/selected approval/asked approval/decided approval/policy command/run command/done compaction/start "
    "compaction/end compaction/prune hook/invoked hook/result llm/retry llm/retry-started plan/mode sandbox/mode "
    "session/end-seed subagent/descriptor todo/write".split()
)
"""Events that only the verbatim copy tells: pieces of what is told whole later, and the state of the harness."""


class Event(Struct, frozen=True, gc=False):
    kind: str
    line: int
    offset: int
    end: int


class Group(Struct):
    """The events of one turn."""

    number: int | None
    config: dict[str, Any]
    events: list[Event] = field(default_factory=list)
    is_ended: bool = False
    is_compaction: bool = False


class Log(Struct):
    """What one pass over the file finds."""

    header: dict[str, Any] = field(default_factory=dict)
    title: str | None = None
    config: dict[str, Any] = field(default_factory=dict)
    groups: list[Group] = field(default_factory=list)
    open: Group | None = None

    def take(self, record: Record, report: Report) -> None:
        value = record.value
        kind, data = text(value.get("type")) or "untyped", mapping(value.get("data"))
        if kind in SAID:
            self._said(kind, data, record)
            return
        if kind == "session" and not self.header:
            self.header = value
        elif kind == "session/title":
            self.title = text(data.get("title")) or self.title
        elif kind in SETTINGS:
            self.config = self.config | {name: data[name] for name in SETTINGS[kind] if name in data}
        else:
            self._keep(kind, data, report)
            return
        report.mapped[kind] += 1

    def _keep(self, kind: str, data: dict[str, Any], report: Report) -> None:
        if kind == "turn/start":
            self.open = self._begin(whole(data.get("turn")))
        report.kept[kind] += 1
        if kind not in KNOWN:
            report.unknown[kind] += 1

    def _begin(self, number: int | None) -> Group:
        self.groups.append(Group(number, self.config))
        return self.groups[-1]

    def _said(self, kind: str, data: dict[str, Any], record: Record) -> None:
        number = whole(data.get("turn"))
        group = self.open
        if kind == "compaction/summary":
            group = self._begin(None)
            group.is_compaction = True
            self.open = None
        elif group is None or group.is_ended or (number is not None and group.number not in (None, number)):
            group = self.open = self._begin(number)
        group.number = number if group.number is None else group.number
        group.is_ended = group.is_ended or kind == "turn/end"
        group.events.append(Event(kind, record.line, record.offset, record.end))
        if not group.is_compaction:
            group.config = self.config


def is_dsh_header(value: dict[str, Any]) -> bool:
    return value.get("type") == "session" and text(value.get("id")) is not None and "createdAt" in value


def read_dsh(source: Source, report: Report) -> Iterator[Transcript]:
    log = Log()
    for record in records(source, report):
        log.take(record, report)
    id = text(log.header.get("id")) or source.path.stem
    session = NativeSession(
        id=id,
        title=log.title,
        workspace=text(log.header.get("cwd")),
        created=millis(log.header.get("createdAt")),
        agent=text(log.header.get("agentPreset")),
        parent=text(log.header.get("parentSession")),
        metadata=present(variant="dsh", format=log.header.get("version"), depth=log.header.get("delegationDepth")),
    )
    yield Transcript(session=session, turns=_turns(source, log, id, report))


def _turns(source: Source, log: Log, id: str, report: Report) -> Iterator[NativeTurn]:
    groups = [group for group in log.groups if group.events]
    keys: set[str] = set()
    with source.path.open("rb") as file:
        for number, group in enumerate(groups):
            making = Making()
            for event in group.events:
                _take(making, file, event, report)
            key = making.key or f"{id}#{number}"
            key = f"{key}#{number}" if key in keys else key
            keys.add(key)
            yield NativeTurn(
                key=key,
                records=tuple(making.records) or (canonical([key]),),
                names=tuple(making.names),
                items=tuple(item.made() if isinstance(item, Call) else item for item in making.items),
                parent=number - 1 if number else None,
                compaction=making.compaction,
                closed=group.is_ended or group.is_compaction or number < len(groups) - 1,
                error=making.error,
                interrupted=making.is_interrupted,
                started=making.times[0] if making.times else None,
                ended=making.times[-1] if making.times else None,
                workspace=text(log.header.get("cwd")),
                permissions=group.config.get("preset"),
                config=present(**{name: group.config.get(name) for name in ("model", "provider")}),
                offset=group.events[0].offset,
                end=group.events[-1].end,
            )


def _take(making: Making, file: BinaryIO, event: Event, report: Report) -> None:
    try:
        value = record_at(file, event.offset, event.end)
    except (ValueError, RecursionError):
        report.damaged += 1
        report.problem(event.line, "changed while it was read")
        return
    making.take(event.kind, value)
    report.mapped[event.kind] += 1


class Making(Struct):
    """A turn under way."""

    items: list[NativeMessage | Call] = field(default_factory=list)
    records: list[bytes] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    times: list[int] = field(default_factory=list)
    calls: dict[Any, Call] = field(default_factory=dict)
    """By id, and by the number of the event."""
    key: str | None = None
    compaction: NativeCompaction | None = None
    error: str | None = None
    is_interrupted: bool = False

    def take(self, kind: str, event: dict[str, Any]) -> None:
        data, when = mapping(event.get("data")), millis(event.get("time"))
        if when is not None:
            self.times.append(when)
        if kind == "user/message":
            self._message(data, data, MessageRole.USER, when)
        elif kind == "assistant/message":
            self._message(data, mapping(data.get("message")), MessageRole.ASSISTANT, when)
        elif kind == "tool/call":
            self._call(data, event.get("seq"), when)
        elif kind == "tool/result":
            self._result(data, sequence(event.get("sourceEventSeqs")), when)
        elif kind == "compaction/summary":
            self._summary(data)
        else:
            self._end(mapping(data.get("reason")))

    def _message(self, data: dict[str, Any], message: dict[str, Any], role: MessageRole, when: int | None) -> None:
        content, source = _content(message.get("content")), mapping(message.get("source"))
        id, is_prompt = text(message.get("id")), role is MessageRole.USER
        by_person = MessageSource.HUMAN if source.get("kind", "user") == "user" else MessageSource.EVENT
        made = NativeMessage(
            role=role,
            parts=tuple(content.parts),
            native=id,
            at=when,
            source=by_person if is_prompt else None,
            model=text(source.get("model")),
            provider=text(source.get("provider")),
            tokens=_tokens(data.get("usage")),
            metadata=present(blocks=content.elsewhere, source=source if is_prompt else None),
        )
        self.items.append(made)
        self._record([role.value, id, content.reduced], id)
        self.key = self.key or (id if is_prompt else None)

    def _call(self, data: dict[str, Any], seq: Any, when: int | None) -> None:
        id = text(data.get("callId")) or ""
        call = Call(id, text(data.get("name")) or "", _arguments(data.get("arguments")), when)
        self.items.append(call)
        self.calls[id] = call
        if (number := whole(seq)) is not None:
            self.calls[number] = call
        self._record(["call", id, data.get("name"), data.get("arguments")], None)

    def _result(self, data: dict[str, Any], seqs: list[Any], when: int | None) -> None:
        message = mapping(data.get("message"))
        named = text(mapping(message.get("source")).get("callId"))
        call = self.calls.get(named) or next((self.calls[seq] for seq in seqs if whole(seq) in self.calls), None)
        blocks = [inner for block in sequence(message.get("content")) for inner in _inner(block)]
        error = data.get("error")
        is_error = error is not None or any(mapping(b).get("isError") is True for b in sequence(message.get("content")))
        content = blocks or (
            [{"type": "text", "text": text(mapping(error).get("name")) or "error"}] if is_error else []
        )
        id = text(message.get("id"))
        if call is not None and call.outcome is None:
            call.outcome = {"content": content, "isError": is_error, "details": data.get("meta")}
            call.done = when
        else:
            parts = tuple(said(content).parts)
            self.items.append(NativeMessage(role=MessageRole.TOOL, parts=parts, native=id, at=when))
        self._record(["result", call.id if call else named, content, is_error, id], id)

    def _summary(self, data: dict[str, Any]) -> None:
        content = _content(data.get("summary"))
        words = "\n".join(str(part.text) for part in content.parts if isinstance(part, TextPart))
        self.compaction = NativeCompaction(
            summary=words,
            model=text(data.get("model")),
            tokens_before=whole(data.get("shadowedTokenCount")),
            metadata=present(range=data.get("shadowedRange")),
        )
        self.items.append(
            NativeMessage(
                role=MessageRole.ASSISTANT,
                parts=tuple(content.parts),
                model=text(data.get("model")),
                provider=text(data.get("provider")),
                tokens=_tokens(data.get("usage")),
            )
        )
        self.key = text(data.get("compactionId"))
        self._record(["compaction", self.key, content.reduced], self.key)

    def _end(self, reason: dict[str, Any]) -> None:
        kind = text(reason.get("kind"))
        told = mapping(reason.get("error"))
        self.is_interrupted = kind in ("aborted", "cancelled", "interrupted")
        if kind in ("error", "failed"):
            self.error = text(told.get("message")) or text(told.get("name")) or kind
        self._record(["end", kind, self.error], None)

    def _record(self, reduced: list[Any], name: str | None) -> None:
        self.records.append(canonical(reduced))
        if name is not None:
            self.names.append(name)


def _content(blocks: Any) -> Said:
    """Its reasoning blocks have another name than pi's; its tool calls are events of their own."""
    if not isinstance(blocks, list):
        return said(blocks)
    named = [
        {"type": "thinking", "thinking": block.get("text")} if mapping(block).get("type") == "reasoning" else block
        for block in blocks
        if mapping(block).get("type") != "tool-call"
    ]
    return said(named)


def _inner(block: Any) -> list[Any]:
    if mapping(block).get("type") != "tool-result":
        return [block]
    inner = block.get("content")
    return inner if isinstance(inner, list) else [] if inner is None else [{"type": "text", "text": inner}]


def _arguments(told: Any) -> Any:
    """Written as JSON in a text; what is none stays the text it is."""
    if not isinstance(told, str):
        return told
    try:
        return orjson.loads(told)
    except orjson.JSONDecodeError:
        return told


def _tokens(usage: Any) -> Tokens | None:
    if not isinstance(usage, dict):
        return None
    return Tokens(
        input=whole(usage.get("inputTokens")),
        output=whole(usage.get("outputTokens")),
        cached=whole(usage.get("cacheReadTokens")),
        cache_write=whole(usage.get("cacheWriteTokens")),
        reasoning=whole(usage.get("reasoningTokens")),
    )
