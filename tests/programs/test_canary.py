"""What people write about programs never enters an event: a canary goes into every argument of every verb.

The arguments are read from the signatures, so that a new one fails here until somebody says what it is.
"""

import inspect
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import weft
from tests.ledger.histories import exported, lines, problems
from tests.programs.conftest import NOON
from tests.programs.stories import stocked, tell_programs
from weft.kernel.clock import FixedClock
from weft.kernel.errors import WeftError
from weft.ledger.api.ledger import Ledger
from weft.programs import Programs
from weft.programs.program_changes import WantedProgram, wanted_in

CANARY = "canary-7f3a.b"
READS = (
    "acting_as hold_agent renew_agent release_agent all get history diff check_task checks load_checkpoint query "
    "trigger_firings missed_times "
    "request requests tags tagged pending take_over refuse reconsider"
).split()
SPEC = {"inputs": [CANARY], "successCriteria": [{"type": "contains", "text": CANARY}]}

# content: recorded, and in no event.   refused: nothing is recorded.   local: steers the call and is not recorded.
EXPECTED: dict[str, dict[str, str]] = {
    "create": {"content": "name config tagged", "refused": "kind draft", "local": "key"},
    "ensure": {"content": "name config", "refused": "kind", "local": "key"},
    "create_session": {"content": "label config owner", "refused": "model", "local": "key"},
    "configure": {"content": "config reason", "refused": "name expected", "local": "key"},
    "change": {"content": "changes reason", "refused": "name expected", "local": "key"},
    "publish": {"content": "reason", "refused": "name", "local": "key"},
    "deprecate": {"content": "reason", "refused": "name", "local": "key"},
    "delete": {"content": "reason", "refused": "name expected", "local": "key"},
    "revert": {"content": "reason", "refused": "name version expected", "local": "key"},
    "assign": {"content": "session", "refused": "agent task", "local": "key"},
    "assign_task": {"refused": "task assignee", "local": "key"},
    "share_agent": {"refused": "agent principal", "local": "key"},
    "unshare_agent": {"refused": "agent principal", "local": "key"},
    "step_agent": {"content": "reason", "refused": "agent verb", "local": "key"},
    "step_trigger": {"content": "reason", "refused": "trigger verb", "local": "key"},
    "fail_agent": {"content": "message details", "name": "code", "refused": "agent", "local": "key"},
    "save_checkpoint": {"content": "state", "refused": "agent", "local": "key"},
    "give_up": {"content": "message", "name": "code", "refused": "agent"},
    "stop_work": {"content": "reason", "refused": "agent", "local": "key"},
    "start_task": {"content": "reason", "refused": "task", "local": "key"},
    "complete_task": {"content": "answer", "refused": "task agent turn", "local": "workspace run seen key"},
    "fail_task": {"content": "reason", "refused": "task", "local": "key"},
    "step_session": {"content": "reason", "refused": "session verb", "local": "key"},
    "validate": {"content": "reason", "refused": "name", "local": "key"},
    "activate": {"content": "reason", "refused": "name", "local": "key"},
    "archive": {"content": "reason", "refused": "name", "local": "key"},
    "set_presence": {"refused": "human presence", "local": "key"},
    "notify": {"content": "text data", "refused": "human program asks", "local": "key"},
    "approve": {"content": "reason", "refused": "request", "local": "key"},
    "reject": {"content": "reason", "refused": "request", "local": "key"},
    "add_tags": {"content": "given", "refused": "node", "local": "key"},
    "remove_tags": {"content": "given", "refused": "node", "local": "key"},
    "apply": {"content": "wanted", "local": "prune dry_run key"},
}


def verbs() -> dict[str, Callable[..., Any]]:
    found = {name: getattr(Programs, name) for name in dir(Programs) if not name.startswith("_")}
    return {name: value for name, value in found.items() if callable(value)}


def test_every_verb_is_known_to_record_or_not() -> None:
    assert set(verbs()) == {*READS, *EXPECTED}


