"""SQLite and PostgreSQL hold the same ledger: the same rows, the same answers, the same facts.

Whatever the state machine does is done to a ledger on each engine, with the same clock and the same randomness; every
answer is compared, and in the end every row. WEFT_PROVE=1 makes 100,000 steps.
"""

from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import psycopg
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import weft
from tests.conftest import NewPostgresLedger
from tests.ledger.conftest import NOON
from tests.ledger.histories import exported, grow, plain_reader, problems
from tests.ledger.imported import rich_import
from tests.ledger.test_search import histories
from tests.ledger.test_sql_surface import Story
from tests.ledger.test_state_machine import FIRST_SEED, TTL_MS, LedgerMachine, counted, run_steps
from tests.ledger.twins import TwinClock, assert_same_everywhere, carried, open_twins
from tests.postgres import shared_server
from tests.sizes import PROVING
from weft.ledger.api.ledger import Ledger
from weft.store.postgres.connection import parse_address

SHARDS = 40 if PROVING else 1
STEPS = (100_000 if PROVING else 80) // SHARDS
EXAMPLES = 10 if PROVING else 3
ODD = [
    "nul \0 and \ud800",
    "quote \" ' \\ / \b\f\n\r\t \x1f \x7f",
    "Zoë, 東京, 🧵",
    "",
    '{"a": [1, null]}',
]


QUERIES = st.sampled_from(
    [
        "cat",
        "ca*",
        '"cat dog"',
        "snake_case",
        "日",
        "日本",
        "é dog",
        "ask",
        "yes",
        "42 cat",
        "ls",
        "zebra",
        "x.y",
        "the",
    ]
)
FILTERS: list[dict[str, Any]] = [
    {},
    {"limit": 2},
    {"role": "user"},
    {"tool": "cat"},
    {"session": "a"},
    {"origin": "weft", "since": NOON + 1000},
    {"until": NOON + 60_000_000},
    {"path": "notes.md"},
]


@pytest.fixture
def address(new_postgres_ledger: NewPostgresLedger) -> str:
    return new_postgres_ledger()


@pytest.fixture
def twins(path: Path, address: str) -> Ledger:
    return open_twins(path, address, TwinClock(NOON), "twins")


def parts_of(text: str) -> list[dict[str, Any]]:
    """One of each kind, with every field that a part can have."""
    return [
        {"type": "text", "text": text},
        {"type": "reasoning", "text": text},
        {"type": "image_url", "url": text, "detail": "my detail"},
        {"type": "image_url", "url": text},
        {"type": "tool_use", "id": text, "name": "my tool", "input": {"x": text}},
        {"type": "tool_result", "tool_call_id": text, "output": text, "is_error": True},
        {"type": "tool_result", "tool_call_id": text, "output": [text], "is_error": False},
        {"type": "tool_result", "tool_call_id": text, "output": None},
    ]


def columns(address: str) -> dict[str, list[str]]:
    named = parse_address(address)
    with psycopg.connect(named.conninfo) as connection:
        found = connection.execute(
            "SELECT c.table_name, c.column_name FROM information_schema.columns c JOIN information_schema.views v"
            " USING (table_schema, table_name) WHERE c.table_schema = %s ORDER BY c.table_name, c.ordinal_position",
            (named.ledger,),
        ).fetchall()
    views: dict[str, list[str]] = {}
    for view, column in found:
        views.setdefault(view, []).append(column)
    return views


def test_the_readable_tables_have_the_same_names_and_columns(twins: Ledger, path: Path, address: str) -> None:
    with plain_reader(path) as ask:
        views = [row["name"] for row in ask("SELECT name FROM sqlite_schema WHERE type = 'view'")]
        told = {view: [row["name"] for row in ask(f"SELECT name FROM pragma_table_info('{view}')")] for view in views}
    assert columns(address) == told
    twins.close()


@pytest.mark.slow("compares every row of a long story on two engines")
def test_every_row_of_a_full_story_is_the_same(path: Path, address: str) -> None:
    clock = TwinClock(NOON)
    with open_twins(path, address, clock, "story") as twins:
        Story(twins, clock)
        rich_import(twins)
        for text in ODD:
            twins.record_turn(
                session="odd", system=text, query={"content": parts_of(text), "context": text, "metadata": [text]},
                response={"content": parts_of(text)}, model="my model", tools_available=["t", "my tool"],
                tool_calls=[{"name": "my tool", "id": "c~1", "result": text}, {"name": "t", "id": "c~1"}],
            )  # fmt: skip
        twins.record_turn(session="odd", query="€" * 500_000)
        twins.upkeep.catch_up()
        assert problems(twins) == []
    assert_same_everywhere(path, address)


