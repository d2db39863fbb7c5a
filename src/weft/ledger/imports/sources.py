"""What an import goes by: the secret that names are made with, the source and the transcript on
its way in; stretches of a source kept verbatim and small; and the open tail of a source that is
still written to, never a fact.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any

import orjson
import zstandard
from msgspec import UNSET, Struct, convert, field, to_builtins
from msgspec.structs import astuple, replace

from weft.kernel.contents import ERASED, MAX_INTEGER, ImportSecret, imported_turn_id, showable, text_bytes
from weft.kernel.enums import LinkReason
from weft.kernel.errors import ContentGone, ContentMissing, Damaged, FactDamaged, NotApplicable
from weft.kernel.events import encode, import_stream
from weft.kernel.foreign_input import KINDS
from weft.kernel.ledger_events import TurnLinked
from weft.ledger.imports.imported_turns import (
    EncodedEvents,
    Item,
    JsonContent,
    NativeCall,
    NativeMessage,
    NativeSession,
    NativeTurn,
    TurnDraft,
    value_bytes,
)
from weft.ledger.model import IMPORTED_AGENT, Part, ReasoningPart, TextPart
from weft.ledger.read.access import access_of
from weft.ledger.read.revisions import session_named
from weft.ledger.views.rows import TurnRow, load_session, text_of
from weft.ledger.views.sessions import mapping_number
from weft.ledger.write.transaction import Append, LedgerWriter
from weft.store.fact_log import KEY_BYTES, ErasedContents, is_erased_content, local_value
from weft.store.port import ReadTxn, Store, WriteTxn
from weft.store.sql import Sql

# --- Stretches of a source, kept verbatim and small: most of what is in them lies in the ledger as contents already.

MAGIC = b"weft.raw.1\n"
REF_BYTES = 32
LEVEL, MATCHED_BYTES = 7, 6
"""Of zstd: what there is to find are long matches with contents. Looking for shorter ones, too, packs worse."""
PIECE_BYTES = 8 * 1024 * 1024
DICTIONARY_BYTES = 32 * 1024 * 1024
HEAD_BYTES = len(MAGIC) + 4
WORTH = 200
"""A content shorter than this helps less than its reference costs."""


class RawFile:
    """The part of a source file that is still to be kept."""

    def __init__(self, path: Path, start: int, end: int, *, grows: bool = True) -> None:
        """`grows`: what was kept of it is still how it begins."""
        self._path, self.at, self.end, self.grows = path, start, end, grows

    def take(self, until: int | None = None) -> Iterable[tuple[int, bytes]]:
        """The stretches up to a place, or to the end, each at most 8 MiB."""
        until = self.end if until is None else min(until, self.end)
        with self._path.open("rb") as file:
            file.seek(self.at)
            while self.at < until and (piece := file.read(min(PIECE_BYTES, until - self.at))):
                yield self.at, piece
                self.at += len(piece)


class RawBytes(RawFile):
    """The part of an importer's own copy that is still to be kept, where the source holds more than one session."""

    def __init__(self, data: bytes) -> None:
        super().__init__(Path(), 0, len(data), grows=False)
        self._data = data

    def take(self, until: int | None = None) -> Iterable[tuple[int, bytes]]:
        until = self.end if until is None else min(until, self.end)
        while self.at < until:
            piece = self._data[self.at : min(self.at + PIECE_BYTES, until)]
            yield self.at, piece
            self.at += len(piece)


def pack(piece: bytes, contents: Iterable[tuple[str, bytes]]) -> bytes:
    chosen = _dictionary_contents(contents)
    dictionary = _dictionary_bytes(chosen.values())
    reach = len(dictionary) + len(piece)
    window = max(10, min(27, reach.bit_length()))
    settings = zstandard.ZstdCompressionParameters.from_level(
        LEVEL, source_size=reach, window_log=window, min_match=MATCHED_BYTES
    )
    frame = zstandard.ZstdCompressor(dict_data=_as_dict(dictionary), compression_params=settings).compress(piece)
    refs = b"".join(bytes.fromhex(ref) for ref in chosen)
    return MAGIC + len(chosen).to_bytes(4, "big") + refs + frame


def is_packed_with(packed: bytes, contents: Iterable[tuple[str, bytes]]) -> bool:
    """Would `pack` use the same contents?"""
    return references_in(packed) == [bytes.fromhex(ref) for ref in _dictionary_contents(contents)]


