"""Which calls stay where a person lets agents work without asking: what decides is the sandbox, and not the words."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

import pytest

from tests.sandbox import UNPROTECTED
from weft.kernel.authority import SandboxFiles
from weft.kernel.network_hosts import endpoints_of
from weft.runtime.sandbox.command_runner import CommandRunner
from weft.runtime.sandbox.profiles import READ_ONLY_PROFILE, WORKSPACE_PROFILE, SandboxProfile
from weft.runtime.sandbox.secret_files import SecretFiles
from weft.runtime.tools.calls import CallPlan
from weft.runtime.tools.change_tools import WriteArguments
from weft.runtime.tools.containment import Containment
from weft.runtime.tools.shell import ShellArguments, ShellTool
from weft.runtime.tools.workspace import WorkspaceFolder
from weft.runtime.tools.workspace_tools import workspace_tools

NONE = SandboxProfile(files=SandboxFiles.EVERYTHING, granted_by="ada")
NETWORK = SandboxProfile(files=SandboxFiles.WORKSPACE, endpoints=endpoints_of(["example.org"]))


def command(folder: Path, profile: SandboxProfile = WORKSPACE_PROFILE) -> CallPlan:
    tool = ShellTool(folder, runner=CommandRunner(UNPROTECTED), profile=profile)
    return tool.plan_of(ShellArguments(cmd="ls"))


def change(folder: Path, path: str) -> CallPlan:
    (tool,) = (
        tool for tool in workspace_tools(WorkspaceFolder(folder), None, lambda _: True) if tool.spec.name == "write"
    )
    return tool.plan_of(WriteArguments(path=path, content="x"))  # type: ignore[attr-defined,no-any-return]


def trusting(folder: Path, why: str | None = None, shown: Collection[str] = ()) -> Containment:
    return Containment(lambda place: place == str(folder), SecretFiles(shown=lambda: shown), why)


@pytest.mark.parametrize("profile", [WORKSPACE_PROFILE, READ_ONLY_PROFILE])
def test_a_command_in_the_sandbox_of_a_trusted_folder_stays_there(tmp_path: Path, profile: SandboxProfile) -> None:
    assert trusting(tmp_path).obstacle(command(tmp_path, profile), str(tmp_path)) is None


@pytest.mark.parametrize("profile", [NONE, NETWORK])
def test_one_without_a_sandbox_or_with_a_network_does_not(tmp_path: Path, profile: SandboxProfile) -> None:
    assert trusting(tmp_path).obstacle(command(tmp_path, profile), str(tmp_path)) == "it leaves the sandbox"


def test_in_another_folder_nothing_is_said(tmp_path: Path) -> None:
    """The folder is the one that the call is bound to, whatever the turn says that it works in."""
    (tmp_path / "here").mkdir()
    (tmp_path / "there").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "there")
    here = trusting(tmp_path / "here")
    assert here.obstacle(command(tmp_path / "there"), str(tmp_path / "here")) == ""
    assert here.obstacle(command(tmp_path / "link"), str(tmp_path / "link")) == ""
    assert trusting(tmp_path / "there").obstacle(command(tmp_path / "link"), str(tmp_path / "link")) is None


def test_a_turn_that_is_not_the_owners_says_why(tmp_path: Path) -> None:
    theirs = trusting(tmp_path, "a trigger began it")
    assert theirs.obstacle(command(tmp_path), str(tmp_path)) == "a trigger began it"
    assert not theirs.may_hold(str(tmp_path))


def test_a_change_of_a_file_stays_there_unless_its_name_is_that_of_a_secret(tmp_path: Path) -> None:
    obstacle = trusting(tmp_path).obstacle
    assert obstacle(change(tmp_path, "a.py"), str(tmp_path)) is None
    assert (
        obstacle(change(tmp_path, "deep/.envrc"), str(tmp_path))
        == "deep/.envrc is of a name that files of secrets have"
    )
    shown = trusting(tmp_path, shown=[str(tmp_path / "deep" / ".envrc")])
    assert shown.obstacle(change(tmp_path, "deep/.envrc"), str(tmp_path)) is None


def test_a_tool_that_is_bound_to_no_folder_does_not_stay_there(tmp_path: Path) -> None:
    plan = CallPlan(tool="github/list_issues", exact={})
    assert trusting(tmp_path).obstacle(plan, str(tmp_path)) == "it does not run in the sandbox of the folder"
    assert trusting(tmp_path).obstacle(plan, None) == ""
