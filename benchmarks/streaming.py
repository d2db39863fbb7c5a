"""Subscribers of answers that are being written: what delivering each piece to each of them costs.

Fifty sessions answer at once, two pieces a second each; a thousand subscribers follow them, all in the process of the
broker. The model is a stub that only waits and speaks. Its CPU, and the broker's, is what the same answers cost with
nobody following; that of the clients is what as many tasks cost that are woken as often and read a time from a text.
What is left is the cost of following.
"""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import quantiles
from typing import TYPE_CHECKING, Any

from benchmarks.measure import NotMeasured, attempt, say
from benchmarks.plan import Sizes

if TYPE_CHECKING:
    import weft.aio
    from weft.runtime.inference.inference import Inference

SESSIONS = 50
PIECES_A_SECOND = 2.0


@dataclass(frozen=True, slots=True)
class Streamed:
    """Shares are of one core while the answers are written."""

    subscribers: int
    pieces: int
    """Delivered to subscribers; each of them got every piece of its answer."""
    stub_share: float
    """The stub and the broker, with nobody following."""
    clients_share: float
    """As many tasks that are woken as often."""
    following_share: float
    following_us: float
    """CPU for each piece delivered, the clients' taken off."""
    p50_ms: float
    p99_ms: float
    """From the stub's saying a piece to a subscriber's having it."""


def measure_streaming(sizes: Sizes, directory: Path) -> dict[str, Streamed | NotMeasured]:
    say("subscribers of answers that are being written")
    count, seconds = sizes.subscribers, sizes.stream_seconds
    return {f"{count:,} subscribers": attempt(lambda: asyncio.run(streamed(directory, count, seconds)))}


async def streamed(directory: Path, subscribers: int, seconds: float) -> Streamed:
    pieces = round(seconds * PIECES_A_SECOND)
    alone = await _answered(directory / "alone.db", 0, pieces)
    clients = await _clients(subscribers, pieces)
    followed = await _answered(directory / "followed.db", subscribers, pieces)
    delays = followed.delays
    assert len(delays) == subscribers * pieces, "somebody missed a piece, or had one twice"
    over = followed.cpu - alone.cpu - clients
    cuts = quantiles(delays, n=100)
    return Streamed(
        subscribers=subscribers,
        pieces=len(delays),
        stub_share=alone.cpu / alone.wall,
        clients_share=clients / followed.wall,
        following_share=over / followed.wall,
        following_us=over / len(delays) * 1e6,
        p50_ms=cuts[49] * 1000,
        p99_ms=cuts[98] * 1000,
    )


@dataclass(frozen=True, slots=True)
class Writing:
    """The time in which answers were written, and how late each piece was with each subscriber."""

    cpu: float
    wall: float
    delays: list[float]


async def _answered(path: Path, subscribers: int, pieces: int) -> Writing:
    """Answers in all sessions at once. The clock runs from the first piece to the last."""
    import weft.aio

    delays: list[float] = []
    async with weft.aio.open(path) as ledger:
        labels = [f"session {number}" for number in range(SESSIONS)]
        for label in labels:
            await ledger.create_session(label)
        stub = _stub(pieces)
        ready = [asyncio.Event() for _ in range(subscribers)]
        following = [
            asyncio.ensure_future(_follow(ledger, labels[number % SESSIONS], pieces, delays, bell))
            for number, bell in enumerate(ready)
        ]
        answering = [asyncio.ensure_future(_send(ledger, stub, label)) for label in labels]
        await stub.all_asked.wait()
        await asyncio.gather(*(bell.wait() for bell in ready))
        cpu, wall = time.process_time(), time.perf_counter()
        stub.begin.set()
        await stub.all_answered.wait()
        await asyncio.gather(*following)
        spent = Writing(time.process_time() - cpu, time.perf_counter() - wall, delays)
        await asyncio.gather(*answering)
    return spent


