"""What was covered in a workspace at earlier commands, so that a command cannot take it out of the next one's look.

Folders that tools fill, such as `node_modules`, are not looked through each time. A command can move there what lies in
another folder. So each look begins with what the one before covered: a place that is no longer there is searched for
everywhere, by its name and its number in its file system, which a command cannot change while it is covered.

One file for each workspace lies beside the person's other state, where no command sees it. Whoever looks holds a lock
for as long as the command runs that it looked for. Places are forgotten only by somebody who holds the lock alone:
while another command runs it could move a thing from folder to folder, ahead of the search.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from msgspec import DecodeError, Struct, ValidationError
from msgspec.json import decode, encode

from weft.kernel.errors import StoreFailed
from weft.store.atomic_files import PRIVATE_FILE, make_folder, new_file

MOST_BYTES = 16 * 1024 * 1024
_OPEN_LOCK = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC


class RememberedPlace(Struct, frozen=True, kw_only=True):
    """A file or folder of a workspace that was covered."""

    path: bytes
    """From the workspace on; names are any bytes."""
    device: int
    number: int
    """In its file system, as its folder lists it."""
    is_folder: bool
    is_lasting: bool = False
    """Whether it stays hidden though neither its name nor a link says that it should be."""
    ignores_shown: bool = False
    """Whether it stays hidden though it lies where the person shows a file: it was hidden elsewhere and was moved."""

    @property
    def text(self) -> str:
        return os.fsdecode(self.path)


class PlaceMemory:
    """The places of one kind that are remembered of one workspace. `kind` tells those apart that are looked for by
    different rules. `workspace` has no links on its way. Close it when the command has ended."""

    def __init__(self, folder: Path, workspace: Path, kind: str) -> None:
        """By its path alone: a folder that took the place of another has nothing of what is remembered, and one that is
        mounted anew after a start of the machine has another number. Raises OSError where nothing can be noted."""
        name = hashlib.sha256(os.fsencode(workspace)).hexdigest()[:32]
        self._file = folder / name / f"{kind}.json"
        make_folder(self._file.parent)
        self._lock = os.open(self._file.with_suffix(".lock"), _OPEN_LOCK, PRIVATE_FILE)
        self.is_alone = False
        """Whether no command runs that somebody else looked for."""

    def load(self) -> tuple[RememberedPlace, ...] | None:
        """What was covered; None where that cannot be known. Waits for somebody else's look."""
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self.is_alone = True
        except BlockingIOError:
            fcntl.flock(self._lock, fcntl.LOCK_SH)
            self.is_alone = False
        return self._load()

    def _load(self) -> tuple[RememberedPlace, ...] | None:
        try:
            with self._file.open("rb") as file:
                data = file.read(MOST_BYTES)
            return decode(data, type=tuple[RememberedPlace, ...])
        except FileNotFoundError:  # the first command in this workspace
            return ()
        except (OSError, DecodeError, ValidationError):
            return None

    def save(self, covered: Iterable[RememberedPlace], absent: Iterable[RememberedPlace] = ()) -> None:
        """Before the command runs. `absent` was remembered and is nowhere now: it is forgotten where nobody else's
        command can have it. Then others may look, too."""
        places = set(covered)
        with self._writing():
            known = self._load()
            if not self.is_alone:  # what others covered since stays, too
                places.update(absent, known or ())
            ordered = tuple(sorted(places, key=lambda place: (place.path, place.device, place.number)))
            if ordered != known:
                self._write(ordered)
        fcntl.flock(self._lock, fcntl.LOCK_SH)

    def _write(self, places: tuple[RememberedPlace, ...]) -> None:
        try:
            with new_file(self._file) as file:
                file.write(encode(places))
        except OSError as error:  # the next command would not know what to look for
            raise StoreFailed(
                f"what is hidden from commands cannot be noted in {self._file}: {error.strerror}", "make room there"
            ) from None

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """One at a time reads the file, adds to it and writes it."""
        descriptor = os.open(self._file.with_suffix(".write"), _OPEN_LOCK, PRIVATE_FILE)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)

    def close(self) -> None:
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1


def memory_of(folder: Path | None, workspace: Path, kind: str) -> PlaceMemory | None:
    """None where nothing can be remembered: everything is looked through then."""
    if folder is None:
        return None
    try:
        return PlaceMemory(folder, workspace, kind)
    except OSError:  # a home folder that cannot be written
        return None
