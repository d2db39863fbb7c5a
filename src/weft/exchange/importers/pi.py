"""Sessions of the pi coding agent and of those that write its format (oh-my-pi, OpenClaw).

One JSON-lines file per session, its entries a tree. Logs of the `dsh` harness begin with a header
like pi's and go on as numbered events.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from msgspec import Struct, field

from weft.exchange.importers.foreign_files import Record, first_objects, records
from weft.exchange.importers.foreign_values import (
    canonical,
    json_in_text,
    mapping,
    millis,
    names,
    present,
    sequence,
    text,
    whole_number,
)
from weft.exchange.importers.native_turns import (
    Entry,
    MessageContent,
    PlannedTurn,
    TurnBuilder,
    TurnPlan,
    entry_of,
    walk_turns,
)
from weft.exchange.importers.pi_turns import (
    MESSAGE_ROLES,
    RECORD_ROLES,
    Call,
    Index,
    Indexer,
    PiBuilder,
    PiTurn,
    content_of,
)
from weft.exchange.importers.port import (
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
from weft.kernel.enums import AgentRole, LinkReason, MessageRole, MessageSource
from weft.ledger.model import TextPart

# --- Logs of the `dsh` harness, which begin with a header like pi's and go on as numbered events of turns and steps.

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

    def add_record(self, record: Record, report: Report) -> None:
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
            self._count_kept(kind, data, report)
            return
        report.mapped[kind] += 1

    def _count_kept(self, kind: str, data: dict[str, Any], report: Report) -> None:
        if kind == "turn/start":
            self.open = self._begin_turn(whole_number(data.get("turn")))
        report.kept[kind] += 1
        if kind not in IGNORED:
            report.unknown[kind] += 1

    def _begin_turn(self, number: int | None) -> DshTurn:
        self.plan.begin_turn(DshTurn(parent=None, number=number, config=self.config))
        return self.plan.turns[-1]

    def _take_content(self, kind: str, data: dict[str, Any], record: Record) -> None:
        number = whole_number(data.get("turn"))
        turn = self.open
        if kind == "compaction/summary":
            turn = self._begin_turn(None)
            turn.is_compaction = True
            self.open = None
        elif turn is None or turn.is_finished or (number is not None and turn.number not in (None, number)):
            turn = self.open = self._begin_turn(number)
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
        log.add_record(record, report)
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

    def add_record(self, entry: Entry, value: dict[str, Any]) -> None:
        kind, data, time = entry.kind, mapping(value.get("data")), millis(value.get("time"))
        if time is not None:
            self.times.append(time)
        if kind == "user/message":
            self._add_message(data, data, MessageRole.USER, time)
        elif kind == "assistant/message":
            self._add_message(data, mapping(data.get("message")), MessageRole.ASSISTANT, time)
        elif kind == "tool/call":
            self._add_call(data, value.get("seq"), time)
        elif kind == "tool/result":
            self._settle_call(data, sequence(value.get("sourceEventSeqs")), time)
        elif kind == "compaction/summary":
            self._take_summary(data)
        else:
            self._add_ending(mapping(data.get("reason")))

    def _add_message(self, data: dict[str, Any], message: dict[str, Any], role: MessageRole, time: int | None) -> None:
        content, source = _content(message.get("content")), mapping(message.get("source"))
        id, is_prompt = text(message.get("id")), role is MessageRole.USER
        by_person = MessageSource.HUMAN if source.get("kind", "user") == "user" else MessageSource.EVENT
        item = NativeMessage(
            role=role,
            parts=tuple(content.parts),
            native=id,
            at=time,
            source=by_person if is_prompt else None,
            model=text(source.get("model")),
            provider=text(source.get("provider")),
            tokens=_tokens(data.get("usage")),
            metadata=present(blocks=content.other_blocks, source=source if is_prompt else None),
        )
        self.items.append(item)
        self._record([role.value, id, content.identity], id)
        self.key = self.key or (id if is_prompt else None)

    def _add_call(self, data: dict[str, Any], seq: Any, time: int | None) -> None:
        id = text(data.get("callId")) or ""
        call = Call(id, text(data.get("name")) or "", json_in_text(data.get("arguments")), at=time)
        self.items.append(call)
        self.calls[id] = call
        if (number := whole_number(seq)) is not None:
            self.calls[number] = call
        self._record(["call", id, data.get("name"), data.get("arguments")], None)

    def _settle_call(self, data: dict[str, Any], seqs: list[Any], time: int | None) -> None:
        message = mapping(data.get("message"))
        call_id = text(mapping(message.get("source")).get("callId"))
        call = self.calls.get(call_id) or next(
            (self.calls[seq] for seq in seqs if whole_number(seq) in self.calls), None
        )
        blocks = [inner for block in sequence(message.get("content")) for inner in _inner_blocks(block)]
        error = data.get("error")
        is_error = error is not None or any(mapping(b).get("isError") is True for b in sequence(message.get("content")))
        content = blocks or (
            [{"type": "text", "text": text(mapping(error).get("name")) or "error"}] if is_error else []
        )
        id = text(message.get("id"))
        if call is not None and call.is_open:
            call.settle({"content": content, "isError": is_error, "details": data.get("meta")}, time)
        else:
            parts = tuple(content_of(content).parts)
            self.items.append(NativeMessage(role=MessageRole.TOOL, parts=parts, native=id, at=time))
        self._record(["result", call.id if call else call_id, content, is_error, id], id)

    def _take_summary(self, data: dict[str, Any]) -> None:
        content = _content(data.get("summary"))
        words = "\n".join(str(part.text) for part in content.parts if isinstance(part, TextPart))
        self.compaction = NativeCompaction(
            summary=words,
            model=text(data.get("model")),
            tokens_before=whole_number(data.get("shadowedTokenCount")),
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

    def _add_ending(self, reason: dict[str, Any]) -> None:
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
    renamed_blocks = [
        {"type": "thinking", "thinking": block.get("text")} if mapping(block).get("type") == "reasoning" else block
        for block in blocks
        if mapping(block).get("type") != "tool-call"
    ]
    return content_of(renamed_blocks)


def _inner_blocks(block: Any) -> list[Any]:
    if mapping(block).get("type") != "tool-result":
        return [block]
    inner = block.get("content")
    return inner if isinstance(inner, list) else [] if inner is None else [{"type": "text", "text": inner}]


def _tokens(usage: Any) -> Tokens | None:
    if not isinstance(usage, dict):
        return None
    return Tokens(
        input=whole_number(usage.get("inputTokens")),
        output=whole_number(usage.get("outputTokens")),
        cached=whole_number(usage.get("cacheReadTokens")),
        cache_write=whole_number(usage.get("cacheWriteTokens")),
        reasoning=whole_number(usage.get("reasoningTokens")),
    )


# --- pi: one JSON-lines file per session, its entries a tree.

STAMPED = re.compile(r"\d{4}-\d\d-\d\dT[0-9-]+Z?_(.+)")
"""A session's file or folder: when it was made, and its id."""

