"""The events of one turn, recorded at once or step by step; where it goes (its session, its
parent, the compaction in effect); and leases: one writer at a time for a session, an agent or a
turn without a session.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

from msgspec import UNSET, Struct, UnsetType

from weft.kernel.clock import offset
from weft.kernel.contents import PreparedContent, json_value, text_bytes
from weft.kernel.enums import (
    AgentRole,
    FileKind,
    ImageDetail,
    InterruptionReason,
    LintSeverity,
    MessageRole,
    MessageSource,
    ProgramKind,
    RunExit,
    RunReason,
    SessionStatus,
    ToolCallStatus,
    TurnType,
)
from weft.kernel.errors import (
    Action,
    AmbiguousName,
    Conflict,
    HeadMoved,
    InvalidInput,
    LabelTaken,
    LeaseLost,
    NotApplicable,
    NotFound,
    SessionBusy,
    quoted,
)
from weft.kernel.events import (
    CodeblockFact,
    ErrorFact,
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
    PartFact,
    ReasoningFact,
    RequestInput,
    RunFinished,
    RunStarted,
    TextFact,
    ToolCallRequested,
    ToolResult,
    ToolResultFact,
    ToolUseFact,
    Usage,
    run_stream,
    session_stream,
)
from weft.kernel.ledger_events import MessageAdmitted, SessionCreated
from weft.ledger.arguments import as_record, checked_id, checked_member, checked_whole
from weft.ledger.model import (
    DEFAULT_AGENT,
    Codeblock,
    FileNote,
    ImagePart,
    LintNote,
    NewError,
    NewMessage,
    NewToolCall,
    Part,
    ReasoningPart,
    SentResult,
    StoredContent,
    TextPart,
    ToolResultPart,
    ToolUsePart,
)
from weft.ledger.read.sessions import find_shortened
from weft.ledger.views.rows import (
    SESSION,
    Lease,
    LeaseKind,
    SessionRow,
    TurnRow,
    agent_id,
    event_at,
    find_by_name,
    find_lease,
    find_session,
    held_leases,
    is_message,
    load_program,
    load_turn,
)
from weft.ledger.write.transaction import MESSAGE_ROOM, Append, ContentWriter, LeasePatience, LedgerWriter
from weft.store.fact_log import LEDGER_SCOPE
from weft.store.replicas import NOBODY, is_dead, last_copied_event
from weft.store.sql import Sql, rows_in

# --- The events of one turn, recorded at once or step by step.

DETAILS = frozenset(detail.value for detail in ImageDetail)
T = TypeVar("T")
MAIN_LIST = "main"
SUMMARY_KIND = "content"
"""The kind of a reference to a summary: a content of the ledger."""


class PreparedCall(Struct, frozen=True):
    """The contents of a tool call that were encoded and hashed ahead."""

    id: PreparedContent | None = None
    arguments: PreparedContent | None = None
    result: PreparedContent | None = None


UNPREPARED = PreparedCall()


class ResultNotes(Struct, frozen=True, kw_only=True):
    """What a tool did beside its result: files and lints, and whether a stranger may have written the result."""

    files: tuple[FileNote, ...] = ()
    lints: tuple[LintNote, ...] = ()
    is_untrusted: bool = False
    sent: SentResult | None = None


NO_NOTES = ResultNotes()


def is_marked_turn(append: Append, turn: str) -> bool:
    """Whether something before shows already that a stranger or an agent wrote part of what a turn holds."""
    row = append.view.find_turn(turn)
    return row is not None and bool(row.untrusted)


class TurnEvents:
    """Adds one run's events to an append, numbering its messages. Its contents belong to the tree `scope`."""

    def __init__(
        self, append: Append, turn: str, *, actor: str, scope: int, prev: str | None = None, messages: int = 0
    ) -> None:
        self.append, self.turn, self.messages = append, turn, messages
        self._is_agents = False
        """Whether a message of these events says that an agent wrote it."""
        self.contents = append.contents_of(scope)
        self.run = append.stream(run_stream(turn), prev, actor, later=True)

    def start(
        self,
        *,
        fork: ForkPoint | UnsetType,
        session: str | UnsetType,
        compaction: str | UnsetType,
        turn_type: TurnType,
        setting: RunConfig,
    ) -> str:
        return self.run.add(
            RunStarted,
            fork=fork,
            session=session,
            compaction=compaction,
            turn_type=turn_type,
            **setting.fields(self.contents),
        )

    def message(self, message: NewMessage, listed: str = MAIN_LIST, text: PreparedContent | None = None) -> str:
        """A message enters the history; returns its id. `text` is its whole content, where that was prepared."""
        fact = self._message_fact(message, text)
        self.run.add(HistoryAppend, list=self.contents.named(listed, "list"), message=fact)
        return fact.id

    def request(
        self,
        model: str,
        correlation: str,
        *,
        provider: str | None = None,
        vendor: str | None = None,
        params: Any = None,
        tools_spec: Any = None,
        attempt: int | None = None,
        input: RequestInput | UnsetType = UNSET,
    ) -> str:
        contents = self.contents
        return self.run.add(
            ModelRequest,
            model=contents.named(model, "model"),
            correlation_id=correlation,
            provider=UNSET if provider is None else contents.named(provider, "provider"),
            params=UNSET if params is None else contents.put_json(params, "params"),
            tools_spec=UNSET if tools_spec is None else contents.put_json(tools_spec, "tools_spec"),
            attempt=checked_whole(attempt, "attempt"),
            input=input,
            vendor=UNSET if vendor is None else contents.named(vendor, "vendor"),
        )

    def response(
        self,
        message: NewMessage | None,
        correlation: str,
        *,
        request: str | None = None,
        usage: Usage | UnsetType = UNSET,
        finish_reason: str | None = None,
        model: str | None = None,
        latency_ms: int | None = None,
        text: PreparedContent | None = None,
        refers_to_reasoning: bool = False,
    ) -> str | None:
        """A model's answer; returns the message's id. With `refers_to_reasoning` the event says which message holds its
        reasoning, where it has some."""
        contents = self.contents
        fact = None if message is None else self._message_fact(message, text)
        has_reasoning = fact is not None and any(isinstance(part, ReasoningFact) for part in fact.parts)
        self.run.add(
            ModelResponse,
            correlation_id=correlation,
            request_id=UNSET if request is None else request,
            output=UNSET if fact is None else fact,
            usage=usage,
            model=UNSET if model is None else contents.named(model, "model"),
            finish_reason=UNSET if finish_reason is None else contents.named(finish_reason, "finish_reason"),
            latency_ms=checked_whole(latency_ms, "latency_ms"),
            reasoning_ref=fact.id if fact is not None and refers_to_reasoning and has_reasoning else UNSET,
        )
        return fact.id if fact else None

    def call(
        self,
        call: NewToolCall,
        correlation: str,
        *,
        requested_by: str | None = None,
        message: str | None = None,
        prepared: PreparedCall = UNPREPARED,
    ) -> tuple[str, str]:
        """The intent to run a tool; returns the event that a result will name, and the call id's reference."""
        contents = self.contents
        call_id = contents.put_text(prepared.id or call.id or self.append.ulids.mint(), "tool call id")
        event = self.run.add(
            ToolCallRequested,
            tool=contents.named(call.name, "tool name"),
            call_id=call_id,
            args=self._put_arguments(call) if prepared.arguments is None else contents.put_prepared(prepared.arguments),
            correlation_id=correlation,
            server=UNSET if call.server is None else contents.named(call.server, "server"),
            number=checked_whole(call.number, "tool number"),
            requested_by=UNSET if requested_by is None else EventRef(requested_by),
            message=UNSET if message is None else message,
        )
        return event, call_id

    def _put_arguments(self, call: NewToolCall) -> str:
        if _is_raw_json(call.arguments):
            return self.contents.put_bytes(call.arguments.encode())
        return self.contents.put_json(call.arguments, "arguments")

    def result(
        self,
        event: str,
        call_id: str,
        call: NewToolCall,
        correlation: str,
        spawned: str | None,
        prepared: PreparedCall = UNPREPARED,
        notes: ResultNotes = NO_NOTES,
        awaited: tuple[str, ...] = (),
    ) -> None:
        status = ToolCallStatus.OK if call.error is None else ToolCallStatus.ERROR
        if call.status:
            status = checked_member(ToolCallStatus, call.status, "status")
        sent, contents = notes.sent, self.contents
        put = contents.put_json if call.error is None else contents.put_text
        self.run.add(
            ToolResult,
            call=EventRef(event),
            call_id=call_id,
            status=status,
            correlation_id=correlation,
            result=self._result(call) if prepared.result is None else self.contents.put_prepared(prepared.result),
            error=UNSET if call.error is None else error_fact(self.contents, call.error),
            sent=UNSET if sent is None else put(sent.value, "sent result"),
            secret_rules=UNSET if sent is None else contents.named(sent.rules, "rules"),
            spawned=UNSET if spawned is None else spawned,
            awaited=awaited or UNSET,
            duration_ms=checked_whole(call.duration_ms, "duration_ms"),
            files=file_facts(self.contents, notes.files) or UNSET,
            lints=lint_facts(self.contents, notes.lints) or UNSET,
            untrusted=notes.is_untrusted or self.append.is_by_agent or UNSET,
        )

    def _result(self, call: NewToolCall) -> str | UnsetType:
        return UNSET if call.result is UNSET else self.contents.put_json(call.result, "result")

    def interruption(self, reason: InterruptionReason, open_calls: tuple[str, ...], *, goes_on: bool = False) -> None:
        affects = tuple(map(EventRef, open_calls))
        self.run.add(Interruption, reason=reason, affects=affects, goes_on=True if goes_on else UNSET)

    def finish(
        self,
        exit: RunExit,
        *,
        response: str | None = None,
        usage: Usage | UnsetType = UNSET,
        error: str | NewError | None = None,
        permissions_used: Any = None,
        summary: str | None = None,
    ) -> str:
        """The run's last event; its id is the thread digest. `summary` is the content that the turn was made for."""
        contents = self.contents
        summary_ref = UNSET if summary is None else ExtRef(contents.named(SUMMARY_KIND, "kind"), summary)
        return self.run.add(
            RunFinished,
            exit=exit,
            response=UNSET if response is None else response,
            usage=usage,
            error=UNSET if error is None else error_fact(self.contents, error),
            permissions_used=UNSET if permissions_used is None else contents.put_json(permissions_used, "permissions"),
            summary_ref=summary_ref,
        )

    def admitted(self, admission: MessageAdmitted) -> str:
        """A message of the session's inbox enters the history, with the very contents it was admitted with."""
        id = self.next_message_id()
        fact = MessageFact(
            id=id,
            role=MessageRole.USER,
            parts=admission.parts,
            source=admission.source,
            context=admission.context,
            metadata=admission.metadata,
            files=admission.files,
        )
        self.run.add(
            HistoryAppend, list=MAIN_LIST, message=fact, admitted=admission.message, untrusted=admission.untrusted
        )
        return id

    def next_message_id(self) -> str:
        """The k-th message of a turn is called `turn + k`."""
        if self.messages >= MESSAGE_ROOM - 1:
            raise InvalidInput(f"a turn holds at most {MESSAGE_ROOM - 1} messages", "finish it and begin another")
        self.messages += 1
        return offset(self.turn, self.messages)

    def _message_fact(self, message: NewMessage, text: PreparedContent | None) -> MessageFact:
        contents = self.contents
        id, source = self.next_message_id(), self._message_source(message)
        extra: dict[str, Any] = {}
        if message.parent is not None:
            extra["parent"] = self._known_message(message.parent)
        if message.model is not None:
            extra["model"] = contents.named(message.model, "model")
        config, context = message.thinking_config, message.context
        context = (
            context_beside(message) if context is None else context
        )  # whoever records a turn is taken at their word
        beside = (("thinking_config", config), ("context", context), ("metadata", message.metadata))
        for field, value in beside:
            if value is not None:
                extra[field] = contents.put_json(value, field)
        if message.files or message.lints or message.codeblocks:
            extra |= self.annotations(message)
        return MessageFact(
            id=id,
            role=checked_member(MessageRole, message.role, "role"),
            parts=self.parts(message.content if text is None else text),
            source=checked_member(MessageSource, source, "source") if source else UNSET,
            **extra,
        )

    def _message_source(self, message: NewMessage) -> MessageSource | None:
        """Who started a message. Nobody starts an answer: one that an agent gives has a source only where nothing else
        in its turn shows that the turn is not a person's."""
        source = self.append.message_source(message.source)
        if message.role == MessageRole.ASSISTANT and message.source is None and source is not None:
            return None if self._is_agents or is_marked_turn(self.append, self.turn) else source
        self._is_agents = self._is_agents or source == MessageSource.AGENT
        return source

    def _known_message(self, id: str) -> str:
        """The message that another one follows must be here: nobody else will bring it later."""
        message = checked_id(id, "parent message")
        if not is_message(self.append.sql, message):
            raise NotFound(
                "message", message, "`parent` names a message of this ledger; leave it out where there is none"
            )
        return message

    def parts(self, content: str | StoredContent | PreparedContent | tuple[Part, ...]) -> tuple[PartFact, ...]:
        if not isinstance(content, tuple):
            return (TextFact(text=self.contents.put_text(content)),)
        return tuple(map(self._part_fact, content))

    def _part_fact(self, part: Part) -> PartFact:
        contents = self.contents
        match part:
            case TextPart():
                return TextFact(text=contents.put_text(part.text))
            case ReasoningPart():
                return ReasoningFact(text=contents.put_text(part.text))
            case ImagePart():
                detail: Any = part.detail
                if detail is not UNSET and not isinstance(detail, str):
                    raise InvalidInput(f"detail is {type(detail).__name__}, not text", "give it as text")
                if detail is not UNSET and detail not in DETAILS:
                    detail = contents.words(detail)
                return ImageFact(url=contents.put_text(part.url), detail=detail)
            case ToolUsePart():
                name, arguments = contents.named(part.name, "tool name"), contents.put_json(part.input, "input")
                return ToolUseFact(id=contents.put_text(part.id), name=name, input=arguments)
            case ToolResultPart():
                if part.is_error is not UNSET and not isinstance(part.is_error, bool):
                    raise InvalidInput(f"is_error is {quoted(part.is_error)}", "it is true, false or left out")
                output = contents.put_json(part.output, "output")
                call = contents.put_text(part.tool_call_id)
                return ToolResultFact(tool_call_id=call, output=output, is_error=part.is_error)
            case _:
                raise InvalidInput(f"a part of a message is {type(part).__name__}", "give parts, such as TextPart")

    def annotations(self, message: NewMessage) -> dict[str, Any]:
        """Files, lints and code blocks of a message, where it has any."""
        text, named = self.contents.put_text, self.contents.named
        files, lints = file_facts(self.contents, message.files), lint_facts(self.contents, message.lints)
        blocks = tuple(
            CodeblockFact(
                content=text(block.content),
                language=UNSET if block.language is None else named(block.language, "language"),
                path=UNSET if block.path is None else text(block.path),
                **_line_fields(block, "line_start", "line_end"),
            )
            for block in checked_notes(message.codeblocks, Codeblock, "codeblocks")
        )
        annotations = {"files": files, "lints": lints, "codeblocks": blocks}
        return {name: facts for name, facts in annotations.items() if facts}


