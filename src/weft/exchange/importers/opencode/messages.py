"""Messages of opencode and their parts: what was said, by whom, at what cost.

Tool parts as calls with outcomes, files and diagnostics; file parts as images, and as files that a
prompt brings.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from msgspec import UNSET, Struct, field

from weft.exchange.importers.foreign_values import mapping, millis, present, sequence, text, whole_number
from weft.exchange.importers.native_turns import patched_paths
from weft.exchange.importers.port import Item, NativeCall, NativeMessage, Tokens
from weft.kernel.enums import FileKind, LintSeverity, MessageRole, MessageSource, ToolCallStatus
from weft.ledger.model import FileNote, ImagePart, LintNote, Part, ReasoningPart, TextPart

# --- Tool parts and file parts: calls with outcomes, files and diagnostics; images, and files that a prompt brings.

PASTED = frozenset({"clipboard"})
"""What an image is called that never was a file."""


def attached_image(part_fields: dict[str, Any]) -> ImagePart | None:
    url, mime = text(part_fields.get("url")), text(part_fields.get("mime")) or ""
    if url is None or not url.startswith("data:"):
        return None
    return ImagePart(url) if mime.startswith("image/") or url.startswith("data:image/") else None


def file_identity(part_fields: dict[str, Any]) -> list[Any]:
    return [part_fields.get("mime"), part_fields.get("filename"), part_fields.get("url")]


def file_description(part_fields: dict[str, Any]) -> dict[str, Any] | None:
    """Of a file that is no image: what it is; its content is in the verbatim copy alone if it was given by value."""
    url = text(part_fields.get("url")) or ""
    return present(
        mime=part_fields.get("mime"), filename=part_fields.get("filename"), url=None if url.startswith("data:") else url
    )


def attached_note(part_fields: dict[str, Any]) -> FileNote | None:
    source = mapping(part_fields.get("source"))
    path, start, end = _location(text(part_fields.get("url")) or "")
    path = path or text(source.get("path")) or text(source.get("uri")) or text(part_fields.get("filename"))
    if path is None or path in PASTED:
        return None
    if start is None and source.get("type") == "symbol":  # a language server's lines count from 0
        range = mapping(source.get("range"))
        first, last = (whole_number(mapping(range.get(name)).get("line")) for name in ("start", "end"))
        start, end = (None if line is None else line + 1 for line in (first, last))
    return FileNote(kind=FileKind.ATTACHED, path=path, line_start=start, line_end=end)


def _location(url: str) -> tuple[str | None, int | None, int | None]:
    """The path of a file URL and the lines that its query names."""
    if not url.startswith("file:"):
        return None, None, None
    try:
        url_parts = urlsplit(url)
        query_fields = parse_qs(url_parts.query)
    except ValueError:
        return None, None, None
    start, end = (_line_number(query_fields.get(name, [""])[0]) for name in ("start", "end"))
    return unquote(url_parts.path) or None, start, end


def _line_number(words: str) -> int | None:
    return int(words) if words.isdecimal() and len(words) < 10 else None


WRITERS = frozenset({"edit", "write", "multiedit", "patch", "apply_patch"})
SEARCHERS = frozenset({"grep", "glob", "list"})
PATHS = ("filePath", "path", "file_path")
NUMBERED = re.compile(r"<(?:content|file)>\s*0*([0-9]{1,9})(?:\||:)")
"""The first line number that the read tool printed."""
SEVERITIES = {1: LintSeverity.ERROR, 2: LintSeverity.WARNING, 3: LintSeverity.INFO, 4: LintSeverity.HINT}
REPEATED = frozenset({"preview", "display", "diagnostics", "filediff", "sessionId", "parentSessionId"})
"""What a tool's metadata repeat of its result, or what has a place of its own."""


