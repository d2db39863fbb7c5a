"""The thread that a text belongs to: chosen by scores, with reasons and alternatives, or not at all.

A score for each turn, one for each thread, and how sure the best of them is.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Protocol

from msgspec import Struct

from weft.kernel.errors import InvalidInput
from weft.ledger.api import QueryWord, RelatedTurn, RelatedTurns

# --- How well threads fit a text: a score for each turn, one for each thread, and how sure the best of them is.

HALVING_WORDS = 220
"""A turn that says so many different words scores half of what a turn with the shared words alone would."""
SPREAD_SHARE = 0.15
"""What the words count that only other turns of the thread add."""
VECTOR_SHARE = 0.3
"""How much of a score is the nearness of vectors, where there are some."""
FAR_COSINE, NEAR_COSINE = 0.15, 0.75
"""Texts about different things, and texts about the same, as the embedded model sees them."""
RECENCY_SHARE = 0.05
HALF_LIFE_MS = 3 * 86_400_000
DAY_MS = 86_400_000


class TurnScore(Struct, frozen=True, kw_only=True):
    """A turn, and why it scores as it does."""

    turn: RelatedTurn
    words: float
    """The share of the text's weight that its words have, by its length."""
    cosine: float | None
    """How near the vectors are; null where it has none, or is not among the nearest."""
    score: float


class ThreadScore(Struct, frozen=True, kw_only=True):
    """A thread: the turns that fit and that one session goes on from, or one turn that none goes on from."""

    session: str | None
    turns: tuple[TurnScore, ...]
    """The best first."""
    shared: tuple[str, ...]
    """The words found in it, the rarest first."""
    recency: float
    """1 for what is new, half of it after each half-life."""
    score: float

    @property
    def best(self) -> TurnScore:
        return self.turns[0]


def score_threads(related: RelatedTurns, cosines: Mapping[str, float], now_ms: int) -> list[ThreadScore]:
    """The threads that fit a text, the best first."""
    weights = {word.word: word.weight for word in related.words}
    turns = [score_turn(turn, weights, cosines.get(turn.turn_id), bool(cosines)) for turn in related.turns]
    threads: dict[str, list[TurnScore]] = {}
    for turn in turns:
        if turn.score > 0:
            threads.setdefault(turn.turn.session or turn.turn.turn_id, []).append(turn)
    scored = [_score_thread(some, weights, now_ms) for some in threads.values()]
    return sorted(scored, key=lambda thread: (-thread.score, -thread.best.turn.at, thread.best.turn.turn_id))


def score_turn(turn: RelatedTurn, weights: Mapping[str, float], cosine: float | None, with_vectors: bool) -> TurnScore:
    words = length_factor(turn.said_words) * _total_weight(turn.said, weights) / (sum(weights.values()) or 1.0)
    score = (1 - VECTOR_SHARE) * words + VECTOR_SHARE * nearness(cosine) if with_vectors else words
    return TurnScore(turn=turn, words=words, cosine=cosine, score=score)


def length_factor(words: int) -> float:
    """Falls from 1 towards 0, the longer a turn is."""
    return 1 / (1 + words / HALVING_WORDS)


def nearness(cosine: float | None) -> float:
    """A cosine as a share of what two texts about the same thing have."""
    return 0.0 if cosine is None else min(1.0, max(0.0, (cosine - FAR_COSINE) / (NEAR_COSINE - FAR_COSINE)))


def recency_of(at: int, now_ms: int) -> float:
    """Halved after each half-life; what lies ahead of the clock is new."""
    return float(0.5 ** (max(0, now_ms - at) / HALF_LIFE_MS))


def _score_thread(turns: list[TurnScore], weights: Mapping[str, float], now_ms: int) -> ThreadScore:
    turns.sort(key=lambda turn: (-turn.score, turn.turn.turns_behind, turn.turn.turn_id))
    best = turns[0]
    first = {*best.turn.said}
    added = {word for turn in turns for word in turn.turn.said} - first
    spread = SPREAD_SHARE * _total_weight(added, weights) / (sum(weights.values()) or 1.0)
    recency = recency_of(max(turn.turn.at for turn in turns), now_ms)
    fit = min(1.0, best.score + spread * (1 - best.score))
    shared = sorted(first | added, key=lambda word: (-weights.get(word, 0.0), word))
    return ThreadScore(
        session=best.turn.session,
        turns=tuple(turns),
        shared=tuple(shared),
        recency=recency,
        score=fit * (1 - RECENCY_SHARE + RECENCY_SHARE * recency),
    )


