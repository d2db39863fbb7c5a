"""Resources under attack: by events of other ledgers, by agents without rights, by links and places that lead
elsewhere, by two controllers at once, and in ledgers that nobody trusts."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

import weft
from tests.faults.fork_processes import World, opened, state_at
from tests.faults.processes import Say, run
from tests.ledger.histories import exported, grow, import_into, lines, problems
from tests.sizes import share
from weft.kernel.enums import (
    MountMode,
    MoveReason,
    OwnershipReason,
    ResourceCapability,
    ResourceKind,
    SnapshotOutcome,
    VolumeMode,
)
from weft.kernel.errors import InvalidInput, NotAllowed, NotApplicable, NotFound, NotTrusted
from weft.kernel.events import ExtRef, ResourceScope
from weft.kernel.ledger_events import (
    ResourceAttached,
    ResourceDeclared,
    ResourceOwned,
    RestoreRequested,
    SessionMoved,
    SnapshotCreated,
    SnapshotDiscarded,
    SnapshotRequested,
)
from weft.ledger.api import (
    Lease,
    NewResource,
    NewSnapshot,
    Owner,
    PlannedResource,
    Resource,
    ResourceFailure,
    ResourceLog,
)
from weft.ledger.api.resources import Resources
from weft.ledger.resource_changes import UndoneMove, add_declared, stream_of_resource
from weft.ledger.write.sessions import require_session, stream_of
from weft.ledger.write.transaction import Append
from weft.programs import Programs
from weft.runtime.folder_snapshots.snapshot_changes import load_snapshot
from weft.runtime.resources.turn_files import PlanLine
from weft.store.replicas import TrustStore
from weft.surfaces.cli.turn_files import skipped_lines
from weft.verbs.branch_verbs import skipped_count

TREE = NewSnapshot(method="git_tree", external_kind="git", external_id="0" * 64)
ULID = "01M7E81W00RGHTHTD1FJHKE0KC"


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    """A session whose only turn wrote a file into a folder."""
    with opened(tmp_path) as made:
        folder = made.places / "project"
        folder.mkdir(parents=True)
        work(made, "one")
        yield made
        made.ledger.upkeep.catch_up()
        assert problems(made.ledger) == []


def work(world: World, text: str) -> str:
    """A turn that writes a text to a file, with what the folder was like before and after."""
    folder = world.places / "project"
    grow(world.ledger, "main", text)
    turn = world.ledger.resolve("main")
    known = world.log.find_at("directory", str(folder))
    resource = known or world.controller.add(world.directories, str(folder), session="main")
    world.log.record_snapshot(resource.id, world.directories.take(folder), run=turn, is_before=True)
    (folder / "a").write_text(text)
    world.log.record_snapshot(resource.id, world.directories.take(folder), run=turn)
    return turn


# --- another ledger --------------------------------------------------------------------------------------------------


def forge(append: Append, resource: Resource, snapshot: str, turn: str) -> None:
    """Whatever an event can say of a resource, in the resource's own stream."""
    stream, ref = stream_of_resource(append, resource.id), resource.id
    here = ExtRef(append.named("git", "kind"), append.put_text("0" * 64, "id"))
    stream.add(
        ResourceDeclared,
        name=append.put_text("theirs", "name"),
        resource_kind=ResourceKind.DIRECTORY,
        capabilities=(),
        place=append.put_text("/etc", "place"),
        made=True,
    )
    stream.add(ResourceOwned, resource_ref=ref, owner=ResourceScope(agent="evil"), before=None, why="migrate")
    stream.add(ResourceAttached, resource_ref=ref, mode=MountMode.RW)
    stream.add(SnapshotRequested, resource_ref=ref, snapshot_ref=append.ulids.mint())
    stream.add(
        SnapshotCreated,
        resource_ref=ref,
        snapshot_ref=append.ulids.mint(),
        outcome=SnapshotOutcome.OK,
        external_ref=here,
        run=turn,
    )
    stream.add(SnapshotDiscarded, resource_ref=ref, snapshot_ref=snapshot)
    for place in (None, "/tmp/evil"):
        new = {} if place is None else {"place": append.put_text(place, "place"), "new_resource_ref": ULID}
        stream.add(RestoreRequested, snapshot_ref=snapshot, restore=append.ulids.mint(), **new)
    stream.add(ResourceOwned, resource_ref=ref, owner=None, before=None, why=OwnershipReason.DISCARD)
    append.seal()


