"""`python -m benchmarks.sandbox`: what the sandbox adds to the start of a program.

All start `true` in a folder with a file of secrets, by turns, so that a busy machine slows all alike. "Process" is the
program alone; "bare" is bubblewrap with the same mounts, namespaces and filter, and nothing that looks, limits or
watches; "sandbox" is all of it as the tool shell runs it; "network" is that with a granted host: a proxy outside and a
forwarder inside. One bar is about how many milliseconds "sandbox" takes beyond the process, in the median; the other
about how many times as long as "bare", in the median of the turns. On a busy machine they are shown and not judged.
"""

import asyncio
import os
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from statistics import median

from benchmarks.measure import paired_ratio
from weft.runtime.sandbox.bubblewrap import Sandbox, SandboxGuard, find_sandbox
from weft.runtime.sandbox.command_runner import CommandRunner
from weft.runtime.sandbox.confinement import CHECK_SECONDS, Confinement
from weft.runtime.sandbox.hidden_places import ProtectedPlaces
from weft.runtime.sandbox.processes import DEFAULT_LIMITS, Ending, PreparedStart, ProcessOutcome, run_process
from weft.runtime.sandbox.profiles import WORKSPACE_PROFILE, mount_options, parse_profile
from weft.runtime.sandbox.sandbox_plan import (
    INSIDE_PATH,
    MACHINE_DEVICES,
    PersonFolders,
    SandboxPlan,
    SystemFiles,
    kernel_options,
)

STARTS = 200
NOTHING = ProtectedPlaces(ledgers=(), folders=())
BEYOND_PROCESS_MILLISECONDS = 30.0
TIMES_BARE = 1.3
BUSY = 0.75
"""Processes that wait for a processor, per processor."""
NOT_JUDGED = 2
WALLS = "--unshare-all --unshare-user --die-with-parent --uid 1000 --gid 1000 --cap-drop ALL --hostname sandbox".split()


class BareStart:
    """Starts bubblewrap with the words that the sandbox gives it, and does nothing else: see `ProcessGuard`."""

    check_seconds = CHECK_SECONDS

    def __init__(self, sandbox: Sandbox, plan: SandboxPlan, folder: Path) -> None:
        self._sandbox, self._plan, self._folder = sandbox, plan, str(folder)
        self._options = kernel_options(SystemFiles.PROGRAMS, MACHINE_DEVICES)
        self._files: list[int] = []

    def _file(self, data: bytes) -> int:
        self._files.append(os.memfd_create("bare", os.MFD_CLOEXEC))
        os.write(self._files[-1], data)
        os.lseek(self._files[-1], 0, os.SEEK_SET)
        return self._files[-1]

    def before_start(self, argv: Sequence[str], environment: Mapping[str, str]) -> PreparedStart:
        call_filter = self._sandbox.call_filter
        words = [self._sandbox.program, *WALLS, *self._options, *mount_options(self._plan.mounts, self._file)]
        words += [] if call_filter is None else ["--seccomp", str(self._file(call_filter))]
        words += ["--remount-ro", "/", "--chdir", self._folder, "--", *argv]
        return PreparedStart(argv=words, environment={**environment}, descriptors=tuple(self._files))

    def after_start(self, process_id: int) -> None:
        pass

    def check(self) -> Ending | None:
        return None

    def after_end(self, ending: Ending) -> Ending:
        while self._files:
            os.close(self._files.pop())
        return ending


async def plan_of(sandbox: Sandbox, folder: Path, person: PersonFolders) -> SandboxPlan:
    """What a command in the folder is shown."""
    confinement = Confinement(limits=DEFAULT_LIMITS, call_filter=sandbox.call_filter, cgroup=sandbox.cgroup)
    guard = SandboxGuard(sandbox, NOTHING, confinement, {"workspace": folder, "person": person})
    await run_process(["true"], environment={}, folder=Path("/"), guard=guard)
    assert guard.plan is not None
    return guard.plan


async def measure(folder: Path, state: Path) -> int:
    sandbox = await find_sandbox()
    (folder / ".env").write_text("KEY=1\n")
    person = PersonFolders(covered_places=state)
    runner = CommandRunner(NOTHING, sandbox=sandbox, person=person)
    plan = await plan_of(sandbox, folder, person)
    variables = {"PATH": INSIDE_PATH}
    starts: dict[str, Callable[[], Awaitable[ProcessOutcome]]] = {
        "process": lambda: run_process(["true"], environment=variables, folder=folder),
        "bare": lambda: run_process(
            ["true"], environment=variables, folder=Path("/"), guard=BareStart(sandbox, plan, folder)
        ),
        "sandbox": lambda: runner.run(WORKSPACE_PROFILE, ["true"], workspace=folder),
        "network": lambda: runner.run(parse_profile("network:example.com"), ["true"], workspace=folder),
    }
    times: dict[str, list[float]] = {name: [] for name in starts}
    for _ in range(STARTS):
        for name, start in starts.items():
            times[name].append(await _timed(start))
    load = os.getloadavg()[0] / (os.cpu_count() or 1)
    middle = {name: median(values) for name, values in times.items()}
    print(f"{'':10} {'median':>9} {'shortest':>9}   ({STARTS} starts each, ms)")
    for name, values in times.items():
        print(f"{name:10} {middle[name]:9.1f} {min(values):9.1f}")
    beyond = middle["sandbox"] - middle["process"]
    ratio = paired_ratio(times["sandbox"], times["bare"]) or 0.0
    print(f"beyond process: {beyond:.1f}   bar: at most {BEYOND_PROCESS_MILLISECONDS:.0f}")
    print(f"times bare: {ratio:.2f}   bar: at most {TIMES_BARE}")
    for gap in sandbox.gaps:
        print(f"not here: {gap}")
    if load > BUSY:
        print(f"not judged: {load:.1f} processes wait for each processor; run it again where nothing else runs")
        return NOT_JUDGED
    return int(beyond > BEYOND_PROCESS_MILLISECONDS or ratio > TIMES_BARE)


async def _timed(start: Callable[[], Awaitable[ProcessOutcome]]) -> float:
    began = time.perf_counter()
    outcome = await start()
    assert outcome.succeeded, outcome
    return 1000 * (time.perf_counter() - began)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as place:
        made = Path(place) / "workspace", Path(place) / "state"
        made[0].mkdir()
        sys.exit(asyncio.run(measure(*made)))
