"""Programs looked up: by name, kind and content; their versions, history, verdicts and requests.

Anything else that has an id (sessions, rooms, turns, messages, events) is found, called and tagged here,
too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from msgspec import UNSET, Struct, UnsetType
from msgspec.structs import replace

from weft.kernel.clock import is_ulid
from weft.kernel.enums import InfoType
from weft.kernel.errors import Action, AgentBusy, AmbiguousName, InvalidInput, LeaseLost, NotFound, quoted
from weft.kernel.events import kind_of
from weft.kernel.foreign_input import is_digest
from weft.kernel.ledger_events import NodeTagged, NodeUntagged, SessionCreated
from weft.kernel.message_text import tokens
from weft.ledger.api import (
    Lease,
    Ledger,
    agent_names,
    find_conversation,
    load_conversation,
    own_queue,
    shared_with,
    store_of,
    writer_of,
)
from weft.ledger.arguments import checked_label
from weft.ledger.read.access import READ_LEDGER, LimitedTxn, access_of
from weft.ledger.read.revisions import resolve, session_beside_turns
from weft.ledger.views.rows import (
    PROGRAM,
    PROGRAM_HISTORY,
    REQUEST,
    HistoryEntry,
    ProgramRow,
    RequestRow,
    SessionRow,
    StoredSessions,
    decoded,
    find_by_name,
    find_program,
    json_of,
    load_program,
    load_session,
    text_of,
    turns_of_messages,
)
from weft.ledger.views.rows import SESSION as SESSION_TABLE
from weft.ledger.write.turn_events import renew
from weft.programs.kind_table import INFORMATION, SESSION, checked_kind, kind_of_row
from weft.programs.program_kinds import KindRow
from weft.programs.program_records import (
    STATUS_OF,
    PersonRequest,
    Program,
    ProgramChange,
    RecordedVerdict,
    TaggedNode,
    counted_request,
    found_at,
    is_address,
    parse_address,
    parse_path,
)
from weft.programs.program_writer import (
    NO_VERSION,
    ProgramWriter,
    counted_session_model,
    counted_version,
    find_any,
    find_program_or_session,
    is_counted,
    name_in,
    newest_counts,
    perform,
    unvouched_names,
)
from weft.store.port import ReadTxn
from weft.store.replicas import authored_event
from weft.store.sql import Sql

# --- Anything that has an id (programs, sessions, rooms, turns, messages, events): how it is found, called and tagged.

NODE_KINDS = (
    *("program", "session", "room", "turn", "message", "event"),
    *("resource", "policy", "snapshot", "handle", "materialization", "uri"),
)
"""Generations, tool calls, tool results and summaries are the events that made them."""
ROOM_MARK = "room:"
"""Before the name of a room, where something else is called so, too."""
HINT = "name a node, such as a program, a session, a room, a turn, an event or resource:NAME"


def find_node(txn: ReadTxn, name: str) -> str:
    """The id that a name stands for: of a program, a session, a turn, a message or an event, else of any node of the
    graph by what the graph's verbs take for it, else of a room."""
    wanted = parse_address(name, "node").name if is_address(name) else name
    if not isinstance(wanted, str) or not wanted:
        raise InvalidInput(f"node is {quoted(name)}", HINT)
    if wanted.startswith(ROOM_MARK):
        return find_conversation(txn, access_of(txn), wanted.removeprefix(ROOM_MARK))[0].id
    row = find_any(txn, wanted) or find_any(txn, wanted.upper()) or session_beside_turns(txn, wanted)
    if row is not None:
        return row.id
    whole = wanted.upper()
    if is_ulid(whole) and _is_message(txn, whole):
        return whole
    if is_digest(wanted.lower()) and _is_event(txn, wanted.lower()):
        return wanted.lower()
    try:
        return resolve(txn, wanted, _no_time).turn.id
    except AmbiguousName:
        raise
    except (NotFound, InvalidInput):
        return _find_graph_node(txn, wanted)


