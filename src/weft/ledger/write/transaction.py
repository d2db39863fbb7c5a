"""One append in the making: contents put, events chained, then one row and the views, in one
transaction; the right that a verb requires, whose ids stand in the events, commands that are done
once, and when a lease counts as given up.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property, partial, wraps
from hashlib import sha256
from typing import Any, Protocol, TypeVar, cast

from msgspec import UNSET, Struct, UnsetType
from msgspec.structs import asdict

from weft.kernel.authority import LOCAL, Authority
from weft.kernel.clock import Clock, RepeatedIds, UlidSource, iso_from_ms
from weft.kernel.contents import ImportSecret, PreparedContent, decode_utf8, json_bytes, text_bytes
from weft.kernel.enums import MessageSource, ProgramKind
from weft.kernel.errors import (
    ContentGone,
    ContentMissing,
    IdCollision,
    InvalidInput,
    KeyTaken,
    LabelTaken,
    NotAllowed,
    SessionBusy,
    StoreError,
    quoted,
)
from weft.kernel.events import (
    Event,
    Named,
    Receipt,
    UnknownEvent,
    Words,
    encode,
    is_name,
    ledger_stream,
    program_stream,
)
from weft.kernel.foreign_input import is_digest
from weft.kernel.ledger_events import AgentCreated
from weft.kernel.typed_names import normal_form, visible_form
from weft.ledger.arguments import checked_length, checked_seconds
from weft.ledger.model import DEFAULT_AGENT, IMPORTED_AGENT, StoredContent
from weft.ledger.read.access import ACTING_KINDS, READ_LEDGER, Access, Creators, chain_ids
from weft.ledger.views import Projector
from weft.ledger.views.projector import when_of
from weft.ledger.views.rows import STANDING_PARTS, Lease, RowMemory, load_program, standing_question
from weft.store.fact_log import LEDGER_SCOPE, Key, LogTip, StoredContentRow, is_erased_content
from weft.store.port import ReadTxn, Store, StraightTurn, WriteTxn
from weft.store.replicas import is_dead
from weft.store.sql import Question, Sql

# --- Whose ids stand in the events of one append: who acted, and on whose behalf.


def _actor_and_behind(ids: tuple[str, ...], stream: str, agent: str) -> tuple[str, tuple[str, ...] | UnsetType]:
    principal, *others = ids
    if stream.startswith("run:") and agent != principal:
        return agent, ids
    return principal, tuple(others) or UNSET


class FixedAttribution:
    """Principals whose ids are known already: whoever acts, then those on whose behalf, the nearest first."""

    def __init__(self, ids: tuple[str, ...]) -> None:
        self.ids = ids

    def of(self, stream: str, agent: str) -> tuple[str, tuple[str, ...] | UnsetType]:
        return _actor_and_behind(self.ids, stream, agent)


class ActorAttribution:
    """An authority that is not the ledger's own user, as ids. Looked up when the first event is begun."""

    def __init__(self, txn: ReadTxn, authority: Authority) -> None:
        self._txn, self._authority = txn, authority

    @cached_property
    def ids(self) -> tuple[str, ...]:
        """Of whoever acts, then of those on whose behalf, the nearest first."""
        return tuple(reversed(chain_ids(self._txn, self._authority)))

    def of(self, stream: str, agent: str) -> tuple[str, tuple[str, ...] | UnsetType]:
        """Actor and `on_behalf_of` of the events of a stream that belongs to an agent."""
        return _actor_and_behind(self.ids, stream, agent)


# --- One append in the making: contents put, events chained, then one row and the views, in one transaction.

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])
MESSAGE_ROOM = 1 << 16
COLLISION_RETRIES = 5
POLL_SECONDS = 0.02
"""Between two attempts of a writer that waits for a session."""


