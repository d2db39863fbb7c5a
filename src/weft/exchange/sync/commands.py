"""Syncing from one ledger's side: pull, push, clone, and the remotes it knows.

Where another ledger lies: a path or a PostgreSQL URL that is opened here, or a program that serves
one over its input and output. Whoever asks and whoever serves. A clone may begin as a copy of the
other ledger's file.
"""

from __future__ import annotations

import os
import select
import shlex
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import IO, TypeVar
from urllib.parse import unquote, urlsplit, urlunsplit

from msgspec import Struct, structs
from msgspec.structs import replace

from weft.exchange.sync import synced_ledgers
from weft.exchange.sync.fact_transfer import (
    SILENCE_SECONDS,
    VERSION,
    BatchEnd,
    Channel,
    FactReceiver,
    FactSender,
    Frame,
    HelloFrame,
    ImportSecretMessage,
    ImportsOffer,
    KnownLog,
    LocalConversation,
    PushRequest,
    ReceiverReady,
    Report,
    SyncFrameKind,
    SyncOutcome,
    Talk,
    ensure_chain,
    framed,
    message_in,
    receive_frame,
    silent,
)
from weft.exchange.sync.synced_ledgers import (
    LedgerSink,
    LedgerSource,
    Remote,
    Selection,
    drop_memory,
    is_disputed,
    note_dispute,
    note_range,
    note_remote,
    note_taken,
    remembered,
    select_threads,
)
from weft.kernel.authority import LOCAL
from weft.kernel.clock import Clock, RandomBytes, SystemClock, UlidSource, is_ulid, system_random
from weft.kernel.errors import (
    Action,
    ConnectionCut,
    InvalidInput,
    NotApplicable,
    ProtocolBroken,
    ReadOnlyLedger,
    ReplicaDiverged,
    hidden_address,
)
from weft.kernel.foreign_input import is_digest
from weft.kernel.typed_names import Site, ensure_plain_path, needs_psycopg, scheme_of, shell_word
from weft.ledger.api import Ledger, store_of, writer_of
from weft.ledger.imports import adopt_secret, import_secret
from weft.ledger.upkeep.facts_file import RefusedEvent, load_refused, views_are_stale
from weft.ledger.upkeep.ledger_copy import ReadLog, forget_state, may_become_clone, read_log
from weft.store.fact_log import FactReader
from weft.store.port import Store, WriteTxn
from weft.store.replicas import CLONED, COPIED_NOTE, NOTE, TOKEN, TrustStore, identity_of
from weft.store.sqlite import SqliteStore
from weft.store.sqlite.connection import SqliteSql

# --- Where another ledger lies: a path or a PostgreSQL URL that is opened here, or a program that serves one over its
# standard input and output, on this machine or behind ssh.

COMMAND, SSH = "cmd:", "ssh://"
FORMS = "give a path, postgresql://…, ssh://host/path or cmd:…"
HOME = "~/"
PIPE_BYTES = 65_536
LEAVING_SECONDS = 10.0
"""So long a program may take to end once nobody speaks to it; then it is ended."""


def program_of(address: str) -> list[str] | None:
    """The program that an address starts; None where it names a ledger that is opened here."""
    if address.startswith(COMMAND):
        try:
            words = shlex.split(address.removeprefix(COMMAND))
        except ValueError as error:
            raise InvalidInput(f"{hidden_address(address)!r}: {error}", "write the command as for a shell") from error
        if not words:
            raise InvalidInput(f"{address!r} names no program", "write cmd: and the command that serves the ledger")
        return words
    return _ssh_program(address) if address.startswith(SSH) else None


def without_password(address: str) -> str:
    """The address as it may be kept and shown. Passwords belong into the files of their own programs."""
    site = Site.of(address)
    if site is Site.POSTGRESQL:
        return _postgres_address(address)
    if not site.is_address:
        if not address.startswith(COMMAND) and not os.path.exists(address):
            ensure_plain_path(address)
        return address
    if not address.startswith(SSH):
        raise InvalidInput(f"no ledger is reached by {scheme_of(address)}://", FORMS)
    _ssh_program(address)
    url_parts = urlsplit(address)
    user, at_sign, host = url_parts.netloc.rpartition("@")
    return urlunsplit(url_parts._replace(netloc=f"{user.partition(':')[0]}{at_sign}{host}"))


