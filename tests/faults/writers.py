"""Processes that write to one ledger for as long as they may."""

from __future__ import annotations

import random
import time
from itertools import count
from multiprocessing.synchronize import Barrier

import weft
from tests.faults.processes import Say
from tests.faults.scenarios import USAGE, Ack, a_call, ack
from weft.kernel.errors import OutcomeUnknown, StoreFailed
from weft.ledger.api.ledger import Ledger

FORK = "fork of "


def write_for_ever(say: Say, path: str, label: str, seed: str) -> None:
    """Append this and that, here and there, and tell every acknowledgement."""
    dice = random.Random(seed)
    ledger = weft.open(path)
    for k in count():
        say(_append(ledger, dice, label, f"{label} {k}"))


def _append(ledger: Ledger, dice: random.Random, label: str, text: str) -> Ack:
    match dice.choices(("shared", "own", "steps", "fork", "large"), (40, 35, 15, 6, 4))[0]:
        case "shared":
            return ack(ledger.record_turn(session="shared", query=text, response="yes", tool_calls=[a_call(1)]))
        case "own":
            return ack(ledger.record_turn(session=label, query=text, response="yes", model="m", usage=USAGE))
        case "fork":
            at = ledger.record_turn(session="shared", query=text)
            ledger.fork(at.id, label=FORK + at.id)
            return ack(ledger.record_turn(session=FORK + at.id, query=text))
        case "large":
            return ack(ledger.record_turn(session=label, query=text + "x" * 1_100_000))
    with ledger.begin_turn(session=label) as turn:
        turn.message(text)
        turn.request("m")
        call = turn.tool_call("read", {"path": text})
        turn.tool_result(call, "content")
        turn.response("yes")
        return ack(turn.finish())


def write_whatever_happens(say: Say, path: str, label: str) -> None:
    """Turn after turn, in a session of its own and in a shared one, also while the server is away: tells of each what
    its caller heard."""
    ledger = weft.open(path)
    say("open")
    for k in count():
        session, text = ("shared", label)[k % 2], f"{label} {k}"
        try:
            say((session, text, ack(ledger.record_turn(session=session, query=text, response="yes"))))
        except OutcomeUnknown:
            say((session, text, None))
        except StoreFailed:
            say((session, text, "refused"))


def write_many(say: Say, path: str, labels: list[str], name: str, times: int, start: Barrier) -> None:
    """So many turns, by turns in these sessions; tells the acknowledgements and the longest wait."""
    with weft.open(path) as ledger:
        start.wait()
        acks, longest = [], 0.0
        for k in range(times):
            began, label = time.monotonic(), labels[k % len(labels)]
            acks.append(ack(ledger.record_turn(session=label, query=f"{name} {k}", response="yes")))
            longest = max(longest, time.monotonic() - began)
    say((acks, longest))


def write_so_often(say: Say, path: str, label: str, name: str, times: int, start: Barrier) -> None:
    """The same, in one session."""
    write_many(say, path, [label], name, times, start)
