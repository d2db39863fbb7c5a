"""Making turns of the events that the index has put together."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace

from weft.exchange.importers.copilot_cli import usage
from weft.exchange.importers.copilot_cli.calls import Call, arguments_of
from weft.exchange.importers.copilot_cli.index import own_name
from weft.exchange.importers.transcript import Item, NativeMessage, Tokens
from weft.exchange.importers.values import canonical, mapping, millis, present, sequence, text, whole
from weft.kernel.enums import FileKind, MessageRole, MessageSource
from weft.ledger.model import FileNote, ImagePart, Part, ReasoningPart, TextPart

BESIDE = ("phase", "apiCallId", "requestId", "chunkIndex", "chunkCount")


class Making(Struct):
    """A turn under way."""

    session: str
    is_subagent: bool
    agents: frozenset[str]
    """Calls that started a subagent."""
    model: str | None
    """In effect, for responses of versions that do not name it."""
    rests: Iterator[dict[str, Tokens]]
    """What the session cost beside what its responses told, for each time it ended."""
    items: list[NativeMessage | Call] = field(default_factory=list)
    calls: dict[str, Call] = field(default_factory=dict)
    records: list[bytes] = field(default_factory=list)
    times: list[int] = field(default_factory=list)
    thinking: list[str] = field(default_factory=list)
    permissions: dict[str, dict[str, Any]] = field(default_factory=dict)
    notes: dict[str, Any] = field(default_factory=dict)
    compaction: dict[str, Any] = field(default_factory=dict)
    error: str | None = None
    is_interrupted: bool = False

    def take(self, kind: str, event: dict[str, Any]) -> None:
        """One event more."""
        if (when := millis(event.get("timestamp"))) is not None:
            self.times.append(when)
        TAKERS[kind](self, event, mapping(event.get("data")))

    def finished(self) -> tuple[Item, ...]:
        return tuple(item.made(self.session) if isinstance(item, Call) else item for item in self.items)

    def prompt(self, event: dict[str, Any], data: dict[str, Any]) -> None:
        typed, sent = text(data.get("content")), text(data.get("transformedContent"))
        source = text(data.get("source"))
        is_event = typed is None or (source is not None and source != "user")
        person = MessageSource.AGENT if self.is_subagent else MessageSource.HUMAN
        words = typed or sent
        images, files = attached(data.get("attachments"))
        parts: list[Part] = [TextPart(words)] if words else []
        made = self._message(
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
        self._add(["user", text(event.get("id")), typed, sent, [image.url for image in images]], made)

    def task(self, call: str, words: str) -> None:
        """What a subagent was asked to do, where only the call that started it says so."""
        made = NativeMessage(role=MessageRole.USER, parts=(TextPart(words),), source=MessageSource.AGENT)
        self._add(["task", call, words], made)

    def system(self, event: dict[str, Any], data: dict[str, Any]) -> None:
        self._words(event, data, MessageRole.SYSTEM, "system")

    def injected(self, event: dict[str, Any], data: dict[str, Any]) -> None:
        told = present(kind=data.get("kind"), skill=data.get("name"), path=data.get("path"))
        self._words(event, data, MessageRole.USER, "notification", metadata=told)

    def _words(self, event: dict[str, Any], data: dict[str, Any], role: MessageRole, name: str, **more: Any) -> None:
        words = text(data.get("content")) or ""
        parts: list[Part] = [TextPart(words)] if words else []
        made = self._message(event, data, role, parts, source=MessageSource.EVENT, **more)
        self._add([name, text(event.get("id")), words], made)

    def reasoning(self, event: dict[str, Any], data: dict[str, Any]) -> None:
        words = text(data.get("content"))
        self.records.append(canonical(["reasoning", text(event.get("id")), words]))
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
        asked = [request for request in sequence(data.get("toolRequests")) if isinstance(request, dict)]
        made = self._message(
            event,
            data,
            MessageRole.ASSISTANT,
            parts,
            model=model,
            tokens=None if output is None else Tokens(output=output),
            metadata=present(**{name: data[name] for name in BESIDE if data.get(name) is not None}),
        )
        told = [[each.get("toolCallId"), each.get("name"), each.get("arguments")] for each in asked]
        self._add(["assistant", made.native, words, thoughts, told], made)
        for request in asked:
            self._call(request.get("toolCallId"), request.get("name"), request)
        self.error, self.is_interrupted = None, False

    def begun(self, event: dict[str, Any], data: dict[str, Any]) -> None:
        """A call that no response asked for (a person did) stands here."""
        call = self._call(data.get("toolCallId"), data.get("toolName"), data)
        call.began = call.began or millis(event.get("timestamp"))
        self.records.append(canonical(["begun", call.id]))

    def ended(self, event: dict[str, Any], data: dict[str, Any]) -> None:
        call = self._call(data.get("toolCallId"), data.get("toolName"), data)
        call.outcome, call.done = data, millis(event.get("timestamp"))
        result = mapping(data.get("result")).get("content", data.get("result"))
        self.records.append(canonical(["ended", call.id, data.get("success") is not False, result, data.get("error")]))

    def _call(self, id: Any, name: Any, told: dict[str, Any]) -> Call:
        known = self.calls.get(text(id) or "")
        if known is not None:
            known.name = known.name or text(name) or ""
            known.arguments = arguments_of(told.get("arguments")) if known.arguments is None else known.arguments
            known.server = known.server or text(told.get("mcpServerName"))
            return known
        call = Call(text(id) or "", text(name) or "", arguments_of(told.get("arguments")))
        call.server, call.is_agent = text(told.get("mcpServerName")), call.id in self.agents
        self.calls[call.id] = call
        self.items.append(call)
        return call

    def counted(self, event: dict[str, Any], data: dict[str, Any]) -> None:
        """All that the response before it cost."""
        for number in range(len(self.items) - 1, -1, -1):
            item = self.items[number]
            if isinstance(item, NativeMessage) and item.role is MessageRole.ASSISTANT:
                told = usage.tokens({"outputTokens": item.tokens.output if item.tokens else None, **data})
                self.items[number] = replace(item, tokens=told, model=item.model or text(data.get("model")))
                return

    def ended_session(self, event: dict[str, Any], data: dict[str, Any]) -> None:
        """What the session cost beside what its responses told: a message without words, for each model."""
        self.records.append(canonical(["shutdown", text(event.get("id"))]))
        for number, (model, tokens) in enumerate(next(self.rests, {}).items()):
            told = {"notice": "what the session cost beside the output of its responses"}
            made = self._message(event, {}, MessageRole.SYSTEM, [], source=MessageSource.EVENT, metadata=told)
            self.items.append(replace(made, native=f"{made.native}#{number}", model=model, tokens=tokens))

    def failed(self, event: dict[str, Any], data: dict[str, Any]) -> None:
        self.error = text(data.get("message")) or "error"
        told = present(notice="error", type=data.get("errorType"), status=data.get("statusCode"))
        made = self._message(
            event, data, MessageRole.SYSTEM, [TextPart(self.error)], source=MessageSource.EVENT, metadata=told
        )
        self._add(["error", text(event.get("id")), self.error], made)

    def aborted(self, event: dict[str, Any], data: dict[str, Any]) -> None:
        self.is_interrupted = True
        self.records.append(canonical(["abort", text(event.get("id"))]))
        self.notes["abort"] = data.get("reason")

    def permission(self, event: dict[str, Any], data: dict[str, Any]) -> None:
        id = text(data.get("requestId")) or text(event.get("id")) or ""
        asked, result = mapping(data.get("permissionRequest")), mapping(data.get("result"))
        told = self.permissions.setdefault(id, {})
        call = text(data.get("toolCallId")) or text(asked.get("toolCallId"))
        told |= present(call=call, kind=asked.get("kind"), result=result.get("kind")) or {}

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
        model, used = usage.of_compaction(data)
        tokens = usage.tokens(used) if used else None
        parts: list[Part] = [TextPart(summary)] if summary else []
        made = self._message(event, {}, MessageRole.ASSISTANT, parts, model=model, tokens=tokens)
        self._add(["compaction", text(event.get("id")), summary], made)

    def _message(
        self, event: dict[str, Any], data: dict[str, Any], role: MessageRole, parts: list[Part], **more: Any
    ) -> NativeMessage:
        id, when = text(data.get("messageId")) or text(event.get("id")), event.get("timestamp")
        at = millis(when)
        return NativeMessage(
            role=role,
            parts=tuple(parts),
            native=None if id is None else own_name(self.session, id),
            at=at,
            literal_time=text(when) if at is None else None,
            **more,
        )

    def _add(self, reduced: list[Any], message: NativeMessage) -> None:
        self.records.append(canonical(reduced))
        self.items.append(message)


def attached(value: Any) -> tuple[list[ImagePart], tuple[FileNote, ...]]:
    """Files, folders and selections that a prompt carries, and the images whose bytes are here."""
    images, notes = [], []
    for each in map(mapping, sequence(value)):
        data, mime = text(each.get("data")), text(each.get("mimeType"))
        if data is not None and mime is not None and mime.startswith("image/"):
            images.append(ImagePart(f"data:{mime};base64,{data}"))
        path = text(each.get("path")) or text(each.get("filePath"))
        lines = mapping(each.get("selection"))
        start, end = whole(mapping(lines.get("start")).get("line")), whole(mapping(lines.get("end")).get("line"))
        if path is not None:
            first, last = (None, None) if start is None else (start + 1, None if end is None else end + 1)
            notes.append(FileNote(kind=FileKind.ATTACHED, path=path, line_start=first, line_end=last))
    return images, tuple(notes)


TAKERS: dict[str, Callable[[Making, dict[str, Any], dict[str, Any]], None]] = {
    "user.message": Making.prompt,
    "system.message": Making.system,
    "system.notification": Making.injected,
    "skill.invoked": Making.injected,
    "assistant.message": Making.response,
    "assistant.reasoning": Making.reasoning,
    "assistant.usage": Making.counted,
    "tool.user_requested": Making.begun,
    "tool.execution_start": Making.begun,
    "tool.execution_complete": Making.ended,
    "abort": Making.aborted,
    "session.error": Making.failed,
    "session.shutdown": Making.ended_session,
    "session.truncation": Making.truncated,
    "session.task_complete": Making.completed,
    "permission.requested": Making.permission,
    "permission.completed": Making.permission,
    "session.compaction_complete": Making.compacted,
}
