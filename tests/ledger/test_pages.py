"""Lists page by page: every item once, in the order of the first page, whatever others write in between."""

from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import weft
from tests.ledger.conftest import NOON
from tests.ledger.histories import grow, grow_at_once
from tests.ledger.imported import native_call, native_turn, take
from tests.postgres import shared_server
from tests.sizes import PROVING, share
from weft.kernel.clock import FixedClock
from weft.kernel.errors import InvalidInput
from weft.ledger.api.ledger import Ledger
from weft.ledger.model import ToolCall
from weft.ledger.read.session_list import SessionFilter
from weft.ledger.read.sessions import Page
from weft.store.sqlite.connection import SqliteSql

Ask = Callable[[str | None, int | None], Page[Any]]
"""One page of a listing, behind a cursor and of a size."""


def listings(ledger: Ledger) -> dict[str, Ask]:
    """Every verb that pages, by name, each over the history of `filled`."""
    message = ledger.messages("s1~1")[1].id
    return {
        "log": lambda after, limit: ledger.log(limit, after=after),
        "log of a session": lambda after, limit: ledger.log(limit, after=after, session="mine"),
        "log of a thread": lambda after, limit: ledger.log(limit, after=after, thread="s0"),
        "thread": lambda after, limit: ledger.thread("s0").page(limit=limit, after=after),
        "events": lambda after, limit: ledger.events("mine", limit=limit, after=after),
        "search": lambda after, limit: ledger.search("ask", limit=limit, after=after),
        "sessions": lambda after, limit: ledger.sessions(every=True, limit=limit, after=after),
        "find_turns": lambda after, limit: ledger.find_turns(status="completed", limit=limit, after=after),
        "find_turns of a type": lambda after, limit: ledger.find_turns(has_children=False, limit=limit, after=after),
        "find_messages": lambda after, limit: ledger.find_messages(role="user", limit=limit, after=after),
        "find_tool_calls": lambda after, limit: ledger.find_tool_calls(tool="run", limit=limit, after=after),
        "find_tool_calls of a message": lambda after, limit: ledger.find_tool_calls(
            message=message, limit=limit, after=after
        ),
        "find_sessions": lambda after, limit: ledger.find_sessions(origin="toy", limit=limit, after=after),
    }


def rewrite(ledger: Ledger, session: int, answers: list[str], earlier: int = 0) -> None:
    """A source of another tool, written anew: turns whose answers differ from before get another version. `earlier`: in
    another file, which tells other times."""
    turns = []
    for i, answer in enumerate(answers):
        started = 10_000 + 1_000 * i + session - earlier
        calls = [native_call(f"s{session}-c{i}-{k}", at=started) for k in range(2)]
        when = {"started": started, "ended": started + 500} if session else {}
        parent = i - 1 if i else None
        turns.append(native_turn(f"s{session}-t{i}", answer, parent=parent, calls=calls, end=i + 1, **when))
    take(ledger, f"s{session}", *turns, file=f"s{session}-{earlier}.jsonl", reread=True)


def filled(ledger: Ledger) -> Ledger:
    for session in range(3):
        rewrite(ledger, session, ["yes"] * 4)
    grow(ledger, "mine", "ask a", "ask b", "ask c")
    grow(ledger, "yours", "ask d", "ask e")
    return ledger


def ids(items: Any) -> list[str]:
    """What names each item for good, whatever is erased."""
    return [_id(item) for item in items]


def _id(item: Any) -> str:
    if isinstance(item, ToolCall):
        return f"{item.turn_id} {item.sequence}"
    return item.id if hasattr(item, "id") else f"{item.turn_id} {item.message_id} {item.tool_call_id}"


def paged(ask: Ask, sizes: list[int], between: Callable[[], None] = lambda: None) -> list[str]:
    """All pages of a listing, of these sizes in turn, with something done between them."""
    items, after, number = list[str](), None, 0
    while True:
        page = ask(after, sizes[number % len(sizes)])
        assert len(page) <= sizes[number % len(sizes)]
        items += ids(page)
        if page.next is None:
            return items
        after, number = page.next, number + 1
        between()


def test_pages_of_every_listing_join_to_the_whole_of_it(ledger: Ledger) -> None:
    for name, ask in listings(filled(ledger)).items():
        whole = ids(ask(None, None))
        assert len(whole) > 1, name
        for sizes in ([1], [2, 1], [len(whole) - 1], [len(whole)], [len(whole) + 1]):
            assert paged(ask, sizes) == whole, (name, sizes)
        assert ask(None, len(whole)).next is None, name
        first = ask(None, 1)
        assert ids(ask(first.next, None)) == whole[1:], name


