"""A turn with three tools whose process dies at every step: the next one goes on where it stopped."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

import weft
from tests.faults.sizes import PROVING, sized
from tests.runtime.broker.crash_driver import IDEMPOTENT, TOOLS, Died, Doom, answer, raise_died
from tests.runtime.scripted import chat_saying
from weft.ledger.api import Ledger, Runs
from weft.runtime.broker.run import Run
from weft.store.owners import process_owner

CALLS = {"add": {"a": 1, "b": 2}, "note": {"text": "x"}, "look": {"name": "y"}}
USES = [
    {"id": f"call-{name}", "type": "function", "function": {"name": name, "arguments": json.dumps(arguments)}}
    for name, arguments in CALLS.items()
]
POINTS = 120
"""More calls of the ledger than a turn makes: points behind the last one are never met."""
pytestmark = [pytest.mark.prove] if PROVING else []


@dataclass
class ToolServer:
    """Asks for three tools, then answers. Writes down how many results each request brought."""

    url: str = ""
    asked: list[int] = field(default_factory=list)
    connections: set[asyncio.Task[Any] | None] = field(default_factory=set)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections.add(asyncio.current_task())
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
                length = int(head.split("content-length: ")[1].split("\r\n")[0])
                body = json.loads(await reader.readexactly(length))
                self.asked.append(sum(message["role"] == "tool" for message in body["messages"]))
                uses: dict[str, Any] = {"content": None, "tool_calls": USES}
                script = chat_saying({"content": "Done"}) if self.asked[-1] else chat_saying(uses, "tool_calls")
                for step in script:
                    assert isinstance(step, bytes)
                    writer.write(step)
                await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            return
        finally:
            writer.close()


@asynccontextmanager
async def tool_server() -> AsyncIterator[ToolServer]:
    server = ToolServer()
    listening = await asyncio.start_server(server.serve, "127.0.0.1", 0)
    server.url = f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}"
    try:
        yield server
    finally:
        listening.close()
        others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)


@dataclass
class Standing:
    """What is recorded at a crash."""

    answers: int = 0
    settled_tools: list[str] = field(default_factory=list)


def standing_of(ledger: Ledger) -> Standing:
    with ledger._store.read() as txn:
        turn = txn.sql.one("SELECT id FROM turn")
    run = Run("").apply(Runs(ledger).events(str(turn[0])) if turn else [])
    answers = sum(request.is_answered for request in run.requests)
    return Standing(answers, [call.tool for call in run.calls.values() if call.outcome is not None])


def runs_of(folder: Path) -> Counter[str]:
    log = folder / "tools.log"
    return Counter(log.read_text().splitlines() if log.exists() else [])


def check(ledger: Ledger, message: str, folder: Path, server: ToolServer, at: Standing, before: ToolServer) -> None:
    """Nothing that was answered was asked again, nothing that was finished ran again, and one turn is there."""
    asked_again = server.asked[len(before.asked) :]
    assert asked_again.count(0) <= (0 if at.answers >= 1 else 1)
    assert asked_again.count(3) <= (0 if at.answers >= 2 else 1)
    runs = runs_of(folder)
    assert all(runs[f"begin {name}"] <= 1 for name in TOOLS if name != IDEMPOTENT)
    assert runs[f"begin {IDEMPOTENT}"] <= 2
    settled = ledger.inbox.get(message)
    assert settled.state == "answered"
    with ledger._store.read() as txn:
        assert txn.sql.all("SELECT id, status FROM turn") == [(settled.turn, "completed")]
        assert txn.sql.all("SELECT turn FROM open_run") == []
    assert ledger.session("main").head == settled.turn
    assert ledger.inbox.list() == []
    run = Run("").apply(Runs(ledger).events(settled.turn or ""))
    assert [call.tool for call in run.calls.values()] == list(TOOLS)
    assert not run.open_calls
    attempts = [request.attempt for request in run.requests]
    assert all(request.is_answered or request.interrupted is not None for request in run.requests), attempts
    assert list(ledger.verify()) == []


def dead_owner() -> str:
    """The name of a process that is over."""
    over = subprocess.Popen([sys.executable, "-c", ""])
    over.wait()
    machine, _, _ = process_owner().rsplit("/", 2)
    return f"{machine}/{over.pid}/1"


async def crash_and_go_on(folder: Path, point: str, owner: str) -> bool:
    """Whether the point was met."""
    folder.mkdir()
    doom = Doom(point, raise_died)
    async with tool_server() as server:
        with weft.open(folder / "ledger.db") as ledger:
            ledger._owner = owner
            with suppress(Died):
                await answer(ledger, server.url, folder, doom)
            for task in asyncio.all_tasks() - server.connections - {asyncio.current_task()}:
                task.cancel()
            ledger._writer.give_all_up()  # a process that dies gives nothing back
        with weft.open(folder / "ledger.db") as ledger:
            at, before = standing_of(ledger), ToolServer(asked=list(server.asked))
            message = await answer(ledger, server.url, folder, Doom())
            check(ledger, message, folder, server, at, before)
    return doom.is_met


def test_a_turn_goes_on_after_a_crash_at_any_step(tmp_path: Path) -> None:
    async def main() -> None:
        owner = dead_owner()
        for when, least in (("before", 12), ("after", 4)):
            numbers = iter(range(1, POINTS))
            while await crash_and_go_on(tmp_path / f"{when}-{(number := next(numbers))}", f"{when}:{number}", owner):
                pass
            assert number > least

    asyncio.run(main())


@pytest.mark.parametrize("tool", TOOLS)
def test_a_turn_goes_on_after_a_crash_inside_a_tool(tmp_path: Path, tool: str) -> None:
    assert asyncio.run(crash_and_go_on(tmp_path / "ledger", f"in:{tool}", dead_owner()))


async def kill_and_go_on(folder: Path, point: str) -> bool:
    """The same with a process that is really killed."""
    folder.mkdir()
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    async with tool_server() as server:
        command = (sys.executable, "-m", "tests.runtime.broker.crash_driver", str(folder / "ledger.db"), server.url)
        process = await asyncio.create_subprocess_exec(*command, str(folder), point, env=environment)
        code = await process.wait()
        with weft.open(folder / "ledger.db") as ledger:
            at, before = standing_of(ledger), ToolServer(asked=list(server.asked))
            message = await answer(ledger, server.url, folder, Doom())
            check(ledger, message, folder, server, at, before)
    assert code in (0, -9)
    return code == -9


EVERYWHERE = [f"{when}:{number}" for number in range(1, 60) for when in ("before", "after")]
KILLS = ["in:note", *sized(test=["before:12"], prove=EVERYWHERE)]


def test_a_turn_goes_on_after_a_kill(tmp_path: Path) -> None:
    async def main() -> None:
        killed = [await kill_and_go_on(tmp_path / point.replace(":", "-"), point) for point in KILLS]
        assert all(killed[: len(killed) if not PROVING else 20])

    asyncio.run(main())
