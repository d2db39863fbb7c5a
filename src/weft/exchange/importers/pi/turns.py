"""The second pass: the records of one turn of pi, mapped to messages and calls.

Blocks of content become parts of messages, and their identity; tool calls get their outcomes from `toolResult`
messages. Messages that no person typed as a prompt (commands run, files mentioned, what extensions and the agent put
in) are `injected`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from msgspec import field
from msgspec.structs import replace

from weft.exchange.importers.chat import summed_tokens
from weft.exchange.importers.pi.calls import Call, call_of, done_at
from weft.exchange.importers.port import NativeMessage, Tokens
from weft.exchange.importers.records.builder import MessageContent, TurnBuilder
from weft.exchange.importers.records.planned_turns import Entry
from weft.exchange.importers.records.values import mapping, millis, present, sequence, text, whole
from weft.kernel.enums import FileKind, MessageRole, MessageSource
from weft.ledger.model import FileNote, ImagePart, Part, ReasoningPart, TextPart

BLOB = "blob:"
"""oh-my-pi keeps large images in files of their own and writes only what they are called."""


def content_of(value: Any) -> MessageContent:
    """A text, or a list of blocks. What is neither is kept beside the message."""
    content = MessageContent()
    if isinstance(value, str):
        content.add_text(value)
    elif isinstance(value, list):
        for block in value:
            _add_block(content, block)
    elif value is not None:
        content.add_other(value)
    return content


def _add_block(content: MessageContent, block: Any) -> None:
    kind = block.get("type") if isinstance(block, dict) else None
    if kind == "text" and isinstance(words := block.get("text"), str):
        content.add_text(words)
    elif kind == "thinking" and isinstance(thinking := block.get("thinking"), str):
        content.identity.append(["thinking", thinking])
        if thinking:
            content.parts.append(ReasoningPart(thinking))
    elif kind == "toolCall":
        content.calls.append(block)
        content.identity.append(["call", block.get("id"), block.get("name"), block.get("arguments")])
    elif kind == "image" and (url := image_url(block)) is not None:
        content.identity.append(["image", url])
        content.parts.append(ImagePart(url))
    elif isinstance(block, str):
        content.add_text(block)
    else:
        content.add_other(block)


def image_url(block: dict[str, Any]) -> str | None:
    data, mime = text(block.get("data")), text(block.get("mimeType"))
    if data is None or data.startswith(BLOB):
        return None
    return data if data.startswith("data:") else f"data:{mime or 'application/octet-stream'};base64,{data}"


RESPONSE_FIELDS = ("api", "responseId", "responseModel", "providerThinkingLevel", "rawStopReason", "duration", "ttft")
"""Small facts of a response that have no place of their own."""


def response(entry: dict[str, Any], message: dict[str, Any], content: MessageContent) -> NativeMessage:
    facts = {name: message[name] for name in RESPONSE_FIELDS if message.get(name) is not None}
    return NativeMessage(
        role=MessageRole.ASSISTANT,
        parts=tuple(content.parts),
        native=text(entry.get("id")),
        at=millis(message.get("timestamp")) or millis(entry.get("timestamp")),
        model=text(message.get("model")),
        provider=text(message.get("provider")),
        tokens=tokens(message.get("usage")),
        finish_reason=text(message.get("stopReason")),
        metadata=present(
            **facts,
            cost=mapping(message.get("usage")).get("cost"),
            error=text(message.get("errorMessage")),
            blocks=content.other_blocks,
        ),
    )


def tokens(usage: Any) -> Tokens | None:
    """Its parts are disjoint already; reasoning lies inside the output."""
    if not isinstance(usage, dict):
        return None
    reasoning = whole(usage.get("reasoning"))
    return Tokens(
        input=whole(usage.get("input")),
        output=whole(usage.get("output")),
        cached=whole(usage.get("cacheRead")),
        cache_write=whole(usage.get("cacheWrite")),
        reasoning=whole(usage.get("reasoningTokens")) if reasoning is None else reasoning,
    )


def trouble(message: dict[str, Any]) -> tuple[str | None, bool]:
    """The error a response ended with, and whether somebody stopped it."""
    stop = message.get("stopReason")
    if stop == "error":
        return text(message.get("errorMessage")) or "error", False
    return None, stop == "aborted"


Injected = tuple[list[Any], NativeMessage]
SOURCES = {"user": MessageSource.HUMAN, "agent": MessageSource.AGENT}


def injected(kind: str, entry: dict[str, Any]) -> Injected:
    """The entry reduced to what makes its identity, and its message."""
    message = mapping(entry.get("message")) if kind.startswith("message.") else entry
    return INJECTED_KINDS[kind](entry, message)


def _injected(entry: dict[str, Any], message: dict[str, Any], parts: tuple[Part, ...], **more: Any) -> NativeMessage:
    defaults: dict[str, Any] = {"role": MessageRole.USER, "source": MessageSource.EVENT}
    when = millis(message.get("timestamp")) or millis(entry.get("timestamp"))
    return NativeMessage(parts=parts, native=text(entry.get("id")), at=when, **{**defaults, **more})


def _custom(entry: dict[str, Any], message: dict[str, Any]) -> Injected:
    """Both shapes and the old name of an extension's message are one thing."""
    content = content_of(message.get("content"))
    kind = text(message.get("customType"))
    item = _injected(
        entry,
        message,
        tuple(content.parts),
        source=SOURCES.get(text(message.get("attribution")) or "", MessageSource.EVENT),
        metadata=present(
            custom_type=kind,
            details=message.get("details"),
            display=message.get("display"),
            blocks=content.other_blocks,
        ),
    )
    return ["custom", text(entry.get("id")), kind, content.identity], item


