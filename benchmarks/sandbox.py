"""`python -m benchmarks.sandbox`: what the sandbox adds to the start of a program, beside bare namespaces.

Both start `true`, by turns, so that a busy machine slows both alike. "Bare" is bubblewrap with namespaces and read-only
files alone. The bar is about the medians. On a busy machine they are shown and not judged.
"""

import asyncio
import os
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from statistics import median

from weft.runtime.sandbox.bubblewrap import INSIDE_PATH, Sandbox, find_sandbox, run_sandboxed
from weft.runtime.sandbox.processes import ProcessOutcome, run_process

STARTS = 200
BAR_MILLISECONDS = 15.0
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
    bare, confined = [], []
    for _ in range(STARTS):
        bare.append(await _timed(lambda: _run_bare(sandbox, folder)))
        confined.append(await _timed(lambda: run_sandboxed(sandbox, ["true"], workspace=folder)))
    load = os.getloadavg()[0] / (os.cpu_count() or 1)
    added = median(confined) - median(bare)
    print(f"{'':10} {'median':>9} {'shortest':>9}   ({STARTS} starts each, ms)")
    for name, times in (("bare", bare), ("sandbox", confined)):
        print(f"{name:10} {median(times):9.1f} {min(times):9.1f}")
    print(f"{'added':10} {added:9.1f} {min(confined) - min(bare):9.1f}   bar: at most {BAR_MILLISECONDS:.0f}")
    for gap in sandbox.gaps:
        print(f"not here: {gap}")
    if load > BUSY:
        print(f"not judged: {load:.1f} processes wait for each processor; run it again where nothing else runs")
        return NOT_JUDGED
    return int(added > BAR_MILLISECONDS)


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