def test_events_of_another_ledger_change_no_resource_and_are_no_wish(world: World, tmp_path: Path) -> None:
    (resource,), turn = world.ledger.resources.list(), world.ledger.resolve("main")
    kept = world.ledger.resources.snapshots(resource.id)
    with weft.open(tmp_path / "other.db") as other:
        import_into(other, exported(world.ledger))
        other._writer.write(lambda append: forge(append, resource, kept[0].id, turn))
        import_into(world.ledger, exported(other))
    world.ledger.upkeep.catch_up()
    assert world.ledger.resources.list(include_discarded=True) == [resource]
    assert world.ledger.resources.snapshots(resource.id) == kept
    assert world.log.pending() == ([], [])
    done = world.controller.reconcile()
    assert (done.snapshots, done.restores) == ((), ())


def test_a_third_ledger_changes_nothing_of_what_another_one_declared(tmp_path: Path) -> None:
    new = NewResource(name="site", kind=ResourceKind.DIRECTORY, place="/work/site", capabilities=(), session="main")
    paths = [tmp_path / f"{name}.db" for name in ("ours", "theirs", "third")]
    with weft.open(paths[0]) as ours, weft.open(paths[1]) as theirs, weft.open(paths[2]) as third:
        grow(theirs, "main", "one")
        log = ResourceLog(theirs)
        declared = log.declare(new)
        kept = log.record_snapshot(declared.id, TREE)
        log.request_restore(kept.id)
        import_into(third, exported(theirs))
        third._writer.write(lambda append: forge(append, declared, kept.id, theirs.resolve("main")))
        import_into(ours, exported(theirs))
        before = shown_rows(ours)
        import_into(ours, exported(third))
        assert shown_rows(ours) == before, "what a third ledger says of it is kept and changes nothing"
        assert shown_rows(third)["resource"] == before["resource"], "nor does it in that ledger itself"
        theirs.resources.discard("site")
        log.discard_snapshot(kept.id)
        import_into(ours, exported(theirs))
        assert ours.resources.get(declared.id).owner is None, "the ledger that declared it is heeded"
        for ledger in (ours, third):
            ledger.upkeep.catch_up()
            assert problems(ledger) == []


def shown_rows(ledger: weft.Ledger) -> dict[str, list[Any]]:
    """What is told of resources, without the numbers of arrivals and contents, which are each ledger's own."""
    columns = {
        "resource": "id, replica, kind, capabilities, made, owner, liveness, machine, name_digest, place_digest",
        "resource_use": "resource, way, user_id, mode",
        "resource_snapshot": "id, resource, state, ref_digest",
        "resource_restore": "id, snapshot, outcome",
    }
    with ledger._store.read() as txn:
        return {
            table: txn.sql.fetch_rows(f"SELECT {names} FROM {table} ORDER BY 1", ()) for table, names in columns.items()
        }


def test_another_ledger_does_not_say_what_the_files_of_a_turn_were(world: World, tmp_path: Path) -> None:
    turn = world.ledger.resolve("main")
    after, before = world.ledger.resources.snapshots_of_turn(turn), world.ledger.resources.snapshots_before_turn(turn)
    with weft.open(tmp_path / "other.db") as other:
        import_into(other, exported(world.ledger))
        grow(other, "theirs", "x")
        log = ResourceLog(other)
        new = NewResource(name="project", kind=ResourceKind.DIRECTORY, place="/etc", capabilities=(), session="theirs")
        theirs = log.declare(new)
        for is_before in (False, True):
            log.record_snapshot(theirs.id, TREE, run=turn, is_before=is_before)
        import_into(world.ledger, exported(other))
    world.ledger.upkeep.catch_up()
    assert world.ledger.resources.snapshots_of_turn(turn) == after
    assert world.ledger.resources.snapshots_before_turn(turn) == before
    world.turn_files.undo("main")
    assert state_at(world.places / "project").keys() == {b""}