def tool_call(part_fields: dict[str, Any]) -> NativeCall:
    state = mapping(part_fields.get("state"))
    metadata, time = mapping(state.get("metadata")), mapping(state.get("time"))
    name, arguments = text(part_fields.get("tool")) or "", call_arguments(state)
    error, status = _failure(state, metadata)
    return NativeCall(
        id=text(part_fields.get("callID")) or "",
        name=name,
        arguments=arguments,
        result=_result(state, metadata),
        error=error,
        status=status,
        at=millis(time.get("start")),
        done=millis(time.get("end")),
        spawned=text(metadata.get("sessionId")) or text(metadata.get("sessionID")),
        detail=_detail(state, metadata),
        files=call_files(name, mapping(arguments), state, metadata) if status is ToolCallStatus.OK else (),
        lints=call_lints(metadata.get("diagnostics")),
    )


def call_identity(part_fields: dict[str, Any]) -> list[Any]:
    """What makes the identity of a call, in the order that `tool_call` takes it from."""
    state = mapping(part_fields.get("state"))
    identity = [part_fields.get("callID"), part_fields.get("tool"), call_arguments(state), state.get("status")]
    if state.get("status") == "completed":
        return [*identity, state.get("output"), attachments(state)]
    metadata = mapping(state.get("metadata"))
    return [*identity, state.get("error"), metadata.get("output") if metadata.get("interrupted") is True else None]


def call_arguments(state: dict[str, Any]) -> Any:
    """The arguments; while they are still written, their text so far."""
    arguments = state.get("input")
    return state.get("raw") if not arguments and text(state.get("raw")) else arguments


def attachments(state: dict[str, Any]) -> list[Any]:
    files = map(mapping, sequence(state.get("attachments")))
    return [present(mime=file.get("mime"), filename=file.get("filename"), url=file.get("url")) or {} for file in files]


def _result(state: dict[str, Any], metadata: dict[str, Any]) -> Any:
    if state.get("status") == "completed":
        attached = attachments(state)
        output = state.get("output", UNSET)
        return {"output": None if output is UNSET else output, "attachments": attached} if attached else output
    if metadata.get("interrupted") is True and isinstance(metadata.get("output"), str):
        return metadata["output"]
    return UNSET


def _failure(state: dict[str, Any], metadata: dict[str, Any]) -> tuple[str | None, ToolCallStatus | None]:
    status = state.get("status")
    if status == "completed":
        return None, ToolCallStatus.OK
    if status != "error":
        return None, None
    raw_error = state.get("error")
    error = raw_error if isinstance(raw_error, str) else "error"
    if metadata.get("interrupted") is True or error == "Tool execution aborted":
        return error, ToolCallStatus.INTERRUPTED
    if error.startswith("The user rejected permission"):
        return error, ToolCallStatus.CANCELED
    return error, ToolCallStatus.ERROR


def _detail(state: dict[str, Any], metadata: dict[str, Any]) -> dict[str, Any] | None:
    output, todos = state.get("output"), mapping(state.get("input")).get("todos")
    beside = {
        name: value
        for name, value in metadata.items()
        if name not in REPEATED
        and not (name == "output" and value == output)
        and not (name == "todos" and value == todos)
        and not (name == "truncated" and value is False)
    }
    difference = mapping(metadata.get("filediff"))
    changed = present(additions=difference.get("additions"), deletions=difference.get("deletions"))
    compacted = mapping(state.get("time")).get("compacted")
    return present(title=text(state.get("title")), metadata=beside, changed=changed, pruned_at=compacted)


def call_files(
    name: str, arguments: dict[str, Any], state: dict[str, Any], metadata: dict[str, Any]
) -> tuple[FileNote, ...]:
    if name in WRITERS:
        return tuple(FileNote(kind=FileKind.WRITTEN, path=path) for path in _written_paths(arguments, metadata))
    path = next((path for key in PATHS if (path := text(arguments.get(key))) is not None), None)
    if path is None:
        return ()
    if name == "read":
        return (_read_note(path, state, metadata),)
    if name in SEARCHERS:
        return (FileNote(kind=FileKind.REFERENCED, path=path),)
    return ()


