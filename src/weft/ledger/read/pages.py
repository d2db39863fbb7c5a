"""Pages of a listing: some of its items in order, and a cursor where the next page begins.

A cursor is a text that says which listing it belongs to, with which filters and in which ledger; the arrival number of
the newest event and the time when the first page was read; and a position in the order of the listing. The position is
made of the values that items are ordered by, so that it stays a place between two items whatever becomes of them.
"""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable, Iterable, Mapping
from hashlib import sha256
from itertools import islice
from typing import Any, TypeVar

import orjson
from msgspec import Struct

from weft.kernel.canonical import MAX_INTEGER
from weft.kernel.errors import InvalidInput
from weft.kernel.weft_error import quoted
from weft.ledger.arguments import checked_count, checked_text

VERSION = 1
CHECKSUM_BYTES = 6
DIGEST_DIGITS = 12
ROWS_AT_ONCE = 512
LONGEST_CURSOR_LETTERS = 4096
Position = tuple[int, ...]
Item = TypeVar("Item")
Other = TypeVar("Other")


class Page(list[Item]):
    """Some items of a listing, in its order. `next` is the cursor that the following page is asked for with (`after=`);
    null: there are no more."""

    def __init__(self, items: Iterable[Item] = (), next: str | None = None) -> None:
        super().__init__(items)
        self.next = next


class Cursor(Struct, frozen=True):
    """Where a page begins."""

    arrival: int
    """The number of the newest event when the first page was read: what arrived later is left for another reading."""
    now: int
    """The time of that, in Unix milliseconds, from which words such as 'yesterday' count on every page."""
    position: Position = ()
    """That of the last item of the page before; empty: this is the first page."""


class PageRequest:
    """One page that is asked for: a listing, its filters, how many items and from which cursor on."""

    def __init__(
        self, listing: str, replica: str, filters: Mapping[str, Any], limit: int | None, after: str | None
    ) -> None:
        self.listing = listing
        self.limit = None if limit is None else checked_count(limit, "limit")
        self._filters = _digest(*sorted((name, value) for name, value in filters.items() if value is not None))
        self._replica = _digest(replica)
        self.after = None if after is None else self._read(after)

    def begin(self, arrival: int, now: int) -> Cursor:
        """The cursor that was given; else that of a first page, which is read at this moment."""
        return self.after or Cursor(arrival, now)

    @property
    def now(self) -> int | None:
        """The time of the first page; null: this is the first page."""
        return None if self.after is None else self.after.now

    @property
    def rows_at_once(self) -> int:
        """How many rows to read together: one more than the page has, to know whether another follows."""
        return ROWS_AT_ONCE if self.limit is None else min(self.limit + 1, ROWS_AT_ONCE)

    def page(self, begun: Cursor, items: Iterable[tuple[Position, Item]]) -> Page[Item]:
        """As many items as were asked for; `items` begin behind the cursor, each with its position."""
        if self.limit is None:
            return Page(item for _, item in items)
        rest = iter(items)
        chosen = list(islice(rest, self.limit))
        further = next(rest, None) is not None
        place = chosen[-1][0] if chosen else begun.position
        text = self._written(Cursor(begun.arrival, begun.now, place)) if further else None
        return Page((item for _, item in chosen), text)

    def page_until(self, begun: Cursor, items: Iterable[tuple[Position, Item]], stopped: Position | None) -> Page[Item]:
        """These items; where the search for them stopped before its end, the next page goes on behind that place."""
        text = None if stopped is None else self._written(Cursor(begun.arrival, begun.now, stopped))
        return Page((item for _, item in items), text)

    def _written(self, cursor: Cursor) -> str:
        values = [VERSION, self.listing, self._filters, self._replica, cursor.arrival, cursor.now, cursor.position]
        payload = orjson.dumps(values)
        return urlsafe_b64encode(sha256(payload).digest()[:CHECKSUM_BYTES] + payload).rstrip(b"=").decode()

    def _read(self, text: str) -> Cursor:
        version, rest = _payload(checked_text(text, "cursor"))
        if version != VERSION:
            raise InvalidInput(
                f"the cursor is of form {quoted(version, 20)}", f"weft reads form {VERSION} here: start over"
            )
        listing, filters, replica, arrival, now, position = rest
        if listing != self.listing:
            raise InvalidInput(f"the cursor belongs to {listing}, not to {self.listing}", "give one of that listing")
        if replica != self._replica:
            raise InvalidInput("the cursor belongs to another ledger", "give one that this ledger gave")
        if filters != self._filters:
            raise InvalidInput(
                f"the cursor belongs to {listing} with other arguments", "ask for every page with the same ones"
            )
        return Cursor(arrival, now, tuple(position))


def _digest(*values: Any) -> str:
    """Of arguments that are checked later, if at all."""
    return sha256(quoted(values, None).encode("utf-8", "backslashreplace")).hexdigest()[:DIGEST_DIGITS]


def _payload(text: str) -> tuple[Any, list[Any]]:
    """The version of a cursor and the rest of it; what its checksum does not fit was not given by weft."""
    try:
        data = urlsafe_b64decode(text[:LONGEST_CURSOR_LETTERS].encode("ascii") + b"=" * (-len(text) % 4))
        checksum, payload = data[:CHECKSUM_BYTES], data[CHECKSUM_BYTES:]
        if checksum == sha256(payload).digest()[:CHECKSUM_BYTES]:
            version, *rest = orjson.loads(payload)
            return version, rest
    except ValueError:
        pass
    raise InvalidInput(f"{quoted(text)} is no cursor", "give the `next` of a page as it is, or none for the first page")


def mapped(page: Page[Item], change: Callable[[Page[Item]], Iterable[Other]]) -> Page[Other]:
    """The same page with other items, made of all of them together."""
    return Page(change(page), page.next)


NEWEST: Position = (MAX_INTEGER, MAX_INTEGER)
"""Before everything in an order by time and number, the newest first."""
