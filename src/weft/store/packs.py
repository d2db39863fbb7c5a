"""Packs: the bytes of cold contents, many in one compressed block.

A pack is a zstd frame over the bytes of contents, or of parts of large ones, laid end to end; `packed` says which lies
where. No dictionary: none is ever trained on what people wrote. References, salts and sizes stay in the contents' own
rows, so a packed content is found, hashed, exported and erased like any other.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import zstandard
from msgspec import Struct

from weft.kernel.errors import FactDamaged
from weft.store.sql import Sql

PACK_BYTES = 1024 * 1024
"""So much is unpacked at most to read one content."""
LEVEL = 9
HELD_PACKS = 4
WORTH = 0.9
"""A pack that stays larger than this part of its contents is not worth the time of every reader."""


class Slice(Struct, frozen=True, gc=False):
    """Bytes of a content: all of it, or the part `idx` of a large one."""

    content: int
    idx: int
    data: bytes


class PackReader:
    """Reads slices within one transaction, with the last few packs at hand."""

    def __init__(self, sql: Sql) -> None:
        self._sql = sql
        self._held: dict[int, bytes] = {}

    def slice(self, content: int, idx: int) -> bytes | None:
        """None where these bytes lie in no pack."""
        row = self._sql.one("SELECT pack, start, size FROM packed WHERE content = ? AND idx = ?", (content, idx))
        if row is None:
            return None
        pack, start, size = row
        return self.unpacked(pack)[start : start + size]

    def unpacked(self, pack: int) -> bytes:
        held = self._held.get(pack)
        if held is None:
            if len(self._held) >= HELD_PACKS:
                del self._held[next(iter(self._held))]
            held = self._held[pack] = self._unpack(pack)
        return held

    def _unpack(self, pack: int) -> bytes:
        row = self._sql.one("SELECT size, bytes FROM pack WHERE n = ?", (pack,))
        if row is None:
            raise FactDamaged("pack", str(pack), "it is not here")
        try:
            data = unpacked(bytes(row[1]))
        except zstandard.ZstdError as error:
            raise FactDamaged("pack", str(pack), f"it cannot be unpacked: {error}") from error
        if len(data) != row[0]:
            raise FactDamaged("pack", str(pack), f"it unpacks to {len(data)} bytes, not {row[0]}")
        return data


def unpacked(data: bytes) -> bytes:
    """The bytes of a pack. A frame that states a larger size than any pack has is refused before it is unpacked."""
    if zstandard.frame_content_size(data) > 2 * PACK_BYTES:
        raise zstandard.ZstdError(f"it states more than {2 * PACK_BYTES} bytes")
    return zstandard.ZstdDecompressor().decompress(data, max_output_size=2 * PACK_BYTES)


def write_pack(sql: Sql, slices: Sequence[Slice]) -> int:
    """One pack of these slices; returns its compressed size. Their own bytes are still where they were."""
    frame = pack_frame(slices)
    size = sum(len(each.data) for each in slices)
    (last,) = sql.one("SELECT max(n) FROM pack") or (None,)
    n, start = (last or 0) + 1, 0
    sql.run("INSERT INTO pack(n, size, bytes) VALUES (?, ?, ?)", (n, size, frame))
    for each in slices:
        sql.run(
            "INSERT INTO packed(content, idx, pack, start, size) VALUES (?, ?, ?, ?, ?)",
            (each.content, each.idx, n, start, len(each.data)),
        )
        start += len(each.data)
    return len(frame)


def pack_frame(slices: Iterable[Slice]) -> bytes:
    whole = b"".join(each.data for each in slices)
    return zstandard.ZstdCompressor(level=LEVEL, write_checksum=True).compress(whole)


def is_worth(slices: Iterable[Slice]) -> bool:
    """Would a pack of them be smaller?"""
    whole = b"".join(each.data for each in slices)
    return len(zstandard.ZstdCompressor(level=1).compress(whole)) < WORTH * len(whole)


def drop_from_packs(sql: Sql, contents: Sequence[int]) -> int:
    """Take these contents out of their packs; every pack that held one is written anew without it. Returns how many."""
    gone = set(contents)
    touched = sorted({pack for n in contents for (pack,) in sql.all("SELECT pack FROM packed WHERE content = ?", (n,))})
    for pack in touched:
        whole = PackReader(sql).unpacked(pack)
        rows = sql.all("SELECT content, idx, start, size FROM packed WHERE pack = ? ORDER BY start", (pack,))
        left = [Slice(n, idx, whole[start : start + size]) for n, idx, start, size in rows if n not in gone]
        sql.run("DELETE FROM packed WHERE pack = ?", (pack,))
        if left:
            write_pack(sql, left)
        sql.run("DELETE FROM pack WHERE n = ?", (pack,))
    return len(touched)