def _read_note(path: str, state: dict[str, Any], metadata: dict[str, Any]) -> FileNote:
    display = mapping(metadata.get("display"))
    if display.get("type") == "directory":
        return FileNote(kind=FileKind.REFERENCED, path=path)
    start, end = whole_number(display.get("lineStart")), whole_number(display.get("lineEnd"))
    arguments = mapping(state.get("input"))
    if start is None and ("offset" in arguments or "limit" in arguments):
        output = state.get("output")
        match = NUMBERED.search(output[:400]) if isinstance(output, str) else None
        start = int(match[1]) if match else None
    return FileNote(kind=FileKind.READ, path=path, line_start=start, line_end=end)


def _written_paths(arguments: dict[str, Any], metadata: dict[str, Any]) -> list[str]:
    words = [text(arguments.get(key)) for key in PATHS]
    for file in map(mapping, sequence(metadata.get("files"))):
        words += [text(file.get("filePath")), text(file.get("movePath"))]
    if not any(words):
        patch = text(arguments.get("patchText")) or ""
        words += patched_paths(patch)
    if not any(words):
        words.append(text(mapping(metadata.get("filediff")).get("file")))
    return list(dict.fromkeys(path for path in words if path))


def call_lints(diagnostics: Any) -> tuple[LintNote, ...]:
    """As language servers tell them, by file; their lines and columns count from 0, ours from 1."""
    return tuple(
        _lint(path, diagnostic)
        for path, file_diagnostics in mapping(diagnostics).items()
        for diagnostic in map(mapping, sequence(file_diagnostics))
    )


def _lint(path: str, fields: dict[str, Any]) -> LintNote:
    start, end = (mapping(mapping(fields.get("range")).get(name)) for name in ("start", "end"))
    return LintNote(
        path=path,
        message=text(fields.get("message")),
        source=text(fields.get("source")),
        start_line=_from_one(start.get("line")),
        start_col=_from_one(start.get("character")),
        end_line=_from_one(end.get("line")),
        end_col=_from_one(end.get("character")),
        severity=SEVERITIES.get(whole_number(fields.get("severity")) or 0),
    )


def _from_one(number: Any) -> int | None:
    counted = whole_number(number)
    return None if counted is None else counted + 1


# --- Messages and their parts: what was said, by whom, at what cost.


def usage_tokens(usage: Any) -> Tokens | None:
    if not isinstance(usage, dict):
        return None
    cache = mapping(usage.get("cache"))
    input_tokens, cache_read, cache_written = (
        whole_number(usage.get("input")),
        whole_number(cache.get("read")),
        whole_number(cache.get("write")),
    )
    output, reasoning = whole_number(usage.get("output")), whole_number(usage.get("reasoning"))
    if output is not None and reasoning:
        total = whole_number(usage.get("total"))
        remaining = None if total is None else total - (input_tokens or 0) - (cache_read or 0) - (cache_written or 0)
        output = _with_reasoning(output, reasoning, remaining)
    counts = Tokens(
        input=input_tokens, output=output, cached=cache_read, cache_write=cache_written, reasoning=reasoning
    )
    return None if counts == Tokens() else counts


def _with_reasoning(output: int, reasoning: int, remaining: int | None) -> int:
    if remaining is not None and output <= remaining <= output + reasoning:
        return remaining
    return output if reasoning <= output else output + reasoning


def summed_steps(steps: list[Any]) -> Tokens | None:
    """Of a message that holds several responses."""
    counted = [step_tokens for step in steps if (step_tokens := usage_tokens(step)) is not None]
    if not counted:
        return None

    def add(name: str) -> int | None:
        counts = [count for step_tokens in counted if (count := getattr(step_tokens, name)) is not None]
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


def add_part(message_parts: MessageParts, part_fields: dict[str, Any]) -> bool:
    """One part more; False if its kind is not known."""
    kind = text(part_fields.get("type")) or ""
    adder = ADDERS.get(kind)
    if adder is None:
        message_parts.reduced.append([kind, text(part_fields.get("id"))])
        return False
    reduced = adder(message_parts, part_fields)
    if part_fields.get("beside") is not True:  # else it is a field of the message, and no part that stands for itself
        message_parts.reduced.append([kind, text(part_fields.get("id")), *reduced])
    return True


