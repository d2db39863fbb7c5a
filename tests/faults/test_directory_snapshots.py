"""Snapshots of folders while processes are killed, disks are full, files cannot be read, and others take them, too."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.runtime.resources.directories.folders import contents, write
from tests.sizes import Record, chance, share, sized
from weft.kernel.errors import StoreFailed
from weft.runtime.folder_snapshots.file_store import FileStore
from weft.runtime.folder_snapshots.folder_scan import LEFTOVER
from weft.runtime.folder_snapshots.snapshot_objects import SkipReason
from weft.runtime.sandbox.own_git import find_git

NOBODY = 65534
ROOT = Path(__file__).parents[2]
ACT = """
import sys
from pathlib import Path
from weft.runtime.folder_snapshots.file_store import FileStore
store = FileStore(Path(sys.argv[1]), git=sys.argv[3] or None)
if sys.argv[4] == "snapshot":
    print(store.snapshot(Path(sys.argv[2])).id)
elif sys.argv[4] == "prune":
    store.prune(lambda: sys.argv[5:])
else:
    store.restore(sys.argv[4], Path(sys.argv[2]))
"""
KILLING_GIT = """#!/bin/sh
# Counts its calls; at the chosen one it kills itself before or after git did its work, or whoever called it.
n=$(($(cat {count}) + 1))
echo $n > {count}
[ $n -eq {at} ] || exec {git} "$@"
case {how} in
itself) kill -9 $$ ;;
caller) {git} "$@"; kill -9 $PPID ;;
within) {git} "$@" & sleep 0.0{moment}; kill -9 $! ; kill -9 $$ ;;
esac
"""


def start(store: Path, folder: Path, git: str, *words: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-c", ACT, str(store), str(folder), git, *words]
    environment = {"PYTHONPATH": str(ROOT / "src"), "PATH": os.defpath}
    return subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True
    )


def killing_git(place: Path, at: int, how: str, moment: int = 1) -> str:
    (place / "count").write_text("0")
    program = place / "git"
    text = KILLING_GIT.format(count=place / "count", at=at, how=how, git=find_git(), moment=moment)
    program.write_text(text)
    program.chmod(0o755)
    return str(program)


NEVER = 0


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A folder and the name of its snapshot."""
    folder = tmp_path_factory.mktemp("work") / "work"
    write(folder, {f"d{number % 5}/file{number}": f"{number}\n" for number in range(30)})
    return folder, FileStore(folder.parent / "origin").snapshot(folder).id


@pytest.fixture(scope="module")
def calls(work: tuple[Path, str], tmp_path_factory: pytest.TempPathFactory) -> list[tuple[str, int]]:
    """Every call of git of each action, from the first on."""
    place, found = tmp_path_factory.mktemp("counted"), []
    for action in ("snapshot", "restore", "prune"):
        store = place / action
        assert act_with(place, NEVER, "itself", store, *work, action) == 0
        found += [(action, at) for at in range(1, int((place / "count").read_text()) + 1)]
    return found


def act_with(place: Path, at: int, how: str, store: Path, folder: Path, first: str, action: str) -> int:
    """One of the actions, with a git that is killed; how the process ended that called it."""
    if action != "snapshot":
        FileStore(store).snapshot(folder)
        write(folder, {"d0/file0": f"changed {at}", "new": "new"})
    words = {"snapshot": ["snapshot"], "restore": [first], "prune": ["prune", first]}[action]
    git = killing_git(place, at, how, moment=chance("git", action, at).randint(1, 9))
    process = start(store, folder, git, *words)
    process.communicate()
    return process.returncode


@pytest.mark.slow("starts dozens of processes of git")
@pytest.mark.parametrize("how", ["itself", "caller", "within"])
def test_a_kill_at_any_call_of_git_leaves_a_store_that_goes_on(
    tmp_path: Path, work: tuple[Path, str], calls: list[tuple[str, int]], how: str, record_property: Record
) -> None:
    """Also a kill of the process that called it, in the middle of taking, restoring and removing snapshots."""
    (folder, first), kills = work, 0
    FileStore(folder.parent / "origin").restore(first, folder)
    state = contents(folder)
    for action, at in share(calls, test=2):
        store = tmp_path / f"{action}-{at}"
        kills += act_with(tmp_path, at, how, store, folder, first, action) != 0
        again = FileStore(store)
        if action == "snapshot":
            assert again.snapshot(folder).id == first
        else:
            again.restore(first, folder)
        assert contents(folder) == state
        assert again.verify(first) == []
        assert again.prune(lambda: [first]) >= 0
        assert again.verify(first) == []
        assert os.listdir(store / "scratch") == []
    assert kills > 0
    record_property("kills", kills)


def test_a_process_killed_at_a_random_moment_leaves_a_store_that_goes_on(
    tmp_path: Path, record_property: Record
) -> None:
    folder = tmp_path / "work"
    write(folder, {f"d{number % 7}/file{number}": os.urandom(200) for number in range(200)})
    store = FileStore(tmp_path / "store")
    first, state = store.snapshot(folder).id, contents(folder)
    write(folder, {f"d{number % 7}/file{number}": os.urandom(200) for number in range(0, 200, 2)})
    second, other = store.snapshot(folder).id, contents(folder)
    random, kills = chance("restores"), 0
    for number in range(sized(test=3, prove=200)):
        target, wanted = ((first, state), (second, other))[number % 2]
        process = start(tmp_path / "store", folder, "", target)
        try:
            process.wait(timeout=random.uniform(0.1, 0.8))
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            kills += 1
        process.communicate()
        done = store.restore(target, folder)
        assert (contents(folder), done.left) == (wanted, ())
    assert not [name for _, _, names in os.walk(os.fsencode(folder)) for name in names if name.startswith(LEFTOVER)]
    record_property("kills", kills)


