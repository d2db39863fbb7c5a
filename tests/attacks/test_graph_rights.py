"""An agent asks every verb of the graph about everything there is: nothing of what others have is in any answer."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

import weft
from tests.graph.histories import PASSED, TREE, new
from weft.kernel.errors import NotFound, WeftError
from weft.ledger.api.resources import ResourceLog
from weft.programs import Programs
from weft.surfaces.opening import OpenLedger

CANARY = "canary"


@pytest.fixture(scope="module")
def ledger(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OpenLedger]:
    with weft.open(tmp_path_factory.mktemp("rights") / "ledger.db") as opened:
        _tell(opened)
        yield opened


def _tell(ledger: OpenLedger) -> None:
    """What two agents have; of the second one everything has the canary in it."""
    programs = Programs(ledger)
    programs.create("agent", "ann", {"systemPrompt": "be ann"})
    programs.create("agent", "bob", {"systemPrompt": "be bob"})
    programs.create("agent", f"{CANARY}-agent", {"visibility": "private", "systemPrompt": f"{CANARY} prompt"})
    ledger.record_turn(session="anns", persona="ann", query="mine", response="yours")
    with ledger.begin_turn(session=f"{CANARY}-session", persona="bob") as turn:
        turn.message(f"{CANARY} question")
        turn.request("m", params={"stop": CANARY})
        turn.response(f"{CANARY} answer")
        turn.tool_call("look", id="c1", arguments={"path": CANARY})
        turn.tool_result("c1", CANARY)
    ledger.fork(f"{CANARY}-session", label=f"{CANARY}-fork", persona="bob")
    log = ResourceLog(ledger)
    folder = log.declare(new(f"{CANARY}-folder", session=f"{CANARY}-session"))
    log.open_handle(folder.id, "docker", CANARY)
    log.record_snapshot(folder.id, TREE, run=turn.id)
    ledger.resources.attach(folder.id, session=f"{CANARY}-session")
    policy = ledger.policies.propose(f"{CANARY}-policy", f"print('{CANARY}')", agent=f"{CANARY}-agent")
    ledger.policies.activate(policy.id, digest=policy.digest, tests=PASSED)
    ledger.rooms.create(f"{CANARY}-room", agents=["bob"])
    ledger.rooms.post(f"{CANARY}-room", f"{CANARY} said")


def everything(ledger: OpenLedger) -> list[str]:
    """The names of all nodes that there are, and of what a stranger could guess."""
    with ledger._store.read() as txn:
        keys = {key for row in txn.sql.fetch_rows("SELECT source, target FROM edge") for key in row}
    numbered = ("event", "generation", "tool_call", "tool_result", "summary")
    ids = {str(recorded.n): recorded.id for recorded in ledger.changes()}
    names = [
        f"{kind}:{ids.get(id, id)}" if kind in numbered else key for key in keys for kind, _, id in [key.partition(":")]
    ]
    bare = [f"{CANARY}-{what}" for what in ("session", "fork", "agent", "folder", "policy", "room")]
    return [*names, *bare, *(f"event:{id}" for id in ids.values()), *ids.values()]


def secret_ids(ledger: OpenLedger) -> set[str]:
    """Ids of what the agent may not read."""
    with ledger._store.read() as txn:
        queries = (
            f"SELECT id FROM session WHERE label LIKE '{CANARY}%'",
            "SELECT id FROM turn WHERE persona NOT IN (SELECT id FROM program WHERE name = 'ann')",
            f"SELECT id FROM program WHERE name LIKE '{CANARY}%'",
            "SELECT id FROM resource",
            "SELECT id FROM resource_snapshot",
            "SELECT id FROM resource_handle",
            "SELECT id FROM policy",
            "SELECT id FROM conversation",
            "SELECT id FROM room_message",
        )
        return {str(id) for query in queries for (id,) in txn.sql.fetch_rows(query)}


def asked(ledger: OpenLedger, name: str) -> Iterator[Any]:
    graph = ledger.graph
    for verb in (graph.node, graph.neighbours, graph.lineage, graph.history, graph.calls, graph.ancestry):
        yield lambda verb=verb: verb(name)
    yield lambda: graph.resources(name)
    yield lambda: graph.policies(name)
    yield lambda: graph.path("program:ann", name)
    yield lambda: graph.path(name, "local", longest=4)


@pytest.mark.slow("asks every question of the graph about every node")
def test_nothing_of_others_is_in_any_answer(ledger: OpenLedger) -> None:
    ledger.graph.catch_up()
    secrets = secret_ids(ledger)
    as_ann = ledger.acting_as("ann")
    answers: list[Any] = [as_ann.graph.resources(), as_ann.graph.policies()]
    for name in everything(ledger):
        for ask in asked(as_ann, name):
            try:
                answers.append(ask())
            except WeftError as error:
                answers.append(str(error).replace(name.partition(":")[2] or name, ""))
    text = json.dumps(msgspec.to_builtins(answers))
    assert CANARY not in text
    assert not [id for id in secrets if id in text]
    assert '"mine"' in text  # what is the agent's own is there


def test_what_may_not_be_seen_is_answered_like_what_is_not_there(ledger: OpenLedger) -> None:
    as_ann = ledger.acting_as("ann")
    for name in (
        f"{CANARY}-session",
        f"session:{CANARY}-session",
        f"program:{CANARY}-agent",
        f"policy:{CANARY}-policy",
    ):
        with pytest.raises(NotFound) as hidden:
            as_ann.graph.node(name)
        with pytest.raises(NotFound) as absent:
            as_ann.graph.node(name.replace(CANARY, "absent"))
        assert str(hidden.value).replace(CANARY, "absent") == str(absent.value)


def test_whoever_opened_the_ledger_sees_it_all(ledger: OpenLedger) -> None:
    answers = [
        ledger.graph.node(name) for name in everything(ledger) if name.startswith(("run:", "session:", "event:"))
    ]
    assert CANARY in json.dumps(msgspec.to_builtins(answers))


def test_an_agent_sees_a_room_only_while_it_takes_part(tmp_path: Path) -> None:
    with weft.open(tmp_path / "ledger.db") as ledger:
        Programs(ledger).create("agent", "ann", {})
        ledger.rooms.create("plans")
        ledger.rooms.post("plans", f"{CANARY} before")
        ledger.rooms.add("plans", "ann")
        ledger.rooms.post("plans", "with her")
        ledger.rooms.remove("plans", "ann")
        ledger.rooms.post("plans", f"{CANARY} after")
        ledger.graph.catch_up()
        as_ann = ledger.acting_as("ann")
        shown = []
        for name in everything(ledger):
            try:
                shown.append(as_ann.graph.neighbours(name))
            except WeftError:
                continue
        text = json.dumps(msgspec.to_builtins(shown))
        assert "with her" in text
        assert CANARY not in text
