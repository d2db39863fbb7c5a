"""Containers of a real engine: described in parts, committed, made again without what a stranger could ask for."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.runtime.resources.docker.running import Runner, file, packed
from weft.kernel.enums import ResourceCapability, ResourceKind, ResourceLiveness, SubresourcePart, VolumeMode
from weft.kernel.errors import EngineObjectMissing, EngineRefused, InvalidInput
from weft.runtime.resources.container_engine import ContainerEngine, ContainerHandle, MadeBy, list_made_by, remove_made
from weft.runtime.resources.engine_containers import (
    ContainerLimits,
    ContainerSettings,
    DockerContainers,
    VolumeMount,
    not_carried_over,
)

Key = Callable[[str], MadeBy]
SLEEP = ["/bin/sh", "-c", "echo begun > /tmp/file; exec sleep 1000"]
LARGEST = ContainerLimits(memory_bytes=256 * 1024**2, processes=64)


@pytest.fixture
def containers(engine: ContainerEngine) -> DockerContainers:
    return DockerContainers(engine, limits=LARGEST)


def remove_all(engine: ContainerEngine, *operations: MadeBy) -> None:
    for operation in operations:
        for made in list_made_by(engine, resource=operation.resource, operation=operation.operation):
            remove_made(engine, made)


def test_a_container_is_described_in_parts(engine: ContainerEngine, containers: DockerContainers, run: Runner) -> None:
    volume = run.volume()
    binds = ["/usr/share:/shared:ro"]
    container = run.container(SLEEP, volume, Binds=binds, Tmpfs={"/run": ""}, CapAdd=["NET_ADMIN"], Memory=64 * 1024**2)
    described = containers.describe(container)
    assert (described.kind, described.id) == (ResourceKind.DOCKER_CONTAINER, container)
    assert {ResourceCapability.SNAPSHOT, ResourceCapability.RESTORE} <= set(described.capabilities)
    assert described.metadata["not_carried_over"] == ["added capabilities", "folders of the host"]
    parts = {part.mount: part for part in described.parts}
    assert {mount: (part.part, part.kind, part.proposed) for mount, part in parts.items()} == {
        "/": (SubresourcePart.FILE_SYSTEM, ResourceKind.DOCKER_IMAGE, VolumeMode.SNAPSHOT),
        "/data": (SubresourcePart.VOLUME, ResourceKind.DOCKER_VOLUME, VolumeMode.SNAPSHOT),
        "/shared": (SubresourcePart.VOLUME, ResourceKind.DIRECTORY, VolumeMode.KEEP),
        "/run": (SubresourcePart.VOLUME, None, VolumeMode.DISCARD),
        "": (SubresourcePart.NETWORK, None, VolumeMode.DISCARD),
    }
    assert (parts["/data"].name, parts["/shared"].is_read_only, parts["/run"].imperative) == (volume, True, True)
    assert containers.settings(container).memory_bytes == 64 * 1024**2
    assert containers.probe(container) is ResourceLiveness.DEAD, "it was never started"


def test_a_description_holds_no_variable_and_no_command(
    engine: ContainerEngine, containers: DockerContainers, image: str, run: Runner
) -> None:
    container = run.container(["/bin/true", "hidden-argument"])
    assert "hidden-argument" not in repr(containers.describe(container))


def test_a_committed_container_is_made_again_with_its_files(
    engine: ContainerEngine, containers: DockerContainers, run: Runner, key: Key
) -> None:
    container = run.started(SLEEP, run.volume())
    assert ContainerHandle(engine, container).exec(["/bin/sh", "-c", "echo kept > /tmp/kept"]).rc == 0
    assert containers.probe(container) is ResourceLiveness.ALIVE
    snapshot = containers.snapshot(container, key("commit"))
    assert (snapshot.method, snapshot.reference_kind) == ("oci_commit", "image")
    assert containers.snapshot(container, key("commit")) == snapshot, "the same operation makes one image"

    volume = run.volume(packed(file("inside", "volume\n")))
    settings = ContainerSettings(memory_bytes=10**12, processes=10**6)
    volumes = {"/data": VolumeMount(volume=volume, is_read_only=True)}
    try:
        restored = containers.restore(snapshot.reference_id, key("restore"), settings, volumes=volumes)
        again = containers.restore(snapshot.reference_id, key("restore"), settings, volumes=volumes)
        assert (restored.is_new, again.is_new, again.id) == (True, False, restored.id)
        handle = ContainerHandle(engine, restored.id)
        line = "cat /tmp/kept /data/inside; ls /sys/class/net; echo x > /data/new || echo read-only"
        assert handle.exec(["/bin/sh", "-c", line]).stdout.split() == ["kept", "volume", "lo", "read-only"]
        assert containers.settings(restored.id).memory_bytes == LARGEST.memory_bytes
        assert containers.settings(restored.id).processes == LARGEST.processes
        made = list_made_by(engine, resource=key("restore").resource)
        assert {(one.kind, one.operation) for one in made} == {
            (ResourceKind.DOCKER_CONTAINER, key("restore").operation),
            (ResourceKind.DOCKER_IMAGE, key("commit").operation),
        }
    finally:
        remove_all(engine, key("restore"), key("commit"))
    assert list_made_by(engine, resource=key("restore").resource) == ()
    assert containers.probe(restored.id) is ResourceLiveness.DEAD


def test_labels_of_a_committed_image_do_not_make_others_containers_ours(
    engine: ContainerEngine, containers: DockerContainers, run: Runner, sleeper: str, key: Key
) -> None:
    snapshot = containers.snapshot(sleeper, key("commit"))
    theirs = Runner(engine, snapshot.reference_id)
    theirs.container(["/bin/true"])
    made = list_made_by(engine, operation=key("commit").operation)
    assert [one.kind for one in made] == [ResourceKind.DOCKER_IMAGE]
    theirs.remove_all()
    remove_all(engine, key("commit"))


def test_a_container_that_does_not_start_is_taken_away(
    engine: ContainerEngine, containers: DockerContainers, image: str, run: Runner, key: Key
) -> None:
    container = run.container(["/bin/nothing-of-this-name"])
    snapshot = containers.snapshot(container, key("commit"))
    with pytest.raises(EngineRefused, match="refused to start"):
        containers.restore(snapshot.reference_id, key("restore"), ContainerSettings())
    assert list_made_by(engine, operation=key("restore").operation) == ()
    made = containers.restore(snapshot.reference_id, key("restore"), ContainerSettings(), start=False)
    assert containers.remove(made.id) is True
    assert containers.remove(made.id) is False
    remove_all(engine, key("commit"))


def test_what_a_restore_names_must_be_there_and_meant(containers: DockerContainers, image: str, key: Key) -> None:
    settings = ContainerSettings()
    with pytest.raises(EngineObjectMissing, match="no image"):
        containers.restore("sha256:" + "0" * 64, key("restore"), settings)
    with pytest.raises(InvalidInput, match="no id of an image"):
        containers.restore("weft.test/busybox:latest", key("restore"), settings)
    with pytest.raises(EngineObjectMissing, match="no volume"):
        containers.restore(image, key("restore"), settings, volumes={"/data": VolumeMount(volume="gone")})
    for path in ("data", "/", "/data/../etc", "/a\0b"):
        with pytest.raises(InvalidInput, match="no path"):
            containers.restore(image, key("restore"), settings, volumes={path: VolumeMount(volume="any")})
    for network in ("host", "container:other", "ns:/proc/1/ns/net", ""):
        with pytest.raises(InvalidInput):
            containers.restore(image, key("restore"), settings, network=network)


def test_what_a_strangers_container_was_given_is_named_and_not_carried_over() -> None:
    container = {
        "HostConfig": {
            "Privileged": True,
            "CapAdd": ["SYS_ADMIN"],
            "Devices": [{"PathOnHost": "/dev/sda"}],
            "PidMode": "host",
            "NetworkMode": "host",
            "IpcMode": "container:other",
            "SecurityOpt": ["seccomp=unconfined"],
            "PortBindings": {"80/tcp": [{"HostPort": "80"}]},
            "RestartPolicy": {"Name": "always"},
        },
        "Mounts": [{"Type": "bind", "Source": "/", "Destination": "/host"}],
        "NetworkSettings": {"Networks": {"bridge": {}}},
    }
    assert list(not_carried_over(container)) == [
        "privileged",
        "added capabilities",
        "devices",
        "security options",
        "network of the host or of another container",
        "processes of the host or of another container",
        "memory of the host or of another container",
        "ports",
        "restart policy",
        "folders of the host",
        "networks",
    ]
    assert not {"privileged", "devices", "binds", "ports", "command"} & set(ContainerSettings.__struct_fields__)
