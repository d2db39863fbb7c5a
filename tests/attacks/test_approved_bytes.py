"""Approve the bytes of a file, have others run: whoever replaces the file, and whenever, the approved ones run or none.

The attacker acts at named points: after the plan, between the last look at the file and the start, within the command,
and while it runs.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from msgspec import Struct

from tests.faults.test_workers import Gateless, allow
from tests.runtime.broker.bench import run, saying
from tests.runtime.broker.test_gated_calls import Gated, History
from tests.sandbox import UNPROTECTED, machine_sandbox
from weft.kernel.authority import Principal, PrincipalKind, rights
from weft.kernel.clock import FixedClock, SystemClock
from weft.kernel.enums import Decision
from weft.ledger.model import ToolUsePart
from weft.runtime.egress.execution_context import context_for
from weft.runtime.replies import FinishReason, Reply
from weft.runtime.sandbox.command_runner import CommandRunner
from weft.runtime.sandbox.processes import Ending, ProcessOutcome
from weft.runtime.sandbox.profiles import SandboxProfile
from weft.runtime.tool import gate as tool_gate
from weft.runtime.tool.gate import ToolGate
from weft.runtime.tool.tool_contract import PlannedTool, ToolCallContext, ToolFailure
from weft.runtime.tool.workspace import WorkspaceFolder
from weft.runtime.tools.shell import ShellTool, named_files
from weft.runtime.tools.workspace_tools import WriteTool
from weft.surfaces.opening import open as open_ledger

ACTING = context_for(Principal(PrincipalKind.HUMAN, "ann"), rights=rights(["tool:*"]))
UNASKED = ToolCallContext(turn="turn", call="call", acting=ACTING)
APPROVED = ToolCallContext(turn="turn", call="call", acting=ACTING, is_approved=True)
PROGRAMS = {
    "build.sh": "#!/bin/sh\necho {}\n",
    "sub/run.sh": "#!/bin/sh\necho {}\n",
    "tool.pl": "print '{}';",
    "Makefile": "all:\n\t@echo {}\n",
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    if str(tmp_path).startswith("/dev/"):
        pytest.skip("no sandbox shows a workspace in /dev")
    (tmp_path / "evil" / "sub").mkdir(parents=True)
    (tmp_path / "sub").mkdir()
    for name, text in PROGRAMS.items():
        for place, word in (("", "approved"), ("evil", "evil")):
            (tmp_path / place / name).write_text(text.format(word))
            (tmp_path / place / name).chmod(0o755)
    (tmp_path / "link.sh").symlink_to("build.sh")
    return tmp_path


class AttackedRunner(CommandRunner):
    """Has somebody at work between the last look at the files and the start of the command."""

    def __init__(self, attack: Callable[[], object]) -> None:
        super().__init__(UNPROTECTED, sandbox=machine_sandbox())
        self._attack = attack

    async def run(self, *words: Any, **details: Any) -> ProcessOutcome:
        self._attack()
        return await super().run(*words, **details)


def performed(tool: ShellTool, arguments: dict[str, Any], context: ToolCallContext = APPROVED) -> dict[str, Any]:
    """What a call gave, or the details of its failure."""

    async def body() -> dict[str, Any]:
        plan = await tool.plan(arguments, context)
        try:
            result: dict[str, Any] = (await tool.perform(plan, context)).result
        except ToolFailure as failure:
            return {**failure.details, "code": failure.code}
        return result

    return asyncio.run(body())


def replace(folder: Path, name: str) -> None:
    (folder / "evil" / name).rename(folder / name)


def rewrite(folder: Path, name: str) -> None:
    (folder / name).write_text((folder / "evil" / name).read_text())


def remove(folder: Path, name: str) -> None:
    (folder / name).unlink()
    replace(folder, name)


def link(folder: Path, name: str) -> None:
    (folder / name).unlink()
    (folder / name).symlink_to(folder / "evil" / name)


def swap_folder(folder: Path, name: str) -> None:
    (folder / "sub").rename(folder / "before")
    (folder / "evil" / "sub").rename(folder / "sub")


class Attack(Struct, frozen=True):
    cmd: Any
    name: str
    act: Callable[[Path, str], None]


ATTACKS = (
    Attack("sh build.sh", "build.sh", replace),
    Attack("sh build.sh", "build.sh", rewrite),
    Attack("./build.sh", "build.sh", remove),
    Attack(["./build.sh"], "build.sh", replace),
    Attack("for i in 1; do env A=1 sh $PWD/../*/build.sh || bash ./build.sh; done", "build.sh", replace),
    Attack("cd sub && sh -e run.sh", "sub/run.sh", swap_folder),
    Attack("true | bash -c 'sub/run.sh'", "sub/run.sh", replace),
    Attack("perl tool.pl", "tool.pl", rewrite),
    Attack("make all", "Makefile", replace),
    Attack("sh link.sh", "build.sh", replace),
    Attack(["sh", "sub/run.sh"], "sub/run.sh", rewrite),
)


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: f"{attack.cmd} {attack.act.__name__}")
def test_a_file_that_is_replaced_before_the_start_runs_with_its_approved_bytes(folder: Path, attack: Attack) -> None:
    tool = ShellTool(folder, runner=AttackedRunner(lambda: attack.act(folder, attack.name)))
    told = performed(tool, {"cmd": attack.cmd})
    assert "evil" not in told["stdout"]
    if "approved" not in told["stdout"]:  # the sandbox has no such program
        assert "not found" in told["stderr"], told
    assert told["code"] == "changed"


def test_a_link_that_leads_elsewhere_meanwhile_is_found(folder: Path) -> None:
    def act() -> None:
        (folder / "link.sh").unlink()
        (folder / "link.sh").symlink_to("evil/build.sh")

    assert performed(ShellTool(folder, runner=AttackedRunner(act)), {"cmd": "sh link.sh"})["changed"] == ["link.sh"]


@pytest.mark.parametrize(
    "attempt",
    [
        "mv evil/build.sh build.sh", "cat evil/build.sh > ./build?sh", "cp -f evil/build.sh .", "rm -f build.sh",
        "sed -i s/approved/evil/ build.sh", "ln -sf evil/build.sh build.sh",
        "chmod u+w build.sh; echo echo evil >> b*.sh",
    ],
)  # fmt: skip
def test_the_command_itself_cannot_replace_what_it_runs(folder: Path, attempt: str) -> None:
    tool = ShellTool(folder, runner=CommandRunner(UNPROTECTED, sandbox=machine_sandbox()))
    assert performed(tool, {"cmd": f"{attempt}; sh build.sh"})["stdout"] == "approved\n"
    assert (folder / "build.sh").read_text() == PROGRAMS["build.sh"].format("approved")


@pytest.mark.parametrize("act", [replace, remove, rewrite], ids=lambda act: act.__name__)
def test_a_file_that_is_replaced_while_the_command_runs_is_told(folder: Path, act: Callable[[Path, str], None]) -> None:
    """From outside a name can be moved away from under what is mounted there: that is no success then."""
    tool = ShellTool(folder, runner=CommandRunner(UNPROTECTED, sandbox=machine_sandbox()))

    async def body() -> None:
        cmd = "touch started; until test -e go; do :; done; sh build.sh"
        plan = await tool.plan({"cmd": cmd}, APPROVED)
        running = asyncio.ensure_future(tool.perform(plan, APPROVED))
        while not (folder / "started").exists():
            assert not running.done()
            await asyncio.sleep(0)
        act(folder, "build.sh")
        (folder / "go").touch()
        with pytest.raises(ToolFailure) as raised:
            await running
        assert (raised.value.code, raised.value.details["changed"]) == ("changed", ["build.sh"])

    asyncio.run(body())


def test_no_other_call_works_in_the_folder_while_an_approved_one_runs(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What an approved file calls is not held: it is kept from other calls."""
    shell = ShellTool(folder, runner=CommandRunner(UNPROTECTED, sandbox=machine_sandbox()))
    write = WriteTool(WorkspaceFolder(folder))
    tools: dict[str, PlannedTool] = {"shell": shell, "write": write}
    (folder / "lib.sh").write_text("echo library\n")
    (folder / "build.sh").write_text("touch started; until test -e go; do :; done; . ./lib.sh\n")
    waits = asyncio.Event()
    is_locked = tool_gate._is_locked

    def watched(descriptor: int, kind: int) -> bool:
        got = is_locked(descriptor, kind)
        if not got:
            waits.set()
        return got

    monkeypatch.setattr(tool_gate, "_is_locked", watched)

    async def body() -> None:
        gate = ToolGate(tools, allow, Gateless(), workspace=folder)
        change = {"path": "lib.sh", "content": "echo evil\n"}
        plan = await shell.plan({"cmd": "sh build.sh"}, APPROVED)
        other = await write.plan(change, UNASKED)
        running = asyncio.ensure_future(gate.perform("shell", {"cmd": "sh build.sh"}, APPROVED, plan.plan_digest))
        while not (folder / "started").exists():
            assert not running.done()
            await asyncio.sleep(0)
        writing = asyncio.ensure_future(gate.perform("write", change, UNASKED, other.plan_digest))
        waiting = asyncio.ensure_future(waits.wait())
        await asyncio.wait({writing, waiting}, return_when=asyncio.FIRST_COMPLETED)
        (folder / "go").touch()
        output: Any = await running
        assert output.result["stdout"] == "library\n"
        await writing
        waiting.cancel()
        assert (folder / "lib.sh").read_text() == "echo evil\n"

    asyncio.run(body())


