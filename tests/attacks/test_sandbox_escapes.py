"""Scripts try to leave the sandbox, by two hundred ways: nothing is read, reached, changed or left behind."""

from __future__ import annotations

import asyncio
import ctypes
import json
import os
import resource
import signal
import socket
import sys
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.attacks.escapes import DRIVER, ESCAPES, PRELUDE
from tests.attacks.further_escapes import FURTHER
from tests.faults.processes import Say, run_well
from tests.runtime.test_processes import stays
from tests.sandbox import UNPROTECTED, machine_sandbox
from tests.sizes import share
from weft.kernel.errors import Unsupported
from weft.runtime.sandbox.bubblewrap import Sandbox, find_sandbox
from weft.runtime.sandbox.command_runner import CommandRunner
from weft.runtime.sandbox.confinement import ARCHITECTURES
from weft.runtime.sandbox.processes import Limits
from weft.runtime.sandbox.profiles import parse_profile

SECRET = "canary-7c1f0be2"
PROFILES = ("workspace", "read-only", "network:public.example")
SCRIPTS = {**ESCAPES, **FURTHER}
HARMLESS = (
    "read the file",
    "read it by a relative path",
    "read it from the own root",
    "read it by a link of the workspace",
    "read the ledger of the workspace",
    "climb above the root",
    "connect to this machine",
    "look for a process outside",
    "connect to a socket by its path",
    "connect to an abstract socket",
    "read the users",
    "hold a process outside",
    "read it from a descriptor of a process outside",
    "load it as a library",
    "run it as a script",
    "watch it",
    "read what a project in the workspace hides",
    "read a file of secrets",
    "write a file of secrets",
    "list the sockets of the machine",
    "ask the kernel for the sockets of the machine",
    "attach memory of a process by its number",
    "signal by the folder of a process",
    "signal a thread outside",
    "have the kernel signal a process outside",
    "ask for the session of a process outside",
    "ask how a process outside is scheduled",
    "find what the kernel offers in /sys",
)
"""These change nothing where there is no sandbox."""
HELD_BY_THE_FILTER = (
    "make memory that runs and is no file",
    "share memory by a number",
    "share semaphores by a number",
    "share a queue by a number",
    "hand pages to a pipe",
    "switch off random addresses",
    "set how the clock runs",
    "make a file that runs as its owner",
    "make a node that runs as its owner",
    "leave a mark of what is removed",
    "hold off who writes a file of the workspace",
    "write to the terminal by a longer number",
    "lay a filter over the filter",
    "be notified instead of the kernel",
)
"""These work in a sandbox without a filter of system calls."""
BOOT = Path("/proc/sys/kernel/random/boot_id")
ORDINARY = 54321
"""The number of a user who has no other processes and files."""
KEPT_MODES = ("/dev/null", "/usr/bin")
_PRIVATE_SEGMENT, _REMOVE_SEGMENT, _MAKE_FOR_OWNER = 0, 0, 0o1600
_IO_PRIORITY_GET = {"x86_64": 252, "aarch64": 31}
_SET_DUMPABLE = 4
_NEW_MOUNTS, _BIND, _PRIVATE = 0x20000, 0x1000 | 0x4000, 0x40000 | 0x4000


