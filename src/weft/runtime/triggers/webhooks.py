"""Deliveries of webhooks: whether a sender signed one, and which occasion it is, however it is written. No I/O.

A signature is an HMAC-SHA256 over the raw body, and over the time and the id where the scheme has them. The occasion is
computed from what is signed alone: the sender's id of the event, and the body in one form. Neither the time of a
delivery nor its signature is part of it, so that a delivery that is sent again, later or with other bytes of the same
value, is the same occasion.
"""

from __future__ import annotations

import hmac
import json
from collections.abc import Mapping
from decimal import Decimal, InvalidOperation
from hashlib import sha256
from typing import Any

from msgspec import Struct

from weft.kernel.contents import json_bytes
from weft.kernel.errors import InvalidInput, NotAllowed, WeftError, quoted
from weft.kernel.foreign_input import MIB
from weft.programs.kinds.trigger import DEFAULT_TOLERANCE_SECONDS

MOST_BODY_BYTES = MIB
MOST_HEADER_BYTES = 64 * 1024
MOST_HEADERS = 200
LONGEST_SIGNATURES = 4096
DEEPEST_VALUE = 100
NOT_JSON = object()


class WebhookDelivery(Struct, frozen=True):
    """What was delivered: headers by their names in small letters, and the body as it came."""

    headers: Mapping[str, str]
    body: bytes


class SignedPayload(Struct, frozen=True):
    """A delivery that its sender signed."""

    occasion: str
    """A digest of what is signed, whatever bytes it came in."""
    payload: Any
    """The JSON value of the body, or its text."""


def read_delivery(data: bytes) -> WebhookDelivery:
    """Headers, an empty line, and the body: as an HTTP request has them, with or without its first line."""
    head, separator, body = _divided(data)
    if not separator:
        raise InvalidInput("the delivery has no body", "give headers, an empty line, then the body")
    if len(head) > MOST_HEADER_BYTES or len(body) > MOST_BODY_BYTES:
        raise InvalidInput("the delivery is too large", f"a body has at most {MOST_BODY_BYTES} bytes")
    lines = head.decode("latin-1").replace("\r\n", "\n").split("\n")
    if lines and ":" not in lines[0].split(" ")[0]:
        lines = lines[1:]  # the request's first line
    if len(lines) > MOST_HEADERS:
        raise InvalidInput(f"the delivery has {len(lines)} headers", f"at most {MOST_HEADERS} are read")
    headers: dict[str, str] = {}
    for line in lines:
        name, colon, value = line.partition(":")
        key = name.strip().casefold()
        if not colon or not key:
            raise InvalidInput(f"{quoted(line)} is no header", "write it as NAME: VALUE")
        if key in headers and headers[key] != value.strip():
            raise InvalidInput(f"the header {quoted(key)} is given twice, differently", "give it once")
        headers[key] = value.strip()
    return WebhookDelivery(headers, body)


def _divided(data: bytes) -> tuple[bytes, bytes, bytes]:
    """At the first empty line, whichever ends of lines it has."""
    places = [(data.find(mark), mark) for mark in (b"\r\n\r\n", b"\n\n")]
    found = [place for place in places if place[0] >= 0]
    if not found:
        return data, b"", b""
    start, mark = min(found)
    return data[:start], mark, data[start + len(mark) :]


