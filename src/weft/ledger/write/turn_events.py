"""The events of one turn, recorded at once or step by step.

`TurnEvents` chains the events of a run and stores their contents; it looks at views only for the parent of a message,
and for who acts. Contents that were encoded and hashed before the writers' lock was taken come along as `Prepared`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

from msgspec import UNSET, Struct, UnsetType

from weft.kernel.clock import offset
from weft.kernel.contents import Prepared, json_value
from weft.kernel.dag_events import (
    HistoryAppend,
    Interruption,
    ModelRequest,
    ModelResponse,
    RunFinished,
    RunStarted,
    ToolCallRequested,
    ToolResult,
)
from weft.kernel.enums import (
    AgentRole,
    FileKind,
    ImageDetail,
    InterruptionReason,
    LintSeverity,
    MessageRole,
    MessageSource,
    RunExit,
    RunReason,
    ToolCallStatus,
    TurnType,
)
from weft.kernel.errors import InvalidInput, NotFound
from weft.kernel.events import run_stream
from weft.kernel.fields import (
    CodeblockFact,
    ErrorFact,
    EventRef,
    ExtRef,
    FileFact,
    ForkPoint,
    ImageFact,
    LintFact,
    MessageFact,
    PartFact,
    ReasoningFact,
    RequestInput,
    TextFact,
    ToolResultFact,
    ToolUseFact,
    Usage,
)
from weft.kernel.ledger_events import MessageAdmitted
from weft.kernel.weft_error import quoted
from weft.ledger.arguments import as_record, checked_id, checked_member, checked_whole
from weft.ledger.model import (
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
from weft.ledger.views.rows import is_message
from weft.ledger.write.append import MESSAGE_ROOM, Append, ContentWriter

DETAILS = frozenset(detail.value for detail in ImageDetail)
T = TypeVar("T")
MAIN_LIST = "main"
SUMMARY_KIND = "content"
"""The kind of a reference to a summary: a content of the ledger."""


class PreparedCall(Struct, frozen=True):
    """The contents of a tool call that were encoded and hashed ahead."""

    id: Prepared | None = None
    arguments: Prepared | None = None
    result: Prepared | None = None


UNPREPARED = PreparedCall()


class ResultNotes(Struct, frozen=True, kw_only=True):
    """What a tool did beside its result: files and lints, and whether a stranger may have written the result."""

    files: tuple[FileNote, ...] = ()
    lints: tuple[LintNote, ...] = ()
    is_untrusted: bool = False
    sent: SentResult | None = None


NO_NOTES = ResultNotes()


class TurnEvents:
    """Adds one run's events to an append, numbering its messages. Its contents belong to the tree `scope`."""

    def __init__(
        self, append: Append, turn: str, *, actor: str, scope: int, prev: str | None = None, messages: int = 0
    ) -> None:
        self.append, self.turn, self.messages = append, turn, messages
        self.contents = append.contents_of(scope)
        self.run = append.stream(run_stream(turn), prev, actor, later=True)

    def start(
        self,
        *,
        fork: ForkPoint | UnsetType,
        session: str | UnsetType,
        compaction: str | UnsetType,
        turn_type: TurnType,
        setting: Setting,
    ) -> str:
        return self.run.add(
            RunStarted,
            fork=fork,
            session=session,
            compaction=compaction,
            turn_type=turn_type,
            **setting.fields(self.contents),
        )

    def message(self, message: NewMessage, listed: str = MAIN_LIST, text: Prepared | None = None) -> str:
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
        text: Prepared | None = None,
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
            args=self._arguments(call) if prepared.arguments is None else contents.put_prepared(prepared.arguments),
            correlation_id=correlation,
            server=UNSET if call.server is None else contents.named(call.server, "server"),
            number=checked_whole(call.number, "tool number"),
            requested_by=UNSET if requested_by is None else EventRef(requested_by),
            message=UNSET if message is None else message,
        )
        return event, call_id

    def _arguments(self, call: NewToolCall) -> str:
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

    def interruption(self, reason: InterruptionReason, open_calls: tuple[str, ...]) -> None:
        self.run.add(Interruption, reason=reason, affects=tuple(map(EventRef, open_calls)))

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

    def _message_fact(self, message: NewMessage, text: Prepared | None) -> MessageFact:
        contents = self.contents
        id, source = self.next_message_id(), self.append.message_source(message.source)
        extra: dict[str, Any] = {}
        if message.parent is not None:
            extra["parent"] = self._known_message(message.parent)
        if message.model is not None:
            extra["model"] = contents.named(message.model, "model")
        for field in ("thinking_config", "context", "metadata"):
            if (value := getattr(message, field)) is not None:
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

    def _known_message(self, id: str) -> str:
        """The message that another one follows must be here: nobody else will bring it later."""
        message = checked_id(id, "parent message")
        if not is_message(self.append.sql, message):
            raise NotFound(
                "message", message, "`parent` names a message of this ledger; leave it out where there is none"
            )
        return message

    def parts(self, content: str | StoredContent | Prepared | tuple[Part, ...]) -> tuple[PartFact, ...]:
        if not isinstance(content, tuple):
            return (TextFact(text=self.contents.put_text(content)),)
        return tuple(map(self._part, content))

    def _part(self, part: Part) -> PartFact:
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
                **_lines(block, "line_start", "line_end"),
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
            **_lines(file, "line_start", "line_end"),
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
            **_lines(lint, "start_line", "start_col", "end_line", "end_col"),
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


def _lines(note: Any, *fields: str) -> dict[str, Any]:
    return {field: checked_whole(getattr(note, field), field) for field in fields}


def _is_raw_json(arguments: Any) -> bool:
    """Arguments that a provider sent as JSON text are kept to the letter."""
    if not isinstance(arguments, str) or not arguments.lstrip().startswith("{"):
        return False
    try:
        return isinstance(json_value(arguments.encode()), dict)
    except (ValueError, UnicodeEncodeError, RecursionError):
        return False


class Setting:
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
