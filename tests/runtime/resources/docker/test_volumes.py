"""Volumes of a real engine: packed, put back exactly, found again after a crash."""

from __future__ import annotations

import tarfile
from collections.abc import Callable

import pytest

from tests.runtime.resources.docker.running import Runner, entry, file, packed
from weft.kernel.enums import ResourceCapability, ResourceKind, ResourceLiveness
from weft.kernel.errors import (
    ArchiveRefused,
    Damaged,
    EngineObjectMissing,
    EngineUnreachable,
    InvalidInput,
    KeyTaken,
    LabelTaken,
    LimitExceeded,
    Unsupported,
)
from weft.runtime.resources import engine_volumes as volume_module
from weft.runtime.resources.container_engine import (
    PODMAN_API,
    ContainerEngine,
    MadeBy,
    MadeRole,
    list_made_by,
    remove_made,
)
from weft.runtime.resources.engine_volumes import DockerVolumes
from weft.runtime.resources.tar_archives import OWN_ARCHIVE, ArchiveRules, ArchiveStore

DIR, LINK, SYMLINK, PIPE = tarfile.DIRTYPE, tarfile.LNKTYPE, tarfile.SYMTYPE, tarfile.FIFOTYPE
LONG = "long-" * 40
ODD_FILES = packed(
    entry("./", DIR, 0o711, uid=7, gid=8),
    (entry("plain", mode=0o640, uid=12, gid=34), b"hello"),
    entry("twin", LINK, 0o640, uid=12, gid=34, linkname="plain"),
    entry("near", SYMLINK, 0o777, linkname="plain"),
    entry("away", SYMLINK, 0o777, uid=9, linkname="/etc/passwd"),
    entry("above", SYMLINK, 0o777, linkname="../../.."),
    entry("empty", DIR, 0o1770, uid=60_000, gid=6),
    entry("deep", DIR, 0o555),
    entry("deep/er", DIR, 0o700),
    entry("deep/pipe", PIPE, 0o620),
    (entry("deep/er/set", mode=0o4755, uid=3), b"x"),
    entry("deep/er/closed", mode=0o000),
    (entry("odd \udce9\n*name"), b"y"),
    entry("-dash"),
    entry("A"),
    entry("a"),
    entry(LONG, SYMLINK, 0o777, linkname=LONG),
)

ONE = packed(entry("./", DIR, 0o755), file("file", "one\n"))

Key = Callable[[str], MadeBy]


def test_a_restored_volume_is_the_volume_that_was_packed(
    volumes: DockerVolumes, store: ArchiveStore, run: Runner, key: Key
) -> None:
    name = run.volume(ODD_FILES)
    snapshot = volumes.snapshot(name, key("pack"))
    assert (snapshot.method, snapshot.reference_kind, snapshot.consistency) == (
        "docker_volume_tar",
        "tar",
        "crash_consistent",
    )
    path = store.folder / f"{snapshot.reference_id}.tar"
    assert path.stat().st_size == snapshot.size_bytes

    restored = volumes.restore(snapshot.reference_id, key("restore"), rules=OWN_ARCHIVE)
    run.forget_later(restored.name)
    assert volumes.snapshot(restored.name, key("again")) == snapshot, "one archive for the same files"
    assert store.digests() == {snapshot.reference_id}

    with tarfile.open(path, encoding="utf-8", errors="surrogateescape") as archive:
        entries = {entry.name: entry for entry in archive}
    assert (entries["plain"].uid, entries["plain"].gid, entries["plain"].mode) == (12, 34, 0o640)
    assert entries["twin"].islnk()
    assert (entries["away"].linkname, entries["above"].linkname) == ("/etc/passwd", "../../..")
    assert (entries["empty"].uid, entries["empty"].mode, entries["deep/pipe"].isfifo()) == (60_000, 0o1770, True)
    assert entries["deep/er/set"].mode == 0o4755
    assert (entries["."].uid, entries["."].mode) == (7, 0o711)
    assert {"odd \udce9\n*name", "A", "a", LONG} <= entries.keys()


