"""What of a ledger's file belongs to a clone of it, and which file may become one.

Views say the same in a ledger and in its clone as long as they do not go by who wrote what. So a file may become a
clone only if one replica wrote all of its events, and if it holds nothing that a ledger says for itself alone:
tombstones, substitutions, resources, names that it gave up. In the copy all local state goes: the name, whom the ledger
trusts and syncs with, who holds its sessions, what it remembers of imports, drafts, vectors, findings.
"""

from __future__ import annotations

from hashlib import sha256

from msgspec import Struct

from weft.kernel.errors import FactDamaged
from weft.kernel.events import GENESIS, extend
from weft.ledger.imports.sources import KEY as IMPORT_SECRET
from weft.ledger.search.vectors import GONE
from weft.ledger.secrets.names import FOUND
from weft.ledger.secrets.scan import MARK, RULES
from weft.ledger.upkeep.ledger_copy import STATE_TABLES
from weft.store.facts import FactReader, local_value
from weft.store.port import Progress
from weft.store.records import CURRENT_VIEW_RULES, USAGE_TOTALS, VIEW_RULES, VIEWS_MENDED, LogTip
from weft.store.sql import Sql, rows_in

OWN_WORD_TABLES = (
    "came_from", "erasure", "substitution", "branch", "resource", "resource_part", "resource_use", "resource_handle",
    "resource_snapshot", "resource_restore",
)  # fmt: skip
"""Their rows, or those that they change, depend on which events the ledger wrote itself; `came_from` is of others'."""
TOTALS_KEYS = (USAGE_TOTALS, VIEWS_MENDED)
"""What the totals of usage go by. These come along, as those do."""
PLAIN_KEYS = frozenset({"replica", IMPORT_SECRET, VIEW_RULES, *TOTALS_KEYS, GONE, FOUND, RULES})
PLAIN_PREFIXES = ("trust:", "disputed:", "whole-offer:")
"""Local state that says nothing of facts. Any other (facts that never came, names that were given up, an erasure under
way) has its consequences in the views."""
_REPLICA = b'"replica":"'
PROVEN_EVENTS = 65_536
"""So many at the end of a log are hashed; of a longer one the others are read. Hashing all of them would take longer
than copying the file does."""


class ReadLog(Struct, frozen=True):
    """A log that one replica wrote."""

    tip: LogTip
    bytes: int


def may_become_clone(sql: Sql) -> bool:
    """As far as tables tell; `read_log` looks at the events."""
    local = {str(key): value for key, value in sql.all("SELECT key, value FROM local")}
    if local.get(VIEW_RULES) != CURRENT_VIEW_RULES:
        return False
    if not all(key in PLAIN_KEYS or key.startswith(PLAIN_PREFIXES) for key in local):
        return False
    return all(sql.one(f"SELECT 1 FROM {table} LIMIT 1") is None for table in OWN_WORD_TABLES)


def read_log(facts: FactReader, replica: str, progress: Progress) -> ReadLog | None:
    """The log, whose end is held against its chain of arrival. None where another replica wrote some of it. Raises
    FactDamaged where rows are missing, or where the end is not what the chain says."""
    own, end = _REPLICA + replica.encode() + b'"', facts.tip()
    chain, size, n = GENESIS, 0, 0
    for row in facts.rows():
        if row.events.count(_REPLICA) != row.events.count(own):
            return None
        if row.n > end.n - PROVEN_EVENTS:
            chain = extend(chain, (sha256(line).digest() for line in row.lines()))
        else:
            chain = row.chain
        if chain != row.chain or row.first != n + 1:
            raise FactDamaged("log row", str(row.n), "its events do not hash to the chain of arrival")
        size, n = size + len(row.events), row.n
        progress(n, end.n)
    return ReadLog(end, size)


def forget_state(sql: Sql, replica: str, secret: str | None) -> None:
    """Local state goes; this is the ledger `replica` now. What it imports goes by this secret, or by the one that is
    there."""
    secret = secret or local_value(sql, IMPORT_SECRET)
    of_totals = list(rows_in(sql, "SELECT key, value FROM local WHERE key IN", TOTALS_KEYS))
    for table in STATE_TABLES:
        sql.run(f"DELETE FROM {table}")
    sql.run("DELETE FROM watermark WHERE view = ?", (MARK,))
    sql.run("DELETE FROM local")
    values = (("replica", replica), (IMPORT_SECRET, secret), (VIEW_RULES, CURRENT_VIEW_RULES), *of_totals)
    sql.run_many("INSERT INTO local(key, value) VALUES (?, ?)", values)
