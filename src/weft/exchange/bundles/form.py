"""The form of a bundle's lines: how each kind is written, and which strings of an event are references.

docs/bundles.md is the specification; tools/verify_bundle.py reads the same form without this program.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterable, Iterator
from hashlib import sha256
from typing import Any

import orjson

from weft.kernel import contents as kernel_contents
from weft.kernel.clock import ALPHABET
from weft.kernel.contents import MAX_INTEGER, ROW_BYTES
from weft.kernel.errors import InvalidBundle
from weft.kernel.foreign_input import GIB, MIB, ReadLimits, json_values
from weft.ledger.read.thread_events import ThreadHead
from weft.ledger.upkeep.facts_file import LINE_LIMIT, LINE_VALUES

VERSION = 1
MAGIC = b"weft bundle 1\n"
STATEMENT = b"weft.bundle.1\n"
LIMITS = ReadLimits(
    bytes=16 * GIB,
    free_bytes=256 * MIB,
    ratio=200,
    held_bytes=LINE_LIMIT,
    values=LINE_VALUES,
    nesting=32,
    advice="ask whoever made it for bundles of fewer turns",
)
"""`held_bytes` and `values` are those of one line; `nesting` is that of an event."""
GIVEN_LIMIT = 2**18
HEADS_LIMIT, SIGNATURES_LIMIT = 1024, 64
EVENT_PREFIX = b'{"event_id":"'

WITHHELD, ERASED, MISSING, OUTSIDE = "withheld", "erased", "missing", "outside"
WHYS = (WITHHELD, ERASED, MISSING, OUTSIDE)

NAMING_KINDS = ("agent_created", "human_created")
"""The only events of programs that a bundle holds: they give whoever acts in it a name."""
NOT_CONTENTS = frozenset(
    "prev event event_id request_id base at bound policy_ref resource_ref snapshot_ref new_resource_ref"
    " materialization node to resource".split()
)
"""Fields whose 64 hex digits name an event or a node. Any other string of that form is a content's reference, but for
the `source` of a run, which is a digest that only the importing ledger can make."""

is_digest = re.compile(r"[0-9a-f]{64}").fullmatch
is_salt = re.compile(r"[0-9a-f]{32}").fullmatch
is_signature = re.compile(r"[0-9a-f]{128}").fullmatch
is_turn = re.compile(f"[0-7][{ALPHABET}]{{25}}").fullmatch
is_stream = re.compile(f"(run|session|program|import|ledger|conversation):[0-7][{ALPHABET}]{{25}}").fullmatch


def header_line(heads: Iterable[ThreadHead]) -> bytes:
    found = [{"event": head.event, "turn": head.turn} for head in heads]
    return kernel_contents.dumps({"bundle": VERSION, "heads": found})


def absent_line(ref: str, why: str) -> bytes:
    return kernel_contents.dumps({"absent": ref, "why": why})


def content_lines(ref: str, salt: bytes, size: int, pieces: Iterable[bytes]) -> Iterator[bytes]:
    """A content as text, or as base64 where it is none; more than 1 MiB piece by piece."""
    name = {"ref": ref, "salt": salt.hex()}
    if size > ROW_BYTES:
        of = -(-size // ROW_BYTES)
        for i, piece in enumerate(pieces):
            yield orjson.dumps({**name, "base64": base64.b64encode(piece).decode(), "piece": i, "pieces": of})
        return
    data = b"".join(pieces)
    try:
        yield orjson.dumps({**name, "text": data.decode()})
    except UnicodeDecodeError:
        yield orjson.dumps({**name, "base64": base64.b64encode(data).decode()})


def end_line(events: int, contents: int, absent: int, digest: str) -> bytes:
    return kernel_contents.dumps({"absent": absent, "contents": contents, "events": events, "sha256": digest})


def signature_line(key: bytes, signature: bytes) -> bytes:
    return kernel_contents.dumps({"key": key.hex(), "signature": signature.hex()})


def statement(digest: str, heads: Iterable[ThreadHead]) -> bytes:
    """What is signed: the digest of all lines through the last that is no signature, and the threads' digests."""
    return STATEMENT + "".join(f"{each}\n" for each in (digest, *(head.event for head in heads))).encode()


def event_of(line: bytes) -> tuple[str, dict[str, Any]]:
    """The id and the fields of an event's line; refuses what is not the canonical bytes that the id is of."""
    claimed, stored = line[len(EVENT_PREFIX) : len(EVENT_PREFIX) + 64], b"{" + line[len(EVENT_PREFIX) + 66 :]
    if line[len(EVENT_PREFIX) + 64 : len(EVENT_PREFIX) + 66] != b'",':
        raise InvalidBundle("an event's id is no digest")
    found = sha256(stored).hexdigest()
    if found.encode() != claimed:
        raise InvalidBundle(f"an event hashes to {found}, not to {claimed.decode(errors='replace')}")
    event = parsed(stored)
    _check_values(event)
    if not kernel_contents.is_canonical(stored):
        raise InvalidBundle(f"event {found} is not in canonical form")
    return found, event


def spelled(line: bytes) -> dict[str, Any]:
    """The fields of a line that is spelled in the one way there is, so that nothing stands in it unseen: no name twice,
    no spaces, no letter escaped that need not be. Their order is free."""
    value = parsed(line)
    try:
        same = orjson.dumps(value) == line
    except TypeError:  # deeper than it can be written
        same = False
    if not same:
        raise InvalidBundle("a content is told in another spelling")
    return value


def parsed(line: bytes) -> dict[str, Any]:
    if (count := json_values(line, LIMITS.values)) > LIMITS.values:
        raise InvalidBundle(f"a line holds {count} values or more; {LIMITS.values} is the most")
    try:
        value = orjson.loads(line)
    except ValueError as error:
        raise InvalidBundle(f"a line is no JSON: {error}") from error
    if not isinstance(value, dict):
        raise InvalidBundle("a line is no JSON object")
    return value


def _check_values(event: dict[str, Any]) -> None:
    """Whole numbers below 2^53, and not nested without end."""
    waiting: list[Iterator[Any]] = [iter((event,))]
    while waiting:
        value = next(waiting[-1], _END)
        if value is _END:
            waiting.pop()
        elif len(waiting) > LIMITS.nesting:
            raise InvalidBundle(f"an event is nested deeper than {LIMITS.nesting}")
        elif isinstance(value, float) or (isinstance(value, int) and abs(value) > MAX_INTEGER):
            raise InvalidBundle("an event holds a number that is not a whole one below 2^53")
        elif isinstance(value, dict | list):
            waiting.append(iter(value.values() if isinstance(value, dict) else value))


_END = object()


def references(event: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Every reference to a content, with its place in the event."""
    digests = NOT_CONTENTS | {"source"} if event.get("kind") == "run_started" else NOT_CONTENTS
    yield from _references(event, "", digests)


def _references(value: Any, path: str, digests: frozenset[str]) -> Iterator[tuple[str, str]]:
    if isinstance(value, dict):
        for name, each in value.items():
            if not (isinstance(each, str) and name in digests):
                yield from _references(each, f"{path}.{name}" if path else name, digests)
    elif isinstance(value, list):
        for i, each in enumerate(value):
            yield from _references(each, f"{path}[{i}]", digests)
    elif isinstance(value, str) and is_digest(value):
        yield path, value
