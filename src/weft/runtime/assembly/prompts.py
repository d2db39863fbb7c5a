"""The system prompt of a request: the agent's own, or the one in effect, or what an embedded model is told by default.

A turn brings a prompt only where another one is in effect, so that requests go on beginning the same.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from weft.kernel.enums import MessageRole
from weft.ledger.model import Message, NewMessage

DEFAULT_PROMPT = "default_of_embedded_model"
"""In the metadata of a system message: nobody gave it, and no other model is sent it."""


class SystemPrompt(Struct, frozen=True, kw_only=True):
    """What a turn's requests are to begin with."""

    text: str | None = None
    """Replaces the system prompt so far; None leaves it."""
    default: str | None = None
    """What this model is told where there is no prompt at all; no other model is sent it."""
    persona: str | None = None
    """Whose prompt it is."""


def changed_prompt(prompt: SystemPrompt, history: Sequence[Message | NewMessage]) -> tuple[list[NewMessage], bool]:
    """The system prompt that the turn begins with, unless it is in effect already; and whether the history's own is
    left out."""
    in_effect = history[0] if history and history[0].role == "system" else None
    brought = _prompt_to_bring(prompt, in_effect)
    is_replaced = brought is not None or (is_default_prompt(in_effect) and prompt.default is None)
    return [] if brought is None else [brought], in_effect is not None and is_replaced


def _prompt_to_bring(prompt: SystemPrompt, in_effect: Message | NewMessage | None) -> NewMessage | None:
    if prompt.text is not None:
        is_same = in_effect is not None and text_of(in_effect) == prompt.text and not is_default_prompt(in_effect)
        context = None if prompt.persona is None else {"persona": prompt.persona}
        return None if is_same else NewMessage(role=MessageRole.SYSTEM, content=prompt.text, context=context)
    if prompt.default is not None and in_effect is None:
        return NewMessage(role=MessageRole.SYSTEM, content=prompt.default, metadata={DEFAULT_PROMPT: True})
    return None


def is_default_prompt(message: Message | NewMessage | None) -> bool:
    """Whether this is the prompt that the embedded model alone is given."""
    metadata = None if message is None else message.metadata
    return isinstance(metadata, dict) and DEFAULT_PROMPT in metadata


def text_of(message: Message | NewMessage) -> str:
    if isinstance(message, Message):
        return message.text
    return message.content if isinstance(message.content, str) else ""
