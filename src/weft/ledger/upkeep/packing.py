"""Packing cold trees: their contents go into compressed blocks and stay what they were.

Only contents that nobody outside these trees uses, and that are long enough to be worth it: ids, labels and short
messages stay where a plain SQL shell reads them. A few megabytes at a time, each in a transaction of its own, so that
writers get their turn; killed in between, some are packed and some are not. In the end the database is written anew,
which gives the room back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial

from msgspec import Struct

from weft.kernel.contents import ROW_BYTES
from weft.kernel.errors import FactDamaged, NotApplicable, NotFound
from weft.ledger.read.content_uses import About, Report, Resolve, find_uses
from weft.ledger.read.revisions import session_beside_turns
from weft.store.fact_log import (
    PACK_BYTES,
    ContentSlice,
    FactReader,
    drop_from_packs,
    is_packing_worthwhile,
    pack_frame,
    write_pack,
)
from weft.store.port import ReadTxn, Store, WriteTxn
from weft.store.sql import rows_in

LEAST = 128
"""Shorter contents stay as they are."""
AT_ONCE = 4 * 1024 * 1024


class PackResult(Struct, frozen=True, kw_only=True):
    """What was packed, or unpacked, or would be."""

    trees: int
    contents: int
    bytes: int
    packed_bytes: int
    """What they take in packs."""
    shared: int = 0
    """Contents that stay as they are, since trees that are not packed use them too."""
    complete: bool = True
    """The room was given back; otherwise somebody still reads what was there before."""


class ColdContents(Struct, frozen=True):
    """Contents to be packed, by number, and how many are shared with others."""

    trees: int
    numbers: list[int]
    shared: int


def pack(
    store: Store,
    names: Sequence[str],
    before: int | None,
    resolve: Resolve,
    *,
    dry_run: bool,
    report: Report,
) -> PackResult:
    """Pack the trees that these names lead to, or all; with `before` only those in which nothing happened since."""
    store.catch_up()
    with store.read() as txn:
        cold = _find_cold(txn, _root_numbers(txn, names, before, resolve), report)
    contents = size = packed = done = 0
    for some in _content_portions(store, cold.numbers):
        work = partial(_measure_contents if dry_run else _pack_some, some)
        counted = _read_only(store, work) if dry_run else store.write(work)
        contents, size, packed = contents + counted[0], size + counted[1], packed + counted[2]
        done += len(some)
        report("packing", done, len(cold.numbers))
    complete = store.rewrite() if contents and not dry_run else True
    return PackResult(
        trees=cold.trees, contents=contents, bytes=size, packed_bytes=packed, shared=cold.shared, complete=complete
    )


Counted = tuple[int, int, int]
Work = Callable[[ReadTxn | WriteTxn], Counted]


def _read_only(store: Store, work: Work) -> Counted:
    with store.read() as txn:
        return work(txn)


def _root_numbers(txn: ReadTxn, names: Sequence[str], before: int | None, resolve: Resolve) -> list[int]:
    chosen = {_root_of_name(txn, name, resolve) for name in names}
    rows = txn.sql.fetch_rows(
        "SELECT root, max(COALESCE(completed_at, started_at)),"
        " sum(CASE WHEN status IN ('completed', 'failed') THEN 0 ELSE 1 END) FROM turn GROUP BY root ORDER BY root"
    )
    for root, _, unfinished in rows:
        if root in chosen and unfinished:
            raise NotApplicable("a turn of that tree is being recorded", "wait until it has ended")
    return [
        root
        for root, last, unfinished in rows
        if not unfinished and (not names or root in chosen) and (before is None or last < before)
    ]


def _root_of_name(txn: ReadTxn, name: str, resolve: Resolve) -> int:
    session = session_beside_turns(txn, name)
    if session is not None and session.head is None:
        raise NotFound("turn in session", session.label, "it has no head; name one of its turns")
    return resolve(txn, name if session is None or session.head is None else session.head).turn.root


def _find_cold(txn: ReadTxn, roots: Sequence[int], report: Report) -> ColdContents:
    streams = _streams_of_trees(txn, roots)
    if not streams:
        return ColdContents(0, [], 0)
    uses = find_uses(txn.facts, streams, (), False, report)
    alone = [n for ref in uses.inside if ref not in uses.outside and (n := txn.facts.find_content(ref)) is not None]
    rows = rows_in(txn.sql, f"SELECT n FROM content WHERE length(salt) > 0 AND size >= {LEAST} AND n IN", alone)
    done = {n for (n,) in txn.sql.fetch_rows("SELECT DISTINCT content FROM packed")}
    return ColdContents(len(roots), sorted(n for (n,) in rows if n not in done), len(uses.outside))


def _streams_of_trees(txn: ReadTxn, roots: Sequence[int]) -> dict[str, About]:
    """What tells of the turns of these trees."""
    query = "SELECT id FROM turn WHERE segment IN (SELECT n FROM segment WHERE root = ?)"
    turns = [id for root in roots for (id,) in txn.sql.fetch_rows(query, (root,))]
    return {f"{kind}:{turn}": (turn, None) for turn in turns for kind in ("run", "import")}


def _content_portions(store: Store, numbers: Sequence[int]) -> Iterator[list[int]]:
    """Numbers in order of arrival, some megabytes of contents at a time."""
    some: list[int] = []
    size = 0
    with store.read() as txn:
        sizes: dict[int, int] = dict(rows_in(txn.sql, "SELECT n, size FROM content WHERE n IN", numbers))
    for n in numbers:
        some.append(n)
        size += sizes.get(n, 0)
        if size >= AT_ONCE:
            yield some
            some, size = [], 0
    if some:
        yield some


def _worthwhile_packs(facts: FactReader, numbers: Sequence[int]) -> Iterator[list[ContentSlice]]:
    """What goes into each pack, of contents that are still here and not packed yet: many whole ones together, or one
    part of a large one, of which all parts are packed or none."""
    waiting: list[ContentSlice] = []
    size = 0
    for n, length in _unpacked_contents(facts, numbers):
        if length > ROW_BYTES:
            yield from _large_content_packs(facts, n)
            continue
        if size + length > PACK_BYTES:
            yield from [waiting] if is_packing_worthwhile(waiting) else []
            waiting, size = [], 0
        waiting.append(ContentSlice(n, 0, facts.content(n)))
        size += length
    if waiting and is_packing_worthwhile(waiting):
        yield waiting


def _unpacked_contents(facts: FactReader, numbers: Sequence[int]) -> Iterator[tuple[int, int]]:
    for n in numbers:
        row = facts.sql.fetch_row("SELECT size FROM content WHERE n = ? AND length(salt) > 0", (n,))
        if row is not None and facts.sql.fetch_row("SELECT 1 FROM packed WHERE content = ?", (n,)) is None:
            yield n, row[0]


def _large_content_packs(facts: FactReader, n: int) -> Iterator[list[ContentSlice]]:
    """Its first part tells whether it is worth it."""
    for idx, piece in enumerate(facts.stream_content(n)):
        slices = [ContentSlice(n, idx, piece)]
        if idx == 0 and not is_packing_worthwhile(slices):
            return
        yield slices


def _measure_contents(numbers: Sequence[int], txn: ReadTxn | WriteTxn) -> Counted:
    contents: set[int] = set()
    size = packed = 0
    for slices in _worthwhile_packs(txn.facts, numbers):
        contents |= {each.content for each in slices}
        size += sum(len(each.data) for each in slices)
        packed += len(pack_frame(slices))
    return len(contents), size, packed


def _pack_some(numbers: Sequence[int], txn: ReadTxn | WriteTxn) -> Counted:
    contents: set[int] = set()
    size = packed = 0
    for slices in _worthwhile_packs(txn.facts, numbers):
        packed += write_pack(txn.sql, slices)
        size += sum(len(each.data) for each in slices)
        contents |= {each.content for each in slices}
    for n in contents:
        _ensure_whole(txn, n)
    gone = [(n,) for n in sorted(contents)]
    txn.sql.run_many("UPDATE content SET bytes = NULL WHERE n = ?", gone)
    txn.sql.run_many("DELETE FROM content_part WHERE content = ?", gone)
    return len(contents), size, packed


def _ensure_whole(txn: ReadTxn | WriteTxn, n: int) -> None:
    """Before its own bytes go: all of them lie in packs."""
    row = txn.sql.fetch_row("SELECT c.ref, c.size - (SELECT sum(size) FROM packed WHERE content = c.n) FROM content c"
                      " WHERE c.n = ?", (n,))  # fmt: skip
    if row is None or row[1] != 0:
        raise FactDamaged("content", str(n), "its parts are not as long as it should be")


def unpack(store: Store, names: Sequence[str], resolve: Resolve, report: Report) -> PackResult:
    """Put the bytes back into their own rows: of the trees that these names lead to, or all."""
    store.catch_up()
    with store.read() as txn:
        roots = _root_numbers(txn, names, None, resolve)
        wanted = {n for (n,) in txn.sql.fetch_rows("SELECT DISTINCT content FROM packed")}
        if names:
            wanted &= _contents_of(txn, roots, report)
    contents = size = packed = done = 0
    for some in _content_portions(store, sorted(wanted)):
        counted = store.write(partial(_unpack_some, some))
        contents, size, packed = contents + counted[0], size + counted[1], packed + counted[2]
        done += len(some)
        report("unpacking", done, len(wanted))
    complete = store.rewrite() if contents else True
    trees = len(roots) if contents else 0
    return PackResult(trees=trees, contents=contents, bytes=size, packed_bytes=packed, complete=complete)


def _contents_of(txn: ReadTxn, roots: Sequence[int], report: Report) -> set[int]:
    uses = find_uses(txn.facts, _streams_of_trees(txn, roots), (), False, report)
    return {n for ref in uses.inside if (n := txn.facts.find_content(ref)) is not None}


def _unpack_some(numbers: Sequence[int], txn: WriteTxn) -> Counted:
    before = _size_of_packs(txn)
    contents = size = 0
    for n in numbers:
        if txn.sql.fetch_row("SELECT 1 FROM packed WHERE content = ?", (n,)) is None:
            continue
        pieces = list(txn.facts.stream_content(n))
        if len(pieces) == 1 and len(pieces[0]) <= ROW_BYTES:
            txn.sql.run("UPDATE content SET bytes = ? WHERE n = ?", (pieces[0], n))
        else:
            rows = [(n, idx, piece) for idx, piece in enumerate(pieces)]
            txn.sql.run_many("INSERT INTO content_part(content, idx, bytes) VALUES (?, ?, ?)", rows)
        contents, size = contents + 1, size + sum(map(len, pieces))
    drop_from_packs(txn.sql, numbers)
    return contents, size, before - _size_of_packs(txn)


def _size_of_packs(txn: WriteTxn) -> int:
    (size,) = txn.sql.fetch_row("SELECT COALESCE(sum(length(bytes)), 0) FROM pack") or (0,)
    return int(size)
