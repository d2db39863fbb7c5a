"""Confines one run of the sandbox: system calls, keyring, cgroup, limits, and the end of all in it.

What runs is measured: memory and number of its processes, and what it takes of the disk.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import json
import os
import resource
import select
import signal
import struct
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path

from msgspec import Struct

from weft.kernel.errors import StoreFailed
from weft.runtime.sandbox.leftovers import ChangedFiles, Leftovers, StartTime
from weft.runtime.sandbox.processes import GIB, MIB, Ending, Limits
from weft.runtime.sandbox.sandbox_plan import (
    MACHINE_DEVICES,
    SHARED_MEMORY_BYTES,
    TEMPORARY_BYTES,
    make_devices,
    remove_devices,
    rename_caches,
)

# --- The seccomp filter of the sandbox: which system calls a program in it cannot make.

ALLOW = 0x7FFF0000
KILL_PROCESS = 0x80000000
_ERRNO = 0x00050000
_LOAD, _AND, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x54, 0x15, 0x35, 0x45, 0x06
_NUMBER_OFFSET, _ARCHITECTURE_OFFSET, _ARGUMENTS_OFFSET = 0, 4, 16
NEWEST_CALL = 469
"""file_setattr, of Linux 6.17. Since number 424 both architectures count alike."""
X32_BIT = 0x40000000

NAMESPACE_FLAGS = 0x7E020000
"""CLONE_NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET."""
_SETUID_OR_SETGID = 0o6000
_CREATING = 0o100 | 0o20000000
"""O_CREAT and the bit of O_TMPFILE, with which the mode counts."""
_FILE_TYPE, _CHARACTER_DEVICE, _BLOCK_DEVICE = 0o170000, 0o020000, 0o060000
_SOCKET_FAMILIES = (1, 2, 10, 16)
"""AF_UNIX, AF_INET, AF_INET6, AF_NETLINK: those that a network namespace holds in. AF_VSOCK reaches the host."""
_REFUSED_COMMANDS = {"ioctl": (0x5412, 0x541C), "fcntl": (1024, 1040)}
"""TIOCSTI and TIOCLINUX, which write to a terminal as if somebody typed; F_SETLEASE and F_SETDELEG, which make whoever
writes a file outside wait."""
_HARMLESS_PERSONALITIES = (0, 0xFFFFFFFF)
"""The usual one, and the question which one it is."""


class Architecture(Struct, frozen=True):
    """A processor's calling convention: its number for the audit, and the numbers of its system calls."""

    audit: int
    refused: dict[str, int]
    absent: dict[str, int]
    checked: dict[str, int]
    has_x32: bool = False


def _numbers(words: str) -> dict[str, int]:
    return {name: int(number) for name, number in (word.split("=") for word in words.split())}