def _total_weight(words: Iterable[str], weights: Mapping[str, float]) -> float:
    return sum(weights.get(word, 0.0) for word in words)


def confidence_of(threads: Sequence[ThreadScore]) -> float:
    """How far the first is ahead of the next: of two that fit equally well neither is sure."""
    scores = [thread.score for thread in threads[:2]]
    return scores[0] - sum(scores[1:]) if scores else 0.0


def unknown_words(words: Sequence[QueryWord]) -> list[str]:
    """Words of the text that no passage holds."""
    return [word.word for word in words if not word.passages]


# --- The thread that a text belongs to: chosen by its scores, with reasons, confidence and alternatives, or not at
# all.

DEFAULT_THRESHOLD = 0.25
"""Chosen with the labelled set of the benchmark: docs/concepts.md has its figures."""
DEFAULT_ALTERNATIVES = 3
LEFT_BEHIND_TURNS = 20
"""A turn that its session has left so far behind is entered where it stands, unless what came later fits too."""
FITS_TOO_SHARE = 0.5
SHOWN_WORDS = 8
HOUR_MS = 3_600_000

Nearest = Callable[[str], Awaitable[Mapping[str, float]]]
"""The turns nearest to a text that its sender may read, with their cosines; empty where nothing was embedded."""


class RoutingLedger(Protocol):
    """What routing asks of a ledger: it is read in the sender's name."""

    async def related_turns(self, text: str, *, also: Sequence[str] = ()) -> RelatedTurns: ...


class RouteAlternative(Struct, frozen=True, kw_only=True):
    """A turn that a text could go to."""

    turn: str
    session: str | None
    """The one session that stands at this turn: a message extends it. Null: a message here forks."""
    thread_session: str | None
    """The session whose thread the turn is in."""
    title: str | None
    score: float
    reasons: tuple[str, ...]


class RouteChoice(Struct, frozen=True, kw_only=True):
    """Where a text goes, or that it goes to no thread by itself."""

    turn: str | None
    session: str | None
    """The one session that stands at this turn: a message extends it. Null: a message here forks."""
    thread_session: str | None
    confidence: float
    threshold: float
    reasons: tuple[str, ...]
    alternatives: tuple[RouteAlternative, ...]
    fallback: str | None
    """Where it goes instead, if no turn was chosen and the caller named one."""
    by_vectors: bool
    """Whether meanings were compared, or words alone."""


async def find_route(
    ledger: RoutingLedger,
    text: str,
    *,
    now_ms: int,
    threshold: float = DEFAULT_THRESHOLD,
    limit: int = DEFAULT_ALTERNATIVES,
    fallback: str | None = None,
    nearest: Nearest | None = None,
) -> RouteChoice:
    """The route of a text, over every turn that whoever the ledger is read as may read."""
    check_route_arguments(text, threshold, limit)
    cosines = {} if nearest is None else await nearest(text)
    related = await ledger.related_turns(text, also=tuple(cosines))
    return choose_route(related, cosines, now_ms=now_ms, threshold=threshold, limit=limit, fallback=fallback)


def check_route_arguments(text: str, threshold: float, limit: int) -> None:
    if not text.strip():
        raise InvalidInput("there is no text to route", "give one that is not empty")
    if not 0 <= threshold <= 1:
        raise InvalidInput(f"threshold is {threshold}", "it is between 0 and 1")
    if limit < 0:
        raise InvalidInput(f"limit is {limit}", "it is 0 or more")


def choose_route(
    related: RelatedTurns,
    cosines: Mapping[str, float],
    *,
    now_ms: int,
    threshold: float = DEFAULT_THRESHOLD,
    limit: int = DEFAULT_ALTERNATIVES,
    fallback: str | None = None,
) -> RouteChoice:
    """The same without I/O: what was found is given."""
    threads = score_threads(related, cosines, now_ms)
    confidence = round(confidence_of(threads), 4)
    by_vectors = bool(cosines)
    options = [_route_alternative(thread, now_ms, by_vectors) for thread in threads[: limit + 1]]
    if threads and confidence >= threshold:
        chosen = options[0]
        return RouteChoice(
            turn=chosen.turn, session=chosen.session, thread_session=chosen.thread_session, confidence=confidence,
            threshold=threshold, reasons=chosen.reasons, alternatives=tuple(options[1:]), fallback=None,
            by_vectors=by_vectors,
        )  # fmt: skip
    return RouteChoice(
        turn=None, session=None, thread_session=None, confidence=confidence, threshold=threshold,
        reasons=_refusal_reasons(related, threads, confidence, threshold), alternatives=tuple(options[:limit]),
        fallback=fallback, by_vectors=by_vectors,
    )  # fmt: skip


