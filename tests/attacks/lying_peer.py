"""A peer that says what a test makes it say, as the one who serves or as the one who asks."""

from collections.abc import Sequence
from hashlib import sha256
from typing import Any

from msgspec import Struct

from tests.exchange.sync.wire import Wire
from weft.exchange.sync.commands import ServePermissions, SyncClient, SyncServer
from weft.exchange.sync.fact_transfer import (
    BatchEnd,
    Frame,
    HelloFrame,
    KnownLog,
    LocalConversation,
    PushRequest,
    ReceiverReady,
    SyncFrameKind,
    Talk,
    flags_of,
    framed,
    message_in,
    receive_frame,
)
from weft.kernel import contents
from weft.kernel.events import GENESIS, extend
from weft.ledger.api import store_of
from weft.ledger.api.ledger import Ledger
from weft.ledger.upkeep.facts_file import views_are_stale

MOST = 1 << 40


class Batch(Struct, frozen=True):
    """Events to send, and where the log is said to be after them."""

    lines: Sequence[bytes]
    mark: BatchEnd = BatchEnd()


def ids_of(lines: Sequence[bytes]) -> list[bytes]:
    return [sha256(line).digest() for line in lines]


def place_after(lines: Sequence[bytes]) -> BatchEnd:
    """The true place in a log that holds these events and no others."""
    return BatchEnd(n=len(lines), chain=extend(GENESIS, ids_of(lines)).hex())


def hello_as(replica: str, n: int = MOST) -> HelloFrame:
    return HelloFrame(replica=replica, n=n, chain="ab" * 32)


def changed(line: bytes, **fields: object) -> bytes:
    return contents.dumps({**contents.loads(line), **fields})


def stream_in(line: bytes) -> str:
    return str(contents.loads(line)["stream"])


def rechained(lines: Sequence[bytes], at: int, **fields: object) -> list[bytes]:
    """The same stream with its event `at` changed, and every later one linked to what is before it now."""
    twin = list(lines[:at])
    for i, line in enumerate(lines[at:], at):
        prev = twin[-1] if twin else None
        extra = fields if i == at else {}
        twin.append(changed(line, prev=None if prev is None else sha256(prev).hexdigest(), **extra))
    return twin


def sending(batches: Sequence[Batch], empty: bool) -> Talk[None]:
    """What a sender says to a receiver that is ready."""
    lacking = yield from receive_frame(SyncFrameKind.LACK)
    if lacking.body:
        yield framed(SyncFrameKind.MARK, BatchEnd())
        yield from receive_frame(SyncFrameKind.TAKEN)
    for batch in batches:
        lines = list(batch.lines)
        if lines and not empty:
            yield Frame(SyncFrameKind.OFFER, b"".join(ids_of(lines)))
            flags = flags_of((yield from receive_frame(SyncFrameKind.WANT)).body, len(lines))
            lines = [line for line, flag in zip(lines, flags, strict=True) if flag]
        if lines:
            yield Frame(SyncFrameKind.EVENTS, b"\n".join(lines))
            yield from receive_frame(SyncFrameKind.NEED)
        yield framed(SyncFrameKind.MARK, batch.mark)
        yield from receive_frame(SyncFrameKind.TAKEN)
    yield Frame(SyncFrameKind.DONE)


def served_by_liar(hello: HelloFrame, batches: Sequence[Batch]) -> Talk[None]:
    yield from receive_frame(SyncFrameKind.HELLO)
    yield framed(SyncFrameKind.HELLO, hello)
    yield framed(SyncFrameKind.KNOWN, KnownLog())
    yield from receive_frame(SyncFrameKind.KNOWN)
    ready = message_in((yield from receive_frame(SyncFrameKind.PULL)), ReceiverReady)
    yield from sending(batches, ready.empty)
    yield from receive_frame(SyncFrameKind.BYE)


def asked_by_liar(hello: HelloFrame, batches: Sequence[Batch]) -> Talk[None]:
    yield framed(SyncFrameKind.HELLO, hello)
    yield from receive_frame(SyncFrameKind.HELLO)
    yield from receive_frame(SyncFrameKind.KNOWN)
    yield framed(SyncFrameKind.KNOWN, KnownLog())
    yield framed(SyncFrameKind.PUSH, PushRequest())
    ready = message_in((yield from receive_frame(SyncFrameKind.READY)), ReceiverReady)
    yield from sending(batches, ready.empty)
    yield Frame(SyncFrameKind.BYE)


def pull_from_liar(here: Ledger, hello: HelloFrame, *batches: Batch) -> None:
    """A ledger pulls from whoever says this."""
    asking = SyncClient(store_of(here))
    store_of(here).catch_up()
    wire = Wire(served_by_liar(hello, batches))
    try:
        wire.converse(asking.greeting())
        wire.converse(asking.pulling())
        wire.converse(asking.leaving())
    finally:
        wire.close()
        rebuild_if_stale(here)


def push_from_liar(here: Ledger, hello: HelloFrame, *batches: Batch) -> None:
    """A ledger serves whoever says this and pushes."""
    served = LocalConversation(SyncServer(store_of(here), ServePermissions()).serve())
    try:
        served.converse(asked_by_liar(hello, batches))
    finally:
        served.close()
        rebuild_if_stale(here)


def rebuild_if_stale(ledger: Ledger) -> None:
    if views_are_stale(store_of(ledger)):
        ledger.upkeep.rebuild()


def peers_of(ledger: Ledger) -> list[tuple[Any, ...]]:
    """What is kept of other replicas: how far each log is taken."""
    with store_of(ledger).read() as txn:
        return [tuple(row) for row in txn.sql.fetch_rows("SELECT replica, n FROM peer WHERE n > 0 ORDER BY replica")]
