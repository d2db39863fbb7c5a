"""The second pass: the lines of one turn, read again and mapped to what the ledger takes.

The lines of one response of the API become one message. A line with a tool's result completes the call it names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from weft.exchange.importers.claude_code.index import Entry
from weft.exchange.importers.claude_code.lines import (
    INTERRUPTED,
    Block,
    Kind,
    attached_files,
    block_identity,
    blocks_of,
    call_id,
    editor_files,
    lean_detail,
    lints,
    opening_text,
    outcome,
    plain_text,
    queued_source,
    spawned_agent,
    touched_files,
)
from weft.exchange.importers.foreign_values import (
    JsonObject,
    canonical_escaped,
    count,
    mapping,
    storable,
    text,
    written_time,
)
from weft.exchange.importers.native_turns import PendingCall
from weft.exchange.importers.port import Item, NativeCompaction, NativeMessage, NativeTurn, Tokens
from weft.kernel.enums import AgentRole, MessageRole, MessageSource
from weft.ledger.model import FileNote, ImagePart, LintNote, Part, ReasoningPart, TextPart

SYNTHETIC: Final = "<synthetic>"
"""The model named on notices that Claude Code writes itself."""

_COUNTS: Final = {
    "input": "input_tokens",
    "output": "output_tokens",
    "cached": "cache_read_input_tokens",
    "cache_write": "cache_creation_input_tokens",
}
_PRICED: Final = ("cache_creation", "server_tool_use", "service_tier", "speed", "inference_geo")
"""What else of a usage bears on its price."""
_MESSAGE_FIELDS: Final = frozenset(
    "requestId promptId promptSource origin effort advisorModel attributionAgent attributionSkill attributionPlugin"
    " attributionMcpServer attributionMcpTool isAbortedMidStream isApiErrorMessage apiErrorStatus errorDetails"
    " supersedesUuids interruptedMessageId sourceToolUseID imagePasteIds thinkingMetadata todos teamName costUSD"
    " durationMs scheduledTaskId usageMetadata systemPayload".split()
)
"""Fields of a line that are kept with its message."""


class MessageLines:
    """A message; an assistant's gathers the lines of one response."""

    __slots__ = (
        "at",
        "calls",
        "context",
        "files",
        "finish_reason",
        "lints",
        "literal",
        "metadata",
        "model",
        "native",
        "parts",
        "role",
        "source",
        "usage",
    )

    def __init__(self, role: MessageRole, native: str | None, time: int | None, literal: str | None) -> None:
        self.role, self.native, self.at, self.literal = role, native, time, literal
        self.parts: list[Part] = []
        self.calls: list[PendingCall] = []
        self.source: MessageSource | None = None
        self.model: str | None = None
        self.usage: dict[str, int] = {}
        self.finish_reason: str | None = None
        self.context: list[Any] = []
        self.metadata: JsonObject = {}
        self.files: list[FileNote] = []
        self.lints: list[LintNote] = []

    def add_block(self, block: Block) -> None:
        """Text, thinking and images are parts; what is none of these is kept as it is."""
        match block.get("type"):
            case "text" if isinstance(words := block.get("text"), str):
                self.parts.append(TextPart(words))
            case "thinking" if isinstance(words := block.get("thinking"), str):
                if words:
                    self.parts.append(ReasoningPart(words))
                if signature := block.get("signature"):
                    self.metadata.setdefault("signatures", []).append(storable(signature))
            case "image" if url := image_url(block.get("source")):
                self.parts.append(ImagePart(url))
            case _:
                self.metadata.setdefault("blocks", []).append(storable(block))

    def describe(self, record: JsonObject) -> None:
        """Model, cost and the other things that a line tells beside its content."""
        for key in sorted(_MESSAGE_FIELDS.intersection(record)):
            if (value := record[key]) is not None:
                self.metadata[key] = storable(value)
        message = mapping(record.get("message"))
        model = text(message.get("model")) or text(record.get("model"))
        if model == SYNTHETIC:
            self.metadata["synthetic"] = True
        elif self.role is MessageRole.ASSISTANT:
            self.model = model or self.model
            self._count(message.get("usage"), record.get("usageMetadata"))
        self.finish_reason = text(message.get("stop_reason")) or self.finish_reason

    def _count(self, usage: Any, gemini: Any) -> None:
        """Every line repeats the usage of its response, early ones a partial one, a copy's last one perhaps zeros: the
        largest of each number holds."""
        if isinstance(usage, dict):
            for name, key in _COUNTS.items():
                self._raise(name, usage.get(key))
            self._raise("cache_write_1h", mapping(usage.get("cache_creation")).get("ephemeral_1h_input_tokens"))
            details = mapping(usage.get("output_tokens_details"))
            self._raise("reasoning", details.get("thinking_tokens", details.get("reasoning_tokens")))
            priced = {key: value for key in _PRICED if _affects_price(value := usage.get(key))}
            if priced:
                self.metadata["usage"] = storable(priced)
        elif isinstance(gemini, dict) and gemini:
            prompt, cached = (gemini.get(key) for key in ("promptTokenCount", "cachedContentTokenCount"))
            answer, thought = (gemini.get(key) for key in ("candidatesTokenCount", "thoughtsTokenCount"))
            self._raise("input", _difference(prompt, cached))
            self._raise("cached", cached)
            self._raise("output", _sum(answer, thought))
            self._raise("reasoning", thought)

    def _raise(self, name: str, value: Any) -> None:
        number = count(value)
        if number is not None and number >= self.usage.get(name, 0):
            self.usage[name] = number

    def finished(self) -> list[Item]:
        is_claude = self.model is not None and self.model.startswith("claude")
        message = NativeMessage(
            role=self.role,
            parts=tuple(self.parts),
            native=self.native,
            at=self.at,
            literal_time=self.literal,
            source=self.source,
            model=self.model,
            provider="anthropic" if is_claude else None,
            tokens=Tokens(**self.usage) if self.usage else None,
            finish_reason=self.finish_reason,
            context={"attachments": self.context} if self.context else None,
            metadata=self.metadata or None,
            files=tuple(dict.fromkeys(self.files)),
            lints=tuple(self.lints),
        )
        return [message, *(call.finished() for call in self.calls)]


