"""The authorisation point: whether an authority may do something to a session, a turn, a
program or the whole ledger; and what that rests on: who owns a session, for whom a private agent
works, and which agents are system agents.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import Any, cast

from msgspec import UNSET

from weft.kernel.authority import CONFIGURE, LOCAL, Authority, Layer, Principal, PrincipalKind
from weft.kernel.enums import SystemAgentKind
from weft.kernel.errors import Action, NotAllowed, NotApplicable, NotFound
from weft.kernel.events import Event
from weft.kernel.ledger_events import SessionCreated
from weft.kernel.typed_names import normal_form
from weft.ledger.model import DEFAULT_AGENT, IMPORTED_AGENT, PROMPT_SEQUENCE, Message, TextPart
from weft.ledger.views.rows import (
    PROGRAM,
    TURN,
    ProgramRow,
    SegmentDepth,
    SessionRow,
    StoredSessions,
    TurnRow,
    crossings,
    decoded,
    find_by_name,
    json_of,
    load_program,
    load_session,
    load_session_number,
)
from weft.store.fact_log import FactReader
from weft.store.port import ReadTxn, Store
from weft.store.replicas import authored_event, counts
from weft.store.sql import Sql, rows_in

# --- Who owns a session, and the prompt that its next request begins with.


def counted_config(txn: ReadTxn, program: str) -> Any:
    """The newest configuration that was written or taken over here; None where there is none."""
    return next((json_of(txn, config) for n, config in _configuration_history(txn, program) if counts(txn, n)), None)


def session_owner(txn: ReadTxn, session: SessionRow) -> str:
    """The id of the agent or person that a session belongs to."""
    if session.config is None:
        return session.persona
    for n, _ in _configuration_history(txn, session.id):
        event = authored_event(txn, n)
        if event is not None and event.counts:
            references = event.fields.get("references") or ()
            owners = [one["program"] for one in references if one.get("field") == "owner"]
            return str(owners[0]) if owners else session.persona
    return session.persona


def prompt_of(txn: ReadTxn, session: SessionRow) -> Message | None:
    """The soul of the agent that owns a session, as the system message that its next request begins with."""
    owner = session_owner(txn, session)
    agent = load_program(txn.sql, owner)
    if agent is None or agent.kind != "agent" or agent.deleted:
        return None
    config = counted_config(txn, owner)
    identity = config.get("identity") if isinstance(config, dict) else None
    soul = identity.get("soul") if isinstance(identity, dict) else None
    if not isinstance(soul, str) or not soul.strip():
        return None
    return Message(owner, "system", (TextPart(soul),), PROMPT_SEQUENCE, agent.updated_at)


def _configuration_history(txn: ReadTxn, program: str) -> list[tuple[int, int]]:
    """Numbers of the events that configured a program and of the configurations, the newest first."""
    query = "SELECT n, config FROM program_history WHERE program = ? AND config IS NOT NULL ORDER BY n DESC"
    return [(n, config) for n, config in txn.sql.fetch_rows(query, (program,))]


# --- Which agents are system agents here: those that this ledger made itself.


def system_kind_of(txn: ReadTxn, program: ProgramRow | None) -> str | None:
    """What a system agent of this ledger is for; None for every other program."""
    if program is None or program.system_kind is None:
        return None
    first = txn.sql.fetch_row("SELECT min(n) FROM program_history WHERE program = ?", (program.id,))
    if first is None or first[0] is None:
        return None
    event = authored_event(txn, first[0])
    return program.system_kind if event is None or event.is_own else None  # None: it is being written right now


def find_system_agent(txn: ReadTxn, kind: SystemAgentKind) -> ProgramRow | None:
    """The first system agent of a kind that this ledger made."""
    query = f"{PROGRAM.select} WHERE system_kind = ? AND deleted = 0 ORDER BY created_at, id"
    rows = (ProgramRow(*row) for row in txn.sql.fetch_rows(query, (kind.value,)))
    return next((row for row in rows if system_kind_of(txn, row) is not None), None)


# --- For whom a private agent works: whoever created it, and those it was shared with.

SHARED, UNSHARED = "agent_shared", "agent_unshared"


def is_private(txn: ReadTxn, program: ProgramRow) -> bool:
    """Of an erased configuration nobody can tell: it is private. A system agent never is."""
    if program.config is None or system_kind_of(txn, program) is not None:
        return False
    config = counted_config(txn, program.id)
    if config is None:
        config = json_of(txn, program.config)
    return not isinstance(config, dict) or config.get("visibility") == "private"


def creators_of(txn: ReadTxn, program: ProgramRow) -> frozenset[str]:
    """The ids of whoever created a program, and on whose behalf."""
    first = txn.sql.fetch_row("SELECT min(n) FROM program_history WHERE program = ?", (program.id,))
    event = None if first is None or first[0] is None else authored_event(txn, first[0])
    if event is None:  # it is being written right now
        return frozenset((program.created_by,))
    return frozenset((program.created_by, *(event.fields.get("on_behalf_of") or ()))) if event.counts else frozenset()


def is_being_created(txn: ReadTxn, program: ProgramRow) -> bool:
    """Whether the event that creates a program is being written right now."""
    first = txn.sql.fetch_row("SELECT min(n) FROM program_history WHERE program = ?", (program.id,))
    return first is None or first[0] is None or authored_event(txn, first[0]) is None


def shared_with(txn: ReadTxn, agent: str) -> tuple[str, ...]:
    """The ids of those that an agent was shared with, in that order. What another ledger shared or unshared does not
    count, so the events are read and not the view, which has the newest of all."""
    rows = txn.sql.fetch_rows(
        "SELECT n FROM program_history WHERE program = ? AND kind IN (?, ?) ORDER BY n", (agent, SHARED, UNSHARED)
    )
    principals: dict[str, None] = {}
    for (n,) in rows:
        event = authored_event(txn, n)
        if event is None or not event.counts:
            continue
        principals.pop(event.fields["principal"], None)
        if event.fields["kind"] == SHARED:
            principals[event.fields["principal"]] = None
    return tuple(principals)


def users_of_agent(txn: ReadTxn, agent: ProgramRow) -> frozenset[str]:
    """The ids of those for whom an agent works though it is private: itself, its creators, those it was shared with."""
    return frozenset((agent.id, *creators_of(txn, agent), *shared_with(txn, agent.id)))


# --- The authorisation point: whether an authority may do something to a session, a turn, a program or the whole
# ledger.

READ_SESSION, READ_PROGRAM, READ_LEDGER = "session:read", "program:read", "ledger:read"
_READING = (READ_SESSION, READ_PROGRAM, READ_LEDGER)
ACTING_KINDS = ("agent", "human")
"""Kinds of program in whose name events are written."""
_KINDS = {PrincipalKind.AGENT: ("agent",), PrincipalKind.HUMAN: ("human",), PrincipalKind.PROGRAM: ACTING_KINDS}
Creators = dict[str, frozenset[str]]
"""By session or turn the ids of whoever created it, and on whose behalf. Their events never change."""


class Access:
    """What one authority may do, by one state of the ledger. `creating`: what is not in the log yet is being created
    now by this authority."""

    def __init__(
        self, sql: Sql, facts: FactReader, authority: Authority, creators: Creators, *, creating: bool = False
    ) -> None:
        self.authority, self.is_unlimited = authority, authority.is_unlimited
        self._sql, self._facts, self._creators, self._creating = sql, facts, creators, creating
        self._sessions: dict[int, SessionRow | None] = {}
        self._prompts: dict[int, bool] = {}
        self._txn = ReadTxn(sql, facts)

    # --- sessions -----------------------------------------------------------------------------------------------

    def may(self, right: str, session: SessionRow) -> bool:
        return self.is_unlimited or (
            self._is_allowed(right, session.label)
            and all(
                layer.allows(right, session.label) or self._owns_session(principal, session)
                for principal, layer in self._principals
            )
        )

    def may_read(self, session: SessionRow) -> bool:
        return self.may(READ_SESSION, session)

    def readable(self, session: SessionRow | None) -> SessionRow | None:
        """A session, or None where it cannot be read."""
        return session if session is not None and self.may_read(session) else None

    def session_of_number(self, n: int | None) -> SessionRow | None:
        """The session of this number, or None where it cannot be read."""
        if n is None:
            return None
        if n not in self._sessions:
            self._sessions[n] = self.readable(load_session_number(self._sql, n))
        return self._sessions[n]

    def ensure(self, right: str, session: SessionRow, name: str) -> None:
        """Refuse a change of a session: as something that does not exist where it cannot be read."""
        if self.may(right, session):
            return
        if not self.may_read(session):
            raise NotFound("session", name, Action.LIST_SESSIONS)
        raise self._refusal_of(right, f"use {right!r} on session {session.label!r}")

    # --- turns --------------------------------------------------------------------------------------------------

    def may_read_turn(self, turn: TurnRow) -> bool:
        if self.is_unlimited or self.session_of_number(turn.session) is not None:
            return True
        return self.may_change_turn(READ_SESSION, turn) or turn.depth <= self._readable_depths.get(turn.segment, 0)

    def may_change_turn(self, right: str, turn: TurnRow) -> bool:
        """By the session that made it; one without a session by whoever recorded it."""
        if self.is_unlimited:
            return True
        if turn.session is not None:
            session = load_session_number(self._sql, turn.session)
            return session is not None and self.may(right, session)
        return self._is_allowed(right, "") and all(
            layer.allows(right, "") or principal in self._recorders_of(turn) for principal, layer in self._principals
        )

    def ensure_readable_turn(self, turn: TurnRow, name: str) -> None:
        if not self.may_read_turn(turn):
            raise NotFound("turn", name)

    def ensure_turn(self, right: str, turn: TurnRow, name: str) -> None:
        if self.may_change_turn(right, turn):
            return
        self.ensure_readable_turn(turn, name)
        raise self._refusal_of(right, f"use {right!r} on turn {turn.id}")

    def may_read_prompt(self, turn: int) -> bool:
        """Whether the system prompt of a turn, by its number, can be read: it goes with the agent that answered."""
        if self.is_unlimited:
            return True
        if turn not in self._prompts:
            row = self._sql.fetch_row("SELECT persona FROM turn WHERE n = ?", (turn,))
            agent = None if row is None else load_program(self._sql, row[0])
            self._prompts[turn] = agent is None or self.may_read_program(agent)
        return self._prompts[turn]

    def may_read_message(self, turn: int, sequence: int) -> bool:
        """Whether a message of a turn that can be read can be read itself."""
        if self.may_read_prompt(turn):
            return True
        row = self._sql.fetch_row("SELECT role FROM message WHERE turn = ? AND seq = ?", (turn, sequence))
        return row is None or row[0] != "system"

    # --- programs and the ledger --------------------------------------------------------------------------------

    def may_read_program(self, program: ProgramRow) -> bool:
        if self.is_unlimited:
            return True
        if not self._is_allowed(READ_PROGRAM, program.name):
            return False
        if not is_private(self._txn, program):
            return True
        users = users_of_agent(self._txn, program)
        return all(
            principal in users or layer.allows(READ_PROGRAM, program.name) for principal, layer in self._principals
        )

    def may_use(self, program: ProgramRow) -> bool:
        """Whether an agent works for everybody in the chain; a right to read private programs is none to use them.
        Programs that are no agents are not asked about."""
        if self.is_unlimited or program.kind != "agent" or not is_private(self._txn, program):
            return True
        return users_of_agent(self._txn, program).issuperset(self.ids)

    def ensure_usable(self, program: ProgramRow, name: str, what: str = "agent") -> None:
        """Refuse an agent that does not work for whoever acts: as one that does not exist where it cannot be read."""
        if self.may_use(program):
            return
        if not self.may_read_program(program):
            raise NotFound(what, name, Action.LIST_PROGRAMS)
        hint = "whoever created it can share it"
        raise self.authority.refusal("program:agent:use", f"use the private agent {program.name!r}", hint)

    def ensure_agent(self, agent: str, name: str | None = None) -> None:
        """The same by an id; what has no row is not asked about."""
        row = None if self.is_unlimited else load_program(self._sql, agent)
        if row is not None:
            self.ensure_usable(row, name or row.name)

    def may_use_session_agent(self, session: SessionRow) -> bool:
        """Whether a session can be gone on with: its agent works for whoever acts."""
        row = None if self.is_unlimited else load_program(self._sql, session_owner(self._txn, session))
        return row is None or self.may_use(row)

    def ensure_session_agent(self, session: SessionRow) -> None:
        """Refuse to have a session gone on with whose agent does not work for whoever acts."""
        if not self.is_unlimited:
            self.ensure_agent(session_owner(self._txn, session))

    def may_configure(self, program: ProgramRow) -> bool:
        """Everybody changes the agents that they created; other programs that they created with the permission
        `configure`, and those of others with one that names them: `configure(NAME)`. A person is their own."""
        if self.is_unlimited:
            return True
        own = creators_of(self._txn, program) | ({program.id} if program.kind == "human" else set())
        if self._creating and is_being_created(self._txn, program):
            own |= set(self.ids)
        return self._may_configure(program.name, own, is_free=program.kind == "agent")

    def may_configure_session(self, session: SessionRow) -> bool:
        """Its owner changes a session; whoever created it with the permission `configure`."""
        if self.is_unlimited:
            return True
        owner = session_owner(self._txn, session)
        return all(
            principal == owner
            or self._may_configure_as(principal, layer, session.label, self.session_creators(session))
            for principal, layer in self._principals
        )

    def may_give_session(self, owner: str, program: ProgramRow | None) -> bool:
        """Whether a session may be made another's: one's own, that of an agent of one's own, or of a name that nobody
        has with the permission `configure`, else with one that names them."""
        if self.is_unlimited:
            return True
        creators = frozenset(self.ids) if program is None else creators_of(self._txn, program)
        return all(
            (program is not None and principal == program.id)
            or self._may_configure_as(principal, layer, owner, creators)
            for principal, layer in self._principals
        )

    def may_create(self, name: str) -> bool:
        """Whether a program of this name may be made."""
        return self.is_unlimited or all(layer.allows(CONFIGURE, name) for _, layer in self._principals)

    def _may_configure(self, name: str, own: Iterable[str], *, is_free: bool) -> bool:
        ids = frozenset(own)
        return all(
            (is_free and principal in ids) or self._may_configure_as(principal, layer, name, ids)
            for principal, layer in self._principals
        )

    def _may_configure_as(self, principal: str, layer: Layer, name: str, own: frozenset[str]) -> bool:
        return layer.allows(CONFIGURE, name) if principal in own else layer.allows_named(CONFIGURE, name)

    def may_name(self, right: str, subjects: Iterable[str]) -> bool:
        """Whether everybody in the chain may name these of the machine. An agent may not, whatever it was permitted."""
        if self.is_unlimited:
            return True
        names = tuple(subjects)
        return (
            all(self._is_allowed(right, name) for name in names)
            and not self.is_agent()
            and all(layer.allows(right, name) for _, layer in self._principals for name in names)
        )

    def is_owner(self, right: str) -> bool:
        """Whether whoever opened the ledger acts, alone, and nothing was taken away of this right."""
        return self.is_unlimited or (not self._principals and self._is_allowed(right))

    def created(self, program: ProgramRow) -> bool:
        """Whether everybody in the chain created this program, by the log."""
        return self.is_unlimited or creators_of(self._txn, program).issuperset(self.ids)

    def may_whole(self, right: str) -> bool:
        return self.is_unlimited or (
            self._is_allowed(right) and all(layer.allows(right) for _, layer in self._principals)
        )

    def ensure_whole(self, right: str) -> None:
        """Refuse what concerns the whole ledger."""
        if not self.may_whole(right):
            raise self._refusal_of(right, "")

    def permits(self, right: str, own: Iterable[str | None] = ()) -> bool:
        """Whether the configuration of everybody in the chain permits this, or it concerns themselves."""
        allowed = (None, *own)
        return self.is_unlimited or all(
            principal in allowed or layer.allows(right) for principal, layer in self._principals
        )

    def is_agent(self) -> bool:
        """Whether an agent is in the chain."""
        rows = (load_program(self._sql, principal) for principal, _ in self._principals)
        return any(row is not None and row.kind == "agent" for row in rows)

    # --- who they are -------------------------------------------------------------------------------------------

    @property
    def ids(self) -> tuple[str, ...]:
        """Of the principals other than whoever opened the ledger."""
        return tuple(principal for principal, _ in self._principals)

    @cached_property
    def _principals(self) -> tuple[tuple[str, Layer], ...]:
        """The ids of everybody in the chain, with what their configurations permit; whoever opened the ledger is left
        out, for they may do everything."""
        ids = chain_ids(self._txn, self.authority)
        return tuple(
            (id, configured_rights(self._sql, self._facts, id)) for id in dict.fromkeys(ids) if id != DEFAULT_AGENT
        )

    def _is_allowed(self, right: str, subject: str | None = None) -> bool:
        """By the layers of the authority."""
        rights = self.authority.rights
        return rights.allows_reading(right, subject) if right in _READING else rights.allows(right, subject)

    def _refusal_of(self, right: str, what: str) -> NotAllowed:
        return self.authority.refusal(right, what)

    # --- who created what ---------------------------------------------------------------------------------------

    def _owns_session(self, principal: str, session: SessionRow) -> bool:
        if principal in (session_owner(self._txn, session), session.id):
            return True
        return principal in self.session_creators(session)

    def session_creators(self, session: SessionRow) -> frozenset[str]:
        """The ids of those in whose name a session was made, as the log says."""
        creators = self._creators.get(session.id)
        if creators is None:
            event = self._first_event(session)
            if event is None:
                return frozenset(self.ids if self._creating else ())
            is_creation = isinstance(event, SessionCreated) and event.stream == f"session:{session.id}"
            creators = self._creators[session.id] = _actors_of(event) if is_creation else frozenset()
        return creators

    def _first_event(self, session: SessionRow) -> Event | None:
        """Back from the first movement of its head, which is never far from its creation; from its last event where
        its head has not moved."""
        moved = self._sql.fetch_row("SELECT n FROM history WHERE session = ? ORDER BY k LIMIT 1", (session.n,))
        stored = load_session(self._sql, session.id)
        if stored is None:
            return None
        n = self._facts.find_event(bytes(stored.last_event)) if moved is None else moved[0]
        while n is not None:
            event = self._event(n)
            previous = None if event is None else event.prev
            if previous is None:
                return event
            n = self._facts.find_event(bytes.fromhex(previous))
        return None

    def _recorders_of(self, turn: TurnRow) -> frozenset[str]:
        creators = self._creators.get(turn.id)
        if creators is None:
            event = self._event(turn.n)
            if event is None:
                return frozenset(self.ids if self._creating else ())
            creators = self._creators[turn.id] = _actors_of(event) | {turn.persona}
        return creators

    def _event(self, n: int) -> Event | None:
        line = self._facts.line(n)
        event = None if line is None else decoded(n, line)
        return event if isinstance(event, Event) else None

    # --- threads ------------------------------------------------------------------------------------------------

    @cached_property
    def _readable_depths(self) -> dict[int, int]:
        """How deep in each segment the threads go that can be read: those that sessions stand or once stood on, and
        those of turns without a session."""
        places: set[SegmentDepth] = set()
        numbers = [n for (n,) in self._sql.fetch_rows("SELECT n FROM session") if self.session_of_number(n) is not None]
        for n in numbers:
            row = self._sessions[n]
            if row is not None and row.head_segment is not None and row.head_depth is not None:
                places.add((row.head_segment, row.head_depth))
        departed = rows_in(self._sql, "SELECT segment, depth FROM departure WHERE session IN", numbers)
        places.update((segment, depth) for segment, depth in departed)
        for values in self._sql.fetch_rows(f"{TURN.select} WHERE session IS NULL"):
            turn = TurnRow(*values)
            if self.may_change_turn(READ_SESSION, turn):
                places.add((turn.segment, turn.depth))
        return self._segments_above(places)

    def reading_scope(self) -> tuple[list[int], dict[int, int]]:
        """Where all that can be read lies: the numbers of sessions, all of whose turns can be read; and by segment how
        deep the threads go that can be read."""
        reach = self._readable_depths
        return sorted(n for n, session in self._sessions.items() if session is not None), reach

    def _segments_above(self, places: set[SegmentDepth]) -> dict[int, int]:
        links = crossings(self._sql)
        reach: dict[int, int] = {}
        waiting = list(places)
        while waiting:
            segment, depth = waiting.pop()
            if depth <= reach.get(segment, 0):
                continue
            reach[segment] = depth
            row = self._sql.fetch_row("SELECT base, parent, parent_depth FROM segment WHERE n = ?", (segment,))
            if row is not None and row[1] is not None:
                waiting.append((row[1], row[2]))
            elif row is not None and (segment, row[0]) in links:
                waiting.append(links[segment, row[0]])
        return reach


def _actors_of(event: Event) -> frozenset[str]:
    behind = () if event.on_behalf_of is UNSET else event.on_behalf_of
    return frozenset((event.actor, *behind))


def principal_id(sql: Sql, principal: Principal) -> str:
    """The id of whoever acts; raises NotFound for one who is not there, or not there any more."""
    if principal.id == DEFAULT_AGENT:
        return DEFAULT_AGENT
    if principal.id == IMPORTED_AGENT:
        raise NotApplicable(f"{IMPORTED_AGENT!r} stands for imported history and does not act", "act as another")
    if principal.kind is PrincipalKind.SESSION:
        session = find_by_name(StoredSessions(sql), principal.id)
        if session is None:
            raise NotFound("session", principal.id, Action.LIST_SESSIONS)
        return session.id
    query, name = "SELECT id, kind FROM program WHERE deleted = 0 AND", normal_form(principal.id)
    # by the name first; in two queries, since SQLite reads the whole table where one asks for either
    row = sql.fetch_row(f"{query} name = ?", (name,)) or sql.fetch_row(f"{query} id = ?", (name,))
    if row is None or row[1] not in _KINDS.get(principal.kind, ()):
        raise _unknown_principal(principal)
    return str(row[0])


def chain_ids(txn: ReadTxn, authority: Authority) -> list[str]:
    """The ids of everybody in a chain, whoever began first. A private agent acts only for those it works for: for
    others it is not there."""
    ids: list[str] = []
    for principal in authority.chain:
        id = principal_id(txn.sql, principal)
        before = [other for other in ids if other != DEFAULT_AGENT]
        agent = load_program(txn.sql, id) if before else None
        if agent is not None and is_private(txn, agent) and not users_of_agent(txn, agent).issuperset(before):
            raise _unknown_principal(principal)
        ids.append(id)
    return ids


def _unknown_principal(principal: Principal) -> NotFound:
    return NotFound("agent or person", principal.id, Action.NAME_WHO_ACTS)


def configured_rights(sql: Sql, facts: FactReader, principal: str) -> Layer:
    """The rights that the configuration of an agent or a person gives; a session has none."""
    config = counted_config(ReadTxn(sql, facts), principal)
    return Layer(allow=tuple(granted(config)) if isinstance(config, dict) else ())


def granted(config: dict[str, Any]) -> list[str]:
    """The rights that a configuration gives: a person's are a list, an agent's stand beside others."""
    permissions = config.get("permissions")
    patterns = permissions.get("programs") if isinstance(permissions, dict) else permissions
    return patterns if isinstance(patterns, list) else []


# --- transactions ---------------------------------------------------------------------------------------------------


class LimitedTxn(ReadTxn, frozen=True):
    """A view of the whole ledger that is read in somebody's name."""

    access: Any
    shows_originals: bool = False
    """What was substituted is shown as it was recorded."""


