"""The thread that a text belongs to: chosen by its scores, with reasons, confidence and alternatives, or not at all.

Below the threshold no thread is chosen, for a message in the wrong thread does more harm than one that goes nowhere by
itself. It then goes to the fallback that the caller named.

A thread is entered at its session's head. Where the session has long gone on to other things, it is entered at the turn
that fits: a message there forks.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Protocol

from msgspec import Struct

from weft.kernel.errors import InvalidInput
from weft.ledger.api import RelatedTurns
from weft.runtime.routing.route_scores import (
    DAY_MS,
    ThreadScore,
    TurnScore,
    confidence_of,
    score_threads,
    unknown_words,
)

DEFAULT_THRESHOLD = 0.25
"""Chosen with the labelled set of the benchmark: docs/routing.md has its figures."""
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
    options = [_alternative(thread, now_ms, by_vectors) for thread in threads[: limit + 1]]
    if threads and confidence >= threshold:
        chosen = options[0]
        return RouteChoice(
            turn=chosen.turn, session=chosen.session, thread_session=chosen.thread_session, confidence=confidence,
            threshold=threshold, reasons=chosen.reasons, alternatives=tuple(options[1:]), fallback=None,
            by_vectors=by_vectors,
        )  # fmt: skip
    return RouteChoice(
        turn=None, session=None, thread_session=None, confidence=confidence, threshold=threshold,
        reasons=_refusal(related, threads, confidence, threshold), alternatives=tuple(options[:limit]),
        fallback=fallback, by_vectors=by_vectors,
    )  # fmt: skip


def ranked_threads(
    related: RelatedTurns, cosines: Mapping[str, float], *, now_ms: int, limit: int
) -> tuple[RouteAlternative, ...]:
    """The threads that fit best, chosen or not, with the score of each, the best first."""
    threads = score_threads(related, cosines, now_ms)[:limit]
    return tuple(_alternative(thread, now_ms, bool(cosines)) for thread in threads)


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


def _alternative(thread: ThreadScore, now_ms: int, by_vectors: bool) -> RouteAlternative:
    turn, session = entry_of(thread)
    return RouteAlternative(
        turn=turn,
        session=session,
        thread_session=thread.session,
        title=thread.best.turn.session_title,
        score=round(thread.score, 4),
        reasons=tuple(_reasons(thread, turn, now_ms, by_vectors)),
    )


def _reasons(thread: ThreadScore, entry: str, now_ms: int, by_vectors: bool) -> list[str]:
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
    reasons.append(f"last matching turn {_age(now_ms - max(turn.turn.at for turn in thread.turns))}")
    if best.turn.session is not None and entry == best.turn.turn_id and best.turn.turns_behind:
        reasons.append(
            f"the session went on for {best.turn.turns_behind} turns about other things: a message forks here"
        )
    return reasons


def _refusal(
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


def _age(age_ms: int) -> str:
    if age_ms < HOUR_MS:
        return "less than an hour ago"
    if age_ms < 2 * DAY_MS:
        return f"{age_ms // HOUR_MS} h ago"
    return f"{age_ms // DAY_MS} days ago"
