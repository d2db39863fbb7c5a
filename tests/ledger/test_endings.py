"""How turns end that nobody ended: the ledger closes under them, their writer is gone, others have moved on."""

import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import weft
from tests.ledger.conftest import OpenLedger
from tests.ledger.histories import change, exported, grow, import_into, kinds, problems, queries, select, texts
from weft.kernel.clock import FixedClock
from weft.kernel.contents import ROW_BYTES
from weft.kernel.errors import HeadMoved, LeaseLost, LedgerTooNew, NotApplicable, StoreError
from weft.ledger.api.ledger import Ledger
from weft.ledger.views.rows import Lease
from weft.ledger.write.turn_writer import TurnWriter

STEPS: dict[str, Callable[[TurnWriter], Any]] = {
    "message": lambda writer: writer.message("m"),
    "large message": lambda writer: writer.message("m" * (ROW_BYTES + 1)),
    "request": lambda writer: writer.request("m"),
    "response": lambda writer: writer.response("r"),
    "call": lambda writer: writer.tool_call("t"),
    "result": lambda writer: writer.tool_result("open", 1),
    "renew": lambda writer: writer.renew(),
    "finish": lambda writer: writer.finish(),
    "fail": lambda writer: writer.fail("x"),
    "interrupt": lambda writer: writer.interrupt(),
}


def begin(ledger: Ledger, session: str | None = "main") -> TurnWriter:
    """A turn with a message and a call that waits."""
    writer = ledger.begin_turn(session=session)
    writer.message("said")
    writer.tool_call("slow", id="open")
    return writer


# --- closing ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("step", STEPS)
def test_a_writer_whose_ledger_is_closed_is_told_so_at_every_step(ledger: Ledger, step: str) -> None:
    writer = begin(ledger)
    ledger.close()
    for _ in range(2):
        with pytest.raises(StoreError, match="closed"):
            STEPS[step](writer)


def test_what_happens_inside_a_block_matters_more_than_that_the_ledger_was_closed(ledger: Ledger) -> None:
    writer = begin(ledger)
    ledger.close()
    with pytest.raises(KeyError, match="inside"), writer:
        raise KeyError("inside")
    with pytest.raises(StoreError, match="closed"), writer:
        pass


@pytest.mark.parametrize("name", ["messages", "turns", "ancestry"])
def test_a_thread_that_is_read_when_the_ledger_is_closed_ends_with_a_word(ledger: Ledger, name: str) -> None:
    grow(ledger, "main", *(str(i) for i in range(600)))
    reading: Iterator[Any] = getattr(ledger.thread("main"), name)
    next(reading)
    ledger.close()
    with pytest.raises(StoreError, match="closed"):
        list(reading)


@pytest.mark.parametrize("session", ["main", None])
def test_closing_fails_what_was_open_and_frees_its_session(
    open_ledger: OpenLedger, path: Path, session: str | None
) -> None:
    first = open_ledger()
    (head,) = grow(first, "main", "before")
    writer = begin(first, session)
    first.close()
    again = open_ledger()
    turn = again.turn(writer.id)
    assert (turn.status, turn.interruption_reason, turn.error) == ("failed", "shutdown", "the ledger was closed")
    assert [call.outcome for call in again.tool_calls(writer.id)] == ["interrupted"]
    assert texts(again.messages(writer.id)) == ["said"]
    assert again.session("main").head == head
    assert again.record_turn(session="main", query="after", wait=0).parent_id == head
    again.record_late_result(writer.id, "open", "late")
    assert problems(again) == []
    assert select(path, "SELECT purpose FROM lease WHERE purpose IS NOT NULL") == []


def test_closing_fails_every_open_turn_and_no_other(open_ledger: OpenLedger) -> None:
    ours, theirs = open_ledger(), open_ledger()
    open_here = [begin(ours, f"s{i}").id for i in range(3)] + [begin(ours, None).id for _ in range(2)]
    ended = [begin(ours, f"e{i}") for i in range(2)]
    ended[0].interrupt()
    ended[1].fail("x")
    elsewhere = begin(theirs, "theirs")
    ours.close()
    assert {theirs.turn(turn).error for turn in open_here} == {"the ledger was closed"}
    assert [theirs.turn(writer.id).status for writer in ended] == ["completed", "failed"]
    assert elsewhere.interrupt().session == "theirs"
    assert problems(theirs) == []


def test_closing_leaves_a_session_that_was_taken_over_to_its_new_writer(
    open_ledger: OpenLedger, clock: FixedClock
) -> None:
    ours, theirs = open_ledger(), open_ledger(lease_ttl=1.0)
    silent = begin(ours)
    taken = theirs.begin_turn(session="main", wait=5)
    ours.close()
    assert (theirs.turn(silent.id).interruption_reason, theirs.turn(taken.id).status) == ("crash", "pending")
    assert taken.finish().session == "main"


def test_a_ledger_that_cannot_fail_its_turns_is_closed_all_the_same(open_ledger: OpenLedger, path: Path) -> None:
    ledger = open_ledger()
    begin(ledger)
    change(path, "PRAGMA user_version = 99")
    with pytest.raises(LedgerTooNew):
        ledger.close()
    with pytest.raises(StoreError, match="closed"):
        ledger.upkeep.stats()
    ledger.close()


