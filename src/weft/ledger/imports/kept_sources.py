"""Stretches of a source, kept verbatim and small: most of what is in them lies in the ledger as contents already.

A kept stretch is a list of contents and a zstd frame that was compressed with them as its dictionary. Nothing is lost
by it: whatever no content holds is in the frame, and unpacking gives the source's bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import zstandard
from msgspec import Struct

from weft.kernel.errors import ContentGone, ContentMissing, Damaged, FactDamaged
from weft.kernel.imported import ImportSecret
from weft.ledger.read.revisions import session_named
from weft.ledger.views.values import text_of
from weft.store.erased_contents import is_husk
from weft.store.port import ReadTxn, WriteTxn
from weft.store.sql import Sql

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
    chosen = _chosen(contents)
    dictionary = _dictionary(chosen.values())
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
    return references_in(packed) == [bytes.fromhex(ref) for ref in _chosen(contents)]


def _chosen(contents: Iterable[tuple[str, bytes]]) -> dict[str, bytes]:
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
    dictionary = _dictionary(_up_to(DICTIONARY_BYTES, map(content, refs)))
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


def _dictionary(contents: Iterable[bytes]) -> bytes:
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
        rows = txn.sql.all(f"{query} WHERE session = ? ORDER BY n", (session.n,))
    else:
        rows = [row for row in txn.sql.all(f"{query} ORDER BY n") if text_of(txn, row[0]) == session_or_file]
    return [_stretch(txn, *row) for row in rows]


def _stretch(txn: ReadTxn, file: int | None, start: int, end: int, content: int) -> SourceRange:
    name = text_of(txn, file)
    try:
        return SourceRange(file=name, start=start, end=end, data=unpacked(txn, content))
    except ContentGone:
        return SourceRange(file=name, start=start, end=end, data=b"", erased=True)


def was_erased(sql: Sql, session: int) -> bool:
    """Has this session lost a stretch of its source? Then nothing of it is kept again: it would bring that back."""
    query = "SELECT 1 FROM kept k JOIN content c ON c.n = k.content WHERE k.session = ? AND length(c.salt) = 0"
    return sql.one(f"{query} LIMIT 1", (session,)) is not None


def is_erased_here(sql: Sql, what: str, name: str) -> bool:
    """Was this `turn` or `session` erased here? A stranger's tombstone that nobody here has followed does not count."""
    query = (
        "SELECT 1 FROM erasure e JOIN lookup_content l ON l.key = substr(e.ref, 1, 8)"
        f" JOIN content c ON c.n = l.n AND c.ref = e.ref WHERE e.{what} = ? AND length(c.salt) = 0 LIMIT 1"
    )
    return sql.one(query, (name,)) is not None


def erased_contents(txn: WriteTxn, secret: ImportSecret) -> Callable[[bytes], bool]:
    """Which bytes are those of an erased content of this origin."""
    if txn.sql.one("SELECT 1 FROM erasure LIMIT 1") is None:
        return lambda _: False

    def is_erased(data: bytes) -> bool:
        content = txn.facts.find_content(secret.reference(data))
        return content is not None and is_husk(txn.sql, content)

    return is_erased


def is_kept(txn: WriteTxn, place: tuple[int | None, int, int, int], piece: bytes) -> bool:
    """Were these bytes kept before: of this session and file (by their numbers), from here to there?"""
    rows = txn.sql.all('SELECT content FROM kept WHERE session = ? AND file = ? AND start = ? AND "end" = ?', place)
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
