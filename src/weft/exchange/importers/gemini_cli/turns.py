"""The second pass: the messages of one turn of Gemini CLI, mapped to what the ledger takes.

A message records its tool calls with their outcomes; where it only asks for a call, a later message has the outcome.
"""

from __future__ import annotations

from typing import Any

from msgspec import UNSET, field

from weft.exchange.importers.gemini_cli.messages import (
    CANCELLED,
    NOTICES,
    classify,
    content_of,
    message_content,
    thoughts,
)
from weft.exchange.importers.port import NativeCall, NativeMessage, Tokens
from weft.exchange.importers.records.builder import MessageContent, PendingCall, TurnBuilder
from weft.exchange.importers.records.file_notes import written_notes
from weft.exchange.importers.records.planned_turns import Entry
from weft.exchange.importers.records.roles import Role
from weft.exchange.importers.records.values import (
    canonical,
    global_name,
    mapping,
    millis,
    present,
    sequence,
    text,
    whole,
)
from weft.kernel.enums import FileKind, MessageRole, MessageSource, ToolCallStatus
from weft.ledger.model import FileNote, Part, ReasoningPart, TextPart

STATUSES = {
    "success": ToolCallStatus.OK,
    "completed": ToolCallStatus.OK,
    "error": ToolCallStatus.ERROR,
    "cancelled": ToolCallStatus.CANCELED,
}
READERS = frozenset({"read_file", "read_many_files"})
WRITERS = frozenset({"write_file", "replace", "edit"})
SEARCHERS = frozenset({"list_directory", "glob", "grep_search", "search_file_content"})
PATHS = ("file_path", "absolute_path", "path", "dir_path")
REPEATED = frozenset({"originalContent", "newContent"})
"""Of a shown change: whole files, of which the change is told beside."""


class Call(PendingCall, kw_only=True):
    record: dict[str, Any]
    """As its message records it; empty where the message only asks for it."""
    response: Any = None
    """From a message of its own, where the call's record has none."""

    def finished(self) -> NativeCall:
        outcome = self.record.get("result")
        status = STATUSES.get(text(self.record.get("status")) or "")
        result, error = outcome_of(outcome if outcome is not None else self.response)
        if status is None and self.response is not None:
            status = ToolCallStatus.OK if error is None else ToolCallStatus.ERROR
        failed = status in (ToolCallStatus.ERROR, ToolCallStatus.CANCELED)
        if failed and error is None:
            error = result if isinstance(result, str) else text(self.record.get("resultDisplay"))
            result = UNSET if error == result else result
        self.result, self.error, self.status = result, error if failed else None, status
        self.done = millis(self.record.get("timestamp")) if status is not None else None
        self.spawned, self.detail = text(self.record.get("agentId")), detail(self.record)
        self.files = () if failed else files(self.name, mapping(self.arguments), self.record)
        return super().finished()


def call_of(block: dict[str, Any], *, is_record: bool) -> Call:
    name, id = text(block.get("name")) or "", text(block.get("id")) or ""
    return Call(id=id, name=name, arguments=block.get("args"), record=block if is_record else {})


def call_identity(record: dict[str, Any]) -> list[Any]:
    status = text(record.get("status"))
    return ["call", record.get("id"), record.get("name"), record.get("args"), record.get("result"), status]


def outcome_of(result: Any) -> tuple[Any, str | None]:
    """What the model was given back, as a text where it is one; and the error, where it says so."""
    if result is None:
        return UNSET, None
    parts = result if isinstance(result, list) else [result]
    if len(parts) != 1:
        return result, None
    response = mapping(mapping(parts[0]).get("functionResponse")).get("response")
    if not isinstance(response, dict):
        return result, None
    if set(response) == {"output"} and isinstance(response["output"], str):
        return response["output"], None
    if set(response) == {"error"} and isinstance(response["error"], str):
        return UNSET, response["error"]
    return response, None


def detail(record: dict[str, Any]) -> Any:
    shown = record.get("resultDisplay")
    if isinstance(shown, dict):
        shown = {name: value for name, value in shown.items() if name not in REPEATED}
    return present(shown=shown, agent=record.get("agentId"))


