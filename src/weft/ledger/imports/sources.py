"""What an import goes by: the secret that names are made with, the source, the transcript on its way in, and the turns
that Weft itself wrote for other tools."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from hashlib import sha256
from typing import Any

from msgspec import Struct, field
from msgspec.structs import astuple, replace

from weft.kernel.canonical import MAX_INTEGER
from weft.kernel.contents import text_bytes
from weft.kernel.enums import LinkReason
from weft.kernel.errors import NotApplicable
from weft.kernel.events import encode, import_stream
from weft.kernel.imported import ImportSecret, imported_turn_id
from weft.kernel.kinds import KINDS
from weft.kernel.ledger_events import TurnLinked
from weft.ledger.imports.kept_sources import RawFile, erased_contents
from weft.ledger.imports.natives import EncodedEvents, NativeSession, NativeTurn, TurnDraft
from weft.ledger.imports.provisional import OpenTail, drop_tails, sources_with_tails
from weft.ledger.model import IMPORTED_AGENT
from weft.ledger.views.rows import TurnRow
from weft.ledger.views.versions import mapping_number
from weft.ledger.write.append import Append, LedgerWriter
from weft.store.facts import local_value
from weft.store.port import Store, WriteTxn
from weft.store.records import KEY_BYTES
from weft.store.sql import Sql

KEY = "import_secret"


def import_secret(store: Store) -> bytes:
    with store.read() as txn:
        return bytes.fromhex(local_value(txn.sql, KEY))


def adopt_secret(store: Store, secret: bytes) -> None:
    """Take over another ledger's, while nothing has been imported under the own one."""

    def work(txn: WriteTxn) -> None:
        if local_value(txn.sql, KEY) == secret.hex():
            return
        used = ("import_source", "import_name", "link WHERE why = 'resumed'")
        if any(txn.sql.one(f"SELECT 1 FROM {table} LIMIT 1") for table in used):
            raise NotApplicable(
                f"{store.path} has imports under a secret of its own", "share it before the first import"
            )
        txn.sql.run("UPDATE local SET value = ? WHERE key = ?", (secret.hex(), KEY))

    store.write(work)


class ImportSource(Struct, frozen=True, kw_only=True):
    """A file as it was when it was read."""

    name: str
    size: int
    stamp: int
    """Modification time in nanoseconds."""
    digest: bytes
    mapping: str = ""
    open: bool = False
    """Its last turn was still being written and was left out."""
    kept: int | None = None
    """So many of its bytes are kept verbatim; None: all of them."""
    read_at: int = 0
    """When its reading began, in Unix milliseconds."""

    @property
    def origin(self) -> str:
        return self.mapping.rpartition("/")[0]


class ReadSources:
    """Which sources of one origin were read to their end, and how they were then: noted beside the facts, with the next
    write."""

    def __init__(self, writer: LedgerWriter, secret: ImportSecret, origin: str, mapping: str, *, remap: bool) -> None:
        """`mapping` names how they are read now; with `remap` a source that was read another way is due again."""
        self._writer, self._secret = writer, secret
        self._origin, self._mapping, self._remap = origin, mapping, remap
        self._waiting: list[tuple[Any, ...]] = []
        """Rows that are to be written."""
        self._alike: set[str] = set()
        """Of these, sources that were found to be as they were: so are their open tails."""

    def last_read(self, name: str) -> ImportSource | None:
        """A source as it was when it was last read to its end, by whichever importer."""
        with self._writer.store.read() as txn:
            row = txn.sql.one(
                "SELECT size, stamp, digest, mapping, open, kept, read_at FROM import_source WHERE name IN (?, ?)",
                (name, self._secret.reference(text_bytes(name)).hex()),
            )
        if row is None:
            return None
        size, stamp, digest, mapping, is_open, kept, read_at = row
        return ImportSource(
            name=name,
            size=size,
            stamp=stamp,
            digest=bytes(digest),
            mapping=mapping,
            open=bool(is_open),
            kept=kept,
            read_at=read_at,
        )

    def is_due(self, source: ImportSource, quiet: bool) -> bool:
        """Is a source that has not changed to be read again: for a newer mapping, or for the turn left open then?"""
        return (self._remap and source.mapping != self._mapping) or (source.open and quiet)

    def remember(self, source: ImportSource, *, alike: bool = False) -> None:
        """The source has been read to its end, or is `alike` to what was read then: noted with the next write, or by
        `finish`."""
        (self._alike.add if alike else self._alike.discard)(source.name)
        read_at = source.read_at or self._writer.clock.now_ms()
        columns = (source.size, source.stamp, source.digest, source.open, read_at, source.kept)
        self._waiting.append((source.name, self._origin, self._mapping, *columns))

    def finish(self) -> None:
        """Note what no write has noted."""
        if self._waiting:
            self._writer.store.write(self.note)
            self.forget_noted()

    def note(self, txn: WriteTxn) -> None:
        """Write what waits. It waits on until `forget_noted`: the transaction may be run again."""
        is_erased = erased_contents(txn, self._secret)
        txn.sql.run_many(
            "INSERT INTO import_source(name, origin, mapping, size, stamp, digest, open, read_at, kept)"
            " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (name) DO UPDATE SET origin = excluded.origin,"
            " mapping = excluded.mapping, size = excluded.size, stamp = excluded.stamp, digest = excluded.digest,"
            " open = excluded.open, read_at = excluded.read_at, kept = excluded.kept",
            [(self._noted_as(name, is_erased), *columns) for name, *columns in self._waiting],
        )
        for name, _, _, _, stamp, _, is_open, _, _ in self._waiting:
            if not (is_open and name in self._alike):
                drop_tails(txn.sql, name, but=stamp if is_open else None)

    def forget_noted(self) -> None:
        """What waited is written, and lasts."""
        self._waiting = []

    def _noted_as(self, name: str, is_erased: Callable[[bytes], bool]) -> str:
        """A name that was erased does not come back: the source goes by the reference that is left of it."""
        data = text_bytes(name)
        return self._secret.reference(data).hex() if is_erased(data) else name

    def forget_tails(self, is_there: Callable[[str], bool]) -> list[str]:
        """The open tails of sources that are gone go too; the sources' names."""
        with self._writer.store.read() as txn:
            gone = [name for name in sources_with_tails(txn.sql) if not is_there(name)]
        if gone:
            self._writer.store.write(partial(_drop, gone))
        return gone


