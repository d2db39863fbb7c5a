"""Every value that the agents ledger schema names stands in its column, as whoever recorded it said it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

import weft
from weft.ledger.api.ledger import Ledger

VALUES: dict[str, str] = {
    "turns.turn_type": "normal compaction",
    "turns.status": "pending streaming completed failed",
    "turns.provider": "anthropic openai google",
    "turns.role": "manager worker unified",
    "sessions.task_status": "pending running completed failed",
    "sessions.origin": "weft cursor claude-code",
    "sessions.status": "active archived deleted",
    "messages.role": "user assistant system tool",
    "messages.source": "human trigger agent webhook cron event",
    "tool_calls.status": "running completed failed",
    "compactions.compaction_type": "summary sliding_window selective",
    "compactions.trigger": "context_limit manual periodic",
    "session_aliases.reason": "identity_promotion identity_merge manual",
    "message_files.kind": "read written referenced attached",
    "message_lints.severity": "error warning info",
}


def tell_turns(ledger: Ledger) -> None:
    for role in ("manager", "worker", "unified"):
        ledger.record_turn(session="main", query="q", response="r", role=role)
    for provider in ("anthropic", "openai", "google"):
        ledger.record_turn(session="main", query="q", response="r", provider=provider)
    sources = ("human", "trigger", "agent", "webhook", "cron", "event")
    query: list[Any] = [{"content": "q", "source": source} for source in sources]
    query.append({"role": "tool", "content": "found"})
    query.append(
        {
            "content": "look",
            "files": [{"kind": kind, "path": "a.py"} for kind in ("read", "written", "referenced", "attached")],
            "lints": [{"path": "a.py", "severity": severity} for severity in ("error", "warning", "info")],
        }
    )
    calls: list[dict[str, Any]] = [{"name": "t", "id": "c1", "result": 1}, {"name": "t", "id": "c2", "error": "no"}]
    ledger.record_turn(session="main", system="rules", query=query, response="r", tool_calls=calls)
    ledger.record_turn(session="main", query="q", error="the model failed")
    ledger.begin_turn(session="begun").message("q")
    asked = ledger.begin_turn(session="asked")
    asked.request("m")
    asked.tool_call("t", id="c3")


def tell_sessions(ledger: Ledger) -> None:
    for origin in ("cursor", "claude-code"):
        ledger.create_session(f"from-{origin}", origin=origin)
    ledger.record_turn(session="old", query="q")
    ledger.labels.archive("old")
    ledger.record_turn(session="gone", query="q")
    ledger.labels.delete("gone")
    for status in ("pending", "running", "completed", "failed"):
        ledger.create_session(status, parent_session="main")
    for label, error in (("completed", None), ("failed", "x")):
        ledger.record_turn(session=label, query="q", error=error)
    ledger.begin_turn(session="running").message("q")
    for reason in ("identity_promotion", "identity_merge", "manual"):
        ledger.labels.add_alias(f"also-{reason}", "main", reason=reason)
    for kind, trigger in (
        ("summary", "context_limit"),
        ("sliding_window", "manual"),
        ("selective", "periodic"),
    ):
        ledger.record_turn(session="main", query="q", response="r")
        ledger.compactions.record(session="main", summary="s", compaction_type=kind, trigger=trigger)


@pytest.fixture(scope="module")
def values() -> Iterator[Callable[[str, str], set[str]]]:
    """The values of a column of a table."""
    with weft.open(":memory:") as ledger:
        tell_turns(ledger)
        tell_sessions(ledger)

        def read(table: str, column: str) -> set[str]:
            with ledger._store.read() as txn:
                return {value for (value,) in txn.sql.fetch_rows(f"SELECT DISTINCT {column} FROM {table}") if value}

        yield read


@pytest.mark.parametrize("column", VALUES)
def test_each_value_of_the_schema_stands_in_its_column(values: Callable[[str, str], set[str]], column: str) -> None:
    table, _, name = column.partition(".")
    assert values(table, name) == set(VALUES[column].split())


@pytest.mark.parametrize("reason", ["user", "schedule", "subagent"])
def test_a_turn_says_why_it_began(reason: str) -> None:
    with weft.open(":memory:") as ledger:
        turn = ledger.begin_turn(session="main", reason=reason)
        assert ledger.turn(turn.id).reason == reason
