"""Lines that look as if only harmless commands were in them: nobody is left unasked, and no pattern allows one.

Each is run by the real shell first, beside the programs that it names, so that it is seen to do what it is said to do.
"""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import time
from pathlib import Path

import pytest
from msgspec import Struct

from tests.sandbox import UNPROTECTED
from weft.kernel.authority import rights
from weft.kernel.permission_subjects import line_subjects
from weft.runtime.policies.default_policy import decide
from weft.runtime.sandbox.command_runner import CommandRunner
from weft.runtime.tool.tool_contract import ToolCallContext
from weft.runtime.tools.shell import ShellTool

LS_ALONE = rights(["tool:shell(ls *)", "tool:shell(git *)", "tool:shell(true)"])
NO_TOUCH = rights(["tool:shell"], ["tool:shell(touch *)"])
PLANTED = "#!/bin/sh\n/usr/bin/touch ran\n"


class Disguise(Struct, frozen=True):
    """A line that runs `touch ran`, and what is set or lies there before."""

    line: str
    variables: dict[str, str] = {}
    files: dict[str, str] = {}
    shell: str = "bash"


DISGUISES = (
    Disguise("ls 'a[$(touch ran)]'; ((ls = _))"),
    Disguise("ls 'a[$(touch ran)]'; ((_))"),
    Disguise("ls 'a[`touch ran`]'; (( ls=_ ))"),
    Disguise("true 'a[$(touch ran)]'; ((true _)) 2>/dev/null || ((_))"),
    Disguise("git log 'a[$(touch ran)]'; if ((_)); then true; fi"),
    Disguise("ls 'a[$(touch ran)]'; while ((_)); do true; done"),
    Disguise("ls 'a[$(touch ran)]'\n((ls\n=_))"),
    Disguise("ls 'a[$(touch ran)]'; ! ((_))"),
    Disguise("true 'a[$(touch ran)]'; { ((_)); }"),
    Disguise("true 'a[$(touch ran)]'; test -v 'x[_]'"),
    Disguise("ls a; test -v 'b[a]'", {"a": "b[$(touch ran)]"}),
    Disguise("read 'x[a]' < f", {"a": "b[$(touch ran)]"}, {"f": "1\n"}),
    Disguise("read a < f; test -v 'x[a]'", files={"f": "b[$(touch ran)]\n"}),
    Disguise("printf '%n' PATH; git log", files={"0/git": PLANTED}),
    Disguise("printf -v PATH ./bin; git log", files={"bin/git": PLANTED}),
    Disguise("PATH=./bin; git log", files={"bin/git": PLANTED}),
    Disguise("read PATH < f; git log", files={"f": "./bin:/usr/bin:/bin\n", "bin/git": PLANTED}),
    Disguise("export PATH=./bin; git log", files={"bin/git": PLANTED}),
    Disguise("cd bin; set -k; git log PATH=.", files={"bin/git": PLANTED.replace("ran", "../ran")}),
    Disguise("ls\\\n; touch ran"),
    Disguise("alias ls='touch ran'\nls", shell="dash"),
    Disguise("ls() { touch ran; }; ls", shell="dash"),
    Disguise("env BASH_ENV=f bash -c ls", files={"f": "touch ran\n"}),
    Disguise("ls <<E\n$(touch ran)\nE"),
    Disguise("ls 2>&1>(touch ran)"),
    Disguise("exec 3<f; . /dev/fd/3", files={"f": "touch ran\n"}),
    Disguise("time -p touch ran"),
    Disguise("coproc ls { touch ran; }; wait"),
    Disguise("ls |& touch ran"),
    Disguise("ls # '\ntouch ran # '"),
    Disguise("ls & touch ran"),
    Disguise("trap 'touch ran' EXIT; ls"),
    Disguise("hash -p ./bin/git ls; ls", files={"bin/git": PLANTED}),
    Disguise("mapfile -C 'touch ran #' -c 1 < f", files={"f": "1\n"}),
    Disguise("exec touch ran"),
    Disguise("function ls { touch ran; }; ls"),
    Disguise("[[ -v 'x[$(touch ran)]' ]]"),
    Disguise("let 'ls[$(touch ran)]'"),
    Disguise("declare -i ls='a[$(touch ran)]'"),
)


