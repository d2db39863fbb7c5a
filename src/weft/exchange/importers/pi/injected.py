"""Messages that no person typed as a prompt: commands run, files mentioned, what extensions and the agent put in."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from weft.exchange.importers.pi.content import image_url, said
from weft.exchange.importers.pi.responses import tokens
from weft.exchange.importers.transcript import NativeMessage
from weft.exchange.importers.values import mapping, millis, present, sequence, text
from weft.kernel.enums import FileKind, MessageRole, MessageSource
from weft.ledger.model import FileNote, ImagePart, Part, TextPart

Injected = tuple[list[Any], NativeMessage]
SOURCES = {"user": MessageSource.HUMAN, "agent": MessageSource.AGENT}


def injected(kind: str, entry: dict[str, Any]) -> Injected:
    """The entry reduced to what makes its identity, and its message."""
    message = mapping(entry.get("message")) if kind.startswith("message.") else entry
    return MAKERS[kind](entry, message)


def _message(entry: dict[str, Any], message: dict[str, Any], parts: tuple[Part, ...], **more: Any) -> NativeMessage:
    defaults: dict[str, Any] = {"role": MessageRole.USER, "source": MessageSource.EVENT}
    when = millis(message.get("timestamp")) or millis(entry.get("timestamp"))
    return NativeMessage(parts=parts, native=text(entry.get("id")), at=when, **{**defaults, **more})


def _custom(entry: dict[str, Any], message: dict[str, Any]) -> Injected:
    """Both shapes and the old name of an extension's message are one thing."""
    content = said(message.get("content"))
    kind = text(message.get("customType"))
    made = _message(
        entry,
        message,
        tuple(content.parts),
        source=SOURCES.get(text(message.get("attribution")) or "", MessageSource.EVENT),
        metadata=present(
            custom_type=kind, details=message.get("details"), display=message.get("display"), blocks=content.elsewhere
        ),
    )
    return ["custom", text(entry.get("id")), kind, content.reduced], made


def _system(entry: dict[str, Any], message: dict[str, Any]) -> Injected:
    content = said(message.get("content"))
    made = _message(
        entry, message, tuple(content.parts), role=MessageRole.SYSTEM, metadata=present(blocks=content.elsewhere)
    )
    return ["system", text(entry.get("id")), content.reduced], made


def _initial(entry: dict[str, Any], message: dict[str, Any]) -> Injected:
    """oh-my-pi: the system prompt that a subagent was started with."""
    content = said(entry.get("systemPrompt"))
    made = _message(entry, message, tuple(content.parts), role=MessageRole.SYSTEM)
    return ["system", text(entry.get("id")), content.reduced], made


def _run(name: str) -> Callable[[dict[str, Any], dict[str, Any]], Injected]:
    """A command that a person ran themselves, with what it printed."""

    def made(entry: dict[str, Any], message: dict[str, Any]) -> Injected:
        command, output = text(message.get(name)) or "", text(message.get("output")) or ""
        code, is_cancelled = message.get("exitCode"), message.get("cancelled") is True
        shown = f"Ran `{command}`" + (f"\n```\n{output}\n```" if output else "")
        beside = present(
            command=command,
            exit_code=code,
            cancelled=is_cancelled or None,
            truncated=message.get("truncated") or None,
            excluded=message.get("excludeFromContext") or None,
        )
        reduced = [name, text(entry.get("id")), command, output, code, is_cancelled]
        return reduced, _message(entry, message, (TextPart(shown),), source=MessageSource.HUMAN, metadata=beside)

    return made


def _mentioned(entry: dict[str, Any], message: dict[str, Any]) -> Injected:
    """oh-my-pi: files that a prompt mentions, read for it."""
    parts: list[Part] = []
    notes: list[FileNote] = []
    reduced: list[Any] = []
    for file in map(mapping, sequence(message.get("files"))):
        path, content = text(file.get("path")), text(file.get("content"))
        url = image_url(mapping(file.get("image")))
        reduced.append([path, content, url])
        if path is not None:
            notes.append(FileNote(kind=FileKind.ATTACHED, path=path))
        if content is not None:
            parts.append(TextPart(f"{path}\n{content}" if path else content))
        if url is not None:
            parts.append(ImagePart(url))
    return ["files", text(entry.get("id")), reduced], _message(entry, message, tuple(parts), files=tuple(notes))


def _summary(entry: dict[str, Any], message: dict[str, Any]) -> Injected:
    """What was found on a branch that the conversation has left."""
    summary = text(message.get("summary")) or ""
    made = _message(
        entry,
        message,
        (TextPart(summary),) if summary else (),
        tokens=tokens(message.get("usage")),
        metadata=present(branch_left=message.get("fromId"), details=message.get("details")),
    )
    return ["summary", text(entry.get("id")), summary], made


MAKERS: dict[str, Callable[[dict[str, Any], dict[str, Any]], Injected]] = {
    "custom_message": _custom,
    "message.custom": _custom,
    "message.hookMessage": _custom,
    "message.system": _system,
    "message.developer": _system,
    "session_init": _initial,
    "message.bashExecution": _run("command"),
    "message.pythonExecution": _run("code"),
    "message.fileMention": _mentioned,
    "branch_summary": _summary,
    "message.branchSummary": _summary,
    "message.compactionSummary": _summary,
}
