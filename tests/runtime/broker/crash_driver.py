"""A process that answers one message with three tools, and dies at a point that is named.

`main` is what such a process runs; the URL is that of a provider.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import weft
from tests.runtime.inference.asking import model, person
from weft.ledger.api import Ledger, RunConfig, SessionStanding
from weft.runtime.broker.broker import Broker
from weft.runtime.broker.turn_plans import TurnPlan
from weft.runtime.inference.inference import Inference
from weft.runtime.inference.model_requests import RetryPolicy
from weft.runtime.tool.tool_contract import FunctionTool, Tools, tools_of

T = TypeVar("T")
TOOLS = ("add", "note", "look")
IDEMPOTENT = "look"


class Died(BaseException):
    """Stands for the end of a process in tests that have one process only."""


class Doom:
    """Where a process dies: `before:K` means its call of the ledger with that number, `after:K` its commit with that
    number, `in:TOOL` the middle of a tool; an empty point never comes."""

    def __init__(self, point: str = "", kill: Callable[[], None] | None = None) -> None:
        self._when, _, self._what = point.partition(":")
        self._kill = kill or (lambda: os.kill(os.getpid(), signal.SIGKILL))
        self.calls = self.commits = 0
        self.is_met = False

    def meet(self, when: str, what: str) -> None:
        if self.is_met or (when, what) == (self._when, self._what):
            self.is_met = True
            self._kill()


def raise_died() -> None:
    raise Died


class DoomedCrossing:
    """Calls the ledger in this thread; dies before or after one of the calls."""

    def __init__(self, doom: Doom, ledger: Ledger) -> None:
        self._doom, self._ledger = doom, ledger
        self.shared: dict[Any, Any] = {}

    async def run(self, call: Callable[[], T]) -> T:
        self._doom.calls += 1
        self._doom.meet("before", str(self._doom.calls))
        newest = self._ledger.newest()
        result = call()
        if self._ledger.newest() != newest:
            self._doom.commits += 1
            self._doom.meet("after", str(self._doom.commits))
        return result


def tools_in(folder: Path, doom: Doom) -> Tools:
    """Three functions, each of which writes down that it begins and that it ends."""

    def run(name: str) -> None:
        with (folder / "tools.log").open("a") as log:
            print("begin", name, file=log, flush=True)
            doom.meet("in", name)
            print("end", name, file=log, flush=True)

    def add(a: int, b: int) -> int:
        """The sum of two numbers."""
        run("add")
        return a + b

    def note(text: str) -> str:
        """Keeps a note."""
        run("note")
        return f"noted {text}"

    def look(name: str) -> dict[str, str]:
        """Looks something up."""
        run("look")
        return {"name": name}

    return tools_of(FunctionTool(add), FunctionTool(note), FunctionTool(look, is_read_only=True))


async def answer(ledger: Ledger, url: str, folder: Path, doom: Doom) -> str:
    """Admit the message, unless it is admitted already, and serve its session until it is settled."""
    crossing = DoomedCrossing(doom, ledger)
    async with Inference(policy=RetryPolicy(attempts=1)) as inference:

        async def plan(standing: SessionStanding, messages: Sequence[Any]) -> TurnPlan:
            return TurnPlan(
                model=model(url),
                inference=inference,
                acting=person(url),
                setting=RunConfig(),
                tools=tools_in(folder, doom),
            )

        broker = Broker(ledger, crossing, plan)
        admission = await crossing.run(lambda: ledger.inbox.admit("Use all three", session="main", key="once"))
        await broker.wait_for_answer(admission.message, admission.session_id)
        return admission.message


def main(address: str, url: str, folder: str, point: str = "") -> None:
    with weft.open(address) as ledger:
        asyncio.run(answer(ledger, url, Path(folder), Doom(point)))
