"""A context in its layers, how large it is and may be, and what is left out where it does not fit.

What was left out stays left out. The last answered request and the next one of a session are
measured.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import accumulate

from msgspec import UNSET, Struct
from msgspec.structs import replace

from weft.kernel.events import ModelRequest, ModelResponse
from weft.ledger.api import NO_CUT, Context, ContextCut, shipped_context_window, shortened
from weft.ledger.model import PROMPT_SEQUENCE, Message, NewMessage, TextPart, ToolResultPart, ToolUsePart
from weft.runtime.assembly.system_prompts import SystemPrompt, changed_prompt
from weft.runtime.inference.local_models import CONTEXT_TOKENS
from weft.runtime.inference.model_requests import (
    NO_PARAMETERS,
    ModelParameters,
    ModelSettings,
    ProviderKind,
    ToolSpec,
    estimated_tokens,
    prompt_tokens,
    tools_tokens,
)
from weft.runtime.ledger_port import RuntimeLedger

# --- A context in its layers: system prompt, summary, turns, query; and where it may be divided.


class TurnMessages(Struct, frozen=True):
    """The messages of one turn, as a model is told them."""

    turn: str
    messages: tuple[Message, ...]


class ContextLayers(Struct, frozen=True, kw_only=True):
    """The messages of a request. `query` are those of the turn that is under way: what was asked, and its steps."""

    system: tuple[Message, ...] = ()
    summary: tuple[Message, ...] = ()
    turns: tuple[TurnMessages, ...] = ()
    query: tuple[Message, ...] = ()

    @property
    def messages(self) -> tuple[Message, ...]:
        turns = (message for turn in self.turns for message in turn.messages)
        return (*self.system, *self.summary, *turns, *self.query)


def layers_of(context: Context, open_turn: str | None = None) -> ContextLayers:
    """The layers of a context. `open_turn` is the turn under way, whose messages are the query."""
    messages = context.messages
    end = next((i for i, message in enumerate(messages) if message.role != "system"), len(messages))
    system, rest = messages[:end], messages[end:]
    is_summarised = bool(rest) and context.compaction is not None and rest[0].id == context.compaction
    summary, rest = (rest[:1], rest[1:]) if is_summarised else ((), rest)
    by_turn: dict[str, list[Message]] = {turn: [] for turn in context.turns}
    for message in rest:
        by_turn.setdefault(turn_of(message), []).append(message)
    query = tuple(by_turn.pop(open_turn, ())) if open_turn is not None else ()
    turns = tuple(TurnMessages(turn, tuple(turn_messages)) for turn, turn_messages in by_turn.items())
    return ContextLayers(system=system, summary=summary, turns=turns, query=query)


def turn_of(message: Message) -> str:
    """The turn that a message of a context belongs to; one that stands for tool calls names its first call."""
    place, _, of_calls = message.id.partition("#")
    return place.partition(":")[0] if of_calls else message.turn_id


def divisions(turns: Sequence[TurnMessages]) -> list[int]:
    """The places where the turns may be divided: i stands before turn i, the last one behind them all.

    A place between a call and its result is none of them. A call without a result may still get one, so the turns
    behind which it waits are not divided from what follows.
    """
    crossed = [False] * (len(turns) + 1)
    waiting: dict[str, list[int]] = {}
    for i, turn in enumerate(turns):
        for part in _call_parts(turn.messages):
            if isinstance(part, ToolUsePart):
                waiting.setdefault(part.id, []).append(i)
            elif waiting.get(part.tool_call_id):
                _cross(crossed, waiting[part.tool_call_id].pop(), i)
    if turns:
        last = len(turns) - 1
        for places in waiting.values():
            if last in places:  # only the last turn can still be answered: what came later went on without
                _cross(crossed, last, len(turns))
    return [i for i, is_crossed in enumerate(crossed) if not is_crossed]


def _call_parts(messages: Iterable[Message]) -> Iterable[ToolUsePart | ToolResultPart]:
    return (part for message in messages for part in message.content if isinstance(part, ToolUsePart | ToolResultPart))


def _cross(crossed: list[bool], call: int, result: int) -> None:
    for place in range(call + 1, result + 1):
        crossed[place] = True


# --- How large a context is, and how large it may be.

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
    parameters: ModelParameters = NO_PARAMETERS,
    tools: Iterable[ToolSpec] = (),
) -> ContextBudget:
    """The budget of requests to a model. `parameters` are those that it is asked with, all layers merged."""
    window = window_of(model)
    wanted = parameters.max_tokens if parameters.max_tokens is not UNSET else model.parameters.max_tokens
    most = window // 2 if wanted is not UNSET else window // 4
    output = min(DEFAULT_OUTPUT_TOKENS if wanted is UNSET else wanted, most)
    return ContextBudget(window=window, output=output, tools=tools_tokens(tools))


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


# --- What is left out of a request that does not fit, in a defined order, and stays left out.

TARGET_SHARE = 0.6
"""A cut goes on until the context takes at most so much of the room that there is."""


class FittedContext(Struct, frozen=True, kw_only=True):
    """A request that was made to fit. `sent` is for the model; `recorded` are the same messages as the ledger has them,
    with no result shortened: together with `cut` they say what was sent."""

    sent: tuple[Message, ...]
    recorded: tuple[Message, ...]
    cut: ContextCut
    fit: ContextFit
    shortened_results: int
    left_out_turns: int
    is_new: bool
    """Whether something was cut that the request before still carried."""


def cut_to_fit(
    layers: ContextLayers,
    budget: ContextBudget,
    measured: MeasuredRequest | None = None,
    before: ContextCut = NO_CUT,
    compaction: str | None = None,
) -> FittedContext:
    """The request as it was cut before, and cut further only where it no longer fits."""
    cut = before if before.compaction == compaction else ContextCut(compaction=compaction)
    if cut.is_empty:  # the usual case, which looks into no message that was measured
        messages = layers.messages
        fit = ContextFit(context_tokens(messages, measured), budget)
        if fit.fits:
            return _uncut(messages, fit, cut)
    cutting = _Cutting(layers, cut)
    tokens = context_tokens(cutting.sent(), measured)
    if tokens <= budget.available:
        return cutting.context(ContextFit(tokens, budget), cut, is_new=False)
    scale = tokens / max(1, cutting.estimate)
    cutting.cut_further(TARGET_SHARE * budget.available / scale, budget.available / scale)
    further = cutting.cut(compaction)
    return cutting.context(ContextFit(round(scale * cutting.estimate), budget), further, is_new=further != cut)


def _uncut(messages: tuple[Message, ...], fit: ContextFit, cut: ContextCut) -> FittedContext:
    return FittedContext(
        sent=messages, recorded=messages, cut=cut, fit=fit, shortened_results=0, left_out_turns=0, is_new=False
    )


def apply_cut(layers: ContextLayers, cut: ContextCut) -> tuple[Message, ...]:
    """What was sent of these layers under a cut."""
    return _Cutting(layers, cut).sent()


class _Cutting:
    """Layers, how far their results are shortened and their turns left out, and how many tokens that leaves."""

    def __init__(self, layers: ContextLayers, cut: ContextCut) -> None:
        self._layers, self._messages = layers, layers.messages
        self._short = [shortened(message) for message in self._messages]
        self._lengths = [0, *accumulate(len(turn.messages) for turn in layers.turns)]
        ids = [message.id for message in self._messages]
        self._first_turn = _place_behind([turn.turn for turn in layers.turns], cut.left_out_through)
        self._shortened = _place_behind(ids, cut.shortened_through)
        self.estimate = estimated_tokens(self.sent())

    @property
    def _begin(self) -> int:
        """The place of the first message of a turn."""
        return len(self._layers.system) + len(self._layers.summary)

    @property
    def _left_out(self) -> int:
        """How many messages behind that place are left out."""
        return self._lengths[self._first_turn]

    def recorded(self) -> tuple[Message, ...]:
        begin = self._begin
        return (*self._messages[:begin], *self._messages[begin + self._left_out :])

    def sent(self) -> tuple[Message, ...]:
        short = self._short[: self._shortened]
        messages, begin = (*short, *self._messages[len(short) :]), self._begin
        return (*messages[:begin], *messages[begin + self._left_out :])

    def cut(self, compaction: str | None) -> ContextCut:
        turns = self._layers.turns
        return ContextCut(
            compaction=compaction,
            shortened_through=self._messages[self._shortened - 1].id if self._shortened else None,
            left_out_through=turns[self._first_turn - 1].turn if self._first_turn else None,
        )

    def context(self, fit: ContextFit, cut: ContextCut, *, is_new: bool) -> FittedContext:
        sent, recorded = self.sent(), self.recorded()
        return FittedContext(
            sent=sent,
            recorded=recorded,
            cut=cut,
            fit=fit,
            shortened_results=sum(left is not right for left, right in zip(sent, recorded, strict=True)),
            left_out_turns=self._first_turn,
            is_new=is_new,
        )

    def cut_further(self, target: float, room: float) -> None:
        """In the order that this module tells, until the target is reached; turns are left out only where shortened
        results are not enough for the room itself."""
        query = len(self._messages) - len(self._layers.query)
        self._shorten(range(self._begin + self._left_out, query), target)
        if self.estimate > room:
            self._leave_out_turns(target)
        if self.estimate > room:
            self._shorten(range(query, len(self._messages)), target)

    def _shorten(self, places: Iterable[int], target: float) -> None:
        for place in places:
            if self.estimate <= target:
                return
            if place >= self._shortened and self._short[place] is not self._messages[place]:
                self.estimate -= estimated_tokens([self._messages[place]]) - estimated_tokens([self._short[place]])
                self._shortened = place + 1

    def _leave_out_turns(self, target: float) -> None:
        """Never so that a call and its result are parted, be the result in the turn under way."""
        turns = self._layers.turns
        places = divisions((*turns, TurnMessages("", self._layers.query)))
        for place in places:
            if not self._first_turn < place <= len(turns):
                continue
            if self.estimate <= target:
                return
            begin = self._begin + self._left_out
            self._first_turn = place
            end = self._begin + self._left_out
            unshortened = max(begin, min(self._shortened, end))
            self.estimate -= estimated_tokens(self._short[begin:unshortened])
            self.estimate -= estimated_tokens(self._messages[unshortened:end])


def _place_behind(ids: Sequence[str], last: str | None) -> int:
    """The place behind this id. An id that is not there has been left behind, so nothing is cut by it."""
    return ids.index(last) + 1 if last is not None and last in ids else 0


# --- The last answered request of a thread, as its turns recorded it: how large it was, and what was cut of it.

LOOK_BACK_TURNS = 8
"""In so many turns the last answered request is looked for."""


class LastRequest(Struct, frozen=True):
    """What was cut of it, and its size where its messages are still those that the context begins with."""

    cut: ContextCut = NO_CUT
    measured: MeasuredRequest | None = None


async def last_request(ledger: RuntimeLedger, context: Context) -> LastRequest:
    """Of the turns that a session's context shows; the newest that was answered and says its usage."""
    cut = context.cut
    for turn in reversed(context.turns[-LOOK_BACK_TURNS:]):
        events = [recorded.event for recorded in await ledger.events(turn)]
        answers = [i for i, event in enumerate(events) if isinstance(event, ModelResponse) and event.usage is not UNSET]
        requests = [event for event in events[: answers[-1] if answers else 0] if isinstance(event, ModelRequest)]
        if not requests:
            continue
        if (await ledger.turn(turn)).compaction_id != context.compaction:
            break  # it carried other messages than the context begins with now
        answer = events[answers[-1]]
        assert isinstance(answer, ModelResponse)
        usage, output = answer.usage, answer.output
        if usage is UNSET or output is UNSET:
            break
        messages = apply_cut(layers_of(context), cut)
        return LastRequest(cut, _measured(messages, output.id, prompt_tokens(usage)))
    return LastRequest(cut)


