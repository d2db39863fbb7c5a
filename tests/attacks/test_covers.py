"""Commands try to bring what is hidden out of the look of the next command, or to write beside it."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.sandbox import UNPROTECTED, machine_sandbox
from weft.kernel.errors import InvalidInput, StoreFailed
from weft.runtime.sandbox import protected_places, remembered_places, workspace_search
from weft.runtime.sandbox.command_runner import CommandRunner
from weft.runtime.sandbox.processes import Limits, ProcessOutcome
from weft.runtime.sandbox.profiles import WORKSPACE_PROFILE
from weft.runtime.sandbox.protected_places import ProtectedPlaces
from weft.runtime.sandbox.workspace_view import PersonFolders

CANARY = "canary-6be2"
LOOK = "find . -type f -exec cat {} + 2>/dev/null; find . -path './*/.weft/*'; true"
MANY = 5200
"""More folders than were once looked through."""


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    folder = tmp_path / "workspace"
    for path in ("a/b/c/d/deep/.weft/ledger.db", "apps/web/.env", "node_modules/fetched/index.js"):
        (folder / path).parent.mkdir(parents=True)
        (folder / path).write_text(CANARY if "index" not in path else "")
    return folder


@pytest.fixture
def run(workspace: Path, tmp_path: Path) -> Callable[..., ProcessOutcome]:
    """As in one ledger: what was covered is remembered from command to command."""

    def started(script: str, protected: ProtectedPlaces = UNPROTECTED, *, remembers: bool = True) -> ProcessOutcome:
        person = PersonFolders(places=tmp_path / "state" if remembers else None)
        runner = CommandRunner(protected, sandbox=machine_sandbox(), person=person)
        limits = Limits(seconds=120)
        return asyncio.run(runner.run(WORKSPACE_PROFILE, ["/bin/sh", "-c", script], workspace=workspace, limits=limits))

    return started


Run = Callable[..., ProcessOutcome]


@pytest.mark.slow("folders are made and looked through by the thousand")
def test_no_number_of_folders_pushes_a_ledger_or_a_secret_out_of_the_look(run: Run, workspace: Path) -> None:
    """Made so that the walk would come to them first."""
    assert run(f"cd a && mkdir $(seq -f 0%.0f {MANY}) && mkdir -p ../0 && cd ../0 && mkdir $(seq {MANY})").succeeded
    outcome = run(f"{LOOK}; echo planted > a/b/c/d/deep/.weft/ledger.db; echo planted > apps/web/.env")
    assert CANARY.encode() not in outcome.stdout
    assert (workspace / "a/b/c/d/deep/.weft/ledger.db").read_text() == CANARY
    assert (workspace / "apps/web/.env").read_text() == CANARY


def test_where_the_look_cannot_come_to_its_end_nothing_runs(
    run: Run, workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workspace_search, "MOST_FOLDERS", 40)
    assert run("mkdir build && cd build && mkdir $(seq 50)").succeeded
    with pytest.raises(InvalidInput, match="more than 40 folders, most of them in 'build'"):
        run("echo ran > ran")
    assert not (workspace / "ran").exists()


MOVES = {
    "into a folder that tools fill": "mv apps/web node_modules/web",
    "into one that the command made": "mkdir -p x/__pycache__ && mv apps/web x/__pycache__/",
    "its folder becomes such a one": "mv apps .mypy_cache",
    "a decoy in its place": "mv apps/web node_modules/ && mkdir apps/web && echo decoy > apps/web/.env",
    "among what git keeps": "git init -q . && mv apps .git/apps",
    "two steps": "mv apps/web apps/other && mv apps/other node_modules/fetched/",
}


@pytest.mark.parametrize("move", MOVES.values(), ids=MOVES.keys())
@pytest.mark.parametrize("remembers", [True, False])
def test_what_a_command_moves_to_where_no_look_comes_stays_hidden(run: Run, move: str, remembers: bool) -> None:
    assert run(move, remembers=remembers).succeeded
    for _ in range(3):
        assert CANARY.encode() not in run(LOOK, remembers=remembers).stdout


def test_what_was_moved_is_followed_on_every_further_way(run: Run, workspace: Path) -> None:
    moves = [
        "mv apps/web node_modules/one", "mv node_modules/one node_modules/fetched/two",
        "mv node_modules/fetched/two .tox", "mv .tox open", "mv open/.env open/other; mkdir .venv && mv open .venv/",
    ]  # fmt: skip
    for move in moves:
        run(move)
        outcome = run(LOOK)
        assert CANARY.encode() not in outcome.stdout, move
    assert (workspace / ".venv" / "open" / ".env").read_text() == CANARY


def test_nothing_is_forgotten_while_another_command_can_move_it(
    run: Run, workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that runs beside moves it before the search comes to where it is, and brings it back afterwards."""
    run("mv apps/web node_modules/web")
    hiding = workspace.parent / "hiding"  # for what a process can do that moves it from folder to folder
    marker = workspace / "started"
    beside = threading.Thread(target=run, args=("touch started; while [ -e started ]; do sleep 0.05; done",))
    beside.start()
    try:
        while not marker.exists() and beside.is_alive():
            pass
        (workspace / "node_modules" / "web").rename(hiding)
        run("true")
        hiding.rename(workspace / "node_modules" / "fetched" / "web")
    finally:
        marker.unlink()
        beside.join()
    assert CANARY.encode() not in run(LOOK).stdout


