"""What all verbs of a ledger share: its store and writer, and names resolved; and the base of its groups of verbs."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import timezone, tzinfo
from typing import Any, Self, cast

from weft.kernel.authority import Authority, LedgerTrust, Vouched, authority_of
from weft.kernel.clock import Clock, UlidSource
from weft.kernel.errors import InvalidInput, StoreError
from weft.ledger.arguments import checked_number
from weft.ledger.model import RevisionTarget, Session
from weft.ledger.read.access import READ_LEDGER, LimitedStore, OriginalsStore
from weft.ledger.read.context_columns import TurnMemory
from weft.ledger.read.revisions import Revision, parse_moment, read_last_moment, read_moment, require, resolve
from weft.ledger.read.sessions import PageCursor, PageRequest, RepositoryOf, to_session
from weft.ledger.read.thread_events import ThreadFacts
from weft.ledger.upkeep.verify import Progress, ensure_view_rules, silent
from weft.ledger.views.rows import event_at, load_turn
from weft.ledger.write.transaction import LeasePatience, LedgerWriter
from weft.ledger.write.turn_events import sweep_dead
from weft.store.fact_log import unfinished_erasure
from weft.store.port import ReadTxn, Store
from weft.store.replicas import authored_event

LEASE_TTL = 30.0
WAIT = 10.0


def _finish_erasing(store: Store) -> None:
    """What an erasure that was cut short left to do, where there is something."""
    with store.read() as txn:
        if unfinished_erasure(txn.sql) is None:
            return
    from weft.ledger.erasing import finish

    finish(store, patience=0)


class LedgerBase:
    """One ledger, open."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        ulids: UlidSource,
        *,
        owner: str,
        lease_ttl: float = LEASE_TTL,
        zone: tzinfo = timezone.utc,  # noqa: UP017
        trust: LedgerTrust | None = None,
        repository_of: RepositoryOf | None = None,
        progress: Progress | None = None,
    ) -> None:
        self._store, self._clock, self._zone = store, clock, zone
        self._repository_of = repository_of
        self._owner, self._ttl = owner, lease_ttl
        self._is_original = True
        self._closed_with: Self | None = None
        self._trust: LedgerTrust = trust or Vouched()
        self._writer = LedgerWriter(store, clock, ulids)
        self._kept_turns = TurnMemory()
        if not store.read_only:
            sweep_dead(self._writer)
            with suppress(StoreError):  # no room, or damage: that is for `erasure.finish` and `verify` to say
                _finish_erasing(store)
            with suppress(StoreError):  # damage, again
                ensure_view_rules(store, progress or silent)

    @property
    def path(self) -> str:
        return self._store.path

    @property
    def replica(self) -> str:
        return self._store.replica

    @property
    def trust(self) -> LedgerTrust:
        """Whether this ledger may act for whoever opened it."""
        return self._trust

    @property
    def authority(self) -> Authority:
        """In whose name this ledger is read and changed, and with which rights."""
        return self._writer.authority

    def acting_as(self, who: Authority | str) -> Self:
        """The same open ledger, read and changed in the name of somebody else: an authority, or the name of an agent
        or a person. Reads nothing; who is not there is refused by the first verb. Closing is left to the original."""
        authority = authority_of(who)
        store = self._store._store if isinstance(self._store, LimitedStore) else self._store
        if not authority.is_unlimited:
            store = cast(Store, LimitedStore(store, authority, self._writer.creators))
        return self._through(store, self._writer.acting_as(authority))

    def originals(self) -> Self:
        """The same open ledger, whose readers are shown every message and result as it was recorded, whatever was
        substituted since. Searching finds what is shown otherwise. Closing is left to the original."""
        return self._through(cast(Store, OriginalsStore(self._store)), self._writer)

    def _through(self, store: Store, writer: LedgerWriter) -> Self:
        """The same open ledger, read and written another way."""
        ledger = copy.copy(self)
        ledger._store, ledger._is_original, ledger._closed_with = store, False, None
        ledger._writer = writer
        for name in [name for name, part in vars(self).items() if isinstance(part, LedgerPart)]:
            delattr(ledger, name)  # its groups of verbs are made anew, in the other name
        return ledger

    def session(self, name: str) -> Session:
        """By label, by alias, or by id."""
        with self._store.read() as txn:
            return to_session(txn, require(txn, name))

    def _changed_session(self, name: str) -> Session:
        """A session that was just changed, for whoever changed it, whether they may read it or not."""
        with self._writer.store.read() as txn:
            return to_session(txn, require(txn, name))

    def resolve(self, name: str) -> str:
        """The id of the turn that these words mean: labels, `main~2`, `main@{3}`, id ends, digest beginnings."""
        with self._store.read() as txn:
            return self._resolve(txn, name).turn.id

    def point(self, name: str) -> RevisionTarget:
        """The same, and which event inside the turn they mean: by its id, or as the place where a session stands."""
        with self._store.read() as txn:
            spot = self._resolve(txn, name)
            event = None if spot.events is None else event_at(txn.facts, spot.turn, spot.events - 1)
            return RevisionTarget(turn_id=spot.turn.id, event_id=event, number=spot.events, session=spot.session)

    def _resolve(self, txn: ReadTxn, name: str) -> Revision:
        return resolve(txn, name, self._parse_time)

    def _parse_time(self, text: str, now: int | None = None) -> int:
        return parse_moment(text, self._clock.now_ms() if now is None else now, self._zone)

    def _moment(self, when: Any, what: str = "time", now: int | None = None) -> int:
        """Unix milliseconds, or words for a time as they are meant at `now`."""
        return self._parse_time(when, now) if isinstance(when, str) else checked_number(when, what)

    def _period(self, wanted: Mapping[str, Any], now: int | None = None) -> dict[str, int]:
        """The first and the last moment that `since` and `until` mean at `now`, as far as they are given."""
        present = self._clock.now_ms() if now is None else now
        first = read_moment(wanted.get("since"), "since", present, self._zone)
        last = read_last_moment(wanted.get("until"), present, self._zone)
        return {name: at for name, at in (("since", first), ("until", last)) if at is not None}

    def _since(self, when: int | str, now: int | None = None) -> int:
        """The first moment of a period that begins then."""
        return self._period({"since": when}, now)["since"]

    def _request(self, listing: str, filters: Mapping[str, Any], limit: int | None, after: str | None) -> PageRequest:
        return PageRequest(listing, self._store.replica, filters, limit, after)

    def _begin(self, request: PageRequest, txn: ReadTxn) -> PageCursor:
        return request.begin(txn.facts.tip().n, self._clock.now_ms())