class WriterState:
    """What all writers of one open ledger share, in whoever's name they write."""

    def __init__(self) -> None:
        self.memory = RowMemory()
        self.seen_beats: dict[tuple[str, str], tuple[int, int, float]] = {}
        self.held: dict[tuple[str, str], Lease] | None = {}
        """The leases that were taken here, by kind and key; None once the ledger is being closed."""
        self.holding = threading.Lock()
        """Guards `held`."""
        self.serial = 0
        """Which piece of work of the store was the last that was run for one of these writers."""
        self.disturbed = True
        """Whether that work found no rows in memory: somebody else had written before it, or the numbers of the last
        rows were provisional."""
        self.creators: Creators = {}
        self.put_contents: set[tuple[Authority, str]] = set()
        """Contents that were put by themselves, and by whom: only they may refer to them."""


class LedgerWriter:
    """What every writing verb of one open ledger needs, in the name of one authority."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        ulids: UlidSource,
        authority: Authority = LOCAL,
        state: WriterState | None = None,
    ) -> None:
        self.store, self.clock, self.ulids, self.authority = store, clock, ulids, authority
        self._state = state or WriterState()
        self.seen_beats = self._state.seen_beats

    def acting_as(self, authority: Authority) -> LedgerWriter:
        """A writer of the same open ledger in the name of somebody else."""
        return LedgerWriter(self.store, self.clock, self.ulids, authority, self._state)

    def ensure_allowed(self, right: str) -> None:
        """Refuse what the authority's layers do not allow. Every verb that changes something asks here, before it
        begins; what it changes is asked about in the transaction that changes it, where it is looked up."""
        self.authority.ensure_allowed(right)

    def ensure_whole(self, right: str) -> None:
        """Refuse what concerns the whole ledger to whoever has no right to it."""
        if not self.authority.is_unlimited:
            with self.store.read() as txn:
                Access(txn.sql, txn.facts, self.authority, self.creators).ensure_whole(right)

    @property
    def creators(self) -> Creators:
        return self._state.creators

    def note_put(self, ref: str) -> None:
        """A content was put by itself in this authority's name."""
        if not self.authority.is_unlimited:
            self._state.put_contents.add((self.authority, ref))

    def may_refer_to(self, ref: str) -> bool:
        """Whether the authority put this content by itself. Whoever opened the ledger may refer to every content."""
        return self.authority.is_unlimited or (self.authority, ref) in self._state.put_contents

    def write(
        self,
        work: Callable[[Append], T],
        weight: int = 0,
        *,
        likely: Sequence[Key] = (),
        session: str | None = None,
        imported: ImportScope | None = None,
        restate: Callable[[T, LogTip], T] | None = None,
        ahead: Sequence[Question] = (),
    ) -> T:
        """Run `work` on a new append and commit what it wrote. Ids that turn out taken are minted anew.

        `likely` are contents that the work will probably store, `session` is the label that it will ask for, and
        `ahead` what else it will ask: they are looked up in the same round trip as the transaction's start. With
        `imported` contents are an import's. Work with `restate` makes no use of the numbers that it gets: a store may
        run it before it knows them, and `restate` then tells its result where the log ended.
        """
        if session and self._state.disturbed:
            ahead = (*ahead, standing_question(session))
        straight = StraightTurn(standing_question(session), STANDING_PARTS, restate) if session and restate else None
        ids = RepeatedIds(self.ulids)
        run, retries = partial(self._run, work, ids, imported), COLLISION_RETRIES
        while True:
            try:
                return self.store.write(run, weight, likely, ahead, straight)
            except IdCollision:
                if not retries:
                    raise
                retries -= 1
                ids.skip()

    def scope_in_memory(self, session: str | None, parent: object) -> int | None:
        """The tree that a turn will most likely belong to, by the rows in memory; None where they do not say. It costs
        nothing, and only says of which contents is asked ahead; `scope_in_database` reads."""
        row = self._state.memory.labels.get(session) if session else None
        turn = self._state.memory.turns.get(parent if isinstance(parent, str) else row.head if row and row.head else "")
        return turn.root if turn else None

    def hold(self, lease: Lease) -> None:
        """A lease is being taken here; whoever closes the ledger ends it. One that is being closed takes no more."""
        with self._state.holding:
            if self._state.held is None:
                raise StoreError(f"{self.store.path} is closed", "open it again")
            self._state.held[lease.kind, lease.key] = lease

    def let_go(self, lease: Lease) -> None:
        with self._state.holding:
            if self._state.held is not None:
                self._state.held.pop((lease.kind, lease.key), None)

    def give_all_up(self) -> list[Lease]:
        """Whatever is held at this moment, for whoever closes the ledger; from now on nothing more is."""
        with self._state.holding:
            held, self._state.held = self._state.held or {}, None
            return list(held.values())

    def put_large(self, contents: Iterable[bytes], scope: int) -> None:
        """Contents of more than one row go first, in transactions of their own; the append then finds them."""
        for data in contents:
            self.store.write(partial(_put_bytes, data, scope), len(data))

    def _run(self, work: Callable[[Append], T], ids: RepeatedIds, imported: ImportScope | None, txn: WriteTxn) -> T:
        """Rows held in memory are valid while this writer alone writes; after anything else they are read again."""
        self._state.disturbed = not txn.undisturbed or txn.serial != self._state.serial + 1
        if self._state.disturbed:
            self._state.memory.clear()
        self._state.serial = txn.serial
        try:
            result = work(Append(self, txn, imported, ids.begin()))
        except BaseException:  # what the work did to rows in memory is undone by forgetting them
            self._state.memory.clear()
            raise
        if txn.is_provisional:
            self._state.memory.clear()
        return result