@pytest.mark.parametrize("verb", EXPECTED)
def test_every_argument_of_a_verb_is_known(verb: str) -> None:
    arguments = set(inspect.signature(verbs()[verb]).parameters) - {"self"}
    assert arguments == {name for names in EXPECTED[verb].values() for name in names.split()}


def wanted() -> list[WantedProgram]:
    entry = {"id": CANARY, "programType": "human", "config": {"name": CANARY}, "tags": [CANARY]}
    return wanted_in(entry, "here")


def contents(programs: Programs, folder: Path) -> list[Callable[[], Any]]:
    """Every verb with the canary in each place that takes words."""
    bln = programs.acting_as("bln")
    asked = [programs.notify("bln", CANARY, asks=True, data={CANARY: CANARY}).id for _ in range(2)]
    why: dict[str, Any] = {"reason": CANARY, "key": CANARY}
    return [
        lambda: programs.create(
            "code", CANARY, {"source": CANARY, "metadata": {CANARY: [CANARY]}}, tagged=[CANARY], draft=True
        ),
        lambda: programs.create("agent", f"{CANARY} a", {"soul": CANARY, "identity": {"name": CANARY}}, key=CANARY),
        lambda: programs.create("task", f"{CANARY} t", {"title": CANARY, "spec": SPEC}),
        lambda: programs.create("information", f"{CANARY} i", {"infoType": "fact", "content": CANARY}, draft=True),
        lambda: programs.create(
            "provider", f"{CANARY} p", {"providerType": CANARY, "baseUrl": f"https://host/{CANARY}"}
        ),
        lambda: programs.create("human", f"{CANARY} h", {"name": CANARY, "metadata": {CANARY: CANARY}}),
        lambda: programs.create_session(f"{CANARY} s", owner=f"{CANARY} o", config={"metadata": {CANARY: CANARY}}),
        lambda: programs.change("claude-balanced", {"metadata": {CANARY: CANARY}}, reason=CANARY),
        lambda: programs.configure(CANARY, {"source": f"{CANARY} again"}, reason=CANARY),
        lambda: programs.revert(CANARY, 1, reason=CANARY),
        lambda: programs.publish(CANARY, reason=CANARY),
        lambda: programs.deprecate(CANARY, reason=CANARY),
        lambda: programs.delete(CANARY, reason=CANARY),
        lambda: programs.step_agent("researcher", "execute", reason=CANARY),
        lambda: programs.create("trigger", f"{CANARY} w", {"on": {"task": CANARY}, "message": CANARY}),
        lambda: programs.step_trigger(f"{CANARY} w", "pause", reason=CANARY),
        lambda: programs.save_checkpoint("researcher", {CANARY: CANARY}),
        lambda: programs.fail_agent("researcher", CANARY, code=f"{CANARY} code", details={CANARY: CANARY}),
        lambda: programs.step_agent("researcher", "reset"),
        lambda: programs.assign("researcher", f"{CANARY} t", session=f"{CANARY} work"),
        lambda: programs.stop_work("researcher", reason=CANARY),
        lambda: programs.create("task", "third", {"title": CANARY}),
        lambda: programs.start_task("third"),
        lambda: programs.assign("researcher", "third"),
        lambda: programs.give_up("researcher", CANARY, code=f"{CANARY} code"),
        lambda: programs.create("task", f"{CANARY} t2", {"title": CANARY, "spec": SPEC}),
        lambda: programs.start_task(f"{CANARY} t2", reason=CANARY),
        lambda: programs.complete_task(f"{CANARY} t2", answer=CANARY, workspace=folder),
        lambda: programs.fail_task("second", reason=CANARY),
        lambda: programs.step_session("talk", "resume", reason=CANARY),
        lambda: programs.validate(f"{CANARY} i", reason=CANARY),
        lambda: programs.activate(f"{CANARY} i", reason=CANARY),
        lambda: programs.archive(f"{CANARY} i", reason=CANARY),
        lambda: bln.approve(asked[0], **why | {"key": "1"}),
        lambda: bln.reject(asked[1], **why | {"key": "2"}),
        lambda: programs.add_tags("talk", CANARY, f"{CANARY} two"),
        lambda: programs.remove_tags("talk", CANARY),
        lambda: programs.apply(wanted()),
    ]