def _dictionary_contents(contents: Iterable[tuple[str, bytes]]) -> dict[str, bytes]:
    """As many as a dictionary holds, each once."""
    chosen: dict[str, bytes] = {}
    size = 0
    for ref, data in contents:
        if ref not in chosen and size + len(data) <= DICTIONARY_BYTES:
            chosen[ref] = data
            size += len(data)
    return chosen


def unpack(packed: bytes, content: Callable[[str], bytes]) -> bytes:
    """The stretch as it lay in its source; `content` gives a content by its reference."""
    frame = HEAD_BYTES + count_of_references(packed) * REF_BYTES
    if frame >= len(packed):
        raise FactDamaged("kept stretch", packed[:16].hex(), "is cut")
    refs = (ref.hex() for ref in references_in(packed))
    dictionary = _dictionary_bytes(_up_to(DICTIONARY_BYTES, map(content, refs)))
    unpacker = zstandard.ZstdDecompressor(dict_data=_as_dict(dictionary), max_window_size=1 << 27)
    try:
        if zstandard.frame_content_size(packed[frame:]) > PIECE_BYTES:
            raise FactDamaged("kept stretch", packed[:16].hex(), f"unpacks to more than {PIECE_BYTES} bytes")
        return unpacker.decompress(packed[frame:], max_output_size=PIECE_BYTES)
    except zstandard.ZstdError as error:
        raise FactDamaged("kept stretch", packed[:16].hex(), f"cannot be unpacked: {error}") from error


def count_of_references(packed: bytes) -> int:
    """How many contents a stretch needs to be unpacked."""
    if not packed.startswith(MAGIC):
        raise FactDamaged("kept stretch", packed[:16].hex(), "is of no known form")
    return int.from_bytes(packed[len(MAGIC) : HEAD_BYTES], "big")


def references_in(packed: bytes) -> list[bytes]:
    """The references of these contents, as far as the bytes at hand go."""
    end = min(len(packed), HEAD_BYTES + count_of_references(packed) * REF_BYTES)
    return [packed[at : at + REF_BYTES] for at in range(HEAD_BYTES, end, REF_BYTES)]


def _up_to(limit: int, contents: Iterable[bytes]) -> Iterator[bytes]:
    for data in contents:
        limit -= len(data)
        if limit < 0:
            raise FactDamaged("kept stretch", "dictionary", f"is of more than {DICTIONARY_BYTES} bytes")
        yield data


def _as_dict(dictionary: bytes) -> zstandard.ZstdCompressionDict | None:
    if not dictionary:
        return None
    return zstandard.ZstdCompressionDict(dictionary, dict_type=zstandard.DICT_TYPE_RAWCONTENT)


def _dictionary_bytes(contents: Iterable[bytes]) -> bytes:
    """Contents as they stand in JSON: this exact way of writing them is part of the form and never changes."""
    return b"".join(map(_as_in_json, contents))


def _as_in_json(data: bytes) -> bytes:
    for plain, escaped in ((b"\\", b"\\\\"), (b'"', b'\\"'), (b"\n", b"\\n"), (b"\t", b"\\t"), (b"\r", b"\\r")):
        data = data.replace(plain, escaped)
    return data


class SourceRange(Struct, frozen=True, kw_only=True):
    """Bytes of a source from one place to another."""

    file: str | None
    start: int
    end: int
    data: bytes
    erased: bool = False
    """What stood there was erased; `data` is empty."""


def kept_stretches(txn: ReadTxn, session_or_file: str) -> list[SourceRange]:
    """Of a session by its label or id, or of a source file by its name; in order of place, the newest reading last."""
    query = 'SELECT file, start, "end", content FROM kept'
    session = session_named(txn, session_or_file)
    if session is not None:
        rows = txn.sql.fetch_rows(f"{query} WHERE session = ? ORDER BY n", (session.n,))
    else:
        rows = [row for row in txn.sql.fetch_rows(f"{query} ORDER BY n") if text_of(txn, row[0]) == session_or_file]
    return [_source_range(txn, *row) for row in rows]


def _source_range(txn: ReadTxn, file: int | None, start: int, end: int, content: int) -> SourceRange:
    name = text_of(txn, file)
    try:
        return SourceRange(file=name, start=start, end=end, data=unpacked(txn, content))
    except ContentGone:
        return SourceRange(file=name, start=start, end=end, data=b"", erased=True)