def _put_bytes(data: bytes, scope: int, txn: WriteTxn) -> None:
    txn.facts.put(data, scope)


class ImportScope(Struct, frozen=True):
    """Where an import's contents belong, and the secret that salts them."""

    scope: int
    secret: ImportSecret


class ContentForms:
    """Texts, names and JSON values as contents. How their bytes are kept is said by whoever keeps them."""

    __slots__ = ()

    def put_bytes(self, data: bytes) -> str:
        """The reference under which these bytes are kept."""
        raise NotImplementedError

    def put_text(self, text: str | bytes | StoredContent | PreparedContent, what: str = "text") -> str:
        """The reference of a text, which is kept exactly."""
        if isinstance(text, str):
            return self.put_bytes(text_bytes(text))
        if isinstance(text, bytes):
            return self.put_bytes(text_bytes(decode_utf8(text, what)))
        raise InvalidInput(f"{what} is {type(text).__name__}, not text", "give text, or what put_content gave")

    def named(self, name: str, what: str) -> Named:
        """A name that looks like one stands in the event; anything else is kept as a content."""
        if not isinstance(name, str) or not name:
            raise InvalidInput(f"{what} is {quoted(name)}, not a name", "give text that is not empty")
        name = str.__str__(name)  # also of a subclass, such as a member of an enumeration: what it holds
        return name if is_name(name) else self.words(name)

    def words(self, text: str) -> Words:
        return Words(content=self.put_text(text))


class ContentWriter(ContentForms):
    """Stores contents in one scope and returns their references; equal bytes of a scope are one content."""

    __slots__ = ("_append", "_scope", "_secret", "stored")

    def __init__(self, append: Append, scope: int, secret: ImportSecret | None = None) -> None:
        self._append, self._scope, self._secret = append, scope, secret
        self.stored: list[tuple[str, bytes]] | None = None
        """An import's contents from now on, with their references, where somebody sets a list here."""

    def put_bytes(self, data: bytes) -> str:
        if self._secret is not None:
            return self.put_imported((self._secret.prepare(data),))
        return self._append.remember(self._append.txn.facts.put(data, self._scope))

    def put_imported(self, contents: Sequence[PreparedContent]) -> str:
        """Contents of an origin, as its secret prepares them; returns the last one's reference."""
        stored = self._append.txn.facts.put_imported(contents, self._scope)
        refs = list(map(self._append.remember, stored))
        if self.stored is not None:
            self.stored += zip(refs, (content.data for content in contents), strict=True)
        return refs[-1] if refs else ""

    def put_prepared(self, content: PreparedContent) -> str:
        return self._append.remember(self._append.txn.facts.put_prepared(content, self._scope))

    def put_text(self, text: str | bytes | StoredContent | PreparedContent, what: str = "text") -> str:
        if isinstance(text, PreparedContent):
            return self.put_prepared(text)
        if isinstance(text, StoredContent):
            return self._append.require_content(text.ref)
        return super().put_text(text, what)

    def put_json(self, value: Any, what: str) -> str:
        """The reference of a JSON value; reading it back gives the same value."""
        if isinstance(value, StoredContent):
            return self._append.require_content(value.ref)
        return self.put_bytes(json_bytes(value, what))


