"""Programs in the sandbox try system calls that reach beyond it."""

from __future__ import annotations

import ctypes
import errno
import os
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from tests.sandbox import machine_sandbox, run_python, run_shell
from weft.runtime.sandbox.confinement import (
    ALLOW,
    ARCHITECTURES,
    KILL_PROCESS,
    NEWEST_CALL,
    X32_BIT,
    Architecture,
    system_call_filter,
)

CALL = """
import ctypes, errno, os, sys
libc = ctypes.CDLL(None, use_errno=True)
numbers = {table}
def call(name, *arguments):
    result = libc.syscall(numbers[name], *arguments)
    return "done" if result >= 0 else errno.errorcode[ctypes.get_errno()]
"""


def attempt(source: str, workspace: Path) -> str:
    architecture = ARCHITECTURES[os.uname().machine]
    table = {**architecture.refused, **architecture.absent, **architecture.checked}
    outcome = run_python(CALL.format(table=table) + source, workspace)
    assert outcome.succeeded, outcome
    return outcome.stdout.decode().strip()


@pytest.mark.parametrize(
    ("source", "refusal"),
    [
        ("print(call('keyctl', 0, -3, 0))", "EPERM"),
        ("print(call('add_key', b'user', b'weft', b'x', 1, -3))", "EPERM"),
        ("print(call('request_key', b'user', b'weft', None, -3))", "EPERM"),
        ("print(call('ptrace', 0, 0, 0, 0))", "EPERM"),
        ("print(call('process_vm_readv', os.getppid(), None, 0, None, 0, 0))", "EPERM"),
        ("print(call('unshare', 0x10000000))", "EPERM"),
        ("print(call('unshare', 0x20000))", "EPERM"),
        ("print(call('clone', 0x10000000 | 17, 0, 0, 0, 0))", "EPERM"),
        ("print(call('clone3', None, 0))", "ENOSYS"),
        ("print(call('setns', os.open('/proc/self/ns/user', 0), 0))", "EPERM"),
        ("print(call('mount', b'none', b'/tmp', b'tmpfs', 0, None))", "EPERM"),
        ("print(call('chroot', b'/tmp'))", "EPERM"),
        ("print(call('bpf', 0, None, 0))", "EPERM"),
        ("print(call('perf_event_open', None, 0, -1, -1, 0))", "EPERM"),
        ("print(call('userfaultfd', 0))", "EPERM"),
        ("print(call('io_uring_setup', 1, None))", "ENOSYS"),
        ("print(call('memfd_create', b'x', 0))", "ENOSYS"),
        ("print(call('shmget', 0, 1 << 30, 0o1600))", "ENOSYS"),
        ("print(call('openat2', -100, b'x', None, 0))", "ENOSYS"),
        ("print(call('open_by_handle_at', 0, None, 0))", "EPERM"),
        ("print(call('kexec_load', 0, 0, None, 0))", "EPERM"),
        ("print(call('init_module', None, 0, b''))", "EPERM"),
        ("print(call('personality', 0x0040000))", "EPERM"),
        ("print(call('socket', 40, 1, 0))", "EAFNOSUPPORT"),
        ("print(call('socket', 38, 5, 0))", "EAFNOSUPPORT"),
        ("print(call('ioctl', 0, 0x5412, b'x'))", "EPERM"),
        ("print(call('fcntl', os.open('own', os.O_CREAT), 1024, 0))", "EPERM"),
        ("print(call('mknodat', -100, b'node', 0o020666, os.makedev(1, 3)))", "EPERM"),
        ("print(call('mknodat', -100, b'node', 0o060666, os.makedev(8, 0)))", "EPERM"),
    ],
)
def test_a_call_that_reaches_out_is_refused(tmp_path: Path, source: str, refusal: str) -> None:
    assert attempt(source, tmp_path) == refusal


def test_a_nested_user_namespace_cannot_be_made(tmp_path: Path) -> None:
    assert not run_shell("unshare --user --map-root-user id", tmp_path).succeeded


SEARCH = """
import ctypes, sys
libc = ctypes.CDLL(None, use_errno=True)
print(libc.syscall({number}, 10, -3, b"user", b"weft-canary", 0) >= 0)
"""


def test_a_key_of_the_persons_session_is_not_found_even_without_the_filter(tmp_path: Path) -> None:
    """A thread with a keyring of its own stands for the person, so that the real one is left alone."""
    numbers = ARCHITECTURES[os.uname().machine].refused
    search = SEARCH.format(number=numbers["keyctl"])
    libc = ctypes.CDLL(None, use_errno=True)
    answers: list[bytes] = []

    def person() -> None:
        if libc.syscall(numbers["keyctl"], 1, None) < 0:
            return
        libc.syscall(numbers["add_key"], b"user", b"weft-canary", b"secret", 6, -3)
        process = subprocess.run([sys.executable, "-c", search], capture_output=True, check=True)
        sandbox = msgspec.structs.replace(machine_sandbox(), call_filter=None)
        answers.extend([process.stdout, run_python(search, tmp_path, sandbox=sandbox).stdout])

    thread = threading.Thread(target=person)
    thread.start()
    thread.join()
    if not answers:
        pytest.skip("this kernel has no keyrings, or this user may not use them")
    assert answers == [b"True\n", b"False\n"]


def test_a_session_keyring_of_the_person_is_not_shown(tmp_path: Path) -> None:
    assert b"keyring" not in run_shell("cat /proc/keys /proc/key-users", tmp_path).stdout


