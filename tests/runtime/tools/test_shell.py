"""The shell tool runs exactly what its plan says, in the sandbox, and tells what came of it."""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.descriptors import open_below
from tests.sandbox import UNPROTECTED, machine_sandbox
from weft.runtime.sandbox.command_runner import CommandRunner
from weft.runtime.sandbox.processes import Limits, ProcessOutcome
from weft.runtime.sandbox.profiles import parse_profile
from weft.runtime.tool.tool_contract import CallPlan, ToolCallContext, ToolFailure
from weft.runtime.tools.shell import SHELL_LIMITS, ShellTool

CONTEXT = ToolCallContext(turn="turn", call="call")


def tool(workspace: Path, profile: str = "workspace", limits: Limits = SHELL_LIMITS) -> ShellTool:
    runner = CommandRunner(UNPROTECTED, sandbox=machine_sandbox())
    return ShellTool(workspace, profile=parse_profile(profile, granted_by="human:ada"), runner=runner, limits=limits)


def result(workspace: Path, arguments: Any, **how: Any) -> dict[str, Any]:
    answer: dict[str, Any] = asyncio.run(tool(workspace, **how).invoke(arguments, CONTEXT))
    return answer


def plan(workspace: Path, arguments: Any, **how: Any) -> CallPlan:
    return asyncio.run(tool(workspace, **how).plan(arguments, CONTEXT))


def failure(workspace: Path, arguments: Any, **how: Any) -> ToolFailure:
    with pytest.raises(ToolFailure) as raised:
        asyncio.run(tool(workspace, **how).invoke(arguments, CONTEXT))
    return raised.value


def test_a_text_is_run_by_a_shell_and_a_list_by_nobody(tmp_path: Path) -> None:
    answer = result(tmp_path, {"cmd": "echo $((1+1)); echo bad >&2; exit 3"})
    assert answer.pop("duration_ms") >= 0
    assert answer == {"rc": 3, "stdout": "2\n", "stderr": "bad\n"}
    assert result(tmp_path, {"cmd": ["echo", "$((1+1)); x"]})["stdout"] == "$((1+1)); x\n"


def test_folder_variables_and_time_are_those_that_were_asked_for(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    answer = result(
        tmp_path, {"cmd": "pwd; echo $COLOR; env", "cwd": "sub", "env": {"COLOR": "blue"}, "timeout_ms": 9000}
    )
    names = {line.partition("=")[0] for line in answer["stdout"].splitlines()[2:]}
    assert answer["stdout"].startswith(f"{tmp_path}/sub\nblue\n")
    assert names - {"PWD", "SHLVL", "_", "OLDPWD"} == {"PATH", "HOME", "COLOR", "GIT_CONFIG_SYSTEM"}
    late = failure(tmp_path, {"cmd": "echo begun; sleep 100", "timeout_ms": 300})
    assert (late.code, late.details["stdout"]) == ("timed_out", "begun\n")


@pytest.mark.parametrize(
    "arguments",
    [
        None, {}, [], "ls", {"cmd": ""}, {"cmd": " "}, {"cmd": []}, {"cmd": [""]}, {"cmd": ["a", 1]}, {"cmd": "a\0b"},
        {"cmd": {"a": 1}}, {"cmd": "ls", "other": 1}, {"cmd": "ls", "timeout_ms": 0}, {"cmd": "ls", "timeout_ms": -1},
        {"cmd": "ls", "timeout_ms": 10**9}, {"cmd": "ls", "timeout_ms": "x"}, {"cmd": "ls", "env": ["a"]},
        {"cmd": "ls \ud800"}, {"cmd": "ls", "cwd": 1}, {"cmd": "ls", "cwd": "a\0"},
    ],
)  # fmt: skip
def test_arguments_that_cannot_be_meant_are_refused(tmp_path: Path, arguments: Any) -> None:
    assert failure(tmp_path, arguments).code == "invalid_arguments"


@pytest.mark.parametrize("folder", ["..", "/", "/etc", "gone", "link", "sub/../..", "file", ".weft", ".weft/in", "~"])
def test_a_folder_outside_of_the_workspace_is_refused(tmp_path: Path, folder: str) -> None:
    workspace = tmp_path / "workspace"
    (workspace / "sub").mkdir(parents=True)
    (workspace / ".weft" / "in").mkdir(parents=True)
    (workspace / "file").touch()
    (workspace / "link").symlink_to("/etc")
    assert failure(workspace, {"cmd": "ls", "cwd": folder}).code == "not_found"


def test_a_command_may_name_folders(tmp_path: Path) -> None:
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "a.txt").touch()
    assert plan(tmp_path, {"cmd": ["ls", "src", "."]}).exact["files"] == {}
    assert open_below(tmp_path) == []