class Append:
    """One append: contents are stored, events chained and applied to the views; `seal` writes all of it as rows.

    Events of a turn are applied together, when somebody first looks at the views or at `seal`: a turn is written as
    contents and events first, and becomes rows after that.
    """

    def __init__(
        self,
        writer: LedgerWriter,
        txn: WriteTxn,
        imported: ImportScope | None,
        ulids: RepeatedIds,
    ) -> None:
        self.txn, self.sql = txn, txn.sql
        self.ulids, self.replica = ulids, writer.store.replica
        self.authority = writer.authority
        self._attribution: ActorAttribution | FixedAttribution | None = None
        if not writer.authority.is_local:
            self._attribution = ActorAttribution(ReadTxn(txn.sql, txn.facts), writer.authority)
        self._writer = writer
        self.now_ms = writer.clock.now_ms()
        self.ts = iso_from_ms(self.now_ms)
        self._numbers: dict[str, int] = {}
        self.ledger_contents = ContentWriter(self, LEDGER_SCOPE, imported.secret if imported else None)
        """For labels, names and reasons: never the same content as words of a turn, which may be erased."""
        self.contents = ContentWriter(self, imported.scope, imported.secret) if imported else self.ledger_contents
        self.put_text, self.put_json = self.contents.put_text, self.contents.put_json
        self.put_bytes, self.named = self.contents.put_bytes, self.contents.named
        self.first = txn.facts.tip().n + 1
        """The arrival number of the first event that is not sealed yet."""
        self.lines: list[bytes] = []
        self._event_ids: list[bytes] = []
        self._pending: list[tuple[int, int, bytes, Event | UnknownEvent]] = []
        self._view = Projector(txn.sql, txn.facts, self, writer._state.memory)

    @cached_property
    def access(self) -> Access:
        """What the authority may do to what is changed here."""
        return Access(self.sql, self.txn.facts, self.authority, self._writer.creators, creating=True)

    @property
    def view(self) -> Projector:
        """The views as they are after every event of this append so far."""
        if self._pending:
            pending, self._pending = self._pending, []
            for event in pending:
                self._view.apply(*event)
        return self._view

    def contents_of(self, scope: int) -> ContentWriter:
        """For the contents of a turn, which are shared within its tree."""
        return ContentWriter(self, scope)

    def remember(self, stored: StoredContentRow) -> str:
        ref = stored.ref.hex()
        self._numbers[ref] = stored.n
        return ref

    def require_content(self, ref: str) -> str:
        """A content that was stored before; one that is not here, or was erased, is refused."""
        if not isinstance(ref, str):
            raise InvalidInput(f"a stored content's reference is {quoted(ref)}", "pass what put_content gave")
        if ref not in self._numbers:
            is_known = is_digest(ref) and self._writer.may_refer_to(ref)
            number = self.txn.facts.find_content(bytes.fromhex(ref)) if is_known else None
            if number is None:
                raise ContentMissing(ref)
            if is_erased_content(self.sql, number):
                raise ContentGone(ref)
            self._numbers[ref] = number
        return ref

    def agent(self, name: str) -> str:
        """The id of the agent of this name; the two default agents are their own ids, others are made on first use."""
        if name in (DEFAULT_AGENT, IMPORTED_AGENT):
            return name
        name = normal_form(checked_length(name, "agent's name"))
        if visible_form(name) != name:
            raise InvalidInput(f"an agent's name is {quoted(name)}", "write it in visible letters of one script")
        program_row = self.sql.fetch_row(
            "SELECT id, kind FROM program WHERE (name = ? AND deleted = 0) OR id = ?", (name, name)
        )
        if program_row is not None:
            if program_row[1] not in ACTING_KINDS:
                shown = self.access.is_unlimited
                raise LabelTaken(name, f"that of a program that does not act: a {program_row[1]}" if shown else "taken")
            self.access.ensure_agent(program_row[0], name)
            return str(program_row[0])
        self.authority.ensure_allowed("program:agent:configure")
        program = self.ulids.mint()
        self.stream(program_stream(program), None).add(AgentCreated, name=self.ledger_contents.put_text(name))
        return program

    def stream(self, name: str, prev: str | None, actor: str = DEFAULT_AGENT, *, later: bool = False) -> EventStream:
        """The end of a stream; with `later` its events are applied to the views together. `actor` is the agent that
        the stream belongs to: `ActorAttribution` says when it stands in the events."""
        on_behalf_of: tuple[str, ...] | UnsetType = UNSET
        if self._attribution is not None:
            actor, on_behalf_of = self._attribution.of(name, actor)
        return EventStream(self, name, prev, actor, on_behalf_of, later)

    def ledger_stream(self, actor: str = DEFAULT_AGENT) -> EventStream:
        """The end of the ledger's own stream: what concerns no turn, or a turn after its end."""
        name = ledger_stream(self.replica)
        tip = self.sql.fetch_row("SELECT last FROM stream_tip WHERE stream = ?", (name,))
        return self.stream(name, bytes(tip[0]).hex() if tip else None, actor)

    @property
    def is_by_the_ledger(self) -> bool:
        """Whether nobody but the ledger's own user writes, in nobody's name."""
        return self._attribution is None

    @property
    def acting_ids(self) -> tuple[str, ...]:
        """Ids of the principals in whose name this append is written, whoever acts first."""
        return self._attribution.ids if self._attribution else (DEFAULT_AGENT,)

    def refusal(self, right: str, what: str, hint: str = "") -> NotAllowed:
        """An error that calls those who act by the names that they have now."""
        rows = {id: load_program(self.sql, id) for id in self.acting_ids}
        return NotAllowed(right, [id if row is None else row.name for id, row in rows.items()], what, hint)

    @property
    def is_by_agent(self) -> bool:
        """Whether an agent acts, for itself or for others."""
        if self._attribution is None:
            return False
        rows = (load_program(self.sql, principal) for principal in self._attribution.ids)
        return any(row is not None and row.kind == ProgramKind.AGENT for row in rows)

    def message_source(self, given: MessageSource | None) -> MessageSource | None:
        """Who started a message: as its writer says. What an agent writes is never a person's."""
        return MessageSource.AGENT if given in (None, MessageSource.HUMAN) and self.is_by_agent else given

    @contextmanager
    def by_the_ledger(self) -> Iterator[None]:
        """Streams begun inside are continued by the ledger itself, such as turns whose writers are gone."""
        attribution, self._attribution = self._attribution, None
        try:
            yield
        finally:
            self._attribution = attribution

    @contextmanager
    def in_name_of(self, ids: tuple[str, ...]) -> Iterator[None]:
        """Streams begun inside are continued in the name of these principals: whoever acts, then those on whose
        behalf."""
        attribution = self._attribution
        self._attribution = None if ids == (DEFAULT_AGENT,) else FixedAttribution(ids)
        try:
            yield
        finally:
            self._attribution = attribution

    def seal(self) -> None:
        """Contents, then the one row, then the views: everything this append will ever write."""
        view = self.view
        self.txn.facts.flush()
        if self.lines:
            self.txn.facts.append(self.lines, self._event_ids)
            self.first += len(self.lines)
            self.lines, self._event_ids = [], []
        view.flush()

    def seal_and_forget(self) -> None:
        """Rows in memory may say words that are gone now: whoever writes next reads them again.

        Inside the work, never after it: by then another thread's work keeps rows there that are nowhere else yet.
        """
        self.seal()
        self.view.memory.clear()

    @property
    def next_number(self) -> int:
        """The arrival number that the next event gets."""
        return self.first + len(self.lines)

    def add_event(self, event: Event, *, later: bool = False) -> str:
        """The event as its caller chained it, kept for the row and applied to the views. Returns its id."""
        line = encode(event)
        digest = sha256(line).digest()
        self.add_encoded(event, line, digest, later=later)
        return digest.hex()

    def add_encoded(self, event: Event | UnknownEvent, line: bytes, digest: bytes, *, later: bool = False) -> None:
        """The same of an event that is made already: now, or by another program at a time of its own."""
        when = self.now_ms if event.ts == self.ts else when_of(event, self.txn.facts.now_ms)
        if later:
            self._pending.append((self.next_number, when, digest, event))
        else:
            self.view.apply(self.next_number, when, digest, event)
        self.lines.append(line)
        self._event_ids.append(digest)

    def add_line(self, line: bytes, digest: bytes) -> None:
        """An event that is encoded already, and that its writer has put into the views itself."""
        self.lines.append(line)
        self._event_ids.append(digest)

    def receipt(self, digest: str) -> Receipt:
        tip = self.txn.facts.tip()
        return Receipt(self.replica, tip.n, tip.chain.hex(), digest)

    def number(self, ref: str) -> int:
        number = self._numbers.get(ref)
        return number if number is not None else self.txn.facts.find_content(bytes.fromhex(ref)) or 0

    def content_text(self, n: int) -> str | None:
        return self.txn.facts.text(n)

    def readable_text(self, n: int) -> str | None:
        return self.txn.facts.readable_text(n)


