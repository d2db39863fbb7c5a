"""How a dialect asks a server, and what went wrong, as errors that say who must act.

A JSON body is posted, and a whole answer or a stream of server-sent events comes back. No key is in
any error.
"""

from __future__ import annotations

import asyncio
import json
import re
from codecs import BOM_UTF8
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Iterable, Iterator, Mapping
from contextlib import aclosing, asynccontextmanager, suppress
from email.utils import parsedate_to_datetime
from typing import Any

import msgspec
import orjson
from msgspec import DecodeError, Struct

from weft.kernel.errors import (
    Action,
    ContextTooLong,
    CredentialRefused,
    InferenceFault,
    ModelUnknown,
    OutsideError,
    ProviderFailed,
    ProviderUnreachable,
    RateLimited,
    ReplyMalformed,
    RequestRefused,
    WeftError,
)
from weft.runtime.egress.connections import CertificateError, Client, DecodingError, TransportError, TransportTimeout
from weft.runtime.egress.credentials import KeyTraces, Secret

# --- What went wrong, as errors that say who must act.

_LONGEST = 500
_SHORTEST_TRACE = 8
"""So many characters of a key in a row are taken out of a text; fewer give nothing away."""
_BY_STATUS: dict[int, type[OutsideError]] = {
    401: CredentialRefused,
    403: CredentialRefused,
    404: ModelUnknown,
    408: ProviderFailed,
    409: ProviderFailed,
    425: ProviderFailed,
    429: RateLimited,
}
_QUOTA_CODES = frozenset(
    "insufficient_quota billing_hard_limit_reached credit_balance_exhausted organization_spend_limit_exceeded"
    " project_spend_limit_exceeded organization_usage_limit_exceeded billing_error".split()
)
"""The account has nothing left: waiting does not help, whatever the status."""
_KIND_BY_CODE: dict[str, type[OutsideError]] = {
    "model_not_found": ModelUnknown,
    "invalid_api_key": CredentialRefused,
    "rate_limit_error": RateLimited,
}
_STATUS_BY_CODE = {
    **dict.fromkeys(_QUOTA_CODES, 429),
    "rate_limit_exceeded": 429,
    "too_many_requests": 429,
    "context_length_exceeded": 400,
    "service_unavailable": 503,
    "service_unavailable_error": 503,
    "server_is_overloaded": 503,
    "overloaded": 503,
    "server_error": 500,
    "invalid_request_error": 400,
    "authentication_error": 401,
    "billing_error": 402,
    "permission_error": 403,
    "not_found_error": 404,
    "request_too_large": 413,
    "rate_limit_error": 429,
    "api_error": 500,
    "timeout_error": 504,
    "overloaded_error": 529,
}
"""The status that an error has which is told within an answer."""
_FLAGS = frozenset({"flagged_input", "reasons"})
_LENGTH_PHRASES = ("maximum context length", "reduce the length of the messages")
_LENGTH_STATUS = (400, 413, 422)
_LENGTH_WORDS = re.compile(
    r"(prompt|input|request|messages?) (is|are) too long\b|exceeds? (the )?(available |maximum |model'?s? )?"
    r"context|context (length|window|size|limit).{0,40}\bexceed|exceed\w* .{0,20}context (length|window|size|limit)|"
    r"maximum context length|token count.{0,30} exceeds|too many (input |prompt )?tokens|"
    r"reduce the length of the (messages|prompt)|"
    r"request (is )?too large|request exceeds the maximum size",
    re.I,
)
"""What providers and servers say of a context that is too long."""
_STATUS_CODE = re.compile("[45][0-9]{2}")
_LASTING_STATUS = (501, 505)


class WebPageAnswered(Exception):
    """A server says that all is well, and answers with a web page: a proxy, a page to sign in, or another address."""

    def __init__(self) -> None:
        super().__init__("it answered with a web page, not with JSON")


