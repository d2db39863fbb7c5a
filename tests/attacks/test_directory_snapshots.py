"""A folder that a stranger fills, and a stored snapshot that a stranger made: neither reaches anything outside."""

from __future__ import annotations

import io
import os
import stat
import subprocess
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from tests.runtime.resources.directories.folders import contents, write
from tests.sizes import share
from weft.kernel.errors import Damaged, InvalidInput, LimitExceeded, StoreFailed, WeftError
from weft.runtime.folder_snapshots import known_files
from weft.runtime.folder_snapshots.file_store import FileStore
from weft.runtime.folder_snapshots.folder_scan import write_snapshot
from weft.runtime.folder_snapshots.snapshot_changes import FolderRestoring
from weft.runtime.folder_snapshots.snapshot_objects import BLOB, TREE, Manifest, ObjectWriter, SnapshotLimit
from weft.runtime.sandbox.own_git import find_git, opened_repository

Forge = Callable[[ObjectWriter, bytes], bytes]


@pytest.fixture
def store(quick_path: Path) -> FileStore:
    return FileStore(quick_path / "store")


@pytest.fixture
def folder(quick_path: Path) -> Path:
    place = quick_path / "outer" / "work"
    place.mkdir(parents=True)
    write(place.parent, {"outside": "untouched", "work/mine": "mine"})
    return place


def entry(mode: bytes, name: bytes, id: bytes) -> bytes:
    return mode + b" " + name + b"\0" + id


def forged(store: FileStore, quick_path: Path, files: Forge | None = None, manifest: bytes | None = None) -> str:
    """A snapshot as no program of ours would write it."""
    with store.hold():
        pass
    with (
        opened_repository(find_git(), quick_path / "store" / "git") as git,
        ObjectWriter(git, quick_path / "store" / "scratch") as writer,
    ):
        blob = writer.add(BLOB, b"planted")
        tree = files(writer, blob) if files else writer.add(TREE, entry(b"100644", b"a", blob))
        if manifest is None:
            snapshot = write_snapshot(writer, tree, Manifest())
        else:
            told = entry(b"40000", b"files", tree) + entry(b"100644", b"manifest", writer.add(BLOB, manifest))
            snapshot = writer.add(TREE, told).hex()
        writer.finish()
    return snapshot


def nested(names: int, *, fan: int = 1) -> Forge:
    def forge(writer: ObjectWriter, blob: bytes) -> bytes:
        tree = writer.add(TREE, entry(b"100644", b"a", blob))
        for _ in range(names):
            tree = writer.add(TREE, b"".join(entry(b"40000", b"%d" % number, tree) for number in range(fan)))
        return tree

    return forge


def one(mode: bytes, name: bytes) -> Forge:
    return lambda writer, blob: writer.add(TREE, entry(mode, name, blob))


def several(*names: bytes) -> Forge:
    return lambda writer, blob: writer.add(TREE, b"".join(entry(b"100644", name, blob) for name in names))


def below(name: bytes) -> Forge:
    def forge(writer: ObjectWriter, blob: bytes) -> bytes:
        return writer.add(TREE, entry(b"40000", name, writer.add(TREE, entry(b"100644", b"outside", blob))))

    return forge


