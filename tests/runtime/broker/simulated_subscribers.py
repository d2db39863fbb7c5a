"""Subscribers of a simulation: they come and go, lose their connection, and go on behind any position they were at.

A subscriber is connected to a broker's process, or to one that only reads. Whatever happens, those who follow to the
end are told every event of their session once and in order, and hold the text of an answer when it ends, no other.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import aclosing
from types import SimpleNamespace
from typing import Any

from tests.runtime.broker.simulated_world import Process, Schedule, SimulatedCrossing, Subscriber, Violation
from weft.kernel.errors import NotFound, StoreFailed
from weft.ledger.api import (
    AnswerEnded,
    AnswerStarted,
    AttemptReset,
    Runs,
    StreamItem,
    TextAdded,
    ToolStarted,
    TurnEnded,
    TurnSessions,
    TurnStarted,
)
from weft.runtime.answer_streams import StreamHub, follow, hub_of

OUTSIDE_ANSWERS = (AnswerStarted, ToolStarted, TurnEnded, TurnStarted)
"""Items that come when no answer is being written."""
SILENCE_SECONDS = 60.0
"""Virtual time after which somebody counts as forgotten who was not told everything."""


async def subscribe(schedule: Schedule, subscriber: Subscriber, reader: Process) -> None:
    """Connect, listen for a while, lose the connection, go on; when all is settled, stay."""
    chance = schedule.chance
    while not schedule.is_over:
        processes = [process for process in schedule.processes if process.broker is not None and not process.is_dead]
        process = chance.choice([*processes, reader])
        if subscriber.items and schedule.chosen(0.2):
            del subscriber.items[1 + chance.randrange(len(subscriber.items)) :]
            schedule.counts["positions gone back to"] += 1
        listening = asyncio.ensure_future(_listen(schedule, subscriber, process))
        process.listeners[listening] = None
        seconds = None if schedule.is_settled else chance.choice((0.05, 0.5, 3.0, 30.0))
        await asyncio.wait({listening}, timeout=seconds)
        process.listeners.pop(listening, None)
        listening.cancel()
        (outcome,) = await asyncio.gather(listening, return_exceptions=True)
        schedule.counts["connections"] += 1
        if outcome is not None and not isinstance(outcome, NotFound | StoreFailed | asyncio.CancelledError):
            raise outcome
        await asyncio.sleep(chance.choice((0.05, 0.2, 2.0)))


async def _listen(schedule: Schedule, subscriber: Subscriber, process: Process) -> None:
    crossing = SimulatedCrossing(schedule, process, is_reading=True)
    ledger: Any = SimpleNamespace(crossing=crossing, sync=process.ledger)
    _hear_news_late(schedule, process, hub_of(crossing))
    async with aclosing(follow(ledger, subscriber.session, after=subscriber.position)) as items:
        async for item in items:
            if process.stopped_until > schedule.clock.seconds:
                await schedule.endure(process, "as it tells a subscriber", 0)
            subscriber.items.append(item)


def _hear_news_late(schedule: Schedule, process: Process, hub: StreamHub) -> None:
    """News of other processes come at once or late: threads that wait for them are no part of a simulation."""

    async def watch(runs: Runs, newest: int) -> None:
        while hub._bells:
            await asyncio.sleep(schedule.chance.choice((0.2, 1.0, 3.0)))
            await schedule.endure(process, "as it hears of news", 0)
            if process.ledger.newest() != newest:
                newest, sessions = runs.sessions_with_news(newest, TurnSessions())
                for session in sorted(sessions):
                    hub.ring(session)

    hub._watch_log = watch  # type: ignore[method-assign]


async def stay_to_the_end(schedule: Schedule, ends: Callable[[], Mapping[str, int]]) -> None:
    """Until everybody was told the last event of their session, by its label."""
    until = schedule.clock.seconds + SILENCE_SECONDS
    begun = [one for one in schedule.subscribers if one.position is not None]  # others may have come after the end
    while behind := [one for one in begun if _last(one) < ends().get(one.session, 0)]:
        if schedule.clock.seconds > until:
            names = ", ".join(f"{one.name} is at {one.position} of {ends()[one.session]}" for one in behind)
            raise Violation(f"subscribers are not told everything: {names}")
        await asyncio.sleep(0.5)


def _last(subscriber: Subscriber) -> int:
    return subscriber.items[-1].position.n if subscriber.items else 0


# --- what must hold afterwards ----------------------------------------------------------------------------------------


def check_subscriber(subscriber: Subscriber, events: Sequence[int], answers: Mapping[int, tuple[str, str]]) -> int:
    """Whether they were told these events of their session, by arrival number, and these answers, each as its text
    and its thinking. Returns how often they were told to discard text."""
    told = [item.position.n for item in subscriber.items if _is_event(item)]
    expected = [n for n in events if subscriber.start is not None or (told and n >= told[0])]
    if told != expected:
        raise Violation(f"{subscriber.name} was told {told}, and what happened is {expected}")
    text, thinking, discarded = "", "", 0
    for item in subscriber.items:
        if isinstance(item, TextAdded):
            text, thinking = (text + item.text, thinking) if item.kind == "text" else (text, thinking + item.text)
            continue
        if isinstance(item, AttemptReset):
            discarded += bool(text or thinking)
        elif isinstance(item, AnswerEnded):
            if (text, thinking) != answers[item.position.n]:
                raise Violation(f"{subscriber.name} holds {text, thinking} of the answer {answers[item.position.n]}")
        elif not isinstance(item, OUTSIDE_ANSWERS):
            continue  # it may come while an answer is written
        elif text or thinking:
            raise Violation(f"{subscriber.name} holds {text, thinking}, of which nothing came, at {item}")
        text = thinking = ""
    return discarded


def _is_event(item: StreamItem) -> bool:
    """Whether the item stands for an event, not for a piece of text or for its taking back."""
    return not isinstance(item, TextAdded) and not (isinstance(item, AttemptReset) and item.reason == "changed")