def files(name: str, arguments: dict[str, Any], record: dict[str, Any]) -> tuple[FileNote, ...]:
    path = next((value for key in PATHS if (value := text(arguments.get(key))) is not None), None)
    if name == "read_many_files":
        named = [*sequence(arguments.get("paths")), *sequence(arguments.get("include"))]
        return tuple(
            FileNote(kind=FileKind.READ, path=name_or_pattern) for name_or_pattern in named if _is_path(name_or_pattern)
        )
    if path is None:
        return ()
    if name in READERS:
        return (_read(path, arguments),)
    if name in WRITERS:
        shown = mapping(record.get("resultDisplay"))
        return written_notes(text(shown.get("filePath")) or path, text(shown.get("fileDiff")))
    return (FileNote(kind=FileKind.REFERENCED, path=path),) if name in SEARCHERS and _is_path(path) else ()


def _is_path(path: Any) -> bool:
    return isinstance(path, str) and bool(path) and not set(path) & set("*?{[")


def _read(path: str, arguments: dict[str, Any]) -> FileNote:
    """Lines count from one in newer versions; `offset` counts from nought."""
    start, end = whole(arguments.get("start_line")), whole(arguments.get("end_line"))
    offset, limit = whole(arguments.get("offset")), whole(arguments.get("limit"))
    if start is None and offset is not None:
        start = offset + 1
    if end is None and limit is not None:
        end = (start or 1) + limit - 1
    return FileNote(kind=FileKind.READ, path=path, line_start=start, line_end=end)


REFERENCED = "Content from @"


