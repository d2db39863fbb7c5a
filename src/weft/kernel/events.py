"""Events: the envelope, the registry of kinds, and the bytes that are the fact.

`event_id = sha256(canonical JSON of the event)`. The encoder is native: an event holds no floats, only integers below
2**53 and ASCII keys, and for such values its sorted output is RFC 8785 to the byte (a property test compares the two).
The fact is always the stored bytes; an id is never computed from a struct that was read back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cached_property
from hashlib import sha256
from threading import Thread
from typing import Any, ClassVar, Literal, Union, get_args

import msgspec
from msgspec import UNSET, Struct, UnsetType

from weft.kernel.enums import EventClass
from weft.kernel.fields import Digest, Name, Time, Ulid


class Event(Struct, frozen=True, gc=False, kw_only=True, tag_field="kind"):
    """The envelope. A run's events carry its turn id in `stream`, its agent in `actor`.

    `ts` says when it happened; null when the origin gave no usable time, absent in imported chains, as is `replica`.
    `on_behalf_of` names everybody for whom the actor acted, the nearest first; absent where it acted for itself.
    """

    about: ClassVar[str]
    category: ClassVar[EventClass]

    v: Literal[1] = 1
    ts: Time | UnsetType | None = UNSET
    stream: str
    prev: Digest | None
    actor: Name | Ulid
    replica: Ulid | UnsetType = UNSET
    on_behalf_of: tuple[Name | Ulid, ...] | UnsetType = UNSET


class UnknownEvent(Struct, frozen=True, gc=False):
    """An event of a kind this program does not know: kept, chained, shown raw."""

    kind: str
    stream: str
    prev: str | None
    fields: dict[str, Any]
    ts: str | None = None
    actor: str = ""


_encoder = msgspec.json.Encoder(order="sorted")
encode = _encoder.encode


def event_id(line: bytes) -> str:
    return sha256(line).hexdigest()


def run_stream(turn: str) -> str:
    return "run:" + turn


def session_stream(session: str) -> str:
    return "session:" + session


def program_stream(program: str) -> str:
    return "program:" + program


def conversation_stream(conversation: str) -> str:
    return "conversation:" + conversation


def resource_stream(resource: str) -> str:
    return "resource:" + resource


def ledger_stream(replica: str) -> str:
    return "ledger:" + replica


def import_stream(subject: str) -> str:
    """What sources tell of an imported turn or session: a set, in which no event follows another."""
    return "import:" + subject


STREAM_KINDS = ("run", "session", "program", "conversation", "resource", "ledger", "import")


LINES_BY_KIND = 500
"""So many lines are decoded each by the decoder of its kind, before one for all kinds is made, which is quicker."""


class _LineKind(Struct, frozen=True, gc=False):
    kind: str


_kind_of_line = msgspec.json.Decoder(_LineKind).decode


def made_decoder(kinds: Any) -> Callable[[bytes], Any]:
    """Made in a thread of its own: msgspec looks types up in a way that swallows what is raised meanwhile, and Ctrl-C
    is raised in the main thread, which waits here and hears it. What goes wrong there is raised here."""
    made: list[Callable[[bytes], Any]] = []
    failed: list[BaseException] = []

    def make() -> None:
        try:
            made.append(msgspec.json.Decoder(kinds).decode)
        except BaseException as error:  # of whatever kind: it is raised where it is waited for
            failed.append(error)

    making = Thread(target=make)
    making.start()
    making.join()
    if failed:
        raise failed[0]
    return made[0]


class Registry:
    """All kinds of event by name; decodes stored lines into their types."""

    def __init__(self, *unions: Any) -> None:
        kinds = [kind for union in unions for kind in get_args(union)]
        self.kinds: dict[str, type[Event]] = {kind_of(kind): kind for kind in kinds}
        self._lines_by_kind, self._kind_decoders = LINES_BY_KIND, dict[str, Callable[[bytes], Any]]()

    def decode(self, line: bytes) -> Event | UnknownEvent:
        try:
            event: Event = self._decoder_for(line)(line)
        except msgspec.ValidationError:
            return self._decode_loosely(line)
        return event

    def _decoder_for(self, line: bytes) -> Callable[[bytes], Any]:
        """One decoder for all kinds takes a tenth of a second to make: whoever reads a few lines starts without it."""
        if self._lines_by_kind <= 0:  # threads may count two lines at once, or one twice
            return self._any_decoder
        self._lines_by_kind -= 1
        kind = _kind_of_line(line).kind
        if kind not in self.kinds:
            raise msgspec.ValidationError(f"no event is of kind {kind}")
        if kind not in self._kind_decoders:
            self._kind_decoders[kind] = made_decoder(self.kinds[kind])
        return self._kind_decoders[kind]

    @cached_property
    def _any_decoder(self) -> Callable[[bytes], Any]:
        return made_decoder(Union[tuple(self.kinds.values())])  # noqa: UP007

    def _decode_loosely(self, line: bytes) -> UnknownEvent:
        """Kinds and values of a newer program: keep the envelope, leave the rest as it is."""
        fields = msgspec.json.decode(line)
        if not isinstance(fields, dict):
            raise msgspec.ValidationError("an event is an object")
        known = {name: fields.get(name) for name in ("kind", "stream", "prev", "ts", "actor")}
        return msgspec.convert({**known, "actor": known["actor"] or "", "fields": fields}, UnknownEvent)


def kind_of(event: Event | type[Event]) -> str:
    return str(event.__struct_config__.tag)


GENESIS = bytes(32)


def extend(chain: bytes, event_ids: Iterable[bytes]) -> bytes:
    """`log_n = sha256(log_{n-1} + event_id)`, once per event in order of arrival."""
    for event_id in event_ids:
        chain = sha256(chain + event_id).digest()
    return chain


class Receipt(Struct, frozen=True, gc=False):
    """What a caller may keep: a ledger that was cut, rolled back or edited cannot answer for it."""

    replica: str
    n: int
    log: str
    digest: str