def _find_graph_node(txn: ReadTxn, name: str) -> str:
    from weft.graph.graph import find_lasting_id

    id = find_lasting_id(txn, name, _no_time)
    if id is not None:
        return id
    try:
        return find_conversation(txn, access_of(txn), name)[0].id
    except NotFound:
        raise NotFound("node", name, HINT) from None


def _is_message(txn: ReadTxn, message: str) -> bool:
    """A message goes with its turn."""
    turn = turns_of_messages(txn.sql, [message]).get(message)
    return turn is not None and access_of(txn).may_read_turn(turn)


def _is_event(txn: ReadTxn, event: str) -> bool:
    """An event goes with its turn; others are for whoever may read the whole ledger."""
    if txn.facts.find_event(bytes.fromhex(event)) is None:
        return False
    if access_of(txn).may_whole(READ_LEDGER):
        return True
    try:
        resolve(txn, event, _no_time)
    except NotFound:
        return False
    return True


def _no_time(text: str) -> int:
    raise InvalidInput(f"{quoted(text)} is a time, not a node", HINT)


class Node(Struct, frozen=True, kw_only=True):
    """What an id stands for, and its name: a program's, a session's label, a room's title, else the id itself."""

    id: str
    kind: str
    name: str
    there: bool = True
    """False of a hidden program and of a deleted session."""


def node_of(sql: Sql, node: str) -> Node:
    row = find_program(sql, node) or find_by_name(StoredSessions(sql), node)
    if isinstance(row, SessionRow):
        return Node(id=node, kind="session", name=row.label, there=row.status != "deleted")
    if row is not None:
        return Node(id=node, kind="program", name=row.name, there=not row.deleted)
    if sql.fetch_row("SELECT 1 FROM turn WHERE id = ?", (node,)) is not None:
        return Node(id=node, kind="turn", name=node)
    if load_conversation(sql, node) is not None:
        titles = "SELECT l.text FROM conversation c JOIN lookup_text l ON l.content = c.title WHERE c.id = ?"
        title = sql.fetch_row(titles, (node,))
        return Node(id=node, kind="room", name=node if title is None else str(title[0]))
    from weft.graph.graph import kind_of_lasting_id

    if (kind := kind_of_lasting_id(sql, node)) is not None:
        return Node(id=node, kind=kind, name=node)
    return Node(id=node, kind="message" if is_ulid(node) else "event", name=node)


def checked_tags(tags: Iterable[str]) -> list[str]:
    names = [tags] if isinstance(tags, str) else list(tags)
    if not names:
        raise InvalidInput("no tag was given", "give at least one")
    return list(dict.fromkeys(checked_label(tag, "tag") for tag in names))


def add_tags(writer: ProgramWriter, name: str, tags: Iterable[str]) -> str:
    """Those that it has already are not added again."""
    node = find_node(LimitedTxn(writer.sql, writer.append.txn.facts, writer.append.access), name)
    _permit_tags(writer, node)
    fresh = [tag for tag in checked_tags(tags) if tag not in tags_of(writer.sql, node)]
    if fresh:
        contents = tuple(writer.append.put_text(tag, "tag") for tag in fresh)
        writer.ledger_stream().add(NodeTagged, node=node, tags=contents)
    return node


def remove_tags(writer: ProgramWriter, name: str, tags: Iterable[str]) -> str:
    node = find_node(LimitedTxn(writer.sql, writer.append.txn.facts, writer.append.access), name)
    _permit_tags(writer, node)
    wanted, stream = checked_tags(tags), None
    for version in _turn_versions(writer.sql, node):
        own = _own_tags(writer.sql, version)
        if there := [tag for tag in wanted if tag in own]:
            contents = tuple(writer.append.put_text(tag, "tag") for tag in there)
            stream = stream or writer.ledger_stream()
            stream.add(NodeUntagged, node=version, tags=contents)
    return node


