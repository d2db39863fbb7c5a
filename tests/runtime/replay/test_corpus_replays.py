"""Real sessions of other tools, replayed with a scripted model that answers as recorded.

`make test` replays a few threads, WEFT_PROVE=1 a hundred.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from random import Random

import weft.aio
from tests.exchange.corpus import CORPUS, ORIGINS, needs_corpus, opened, take
from tests.runtime.replay.scripted_answers import ReplayBench, saying, script_of
from tests.runtime.scripted import chat, scripted
from tests.sizes import PROVING
from weft.runtime.inference.inference import Inference
from weft.runtime.inference.model_requests import RetryPolicy
from weft.runtime.recorded_threads import RecordedThread
from weft.runtime.thread_replay import ReplayOutcome, ThreadRange

pytestmark = needs_corpus

THREADS = 100 if PROVING else 8
MAX_FILE_BYTES = 300_000 if PROVING else 40_000
MAX_ANSWERS = 1000 if PROVING else 12


async def threads_of(bench: ReplayBench) -> list[tuple[ThreadRange, RecordedThread]]:
    """Some of the threads that have something to replay, of every origin in turn."""
    sessions = sorted(bench.ledger.sync.sessions(every=True), key=lambda session: session.id)
    Random(21).shuffle(sessions)
    by_origin = {origin: [one for one in sessions if one.origin == origin and one.head] for origin in ORIGINS}
    chosen: list[tuple[ThreadRange, RecordedThread]] = []
    while len(chosen) < THREADS and any(by_origin.values()):
        for waiting in by_origin.values():
            if not waiting or len(chosen) == THREADS:
                continue
            turns, thread = await bench.read(waiting.pop().head or "")
            if 0 < sum(len(exchange.answers) for exchange in thread.exchanges) <= MAX_ANSWERS:
                chosen.append((turns, thread))
    return chosen


async def replay_as_recorded(bench: ReplayBench, turns: ThreadRange, thread: RecordedThread) -> None:
    report = await bench.replay(turns, script_of(thread))
    assert report.first is None, f"{turns.last}: {report.first}"
    assert report.outcome is ReplayOutcome.SAME, turns.last
    answers = sum(len(exchange.answers) for exchange in thread.exchanges)
    assert len(bench.server.received) == report.replayed_spending.answers == answers


async def replay_with_one_change(
    bench: ReplayBench, turns: ThreadRange, thread: RecordedThread, random: Random
) -> None:
    answers = [answer for exchange in thread.exchanges for answer in exchange.answers]
    place = random.randrange(len(answers))
    scripts = script_of(thread)
    calls = [(call.name, call.arguments) for call in answers[place].calls]
    is_text = random.random() < 0.5
    scripts[place] = saying("Not as recorded", calls) if is_text else saying("", [*calls, ("not_recorded", {})])
    report = await bench.replay(turns, scripts)
    assert report.first is not None
    assert (report.first.turn, report.first.kind) == (answers[place].turn, "text" if is_text else "calls")
    if is_text:
        assert sum(len(exchange.divergences) for exchange in report.exchanges) == 1
    elif any(answer.calls for answer in answers):
        assert report.outcome is ReplayOutcome.STOPPED
        assert len(bench.server.received) == place + 1


def test_recorded_threads_diverge_nowhere_and_a_changed_answer_is_named(tmp_path: Path) -> None:
    files = [path for origin in ORIGINS for path in sorted((CORPUS / origin).rglob("*")) if path.is_file()]
    small = [path for path in files if path.stat().st_size <= MAX_FILE_BYTES]
    with opened(tmp_path / "ledger.db") as ledger:
        take(ledger, *(small if PROVING else Random(21).sample(small, 60)))

    async def main() -> None:
        inference, random = Inference(policy=RetryPolicy(attempts=1)), Random(4)
        async with weft.aio.open(tmp_path / "ledger.db") as ledger, scripted(chat()) as server, inference:
            bench = ReplayBench(ledger, server, inference)
            chosen = await threads_of(bench)
            assert len(chosen) == THREADS
            for turns, thread in chosen:
                await replay_as_recorded(bench, turns, thread)
                await replay_with_one_change(bench, turns, thread, random)

    asyncio.run(main())