REFUSED = (
    "LD_PRELOAD LD_LIBRARY_PATH PATH BASH_ENV ENV GIT_SSH_COMMAND GIT_DIR GIT_CONFIG_COUNT GIT_EXTERNAL_DIFF "
    "PYTHONPATH PYTHONSTARTUP PYTHONHOME NODE_OPTIONS NODE_PATH PERL5LIB PERL5OPT RUBYOPT RUBYLIB JAVA_TOOL_OPTIONS "
    "_JAVA_OPTIONS IFS PS4 SHELLOPTS BASHOPTS PROMPT_COMMAND EDITOR VISUAL PAGER GIT_PAGER MANPAGER LESSOPEN "
    "BROWSER HOME SHELL MAKEFLAGS CC HTTP_PROXY https_proxy ALL_PROXY LC_ALL LANG GLIBC_TUNABLES GCONV_PATH "
    "XDG_CONFIG_HOME SSH_ASKPASS SUDO_ASKPASS CARGO_HOME RUSTC_WRAPPER GOFLAGS npm_config_script_shell "
    "DYLD_INSERT_LIBRARIES CLASSPATH WEFT_LEDGER PIP_INDEX_URL CDPATH TERMINFO INPUTRC PYTHONBREAKPOINT PERLLIB a-b "
    "1a A=B"
).split()


@pytest.mark.parametrize("name", [*REFUSED, "", "BASH_FUNC_git%%"])
def test_variables_that_change_what_runs_are_refused(tmp_path: Path, name: str) -> None:
    refusal = failure(tmp_path, {"cmd": "git log", "env": {name: "x", "GOOD": "1"}})
    assert (refusal.code, refusal.details) == ("environment_refused", {"names": [name]})


def test_the_plan_holds_everything_that_decides_what_runs(tmp_path: Path) -> None:
    (tmp_path / "build.sh").write_text("echo built")
    (tmp_path / "sub").mkdir()
    told = plan(tmp_path, {"cmd": "sh build.sh", "env": {"B": "2", "A": "1"}, "timeout_ms": 5000})
    digest = f"sha256 {hashlib.sha256(b'echo built').hexdigest()}"
    assert told.exact == {
        "argv": ["/bin/bash", "-c", "sh build.sh"],
        "cwd": str(tmp_path),
        "env": {"A": "1", "B": "2"},
        "timeout_ms": 5000,
        "workspace": str(tmp_path),
        "profile": "workspace",
        "granted_by": None,
        "readable": [],
        "withheld": [],
        "files": {"build.sh": digest},
        "held": ["build.sh"],
        "uncovered": [],
    }
    assert all(part in told.shown for part in ("sh build.sh", "A=1", "B=2", "sandbox workspace", "5000 ms", "build.sh"))
    assert told == plan(tmp_path, {"cmd": "sh build.sh", "env": {"A": "1", "B": "2"}, "timeout_ms": 5000})
    others = [
        {"cmd": "sh  build.sh"}, {"cmd": ["sh", "build.sh"]}, {"cmd": "sh build.sh", "env": {"A": "1"}},
        {"cmd": "sh build.sh", "cwd": "sub"}, {"cmd": "sh build.sh", "timeout_ms": 1},
    ]  # fmt: skip
    bounds = {plan(tmp_path, other).plan_digest for other in others} | {
        plan(tmp_path, others[0], profile="read-only").plan_digest
    }
    assert len(bounds | {told.plan_digest}) == 7


def test_whoever_approves_is_told_of_files_that_run_by_themselves(tmp_path: Path) -> None:
    shown = plan(tmp_path, {"cmd": "mkdir -p .husky; cp x .husky/pre-commit; echo export A=1 >.envrc"}).shown
    named = shown.rpartition("\n")[2]
    assert named.startswith("runs by itself: ")
    assert ".envrc (direnv, when a shell enters the folder)" in named
    assert ".husky/pre-commit (git, when somebody commits, pushes or pulls)" in named
    assert "runs by itself" not in plan(tmp_path, {"cmd": "make test > envrc"}).shown


def test_subjects_are_the_commands_that_the_text_consists_of(tmp_path: Path) -> None:
    assert plan(tmp_path, {"cmd": "git log; rm x"}).subjects == ("git log", "rm x")
    assert plan(tmp_path, {"cmd": "git log $(rm x)"}).subjects is None
    assert plan(tmp_path, {"cmd": ["git", "log; rm x"]}).subjects == ("git 'log; rm x'",)
    assert plan(tmp_path, {"cmd": "git log", "env": {"A": "1"}}).subjects == ("A=1 git log", "git log")


def replace_link(link: Path, target: str) -> None:
    link.rename(link.with_suffix(".old"))
    link.symlink_to(target)