HEAD = b"weft folder 1\n644 755 755\n"
TREES: dict[str, Forge] = {
    "the folder above": below(b".."),
    "the folder itself": below(b"."),
    "a repository": below(b".git"),
    "a ledger": below(b".weft"),
    "an absolute path": one(b"100644", b"/etc/passwd"),
    "a path as a name": one(b"100644", b"../outside"),
    "no name": one(b"100644", b""),
    "a long name": one(b"100644", b"x" * 300),
    "git's attributes": one(b"100644", b".gitattributes"),
    "a mark that is not needed": one(b"100644", b"=plain"),
    "a repository behind the mark": one(b"100644", b"=.git"),
    "a submodule": one(b"160000", b"module"),
    "a setuid file": one(b"104755", b"root"),
    "a folder that is a file": one(b"40000", b"folder"),
    "one name twice": several(b"a", b"a"),
    "the wrong order": several(b"b", b"a"),
    "a long path": nested(1600),
    "two to the fortieth folders": nested(40, fan=2),
    "an empty tree": lambda writer, _: writer.add(TREE, entry(b"40000", b"d", writer.add(TREE, b""))),
    "a cut tree": lambda writer, blob: writer.add(TREE, entry(b"100644", b"a", blob)[:-4]),
}
MANIFESTS = {
    "another form": b"weft folder 9\n644 755 755\n",
    "no end": HEAD + b"f 600 a",
    "the folder above": HEAD + b"e 0 ../x\0",
    "an absolute path": HEAD + b"e 0 /x\0",
    "a repository": HEAD + b"e 0 .git/hooks\0",
    "a setuid mode": HEAD + b"f 4755 a\0",
    "no number": HEAD + b"f 9z a\0",
    "the wrong order": HEAD + b"e 0 y\0e 0 x\0",
    "twice": HEAD + b"e 0 x\0e 0 x\0",
    "a file as an empty folder": HEAD + b"e 0 a\0",
    "an unknown record": HEAD + b"z 0 a\0",
    "nothing": b"",
}


@pytest.mark.parametrize("what", share(list(TREES), test=7))
def test_a_forged_tree_is_refused_and_nothing_is_written(
    store: FileStore, folder: Path, quick_path: Path, what: str
) -> None:
    try:
        snapshot = forged(store, quick_path, TREES[what])
    except StoreFailed:
        return  # git itself refuses to store it
    before = contents(folder.parent)
    limit = SnapshotLimit(files=2000)
    for act in (
        lambda: store.restore(snapshot, folder, limit=limit),
        lambda: store.restore(snapshot, quick_path / "beside", limit=limit),
        lambda: store.changes(None, snapshot, limit=limit),
    ):
        with pytest.raises((Damaged, LimitExceeded)):
            act()
    assert store.verify(snapshot, limit=limit) != []
    assert contents(folder.parent) == before
    assert contents(quick_path / "beside") == {}


@pytest.mark.parametrize("what", MANIFESTS)
def test_a_forged_manifest_is_refused_and_nothing_is_written(
    store: FileStore, folder: Path, quick_path: Path, what: str
) -> None:
    snapshot = forged(store, quick_path, manifest=MANIFESTS[what])
    before = contents(folder.parent)
    with pytest.raises(Damaged):
        store.restore(snapshot, folder)
    assert store.verify(snapshot) != []
    assert contents(folder.parent) == before


def test_a_manifest_of_paths_that_are_not_there_does_no_harm_and_is_told(
    store: FileStore, folder: Path, quick_path: Path
) -> None:
    snapshot = forged(store, quick_path, manifest=HEAD + b"d 700 none\0f 777 nowhere\0")
    assert len(store.verify(snapshot)) == 2
    store.restore(snapshot, folder)
    assert contents(folder).keys() == {b"a"}


def test_a_folder_that_becomes_a_link_while_it_is_restored_leads_nowhere(
    store: FileStore, folder: Path, quick_path: Path
) -> None:
    write(folder, {f"d/e/{number}": "one" for number in range(20)})
    first = store.snapshot(folder).id
    write(folder, {f"d/e/{number}": "two" for number in range(20)})
    second = store.snapshot(folder).id
    outside = quick_path / "elsewhere"
    write(outside, {"e/0": "outside", "e/1": "outside"})
    before = contents(outside)
    stop = threading.Event()

    def swap() -> None:
        while not stop.is_set():
            with suppress(OSError):  # the restore makes and removes folders meanwhile
                os.rename(folder / "d", folder / "real")
                os.symlink(outside, folder / "d")
            with suppress(OSError):
                os.unlink(folder / "d")
            with suppress(OSError):
                os.rename(folder / "real", folder / "d")

    thread = threading.Thread(target=swap)
    thread.start()
    try:
        for snapshot in (first, second) * 4:
            try:
                store.restore(snapshot, folder, only=["d"])
            except WeftError:
                continue  # refused, because the folder was gone at some moment
    finally:
        stop.set()
        thread.join()
    assert contents(outside) == before


