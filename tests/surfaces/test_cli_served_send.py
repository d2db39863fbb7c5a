"""`weft send` beside a broker that runs: the message is left to it, and its answer read from the ledger."""

from __future__ import annotations

import asyncio
import fcntl
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

import weft as weft_package
from tests.runtime.broker.bench import Bench, saying
from tests.runtime.inference.asking import CANARY
from tests.runtime.scripted import CLOSE, HANG, STREAM_HEAD, Scripted, chat, chunk, events, failure
from tests.surfaces.approving import opened, waiting
from tests.surfaces.forking import Forked
from tests.surfaces.serving import serving
from tests.surfaces.shell import Shell, on_terminal, running
from tests.surfaces.test_cli_broker import stock, wait_until
from weft.kernel.clock import FixedClock, SystemClock
from weft.ledger.api import Ledger, Runs
from weft.runtime.inference.replies import ReplyToken
from weft.runtime.turns import served_messages
from weft.runtime.turns.served_messages import await_served
from weft.surfaces.cli.screen import Screen

pytestmark = pytest.mark.skipif(not hasattr(fcntl, "F_OFD_GETLK"), reason="brokers are not seen on this system")


@pytest.fixture(autouse=True)
def _key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("THERE_KEY", CANARY)
    monkeypatch.setenv("USER", "tester")


@pytest.fixture
def answers_here(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Which messages the command in this process answers itself. A broker has all the time that it takes, so that
    none is answered here because the machine is busy."""
    from weft.surfaces.cli import broker_call

    inner, answered = broker_call._answered_here, []

    def noted(call: object, admit: object, on_token: object, ledger: object, waiting: object) -> object:
        answered.append("new" if waiting is None else "waiting")
        return inner(call, admit, on_token, ledger, waiting)  # type: ignore[arg-type]

    monkeypatch.setattr(broker_call, "_answered_here", noted)
    monkeypatch.setattr(served_messages, "TAKING_SECONDS", 300)
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
    assert answers_here == []


def test_an_answer_is_shown_on_a_terminal_while_the_broker_hears_it(weft: Shell) -> None:
    pieces = events(chunk({"content": "Hello "}), chunk({"content": "there"}), chunk({}, "stop"), "[DONE]")
    with serving([STREAM_HEAD, *pieces, CLOSE]) as server:
        stock(weft, server.url, "talk")
        with broker(weft):
            code, shown = on_terminal(weft.folder, "send", "--session", "talk", "Begin")
    assert (code, shown.count("Hello there")) == (0, 1), shown


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


def test_what_was_shown_of_the_answer_of_a_broker_that_is_gone_is_not_shown_twice(
    weft: Shell, answers_here: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def begin_and_die(ledger: Ledger, message: str, session: str, on_token: Callable[[ReplyToken], None]) -> None:
        on_token(ReplyToken("Hello "))

    monkeypatch.setattr(served_messages, "await_served", begin_and_die)
    monkeypatch.setattr(Screen, "terminal", property(lambda _: True, lambda *_: None), raising=False)
    pieces = events(chunk({"content": "Hello "}), chunk({"content": "there"}), chunk({}, "stop"), "[DONE]")
    with serving([STREAM_HEAD, *pieces, CLOSE]) as server:
        stock(weft, server.url, "talk")
        with ledger_of(weft) as ledger:
            Runs(ledger).announce_broker()
            assert weft("send", "--session", "talk", "Begin").out == "Hello there\n"
    assert answers_here == ["waiting"]


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
            sender.send_signal(signal.SIGINT)
            assert sender.wait() == 130
            session = ledger.session("talk").id
            wait_until(ledger, lambda: Runs(ledger).standing(session).open_turn is None)
    assert weft.json("show", "talk")["interruption_reason"] == "canceled"


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

        monkeypatch.setattr(served_messages, "load_reply", begin_another)
        with pytest.raises(KeyboardInterrupt):
            await_served(ledger, message, session.id)
        standing = runs.standing(session.id)
        assert standing.open_turn is not None
        assert standing.stop is None


def test_a_message_that_no_broker_takes_is_answered_by_its_sender(
    weft: Shell, answers_here: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(served_messages, "TAKING_SECONDS", 0.05)
    monkeypatch.setattr(served_messages, "LOOK_SECONDS", 0.01)
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

    monkeypatch.setattr(served_messages, "LOOK_SECONDS", 0)
    with ledger_of(weft) as ledger, weft_package.open(ledger.path, clock=clock) as sender:
        runs, message = Runs(ledger), ledger.inbox.admit("hello", session="talk").message
        session = ledger.session("talk").id
        runs.announce_broker()
        runs.begin(session, expected=(None, None), messages=[message])
        monkeypatch.setattr(Runs, "wait_for_news", passing)
        assert await_served(sender, message, session) is None
        assert looks[-1] >= 25  # whoever renews a lease within its time is alive


def test_a_message_that_waits_for_a_person_is_left_to_whoever_can_ask_one(weft: Shell) -> None:
    with opened(weft) as ledger:
        _, message = waiting(ledger, "light")
        Runs(ledger).announce_broker()
        admitted = ledger.inbox.get(message)
        assert admitted.state == "taken"
        assert await_served(ledger, message, ledger.session("main").id) is None