def _postgres_address(address: str) -> str:
    try:
        from weft.store.postgres.connection import parse_address
    except ImportError as error:
        raise needs_psycopg(error) from error
    return parse_address(address).kept


def _ssh_program(address: str) -> list[str]:
    """`ssh://[user@]host[:port]/path`; `/~/path` is in the home folder there."""
    try:
        url_parts = urlsplit(address)
        port = url_parts.port
    except ValueError:
        raise InvalidInput(f"{hidden_address(address)!r} cannot be read", "write ssh://host/path") from None
    host, path = url_parts.hostname or "", unquote(url_parts.path)
    if not host or host.startswith("-") or (url_parts.username or "").startswith("-") or path in ("", "/"):
        raise InvalidInput(f"{hidden_address(address)!r} names no host and path", "write ssh://host/path/of/ledger.db")
    path = path[1:].removeprefix(HOME) if path.startswith(f"/{HOME}") else path
    if path.startswith("-"):
        path = f"./{path}"
    target = f"{url_parts.username}@{host}" if url_parts.username else host
    ports = ["-p", str(port)] if port else []
    return ["ssh", *ports, "--", target, f"weft sync-stdio --ledger {shell_word(path)}"]


class ProgramStream:
    """A program's standard input and output as one stream of bytes. Neither reading nor writing waits longer than
    `silence_seconds` for the program."""

    def __init__(self, words: Sequence[str], silence_seconds: float) -> None:
        self._silence_seconds = silence_seconds
        try:
            self._process = subprocess.Popen(list(words), stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0)
        except OSError as error:
            raise ConnectionCut(
                f"{words[0]}: {error.strerror or error}", "is it installed, and in the path?"
            ) from error

        assert self._process.stdin is not None
        os.set_blocking(self._process.stdin.fileno(), False)

    def read(self, most: int) -> bytes:
        assert self._process.stdout is not None
        wait_for(self._process.stdout.fileno(), select.POLLIN, self._silence_seconds)
        return self._process.stdout.read(most) or b""

    def write(self, data: bytes) -> None:
        assert self._process.stdin is not None
        descriptor, remaining = self._process.stdin.fileno(), memoryview(data)
        while remaining:
            wait_for(descriptor, select.POLLOUT, self._silence_seconds)
            remaining = remaining[os.write(descriptor, remaining[:PIPE_BYTES]) :]

    def close(self) -> None:
        """The program ends when nobody speaks to it any longer, or is ended."""
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with suppress(OSError):  # it may have gone before we did
                    pipe.close()
        patience = min(LEAVING_SECONDS, self._silence_seconds)
        for end in (self._process.terminate, self._process.kill):
            try:
                self._process.wait(patience)
                return
            except subprocess.TimeoutExpired:
                end()
        self._process.wait()


class PipeStream:
    """Two files as one stream of bytes: the standard input and output of a program that serves."""

    def __init__(self, incoming: IO[bytes], out: IO[bytes], silence_seconds: float = SILENCE_SECONDS) -> None:
        self._read: Callable[[int], bytes | None] = getattr(
            incoming, "read1", incoming.read
        )  # what is there, not all asked
        self._incoming, self._out, self.silence_seconds = incoming, out, silence_seconds

    def read(self, most: int) -> bytes:
        """A read takes all that the file has buffered: what is left lies in the pipe, where it can be awaited."""
        wait_for(self._incoming.fileno(), select.POLLIN, self.silence_seconds)
        return self._read(most) or b""

    def write(self, data: bytes) -> None:
        write_all(self._out, data)
        self._out.flush()

    def close(self) -> None:
        """They are the process's own and end with it."""


def write_all(out: IO[bytes], data: bytes) -> None:
    """An unbuffered file may take a part."""
    remaining = memoryview(data)
    while remaining:
        remaining = remaining[out.write(remaining) or 0 :]


