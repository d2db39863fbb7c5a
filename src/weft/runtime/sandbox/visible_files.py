"""What a program in the sandbox sees of the machine's files.

A command sees the system's programs (`/usr`), a code program only the libraries that its runtime is linked with. Both
get a few device nodes, a `/tmp` and a `/dev/shm` of bounded size, and of `/proc` their own processes and a few
numbers of the machine. Whatever root starts could else write the kernel's settings in `/proc/sys`.
"""

from __future__ import annotations

import glob
import os
import shutil
import stat
import sys
import sysconfig
import tempfile
from collections.abc import Iterator, Sequence
from enum import Enum
from pathlib import Path

from weft.runtime.sandbox.mounts import Mount, empty_folder, read_only
from weft.runtime.sandbox.processes import MIB

TEMPORARY_BYTES = 64 * MIB
SHARED_MEMORY_BYTES = 32 * MIB
_DEVICE_FOLDER_BYTES = 64 * 1024
_TOP_LEVEL = ("bin", "sbin", "lib", "lib32", "lib64")
_LIBRARY_LEVEL = ("lib", "lib32", "lib64")
_LOADERS = ("/lib/ld-*.so*", "/lib64/ld-*.so*")
_ETC = ("alternatives", "ld.so.cache", "localtime")
_LIBRARY_ETC = ("ld.so.cache", "localtime")
_DEVICES = {"null": 3, "zero": 5, "full": 7, "urandom": 9}
"""Minor numbers; the major number of all is 1."""
_DEVICE_LINKS = {
    "random": "urandom",
    "fd": "/proc/self/fd",
    "stdin": "/proc/self/fd/0",
    "stdout": "/proc/self/fd/1",
    "stderr": "/proc/self/fd/2",
}
_HARMLESS_FOLDERS_OF_PROC = frozenset({"sysvipc", "tty"})
"""Of the own namespace, and without anything that can be written."""
_REVEALING_FILES_OF_PROC = frozenset(
    "cmdline config.gz diskstats kallsyms kcore key-users keys kmsg locks modules partitions sched_debug swaps "
    "timer_list vmallocinfo".split()
)


class SystemFiles(Enum):
    """How much of the system is shown."""

    PROGRAMS = "programs"
    LIBRARIES = "libraries"


def system_mounts(system: SystemFiles) -> tuple[Mount, ...]:
    """The system's programs, or the libraries alone."""
    return tuple(_programs() if system is SystemFiles.PROGRAMS else _libraries())


def readable_mounts(readable: Sequence[Path], hidden: Sequence[Path]) -> tuple[Mount, ...]:
    """What is shown beside. Of `hidden`, folders in what is readable, only what is itself readable is shown."""
    shown = [read_only(os.path.abspath(path), str(path)) for path in readable]
    return (*shown, *(empty_folder(os.path.abspath(path)) for path in hidden))


def kernel_options(system: SystemFiles, devices: Path) -> list[str]:
    """What is no file of the machine: the old top-level names of folders in /usr, /proc, /dev and /tmp."""
    return [
        *_top_level_links(_TOP_LEVEL if system is SystemFiles.PROGRAMS else _LIBRARY_LEVEL),
        "--proc", "/proc", *_covered_proc(os.geteuid() == 0),
        *_device_options(devices),
        "--size", str(TEMPORARY_BYTES), "--tmpfs", "/tmp",
    ]  # fmt: skip


def _programs() -> Iterator[Mount]:
    yield read_only("/usr")
    for name in _TOP_LEVEL:
        if os.path.isdir(f"/{name}") and not os.path.islink(f"/{name}"):
            yield read_only(f"/{name}")
    yield from _etc(_ETC)