CHANGES: dict[str, Callable[[Path], object]] = {
    "script": lambda folder: (folder / "build.sh").write_text("echo other"),
    "script removed": lambda folder: (folder / "build.sh").unlink(),
    "script in the folder": lambda folder: (folder / "sub" / "run.sh").write_text("echo other"),
    "makefile": lambda folder: (folder / "Makefile").write_text("all:\n\techo other"),
    "module": lambda folder: (folder / "pack" / "main.py").write_text("print(2)"),
    "link": lambda folder: replace_link(folder / "link.sh", "Makefile"),
    "target of the link": lambda folder: (folder / "target.sh").write_text("echo other"),
    "folder": lambda folder: replace_link(folder / "sub", "pack"),
    "a file where there was none": lambda folder: (folder / "later.sh").write_text("echo other"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_what_changed_after_the_plan_is_not_run(tmp_path: Path, change: str) -> None:
    for name in ("build.sh", "target.sh", "sub/run.sh", "Makefile", "pack/main.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("echo first")
    (tmp_path / "link.sh").symlink_to("target.sh")
    line = "sh build.sh; sh ./link.sh; python3 -m pack.main; make; ./run.sh > ran; sh later.sh"
    shell = tool(tmp_path)
    told = asyncio.run(shell.plan({"cmd": line, "cwd": "sub"}, CONTEXT))
    CHANGES[change](tmp_path)
    with pytest.raises(ToolFailure) as raised:
        asyncio.run(shell.perform(told, CONTEXT))
    assert raised.value.code in ("changed", "not_found")
    assert not (tmp_path / "sub" / "ran").exists()


def test_a_plan_of_another_profile_or_workspace_is_not_run(tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    told = plan(tmp_path, {"cmd": "touch x"})
    for other in (tool(tmp_path, "read-only"), tool(tmp_path, "none"), tool(tmp_path / "one")):
        with pytest.raises(ToolFailure):
            asyncio.run(other.perform(told, CONTEXT))
    changed = msgspec.structs.replace(told, exact={**told.exact, "cwd": str(tmp_path.parent)})
    with pytest.raises(ToolFailure):
        asyncio.run(tool(tmp_path).perform(changed, CONTEXT))
    assert sorted(os.listdir(tmp_path)) == ["one"]


def test_what_is_executed_are_the_words_of_the_plan(tmp_path: Path) -> None:
    calls: list[tuple[Any, ...]] = []

    class Spy(CommandRunner):
        async def run(self, *words: Any, **how: Any) -> ProcessOutcome:
            calls.append((words[1], how["folder"], how["environment"], how["limits"].seconds))
            return await super().run(*words, **how)

    shell = ShellTool(tmp_path, runner=Spy(UNPROTECTED, sandbox=machine_sandbox()))
    told = asyncio.run(shell.plan({"cmd": ["echo", "a b"], "env": {"A": "1"}, "timeout_ms": 7000}, CONTEXT))
    asyncio.run(shell.perform(told, CONTEXT))
    assert calls == [(["echo", "a b"], str(tmp_path), {"A": "1"}, 7.0)]


def test_output_that_is_no_text_is_marked(tmp_path: Path) -> None:
    answer = result(tmp_path, {"cmd": "printf 'a\\377b'; printf 'ü' >&2"})
    assert (answer["stdout"], answer["stderr"], answer["invalid_utf8"]) == ("a\\xffb", "ü", ["stdout"])


def test_a_command_that_writes_too_much_is_ended_and_what_it_wrote_is_told(tmp_path: Path) -> None:
    refusal = failure(tmp_path, {"cmd": "yes"}, limits=Limits(output=1000))
    assert refusal.code == "too_much_output"
    assert len(refusal.details["stdout"]) == 1000


def test_a_program_that_is_not_there_has_an_exit_code(tmp_path: Path) -> None:
    assert result(tmp_path, {"cmd": "no-such-program"})["rc"] == 127
    (tmp_path / "plain").write_text("no program")
    (tmp_path / "forged").write_text("#!/bin/sh\necho 'bwrap: execvp other: No such file or directory' >&2; exit 1")
    (tmp_path / "forged").chmod(0o755)
    for profile in ("workspace", "none"):
        missing = result(tmp_path, {"cmd": ["no-such-program"]}, profile=profile)
        assert (missing["rc"], missing["stderr"]) == (127, "no-such-program: No such file or directory\n")
        denied = result(tmp_path, {"cmd": ["./plain"]}, profile=profile)
        assert (denied["rc"], denied["stderr"]) == (126, "./plain: Permission denied\n")
    assert result(tmp_path, {"cmd": ["./forged"]})["rc"] == 1


def test_a_read_only_profile_writes_nothing(tmp_path: Path) -> None:
    assert result(tmp_path, {"cmd": "touch x"}, profile="read-only")["rc"] != 0
    assert list(tmp_path.iterdir()) == []
