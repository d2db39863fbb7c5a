"""What the next request of a session would send before its own query: the prompt, then what was said, cut to fit."""

from __future__ import annotations

from msgspec.structs import replace

from weft.ledger.api import Context
from weft.ledger.model import PROMPT_SEQUENCE, Message, NewMessage, TextPart
from weft.runtime.assembly.cuts import apply_cut, cut_to_fit
from weft.runtime.assembly.layers import layers_of
from weft.runtime.assembly.prompts import SystemPrompt, changed_prompt
from weft.runtime.assembly.sizes import ContextBudget, MeasuredRequest


def next_request(
    context: Context, prompt: SystemPrompt, budget: ContextBudget | None, tokens: int | None = None
) -> Context:
    """The context of a session as a broker would send it. Without a budget nothing more is cut than was before: no
    model is known that it must fit. `tokens` is what the provider counted for the last request and its answer."""
    brought, is_replaced = changed_prompt(prompt, context.messages)
    history = context.messages[1:] if is_replaced else context.messages
    whole = replace(context, messages=(*map(_shown, brought), *history))
    layers = layers_of(whole)
    if budget is None:
        return replace(whole, messages=apply_cut(layers, context.cut))
    measured = None
    if tokens is not None:
        measured = MeasuredRequest(tuple(message.id for message in apply_cut(layers, context.cut)), tokens)
    fitted = cut_to_fit(layers, budget, measured, context.cut, context.compaction)
    return replace(whole, messages=fitted.sent, cut=fitted.cut)


def _shown(message: NewMessage) -> Message:
    """A prompt that no turn has recorded yet."""
    parts = message.content if isinstance(message.content, tuple) else (TextPart(message.content),)
    return Message("", message.role, parts, PROMPT_SEQUENCE, 0, context=message.context, metadata=message.metadata)
