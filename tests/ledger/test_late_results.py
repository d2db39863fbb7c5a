"""A result that its turn did not wait for: kept beside the turn, seen from then on, never changing its digest."""

import pytest

from tests.ledger.conftest import OpenLedger
from tests.ledger.histories import exported, grow, import_into, problems, texts
from weft import ToolResultPart
from weft.kernel.errors import InvalidFact, NotApplicable, NotFound
from weft.ledger.api.ledger import Ledger


def cut_short(ledger: Ledger, session: str = "main") -> str:
    """A turn that was interrupted while a tool ran."""
    with ledger.begin_turn(session=session) as writer:
        writer.message("q")
        writer.tool_call("slow", {"n": 1}, id="c1")
        writer.interrupt()
    return writer.id


def test_a_late_result_is_shown_and_the_digest_stays(ledger: Ledger) -> None:
    turn = cut_short(ledger)
    before = ledger.turn(turn)
    ledger.record_late_result(turn, "c1", {"rc": 0})
    (call,) = ledger.tool_calls(turn)
    assert (call.outcome, call.status, call.result) == ("ok", "completed", {"rc": 0})
    assert ledger.turn(turn) == before
    assert [change.event.stream for change in ledger.changes()][-1] == f"ledger:{ledger.replica}"
    assert problems(ledger) == []
    assert ledger.upkeep.rebuild() == 0


def test_a_late_failure_is_shown_too(ledger: Ledger) -> None:
    turn = cut_short(ledger)
    ledger.record_late_result("main", "c1", error={"message": "it broke", "code": "E1"})
    (call,) = ledger.tool_calls(turn)
    assert (call.outcome, call.error, call.error_code) == ("error", "it broke", "E1")


def test_turns_that_came_before_a_late_result_did_not_see_it(ledger: Ledger) -> None:
    turn = cut_short(ledger)
    (before,) = grow(ledger, "main", "before")
    saw = ledger.context(before)
    ledger.record_late_result(turn, "c1", "found")
    (after,) = grow(ledger, "main", "after")
    assert ledger.context(before) == saw
    assert [m.content for m in saw.messages if m.role == "tool"] == [(ToolResultPart("c1", "interrupted", True),)]
    assert [m.content for m in ledger.context(after).messages if m.role == "tool"] == [(ToolResultPart("c1", "found"),)]
    assert texts(ledger.context(after).messages)[-1] == "after"


def test_a_fork_inside_the_turn_does_not_see_a_late_result(ledger: Ledger) -> None:
    turn = cut_short(ledger)
    ledger.fork(ledger.events(turn)[2].id, label="alt")
    ledger.record_late_result(turn, "c1", "found")
    assert [call.outcome for call in ledger.tool_calls("alt")] == ["interrupted"]


def test_a_result_is_late_once(ledger: Ledger) -> None:
    turn = cut_short(ledger)
    ledger.record_late_result(turn, "c1", 1)
    for call in ("c1", "c9"):
        with pytest.raises((NotApplicable, NotFound)):
            ledger.record_late_result(turn, call, 2)
    writer = ledger.begin_turn(session="main")
    writer.tool_call("t", id="c1")
    with pytest.raises(NotApplicable, match="still"):
        ledger.record_late_result(writer.id, "c1", 1)
    assert ledger.tool_calls(turn)[0].result == 1


def test_late_results_of_many_turns_form_one_stream(ledger: Ledger) -> None:
    turns = [cut_short(ledger) for _ in range(3)]
    for turn in reversed(turns):
        ledger.record_late_result(turn, "c1", turn)
    assert [ledger.tool_calls(turn)[0].result for turn in turns] == turns
    late = [change for change in ledger.changes() if change.event.stream.startswith("ledger:")]
    assert [change.event.prev for change in late] == [None, late[0].id, late[1].id]
    assert problems(ledger) == []


def test_late_results_travel(ledger: Ledger, open_ledger: OpenLedger) -> None:
    turn = cut_short(ledger)
    ledger.record_late_result(turn, "c1", "found")
    other = open_ledger(":memory:")
    import_into(other, exported(ledger))
    assert [call.result for call in other.tool_calls(turn)] == ["found"]
    assert problems(other) == []
    lost = open_ledger(":memory:")
    *_, last = exported(ledger).splitlines()
    with pytest.raises(InvalidFact, match=r"^line 1:"):
        import_into(lost, last)
