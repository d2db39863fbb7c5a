"""Forks of sessions that work with volumes of a real container engine, by random plans, killed at any step: the next
controller finishes them, once, and a copy is byte for byte what it copies."""

from __future__ import annotations

import random
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import weft
from tests.container_engine import EngineMissing, engine_address, image_of
from tests.faults.fork_processes import FORKED, decided, watched
from tests.faults.processes import KILLED, Say, run
from tests.faults.tripwires import Tripwire
from tests.ledger.histories import grow, problems
from tests.runtime.resources.docker.running import Runner, entry, packed
from tests.sizes import Record, chance, sized
from weft.kernel.enums import VolumeMode
from weft.kernel.errors import NotFound
from weft.ledger.api import Ledger, ResourceLog
from weft.runtime.resources.container_engine import ContainerEngine, MadeBy, list_made_by
from weft.runtime.resources.controller import ResourceController
from weft.runtime.resources.docker_drivers import VOLUME, docker_drivers
from weft.runtime.resources.drivers import Drivers
from weft.runtime.resources.engine_volumes import DockerVolumes
from weft.runtime.resources.tar_archives import ArchiveStore
from weft.runtime.resources.turn_files import ForkPlanner, PlanLine

GUESSED_STEPS = 40
NAMES = ["plain", " spaced ", "-dash", ".hidden", "new\nline", "back\\slash", "ümläut", "odd \udce9"]


class VolumeWorld:
    """A ledger, and whoever acts on the volumes of its sessions."""

    def __init__(self, path: Path, ledger: Ledger, engine: ContainerEngine) -> None:
        self.ledger, self.engine, self.log = ledger, engine, ResourceLog(ledger)
        image = image_of(engine.address)
        drivers = Drivers(*docker_drivers(lambda: engine, ArchiveStore(path / "archives"), tar_image=image))
        self.controller, self.planner = ResourceController(ledger, drivers), ForkPlanner(ledger, drivers)
        self.driver = drivers.all()[0]
        self._look = DockerVolumes(engine, ArchiveStore(path / "look"), tar_image=image)

    def digest(self, place: str) -> str:
        """One for the same files, modes, owners, links and names."""
        return self._look.snapshot(place.removeprefix(VOLUME), MadeBy("look", f"look-{place[-40:]}")).reference_id


@contextmanager
def opened(path: Path, address: str) -> Iterator[VolumeWorld]:
    with weft.open(path / "ledger.db") as ledger, ContainerEngine(address) as engine:
        yield VolumeWorld(path, ledger, engine)


def random_files(chosen: random.Random) -> bytes:
    """An archive of files, links and empty folders, of odd names, modes and owners."""
    made: list[Any] = [entry("./", tarfile.DIRTYPE, chosen.choice([0o755, 0o711]), uid=chosen.randrange(3))]
    for name in chosen.sample(NAMES, chosen.randint(1, len(NAMES))):
        match chosen.randrange(4):
            case 0:
                made.append(entry(name, tarfile.SYMTYPE, 0o777, linkname=chosen.choice(["plain", "/etc/passwd", ".."])))
            case 1:
                made.append(entry(name, tarfile.DIRTYPE, chosen.choice([0o700, 0o1777, 0o555]), gid=5))
            case _:
                mode = chosen.choice([0o644, 0o4755, 0o000])
                made.append(
                    (entry(name, mode=mode, uid=chosen.randrange(4)), chosen.randbytes(chosen.choice([1, 700])))
                )
    return packed(*made)


def watch_engine(tripwire: Tripwire) -> None:
    call = ContainerEngine.call

    def stepping(self: ContainerEngine, *args: Any, **kwargs: Any) -> Any:
        tripwire.step("engine")
        answer = call(self, *args, **kwargs)
        tripwire.step("engine did")
        return answer

    ContainerEngine.call = stepping  # type: ignore[method-assign]


def fork(say: Say, path: str, address: str, seed: int, k: int) -> None:
    """Fork by the plan of a seed, killed at the k-th step of it."""
    tripwire = Tripwire(k)
    watched(tripwire)
    watch_engine(tripwire)
    with opened(Path(path), address) as world:
        lines = decided(world.planner, seed)
        tripwire.armed = True
        world.planner.carry_out("main", FORKED, lines)
        tripwire.disarm(say)


@pytest.fixture
def runner() -> Iterator[tuple[Runner, str]]:
    try:
        address = engine_address()
    except EngineMissing as reason:
        pytest.skip(f"no container engine: {reason}")
    with ContainerEngine(address) as engine:
        made = Runner(engine, image_of(address))
        yield made, address
        made.remove_all()


def assert_carried_out(world: VolumeWorld, lines: list[PlanLine], digests: dict[str, str], runner: Runner) -> None:
    copies = {one.place: one for one in world.ledger.resources.list(include_discarded=True) if one.is_made}
    assert set(copies) == {line.place for line in lines if line.mode is VolumeMode.SNAPSHOT}
    for line in lines:
        owner = world.ledger.resources.get(line.resource.id).owner
        kept_by = FORKED if line.is_kept_by_fork else "main"
        wanted = {VolumeMode.DISCARD: None, VolumeMode.SNAPSHOT: "main"}.get(line.mode, kept_by)
        assert (owner and owner.name) == wanted
        if line.place is not None:
            runner.forget_later(line.place.removeprefix(VOLUME))
            assert world.digest(line.place) == digests[line.resource.place]


def check_fork(path: Path, address: str, runner: Runner, seed: int) -> bool:
    """Whether the process was killed."""
    chosen = chance("volume-world", seed)
    volumes = [VOLUME + runner.volume(random_files(chosen)) for _ in range(chosen.randint(1, 2))]
    with opened(path, address) as world:
        grow(world.ledger, "main", "begin")
        for volume in volumes:
            world.controller.add(world.driver, volume, session="main")
        lines = decided(world.planner, seed)
        digests = {volume: world.digest(volume) for volume in volumes}
    code, _ = run(fork, str(path), address, seed, chosen.randint(1, GUESSED_STEPS))
    with opened(path, address) as world:
        assert world.controller.reconcile().left == ()
        assert world.log.pending() == ([], [])
        copies = {str(line.place).removeprefix(VOLUME) for line in lines if line.mode is VolumeMode.SNAPSHOT}
        try:
            world.ledger.session(FORKED)
        except NotFound:
            assert [one for one in world.ledger.resources.list(include_discarded=True) if one.is_made] == []
            copies = set()
        else:
            assert_carried_out(world, lines, digests, runner)
        assert {one.name for line in lines for one in list_made_by(world.engine, resource=line.resource.id)} == copies
        assert {volume: world.digest(volume) for volume in volumes} == digests
        assert problems(world.ledger) == []
    return code == KILLED


def test_a_fork_of_volumes_killed_at_any_step_is_carried_out_once_or_did_not_happen(
    tmp_path: Path, runner: tuple[Runner, str], record_property: Record
) -> None:
    made, address = runner
    kills = 0
    for seed in range(sized(test=3, prove=40)):
        path = tmp_path / f"{seed}"
        path.mkdir()
        kills += check_fork(path, address, made, seed)
    assert kills > 0
    record_property("kills", kills)