def test_words_are_contents_and_no_event_holds_them(ledger: Ledger, tmp_path: Path) -> None:
    tell_programs(ledger)
    programs = Programs(ledger)
    for call in contents(programs, tmp_path):
        before = len(lines(ledger))
        call()
        assert len(lines(ledger)) > before
    assert not any(b"canary" in line for line in lines(ledger))
    assert b"canary" in exported(ledger)


VALID: dict[str, dict[str, Any]] = {
    "create": {"kind": "human", "name": "n", "config": {}},
    "ensure": {"kind": "human", "name": "n", "config": {}},
    "create_session": {"label": "n"},
    "configure": {"name": "cf-gateway", "config": {"providerType": "x"}},
    "change": {"name": "cf-gateway", "changes": {"providerType": "x"}},
    "publish": {"name": "cf-gateway"},
    "deprecate": {"name": "cf-gateway"},
    "delete": {"name": "bln"},
    "revert": {"name": "cf-gateway", "version": 1},
    "assign": {"agent": "researcher", "task": "task-research-quantum"},
    "assign_task": {"task": "task-research-quantum", "assignee": "bln"},
    "share_agent": {"agent": "researcher", "principal": "bln"},
    "unshare_agent": {"agent": "researcher", "principal": "bln"},
    "step_agent": {"agent": "researcher", "verb": "think"},
    "step_trigger": {"trigger": "nightly", "verb": "pause"},
    "fail_agent": {"agent": "researcher", "message": "m"},
    "save_checkpoint": {"agent": "researcher", "state": 1},
    "give_up": {"agent": "researcher", "message": "m", "code": "c"},
    "stop_work": {"agent": "researcher", "reason": "r"},
    "start_task": {"task": "task-research-quantum"},
    "complete_task": {"task": "task-research-quantum"},
    "fail_task": {"task": "task-research-quantum"},
    "step_session": {"session": "main", "verb": "pause"},
    "validate": {"name": "quantum-schema"},
    "activate": {"name": "quantum-schema"},
    "archive": {"name": "quantum-schema"},
    "set_presence": {"human": "bln", "presence": "busy"},
    "notify": {"human": "bln", "text": "t"},
    "approve": {"request": "r"},
    "reject": {"request": "r"},
}
REFUSED = [(verb, argument) for verb in VALID for argument in EXPECTED[verb]["refused"].split()]


@pytest.fixture
def settled(world: Programs) -> Programs:
    world.ledger.record_turn(session="main", query="q")
    return world


@pytest.fixture(scope="module")
def settled_world() -> Iterator[Programs]:
    """One for all tests that are refused everything that they try."""
    with weft.open(":memory:", clock=FixedClock(NOON)) as ledger:
        programs = stocked(ledger)
        ledger.record_turn(session="main", query="q")
        yield programs
        assert problems(ledger) == []


@pytest.mark.parametrize(("verb", "argument"), REFUSED)
def test_what_takes_no_words_refuses_them(settled_world: Programs, verb: str, argument: str) -> None:
    """Names of things that are not there, members of closed sets, versions, flags."""
    before = len(lines(settled_world.ledger))
    with pytest.raises(WeftError):
        getattr(settled_world, verb)(**{**VALID[verb], argument: CANARY})
    assert len(lines(settled_world.ledger)) == before


@pytest.mark.parametrize("verb", ["add_tags", "remove_tags"])
def test_nothing_that_is_not_there_is_tagged(settled: Programs, verb: str) -> None:
    before = len(lines(settled.ledger))
    with pytest.raises(WeftError):
        getattr(settled, verb)(CANARY, "tag")
    assert len(lines(settled.ledger)) == before
