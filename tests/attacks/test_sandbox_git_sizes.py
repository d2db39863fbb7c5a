"""An agent makes an object of git that unpacks to more than the machine has: the git that keeps what a command can
change reads it outside of the sandbox."""

from __future__ import annotations

import zlib
from pathlib import Path

import pytest

from tests.attacks.test_folders_for_work import (
    _machine,  # noqa: F401 - a fixture
    begin,
    folder,  # noqa: F401 - a fixture
    project,  # noqa: F401 - a fixture
    running,
    weft,  # noqa: F401 - a fixture
)
from tests.runtime.sandbox.repositories import make_repository
from tests.surfaces.shell import Shell
from weft.kernel.errors import StoreFailed
from weft.runtime.sandbox.own_git import MOST_MEMORY_BYTES, find_git, opened_repository

ON_DISK = True  # no sandbox takes a workspace in memory
NAME = "ab" * 20
LARGER = MOST_MEMORY_BYTES + 1


def object_of(kind: str) -> bytes:
    """One that says so much of itself. What follows comes to an end early: git has made room for all of it by then."""
    return zlib.compress(f"{kind} {LARGER}\0".encode() + bytes(100_000))


def put_object(git_folder: Path, kind: str) -> None:
    place = git_folder / "objects" / NAME[:2] / NAME[2:]
    place.parent.mkdir(exist_ok=True)
    place.write_bytes(object_of(kind))


@pytest.mark.parametrize("kind", ["commit", "tree"])
def test_git_outside_takes_no_more_memory_than_it_may(tmp_path: Path, kind: str) -> None:
    repository = make_repository(tmp_path / "repository", files={"file": "one\n"})
    put_object(repository / ".git", kind)
    with (
        opened_repository(find_git(), repository / ".git", object_format="sha1") as git,
        pytest.raises(StoreFailed, match="ut of memory"),
    ):
        git.run("rev-list", "--objects", "--stdin", stdin=NAME.encode() + b"\n")


def test_a_repository_with_such_an_object_keeps_commands_from_running_unasked(
    weft: Shell,  # noqa: F811
    project: Path,  # noqa: F811
) -> None:
    script = f"mkdir -p .git/objects/ab; mv bomb .git/objects/ab/{NAME[2:]}; echo {NAME} > .git/refs/heads/bomb"
    (project / "bomb").write_bytes(object_of("commit"))
    assert begin(weft, running(script)) == []
    (approval,) = begin(weft, running("echo made > made.txt"))
    assert approval.tool == "shell"
    assert weft("undo", "talk").code == 0
