"""Somebody moves folders of a workspace while a sandbox is made for it: what is hidden stays hidden, or nothing runs.

The attacker acts at a named point of the start, at the first one or at each: it has no luck to wait for.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.sandbox import UNPROTECTED, machine_sandbox
from weft.kernel.errors import StoreError, StoreFailed
from weft.runtime.sandbox import hidden_places
from weft.runtime.sandbox.bubblewrap import SandboxGuard
from weft.runtime.sandbox.command_runner import CommandRunner
from weft.runtime.sandbox.hidden_places import SecretFiles, search_workspace
from weft.runtime.sandbox.processes import STARTS, ProcessOutcome
from weft.runtime.sandbox.profiles import READ_ONLY_PROFILE, WORKSPACE_PROFILE, SandboxProfile

CANARY = b"canary-91ab"
LOOK = "find . -type f -exec cat {} +; echo ran > /tmp/x; echo ran"
Attack = Callable[[Path], None]
Point = Callable[[pytest.MonkeyPatch, Callable[[], None]], None]


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    """A project with a ledger lies in it, beside a folder that comes first and one that comes last."""
    folder = tmp_path / "workspace"
    for name in ("a/first", "project/.weft", "z"):
        (folder / name).mkdir(parents=True)
    for name in ("project/.weft/ledger.db", "project/.env"):
        (folder / name).write_bytes(CANARY)
    return folder


def rename_parent(workspace: Path) -> None:
    (workspace / "project").rename(workspace / "moved")


def replace_parent(workspace: Path) -> None:
    """What is covered then is the decoy."""
    rename_parent(workspace)
    (workspace / "project" / ".weft").mkdir(parents=True)
    (workspace / "project" / ".env").write_bytes(b"decoy")


def link_parent(workspace: Path) -> None:
    rename_parent(workspace)
    (workspace / "project").symlink_to("moved")


def link_parent_to_decoy(workspace: Path) -> None:
    replace_parent(workspace)
    (workspace / "project").rename(workspace / "decoy")
    (workspace / "project").symlink_to("decoy")


def move_beneath(workspace: Path) -> None:
    (workspace / "project").rename(workspace / "a" / "project")


def move_unlooked(workspace: Path) -> None:
    """To where no look comes, with a decoy in its place."""
    (workspace / "node_modules").mkdir()
    (workspace / "project").rename(workspace / "node_modules" / "project")
    (workspace / "project" / ".weft").mkdir(parents=True)


ATTACKS: list[Attack] = [
    rename_parent, replace_parent, link_parent, link_parent_to_decoy, move_beneath, move_unlooked,
]  # fmt: skip


def before_mounts(monkeypatch: pytest.MonkeyPatch, act: Callable[[], None]) -> None:
    """The workspace was looked through, and bubblewrap is not started yet."""
    original = SandboxGuard.before_start

    def attacked(*words: Any) -> Any:
        start = original(*words)
        act()
        return start

    monkeypatch.setattr(SandboxGuard, "before_start", attacked)


def after_mounts(monkeypatch: pytest.MonkeyPatch, act: Callable[[], None]) -> None:
    """Everything is mounted, and was not looked at again yet."""
    original = SandboxGuard.ensure_unchanged

    def attacked(guard: SandboxGuard, first_process: int) -> None:
        act()
        original(guard, first_process)

    monkeypatch.setattr(SandboxGuard, "ensure_unchanged", attacked)


def during_search(monkeypatch: pytest.MonkeyPatch, act: Callable[[], None]) -> None:
    """The folder `a` was looked at, and `project` was not."""
    original = hidden_places.walk_folders

    def attacked(*words: Any) -> Iterator[tuple[str, int, list[os.DirEntry[str]]]]:
        for path, folder, entries in original(*words):
            yield path, folder, entries
            if path == "a":
                act()

    monkeypatch.setattr(hidden_places, "walk_folders", attacked)


POINTS: list[Point] = [before_mounts, after_mounts, during_search]


def at_start(workspace: Path, attack: Attack, number: int = 1) -> tuple[Callable[[], None], list[int]]:
    """Attacks at the first of the starts alone; the list has an entry for each time that the point was reached."""
    reached: list[int] = []

    def act() -> None:
        reached.append(len(reached) + 1)
        if len(reached) == number:
            attack(workspace)

    return act, reached


def run(workspace: Path, script: str = LOOK, profile: SandboxProfile = WORKSPACE_PROFILE) -> ProcessOutcome:
    runner = CommandRunner(UNPROTECTED, sandbox=machine_sandbox())
    return asyncio.run(runner.run(profile, ["/bin/sh", "-c", script], workspace=workspace))


@pytest.mark.parametrize("profile", [WORKSPACE_PROFILE, READ_ONLY_PROFILE], ids=str)
def test_what_is_hidden_is_hidden_where_nobody_attacks(workspace: Path, profile: SandboxProfile) -> None:
    assert run(workspace, profile=profile).stdout == b"ran\n"


@pytest.mark.parametrize("point", POINTS, ids=lambda point: point.__name__)
@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.__name__)
def test_a_folder_that_is_moved_while_the_sandbox_is_made_uncovers_no_ledger(
    workspace: Path, monkeypatch: pytest.MonkeyPatch, point: Point, attack: Attack
) -> None:
    act, reached = at_start(workspace, attack)
    point(monkeypatch, act)
    outcome = run(workspace)
    assert b"ran" in outcome.stdout
    assert reached
    if attack is not move_unlooked:  # by somebody who may: no command in a sandbox can do that, as is shown below
        assert CANARY not in outcome.stdout


def test_who_moves_folders_at_each_start_keeps_the_command_from_running(
    workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = iter(("one", "two", "three", "four"))
    reached: list[str] = []

    def act() -> None:
        reached.append(next(names))
        current = next(workspace.glob("*/.weft")).parent
        current.rename(workspace / reached[-1])

    before_mounts(monkeypatch, act)
    with pytest.raises(StoreError, match=r"the workspace changed each time|the sandbox could not be made"):
        run(workspace, "echo ran > z/ran")
    assert len(reached) == STARTS
    assert not (workspace / "z" / "ran").exists()


@pytest.mark.parametrize("attack", ATTACKS[:3], ids=lambda attack: attack.__name__)
def test_a_process_that_is_spoken_with_in_lines_is_started_again_too(
    workspace: Path, monkeypatch: pytest.MonkeyPatch, attack: Attack
) -> None:
    act, reached = at_start(workspace, attack)
    before_mounts(monkeypatch, act)

    async def answer() -> list[bytes]:
        script = ["/bin/sh", "-c", f"{LOOK}; cat"]
        runner = CommandRunner(UNPROTECTED, sandbox=machine_sandbox())
        async with runner.started(WORKSPACE_PROFILE, script, workspace=workspace) as process:
            process.write(b"asked")
            lines = [await process.line() for _ in range(2)]
            await process.stop()
        return [line for line in lines if line is not None]

    assert asyncio.run(answer())[-1] == b"asked"
    assert len(reached) == 2


def test_a_folder_that_takes_the_place_of_the_workspace_is_not_worked_in(
    workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def replace(workspace: Path) -> None:
        workspace.rename(workspace.with_name("elsewhere"))
        workspace.mkdir()

    act, _ = at_start(workspace, replace)
    before_mounts(monkeypatch, act)
    with pytest.raises(StoreFailed, match="the workspace changed each time"):
        run(workspace, "echo ran > ran")
    assert not (workspace / "ran").exists()
    assert not (workspace.with_name("elsewhere") / "ran").exists()


def test_a_command_cannot_move_a_ledger_to_where_the_next_one_does_not_look(workspace: Path) -> None:
    """Without any race: what lies in `node_modules` is not looked through."""
    moving = "mkdir node_modules; mv project node_modules/ 2>&1; mv project moved 2>&1; rm -rf project/.weft"
    first = run(workspace, moving)
    assert b"Device or resource busy" in first.stdout
    assert CANARY not in run(workspace).stdout
    assert (workspace / "project" / ".weft" / "ledger.db").read_bytes() == CANARY


def test_work_goes_on_in_a_project_whose_folder_cannot_be_moved(workspace: Path) -> None:
    script = "cd project && echo x > y && mkdir d && mv y d/z && mv d .. && cat ../d/z && rm -r ../d"
    assert run(workspace, script).stdout == b"x\n"


def test_a_folder_that_cannot_be_listed_is_hidden_whole(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command that runs as its owner could open it, and what it holds was not looked at."""
    original = os.open

    def closed(path: Any, flags: int, *words: Any, **named: Any) -> int:
        if path == "project" and not flags & os.O_PATH:
            raise PermissionError(13, "Permission denied")
        return original(path, flags, *words, **named)

    monkeypatch.setattr(os, "open", closed)
    (entry,) = search_workspace(workspace, SecretFiles()).entries
    assert (entry.path, entry.is_folder) == ("project", True)
    assert UNPROTECTED.secrets == SecretFiles()
