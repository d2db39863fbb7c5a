"""The straight way to a context tells the same as the general way, whatever a history holds, and from memory too."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

import weft
from tests.ledger.histories import grow, texts
from tests.ledger.imported import native_call, native_turn, take
from tests.ledger.test_late_results import cut_short
from tests.sizes import share, sized
from weft.kernel.clock import FixedClock
from weft.kernel.errors import Damaged, FactDamaged, NotApplicable, NotFound, WeftError
from weft.ledger.api.base import store_of
from weft.ledger.api.ledger import Ledger
from weft.ledger.model import ToolResultPart, ToolUsePart
from weft.ledger.read import context_columns, contexts
from weft.ledger.read.context_columns import SpokenTurns, TurnBlock, TurnMemory, TurnRows
from weft.ledger.read.turns import WITHHELD
from weft.programs import Programs
from weft.store.port import WriteTxn

CALLS: list[list[dict[str, Any]]] = [
    [{"id": "c1", "name": "run", "arguments": {"command": "ls", "in": ["a", {"b": 1}]}, "result": "one"}],
    [{"id": "c1", "name": "run", "arguments": [1], "result": {"rc": 0}}, {"id": "c1", "name": "run", "arguments": {}}],
    [{"id": "a~b", "name": "look", "arguments": "text", "error": {"message": "it broke", "code": "E1"}}],
    [{"id": "c2", "name": "count", "arguments": {"n": 2**70}, "result": None, "server": "tools"}],
]
PARTS = [{"type": "reasoning", "text": "hm"}, {"type": "text", "text": "so"}]


@contextmanager
def the_general_way() -> Iterator[None]:
    """Every turn is read in the general way."""

    def read(txn: Any, ranges: Any, arrived: Any, memory: Any) -> list[SpokenTurns]:
        return [turn for part in ranges for turn in context_columns.spoken_in_general(txn, part, arrived)]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(contexts, "spoken_turns", read)
        yield


@contextmanager
def only_the_straight_way() -> Iterator[None]:
    """No turn is read in the general way."""

    def refuse(*_: Any) -> Any:
        raise AssertionError("a turn was read in the general way")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(context_columns, "spoken_in_general", refuse)
        yield


def outcome(call: Callable[[], object]) -> object:
    """What it returns, or how it fails."""
    try:
        return call()
    except WeftError as error:
        return type(error), str(error)


def readers(ledger: Ledger) -> list[Ledger]:
    return [ledger, ledger.originals(), ledger.acting_as("ann")]


def places_in(ledger: Ledger, limit: int | None = None) -> list[dict[str, str]]:
    """Each context of the ledger, or of its last turns."""
    sessions = [{"session": session.label} for session in ledger.sessions(every=True)]
    return sessions + [{"turn": turn.id} for turn in ledger.log(limit)]


def assert_same(ledger: Ledger, places: list[dict[str, str]], *, warm: bool = True) -> None:
    """Each of these contexts, for everybody, read in both ways: with what is kept, with nothing kept, and again."""
    for reader in readers(ledger):
        for place in places:
            with the_general_way():
                expected = outcome(partial(reader.context, **place))
            for keeps in (True, False, True) if warm else (False,):
                if not keeps:
                    ledger._kept_turns.clear()
                assert outcome(partial(reader.context, **place)) == expected


class Story:
    """A history in one session and what is forked from it, step by step."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger, self.count = ledger, 0
        programs = Programs(ledger)
        programs.create("human", "ann", {"permissions": ["session:read"]})
        programs.create("agent", "spy", {"systemPrompt": "secret", "visibility": "private"})
        self.session = "main"
        grow(ledger, "main", "first")

    def name(self) -> str:
        self.count += 1
        return f"n{self.count}"

    def plain(self, pick: int) -> None:
        grow(self.ledger, self.session, self.name(), f"<system-reminder>x</system-reminder> {pick}")

    def calls(self, pick: int) -> None:
        grow(self.ledger, self.session, self.name(), tool_calls=CALLS[pick % len(CALLS)])

    def prompt(self, pick: int) -> None:
        who: dict[str, Any] = {"persona": "spy"} if pick % 2 else {}
        self.ledger.record_turn(session=self.session, system=self.name(), query="q", response="a", **who)

    def parts(self, pick: int) -> None:
        told = [{"role": "assistant", "content": PARTS}]
        self.ledger.record_turn(session=self.session, query=self.name(), response=told)

    def large(self, pick: int) -> None:
        grow(self.ledger, self.session, self.name() + "x" * (1 << 20) * (pick % 2))

    def mixed(self, pick: int) -> None:
        with self.ledger.begin_turn(session=self.session) as writer:
            writer.message(self.name())
            for k in range(pick % 3):
                call = writer.tool_call("run", {"k": k})
                if pick % 5:
                    writer.tool_result(call, {"rc": k})
                writer.message("then", role="assistant")
            if pick % 5 == 0:
                writer.interrupt()

    def late(self, pick: int) -> None:
        turn = cut_short(self.ledger, self.session)
        self.plain(pick)
        if pick % 3 != 1:
            self.ledger.record_late_result(turn, "c1", {"found": pick})

    def fork(self, pick: int) -> None:
        label = self.name()
        self.ledger.fork(self.turn(pick), label=label)
        self.session = label
        self.plain(pick)

    def compact(self, pick: int) -> None:
        self.ledger.compactions.record(session=self.session, summary=self.name())

    def substitute(self, pick: int) -> None:
        messages = self.ledger.messages(self.turn(pick))
        if messages:
            message = messages[-1]
            self.ledger.substitute(message.id, self.name())
            if pick % 2:
                self.ledger.substitute(message.id, with_event=message.id)

    def result(self, pick: int) -> None:
        """Another result in the place of one, seen from now on and not before."""
        made = grow(self.ledger, self.session, self.name(), tool_calls=CALLS[0])
        self.plain(pick)
        (call,) = self.ledger.tool_calls(made[0])
        self.ledger.substitute(call.id, self.name())
        if pick % 2:
            self.ledger.substitute(call.id, with_event=call.id)

    def erase(self, pick: int) -> None:
        self.ledger.erasure.erase(self.turn(pick), reason="asked")

    def bring(self, pick: int) -> None:
        """The same turns from several sources, the later ones told of at other times."""
        turns = [native_turn(f"t{k}", started=9_000 - pick, calls=[native_call(f"c{k}")]) for k in range(1 + pick % 3)]
        take(self.ledger, "s", *turns, file=f"{self.name()}.jsonl", reread=True)

    def merge(self, pick: int) -> None:
        self.ledger.merges.cherry_pick(self.turn(pick), onto=self.session)

    def rebuild(self, pick: int) -> None:
        self.ledger.upkeep.rebuild()

    def turn(self, pick: int) -> str:
        turns = [turn.id for turn in self.ledger.log()]
        return turns[pick % len(turns)]


