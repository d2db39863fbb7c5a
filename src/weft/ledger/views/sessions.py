"""What a session's events mean for its label, its head and its reflog."""

from __future__ import annotations

from msgspec import UNSET

from weft.kernel import dag_events as dag
from weft.kernel import ledger_events as own
from weft.kernel.contents import showable
from weft.kernel.enums import TurnType
from weft.ledger.rows import HistoryRow, SessionRow, TurnRow
from weft.ledger.runs import position_in_run
from weft.ledger.views.projector import OTHERS, SESSIONS, Moment, Projector, begins, handles, plain


def _text(view: Projector, ref: str) -> str | None:
    """A label or a name as a column holds it."""
    text = view.contents.content_text(view.contents.number(ref))
    return None if text is None else showable(text)


@handles(own.AgentCreated, OTHERS)
def _agent_created(view: Projector, moment: Moment, event: own.AgentCreated) -> None:
    program = event.stream.partition(":")[2]
    name = _text(view, event.name) or program
    taken = view.sql.one("SELECT 1 FROM program WHERE name = ?", (name,))
    view.sql.run(
        "INSERT INTO program(id, kind, name) VALUES (?, 'agent', ?)",
        (program, f"{name} ({program})" if taken else name),
    )


@begins(own.SessionCreated, "session:")
def _session_created(view: Projector, moment: Moment, event: own.SessionCreated) -> None:
    session = event.stream[8:]
    (highest,) = view.sql.one("SELECT max(n) FROM session") or (0,)
    when = moment.when
    view.add_session(
        SessionRow(
            max([highest or 0, *(row.n for row in view.new_sessions)]) + 1, session,
            _free_label(view, event, session), event.persona,
            None, None, None, None, 0, moment.when, moment.event_id, "active", "created", None,
            plain(event.parent_session), plain(event.parent_turn),
            view.number(event.spawn_tool_call), view.number(event.task_description),
            view.number(event.routing_key), plain(event.origin), view.number(event.origin_session_id),
            when, when, plain(event.replica),
        )
    )  # fmt: skip


def _free_label(view: Projector, event: own.SessionCreated | own.SessionRenamed, session: str) -> str:
    """The label, or `replica/label` where another replica's session brings one that is taken here."""
    label = _text(view, event.label) or session
    while _label_taken(view, label, session):
        label = f"{str(plain(event.replica) or 'imported')[-6:].lower()}/{label}"
    return label


def _label_taken(view: Projector, label: str, session: str) -> bool:
    fresh = any(row.label == label and row.id != session for row in view.new_sessions)
    stored = "SELECT 1 FROM session WHERE label = ? AND status <> 'deleted' AND id <> ?"
    return fresh or view.sql.one(stored, (label, session)) is not None


@handles(own.SessionMoved, SESSIONS)
def _session_moved(view: Projector, moment: Moment, event: own.SessionMoved) -> None:
    turn = None if event.to is None else view.turn(event.to)
    events = None if event.at is UNSET or turn is None else position_in_run(view.facts, turn, event.at) + 1
    _move(view, moment, turn, events, moment.when, event.why, view.number(event.reason))


@handles(dag.AgentForked, SESSIONS)
def _agent_forked(view: Projector, moment: Moment, event: dag.AgentForked) -> None:
    turn = view.turn(event.at_turn)
    whole = turn.closed and bytes.fromhex(event.at_event.event_id) == turn.last_event
    events = None if whole else position_in_run(view.facts, turn, event.at_event.event_id) + 1
    _move(view, moment, turn, events, moment.when, "fork", None)


def _move(
    view: Projector, moment: Moment, turn: TurnRow | None, events: int | None, when: int, why: str, reason: int | None
) -> None:
    session: SessionRow = moment.row
    if session.head is not None and (turn is None or turn.parent != session.head):
        _depart(view, session)
        session.compaction = None if session.compaction else session.compaction
    session.head = turn.id if turn else None
    session.head_segment, session.head_depth = (turn.segment, turn.depth) if turn else (None, None)
    session.head_events = events
    session.lifecycle = "active"
    if turn is not None and turn.type == TurnType.COMPACTION:
        session.compaction = None
    session.since = max(session.since, when)
    view.history.append(
        HistoryRow(
            session.n, session.moves, moment.n, session.head, session.head_segment, session.head_depth, events,
            when, session.since, why, reason,
        )
    )  # fmt: skip
    session.moves += 1


def _depart(view: Projector, session: SessionRow) -> None:
    view.sql.run(
        "INSERT INTO departure(segment, session, depth) VALUES (?, ?, ?) ON CONFLICT (segment, session)"
        " DO UPDATE SET depth = CASE WHEN excluded.depth > depth THEN excluded.depth ELSE depth END",
        (session.head_segment, session.n, session.head_depth),
    )


@handles(own.SessionArchived, SESSIONS)
def _session_archived(view: Projector, moment: Moment, event: own.SessionArchived) -> None:
    moment.row.status = event.status
    view.memory.labels.clear()


@handles(own.SessionRenamed, SESSIONS)
def _session_renamed(view: Projector, moment: Moment, event: own.SessionRenamed) -> None:
    moment.row.label = _free_label(view, event, moment.row.id)
    view.memory.labels.clear()


@handles(own.AliasAdded, SESSIONS)
def _alias_added(view: Projector, moment: Moment, event: own.AliasAdded) -> None:
    alias = _text(view, event.alias)
    if alias is not None:
        view.sql.run(
            "INSERT INTO alias(alias, session, created_at, reason) VALUES (?, ?, ?, ?)"
            " ON CONFLICT (alias) DO UPDATE SET session = excluded.session, reason = excluded.reason",
            (alias, moment.row.n, moment.when, event.reason),
        )


@handles(own.CompactionChosen, SESSIONS)
def _compaction_chosen(view: Projector, moment: Moment, event: own.CompactionChosen) -> None:
    moment.row.compaction = event.compaction or ""