def named(disguise: Disguise) -> str:
    return disguise.line.replace("\n", "/")


@pytest.fixture
def work(tmp_path: Path) -> Path:
    """Outside of a repository, so that `git` has nothing to do but end."""
    (tmp_path / "work").mkdir()
    return tmp_path / "work"


@pytest.mark.parametrize("disguise", DISGUISES, ids=named)
def test_a_line_that_hides_what_it_runs_is_asked_about(work: Path, disguise: Disguise) -> None:
    for name, text in disguise.files.items():
        (work / name).parent.mkdir(exist_ok=True)
        (work / name).write_text(text)
        (work / name).chmod(0o755)
    program = shutil.which(disguise.shell)
    if program is None:
        pytest.skip(f"{disguise.shell} is not here")
    variables = {"PATH": "/usr/local/bin:/usr/bin:/bin", **disguise.variables}
    nothing = subprocess.DEVNULL
    subprocess.run(
        [program, "-c", disguise.line],
        cwd=work,
        env=variables,
        stdin=nothing,
        stdout=nothing,
        stderr=nothing,
        check=False,
    )
    for _ in range(2000):  # a shell does not wait for what it runs in a substitution
        if (work / "ran").exists():
            break
        time.sleep(0.005)
    assert (work / "ran").exists(), "it is no attack on this shell"

    async def planned() -> tuple[str, ...] | None:
        arguments = {"cmd": disguise.line, "env": disguise.variables}
        plan = await ShellTool(work, runner=CommandRunner(UNPROTECTED)).plan(
            arguments, ToolCallContext(turn="turn", call="call")
        )
        return plan.subjects

    subjects = asyncio.run(planned())
    assert decide("shell", None if subjects is None else list(subjects), {})[0] == "ask"
    for granted in (LS_ALONE, NO_TOUCH):
        assert not all(granted.allows("tool:shell", subject) for subject in subjects or (None,))


@pytest.mark.parametrize(
    "line",
    [
        "ls (", "ls)", "(ls)", "((ls))", "{ ls; }", "ls &", "ls & ls", "ls;", "ls &&", "; ls", "ls ;; ls", "ls ;& ls",
        "ls\n", "ls\r", "ls\x00", "ls\x1b", "ls\tx", "ls\x0bx", "ls\x85x", "ls\u00a0x", "ls\u2003x", "l\u0455", "ls é",
        "ls 'é'", "ls \\a", 'ls "\\a"', "ls 'a", 'ls "a', "ls # a", "ls a#b", "ls !!", "! ls", "ls 'a'!", 'ls "!!"',
        "ls *", "ls ?", "ls [a]", "ls ~", "ls a~b", "ls {a,b}", "ls {a", "ls $a", "ls $'a'", 'ls $"a"', "ls `a`",
        "ls '$a'", "ls '`a`'", "ls '[a]'", 'ls "$a"', 'ls "[a]"', "[ -f a ]", "[[ -f a ]]", "'ls'", '"ls"', "l''s", "",
        " ", "ls>f", "ls >f>g", "ls > f g", "> f", "> f ls", "ls >& f", "ls &> f", "ls >| f", "ls <> f", "ls << f",
        "ls <<< f", "ls <(a)", "ls >(a)", "ls 3> f", "ls 2>&3", "ls 2>&-", "ls 2>&1x", "ls {a}> f", "ls > ''", "ls >",
        "ls > /tmp/f", "ls < /etc/passwd", "ls > ../f", "ls > a/../../f", "ls > 'a/../f'", "ls > ..",
        "ls > /dev/tcp/a/1", "ls > /dev/stdout", "cd a && ls > f", "ls > f; cd a", "command cd a; ls > f", "A=1",
        "A=1 ls", "A+=1 ls", "a= ls", "A[0]=1 ls", "time ls", "function ls", "if ls", "then ls", "coproc ls",
        "select ls", "in ls", "eval ls", ". a", "source a", "exec ls", "exec > f", "export A=1", "set -x",
        "unset PATH", "hash -p a ls", "trap ls EXIT", "read a", "printf -v a b", "kill 1", "pushd a", "wait",
        "x" * 70_000,
    ],
)  # fmt: skip
def test_what_lies_outside_of_the_grammar_matches_no_pattern(line: str) -> None:
    assert line_subjects(line) is None
