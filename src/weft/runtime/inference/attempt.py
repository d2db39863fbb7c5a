"""One attempt: a route is opened, the model is asked once, and the whole reply comes back, or an error.

A reply counts only if it is whole: a stream that stops without saying that it has ended is cut, whatever had come.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from msgspec import UNSET, structs

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
from weft.runtime.egress.connections import Seen
from weft.runtime.egress.credentials import KeyTraces, Secret, StreamedText
from weft.runtime.egress.execution_context import ExecutionContext
from weft.runtime.inference.dialects.dialect_port import ModelAnswer, ModelQuestion, OnPiece, Speaker, usage_of
from weft.runtime.inference.dialects.server_answers import failure_of
from weft.runtime.inference.dialects.speakers import KeptConversations, Speakers
from weft.runtime.inference.model_requests import Dialect, InferenceRequest, ModelSettings, Parameters, Route
from weft.runtime.replies import Finish, OnToken, Reply, ReplyToken, TokenKind


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
    texts: list[str] = field(default_factory=list)
    """What came of the answer's text, piece by piece."""
    first_token_ms: int | None = None
    begun: float = 0.0

    @property
    def partial(self) -> str:
        return "".join(self.texts)

    def ms(self) -> int:
        return round((self.clock.monotonic() - self.begun) * 1000)


async def ask(asked: Asked, context: ExecutionContext, speakers: Speakers, conversations: KeptConversations) -> Reply:
    """Put the question. Whatever is raised is of our tree, and carries what had come of the reply."""
    asked.begun = asked.clock.monotonic()
    headers = dict(asked.route.own_keys)
    for slot in asked.route.keys:
        secret = await context.credential(slot.credential, asked.route.url)
        asked.keys.append(secret)
        headers[slot.header] = Secret(slot.before + secret.reveal())
    asked.traces = KeyTraces(asked.keys)
    asked.streams = {kind: StreamedText(asked.traces) for kind in TokenKind}
    with speakers.lent(asked.route, asked.model.provider, headers) as (speaker, asked.seen):
        return await _answered(asked, speaker, conversations)


async def _answered(asked: Asked, speaker: Speaker, conversations: KeptConversations) -> Reply:
    route, images = asked.route, asked.model.takes_images
    conversation = conversations.translate(asked.request.messages, route.dialect, images=images)
    if route.dialect is Dialect.GOOGLE and conversation.has_far_images:
        raise InvalidInput("this provider does not fetch images", "give the image itself, as a data: URL")
    if asked.parameters.min_p is not UNSET and not route.takes_min_p:
        raise InvalidInput(f"{asked.model.provider.id} does not take min_p", "leave minP out of the model's parameters")
    question = ModelQuestion(
        model=route.model, conversation=conversation, parameters=asked.parameters, tools=asked.request.tools
    )
    failed: BaseException
    try:
        answer = await speaker.ask(question, None if asked.on_token is None else _emitting(asked))
        for kind, stream_text in asked.streams.items():
            _emit_token(asked, kind, stream_text.end())
        return _reply(asked, answer)
    except _Raised as raised:
        failed = raised.error
    except Exception as error:  # whatever the libraries raise becomes an error that says who must act
        failed = _with_details(asked, failure_of(error, asked.model.provider.id, asked.keys))
    raise failed  # out here, so that theirs, which quotes what was sent and answered, does not hang on it


def _emitting(asked: Asked) -> OnPiece:
    return lambda kind, text: _emit_token(asked, kind, asked.streams[kind].add(text))


class _Raised(Exception):
    """Inside: the caller's own code raised, which is nobody's failure but theirs."""

    def __init__(self, error: BaseException) -> None:
        super().__init__()
        self.error = error


def _emit_token(asked: Asked, kind: TokenKind, text: str) -> None:
    if not text or asked.on_token is None:
        return
    if asked.first_token_ms is None:
        asked.first_token_ms = asked.ms()
    if kind is TokenKind.TEXT:
        asked.texts.append(text)
    try:
        asked.on_token(ReplyToken(text, kind, asked.attempt))
    except BaseException as error:  # it is passed on as it is, past all that judges the provider
        raise _Raised(error) from None


def _reply(asked: Asked, answer: ModelAnswer) -> Reply:
    if answer.has_failed:
        raise ReplyMalformed(f"{asked.model.provider.id}: the model ended with an error")
    if answer.finish is None:  # it just stopped
        raise ReplyCut(f"{asked.model.provider.id}: the reply ended before its end")
    usage, fault = usage_of(answer.tokens)
    if not answer.parts and answer.finish is Finish.STOP and not (usage and usage.output_tokens):
        raise ReplyMalformed(f"{asked.model.provider.id}: the reply is empty")
    reply = Reply(
        parts=answer.parts,
        finish=answer.finish,
        model_id=asked.model.id,
        model=answer.model or asked.route.model,
        provider=asked.model.provider.id,
        usage=usage,
        usage_fault=fault,
        request_id=asked.seen.request_id or answer.answer_id,
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
