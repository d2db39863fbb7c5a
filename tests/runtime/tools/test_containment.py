"""Which calls stay where a person lets agents work without asking: what decides is the sandbox, and not the words."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterator
from functools import partial
from pathlib import Path
from typing import NoReturn

import pytest

from tests.runtime.inference.asking import PERSON
from tests.runtime.sandbox.repositories import make_repository, person_git
from tests.sandbox import UNPROTECTED
from weft.kernel.authority import SandboxFiles
from weft.kernel.enums import Decision
from weft.kernel.errors import InvalidInput
from weft.kernel.permission_subjects import endpoints_of
from weft.runtime.egress.execution_context import context_for
from weft.runtime.policies.policy_decisions import PolicyCall, PolicyDecision
from weft.runtime.sandbox import git_repositories, git_view
from weft.runtime.sandbox.command_runner import CommandRunner
from weft.runtime.sandbox.git_view import NOBODY, GitPerson
from weft.runtime.sandbox.hidden_places import ProtectedPlaces, SecretFiles
from weft.runtime.sandbox.profiles import READ_ONLY_PROFILE, WORKSPACE_PROFILE, SandboxProfile
from weft.runtime.tool.gate import CallContainment, ToolGate
from weft.runtime.tool.tool_contract import CallPlan, PlannedTool, ToolCallContext, ToolFailure, Verdict
from weft.runtime.tool.workspace import WorkspaceFolder
from weft.runtime.tools.shell import ShellArguments, ShellTool
from weft.runtime.tools.workspace_tools import WriteArguments, workspace_tools

NONE = SandboxProfile(files=SandboxFiles.EVERYTHING, granted_by="ada")
NETWORK = SandboxProfile(files=SandboxFiles.WORKSPACE, endpoints=endpoints_of(["example.org"]))


def command(folder: Path, profile: SandboxProfile = WORKSPACE_PROFILE, text: str = "ls") -> CallPlan:
    tool = ShellTool(folder, runner=CommandRunner(UNPROTECTED), profile=profile)
    return tool.plan_of(ShellArguments(cmd=text))


def write_tool(folder: Path) -> PlannedTool:
    tools = workspace_tools(WorkspaceFolder(folder), None, lambda _: True)
    return next(tool for tool in tools if tool.spec.name == "write")


def change(folder: Path, path: str) -> CallPlan:
    return write_tool(folder).plan_of(WriteArguments(path=path, content="x"))  # type: ignore[attr-defined,no-any-return]


def trusting(
    folder: Path, why: str | None = None, shown: Collection[str] = (), person: GitPerson = NOBODY
) -> CallContainment:
    return CallContainment(
        lambda place: place == str(folder),
        ProtectedPlaces(ledgers=(), folders=(), secrets=SecretFiles(shown=lambda: shown)),
        person,
        why,
    )


@pytest.mark.parametrize("profile", [WORKSPACE_PROFILE, READ_ONLY_PROFILE])
def test_a_command_in_the_sandbox_of_a_trusted_folder_stays_there(tmp_path: Path, profile: SandboxProfile) -> None:
    assert trusting(tmp_path).obstacle(command(tmp_path, profile), str(tmp_path)) is None


@pytest.mark.parametrize("profile", [NONE, NETWORK])
def test_one_without_a_sandbox_or_with_a_network_does_not(tmp_path: Path, profile: SandboxProfile) -> None:
    assert trusting(tmp_path).obstacle(command(tmp_path, profile), str(tmp_path)) == "it leaves the sandbox"


def test_one_that_names_a_hidden_file_is_asked_about_for_that(tmp_path: Path) -> None:
    (tmp_path / ".env").write_text("KEY=1\n")
    plan = command(tmp_path, text="cat .env")
    assert trusting(tmp_path).obstacle(plan, str(tmp_path)) == "it names what is hidden from commands: .env"


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


@pytest.mark.parametrize("how", ["it is a link to it", "it includes it", "a repository includes it from there"])
@pytest.mark.parametrize("is_there", [True, False])
def test_what_the_persons_own_git_reads_settings_in_is_not_changed(tmp_path: Path, how: str, is_there: bool) -> None:
    home, folder = tmp_path / "home", tmp_path / "home" / "dotfiles"
    make_repository(folder)
    if how == "it is a link to it":
        (home / ".gitconfig").symlink_to(folder / "gitconfig")
    elif how == "it includes it":
        (home / ".gitconfig").write_text("[include]\n\tpath = dotfiles/gitconfig\n")
    else:
        person_git(folder, "config", "include.path", "~/dotfiles/gitconfig")
    if is_there:
        (folder / "gitconfig").write_text("[user]\n\tname = Ada\n")
    obstacle = trusting(folder, person=GitPerson(settings=[str(home / ".gitconfig")], home=home)).obstacle
    assert obstacle(change(folder, "gitconfig"), str(folder)) == "gitconfig is a part of git's configuration"
    assert obstacle(change(folder, "other"), str(folder)) is None


@pytest.mark.parametrize("path", ["g/hooks/post-commit", "g/info/attributes", "bare/hooks/update", "bare/deep/x"])
def test_what_lies_in_a_folder_of_gits_under_any_name_is_not_changed(tmp_path: Path, path: str) -> None:
    """The person's git runs a hook there; commands find it read-only, or it is taken away after them."""
    person_git(tmp_path, "init", "-q", "--separate-git-dir", str(tmp_path / "g"), "tree")
    person_git(tmp_path, "init", "-q", "--bare", "bare")
    obstacle = trusting(tmp_path).obstacle
    assert obstacle(change(tmp_path, path), str(tmp_path)) == f"{path} is a part of a folder of git's"
    assert obstacle(change(tmp_path, "tree/deep/a"), str(tmp_path)) is None


