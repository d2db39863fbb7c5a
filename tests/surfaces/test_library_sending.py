"""Messages that a Python program sends: the way of the command line, with the program's own functions as tools, and its
own callback in the place of a person. Against a scripted server."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec import Struct

import weft
import weft.aio
from tests.conftest import NewPostgresLedger
from tests.runtime.inference.asking import CANARY
from tests.runtime.scripted import HANG, MESSAGE, Script, Scripted, answer, chat, chat_saying, failure
from tests.surfaces.serving import serving
from tests.surfaces.shell import Shell
from weft.kernel.errors import InvalidInput, NotApplicable
from weft.ledger.api import Runs
from weft.programs import kind_table
from weft.store.replicas import StoredTrust
from weft.surfaces.wire.hints import phrase


@pytest.fixture(autouse=True)
def _key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("THERE_KEY", CANARY)
    monkeypatch.setenv("USER", "tester")


@pytest.fixture
def path(folder: Path) -> Path:
    return folder / "program.db"


def stocked(path: str | Path, url: str) -> weft.OpenLedger:
    ledger = weft.open(path)
    programs = ledger.programs
    programs.create(
        "provider", "there", {"providerType": "openai-compatible", "baseUrl": url, "apiKey": "${THERE_KEY}"}
    )
    programs.create("model", "fast", {"provider": "there", "modelId": "m-1"})
    programs.create("agent", "met", {"defaultModel": "fast", "identity": {"soul": "You are Met."}})
    return ledger


def calling(name: str, arguments: str = '{"city": "Bergen"}', id: str = "call-1") -> Script:
    call = {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}
    return chat_saying({"content": None, "tool_calls": [call]}, "tool_calls")


@weft.tool(reads=True)
def weather(city: str) -> str:
    """What it is like in a city.

    Args:
        city: Its name.
    """
    return f"rain in {city}"


@weft.tool(asks=True)
def book(city: str) -> str:
    """Book a journey."""
    return f"booked {city}"


DENYING = """import json, sys
json.load(sys.stdin)
print(json.dumps({"decision": "deny_continue", "rationale": "no notes"}))
"""


def results(server: Scripted) -> list[Any]:
    return [one["content"] for one in server.received[-1].body["messages"] if one["role"] == "tool"]


def test_a_program_sends_a_message_and_has_its_answer(path: Path) -> None:
    with serving(chat()) as server, stocked(path, server.url) as ledger:
        turn = ledger.send("Hello", model="fast")
        assert (turn.text, turn.session, turn.finish, turn.usage.output_tokens) == ("Hello there", "main", "stop", 5)
        recorded = ledger.turn(turn.id)
        assert recorded.effective_config["chain"] == ["human:tester"]
        assert recorded.effective_config["sources"]["model"]["layer"] == "message"
        after = ledger.send("And?", thread=turn.id, model="fast")
        assert (after.session, ledger.turn(after.id).parent_id) == ("main", turn.id)
        own = ledger.send("You?", agent="met")
        assert own.session == "met:main"
        assert server.received[-1].body["messages"][0] == {"role": "system", "content": "You are Met."}


def test_a_message_names_one_target_and_says_something(path: Path) -> None:
    with serving(chat()) as server, stocked(path, server.url) as ledger:
        with pytest.raises(InvalidInput, match="one target"):
            ledger.send("Hello", session="a", thread="b")
        with pytest.raises(InvalidInput, match="empty"):
            ledger.send("  ")
        with pytest.raises(InvalidInput, match="another tool 'read'"):
            ledger.send("Hello", model="fast", tools=[weft.tool(name="read")(weather.function)])
        assert server.received == []


def test_a_function_is_a_tool_that_runs_in_this_process_and_is_recorded_so(path: Path) -> None:
    with serving(calling("weather"), chat()) as server, stocked(path, server.url) as ledger:
        turn = ledger.send("What is it like in Bergen?", agent="met", tools=[weather])
        offered = server.received[0].body["tools"][0]["function"]
        assert (offered["name"], offered["description"]) == ("weather", "What it is like in a city.")
        assert offered["parameters"]["properties"]["city"]["description"] == "Its name."
        assert results(server) == ["rain in Bergen"]
        (call,) = ledger.tool_calls(turn.id)
        assert (call.name, call.status, call.server) == ("weather", "completed", "caller")
        (decision,) = ledger.approvals.decisions(turn.id)
        assert (decision.decision, decision.by) == ("allow", "permission")
        overrides = ledger.inbox.get(turn.message).overrides
        assert overrides["functions"] == [{"name": "weather", "digest": weather.digest}]


def test_each_message_runs_the_very_function_that_came_with_it(path: Path) -> None:
    ran: list[tuple[str, str]] = []

    def noting(owner: str) -> Any:
        @weft.tool(asks=True)
        def note(city: str) -> str:
            ran.append((owner, city))
            return owner

        return note

    both = threading.Barrier(2, timeout=60)

    def approve(call: weft.PendingCall) -> weft.Answer:
        both.wait()  # by now both messages gave their function
        return weft.allow()

    def send(owner: str) -> None:
        ledger.send("Note it", session=owner, model="fast", tools=[noting(owner)], approve=approve)

    def script(body: Any) -> Script:
        return chat() if any(one["role"] == "tool" for one in body["messages"]) else calling("note")

    with serving(chat()) as server, stocked(path, server.url) as ledger:
        server.script_of = script
        threads = [threading.Thread(target=send, args=(owner,)) for owner in ("ada", "bob")]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert sorted(ran) == [("ada", "Bergen"), ("bob", "Bergen")]


def test_wrong_arguments_of_a_function_are_told_to_the_model(path: Path) -> None:
    with serving(calling("weather", '{"town": "Bergen"}'), chat()) as server, stocked(path, server.url) as ledger:
        ledger.send("What is it like?", model="fast", tools=[weather])
        assert "unknown field `town`" in results(server)[0]


def test_a_function_that_the_permissions_or_a_policy_deny_is_not_run(path: Path) -> None:
    ran: list[str] = []

    @weft.tool
    def note(city: str) -> str:
        ran.append(city)
        return city

    with serving(calling("note"), chat()) as server, stocked(path, server.url) as ledger:
        with pytest.raises(NotApplicable, match="do not allow the tool 'note'"):
            ledger.send("Note it", agent="met", tools=[note], deny=["note"])
        assert server.received == []
        policy = ledger.policies.propose("no notes", DENYING)
        tests = weft.PolicyTests(total=1, passed=1, failed=0)
        ledger.policies.activate(policy.id, digest=policy.digest, tests=tests)
        turn = ledger.send("Note it", agent="met", tools=[note])
        (decision,) = ledger.approvals.decisions(turn.id)
        assert (decision.decision, decision.by, decision.rationale) == ("deny_continue", "policy", "no notes")
    assert ran == []


def test_a_callback_answers_for_a_person_and_is_marked_as_a_program(path: Path) -> None:
    asked: list[weft.PendingCall] = []

    def approve(call: weft.PendingCall) -> weft.Answer:
        asked.append(call)
        return weft.allow()

    with serving(calling("book"), chat()) as server, stocked(path, server.url) as ledger:
        turn = ledger.send("Book it", agent="met", tools=[book], approve=approve)
        assert results(server) == ["booked Bergen"]
        (call,) = asked
        assert (call.tool, call.arguments, call.turn, call.agent) == ("book", {"city": "Bergen"}, turn.id, "met")
        assert "outside of the sandbox" in call.shown
        approval = ledger.approvals.get(call.id)
        assert (approval.state, approval.reason, approval.answered_by) == ("granted", "answered by a program", "local")


@pytest.mark.parametrize("store", ["disk", "postgres"])
def test_the_state_of_an_agent_is_what_its_open_turn_does(
    store: str, path: Path, new_postgres_ledger: NewPostgresLedger
) -> None:
    address = path if store == "disk" else new_postgres_ledger()
    states: dict[str, str] = {}

    def look(moment: str) -> None:
        states[moment] = ledger.programs.get("met").state
        assert [one.name for one in ledger.programs.all("agent", states=[states[moment]])].count("met") == 1

    @weft.tool(asks=True)
    def book(city: str) -> str:
        """Book a journey."""
        look("while a call runs")
        return f"booked {city}"

    def approve(call: weft.PendingCall) -> weft.Answer:
        look("while a person is asked")
        return weft.allow()

    def answering(body: Any) -> Script:
        look("while the model is asked")
        return chat() if body["messages"][-1]["role"] == "tool" else calling("book")

    with serving() as server, stocked(address, server.url) as ledger:
        server.script_of = answering
        steps = len(ledger.programs.history("met"))
        look("before")
        turn = ledger.send("Book it", agent="met", tools=[book], approve=approve)
        assert (results(server), turn.text) == (["booked Bergen"], "Hello there")
        look("afterwards")
        assert states == {
            "before": "idle",
            "while a person is asked": "waiting",
            "while a call runs": "executing",
            "while the model is asked": "thinking",
            "afterwards": "idle",
        }
        assert len(ledger.programs.history("met")) == steps  # it is read off the turn, and nothing is written for it


def test_an_agent_that_was_paused_stays_so_while_its_turn_waits(path: Path) -> None:
    with serving(calling("book"), chat()) as server, stocked(path, server.url) as ledger:
        with pytest.raises(weft.ApprovalNeeded):
            ledger.send("Book it", agent="met", tools=[book])
        assert ledger.programs.get("met").state == "waiting"
        assert ledger.programs.step_agent("met", "pause").state == "paused"
        assert ledger.programs.step_agent("met", "resume").state == "waiting"


@pytest.mark.parametrize("store", ["disk", "postgres"])
def test_a_session_where_messages_wait_is_not_completed(
    store: str, path: Path, new_postgres_ledger: NewPostgresLedger, monkeypatch: pytest.MonkeyPatch
) -> None:
    address = path if store == "disk" else new_postgres_ledger()
    with serving(chat(), chat()) as server, stocked(address, server.url) as ledger:
        ledger.send("Hello", session="main", model="fast")
        waiting = ledger.inbox.admit("And?", session="main").message
        with pytest.raises(NotApplicable, match="1 message waits in session 'main'") as refused:
            ledger.programs.step_session("main", "complete")
        assert waiting in phrase(refused.value.advice)
        ledger.inbox.cancel(waiting)
        second = ledger.inbox.admit("And now?", session="main").message
        monkeypatch.setattr(kind_table, "_refuse_waiting", lambda writer, row: None)  # as it was before
        assert ledger.programs.step_session("main", "complete").state == "completed"
        with ledger.broker():
            dead = next(
                item
                for item in ledger.follow("main", after="0")
                if isinstance(item, weft.MessageSettled) and item.message == second
            )
        assert (dead.state, ledger.inbox.get(second).state) == ("dead", "dead")
        assert "session 'main' is completed" in str(ledger.inbox.get(second).error)


def test_a_callback_that_denies_tells_the_model_why(path: Path) -> None:
    async def approve(call: weft.PendingCall) -> weft.Answer:
        await asyncio.sleep(0)
        return weft.deny("too far")

    with serving(calling("book"), chat()) as server, stocked(path, server.url) as ledger:
        turn = ledger.send("Book it", agent="met", tools=[book], approve=approve)
        assert "too far" in results(server)[0]
        (decision,) = ledger.approvals.decisions(turn.id)[-1:]
        assert (decision.decision, decision.by) == ("deny_continue", "grant")


def test_what_a_callback_raises_is_raised_and_the_turn_stays_parked(path: Path) -> None:
    asked: list[weft.PendingCall] = []

    def approve(call: weft.PendingCall) -> weft.Answer:
        asked.append(call)
        raise LookupError("nobody is there")

    with serving(calling("book"), calling("book"), chat()) as server, stocked(path, server.url) as ledger:
        with pytest.raises(LookupError, match="nobody is there"):
            ledger.send("Book it", agent="met", tools=[book], approve=approve)
        assert ledger.approvals.get(asked[0].id).state == "open"
        assert ledger.turn(asked[0].turn).status == "streaming"
        answered: Any = lambda call: "yes"  # noqa: E731
        with pytest.raises(InvalidInput, match="approve gave str"):
            ledger.send("Book it", session="other", model="fast", tools=[book], approve=answered)


def test_without_a_callback_the_turn_stays_parked_until_a_person_answers(path: Path) -> None:
    with serving(calling("book"), chat()) as server, stocked(path, server.url) as ledger:
        with pytest.raises(weft.ApprovalNeeded) as raised:
            ledger.send("Book it", agent="met", tools=[book])
        error = raised.value
        assert (error.code, error.action, error.tool) == ("approval_needed", "answer_approval", "book")
        assert error.approval in error.hint
        assert ledger.turn(error.turn).status == "streaming"
        approval = ledger.approvals.get(error.approval)
        ledger.approvals.grant(approval.id, plan_digest=approval.plan_digest)
        with ledger.broker():
            answered = next(item for item in ledger.follow("met:main", after="0") if isinstance(item, weft.TurnEnded))
        assert answered.exit == "success"
        assert results(server) == ["booked Bergen"]


def test_another_process_leaves_a_turn_whose_function_it_has_not(path: Path) -> None:
    with serving(calling("book"), chat()) as server:
        with stocked(path, server.url) as ledger, pytest.raises(weft.ApprovalNeeded) as raised:
            ledger.send("Book it", agent="met", tools=[book])
        with weft.open(path) as ledger:  # as another process has it: no function was given here
            approval = ledger.approvals.get(raised.value.approval)
            ledger.approvals.grant(approval.id, plan_digest=approval.plan_digest)
            left: list[str] = []
            with ledger.broker(on_error=lambda _, error: left.append(str(error))):
                parks = parked_turns(ledger)
                assert [next(parks).calls != (), next(parks).calls] == [True, ()]
                assert not Runs(ledger).wait_for_news(ledger.newest(), 3.0)
            assert ledger.turn(raised.value.turn).status == "streaming"
            assert len(left) == 1
            assert "it needs 'book', which only a program runs that was given the same function" in left[0]
            assert [park.why for park in parked_turns(ledger, wait=0.0)][1:] == ["a process that has the tool 'book'"]
            with ledger.broker(tools=[weather]):
                assert not Runs(ledger).wait_for_news(ledger.newest(), 2.0)
            with ledger.broker(tools=[book]):
                ended = (item for item in ledger.follow("met:main", after="0") if isinstance(item, weft.TurnEnded))
                assert next(ended).exit == "success"
            assert list(ledger.verify()) == []
        assert results(server) == ["booked Bergen"]


def parked_turns(ledger: weft.OpenLedger, wait: float | None = None) -> Iterator[weft.TurnParked]:
    items = ledger.follow("met:main", after="0", wait=wait)
    return (item for item in items if isinstance(item, weft.TurnParked))


def test_a_broker_without_the_function_leaves_the_turn_to_its_sender(path: Path) -> None:
    with serving(calling("book"), chat()) as server, stocked(path, server.url) as ledger, weft.open(path) as other:

        def approve(call: weft.PendingCall) -> weft.Answer:
            parks, approval = parked_turns(other), other.approvals.get(call.id)
            assert next(parks).calls != ()  # until a person answers
            other.approvals.grant(approval.id, plan_digest=approval.plan_digest)
            assert next(parks).why == "a process that has the tool 'book'"
            return weft.allow()

        with other.broker():
            turn = ledger.send("Book it", agent="met", tools=[book], approve=approve)
        assert (turn.text, results(server)) == ("Hello there", ["booked Bergen"])


def test_whoever_gives_the_function_wakes_a_turn_that_waits_for_it(path: Path) -> None:
    with serving(calling("book"), chat()) as server:
        with stocked(path, server.url) as ledger, pytest.raises(weft.ApprovalNeeded) as raised:
            ledger.send("Book it", agent="met", tools=[book])
        with weft.open(path) as ledger, weft.open(path) as other:
            approval = ledger.approvals.get(raised.value.approval)
            ledger.approvals.grant(approval.id, plan_digest=approval.plan_digest)
            with other.broker():
                assert [park.calls for _, park in zip(range(2), parked_turns(ledger), strict=False)][1] == ()
                after = ledger.send("And then?", agent="met", tools=[book])
            assert ledger.turn(after.id).parent_id == raised.value.turn
        assert results(server) == ["booked Bergen"]


def test_a_turn_that_waits_for_a_function_can_be_cut_short_where_nobody_has_it(path: Path) -> None:
    with serving(calling("book"), chat()) as server:
        with stocked(path, server.url) as ledger, pytest.raises(weft.ApprovalNeeded) as raised:
            ledger.send("Book it", agent="met", tools=[book])
        with weft.open(path) as ledger:
            approval = ledger.approvals.get(raised.value.approval)
            ledger.approvals.grant(approval.id, plan_digest=approval.plan_digest)
            with ledger.broker():
                assert [park.calls for _, park in zip(range(2), parked_turns(ledger), strict=False)][1] == ()
                ledger.inbox.admit("Stop", session="met:main", mode="interrupt")
                ended = (item for item in ledger.follow("met:main", after="0") if isinstance(item, weft.TurnEnded))
                assert next(ended).turn == raised.value.turn
            turn = ledger.turn(raised.value.turn)
            assert (turn.status, turn.interruption_reason) == ("completed", "canceled")
            (call,) = ledger.tool_calls(turn.id)
            assert call.status != "completed"
            assert list(ledger.verify()) == []


def test_a_stream_gives_tokens_calls_approvals_and_the_answer(path: Path) -> None:
    with serving(calling("book"), chat()) as server, stocked(path, server.url) as ledger:
        parts = list(ledger.stream("Book it", agent="met", tools=[book], approve=lambda call: weft.allow()))
        kinds = [type(part).__name__ for part in parts]
        assert kinds[-1] == "AnsweredTurn"
        assert {"ToolStarted", "PendingCall", "ToolFinished", "TextAdded"} <= set(kinds)
        answered = parts[-1]
        assert isinstance(answered, weft.AnsweredTurn)
        assert "".join(part.text for part in parts if isinstance(part, weft.TextAdded)) == answered.text


def test_a_stream_that_nobody_takes_to_its_end_cuts_the_turn_short(path: Path) -> None:
    with serving(calling("weather"), [HANG]) as server, stocked(path, server.url) as ledger:
        stream = ledger.stream("Begin", agent="met", tools=[weather])
        started = next(part for part in stream if isinstance(part, weft.ToolFinished))
        stream.close()
        assert ledger.turn(started.turn).interruption_reason == "canceled"


def test_a_send_that_is_cancelled_ends_its_turn_as_interrupted(path: Path) -> None:
    async def main(url: str) -> None:
        async with weft.aio.open(path) as ledger:
            position = str(await ledger.newest())
            sending = asyncio.ensure_future(ledger.send("Begin", agent="met"))
            async for item in ledger.follow("met:main", after=position, wait=30):
                if isinstance(item, weft.AnswerStarted):
                    break
            else:
                raise AssertionError("no model was asked")
            sending.cancel()
            with pytest.raises(asyncio.CancelledError):
                await sending
            turn = await ledger.turn(item.turn)
            assert turn.interruption_reason == "canceled"

    with serving(chat(), [HANG]) as server:
        with stocked(path, server.url) as ledger:
            ledger.send("Hi", agent="met")
        asyncio.run(main(server.url))


def test_a_ledger_that_is_closed_ends_the_turns_of_what_was_sent(path: Path) -> None:
    ended: list[BaseException] = []

    def send() -> None:
        try:
            ledger.send("Begin", agent="met")
        except BaseException as error:
            ended.append(error)

    with serving([HANG]) as server:
        ledger = stocked(path, server.url)
        thread = threading.Thread(target=send)
        thread.start()
        assert Runs(ledger).wait_for_news(ledger.newest(), 60)
        while not server.hanging.is_set():
            Runs(ledger).wait_for_news(ledger.newest(), 0.05)
        ledger.close()
        thread.join(60)
        assert [type(error) for error in ended] == [asyncio.CancelledError]
        with weft.open(path) as again:
            head = again.session("met:main").head
            assert head is not None
            assert again.turn(head).interruption_reason == "canceled"


def test_asynchronous_functions_run_in_the_event_loop_of_whoever_sends(path: Path) -> None:
    loops: list[asyncio.AbstractEventLoop] = []

    async def book_later(city: str) -> str:
        """Book it later."""
        loops.append(asyncio.get_running_loop())
        return f"later {city}"

    async def approve(call: weft.PendingCall) -> weft.Answer:
        loops.append(asyncio.get_running_loop())
        return weft.allow()

    async def main() -> None:
        async with weft.aio.open(path) as ledger:
            tools = [weft.tool(asks=True)(book_later)]
            turn = await ledger.send("Book it", agent="met", tools=tools, approve=approve)
            assert turn.text == "Hello there"
            assert loops == [asyncio.get_running_loop()] * 2

    with serving(calling("book_later"), chat()) as server:
        stocked(path, server.url).close()
        asyncio.run(main())
        assert results(server) == ["later Bergen"]


MAKING = """import sys, weft
weft.open(sys.argv[1]).close()
weft.open(sys.argv[2], trust=weft.user_trust()).close()
"""


def test_a_ledger_that_a_program_makes_is_trusted_at_the_command_line_where_it_says_whose_it_is(
    shell: Shell, tmp_path: Path
) -> None:
    plain, owned = (str(tmp_path / f"{name}.db") for name in ("plain", "owned"))
    subprocess.run([sys.executable, "-c", MAKING, plain, owned], check=True, timeout=240)
    assert shell.json("--ledger", owned, "trust", "--show")["trusted"] is True
    assert shell.json("--ledger", plain, "trust", "--show")["trusted"] is False
    refused = shell("--ledger", plain, "send", "Hello", "--model", "local")
    assert refused.code != 0
    assert "a program made it without weft.user_trust()" in refused.err
    with weft.open(plain, trust=weft.user_trust()) as ledger:
        asked: list[str] = []

        def ask(action: str) -> bool:
            asked.append(action)
            return True

        assert isinstance(ledger.trust, StoredTrust)
        ledger.trust.ask = ask
        for action in ("answer messages", "start a command"):
            ledger.trust.ensure(action)
    assert asked == ["answer messages"]
    assert shell.json("--ledger", plain, "trust", "--show")["trusted"] is True


def test_an_awaited_stream_that_is_cancelled_ends_its_turn_as_interrupted(path: Path) -> None:
    async def main() -> None:
        async with weft.aio.open(path) as ledger:
            started = asyncio.Event()
            turns: list[str] = []

            async def read() -> None:
                async for part in ledger.stream("Begin", agent="met", tools=[weather]):
                    if isinstance(part, weft.ToolFinished):
                        turns.append(part.turn)
                        started.set()

            reading = asyncio.ensure_future(read())
            async with asyncio.timeout(60):
                await started.wait()
            reading.cancel()
            with pytest.raises(asyncio.CancelledError):
                await reading
            assert (await ledger.turn(turns[0])).interruption_reason == "canceled"

    with serving(calling("weather"), [HANG]) as server:
        stocked(path, server.url).close()
        asyncio.run(main())


def test_two_threads_and_two_event_loops_send_through_one_ledger(path: Path) -> None:
    errors: list[BaseException] = []

    def each(work: Any) -> threading.Thread:
        def run() -> None:
            try:
                work()
            except BaseException as error:
                errors.append(error)

        thread = threading.Thread(target=run)
        thread.start()
        return thread

    with serving(chat()) as server, stocked(path, server.url) as ledger:
        threads = [each(lambda name=name: ledger.send("Hello", session=name, model="fast")) for name in ("a", "b")]
        for thread in threads:
            thread.join(60)

        async def main() -> None:
            awaited = await weft.aio.open(path)
            try:
                loops = [
                    each(lambda name=name: asyncio.run(awaited.send("Hello", session=name, model="fast")))
                    for name in ("c", "d")
                ]
                await asyncio.gather(*(asyncio.to_thread(thread.join, 60) for thread in loops))
            finally:
                await awaited.close()

        asyncio.run(main())
        assert errors == []
        labels = {session.label for session in ledger.sessions()}
        assert {"a", "b", "c", "d"} <= labels


def test_a_broker_answers_what_waits_until_it_is_left(path: Path) -> None:
    with serving(chat()) as server, stocked(path, server.url) as ledger:
        admission = ledger.inbox.admit("Hello", persona="met")
        with ledger.broker():
            assert Runs(ledger).has_broker()
            ended = (item for item in ledger.follow("met:main", after="0") if isinstance(item, weft.TurnEnded))
            assert next(ended).messages == (admission.message,)
        assert not Runs(ledger).has_broker()


class Report(Struct, frozen=True):
    city: str
    degrees: int


REPORT = chat_saying({"content": '{"city": "Bergen", "degrees": 9}'})
FENCED = chat_saying({"content": '```json\n{"city": "Bergen", "degrees": 9}\n```'})


def test_an_answer_is_asked_for_as_a_type_in_the_mode_of_the_provider(path: Path) -> None:
    with serving(REPORT) as server, stocked(path, server.url) as ledger:
        turn = ledger.send("As a table, please", agent="met", returns=Report)
        assert turn.value == Report(city="Bergen", degrees=9)
        (request,) = server.received
        assert request.body["messages"][-1] == {"role": "user", "content": "As a table, please"}
        asked = request.body["response_format"]["json_schema"]
        assert asked["strict"] is True
        assert set(asked["schema"]["properties"]) == {"city", "degrees"}
        after = ledger.send("And?", thread=turn.id, returns=Report)
        assert (after.value, after.session) == (turn.value, "met:main")
        ledger.send("In words?", agent="met")
        assert "response_format" not in server.received[-1].body


def test_a_server_that_refuses_or_overlooks_the_mode_is_asked_once_in_words(path: Path) -> None:
    for_first = [failure(400, "response_format is not known"), FENCED]
    with serving(*for_first) as server, stocked(path, server.url) as ledger:
        turn = ledger.send("As a table, please", session="refused", model="fast", returns=Report)
        assert (turn.value, turn.session) == (Report(city="Bergen", degrees=9), "refused")
        assert "response_format" not in server.received[1].body
        assert '"degrees"' in server.received[1].body["messages"][-1]["content"]
    with serving(FENCED) as server:
        with weft.open(path) as ledger:
            ledger.programs.change("there", {"baseUrl": server.url, "apiKey": "${THERE_KEY}"})
            assert ledger.send("A table", session="overlooked", model="fast", returns=Report).value == turn.value
        assert ["response_format" in request.body for request in server.received] == [True, False]


def test_an_answer_that_does_not_fit_is_mended_once(path: Path) -> None:
    numbers = chat_saying({"content": "[1, 2]"})
    with serving(chat(), numbers, chat()) as server, stocked(path, server.url) as ledger:
        turn = ledger.send("Some numbers", agent="met", returns=list[int])  # no object: no provider has a mode for it
        assert turn.value == [1, 2]
        assert '"integer"' in server.received[0].body["messages"][-1]["content"]
        assert "That was not such a value" in server.received[1].body["messages"][-1]["content"]
        for wanted in (list[int], Report):
            with pytest.raises(weft.WeftError, match="not what was asked for") as raised:
                ledger.send("Once more", agent="met", returns=wanted)
            assert raised.value.code == "answer_unfit"


def test_a_model_without_such_a_mode_is_asked_in_words(path: Path) -> None:
    text = json.dumps({"city": "Bergen", "degrees": 9})
    old = answer(200, {**MESSAGE, "model": "claude-3-opus", "content": [{"type": "text", "text": text}]})
    with serving(old) as server, stocked(path, server.url) as ledger:
        there = {"providerType": "anthropic", "baseUrl": server.url, "apiKey": "${THERE_KEY}"}
        ledger.programs.create("provider", "elsewhere", there)
        ledger.programs.create("model", "old", {"provider": "elsewhere", "modelId": "claude-3-opus"})
        turn = ledger.send("As a table", model="old", returns=Report)
        assert turn.value == Report(city="Bergen", degrees=9)
        (request,) = server.received
        assert "output_config" not in request.body
        assert '"degrees"' in str(request.body["messages"][-1]["content"])


def test_a_stranger_has_no_right_to_answer(path: Path) -> None:
    with serving(calling("book"), chat()) as server, stocked(path, server.url) as ledger:
        ledger.programs.create("human", "bln", {"permissions": ["turn:record", "session:read"]})
        acting = ledger.acting_as("bln")
        with pytest.raises(weft.WeftError):
            acting.send("Book it", session="bln-own", model="fast", tools=[book], approve=lambda call: weft.allow())
        assert results(server) == []


def test_a_context_is_given_in_the_form_of_each_provider(path: Path) -> None:
    with serving(calling("weather"), chat()) as server, stocked(path, server.url) as ledger:
        ledger.send("What is it like?", agent="met", tools=[weather])
        context = ledger.context(session="met:main")
        asked = server.received[1].body["messages"]
        assert context.as_openai() == [*asked, {"role": "assistant", "content": "Hello there"}]
        assert [item.get("type", item.get("role")) for item in context.as_responses()] == [
            "system", "user", "function_call", "function_call_output", "assistant",
        ]  # fmt: skip
        anthropic = context.as_anthropic()
        assert anthropic["system"] == "You are Met."
        assert [message["role"] for message in anthropic["messages"]] == ["user", "assistant", "user", "assistant"]
        google = context.as_google()
        assert google["systemInstruction"] == {"parts": [{"text": "You are Met."}]}
        assert [one["role"] for one in google["contents"]] == ["user", "model", "user", "model"]
        assert google["contents"][1]["parts"] == [{"functionCall": {"name": "weather", "args": {"city": "Bergen"}}}]
        response = {"name": "weather", "response": {"output": "rain in Bergen"}}
        assert google["contents"][2]["parts"] == [{"functionResponse": response}]