def test_no_folder_is_looked_at_because_another_ledger_names_its_place(world: World, tmp_path: Path) -> None:
    """Also not to tell what an undo of its session would change."""
    private = tmp_path / "private"
    private.mkdir()
    (private / "key").write_text("secret")
    with weft.open(tmp_path / "other.db") as other:
        (turn,) = grow(other, "theirs", "x")
        log = ResourceLog(other)
        new = NewResource(name="p", kind=ResourceKind.DIRECTORY, place=str(private), capabilities=(), session="theirs")
        theirs = log.declare(new)
        for is_before in (True, False):
            log.record_snapshot(theirs.id, TREE, run=turn, is_before=is_before)
        import_into(world.ledger, exported(other))
    kept = world.store.ids()
    claimed = tuple(world.ledger.resources.snapshots(theirs.id))
    plan = replace(world.turn_files.plan_undo("theirs"), wanted=claimed)
    named = world.ledger.resources.get(theirs.id)
    for act in (
        lambda: world.turn_files.present_changes(plan),
        lambda: world.turn_files.present_changes(plan, force=True),
        lambda: world.controller.ensure_own(named, "look at files"),
    ):
        with pytest.raises(NotApplicable, match=r"no longer|another ledger"):
            act()
    assert world.store.ids() == kept


def test_an_undo_of_another_ledger_is_not_taken_back_with_snapshots_of_this_one(world: World, tmp_path: Path) -> None:
    """It names whatever snapshots it knows: redoing it would bring them back over a folder that it has nothing to do
    with."""
    folder = world.places / "notes"
    folder.mkdir()
    (folder / "a").write_text("old")
    kept = world.controller.snapshot(world.controller.add(world.directories, str(folder)))
    (folder / "a").write_text("new")

    def claim_undo(append: Append) -> None:
        session = require_session(append, "theirs", "session:move")
        told = {"undoes": session.head, "kept": (kept.id,), "reason": append.put_text("undo", "reason")}
        stream_of(append, session).add(SessionMoved, to=None, before=session.head, why=MoveReason.MOVE, **told)
        append.seal()

    with weft.open(tmp_path / "other.db") as other:
        import_into(other, exported(world.ledger))
        grow(other, "theirs", "x")
        other._writer.write(claim_undo)
        import_into(world.ledger, exported(other))
    with pytest.raises(NotApplicable, match="nothing of session 'theirs' was undone"):
        world.turn_files.redo("theirs")
    assert (folder / "a").read_text() == "new"


@pytest.mark.parametrize(
    "told", share(["no JSON", "[" * 100_000, '"text"', '[{"more": "x"}, {"path": {}}, 1]', "{}"], test=2)
)
def test_whatever_another_ledger_tells_of_its_resources_ours_are_listed(
    world: World, tmp_path: Path, told: str
) -> None:
    (ours,) = world.ledger.resources.list()

    def declare_oddly(append: Append) -> None:
        id, odd = append.ulids.mint(), append.put_text(told, "metadata")
        stream = stream_of_resource(append, id)
        name, place = (append.put_text(text, "name") for text in ("theirs", "/theirs"))
        kind = {"resource_kind": ResourceKind.DIRECTORY, "capabilities": ()}
        stream.add(ResourceDeclared, name=name, place=place, metadata=odd, **kind)
        stream.add(ResourceOwned, resource_ref=id, owner=ResourceScope(agent="evil"), before=None, why="declared")
        kept = {"snapshot_ref": append.ulids.mint(), "outcome": SnapshotOutcome.OK, "skipped": odd}
        stream.add(SnapshotCreated, resource_ref=id, **kept)
        append.seal()

    with weft.open(tmp_path / "other.db") as other:
        other._writer.write(declare_oddly)
        import_into(world.ledger, exported(other))
    listed = world.ledger.resources.list()
    assert [one.name for one in listed] == ["project", "theirs"]
    assert world.ledger.resources.get("project") == ours
    (kept,) = world.ledger.resources.snapshots("theirs")
    assert (skipped_count(kept), skipped_lines(kept)) == (0, [])
    world.controller.reconcile()