def _permit_tags(writer: ProgramWriter, node: str) -> None:
    """What is said of a program is for those who may configure it; turns, messages and events are anybody's to mark."""
    row = find_any(writer.append, node)
    if isinstance(row, SessionRow):
        writer.permit_session(f"tag {row.label!r}", row)
    elif row is not None:
        writer.append.access.ensure_usable(row, row.name, "program")
        writer.permit_configuring(f"tag {row.name!r}", row)


_SAME_NATIVE = "SELECT id FROM turn WHERE native = (SELECT native FROM turn WHERE id = ?)"


def tags_of(sql: Sql, node: str) -> list[str]:
    """Its tags; of an imported turn also those of its other versions, which it stands in the place of."""
    return sorted({tag for version in _turn_versions(sql, node) for tag in _own_tags(sql, version)})


def _own_tags(sql: Sql, node: str) -> list[str]:
    return [tag for (tag,) in sql.fetch_rows("SELECT tag FROM node_tag WHERE node = ? ORDER BY tag", (node,))]


def _turn_versions(sql: Sql, node: str) -> list[str]:
    """The node, and every other version of it if it is an imported turn."""
    others = sql.fetch_rows(
        "SELECT id FROM turn WHERE native = (SELECT native FROM turn WHERE id = ?) AND id <> ?", (node, node)
    )
    return [node, *(id for (id,) in others)]


def _current_version(sql: Sql, node: str) -> str:
    """The version that stands in a turn's place; anything else is its own."""
    row = sql.fetch_row(f"{_SAME_NATIVE} AND current = 1", (node,))
    return node if row is None else str(row[0])


def nodes_with(txn: ReadTxn, tags: Iterable[str]) -> list[TaggedNode]:
    """Nodes that have all of these tags and can be read, programs first, each with all of its own."""
    sql = txn.sql
    nodes: set[str] | None = None
    for tag in checked_tags(tags):
        with_tag = {
            _current_version(sql, node) for (node,) in sql.fetch_rows("SELECT node FROM node_tag WHERE tag = ?", (tag,))
        }
        nodes = with_tag if nodes is None else nodes & with_tag
    tagged = (_tagged_node(txn, node_of(sql, node)) for node in sorted(nodes or ()) if _is_readable(txn, node))
    shown = (node for node in tagged if node is not None)
    return sorted(shown, key=lambda node: (NODE_KINDS.index(node.kind), node.name, node.id))


def _is_readable(txn: ReadTxn, node: str) -> bool:
    if access_of(txn).is_unlimited:
        return True
    try:
        return find_node(txn, node) == node
    except NotFound:
        return False


def _tagged_node(txn: ReadTxn, node: Node) -> TaggedNode | None:
    """Hidden programs and deleted sessions are not shown. Whoever left a room is shown the title that it had."""
    if not node.there:
        return None
    name = node.name
    if node.kind == "room":
        name = text_of(txn, find_conversation(txn, access_of(txn), node.id)[0].title) or node.id
    return TaggedNode(id=node.id, kind=node.kind, name=name, tags=tags_of(txn.sql, node.id))


# --- Programs looked up: by name, by kind, by what information holds; their versions, history, verdicts and requests.


def find(txn: ReadTxn, name: str, kinds: Sequence[str] = ()) -> ProgramRow | SessionRow:
    """By name, address or ulid. A deleted program is found by its ulid alone."""
    wanted = name_in(txn, name)
    row = find_program_or_session(txn, wanted)
    if row is None or (kinds and kind_of_row(row).name not in kinds):
        raise NotFound(" or ".join(kinds) or "program", wanted, Action.LIST_PROGRAMS)
    return row


def to_program(txn: ReadTxn, row: ProgramRow | SessionRow, version: int | None = None) -> Program:
    program = _of_session(txn, row) if isinstance(row, SessionRow) else _of_row(txn, row)
    if version is None or version == program.version:
        return program
    config = _config_of_version(txn, row.id, program.name, version)
    return replace(
        program,
        config=config,
        version=version,
        foreign=not is_counted(txn, row.id, version),
        unvouched=unvouched_names(txn, row.id, kind_of_row(row).machine_fields, config, version),
    )


