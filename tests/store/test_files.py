"""What lies beside the database: the lock, the head file, and the question where the file is."""

from hashlib import sha256
from pathlib import Path
from threading import Thread

import pytest

from weft.store.private_files import NETWORK_FILE_SYSTEMS, file_system_of
from weft.store.sqlite.connection import FileLock, HeadFile, HeadSlot

REPLICA, OTHER = "01ARZ3NDEKTSV4RRFFQ69G5FAV", "01ARZ3NDEKTSV4RRFFQ69G5FAW"


def head(n: int, replica: str = REPLICA) -> HeadSlot:
    return HeadSlot(replica, n, sha256(f"{n}".encode()).digest())


def test_a_lock_is_held_by_one_at_a_time(tmp_path: Path) -> None:
    mine, theirs = FileLock(tmp_path / "lock"), FileLock(tmp_path / "lock")
    order = []

    def contend() -> None:
        with theirs:
            order.append("theirs")

    with mine:
        thread = Thread(target=contend)
        thread.start()
        order.append("mine")
    thread.join()
    assert order == ["mine", "theirs"]
    mine.close()
    mine.close()
    theirs.close()


def test_a_head_file_remembers_the_newest_heads_whoever_wrote_them(tmp_path: Path) -> None:
    file = HeadFile(tmp_path / "head")
    assert HeadFile.load(tmp_path / "head") == []
    for n in range(1, 100):
        file.write(head(n))
    file.write(head(100, OTHER))
    found = HeadFile.load(tmp_path / "head")
    assert head(99) in found
    assert head(100, OTHER) in found
    assert len(found) == HeadFile.SLOTS
    file.close()
    file.close()


def test_a_head_file_keeps_its_size_from_the_beginning(tmp_path: Path) -> None:
    file = HeadFile(tmp_path / "head")
    size = (tmp_path / "head").stat().st_size
    for n in range(1, 50):
        file.write(head(n))
    file.clear()
    assert (tmp_path / "head").stat().st_size == size > 0
    assert HeadFile.load(tmp_path / "head") == []
    file.close()


def test_a_head_file_opened_again_keeps_what_it_says(tmp_path: Path) -> None:
    for n in (1, 2):
        file = HeadFile(tmp_path / "head")
        file.write(head(n))
        file.close()
    assert head(1) in HeadFile.load(tmp_path / "head")
    assert head(2) in HeadFile.load(tmp_path / "head")


def test_a_missing_cut_or_garbled_head_file_says_nothing(tmp_path: Path) -> None:
    path = tmp_path / "head"
    assert HeadFile.load(path) == []
    for garbage in (b"", b"WFH1", b"\0" * 752, b"\xff" * 5000, bytes(range(256)) * 3):
        path.write_bytes(garbage)
        assert HeadFile.load(path) == []


MOUNTS = """\
22 1 0:20 / / rw - ext4 /dev/vda rw
23 22 0:21 / /home rw - nfs4 server:/home rw
24 23 0:22 / /home/me/my\\040disk rw,relatime shared:1 - xfs /dev/vdb rw
25 22 0:23 / /homes rw - tmpfs tmpfs rw
26 22 0:24 / /mnt/share rw - cifs //server/share rw
"""


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/etc", "ext4"),
        ("/home/me", "nfs4"),
        ("/home/me/my disk/ledgers", "xfs"),
        ("/homes/me", "tmpfs"),
        ("/mnt/share", "cifs"),
        ("/mnt", "ext4"),
    ],
)
def test_the_file_system_of_a_path_is_that_of_its_longest_mount_point(tmp_path: Path, path: str, kind: str) -> None:
    (tmp_path / "mountinfo").write_text(MOUNTS)
    assert file_system_of(Path(path), tmp_path / "mountinfo") == kind


def test_where_the_system_does_not_tell_the_file_system_has_no_name(tmp_path: Path) -> None:
    assert file_system_of(tmp_path, tmp_path / "nowhere") == ""
    assert "" not in NETWORK_FILE_SYSTEMS
