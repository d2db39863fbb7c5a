"""A command writes in a file of the workspace that a package manager linked there from a store of all projects.
The kernel knows of no difference between the two names, so whoever works there is told."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from tests.attacks.test_approved_bytes import performed
from tests.runtime.sandbox.repositories import agent_runs, make_repository
from tests.sandbox import UNPROTECTED, machine_sandbox
from weft.runtime.sandbox.command_runner import CommandRunner
from weft.runtime.tools.shell import ShellTool

ON_DISK = True  # no sandbox takes a workspace in memory
LINKED, OTHER = "node_modules/package/index.js", "node_modules/package/other.js"


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    folder = make_repository(tmp_path / "work", files={"file": "one\n"})
    store = tmp_path / "store"
    store.mkdir()
    (folder / LINKED).parent.mkdir(parents=True)
    for name in (LINKED, OTHER):
        (store / os.path.basename(name)).write_text("module\n")
        os.link(store / os.path.basename(name), folder / name)
    _wait_for_later_time(store, (folder / OTHER).stat().st_ctime_ns)  # it was linked last
    return folder


def _wait_for_later_time(folder: Path, changed_ns: int) -> None:
    """Until the file system's clock, which stands still between two ticks, tells a command apart from what was made
    before it: what changed in the very tick of its start counts as changed by it."""
    tick = folder / "tick"
    tick.touch()
    while tick.stat().st_ctime_ns <= changed_ns:
        time.sleep(0.001)
        tick.touch()


@pytest.mark.parametrize(
    "script",
    [
        f"echo evil >> {LINKED}",
        f"echo evil >> {LINKED}; touch -d 2001-01-01 {LINKED}",
        f"ln {LINKED} node_modules/first; echo evil >> {LINKED}; rm {LINKED}; mv node_modules/first {LINKED}",
        f"mkdir closed; mv {LINKED} closed/; echo evil >> closed/index.js; chmod 0 closed closed/index.js",
    ],
)
def test_a_file_that_changed_under_another_name_too_is_named(workspace: Path, script: str) -> None:
    outcome = agent_runs(workspace, script)
    assert outcome.shared_files in {(LINKED,), ("closed/index.js",)}, outcome
    assert "evil" in (workspace.parent / "store/index.js").read_text(), "a kernel that keeps them apart needs no words"


def test_what_only_has_names_in_the_workspace_or_was_replaced_is_not_named(workspace: Path) -> None:
    script = f"cp {LINKED} copy; echo mine >> copy; mv copy {LINKED}; echo x > own; ln own again; echo y >> again"
    outcome = agent_runs(workspace, f"{script}; git add file; git commit -q --allow-empty -m x; cat {LINKED}")
    assert outcome.shared_files == ()
    assert (workspace.parent / "store/index.js").read_text() == "module\n"


def test_the_result_of_the_tool_names_some_of_them(workspace: Path) -> None:
    tool = ShellTool(workspace, runner=CommandRunner(UNPROTECTED, sandbox=machine_sandbox()))
    assert performed(tool, {"cmd": f"echo evil >> {LINKED}"})["shared_files"] == [LINKED]
    for number in range(30):
        (workspace.parent / f"store/{number}").write_text("")
        os.link(workspace.parent / f"store/{number}", workspace / f"{number}")
    names = performed(tool, {"cmd": "for name in [0-9]*; do echo x >> $name; done"})["shared_files"]
    assert len(names) == 21
    assert names[-1] == "and 10 more"
    assert "shared_files" not in performed(tool, {"cmd": "true"})