_SINCE_424_REFUSED = (
    "open_tree=428 move_mount=429 fsopen=430 fsconfig=431 fsmount=432 fspick=433 pidfd_getfd=438 process_madvise=440 "
    "mount_setattr=442 quotactl_fd=443 set_mempolicy_home_node=450 open_tree_attr=467 "
)
_SINCE_424_ABSENT = (
    "io_uring_setup=425 io_uring_enter=426 io_uring_register=427 clone3=435 openat2=437 memfd_secret=447 "
)
_X86_64 = Architecture(
    audit=0xC000003E,
    refused=_numbers(
        _SINCE_424_REFUSED + "ptrace=101 syslog=103 uselib=134 ustat=136 sysfs=139 vhangup=153 modify_ldt=154 "
        "pivot_root=155 _sysctl=156 adjtimex=159 chroot=161 acct=163 settimeofday=164 mount=165 "
        "umount2=166 swapon=167 swapoff=168 reboot=169 sethostname=170 setdomainname=171 iopl=172 "
        "ioperm=173 create_module=174 init_module=175 delete_module=176 get_kernel_syms=177 "
        "query_module=178 quotactl=179 nfsservctl=180 lookup_dcookie=212 clock_settime=227 "
        "vserver=236 mbind=237 set_mempolicy=238 kexec_load=246 add_key=248 request_key=249 "
        "keyctl=250 migrate_pages=256 unshare=272 vmsplice=278 move_pages=279 perf_event_open=298 "
        "fanotify_init=300 fanotify_mark=301 open_by_handle_at=304 clock_adjtime=305 setns=308 "
        "process_vm_readv=310 process_vm_writev=311 kcmp=312 finit_module=313 kexec_file_load=320 "
        "bpf=321 userfaultfd=323"
    ),
    absent=_numbers(
        _SINCE_424_ABSENT + "shmget=29 semget=64 msgget=68 io_setup=206 mq_open=240 memfd_create=319 "
        "remap_file_pages=216"
    ),
    checked=_numbers(
        "clone=56 open=2 creat=85 openat=257 chmod=90 fchmod=91 fchmodat=268 fchmodat2=452 "
        "mknod=133 mknodat=259 socket=41 socketpair=53 ioctl=16 fcntl=72 personality=135"
    ),
    has_x32=True,
)
_ARM64 = Architecture(
    audit=0xC00000B7,
    refused=_numbers(
        _SINCE_424_REFUSED + "lookup_dcookie=18 umount2=39 mount=40 pivot_root=41 nfsservctl=42 chroot=51 vhangup=58 "
        "quotactl=60 vmsplice=75 acct=89 unshare=97 kexec_load=104 init_module=105 "
        "delete_module=106 clock_settime=112 syslog=116 ptrace=117 reboot=142 sethostname=161 "
        "setdomainname=162 settimeofday=170 adjtimex=171 add_key=217 request_key=218 keyctl=219 "
        "swapon=224 swapoff=225 mbind=235 set_mempolicy=237 migrate_pages=238 move_pages=239 "
        "perf_event_open=241 fanotify_init=262 fanotify_mark=263 open_by_handle_at=265 "
        "clock_adjtime=266 setns=268 process_vm_readv=270 process_vm_writev=271 kcmp=272 "
        "finit_module=273 bpf=280 userfaultfd=282 kexec_file_load=294"
    ),
    absent=_numbers(
        _SINCE_424_ABSENT + "io_setup=0 mq_open=180 msgget=186 semget=190 shmget=194 remap_file_pages=234 "
        "memfd_create=279"
    ),
    checked=_numbers(
        "clone=220 openat=56 fchmod=52 fchmodat=53 fchmodat2=452 mknodat=33 socket=198 "
        "socketpair=199 ioctl=29 fcntl=25 personality=92"
    ),
)
ARCHITECTURES = {"x86_64": _X86_64, "aarch64": _ARM64}
"""By what `uname -m` says."""

_MODE_ARGUMENTS = {"chmod": 1, "fchmod": 1, "fchmodat": 2, "fchmodat2": 2, "creat": 1}
_OPEN_FLAG_ARGUMENTS = {"open": 1, "openat": 2}
_NODE_MODE_ARGUMENTS = {"mknod": 1, "mknodat": 2}


def system_call_filter(machine: str) -> bytes | None:
    """The filter as the kernel takes it; None for a machine that there is no table for."""
    architecture = ARCHITECTURES.get(machine)
    return None if architecture is None else b"".join(_program(architecture))


def _program(architecture: Architecture) -> Iterator[bytes]:
    yield _statement(_LOAD, _ARCHITECTURE_OFFSET)
    yield _statement(_EQUAL, architecture.audit, 1, 0)
    yield _statement(_RETURN, KILL_PROCESS)
    yield _statement(_LOAD, _NUMBER_OFFSET)
    if architecture.has_x32:
        yield _statement(_AT_LEAST, X32_BIT, 0, 1)
        yield _statement(_RETURN, KILL_PROCESS)
    yield _statement(_AT_LEAST, NEWEST_CALL + 1, 0, 1)
    yield _refusal(errno.ENOSYS)
    for number in sorted(architecture.refused.values()):
        yield from (_statement(_EQUAL, number, 0, 1), _refusal(errno.EPERM))
    for number in sorted(architecture.absent.values()):
        yield from (_statement(_EQUAL, number, 0, 1), _refusal(errno.ENOSYS))
    for name, number in architecture.checked.items():
        check = [*_check(name), _statement(_RETURN, ALLOW)]
        yield _statement(_EQUAL, number, 0, len(check))
        yield from check
    yield _statement(_RETURN, ALLOW)