def test_calls_that_nobody_approved_run_beside_each_other(folder: Path) -> None:
    async def body() -> None:
        async with tool_gate.hold_folder(folder, alone=False), tool_gate.hold_folder(folder, alone=False):
            pass

    asyncio.run(body())


def test_the_answer_of_a_person_is_what_has_files_held(folder: Path) -> None:
    """A call that a policy allows runs as it is: its command may change what it runs."""
    held: list[list[str]] = []

    class SpyRunner(CommandRunner):
        async def run(self, profile: SandboxProfile, argv: Sequence[str], **details: Any) -> ProcessOutcome:
            held.append([mount.place for mount in details["held_files"]])
            return ProcessOutcome(ending=Ending.EXITED, code=0, stdout=b"", stderr=b"")

    async def body(decision: Decision) -> None:
        with open_ledger(":memory:") as ledger:
            calling = Reply(
                parts=(ToolUsePart("call-1", "shell", {"cmd": "sh build.sh"}),),
                finish=FinishReason.TOOL_CALL,
                model_id="m",
                model="m-1",
                provider="there",
            )
            gated = Gated(ledger, FixedClock(SystemClock().now_ms()), decision, calling, saying("I see"))
            tools = {"shell": ShellTool(folder, runner=SpyRunner(UNPROTECTED))}
            gate = ToolGate(tools, gated.policy, History(ledger), clock=gated.clock, workspace=folder)
            acting = context_for(
                Principal(PrincipalKind.HUMAN, "ann"), rights=rights(["model:*", "provider:*", "tool:*"])
            )
            gated.bench.options |= {"tools": tools, "gate": gate, "acting": acting}
            message = gated.bench.admit()
            await gated.serve(message)
            for approval in ledger.approvals.list():
                assert re.search(r"build.sh: sha256 \w+, held (.|\n)*not what they call", approval.shown or "")
                ledger.approvals.grant(approval.id, plan_digest=approval.plan_digest)
                await gated.serve(message)

    run(body(Decision.ASK))
    run(body(Decision.ALLOW))
    assert held == [[str(folder / "build.sh")], []]


