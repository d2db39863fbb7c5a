"""The kinds of messages, and what each is to the turns of its session."""

from __future__ import annotations

import re
from enum import Enum, auto
from typing import Any

from weft.exchange.importers.gemini_cli.content import content_of, said
from weft.exchange.importers.values import text


class Standing(Enum):
    PROMPT = auto()
    INJECTED = auto()
    """A user's message that Gemini CLI wrote itself: it belongs to the turn under way, or begins one if none is."""
    ANSWER = auto()
    COMPACTION = auto()
    """A summary that the conversation goes on from."""
    NOTICE = auto()
    """Shown to the person, not to the model."""
    UNKNOWN = auto()


ANSWERS = frozenset({"gemini", "model", "assistant"})
NOTICES = frozenset({"info", "warning", "error"})
TYPES = ANSWERS | NOTICES | {"user"}
SUMMARY = re.compile(r"\s*(?:<scratchpad>.*?</scratchpad>\s*)?<state_snapshot>", re.DOTALL)
INJECTED = re.compile(
    r"\s*(?:<session_context>|<hook_context>|This is the Gemini CLI\. We are setting up the context for our chat"
    r"|System: Please continue\.\s*\Z)"
)
CANCELLED = re.compile(r"\s*(?:Request cancelled\.|User cancelled the request\.)\s*")


def classify(message: dict[str, Any]) -> tuple[str, Standing]:
    """A message's kind, as it is counted, and what it is to the turns."""
    kind = text(message.get("type")) or text(message.get("role")) or "untyped"
    if kind in ANSWERS:
        return "gemini", Standing.ANSWER
    if kind in NOTICES:
        return kind, Standing.NOTICE
    return (kind, _of_user(message)) if kind == "user" else (f"message.{kind}", Standing.UNKNOWN)


def _of_user(message: dict[str, Any]) -> Standing:
    content = said(content_of(message))
    if content.results and not content.parts:
        return Standing.ANSWER
    first = content.texts[0] if content.texts else ""
    if SUMMARY.match(first):
        return Standing.COMPACTION
    return Standing.INJECTED if INJECTED.match(first) else Standing.PROMPT
