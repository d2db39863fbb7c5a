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


class Head(Struct, frozen=True):
    n: int
    chain: bytes


class HeadFile:
    """The newest acknowledged arrival numbers, outside the database, so that a cut or older copy is noticed.

    Eight checksummed slots are written in turn, each after its commit and under the writers' lock, without a sync.
    A torn slot is ignored; the others still speak. A slot older than the database is normal after a crash.
    """

    SLOTS = 8
    _FORM = struct.Struct(">4s26s6xQ32s")
    _MAGIC = b"WFH1"
    _SLOT_BYTES = _FORM.size + 16

    def __init__(self, path: Path, replica: str) -> None:
        self.path, self._replica = path, replica.encode()
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)

    def write(self, head: Head) -> None:
        body = self._FORM.pack(self._MAGIC, self._replica, head.n, head.chain)
        os.pwrite(self._fd, body + sha256(body).digest()[:16], (head.n % self.SLOTS) * self._SLOT_BYTES)

    def heads(self) -> list[Head]:
        data = os.pread(self._fd, self.SLOTS * self._SLOT_BYTES, 0)
        slots = (data[i : i + self._SLOT_BYTES] for i in range(0, len(data), self._SLOT_BYTES))
        return [head for slot in slots if (head := self._parse(slot)) is not None]

    def _parse(self, slot: bytes) -> Head | None:
        body, check = slot[: self._FORM.size], slot[self._FORM.size :]
        if len(slot) < self._SLOT_BYTES or sha256(body).digest()[:16] != check:
            return None
        magic, replica, n, chain = self._FORM.unpack(body)
        return Head(n, chain) if magic == self._MAGIC and replica == self._replica else None

    def clear(self) -> None:
        os.ftruncate(self._fd, 0)

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def refuse_unsafe_place(path: Path) -> None:
    """SQLite's locks and shared memory are not safe everywhere; such places are refused before anything is written."""
    if not sys.platform.startswith(("linux", "darwin")):
        raise Unsupported(f"weft runs on Linux and macOS, not on {sys.platform}")
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