def checked_notes(value: Any, kind: type[T], what: str) -> Sequence[T]:
    """Notes of one kind, as many as a message carries."""
    if not isinstance(value, tuple | list) or not all(isinstance(note, kind) for note in value):
        raise InvalidInput(f"{what} are not a list of {kind.__name__}", f"give weft.{kind.__name__} records")
    if len(value) >= MESSAGE_ROOM:
        raise InvalidInput(f"a message carries at most {MESSAGE_ROOM - 1} {what}", "leave some out")
    return value


def file_facts(contents: ContentWriter, files: Sequence[FileNote]) -> tuple[FileFact, ...]:
    return tuple(
        FileFact(
            kind=checked_member(FileKind, file.kind, "kind"),
            path=contents.put_text(file.path, "file path"),
            **_line_fields(file, "line_start", "line_end"),
        )
        for file in checked_notes(files, FileNote, "files")
    )


def lint_facts(contents: ContentWriter, lints: Sequence[LintNote]) -> tuple[LintFact, ...]:
    text = contents.put_text
    return tuple(
        LintFact(
            path=UNSET if lint.path is None else text(lint.path),
            message=UNSET if lint.message is None else text(lint.message),
            source=UNSET if lint.source is None else contents.named(lint.source, "lint source"),
            severity=checked_member(LintSeverity, lint.severity, "severity") if lint.severity else UNSET,
            **_line_fields(lint, "start_line", "start_col", "end_line", "end_col"),
        )
        for lint in checked_notes(lints, LintNote, "lints")
    )