def ranked_threads(
    related: RelatedTurns, cosines: Mapping[str, float], *, now_ms: int, limit: int
) -> tuple[RouteAlternative, ...]:
    """The threads that fit best, chosen or not, with the score of each, the best first."""
    threads = score_threads(related, cosines, now_ms)[:limit]
    return tuple(_route_alternative(thread, now_ms, bool(cosines)) for thread in threads)


def entry_of(thread: ThreadScore) -> tuple[str, str | None]:
    """The turn where a message enters a thread, and the one session that stands there."""
    best = thread.best
    if best.turn.session is None or best.turn.head is None or _is_left_behind(thread, best):
        return best.turn.turn_id, best.turn.is_head_of
    return best.turn.head, best.turn.session if best.turn.is_alone_at_head else None


def _is_left_behind(thread: ThreadScore, best: TurnScore) -> bool:
    later = (turn for turn in thread.turns if turn.turn.turns_behind < best.turn.turns_behind)
    return best.turn.turns_behind > LEFT_BEHIND_TURNS and all(
        turn.score < FITS_TOO_SHARE * best.score for turn in later
    )


def _route_alternative(thread: ThreadScore, now_ms: int, by_vectors: bool) -> RouteAlternative:
    turn, session = entry_of(thread)
    return RouteAlternative(
        turn=turn,
        session=session,
        thread_session=thread.session,
        title=thread.best.turn.session_title,
        score=round(thread.score, 4),
        reasons=tuple(_score_reasons(thread, turn, now_ms, by_vectors)),
    )


def _score_reasons(thread: ThreadScore, entry: str, now_ms: int, by_vectors: bool) -> list[str]:
    best = thread.best
    words = ", ".join(thread.shared[:SHOWN_WORDS])
    more = len(thread.shared) - SHOWN_WORDS
    noun = "word" if len(thread.shared) == 1 else "words"
    reasons = [f"shares the {noun} {words}{f' and {more} more' if more > 0 else ''}"] if words else []
    if len(thread.turns) > 1:
        reasons.append(f"{len(thread.turns)} of its turns match")
    if best.cosine is not None:
        reasons.append(f"its meaning is near: cosine {best.cosine:.2f}")
    elif by_vectors:
        reasons.append("it is not among the nearest by meaning")
    else:
        reasons.append("by words alone: no turn was embedded")
    reasons.append(f"last matching turn {_age_words(now_ms - max(turn.turn.at for turn in thread.turns))}")
    if best.turn.session is not None and entry == best.turn.turn_id and best.turn.turns_behind:
        reasons.append(
            f"the session went on for {best.turn.turns_behind} turns about other things: a message forks here"
        )
    return reasons


def _refusal_reasons(
    related: RelatedTurns, threads: Sequence[ThreadScore], confidence: float, threshold: float
) -> tuple[str, ...]:
    if not threads:
        return ("no turn that can be read shares a word with the text",)
    reasons = [f"the best thread is ahead by {confidence:.2f}, and {threshold:.2f} is asked for"]
    if len(threads) > 1 and threads[1].score > 0.8 * threads[0].score:
        reasons.append("several threads fit about equally well")
    unknown = unknown_words(related.words)
    if unknown:
        more = f" and {len(unknown) - SHOWN_WORDS} more" if len(unknown) > SHOWN_WORDS else ""
        reasons.append(f"no turn holds {', '.join(unknown[:SHOWN_WORDS])}{more}")
    return tuple(reasons)


def _age_words(age_ms: int) -> str:
    if age_ms < HOUR_MS:
        return "less than an hour ago"
    if age_ms < 2 * DAY_MS:
        return f"{age_ms // HOUR_MS} h ago"
    return f"{age_ms // DAY_MS} days ago"