def _config_of_version(txn: ReadTxn, program: str, name: str, version: int) -> Any:
    entry = txn.sql.fetch_row(
        "SELECT config FROM program_history WHERE program = ? AND version = ? AND config IS NOT NULL",
        (program, version),
    )
    if entry is None:
        raise NotFound("version", f"{name}:{version}", Action.LIST_VERSIONS)
    return json_of(txn, entry[0])


def _of_row(txn: ReadTxn, row: ProgramRow, activities: Mapping[str, str] | None = None) -> Program:
    """`activities` are those of all agents, where several programs are read."""
    access = access_of(txn)
    state = _state_now(txn.sql, row, activities) if kind_of_row(row).is_moved_by_turns else row.state
    is_assigned = row.task is not None and newest_counts(txn, row.id, "agent_task_assigned")
    task = load_program(txn.sql, row.task) if row.task and is_assigned else None
    session = load_session(txn.sql, row.session) if row.session and is_assigned else None
    shows_task = is_assigned and (task is None or access.may_read_program(task))
    shows_session = is_assigned and (session is None or access.may_read(session))
    counted = counted_version(txn, row.id)
    config = json_of(txn, counted.config)
    return Program(
        id=row.id,
        name=row.name,
        kind=row.kind,
        state=state,
        state_by_events=None if state == row.state else row.state,
        config=config,
        version=counted.version,
        tags=tags_of(txn.sql, row.id),
        created_at=row.created_at,
        updated_at=row.updated_at,
        created_by=agent_names(txn.sql, [row.created_by])[row.created_by],
        deleted=bool(row.deleted),
        applied=bool(row.applied),
        foreign=counted.is_foreign,
        unvouched=() if counted.is_foreign else unvouched_names(txn, row.id, kind_of_row(row).machine_fields, config),
        pending_version=counted.pending,
        current_task=(task.name if task else row.task) if shows_task else None,
        current_session=(session.label if session else row.session) if shows_session else None,
        turn_count=row.turns,
        last_checkpoint=row.checkpoint,
        result=text_of(txn, row.result),
        shared_with=_shared_with(txn, row),
    )


_BUSIEST_FIRST = ("executing", "thinking", "waiting")


def _agent_activities(sql: Sql, agent: str | None = None) -> dict[str, str]:
    """What the turns that brokers of this ledger have open make their agents do: the busiest turn of each counts.
    A turn waits while it is parked, and while a person is asked before any of its calls runs; one that is to be cut
    short counts no longer."""
    condition, values = own_queue(sql, "o")
    rows = sql.fetch_rows(
        "SELECT t.persona, CASE WHEN o.state = 'parked' THEN 'waiting'"
        " WHEN EXISTS (SELECT 1 FROM tool_call c WHERE c.turn = t.n AND c.status = 'running') THEN 'executing'"
        " WHEN EXISTS (SELECT 1 FROM approval a WHERE a.turn = o.turn AND a.state = 'open') THEN 'waiting'"
        f" ELSE 'thinking' END FROM open_run o JOIN turn t ON t.id = o.turn"
        f" WHERE t.interrupted IS NULL AND {condition}" + ("" if agent is None else " AND t.persona = ?"),
        values if agent is None else (*values, agent),
    )
    return dict(sorted(rows, key=lambda row: _BUSIEST_FIRST.index(row[1]), reverse=True))


def _state_now(sql: Sql, agent: ProgramRow, activities: Mapping[str, str] | None) -> str:
    """Turns move no state: it is read off them, so that answering a message writes nothing for it. An agent that was
    paused, or stands in an error, stays so."""
    if agent.state not in (kind_of_row(agent).facts.first_state, *_BUSIEST_FIRST):
        return agent.state
    activities = _agent_activities(sql, agent.id) if activities is None else activities
    return activities.get(agent.id, agent.state)