def test_nor_is_a_folder_made_one_of_gits_file_by_file(tmp_path: Path) -> None:
    """Its hooks would be written first, when it was none yet."""
    obstacle, written = trusting(tmp_path).obstacle, list[str]()
    for name in ("hooks/post-commit", "objects/a", "refs/a", "HEAD"):
        if obstacle(change(tmp_path, f"new/{name}"), str(tmp_path)) is None:
            written.append(name)
            (tmp_path / "new" / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / "new" / name).write_text("ref: refs/heads/x\n")
    assert written == ["hooks/post-commit", "objects/a"]


def test_a_folder_is_looked_through_once_a_turn_and_what_is_included_read_for_each_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks, find = list[str](), git_repositories.git_places

    def counted(workspace: str) -> Iterator[str]:
        looks.append(workspace)
        return find(workspace)

    monkeypatch.setattr(git_view, "git_places", counted)
    make_repository(tmp_path)
    obstacle = trusting(tmp_path).obstacle
    assert [obstacle(change(tmp_path, path), str(tmp_path)) for path in ("a", "b", "inc")] == [None, None, None]
    person_git(tmp_path, "config", "include.path", "../inc")
    assert obstacle(change(tmp_path, "inc"), str(tmp_path)) == "inc is a part of git's configuration"
    assert looks == [str(tmp_path)]


def test_a_tool_that_is_bound_to_no_folder_does_not_stay_there(tmp_path: Path) -> None:
    plan = CallPlan(tool="github/list_issues", exact={})
    assert trusting(tmp_path).obstacle(plan, str(tmp_path)) == "it does not run in the sandbox of the folder"
    assert trusting(tmp_path).obstacle(plan, None) == ""


class Quiet:
    """The history of a session in which nobody said anything, and a keeper of everything."""

    async def is_untrusted(self, turn: str) -> bool:
        return False

    async def session_grants(self) -> tuple[()]:
        return ()

    async def before(self, turn: str) -> tuple[()]:
        return ()

    async def why_not_whole(self, turn: str) -> None:
        return None

    async def begin(self, turn: str) -> None:
        return None

    async def after(self) -> tuple[()]:
        return ()

    async def recorded(self, kept: object) -> None:
        return None


def decided_by(containment: CallContainment, folder: Path, plan: PlannedTool) -> Verdict:
    """What the gate says of a change of a file, where a policy allows what is contained and asks about the rest."""
    gate = ToolGate(
        {"write": plan}, follow_containment, Quiet(), keeper=Quiet(), workspace=folder, containment=containment
    )
    context = ToolCallContext(turn="t", call="c", acting=context_for(PERSON))
    return asyncio.run(gate.decide("write", {"path": "a.txt", "content": "x"}, context, None))


