"""Whoever acts on an engine dies before or after any call; whoever comes next finishes, and nothing is left over.

A dead process makes no further call: from the moment on no call reaches the engine, also none of those that clean up.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import Any

from tests.runtime.resources.docker.running import Runner, entry, file, packed
from tests.sizes import PROVING
from weft.kernel.enums import ResourceKind, ResourceLiveness
from weft.runtime.resources.container_engine import ContainerEngine, MadeBy, MadeRole, list_made_by, remove_made
from weft.runtime.resources.engine_containers import ContainerSettings, DockerContainers
from weft.runtime.resources.engine_volumes import DockerVolumes
from weft.runtime.resources.tar_archives import OWN_ARCHIVE, ArchiveStore

Key = Callable[[str], MadeBy]
ONE = packed(entry("./", b"5", 0o755), file("file", "one\n"))
STEP = 1 if PROVING else 5


class Killed(BaseException):
    pass


class MortalEngine(ContainerEngine):
    """Passes on so many changes, and dies with the next: before it reaches the engine, or when it has."""

    def __init__(self, address: str, changes: int, *, is_after: bool) -> None:
        super().__init__(address)
        self.left, self._is_after, self.is_dead = changes, is_after, False

    def call(self, method: str, path: str, **given: Any) -> Any:
        if self.is_dead:
            raise Killed
        if method != "GET":
            self.left -= 1
            if self.left < 0:
                self.is_dead = True
                if self._is_after:
                    super().call(method, path, **given)
                raise Killed
        return super().call(method, path, **given)


def deaths(engine: ContainerEngine, act: Callable[[ContainerEngine, MadeBy], object], key: Key) -> list[MadeBy]:
    """Operations that died, one at each change, and the last that lived."""
    operations = []
    for number in count():
        operation = key(f"act-{number}")
        operations.append(operation)
        with MortalEngine(engine.address, number // 2 * STEP, is_after=bool(number % 2)) as mortal:
            try:
                act(mortal, operation)
            except Killed:
                continue
            return operations
    raise AssertionError


def test_a_restore_of_a_volume_is_finished_by_whoever_comes_next(
    engine: ContainerEngine, store: ArchiveStore, image: str, run: Runner, key: Key
) -> None:
    digest = store.keep("one", [ONE], OWN_ARCHIVE).digest

    def act(given: ContainerEngine, operation: MadeBy) -> object:
        return DockerVolumes(given, store, tar_image=image).restore(digest, operation)

    volumes = DockerVolumes(engine, store, tar_image=image)
    operations = deaths(engine, act, key)
    assert len(operations) > 2
    for operation in operations:
        restored = volumes.restore(digest, operation)
        run.forget_later(restored.name)
        (made,) = list_made_by(engine, operation=operation.operation)
        assert (made.kind, made.name, made.role) == (ResourceKind.DOCKER_VOLUME, restored.name, MadeRole.RESULT)
    for operation in operations[-2:]:
        assert volumes.snapshot(operation.object_name, key("check")).reference_id == digest


def test_a_commit_and_a_restore_of_a_container_are_finished_by_whoever_comes_next(
    engine: ContainerEngine, sleeper: str, key: Key
) -> None:
    def act(given: ContainerEngine, operation: MadeBy) -> object:
        containers = DockerContainers(given)
        image_id = containers.snapshot(sleeper, key("commit")).reference_id
        return containers.restore(image_id, operation, ContainerSettings())

    containers = DockerContainers(engine)
    try:
        for operation in deaths(engine, act, key):
            act(engine, operation)
            (made,) = list_made_by(engine, operation=operation.operation)
            assert containers.probe(made.id) is ResourceLiveness.ALIVE
        assert len(list_made_by(engine, operation=key("commit").operation)) == 1
    finally:
        for made in list_made_by(engine, resource=key("commit").resource):
            remove_made(engine, made)
    assert list_made_by(engine, resource=key("commit").resource) == ()