def _check(name: str) -> Iterator[bytes]:
    """Statements that refuse the call for its arguments, or come to their end."""
    if name in _MODE_ARGUMENTS:
        yield from _refuse_any_bit(_MODE_ARGUMENTS[name], _SETUID_OR_SETGID)
    elif name in _OPEN_FLAG_ARGUMENTS:
        flags = _OPEN_FLAG_ARGUMENTS[name]
        refusal = list(_refuse_any_bit(flags + 1, _SETUID_OR_SETGID))
        yield from (_argument(flags), _statement(_ANY_BIT, _CREATING, 0, len(refusal)), *refusal)
    elif name in _NODE_MODE_ARGUMENTS:
        yield from _refuse_nodes(_NODE_MODE_ARGUMENTS[name])
    elif name == "clone":
        yield from _refuse_any_bit(0, NAMESPACE_FLAGS)
    elif name in ("socket", "socketpair"):
        yield from _refuse_all_but(_SOCKET_FAMILIES, errno.EAFNOSUPPORT)
    elif name in _REFUSED_COMMANDS:
        yield _argument(1)
        for command in _REFUSED_COMMANDS[name]:
            yield from (_statement(_EQUAL, command, 0, 1), _refusal(errno.EPERM))
    else:
        assert name == "personality", name
        yield from _refuse_all_but(_HARMLESS_PERSONALITIES, errno.EPERM)


def _refuse_any_bit(argument: int, bits: int) -> Iterator[bytes]:
    yield from (_argument(argument), _statement(_ANY_BIT, bits, 0, 1), _refusal(errno.EPERM))


def _refuse_nodes(argument: int) -> Iterator[bytes]:
    yield from _refuse_any_bit(argument, _SETUID_OR_SETGID)
    yield _statement(_AND, _FILE_TYPE)
    for kind in (_CHARACTER_DEVICE, _BLOCK_DEVICE):
        yield from (_statement(_EQUAL, kind, 0, 1), _refusal(errno.EPERM))


def _refuse_all_but(values: tuple[int, ...], reason: int) -> Iterator[bytes]:
    """By the first argument."""
    yield _argument(0)
    for index, value in enumerate(values):
        yield _statement(_EQUAL, value, len(values) - index, 0)
    yield _refusal(reason)


def _argument(index: int) -> bytes:
    """Load the lower half of an argument: the kernel reads flags, modes and families from it alone."""
    return _statement(_LOAD, _ARGUMENTS_OFFSET + 8 * index)


def _refusal(reason: int) -> bytes:
    return _statement(_RETURN, _ERRNO | reason)


def _statement(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("=HBBI", code, if_true, if_false, value)


# --- A cgroup per run, where cgroups of version 2 are delegated to this user: the kernel limits memory and processes.

_ROOT = Path("/sys/fs/cgroup")
_CONTROLLERS = frozenset({"memory", "pids"})
_REMOVAL_ATTEMPTS, _REMOVAL_PAUSE_SECONDS = 200, 0.01


def delegated_cgroup(root: Path = _ROOT, membership: Path = Path("/proc/self/cgroup")) -> Path | None:
    """The cgroup below which runs get theirs; None where there is none."""
    try:
        lines = membership.read_text().splitlines()
    except OSError:
        return None
    own = next((line.removeprefix("0::/") for line in lines if line.startswith("0::/")), None)
    if own is None or not (root / "cgroup.controllers").is_file():  # version 1, or both at once
        return None
    for ancestor in (root / own).parents:
        if ancestor != root and root not in ancestor.parents:
            return None
        if _is_delegated(ancestor):
            return ancestor if _is_usable(ancestor) else None
    return None


def _is_delegated(cgroup: Path) -> bool:
    try:
        controllers = set((cgroup / "cgroup.subtree_control").read_text().split())
    except OSError:
        return False
    return controllers >= _CONTROLLERS and all(os.access(path, os.W_OK) for path in (cgroup, cgroup / "cgroup.procs"))


def _is_usable(cgroup: Path) -> bool:
    """Whether a cgroup can be made in it; what may be written is not always allowed."""
    try:
        RunCgroup(cgroup, memory=1 << 30, processes=64).remove()
    except OSError:
        return False
    return True


class RunCgroup:
    """The cgroup of one run."""

    def __init__(self, parent: Path, memory: int, processes: int) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="weft-", dir=parent))
        try:
            self._write("memory.max", memory)
            self._write("memory.oom.group", 1)
            self._write("pids.max", processes)
            if (self._folder / "memory.swap.max").exists():
                self._write("memory.swap.max", 0)
        except OSError:
            self._folder.rmdir()
            raise

    def add(self, process_id: int) -> None:
        self._write("cgroup.procs", process_id)

    def ran_out_of_memory(self) -> bool:
        return self._count("memory.events", "oom_kill") > 0

    def remove(self) -> None:
        """When everything in it has ended. The kernel may take a moment to notice."""
        for _ in range(_REMOVAL_ATTEMPTS):
            try:
                return self._folder.rmdir()
            except OSError as error:
                if error.errno != errno.EBUSY:
                    raise
            time.sleep(_REMOVAL_PAUSE_SECONDS)
        raise StoreFailed(f"the cgroup {self._folder} could not be removed", "remove it when nothing runs in it")

    def _count(self, file: str, name: str) -> int:
        counts = dict(line.split() for line in (self._folder / file).read_text().splitlines())
        return int(counts.get(name, 0))

    def _write(self, file: str, value: int) -> None:
        (self._folder / file).write_text(str(value))