def _add_text(message_parts: MessageParts, part_fields: dict[str, Any]) -> list[Any]:
    words = part_fields.get("text")
    if not isinstance(words, str):
        return []
    if message_parts.is_prompt and part_fields.get("ignored") is True:
        message_parts.ignored.append(words)
        return [words, "ignored"]
    if message_parts.is_prompt and part_fields.get("synthetic") is True:
        message_parts.synthetic.append(words)
        return [words, "synthetic"]
    if words:
        message_parts.parts.append(TextPart(words))
    return [words]


def _add_reasoning(message_parts: MessageParts, part_fields: dict[str, Any]) -> list[Any]:
    words = part_fields.get("text")
    if isinstance(words, str) and words:
        message_parts.parts.append(ReasoningPart(words))
    return [words]


def _add_file(message_parts: MessageParts, part_fields: dict[str, Any]) -> list[Any]:
    if (image := attached_image(part_fields)) is not None:
        message_parts.parts.append(image)
    else:
        message_parts.note("attachments", file_description(part_fields))
    if (note := attached_note(part_fields)) is not None:
        message_parts.files.append(note)
    return file_identity(part_fields)


def _add_tool(message_parts: MessageParts, part_fields: dict[str, Any]) -> list[Any]:
    message_parts.calls.append(tool_call(part_fields))
    return call_identity(part_fields)


def _add_patch(message_parts: MessageParts, part_fields: dict[str, Any]) -> list[Any]:
    message_parts.patched += [path for path in sequence(part_fields.get("files")) if isinstance(path, str)]
    return []


def _add_step(message_parts: MessageParts, part_fields: dict[str, Any]) -> list[Any]:
    if (counted := part_fields.get("tokens")) is not None:
        message_parts.steps.append(counted)
    message_parts.note("snapshots", text(part_fields.get("snapshot")))
    return []


def _add_subtask(message_parts: MessageParts, part_fields: dict[str, Any]) -> list[Any]:
    """A command that is run by a subagent: its prompt is what the person asked for."""
    prompt = text(part_fields.get("prompt"))
    if prompt is not None:
        message_parts.parts.append(TextPart(prompt))
    subtask = {
        name: part_fields[name] for name in ("agent", "description", "command", "model") if part_fields.get(name)
    }
    message_parts.note("subtasks", subtask)
    return [prompt]


def _add_agent(message_parts: MessageParts, part_fields: dict[str, Any]) -> list[Any]:
    message_parts.note("agents", text(part_fields.get("name")))
    return [part_fields.get("name")]


def _add_skill(message_parts: MessageParts, part_fields: dict[str, Any]) -> list[Any]:
    message_parts.note("skills", text(part_fields.get("name")))
    return [part_fields.get("name")]


def _add_shell(message_parts: MessageParts, part_fields: dict[str, Any]) -> list[Any]:
    """What a person ran; the words of it are a text beside it."""
    command_fields = {
        name: part_fields[name] for name in ("command", "exit", "status") if part_fields.get(name) is not None
    }
    message_parts.note("ran", command_fields)
    return [part_fields.get("command")]


def _add_retry(message_parts: MessageParts, part_fields: dict[str, Any]) -> list[Any]:
    error, time = error_text(part_fields.get("error")), mapping(part_fields.get("time")).get("created")
    message_parts.note("retries", present(attempt=part_fields.get("attempt"), error=error, at=time))
    return []


def _add_compaction(message_parts: MessageParts, part_fields: dict[str, Any]) -> list[Any]:
    message_parts.compaction = part_fields
    return [part_fields.get("auto") is True, part_fields.get("overflow") is True, part_fields.get("tail_start_id")]


ADDERS: dict[str, Callable[[MessageParts, dict[str, Any]], list[Any]]] = {
    "text": _add_text,
    "reasoning": _add_reasoning,
    "file": _add_file,
    "tool": _add_tool,
    "patch": _add_patch,
    "step-start": _add_step,
    "step-finish": _add_step,
    "snapshot": _add_step,
    "subtask": _add_subtask,
    "agent": _add_agent,
    "skill": _add_skill,
    "shell": _add_shell,
    "retry": _add_retry,
    "compaction": _add_compaction,
}


