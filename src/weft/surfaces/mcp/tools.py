"""The tools of the MCP server: what each takes, which verbs of the library it asks, and what it answers.

Whatever the rights of the caller leave out is not found. Nothing here writes, but `fork` and `send`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from functools import partial
from hashlib import sha256
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct

from weft.exchange.file_changes import blame_file
from weft.kernel.errors import InvalidInput, NotAllowed, NotFound
from weft.ledger.api import SessionFilter, StepGroup, sections
from weft.ledger.model import ImagePart, Message, ReasoningPart, TextPart, ToolCall, ToolResultPart, ToolUsePart, Turn
from weft.surfaces.cli.transcript import as_json
from weft.surfaces.mcp.answers import (
    LEAST_BYTES,
    UNITS_AT_ONCE,
    Entry,
    EntryItem,
    Question,
    ToolAnswer,
    TurnOrigins,
    Unit,
    answer,
    behind,
    fitting,
    harmless,
    listed,
    marked,
    moment,
    name,
    number_of,
    own_voucher,
)
from weft.verbs.reading_verbs import in_order

if TYPE_CHECKING:
    from weft.aio.open_ledger import AsyncOpenLedger
    from weft.ledger.api import Ledger
    from weft.ledger.read.sessions import Page

# --- Turns as entries.


class ThreadItem(EntryItem, frozen=True, kw_only=True, omit_defaults=True):
    """A turn, or something that was said or done in it."""

    kind: Literal["turn", "message", "steps", "call"]
    turn_id: str
    depth: int = 0
    parent_id: str | None = None
    session: str = ""
    status: str = ""
    started_at: str = ""
    role: str = ""
    tool: str = ""
    vouched_by: tuple[str, ...] = ()


class TurnEntries:
    """Makes entries of turns: `story` folds steps to one line, `full` gives every message and call whole."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger, self._origins = ledger, TurnOrigins(ledger)
        self._labels: dict[str, str] = {}

    def unit(self, turn: Turn, detail: str) -> Unit:
        return Unit(turn.id, partial(self.entries, turn, detail))

    def entries(self, turn: Turn, detail: str) -> list[Entry]:
        origins, items = self._origins.of(turn.id), in_order(self._ledger, turn.id)
        entries = [self._head(turn, origins)]
        if detail == "full":
            for item in items:
                entries += self._whole(turn, item, origins)
            return entries
        for part in sections(items):
            if isinstance(part, StepGroup):
                vouchers = origins or tuple(sorted({own_voucher(item, turn) for item in part.items}))
                told = ThreadItem(kind="steps", turn_id=turn.id, text=harmless(part.summary), vouched_by=vouchers)
                entries.append(Entry("steps", told))
            else:
                entries += self._whole(turn, part, origins)
        return entries

    def _head(self, turn: Turn, origins: tuple[str, ...]) -> Entry:
        session = self._label(turn.session_id)
        item = ThreadItem(
            kind="turn",
            turn_id=turn.id,
            depth=turn.depth,
            parent_id=turn.parent_id,
            session=session,
            status=name(turn.status),
            started_at=moment(turn.started_at, is_known=turn.time_known),
            vouched_by=origins,
            text=harmless(turn.error or ""),
        )
        in_session = f" · session {session}" if session else ""
        head = (
            f"=== turn {turn.id} · depth {turn.depth}{in_session} · {item.started_at} · {item.status}{marked(origins)}"
        )
        return Entry(head, item)

    def _label(self, session: str | None) -> str:
        if session is None:
            return ""
        if session not in self._labels:
            try:
                self._labels[session] = name(self._ledger.session(session).label)
            except NotFound:  # the turn can be read by another session, and this one cannot
                self._labels[session] = ""
        return self._labels[session]

    def _whole(self, turn: Turn, item: Message | ToolCall, origins: tuple[str, ...]) -> Iterator[Entry]:
        vouchers = origins or (own_voucher(item, turn),)
        if isinstance(item, ToolCall):
            words = f"call {name(item.name)} [{name(item.outcome or item.status)}]"
            told = ThreadItem(
                kind="call", turn_id=turn.id, tool=name(item.name), text=call_text(item), vouched_by=vouchers
            )
            yield Entry(words, told)
            return
        text = message_text(item)
        if text:
            yield Entry(
                f"{name(item.role)}:",
                ThreadItem(kind="message", turn_id=turn.id, role=name(item.role), text=text, vouched_by=vouchers),
            )


