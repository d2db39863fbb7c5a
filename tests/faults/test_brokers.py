"""Brokers on PostgreSQL that are killed and stopped, and a server that is restarted: judged by what clients logged."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any, TypeVar

import pytest
from msgspec.json import decode

import weft
from tests.faults.broker_processes import Reader, send, serve
from tests.faults.histories import (
    REFUSED,
    Said,
    Sent,
    ToldTurn,
    Written,
    problems_of_answers,
    problems_of_writes,
    sent_messages,
)
from tests.faults.processes import Process
from tests.postgres import Server
from tests.sizes import Record, chance, sized
from weft.ledger.api import Ledger

T = TypeVar("T")
BROKERS = sized(test=3, prove=16)
SESSIONS = sized(test=12, prove=200)
SENDERS = sized(test=2, prove=8)
MESSAGES = sized(test=12, prove=100)
"""Of each sender."""
FAULTS = sized(test=3, prove=120)
LEASE_SECONDS = sized(test=1.0, prove=3.0)
PAUSE_SECONDS = sized(test=(0.05, 0.5), prove=(0.2, 2.0))
PATIENCE_SECONDS = sized(test=120, prove=3600)


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """One that may be restarted, with room for the connections of all brokers."""
    server = Server(max_connections="400")
    yield server
    server.remove()


class Brokers:
    """So many broker processes at a time, to which things happen."""

    def __init__(self, address: str, logs: Path) -> None:
        self._address, self._logs, self._numbers = address, logs, count()
        self.processes = [self._started() for _ in range(BROKERS)]
        self.stopped: list[tuple[Process, float]] = []
        self.counts: Counter[str] = Counter()

    def _started(self) -> Process:
        process = Process(serve, self._address, LEASE_SECONDS, str(self._logs / f"broker {next(self._numbers)}"))
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


def lines(logs: Path, name: str, kind: type[T]) -> list[T]:
    """Of the logs of this name, whole lines only: whoever writes one may have been killed."""
    texts = [file.read_bytes() for file in sorted(logs.glob(f"{name} *"))]
    return [decode(line, type=kind) for text in texts for line in text.split(b"\n")[:-1]]


def check_ledger(ledger: Ledger, told: list[ToldTurn]) -> None:
    """The ledger shows what readers were told, and nothing else."""
    questions: dict[str, list[str]] = defaultdict(list)
    for turn in told:
        questions[turn.session] += turn.questions
    for label, texts in questions.items():
        thread = ledger.thread(label)
        messages = [(message.role, message.text) for message in thread.messages if message.text]
        assert [text for role, text in messages if role == "user"] == texts
        assert [text for role, text in messages if role == "assistant"] == [f"re: {text}" for text in texts]
        assert [turn.status for turn in thread.turns] == ["completed"] * len(texts)
    assert ledger.inbox.list() == []
    assert list(ledger.verify()) == []


def wait_for_answers(brokers: Brokers, reader: Reader, messages: dict[str, Sent]) -> None:
    """Until the reader was told of every message that was admitted; those that nobody knows of may be there too."""
    until = time.monotonic() + PATIENCE_SECONDS
    admitted = {text for text, message in messages.items() if message.outcome == "ok"}
    while admitted - {text for turn in list(reader.turns) for text in turn.questions} and time.monotonic() < until:
        brokers.wake_up()
        time.sleep(0.1)  # what is looked at is no timing: it ends as soon as all is told


@pytest.mark.slow("runs brokers, senders, a reader and a server, and kills them")
def test_every_admitted_message_is_answered_once_whatever_happens_to_brokers_and_server(
    server: Server, tmp_path: Path, record_property: Record
) -> None:
    dice, address = chance("brokers"), server.address()
    labels = [f"session {k}" for k in range(SESSIONS)]
    with weft.open(address) as ledger:
        for label in labels:
            ledger.create_session(label)
    brokers, reader = Brokers(address, tmp_path), Reader(address, labels)
    reader.start()
    names = [f"sender{k}" for k in range(SENDERS)]
    senders = [Process(send, address, name, labels, MESSAGES, str(tmp_path / f"sender {name}")) for name in names]
    try:
        for fault in range(FAULTS):
            time.sleep(dice.uniform(*PAUSE_SECONDS))  # the random moment itself; nothing waits for it
            hurt(brokers, server, dice, fault)
            brokers.wake_up()
        assert [sender.end() for sender in senders] == [0] * SENDERS
        messages = sent_messages(lines(tmp_path, "sender", Said))
        wait_for_answers(brokers, reader, messages)
        brokers.wake_up(every=True)  # whoever slept past its lease writes nothing more
        with weft.open(address) as ledger:
            while ledger.inbox.list():
                time.sleep(0.1)  # a message whose sender gave up may be on its way
            late = Reader(address, labels)
            late.start()
            wait_for_answers(brokers, late, messages)
            told = reader.end()
            assert problems_of_answers(messages, [told, late.end()]) == []
            writes = lines(tmp_path, "broker", Written)
            assert problems_of_writes(writes) == []
            check_ledger(ledger, told)
    finally:
        brokers.end()
    counts = Counter(message.outcome for message in messages.values())
    counts["lost leases noticed"] = sum(write.n == REFUSED for write in writes)
    counts.update(brokers.counts)
    assert len(messages) == SENDERS * MESSAGES
    words = ", ".join(f"{number:,} {what}" for what, number in sorted(counts.items()))
    record_property("measured", f"{BROKERS} brokers, {SESSIONS} sessions, {len(writes):,} writes, messages: {words}")
