"""What a search through damaged files found, gathered aside and proved.

A content proves itself: it hashes to its reference. An event is proved by the chain of arrival, from the row before its
own; or, where that row is lost, by another event that names it. Either is a match of 256 bits, which damage does not
make. What is not proved is counted, and not used.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import apsw
import orjson
import zstandard

from weft.kernel.contents import content_ref
from weft.kernel.events import GENESIS, extend
from weft.store.packs import unpacked
from weft.store.port import Progress
from weft.store.salvaged_rows import (
    Found,
    FoundContent,
    FoundLocal,
    FoundPack,
    FoundPart,
    FoundRow,
    FoundSlice,
    ProvedContent,
    ProvedEvent,
)
from weft.store.sql import blob
from weft.store.sqlite.connection import HeadFile
from weft.store.sqlite.files import real_path
from weft.store.sqlite.pages import search

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
        for found in search(path, progress):
            self._add(found)
        self._unpack()
        self._join_parts()
        for table in ("large", "part", "pack", "slice"):
            self._db.execute(f"DELETE FROM {table}")

    def _add(self, found: Found) -> None:
        match found:
            case FoundRow(n, count, _, chain, events):
                self._db.execute("INSERT OR IGNORE INTO row VALUES (?, ?, ?, ?)", (n, count, chain, events))
            case FoundContent(n, ref, salt, size, None):
                self._db.execute("INSERT OR IGNORE INTO large VALUES (?, ?, ?, ?)", (n, ref, salt, size))
            case FoundContent() if found.data is not None:
                self._add_content(found.n, found.ref, found.salt, found.data)
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

    def _unpack(self) -> None:
        """Slices of packs become parts; a pack that cannot be unpacked has lost all of its own."""
        found: list[Any] = self._db.execute("SELECT n, data FROM pack").fetchall()
        for n, data in found:
            try:
                whole = unpacked(data)
            except zstandard.ZstdError:
                continue
            slices: list[Any] = self._db.execute(
                "SELECT content, idx, start, size FROM slice WHERE pack = ?", (n,)
            ).fetchall()
            rows = [(content, idx, whole[start : start + size]) for content, idx, start, size in slices]
            self._db.executemany("INSERT INTO part VALUES (?, ?, ?)", rows)

    def _join_parts(self) -> None:
        """A large content is one whose parts, in their order, hash to its reference. Of a part that was found twice the
        last one is the newest."""
        found: list[Any] = self._db.execute("SELECT n, ref, salt, size FROM large").fetchall()
        for n, ref, salt, size in found:
            parts = dict(self._db.execute("SELECT idx, data FROM part WHERE content = ? ORDER BY rowid", (n,)))
            data = b"".join(parts[idx] for idx in sorted(parts))
            if data or not size:
                self._add_content(n, ref, salt, data)

    def prove(self) -> None:
        """Rows by the chain; lines of the others by who names them."""
        doubtful = [row for row in self._rows() if not self._prove_row(*row)]
        if not doubtful:
            return
        for _, _, events in self._rows_again():
            names = {(bytes.fromhex(name.decode()),) for name in _DIGEST.findall(events)}
            self._db.executemany("INSERT OR IGNORE INTO named VALUES (?)", names)
        for n, count, _, events in doubtful:
            self._prove_lines(n, count, events)

    def _rows(self) -> Iterator[tuple[int, int, bytes, bytes]]:
        yield from self._db.cursor().execute("SELECT n, count, chain, events FROM row ORDER BY n")

    def _rows_again(self) -> Iterator[tuple[int, int, bytes]]:
        yield from self._db.cursor().execute("SELECT n, count, events FROM row")

    def _prove_row(self, n: int, count: int, chain: bytes, events: bytes) -> bool:
        lines, first = events.split(b"\n"), n - count + 1
        if len(lines) != count or first < 1:
            return False
        ids = [sha256(line).digest() for line in lines]
        before = [GENESIS] if first == 1 else self._chains(first - 1)
        if not any(extend(start, ids) == chain for start in before):
            return False
        self._keep(zip(range(first, n + 1), ids, lines, strict=True))
        return True

    def _chains(self, n: int) -> list[bytes]:
        found = self._db.execute("SELECT chain FROM row WHERE n = ?", (n,)).fetchall()
        return [blob(chain) for (chain,) in found]

    def _prove_lines(self, n: int, count: int, events: bytes) -> None:
        """Damage may have made or unmade line ends: up to the first line that is no JSON numbers are counted from the
        row's beginning, after it from its end."""
        lines, shift = events.split(b"\n"), 0
        for k, line in enumerate(lines):
            digest = sha256(line).digest()
            if self._db.execute("SELECT 1 FROM named WHERE id = ?", (digest,)).fetchall():
                self._keep([(n - count + 1 + k + shift, digest, line)])
            elif not self._db.execute("SELECT 1 FROM event WHERE id = ?", (digest,)).fetchall():
                self.unproved_events += 1
                shift = shift if _is_json(line) else count - len(lines)

    def _keep(self, events: Iterable[tuple[int, bytes, bytes]]) -> None:
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
        found = self._db.execute("SELECT value FROM local WHERE key = ?", (key,)).fetchall()
        return str(found[0][0]) if len(found) == 1 else None

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
        found, expected = [], 1
        for (n,) in self._db.cursor().execute("SELECT DISTINCT n FROM event ORDER BY n"):
            if n > expected:
                found.append((expected, n - 1))
            expected = max(expected, n + 1)
        return [*found, (expected, self.acknowledged)] if self.acknowledged >= expected else found
