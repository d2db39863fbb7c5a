"""The ledger: the public face of recording, forking, reading and verifying. Thread-safe."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import timezone, tzinfo
from functools import partial
from itertools import islice
from pathlib import Path
from types import TracebackType
from typing import Any, Unpack

from msgspec import UNSET, UnsetType

from weft.kernel.ambient import Clock
from weft.kernel.chain import Receipt
from weft.kernel.enums import MoveReason, SessionStatus, ToolCallStatus
from weft.kernel.errors import InvalidInput, NotFound
from weft.kernel.facts import is_digest
from weft.kernel.ulid import UlidSource
from weft.ledger import codeblocks, compactions, facts_file, sessions, stats, usage, verifying
from weft.ledger.arguments import checked_count, checked_number, checked_path, checked_seconds, checked_text, path_error
from weft.ledger.contexts import Context, context_after, context_of_turn, find_message
from weft.ledger.draft import DEFAULT_AGENT, Desk
from weft.ledger.imports import ImportDesk, KeptStretch, adopt_secret, import_secret, kept_stretches
from weft.ledger.labels import checked_label
from weft.ledger.late import record_late_result
from weft.ledger.leases import Patience, give_up, sweep_dead
from weft.ledger.listing import Listing
from weft.ledger.model import (
    Codeblock,
    Compaction,
    HeadMove,
    Message,
    NewError,
    Point,
    RecordedTurn,
    Session,
    StoredContent,
    ToolCall,
    Turn,
    as_record,
)
from weft.ledger.moments import parse_moment
from weft.ledger.names import Spot, require, resolve
from weft.ledger.places import compaction_for
from weft.ledger.reading import calls_of, placed_messages, to_turn, to_turns
from weft.ledger.recording import WholeTurn, record_turn
from weft.ledger.rows import load_turn
from weft.ledger.runs import Recorded, event_at, recorded_after, run_events
from weft.ledger.scribe import as_setting, checked_id, member
from weft.ledger.steps import TurnWriter, begin_turn
from weft.ledger.threads import (
    Thread,
    ThreadDiff,
    children,
    common_depth,
    diff,
    heads_without_children,
    newest_turns,
    ranges_to,
    tree_rows,
)
from weft.ledger.usage import AbandonedUsage, BranchUsage, Choice, Prices, UsageReport
from weft.ledger.verifying import Problem
from weft.store.facts import LEDGER_SCOPE, ContentHead, checked_pieces
from weft.store.port import ReadTxn, Store

LEASE_TTL = 30.0
WAIT = 10.0
CHUNK = 1024 * 1024


class Ledger:
    """One ledger, open. Use it as a context manager, or close it."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        ulids: UlidSource,
        *,
        owner: str,
        lease_ttl: float = LEASE_TTL,
        zone: tzinfo = timezone.utc,  # noqa: UP017
    ) -> None:
        self._store, self._clock, self._zone = store, clock, zone
        self._owner, self._ttl = owner, lease_ttl
        self._desk = Desk(store, clock, ulids)
        if not store.read_only:
            sweep_dead(self._desk)

    def __enter__(self) -> Ledger:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Turns that this ledger began and nobody ended become `failed`; their sessions are free at once."""
        try:
            give_up(self._desk)
        finally:
            self._store.close()

    @property
    def path(self) -> str:
        return self._store.path

    @property
    def replica(self) -> str:
        return self._store.replica

    # --- recording ----------------------------------------------------------------------------------------------

    def record_turn(
        self,
        *,
        session: str | None = None,
        query: Any = None,
        response: Any = None,
        parent: str | UnsetType | None = UNSET,
        expected: str | UnsetType | None = UNSET,
        wait: float = WAIT,
        **turn: Any,
    ) -> RecordedTurn:
        """Record a whole turn, durably, and move the session's head to it.

        `query` and `response` are plain text, messages, or lists of them. Further: system, model, provider, params,
        usage, tool_calls, tools_spec, finish_reason, error (a failed turn), permissions_used, persona, role, reason,
        toolset, tools_available, permissions_granted, thinking_config, effective_config, workspace, source_event_id.
        """
        if session is not None:
            checked_label(session, "session")
        _check_pins(parent, expected)
        whole = WholeTurn(query=query, response=response, **turn)
        return record_turn(
            self._desk, whole, session=session, parent=parent, expected=expected, wait=wait, ttl=self._ttl
        )

    def import_desk(self, origin: str, mapping: int, *, remap: bool = False) -> ImportDesk:
        """The way in for one origin's history; `mapping` numbers how its records become turns."""
        self._store.catch_up()
        return ImportDesk(self._desk, origin, mapping, remap=remap)

    def kept_sources(self, session_or_file: str) -> list[KeptStretch]:
        """What was kept verbatim of the sources of a session, or of one source file, in order."""
        with self._store.read() as txn:
            return kept_stretches(txn, session_or_file)

    def share_imports_of(self, other: Ledger) -> None:
        """From now on imports here get the same ids as there. Whoever holds both ledgers can compare what they hold."""
        adopt_secret(self._store, import_secret(other._store))

    def begin_turn(
        self,
        *,
        session: str | None = None,
        parent: str | UnsetType | None = UNSET,
        expected: str | UnsetType | None = UNSET,
        persona: str = DEFAULT_AGENT,
        wait: float = WAIT,
        **setting: Any,
    ) -> TurnWriter:
        """Begin a turn under the session's lease; the parent is pinned, others wait or get SessionBusy."""
        if session is not None:
            checked_label(session, "session")
        _check_pins(parent, expected)
        return begin_turn(
            self._desk,
            session=session,
            parent=parent,
            expected=expected,
            persona=persona,
            owner=self._owner,
            wait=wait,
            ttl=self._ttl,
            setting=as_setting(setting, ("session", "parent", "expected", "persona", "wait")),
        )

    def record_compaction(
        self,
        *,
        summary: str,
        session: str | None = None,
        parent: str | UnsetType | None = UNSET,
        through: str | None = None,
        first_kept: str | None = None,
        model: str = "unknown",
        provider: str | None = None,
        compaction_type: str = "summary",
        trigger: str | None = None,
        metadata: Any = None,
        wait: float = WAIT,
        **measures: int | None,
    ) -> RecordedTurn:
        """A compaction turn: `summary` stands for all turns through `through`; turns from `first_kept` on are kept."""
        _check_pins(parent, UNSET)
        compaction = compactions.NewCompaction(
            summary=summary,
            through=through,
            first_kept=first_kept,
            model=model,
            provider=provider,
            compaction_type=compaction_type,
            trigger=trigger,
            metadata=metadata,
            **measures,
        )
        patience = Patience(self._desk, wait, self._ttl)
        return compactions.record_compaction(self._desk, compaction, session=session, parent=parent, patience=patience)

    def choose_compaction(self, session: str, compaction: str | None) -> None:
        """Let a session go by another compaction of its thread; None: by none, the whole history is seen."""
        compactions.choose_compaction(self._desk, session, compaction)

    def record_late_result(
        self, turn: str, call_id: str, result: Any = UNSET, *, error: Any = None, status: str | None = None
    ) -> None:
        """The outcome of a tool call that its turn did not wait for; the turn's digest stays as it is."""
        fault = error if error is None or isinstance(error, str) else as_record(error, NewError, "error")
        ended = None if status is None else member(ToolCallStatus, status, "status")
        checked_text(call_id, "tool call id")
        record_late_result(self._desk, self.resolve(turn), call_id, result, fault, ended)

    def put_content(self, data: bytes | Iterable[bytes] | Any) -> StoredContent:
        """Stream bytes, chunks or a binary file in; the result stands wherever a text is taken."""
        chunks: Iterable[bytes]
        if isinstance(data, bytes | bytearray | memoryview):
            chunks = (bytes(data),)
        elif hasattr(data, "read"):
            chunks = _checked_chunks(iter(lambda: data.read(CHUNK), b""))
        elif isinstance(data, str) or not isinstance(data, Iterable):
            raise InvalidInput(f"content is {type(data).__name__}", "give bytes, chunks of bytes or a binary file")
        else:
            chunks = _checked_chunks(data)
        stored = self._store.put_stream(chunks, LEDGER_SCOPE)
        with self._store.read() as txn:
            row = txn.facts.content_size(stored.n)
        return StoredContent(stored.ref.hex(), row)

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

    # --- sessions -----------------------------------------------------------------------------------------------

    def create_session(self, label: str, *, persona: str = DEFAULT_AGENT, **details: Any) -> Session:
        """A session before its first turn. Details: routing_key, origin, origin_session_id, parent_session,
        parent_turn_id, spawn_tool_call_id, task_description."""
        made = sessions.create(self._desk, label, persona, details)
        return self.session(made)

    def session(self, name: str) -> Session:
        """By label, by alias, or by id."""
        with self._store.read() as txn:
            return sessions.to_session(txn, require(txn, name))

    def sessions(self, *, every: bool = False) -> list[Session]:
        """Active sessions, the latest first; `every` adds archived and deleted ones."""
        with self._store.read() as txn:
            return sessions.load_sessions(txn, every=every)

    def listing(self) -> Listing:
        """What lists of sessions and turns show, read a few statements at a time."""
        return Listing(self._store)

    def fork(self, at: str, *, label: str, session: str | None = None, persona: str | None = None) -> Session:
        """A new session whose head stands at a turn, at an event inside one, or wherever a name leads."""
        point = self.point(at)
        made = sessions.fork(self._desk, point.turn_id, point.event_id, label, session or point.session, persona)
        return self.session(made)

    def move_head(
        self, session: str, *, new: str | None, expected: str | UnsetType | None = UNSET, reason: str | None = None
    ) -> Session:
        """Compare and swap: move the head, if it stands at `expected`, to a turn or to an event inside one, by their
        ids; else HeadMoved."""
        event = None
        if isinstance(new, str) and is_digest(new):
            point = self.point(new)
            new, event = point.turn_id, point.event_id
        return self._move(session, new, expected, MoveReason.MOVE, reason, event)

    def reset_session(
        self, session: str, *, expected: str | UnsetType | None = UNSET, reason: str | None = None
    ) -> Session:
        """No head: the next turn is a new root. Nothing is lost, the reflog remembers."""
        return self._move(session, None, expected, MoveReason.RESET, reason)

    def restore_session(self, session: str, number: int | None = None, *, reason: str | None = None) -> Session:
        """Move the head back to where it stood `number` moves ago: by default 1, of a session that was deleted or
        archived 0. Such a session becomes active again."""
        with self._store.read() as txn:
            row = require(txn, session)
            number = int(row.status == SessionStatus.ACTIVE) if number is None else checked_number(number, "number")
            if number == 0 and row.moves == 0:
                return self._set_status(row.id, SessionStatus.ACTIVE, reason)
            moves = sessions.reflog(txn, row, 1, number) if number >= 0 else []
            if not moves:
                raise NotFound("move of session", f"{row.label}@{{{number}}}", f"it has moved {row.moves} times")
            turn = moves[0].turn_id and load_turn(txn.sql, moves[0].turn_id)
            event = sessions.head_event(txn.facts, turn, moves[0].at_event)
        if row.status != SessionStatus.ACTIVE:
            self._set_status(row.id, SessionStatus.ACTIVE, reason)
        return self._move(row.id, moves[0].turn_id, UNSET, MoveReason.RESTORE, reason, event)

    def _move(
        self,
        session: str,
        new: str | None,
        expected: str | UnsetType | None,
        why: MoveReason,
        reason: str | None,
        at_event: str | None = None,
    ) -> Session:
        sessions.move_head(
            self._desk,
            session,
            new=new,
            expected=expected,
            why=why,
            reason=reason,
            patience=Patience(self._desk, 0, self._ttl),
            at_event=at_event,
        )
        return self.session(session)

    def rename_session(self, session: str, label: str) -> Session:
        sessions.rename(self._desk, session, label)
        return self.session(label)

    def add_alias(self, alias: str, session: str, *, reason: str = "manual") -> Session:
        """Another name for a session. Lookups go by label, then alias, and never chain."""
        sessions.add_alias(self._desk, alias, session, reason)
        return self.session(alias)

    def archive_session(self, session: str, *, reason: str | None = None) -> Session:
        return self._set_status(session, SessionStatus.ARCHIVED, reason)

    def delete_session(self, session: str, *, reason: str | None = None) -> Session:
        """The pointer goes, its turns stay; `restore_session` by its id brings it back."""
        return self._set_status(session, SessionStatus.DELETED, reason)

    def unarchive_session(self, session: str, *, reason: str | None = None) -> Session:
        return self._set_status(session, SessionStatus.ACTIVE, reason)

    def _set_status(self, session: str, status: SessionStatus, reason: str | None) -> Session:
        found = self.session(session)
        sessions.set_status(self._desk, found.id, status, reason)
        return self.session(found.id)

    def reflog(self, session: str, *, limit: int | None = None) -> list[HeadMove]:
        most = None if limit is None else checked_count(limit, "limit")
        with self._store.read() as txn:
            return sessions.reflog(txn, require(txn, session), most)

    def head_at(self, session: str, when: int | str) -> str | None:
        """The turn a session stood at, at a time (Unix ms, or words such as 'yesterday')."""
        moment = self._parse_time(when) if isinstance(when, str) else checked_number(when, "time")
        with self._store.read() as txn:
            found = sessions.head_at(txn.sql, require(txn, session), moment)
        return found[0] if found else None

    def sessions_containing(self, turn: str) -> list[Session]:
        """Every session whose thread has ever contained this turn."""
        with self._store.read() as txn:
            row = self._resolve(txn, turn).turn
            found = sessions.sessions_containing(txn, row.segment, row.depth)
            return sessions.to_sessions(txn, found)

    # --- reading ------------------------------------------------------------------------------------------------

    def resolve(self, name: str) -> str:
        """The id of the turn that these words mean: labels, `main~2`, `main@{3}`, id ends, digest beginnings."""
        with self._store.read() as txn:
            return self._resolve(txn, name).turn.id

    def point(self, name: str) -> Point:
        """The same, and which event inside the turn they mean: by its id, or as the place where a session stands."""
        with self._store.read() as txn:
            spot = self._resolve(txn, name)
            event = None if spot.events is None else event_at(txn.facts, spot.turn, spot.events - 1)
            return Point(turn_id=spot.turn.id, event_id=event, number=spot.events, session=spot.session)

    def _resolve(self, txn: ReadTxn, name: str) -> Spot:
        return resolve(txn, name, self._parse_time)

    def _parse_time(self, text: str) -> int:
        return parse_moment(text, self._clock.now_ms(), self._zone)

    def turn(self, name: str) -> Turn:
        with self._store.read() as txn:
            return to_turn(txn, self._resolve(txn, name).turn)

    def thread(self, name: str) -> Thread:
        """A turn with all its ancestry."""
        with self._store.read() as txn:
            spot = self._resolve(txn, name)
        return Thread(self._store, spot.turn, spot.events)

    def messages(self, turn: str) -> list[Message]:
        """The messages of one turn."""
        with self._store.read() as txn:
            spot = self._resolve(txn, turn)
            row = spot.turn
            return [placed.message for placed in placed_messages(txn, row.segment, row.depth, spot.events)]

    def message(self, message: str) -> Message:
        with self._store.read() as txn:
            found = find_message(txn, checked_id(message, "message"))
        if found is None:
            raise NotFound("message", message)
        return found

    def tool_calls(self, turn: str) -> list[ToolCall]:
        with self._store.read() as txn:
            spot = self._resolve(txn, turn)
            return [call for _, call in calls_of(txn, spot.turn, spot.events)]

    def compaction(self, turn: str) -> Compaction:
        with self._store.read() as txn:
            return compactions.load_compaction(txn, self._resolve(txn, turn).turn.id)

    def codeblocks(self, message: str) -> list[Codeblock]:
        """The code blocks of an assistant's message."""
        checked_id(message, "message")
        codeblocks.catch_up(self._store)
        with self._store.read() as txn:
            return codeblocks.load(txn, message)

    def context(self, turn: str | None = None, *, session: str | None = None) -> Context:
        """What an agent saw at a turn; or, of a session, what its next turn would see."""
        with self._store.read() as txn:
            if turn is not None:
                return context_of_turn(txn, self._resolve(txn, turn).turn)
            row = require(txn, session or "main")
            head = None if row.head is None else load_turn(txn.sql, row.head)
            compaction = compaction_for(row, head, row.head_events)
            return context_after(txn, head, row.head_events, None if compaction is UNSET else compaction)

    def children(self, turn: str) -> list[Turn]:
        with self._store.read() as txn:
            return to_turns(txn, children(txn.sql, self._resolve(txn, turn).turn))

    def heads(self) -> list[Turn]:
        """Turns without a completed child: the tips of all trees, labelled or not."""
        with self._store.read() as txn:
            return to_turns(txn, heads_without_children(txn.sql))

    def common_ancestor(self, left: str, right: str) -> str | None:
        with self._store.read() as txn:
            rows = [self._resolve(txn, name).turn for name in (left, right)]
            common = common_depth(*(ranges_to(txn.sql, row.segment, row.depth) for row in rows))
            found = common and txn.sql.one("SELECT id FROM turn WHERE segment = ? AND depth = ?", common)
            return str(found[0]) if found else None

    def diff(self, left: str, right: str) -> ThreadDiff:
        """Where two threads part, and what each has alone."""
        with self._store.read() as txn:
            return diff(txn, self._resolve(txn, left).turn, self._resolve(txn, right).turn)

    def tree(self, turn: str) -> list[Turn]:
        """Every turn of the tree that this one belongs to, parents before children."""
        with self._store.read() as txn:
            return to_turns(txn, tree_rows(txn.sql, self._resolve(txn, turn).turn))

    def log(self, limit: int | None = None) -> list[Turn]:
        """Turns of all sessions, the newest first."""
        with self._store.read() as txn:
            rows = islice(newest_turns(txn.sql), None if limit is None else checked_count(limit, "limit"))
            return to_turns(txn, rows)

    def events(self, turn: str) -> list[Recorded]:
        """The events of a turn, in order."""
        with self._store.read() as txn:
            return list(run_events(txn.facts, self._resolve(txn, turn).turn))

    def changes(self, after: int = 0, *, wait: float = 0.0) -> Iterator[Recorded]:
        """Every event beyond arrival number `after`, in order and without a gap; waits so long for the first."""
        checked_count(after, "after")
        if checked_seconds(wait, "wait"):
            self._store.changes(after, wait)
        while True:
            with self._store.read() as txn:
                found = recorded_after(txn.facts, after, 64)
            if not found:
                return
            yield from found
            after = found[-1].n

    # --- keeping ------------------------------------------------------------------------------------------------

    def verify(
        self, *, facts: bool = True, views: bool = True, receipt: Receipt | None = None, progress: Any = None
    ) -> Iterator[Problem]:
        """Every problem there is; an empty list is a sound ledger."""
        report = progress or verifying._silent
        if receipt is not None:
            if not isinstance(receipt, Receipt):
                raise InvalidInput(f"receipt is {type(receipt).__name__}", "give the receipt of a recorded turn")
            yield from verifying.verify_receipt(self._store, receipt)
        if facts:
            yield from verifying.verify_facts(self._store, report)
        if views:
            yield from verifying.verify_views(self._store, report)

    def rebuild(self, *, progress: Any = None) -> int:
        """Make every view anew from the facts; returns how many rows were wrong."""
        changed = verifying.rebuild(self._store, progress or verifying._silent)
        codeblocks.catch_up(self._store)
        return changed

    def catch_up(self) -> None:
        """Bring every lagging view up to the newest fact."""
        self._store.catch_up()
        codeblocks.catch_up(self._store)

    def export_facts(self, target: str | Path | Any, *, progress: Any = None) -> int:
        """Write every fact as a JSON line, to a new file or an open binary one; returns the number of lines."""
        lines = facts_file.export_lines(self._store, progress)
        if hasattr(target, "write"):
            return facts_file.write_lines(target, lines)
        path = checked_path(target, "target")
        try:
            return facts_file.write_new(path, lines)
        except OSError as error:
            raise path_error(path, error) from error

    def import_facts(self, source: str | Path | Any, *, progress: Any = None) -> facts_file.FactsIn:
        """Bring facts in from a file of JSON lines; known ones are passed over."""
        if not hasattr(source, "readline"):
            path = checked_path(source, "source")
            try:
                file = path.open("rb")
            except OSError as error:
                raise path_error(path, error) from error
            with file:
                return self.import_facts(file, progress=progress)
        brought = facts_file.import_lines(self._store, facts_file.limited_lines(source), progress)
        if facts_file.views_are_stale(self._store):
            self.rebuild()
        return brought

    def backup(self, target: str | Path, *, progress: Any = None) -> None:
        """Copy a consistent state to a new file while readers and writers go on; opened for writing, the copy goes by
        a replica id of its own."""
        path = checked_path(target, "target")
        try:
            self._store.backup(path, progress)
        except OSError as error:
            raise path_error(path, error) from error

    def usage(self, by: str = "day", **only: Unpack[Choice]) -> UsageReport:
        """What was spent, by day, week, month, project, session, model or origin; every response counts once."""
        with self._store.read() as txn:
            return usage.report(txn, by, only, self._clock.now_ms(), self._zone)

    def branch_usage(self, session: str, *, prices: Prices = None) -> BranchUsage:
        with self._store.read() as txn:
            return usage.branch_usage(txn, session, prices)

    def abandoned_usage(self, *, prices: Prices = None) -> AbandonedUsage:
        with self._store.read() as txn:
            return usage.abandoned_usage(txn, prices)

    def stats(self) -> dict[str, Any]:
        with self._store.read() as txn:
            return stats.collect(txn, self.replica)


def _check_pins(parent: Any, expected: Any) -> None:
    """Where a turn shall go: turn ids, or None for no turn; both together must mean the same."""
    for pin, what in ((parent, "parent"), (expected, "expected")):
        if pin is not UNSET and pin is not None:
            checked_text(pin, what)
    if parent is not UNSET and expected is not UNSET and parent != expected:
        raise InvalidInput(f"parent is {parent!r:.80}, but expected is {expected!r:.80}", "give one of them")


def _checked_chunks(chunks: Iterable[Any]) -> Iterator[bytes]:
    for chunk in chunks:
        if not isinstance(chunk, bytes | bytearray | memoryview):
            raise InvalidInput(f"a chunk of content is {type(chunk).__name__}", "give bytes")
        yield bytes(chunk)