def message_text(message: Message) -> str:
    """Everything that a message says, thinking and uses of tools included."""
    return "\n".join(filter(None, (_part_text(part) for part in message.content)))


def _part_text(part: Any) -> str:
    match part:
        case TextPart():
            return harmless(str(part.text))
        case ReasoningPart():
            return harmless(f"[thinking] {part.text}")
        case ImagePart():
            return "[an image]"
        case ToolUsePart():
            return f"[calls {name(part.name)}] {harmless(_value_text(part.input))}"
        case ToolResultPart():
            return f"[result of {name(part.tool_call_id)}] {harmless(_value_text(part.output))}"
        case _:
            return ""


def call_text(call: ToolCall) -> str:
    lines = [f"arguments: {harmless(_value_text(call.arguments))}"]
    if call.error is not None:
        lines.append(f"error: {harmless(call.error)}")
    if call.result is not None:
        lines.append(f"result: {harmless(_value_text(call.result))}")
    return "\n".join(lines)


def _value_text(value: Any) -> str:
    return value if isinstance(value, str) else as_json(value)


# --- What each tool takes and answers.

Text = Annotated[str, Meta(min_length=1)]
TURN_NAME = "A turn by its id, or the label of a session; label~3 is three turns earlier"


class SessionsQuestion(Question, frozen=True, kw_only=True, forbid_unknown_fields=True):
    project: Annotated[str | None, Meta(description="Only of this project: its name or a folder of it")] = None
    since: Annotated[str | None, Meta(description="Only from this time on, such as '2 days ago'")] = None
    origin: Annotated[str | None, Meta(description="Only of this tool, such as claude-code")] = None


class SessionItem(EntryItem, frozen=True, kw_only=True, omit_defaults=True):
    session: str
    session_id: str
    head: str | None = None
    turns: int = 0
    project: str = ""
    origin: str = ""
    updated_at: str = ""


def sessions(ledger: Ledger, asked: SessionsQuestion, budget: int) -> ToolAnswer:
    wanted = SessionFilter(project=asked.project, since=asked.since, origin=asked.origin)

    def source(page: str | None, limit: int) -> tuple[Sequence[Unit], str | None]:
        found = ledger.listing().sessions(wanted, limit=limit, after=page)
        return [Unit(one.session.id, partial(_session_entries, one)) for one in found.sessions], found.next

    return answer(asked.place(), source, budget=budget)


def _session_entries(listed_session: Any) -> list[Entry]:
    session = listed_session.session
    item = SessionItem(
        session=name(session.label),
        session_id=session.id,
        head=session.head,
        turns=listed_session.depth,
        project=name(listed_session.project),
        origin=name(session.origin),
        updated_at=moment(session.updated_at, is_known=session.time_known),
        text=name(listed_session.title),
    )
    by = "" if session.origin == "weft" else f" · imported from {item.origin}"
    words = f"session {item.session} · {item.turns} turns · {item.updated_at}{by} · head {item.head or 'none'}"
    return [Entry(words, item)]


class SearchQuestion(Question, frozen=True, kw_only=True, forbid_unknown_fields=True):
    words: Annotated[
        str, Meta(description='All must stand in one message or call; "a phrase" stands together; conf* is a beginning')
    ] = ""
    session: Annotated[str | None, Meta(description="Only what this session made or goes on from")] = None
    role: Literal["user", "assistant", "system", "tool"] | None = None
    tool: Annotated[str | None, Meta(description="Only calls of tools with these words in their name")] = None
    path: Annotated[str | None, Meta(description="Only what names this file, or one below this folder")] = None
    since: Annotated[str | None, Meta(description="Only from this time on, such as 'yesterday'")] = None
    until: str | None = None
    project: str | None = None
    origin: Annotated[str | None, Meta(description="Only of this tool, such as claude-code; weft: written here")] = None


class SearchItem(EntryItem, frozen=True, kw_only=True, omit_defaults=True):
    kind: Literal["message", "call", "session", "room_message"]
    turn_id: str = ""
    session: str = ""
    title: str = ""
    role: str = ""
    tool: str = ""
    place: str = ""
    room: str = ""
    position: int = 0
    created_at: str = ""
    vouched_by: tuple[str, ...] = ()


