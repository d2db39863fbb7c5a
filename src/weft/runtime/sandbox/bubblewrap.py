"""A sandbox for code that nobody vouches for: bubblewrap, a process of its own in namespaces of its own.

Inside there is no network, the system is read-only, other processes cannot be seen, system calls are filtered, and
nothing can be written but one workspace and two small folders in memory. Where such a sandbox cannot be had, nothing
is run. Where a part of it cannot be had, `Sandbox.gaps` says so, and a strict sandbox is refused.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from msgspec import Struct

from weft.kernel.errors import InvalidInput, StoreFailed, Unsupported
from weft.runtime.sandbox.cgroups import delegated_cgroup
from weft.runtime.sandbox.confinement import CHECK_SECONDS, ConfinedRun, Confinement
from weft.runtime.sandbox.processes import DEFAULT_LIMITS, Limits, ProcessOutcome, run_process
from weft.runtime.sandbox.system_calls import system_call_filter
from weft.runtime.sandbox.visible_files import SystemFiles, device_folder, file_options, has_private_devices

SEARCHED = "/usr/local/bin:/usr/bin:/bin"
"""Where bubblewrap is looked for. Not in PATH, which anybody may have changed."""
INSIDE_PATH = "/usr/local/bin:/usr/bin:/bin"
STRICT_VARIABLE = "WEFT_SANDBOX"
_TRIAL_LIMITS = Limits(seconds=20)
_ADVICE = "allow user namespaces without privileges, and have bubblewrap 0.8 or later"
NO_CGROUP = (
    f"memory and processes are not limited by the kernel, but measured every {CHECK_SECONDS * 1000:.0f} ms: "
    "no cgroup of version 2 with the controllers memory and pids is delegated to this user"
)
NO_FILTER = "system calls are not filtered: there is no filter for this processor"
NO_KEYRING = "programs share the session keyring: a new one could not be joined"
NO_DEVICES = (
    "this runs as root, and programs can change the modes of the machine's device nodes: none can be made for them"
)


class Sandbox(Struct, frozen=True):
    """A working bubblewrap, and what it is strengthened with here."""

    program: str
    call_filter: bytes | None = None
    cgroup: Path | None = None
    gaps: tuple[str, ...] = ()
    """What cannot be had on this machine, in sentences."""


def is_strict(setting: str | None) -> bool:
    """What the variable WEFT_SANDBOX asks for."""
    if setting in (None, "", "strict"):
        return setting == "strict"
    raise InvalidInput(f"{STRICT_VARIABLE} is {setting!r}", "set it to strict, or not at all")


async def find_sandbox(searched: str = SEARCHED, *, strict: bool = False) -> Sandbox:
    """The sandbox of this machine, tried out; `Unsupported` says why there is none, or none without gaps if strict."""
    program = shutil.which("bwrap", path=searched)
    if program is None:
        raise Unsupported(
            "there is no sandbox here: bubblewrap is not installed", "on Linux install the package bubblewrap"
        )
    sandbox = Sandbox(program, system_call_filter(os.uname().machine), delegated_cgroup())
    gaps = await _gaps(sandbox)
    if strict and gaps:
        raise Unsupported(
            f"there is no strict sandbox here: {'; '.join(gaps)}", f"mend that, or unset {STRICT_VARIABLE}"
        )
    return Sandbox(program, sandbox.call_filter, sandbox.cgroup, gaps)


async def _gaps(sandbox: Sandbox) -> tuple[str, ...]:
    """Run something harmless and look at how it is confined."""
    is_root = os.geteuid() == 0
    run = ConfinedRun(_confinement(sandbox, _TRIAL_LIMITS))
    with device_folder(is_root) as devices:
        argv = [
            *_walls(sandbox, run, file_options(SystemFiles.PROGRAMS, (), (), devices)),
            "--",
            "cat",
            "/proc/self/status",
        ]
        environment = {"PATH": INSIDE_PATH}
        try:
            outcome = await run_process(
                argv, environment=environment, folder=Path("/"), limits=_TRIAL_LIMITS, guard=run
            )
        except StoreFailed as error:
            raise Unsupported(f"there is no sandbox here: {error}", error.advice) from None
    is_filtered = b"Seccomp:\t2" in outcome.stdout
    if not outcome.succeeded or (sandbox.call_filter is not None and not is_filtered):
        lines = outcome.stderr.decode(errors="replace").strip().splitlines()
        why = lines[-1] if lines else str(outcome.ending)
        raise Unsupported(f"there is no sandbox here: bubblewrap does not work ({why})", _ADVICE)
    held = {
        NO_CGROUP: sandbox.cgroup is not None,
        NO_FILTER: is_filtered,
        NO_KEYRING: run.has_own_keyring,
        NO_DEVICES: has_private_devices(is_root),
    }
    return tuple(gap for gap, is_held in held.items() if not is_held)


async def run_sandboxed(
    sandbox: Sandbox,
    argv: Sequence[str],
    *,
    workspace: Path,
    environment: Mapping[str, str] | None = None,
    readable: Sequence[Path] = (),
    hidden: Sequence[Path] = (),
    system: SystemFiles = SystemFiles.PROGRAMS,
    stdin: bytes = b"",
    limits: Limits = DEFAULT_LIMITS,
    is_writable: bool = True,
    limit_address_space: bool = True,
    extra_memory: int = 0,
) -> ProcessOutcome:
    """Run a command in a workspace: the one place that it can write to, if it can. `readable` is shown to it beside.

    `limit_address_space=False` is for programs that reserve more than they use. `extra_memory` is what a runtime takes
    for itself, beside the memory that the limit leaves to its program.
    """
    place = _place(workspace)
    kept = place if is_writable else None
    run = ConfinedRun(
        _confinement(
            sandbox, limits, workspace=kept, limit_address_space=limit_address_space, extra_memory=extra_memory
        )
    )
    with device_folder(os.geteuid() == 0) as devices:
        walls = _walls(sandbox, run, file_options(system, readable, hidden, devices))
        walls += ["--bind" if is_writable else "--ro-bind", place, place, "--remount-ro", "/", "--chdir", place]
        home = place if is_writable else "/tmp"
        return await run_process(
            [*walls, "--", *argv],
            environment={"PATH": INSIDE_PATH, "HOME": home, **(environment or {})},
            folder=Path("/"),
            stdin=stdin,
            limits=limits,
            guard=run,
        )


def _place(workspace: Path) -> str:
    if not workspace.is_dir():
        raise InvalidInput(f"the workspace {workspace} is not a folder", "make it first")
    place = str(workspace.resolve())
    if place == "/" or place.startswith(("/proc", "/dev", "/sys")):
        raise InvalidInput(f"the workspace cannot be {place}", "give it a folder of its own")
    return place


def _confinement(
    sandbox: Sandbox,
    limits: Limits,
    *,
    workspace: str | None = None,
    limit_address_space: bool = False,
    extra_memory: int = 0,
) -> Confinement:
    return Confinement(
        limits=limits,
        call_filter=sandbox.call_filter,
        cgroup=sandbox.cgroup,
        workspace=workspace,
        limit_address_space=limit_address_space,
        extra_memory=extra_memory,
    )


def _walls(sandbox: Sandbox, run: ConfinedRun, files: Sequence[str]) -> list[str]:
    return [
        sandbox.program, "--unshare-all", "--unshare-user", "--die-with-parent", "--uid", "1000", "--gid", "1000",
        "--cap-drop", "ALL", "--hostname", "sandbox", *run.options, *files,
    ]  # fmt: skip