def test_a_page_of_nothing_says_where_to_go_on(ledger: Ledger) -> None:
    for name, ask in listings(filled(ledger)).items():
        nothing = ask(None, 0)
        assert (list(nothing), nothing.next is None) == ([], False), name
        assert ids(ask(nothing.next, None)) == ids(ask(None, None)), name
        first = ask(None, 1)
        assert ids(ask(ask(first.next, 0).next, None)) == ids(ask(first.next, None)), name


def test_an_empty_listing_has_one_empty_page(ledger: Ledger) -> None:
    assert (list(ledger.log(5)), ledger.log(5).next) == ([], None)
    assert (list(ledger.log(0)), ledger.log(0).next) == ([], None)
    assert (list(ledger.sessions(limit=5)), ledger.sessions(limit=5).next) == ([], None)
    assert (list(ledger.search("word", limit=5)), ledger.search("word", limit=5).next) == ([], None)
    assert (list(ledger.find_turns(limit=5)), ledger.find_turns(limit=5).next) == ([], None)


def test_a_cursor_serves_its_own_listing_with_its_own_arguments(ledger: Ledger) -> None:
    asked = listings(filled(ledger))
    cursors = {name: ask(None, 1).next for name, ask in asked.items()}
    for name, ask in asked.items():
        for other, cursor in cursors.items():
            if other != name:
                with pytest.raises(InvalidInput, match="belongs to"):
                    ask(cursor, 1)
    with pytest.raises(InvalidInput, match="belongs to log, not to search"):
        ledger.search("ask", after=cursors["log"])
    with pytest.raises(InvalidInput, match="belongs to search with other arguments"):
        ledger.search("yes", after=cursors["search"])
    assert ids(ledger.log(2, after=cursors["log"])) == ids(ledger.log(3))[1:]


def test_a_cursor_of_another_ledger_is_refused() -> None:
    with weft.open(":memory:") as one, weft.open(":memory:") as other:
        cursor = filled(one).log(1).next
        with pytest.raises(InvalidInput, match="another ledger"):
            filled(other).log(1, after=cursor)


def test_a_damaged_cursor_is_refused(ledger: Ledger) -> None:
    cursor = filled(ledger).log(1).next
    assert cursor is not None
    data = urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4))
    for damaged in ("", "x", "no cursor", "ä", cursor[:-4], cursor[4:], cursor + "AAAA", "A" * 9000):
        with pytest.raises(InvalidInput, match="no cursor"):
            ledger.log(1, after=damaged)
    for i in range(len(data)):
        changed = bytes([*data[:i], data[i] ^ 1, *data[i + 1 :]])
        with pytest.raises(InvalidInput, match="no cursor"):
            ledger.log(1, after=urlsafe_b64encode(changed).decode())
    with pytest.raises(InvalidInput, match="not text"):
        ledger.log(1, after=7)  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="limit"):
        ledger.log(-1, after=cursor)


def test_ranked_hits_have_no_further_pages(ledger: Ledger) -> None:
    filled(ledger)
    assert ledger.search("ask", limit=1, rank=True).next is None
    with pytest.raises(InvalidInput, match="no further pages"):
        ledger.search("ask", rank=True, after=ledger.search("ask", limit=1).next)


def test_words_for_a_time_mean_the_same_on_every_page(ledger: Ledger, clock: FixedClock) -> None:
    grow(ledger, "main", "one", "two", "three")
    page = ledger.find_turns(since="1 hour ago", limit=1)
    clock.tick(2 * 3_600_000)
    assert len(page) + len(ledger.find_turns(since="1 hour ago", after=page.next)) == 3
    assert ledger.find_turns(since="1 hour ago") == []


def test_a_superseded_turn_still_comes_on_a_later_page(ledger: Ledger) -> None:
    """No time is known of these turns, so a new version is newer than all of them."""
    rewrite(ledger, 0, ["yes"] * 4)
    before = ids(ledger.log())
    page = ledger.log(1)
    rewrite(ledger, 0, ["no"] * 4)
    rest = ledger.log(after=page.next)
    assert ids(page) + ids(rest) == before
    assert not any(turn.is_current for turn in rest)
    assert set(before).isdisjoint(ids(ledger.log()))


def test_a_turn_whose_time_is_told_otherwise_keeps_its_place(ledger: Ledger) -> None:
    for i in range(4):
        take(ledger, f"s{i}", native_turn(f"t{i}", started=1_000 * (i + 1), end=1), file=f"{i}.jsonl")
    before = ids(ledger.log())
    for number, earlier in enumerate((500, 400)):
        log, lookup = ledger.log(2), ledger.find_turns(status="completed", limit=2)
        for i in (0, 2, 3):
            take(ledger, f"s{i}", native_turn(f"t{i}", started=earlier + i, end=1), file=f"{i}-{number}.jsonl")
        assert ids(log) + ids(ledger.log(after=log.next)) == before
        assert ids(lookup) + ids(ledger.find_turns(status="completed", after=lookup.next)) == before
        after = ids(ledger.log())
        assert number or after != before
        before = after