def _shared_with(txn: ReadTxn, row: ProgramRow) -> tuple[str, ...]:
    """The names of those that it was shared with, and that whoever reads may know."""
    rows = [program for id in shared_with(txn, row.id) if (program := load_program(txn.sql, id)) is not None]
    may_read = access_of(txn).may_read_program
    return tuple(program.name for program in rows if not program.deleted and may_read(program))


def _of_session(txn: ReadTxn, row: SessionRow) -> Program:
    """Its owner and model stand in its configuration. What another ledger configured is not part of it."""
    owner = agent_names(txn.sql, [row.persona])[row.persona]
    counted = counted_version(txn, row.id) if row.config_version else NO_VERSION
    own = {} if counted.is_foreign else json_of(txn, counted.config) or {}
    model_id = counted_session_model(txn, row)
    model = load_program(txn.sql, model_id) if model_id else None
    named = {} if model is None or "defaultModel" in own else {"defaultModel": model.name}
    config = {"owner": f"@({owner})", **own, **named} if isinstance(own, dict) else own
    return Program(
        id=row.id,
        name=row.label,
        kind=SESSION.name,
        state=row.lifecycle,
        config=config,
        version=0 if counted.is_foreign else counted.version,
        tags=tags_of(txn.sql, row.id),
        created_at=row.created_at,
        updated_at=row.updated_at,
        created_by=owner,
        deleted=row.status == "deleted",
        unvouched=unvouched_names(txn, row.id, SESSION.machine_fields, own) if own else (),
        pending_version=counted.pending,
    )


def list_programs(
    txn: ReadTxn, kind: KindRow | None, states: Sequence[str] = (), *, deleted: bool = False
) -> list[Program]:
    """By kind, then name; sessions last."""
    programs: list[Program] = []
    if kind is not SESSION:
        where = "kind = ?" if kind else "kind <> ?"
        hidden = "" if deleted else " AND deleted = 0"
        name = kind.name if kind else ""
        rows = txn.sql.fetch_rows(f"{PROGRAM.select} WHERE {where}{hidden} ORDER BY kind, name, id", (name,))
        may_read_program = access_of(txn).may_read_program
        activities = _agent_activities(txn.sql) if kind is None or kind.is_moved_by_turns else {}
        programs += [
            _of_row(txn, row, activities) for row in (ProgramRow(*row) for row in rows) if may_read_program(row)
        ]
    if kind in (None, SESSION):
        hidden = "" if deleted else " WHERE status <> 'deleted'"
        rows = txn.sql.fetch_rows(f"{SESSION_TABLE.select}{hidden} ORDER BY label, n")
        may_read = access_of(txn).may_read
        programs += [_of_session(txn, row) for row in (SessionRow(*row) for row in rows) if may_read(row)]
    return [program for program in programs if not states or program.state in states]


def history(txn: ReadTxn, row: ProgramRow | SessionRow) -> list[ProgramChange]:
    """Newest first. The creation of a session stands in the log alone."""
    rows = txn.sql.fetch_rows(f"{PROGRAM_HISTORY.select} WHERE program = ? ORDER BY n DESC", (row.id,))
    entries = [HistoryEntry(*row) for row in rows]
    if isinstance(row, SessionRow):
        entries += _creation_of(txn, row, entries)
    names = agent_names(txn.sql, (entry.actor for entry in entries))
    return [_program_change(txn, entry, names) for entry in entries]


MOST_EVENTS_BACK = 1_000


def _creation_of(txn: ReadTxn, session: SessionRow, entries: Sequence[HistoryEntry]) -> Iterator[HistoryEntry]:
    """From the earliest event of the session's stream that a row names, back to its first one, not far before it."""
    moved = txn.sql.fetch_row("SELECT min(n) FROM history WHERE session = ?", (session.n,))
    known = [entry.n for entry in entries[-1:]] + ([] if moved is None or moved[0] is None else [int(moved[0])])
    n = min(known) if known else txn.facts.find_event(session.last_event)
    for _ in range(MOST_EVENTS_BACK):
        line = None if n is None else txn.facts.line(n)
        if n is None or line is None:
            return
        event = decoded(n, line)
        if isinstance(event, SessionCreated):
            yield HistoryEntry(
                n=n,
                program=session.id,
                kind=kind_of(event),
                state=SESSION.facts.first_state,
                version=0,
                config=None,
                at=session.created_at,
                actor=event.actor,
                reason=None,
            )
        if event.prev is None:
            return
        n = txn.facts.find_event(bytes.fromhex(event.prev))