NAMED = 5


def search(ledger: Ledger, asked: SearchQuestion, budget: int) -> ToolAnswer:
    filters = {
        field: value
        for field in ("session", "role", "tool", "path", "since", "until", "project", "origin")
        if (value := getattr(asked, field)) is not None
    }
    origins = TurnOrigins(ledger)

    def first() -> list[Unit]:
        if not asked.words:
            return []
        hits = ledger.search_sessions(asked.words, limit=NAMED, **filters)
        units = [Unit(f"session:{hit.session}", partial(_hit_entries, hit, origins)) for hit in hits]
        if not filters:
            rooms = ledger.rooms.search(asked.words, limit=NAMED)
            units += [Unit(f"room:{hit.message_id}", partial(_room_hit_entries, hit)) for hit in rooms]
        return units

    def source(page: str | None, limit: int) -> tuple[Sequence[Unit], str | None]:
        hits = ledger.search(asked.words, limit=limit, after=page, **filters)
        return [Unit(_hit_key(hit), partial(_hit_entries, hit, origins)) for hit in hits], hits.next

    return answer(asked.place(), behind(first, source), budget=budget)


def _hit_key(hit: Any) -> str:
    return f"{hit.turn_id}:{hit.message_id}:{hit.tool_call_id}:{hit.place}"


def _hit_entries(hit: Any, origins: TurnOrigins) -> list[Entry]:
    is_session = hit.place in ("title", "project")
    vouchers = origins.of(hit.turn_id)
    item = SearchItem(
        kind="session" if is_session else "call" if hit.tool_call_id else "message",
        turn_id=hit.turn_id,
        session=name(hit.session),
        title=name(hit.session_title),
        role=name(hit.role),
        tool=name(hit.tool),
        place=hit.place,
        created_at=moment(hit.created_at, is_known=hit.time_known),
        vouched_by=vouchers,
        text=name(hit.snippet) if is_session else harmless(hit.snippet),
    )
    what = f"call of {item.tool}, {item.place}" if item.tool else f"{item.role}, {item.place}"
    if is_session:
        what = f"its {item.place}"
    session = f"session {item.session}" if item.session else "no session"
    return [Entry(f"turn {item.turn_id} · {session} · {item.created_at} · {what}{marked(vouchers)}", item)]


def _room_hit_entries(hit: Any) -> list[Entry]:
    item = SearchItem(
        kind="room_message",
        room=hit.room,
        title=name(hit.room_title),
        position=hit.position,
        role=name(hit.author_name),
        created_at=moment(hit.posted_at),
        text=harmless(hit.snippet),
    )
    words = f"room {item.room} · message {item.position} · {item.created_at} · {item.role or 'a notice'}"
    return [Entry(words, item)]


class ThreadQuestion(Question, frozen=True, kw_only=True, forbid_unknown_fields=True):
    at: Annotated[str | None, Meta(description=f"Where the thread ends. {TURN_NAME}. Default: the latest session")] = (
        None
    )
    detail: Annotated[
        Literal["story", "full"], Meta(description="story folds the steps of a turn to one line; full gives them whole")
    ] = "story"
    turns: Annotated[
        Annotated[int, Meta(ge=1)] | None, Meta(description="At most so many turns; 1 is that turn alone")
    ] = None


def read_thread(ledger: Ledger, asked: ThreadQuestion, budget: int) -> ToolAnswer:
    at = asked.at if asked.at is not None else _latest(ledger)
    tip = ledger.resolve(at)
    entries = TurnEntries(ledger)
    place = asked.place(tip if asked.at is None else "")
    deepest = ledger.turn(tip).depth
    least = 0 if asked.turns is None else deepest - asked.turns + 1

    def source(page: str | None, limit: int) -> tuple[Sequence[Unit], str | None]:
        turns = ledger.log(limit, after=page, thread=at)
        wanted = [turn for turn in turns if turn.depth >= least]
        return [entries.unit(turn, asked.detail) for turn in wanted], turns.next if len(wanted) == len(turns) else None

    note = f"The thread of {name(at)}: {deepest} turns, the newest first."
    return answer(place, source, budget=budget, notes=(note,))


