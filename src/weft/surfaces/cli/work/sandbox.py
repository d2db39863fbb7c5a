"""`weft sandbox`: commands in the sandbox, as agents' tools run them."""

from __future__ import annotations

import asyncio
import os
import pwd
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from msgspec import structs

from weft.kernel.errors import InvalidInput
from weft.kernel.typed_names import shell_word
from weft.surfaces.cli.command_line import OK, Call, group
from weft.surfaces.plain_text import safe, safe_lines
from weft.verbs.program_answers import SandboxRun

if TYPE_CHECKING:
    from weft.runtime.tool.tool_contract import CallPlan
    from weft.runtime.tools.shell import ShellTool


sandbox_command = group(
    "sandbox",
    """Run commands in the sandbox, as agents' tools do.

    docs/tools.md#the-sandbox says what each profile leaves to a command.
    """,
)
TIMED_OUT, ENDED = 124, 1
"""Exit codes where a limit ended the command."""


@sandbox_command.verb("run")
@click.argument("words", metavar="CMD...", nargs=-1, required=True, type=click.UNPROCESSED)
@click.option(
    "--profile",
    default="workspace",
    metavar="PROFILE",
    help="workspace, read-only, network:HOST[,HOST] or none. Default: workspace.",
)
@click.option("--in", "folder", default=".", metavar="DIR", help="The workspace. Default: the current folder.")
@click.option("--allow-none", is_flag=True, help="Grant the profile none: the command runs without a sandbox.")
@click.option(
    "--timeout", type=click.FloatRange(min=0.001), metavar="SECONDS", help="End it after SECONDS. Default: 120."
)
@click.option("--timeout-ms", type=click.IntRange(1), metavar="N", hidden=True, help="The same in milliseconds.")
@click.option("--env", "variables", multiple=True, metavar="NAME=VALUE", help="A variable for the command.")
@click.option(
    "--readable",
    multiple=True,
    metavar="PATH",
    help="Another path that it may read, such as where a language is installed.",
)
def run(
    call: Call,
    words: tuple[str, ...],
    profile: str,
    folder: str,
    allow_none: bool,
    timeout: float | None,
    timeout_ms: int | None,
    variables: tuple[str, ...],
    readable: tuple[str, ...],
) -> int:
    """Run a command exactly as the tool shell would: same sandbox, environment and limits.

    Write -- before the command. Ends with its exit code, with 127 where there is no such command, with 124 where its
    time was over, and with 1 where another limit ended it. With --json the answer names the toolchains of the home
    folder that the command was shown.
    """
    from weft.runtime.sandbox.profiles import NO_SANDBOX, parse_profile
    from weft.runtime.tools.shell import ShellTool
    from weft.surfaces.cli.work.sandbox_access import command_runner, nearby_ledger

    person = f"{pwd.getpwuid(os.getuid()).pw_name} at the command line"
    if profile == NO_SANDBOX and not allow_none:
        raise InvalidInput("the profile none is no sandbox", "say --allow-none, too, to run the command without one")
    chosen = parse_profile(profile, granted_by=person if allow_none else None)
    if not Path(folder).is_dir():
        raise InvalidInput(f"{folder} is not a folder", "name the workspace by --in DIR")
    shown = [Path(os.path.abspath(os.path.expanduser(path))) for path in readable]
    for path in shown:
        if not path.exists():
            raise InvalidInput(f"there is no {path}", "name what is there by --readable PATH")
    runner = command_runner(nearby_ledger(call.ledger), shown)
    tool = ShellTool(Path(folder).resolve(), profile=chosen, runner=runner)
    arguments: dict[str, Any] = {"cmd": list(words), "env": dict(map(_variable, variables))}
    if timeout is not None:
        timeout_ms = int(timeout * 1000)
    answer, code = asyncio.run(_perform_plan(tool, {**arguments, **({"timeout_ms": timeout_ms} if timeout_ms else {})}))
    if call.json:
        if not chosen.is_unconfined:
            toolchains = asyncio.run(runner.toolchains(Path(folder).resolve()))
            answer = structs.replace(answer, toolchains=toolchains.rows, hidden_programs=toolchains.hidden)
        call.document(answer)
    else:
        _show(answer, Path(folder).resolve())
    return code


def _variable(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals:
        raise InvalidInput(f"{text!r:.80} sets no variable", "give NAME=VALUE")
    return name, value


async def _perform_plan(tool: ShellTool, arguments: dict[str, Any]) -> tuple[SandboxRun, int]:
    """Plan it and perform the plan, as a turn does, only without anybody who decides in between."""
    from weft.runtime.tool.tool_contract import ToolCallContext, ToolFailure

    context = ToolCallContext(turn="", call="")
    try:
        plan = await tool.plan(arguments, context)
    except ToolFailure as failure:
        raise InvalidInput(failure.message, "see `weft help sandbox run`") from None
    try:
        result = (await tool.perform(plan, context)).result
    except ToolFailure as failure:
        if not isinstance(failure.details, dict) or "rc" not in failure.details:
            raise InvalidInput(failure.message, "run it again") from None
        code = TIMED_OUT if failure.code == "timed_out" else ENDED
        return _sandbox_run(plan, failure.details, f"{failure.code}: {failure.message}"), code
    return _sandbox_run(plan, result, None), result["rc"] if result["rc"] >= OK else 128 - result["rc"]


def _sandbox_run(plan: CallPlan, result: dict[str, Any], error: str | None) -> SandboxRun:
    exact = plan.exact
    return SandboxRun(
        argv=exact["argv"],
        cwd=exact["cwd"],
        profile=exact["profile"],
        granted_by=exact["granted_by"],
        plan_digest=plan.plan_digest,
        files=exact["files"],
        result=result,
        error=error,
    )


def _show(answer: SandboxRun, workspace: Path) -> None:
    """Each stream where it belongs, in characters that no terminal obeys."""
    for name, is_error in (("stdout", False), ("stderr", True)):
        for line in safe_lines(answer.result[name]):
            click.echo(line, err=is_error)
    for host in answer.result.get("refused_hosts", ()):
        click.echo(f"refused: {safe(host)}", err=True)
    for path in answer.result.get("hidden", ()):
        if path.endswith("/"):
            click.echo(safe(f"hidden: {path} of {workspace}: it holds too much that must be hidden"), err=True)
            continue
        showing = f"`weft trust {shell_word(str(workspace))} --show {shell_word(path)}` lets commands see it"
        click.echo(safe(f"hidden: {path} of {workspace}: {showing}"), err=True)
    for path in answer.result.get("shared_files", ()):
        click.echo(f"shared: {safe(path)} has another name elsewhere (a hard link), and changed there, too", err=True)
    for sentence in answer.result.get("git", ()):
        click.echo(f"git: {safe(sentence)}", err=True)
    if answer.error is not None:
        click.echo(safe(answer.error), err=True)