def test_a_turn_that_is_being_held_when_the_ledger_closes_is_given_up_with_the_others(ledger: Ledger) -> None:
    """Whoever closes comes exactly while it is noted that a turn is held: it waits, and then sees that turn too."""
    ledger_writer, given_up = ledger._writer, list[Any]()
    closing = threading.Thread(target=lambda: given_up.append(ledger_writer.give_all_up()))

    class Noted(dict[tuple[str, str], Lease]):
        def __setitem__(self, key: tuple[str, str], lease: Lease) -> None:
            closing.start()
            closing.join(0.05)  # it would be through by now, if nothing kept it
            super().__setitem__(key, lease)

    ledger_writer._state.held = Noted()
    lease = Lease("session", "s", "owner", 1, 0, "turn")
    ledger_writer.hold(lease)
    closing.join()
    assert given_up == [[lease]]
    with pytest.raises(StoreError, match="closed"):
        ledger_writer.hold(Lease("session", "another", "owner", 1, 0, "turn"))
    ledger_writer.let_go(lease)


def test_turns_begun_while_the_ledger_closes_are_failed_or_refused(path: Path) -> None:
    for _ in range(10):
        ledger, started = weft.open(path), threading.Event()

        def begin_many(ledger: Ledger = ledger, started: threading.Event = started) -> None:
            with suppress(StoreError):
                while True:
                    ledger.begin_turn()
                    started.set()

        threads = [threading.Thread(target=begin_many) for _ in range(3)]
        for thread in threads:
            thread.start()
        assert started.wait(300)
        ledger.close()
        for thread in threads:
            thread.join(300)
    with weft.open(path) as again:
        assert set(again.upkeep.stats()["turns_by_status"]) == {"failed"}
        assert problems(again) == []


# --- turns without a session --------------------------------------------------------------------------------------


def test_turns_without_a_session_are_held_apart_and_leave_nothing_behind(disk: Ledger, path: Path) -> None:
    writers = [disk.begin_turn() for _ in range(3)]
    assert len(select(path, "SELECT * FROM lease")) == 3
    for writer, end in zip(writers, ("finish", "interrupt", "fail"), strict=True):
        writer.message("m")
        writer.renew()
        writer.fail("x") if end == "fail" else getattr(writer, end)()
    assert select(path, "SELECT * FROM lease") == []
    assert [disk.turn(writer.id).status for writer in writers] == ["completed", "completed", "failed"]
    assert all(disk.turn(writer.id).parent_id is None for writer in writers)


def test_nobody_waits_for_a_turn_without_a_session(ledger: Ledger, clock: FixedClock) -> None:
    silent = ledger.begin_turn()
    clock.tick(3_600_000)
    with ledger.begin_turn(wait=0) as other:
        other.finish()
    silent.message("still mine")
    assert silent.finish().session is None
    assert ledger.sessions(every=True) == []


def test_a_turn_without_a_session_may_grow_from_any_turn_and_moves_nobody(ledger: Ledger) -> None:
    first, second = grow(ledger, "main", "a", "b")
    holding = ledger.begin_turn(session="main")
    beside = ledger.begin_turn(parent=first, wait=0)
    beside.message("beside")
    assert beside.finish().parent_id == first
    assert ledger.session("main").head == second
    assert queries(ledger, beside.id) == ["a", "beside"]
    assert holding.finish().parent_id == second


# --- the head moved meanwhile -------------------------------------------------------------------------------------


@pytest.fixture
def moved_elsewhere(disk: Ledger, tmp_path: Path) -> Callable[[], str]:
    """Somebody goes on in a copy of the ledger; calling it brings their facts in. Returns their turn."""
    disk.upkeep.backup(tmp_path / "copy.db")
    with weft.open(tmp_path / "copy.db") as copy:
        (turn,) = grow(copy, "main", "theirs")
        facts = exported(copy)

    def bring() -> str:
        import_into(disk, facts)
        return turn

    return bring


@pytest.fixture
def disk(open_ledger: OpenLedger) -> Ledger:
    made = open_ledger()
    grow(made, "main", "before")
    return made


@pytest.mark.parametrize("end", ["finish", "interrupt"])
def test_a_turn_whose_head_was_moved_by_facts_from_elsewhere_is_complete_beside_it(
    disk: Ledger, moved_elsewhere: Callable[[], str], end: str
) -> None:
    before = disk.session("main").head
    writer = disk.begin_turn(session="main")
    writer.message("ours")
    theirs = moved_elsewhere()
    ended = getattr(writer, end)()
    assert (ended.session, ended.parent_id) == (None, before)
    assert (disk.turn(writer.id).status, disk.session("main").head) == ("completed", theirs)
    assert queries(disk, "main") == ["before", "theirs"]
    assert queries(disk, writer.id) == ["before", "ours"]
    assert disk.record_turn(session="main", query="on", wait=0).parent_id == theirs
    assert problems(disk) == []