@pytest.mark.parametrize("words", ["fork()", "posix_spawn('/bin/true', ['true'], {})", "pidfd_open(os.getpid())"])
def test_what_programs_need_is_allowed(tmp_path: Path, words: str) -> None:
    assert run_python(f"import os, threading\nthreading.Thread(target=int).start()\nos.{words}", tmp_path).succeeded


def emulate(program: bytes, audit: int, number: int, *arguments: int) -> int:
    """What the filter answers to a call, run as the kernel runs it."""
    data = struct.pack("=IIQ6Q", number, audit, 0, *(arguments + (0,) * 6)[:6])
    statements = list(struct.iter_unpack("=HBBI", program))
    loaded, at = 0, 0
    while True:
        code, if_true, if_false, value = statements[at]
        at += 1
        match code:
            case 0x20:
                (loaded,) = struct.unpack_from("=I", data, value)
            case 0x54:
                loaded &= value
            case 0x15:
                at += if_true if loaded == value else if_false
            case 0x35:
                at += if_true if loaded >= value else if_false
            case 0x45:
                at += if_true if loaded & value else if_false
            case 0x06:
                return int(value)
            case _:
                raise AssertionError(f"no such code: {code:#x}")


def refused(reason: int) -> int:
    return 0x00050000 | reason


def on_both() -> Iterator[tuple[str, Architecture, bytes]]:
    for machine, architecture in ARCHITECTURES.items():
        program = system_call_filter(machine)
        assert program is not None
        yield machine, architecture, program


def test_the_filter_of_each_processor_refuses_what_is_listed_and_no_other_call() -> None:
    for machine, architecture, program in on_both():
        listed = {**dict.fromkeys(architecture.refused.values(), refused(errno.EPERM))}
        listed |= dict.fromkeys(architecture.absent.values(), refused(errno.ENOSYS))
        socket_calls = {architecture.checked["socket"], architecture.checked["socketpair"]}
        for number in range(NEWEST_CALL + 1):
            expected = refused(errno.EAFNOSUPPORT) if number in socket_calls else listed.get(number, ALLOW)
            assert emulate(program, architecture.audit, number) == expected, (machine, number)


def test_a_call_that_is_newer_than_the_filter_does_not_exist() -> None:
    for _, architecture, program in on_both():
        assert emulate(program, architecture.audit, NEWEST_CALL + 1) == refused(errno.ENOSYS)


def test_a_call_of_another_convention_ends_the_program() -> None:
    for _, _, program in on_both():
        assert emulate(program, 0x40000003, 1) == KILL_PROCESS
    x86 = ARCHITECTURES["x86_64"]
    assert emulate(system_call_filter("x86_64") or b"", x86.audit, X32_BIT | 101) == KILL_PROCESS


def test_arguments_decide_on_each_processor() -> None:
    no, yes = refused(errno.EPERM), ALLOW
    cases: list[tuple[str, tuple[int, ...], int]] = [
        ("clone", (0x10000000,), no),
        ("clone", (0x20000 | 17,), no),
        ("clone", (0x003D0F00,), yes),
        ("openat", (0, 0, 0o101, 0o4755), no),
        ("openat", (0, 0, 0o20200002, 0o2755), no),
        ("openat", (0, 0, 0, 0o4755), yes),
        ("openat", (0, 0, 0o101, 0o755), yes),
        ("open", (0, 0o101, 0o4755), no),
        ("open", (0, 0o101, 0o644), yes),
        ("creat", (0, 0o2644), no),
        ("chmod", (0, 0o4755), no),
        ("chmod", (0, 0o1777), yes),
        ("fchmod", (0, 0o2755), no),
        ("fchmodat", (0, 0, 0o4755), no),
        ("fchmodat2", (0, 0, 0o6755, 0), no),
        ("mknodat", (0, 0, 0o020666), no),
        ("mknodat", (0, 0, 0o060666), no),
        ("mknodat", (0, 0, 0o104755), no),
        ("mknodat", (0, 0, 0o010666), yes),
        ("mknod", (0, 0o020666), no),
        ("socket", (1,), yes),
        ("socket", (40,), refused(errno.EAFNOSUPPORT)),
        ("personality", (0xFFFFFFFF,), yes),
        ("personality", (0x0040000,), no),
        ("ioctl", (0, 0x5412), no),
        ("ioctl", (0, 0x5401), yes),
        ("fcntl", (0, 1024), no),
        ("fcntl", (0, 1040), no),
        ("fcntl", (0, 1030), yes),
    ]
    for machine, architecture, program in on_both():
        for name, arguments, expected in cases:
            if name in architecture.checked:
                number = architecture.checked[name]
                answer = emulate(program, architecture.audit, number, *arguments)
                assert answer == expected, (machine, name, arguments)


def test_a_processor_without_a_table_has_no_filter() -> None:
    assert system_call_filter("riscv64") is None


def test_the_filter_is_installed_and_no_privilege_can_be_gained(tmp_path: Path) -> None:
    assert machine_sandbox().call_filter is not None
    status = run_shell("cat /proc/self/status", tmp_path).stdout.decode()
    lines = dict(line.split(":\t", 1) for line in status.splitlines())
    assert (lines["Seccomp"], lines["NoNewPrivs"], int(lines["CapEff"], 16)) == ("2", "1", 0)