_LASTING = (CertificateError, WebPageAnswered)
"""What a server says, or shows, again whenever it is asked."""
_BY_CAUSE: tuple[tuple[type[Exception], type[OutsideError]], ...] = (
    (json.JSONDecodeError, ReplyMalformed),
    (DecodeError, ReplyMalformed),
    (WebPageAnswered, ReplyMalformed),
    (UnicodeDecodeError, ReplyMalformed),
    (RecursionError, ReplyMalformed),  # lists within lists, thousands of them
    (DecodingError, ReplyMalformed),
    (TransportError, ProviderUnreachable),
)


class ServerRefusal(Exception):
    """A server refused a request, or says within its answer that it failed. `status` is None where it gave none."""

    def __init__(
        self,
        status: int | None,
        body: Any,
        retry_after: float | None = None,
        kind: type[OutsideError] | None = None,
    ) -> None:
        super().__init__(provider_message(body))
        self.status, self.body, self.retry_after = status, body, retry_after
        self.kind = kind or _kind_of_refusal(status, body)

    @classmethod
    def within(cls, error: Any) -> ServerRefusal:
        """What an answer that had begun well says of its failure; it has the status that it would have had before."""
        fields = error if isinstance(error, dict) else {}
        code, kind = (str(fields.get(name) or "") for name in ("code", "type"))
        status = _STATUS_BY_CODE.get(code) or _STATUS_BY_CODE.get(kind)
        if status is None and _STATUS_CODE.fullmatch(code):  # gateways write the status itself
            status = int(code)
        return cls(status, {"error": error})


def _kind_of_refusal(status: int | None, body: Any) -> type[OutsideError]:
    inner = body.get("error", body) if isinstance(body, dict) else None
    fields = inner if isinstance(inner, dict) else {}
    codes = {fields[name] for name in ("code", "type") if isinstance(fields.get(name), str)}
    words = provider_message(body).lower()
    if codes & _QUOTA_CODES or "credit balance is too low" in words:
        return RequestRefused
    if "context_length_exceeded" in codes or any(phrase in words for phrase in _LENGTH_PHRASES):
        return ContextTooLong
    if any("overloaded" in code or "over capacity" in code for code in codes):
        return ProviderFailed
    for code, kind in _KIND_BY_CODE.items():
        if code in codes:
            return kind
    if status == 403 and isinstance(metadata := fields.get("metadata"), dict) and metadata.keys() & _FLAGS:
        return RequestRefused  # what was asked was refused, and not the key
    return ProviderFailed if status is None else kind_of_status(status)


def failure_of(error: Exception, provider: str, keys: Iterable[Secret] = ()) -> WeftError:
    """The error of our tree that this one stands for."""
    for cause in _causes(error):
        if isinstance(cause, WeftError):
            return cause
    kind = _kind_of(error)
    if kind is RequestRefused and _is_about_length(error):
        kind = ContextTooLong
    hint = Action.CHECK_BASE_URL.of(provider=provider) if isinstance(error, WebPageAnswered) else ""
    failure = kind(f"{provider}: {redacted(_error_text(error), keys)}", hint)
    if isinstance(failure, OutsideError):
        if isinstance(error, ServerRefusal):
            failure.status, failure.retry_after = error.status, error.retry_after
        failure.lasting = failure.status in _LASTING_STATUS or any(
            isinstance(cause, _LASTING) for cause in _causes(error)
        )
    return failure


def _causes(error: BaseException) -> Iterable[BaseException]:
    cause: BaseException | None = error
    for _ in range(16):
        if cause is None:
            return
        yield cause
        cause = cause.__cause__ or cause.__context__


def _kind_of(error: Exception) -> type[WeftError]:
    if isinstance(error, ServerRefusal):
        return error.kind
    for cause in _causes(error):
        for theirs, ours in _BY_CAUSE:
            if isinstance(cause, theirs):
                return ours
    return InferenceFault


def _is_about_length(error: Exception) -> bool:
    """Whether a refusal says that the context is too long, in the words of a provider or a server."""
    status = getattr(error, "status", None)
    return status in _LENGTH_STATUS and _LENGTH_WORDS.search(_error_text(error)) is not None