SUBAGENT = ("modelRole", "resolvedModel", "readOnly", "spawns")
"""What oh-my-pi tells of a subagent beside its name and task."""


class Pi:
    origin = "pi"
    mapping = 1

    def places(self, home: Path, environment: Mapping[str, str]) -> list[Place]:
        def folder(variable: str, usual: str) -> Path:
            setting = environment.get(variable)
            return home / usual if not setting else home / setting[2:] if setting.startswith("~/") else Path(setting)

        places = [Place(folder("PI_CODING_AGENT_DIR", ".pi/agent") / "sessions", "pi")]
        if environment.get("PI_CODING_AGENT_SESSION_DIR"):
            places.append(Place(folder("PI_CODING_AGENT_SESSION_DIR", ""), "pi"))
        places.append(Place(home / ".omp/agent/sessions", "oh-my-pi"))
        places.append(Place(folder("OPENCLAW_STATE_DIR", ".openclaw") / "agents", "OpenClaw"))
        return places

    def recognises(self, source: Source) -> bool:
        objects = first_objects(source.head)
        if is_dsh(objects):
            return True
        if any(is_header(value) for value in objects):
            entries = [value for value in objects if value.get("type") not in ("session", "title")]
            return not entries or any(is_entry(value) for value in entries)
        return any(has_pi_words(value) for value in objects)

    def is_part(self, source: Source) -> bool:
        return False

    def read(self, source: Source, report: Report) -> Iterator[Transcript]:
        if is_dsh(first_objects(source.head)):
            yield from read_dsh(source, report)
            return
        indexer = Indexer(report, fallback_id(source.path))
        for record in records(source, report):
            indexer.plan_record(record)
        index = indexer.finish()
        if report.found:
            session = session_of(index, indexer.session_id, source.path)
            yield Transcript(session=session, turns=_turns_of_session(source, index, report))


def is_dsh(objects: list[dict[str, Any]]) -> bool:
    entries = [value for value in objects if value.get("type") != "session"]
    is_numbered = not entries or any("seq" in value and "data" in value for value in entries)
    return is_numbered and any(is_dsh_header(value) for value in objects)


