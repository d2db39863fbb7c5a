"""Programs in the sandbox try to take more memory, processes, disk and time than they may."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from tests.runtime.test_processes import running
from tests.sandbox import UNPROTECTED, machine_sandbox, run_python, run_shell
from weft.runtime.sandbox.command_runner import CommandRunner, Language, run_code
from weft.runtime.sandbox.processes import MIB, Ending, Limits

FULL = b"No space left on device"
GENERATION_SECONDS = 0.1
"""Between two generations of a bomb: where only counting ends it, it must not take all processes of a busy machine, on
which other tests run."""


def test_a_fork_bomb_is_ended(tmp_path: Path) -> None:
    mark = f"weft-mark-{os.getpid()}-bomb"
    source = f"""
    import os, time
    while True:
        time.sleep({GENERATION_SECONDS})
        try:
            os.fork()
        except OSError:
            pass
    """
    outcome = run_python(source, tmp_path, mark, limits=Limits(processes=40, seconds=3))
    assert outcome.ending in (Ending.TOO_MANY_PROCESSES, Ending.TIMED_OUT)
    assert running(mark) == []


def test_a_fork_bomb_of_a_shell_is_ended(tmp_path: Path) -> None:
    bomb = f"bomb() {{ sleep {GENERATION_SECONDS}; bomb | bomb & }}; bomb; sleep 1000"
    outcome = run_shell(bomb, tmp_path, limits=Limits(processes=40, seconds=3))
    assert outcome.ending in (Ending.TOO_MANY_PROCESSES, Ending.TIMED_OUT, Ending.EXITED)
    assert not outcome.succeeded


def test_a_thread_bomb_is_ended(tmp_path: Path) -> None:
    source = """
    import threading, time
    while True:
        threading.Thread(target=time.sleep, args=(1000,), daemon=True).start()
    """
    assert not run_python(source, tmp_path, limits=Limits(processes=40, seconds=3)).succeeded


@pytest.mark.parametrize(
    "source",
    [
        "export default () => { const all = []; for (;;) all.push(new Uint8Array(8 << 20).fill(1)) }",
        "export default () => { const all = []; for (;;) all.push(new SharedArrayBuffer(8 << 20)) "
        "&& new Uint8Array(all.at(-1)).fill(1) }",
        "export default () => new Uint8Array(1.5e9).fill(1).length",
        "export default () => { const m = new WebAssembly.Memory({ initial: 1 }); for (;;) { m.grow(160); "
        "new Uint8Array(m.buffer).fill(1) } }",
    ],
)
def test_typed_arrays_beyond_the_memory_are_ended(source: str) -> None:
    limits = Limits(memory=64 * MIB, seconds=20)
    outcome = asyncio.run(
        run_code(CommandRunner(UNPROTECTED, sandbox=machine_sandbox()), Language.JAVASCRIPT, source, None, limits)
    )
    assert not outcome.succeeded
    assert outcome.ending is not Ending.TIMED_OUT


def test_memory_of_many_processes_counts_together(tmp_path: Path) -> None:
    source = """
    import os, time
    for _ in range(8):
        if os.fork() == 0:
            held = bytearray(os.urandom(1 << 20) * 30)
            time.sleep(1000)
    os.wait()
    """
    outcome = run_python(source, tmp_path, limits=Limits(memory=128 * MIB, seconds=20))
    assert outcome.ending is Ending.TOO_MUCH_MEMORY


def test_memory_that_forked_processes_share_counts_once(tmp_path: Path) -> None:
    source = """
    import os, time
    held = bytearray(os.urandom(1 << 20) * 60)
    children = []
    for _ in range(4):
        child = os.fork()
        if child == 0:
            time.sleep(0.3)
            os._exit(0)
        children.append(child)
    for child in children:
        os.waitpid(child, 0)
    print(len(held))
    """
    outcome = run_python(source, tmp_path, limits=Limits(memory=128 * MIB, seconds=20))
    assert outcome.stdout == b"62914560\n", outcome


@pytest.mark.parametrize("place", ["/dev/shm/x", "/tmp/x", "/dev/x", "/proc/sys/x", "/x"])
def test_filling_what_is_held_in_memory_ends_early(tmp_path: Path, place: str) -> None:
    outcome = run_shell('dd if=/dev/zero of="$1" bs=1M count=200', tmp_path, place)
    assert not outcome.succeeded
    assert FULL in outcome.stderr or b"Read-only" in outcome.stderr


def test_filling_the_disk_with_one_file_is_ended(tmp_path: Path) -> None:
    outcome = run_shell("dd if=/dev/zero of=fill bs=1M count=100", tmp_path, limits=Limits(disk=8 * MIB))
    assert not outcome.succeeded
    assert (tmp_path / "fill").stat().st_size <= 8 * MIB


def test_filling_the_disk_with_many_files_is_ended(tmp_path: Path) -> None:
    script = "i=0; while :; do head -c 4194304 /dev/urandom > fill$i; i=$((i+1)); done"
    outcome = run_shell(script, tmp_path, limits=Limits(disk=16 * MIB, seconds=30))
    assert outcome.ending is Ending.TOO_MUCH_DISK


def test_filling_the_disk_with_files_without_a_name_is_ended(tmp_path: Path) -> None:
    source = """
    import os
    held = []
    while True:
        held.append(os.open("x", os.O_CREAT | os.O_RDWR))
        os.unlink("x")
        os.write(held[-1], os.urandom(4 << 20))
    """
    outcome = run_python(source, tmp_path, limits=Limits(disk=16 * MIB, seconds=30))
    assert outcome.ending is Ending.TOO_MUCH_DISK


def test_work_within_the_quota_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "large").write_bytes(os.urandom(4 * MIB))
    script = "echo x >> large; for i in 1 2 3 4; do head -c 1000000 /dev/urandom > part$i; rm part$i; done"
    assert (
        run_shell(script, tmp_path, limits=Limits(disk=3 * MIB)).succeeded is False
    )  # the file is larger than allowed
    assert run_shell(script, tmp_path, limits=Limits(disk=5 * MIB)).succeeded


def test_a_daemon_that_forks_twice_does_not_survive(tmp_path: Path) -> None:
    mark = f"weft-mark-{os.getpid()}-daemon"
    source = """
    import os, time
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            for descriptor in range(3):
                os.close(descriptor)
            open("begun", "w").close()
            time.sleep(1000)
        os._exit(0)
    os.wait()
    while not os.path.exists("begun"):
        pass
    """
    assert run_python(source, tmp_path, mark).succeeded
    assert (tmp_path / "begun").exists()
    assert running(mark) == []  # at once: nothing is left when the answer comes


def test_a_program_cannot_raise_its_limits(tmp_path: Path) -> None:
    source = """
    import resource
    for kind in (resource.RLIMIT_FSIZE, resource.RLIMIT_NOFILE, resource.RLIMIT_CORE, resource.RLIMIT_DATA):
        soft, hard = resource.getrlimit(kind)
        try:
            resource.setrlimit(kind, (hard + 1, hard + 1))
        except ValueError:
            continue
        raise SystemExit(kind)
    """
    assert run_python(source, tmp_path).succeeded
