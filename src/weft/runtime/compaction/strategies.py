"""The ways to make a compaction: what is told of the turns that it stands for.

`summary` asks a model; `sliding_window` tells nothing; `selective` quotes the turns that matter and has the others
summarised. Others come from packages, by entry points of the group `weft.compaction_strategies`: each a class without
arguments that is a `CompactionStrategy`. Which turns are kept in full is decided before, for all of them alike.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any, ClassVar, Protocol

from msgspec import Struct, field
from msgspec.structs import replace

from weft.kernel.enums import CompactionType
from weft.kernel.errors import InvalidInput, quoted
from weft.ledger.model import TextPart, ToolResultPart, ToolUsePart
from weft.runtime.assembly.layers import TurnMessages
from weft.runtime.compaction.quoting import without_middle
from weft.runtime.compaction.summaries import Past, PastSummary
from weft.runtime.inference.token_estimates import estimated_tokens, text_tokens

GROUP = "weft.compaction_strategies"
TITLE = "[Summary of this conversation so far]"


class PastSummariser(Protocol):
    """Has a past summarised; never fails for a reason outside."""

    async def summarise(self, past: Past) -> PastSummary: ...


class StrategySummary(Struct, frozen=True, kw_only=True):
    """What stands for the past, who wrote it and what that took, and what the strategy has to say about it."""

    text: str
    summary: PastSummary
    metadata: dict[str, Any] = field(default_factory=dict)


class CompactionStrategy(Protocol):
    """`compaction_type` is what the ledger records; `default_keep` so many turns are kept where nobody says how many.
    Where `asks_model` is false, `summariser` makes an extract and no model is looked up."""

    name: ClassVar[str]
    compaction_type: ClassVar[CompactionType]
    default_keep: ClassVar[int]
    asks_model: ClassVar[bool]

    async def summarise(self, past: Past, summariser: PastSummariser) -> StrategySummary: ...


class SummaryStrategy:
    """One summary of everything, by a model."""

    name: ClassVar[str] = "summary"
    compaction_type: ClassVar[CompactionType] = CompactionType.SUMMARY
    default_keep: ClassVar[int] = 4
    asks_model: ClassVar[bool] = True

    async def summarise(self, past: Past, summariser: PastSummariser) -> StrategySummary:
        summary = await summariser.summarise(past)
        return StrategySummary(text=titled(summary.text), summary=summary)


class SlidingWindow:
    """The last turns and nothing else: what came before, an earlier summary included, is told by nothing."""

    name: ClassVar[str] = "sliding_window"
    compaction_type: ClassVar[CompactionType] = CompactionType.SLIDING_WINDOW
    default_keep: ClassVar[int] = 10
    asks_model: ClassVar[bool] = False

    async def summarise(self, past: Past, summariser: PastSummariser) -> StrategySummary:
        return StrategySummary(text="", summary=PastSummary(text=""))


QUOTED_SHARE, MOST_QUOTED_TOKENS = 0.25, 4_000
"""So much of the past is quoted at most, of its tokens and in all."""
LONGEST_QUOTE_CHARACTERS = 2_000
_DECISION = re.compile(
    r"\b(decid\w+|decision|agreed|must|never|always|do not|don't|instead of|because|todo|fixme|open question|"
    r"remember|important|deadline|prefer\w*|requirement)\b",
    re.I,
)


class Selective:
    """Turns that matter are quoted word for word, in their order; the others are summarised."""

    name: ClassVar[str] = "selective"
    compaction_type: ClassVar[CompactionType] = CompactionType.SELECTIVE
    default_keep: ClassVar[int] = 4
    asks_model: ClassVar[bool] = True

    async def summarise(self, past: Past, summariser: PastSummariser) -> StrategySummary:
        quotes = {turn.turn: quote for turn, quote in selected_turns(past)}
        rest = replace(past, turns=tuple(turn for turn in past.turns if turn.turn not in quotes))
        needs_summary = bool(rest.turns or rest.earlier)
        summary = await summariser.summarise(rest) if needs_summary else PastSummary(text="")
        sections = [summary.text, *(["Said, word for word:", *quotes.values()] if quotes else [])]
        text = titled("\n".join(section for section in sections if section))
        return StrategySummary(text=text, summary=summary, metadata={"quoted_turns": list(quotes)})


def selected_turns(past: Past) -> list[tuple[TurnMessages, str]]:
    """The turns with the highest scores that fit into the share, with their quotes, in the order of the thread."""
    terms = [term.casefold() for term in re.findall(r"\w{3,}", past.focus or "")]
    scores = [score_of(turn, terms) for turn in past.turns]
    room = min(MOST_QUOTED_TOKENS, int(QUOTED_SHARE * past.tokens))
    chosen: dict[int, str] = {}
    for i in sorted(range(len(scores)), key=lambda i: (-scores[i], -i)):
        quote = quote_of(past.turns[i])
        tokens = text_tokens(quote) + 1
        if scores[i] > 0 and quote and tokens <= room:
            chosen[i] = quote
            room -= tokens
    return [(past.turns[i], chosen[i]) for i in sorted(chosen)]


def score_of(turn: TurnMessages, focus: Sequence[str]) -> float:
    """By fixed rules: words of the focus, of decisions and of prohibitions, failed calls; less for a turn whose words
    are mostly those of tools."""
    text = "\n".join(_spoken(turn))
    folded = text.casefold()
    in_focus = sum(term in folded for term in focus)
    decisions = min(4, len(_DECISION.findall(text)))
    failures = any(
        isinstance(part, ToolResultPart) and part.is_error is True
        for message in turn.messages
        for part in message.content
    )
    score = 3.0 * in_focus + decisions + failures
    spoken, whole = text_tokens(text), estimated_tokens(turn.messages)
    return score * (0.5 + spoken / max(1, whole))


def quote_of(turn: TurnMessages) -> str:
    """What people and the agent said, and which tools were called. The words of a result are not quoted: they would
    stand in a message of the user's role."""
    return "\n".join(_quoted_lines(turn))