def test_a_turn_that_fails_says_so_wherever_its_session_went(disk: Ledger, moved_elsewhere: Callable[[], str]) -> None:
    writer = disk.begin_turn(session="main")
    theirs = moved_elsewhere()
    assert writer.fail("x").session == "main"
    assert disk.session("main").head == theirs


# --- trying again -------------------------------------------------------------------------------------------------


def fail_turn(ledger: Ledger, query: str, **place: Any) -> str:
    return ledger.record_turn(session="main", query=query, error="overloaded", **place).id


@pytest.mark.parametrize("way", ["at once", "in steps"])
def test_a_failed_turn_is_tried_again_beside_it_or_after_it(ledger: Ledger, way: str) -> None:
    def retry(query: str, **place: Any) -> Any:
        if way == "at once":
            return ledger.record_turn(session="main", query=query, **place)
        with ledger.begin_turn(session="main", **place) as writer:
            writer.message(query)
            return writer.finish()

    (head,) = grow(ledger, "main", "a")
    failed = fail_turn(ledger, "b")
    beside = retry("again")
    assert (beside.parent_id, ledger.session("main").head) == (head, beside.id)
    failed = fail_turn(ledger, "c")
    after = retry("go on from there", parent=failed)
    assert (after.parent_id, after.session, ledger.session("main").head) == (failed, "main", after.id)
    assert queries(ledger, "main") == ["a", "again", "c", "go on from there"]
    assert problems(ledger) == []


def test_a_row_of_failures_is_gone_on_from_at_any_of_them(ledger: Ledger) -> None:
    (head,) = grow(ledger, "main", "a")
    first = fail_turn(ledger, "b")
    second = fail_turn(ledger, "c", parent=first)
    third = fail_turn(ledger, "d", parent=second)
    assert ledger.session("main").head == head
    assert [ledger.turn(turn).parent_id for turn in (second, third)] == [first, second]
    made = ledger.record_turn(session="main", query="e", parent=second)
    assert (made.parent_id, ledger.session("main").head) == (second, made.id)
    with pytest.raises(HeadMoved):
        ledger.record_turn(session="main", query="f", parent=third)


def test_the_very_first_turn_may_fail_and_be_gone_on_from(ledger: Ledger) -> None:
    failed = fail_turn(ledger, "a")
    assert ledger.session("main").head is None
    assert ledger.record_turn(session="main", query="b", parent=failed).parent_id == failed
    assert queries(ledger, "main") == ["a", "b"]


def test_only_failures_after_the_head_are_gone_on_from(ledger: Ledger) -> None:
    old = fail_turn(ledger, "a")
    completed, head = grow(ledger, "main", "b", "c")
    with ledger.begin_turn(session="other", parent=completed) as writer:
        writer.fail("x")
    for parent in (old, completed, writer.id):
        with pytest.raises(HeadMoved):
            ledger.record_turn(session="main", query="d", parent=parent)
        with pytest.raises(HeadMoved):
            ledger.begin_turn(session="main", parent=parent)
    assert ledger.session("main").head == head


def test_a_head_inside_a_turn_goes_on_from_failures_that_grew_there(ledger: Ledger) -> None:
    (turn,) = grow(ledger, "main", "a")
    ledger.fork(ledger.events(turn)[1].id, label="inner")
    after_all = fail_turn(ledger, "b")
    inside = ledger.record_turn(session="inner", query="c", error="x").id
    with pytest.raises(HeadMoved):
        ledger.record_turn(session="inner", query="d", parent=after_all)
    with pytest.raises(HeadMoved):
        ledger.record_turn(session="main", query="d", parent=inside)
    ledger.record_turn(session="inner", query="d", parent=inside)
    assert texts(ledger.thread("inner").messages) == ["a", "c", "d"]
    assert problems(ledger) == []


def test_a_turn_given_up_when_its_ledger_closed_is_gone_on_from(open_ledger: OpenLedger) -> None:
    first = open_ledger()
    given_up = begin(first).id
    first.close()
    again = open_ledger()
    made = again.record_turn(session="main", query="where were we?", parent=given_up)
    assert texts(again.thread(made.id).messages) == ["said", "where were we?"]
    assert kinds(again, given_up)[-2:] == ["interruption", "run_finished"]


def test_an_archived_session_is_not_tried_again_in(ledger: Ledger) -> None:
    failed = fail_turn(ledger, "a")
    ledger.labels.archive("main")
    with pytest.raises(NotApplicable):
        ledger.record_turn(session="main", query="b", parent=failed)


def test_a_writer_that_lost_its_session_can_go_on_from_what_it_had(open_ledger: OpenLedger) -> None:
    ours, theirs = open_ledger(), open_ledger(lease_ttl=1.0)
    silent = begin(ours)
    theirs.begin_turn(session="main", wait=5).fail("not now")
    with pytest.raises(LeaseLost):
        silent.finish()
    made = ours.record_turn(session="main", query="on", parent=silent.id, wait=0)
    assert (made.parent_id, ours.session("main").head) == (silent.id, made.id)
