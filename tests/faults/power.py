"""Power losses: what a disk may hold after one.

A ledger works undisturbed while everything it writes, syncs, truncates, makes and deletes is written down, its
acknowledgements in between. From such a recording follows, for any moment, what the disk holds should the power go
then: all that was synced, and of the rest whatever chance lets through, sector by sector.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import apsw
from msgspec import Struct, field

from tests.faults.scenarios import Ack
from weft.store.private_files import LedgerFile
from weft.store.sqlite.connection import HeadFile, HeadSlot

SECTOR = 512
SUFFIXES = ("", "-wal", "-journal", "-head")
SYNCS_ITS_FOLDER = ("-wal", "-journal")  # so does SQLite with the first sync of a log or journal that it made
Image = dict[str, bytes]


class Made(Struct, frozen=True):
    file: str


class Wrote(Struct, frozen=True):
    file: str
    offset: int
    data: bytes


class Cut(Struct, frozen=True):
    file: str
    size: int


class Synced(Struct, frozen=True):
    file: str


class Deleted(Struct, frozen=True):
    file: str
    folder_synced: bool


class Told(Struct, frozen=True):
    """An acknowledgement: what was done before it must survive."""

    ack: Ack | None


Step = Made | Wrote | Cut | Synced | Deleted | Told


class Inode(Struct):
    """A file as it was last synced, and what was done to it since."""

    synced: bytes = b""
    since: list[Wrote | Cut] = field(default_factory=list)

    def sync(self) -> None:
        self.synced, self.since = _applied(self.synced, self.since), []

    def after_power_loss(self, dice: random.Random) -> bytes:
        """Nothing, all or a beginning of what came after the sync; or some of it, whole or in sectors, in any order."""
        match dice.choice(("nothing", "all", "beginning", "some", "sectors")):
            case "nothing":
                kept: list[Wrote | Cut] = []
            case "all":
                kept = self.since
            case "beginning":
                whole = dice.randint(0, len(self.since))
                torn = [piece for piece in _sectors(self.since[whole : whole + 1]) if dice.random() < 0.5]
                kept = self.since[:whole] + torn
            case chosen:
                pieces = self.since if chosen == "some" else _sectors(self.since)
                share = dice.random()
                kept = [piece for piece in pieces if dice.random() < share]
        left = _applied(self.synced, kept)
        return left if dice.random() < 0.7 else self._with_garbage(left, kept, dice)

    def _with_garbage(self, left: bytes, kept: list[Wrote | Cut], dice: random.Random) -> bytes:
        """A file that grew may hold anything where nothing was written."""
        known = bytearray(len(left))
        for piece in kept:
            if isinstance(piece, Wrote):
                known[piece.offset : piece.offset + len(piece.data)] = b"\1" * len(piece.data)
        known = known[: len(left)]
        noise = dice.randbytes(len(left))
        grown = range(len(self.synced), len(left))
        changed = bytearray(left)
        for i in grown:
            if not known[i]:
                changed[i] = noise[i]
        return bytes(changed)


def _applied(data: bytes, steps: list[Wrote | Cut]) -> bytes:
    changed = bytearray(data)
    for step in steps:
        if isinstance(step, Cut):
            changed[step.size :] = bytes(max(0, step.size - len(changed)))
        else:
            changed.extend(bytes(max(0, step.offset - len(changed))))
            changed[step.offset : step.offset + len(step.data)] = step.data
    return bytes(changed)


def _sectors(steps: list[Wrote | Cut]) -> list[Wrote | Cut]:
    return [piece for step in steps for piece in ([step] if isinstance(step, Cut) else _pieces(step))]


def _pieces(wrote: Wrote) -> Iterator[Wrote]:
    """The sectors that a write touches."""
    at, end = wrote.offset, wrote.offset + len(wrote.data)
    while at < end:
        until = min(end, (at // SECTOR + 1) * SECTOR)
        yield Wrote(wrote.file, at, wrote.data[at - wrote.offset : until - wrote.offset])
        at = until


class Disk:
    """The files of one folder, step by step, with all that could still be lost."""

    def __init__(self, image: Image, *, lies: bool = False) -> None:
        """`lies`: a disk that says it has synced, and has not."""
        self._lies = lies
        self._names: dict[str, list[Inode | None]] = {file: [None] for file in SUFFIXES}  # the first one is durable
        for file, data in image.items():
            self._names[file] = [Inode(data)]

    def do(self, step: Step) -> None:
        match step:
            case Made(file):
                self._names[file].append(Inode())
            case Wrote(file) | Cut(file):
                self._inode(file).since.append(step)
            case Synced(file) if not self._lies:
                self._inode(file).sync()
                if file in SYNCS_ITS_FOLDER:
                    self._sync_folder()
            case Deleted(file, folder_synced):
                self._names[file].append(None)
                if folder_synced and not self._lies:
                    self._sync_folder()

    def _inode(self, file: str) -> Inode:
        inode = self._names[file][-1]
        assert inode is not None, f"{file} is written to and was never made"
        return inode

    def _sync_folder(self) -> None:
        self._names = {file: versions[-1:] for file, versions in self._names.items()}

    def after_power_loss(self, dice: random.Random) -> Image:
        left = {file: dice.choice(versions) for file, versions in self._names.items()}
        return {file: inode.after_power_loss(dice) for file, inode in left.items() if inode is not None}

    def undisturbed(self, file: str) -> bytes | None:
        """What the file holds when no power is lost."""
        inode = self._names[file][-1]
        return None if inode is None else _applied(inode.synced, inode.since)


class Recording:
    """Everything that happens to the files of the ledger at `path`."""

    def __init__(self, path: Path) -> None:
        self.path, self.steps = path, list[Step]()
        self.begin = image_of(path)

    def file(self, name: str) -> str | None:
        """Which of the ledger's files it is; others are nobody's loss."""
        suffix = name.removeprefix(str(self.path))
        return suffix if name.startswith(str(self.path)) and suffix in SUFFIXES else None

    def tell(self, ack: Ack | None) -> None:
        self.steps.append(Told(ack))

    def left_at(self, moment: int, dice: random.Random) -> Image:
        """What the disk may hold if the power goes after so many steps."""
        disk = Disk(self.begin)
        for step in self.steps[:moment]:
            disk.do(step)
        return disk.after_power_loss(dice)

    def power_losses(self, times: int, dice: random.Random, *, lies: bool = False) -> Iterator[PowerLoss]:
        """So many random moments, each with what was acknowledged by then and what is left on the disk."""
        moments = sorted(dice.randint(0, len(self.steps)) for _ in range(times))
        disk, done, told = Disk(self.begin, lies=lies), 0, list[Ack]()
        for moment in moments:
            for step in self.steps[done:moment]:
                disk.do(step)
                if isinstance(step, Told) and step.ack is not None:
                    told.append(step.ack)
            done = moment
            image = disk.after_power_loss(dice)
            yield PowerLoss(image, tuple(told), image.get("-head") == disk.undisturbed("-head"))


class PowerLoss(Struct, frozen=True):
    image: Image
    acks: tuple[Ack, ...]
    heads_survived: bool


def image_of(path: Path) -> Image:
    files = {suffix: Path(f"{path}{suffix}") for suffix in SUFFIXES}
    return {suffix: file.read_bytes() for suffix, file in files.items() if file.exists()}


def put_image(image: Image, path: Path) -> Path:
    """A ledger's files as the image says, and none beside them."""
    for suffix in (*SUFFIXES, "-shm", "-lock"):
        Path(f"{path}{suffix}").unlink(missing_ok=True)
    for suffix, data in image.items():
        Path(f"{path}{suffix}").write_bytes(data)
    return path


