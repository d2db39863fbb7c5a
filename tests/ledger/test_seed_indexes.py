"""The 27 indexes of the agents ledger schema: each lookup in plain SQL, as the schema writes it, with its query plan.

A lookup goes through the indexes that stand beside it. Where a reason stands there, its column has so few values that
an index would name a large share of the table, and every append would pay for it.
"""

import re
from pathlib import Path
from typing import Any

import psycopg
import pytest

import weft
from tests.conftest import NewPostgresLedger
from tests.ledger.conftest import OpenLedger
from tests.ledger.histories import select
from weft.ledger.api.ledger import Ledger
from weft.store.postgres.connection import parse_address

FEW_VALUES = "two or three values"
KEY = "its key"
LOOKUPS: dict[str, tuple[str, tuple[str, ...] | str]] = {
    "idx_turns_parent": ("turns WHERE parent_turn_id = '{root}'", ("turn_parent",)),
    "idx_turns_type": ("turns WHERE turn_type = 'normal'", FEW_VALUES),
    "idx_turns_status": ("turns WHERE status = 'completed'", FEW_VALUES),
    "idx_turns_started": ("turns WHERE started_at > 0 ORDER BY started_at DESC LIMIT 20", ("turn_started",)),
    "idx_turns_has_children": ("turns WHERE has_children = 1", FEW_VALUES),
    "idx_turns_role": ("turns WHERE role = 'unified'", FEW_VALUES),
    "idx_turns_source_event": ("turns WHERE source_event_id = 'event 7'", ("lookup_text_text", "turn_source_event")),
    "idx_threads_key": ("threads WHERE thread_key = 'main#2'", (KEY, "turn_id")),
    "idx_threads_persona": ("threads WHERE persona_id = 'ann'", ("persona_name", "turn_persona")),
    "idx_sessions_persona": ("sessions WHERE persona_id = 'ann'", ("persona_name", "session_persona")),
    "idx_sessions_routing": ("sessions WHERE routing_key = 'worker:7'", ("lookup_text_text", "session_routing")),
    "idx_sessions_updated": ("sessions WHERE updated_at > 0 ORDER BY updated_at DESC LIMIT 20", ("session_updated",)),
    "idx_sessions_parent": ("sessions WHERE parent_session_label = 'main'", ("session_name", "session_parent")),
    "idx_sessions_origin": ("sessions WHERE origin = 'toy'", ("session_shown_origin",)),
    "idx_messages_turn": ("messages WHERE turn_id = '{turn}' ORDER BY sequence", ("turn_id", KEY)),
    "idx_messages_role": ("messages WHERE role = 'user'", FEW_VALUES),
    "idx_tool_calls_turn": ("tool_calls WHERE turn_id = '{turn}' ORDER BY sequence", ("turn_id", KEY)),
    "idx_tool_calls_tool": (
        "tool_calls WHERE tool_name = 'spawn'",
        "a few dozen names, each in many calls",
    ),
    "idx_tool_calls_message": ("tool_calls WHERE message_id = '{answer}'", ("tool_call_message",)),
    "idx_tool_calls_spawned": (
        "tool_calls WHERE spawned_session_label = 'worker'",
        ("session_name", "tool_call_spawned"),
    ),
    "idx_session_history_label": (
        "session_history WHERE session_label = 'main' AND changed_at > 0 ORDER BY changed_at DESC LIMIT 1",
        ("session_name", KEY),
    ),
    "idx_session_history_thread": ("session_history WHERE thread_id = '{turn}'", ("history_turn",)),
    "idx_session_aliases_target": ("session_aliases WHERE session_label = 'main'", ("session_name", "alias_session")),
    "idx_message_files_message": ("message_files WHERE message_id = '{query}'", ("message_file_once",)),
    "idx_message_files_path": (
        "message_files WHERE file_path = 'src/a.py'",
        ("lookup_text_text", "message_file_path"),
    ),
    "idx_message_lints_message": ("message_lints WHERE message_id = '{query}'", ("message_lint_message",)),
    "idx_message_codeblocks_message": ("message_codeblocks WHERE message_id = '{answer}'", ("codeblock_once",)),
}
NODES = ("Index Scan", "Index Only Scan", "Bitmap Index Scan")


