"""Processes that are spoken with in lines: what they write comes, and nothing of them stays."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from weft.kernel.errors import InvalidInput, StoreFailed
from weft.runtime.sandbox.processes import Ending, Limits, LineProcess

ECHO = "import sys\nfor line in sys.stdin: print(line, end='', flush=True)"
FLOOD = "import sys\nsys.stdin.readline()\nwhile True: print('x' * 100)"
STUBBORN = "import sys, time\nsys.stdin.read()\nprint('still here', flush=True)\ntime.sleep(3600)"
WITH_CHILD = "import os, sys, time\nchild = os.fork()\nif child: print(child, flush=True)\ntime.sleep(3600)"


def start(program: str, output: int = 1000) -> LineProcess:
    argv = [sys.executable, "-I", "-S", "-c", program]
    return LineProcess(argv, environment={}, folder=Path("/"), limits=Limits(output=output))


def is_alive(process_id: int) -> bool:
    """Whether it runs. One that has ended stays in the list of processes until whoever it was left to looks at its
    end, and nobody says when that is."""
    listed = subprocess.run(["ps", "-o", "stat=", "-p", str(process_id)], capture_output=True, text=True, check=False)
    return listed.stdout.strip()[:1] not in ("", "Z", "X")


def run(work: Callable[[], Awaitable[None]]) -> None:
    async def main() -> None:
        await work()

    asyncio.run(main())


def test_lines_go_there_and_back_beyond_the_limit_as_long_as_it_is_asked() -> None:
    async def work() -> None:
        process = start(ECHO)
        for number in range(30):
            process.write(b"%d %s" % (number, b"x" * 100))
            assert await process.line() == b"%d %s" % (number, b"x" * 100)
        outcome = await process.stop(grace_seconds=60)
        assert (outcome.ending, outcome.code) == (Ending.EXITED, 0)
        assert await process.line() is None
        assert await process.line() is None
        with pytest.raises(StoreFailed, match="has ended"):
            process.write(b"more")

    run(work)


@pytest.mark.parametrize("is_request", [True, False])
def test_one_that_writes_more_than_it_was_asked_for_is_killed(is_request: bool) -> None:
    async def work() -> None:
        process = start(FLOOD)
        process.write(b"go", is_request=is_request)
        lines = 0
        while await process.line() is not None:
            lines += 1
        assert lines < 10
        assert (await process.wait_for_end()).ending is Ending.TOO_MUCH_OUTPUT

    run(work)


def test_answers_that_are_no_requests_give_it_no_room() -> None:
    async def work() -> None:
        process = start(ECHO)
        for _ in range(11):
            process.write(b"x" * 100, is_request=False)
            if await process.line() is None:
                break
        assert (await process.wait_for_end()).ending is Ending.TOO_MUCH_OUTPUT

    run(work)


def test_one_that_does_not_end_by_itself_is_killed_with_all_that_it_started() -> None:
    async def work() -> None:
        process = start(STUBBORN)
        stopping = asyncio.create_task(process.stop(grace_seconds=0.05))
        assert (await stopping).code == -9
        process = start(WITH_CHILD)
        child = int(await process.line() or b"")
        await process.stop()
        while is_alive(child):  # the signal is sent; the end takes a moment
            await asyncio.sleep(0.005)

    run(work)


def test_a_cancelled_stop_still_leaves_nothing() -> None:
    async def work() -> None:
        process = start(STUBBORN)
        stopping = asyncio.create_task(process.stop(grace_seconds=60))
        await asyncio.sleep(0)
        stopping.cancel()
        with pytest.raises(asyncio.CancelledError):
            await stopping
        assert process.has_ended

    run(work)


def test_what_cannot_be_started_is_said() -> None:
    async def work() -> None:
        process = LineProcess(["/no/such/program"], environment={}, folder=Path("/"))
        assert await process.line() is None
        with pytest.raises(StoreFailed, match="could not be started"):
            await process.wait_for_end()
        with pytest.raises(InvalidInput):
            LineProcess(["a\0b"], environment={}, folder=Path("/"))
        process = start("import sys; sys.stdin.close(); import time; time.sleep(3600)", output=100)
        with pytest.raises(StoreFailed, match="does not read"):
            process.write(b"x" * 200)
        await process.stop()

    run(work)
