"""What lies beside the database: the writers' lock, the head file, and the question where the file is."""

from __future__ import annotations

import sys
from pathlib import Path

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