def _latest(ledger: Ledger) -> str:
    page = ledger.listing().sessions(SessionFilter(), limit=UNITS_AT_ONCE)
    while True:
        for found in page.sessions:
            if found.session.head is not None:
                return str(found.session.label)
        if page.next is None:
            raise NotFound("session with a turn", None, "there is nothing to read here yet")
        page = ledger.listing().sessions(SessionFilter(), limit=UNITS_AT_ONCE, after=page.next)


class ContextQuestion(Question, frozen=True, kw_only=True, forbid_unknown_fields=True):
    at: Annotated[
        Text,
        Meta(description="A turn: what its agent saw. The label of a session: what its next turn would see"),
    ]


class ContextItem(EntryItem, frozen=True, kw_only=True, omit_defaults=True):
    role: str
    number: int
    message_id: str
    vouched_by: tuple[str, ...] = ()


def show_context(ledger: Ledger, asked: ContextQuestion, budget: int) -> ToolAnswer:
    try:
        session = ledger.session(asked.at)
    except NotFound:
        turn = ledger.resolve(asked.at)
        context, vouched, pin = ledger.context(turn), ledger.vouchers(turn), turn
    else:
        context, vouched = ledger.context(session=session.id), ledger.vouchers(session=session.id)
        pin = f"{session.head}:{session.head_event}:{session.chosen_compaction}"
    known = {one.message_id: one for one in vouched}
    units = [
        Unit(message.id, partial(_context_entries, message, number, known.get(message.id)))
        for number, message in enumerate(context.messages, 1)
    ]
    cut_words = "" if context.cut.is_empty else " Parts were cut to fit."
    by = "" if context.compaction is None else f" It begins with the summary of turn {context.compaction}."
    notes = (f"The context of {name(asked.at)}: {len(units)} messages, in order.{by}{cut_words}",)
    return answer(asked.place(pin), listed(units), budget=budget, notes=notes)


def _context_entries(message: Message, number: int, vouched: Any) -> list[Entry]:
    vouchers = () if vouched is None else tuple(dict.fromkeys(one for part in vouched.parts for one in part))
    words = tuple(f"{one.kind} {name(one.id)}" for one in vouchers)
    item = ContextItem(
        role=name(message.role), number=number, message_id=message.id, vouched_by=words, text=message_text(message)
    )
    return [Entry(f"{number}. {item.role} (vouched for by {', '.join(words) or 'nobody'}){marked(words)}:", item)]


class UsageQuestion(Question, frozen=True, kw_only=True, forbid_unknown_fields=True):
    by: Literal["day", "week", "month", "project", "session", "model", "origin"] = "day"
    since: Annotated[str | None, Meta(description="Only from this time on, such as '7 days ago'")] = None
    until: str | None = None
    session: str | None = None
    project: str | None = None
    model: Annotated[str | None, Meta(description="A name, or a pattern such as claude-*")] = None


class UsageItem(EntryItem, frozen=True, kw_only=True, omit_defaults=True):
    key: str
    responses: int
    total_tokens: int
    input_tokens: int
    cached_tokens: int
    cache_write_tokens: int
    output_tokens: int
    cost_microdollars: int | None = None


def usage(ledger: Ledger, asked: UsageQuestion, budget: int) -> ToolAnswer:
    chosen = {
        field: value
        for field in ("since", "until", "session", "project", "model")
        if (value := getattr(asked, field)) is not None
    }
    report = ledger.usage.report(asked.by, **chosen)
    units = [Unit(row.key, partial(_usage_entries, name(row.key), row)) for row in report.rows]
    total = _usage_entries("all of it", report.total)[0].head
    return answer(asked.place(), listed(units), budget=budget, notes=(total,))


def _usage_entries(key: str, spent: Any) -> list[Entry]:
    item = UsageItem(
        key=key,
        responses=spent.responses,
        total_tokens=spent.total,
        input_tokens=spent.input,
        cached_tokens=spent.cached,
        cache_write_tokens=spent.cache_write,
        output_tokens=spent.output,
        cost_microdollars=spent.cost,
    )
    cost = "no price known" if spent.cost is None else f"${spent.cost / 1e6:,.4f}"
    return [
        Entry(
            f"{key}: {spent.total:,} tokens ({spent.input:,} in, {spent.cached:,} cached, {spent.output:,} out),"
            f" {spent.responses:,} responses, {cost}",
            item,
        )
    ]


