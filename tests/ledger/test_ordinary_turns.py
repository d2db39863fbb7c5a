"""The straight pass of ordinary turns writes what the general way writes, to the byte.

Both ways are given the same turns, clock and randomness, each in a ledger of its own; then every row of every table is
compared, and `verify` computes all views again. What is unusual must not take the straight pass at all.
"""

from enum import Enum
from random import Random
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import weft
from tests.ledger.conftest import NOON
from tests.ledger.histories import problems
from tests.sizes import PROVING
from tests.turn_paths import SQLITE, STRAIGHT, general_only, taken
from weft.kernel.clock import FixedClock, offset
from weft.kernel.enums import MessageRole
from weft.kernel.errors import InvalidInput, WeftError
from weft.ledger.api.ledger import Ledger
from weft.ledger.model import FileNote, LintNote, NewMessage, NewToolCall
from weft.ledger.upkeep.verify import VIEW_TABLES
from weft.ledger.write import record_turn, turn_events
from weft.surfaces.opening import OpenLedger

EXAMPLES = 2_000 if PROVING else 12
Step = tuple[str, Any]
TABLES = ["log", "content", "content_part", "command_done", *VIEW_TABLES]

IMPORTED = "0123456789abcdef0123456789abcdef"
"""The label of a session that is also known by its beginning."""


class Vendor(str, Enum):  # noqa: UP042  a `StrEnum` would be written as its value
    """Names as programs often keep them: text that `str()` writes as `Vendor.LARGE`."""

    LARGE = "large-1"


class Loud(str):
    def __str__(self) -> str:
        return "LOUD"


def new_message(role: Any) -> NewMessage:
    return NewMessage(role=role, content="hello")


def new_call(**fields: Any) -> NewToolCall:
    return NewToolCall(**{"id": "c1", "name": "ls", **fields})


