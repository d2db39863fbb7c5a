"""The OpenAI Agents SDK running whole turns: its `Runner` with an agent, a function tool and a `SQLiteSession`.

Its model layer is `OpenAIChatCompletionsModel.get_response`. A thread is built by `add_items`. The session's file is
what the SDK makes of it: a write-ahead log; it does not say how commits are synced, so SQLite's default holds.
"""

import asyncio
from collections.abc import Sequence
from importlib import import_module
from typing import Any

from benchmarks.peers.openai_agents import _items
from benchmarks.turn_subject import LayerClock, Place, add
from benchmarks.workload import Turn


class AgentsTurns:
    def __init__(self, place: Place) -> None:
        self.layer = LayerClock()
        self._sdk: Any = import_module("agents")
        self._sdk.set_tracing_disabled(True)
        self._runner = asyncio.Runner()
        self._client = import_module("openai").AsyncOpenAI(base_url=place.url, api_key="none", max_retries=0)
        model = self._sdk.OpenAIChatCompletionsModel(model="benchmark-model", openai_client=self._client)
        model.get_response = self.layer.timed_async(model.get_response)
        self._agent = self._sdk.Agent(name="benchmark", model=model, tools=[self._sdk.function_tool(add)])
        self._session = self._sdk.SQLiteSession(place.session, place.directory / "session.db")

    def build(self, turns: Sequence[Turn]) -> None:
        self._runner.run(self._session.add_items([item for turn in turns for item in _items(turn)]))

    def take_turn(self, text: str) -> str:
        ended = self._runner.run(self._sdk.Runner.run(self._agent, text, session=self._session))
        return str(ended.final_output)

    def close(self) -> None:
        self._session.close()
        self._runner.run(self._client.close())
        self._runner.close()
