"""A sandbox for code that nobody vouches for: bubblewrap, a process of its own in namespaces of its own.

Inside there is no network, the system is read-only, other processes cannot be seen, system calls are filtered, and
nothing can be written but one workspace and two small folders in memory. Where such a sandbox cannot be had, nothing
is run. Where a part of it cannot be had, `Sandbox.gaps` says so, and a strict sandbox is refused.
"""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypedDict, Unpack

from msgspec import Struct

from weft.kernel.errors import InvalidInput, StoreFailed, Unsupported
from weft.runtime.sandbox.cgroups import delegated_cgroup
from weft.runtime.sandbox.confinement import CHECK_SECONDS, ConfinedRun, Confinement
from weft.runtime.sandbox.line_process import LineProcess
from weft.runtime.sandbox.mounts import Mount, cover, mount_options, read_only, writable
from weft.runtime.sandbox.processes import DEFAULT_LIMITS, Limits, ProcessOutcome, run_process
from weft.runtime.sandbox.protected_places import ProtectedPlaces, ensure_few, ledgers_beneath
from weft.runtime.sandbox.system_calls import system_call_filter
from weft.runtime.sandbox.visible_files import SystemFiles, kernel_options, readable_mounts, system_mounts
from weft.runtime.sandbox.workspace_view import WorkspaceView, workspace_view

SEARCHED = "/usr/local/bin:/usr/bin:/bin"
"""Where bubblewrap is looked for. Not in PATH, which anybody may have changed."""
INSIDE_PATH = "/usr/local/bin:/usr/bin:/bin"
STRICT_VARIABLE = "WEFT_SANDBOX"
PROGRAM_FOLDER = "/program"
"""Where a program without a workspace starts."""
_IN_MEMORY = ("/tmp", "/dev/shm")
_TRIAL_LIMITS = Limits(seconds=20)
_STATUS = "/proc/self/status"
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
    plan = plan_sandbox(ProtectedPlaces(ledgers=(), folders=()))  # nothing but the system is shown
    command = sandboxed_command(sandbox, ["cat", _STATUS], plan, limits=_TRIAL_LIMITS, limit_address_space=False)
    run = command.run
    try:
        outcome = await run_process(
            command.argv, environment=command.environment, folder=Path("/"), limits=_TRIAL_LIMITS, guard=run
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
        NO_DEVICES: run.has_private_devices,
    }
    return tuple(gap for gap, is_held in held.items() if not is_held)


class Surroundings(TypedDict, total=False):
    """What a command in the sandbox finds. It starts in the workspace, the one place where what it writes stays, or
    without one in `/program`, which holds `files`, and nothing that it writes stays."""

    workspace: Path | None
    folder: str | None
    """A folder of the workspace, in which it starts."""
    read_only: bool
    """Whether the workspace cannot be written either."""
    files: Mapping[str, bytes] | None
    environment: Mapping[str, str] | None
    readable: Sequence[Path]
    """What is shown to it beside the system and the workspace."""
    hidden: Sequence[Path]
    system: SystemFiles


class SandboxedCommand(Struct, frozen=True):
    """What is started for a command: bubblewrap, which makes the sandbox and starts the command in it."""

    argv: list[str]
    environment: dict[str, str]
    run: ConfinedRun


async def run_sandboxed(
    sandbox: Sandbox,
    argv: Sequence[str],
    protected: ProtectedPlaces,
    *,
    stdin: bytes = b"",
    limits: Limits = DEFAULT_LIMITS,
    limit_address_space: bool = True,
    extra_memory: int = 0,
    **surroundings: Unpack[Surroundings],
) -> ProcessOutcome:
    """Run a command, and wait for its end.

    `limit_address_space=False` is for programs that reserve more than they use. `extra_memory` is what a runtime takes
    for itself, beside the memory that the limit leaves to its program.
    """
    plan = await asyncio.to_thread(plan_sandbox, protected, **surroundings)
    command = sandboxed_command(
        sandbox,
        argv,
        plan,
        limits=limits,
        limit_address_space=limit_address_space,
        extra_memory=extra_memory,
        **surroundings,
    )
    return await run_process(
        command.argv, environment=command.environment, folder=Path("/"), stdin=stdin, limits=limits, guard=command.run
    )


