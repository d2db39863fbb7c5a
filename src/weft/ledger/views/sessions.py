"""What a session's events mean for its label, its head and its reflog."""

from __future__ import annotations

from msgspec import UNSET, UnsetType

from weft.kernel import dag_events as dag
from weft.kernel import ledger_events as own
from weft.kernel.enums import AliasReason, MoveReason, ProgramKind, SessionLifecycle, SessionStatus, TurnType
from weft.kernel.events import Event
from weft.kernel.program_kinds import next_state
from weft.ledger.arguments import cleaned_label
from weft.ledger.model import UNDATED
from weft.ledger.views.branches import join_branches, replica_of
from weft.ledger.views.projector import BRANCHES, OTHERS, SESSIONS, Moment, Projector, begins, handles, plain
from weft.ledger.views.recorded_events import decoded, position_in_run
from weft.ledger.views.rows import THREAD_KEYS, HistoryRow, SessionRow, TurnRow
from weft.ledger.views.spawn_links import join_spawn, link_new_session, mark_parent
from weft.ledger.views.workers import add_worker

NOWHERE = -1
"""How far a session reaches into its source before its first turn was seen."""
_BEGUN = {
    state.value: next_state(ProgramKind.SESSION, state.value, "begin") or state.value for state in SessionLifecycle
}
"""By the state that a session is in, the one that its first turn leads to."""


def _label(view: Projector, ref: str) -> str | None:
    """A label or an alias as people can type it, whoever wrote it; None when there is none."""
    text = view.contents.content_text(view.contents.number(ref))
    return cleaned_label(text) or None if text else None


@begins(own.SessionCreated, "session:")
def _session_created(view: Projector, moment: Moment, event: own.SessionCreated) -> None:
    session, is_imported = event.stream[8:], event.origin is not UNSET and event.replica is UNSET
    (highest,) = view.sql.one("SELECT max(n) FROM session") or (0,)
    when = UNDATED if is_imported else moment.when  # of an imported one only its source knows
    view.add_session(
        SessionRow(
            n=max([highest or 0, *(row.n for row in view.new_sessions)]) + 1,
            id=session,
            label=_free_label(view, event, session, _label(view, event.label)),
            persona=event.persona,
            head=None,
            head_segment=None,
            head_depth=None,
            head_events=None,
            moves=0,
            since=moment.when,
            last_event=moment.event_id,
            status="active",
            lifecycle="created",
            compaction=None,
            parent_session=plain(event.parent_session),
            parent_turn=plain(event.parent_turn),
            spawn_call=view.number(event.spawn_tool_call),
            task=view.number(event.task_description),
            routing=None if event.routing_key is UNSET else view.lookup_number(event.routing_key),
            origin=plain(event.origin),
            origin_session=view.number(event.origin_session_id),
            created_at=when,
            updated_at=when,
            replica=plain(event.replica),
        )
    )
    row = view.new_sessions[-1]
    view.note_persona(row.persona)
    if row.parent_turn is not None or row.spawn_call is not None:
        link_new_session(view, row)
    if event.spawned_by is not UNSET:
        add_worker(view, moment, row, event)
    if is_imported:
        row.reach = NOWHERE
    if is_imported or event.replica is not UNSET:
        _link_earlier(view, row, is_imported=is_imported)


def _link_earlier(view: Projector, session: SessionRow, *, is_imported: bool) -> None:
    """What came before this session may name it: subagents as their parent, calls as what they started."""
    children = "SELECT 1 FROM session WHERE parent_session = ? AND spawn_call IS NOT NULL"
    if view.sql.one(children, (session.id,)) is not None or any(
        row.parent_session == session.id and row.spawn_call is not None for row in view.new_sessions
    ):
        mark_parent(view, session)
    if is_imported and view.sql.one("SELECT 1 FROM spawn WHERE child = ?", (session.id,)) is not None:
        join_spawn(view, session.id)


def _free_label(view: Projector, event: Event, session: str, label: str | None) -> str:
    """The label, or `replica/label` where another replica's session brings one that is taken here."""
    free = label or session
    prefix = "imported" if event.replica is UNSET else event.replica[-6:].lower()
    while _label_taken(view, free, session):
        free = f"{prefix}/{free}"
    return free


def _label_taken(view: Projector, label: str, session: str) -> bool:
    """Does it lead to another session, by label or by alias?"""
    fresh = any(row.label == label and row.id != session for row in view.new_sessions)
    labels = "SELECT 1 FROM session WHERE label = ? AND status <> 'deleted' AND id <> ?"
    return fresh or view.sql.one(labels, (label, session)) is not None or _alias_taken(view, label, session)


def _alias_taken(view: Projector, alias: str, session: str) -> bool:
    return _other_holder(view, alias, session) is not None


