"""What a server answered to a call, as the result of a tool: JSON, and images beside it."""

from __future__ import annotations

import base64
import binascii
import re
from typing import Any

from mcp_types import (
    AudioContent,
    BlobResourceContents,
    CallToolResult,
    EmbeddedResource,
    ImageContent,
    ResourceLink,
    TextContent,
    TextResourceContents,
)

from weft.kernel.contents import loads
from weft.kernel.errors import WeftError
from weft.ledger.model import ImagePart
from weft.runtime.tools.calls import ToolFailure, ToolOutput

_is_image_type = re.compile(r"image/[A-Za-z0-9.+-]{1,64}").fullmatch
_LONGEST_MESSAGE = 4000


def output_of(answer: CallToolResult) -> ToolOutput:
    """Text alone is the result itself. Other parts stand in a list, images as a mark of what is given beside it.

    Raises ToolFailure where the server says that the tool failed.
    """
    images: list[ImagePart] = []
    blocks = [_block(block, images) for block in answer.content]
    result = _combined(blocks, answer.structured_content)
    if answer.is_error:
        texts = [block["text"] for block in blocks if isinstance(block.get("text"), str)]
        message = "\n".join(texts)[:_LONGEST_MESSAGE] or "the tool failed and does not say why"
        raise ToolFailure("tool_error", message, result)
    return ToolOutput(result=result, images=tuple(images))


def _combined(blocks: list[dict[str, Any]], structured: Any) -> Any:
    """Servers say structured content once more in words, for clients that read nothing else: then it stands alone.
    What is no object they wrap into `{"result": …}`."""
    is_text = len(blocks) == 1 and blocks[0]["type"] == "text"
    if structured is None:
        return blocks[0]["text"] if is_text else blocks
    if not blocks or (is_text and _says(blocks[0]["text"], structured)):
        return structured
    is_wrapped = isinstance(structured, dict) and list(structured) == ["result"]
    if is_wrapped and is_text and _says(blocks[0]["text"], structured["result"]):
        return structured["result"]
    return {"structured": structured, "content": blocks}


def _says(text: str, value: Any) -> bool:
    """Whether a text is this value, or its JSON."""
    if text == value:
        return True
    try:
        return bool(loads(text.encode()) == value)
    except (WeftError, UnicodeEncodeError):
        return False


def _block(block: Any, images: list[ImagePart]) -> dict[str, Any]:
    match block:
        case TextContent():
            return {"type": "text", "text": block.text}
        case ImageContent():
            return _image(block.mime_type, block.data, images)
        case AudioContent():
            return {"type": "audio", "media_type": block.mime_type, "data": block.data}
        case ResourceLink():
            return _given(
                type="link", uri=str(block.uri), name=block.name, description=block.description,
                media_type=block.mime_type,
            )  # fmt: skip
        case EmbeddedResource():
            return _resource(block.resource, images)
        case _:
            return {"type": "unknown", "kind": str(getattr(block, "type", ""))[:64]}


def _resource(resource: TextResourceContents | BlobResourceContents, images: list[ImagePart]) -> dict[str, Any]:
    if isinstance(resource, TextResourceContents):
        return _given(type="resource", uri=str(resource.uri), media_type=resource.mime_type, text=resource.text)
    if resource.mime_type is not None and _is_image_type(resource.mime_type):
        return {**_image(resource.mime_type, resource.blob, images), "uri": str(resource.uri)}
    return _given(type="resource", uri=str(resource.uri), media_type=resource.mime_type, data=resource.blob)


def _image(media_type: str, data: str, images: list[ImagePart]) -> dict[str, Any]:
    """An image is given beside the result; what is none by its type or its writing is said to be so."""
    try:
        size = len(base64.b64decode(data, validate=True))
    except (binascii.Error, ValueError):
        size = None
    if size is None or not _is_image_type(media_type):
        return {"type": "image", "media_type": media_type[:64], "is_valid": False}
    images.append(ImagePart(f"data:{media_type};base64,{data}"))
    return {"type": "image", "media_type": media_type, "number": len(images), "bytes": size}


def _given(**fields: Any) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}