def was_erased(sql: Sql, session: int) -> bool:
    """Has this session lost a stretch of its source? Then nothing of it is kept again: it would bring that back."""
    query = "SELECT 1 FROM kept k JOIN content c ON c.n = k.content WHERE k.session = ? AND length(c.salt) = 0"
    return sql.fetch_row(f"{query} LIMIT 1", (session,)) is not None


def is_erased_here(sql: Sql, what: str, name: str) -> bool:
    """Was this `turn` or `session` erased here? A stranger's tombstone that nobody here has followed does not count."""
    query = (
        "SELECT 1 FROM erasure e JOIN lookup_content l ON l.key = substr(e.ref, 1, 8)"
        f" JOIN content c ON c.n = l.n AND c.ref = e.ref WHERE e.{what} = ? AND length(c.salt) = 0 LIMIT 1"
    )
    return sql.fetch_row(query, (name,)) is not None


def erased_contents(txn: WriteTxn, secret: ImportSecret) -> Callable[[bytes], bool]:
    """Which bytes are those of an erased content of this origin."""
    if txn.sql.fetch_row("SELECT 1 FROM erasure LIMIT 1") is None:
        return lambda _: False

    def is_erased(data: bytes) -> bool:
        content = txn.facts.find_content(secret.reference(data))
        return content is not None and is_erased_content(txn.sql, content)

    return is_erased


def is_kept(txn: WriteTxn, place: tuple[int | None, int, int, int], piece: bytes) -> bool:
    """Were these bytes kept before: of this session and file (by their numbers), from here to there?"""
    rows = txn.sql.fetch_rows(
        'SELECT content FROM kept WHERE session = ? AND file = ? AND start = ? AND "end" = ?', place
    )
    try:
        return any(unpacked(txn, content) == piece for (content,) in rows)
    except (Damaged, ContentGone):
        return False


def unpacked(txn: ReadTxn | WriteTxn, n: int) -> bytes:
    def content(ref: str) -> bytes:
        found = txn.facts.find_content(bytes.fromhex(ref))
        if found is None:
            raise ContentMissing(ref)
        return txn.facts.content(found)

    return unpack(txn.facts.content(n), content)


# --- The open tail of a source that is still written to: shown while it lasts, never a fact.

ITEMS = 24
CHARACTERS = 2000
_COLUMNS = "SELECT source, session, seen_at, body FROM provisional"
_ORDER = "ORDER BY seen_at DESC, source, session, idx"


class ProvisionalItem(Struct, frozen=True, kw_only=True):
    """A message or a tool call, as far as it is there; long texts are cut."""

    role: str
    """Of a message; `tool` for a call."""
    text: str
    tool: str | None = None
    status: str | None = None
    """Of a call: None while it has no outcome."""
    at: int | None = None


class ProvisionalTurn(Struct, frozen=True, kw_only=True):
    """A turn that is still being written, as its source was last read."""

    source: str
    session_id: str
    parent_id: str | None
    """The turn it will follow, where that is a fact already."""
    origin: str
    native_id: str
    seen_at: int
    started_at: int | None
    model: str | None
    items_so_far: int
    items: tuple[ProvisionalItem, ...]
    """The latest of them, the oldest first; the prompt always stands first."""


IsErased = Callable[[bytes], bool]
"""Would these bytes, as a content of the same origin, be one that was erased?"""


class OpenTurn(Struct, frozen=True):
    """A turn left out of a transcript; `parent` is a place among those that were taken."""

    turn: NativeTurn
    parent: int | None


class OpenTail(Struct):
    """The open turns of one transcript, filled while it is walked."""

    stamp: int
    turns: list[OpenTurn] = field(default_factory=list)

    def add(self, turn: NativeTurn, parent: int | None) -> None:
        self.turns.append(OpenTurn(turn, parent))


def _provisional_item(item: Item, is_erased: IsErased) -> ProvisionalItem:
    if isinstance(item, NativeCall):
        done = item.status is not None or item.result is not UNSET or item.error is not None
        status = item.status.value if item.status else ("error" if item.error else "ok")
        text = ERASED if is_erased(value_bytes(item.arguments)) else _cut_text(_arguments_text(item.arguments))
        name = _shown_words(item.name, is_erased)
        return ProvisionalItem(role="tool", text=text, tool=name, status=status if done else None, at=item.at)
    part_texts = [text for part in item.parts if (text := _text_of_part(part))]
    texts = [ERASED if is_erased(text_bytes(text)) else text for text in part_texts]
    return ProvisionalItem(role=item.role.value, text=_cut_text("\n\n".join(texts)), at=item.at)


