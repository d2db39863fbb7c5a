"""Workspaces that get another name, lie in one another, or have two commands at once: what is hidden stays hidden."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.sandbox import UNPROTECTED, machine_sandbox
from weft.kernel.errors import StoreFailed
from weft.runtime.sandbox import bubblewrap, remembered_places, sandbox_plan
from weft.runtime.sandbox.bubblewrap import SandboxGuard
from weft.runtime.sandbox.command_runner import CommandRunner
from weft.runtime.sandbox.confinement import ConfinedRun
from weft.runtime.sandbox.processes import Ending, ProcessOutcome
from weft.runtime.sandbox.profiles import WORKSPACE_PROFILE
from weft.runtime.sandbox.remembered_places import WorkspaceLock
from weft.runtime.sandbox.sandbox_plan import PersonFolders

CANARY = b"canary-3fd0"
LOOK = "find . -type f -execdir cat {} + 2>/dev/null; true"
WAIT = "touch started; while [ -e started ]; do sleep 0.02; done"
ROOT = Path(__file__).parents[2]


@pytest.fixture
def upper(tmp_path: Path) -> Path:
    """A workspace in which `sub` is another one."""
    folder = tmp_path / "upper"
    for path in ("apps/web/.env", "sub/api/.env", "sub/.docker/config.json"):
        (folder / path).parent.mkdir(parents=True)
        (folder / path).write_bytes(CANARY)
    for path in ("sub/node_modules/fetched", "beside", "sub/open"):
        (folder / path).mkdir(parents=True)
    return folder


@pytest.fixture
def state(tmp_path: Path) -> Path:
    return tmp_path / "state"


@pytest.fixture
def run(state: Path) -> Callable[..., ProcessOutcome]:
    def started(workspace: Path, script: str = LOOK) -> ProcessOutcome:
        runner = CommandRunner(
            UNPROTECTED,
            sandbox=machine_sandbox(),
            person=PersonFolders(covered_places=state, command_notes=state / "n"),
        )
        return asyncio.run(runner.run(WORKSPACE_PROFILE, ["/bin/sh", "-c", script], workspace=workspace))

    return started


Run = Callable[..., ProcessOutcome]
HIDING = {
    "into fetched files": "mv api node_modules/api",
    "out of the folder that names it": "mv .docker docker",
    "both": "mv .docker docker && mv docker api/x && mv api node_modules/",
}


@pytest.mark.parametrize("hiding", HIDING.values(), ids=HIDING.keys())
@pytest.mark.parametrize("is_renamed", ["itself", "the folder above it", "to its old name"])
def test_what_is_remembered_is_known_in_a_workspace_of_another_name(
    run: Run, upper: Path, hiding: str, is_renamed: str
) -> None:
    workspace = upper / "sub"
    assert run(workspace, "true").succeeded
    assert run(workspace, hiding).succeeded
    if is_renamed == "the folder above it":
        upper.rename(upper.with_name("other"))
        workspace = upper.with_name("other") / "sub"
    else:
        workspace.rename(upper / "beside/other")
        workspace = upper / "beside/other"
    if is_renamed == "to its old name":
        (upper / "sub").mkdir()
        assert run(upper / "sub", "true").succeeded  # another folder, which nothing is remembered of
        (upper / "sub").rmdir()
        workspace = workspace.rename(upper / "sub")
    for _ in range(3):
        assert CANARY not in run(workspace).stdout


@pytest.mark.parametrize("has_begun", [True, False])
@pytest.mark.parametrize(
    "hiding", ["mv apps/web sub/node_modules/web", "mv sub/api sub/node_modules/", "mv sub/.docker sub/docker"]
)
def test_what_a_command_moves_into_a_workspace_below_its_own_stays_hidden_there(
    run: Run, upper: Path, hiding: str, has_begun: bool
) -> None:
    if has_begun:
        run(upper / "sub", "true")
    run(upper, "true")
    assert run(upper, hiding).succeeded
    for _ in range(3):
        assert CANARY not in run(upper / "sub").stdout


@pytest.mark.parametrize("has_begun", [True, False])
@pytest.mark.parametrize("hiding", HIDING.values(), ids=HIDING.keys())
def test_what_a_command_moves_in_a_workspace_below_stays_hidden_above(
    run: Run, upper: Path, hiding: str, has_begun: bool
) -> None:
    if has_begun:
        run(upper, "true")
    run(upper / "sub", "true")
    assert run(upper / "sub", hiding).succeeded
    assert run(upper / "sub", "true").succeeded
    for _ in range(3):
        assert CANARY not in run(upper).stdout


def test_a_workspace_that_a_command_above_it_renames_is_known(run: Run, upper: Path) -> None:
    run(upper / "sub", "mv api node_modules/api; mv .docker docker")
    assert run(upper, "mv sub beside/sub; mkdir sub").succeeded
    assert CANARY not in run(upper / "beside/sub").stdout
    assert CANARY not in run(upper / "beside").stdout
    assert CANARY not in run(upper).stdout


def test_what_a_workspace_above_no_longer_has_is_searched_for_once(
    run: Run, upper: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(upper, "true")
    (upper / "apps/web/.env").unlink()
    run(upper / "sub", "true")
    monkeypatch.setattr("weft.runtime.sandbox.hidden_places.MOST_FETCHED_FOLDERS", 0)
    assert run(upper / "sub", "true").succeeded


@pytest.mark.parametrize("damage", [b"[", b"", b"{}", b'{"workspace": "', b"\xff" * 40])
def test_a_memory_that_cannot_be_read_refuses_and_says_what_to_do(
    run: Run, upper: Path, state: Path, damage: bytes
) -> None:
    """Taken for empty, it would uncover what was moved."""
    run(upper / "sub", "mv api node_modules/api")
    (note,) = state.rglob("covers.json")
    note.write_bytes(damage)
    for _ in range(2):
        with pytest.raises(StoreFailed, match=r"covers\.json, which says what is hidden from commands") as refusal:
            run(upper / "sub", "touch ran")
        assert "and remove the file" in str(refusal.value.advice)
    assert not (upper / "sub/ran").exists()


class Paused:
    """Commands stop at a named point of their start, those in one workspace, until they may go on."""

    def __init__(self, workspace: Path, monkeypatch: pytest.MonkeyPatch, point: str) -> None:
        self.reached, self.may_go_on = threading.Event(), threading.Event()
        original = getattr(SandboxGuard, point)

        def paused(guard: SandboxGuard, *words: Any) -> Any:
            start = original(guard, *words) if point == "before_start" else None
            if guard._place == str(workspace) and not self.reached.is_set():
                self.reached.set()
                assert self.may_go_on.wait(60)
            return start if point == "before_start" else original(guard, *words)

        monkeypatch.setattr(SandboxGuard, point, paused)


@contextmanager
def beside(act: Callable[[], object]) -> Iterator[threading.Thread]:
    thread = threading.Thread(target=act)
    thread.start()
    try:
        yield thread
    finally:
        thread.join()


@pytest.mark.parametrize("point", ["before_start", "ensure_unchanged"])
@pytest.mark.parametrize(("first", "second"), [(".", "."), (".", "sub"), ("sub", "."), ("sub", "sub")])
def test_no_sandbox_is_made_while_another_is_made_in_the_same_tree(
    run: Run, upper: Path, monkeypatch: pytest.MonkeyPatch, point: str, first: str, second: str
) -> None:
    paused = Paused(upper / first, monkeypatch, point)
    waits = threading.Event()

    def pause() -> None:
        waits.set()
        threading.Event().wait(0.01)

    monkeypatch.setattr(remembered_places, "_pause", pause)
    order: list[str] = []
    with beside(lambda: order.append(f"first {run(upper / first, 'true').code}")):
        assert paused.reached.wait(60)
        with beside(lambda: order.append(f"second {run(upper / second, 'touch second').code}")) as other:
            try:
                assert waits.wait(60), "the second one waits for its turn"
                assert other.is_alive()
                assert not (upper / second / "second").exists()
            finally:
                paused.may_go_on.set()
    assert sorted(order) == ["first 0", "second 0"]


def test_commands_of_workspaces_side_by_side_do_not_wait_for_one_another(
    run: Run, upper: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paused = Paused(upper / "sub", monkeypatch, "ensure_unchanged")
    with beside(lambda: run(upper / "sub", "true")):
        try:
            assert paused.reached.wait(60)
            assert run(upper / "beside", "true").succeeded
        finally:
            paused.may_go_on.set()


def test_nothing_is_cleaned_while_another_sandbox_is_made_in_the_same_tree(
    run: Run, upper: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cleaning would come between that one's look and its mounts."""
    marker, order = upper / "started", list[str]()
    cleaned = ConfinedRun.after_end
    waits = threading.Event()

    def clean(ended: ConfinedRun, ending: Ending, before_cleaning: Any = None) -> Ending:
        def begin() -> None:
            waits.set()
            before_cleaning()
            order.append("cleaned")

        return cleaned(ended, ending, None if before_cleaning is None else begin)

    with beside(lambda: run(upper, WAIT)) as running:
        while not marker.exists() and running.is_alive():
            running.join(0.01)
        monkeypatch.setattr(ConfinedRun, "after_end", clean)
        paused = Paused(upper / "sub", monkeypatch, "ensure_unchanged")
        with beside(lambda: run(upper / "sub", "true")):
            try:
                assert paused.reached.wait(60)
                marker.unlink()
                assert waits.wait(60)
                running.join(0.2)
                order.append("was made")
            finally:
                paused.may_go_on.set()
    assert order == ["was made", "cleaned", "cleaned"]