# --- Measures what runs in the sandbox: memory and number of its processes, and what it takes of the disk.

MEMORY_FIELDS = ("RssAnon", "RssShmem", "VmPTE", "VmSwap")
_EXACT_FIELDS = ("Pss_Anon", "Pss_Shmem", "SwapPss")
MAXIMUM_FILES = 100_000
"""So many files may a program make in its workspace, and in each of the folders that are held in memory."""
MEMORY_FOLDERS = {"/tmp": TEMPORARY_BYTES, "/dev/shm": SHARED_MEMORY_BYTES}
"""The folders in memory that every sandbox has, and their sizes."""
_FREE_SLACK_BYTES = MIB
_READ_BYTES = 16 * 1024
_PAUSE_FACTOR = 10
"""After files were looked through, this many times as long passes before they are looked through again."""


class ProcessTree:
    """The processes of a sandbox, from the first one down."""

    def __init__(self, first: int, memory_folders: Mapping[str, int] | None = None) -> None:
        self._first, self._memory_folders = first, {**MEMORY_FOLDERS, **(memory_folders or {})}

    def members(self, enough: int) -> tuple[list[int], int]:
        """The processes, and how many threads they have together; no more are looked for when there are enough."""
        processes, threads, pending = [], 0, [self._first]
        while pending and threads <= enough:
            process = pending.pop()
            with suppress(OSError):  # it ended meanwhile
                for thread in os.listdir(f"/proc/{process}/task"):
                    threads += 1
                    pending += map(int, _read(f"/proc/{process}/task/{thread}/children").split())
                processes.append(process)
        return processes, threads

    def exceeds_memory(self, processes: list[int], limit: int) -> bool:
        """Whether they hold more together. Pages that forked processes share are told apart only when it matters."""
        if sum(_memory(f"/proc/{process}/status", MEMORY_FIELDS) for process in processes) <= limit:
            return False
        if len(processes) <= 2:  # the first one and a program: nothing of weight is shared
            return True
        return sum(_memory(f"/proc/{process}/smaps_rollup", _EXACT_FIELDS) for process in processes) > limit

    def deleted_bytes(self, processes: list[int], device: int) -> int:
        """What files of a device take that have no name any more and are held open."""
        blocks = {}
        for process in processes:
            with suppress(OSError):
                for descriptor in os.listdir(f"/proc/{process}/fd"):
                    with suppress(OSError):
                        status = os.stat(f"/proc/{process}/fd/{descriptor}")
                        if status.st_dev == device and status.st_nlink == 0:
                            blocks[status.st_ino] = status.st_blocks
        return 512 * sum(blocks.values())

    def is_set_up(self) -> bool:
        """Whether bubblewrap has made the sandbox's files: before that the folders are not there, or the machine's."""
        return all(self._in_memory(folder, size) is not None for folder, size in MEMORY_FOLDERS.items())

    def has_too_many_files(self) -> bool:
        """Whether the folders that are held in memory hold more files than a program may make."""
        for folder, size in self._memory_folders.items():
            status = self._in_memory(folder, size)
            if status is not None and status.f_files - status.f_ffree > MAXIMUM_FILES:
                return True
        return False

    def _in_memory(self, folder: str, size: int) -> os.statvfs_result | None:
        with suppress(OSError):
            status = os.statvfs(f"/proc/{self._first}/root{folder}")
            if status.f_blocks * status.f_frsize == size:
                return status
        return None