def test_links_are_kept_and_never_gone_through(store: FileStore, folder: Path, quick_path: Path) -> None:
    write(folder, {"d/a": "inside"})
    snapshot = store.snapshot(folder).id
    outside = quick_path / "elsewhere"
    write(outside, {"a": "outside", "b": "outside"})
    (folder / "d/a").unlink()
    (folder / "d").rmdir()
    (folder / "d").symlink_to(outside)
    with_link = store.snapshot(folder)
    assert [change.path for change in store.changes(None, with_link.id)] == ["d", "mine"]
    store.restore(snapshot, folder)
    assert contents(outside) == {b"a": ("file", 0o644, b"outside"), b"b": ("file", 0o644, b"outside")}
    assert (folder / "d/a").read_text() == "inside"


def test_a_second_name_of_a_file_outside_is_not_written_through(store: FileStore, folder: Path) -> None:
    write(folder, {"file": "inside"})
    snapshot = store.snapshot(folder).id
    (folder / "file").unlink()
    os.link(folder.parent / "outside", folder / "file")
    store.restore(snapshot, folder)
    assert (folder.parent / "outside").read_text() == "untouched"
    assert (folder / "file").read_text() == "inside"


def test_bits_that_give_rights_are_neither_kept_nor_restored(store: FileStore, folder: Path, quick_path: Path) -> None:
    write(folder, {"program": "p", "d/": b""})
    (folder / "program").chmod(0o6755)
    (folder / "d").chmod(0o3777)
    store.restore(store.snapshot(folder).id, quick_path / "beside")
    assert stat.S_IMODE((quick_path / "beside/program").stat().st_mode) == 0o755
    assert stat.S_IMODE((quick_path / "beside/d").stat().st_mode) == 0o777


def hostile_repository(folder: Path) -> Path:
    """What git obeys, wherever it looks for it; each would leave a file behind."""
    canary = folder.parent / "ran"
    touch = f"touch {canary}"
    subprocess.run(["git", "init", "-q", str(folder)], check=True)
    with open(folder / ".git/config", "a") as config:
        config.write(
            f'[core]\n\tfsmonitor = "{touch};"\n\thooksPath = {folder}/hooks\n\tattributesFile = {folder}/attributes\n'
            f'[filter "evil"]\n\tclean = "{touch}"\n\tsmudge = "{touch}"\n\trequired = true\n'
            f'[diff "evil"]\n\ttextconv = "{touch}"\n\tcommand = "{touch}"\n[merge "evil"]\n\tdriver = "{touch}"\n'
        )
    rule = "* filter=evil diff=evil merge=evil text eol=crlf ident\n"
    write(folder, {".gitattributes": rule, "attributes": rule, "text": "one\r\ntwo\n$Id$\n"})
    for hook in ("post-checkout", "post-index-change", "pre-commit", "reference-transaction"):
        write(folder, {f"hooks/{hook}": f"#!/bin/sh\n{touch}\n", f".git/hooks/{hook}": f"#!/bin/sh\n{touch}\n"})
        (folder / "hooks" / hook).chmod(0o755)
        (folder / ".git/hooks" / hook).chmod(0o755)
    return canary


