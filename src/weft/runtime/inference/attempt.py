"""One attempt: a route is opened, the model is asked once, and the whole reply comes back, or an error.

A reply counts only if it is whole: a stream that stops without saying that it has ended is cut, whatever had come.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from msgspec import UNSET, structs

from weft.kernel.clock import Clock
from weft.kernel.enums import MessageRole
from weft.kernel.errors import (
    CredentialRefused,
    InvalidInput,
    ModelUnknown,
    OutsideError,
    ProviderFailed,
    ProviderUnreachable,
    ReplyCut,
    ReplyMalformed,
    RequestRefused,
    WeftError,
)
from weft.ledger.model import OPENAI, NewMessage, sealed_metadata
from weft.runtime.egress.connections import SeenAnswer
from weft.runtime.egress.credentials import KeyTraces, Secret, StreamedText
from weft.runtime.egress.execution_context import ExecutionContext
from weft.runtime.inference.dialects.dialect_port import (
    AnswerMeter,
    ModelAnswer,
    ModelClient,
    ModelQuestion,
    OnPiece,
    is_paused,
    pause_metadata,
    usage_of,
)
from weft.runtime.inference.dialects.model_clients import KeptConversations, ModelClientPool, response_schema_fault
from weft.runtime.inference.dialects.server_answers import failure_of
from weft.runtime.inference.model_requests import (
    Dialect,
    InferenceRequest,
    ModelParameters,
    ModelRoute,
    ModelSettings,
    prompt_cache_of,
)
from weft.runtime.replies import FinishReason, OnToken, Reply, ReplyToken, TokenKind

GO_ON = NewMessage(role=MessageRole.USER, content="Go on.")
"""Behind an answer that another provider paused: no other one goes on with an answer."""


@dataclass
class PendingQuestion:
    """A question that is about to be put, and what is known of its answer."""

    request: InferenceRequest
    model: ModelSettings
    route: ModelRoute
    parameters: ModelParameters
    attempt: int
    on_token: OnToken | None
    clock: Clock
    keys: list[Secret] = field(default_factory=list)
    traces: KeyTraces = field(default_factory=lambda: KeyTraces(()))
    seen: SeenAnswer = field(default_factory=SeenAnswer)
    streams: dict[TokenKind, StreamedText] = field(default_factory=dict)
    texts: list[str] = field(default_factory=list)
    """What came of the answer's text, piece by piece."""
    first_token_ms: int | None = None
    begun: float = 0.0
    meter: AnswerMeter = field(default_factory=AnswerMeter)
    without_seals: bool = False
    """Whether it is asked without what it sealed with earlier answers."""
    has_seals: bool = False

    @property
    def partial(self) -> str:
        return "".join(self.texts)

    @property
    def has_begun(self) -> bool:
        """Whether something of an answer came."""
        return self.first_token_ms is not None

    def ms(self) -> int:
        return round((self.clock.monotonic() - self.begun) * 1000)


async def ask(
    asked: PendingQuestion, context: ExecutionContext, clients: ModelClientPool, conversations: KeptConversations
) -> Reply:
    """Put the question. Whatever is raised is of our tree, and carries what had come of the reply."""
    asked.begun = asked.clock.monotonic()
    headers = await _headers(asked, context)
    asked.streams = {kind: StreamedText(asked.traces) for kind in TokenKind}
    with clients.lent(asked.route, asked.model.provider, headers) as (model_client, asked.seen):
        return await _ask_once(asked, model_client, conversations)


async def count(
    asked: PendingQuestion, context: ExecutionContext, clients: ModelClientPool, conversations: KeptConversations
) -> int:
    """How many tokens the provider counts in the question, which it is not asked. Whatever is raised is of our tree."""
    headers = await _headers(asked, context)
    with clients.lent(asked.route, asked.model.provider, headers) as (model_client, asked.seen):
        return await _count_tokens(asked, model_client, conversations)


async def _count_tokens(asked: PendingQuestion, model_client: ModelClient, conversations: KeptConversations) -> int:
    question = _question(asked, conversations)
    try:
        return await model_client.count(question)
    except Exception as error:  # whatever the libraries raise becomes an error that says who must act
        failed = _with_details(asked, failure_of(error, asked.model.provider.id, asked.keys))
    raise failed  # out here, so that theirs, which quotes what was sent, does not hang on it


async def _headers(asked: PendingQuestion, context: ExecutionContext) -> dict[str, Secret]:
    """The headers with the keys of the route, which are looked for in all that comes back."""
    headers = dict(asked.route.own_keys)
    for slot in asked.route.keys:
        secret = await context.credential(slot.credential, asked.route.url)
        asked.keys.append(secret)
        headers[slot.header] = Secret(slot.before + secret.reveal())
    asked.traces = KeyTraces(asked.keys)
    return headers


def _question(asked: PendingQuestion, conversations: KeptConversations) -> ModelQuestion:
    route, images = asked.route, asked.model.takes_images
    vendor = "" if asked.without_seals else route.vendor
    messages = asked.request.messages
    if messages and is_paused(messages[-1]) and route.dialect is not Dialect.ANTHROPIC:
        messages = [*messages, GO_ON]
    conversation = conversations.translate(messages, route.dialect, images=images, vendor=vendor)
    asked.has_seals = conversation.has_seals
    if route.dialect is Dialect.GOOGLE and conversation.has_far_images:
        raise InvalidInput("this provider does not fetch images", "give the image itself, as a data: URL")
    if asked.parameters.min_p is not UNSET and not route.takes_min_p:
        raise InvalidInput(f"{asked.model.provider.id} does not take min_p", "leave minP out of the model's parameters")
    if asked.parameters.response_schema and (fault := response_schema_fault(asked.model)) is not None:
        raise InvalidInput(*fault)
    return ModelQuestion(
        model=route.model,
        conversation=conversation,
        parameters=asked.parameters,
        tools=asked.request.tools,
        cache=prompt_cache_of(asked.model, route.dialect),
        cache_key=asked.request.cache_key,
        forbids_storing=asked.model.vendor == OPENAI,
    )


