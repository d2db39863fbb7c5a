"""Reading: turns, threads, messages, contents, contexts and the feed of events."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from msgspec import UNSET

from weft.kernel.errors import InvalidInput, NotFound
from weft.kernel.facts import is_digest
from weft.ledger.api.base import LedgerBase
from weft.ledger.arguments import checked_count, checked_id, checked_seconds, checked_text
from weft.ledger.model import Codeblock, Message, ToolCall, Turn
from weft.ledger.read.access import access_of
from weft.ledger.read.contexts import Context, context_after, context_of_turn, readable_prompt
from weft.ledger.read.full_threads import FullThreads, strands_to
from weft.ledger.read.pages import NEWEST, Cursor, Page, PageRequest, mapped
from weft.ledger.read.request_inputs import find_message
from weft.ledger.read.revisions import require
from weft.ledger.read.session_owners import session_owner
from weft.ledger.read.threads import (
    Thread,
    ThreadDiff,
    diff,
    thread_turns_up,
)
from weft.ledger.read.turn_lists import CurrentTurns, newest_turns
from weft.ledger.read.turns import calls_of, placed_messages, to_turn, to_turns
from weft.ledger.read.vouchers import VouchedMessage, Voucher, strangers_of, vouchers_of
from weft.ledger.reports.file_touches import Touch, touches
from weft.ledger.views import codeblocks
from weft.ledger.views.recorded_events import StoredEvent, recorded_after, run_events
from weft.ledger.views.rows import TurnRow, load_turn, load_turn_number
from weft.ledger.write.append import reads_whole
from weft.ledger.write.placement import compaction_for
from weft.store.facts import checked_pieces
from weft.store.port import ReadTxn
from weft.store.records import ContentHead


class ReadVerbs(LedgerBase):
    """What answers without changing anything."""

    def turn(self, name: str) -> Turn:
        with self._store.read() as txn:
            return to_turn(txn, self._resolve(txn, name).turn)

    def thread(self, name: str) -> Thread:
        """A turn with all its ancestry."""
        with self._store.read() as txn:
            spot = self._resolve(txn, name)
        return Thread(self._store, spot.turn, spot.events, name)

    @reads_whole
    def full_threads(self, *names: str, trees: bool = False, requests: bool = False) -> FullThreads:
        """Threads in full, each turn once. `trees`: all that shares their roots; `requests`: what events tell, too."""
        with self._store.read() as txn:
            strands = strands_to(txn.sql, [self._resolve(txn, name) for name in names], trees=trees)
        return FullThreads(self._store, strands, requests=requests)

    def messages(self, turn: str) -> list[Message]:
        """The messages of one turn."""
        with self._store.read() as txn:
            spot = self._resolve(txn, turn)
            row = spot.turn
            return [placed.message for placed in placed_messages(txn, row.segment, row.depth, spot.events)]

    def message(self, message: str) -> Message:
        with self._store.read() as txn:
            found = find_message(txn, checked_id(message, "message"))
            if found is not None and not _is_readable(txn, found):
                found = None
        if found is None:
            raise NotFound("message", message)
        return found

    def tool_calls(self, turn: str) -> list[ToolCall]:
        with self._store.read() as txn:
            spot = self._resolve(txn, turn)
            return [call for _, call in calls_of(txn, spot.turn, spot.events)]

    @reads_whole
    def files(self, path: str) -> list[Touch]:
        """Every turn's note of a file, the newest first: that it was read, written, referred to or attached. A path
        that does not begin with `/` is the end of one."""
        with self._store.read() as txn:
            return touches(txn, checked_text(path, "path"))

    def codeblocks(self, message: str) -> list[Codeblock]:
        """The code blocks of an assistant's message."""
        checked_id(message, "message")
        codeblocks.catch_up(self._store)
        with self._store.read() as txn:
            access = access_of(txn)
            record = None if access.is_unlimited else find_message(txn, message)
            if not access.is_unlimited and (record is None or not _is_readable(txn, record)):
                return []
            return codeblocks.load(txn, message)

    def context(self, turn: str | None = None, *, session: str | None = None) -> Context:
        """What an agent saw at a turn; or, of a session, what its next turn would see."""
        if turn is not None and session is not None:
            raise InvalidInput("both a turn and a session are given", "ask for the context of one of them")
        with self._store.read() as txn:
            return self._context(txn, turn, session)

    def vouchers(self, turn: str | None = None, *, session: str | None = None) -> list[VouchedMessage]:
        """Who vouches for each part of the same context, message by message: a person here, an agent, a tool, an
        import or a peer."""
        if turn is not None and session is not None:
            raise InvalidInput("both a turn and a session are given", "ask for the context of one of them")
        with self._store.read() as txn:
            return vouchers_of(txn, self._context(txn, turn, session))

    def strangers(self, turn: str) -> list[Voucher]:
        """The import or the peer that a turn came from; nothing where it was written here."""
        with self._store.read() as txn:
            return strangers_of(txn, self._resolve(txn, turn).turn)

    def _context(self, txn: ReadTxn, turn: str | None, session: str | None) -> Context:
        if turn is not None:
            return context_of_turn(txn, self._resolve(txn, turn).turn, self._kept_turns)
        row = require(txn, session or "main")
        head = None if row.head is None else load_turn(txn.sql, row.head)
        compaction = compaction_for(row, head, row.head_events)
        chosen = None if compaction is UNSET else compaction
        prompt, owner = readable_prompt(txn, row), session_owner(txn, row)
        return context_after(txn, head, row.head_events, chosen, prompt, owner, self._kept_turns)

    def diff(self, left: str, right: str) -> ThreadDiff:
        """Where two threads part, and what each has alone."""
        with self._store.read() as txn:
            return diff(txn, self._resolve(txn, left).turn, self._resolve(txn, right).turn)

    def log(
        self,
        limit: int | None = None,
        *,
        after: str | None = None,
        thread: str | None = None,
        session: str | None = None,
    ) -> Page[Turn]:
        """Turns of all sessions, the newest first. `thread`: only the turn of this name and its ancestors; `session`:
        only turns that this session made.

        Pages show what was there when the first one was read: turns that arrive later are not in them, and a turn that
        another version replaces meanwhile still is, as not current.
        """
        filters = {"thread": thread, "session": session}
        request = self._request("log", filters, limit, after)
        with self._store.read() as txn:
            start = self._begin(request, txn)
            maker = None if session is None else require(txn, session).n
            if thread is not None:
                page = self._thread_page(txn, request, start, thread, maker)
            else:
                current, place = CurrentTurns(txn, start.arrival), start.position or NEWEST
                newest = newest_turns(txn.sql, current, place, session=maker, chunk=request.rows_at_once)
                rows = filter(access_of(txn).may_read_turn, newest)
                page = request.page(start, ((current.position_of(row), row) for row in rows))
            return mapped(page, partial(to_turns, txn))

    def _thread_page(
        self, txn: ReadTxn, request: PageRequest, start: Cursor, name: str, maker: int | None
    ) -> Page[TurnRow]:
        """Positions begin with where the thread ends: the name may mean another turn by now."""
        end = start.position[:2]
        if not end:
            tip = self._resolve(txn, name).turn
            end = tip.segment, tip.depth
        rows = thread_turns_up(txn.sql, end, start.position[2:], chunk=request.rows_at_once)
        may_read = access_of(txn).may_read_turn
        made = (row for row in rows if maker in (None, row.session) and may_read(row))
        return request.page(start, (((*end, row.segment, row.depth), row) for row in made))

    def events(self, turn: str, *, limit: int | None = None, after: str | None = None) -> Page[StoredEvent]:
        """The events of a turn, in order."""
        request = self._request("events", {"turn": turn}, limit, after)
        with self._store.read() as txn:
            start = self._begin(request, txn)
            number, count, last = start.position or (0, 0, 0)
            row = load_turn_number(txn.sql, number) or self._resolve(txn, turn).turn
            access_of(txn).ensure_readable_turn(row, turn)
            found = enumerate(run_events(txn.facts, row, last or None, count), count + 1)
            return request.page(start, (((row.n, i, event.n), event) for i, event in found))

    @reads_whole
    def changes(self, after: int = 0, *, wait: float = 0.0) -> Iterator[StoredEvent]:
        """Every event beyond arrival number `after`, in order and without a gap; waits so long for the first."""
        checked_count(after, "after")
        if seconds := checked_seconds(wait, "wait"):
            self._store.changes(after, seconds)
        while True:
            with self._store.read() as txn:
                found = recorded_after(txn.facts, after, 64)
            if not found:
                return
            yield from found
            after = found[-1].n

    @reads_whole
    def newest(self) -> int:
        """The arrival number of the newest event; 0 where there is none."""
        with self._store.read() as txn:
            return txn.facts.tip().n

    @reads_whole
    def read_content(self, ref: str) -> Iterator[bytes]:
        """A content's bytes in pieces of at most 1 MiB, checked against its reference. Each piece is read in a moment
        of its own: whoever stops half-way holds nobody up."""
        with self._store.read() as txn:
            n = txn.facts.find_content(bytes.fromhex(ref)) if is_digest(checked_text(ref, "reference")) else None
            if n is None:
                raise NotFound("content", ref)
            head = txn.facts.content_head(n)
        return checked_pieces(head, partial(self._content_piece, head))

    def _content_piece(self, head: ContentHead, idx: int) -> bytes:
        with self._store.read() as txn:
            return txn.facts.content_piece(head, idx)


def _is_readable(txn: ReadTxn, message: Message) -> bool:
    """A message goes with its turn."""
    turn = load_turn(txn.sql, message.turn_id)
    return turn is not None and access_of(txn).may_read_turn(turn)