class Outside:
    """What lies beside the sandbox: a secret, a ledger, somebody who listens, and this process."""

    def __init__(self, folder: Path, profile: str, stack: ExitStack) -> None:
        self.folder, self.workspace = folder / "outside", folder / "workspace"
        ledgers = [self.workspace / ".weft", self.workspace / "nested/.weft"]
        for path in (self.folder, *ledgers):
            path.mkdir(parents=True)
        self.secret_file = self.folder / "canary"
        for path in (self.secret_file, self.workspace / ".env", *(ledger / "secret" for ledger in ledgers)):
            path.write_text(SECRET)
        self.repositories = [make_repository(path) for path in (self.workspace, self.workspace / "nested")]
        (self.workspace / "planted-link").symlink_to(self.secret_file)
        (self.workspace / "planted-folder").symlink_to(self.folder)
        unix = str(folder / "socket")
        self.listeners = [socket.create_server(("0.0.0.0", 0))]
        for address in (unix, "\0" + unix):
            listener = socket.socket(socket.AF_UNIX)
            listener.bind(address)
            listener.listen()
            self.listeners.append(listener)
        for listener in self.listeners:
            stack.enter_context(listener)
            listener.setblocking(False)
        descriptor = os.open(self.secret_file, os.O_RDONLY)
        stack.callback(os.close, descriptor)
        os.set_inheritable(descriptor, True)
        self._memory = ctypes.create_string_buffer(SECRET.encode(), 64)
        architecture = ARCHITECTURES[os.uname().machine]
        self.given: dict[str, Any] = {
            "secret_file": str(self.secret_file),
            "outside": str(self.folder),
            "port": self.listeners[0].getsockname()[1],
            "unix": unix,
            "address": own_address(),
            "pid": os.getpid(),
            "mark": f"weft-mark-{os.getpid()}-{profile}",
            "numbers": {**architecture.refused, **architecture.absent, **architecture.checked},
            "descriptor": descriptor,
            "memory": ctypes.addressof(self._memory),
            "segment": shared_segment(stack),
            "escapes": SCRIPTS,
        }

    def contacts(self) -> Iterator[object]:
        for listener in self.listeners:
            try:
                connection, peer = listener.accept()
            except BlockingIOError:
                continue
            connection.close()
            yield peer

    def state(self) -> dict[str, object]:
        """What no script may change."""
        secrets = [self.secret_file, *self.workspace.rglob(".env"), *self.workspace.rglob("secret")]
        priority = ctypes.CDLL(None).syscall(_IO_PRIORITY_GET[os.uname().machine], 1, os.getpid())
        return {
            "modes": {str(path): os.stat(path).st_mode for path in (*KEPT_MODES, self.secret_file)},
            "secrets": {str(path): path.read_text() for path in secrets},
            "beside": sorted(os.listdir(self.folder)) + sorted(os.listdir(self.folder.parent)),
            "git": {str(path): path.read_text() for place in self.repositories for path in obeyed_files(place)},
            "this process": (os.getpriority(os.PRIO_PROCESS, 0), os.sched_getaffinity(0), priority),
            "its limits": resource.getrlimit(resource.RLIMIT_NOFILE),
            "owned by others": [str(path) for path in self.workspace.rglob("*") if path.lstat().st_uid != os.getuid()],
            "of rights": [str(path) for path in self.workspace.rglob("*") if path.lstat().st_mode & 0o6000],
        }


def make_repository(place: Path) -> Path:
    repository = place / ".git"
    for name in ("objects", "refs/heads", "hooks", "info"):
        (repository / name).mkdir(parents=True)
    (repository / "HEAD").write_text("ref: refs/heads/main\n")
    (repository / "config").write_text("[core]\n\trepositoryformatversion = 0\n")
    return repository


def obeyed_files(repository: Path) -> list[Path]:
    """What git obeys of a repository."""
    files = (path for name in ("hooks", "info") for path in (repository / name).rglob("*") if path.is_file())
    return sorted([repository / "config", *repository.glob("commondir"), *files])


def shared_segment(stack: ExitStack) -> int:
    """The number of memory that holds the secret. It is marked as removed, and is there as long as this has it."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.shmat.restype = ctypes.c_void_p
    segment = int(libc.shmget(_PRIVATE_SEGMENT, 4096, _MAKE_FOR_OWNER))
    assert segment >= 0, os.strerror(ctypes.get_errno())
    address = libc.shmat(segment, None, 0)
    libc.shmctl(segment, _REMOVE_SEGMENT, None)
    stack.callback(libc.shmdt, ctypes.c_void_p(address))
    ctypes.memmove(address, SECRET.encode(), len(SECRET))
    return segment


def own_address() -> str:
    """The address by which this machine is reached; nothing is sent to learn it."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
        except OSError:
            return "127.0.0.2"
        return str(probe.getsockname()[0])