class EventStream:
    """The end of one stream: every event added names the one before it."""

    __slots__ = ("_append", "_later", "actor", "last", "name", "on_behalf_of", "prev")

    def __init__(
        self,
        append: Append,
        name: str,
        prev: str | None,
        actor: str,
        on_behalf_of: tuple[str, ...] | UnsetType = UNSET,
        later: bool = False,
    ) -> None:
        self._append, self.name, self.prev, self._later = append, name, prev, later
        self.actor, self.on_behalf_of = actor, on_behalf_of

    def add(self, kind: type[Event], **fields: Any) -> str:
        append = self._append
        event = kind(
            ts=append.ts,
            stream=self.name,
            prev=self.prev,
            actor=self.actor,
            replica=append.replica,
            on_behalf_of=self.on_behalf_of,
            **fields,
        )
        self.last = event
        self.prev = event_id = append.add_event(event, later=self._later)
        return event_id


class LeasePatience:
    """How long a contender waits. The beats that it saw are remembered by the writer across calls."""

    def __init__(self, writer: LedgerWriter, wait: float, ttl: float) -> None:
        self._clock, self._ttl, self._seen = writer.clock, ttl, writer.seen_beats
        wait = checked_seconds(wait, "wait")
        self._until = writer.clock.monotonic() + wait if wait else 0.0

    def judge_stale(self, lease: Lease, is_gone: Callable[[str], bool] = is_dead) -> bool:
        """`is_gone` tells of owners that are certainly dead; whoever asks about many leases at once asks about each
        owner once."""
        if is_gone(lease.owner):
            return True
        now, place = self._clock.monotonic(), (lease.kind, lease.key)
        if self._seen.get(place, (0, 0, 0.0))[:2] != (lease.epoch, lease.beat):
            self._seen[place] = (lease.epoch, lease.beat, now)
        return now - self._seen[place][2] >= self._ttl

    def keep_trying(self, attempt: Callable[[], T]) -> T:
        while True:
            try:
                return attempt()
            except SessionBusy:
                if self._clock.monotonic() >= self._until:
                    raise
            self._clock.sleep(POLL_SECONDS)


