"""How pydantic-ai is asked what Weft was asked; `oracle.py` loads it when the first test does so."""

from __future__ import annotations

from typing import Any

import httpx2
from anthropic import AsyncAnthropic
from msgspec import structs
from openai import AsyncOpenAI
from pydantic_ai import exceptions as e
from pydantic_ai.direct import model_request, model_request_stream
from pydantic_ai.models import Model
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.anthropic import AnthropicProvider
from pydantic_ai.providers.openai import OpenAIProvider
from pydantic_ai.providers.openai_compatible import OpenAICompatibleProvider

from tests.runtime.inference.oracle import URL, Answer, Asking, Respond, failed, shown_piece
from weft.kernel.errors import OutsideError
from weft.runtime.inference.dialects.dialect_port import TokenCounts, offered_names, usage_of
from weft.runtime.inference.dialects.google import (
    _BY_CATEGORY,
    GoogleConversation,
    _counts,
    _text_pieces,
    read_parts,
    to_settings,
    to_tools,
)
from weft.runtime.inference.dialects.server_answers import failure_of, kind_of_status
from weft.runtime.inference.model_requests import Dialect, ModelParameters


async def ask(asking: Asking, respond: Respond, *, streamed: bool) -> Answer:
    conversation = GoogleConversation(images=True)
    conversation.extend(asking.messages)
    more: dict[str, Any] = {
        "model_settings": _settings(asking.parameters),
        "model_request_parameters": to_tools(asking.tools),
    }
    pieces: list[str] = []
    async with httpx2.AsyncClient(transport=httpx2.MockTransport(respond)) as client:
        model = _oracle(asking.dialect, asking.model, client, compatible=asking.compatible)
        messages = conversation.wire_messages().messages
        try:
            if streamed:
                async with model_request_stream(model, messages, **more) as stream:
                    async for event in stream:
                        pieces += _event_pieces(event)
                    response = stream.get()
            else:
                response = await model_request(model, messages, **more)
            parts = read_parts(response.parts, offered_names(asking.tools))
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


def _event_pieces(event: Any) -> list[str]:
    return [shown_piece(kind, text) for kind, text in _text_pieces(event)]


def _oracle_counts(usage: Any) -> TokenCounts | None:
    counts = _counts(usage)
    details = usage.details.get("reasoning_tokens", 0)
    if counts is None or counts.reasoning or not isinstance(details, int):
        return counts
    return structs.replace(counts, reasoning=details)


def _failed_oracle(error: e.ModelAPIError) -> Answer:
    status = getattr(error, "status_code", None)
    kind: type[OutsideError] | None = next((ours for theirs, ours in _BY_CATEGORY if isinstance(error, theirs)), None)
    if kind is None and status is not None:
        kind = kind_of_status(status)
    return Answer(kind=kind, status=status)


def _settings(parameters: ModelParameters) -> Any:
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