def _program_change(txn: ReadTxn, entry: HistoryEntry, names: Mapping[str, str]) -> ProgramChange:
    event = authored_event(txn, entry.n)
    return ProgramChange(
        n=entry.n,
        kind=entry.kind,
        state=entry.state,
        version=entry.version,
        at=entry.at,
        actor=names[entry.actor],
        reason=text_of(txn, entry.reason),
        config=json_of(txn, entry.config),
        replica=None if event is None else event.replica,
        foreign=event is not None and not event.counts and (entry.config is not None or entry.kind in STATUS_OF),
    )


def checks_of(txn: ReadTxn, task: ProgramRow) -> list[RecordedVerdict]:
    """Every verdict, the oldest first."""
    rows = txn.sql.fetch_rows(
        "SELECT criterion, type, passed, observed, version, at, n FROM task_check WHERE task = ? ORDER BY n", (task.id,)
    )
    return [
        RecordedVerdict(
            criterion=criterion,
            type=type,
            passed=bool(passed),
            observed=json_of(txn, observed),
            version=version,
            at=at,
            n=n,
            turn=_judged_turn(txn, n),
        )
        for criterion, type, passed, observed, version, at, n in rows
    ]


def _judged_turn(txn: ReadTxn, n: int) -> str | None:
    event = authored_event(txn, n)
    return event.fields.get("turn") if event is not None and event.counts else None


def requests(txn: ReadTxn, human: ProgramRow | None, status: str | None) -> list[PersonRequest]:
    """The oldest first."""
    where, values = (" WHERE human = ?", (human.id,)) if human else ("", ())
    rows = txn.sql.fetch_rows(f"{REQUEST.select}{where} ORDER BY asked_at, id", values)
    asked = (to_request(txn, row) for row in (RequestRow(*row) for row in rows) if may_read_request(txn, row))
    return [request for request in asked if status is None or request.status == status]


def may_read_request(txn: ReadTxn, row: RequestRow) -> bool:
    """What a person was told or asked is for them, for whoever asked it, and for whoever may read the whole ledger."""
    return access_of(txn).permits(READ_LEDGER, (row.human, row.asked_by))


def to_request(txn: ReadTxn, viewed: RequestRow) -> PersonRequest:
    """As it stands here: an answer of another ledger is told, and leaves it open."""
    row, foreign_answer = counted_request(txn, viewed)
    program = load_program(txn.sql, row.program) if row.program else None
    names = agent_names(txn.sql, (row.human, row.asked_by))
    return PersonRequest(
        id=row.id,
        human=names[row.human],
        text=text_of(txn, row.text),
        asks=bool(row.asks),
        status=row.status,
        asked_by=names[row.asked_by],
        asked_at=row.asked_at,
        program=program.name if program else None,
        data=json_of(txn, row.data),
        decided_at=row.decided_at,
        reason=text_of(txn, row.reason),
        pending_answer=foreign_answer.status if foreign_answer else None,
    )


def saved_state(txn: ReadTxn, agent: ProgramRow) -> Any:
    """What was saved last, where that was here: nobody goes on from what another ledger saved."""
    return json_of(txn, agent.saved) if newest_counts(txn, agent.id, "agent_checkpoint") else None


class InformationQuery(Struct, frozen=True, kw_only=True):
    """What is looked for; every condition that is given must hold."""

    text: str | None = None
    info_type: str | None = None
    tags: Sequence[str] = ()
    path: str | None = None
    equals: Any | UnsetType = UNSET
    archived: bool = False
    """Also drafts, and what is archived."""