class _WritesLedger(Protocol):
    @property
    def _writer(self) -> LedgerWriter: ...


def requires(right: str, *, whole: bool = False) -> Callable[[F], F]:
    """Marks a verb that changes the ledger, and refuses it before it begins where the authority lacks the right. With
    `whole` it concerns the whole ledger, and needs the right to that; else what it changes is asked about by the verb's
    work, in its transaction."""

    def decorate(verb: F) -> F:
        @wraps(verb)
        def checked(self: _WritesLedger, /, *args: Any, **kwargs: Any) -> Any:
            if whole:
                self._writer.ensure_whole(right)
            else:
                self._writer.ensure_allowed(right)
            return verb(self, *args, **kwargs)

        checked.right, checked.is_whole = right, whole  # type: ignore[attr-defined]
        return cast(F, checked)

    return decorate


def reads_whole(verb: F) -> F:
    """Marks a verb that tells of the whole ledger, and refuses it to whoever may not read all of it."""

    @wraps(verb)
    def checked(self: _WritesLedger, /, *args: Any, **kwargs: Any) -> Any:
        self._writer.ensure_whole(READ_LEDGER)
        return verb(self, *args, **kwargs)

    checked.is_whole = True  # type: ignore[attr-defined]
    return cast(F, checked)


# --- Commands that are done once: a caller's retry key, a digest of what was asked for, and the first answer.