def wait_for(descriptor: int, event: int, seconds: float) -> None:
    """Until there is something to read, or room to write; TimeoutError after so many seconds."""
    poll = select.poll()
    poll.register(descriptor, event)
    if not poll.poll(seconds * 1000):
        raise TimeoutError(f"nothing in {seconds:g} seconds")


def start(words: Sequence[str], clock: Clock, silence_seconds: float) -> Channel:
    channel = Channel(ProgramStream(words, silence_seconds), clock, silence_seconds)
    try:
        channel.greet()
    except ConnectionCut:
        channel.close()
        raise
    return channel


# --- Both sides of a conversation: whoever asks, and whoever serves.

SECRET_DOMAIN = b"weft.import-secret.1\n"
SECRET_BYTES = 32
REQUESTS_LIMIT = 1024
"""Of one conversation."""
T = TypeVar("T")
CheckPeer = Callable[[HelloFrame], None]


class ServePermissions(Struct, frozen=True, kw_only=True):
    """What a ledger that is served lets others do."""

    takes: bool = True
    """Pushes are taken."""
    shares_secret: bool = True
    """The import secret is shared, and taken over while nothing was imported."""


def accept_any(peer: HelloFrame) -> None:
    """Whoever serves knows no address of whoever asks."""


class GreetedPeer(Struct, frozen=True):
    """The other side of a conversation."""

    peer: HelloFrame
    is_disputed: bool
    """It remembers something of our log that is not in it, and said so before: nothing that it leaves out because of
    that may be missed."""


def greet(store: Store, source: LedgerSource, check: CheckPeer, *, first: bool) -> Talk[GreetedPeer]:
    """Who is there? Nothing that it says of itself is kept; what was proven before is held against it."""
    own_hello = source.hello()
    if first:
        yield framed(SyncFrameKind.HELLO, own_hello)
    peer = _checked(message_in((yield from receive_frame(SyncFrameKind.HELLO)), HelloFrame), own_hello)
    check(peer)
    return (yield from _dropping(store, peer, _compare(store, source, peer, first)))


def _compare(store: Store, source: LedgerSource, peer: HelloFrame, first: bool) -> Talk[GreetedPeer]:
    if not first:
        yield framed(SyncFrameKind.HELLO, source.hello())
        yield framed(SyncFrameKind.KNOWN, _remembered(store, peer))
    known_log = message_in((yield from receive_frame(SyncFrameKind.KNOWN)), KnownLog)
    disputed = first and _disputes(store, peer, known_log)
    if not disputed:
        _ensure_in_log(store, source, peer, known_log)
    if first:
        yield framed(SyncFrameKind.KNOWN, _remembered(store, peer))
    return GreetedPeer(peer, disputed)


def _disputes(store: Store, peer: HelloFrame, known_log: KnownLog) -> bool:
    with store.read() as txn:
        return bool(known_log.n) and is_disputed(txn.sql, peer.replica, known_log)


def _ensure_in_log(store: Store, source: LedgerSource, peer: HelloFrame, known_log: KnownLog) -> None:
    """What the peer remembers is refused once where this ledger did not say it. A peer that is only read cannot forget
    it, so it is noted here: the same claim is passed over the next time."""
    try:
        ensure_chain(source, known_log.n, known_log.chain)
    except ReplicaDiverged:
        if not store.read_only:
            store.write(lambda txn: note_dispute(txn.sql, peer.replica, known_log))
        raise


def _dropping(store: Store, peer: HelloFrame, talk: Talk[T]) -> Talk[T]:
    """A talk after which nothing is remembered of a peer that says that it never said so."""
    try:
        return (yield from talk)
    except ReplicaDiverged as error:
        if error.is_from_peer and not store.read_only:
            store.write(lambda txn: drop_memory(txn.sql, peer.replica))
        raise


def _checked(peer: HelloFrame, own_hello: HelloFrame) -> HelloFrame:
    if peer.version != VERSION:
        raise ProtocolBroken(f"the other side speaks version {peer.version} of the protocol, this one {VERSION}")
    if not is_ulid(peer.replica) or not is_digest(peer.chain):
        raise ProtocolBroken("HELLO names no replica, or no place in its log")
    if peer.replica == own_hello.replica:
        raise ReplicaDiverged(
            f"both ledgers go by the replica id {own_hello.replica}",
            Action.RENEW_COPY_REPLICA,
        )
    return peer


