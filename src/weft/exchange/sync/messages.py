"""What frames say where they hold no facts: small JSON objects, each a record here.

Every number and every text has a limit of its own, so that no message can claim what no log can have.
"""

from __future__ import annotations

from typing import Annotated, TypeVar

import msgspec
from msgspec import Meta, Struct

from weft.exchange.sync.frames import Frame, Kind
from weft.kernel.errors import ProtocolBroken

T = TypeVar("T", bound=Struct)
VERSION = 1
LOG_EVENTS_LIMIT = 1 << 40
"""More events than any log has: a message with a larger number is damaged or a lie."""
BYTES_LIMIT = 1 << 52
SKIPPED_RUNS_LIMIT = 65_536
TEXT_CHARACTERS_LIMIT = 4096
EventCount = Annotated[int, Meta(ge=0, le=LOG_EVENTS_LIMIT)]
ByteCount = Annotated[int, Meta(ge=0, le=BYTES_LIMIT)]
Word = Annotated[str, Meta(max_length=64)]
Text = Annotated[str, Meta(max_length=TEXT_CHARACTERS_LIMIT)]


class Hello(Struct, frozen=True, kw_only=True):
    """Who speaks, and where its log ends. Both are claims: nothing is noted of them."""

    version: EventCount = VERSION
    replica: Word
    n: EventCount
    chain: Word


class KnownLog(Struct, frozen=True, kw_only=True):
    """What the speaker remembers of the other's log; `n` 0: nothing."""

    n: EventCount = 0
    chain: Word = ""


class Ready(Struct, frozen=True, kw_only=True):
    """A receiver is ready for what came after event `after` of the sender's log."""

    after: EventCount = 0
    chain: Word = ""
    empty: bool = False
    """Nothing is here yet: no ids need be offered."""
    dry: bool = False
    whole: bool = False
    """Offer also what came from the receiver."""


class Push(Struct, frozen=True, kw_only=True):
    dry: bool = False
    limited: bool = False


class SkippedRun(Struct, frozen=True, array_like=True):
    """Events of the sender's log that came from the receiver and are not offered to it: the arrival number of the
    first, how many, and the id of the first."""

    first: EventCount
    count: EventCount
    id: Word


class BatchEnd(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The end of a batch. All up to event `n` of the sender's log is taken then; 0: it ends in the midst of a row.
    `skipped` is what was not offered since the last place, so that the receiver can compute the chain itself."""

    n: EventCount = 0
    chain: Word = ""
    skipped: Annotated[tuple[SkippedRun, ...], Meta(max_length=SKIPPED_RUNS_LIMIT)] = ()


class Taken(Struct, frozen=True, kw_only=True):
    """Sync message: a batch was stored."""

    events: EventCount = 0
    contents: EventCount = 0
    known: EventCount = 0
    erased: EventCount = 0


class Would(Struct, frozen=True, kw_only=True):
    """What a batch would bring, of which the contents at most."""

    events: EventCount = 0
    event_bytes: ByteCount = 0
    contents: EventCount = 0
    content_bytes: ByteCount = 0


class ImportsOffer(Struct, frozen=True, kw_only=True):
    """Which import secret a ledger has, not telling it, and whether anything was imported under it."""

    fingerprint: Word = ""
    imported: bool = False


class ImportSecretMessage(Struct, frozen=True, kw_only=True):
    """A ledger's import secret; empty: please tell yours."""

    secret: Word = ""


class Refusal(Struct, frozen=True, kw_only=True):
    error: Word
    message: Text
    hint: Text = ""


def framed(kind: Kind, message: Struct) -> Frame:
    return Frame(kind, msgspec.json.encode(message))


def message_in(frame: Frame, record: type[T]) -> T:
    """The message of a frame; what is not of its shape ends the conversation."""
    try:
        return msgspec.json.decode(frame.body, type=record)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ProtocolBroken(f"{frame.kind.name}: {error}") from error