def verified(webhook: Mapping[str, Any], delivery: WebhookDelivery, secret: str, now_ms: int) -> SignedPayload:
    """What a delivery says, where its sender signed it with this secret, and lately where the scheme has a time."""
    if len(delivery.body) > MOST_BODY_BYTES:
        raise InvalidInput("the delivery is too large", f"a body has at most {MOST_BODY_BYTES} bytes")
    scheme, tolerance = webhook["scheme"], webhook.get("toleranceSeconds", DEFAULT_TOLERANCE_SECONDS)
    signed = _SCHEMES[scheme](delivery)
    if signed.time is not None:
        _ensure_recent(signed.time, tolerance, now_ms)
    expected = hmac.new(_key(scheme, secret), signed.covered, sha256).digest()
    is_signed = False
    for signature in signed.signatures:  # all of them, so that the time it takes tells nothing
        is_signed |= hmac.compare_digest(signature, expected)
    if not is_signed:
        raise _refused("its signature is not by this secret")
    value = json_value(delivery.body)
    event_id = (signed.event_id or _event_id(scheme, value)).encode(errors="surrogatepass")
    preimage = b"\0".join((b"weft.webhook.1", scheme.encode(), event_id, canonical_body(delivery.body, value)))
    return SignedPayload(sha256(preimage).hexdigest(), _payload(delivery.body, value))


def _payload(body: bytes, value: Any) -> Any:
    """The value, where a ledger can keep it exactly; else the text."""
    if value is not NOT_JSON:
        try:
            payload = json.loads(body)
            json_bytes(payload, "payload")
            return payload
        except (InvalidInput, ValueError):
            pass
    return body.decode(errors="replace")


def _refused(why: str) -> WeftError:
    return NotAllowed("trigger:deliver", ["the sender"], f"deliver this: {why}", "check the secret and the scheme")