def error_fact(contents: ContentWriter, error: str | NewError) -> ErrorFact:
    error = NewError(message=error) if isinstance(error, str) else as_record(error, NewError, "error")
    details = UNSET if error.details is UNSET else contents.put_json(error.details, "error details")
    return ErrorFact(
        code=contents.named(error.code, "error code"),
        message=contents.put_text(error.message, "error"),
        details=details,
    )


def _line_fields(note: Any, *fields: str) -> dict[str, Any]:
    return {field: checked_whole(getattr(note, field), field) for field in fields}


def _is_raw_json(arguments: Any) -> bool:
    """Arguments that a provider sent as JSON text are kept to the letter."""
    if not isinstance(arguments, str) or not arguments.lstrip().startswith("{"):
        return False
    try:
        return isinstance(json_value(arguments.encode()), dict)
    except (ValueError, UnicodeEncodeError, RecursionError):
        return False


class RunConfig:
    """Under which circumstances a turn runs: who, as what, with which rights and configuration."""

    def __init__(
        self,
        *,
        role: str = "unified",
        reason: str | None = None,
        toolset: str | None = None,
        tools_available: Sequence[str] | None = None,
        permissions_granted: Any = None,
        thinking_config: Any = None,
        effective_config: Any = None,
        workspace: str | None = None,
        source_event_id: str | None = None,
    ) -> None:
        self.role = checked_member(AgentRole, role, "role")
        self.reason = None if reason is None else checked_member(RunReason, reason, "reason")
        if tools_available is not None and not isinstance(tools_available, list | tuple):
            raise InvalidInput(f"tools_available is {type(tools_available).__name__}", "it is a list of tool names")
        self.toolset, self.tools, self.permissions_granted = toolset, tools_available, permissions_granted
        self.thinking_config, self.effective_config = thinking_config, effective_config
        self.workspace, self.source_event_id = workspace, source_event_id

    def fields(self, contents: ContentWriter) -> dict[str, Any]:
        """The fields of `run_started`, only those that are known."""
        fields: dict[str, Any] = {"role": self.role}
        if self.reason is not None:
            fields["reason"] = self.reason
        if self.toolset is not None:
            fields["toolset"] = contents.named(self.toolset, "toolset")
        if self.tools is not None:
            fields["tools"] = tuple(contents.named(tool, "tool name") for tool in self.tools)
        for field in ("permissions_granted", "thinking_config", "effective_config"):
            if (value := getattr(self, field)) is not None:
                fields[field] = contents.put_json(value, field)
        if self.workspace is not None:
            fields["workspace"] = contents.put_text(self.workspace, "workspace")
        if self.source_event_id is not None:
            fields["source_event"] = contents.put_text(self.source_event_id, "source event id")
        return fields