class FilesQuestion(Question, frozen=True, kw_only=True, forbid_unknown_fields=True):
    path: Annotated[Text, Meta(description="A whole path, or the end of one such as src/parser.py")]
    kind: Literal["read", "written", "referenced", "attached"] | None = None


class FileItem(EntryItem, frozen=True, kw_only=True, omit_defaults=True):
    turn_id: str
    kind: str
    path: str
    lines: str = ""
    touched_at: str = ""
    vouched_by: tuple[str, ...] = ()


def files(ledger: Ledger, asked: FilesQuestion, budget: int) -> ToolAnswer:
    touches = [touch for touch in ledger.files(asked.path) if asked.kind in (None, touch.kind)]
    origins = TurnOrigins(ledger)
    units = [
        Unit(
            f"{touch.turn_id}:{touch.message_id}:{touch.kind}:{touch.full_path}", partial(_file_entries, touch, origins)
        )
        for touch in touches
    ]
    pin = f"{len(units)}:{units[0].key}" if units else ""
    notes = (f"{len(units):,} notes of {name(asked.path)}, the newest first.",)
    return answer(asked.place(sha256(pin.encode()).hexdigest()[:12]), listed(units), budget=budget, notes=notes)


def _file_entries(touch: Any, origins: TurnOrigins) -> list[Entry]:
    vouchers = origins.of(touch.turn_id)
    lines = "" if touch.line_start is None else f"{touch.line_start}-{touch.line_end or ''}".rstrip("-")
    item = FileItem(
        turn_id=touch.turn_id,
        kind=touch.kind,
        path=name(touch.full_path),
        lines=lines,
        touched_at=moment(touch.touched_at, is_known=touch.time_known),
        vouched_by=vouchers,
    )
    at_lines = f" · lines {lines}" if lines else ""
    return [
        Entry(f"turn {item.turn_id} · {item.touched_at} · {item.kind} {item.path}{at_lines}{marked(vouchers)}", item)
    ]


class BlameQuestion(Question, frozen=True, kw_only=True, forbid_unknown_fields=True):
    path: Annotated[Text, Meta(description="A whole path, or the end of one such as src/parser.py")]
    text: Annotated[
        str | None,
        Meta(description="The lines to ask about, as the file has them now. Default: what the recorded edits leave"),
    ] = None


class BlameItem(EntryItem, frozen=True, kw_only=True, omit_defaults=True):
    line: int
    turn_id: str = ""
    started_at: str = ""
    vouched_by: tuple[str, ...] = ()


def blame(ledger: Ledger, asked: BlameQuestion, budget: int) -> ToolAnswer:
    blamed = blame_file(ledger, asked.path, asked.text)
    if blamed is None:
        raise NotFound("recorded text of", asked.path, "its recorded edits do not give its whole text: give text")
    origins = TurnOrigins(ledger)
    found = zip(blamed.lines, blamed.blame.lines, strict=True)
    units = [
        Unit(f"{number}:{edit.turn.id if edit else ''}", partial(_blame_entries, number, line, edit, origins))
        for number, (line, edit) in enumerate(found, 1)
    ]
    pin = sha256("\n".join(unit.key for unit in units).encode()).hexdigest()[:12]
    unplaced = dict.fromkeys(edit.turn.id for edit in blamed.blame.unplaced)
    notes = (f"Edits of {', '.join(list(unplaced)[:5])} are not found any more.",) if unplaced else ()
    return answer(asked.place(pin), listed(units), budget=budget, notes=notes)


def _blame_entries(number: int, line: str, edit: Any, origins: TurnOrigins) -> list[Entry]:
    if edit is None:
        return [Entry(f"{number}. no turn is known to have written it", BlameItem(line=number, text=harmless(line)))]
    turn = edit.turn
    vouchers = origins.of(turn.id)
    item = BlameItem(
        line=number,
        turn_id=turn.id,
        started_at=moment(turn.started_at, is_known=turn.time_known),
        vouched_by=vouchers,
        text=harmless(line),
    )
    return [Entry(f"{number}. turn {turn.id} · {item.started_at}{marked(vouchers)}", item)]


class RoomsQuestion(Question, frozen=True, kw_only=True, forbid_unknown_fields=True):
    room: Annotated[
        str | None, Meta(description="Its id or title: what was said there, the newest first. Default: list the rooms")
    ] = None


