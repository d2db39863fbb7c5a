"""Code programs: JavaScript and TypeScript by deno, Python by monty, each inside the sandbox.

A program is one module. In JavaScript and TypeScript its default export, in Python its function `main`, is called with
the input and returns the result, both JSON. What it prints is kept beside the result. It can reach no network, no file
but its own, and nothing of this process.
"""

from __future__ import annotations

import sys
from enum import StrEnum
from importlib.util import cache_from_source, find_spec
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from weft.kernel.contents import dumps
from weft.kernel.errors import Unsupported
from weft.runtime.sandbox.bubblewrap import run_sandboxed
from weft.runtime.sandbox.command_runner import CommandRunner
from weft.runtime.sandbox.processes import MIB, Ending, Limits, ProcessOutcome
from weft.runtime.sandbox.visible_files import SystemFiles, interpreter_files

CODE_LIMITS = Limits(memory=128 * MIB)
_RUNTIME_BYTES = 128 * MIB
"""What deno, or Python and monty, take for themselves at most."""
_HINT = "install it with `pip install 'weft[code]'`"
_DENO = ("run", "--no-remote", "--no-npm", "--no-prompt", "--no-config", "--no-lock", "--no-check", "--quiet")
_JAVASCRIPT_RUNNER = """\
const write = Deno.stdout.write.bind(Deno.stdout);
const shown = (error) => error instanceof Error ? (error.stack ?? String(error)) : String(error);
for (const name of ["log", "info", "debug", "warn"]) console[name] = console.error;
let answer;
try {
  const program = await import("./program.%s");
  if (typeof program.default !== "function") throw new Error("the program has no default export that is a function");
  const input = JSON.parse(await new Response(Deno.stdin.readable).text());
  answer = { result: await program.default(input) ?? null };
} catch (error) {
  answer = { error: shown(error) };
}
let bytes = new TextEncoder().encode(JSON.stringify(answer));
while (bytes.length) bytes = bytes.subarray(await write(bytes));
"""
_PYTHON_RUNNER = """\
import json, sys
sys.path.insert(0, sys.argv[1])
import pydantic_monty as monty
asked = json.load(sys.stdin)
limits = {"max_feed_duration_secs": asked["seconds"], "max_memory": asked["memory"]}
printed = monty.CollectString(max_bytes=asked["output"])
try:
    with monty.Monty(binary_path=sys.argv[2], max_processes=1) as pool, pool.checkout(limits=limits) as session:
        session.feed_run(asked["code"], print_callback=printed)
        result = session.feed_run("main(input)", inputs={"input": asked["input"]}, print_callback=printed)
    answer = {"result": result}
    text = json.dumps(answer, allow_nan=False)
except monty.MontyError as error:
    text = json.dumps({"error": error.display() if hasattr(error, "display") else str(error)})
except (TypeError, ValueError) as error:
    text = json.dumps({"error": f"the result is no JSON: {error}"})
sys.stderr.write(printed.output)
sys.stdout.write(text)
"""


class Language(StrEnum):
    """JavaScript, TypeScript or Python: what a code program is written in."""

    JAVASCRIPT = "javascript"
    TYPESCRIPT = "typescript"
    PYTHON = "python"


class CodeOutcome(Struct, frozen=True, kw_only=True):
    """What a program returned, or the error that it ended with; `ending` says whether it ran into a limit."""

    ending: Ending
    result: Any = None
    error: str | None = None
    printed: str = ""

    @property
    def succeeded(self) -> bool:
        return self.error is None


class _CodeAnswer(Struct, forbid_unknown_fields=True):
    result: Any = None
    error: str | None = None


async def run_code(
    runner: CommandRunner, language: Language, source: str, input: Any, limits: Limits = CODE_LIMITS
) -> CodeOutcome:
    """Run a program once. Its own faults are in the outcome; what is raised is that it could not be run."""
    data = dumps(input)
    run = _run_python if language is Language.PYTHON else _run_javascript
    return _read(await run(runner, language, source, data, limits), limits)