@pytest.mark.slow("compares every row of five pairs of ledgers")
@settings(max_examples=200 if PROVING else 3)
@given(texts=st.lists(st.text(st.characters(exclude_categories=[])), min_size=8, max_size=8))
def test_any_text_is_the_same_in_every_row(texts: list[str], memory_folder: Path | None) -> None:
    with TemporaryDirectory(dir=memory_folder) as folder, shared_server().ledger() as address:
        path = Path(folder) / "ledger.db"
        with open_twins(path, address, TwinClock(NOON), "texts") as twins:
            for one, other in zip(texts[::2], texts[1::2], strict=True):
                call = {"name": one or "t", "id": other, "arguments": {one: other}, "result": [one]}
                twins.record_turn(session="main", query=one, response=f"```{other}\n{one}\n```", tool_calls=[call])
            twins.upkeep.catch_up()
        assert_same_everywhere(path, address)


def test_facts_travel_from_one_engine_to_the_other(twins: Ledger, address: str) -> None:
    grow(twins, "main", "a", "b", "c")
    facts = exported(twins)
    twins.close()
    with shared_server().ledger() as place, weft.open(place) as there, weft.open(":memory:") as here:
        assert carried(facts, there) == carried(facts, here)
        assert problems(there) == []


def test_a_backup_of_a_postgresql_ledger_has_every_row_and_goes_on(twins: Ledger, tmp_path: Path, path: Path) -> None:
    Story(twins, twins._clock)  # type: ignore[arg-type]
    before = exported(twins)
    twins.other.upkeep.backup(tmp_path / "copy.db")  # type: ignore[attr-defined]
    twins.close()
    with weft.open(tmp_path / "copy.db", read_only=True) as copy:
        assert exported(copy) == before
        assert problems(copy) == []
    with plain_reader(tmp_path / "copy.db") as copied, plain_reader(path) as origin:
        for table in ("log", "content", "turn", "message", "tool_call", "session", "history", "codeblock"):
            assert copied(f"SELECT * FROM {table}") == origin(f"SELECT * FROM {table}")
    with weft.open(tmp_path / "copy.db") as copy:
        grow(copy, "main", "goes on")
        assert problems(copy) == []
        assert copy.replica != twins.replica


def test_psql_reads_the_tables(twins: Ledger, address: str) -> None:
    (turn,) = grow(twins, "main", "hello")
    twins.close()
    place, name = parse_address(address), parse_address(address).ledger
    query = f"SELECT s.label, s.thread_id, t.status FROM {name}.sessions s JOIN {name}.turns t ON t.id = s.thread_id"
    said = shared_server().run("psql", "-X", place.conninfo, "-At", "-c", query)
    assert said.strip() == f"main|{turn}|completed"


class EnginesMachine(LedgerMachine):
    """The same machine, on a ledger of each engine."""

    def make_clock(self) -> TwinClock:
        self.address = self.stack.enter_context(shared_server().ledger())
        self.opened, self.twin_clock = 0, TwinClock(NOON)
        return self.twin_clock

    def _open(self) -> Ledger:
        self.opened += 1
        ledger = open_twins(self.path, self.address, self.twin_clock, self.opened, lease_ttl=TTL_MS / 1000)
        self.stack.callback(ledger.close)
        return ledger

    def teardown(self) -> None:
        if hasattr(self, "stack"):
            for ledger in self.ledgers:
                ledger.upkeep.catch_up()
            assert_same_everywhere(self.path, self.address)
        super().teardown()


@pytest.mark.slow("80 steps on two engines, each answer compared, and every row")
@pytest.mark.usefixtures("turn_path")
@pytest.mark.parametrize("shard", range(SHARDS))
@pytest.mark.parametrize("turn_path", ["straight"], indirect=True)
def test_whatever_is_done_in_whatever_order_both_engines_hold_the_same(
    shard: int, memory_folder: Path | None, record_property: Callable[[str, object], None]
) -> None:
    first = FIRST_SEED + 1000 * shard
    steps, last = run_steps(STEPS, first, memory_folder, EnginesMachine, EXAMPLES)
    record_property("measured", f"{steps:,} steps")
    print(f"{steps:,} steps with seeds {first} to {last}")
    assert steps >= STEPS
    assert counted["steps"] == steps


@pytest.mark.slow("asks for each word with each filter on two engines")
@settings(max_examples=3 if not PROVING else 100, deadline=None)
@given(
    stories=st.lists(histories(), min_size=1, max_size=3),
    queries=st.lists(QUERIES, min_size=3, max_size=8, unique=True),
)
def test_searches_give_the_same_hits_on_both_engines(
    stories: list[list[dict[str, Any]]], queries: list[str], memory_folder: Path | None
) -> None:
    """Random histories, half of them caught up with: the same hits in the same order, however they are filtered."""
    clock = TwinClock(NOON)
    with (
        TemporaryDirectory(dir=memory_folder) as folder,
        shared_server().ledger() as address,
        open_twins(Path(folder) / "ledger.db", address, clock, "search") as twins,
    ):
        for story in stories:
            twins.upkeep.catch_up()
            for turn in story:
                clock.tick(int(turn.pop("gap") * 1000))
                turn.pop("number")
                twins.record_turn(**turn)
        rich_import(twins)
        for query in queries:
            for filters in FILTERS:
                twins.search(query, **filters)
        assert len(twins.search("", role="user")) > len(stories)
        assert problems(twins) == []
