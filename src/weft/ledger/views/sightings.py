"""What sources tell of imported turns and sessions, merged so that the order in which they came does not matter.

Numbers and times merge field by field: the earliest time, the largest count. Words come whole from one sighting: of a
turn the one that saw it earliest, of a session the one that tells furthest; ties go by the sighting's own id.
"""

from __future__ import annotations

from msgspec import UNSET, UnsetType

from weft.kernel import ledger_events as own
from weft.kernel.canonical import MAX_INTEGER
from weft.kernel.fields import SeenCall, SeenMessage
from weft.kernel.ulid import offset
from weft.ledger.rows import CallRow, MessageRow, SessionRow, TurnRow
from weft.ledger.views.projector import IMPORTS, Moment, Projector, handles, plain
from weft.ledger.views.runs import ROWS_PER_EVENT, TOKENS, add_annotations, tool_names
from weft.ledger.views.sessions import NOWHERE, join_spawn, move_head
from weft.ledger.views.versions import current_version


@handles(own.Sighting, IMPORTS)
def _sighting(view: Projector, moment: Moment, event: own.Sighting) -> None:
    session = view.session(event.session)
    if event.turn is UNSET:
        _see_session(view, moment, session, event)
    else:
        _see_turn(view, moment, session, view.turn(event.turn), event)
    if event.raw is not UNSET:
        view.sql.run(
            'INSERT INTO kept(n, session, file, start, "end", content) VALUES (?, ?, ?, ?, ?, ?)',
            (moment.n, session.n, view.number(event.file), plain(event.offset) or 0, plain(event.end) or 0,
             view.number(event.raw)),
        )  # fmt: skip
    view.changed_sessions[session.id] = session


def _see_session(view: Projector, moment: Moment, session: SessionRow, event: own.Sighting) -> None:
    told = plain(event.end) or 0
    if session.seen is not None and (told, moment.event_id) < (session.told or 0, session.seen):
        return
    session.told, session.seen = told, moment.event_id
    session.title, session.workspace = view.number(event.title), view.number(event.workspace)
    session.git_branch, session.version = view.number(event.git_branch), view.number(event.version)
    session.agent, session.metadata = view.name(event.agent), view.number(event.metadata)
    session.task = view.number(event.task)
    if event.started is not UNSET:
        session.created_at = min(session.created_at, event.started)
    if event.parent is not UNSET and session.parent_session is None:
        session.parent_session = event.parent
    if event.spawn_call is not UNSET and session.spawn_call is None:
        session.spawn_call = view.number(event.spawn_call)
    if event.archived is True and session.status == "active":
        session.status = "archived"


def _see_turn(view: Projector, moment: Moment, session: SessionRow, turn: TurnRow, event: own.Sighting) -> None:
    rank = (_at(event.started), moment.event_id)
    leads = turn.seen is None or rank < (_at(turn.seen_at), turn.seen)
    first = turn.seen is None
    _see_times(turn, event)
    _see_messages(view, moment, turn, event, leads, first)
    _see_calls(view, turn, event, leads)
    if leads:
        turn.seen, turn.seen_at = moment.event_id, plain(event.started)
        _take_words(view, turn, session, event)
    view.changed_turns[turn.id] = turn
    _see_spawned(view, turn, event)
    _stand(view, moment, session, turn, event)


def _at(when: int | UnsetType | None) -> int:
    return when if isinstance(when, int) else MAX_INTEGER


def _see_times(turn: TurnRow, event: own.Sighting) -> None:
    if event.started is not UNSET:
        turn.started_at = event.started if turn.synthesised else min(turn.started_at, event.started)
        if turn.synthesised and event.ended is UNSET:
            turn.completed_at = event.started
        turn.synthesised = 0
    if event.ended is not UNSET:
        known = turn.completed_at if turn.seen is not None else None
        turn.completed_at = event.ended if known is None else min(known, event.ended)


def _take_words(view: Projector, turn: TurnRow, session: SessionRow, event: own.Sighting) -> None:
    turn.session = session.n
    turn.workspace, turn.git_branch = view.number(event.workspace), view.number(event.git_branch)
    turn.version, turn.metadata = view.number(event.version), view.number(event.metadata)
    turn.role = turn.role if event.role is UNSET else event.role
    turn.toolset, turn.tools = view.name(event.toolset), tool_names(view, event.tools)
    turn.permissions_granted = view.number(event.permissions)
    turn.effective_config = view.number(event.config)
    if event.compaction is not UNSET:
        seen = event.compaction
        view.flush(keep=True)
        view.sql.run(
            "UPDATE compaction SET model = ?, tokens_before = ?, tokens_after = ?, duration_ms = ?,"
            ' "trigger" = ?, metadata = ? WHERE turn = ?',
            (view.name(seen.model) or "unknown", plain(seen.tokens_before), plain(seen.tokens_after),
             plain(seen.duration_ms), plain(seen.trigger), view.number(seen.metadata), turn.id),
        )  # fmt: skip