class RecordedVfs(apsw.VFS):
    """The system's files; every change of the ledger's is written down once it is done."""

    def __init__(self, name: str, recording: Recording) -> None:
        self._recording = recording
        super().__init__(name, "unix")

    def xOpen(self, name: str | apsw.URIFilename | None, flags: list[int]) -> apsw.VFSFile:  # noqa: N802
        plain = name.filename() if isinstance(name, apsw.URIFilename) else str(name or "")
        file, is_new = self._recording.file(plain), not Path(plain).exists()
        opened = _RecordedFile(self._recording, file, name, flags)
        if file is not None and is_new:
            self._recording.steps.append(Made(file))
        return opened

    def xDelete(self, filename: str, syncdir: bool) -> None:  # noqa: N802
        super().xDelete(filename, syncdir)
        if (file := self._recording.file(filename)) is not None:
            self._recording.steps.append(Deleted(file, bool(syncdir)))


class _RecordedFile(apsw.VFSFile):
    def __init__(self, recording: Recording, file: str | None, name: Any, flags: list[int]) -> None:
        super().__init__("unix", name, flags)
        self._recording, self._file = recording, file

    def xWrite(self, data: bytes, offset: int) -> None:  # noqa: N802
        super().xWrite(data, offset)
        if self._file is not None:
            self._recording.steps.append(Wrote(self._file, offset, bytes(data)))

    def xSync(self, flags: int) -> None:  # noqa: N802
        super().xSync(flags)
        if self._file is not None:
            self._recording.steps.append(Synced(self._file))

    def xTruncate(self, newsize: int) -> None:  # noqa: N802
        super().xTruncate(newsize)
        if self._file is not None:
            self._recording.steps.append(Cut(self._file, newsize))


def recorded_head_file(recording: Recording) -> type[HeadFile]:
    """The head file of a recorded ledger: it is no file of SQLite's, and nobody ever syncs it."""

    class RecordedHeadFile(HeadFile):
        def __init__(self, path: Path) -> None:
            if not path.exists():
                recording.steps.append(Made("-head"))
            super().__init__(path)

        def write(self, head: HeadSlot) -> None:
            super().write(head)
            self._note()

        def clear(self) -> None:
            super().clear()
            self._note()

        def _note(self) -> None:
            recording.steps.append(Wrote("-head", 0, Path(f"{recording.path}-head").read_bytes()))

    return RecordedHeadFile


def recorded_ledger_file(recording: Recording) -> type[LedgerFile]:
    """The file of a recorded ledger: it is made before SQLite opens it."""

    class RecordedLedgerFile(LedgerFile):
        def create(self) -> None:
            if not self.path.exists():
                recording.steps.append(Made(""))
            super().create()

    return RecordedLedgerFile
