"""A room for code that nobody vouches for: bubblewrap, a process of its own in namespaces of its own.

Inside there is no network, the system is read-only, other processes cannot be seen, and nothing can be written but one
workspace and a small `/tmp`. Where such a room cannot be had, nothing is run.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from msgspec import Struct

from weft.kernel.errors import InvalidInput, StoreFailed, Unsupported
from weft.runtime.sandbox.processes import DEFAULT_LIMITS, MIB, Limits, ProcessOutcome, run_process

SEARCHED = "/usr/local/bin:/usr/bin:/bin"
"""Where bubblewrap is looked for. Not in PATH, which anybody may have changed."""
INSIDE_PATH = "/usr/local/bin:/usr/bin:/bin"
_TOP_LEVEL = ("bin", "sbin", "lib", "lib32", "lib64")
_FROM_ETC = ("alternatives", "ld.so.cache", "ld.so.conf", "ld.so.conf.d", "localtime")
_TMP = 64 * MIB
_LIMITED = 'ulimit -v "$1" && ulimit -c 0 && shift && exec "$@"'


class Sandbox(Struct, frozen=True):
    """A working bubblewrap."""

    program: str


async def find_sandbox(searched: str = SEARCHED) -> Sandbox:
    """The sandbox of this machine, tried out; `Unsupported` says why there is none."""
    program = shutil.which("bwrap", path=searched)
    if program is None:
        raise Unsupported(
            "there is no sandbox here: bubblewrap is not installed", "on Linux install the package bubblewrap"
        )
    found = Sandbox(program)
    argv = [program, *_walls(), "true"]
    try:
        tried = await run_process(argv, environment={"PATH": INSIDE_PATH}, folder=Path("/"), limits=Limits(seconds=20))
    except StoreFailed as error:
        raise Unsupported(f"there is no sandbox here: {error}", error.advice) from None
    if not tried.succeeded:
        why = tried.stderr.decode(errors="replace").strip().splitlines()
        raise Unsupported(
            f"there is no sandbox here: bubblewrap does not work ({why[-1] if why else tried.ending})",
            "allow user namespaces without privileges, and have bubblewrap 0.8 or later",
        )
    return found


async def run_sandboxed(
    sandbox: Sandbox,
    argv: Sequence[str],
    *,
    workspace: Path,
    environment: Mapping[str, str] | None = None,
    readable: Sequence[Path] = (),
    stdin: bytes = b"",
    limits: Limits = DEFAULT_LIMITS,
    limit_memory: bool = True,
) -> ProcessOutcome:
    """Run a command that sees a read-only system and writes to its workspace alone. `readable` is shown to it beside.

    `limit_memory=False` is for programs that reserve more address space than they use and limit themselves.
    """
    if not workspace.is_dir():
        raise InvalidInput(f"the workspace {workspace} is not a folder", "make it first")
    place = str(workspace.resolve())
    if place == "/" or place.startswith(("/proc", "/dev", "/sys")):
        raise InvalidInput(f"the workspace cannot be {place}", "give it a folder of its own")
    shown = [word for path in readable for word in ("--ro-bind", str(path), str(path))]
    inner = ["/bin/sh", "-c", _LIMITED, "sh", str(limits.memory // 1024), *argv] if limit_memory else list(argv)
    walls = [*_walls(shown), "--bind", place, place, "--remount-ro", "/", "--chdir", place]
    return await run_process(
        [sandbox.program, *walls, "--", *inner],
        environment={"PATH": INSIDE_PATH, "HOME": place, **(environment or {})},
        folder=Path("/"),
        stdin=stdin,
        limits=limits,
    )


def _walls(shown: Sequence[str] = ()) -> list[str]:
    return [
        "--unshare-all", "--unshare-user", "--die-with-parent", "--uid", "1000", "--gid", "1000", "--cap-drop", "ALL",
        "--hostname", "sandbox", "--ro-bind", "/usr", "/usr", *_system(), "--proc", "/proc", "--dev", "/dev",
        "--size", str(_TMP), "--tmpfs", "/tmp", *shown,
    ]  # fmt: skip


def _system() -> Iterator[str]:
    """The rest of what programs need of a system: its old top-level names, and a few files of /etc."""
    for name in _TOP_LEVEL:
        path = f"/{name}"
        if os.path.islink(path):
            yield from ("--symlink", os.readlink(path), path)
        elif os.path.isdir(path):
            yield from ("--ro-bind", path, path)
    for name in _FROM_ETC:
        yield from ("--ro-bind-try", f"/etc/{name}", f"/etc/{name}")