NAMES = st.sampled_from(["m-1", "a model", Vendor.LARGE, Loud("quiet"), "n" * 128, "n" * 129, "%(turn)s", "line\n"])
ODD = ["", "ask", "Zoë, 東京, 🧵", "nul \0 and \ud800", 'quote " \\ %(turn)s %', "ask again"]
TEXTS = st.sampled_from(ODD) | st.text(max_size=20)
CALLS = st.fixed_dictionaries(
    {
        "id": st.sampled_from(["c1", "c2", "a call, with %s", ""]),
        "name": st.sampled_from(["ls", "mcp/files:read"]) | NAMES,
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
TOKENS = st.integers(0, 99) | st.just(2**51)
USAGES = st.fixed_dictionaries(
    {},
    optional={
        **dict.fromkeys(("input_tokens", "output_tokens", "cached_input_tokens", "reasoning_tokens"), TOKENS),
        "cache_write_tokens": st.integers(5, 9),
        "cache_write_1h_tokens": st.integers(0, 5),
    },
) | st.sampled_from(
    [
        {"total_tokens": 7},
        {"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10},
        {"input_tokens": 1, "output_tokens": 2, "service_tier": "standard"},
    ]
)
MESSAGES = TEXTS | st.lists(
    TEXTS
    | st.fixed_dictionaries({"role": st.sampled_from(["user", "assistant", "system", "tool"]), "content": TEXTS})
    | st.sampled_from(["user", "narrator", None]).map(new_message),
    max_size=3,
)
TURNS = st.fixed_dictionaries(
    {"query": MESSAGES, "response": TEXTS},
    optional={
        "system": TEXTS,
        "model": NAMES,
        "provider": NAMES,
        "finish_reason": NAMES,
        "usage": USAGES,
        "tool_calls": st.lists(
            CALLS | st.sampled_from([{}, {"id": 5}, {"name": 5}]).map(lambda f: new_call(**f)), max_size=3
        ),
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
SESSIONS = st.sampled_from(["a", "b", IMPORTED])
NAMED = SESSIONS | st.sampled_from([IMPORTED[:8], "other-name"])
CHANGES = (
    "fork back into rename alias archive unarchive spawn subagent compact no-compaction erase late substitute step fail"
    " leave back-in-time"
).split()
STEPS = st.one_of(
    st.tuples(st.just("record"), st.tuples(SESSIONS, PLAIN_TURNS)),
    st.tuples(st.just("record"), st.tuples(SESSIONS, PLAIN_TURNS)),
    st.tuples(st.just("record"), st.tuples(SESSIONS, PLAIN_TURNS)),
    st.tuples(st.just("record"), st.tuples(NAMED, TURNS)),
    st.tuples(st.just("pinned"), st.tuples(NAMED, PLAIN_TURNS, st.sampled_from(["parent", "expected"]), st.booleans())),
    st.tuples(st.just("by id"), st.tuples(SESSIONS, PLAIN_TURNS)),
    st.tuples(st.just("several"), st.lists(st.tuples(SESSIONS, TURNS), min_size=2, max_size=3)),
    st.tuples(st.sampled_from(CHANGES), NAMED),
    st.tuples(st.sampled_from(CHANGES), NAMED),
)


class Straight:
    """Counts the turns that take the straight pass."""

    def __init__(self) -> None:
        self._before = taken()[SQLITE, STRAIGHT]

    @property
    def turns(self) -> int:
        return taken()[SQLITE, STRAIGHT] - self._before


def take(ledger: Ledger, step: Step, k: int, clock: FixedClock) -> object:
    """One step of a history. What it answers, or the words in which it is refused."""
    what, given = step
    try:
        match what:
            case "record":
                session, turn = given
                return ledger.record_turn(session=session, **turn)
            case "several":
                return ledger.record_turns([{"session": session, **turn} for session, turn in given])
            case "pinned":
                session, turn, pin, is_before = given
                at = ledger.point(f"{session}~1").turn_id if is_before else ledger.session(session).head
                return ledger.record_turn(session=session, **{**turn, pin: at})
            case "by id":
                session, turn = given
                return ledger.record_turn(session=ledger.session(session).id, **turn)
            case "back-in-time":
                clock.set(NOON - 1000)
            case _:
                return change(ledger, what, given, k)
    except WeftError as error:
        return str(error)
    return None


def change(ledger: Ledger, what: str, session: str, k: int) -> object:
    """Something else that is done to a session between its turns."""
    match what:
        case "fork":
            return ledger.fork(session, label=f"fork-{k}").id
        case "back":
            return ledger.move_head(session, new=ledger.point(f"{session}~1").turn_id).head
        case "into":
            events = [recorded.id for recorded in ledger.events(ledger.session(session).head or "")]
            return ledger.move_head(session, new=events[len(events) // 2]).head
        case "rename":
            return ledger.labels.rename(session, f"{session}-{k}")
        case "alias":
            return ledger.labels.add_alias("other-name", session)
        case "archive":
            return ledger.labels.archive(session).status
        case "unarchive":
            return ledger.labels.unarchive(session).status
        case "spawn":
            calls = [{"id": "s", "name": "spawn", "spawned_session": f"child-{k}"}]
            return ledger.record_turn(session=session, query="go", response="gone", tool_calls=calls)
        case "subagent":
            return ledger.create_session(f"sub-{k}", parent_session=session, spawn_tool_call_id="c1").id
        case "compact":
            return ledger.compactions.record(session=session, summary="in short").id
        case "no-compaction":
            return ledger.compactions.choose(session, None)
        case "erase":
            head = ledger.session(session).head
            return None if head is None else str(ledger.erasure.erase(head, reason="asked"))
        case "late":
            return ledger.record_late_result(ledger.session(session).head or "", "c1", "at last")
        case "substitute":
            return ledger.substitute(ledger.session(session).head or "", "better words").replacement
        case _:
            return by_steps(ledger, what, session)


def by_steps(ledger: Ledger, what: str, session: str) -> object:
    """A turn that ends well, fails, or is left to whoever comes next."""
    turn = ledger.begin_turn(session=session)
    turn.message("by steps")
    turn.tool_call("ls", {}, id="c1")
    if what == "fail":
        return turn.fail("it broke")
    return turn.finish() if what == "step" else None


def grown(steps: list[Step], seed: int) -> tuple[list[object], dict[str, Any]]:
    """What a history of these steps answers, and every row of its ledger."""
    clock = FixedClock(NOON)
    with weft.open(":memory:", clock=clock, random_bytes=Random(seed).randbytes) as ledger:
        ledger.create_session(IMPORTED, origin="toy")
        answers: list[object] = [ledger.record_turn(session=session, query="begin") for session in ("a", "b", IMPORTED)]
        for k, step in enumerate(steps):
            answers.append(take(ledger, step, k, clock))
            clock.tick(k)
        assert problems(ledger) == []
        with ledger._store.read() as txn:
            return answers, {table: sorted(txn.sql.fetch_rows(f"SELECT * FROM {table}"), key=repr) for table in TABLES}


@pytest.mark.slow("compares every row of pairs of histories")
@settings(max_examples=EXAMPLES, deadline=None)
@given(st.lists(STEPS, max_size=10), st.integers(0, 3))
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
    {"model": Vendor.LARGE},
    {"provider": Vendor.LARGE},
    {"finish_reason": Vendor.LARGE},
    {"model": Loud("quiet")},
    {"query": new_message("user")},
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
            {"name": Vendor.LARGE},
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


def test_a_name_that_is_a_member_of_an_enumeration_is_written_as_its_value(begun: Ledger) -> None:
    calls = [{"id": "c1", "name": Vendor.LARGE}]
    turn = begun.record_turn(
        session="main", query="q", response="r", model=Vendor.LARGE, finish_reason=Vendor.LARGE, tool_calls=calls
    )
    written = b"".join(recorded.line for recorded in begun.events(turn.id))
    assert written.count(b'"large-1"') == 3
    assert b"Vendor" not in written
    assert begun.turn(turn.id).model == "large-1"


@pytest.mark.parametrize(
    "field",
    [
        {"query": new_message("narrator")},
        {"query": new_message(None)},
        {"query": NewMessage(role=MessageRole.USER, content="q", source=cast(Any, "nobody"))},
        {"query": NewMessage(role=MessageRole.USER, content="q", files=(FileNote(kind=cast(Any, "lost"), path="a"),))},
        {"query": NewMessage(role=MessageRole.USER, content="q", lints=(LintNote(severity=cast(Any, "loud")),))},
        {"tool_calls": [new_call(id=5)]},
        {"tool_calls": [new_call(name=5)]},
        {"tool_calls": [new_call(name=[])]},
        {"tool_calls": [new_call(status="lost")]},
    ],
    ids=repr,
)
def test_what_no_event_can_say_is_refused_whoever_made_the_record(begun: Ledger, field: dict[str, Any]) -> None:
    before = len(list(begun.changes()))
    with pytest.raises(InvalidInput):
        begun.record_turn(session="main", **{**ORDINARY, **field})
    assert len(list(begun.changes())) == before
    assert problems(begun) == []


def test_the_straight_pass_ends_where_a_turn_has_no_room_for_more(
    begun: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(record_turn, "MESSAGE_ROOM", 4)
    monkeypatch.setattr(turn_events, "MESSAGE_ROOM", 4)
    straight = Straight()
    begun.record_turn(session="main", query=["one", "two"], response="three")
    assert straight.turns == 1
    with pytest.raises(InvalidInput, match="at most 3 messages"):
        begun.record_turn(session="main", query=["one", "two", "three"], response="four")
    assert straight.turns == 1
    assert problems(begun) == []


def test_a_session_named_by_its_beginning_stays_one(begun: Ledger) -> None:
    begun.create_session(IMPORTED, origin="toy")
    turns = [begun.record_turn(session=name, **ORDINARY) for name in (IMPORTED, IMPORTED, IMPORTED[:8])]
    begun.record_turn(session=IMPORTED, expected=turns[-1].id, **ORDINARY)
    last = begun.record_turn(session=IMPORTED[:8], **ORDINARY)
    assert begun.labels.rename(IMPORTED, "mine").head == last.id
    assert problems(begun) == []


def test_whoever_writes_in_a_name_takes_the_general_way(begun: OpenLedger) -> None:
    begun.programs.create("human", "ada", {})
    for_her = begun.acting_as("ada")
    for_her.record_turn(session="hers", query="hello", response="hi")
    straight = Straight()
    for_her.record_turn(session="hers", **ORDINARY)
    assert straight.turns == 0