def _see_messages(
    view: Projector, moment: Moment, turn: TurnRow, event: own.Sighting, leads: bool, first: bool
) -> None:
    rows = view.messages_of(turn)
    if leads and not first:
        _forget_annotations(view, turn)
    seen = {each.k: each for each in event.messages or ()}
    notes, last = 0, _at(event.started)
    for row in rows:
        each = seen.get(row.seq)
        last = _see_message_time(row, each, last, first)
        if each is None:
            continue
        _see_tokens(row, each)
        if leads:
            _take_message_words(view, row, each)
            files, lints = each.files or (), each.lints or ()
            if notes + max(len(files), len(lints)) < ROWS_PER_EVENT:
                add_annotations(view, moment.n, notes, row.id, files, lints)
                notes += max(len(files), len(lints))
    _sum_tokens(view, turn, rows)
    if leads:
        named = [row for row in rows if row.model is not None]
        turn.model, turn.provider = (named[-1].model, named[-1].provider) if named else (turn.model, turn.provider)


def _forget_annotations(view: Projector, turn: TurnRow) -> None:
    low, high = turn.id, offset(turn.id, turn.messages)
    for table in ("message_file", "message_lint"):
        view.sql.run(f"DELETE FROM {table} WHERE message > ? AND message <= ?", (low, high))


def _see_message_time(row: MessageRow, seen: SeenMessage | None, last: int, first: bool) -> int:
    """Its own time, or that of the message before it where the origin gives none."""
    told = UNSET if seen is None else seen.at
    if told is UNSET:
        if first and last != MAX_INTEGER:
            row.at = last
        return last
    row.at = told if first else min(row.at, told)
    return told


def _see_tokens(row: MessageRow, seen: SeenMessage) -> None:
    """A copy may have been cut before the last count came: the largest of each kind is the provider's."""
    if seen.usage is UNSET:
        return
    for field in TOKENS:
        value = getattr(seen.usage, field)
        if value is not UNSET:
            setattr(row, field, max(getattr(row, field) or 0, value))


def _take_message_words(view: Projector, row: MessageRow, seen: SeenMessage) -> None:
    row.source = plain(seen.source)
    row.model, row.provider, row.finish = view.name(seen.model), view.name(seen.provider), view.name(seen.finish_reason)
    row.context, row.metadata = view.number(seen.context), view.number(seen.metadata)


def _sum_tokens(view: Projector, turn: TurnRow, rows: list[MessageRow]) -> None:
    """A provider's response counts once, though its messages may lie apart."""
    before = turn.total_tokens or 0
    for field in TOKENS:
        values = [value for row in rows if (value := getattr(row, field)) is not None]
        setattr(turn, field, min(sum(values), MAX_INTEGER) if values else None)
    parts = (turn.input_tokens, turn.cached_input_tokens, turn.cache_write_tokens, turn.output_tokens)
    known = [part for part in parts if part is not None]
    turn.total_tokens = min(sum(known), MAX_INTEGER) if known else None
    if turn.seen is not None and (change := (turn.total_tokens or 0) - before):
        _carry_on(view, turn, change)


def _carry_on(view: Projector, turn: TurnRow, change: int) -> None:
    """Turns that grew from this one before its tokens were known count them too."""
    view.flush(keep=True)
    view.memory.turns = {turn.id: turn}
    view.sql.run(
        "UPDATE turn SET tokens_before = tokens_before + ? WHERE segment = ? AND depth > ?",
        (change, turn.segment, turn.depth),
    )
    found = view.sql.all("SELECT n FROM segment WHERE parent = ? AND parent_depth >= ?", (turn.segment, turn.depth))
    while found:
        (segment,) = found.pop()
        view.sql.run("UPDATE turn SET tokens_before = tokens_before + ? WHERE segment = ?", (change, segment))
        found += view.sql.all("SELECT n FROM segment WHERE parent = ?", (segment,))


def _see_calls(view: Projector, turn: TurnRow, event: own.Sighting, leads: bool) -> None:
    seen = {each.k: each for each in event.calls or ()}
    for row in view.calls_of(turn) if turn.calls else []:
        each = seen.get(row.seq)
        _see_call(view, row, each, turn, leads)


def _see_spawned(view: Projector, turn: TurnRow, event: own.Sighting) -> None:
    for each in event.calls or ():
        if each.spawned is not UNSET and each.k < turn.calls:
            view.sql.run(
                "INSERT INTO spawn(child, turn, seq) VALUES (?, ?, ?) ON CONFLICT (child, turn, seq) DO NOTHING",
                (each.spawned, turn.id, each.k),
            )
            join_spawn(view, each.spawned)


def _see_call(view: Projector, row: CallRow, seen: SeenCall | None, turn: TurnRow, leads: bool) -> None:
    if leads:
        at = UNSET if seen is None else seen.at
        done = UNSET if seen is None else seen.done
        row.started_at = turn.started_at if at is UNSET else at
        row.completed_at = row.started_at if done is UNSET else done
        row.detail = None if seen is None else view.number(seen.detail)


def _stand(view: Projector, moment: Moment, session: SessionRow, turn: TurnRow, event: own.Sighting) -> None:
    """An imported session stands on the turn that lies furthest on in its source, until it is moved here."""
    if session.reach is None:
        return
    reach, ended = plain(event.end) or 0, turn.completed_at or turn.started_at
    if not turn.synthesised:
        if session.reach == NOWHERE:
            session.created_at, session.updated_at = turn.started_at, ended
        session.created_at = min(session.created_at, turn.started_at)
        session.updated_at = max(session.updated_at, ended)
    if reach > session.reach:
        moment.row = session
        move_head(view, moment, current_version(view, turn), None, ended, "turn", None)
        session.reach = reach
