"""Running turns that are asked to stop, and failed ones that are tried again, on every backend."""

from __future__ import annotations

import pytest

from tests.ledger.test_inbox import answered, begun
from weft.kernel.enums import FileKind, InterruptionReason, MessageRole, RunExit
from weft.kernel.errors import NotApplicable
from weft.kernel.events import Interruption
from weft.kernel.ledger_events import TurnRetried
from weft.ledger.api.broker import Runs
from weft.ledger.api.ledger import Ledger
from weft.ledger.broker.inbox import FinishedRun, RunInterruption, TurnRetry, retry_of
from weft.ledger.model import FileNote, NewError, NewMessage
from weft.runtime.broker.turn_state import Run


def failed(ledger: Ledger, session: str) -> str:
    run, _ = begun(ledger, session)
    run.record([FinishedRun(exit=RunExit.ERROR, error=NewError(code="down", message="the server is away"))])
    return run.id


def test_a_running_turn_is_asked_to_stop_by_an_event_of_its_own(ledger: Ledger) -> None:
    session = ledger.inbox.admit("hello", session="main").session_id
    with pytest.raises(NotApplicable, match="no turn runs in session 'main'"):
        ledger.inbox.interrupt("main")
    run, _ = begun(ledger, "main")
    runs = Runs(ledger)
    assert runs.standing(session).stop is None
    assert ledger.inbox.interrupt("main") == run.id
    assert ledger.inbox.interrupt("main") == run.id  # asked once
    assert runs.standing(session).stop == "canceled"
    folded = Run(run.id).apply(runs.events(run.id))
    assert folded.stop is InterruptionReason.CANCELED  # whoever goes on with it after a crash knows
    assert len([one for one in runs.events(run.id) if isinstance(one.event, Interruption)]) == 1
    run.record([RunInterruption(InterruptionReason.CANCELED), FinishedRun()])
    assert ledger.turn(run.id).interruption_reason == "canceled"
    assert ledger.inbox.list(states=["answered"])[0].turn == run.id
    assert list(ledger.verify()) == []


def test_a_failed_turn_is_retried_as_its_child_in_its_own_session(ledger: Ledger) -> None:
    ledger.inbox.admit("first", session="main")
    head = answered(ledger, "main")
    ledger.inbox.admit("hello", session="main", overrides={"model": "m"})
    turn = failed(ledger, "main")
    admission = ledger.inbox.retry(turn, key="k")
    assert ledger.inbox.retry(turn, key="k") == admission
    assert (admission.session, admission.is_fork) == ("main", False)
    with pytest.raises(NotApplicable, match="is being retried already"):
        ledger.inbox.retry(turn)
    message = ledger.inbox.get(admission.message)
    assert (message.overrides, retry_of(message)) == ({"model": "m"}, TurnRetry(turn))
    assert [one.state for one in ledger.inbox.list(states=["dead", "resent"])] == ["resent"]
    standing = Runs(ledger).standing(admission.session_id)
    run, record = Runs(ledger).begin(
        standing.id,
        expected=(standing.head, standing.head_events),
        messages=[admission.message],
        parent=turn,
        retry=TurnRetry(turn),
    )
    (retried,) = [one.event for one in record.events if isinstance(one.event, TurnRetried)]
    assert (retried.turn, retried.of, retried.afresh) == (run.id, turn, False)
    run.record([FinishedRun()])
    assert ledger.turn(run.id).parent_id == turn
    assert ledger.turn(turn).parent_id == head
    assert ledger.session("main").head == run.id
    assert list(ledger.verify()) == []


def test_a_retry_after_something_else_came_goes_on_in_a_fork(ledger: Ledger) -> None:
    ledger.inbox.admit("hello", session="main")
    turn = failed(ledger, "main")
    ledger.inbox.admit("something else", session="main")
    answered(ledger, "main")
    child = ledger.inbox.retry(turn)
    assert child.is_fork
    assert ledger.session(child.session).head == turn
    assert [one.state for one in ledger.inbox.list(states=["dead", "resent"])] == ["resent"]
    answered(ledger, child.session)
    sibling = ledger.inbox.retry(turn, afresh=True)
    assert sibling.is_fork
    assert ledger.session(sibling.session).head is None  # beside a turn that begins a tree


def test_only_a_turn_that_failed_is_retried(ledger: Ledger) -> None:
    ledger.inbox.admit("hello", session="main")
    done = answered(ledger, "main")
    with pytest.raises(NotApplicable, match="is completed, not failed"):
        ledger.inbox.retry(done)
    ledger.inbox.admit("more", session="main")
    run, _ = begun(ledger, "main")
    with pytest.raises(NotApplicable, match="is still"):
        ledger.inbox.retry(run.id)
    recorded = ledger.record_turn(query="by hand", session="other", error="it broke")
    admission = ledger.inbox.retry(recorded.id, afresh=True)
    assert admission.session == "other"
    (part,) = ledger.inbox.get(admission.message).content
    assert part.text == "by hand"  # type: ignore[union-attr]


def test_files_go_with_a_message_however_often_it_is_sent(ledger: Ledger) -> None:
    files = (
        FileNote(kind=FileKind.ATTACHED, path="notes/plan.txt", line_start=3, line_end=9),
        FileNote(kind=FileKind.ATTACHED, path="photo.png"),
    )
    asked = NewMessage(role=MessageRole.USER, content="look", files=files)
    first = ledger.inbox.admit(asked, session="main").message
    run, _ = begun(ledger, "main")
    run.leave()
    other = Runs(ledger).adopt(run.id)  # another broker goes on with it
    assert other is not None
    assert ledger.inbox.get(first).files == files
    other.record([FinishedRun(exit=RunExit.ERROR, error=NewError(code="down", message="the server is away"))])
    again = ledger.inbox.send_again(first).message
    turn = failed(ledger, "main")
    retried = ledger.inbox.retry(turn).message
    assert ledger.inbox.get(again).files == ledger.inbox.get(retried).files == files
    (user,) = [one.id for one in ledger.messages(failed(ledger, "main")) if one.role == "user"]
    assert ledger.listing().files([user]) == {user: list(files)}
    other_turn = ledger.record_turn(session="other", query=asked, error=NewError(code="down", message="it is away")).id
    assert ledger.inbox.get(ledger.inbox.retry(other_turn).message).files == files  # it came through no inbox