@pytest.mark.parametrize(
    ("cmd", "text"),
    [
        ("sed -i s/approved/changed/ build.sh", "echo changed"),
        ("echo echo more >> build.sh && sh build.sh", "echo more"),
        ("mv evil/build.sh build.sh", "echo evil"),
        ("rm build.sh; cat > build.sh <<E\necho written\nE\nsh build.sh", "echo written"),
        ('python3 -c \'open("build.sh", "w").write("echo python")\' || echo echo python > build.sh', "echo python"),
    ],
)
def test_an_approved_command_that_is_meant_to_change_a_file_does(folder: Path, cmd: str, text: str) -> None:
    tool = ShellTool(folder, runner=CommandRunner(UNPROTECTED, sandbox=machine_sandbox()))
    assert performed(tool, {"cmd": cmd})["rc"] == 0
    assert text in (folder / "build.sh").read_text()


HELD = {
    "sh a.sh": ["a.sh"], "bash -eu ./a.sh x.txt": ["a.sh"], "./a.sh b.py": ["a.sh"], "a.sh": ["a.sh"],
    ". ./a.sh": ["a.sh"], "source a.sh && ls": ["a.sh"], "python3 b.py x.txt": ["b.py"],
    "python -u -W ignore b.py": ["b.py"], "python3.11 -m d.tool": ["d/tool.py"],
    "python -m pytest d/tool.py::test": ["conftest.py", "d/tool.py"], "node -r ./c.js b.py": ["b.py", "c.js"],
    "node --require=./c.js b.py": ["b.py", "c.js"], "perl -I d b.py": ["b.py"],
    "ls; (cd d && python tool.py)": ["d/tool.py"], "if true; then sh a.sh; fi": ["a.sh"], "! sh a.sh": ["a.sh"],
    "for f in 1 2; do sh a.sh $f; done": ["a.sh"], "echo $(sh a.sh)": ["a.sh"], "echo `sh a.sh`": ["a.sh"],
    "sh a''.sh": ["a.sh"], 'bash -c \'sh "a"".sh"\'': ["a.sh"], "sh a\\.sh": ["a.sh"],
    "f(){ sh a.sh; }; f": ["a.sh"], "{ ./a.sh; }": ["a.sh"], "{ ls; } && { sh a.sh;}": ["a.sh"],
    "sh 'a.sh'": ["a.sh"], "s\\h a.sh": ["a.sh"], "timeout 5s nice -n 3 ./a.sh": ["a.sh"], "A=1 B=2 ./a.sh": ["a.sh"],
    "find . -exec sh a.sh {} +": ["a.sh"], "ls | xargs -n 1 ./a.sh": ["a.sh"], "sudo -u me bash -lc ./a.sh": ["a.sh"],
    "uv run b.py": ["b.py"], "uv run python b.py": ["b.py"], "poetry run pytest": ["conftest.py"],
    "go run main.go": ["main.go"], "make -C d && make": ["Makefile"], "make -f b.py all": ["Makefile", "b.py"],
    "npm run build": ["package.json"], "npm ci": ["package.json"], "npm install left-pad": [],
    "yarn build": ["package.json"], "pip install .": ["setup.py"], "sh a.sh 2>&1 | tee x.txt": ["a.sh"],
    "sh a.sh > x.txt": ["a.sh"], "sh < a.sh": ["a.sh"], "cat a.sh | sh": ["a.sh"], 'eval "$(cat a.sh)"': ["a.sh"],
    "bash <(cat a.sh)": ["a.sh"], "cat x.txt | grep a": [], "python b.py; (rm x.txt)": ["b.py"],
    "cat > a.sh <<E\nls\nE\nsh a.sh": [], "echo ls >> a.sh; sh a.sh": [], "cat a.sh": [], "git add a.sh b.py": [],
    "sed -i s/x/y/ a.sh": [], "rm a.sh": [], "chmod +x a.sh": [], "black b.py": [], "python -m black b.py": [],
    "python3 -c 'import d' a.sh": [], "vim a.sh": [], "cp a.sh x.txt": [],
}  # fmt: skip


