"""A session that was begun at one vendor goes on at another and comes back, with calls and thinking, for every ordered
pair of the four wire forms: nothing is refused, everything that was said and done is sent, and nobody is sent what
another one thought or sealed."""

from __future__ import annotations

import asyncio
import base64
import copy
import json
from collections.abc import Sequence
from contextlib import AsyncExitStack
from itertools import permutations, product
from pathlib import Path
from typing import Any

import pytest

import weft.aio
from tests.runtime.broker.test_endings import NAMES, TOOLS, Body, Use, whole_answer
from tests.runtime.inference.asking import person, provider
from tests.runtime.inference.strict_providers import StrictServer
from tests.runtime.inference.test_recorded_exchanges import KINDS
from tests.runtime.scripted import Script, Scripted, scripted
from tests.sizes import share
from weft.runtime.broker.broker import OutgoingMessage, send
from weft.runtime.inference.inference import Inference
from weft.runtime.inference.model_requests import Dialect, ModelParameters, ModelSettings, RetryPolicy

THINKING = (Dialect.ANTHROPIC, Dialect.OPENAI_RESPONSES, Dialect.GOOGLE)
"""OpenAI's chat completions tell no thoughts."""


def thought_in(turn: int, dialect: Dialect) -> str:
    return f"thought{turn}{dialect}".replace("-", "") if dialect in THINKING else ""


def seal_in(turn: int, dialect: Dialect) -> str:
    """In base64 that has no padding, as all of them write it."""
    return base64.b64encode(f"sealed {turn} {dialect:<18}".encode()).decode() if dialect in THINKING else ""


def answers_in(turn: int, dialect: Dialect) -> tuple[Body, Body]:
    """A thought and two calls, then what is said of their results."""
    uses = (Use(f"call_{turn}a", "add", {"a": turn, "b": 100}), Use(f"call_{turn}b", "fail", {"why": f"no{turn}"}))
    calling = copy.deepcopy(whole_answer(dialect, thought=thought_in(turn, dialect), uses=uses, end="calls"))
    seal = seal_in(turn, dialect)
    if dialect is Dialect.ANTHROPIC:
        calling["content"][0]["signature"] = seal
    elif dialect is Dialect.OPENAI_RESPONSES:
        calling["output"][0]["encrypted_content"] = seal
    elif dialect is Dialect.GOOGLE:
        calling["candidates"][0]["content"]["parts"][1]["thoughtSignature"] = seal
    return calling, whole_answer(dialect, text=f"Done {turn}", end="done")


class Vendor:
    """One of the vendors: its strict server, at an address of its own."""

    def __init__(self, dialect: Dialect, http: Scripted) -> None:
        self.dialect, self.server, self._http = dialect, StrictServer(dialect), http
        http.script_of = self._script

    def _script(self, body: Body) -> Script:
        path = self._http.received[-1].path
        return self.server.script(body, is_streamed=bool(body.get("stream")) or ":stream" in path)

    @property
    def model(self) -> ModelSettings:
        kind, api = KINDS[self.dialect]
        thinking: dict[str, Any] = {"thinking": "low"} if self.dialect in THINKING else {}
        return ModelSettings(
            id=str(self.dialect),
            name=NAMES[self.dialect],
            provider=provider(self._http.url, kind, id=str(self.dialect), api=api),
            parameters=ModelParameters(max_tokens=4_000, **thinking),
        )

    @property
    def url(self) -> str:
        return self._http.url

    def sent(self, number: int = -1) -> str:
        return json.dumps(self.server.bodies[number]).replace("-", "+").replace("_", "/")


async def talk(path: Path, dialects: Sequence[Dialect], *, streamed: bool) -> dict[Dialect, Vendor]:
    """A turn at each of the vendors, in this order; between them nothing is kept but the ledger."""
    async with AsyncExitStack() as opened:
        ledger = await opened.enter_async_context(weft.aio.open(path))
        inference = await opened.enter_async_context(Inference(policy=RetryPolicy(attempts=1)))
        vendors = {
            dialect: Vendor(dialect, await opened.enter_async_context(scripted()))
            for dialect in dict.fromkeys(dialects)
        }
        for turn, dialect in enumerate(dialects, 1):
            vendor = vendors[dialect]
            vendor.server.answers = [(200, answered) for answered in answers_in(turn, dialect)]
            question = OutgoingMessage(message=f"Question {turn}", model=vendor.model, tools=dict(TOOLS))
            on_token = (lambda _: None) if streamed else None
            acting = person(vendor.url)
            sent = await send(ledger, inference, "main", question, context=acting, on_token=on_token)
            assert vendor.server.refused == []
            assert vendor.server.answers == []
            assert (await ledger.turn(sent.turn.id)).status == "completed"
            ledger.crossing.shared.clear()
        assert [problem async for problem in ledger.verify()] == []
        return vendors


@pytest.mark.parametrize(("pair", "streamed"), share(list(product(permutations(Dialect, 2), (False, True))), test=8))
def test_a_session_goes_to_another_vendor_and_comes_back(
    path: Path, pair: tuple[Dialect, Dialect], streamed: bool
) -> None:
    first, second = pair
    dialects = (first, second, first, second)
    vendors = asyncio.run(talk(path, dialects, streamed=streamed))
    for dialect in pair:
        last = vendors[dialect].sent()
        turns = dialects[: 3 if dialect is first else 4]
        for turn, other in enumerate(turns, 1):
            was_said = [f"Question {turn}", f"no{turn}", str(turn + 100)]
            if turn < len(turns):
                was_said.append(f"Done {turn}")
            assert all(text in last for text in was_said), (turn, other)
            assert (seal_in(turn, other) in last) == (dialect is other or not seal_in(turn, other)), (turn, other)
            if dialect is not other and (thought := thought_in(turn, other)):
                assert thought not in last


def test_a_session_that_went_around_is_sent_whole_to_everybody(path: Path) -> None:
    dialects = (*Dialect, *Dialect)
    vendors = asyncio.run(talk(path, dialects, streamed=False))
    for place, dialect in enumerate(Dialect):
        last = vendors[dialect].sent()
        earlier = range(1, len(Dialect) + place + 1)
        assert all(f"Question {turn}" in last and f"Done {turn}" in last for turn in earlier)
        seals = [seal_in(turn, other) for turn, other in enumerate(dialects[: len(Dialect) + place + 1], 1)]
        own = [seal for seal in seals if seal and seal in last]
        assert own == [seal for seal in (seal_in(place + 1, dialect), seal_in(place + 5, dialect)) if seal]