def _system(entry: dict[str, Any], message: dict[str, Any]) -> Injected:
    content = content_of(message.get("content"))
    item = _injected(
        entry, message, tuple(content.parts), role=MessageRole.SYSTEM, metadata=present(blocks=content.other_blocks)
    )
    return ["system", text(entry.get("id")), content.identity], item


def _initial(entry: dict[str, Any], message: dict[str, Any]) -> Injected:
    """oh-my-pi: the system prompt that a subagent was started with."""
    content = content_of(entry.get("systemPrompt"))
    item = _injected(entry, message, tuple(content.parts), role=MessageRole.SYSTEM)
    return ["system", text(entry.get("id")), content.identity], item


def _ran(name: str) -> Callable[[dict[str, Any], dict[str, Any]], Injected]:
    """A command that a person ran themselves, with what it printed."""

    def message_of(entry: dict[str, Any], message: dict[str, Any]) -> Injected:
        command, output = text(message.get(name)) or "", text(message.get("output")) or ""
        code, is_cancelled = message.get("exitCode"), message.get("cancelled") is True
        shown = f"Ran `{command}`" + (f"\n```\n{output}\n```" if output else "")
        metadata = present(
            command=command,
            exit_code=code,
            cancelled=is_cancelled or None,
            truncated=message.get("truncated") or None,
            excluded=message.get("excludeFromContext") or None,
        )
        identity = [name, text(entry.get("id")), command, output, code, is_cancelled]
        return identity, _injected(entry, message, (TextPart(shown),), source=MessageSource.HUMAN, metadata=metadata)

    return message_of


def _mentioned(entry: dict[str, Any], message: dict[str, Any]) -> Injected:
    """oh-my-pi: files that a prompt mentions, read for it."""
    parts: list[Part] = []
    notes: list[FileNote] = []
    identity: list[Any] = []
    for file in map(mapping, sequence(message.get("files"))):
        path, content = text(file.get("path")), text(file.get("content"))
        url = image_url(mapping(file.get("image")))
        identity.append([path, content, url])
        if path is not None:
            notes.append(FileNote(kind=FileKind.ATTACHED, path=path))
        if content is not None:
            parts.append(TextPart(f"{path}\n{content}" if path else content))
        if url is not None:
            parts.append(ImagePart(url))
    return ["files", text(entry.get("id")), identity], _injected(entry, message, tuple(parts), files=tuple(notes))


def _summary(entry: dict[str, Any], message: dict[str, Any]) -> Injected:
    """What was found on a branch that the conversation has left."""
    summary = text(message.get("summary")) or ""
    item = _injected(
        entry,
        message,
        (TextPart(summary),) if summary else (),
        tokens=tokens(message.get("usage")),
        metadata=present(branch_left=message.get("fromId"), details=message.get("details")),
    )
    return ["summary", text(entry.get("id")), summary], item


