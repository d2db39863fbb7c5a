"""Sessions of the editor before 1.0: one JSON document each, in a folder that is named by its workspace in base64."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from weft.exchange.importers.kiro.steps import Kind, Step, image_part
from weft.exchange.importers.port import Report
from weft.exchange.importers.transcript import NativeSession
from weft.exchange.importers.values import mapping, millis, present, sequence, text
from weft.ledger.model import Part, TextPart

ROLES = {
    "user": Kind.PROMPT,
    "human": Kind.PROMPT,
    "assistant": Kind.ANSWER,
    "bot": Kind.ANSWER,
    "system": Kind.INJECTED,
}


def folder_name(path: Path) -> str | None:
    """The workspace that a folder's name stands for."""
    name = path.parent.name.replace("-", "+").replace("_", "/")
    try:
        found = base64.b64decode(name + "=" * (-len(name) % 4), validate=True).decode()
    except (ValueError, binascii.Error):
        return None
    return found if found.isprintable() and ("/" in found or "\\" in found) else None


def session_of(value: dict[str, Any], path: Path) -> NativeSession:
    return NativeSession(
        id=text(value.get("sessionId")) or path.stem,
        title=text(value.get("title")),
        workspace=text(value.get("workspaceDirectory")) or text(value.get("workspacePath")) or folder_name(path),
        created=millis(value.get("dateCreated")) or millis(value.get("createdAt")),
        metadata=present(model=value.get("selectedModel") or value.get("modelId"), kind=value.get("sessionType")),
    )


def steps(value: dict[str, Any], report: Report) -> Iterator[Step]:
    model = text(value.get("selectedModel")) or text(value.get("modelId"))
    for number, entry in enumerate(sequence(value.get("history")) or sequence(value.get("messages"))):
        report.found += 1
        told = mapping(entry)
        message = mapping(told.get("message")) or told
        role = text(message.get("role")) or "none"
        kind = ROLES.get(role)
        if kind is None:
            report.kept[f"message.{role}"] += 1
            report.unknown[f"message.{role}"] += 1
            continue
        report.mapped[f"message.{role}"] += 1
        parts = _parts(message.get("content"))
        yield Step(
            kind=kind,
            id=text(message.get("id")),
            at=millis(message.get("timestamp")) or millis(told.get("timestamp")),
            parts=parts,
            model=model if kind is Kind.ANSWER else None,
            context=present(items=told.get("contextItems")) if kind is Kind.PROMPT else None,
            metadata=present(execution=told.get("executionId")),
            identity=message.get("content"),
            offset=number,
            end=number + 1,
        )


def _parts(content: Any) -> list[Part]:
    if isinstance(content, str):
        return [TextPart(content)] if content else []
    found: list[Part] = []
    for block in map(mapping, sequence(content)):
        if (words := text(block.get("text"))) is not None:
            found.append(TextPart(words))
        elif (url := text(mapping(block.get("imageUrl")).get("url"))) and (part := image_part({"source": url})):
            found.append(part)
    return found
