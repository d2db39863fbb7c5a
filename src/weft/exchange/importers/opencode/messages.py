"""Messages and their parts: what was said, by whom, at what cost.

What a response cost is told as disjoint parts.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from msgspec import Struct, field

from weft.exchange.importers.opencode.calls import (
    attached_image,
    attached_note,
    call_identity,
    file_description,
    file_identity,
    tool_call,
)
from weft.exchange.importers.port import Item, NativeCall, NativeMessage, Tokens
from weft.exchange.importers.records.values import mapping, millis, present, sequence, text, whole
from weft.kernel.enums import FileKind, MessageRole, MessageSource
from weft.ledger.model import FileNote, Part, ReasoningPart, TextPart


def tokens(counted: Any) -> Tokens | None:
    if not isinstance(counted, dict):
        return None
    cache = mapping(counted.get("cache"))
    given, read, written = whole(counted.get("input")), whole(cache.get("read")), whole(cache.get("write"))
    output, reasoning = whole(counted.get("output")), whole(counted.get("reasoning"))
    if output is not None and reasoning:
        total = whole(counted.get("total"))
        left = None if total is None else total - (given or 0) - (read or 0) - (written or 0)
        output = _with_reasoning(output, reasoning, left)
    made = Tokens(input=given, output=output, cached=read, cache_write=written, reasoning=reasoning)
    return None if made == Tokens() else made


def _with_reasoning(output: int, reasoning: int, left: int | None) -> int:
    if left is not None and output <= left <= output + reasoning:
        return left
    return output if reasoning <= output else output + reasoning


def summed(steps: list[Any]) -> Tokens | None:
    """Of a message that holds several responses."""
    found = [each for step in steps if (each := tokens(step)) is not None]
    if not found:
        return None

    def add(name: str) -> int | None:
        counts = [count for each in found if (count := getattr(each, name)) is not None]
        return sum(counts) if counts else None

    return Tokens(
        input=add("input"),
        output=add("output"),
        cached=add("cached"),
        cache_write=add("cache_write"),
        reasoning=add("reasoning"),
    )


class MessageParts(Struct):
    """What the parts of one message hold."""

    is_prompt: bool
    parts: list[Part] = field(default_factory=list)
    calls: list[NativeCall] = field(default_factory=list)
    files: list[FileNote] = field(default_factory=list)
    reduced: list[Any] = field(default_factory=list)
    """The parts, each as what makes its identity."""
    synthetic: list[str] = field(default_factory=list)
    """Texts that opencode wrote into a prompt: files it read, reminders."""
    ignored: list[str] = field(default_factory=list)
    """Texts that the model was not shown."""
    steps: list[Any] = field(default_factory=list)
    """What each response cost, where opencode counts them one by one."""
    patched: list[str] = field(default_factory=list)
    beside: dict[str, Any] = field(default_factory=dict)
    compaction: dict[str, Any] | None = None

    def note(self, name: str, value: Any) -> None:
        if value:
            self.beside.setdefault(name, []).append(value)


def take_part(parts: MessageParts, part: dict[str, Any]) -> bool:
    """One part more; False if its kind is not known."""
    kind = text(part.get("type")) or ""
    taker = TAKERS.get(kind)
    if taker is None:
        parts.reduced.append([kind, text(part.get("id"))])
        return False
    reduced = taker(parts, part)
    if part.get("beside") is not True:  # else it is a field of the message, and no part that stands for itself
        parts.reduced.append([kind, text(part.get("id")), *reduced])
    return True


def _text(parts: MessageParts, part: dict[str, Any]) -> list[Any]:
    words = part.get("text")
    if not isinstance(words, str):
        return []
    if parts.is_prompt and part.get("ignored") is True:
        parts.ignored.append(words)
        return [words, "ignored"]
    if parts.is_prompt and part.get("synthetic") is True:
        parts.synthetic.append(words)
        return [words, "synthetic"]
    if words:
        parts.parts.append(TextPart(words))
    return [words]


def _reasoning(parts: MessageParts, part: dict[str, Any]) -> list[Any]:
    words = part.get("text")
    if isinstance(words, str) and words:
        parts.parts.append(ReasoningPart(words))
    return [words]


def _file(parts: MessageParts, part: dict[str, Any]) -> list[Any]:
    if (image := attached_image(part)) is not None:
        parts.parts.append(image)
    else:
        parts.note("attachments", file_description(part))
    if (note := attached_note(part)) is not None:
        parts.files.append(note)
    return file_identity(part)


def _tool(parts: MessageParts, part: dict[str, Any]) -> list[Any]:
    parts.calls.append(tool_call(part))
    return call_identity(part)


def _patch(parts: MessageParts, part: dict[str, Any]) -> list[Any]:
    parts.patched += [path for path in sequence(part.get("files")) if isinstance(path, str)]
    return []


def _step(parts: MessageParts, part: dict[str, Any]) -> list[Any]:
    if (counted := part.get("tokens")) is not None:
        parts.steps.append(counted)
    parts.note("snapshots", text(part.get("snapshot")))
    return []


def _subtask(parts: MessageParts, part: dict[str, Any]) -> list[Any]:
    """A command that is run by a subagent: its prompt is what the person asked for."""
    prompt = text(part.get("prompt"))
    if prompt is not None:
        parts.parts.append(TextPart(prompt))
    subtask = {name: part[name] for name in ("agent", "description", "command", "model") if part.get(name)}
    parts.note("subtasks", subtask)
    return [prompt]


def _agent(parts: MessageParts, part: dict[str, Any]) -> list[Any]:
    parts.note("agents", text(part.get("name")))
    return [part.get("name")]


def _skill(parts: MessageParts, part: dict[str, Any]) -> list[Any]:
    parts.note("skills", text(part.get("name")))
    return [part.get("name")]


def _shell(parts: MessageParts, part: dict[str, Any]) -> list[Any]:
    """What a person ran; the words of it are a text beside it."""
    command_fields = {name: part[name] for name in ("command", "exit", "status") if part.get(name) is not None}
    parts.note("ran", command_fields)
    return [part.get("command")]


def _retry(parts: MessageParts, part: dict[str, Any]) -> list[Any]:
    error, when = error_text(part.get("error")), mapping(part.get("time")).get("created")
    parts.note("retries", present(attempt=part.get("attempt"), error=error, at=when))
    return []


def _compaction(parts: MessageParts, part: dict[str, Any]) -> list[Any]:
    parts.compaction = part
    return [part.get("auto") is True, part.get("overflow") is True, part.get("tail_start_id")]


TAKERS: dict[str, Callable[[MessageParts, dict[str, Any]], list[Any]]] = {
    "text": _text,
    "reasoning": _reasoning,
    "file": _file,
    "tool": _tool,
    "patch": _patch,
    "step-start": _step,
    "step-finish": _step,
    "snapshot": _step,
    "subtask": _subtask,
    "agent": _agent,
    "skill": _skill,
    "shell": _shell,
    "retry": _retry,
    "compaction": _compaction,
}


def error_text(error: Any) -> str | None:
    """An error in words: its name and what it says."""
    fields = mapping(error)
    name, message = text(fields.get("name")), text(mapping(fields.get("data")).get("message"))
    return ": ".join(word for word in (name, message) if word) or ("error" if fields else None)


def prompt_items(info: dict[str, Any], parts: MessageParts, native: str | None, is_subagent: bool) -> NativeMessage:
    """A user's message. Without words of its own, what opencode wrote into it is the prompt."""
    is_event = not parts.parts and bool(parts.synthetic or parts.ignored or parts.compaction)
    injected = [] if is_event else parts.synthetic
    own = [TextPart(words) for words in parts.synthetic or parts.ignored if words] if is_event else parts.parts
    summary = mapping(info.get("summary"))
    human = MessageSource.AGENT if is_subagent else MessageSource.HUMAN
    return NativeMessage(
        role=MessageRole.USER,
        parts=tuple(own),
        native=native,
        at=created_at(info),
        source=MessageSource.EVENT if is_event else human,
        context=present(system=text(info.get("system")), injected=injected),
        metadata=present(
            **parts.beside,
            title=text(summary.get("title")),
            summary=text(summary.get("body")),
            format=info.get("format"),
            not_shown=parts.ignored if parts.parts or parts.synthetic else bool(parts.ignored) or None,
        ),
        files=tuple(parts.files),
    )


