"""What must hold after every fault, asked through the public face of the ledger."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Mapping
from io import BytesIO
from pathlib import Path
from typing import Any

import apsw

import weft
from tests.faults.scenarios import Ack
from tests.ledger.invariants import BROKEN
from weft.ledger.api.ledger import Ledger
from weft.ledger.read.session_list import SessionFilter

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
    ledger.upkeep.export_facts(out)
    return out.getvalue().splitlines()


def end_of(ledger: Ledger) -> int:
    return int(ledger.upkeep.stats()["events"])


def kinds_after(ledger: Ledger, n: int) -> Kinds:
    """The kinds of all events beyond an arrival number."""
    return tuple(type(found.event).__name__ for found in ledger.changes(n))


def answers(ledger: Ledger) -> Answers:
    """Everything that a reader can be told."""
    turns, sessions = ledger.log(), ledger.sessions(every=True)
    return {
        "facts": facts_of(ledger),
        "feed": list(ledger.changes()),
        "turns": turns,
        "messages": {turn.id: list(ledger.thread(turn.id).messages) for turn in ledger.tree.heads()},
        "calls": {turn.id: ledger.tool_calls(turn.id) for turn in turns},
        "events": {turn.id: ledger.events(turn.id) for turn in turns},
        "contexts": {turn.id: ledger.context(turn.id) for turn in turns},
        "code": [ledger.codeblocks(message.id) for turn in turns for message in ledger.messages(turn.id)],
        "children": {turn.id: ledger.tree.children(turn.id) for turn in turns},
        "containing": {turn.id: ledger.tree.sessions_containing(turn.id) for turn in turns},
        "sessions": sessions,
        "reflogs": {session.id: ledger.reflog(session.id) for session in sessions},
        "listing": ledger.listing().sessions(SessionFilter(every=True, subagents=True)),
        "usage": [ledger.usage.report(by) for by in ("session", "model", "month")],
        "abandoned": ledger.usage.abandoned(),
        "work": ledger.usage.work(),
        "files": ledger.files("file.py"),
        "found": [ledger.search(words) for words in ("answer", "content", "hm")],
        "audit": list(ledger.audit.findings()),
        "stats": ledger.upkeep.stats(),
    }


def assert_kept(ledger: Ledger, promised: Iterable[Ack]) -> None:
    """Every acknowledged turn is there with its digest, and the ledger answers for every receipt."""
    for ack in promised:
        assert ledger.turn(ack.turn).digest == ack.digest
        assert list(ledger.verify(facts=False, views=False, receipt=ack.receipt)) == []


def assert_unbroken(path: Path) -> None:
    """The invariants of the agents ledger schema, asked in SQL as anybody might."""
    shell = apsw.Connection(str(path), apsw.SQLITE_OPEN_READONLY)
    try:
        for invariant, query in BROKEN.items():
            assert shell.execute(query).fetchall() == [], invariant
    finally:
        shell.close()


def assert_sound(path: Path, promised: Iterable[Ack] = ()) -> None:
    """Nothing acknowledged is lost, nothing is wrong, and the next append works."""
    with weft.open(path) as ledger:
        assert list(ledger.verify()) == []
        assert_kept(ledger, promised)
        made = ledger.record_turn(session="main", query="still there?", response="yes")
        assert_kept(ledger, [Ack(made.id, made.digest, made.receipt)])
        assert_unbroken(path)