def _remembered(store: Store, peer: HelloFrame) -> KnownLog:
    """Whoever was cut or rolled back notices by it; its log may have grown since it said where it ends."""
    with store.read() as txn:
        return remembered(txn.sql, peer.replica)


# --- whoever asks -------------------------------------------------------------------------------------------------


class SyncClient:
    """One ledger that asks another. Each verb is a whole talk; `greeting` comes first and `leaving` last."""

    def __init__(self, store: Store, report: Report = silent, check: CheckPeer = accept_any) -> None:
        self._store, self._report, self._check = store, report, check
        self._source = LedgerSource(store)
        self.peer: HelloFrame | None = None
        self._is_disputed = False

    def greeting(self) -> Talk[HelloFrame]:
        greeted = yield from greet(self._store, self._source, self._check, first=True)
        self.peer, self._is_disputed = greeted.peer, greeted.is_disputed
        return self.peer

    def pulling(self, *, dry: bool = False) -> Talk[SyncOutcome]:
        peer = self._greeted()
        sink = LedgerSink(self._store, peer.replica)
        ready = sink.ready(peer.replica)
        ready = replace(ready, dry=dry, whole=ready.whole or self._is_disputed)
        yield framed(SyncFrameKind.PULL, ready)
        receiving = FactReceiver(sink, peer, self._report).receive(ready)
        return (yield from _dropping(self._store, peer, receiving))

    def pushing(self, selection: Selection | None = None, *, dry: bool = False) -> Talk[SyncOutcome]:
        peer, limited = self._greeted(), selection is not None
        source = LedgerSource(self._store, selection) if selection is not None else self._source
        yield framed(SyncFrameKind.PUSH, PushRequest(dry=dry, limited=limited))
        ready = message_in((yield from _dropping(self._store, peer, receive_frame(SyncFrameKind.READY))), ReceiverReady)
        sending = FactSender(source, peer.replica, limited, self._report).send(ready)
        return (yield from _dropping(self._store, peer, sending))

    def sharing(self) -> Talk[str]:
        """Both have one import secret afterwards: whoever has imported nothing takes over the other's. Says which."""
        own_imports, secret = imports_of(self._store), import_secret(self._store)
        yield Frame(SyncFrameKind.IMPORTS)
        their_imports = message_in((yield from receive_frame(SyncFrameKind.IMPORTS)), ImportsOffer)
        if their_imports.fingerprint == own_imports.fingerprint:
            return "same"
        if own_imports.imported and their_imports.imported:
            raise NotApplicable(
                "both ledgers have imports under secrets of their own",
                "they stay two trees; share the secret before the first import",
            )
        if own_imports.imported:
            yield framed(SyncFrameKind.SECRET, ImportSecretMessage(secret=secret.hex()))
            yield from receive_frame(SyncFrameKind.SECRET)
            return "given"
        yield framed(SyncFrameKind.SECRET, ImportSecretMessage())
        adopt_secret(
            self._store, _secret(message_in((yield from receive_frame(SyncFrameKind.SECRET)), ImportSecretMessage))
        )
        return "taken"

    def leaving(self) -> Talk[None]:
        yield Frame(SyncFrameKind.BYE)

    def _greeted(self) -> HelloFrame:
        assert self.peer is not None, "greeting comes first"
        return self.peer


def imports_of(store: Store) -> ImportsOffer:
    fingerprint = sha256(SECRET_DOMAIN + import_secret(store)).hexdigest()
    with store.read() as txn:
        imported = any(
            txn.sql.fetch_row(f"SELECT 1 FROM {table} LIMIT 1") for table in ("import_source", "import_name")
        )
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


