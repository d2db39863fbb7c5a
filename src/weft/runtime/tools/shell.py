"""The tool `shell`: runs a command in the workspace, in the sandbox that the profile says.

A text is run by the shell, a list of words as it is. The plan holds the words that will be executed, the folder, the
variables, the limit of time, the profile and the digests of the files that the words name. `perform` refuses where one
of these is no longer so. Where a person approved the call, the files that it executes are held as well: their approved
bytes are what the sandbox shows in their places. The environment is PATH, HOME and what the plan holds; nothing of this
process is in it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

from weft.kernel.errors import quoted
from weft.kernel.permission_subjects import command_subjects, line_subjects, self_running, self_running_words
from weft.kernel.typed_names import shell_line, shell_word
from weft.runtime.broker.tools import ToolCallContext
from weft.runtime.sandbox.command_runner import CommandRunner
from weft.runtime.sandbox.mounts import file_of, uncovered
from weft.runtime.sandbox.processes import GIB, MIB, Ending, Limits, ProcessOutcome
from weft.runtime.sandbox.profiles import WORKSPACE_PROFILE, SandboxProfile
from weft.runtime.sandbox.workspace_search import LEDGER_FOLDER
from weft.runtime.tools.calls import CallPlan, StructTool, ToolFailure, ToolOutput
from weft.runtime.tools.executed_files import patterns_executed
from weft.runtime.tools.held_files import can_be_held, hold_files, replaced_files
from weft.runtime.tools.named_files import named_files, named_words, unknown_scripts
from weft.runtime.tools.shell_environment import checked_environment
from weft.runtime.tools.threads import in_thread

SHELL_LIMITS = Limits(seconds=120, output=8 * MIB, memory=2 * GIB, processes=512)
LONGEST_TIMEOUT_MS = 600_000
LONGEST_COMMAND_BYTES = 128 * 1024
_SHELLS = ("/bin/bash", "/bin/sh")
"""The first of them that is here reads the command."""

_DESCRIPTION = """\
Run a command in the workspace. `cmd` as text is run by bash; as a list it is one command with its arguments, and no
shell reads it. There is no terminal, no input and, unless hosts are granted, no network. `cwd` is a folder of the
workspace. The whole process tree ends with the command, and when `timeout_ms` has passed."""


class ShellArguments(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a model asks for."""

    cmd: Annotated[str | list[str], Meta(description="A text for the shell, or a list of words.")]
    cwd: Annotated[str, Meta(description="A folder of the workspace.")] = "."
    timeout_ms: Annotated[int, Meta(ge=1, le=LONGEST_TIMEOUT_MS)] | None = None
    env: dict[str, str] = {}


