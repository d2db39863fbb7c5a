"""Checkpoints of a real engine: where it makes them a copy goes on from the same moment; elsewhere that is said."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.runtime.resources.docker.running import Runner, why_no_checkpoints
from weft.kernel.enums import ResourceCapability, ResourceLiveness, SnapshotConsistency
from weft.kernel.errors import Damaged, EngineObjectMissing, EngineRefused, InvalidInput, Unsupported
from weft.runtime.resources.container_engine import ContainerEngine, ContainerHandle, MadeBy, list_made_by, remove_made
from weft.runtime.resources.engine_containers import IN_ENGINE, IN_STORE, ContainerCheckpoints, DockerContainers
from weft.runtime.resources.engine_volumes import RestoredObject
from weft.runtime.resources.tar_archives import ArchiveStore

Key = Callable[[str], MadeBy]
COUNT = "n=0; while :; do n=$((n+1)); echo $n > /tmp/n; echo $n; sleep 0.02; done"


@pytest.fixture
def checkpoints(engine: ContainerEngine, store: ArchiveStore) -> ContainerCheckpoints:
    return ContainerCheckpoints(engine, store)


@pytest.fixture
def working(checkpoints: ContainerCheckpoints, engine: ContainerEngine) -> ContainerCheckpoints:
    if not checkpoints.is_available():
        pytest.skip("this engine makes no checkpoints (Debian: criu)")
    if (reason := why_no_checkpoints()) is not None:
        pytest.skip(f"CRIU cannot be used here: {reason:.200}")
    if engine.facts().product != "podman":
        pytest.skip("of this engine a checkpoint is no archive")
    return checkpoints


def first_restored(working: ContainerCheckpoints, reference: str, made_by: MadeBy) -> RestoredObject:
    """What a checkpoint is restored to. CRIU gives up now and then while others do the same on this machine: that is
    told as the engine's refusal, and says nothing about what is tested here."""
    try:
        return working.restore(IN_STORE, reference, made_by)
    except EngineRefused as error:
        if "criu failed" in error.reason:
            pytest.skip(f"CRIU gave up: {error.reason:.200}")
        raise


def test_a_copy_of_what_runs_goes_on_from_the_same_moment(
    engine: ContainerEngine, working: ContainerCheckpoints, store: ArchiveStore, run: Runner, key: Key
) -> None:
    container = run.started(["/bin/sh", "-c", COUNT])
    handle = ContainerHandle(engine, container)
    wait = "while ! [ -s /tmp/n ] || [ $(cat /tmp/n) -lt 5 ]; do sleep 0.02; done"
    assert handle.exec(["/bin/sh", "-c", wait]).rc == 0
    snapshot = working.take(container, key("take"))
    assert (snapshot.method, snapshot.reference_kind) == ("app_checkpoint", IN_STORE)
    assert snapshot.consistency is SnapshotConsistency.APP_CONSISTENT
    assert handle.exec(["/bin/true"]).rc == 0, "it runs on"
    assert store.digests() == frozenset(), "checkpoints are not among the archives of volumes"

    copy = first_restored(working, snapshot.reference_id, key("restore"))
    again = working.restore(IN_STORE, snapshot.reference_id, key("restore"))
    assert (copy.is_new, again.is_new, again.id) == (True, False, copy.id)
    counted = [int(line) for line in ContainerHandle(engine, copy.id).logs().stdout.split()]
    assert counted[:5] == [1, 2, 3, 4, 5]
    assert counted == sorted(counted), "it counts on, and does not begin anew"
    (made,) = list_made_by(engine, resource=key("restore").resource, operation=key("restore").operation)
    assert made.id == copy.id
    assert remove_made(engine, made) is True
    assert working.remove(IN_STORE, snapshot.reference_id) is True
    with pytest.raises(Damaged, match="no archive"):
        working.restore(IN_STORE, snapshot.reference_id, key("restore"))


def test_a_container_goes_on_from_a_checkpoint_that_its_engine_keeps(
    engine: ContainerEngine, checkpoints: ContainerCheckpoints, run: Runner, key: Key
) -> None:
    if engine.facts().product == "podman" or not checkpoints.is_available():
        pytest.skip("this engine keeps no checkpoints beside its containers (Docker, experimental, with criu)")
    container = run.started(["/bin/sh", "-c", COUNT])
    handle = ContainerHandle(engine, container)
    snapshot = checkpoints.take(container, key("take"))
    assert snapshot.reference_kind == IN_ENGINE
    assert handle.kill() is True
    engine.call("POST", f"/containers/{container}/wait", asked="wait")
    restored = checkpoints.restore(IN_ENGINE, snapshot.reference_id, key("restore"))
    assert (restored.id, restored.is_new) == (container, False)
    counted = [int(line) for line in handle.logs().stdout.split()]
    assert counted.count(1) <= 1, "it counts on, and does not begin anew"
    assert checkpoints.remove(IN_ENGINE, snapshot.reference_id) is True
    assert checkpoints.remove(IN_ENGINE, snapshot.reference_id) is False


def test_no_checkpoint_is_made_of_what_a_copy_must_not_share(
    working: ContainerCheckpoints, run: Runner, key: Key
) -> None:
    with_volume = run.container(["/bin/true"], run.volume())
    with pytest.raises(Unsupported, match="with volumes"):
        working.take(with_volume, key("take"))
    with_rights = run.container(["/bin/true"], CapAdd=["SYS_ADMIN"])
    with pytest.raises(Unsupported, match="with added capabilities"):
        working.take(with_rights, key("take"))
    with pytest.raises(Unsupported, match="restores no"):
        working.restore(IN_ENGINE, f"{with_volume}/name", key("restore"))


def test_what_the_engine_cannot_keep_is_unsupported(
    engine: ContainerEngine,
    checkpoints: ContainerCheckpoints,
    sleeper: str,
    key: Key,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    containers = DockerContainers(engine, checkpoints=checkpoints)
    if checkpoints.is_available():
        assert ResourceCapability.CHECKPOINT in containers.describe(sleeper).capabilities
        monkeypatch.setattr(checkpoints, "_is_available", False)
    assert ResourceCapability.CHECKPOINT not in containers.describe(sleeper).capabilities
    with pytest.raises(Unsupported, match="makes no checkpoints"):
        checkpoints.take(sleeper, key("take"))
    with pytest.raises(Unsupported, match="makes no checkpoints"):
        checkpoints.restore(IN_STORE, "0" * 64, key("restore"))
    assert containers.probe(sleeper) is ResourceLiveness.ALIVE


def test_a_checkpoint_of_what_is_not_there_is_told(checkpoints: ContainerCheckpoints, key: Key) -> None:
    with pytest.raises(EngineObjectMissing):
        checkpoints.take("gone", key("take"))
    assert checkpoints.remove(IN_STORE, "0" * 64) is False
    with pytest.raises(InvalidInput):
        checkpoints.remove(IN_ENGINE, "no-slash")
