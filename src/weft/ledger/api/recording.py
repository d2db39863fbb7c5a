"""Verbs that write turns and sessions: turns at once or by steps, compactions, late results,
contents; sessions as labels on heads that move, and everything that moves, renames, archives and
deletes them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from inspect import signature
from typing import Any

from msgspec import UNSET, UnsetType

from weft.kernel.enums import AgentRole, MoveReason, SessionStatus, ToolCallStatus
from weft.kernel.errors import InvalidInput, NotFound, quoted
from weft.kernel.foreign_input import is_digest
from weft.ledger.api.base import WAIT, LedgerBase, LedgerPart
from weft.ledger.arguments import (
    agent_named,
    as_record,
    checked_count,
    checked_flag,
    checked_label,
    checked_member,
    checked_names,
    checked_number,
    checked_text,
)
from weft.ledger.model import (
    DEFAULT_AGENT,
    AppliedSubstitution,
    ErrorInput,
    HeadMove,
    MessagesInput,
    NewError,
    RecordedTurn,
    Session,
    SessionAlias,
    StoredContent,
    ToolCallInput,
    UsageInput,
)
from weft.ledger.read.access import access_of
from weft.ledger.read.revisions import moves_in_words, require
from weft.ledger.read.session_list import ListReader, SessionTimes
from weft.ledger.read.sessions import Page, head_at, head_event, load_aliases, mapped, reflog, to_sessions
from weft.ledger.read.turn_lookups import latest_sessions
from weft.ledger.views.rows import load_turn
from weft.ledger.write import sessions as write_sessions
from weft.ledger.write.record_turn import DEFAULT_SETTING, NewTurn, RequestedTurn, record_turns
from weft.ledger.write.sessions import choose_sessions
from weft.ledger.write.transaction import LeasePatience, requires
from weft.ledger.write.turn_events import RunConfig
from weft.ledger.write.turn_writer import (
    TurnWriter,
    begin_turn,
    find_event,
    find_replacement,
    last_substitution,
    record_late_result,
    substitute,
)
from weft.store.fact_log import LEDGER_SCOPE

# --- Writing: turns at once or by steps, compactions, late results, contents.

CHUNK = 1024 * 1024
_PLACE = frozenset(("session", "parent", "expected", "key"))
_SETTING = frozenset(signature(RunConfig).parameters)
_TURN = frozenset(signature(NewTurn).parameters) - {"setting"}
"""The arguments of `record_turn`: where a turn goes, under which circumstances it ran, and what was said."""
_ARGUMENTS = _PLACE | _SETTING | _TURN | {"agent"}


class RecordVerbs(LedgerBase):
    """What adds turns and contents."""

    @requires("turn:record")
    def record_turn(
        self,
        *,
        session: str | None = None,
        query: MessagesInput = None,
        response: MessagesInput = None,
        system: MessagesInput = None,
        model: str | None = None,
        provider: str | None = None,
        params: Any = None,
        usage: UsageInput = None,
        tool_calls: Sequence[ToolCallInput] | None = (),
        tools_spec: Any = None,
        finish_reason: str | None = None,
        error: ErrorInput | None = None,
        permissions_used: Any = None,
        agent: str | None = None,
        persona: str = DEFAULT_AGENT,
        role: str = "unified",
        reason: str | None = None,
        toolset: str | None = None,
        tools_available: Sequence[str] | None = None,
        permissions_granted: Any = None,
        thinking_config: Any = None,
        effective_config: Any = None,
        workspace: str | None = None,
        source_event_id: str | None = None,
        parent: str | UnsetType | None = UNSET,
        expected: str | UnsetType | None = UNSET,
        wait: float = WAIT,
        key: str | None = None,
    ) -> RecordedTurn:
        """Record a whole turn, durably, and move the session's head to it.

        `query`, `response` and `system` are text, a message, or a list of them; messages, tool calls and usage of
        OpenAI's and Anthropic's APIs are taken as they come. A whole answer of theirs as the `response` also tells the
        model, the usage and the finish reason, unless these are given. A turn with `error` is a failed one: it stays,
        and the head does not move. `parent` and `expected` say where the session must stand, or the turn is
        refused with HeadMoved. Others who write to the session are waited for, `wait` seconds at most.
        With `key`, a retry key, it is recorded once: the same call again gives the first answer and writes nothing,
        another call with that key raises KeyTaken. `persona` is an earlier spelling of `agent`.
        """
        setting = _turn_setting(
            role,
            reason=reason,
            toolset=toolset,
            tools_available=tools_available,
            permissions_granted=permissions_granted,
            thinking_config=thinking_config,
            effective_config=effective_config,
            workspace=workspace,
            source_event_id=source_event_id,
        )
        turn = NewTurn(
            query=query,
            response=response,
            system=system,
            model=model,
            provider=provider,
            params=params,
            usage=usage,
            tool_calls=tool_calls,
            tools_spec=tools_spec,
            finish_reason=finish_reason,
            error=error,
            permissions_used=permissions_used,
            persona=agent_named(agent, persona),
            setting=setting,
        )
        requested = _requested(turn, session=session, parent=parent, expected=expected, key=key)
        return record_turns(self._writer, [requested], wait=wait, ttl=self._ttl)[0]

    @requires("turn:record")
    def record_turns(self, turns: Sequence[Mapping[str, Any]], *, wait: float = WAIT) -> list[RecordedTurn]:
        """Record several turns in one transaction: all of them, or none.

        Each is a mapping of the arguments of `record_turn`, without `wait`. A turn follows what its session is at by
        then; one in no session, without `parent`, follows the turn before it in the list.
        """
        if isinstance(turns, str | bytes | Mapping) or not isinstance(turns, Sequence):
            raise InvalidInput(f"turns is {type(turns).__name__}", "give a list of dicts with arguments of record_turn")
        requested = [_requested_turn(fields, number) for number, fields in enumerate(turns, 1)]
        return record_turns(self._writer, requested, wait=wait, ttl=self._ttl) if requested else []

    @requires("turn:record")
    def begin_turn(
        self,
        *,
        session: str | None = None,
        parent: str | UnsetType | None = UNSET,
        expected: str | UnsetType | None = UNSET,
        agent: str | None = None,
        persona: str = DEFAULT_AGENT,
        role: str = "unified",
        reason: str | None = None,
        toolset: str | None = None,
        tools_available: Sequence[str] | None = None,
        permissions_granted: Any = None,
        thinking_config: Any = None,
        effective_config: Any = None,
        workspace: str | None = None,
        source_event_id: str | None = None,
        wait: float = WAIT,
    ) -> TurnWriter:
        """Begin a turn under the session's lease; the parent is pinned, others wait or get SessionBusy. `persona` is an
        earlier spelling of `agent`."""
        if session is not None:
            session = checked_label(session, "session")
        check_pins(parent, expected)
        return begin_turn(
            self._writer,
            session=session,
            parent=parent,
            expected=expected,
            persona=agent_named(agent, persona),
            owner=self._owner,
            wait=wait,
            ttl=self._ttl,
            setting=RunConfig(
                role=role,
                reason=reason,
                toolset=toolset,
                tools_available=tools_available,
                permissions_granted=permissions_granted,
                thinking_config=thinking_config,
                effective_config=effective_config,
                workspace=workspace,
                source_event_id=source_event_id,
            ),
        )

    @requires("turn:record")
    def record_late_result(
        self,
        turn: str,
        call_id: str,
        result: Any = UNSET,
        *,
        error: ErrorInput | None = None,
        status: str | None = None,
    ) -> None:
        """The outcome of a tool call that its turn did not wait for; the turn's digest stays as it is. A turn that is
        parked until the outcome comes goes on."""
        fault = error if error is None or isinstance(error, str) else as_record(error, NewError, "error")
        ended = None if status is None else checked_member(ToolCallStatus, status, "status")
        checked_text(call_id, "tool call id")
        record_late_result(self._writer, self.resolve(turn), call_id, result, fault, ended)

    @requires("turn:record")
    def substitute(
        self, event: str, with_: Any = UNSET, *, with_event: str | None = None, reason: str | None = None
    ) -> AppliedSubstitution:
        """Have a message, a model's answer or the result of a tool shown with other words, or as another event of its
        kind tells it; `with_event` the event itself takes that back. Contexts, exports and searches go by it from now
        on. What was recorded stays, as does the digest of its turn; `originals` shows it. The event goes by the
        beginning of its id, by the id of its message, by that of its tool call, or by a turn, for its answer. Returns
        what is noted of it."""
        if (with_ is UNSET) == (with_event is None):
            raise InvalidInput("it is not said what is to be shown instead", "give words or an event, one of them")
        with self._store.read() as txn:
            original = find_event(txn, event, self._resolve)
            other = None if with_event is None else find_replacement(txn, with_event, original, self._resolve)
        substitute(self._writer, original, other, with_, None if reason is None else checked_text(reason, "reason"))
        with self._store.read() as txn:
            return last_substitution(txn, original)

    @requires("content:put")
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
        self._writer.note_put(stored.ref.hex())
        return StoredContent(stored.ref.hex(), row)


def _requested_turn(fields: Any, number: int) -> RequestedTurn:
    """A turn of a list, checked as `record_turn` checks its arguments."""
    if not isinstance(fields, Mapping):
        raise InvalidInput(f"turn {number} is {type(fields).__name__}", "give a dict with arguments of record_turn")
    if unknown := sorted(map(str, fields.keys() - _ARGUMENTS)):
        raise InvalidInput(f"turn {number} has {quoted(unknown[0])}", "give arguments of record_turn by their names")
    setting = _turn_setting(**{name: fields[name] for name in _SETTING & fields.keys()})
    given = {name: fields[name] for name in _TURN & fields.keys()}
    if fields.get("agent") is not None:
        given["persona"] = agent_named(fields["agent"], fields.get("persona"))
    turn = NewTurn(**given, setting=setting)
    return _requested(turn, **{name: fields[name] for name in _PLACE & fields.keys()})


def _turn_setting(role: Any = AgentRole.UNIFIED, **circumstances: Any) -> RunConfig:
    """The circumstances of a turn, by their names; the default ones where its caller said nothing about them."""
    is_default = role == AgentRole.UNIFIED and all(value is None for value in circumstances.values())
    return DEFAULT_SETTING if is_default else RunConfig(role=role, **circumstances)


def _requested(
    turn: NewTurn,
    *,
    session: Any = None,
    parent: str | UnsetType | None = UNSET,
    expected: str | UnsetType | None = UNSET,
    key: str | None = None,
) -> RequestedTurn:
    label = None if session is None else checked_label(session, "session")
    check_pins(parent, expected)
    return RequestedTurn(turn=turn, session=label, parent=parent, expected=expected, key=key)


def check_pins(parent: Any, expected: Any) -> None:
    """Where a turn shall go: turn ids, or None for no turn; both together must mean the same."""
    for pin, what in ((parent, "parent"), (expected, "expected")):
        if pin is not UNSET and pin is not None:
            checked_text(pin, what)
    if parent is not UNSET and expected is not UNSET and parent != expected:
        raise InvalidInput(f"parent is {quoted(parent)}, but expected is {quoted(expected)}", "give one of them")


def _checked_chunks(chunks: Iterable[Any]) -> Iterator[bytes]:
    for chunk in chunks:
        if not isinstance(chunk, bytes | bytearray | memoryview):
            raise InvalidInput(f"a chunk of content is {type(chunk).__name__}", "give bytes")
        yield bytes(chunk)


# --- Heads and labels of sessions: put back, renamed, aliased, archived, deleted.


class Heads(LedgerPart):
    """`ledger.heads`: puts heads back to where they were, and says where they stood."""

    @requires("session:move")
    def reset(self, session: str, *, expected: str | UnsetType | None = UNSET, reason: str | None = None) -> Session:
        """No head: the next turn is a new root. Nothing is lost, the reflog remembers."""
        return move(self._ledger, session, None, expected, MoveReason.RESET, reason)

    @requires("session:move")
    def restore(self, session: str, number: int | None = None, *, reason: str | None = None) -> Session:
        """Move the head back to where it stood `number` moves ago: by default 1, of a session that was deleted or
        archived 0. Such a session becomes active again."""
        with self._store.read() as txn:
            row = require(txn, session)
            number = int(row.status == SessionStatus.ACTIVE) if number is None else checked_number(number, "number")
            if number == 0 and row.moves == 0:
                return set_status(self._ledger, row.id, SessionStatus.ACTIVE, reason, "session:move")
            moves = reflog(txn, row, 1, number) if number >= 0 else []
            if not moves:
                raise NotFound("move of session", f"{row.label}@{{{number}}}", moves_in_words(row))
            turn = moves[0].turn_id and load_turn(txn.sql, moves[0].turn_id)
            event = head_event(txn.facts, turn, moves[0].at_event)
        if row.status != SessionStatus.ACTIVE:
            set_status(self._ledger, row.id, SessionStatus.ACTIVE, reason, "session:move")
        return move(self._ledger, row.id, moves[0].turn_id, UNSET, MoveReason.RESTORE, reason, event)

    def at(self, session: str, when: int | str) -> str | None:
        """The turn a session stood at, at a time (Unix ms, or words such as 'yesterday')."""
        moment = self._parse_time(when) if isinstance(when, str) else checked_number(when, "time")
        with self._store.read() as txn:
            place = head_at(txn.sql, require(txn, session), moment)
        return place[0] if place else None


class Labels(LedgerPart):
    """`ledger.labels`: renames, archives and deletes sessions; nothing that they contain goes."""

    @requires("session:rename")
    def rename(self, session: str, label: str) -> Session:
        return self._ledger._changed_session(write_sessions.rename(self._writer, session, label))

    @requires("session:rename")
    def add_alias(self, alias: str, session: str, *, reason: str = "manual") -> Session:
        """Another name for a session. Lookups go by label, then alias, and never chain."""
        return self._ledger._changed_session(write_sessions.add_alias(self._writer, alias, session, reason))

    def aliases(self, session: str | None = None) -> list[SessionAlias]:
        """The other names of a session, or of all sessions, in the order of the names."""
        with self._store.read() as txn:
            return load_aliases(txn, None if session is None else require(txn, session).n)

    @requires("session:rename")
    def promote(self, session: str, key: str) -> Session:
        """From now on the key of a person or an agent leads to this session, as an alias with the reason
        `identity_promotion`. Refused where it leads to another one; repeated, it changes nothing."""
        return self._ledger._changed_session(write_sessions.promote(self._writer, session, key))

    @requires("session:archive")
    def archive(self, session: str, *, reason: str | None = None) -> Session:
        return set_status(self._ledger, session, SessionStatus.ARCHIVED, reason, "session:archive")

    def archivable(
        self,
        names: str | Sequence[str] = (),
        *,
        tree: bool = False,
        older_than: int | str | None = None,
        back: bool = False,
    ) -> list[Session]:
        """Sessions that archiving together would mean: those named, with `tree` all in the same trees, with
        `older_than` (Unix ms, or words such as '90 days ago') only those that have not changed since; `back`: those to
        be made active again."""
        labels = checked_names(names, "session")
        before = None if older_than is None else self._moment(older_than, "older_than")
        status = SessionStatus.ARCHIVED if back else SessionStatus.ACTIVE
        with self._store.read() as txn:
            return to_sessions(txn, choose_sessions(txn, labels, tree, before, status, self._resolve))

    @requires("session:delete")
    def delete(self, session: str, *, reason: str | None = None) -> Session:
        """The pointer goes, its turns stay; `ledger.heads.restore` by its id brings it back."""
        return set_status(self._ledger, session, SessionStatus.DELETED, reason, "session:delete")

    @requires("session:archive")
    def unarchive(self, session: str, *, reason: str | None = None) -> Session:
        return set_status(self._ledger, session, SessionStatus.ACTIVE, reason, "session:archive")


def move(
    ledger: LedgerBase,
    session: str,
    new: str | None,
    expected: str | UnsetType | None,
    why: MoveReason,
    reason: str | None,
    at_event: str | None = None,
) -> Session:
    check_pins(UNSET, expected)
    session_id = write_sessions.move_head(
        ledger._writer,
        session,
        new=new,
        expected=expected,
        why=why,
        reason=reason,
        patience=LeasePatience(ledger._writer, 0, ledger._ttl),
        at_event=at_event,
    )
    return ledger._changed_session(session_id)


def set_status(ledger: LedgerBase, session: str, status: SessionStatus, reason: str | None, right: str) -> Session:
    record = ledger.session(session)
    from weft.ledger.broker.workers import end_worker

    write_sessions.set_status(ledger._writer, record.id, status, reason, right, end_worker)
    return ledger._changed_session(record.id)


# --- Sessions: labels on heads that move, and everything that moves them.


class SessionVerbs(LedgerBase):
    """What makes, moves and lists sessions."""

    @requires("session:create")
    def create_session(
        self,
        label: str,
        *,
        agent: str | None = None,
        persona: str = DEFAULT_AGENT,
        routing_key: str | None = None,
        origin: str | None = None,
        origin_session_id: str | None = None,
        parent_session: str | None = None,
        parent_turn_id: str | None = None,
        spawn_tool_call_id: str | None = None,
        task_description: str | None = None,
    ) -> Session:
        """A session before its first turn. `persona` is an earlier spelling of `agent`."""
        details = write_sessions.SessionDetails(
            routing_key=routing_key,
            origin=origin,
            origin_session_id=origin_session_id,
            parent_session=parent_session,
            parent_turn_id=parent_turn_id,
            spawn_tool_call_id=spawn_tool_call_id,
            task_description=task_description,
        )
        return self._changed_session(write_sessions.create(self._writer, label, agent_named(agent, persona), details))

    def sessions(self, *, every: bool = False, limit: int | None = None, after: str | None = None) -> Page[Session]:
        """Active sessions, the latest changed first; `every` adds archived and deleted ones.

        Pages show the sessions in the order of their first page: one that changes meanwhile keeps its place, and those
        made meanwhile are not in them.
        """
        request = self._request("sessions", {"every": checked_flag(every, "every")}, limit, after)
        with self._store.read() as txn:
            start = self._begin(request, txn)
            times = SessionTimes(txn, start.arrival)
            chunk = None if request.limit is None else request.rows_at_once
            rows = latest_sessions(txn, times, start.position, chunk)
            may_read = access_of(txn).may_read
            listed = ((position, row) for position, row in rows if every or row.status == SessionStatus.ACTIVE)
            shown = ((position, row) for position, row in listed if may_read(row))
            return mapped(request.page(start, shown), partial(to_sessions, txn))

    def listing(self) -> ListReader:
        """What lists of sessions and turns show, read a few statements at a time."""
        return ListReader(self._store, self._since, self._clock.now_ms, self._repository_of)

    @requires("session:create")
    def fork(
        self,
        at: str,
        *,
        label: str | None = None,
        session: str | None = None,
        agent: str | None = None,
        persona: str | None = None,
    ) -> Session:
        """A new session whose head stands at a turn, at an event inside one, or wherever a name leads; without a label
        it gets one. `persona` is an earlier spelling of `agent`."""
        point = self.point(at)
        owner = agent_named(agent, persona)
        session_id = write_sessions.fork(
            self._writer, point.turn_id, point.event_id, label, session or point.session, owner
        )
        return self._changed_session(session_id)

    @requires("session:move")
    def move_head(
        self, session: str, *, new: str | None, expected: str | UnsetType | None = UNSET, reason: str | None = None
    ) -> Session:
        """Compare and swap: move the head, if it stands at `expected`, to a turn or to an event inside one, by their
        ids; else HeadMoved."""
        event = None
        if isinstance(new, str) and is_digest(new):
            point = self.point(new)
            new, event = point.turn_id, point.event_id
        return move(self, session, new, expected, MoveReason.MOVE, reason, event)

    def reflog(self, session: str, *, limit: int | None = None) -> list[HeadMove]:
        most = None if limit is None else checked_count(limit, "limit")
        with self._store.read() as txn:
            return reflog(txn, require(txn, session), most)