def _shown_words(text: str, is_erased: IsErased) -> str:
    return ERASED if is_erased(text_bytes(text)) else _cut_text(text)


def _text_of_part(part: Part) -> str:
    return str(part.text) if isinstance(part, TextPart | ReasoningPart) else ""


def _arguments_text(value: object) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, JsonContent):
        return value.data.decode() if value.is_exact else ""
    try:
        return orjson.dumps(value).decode()
    except TypeError:  # lone surrogates, long integers, or nested too deeply: left for the turn itself to show
        return ""


def _cut_text(text: str) -> str:
    return showable(text if len(text) <= CHARACTERS else f"{text[:CHARACTERS]}…")


def write_tail(
    sql: Sql,
    place: tuple[str, str],
    origin: str,
    now: int,
    tail: OpenTail,
    parents: Callable[[int | None], str | None],
    is_erased: IsErased,
) -> None:
    """What is open at a place (a source, and a session in it), instead of what was. What was erased is not shown."""
    sql.run("DELETE FROM provisional WHERE source = ? AND session = ?", place)
    rows = [
        (
            *place,
            number,
            tail.stamp,
            now,
            orjson.dumps(_provisional_body(each.turn, origin, parents(each.parent), is_erased)),
        )
        for number, each in enumerate(tail.turns)
    ]
    sql.run_many("INSERT INTO provisional(source, session, idx, stamp, seen_at, body) VALUES (?, ?, ?, ?, ?, ?)", rows)


def _provisional_body(turn: NativeTurn, origin: str, parent: str | None, is_erased: IsErased) -> dict[str, object]:
    shown = turn.items if len(turn.items) <= ITEMS else (turn.items[0], *turn.items[1 - ITEMS :])
    models = [item.model for item in turn.items if isinstance(item, NativeMessage) and item.model]
    return {
        "parent_id": parent,
        "origin": origin,
        "native_id": _shown_words(turn.key, is_erased),
        "started_at": turn.started,
        "model": _shown_words(models[-1], is_erased) if models else None,
        "items_so_far": len(turn.items),
        "items": [to_builtins(_provisional_item(item, is_erased)) for item in shown],
    }


def drop_tails(sql: Sql, source: str, but: int | None = None) -> None:
    """All of a source; or all but those of the reading at hand, by the source's time then."""
    if but is None:
        sql.run("DELETE FROM provisional WHERE source = ?", (source,))
    else:
        sql.run("DELETE FROM provisional WHERE source = ? AND stamp <> ?", (source, but))


def sources_with_tails(sql: Sql) -> list[str]:
    return [name for (name,) in sql.fetch_rows("SELECT DISTINCT source FROM provisional ORDER BY source")]


def count_provisional(sql: Sql) -> int:
    """How many turns are still being written, and so are in no list of turns, no search and no sum."""
    (count,) = sql.fetch_row("SELECT count(*) FROM provisional") or (0,)
    return int(count)


def provisional_turns(txn: ReadTxn, session_id: str | None) -> list[ProvisionalTurn]:
    if session_id is None:
        rows = txn.sql.fetch_rows(f"{_COLUMNS} {_ORDER}")
    else:
        rows = txn.sql.fetch_rows(f"{_COLUMNS} WHERE session = ? {_ORDER}", (session_id,))
    access = access_of(txn)
    if not access.is_unlimited:
        rows = [row for row in rows if access.readable(load_session(txn.sql, row[1])) is not None]
    return [_provisional_turn(*row) for row in rows]


def _provisional_turn(source: str, session: str, seen_at: int, body: bytes) -> ProvisionalTurn:
    columns = {"source": source, "session_id": session, "seen_at": seen_at}
    return convert({**orjson.loads(bytes(body)), **columns}, ProvisionalTurn)


def forget(_: Store, txn: WriteTxn, forgotten: ErasedContents) -> None:
    """An erasure: what is open may spell what is erased. The next look at a source writes what may be shown."""
    txn.sql.run("DELETE FROM provisional")


