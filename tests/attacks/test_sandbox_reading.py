"""Programs in the sandbox try to read and change what is not theirs."""

from __future__ import annotations

import ast
import asyncio
import os
import stat
import sys
from pathlib import Path

import pytest

from tests.sandbox import UNPROTECTED, machine_sandbox, run_python, run_shell
from weft.runtime.sandbox.bubblewrap import run_sandboxed
from weft.runtime.sandbox.command_runner import CommandRunner, Language, run_code
from weft.runtime.sandbox.sandbox_plan import SystemFiles

TELLING = (
    "/etc/passwd /etc/shadow /etc/hostname /etc/machine-id /root /var /sys /run /proc/cmdline /proc/keys "
    "/proc/locks /proc/kallsyms /proc/sys/kernel/random/boot_id /dev/tty"
).split()


@pytest.mark.parametrize("path", TELLING)
def test_reading_what_tells_of_the_machine_or_its_people(tmp_path: Path, path: str) -> None:
    outcome = run_shell('if [ -d "$1" ]; then ls -A "$1"; else cat "$1"; fi', tmp_path, path)
    assert outcome.stdout == b""
    assert not outcome.succeeded


def test_reading_the_folder_of_home_folders(tmp_path: Path) -> None:
    """There is the sandbox's own alone, with its package caches, whoever is at home on the machine."""
    assert run_shell("ls -A /home; ls -A /home/agent", tmp_path).stdout.split() in (
        [b"agent"],
        [b"agent", b".cache", b".npm"],
    )


def test_reading_the_home_folder_under_its_own_name(tmp_path: Path) -> None:
    """Only folders on the way to the workspace are there, and they are empty."""
    hidden = set(os.listdir(Path.home())) - set(tmp_path.parts)
    shown = run_shell('ls -A "$1"', tmp_path, str(Path.home())).stdout.decode().splitlines()
    assert hidden.isdisjoint(shown)


def test_reading_another_process(tmp_path: Path) -> None:
    outcome = run_shell(f"cat /proc/{os.getpid()}/environ; ls /proc | grep '^[0-9]' | wc -l", tmp_path)
    assert b"No such file" in outcome.stderr
    assert int(outcome.stdout) <= 6


def test_reading_the_environment_of_whoever_started_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-canary")
    outcome = run_shell("cat /proc/[0-9]*/environ; env", tmp_path)
    assert outcome.stdout
    assert b"canary" not in outcome.stdout


def test_reading_descriptors_that_were_left_open(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("canary")
    descriptor = os.open(secret, os.O_RDONLY)
    os.set_inheritable(descriptor, True)
    workspace = tmp_path / "workspace"
    workspace.mkdir()
    try:
        outcome = run_python("import os; print(sorted(map(int, os.listdir('/proc/self/fd'))))", workspace)
    finally:
        os.close(descriptor)
    assert outcome.stdout == b"[0, 1, 2, 3]\n"  # the last one is the list itself


@pytest.mark.parametrize("name", ["kernel/core_pattern", "kernel/modprobe", "vm/drop_caches"])
def test_changing_settings_of_the_kernel(tmp_path: Path, name: str) -> None:
    """What root starts is root to these files: a core pattern is a command that the kernel runs outside."""
    assert not run_shell(f": >> /proc/sys/{name}", tmp_path).succeeded


def test_changing_the_device_nodes_of_the_machine(tmp_path: Path) -> None:
    before = os.stat("/dev/null")
    run_shell("chmod 600 /dev/null; chmod 600 /dev/zero; rm -f /dev/null", tmp_path)
    try:
        assert stat.S_IMODE(os.stat("/dev/null").st_mode) == stat.S_IMODE(before.st_mode)
    finally:
        if os.geteuid() == 0:
            os.chmod("/dev/null", stat.S_IMODE(before.st_mode))


def test_device_nodes_work(tmp_path: Path) -> None:
    script = "echo x > /dev/null; for name in urandom random zero; do head -c 4 /dev/$name | wc -c; done"
    assert run_shell(script, tmp_path).stdout.split() == [b"4"] * 3


def test_looking_around_after_breaking_out_of_the_interpreter(tmp_path: Path) -> None:
    """There is no shell, no other program and no file of the system but libraries."""
    python = Path(sys.executable).resolve()
    source = "import os\nprint([path for path in PATHS if os.path.exists(path)])\nprint(sorted(os.listdir('/etc')))"
    paths = ["/bin/sh", "/usr/bin/env", "/usr/share", "/usr/local", "/usr/lib/os-release", "/etc/alternatives"]
    outcome = asyncio.run(
        run_sandboxed(
            machine_sandbox(),
            [str(python), "-I", "-S", "-B", "-c", f"PATHS = {paths}\n{source}"],
            UNPROTECTED,
            workspace=tmp_path,
            system=SystemFiles.LIBRARIES,
            readable=[Path(sys.base_prefix)] if sys.base_prefix != "/usr" else [python, Path(os.__file__).parent],
        )
    )
    shown, etc = outcome.stdout.decode().splitlines()
    assert shown == "[]"
    assert set(ast.literal_eval(etc)) <= {"ld.so.cache", "localtime", "gitconfig"}


@pytest.mark.parametrize("language", [Language.JAVASCRIPT, Language.PYTHON])
def test_code_programs_run_with_libraries_alone(language: Language) -> None:
    source = {"javascript": "export default (n) => n + 1", "python": "def main(input):\n    return input + 1"}[language]
    assert asyncio.run(run_code(CommandRunner(UNPROTECTED, sandbox=machine_sandbox()), language, source, 1)).result == 2


def test_a_command_reaching_for_the_ledger_in_its_workspace(tmp_path: Path) -> None:
    """The folder that a task is about is often the one that its ledger lies in."""
    (tmp_path / ".weft").mkdir()
    (tmp_path / ".weft" / "ledger.db").write_text("canary")
    script = "cat .weft/ledger.db; echo x > .weft/ledger.db; rm -rf .weft; mv .weft elsewhere; echo x > .weft/head"
    assert b"canary" not in run_shell(script, tmp_path).stdout
    assert {path.name: path.read_text() for path in (tmp_path / ".weft").iterdir()} == {"ledger.db": "canary"}
