"""The tests' own container engine, and the drivers on it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.container_engine import EngineMissing, engine_address, image_of
from tests.runtime.resources.docker.running import Runner
from weft.runtime.resources.container_engine import ContainerEngine, MadeBy
from weft.runtime.resources.engine_volumes import DockerVolumes
from weft.runtime.resources.tar_archives import ArchiveStore


@pytest.fixture(scope="session")
def engine() -> Iterator[ContainerEngine]:
    try:
        address = engine_address()
    except EngineMissing as reason:
        pytest.skip(f"no container engine: {reason}")
    with ContainerEngine(address) as engine:
        yield engine


@pytest.fixture(scope="session")
def image(engine: ContainerEngine) -> str:
    return image_of(engine.address)


@pytest.fixture(scope="session")
def sleeper(engine: ContainerEngine, image: str) -> Iterator[str]:
    """The id of a container that runs and does nothing."""
    runner = Runner(engine, image)
    yield runner.started(["/bin/sleep", "infinity"])
    runner.remove_all()


@pytest.fixture
def run(engine: ContainerEngine, image: str) -> Iterator[Runner]:
    runner = Runner(engine, image)
    yield runner
    runner.remove_all()


@pytest.fixture
def store(tmp_path: Path) -> ArchiveStore:
    return ArchiveStore(tmp_path / "archives")


@pytest.fixture
def volumes(engine: ContainerEngine, store: ArchiveStore, image: str) -> DockerVolumes:
    return DockerVolumes(engine, store, tar_image=image)


@pytest.fixture
def key(request: pytest.FixtureRequest) -> Callable[[str], MadeBy]:
    """Operations of this test, by a short name: the engine is shared with other tests."""
    test = request.node.name.partition("[")[0][-150:]
    return lambda name: MadeBy(f"resource-of-{test}", f"{name}-of-{test}")
