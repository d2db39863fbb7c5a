"""`python -m benchmarks.policies`: how long a warm policy takes to decide about a call.

Asked by turns, so that a busy machine slows all alike: the default policy and a policy of three lines, both warm, the
default policy cold (a new interpreter without a sandbox), and a bare fork that ends at once. The bar is about the
median of the default policy. On a busy machine it is shown and not judged.
"""

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from statistics import median

from weft.runtime.policies.policy_decisions import (
    PolicyCall,
    PolicyContext,
    PolicyInterpreter,
    call_document,
    default_source,
)
from weft.runtime.sandbox.bubblewrap import find_sandbox
from weft.runtime.sandbox.hidden_places import ProtectedPlaces

DECISIONS = 300
COLD_DECISIONS = 20
BAR_MILLISECONDS = 5.0
BUSY = 0.75
"""Processes that wait for a processor, per processor."""
NOT_JUDGED = 2
NOTHING = ProtectedPlaces(ledgers=(), folders=())
SMALL = 'import json, sys\njson.load(sys.stdin)\nprint(\'{"decision": "ask", "rationale": "always"}\')\n'
CALL = PolicyCall(
    name="shell",
    arguments={"cmd": "git diff HEAD~1 && ls -l src", "cwd": "."},
    context=PolicyContext(
        agent="coder", workspace="/work", subjects=("git diff HEAD~1", "ls -l src"), shown="git diff"
    ),
)


async def measure() -> int:
    sandbox = await find_sandbox()
    default, small = (PolicyInterpreter(sandbox, source, NOTHING) for source in (default_source(), SMALL))
    ways: dict[str, Callable[[], Awaitable[None]]] = {
        "default": lambda: _ask(default),
        "small": lambda: _ask(small),
        "fork": _fork,
    }
    times: dict[str, list[float]] = {name: [] for name in (*ways, "cold")}
    for way in ways.values():
        await way()
    for number in range(DECISIONS):
        for name, way in ways.items():
            times[name].append(await _timed(way))
        if number < COLD_DECISIONS:
            times["cold"].append(await _timed(_cold))
    load = os.getloadavg()[0] / (os.cpu_count() or 1)
    print(f"{'':10} {'median':>9} {'shortest':>9}   (ms)")
    for name, values in times.items():
        print(f"{name:10} {median(values):9.2f} {min(values):9.2f}")
    middle = median(times["default"])
    print(f"warm decision: {middle:.2f}   bar: at most {BAR_MILLISECONDS:.0f}")
    default.stop()
    small.stop()
    if load > BUSY:
        print(f"not judged: {load:.1f} processes wait for each processor; run it again where nothing else runs")
        return NOT_JUDGED
    return int(middle > BAR_MILLISECONDS)


async def _ask(interpreter: PolicyInterpreter) -> None:
    answer = await interpreter.decide(CALL, 30)
    assert not answer.is_error, answer


async def _fork() -> None:
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)


async def _cold() -> None:
    document = call_document(CALL)
    subprocess.run(
        [sys.executable, "-I", "-S", "-c", default_source()], input=document, capture_output=True, check=True
    )


async def _timed(way: Callable[[], Awaitable[None]]) -> float:
    began = time.perf_counter()
    await way()
    return 1000 * (time.perf_counter() - began)


if __name__ == "__main__":
    sys.exit(asyncio.run(measure()))