class RoomsItem(EntryItem, frozen=True, kw_only=True, omit_defaults=True):
    kind: Literal["room", "message"]
    room: str
    position: int = 0
    author: str = ""
    author_kind: str = ""
    at: str = ""
    status: str = ""


def rooms(ledger: Ledger, asked: RoomsQuestion, budget: int) -> ToolAnswer:
    if asked.room is None:
        units = [Unit(room.id, partial(_room_entries, room)) for room in ledger.rooms.list(status=None, limit=1000)]
        return answer(asked.place(), listed(units), budget=budget, notes=() if units else ("There are no rooms.",))
    room = ledger.rooms.get(asked.room)

    def source(page: str | None, limit: int) -> tuple[Sequence[Unit], str | None]:
        said = ledger.rooms.messages(room.id, before=None if page is None else number_of(page), limit=limit)
        units = [Unit(one.id, partial(_said_entries, one)) for one in reversed(said)]
        return units, str(said[0].position) if len(said) == limit and said[0].position > 1 else None

    notes = (f"The room {name(room.title) or room.id}, the newest message first.",)
    return answer(asked.place(), source, budget=budget, notes=notes)


def _room_entries(room: Any) -> list[Entry]:
    at = moment(room.last_message_time, is_known=room.last_message_time is not None)
    item = RoomsItem(
        kind="room", room=room.id, position=room.position, at=at, status=room.status, text=name(room.title)
    )
    return [Entry(f"room {room.id} · {room.status} · {room.position} messages · last {at}", item)]


def _said_entries(message: Any) -> list[Entry]:
    item = RoomsItem(
        kind="message",
        room=message.conversation_id,
        position=message.position,
        author=name(message.author_name),
        author_kind=name(message.author_kind),
        at=moment(message.posted_at),
        text=harmless(message.text),
    )
    return [Entry(f"{message.position}. {item.author_kind} {item.author or 'a notice'} · {item.at}:", item)]


class DecisionsQuestion(Question, frozen=True, kw_only=True, forbid_unknown_fields=True):
    about: Annotated[Text, Meta(description="Words of what was decided, such as 'retry backoff'")]
    session: str | None = None
    since: Annotated[str | None, Meta(description="Only from this time on, such as '2 weeks ago'")] = None
    project: str | None = None


class DecisionItem(EntryItem, frozen=True, kw_only=True, omit_defaults=True):
    kind: Literal["turn", "asked", "found", "answered"]
    turn_id: str
    session: str = ""
    started_at: str = ""
    place: str = ""
    vouched_by: tuple[str, ...] = ()


MOST_RANKED = 100
LONGEST_EXCERPT = 1200


def decisions(ledger: Ledger, asked: DecisionsQuestion, budget: int) -> ToolAnswer:
    filters = {
        field: value for field in ("session", "since", "project") if (value := getattr(asked, field)) is not None
    }
    found: dict[str, list[Any]] = {}
    for hit in _best_hits(ledger, asked.about, filters):
        found.setdefault(hit.turn_id, []).append(hit)
    notes = (f"Turns that hold all of these words: {name(asked.about)}. Read one with read_thread, at its id.",)
    if not found and not filters:
        related = ledger.related_turns(asked.about).turns
        alike = sorted((turn for turn in related if turn.said), key=lambda turn: -len(turn.said))
        found = {turn.turn_id: [] for turn in alike[:MOST_RANKED]}
        notes = ("Nothing holds all of these words. These turns share some of them, those with most first.",)
    if not found:
        notes = ("Nothing was found: try fewer words, or a beginning such as conf*.",)
    origins = TurnOrigins(ledger)
    units = [Unit(turn, partial(_decision_entries, ledger, turn, hits, origins)) for turn, hits in found.items()]
    return answer(asked.place(), listed(units), budget=budget, notes=notes)


def _best_hits(ledger: Ledger, words: str, filters: dict[str, Any]) -> Page[Any]:
    """The best first, where the caller may read everything: the engine ranks by the words of all. Else the newest."""
    try:
        return ledger.search(words, limit=MOST_RANKED, rank=True, **filters)
    except NotAllowed:
        return ledger.search(words, limit=MOST_RANKED, **filters)