class ShellTool(StructTool[ShellArguments]):
    """Commands in one workspace, under one profile."""

    def __init__(
        self,
        workspace: Path,
        *,
        runner: CommandRunner,
        profile: SandboxProfile = WORKSPACE_PROFILE,
        limits: Limits = SHELL_LIMITS,
    ) -> None:
        super().__init__("shell", _DESCRIPTION, ShellArguments)
        self._workspace, self._profile = workspace, profile
        self._is_outward = profile.is_unconfined or bool(profile.endpoints)
        self._runner, self._limits = runner, limits

    def plan_of(self, arguments: ShellArguments) -> CallPlan:
        asked = _checked(arguments)
        environment = checked_environment(asked.env)
        folder = _folder(self._workspace, asked.cwd)
        is_line = isinstance(asked.cmd, str)
        argv = [_shell(), "-c", asked.cmd] if isinstance(asked.cmd, str) else list(asked.cmd)
        timeout_ms = asked.timeout_ms or int(self._limits.seconds * 1000)
        subjects = line_subjects(argv[-1], environment) if is_line else command_subjects(argv, environment)
        exact = {
            "argv": argv,
            "cwd": folder,
            "env": environment,
            "timeout_ms": timeout_ms,
            **self._circumstances(folder, argv),
        }
        return CallPlan(
            tool="shell",
            exact=exact,
            subjects=subjects,
            shown=_shown(asked.cmd, exact),
            confined_to=None if self._is_outward else exact["workspace"],
            uncovers=tuple(exact["uncovered"]),
            is_outward=self._is_outward,
        )

    def _circumstances(self, folder: str, argv: list[str]) -> dict[str, Any]:
        """What must be the same when the command runs."""
        workspace = str(self._workspace.resolve())
        files = named_files(workspace, folder, argv)
        return {
            "workspace": workspace,
            "profile": str(self._profile),
            "granted_by": self._profile.granted_by,
            "readable": [str(path) for path in self._runner.readable],
            "withheld": [str(path) for path in self._runner.protected.paths],
            "files": files.digests,
            "held": [] if self._profile.is_unconfined else files.executed,
            "uncovered": [] if self._profile.is_unconfined else self._hidden(workspace, files.digests),
        }

    def _hidden(self, workspace: str, digests: Mapping[str, str]) -> list[str]:
        """Of the files that a command names those that are hidden from commands, and whose bytes can be approved."""
        secrets = self._runner.protected.secrets
        return [name for name, digest in digests.items() if can_be_held(digest) and secrets.hides(workspace, name)]

    def _changed(self, exact: dict[str, Any]) -> list[str]:
        """What is no longer as it was planned."""
        folder = exact["cwd"]
        now = {"cwd": _folder(self._workspace, folder), **self._circumstances(folder, exact["argv"])}
        return sorted(name for name, value in now.items() if exact.get(name) != value)

    async def perform(self, plan: CallPlan, context: ToolCallContext) -> ToolOutput:
        # The order of locks: the gate has the folder's lock around all of this (`hold_folder`), `run` takes the
        # workspace's turn for as long as the sandbox is made (`SandboxGuard`), and in that turn what the command holds
        # to its end. Whoever has a turn never waits for a folder's lock, or two calls would wait for each other. The
        # files are read before the turn: what is done to them until then is found by `replaced_files`.
        exact = plan.exact
        changed = await in_thread(lambda: self._changed(exact))
        if changed or plan.tool != "shell":
            raise ToolFailure("changed", f"changed since it was planned: {', '.join(changed)}", {"changed": changed})
        # what a policy allows, or a person allowed for a session, holds and uncovers nothing
        names = dict.fromkeys([*exact["held"], *exact["uncovered"]]) if context.is_approved else {}
        held = await in_thread(lambda: hold_files(exact["workspace"], list(names), exact["files"]))
        limits = msgspec.structs.replace(self._limits, seconds=exact["timeout_ms"] / 1000)
        began = time.monotonic()
        outcome = await self._runner.run(
            self._profile,
            exact["argv"],
            workspace=self._workspace,
            folder=exact["cwd"],
            environment=exact["env"],
            held_files=[
                file_of(file.place, file.data, file.mode)
                for name, file in held.items()
                if name not in exact["uncovered"]
            ],
            uncovered_files=[
                uncovered(file.place, file.data, file.mode) for name, file in held.items() if name in exact["uncovered"]
            ],
            limits=limits,
        )
        duration_ms = round(1000 * (time.monotonic() - began))
        replaced = await in_thread(lambda: replaced_files(exact["workspace"], held))
        if replaced:
            why = f"replaced while the command ran, so other bytes may have run: {', '.join(replaced)}"
            raise ToolFailure("changed", why, {**_told(outcome, duration_ms), "changed": replaced})
        return ToolOutput(result=_result(outcome, limits, duration_ms), duration_ms=duration_ms)


def _checked(asked: ShellArguments) -> ShellArguments:
    words = [asked.cmd] if isinstance(asked.cmd, str) else asked.cmd
    if not words or not words[0].strip() or any("\0" in word for word in (*words, asked.cwd)):
        raise ToolFailure("invalid_arguments", "the command is empty, or has a NUL in it")
    try:
        size = sum(len(word.encode()) for word in (*words, asked.cwd))
    except UnicodeEncodeError:
        raise ToolFailure("invalid_arguments", "the command is no Unicode text") from None
    if size > LONGEST_COMMAND_BYTES:
        raise ToolFailure("too_large", f"the command has more than {LONGEST_COMMAND_BYTES} bytes")
    return asked


def _shell() -> str:
    return next(path for path in _SHELLS if os.path.exists(path) or path == _SHELLS[-1])


