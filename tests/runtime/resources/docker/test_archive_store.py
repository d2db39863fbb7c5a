"""The folder of archives: names by content, nothing half, nothing of anybody else's."""

from __future__ import annotations

import fcntl
import hashlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.runtime.resources.docker.running import file, packed
from weft.kernel.errors import ArchiveRefused, InUse, LimitExceeded, StoreFailed
from weft.runtime.resources.tar_archives import OWN_ARCHIVE, ArchiveRules, ArchiveStore

ONE = packed(file("x", "1"))


def test_an_archive_is_named_by_its_bytes_and_kept_for_its_owner_alone(tmp_path: Path) -> None:
    store = ArchiveStore(tmp_path / "deep" / "archives")
    stored = store.keep("one", [ONE[:100], ONE[100:]], OWN_ARCHIVE)
    (path,) = store.folder.iterdir()
    assert path.name == f"{stored.digest}.tar"
    assert hashlib.sha256(path.read_bytes()).hexdigest() == stored.digest
    assert (path.stat().st_mode & 0o777, store.folder.stat().st_mode & 0o777) == (0o600, 0o700)
    assert (stored.entries, stored.size_bytes) == (1, path.stat().st_size)
    assert store.keep("two", [ONE], OWN_ARCHIVE) == stored
    assert store.digests() == {stored.digest}
    assert store.has(stored.digest)
    assert store.remove(stored.digest)
    assert not store.remove(stored.digest)


def test_a_damaged_archive_is_mended_by_the_next_snapshot_of_the_same_files(store: ArchiveStore) -> None:
    stored = store.keep("one", [ONE], OWN_ARCHIVE)
    (store.folder / f"{stored.digest}.tar").write_bytes(b"damaged")
    store.keep("one", [ONE], OWN_ARCHIVE)
    with store.opened(stored.digest, OWN_ARCHIVE) as (entries, _):
        assert [made.path for made in entries] == [b"x"]


@pytest.mark.parametrize("archive", [b"no tar at all" * 100, ONE[:1024], b""])
def test_what_is_no_archive_leaves_nothing(store: ArchiveStore, archive: bytes) -> None:
    with pytest.raises(ArchiveRefused):
        store.keep("one", [archive], OWN_ARCHIVE)
    assert list(store.folder.iterdir()) == []


def test_an_archive_that_never_ends_is_cut(store: ArchiveStore) -> None:
    def endless() -> Iterator[bytes]:
        while True:
            yield bytes(1000)

    with pytest.raises(LimitExceeded):
        store.keep("one", endless(), ArchiveRules(archive_bytes=10_000))
    assert list(store.folder.iterdir()) == []


def test_what_a_crash_left_is_removed_and_what_is_being_written_stays(store: ArchiveStore) -> None:
    store.keep("one", [ONE], OWN_ARCHIVE)
    (store.folder / "incoming-crashed.raw").write_bytes(b"half")
    with open(store.folder / "incoming-busy.raw", "wb") as busy:
        fcntl.flock(busy, fcntl.LOCK_EX)
        assert store.remove_incoming() == 1
        assert sorted(path.suffix for path in store.folder.iterdir()) == [".raw", ".tar"]
    store.keep("two", [ONE], OWN_ARCHIVE)
    assert [path.suffix for path in store.folder.iterdir()] == [".tar"]


def test_one_operation_stores_one_archive_at_a_time(store: ArchiveStore) -> None:
    def chunks() -> Iterator[bytes]:
        with pytest.raises(InUse):
            store.keep("one", [ONE], OWN_ARCHIVE)
        yield ONE

    store.keep("one", chunks(), OWN_ARCHIVE)


def test_a_folder_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(StoreFailed, match="could not be stored"):
        ArchiveStore(tmp_path / "file" / "archives").keep("one", [ONE], OWN_ARCHIVE)


def test_a_link_in_the_store_is_not_followed(store: ArchiveStore, tmp_path: Path) -> None:
    stored = store.keep("one", [ONE], OWN_ARCHIVE)
    path = store.folder / f"{stored.digest}.tar"
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(StoreFailed, match="cannot be read"), store.opened(stored.digest, OWN_ARCHIVE):
        pass