def _measured(messages: tuple[Message, ...], answer: str, tokens: int) -> MeasuredRequest | None:
    """All messages before the answer were sent with the request."""
    end = next((i for i, message in enumerate(messages) if message.id == answer), None)
    if end is None or not tokens:
        return None
    return MeasuredRequest(tuple(message.id for message in messages[:end]), tokens)


# --- What the next request of a session would send before its own query: the prompt, then what was said, cut to fit.


def next_request(
    context: Context, prompt: SystemPrompt, budget: ContextBudget | None, tokens: int | None = None
) -> tuple[Context, int]:
    """The context of a session as a broker would send it, and how many tokens that is. Without a budget nothing more is
    cut than was before: no model is known that it must fit. `tokens` is what the provider counted for the last request
    and its answer."""
    brought, is_replaced = changed_prompt(prompt, context.messages)
    history = context.messages[1:] if is_replaced else context.messages
    whole = replace(context, messages=(*map(_shown, brought), *history))
    layers = layers_of(whole)
    if budget is None:
        sent = apply_cut(layers, context.cut)
        return replace(whole, messages=sent), context_tokens(sent)
    measured = None
    if tokens is not None:
        measured = MeasuredRequest(tuple(message.id for message in apply_cut(layers, context.cut)), tokens)
    fitted = cut_to_fit(layers, budget, measured, context.cut, context.compaction)
    return replace(whole, messages=fitted.sent, cut=fitted.cut), fitted.fit.tokens


def _shown(message: NewMessage) -> Message:
    """A prompt that no turn has recorded yet."""
    parts = message.content if isinstance(message.content, tuple) else (TextPart(message.content),)
    return Message("", message.role, parts, PROMPT_SEQUENCE, 0, context=message.context, metadata=message.metadata)
