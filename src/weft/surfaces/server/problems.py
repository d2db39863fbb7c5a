"""Errors as problem+json (RFC 9457): a status, a sentence, and the codes that a program compares."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from starlette.responses import Response

from weft.kernel.errors import (
    AmbiguousName,
    BudgetSpent,
    Conflict,
    ContentGone,
    ContentTooLarge,
    Damaged,
    InUse,
    InvalidInput,
    LedgerError,
    LimitExceeded,
    NotAllowed,
    NotFound,
    NotTrusted,
    OutsideError,
    RateLimited,
    ReadOnlyLedger,
    StoreError,
    TokenRefused,
    Unsupported,
    WeftError,
    error_code,
    without_credentials,
)
from weft.surfaces.wire.forms import document
from weft.surfaces.wire.hints import phrase

MEDIA_TYPE = "application/problem+json"
STATUS_OF: dict[type[BaseException], int] = {
    NotFound: 404,
    ContentGone: 410,
    AmbiguousName: 409,
    NotAllowed: 403,
    NotTrusted: 403,
    TokenRefused: 401,
    Conflict: 409,
    LedgerError: 409,
    ContentTooLarge: 413,
    LimitExceeded: 422,
    InvalidInput: 422,
    Unsupported: 501,
    InUse: 503,
    ReadOnlyLedger: 503,
    Damaged: 500,
    StoreError: 503,
    BudgetSpent: 402,
    RateLimited: 503,
    OutsideError: 502,
    WeftError: 500,
}
"""The nearest class of an error decides."""
TITLES = {
    400: "The request cannot be read",
    401: "A credential is needed",
    402: "A budget is spent",
    403: "Not allowed",
    404: "Not found",
    405: "There is no such method here",
    408: "The request took too long",
    409: "It does not fit what is there",
    410: "It was erased",
    413: "The request is too large",
    414: "The address is too long",
    415: "The body is of another type",
    421: "This host is not served here",
    422: "The request has a wrong value",
    428: "A condition is missing",
    429: "Too many requests",
    431: "The headers are too large",
    500: "A fault of the server",
    501: "Not supported",
    502: "Something outside failed",
    503: "Not available now",
}


class Refusal(Exception):
    """A request that is answered with a problem before any verb was called."""

    def __init__(self, status: int, code: str, detail: str, hint: str = "", headers: Mapping[str, str] = {}) -> None:
        super().__init__(detail)
        self.status, self.code, self.detail, self.hint, self.headers = status, code, detail, hint, dict(headers)


def status_of(error: BaseException) -> int:
    """The status of the nearest class that has one."""
    return next((STATUS_OF[kind] for kind in type(error).__mro__ if kind in STATUS_OF), 500)


def problem_response(
    status: int, code: str, detail: str, *, hint: str = "", headers: Mapping[str, str] = {}, **more: Any
) -> Response:
    body = {
        "type": f"urn:weft:error:{code}",
        "title": TITLES.get(status, "Error"),
        "status": status,
        "detail": detail,
        "code": code,
        "hint": hint,
        **more,
    }
    sent = dict(headers)
    if status == 401:
        sent.setdefault("www-authenticate", 'Bearer realm="weft"')
    return Response(document(body), status, sent, media_type=MEDIA_TYPE)


def problem_of(error: BaseException) -> Response:
    """What is answered in place of a result. A fault of our own tells nothing of itself: it is in the server's log."""
    if isinstance(error, Refusal):
        return problem_response(error.status, error.code, error.detail, hint=error.hint, headers=error.headers)
    if isinstance(error, WeftError):
        advice = error.advice
        return problem_response(
            status_of(error),
            error_code(error),
            without_credentials(str(error)),
            hint=phrase(advice),
            action=advice.action,
            arguments=dict(advice.arguments),
            facts=_facts(error),
        )
    return problem_response(500, "internal_error", "the server failed; its log says how")


def _facts(error: WeftError) -> dict[str, Any]:
    """What the error was made of, by the names of its class, as far as that is plain JSON."""
    facts: dict[str, Any] = {}
    for name in inspect.signature(type(error).__init__).parameters:
        value = getattr(error, name, None)
        if isinstance(value, str):
            facts[name] = without_credentials(value)
        elif isinstance(value, int):
            facts[name] = value
        elif isinstance(value, tuple) and all(isinstance(item, str) for item in value):
            facts[name] = list(map(without_credentials, value))
        elif isinstance(value, dict) and all(isinstance(item, str) for item in value.values()):
            facts[name] = {key: without_credentials(item) for key, item in value.items()}
    return facts