async def _follow(
    ledger: "weft.aio.AsyncLedger", label: str, pieces: int, delays: list[float], ready: asyncio.Event
) -> None:
    import weft

    left = pieces
    async for item in ledger.follow(label, after="0"):
        if isinstance(item, weft.AnswerStarted):
            ready.set()
        elif isinstance(item, weft.TextAdded):
            times = item.text.split()
            delays += [time.perf_counter() - float(sent_at) for sent_at in times]
            left -= len(times)
            if left <= 0:
                return


async def _clients(subscribers: int, pieces: int) -> float:
    """The CPU of tasks that are woken for every piece and read a time from it, and of nothing else."""
    bells = [asyncio.Event() for _ in range(subscribers)]
    delays: list[float] = []

    async def client(bell: asyncio.Event) -> None:
        for _ in range(pieces):
            await bell.wait()
            bell.clear()
            delays.append(time.perf_counter() - float(text.split()[0]))

    text = f"{time.perf_counter()} "
    tasks = [asyncio.ensure_future(client(bell)) for bell in bells]
    await asyncio.sleep(0)
    cpu = time.process_time()
    for _ in range(pieces):
        for bell in bells:
            bell.set()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    await asyncio.gather(*tasks)
    return time.process_time() - cpu


def _stub(pieces: int) -> Any:
    """A model that says the time, twice a second; no two sessions at the same moment."""
    from weft.ledger.model import TextPart
    from weft.runtime.inference.inference import Inference
    from weft.runtime.replies import FinishReason, Reply, ReplyToken

    class Stub(Inference):
        def __init__(self) -> None:
            super().__init__()
            self.all_asked, self.begin, self.all_answered = asyncio.Event(), asyncio.Event(), asyncio.Event()
            self._requests = self._answers = 0

        async def infer(self, request: Any, *, on_token: Any = None, **_: Any) -> Reply:
            place = self._requests / SESSIONS / PIECES_A_SECOND
            self._requests += 1
            if self._requests == SESSIONS:
                self.all_asked.set()
            await self.begin.wait()
            start, texts = asyncio.get_running_loop().time(), list[str]()
            for number in range(pieces):
                due = start + place + number / PIECES_A_SECOND
                await asyncio.sleep(max(0.0, due - asyncio.get_running_loop().time()))
                texts.append(f"{time.perf_counter()} ")
                on_token(ReplyToken(texts[-1]))
            self._answers += 1
            if self._answers == SESSIONS:
                self.all_answered.set()
            parts = (TextPart("".join(texts)),)
            return Reply(parts=parts, finish=FinishReason.STOP, model_id="m", model="stub", provider="stub")

    return Stub()


async def _send(ledger: "weft.aio.AsyncLedger", stub: "Inference", label: str) -> None:
    from weft.kernel.authority import Principal, PrincipalKind
    from weft.runtime.broker.broker import OutgoingMessage, send
    from weft.runtime.egress.execution_context import context_for
    from weft.runtime.inference.model_requests import ModelSettings, ProviderKind, ProviderSettings

    provider = ProviderSettings(id="stub", kind=ProviderKind.OPENAI_COMPATIBLE, base_url="http://127.0.0.1:9")
    question = OutgoingMessage(message="What time is it?", model=ModelSettings(id="m", name="stub", provider=provider))
    context = context_for(Principal(PrincipalKind.HUMAN, "bench"))
    await send(ledger, stub, label, question, on_token=lambda _: None, context=context)


def stream_rows(streams: dict[str, Streamed | NotMeasured]) -> Sequence[tuple[str, ...]]:
    """The figures as a table has them."""
    rows: list[tuple[str, ...]] = []
    for name, found in streams.items():
        if isinstance(found, NotMeasured):
            rows.append((f"{name}: {found}", *["-"] * 6))
            continue
        shares = (found.stub_share, found.clients_share, found.following_share)
        times = (f"{found.following_us:.0f}", f"{found.p50_ms:.1f}", f"{found.p99_ms:.1f}")
        rows.append((f"{name}, {found.pieces:,} pieces", *(f"{share:.1%}" for share in shares), *times))
    return rows