INJECTED_KINDS: dict[str, Callable[[dict[str, Any], dict[str, Any]], Injected]] = {
    "custom_message": _custom,
    "message.custom": _custom,
    "message.hookMessage": _custom,
    "message.system": _system,
    "message.developer": _system,
    "session_init": _initial,
    "message.bashExecution": _ran("command"),
    "message.pythonExecution": _ran("code"),
    "message.fileMention": _mentioned,
    "branch_summary": _summary,
    "message.branchSummary": _summary,
    "message.compactionSummary": _summary,
}


class PiBuilder(TurnBuilder, kw_only=True):
    """A turn of pi, entry by entry."""

    starts: dict[str, int]
    """When calls began, by their ids."""
    waiting: dict[str, list[Call]] = field(default_factory=dict)
    """Calls without an outcome, by their ids, which may repeat."""
    summary: str = ""
    compaction: dict[str, Any] | None = None

    def take(self, entry: Entry, value: dict[str, Any]) -> None:
        self.note_time(value.get("timestamp"))
        if entry.kind == "message.assistant":
            self._response(value)
        elif entry.kind == "message.toolResult":
            self._result(value)
        elif entry.kind == "message.user":
            self._prompt(value)
        elif entry.kind == "compaction":
            self._compaction(value)
        else:
            self.add(*injected(entry.kind, value))

    def _prompt(self, entry: dict[str, Any]) -> None:
        message = mapping(entry.get("message"))
        content = content_of(message.get("content"))
        id = text(entry.get("id"))
        item = NativeMessage(
            role=MessageRole.USER,
            parts=tuple(content.parts),
            native=id,
            at=done_at(entry, message),
            source=SOURCES.get(text(message.get("attribution")) or "user", MessageSource.HUMAN),
            metadata=present(blocks=content.other_blocks),
        )
        self.add(["user", id, content.identity], item)

    def _response(self, entry: dict[str, Any]) -> None:
        message = mapping(entry.get("message"))
        content = content_of(message.get("content"))
        self.error, self.is_interrupted = trouble(message)
        id = text(entry.get("id"))
        identity = ["assistant", id, content.identity]
        if self.error is not None or self.is_interrupted:
            identity += [message.get("stopReason"), self.error]
        self.add(identity, response(entry, message, content))
        asked_by = len(self.items) - 1
        for call in (call_of(block, self.starts) for block in content.calls):
            call.asked_by = asked_by
            self.items.append(call)
            self.waiting.setdefault(call.id, []).append(call)

    def _result(self, entry: dict[str, Any]) -> None:
        message = mapping(entry.get("message"))
        called = text(message.get("toolCallId")) or ""
        content = content_of(message.get("content"))
        id = text(entry.get("id"))
        identity = ["result", id, called, content.identity, message.get("isError") is True]
        if waiting := self.waiting.get(called):
            call = waiting.pop(0)
            call.settle(message, done_at(entry, message))
            self._charge(call, message)
            self.add_identity(*identity)
            return
        item = NativeMessage(
            role=MessageRole.TOOL,
            parts=tuple(content.parts),
            native=id,
            at=done_at(entry, message),
            tokens=tokens(message.get("usage")),
            metadata=present(
                call=called, tool=message.get("toolName"), details=message.get("details"), blocks=content.other_blocks
            ),
        )
        self.add(identity, item)

    def _charge(self, call: Call, message: dict[str, Any]) -> None:
        """A tool may ask models itself: what that took counts with the response that asked for the tool."""
        asker, spent = self.items[call.asked_by], tokens(message.get("usage"))
        if spent is not None and isinstance(asker, NativeMessage):
            cost = mapping(mapping(message.get("usage")).get("cost")).get("total")
            metadata = mapping(asker.metadata)
            if cost is not None:
                metadata = {**metadata, "tool_costs": [*metadata.get("tool_costs", []), cost]}
            self.items[call.asked_by] = replace(
                asker, tokens=summed_tokens(asker.tokens or Tokens(), spent), metadata=metadata or None
            )

    def _compaction(self, entry: dict[str, Any]) -> None:
        self.compaction = entry
        summary = entry.get("summary")
        self.summary = summary if isinstance(summary, str) else ""
        id = text(entry.get("id"))
        kept = entry.get("firstKeptEntryId", entry.get("firstKeptEntryIndex"))
        item = NativeMessage(
            role=MessageRole.ASSISTANT,
            parts=(TextPart(self.summary),) if self.summary else (),
            native=id,
            at=millis(entry.get("timestamp")),
            tokens=tokens(entry.get("usage")),
        )
        self.add(["compaction", id, self.summary, kept], item)
