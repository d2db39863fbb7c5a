"""Whoever waits for a program goes away: nothing of the program stays, and nothing is said of it."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import subprocess
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.runtime.test_processes import running
from tests.sandbox import UNPROTECTED, machine_sandbox
from tests.sizes import share
from tests.surfaces.shell import PROGRAM, spawn
from weft.runtime.agent_harness import CriterionCommands
from weft.runtime.sandbox.bubblewrap import run_sandboxed
from weft.runtime.sandbox.command_runner import CommandRunner, Language, run_code
from weft.runtime.sandbox.confinement import ProcessTree

FOREVER = {
    Language.JAVASCRIPT: "export default () => { for (;;); }",
    Language.PYTHON: "def main(input):\n    while True:\n        pass",
}
IGNORING = "trap '' TERM INT HUP; setsid sh -c 'sleep 1000; :' $0 & echo > begun; sleep 1000; :"


async def begun(workspace: Path) -> None:
    while not (workspace / "begun").exists():
        await asyncio.sleep(0.005)


def runners(ancestor: int) -> list[int]:
    """The runtimes of code programs that descend from a process."""
    processes, _ = ProcessTree(ancestor).members(enough=10_000)
    return [process for process in processes if process != ancestor and b"\0runner." in command_line(process)]


def open_descriptors() -> Counter[str]:
    """Of the kinds that a run has, each pipe by its own name."""
    links = Path("/proc/self/fd")
    targets = [os.readlink(links / name) for name in os.listdir(links) if (links / name).is_symlink()]
    return Counter(target for target in targets if target.startswith(("pipe:", "/memfd:weft", "anon_inode:[pidfd]")))


def command_line(process: int) -> bytes:
    try:
        words = Path(f"/proc/{process}/cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return b""
    return b"" if b"bwrap" in words.split(b"\0")[0] else words


def is_gone(process: int) -> bool:
    """The kernel kills what is inside when what is outside has gone; that may take a moment."""
    for _ in range(6000):
        if not command_line(process):
            return True
        time.sleep(0.01)
    return False


@pytest.mark.parametrize("times", [1, 5])
def test_cancelling_however_often_leaves_no_process_and_no_word(
    tmp_path: Path, times: int, capfd: pytest.CaptureFixture[str]
) -> None:
    mark = f"weft-mark-{os.getpid()}-cancelled"
    complaints: list[dict[str, Any]] = []
    sandbox = machine_sandbox()

    async def cancelled() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context))
        argv = ["/bin/sh", "-c", IGNORING, mark]
        task = asyncio.create_task(run_sandboxed(sandbox, argv, UNPROTECTED, workspace=tmp_path))
        await begun(tmp_path)
        for _ in range(times):
            task.cancel()
            await asyncio.sleep(0)
        with pytest.raises(asyncio.CancelledError):
            await task
        assert running(mark) == []

    asyncio.run(cancelled())
    gc.collect()
    assert complaints == []
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("language", FOREVER)
def test_a_cancelled_code_program_leaves_no_file_descriptor_and_no_thread(language: Language, tmp_path: Path) -> None:
    sandbox = machine_sandbox()

    async def cancelled() -> None:
        task = asyncio.create_task(
            run_code(CommandRunner(UNPROTECTED, sandbox=sandbox), language, FOREVER[language], None)
        )
        while not runners(os.getpid()):
            await asyncio.sleep(0.005)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    gc.collect()
    before = open_descriptors()
    asyncio.run(cancelled())
    assert open_descriptors() - before == Counter()
    assert [thread.name for thread in threading.enumerate() if thread.name == "weft-process"] == []


def test_a_check_that_is_cancelled_ends_its_command(tmp_path: Path) -> None:
    mark = f"weft-mark-{os.getpid()}-check"
    machine_sandbox()
    commands = CriterionCommands(CommandRunner(UNPROTECTED))
    errors: list[BaseException] = []

    def check() -> None:
        try:
            commands.run(["/bin/sh", "-c", IGNORING, mark], tmp_path, None)
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=check)
    thread.start()
    asyncio.run(begun(tmp_path))
    commands.cancel()
    thread.join()
    assert [type(error) for error in errors] == [asyncio.CancelledError]
    assert running(mark) == []
    with pytest.raises(asyncio.CancelledError):
        commands.run("true", tmp_path, None)


@pytest.mark.slow("starts a command line, whose program takes a core until it is ended")
@pytest.mark.parametrize("number", share([signal.SIGINT, signal.SIGTERM, signal.SIGKILL], test=1))
def test_ending_the_command_line_ends_the_program_without_a_traceback(tmp_path: Path, number: signal.Signals) -> None:
    machine_sandbox()
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    names = ("HOME", "XDG_DATA_HOME", "XDG_CONFIG_HOME", "XDG_STATE_HOME", "XDG_CACHE_HOME")
    environment = {**os.environ, **dict.fromkeys(names, str(tmp_path)), "TMPDIR": str(temporary)}

    for words in (("init",), ("code", "create", "forever", "--source", FOREVER[Language.JAVASCRIPT])):
        assert spawn(tmp_path, *words, environment=environment).returncode == 0
    invoke = [*PROGRAM, "program", "invoke", "forever", "--input", "1"]
    with subprocess.Popen(
        invoke,
        cwd=tmp_path,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as program:
        while not (inside := runners(program.pid)):
            time.sleep(0.005)
        program.send_signal(number)
        _, said = program.communicate(timeout=60)
    assert b"Traceback" not in said
    if number == signal.SIGINT:
        assert (program.returncode, said.strip()) == (130, b"weft: interrupted")
    assert all(is_gone(process) for process in inside)
    assert spawn(tmp_path, "verify", environment=environment).returncode == 0
    assert list(temporary.iterdir()) == []
