"""Workers through the command line: the example that compares answers, what is shown of it and what it cost."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.runtime.inference.asking import CANARY
from tests.runtime.scripted import Script
from tests.runtime.workers.crew import Asked, call, say
from tests.surfaces.serving import serving
from tests.surfaces.shell import Shell
from tests.surfaces.test_cli_broker import stock

EXAMPLE = Path(__file__).parents[2] / "examples" / "compare-answers.yaml"
QUESTION = "Is 91 a prime number?"
SAID = {"one": "No, it is 7 times 13.", "two": "Yes.", "three": "No."}


@pytest.fixture(autouse=True)
def _key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("THERE_KEY", CANARY)


def compare(asked: Asked) -> Script:
    """What a model that does what the example's prompt says would answer."""
    name = asked.first.removeprefix(f"{QUESTION} ")
    if name in SAID:
        return say(SAID[name])
    if not asked.results:
        return call(*(("spawn", {"task": f"{QUESTION} {name}", "name": name}) for name in SAID))
    if len(asked.results) == 3:
        return call(("await_workers", {}))
    return say("; ".join(f"{one['worker']}: {one['answer']}" for one in asked.results[-1]["answers"]))


def test_three_workers_compare_their_answers(weft: Shell) -> None:
    with serving() as server:
        server.script_of = lambda body: compare(Asked(body))
        stock(weft, server.url)
        assert weft("apply", str(EXAMPLE)).code == 0
        weft.json("agent", "configure", "chair", "--model", "fast")
        answer = weft("send", "--agent", "chair", QUESTION)
        assert answer.code == 0, answer.err
        assert answer.out == "; ".join(f"worker:chair:main:{name}: {text}" for name, text in SAID.items()) + "\n"
        offered = [set(Asked(one.body).tools) for one in server.received]
        assert {"spawn", "await_workers"} in offered
        assert {"grep", "read", "spawn"} not in offered
    tree = weft.json("usage", "--tree", "chair:main")
    assert [worker["session"] for worker in tree["root"]["workers"]] == [f"worker:chair:main:{name}" for name in SAID]
    assert tree["turns"] == 4
    spent = tree["root"]["own"]["total"] + sum(worker["total"]["total"] for worker in tree["root"]["workers"])
    assert tree["root"]["total"]["total"] == spent > 0
    shown = weft("usage", "--tree", "chair:main").out
    assert "with 3 turns of workers" in shown
    assert "worker:chair:main:two" in shown
    refused = weft("send", "--session", "worker:chair:main:two", "Are you sure?")
    assert (refused.code, "is a worker's: it answers whoever spawned it" in refused.err) == (4, True)
    assert weft("usage", "--tree", "chair:main", "--by", "day").code == 2
