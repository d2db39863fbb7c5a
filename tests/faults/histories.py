"""A checker of histories: what clients did and heard, each written down by themselves, and what may not be in it.

Senders write down what they are about to send (`invoke`) and what came of it: `ok`, `fail` (it was refused), or
`unknown` (the connection broke). Readers write down each turn that they were told of. Brokers write down each of
their writes, with the epoch of the lease that they held. Nothing here looks into a ledger.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import pairwise

from msgspec import Struct

REFUSED = -1
"""In place of an event: a write that was refused, because the lease was lost."""


class Said(Struct, frozen=True):
    """One line of a sender's log; `at` is a clock that all processes of the machine share."""

    kind: str
    session: str
    text: str
    at: int


class Sent(Struct):
    """A message that a sender sent, and what it knows of it."""

    session: str
    text: str
    invoked_at: int
    outcome: str = "unknown"
    ended_at: int | None = None


class ToldTurn(Struct, frozen=True):
    """One line of a reader's log: a turn that ended, what it was asked and what it answered."""

    session: str
    n: int
    exit: str
    questions: tuple[str, ...]
    answer: str


class Written(Struct, frozen=True):
    """One line of a broker's log: it wrote to a session, up to this event, under this epoch of its lease."""

    session: str
    owner: str
    epoch: int
    n: int


def sent_messages(log: Iterable[Said]) -> dict[str, Sent]:
    """By their text. The last outcome counts: a message is sent again under its key until its sender knows, or gives
    up."""
    messages: dict[str, Sent] = {}
    for line in log:
        if line.kind == "invoke":
            messages[line.text] = Sent(line.session, line.text, line.at)
        else:
            message = messages[line.text]
            message.outcome, message.ended_at = line.kind, line.at if line.kind == "ok" else None
    return messages


def problems_of_answers(messages: dict[str, Sent], readers: Sequence[Iterable[ToldTurn]]) -> list[str]:
    """Whether every message that was admitted was answered once, by itself, in one line of turns that all readers
    agree on; one that was refused never; and none before another that was admitted before it was sent."""
    lines = [_lines_of_turns(reader) for reader in readers]
    problems = []
    for session in {message.session for message in messages.values()} | {one for line in lines for one in line}:
        turns = lines[0].get(session, [])
        if any(line.get(session, []) != turns for line in lines[1:]):
            problems.append(f"{session}: readers were told different turns")
        own = {text: message for text, message in messages.items() if message.session == session}
        problems += [f"{session}: {problem}" for problem in _problems_of_line(own, turns)]
    return problems


def _lines_of_turns(log: Iterable[ToldTurn]) -> dict[str, list[ToldTurn]]:
    lines: dict[str, list[ToldTurn]] = defaultdict(list)
    for turn in log:
        lines[turn.session].append(turn)
    return dict(lines)


def _problems_of_line(messages: dict[str, Sent], turns: Sequence[ToldTurn]) -> list[str]:
    answered = [question for turn in turns for question in turn.questions]
    problems = [
        f"{text!r} was answered {answered.count(text)} times"
        for text in sorted(set(answered))
        if answered.count(text) > 1
    ]
    problems += [f"{text!r} was answered and never sent" for text in answered if text not in messages]
    problems += [
        f"{one.text!r} was refused and answered"
        for one in messages.values()
        if one.outcome == "fail" and one.text in answered
    ]
    problems += [
        f"{one.text!r} was admitted and not answered"
        for one in messages.values()
        if one.outcome == "ok" and one.text not in answered
    ]
    for before, after in pairwise(turns):
        if before.n >= after.n:
            problems.append(f"turn {after.n} was told after turn {before.n}")
    for turn in turns:
        expected = f"re: {turn.questions[-1]}" if turn.questions else None
        if turn.exit != "success" or turn.answer != expected:
            problems.append(f"{turn.questions} was answered with {turn.answer!r}: {turn.exit}")
    return problems + _overtakings([messages[text] for text in answered if text in messages])


def _overtakings(answered: Sequence[Sent]) -> list[str]:
    """Messages answered before others that were admitted before they were even sent."""
    problems: list[str] = []
    earliest: tuple[int, str] | None = None
    """When the first of the messages that were answered later was admitted, and what it says."""
    for message in reversed(answered):
        if earliest is not None and earliest[0] < message.invoked_at:
            problems.append(f"{message.text!r} overtook {earliest[1]!r}")
        if message.ended_at is not None and (earliest is None or message.ended_at < earliest[0]):
            earliest = (message.ended_at, message.text)
    return problems


def problems_of_writes(log: Iterable[Written]) -> list[str]:
    """Whether a broker wrote under an epoch after another wrote under a later one, or two under one."""
    problems = []
    last: dict[str, Written] = {}
    for write in sorted((one for one in log if one.n != REFUSED), key=lambda write: write.n):
        before = last.get(write.session)
        if before is not None and (
            write.epoch < before.epoch or (write.epoch == before.epoch and write.owner != before.owner)
        ):
            problems.append(f"{write} came after {before}")
        last[write.session] = write
    return problems
