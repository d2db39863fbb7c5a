"""Both sides of a conversation: whoever asks, and whoever serves.

    asks                            serves
    HELLO                    ─►
                             ◄─     HELLO, KNOWN (what it remembers of the asker)
    KNOWN                    ─►
    PULL                     ─►     sends
    PUSH                     ─►
                             ◄─     READY; receives
    IMPORTS, SECRET          ─►
                             ◄─     IMPORTS, SECRET
    BYE                      ─►

Each side holds what the other remembers of it against its own log, and refuses to go on under a name that once said
something else. The other side then drops what it remembers: it may have been told by a stranger.
"""

from __future__ import annotations

from collections.abc import Callable
from hashlib import sha256
from typing import TypeVar

from msgspec import Struct
from msgspec.structs import replace

from weft.exchange.sync.frames import Frame, Kind
from weft.exchange.sync.messages import (
    VERSION,
    Hello,
    ImportSecretMessage,
    ImportsOffer,
    KnownLog,
    Push,
    Ready,
    framed,
    message_in,
)
from weft.exchange.sync.peers import drop_memory, is_disputed, note_dispute, remembered
from weft.exchange.sync.receiver import Receiver
from weft.exchange.sync.selection import Selection
from weft.exchange.sync.sender import Report, Sender, SyncOutcome, ensure_chain, silent
from weft.exchange.sync.sink import LedgerSink
from weft.exchange.sync.source import LedgerSource
from weft.exchange.sync.talk import Talk, hear
from weft.kernel.clock import is_ulid
from weft.kernel.errors import Action, NotApplicable, ProtocolBroken, ReadOnlyLedger, ReplicaDiverged
from weft.kernel.foreign_input import is_digest
from weft.ledger.imports import adopt_secret, import_secret
from weft.store.port import Store

SECRET_DOMAIN = b"weft.import-secret.1\n"
SECRET_BYTES = 32
REQUESTS_LIMIT = 1024
"""Of one conversation."""
T = TypeVar("T")
CheckPeer = Callable[[Hello], None]


class Manners(Struct, frozen=True, kw_only=True):
    """What a ledger that is served lets others do."""

    takes: bool = True
    """Pushes are taken."""
    shares_secret: bool = True
    """The import secret is shared, and taken over while nothing was imported."""


def accept_any(peer: Hello) -> None:
    """Whoever serves knows no address of whoever asks."""


class Greeted(Struct, frozen=True):
    """The other side of a conversation."""

    peer: Hello
    is_disputed: bool
    """It remembers something of our log that is not in it, and said so before: nothing that it leaves out because of
    that may be missed."""


def greet(store: Store, source: LedgerSource, check: CheckPeer, *, first: bool) -> Talk[Greeted]:
    """Who is there? Nothing that it says of itself is kept; what was proven before is held against it."""
    own = source.hello()
    if first:
        yield framed(Kind.HELLO, own)
    peer = _checked(message_in((yield from hear(Kind.HELLO)), Hello), own)
    check(peer)
    return (yield from _dropping(store, peer, _compare(store, source, peer, first)))


def _compare(store: Store, source: LedgerSource, peer: Hello, first: bool) -> Talk[Greeted]:
    if not first:
        yield framed(Kind.HELLO, source.hello())
        yield framed(Kind.KNOWN, _remembered(store, peer))
    known = message_in((yield from hear(Kind.KNOWN)), KnownLog)
    disputed = first and _disputes(store, peer, known)
    if not disputed:
        _ensure_in_log(store, source, peer, known)
    if first:
        yield framed(Kind.KNOWN, _remembered(store, peer))
    return Greeted(peer, disputed)


def _disputes(store: Store, peer: Hello, known: KnownLog) -> bool:
    with store.read() as txn:
        return bool(known.n) and is_disputed(txn.sql, peer.replica, known)


def _ensure_in_log(store: Store, source: LedgerSource, peer: Hello, known: KnownLog) -> None:
    """What the peer remembers is refused once where this ledger did not say it. A peer that is only read cannot forget
    it, so it is noted here: the same claim is passed over the next time."""
    try:
        ensure_chain(source, known.n, known.chain)
    except ReplicaDiverged:
        if not store.read_only:
            store.write(lambda txn: note_dispute(txn.sql, peer.replica, known))
        raise


def _dropping(store: Store, peer: Hello, talk: Talk[T]) -> Talk[T]:
    """A talk after which nothing is remembered of a peer that says that it never said so."""
    try:
        return (yield from talk)
    except ReplicaDiverged as error:
        if error.is_from_peer and not store.read_only:
            store.write(lambda txn: drop_memory(txn.sql, peer.replica))
        raise


def _checked(peer: Hello, own: Hello) -> Hello:
    if peer.version != VERSION:
        raise ProtocolBroken(f"the other side speaks version {peer.version} of the protocol, this one {VERSION}")
    if not is_ulid(peer.replica) or not is_digest(peer.chain):
        raise ProtocolBroken("HELLO names no replica, or no place in its log")
    if peer.replica == own.replica:
        raise ReplicaDiverged(
            f"both ledgers go by the replica id {own.replica}",
            Action.RENEW_COPY_REPLICA,
        )
    return peer


def _remembered(store: Store, peer: Hello) -> KnownLog:
    """Whoever was cut or rolled back notices by it; its log may have grown since it said where it ends."""
    with store.read() as txn:
        return remembered(txn.sql, peer.replica)


# --- whoever asks -------------------------------------------------------------------------------------------------