def test_nothing_that_git_obeys_in_the_folder_or_the_environment_is_obeyed(
    store: FileStore, folder: Path, quick_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    canary = hostile_repository(folder)
    for name, value in {
        "GIT_DIR": f"{folder}/.git",
        "GIT_WORK_TREE": "/",
        "GIT_INDEX_FILE": f"{folder}/.git/other",
        "GIT_OBJECT_DIRECTORY": f"{folder}/.git/objects",
        "GIT_EXTERNAL_DIFF": f"touch {canary}",
        "GIT_CONFIG_COUNT": "1",
        "GIT_CONFIG_KEY_0": "core.fsmonitor",
        "GIT_CONFIG_VALUE_0": f"touch {canary};",
        "GIT_CONFIG_GLOBAL": f"{folder}/.git/config",
        "HOME": str(folder),
    }.items():
        monkeypatch.setenv(name, value)
    first = store.snapshot(folder).id
    before = contents(folder)
    write(folder, {"text": "other\n", "more": "m\n"})
    second = store.snapshot(folder).id
    assert store.text_diff(store.changes(first, second)[1]) is not None
    assert store.merge(first, second, first).id == second
    store.restore(first, folder)
    assert contents(folder) == before
    store.restore(first, quick_path / "beside")
    assert contents(quick_path / "beside") == before
    store.prune(lambda: [first])
    assert not canary.exists()


def git(folder: Path, *words: str) -> bytes:
    command = ["git", "-c", "user.name=a", "-c", "user.email=b", "-c", "protocol.file.allow=always", *words]
    return subprocess.run(command, cwd=folder, check=True, capture_output=True).stdout


def test_a_repository_with_a_submodule_and_a_changed_index_stays_as_it_is(
    store: FileStore, folder: Path, quick_path: Path
) -> None:
    library = quick_path / "library"
    write(library, {"lib.py": "library\n"})
    git(library, "init", "-q")
    git(library, "add", ".")
    git(library, "commit", "-qm", "one")
    git(folder, "init", "-q")
    write(folder, {"a": "1", "b": "1", ".gitignore": "*.log\n", "x.log": "log"})
    git(folder, "submodule", "--quiet", "add", str(library), "module")
    git(folder, "add", ".")
    git(folder, "commit", "-qm", "one")
    write(folder, {"a": "staged", "new": "untracked", "module/lib.py": "changed\n", "module/more": "m"})
    git(folder, "add", "a")
    write(folder, {"a": "changed again"})
    git(folder, "init", "-q", "nested")
    write(folder, {"nested/file": "n", ".git/info/exclude": "excluded\n", "excluded": "e"})
    git(folder, "status")

    def state() -> tuple[bytes, ...]:
        files = (folder / ".git/index", folder / ".git/modules/module/index", folder / "nested/.git/HEAD")
        status = git(folder, "--no-optional-locks", "status", "--porcelain=v2", "--ignored")
        return (status, git(folder, "for-each-ref"), *(file.read_bytes() for file in files))

    before, files = state(), contents(folder)
    snapshot = store.snapshot(folder)
    assert state() == before
    kept = {change.path for change in store.changes(None, snapshot.id)}
    assert kept == {".gitignore", ".gitmodules", "a", "b", "mine", "module/lib.py", "module/more", "nested/file", "new"}
    write(folder, {"a": "2", "module/lib.py": "2", "nested/file": "2", "nested/new": "2", "x.log": "new log"})
    (folder / "b").unlink()
    store.restore(snapshot.id, folder)
    files[b"x.log"] = ("file", 0o644, b"new log")
    assert contents(folder) == files
    assert git(folder, "status", "--porcelain=v2", "--ignored") == before[0]
    assert git(folder, "for-each-ref") == before[1]
    inner = FileStore(quick_path / "inner").snapshot(folder / "module")
    assert inner.files == 2


def test_rules_that_are_pipes_links_or_endless_open_nothing_and_end(
    store: FileStore, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(folder.parent, {"rules": "mine\n"})
    write(folder, {"a/x": "1", "b/x": "1"})
    os.mkfifo(folder / "a/.gitignore")
    (folder / "b/.gitignore").symlink_to(folder.parent / "rules")
    assert store.snapshot(folder).files == 4  # the link is kept as a link, and gives no rules
    monkeypatch.setattr(known_files, "ANSWER_SECONDS", 0.5)
    write(folder, {"c/.gitignore": "**/" * 14 + "b\n", "c/" + "a/" * 150 + "a": "deep"})
    with pytest.raises(StoreFailed, match="what the folder"):
        store.snapshot(folder)


def test_rules_that_are_slow_in_every_folder_have_one_time_for_all(
    store: FileStore, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(folder, {".gitignore": "*.log\n", "a/x": "1", "b/x": "1"})
    monkeypatch.setattr(known_files, "MOST_SECONDS", 0.0)
    with pytest.raises(StoreFailed, match="more than 0 seconds for the folders before"):
        store.snapshot(folder)


@pytest.mark.parametrize("plant", ["config", "commondir", "hooks", "objects/info/alternates", "info/grafts", "git"])
def test_a_store_that_somebody_else_prepared_is_not_used(folder: Path, quick_path: Path, plant: str) -> None:
    store = FileStore(quick_path / "store")
    store.snapshot(folder)
    repository = quick_path / "store" / "git"
    if plant == "git":
        repository.rename(quick_path / "moved")
        repository.symlink_to(quick_path / "moved")
    elif plant == "config":
        with open(repository / plant, "a") as file:
            file.write("[core]\n\tfsmonitor = touch /tmp/ran\n")
    else:
        write(repository, {plant: str(folder)})
    with pytest.raises(Damaged, match="not as Weft made it"):
        FileStore(quick_path / "store").snapshot(folder)


def test_bytes_of_a_stranger_that_are_not_the_snapshot_are_refused(
    store: FileStore, folder: Path, quick_path: Path
) -> None:
    snapshot = forged(FileStore(quick_path / "store"), quick_path, TREES["the folder above"])
    other = FileStore(quick_path / "other")
    pack = io.BytesIO()
    with other.hold():
        command = ["git", "--git-dir", str(quick_path / "store/git"), "pack-objects", "--stdout", "--revs", "-q"]
        pack.write(subprocess.run(command, input=snapshot.encode(), capture_output=True, check=True).stdout)
    with pytest.raises(InvalidInput, match="not the snapshot"):
        other.receive(snapshot, io.BytesIO(pack.getvalue()))
    for data in (b"", b"PACK", pack.getvalue()[:-10], b"\0" * 1000):
        with pytest.raises(StoreFailed):
            other.receive(snapshot, io.BytesIO(data))
    assert snapshot not in other.ids()


def test_names_of_a_repository_in_other_letters_are_not_restored_where_letters_are_not_told_apart(
    store: FileStore, folder: Path, quick_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(folder, {".GIT/hooks/pre-commit": "evil", "fine": "f"})
    snapshot = store.snapshot(folder).id
    monkeypatch.setattr(FolderRestoring, "_folds_case", lambda self, folder: True)
    done = store.restore(snapshot, quick_path / "beside")
    assert [left.path for left in done.left] == [".GIT", ".GIT/hooks", ".GIT/hooks/pre-commit"]
    assert contents(quick_path / "beside").keys() == {b"fine", b"mine"}


def test_a_deep_folder_is_kept_as_far_as_its_paths_can_be_opened(
    store: FileStore, folder: Path, quick_path: Path
) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    for _ in range(200):
        os.mkdir("d" * 20, dir_fd=descriptor)
        inner = os.open("d" * 20, os.O_RDONLY, dir_fd=descriptor)
        os.close(descriptor)
        descriptor = inner
    os.close(descriptor)
    snapshot = store.snapshot(folder)
    assert [skipped.why for skipped in snapshot.skipped] == ["path_too_long"]
    assert store.snapshot(folder) == snapshot
    store.restore(snapshot.id, quick_path / "beside")
    assert store.snapshot(quick_path / "beside").id == snapshot.id
    subprocess.run(["rm", "-rf", str(folder), str(quick_path / "beside")], check=True)  # too deep for Python's own
