"""What an agent, or another server, leaves in a cache is not what an MCP server starts with its keys; nor is what
lies in a folder loaded by a process that Weft starts there."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from tests.runtime.homes import program
from tests.runtime.mcp.configured import PYTHON, SCRIPT
from tests.sandbox import machine_sandbox
from tests.surfaces.shell import Shell
from weft.kernel.clock import SystemClock
from weft.surfaces.cli.ledgers.import_job import ImportJob

ON_DISK = True  # no sandbox takes a workspace in memory
UVX = f"""#!/bin/sh
[ -e ~/.cache/package ] || [ -n "$UV_OFFLINE" ] || echo fetched > ~/.cache/package
[ "$(cat ~/.cache/package)" = fetched ] || {{ echo "started what was planted: $KEY" >&2; exit 2; }}
exec {PYTHON} -I -S -B {SCRIPT} echoes
"""
PLANT = "echo planted > ~/.cache/package"


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    folder.mkdir()
    return folder


@pytest.fixture
def shell(
    workspace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Shell:
    """In the folder where the agent works, of somebody who has uv."""
    machine_sandbox()
    for name in list(os.environ):
        if name.startswith(("XDG_", "WEFT_", "UV_", "PIP_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("KEY", "canary-of-the-server")
    program(tmp_path / "home/.local/bin/uvx", UVX)
    monkeypatch.chdir(workspace)
    return Shell(workspace, monkeypatch, capsys)


def add(shell: Shell, name: str, *words: str, command: tuple[str, ...] = ("uvx", "package")) -> str:
    readable = ("--readable", sys.base_prefix, "--readable", str(SCRIPT), "--variable", "KEY")
    return shell("mcp-server", "add", name, "--yes", *readable, *words, "--", *command).err


def plant(shell: Shell, workspace: Path) -> None:
    assert shell("sandbox", "run", "--in", str(workspace), "--", "sh", "-c", PLANT).code == 0


@pytest.mark.slow("starts a server and commands in sandboxes")
def test_a_command_of_the_workspace_plants_nothing_for_a_server_that_works_there(shell: Shell, workspace: Path) -> None:
    plant(shell, workspace)
    assert "planted" not in add(shell, "tracker", "--folder", str(workspace))
    plant(shell, workspace)
    assert shell.json("mcp-server", "tools", "tracker")[0]["state"] == "approved"


@pytest.mark.slow("starts servers in sandboxes with four commands")
def test_a_server_plants_nothing_for_a_later_one_of_its_name(shell: Shell, workspace: Path) -> None:
    script = f"{PLANT}; exec {PYTHON} -I -S -B {SCRIPT} echoes"
    add(shell, "tracker", command=("sh", "-c", script))
    assert shell("mcp-server", "remove", "tracker").code == 0
    assert "planted" not in add(shell, "tracker")
    add(shell, "other", command=("sh", "-c", script))
    assert shell.json("mcp-server", "tools", "tracker")[0]["state"] == "approved"


@pytest.mark.parametrize("name", ["weft/__init__.py", "msgspec.py", "json.py"])
def test_an_import_in_the_background_loads_nothing_of_the_folder_that_the_person_is_in(
    shell: Shell, workspace: Path, tmp_path: Path, name: str
) -> None:
    mark, sessions = tmp_path / "loaded", tmp_path / "sessions"
    sessions.mkdir()
    (workspace / name).parent.mkdir(exist_ok=True)
    (workspace / name).write_text(f"open({str(mark)!r}, 'w').close()")
    assert shell("init").code == 0
    begun = shell("import", "--background", str(sessions))
    job = ImportJob(str(workspace / ".weft" / "ledger.db"))
    while job.is_held():
        SystemClock().sleep(0.02)
    assert not mark.exists()
    assert begun.code == 0, begun.err