def test_a_wish_of_another_ledger_does_not_keep_what_is_to_be_thrown_away(world: World, tmp_path: Path) -> None:
    able = (ResourceCapability.SNAPSHOT,)
    new = NewResource(name="theirs", kind=ResourceKind.DIRECTORY, place="/theirs", capabilities=able)
    with weft.open(tmp_path / "other.db") as other:
        log = ResourceLog(other)
        log.request_snapshot(log.declare(new).id)
        import_into(world.ledger, exported(other))
    assert world.log.is_quiet()
    wish = world.log.request_snapshot(world.ledger.resources.get("project").id)
    assert not world.log.is_quiet()
    world.log.record_snapshot("project", ResourceFailure("x", "y"), snapshot=wish)
    assert world.log.is_quiet()


def test_an_id_that_another_ledger_chose_does_not_hide_a_name_of_this_one(world: World, tmp_path: Path) -> None:
    folder = world.places / "backend"
    folder.mkdir()
    ours = world.controller.add(world.directories, str(folder), session="main")
    new = NewResource(name="theirs", kind=ResourceKind.DIRECTORY, place="/theirs", capabilities=())
    with weft.open(tmp_path / "other.db") as other:
        chosen = f"{ResourceLog(other).declare(new).id[:-7]}BACKEND"

        def declare_named(append: Append) -> None:
            add_declared(append, chosen, new, Owner("agent", "evil"), OwnershipReason.DECLARED)
            append.seal()

        other._writer.write(declare_named)
        import_into(world.ledger, exported(other))
    assert world.ledger.resources.get("backend") == ours
    assert world.ledger.resources.get(chosen).place == "/theirs"
    assert world.ledger.resources.get(chosen[-8:]).place == "/theirs"


# --- an agent without rights -----------------------------------------------------------------------------------------

READS = {"pending", "own_ids", "find_at", "is_begun", "tried_in", "list", "snapshots_of_turn", "snapshots_before_turn"}
"""Verbs that answer with what whoever asks may see."""
UPKEEP = {"is_held", "taken_in", "kept_beside"}
"""Asked before kept files are thrown away, in the name of the whole ledger: whoever saw less would throw away more."""
OWN_LEASES = {"renew", "let_go"}
"""Take a lease that only its holder has."""


def arguments(
    world: World, verb: Callable[..., Any], resource: Resource, snapshot: str, restore: str
) -> dict[str, Any]:
    """Something that works for whoever has the rights, for each argument by its name."""
    values = {
        "resource": resource.id,
        "part": resource.id,
        "container": resource.id,
        "session": "main",
        "at": "main",
        "turn": world.ledger.resolve("main"),
        "snapshot": snapshot,
        "restore": restore,
        "new": NewResource(name="x", kind=ResourceKind.URI, place="x:y", capabilities=(), session="main"),
        "mode": "ro",
        "role": "volume",
        "handle": ULID,
        "provider": "p",
        "provider_id": "p",
        "path": "/x",
        "status": "dead",
        "taken": ResourceFailure("x", "y"),
        "outcome": "ok",
        "plan": [PlannedResource(resource=resource.id, mode=VolumeMode.DISCARD)],
        "label": "eves",
        "expected": world.ledger.session("main").head,
        "to": None,
        "reason": "undo",
        "snapshots": [snapshot],
        "kept": [snapshot],
        "undone": UndoneMove(event="0" * 64, turn=world.ledger.resolve("main"), at_event=None, kept=(snapshot,)),
        "kind": "directory",
        "place": resource.place,
    }
    wanted = inspect.signature(verb).parameters
    chosen = {name: values[name] for name in wanted if name in values}
    if verb.__name__ in ("mount", "unmount"):
        del chosen["container"]
        chosen["run"] = values["turn"]
    if verb.__name__ == "record_unsupported_restore":
        chosen["failure"] = values["taken"]
    return chosen


