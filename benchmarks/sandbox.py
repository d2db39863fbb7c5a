"""`python -m benchmarks.sandbox`: what the sandbox adds to the start of a program.

All start `true`, by turns, so that a busy machine slows all alike. "Process" is the program alone, "bare" is bubblewrap
with namespaces and read-only files alone, "sandbox" is all of it as the tool shell runs it, and "network" is that with
a granted host: a proxy outside and a forwarder inside. The bars are about the medians of "sandbox": so much beyond the
process, and so much beyond bare namespaces. On a busy machine they are shown and not judged.
"""

import asyncio
import os
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from statistics import median

from weft.runtime.sandbox.bubblewrap import INSIDE_PATH, Sandbox, find_sandbox
from weft.runtime.sandbox.command_runner import CommandRunner
from weft.runtime.sandbox.processes import ProcessOutcome, run_process
from weft.runtime.sandbox.profiles import WORKSPACE_PROFILE, parse_profile
from weft.runtime.sandbox.protected_places import ProtectedPlaces

STARTS = 200
NOTHING = ProtectedPlaces(ledgers=(), folders=())
BARS_MILLISECONDS = {"process": 30.0, "bare": 15.0}
BUSY = 0.75
"""Processes that wait for a processor, per processor."""
NOT_JUDGED = 2
BARE = (
    "--unshare-all --unshare-user --die-with-parent --uid 1000 --gid 1000 --cap-drop ALL --hostname sandbox "
    "--ro-bind /usr /usr --symlink usr/bin /bin --symlink usr/lib /lib --ro-bind-try /lib64 /lib64 "
    "--ro-bind-try /etc/alternatives /etc/alternatives --ro-bind-try /etc/ld.so.cache /etc/ld.so.cache "
    "--ro-bind-try /etc/ld.so.conf /etc/ld.so.conf --ro-bind-try /etc/ld.so.conf.d /etc/ld.so.conf.d "
    "--ro-bind-try /etc/localtime /etc/localtime --proc /proc --dev /dev --size 67108864 --tmpfs /tmp"
).split()


async def measure(folder: Path) -> int:
    sandbox = await find_sandbox()
    runner = CommandRunner(NOTHING, sandbox=sandbox)
    starts: dict[str, Callable[[], Awaitable[ProcessOutcome]]] = {
        "process": lambda: run_process(["true"], environment={"PATH": INSIDE_PATH}, folder=folder),
        "bare": lambda: _run_bare(sandbox, folder),
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
    is_over = False
    for name, bar in BARS_MILLISECONDS.items():
        added = middle["sandbox"] - middle[name]
        is_over = is_over or added > bar
        print(f"beyond {name}: {added:.1f}   bar: at most {bar:.0f}")
    for gap in sandbox.gaps:
        print(f"not here: {gap}")
    if load > BUSY:
        print(f"not judged: {load:.1f} processes wait for each processor; run it again where nothing else runs")
        return NOT_JUDGED
    return int(is_over)


async def _run_bare(sandbox: Sandbox, folder: Path) -> ProcessOutcome:
    words = [sandbox.program, *BARE, "--bind", str(folder), str(folder), "--remount-ro", "/", "--chdir", str(folder)]
    return await run_process([*words, "--", "true"], environment={"PATH": INSIDE_PATH}, folder=Path("/"))


async def _timed(start: Callable[[], Awaitable[ProcessOutcome]]) -> float:
    began = time.perf_counter()
    outcome = await start()
    assert outcome.succeeded, outcome
    return 1000 * (time.perf_counter() - began)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as place:
        sys.exit(asyncio.run(measure(Path(place))))