# --- One writer at a time for whatever must not be written by two: a session, a turn without a session, an agent.
_TURN_KINDS = (LeaseKind.SESSION, LeaseKind.TURN)
"""Kinds whose purpose is a turn: it fails when its writer is gone."""


def free_epoch(
    append: Append, kind: LeaseKind, key: str, patience: LeasePatience, busy: Callable[[Lease], Conflict]
) -> int:
    """The epoch of what nobody holds, 0 where nobody ever did. Ends the lease of a dead or silent owner; raises what
    `busy` makes of any other."""
    lease = find_lease(append.sql, kind, key)
    if lease is None:
        return 0
    if lease.purpose is not None:
        if is_run_of_broker(append, lease) or not patience.judge_stale(lease):
            raise busy(lease)
        _abandon_lease(append, lease)
    return lease.epoch


def is_run_of_broker(append: Append, lease: Lease) -> bool:
    """Whether it is held for a turn that took messages of an inbox: that is never failed by another writer, for a
    broker goes on with it. One that was under way when this ledger was copied is gone on with in the origin."""
    if lease.kind != LeaseKind.SESSION or lease.purpose is None:
        return False
    turn = append.view.find_turn(lease.purpose)
    is_open = turn is not None and turn.inbox is not None and not turn.closed
    return is_open and turn is not None and turn.n > last_copied_event(append.sql)