KEPT_MS = 30 * 24 * 3600 * 1000
_LATER_FIELDS = frozenset({("Usage", "cache_write_1h_tokens")})
"""Fields that types got after requests were first digested. Where they are unset, the digest is that of before."""


class KeyedCommand(Struct, frozen=True):
    """A command that carries a retry key."""

    name: str
    key: str
    request: bytes
    """A digest of everything that was asked for."""

    @property
    def key_digest(self) -> bytes:
        return sha256(self.key.encode("utf-8", "surrogatepass")).digest()


class CommandAnswer(Struct, frozen=True):
    """What a command answered, by ids alone: names and texts are read anew, and may be erased meanwhile."""

    node: str
    """The turn or program that it made or changed."""
    details: str | None = None


def keyed_command(
    name: str, key: str | None, request: Sequence[Any], authority: Authority = LOCAL
) -> KeyedCommand | None:
    """None without a key: such a command is done as often as it is sent. In whose name it is sent is part of it."""
    if key is None:
        return None
    if not isinstance(key, str) or not key:
        raise InvalidInput(f"retry key is {quoted(key)}", "it is text that is not empty")
    try:
        plain = _plain_json(request if authority.is_local else [authority.chain, request])
    except RecursionError:
        raise InvalidInput("the request is nested too deeply", "flatten it, or give the inner part as text") from None
    return KeyedCommand(name, key, sha256(json_bytes(plain, "request")).digest())


def _plain_json(value: Any) -> Any:
    """JSON for a request's digest. JSON values stand for themselves, the ledger's own types by their name."""
    if isinstance(value, Struct):
        kind = type(value).__name__
        fields = {name: field for name, field in asdict(value).items() if not _is_later(kind, name, field)}
        return {kind: {name: _plain_json(field) for name, field in fields.items()}}
    if isinstance(value, bytes):
        return {"bytes": value.hex()}
    if isinstance(value, list | tuple):
        return [_plain_json(item) for item in value]
    if isinstance(value, dict):
        return {name: _plain_json(item) for name, item in value.items()}
    return {"unset": True} if value is UNSET else value


def _is_later(kind: str, name: str, value: Any) -> bool:
    return value is UNSET and (kind, name) in _LATER_FIELDS


def find_answer(sql: Sql, command: KeyedCommand | None) -> CommandAnswer | None:
    """What this command answered before. Raises KeyTaken where its key came with another request."""
    if command is None:
        return None
    row = sql.fetch_row("SELECT command, request, node, details FROM command_done WHERE key = ?", (command.key_digest,))
    if row is None:
        return None
    name, request, node, details = row
    if name not in ("", command.name) or bytes(request) != command.request:  # older keys do not tell the name
        raise KeyTaken(command.key)
    return CommandAnswer(node, details)


def run_once(append: Append, command: KeyedCommand | None, work: Callable[[], CommandAnswer]) -> CommandAnswer:
    """Do the work, unless this command was done before: then answer what it answered, and write nothing."""
    answer = find_answer(append.sql, command)
    if answer is not None:
        return answer
    answer = work()
    if command is not None:
        append.sql.run(
            "INSERT INTO command_done(key, command, request, node, details, done_at) VALUES (?, ?, ?, ?, ?, ?)",
            (command.key_digest, command.name, command.request, answer.node, answer.details, append.now_ms),
        )
        append.sql.run("DELETE FROM command_done WHERE done_at < ?", (append.now_ms - KEPT_MS,))
    return answer


def forget_requests(sql: Sql, nodes: Iterable[str]) -> None:
    """Take away the digests of what these turns were asked for with: they could confirm a guess of erased words. The
    keys stay taken, for any request."""
    sql.run_many("UPDATE command_done SET request = ? WHERE node = ?", [(b"", node) for node in nodes])