def is_header(value: dict[str, Any]) -> bool:
    return value.get("type") == "session" and text(value.get("id")) is not None and "timestamp" in value


def is_entry(value: dict[str, Any]) -> bool:
    """Pi's own kinds; only the first, linear version has entries without an id."""
    kind = value.get("type")
    if kind == "message":
        return text(mapping(value.get("message")).get("role")) in MESSAGE_ROLES
    return isinstance(kind, str) and kind in RECORD_ROLES and "timestamp" in value


def has_pi_words(value: dict[str, Any]) -> bool:
    """A message as no other tool writes it, for a file whose header is lost."""
    message = mapping(value.get("message"))
    if value.get("type") != "message" or "timestamp" not in value:
        return False
    blocks = map(mapping, sequence(message.get("content")))
    return message.get("role") == "toolResult" or any(block.get("type") == "toolCall" for block in blocks)


def fallback_id(path: Path) -> str:
    stamped = STAMPED.fullmatch(path.stem)
    return stamped[1] if stamped else path.stem


def session_of(index: Index, id: str, path: Path) -> NativeSession:
    header, init = index.header, index.init
    folder = STAMPED.fullmatch(path.parent.name)
    return NativeSession(
        id=id,
        title=index.title,
        workspace=text(header.get("cwd")),
        created=millis(header.get("timestamp")) or millis(header.get("createdAt")),
        parent=folder[1] if folder and init else None,  # oh-my-pi keeps subagents in the folder of who started them
        task=text(init.get("task")),
        agent=text(init.get("agent")),
        metadata=present(
            format=header.get("version"),
            forked_from=_parent_session(header),
            labels=index.labels,
            exit=index.exit,
            other_usage=index.other_usage,
            subagent={name: init[name] for name in SUBAGENT if name in init},
        ),
    )


def _parent_session(header: dict[str, Any]) -> str | None:
    return text(header.get("parentSession")) or text(header.get("branchedFrom"))


def _link(index: Index) -> NativeLink | None:
    """The session that this one goes on from; not where it was copied from, for then the same turns are in both."""
    parent_name = _parent_session(index.header)
    created = millis(index.header.get("timestamp"))
    if parent_name is None or created is None or index.first_time is None or index.first_time < created:
        return None
    parent = fallback_id(Path(re.split(r"[/\\]", parent_name)[-1]))
    return NativeLink(to=parent, why=LinkReason.CONTINUATION, session=parent)


def _turns_of_session(source: Source, index: Index, report: Report) -> Iterator[NativeTurn]:
    last = len(index.plan.turns) - 1
    return walk_turns(
        source,
        index.plan,
        report,
        builder_of=lambda number, planned: PiBuilder(starts=index.call_starts),
        turn_of=lambda number, planned, builder: _turn(index, planned, builder, is_last=number == last),
    )


def _turn(index: Index, planned: PiTurn, builder: PiBuilder, is_last: bool) -> NativeTurn:
    entries, settings = index.plan.entries_of(planned), planned.settings
    return builder.turn(
        planned,
        entries,
        names=tuple(entry.id for entry in entries if entry.id is not None),
        link=_link(index) if planned.parent is None and planned is index.plan.turns[0] else None,
        compaction=_compaction(index, planned, builder),
        closed=not is_last or planned.is_finished or index.exit is not None,
        started=builder.times[0] if builder.times else None,
        ended=builder.times[-1] if builder.times else None,
        role=AgentRole.WORKER if index.init else AgentRole.UNIFIED,
        workspace=text(index.header.get("cwd")),
        tools=settings.tools or names(index.init.get("tools")) or None,
        config=settings.config(),
        metadata=present(context_reset=settings.is_reset or None),
    )


def _compaction(index: Index, planned: PiTurn, builder: PiBuilder) -> NativeCompaction | None:
    if not planned.is_compaction:
        return None
    entry = builder.compaction or {}
    return NativeCompaction(
        summary=builder.summary,
        through=index.plan.last_summarised(planned),
        first_kept=planned.first_kept,
        tokens_before=whole_number(entry.get("tokensBefore")),
        tokens_after=whole_number(entry.get("tokensAfter")),
        metadata=present(
            details=entry.get("details"),
            from_extension=entry.get("fromHook") or entry.get("fromExtension") or None,
            method=entry.get("method"),
            retained=len(sequence(entry.get("retainedTail"))) or None,
        ),
    )