def image_url(source: Any) -> str | None:
    """An image as a URL that carries it; one that lies elsewhere keeps its own and is not fetched."""
    source = mapping(source)
    data, kind = source.get("data"), source.get("media_type")
    if source.get("type") == "base64" and isinstance(data, str):
        return f"data:{kind if isinstance(kind, str) else 'application/octet-stream'};base64,{data}"
    return text(source.get("url"))


def _affects_price(value: Any) -> bool:
    if isinstance(value, dict):
        return any(value.values())
    return bool(value) and value not in ("standard", "not_available")


def _difference(total: Any, counted: Any) -> Any:
    return total - counted if type(total) is int and type(counted) is int and total >= counted else total


def _sum(first: Any, second: Any) -> Any:
    return first + second if type(first) is int and type(second) is int else first


_ENVELOPE: Final = frozenset(
    "parentUuid isSidechain userType cwd sessionId session_id version gitBranch type timestamp uuid slug entrypoint"
    " isMeta sessionKind agentId".split()
)
_LAST_REASONS: Final = frozenset({"end_turn", "refusal", "stop_sequence"})
"""Why a model stopped, where it was done."""
_SESSION_FIELDS: Final = ("entrypoint", "slug", "sessionKind", "teamName")
_PRESERVED: Final = frozenset({"preservedSegment", "preservedMessages"})