def test_what_is_gone_is_forgotten_and_searched_for_no_longer(
    run: Run, workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run("true")
    (workspace / "apps/web/.env").rename(workspace / "apps/web/settings.txt")
    assert CANARY.encode() in run(LOOK).stdout  # the person's own choice of a name
    monkeypatch.setattr(workspace_search, "MOST_FETCHED_FOLDERS", 0)
    assert run("true").succeeded


def test_a_folder_with_a_longer_path_than_can_be_mounted_is_hidden_whole(run: Run, workspace: Path) -> None:
    """As a command makes one that goes down step by step."""
    run("true")
    name, web = "n" * 250, workspace / "apps" / "web"
    folder = os.open(workspace, os.O_RDONLY)
    for _ in range(20):
        os.mkdir(name, dir_fd=folder)
        inner = os.open(name, os.O_RDONLY, dir_fd=folder)
        os.close(folder)
        folder = inner
    os.rename(web, "web", dst_dir_fd=folder)
    os.close(folder)
    for script in (LOOK, f"mv {name} node_modules/; {LOOK}", f"mv node_modules/{name} x; mv x/* y; {LOOK}", LOOK):
        assert CANARY.encode() not in run(script).stdout
    assert run("ls -d y/n*").succeeded


def test_a_memory_that_cannot_be_read_is_no_memory(run: Run, workspace: Path, tmp_path: Path) -> None:
    """Nothing is taken for looked through then."""
    run("mv apps/web node_modules/web")
    (notes,) = (tmp_path / "state").rglob("covers.json")
    notes.write_text("[")
    assert CANARY.encode() not in run(LOOK).stdout
    assert CANARY.encode() not in run(LOOK).stdout


def test_where_nothing_can_be_noted_nothing_runs(run: Run, workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*words: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(remembered_places, "new_file", full)
    with pytest.raises(StoreFailed, match=r"cannot be noted in .*: No space left on device"):
        run("echo ran > ran")
    assert not (workspace / "ran").exists()


@pytest.mark.parametrize("place", ["notes.txt", "apps/copy", "node_modules/fetched/x"])
@pytest.mark.parametrize("remembers", [True, False])
def test_another_name_of_a_secret_file_is_hidden(run: Run, workspace: Path, place: str, remembers: bool) -> None:
    os.link(workspace / "apps/web/.env", workspace / place)
    outcome = run(f"{LOOK}; echo planted > {place}", remembers=remembers)
    assert CANARY.encode() not in outcome.stdout
    assert (workspace / "apps/web/.env").read_text() == CANARY


@pytest.mark.parametrize(
    "script", ["mkdir -p $(seq -f 'x/%.0f/.weft' 2100)", "mkdir x; cd x; touch $(seq -f .env.%.0f 2100)"]
)
def test_a_command_that_makes_much_to_be_hidden_keeps_no_other_from_running(
    run: Run, workspace: Path, script: str
) -> None:
    """Its folder is hidden whole."""
    assert run(script).succeeded
    outcome = run(f"ls x | wc -l; echo y > x/y; {LOOK}; echo ran; false")
    assert outcome.stdout == b"0\nran\n"
    assert outcome.hidden == ("x/",)


def test_more_to_hide_than_can_be_hidden_in_folders_is_refused(
    run: Run, workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(protected_places, "MOST_COVERS", 20)
    assert run("touch $(seq -f .env.%.0f 30)").succeeded
    with pytest.raises(InvalidInput, match="more than 20 files and folders that must be hidden"):
        run("true")