@contextmanager
def open_thread_facts(
    ledger: LedgerBase, names: Sequence[str], conversations: Sequence[str] = ()
) -> Iterator[ThreadFacts]:
    """The facts of the threads that these names mean, and of conversations by their ids, of one moment."""
    if not names:
        raise InvalidInput("no thread was named", "name sessions or turns")
    ledger._writer.ensure_whole(READ_LEDGER)
    ledger._store.catch_up()
    with ledger._store.read() as txn:
        yield ThreadFacts(txn, [ledger._resolve(txn, name) for name in names], conversations)


class LedgerPart:
    """A group of verbs of one open ledger, such as `ledger.usage`."""

    def __init__(self, ledger: LedgerBase) -> None:
        self._ledger, self._store, self._writer = ledger, ledger._store, ledger._writer
        self._clock, self._zone, self._ttl = ledger._clock, ledger._zone, ledger._ttl
        self._repository_of, self._kept_turns = ledger._repository_of, ledger._kept_turns
        self._resolve, self._parse_time, self._moment = ledger._resolve, ledger._parse_time, ledger._moment


def writer_of(ledger: LedgerBase) -> LedgerWriter:
    return ledger._writer


def vouch_content(ledger: LedgerBase, ref: str) -> None:
    """Let whoever acts refer to a content that they put by themselves, wherever this ledger was open then."""
    ledger._writer.note_put(ref)


def store_of(ledger: LedgerBase) -> Store:
    return ledger._store


def is_recorded_here(ledger: LedgerBase, turn: str) -> bool:
    """Whether this ledger recorded the turn itself, and did not import or pull it."""
    with ledger._store.read() as txn:
        row = load_turn(txn.sql, turn)
        event = None if row is None else authored_event(txn, row.n)
        return event is not None and event.is_own


def owner_of(ledger: LedgerBase) -> str:
    """The name under which this ledger takes leases."""
    return ledger._owner


def zone_of(ledger: LedgerBase) -> tzinfo:
    """Whose days words such as 'yesterday' mean."""
    return ledger._zone


def lease_seconds_of(ledger: LedgerBase) -> float:
    """How long a lease of this ledger is good that nobody renews."""
    return ledger._ttl


def patience_of(ledger: LedgerBase) -> LeasePatience:
    """For a contender that does not wait; leases are stale after the ledger's own TTL."""
    return LeasePatience(ledger._writer, 0, ledger._ttl)