class GeminiBuilder(TurnBuilder, kw_only=True):
    """A turn of Gemini CLI, message by message."""

    session: str
    is_subagent: bool = False
    summary_entry: Entry | None = None
    """Of a compaction: the message that is its summary."""
    waiting: dict[str, Call] = field(default_factory=dict)
    """Calls without an outcome, by their ids."""
    summary: str | None = None

    def take(self, entry: Entry, value: dict[str, Any]) -> None:
        self.note_time(value.get("timestamp"))
        kind, role = classify(value)
        if entry is self.summary_entry:
            self._summary(value)
        elif kind == "gemini":
            self._response(value)
        elif kind in NOTICES:
            self._notice(kind, value)
        elif role is Role.ANSWER:
            self._results(value)
        else:
            self._prompt(value, is_event=role is not Role.PROMPT)

    def _prompt(self, message: dict[str, Any], is_event: bool) -> None:
        content, typed = message_content(message), content_of(message.get("displayContent"))
        is_expanded = bool(typed.texts) and typed.texts != content.texts
        person = MessageSource.AGENT if self.is_subagent else MessageSource.HUMAN
        item = self._message(
            message,
            MessageRole.USER,
            typed.parts if is_expanded else content.parts,
            source=MessageSource.EVENT if is_event else person,
            context=present(sent=[part for part in content.texts if part not in typed.texts]) if is_expanded else None,
            metadata=present(parts=_described(content)),
            files=_attached(content),
        )
        self.add(["user", text(message.get("id")), content.identity, typed.identity], item)
        self._give(content)

    def _results(self, message: dict[str, Any]) -> None:
        """What tools gave back, in a message of its own. One whose call is not here stands as a message."""
        content = message_content(message)
        self.add_identity("results", text(message.get("id")), content.identity)
        for result in self._give(content):
            words = canonical(result.get("response")).decode(errors="replace")
            metadata = present(call=result.get("id"), tool=result.get("name"))
            self.items.append(self._message(message, MessageRole.TOOL, [TextPart(words)], metadata=metadata))

    def _give(self, content: MessageContent) -> list[dict[str, Any]]:
        """Outcomes to the calls that wait for them; those are left that none waits for."""
        unclaimed = []
        for result in content.results:
            call = self.waiting.pop(text(result.get("id")) or "", None)
            if call is None:
                unclaimed.append(result)
            else:
                call.response = [{"functionResponse": result}]
        return unclaimed

    def _response(self, message: dict[str, Any]) -> None:
        content, id = message_content(message), text(message.get("id"))
        thinking: list[Part] = [ReasoningPart(words) for words in thoughts(message)]
        if thinking:  # told twice where the parts hold it too
            content.parts = [part for part in content.parts if not isinstance(part, ReasoningPart)]
        recorded = [call for call in sequence(message.get("toolCalls")) if isinstance(call, dict)]
        model = text(message.get("model"))
        item = self._message(
            message,
            MessageRole.ASSISTANT,
            [*thinking, *content.parts],
            model=model,
            provider="google" if model is not None and model.startswith("gemini") else None,
            tokens=tokens(message.get("tokens")),
            metadata=present(parts=_described(content)),
        )
        thought_texts = [part.text for part in thinking if isinstance(part, ReasoningPart)]
        self.add(["gemini", id, content.identity, thought_texts, [call_identity(call) for call in recorded]], item)
        calls = [call_of(call, is_record=True) for call in recorded]
        recorded_ids = {call.id for call in calls}
        calls += [call_of(call, is_record=False) for call in content.calls if call.get("id") not in recorded_ids]
        for call in calls:
            self.items.append(call)
            if (done := millis(call.record.get("timestamp"))) is not None:
                self.times.append(done)
            if call.record.get("result") is None:
                self.waiting[call.id] = call
        self.error, self.is_interrupted = None, False

    def _notice(self, kind: str, message: dict[str, Any]) -> None:
        content = message_content(message)
        words = "\n".join(content.texts)
        item = self._message(
            message,
            MessageRole.SYSTEM,
            content.parts,
            source=MessageSource.EVENT,
            metadata=present(notice=kind, parts=_described(content)),
        )
        self.add(["notice", kind, text(message.get("id")), content.identity], item)
        if kind == "error":
            self.error = words or "error"
        self.is_interrupted |= CANCELLED.fullmatch(words) is not None

    def _summary(self, message: dict[str, Any]) -> None:
        content = message_content(message)
        self.summary = "\n".join(content.texts)
        item = self._message(message, MessageRole.ASSISTANT, content.parts, source=MessageSource.EVENT)
        self.add(["compaction", text(message.get("id")), content.identity], item)

    def _message(self, message: dict[str, Any], role: MessageRole, parts: list[Part], **more: Any) -> NativeMessage:
        id, when = text(message.get("id")), message.get("timestamp")
        at = millis(when)
        return NativeMessage(
            role=role,
            parts=tuple(parts),
            native=None if id is None else global_name(self.session, id),
            at=at,
            literal_time=text(when) if at is None else None,
            **more,
        )


def tokens(counted: Any) -> Tokens | None:
    """Cached tokens are told inside the input, thoughts beside the output, those of tools beside the input."""
    counts = mapping(counted)
    if not counts:
        return None
    prompt, cached = whole(counts.get("input")), whole(counts.get("cached"))
    output, thought, tools = whole(counts.get("output")), whole(counts.get("thoughts")), whole(counts.get("tool"))
    return Tokens(
        input=None if prompt is None else max(prompt - (cached or 0), 0) + (tools or 0),
        output=None if output is None else output + (thought or 0),
        cached=cached,
        reasoning=thought,
    )


def _described(content: MessageContent) -> list[Any]:
    """Parts that are no text and no image, without their bytes."""
    parts = []
    for part in content.other_blocks:
        block = mapping(part)
        data = mapping(block.get("inlineData"))
        parts.append({"inlineData": data.get("mimeType")} if data else part)
    return parts


def _attached(content: MessageContent) -> tuple[FileNote, ...]:
    """Files that a prompt mentions with @, read into it."""
    paths = []
    for words in content.texts:
        for line in words.splitlines() if REFERENCED in words else ():
            if line.startswith(REFERENCED) and line.endswith(":"):
                paths.append(line.removeprefix(REFERENCED).removesuffix(":"))
    return tuple(FileNote(kind=FileKind.ATTACHED, path=path) for path in dict.fromkeys(paths) if path)
