"""What sources tell of imported turns and sessions, merged so that the order in which they came
does not matter: which session a turn belongs to, and the figures that lie in the metadata of
messages.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

import orjson
from msgspec import UNSET, Struct, UnsetType
from msgspec.structs import replace

from weft.kernel import ledger_events as own
from weft.kernel.clock import offset
from weft.kernel.contents import MAX_INTEGER
from weft.kernel.enums import AgentRole, TurnType
from weft.kernel.errors import ContentMissing, FactDamaged
from weft.kernel.events import SeenCall, SeenMessage
from weft.kernel.ledger_events import Sighting
from weft.ledger.dialects import one_hour_part, one_hour_writes
from weft.ledger.model import UNDATED
from weft.ledger.views.projector import IMPORTS, ContentLookup, EventMoment, Projector, handles, plain
from weft.ledger.views.rows import (
    CONTEXTS,
    TOKENS,
    CallRow,
    MessageRow,
    SessionRow,
    TurnRow,
    decoded,
    load_session,
    load_turn,
)
from weft.ledger.views.sessions import (
    current_version,
    depart,
    join_spawn,
    join_started,
    link_named_call,
    link_waiting,
    move_head,
    note_spawn,
    threads_of,
)
from weft.ledger.views.turns import ROWS_PER_EVENT, add_annotations
from weft.store.fact_log import ErasedContents, FactReader
from weft.store.port import Store, WriteTxn
from weft.store.sql import Sql, rows_in

# --- Which session an imported turn belongs to, where the sources of several hold it.

SessionAge = tuple[int, bool, str, str]
"""When a session began, whether its native id is gone, that id, and ours."""
NO_SESSION_AGE: SessionAge = (MAX_INTEGER, True, "", "")
_OF_OTHERS = (
    "SELECT id FROM turn WHERE segment = ? AND depth <= ? AND session <> ? AND source IS NOT NULL AND origin = ?"
    " AND NOT EXISTS (SELECT 1 FROM link WHERE parent = turn.id AND why = 'resumed') ORDER BY depth"
)
_UNDATED = "SELECT id FROM turn WHERE segment = ? AND depth <= ? AND session = ? AND synthesised = 1 ORDER BY depth"


def take_turn(view: Projector, session: SessionRow, turn: TurnRow) -> None:
    """A source of the session holds the turn: the turn belongs to it unless it does to an earlier session."""
    if turn.session == session.n:
        return
    owner = None if turn.session is None else view.session_of_number(turn.session)
    if owner is None or (owner.n != session.n and _is_before(view, session, owner)):
        turn.session = session.n
        view.changed_turns[turn.id] = turn
        list_undated(view, session, turn)
        if owner is not None:
            join_started(view, turn)


def _is_before(view: Projector, session: SessionRow, other: SessionRow) -> bool:
    text_of = view.contents.content_text
    return session_age(session, text_of) < session_age(other, text_of)


def take_threads(view: Projector, session: SessionRow, threads: Sequence[tuple[int, int]]) -> None:
    """The session turned out to begin earlier: so it does for every turn of its origin where it stood or that leads
    there, which are its `threads`. One that was moved here may stand on turns that its source does not hold, and takes
    none; nor does any take turns that Weft wrote into a file of another session, which only copies them."""
    if session.reach is None or session.head is None:
        return
    for segment, depth in threads:
        for (id,) in view.sql.fetch_rows(_OF_OTHERS, (segment, depth, session.n, session.origin)):
            take_turn(view, session, view.turn(id))


def list_undated(view: Projector, session: SessionRow, turn: TurnRow) -> None:
    """A turn without a time is listed with the turn that it follows; a first one when its session began, as far as that
    is known, else before all that have a time."""
    if turn.synthesised and turn.session == session.n:
        parent = None if turn.parent is None else view.find_turn(turn.parent)
        list_at(view, turn, parent.listed_at if parent else session.created_at)


def list_at(view: Projector, turn: TurnRow, when: int) -> None:
    """List a turn by this time, and none that grew from it by an earlier one."""
    has_grown = when > turn.listed_at and not (view.new_turns and view.new_turns[-1] is turn)
    turn.listed_at = when
    view.changed_turns[turn.id] = turn
    above = [turn] if has_grown else []
    if has_grown:
        view.flush(keep=True)
    for parent in above:  # grows on the way
        for (id,) in view.sql.fetch_rows("SELECT id FROM turn WHERE parent = ? AND listed_at < ?", (parent.id, when)):
            child = view.turn(id)
            child.listed_at = when
            view.changed_turns[child.id] = child
            above.append(child)


def list_undated_threads(view: Projector, session: SessionRow, threads: Sequence[tuple[int, int]]) -> None:
    """When the session began has become known: so its turns without a time are listed anew, from the first one on."""
    view.flush(keep=True)
    for segment, depth in threads:
        for (id,) in view.sql.fetch_rows(_UNDATED, (segment, depth, session.n)):
            list_undated(view, session, view.turn(id))


def session_age(session: SessionRow, text_of: Callable[[int], str | None]) -> SessionAge:
    """Smaller for a session that goes first. One without any time comes after those that have one, and one whose native
    id was erased after those that began with it."""
    begun = MAX_INTEGER if session.created_at == UNDATED else session.created_at
    native = text_of(session.origin_session) if session.origin_session else None
    return begun, native is None, native or "", session.id


# --- Figures that lie in the metadata of imported messages: one-hour cache writes, and what the origin says they cost.

MILLION = 1_000_000
_COSTED = frozenset({"aider", "atif", "opencode", "pi", "swe-agent"})
"""Origins that note what a response cost."""
_ONCE_COSTED = "claude-code"
"""It stopped noting costs before it began to tell how long its caches are kept."""


class SightedFigures(Struct, frozen=True, gc=False):
    """None: not told."""

    cache_write_1h_tokens: int | None = None
    recorded_cost: int | None = None
    """Micro-dollars."""


NO_FIGURES = SightedFigures()


def figures_of(contents: ContentLookup, origin: str, message: SeenMessage) -> SightedFigures:
    """What a sighting tells of a message, in its usage or in its metadata. Metadata is read only where it may tell."""
    usage = message.usage
    written = 0 if usage is UNSET or usage.cache_write_tokens is UNSET else usage.cache_write_tokens
    one_hour = None if usage is UNSET or usage.cache_write_1h_tokens is UNSET else usage.cache_write_1h_tokens
    notes_cost = origin in _COSTED or (origin == _ONCE_COSTED and one_hour is None)
    if message.metadata is UNSET or not (notes_cost or (written and one_hour is None)):
        return NO_FIGURES if one_hour is None else SightedFigures(one_hour)
    metadata = _read_metadata(contents, message.metadata)
    cost = recorded_cost(metadata) if notes_cost else None
    if one_hour is None and written and isinstance(kept_usage := metadata.get("usage"), dict):
        noted = one_hour_writes(kept_usage)
        one_hour = one_hour_part(noted, written) if noted is not None and 0 <= noted <= MAX_INTEGER else None
    return SightedFigures(one_hour, cost)


def recorded_cost(metadata: dict[str, Any]) -> int | None:
    """Micro-dollars from costs in dollars: a number, or pi's `{…, "total": number}`, and what its tools spent.
    A tool that knows no price notes zero, so zero tells nothing."""
    cost, of_tools = metadata.get("cost", metadata.get("costUSD")), metadata.get("tool_costs")
    own = cost.get("total") if isinstance(cost, dict) else cost
    amounts = [own, *(of_tools if isinstance(of_tools, list) else ())]
    dollars = [float(amount) for amount in amounts if type(amount) in (int, float) and 0 < amount <= MAX_INTEGER]
    micro = round(sum(dollars) * MILLION)
    return micro if 0 < micro <= MAX_INTEGER else None


def _read_metadata(contents: ContentLookup, ref: str) -> dict[str, Any]:
    """Empty where it was erased, never came, or is damaged, which verifying the facts reports."""
    try:
        text = contents.content_text(contents.number(ref))
        value = orjson.loads(text) if text else None
    except (ContentMissing, FactDamaged, orjson.JSONDecodeError):
        return {}
    return value if isinstance(value, dict) else {}


# --- reading them again -------------------------------------------------------------------------------------------


class _ReadContents:
    """Contents of a ledger by their references."""

    def __init__(self, facts: FactReader) -> None:
        self._facts = facts

    def number(self, ref: str) -> int:
        return self._facts.find_content(bytes.fromhex(ref)) or 0

    def content_text(self, n: int) -> str | None:
        return self._facts.text(n)

    def readable_text(self, n: int) -> str | None:
        return self._facts.readable_text(n)


def forget(_: Store, txn: WriteTxn, forgotten: ErasedContents) -> None:
    """Figures that were read out of metadata that is erased now."""
    query = (
        "SELECT DISTINCT t.id FROM message m JOIN turn t ON t.n = m.turn"
        " WHERE coalesce(m.cache_write_1h_tokens, m.recorded_cost) IS NOT NULL AND m.metadata IN"
    )
    turns = {turn for (turn,) in rows_in(txn.sql, query, forgotten.contents)}
    if turns:
        _write_figures(txn.sql, txn.facts, turns)


def _write_figures(sql: Sql, facts: FactReader, turns: Collection[str]) -> None:
    """The columns of these turns, as a projector would have left them."""
    merged: dict[str, dict[int, SightedFigures]] = {turn: {} for turn in turns}
    for event in _turn_sightings(facts, turns):
        if _counts_for_origin(sql, event):
            messages = merged[str(event.turn)]
            for message in event.messages or ():
                figures = figures_of(_ReadContents(facts), event.origin, message)
                messages[message.k] = _largest_figures(messages.get(message.k, NO_FIGURES), figures)
    for turn, messages in merged.items():
        _write_turn(sql, turn, messages)


def _turn_sightings(facts: FactReader, turns: Collection[str]) -> Iterator[Sighting]:
    for n, line in facts.lines():
        if b'"messages":' in line and b'"stream":"import:' in line:
            event = decoded(n, line)
            if isinstance(event, Sighting) and event.turn is not UNSET and event.turn in turns:
                yield event


def _counts_for_origin(sql: Sql, event: Sighting) -> bool:
    """Is it of a turn and a session that this origin brought? What only copies a turn tells nothing of it."""
    turn, session = load_turn(sql, str(event.turn)), load_session(sql, event.session)
    if turn is None or session is None or session.origin is None or session.replica is not None:
        return False
    return turn.source is not None and turn.origin == event.origin


def _largest_figures(one: SightedFigures, other: SightedFigures) -> SightedFigures:
    def larger(first: int | None, second: int | None) -> int | None:
        return second if first is None else first if second is None else max(first, second)

    return SightedFigures(
        larger(one.cache_write_1h_tokens, other.cache_write_1h_tokens), larger(one.recorded_cost, other.recorded_cost)
    )


def _write_turn(sql: Sql, turn: str, messages: dict[int, SightedFigures]) -> None:
    row = load_turn(sql, turn)
    if row is None:
        return
    sql.run("UPDATE message SET cache_write_1h_tokens = NULL, recorded_cost = NULL WHERE turn = ?", (row.n,))
    for k, figures in messages.items():
        if figures != NO_FIGURES:
            sql.run(
                "UPDATE message SET cache_write_1h_tokens = ?, recorded_cost = ? WHERE turn = ? AND seq = ?",
                (figures.cache_write_1h_tokens, figures.recorded_cost, row.n, k),
            )
    counts = [count for figures in messages.values() if (count := figures.cache_write_1h_tokens) is not None]
    total = min(sum(counts), MAX_INTEGER) if counts else None
    sql.run("UPDATE turn SET cache_write_1h_tokens = ? WHERE n = ?", (total, row.n))


# --- What sources tell of imported turns and sessions, merged so that the order in which they came does not matter.

_HALF = (1 << 31) - 1
_SESSION_FIELDS = ("title", "workspace", "git_branch", "version", "agent", "metadata", "task")
FIRST_DAY, LAST_DAY = -62_135_510_400_000, 253_402_214_400_000
"""From the second day of the year 1 to the last but one of the year 9999, in Unix milliseconds."""
IN_PIECES = 0
"""The context of a message that lies in `message_context`, thing by thing."""


@handles(own.Sighting, IMPORTS)
def _apply_sighting(view: Projector, moment: EventMoment, event: own.Sighting) -> None:
    session = view.session(event.session)
    turn = None if event.turn is UNSET else view.turn(event.turn)
    if not _is_imported(session):
        return
    begun = session.created_at
    event = replace(event, started=_dated_or_unset(event.started), ended=_dated_or_unset(event.ended))
    if turn is not None and _is_copy(turn, event):
        _move_imported_head(view, moment, session, turn, replace(event, started=UNSET, ended=UNSET))
    elif turn is not None:
        _see_turn(view, moment, session, turn, event)
    elif event.raw is UNSET:
        _see_session(view, moment, session, event)
    else:
        view.sql.run(
            'INSERT INTO kept(n, session, file, start, "end", content) VALUES (?, ?, ?, ?, ?, ?)',
            (moment.n, session.n, view.number(event.file), plain(event.offset) or 0, plain(event.end) or 0,
             view.number(event.raw)),
        )  # fmt: skip
    view.changed_sessions[session.id] = session
    if session.created_at != begun:
        threads = sorted(threads_of(view, session).items())
        take_threads(view, session, threads)
        list_undated_threads(view, session, threads)


def is_dated(when: int) -> bool:
    """Is it a time that every calendar has, in every zone?"""
    return FIRST_DAY <= when <= LAST_DAY


def _dated_or_unset(when: int | UnsetType) -> int | UnsetType:
    return when if when is not UNSET and is_dated(when) else UNSET


def _is_imported(session: SessionRow) -> bool:
    """What was recorded here no source knows better, whoever says so."""
    return session.origin is not None and session.replica is None


def _is_copy(turn: TurnRow, event: own.Sighting) -> bool:
    """Does a source only hold what came from elsewhere: a turn recorded here, one of another origin, or one that it
    tells nothing new of? Such a session stands there, and the turn stays as it is known."""
    if turn.source is None or event.origin != turn.origin:
        return True
    fields = (event.started, event.messages, event.calls, event.workspace, event.metadata, event.config)
    return turn.seen is not None and all(field is UNSET for field in fields)


def _field_count(source: own.Sighting | SessionRow) -> int:
    """How much is told, or shown, of a session: of two sightings that reach equally far the one that says more is
    newer, such as one that found the card of a subagent beside its file."""
    return sum(getattr(source, name) not in (None, UNSET) for name in _SESSION_FIELDS)


def _reach_of_sighting(end: int, at: int | None) -> int:
    """How far a sighting of a session tells, for comparing two: by its second where it has one, then by its place."""
    return end if at is None else (min(max(at // 1000, 0), _HALF) << 31) + min(end, _HALF)


def _see_session(view: Projector, moment: EventMoment, session: SessionRow, event: own.Sighting) -> None:
    reach = _reach_of_sighting(plain(event.end) or 0, plain(event.ended))
    if event.started is not UNSET:
        _widen_times(session, event.started, event.started)
    if event.archived is True and session.status == "active":
        session.status = "archived"
    rank = (reach, _field_count(event), moment.event_id)
    if session.seen is not None and rank < (session.told or 0, _field_count(session), session.seen):
        return
    session.told, session.seen = reach, moment.event_id
    session.title, session.workspace = view.number(event.title), view.number(event.workspace)
    session.git_branch, session.version = view.number(event.git_branch), view.number(event.version)
    session.agent, session.metadata = view.name(event.agent), view.number(event.metadata)
    session.task = view.number(event.task)
    if session.parent_turn is None:  # else the call that started it was seen
        parent, spawn_call = plain(event.parent), view.number(event.spawn_call)
        if (parent, spawn_call) != (session.parent_session, session.spawn_call):
            session.parent_session, session.spawn_call = parent, spawn_call
            link_named_call(view, session)
            join_spawn(view, session.id)


def _see_turn(view: Projector, moment: EventMoment, session: SessionRow, turn: TurnRow, event: own.Sighting) -> None:
    rank = _timing_rank(event.started, event.ended, moment.event_id)
    first = turn.seen is None
    leads = turn.seen is None or rank < _timing_rank(turn.seen_at, turn.completed_at, turn.seen)
    if leads:
        _take_times(view, turn, event, first)
    _see_messages(view, moment, turn, event, leads, first)
    _see_calls(view, turn, event, leads)
    if leads:
        turn.seen, turn.seen_at = moment.event_id, plain(event.started)
        _take_words(view, turn, event)
    view.changed_turns[turn.id] = turn
    _begin_times(session, event)
    take_turn(view, session, turn)
    list_undated(view, session, turn)
    _move_imported_head(view, moment, session, turn, event)
    _see_spawned(view, turn, event)


def _moment_or_last(when: int | UnsetType | None) -> int:
    return when if isinstance(when, int) else MAX_INTEGER


def _timing_rank(
    started: int | UnsetType | None, ended: int | UnsetType | None, event_id: bytes
) -> tuple[int, int, bytes]:
    """The earliest begun leads; of those the earliest ended, before any whose end is not told."""
    begun, over = _moment_or_last(started), _moment_or_last(ended)
    return begun, over if begun < over else MAX_INTEGER, event_id


def _take_times(view: Projector, turn: TurnRow, event: own.Sighting, first: bool) -> None:
    if event.started is not UNSET:
        turn.started_at, turn.synthesised = event.started, 0
        parent = None if turn.parent is None else view.find_turn(turn.parent)
        list_at(view, turn, max(turn.started_at, parent.listed_at) if parent else turn.started_at)
    if event.ended is not UNSET:
        turn.completed_at = event.ended
    elif event.started is not UNSET or not first:
        turn.completed_at = turn.started_at


def _take_words(view: Projector, turn: TurnRow, event: own.Sighting) -> None:
    turn.workspace, turn.git_branch = view.number(event.workspace), view.number(event.git_branch)
    turn.version, turn.metadata = view.number(event.version), view.number(event.metadata)
    turn.role = AgentRole.UNIFIED if event.role is UNSET else event.role
    turn.toolset, turn.tools = view.name(event.toolset), view.shared(event.tools)
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
    view: Projector, moment: EventMoment, turn: TurnRow, event: own.Sighting, leads: bool, first: bool
) -> None:
    rows = view.messages_of(turn)
    if leads and not first:
        _forget_annotations(view, turn)
    seen = {each.k: each for each in event.messages or ()}
    notes, last = 0, _moment_or_last(event.started)
    for row in rows:
        each = seen.get(row.seq)
        last = _see_message_time(row, each, last, first)
        if each is None:
            if not leads or first:
                continue
            each = SeenMessage(k=row.seq)
        _see_tokens(view, row, event.origin, each)
        if leads:
            _take_message_words(view, row, each)
            files, lints = each.files or (), each.lints or ()
            if notes + max(len(files), len(lints)) < ROWS_PER_EVENT:
                add_annotations(view, moment.n, notes, row.id, files, lints)
                notes += max(len(files), len(lints))
    _sum_tokens(view, turn, rows)
    if leads:
        named = [row for row in rows if row.model is not None]
        unnamed = (turn.model, turn.provider) if first else (_unnamed_model(turn), None)
        turn.model, turn.provider = (named[-1].model, named[-1].provider) if named else unnamed


def _unnamed_model(turn: TurnRow) -> str | None:
    """The model of a turn whose source names none, as its chain has it."""
    return "unknown" if turn.type == TurnType.COMPACTION else None


def _forget_annotations(view: Projector, turn: TurnRow) -> None:
    low, high = turn.id, offset(turn.id, turn.messages)
    for table in ("message_file", "message_lint", "message_context"):
        view.sql.run(f"DELETE FROM {table} WHERE message > ? AND message <= ?", (low, high))


def _see_message_time(row: MessageRow, seen: SeenMessage | None, last: int, first: bool) -> int:
    """Its own time, or that of the message before it where the origin gives none."""
    own_time = UNSET if seen is None else _dated_or_unset(seen.at)
    at = last if own_time is UNSET else own_time
    if at != MAX_INTEGER:
        row.at = at if first else min(row.at, at)
    return at


def _see_tokens(view: Projector, row: MessageRow, origin: str, seen: SeenMessage) -> None:
    """A copy may have been cut before the last count came: the largest of each kind is the provider's."""
    figures, usage = figures_of(view.contents, origin, seen), seen.usage
    counts = [] if usage is UNSET else [(field, getattr(usage, field)) for field in TOKENS]
    if figures is not NO_FIGURES:
        counts += [(field, getattr(figures, field)) for field in SightedFigures.__struct_fields__]
    for field, value in counts:
        if value is not UNSET and value is not None:
            setattr(row, field, max(getattr(row, field) or 0, value))