def response_items(info: dict[str, Any], parts: MessageParts, native: str | None) -> tuple[Item, ...]:
    """An assistant's message, then its calls."""
    written = {note.path for call in parts.calls for note in call.files if note.kind == FileKind.WRITTEN}
    patched = [path for path in dict.fromkeys(parts.patched) if not _is_among(path, written)]
    message = NativeMessage(
        role=MessageRole.ASSISTANT,
        parts=tuple(parts.parts),
        native=native,
        at=created_at(info),
        model=text(info.get("modelID")),
        provider=text(info.get("providerID")),
        tokens=summed(parts.steps) if len(parts.steps) > 1 else tokens(info.get("tokens")),
        finish_reason=text(info.get("finish")),
        metadata=present(
            **parts.beside,
            agent=text(info.get("agent")) or text(info.get("mode")),
            variant=text(info.get("variant")),
            cost=info.get("cost"),
            completed=completed_at(info),
            structured=info.get("structured"),
            error=_error(info.get("error")),
        ),
        files=(*parts.files, *(FileNote(kind=FileKind.WRITTEN, path=path) for path in patched)),
    )
    return (message, *parts.calls)


def _is_among(path: str, written: set[str]) -> bool:
    """Is it one of them, perhaps told from the root of the project?"""
    return path in written or any(each.endswith(f"/{path}") for each in written)


def _error(error: Any) -> Any:
    """All but the headers of the reply, which tell of the connection."""
    fields = mapping(error)
    data = {name: value for name, value in mapping(fields.get("data")).items() if name != "responseHeaders"}
    return present(name=fields.get("name"), data=data)


def system_items(info: dict[str, Any], parts: MessageParts, native: str | None) -> tuple[Item, ...]:
    message = NativeMessage(
        role=MessageRole.SYSTEM,
        parts=tuple(parts.parts),
        native=native,
        at=created_at(info),
        source=MessageSource.EVENT,
        metadata=present(**parts.beside),
        files=tuple(parts.files),
    )
    return (message, *parts.calls)


def created_at(info: dict[str, Any]) -> int | None:
    return millis(mapping(info.get("time")).get("created"))


def completed_at(info: dict[str, Any]) -> int | None:
    return millis(mapping(info.get("time")).get("completed"))