async def _ask_once(asked: PendingQuestion, model_client: ModelClient, conversations: KeptConversations) -> Reply:
    question = _question(asked, conversations)
    failed: BaseException
    try:
        on_piece = None if asked.on_token is None else _emitting(asked)
        answer = await model_client.ask(question, on_piece, asked.meter)
        for kind, stream_text in asked.streams.items():
            _emit_token(asked, kind, stream_text.end())
        return _reply(asked, answer)
    except _Raised as raised:
        failed = raised.error
    except Exception as error:  # whatever the libraries raise becomes an error that says who must act
        failed = _with_details(asked, failure_of(error, asked.model.provider.id, asked.keys))
    raise failed  # out here, so that theirs, which quotes what was sent and answered, does not hang on it


def _emitting(asked: PendingQuestion) -> OnPiece:
    return lambda kind, text: _emit_token(asked, kind, asked.streams[kind].add(text))


class _Raised(Exception):
    """Inside: the caller's own code raised, which is nobody's failure but theirs."""

    def __init__(self, error: BaseException) -> None:
        super().__init__()
        self.error = error


def _emit_token(asked: PendingQuestion, kind: TokenKind, text: str) -> None:
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


def _reply(asked: PendingQuestion, answer: ModelAnswer) -> Reply:
    if answer.has_failed:
        raise ReplyMalformed(f"{asked.model.provider.id}: the model ended with {answer.end or 'an error'}")
    if answer.finish is None:  # it just stopped
        raise ReplyCut(f"{asked.model.provider.id}: the reply ended before its end")
    usage, fault = usage_of(answer.tokens)
    if not answer.parts and answer.finish is FinishReason.STOP and not (usage and usage.output_tokens):
        raise ReplyMalformed(f"{asked.model.provider.id}: the reply is empty")
    reply = Reply(
        parts=answer.parts,
        finish=answer.finish,
        model_id=asked.model.id,
        model=answer.model or asked.route.model,
        provider=asked.model.provider.id,
        vendor=asked.model.vendor,
        usage=usage,
        usage_fault=fault,
        request_id=asked.seen.request_id or answer.answer_id,
        latency_ms=asked.ms(),
        first_token_ms=asked.first_token_ms,
        situation=asked.request.situation,
        metadata=sealed_metadata(asked.route.vendor, answer.sealed) | pause_metadata(answer.finish),
    )
    return _without_keys(asked.traces, reply)


def _without_keys(traces: KeyTraces, reply: Reply) -> Reply:
    """What the server said, without the keys that it was sent; what stands in the reply from here is left as it is."""
    theirs = {name: getattr(reply, name) for name in ("parts", "model", "usage_fault", "request_id", "metadata")}
    hidden = traces.hidden_in_value(theirs)
    if (hidden["parts"], hidden["metadata"]) != (reply.parts, reply.metadata):
        hidden["metadata"] = pause_metadata(reply.finish)  # a seal holds for the very words that it came with
    return structs.replace(reply, **hidden)


def _with_details(asked: PendingQuestion, error: WeftError) -> WeftError:
    if asked.seen.status is not None and 300 <= asked.seen.status < 400:
        error = RequestRefused(f"{asked.model.provider.id}: {asked.seen.status}, it is elsewhere", "correct its URL")
    elif isinstance(error, ProviderUnreachable) and _had_begun(asked) and "timed out" not in str(error).lower():
        error = ReplyCut(str(error))
    if isinstance(error, CredentialRefused) and (keys := [slot.credential for slot in asked.route.keys]):
        error.say_more(f"it was asked with the key {' and '.join(map(repr, keys))}")
    elif isinstance(error, ProviderFailed) and error.retry_after:
        error.say_more(f"it wants to be left alone for {error.retry_after:g} s")
    if isinstance(error, OutsideError):
        held = asked.streams[TokenKind.TEXT].end() if asked.streams else ""
        error.partial = asked.traces.hidden_in(error.partial or asked.partial + held)
        error.request_id = asked.traces.hidden_in_value(error.request_id or asked.seen.request_id)
        error.status = error.status or asked.seen.status
    return error


_names_seals = re.compile(
    r"signature|encrypted[ _]content|could not be (?:verified|decrypted)|redacted_thinking|`thinking`"
    r"|'reasoning'|not persisted",
    re.I,
).search


def are_seals_refused(asked: PendingQuestion, error: WeftError) -> bool:
    """Whether a provider refused a request for what it is said to have sealed: another account may have got it, or it
    is too old. The same request without it may be taken."""
    is_refused = isinstance(error, RequestRefused | ModelUnknown)  # an id that is not known is "not found", too
    return asked.has_seals and is_refused and bool(_names_seals(str(error)))


def _had_begun(asked: PendingQuestion) -> bool:
    return asked.seen.status is not None and asked.seen.status < 400