def _drop(sources: list[str], txn: WriteTxn) -> None:
    for name in sources:
        drop_tails(txn.sql, name)


class ImportCounts(Struct):
    """What an import brought."""

    sessions: int = 0
    turns: int = 0
    known: int = 0
    superseded: int = 0
    """Turns in whose place another version stands: one that a source was rewritten to, or that says other words."""
    replaced_in: dict[str, int] = {}
    """Turns that say what the version in their place does not, by the label of their session. One that came and is not
    shown, since another one stands in its place, is among them."""
    links: int = 0
    open_turns: int = 0
    answered_turns: int = 0
    """Those of the open turns that end with their last record, unless more comes soon."""
    erased: int = 0
    """Turns that were passed over, since they were erased."""


class TranscriptTurn(Struct, frozen=True):
    """A turn of the transcript at hand, as the ledger has it."""

    id: str
    digest: str
    end: int
    """Where it ends in its source."""
    erased: bool = False
    outdated: bool = False
    """It was here already, and another version stood in its place."""
    is_new: bool = False
    """It was not here before."""


class Task(Struct):
    """One transcript on its way in."""

    session: NativeSession
    file: str
    counts: ImportCounts
    reread: bool
    raw: RawFile | None
    tail: OpenTail | None = None
    end: int = 0
    landed: list[TranscriptTurn] = field(default_factory=list)

    def mark(self) -> TaskMark:
        return TaskMark(len(self.landed), self.raw.at if self.raw else 0, astuple(self.counts))

    def go_back(self, mark: TaskMark) -> None:
        """What came since has not lasted."""
        del self.landed[mark.landed :]
        if self.raw:
            self.raw.at = mark.at
        for name, value in zip(ImportCounts.__struct_fields__, mark.counts, strict=True):
            setattr(self.counts, name, value)


class TaskMark(Struct, frozen=True):
    """How far a task was."""

    landed: int
    at: int
    counts: tuple[int, ...]


BATCH_TURNS = 64
BATCH_BYTES = 2 * 1024 * 1024


def batches(turns: Iterable[NativeTurn]) -> Iterator[tuple[list[NativeTurn], bool]]:
    """Some turns at a time, and whether they are the last; a transcript without turns has one empty batch."""
    batch: list[NativeTurn] = []
    size = 0
    for turn in turns:
        if len(batch) >= BATCH_TURNS or size >= BATCH_BYTES:
            yield batch, False
            batch, size = [], 0
        batch.append(turn)
        size += sum(map(len, turn.records)) if turn.prepared is None else turn.prepared.size
    yield batch, True


ROW_EVENTS = 128
FindTurn = Callable[[str], TurnRow | None]


class Resumes:
    """The written turns of one origin."""

    def __init__(self, mapping: str) -> None:
        self.mapping = mapping
        self._any: bool | None = None

    def find(self, sql: Sql, find_turn: FindTurn, grows_from: str | None, source: str) -> TurnRow | None:
        """The turn that these records were written from, by this mapping or an older one."""
        if self._any is None:
            self._any = sql.one("SELECT 1 FROM link WHERE why = 'resumed' LIMIT 1") is not None
        if not self._any:
            return None
        origin, number = self.mapping.rpartition("/")[0], mapping_number(self.mapping)
        for older in range(number, 0, -1):
            child = imported_turn_id(grows_from, f"{origin}/{older}", source)
            rows = sql.all("SELECT parent FROM link WHERE child = ? AND why = 'resumed' ORDER BY parent", (child,))
            found = [row for (parent,) in rows if (row := find_turn(parent)) is not None]
            if found:
                return min(found, key=lambda row: (-row.current, row.id))
        return None

    def claim(
        self,
        append: Append,
        secret: ImportSecret,
        pairs: Sequence[tuple[NativeTurn, str]],
        is_known: Callable[[Append, bytes], bool],
    ) -> int:
        """Every written turn gets its link. Parents come before children, as an importer gives them."""
        digests: list[str] = []
        counted = 0
        for turn, parent in pairs:
            grows_from = None if turn.parent is None else digests[turn.parent]
            child = imported_turn_id(grows_from, self.mapping, secret.source(turn.records))
            digests.append(append.view.turn(parent).digest)
            event = TurnLinked(
                stream=import_stream(child),
                prev=None,
                actor=IMPORTED_AGENT,
                child=child,
                parent=parent,
                why=LinkReason.RESUMED,
            )
            if not is_known(append, sha256(encode(event)).digest()):
                append.add_event(event)
                counted += 1
            if len(append.lines) >= ROW_EVENTS:
                append.seal()
        self._any = True
        return counted