def run_escapes(outside: Outside, profile: str, sandbox: Sandbox) -> dict[str, str]:
    runner = CommandRunner(UNPROTECTED, sandbox=sandbox, readable=[Path(sys.base_prefix)])
    python = str(Path(sys.executable).resolve())
    argv = [python, "-I", "-S", "-B", "-c", PRELUDE + DRIVER, json.dumps(outside.given)]
    limits = Limits(seconds=400, processes=512)
    outcome = asyncio.run(runner.run(parse_profile(profile), argv, workspace=outside.workspace, limits=limits))
    assert outcome.succeeded, outcome
    answers: dict[str, str] = json.loads(outcome.stdout)
    return answers


def gains(place: Path, profile: str, names: Iterable[str], sandbox: Sandbox) -> dict[str, object]:
    """What scripts got, many in one sandbox, each in a process of its own; what each printed says what it got."""
    signals: list[int] = []
    with ExitStack() as stack:
        stack.callback(signal.signal, signal.SIGURG, signal.signal(signal.SIGURG, lambda *_: signals.append(1)))
        outside = Outside(place, profile, stack)
        outside.given["escapes"] = {name: SCRIPTS[name] for name in names}
        before = outside.state()
        answers = run_escapes(outside, profile, sandbox)
        after = outside.state()
        gained = {
            "answers": {name: text for name, text in answers.items() if "ESCAPED" in text or SECRET in text},
            "number of the start": BOOT.read_text().strip() in json.dumps(answers),
            "contacts": list(outside.contacts()),
            "signals": signals,
            "processes": stays(outside.given["mark"]),
            "changes": {what: (state, after[what]) for what, state in before.items() if after[what] != state},
            "without an answer": sorted(set(outside.given["escapes"]) - set(answers)),
        }
    return {what: value for what, value in gained.items() if value}


SHARED = {profile: list(ESCAPES)[place :: len(PROFILES)] for place, profile in enumerate(PROFILES)}
"""Each of the older scripts under one of the profiles."""
FURTHER_SHARED = {profile: list(FURTHER)[place :: len(PROFILES)] for place, profile in enumerate(PROFILES)}


def test_there_are_so_many_escapes() -> None:
    assert len(SCRIPTS) == len(ESCAPES) + len(FURTHER) >= 200
    assert len(set(SCRIPTS.values())) == len(SCRIPTS)
    assert sorted(name for names in SHARED.values() for name in names) == sorted(ESCAPES)
    assert sorted(name for names in FURTHER_SHARED.values() for name in names) == sorted(FURTHER)


