"""What is protected is seen by nothing that runs in the sandbox, wherever it lies and whoever starts it."""

from __future__ import annotations

import asyncio
import inspect
from pathlib import Path

import pytest

from tests.sandbox import UNPROTECTED, machine_sandbox
from weft.kernel.errors import InvalidInput
from weft.runtime.agent_harness import CriterionCommands
from weft.runtime.sandbox import bubblewrap
from weft.runtime.sandbox.bubblewrap import SandboxedServer
from weft.runtime.sandbox.command_runner import CommandRunner
from weft.runtime.sandbox.hidden_places import ProtectedPlaces
from weft.runtime.sandbox.processes import ProcessOutcome
from weft.runtime.sandbox.profiles import SandboxProfile, parse_profile
from weft.runtime.tool.tool_contract import ToolCallContext
from weft.runtime.tools.shell import ShellTool

CANARY = "canary-4f1d"
PROFILES = [parse_profile("workspace"), parse_profile("read-only"), parse_profile("network:public.example")]
LOOK = "ls -AR . 2>&1; cat */* .*/* */*/* .*/*/* 2>/dev/null; true"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A folder in which `weft init` was run, with what the ledger has beside it."""
    folder = tmp_path / "project"
    for path in (
        ".weft/ledger.db", ".weft/ledger.db-wal", ".weft/ledger.db-files/trees/config", "own.db", "own.db-shm",
        "own.db-near-1a2b", "own.db-files/trees/config", "config/weft/credentials.toml",
    ):  # fmt: skip
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(CANARY)
    (folder / "plain.txt").write_text("plain\n")
    return folder


def places_of(folder: Path) -> ProtectedPlaces:
    """As they are handed in where this ledger is open."""
    return ProtectedPlaces(
        ledgers=(folder / ".weft" / "ledger.db", folder / "own.db"),
        folders=(folder / ".weft" / "ledger.db-files", folder / "config" / "weft", folder / "state" / "weft"),
    )


def run(folder: Path, script: str, profile: SandboxProfile = PROFILES[0], **given: tuple[Path, ...]) -> ProcessOutcome:
    runner = CommandRunner(given.pop("protected", places_of(folder)), sandbox=machine_sandbox(), **given)  # type: ignore[arg-type]
    return asyncio.run(runner.run(profile, ["/bin/sh", "-c", script], workspace=folder))


@pytest.mark.parametrize("profile", PROFILES, ids=str)
def test_commands_run_in_the_folder_where_a_ledger_was_made_and_see_nothing_of_it(
    project: Path, profile: SandboxProfile
) -> None:
    outcome = run(project, f"{LOOK}; cat plain.txt", profile)
    assert outcome.succeeded, outcome
    assert outcome.stdout.endswith(b"plain\n")
    assert CANARY.encode() not in outcome.stdout
    assert b"trees" not in outcome.stdout


def test_the_shell_tool_runs_in_the_folder_where_a_ledger_was_made(project: Path) -> None:
    tool = ShellTool(project, runner=CommandRunner(places_of(project), sandbox=machine_sandbox()))
    assert asyncio.run(tool.invoke({"cmd": "cat plain.txt"}, ToolCallContext(turn="", call="")))["stdout"] == "plain\n"


def test_a_criterion_neither_reads_the_ledger_nor_writes_beside_it(project: Path) -> None:
    commands = CriterionCommands(CommandRunner(places_of(project), sandbox=machine_sandbox()))
    write = "for f in own.db own.db-files/trees/config config/weft/credentials.toml; do echo planted > $f; done"
    result = commands.run(f"{LOOK}; {write}", project, None)
    assert CANARY not in result.stdout
    texts = {path.read_text() for path in project.rglob("*") if path.is_file() and path.name != "plain.txt"}
    assert texts == {CANARY, ""}  # names that no command may take are taken


def test_what_is_protected_and_does_not_exist_yet_cannot_be_made(project: Path) -> None:
    """Else a command would write the configuration that is read later outside the sandbox."""
    run(project, "mkdir -p state/weft; echo planted > state/weft/trust.json")
    assert list((project / "state" / "weft").iterdir()) == []


def test_what_is_protected_is_hidden_in_every_folder_that_is_shown(project: Path, tmp_path: Path) -> None:
    workspace = tmp_path / "elsewhere"
    workspace.mkdir()
    runner = CommandRunner(places_of(project), sandbox=machine_sandbox(), readable=[project])
    script = f"cd {project}; {LOOK}; cat plain.txt"
    outcome = asyncio.run(runner.run(PROFILES[0], ["/bin/sh", "-c", script], workspace=workspace))
    assert outcome.stdout.endswith(b"plain\n")
    assert b"own.db-near-1a2b" in outcome.stdout
    assert CANARY.encode() not in outcome.stdout


def test_ledgers_of_projects_in_a_folder_that_is_only_read_are_hidden(project: Path, tmp_path: Path) -> None:
    workspace, other = tmp_path / "elsewhere", tmp_path / "others" / "deep" / ".weft"
    other.mkdir(parents=True)
    workspace.mkdir()
    (other / "ledger.db").write_text(CANARY)
    (tmp_path / "link").symlink_to("others")
    for shown in (tmp_path / "others", tmp_path / "link", project):
        runner = CommandRunner(UNPROTECTED, sandbox=machine_sandbox(), readable=[shown])
        script = f"cat {shown}/.weft/* {shown}/deep/.weft/*; ls -d {shown}"
        outcome = asyncio.run(runner.run(PROFILES[0], ["/bin/sh", "-c", script], workspace=workspace))
        assert outcome.stdout == f"{shown}\n".encode()


def test_a_ledger_behind_a_link_is_hidden_where_it_really_lies(project: Path) -> None:
    (project / "data").mkdir()
    (project / "own.db").rename(project / "data" / "real.db")
    (project / "own.db").symlink_to("data/real.db")
    assert CANARY.encode() not in run(project, "cat own.db data/real.db").stdout


@pytest.mark.parametrize("place", [".", "trees", "trees/deep"])
def test_no_workspace_lies_in_what_is_protected(tmp_path: Path, place: str) -> None:
    folder = tmp_path / "kept"
    (folder / "trees" / "deep").mkdir(parents=True)
    runner = CommandRunner(ProtectedPlaces(ledgers=(), folders=(folder,)), sandbox=machine_sandbox())
    with pytest.raises(InvalidInput, match="no command in the sandbox may see"):
        asyncio.run(runner.run(PROFILES[0], ["true"], workspace=folder / place))


@pytest.mark.parametrize("start", [bubblewrap.run_sandboxed, bubblewrap.start_sandboxed, SandboxedServer])
def test_nothing_is_started_without_saying_what_is_protected(start: object) -> None:
    parameter = inspect.signature(start).parameters["protected"]  # type: ignore[arg-type]
    assert parameter.default is inspect.Parameter.empty
    for name in ("ledgers", "folders"):
        with pytest.raises(TypeError, match="Missing required argument"):
            ProtectedPlaces(**{other: () for other in ("ledgers", "folders") if other != name})  # type: ignore[arg-type]
    assert UNPROTECTED.paths == ()
