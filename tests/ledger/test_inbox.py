"""Messages that wait: admitted once, routed, cancelled, dead, sent again; and the turns that take them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import weft
from tests.ledger.histories import exported, import_into
from weft.kernel.authority import Authority, Principal, PrincipalKind
from weft.kernel.enums import InterruptionReason, MessageRole, RunExit, ToolCallStatus
from weft.kernel.errors import (
    Action,
    HeadMoved,
    InboxFull,
    InvalidInput,
    KeyTaken,
    LeaseLost,
    NotApplicable,
    NotFound,
    SessionBusy,
)
from weft.ledger.api.broker import Runs
from weft.ledger.api.ledger import Ledger
from weft.ledger.broker.inbox import (
    FinishedRun,
    ModelAnswered,
    ModelAsked,
    ParkedRun,
    QueueLimits,
    RecordedEvent,
    RunInterruption,
    ToolAsked,
    ToolEnded,
)
from weft.ledger.broker.run_writer import RunWriter
from weft.ledger.model import NewError, NewMessage, ReasoningPart, TextPart, ToolUsePart
from weft.programs import Programs


def begun(
    ledger: Ledger, session: str, *messages: str, then: Any = None
) -> tuple[RunWriter, tuple[RecordedEvent, ...]]:
    runs = Runs(ledger)
    standing = runs.standing(ledger.session(session).id)
    wanted = messages or tuple(one.id for one in standing.queued)
    expected = (standing.head, standing.head_events)
    run, record = runs.begin(standing.id, expected=expected, messages=wanted, then=then)
    return run, record.events


def answered(ledger: Ledger, session: str, text: str = "answer") -> str:
    run, _ = begun(ledger, session)
    asked = run.record([ModelAsked(model="m")]).events[-1]
    said = NewMessage(role=MessageRole.ASSISTANT, content=text)
    correlation = asked.event.correlation_id  # type: ignore[attr-defined]
    answer = ModelAnswered(request=asked.id, correlation=correlation, message=said)
    ended = run.record([answer, FinishedRun()]).ended
    assert ended is not None
    return ended.id


def test_a_message_is_admitted_once_and_its_receipt_is_the_same_again(ledger: Ledger) -> None:
    first = ledger.inbox.admit("hello", session="main", key="k")
    assert ledger.inbox.admit("hello", session="main", key="k") == first
    assert first.receipt is not None
    assert list(ledger.verify(receipt=first.receipt)) == []
    with pytest.raises(KeyTaken):
        ledger.inbox.admit("other words", session="main", key="k")
    (waiting,) = ledger.inbox.list()
    assert (waiting.id, waiting.state, waiting.content) == (first.message, "queued", (TextPart("hello"),))
    turn = answered(ledger, "main")
    assert (ledger.inbox.get(first.message).state, ledger.inbox.get(first.message).turn) == ("answered", turn)
    assert [(one.role, one.text) for one in ledger.messages(turn)] == [("user", "hello"), ("assistant", "answer")]
    assert list(ledger.verify()) == []


def test_a_message_to_a_turn_extends_the_one_session_that_stands_there_or_forks() -> None:
    with weft.open(":memory:") as ledger:
        first = ledger.record_turn(session="main", query="a", response="b").id
        second = ledger.record_turn(session="main", query="c", response="d").id
        at_head = ledger.inbox.admit("on", turn=second)
        assert (at_head.session, at_head.is_fork) == ("main", False)
        before = ledger.inbox.admit("aside", turn=first)
        assert before.is_fork
        assert ledger.session(before.session).head == first
        ledger.fork("main", label="other")
        assert ledger.inbox.admit("whose?", turn=second).is_fork  # two sessions stand there


def test_a_message_to_an_agent_goes_where_it_works_else_to_its_main_session() -> None:
    with weft.open(":memory:") as ledger:
        Programs(ledger).create("agent", "scout", {})
        assert ledger.inbox.admit("hi", persona="scout").session == "scout:main"
        assert ledger.session("scout:main").persona_id != "weft"


def test_a_message_makes_no_agent_and_names_those_that_are_nearly_called_so(ledger: Ledger) -> None:
    programs = Programs(ledger)
    programs.create("agent", "scout", {})
    programs.create("agent", "secret-scout", {"visibility": "private"})
    turn = ledger.record_turn(session="main", query="q", response="r").id
    before = ledger.newest()
    targets: list[dict[str, Any]] = [{}, {"session": "new"}, {"session": "main"}, {"turn": turn}]
    for target in targets:
        with pytest.raises(NotFound, match="no agent 'scuot'") as missing:
            ledger.inbox.admit("hi", persona="scuot", **target)
        assert missing.value.hint == "did you mean 'scout'?"
    with pytest.raises(NotFound) as unlike:
        ledger.inbox.admit("hi", persona="zebra")
    assert unlike.value.advice.action is Action.LIST_PROGRAMS
    programs.create("human", "eve", {})
    created = ledger.newest()
    with pytest.raises(NotFound) as private:
        ledger.acting_as("eve").inbox.admit("hi", persona="secret-scuot")
    assert "secret-scout" not in str(private.value.hint)
    assert before < created == ledger.newest()
    assert [one.name for one in programs.all("agent")] == ["scout", "secret-scout"]


@pytest.mark.parametrize("target", [{}, {"session": "a", "turn": "a"}])
def test_a_message_needs_one_target(target: dict[str, str]) -> None:
    with weft.open(":memory:") as ledger:
        ledger.record_turn(session="a", query="q", response="r")
        with pytest.raises(InvalidInput, match="one target"):
            ledger.inbox.admit("x", **target)  # type: ignore[arg-type]


def test_a_paused_session_queues_and_a_completed_one_refuses() -> None:
    with weft.open(":memory:") as ledger:
        ledger.record_turn(session="main", query="q", response="r")
        programs = Programs(ledger)
        programs.step_session("main", "pause")
        message = ledger.inbox.admit("later", session="main").message
        assert Runs(ledger).waiting() == []
        programs.step_session("main", "resume")
        assert [one.oldest for one in Runs(ledger).waiting()] == [ledger.inbox.get(message).n]
        with pytest.raises(NotApplicable, match="1 message waits in session 'main'"):
            programs.step_session("main", "complete")
        ledger.inbox.cancel(message)
        programs.step_session("main", "complete")
        with pytest.raises(NotApplicable, match="completed"):
            ledger.inbox.admit("too late", session="main")


def test_a_full_inbox_refuses_and_writes_nothing() -> None:
    with weft.open(":memory:") as ledger:
        ledger.inbox.admit("one", session="main", limits=QueueLimits(session=1))
        newest = ledger.newest()
        with pytest.raises(InboxFull, match="1 messages wait in session 'main'"):
            ledger.inbox.admit("two", session="main", limits=QueueLimits(session=1))
        with pytest.raises(InboxFull, match="wait in this ledger"):
            ledger.inbox.admit("two", session="other", limits=QueueLimits(ledger=1))
        assert ledger.newest() == newest


def test_a_message_can_be_cancelled_until_a_turn_has_it() -> None:
    with weft.open(":memory:") as ledger:
        first = ledger.inbox.admit("one", session="main").message
        second = ledger.inbox.admit("two", session="main").message
        ledger.inbox.cancel(second, reason="no longer")
        ledger.inbox.cancel(second)
        begun(ledger, "main", first)
        with pytest.raises(NotApplicable, match="taken"):
            ledger.inbox.cancel(first)
        assert [ledger.inbox.get(one).state for one in (first, second)] == ["taken", "cancelled"]


def test_a_failed_turn_leaves_its_message_dead_and_it_can_be_sent_again(ledger: Ledger) -> None:
    message = ledger.inbox.admit("hello", session="main", priority=3, overrides={"model": "m"}).message
    run, _ = begun(ledger, "main")
    run.record([FinishedRun(exit=RunExit.ERROR, error=NewError(code="boom", message="it broke"))])
    dead = ledger.inbox.get(message)
    assert (dead.state, dead.error, ledger.session("main").head) == ("dead", "it broke", None)
    again = ledger.inbox.send_again(message)
    repeated = ledger.inbox.get(again.message)
    assert (repeated.content, repeated.priority, repeated.overrides) == (dead.content, 3, {"model": "m"})
    assert (repeated.again, ledger.inbox.get(message).state) == (message, "resent")
    with pytest.raises(NotApplicable, match="resent"):
        ledger.inbox.send_again(message)
    assert list(ledger.verify()) == []


def test_an_open_turn_of_a_broker_is_nobody_elses_to_end(path: Path) -> None:
    with weft.open(path) as ledger:
        ledger.inbox.admit("hello", session="main")
        run, _ = begun(ledger, "main")
    with weft.open(path) as ledger:  # closing left the turn open
        assert ledger.turn(run.id).status == "pending"
        with pytest.raises(SessionBusy):
            ledger.record_turn(session="main", query="q", response="r", wait=0)
        adopted = Runs(ledger).adopt(run.id)
        assert adopted is not None
        with pytest.raises(SessionBusy):
            Runs(ledger).adopt(run.id)
        adopted.leave()
        last = Runs(ledger).adopt(run.id)
        assert last is not None
        with pytest.raises(LeaseLost):
            adopted.renew()
        with pytest.raises(LeaseLost):
            adopted.record([FinishedRun()])
        assert last.record([FinishedRun()]).ended is not None
        assert Runs(ledger).adopt(run.id) is None
        assert list(ledger.verify()) == []


def test_a_turn_is_begun_only_where_its_session_still_stands() -> None:
    with weft.open(":memory:") as ledger:
        message = ledger.inbox.admit("hello", session="main").message
        standing = Runs(ledger).standing(ledger.session("main").id)
        ledger.record_turn(session="main", query="q", response="r")
        with pytest.raises(HeadMoved):
            Runs(ledger).begin(standing.id, expected=(standing.head, None), messages=[message])
        assert ledger.inbox.get(message).state == "queued"


def test_a_parked_turn_waits_and_goes_on_with_its_outcome(ledger: Ledger) -> None:
    ledger.inbox.admit("hello", session="main")
    run, _ = begun(ledger, "main")
    asked = run.record([ModelAsked(model="m")]).events[-1]
    correlation = asked.event.correlation_id  # type: ignore[attr-defined]
    use = NewMessage(role=MessageRole.ASSISTANT, content=(ToolUsePart("c1", "ask", {}),))
    record = run.record(
        [
            ModelAnswered(request=asked.id, correlation=correlation, message=use),
            ToolAsked(name="ask", arguments={}, call_id="c1", correlation=correlation),
        ]
    )
    call = record.events[-1]
    run.record([ParkedRun(calls=(call.id,), until=10**13, why="a person decides")])
    runs = Runs(ledger)
    assert run.is_over
    assert runs.waiting() == []
    assert runs.look(0, ()).next_due == 10**13
    with pytest.raises(SessionBusy):
        ledger.record_turn(session="main", query="q", response="r", wait=0)
    adopted = runs.adopt(run.id)
    assert adopted is not None
    call_id = call.event.call_id  # type: ignore[attr-defined]
    ended = ToolEnded(call=call.id, call_id=call_id, correlation=correlation, status=ToolCallStatus.OK, result="yes")
    adopted.record([ended])
    adopted.leave()
    (waiting,) = runs.waiting()
    assert waiting.turn == run.id
    assert list(ledger.verify()) == []


def test_a_request_that_nobody_answers_does_not_interrupt_the_turn() -> None:
    with weft.open(":memory:") as ledger:
        ledger.inbox.admit("hello", session="main")
        run, _ = begun(ledger, "main")
        asked = run.record([ModelAsked(model="m")]).events[-1]
        run.record(
            [RunInterruption(InterruptionReason.CRASH, (asked.id,)), ModelAsked(model="m", attempt=2), FinishedRun()]
        )
        assert ledger.turn(run.id).interruption_reason is None


def test_messages_of_another_ledger_are_answered_there(path: Path, tmp_path: Path) -> None:
    with weft.open(path) as ledger, weft.open(tmp_path / "other.db") as other:
        ledger.inbox.admit("hello", session="main")
        import_into(other, exported(ledger))
        (seen,) = other.inbox.list()
        assert seen.state == "queued"
        assert Runs(other).waiting() == []
        assert list(other.verify()) == []


@pytest.mark.parametrize("what", ["turn", "session"])
def test_what_was_said_to_an_inbox_is_erased_with_its_turn_or_session(path: Path, what: str) -> None:
    with weft.open(path) as ledger:
        message = ledger.inbox.admit("CANARY-words", session="main", overrides={"model": "CANARY-m"}, key="CANARY-k")
        turn = answered(ledger, "main")
        ledger.erasure.erase(turn if what == "turn" else "main", reason="r")
        erased = ledger.inbox.get(message.message)
        assert (erased.content, erased.overrides) == ((TextPart("[erased]"),), None)
        with pytest.raises(KeyTaken):
            ledger.inbox.admit("CANARY-words", session="main", overrides={"model": "CANARY-m"}, key="CANARY-k")
        assert list(ledger.verify()) == []
    for file in path.parent.iterdir():
        assert b"CANARY-" not in file.read_bytes(), file


def test_whoever_sends_is_the_source_and_reasoning_is_referred_to() -> None:
    with weft.open(":memory:") as ledger:
        Programs(ledger).create("agent", "scout", {})
        ledger.acting_as(Authority((Principal(PrincipalKind.AGENT, "scout"),))).inbox.admit("by an agent", session="a")
        ledger.inbox.admit("by a person", session="b")
        ledger.inbox.admit({"role": "user", "content": "by a clock", "source": "cron"}, session="c")
        assert [(one.session, one.source) for one in ledger.inbox.list()] == [
            ("a", "agent"),
            ("b", "human"),
            ("c", "cron"),
        ]
        run, _ = begun(ledger, "b")
        asked = run.record([ModelAsked(model="m")]).events[-1]
        said = NewMessage(role=MessageRole.ASSISTANT, content=(ReasoningPart("because"), TextPart("so")))
        correlation = asked.event.correlation_id  # type: ignore[attr-defined]
        (response,) = run.record([ModelAnswered(request=asked.id, correlation=correlation, message=said)]).events
        assert response.event.reasoning_ref == response.event.output.id  # type: ignore[attr-defined]
        (turn,) = [ledger.turn(run.id)]
        assert ledger.messages(turn.id)[0].source == "human"


def test_the_routing_key_of_an_agent_leads_to_its_main_session(ledger: Ledger) -> None:
    programs = Programs(ledger)
    programs.create("agent", "bobbot", {"soul": "You are Bob."})
    first = ledger.inbox.admit("Hello", session="persona:bobbot")
    assert (first.session, first.is_new_session, first.is_fork) == ("bobbot:main", True, False)
    main = ledger.session("bobbot:main")
    assert (main.persona_id, main.routing_key) == ("bobbot", "persona:bobbot")
    again = ledger.inbox.admit("And?", session="persona:bobbot")
    assert (again.session_id, again.is_new_session) == (first.session_id, False)
    assert ledger.inbox.admit("Well?", persona="bobbot").session_id == first.session_id
    recorded = ledger.record_turn(session="persona:bobbot", query="a", response="b")
    assert recorded.session == "bobbot:main"
    assert ledger.session("persona:bobbot").id == main.id
    programs.create("agent", "eve", {"soul": "You are Eve."})
    ledger.create_session("eve:main", persona="eve")
    assert ledger.session("eve:main").routing_key == "persona:eve"
    programs.create("agent", "ada", {"soul": "You are Ada."})
    assert ledger.inbox.admit("Hi", persona="ada").is_new_session
    assert ledger.session("persona:ada").label == "ada:main"


def test_a_session_is_addressed_by_the_routing_key_that_it_alone_has(ledger: Ledger) -> None:
    ledger.create_session("talk", routing_key="dm:chat:1")
    assert ledger.inbox.admit("Hello", session="dm:chat:1").session == "talk"
    ledger.create_session("other", routing_key="dm:chat:1")
    shared = ledger.inbox.admit("Hello", session="dm:chat:1")
    assert (shared.session, shared.is_new_session) == ("dm:chat:1", True)


def test_the_routing_key_of_no_agent_is_refused(ledger: Ledger) -> None:
    with pytest.raises(NotFound, match="agent 'nobody'"):
        ledger.inbox.admit("Hello", session="persona:nobody")
    assert not any(session.label == "persona:nobody" for session in ledger.sessions())