def _libraries() -> Iterator[Mount]:
    """The loader and the folders that it looks into."""
    folder = f"/usr/lib/{sysconfig.get_config_var('MULTIARCH')}"
    if os.path.isdir(folder):
        yield read_only(folder)
        for loader in sorted({path for pattern in _LOADERS for path in glob.glob(pattern)}):
            place = os.path.join(os.path.realpath(os.path.dirname(loader)), os.path.basename(loader))
            yield read_only(place, os.path.realpath(loader))
    else:
        for folder in ("/usr/lib", "/usr/lib64", "/lib", "/lib64"):
            if os.path.isdir(folder) and not os.path.islink(folder):
                yield read_only(folder)
    yield from _etc(_LIBRARY_ETC)


def _top_level_links(names: Sequence[str]) -> Iterator[str]:
    for name in names:
        if os.path.islink(f"/{name}"):
            yield from ("--symlink", os.readlink(f"/{name}"), f"/{name}")


def _etc(names: Sequence[str]) -> Iterator[Mount]:
    for name in names:
        yield read_only(f"/etc/{name}", is_optional=True)


def _covered_proc(is_root: bool) -> Iterator[str]:
    """Folders are shown empty, and files cannot be opened, where they can be written or tell of others.

    The rest are a few numbers of the machine. To cover all of them takes longer than the program's own start.
    """
    entries = [entry for entry in os.scandir("/proc") if not entry.name.isdecimal()]
    for entry in sorted(entries, key=lambda entry: entry.name):
        if entry.is_symlink():
            continue
        mode = entry.stat().st_mode
        if entry.is_dir():
            if entry.name == "sys" or (is_root and entry.name not in _HARMLESS_FOLDERS_OF_PROC):
                yield from ("--tmpfs", entry.path, "--remount-ro", entry.path)
        elif (is_root and mode & 0o222) or (entry.name in _REVEALING_FILES_OF_PROC and (is_root or mode & 0o044)):
            yield from ("--ro-bind-try", "/dev/null", entry.path)


def _device_options(devices: Path) -> Iterator[str]:
    yield from ("--size", str(_DEVICE_FOLDER_BYTES), "--tmpfs", "/dev")
    for name in _DEVICES:
        yield from ("--dev-bind", str(devices / name), f"/dev/{name}")
    for name, target in _DEVICE_LINKS.items():
        yield from ("--symlink", target, f"/dev/{name}")
    yield from ("--dir", "/dev/shm", "--remount-ro", "/dev")
    yield from ("--size", str(SHARED_MEMORY_BYTES), "--tmpfs", "/dev/shm")


def interpreter_files() -> tuple[list[Path], list[Path]]:
    """What the interpreter itself needs, and the folders of installed packages in that, which it does not."""
    base = {"platbase": sys.base_exec_prefix}
    folders = [Path(sysconfig.get_path(name, vars=base)) for name in ("stdlib", "platstdlib")]
    libraries = Path(sysconfig.get_config_var("LIBDIR") or "/nowhere").glob("libpython3*")
    installed = [folder / name for folder in folders for name in ("site-packages", "dist-packages")]
    hidden = [folder for folder in dict.fromkeys(installed) if folder.is_dir()]
    return list(dict.fromkeys([*folders, *libraries])), hidden


MACHINE_DEVICES = Path("/dev")


def make_devices(is_root: bool) -> Path:
    """Where the device nodes lie that the program gets.

    What root started owns the machine's nodes inside too, and could change their modes for everybody. So root makes
    nodes for this one run. Where that cannot be done, the nodes are those of the machine.
    """
    if not is_root:
        return MACHINE_DEVICES
    folder = Path(tempfile.mkdtemp(prefix="weft-devices-"))
    try:
        if not os.statvfs(folder).f_flag & os.ST_NODEV:
            for name, minor in _DEVICES.items():
                os.mknod(folder / name, stat.S_IFCHR | 0o666, os.makedev(1, minor))
                os.chmod(folder / name, 0o666)
            return folder
    except PermissionError:  # a container that may not make nodes
        pass
    remove_devices(folder)
    return MACHINE_DEVICES


def remove_devices(folder: Path) -> None:
    """When they are bound, or not needed any more."""
    if folder != MACHINE_DEVICES:
        shutil.rmtree(folder, ignore_errors=True)