def test_a_command_is_cleaned_also_where_another_start_does_not_come_to_its_end(
    run: Run, upper: Path, state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remembered_places, "LONGEST_CLEANING_WAIT_SECONDS", 0.1)
    marker, outcomes = upper / "started", list[ProcessOutcome]()
    words = [sys.executable, "-c", HOLDER, str(state), str(upper)]
    with beside(lambda: outcomes.append(run(upper, WAIT))) as running:
        while not marker.exists() and running.is_alive():
            running.join(0.01)
        with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT) as holder:
            assert holder.stdout is not None
            assert holder.stdout.readline() == b"held\n"
            marker.unlink()
            running.join(60)
            holder.kill()
    assert [outcome.succeeded for outcome in outcomes] == [True]


HOLDER = """
import sys
from pathlib import Path
from weft.runtime.sandbox.remembered_places import WorkspaceLock
lock = WorkspaceLock(Path(sys.argv[1]), Path(sys.argv[2]), can_write=True)
lock.acquire()
print("held", flush=True)
sys.stdin.read()
"""


def test_another_process_waits_for_its_turn_too_and_says_so_where_it_does_not_come(
    run: Run, upper: Path, state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remembered_places, "LONGEST_WAIT_SECONDS", 0.2)
    words = [sys.executable, "-c", HOLDER, str(state), str(upper)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        with pytest.raises(StoreFailed, match="another command has been starting"):
            run(upper / "sub", "touch ran")
        assert not (upper / "sub/ran").exists()
        holder.kill()
    assert run(upper / "sub", "touch ran").succeeded


@pytest.mark.parametrize("runs_in", [".", "sub"])
def test_no_command_starts_while_another_could_have_moved_what_is_hidden_ahead_of_the_search(
    run: Run, upper: Path, runs_in: str
) -> None:
    """The folder outside stands for where the search was already."""
    workspace, ahead = upper / "sub", upper.with_name("ahead")
    marker = upper / runs_in / "started"
    run(workspace, "true")
    with beside(lambda: run(upper / runs_in, WAIT)) as running:
        while not marker.exists() and running.is_alive():
            running.join(0.01)
        try:
            (workspace / "api").rename(ahead)
            with pytest.raises(StoreFailed, match=r"api/\.env.* another command that runs"):
                run(workspace, "touch ran")
            ahead.rename(workspace / "node_modules/api")
            assert CANARY not in run(workspace).stdout
        finally:
            marker.unlink()
    assert not (workspace / "ran").exists()
    assert CANARY not in run(workspace).stdout


def test_what_is_missing_is_looked_for_twice_and_waited_for_once(
    run: Run, upper: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bubblewrap, "_ENDING_SECONDS", 0.2)
    workspace, ahead = upper / "sub", upper.with_name("ahead")
    marker = upper / "started"
    run(workspace, "true")
    waits: list[float] = []
    looks: list[str] = []
    wait, look = WorkspaceLock.wait_to_be_alone, sandbox_plan.plan_sandbox

    def waited(lock: WorkspaceLock, seconds: float) -> None:
        waits.append(seconds)
        wait(lock, seconds)

    def looked(*words: Any) -> Any:
        looks.append("looked")
        return look(*words)

    with beside(lambda: run(upper, WAIT)) as running:
        while not marker.exists() and running.is_alive():
            running.join(0.01)
        monkeypatch.setattr(WorkspaceLock, "wait_to_be_alone", waited)
        monkeypatch.setattr(bubblewrap, "plan_sandbox", looked)
        try:
            (workspace / "api").rename(ahead)
            with pytest.raises(StoreFailed, match=r"^api/\.env, which is hidden from commands, is not found"):
                run(workspace, "true")
            assert waits == [0.2]
            assert len(looks) == 2
            ahead.rename(workspace / "api")
        finally:
            marker.unlink()


def test_a_command_starts_as_soon_as_the_one_ended_that_could_have_moved_what_is_missing(
    run: Run, upper: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bubblewrap, "_ENDING_SECONDS", 60.0)
    workspace, marker = upper / "sub", upper / "started"
    run(workspace, "true")
    wait = WorkspaceLock.wait_to_be_alone

    def ended_meanwhile(lock: WorkspaceLock, seconds: float) -> None:
        marker.unlink()
        wait(lock, seconds)

    monkeypatch.setattr(WorkspaceLock, "wait_to_be_alone", ended_meanwhile)
    with beside(lambda: run(upper, WAIT)) as running:
        while not marker.exists() and running.is_alive():
            running.join(0.01)
        (workspace / "api").rename(upper.with_name("ahead"))
        assert run(workspace, "true").succeeded


def test_what_another_command_makes_and_removes_keeps_none_from_starting(run: Run, upper: Path) -> None:
    """It came while that one ran, which can read it."""
    workspace = upper / "sub"
    marker = workspace / "started"
    with beside(lambda: run(workspace, f"echo mine > .env.new; {WAIT}")) as running:
        while not marker.exists() and running.is_alive():
            running.join(0.01)
        try:
            assert run(workspace, "cat .env.new").code != 0
            (workspace / ".env.new").unlink()
            assert run(workspace, "true").succeeded
        finally:
            marker.unlink()
