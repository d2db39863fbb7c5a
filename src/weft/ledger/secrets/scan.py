"""Looking through contents in order of arrival, and remembering how far that went with which rules.

Contents are read in ranges, each in a snapshot of its own, and a large one in windows that overlap: what spans two of
its rows is whole in one of them. What was found is noted in the transaction that moves the mark; a process that dies
between two ranges looks at one of them again.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from functools import partial

from msgspec import Struct

from weft.kernel.errors import ContentGone, ContentMissing, FactDamaged, NotApplicable
from weft.ledger.imports.kept_sources import MAGIC, unpacked
from weft.ledger.imports.sources import import_secret
from weft.ledger.secrets.scanner import SecretScanner, SecretTrace
from weft.store.erased_contents import ErasedContents
from weft.store.facts import refuse_disorder
from weft.store.port import ReadTxn, Store, WriteTxn
from weft.store.sql import Sql, rows_in

MARK = "secrets"
RULES = "secret_rules"
BATCH_ROWS, BATCH_BYTES = 256, 4 * 1024 * 1024
REACH = 32 * 1024
"""No credential, with the words that tell it for one, is longer."""
_breaks = re.compile(rb"(?<!\\)\\++[nrt]")
_quotes = re.compile(rb'(?<!\\)\\++(["/])')
_escapes = re.compile(rb'(?<!\\)\\++[nrt"/]')
_NOTE = "INSERT INTO local(key, value) VALUES (?, ?) ON CONFLICT (key) DO UPDATE SET value = excluded.value"
_FOUND = (
    "INSERT INTO secret_found(content, start, rule, fingerprint, shown) VALUES (?, ?, ?, ?, ?)"
    " ON CONFLICT (content, start, rule) DO UPDATE SET fingerprint = excluded.fingerprint, shown = excluded.shown"
)
_MOVE = "INSERT INTO watermark(view, n) VALUES (?, ?) ON CONFLICT (view) DO UPDATE SET n = excluded.n"

Report = Callable[[str, int, int], None]


class SecretScan(Struct, frozen=True):
    """What one run looked at."""

    contents: int
    bytes: int


class ScanPart(Struct, frozen=True):
    """Some contents after `mark`, up to `end` of `last`, and what was found in them."""

    mark: int
    end: int
    last: int
    contents: int
    bytes: int
    found: list[tuple[int, SecretTrace]]


class Window(Struct, frozen=True, gc=False):
    """Some bytes of a content from `at` on; what begins from `low` to before `high` belongs to this one."""

    at: int
    data: bytes
    low: int
    high: int


def scan(store: Store, scanner: SecretScanner, report: Report, *, anew: bool = False) -> SecretScan:
    """Look at every content that these rules have not seen yet; `anew`: at every content."""
    key = import_secret(store)
    with store.read() as txn:
        stale = _rules(txn.sql) != scanner.rules
    if anew or stale:
        store.write(lambda txn: _begin(txn.sql, scanner.rules))
    contents = size = 0
    while (part := _look(store, scanner, key)) is not None:
        store.write(partial(_note, scanner.rules, part))
        contents, size = contents + part.contents, size + part.bytes
        report("contents", part.end, part.last)
        store.pause_reading()
    return SecretScan(contents, size)


def _look(store: Store, scanner: SecretScanner, key: bytes) -> ScanPart | None:
    """The contents that come next, if there are any."""
    with store.read() as txn:
        mark = txn.facts.watermark(MARK)
        numbers = next_contents(txn.sql, mark)
        if not numbers:
            return None
        (last,) = txn.sql.one("SELECT max(n) FROM content") or (0,)
        found = [(n, trace) for n, _ in numbers for trace in _traces(txn, n, scanner, key)]
    return ScanPart(mark, numbers[-1][0], last, len(numbers), sum(size for _, size in numbers), found)


def _begin(sql: Sql, rules: str) -> None:
    """Other rules find other things: what older ones found is forgotten, and all is looked at again."""
    sql.run("DELETE FROM secret_found")
    sql.run("DELETE FROM watermark WHERE view = ?", (MARK,))
    sql.run(_NOTE, (RULES, rules))


def _rules(sql: Sql) -> str | None:
    row = sql.one("SELECT value FROM local WHERE key = ?", (RULES,))
    return str(row[0]) if row else None


def next_contents(sql: Sql, mark: int) -> list[tuple[int, int]]:
    """Numbers and sizes of some contents beyond the mark; at least one, where there is any."""
    rows = sql.all("SELECT n, size FROM content WHERE n > ? ORDER BY n LIMIT ?", (mark, BATCH_ROWS))
    refuse_disorder("content", mark, rows)
    chosen: list[tuple[int, int]] = []
    size = 0
    for n, each in rows:
        if chosen and size + each > BATCH_BYTES:
            break
        chosen.append((n, each))
        size += each
    return chosen


def _traces(txn: ReadTxn, n: int, scanner: SecretScanner, key: bytes) -> Iterator[SecretTrace]:
    for window in windows_of(txn, n):
        for trace in _seen(scanner, window.data, key):
            start = window.at + trace.start
            if window.low <= start < window.high:
                yield SecretTrace(trace.rule, start, trace.fingerprint, trace.shown)


def windows_of(txn: ReadTxn, n: int) -> Iterator[Window]:
    """A content, as it lay; none of one that is erased."""
    try:
        yield from windows(as_it_lay(txn, n, txn.facts.stream_content(n)))
    except ContentGone:
        return


def _seen(scanner: SecretScanner, data: bytes, key: bytes) -> Iterator[SecretTrace]:
    """As the bytes are, and as they were before JSON wrapped them: rules that look for a quote meet a backslash."""
    yield from scanner.scan(data, key)
    if b"\\" in data and (plain := without_escapes(data)) != data:
        for trace in scanner.scan(plain, key):
            yield SecretTrace(trace.rule, place_before(data, trace.start), trace.fingerprint, trace.shown)


def without_escapes(data: bytes) -> bytes:
    return _quotes.sub(rb"\1", _breaks.sub(b"\n", data))


def place_before(data: bytes, place: int) -> int:
    """Where in `data` the byte is that lies at this place once escapes are taken out."""
    shorter = 0
    for found in _escapes.finditer(data):
        if found.start() - shorter >= place:
            break
        shorter += len(found[0]) - 1
    return place + shorter


def as_it_lay(txn: ReadTxn, n: int, pieces: Iterable[bytes]) -> Iterator[bytes]:
    """A content in pieces; of a kept stretch what lay in its source. What only looks like one is what it is."""
    for i, piece in enumerate(pieces):
        if i == 0 and piece.startswith(MAGIC):
            try:
                yield unpacked(txn, n)
            except (FactDamaged, ContentMissing, ContentGone):
                pass
            else:
                return
        yield piece


def windows(pieces: Iterable[bytes]) -> Iterator[Window]:
    """Overlapping windows, such that whatever is found has `REACH` bytes before and after it, where there are any."""
    at, low, held = 0, 0, b""
    rest = iter(pieces)
    piece = next(rest, None)
    while piece is not None:
        data, following = held + piece, next(rest, None)
        high = at + len(data) if following is None else max(low, at + len(data) - REACH)
        yield Window(at, data, low, high)
        held = data[-2 * REACH :]
        at, low, piece = at + len(data) - len(held), high, following


def _note(rules: str, part: ScanPart, txn: WriteTxn) -> None:
    """What was found; the mark moves from where it stood alone: whoever
    began anew looks at these contents, too."""
    if _rules(txn.sql) != rules:
        raise NotApplicable(
            "somebody looks for secrets with other rules at the same time", "use one version of the rules"
        )
    note_found(part.found, txn)
    if txn.facts.watermark(MARK) == part.mark:
        txn.sql.run(_MOVE, (MARK, part.end))


def note_found(found: list[tuple[int, SecretTrace]], txn: WriteTxn) -> None:
    """But for contents that were erased meanwhile."""
    query = "SELECT n FROM content WHERE length(salt) > 0 AND n IN"
    there = {n for (n,) in rows_in(txn.sql, query, (n for n, _ in found))}
    rows = [(n, t.start, t.rule, t.fingerprint, t.shown) for n, t in found if n in there]
    txn.sql.run_many(_FOUND, rows)


def forget(_: Store, txn: WriteTxn, forgotten: ErasedContents) -> None:
    """What was found in contents that are erased now."""
    txn.sql.run_many("DELETE FROM secret_found WHERE content = ?", [(n,) for n in forgotten.contents])
