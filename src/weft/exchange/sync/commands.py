"""Syncing from one ledger's side: pull, push, clone, and the remotes it knows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import TypeVar

from msgspec import Struct, structs

from weft.exchange.sync import peers
from weft.exchange.sync.addresses import FORMS, Pipes, program_of, start, without_password
from weft.exchange.sync.conversation import Asking, Manners, Serving
from weft.exchange.sync.file_clone import CopiedFacts
from weft.exchange.sync.messages import Hello
from weft.exchange.sync.peers import Remote
from weft.exchange.sync.pump import SILENCE_SECONDS, Channel, Served
from weft.exchange.sync.selection import select
from weft.exchange.sync.sender import Report, SyncOutcome, silent
from weft.exchange.sync.talk import Talk
from weft.kernel.authority import LOCAL
from weft.kernel.errors import Action, ConnectionCut, InvalidInput, NotApplicable, ReplicaDiverged
from weft.ledger.api import Ledger, store_of, writer_of
from weft.ledger.upkeep.facts_file import RefusedEvent, load_refused, views_are_stale
from weft.store.port import WriteTxn
from weft.store.replicas import COPIED_NOTE, NOTE

T = TypeVar("T")
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


class Link:
    """An open conversation with another ledger."""

    def __init__(self, address: str, pump: Channel | Served, asking: Asking) -> None:
        self.address, self.asking = address, asking
        self._pump = pump

    def converse(self, talk: Talk[T]) -> T:
        return self._pump.converse(talk)

    def synced(self, sent: SyncOutcome, *, dry: bool) -> Synced:
        assert self.asking.peer is not None
        return Synced(
            address=without_password(self.address),
            replica=self.asking.peer.replica,
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
) -> Iterator[Link]:
    """A conversation with the ledger at an address, which ends with the block. Which replica answers there is pinned at
    the first one; another replica at that address is refused before anything is taken or sent."""
    program = program_of(address)
    ledger.trust.ensure("speak to another ledger")
    store = store_of(ledger)
    store.catch_up()
    asking = Asking(store, report, partial(_ensure_pinned, ledger, without_password(address)))
    if program is None:
        with opens(address) as other:
            pump = Served(Serving(store_of(other), Manners(), partial(_ensure_shares, other)).serve())
            with _greeted(ledger, Link(address, pump, asking)) as link:
                yield link
            if not other._store.read_only and views_are_stale(other._store):
                other.upkeep.rebuild()
        return
    channel = start(program, writer_of(ledger).clock, silence_seconds)
    try:
        with _greeted(ledger, Link(address, channel, asking)) as link:
            yield link
    finally:
        channel.close()


def _ensure_shares(ledger: Ledger) -> None:
    ledger.trust.ensure("share its import secret")


def _ensure_pinned(ledger: Ledger, address: str, peer: Hello) -> None:
    pinned = ledger.trust.pinned_replica(address)
    if pinned is not None and pinned != peer.replica:
        raise ReplicaDiverged(
            f"at {address} answers replica {peer.replica}; it was {pinned} when this ledger first spoke to it",
            Action.REPIN_REMOTE,
        )


@contextmanager
def _greeted(ledger: Ledger, link: Link) -> Iterator[Link]:
    peer, address = link.converse(link.asking.greeting()), without_password(link.address)
    if ledger.trust.pinned_replica(address) is None:
        ledger.trust.pin_replica(address, peer.replica)
    yield link
    with suppress(ConnectionCut):  # whoever is gone already need not be told that we leave
        link.converse(link.asking.leaving())


def serve(ledger: Ledger, pipes: Pipes, manners: Manners) -> None:
    """Answer whoever speaks over these pipes, until they leave or are gone."""
    writer_of(ledger).ensure_whole("ledger:read")
    if manners.takes:
        writer_of(ledger).ensure_whole("facts:import")
    channel = Channel(pipes, writer_of(ledger).clock, pipes.silence_seconds)
    channel.greet()
    try:
        channel.converse(Serving(store_of(ledger), manners, partial(_ensure_shares, ledger)).serve())
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
        done = link.synced(link.converse(link.asking.pulling(dry=dry)), dry=dry)
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
        selection = select(store_of(ledger), ids)
    with linked(ledger, address, opens, report, silence_seconds) as link:
        sent = link.converse(link.asking.pushing(selection, dry=dry))
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
            link.converse(link.asking.sharing())
        done = link.synced(link.converse(link.asking.pulling()), dry=False)
    if views_are_stale(store_of(ledger)):
        ledger.acting_as(LOCAL).upkeep.rebuild()
    return done


def _remember_origin(ledger: Ledger, wanted: Remote) -> None:
    known = next((remote for remote in remotes(ledger) if remote.name == ORIGIN), None)
    with store_of(ledger).read() as txn:
        is_empty = txn.facts.tip().n == 0
    if known is None and not is_empty:
        raise NotApplicable(f"{ledger.path} is not empty", Action.CLONE_ELSEWHERE_OR_PULL)
    if known is not None and known.address != wanted.address and not is_empty:
        raise NotApplicable(f"{ledger.path} is a clone of {known.address}", "clone to a new place")
    if known is not None and (known.address, known.shares_imports) != (wanted.address, wanted.shares_imports):
        remove_remote(ledger, ORIGIN)
        known = None
    if known is None:
        add_remote(ledger, wanted)


def share_imports(ledger: Ledger, address: str, opens: OpenLedger) -> str:
    """Have one import secret with the ledger at an address: `taken` over, `given`, or the `same` already."""
    writer_of(ledger).ensure_whole("history:import")
    _ensure_shares(ledger)
    with linked(ledger, address, opens) as link:
        return link.converse(link.asking.sharing())


# --- remotes ------------------------------------------------------------------------------------------------------


def remotes(ledger: Ledger) -> list[Remote]:
    writer_of(ledger).ensure_whole("ledger:read")
    with store_of(ledger).read() as txn:
        return peers.load_remotes(txn.sql)


def remote(ledger: Ledger, name: str) -> Remote:
    writer_of(ledger).ensure_whole("ledger:read")
    with store_of(ledger).read() as txn:
        return peers.load_remote(txn.sql, name)


def add_remote(ledger: Ledger, added: Remote) -> Remote:
    """Remember an address by a name."""
    writer_of(ledger).ensure_whole("remote:change")
    if not added.address:
        raise InvalidInput("a remote without an address", FORMS)
    program_of(added.address)
    store_of(ledger).write(partial(_add_remote, structs.replace(added, address=without_password(added.address))))
    return remote(ledger, added.name)


def _add_remote(added: Remote, txn: WriteTxn) -> None:
    peers.add_remote(txn.sql, structs.replace(added, added_at=txn.facts.now_ms))


def remove_remote(ledger: Ledger, name: str) -> None:
    writer_of(ledger).ensure_whole("remote:change")
    store_of(ledger).write(lambda txn: peers.remove_remote(txn.sql, name))


def repin_remote(ledger: Ledger, address: str) -> str | None:
    """Take whichever replica answers at an address next for the one that belongs there. Says which one it was."""
    writer_of(ledger).ensure_whole("remote:change")
    kept = without_password(address)
    pinned = ledger.trust.pinned_replica(kept)
    ledger.trust.unpin_replica(kept)
    return pinned


def refused_events(ledger: Ledger) -> list[RefusedEvent]:
    """Events that other ledgers told and that were refused here, with the replica that told each."""
    writer_of(ledger).ensure_whole("ledger:read")
    with store_of(ledger).read() as txn:
        return load_refused(txn.sql)


def forget_peer(ledger: Ledger, replica: str) -> None:
    """Forget what a replica said of itself and how far it was read; the next sync with it begins anew."""
    writer_of(ledger).ensure_whole("remote:change")
    store_of(ledger).write(lambda txn: peers.forget_peer(txn.sql, replica))


def mark_as_copy(ledger: Ledger) -> None:
    """The next opening for writing gives this ledger a replica id of its own, as it does with a backup."""
    writer_of(ledger).ensure_whole("remote:change")
    store_of(ledger).write(lambda txn: txn.sql.run(NOTE, (COPIED_NOTE, "")))
