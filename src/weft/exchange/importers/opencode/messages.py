"""Messages and their parts: what was said, by whom, at what cost."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from msgspec import Struct, field

from weft.exchange.importers.opencode import attached, calls
from weft.exchange.importers.opencode.tokens import summed, tokens
from weft.exchange.importers.transcript import Item, NativeCall, NativeMessage
from weft.exchange.importers.values import mapping, millis, present, sequence, text
from weft.kernel.enums import FileKind, MessageRole, MessageSource
from weft.ledger.model import FileNote, Part, ReasoningPart, TextPart


class Said(Struct):
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


def take(said: Said, part: dict[str, Any]) -> bool:
    """One part more; False if its kind is not known."""
    kind = text(part.get("type")) or ""
    taker = TAKERS.get(kind)
    if taker is None:
        said.reduced.append([kind, text(part.get("id"))])
        return False
    reduced = taker(said, part)
    if part.get("beside") is not True:  # else it is a field of the message, and no part that stands for itself
        said.reduced.append([kind, text(part.get("id")), *reduced])
    return True


def _text(said: Said, part: dict[str, Any]) -> list[Any]:
    words = part.get("text")
    if not isinstance(words, str):
        return []
    if said.is_prompt and part.get("ignored") is True:
        said.ignored.append(words)
        return [words, "ignored"]
    if said.is_prompt and part.get("synthetic") is True:
        said.synthetic.append(words)
        return [words, "synthetic"]
    if words:
        said.parts.append(TextPart(words))
    return [words]


def _reasoning(said: Said, part: dict[str, Any]) -> list[Any]:
    words = part.get("text")
    if isinstance(words, str) and words:
        said.parts.append(ReasoningPart(words))
    return [words]


def _file(said: Said, part: dict[str, Any]) -> list[Any]:
    if (image := attached.image(part)) is not None:
        said.parts.append(image)
    else:
        said.note("attachments", attached.described(part))
    if (note := attached.note(part)) is not None:
        said.files.append(note)
    return attached.reduced(part)


def _tool(said: Said, part: dict[str, Any]) -> list[Any]:
    said.calls.append(calls.call(part))
    return calls.reduced(part)


def _patch(said: Said, part: dict[str, Any]) -> list[Any]:
    said.patched += [path for path in sequence(part.get("files")) if isinstance(path, str)]
    return []


def _step(said: Said, part: dict[str, Any]) -> list[Any]:
    if (counted := part.get("tokens")) is not None:
        said.steps.append(counted)
    said.note("snapshots", text(part.get("snapshot")))
    return []


def _subtask(said: Said, part: dict[str, Any]) -> list[Any]:
    """A command that is run by a subagent: its prompt is what the person asked for."""
    prompt = text(part.get("prompt"))
    if prompt is not None:
        said.parts.append(TextPart(prompt))
    told = {name: part[name] for name in ("agent", "description", "command", "model") if part.get(name)}
    said.note("subtasks", told)
    return [prompt]


def _agent(said: Said, part: dict[str, Any]) -> list[Any]:
    said.note("agents", text(part.get("name")))
    return [part.get("name")]


def _skill(said: Said, part: dict[str, Any]) -> list[Any]:
    said.note("skills", text(part.get("name")))
    return [part.get("name")]


def _shell(said: Said, part: dict[str, Any]) -> list[Any]:
    """What a person ran; the words of it are a text beside it."""
    told = {name: part[name] for name in ("command", "exit", "status") if part.get(name) is not None}
    said.note("ran", told)
    return [part.get("command")]


def _retry(said: Said, part: dict[str, Any]) -> list[Any]:
    error, when = failure(part.get("error")), mapping(part.get("time")).get("created")
    said.note("retries", present(attempt=part.get("attempt"), error=error, at=when))
    return []


def _compaction(said: Said, part: dict[str, Any]) -> list[Any]:
    said.compaction = part
    return [part.get("auto") is True, part.get("overflow") is True, part.get("tail_start_id")]


TAKERS: dict[str, Callable[[Said, dict[str, Any]], list[Any]]] = {
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


def failure(error: Any) -> str | None:
    """An error in words: its name and what it says."""
    told = mapping(error)
    name, message = text(told.get("name")), text(mapping(told.get("data")).get("message"))
    return ": ".join(word for word in (name, message) if word) or ("error" if told else None)


def prompt(info: dict[str, Any], said: Said, native: str | None, is_subagent: bool) -> NativeMessage:
    """A user's message. Without words of its own, what opencode wrote into it is the prompt."""
    is_event = not said.parts and bool(said.synthetic or said.ignored or said.compaction)
    injected = [] if is_event else said.synthetic
    own = [TextPart(words) for words in said.synthetic or said.ignored if words] if is_event else said.parts
    summary = mapping(info.get("summary"))
    human = MessageSource.AGENT if is_subagent else MessageSource.HUMAN
    return NativeMessage(
        role=MessageRole.USER,
        parts=tuple(own),
        native=native,
        at=created(info),
        source=MessageSource.EVENT if is_event else human,
        context=present(system=text(info.get("system")), injected=injected),
        metadata=present(
            **said.beside,
            title=text(summary.get("title")),
            summary=text(summary.get("body")),
            format=info.get("format"),
            not_shown=said.ignored if said.parts or said.synthetic else bool(said.ignored) or None,
        ),
        files=tuple(said.files),
    )


def response(info: dict[str, Any], said: Said, native: str | None) -> tuple[Item, ...]:
    """An assistant's message, then its calls."""
    written = {note.path for call in said.calls for note in call.files if note.kind == FileKind.WRITTEN}
    patched = [path for path in dict.fromkeys(said.patched) if not _is_among(path, written)]
    message = NativeMessage(
        role=MessageRole.ASSISTANT,
        parts=tuple(said.parts),
        native=native,
        at=created(info),
        model=text(info.get("modelID")),
        provider=text(info.get("providerID")),
        tokens=summed(said.steps) if len(said.steps) > 1 else tokens(info.get("tokens")),
        finish_reason=text(info.get("finish")),
        metadata=present(
            **said.beside,
            agent=text(info.get("agent")) or text(info.get("mode")),
            variant=text(info.get("variant")),
            cost=info.get("cost"),
            completed=completed(info),
            structured=info.get("structured"),
            error=_error(info.get("error")),
        ),
        files=(*said.files, *(FileNote(kind=FileKind.WRITTEN, path=path) for path in patched)),
    )
    return (message, *said.calls)


def _is_among(path: str, written: set[str]) -> bool:
    """Is it one of them, perhaps told from the root of the project?"""
    return path in written or any(each.endswith(f"/{path}") for each in written)


def _error(error: Any) -> Any:
    """All but the headers of the reply, which tell of the connection."""
    told = mapping(error)
    data = {name: value for name, value in mapping(told.get("data")).items() if name != "responseHeaders"}
    return present(name=told.get("name"), data=data)


def system(info: dict[str, Any], said: Said, native: str | None) -> tuple[Item, ...]:
    message = NativeMessage(
        role=MessageRole.SYSTEM,
        parts=tuple(said.parts),
        native=native,
        at=created(info),
        source=MessageSource.EVENT,
        metadata=present(**said.beside),
        files=tuple(said.files),
    )
    return (message, *said.calls)


def created(info: dict[str, Any]) -> int | None:
    return millis(mapping(info.get("time")).get("created"))


def completed(info: dict[str, Any]) -> int | None:
    return millis(mapping(info.get("time")).get("completed"))
