"""The jobs that a broker runs beside its turns: when they run, what their errors stop, and how they end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from tests.runtime.broker.bench import Bench, run, saying
from weft.kernel.clock import FixedClock
from weft.ledger.api import Ledger
from weft.runtime.broker import broker as broker_broker
from weft.runtime.broker.broker import BackgroundJobs, Broker


class PlayedJob:
    """Does what a test says in each run, and says when it is due next."""

    def __init__(self, name: str, *runs: Callable[[int], Any]) -> None:
        self.name, self._runs, self.began, self.changed = name, list(runs), [], asyncio.Event()  # type: ignore[var-annotated]

    async def run_due(self, now_ms: int) -> int | None:
        self.began.append(now_ms)
        self.changed.set()
        outcome = self._runs.pop(0)(now_ms) if self._runs else None
        return await outcome if asyncio.iscoroutine(outcome) else outcome

    async def has_begun(self, count: int) -> None:
        while len(self.began) < count:
            self.changed.clear()
            await self.changed.wait()


def broken(now_ms: int) -> None:
    raise ValueError(f"broken at {now_ms}")


def test_a_job_runs_at_once_at_its_due_time_and_where_the_ledger_has_news(ledger: Ledger) -> None:
    async def body() -> None:
        clock = FixedClock(1000)
        job = PlayedJob("clock", lambda now: now + 20, lambda now: now, lambda now: None)
        jobs = BackgroundJobs([job], clock=clock)
        broker = Broker(ledger, Bench(ledger).crossing, background=jobs)
        serving = asyncio.ensure_future(broker.serve())
        await job.has_begun(3)  # the second after 20 ms, the third at once
        ledger.inbox.admit("hello", session="main")
        await job.has_begun(4)
        broker.drain()
        await serving
        count = len(job.began)
        broker.wake()
        await asyncio.sleep(0)
        assert len(job.began) == count

    run(body())


def test_errors_of_a_job_are_told_once_and_stop_neither_turns_nor_other_jobs(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(broker_broker, "FIRST_PAUSE_SECONDS", 0.0001)

    async def body() -> None:
        clock, told = FixedClock(1000), list[tuple[str, str]]()
        bad, good = PlayedJob("bad", broken, broken, lambda now: now, broken), PlayedJob("good")
        jobs = BackgroundJobs([bad, good], clock=clock, on_error=lambda name, error: told.append((name, str(error))))
        bench = Bench(ledger, saying("Hi"))
        broker = Broker(ledger, bench.crossing, bench.plan, background=jobs)
        message, serving = bench.admit(), asyncio.ensure_future(broker.serve())
        await bad.has_begun(5)
        while bench.state(message)[0] != "answered":
            await asyncio.sleep(0)
        broker.drain()
        await serving
        assert good.began
        assert told == [("bad", "broken at 1000")] * 2  # twice in a row is one; after a run that went well, another

    run(body())


def test_draining_waits_for_the_run_under_way_and_grace_cuts_it_short(ledger: Ledger) -> None:
    async def body() -> None:
        for grace, is_cut in ((None, False), (0.001, True)):
            ended, release = list[str](), asyncio.Event()

            async def long_run(ended: list[str] = ended, release: asyncio.Event = release) -> None:
                try:
                    await release.wait()
                except asyncio.CancelledError:
                    ended.append("cut")
                    raise
                ended.append("done")

            job = PlayedJob("slow", lambda now, run=long_run: run())  # type: ignore[misc]
            broker = Broker(ledger, Bench(ledger).crossing, background=BackgroundJobs([job]))
            serving = asyncio.ensure_future(broker.serve())
            await job.has_begun(1)
            broker.drain(grace)
            if not is_cut:
                await asyncio.sleep(0)
                assert not serving.done()
                release.set()
            await serving
            assert ended == ["cut" if is_cut else "done"]
            assert len(job.began) == 1

    run(body())


def test_a_turn_is_cut_short_also_while_the_broker_drains(ledger: Ledger) -> None:
    async def body() -> None:
        bench = Bench(ledger, None)
        broker = bench.broker()
        message, serving = bench.admit(), asyncio.ensure_future(broker.serve())
        await bench.provider.asked.wait()
        broker.drain()
        await asyncio.sleep(0)
        ledger.inbox.interrupt("main")
        await serving
        assert bench.state(message)[0] == "answered"
        assert bench.interruptions(message)[-1] == "canceled"

    run(body())
