"""The straight pass of ordinary turns writes what the general way writes, to the byte.

Both ways are given the same turns, clock and randomness, each in a ledger of its own; then every row of every table is
compared, and `verify` computes all views again. What is unusual must not take the straight pass at all.
"""

from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import weft
from tests.conftest import PROVING
from tests.ledger.conftest import NOON
from tests.ledger.histories import problems
from tests.turn_paths import SQLITE, STRAIGHT, general_only, taken
from weft.kernel.clock import FixedClock, offset
from weft.kernel.errors import WeftError
from weft.ledger.api.ledger import Ledger
from weft.ledger.upkeep.recompute import VIEW_TABLES
from weft.open_ledger import OpenLedger

EXAMPLES = 2_000 if PROVING else 30
Step = tuple[str, Any]
TABLES = ["log", "content", "content_part", "command_done", *VIEW_TABLES]

ODD = ["", "ask", "Zoë, 東京, 🧵", "nul \0 and \ud800", 'quote " \\ %(turn)s %', "ask again"]
TEXTS = st.sampled_from(ODD) | st.text(max_size=20)
CALLS = st.fixed_dictionaries(
    {
        "id": st.sampled_from(["c1", "c2", "a call, with %s"]),
        "name": st.sampled_from(["ls", "mcp/files:read", "my tool"]),
        "arguments": st.sampled_from([{}, {"path": "a.txt", "depth": 2}, {"x": 1.5}, '{"raw":  1}', ["a"]]),
    },
    optional={
        "result": st.sampled_from(["done", {"ok": True}, [1, None], None, 7, ""]),
        "error": st.just("it broke"),
        "status": st.sampled_from(["ok", "error"]),
        "duration_ms": st.integers(0, 9),
        "server": st.just("files"),
    },
)
USAGES = st.fixed_dictionaries(
    {}, optional={name: st.integers(0, 99) for name in ("input_tokens", "output_tokens", "cached_input_tokens")}
)
MESSAGES = TEXTS | st.lists(
    TEXTS | st.fixed_dictionaries({"role": st.sampled_from(["user", "assistant", "system"]), "content": TEXTS}),
    max_size=3,
)
TURNS = st.fixed_dictionaries(
    {"query": MESSAGES, "response": TEXTS},
    optional={
        "system": TEXTS,
        "model": st.sampled_from(["m-1", "a model"]),
        "provider": st.sampled_from(["p", "a provider"]),
        "finish_reason": st.sampled_from(["stop", "out of words"]),
        "usage": USAGES,
        "tool_calls": st.lists(CALLS, max_size=3),
        "error": st.just("it broke"),
        "params": st.just({"temperature": 1}),
        "persona": st.just("helper"),
        "key": st.sampled_from(["k1", "k2"]),
    },
)
PLAIN_CALLS = st.fixed_dictionaries(
    {"id": st.sampled_from(["c1", "c2", "%s"]), "name": st.just("ls"), "arguments": st.dictionaries(TEXTS, TEXTS)},
    optional={"result": TEXTS | st.dictionaries(TEXTS, TEXTS) | st.lists(TEXTS)},
)
PLAIN_TURNS = st.fixed_dictionaries(
    {"query": TEXTS | st.lists(TEXTS, max_size=2), "response": TEXTS},
    optional={
        "system": TEXTS,
        "model": st.just("m-1"),
        "provider": st.just("p"),
        "finish_reason": st.just("stop"),
        "usage": USAGES,
        "tool_calls": st.lists(PLAIN_CALLS, max_size=3),
    },
)
SESSIONS = st.sampled_from(["a", "b"])
STEPS = st.one_of(
    st.tuples(st.just("record"), st.tuples(SESSIONS, PLAIN_TURNS)),
    st.tuples(st.just("record"), st.tuples(SESSIONS, PLAIN_TURNS)),
    st.tuples(st.just("record"), st.tuples(SESSIONS, PLAIN_TURNS)),
    st.tuples(st.just("record"), st.tuples(SESSIONS, TURNS)),
    st.tuples(st.just("several"), st.lists(st.tuples(SESSIONS, TURNS), min_size=2, max_size=3)),
    st.tuples(st.just("fork"), SESSIONS),
    st.tuples(st.just("back"), SESSIONS),
    st.tuples(st.just("rename"), SESSIONS),
    st.tuples(st.just("spawn"), SESSIONS),
    st.tuples(st.just("compact"), SESSIONS),
    st.tuples(st.just("erase"), SESSIONS),
)


class Straight:
    """Counts the turns that take the straight pass."""

    def __init__(self) -> None:
        self._before = taken()[SQLITE, STRAIGHT]

    @property
    def turns(self) -> int:
        return taken()[SQLITE, STRAIGHT] - self._before


def take(ledger: Ledger, step: Step, k: int) -> object:
    """One step of a history. What it answers, or the words in which it is refused."""
    what, given = step
    try:
        match what:
            case "record":
                session, turn = given
                return ledger.record_turn(session=session, **turn)
            case "several":
                return ledger.record_turns([{"session": session, **turn} for session, turn in given])
            case "fork":
                return ledger.fork(given, label=f"fork-{k}").id
            case "back":
                return ledger.move_head(given, new=ledger.point(f"{given}~1").turn_id).head
            case "rename":
                return ledger.labels.rename(given, f"{given}-{k}")
            case "spawn":
                calls = [{"id": "s", "name": "spawn", "spawned_session": f"child-{k}"}]
                return ledger.record_turn(session=given, query="go", response="gone", tool_calls=calls)
            case "compact":
                return ledger.compactions.record(session=given, summary="in short").id
            case "erase":
                head = ledger.session(given).head
                return None if head is None else str(ledger.erasure.erase(head, reason="asked"))
    except WeftError as error:
        return str(error)
    return None


