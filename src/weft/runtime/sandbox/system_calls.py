"""The seccomp filter of the sandbox: which system calls a program in it cannot make.

The filter is a classic BPF program, made for x86-64 and arm64. It refuses calls that programs do not need and that
reach beyond the sandbox: tracing, keyrings, mounts, namespaces, kernel modules, kernel memory that no limit counts.
Of some calls it looks at the arguments: no new namespace, no setuid or setgid mode, no device node, no lease of a file,
no socket family but those of the own network namespace. Calls that are newer than the tables, and those of another ABI,
do not exist inside.
"""

from __future__ import annotations

import errno
import struct
from collections.abc import Iterator

from msgspec import Struct

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