@pytest.mark.parametrize("cmd", HELD)
def test_the_files_that_are_held_are_those_that_run(tmp_path: Path, cmd: str) -> None:
    (tmp_path / "d").mkdir()
    for name in "a.sh b.py c.js x.txt d/tool.py conftest.py main.go Makefile package.json setup.py".split():
        (tmp_path / name).write_text("text")
    assert named_files(str(tmp_path), str(tmp_path), ["/bin/bash", "-c", cmd]).executed == HELD[cmd]


def test_words_without_end_are_looked_through_at_once(tmp_path: Path) -> None:
    text = "sh -c make pytest -m python -r " * 1_000
    assert named_files(str(tmp_path), str(tmp_path), ["/bin/bash", "-c", text]).executed == []


@pytest.mark.parametrize(
    ("cmd", "pattern"),
    [
        ("./build.s*", "./build.s*"), ("sh buil?.sh", "buil?.sh"), ("cd sub && ./r[u]n.sh", "./r[u]n.sh"),
        ("python3 $TOOL", "$TOOL"), ("~/build.sh", "~/build.sh"),
        ("sh build.sh; ./b*", "./b*"), ("sh bu{ild.sh,}", "bu{ild.sh,}"), ("./{build,}.sh", "./{build,}.sh"),
        ("bash @(build).sh", "@(build).sh"), ("bash +(buil|d)d.sh", "+(buil|d)d.sh"), ("sh !(x).sh", "!(x).sh"),
        ("find . -exec sh {} +", "{}"), ("sh nowhere.sh", "nowhere.sh"), ("bash @(a|@(build)).sh", "@(build)"),
        (["sh", "-c", "./b*"], "./b*"),
    ],
)  # fmt: skip
def test_an_approval_says_of_a_pattern_that_no_file_is_held_for_it(folder: Path, cmd: Any, pattern: str) -> None:
    tool = ShellTool(folder, runner=CommandRunner(UNPROTECTED, sandbox=machine_sandbox()))
    plan = asyncio.run(tool.plan({"cmd": cmd}, APPROVED))
    assert f"No file is held for {pattern}: " in plan.shown
    assert ("build.sh" in plan.exact["held"]) == str(cmd).startswith("sh build.sh;")


