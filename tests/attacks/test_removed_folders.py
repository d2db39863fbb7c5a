"""A folder that is removed while somebody puts links into it: what lies elsewhere is neither changed nor removed."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

import pytest

from tests.faults.processes import Say, run_well
from weft.kernel.enums import ResourceKind
from weft.kernel.errors import StoreFailed, WeftError
from weft.ledger.api import Resource
from weft.runtime.folder_snapshots.file_store import FileStore
from weft.runtime.resources.local_drivers import DirectoryDriver

NOBODY = 65534
DEPTH = 3000


def remove(folder: Path, *, inode: int | None = None) -> None:
    """As something that Weft made there, with this number, else with the one that it has."""
    made = Resource(
        id="01M7E81W00RGHTHTD1FJHKE0KC",
        kind=ResourceKind.DIRECTORY,
        name=folder.name,
        place=str(folder),
        capabilities=(),
        imperative=False,
        is_made=True,
        is_own=True,
        metadata={"made": {"inode": inode or folder.lstat().st_ino}},
    )
    DirectoryDriver(FileStore(folder.with_name("kept"))).remove(made)


def remove_as_nobody(say: Say, place: str) -> None:
    """Another one moves the folder away and puts a link there at the moment at which its mode is changed."""
    folder, outside = Path(place) / "copy", Path(place) / "outside"
    change_mode = os.chmod

    def swap(path: Any, mode: int, **where: Any) -> None:
        if not (folder / "moved").exists():
            (folder / "sub").rename(folder / "moved")
            (folder / "sub").symlink_to(outside)
        change_mode(path, mode, **where)

    remove(Path(place) / "first")  # whatever is loaded on first use may lie where nobody can read
    os.setuid(NOBODY)
    os.chmod = swap
    try:
        remove(folder)
    except WeftError as error:
        say(type(error).__name__)


def test_a_link_that_comes_to_the_place_of_an_inner_folder_is_not_followed() -> None:
    if os.getuid() != 0:
        pytest.skip("only root can become somebody else")
    with tempfile.TemporaryDirectory() as made:
        copy, outside = Path(made) / "copy", Path(made) / "outside"
        (copy / "sub").mkdir(parents=True)
        (copy / "sub" / "f").write_text("a copy")
        outside.mkdir()
        (outside / "f").write_text("precious")
        (Path(made) / "first").mkdir()
        for path in (made, copy, copy / "sub", copy / "sub" / "f", outside, outside / "f"):
            os.chown(path, NOBODY, NOBODY)
        outside.chmod(0o755)
        (copy / "sub").chmod(0o500)
        assert run_well(remove_as_nobody, made) == [StoreFailed.__name__]
        assert (outside / "f").read_text() == "precious"
        assert outside.stat().st_mode & 0o777 == 0o755


def test_a_folder_with_another_number_is_left(tmp_path: Path) -> None:
    """It came to the place after it was looked at."""
    (tmp_path / "copy").mkdir()
    (tmp_path / "copy" / "mine").write_text("a person's")
    with pytest.raises(StoreFailed, match="another folder"):
        remove(tmp_path / "copy", inode=1)
    assert (tmp_path / "copy" / "mine").read_text() == "a person's"


def test_a_folder_is_removed_however_deep_it_is_and_its_links_are_not_followed(tmp_path: Path) -> None:
    copy, outside = tmp_path / "copy", tmp_path / "outside"
    outside.mkdir()
    (outside / "f").write_text("precious")
    copy.mkdir()
    (copy / "link").symlink_to(outside)
    (copy / "closed").mkdir()
    (copy / "closed" / "f").write_text("x")
    (copy / "closed").chmod(0)
    descriptor = os.open(copy, os.O_RDONLY)
    for _ in range(DEPTH):
        os.mkdir("d", dir_fd=descriptor)
        inner = os.open("d", os.O_RDONLY, dir_fd=descriptor)
        os.close(descriptor)
        descriptor = inner
    os.close(descriptor)
    remove(copy)
    assert not os.path.lexists(copy)
    assert (outside / "f").read_text() == "precious"