def _other_holder(view: Projector, alias: str, session: str) -> tuple[int, str] | None:
    """The number of another session that an alias leads to, and the reason of the alias."""
    row = view.sql.one(
        "SELECT a.session, a.reason FROM alias a JOIN session s ON s.n = a.session"
        " WHERE a.alias = ? AND s.status <> 'deleted' AND s.id <> ?",
        (alias, session),
    )
    return None if row is None else (row[0], row[1])


@handles(own.SessionMoved, SESSIONS)
def _session_moved(view: Projector, moment: Moment, event: own.SessionMoved) -> None:
    turn = None if event.to is None else view.turn(event.to)
    events = None if event.at is UNSET or turn is None else position_in_run(view.facts, turn, event.at) + 1
    moment.row.reach = None
    move_head(view, moment, turn, events, moment.when, event.why, view.number(event.reason))
    if event.tips is not UNSET and event.tips:
        join_branches(view, moment.row, event)
        moment.row.compaction = None  # one branch's choice; whoever settles makes it again


@handles(dag.AgentForked, SESSIONS)
def _agent_forked(view: Projector, moment: Moment, event: dag.AgentForked) -> None:
    turn = view.turn(event.at_turn)
    whole = turn.closed and bytes.fromhex(event.at_event.event_id) == turn.last_event
    events = None if whole else position_in_run(view.facts, turn, event.at_event.event_id) + 1
    move_head(view, moment, turn, events, moment.when, "fork", None)


def move_head(
    view: Projector, moment: Moment, turn: TurnRow | None, events: int | None, when: int, why: str, reason: int | None
) -> None:
    session: SessionRow = moment.row
    elsewhere = turn is None or turn.id != session.head
    if session.head is not None and elsewhere and (turn is None or turn.parent != session.head):
        depart(view, session, session.head_segment, session.head_depth)
    if session.compaction and not _goes_on(view, session, turn, events):
        session.compaction = None
    session.head = turn.id if turn else None
    session.head_segment, session.head_depth = (turn.segment, turn.depth) if turn else (None, None)
    session.head_events = events
    if session.lifecycle != SessionLifecycle.ACTIVE:
        session.lifecycle = _BEGUN.get(session.lifecycle, session.lifecycle)
    if turn is not None and elsewhere and turn.type == TurnType.COMPACTION:
        session.compaction = None
    _note_move(view, session, moment.n, when, why, reason)


def _note_move(view: Projector, session: SessionRow, n: int, when: int, why: str, reason: int | None = None) -> None:
    session.since = max(session.since, when)
    view.history.append(
        HistoryRow(
            n=n,
            session=session.n,
            k=session.moves,
            turn=session.head,
            segment=session.head_segment,
            depth=session.head_depth,
            events=session.head_events,
            changed_at=when,
            since=session.since,
            why=why,
            reason=reason,
        )
    )
    session.moves += 1
    if session.head is not None and why == MoveReason.TURN and session.status != SessionStatus.DELETED:
        view.sql.add(THREAD_KEYS, [(f"{session.label}#{session.head_depth}", session.n, session.head)])


_LAST_TURNS = (
    "SELECT depth, turn FROM history WHERE session = ? AND k IN (SELECT max(k) FROM history"
    " WHERE session = ? AND why = 'turn' AND turn IS NOT NULL GROUP BY depth)"
)


def _rewrite_thread_keys(view: Projector, session: SessionRow, label: str) -> None:
    """The keys of a session that was called `label`, after it was renamed, deleted or restored."""
    view.flush(keep=True)
    of_label = "DELETE FROM thread_key WHERE key >= ? AND key < ? AND session = ?"
    view.sql.run(of_label, (f"{label}#", f"{label}$", session.n))  # `$` is the letter after `#`
    if session.status != SessionStatus.DELETED:
        turns = view.sql.all(_LAST_TURNS, (session.n, session.n))
        view.sql.add(THREAD_KEYS, [(f"{session.label}#{depth}", session.n, turn) for depth, turn in turns])


def move_to_version(view: Projector, moment: Moment, session: SessionRow, turn: TurnRow) -> None:
    """A session whose turn was replaced stands on the version that took its place. The replacement is one event, which
    may move several sessions."""
    depart(view, session, session.head_segment, session.head_depth)
    session.head, session.head_segment, session.head_depth = turn.id, turn.segment, turn.depth
    _note_move(view, session, moment.n, session.updated_at or session.since, "turn")


