"""The second pass: the lines of one turn, read again and mapped to what the ledger takes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from weft.exchange.importers.claude_code.attachments import attached_files, editor_files, lints
from weft.exchange.importers.claude_code.content import (
    Block,
    blocks_of,
    call_id,
    count_or_none,
    moment,
    object_or_empty,
    opening_text,
    packed,
    reduced,
    storable,
    text_or_none,
)
from weft.exchange.importers.claude_code.drafts import CallDraft, MessageDraft
from weft.exchange.importers.claude_code.index import Entry
from weft.exchange.importers.claude_code.kinds import INTERRUPTED, JsonObject, Kind, queued_source
from weft.exchange.importers.claude_code.results import (
    lean_detail,
    outcome,
    plain_text,
    spawned_agent,
    touched_files,
)
from weft.exchange.importers.transcript import Item, NativeCompaction, NativeTurn
from weft.kernel.enums import AgentRole, MessageRole

_ENVELOPE: Final = frozenset(
    "parentUuid isSidechain userType cwd sessionId session_id version gitBranch type timestamp uuid slug entrypoint"
    " isMeta sessionKind agentId".split()
)
_FACTS: Final = ("entrypoint", "slug", "sessionKind", "teamName")
_PRESERVED: Final = frozenset({"preservedSegment", "preservedMessages"})


class TurnDraft:
    """A turn while its lines come in, in file order."""

    def __init__(self, session: str, spawned: Mapping[str, str], is_compaction: bool) -> None:
        """`session` is the native id below which this turn's subagents are; `spawned` names those already known by the
        call that started them."""
        self.session, self.spawned, self.is_compaction = session, spawned, is_compaction
        self.messages: list[MessageDraft] = []
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
        self._answers: dict[str, MessageDraft] = {}
        self._calls: dict[str, CallDraft] = {}
        self._waiting: dict[str, CallDraft] = {}
        self._leading: list[JsonObject] = []

    def take(self, entry: Entry, record: JsonObject) -> None:
        at, literal = moment(record.get("timestamp"))
        self._seen(record, at, literal)
        match entry.kind:
            case Kind.ANSWER:
                self._take_answer(entry, record, at, literal)
            case Kind.RESULT:
                self._take_result(entry, record, at, literal)
            case Kind.ASIDE if entry.label.startswith("attachment/"):
                self._take_attachment(object_or_empty(record.get("attachment")))
            case Kind.ASIDE:
                self._take_notice(record)
            case Kind.QUEUED:
                self._take_queued(entry, record, at, literal)
            case Kind.BOUNDARY:
                self._take_boundary(entry, record)
            case _:
                self._take_prompt(entry, record, at, literal)

    def _seen(self, record: JsonObject, at: int | None, literal: str | None) -> None:
        if at is not None:
            self.started = at if self.started is None else self.started
            self.ended = at if self.ended is None else max(at, self.ended)
        elif self.literal is None:
            self.literal = literal
        self.workspace = self.workspace or text_or_none(record.get("cwd"))
        self.git_branch = self.git_branch or text_or_none(record.get("gitBranch"))
        self.version = text_or_none(record.get("version")) or self.version
        for key in _FACTS:
            if key not in self.facts and (value := text_or_none(record.get(key))):
                self.facts[key] = value
        written_for = text_or_none(record.get("session_id"))
        if written_for is not None and written_for != record.get("sessionId"):
            self.facts["session_id"] = written_for  # a line printed for, or copied from, that session

    def _record(self, entry: Entry, kind: Any, role: Any, blocks: list[Block], *more: Any) -> None:
        self.records.append(
            packed([kind, entry.uuid, entry.message, role, [reduced(block) for block in blocks], *more])
        )

    def _message(self, draft: MessageDraft) -> MessageDraft:
        self.messages.append(draft)
        if self._leading:
            leading, self._leading = self._leading, []
            for attachment in leading:
                self._take_attachment(attachment)
        return draft

    def _take_prompt(self, entry: Entry, record: JsonObject, at: int | None, literal: str | None) -> None:
        blocks = blocks_of(record)
        is_summary = entry.kind in (Kind.SUMMARY, Kind.CONTINUED) and self.is_compaction and self.summary is None
        self._record(entry, "compact_summary" if is_summary else record.get("type"), "user", blocks)
        if mode := text_or_none(record.get("permissionMode")):
            self.permissions["mode"] = mode
        if entry.kind is Kind.INTERRUPT:
            self.is_interrupted = True
        if is_summary:
            self.summary = "\n".join(text for block in blocks if isinstance(text := block.get("text"), str))
            return
        message = self._message(MessageDraft(MessageRole.USER, entry.uuid, at, literal))
        message.source = entry.source
        message.describe(record)
        for block in blocks:
            message.say(block)
            if isinstance(text := block.get("text"), str):
                message.files += editor_files(text)

    def _take_queued(self, entry: Entry, record: JsonObject, at: int | None, literal: str | None) -> None:
        attachment = object_or_empty(record.get("attachment"))
        blocks = blocks_of({"message": attachment.get("prompt")})
        self._record(entry, "queued_command", "user", blocks)
        message = self._message(MessageDraft(MessageRole.USER, entry.uuid, at, literal))
        message.source = queued_source(attachment, opening_text(blocks))
        message.metadata["queued"] = storable(
            {key: attachment[key] for key in attachment if key not in ("type", "prompt")}
        )
        for block in blocks:
            message.say(block)

    def _take_boundary(self, entry: Entry, record: JsonObject) -> None:
        self.boundary = object_or_empty(record.get("compactMetadata"))
        self._record(entry, "compact_boundary", "system", [], self.kept_from())

    def kept_from(self) -> str | None:
        """The id of the first line that the compaction kept in view."""
        metadata = self.boundary or {}
        messages = object_or_empty(metadata.get("preservedMessages")).get("uuids")
        first = messages[0] if isinstance(messages, list) and messages else None
        return text_or_none(object_or_empty(metadata.get("preservedSegment")).get("headUuid")) or text_or_none(first)

    def _take_answer(self, entry: Entry, record: JsonObject, at: int | None, literal: str | None) -> None:
        blocks = blocks_of(record)
        failed = record.get("isApiErrorMessage") is True
        self._record(entry, record.get("type"), "assistant", blocks, *(["error"] if failed else []))
        draft = self._answer(entry, record, at, literal)
        draft.describe(record)
        for number, block in enumerate(blocks):
            kind = block.get("type")
            if kind in ("tool_use", "server_tool_use"):
                self._call(draft, call_id(block, entry.uuid, number), block, at)
            elif not (isinstance(kind, str) and kind.endswith("tool_result") and self._settle(block, record, at, True)):
                draft.say(block)
        self.error = (opening_text(blocks) or "API error") if failed else None

    def _answer(self, entry: Entry, record: JsonObject, at: int | None, literal: str | None) -> MessageDraft:
        """The message that a line is a part of; a call on a line of its own belongs to the answer before it."""
        if record.get("type") in ("tool", "tool_use") and self.messages:
            last = self.messages[-1]
            if last.role is MessageRole.ASSISTANT:
                return last
        native = entry.message or entry.uuid
        draft = self._answers.get(native) if native else None
        if draft is None:
            draft = self._message(MessageDraft(MessageRole.ASSISTANT, native, at, literal))
            if native:
                self._answers[native] = draft
        return draft

    def _call(self, draft: MessageDraft, id: str, block: Block, at: int | None) -> None:
        name, arguments = block.get("name"), storable(block.get("input"))
        known = self._calls.get(id)
        if known is not None and known.name == name and known.arguments == arguments:
            return  # some tools repeat a call on every line while it streams
        call = CallDraft(id, name if isinstance(name, str) and name else "unknown", arguments, at)
        call.spawned = self.spawned.get(id)
        self._calls[id] = self._waiting[id] = call
        draft.calls.append(call)

    def _take_result(self, entry: Entry, record: JsonObject, at: int | None, literal: str | None) -> None:
        blocks = blocks_of(record)
        self._record(entry, record.get("type"), "user", blocks)
        results = [block for block in blocks if block.get("type") == "tool_result"]
        others = [block for block in blocks if block.get("type") != "tool_result"]
        orphans = [block for block in results if not self._settle(block, record, at, len(results) == 1)]
        for block in orphans:
            message = self._message(MessageDraft(MessageRole.TOOL, entry.uuid, at, literal))
            message.metadata["tool_use_id"] = block.get("tool_use_id")
            message.say({"type": "text", "text": plain_text(block.get("content"))})
            if not isinstance(block.get("content"), str):
                message.metadata["content"] = storable(block.get("content"))
        if others:
            message = self._message(MessageDraft(MessageRole.USER, entry.uuid, at, literal))
            for block in others:
                message.say(block)
            self.is_interrupted = self.is_interrupted or opening_text(others).startswith(INTERRUPTED)

    def _settle(self, block: Block, record: JsonObject, at: int | None, is_only: bool) -> bool:
        """Give a call its outcome. False: the call is not in this turn."""
        id = text_or_none(block.get("tool_use_id"))
        call = self._waiting.get(id) if id else next(iter(self._waiting.values()), None)
        if call is None:
            return False
        del self._waiting[call.id]
        call.result, call.error, call.status = outcome(block)
        call.done = at
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

    def compaction(self, kept: Callable[[str], int | None]) -> NativeCompaction:
        metadata = dict(self.boundary or {})
        head = self.kept_from()
        if self._leading:
            metadata["attachments"] = [storable(each) for each in self._leading]
        return NativeCompaction(
            summary=self.summary or "",
            first_kept=kept(head) if head else None,
            trigger=text_or_none(metadata.get("trigger")),
            tokens_before=count_or_none(metadata.get("preTokens")),
            tokens_after=count_or_none(metadata.get("postTokens")),
            duration_ms=count_or_none(metadata.get("durationMs")),
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
