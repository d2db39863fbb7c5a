"""Logs of the `dsh` harness, which begin with a header like pi's and go on as numbered events of turns and steps."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from msgspec import Struct, field

from weft.exchange.importers.pi.calls import Call
from weft.exchange.importers.pi.turns import content_of
from weft.exchange.importers.port import (
    NativeCompaction,
    NativeMessage,
    NativeSession,
    NativeTurn,
    Report,
    Source,
    Tokens,
    Transcript,
)
from weft.exchange.importers.records.builder import MessageContent, TurnBuilder
from weft.exchange.importers.records.jsonl import Record, records
from weft.exchange.importers.records.planned_turns import Entry, PlannedTurn, TurnPlan, entry_of
from weft.exchange.importers.records.values import (
    canonical,
    json_in_text,
    mapping,
    millis,
    present,
    sequence,
    text,
    whole,
)
from weft.exchange.importers.records.walk import walk_turns
from weft.kernel.enums import MessageRole, MessageSource
from weft.ledger.model import TextPart

CONTENT = frozenset({"user/message", "assistant/message", "tool/call", "tool/result", "compaction/summary", "turn/end"})
SETTINGS = {"request/context": ("provider", "model", "contextWindow"), "permission/preset": ("preset",)}
IGNORED = frozenset(
    "turn/start step/start step/end assistant/chunk text-chunks reasoning-chunks tool-call-chunks request/header "
    "agent-preset/selected approval/asked approval/decided approval/policy command/run command/done compaction/start "
    "compaction/end compaction/prune hook/invoked hook/result llm/retry llm/retry-started plan/mode sandbox/mode "
    "session/end-seed subagent/descriptor todo/write".split()
)
"""Events that only the verbatim copy tells: pieces of what is told whole later, and the state of the harness."""


class DshTurn(PlannedTurn, kw_only=True):
    number: int | None
    config: dict[str, Any]


class Log(Struct):
    """What one pass over the file finds."""

    header: dict[str, Any] = field(default_factory=dict)
    title: str | None = None
    config: dict[str, Any] = field(default_factory=dict)
    plan: TurnPlan[DshTurn] = field(default_factory=TurnPlan[DshTurn])
    open: DshTurn | None = None

    def take(self, record: Record, report: Report) -> None:
        value = record.value
        kind, data = text(value.get("type")) or "untyped", mapping(value.get("data"))
        if kind in CONTENT:
            self._take_content(kind, data, record)
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
        if kind not in IGNORED:
            report.unknown[kind] += 1

    def _begin(self, number: int | None) -> DshTurn:
        self.plan.begin(DshTurn(parent=None, number=number, config=self.config))
        return self.plan.turns[-1]

    def _take_content(self, kind: str, data: dict[str, Any], record: Record) -> None:
        number = whole(data.get("turn"))
        turn = self.open
        if kind == "compaction/summary":
            turn = self._begin(None)
            turn.is_compaction = True
            self.open = None
        elif turn is None or turn.is_finished or (number is not None and turn.number not in (None, number)):
            turn = self.open = self._begin(number)
        turn.number = number if turn.number is None else turn.number
        turn.is_finished = turn.is_finished or kind == "turn/end"
        turn.entries.append(self.plan.add(entry_of(record, kind)))
        if not turn.is_compaction:
            turn.config = self.config

    def finish(self) -> None:
        """Turns follow one another; those without content are left out."""
        self.plan.turns = [turn for turn in self.plan.turns if turn.entries]
        for number, turn in enumerate(self.plan.turns):
            turn.parent = number - 1 if number else None


def is_dsh_header(value: dict[str, Any]) -> bool:
    return value.get("type") == "session" and text(value.get("id")) is not None and "createdAt" in value


def read_dsh(source: Source, report: Report) -> Iterator[Transcript]:
    log = Log()
    for record in records(source, report):
        log.take(record, report)
    log.finish()
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
    keys: set[str] = set()

    def turn_of(number: int, planned: DshTurn, builder: DshBuilder) -> NativeTurn:
        key = builder.key or f"{id}#{number}"
        planned.key = f"{key}#{number}" if key in keys else key
        keys.add(planned.key)
        is_last = number == len(log.plan.turns) - 1
        return builder.turn(
            planned,
            log.plan.entries_of(planned),
            names=tuple(builder.names),
            compaction=builder.compaction,
            closed=planned.is_finished or planned.is_compaction or not is_last,
            started=builder.times[0] if builder.times else None,
            ended=builder.times[-1] if builder.times else None,
            workspace=text(log.header.get("cwd")),
            permissions=planned.config.get("preset"),
            config=present(**{name: planned.config.get(name) for name in ("model", "provider")}),
        )

    return walk_turns(source, log.plan, report, lambda number, planned: DshBuilder(), turn_of)


class DshBuilder(TurnBuilder, kw_only=True):
    """A turn of dsh, event by event."""

    names: list[str] = field(default_factory=list)
    calls: dict[Any, Call] = field(default_factory=dict)
    """By id, and by the number of the event."""
    key: str | None = None
    compaction: NativeCompaction | None = None

    def take(self, entry: Entry, value: dict[str, Any]) -> None:
        kind, data, when = entry.kind, mapping(value.get("data")), millis(value.get("time"))
        if when is not None:
            self.times.append(when)
        if kind == "user/message":
            self._message(data, data, MessageRole.USER, when)
        elif kind == "assistant/message":
            self._message(data, mapping(data.get("message")), MessageRole.ASSISTANT, when)
        elif kind == "tool/call":
            self._call(data, value.get("seq"), when)
        elif kind == "tool/result":
            self._result(data, sequence(value.get("sourceEventSeqs")), when)
        elif kind == "compaction/summary":
            self._summary(data)
        else:
            self._end(mapping(data.get("reason")))

    def _message(self, data: dict[str, Any], message: dict[str, Any], role: MessageRole, when: int | None) -> None:
        content, source = _content(message.get("content")), mapping(message.get("source"))
        id, is_prompt = text(message.get("id")), role is MessageRole.USER
        by_person = MessageSource.HUMAN if source.get("kind", "user") == "user" else MessageSource.EVENT
        item = NativeMessage(
            role=role,
            parts=tuple(content.parts),
            native=id,
            at=when,
            source=by_person if is_prompt else None,
            model=text(source.get("model")),
            provider=text(source.get("provider")),
            tokens=_tokens(data.get("usage")),
            metadata=present(blocks=content.other_blocks, source=source if is_prompt else None),
        )
        self.items.append(item)
        self._record([role.value, id, content.identity], id)
        self.key = self.key or (id if is_prompt else None)

    def _call(self, data: dict[str, Any], seq: Any, when: int | None) -> None:
        id = text(data.get("callId")) or ""
        call = Call(id, text(data.get("name")) or "", json_in_text(data.get("arguments")), at=when)
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
        if call is not None and call.is_open:
            call.settle({"content": content, "isError": is_error, "details": data.get("meta")}, when)
        else:
            parts = tuple(content_of(content).parts)
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
        self._record(["compaction", self.key, content.identity], self.key)

    def _end(self, reason: dict[str, Any]) -> None:
        kind = text(reason.get("kind"))
        fields = mapping(reason.get("error"))
        self.is_interrupted = kind in ("aborted", "cancelled", "interrupted")
        if kind in ("error", "failed"):
            self.error = text(fields.get("message")) or text(fields.get("name")) or kind
        self._record(["end", kind, self.error], None)

    def _record(self, reduced: list[Any], name: str | None) -> None:
        self.records.append(canonical(reduced))
        if name is not None:
            self.names.append(name)


def _content(blocks: Any) -> MessageContent:
    """Its reasoning blocks have another name than pi's; its tool calls are events of their own."""
    if not isinstance(blocks, list):
        return content_of(blocks)
    named = [
        {"type": "thinking", "thinking": block.get("text")} if mapping(block).get("type") == "reasoning" else block
        for block in blocks
        if mapping(block).get("type") != "tool-call"
    ]
    return content_of(named)


def _inner(block: Any) -> list[Any]:
    if mapping(block).get("type") != "tool-result":
        return [block]
    inner = block.get("content")
    return inner if isinstance(inner, list) else [] if inner is None else [{"type": "text", "text": inner}]


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
