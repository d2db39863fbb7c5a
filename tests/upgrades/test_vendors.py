"""Turns of brokers of earlier versions named the provider's program; the vendor is known where that had its name."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import apsw

import weft
from tests.ledger.histories import problems

BEFORE = 24
"""The schema in which one column held both."""


def take_back(path: Path) -> None:
    """Make a ledger what it was before the vendor had a column of its own."""
    with closing(apsw.Connection(str(path))) as file:
        for (name,) in file.execute("SELECT name FROM sqlite_schema WHERE type = 'view'").fetchall():
            file.execute(f"DROP VIEW {name}")
        file.execute("UPDATE turn SET provider = provider_program WHERE provider_program IS NOT NULL")
        file.execute("ALTER TABLE turn DROP COLUMN provider_program")
        for table in ("account", "sign_in_link", "cookie_key", "browser_session", "credential_revoked"):
            file.execute(f"DROP TABLE {table}")
        file.execute(f"PRAGMA user_version = {BEFORE}")
        file.execute("PRAGMA wal_checkpoint(TRUNCATE)")


def test_the_vendor_of_an_old_turn_is_told_where_its_facts_tell_it(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    asked = {"by its name": "anthropic", "by another one": "ours"}
    ids = {}
    with weft.open(path) as ledger:
        for session, program in asked.items():
            with ledger.begin_turn(session=session, effective_config={"provider": program}) as turn:
                turn.message("q")
                turn.request("m", provider=program)
                turn.response("r", usage={"input_tokens": 1})
            ids[session] = turn.id
        ids["recorded"] = ledger.record_turn(
            session="main", query="q", response="r", provider="groq", usage={"input_tokens": 1}
        ).id
        ids["nothing"] = ledger.record_turn(session="main", query="q", response="r").id
    take_back(path)
    with weft.open(path) as ledger:
        turns = {name: ledger.turn(id) for name, id in ids.items()}
        assert {name: (turn.provider, turn.provider_program) for name, turn in turns.items()} == {
            "by its name": ("anthropic", "anthropic"),
            "by another one": (None, "ours"),
            "recorded": ("groq", None),
            "nothing": (None, None),
        }
        assert problems(ledger) == []
        report = ledger.usage.report(by="provider")
        assert sorted(str(row.key) for row in report.rows) == ["(unknown)", "anthropic", "groq"]
