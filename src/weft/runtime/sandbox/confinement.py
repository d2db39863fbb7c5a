"""Confines one run of the sandbox: filter, keyring, limits, and the end of everything in it.

Bubblewrap is started with the filter and waits before it runs the program. Meanwhile the limits are set on its inner
process, from which everything in the sandbox descends. Without a cgroup memory and processes are measured, and killed
when they exceed their limits. At the end the inner process is killed, and waited for: the kernel lets it go last.
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
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

from msgspec import Struct

from weft.runtime.sandbox.cgroups import RunCgroup
from weft.runtime.sandbox.leftovers import ChangedFiles, Leftovers, StartTime
from weft.runtime.sandbox.private_home import rename_caches
from weft.runtime.sandbox.processes import GIB, Ending, Limits
from weft.runtime.sandbox.system_calls import ARCHITECTURES
from weft.runtime.sandbox.usage import FolderGrowth, ProcessTree
from weft.runtime.sandbox.visible_files import MACHINE_DEVICES, make_devices, remove_devices

CHECK_SECONDS = 0.025
_SETUP_MILLISECONDS = 10_000
_SETUP_POLL_SECONDS = 0.0005
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
        remove_devices(self.devices)  # what is bound needs no name any more, and none is left should this be killed
        if check_files is not None:
            check_files(first)
        self.has_started_program = True
        with suppress(BrokenPipeError):  # it was killed just now
            os.write(self._unblock, b"!")

    def check(self) -> Ending | None:
        now = time.monotonic()
        if self._tree is None or now < self._next_check:
            return None
        exceeded = self._exceeded(self._tree)
        self._next_check = time.monotonic() + CHECK_SECONDS
        return exceeded

    def after_end(self, ending: Ending) -> Ending:
        """Nothing is left when this returns: the first process of a process namespace ends after all others."""
        if self._first_process >= 0:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._first_process, signal.SIGKILL)
            select.select([self._first_process], [], [])
        if self._cgroup is not None:
            if self._cgroup.ran_out_of_memory():
                ending = Ending.TOO_MUCH_MEMORY
            self._cgroup.remove()
        remove_devices(self.devices)
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
        while not tree.is_set_up():
            if select.select([self._first_process], [], [], _SETUP_POLL_SECONDS)[0]:
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
    with open(file, "wb", closefd=False) as content:
        content.write(data)
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


def _kernel_version() -> tuple[int, int]:
    major, minor = os.uname().release.split(".")[:2]
    return int(major), int("".join(character for character in minor if character.isdecimal()) or 0)


def _join_new_keyring() -> bool:
    """Give this thread an empty session keyring; whether it has one. A kernel without keyrings has nothing to share."""
    architecture = ARCHITECTURES.get(os.uname().machine)
    if architecture is None:
        return False
    call = ctypes.CDLL(None, use_errno=True).syscall
    if call(architecture.refused["keyctl"], _KEYCTL_JOIN_SESSION_KEYRING, None) >= 0:
        return True
    return ctypes.get_errno() == errno.ENOSYS
