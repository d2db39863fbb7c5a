"""One append in the making: contents put, events chained, then one row and the views, in one transaction."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from functools import partial
from hashlib import sha256
from typing import Any, TypeVar

from msgspec import UNSET, UnsetType

from weft.kernel.ambient import Clock
from weft.kernel.chain import Receipt
from weft.kernel.contents import decode_utf8, json_bytes, showable, text_bytes
from weft.kernel.errors import ContentGone, ContentMissing, IdCollision, InvalidInput, LabelTaken, StoreError
from weft.kernel.events import Event, encode, program_stream
from weft.kernel.facts import is_digest
from weft.kernel.fields import Named, Words, is_name
from weft.kernel.imported import ImportSecret
from weft.kernel.ledger_events import AgentCreated
from weft.kernel.times import iso_from_ms
from weft.kernel.ulid import UlidSource
from weft.ledger.arguments import checked_length
from weft.ledger.model import (
    DEFAULT_AGENT,
    IMPORTED_AGENT,
    StoredContent,
)
from weft.ledger.views import Projector
from weft.ledger.views.rows import RowMemory, find_session, load_turn, standing_question
from weft.ledger.views.values import text_if_there
from weft.ledger.write.contents import Preparation
from weft.store.erased_contents import is_husk
from weft.store.port import Store, WriteTxn
from weft.store.records import LEDGER_SCOPE, Stored

T = TypeVar("T")
MESSAGE_ROOM = 1 << 16
COLLISION_RETRIES = 5
ACTING = ("agent", "human")
"""Kinds of program in whose name events are written."""


class LedgerWriter:
    """What every writing verb of one open ledger needs."""

    def __init__(self, store: Store, clock: Clock, ulids: UlidSource) -> None:
        self.store, self.clock, self.ulids = store, clock, ulids
        self._memory = RowMemory()
        self.seen_beats: dict[int, tuple[int, int, float]] = {}
        self._held: dict[int, str] | None = {}
        self._holding = threading.Lock()
        self._serial, self._disturbed = 0, True

    def write(
        self,
        work: Callable[[Append], T],
        weight: int = 0,
        ready: Preparation | None = None,
        secret: ImportSecret | None = None,
        session: str | None = None,
    ) -> T:
        """Run `work` on a fresh draft and keep what it made. Ids that turn out taken are minted anew.

        With `secret` the draft's contents are imported ones, salted by it. `session` is the label of the one that will
        be asked for, unless it is remembered.
        """
        keys = ready.keys() if ready else ()
        ahead = (standing_question(session),) if session and self._disturbed else ()
        for _ in range(COLLISION_RETRIES):
            try:
                return self.store.write(lambda txn: self._run(work, txn, ready, secret), weight, keys, ahead)
            except IdCollision:
                self.ulids.skip()
        return self.store.write(lambda txn: self._run(work, txn, ready, secret), weight, keys, ahead)

    def prepare(self, session: str | None, parent: object) -> Preparation:
        """For contents of a turn that will most likely belong to this tree; should it not, they are looked up later."""
        known = self._memory.labels.get(session) if session else None
        turn = self._memory.turns.get(parent if isinstance(parent, str) else known.head if known and known.head else "")
        return Preparation(self.store.prepare, turn.root if turn else None)

    def hold(self, key: int, turn: str) -> None:
        """A turn is being begun here; whoever closes the ledger ends it. One that is being closed begins no more."""
        with self._holding:
            if self._held is None:
                raise StoreError(f"{self.store.path} is closed", "open it again")
            self._held[key] = turn

    def let_go(self, key: int) -> None:
        with self._holding:
            if self._held is not None:
                self._held.pop(key, None)

    def give_all_up(self) -> list[tuple[int, str]]:
        """Whatever is held at this moment, for whoever closes the ledger; from now on nothing more is."""
        with self._holding:
            held, self._held = self._held or {}, None
            return list(held.items())

    def put_large(self, contents: Iterable[bytes], scope: int) -> None:
        """Contents of more than one row go first, in transactions of their own; the append then finds them."""
        for data in contents:
            self.store.write(partial(_put, data, scope), len(data))

    def _run(
        self, work: Callable[[Append], T], txn: WriteTxn, ready: Preparation | None, secret: ImportSecret | None
    ) -> T:
        """Rows held in memory are good while this desk alone writes; anything else, and they are read again."""
        self._disturbed = not txn.undisturbed or txn.serial != self._serial + 1
        if self._disturbed:
            self._memory.clear()
        self._serial = txn.serial
        try:
            return work(Append(self, txn, ready, secret))
        except BaseException:  # what the work did to rows in memory is undone by forgetting them
            self._memory.clear()
            raise


def _put(data: bytes, scope: int, txn: WriteTxn) -> None:
    txn.facts.put(data, scope)


class Append:
    """Collects the events of one append, with the views already as they will be. `seal` writes it all."""

    def __init__(
        self, writer: LedgerWriter, txn: WriteTxn, ready: Preparation | None = None, secret: ImportSecret | None = None
    ) -> None:
        self.txn, self.sql = txn, txn.sql
        self._texts, self._values = (ready.texts, ready.values) if ready else ({}, {})
        self.ulids, self.replica = writer.ulids, writer.store.replica
        self.now_ms = writer.clock.now_ms()
        self.ts = iso_from_ms(self.now_ms)
        self.scope = LEDGER_SCOPE
        self._put = txn.facts.put if secret is None else partial(txn.facts.put_imported, secret)
        self._numbers: dict[str, int] = {}
        self.gathered: list[tuple[str, bytes]] | None = None
        """Contents put, with their references, where somebody asks for them."""
        self.first = txn.facts.tip().n + 1
        self.lines: list[bytes] = []
        self.ids: list[bytes] = []
        self.view = Projector(txn.sql, txn.facts, self, writer._memory)

    def put_bytes(self, data: bytes) -> str:
        ref = self._keep(self._put(data, self.scope))
        if self.gathered is not None:
            self.gathered.append((ref, data))
        return ref

    def _keep(self, stored: Stored) -> str:
        ref = stored.ref.hex()
        self._numbers[ref] = stored.n
        return ref

    def put_text(self, text: str | bytes | StoredContent, what: str = "text") -> str:
        """The reference of a text, kept exactly. One that was prepared belongs to the turn: where the same words also
        name a session, that is another content, or erasing the one would take the other."""
        if (ready := self._texts.get(id(text))) is not None and self.scope != LEDGER_SCOPE:
            return self._keep(self.txn.facts.put_prepared(ready, self.scope))
        if isinstance(text, str):
            return self.put_bytes(text_bytes(text))
        if isinstance(text, StoredContent):
            return self._known(text.ref)
        if isinstance(text, bytes):
            return self.put_bytes(text_bytes(decode_utf8(text, what)))
        raise InvalidInput(f"{what} is {type(text).__name__}, not text", "give text, or what put_content gave")

    def put_json(self, value: Any, what: str) -> str:
        """The reference of a JSON value; reading it back gives the same value."""
        if (ready := self._values.get(id(value))) is not None and self.scope != LEDGER_SCOPE:
            return self._keep(self.txn.facts.put_prepared(ready, self.scope))
        if isinstance(value, StoredContent):
            return self._known(value.ref)
        return self.put_bytes(json_bytes(value, what))

    def named(self, name: str, what: str) -> Named:
        """A name that looks like one stands in the event; anything else is kept as a content."""
        if not isinstance(name, str) or not name:
            raise InvalidInput(f"{what} is {name!r}, not a name", "give text that is not empty")
        return name if is_name(name) else self.words(name)

    def words(self, text: str) -> Words:
        return Words(content=self.put_text(text))

    def _known(self, ref: str) -> str:
        if not isinstance(ref, str):
            raise InvalidInput(f"a stored content's reference is {ref!r:.80}", "pass what put_content gave")
        if ref not in self._numbers:
            number = self.txn.facts.find_content(bytes.fromhex(ref)) if is_digest(ref) else None
            if number is None:
                raise ContentMissing(ref)
            if is_husk(self.sql, number):
                raise ContentGone(ref)
            self._numbers[ref] = number
        return ref

    def agent(self, name: str) -> str:
        """The id of the agent of this name; the two default agents are their own ids, others are made on first use."""
        if name in (DEFAULT_AGENT, IMPORTED_AGENT):
            return name
        if showable(checked_length(name, "agent's name")) != name:
            raise InvalidInput(f"an agent's name is {name!r:.80}", "it is text without NUL and lone surrogates")
        found = self.sql.one("SELECT id, kind FROM program WHERE (name = ? AND deleted = 0) OR id = ?", (name, name))
        if found is not None:
            if found[1] not in ACTING:
                raise LabelTaken(name, f"that of a program that does not act: a {found[1]}")
            return str(found[0])
        scope, self.scope = self.scope, LEDGER_SCOPE
        program = self.ulids.mint()
        self.stream(program_stream(program), None).add(AgentCreated, name=self.put_text(name))
        self.scope = scope
        return program

    def stream(self, name: str, prev: str | None, actor: str = DEFAULT_AGENT) -> EventStream:
        return EventStream(self, name, prev, actor)

    def seal(self) -> None:
        """Contents, then the one row, then the views: everything this append will ever write."""
        self.txn.facts.flush()
        if self.lines:
            self.txn.facts.append(self.lines, self.ids)
            self.first += len(self.lines)
            self.lines, self.ids = [], []
        self.view.flush()

    def seal_and_forget(self) -> None:
        """Rows in memory may say words that are gone now: whoever writes next reads them again.

        Inside the work, never after it: by then another thread's work keeps rows there that are nowhere else yet.
        """
        self.seal()
        self.view.memory.clear()

    def add_event(self, event: Event) -> str:
        """The event as it is: chained by its caller, applied to the views, kept for the row. Returns its id."""
        line = encode(event)
        digest = sha256(line).digest()
        when = self.txn.facts.now_ms if event.ts is UNSET else self.now_ms
        self.view.apply(self.first + len(self.lines), when, digest, event)
        self.lines.append(line)
        self.ids.append(digest)
        return digest.hex()

    def receipt(self, digest: str) -> Receipt:
        tip = self.txn.facts.tip()
        return Receipt(self.replica, tip.n, tip.chain.hex(), digest)

    def number(self, ref: str) -> int:
        known = self._numbers.get(ref)
        return known if known is not None else self.txn.facts.find_content(bytes.fromhex(ref)) or 0

    def content_text(self, n: int) -> str | None:
        return text_if_there(self.txn.facts, n)


class EventStream:
    """The end of one stream: every event added names the one before it."""

    __slots__ = ("actor", "append", "name", "prev")

    def __init__(self, append: Append, name: str, prev: str | None, actor: str) -> None:
        self.append, self.name, self.prev, self.actor = append, name, prev, actor

    def add(self, kind: type[Event], **fields: Any) -> str:
        append = self.append
        event = kind(ts=append.ts, stream=self.name, prev=self.prev, actor=self.actor, replica=append.replica, **fields)
        self.prev = made = append.add_event(event)
        return made


def expected_scope(writer: LedgerWriter, session: str | None, parent: str | UnsetType | None) -> int:
    """The tree that a turn will most likely belong to; should it not, its large contents are stored there again."""
    with writer.store.read() as txn:
        found = find_session(txn.sql, session) if session else None
        at = parent if isinstance(parent, str) else found.head if found else None
        row = load_turn(txn.sql, at) if at else None
        (highest,) = txn.sql.one("SELECT max(n) FROM segment") or (0,)
        return row.root if row else (highest or 0) + 1