def test_a_thread_ends_where_it_ended_on_its_first_page(ledger: Ledger) -> None:
    grow(ledger, "main", "one", "two", "three")
    before = ids(ledger.thread("main").turns)
    down, up = ledger.thread("main").page(limit=1), ledger.log(1, thread="main")
    grow(ledger, "main", "four")
    ledger.move_head("main", new=before[0])
    assert ids(down) + ids(ledger.thread("main").page(after=down.next)) == before
    assert ids(up) + ids(ledger.log(after=up.next, thread="main")) == before[::-1]


def test_a_session_that_changes_keeps_its_place(ledger: Ledger, clock: FixedClock) -> None:
    for label in "abcd":
        grow(ledger, label, "q")
        clock.tick()
    before = [session.label for session in ledger.sessions()]
    page = ledger.sessions(limit=2)
    grow(ledger, "a", "more")
    grow(ledger, "d", "more")
    grow(ledger, "e", "new")
    ledger.labels.rename("b", "bee")
    rest = ledger.sessions(after=page.next)
    assert before == ["d", "c", "b", "a"]
    assert [session.label for session in (*page, *rest)] == ["d", "c", "bee", "a"]


def test_sessions_with_subagents_below_them_page_in_that_order(ledger: Ledger) -> None:
    for number, (name, parent) in enumerate([("a", None), ("a/x", "a"), ("b", None), ("b/x", "b"), ("b/x/y", "b/x")]):
        turn = native_turn(name, started=1_000 * number, ended=1_000 * number)
        take(ledger, name, turn, file=f"{number}.jsonl", parent=parent)
    wanted = SessionFilter(subagents=True)
    whole = [listed.session.label for listed in ledger.listing().sessions(wanted).sessions]
    labels, after = list[str](), None
    while True:
        found = ledger.listing().sessions(wanted, limit=1, after=after)
        labels += [listed.session.label for listed in found.sessions]
        assert found.further == len(whole) - len(labels)
        if found.next is None:
            break
        after = found.next
        grow(ledger, "a", "a session moves to the top")
    assert labels == whole == ["b", "b/x", "b/x/y", "a", "a/x"]


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """How many steps SQLite's machine took for reading since it was last asked; they are counted from then on."""
    count, is_counting = 0, False

    def step() -> bool:
        nonlocal count
        count += 1
        return False

    def counting(name: str) -> None:
        real = getattr(SqliteSql, name)

        def counted(sql: SqliteSql, *arguments: Any) -> Any:
            if not is_counting:
                return real(sql, *arguments)
            sql.connection.set_progress_handler(step, 1)
            try:
                return real(sql, *arguments)
            finally:
                sql.connection.set_progress_handler(None)

        monkeypatch.setattr(SqliteSql, name, counted)

    def since() -> int:
        nonlocal count, is_counting
        taken, count, is_counting = count, 0, True
        return taken

    counting("fetch_row")
    counting("fetch_rows")
    return since


def test_a_page_costs_the_same_wherever_it_stands(disk: Ledger, clock: FixedClock, steps: Callable[[], int]) -> None:
    for number in range(240):
        disk.record_turn(session=f"s{number % 80}", query=f"ask {number}", response="yes")
        clock.tick(1000)
    grow_at_once(disk, "long", *(f"ask {number}" for number in range(240)))
    disk.upkeep.catch_up()
    asked: dict[str, Ask] = {
        "log": lambda after, limit: disk.log(limit, after=after),
        "log of a thread": lambda after, limit: disk.log(limit, after=after, thread="long"),
        "thread": lambda after, limit: disk.thread("long").page(limit=limit, after=after),
        "search": lambda after, limit: disk.search("ask", limit=limit, after=after),
        "sessions": lambda after, limit: disk.sessions(limit=limit, after=after),
        "find_turns": lambda after, limit: disk.find_turns(status="completed", limit=limit, after=after),
        "find_messages": lambda after, limit: disk.find_messages(role="user", limit=limit, after=after),
    }
    costs = {}
    for name, ask in asked.items():
        second = ask(None, 4).next
        deep = ask(None, 70).next
        costs[name] = tuple(_cost(steps, ask, cursor) for cursor in (second, deep))
    assert {name: cost for name, cost in costs.items() if cost[1] > 1.25 * cost[0]} == {}


def _cost(steps: Callable[[], int], ask: Ask, cursor: str | None) -> int:
    steps()
    assert len(ask(cursor, 4)) == 4
    return steps()