class SyncServer:
    """One ledger that answers another until it leaves."""

    def __init__(
        self, store: Store, manners: ServePermissions, ensure_shares: Callable[[], None] = allow_sharing
    ) -> None:
        """`ensure_shares` raises where the import secret may not leave this ledger or be replaced."""
        self._store, self._manners, self._ensure_shares = store, manners, ensure_shares

    def serve(self) -> Talk[None]:
        self._store.catch_up()
        source = LedgerSource(self._store)
        peer = (yield from greet(self._store, source, accept_any, first=False)).peer
        yield from _dropping(self._store, peer, self._answer(source, peer))

    def _answer(self, source: LedgerSource, peer: HelloFrame) -> Talk[None]:
        for _ in range(REQUESTS_LIMIT):
            frame = yield from receive_frame(
                SyncFrameKind.PULL, SyncFrameKind.PUSH, SyncFrameKind.IMPORTS, SyncFrameKind.SECRET, SyncFrameKind.BYE
            )
            if frame.kind == SyncFrameKind.BYE:
                return
            if frame.kind == SyncFrameKind.PULL:
                yield from FactSender(source, peer.replica, False, silent).send(message_in(frame, ReceiverReady))
            elif frame.kind == SyncFrameKind.PUSH:
                yield from self._serve_push(message_in(frame, PushRequest), peer)
            elif frame.kind == SyncFrameKind.IMPORTS:
                yield framed(SyncFrameKind.IMPORTS, imports_of(self._store))
            else:
                yield from self._share(message_in(frame, ImportSecretMessage))
        raise ProtocolBroken(f"more than {REQUESTS_LIMIT} requests in one conversation")

    def _serve_push(self, push: PushRequest, peer: HelloFrame) -> Talk[None]:
        if not self._manners.takes or self._store.read_only:
            raise ReadOnlyLedger(self._store.path)
        sink = LedgerSink(self._store, peer.replica)
        ready = replace(sink.ready(peer.replica), dry=push.dry)
        yield framed(SyncFrameKind.READY, ready)
        yield from FactReceiver(sink, peer, silent, limited=push.limited).receive(ready)

    def _share(self, message: ImportSecretMessage) -> Talk[None]:
        if not self._manners.shares_secret:
            raise NotApplicable("this ledger does not share its import secret", Action.CLONE_WITHOUT_SECRET)
        self._ensure_shares()
        if message.secret:
            if not self._manners.takes:
                raise ReadOnlyLedger(self._store.path)
            adopt_secret(self._store, _secret(message))
            yield Frame(SyncFrameKind.SECRET)
        else:
            yield framed(SyncFrameKind.SECRET, ImportSecretMessage(secret=import_secret(self._store).hex()))


# --- A clone that begins as a copy of the other ledger's file, and goes on as one whose events all came from there.

BESIDE = ("", "-wal", "-shm", "-journal", "-head")
StagedReport = Callable[[str, int, int], None]


class CopiedFacts(Struct, frozen=True, kw_only=True):
    """What a copied file holds."""

    events: int
    contents: int
    event_bytes: int
    content_bytes: int


class _OthersWrote(Exception):
    """The views of this ledger go by who wrote what."""