def test_a_volume_says_what_it_is_and_whether_it_is_there(volumes: DockerVolumes, run: Runner) -> None:
    name = run.volume()
    description = volumes.describe(name)
    assert (description.kind, description.name) == (ResourceKind.DOCKER_VOLUME, name)
    assert {ResourceCapability.SNAPSHOT, ResourceCapability.RESTORE} <= set(description.capabilities)
    assert volumes.probe(name) is ResourceLiveness.ALIVE
    assert volumes.remove(name) is True
    assert volumes.remove(name) is False
    assert volumes.probe(name) is ResourceLiveness.DEAD
    with pytest.raises(EngineObjectMissing, match="no volume"):
        volumes.describe(name)


def test_a_volume_of_an_engine_that_is_away_is_neither_alive_nor_dead(store: ArchiveStore) -> None:
    with ContainerEngine("unix:///nowhere/engine.sock") as engine:
        assert DockerVolumes(engine, store).probe("any") is ResourceLiveness.UNKNOWN


def test_packing_a_volume_that_is_not_there_makes_none(volumes: DockerVolumes, store: ArchiveStore, key: Key) -> None:
    with pytest.raises(EngineObjectMissing):
        volumes.snapshot("never-made", key("pack"))
    assert volumes.probe("never-made") is ResourceLiveness.DEAD
    assert store.digests() == frozenset()


def test_a_volume_that_is_too_large_leaves_nothing(
    volumes: DockerVolumes, store: ArchiveStore, engine: ContainerEngine, run: Runner, key: Key
) -> None:
    name = run.volume(packed((entry("big"), bytes(65_536))))
    with pytest.raises(LimitExceeded, match="bytes of the archive"):
        volumes.snapshot(name, key("pack"), ArchiveRules(archive_bytes=20_000))
    assert list(store.folder.iterdir()) == []
    assert list_made_by(engine, resource=key("pack").resource) == ()


def test_a_restore_that_is_repeated_finds_its_volume(
    volumes: DockerVolumes, store: ArchiveStore, run: Runner, key: Key
) -> None:
    digest = store.keep("archive", [ONE], OWN_ARCHIVE).digest
    first = volumes.restore(digest, key("restore"))
    run.forget_later(first.name)
    run.fill(first.name, packed(file("file", "two\n")))
    again = volumes.restore(digest, key("restore"))
    assert (first.is_new, again.is_new, again.name) == (True, False, first.name)

    other = volumes.snapshot(first.name, key("other"))
    assert other.reference_id != digest, "what was written into it since is still there"
    with pytest.raises(KeyTaken):
        volumes.restore(other.reference_id, key("restore"))