def kind_of_status(status: int) -> type[OutsideError]:
    if status in _BY_STATUS:
        return _BY_STATUS[status]
    return ProviderFailed if status >= 500 else RequestRefused


def _error_text(error: Exception) -> str:
    """What the provider said, or else what the library says."""
    status = error.status if isinstance(error, ServerRefusal) else None
    words = str(error) or ("it gave no reason" if status else type(error).__name__)
    if isinstance(error, TransportTimeout):
        words = "the request timed out"
    if status is None and (reason := _connection_fault(error)) not in words:
        words = f"{words.rstrip('.')}: {reason}"
    return f"{status}: {words}"[:_LONGEST] if status else words[:_LONGEST]


def _connection_fault(error: Exception) -> str:
    """Why there was no connection, as whoever opens them says it: libraries above tell only that there was none."""
    reasons = [str(cause) for cause in _causes(error) if isinstance(cause, TransportError)]
    return next((words for words in reasons if words), "")


def provider_message(body: Any) -> str:
    """The message inside a provider's error, in any of the shapes that they have."""
    if isinstance(body, list) and body:
        body = body[0]
    if isinstance(body, dict):
        inner = body.get("error", body)
        message = inner.get("message") if isinstance(inner, dict) else inner
        return message if isinstance(message, str) else ""
    return body if isinstance(body, str) else ""


def redacted(text: str, keys: Iterable[Secret]) -> str:
    """A text without a key in it, nor the beginning or the end of one, in any of the forms that it is written in."""
    keys = list(keys)
    text = KeyTraces(keys).hidden_in(text)
    for key in keys:
        value = key.reveal()
        for length in range(len(value), _SHORTEST_TRACE - 1, -1):
            text = text.replace(value[:length], "…").replace(value[-length:], "…")
    return text


def retry_after(headers: Any) -> float | None:
    """How many seconds a server wants to be left alone for: as a count, or as a time beside the one it says it is."""
    try:
        return max(0.0, float(headers.get("retry-after-ms", "")) / 1000)
    except ValueError:
        header = headers.get("retry-after")
    if header is None:
        return None
    try:
        return max(0.0, float(header))
    except ValueError:
        pass
    try:
        return max(
            0.0, (parsedate_to_datetime(header) - parsedate_to_datetime(headers.get("date", ""))).total_seconds()
        )
    except (ValueError, TypeError):  # neither: as if it had said nothing
        return None


# --- How a dialect asks a server: a JSON body is posted, and a whole answer or a stream of server-sent events comes
# back.

_HEADERS = {"content-type": "application/json", "user-agent": "weft"}
END_SECONDS = 0.25
"""So long the end of an answer is waited for behind its last event."""


class ServerEvent(Struct, frozen=True):
    """One event of a stream."""

    data: bytes


async def post_whole(client: Client, url: str, body: Mapping[str, Any], headers: Mapping[str, str]) -> bytes:
    """The whole answer to a body."""
    async with _post_request(client, url, body, {**headers, "accept": "application/json"}) as answer:
        content = bytes(await answer.aread())
    if _is_page(content):
        raise WebPageAnswered
    return content


@asynccontextmanager
async def post_streamed(
    client: Client, url: str, body: Mapping[str, Any], headers: Mapping[str, str]
) -> AsyncIterator[AsyncIterator[ServerEvent]]:
    """The events of the answer to a body, as they come. Raises ServerRefusal where an error came in place of them."""
    async with _post_request(client, url, body, {**headers, "accept": "text/event-stream"}) as answer:
        if answer.headers.get("content-type", "").partition(";")[0].strip().lower() == "application/json":
            _refuse_error(await answer.aread())
        async with (
            aclosing(answer.aiter_bytes()) as pieces,
            aclosing(_no_page(pieces)) as checked,
            aclosing(_events(checked)) as events,
        ):
            yield events