def _take_message_words(view: Projector, row: MessageRow, seen: SeenMessage) -> None:
    row.source = plain(seen.source)
    row.model, row.provider, row.finish = view.name(seen.model), view.name(seen.provider), view.name(seen.finish_reason)
    row.metadata = view.number(seen.metadata)
    row.context = None if seen.context is UNSET else IN_PIECES
    rows = [
        (row.id, idx, view.name(each.name), int(each.listed is True), view.contents.number(each.value))
        for idx, each in enumerate(seen.context or ())
    ]
    if rows:
        view.sql.add(CONTEXTS, rows)


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
    segments = view.sql.fetch_rows(
        "SELECT n FROM segment WHERE parent = ? AND parent_depth >= ?", (turn.segment, turn.depth)
    )
    while segments:
        (segment,) = segments.pop()
        view.sql.run("UPDATE turn SET tokens_before = tokens_before + ? WHERE segment = ?", (change, segment))
        segments += view.sql.fetch_rows("SELECT n FROM segment WHERE parent = ?", (segment,))


def _see_calls(view: Projector, turn: TurnRow, event: own.Sighting, leads: bool) -> None:
    if not (leads and turn.calls):
        return
    seen = {each.k: each for each in event.calls or ()}
    asked = {row.id: row.at for row in view.messages_of(turn)}
    for row in view.calls_of(turn):
        _see_call(view, row, seen.get(row.seq), asked.get(row.message or "", turn.started_at))


