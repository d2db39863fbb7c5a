"""How well threads fit a text: a score for each turn, one for each thread, and how sure the best of them is. No I/O.

A turn scores by the words that it shares with the text, the rare ones most, and less the more other words it says: a
turn that holds a whole dictionary fits nothing. Where turns have vectors, how near their meaning is counts too. A
thread scores by its best turn and by the words that its other turns add. What is newer comes first among equals.

Every score is between 0 and 1: the share of the text's weight that was found again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct

from weft.ledger.api import QueryWord, RelatedTurn, RelatedTurns

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
    words = length_factor(turn.said_words) * _weight(turn.said, weights) / (sum(weights.values()) or 1.0)
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
    spread = SPREAD_SHARE * _weight(added, weights) / (sum(weights.values()) or 1.0)
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


def _weight(words: Iterable[str], weights: Mapping[str, float]) -> float:
    return sum(weights.get(word, 0.0) for word in words)


def confidence_of(threads: Sequence[ThreadScore]) -> float:
    """How far the first is ahead of the next: of two that fit equally well neither is sure."""
    scores = [thread.score for thread in threads[:2]]
    return scores[0] - sum(scores[1:]) if scores else 0.0


def unknown_words(words: Sequence[QueryWord]) -> list[str]:
    """Words of the text that no passage holds."""
    return [word.word for word in words if not word.passages]