def verbs(part: object) -> list[Callable[..., Any]]:
    return [verb for name, verb in inspect.getmembers(part, inspect.ismethod) if not name.startswith("_")]


def test_an_agent_without_rights_changes_and_reads_no_resource_of_another_by_any_verb(world: World) -> None:
    Programs(world.ledger).create("agent", "eve", {})
    (resource,) = world.ledger.resources.list()
    snapshot = world.ledger.resources.snapshots(resource.id)[0].id
    restore = world.log.request_restore(snapshot).id
    eve = world.ledger.acting_as("eve")
    written, tried = lines(world.ledger), 0
    for verb in (*verbs(ResourceLog(eve)), *verbs(Resources(eve))):
        if verb.__name__ in READS | UPKEEP | OWN_LEASES:
            continue
        with pytest.raises((NotFound, NotAllowed)):
            verb(**arguments(world, verb, resource, snapshot, restore))
        tried += 1
    assert tried > 25
    log = ResourceLog(eve)
    assert (log.pending(), log.find_at("directory", resource.place), eve.resources.list()) == (([], []), None, [])
    assert lines(world.ledger) == written
    world.controller.reconcile()


def test_an_agent_does_not_put_its_files_into_the_turn_of_another(world: World) -> None:
    Programs(world.ledger).create("human", "eve", {"permissions": ["session:read", "resource:change"]})
    eve, turn = world.ledger.acting_as("eve"), world.ledger.resolve("main")
    log = ResourceLog(eve)
    able = (ResourceCapability.SNAPSHOT,)
    mine = log.declare(NewResource(name="mine", kind=ResourceKind.DIRECTORY, place="/mine", capabilities=able))
    with pytest.raises((NotFound, NotAllowed)):
        log.record_snapshot(mine.id, TREE, run=turn)
    with pytest.raises((NotFound, NotAllowed)):
        log.request_snapshot(mine.id, run=turn)


def test_an_agent_without_rights_forks_and_undoes_no_files(world: World) -> None:
    Programs(world.ledger).create("agent", "eve", {})
    eve = World(world.path, world.ledger.acting_as("eve"))
    lines_of_main = world.planner.propose("main", "eves")
    before = state_at(world.places / "project")
    for act in (
        lambda: eve.planner.propose("main", "eves"),
        lambda: eve.planner.carry_out("main", "eves", lines_of_main),
        lambda: eve.turn_files.undo("main", force=True),
        lambda: eve.turn_files.redo("main", force=True),
        lambda: eve.turn_files.check_out("main"),
        lambda: eve.turn_files.check_out("main", to=str(world.places / "eves")),
        lambda: eve.controller.snapshot(lines_of_main[0].resource),
        lambda: eve.controller.discard(lines_of_main[0].resource),
    ):
        with pytest.raises((NotFound, NotAllowed)):
            act()
    assert (state_at(world.places / "project"), os.listdir(world.places)) == (before, ["project"])
    assert eve.controller.reconcile() == eve.controller.reconcile()


# --- places and links ------------------------------------------------------------------------------------------------


def planned(world: World, place: str) -> list[PlanLine]:
    (line,) = world.planner.propose("main", "alt")
    return world.planner.changed([line], None, place)


@pytest.mark.parametrize(
    "place", share(["nul\0", "project/inside", "missing/deep", "full", "file", "link", "loop", "n" * 300], test=3)
)
def test_a_plan_whose_place_is_taken_or_cannot_be_touches_nothing(world: World, place: str) -> None:
    (world.places / "full").mkdir()
    (world.places / "full" / "mine").write_text("mine")
    (world.places / "file").write_text("mine")
    (world.places / "link").symlink_to(world.places / "full")
    (world.places / "loop").symlink_to("loop")
    before = state_at(world.places)
    with suppress(InvalidInput, NotApplicable):
        forked = world.planner.carry_out("main", "alt", planned(world, str(world.places / place)))
        assert [one.outcome for one in forked.failures] == ["error"]
    assert state_at(world.places) == before
    assert world.controller.reconcile() == world.controller.reconcile()
    assert world.log.pending() == ([], [])


