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
from weft.runtime.sandbox.processes import DEFAULT_LIMITS, Limits, ProcessOutcome, run_process
from weft.runtime.sandbox.system_calls import system_call_filter
from weft.runtime.sandbox.visible_files import SystemFiles, file_options, folders_named

SEARCHED = "/usr/local/bin:/usr/bin:/bin"
"""Where bubblewrap is looked for. Not in PATH, which anybody may have changed."""
INSIDE_PATH = "/usr/local/bin:/usr/bin:/bin"
STRICT_VARIABLE = "WEFT_SANDBOX"
LEDGER_FOLDER = ".weft"
MOST_FOLDERS = 5000
"""Of a workspace that are looked through for ledgers, the uppermost first."""
PROGRAM_FOLDER = "/program"
"""Where a program without a workspace starts."""
BESIDE_DATABASES = ("-wal", "-shm", "-journal", "-head", "-lock")
"""What SQLite keeps beside a file."""
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
    run = ConfinedRun(Confinement(limits=_TRIAL_LIMITS, call_filter=sandbox.call_filter, cgroup=sandbox.cgroup))
    argv = [*wall_options(sandbox, run, file_options(SystemFiles.PROGRAMS, (), (), run.devices)), "--", "cat", _STATUS]
    environment = {"PATH": INSIDE_PATH}
    try:
        outcome = await run_process(argv, environment=environment, folder=Path("/"), limits=_TRIAL_LIMITS, guard=run)
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
    withheld: Sequence[Path]
    """Files and folders in the workspace of which nothing is seen; nor is anything of ledgers in it."""
    system: SystemFiles


async def run_sandboxed(
    sandbox: Sandbox,
    argv: Sequence[str],
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
    workspace = surroundings.get("workspace")
    ledgers = () if workspace is None else await asyncio.to_thread(ledgers_beneath, workspace)
    command = _confined(
        sandbox,
        argv,
        ledgers,
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
    *,
    limits: Limits = DEFAULT_LIMITS,
    **surroundings: Unpack[Surroundings],
) -> LineProcess:
    """Start a command that is spoken with in lines. It may reserve more memory than it uses."""
    workspace = surroundings.get("workspace")
    ledgers = () if workspace is None else await asyncio.to_thread(ledgers_beneath, workspace)
    command = _confined(sandbox, argv, ledgers, limits=limits, limit_address_space=False, **surroundings)
    return LineProcess(
        command.argv, environment=command.environment, folder=Path("/"), limits=limits, guard=command.run
    )


def ledgers_beneath(workspace: Path) -> tuple[Path, ...]:
    """The folders of ledgers in a workspace, whatever project in it they belong to."""
    return tuple(folders_named(LEDGER_FOLDER, workspace, MOST_FOLDERS))


class _WalledCommand(Struct, frozen=True):
    argv: list[str]
    environment: dict[str, str]
    run: ConfinedRun


def _confined(
    sandbox: Sandbox,
    argv: Sequence[str],
    ledgers: Sequence[Path],
    *,
    limits: Limits,
    limit_address_space: bool,
    workspace: Path | None = None,
    folder: str | None = None,
    read_only: bool = False,
    files: Mapping[str, bytes] | None = None,
    environment: Mapping[str, str] | None = None,
    readable: Sequence[Path] = (),
    hidden: Sequence[Path] = (),
    withheld: Sequence[Path] = (),
    system: SystemFiles = SystemFiles.PROGRAMS,
    extra_memory: int = 0,
) -> _WalledCommand:
    place = None if workspace is None else _place(workspace)
    run = ConfinedRun(
        Confinement(
            limits=limits,
            call_filter=sandbox.call_filter,
            cgroup=sandbox.cgroup,
            workspace=place,
            files={f"{PROGRAM_FOLDER}/{name}": data for name, data in (files or {}).items()},
            limit_address_space=limit_address_space,
            extra_memory=extra_memory,
        )
    )
    walls = wall_options(sandbox, run, file_options(system, readable, hidden, run.devices))
    walls += ["--dir", PROGRAM_FOLDER] if place is None else _workspace_options(place, read_only, [*ledgers, *withheld])
    home = "/tmp" if place is None or read_only else place
    return _WalledCommand(
        [*walls, "--remount-ro", "/", "--chdir", folder or place or PROGRAM_FOLDER, "--", *argv],
        {"PATH": INSIDE_PATH, "HOME": home, **(environment or {})},
        run,
    )


def _place(workspace: Path) -> str:
    if not workspace.is_dir():
        raise InvalidInput(f"the workspace {workspace} is not a folder", "make it first")
    place = str(workspace.resolve())
    if place == "/" or place.startswith(("/proc", "/dev", "/sys")):
        raise InvalidInput(f"the workspace cannot be {place}", "give it a folder of its own")
    return place


def _workspace_options(place: str, read_only: bool, withheld: Sequence[Path]) -> list[str]:
    """The workspace, without the ledgers in it: a command neither reads nor writes what is recorded."""
    options = ["--ro-bind" if read_only else "--bind", place, place]
    covered = [os.path.join(place, LEDGER_FOLDER), *(_real_place(path) for path in withheld)]
    for path in dict.fromkeys(covered):
        if os.path.islink(path) or not path.startswith(f"{place}/"):
            continue
        if os.path.isdir(path):
            options += ["--tmpfs", path, "--remount-ro", path]
        elif os.path.exists(path):
            for name in (path, *(path + ending for ending in BESIDE_DATABASES if os.path.exists(path + ending))):
                options += ["--ro-bind", "/dev/null", name]
    return options


def _real_place(path: Path) -> str:
    """The path with the links on its way resolved; itself it is as it is."""
    return str(path.parent.resolve() / path.name)


def wall_options(sandbox: Sandbox, run: ConfinedRun, files: Sequence[str]) -> list[str]:
    """The beginning of every command: bubblewrap with what separates the sandbox from the machine."""
    return [
        sandbox.program, "--unshare-all", "--unshare-user", "--die-with-parent", "--uid", "1000", "--gid", "1000",
        "--cap-drop", "ALL", "--hostname", "sandbox", *run.options, *files,
    ]  # fmt: skip