def _is_page(content: bytes) -> bool:
    """Whether it is markup. Neither JSON nor a stream of events begins so, whatever type a server says they have."""
    return content.removeprefix(BOM_UTF8).lstrip().startswith(b"<")


async def _no_page(pieces: AsyncIterable[bytes]) -> AsyncGenerator[bytes, None]:
    """The pieces of a stream. Raises WebPageAnswered where they begin as a page."""
    begun = b""
    is_begun = False
    async for piece in pieces:
        if not is_begun:
            begun += piece
            is_begun = bool(begun.removeprefix(BOM_UTF8).strip())
            if is_begun and _is_page(begun):
                raise WebPageAnswered
        yield piece


def _refuse_error(content: bytes) -> None:
    """Some servers tell an error with a status that says all is well."""
    body = _read_body(content)
    if isinstance(body, dict) and body.get("error"):
        raise ServerRefusal.within(body["error"])


async def read_to_end(events: AsyncIterator[ServerEvent]) -> None:
    """Behind the last event the end of the answer is read, or its connection could not be used again. A server that
    does not end it, or breaks off there, has answered all the same."""
    with suppress(TimeoutError, TransportError, DecodingError):
        async with asyncio.timeout(END_SECONDS):
            async for _ in events:
                pass


@asynccontextmanager
async def _post_request(
    client: Client, url: str, body: Mapping[str, Any], headers: Mapping[str, str]
) -> AsyncIterator[Any]:
    request = client.build_request("POST", url, content=encoded_body(body), headers={**_HEADERS, **headers})
    answer = await client.send(request, stream=True)
    try:
        if not 200 <= answer.status_code < 300:
            raise _refusal(answer.status_code, await answer.aread(), answer.headers)
        yield answer
    finally:
        await answer.aclose()


def encoded_body(body: Mapping[str, Any]) -> bytes:
    try:
        return orjson.dumps(body)
    except TypeError:  # integers of more than 64 bits, lone surrogates
        return json.dumps(body, separators=(",", ":")).encode()


def _refusal(status: int, content: bytes, headers: Mapping[str, str]) -> ServerRefusal:
    return ServerRefusal(status, _read_body(content), retry_after(headers))


def _read_body(content: bytes) -> Any:
    """What a server says, or its text where it is no JSON, or nested too deep."""
    try:
        return msgspec.json.decode(content)
    except (msgspec.DecodeError, RecursionError):
        return content.decode("utf-8", "replace")


class EventReader:
    """Reads server-sent events from pieces of a stream, as their standard says. An event that is not ended by an empty
    line is none. Only bytes are looked at: a text may hold other separators of lines."""

    def __init__(self) -> None:
        self._begun: list[bytes] = []
        """The pieces of a line that has not ended."""
        self._after_return = False
        """Whether the last line ended with a CR: a LF that comes next belongs to it."""
        self._is_first = True
        """Whether no line was read yet: only there a byte order mark is none of its letters."""
        self._data: list[bytes] = []

    def feed(self, piece: bytes) -> Iterator[ServerEvent]:
        """The events that end with this piece."""
        for line in self._lines(piece):
            if not line:
                if self._data:
                    yield ServerEvent(b"\n".join(self._data))
                self._data = []
                continue
            field, _, value = line.partition(b":")
            if field == b"data":
                self._data.append(value.removeprefix(b" "))

    def _lines(self, piece: bytes) -> list[bytes]:
        if self._after_return and piece:
            piece, self._after_return = piece.removeprefix(b"\n"), False
        if not (b"\n" in piece or b"\r" in piece):
            self._begun.append(piece)
            return []
        self._after_return = piece.endswith(b"\r")
        whole = b"".join((*self._begun, piece)).replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        if self._is_first:
            whole, self._is_first = whole.removeprefix(BOM_UTF8), False
        *lines, rest = whole.split(b"\n")
        self._begun = [rest]
        return lines


async def _events(pieces: AsyncIterable[bytes]) -> AsyncGenerator[ServerEvent, None]:
    reader = EventReader()
    async for piece in pieces:
        for event in reader.feed(piece):
            yield event