class FileClone:
    """One clone of a ledger's file."""

    def __init__(
        self,
        source: Ledger,
        origin: Remote,
        report: StagedReport,
        clock: Clock | None = None,
        random_bytes: RandomBytes = system_random,
    ) -> None:
        """`origin` is the source, as the clone will call it."""
        self._source, self._origin, self._report = source, origin, report
        self._clock, self._random = clock or SystemClock(), random_bytes
        self._replica = UlidSource(self._clock.now_ms, random_bytes).mint()
        self._log: ReadLog | None = None
        self._facts: CopiedFacts | None = None

    def make_clone(self, place: Path, trust: TrustStore | None = None) -> CopiedFacts | None:
        """The clone at a place where nothing lies; `trust` joins it. None, and nothing there: this ledger is to be
        cloned fact by fact."""
        store = store_of(self._source)
        if not isinstance(store, SqliteStore) or not self._source.trust.is_trusted or not _is_vacant(place):
            return None
        token = None if trust is None else trust.draw_token()

        def check(sql: SqliteSql) -> None:
            log = None
            if may_become_clone(sql):
                log = read_log(FactReader(sql), store.replica, lambda done, total: self._report("log", done, total))
            if log is None:
                raise _OthersWrote
            self._log = log

        def change(sql: SqliteSql) -> None:
            self._change(sql, store.replica)
            if token is not None:
                sql.run(NOTE, (TOKEN + token, ""))

        def join(aside: Path) -> None:
            """It is trusted before it has its name: one that is cut short after that goes on as its owner's."""
            if trust is not None:
                identity = replace(identity_of(str(aside), self._replica), place=os.path.realpath(place))
                trust.allow(identity, CLONED, token)

        try:
            store.clone(place, check, change, join, lambda done, total: self._report("file", done, total))
        except _OthersWrote:
            return None
        return self._facts

    def _change(self, sql: SqliteSql, source: str) -> None:
        """The copy, which nobody else sees yet, becomes a ledger that was told all of this by `source`."""
        log = self._log
        assert log is not None, "it was checked before"
        forget_state(sql, self._replica, None if self._origin.shares_imports else self._random(SECRET_BYTES).hex())
        now = self._clock.now_ms()
        note_remote(sql, replace(self._origin, added_at=now))
        if log.tip.n:
            note_range(sql, source, 1, log.tip.n)
            note_taken(sql, source, BatchEnd(n=log.tip.n, chain=log.tip.chain.hex()), now)
        count, size = sql.fetch_row("SELECT count(*), coalesce(sum(size), 0) FROM content") or (0, 0)
        self._facts = CopiedFacts(events=log.tip.n, contents=count, event_bytes=log.bytes, content_bytes=size)


def _is_vacant(place: Path) -> bool:
    """Nothing lies there that says anything of a ledger."""
    return not any(os.path.lexists(f"{place}{end}") for end in BESIDE)


# --- Syncing from one ledger's side: pull, push, clone, and the remotes it knows.
ORIGIN = "origin"
OpenLedger = Callable[[str], Ledger]


class Synced(Struct, frozen=True, kw_only=True):
    """What a pull or a push moved."""

    address: str
    replica: str
    """Of the other ledger."""
    events: int
    contents: int
    known: int
    """Events that were offered and there already."""
    erased: int
    """Contents that were refused, since they were erased there."""
    event_bytes: int
    content_bytes: int
    sent_bytes: int
    received_bytes: int
    dry_run: bool = False

    def beside(self, copied: CopiedFacts) -> Synced:
        """With what had come with the other ledger's file."""
        return structs.replace(
            self,
            events=self.events + copied.events,
            contents=self.contents + copied.contents,
            event_bytes=self.event_bytes + copied.event_bytes,
            content_bytes=self.content_bytes + copied.content_bytes,
        )


class SyncLink:
    """An open conversation with another ledger."""

    def __init__(self, address: str, pump: Channel | LocalConversation, client: SyncClient) -> None:
        self.address, self.client = address, client
        self._pump = pump

    def converse(self, talk: Talk[T]) -> T:
        return self._pump.converse(talk)

    def synced(self, sent: SyncOutcome, *, dry: bool) -> Synced:
        assert self.client.peer is not None
        return Synced(
            address=without_password(self.address),
            replica=self.client.peer.replica,
            events=sent.events,
            contents=sent.contents,
            known=sent.known,
            erased=sent.erased,
            event_bytes=sent.event_bytes,
            content_bytes=sent.content_bytes,
            sent_bytes=self._pump.sent,
            received_bytes=self._pump.received,
            dry_run=dry,
        )


@contextmanager
def linked(
    ledger: Ledger,
    address: str,
    opens: OpenLedger,
    report: Report = silent,
    silence_seconds: float = SILENCE_SECONDS,
) -> Iterator[SyncLink]:
    """A conversation with the ledger at an address, which ends with the block. Which replica answers there is pinned at
    the first one; another replica at that address is refused before anything is taken or sent."""
    program = program_of(address)
    ledger.trust.ensure("speak to another ledger")
    store = store_of(ledger)
    store.catch_up()
    client = SyncClient(store, report, partial(_ensure_pinned, ledger, without_password(address)))
    if program is None:
        with opens(address) as peer_ledger:
            pump = LocalConversation(
                SyncServer(store_of(peer_ledger), ServePermissions(), partial(_ensure_shares, peer_ledger)).serve()
            )
            with _greeted(ledger, SyncLink(address, pump, client)) as link:
                yield link
            if not peer_ledger._store.read_only and views_are_stale(peer_ledger._store):
                peer_ledger.upkeep.rebuild()
        return
    channel = start(program, writer_of(ledger).clock, silence_seconds)
    try:
        with _greeted(ledger, SyncLink(address, channel, client)) as link:
            yield link
    finally:
        channel.close()