def _decision_entries(ledger: Ledger, turn_id: str, hits: Sequence[Any], origins: TurnOrigins) -> list[Entry]:
    turn, vouchers = ledger.turn(turn_id), origins.of(turn_id)
    started = moment(turn.started_at, is_known=turn.time_known)
    session = next((name(hit.session) for hit in hits if hit.session), "")
    in_session = f" · session {session}" if session else ""
    told = partial(DecisionItem, turn_id=turn.id, vouched_by=vouchers)
    head = f"=== turn {turn.id}{in_session} · {started}{marked(vouchers)}"
    entries = [Entry(head, told(kind="turn", session=session, started_at=started))]
    messages = ledger.messages(turn_id)
    asked = next((message for message in messages if message.role == "user"), None)
    answered = next((message for message in reversed(messages) if message.role == "assistant" and message.text), None)
    if asked is not None:
        entries.append(Entry("asked:", told(kind="asked", text=excerpt(asked.text))))
    for hit in hits[:3]:
        if hit.message_id not in ((asked and asked.id), (answered and answered.id)):
            place = f"{hit.place} of {name(hit.tool)}" if hit.tool else hit.place
            entries.append(Entry(f"found in {place}:", told(kind="found", place=place, text=harmless(hit.snippet))))
    if answered is not None:
        entries.append(Entry("answered:", told(kind="answered", text=excerpt(answered.text))))
    return entries


def excerpt(text: str) -> str:
    """The beginning of a long text; read_thread gives all of it."""
    shown = harmless(text[: LONGEST_EXCERPT + 1])
    left = len(text) - LONGEST_EXCERPT
    return shown if left <= 0 else f"{shown[:LONGEST_EXCERPT]}… [{left:,} more]"


# --- The tools that write.