async def start_sandboxed(
    sandbox: Sandbox,
    argv: Sequence[str],
    protected: ProtectedPlaces,
    *,
    limits: Limits = DEFAULT_LIMITS,
    **surroundings: Unpack[Surroundings],
) -> LineProcess:
    """Start a command that is spoken with in lines. It may reserve more memory than it uses."""
    plan = await asyncio.to_thread(plan_sandbox, protected, **surroundings)
    command = sandboxed_command(sandbox, argv, plan, limits=limits, limit_address_space=False, **surroundings)
    return LineProcess(
        command.argv, environment=command.environment, folder=Path("/"), limits=limits, guard=command.run
    )


class SandboxPlan(Struct, frozen=True, kw_only=True):
    """All that a command finds of the machine, and the variables that it needs for that."""

    mounts: tuple[Mount, ...]
    environment: Mapping[str, str]


def plan_sandbox(protected: ProtectedPlaces, **surroundings: Unpack[Surroundings]) -> SandboxPlan:
    """What of the machine's files a command is shown, without what is protected. Looks through the workspace."""
    shown = [
        *system_mounts(surroundings.get("system", SystemFiles.PROGRAMS)),
        *readable_mounts(surroundings.get("readable", ()), surroundings.get("hidden", ())),
    ]
    covers: list[Mount] = []
    workspace, view = surroundings.get("workspace"), WorkspaceView()
    if workspace is not None:
        place, view = _place(workspace), workspace_view(workspace.resolve())
        shown += [read_only(place) if surroundings.get("read_only", False) else writable(place), *view.mounts]
        covers += [cover(str(folder), is_folder=True) for folder in ledgers_beneath(workspace.resolve())]
    covers += protected.covers(shown)
    ensure_few(covers)
    path = ":".join((*view.program_folders, INSIDE_PATH))
    environment = {"PATH": path, **view.environment, **(surroundings.get("environment") or {})}
    return SandboxPlan(mounts=(*shown, *covers), environment=environment)


def sandboxed_command(
    sandbox: Sandbox,
    argv: Sequence[str],
    plan: SandboxPlan,
    *,
    limits: Limits,
    limit_address_space: bool,
    extra_memory: int = 0,
    is_server: bool = False,
    **surroundings: Unpack[Surroundings],
) -> SandboxedCommand:
    """The one place where a sandbox is put together. A server is the first process of its process namespace, and can
    write nowhere, not even in memory."""
    workspace = surroundings.get("workspace")
    place = None if workspace is None else _place(workspace)
    run = ConfinedRun(
        Confinement(
            limits=limits,
            call_filter=sandbox.call_filter,
            cgroup=sandbox.cgroup,
            workspace=place,
            files={f"{PROGRAM_FOLDER}/{name}": data for name, data in (surroundings.get("files") or {}).items()},
            limit_address_space=limit_address_space,
            extra_memory=extra_memory,
        )
    )
    walls = [
        sandbox.program, "--unshare-all", "--unshare-user", "--die-with-parent", "--uid", "1000", "--gid", "1000",
        "--cap-drop", "ALL", "--hostname", "sandbox", *run.options,
        *kernel_options(surroundings.get("system", SystemFiles.PROGRAMS), run.devices),
        *mount_options(plan.mounts, run.mounted_file),
    ]  # fmt: skip
    if place is None:
        walls += ["--dir", PROGRAM_FOLDER]
    if is_server:
        walls += ["--as-pid-1", *(word for folder in _IN_MEMORY for word in ("--remount-ro", folder))]
    home = "/tmp" if place is None or surroundings.get("read_only", False) else place
    start = surroundings.get("folder") or place or PROGRAM_FOLDER
    return SandboxedCommand(
        [*walls, "--remount-ro", "/", "--chdir", start, "--", *argv],
        {"HOME": home, **plan.environment},
        run,
    )


def _place(workspace: Path) -> str:
    if not workspace.is_dir():
        raise InvalidInput(f"the workspace {workspace} is not a folder", "make it first")
    place = str(workspace.resolve())
    if place == "/" or place.startswith(("/proc", "/dev", "/sys")):
        raise InvalidInput(f"the workspace cannot be {place}", "give it a folder of its own")
    return place
