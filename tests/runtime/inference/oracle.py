"""pydantic-ai over the same protocols, to compare ours with: what it sends, and what it takes from an answer.

It and the vendors' libraries take seconds to load: that happens once it is asked.
"""

from __future__ import annotations

import asyncio
import json
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import httpx2
from msgspec import Struct

from weft.kernel.errors import WeftError
from weft.kernel.events import Usage
from weft.ledger.model import Message, NewMessage, Part
from weft.runtime.inference.dialects.dialect_port import AnswerMeter, ModelQuestion, usage_of
from weft.runtime.inference.dialects.model_clients import conversation_in, model_client
from weft.runtime.inference.dialects.server_answers import failure_of
from weft.runtime.inference.model_requests import Dialect, ModelParameters, ModelRoute, ToolSpec
from weft.runtime.replies import TokenKind

URL = "http://server.invalid"
Respond = Callable[[httpx2.Request], httpx2.Response]


class Answer(Struct, frozen=True, kw_only=True):
    """What is taken from an answer. `kind` is that of an error, where it is one."""

    parts: tuple[Part, ...] = ()
    finish: str | None = None
    has_failed: bool = False
    model: str = ""
    answer_id: str | None = None
    usage: Usage | None = None
    kind: type[WeftError] | None = None
    status: int | None = None
    pieces: str = ""


class Asking(Struct, frozen=True, kw_only=True):
    """A question, and what the server answers."""

    dialect: Dialect
    model: str = "m-1"
    compatible: bool = True
    messages: Sequence[Message | NewMessage] = ()
    parameters: ModelParameters = ModelParameters()
    tools: tuple[ToolSpec, ...] = ()

    def by_weft(self, respond: Respond, *, streamed: bool) -> Answer:
        return asyncio.run(self._by_weft(respond, streamed))

    async def _by_weft(self, respond: Respond, streamed: bool) -> Answer:
        conversation = conversation_in(self.dialect, images=True)
        conversation.extend(self.messages)
        question = ModelQuestion(
            model=self.model,
            conversation=conversation.wire_messages(),
            parameters=self.parameters,
            tools=self.tools,
        )
        pieces: list[str] = []
        route = ModelRoute(dialect=self.dialect, url=URL, model=self.model, keys=(), compatible=self.compatible)
        async with httpx2.AsyncClient(transport=httpx2.MockTransport(respond)) as client:
            try:
                answer = await model_client(route, client).ask(
                    question,
                    (lambda kind, text: pieces.append(shown_piece(kind, text))) if streamed else None,
                    AnswerMeter(),
                )
            except Exception as error:  # the comparison is about it
                return failed(failure_of(error, "there"))
        return Answer(
            parts=answer.parts,
            finish=None if answer.finish is None else str(answer.finish),
            has_failed=answer.has_failed,
            model=answer.model,
            answer_id=answer.answer_id,
            usage=usage_of(answer.tokens)[0],
            pieces="".join(pieces),
        )

    def by_oracle(self, respond: Respond, *, streamed: bool) -> Answer:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            from tests.runtime.inference.pydantic_oracle import ask

            return asyncio.run(ask(self, respond, streamed=streamed))


def shown_piece(kind: TokenKind, text: str) -> str:
    return text if kind is TokenKind.TEXT else f"<{text}>"


def failed(error: WeftError) -> Answer:
    return Answer(kind=type(error), status=getattr(error, "status", None))


def responding(status: int, body: bytes, content_type: str = "application/json") -> Respond:
    return lambda _: httpx2.Response(status, content=body, headers={"content-type": content_type})


def sent_bodies(asking: Asking, *, streamed: bool = False) -> tuple[Any, Any]:
    """What Weft sends, and what the oracle does. Weft has OpenAI keep nothing, and joins what one side says."""
    bodies: list[Any] = []

    def refuse(request: httpx2.Request) -> httpx2.Response:
        bodies.append(json.loads(request.content))
        return httpx2.Response(418, json={"error": {"message": "no"}})

    asking.by_weft(refuse, streamed=streamed)
    asking.by_oracle(refuse, streamed=streamed)
    weft, oracle = bodies
    if asking.dialect is Dialect.OPENAI_RESPONSES:
        assert weft.pop("store") is False
    if asking.dialect is Dialect.ANTHROPIC:
        oracle["messages"] = joined(oracle["messages"])
        weft = without_markers(weft)
    return weft, oracle


def without_markers(body: Any) -> Any:
    """A request as it is where nothing is cached; a system of one text is that text."""
    if isinstance(body, list):
        return [without_markers(item) for item in body]
    if not isinstance(body, dict):
        return body
    plain = {name: without_markers(value) for name, value in body.items() if name != "cache_control"}
    if isinstance(system := plain.get("system"), list):
        plain["system"] = "".join(block["text"] for block in system)
    return plain


def without_blanks(blocks: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [block for block in blocks if block["type"] != "text" or block["text"].strip()]


def joined(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Messages of Anthropic's in which what one side says is one message, results first, without blank texts."""
    sides: list[dict[str, Any]] = []
    for message in messages:
        for block in message["content"]:
            if block["type"] == "tool_result":
                block["content"] = without_blanks(block["content"])
        said = without_blanks(message["content"])
        if not said and message["role"] == "assistant":
            continue
        message = {"role": message["role"], "content": said or message["content"]}
        if sides and sides[-1]["role"] == message["role"]:
            sides[-1] = {"role": message["role"], "content": [*sides[-1]["content"], *message["content"]]}
        else:
            sides.append(message)
    for message in sides:
        if message["role"] == "user":
            message["content"].sort(key=lambda block: block["type"] != "tool_result")
    return sides