def test_two_copies_of_a_plan_do_not_go_to_one_place_and_none_is_relative(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(world.places)
    (line,) = planned(world, "copy")
    with pytest.raises(InvalidInput, match="one place"):
        world.planner.carry_out("main", "alt", [line, line])
    forked = world.planner.carry_out("main", "alt", [line])
    assert [one.place for one in forked.restores] == [str(world.places / "copy")]


def test_a_snapshot_of_another_resource_is_not_restored_by_a_plan(world: World) -> None:
    other = world.places / "other"
    other.mkdir()
    taken = world.controller.snapshot(world.controller.add(world.directories, str(other), session="main"))
    line = world.planner.propose("main", "alt")[0]
    wrong = PlanLine(resource=line.resource, mode=line.mode, why="", snapshot=taken, place=line.place)
    with pytest.raises(InvalidInput, match="not one of"):
        world.planner.carry_out("main", "alt", [wrong])
    with pytest.raises(NotFound):
        world.ledger.session("alt")


def test_a_folder_whose_place_became_a_link_is_neither_kept_nor_restored_nor_removed(world: World) -> None:
    folder, precious = world.places / "project", world.path / "precious"
    taken = world.ledger.resources.snapshots("project")[0]
    copy = world.controller.restore(taken, place=str(world.places / "copy"), session="main")
    made = world.ledger.resources.get(copy.new_resource or "")
    precious.mkdir()
    (precious / "mine").write_text("mine")
    for place in (folder, world.places / "copy"):
        place.rename(place.with_name(f"{place.name}-moved"))
        place.symlink_to(precious)
    before = state_at(precious)
    resource = world.ledger.resources.get("project")
    assert world.controller.snapshot(resource).error_code == "not_applicable"
    assert world.controller.restore(taken).outcome == "error"
    with pytest.raises(NotApplicable):
        world.turn_files.undo("main")
    assert world.controller.discard(made).why_left == "it is another folder than the one that Weft made"
    world.controller.reconcile()
    assert state_at(precious) == before


@pytest.mark.parametrize("is_beside", [False, True])
def test_a_link_that_comes_after_the_place_was_looked_at_is_not_followed(
    world: World, monkeypatch: pytest.MonkeyPatch, is_beside: bool
) -> None:
    """At the moment at which the store reads what it is to write."""
    place, precious = world.places / ("copy" if is_beside else "project"), world.path / "precious"
    taken = world.ledger.resources.snapshots("project")[0]
    precious.mkdir()
    if not is_beside:
        (precious / "mine").write_text("mine")
    before = state_at(precious)

    def swap(*arguments: Any) -> Any:
        if not place.is_symlink():
            place.rename(place.with_name("moved"))
            place.symlink_to(precious)
        return load_snapshot(*arguments)

    monkeypatch.setattr("weft.runtime.folder_snapshots.file_store.load_snapshot", swap)
    done = world.controller.restore(taken, place=str(place) if is_beside else None, session="main")
    assert place.is_symlink()
    assert (done.outcome, state_at(precious)) == ("error", before)


def test_a_file_whose_folder_became_a_link_is_left(world: World) -> None:
    folder, precious = world.places / "notes", world.path / "precious"
    folder.mkdir()
    (folder / "a.txt").write_text("first")
    resource = world.controller.add(world.files, str(folder / "a.txt"), session="main")
    taken = world.controller.snapshot(resource)
    folder.rename(world.places / "moved")
    precious.mkdir()
    (precious / "a.txt").write_text("mine")
    folder.symlink_to(precious)
    assert world.controller.restore(taken).outcome == "error"
    assert world.controller.snapshot(resource).error_code == "not_applicable"
    assert (precious / "a.txt").read_text() == "mine"


def test_a_copy_is_not_taken_for_what_somebody_else_put_there(world: World) -> None:
    """Also where it is byte-equal: it is not Weft's to remove later."""
    note = world.places / "note.txt"
    note.write_text("text")
    taken = world.controller.snapshot(world.controller.add(world.files, str(note), session="main"))
    (world.places / "copy.txt").write_text("text")
    assert world.controller.restore(taken, place=str(world.places / "copy.txt")).outcome == "error"
    assert [one for one in world.ledger.resources.list() if one.is_made] == []


@pytest.mark.parametrize(
    "label", share(["../../up", "a/b", "..", "new\nline", "\x1b[2J", "\u202etxt", "x" * 500, "字" * 200], test=3)
)
def test_a_label_is_only_a_part_of_a_name_of_a_new_place(world: World, label: str) -> None:
    note = world.places / "note.txt"
    note.write_text("text")
    file = world.controller.add(world.files, str(note), session="main")
    folder = world.ledger.resources.get("project")
    for driver, resource in ((world.files, file), (world.directories, folder)):
        place = Path(driver.new_place(resource, label))
        assert (place.parent, place.exists()) == (world.places, False)
        assert place.name.isprintable()
        assert len(os.fsencode(place.name)) < 100


# --- leases and trust ------------------------------------------------------------------------------------------------


def hold_and_die(say: Say, path: str) -> None:
    with opened(Path(path)) as world:
        (resource,) = world.ledger.resources.list()
        world.log.request_snapshot(resource.id)
        assert isinstance(world.log.hold(resource.id), Lease)
        os._exit(1)


def test_two_controllers_do_not_act_on_one_resource_and_a_dead_one_is_succeeded(world: World) -> None:
    (resource,) = world.ledger.resources.list()
    with weft.open(world.path / "ledger.db") as again:
        other = World(world.path, again)
        lease = other.log.hold(resource.id)
        assert isinstance(lease, Lease)
        with pytest.raises(NotApplicable, match="somebody else"):
            world.controller.snapshot(resource)
        assert world.controller.reconcile().busy == (resource.id,)
        other.log.let_go(lease)
    assert len(world.controller.reconcile().snapshots) == 1
    run(hold_and_die, str(world.path))
    assert len(world.controller.reconcile().snapshots) == 1
    assert world.log.pending() == ([], [])


def test_nothing_acts_on_resources_of_a_ledger_that_nobody_trusts(world: World, tmp_path: Path) -> None:
    (resource,), taken = world.ledger.resources.list(), world.ledger.resources.snapshots("project")[0]
    wish = world.log.request_restore(taken.id)
    before, written = state_at(world.places), lines(world.ledger)
    with weft.open(world.path / "ledger.db", trust=TrustStore(tmp_path / "trust.json")) as ledger:
        stranger = World(world.path, ledger)
        acts: list[Callable[[], object]] = [
            lambda: stranger.controller.add(stranger.directories, str(world.places), session="main"),
            lambda: stranger.controller.probe(resource),
            lambda: stranger.controller.snapshot(resource),
            lambda: stranger.controller.restore(taken),
            lambda: stranger.controller.finish_restore(wish.id),
            lambda: stranger.controller.discard(resource),
            stranger.controller.reconcile,
            lambda: stranger.planner.carry_out("main", "alt", stranger.planner.propose("main", "alt")),
            lambda: stranger.planner.propose("main", "alt"),
            lambda: stranger.controller.ensure_own(resource, "look at files"),
            lambda: stranger.turn_files.undo("main"),
            lambda: stranger.turn_files.present_changes(stranger.turn_files.plan_undo("main")),
            lambda: stranger.turn_files.check_out("main"),
            lambda: stranger.turn_files.check_out("main", to=str(world.places / "out")),
            lambda: stranger.turn_files.copy_into(taken, world.places / "out"),
        ]
        for act in acts:
            with pytest.raises(NotTrusted):
                act()
    assert (state_at(world.places), lines(world.ledger)) == (before, written)
    world.controller.reconcile()
