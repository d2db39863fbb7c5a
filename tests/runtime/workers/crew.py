"""A manager and its workers: a ledger, brokers that plan by configuration with the real toolbox, and a scripted server
that answers by what it is asked."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import weft.aio
from tests.runtime.invoking import VARIABLES, stock
from tests.runtime.scripted import Script, Scripted, chat_saying, scripted
from tests.sandbox import UNPROTECTED
from weft.kernel.authority import LOCAL
from weft.ledger.api import InboxMessage, Runs
from weft.ledger.model import Turn
from weft.programs import Programs
from weft.runtime.broker.broker import Broker
from weft.runtime.egress.credentials import Keyring
from weft.runtime.egress.execution_context import context_for
from weft.runtime.inference.inference import Inference
from weft.runtime.inference.model_requests import RetryPolicy
from weft.runtime.invoke.invocation import ConfiguredPlanner, sender_context
from weft.runtime.invoke.toolbox import Toolbox
from weft.runtime.sandbox.command_runner import CommandRunner

Model = Callable[["Asked"], Script]


class Asked:
    """What a model is asked: the first and the last message of a user, the tools, and the results since."""

    def __init__(self, body: dict[str, Any]) -> None:
        self.messages = body["messages"]
        self.tools = [tool["function"]["name"] for tool in body.get("tools", ())]
        users = [text_of(message) for message in self.messages if message["role"] == "user"]
        self.first, self.last = users[0], users[-1]
        last_user = max(i for i, message in enumerate(self.messages) if message["role"] == "user")
        self.results: list[Any] = [
            json.loads(text_of(message)) if text_of(message).startswith("{") else text_of(message)
            for message in self.messages[last_user:]
            if message["role"] == "tool"
        ]


def text_of(message: dict[str, Any]) -> str:
    content = message["content"]
    return content if isinstance(content, str) else "\n".join(part["text"] for part in content or ())


def say(text: str) -> Script:
    return chat_saying({"content": text})


def call(*calls: tuple[str, dict[str, Any]]) -> Script:
    uses = [
        {"id": f"call-{number}-{tool}", "type": "function", "function": {"name": tool, "arguments": json.dumps(given)}}
        for number, (tool, given) in enumerate(calls)
    ]
    return chat_saying({"content": None, "tool_calls": uses}, "tool_calls")


class Crew:
    def __init__(self, ledger: weft.aio.AsyncLedger, server: Scripted, inference: Inference) -> None:
        self.ledger, self.server, self.inference = ledger, server, inference
        self.runs = Runs(ledger.sync)
        self.programs = Programs(ledger.sync)
        stock(self.programs, server.url)
        self.toolbox = Toolbox(ledger.sync, ledger.crossing, self.programs, CommandRunner(UNPROTECTED))
        self.person = context_for(LOCAL.principal, keyring=Keyring((), VARIABLES.get))

    def boss(self, **config: Any) -> None:
        given = {"systemPrompt": "You lead.", "defaultModel": "fast", "toolset": "manager", **config}
        self.programs.create("agent", "boss", given)

    def answers(self, model: Model) -> None:
        self.server.script_of = lambda body: model(Asked(body))

    def broker(self) -> Broker:
        planner = ConfiguredPlanner(
            self.programs,
            self.ledger,
            self.inference,
            variable=VARIABLES.get,
            acting=lambda message: sender_context(self.person, self.programs, message),
            equip=self.toolbox.equip,
        )
        return Broker(self.ledger.sync, self.ledger.crossing, planner)

    def send(self, text: str | dict[str, Any], session: str = "boss:main", **more: Any) -> str:
        return self.ledger.sync.inbox.admit(text, session=session, persona="boss", **more).message

    async def until(self, is_so: Callable[[], bool], brokers: int = 1) -> None:
        """Have brokers serve until something is so."""
        serving = [asyncio.ensure_future(self.broker().serve()) for _ in range(brokers)]
        try:
            while not is_so():
                done, _ = await asyncio.wait(serving, timeout=0.02, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    task.result()
        finally:
            for task in serving:
                task.cancel()
            for task in serving:
                with suppress(asyncio.CancelledError):
                    await task

    async def settled(self, *messages: str) -> list[InboxMessage]:
        """The messages, once a turn has answered each or they are dead, and nothing waits or runs any more."""
        inbox = self.ledger.sync.inbox
        await self.until(
            lambda: self.is_quiet() and all(inbox.get(one).state not in ("queued", "taken") for one in messages)
        )
        return [inbox.get(message) for message in messages]

    def is_quiet(self) -> bool:
        return not self.sql("SELECT 1 FROM open_run UNION ALL SELECT 1 FROM inbox WHERE state = 'queued'")

    def sql(self, query: str, values: Sequence[Any] = ()) -> list[Any]:
        with self.ledger.sync._store.read() as txn:
            return txn.sql.fetch_rows(query, tuple(values))

    def turns(self, session: str) -> list[Turn]:
        """The turns that a session made."""
        ledger = self.ledger.sync
        rows = self.sql(
            "SELECT id FROM turn WHERE session = (SELECT n FROM session WHERE label = ?) ORDER BY n", (session,)
        )
        return [ledger.turn(str(id)) for (id,) in rows]

    def answer_to(self, message: str) -> str:
        turn = self.ledger.sync.turn(self.ledger.sync.inbox.get(message).turn or "")
        assert turn.status == "completed", (turn.status, turn.error)
        return self.runs.worker_reply(turn.id).text


@asynccontextmanager
async def crew_at(address: str | Path) -> AsyncIterator[Crew]:
    async with (
        weft.aio.open(address) as ledger,
        scripted() as server,
        Inference(policy=RetryPolicy(attempts=1)) as inference,
    ):
        crew = Crew(ledger, server, inference)
        yield crew
        await crew.toolbox.aclose()
        assert list(ledger.sync.verify()) == []