ANSWERS = st.lists(st.sampled_from(["yes", "no", "perhaps", "never"]), min_size=1, max_size=5)
RETELL = st.tuples(st.just("retell"), st.integers(1, 2), st.integers(1, 6))
WRITE = st.one_of(
    st.tuples(st.just("record"), st.sampled_from(["mine", "yours", "new"]), st.integers(0, 3)),
    st.tuples(st.just("rewrite"), st.integers(0, 2), ANSWERS),
    st.tuples(st.just("erase"), st.integers(0, 99), st.none()),
    st.tuples(st.just("move"), st.sampled_from(["mine", "yours", "s0"]), st.integers(0, 99)),
    st.tuples(st.just("archive"), st.sampled_from(["mine", "yours"]), st.none()),
    st.tuples(st.just("index"), st.none(), st.none()),
)
WRITES, WITH_TIMES = st.lists(WRITE, max_size=6), st.lists(st.one_of(WRITE, RETELL), max_size=6)
"""What is found by words stands at its own time, so a search is not promised against sources that tell another one."""
SIZES = st.lists(st.integers(1, 7), min_size=1, max_size=4)
ENGINES = ["sqlite", "postgres"]
EXAMPLES = settings(max_examples=200 if PROVING else 4, deadline=None, suppress_health_check=[HealthCheck.too_slow])


class Writer:
    """Somebody else, who writes to the ledger one thing after another."""

    def __init__(self, ledger: Ledger, clock: FixedClock, writes: list[tuple[str, Any, Any]]) -> None:
        self._ledger, self._clock, self._writes = ledger, clock, iter(writes)

    def write(self) -> None:
        for kind, what, value in [next(self._writes, ("nothing", None, None)) for _ in range(2)]:
            getattr(self, f"_{kind}")(what, value)
            self._clock.tick()

    def _nothing(self, what: Any, value: Any) -> None:
        pass

    def _record(self, label: str, number: int) -> None:
        self._ledger.labels.unarchive(label) if label != "new" else None
        grow(self._ledger, label, f"ask {number}")

    def _rewrite(self, session: int, answers: list[str]) -> None:
        rewrite(self._ledger, session, answers)

    def _retell(self, session: int, times: int) -> None:
        rewrite(self._ledger, session, ["yes"] * 4, earlier=700 * times)

    def _erase(self, number: int, _: Any) -> None:
        turns = self._ledger.log()
        self._ledger.erasure.erase(turns[number % len(turns)].id, reason="asked for")

    def _move(self, label: str, number: int) -> None:
        turns = list(self._ledger.log(session=label))
        if turns:
            self._ledger.move_head(label, new=turns[number % len(turns)].id)

    def _archive(self, label: str, _: Any) -> None:
        self._ledger.labels.archive(label)

    def _index(self, what: Any, value: Any) -> None:
        self._ledger.upkeep.catch_up()


AS_OF = ["log", "log of a session", "log of a thread", "thread", "sessions", "find_turns", "find_sessions"]
PRESENT = ["search", "find_messages", "find_tool_calls", "events"]


@contextmanager
def written(engine: str, history: list[tuple[str, Any, Any]]) -> Iterator[tuple[Ledger, FixedClock]]:
    """A ledger of its own with some history."""
    clock = FixedClock(NOON)
    where = nullcontext(":memory:") if engine == "sqlite" else shared_server().ledger()
    with where as address, weft.open(address, clock=clock) as ledger:
        filled(ledger)
        writer = Writer(ledger, clock, history)
        for _ in history:
            writer.write()
        yield ledger, clock


@pytest.mark.slow("pages through every listing while it is written to")
@pytest.mark.parametrize("engine", share(ENGINES, test=1))
@EXAMPLES
@given(WITH_TIMES, WITH_TIMES, SIZES)
def test_a_reader_meets_each_item_that_was_there_at_the_first_page_once(
    engine: str, history: Any, writes: Any, sizes: list[int]
) -> None:
    with written(engine, history) as (ledger, clock):
        asked = listings(ledger)
        for name in AS_OF:
            whole = ids(asked[name](None, None))
            assert paged(asked[name], sizes, Writer(ledger, clock, writes).write) == whole, name


@pytest.mark.slow("pages through every listing while it is written to")
@pytest.mark.parametrize("engine", share(ENGINES, test=1))
@EXAMPLES
@given(WRITES, WRITES, SIZES)
def test_a_reader_meets_what_stays_once_and_nothing_twice(
    engine: str, history: Any, writes: Any, sizes: list[int]
) -> None:
    with written(engine, history) as (ledger, clock):
        asked = listings(ledger)
        for name in PRESENT:
            throughout, writer = set(ids(asked[name](None, None))), Writer(ledger, clock, writes)

            def write_and_look(ask: Ask = asked[name], there: set[str] = throughout, writer: Writer = writer) -> None:
                writer.write()
                there.intersection_update(ids(ask(None, None)))  # what a rewrite took away may come back by another

            met = paged(asked[name], sizes, write_and_look)
            assert len(set(met)) == len(met), name
            assert set(met) >= throughout, name