@contextmanager
def disk(place: Path, size: int) -> Iterator[Path]:
    if shutil.which("mount") is None:
        pytest.skip("there is no `mount` here")
    place.mkdir()
    mount("-t", "tmpfs", "-o", f"size={size},mode=0755", "tmpfs", str(place))
    try:
        yield place
    finally:
        subprocess.run(["umount", "--lazy", str(place)], check=True)


def mount(*arguments: str) -> None:
    done = subprocess.run(["mount", *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"only root may mount a disk of its own: {done.stderr.strip()}")


@pytest.mark.slow("packs 6 MB of random bytes three times")
@pytest.mark.parametrize("files", share([3, 150], test=1))
def test_a_store_without_room_keeps_what_it_has_and_goes_on_once_there_is_some(tmp_path: Path, files: int) -> None:
    folder = tmp_path / "work"
    write(folder, {"small": "s"})
    with disk(tmp_path / "disk", 2 << 20) as place:
        store = FileStore(place / "store")
        first = store.snapshot(folder).id
        write(folder, {f"large{number}": os.urandom((6 << 20) // files) for number in range(files)})
        for _ in range(2):
            with pytest.raises(StoreFailed):
                store.snapshot(folder)
        assert store.verify(first) == []
        mount("-o", f"remount,size={40 << 20}", str(place))
        second = store.snapshot(folder)
        assert (second.files, store.verify(second.id)) == (files + 1, [])
        store.prune(lambda: [second.id])
        assert store.verify(second.id) == []


def test_a_restore_that_finds_no_room_is_told_and_finished_once_there_is_some(tmp_path: Path) -> None:
    store = FileStore(tmp_path / "store")
    with disk(tmp_path / "disk", 8 << 20) as place:
        folder = place / "work"
        write(folder, {f"d{number}/file": os.urandom(1 << 19) for number in range(8)})
        first, state = store.snapshot(folder).id, contents(folder)
        for number in range(8):
            (folder / f"d{number}/file").write_text("little")
        write(folder, {"new": "new"})
        second, other = store.snapshot(folder).id, contents(folder)
        write(place, {"filler": bytes(6 << 20)})
        with pytest.raises(StoreFailed, match="not restored"):
            store.restore(first, folder)
        store.restore(second, folder)
        assert contents(folder) == other
        with pytest.raises(StoreFailed, match="not restored"):
            store.restore(first, folder)
        (place / "filler").unlink()
        assert store.restore(first, folder).left == ()
        assert contents(folder) == state


@contextmanager
def as_nobody() -> Iterator[Path]:
    """A folder of somebody who may not do everything."""
    if os.geteuid() != 0:
        pytest.skip("only root becomes somebody else")
    place = Path(tempfile.mkdtemp())
    os.chown(place, NOBODY, NOBODY)
    os.setresgid(NOBODY, NOBODY, 0)  # the real ids, too: they decide whose processes it may limit
    os.setresuid(NOBODY, NOBODY, 0)
    try:
        yield place
    finally:
        os.setresuid(0, 0, 0)
        os.setresgid(0, 0, 0)
        shutil.rmtree(place)


def test_what_cannot_be_read_is_listed_and_left_and_what_may_not_be_written_is_told() -> None:
    with as_nobody() as place:
        folder = place / "work"
        write(folder, {"open": "o", "closed": "c", "shut/file": "s", "fixed/file": "f"})
        (folder / "closed").chmod(0)
        (folder / "shut").chmod(0)
        store = FileStore(place / "store")
        first = store.snapshot(folder)
        assert {skipped.path: skipped.why for skipped in first.skipped} == {
            "closed": SkipReason.UNREADABLE,
            "shut": SkipReason.UNREADABLE,
        }
        write(folder, {"fixed/file": "changed", "fixed/more": "m"})
        (folder / "fixed").chmod(0o555)
        done = store.restore(first.id, folder)
        assert ((folder / "fixed/file").read_text(), done.left) == ("f", ())
        assert sorted(os.listdir(folder / "fixed")) == ["file"]
        (folder / "closed").chmod(0o600)
        (folder / "shut").chmod(0o755)
        second = store.snapshot(folder)
        assert (second.files, second.skipped) == (first.files + 2, ())
        assert store.restore(first.id, folder).left == ()
        assert (folder / "closed").exists() is False


@pytest.mark.slow("starts four processes, and git in each")
def test_many_take_snapshots_of_the_same_and_of_other_folders_at_once(tmp_path: Path) -> None:
    store = tmp_path / "store"
    folders = [tmp_path / f"work{number}" for number in range(2)]
    for number, folder in enumerate(folders):
        write(folder, {f"{name}": f"{number}" for name in range(20)})
    expected = {folder: FileStore(tmp_path / "other").snapshot(folder).id for folder in folders}
    processes = [(folder, start(store, folder, "", "snapshot")) for folder in folders * 2]
    own: list[str] = []
    threads = [threading.Thread(target=lambda: own.append(FileStore(store).snapshot(folders[0]).id)) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for folder, process in processes:
        assert process.communicate()[0].decode().strip() == expected[folder]
    assert own == [expected[folders[0]]] * 3
    assert [FileStore(store).verify(snapshot) for snapshot in expected.values()] == [[], []]
