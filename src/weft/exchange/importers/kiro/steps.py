"""What every store of Kiro tells, in one form: a session is a list of steps."""

from __future__ import annotations

import base64
from enum import Enum, auto
from typing import Any

from msgspec import UNSET, Struct, field

from weft.exchange.importers.transcript import NativeCall, Tokens
from weft.exchange.importers.values import mapping, sequence, text
from weft.kernel.enums import MessageSource
from weft.ledger.model import ImagePart, Part


class Kind(Enum):
    PROMPT = auto()
    """A turn begins."""
    INJECTED = auto()
    """Put into the context by Kiro: it belongs to the prompt after it."""
    ANSWER = auto()
    RESULTS = auto()
    COMPACTION = auto()
    CLEAR = auto()
    """The context was emptied: what follows grows from nothing."""
    ENDED = auto()
    """The turn under way is over."""
    BESIDE = auto()
    """Tells more of the turn under way."""


class Outcome(Struct, frozen=True):
    """What a tool gave back."""

    id: str
    result: Any = UNSET
    failed: bool = False
    cancelled: bool = False
    duration_ms: int | None = None


class Step(Struct, kw_only=True):
    kind: Kind
    offset: int = 0
    end: int = 0
    id: str | None = None
    at: int | None = None
    done: int | None = None
    literal_time: str | None = None
    parts: list[Part] = field(default_factory=list)
    calls: list[NativeCall] = field(default_factory=list)
    outcomes: list[Outcome] = field(default_factory=list)
    source: MessageSource | None = None
    model: str | None = None
    tokens: Tokens | None = None
    words: str = ""
    """Of a summary, or how a turn ended."""
    stopped: bool = False
    error: str | None = None
    context: Any = None
    metadata: dict[str, Any] | None = None
    workspace: str | None = None
    identity: Any = None
    """What makes it what it is: ids and contents."""


def image_part(told: Any) -> ImagePart | None:
    """An image with its format and its bytes, written as numbers or in base64."""
    image = mapping(told)
    source = image.get("source")
    data: Any = mapping(source).get("data", mapping(source).get("Bytes", mapping(source).get("bytes", source)))
    kind = text(image.get("format")) or text(image.get("mimeType")) or "png"
    mime = kind if "/" in kind else f"image/{kind.lower()}"
    if isinstance(data, str) and data:
        return ImagePart(data if data.startswith("data:") else f"data:{mime};base64,{data}")
    numbers = sequence(data)
    if not numbers or not all(type(each) is int and 0 <= each < 256 for each in numbers):
        return None
    return ImagePart(f"data:{mime};base64,{base64.b64encode(bytes(numbers)).decode()}")


def plain(content: Any) -> Any:
    """What a tool gave back, as the text or the value that it is: `{"Text": …}`, `{"kind": "text", "data": …}`."""
    if not isinstance(content, list):
        return content
    values = [_value(each) for each in content]
    if all(isinstance(each, str) for each in values):
        return "\n".join(values)
    return values[0] if len(values) == 1 else values


def _value(each: Any) -> Any:
    block = mapping(each)
    for name in ("Text", "Json", "data", "text"):
        if name in block:
            return block[name]
    return each
