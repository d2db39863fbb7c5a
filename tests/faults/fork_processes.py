"""Sessions that work in folders and with files, and processes that are killed while they fork, undo or restore."""

from __future__ import annotations

import os
import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import orjson

import weft
from tests.faults.processes import Say
from tests.faults.tripwires import Tripwire
from tests.ledger.histories import grow
from tests.runtime.resources.directories.folders import contents
from tests.sizes import chance
from weft.kernel.enums import VolumeMode
from weft.ledger.api import Ledger, Resource, ResourceLog
from weft.ledger.write.transaction import LedgerWriter
from weft.runtime.folder_snapshots.file_store import FileStore
from weft.runtime.resources.controller import ResourceController
from weft.runtime.resources.drivers import Drivers
from weft.runtime.resources.local_drivers import DirectoryDriver, FileDriver, UriDriver
from weft.runtime.resources.turn_files import ForkPlanner, PlanLine, TurnFiles
from weft.runtime.resources.workspace_snapshots import workspace_resource

State = dict[bytes, tuple[str, int, bytes]]
FORKED = "alt"
ODD_NAMES = [b"plain", b" spaced ", b"-dash", b".hidden", b"new\nline", b"back\\slash", "ümläut".encode(), b"\xff\xfe"]
CHANGES = frozenset("os.mkdir os.rename os.link os.remove os.rmdir os.symlink os.chmod subprocess.Popen".split())
"""What a process does to a disk, or has done, as Python tells it just before."""


class World:
    """A ledger, what its sessions work with, and whoever acts on that."""

    def __init__(self, path: Path, ledger: Ledger) -> None:
        self.path, self.ledger, self.log = path, ledger, ResourceLog(ledger)
        self.store = FileStore(path / "kept")
        self.directories, self.files, self.uris = DirectoryDriver(self.store), FileDriver(path / "copies"), UriDriver()
        drivers = Drivers(self.directories, self.files, self.uris)
        self.controller, self.planner = ResourceController(ledger, drivers), ForkPlanner(ledger, drivers)
        self.turn_files = TurnFiles(ledger, self.directories)
        self.states: dict[str, list[State]] = {}
        """What a folder was like whenever it was kept, by its place."""

    @property
    def places(self) -> Path:
        return self.path / "places"

    def work(self, folder: Path, chosen: random.Random, session: str = "main") -> str:
        """A turn that changes a folder and keeps it before and after."""
        grow(self.ledger, session, "work")
        turn = self.ledger.resolve(session)
        resource = workspace_resource(self.log, self.directories, self.ledger.session(session).id, folder)
        states = self.states.setdefault(str(folder), [])
        states.append(state_at(folder))
        self.log.record_snapshot(resource, self.directories.take(folder), run=turn, is_before=True)
        fill(folder, chosen)
        states.append(state_at(folder))
        self.log.record_snapshot(resource, self.directories.take(folder), run=turn)
        return turn


@contextmanager
def opened(path: Path) -> Iterator[World]:
    with weft.open(path / "ledger.db") as ledger:
        yield World(path, ledger)


def fill(folder: Path, chosen: random.Random) -> None:
    """Files, links and folders of odd names and modes, some of them instead of what was there."""
    top = os.fsencode(folder)
    for name in chosen.sample(ODD_NAMES, chosen.randint(1, 5)):
        place = os.path.join(top, name)
        if os.path.lexists(place):
            if os.path.isdir(place) and not os.path.islink(place):
                continue
            os.unlink(place)
        match chosen.randrange(4):
            case 0:
                os.symlink(chosen.choice([b"nowhere", b"/etc/hostname", b"."]), place)
            case 1:
                os.mkdir(place)
                os.chmod(place, chosen.choice([0o700, 0o755, 0o555]))
            case 2:
                os.mkdir(place)
                write_file(os.path.join(place, chosen.choice(ODD_NAMES)), chosen)
            case _:
                write_file(place, chosen)


