"""Agents at work, through the command line: assigned, shown, paused, stopped, gone on with."""

from __future__ import annotations

import signal
import subprocess

import pytest

from tests.runtime.inference.asking import CANARY
from tests.runtime.scripted import HANG, Script, chat, chat_saying, failure
from tests.surfaces.approving import opened
from tests.surfaces.serving import serving
from tests.surfaces.shell import Shell, running
from tests.surfaces.test_cli_broker import PATIENCE_SECONDS, stock, wait_until
from weft.ledger.api import Runs
from weft.programs import Programs

THERE = '{"type": "contains", "text": "there"}'
MILK = '{"type": "contains", "text": "milk"}'


@pytest.fixture(autouse=True)
def _key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("THERE_KEY", CANARY)
    monkeypatch.setenv("USER", "tester")


def hire(weft: Shell, url: str, *settings: str) -> None:
    stock(weft, url)
    fields = [word for setting in settings for word in ("--set", f"harness.{setting}")]
    assert weft("agent", "create", "ada", "--model", "fast", *fields).code == 0
    assert weft("task", "create", "Greet", "--name", "greet", "--criterion", THERE, "--criterion", MILK).code == 0


def test_assigned_work_is_shown_done_by_a_broker_and_stopped(weft: Shell) -> None:
    with serving(chat_saying({"content": "nothing"}), [HANG]) as server:
        hire(weft, server.url, "reflectOnFailure=true", "maxTokens=100000")
        empty = weft("agent", "status")
        assert (empty.code, empty.out) == (0, "")
        assert "no agent has a task; `weft agent assign NAME TASK` gives it one" in empty.err
        assert weft.json("agent", "status") == []
        assert weft.json("agent", "status", "ada")["work"] is None
        given = weft("agent", "assign", "ada", "greet")
        assert "a broker goes on with it: `weft broker` runs one" in given.err
        with running(weft.folder, "broker", stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as broker:
            with opened(weft) as ledger:
                quiet = 0
                while not server.hanging.is_set():
                    quiet = 0 if Runs(ledger).wait_for_news(ledger.newest(), 0.05) else quiet + 1
                    assert quiet * 0.05 < PATIENCE_SECONDS, "the model is not asked a second time"
            status = weft.json("agent", "status", "ada")
            work = status["work"]
            assert (status["state"], work["task"], work["doing"]) == ("thinking", "greet", "thinks")
            assert (work["turns"], work["max_turns"], work["max_tokens"]) == (2, 50, 100_000)
            assert work["tokens"] > 0
            assert [one["passed"] for one in work["criteria"]] == [False, False]
            shown = weft("agent", "status", "ada").out
            assert "  unmet      the answer contains 'milk'\n" in shown
            (line,) = weft("agent", "status").out.splitlines()
            assert line.startswith("ada on greet: thinks; 2 turns of 50, ")
            assert line.endswith("; 0 of 2 criteria hold")
            stopped = weft("agent", "stop", "ada", "--reason", "enough")
            assert (stopped.code, stopped.out) == (0, "agent ada is idle\n")
            with opened(weft) as ledger:
                wait_until(ledger, lambda: ledger.log()[0].interruption_reason is not None)
            broker.send_signal(signal.SIGTERM)
            assert broker.wait(PATIENCE_SECONDS) == 0
    with opened(weft) as ledger:
        programs = Programs(ledger)
        assert (programs.get("ada").state, programs.get("greet").state) == ("idle", "failed")
        assert programs.history("greet")[0].reason == "it was stopped: enough"
    assert weft("agent", "stop", "ada").code == 4


def test_work_that_stands_still_is_resumed_and_one_command_goes_on_with_it(weft: Shell) -> None:
    with serving(failure(400, "too hot"), chat_saying({"content": "milk there"})) as server:
        hire(weft, server.url)
        assert weft("task", "assign", "greet", "ada").code == 0
        assert weft("task", "run", "greet").code == 8
        status = weft.json("agent", "status", "ada")
        assert (status["state"], status["work"]["doing"][:14]) == ("waiting", "stands still: ")
        assert weft("agent", "resume", "ada").out == "agent ada is thinking\n"
        assert weft.json("agent", "status", "ada")["work"]["doing"] == "waits for a broker"
        assert weft("agent", "pause", "ada").code == 0
        assert weft.json("agent", "status", "ada")["work"]["doing"] == "is paused after the turn under way"
        assert weft("task", "run", "greet").code == 4
        assert weft("agent", "resume", "ada").out == "agent ada is thinking\n"
        run = weft("agent", "run", "ada", "--task", "greet")
        assert (run.code, run.out) == (0, "milk there\n"), run.err
        assert "ada checks the criteria; 2 turns of 50, " in run.err
        assert "ada took 2 turns of 50, " in run.err
        assert "task greet is completed\n" in run.err
    assert weft.json("task", "list")[0]["lifecycle"] == "completed"


def test_a_run_makes_a_task_of_its_words_and_tells_why_it_was_given_up(weft: Shell) -> None:
    with serving(chat()) as server:
        hire(weft, server.url, "maxTurns=1", "reflectOnFailure=true")
        told = weft.json("agent", "run", "ada", "Say hello")
        assert (told["text"], told["session"], told["workspace"]) == ("Hello there", "ada:main", None)
        assert (told["task"], told["task_state"], told["turns"], told["reason"]) == (
            "task-say-hello",
            "completed",
            1,
            None,
        )
        once = weft.json("agent", "run", "ada", "Say hello", "--key", "k1")
        again = weft.json("agent", "run", "ada", "Say hello", "--key", "k1")
        assert [once[name] == again[name] for name in ("message", "turn", "text", "task")] == [True] * 4
        assert (again["task_state"], len(server.received)) == ("completed", 2)
        given_up = weft("agent", "run", "ada", "--task", "greet")
        assert given_up.code == 1
        assert "task greet failed: budget: 1 turn was not enough: contains: the final answer does not" in given_up.err
        assert weft("agent", "run", "ada", "Again").code == 4  # it stands in an error
        assert weft("agent", "reset", "ada").code == 0
        assert weft("agent", "run", "ada").code == 2
        assert weft("agent", "run", "ada", "x", "--task", "greet").code == 2


def test_what_cannot_begin_is_refused_before_anything_is_recorded(weft: Shell) -> None:
    with serving(chat()) as server:
        hire(weft, server.url)
        assert weft("agent", "pause", "ada").code == 0
        assert weft("agent", "run", "ada", "Say hello").code == 4
        assert [task["id"] for task in weft.json("task", "list")] == ["greet"]
        assert weft("agent", "resume", "ada").code == 0
        assert weft("task", "create", "Write", "--criterion", '{"type": "file_exists", "path": "a"}').code == 0
        refused = weft("agent", "assign", "ada", "task-write")
        assert (refused.code, "`weft task configure task-write --in " in refused.err) == (4, True)
        assert weft("agent", "assign", "ada", "greet").code == 0
        (line,) = weft("agent", "status").out.splitlines()
        assert line.startswith("ada on greet: has not begun; "), line
        with opened(weft) as ledger:
            Programs(ledger).fail_agent("ada", "the folder is gone")
        status = weft("agent", "status", "ada")
        assert "  doing      stands in an error: the folder is gone\n" in status.out
        assert "`weft agent reset ada`" in status.err
        assert "the folder is gone" in weft("program", "history", "ada").out
        assert weft("agent", "reset", "ada").code == 0
        run = weft("task", "run", "greet")
        assert "waits for a broker" not in run.err
        assert "thinks; 1 turn of 50, 0 tokens" in run.err


def test_a_command_whose_work_is_paused_ends_as_unfinished_and_another_task_is_refused(weft: Shell) -> None:
    with serving() as server:
        hire(weft, server.url, "reflectOnFailure=true")

        def pause(body: object) -> Script:
            with opened(weft) as ledger:
                Programs(ledger).step_agent("ada", "pause")
            return chat_saying({"content": "nothing"})

        server.script_of = pause
        run = weft("agent", "run", "ada", "--task", "greet")
        assert run.code == 9, run.err
        assert "task greet is not finished: `weft agent resume ada` lets its agent go on" in run.err
        assert weft("agent", "resume", "ada").code == 0
        refused = weft("agent", "run", "ada", "Say hello")
        assert (refused.code, "agent 'ada' has the task 'greet'" in refused.err) == (4, True), refused.err
        assert [task["id"] for task in weft.json("task", "list")] == ["greet"]
        assert weft("task", "assign", "greet", "ada").code == 0
        assert weft("task", "run", "greet").code == 9


def test_a_task_keeps_its_folder_whole_wherever_it_was_made(weft: Shell) -> None:
    folder = weft.folder / "work"
    folder.mkdir()
    assert weft("task", "create", "Write", "--workspace", "work").code == 0
    assert weft.json("program", "get", "task-write")["config"]["workspace"] == str(folder.resolve())
    assert weft("task", "configure", "task-write", "--workspace", ".", "--set", "priority=P1").code == 0
    shown = weft.json("task", "show", "task-write")["config"]
    assert (shown["workspace"], shown["priority"]) == (str(weft.folder.resolve()), "P1")
    assert weft("task", "show", "task-write").out.startswith("task task-write is pending (version 2)\n{")
    assert weft("task", "create", "Read", "--workspace", "${WORK}/x").code == 0
    assert weft.json("program", "get", "task-read")["config"]["workspace"] == "${WORK}/x"