def _memory(path: str, fields: tuple[str, ...]) -> int:
    total = 0
    with suppress(OSError):
        for line in _read(path).splitlines():
            name, _, value = line.partition(":")
            if name in fields:
                total += int(value.split()[0]) * 1024
    return total


def _read(path: str) -> str:
    pieces = []
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        while piece := os.read(descriptor, _READ_BYTES):
            pieces.append(piece)
    finally:
        os.close(descriptor)
    return b"".join(pieces).decode("ascii", errors="replace")


class FolderGrowth:
    """How much a folder grows during a run.

    Looking through the files is left until the file system itself has lost more room than a run may take.
    """

    def __init__(self, folder: str, started: StartTime, limit: int) -> None:
        self._folder, self._limit = folder, limit
        self._files = ChangedFiles(folder, started)
        self._device = os.stat(folder).st_dev
        self._free_bytes, self._free_files = self._free()
        self._next_look = 0.0

    def is_exceeded(self, tree: ProcessTree, processes: list[int]) -> bool:
        free_bytes, free_files = self._free()
        if self._free_bytes - free_bytes <= self._limit - _FREE_SLACK_BYTES and (
            self._free_files - free_files <= MAXIMUM_FILES
        ):
            return False
        began = time.monotonic()
        if began < self._next_look:
            return False
        size = self._files.size()
        taken = size.bytes + tree.deleted_bytes(processes, self._device)
        self._next_look = time.monotonic() + _PAUSE_FACTOR * (time.monotonic() - began)
        return size.is_partly_hidden or taken > self._limit or size.files > MAXIMUM_FILES

    def _free(self) -> tuple[int, int]:
        status = os.statvfs(self._folder)
        return status.f_bfree * status.f_frsize, status.f_ffree


# --- Confines one run of the sandbox: filter, keyring, limits, and the end of everything in it.

CHECK_SECONDS = 0.025
_SETUP_MILLISECONDS = 10_000
_USUAL_SETUP_SECONDS = 0.012
_SETUP_POLL_SECONDS, _BUSY_SETUP_POLL_SECONDS = 0.0001, 0.001
"""On a busy machine, where it takes longer than usual, it is asked for less often."""
_OPEN_FILES = 1024
_DATA_MARGIN_BYTES = 2 * GIB
"""A runtime that reserves address space may map so much more, per process, than all of them may use."""
_KEYCTL_JOIN_SESSION_KEYRING = 1
_NAMESPACE_COUNTS = (5, 14)
"""Since this kernel the limit of processes counts those of a user namespace, not all of the user."""


class Confinement(Struct, frozen=True, kw_only=True):
    """What confines a run, beside what bubblewrap does."""

    limits: Limits
    call_filter: bytes | None
    cgroup: Path | None
    folders: tuple[str, ...] = ()
    """Those that the program writes to and that stay."""
    caches: str | None = None
    """One more, which nobody but programs in the sandbox can enter."""
    unseen: tuple[str, ...] = ()
    """Names of folders that programs can write to and that nobody looks through: no link of theirs leads there."""
    memory_folders: Mapping[str, int] = {}
    """Those in memory, beside what every sandbox has, and how many bytes each takes."""
    files: Mapping[str, bytes] = {}
    """Files that the program is shown, by their paths inside."""
    limit_address_space: bool = False
    extra_memory: int = 0
    """What the program's runtime takes beside the memory that the limit is about."""

    @property
    def memory(self) -> int:
        return self.limits.memory + self.extra_memory


