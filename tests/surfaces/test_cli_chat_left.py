"""What `weft chat` does about others in its session: a process that was killed there, and one that lives."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.runtime.scripted import HANG, chat_saying
from tests.surfaces.forking import Forked
from tests.surfaces.shell import Shell, running
from tests.surfaces.talking import PATIENCE, Served, serving, use
from weft.surfaces.cli.chat import conversation

STORY, HELLO = chat_saying({"content": "a story"}), chat_saying({"content": "hello"})


@pytest.fixture(autouse=True)
def _no_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ANTHROPIC_API_KEY", "OPENAI_API_KEY", "GEMINI_API_KEY", "GOOGLE_API_KEY"):
        monkeypatch.delenv(name, raising=False)


@contextmanager
def chatting(weft: Shell, served: Served, text: bytes) -> Iterator[Forked]:
    """`weft chat` in a pipe, while its model answers."""
    served.forget_hanging()
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    with running(weft.folder, "chat", "a", "--model", "scripted", **pipes) as waiting:
        assert waiting.stdin is not None
        waiting.stdin.write(text)
        waiting.stdin.close()
        waiting.stdin = None
        served.wait_hanging()
        yield waiting


def kill_inside_turn(weft: Shell, served: Served, text: bytes, by: signal.Signals) -> int | None:
    """The same, ended by a signal; the exit code."""
    with chatting(weft, served, text) as waiting:
        waiting.send_signal(by)
        waiting.communicate(timeout=PATIENCE)
        return waiting.returncode


@pytest.mark.parametrize("by", [signal.SIGTERM, signal.SIGKILL])
def test_the_next_chat_goes_on_with_the_turn_that_a_killed_one_left(weft: Shell, by: signal.Signals) -> None:
    with serving([HANG], STORY, HELLO) as served:
        use(weft, served)
        kill_inside_turn(weft, served, b"Write a story", by)
        assert [message["state"] for message in weft.json("inbox")] == ["taken"]
        assert "do: `weft broker` or `weft chat a` goes on with it" in weft("doctor").out
        answer = weft("chat", "a", "--model", "scripted", stdin="hi")
        assert (answer.code, answer.out) == (0, "hello\n"), answer.err
        assert answer.err == "before this message in session a: the turn that is open\n"
        assert served.asked() == [("user", "Write a story"), ("assistant", "a story"), ("user", "hi")]
    assert weft.json("inbox") == []
    assert [turn["status"] for turn in weft.json("log", "a")] == ["completed", "completed"]
    assert weft("verify").code == 0


def test_the_next_chat_answers_the_message_that_a_killed_one_left_waiting(weft: Shell) -> None:
    with serving(STORY, HELLO) as served:
        use(weft, served)
        assert weft("session", "create", "a", "--model", "scripted").code == 0
        weft.json("send", "--session", "a", "Write a story", "--no-wait")
        answer = weft("chat", "a", "--model", "scripted", stdin="hi")
        assert (answer.code, answer.out) == (0, "hello\n"), answer.err
        assert answer.err == "before this message in session a: 1 earlier message\n"
        assert served.asked() == [("user", "Write a story"), ("assistant", "a story"), ("user", "hi")]
    assert weft.json("inbox") == []


def test_whoever_waits_for_a_turn_that_was_left_can_leave_too(weft: Shell) -> None:
    with serving([HANG], [HANG], STORY, HELLO) as served:
        use(weft, served)
        kill_inside_turn(weft, served, b"Write a story", signal.SIGKILL)
        assert kill_inside_turn(weft, served, b"hi", signal.SIGINT) == 130
        assert [message["state"] for message in weft.json("inbox")] == ["taken"]
        assert weft("chat", "a", "--model", "scripted", stdin="hi").out == "hello\n"
    assert [turn["status"] for turn in weft.json("log", "a")] == ["completed", "completed"]
    assert weft("verify").code == 0


def test_a_turn_that_a_living_process_runs_is_named_with_what_frees_the_session(
    weft: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(conversation, "WAIT", 0.1)
    with serving([HANG], HELLO) as served:
        use(weft, served)
        with chatting(weft, served, b"Write a story") as waiting:
            answer = weft("chat", "a", "--model", "scripted", stdin="hi")
            waiting.send_signal(signal.SIGINT)
            waiting.communicate(timeout=PATIENCE)
    assert (answer.code, answer.out) == (4, "")
    turn = weft.json("show", "a")["id"]
    assert answer.err.splitlines()[1:] == [
        f"weft: session 'a' is recording turn {turn} (held by process {waiting.pid} of {os.uname().nodename})",
        "hint: wait for it, or cut it short with `weft interrupt a`; `weft inbox` lists what waits,"
        " `weft inbox --cancel ID` drops a message",
    ]