def _ensure_shares(ledger: Ledger) -> None:
    ledger.trust.ensure("share its import secret")


def _ensure_pinned(ledger: Ledger, address: str, peer: HelloFrame) -> None:
    pinned = ledger.trust.pinned_replica(address)
    if pinned is not None and pinned != peer.replica:
        raise ReplicaDiverged(
            f"at {address} answers replica {peer.replica}; it was {pinned} when this ledger first spoke to it",
            Action.REPIN_REMOTE,
        )


@contextmanager
def _greeted(ledger: Ledger, link: SyncLink) -> Iterator[SyncLink]:
    peer, address = link.converse(link.client.greeting()), without_password(link.address)
    if ledger.trust.pinned_replica(address) is None:
        ledger.trust.pin_replica(address, peer.replica)
    yield link
    with suppress(ConnectionCut):  # whoever is gone already need not be told that we leave
        link.converse(link.client.leaving())


def serve(ledger: Ledger, pipes: PipeStream, manners: ServePermissions) -> None:
    """Answer whoever speaks over these pipes, until they leave or are gone."""
    writer_of(ledger).ensure_whole("ledger:read")
    if manners.takes:
        writer_of(ledger).ensure_whole("facts:import")
    channel = Channel(pipes, writer_of(ledger).clock, pipes.silence_seconds)
    channel.greet()
    try:
        channel.converse(SyncServer(store_of(ledger), manners, partial(_ensure_shares, ledger)).serve())
    except ConnectionCut:
        if channel.received:
            raise
        return  # nobody said anything
    if not store_of(ledger).read_only and views_are_stale(store_of(ledger)):
        ledger.acting_as(LOCAL).upkeep.rebuild()


def pull(
    ledger: Ledger,
    address: str,
    opens: OpenLedger,
    *,
    report: Report = silent,
    dry: bool = False,
    silence_seconds: float = SILENCE_SECONDS,
) -> Synced:
    """Every fact that the other ledger has and this one lacks."""
    writer_of(ledger).ensure_whole("facts:import")
    with linked(ledger, address, opens, report, silence_seconds) as link:
        done = link.synced(link.converse(link.client.pulling(dry=dry)), dry=dry)
    if views_are_stale(store_of(ledger)):
        ledger.acting_as(LOCAL).upkeep.rebuild()
    return done


def push(
    ledger: Ledger,
    address: str,
    opens: OpenLedger,
    *,
    sessions: Sequence[str] = (),
    report: Report = silent,
    dry: bool = False,
    silence_seconds: float = SILENCE_SECONDS,
) -> Synced:
    """Every fact that this ledger has and the other one lacks; with `sessions` only what belongs to these."""
    writer_of(ledger).ensure_whole("ledger:read")
    selection = None
    if sessions:
        ids = [ledger.session(name).id for name in sessions]
        store_of(ledger).catch_up()
        selection = select_threads(store_of(ledger), ids)
    with linked(ledger, address, opens, report, silence_seconds) as link:
        sent = link.converse(link.client.pushing(selection, dry=dry))
        return link.synced(sent, dry=dry)


def clone(
    ledger: Ledger,
    address: str,
    opens: OpenLedger,
    *,
    secret: bool = True,
    report: Report = silent,
    silence_seconds: float = SILENCE_SECONDS,
) -> Synced:
    """Everything of another ledger into this new one, its import secret too unless `secret` is False. One that was cut
    short goes on where it was; one to which nothing came yet may be tried again with another address."""
    writer_of(ledger).ensure_whole("facts:import")
    if secret:
        _ensure_shares(ledger)
    _remember_origin(ledger, Remote(name=ORIGIN, address=without_password(address), shares_imports=secret))
    with linked(ledger, address, opens, report, silence_seconds) as link:
        if secret:
            link.converse(link.client.sharing())
        done = link.synced(link.converse(link.client.pulling()), dry=False)
    if views_are_stale(store_of(ledger)):
        ledger.acting_as(LOCAL).upkeep.rebuild()
    return done


