"""Messages of Gemini CLI: what they say, in the parts of Gemini's API, and what each is to the turns of its session.

Whether a user's message is a prompt, a summary or something that the tool put there is told by how its text begins.
"""

from __future__ import annotations

import re
from typing import Any

from weft.exchange.importers.records.builder import MessageContent
from weft.exchange.importers.records.roles import Role
from weft.exchange.importers.records.values import mapping, sequence, text
from weft.ledger.model import ImagePart, ReasoningPart, TextPart


def message_content(message: dict[str, Any]) -> MessageContent:
    return content_of(message["content"] if "content" in message else message.get("parts"))


def content_of(value: Any) -> MessageContent:
    """A text, a part, or a list of both."""
    content = MessageContent()
    for part in value if isinstance(value, list) else [] if value is None else [value]:
        _add_part(content, part)
    return content


def _add_part(content: MessageContent, part: Any) -> None:
    words = part if isinstance(part, str) else part.get("text") if isinstance(part, dict) else None
    if isinstance(words, str):
        is_thought = isinstance(part, dict) and part.get("thought") is True
        content.identity.append(["thought" if is_thought else "text", words])
        if words:
            content.parts.append(ReasoningPart(words) if is_thought else TextPart(words))
    elif not isinstance(part, dict):
        content.add_other(part)
    elif isinstance(call := part.get("functionCall"), dict):
        content.calls.append(call)
        content.identity.append(["call", call.get("id"), call.get("name"), call.get("args")])
    elif isinstance(result := part.get("functionResponse"), dict):
        content.results.append(result)
        content.identity.append(["result", result.get("id"), result.get("name"), result.get("response")])
    elif (url := image_url(part.get("inlineData"))) is not None:
        content.parts.append(ImagePart(url))
        content.identity.append(["image", url])
    else:
        content.add_other(part)


def image_url(data: Any) -> str | None:
    inline = mapping(data)
    mime, encoded = text(inline.get("mimeType")), text(inline.get("data"))
    if mime is None or encoded is None or not mime.startswith("image/"):
        return None
    return f"data:{mime};base64,{encoded}"


def thoughts(message: dict[str, Any]) -> list[str]:
    """What the model told of its thinking: a subject and some words each."""
    texts = []
    for thought in map(mapping, sequence(message.get("thoughts"))):
        words = [text(thought.get(name)) for name in ("subject", "description", "summary")]
        if any(words):
            texts.append("\n".join(word for word in words if word))
    return texts


ANSWERS = frozenset({"gemini", "model", "assistant"})
NOTICES = frozenset({"info", "warning", "error"})
TYPES = ANSWERS | NOTICES | {"user"}
_is_summary = re.compile(r"\s*(?:<scratchpad>.*?</scratchpad>\s*)?<state_snapshot>", re.DOTALL)
_is_injected = re.compile(
    r"\s*(?:<session_context>|<hook_context>|This is the Gemini CLI\. We are setting up the context for our chat"
    r"|System: Please continue\.\s*\Z)"
)
CANCELLED = re.compile(r"\s*(?:Request cancelled\.|User cancelled the request\.)\s*")


def classify(message: dict[str, Any]) -> tuple[str, Role]:
    """A message's kind, as it is counted, and its role."""
    kind = text(message.get("type")) or text(message.get("role")) or "untyped"
    if kind in ANSWERS:
        return "gemini", Role.ANSWER
    if kind in NOTICES:
        return kind, Role.NOTICE
    return (kind, _of_user(message)) if kind == "user" else (f"message.{kind}", Role.UNKNOWN)


def _of_user(message: dict[str, Any]) -> Role:
    content = message_content(message)
    if content.results and not content.parts:
        return Role.ANSWER
    first = content.texts[0] if content.texts else ""
    if _is_summary.match(first):
        return Role.COMPACTION
    return Role.INJECTED if _is_injected.match(first) else Role.PROMPT