def leave_run(append: Append, lease: Lease) -> None:
    """Nobody works on a broker's turn for now; it stays open, and any broker may go on with it."""
    append.sql.run("UPDATE lease SET owner = ? WHERE kind = ? AND key = ?", (NOBODY, lease.kind, lease.key))


def take(append: Append, kind: LeaseKind, key: str, epoch: int, owner: str, purpose: str) -> Lease:
    """Hold what is free at `epoch`, under the next one."""
    append.sql.run(
        "INSERT INTO lease(kind, key, owner, epoch, beat, purpose) VALUES (?, ?, ?, ?, 0, ?) ON CONFLICT (kind, key)"
        " DO UPDATE SET owner = excluded.owner, epoch = excluded.epoch, beat = 0, purpose = excluded.purpose",
        (kind.value, key, owner, epoch + 1, purpose),
    )
    append.view.memory.free_epochs.pop(key, None)
    return Lease(kind, key, owner, epoch + 1, 0, purpose)


def renew(append: Append, lease: Lease) -> None:
    """One more beat; raises LeaseLost where the lease was taken over or ended."""
    if not _is_current(append, lease):
        raise LeaseLost(lease.purpose or lease.key)
    append.sql.run("UPDATE lease SET beat = beat + 1 WHERE kind = ? AND key = ?", (lease.kind, lease.key))


def release(append: Append, lease: Lease) -> None:
    """End a lease that was renewed in this append."""
    end_lease(append, LeaseKind(lease.kind), lease.key)


def end_lease(append: Append, kind: LeaseKind, key: str) -> None:
    """Nobody holds it any more, whoever did. The row stays with its epoch, so that no later lease equals this one;
    that of a turn without a session was for this turn alone, and goes."""
    if kind is LeaseKind.TURN:
        append.sql.run("DELETE FROM lease WHERE kind = ? AND key = ?", (kind.value, key))
    else:
        append.sql.run("UPDATE lease SET purpose = NULL WHERE kind = ? AND key = ?", (kind.value, key))


def _is_current(append: Append, lease: Lease) -> bool:
    row = find_lease(append.sql, LeaseKind(lease.kind), lease.key)
    return row is not None and (row.owner, row.epoch, row.purpose) == (lease.owner, lease.epoch, lease.purpose)


def _abandon_lease(
    append: Append,
    lease: Lease,
    reason: InterruptionReason = InterruptionReason.CRASH,
    message: str = "its writer went silent",
) -> None:
    """End a lease whose holder will write no more, and fail the turn that it was held for."""
    if lease.kind in _TURN_KINDS and lease.purpose is not None:
        fail_abandoned(append, append.view.turn(lease.purpose), reason, message)
    end_lease(append, LeaseKind(lease.kind), lease.key)


