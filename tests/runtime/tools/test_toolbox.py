"""What the calls of one answer read from the ledger together."""

from __future__ import annotations

import asyncio

from tests.runtime.broker.bench import InlineCrossing
from weft.runtime.invoke.toolbox import SharedReads


def test_those_who_ask_the_same_in_one_moment_share_a_reading_and_later_ones_have_their_own() -> None:
    crossing, news = InlineCrossing(), ["old"]

    async def body() -> None:
        reads = SharedReads(crossing)
        assert await asyncio.gather(*(reads.read("a", lambda: news[-1]) for _ in range(10))) == ["old"] * 10
        assert crossing.calls == 1
        first = asyncio.ensure_future(reads.read("a", lambda: news[-1]))
        while crossing.calls == 1:
            await asyncio.sleep(0)
        news.append("new")  # while the ledger is read
        assert await reads.read("a", lambda: news[-1]) == "new"
        assert await first in ("old", "new")
        assert list(await asyncio.gather(reads.read("a", lambda: 1), reads.read("b", lambda: 2))) == [1, 2]
        assert crossing.calls == 5

    asyncio.run(body())
