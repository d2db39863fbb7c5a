"""Two ledgers that are asked everything at once and must answer the same: one on SQLite, one on PostgreSQL."""

import io
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any, cast

import msgspec
import psycopg

import weft
from tests.ledger.histories import exported, plain_reader, select
from weft.kernel.clock import FixedClock
from weft.kernel.errors import StoreError, WeftError
from weft.ledger.api.ledger import Ledger
from weft.store.postgres.connection import parse_address

PLAIN = (str, bytes, int, float, bool, type(None), list, tuple, dict, set, frozenset, msgspec.Struct)


class TwinClock(FixedClock):
    """Moves another clock along; each ledger sleeps on its own, and both must sleep as long."""

    def __init__(self, now_ms: int) -> None:
        super().__init__(now_ms)
        self.other = FixedClock(now_ms)

    def tick(self, ms: int = 1) -> None:
        super().tick(ms)
        self.other.tick(ms)


class Twin:
    """Answers for both, once it has seen that they say the same."""

    def __init__(self, one: Any, other: Any) -> None:
        self.one, self.other = one, other

    def __getattr__(self, name: str) -> Any:
        one = getattr(self.one, name)
        if name.startswith("_") or name == "path":
            return one  # of the machinery: nobody's answer
        other = getattr(self.other, name)
        if callable(one):
            return lambda *args, **options: agreed(lambda: one(*args, **options), lambda: other(*args, **options))
        return same(one, other)

    def export_facts(self, target: Any) -> int:
        """Of the upkeep of both: a target can be written to once."""
        files = io.BytesIO(), io.BytesIO()
        lines = [part.export_facts(file) for part, file in zip((self.one, self.other), files, strict=True)]
        assert files[0].getvalue() == files[1].getvalue()
        target.write(files[0].getvalue())
        return int(lines[0])

    def __enter__(self) -> "Twin":
        self.one.__enter__()
        self.other.__enter__()
        return self

    def __exit__(self, *exc: Any) -> None:
        self.one.__exit__(*exc)
        self.other.__exit__(*exc)


def agreed(ask: Callable[[], Any], ask_other: Callable[[], Any]) -> Any:
    """The answer of both, or the error that both raise."""
    one, other = outcome(ask), outcome(ask_other)
    if isinstance(one, WeftError) and isinstance(other, WeftError):
        assert type(one) is type(other)
        assert isinstance(one, StoreError) or str(one) == str(other)
        raise one
    assert not isinstance(other, WeftError), other
    if isinstance(one, WeftError):
        raise one
    return same(one, other)


def outcome(ask: Callable[[], Any]) -> Any:
    try:
        return ask()
    except WeftError as error:
        return error


def same(one: Any, other: Any) -> Any:
    if isinstance(one, Iterator):
        one, other = list(one), list(other)
        assert one == other
        return iter(one)
    if isinstance(one, PLAIN):
        assert one == other
        return one
    return Twin(one, other)


def open_twins(path: Path, address: str, clock: TwinClock, seed: object, **options: Any) -> Ledger:
    """Both draw the same randomness, so everything they make up is the same as well."""
    one = weft.open(path, clock=clock, random_bytes=Random(f"{seed}").randbytes, **options)
    other = weft.open(address, clock=clock.other, random_bytes=Random(f"{seed}").randbytes, **options)
    return cast(Ledger, Twin(one, other))


def assert_same_everywhere(path: Path, address: str) -> None:
    """Every readable table and every table beneath has the same rows in both databases, for a plain reader of each."""
    named = parse_address(address)
    with (
        psycopg.connect(named.conninfo, row_factory=psycopg.rows.dict_row) as connection,
        plain_reader(path) as ask,
    ):
        for name in tables(path):
            theirs = connection.execute(f"SELECT * FROM {named.quoted}.{name}".encode()).fetchall()
            assert in_order(ask(f"SELECT * FROM {name}")) == in_order(theirs), name


def tables(path: Path) -> list[str]:
    found = select(
        path,
        "SELECT name FROM sqlite_schema WHERE type IN ('table', 'view') AND name NOT LIKE 'sqlite%'"
        " AND name NOT LIKE 'word%'",
    )
    return [row["name"] for row in found]


def in_order(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Whatever order they came in; where a ledger lies is its own affair."""
    return sorted((row for row in rows if row.get("key") != "place"), key=repr)


def carried(facts: bytes, into: Ledger) -> bytes:
    into.upkeep.import_facts(io.BytesIO(facts))
    return exported(into)
