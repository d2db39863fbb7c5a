"""Scenes of people and agents in rooms: a ledger, the broker that plans by configuration, and a scripted server that
answers for each agent by its system prompt."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import weft.aio
from tests.runtime.invoking import VARIABLES, stock
from tests.runtime.scripted import Script, Scripted, chat_saying, scripted
from weft.kernel.authority import LOCAL
from weft.kernel.message_text import write_mention
from weft.ledger.api import Ledger, PostedMessage, RoomMessage
from weft.programs import Programs
from weft.runtime.broker.broker import Broker
from weft.runtime.broker.session_turns import CollectRules
from weft.runtime.egress.credentials import Keyring
from weft.runtime.egress.execution_context import context_for
from weft.runtime.inference.inference import Inference
from weft.runtime.inference.model_requests import RetryPolicy
from weft.runtime.invoke.invocation import ConfiguredPlanner, Equip, sender_context

Answer = Callable[[dict[str, Any]], Script]


def saying(text: str) -> Answer:
    return lambda body: chat_saying({"content": text})


def calling(tool: str, number: int = 0) -> Script:
    function = {"name": tool, "arguments": json.dumps({})}
    use = {"id": f"call-{tool}-{number}", "type": "function", "function": function}
    return chat_saying({"content": None, "tool_calls": [use]}, "tool_calls")


class Scene:
    """alice and bob are people. Agents are made by `agent`; what they say is what `answers` has for their name."""

    def __init__(self, ledger: weft.aio.AsyncLedger, server: Scripted, inference: Inference) -> None:
        self.ledger, self.server, self.inference = ledger, server, inference
        self.programs = Programs(ledger.sync)
        stock(self.programs, server.url)
        self.ids = {name: self.programs.create("human", name, {}).id for name in ("alice", "bob")}
        self.people = set(self.ids)
        self.answers: dict[str, Answer] = {}
        self.equip: Equip | None = None
        self.person = context_for(LOCAL.principal, keyring=Keyring((), VARIABLES.get))
        server.script_of = self._answer

    def _answer(self, body: dict[str, Any]) -> Script:
        return self.answers[agent_of(body)](body)

    def as_(self, name: str) -> Ledger:
        return self.ledger.sync.acting_as(name)

    def agent(self, owner: str, name: str, answer: str | Answer, **config: Any) -> None:
        self.answers[name] = saying(answer) if isinstance(answer, str) else answer
        config = {"systemPrompt": f"You are {name}.", "defaultModel": "fast", **config}
        self.ids[name] = Programs(self.as_(owner)).create("agent", name, config).id

    def mention(self, name: str) -> str:
        return write_mention("user" if name in self.people else "agent", self.ids[name], name)

    def broker(self) -> Broker:
        planner = ConfiguredPlanner(
            self.programs,
            self.ledger,
            self.inference,
            variable=VARIABLES.get,
            acting=lambda message: sender_context(self.person, self.programs, message),
            equip=self.equip,
        )
        return Broker(self.ledger.sync, self.ledger.crossing, planner, collecting=CollectRules(quiet_ms=0))

    async def settle(self, posted: PostedMessage, broker: Broker | None = None) -> None:
        """Have everybody whom a message reached answer it, one after another."""
        broker = broker or self.broker()
        for reached in posted.reached:
            await broker.wait_for_answer(reached.message, reached.session_id)

    def said(self, reader: str, room: str, author: str) -> list[str]:
        return [message.text for message in self.messages(reader, room) if message.author_name == author]

    def messages(self, reader: str, room: str) -> list[RoomMessage]:
        return self.as_(reader).rooms.messages(room, limit=1000)

    def requests(self, agent: str) -> list[list[dict[str, Any]]]:
        """The messages of each request that the server got for an agent."""
        return [one.body["messages"] for one in self.server.received if agent_of(one.body) == agent]


def agent_of(body: dict[str, Any]) -> str:
    prompt = next(message["content"] for message in body["messages"] if message["role"] == "system")
    text = prompt if isinstance(prompt, str) else prompt[0]["text"]
    return str(text).removeprefix("You are ").split(".")[0]


def text_of(message: dict[str, Any]) -> str:
    content = message["content"]
    return content if isinstance(content, str) else "\n".join(part["text"] for part in content or ())


@asynccontextmanager
async def scene_at(address: str | Path) -> AsyncIterator[Scene]:
    async with (
        weft.aio.open(address) as ledger,
        scripted() as server,
        Inference(policy=RetryPolicy(attempts=1)) as inference,
    ):
        yield Scene(ledger, server, inference)
        assert list(ledger.sync.verify()) == []
