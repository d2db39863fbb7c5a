"""A process that serves a ledger until an agent's task is over, and dies at a point that is named.

`main` is what such a process runs; the URL is that of a provider.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, cast

import weft
from tests.runtime.broker.crash_driver import Died, Doom, DoomedCrossing
from tests.runtime.inference.asking import person
from tests.runtime.scripted import Script, chat_saying
from tests.sandbox import UNPROTECTED
from weft.aio.ledger import AsyncLedger
from weft.ledger.api import Ledger
from weft.programs import Programs
from weft.runtime.agent_harness import HarnessJob
from weft.runtime.broker.broker import BackgroundJobs, Broker, OnJobError
from weft.runtime.inference.inference import Inference
from weft.runtime.inference.model_requests import RetryPolicy
from weft.runtime.invoke.invocation import ConfiguredPlanner
from weft.runtime.invoke.toolbox import Toolbox
from weft.runtime.sandbox.command_runner import CommandRunner

T = TypeVar("T")
ROUNDS: tuple[tuple[tuple[str, dict[str, Any]], ...], ...] = (
    (
        ("todo", {"items": [{"text": "write it", "status": "in_progress"}, {"text": "check it"}]}),
        ("write", {"path": "notes.txt", "content": "one\n"}),
    ),
    (("read", {"path": "missing.txt"}),),
    (("write", {"path": "done.txt", "content": "milk\n"}),),
)
"""The tool calls of each turn; the second one ends in an error."""
ANSWERS = ("first", "second", "third")
CRITERIA = [{"type": "file_exists", "path": "done.txt"}, {"type": "word_count", "max": 2}]
PLAN = [{"text": "write it", "status": "in_progress"}, {"text": "check it", "status": "pending"}]


class WatchedCrossing(DoomedCrossing):
    """Tells of every call that it made. The point `checkpoint:K` comes once the checkpoint after K turns is saved."""

    def __init__(self, doom: Doom, ledger: Ledger) -> None:
        super().__init__(doom, ledger)
        self._programs, self._doom = Programs(ledger), doom
        self.shared: dict[Any, Any] = {}
        self.called = asyncio.Event()

    async def run(self, call: Callable[[], T]) -> T:
        try:
            result = await super().run(call)
            self._doom.meet("checkpoint", str(self._programs.get("ada").last_checkpoint))
            return result
        finally:
            self.called.set()


def next_reply(body: Any) -> Script:
    """What comes after the messages that a request brings, whoever asks."""
    said = [message for message in body["messages"] if message["role"] != "system"]
    number = sum(message["role"] == "user" for message in said) - 1
    last_user = max(place for place, message in enumerate(said) if message["role"] == "user")
    done = sum(message["role"] == "tool" for message in said[last_user:])
    calls = ROUNDS[number]
    if done == len(calls):
        return chat_saying({"content": ANSWERS[number]})
    name, arguments = calls[done]
    function = {"name": name, "arguments": json.dumps(arguments)}
    use = {"id": f"call-{number}-{done}", "type": "function", "function": function}
    return chat_saying({"content": None, "tool_calls": [use]}, "tool_calls")


def prepare(ledger: Ledger, url: str, workspace: Path, **harness: Any) -> None:
    """An agent with tools that has a task."""
    programs = Programs(ledger)
    programs.create("provider", "there", {"providerType": "openai-compatible", "baseUrl": url})
    programs.create("model", "fast", {"modelId": "m-1", "provider": "there"})
    config = {"reflectOnFailure": True, "checkpointEvery": 1, **harness}
    programs.create("agent", "ada", {"defaultModel": "fast", "toolset": "worker", "harness": config})
    spec = {"successCriteria": CRITERIA}
    programs.create("task", "shop", {"title": "Shop", "spec": spec, "workspace": str(workspace)})
    programs.assign("ada", "shop")


def is_shop_over(programs: Programs) -> bool:
    return programs.get("shop").state in ("completed", "failed")


async def serve_until_over(
    ledger: Ledger,
    url: str,
    doom: Doom,
    is_over: Callable[[Programs], bool] = is_shop_over,
    *,
    does_grant: bool = True,
    on_error: OnJobError | None = None,
) -> None:
    """Serve with a broker whose job is the work of agents, until the task is over; a person grants whatever is
    asked."""
    crossing, programs = WatchedCrossing(doom, ledger), Programs(ledger)
    mirror = AsyncLedger(ledger, cast(Any, crossing))
    runner = CommandRunner(UNPROTECTED)
    toolbox = Toolbox(ledger, crossing, programs, runner, on_asked=lambda request: grant())

    def grant() -> None:
        for request in ledger.approvals.list(states=("open",)) if does_grant else ():
            ledger.approvals.grant(request.id, plan_digest=request.plan_digest)
        broker.wake()

    async with Inference(policy=RetryPolicy(attempts=1)) as inference:
        planner = ConfiguredPlanner(
            programs,
            mirror,
            inference,
            variable=lambda name: None,
            acting=lambda message: person(url),
            equip=toolbox.equip,
        )
        jobs = BackgroundJobs(
            [HarnessJob(programs, crossing, CommandRunner(UNPROTECTED), on_error=on_error)], on_error=on_error
        )
        broker = Broker(ledger, crossing, planner, background=jobs)
        loop = asyncio.get_running_loop()
        loop.call_soon(grant)
        serving = asyncio.ensure_future(broker.serve())
        try:
            while not is_over(programs) and not serving.done():
                await crossing.called.wait()
                crossing.called.clear()
                if doom.is_met:
                    raise Died
            broker.drain()
            await serving
        finally:
            serving.cancel()
            await asyncio.gather(serving, return_exceptions=True)
            await toolbox.aclose()


def main(address: str, url: str, point: str = "") -> None:
    with weft.open(address) as ledger:
        asyncio.run(serve_until_over(ledger, url, Doom(point)))
