"""How large a context is, and how large it may be.

The provider counts the tokens of every request that it answers: what the last one counted holds for the messages that
it carried, and only the text since then is estimated. Totals of turns are never summed: each of them counts the whole
history again.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec import UNSET, Struct

from weft.ledger.api import shipped_context_window
from weft.ledger.model import Message, NewMessage
from weft.runtime.inference.local import CONTEXT_TOKENS
from weft.runtime.inference.settings import NO_PARAMETERS, ModelSettings, Parameters, ProviderKind, ToolSpec
from weft.runtime.inference.token_estimates import estimated_tokens, value_tokens

WINDOW_TOKENS = {
    ProviderKind.ANTHROPIC: 200_000,
    ProviderKind.OPENAI: 128_000,
    ProviderKind.GOOGLE: 1_000_000,
    ProviderKind.LOCAL: CONTEXT_TOKENS,
}
"""The context window of a model of which nobody says one: what the models of its provider have in common."""
DEFAULT_WINDOW_TOKENS = 32_768
"""The same at any other provider."""
DEFAULT_OUTPUT_TOKENS = 4_096
"""Room for an answer where no `max_tokens` says how long it may be; at most a quarter of the window."""


class MeasuredRequest(Struct, frozen=True):
    """An answered request: the messages that it carried, by their ids, and how many tokens the provider counted."""

    message_ids: tuple[str, ...]
    tokens: int


class ContextBudget(Struct, frozen=True, kw_only=True):
    """What fits into one request to a model: its window, without the room for its answer and for its tools."""

    window: int
    output: int
    tools: int = 0

    @property
    def available(self) -> int:
        return max(1, self.window - self.output - self.tools)

    def share(self, threshold: float) -> int:
        """So many tokens are this share of the window, and no more than fit."""
        return min(self.available, int(self.window * threshold))


class ContextFit(Struct, frozen=True):
    """Whether a context fits into a request."""

    tokens: int
    budget: ContextBudget

    @property
    def fits(self) -> bool:
        return self.tokens <= self.budget.available

    def has_reached(self, threshold: float) -> bool:
        return self.tokens >= self.budget.share(threshold)


def window_of(model: ModelSettings) -> int:
    """A model's context window in tokens: as it is configured, as the shipped table says, or the default."""
    if model.context_window is not None:
        return model.context_window
    listed = None if model.provider.is_embedded else shipped_context_window(model.name)
    return listed or WINDOW_TOKENS.get(model.provider.kind, DEFAULT_WINDOW_TOKENS)


def budget_of(
    model: ModelSettings,
    parameters: Parameters = NO_PARAMETERS,
    tools: Iterable[ToolSpec] = (),
) -> ContextBudget:
    """The budget of requests to a model. `parameters` are those that it is asked with, all layers merged."""
    window = window_of(model)
    wanted = parameters.max_tokens if parameters.max_tokens is not UNSET else model.parameters.max_tokens
    most = window // 2 if wanted is not UNSET else window // 4
    output = min(DEFAULT_OUTPUT_TOKENS if wanted is UNSET else wanted, most)
    described = sum(value_tokens([tool.name, tool.description, tool.schema]) for tool in tools)
    return ContextBudget(window=window, output=output, tools=described)


def fit_of(
    messages: Sequence[Message | NewMessage], budget: ContextBudget, measured: MeasuredRequest | None = None
) -> ContextFit:
    return ContextFit(context_tokens(messages, measured), budget)


def context_tokens(messages: Sequence[Message | NewMessage], measured: MeasuredRequest | None = None) -> int:
    """How many tokens these messages are: where they begin as a measured request did, only the others are estimated."""
    if measured is None:
        return estimated_tokens(messages)
    length = len(measured.message_ids)
    ids = tuple(message.id if isinstance(message, Message) else "" for message in messages[:length])
    if ids != measured.message_ids:
        return estimated_tokens(messages)
    return measured.tokens + estimated_tokens(messages[length:])
