"""Vectors of nodes, as local state: kept, counted, and gone with the texts they were made from."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from hashlib import sha256
from pathlib import Path

from msgspec import Struct
from msgspec.structs import astuple

from weft.store.erased_contents import ErasedContents
from weft.store.port import Store, WriteTxn
from weft.store.sql import AT_ONCE, Insert, Sql

NEAR = "-near"
"""Beside a ledger's file: indexes of neighbours, which can be thrown away."""

GONE = "vectors-gone"
"""Local state: how often vectors were taken away."""


class VectorRow(Struct, frozen=True):
    n: int
    model: str
    node: str
    dimensions: int
    floats: bytes
    text: int | None
    embedded_at: int


VECTOR = Insert("vector", VectorRow.__struct_fields__)


def put_vector(sql: Sql, row: VectorRow) -> None:
    """In the place of the one that this node had from the same model."""
    which = "FROM vector WHERE model = ? AND node = ?"
    if sql.one(f"SELECT 1 {which}", (row.model, row.node)) is not None:
        sql.run(f"DELETE {which}", (row.model, row.node))
        note_gone(sql)
    sql.add(VECTOR, [astuple(row)])


def note_gone(sql: Sql) -> None:
    """Vectors were taken away: whoever holds some in memory looks again which are left."""
    sql.run(
        "INSERT INTO local(key, value) VALUES (?, '1') ON CONFLICT (key) DO UPDATE"
        " SET value = CAST(CAST(local.value AS INTEGER) + 1 AS TEXT)",
        (GONE,),
    )


def vectors_gone(sql: Sql) -> str:
    """How often vectors were taken away; the same as before: none since then."""
    row = sql.one("SELECT value FROM local WHERE key = ?", (GONE,))
    return str(row[0]) if row else ""


def near_file(store_path: str, model: str) -> Path | None:
    """Where an index of a model's vectors may lie; None where a ledger is no file."""
    path = Path(store_path)
    safe = "".join(letter if letter.isalnum() or letter in "-." else "_" for letter in model)
    if safe != model or len(safe) > 64:  # two models never share a file
        safe = f"{safe[:55]}-{sha256(model.encode()).hexdigest()[:8]}"
    return path.with_name(f"{path.name}{NEAR}-{safe}") if path.is_file() else None


def forget(store: Store, txn: WriteTxn, forgotten: ErasedContents) -> None:
    """Vectors of all that lost contents: turns and their messages, programs, and sessions, since their texts are those
    of turns. The indexes beside the ledger hold copies, and are made anew."""
    forget_turns(txn.sql, forgotten.turns)
    for numbers in _chunks(forgotten.contents):
        marks = ", ".join("?" * len(numbers))
        programs = f"SELECT id FROM program WHERE config IN ({marks})"
        txn.sql.run(f"DELETE FROM vector WHERE text IN ({marks}) OR node IN ({programs})", (*numbers, *numbers))
    path = Path(store.path)
    if path.is_file():
        for file in path.parent.glob(f"{path.name}{NEAR}*"):
            with suppress(FileNotFoundError):  # another process threw it away
                file.unlink()


def forget_turns(sql: Sql, turns: Sequence[str]) -> None:
    """Vectors of turns and their messages, which say something else now, and of sessions."""
    for some in _chunks(turns):
        marks = ", ".join("?" * len(some))
        sql.run(f"DELETE FROM vector WHERE node IN ({marks})", some)
        ids = f"SELECT m.id FROM message m JOIN turn t ON t.n = m.turn WHERE t.id IN ({marks})"
        sql.run(f"DELETE FROM vector WHERE node IN ({ids})", some)
    sql.run("DELETE FROM vector WHERE node IN (SELECT id FROM session)")
    note_gone(sql)


def _chunks(values: Sequence[object]) -> list[Sequence[object]]:
    return [values[start : start + AT_ONCE] for start in range(0, len(values), AT_ONCE)]
