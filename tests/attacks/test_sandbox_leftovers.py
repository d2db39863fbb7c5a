"""Programs in the sandbox try to leave something behind that acts with other rights."""

from __future__ import annotations

import os
import stat
import tempfile
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from msgspec import structs

from tests.sandbox import run_python, run_shell
from weft.runtime.sandbox import confinement, sandbox_plan
from weft.runtime.sandbox import leftovers as leftovers_module
from weft.runtime.sandbox.leftovers import ChangedFiles, StartTime
from weft.runtime.sandbox.sandbox_plan import MACHINE_DEVICES

SPECIAL = stat.S_ISUID | stat.S_ISGID

NOBODY = 65534


@pytest.mark.parametrize(
    "source",
    [
        "os.open('x', os.O_CREAT | os.O_WRONLY, 0o755); os.chmod('x', 0o4755)",
        "descriptor = os.open('x', os.O_CREAT | os.O_WRONLY, 0o755); os.fchmod(descriptor, 0o6755)",
        "os.umask(0); os.open('x', os.O_CREAT | os.O_WRONLY, 0o4755)",
        "os.umask(0); os.mknod('x', 0o104755)",
        "os.umask(0); os.open('.', os.O_TMPFILE | os.O_WRONLY, 0o4755)",
    ],
)
def test_a_setuid_file_cannot_be_made(tmp_path: Path, source: str) -> None:
    assert b"PermissionError" in run_python(f"import os\n{source}", tmp_path).stderr
    assert not any(path.lstat().st_mode & SPECIAL for path in tmp_path.iterdir())


@pytest.mark.parametrize("kind", ["c 1 3", "b 254 0"])
def test_a_device_node_cannot_be_made(tmp_path: Path, kind: str) -> None:
    assert not run_shell(f"mknod node {kind}", tmp_path).succeeded
    assert list(tmp_path.iterdir()) == []


def test_setuid_bits_are_taken_from_what_changed_and_from_nothing_else(tmp_path: Path) -> None:
    """The second wall, for processors without a filter: here the files are made outside."""
    old = tmp_path / "old"
    old.write_text("")
    old.chmod(0o4755)
    before = StartTime.now(str(tmp_path))
    old.chmod(0o4755)
    later = structs.replace(before, seconds=before.seconds + 1000, own_seconds=before.own_seconds + 1000)
    later = structs.replace(later, monotonic=before.monotonic + 1000)
    ChangedFiles(str(tmp_path), later).remove_privileges()
    assert stat.S_IMODE(old.stat().st_mode) == 0o4755
    ChangedFiles(str(tmp_path), before).remove_privileges()
    assert stat.S_IMODE(old.stat().st_mode) == 0o755


def test_a_setuid_file_is_found_however_it_is_hidden(tmp_path: Path) -> None:
    started = StartTime.now(str(tmp_path))
    closed = tmp_path / "closed"
    closed.mkdir()
    (closed / "x").write_text("")
    (closed / "x").chmod(0o6000)
    target = tmp_path.parent / f"{tmp_path.name}-outside"
    target.write_text("")
    target.chmod(0o4755)
    (tmp_path / "link").symlink_to(target)
    closed.chmod(0o000)
    ChangedFiles(str(tmp_path), started).remove_privileges()
    closed.chmod(0o700)
    assert stat.S_IMODE((closed / "x").stat().st_mode) == 0
    assert stat.S_IMODE(target.stat().st_mode) == 0o4755


def test_folders_deeper_than_a_path_is_long_are_looked_through(tmp_path: Path) -> None:
    started = StartTime.now(str(tmp_path))
    folder = os.open(tmp_path, os.O_RDONLY)
    for _ in range(60):
        os.mkdir("d" * 100, dir_fd=folder)
        inner = os.open("d" * 100, os.O_RDONLY, dir_fd=folder)
        os.close(folder)
        folder = inner
    os.close(os.open("x", os.O_CREAT | os.O_WRONLY, 0o700, dir_fd=folder))
    os.chmod("x", 0o4700, dir_fd=folder)
    changed = ChangedFiles(str(tmp_path), started)
    changed.remove_privileges()
    assert stat.S_IMODE(os.stat("x", dir_fd=folder).st_mode) == 0o700
    assert changed.size().files == 61
    os.close(folder)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes device nodes")
