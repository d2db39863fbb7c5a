"""Weft's broker running whole turns, as a program uses it: an open ledger, messages sent to a session, answers awaited.

Its model layer is what speaks OpenAI's chat completions: the body of a request, HTTP, the reading of the answer. What
Weft does around it, such as translating the conversation and opening the route, is Weft's own share and stays in the
overhead. A thread is built by `record_turn`.
"""

import asyncio
from collections.abc import Sequence

import weft.aio
from benchmarks.turn_subject import LayerClock, Place, add
from benchmarks.weft_subject import LEDGER, as_fields
from benchmarks.workload import Turn
from weft.kernel.authority import Principal, PrincipalKind
from weft.runtime.broker.broker import OutgoingMessage, send
from weft.runtime.egress.execution_context import context_for
from weft.runtime.inference.dialects.openai import ChatClient
from weft.runtime.inference.inference import Inference
from weft.runtime.inference.model_requests import ModelSettings, ProviderKind, ProviderSettings
from weft.runtime.tool.tool_contract import FunctionTool, tools_of

PERSON = Principal(PrincipalKind.HUMAN, "benchmark")
_LAYER, _REQUEST = ChatClient, "ask"
"""Where Weft hands a request to its dialect."""
_MODEL_REQUEST = ChatClient.ask
SERVED_LEDGER = "broker"


class BrokerTurns:
    """On SQLite."""

    def __init__(self, place: Place) -> None:
        self.layer = LayerClock()
        self._request = self.layer.timed_async(_MODEL_REQUEST)
        self._runner = asyncio.Runner()
        self._acting = context_for(PERSON)
        self._model = model_at(place.url)
        self._tools = tools_of(FunctionTool(add, is_read_only=True))
        self._session = place.session
        self._inference = Inference()
        self._ledger: weft.aio.AsyncLedger = self._runner.run(_opened(self._address(place)))

    def _address(self, place: Place) -> str:
        return str(place.directory / LEDGER)

    def build(self, turns: Sequence[Turn]) -> None:
        for turn in turns:
            self._ledger.sync.record_turn(session=self._session, **as_fields(turn))

    def take_turn(self, text: str) -> str:
        setattr(_LAYER, _REQUEST, self._request)
        return self._runner.run(self._sent(text))

    async def _sent(self, text: str) -> str:
        question = OutgoingMessage(message=text, model=self._model, tools=self._tools)
        answered = await send(self._ledger, self._inference, self._session, question, context=self._acting)
        return answered.reply.text

    def close(self) -> None:
        setattr(_LAYER, _REQUEST, _MODEL_REQUEST)
        self._runner.run(self._inference.aclose())
        self._runner.run(self._ledger.close())
        self._runner.close()


class ServedBrokerTurns(BrokerTurns):
    """On PostgreSQL."""

    def _address(self, place: Place) -> str:
        return f"{place.postgres}&ledger={SERVED_LEDGER}"


async def _opened(address: str) -> weft.aio.AsyncLedger:
    return await weft.aio.open(address)


def model_at(url: str) -> ModelSettings:
    provider = ProviderSettings(id="benchmark", kind=ProviderKind.OPENAI_COMPATIBLE, base_url=url)
    return ModelSettings(id="benchmark", name="benchmark-model", provider=provider)
