"""What a tool gave back, as text: parts joined, images by their size, envelopes opened, anything else as JSON."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from weft.surfaces.cli.figures import size_text
from weft.surfaces.cli.rendering.page import image_text

OUTPUTS = ("output", "stdout", "text", "content", "result", "message")
BESIDE = frozenset(
    "stderr exit_code exitCode exit success metadata type status detail image_url is_error isError truncated title"
    " duration_ms durationMs bytes_written".split()
)
ENVELOPES = 4
_PREFACE = re.compile(
    r"(?:(?:Script \w+|Chunk ID|Wall time|Process exited|Exit code|Original token count|Total output lines)\b"
    r"[^\n]*\n+)+"
    r"Output:\n*"
)


def output_text(text: str) -> str:
    """Without the lines about the run that some tools put before an output; the call's own line tells them."""
    preface = _PREFACE.match(text)
    return text[preface.end() :] if preface else text


def result_text(value: Any, depth: int = ENVELOPES) -> str:
    """A result as people read it."""
    if isinstance(value, str):
        opened = _opened(value)
        return value if opened is None or not depth else result_text(opened, depth - 1)
    if isinstance(value, list) and value and all(isinstance(part, dict) and "type" in part for part in value):
        return "\n".join(text for part in value if (text := _part_text(part, depth)))
    if isinstance(value, dict) and depth:
        inside = _enveloped(value, depth)
        if inside is not None:
            return inside
    return as_json(value, indent=2)


def _opened(text: str) -> Any:
    """Text that is itself an envelope in JSON, as some tools answer."""
    if not (text.startswith("{") and text.rstrip().endswith("}") and '"output"' in text[:4096] + text[-4096:]):
        return None
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) and _enveloped(value, 1) is not None else None


def _enveloped(value: dict[str, Any], depth: int) -> str | None:
    """The output in an object that holds nothing else but how it came about."""
    names = [name for name in OUTPUTS if isinstance(value.get(name), str | list)]
    if len(names) != 1 or not set(value) <= BESIDE | {names[0]}:
        return None
    errors = value.get("stderr")
    texts = (result_text(value[names[0]], depth - 1), errors if isinstance(errors, str) else "")
    return "\n".join(text for text in texts if text)


def _part_text(part: dict[str, Any], depth: int) -> str:
    if "text" in part and isinstance(part["text"], str):
        return result_text(part["text"], depth - 1) if depth else part["text"]
    image = next(iter(_images(part)), None)
    return image or as_json(part)


def _images(part: dict[str, Any]) -> Iterator[str]:
    """An image in any of the ways that providers write one."""
    if "image" not in str(part["type"]):
        return
    source = part.get("source", part)
    data = source.get("data") if isinstance(source, dict) else None
    if isinstance(data, str):
        yield f"[image, {size_text(len(data) * 3 // 4)}]"
    for holder in (part, source):
        for name in ("image_url", "url"):
            url = holder.get(name) if isinstance(holder, dict) else None
            url = url.get("url") if isinstance(url, dict) else url
            if isinstance(url, str):
                yield image_text(url)


def as_json(value: Any, indent: int | None = None) -> str:
    return json.dumps(value, ensure_ascii=False, indent=indent)