def grown(steps: list[Step], seed: int) -> tuple[list[object], dict[str, Any]]:
    """What a history of these steps answers, and every row of its ledger."""
    clock = FixedClock(NOON)
    with weft.open(":memory:", clock=clock, random_bytes=Random(seed).randbytes) as ledger:
        answers: list[object] = [ledger.record_turn(session=session, query="begin") for session in ("a", "b")]
        for k, step in enumerate(steps):
            answers.append(take(ledger, step, k))
            clock.tick(k)
        assert problems(ledger) == []
        with ledger._store.read() as txn:
            return answers, {table: sorted(txn.sql.all(f"SELECT * FROM {table}"), key=repr) for table in TABLES}


@settings(max_examples=EXAMPLES, deadline=None)
@given(st.lists(STEPS, max_size=8), st.integers(0, 3))
def test_both_ways_write_the_same_rows(steps: list[Step], seed: int) -> None:
    one, straight = grown(steps, seed), Straight()
    with general_only():
        other = grown(steps, seed)
    assert straight.turns == 0
    assert one[0] == other[0]
    for table, rows in other[1].items():
        assert one[1][table] == rows, table


ORDINARY: dict[str, Any] = {
    "query": "list the files",
    "response": "two files",
    "model": "m-1",
    "usage": {"input_tokens": 10, "output_tokens": 2},
    "tool_calls": [{"id": "c1", "name": "ls", "arguments": {"path": "."}, "result": "a b"}],
}
UNUSUAL: list[dict[str, Any]] = [
    {"query": {"content": [{"type": "text", "text": "parts"}]}},
    {"query": {"content": "who asks", "source": "webhook"}},
    {"query": {"content": "more", "metadata": {"a": 1}}},
    {"query": {"content": "more", "context": {"a": 1}}},
    {"query": {"content": "more", "thinking_config": {"a": 1}}},
    {"query": {"content": "more", "model": "m-2"}},
    {"query": {"content": "more", "files": [{"kind": "written", "path": "a.txt"}]}},
    {"query": {"content": "more", "lints": [{"message": "long line"}]}},
    {"query": {"content": "more", "codeblocks": [{"content": "x = 1"}]}},
    {"response": None},
    {"response": ["one", "two"]},
    {"response": {"role": "user", "content": "not the model"}},
    {"response": {"role": "assistant", "content": [{"type": "text", "text": "parts"}]}},
    {"response": {"role": "assistant", "content": "x", "tool_calls": []}},
    {"model": "a model"},
    {"provider": "a provider"},
    {"finish_reason": "out of words"},
    {"params": {"temperature": 0}},
    {"tools_spec": [{"name": "ls"}]},
    {"permissions_used": ["read"]},
    {"error": "it broke"},
    {"persona": "helper"},
    {"role": "worker"},
    {"reason": "user"},
    {"toolset": "files"},
    {"tools_available": ["ls"]},
    {"permissions_granted": ["read"]},
    {"thinking_config": {"budget": 1}},
    {"effective_config": {"a": 1}},
    {"workspace": "/w"},
    {"source_event_id": "e1"},
    *(
        {"tool_calls": [{"id": "c1", "name": "ls", "arguments": {}, **more}]}
        for more in (
            {"id": None},
            {"name": "my tool"},
            {"arguments": "{}"},
            {"arguments": [1]},
            {"result": 7},
            {"result": None},
            {"error": "it broke"},
            {"status": "error"},
            {"server": "files"},
            {"number": 3},
            {"spawned_session": "child"},
            {"duration_ms": 5},
        )
    ),
]


@pytest.fixture
def begun(disk: Ledger) -> OpenLedger:
    disk.record_turn(session="main", query="hello", response="hi")
    assert isinstance(disk, OpenLedger)
    return disk


def test_the_ordinary_turn_takes_the_straight_pass(begun: Ledger) -> None:
    straight = Straight()
    turns = [begun.record_turn(session="main", **ORDINARY) for _ in range(3)]
    begun.record_turn(session="main", query="no model", response="and no calls")
    begun.record_turn(session="main", system="be brief", query=["one", "two"], response="three", provider="p")
    assert straight.turns == 5
    assert [turn.parent_id for turn in turns[1:]] == [turn.id for turn in turns[:2]]
    assert turns[0].response_message_id == offset(turns[0].id, 2)
    assert problems(begun) == []


@pytest.mark.parametrize("field", UNUSUAL, ids=repr)
def test_what_is_unusual_takes_the_general_way(begun: Ledger, field: dict[str, Any]) -> None:
    straight = Straight()
    begun.record_turn(session="main", **{**ORDINARY, **field})
    assert straight.turns == 0
    assert problems(begun) == []


def test_a_turn_at_an_unusual_place_takes_the_general_way(begun: Ledger) -> None:
    first = begun.session("main").head
    begun.record_turn(session="main", **ORDINARY)
    straight = Straight()
    begun.record_turn(session="new", **ORDINARY)
    begun.record_turn(**ORDINARY)
    begun.record_turn(parent=first, **ORDINARY)
    begun.move_head("main", new=first)
    begun.record_turn(session="main", **ORDINARY)  # begins a segment
    assert straight.turns == 0
    begun.record_turn(session="main", **ORDINARY)
    assert straight.turns == 1
    assert problems(begun) == []


def test_whoever_writes_in_a_name_takes_the_general_way(begun: OpenLedger) -> None:
    begun.programs.create("human", "ada", {})
    for_her = begun.acting_as("ada")
    for_her.record_turn(session="hers", query="hello", response="hi")
    straight = Straight()
    for_her.record_turn(session="hers", **ORDINARY)
    assert straight.turns == 0