def _quoted_lines(turn: TurnMessages) -> Iterator[str]:
    for message in turn.messages:
        for part in message.content:
            if isinstance(part, TextPart) and part.text and message.role in ("user", "assistant"):
                yield f"[{message.role}] {without_middle(str(part.text), LONGEST_QUOTE_CHARACTERS)}"
            elif isinstance(part, ToolUsePart):
                yield f"[assistant called {part.name}]"


def _spoken(turn: TurnMessages) -> Iterator[str]:
    return (message.text for message in turn.messages if message.role in ("user", "assistant") and message.text)


def titled(text: str) -> str:
    """A summary as the next model reads it."""
    return f"{TITLE}\n{text}"


def untitled(text: str) -> str:
    """A summary without its title, to be summarised again."""
    return text.removeprefix(TITLE).lstrip("\n")


STRATEGIES: dict[str, CompactionStrategy] = {
    strategy.name: strategy for strategy in (SummaryStrategy(), SlidingWindow(), Selective())
}


def strategy_names() -> list[str]:
    return [*STRATEGIES, *sorted({point.name for point in _points()} - set(STRATEGIES))]


def load_strategy(name: str) -> CompactionStrategy:
    """By its name; one of ours cannot be replaced by a package."""
    if name in STRATEGIES:
        return STRATEGIES[name]
    points = {point.name: point for point in _points()}
    if name not in points:
        raise InvalidInput(f"there is no compaction strategy {quoted(name)}", f"known: {', '.join(strategy_names())}")
    strategy: CompactionStrategy = points[name].load()()
    return strategy


@cache
def _points() -> tuple[EntryPoint, ...]:
    """Looked for once: every package that is installed has to be asked."""
    return tuple(entry_points(group=GROUP))
