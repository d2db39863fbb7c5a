"""`weft send` beside a broker that runs: the message is left to it, and its answer read from the ledger."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

import weft as weft_package
from tests.ledger.test_workers import calling, with_workers
from tests.runtime.broker.bench import Bench, saying
from tests.runtime.inference.asking import CANARY
from tests.runtime.scripted import CLOSE, HANG, HOLD, STREAM_HEAD, Scripted, chat, chunk, events, failure
from tests.surfaces import talking
from tests.surfaces.approving import opened, waiting
from tests.surfaces.forking import Forked
from tests.surfaces.serving import serving
from tests.surfaces.shell import Shell, on_terminal, running
from tests.surfaces.test_approval_prompts import equip
from tests.surfaces.test_cli_broker import stock, wait_until
from weft.kernel.clock import FixedClock, SystemClock
from weft.kernel.enums import Decision, DecisionSource
from weft.ledger.api import ApprovalAsked, Ledger, ParkedRun, Runs, ToolDecision
from weft.ledger.api.inbox import Inbox
from weft.runtime import replies
from weft.runtime.replies import await_served, leave_message
from weft.surfaces.cli.programs.program_call import ReplyStream
from weft.surfaces.cli.screen import Screen

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="brokers are not seen on this system")


@pytest.fixture(autouse=True)
def _key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("THERE_KEY", CANARY)
    monkeypatch.setenv("USER", "tester")


@pytest.fixture
def answers_here(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Which messages the command in this process answers itself. A broker has all the time that it takes, so that
    none is answered here because the machine is busy."""
    from weft.surfaces.cli.work import broker_call

    inner, answered = broker_call._answered_here, []

    def noted(call: Any, admit: Any, on_token: Any, ledger: Any, waiting: Any, on_call: Any) -> object:
        answered.append("new" if waiting is None else "waiting")
        return inner(call, admit, on_token, ledger, waiting, on_call)

    monkeypatch.setattr(broker_call, "_answered_here", noted)
    monkeypatch.setattr(replies, "TAKING_SECONDS", 300)
    return answered


