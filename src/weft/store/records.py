"""The records of facts on disk: rows of the log and of contents, and what names them."""

from __future__ import annotations

from msgspec import Struct

from weft.kernel.errors import FactDamaged

KEY_BYTES = 8
LEDGER_SCOPE = 0
"""The ledger's own contents; below it, one scope for each origin that was imported from."""
LACKS = "lacks:"
"""Local state: a row per content that came events name and that did not come with them."""
EXCERPT = "excerpt:"
"""Local state: a row per stream of another ledger of which events came without its beginning."""
FORMER = "former:"
"""Local state: a row per name that this ledger went by, with the last event that it acknowledged under it."""
REFUSED_EVENT, REFUSED_NAME = "refused:event:", "refused:name:"
"""Local state: a row per event that another ledger told and that was refused here, and per turn or session it began."""
UNPROVEN = "unproven:"
"""Local state: a row per stretch of the log that a peer told and that its own log is not proven to hold."""
TAKEN = "taken:"
"""Local state: a row per event of another ledger that somebody here took over, by its id, with the time of that."""
DECLINED = "declined:"
"""Local state: a row per event of another ledger that somebody here does not want to take over."""
VIEW_RULES, CURRENT_VIEW_RULES = "view_rules", "8"
"""Local state: by which rules all views were computed. The number rises when a program computes others of old facts."""
VIEWS_MENDED = "views_mended"
"""Local state: how often rows of views that were wrong were made anew. Whoever remembers rows forgets them then."""
USAGE_TOTALS = "usage_totals"
"""Local state: by which rules, and of which rows, the totals of usage were counted."""
LAST_NUMBER = 2**63 - 1
"""No row has a higher number. Where a question says so, PostgreSQL expects few rows even while it has no statistics,
and goes by the index; of numbers without an end it expects a third of the table, and reads all of it."""
Key = tuple[int, bytes]
"""A content's scope and the plain digest of its bytes, or the reference of one that was imported: equal ones are one
content."""


class LogTip(Struct, frozen=True, gc=False):
    """Where the log ends, and the highest content number that anything up to there may refer to."""

    n: int
    chain: bytes
    contents: int = 0


class LogRow(Struct, frozen=True, gc=False):
    """A row of the log: the events of one append."""

    n: int
    count: int
    at: int
    chain: bytes
    events: bytes

    @property
    def first(self) -> int:
        return self.n - self.count + 1

    def lines(self) -> list[bytes]:
        lines = self.events.split(b"\n")
        if len(lines) != self.count:
            raise FactDamaged("log row", str(self.n), f"it holds {len(lines)} events, not {self.count}")
        return lines


class Stored(Struct, frozen=True, gc=False):
    """A content in its row."""

    n: int
    ref: bytes


class ContentRow(Struct, frozen=True, gc=False):
    n: int
    ref: bytes
    salt: bytes
    size: int
    data: bytes | None


class ContentHead(Struct, frozen=True, gc=False):
    """A content without its bytes."""

    n: int
    ref: bytes
    salt: bytes
    size: int