def _remember_origin(ledger: Ledger, new_origin: Remote) -> None:
    origin = next((remote for remote in remotes(ledger) if remote.name == ORIGIN), None)
    with store_of(ledger).read() as txn:
        is_empty = txn.facts.tip().n == 0
    if origin is None and not is_empty:
        raise NotApplicable(f"{ledger.path} is not empty", Action.CLONE_ELSEWHERE_OR_PULL)
    if origin is not None and origin.address != new_origin.address and not is_empty:
        raise NotApplicable(f"{ledger.path} is a clone of {origin.address}", "clone to a new place")
    if origin is not None and (origin.address, origin.shares_imports) != (
        new_origin.address,
        new_origin.shares_imports,
    ):
        remove_remote(ledger, ORIGIN)
        origin = None
    if origin is None:
        add_remote(ledger, new_origin)


def share_imports(ledger: Ledger, address: str, opens: OpenLedger) -> str:
    """Have one import secret with the ledger at an address: `taken` over, `given`, or the `same` already."""
    writer_of(ledger).ensure_whole("history:import")
    _ensure_shares(ledger)
    with linked(ledger, address, opens) as link:
        return link.converse(link.client.sharing())


# --- remotes ------------------------------------------------------------------------------------------------------


def remotes(ledger: Ledger) -> list[Remote]:
    writer_of(ledger).ensure_whole("ledger:read")
    with store_of(ledger).read() as txn:
        return synced_ledgers.load_remotes(txn.sql)


def remote(ledger: Ledger, name: str) -> Remote:
    writer_of(ledger).ensure_whole("ledger:read")
    with store_of(ledger).read() as txn:
        return synced_ledgers.load_remote(txn.sql, name)


def add_remote(ledger: Ledger, added: Remote) -> Remote:
    """Remember an address by a name."""
    writer_of(ledger).ensure_whole("remote:change")
    if not added.address:
        raise InvalidInput("a remote without an address", FORMS)
    program_of(added.address)
    store_of(ledger).write(partial(_add_remote, structs.replace(added, address=without_password(added.address))))
    return remote(ledger, added.name)


def _add_remote(added: Remote, txn: WriteTxn) -> None:
    synced_ledgers.note_remote(txn.sql, structs.replace(added, added_at=txn.facts.now_ms))


def remove_remote(ledger: Ledger, name: str) -> None:
    writer_of(ledger).ensure_whole("remote:change")
    store_of(ledger).write(lambda txn: synced_ledgers.remove_remote(txn.sql, name))


def repin_remote(ledger: Ledger, address: str) -> str | None:
    """Take whichever replica answers at an address next for the one that belongs there. Says which one it was."""
    writer_of(ledger).ensure_whole("remote:change")
    shown_address = without_password(address)
    pinned = ledger.trust.pinned_replica(shown_address)
    ledger.trust.unpin_replica(shown_address)
    return pinned


def refused_events(ledger: Ledger) -> list[RefusedEvent]:
    """Events that other ledgers told and that were refused here, with the replica that told each."""
    writer_of(ledger).ensure_whole("ledger:read")
    with store_of(ledger).read() as txn:
        return load_refused(txn.sql)


def forget_peer(ledger: Ledger, replica: str) -> None:
    """Forget what a replica said of itself and how far it was read; the next sync with it begins anew."""
    writer_of(ledger).ensure_whole("remote:change")
    store_of(ledger).write(lambda txn: synced_ledgers.forget_peer(txn.sql, replica))


def mark_as_copy(ledger: Ledger) -> None:
    """The next opening for writing gives this ledger a replica id of its own, as it does with a backup."""
    writer_of(ledger).ensure_whole("remote:change")
    store_of(ledger).write(lambda txn: txn.sql.run(NOTE, (COPIED_NOTE, "")))