def tell(ledger: Ledger) -> dict[str, str]:
    """A history with a row for every lookup; ids by their names in these."""
    root = ledger.record_turn(session="main", query="one", response="1").id
    ledger.create_session("worker", parent_session="main", persona="ann", routing_key="worker:7", origin="toy")
    ledger.record_turn(session="worker", query="w", persona="ann")
    turn = ledger.record_turn(
        session="main", source_event_id="event 7",
        query={"content": "two", "files": [{"kind": "read", "path": "src/a.py"}],
               "lints": [{"path": "a.py", "message": "unused"}]},
        response={"content": [{"type": "text", "text": "```py\nx\n```"},
                              {"type": "tool_use", "id": "c1", "name": "spawn", "input": {}}]},
        tool_calls=[{"id": "c1", "name": "spawn", "spawned_session": "worker"}],
    ).id  # fmt: skip
    ledger.labels.add_alias("nick", "main")
    ledger.upkeep.catch_up()
    query, answer = (message.id for message in ledger.messages(turn)[:2])
    return {"root": root, "turn": turn, "query": query, "answer": answer}


def searched(lookup: str) -> tuple[str, ...] | None:
    by = LOOKUPS[lookup][1]
    return None if isinstance(by, str) else by


def test_the_list_is_the_schemas() -> None:
    assert len(LOOKUPS) == 27
    assert sum(searched(lookup) is None for lookup in LOOKUPS) == 6


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, str]]:
    path = tmp_path_factory.mktemp("indexes") / "ledger.db"
    with weft.open(path) as ledger:
        return path, tell(ledger)


@pytest.mark.parametrize("lookup", LOOKUPS)
def test_a_lookup_of_the_schema_searches_on_sqlite(told: tuple[Path, dict[str, str]], lookup: str) -> None:
    path, ids = told
    sql = f"SELECT * FROM {LOOKUPS[lookup][0].format(**ids)}"
    assert select(path, sql)
    rows = select(path, f"EXPLAIN QUERY PLAN {sql}")
    steps = [row["detail"] for row in rows if row["parent"] == 0]
    entry = [step for step in steps if step.startswith(("SEARCH", "SCAN")) and "LEFT-JOIN" not in step]
    if (by := searched(lookup)) is None:
        assert entry[0].startswith("SCAN")
        return
    assert [index_of(step) for step in entry][: len(by)] == list(by), steps
    assert all(step.startswith("SEARCH") for step in entry), steps


def index_of(step: str) -> str:
    named = re.search(r"INDEX (\w+)", step)
    return named[1] if named else KEY


def test_the_lookups_of_the_schema_search_on_postgresql(
    open_ledger: OpenLedger, new_postgres_ledger: NewPostgresLedger
) -> None:
    """A planner that is told to scan and to hash only where nothing else is left."""
    address = new_postgres_ledger()
    ids = tell(open_ledger(address))
    named = parse_address(address)
    with psycopg.connect(named.conninfo, row_factory=psycopg.rows.tuple_row) as connection:
        connection.execute(f"SET search_path TO {named.quoted}".encode())
        for method in ("seqscan", "hashjoin", "mergejoin", "material"):
            connection.execute(f"SET enable_{method} TO off".encode())
        for lookup, (question, by) in LOOKUPS.items():
            sql = f"SELECT * FROM {question.format(**ids)}"
            assert connection.execute(sql.encode()).fetchone() is not None, lookup
            ((plan,),) = connection.execute(f"EXPLAIN (FORMAT JSON) {sql}".encode()).fetchall()
            nodes = list(walk(plan[0]["Plan"]))
            through = {node["Index Name"] for node in nodes if node["Node Type"] in NODES and "Index Cond" in node}
            if not isinstance(by, str):
                assert through >= set(by) - {KEY}, (lookup, through)
                assert not any(node["Node Type"] == "Seq Scan" for node in nodes), lookup


def walk(node: dict[str, Any]) -> Any:
    """A plan's nodes, without those of the columns that it puts together."""
    yield node
    for child in node.get("Plans", ()):
        if child["Parent Relationship"] not in ("SubPlan", "InitPlan"):
            yield from walk(child)
