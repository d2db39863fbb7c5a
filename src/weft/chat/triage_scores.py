"""How well agents fit a message, by their names, tags and descriptions, and whom the message is for by that. No I/O.

A word of the message weighs the more, the fewer candidates have it. An agent scores by the weight of the words that it
shares with the message, as a share of the weight of the message's heaviest words; a word of its name or of a tag counts
twice, and a long description less, as in `route_scores`. Where agents have vectors, how near their meaning is counts as
it does there. An agent that is not in the room scores lower.

Words are compared by their stems, so that `reviews` is found by `review`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import islice
from math import log

from msgspec import Struct

from weft.kernel.words import indexed, tokens
from weft.runtime.routing.route_scores import VECTOR_SHARE, length_factor, nearness

MOST_WORDS = 64
"""So many different words of a message are compared, the first ones."""
COUNTED_WORDS = 8
"""The heaviest so many words of a message are the whole that a score is a share of."""
STRONG_FACTOR = 2.0
"""A word of a name or a tag counts so many times."""
ABSENT_SHARE = 0.8
"""What an agent's score counts that would have to join first."""
FITTING_SCORE = 0.1
"""Whoever scores less does not fit."""
SHARE_OF_BEST = 0.75
"""Of several that fit, those are asked that score at least this share of the best."""
MOST_CHOSEN = 3
SHOWN_WORDS = 5
STEMS_KEPT = 16_384
_SUFFIXES = ("ations", "ation", "ings", "ing", "ers", "er", "ions", "ion", "ies", "ied", "ed", "es", "s", "y", "e")
_SHORTEST_STEM = 3
COMMON_WORDS = frozenset(
    """a about after again all also am an and any are as at be because been before but by can could did do does doing
    done each for from get give go good got had has have he hello help her here hey hi him his how i if in into
    is it its just let like make many may me more most much must my need no not now of off on one only or other
    our out over own please same see she should so some such tell than thank thanks that the their them then
    there these they this those to too up us use very want was we well were what when where which while who whom
    why will with would you your""".split()
)
"""English words that tell nothing of what a message is about. In other languages, and beside these, what many agents
have weighs little."""


class CandidateProfile(Struct, frozen=True, kw_only=True):
    """What an agent is compared by."""

    id: str
    name: str
    description: str
    tags: tuple[str, ...]
    strong: frozenset[str]
    """The stems of its name and tags."""
    stems: frozenset[str]
    """All of its stems."""


class AgentScore(Struct, frozen=True, kw_only=True):
    """How well an agent fits a message, and by which words of it."""

    agent: str
    name: str
    score: float
    words: tuple[str, ...] = ()
    cosine: float | None = None
    is_present: bool = True


def profile_of(id: str, name: str, description: str, tags: Iterable[str]) -> CandidateProfile:
    labels = tuple(tags)
    strong = frozenset(message_stems(" ".join((name, *labels))))
    stems = strong | frozenset(message_stems(description, most=None))
    return CandidateProfile(id=id, name=name, description=description, tags=labels, strong=strong, stems=stems)


def message_stems(text: str, most: int | None = MOST_WORDS) -> dict[str, str]:
    """The stems of the words of a text that are not common, in order, each with the first word that it came from."""
    stems: dict[str, str] = {}
    words = dict.fromkeys(indexed(tokens(text)))
    for word in islice((word for word in words if word not in COMMON_WORDS), most):
        stems.setdefault(stem_of(word), word)
    return stems


@lru_cache(maxsize=STEMS_KEPT)
def stem_of(word: str) -> str:
    """A word without an English ending."""
    if not word.isascii() or not word.endswith(_SUFFIXES):
        return word
    for suffix in _SUFFIXES:
        if word.endswith(suffix) and len(word) - len(suffix) >= _SHORTEST_STEM:
            return word[: -len(suffix)]
    return word


class ProfileIndex:
    """Profiles by their stems. Not safe to change while another thread uses it."""

    def __init__(self, profiles: Iterable[CandidateProfile] = ()) -> None:
        self.profiles: dict[str, CandidateProfile] = {}
        self._holders: dict[str, dict[str, None]] = {}
        """By stem the ids of the agents that have it."""
        for profile in profiles:
            self.put(profile)

    def put(self, profile: CandidateProfile) -> None:
        """Add an agent, or replace what it was compared by."""
        self.drop(profile.id)
        self.profiles[profile.id] = profile
        for stem in profile.stems:
            self._holders.setdefault(stem, {})[profile.id] = None

    def drop(self, id: str) -> None:
        former = self.profiles.pop(id, None)
        for stem in () if former is None else former.stems:
            holders = self._holders[stem]
            del holders[id]
            if not holders:
                del self._holders[stem]

    def scores(
        self, text: str, candidates: Collection[str], present: Collection[str], cosines: Mapping[str, float]
    ) -> list[AgentScore]:
        """Of the candidates that share a word with the text or are near it, the best first; those present come first
        among equals. `candidates` are ids; other agents count for nothing."""
        stems = message_stems(text)
        holders = {stem: [id for id in self._holders.get(stem, ()) if id in candidates] for stem in stems}
        weights = {stem: log(1 + len(candidates) / (len(ids) or 0.5)) for stem, ids in holders.items()}
        whole = sum(sorted(weights.values(), reverse=True)[:COUNTED_WORDS]) or 1.0
        shares: dict[str, float] = dict.fromkeys(candidates, 0.0)
        shared: dict[str, list[str]] = {}
        for stem, ids in holders.items():
            for id in ids:
                shares[id] += weights[stem] * (STRONG_FACTOR if stem in self.profiles[id].strong else 1.0) / whole
                shared.setdefault(id, []).append(stem)
        near = {id: cosine for id, cosine in cosines.items() if id in candidates}
        scores = []
        for id in {**shared, **near}:
            words = sorted(shared.get(id, ()), key=lambda stem: (-weights[stem], stem))
            scores.append(
                AgentScore(
                    agent=id,
                    name=self.profiles[id].name,
                    score=round(self._score(id, shares[id], near, id in present), 4),
                    words=tuple(stems[stem] for stem in words[:SHOWN_WORDS]),
                    cosine=near.get(id),
                    is_present=id in present,
                )
            )
        return sorted(scores, key=lambda one: (-one.score, not one.is_present, one.name, one.agent))

    def _score(self, id: str, share: float, cosines: Mapping[str, float], is_present: bool) -> float:
        words = min(1.0, length_factor(len(self.profiles[id].stems)) * share)
        score = (1 - VECTOR_SHARE) * words + VECTOR_SHARE * nearness(cosines.get(id)) if cosines else words
        return score if is_present else ABSENT_SHARE * score


def best_fitting(scores: Sequence[AgentScore]) -> tuple[AgentScore, ...]:
    """Those that a message is for: the best, and others that are not far behind. Empty where nobody fits."""
    if not scores or scores[0].score < FITTING_SCORE:
        return ()
    least = max(FITTING_SCORE, SHARE_OF_BEST * scores[0].score)
    return tuple(one for one in scores[:MOST_CHOSEN] if one.score >= least)
