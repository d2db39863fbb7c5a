"""The second pass: the events of one turn of Copilot CLI, mapped to what the ledger takes.

A tool call is asked for in a response, and begins and ends in events of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from msgspec import UNSET, field
from msgspec.structs import replace

from weft.exchange.importers.copilot_cli.index import compaction_usage, tokens_of
from weft.exchange.importers.port import NativeCall, NativeMessage, Tokens
from weft.exchange.importers.records.builder import PendingCall, TurnBuilder
from weft.exchange.importers.records.file_notes import patched_paths, written_notes
from weft.exchange.importers.records.planned_turns import Entry
from weft.exchange.importers.records.values import (
    global_name,
    mapping,
    millis,
    object_in_text,
    present,
    sequence,
    text,
    whole,
)
from weft.kernel.enums import FileKind, MessageRole, MessageSource, ToolCallStatus
from weft.ledger.model import FileNote, ImagePart, Part, ReasoningPart, TextPart

FAILURES = {
    "timeout": ToolCallStatus.TIMEOUT,
    "rejected": ToolCallStatus.CANCELED,
    "denied": ToolCallStatus.CANCELED,
    "cancelled": ToolCallStatus.CANCELED,
    "canceled": ToolCallStatus.CANCELED,
    "aborted": ToolCallStatus.INTERRUPTED,
    "interrupted": ToolCallStatus.INTERRUPTED,
}
READERS = frozenset({"view", "read_file", "show_file"})
WRITERS = frozenset({"edit", "create", "write", "str_replace", "insert"})
SEARCHERS = frozenset({"rg", "grep", "glob"})
EDITOR = "str_replace_editor"


class Call(PendingCall, kw_only=True):
    server: str | None = None

    outcome: dict[str, Any] | None = None
    """The event with the tool's outcome."""

    def finished(self) -> NativeCall:
        diff = shown(self.outcome)
        self.result, self.error, self.status = outcome_of(self.outcome)
        self.detail = present(shown=diff, server=self.server, code=_code(self.outcome))
        is_well = self.status is ToolCallStatus.OK
        self.files = files(self.name, self.arguments, mapping(self.arguments), diff) if is_well else ()
        return super().finished()


def outcome_of(outcome: dict[str, Any] | None) -> tuple[Any, str | None, ToolCallStatus | None]:
    if outcome is None:
        return UNSET, None, None
    result = outcome.get("result")
    content = mapping(result).get("content", result)
    if outcome.get("success") is not False:
        return UNSET if content is None else content, None, ToolCallStatus.OK
    failure = mapping(outcome.get("error"))
    error = text(failure.get("message")) or text(outcome.get("error"))
    if error is None:
        error, content = (content if isinstance(content, str) else "failed"), None
    status = FAILURES.get(text(failure.get("code")) or "", ToolCallStatus.ERROR)
    return UNSET if content is None else content, error, status


def _code(outcome: dict[str, Any] | None) -> str | None:
    return text(mapping(mapping(outcome).get("error")).get("code"))


def shown(outcome: dict[str, Any] | None) -> str | None:
    """What the person was shown, where it is not what the model was given: a diff, for one."""
    result = mapping(mapping(outcome).get("result"))
    detailed = text(result.get("detailedContent"))
    return detailed if detailed != result.get("content") else None


def files(name: str, raw_arguments: Any, arguments: dict[str, Any], diff: str | None) -> tuple[FileNote, ...]:
    if name == "apply_patch":
        named = text(arguments.get("input")) or text(arguments.get("patch")) or ""
        patch = raw_arguments if isinstance(raw_arguments, str) else named
        return tuple(FileNote(kind=FileKind.WRITTEN, path=path) for path in patched_paths(patch))
    path = text(arguments.get("path")) or text(arguments.get("file_path"))
    command = text(arguments.get("command")) if name == EDITOR else name
    if path is None:
        paths = arguments.get("paths")
        path = text(paths) if name in SEARCHERS else None
    if path is None:
        return ()
    if command in READERS:
        lines = [whole(line) for line in sequence(arguments.get("view_range"))]
        start, end = (lines[0], lines[1]) if len(lines) == 2 else (None, None)
        return (FileNote(kind=FileKind.READ, path=path, line_start=start, line_end=end if (end or 0) > 0 else None),)
    if command in WRITERS:
        return written_notes(path, diff)
    return (FileNote(kind=FileKind.REFERENCED, path=path),) if command in SEARCHERS else ()


