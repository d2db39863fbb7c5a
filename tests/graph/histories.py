"""A history in which every type of edge occurs."""

from typing import Any

from tests.ledger.test_workers import with_workers
from tests.programs.stories import stocked
from weft.kernel.enums import ResourceCapability, ResourceKind
from weft.kernel.events import EventRef, ExtRef, PolicyTests, SnapshotMaterialized, Substitution, ledger_stream
from weft.ledger.api.ledger import Ledger
from weft.ledger.api.resources import ResourceLog
from weft.ledger.broker.run_writer import record_resource_change
from weft.ledger.resource_reading import NewResource, NewSnapshot
from weft.ledger.write.transaction import Append

TREE = NewSnapshot(method="git_tree", external_kind="git", external_id="4b825dc6", size_bytes=12)
PASSED = PolicyTests(total=1, passed=1, failed=0)


def tell_everything(ledger: Ledger) -> dict[str, str]:
    """Turns, tools, forks, subagents, resources and policies; names for some of them."""
    stocked(ledger)
    names = tell_turns(ledger)
    names |= tell_of_resources(ledger, names["turn"])
    names |= tell_of_policies(ledger)
    with_workers(ledger, 1, "led")
    record_resource_change(ledger._writer, "runtime", "resource://notes")
    return names


def tell_turns(ledger: Ledger) -> dict[str, str]:
    with ledger.begin_turn(session="main") as turn:
        question = turn.message("what is there?")
        request = turn.request("m", input=[question])
        turn.response("I look")
        turn.tool_call("ls", id="c1", arguments={"path": "."})
        turn.tool_result("c1", {"rc": 0, "stdout": "a\n"})
        again = turn.request("m", input={"base": request, "keep": 1, "then": []})
        turn.response("there is a")
    with ledger.begin_turn(session="main") as second:
        second.tool_call("sleep", id="c2")
        second.interrupt("timeout")
    ledger.fork("main~1", label="other")
    ledger.compactions.record(session="main", summary="they looked")
    first = next(iter(ledger.events(turn.id))).id
    tell_ledger(
        ledger,
        (Substitution, {"original_event": EventRef(request), "replacement_event": EventRef(again)}),
    )
    return {"turn": turn.id, "request": request, "again": again, "first": first, "question": question}


def tell_ledger(ledger: Ledger, *events: tuple[Any, dict[str, Any]]) -> None:
    """Events of the ledger's own stream."""

    def work(append: Append) -> None:
        name = ledger_stream(append.replica)
        tip = append.sql.fetch_row("SELECT last FROM stream_tip WHERE stream = ?", (name,))
        stream = append.stream(name, bytes(tip[0]).hex() if tip else None)
        for kind, fields in events:
            stream.add(kind, **fields)
        append.seal()

    ledger._writer.write(work)


def materialize(ledger: Ledger, turn: str) -> str:
    """A transcript of a turn was written for showing; its id."""
    made: list[str] = []

    def work(append: Append) -> None:
        made[:] = [append.ulids.mint()]
        name = ledger_stream(append.replica)
        tip = append.sql.fetch_row("SELECT last FROM stream_tip WHERE stream = ?", (name,))
        place = ExtRef(kind="file", id=append.ledger_contents.put_text("/tmp/transcript.md"))
        append.stream(name, bytes(tip[0]).hex() if tip else None).add(
            SnapshotMaterialized, materialization=made[0], content_ref=place, run=turn
        )
        append.seal()

    ledger._writer.write(work)
    return made[0]


def new(name: str, kind: ResourceKind = ResourceKind.DIRECTORY, session: str | None = "main") -> NewResource:
    return NewResource(
        name=name, kind=kind, place=f"/work/{name}", capabilities=tuple(ResourceCapability), session=session
    )


def tell_of_resources(ledger: Ledger, turn: str) -> dict[str, str]:
    log = ResourceLog(ledger)
    folder = log.declare(new("folder"))
    container = log.declare(new("box", ResourceKind.DOCKER_CONTAINER))
    volume = log.declare(new("volume", ResourceKind.DOCKER_VOLUME))
    log.add_part(container.id, volume.id, role="volume")
    ledger.resources.attach(folder.id, session="main")
    ledger.resources.detach(folder.id, session="main")
    ledger.resources.attach(folder.id, session="main")
    log.mount(volume.id, "/data", container=container.id)
    log.unmount(volume.id, container=container.id)
    handle = log.open_handle(container.id, "docker", "abc", capabilities=["exec"])
    log.close_handle(container.id, handle)
    snapshot = log.record_snapshot(folder.id, TREE, run=turn)
    restore = log.request_restore(snapshot.id, place="/work/copy", session="main")
    log.record_restore(restore.id, "ok", new=new("copy"))
    ledger.resources.migrate(folder.id, session="other")
    return {
        "folder": folder.id,
        "container": container.id,
        "volume": volume.id,
        "handle": handle,
        "snapshot": snapshot.id,
        "materialization": materialize(ledger, turn),
    }


def tell_of_policies(ledger: Ledger) -> dict[str, str]:
    careful = ledger.policies.propose("careful", "print(1)")
    careless = ledger.policies.propose("careless", "print(2)")
    for policy in (careful, careless):
        ledger.policies.activate(policy.id, digest=policy.digest, tests=PASSED)
    ledger.policies.roll_back(careful.id, digest=careful.digest)
    return {"careful": careful.id, "careless": careless.id}