@pytest.mark.parametrize("profile", PROFILES)
def test_no_script_leaves_the_sandbox(tmp_path: Path, profile: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", SECRET)
    names = [*SHARED[profile], *share(FURTHER_SHARED[profile], test=12)]
    assert gains(tmp_path, profile, names, machine_sandbox()) == {}


@pytest.mark.prove
@pytest.mark.parametrize("profile", PROFILES)
def test_no_script_leaves_the_sandbox_that_root_makes(
    tmp_path: Path, profile: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if os.geteuid() != 0:
        pytest.skip("these tests are not run as root")
    monkeypatch.setenv("ANTHROPIC_API_KEY", SECRET)
    assert gains(tmp_path, profile, SCRIPTS, machine_sandbox()) == {}


@pytest.mark.prove
@pytest.mark.parametrize("profile", PROFILES)
def test_no_script_leaves_the_sandbox_that_an_ordinary_user_makes(
    tmp_path: Path, profile: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where these tests are run as root, in a process that is no longer root."""
    monkeypatch.setenv("ANTHROPIC_API_KEY", SECRET)
    if os.geteuid() != 0:
        assert gains(tmp_path, profile, SCRIPTS, machine_sandbox()) == {}
        return
    with tempfile.TemporaryDirectory(prefix="weft-ordinary-", ignore_cleanup_errors=True) as made:
        os.chown(made, ORDINARY, ORDINARY)
        user, gained, forbidden = run_well(escape_as_ordinary_user, made, profile)
    if forbidden is not None:
        pytest.skip(f"an ordinary user has no sandbox on this machine: {forbidden}")
    assert user == (ORDINARY,) * 3
    assert gained == {}


def escape_as_ordinary_user(say: Say, place: str, profile: str) -> None:
    os.environ["ANTHROPIC_API_KEY"] = SECRET
    show_interpreter()
    os.setgroups([])
    os.setresgid(ORDINARY, ORDINARY, ORDINARY)
    os.setresuid(ORDINARY, ORDINARY, ORDINARY)
    ctypes.CDLL(None).prctl(_SET_DUMPABLE, 1, 0, 0, 0)  # like a process that has always been theirs
    say(os.getresuid())
    try:
        sandbox = asyncio.run(find_sandbox())
    except Unsupported as error:
        say({})
        say(str(error))
        return
    say(gains(Path(place), profile, SCRIPTS, sandbox))
    say(None)


def show_interpreter() -> None:
    """Have an interpreter that lies in a closed home folder, such as root's, lie at the same place for everybody:
    in mounts of this process alone."""
    libc = ctypes.CDLL(None, use_errno=True)

    def mount(source: bytes, target: str, kind: bytes | None, flags: int) -> None:
        if libc.mount(source, target.encode(), kind, flags, b"mode=755" if kind else None) != 0:
            raise OSError(ctypes.get_errno(), f"cannot mount at {target}")

    prefixes = {os.path.realpath(prefix) for prefix in (sys.base_prefix, sys.prefix, str(Path(__file__).parents[2]))}
    closed = {prefix: folder for prefix in sorted(prefixes) if (folder := closed_folder(Path(prefix))) is not None}
    if not closed:
        return
    if libc.unshare(_NEW_MOUNTS) != 0:
        raise OSError(ctypes.get_errno(), "root cannot make a namespace of mounts here")
    mount(b"none", "/", None, _PRIVATE)
    opened = {prefix: os.open(prefix, os.O_PATH | os.O_DIRECTORY) for prefix in closed}
    for folder in set(closed.values()):
        mount(b"tmpfs", str(folder), b"tmpfs", 0)
    for prefix, descriptor in opened.items():
        os.makedirs(prefix, exist_ok=True)
        mount(f"/proc/self/fd/{descriptor}".encode(), prefix, None, _BIND)
        os.close(descriptor)


def closed_folder(path: Path) -> Path | None:
    """The uppermost folder on the way that an ordinary user cannot enter."""
    return next((folder for folder in reversed(path.parents) if not folder.stat().st_mode & 0o001), None)


def test_the_scripts_find_what_is_there_without_a_sandbox(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some of them, that change nothing: else their silence in the sandbox would say nothing."""
    monkeypatch.setenv("ANTHROPIC_API_KEY", SECRET)
    with ExitStack() as stack:
        outside = Outside(tmp_path, "none", stack)
        outside.given["escapes"] = {name: SCRIPTS[name] for name in HARMLESS}
        profile = parse_profile("none", granted_by="human:ada")
        argv = [sys.executable, "-I", "-S", "-B", "-c", PRELUDE + DRIVER, json.dumps(outside.given)]
        outcome = asyncio.run(CommandRunner(UNPROTECTED).run(profile, argv, workspace=outside.workspace))
        answers = json.loads(outcome.stdout)
        assert [name for name, text in answers.items() if "ESCAPED" not in text and SECRET not in text] == []
        assert len(list(outside.contacts())) == 3


def test_the_scripts_work_where_system_calls_are_not_filtered(tmp_path: Path) -> None:
    """Those that nothing but the filter holds: a mistake in them would look like the filter."""
    if machine_sandbox().call_filter is None:
        pytest.skip("there is no filter for this processor")
    unfiltered = msgspec.structs.replace(machine_sandbox(), call_filter=None)
    with ExitStack() as stack:
        outside = Outside(tmp_path, "unfiltered", stack)
        outside.given["escapes"] = {name: SCRIPTS[name] for name in HELD_BY_THE_FILTER}
        answers = run_escapes(outside, "workspace", unfiltered)
    assert {name: text for name, text in answers.items() if "ESCAPED" not in text} == {}