RESPONSE_FIELDS = ("phase", "apiCallId", "requestId", "chunkIndex", "chunkCount")


class CopilotBuilder(TurnBuilder, kw_only=True):
    """A turn of Copilot CLI, event by event."""

    session: str
    is_subagent: bool
    agents: frozenset[str]
    """Calls that started a subagent."""
    model: str | None
    """In effect, for responses of versions that do not name it."""
    rests: Iterator[dict[str, Tokens]]
    """What the session cost beside what its responses told, for each time it ended."""
    calls: dict[str, Call] = field(default_factory=dict)
    thinking: list[str] = field(default_factory=list)
    permissions: dict[str, dict[str, Any]] = field(default_factory=dict)
    notes: dict[str, Any] = field(default_factory=dict)
    compaction: dict[str, Any] = field(default_factory=dict)

    def take(self, entry: Entry, value: dict[str, Any]) -> None:
        self.note_time(value.get("timestamp"))
        TAKERS[entry.kind](self, value, mapping(value.get("data")))

    def prompt(self, event: dict[str, Any], data: dict[str, Any]) -> None:
        typed, sent = text(data.get("content")), text(data.get("transformedContent"))
        source = text(data.get("source"))
        is_event = typed is None or (source is not None and source != "user")
        person = MessageSource.AGENT if self.is_subagent else MessageSource.HUMAN
        words = typed or sent
        images, files = attached(data.get("attachments"))
        parts: list[Part] = [TextPart(words)] if words else []
        item = self._message(
            event,
            data,
            MessageRole.USER,
            [*parts, *images],
            source=MessageSource.EVENT if is_event else person,
            context=present(sent=sent if typed and sent != typed else None),
            metadata=present(
                source=source,
                delivery=data.get("delivery"),
                mode=data.get("agentMode"),
                attachments=data.get("attachments"),
            ),
            files=files,
        )
        self.add(["user", text(event.get("id")), typed, sent, [image.url for image in images]], item)

    def task(self, call: str, words: str) -> None:
        """What a subagent was asked to do, where only the call that started it says so."""
        item = NativeMessage(role=MessageRole.USER, parts=(TextPart(words),), source=MessageSource.AGENT)
        self.add(["task", call, words], item)

    def system(self, event: dict[str, Any], data: dict[str, Any]) -> None:
        self._words(event, data, MessageRole.SYSTEM, "system")

    def injected(self, event: dict[str, Any], data: dict[str, Any]) -> None:
        metadata = present(kind=data.get("kind"), skill=data.get("name"), path=data.get("path"))
        self._words(event, data, MessageRole.USER, "notification", metadata=metadata)

    def _words(self, event: dict[str, Any], data: dict[str, Any], role: MessageRole, name: str, **more: Any) -> None:
        words = text(data.get("content")) or ""
        parts: list[Part] = [TextPart(words)] if words else []
        item = self._message(event, data, role, parts, source=MessageSource.EVENT, **more)
        self.add([name, text(event.get("id")), words], item)

    def reasoning(self, event: dict[str, Any], data: dict[str, Any]) -> None:
        words = text(data.get("content"))
        self.add_identity("reasoning", text(event.get("id")), words)
        if words is not None:
            self.thinking.append(words)

    def response(self, event: dict[str, Any], data: dict[str, Any]) -> None:
        own, words, model = (
            text(data.get("reasoningText")),
            text(data.get("content")),
            text(data.get("model")) or self.model,
        )
        thoughts = [*self.thinking, *([own] if own and own not in self.thinking else [])]
        self.thinking = []
        parts: list[Part] = [*map(ReasoningPart, thoughts), *([TextPart(words)] if words else [])]
        output = whole(data.get("outputTokens"))
        requests = [request for request in sequence(data.get("toolRequests")) if isinstance(request, dict)]
        item = self._message(
            event,
            data,
            MessageRole.ASSISTANT,
            parts,
            model=model,
            tokens=None if output is None else Tokens(output=output),
            metadata=present(**{name: data[name] for name in RESPONSE_FIELDS if data.get(name) is not None}),
        )
        identities = [[asked.get("toolCallId"), asked.get("name"), asked.get("arguments")] for asked in requests]
        self.add(["assistant", item.native, words, thoughts, identities], item)
        for request in requests:
            self._call(request.get("toolCallId"), request.get("name"), request)
        self.error, self.is_interrupted = None, False

    def begun(self, event: dict[str, Any], data: dict[str, Any]) -> None:
        """A call that no response asked for (a person did) stands here."""
        call = self._call(data.get("toolCallId"), data.get("toolName"), data)
        call.at = call.at or millis(event.get("timestamp"))
        self.add_identity("begun", call.id)

    def ended(self, event: dict[str, Any], data: dict[str, Any]) -> None:
        call = self._call(data.get("toolCallId"), data.get("toolName"), data)
        call.outcome, call.done = data, millis(event.get("timestamp"))
        result = mapping(data.get("result")).get("content", data.get("result"))
        self.add_identity("ended", call.id, data.get("success") is not False, result, data.get("error"))

    def _call(self, id: Any, name: Any, fields: dict[str, Any]) -> Call:
        call = self.calls.get(text(id) or "")
        if call is not None:
            call.name = call.name or text(name) or ""
            call.arguments = object_in_text(fields.get("arguments")) if call.arguments is None else call.arguments
            call.server = call.server or text(fields.get("mcpServerName"))
            return call
        call = Call(id=text(id) or "", name=text(name) or "", arguments=object_in_text(fields.get("arguments")))
        call.server = text(fields.get("mcpServerName"))
        call.spawned = f"{self.session}/{call.id}" if call.id in self.agents else None
        self.calls[call.id] = call
        self.items.append(call)
        return call

    def counted(self, event: dict[str, Any], data: dict[str, Any]) -> None:
        """All that the response before it cost."""
        for number in range(len(self.items) - 1, -1, -1):
            item = self.items[number]
            if isinstance(item, NativeMessage) and item.role is MessageRole.ASSISTANT:
                tokens = tokens_of({"outputTokens": item.tokens.output if item.tokens else None, **data})
                self.items[number] = replace(item, tokens=tokens, model=item.model or text(data.get("model")))
                return

    def ended_session(self, event: dict[str, Any], data: dict[str, Any]) -> None:
        """What the session cost beside what its responses told: a message without words, for each model."""
        self.add_identity("shutdown", text(event.get("id")))
        for number, (model, tokens) in enumerate(next(self.rests, {}).items()):
            metadata = {"notice": "what the session cost beside the output of its responses"}
            item = self._message(event, {}, MessageRole.SYSTEM, [], source=MessageSource.EVENT, metadata=metadata)
            self.items.append(replace(item, native=f"{item.native}#{number}", model=model, tokens=tokens))

    def failed(self, event: dict[str, Any], data: dict[str, Any]) -> None:
        self.error = text(data.get("message")) or "error"
        metadata = present(notice="error", type=data.get("errorType"), status=data.get("statusCode"))
        item = self._message(
            event, data, MessageRole.SYSTEM, [TextPart(self.error)], source=MessageSource.EVENT, metadata=metadata
        )
        self.add(["error", text(event.get("id")), self.error], item)

    def aborted(self, event: dict[str, Any], data: dict[str, Any]) -> None:
        self.is_interrupted = True
        self.add_identity("abort", text(event.get("id")))
        self.notes["abort"] = data.get("reason")

    def permission(self, event: dict[str, Any], data: dict[str, Any]) -> None:
        id = text(data.get("requestId")) or text(event.get("id")) or ""
        request, result = mapping(data.get("permissionRequest")), mapping(data.get("result"))
        permission = self.permissions.setdefault(id, {})
        call = text(data.get("toolCallId")) or text(request.get("toolCallId"))
        permission |= present(call=call, kind=request.get("kind"), result=result.get("kind")) or {}

    def truncated(self, event: dict[str, Any], data: dict[str, Any]) -> None:
        self.notes.setdefault("truncations", []).append(data)

    def completed(self, event: dict[str, Any], data: dict[str, Any]) -> None:
        self.notes["task_complete"] = data

    def compacted(self, event: dict[str, Any], data: dict[str, Any]) -> None:
        if data.get("success") is False:
            self.notes.setdefault("failed_compactions", []).append(present(error=data.get("error")))
            return
        self.compaction = data
        summary = text(data.get("summaryContent")) or ""
        model, used = compaction_usage(data)
        tokens = tokens_of(used) if used else None
        parts: list[Part] = [TextPart(summary)] if summary else []
        item = self._message(event, {}, MessageRole.ASSISTANT, parts, model=model, tokens=tokens)
        self.add(["compaction", text(event.get("id")), summary], item)

    def _message(
        self, event: dict[str, Any], data: dict[str, Any], role: MessageRole, parts: list[Part], **more: Any
    ) -> NativeMessage:
        id, when = text(data.get("messageId")) or text(event.get("id")), event.get("timestamp")
        at = millis(when)
        return NativeMessage(
            role=role,
            parts=tuple(parts),
            native=None if id is None else global_name(self.session, id),
            at=at,
            literal_time=text(when) if at is None else None,
            **more,
        )