def _see_spawned(view: Projector, turn: TurnRow, event: own.Sighting) -> None:
    for each in event.calls or ():
        if each.spawned is not UNSET and 0 <= each.k < turn.calls:
            note_spawn(view, each.spawned, turn, each.k)
            join_spawn(view, each.spawned)
    if turn.calls and not view.is_childless(turn):
        link_waiting(view, turn, view.calls_of(turn))


def _see_call(view: Projector, row: CallRow, seen: SeenCall | None, asked: int) -> None:
    """Its own times; where the origin has none, that of the message that asked for it."""
    at = UNSET if seen is None else _dated_or_unset(seen.at)
    done = UNSET if seen is None else _dated_or_unset(seen.done)
    row.started_at = asked if at is UNSET else at
    row.completed_at = row.started_at if done is UNSET else done
    row.detail = None if seen is None else view.number(seen.detail)


def _move_imported_head(
    view: Projector, moment: EventMoment, session: SessionRow, turn: TurnRow, event: own.Sighting
) -> None:
    """An imported session stands on the turn that lies furthest on in its source, until it is moved here."""
    if session.reach is None:
        return
    reach, when = plain(event.end) or 0, turn.completed_at or turn.started_at
    there = current_version(view, turn) if reach >= session.reach else turn
    if reach > session.reach or (reach == session.reach and _is_further(there, session)):
        moment.row = session
        move_head(view, moment, there, None, when, "turn", None)
        session.reach = reach
    elif turn.segment != session.head_segment or turn.depth > (session.head_depth or 0):
        depart(view, session, turn.segment, turn.depth)  # it lies there too, beside the thread that the session is on


def _begin_times(session: SessionRow, event: own.Sighting) -> None:
    """The times of a turn are those of a session that follows its source."""
    if session.reach is not None and event.started is not UNSET:
        _widen_times(session, event.started, event.started if event.ended is UNSET else event.ended)


def _widen_times(session: SessionRow, begun: int, ended: int) -> None:
    """A session begins with the earliest time that any source tells, and has changed at the latest."""
    session.created_at = begun if session.created_at == UNDATED else min(session.created_at, begun)
    session.updated_at = ended if session.updated_at == UNDATED else max(session.updated_at, ended)


def _is_further(turn: TurnRow, session: SessionRow) -> bool:
    """Of turns that end at the same place the deeper one; ties go by id."""
    if session.head is None or session.head_depth is None or turn.id == session.head:
        return False
    return (-turn.depth, turn.id) < (-session.head_depth, session.head)