class ForkRequest(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    at: Annotated[Text, Meta(description=TURN_NAME)]
    label: Annotated[Text, Meta(description="The name of the new session")]


class ForkItem(EntryItem, frozen=True, kw_only=True, omit_defaults=True):
    session: str
    session_id: str
    head: str | None = None


def fork(ledger: Ledger, asked: ForkRequest, budget: int) -> ToolAnswer:
    made = ledger.fork(asked.at, label=asked.label)
    item = ForkItem(session=name(made.label), session_id=made.id, head=made.head)
    return ToolAnswer([Entry(f"session {item.session} stands at turn {item.head}; no files were touched", item)])


class SendRequest(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    text: Annotated[Text, Meta(description="The message")]
    session: Annotated[str | None, Meta(description="The session that it goes to; made if there is none")] = None
    thread: Annotated[str | None, Meta(description="Or the turn that it goes on from, in a fork if need be")] = None
    agent: Annotated[str | None, Meta(description="Or the agent that it is for, where it works")] = None
    model: str | None = None
    key: Annotated[str | None, Meta(description="With a key of your own, a repeated call is answered once")] = None


class SendItem(EntryItem, frozen=True, kw_only=True, omit_defaults=True):
    turn_id: str
    session: str
    model: str = ""
    total_tokens: int = 0


async def send(ledger: AsyncOpenLedger, asked: SendRequest, budget: int) -> ToolAnswer:
    """A call that is cancelled has the turn cut short."""
    if sum(target is not None for target in (asked.session, asked.thread, asked.agent)) != 1:
        raise InvalidInput("a message has one target", "give session, thread or agent, and only one of them")
    await _ensure_readable_target(ledger, asked)
    sent = await ledger.send(
        asked.text, session=asked.session, thread=asked.thread, agent=asked.agent, model=asked.model, key=asked.key
    )
    text = harmless(sent.text)
    item = SendItem(
        turn_id=sent.id,
        session=name(sent.session),
        model=name(sent.model),
        total_tokens=sent.usage.total_tokens or 0,
        text=text,
    )
    entry = Entry(f"turn {sent.id} · session {item.session} · answered by {item.model}", item)
    piece = fitting(entry, 0, budget - LEAST_BYTES // 2, is_first=True) or entry
    if not piece.item.text_left:
        return ToolAnswer([piece])
    return ToolAnswer(
        [piece], None, (f"The answer is longer than fits: read_thread with at={sent.id} gives all of it.",)
    )


async def _ensure_readable_target(ledger: AsyncOpenLedger, asked: SendRequest) -> None:
    """An answer tells what its session holds: whoever may not read everything sends only to what they can read."""
    try:
        await ledger.newest()
    except NotAllowed:
        if asked.agent is not None:
            hint = "name a session or a turn that you can read"
            raise InvalidInput("the rights of this server leave no session of an agent", hint) from None
        await ledger.resolve(asked.session or asked.thread or "")


# --- All of them.


class ServedTool(Struct, frozen=True):
    """A tool by its name. `run` is called in a thread of the open ledger, `awaited` in the event loop."""

    name: str
    about: str
    arguments: type[Struct]
    items: type[EntryItem]
    run: Callable[[Ledger, Any, int], ToolAnswer] | None = None
    awaited: Callable[[AsyncOpenLedger, Any, int], Awaitable[ToolAnswer]] | None = None
    is_writing: bool = False
    reaches_out: bool = False

    @property
    def input_schema(self) -> dict[str, Any]:
        (schema,), definitions = msgspec.json.schema_components([self.arguments], ref_template="#/$defs/{name}")
        own: dict[str, Any] = definitions.pop(schema["$ref"].rpartition("/")[2])
        return {key: value for key, value in own.items() if key != "title"} | (
            {"$defs": definitions} if definitions else {}
        )

    @property
    def output_schema(self) -> dict[str, Any]:
        (schema,), definitions = msgspec.json.schema_components([self.items], ref_template="#/$defs/{name}")
        properties = {
            "items": {"type": "array", "items": schema},
            "next": {"type": "string", "description": "The cursor of what comes behind this answer"},
            "notes": {"type": "array", "items": {"type": "string"}},
        }
        return {"type": "object", "properties": properties, "required": ["items"], "$defs": definitions}


TOOLS: dict[str, ServedTool] = {
    tool.name: tool
    for tool in (
        ServedTool(
            "sessions",
            "List sessions, the latest first, with their labels and where they stand.",
            SessionsQuestion,
            SessionItem,
            sessions,
        ),
        ServedTool(
            "search",
            "Find messages and tool calls of earlier sessions by their words, the newest first.",
            SearchQuestion,
            SearchItem,
            search,
        ),
        ServedTool(
            "read_thread",
            "Read a session, or the thread that ends at a turn: what was asked, done and answered, the"
            " newest turn first.",
            ThreadQuestion,
            ThreadItem,
            read_thread,
        ),
        ServedTool(
            "show_context",
            "Show what an agent saw at a turn, message by message, with who vouches for each.",
            ContextQuestion,
            ContextItem,
            show_context,
        ),
        ServedTool(
            "decisions",
            "What was decided about something: the turns that speak of it, each with what was asked and"
            " answered, quoted with its id.",
            DecisionsQuestion,
            DecisionItem,
            decisions,
        ),
        ServedTool(
            "files", "List the turns that read or wrote a file, the newest first.", FilesQuestion, FileItem, files
        ),
        ServedTool("blame", "Tell which turn last wrote each line of a file.", BlameQuestion, BlameItem, blame),
        ServedTool(
            "usage",
            "Tokens and cost, by day, week, month, project, session, model or origin.",
            UsageQuestion,
            UsageItem,
            usage,
        ),
        ServedTool(
            "rooms", "List the rooms in which people and agents talk, or read one.", RoomsQuestion, RoomsItem, rooms
        ),
        ServedTool(
            "fork",
            "Make a session that goes on from a turn. No files are touched.",
            ForkRequest,
            ForkItem,
            fork,
            is_writing=True,
        ),
        ServedTool(
            "send",
            "Send a message to a session or an agent of Weft, and wait for the answer of its model.",
            SendRequest,
            SendItem,
            awaited=send,
            is_writing=True,
            reaches_out=True,
        ),
    )
}
WRITING = tuple(tool.name for tool in TOOLS.values() if tool.is_writing)


def taken_arguments(tool: ServedTool, given: dict[str, Any] | None) -> Any:
    """The arguments of a call. Raises InvalidInput, which says what the tool takes."""
    try:
        return msgspec.convert(given or {}, tool.arguments)
    except msgspec.ValidationError as error:
        fields = msgspec.structs.fields(tool.arguments)
        takes = ", ".join(f"{field.name} (required)" if field.required else field.name for field in fields)
        raise InvalidInput(f"{tool.name}: {harmless(str(error))}", f"it takes {takes}") from None


def offered_tools(named: Iterable[str]) -> list[ServedTool]:
    """The tools that are offered where these of the writing ones were named."""
    names = set(named)
    return [tool for tool in TOOLS.values() if not tool.is_writing or tool.name in names]