NAMED = "SELECT t.id FROM import_name i JOIN turn t ON t.n = i.turn WHERE i.key = ?"
_WAITING = (
    "SELECT w.child, w.wants, w.why, w.session FROM import_wait w WHERE EXISTS (SELECT 1 FROM import_name n"
    " WHERE n.key = w.wants) OR EXISTS (SELECT 1 FROM session s WHERE s.id = w.session AND s.head IS NOT NULL)"
)


class NativeNames:
    """The native ids of one origin's turns, by which links from other files find them."""

    def __init__(self, secret: ImportSecret, origin: str) -> None:
        self._secret, self._domain = secret, origin.encode() + b"\0"

    def keys_of(self, turn: NativeTurn) -> set[bytes]:
        if turn.prepared is not None:
            return set(turn.prepared.keys)
        return {self._key(name) for name in (turn.key, *turn.names)}

    def note(self, append: Append, batch: Sequence[NativeTurn], landed: Sequence[TranscriptTurn]) -> None:
        """Of turns whose rows are written, and what these want to be linked to."""
        places = [(turn, append.view.turn(at.id)) for turn, at in zip(batch, landed, strict=True) if not at.erased]
        names = sorted({(key, row.n) for turn, row in places for key in self.keys_of(turn)})
        append.sql.run_many("INSERT INTO import_name(key, turn) VALUES (?, ?) ON CONFLICT DO NOTHING", names)
        for turn, row in places:
            if turn.link is not None and turn.parent is None:
                wants = self._key(turn.link.to)
                session = None if turn.link.session is None else self._secret.session_id(turn.link.session)
                append.sql.run(
                    "INSERT INTO import_wait(child, wants, why, session) VALUES (?, ?, ?, ?) ON CONFLICT DO NOTHING",
                    (row.id, wants, turn.link.why, session),
                )

    def waiting(self, sql: Sql) -> list[tuple[str, bytes, str, str | None]]:
        """Links whose other end may have come: the child, the key that it wants, why, and a session."""
        return [(child, bytes(wants), why, session) for child, wants, why, session in sql.all(_WAITING)]

    def parent_of(self, append: Append, child: str, wants: bytes, session: str | None) -> TurnRow | None:
        """The turn that a link leads to."""
        found = append.sql.all(NAMED, (wants,))
        parents = [row for (id,) in found if id != child and (row := append.view.find_turn(id)) is not None]
        if not parents and session is not None:
            parents = last_before(append, session, child)
        number = append.view.turn(child).session
        return min(parents, key=lambda row: (row.session != number, -row.current, row.id), default=None)

    def _key(self, name: str) -> bytes:
        return sha256(self._domain + text_bytes(name)).digest()[:KEY_BYTES]


def whole_turn(turn: NativeTurn) -> NativeTurn:
    """With its items, wherever they were left."""
    return turn if turn.load_items is None else replace(turn, items=turn.load_items(), load_items=None)


def fitting_draft(
    turn: NativeTurn, grows_from: str | None, compacts: tuple[str | None, str | None]
) -> TurnDraft | None:
    """The events that were prepared for a turn, if it hangs where it was supposed to."""
    draft = turn.prepared.draft if turn.prepared is not None else None
    return draft if draft is not None and (draft.grows_from, draft.compacts) == (grows_from, compacts) else None


def add_events(append: Append, made: EncodedEvents) -> str:
    """Events whose contents are here; returns the last one's id."""
    for event, line, digest in zip(made.events or map(KINDS.decode, made.lines), made.lines, made.ids, strict=True):
        append.add_encoded(event, line, digest)
    return made.ids[-1].hex()


def last_before(append: Append, session: str, child: str) -> list[TurnRow]:
    """The turn that a session stood on when another one was begun from it, as far as times tell."""
    row, begun = append.view.find_session_id(session), append.view.turn(child)
    if row is None:
        return []
    latest = MAX_INTEGER if begun.synthesised else begun.started_at
    found = append.sql.one(
        "SELECT id FROM turn WHERE session = ? AND id <> ? AND current = 1 AND started_at <= ?"
        " ORDER BY started_at DESC, depth DESC, id LIMIT 1",
        (row.n, child, latest),
    )
    return [append.view.turn(found[0])] if found else []
