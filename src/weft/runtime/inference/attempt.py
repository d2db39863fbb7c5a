"""One attempt: a route is opened, the model is asked once, and the whole reply comes back, or an error.

A reply counts only if it is whole: a stream that stops without saying that it has ended is cut, whatever had come.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, cast

from msgspec import UNSET, structs
from pydantic_ai import messages as m
from pydantic_ai._warnings import UsageExtractionFailedWarning
from pydantic_ai.direct import model_request, model_request_stream
from pydantic_ai.models import Model, ModelRequestParameters
from pydantic_ai.settings import ModelSettings as LayerSettings

from weft.kernel.clock import Clock
from weft.kernel.errors import (
    InvalidInput,
    OutsideError,
    ProviderUnreachable,
    ReplyCut,
    ReplyMalformed,
    RequestRefused,
    WeftError,
)
from weft.runtime.context import ExecutionContext
from weft.runtime.egress.connections import Seen
from weft.runtime.egress.credentials import Secret
from weft.runtime.egress.key_traces import KeyTraces, StreamedText
from weft.runtime.inference.conversations import KeptConversations
from weft.runtime.inference.dialects import Speakers
from weft.runtime.inference.failures import failure_of
from weft.runtime.inference.replies import Finish, Reply, ReplyToken, TokenKind
from weft.runtime.inference.routes import Dialect, Route
from weft.runtime.inference.settings import InferenceRequest, ModelSettings, Parameters, count_images
from weft.runtime.inference.translation import from_model, has_far_images, to_settings, to_tools, usage_of

OnToken = Callable[[ReplyToken], None]


@dataclass
class Asked:
    """A question that is about to be put, and what is known of its answer."""

    request: InferenceRequest
    model: ModelSettings
    route: Route
    parameters: Parameters
    attempt: int
    on_token: OnToken | None
    clock: Clock
    keys: list[Secret] = field(default_factory=list)
    traces: KeyTraces = field(default_factory=lambda: KeyTraces(()))
    seen: Seen = field(default_factory=Seen)
    streams: dict[TokenKind, StreamedText] = field(default_factory=dict)
    partial: str = ""
    first_token_ms: int | None = None
    begun: float = 0.0

    def ms(self) -> int:
        return round((self.clock.monotonic() - self.begun) * 1000)


async def ask(asked: Asked, context: ExecutionContext, speakers: Speakers, conversations: KeptConversations) -> Reply:
    """Put the question. Whatever is raised is of our tree, and carries what had come of the reply."""
    asked.begun = asked.clock.monotonic()
    # a usage that cannot be read is told in the reply, not on the terminal
    warnings.filterwarnings("ignore", category=UsageExtractionFailedWarning)
    # a library's opinion of a model's age is no failure, nor a line in the middle of an answer
    warnings.filterwarnings("ignore", message="The model '.*' is deprecated", category=DeprecationWarning)
    headers = dict(asked.route.own_keys)
    for slot in asked.route.keys:
        secret = await context.credential(slot.credential, asked.route.url)
        asked.keys.append(secret)
        headers[slot.header] = Secret(slot.before + secret.reveal())
    asked.traces = KeyTraces(asked.keys)
    asked.streams = {kind: StreamedText(asked.traces) for kind in TokenKind}
    with speakers.lent(asked.route, asked.model.provider, headers) as (model, asked.seen):
        return await _answered(asked, model, conversations)


async def _answered(asked: Asked, model: Model, conversations: KeptConversations) -> Reply:
    messages = conversations.translate(asked.request.messages, images=asked.model.takes_images)
    if asked.route.dialect is Dialect.GOOGLE and count_images(asked.request.messages) and has_far_images(messages):
        raise InvalidInput("this provider does not fetch images", "give the image itself, as a data: URL")
    if asked.parameters.min_p is not UNSET and not asked.route.takes_min_p:
        raise InvalidInput(f"{asked.model.provider.id} does not take min_p", "leave minP out of the model's parameters")
    settings = cast(LayerSettings, to_settings(asked.parameters))
    tools = to_tools(asked.request.tools)
    failed: BaseException
    try:
        whole = _whole if asked.on_token is None else _streamed
        return _reply(asked, await whole(asked, model, messages, settings, tools))
    except _Raised as raised:
        failed = raised.error
    except Exception as error:  # whatever the libraries raise becomes an error that says who must act
        failed = _with_details(asked, failure_of(error, asked.model.provider.id, asked.keys))
    raise failed  # out here, so that theirs, which quotes what was sent and answered, does not hang on it


class _Raised(Exception):
    """Inside: the caller's own code raised, which is nobody's failure but theirs."""

    def __init__(self, error: BaseException) -> None:
        super().__init__()
        self.error = error


async def _whole(
    asked: Asked,
    model: Model,
    messages: list[m.ModelMessage],
    settings: LayerSettings,
    tools: ModelRequestParameters,
) -> m.ModelResponse:
    return await model_request(model, messages, model_settings=settings, model_request_parameters=tools)


async def _streamed(
    asked: Asked,
    model: Model,
    messages: list[m.ModelMessage],
    settings: LayerSettings,
    tools: ModelRequestParameters,
) -> m.ModelResponse:
    opened = model_request_stream(model, messages, model_settings=settings, model_request_parameters=tools)
    async with opened as stream:
        async for event in stream:
            if (token := _token_of(event, asked.attempt)) is not None:
                _emit_token(asked, token.kind, asked.streams[token.kind].add(token.text))
        for kind, stream_text in asked.streams.items():
            _emit_token(asked, kind, stream_text.end())
        return stream.get()


def _emit_token(asked: Asked, kind: TokenKind, text: str) -> None:
    if not text or asked.on_token is None:
        return
    if asked.first_token_ms is None:
        asked.first_token_ms = asked.ms()
    if kind is TokenKind.TEXT:
        asked.partial += text
    try:
        asked.on_token(ReplyToken(text, kind, asked.attempt))
    except BaseException as error:  # it is passed on as it is, past all that judges the provider
        raise _Raised(error) from None


def _token_of(event: Any, attempt: int) -> ReplyToken | None:
    match event:
        case m.PartStartEvent(part=m.TextPart(content=text)) if text:
            return ReplyToken(text, TokenKind.TEXT, attempt)
        case m.PartDeltaEvent(delta=m.TextPartDelta(content_delta=text)) if text:
            return ReplyToken(text, TokenKind.TEXT, attempt)
        case m.PartStartEvent(part=m.ThinkingPart(content=text)) if text:
            return ReplyToken(text, TokenKind.THINKING, attempt)
        case m.PartDeltaEvent(delta=m.ThinkingPartDelta(content_delta=text)) if text:
            return ReplyToken(text, TokenKind.THINKING, attempt)
        case _:
            return None


def _reply(asked: Asked, response: m.ModelResponse) -> Reply:
    # the layer takes a stream that just stops for ended
    provider_reason = (response.provider_details or {}).get("finish_reason")
    if provider_reason is None or response.finish_reason is None or response.state != "complete":
        raise ReplyCut(f"{asked.model.provider.id}: the reply ended before its end")
    if response.finish_reason == "error":
        raise ReplyMalformed(f"{asked.model.provider.id}: the model ended with an error")
    usage, fault = usage_of(response.usage)
    parts = from_model(response.parts, asked.request.tools)
    if not parts and response.finish_reason == "stop" and not (usage and usage.output_tokens):
        raise ReplyMalformed(f"{asked.model.provider.id}: the reply is empty")
    reply = Reply(
        parts=parts,
        finish=Finish(response.finish_reason),
        model_id=asked.model.id,
        model=response.model_name or asked.route.model,
        provider=asked.model.provider.id,
        usage=usage,
        usage_fault=fault,
        request_id=asked.seen.request_id or response.provider_response_id,
        latency_ms=asked.ms(),
        first_token_ms=asked.first_token_ms,
        situation=asked.request.situation,
    )
    return _without_keys(asked.traces, reply)


def _without_keys(traces: KeyTraces, reply: Reply) -> Reply:
    """What the server said, without the keys that it was sent; what stands in the reply from here is left as it is."""
    theirs = {name: getattr(reply, name) for name in ("parts", "model", "usage_fault", "request_id")}
    return structs.replace(reply, **traces.hidden_in_value(theirs))


def _with_details(asked: Asked, error: WeftError) -> WeftError:
    if asked.seen.status is not None and 300 <= asked.seen.status < 400:
        error = RequestRefused(f"{asked.model.provider.id}: {asked.seen.status}, it is elsewhere", "correct its URL")
    elif isinstance(error, ProviderUnreachable) and _had_begun(asked) and "timed out" not in str(error).lower():
        error = ReplyCut(str(error))
    if isinstance(error, OutsideError):
        held = asked.streams[TokenKind.TEXT].end() if asked.streams else ""
        error.partial = asked.traces.hidden_in(error.partial or asked.partial + held)
        error.request_id = asked.traces.hidden_in_value(error.request_id or asked.seen.request_id)
        error.status = error.status or asked.seen.status
    return error


def _had_begun(asked: Asked) -> bool:
    return asked.seen.status is not None and asked.seen.status < 400