def error_text(error: Any) -> str | None:
    """An error in words: its name and what it says."""
    fields = mapping(error)
    name, message = text(fields.get("name")), text(mapping(fields.get("data")).get("message"))
    return ": ".join(word for word in (name, message) if word) or ("error" if fields else None)


def prompt_items(
    info: dict[str, Any], message_parts: MessageParts, native: str | None, is_subagent: bool
) -> NativeMessage:
    """A user's message. Without words of its own, what opencode wrote into it is the prompt."""
    is_event = not message_parts.parts and bool(
        message_parts.synthetic or message_parts.ignored or message_parts.compaction
    )
    injected = [] if is_event else message_parts.synthetic
    prompt_parts = (
        [TextPart(words) for words in message_parts.synthetic or message_parts.ignored if words]
        if is_event
        else message_parts.parts
    )
    summary = mapping(info.get("summary"))
    human = MessageSource.AGENT if is_subagent else MessageSource.HUMAN
    return NativeMessage(
        role=MessageRole.USER,
        parts=tuple(prompt_parts),
        native=native,
        at=created_at(info),
        source=MessageSource.EVENT if is_event else human,
        context=present(system=text(info.get("system")), injected=injected),
        metadata=present(
            **message_parts.beside,
            title=text(summary.get("title")),
            summary=text(summary.get("body")),
            format=info.get("format"),
            not_shown=message_parts.ignored
            if message_parts.parts or message_parts.synthetic
            else bool(message_parts.ignored) or None,
        ),
        files=tuple(message_parts.files),
    )


def response_items(info: dict[str, Any], message_parts: MessageParts, native: str | None) -> tuple[Item, ...]:
    """An assistant's message, then its calls."""
    written_paths = {note.path for call in message_parts.calls for note in call.files if note.kind == FileKind.WRITTEN}
    patched = [path for path in dict.fromkeys(message_parts.patched) if not _is_among(path, written_paths)]
    message = NativeMessage(
        role=MessageRole.ASSISTANT,
        parts=tuple(message_parts.parts),
        native=native,
        at=created_at(info),
        model=text(info.get("modelID")),
        provider=text(info.get("providerID")),
        tokens=summed_steps(message_parts.steps) if len(message_parts.steps) > 1 else usage_tokens(info.get("tokens")),
        finish_reason=text(info.get("finish")),
        metadata=present(
            **message_parts.beside,
            agent=text(info.get("agent")) or text(info.get("mode")),
            variant=text(info.get("variant")),
            cost=info.get("cost"),
            completed=completed_at(info),
            structured=info.get("structured"),
            error=_error(info.get("error")),
        ),
        files=(*message_parts.files, *(FileNote(kind=FileKind.WRITTEN, path=path) for path in patched)),
    )
    return (message, *message_parts.calls)


def _is_among(path: str, written_paths: set[str]) -> bool:
    """Is it one of them, perhaps told from the root of the project?"""
    return path in written_paths or any(written_path.endswith(f"/{path}") for written_path in written_paths)


def _error(error: Any) -> Any:
    """All but the headers of the reply, which tell of the connection."""
    fields = mapping(error)
    data = {name: value for name, value in mapping(fields.get("data")).items() if name != "responseHeaders"}
    return present(name=fields.get("name"), data=data)


def system_items(info: dict[str, Any], message_parts: MessageParts, native: str | None) -> tuple[Item, ...]:
    message = NativeMessage(
        role=MessageRole.SYSTEM,
        parts=tuple(message_parts.parts),
        native=native,
        at=created_at(info),
        source=MessageSource.EVENT,
        metadata=present(**message_parts.beside),
        files=tuple(message_parts.files),
    )
    return (message, *message_parts.calls)


def created_at(info: dict[str, Any]) -> int | None:
    return millis(mapping(info.get("time")).get("created"))


def completed_at(info: dict[str, Any]) -> int | None:
    return millis(mapping(info.get("time")).get("completed"))