async def _run_javascript(
    runner: CommandRunner, language: Language, source: str, data: bytes, limits: Limits
) -> ProcessOutcome:
    deno = _deno()
    ending = "ts" if language is Language.TYPESCRIPT else "mjs"
    files = {f"program.{ending}": source.encode(), "runner.mjs": (_JAVASCRIPT_RUNNER % ending).encode()}
    heap = f"--v8-flags=--max-old-space-size={max(16, limits.memory // MIB)}"
    return await run_sandboxed(
        await runner.sandbox(),
        [str(deno), *_DENO, heap, "runner.mjs"],
        runner.protected,
        files=files,
        environment={"DENO_DIR": "/tmp/deno", "NO_COLOR": "1"},
        readable=[deno],
        system=SystemFiles.LIBRARIES,
        stdin=data,
        limits=limits,
        limit_address_space=False,
        extra_memory=_RUNTIME_BYTES,
    )


def _deno() -> Path:
    if find_spec("deno") is None:
        raise Unsupported("JavaScript and TypeScript need deno", _HINT)
    from deno import find_deno_bin

    try:
        return Path(find_deno_bin()).resolve()
    except FileNotFoundError:
        raise Unsupported("the package deno is here, its program is not", _HINT) from None


async def _run_python(runner: CommandRunner, _: Language, source: str, data: bytes, limits: Limits) -> ProcessOutcome:
    site, monty = _monty()
    asked = {"code": source, "input": msgspec.Raw(data), "seconds": limits.seconds}
    asked |= {"memory": limits.memory, "output": limits.output}
    python = Path(sys.executable).resolve()
    readable, hidden = interpreter_files()
    return await run_sandboxed(
        await runner.sandbox(),
        [str(python), "-I", "-S", "-B", "runner.py", str(site), str(monty)],
        runner.protected,
        files={"runner.py": _PYTHON_RUNNER.encode()},
        readable=[*readable, python, *_monty_files(site), monty],
        hidden=hidden,
        system=SystemFiles.LIBRARIES,
        stdin=msgspec.json.encode(asked),
        limits=msgspec.structs.replace(limits, seconds=limits.seconds + 5),  # monty ends it first, and says where
        limit_address_space=False,
        extra_memory=_RUNTIME_BYTES,
    )


def _monty() -> tuple[Path, Path]:
    spec = find_spec("pydantic_monty")
    if spec is None or not spec.submodule_search_locations:
        raise Unsupported("Python programs need pydantic-monty", _HINT)
    from pydantic_monty._binary import find_monty_binary

    try:
        return Path(spec.submodule_search_locations[0]).parent, Path(find_monty_binary()).resolve()
    except FileNotFoundError:
        raise Unsupported("the package pydantic-monty is here, its program is not", _HINT) from None


def _monty_files(site: Path) -> list[Path]:
    """The package, and what it imports of others: one module, and what Python compiled of it."""
    module = site / "typing_extensions.py"
    compiled = Path(cache_from_source(str(module)))
    return [site / "pydantic_monty", module, *([compiled] if compiled.is_file() else [])]


def _read(outcome: ProcessOutcome, limits: Limits) -> CodeOutcome:
    printed = outcome.stderr.decode(errors="replace")
    exceeded = {
        Ending.TIMED_OUT: f"it took longer than {limits.seconds} s",
        Ending.TOO_MUCH_OUTPUT: f"it wrote more than {limits.output} bytes",
        Ending.TOO_MUCH_MEMORY: f"it took more than {limits.memory} bytes of memory",
        Ending.TOO_MANY_PROCESSES: f"it had more than {limits.processes} processes and threads",
        Ending.TOO_MUCH_DISK: "it made more files than it may",
        Ending.UNCOVERED: "what it must not write was replaced from outside meanwhile",
    }
    if outcome.ending in exceeded:
        return CodeOutcome(ending=outcome.ending, error=exceeded[outcome.ending], printed=printed)
    try:
        answer = msgspec.json.decode(outcome.stdout, type=_CodeAnswer)
    except msgspec.DecodeError:
        why = printed.strip().splitlines()[-1:] or [f"exit code {outcome.code}"]
        return CodeOutcome(ending=outcome.ending, error=f"it ended without a result: {why[0]}", printed=printed)
    return CodeOutcome(ending=outcome.ending, result=answer.result, error=answer.error, printed=printed)
