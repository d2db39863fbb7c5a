"""An agent leaves pipes where git reads files: whoever opens one waits for ever, a person's `git status` as well as the
git that keeps and gives back what commands changed."""

from __future__ import annotations

import os
import socket
import stat
from pathlib import Path

import pytest

from tests.attacks.git_person import KilledAgent, Person
from tests.attacks.test_folders_for_work import (
    _machine,  # noqa: F401 - a fixture
    begin,
    folder,  # noqa: F401 - a fixture
    project,  # noqa: F401 - a fixture
    running,
    state_of,
    weft,  # noqa: F401 - a fixture
)
from tests.runtime.sandbox.repositories import agent_runs, bind_at, make_repository
from tests.sizes import share
from tests.surfaces.shell import Shell

ON_DISK = True  # no sandbox takes a workspace in memory
PIPES = {
    "packed references": "mkfifo .git/packed-refs",
    "a reference": "rm .git/refs/heads/other; mkfifo .git/refs/heads/other .git/refs/heads/new",
    "objects": "mkdir -p .git/objects/info; cd .git/objects; mkfifo info/alternates info/commit-graph pack/pack-1.idx",
    "rules": "mkdir -p sub; rm -f .gitignore; mkfifo .gitmodules .gitignore .gitattributes sub/.gitignore sub/.git",
    "a folder of references": "mkdir -p .git/refs/heads/a; mkfifo .git/refs/heads/a/b .git/shallow",
}


def special_files(place: Path) -> list[str]:
    paths = (path for path in place.rglob("*") if ".weft" not in path.parts)
    return [str(path) for path in paths if stat.S_ISFIFO(path.lstat().st_mode) or stat.S_ISSOCK(path.lstat().st_mode)]


@pytest.mark.parametrize("what", share(list(PIPES), test=2))
def test_a_turn_that_left_pipes_for_git_is_taken_back(weft: Shell, project: Path, what: str) -> None:  # noqa: F811
    before = state_of(project)
    assert begin(weft, running(PIPES[what])) == []
    assert special_files(project) == []
    assert weft("undo", "talk").code == 0
    assert state_of(project) == before


def test_a_socket_in_gits_folder_is_removed_and_other_pipes_stay(tmp_path: Path) -> None:
    repository = make_repository(tmp_path / "repository", files={"file": "one\n"})
    script = "import os, socket; socket.socket(socket.AF_UNIX).bind('.git/packed-refs'); os.mkfifo('pipe')"
    assert agent_runs(repository, f'python3 -c "{script}"').succeeded
    assert special_files(repository) == [str(repository / "pipe")]


def test_pipes_and_sockets_that_were_there_before_stay(tmp_path: Path) -> None:
    repository = make_repository(tmp_path / "repository", files={"file": "one\n"})
    os.mkfifo(repository / ".git/before")
    with socket.socket(socket.AF_UNIX) as monitor:
        bind_at(monitor, repository / ".git/fsmonitor--daemon.ipc")
        assert agent_runs(repository, "true").succeeded
    assert len(special_files(repository)) == 2


@pytest.mark.slow("starts a process that is killed")
def test_pipes_of_a_killed_command_are_removed_by_the_next(tmp_path: Path) -> None:
    killed = KilledAgent(Person(tmp_path))
    killed.does("mkfifo .git/packed-refs")
    killed.is_followed()
    assert special_files(killed.person.repository) == []


def test_objects_that_are_pipes_keep_a_command_from_running_unasked(weft: Shell, project: Path) -> None:  # noqa: F811
    """Left there by anybody else: nothing waits at them."""
    os.mkfifo(project / ".git/objects/pack/pack-1.idx")
    (approval,) = begin(weft, running("echo made > made.txt"))
    assert approval.tool == "shell"
    assert not (project / "made.txt").exists()