def fail_abandoned(append: Append, turn: TurnRow, reason: InterruptionReason, message: str) -> None:
    """Close a turn whose writer is gone."""
    if turn.closed:
        return
    with append.by_the_ledger():
        turn_events = TurnEvents(
            append, turn.id, actor=turn.persona, prev=turn.digest, messages=turn.messages, scope=turn.root
        )
    turn_events.interruption(reason, open_calls(append, turn))
    turn_events.finish(RunExit.ERROR, error=NewError(code="lease_lost", message=message))


def open_calls(append: Append, turn: TurnRow) -> tuple[str, ...]:
    rows = append.sql.fetch_rows(
        "SELECT event FROM tool_call WHERE turn = ? AND outcome IS NULL ORDER BY seq", (turn.n,)
    )
    return tuple(bytes(event).hex() for (event,) in rows)


def sweep_dead(writer: LedgerWriter) -> int:
    """At start: end the leases whose owners are provably gone. Returns how many."""
    with writer.store.read() as txn:
        leases = held_leases(txn.sql)
    return sum(writer.write(partial(_sweep_lease, lease)) for lease in leases if is_dead(lease.owner))


def _sweep_lease(lease: Lease, append: Append) -> int:
    if not _is_current(append, lease) or is_run_of_broker(append, lease):
        return 0
    _abandon_lease(append, lease)
    append.seal()
    return 1


def give_up(writer: LedgerWriter) -> None:
    """At the end: end the leases that this ledger took and nobody released, so that others need not wait."""
    for lease in writer.give_all_up():
        writer.write(partial(_give_up, lease))


def _give_up(lease: Lease, append: Append) -> None:
    if not _is_current(append, lease):
        return
    if is_run_of_broker(append, lease):
        leave_run(append, lease)
        return
    _abandon_lease(append, lease, InterruptionReason.SHUTDOWN, "the ledger was closed")
    append.seal()


# --- Where a new turn goes: its session, its parent, the event it grows from, the compaction in effect.


class TurnPlacement(Struct, frozen=True):
    """A spot in the tree for one new turn."""

    session: SessionRow | None
    parent: TurnRow | None
    fork: ForkPoint | UnsetType
    compaction: str | UnsetType
    scope: int
    depth: int


ATTACHMENTS = "attachments"
"""The field of a message's context that says what was attached to it."""


def context_beside(message: NewMessage) -> Any:
    """What was put beside a message: the context that it was given, and the files that were attached, unless that
    context speaks of them itself or is no object."""
    given = {} if message.context is None else message.context
    files = checked_notes(message.files, FileNote, "files")
    attached = [note for note in files if note.kind == FileKind.ATTACHED]
    if not attached or not isinstance(given, dict) or ATTACHMENTS in given:
        return message.context
    return {**given, ATTACHMENTS: [_attachment_fields(note) for note in attached]}


def _attachment_fields(note: FileNote) -> dict[str, Any]:
    lines = {"line_start": note.line_start, "line_end": note.line_end}
    return {"path": note.path, **{name: line for name, line in lines.items() if line is not None}}


def find_place(
    append: Append, session: SessionRow | None, parent: str | UnsetType | None, expected: str | UnsetType | None
) -> TurnPlacement:
    """The head at this very moment, unless `parent` or `expected` pin it; a session elsewhere raises HeadMoved.

    A session that never had a head begins wherever `parent` says; a failed turn after the head can be continued.
    """
    if session is not None and session.lifecycle == "completed":
        raise NotApplicable(f"session {session.label!r} is completed", "fork it, or make a new session")
    if session is not None and session.lifecycle == "paused":
        raise NotApplicable(f"session {session.label!r} is paused", Action.RESUME_SESSION.of(session=session.label))
    pinned = parent if parent is not UNSET else expected
    followed = None if _goes_where_named(append, session, parent) else session
    if followed is not None and pinned is not UNSET and followed.head != pinned:
        raise HeadMoved(followed.label, pinned, followed.head)
    at = followed.head if followed else (None if pinned is UNSET else pinned)
    row = None if at is None else _turn_at(append, at, is_named=followed is None)
    events = followed.head_events if followed else None
    return TurnPlacement(
        session,
        row,
        UNSET if row is None else fork_point(append, row, events),
        compaction_for(session, row, events),
        _content_scope(append, row),
        row.depth + 1 if row else 1,
    )


def _goes_where_named(append: Append, session: SessionRow | None, parent: str | UnsetType | None) -> bool:
    """Whether no head of a session says where the turn goes, but its caller alone."""
    if session is None or (session.moves == 0 and parent is not UNSET):
        return True
    return _failed_after(append, session, parent)


