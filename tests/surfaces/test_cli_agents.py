"""Several processes and one agent: its steps are those of one of them."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from tests.runtime.inference.asking import CANARY
from tests.runtime.scripted import HANG, HOLD, Script, Scripted, chat
from tests.surfaces.serving import serving
from tests.surfaces.shell import Shell, running, spawn

ONE_RUN = ["agent_task_assigned", "agent_thinking", "agent_executing", "agent_completed"]


def hire(weft: Shell, monkeypatch: pytest.MonkeyPatch, server: Scripted) -> None:
    monkeypatch.setenv("THERE_KEY", CANARY)
    for words in (
        f"provider create there --type openai-compatible --base-url {server.url} --key-env THERE_KEY",
        "model create fast --backend m-1 --provider there",
        "agent create ada --prompt x --model fast",
        "task create greet --name greet --assignee ada",
    ):
        made = weft(*words.split())
        assert made.code == 0, made.err


def steps(weft: Shell) -> list[str]:
    return [one["kind"] for one in reversed(weft.json("program", "history", "ada"))][1:]


@pytest.fixture
def talking(weft: Shell, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[Scripted]:
    scripts: list[Script] = request.param
    with serving(*scripts) as server:
        hire(weft, monkeypatch, server)
        yield server


@pytest.mark.parametrize("talking", [[[HANG], chat()]], indirect=True)
def test_a_second_process_is_refused_while_the_first_lives_and_goes_on_when_it_is_dead(
    weft: Shell, talking: Scripted
) -> None:
    with running(weft.folder, "task", "run", "greet", stdout=subprocess.DEVNULL) as first:
        while not talking.received:  # it has asked its model and waits
            assert first.poll() is None
            time.sleep(0.02)
        before = steps(weft)
        second = spawn(weft.folder, "task", "run", "greet")
        assert second.returncode == 4
        assert b"is at work" in second.stderr
        assert steps(weft) == before == ["agent_task_assigned", "agent_thinking"]
        assert len(talking.received) == 1
    third = spawn(weft.folder, "task", "run", "greet")
    assert third.returncode == 0, third.stderr
    assert steps(weft) == ONE_RUN  # it goes on with the turn of the first


@pytest.mark.parametrize("talking", [[[HOLD, *chat()]]], indirect=True)
def test_of_processes_that_begin_together_one_does_the_work(weft: Shell, talking: Scripted) -> None:
    with ExitStack() as stack:
        both = [
            stack.enter_context(
                running(weft.folder, "task", "run", "greet", stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
            )
            for _ in range(2)
        ]
        while all(program.poll() is None for program in both):  # the one that asks its model waits for the other's end
            time.sleep(0.02)
        talking.release()
        errors = [program.communicate(timeout=300)[1] for program in both]
        assert sorted(program.wait() for program in both) == [0, 4], errors
    assert steps(weft) == ONE_RUN
    assert len(talking.received) == 1


def test_who_can_mention_a_new_agent_is_shown_and_chosen_by_an_option(weft: Shell) -> None:
    made = weft("agent", "create", "ada")
    assert made.out == "agent ada is idle\n"
    assert (
        "public: everybody in this ledger can mention it; `--private` makes one that only its creator can" in made.err
    )
    assert "`weft agent visibility ada private` changes this one" in made.err
    assert "public: everybody" in weft("agent", "create", "bea", "--public").err
    hidden = weft("agent", "create", "cid", "--private")
    assert "private: only its creator and those it is shared with can mention it" in hidden.err
    assert {one["id"]: one["config"].get("visibility") for one in weft.json("agent", "list")} == {
        "ada": None,
        "bea": "public",
        "cid": "private",
    }
    assert weft("human", "create", "bln", "--name", "Brian").code == 0
    assert weft.json("program", "get", "bln")["config"]["name"] == "Brian"