@pytest.mark.parametrize("cmd", ["sh build''.sh", "sh bui\\ld.sh", "bash -c 'sh bui\"\"ld.sh'", "bash +x build.sh"])
def test_a_file_whose_name_is_written_in_parts_runs_as_it_was_approved(folder: Path, cmd: str) -> None:
    tool = ShellTool(folder, runner=CommandRunner(UNPROTECTED, sandbox=machine_sandbox()))
    plan = asyncio.run(tool.plan({"cmd": cmd}, APPROVED))
    assert plan.exact["held"] == ["build.sh"]
    (folder / "build.sh").write_text("echo evil")
    with pytest.raises(ToolFailure, match="changed since it was planned: files"):
        asyncio.run(tool.perform(plan, APPROVED))


@pytest.mark.parametrize(
    "cmd",
    [
        "sh build.sh *.txt",
        "ls *",
        "echo $HOME; make",
        "grep 'a*' build.sh",
        "python3 -c 'x = {}'",
        "cat build.sh | sh 2>&1",
        "echo ls > new.sh; sh new.sh",
        "grep -r node sub",
        "bash -s",
        "python3 -m pytest",
    ],
)
def test_it_says_nothing_of_patterns_for_what_is_only_read(folder: Path, cmd: str) -> None:
    tool = ShellTool(folder, runner=CommandRunner(UNPROTECTED, sandbox=machine_sandbox()))
    assert "No file is held" not in asyncio.run(tool.plan({"cmd": cmd}, APPROVED)).shown