class LimitedStore:
    """A store whose reading transactions carry what an authority may. All else is the store's own."""

    def __init__(self, store: Store, authority: Authority, creators: Creators) -> None:
        self._store, self._authority, self._creators = store, authority, creators

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    @contextmanager
    def read(self) -> Iterator[ReadTxn]:
        with self._store.read() as txn:
            access = Access(txn.sql, txn.facts, self._authority, self._creators)
            yield LimitedTxn(txn.sql, txn.facts, access)


class OriginalsStore:
    """A store whose readers are shown what was recorded, whatever was substituted. All else is the store's own."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    @contextmanager
    def read(self) -> Iterator[ReadTxn]:
        with self._store.read() as txn:
            access = txn.access if isinstance(txn, LimitedTxn) else Access(txn.sql, txn.facts, LOCAL, {})
            yield LimitedTxn(txn.sql, txn.facts, access, shows_originals=True)


_UNLIMITED = Access(cast(Sql, None), cast(FactReader, None), LOCAL, {})
"""Of whoever opened the ledger: it looks nothing up."""


def access_of(txn: ReadTxn) -> Access:
    """What whoever reads in this transaction may."""
    return txn.access if isinstance(txn, LimitedTxn) else _UNLIMITED


def shows_originals(txn: ReadTxn) -> bool:
    """Whether what was substituted is to be shown as it was recorded."""
    return isinstance(txn, LimitedTxn) and txn.shows_originals


def as_shown(txn: ReadTxn) -> ReadTxn:
    """The same view, with what was substituted."""
    return LimitedTxn(txn.sql, txn.facts, txn.access) if isinstance(txn, LimitedTxn) else txn


def session_of_number(txn: ReadTxn, n: int) -> SessionRow | None:
    """The session of this number, or None where it cannot be read."""
    return txn.access.session_of_number(n) if isinstance(txn, LimitedTxn) else load_session_number(txn.sql, n)
