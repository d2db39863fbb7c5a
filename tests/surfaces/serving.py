"""A scripted server beside the command line: in a thread of its own, since a command has its own event loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from tests.runtime.scripted import Script, Scripted, scripted


@contextmanager
def serving(*scripts: Script) -> Iterator[Scripted]:
    loop, ready, ended = asyncio.new_event_loop(), threading.Event(), asyncio.Event()
    found: list[Scripted] = []

    async def main() -> None:
        async with scripted(*scripts) as server:
            server.streams_whole_replies = True
            found.append(server)
            ready.set()
            await ended.wait()

    thread = threading.Thread(target=lambda: loop.run_until_complete(main()))
    thread.start()
    try:
        assert ready.wait(300)
        yield found[0]
    finally:
        loop.call_soon_threadsafe(ended.set)
        thread.join(300)
        for task in asyncio.all_tasks(loop):
            task.cancel()
        loop.run_until_complete(asyncio.sleep(0))
        loop.close()