@contextmanager
def broker(weft: Shell) -> Iterator[Forked]:
    with running(weft.folder, "broker", "--json", stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert b'"ready":true' in process.stdout.readline()
        with ledger_of(weft) as ledger:
            while not Runs(ledger).has_broker():
                assert process.poll() is None
                Runs(ledger).wait_for_news(ledger.newest(), 0.02)
        yield process


def ledger_of(weft: Shell) -> Ledger:
    return weft_package.open(weft.folder / ".weft" / "ledger.db")


def test_the_broker_answers_and_the_sender_shows_its_answer(weft: Shell, answers_here: list[str]) -> None:
    with serving(chat()) as server:
        stock(weft, server.url, "talk")
        with broker(weft):
            sent = weft.json("send", "--session", "talk", "Begin")
            assert (sent["state"], sent["text"], sent["model"], sent["finish"]) == (
                "answered",
                "Hello there",
                "m-1",
                "stop",
            )
            assert weft("send", "--session", "talk", "Go on").out == "Hello there\n"
        assert answers_here == []
        assert weft("send", "--session", "talk", "Alone").out == "Hello there\n"
    assert answers_here == ["new"]  # the broker is gone
    assert weft("verify").code == 0


def test_a_message_that_the_broker_cannot_answer_is_told(weft: Shell, answers_here: list[str]) -> None:
    with serving(failure(401)) as server:
        stock(weft, server.url, "talk")
        with broker(weft):
            sent = weft("send", "--session", "talk", "Begin")
    assert sent.code != 0
    assert "401" in sent.err
    with ledger_of(weft) as ledger:
        (message,) = ledger.inbox.list(states=["dead"])
    assert f"`weft retry {message.turn}` asks again" in sent.err
    assert answers_here == []


@pytest.mark.usefixtures("answers_here")
def test_a_failure_is_told_as_the_same_whether_a_broker_runs_or_not(weft: Shell) -> None:
    with serving(failure(401)) as server:
        stock(weft, server.url, "talk")
        alone = weft("send", "--session", "talk", "Begin", "--json")
        with broker(weft):
            beside = weft("send", "--session", "talk", "Begin", "--json")
    assert (alone.code, alone.error["code"]) == (8, "credential_refused")
    errors = [{name: value for name, value in sent.error.items() if name != "again"} for sent in (alone, beside)]
    assert (beside.code, errors[1]) == (alone.code, errors[0])
    assert all(sent.error["again"].startswith("weft retry ") for sent in (alone, beside))


@pytest.mark.usefixtures("answers_here")
def test_an_answer_has_the_same_fields_whether_a_broker_runs_or_not(weft: Shell) -> None:
    with serving(chat(model="gpt-4o-mini")) as server:
        stock(weft, server.url)
        for line in (
            "model create mini --backend gpt-4o-mini --provider there",
            "session create alone --model mini",
            "session create beside --model mini",
        ):
            assert weft(*line.split()).code == 0
        alone = weft.json("send", "--session", "alone", "Begin")
        with broker(weft):
            beside = weft.json("send", "--session", "beside", "Begin")
    told = ("text", "model", "model_id", "provider", "finish", "usage", "cost")
    assert {name: beside[name] for name in told} == {name: alone[name] for name in told}
    assert alone["cost"] > 0


def test_an_answer_is_shown_on_a_terminal_while_the_broker_hears_it(weft: Shell) -> None:
    pieces = events(chunk({"content": "Hello "}), chunk({"content": "there"}), chunk({}, "stop"), "[DONE]")
    with serving([STREAM_HEAD, *pieces, CLOSE]) as server:
        stock(weft, server.url, "talk")
        with broker(weft):
            code, shown = on_terminal(weft.folder, "send", "--session", "talk", "Begin")
    assert (code, shown.count("Hello there")) == (0, 1), shown


def test_a_note_behind_an_answer_that_was_shown_as_it_came_begins_a_line_of_its_own(weft: Shell) -> None:
    pieces = events(chunk({"content": "Hello "}), chunk({"content": "there"}), chunk({}, "stop"), "[DONE]")
    with serving([STREAM_HEAD, *pieces, CLOSE]) as server:
        stock(weft, server.url, "talk")
        assert weft("agent", "create", "ada", "--model", "fast", "--toolset", "worker").code == 0
        code, shown = on_terminal(weft.folder, "send", "--agent", "ada", "Begin")
    lines = re.sub("\x1b\\[[0-9;]*m", "", shown).splitlines()
    assert code == 0, shown
    assert lines[lines.index("Hello there") + 1].startswith("without read"), shown
    assert "" not in lines, shown


def await_request(server: Scripted, ledger: Ledger) -> None:
    while not server.received:
        Runs(ledger).wait_for_news(ledger.newest(), 0.02)


def test_where_the_broker_dies_the_sender_goes_on(weft: Shell) -> None:
    words = ("send", "--session", "talk", "Begin")
    with serving([HANG], chat()) as server:
        stock(weft, server.url, "talk")
        with (
            broker(weft) as process,
            running(weft.folder, *words, stdout=subprocess.PIPE) as sender,
            ledger_of(weft) as ledger,
        ):
            await_request(server, ledger)
            process.kill()
            process.wait()
            out, _ = sender.communicate(timeout=60)
    assert out == b"Hello there\n"
    assert [item.body["messages"][-1]["content"] for item in server.received] == ["Begin", "Begin"]


def pieces(*texts: str) -> list[bytes]:
    return events(*(chunk({"content": text}) for text in texts), chunk({}, "stop"), "[DONE]")


def test_what_was_shown_of_the_answer_of_a_broker_that_is_gone_is_not_shown_twice(weft: Shell) -> None:
    first, *_ = pieces("Hello ")
    with serving([STREAM_HEAD, first, HANG], [STREAM_HEAD, *pieces("Hello ", "there"), CLOSE]) as server:
        stock(weft, server.url, "talk")
        with broker(weft) as process, talking.typing(weft.folder, "send", "--session", "talk", "Begin") as typist:
            typist.wait("Hello ")
            process.kill()
            process.wait()
            assert typist.end() == 0
    assert (typist.shown.count("Hello there"), typist.shown.count("broke off")) == (1, 0), typist.shown


def test_an_answer_that_its_broker_ends_after_the_hand_over_is_shown_whole(
    weft: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broker that drains ends what it has begun, while the sender goes on with a broker of its own."""
    from weft.surfaces.cli.work import broker_call

    first, *rest = pieces("Hello ", "there")
    with serving([STREAM_HEAD, first, HOLD, *rest, CLOSE]) as server:
        stock(weft, server.url, "talk")
        inner = broker_call._answered_here

        def released(*arguments: Any) -> Any:
            server.release()
            return inner(*arguments)

        monkeypatch.setattr(broker_call, "_answered_here", released)
        monkeypatch.setattr(Screen, "terminal", property(lambda _: True, lambda *_: None), raising=False)
        with broker(weft) as process:
            shown: list[str] = []
            echo = ReplyStream._echo

            def drained(stream: ReplyStream, text: str) -> None:
                if not shown:
                    process.send_signal(signal.SIGTERM)
                shown.append(text)
                echo(stream, text)

            monkeypatch.setattr(ReplyStream, "_echo", drained)
            sent = weft("send", "--session", "talk", "Begin")
    assert (sent.code, sent.out) == (0, "Hello there\n"), sent.err
    assert len(server.received) == 1
    assert "broke off" not in sent.err


def test_a_sender_that_is_interrupted_has_its_turn_cut_short(weft: Shell) -> None:
    with serving([HANG]) as server:
        stock(weft, server.url, "talk")
        words = ("send", "--session", "talk", "Begin")
        with (
            broker(weft),
            running(weft.folder, *words, stderr=subprocess.PIPE) as sender,
            ledger_of(weft) as ledger,
        ):
            await_request(server, ledger)
            os.kill(sender.pid, signal.SIGINT)
            _, errors = sender.communicate()
            assert sender.returncode == 130
            assert b"the turn that answers the message is cut short" in errors
            session = ledger.session("talk").id
            wait_until(ledger, lambda: Runs(ledger).standing(session).open_turn is None)
    assert weft.json("show", "talk")["interruption_reason"] == "canceled"


def states(weft: Shell) -> list[str]:
    with ledger_of(weft) as ledger:
        return [item.state for item in ledger.inbox.list(states=["queued", "taken", "answered", "cancelled", "dead"])]


@pytest.mark.slow("loads what a broker needs, where it is the first to")
def test_a_sender_that_is_interrupted_while_it_goes_on_takes_its_message_back(
    weft: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    from weft.surfaces.cli.work import broker_call

    def interrupted(*_: object, **__: object) -> None:
        assert states(weft) == ["queued"]
        raise KeyboardInterrupt

    monkeypatch.setattr(replies, "TAKING_SECONDS", 0)
    monkeypatch.setattr(broker_call, "with_broker", interrupted)  # before anything of it is loaded
    with ledger_of(weft) as ledger:
        Runs(ledger).announce_broker()  # and answers nothing
        sent = weft("send", "--session", "talk", "Begin")
    assert (sent.code, "the message was taken back: no model was asked" in sent.err) == (130, True)
    assert states(weft) == ["cancelled"]


@pytest.mark.parametrize("is_served", [True, False])
def test_a_sender_that_is_interrupted_at_the_commit_of_its_message_takes_it_back(
    weft: Shell, monkeypatch: pytest.MonkeyPatch, is_served: bool
) -> None:
    inner = Inbox.admit

    def admit(inbox: Inbox, *arguments: Any, **more: Any) -> Any:
        admission = inner(inbox, *arguments, **more)
        os.kill(os.getpid(), signal.SIGINT)
        return admission

    usual = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with ledger_of(weft) as ledger:
            if is_served:
                Runs(ledger).announce_broker()
            monkeypatch.setattr(Inbox, "admit", admit)
            assert weft("send", "--session", "talk", "Begin").code == 130
    finally:
        signal.signal(signal.SIGINT, usual)
    assert states(weft) == ["cancelled"]


def test_a_sender_that_is_interrupted_when_it_has_its_answer_leaves_the_turns_of_others_alone(
    weft: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ledger_of(weft) as ledger:
        runs, bench = Runs(ledger), Bench(ledger, saying("Hi"))
        message = bench.admit(session="talk")
        asyncio.run(bench.answered(message))
        session = ledger.session("talk")
        runs.announce_broker()

        def begin_another(*_: object) -> None:
            other = bench.admit("another's question", session="talk")
            runs.begin(session.id, expected=(ledger.session("talk").head, None), messages=[other])
            raise KeyboardInterrupt

        monkeypatch.setattr(replies, "load_reply", begin_another)
        with pytest.raises(KeyboardInterrupt):
            await_served(ledger, message, session.id)
        assert leave_message(ledger, message) == "the message was answered already"
        standing = runs.standing(session.id)
        assert standing.open_turn is not None
        assert standing.stop is None


def test_of_a_turn_that_was_cut_short_already_that_is_said(weft: Shell) -> None:
    """Where the turn ran in the process that was interrupted, it has ended before the message is looked at."""
    with serving([HANG]) as server:
        stock(weft, server.url, "talk")
        words = ("send", "--session", "talk", "Begin")
        with running(weft.folder, *words, stderr=subprocess.PIPE) as sender, ledger_of(weft) as ledger:
            await_request(server, ledger)
            os.kill(sender.pid, signal.SIGINT)
            _, errors = sender.communicate()
    assert sender.returncode == 130
    assert b"the turn that answered the message was cut short" in errors


def test_a_message_that_no_broker_takes_is_answered_by_its_sender(
    weft: Shell, answers_here: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replies, "TAKING_SECONDS", 0.05)
    monkeypatch.setattr(replies, "LOOK_SECONDS", 0.01)
    with serving(chat()) as server:
        stock(weft, server.url, "talk")
        with ledger_of(weft) as ledger:
            Runs(ledger).announce_broker()  # and answers nothing
            assert weft("send", "--session", "talk", "Begin").out == "Hello there\n"
    assert answers_here == ["waiting"]
    assert len(weft.json("log", "talk")) == 1
    assert weft.json("inbox") == []


def test_a_message_whose_turn_nobody_works_on_any_more_is_left_to_its_sender(
    weft: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broker that stands still keeps its announcement, and does not renew its lease."""
    clock = FixedClock(SystemClock().now_ms())
    looks: list[float] = []

    def passing(_: Runs, after: int, seconds: float) -> bool:
        looks.append(clock.monotonic())
        assert len(looks) < 20, "the sender waits for ever"
        clock.tick(5_000)
        return False

    monkeypatch.setattr(replies, "LOOK_SECONDS", 0)
    with ledger_of(weft) as ledger, weft_package.open(ledger.path, clock=clock) as sender:
        runs, message = Runs(ledger), ledger.inbox.admit("hello", session="talk").message
        session = ledger.session("talk").id
        runs.announce_broker()
        runs.begin(session, expected=(None, None), messages=[message])
        monkeypatch.setattr(Runs, "wait_for_news", passing)
        assert await_served(sender, message, session) is None
        assert looks[-1] >= 25  # whoever renews a lease within its time is alive


def test_a_message_whose_worker_waits_for_a_person_is_left_to_whoever_can_ask_one(
    weft: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Runs, "wait_for_news", lambda *_: pytest.fail("it waits although somebody is asked"))
    with opened(weft) as ledger:
        _, (worker,), _ = with_workers(ledger, 1)
        below, (shell,) = calling(ledger, worker.label, "shell")
        decision = ToolDecision(call=shell.id, decision=Decision.ASK, by=DecisionSource.POLICY, plan_digest="0" * 64)
        below.record(
            [decision, ApprovalAsked(call=shell.id, plan_digest="0" * 64, shown="ls"), ParkedRun(calls=(shell.id,))]
        )
        Runs(ledger).announce_broker()
        (message,) = ledger.inbox.list(session="main")
        assert await_served(ledger, message.id, message.session_id) is None
        (request,) = Runs(ledger).open_requests(message.session_id)
        assert request.shown == "ls"


def test_a_call_of_a_turn_that_a_broker_runs_is_answered_at_the_terminal_that_sends(weft: Shell) -> None:
    call = {"index": 0, "id": "call-1", "type": "function"}
    call["function"] = {"name": "write", "arguments": json.dumps({"path": "notes.txt", "content": "new\n"})}
    deltas = events(chunk({"content": "I write. "}), chunk({"tool_calls": [call]}), chunk({}, "tool_calls"), "[DONE]")
    with serving([STREAM_HEAD, *deltas, CLOSE], chat()) as server:
        equip(weft, server.url)
        with broker(weft), talking.typing(weft.folder, "send", "--session", "talk", "Begin") as typist:
            assert "| +new" in typist.wait("[a]bort the turn?")
            typist.line("y")
            typist.wait("is granted")
            assert typist.end() == 0
    assert (typist.shown.count("I write. "), typist.shown.count("Hello there")) == (1, 1), typist.shown
    assert (typist.shown.count("[a]bort the turn?"), typist.shown.count("broke off")) == (1, 0), typist.shown


def test_a_message_that_waits_for_a_person_is_left_to_whoever_can_ask_one(weft: Shell) -> None:
    with opened(weft) as ledger:
        _, message = waiting(ledger, "light")
        Runs(ledger).announce_broker()
        admitted = ledger.inbox.get(message)
        assert admitted.state == "taken"
        assert await_served(ledger, message, ledger.session("main").id) is None
