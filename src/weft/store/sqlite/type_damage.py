"""Values of another type than their column's. No program of ours writes one: a flipped bit or a hand did.

SQLite gives such a value to whoever reads its row, who then trips over it in his own way. So nobody checks each value
he reads; whoever trips looks here whether that was why.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from weft.kernel.advice import Action
from weft.kernel.errors import Damaged
from weft.store.sql import Sql

ACCIDENTS = (TypeError, ValueError, LookupError, ArithmeticError, AttributeError, MemoryError)
"""What happens to a reader who takes a value for what it is not."""


_TABLES = "SELECT name FROM pragma_table_list WHERE schema = 'main' AND type = 'table' AND name NOT LIKE 'sqlite%'"


@contextmanager
def explained(sql: Sql, path: str) -> Iterator[None]:
    """An accident in here that a value of the wrong type could be the reason of becomes damage with a place."""
    try:
        yield
    except ACCIDENTS as accident:
        damage = explain(sql, path, accident)
        if damage is None:
            raise
        raise damage from accident


def explain(sql: Sql, path: str, accident: BaseException) -> Damaged | None:
    """The damage behind an accident; None where every value is of its column's type."""
    if not isinstance(accident, ACCIDENTS):
        return None
    place = find_misfit(sql)
    if place is None:
        return None
    return Damaged(
        f"{path}: a value in {place} is of another type than its column ({accident})", Action.VERIFY_REBUILD_EXAMINE
    )


def find_misfit(sql: Sql) -> str | None:
    """Table and column of the first value that does not fit."""
    for (table,) in sql.all(_TABLES):
        columns = sql.all("SELECT name, type, \"notnull\" OR pk FROM pragma_table_info(?) WHERE type <> ''", (table,))
        if not columns:
            continue
        cases = " ".join(
            f"WHEN typeof(\"{name}\") NOT IN ({_fitting(kind, required)}) THEN '{name}'"
            for name, kind, required in columns
        )
        each = f'SELECT CASE {cases} END AS misfit FROM "{table}"'
        found = sql.one(f"SELECT misfit FROM ({each}) WHERE misfit IS NOT NULL")
        if found is not None:
            return f"{table}.{found[0]}"
    return None


def _fitting(kind: str, required: bool) -> str:
    return f"'{kind.lower()}'" if required else f"'{kind.lower()}', 'null'"
