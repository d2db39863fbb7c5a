"""What lies beside the database: the writers' lock, the head file, and the question where the file is."""

from __future__ import annotations

import fcntl
import os
import struct
import sys
from hashlib import sha256
from pathlib import Path

from msgspec import Struct

from weft.kernel.errors import Unsupported

NETWORK_FILE_SYSTEMS = frozenset(
    {
        "nfs",
        "nfs4",
        "cifs",
        "smb3",
        "smbfs",
        "afs",
        "ncpfs",
        "9p",
        "fuse.sshfs",
        "fuse.s3fs",
        "glusterfs",
        "ceph",
        "lustre",
    }
)


class FileLock:
    """One writer at a time across processes; waiters are served in turn, where SQLite's own would starve them."""

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)

    def __enter__(self) -> None:
        fcntl.flock(self._fd, fcntl.LOCK_EX)

    def __exit__(self, *exc: object) -> None:
        fcntl.flock(self._fd, fcntl.LOCK_UN)

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class HeadSlot(Struct, frozen=True):
    replica: str
    n: int
    chain: bytes


class HeadFile:
    """The newest acknowledged arrival numbers, outside the database, so that a cut or older copy is noticed.

    Eight checksummed slots, spread by their hash, are written after each commit under the writers' lock, without a
    sync. A torn slot is ignored; the others still speak. A slot older than the database is normal after a crash. The
    whole file is made at once, so that a full disk cannot come between a commit and its slot.
    """

    SLOTS = 8
    _FORM = struct.Struct(">4s26s6xQ32s")
    _MAGIC = b"WFH1"
    _SLOT_BYTES = _FORM.size + 16

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        if os.fstat(self._fd).st_size == 0:
            self.clear()

    def write(self, head: HeadSlot) -> None:
        body = self._FORM.pack(self._MAGIC, head.replica.encode(), head.n, head.chain)
        os.pwrite(self._fd, body + sha256(body).digest()[:16], (head.chain[0] % self.SLOTS) * self._SLOT_BYTES)

    @classmethod
    def load(cls, path: Path) -> list[HeadSlot]:
        """What the file says, whoever wrote it; nothing where there is none."""
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            return []
        slots = (data[i : i + cls._SLOT_BYTES] for i in range(0, len(data), cls._SLOT_BYTES))
        return [head for slot in slots if (head := cls._parse(slot)) is not None]

    @classmethod
    def _parse(cls, slot: bytes) -> HeadSlot | None:
        body, check = slot[: cls._FORM.size], slot[cls._FORM.size :]
        if len(slot) < cls._SLOT_BYTES or sha256(body).digest()[:16] != check:
            return None
        magic, replica, n, chain = cls._FORM.unpack(body)
        return HeadSlot(replica.decode(errors="replace"), n, chain) if magic == cls._MAGIC else None

    def clear(self) -> None:
        os.pwrite(self._fd, bytes(self.SLOTS * self._SLOT_BYTES), 0)

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def refuse_unsafe_place(path: Path) -> None:
    """SQLite's locks and shared memory are not safe everywhere; such places are refused before anything is written."""
    if not sys.platform.startswith(("linux", "darwin")):
        raise Unsupported(
            f"weft runs on Linux and macOS, not on {sys.platform}",
            "use one of them, or a ledger in PostgreSQL from there",
        )
    kind = file_system_of(path)
    if kind in NETWORK_FILE_SYSTEMS:
        raise Unsupported(
            f"{path} lies on a network file system ({kind}), where SQLite can lose data",
            "put the ledger on a local disk and copy backups there",
        )


def file_system_of(path: Path, mounts: Path = Path("/proc/self/mountinfo")) -> str:
    """The type of the file system that holds `path`, or an empty string where the system does not tell."""
    try:
        lines = mounts.read_text().splitlines()
    except OSError:
        return ""
    real, best, kind = str(path.resolve()), "", ""
    for line in lines:
        fields = line.split(" ")
        point = fields[4].replace("\\040", " ")
        inside = real == point or real.startswith(point.rstrip("/") + "/")
        if inside and len(point) >= len(best):
            best, kind = point, fields[fields.index("-") + 1]
    return kind