def _turn_at(append: Append, turn: str, *, is_named: bool) -> TurnRow:
    """The head of a session that may be gone on with, or a turn that whoever records has named."""
    row = None if is_named else append.view.find_turn(turn)
    return load_parent(append, turn) if row is None else row


def _failed_after(append: Append, session: SessionRow, parent: str | UnsetType | None) -> bool:
    """A failed turn does not move the head, and may still be continued as a child: that is how it is retried."""
    turn = append.view.find_turn(parent) if isinstance(parent, str) else None
    while turn is not None and turn.status == "failed":
        if turn.parent == session.head:
            return grew_at(append.sql, turn) == session.head_events
        turn = None if turn.parent is None else append.view.find_turn(turn.parent)
    return False


def grew_at(sql: Sql, turn: TurnRow) -> int | None:
    """After how many of its parent's events a turn begins; None: after all of them."""
    row = sql.fetch_row("SELECT parent_events FROM segment WHERE n = ? AND base = ?", (turn.segment, turn.depth))
    return row[0] if row else None


def load_parent(append: Append, turn: str) -> TurnRow:
    row = append.view.find_turn(turn)
    if row is None:
        raise NotFound("turn", turn)
    append.access.ensure_readable_turn(row, turn)
    return row


def fork_point(append: Append, turn: TurnRow, events: int | None) -> ForkPoint:
    """A turn stands for its last event at this moment, unless a session's head stands inside it."""
    if events is None:
        return ForkPoint(turn.id, turn.digest)
    return ForkPoint(turn.id, event_at(append.txn.facts, turn, events - 1))


def compaction_for(session: SessionRow | None, parent: TurnRow | None, events: int | None) -> str | UnsetType:
    """What a session chose, else what its parent ran under; a compaction turn puts itself into effect once its first
    event, the start, has been followed by the summary."""
    if session is not None and session.compaction is not None:
        return session.compaction or UNSET
    if parent is None:
        return UNSET
    if parent.type == TurnType.COMPACTION and events != 1:
        return parent.id
    return parent.compaction or UNSET


def _content_scope(append: Append, parent: TurnRow | None) -> int:
    """Contents are shared within a tree; a new root's tree is numbered like its first segment."""
    return _next_scope(append.sql) if parent is None else parent.root


def _next_scope(sql: Sql) -> int:
    (highest,) = sql.fetch_row("SELECT max(n) FROM segment") or (0,)
    return (highest or 0) + 1


def scope_in_database(writer: LedgerWriter, session: str | None, parent: str | UnsetType | None) -> int:
    """The tree that a turn will most likely belong to, by the rows of the database: large contents are stored there
    before the turn is placed. Should it belong to another one, they are stored there again."""
    with writer.store.read() as txn:
        session_row = find_session(txn.sql, session) if session else None
        at = parent if isinstance(parent, str) else session_row.head if session_row else None
        row = load_turn(txn.sql, at) if at else None
        return row.root if row else _next_scope(txn.sql)


def ensure_session(append: Append, label: str, persona: str = DEFAULT_AGENT) -> SessionRow:
    """Label, then alias, then the beginning of an imported label, then routing key, then a new session; the id of a
    session means that one. `persona:NAME` is the key of an agent's main session, also before its first use."""
    session = find_by_name(append.view, label) or _find_shortened(append, label) or _find_routed(append, label)
    if session is None and (agent := agent_of_key(append, label)) is not None:
        return ensure_session(append, main_session(agent), agent)
    if session is not None:
        if not append.authority.is_unlimited:
            _ensure_allowed(append, session, label)
        if session.status != SessionStatus.ACTIVE:
            raise NotApplicable(f"session {label!r} is {session.status}", "make it active again first, or fork it")
        return session
    if not append.authority.is_unlimited:
        ensure_label_free(append, label)
    return create_session(append, label, persona=persona)


def _find_shortened(append: Append, label: str) -> SessionRow | None:
    """By the beginning of an imported label. The row is that of the views, which alone may be changed."""
    found = find_shortened(append.sql, label, append.access.may_read)
    return None if found is None else append.view.session(found.id)


DIRECT_KEY = "dm:"
"""What the label and the routing key of a session begin with that is somebody's who came by a channel."""
MAIN_KEY = "persona:"
"""What the routing key of an agent's main session begins with."""


def main_session(agent: str) -> str:
    """The label of the session that an agent, by its name, has for whatever belongs to no other one."""
    return f"{agent}:main"


def agent_of_key(append: Append, key: str) -> str | None:
    """The agent whose main session a routing key names, by its name; None where it names none that may be asked."""
    name = key.removeprefix(MAIN_KEY)
    id = None if name == key else agent_id(append.sql, name)
    program = None if id is None else load_program(append.sql, id)
    if program is None or program.deleted or program.kind != ProgramKind.AGENT:
        return None
    append.access.ensure_agent(program.id, name)
    return program.name


