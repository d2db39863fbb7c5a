"""What is told to whoever follows a session."""

from __future__ import annotations

from collections.abc import Iterator

from weft.ledger.api.base import LedgerBase
from weft.ledger.arguments import checked_record, checked_seconds, checked_text
from weft.ledger.runs.stream_items import StreamItem, StreamPosition, parse_position
from weft.ledger.runs.stream_log import StreamCursor, open_cursor, read_items
from weft.store.erased_contents import ERASING
from weft.store.port import Store

PARTIAL_POLL_SECONDS = 0.5
"""How often it is looked whether more has come of an answer that another process hears."""


class SessionStream:
    """One subscriber of a session. Everything is read with the rights of whoever acts."""

    def __init__(self, store: Store, session: str, after: StreamPosition | str | None) -> None:
        self._store = store
        self._name = checked_text(session, "session")
        position = parse_position(after) if isinstance(after, str) else after
        if position is not None:
            checked_record(position, StreamPosition, "after")
        with store.read() as txn:
            self.cursor: StreamCursor = open_cursor(txn, self._name, position)
            self.newest = txn.facts.tip().n
            self._erasures = txn.facts.watermark(ERASING)
        self._name = self.cursor.session  # it may be renamed meanwhile

    def read(self) -> list[StreamItem] | None:
        """The items of the next events; None where there are no more. Whoever hands them out slowly asks `is_outdated`
        before each."""
        with self._store.read() as txn:
            self._erasures = txn.facts.watermark(ERASING)
            return read_items(txn, self._name, self.cursor)

    def is_outdated(self, position: StreamPosition) -> bool:
        """Whether something was erased since items were read. What was not handed out of them is dropped then, and read
        again behind this position."""
        with self._store.read() as txn:
            if txn.facts.watermark(ERASING) == self._erasures:
                return False
            self.cursor = open_cursor(txn, self._name, position)
            return True

    def read_partial(self) -> list[StreamItem]:
        """What the broker of another process kept of the answer that it hears, beyond what was told of it."""
        if not self.cursor.is_open:
            return []
        with self._store.read() as txn:
            return self.cursor.partial_items(txn)

    def wait(self, seconds: float) -> bool:
        """Whether an event comes within so many seconds, of whatever session. Blocks."""
        return self._store.changes(self.cursor.scanned, seconds)


class StreamVerbs(LedgerBase):
    """Following a session."""

    def follow(
        self, session: str, *, after: StreamPosition | str | None = None, wait: float | None = None
    ) -> Iterator[StreamItem]:
        """What happens in a session, as it happens: messages, turns, tools, and the text of answers while they are
        written. Behind the position `after` it goes on without gap or repetition; without one it begins with the turn
        that is under way, else with what comes next; 0 is the beginning. It ends when nothing has come for `wait`
        seconds; without, never."""
        seconds = None if wait is None else checked_seconds(wait, "wait")
        return self._followed(SessionStream(self._store, session, after), seconds)

    def _followed(self, stream: SessionStream, wait: float | None) -> Iterator[StreamItem]:
        left = wait
        while True:
            before = stream.cursor.position
            position = before
            while (items := stream.read()) is not None:
                for item in items:
                    if stream.is_outdated(position):
                        break
                    yield item
                    position = item.position
            yield from stream.read_partial()
            left = left if stream.cursor.position == before else wait
            if left is not None and left <= 0:
                return
            some = PARTIAL_POLL_SECONDS if left is None else min(left, PARTIAL_POLL_SECONDS)
            if not stream.wait(some) and left is not None:
                left -= some