STEPS = (
    "plain calls calls prompt parts mixed mixed late fork merge compact substitute result erase bring rebuild"
).split()
steps = st.lists(st.tuples(st.sampled_from(STEPS), st.integers(0, 30)), min_size=1, max_size=8)


@pytest.fixture(autouse=True, scope="module")
def small_blocks() -> Iterator[None]:
    """Short histories have several, and what is kept of them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(context_columns, "BLOCK", 3)
        patch.setattr(context_columns, "BLOCKS_AT_ONCE", 2)
        yield


def tell(ledger: Ledger, told: list[tuple[str, int]]) -> None:
    story = Story(ledger)
    for name, pick in told:
        with suppress(NotApplicable, NotFound):  # such as a substitution in a turn that was erased
            getattr(story, name)(pick)
            assert_same(ledger, places_in(ledger, 2))
    assert_same(ledger, places_in(ledger))


@pytest.mark.slow("reads all contexts six times after each step of five histories")
@settings(max_examples=sized(test=3, prove=750), deadline=None, suppress_health_check=list(HealthCheck))
@given(told=steps, damaged=st.integers(0, 200))
def test_both_ways_tell_the_same_of_any_history(told: list[tuple[str, int]], damaged: int) -> None:
    with weft.open(":memory:", clock=FixedClock(1_794_700_800_000)) as ledger:
        tell(ledger, told)
        places = places_in(ledger)  # what is damaged next may be the name of a session
        forge(ledger, damaged)
        assert_same(ledger, places, warm=False)


def forge(ledger: Ledger, pick: int) -> None:
    """Other bytes in a content, behind the ledger's back."""
    store = store_of(ledger)
    with store.read() as txn:
        numbers = [n for (n,) in txn.sql.fetch_rows("SELECT n FROM content WHERE bytes IS NOT NULL ORDER BY n")]
    some = {numbers[pick % len(numbers)], numbers[pick // 7 % len(numbers)]}
    for n in some:
        store.write(partial(_forge, n))


def _forge(n: int, txn: WriteTxn) -> None:
    txn.sql.run("UPDATE content SET bytes = ? WHERE n = ?", (b"forged", n))


EVERYTHING = [(name, pick) for pick in (0, 1, 2, 3, 4, 5, 7) for name in dict.fromkeys([*STEPS, "large"])]


@pytest.mark.slow("reads all contexts six times after each of sixteen steps")
def test_both_ways_tell_the_same_of_everything(ledger: Ledger) -> None:
    tell(ledger, EVERYTHING[:16])
    places = share(places_in(ledger), test=12)
    forge(ledger, 11)
    assert_same(ledger, places, warm=False)


def test_ordinary_turns_are_read_in_the_straight_way(ledger: Ledger) -> None:
    story = Story(ledger)
    for pick in (0, 1, 3):
        story.plain(pick)
        story.calls(pick)
    with only_the_straight_way():
        read = ledger.context(session="main")
        assert ledger.context(session="main") == read
    with the_general_way():
        assert ledger.context(session="main") == read


@pytest.mark.parametrize("step", ["late", "result"])
def test_what_came_later_is_not_seen_by_the_turns_before(ledger: Ledger, step: str) -> None:
    getattr(Story(ledger), step)(0)
    assert_same(ledger, places_in(ledger))


def test_a_forged_text_is_refused_by_either_way(ledger: Ledger) -> None:
    grow(ledger, "main", "a", "b")
    forge(ledger, 2)
    with pytest.raises(FactDamaged):
        ledger.context(session="main")


@pytest.mark.parametrize("table", ["message", "tool_call"])
@pytest.mark.parametrize("position", [-1, 1 << 32, 1 << 40])
def test_a_row_that_stands_where_no_event_can_is_told_the_same(ledger: Ledger, table: str, position: int) -> None:
    story = Story(ledger)
    for pick in range(2 * context_columns.BLOCK):
        story.calls(pick % 2)
    turn = list(ledger.thread("main").ancestry)[1]
    change = f"UPDATE {table} SET position = ? WHERE turn = (SELECT n FROM turn WHERE id = ?)"
    store_of(ledger).write(lambda txn: txn.sql.run(change, (position, turn)))
    with the_general_way():
        expected = ledger.context(session="main")
    assert [ledger.context(session="main") for _ in range(2)] == [expected, expected]


def test_a_tool_whose_name_is_no_text_is_refused_by_either_way() -> None:
    with weft.open(":memory:", clock=FixedClock(1_794_700_800_000)) as ledger:
        Story(ledger).calls(0)
        store_of(ledger).write(lambda txn: txn.sql.run("UPDATE tool_call SET tool = ?", (b"\xff",)))
        with pytest.raises(Damaged):
            ledger.context(session="main")


# --- what is kept ---------------------------------------------------------------------------------------------------


def reads_contents(ledger: Ledger, read: Callable[[], object]) -> bool:
    """Whether a reading makes any turn anew."""
    made: list[object] = []
    real = TurnRows.read_block

    def counting(rows: TurnRows, high: int) -> TurnBlock:
        made.append(high)
        return real(rows, high)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TurnRows, "read_block", counting)
        read()
    return bool(made)


def fill_a_block(ledger: Ledger) -> list[str]:
    """So many turns that those of the first block are kept."""
    return grow(ledger, "main", *(f"more {k}" for k in range(context_columns.BLOCK)))


def test_turns_that_were_read_are_not_read_again(ledger: Ledger) -> None:
    turns = fill_a_block(ledger)
    last = context_columns.BLOCK - 2
    assert reads_contents(ledger, lambda: ledger.context(session="main"))
    ledger.fork(turns[last], label="alt")
    assert not reads_contents(ledger, lambda: ledger.context(session="alt"))
    assert not reads_contents(ledger, lambda: ledger.context(turns[last + 1]))
    grow(ledger, "main", "new")
    assert texts(ledger.context(session="main").messages)[-1] == "re: new"


def late(ledger: Ledger) -> None:
    first, *_ = ledger.thread("main").ancestry
    ledger.record_late_result(first, "c1", {"found": 1})


def substituted(ledger: Ledger) -> None:
    second = list(ledger.thread("main").ancestry)[1]
    ledger.substitute(ledger.messages(second)[-1].id, "other words")


def erased(ledger: Ledger) -> None:
    ledger.erasure.erase(list(ledger.thread("main").ancestry)[2], reason="asked")


@pytest.mark.parametrize("change", [late, substituted, erased])
def test_what_changes_a_turn_that_is_kept_is_seen(ledger: Ledger, change: Callable[[Ledger], None]) -> None:
    cut_short(ledger)
    fill_a_block(ledger)
    before = ledger.context(session="main")
    change(ledger)
    with the_general_way():
        expected = ledger.context(session="main")
    assert ledger.context(session="main") == expected != before


def change_roles(ledger: Ledger) -> None:
    """Behind the ledger's back."""
    store_of(ledger).write(lambda txn: txn.sql.run("UPDATE message SET role = 'user' WHERE role = 'assistant'"))


def test_views_that_were_made_anew_are_read_anew(ledger: Ledger) -> None:
    fill_a_block(ledger)
    right = ledger.context(session="main")
    change_roles(ledger)
    ledger._kept_turns.clear()
    assert ledger.context(session="main") != right
    assert ledger.upkeep.rebuild()
    grow(ledger, "alt", "meanwhile")
    assert ledger.context(session="main") == right


def test_a_row_that_was_changed_behind_the_ledger_s_back_is_found_by_verify(ledger: Ledger) -> None:
    """Until it is read anew, what was read before it was changed is shown."""
    fill_a_block(ledger)
    right = ledger.context(session="main")
    change_roles(ledger)
    grow(ledger, "alt", "meanwhile")
    assert ledger.context(session="main").messages[: len(right.messages) - 2] == right.messages[:-2]
    assert list(ledger.verify())


def test_what_arrives_elsewhere_lets_kept_turns_be(ledger: Ledger) -> None:
    turns = fill_a_block(ledger)
    ledger.fork(turns[context_columns.BLOCK - 2], label="end of the block")
    ledger.context(session="end of the block")
    grow(ledger, "alt", "a", "b", tool_calls=CALLS[0])
    late_turn = cut_short(ledger, "alt")
    ledger.record_late_result(late_turn, "c1", {"found": 1})
    ledger.substitute(ledger.messages(late_turn)[0].id, "other words")
    assert not reads_contents(ledger, lambda: ledger.context(session="end of the block"))


def test_after_very_many_events_turns_are_read_anew(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    turns = fill_a_block(ledger)
    ledger.fork(turns[context_columns.BLOCK - 2], label="end of the block")
    ledger.context(session="end of the block")
    monkeypatch.setattr(context_columns, "MAX_NEW_EVENTS", 3)
    grow(ledger, "alt", "a", "b")
    assert reads_contents(ledger, lambda: ledger.context(session="end of the block"))
    assert not reads_contents(ledger, lambda: ledger.context(session="end of the block"))


def assert_as_fresh(stays_open: Ledger, opened: Callable[[], Ledger]) -> None:
    """What a ledger tells that was open all the time is what a fresh one tells, which remembers nothing."""
    with opened() as fresh:
        for session in fresh.sessions(every=True):
            for reader, other in zip(readers(stays_open), readers(fresh), strict=True):
                expected = outcome(partial(other.context, session=session.label))
                assert outcome(partial(reader.context, session=session.label)) == expected


class LongStory(Story):
    """One whose first turns fill some blocks, and wait for results."""

    def __init__(self, ledger: Ledger) -> None:
        super().__init__(ledger)
        self.waiting = [cut_short(ledger, "main") for _ in range(3)]
        for pick in range(3):
            self.calls(pick)
            self.prompt(pick)

    def answer(self, pick: int) -> None:
        if self.waiting:
            turn = self.waiting.pop(pick % len(self.waiting))
            self.ledger.record_late_result(turn, "c1", {"found": pick})


LATER_STEPS = "plain answer answer substitute substitute result erase bring fork merge compact rebuild".split()
later_steps = st.lists(st.tuples(st.sampled_from(LATER_STEPS), st.integers(0, 30)), min_size=2, max_size=6)


def tell_while_open(opened: Callable[[], Ledger], told: list[tuple[str, int]]) -> None:
    with opened() as writer, opened() as reader:
        story = LongStory(writer)
        for name, pick in [("plain", 0), *told]:
            with suppress(NotApplicable, NotFound):  # such as a substitution in a turn that was erased
                getattr(story, name)(pick)
            assert_as_fresh(reader, opened)
            assert_as_fresh(writer, opened)


@pytest.mark.slow("reads all contexts after each step of four histories")
@settings(max_examples=sized(test=3, prove=600), deadline=None, suppress_health_check=list(HealthCheck))
@given(told=later_steps)
def test_a_ledger_that_stays_open_tells_what_a_fresh_one_tells(
    told: list[tuple[str, int]], memory_folder: Path | None
) -> None:
    with TemporaryDirectory(dir=memory_folder) as folder:
        tell_while_open(partial(weft.open, f"{folder}/ledger.db", clock=FixedClock(1_794_700_800_000)), told)


@pytest.mark.slow("reads all contexts after each step, from PostgreSQL")
def test_on_a_server_it_does_so_too(new_postgres_ledger: Callable[[], str], clock: FixedClock) -> None:
    told = [(name, 5) for name in share(list(dict.fromkeys(LATER_STEPS)), test=3)]
    tell_while_open(partial(weft.open, new_postgres_ledger(), clock=clock), told)


def test_what_another_process_changes_is_seen(open_ledger: Callable[..., Ledger]) -> None:
    ledger, other = open_ledger(), open_ledger()
    cut_short(ledger)
    fill_a_block(ledger)
    for change in (late, substituted, erased):
        before = ledger.context(session="main")
        change(other)
        with the_general_way():
            expected = ledger.context(session="main")
        assert ledger.context(session="main") == expected != before


def test_a_turn_that_is_imported_again_is_seen_anew(ledger: Ledger) -> None:
    take(ledger, "s", native_turn("t1", started=9_000, calls=[native_call("c1")]))
    session = ledger.sessions()[0].label
    grow(ledger, session, *(f"more {k}" for k in range(context_columns.BLOCK)))
    before = ledger.context(session=session)
    take(ledger, "s", native_turn("t1", started=2_000, calls=[native_call("c1")]), file="b.jsonl", reread=True)
    with the_general_way():
        expected = ledger.context(session=session)
    assert ledger.context(session=session) == expected != before


def test_erased_words_are_forgotten_with_the_next_reading(ledger: Ledger) -> None:
    (secret,) = grow(ledger, "main", "secret")
    fill_a_block(ledger)
    ledger.context(session="main")
    assert "secret" in repr(ledger._kept_turns._segments)
    ledger.erasure.erase(secret, reason="asked")
    ledger.context("main")
    kept = ledger._kept_turns._segments
    assert "secret" not in repr(kept)


def test_what_a_caller_changes_is_theirs_alone(ledger: Ledger) -> None:
    grow(ledger, "main", "a", tool_calls=[{"id": "c", "name": "n", "arguments": {"x": [1]}, "result": {"y": [2]}}])
    fill_a_block(ledger)
    for _ in range(3):
        _, use, result, *_ = ledger.context(session="main").messages
        (asked,), (told,) = use.content, result.content
        assert isinstance(asked, ToolUsePart)
        assert isinstance(told, ToolResultPart)
        assert (asked.input, told.output) == ({"x": [1]}, {"y": [2]})
        asked.input["x"].append("mine")
        told.output.clear()


def test_a_prompt_that_is_kept_is_withheld_from_whoever_may_not_read_it(ledger: Ledger) -> None:
    story = Story(ledger)
    story.session = "spying"
    story.prompt(1)
    story.prompt(3)
    assert texts(ledger.context("spying").messages)[0] == "n2"
    assert texts(ledger.context("spying~1").messages)[0] == "n1"
    grow(ledger, "spying", *(f"more {k}" for k in range(context_columns.BLOCK)), persona="spy")
    assert texts(ledger.context("spying").messages)[0] == "n2"
    assert ledger._kept_turns.size
    ann = ledger.acting_as("ann")
    with the_general_way():
        expected = ann.context("spying")
    assert ann.context("spying") == expected
    assert texts(expected.messages)[0] == WITHHELD


def test_a_reader_who_may_not_read_gets_nothing_that_is_kept(ledger: Ledger) -> None:
    Programs(ledger).create("human", "eve", {})
    fill_a_block(ledger)
    ledger.context(session="main")
    with pytest.raises(NotFound):
        ledger.acting_as("eve").context(session="main")


def test_no_more_is_kept_than_the_budget_says(ledger: Ledger) -> None:
    memory = TurnMemory(10_000)
    blocks = {(n, n): TurnBlock(frozenset(), [], False, 3_000) for n in range(5)}
    with store_of(ledger).read() as txn:
        state = memory.bring_up(txn)
    memory.keep(1, state, blocks)
    assert (list(memory.find(1, state)), memory.size) == ([(0, 0), (1, 1), (2, 2)], 9_000)
    memory.keep(2, state, blocks)
    assert not memory.find(1, state)
    assert memory.find(2, state)


def test_a_reader_of_an_earlier_state_finds_and_keeps_nothing(ledger: Ledger) -> None:
    memory = TurnMemory()
    blocks = {(1, 3): TurnBlock(frozenset(), [], False, 3_000)}
    grow(ledger, "main", "a")
    with store_of(ledger).read() as txn:
        earlier = memory.bring_up(txn)
    memory.keep(1, earlier, blocks)
    grow(ledger, "main", "b")
    with store_of(ledger).read() as txn:
        state = memory.bring_up(txn)
    assert memory.find(1, state)
    assert not memory.find(1, earlier)
    memory.keep(2, earlier, blocks)
    assert not memory.find(2, state)


def test_of_a_log_that_went_another_way_nothing_is_kept(ledger: Ledger) -> None:
    """As where an older copy was put in the place of the file, and went on from there."""
    grow(ledger, "main", "a")
    memory = TurnMemory()
    with store_of(ledger).read() as txn:
        state = memory.bring_up(txn)
        memory.keep(1, state, {(1, 3): TurnBlock(frozenset(), [], False, 3_000)})
        memory._state = replace(state, chain=bytes(32))
        assert not memory.find(1, memory.bring_up(txn))