def _ensure_recent(text: str, tolerance_seconds: int, now_ms: int) -> None:
    if not (text.isascii() and text.isdigit() and len(text) <= 15):
        raise _refused("its time is no number of seconds")
    if abs(now_ms // 1000 - int(text)) > tolerance_seconds:
        raise _refused(f"it was signed more than {tolerance_seconds} seconds ago, or ahead")


# --- schemes ---------------------------------------------------------------------------------------------------------


class SignedParts(Struct, frozen=True):
    """What of a delivery is signed, and the signatures that it brings."""

    covered: bytes
    signatures: tuple[bytes, ...]
    time: str | None = None
    event_id: str = ""
    """The sender's id of the event, where it stands in a header that is signed."""


def _header(delivery: WebhookDelivery, name: str) -> str:
    value = delivery.headers.get(name, "")
    if not value or len(value) > LONGEST_SIGNATURES:
        raise _refused(f"the header {name} is missing" if not value else f"the header {name} is too long")
    return value


def _hex(text: str) -> bytes:
    try:
        return bytes.fromhex(text)
    except ValueError:
        return b""


def _github(delivery: WebhookDelivery) -> SignedParts:
    """`X-Hub-Signature-256: sha256=HEX` over the body. It has no time, and its delivery id is not signed."""
    algorithm, _, signature = _header(delivery, "x-hub-signature-256").partition("=")
    return SignedParts(delivery.body, (_hex(signature),) if algorithm == "sha256" else ())


def _stripe(delivery: WebhookDelivery) -> SignedParts:
    """`Stripe-Signature: t=SECONDS,v1=HEX,v1=HEX` over `SECONDS.BODY`."""
    items = [item.partition("=") for item in _header(delivery, "stripe-signature").split(",")]
    times = {value for name, _, value in items if name.strip() == "t"}
    if len(times) != 1:
        raise _refused("it names no single time")
    time = times.pop()
    signatures = tuple(_hex(value) for name, _, value in items if name.strip() == "v1")
    return SignedParts(time.encode() + b"." + delivery.body, signatures, time)


def _slack(delivery: WebhookDelivery) -> SignedParts:
    """`X-Slack-Signature: v0=HEX` over `v0:SECONDS:BODY`, the seconds in `X-Slack-Request-Timestamp`."""
    time = _header(delivery, "x-slack-request-timestamp")
    version, _, signature = _header(delivery, "x-slack-signature").partition("=")
    covered = b"v0:" + time.encode() + b":" + delivery.body
    return SignedParts(covered, (_hex(signature),) if version == "v0" else (), time)


def _standard(delivery: WebhookDelivery) -> SignedParts:
    """`Webhook-Signature: v1,BASE64 v1,BASE64` over `ID.SECONDS.BODY`: see standardwebhooks.com."""
    event_id, time = _header(delivery, "webhook-id"), _header(delivery, "webhook-timestamp")
    if "." in event_id:  # what is signed could be divided in more than one way
        raise _refused("the header webhook-id has a full stop")
    items = [item.partition(",") for item in _header(delivery, "webhook-signature").split()]
    signatures = tuple(_base64(value) for version, _, value in items if version == "v1")
    covered = event_id.encode() + b"." + time.encode() + b"." + delivery.body
    return SignedParts(covered, signatures, time, event_id)


def _base64(text: str) -> bytes:
    """Standard letters or those of URLs, with or without padding."""
    import base64
    import binascii

    try:
        return base64.b64decode(text.replace("-", "+").replace("_", "/") + "=" * (-len(text) % 4), validate=True)
    except (binascii.Error, ValueError):
        return b""


def _key(scheme: str, secret: str) -> bytes:
    """A secret of the standard scheme may be given as `whsec_BASE64`. An empty key is refused: everybody knows it."""
    if scheme == "standard" and secret.startswith("whsec_"):
        key = _base64(secret.removeprefix("whsec_"))
    else:
        key = secret.encode()
    if not key:
        raise _refused("the secret is empty, or no base64 follows its whsec_")
    return key


_SCHEMES = {"github": _github, "stripe": _stripe, "slack": _slack, "standard": _standard}
_ID_FIELDS = {"stripe": "id", "slack": "event_id"}


def _event_id(scheme: str, value: Any) -> str:
    """The sender's id of the event, where it stands in the signed body."""
    event_id = value.get(_ID_FIELDS.get(scheme, "")) if isinstance(value, dict) else None
    return event_id if isinstance(event_id, str) else ""


# --- one form of a body ----------------------------------------------------------------------------------------------


def json_value(body: bytes) -> Any:
    """The body as JSON with numbers as they are written; NOT_JSON where it is none, or names a field twice."""
    try:
        value = json.loads(
            body.decode(),
            parse_int=Decimal,
            parse_float=Decimal,
            object_pairs_hook=_one_each,
            parse_constant=_no_constant,
        )
        _ensure_shallow(value)
        return value
    except (InvalidInput, ValueError, RecursionError, InvalidOperation):
        return NOT_JSON


def _no_constant(name: str) -> Any:
    raise InvalidInput(f"{name} is no JSON", "send JSON")


def _one_each(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) != len(pairs):
        raise InvalidInput("a field is named twice", "name it once")
    return fields


def _ensure_shallow(value: Any) -> None:
    level = [value]
    for _ in range(DEEPEST_VALUE):
        level = [
            inner
            for item in level
            if isinstance(item, dict | list)
            for inner in (item.values() if isinstance(item, dict) else item)
        ]
        if not level:
            return
    raise InvalidInput("the value is too deep", "flatten it")


def canonical_body(body: bytes, value: Any) -> bytes:
    """The same bytes for every way to write one JSON value: spaces, the order of fields, escapes, forms of numbers.
    What is no JSON is itself."""
    if value is NOT_JSON:
        return b"bytes\0" + body
    return b"json\0" + json.dumps(_plain(value), sort_keys=True, separators=(",", ":")).encode()


def _plain(value: Any) -> Any:
    """The value with a mark before each list and number, so that no two values look alike."""
    if isinstance(value, dict):
        return {name: _plain(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return ["list", *map(_plain, value)]
    return ["number", _number(value)] if isinstance(value, Decimal) else value


def _number(value: Decimal) -> str:
    """Digits without zeros at their end, and the power of ten: 1, 1.0, 10e-1 and 1E0 are one number."""
    sign, digits, exponent = value.as_tuple()
    assert isinstance(exponent, int), "JSON writes no other number"
    text = "".join(map(str, digits)).lstrip("0")
    short = text.rstrip("0")
    if not short:
        return "0"
    return f"{'-' if sign else ''}{short}e{exponent + len(text) - len(short)}"
