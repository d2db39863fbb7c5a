"""Volumes, containers and images as resources of a ledger, through the controller, on a real engine."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import weft
from tests.ledger.histories import grow, problems
from tests.runtime.resources.docker.running import Runner, file, packed, why_no_checkpoints
from weft.graph.graph import Graph
from weft.kernel.enums import ResourceKind, ResourceLiveness, RestoreOutcome, SnapshotState, SubresourcePart
from weft.kernel.errors import EngineObjectMissing, Unsupported
from weft.ledger.api import Ledger
from weft.runtime.resources.container_engine import ContainerEngine
from weft.runtime.resources.controller import RecordedDescriptions, ResourceController
from weft.runtime.resources.docker_drivers import CONTAINER, IMAGE, VOLUME, docker_drivers
from weft.runtime.resources.drivers import Drivers
from weft.runtime.resources.engine_containers import ContainerCheckpoints
from weft.runtime.resources.engine_volumes import DockerImages
from weft.runtime.resources.local_drivers import UriDriver
from weft.runtime.resources.tar_archives import ArchiveStore
from weft.runtime.resources.turn_files import ForkPlanner


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    with weft.open(tmp_path / "ledger.db") as opened:
        grow(opened, "main", "one")
        yield opened
        opened.upkeep.catch_up()
        assert problems(opened) == []


@pytest.fixture
def controller(ledger: Ledger, engine: ContainerEngine, store: ArchiveStore, image: str) -> ResourceController:
    return ResourceController(ledger, Drivers(*docker_drivers(lambda: engine, store, tar_image=image), UriDriver()))


def text_in(controller: ResourceController, container: str, path: str) -> str:
    return controller.drivers.handle(ResourceKind.DOCKER_CONTAINER, container).exec(["/bin/cat", path]).stdout


def test_a_volume_is_kept_and_brought_back_as_a_new_one(
    ledger: Ledger, controller: ResourceController, run: Runner
) -> None:
    volume = run.volume(packed(file("a.txt", "one")))
    driver = controller.drivers.of(ResourceKind.DOCKER_VOLUME)
    resource = controller.add(driver, VOLUME + volume, session="main")
    assert (resource.name, resource.place) == (volume, VOLUME + volume)
    assert controller.probe(resource) is ResourceLiveness.ALIVE
    taken = controller.snapshot(resource)
    assert (taken.state, taken.method, taken.external_kind) == (SnapshotState.OK, "docker_volume_tar", "tar")
    (line,) = ForkPlanner(ledger, controller.drivers).propose("main", "alt")
    assert "always as a new one: it cannot be restored in place" in line.why
    ledger.fork("main", label="alt")
    place = driver.new_place(resource, "alt")
    assert place == f"{VOLUME}{volume}-alt"
    done = controller.restore(taken, place=place, session="alt")
    assert done.outcome is RestoreOutcome.OK, done.error
    (copy,) = ledger.resources.list(session="alt")
    run.forget_later(copy.place.removeprefix(VOLUME))
    assert (copy.place, copy.is_made) == (place, True)
    assert driver.new_place(resource, "alt") == f"{place}-2"
    reader = run.started(["/bin/sleep", "100"], volume=copy.place.removeprefix(VOLUME))
    assert text_in(controller, reader, "/data/a.txt") == "one"
    run.remove_all()
    controller.discard(copy)
    assert controller.probe(resource) is ResourceLiveness.DEAD, "the test removed it"
    over = controller.restore(taken)
    assert over.outcome is not RestoreOutcome.OK


def test_a_container_has_parts_a_handle_and_a_copy(
    ledger: Ledger, controller: ResourceController, run: Runner, engine: ContainerEngine
) -> None:
    volume = run.volume()
    container = run.started(["/bin/sh", "-c", "echo said; echo here > /new.txt; sleep 100"], volume=volume)
    driver = controller.drivers.of(ResourceKind.DOCKER_CONTAINER)
    resource = controller.add(driver, CONTAINER + container, session="main")
    assert resource.place == CONTAINER + container
    parts = {ledger.resources.get(part.resource).place: part.part for part in resource.parts}
    assert parts[f"{CONTAINER}{container}/files"] is SubresourcePart.FILE_SYSTEM
    assert parts[VOLUME + volume] is SubresourcePart.VOLUME
    assert SubresourcePart.NETWORK in parts.values()
    graph, name, mounted = Graph(ledger), f"resource:{resource.id}", ledger.resources.get(VOLUME + volume).id
    within = graph.neighbours(name, ["HAS_SUBRESOURCE"], direction="out").edges
    assert {edge.target for edge in within} == {f"resource:{part.resource}" for part in resource.parts}
    (seen,) = graph.neighbours(f"resource:{mounted}", ["MOUNTS_RESOURCE"], direction="in").edges
    assert (seen.source, seen.attributes["mount"], seen.attributes["mode"]) == (name, "/data", "rw")
    (handle,) = resource.handles
    assert (handle.provider, handle.provider_id, handle.restorable) == ("docker", container, False)
    live = controller.drivers.handle(resource.kind, handle.provider_id)
    assert live.exec(["/bin/sh", "-c", "until [ -e /new.txt ]; do :; done; echo more > /kept.txt"]).rc == 0
    assert live.logs().stdout == b"said\n"
    assert len(controller.add(driver, CONTAINER + container).handles) == 1, "described anew"

    taken = controller.snapshot(resource)
    assert (taken.state, taken.external_kind) == (SnapshotState.OK, "image"), taken.error
    files = ledger.resources.get(f"{CONTAINER}{container}/files")
    kept = controller.snapshot(files)
    assert kept.state is SnapshotState.OK, kept.error
    done = controller.restore(taken, place=driver.new_place(resource, "copy"))
    assert done.outcome is RestoreOutcome.OK, done.error
    copy = ledger.resources.get(str(done.new_resource))
    assert text_in(controller, copy.place.removeprefix(CONTAINER), "/kept.txt") == "more\n"
    made = {ledger.resources.get(part.resource).place: part.part for part in copy.parts}
    assert made[f"{copy.place}/files"] is SubresourcePart.FILE_SYSTEM
    assert SubresourcePart.NETWORK in made.values()
    assert [handle.provider_id for handle in copy.handles] == [copy.place.removeprefix(CONTAINER)]
    assert controller.restore(taken).outcome is not RestoreOutcome.OK, "never over a container that is there"
    controller.discard(copy)
    assert driver.probe(copy.place) is ResourceLiveness.DEAD

    assert live.kill("KILL")
    assert controller.probe(resource) is ResourceLiveness.DEAD
    assert ledger.resources.get(resource.id).handles == ()
    images = controller.drivers.of(ResourceKind.DOCKER_IMAGE)
    driver.forget_snapshot(taken, lambda: False)
    images.forget_snapshot(kept, lambda: False)
    with pytest.raises(EngineObjectMissing):
        DockerImages(engine, ArchiveStore(Path("/nowhere"))).describe(str(taken.external_id))


def test_the_parts_of_a_copy_whose_maker_died_are_told_by_the_next_one(
    ledger: Ledger, controller: ResourceController, run: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    container = run.started(["/bin/sleep", "100"])
    driver = controller.drivers.of(ResourceKind.DOCKER_CONTAINER)
    resource = controller.add(driver, CONTAINER + container, session="main")
    taken = controller.snapshot(resource)

    def die(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as dying:
        dying.setattr(RecordedDescriptions, "complete", die)
        with pytest.raises(KeyboardInterrupt):
            controller.restore(taken, place=driver.new_place(resource, "copy"), session="main")
    copy = next(one for one in ledger.resources.list() if one.is_made)
    assert (copy.parts, copy.handles) == ((), ())
    assert controller.reconcile().left == ()
    told = ledger.resources.get(copy.id)
    assert (len(told.parts), len(told.handles)) == (2, 1)
    controller.discard(told)
    driver.forget_snapshot(taken, lambda: False)


def test_an_image_is_kept_by_a_tag(controller: ResourceController, ledger: Ledger, image: str) -> None:
    driver = controller.drivers.of(ResourceKind.DOCKER_IMAGE)
    resource = controller.add(driver, IMAGE + image)
    taken = controller.snapshot(resource)
    assert (taken.state, taken.method) == (SnapshotState.OK, "oci_image")
    done = controller.restore(taken, place=driver.new_place(resource, "again"))
    assert done.outcome is RestoreOutcome.OK, done.error
    copy = ledger.resources.get(str(done.new_resource))
    assert driver.probe(copy.place) is ResourceLiveness.ALIVE
    controller.discard(copy)
    driver.forget_snapshot(taken, lambda: False)
    assert driver.probe(resource.place) is ResourceLiveness.ALIVE


def test_an_engine_that_is_not_there_stands_in_nobodys_way(tmp_path: Path, ledger: Ledger) -> None:
    def connect() -> ContainerEngine:
        return ContainerEngine(f"unix://{tmp_path}/none.sock")

    drivers = Drivers(*docker_drivers(connect, ArchiveStore(tmp_path / "archives")))
    driver = drivers.of(ResourceKind.DOCKER_VOLUME)
    assert driver.probe(VOLUME + "x") is ResourceLiveness.UNKNOWN
    with pytest.raises(Unsupported):
        drivers.handle(ResourceKind.DOCKER_VOLUME, "x")


def test_a_container_is_kept_with_its_processes_where_the_engine_makes_checkpoints(
    ledger: Ledger, controller: ResourceController, run: Runner, engine: ContainerEngine, store: ArchiveStore
) -> None:
    container = run.started(["/bin/sh", "-c", "n=0; while :; do n=$((n+1)); echo $n > /tmp/n; sleep 0.02; done"])
    driver = controller.drivers.of(ResourceKind.DOCKER_CONTAINER)
    resource = controller.add(driver, CONTAINER + container, session="main")
    live = controller.drivers.handle(resource.kind, container)
    assert live.exec(["/bin/sh", "-c", "until [ -s /tmp/n ] && [ $(cat /tmp/n) -gt 4 ]; do :; done"]).rc == 0
    taken = controller.snapshot(resource, method="app_checkpoint")
    checkpoints = ContainerCheckpoints(engine, store)
    if not checkpoints.is_available():
        assert (taken.state, taken.error_code) == (SnapshotState.ERROR, "unsupported")
        assert taken.error == "this container engine makes no checkpoints"
        return
    if why_no_checkpoints() is not None:
        assert (taken.state, taken.error_code) == (SnapshotState.ERROR, "engine_refused")
        return
    assert (taken.state, taken.method) == (SnapshotState.OK, "app_checkpoint"), taken.error
    assert driver.holds(taken)
    done = controller.restore(taken, place=driver.new_place(resource, "copy"))
    if done.outcome is not RestoreOutcome.OK and "criu failed" in str(done.error):
        pytest.skip(f"CRIU gave up: {done.error}")
    assert done.outcome is RestoreOutcome.OK, done.error
    copy = ledger.resources.get(str(done.new_resource))
    run.forget_later(copy.place.removeprefix(CONTAINER))
    assert int(text_in(controller, copy.place.removeprefix(CONTAINER), "/tmp/n")) > 4, "it counts on"
    assert [handle.provider_id for handle in copy.handles] == [copy.place.removeprefix(CONTAINER)]
    controller.forget([taken], "asked")
    assert not driver.holds(taken)


def test_a_way_that_nobody_knows_is_refused_before_anything_is_wanted(
    ledger: Ledger, controller: ResourceController, run: Runner
) -> None:
    volume = controller.add(controller.drivers.of(ResourceKind.DOCKER_VOLUME), VOLUME + run.volume(), session="main")
    with pytest.raises(Unsupported, match="is taken by"):
        controller.snapshot(volume, method="app_checkpoint")
    assert ledger.resources.snapshots(volume.id) == []