# --- What an import goes by: the secret that names are made with, the source, the transcript on its way in, and the
# turns that Weft itself wrote for other tools.

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
        if any(txn.sql.fetch_row(f"SELECT 1 FROM {table} LIMIT 1") for table in used):
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
            row = txn.sql.fetch_row(
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
            self._writer.store.write(partial(_drop_sources, gone))
        return gone


def _drop_sources(sources: list[str], txn: WriteTxn) -> None:
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


class TranscriptIntake(Struct):
    """One transcript on its way in."""

    session: NativeSession
    file: str
    counts: ImportCounts
    reread: bool
    raw: RawFile | None
    tail: OpenTail | None = None
    end: int = 0
    landed: list[TranscriptTurn] = field(default_factory=list)

    def mark(self) -> IntakeMark:
        return IntakeMark(len(self.landed), self.raw.at if self.raw else 0, astuple(self.counts))

    def go_back(self, mark: IntakeMark) -> None:
        """What came since has not lasted."""
        del self.landed[mark.landed :]
        if self.raw:
            self.raw.at = mark.at
        for name, value in zip(ImportCounts.__struct_fields__, mark.counts, strict=True):
            setattr(self.counts, name, value)


class IntakeMark(Struct, frozen=True):
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


class ResumedTurns:
    """The written turns of one origin."""

    def __init__(self, mapping: str) -> None:
        self.mapping = mapping
        self._any: bool | None = None

    def find(self, sql: Sql, find_turn: FindTurn, grows_from: str | None, source: str) -> TurnRow | None:
        """The turn that these records were written from, by this mapping or an older one."""
        if self._any is None:
            self._any = sql.fetch_row("SELECT 1 FROM link WHERE why = 'resumed' LIMIT 1") is not None
        if not self._any:
            return None
        origin, number = self.mapping.rpartition("/")[0], mapping_number(self.mapping)
        for older in range(number, 0, -1):
            child = imported_turn_id(grows_from, f"{origin}/{older}", source)
            rows = sql.fetch_rows(
                "SELECT parent FROM link WHERE child = ? AND why = 'resumed' ORDER BY parent", (child,)
            )
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
        return {self._name_key(name) for name in (turn.key, *turn.names)}

    def note(self, append: Append, batch: Sequence[NativeTurn], landed: Sequence[TranscriptTurn]) -> None:
        """Of turns whose rows are written, and what these want to be linked to."""
        places = [(turn, append.view.turn(at.id)) for turn, at in zip(batch, landed, strict=True) if not at.erased]
        names = sorted({(key, row.n) for turn, row in places for key in self.keys_of(turn)})
        append.sql.run_many("INSERT INTO import_name(key, turn) VALUES (?, ?) ON CONFLICT DO NOTHING", names)
        for turn, row in places:
            if turn.link is not None and turn.parent is None:
                wants = self._name_key(turn.link.to)
                session = None if turn.link.session is None else self._secret.session_id(turn.link.session)
                append.sql.run(
                    "INSERT INTO import_wait(child, wants, why, session) VALUES (?, ?, ?, ?) ON CONFLICT DO NOTHING",
                    (row.id, wants, turn.link.why, session),
                )

    def waiting(self, sql: Sql) -> list[tuple[str, bytes, str, str | None]]:
        """Links whose other end may have come: the child, the key that it wants, why, and a session."""
        return [(child, bytes(wants), why, session) for child, wants, why, session in sql.fetch_rows(_WAITING)]

    def parent_of(self, append: Append, child: str, wants: bytes, session: str | None) -> TurnRow | None:
        """The turn that a link leads to."""
        found = append.sql.fetch_rows(NAMED, (wants,))
        parents = [row for (id,) in found if id != child and (row := append.view.find_turn(id)) is not None]
        if not parents and session is not None:
            parents = last_before(append, session, child)
        number = append.view.turn(child).session
        return min(parents, key=lambda row: (row.session != number, -row.current, row.id), default=None)

    def _name_key(self, name: str) -> bytes:
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
    found = append.sql.fetch_row(
        "SELECT id FROM turn WHERE session = ? AND id <> ? AND current = 1 AND started_at <= ?"
        " ORDER BY started_at DESC, depth DESC, id LIMIT 1",
        (row.n, child, latest),
    )
    return [append.view.turn(found[0])] if found else []