class ConfinedRun:
    """Confines one process, from before its start until after its end: see `ProcessGuard`."""

    def __init__(self, confinement: Confinement) -> None:
        self._confinement = confinement
        self._filter = _filled_pipe(confinement.call_filter) if confinement.call_filter else -1
        self._info_reader, self._info_writer = os.pipe()
        self._blocked, self._unblock = os.pipe()
        self._files = {path: _filled_file(data) for path, data in confinement.files.items()}
        self._mounted_files: list[int] = []
        self.devices = make_devices(os.geteuid() == 0)
        self.has_private_devices = os.geteuid() != 0 or self.devices != MACHINE_DEVICES
        self._first_process = -1
        self._tree: ProcessTree | None = None
        self._cgroup: RunCgroup | None = None
        self._growth: list[FolderGrowth] = []
        self._next_check = 0.0
        written = [*confinement.folders, *([confinement.caches] if confinement.caches else [])]
        self.started = {folder: StartTime.now(folder) for folder in written}
        """By each folder that it can write."""
        self.has_own_keyring = self.has_started_program = False
        self.leftovers: dict[str, Leftovers] = {}
        """When it has ended: of each folder that it could write."""

    @property
    def options(self) -> list[str]:
        """How bubblewrap is told of it."""
        seccomp = ["--seccomp", str(self._filter)] if self._filter >= 0 else []
        files = [word for path, file in self._files.items() for word in ("--file", str(file), path)]
        return [*seccomp, *files, "--info-fd", str(self._info_writer), "--block-fd", str(self._blocked)]

    def mounted_file(self, data: bytes) -> int:
        """A descriptor that the process inherits, from which these bytes are read."""
        self._mounted_files.append(_filled_file(data))
        return self._mounted_files[-1]

    def before_start(self) -> tuple[int, ...]:
        """The keyring is that of the calling thread, and of what it starts."""
        confinement = self._confinement
        self.has_own_keyring = _join_new_keyring()
        if confinement.cgroup is not None:
            self._cgroup = RunCgroup(confinement.cgroup, confinement.memory, confinement.limits.processes)
        disk = confinement.limits.disk
        self._growth = [FolderGrowth(folder, started, disk) for folder, started in self.started.items()]
        inherited = (self._filter, self._info_writer, self._blocked, *self._files.values(), *self._mounted_files)
        return tuple(descriptor for descriptor in inherited if descriptor >= 0)

    def after_start(self, process_id: int, check_files: Callable[[int], None] | None = None) -> None:
        """`check_files` is called with the first process inside when it has all its files, and before it runs the
        program; what it raises keeps the program from being run."""
        self._filter, self._info_writer, self._blocked = map(_closed, (self._filter, self._info_writer, self._blocked))
        while self._mounted_files:  # it has them: a workspace may need as many as one process may hold
            _closed(self._mounted_files.pop())
        first = self._inner_process()
        if first is None:  # it ended, and says why on its standard error
            return
        try:
            self._first_process = os.pidfd_open(first)
            self._tree = ProcessTree(first, self._confinement.memory_folders)
            if self._cgroup is not None:
                self._cgroup.add(first)
        except ProcessLookupError:  # so it did just now
            return
        self._set_limits(first)
        if not self._await_files(self._tree):
            return
        if check_files is not None:
            check_files(first)
        self.has_started_program = True
        with suppress(BrokenPipeError):  # it was killed just now
            os.write(self._unblock, b"!")
        self._remove_devices()  # what is bound needs no name any more, and none is left should this be killed

    def _remove_devices(self) -> None:
        remove_devices(self.devices)
        self.devices = MACHINE_DEVICES

    def check(self) -> Ending | None:
        now = time.monotonic()
        if self._tree is None or now < self._next_check:
            return None
        exceeded = self._exceeded(self._tree)
        self._next_check = time.monotonic() + CHECK_SECONDS
        return exceeded

    def after_end(self, ending: Ending, before_cleaning: Callable[[], None] | None = None) -> Ending:
        """Nothing is left when this returns: the first process of a process namespace ends after all others.
        `before_cleaning` is called when they have ended."""
        if self._first_process >= 0:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._first_process, signal.SIGKILL)
            select.select([self._first_process], [], [])
        if self._cgroup is not None:
            if self._cgroup.ran_out_of_memory():
                ending = Ending.TOO_MUCH_MEMORY
            self._cgroup.remove()
        self._remove_devices()
        descriptors = (
            self._filter,
            self._info_writer,
            self._blocked,
            self._info_reader,
            self._unblock,
            self._first_process,
        )
        for descriptor in (*descriptors, *self._files.values(), *self._mounted_files):
            _closed(descriptor)
        if before_cleaning is not None:
            before_cleaning()
        for folder in self._confinement.folders:
            changed = ChangedFiles(folder, self.started[folder])
            try:
                self.leftovers[folder] = changed.remove_privileges(self._confinement.unseen)
            except OSError:  # the folder itself cannot be gone through; the others are
                self.leftovers[folder] = Leftovers(missed=("",))
        if self._confinement.caches is not None:
            try:
                rename_caches(Path(self._confinement.caches))
            except OSError:  # whoever looks after what was missed does it then
                self.leftovers[self._confinement.caches] = Leftovers(missed=("",))
        return ending

    def _inner_process(self) -> int | None:
        """Its number, as bubblewrap tells it."""
        info_json = b""
        waiting = select.poll()
        waiting.register(self._info_reader, select.POLLIN)
        while not info_json.rstrip().endswith(b"}"):
            if not waiting.poll(_SETUP_MILLISECONDS):
                return None
            piece = os.read(self._info_reader, 4096)
            if not piece:
                return None
            info_json += piece
        return int(json.loads(info_json)["child-pid"])

    def _await_files(self, tree: ProcessTree) -> bool:
        """Wait until bubblewrap has made everything that the program will see; False where it ended instead."""
        busy_from = time.monotonic() + _USUAL_SETUP_SECONDS
        while not tree.is_set_up():
            pause = _SETUP_POLL_SECONDS if time.monotonic() < busy_from else _BUSY_SETUP_POLL_SECONDS
            if select.select([self._first_process], [], [], pause)[0]:
                return False
        return True

    def _set_limits(self, process_id: int) -> None:
        limits, memory = self._confinement.limits, self._confinement.memory
        _set_limit(process_id, resource.RLIMIT_CORE, 0)
        _set_limit(process_id, resource.RLIMIT_NOFILE, _OPEN_FILES)
        _set_limit(process_id, resource.RLIMIT_FSIZE, limits.disk)
        if self._confinement.limit_address_space:
            _set_limit(process_id, resource.RLIMIT_AS, memory)
        else:
            _set_limit(process_id, resource.RLIMIT_DATA, memory + _DATA_MARGIN_BYTES)
        if _kernel_version() >= _NAMESPACE_COUNTS:
            _set_limit(process_id, resource.RLIMIT_NPROC, limits.processes)

    def _exceeded(self, tree: ProcessTree) -> Ending | None:
        limits = self._confinement.limits
        processes, threads = tree.members(enough=limits.processes + 1)
        if threads > limits.processes + 1:  # the first one is bubblewrap's own
            return Ending.TOO_MANY_PROCESSES
        if self._cgroup is None and tree.exceeds_memory(processes, self._confinement.memory):
            return Ending.TOO_MUCH_MEMORY
        is_over = tree.has_too_many_files() or any(growth.is_exceeded(tree, processes) for growth in self._growth)
        return Ending.TOO_MUCH_DISK if is_over else None