def write_file(place: bytes, chosen: random.Random) -> None:
    with open(place, "wb") as file:
        file.write(chosen.randbytes(chosen.choice([0, 1, 70])))
    os.chmod(place, chosen.choice([0o644, 0o755, 0o400]))


def build(path: Path, seed: int) -> dict[str, list[State]]:
    """A session with folders, files and addresses, of which some have a history; always the same for one seed. What
    the folders were like."""
    chosen = chance("fork-world", seed)
    with opened(path) as world:
        world.places.mkdir()
        grow(world.ledger, "main", "begin")
        for number in range(chosen.randint(1, 2)):
            folder = world.places / f"project {number}"
            folder.mkdir()
            folder.chmod(chosen.choice([0o755, 0o750]))
            fill(folder, chosen)
            if chosen.random() < 0.5:
                world.work(folder, chosen)
            else:
                world.controller.add(world.directories, str(folder), session="main")
        for number in range(chosen.randint(0, 2)):
            file = world.places / f"note {number}.txt"
            write_file(os.fsencode(file), chosen)
            world.controller.add(world.files, str(file), session="main")
        if chosen.random() < 0.5:
            world.controller.add(world.uris, "https://example.org/feed", session="main")
        return world.states


def decided(planner: ForkPlanner, seed: int) -> list[PlanLine]:
    """A plan whose decisions are random; always the same for one seed."""
    chosen, lines = chance("fork-plan", seed), []
    for line in planner.propose("main", FORKED):
        modes = [VolumeMode.KEEP, VolumeMode.DISCARD, *([VolumeMode.SNAPSHOT] * 3 if line.place else [])]
        mode = chosen.choice(modes)
        written = {"resource": line.resource.id, "mode": mode.value, "kept_by": chosen.choice(["fork", "origin"])}
        lines += planner.read([line], orjson.dumps([written]), FORKED)
    return lines


def state_of(resource: Resource) -> State:
    return state_at(Path(resource.place))


def state_at(place: Path) -> State:
    if place.is_dir():
        return {**contents(place), b"": ("folder", place.stat().st_mode & 0o7777, b"")}
    return {b"": ("file", place.stat().st_mode & 0o7777, place.read_bytes())}


# --- processes -------------------------------------------------------------------------------------------------------


def watched(tripwire: Tripwire) -> None:
    """Every change of the disk that is not the ledger's own, and every write of the ledger, before it and after."""

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        is_written = event == "open" and isinstance(arguments[2], int) and arguments[2] & (os.O_WRONLY | os.O_RDWR)
        if tripwire.armed and (event in CHANGES or is_written):
            tripwire.step(event)

    sys.addaudithook(hook)
    write = LedgerWriter.write

    def stepping(self: LedgerWriter, *args: Any, **kwargs: Any) -> Any:
        tripwire.step("write")
        answer = write(self, *args, **kwargs)
        tripwire.step("written")
        return answer

    LedgerWriter.write = stepping  # type: ignore[method-assign]


def act(say: Say, path: str, action: str, seed: int, k: int) -> None:
    """Do something, killed at the k-th step of it; with 0 to its end, and say how many steps there were."""
    tripwire = Tripwire(k)
    watched(tripwire)
    with opened(Path(path)) as world:
        run = prepared(world, action, seed)
        tripwire.armed = True
        run()
        tripwire.disarm(say)


def prepared(world: World, action: str, seed: int) -> Any:
    match action:
        case "fork":
            lines = decided(world.planner, seed)
            return lambda: world.planner.carry_out("main", FORKED, lines)
        case "undo":
            return lambda: world.turn_files.undo("main")
        case "redo":
            return lambda: world.turn_files.redo("main")
        case "discard":
            (copy,) = [one for one in world.ledger.resources.list() if one.is_made]
            return lambda: world.controller.discard(copy)
    return world.controller.reconcile
