"""What went wrong, as errors that say who must act. No key is in any of them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Any

from pydantic import ValidationError
from pydantic_ai import exceptions as e

from weft.kernel.errors import (
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
from weft.runtime.egress.connections import CertificateError, DecodingError, TransportError
from weft.runtime.egress.credentials import Secret
from weft.runtime.egress.key_traces import KeyTraces

_LONGEST = 500
_SHORTEST_TRACE = 8
"""So many characters of a key in a row are taken out of a text; fewer give nothing away."""
_BY_CATEGORY: tuple[tuple[type[Exception], type[OutsideError]], ...] = (
    (e.ModelContextWindowExceededError, ContextTooLong),
    (e.ModelAuthenticationError, CredentialRefused),
    (e.ModelNotFoundError, ModelUnknown),
    (e.ModelQuotaExceededError, RequestRefused),
    (e.ModelRateLimitError, RateLimited),
    (e.ModelRequestTimeout, ProviderUnreachable),
    (e.ModelConnectionError, ProviderUnreachable),
    (e.ModelRequestRejectedError, RequestRefused),
    (e.ModelUnavailableError, ProviderFailed),
    (e.ModelServerError, ProviderFailed),
)
_BY_STATUS: dict[int, type[OutsideError]] = {
    401: CredentialRefused,
    403: CredentialRefused,
    404: ModelUnknown,
    408: ProviderFailed,
    409: ProviderFailed,
    425: ProviderFailed,
    429: RateLimited,
}
_LENGTH_STATUS = (400, 413, 422)
_LENGTH_WORDS = re.compile(
    r"(prompt|input|request|messages?) (is|are) too long\b|exceeds? (the )?(available |maximum |model'?s? )?"
    r"context|context (length|window|size|limit).{0,40}\bexceed|exceed\w* .{0,20}context (length|window|size|limit)|"
    r"maximum context length|too many (input |prompt )?tokens|reduce the length of the (messages|prompt)|"
    r"request (is )?too large|request exceeds the maximum size",
    re.I,
)
"""What providers say of a context that is too long and the model layer does not recognise."""
_LASTING_STATUS = (501, 505)
_LASTING = (CertificateError,)
"""What a server says, or shows, again whenever it is asked."""
_OTHERWISE: dict[bool, type[OutsideError]] = {True: ProviderFailed, False: InferenceFault}
"""Whether the model layer itself says that it is the provider's."""
_BY_CAUSE: tuple[tuple[type[Exception], type[OutsideError]], ...] = (
    (json.JSONDecodeError, ReplyMalformed),
    (ValidationError, ReplyMalformed),
    (e.UnexpectedModelBehavior, ReplyMalformed),
    (UnicodeDecodeError, ReplyMalformed),
    (DecodingError, ReplyMalformed),
    (TransportError, ProviderUnreachable),
)


def failure_of(error: Exception, provider: str, keys: Iterable[Secret] = ()) -> WeftError:
    """The error of our tree that this one stands for."""
    for cause in _causes(error):
        if isinstance(cause, WeftError):
            return cause
    kind = _kind_of(error)
    if kind is RequestRefused and _is_about_length(error):
        kind = ContextTooLong
    made = kind(f"{provider}: {redacted(_words(error), keys)}")
    if isinstance(made, OutsideError):
        made.status = getattr(error, "status_code", None)
        made.retry_after = getattr(error, "retry_after", None)
        made.lasting = made.status in _LASTING_STATUS or any(isinstance(one, _LASTING) for one in _causes(error))
    return made


def _causes(error: BaseException) -> Iterable[BaseException]:
    found: BaseException | None = error
    for _ in range(16):
        if found is None:
            return
        yield found
        found = found.__cause__ or found.__context__


def _kind_of(error: Exception) -> type[WeftError]:
    for theirs, ours in _BY_CATEGORY:
        if isinstance(error, theirs):
            return ours
    if isinstance(error, e.ModelHTTPError):
        return kind_of_status(error.status_code)
    for cause in _causes(error):
        for theirs, ours in _BY_CAUSE:
            if isinstance(cause, theirs):
                return ours
    return _OTHERWISE[isinstance(error, e.ModelAPIError)]


def _is_about_length(error: Exception) -> bool:
    """Whether a refusal says that the context is too long, in the words of a provider or a server."""
    status = getattr(error, "status_code", None)
    return status in _LENGTH_STATUS and _LENGTH_WORDS.search(_words(error)) is not None


def kind_of_status(status: int) -> type[OutsideError]:
    if status in _BY_STATUS:
        return _BY_STATUS[status]
    return ProviderFailed if status >= 500 else RequestRefused


def _words(error: Exception) -> str:
    """What the provider said, or else what the library says."""
    status = getattr(error, "status_code", None)
    words = provider_message(getattr(error, "body", None)) or str(error) or type(error).__name__
    if status is None and (reason := _reason(error)) not in words:
        words = f"{words.rstrip('.')}: {reason}"
    return f"{status}: {words}"[:_LONGEST] if status else words[:_LONGEST]


def _reason(error: Exception) -> str:
    """Why there was no connection, as whoever opens them says it: libraries above tell only that there was none."""
    found = [str(cause) for cause in _causes(error) if isinstance(cause, TransportError)]
    return next((words for words in found if words), "")


def provider_message(body: Any) -> str:
    """The message inside a provider's error, in any of the shapes that they have."""
    if isinstance(body, list) and body:
        body = body[0]
    if isinstance(body, dict):
        inner = body.get("error", body)
        found = inner.get("message") if isinstance(inner, dict) else inner
        return found if isinstance(found, str) else ""
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