def _filled_pipe(data: bytes) -> int:
    reading, writing = os.pipe()
    os.write(writing, data)
    os.close(writing)
    return reading


def _filled_file(data: bytes) -> int:
    """A file without a name, in memory, that nobody can change any more."""
    file = os.memfd_create("weft-program", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    unwritten = memoryview(data)
    while unwritten:
        unwritten = unwritten[os.write(file, unwritten) :]
    os.lseek(file, 0, os.SEEK_SET)
    seals = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL
    fcntl.fcntl(file, fcntl.F_ADD_SEALS, seals)
    return file


def _closed(descriptor: int) -> int:
    if descriptor >= 0:
        os.close(descriptor)
    return -1


def _set_limit(process_id: int, kind: int, value: int) -> None:
    """Set soft and hard limit, or leave a lower hard limit as it is."""
    with suppress(ProcessLookupError):
        _, hard = resource.prlimit(process_id, kind)
        value = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.prlimit(process_id, kind, (value, value))


@cache
def _kernel_version() -> tuple[int, int]:
    major, minor = os.uname().release.split(".")[:2]
    return int(major), int("".join(character for character in minor if character.isdecimal()) or 0)


@cache
def _library() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _join_new_keyring() -> bool:
    """Give this thread an empty session keyring; whether it has one. A kernel without keyrings has nothing to share."""
    architecture = ARCHITECTURES.get(os.uname().machine)
    if architecture is None:
        return False
    call = _library().syscall
    if call(architecture.refused["keyctl"], _KEYCTL_JOIN_SESSION_KEYRING, None) >= 0:
        return True
    return ctypes.get_errno() == errno.ENOSYS
