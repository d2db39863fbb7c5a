"""What a broker makes of messages that cannot be answered, of ledgers that cannot be reached, and of other writers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from msgspec import UNSET

import weft
from tests.ledger.histories import exported, import_into
from tests.ledger.test_inbox import begun
from tests.runtime.broker.bench import Bench, never, run, saying, text_of
from weft.kernel.clock import FixedClock
from weft.kernel.errors import Action, InvalidInput, NotApplicable, ReplyCut, SessionBusy, StoreFailed
from weft.kernel.events import EventRef, ModelRequest
from weft.ledger.api import Ledger, Runs, SessionStanding
from weft.runtime.broker import broker as broker_module
from weft.runtime.broker import session_turns
from weft.runtime.broker.broker import RENEW_SECONDS, Broker
from weft.runtime.broker.session_turns import ServedSession
from weft.runtime.broker.turn_plans import SenderContext, TurnPlan
from weft.runtime.broker.turn_runner import TurnRunner
from weft.runtime.broker.turn_state import Run, TurnEnd
from weft.runtime.replies import ReplyToken
from weft.runtime.tool.tool_contract import FunctionTool, tools_of


def failing(error: Exception, times: int, plan: Callable[..., Any]) -> Callable[..., Any]:
    """A planner that fails so often, and plans then."""
    failures = iter([error] * times)

    async def planner(standing: SessionStanding, messages: Sequence[Any]) -> TurnPlan:
        failure = next(failures, None)
        if failure is not None:
            raise failure
        planned: TurnPlan = await plan(standing, messages)
        return planned

    return planner


async def settle(bench: Bench, clock: FixedClock, broker: Any, *messages: str) -> None:
    """Serve until these messages wait no more, whatever time that takes."""
    serving = asyncio.ensure_future(broker.serve())
    while any(bench.state(message)[0] in ("queued", "taken") for message in messages):
        clock.tick(100)
        broker.wake()
        await asyncio.sleep(0)
        assert not serving.done()
    broker.drain()
    await serving


def test_a_message_that_cannot_be_planned_is_dead_and_stops_no_other(ledger: Ledger, clock: FixedClock) -> None:
    async def body() -> None:
        bench = Bench(ledger, saying("Hi"), clock=clock)
        poisoned, other = bench.admit("poisoned"), bench.admit("other")
        broker = bench.broker(failing(InvalidInput("no such model", "name another"), 1, bench.plan))
        await settle(bench, clock, broker, poisoned, other)
        assert bench.state(poisoned) == ("dead", "no such model")
        assert bench.state(other) == ("answered", None)

    run(body())


def test_a_message_whose_turn_cannot_be_begun_is_dead(ledger: Ledger, clock: FixedClock) -> None:
    async def body() -> None:
        bench = Bench(ledger, clock=clock)
        bench.options["persona"] = "a name\nof two lines"
        message = bench.admit()
        end = await bench.answered(message)
        assert end.error is not None
        assert bench.state(message)[0] == "dead"

    run(body())


def test_a_defect_buries_its_message_after_a_few_tries(ledger: Ledger, clock: FixedClock) -> None:
    async def body() -> None:
        bench = Bench(ledger, saying("Hi"), clock=clock)
        poisoned, other = bench.admit("poisoned"), bench.admit("other")
        broker = bench.broker(failing(ValueError("a defect"), session_turns.MAX_FAILURES, bench.plan))
        await settle(bench, clock, broker, poisoned, other)
        assert bench.state(poisoned) == ("dead", "a defect")
        assert bench.state(other) == ("answered", None)

    run(body())


def test_a_ledger_that_cannot_be_reached_for_a_while_kills_no_message(ledger: Ledger, clock: FixedClock) -> None:
    async def body() -> None:
        bench = Bench(ledger, saying("Hi"), clock=clock)
        message = bench.admit()
        broker = bench.broker(failing(StoreFailed("read", "the server is away"), 5, bench.plan))
        await settle(bench, clock, broker, message)
        assert bench.state(message) == ("answered", None)

    run(body())


def test_a_lost_turn_that_cannot_be_planned_any_more_fails(ledger: Ledger, clock: FixedClock) -> None:
    async def body() -> None:
        bench = Bench(ledger, None, clock=clock)
        message = bench.admit()
        first = bench.broker()
        serving = asyncio.ensure_future(first.serve())
        await bench.provider.asked.wait()
        first.drain(0)
        await serving
        end = await bench.answered(message, bench.broker(failing(InvalidInput("gone", "make it again"), 1, bench.plan)))
        assert isinstance(end.error, InvalidInput)
        assert bench.state(message) == ("dead", "gone")
        assert ledger.session("main").head is None

    run(body())


def test_calls_of_a_lost_turn_that_cannot_be_planned_have_an_outcome(ledger: Ledger, clock: FixedClock) -> None:
    async def body() -> None:
        async def looks() -> None:
            under_way.set()
            await asyncio.get_running_loop().create_future()

        under_way = asyncio.Event()
        bench = Bench(ledger, saying("", "looks"), clock=clock)
        bench.options["tools"] = tools_of(FunctionTool(looks, is_read_only=True))
        message = bench.admit()
        first = bench.broker()
        serving = asyncio.ensure_future(first.serve())
        await under_way.wait()
        first.drain(0)
        await serving
        await bench.answered(message, bench.broker(failing(InvalidInput("gone", "make it again"), 1, bench.plan)))
        assert bench.state(message) == ("dead", "gone")
        (call,) = Run("").apply(bench.events(message)).calls.values()
        assert call.outcome == "interrupted"
        assert call.result is not None

    run(body())


def test_a_message_that_is_cancelled_as_its_turn_begins_is_not_sent(ledger: Ledger, clock: FixedClock) -> None:
    async def body() -> None:
        bench = Bench(ledger, saying("Hi"), clock=clock)
        kept, taken_back = bench.admit("kept", mode="interrupt"), bench.admit("taken back")

        async def planner(standing: SessionStanding, messages: Sequence[Any]) -> TurnPlan:
            assert len(messages) == 2
            ledger.inbox.cancel(taken_back)
            return await bench.plan(standing, messages)

        await bench.answered(kept, bench.broker(planner))
        assert bench.provider.sent() == ["kept"]
        assert bench.state(taken_back)[0] == "cancelled"

    run(body())


def test_the_next_request_sends_what_was_substituted_since(ledger: Ledger, clock: FixedClock) -> None:
    async def body() -> None:
        bench = Bench(ledger, saying("it is Lyon"), saying("so it is"), saying("yes"), clock=clock)
        broker = bench.broker()
        await bench.answered(bench.admit("which town?"), broker)
        note = ledger.substitute("main", "it is Paris")
        second = bench.admit("sure?")
        await bench.answered(second, broker)
        assert bench.provider.sent() == ["which town?", "it is Paris", "sure?"]
        (request,) = [one.event for one in bench.events(second) if isinstance(one.event, ModelRequest)]
        assert request.input is not UNSET
        assert EventRef(note.replacement) in request.input.then
        ledger.substitute("main~1", with_event="main~1")
        await bench.answered(bench.admit("really?"), broker)
        assert bench.provider.sent() == ["which town?", "it is Lyon", "sure?", "so it is", "really?"]
        sent = [message.text for message in ledger.context(ledger.inbox.get(second).turn).messages]
        assert sent == ["which town?", "it is Paris", "sure?"]

    run(body())


def test_whoever_waits_for_a_session_that_is_not_served_does_not_spin(ledger: Ledger, clock: FixedClock) -> None:
    async def body() -> None:
        pauses: list[float] = []

        async def sleep(seconds: float) -> None:
            pauses.append(seconds)
            if len(pauses) == 20:
                ledger.labels.unarchive("main")
            await asyncio.sleep(0)

        bench = Bench(ledger, saying("Hi"), clock=clock)
        message = bench.admit()
        ledger.labels.archive("main")
        broker = bench.broker()
        broker._sleep = sleep
        await bench.answered(message, broker)
        assert bench.state(message) == ("answered", None)
        assert bench.crossing.calls < 100

    run(body())


def test_those_who_wait_in_one_process_share_what_looks_after_their_turns(ledger: Ledger, clock: FixedClock) -> None:
    async def body() -> None:
        sleeps: list[float] = []

        async def sleep(seconds: float) -> None:
            sleeps.append(seconds)
            await asyncio.get_running_loop().create_future()

        bench = Bench(ledger, *[saying("Hi")] * 5, clock=clock)
        messages = [bench.admit(session=f"session {number}") for number in range(5)]
        broker = bench.broker()
        broker._sleep = sleep
        await asyncio.gather(*(bench.answered(message, broker) for message in messages))
        assert sleeps.count(broker_module.RENEW_SECONDS) == 1
        assert broker._looking_after == []

    run(body())


def test_a_message_that_nobody_here_can_answer_is_taken_back_after_a_while(ledger: Ledger, clock: FixedClock) -> None:
    async def body() -> None:
        bench = Bench(ledger, clock=clock)
        message = bench.admit()

        async def planner(standing: SessionStanding, messages: Sequence[Any]) -> None:
            clock.tick(1000)

        broker = bench.broker(planner)
        with pytest.raises(NotApplicable, match=f"message {message} .* nobody in this process") as raised:
            await broker.wait_for_answer(message, ledger.inbox.get(message).session_id, 2)
        assert raised.value.advice == Action.SERVE_MESSAGE.of(message=message)
        assert bench.state(message)[0] == "cancelled"

    run(body())


async def left(bench: Bench) -> str:
    """A message whose turn a broker began and left open."""
    message = bench.admit("first")
    broker = bench.broker()
    serving = asyncio.ensure_future(broker.serve())
    await bench.provider.asked.wait()
    broker.drain(0)
    await serving
    return message


def test_a_turn_that_nobody_here_can_go_on_with_stays_open_and_is_named(ledger: Ledger, clock: FixedClock) -> None:
    async def body() -> None:
        bench = Bench(ledger, None, saying("Hi"), clock=clock)
        first = await left(bench)
        message = bench.admit()

        async def planner(standing: SessionStanding, messages: Sequence[Any]) -> None:
            clock.tick(1000)

        with pytest.raises(NotApplicable, match=f"turn {ledger.inbox.get(first).turn} .* nobody in this") as raised:
            await bench.broker(planner).wait_for_answer(message, ledger.inbox.get(message).session_id, 2)
        assert raised.value.advice == Action.SERVE_TURN.of(session="main")
        assert (bench.state(first)[0], bench.state(message)[0]) == ("taken", "cancelled")
        await bench.answered(first)
        assert bench.state(first)[0] == "answered"

    run(body())


def test_the_time_that_others_are_waited_for_begins_after_each_turn(ledger: Ledger, clock: FixedClock) -> None:
    async def body() -> None:
        bench = Bench(ledger, saying("Hi"), clock=clock)
        message, broker = bench.admit(), bench.broker()
        works = iter([ServedSession(TurnEnd(turn="earlier")), ServedSession(busy=SessionBusy("main", "", "others"))])
        serve = broker._serve_once

        async def serve_once(session: str) -> ServedSession:
            work = next(works, None)
            if work is None:
                return await serve(session)
            clock.tick(5000 if work.busy is None else 0)
            return work

        broker._serve_once = serve_once  # type: ignore[method-assign]
        await broker.wait_for_answer(message, ledger.inbox.get(message).session_id, 2)
        assert bench.state(message) == ("answered", None)

    run(body())


def test_whoever_waits_no_more_leaves_the_turn_before_its_message_to_others(ledger: Ledger, clock: FixedClock) -> None:
    async def body() -> None:
        bench = Bench(ledger, None, saying("Hi"), clock=clock)
        first, second, broker = bench.admit("first"), bench.admit("second"), bench.broker()
        waiting = asyncio.ensure_future(bench.answered(second, broker))
        await bench.provider.asked.wait()
        ledger.inbox.cancel(second)
        broker.leave(second, ledger.inbox.get(second).session_id)
        assert await waiting is None
        assert bench.state(first)[0] == "taken"
        await bench.answered(first)
        assert bench.state(first) == ("answered", None)
        assert bench.interruptions(first) == ["shutdown"]

    run(body())


def test_what_had_come_of_an_answer_is_not_copied_for_each_of_its_pieces(ledger: Ledger, clock: FixedClock) -> None:
    class Piece(str):
        letters = 0

        def __radd__(self, before: str) -> str:
            Piece.letters += len(before)
            return before + str(self)

    async def cut(request: Any, on_token: Any, **_: Any) -> Any:
        for _number in range(100):
            on_token(ReplyToken(Piece("word ")))
        raise ReplyCut("it ended before its end")

    async def body() -> None:
        bench = Bench(ledger, clock=clock)
        bench.provider.infer = cut  # type: ignore[method-assign, assignment]
        message = bench.admit()
        broker = Broker(ledger, bench.crossing, bench.plan, clock=clock, is_streamed=True)
        assert isinstance((await bench.answered(message, broker)).error, ReplyCut)
        *_, answer = ledger.messages(ledger.inbox.get(message).turn or "")
        assert text_of(answer) == "word " * 100
        assert Piece.letters == 0

    run(body())


def test_leases_are_renewed_where_the_broker_cannot_be_announced(
    ledger: Ledger, clock: FixedClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def body() -> None:
        bench, renewals = Bench(ledger, None, clock=clock), list[str]()

        async def sleep(seconds: float) -> None:
            await (asyncio.sleep(0) if seconds == RENEW_SECONDS and len(renewals) < 3 else never(seconds))

        async def renew(runner: TurnRunner) -> None:
            renewals.append(runner.turn)

        def refuse(_: str) -> None:
            raise OSError("too many open files")

        monkeypatch.setattr(ledger._store, "announce", refuse)
        monkeypatch.setattr(TurnRunner, "renew", renew)
        bench.sleep = sleep
        bench.admit()
        broker = bench.broker()
        serving = asyncio.ensure_future(broker.serve())
        await bench.provider.asked.wait()
        for _ in range(1_000):
            await asyncio.sleep(0)
        assert len(renewals) == 3
        broker.drain(0)
        await serving

    run(body())


def test_a_turn_is_not_left_where_another_message_behind_it_is_awaited(ledger: Ledger, clock: FixedClock) -> None:
    async def body() -> None:
        bench = Bench(ledger, None, saying("Hi"), clock=clock)
        first, second, third = (bench.admit(text) for text in ("first", "second", "third"))
        broker, session = bench.broker(), ledger.inbox.get(first).session_id
        waiting = [asyncio.ensure_future(bench.answered(message, broker)) for message in (second, third)]
        await bench.provider.asked.wait()
        ledger.inbox.cancel(second)
        broker.leave(second, session)
        assert broker.interrupt(session)
        await asyncio.gather(*waiting)
        assert set(bench.interruptions(first)) == {"canceled"}
        assert bench.state(third) == ("answered", None)

    run(body())


def test_a_session_whose_turn_is_open_stays_where_it_is(ledger: Ledger, clock: FixedClock) -> None:
    async def body() -> None:
        first = ledger.record_turn(session="main", query="a", response="b").id
        ledger.record_turn(session="main", query="c", response="d")
        bench = Bench(ledger, None, saying("Hi"), clock=clock)
        message = bench.admit()
        broker = bench.broker()
        serving = asyncio.ensure_future(broker.serve())
        await bench.provider.asked.wait()
        broker.drain(0)
        await serving
        with pytest.raises(SessionBusy):
            ledger.move_head("main", new=first)
        await bench.answered(message)
        assert ledger.session("main").head == ledger.inbox.get(message).turn

    run(body())


def test_a_tool_that_cancels_itself_has_failed(ledger: Ledger, clock: FixedClock) -> None:
    async def body() -> None:
        async def gives_up() -> None:
            raise asyncio.CancelledError

        bench = Bench(ledger, saying("", "gives_up"), saying("Done"), clock=clock)
        bench.options["tools"] = tools_of(FunctionTool(gives_up))
        message = bench.admit()
        end = await bench.answered(message)
        assert end.reply.text == "Done"
        assert bench.interruptions(message) == []

    run(body())


@pytest.mark.parametrize(
    ("result", "recorded"), [({1, 2}, [1, 2]), (float("nan"), "nan"), (b"b\xff", "b\\xff")], ids=repr
)
def test_a_result_that_is_no_json_is_recorded_as_json(
    ledger: Ledger, clock: FixedClock, result: Any, recorded: Any
) -> None:
    def look() -> Any:
        """Looks."""
        return result

    async def body() -> None:
        bench = Bench(ledger, saying("", "look"), saying("Done"), clock=clock)
        bench.options["tools"] = tools_of(FunctionTool(look))
        message = bench.admit()
        end = await bench.answered(message)
        assert bench.state(message) == ("answered", None)
        (call,) = ledger.tool_calls(end.turn)
        assert (call.outcome, call.result) == ("ok", recorded)

    run(body())


def test_messages_that_others_admitted_hold_up_no_session(tmp_path: Path, clock: FixedClock) -> None:
    with weft.open(tmp_path / "theirs.db", clock=clock) as theirs, weft.open(tmp_path / "ours.db", clock=clock) as ours:
        theirs.inbox.admit("theirs", session="main", priority=5)
        import_into(ours, exported(theirs))
        session = ours.session("main")
        own = ours.inbox.admit("ours", session="main")
        (waiting,) = Runs(ours).waiting()
        assert waiting.session == session.id
        assert [message.id for message in Runs(ours).standing(session.id).queued] == [own.message]


def test_a_turn_that_another_ledger_runs_is_not_gone_on_with_here(tmp_path: Path, clock: FixedClock) -> None:
    with weft.open(tmp_path / "theirs.db", clock=clock) as theirs, weft.open(tmp_path / "ours.db", clock=clock) as ours:
        theirs.inbox.admit("theirs", session="main")
        their_turn, _ = begun(theirs, "main")
        import_into(ours, exported(theirs))
        bench = Bench(ours, saying("Hi"), clock=clock)
        own = bench.admit("ours")
        assert [one.turn for one in bench.runs.waiting()] == [None]
        run(settle(bench, clock, bench.broker(), own))
        assert (bench.state(own)[0], ours.inbox.get(own).turn != their_turn.id) == ("answered", True)
        assert ours.turn(their_turn.id).status not in ("completed", "failed")


def test_a_session_where_more_waits_is_gone_on_with_without_another_look(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[int] = []
    look = Runs.look

    def counted(runs: Runs, *given: Any) -> Any:
        found = look(runs, *given)
        looks.append(sum(one.amount for one in found.waiting))
        return found

    monkeypatch.setattr(Runs, "look", counted)
    monkeypatch.setattr("weft.runtime.broker.broker.NEWS_PAUSE_SECONDS", 1_000.0)

    async def body() -> None:
        bench = Bench(ledger, *(saying(f"Answer {number}") for number in range(6)))
        messages = [bench.admit(f"Message {number}") for number in range(6)]
        broker = bench.broker()
        serving = asyncio.ensure_future(broker.serve())
        while bench.state(messages[-1])[0] != "answered":
            await asyncio.sleep(0.001)
        broker.drain()
        await serving
        assert [text_of(request.messages[-1]) for request in bench.provider.requests] == [
            f"Message {number}" for number in range(6)
        ]

    run(body())
    assert looks[0] == 6
    assert len(looks) <= 2  # the second after the last message


def test_what_a_sender_knew_of_a_message_goes_with_its_settling(ledger: Ledger, clock: FixedClock) -> None:
    async def body() -> None:
        bench = Bench(ledger, clock=clock)
        broker = bench.broker()
        settled, busy = bench.admit(), bench.admit()
        session = ledger.inbox.get(settled).session_id
        for message in (settled, busy):
            broker.expect(message, SenderContext())
        ledger.inbox.cancel(settled)
        assert await broker.wait_for_answer(settled, session) is None
        with ledger.begin_turn(session="main"), pytest.raises(SessionBusy):
            await broker.wait_for_answer(busy, session, 0)
        assert broker._awaited.sendings((settled, busy)) == []

    run(body())


def test_a_session_that_another_writer_has_is_not_begun_with(ledger: Ledger) -> None:
    bench = Bench(ledger, saying("Hi"))
    message = bench.admit()
    session = ledger.inbox.get(message).session_id
    assert (bench.runs.standing(session).lease, bench.runs.waiting()[0].is_held) == (None, False)
    with ledger.begin_turn(session="main") as turn:
        lease = bench.runs.standing(session).lease
        assert lease is not None
        assert (lease.owner, lease.purpose) == (bench.runs.owner, turn.id)
        (waiting,) = bench.runs.waiting()
        assert (waiting.is_held, waiting.amount, waiting.served_by) == (True, 1, bench.runs.owner)
        turn.finish()
    (waiting,) = bench.runs.waiting()
    assert (waiting.is_held, waiting.served_by) == (False, bench.runs.owner)


def test_a_claim_that_stays_holds_a_session_up_for_a_while_only(
    ledger: Ledger, clock: FixedClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As of a broker that is stopped, or whose machine is gone and whose server has not noticed."""
    monkeypatch.setattr(Runs, "claim", lambda *_: False)

    async def body() -> None:
        bench = Bench(ledger, saying("Hi"), clock=clock)
        message, broker = bench.admit(), bench.broker()
        since = clock.monotonic()
        serving = asyncio.ensure_future(broker.serve())
        while bench.state(message)[0] != "answered":
            assert clock.monotonic() - since < 2 * session_turns.CLAIM_SECONDS
            clock.tick(100)
            broker.wake()
            await asyncio.sleep(0)
        assert clock.monotonic() - since >= session_turns.CLAIM_SECONDS
        broker.drain()
        await serving

    run(body())