def attached(value: Any) -> tuple[list[ImagePart], tuple[FileNote, ...]]:
    """Files, folders and selections that a prompt carries, and the images whose bytes are here."""
    images, notes = [], []
    for attachment in map(mapping, sequence(value)):
        data, mime = text(attachment.get("data")), text(attachment.get("mimeType"))
        if data is not None and mime is not None and mime.startswith("image/"):
            images.append(ImagePart(f"data:{mime};base64,{data}"))
        path = text(attachment.get("path")) or text(attachment.get("filePath"))
        lines = mapping(attachment.get("selection"))
        start, end = whole(mapping(lines.get("start")).get("line")), whole(mapping(lines.get("end")).get("line"))
        if path is not None:
            first, last = (None, None) if start is None else (start + 1, None if end is None else end + 1)
            notes.append(FileNote(kind=FileKind.ATTACHED, path=path, line_start=first, line_end=last))
    return images, tuple(notes)


TAKERS: dict[str, Callable[[CopilotBuilder, dict[str, Any], dict[str, Any]], None]] = {
    "user.message": CopilotBuilder.prompt,
    "system.message": CopilotBuilder.system,
    "system.notification": CopilotBuilder.injected,
    "skill.invoked": CopilotBuilder.injected,
    "assistant.message": CopilotBuilder.response,
    "assistant.reasoning": CopilotBuilder.reasoning,
    "assistant.usage": CopilotBuilder.counted,
    "tool.user_requested": CopilotBuilder.begun,
    "tool.execution_start": CopilotBuilder.begun,
    "tool.execution_complete": CopilotBuilder.ended,
    "abort": CopilotBuilder.aborted,
    "session.error": CopilotBuilder.failed,
    "session.shutdown": CopilotBuilder.ended_session,
    "session.truncation": CopilotBuilder.truncated,
    "session.task_complete": CopilotBuilder.completed,
    "permission.requested": CopilotBuilder.permission,
    "permission.completed": CopilotBuilder.permission,
    "session.compaction_complete": CopilotBuilder.compacted,
}