def _goes_on(view: Projector, session: SessionRow, turn: TurnRow | None, events: int | None) -> bool:
    """Does the thread hold, at its new place, what it held so far and more? Then a choice made for it still fits."""
    if turn is None or turn.id == session.head:
        return turn is not None and events == session.head_events
    row = view.sql.one("SELECT parent_events FROM segment WHERE n = ? AND base = ?", (turn.segment, turn.depth))
    return turn.parent == session.head and (row[0] if row else None) == session.head_events


def depart(view: Projector, session: SessionRow, segment: int | None, depth: int | None) -> None:
    """The session holds turns that its head does not lead back to."""
    view.sql.run(
        "INSERT INTO departure(segment, session, depth) VALUES (?, ?, ?) ON CONFLICT (segment, session)"
        " DO UPDATE SET depth = excluded.depth WHERE excluded.depth > departure.depth",
        (segment, session.n, depth),
    )


@handles(own.SessionMoved, BRANCHES)
def _moved_elsewhere(view: Projector, moment: Moment, event: own.SessionMoved) -> None:
    """Another replica's branch of this session stood at a turn; here its label does not follow."""
    turn = None if event.to is None else view.turn(event.to)
    if turn is not None:
        depart(view, moment.row, turn.segment, turn.depth)


@handles(dag.AgentForked, BRANCHES)
def _forked_elsewhere(view: Projector, moment: Moment, event: dag.AgentForked) -> None:
    turn = view.turn(event.at_turn)
    depart(view, moment.row, turn.segment, turn.depth)


@handles(own.SessionArchived, SESSIONS)
def _session_archived(view: Projector, moment: Moment, event: own.SessionArchived) -> None:
    row: SessionRow = moment.row
    label, was_deleted = row.label, row.status == SessionStatus.DELETED
    if was_deleted and event.status != SessionStatus.DELETED:
        row.label = _free_label(view, event, row.id, row.label)
    row.status = event.status
    if was_deleted != (row.status == SessionStatus.DELETED):
        _rewrite_thread_keys(view, row, label)
    view.memory.labels.clear()


@handles(own.SessionRenamed, SESSIONS)
def _session_renamed(view: Projector, moment: Moment, event: own.SessionRenamed) -> None:
    label = moment.row.label
    moment.row.label = _free_label(view, event, moment.row.id, _label(view, event.label))
    _rewrite_thread_keys(view, moment.row, label)
    view.memory.labels.clear()


@handles(own.AliasAdded, SESSIONS, BRANCHES)
def _alias_added(view: Projector, moment: Moment, event: own.AliasAdded) -> None:
    """One that leads to another session here stays with it, unless a merge of the two hands it over."""
    alias = _label(view, event.alias)
    if alias is None:
        return
    holder = _other_holder(view, alias, moment.row.id)
    if holder is not None:
        if not _is_handed_over(view, *holder, event):
            return
        view.sql.run("DELETE FROM alias WHERE alias = ?", (alias,))
        view.memory.labels.clear()
    view.sql.run(
        "INSERT INTO alias(alias, session, created_at, reason) VALUES (?, ?, ?, ?)"
        " ON CONFLICT (alias) DO UPDATE SET session = excluded.session, reason = excluded.reason",
        (alias, moment.row.n, moment.when, event.reason),
    )


def _is_handed_over(view: Projector, holder: int, reason: str, event: own.AliasAdded) -> bool:
    """A merge hands an alias over, and its undoing hands it back. Both are believed of the ledger that wrote the
    newest event of the session that has the alias now; from anybody else it would be a way to take names away."""
    session = view.session_of_number(holder)
    is_merge = AliasReason.IDENTITY_MERGE in (event.reason, reason)
    return is_merge and session is not None and wrote_last(view, session, event.replica)


def wrote_last(view: Projector, session: SessionRow, replica: str | UnsetType) -> bool:
    """Whether this ledger wrote the newest event of a session. One that is not stored yet is of this very append."""
    n = view.facts.find_event(session.last_event)
    line = None if n is None else view.facts.line(n)
    return n is None or line is None or replica_of(decoded(n, line)) == plain(replica)


@handles(own.ContentErased, OTHERS)
def _content_erased(view: Projector, moment: Moment, event: own.ContentErased) -> None:
    """A tombstone. Whether the bytes are gone here too is another question: a stranger's waits for somebody's word."""
    view.sql.run(
        "INSERT INTO erasure(n, ref, erased_at, actor, replica, reason, turn, session) VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
        (
            moment.n,
            bytes.fromhex(event.content),
            moment.when,
            event.actor,
            plain(event.replica),
            view.number(event.reason),
            plain(event.turn),
            plain(event.session),
        ),
    )


@handles(own.CompactionChosen, SESSIONS)
def _compaction_chosen(view: Projector, moment: Moment, event: own.CompactionChosen) -> None:
    moment.row.compaction = event.compaction or ""
