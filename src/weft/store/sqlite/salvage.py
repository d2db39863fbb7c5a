"""Rows of facts out of the pages of a damaged database file, whatever state the rest of it is
in, gathered aside and proved.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable, Iterator, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

import apsw
import orjson
import zstandard

from weft.kernel.contents import ROW_BYTES, SALT_BYTES, content_ref
from weft.kernel.events import GENESIS, extend
from weft.store.fact_log import DECLINED, FORMER, TAKEN, unpacked
from weft.store.port import (
    Found,
    FoundContent,
    FoundLocal,
    FoundPack,
    FoundPart,
    FoundRow,
    FoundSlice,
    Progress,
    ProvedContent,
    ProvedEvent,
)
from weft.store.private_files import real_path
from weft.store.sql import blob
from weft.store.sqlite.connection import READ_ONLY, HeadFile, translated

# --- Rows of facts out of the pages of a database file, whatever state the rest of it is in.

MAGIC = b"SQLite format 3\0"
TABLE_LEAF, INDEX_LEAF, INDEX_INNER = 13, 10, 2
SIZES = (4096, 8192, 1024, 2048, 16384, 32768, 65536, 512)
WAL_HEADER, FRAME_HEADER = 32, 24
MAX_PAYLOAD = 64 * 1024 * 1024
DIGEST = 32
LONGEST_HEADER = 128
GAPS_TRIED = 100
"""For each row whose number is damaged: a file with much damage is searched in a time that grows with its size."""
WITH_ROWID, WITHOUT = {3, *range(6, 13)}, {2, 3, 5}
"""How many columns tables of facts have, with room for more."""
KEPT_KEYS = re.compile(f"replica|import_secret|(?:{FORMER}|{TAKEN}|{DECLINED}).+")
"""Local state that a salvaged ledger needs."""


class MalformedCell(Exception):
    """These bytes are no cell; whoever reads pages goes on with the next."""


class PagedFile:
    """A file of pages, read through SQLite's own hands: closing it otherwise would drop locks of this process."""

    def __init__(self, path: Path, kind: int) -> None:
        self._file = apsw.VFSFile("", str(path.absolute()), [READ_ONLY | kind, 0])
        self.size = self._file.xFileSize()

    def read(self, size: int, offset: int) -> bytes:
        """As much as there is; nothing where the disk gives nothing."""
        size = max(0, min(size, self.size - offset))
        try:
            return self._file.xRead(size, offset) if size else b""
        except apsw.IOError:
            return b""

    def close(self) -> None:
        self._file.xClose()


