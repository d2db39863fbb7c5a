"""Brokers on PostgreSQL that are killed and stopped, and a server that is restarted: judged by what senders heard."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import Any

import pytest

import weft
from tests.faults.broker_processes import send, serve
from tests.faults.processes import Process
from tests.faults.sizes import Record, chance, sized
from tests.postgres import Server
from weft.ledger.api import Ledger

BROKERS = sized(test=3, prove=16)
SESSIONS = sized(test=12, prove=200)
SENDERS = sized(test=2, prove=8)
MESSAGES = sized(test=12, prove=400)
"""Of each sender."""
FAULTS = sized(test=3, prove=120)
LEASE_SECONDS = 1.0
PATIENCE_SECONDS = sized(test=120, prove=3600)


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """One that may be restarted."""
    server = Server()
    yield server
    server.remove()


class Brokers:
    """So many broker processes at a time, to which things happen."""

    def __init__(self, address: str) -> None:
        self._address = address
        self.processes = [self._started() for _ in range(BROKERS)]
        self.stopped: list[tuple[Process, float]] = []
        self.counts: Counter[str] = Counter()

    def _started(self) -> Process:
        process = Process(serve, self._address, LEASE_SECONDS)
        assert process.hear() == "serving"
        return process

    def kill(self, number: int) -> None:
        self.processes[number].kill()
        self.processes[number].end()
        self.processes[number] = self._started()
        self.counts["kills"] += 1

    def stop(self, number: int) -> None:
        """Past its lease: others take over what it works on."""
        self.processes[number].stop()
        self.stopped.append((self.processes[number], time.monotonic() + 2.5 * LEASE_SECONDS))
        self.counts["stops"] += 1

    def wake_up(self, *, every: bool = False) -> None:
        for process, until in list(self.stopped):
            if every or time.monotonic() >= until:
                process.go_on()
                self.stopped.remove((process, until))

    def end(self) -> None:
        self.wake_up(every=True)
        for process in self.processes:
            process.kill()
            process.end()


def hurt(brokers: Brokers, server: Server, dice: Any, fault: int) -> None:
    kind = ("kill", "restart", "stop")[fault % 3] if fault < 3 else dice.choice(("kill", "kill", "stop", "restart"))
    number = dice.randrange(BROKERS)
    if kind == "kill":
        brokers.kill(number)
    elif kind == "stop":
        brokers.stop(number)
    else:
        server.kill()
        server.start()
        brokers.counts["restarts"] += 1


def unsettled(ledger: Ledger) -> int:
    with ledger._store.read() as txn:
        (count,) = txn.sql.one("SELECT count(*) FROM inbox WHERE state IN ('queued', 'taken')") or (0,)
    return int(count)


def check_history(ledger: Ledger, history: list[Any]) -> int:
    """Every message that a sender heard to be admitted is answered once, in its session, after those that the same
    sender sent there before; nothing else is there."""
    admitted: dict[str, list[str]] = defaultdict(list)
    intended = {text for kind, _, text in history if kind == "invoke"}
    for kind, session, text in history:
        if kind == "ok":
            admitted[session].append(text)
    answered = 0
    for label, texts in admitted.items():
        lines = [(message.role, message.text) for message in ledger.thread(label).messages if message.text]
        questions = [text for role, text in lines if role == "user"]
        replies = [text for role, text in lines if role == "assistant"]
        assert sorted(questions) == sorted(texts)
        assert replies == [f"re: {text}" for text in questions]
        for sender in {text.split(" ")[0] for text in texts}:
            own = [text for text in questions if text.split(" ")[0] == sender]
            assert own == [text for text in texts if text.split(" ")[0] == sender]
        answered += len(questions)
        turns = [turn.status for turn in ledger.thread(label).turns]
        assert turns == ["completed"] * len(questions)
    assert intended == {text for texts in admitted.values() for text in texts}
    return answered


def test_every_admitted_message_is_answered_once_whatever_happens_to_brokers_and_server(
    server: Server, record_property: Record
) -> None:
    dice, address = chance("brokers"), server.address()
    weft.open(address).close()
    labels = [f"session {k}" for k in range(SESSIONS)]
    brokers = Brokers(address)
    senders = [Process(send, address, f"sender{k}", labels, MESSAGES) for k in range(SENDERS)]
    history: list[Any] = []
    try:
        for fault in range(FAULTS):
            time.sleep(dice.uniform(0.05, 0.5))  # the random moment itself; nothing waits for it
            hurt(brokers, server, dice, fault)
            brokers.wake_up()
        for sender in senders:
            history += sender.hear_all()
        until = time.monotonic() + PATIENCE_SECONDS
        with weft.open(address) as ledger:
            while (left := unsettled(ledger)) and time.monotonic() < until:
                brokers.wake_up()
                time.sleep(0.1)  # what is looked at is no timing: it ends as soon as all is settled
            assert left == 0
            brokers.wake_up(every=True)  # whoever slept past its lease writes nothing more
            answered = check_history(ledger, history)
            assert answered == SENDERS * MESSAGES
            assert list(ledger.verify()) == []
    finally:
        brokers.end()
    words = ", ".join(f"{number} {what}" for what, number in sorted(brokers.counts.items()))
    record_property("measured", f"{BROKERS} brokers, {answered:,} messages in {SESSIONS} sessions, {words}")
