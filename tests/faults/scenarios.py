"""What a process does to a ledger while something goes wrong: each `yield` is one acknowledgement."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from msgspec import Struct

import weft
from tests.faults.processes import Say
from tests.faults.tripwires import Tripwire, watch_disk, watch_statements
from weft.kernel.events import Receipt
from weft.ledger.api.ledger import Ledger
from weft.ledger.model import RecordedTurn

weft.open(":memory:").close()  # once for all processes that are forked from here: what new ledgers are copies of


class Ack(Struct, frozen=True):
    """What a caller was told."""

    turn: str
    digest: str
    receipt: Receipt


Acks = Iterator[Ack | None]
Scenario = Callable[[Ledger, int], Acks]
USAGE = {"input_tokens": 9, "output_tokens": 2}


def ack(made: RecordedTurn) -> Ack:
    return Ack(made.id, made.digest, made.receipt)


def a_call(k: int) -> dict[str, Any]:
    return {"id": f"c{k}", "name": "read", "arguments": {"path": f"file {k}"}, "result": f"content {k}"}


def whole_turn(ledger: Ledger, k: int) -> Acks:
    yield ack(
        ledger.record_turn(
            session="main", query=f"query {k}", response=f"answer {k}", model="m", usage=USAGE, tool_calls=[a_call(k)]
        )
    )


def turn_by_steps(ledger: Ledger, k: int) -> Acks:
    turn = ledger.begin_turn(session="main")
    yield None
    turn.message(f"query {k}")
    yield None
    turn.request("m")
    yield None
    call = turn.tool_call("read", {"path": f"file {k}"})
    yield None
    turn.tool_result(call, f"content {k}")
    yield None
    turn.response(f"answer {k}", usage=USAGE)
    yield None
    yield ack(turn.finish())


def fork(ledger: Ledger, k: int) -> Acks:
    ledger.fork("main~1", label=f"fork {k}")
    yield None
    yield ack(ledger.record_turn(session=f"fork {k}", query=f"elsewhere {k}", response="yes"))


def compaction(ledger: Ledger, k: int) -> Acks:
    yield ack(ledger.compactions.record(session="main", summary=f"what happened until {k}", model="m"))


def large_content(ledger: Ledger, k: int) -> Acks:
    yield ack(ledger.record_turn(session="main", query=f"{k}" + "x" * 1_100_000, response="long"))


SCENARIOS: dict[str, Scenario] = {
    scenario.__name__: scenario for scenario in (whole_turn, turn_by_steps, fork, compaction, large_content)
}


def make_ledger(path: Path | str) -> Ledger:
    """Two turns, so that there is something to fork from and to lose."""
    ledger = weft.open(path)
    for k in range(2):
        ledger.record_turn(session="main", query=f"first {k}", response=f"reply {k}")
    return ledger


def leave_unclosed(say: Say, path: str) -> None:
    """A ledger whose maker was killed: what it holds lies in the write-ahead log."""
    make_ledger(path)
    os.kill(os.getpid(), signal.SIGKILL)


def act(say: Say, path: str, name: str, k: int) -> None:
    """The whole scenario, undisturbed."""
    with weft.open(path) as ledger:
        for made in SCENARIOS[name](ledger, k):
            say(made)


def die_at_a_statement(say: Say, path: str, name: str, k: int) -> None:
    """As `act`, killed at the k-th beginning or end of a statement."""
    tripwire = Tripwire(k)
    watch_statements(tripwire)
    ledger = weft.open(path)
    tripwire.armed = True
    for made in SCENARIOS[name](ledger, k):
        say(made)
    tripwire.disarm(say)


def die_in_a_write(say: Say, path: str, name: str, k: int) -> None:
    """As `act`, killed in the middle of the k-th write, or before it if it is a sync, truncation or deletion."""
    tripwire = Tripwire(k, torn=True)
    vfs = watch_disk(tripwire)
    ledger = weft.open(path)
    tripwire.armed = True
    for made in SCENARIOS[name](ledger, k):
        say(made)
    tripwire.disarm(say)
    ledger.close()
    vfs.unregister()


SECRET = "secret-51c7e02b"


def make_ledger_with_secret(path: Path | str) -> None:
    """A session whose label, messages and code hold a secret, beside one that has nothing to do with it."""
    with make_ledger(path) as ledger:
        ledger.record_turn(session=f"{SECRET} label", query=f"{SECRET} asked", response=f"```{SECRET}\ncode\n```")
        ledger.record_turn(session=f"{SECRET} label", query=SECRET + "x" * 1_100_000, response="long")
        ledger.labels.add_alias(f"{SECRET} nick", f"{SECRET} label")
        ledger.upkeep.catch_up()


def die_while_erasing(say: Say, path: str, k: int, torn: bool, at_statements: bool) -> None:
    """Erase the session with the secret; killed at the k-th step of it."""
    tripwire = Tripwire(k, torn=torn)
    vfs = None if at_statements else watch_disk(tripwire)
    if at_statements:
        watch_statements(tripwire)
    ledger = weft.open(path)
    tripwire.armed = True
    say(ledger.erasure.erase(f"{SECRET} label", reason="asked for").complete)
    tripwire.disarm(say)
    ledger.close()
    if vfs is not None:
        vfs.unregister()


def die_while_packing(say: Say, path: str, k: int, torn: bool, at_statements: bool) -> None:
    """Pack every tree, then unpack it again; killed at the k-th step of it."""
    tripwire = Tripwire(k, torn=torn)
    vfs = None if at_statements else watch_disk(tripwire)
    if at_statements:
        watch_statements(tripwire)
    ledger = weft.open(path)
    tripwire.armed = True
    say(ledger.upkeep.pack().contents)
    say(ledger.upkeep.unpack().contents)
    tripwire.disarm(say)
    ledger.close()
    if vfs is not None:
        vfs.unregister()


def die_in_a_shared_commit(say: Say, path: str, k: int) -> None:
    """Eight threads append, each to a session of its own; killed at the k-th beginning or end of a statement."""
    tripwire, speaking = Tripwire(k), threading.Lock()
    watch_statements(tripwire)
    ledger = weft.open(path)

    def write(label: str) -> None:
        for turn in range(2):
            made = ledger.record_turn(session=label, query=f"{label} {turn}", response="yes", tool_calls=[a_call(turn)])
            with speaking:
                say(ack(made))

    threads = [threading.Thread(target=write, args=(f"writer {n}",)) for n in range(8)]
    tripwire.armed = True
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    tripwire.disarm(say)


def die_while_closing(say: Say, path: str, k: int) -> None:
    """Append, then close, which copies the write-ahead log into the database; killed in its k-th write."""
    tripwire = Tripwire(k, torn=True)
    vfs = watch_disk(tripwire)
    ledger = weft.open(path)
    for made in whole_turn(ledger, k):
        say(made)
    tripwire.armed = True
    ledger.close()
    tripwire.disarm(say)
    vfs.unregister()


def die_while_creating(say: Say, path: str, k: int, torn: bool, at_statements: bool) -> None:
    """Make a new ledger and append to it; killed at the k-th step from the very beginning."""
    tripwire = Tripwire(k, torn=torn)
    tripwire.armed = True
    vfs = None if at_statements else watch_disk(tripwire)
    if at_statements:
        watch_statements(tripwire)
    ledger = weft.open(path)
    say(None)
    for made in whole_turn(ledger, k):
        say(made)
    tripwire.disarm(say)
    ledger.close()
    if vfs is not None:
        vfs.unregister()