@pytest.mark.parametrize("what", ["too many folders", "the system", "the list of trusted folders"])
def test_where_it_cannot_be_told_whether_a_call_stays_there_a_person_is_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    error = OSError(5, "Input/output error") if what == "the system" else InvalidInput("it cannot be read", "mend it")

    def fail(*_: object) -> NoReturn:
        raise error

    if what == "too many folders":
        (tmp_path / "folder").mkdir()
        monkeypatch.setattr(git_view, "git_places", partial(git_repositories.git_places, most=1))
    elif what == "the system":
        monkeypatch.setattr(git_view, "git_places", fail)
    is_trusted = fail if what == "the list of trusted folders" else lambda place: True
    verdict = decided_by(CallContainment(is_trusted, UNPROTECTED, NOBODY, None), tmp_path, write_tool(tmp_path))
    assert verdict.decision is Decision.ASK
    assert "it cannot be told whether it stays in a folder that is trusted for work: " in str(verdict.rationale)


async def follow_containment(call: PolicyCall) -> PolicyDecision:
    decision = Decision.ALLOW if call.context.is_contained else Decision.ASK
    return PolicyDecision(
        decision=decision, rationale=call.context.not_contained or "as it is", policy=None, policy_name="test"
    )


def test_a_call_does_not_run_once_the_trust_is_revoked_between_its_decision_and_its_run(tmp_path: Path) -> None:
    trusted = {str(tmp_path)}
    gate = ToolGate(
        {"write": write_tool(tmp_path)},
        follow_containment,
        Quiet(),
        keeper=Quiet(),
        workspace=tmp_path,
        containment=CallContainment(trusted.__contains__, UNPROTECTED, NOBODY, None),
    )

    async def run() -> None:
        context = ToolCallContext(turn="t", call="c", acting=context_for(PERSON))
        for path, is_revoked in (("one.txt", False), ("two.txt", True)):
            arguments = {"path": path, "content": "x"}
            verdict = await gate.decide("write", arguments, context, None)
            assert verdict.decision is Decision.ALLOW
            if not is_revoked:
                await gate.perform("write", arguments, context, str(verdict.plan_digest))
                continue
            trusted.clear()
            with pytest.raises(ToolFailure, match="trusted for work no longer"):
                await gate.perform("write", arguments, context, str(verdict.plan_digest))
            assert (await gate.decide("write", arguments, context, None)).decision is Decision.ASK

    asyncio.run(run())
    assert sorted(path.name for path in tmp_path.iterdir()) == ["one.txt"]


@pytest.mark.parametrize(
    "rest", [Decision.ASK, Decision.DENY_CONTINUE, Decision.ALLOW], ids=["asks", "refuses", "allows all the same"]
)
def test_nor_where_another_broker_repeats_it_after_a_crash(tmp_path: Path, rest: Decision) -> None:
    """A decision that is recorded says that it was allowed, and not that it was since the folder was trusted."""
    trusted = {str(tmp_path)}

    async def policy(call: PolicyCall) -> PolicyDecision:
        decision = Decision.ALLOW if call.context.is_contained else rest
        return PolicyDecision(decision=decision, rationale="as it is", policy=None, policy_name="test")

    def gate() -> ToolGate:
        containment = CallContainment(trusted.__contains__, UNPROTECTED, NOBODY, None)
        tools = {"write": write_tool(tmp_path)}
        return ToolGate(tools, policy, Quiet(), keeper=Quiet(), workspace=tmp_path, containment=containment)

    async def run() -> None:
        context, before = ToolCallContext(turn="t", call="c", acting=context_for(PERSON)), gate()
        arguments = {"path": "one.txt", "content": "x"}
        verdict = await before.decide("write", arguments, context, None)
        assert verdict.decision is Decision.ALLOW
        await gate().perform("write", arguments, context, str(verdict.plan_digest), verdict.plan)
        (tmp_path / "one.txt").unlink()
        trusted.clear()
        after = gate()
        if rest is Decision.ALLOW:
            await after.perform("write", arguments, context, str(verdict.plan_digest), verdict.plan)
            return
        with pytest.raises(ToolFailure, match="trusted for work no longer"):
            await after.perform("write", arguments, context, str(verdict.plan_digest), verdict.plan)

    asyncio.run(run())
    assert (tmp_path / "one.txt").exists() is (rest is Decision.ALLOW)
