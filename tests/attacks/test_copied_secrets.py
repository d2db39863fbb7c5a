"""A command gives the folder of a file of secrets another name: it stays hidden there, by its number. What is kept of
the workspace then is brought to other places, or back, as new files that nobody remembers."""

from __future__ import annotations

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
from tests.runtime.scripted import chat
from tests.surfaces.serving import serving
from tests.surfaces.shell import Shell

ON_DISK = True  # no sandbox takes a workspace in memory
CANARY = "canary-of-copies-77e0"


@pytest.fixture
def renamed(weft: Shell, project: Path) -> Path:  # noqa: F811
    """A project whose agent gave the folder of a key another name."""
    (project / ".docker").mkdir()
    (project / ".docker/config.json").write_text(CANARY)
    assert begin(weft, running("mv .docker renamed")) == []
    assert (project / "renamed/config.json").read_text() == CANARY
    return project


def told(weft: Shell, session: str, command: str) -> str:  # noqa: F811
    """All that a next turn is sent, which runs this."""
    with serving(running(command), chat()) as server:
        assert weft("provider", "configure", "there", "--base-url", server.url).code == 0
        sent = weft("send", "--session", session, "Go on")
        assert sent.code == 0, sent.err
    return repr(server.received)


def test_a_fork_copies_no_secret_that_its_name_does_not_hide(weft: Shell, renamed: Path) -> None:  # noqa: F811
    forked = weft("fork", "talk", "other", "--files", "snapshot")
    assert forked.code == 0, forked.err
    assert "without 1 path that could not be kept" in forked.out
    copy = renamed.with_name(f"{renamed.name}-other")
    assert (copy / "staged.txt").exists()
    assert CANARY not in told(weft, "other", "grep -r canary .")


@pytest.mark.parametrize("steps", [["checkout"], ["undo"], ["undo", "redo"], ["undo", "redo", "undo"]])
def test_nothing_that_is_brought_back_shows_a_secret(weft: Shell, renamed: Path, steps: list[str]) -> None:  # noqa: F811
    words = {
        "checkout": ("checkout", "talk", "--to", "again"),
        "undo": ("undo", "talk"),
        "redo": ("undo", "talk", "--redo"),
    }
    for step in steps:
        done = weft(*words[step])
        assert done.code == 0, done.err
    assert CANARY not in told(weft, "talk", "grep -r canary . ; cat */config.json */*/config.json")
    kept = [path for path in renamed.rglob("config.json") if path.read_text() == CANARY]
    assert kept, "the person still has it"


def test_a_file_that_its_own_name_hides_is_kept_and_given_back(weft: Shell, project: Path) -> None:  # noqa: F811
    (project / "deploy").mkdir()
    (project / "deploy/id_rsa").write_text(CANARY)
    assert begin(weft, running("mv deploy gone")) == []
    assert begin(weft, running("echo more > gone/notes")) == []
    assert weft("undo", "talk").code == 0
    assert weft("undo", "talk").code == 0
    assert (project / "deploy/id_rsa").read_text() == CANARY
    assert not (project / "gone").exists()
    assert CANARY not in told(weft, "talk", "cat */id_rsa")
