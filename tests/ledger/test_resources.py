"""Resources: declared, owned, attached, kept as snapshots, brought back, and decided about by forks."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec import UNSET
from msgspec.structs import replace

import weft
from tests.ledger.histories import exported, grow, import_into, problems
from weft.kernel.enums import ResourceCapability, ResourceKind, SnapshotState, VolumeMode
from weft.kernel.errors import InvalidInput, LabelTaken, NotAllowed, NotApplicable, NotFound, WeftError
from weft.kernel.events import AgentForked, kind_of
from weft.kernel.ledger_events import ResourceDeclared, SnapshotCreated
from weft.ledger.api.ledger import Ledger
from weft.ledger.api.resources import ResourceLog
from weft.ledger.resource_reading import NewResource, NewSnapshot, PlannedResource, Resource, ResourceFailure
from weft.programs import Programs

ALL = tuple(ResourceCapability)
TREE = NewSnapshot(method="git_tree", external_kind="git", external_id="4b825dc6", size_bytes=12)


def new(name: str, *capabilities: ResourceCapability, session: str | None = "main") -> NewResource:
    return NewResource(
        name=name, kind=ResourceKind.DIRECTORY, place=f"/work/{name}", capabilities=capabilities, session=session
    )


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    with weft.open(tmp_path / "ledger.db") as opened:
        grow(opened, "main", "one", "two")
        yield opened
        opened.upkeep.catch_up()
        assert problems(opened) == []


def kinds(ledger: Ledger, resource: Resource) -> list[str]:
    return [kind_of(one.event) for one in ledger.changes() if one.event.stream == f"resource:{resource.id}"]  # type: ignore[arg-type]


def test_a_resource_is_found_by_its_id_its_name_and_its_place(ledger: Ledger) -> None:
    made = ResourceLog(ledger).declare(new("site", *ALL))
    for name in (made.id, made.id[-8:].lower(), "site", "/work/site"):
        assert ledger.resources.get(name) == made
    assert made.owner is not None
    assert (made.owner.kind, made.owner.name, made.scope) == ("session", "main", {"session": made.owner.id})
    assert ledger.resources.list(session="main", kind="directory") == [made]
    assert ledger.resources.list(kind="uri") == []
    with pytest.raises(NotFound):
        ledger.resources.get("elsewhere")


def test_it_is_handed_over_only_while_the_named_session_owns_it(ledger: Ledger) -> None:
    grow(ledger, "other", "three")
    grow(ledger, "third", "four")
    ResourceLog(ledger).declare(new("site", *ALL))
    ledger.resources.migrate("site", session="other", former="main")
    with pytest.raises(NotApplicable, match="'site' belongs to 'other', not to 'main'"):
        ledger.resources.migrate("site", session="third", former="main")
    owner = ledger.resources.get("site").owner
    assert owner is not None
    assert owner.name == "other"


def test_a_resource_without_a_session_belongs_to_whoever_declared_it(ledger: Ledger) -> None:
    made = ResourceLog(ledger).declare(new("notes", session=None))
    assert made.owner is not None
    assert (made.owner.kind, made.owner.id) == ("agent", "local")


def test_two_resources_of_one_name_are_told_apart_by_their_ids(ledger: Ledger) -> None:
    first, second = (ResourceLog(ledger).declare(replace(new("twin"), place=f"/work/{n}/twin")) for n in range(2))
    with pytest.raises(WeftError, match=first.id):
        ledger.resources.get("twin")
    ledger.resources.discard(first.id)
    assert ledger.resources.get("twin") == second, "one that nobody owns does not stand in the way"


def test_one_resource_stands_at_a_place(tmp_path: Path, ledger: Ledger) -> None:
    log = ResourceLog(ledger)
    first = log.declare(new("site"))
    with weft.open(tmp_path / "ledger.db") as other:
        assert ResourceLog(other).declare(new("site", session=None)) == first, "the second finds the first"
    assert log.find_at("directory", "/work/site") == first
    assert log.find_at("file", "/work/site") is None
    assert log.declare(replace(new("site"), kind=ResourceKind.FILE)).id != first.id
    ledger.resources.discard(first.id)
    assert log.find_at("directory", "/work/site") is None
    again = log.declare(new("site"))
    assert again.id != first.id
    log.take_over(first.id, "main")
    assert log.find_at("directory", "/work/site") == again, "the newest of two that stand there"
    ledger.resources.discard(again.id)
    found = log.find_at("directory", "/work/site")
    assert found is not None
    assert found.id == first.id
    log.describe(first.id, new("moved"))
    assert log.find_at("directory", "/work/site") is None
    moved = log.find_at("directory", "/work/moved")
    assert moved is not None
    assert moved.id == first.id


def test_the_same_path_of_two_machines_is_two_places(ledger: Ledger) -> None:
    log = ResourceLog(ledger)
    here, there = (log.declare(replace(new("site"), machine=machine)) for machine in ("0" * 26, "1" * 26))
    assert here.id != there.id
    assert (here.machine, there.machine) == ("0" * 26, "1" * 26)
    assert log.find_at("directory", "/work/site", "0" * 26) == here
    assert log.find_at("directory", "/work/site", "2" * 26) is None
    assert log.find_at("directory", "/work/site") is None
    unbound = log.declare(new("site"))
    assert log.find_at("directory", "/work/site", "2" * 26) == unbound


def test_what_another_ledger_says_of_a_place_changes_nothing_there(tmp_path: Path, ledger: Ledger) -> None:
    log = ResourceLog(ledger)
    with weft.open(tmp_path / "other.db") as other:
        grow(other, "main", "one")
        theirs = ResourceLog(other).declare(new("site"))
        import_into(ledger, exported(other))
        assert log.find_at("directory", "/work/site") is None
        ours = log.declare(new("site"))
        assert ours.id != theirs.id
        ResourceLog(other).describe(theirs.id, new("site", *ALL))
        import_into(ledger, exported(other))
    assert log.find_at("directory", "/work/site") == ours
    assert ledger.resources.get("site") == ours


def test_places_of_a_history_that_says_one_twice_can_be_made_anew(ledger: Ledger) -> None:
    log = ResourceLog(ledger)
    first, second = log.declare(new("site")), log.declare(new("elsewhere"))
    log.describe(second.id, new("site"))
    with ledger._store.read() as txn:
        rows = txn.sql.fetch_rows("SELECT id, stands FROM resource ORDER BY n", ())
    assert rows == [(first.id, None), (second.id, 1)]
    ledger._store.write(lambda txn: txn.sql.run("UPDATE resource SET stands = NULL, place_digest = NULL"))
    assert log.find_at("directory", "/work/site") is None
    ledger.upkeep.rebuild()
    found = log.find_at("directory", "/work/site")
    assert found is not None
    assert found.id == second.id


def test_what_is_erased_finds_nothing_any_more(ledger: Ledger) -> None:
    log = ResourceLog(ledger)
    made = log.declare(new("site"))
    kept = log.record_snapshot(made.id, TREE)
    events = [one.event for one in ledger.changes() if one.event.stream == f"resource:{made.id}"]
    declared = next(one for one in events if isinstance(one, ResourceDeclared))
    taken = next(one for one in events if isinstance(one, SnapshotCreated))
    assert taken.external_ref is not UNSET
    ledger.erasure.erase([declared.place, declared.name, taken.external_ref.id], reason="a test", everywhere=True)
    with ledger._store.read() as txn:
        columns = "SELECT name_digest, place_digest, stands FROM resource"
        assert txn.sql.fetch_rows(columns, ()) == [(None, None, None)], "a digest would let a short text be guessed"
        assert txn.sql.fetch_rows("SELECT ref_digest FROM resource_snapshot", ()) == [(None,)]
    assert log.find_at("directory", "/work/site") is None
    assert not log.is_held("git", "4b825dc6")
    assert ledger.resources.snapshot(kept.id).state is SnapshotState.OK


def test_what_a_resource_is_can_be_said_anew(ledger: Ledger) -> None:
    made = ResourceLog(ledger).declare(new("site", *ALL))
    described = ResourceLog(ledger).describe(made.id, new("site", ResourceCapability.SHARE))
    assert described.capabilities == (ResourceCapability.SHARE,)
    assert described.owner == made.owner


def test_it_has_one_owner_and_only_what_can_change_hands_does(ledger: Ledger) -> None:
    grow(ledger, "other", "three")
    ResourceLog(ledger).declare(new("fixed", ResourceCapability.SNAPSHOT))
    with pytest.raises(NotApplicable, match="unsupported"):
        ledger.resources.migrate("fixed", session="other")
    ResourceLog(ledger).declare(new("loose", ResourceCapability.MIGRATE))
    ledger.resources.attach("loose", session="main")
    moved = ledger.resources.migrate("loose", session="other")
    assert moved.owner is not None
    assert moved.owner.name == "other"
    assert moved.uses == (), "who wrote to it before does no more"
    with pytest.raises(NotApplicable, match="already"):
        ledger.resources.migrate("loose", session="other")


def test_others_have_it_read_only_and_only_where_it_can_be_shared(ledger: Ledger) -> None:
    grow(ledger, "other", "three")
    ResourceLog(ledger).declare(new("shared", ResourceCapability.SHARE))
    ResourceLog(ledger).declare(new("alone"))
    assert ledger.resources.attach("shared", session="main").uses[0].mode == "rw"
    with pytest.raises(NotApplicable, match="who alone writes"):
        ledger.resources.attach("shared", session="other")
    both = ledger.resources.attach("shared", mode="ro", session="other")
    assert [(use.user.name, use.mode) for use in both.uses] == [("main", "rw"), ("other", "ro")]
    with pytest.raises(NotApplicable, match="unsupported"):
        ledger.resources.attach("alone", mode="ro", session="other")
    assert len(ledger.resources.detach("shared", session="other").uses) == 1
    with pytest.raises(NotApplicable, match="not attached"):
        ledger.resources.detach("shared", session="other")


def test_it_is_attached_to_and_mounted_in_a_run_of_its_owner(ledger: Ledger) -> None:
    ResourceLog(ledger).declare(new("site", *ALL))
    run = ledger.resolve("main")
    ledger.resources.attach("site", run=run)
    mounted = ResourceLog(ledger).mount("site", "/workspace", mode="ro", run=run)
    assert [(use.way, use.user.kind, use.mount) for use in mounted.uses] == [
        ("attached", "run", None),
        ("mounted", "run", "/workspace"),
    ]
    assert len(ResourceLog(ledger).unmount("site", run=run).uses) == 1
    with pytest.raises(NotApplicable, match="not mounted"):
        ResourceLog(ledger).unmount("site", run=run)
    with pytest.raises(InvalidInput, match="a run's or a container's"):
        ResourceLog(ledger).mount("site", "/workspace")


def test_parts_and_handles_are_told_of(ledger: Ledger) -> None:
    container = ResourceLog(ledger).declare(new("box"))
    volume = ResourceLog(ledger).declare(new("data"))
    whole = ResourceLog(ledger).add_part("box", "data", role="volume")
    assert [(part.resource, part.part) for part in whole.parts] == [(volume.id, "volume")]
    ResourceLog(ledger).mount("data", "/data", container="box")
    handle = ResourceLog(ledger).open_handle("box", "docker", "f00d", capabilities=["exec", "logs"])
    assert ResourceLog(ledger).open_handle("box", "docker", "f00d") == handle
    (open_handle,) = ledger.resources.get("box").handles
    assert (open_handle.provider_id, open_handle.capabilities, open_handle.restorable) == (
        "f00d",
        ("exec", "logs"),
        False,
    )
    assert ResourceLog(ledger).close_handle("box", handle, reason="gone").handles == ()
    with pytest.raises(NotFound):
        ResourceLog(ledger).close_handle("box", handle)
    assert ResourceLog(ledger).remove_part("box", "data").parts == ()
    with pytest.raises(NotApplicable, match="no part"):
        ResourceLog(ledger).remove_part("box", "data")
    assert kinds(ledger, container) == [
        "resource_declared",
        "resource_owned",
        "subresource_added",
        "handle_opened",
        "handle_closed",
        "subresource_removed",
    ]


def test_a_probe_says_whether_it_is_alive(ledger: Ledger) -> None:
    assert ResourceLog(ledger).declare(new("site")).liveness == "unknown"
    probed = ResourceLog(ledger).record_probe("site", "dead")
    assert (probed.liveness, probed.probed_at is not None) == ("dead", True)


def test_a_snapshot_is_wanted_and_then_taken_once(ledger: Ledger) -> None:
    ResourceLog(ledger).declare(new("site", ResourceCapability.SNAPSHOT))
    wish = ResourceLog(ledger).request_snapshot("site")
    assert [one.id for one in ResourceLog(ledger).pending()[0]] == [wish]
    taken = ResourceLog(ledger).record_snapshot("site", TREE, snapshot=wish, run=ledger.resolve("main"))
    assert (taken.id, taken.state, taken.external_id, taken.restorable) == (wish, SnapshotState.OK, "4b825dc6", True)
    assert ResourceLog(ledger).pending() == ([], [])
    again = ResourceLog(ledger).record_snapshot("site", ResourceFailure("late", "too late"), snapshot=wish)
    assert again == taken, "the first outcome counts"
    assert ledger.resources.snapshots("site") == [taken]


def test_a_snapshot_that_failed_says_why(ledger: Ledger) -> None:
    ResourceLog(ledger).declare(new("site", ResourceCapability.SNAPSHOT))
    failed = ResourceLog(ledger).record_snapshot("site", ResourceFailure("disk_full", "no room"))
    assert (failed.state, failed.error_code, failed.error, failed.restorable) == (
        "error",
        "disk_full",
        "no room",
        False,
    )
    with pytest.raises(NotApplicable, match="nothing to restore"):
        ResourceLog(ledger).request_restore(failed.id)


def test_no_snapshot_is_wanted_of_what_has_none(ledger: Ledger) -> None:
    ResourceLog(ledger).declare(new("live"))
    with pytest.raises(NotApplicable, match="unsupported"):
        ResourceLog(ledger).request_snapshot("live")


def test_the_files_of_a_turn_are_the_nearest_snapshot_before_it(ledger: Ledger) -> None:
    ResourceLog(ledger).declare(new("site", ResourceCapability.SNAPSHOT))
    first, second = ledger.resolve("main~1"), ledger.resolve("main")
    assert ledger.resources.snapshots_of_turn(first) == []
    early = ResourceLog(ledger).record_snapshot("site", TREE, run=first)
    assert ledger.resources.snapshots_of_turn(second) == [early]
    late = ResourceLog(ledger).record_snapshot("site", TREE, run=second)
    grow(ledger, "main", "three")
    assert ledger.resources.snapshots_of_turn("main") == [late]
    ledger.fork(first, label="alt")
    grow(ledger, "alt", "elsewhere")
    assert ledger.resources.snapshots_of_turn("alt") == [early], "another branch has its own past"
    ResourceLog(ledger).discard_snapshot(late.id, reason="private")
    assert ledger.resources.snapshots_of_turn("main") == [early]


def test_a_restore_makes_a_new_resource_in_one_step(ledger: Ledger) -> None:
    ResourceLog(ledger).declare(new("site", *ALL))
    taken = ResourceLog(ledger).record_snapshot("site", TREE)
    wish = ResourceLog(ledger).request_restore(taken.id, place="/work/copy")
    assert [one.id for one in ResourceLog(ledger).pending()[1]] == [wish.id]
    done = ResourceLog(ledger).record_restore(wish.id, "ok", new=new("copy", *ALL))
    assert (done.outcome, done.new_resource) == ("ok", ledger.resources.get("copy").id)
    assert ledger.resources.get("copy").owner == ledger.resources.get("site").owner
    assert ResourceLog(ledger).record_restore(wish.id, "error") == done, "the first outcome counts"


def test_a_restore_that_fails_is_recorded_with_what_was_undone(ledger: Ledger) -> None:
    site = ResourceLog(ledger).declare(new("site", *ALL))
    taken = ResourceLog(ledger).record_snapshot("site", TREE)
    wish = ResourceLog(ledger).request_restore(taken.id, place="/work/copy")
    failed = ResourceLog(ledger).record_restore(
        wish.id, "error", failure=ResourceFailure("disk_full", "no room"), compensation="the folder was removed"
    )
    assert (failed.outcome, failed.error) == ("error", "no room")
    assert kinds(ledger, site)[-2:] == ["restore_attempted", "compensation_recorded"]
    assert len(ledger.resources.list()) == 1


def test_a_fork_decides_about_resources_in_one_fact(ledger: Ledger) -> None:
    for name in ("kept", "moved", "copied", "gone"):
        ResourceLog(ledger).declare(new(name, *ALL))
    taken = ResourceLog(ledger).record_snapshot("copied", TREE, run=ledger.resolve("main"))
    plan = [
        PlannedResource(resource="kept", mode=VolumeMode.KEEP),
        PlannedResource(resource="moved", mode=VolumeMode.KEEP, is_kept_by_fork=True),
        PlannedResource(resource="copied", mode=VolumeMode.SNAPSHOT, snapshot=taken.id, place="/work/alt"),
        PlannedResource(resource="gone", mode=VolumeMode.DISCARD),
    ]
    fork = ResourceLog(ledger).fork("main", plan, label="alt")
    owners = {one.name: one.owner and one.owner.name for one in ledger.resources.list(include_discarded=True)}
    assert owners == {"kept": "main", "moved": "alt", "copied": "main", "gone": None}
    (wish,) = ResourceLog(ledger).pending()[1]
    assert (wish.id, wish.place, wish.owner and wish.owner.name) == (fork.restores[0], "/work/alt", "alt")
    (forked,) = [one.event for one in ledger.changes() if isinstance(one.event, AgentForked)]
    assert forked.volume_plan is not UNSET
    assert [line.mode for line in forked.volume_plan] == ["keep", "keep", "snapshot", "discard"]
    assert forked.volume_plan[1].kept_by == fork.session


@pytest.mark.parametrize("is_kept_by_fork", [False, True])
def test_what_a_fork_kept_with_one_branch_is_taken_over_by_the_other_only_when_it_is_migrated(
    ledger: Ledger, is_kept_by_fork: bool
) -> None:
    log = ResourceLog(ledger)
    site = log.declare(new("site", *ALL))
    plan = [PlannedResource(resource=site.id, mode=VolumeMode.KEEP, is_kept_by_fork=is_kept_by_fork)]
    log.fork("main", plan, label="alt")
    keeper, other = ("alt", "main") if is_kept_by_fork else ("main", "alt")
    assert ([each.name for each in log.kept_from(other)], log.kept_from(keeper)) == (["site"], [])
    log.take_over("site", keeper)
    with pytest.raises(NotApplicable, match=f"kept 'site' with session '{keeper}'.*migrated") as refused:
        log.take_over("site", other)
    assert refused.value.advice.arguments == {"resource": "site", "session": other}
    ledger.resources.migrate("site", session=other)
    log.take_over("site", other)
    with pytest.raises(NotApplicable, match=f"with session '{other}'"):
        log.take_over("site", keeper)
    grow(ledger, "other", "one")
    log.take_over("site", "other")  # of another thread: the fork said nothing about it
    ledger.resources.migrate("site", session=other)
    ledger.labels.delete(other)
    log.take_over("site", keeper)
    assert list(ledger.verify()) == []


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ({"mode": VolumeMode.SNAPSHOT}, "names no snapshot"),
        ({"mode": VolumeMode.SNAPSHOT, "snapshot": "other", "place": "/x"}, "not one of"),
        ({"mode": VolumeMode.SNAPSHOT, "snapshot": "fixed", "place": "/x"}, "cannot be restored"),
    ],
)
def test_a_plan_that_cannot_be_carried_out_makes_no_fork(ledger: Ledger, line: dict[str, str], why: str) -> None:
    ResourceLog(ledger).declare(new("site", *ALL))
    ResourceLog(ledger).declare(new("other", *ALL))
    made = {
        "other": ResourceLog(ledger).record_snapshot("other", TREE).id,
        "fixed": ResourceLog(ledger)
        .record_snapshot("site", NewSnapshot(method="ram", external_kind="ram", external_id="1", restorable=False))
        .id,
    }
    planned = PlannedResource(resource="site", **{**line, "snapshot": made.get(line.get("snapshot", ""))})  # type: ignore[arg-type]
    with pytest.raises(WeftError, match=why):
        ResourceLog(ledger).fork("main", [planned], label="alt")
    with pytest.raises(NotFound):
        ledger.session("alt")


def test_a_plan_names_each_resource_once_and_the_label_is_free(ledger: Ledger) -> None:
    ResourceLog(ledger).declare(new("site", *ALL))
    planned = PlannedResource(resource="site", mode=VolumeMode.KEEP)
    with pytest.raises(InvalidInput, match="twice"):
        ResourceLog(ledger).fork("main", [planned, planned], label="alt")
    with pytest.raises(LabelTaken):
        ResourceLog(ledger).fork("main", [planned], label="main")


def test_what_is_discarded_is_used_by_nobody(ledger: Ledger) -> None:
    ResourceLog(ledger).declare(new("site", *ALL))
    ledger.resources.attach("site", session="main")
    ResourceLog(ledger).open_handle("site", "docker", "f00d")
    gone = ledger.resources.discard("site")
    assert (gone.owner, gone.uses, gone.handles) == (None, (), ())
    assert ledger.resources.list() == []
    for act in (
        lambda: ledger.resources.discard(gone.id),
        lambda: ledger.resources.attach(gone.id, session="main"),
        lambda: ResourceLog(ledger).request_snapshot(gone.id),
    ):
        with pytest.raises(NotApplicable, match="discarded"):
            act()


def test_an_agent_reads_and_changes_only_its_own(ledger: Ledger) -> None:
    Programs(ledger).create("agent", "ada", {})
    ResourceLog(ledger).declare(new("site", *ALL))
    ada = ledger.acting_as("ada")
    assert ada.resources.list() == []
    with pytest.raises(NotFound):
        ada.resources.get("site")
    with pytest.raises(NotFound):
        ada.resources.discard("site")
    with pytest.raises((NotFound, NotAllowed)):
        ResourceLog(ada).declare(new("mine", session="main"))
    mine = ResourceLog(ada).declare(new("mine", session=None))
    assert ada.resources.list() == [mine]


def test_what_another_ledger_declared_is_read_and_not_acted_on(ledger: Ledger, tmp_path: Path) -> None:
    with weft.open(tmp_path / "other.db") as other:
        grow(other, "theirs", "x")
        made = ResourceLog(other).declare(new("site", *ALL, session="theirs"))
        wish = ResourceLog(other).request_snapshot("site")
        import_into(ledger, exported(other))
    there = ledger.resources.get(made.id)
    assert not there.is_own
    assert ResourceLog(ledger).pending() == ([], []), "what another ledger wants is not done here"
    with pytest.raises(NotApplicable, match="another ledger"):
        ResourceLog(ledger).record_snapshot(made.id, TREE, snapshot=wish)