def test_a_device_node_is_removed(tmp_path: Path) -> None:
    started = StartTime.now(str(tmp_path))
    os.mknod(tmp_path / "node", stat.S_IFCHR | 0o666, os.makedev(1, 3))
    (tmp_path / "file").write_text("kept")
    ChangedFiles(str(tmp_path), started).remove_privileges()
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes device nodes")
def test_the_nodes_that_root_makes_for_a_run_are_its_own_and_gone_with_their_folder(tmp_path: Path) -> None:
    first, second = sandbox_plan.make_devices(True), sandbox_plan.make_devices(True)
    try:
        assert first != second
        assert MACHINE_DEVICES not in (first, second)
        assert stat.S_IMODE(first.stat().st_mode) == 0o700
        assert {path.name: path.stat().st_rdev for path in first.iterdir()} == {
            name: (MACHINE_DEVICES / name).stat().st_rdev for name in ("null", "zero", "full", "urandom")
        }
        assert {stat.S_IMODE(path.stat().st_mode) for path in first.iterdir()} == {0o666}
    finally:
        sandbox_plan.remove_devices(first)
        sandbox_plan.remove_devices(second)
    assert not first.exists()
    assert not second.exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes device nodes")
def test_no_node_of_a_run_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Path] = []

    def noted(is_root: bool) -> Path:
        made.append(sandbox_plan.make_devices(is_root))
        return made[-1]

    monkeypatch.setattr(confinement, "make_devices", noted)
    assert run_shell("echo x > /dev/null", tmp_path).succeeded
    assert made
    assert not any(folder.exists() for folder in made if folder != MACHINE_DEVICES)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes device nodes")
def test_where_no_node_can_be_made_beside_the_machines_they_are_made_among_temporary_files_or_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sandbox_plan, "MACHINE_DEVICES", tmp_path / "missing")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    devices = sandbox_plan.make_devices(True)
    assert devices.parent == tmp_path
    sandbox_plan.remove_devices(devices)

    def refused(*_: object, **__: object) -> None:
        raise PermissionError(1, "not permitted")

    monkeypatch.setattr(os, "mknod", refused)
    assert sandbox_plan.make_devices(True) == sandbox_plan.MACHINE_DEVICES
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="root becomes somebody else")
def test_a_link_in_a_folder_that_is_closed_for_writing_is_removed() -> None:
    """The person is no root, for whom nothing is closed."""
    with TemporaryDirectory() as name:
        os.chown(name, NOBODY, NOBODY)
        started = StartTime.now(name)
        closed = Path(name, "closed")
        closed.mkdir()
        (closed / "link").symlink_to("/x/unseen/y")
        for place in (closed, closed / "link"):
            os.chown(place, NOBODY, NOBODY, follow_symlinks=False)
        closed.chmod(0o555)
        os.seteuid(NOBODY)
        try:
            leftovers = ChangedFiles(name, started).remove_privileges(["unseen"])
        finally:
            os.seteuid(0)
        assert leftovers.removed_links == ("closed/link",)
        assert list(closed.iterdir()) == []


def test_a_folder_that_another_command_replaces_meanwhile_ends_no_look(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started = StartTime.now(str(tmp_path))
    for name in ("a", "z"):
        (tmp_path / name / ".git").mkdir(parents=True)
    entered = leftovers_module._is_enterable

    def replaced(folder: int, name: str, *words: object) -> bool:
        is_enterable = entered(folder, name, *words)  # type: ignore[arg-type]
        if name == "z":  # the first one that is opened
            (tmp_path / "z").rename(tmp_path / "moved")
            (tmp_path / "z").symlink_to("/nonexistent")
        return is_enterable

    monkeypatch.setattr(leftovers_module, "_is_enterable", replaced)
    leftovers = ChangedFiles(str(tmp_path), started).remove_privileges()
    assert leftovers.repositories == {"a/.git"}
    assert leftovers.missed == ("z",)
