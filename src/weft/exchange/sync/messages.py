"""What frames say where they hold no facts: small JSON objects, each a record here."""

from __future__ import annotations

from typing import TypeVar

import msgspec
from msgspec import Struct

from weft.exchange.sync.frames import Frame, Kind
from weft.kernel.errors import ProtocolBroken

T = TypeVar("T", bound=Struct)
VERSION = 1


class Hello(Struct, frozen=True, kw_only=True):
    """Who speaks, and where its log ends."""

    version: int = VERSION
    replica: str
    n: int
    chain: str


class KnownLog(Struct, frozen=True, kw_only=True):
    """What the speaker remembers of the other's log; `n` 0: nothing."""

    n: int = 0
    chain: str = ""


class Ready(Struct, frozen=True, kw_only=True):
    """A receiver is ready for what came after event `after` of the sender's log."""

    after: int = 0
    chain: str = ""
    empty: bool = False
    """Nothing is here yet: no ids need be offered."""
    dry: bool = False


class Push(Struct, frozen=True, kw_only=True):
    dry: bool = False
    limited: bool = False


class BatchEnd(Struct, frozen=True, kw_only=True):
    """The end of a batch. All up to event `n` of the sender's log is taken then; 0: it ends in the midst of a row."""

    n: int = 0
    chain: str = ""


class Taken(Struct, frozen=True, kw_only=True):
    events: int = 0
    contents: int = 0
    known: int = 0
    erased: int = 0


class Would(Struct, frozen=True, kw_only=True):
    """What a batch would bring, of which the contents at most."""

    events: int = 0
    event_bytes: int = 0
    contents: int = 0
    content_bytes: int = 0


class ImportsOffer(Struct, frozen=True, kw_only=True):
    """Which import secret a ledger has, not telling it, and whether anything was imported under it."""

    fingerprint: str = ""
    imported: bool = False


class ImportSecretMessage(Struct, frozen=True, kw_only=True):
    """A ledger's import secret; empty: please tell yours."""

    secret: str = ""


class Refusal(Struct, frozen=True, kw_only=True):
    error: str
    message: str
    hint: str = ""


def framed(kind: Kind, message: Struct) -> Frame:
    return Frame(kind, msgspec.json.encode(message))


def said(frame: Frame, record: type[T]) -> T:
    """The message of a frame; what is not of its shape ends the conversation."""
    try:
        return msgspec.json.decode(frame.body, type=record)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ProtocolBroken(f"{frame.kind.name}: {error}") from error