class Asking:
    """One ledger that asks another. Each verb is a whole talk; `greeting` comes first and `leaving` last."""

    def __init__(self, store: Store, report: Report = silent, check: CheckPeer = accept_any) -> None:
        self._store, self._report, self._check = store, report, check
        self._source = LedgerSource(store)
        self.peer: Hello | None = None
        self._is_disputed = False

    def greeting(self) -> Talk[Hello]:
        greeted = yield from greet(self._store, self._source, self._check, first=True)
        self.peer, self._is_disputed = greeted.peer, greeted.is_disputed
        return self.peer

    def pulling(self, *, dry: bool = False) -> Talk[SyncOutcome]:
        peer = self._greeted()
        sink = LedgerSink(self._store, peer.replica)
        ready = sink.ready(peer.replica)
        ready = replace(ready, dry=dry, whole=ready.whole or self._is_disputed)
        yield framed(Kind.PULL, ready)
        receiving = Receiver(sink, peer, self._report).receive(ready)
        return (yield from _dropping(self._store, peer, receiving))

    def pushing(self, selection: Selection | None = None, *, dry: bool = False) -> Talk[SyncOutcome]:
        peer, limited = self._greeted(), selection is not None
        source = LedgerSource(self._store, selection) if selection is not None else self._source
        yield framed(Kind.PUSH, Push(dry=dry, limited=limited))
        ready = message_in((yield from _dropping(self._store, peer, hear(Kind.READY))), Ready)
        sending = Sender(source, peer.replica, limited, self._report).send(ready)
        return (yield from _dropping(self._store, peer, sending))

    def sharing(self) -> Talk[str]:
        """Both have one import secret afterwards: whoever has imported nothing takes over the other's. Says which."""
        own, secret = imports_of(self._store), import_secret(self._store)
        yield Frame(Kind.IMPORTS)
        theirs = message_in((yield from hear(Kind.IMPORTS)), ImportsOffer)
        if theirs.fingerprint == own.fingerprint:
            return "same"
        if own.imported and theirs.imported:
            raise NotApplicable(
                "both ledgers have imports under secrets of their own",
                "they stay two trees; share the secret before the first import",
            )
        if own.imported:
            yield framed(Kind.SECRET, ImportSecretMessage(secret=secret.hex()))
            yield from hear(Kind.SECRET)
            return "given"
        yield framed(Kind.SECRET, ImportSecretMessage())
        adopt_secret(self._store, _secret(message_in((yield from hear(Kind.SECRET)), ImportSecretMessage)))
        return "taken"

    def leaving(self) -> Talk[None]:
        yield Frame(Kind.BYE)

    def _greeted(self) -> Hello:
        assert self.peer is not None, "greeting comes first"
        return self.peer


def imports_of(store: Store) -> ImportsOffer:
    fingerprint = sha256(SECRET_DOMAIN + import_secret(store)).hexdigest()
    with store.read() as txn:
        imported = any(txn.sql.one(f"SELECT 1 FROM {table} LIMIT 1") for table in ("import_source", "import_name"))
    return ImportsOffer(fingerprint=fingerprint, imported=imported)


def _secret(message: ImportSecretMessage) -> bytes:
    try:
        secret = bytes.fromhex(message.secret)
    except ValueError:
        secret = b""
    if len(secret) != SECRET_BYTES:
        raise ProtocolBroken("SECRET holds no import secret")
    return secret


# --- whoever serves -----------------------------------------------------------------------------------------------


def allow_sharing() -> None:
    """Whoever serves a store without its ledger vouches for it."""


class Serving:
    """One ledger that answers another until it leaves."""

    def __init__(self, store: Store, manners: Manners, ensure_shares: Callable[[], None] = allow_sharing) -> None:
        """`ensure_shares` raises where the import secret may not leave this ledger or be replaced."""
        self._store, self._manners, self._ensure_shares = store, manners, ensure_shares

    def serve(self) -> Talk[None]:
        self._store.catch_up()
        source = LedgerSource(self._store)
        peer = (yield from greet(self._store, source, accept_any, first=False)).peer
        yield from _dropping(self._store, peer, self._answer(source, peer))

    def _answer(self, source: LedgerSource, peer: Hello) -> Talk[None]:
        for _ in range(REQUESTS_LIMIT):
            frame = yield from hear(Kind.PULL, Kind.PUSH, Kind.IMPORTS, Kind.SECRET, Kind.BYE)
            if frame.kind == Kind.BYE:
                return
            if frame.kind == Kind.PULL:
                yield from Sender(source, peer.replica, False, silent).send(message_in(frame, Ready))
            elif frame.kind == Kind.PUSH:
                yield from self._take(message_in(frame, Push), peer)
            elif frame.kind == Kind.IMPORTS:
                yield framed(Kind.IMPORTS, imports_of(self._store))
            else:
                yield from self._share(message_in(frame, ImportSecretMessage))
        raise ProtocolBroken(f"more than {REQUESTS_LIMIT} requests in one conversation")

    def _take(self, push: Push, peer: Hello) -> Talk[None]:
        if not self._manners.takes or self._store.read_only:
            raise ReadOnlyLedger(self._store.path)
        sink = LedgerSink(self._store, peer.replica)
        ready = replace(sink.ready(peer.replica), dry=push.dry)
        yield framed(Kind.READY, ready)
        yield from Receiver(sink, peer, silent, limited=push.limited).receive(ready)

    def _share(self, message: ImportSecretMessage) -> Talk[None]:
        if not self._manners.shares_secret:
            raise NotApplicable("this ledger does not share its import secret", Action.CLONE_WITHOUT_SECRET)
        self._ensure_shares()
        if message.secret:
            if not self._manners.takes:
                raise ReadOnlyLedger(self._store.path)
            adopt_secret(self._store, _secret(message))
            yield Frame(Kind.SECRET)
        else:
            yield framed(Kind.SECRET, ImportSecretMessage(secret=import_secret(self._store).hex()))