def test_a_restore_that_crashed_is_begun_anew(
    volumes: DockerVolumes,
    store: ArchiveStore,
    engine: ContainerEngine,
    run: Runner,
    key: Key,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    digest = store.keep("archive", [ONE], OWN_ARCHIVE).digest

    def crash(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(volume_module, "write_volume", crash)
        with pytest.raises(KeyboardInterrupt):
            volumes.restore(digest, key("restore"))
    left = list_made_by(engine, operation=key("restore").operation)
    assert [made.role for made in left] == [MadeRole.MARKER, MadeRole.RESULT]

    restored = volumes.restore(digest, key("restore"))
    run.forget_later(restored.name)
    assert restored.is_new
    assert volumes.snapshot(restored.name, key("check")).reference_id == digest
    (made,) = list_made_by(engine, operation=key("restore").operation)
    assert (made.name, made.role, made.resource) == (restored.name, MadeRole.RESULT, key("restore").resource)
    assert remove_made(engine, made) is True
    assert list_made_by(engine, operation=key("restore").operation) == ()


def test_a_restore_that_fails_leaves_nothing_behind(
    volumes: DockerVolumes,
    store: ArchiveStore,
    engine: ContainerEngine,
    key: Key,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    digest = store.keep("archive", [ONE], OWN_ARCHIVE).digest

    def fail(*_: object) -> None:
        raise EngineUnreachable("unix:///x", "it went away")

    monkeypatch.setattr(volume_module, "write_volume", fail)
    with pytest.raises(EngineUnreachable):
        volumes.restore(digest, key("restore"))
    assert list_made_by(engine, resource=key("restore").resource) == ()


def test_a_restore_does_not_write_into_a_volume_that_somebody_else_made(
    volumes: DockerVolumes, store: ArchiveStore, engine: ContainerEngine, run: Runner, key: Key
) -> None:
    mine = run.volume(packed(file("file", "mine")))
    digest = store.keep("archive", [packed(file("file", "other"))], OWN_ARCHIVE).digest
    with pytest.raises(LabelTaken, match="already a volume"):
        volumes.restore(digest, key("restore"), name=mine)
    assert volumes.snapshot(mine, key("mine")).reference_id != digest
    assert list_made_by(engine, resource=key("restore").resource) == ()


def test_what_is_dangerous_in_a_strangers_archive_is_brought_back_only_when_told(
    volumes: DockerVolumes, store: ArchiveStore, engine: ContainerEngine, key: Key
) -> None:
    digest = store.keep("archive", [packed(entry("away", SYMLINK, linkname="/etc/passwd"))], OWN_ARCHIVE).digest
    with pytest.raises(ArchiveRefused, match="leads out"):
        volumes.restore(digest, key("restore"))
    assert list_made_by(engine, resource=key("restore").resource) == ()


def test_an_archive_that_is_missing_or_damaged_is_not_restored(
    volumes: DockerVolumes, store: ArchiveStore, key: Key
) -> None:
    digest = store.keep("archive", [ONE], OWN_ARCHIVE).digest
    path = store.folder / f"{digest}.tar"
    data = path.read_bytes()
    path.write_bytes(data.replace(b"one\n", b"two\n"))
    with pytest.raises(Damaged, match="is damaged"):
        volumes.restore(digest, key("restore"))
    assert store.remove(digest)
    with pytest.raises(Damaged, match="no archive"):
        volumes.restore(digest, key("restore"))
    with pytest.raises(InvalidInput):
        volumes.restore("../../etc/passwd", key("restore"))


def test_an_engine_whose_archives_have_no_owners_needs_an_image_with_tar(
    engine: ContainerEngine, store: ArchiveStore, run: Runner, key: Key
) -> None:
    if engine.facts().archives_have_owners:
        pytest.skip("this engine tells whose files are")
    without = DockerVolumes(engine, store)
    name = run.volume(ONE)
    with pytest.raises(Unsupported, match="do not tell whose"):
        without.snapshot(name, key("pack"))
    run.container(["/bin/true"], name)
    assert without.snapshot(name, key("pack")).size_bytes, "the image of a container that uses the volume has tar"


def test_packing_a_volume_that_nobody_has_used_leaves_it_to_its_first_user(
    engine: ContainerEngine, volumes: DockerVolumes, store: ArchiveStore, run: Runner, key: Key
) -> None:
    if engine.facts().archives_have_owners:
        pytest.skip("this engine reads a volume without using it")
    engine.call("POST", "/volumes/create", asked="make a volume", body={"Name": "fresh"})
    run.forget_later("fresh")
    snapshot = volumes.snapshot("fresh", key("pack"))
    with store.opened(snapshot.reference_id, OWN_ARCHIVE) as (entries, _):
        assert entries == ()
    assert engine.call("GET", f"{PODMAN_API}/volumes/fresh/json", asked="describe")["NeedsChown"] is True
    run.fill("fresh", ONE)
    with pytest.raises(Unsupported, match="before a container has used it"):
        volumes.snapshot("fresh", key("again"))


def test_the_key_of_an_operation_must_fit_into_a_label() -> None:
    with pytest.raises(InvalidInput, match="cannot be a label"):
        MadeBy("resource", 'x"\nLABEL other=1')