def _find_routed(append: Append, key: str) -> SessionRow | None:
    """By its routing key; one that several sessions share names none of them."""
    contents = append.txn.facts.find_bytes(LEDGER_SCOPE, text_bytes(key))
    rows = rows_in(append.sql, f"{SESSION.select} WHERE routing IS NOT NULL AND routing IN", contents)
    routed = [row for row in (SessionRow(*values) for values in rows) if row.status != SessionStatus.DELETED]
    readable = [row for row in routed if append.access.may_read(row)]
    return append.view.session(readable[0].id) if len(readable) == 1 else None


def ensure_label_free(append: Append, label: str, own: SessionRow | None = None) -> None:
    """Refuse a name that leads to another session than the `own` one, also the beginning of a label that lists cut
    short there: whoever types what a list shows must reach what it showed. Sessions that whoever gives the name cannot
    read have their names, too."""
    if (namesake := find_by_name(append.view, label)) is not None:
        if own is None or namesake.id != own.id:
            raise label_taken(append, label, namesake)
        return
    try:
        shown = find_shortened(append.sql, label, lambda _: True)
    except AmbiguousName:  # lists show none of these by so little
        return
    if shown is not None and (own is None or shown.id != own.id):
        if not append.access.may_read(shown):
            raise LabelTaken(label, "a session")
        raise LabelTaken(label, f"the beginning of {shown.label!r}, by which lists show that session")


def label_taken(append: Append, name: str, by: SessionRow) -> LabelTaken:
    """Of a session that cannot be read it says no more than that the label is taken."""
    if name == by.label or not append.access.may_read(by):
        return LabelTaken(name, "a session")
    return LabelTaken(name, f"{'the id' if name == by.id else 'an alias'} of {by.label!r}")


def _ensure_allowed(append: Append, session: SessionRow, label: str) -> None:
    """Refuse to go on in a session of somebody else; of one that cannot be read it is said that its label is taken."""
    if not append.access.may("turn:record", session) and not append.access.may_read(session):
        raise LabelTaken(label, "a session")
    append.access.ensure("turn:record", session, label)
    append.access.ensure_session_agent(session)


def ensure_spawned(append: Append, label: str, turn: str, call_id: str, persona: str) -> SessionRow:
    """The session that a tool call started; a new one knows its parents, and belongs to the agent that spawned it."""
    if find_by_name(append.view, label) is not None or _is_shown(append, label):
        return ensure_session(append, label)
    row = append.view.turn(turn)
    parent = None if row.session is None else append.view.session_of_number(row.session)
    return create_session(
        append,
        label,
        persona=persona,
        parent_session=parent.id if parent else UNSET,
        parent_turn=turn,
        spawn_tool_call=call_id,
    )


def _is_shown(append: Append, label: str) -> bool:
    """Whether lists show an imported session so."""
    try:
        return _find_shortened(append, label) is not None
    except AmbiguousName:
        return False


def create_session(
    append: Append,
    label: str,
    *,
    persona: str = DEFAULT_AGENT,
    actor: str | None = None,
    **fields: str | EventRef | UnsetType,
) -> SessionRow:
    """A session without a head yet, made by its persona or by somebody for it. `fields` are references and ids of
    `session_created`."""
    append.authority.ensure_allowed("session:create")
    agent, session = append.agent(persona), append.ulids.mint()
    if "routing_key" not in fields and (key := _own_key(append, label, agent)) is not None:
        fields["routing_key"] = append.ledger_contents.put_text(key, "routing key")
    append.stream(session_stream(session), None, actor or agent).add(
        SessionCreated, label=append.ledger_contents.put_text(label, "label"), persona=agent, **fields
    )
    return append.view.session(session)


def _own_key(append: Append, label: str, agent: str) -> str | None:
    """The routing key of a session that is made as the main one of its agent, or for somebody who came by a channel;
    None for every other one."""
    if label.startswith(DIRECT_KEY):
        return label
    if not label.endswith(main_session("")):
        return None
    program = load_program(append.sql, agent)
    is_main = program is not None and program.kind == ProgramKind.AGENT and label == main_session(program.name)
    return f"{MAIN_KEY}{program.name}" if program is not None and is_main else None


def ensure_free(append: Append, session: SessionRow, patience: LeasePatience) -> int:
    """The epoch of a session that nobody holds. Takes it from a dead or silent owner; raises SessionBusy otherwise."""
    epochs = append.view.memory.free_epochs
    epoch = epochs.get(session.id)
    if epoch is None:
        epoch = epochs[session.id] = free_epoch(
            append,
            LeaseKind.SESSION,
            session.id,
            patience,
            lambda lease: SessionBusy(session.label, lease.purpose or "", lease.owner),
        )
    return epoch
