"""What no sandboxed process sees or changes, wherever it lies: ledgers with what is kept beside them, keys, decisions.

Whatever starts a sandboxed process is given a `ProtectedPlaces`; no field has a default, so that nobody leaves it out
by accident. Beside the places that are named, every folder `.weft` of the workspace is hidden, and files of secrets.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from msgspec import Struct

from weft.kernel.errors import InvalidInput
from weft.runtime.sandbox.mounts import Mount, MountKind, cover, is_beneath
from weft.runtime.sandbox.secret_files import SecretFiles
from weft.runtime.sandbox.workspace_search import LEDGER_FOLDER

BESIDE_LEDGERS = (
    "-wal", "-shm", "-journal", "-lock", "-head", "-near-", "-import.", "-files", ".replaced-", ".schema-",
)  # fmt: skip
"""How the names of what lies beside a ledger go on after its own; docs/state.md lists them."""
MOST_COVERS = 2000
"""More of them take bubblewrap too long, and are more than any workspace has that is not made to have them."""


class ProtectedPlaces(Struct, frozen=True, kw_only=True):
    """What is hidden from every sandboxed process."""

    ledgers: tuple[Path, ...]
    """Files of databases. What is kept beside one is hidden with it."""
    folders: tuple[Path, ...]
    """Keys, decisions, configuration, what is kept of resources; also those that do not exist yet."""
    secrets: SecretFiles = SecretFiles()
    """Files of the workspace that are hidden from commands, though not from other tools."""

    @property
    def paths(self) -> tuple[Path, ...]:
        return (*self.ledgers, *self.folders)

    def covers(self, mounts: Iterable[Mount]) -> list[Mount]:
        """What hides these places wherever one of the mounts shows them."""
        binds = [mount for mount in mounts if mount.kind in (MountKind.READ_ONLY, MountKind.WRITABLE)]
        sources = [(os.path.realpath(bind.source), bind) for bind in binds]
        folders = [place for folder in self.folders for place in _real_places(folder)]
        self.ensure_outside(source for source, _ in sources)
        return list(self._covers(sources, folders))

    def ensure_outside(self, paths: Iterable[str | Path]) -> None:
        """Raises InvalidInput for a path that lies in one of these places: it is no workspace, and is not shown."""
        folders = [place for folder in self.folders for place in _real_places(folder)]
        for path in paths:
            for folder in folders:
                if is_beneath(os.path.realpath(path), folder):
                    raise InvalidInput(
                        f"{path} lies in {folder}, which no command in the sandbox may see", "name another folder"
                    )

    def _covers(self, sources: Sequence[tuple[str, Mount]], folders: Sequence[str]) -> Iterator[Mount]:
        for ledger in (place for path in self.ledgers for place in _real_places(path)):
            if any(is_beneath(ledger, source) for source, _ in sources):
                for file in ledger_files(Path(ledger)):
                    yield from _covers_of(str(file), sources)
        for folder in folders:
            yield from _covers_of(folder, sources)


def ensure_few(covers: Sequence[Mount]) -> None:
    """Raises InvalidInput where a sandbox would have more to hide than it can."""
    if len(covers) > MOST_COVERS:
        raise InvalidInput(
            f"the workspace holds more than {MOST_COVERS} files and folders that must be hidden",
            "make a folder with fewer of them the workspace",
        )


def _covers_of(place: str, sources: Sequence[tuple[str, Mount]]) -> Iterator[Mount]:
    """Covers of one place of the machine, at each place inside at which it would be seen."""
    for source, bind in sources:
        if not is_beneath(place, source) or os.path.islink(place):
            continue
        inside = os.path.normpath(os.path.join(bind.place, os.path.relpath(place, source)))
        if os.path.lexists(place):
            yield cover(inside, is_folder=os.path.isdir(place))
        elif bind.kind is MountKind.WRITABLE and LEDGER_FOLDER not in Path(place).parts:
            os.makedirs(place, 0o700)  # else the command could make it, and what it wrote there would be believed
            yield cover(inside, is_folder=True)


def ledger_files(ledger: Path) -> Iterator[Path]:
    """The file of a ledger, and what lies beside it, as far as it is there."""
    try:
        names = os.listdir(ledger.parent)
    except OSError:  # it is gone, or cannot be read, neither by a command
        return
    beside = tuple(ledger.name + ending for ending in BESIDE_LEDGERS)
    yield from (ledger.with_name(name) for name in sorted(names) if name == ledger.name or name.startswith(beside))


def _real_places(path: Path) -> tuple[str, ...]:
    """The path with the links on its way resolved; where it is a link itself, also what that leads to."""
    return tuple(dict.fromkeys((str(path.parent.resolve() / path.name), os.path.realpath(path))))
