"""pydantic-ai over the same protocols, to compare ours with: what it sends, and what it takes from an answer."""

from __future__ import annotations

import asyncio
import json
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import httpx2
from anthropic import AsyncAnthropic
from msgspec import Struct, structs
from openai import AsyncOpenAI
from pydantic_ai import exceptions as e
from pydantic_ai.direct import model_request, model_request_stream
from pydantic_ai.models import Model
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.anthropic import AnthropicProvider
from pydantic_ai.providers.openai import OpenAIProvider
from pydantic_ai.providers.openai_compatible import OpenAICompatibleProvider

from weft.kernel.errors import OutsideError, WeftError
from weft.kernel.events import Usage
from weft.ledger.model import Message, NewMessage, Part
from weft.runtime.inference.dialects.dialect_port import ModelQuestion, TokenCounts, offered_names, usage_of
from weft.runtime.inference.dialects.google import (
    _BY_CATEGORY,
    GoogleConversation,
    _counts,
    _pieces,
    read_parts,
    to_settings,
    to_tools,
)
from weft.runtime.inference.dialects.server_answers import failure_of, kind_of_status
from weft.runtime.inference.dialects.speakers import conversation_in, speaker
from weft.runtime.inference.model_requests import Dialect, Parameters, Route, ToolSpec
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
    parameters: Parameters = Parameters()
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
        route = Route(dialect=self.dialect, url=URL, model=self.model, keys=(), compatible=self.compatible)
        async with httpx2.AsyncClient(transport=httpx2.MockTransport(respond)) as client:
            try:
                answer = await speaker(route, client).ask(
                    question, (lambda kind, text: pieces.append(_piece(kind, text))) if streamed else None
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
            return asyncio.run(self._by_oracle(respond, streamed))

    async def _by_oracle(self, respond: Respond, streamed: bool) -> Answer:
        conversation = GoogleConversation(images=True)
        conversation.extend(self.messages)
        more: dict[str, Any] = {
            "model_settings": _settings(self.parameters),
            "model_request_parameters": to_tools(self.tools),
        }
        pieces: list[str] = []
        async with httpx2.AsyncClient(transport=httpx2.MockTransport(respond)) as client:
            model = _oracle(self.dialect, self.model, client, compatible=self.compatible)
            messages = conversation.wire_messages().messages
            try:
                if streamed:
                    async with model_request_stream(model, messages, **more) as stream:
                        async for event in stream:
                            pieces += _event_pieces(event)
                        response = stream.get()
                else:
                    response = await model_request(model, messages, **more)
                parts = read_parts(response.parts, offered_names(self.tools))
            except e.ModelAPIError as error:
                return _failed_oracle(error)
            except Exception as error:  # the comparison is about it
                return failed(failure_of(error, "there"))
        details = response.provider_details or {}
        is_whole = details.get("finish_reason") is not None and response.state == "complete"
        reason = response.finish_reason if is_whole else None
        return Answer(
            parts=parts,
            finish=None if reason == "error" else reason,
            has_failed=reason == "error",
            model=response.model_name or "",
            answer_id=response.provider_response_id,
            usage=usage_of(_oracle_counts(response.usage))[0],
            pieces="".join(pieces),
        )


def _piece(kind: TokenKind, text: str) -> str:
    return text if kind is TokenKind.TEXT else f"<{text}>"


def _event_pieces(event: Any) -> list[str]:
    return [_piece(kind, text) for kind, text in _pieces(event)]


def _oracle_counts(usage: Any) -> TokenCounts | None:
    counts = _counts(usage)
    details = usage.details.get("reasoning_tokens", 0)
    if counts is None or counts.reasoning or not isinstance(details, int):
        return counts
    return structs.replace(counts, reasoning=details)


def failed(error: WeftError) -> Answer:
    return Answer(kind=type(error), status=getattr(error, "status", None))


def _failed_oracle(error: e.ModelAPIError) -> Answer:
    status = getattr(error, "status_code", None)
    kind: type[OutsideError] | None = next((ours for theirs, ours in _BY_CATEGORY if isinstance(error, theirs)), None)
    if kind is None and status is not None:
        kind = kind_of_status(status)
    return Answer(kind=kind, status=status)


def _settings(parameters: Parameters) -> Any:
    settings = to_settings(parameters)
    if "min_p" in settings:
        settings["extra_body"] = {"min_p": settings.pop("min_p")}
    return settings


def _oracle(dialect: Dialect, name: str, client: httpx2.AsyncClient, *, compatible: bool) -> Model:
    if dialect is Dialect.ANTHROPIC:
        anthropic = AsyncAnthropic(api_key="none", base_url=URL, http_client=client, max_retries=0)
        return AnthropicModel(name, provider=AnthropicProvider(anthropic_client=anthropic))
    openai = AsyncOpenAI(api_key="none", base_url=URL, http_client=client, max_retries=0)
    home = (
        OpenAICompatibleProvider("there", openai_client=openai) if compatible else OpenAIProvider(openai_client=openai)
    )
    kind = OpenAIChatModel if dialect is Dialect.OPENAI_CHAT else OpenAIResponsesModel
    return kind(name, provider=home)


def responding(status: int, body: bytes, content_type: str = "application/json") -> Respond:
    return lambda _: httpx2.Response(status, content=body, headers={"content-type": content_type})


def sent_bodies(asking: Asking, *, streamed: bool = False) -> tuple[Any, Any]:
    """What Weft sends, and what the oracle does."""
    bodies: list[Any] = []

    def refuse(request: httpx2.Request) -> httpx2.Response:
        bodies.append(json.loads(request.content))
        return httpx2.Response(418, json={"error": {"message": "no"}})

    asking.by_weft(refuse, streamed=streamed)
    asking.by_oracle(refuse, streamed=streamed)
    weft, oracle = bodies
    return weft, oracle
