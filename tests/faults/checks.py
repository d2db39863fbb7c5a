"""What must hold after every fault, asked through the public face of the ledger."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Mapping
from io import BytesIO
from pathlib import Path
from typing import Any

import weft
from tests.faults.scenarios import Ack
from weft.ledger.ledger import Ledger

Kinds = tuple[str, ...]
Answers = Mapping[str, Any]
BESIDE = ("", "-wal", "-head")


def copy_ledger(source: Path, target: Path) -> Path:
    """All files of a ledger that nobody has open; whatever lay at `target` is gone."""
    for suffix in (*BESIDE, "-shm", "-lock"):
        Path(f"{target}{suffix}").unlink(missing_ok=True)
    for suffix in BESIDE:
        if Path(f"{source}{suffix}").exists():
            shutil.copyfile(f"{source}{suffix}", f"{target}{suffix}")
    return target


def facts_of(ledger: Ledger) -> list[bytes]:
    out = BytesIO()
    ledger.export_facts(out)
    return out.getvalue().splitlines()


def end_of(ledger: Ledger) -> int:
    return int(ledger.stats()["events"])


def kinds_after(ledger: Ledger, n: int) -> Kinds:
    """The kinds of all events beyond an arrival number."""
    return tuple(type(found.event).__name__ for found in ledger.changes(n))


def answers(ledger: Ledger) -> Answers:
    """Everything that a reader can be told: the facts, the turns and sessions, the messages of every thread."""
    turns = ledger.log()
    return {
        "facts": facts_of(ledger),
        "turns": turns,
        "sessions": ledger.sessions(every=True),
        "messages": {turn.id: list(ledger.thread(turn.id).messages) for turn in ledger.heads()},
        "calls": {turn.id: ledger.tool_calls(turn.id) for turn in turns},
        "events": {turn.id: ledger.events(turn.id) for turn in turns},
        "feed": list(ledger.changes()),
    }


def assert_kept(ledger: Ledger, promised: Iterable[Ack]) -> None:
    """Every acknowledged turn is there with its digest, and the ledger answers for every receipt."""
    for ack in promised:
        assert ledger.turn(ack.turn).digest == ack.digest
        assert list(ledger.verify(facts=False, views=False, receipt=ack.receipt)) == []


def assert_sound(path: Path, promised: Iterable[Ack] = ()) -> None:
    """Nothing acknowledged is lost, nothing is wrong, and the next append works."""
    with weft.open(path) as ledger:
        assert list(ledger.verify()) == []
        assert_kept(ledger, promised)
        made = ledger.record_turn(session="main", query="still there?", response="yes")
        assert_kept(ledger, [Ack(made.id, made.digest, made.receipt)])