def find_information(txn: ReadTxn, query: InformationQuery) -> list[Program]:
    """By name. Information in use, and with `archived` all of it."""
    if query.info_type is not None and query.info_type not in tuple(InfoType):
        raise InvalidInput(f"type is {quoted(query.info_type)}", f"one of {', '.join(InfoType)}")
    if query.equals is not UNSET and query.path is None:
        raise InvalidInput("a value is compared at a path", "name the path, too")
    states = () if query.archived else ("validated", "active")
    return [program for program in list_programs(txn, INFORMATION, states) if fits(program, query)]


def fits(program: Program, query: InformationQuery) -> bool:
    config = program.config if isinstance(program.config, dict) else {}
    if query.info_type is not None and config.get("infoType") != query.info_type:
        return False
    if not set(query.tags) <= set(program.tags):
        return False
    if query.path is not None:
        values = list(found_at(config.get("content"), parse_path(query.path)))
        if not values or (query.equals is not UNSET and query.equals not in values):
            return False
    return query.text is None or _has_words(program, config, query.text)


def _has_words(program: Program, config: dict[str, Any], text: str) -> bool:
    """All of the words, anywhere in its name and what it says; the last may be a beginning."""
    wanted = [token.word for token in tokens(text)]
    if not wanted:
        raise InvalidInput(f"{quoted(text)} has no words to look for", "give letters or digits")
    words = {token.word for piece in (program.name, *_texts_in(config)) for token in tokens(piece)}
    return set(wanted[:-1]) <= words and any(word.startswith(wanted[-1]) for word in words)


def _texts_in(value: Any) -> list[str]:
    if isinstance(value, dict):
        return [text for name, inner in value.items() for text in (name, *_texts_in(inner))]
    if isinstance(value, list):
        return [text for inner in value for text in _texts_in(inner)]
    return [] if value is None else [str(value)]


# --- What all verbs of programs need: an open ledger, and one append for each verb.


class ProgramsBase:
    """Programs of one open ledger, changed in the ledger's name. Thread-safe, as the ledger is."""

    def __init__(self, ledger: Ledger, hold: Lease | None = None) -> None:
        self.ledger, self._hold = ledger, hold
        self._writer, self._store = writer_of(ledger), store_of(ledger)

    def _perform(self, verb: str, work: Callable[[ProgramWriter], str], key: str | None, *request: Any) -> str:
        hold = self._hold
        if hold is None:
            return perform(self._writer, verb, work, key, request)

        def under_lease(writer: ProgramWriter) -> str:
            renewed(writer, hold)
            return work(writer)

        return perform(self._writer, verb, under_lease, key, request)

    def _change(self, verb: str, work: Callable[[ProgramWriter], Any], key: str | None, *request: Any) -> Program:
        """Perform a verb whose work returns a row; returns the program as it is then."""
        program = self._perform(verb, lambda writer: str(work(writer).id), key, *request)
        with self._writer.store.read() as txn:  # whoever changed it is told of it, whether they may read it or not
            return to_program(txn, find(txn, program))

    @contextmanager
    def _reading(self) -> Iterator[ReadTxn]:
        with self._store.read() as txn:
            yield txn

    def get(self, name: str, *kinds: str) -> Program:
        """By name, ulid, `@(id)`, or `@(id:version)` for that version of its configuration."""
        wanted = [checked_kind(kind).name for kind in kinds]
        with self._reading() as txn:
            program_name = name_in(txn, name)
            version = None if program_name == name else parse_address(name, "program").version
            return to_program(txn, find(txn, program_name, wanted), version)


def renewed(writer: ProgramWriter, hold: Lease) -> str:
    """Renew an agent's lease; returns the agent's id. Raises AgentBusy where it was ended or taken over."""
    try:
        renew(writer.append, hold)
        return hold.key
    except LeaseLost:
        name = writer.reload(hold.key).name
        raise AgentBusy(name, "was reset or taken up by somebody else meanwhile", was_held=True) from None