class TurnLines:
    """A turn while its lines come in, in file order."""

    def __init__(self, session: str, spawned: Mapping[str, str], is_compaction: bool) -> None:
        """`session` is the native id below which this turn's subagents are; `spawned` names those already known by the
        call that started them."""
        self.session, self.spawned, self.is_compaction = session, spawned, is_compaction
        self.messages: list[MessageLines] = []
        self.records: list[bytes] = []
        self.summary: str | None = None
        self.boundary: JsonObject | None = None
        self.is_interrupted = False
        self.error: str | None = None
        self.started: int | None = None
        self.ended: int | None = None
        self.literal: str | None = None
        self.workspace: str | None = None
        self.git_branch: str | None = None
        self.version: str | None = None
        self.permissions: JsonObject = {}
        self.metadata: JsonObject = {}
        self.facts: JsonObject = {}
        """What its lines say of the session."""
        self._answers: dict[str, MessageLines] = {}
        self._calls: dict[str, PendingCall] = {}
        self._waiting: dict[str, PendingCall] = {}
        self._leading: list[JsonObject] = []

    @property
    def is_answered(self) -> bool:
        """Whether the last message is a whole answer of the model, after which it called no more tools."""
        return bool(self.messages) and self.messages[-1].finish_reason in _LAST_REASONS

    def add_record(self, entry: Entry, record: JsonObject) -> None:
        time, literal = written_time(record.get("timestamp"))
        self._note_circumstances(record, time, literal)
        match entry.kind:
            case Kind.ANSWER:
                self._take_answer(entry, record, time, literal)
            case Kind.RESULT:
                self._take_result(entry, record, time, literal)
            case Kind.ASIDE if entry.label.startswith("attachment/"):
                self._take_attachment(mapping(record.get("attachment")))
            case Kind.ASIDE:
                self._take_notice(record)
            case Kind.QUEUED:
                self._take_queued(entry, record, time, literal)
            case Kind.BOUNDARY:
                self._take_boundary(entry, record)
            case _:
                self._take_prompt(entry, record, time, literal)

    def _note_circumstances(self, record: JsonObject, time: int | None, literal: str | None) -> None:
        if time is not None:
            self.started = time if self.started is None else self.started
            self.ended = time if self.ended is None else max(time, self.ended)
        elif self.literal is None:
            self.literal = literal
        self.workspace = self.workspace or text(record.get("cwd"))
        self.git_branch = self.git_branch or text(record.get("gitBranch"))
        self.version = text(record.get("version")) or self.version
        for key in _SESSION_FIELDS:
            if key not in self.facts and (value := text(record.get(key))):
                self.facts[key] = value
        written_for = text(record.get("session_id"))
        if written_for is not None and written_for != record.get("sessionId"):
            self.facts["session_id"] = written_for  # a line printed for, or copied from, that session

    def _record(self, entry: Entry, kind: Any, role: Any, blocks: list[Block], *more: Any) -> None:
        self.records.append(
            canonical_escaped(
                [kind, entry.uuid, entry.message, role, [block_identity(block) for block in blocks], *more]
            )
        )

    def _message(self, message: MessageLines) -> MessageLines:
        self.messages.append(message)
        if self._leading:
            leading, self._leading = self._leading, []
            for attachment in leading:
                self._take_attachment(attachment)
        return message

    def _take_prompt(self, entry: Entry, record: JsonObject, time: int | None, literal: str | None) -> None:
        blocks = blocks_of(record)
        is_summary = entry.kind in (Kind.SUMMARY, Kind.CONTINUED) and self.is_compaction and self.summary is None
        self._record(entry, "compact_summary" if is_summary else record.get("type"), "user", blocks)
        if mode := text(record.get("permissionMode")):
            self.permissions["mode"] = mode
        if entry.kind is Kind.INTERRUPT:
            self.is_interrupted = True
        if is_summary:
            self.summary = "\n".join(words for block in blocks if isinstance(words := block.get("text"), str))
            return
        message = self._message(MessageLines(MessageRole.USER, entry.uuid, time, literal))
        message.source = entry.source
        message.describe(record)
        for block in blocks:
            message.add_block(block)
            if isinstance(words := block.get("text"), str):
                message.files += editor_files(words)

    def _take_queued(self, entry: Entry, record: JsonObject, time: int | None, literal: str | None) -> None:
        attachment = mapping(record.get("attachment"))
        blocks = blocks_of({"message": attachment.get("prompt")})
        self._record(entry, "queued_command", "user", blocks)
        message = self._message(MessageLines(MessageRole.USER, entry.uuid, time, literal))
        message.source = queued_source(attachment, opening_text(blocks))
        message.metadata["queued"] = storable(
            {key: attachment[key] for key in attachment if key not in ("type", "prompt")}
        )
        for block in blocks:
            message.add_block(block)

    def _take_boundary(self, entry: Entry, record: JsonObject) -> None:
        self.boundary = mapping(record.get("compactMetadata"))
        self._record(entry, "compact_boundary", "system", [], self.kept_from())

    def kept_from(self) -> str | None:
        """The id of the first line that the compaction kept in view."""
        metadata = self.boundary or {}
        messages = mapping(metadata.get("preservedMessages")).get("uuids")
        first = messages[0] if isinstance(messages, list) and messages else None
        return text(mapping(metadata.get("preservedSegment")).get("headUuid")) or text(first)

    def _take_answer(self, entry: Entry, record: JsonObject, time: int | None, literal: str | None) -> None:
        blocks = blocks_of(record)
        failed = record.get("isApiErrorMessage") is True
        self._record(entry, record.get("type"), "assistant", blocks, *(["error"] if failed else []))
        message = self._answer(entry, record, time, literal)
        message.describe(record)
        for number, block in enumerate(blocks):
            kind = block.get("type")
            if kind in ("tool_use", "server_tool_use"):
                self._add_call(message, call_id(block, entry.uuid, number), block, time)
            elif not (
                isinstance(kind, str) and kind.endswith("tool_result") and self._settle(block, record, time, True)
            ):
                message.add_block(block)
        self.error = (opening_text(blocks) or "API error") if failed else None

    def _answer(self, entry: Entry, record: JsonObject, time: int | None, literal: str | None) -> MessageLines:
        """The message that a line is a part of; a call on a line of its own belongs to the answer before it."""
        if record.get("type") in ("tool", "tool_use") and self.messages:
            last = self.messages[-1]
            if last.role is MessageRole.ASSISTANT:
                return last
        native = entry.message or entry.uuid
        message = self._answers.get(native) if native else None
        if message is None:
            message = self._message(MessageLines(MessageRole.ASSISTANT, native, time, literal))
            if native:
                self._answers[native] = message
        return message

    def _add_call(self, message: MessageLines, id: str, block: Block, time: int | None) -> None:
        name, arguments = block.get("name"), storable(block.get("input"))
        earlier = self._calls.get(id)
        if earlier is not None and earlier.name == name and earlier.arguments == arguments:
            return  # some tools repeat a call on every line while it streams
        call = PendingCall(id, name if isinstance(name, str) and name else "unknown", arguments, at=time)
        call.spawned = self.spawned.get(id)
        self._calls[id] = self._waiting[id] = call
        message.calls.append(call)

    def _take_result(self, entry: Entry, record: JsonObject, time: int | None, literal: str | None) -> None:
        blocks = blocks_of(record)
        self._record(entry, record.get("type"), "user", blocks)
        results = [block for block in blocks if block.get("type") == "tool_result"]
        other_blocks = [block for block in blocks if block.get("type") != "tool_result"]
        orphans = [block for block in results if not self._settle(block, record, time, len(results) == 1)]
        for block in orphans:
            message = self._message(MessageLines(MessageRole.TOOL, entry.uuid, time, literal))
            message.metadata["tool_use_id"] = block.get("tool_use_id")
            message.add_block({"type": "text", "text": plain_text(block.get("content"))})
            if not isinstance(block.get("content"), str):
                message.metadata["content"] = storable(block.get("content"))
        if other_blocks:
            message = self._message(MessageLines(MessageRole.USER, entry.uuid, time, literal))
            for block in other_blocks:
                message.add_block(block)
            self.is_interrupted = self.is_interrupted or opening_text(other_blocks).startswith(INTERRUPTED)

    def _settle(self, block: Block, record: JsonObject, time: int | None, is_only: bool) -> bool:
        """Give a call its outcome. False: the call is not in this turn."""
        id = text(block.get("tool_use_id"))
        call = self._waiting.get(id) if id else next(iter(self._waiting.values()), None)
        if call is None:
            return False
        del self._waiting[call.id]
        call.result, call.error, call.status = outcome(block)
        call.done = time
        detail = record.get("toolUseResult", record.get("toolCallResult")) if is_only else None
        call.detail = lean_detail(detail, call.arguments, block.get("content"))
        if call.error is None:
            call.files = touched_files(call.name, call.arguments, detail)
        if agent := spawned_agent(detail):
            call.spawned = f"{self.session}/agent-{agent}"
        return True

    def _take_attachment(self, attachment: JsonObject) -> None:
        """It stands at the message before it, or at the turn's first."""
        if not self.messages:
            self._leading.append(attachment)
            return
        message = self.messages[-1]
        message.context.append(storable(attachment))
        message.files += attached_files(attachment)
        message.lints += lints(attachment)
        allowed = attachment.get("allowedTools")
        if attachment.get("type") == "command_permissions" and allowed:
            self.permissions["allowedTools"] = storable(allowed)

    def _take_notice(self, record: JsonObject) -> None:
        if record.get("subtype") == "turn_duration":
            self.metadata |= {key: record[key] for key in ("durationMs", "messageCount") if key in record}
            return
        notice = {key: value for key, value in record.items() if key not in _ENVELOPE}
        self.metadata.setdefault("notices", []).append(storable(notice))

    def items(self) -> Iterator[Item]:
        for message in self.messages:
            yield from message.finished()

    def compaction(self, position_of: Callable[[str], int | None]) -> NativeCompaction:
        metadata = dict(self.boundary or {})
        head = self.kept_from()
        if self._leading:
            metadata["attachments"] = [storable(attachment) for attachment in self._leading]
        return NativeCompaction(
            summary=self.summary or "",
            first_kept=position_of(head) if head else None,
            trigger=text(metadata.get("trigger")),
            tokens_before=count(metadata.get("preTokens")),
            tokens_after=count(metadata.get("postTokens")),
            duration_ms=count(metadata.get("durationMs")),
            metadata=storable({key: value for key, value in metadata.items() if key not in _PRESERVED}) or None,
        )

    def turn(self, key: str, names: tuple[str, ...], agent: str | None) -> NativeTurn:
        return NativeTurn(
            key=key,
            records=tuple(self.records),
            names=names,
            items=tuple(self.items()),
            error=self.error,
            interrupted=self.is_interrupted,
            started=self.started,
            ended=self.ended,
            literal_time=self.literal if self.started is None else None,
            role=AgentRole.UNIFIED if agent is None else AgentRole.WORKER,
            workspace=self.workspace,
            git_branch=self.git_branch,
            version=self.version,
            permissions=self.permissions or None,
            metadata=self.metadata or None,
        )