def _folder(workspace: Path, asked: str) -> str:
    """A folder of the workspace, links resolved. The ledger's own folder is none."""
    root = workspace.resolve()
    folder = (root / asked).resolve()
    inside = folder == root or root in folder.parents
    if not inside or not folder.is_dir() or root / LEDGER_FOLDER in (folder, *folder.parents):
        raise ToolFailure("not_found", f"{quoted(asked, 200)} is no folder of the workspace", {"cwd": asked})
    return str(folder)


def _shown(cmd: str | list[str], exact: dict[str, Any]) -> str:
    """All of it, for whoever approves."""
    lines = [cmd if isinstance(cmd, str) else shell_line(cmd), "", f"in {os.path.join(exact['cwd'], '')}"]
    lines += [f"with {name}={shell_word(value)}" for name, value in exact["env"].items()]
    grant = f", granted by {exact['granted_by']}" if exact["granted_by"] else ""
    lines.append(f"sandbox {exact['profile']}{grant}, at most {exact['timeout_ms']} ms")
    for name, digest in exact["files"].items():
        lines.append(f"file {name}: {digest}{', held while it runs' if name in exact['held'] else ''}")
    patterns = [word for word in patterns_executed(exact["argv"]) if os.path.normpath(word) not in exact["held"]]
    if patterns:
        lines.append(f"No file is held for {', '.join(patterns)}: the shell finds out which it is when it runs.")
    unknown = unknown_scripts(exact["workspace"], exact["cwd"], exact["argv"])
    unknown = [word for word in unknown if word not in patterns]
    if unknown:
        lines.append(f"No file is held for {', '.join(unknown)}: it is no file of the workspace now.")
    if exact["held"]:
        lines.append("This covers the held files as they are now, and not what they call.")
    if exact["uncovered"]:
        lines.append(f"hidden files named by this command: {', '.join(exact['uncovered'])}")
        lines.append("If you allow this call, this one command reads them as they are now; its result may tell them.")
    named = self_running(word for word in named_words(exact["argv"]) if len(word.split()) == 1)
    lines += [self_running_words(named)] if named else []
    return "\n".join(lines)


def _told(outcome: ProcessOutcome, duration_ms: int) -> dict[str, Any]:
    result: dict[str, Any] = {"rc": outcome.code}
    invalid = []
    for name, data in (("stdout", outcome.stdout), ("stderr", outcome.stderr)):
        result[name], is_valid = decoded(data)
        invalid += [] if is_valid else [name]
    result["duration_ms"] = duration_ms
    if invalid:
        result["invalid_utf8"] = invalid
    if outcome.refused_hosts:
        result["refused_hosts"] = list(outcome.refused_hosts)
    if outcome.hidden:
        result["hidden"] = list(outcome.hidden)
    if sentences := outcome.git.sentences(outcome.stderr):
        result["git"] = sentences
    return result


def _result(outcome: ProcessOutcome, limits: Limits, duration_ms: int) -> dict[str, Any]:
    """The result, or ToolFailure where a limit ended the command; what it wrote until then is in the details."""
    result = _told(outcome, duration_ms)
    if outcome.ending is Ending.EXITED:
        return result
    replaced = outcome.uncovered or "git's configuration"
    exceeded = {
        Ending.TIMED_OUT: f"it took longer than {round(limits.seconds * 1000)} ms",
        Ending.TOO_MUCH_OUTPUT: f"it wrote more than {limits.output} bytes",
        Ending.TOO_MUCH_MEMORY: f"it took more than {limits.memory} bytes of memory",
        Ending.TOO_MANY_PROCESSES: f"it had more than {limits.processes} processes and threads",
        Ending.TOO_MUCH_DISK: f"it wrote more than {limits.disk} bytes, or more files than it may",
        Ending.UNCOVERED: f"{replaced} was replaced meanwhile, outside or by the command: run it again",
    }
    raise ToolFailure(str(outcome.ending), exceeded[outcome.ending], result)


def decoded(data: bytes) -> tuple[str, bool]:
    """Output as text, and whether it was UTF-8. Bytes that are none stand as `\\xNN`."""
    try:
        return data.decode(), True
    except UnicodeDecodeError:
        return data.decode(errors="backslashreplace"), False