class Pages:
    """The pages of a database: as its log has them, or as the file does."""

    def __init__(self, path: Path) -> None:
        with translated(str(path)):
            self._file = PagedFile(path, apsw.SQLITE_OPEN_MAIN_DB)
            log = Path(f"{path}-wal")
            self._log = PagedFile(log, apsw.SQLITE_OPEN_WAL) if log.exists() and log.stat().st_size else None
        self.size = self._page_size()
        self.usable = self.size - self._reserved()
        self._frames = list(self._committed_frames())
        self._newest = dict(self._frames)

    def close(self) -> None:
        self._file.close()
        if self._log is not None:
            self._log.close()

    @property
    def has_log(self) -> bool:
        return bool(self._frames)

    def __len__(self) -> int:
        return -(-self._file.size // self.size) + len(self._frames)

    def images(self) -> Iterator[tuple[int, bytes]]:
        """Every page with its number, all that the file and the log have of it, the newest last."""
        for number in range(1, -(-self._file.size // self.size) + 1):
            yield number, self._file.read(self.size, (number - 1) * self.size)
        for number, offset in self._frames:
            yield number, self._log_page(offset)

    def page(self, number: int, *, in_file: bool) -> bytes:
        if not in_file and number in self._newest:
            return self._log_page(self._newest[number])
        return self._file.read(self.size, (number - 1) * self.size)

    def _log_page(self, offset: int) -> bytes:
        assert self._log is not None, "frames are those of the log"
        return self._log.read(self.size, offset)

    def _page_size(self) -> int:
        """As the header says; where that is damaged as the log says, else the usual one."""
        header_sizes = [self._file.read(18, 0)[16:18]] if self._file.read(16, 0) == MAGIC else []
        sizes = [1 << 16 if size == b"\0\1" else int.from_bytes(size, "big") for size in header_sizes]
        if self._log is not None:
            sizes.append(int.from_bytes(self._log.read(12, 0)[8:12], "big"))
        return next((size for size in sizes if size in SIZES), SIZES[0])

    def _reserved(self) -> int:
        header = self._file.read(21, 0)
        return header[20] if header[:16] == MAGIC and header[20] < 64 else 0

    def _committed_frames(self) -> Iterator[tuple[int, int]]:
        """Page numbers and places of all frames up to the last one that ends a transaction. Those after it were never
        acknowledged; those of another salt are left over from before the log began anew."""
        if self._log is None:
            return
        salt = self._log.read(WAL_HEADER, 0)[16:24]
        waiting: list[tuple[int, int]] = []
        for offset in range(WAL_HEADER, self._log.size, FRAME_HEADER + self.size):
            header = self._log.read(FRAME_HEADER, offset)
            if len(header) < FRAME_HEADER or header[8:16] != salt:
                continue
            number, committed = struct.unpack(">II", header[:8])
            waiting.append((number, offset + FRAME_HEADER))
            if committed:
                yield from waiting
                waiting.clear()


def facts_in_file(path: Path, progress: Progress | None = None) -> Iterator[Found]:
    """Everything in the file and its log that has the form of a fact."""
    pages = Pages(path)
    try:
        for done, (_, page) in enumerate(pages.images(), 1):
            for is_table, columns, rowid in _records_in_page(pages, page):
                fact = _fact_of_columns(is_table, columns, rowid)
                if fact is not None:
                    yield fact
            if progress is not None and done % 256 == 0:
                progress(done, len(pages))
    finally:
        pages.close()


def _records_in_page(pages: Pages, page: bytes) -> Iterator[tuple[bool, list[Any], int]]:
    start = 100 if page[:16] == MAGIC else 0
    kind = page[start] if len(page) > start + 12 else 0
    if kind not in (TABLE_LEAF, INDEX_LEAF, INDEX_INNER):
        return
    header = start + (12 if kind == INDEX_INNER else 8)
    (cells,) = struct.unpack(">H", page[start + 3 : start + 5])
    cells = min(cells, (len(page) - header) // 2)
    for offset in struct.unpack(f">{cells}H", page[header : header + 2 * cells]):
        try:
            yield from _record_of_cell(pages, page, offset, kind)
        except (MalformedCell, IndexError, struct.error, UnicodeDecodeError):
            continue


def _record_of_cell(pages: Pages, page: bytes, offset: int, kind: int) -> Iterator[tuple[bool, list[Any], int]]:
    """One cell, if it has as many columns as a row of facts. Where its overflow lies in the log as well as in the file,
    both are given."""
    if kind == INDEX_INNER:
        offset += 4
    size, offset = varint(page, offset)
    rowid = 0
    if kind == TABLE_LEAF:
        rowid, offset = varint(page, offset)
    if not 0 < size <= MAX_PAYLOAD:
        raise MalformedCell
    types, values_start = types_of(page[offset : offset + LONGEST_HEADER])
    if len(types) not in (WITH_ROWID if kind == TABLE_LEAF else WITHOUT):
        return
    seen_payloads = set()
    for in_file in (False, True) if pages.has_log else (True,):
        payload = _cell_payload(pages, page, offset, size, kind == TABLE_LEAF, in_file)
        if payload not in seen_payloads:
            seen_payloads.add(payload)
            yield kind == TABLE_LEAF, values_of(types, payload, values_start), rowid


def _cell_payload(pages: Pages, page: bytes, offset: int, size: int, is_table: bool, in_file: bool) -> bytes:
    """What of it lies in the page, then the chain of overflow pages."""
    usable = pages.usable
    most = usable - 35 if is_table else (usable - 12) * 64 // 255 - 23
    if size <= most:
        return page[offset : offset + size]
    least = (usable - 12) * 32 // 255 - 23
    local = least + (size - least) % (usable - 4)
    local = local if local <= most else least
    parts, remaining = [page[offset : offset + local]], size - local
    (number,) = struct.unpack(">I", page[offset + local : offset + local + 4])
    while remaining > 0:
        overflow = pages.page(number, in_file=in_file) if number else b""
        if len(overflow) < pages.usable:
            raise MalformedCell
        (number,) = struct.unpack(">I", overflow[:4])
        parts.append(overflow[4 : min(usable, 4 + remaining)])
        remaining -= usable - 4
    return b"".join(parts)


def varint(data: bytes, offset: int) -> tuple[int, int]:
    value = 0
    for i in range(8):
        byte = data[offset + i]
        value = value << 7 | byte & 127
        if byte < 128:
            return value, offset + i + 1
    return value << 8 | data[offset + 8], offset + 9


_WIDTHS = (0, 1, 2, 3, 4, 6, 8, 8, 0, 0)


def types_of(header: bytes) -> tuple[list[int], int]:
    """The serial types of a record's values, and where the values begin."""
    end, offset = varint(header, 0)
    if not 0 < end <= len(header):
        raise MalformedCell
    types: list[int] = []
    while offset < end:
        kind, offset = varint(header, offset)
        types.append(kind)
    return types, end


def values_of(types: list[int], payload: bytes, offset: int) -> list[Any]:
    """None, numbers, bytes and texts."""
    values: list[Any] = []
    for kind in types:
        width = (kind - 12) // 2 if kind >= 12 else _WIDTHS[kind]
        if offset + width > len(payload):
            raise MalformedCell
        values.append(_value_of(kind, payload[offset : offset + width]))
        offset += width
    return values


def _value_of(kind: int, data: bytes) -> Any:
    if kind == 0:
        return None
    if kind <= 6:
        return int.from_bytes(data, "big", signed=True)
    if kind in (8, 9):
        return kind - 8
    if kind >= 12:
        return data if kind % 2 == 0 else data.decode()
    raise MalformedCell


def _fact_of_columns(is_table: bool, columns: Sequence[Any], rowid: int) -> Found | None:
    """By the number and the types of its columns; a row's own number is not among them, SQLite keeps it apart."""
    return _with_rowid(columns, rowid) if is_table else _without_rowid(columns)


def _with_rowid(columns: Sequence[Any], rowid: int) -> Found | None:
    match columns:
        case [None, int(count), int(at), bytes(chain), int(_), bytes(events)] if len(chain) == DIGEST:
            return FoundRow(rowid, count, at, chain, events)
        case [None, int(_), bytes(ref), bytes(salt), bytes(_), int(size), None | str(_), None | bytes(_), *_] if (
            len(ref) == DIGEST and len(salt) == SALT_BYTES
        ):
            return FoundContent(rowid, ref, salt, size, columns[7])
        case [None, int(_), bytes(data)]:
            return FoundPack(rowid, data)
    return None


def _without_rowid(columns: Sequence[Any]) -> Found | None:
    match columns:
        case [int(content), int(idx), int(pack), int(start), int(size)]:
            return FoundSlice(content, idx, pack, start, size)
        case [int(content), int(idx), bytes(data)] if len(data) <= ROW_BYTES:
            return FoundPart(content, idx, data)
        case [str(key), str(value)] if KEPT_KEYS.fullmatch(key):
            return FoundLocal(key, value)
    return None


# --- What a search through damaged files found, gathered aside and proved.

_TABLES = """
PRAGMA journal_mode = OFF; PRAGMA synchronous = OFF; PRAGMA cache_size = -65536;
CREATE TABLE row (n INTEGER, count INTEGER, chain BLOB, events BLOB, PRIMARY KEY (n, chain, events)) WITHOUT ROWID;
CREATE TABLE content (ref BLOB PRIMARY KEY, n INTEGER, salt BLOB, data BLOB);
CREATE TABLE large (n INTEGER, ref BLOB, salt BLOB, size INTEGER, PRIMARY KEY (n, ref)) WITHOUT ROWID;
CREATE TABLE part (content INTEGER, idx INTEGER, data BLOB);
CREATE TABLE pack (n INTEGER, data BLOB);
CREATE TABLE slice (content INTEGER, idx INTEGER, pack INTEGER, start INTEGER, size INTEGER);
CREATE INDEX slice_pack ON slice (pack);
CREATE INDEX part_content ON part (content);
CREATE TABLE local (key TEXT, value TEXT, PRIMARY KEY (key, value)) WITHOUT ROWID;
CREATE TABLE event (id BLOB PRIMARY KEY, n INTEGER, line BLOB, placed INTEGER NOT NULL DEFAULT 0);
CREATE TABLE named (id BLOB PRIMARY KEY) WITHOUT ROWID;
CREATE TABLE stream (name TEXT PRIMARY KEY) WITHOUT ROWID;
"""
_DIGEST = re.compile(rb'"([0-9a-f]{64})"')


def _is_json(line: bytes) -> bool:
    try:
        orjson.loads(line)
    except orjson.JSONDecodeError:
        return False
    return True


class SalvagedFacts:
    """Facts from one or several files, in a database of their own that goes with this object."""

    def __init__(self) -> None:
        self._db = apsw.Connection("")
        self._db.execute(_TABLES).fetchall()
        self._db.execute("BEGIN")
        self.damaged_contents = self.unproved_events = self.acknowledged = 0

    def close(self) -> None:
        self._db.close(True)

    def search(self, path: Path, progress: Progress | None = None) -> None:
        """Take in all that one file has."""
        path = real_path(path)
        heads = HeadFile.load(Path(f"{path}-head"))
        self.acknowledged = max([self.acknowledged, *(head.n for head in heads)])
        for fact in facts_in_file(path, progress):
            self._add_fact(fact)
        self._unpack_packs()
        self._join_parts()
        for table in ("large", "part", "pack", "slice"):
            self._db.execute(f"DELETE FROM {table}")

    def _add_fact(self, fact: Found) -> None:
        match fact:
            case FoundRow(n, count, _, chain, events):
                self._db.execute("INSERT OR IGNORE INTO row VALUES (?, ?, ?, ?)", (n, count, chain, events))
            case FoundContent(n, ref, salt, size, None):
                self._db.execute("INSERT OR IGNORE INTO large VALUES (?, ?, ?, ?)", (n, ref, salt, size))
            case FoundContent() if fact.data is not None:
                self._add_content(fact.n, fact.ref, fact.salt, fact.data)
            case FoundPart(content, idx, data):
                self._db.execute("INSERT INTO part VALUES (?, ?, ?)", (content, idx, data))
            case FoundPack(n, data):
                self._db.execute("INSERT INTO pack VALUES (?, ?)", (n, data))
            case FoundSlice(content, idx, pack, start, size):
                self._db.execute("INSERT INTO slice VALUES (?, ?, ?, ?, ?)", (content, idx, pack, start, size))
            case FoundLocal(key, value):
                self._db.execute("INSERT OR IGNORE INTO local VALUES (?, ?)", (key, value))

    def _add_content(self, n: int, ref: bytes, salt: bytes, data: bytes) -> bool:
        if content_ref(salt, data) != ref:
            self.damaged_contents += 1
            return False
        self._db.execute("INSERT OR IGNORE INTO content VALUES (?, ?, ?, ?)", (ref, n, salt, data))
        return True

    def _unpack_packs(self) -> None:
        """Slices of packs become parts; a pack that cannot be unpacked has lost all of its own."""
        packs: list[Any] = self._db.execute("SELECT n, data FROM pack").fetchall()
        for n, data in packs:
            try:
                pack_bytes = unpacked(data)
            except zstandard.ZstdError:
                continue
            slices: list[Any] = self._db.execute(
                "SELECT content, idx, start, size FROM slice WHERE pack = ?", (n,)
            ).fetchall()
            rows = [(content, idx, pack_bytes[start : start + size]) for content, idx, start, size in slices]
            self._db.executemany("INSERT INTO part VALUES (?, ?, ?)", rows)

    def _join_parts(self) -> None:
        """A large content is one whose parts, in their order, hash to its reference. Of a part that was found twice the
        last one is the newest."""
        large_contents: list[Any] = self._db.execute("SELECT n, ref, salt, size FROM large").fetchall()
        for n, ref, salt, size in large_contents:
            parts = dict(self._db.execute("SELECT idx, data FROM part WHERE content = ? ORDER BY rowid", (n,)))
            data = b"".join(parts[idx] for idx in sorted(parts))
            if data or not size:
                self._add_content(n, ref, salt, data)

    def prove(self) -> None:
        """Rows by the chain; lines of the others by who names them."""
        doubtful = [row for row in self._log_rows() if not self._prove_row(*row)]
        if doubtful:
            gaps = self._gaps()
            doubtful = [row for row in doubtful if not self._prove_moved_row(gaps, *row)]
        if not doubtful:
            return
        for _, _, events in self._rows_again():
            names = {(bytes.fromhex(name.decode()),) for name in _DIGEST.findall(events)}
            self._db.executemany("INSERT OR IGNORE INTO named VALUES (?)", names)
        for n, count, _, events in doubtful:
            self._prove_lines(n, count, events)

    def _log_rows(self) -> Iterator[tuple[int, int, bytes, bytes]]:
        yield from self._db.cursor().execute("SELECT n, count, chain, events FROM row ORDER BY n")

    def _rows_again(self) -> Iterator[tuple[int, int, bytes]]:
        yield from self._db.cursor().execute("SELECT n, count, events FROM row")

    def _prove_row(self, n: int, count: int, chain: bytes, events: bytes) -> bool:
        lines, first = events.split(b"\n"), n - count + 1
        if len(lines) != count or first < 1:
            return False
        ids = [sha256(line).digest() for line in lines]
        before = [GENESIS] if first == 1 else self._chains_of_row(first - 1)
        if not any(extend(start, ids) == chain for start in before):
            return False
        self._add_events(zip(range(first, n + 1), ids, lines, strict=True))
        return True

    def _gaps(self) -> list[tuple[int, int, bytes]]:
        """Where rows are missing: after which number, how many numbers, and the chain that goes on there."""
        gaps = []
        for first, last in self.missing():
            chains = [GENESIS] if first == 1 else self._chains_of_row(first - 1)
            gaps += [(first - 1, last - first + 1, chain) for chain in chains]
        return gaps

    def _prove_moved_row(
        self, gaps: list[tuple[int, int, bytes]], _: int, count: int, chain: bytes, events: bytes
    ) -> bool:
        """A whole row whose number alone is damaged: its chain says where it was."""
        lines = events.split(b"\n")
        if len(lines) != count:
            return False
        ids = [sha256(line).digest() for line in lines]
        wide_enough = [(before, start) for before, missing, start in gaps if missing >= count]
        for before, start in wide_enough[:GAPS_TRIED]:
            if extend(start, ids) == chain:
                self._add_events(zip(range(before + 1, before + count + 1), ids, lines, strict=True))
                return True
        return False

    def _chains_of_row(self, n: int) -> list[bytes]:
        rows = self._db.execute("SELECT chain FROM row WHERE n = ?", (n,)).fetchall()
        return [blob(chain) for (chain,) in rows]

    def _prove_lines(self, n: int, count: int, events: bytes) -> None:
        """Damage may have made or unmade line ends: up to the first line that is no JSON numbers are counted from the
        row's beginning, after it from its end."""
        lines, shift = events.split(b"\n"), 0
        for k, line in enumerate(lines):
            digest = sha256(line).digest()
            if self._db.execute("SELECT 1 FROM named WHERE id = ?", (digest,)).fetchall():
                self._add_events([(n - count + 1 + k + shift, digest, line)])
            elif not self._db.execute("SELECT 1 FROM event WHERE id = ?", (digest,)).fetchall():
                self.unproved_events += 1
                shift = shift if _is_json(line) else count - len(lines)

    def _add_events(self, events: Iterable[tuple[int, bytes, bytes]]) -> None:
        rows = [(digest, n, line) for n, digest, line in events]
        self._db.executemany("INSERT OR IGNORE INTO event(id, n, line) VALUES (?, ?, ?)", rows)

    def contents(self) -> Iterator[ProvedContent]:
        """In the order in which they once came."""
        for ref, salt, data in self._db.cursor().execute("SELECT ref, salt, data FROM content ORDER BY n, ref"):
            yield ProvedContent(ref, salt, data)

    def events(self) -> Iterator[ProvedEvent]:
        """In order of arrival."""
        for n, digest, line in self._db.cursor().execute("SELECT n, id, line FROM event ORDER BY n, id"):
            yield ProvedEvent(n, digest, line)

    def local(self, key: str) -> str | None:
        rows = self._db.execute("SELECT value FROM local WHERE key = ?", (key,)).fetchall()
        return str(rows[0][0]) if len(rows) == 1 else None

    def local_keys(self, prefix: str) -> list[str]:
        """Keys that begin so and have one value in all files."""
        rows = self._db.execute("SELECT key FROM local GROUP BY key HAVING count(*) = 1 ORDER BY key").fetchall()
        return [str(key) for (key,) in rows if str(key).startswith(prefix)]

    def place(self, event: bytes, stream: str) -> None:
        """This event has got into the new ledger."""
        self._db.execute("UPDATE event SET placed = 1 WHERE id = ?", (event,))
        self._db.execute("INSERT OR IGNORE INTO stream VALUES (?)", (stream,))

    def is_placed(self, event: bytes) -> bool:
        return bool(self._db.execute("SELECT 1 FROM event WHERE id = ? AND placed = 1", (event,)).fetchall())

    def has_stream(self, name: str) -> bool:
        return bool(self._db.execute("SELECT 1 FROM stream WHERE name = ?", (name,)).fetchall())

    def unplaced(self) -> Iterator[bytes]:
        """Lines that are proved, and grow from something that is lost."""
        for (line,) in self._db.cursor().execute("SELECT line FROM event WHERE placed = 0 ORDER BY n"):
            yield line

    def missing(self) -> list[tuple[int, int]]:
        """Ranges of arrival numbers of which nothing was proved, up to what was once acknowledged."""
        ranges, expected = [], 1
        for (n,) in self._db.cursor().execute("SELECT DISTINCT n FROM event ORDER BY n"):
            if n > expected:
                ranges.append((expected, n - 1))
            expected = max(expected, n + 1)
        return [*ranges, (expected, self.acknowledged)] if self.acknowledged >= expected else ranges
