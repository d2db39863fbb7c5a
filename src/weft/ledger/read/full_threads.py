"""Several threads or trees in full, each turn once, with messages, calls and branches; and a
turn as people read it: what was said, and between it groups of steps that were taken.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from enum import Enum, auto
from itertools import islice
from types import MappingProxyType
from typing import Any, NamedTuple

from msgspec import UNSET, Struct
from msgspec.structs import replace

from weft.kernel.enums import TurnType
from weft.kernel.errors import Action, Damaged
from weft.kernel.events import ModelRequest, ModelResponse, Usage
from weft.kernel.ledger_events import CompactionRecorded
from weft.ledger.model import (
    Compaction,
    FileNote,
    Message,
    Part,
    ReasoningPart,
    TextPart,
    ToolCall,
    ToolResultPart,
    ToolUsePart,
    Turn,
)
from weft.ledger.read.contexts import load_compaction
from weft.ledger.read.revisions import Revision
from weft.ledger.read.session_list import first_line, load_files, load_subjects
from weft.ledger.read.turns import SegmentRange, WholeTurn, in_their_thread, ranges_to, read_leaves, to_turns, turns_in
from weft.ledger.views.rows import TOKENS, TurnRow, name_of, run_events
from weft.store.port import ReadTxn, Store
from weft.store.sql import Sql, rows_in

# --- Which turns several threads or trees consist of, each once, and those turns in full: messages, calls, branches.

ALL = 2**53
"""More events than a turn has."""


class TurnRange(Struct, frozen=True, kw_only=True):
    """Consecutive turns of one segment, and where they leave the strand before them."""

    number: int
    """Its place among the strands that are told together."""
    segment: int
    low: int
    high: int
    events: int | None
    """How many events of its last turn belong to it; null: all."""
    first: str
    """The id of its first turn."""
    last: str
    parent: int | None = None
    """The number of the strand that it leaves; null: it begins a tree."""
    leaves: str | None = None
    """The turn after which it leaves."""
    leaves_at: int | None = None
    after_events: int | None = None
    """How many events of that turn belong to its thread; null: all."""
    link: str | None = None
    """Why it goes on from another chain, which it only names."""

    @property
    def count(self) -> int:
        return self.high - self.low + 1


def strands_to(sql: Sql, spots: Iterable[Revision], *, trees: bool) -> tuple[TurnRange, ...]:
    """The threads that end at these spots; with `trees`, everything that shares a root with them."""
    reach: dict[int, SegmentRange] = {}
    above: dict[int, SegmentRange] = {}
    roots: dict[int, None] = {}
    for spot in spots:
        ranges = ranges_to(sql, spot.turn.segment, spot.turn.depth, spot.events, across=True)
        for i, part in enumerate(ranges):
            _extend_reach(reach, part)
            if i:
                above[part.segment] = ranges[i - 1]
        roots[spot.turn.root] = None
    for root in roots if trees else ():
        _add_tree(sql, root, reach, above)
    return tuple(_numbered_ranges(sql, reach, above))


def _extend_reach(reach: dict[int, SegmentRange], part: SegmentRange) -> None:
    """Of two ends of one segment the further one."""
    known = reach.get(part.segment)
    if known is None or (part.high, part.events or ALL) > (known.high, known.events or ALL):
        reach[part.segment] = part


def _add_tree(sql: Sql, root: int, reach: dict[int, SegmentRange], above: dict[int, SegmentRange]) -> None:
    """Every segment of a tree as far as its turns are current, or as current ones go on from them."""
    rows = sql.fetch_rows(
        "SELECT s.n, s.base, s.parent, s.parent_depth, s.parent_events,"
        " (SELECT max(t.depth) FROM turn t WHERE t.segment = s.n AND t.current = 1)"
        " FROM segment s WHERE s.root = ? ORDER BY s.n DESC",
        (root,),
    )
    needed: dict[int, int] = {}
    for n, base, parent, parent_depth, parent_events, current in rows:
        high = max(current or 0, needed.get(n, 0))
        if not high and n not in reach:
            continue
        _extend_reach(reach, SegmentRange(n, base, high, None))
        if parent is not None:
            needed[parent] = max(needed.get(parent, 0), parent_depth)
            above.setdefault(n, SegmentRange(parent, 0, parent_depth, parent_events))


def _numbered_ranges(sql: Sql, reach: dict[int, SegmentRange], above: dict[int, SegmentRange]) -> Iterator[TurnRange]:
    """Each strand followed by those that leave it, the latest first: a thread's end comes right after its beginning."""
    below: dict[int | None, list[int]] = {}
    for segment in reach:
        below.setdefault(above[segment].segment if segment in above else None, []).append(segment)
    for segments in below.values():
        segments.sort(key=lambda n: (above[n].high if n in above else 0, -n))
    numbers: dict[int, int] = {}
    waiting = below.get(None, [])
    while len(numbers) < len(reach):
        if not waiting:  # chains that name each other as where they go on from: one of them must begin
            waiting.append(next(segment for segment in reach if segment not in numbers))
            above.pop(waiting[0], None)
        segment = waiting.pop()
        if segment not in numbers:
            numbers[segment] = len(numbers)
            yield _turn_range(sql, reach[segment], above.get(segment), numbers)
            waiting += below.get(segment, [])


def _turn_range(sql: Sql, part: SegmentRange, before: SegmentRange | None, numbers: dict[int, int]) -> TurnRange:
    first, last = (_turn_at(sql, part.segment, depth) for depth in (part.low, part.high))
    leaves = None if before is None else _turn_at(sql, before.segment, before.high)
    why = sql.fetch_row("SELECT why FROM link WHERE child = ? AND parent = ? AND why <> 'subagent'", (first, leaves))
    return TurnRange(
        number=numbers[part.segment],
        segment=part.segment,
        low=part.low,
        high=part.high,
        events=part.events,
        first=first,
        last=last,
        parent=None if before is None else numbers[before.segment],
        leaves=leaves,
        leaves_at=None if before is None else before.high,
        after_events=None if before is None else before.events,
        link=None if why is None else str(why[0]),
    )


def _turn_at(sql: Sql, segment: int, depth: int) -> str:
    row = sql.fetch_row("SELECT id FROM turn WHERE segment = ? AND depth = ?", (segment, depth))
    if row is None:
        raise Damaged(f"segment {segment} has no turn at depth {depth}", Action.VERIFY_AND_REBUILD)
    return str(row[0])


AT_ONCE = 32
LINES_AT_ONCE = 500
Item = Message | ToolCall


class BranchPoint(Struct, frozen=True, kw_only=True):
    """A turn that goes on from a turn that is told, but not next to it."""

    turn_id: str
    session: str | None
    """The label of the session that made it."""
    subject: str
    after_events: int | None = None
    """How many events of the turn belong to its thread; null: all."""
    link: str | None = None
    """Why, where it only names the turn that it goes on from."""
    strand: int | None = None
    """The strand that begins with it, where it is told too."""


class MessageReply(Struct, frozen=True, kw_only=True):
    """What is known of the model's answer that brought a message."""

    provider: str | None = None
    usage: Usage | None = None
    request_id: str | None = None
    latency_ms: int | None = None


class FullTurn(Struct, frozen=True, kw_only=True):
    """A turn with its messages and tool calls in the order of their events."""

    turn: Turn
    items: tuple[Item, ...]
    positions: tuple[int, ...] = ()
    """Which event of the turn brought each item."""
    shown: int | None = None
    """Only so many of its events are told; null: all."""
    session: str | None = None
    """The label of the session that made it."""
    summary: Compaction | None = None
    branches: tuple[BranchPoint, ...] = ()
    replies: Mapping[str, MessageReply] = MappingProxyType({})
    """By message."""
    files: Mapping[str, list[FileNote]] = MappingProxyType({})
    """What each message notes of files."""


class TurnLine(Struct, frozen=True, kw_only=True):
    """A turn in a list of contents."""

    turn_id: str
    depth: int
    session: str | None
    """The label of the session that made it."""
    subject: str
    """What was asked; empty where nothing was."""
    is_prompted: bool
    """Did a person ask? Else an agent, a tool or a schedule did, or nobody."""
    is_compaction: bool = False


class ThreadsSpan(Struct, frozen=True, kw_only=True):
    """When the turns of several threads were made, and in which sessions."""

    started_at: int | None
    """Null: no turn has a time of its own."""
    ended_at: int | None
    session_ids: frozenset[str]


class FullThreads:
    """Strands of turns, told one after the other; parents before children."""

    def __init__(self, store: Store, strands: tuple[TurnRange, ...], *, requests: bool = False) -> None:
        self._store, self._strands, self._requests = store, strands, requests
        self._begins = {strand.first: strand.number for strand in strands}

    @property
    def strands(self) -> tuple[TurnRange, ...]:
        return self._strands

    @property
    def turns(self) -> Iterator[FullTurn]:
        """All of them, strand by strand."""
        for strand in self._strands:
            yield from self.turns_of(strand)

    def lines_of(self, strand: TurnRange) -> Iterator[TurnLine]:
        """A line about each turn of a strand, in order."""
        for low in range(strand.low, strand.high + 1, LINES_AT_ONCE):
            part = SegmentRange(strand.segment, low, min(low + LINES_AT_ONCE - 1, strand.high), None)
            with self._store.read() as txn:
                rows = list(turns_in(txn.sql, part))
                numbers = {row.session for row in rows if row.session is not None}
                labels: dict[int | None, str] = dict(
                    rows_in(txn.sql, "SELECT n, label FROM session WHERE n IN", sorted(numbers))
                )
                subjects = load_subjects(txn, [row.id for row in rows])
                prompted = _prompted_turns(txn.sql, [row.n for row in rows])
            for row in rows:
                yield TurnLine(
                    turn_id=row.id,
                    depth=row.depth,
                    session=labels.get(row.session),
                    subject=subjects.get(row.id, ""),
                    is_prompted=row.n in prompted,
                    is_compaction=row.type == TurnType.COMPACTION,
                )

    def span(self) -> ThreadsSpan:
        """Over all strands."""
        spans, sessions = list[Any](), set[str]()
        with self._store.read() as txn:
            for strand in self._strands:
                place = (strand.segment, strand.low, strand.high)
                inside = "t.segment = ? AND t.depth BETWEEN ? AND ?"
                spans += txn.sql.fetch_rows(
                    "SELECT min(t.started_at), max(coalesce(t.completed_at, t.started_at)) FROM turn t"
                    f" WHERE {inside} AND coalesce(t.synthesised, 0) = 0",
                    place,
                )
                sessions |= {
                    str(id)
                    for (id,) in txn.sql.fetch_rows(
                        f"SELECT DISTINCT x.id FROM turn t JOIN session x ON x.n = t.session WHERE {inside}", place
                    )
                }
        return ThreadsSpan(
            started_at=min((start for start, _ in spans if start is not None), default=None),
            ended_at=max((end for _, end in spans if end is not None), default=None),
            session_ids=frozenset(sessions),
        )

    def turns_of(self, strand: TurnRange) -> Iterator[FullTurn]:
        for low in range(strand.low, strand.high + 1, AT_ONCE):
            high = min(low + AT_ONCE - 1, strand.high)
            events = strand.events if high == strand.high else None
            with self._store.read() as txn:
                part = SegmentRange(strand.segment, low, high, events)
                turns = self._read_turns(txn, part, ends=high == strand.high)
            yield from turns

    def _read_turns(self, txn: ReadTxn, part: SegmentRange, *, ends: bool) -> list[FullTurn]:
        rows = list(turns_in(txn.sql, part))
        if len(rows) != part.high - part.low + 1:
            raise Damaged(
                f"segment {part.segment} lacks turns between depths {part.low} and {part.high}",
                Action.VERIFY_AND_REBUILD,
            )
        turns = to_turns(txn, rows, self._store)
        leaves = list(read_leaves(txn, rows, part.events, None, main_only=False))
        labels = _session_labels(txn, (turn.session_id for turn in turns))
        branches = _branch_points(txn, part, rows, self._begins, ends)
        replies = _reply_fields(txn, part)
        messages = [placed.message for leaf in leaves for placed in leaf.messages]
        chained = {message.id: message for message in in_their_thread(txn, messages)}
        files = load_files(txn, chained)
        made = []
        for row, turn, leaf in zip(rows, turns, leaves, strict=True):
            shown = part.events if row is rows[-1] else None
            items = _in_order(leaf)
            made.append(
                FullTurn(
                    turn=turn,
                    items=tuple(chained.get(item.id, item) for _, item in items),
                    positions=tuple(position for position, _ in items),
                    shown=shown,
                    session=labels.get(turn.session_id),
                    summary=_compaction_summary(txn, row, shown),
                    branches=tuple(branches.get(row.depth, ())),
                    replies=_replies_with_requests(txn, row, leaf, replies, look=self._requests),
                    files={item.id: files[item.id] for _, item in items if item.id in files},
                )
            )
        return made


def _prompted_turns(sql: Sql, turns: list[int]) -> set[int]:
    """Those of the turns in which a person says something."""
    statement = (
        "SELECT m.turn FROM message m WHERE m.role = 'user' AND coalesce(m.source, 'human') = 'human' AND m.turn IN"
    )
    return {turn for (turn,) in rows_in(sql, statement, turns)}


def _in_order(leaf: WholeTurn) -> list[tuple[int, Item]]:
    items: list[tuple[int, Item]] = [(placed.position, placed.message) for placed in leaf.messages]
    items += [(row.position, call) for row, call in leaf.calls]
    return sorted(items, key=lambda pair: pair[0])


def _session_labels(txn: ReadTxn, sessions: Iterable[str | None]) -> dict[str | None, str]:
    wanted = [session for session in sessions if session is not None]
    return dict(rows_in(txn.sql, "SELECT id, label FROM session WHERE id IN", wanted))


def _compaction_summary(txn: ReadTxn, row: TurnRow, shown: int | None) -> Compaction | None:
    if row.type != TurnType.COMPACTION:
        return None
    if shown is not None:
        found = (recorded.event for recorded in islice(run_events(txn.facts, row), shown))
        if not any(isinstance(event, CompactionRecorded) for event in found):
            return None
    recorded = txn.sql.fetch_row("SELECT 1 FROM compaction WHERE turn = ?", (row.id,))
    return None if recorded is None else load_compaction(txn, row.id)


class _Leaving(NamedTuple):
    """A turn that goes on from a depth of a range."""

    depth: int
    turn_id: str
    session: str | None
    after_events: int | None = None
    link: str | None = None


def _branch_points(
    txn: ReadTxn, part: SegmentRange, rows: list[TurnRow], begins: Mapping[str, int], ends: bool
) -> dict[int, list[BranchPoint]]:
    """By the depth that they leave at."""
    found = list(_leaving_branches(txn.sql, part, {row.id: row.depth for row in rows}, ends))
    subjects = load_subjects(txn, [leaving.turn_id for leaving in found])
    made: dict[int, list[BranchPoint]] = {}
    for leaving in found:
        branch = BranchPoint(
            turn_id=leaving.turn_id,
            session=leaving.session,
            subject=subjects.get(leaving.turn_id, ""),
            after_events=leaving.after_events,
            link=leaving.link,
            strand=begins.get(leaving.turn_id),
        )
        made.setdefault(leaving.depth, []).append(branch)
    return made


def _leaving_branches(sql: Sql, part: SegmentRange, depths: Mapping[str, int], ends: bool) -> Iterator[_Leaving]:
    """Other segments, chains that name a turn, and what comes after the last turn of a strand."""
    for row in sql.fetch_rows(
        "SELECT s.parent_depth, t.id, x.label, s.parent_events FROM segment s"
        " JOIN turn t ON t.segment = s.n AND t.depth = s.base LEFT JOIN session x ON x.n = t.session"
        " WHERE s.parent = ? AND s.parent_depth BETWEEN ? AND ? AND t.current = 1 ORDER BY s.parent_depth, t.n",
        (part.segment, part.low, part.high),
    ):
        yield _Leaving(*row)
    if ends:
        after = (
            "SELECT t.depth - 1, t.id, x.label FROM turn t LEFT JOIN session x ON x.n = t.session"
            " WHERE t.segment = ? AND t.depth = ? AND t.current = 1"
        )
        yield from (_Leaving(*row) for row in sql.fetch_rows(after, (part.segment, part.high + 1)))
    linked = rows_in(
        sql,
        "SELECT l.parent, t.id, x.label, l.why FROM link l JOIN turn t ON t.id = l.child AND t.current = 1"
        " LEFT JOIN session x ON x.n = t.session WHERE l.parent IN",
        depths,
    )
    for parent, id, label, why in sorted(linked, key=lambda row: (row[0], row[1], row[3])):
        yield _Leaving(depths[parent], id, label, None, why)


def _reply_fields(txn: ReadTxn, part: SegmentRange) -> dict[str, dict[str, Any]]:
    """What views know of the answers in a range, by message."""
    counts = ", ".join(f"m.{count}" for count in TOKENS)
    rows = txn.sql.fetch_rows(
        f"SELECT m.id, m.provider, {counts} FROM turn t JOIN message m ON m.turn = t.n WHERE t.segment = ?"
        f" AND t.depth BETWEEN ? AND ? AND m.role = 'assistant' AND (m.provider IS NOT NULL"
        f" OR coalesce({counts}) IS NOT NULL)",
        (part.segment, part.low, part.high),
    )
    found: dict[str, dict[str, Any]] = {}
    for id, provider, *given in rows:
        tokens = {name: count for name, count in zip(TOKENS, given, strict=True) if count is not None}
        found[id] = {"provider": name_of(txn, provider), "usage": Usage(**tokens) if tokens else None}
    return found


def _replies_with_requests(
    txn: ReadTxn, row: TurnRow, leaf: WholeTurn, known: Mapping[str, dict[str, Any]], *, look: bool
) -> dict[str, MessageReply]:
    """Which request an answer came to and how long it took only the events of the turn tell; imported ones do not."""
    fields_by_message = {placed.message.id: dict(known.get(placed.message.id, {})) for placed in leaf.messages}
    if look and row.origin is None:
        asked: dict[str, ModelRequest] = {}
        for recorded in run_events(txn.facts, row):
            event = recorded.event
            if isinstance(event, ModelRequest):
                asked[event.correlation_id] = event
            elif (
                isinstance(event, ModelResponse) and event.output is not UNSET and event.output.id in fields_by_message
            ):
                fields_by_message[event.output.id] |= _of_response(event, asked.get(event.correlation_id))
    return {message: MessageReply(**fields) for message, fields in fields_by_message.items() if fields}


def _of_response(event: ModelResponse, request: ModelRequest | None) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if event.request_id is not UNSET:
        found["request_id"] = event.request_id
    if event.latency_ms is not UNSET:
        found["latency_ms"] = event.latency_ms
    if request is not None and isinstance(request.provider, str):
        found["provider"] = request.vendor if isinstance(request.vendor, str) else request.provider
    return found


# --- A turn as people read it: what was said, and between it groups of steps that were taken.

LONGEST_REMARK_CHARS = 300
LONGEST_TOOL_NAME_CHARS = 40
TOOLS_NAMED = 4
"""More tools than these are counted together."""


class StepGroup(Struct, frozen=True):
    """Consecutive work of a turn. A message holds only those of its parts that belong here."""

    items: tuple[Item, ...]

    @property
    def tools(self) -> Counter[str]:
        """How often each tool was called; a call in a message counts where no call of the group has its id."""
        calls = [item for item in self.items if isinstance(item, ToolCall)]
        called = {call.call_id for call in calls}
        names = [call.name for call in calls]
        names += [part.name for part in self._all_parts() if isinstance(part, ToolUsePart) and part.id not in called]
        return Counter(names)

    @property
    def failures(self) -> int:
        return sum(isinstance(item, ToolCall) and item.outcome == "error" for item in self.items)

    @property
    def summary(self) -> str:
        """Such as `14 steps: 9 Bash, 2 Edit, 3 others · 1 failed`."""
        tools = self.tools
        steps = tools.total()
        if not steps:
            return "Thinking" if any(isinstance(part, ReasoningPart) for part in self._all_parts()) else "Result"
        if steps == 1:
            line = f"1 step: {_tool_name(*tools)}"
        else:
            named = tools.most_common(TOOLS_NAMED if len(tools) > TOOLS_NAMED + 1 else None)
            words = [f"{count:,} {_tool_name(name)}" for name, count in named]
            if others := steps - sum(count for _, count in named):
                words.append(f"{others:,} others")
            line = f"{steps:,} steps: {', '.join(words)}"
        return f"{line} · {self.failures:,} failed" if self.failures else line

    def hint(self, *, thinking: bool = True) -> str:
        """What the work was about: the first line of the first remark or thinking; empty where there is none."""
        kinds = (TextPart, ReasoningPart) if thinking else (TextPart,)
        texts = (part.text for part in self._all_parts() if isinstance(part, kinds))
        return next((line for text in texts if (line := first_line(str(text)))), "")

    def _all_parts(self) -> Iterator[Part]:
        return (part for item in self.items if isinstance(item, Message) for part in item.content)


def _tool_name(name: str) -> str:
    line = " ".join(name.split()) or "?"
    return line if len(line) <= LONGEST_TOOL_NAME_CHARS else f"{line[:LONGEST_TOOL_NAME_CHARS]}…"


class _PieceKind(Enum):
    SPOKEN = auto()
    """Stands by itself and ends a group."""
    REMARK = auto()
    """Belongs to a group if work follows."""
    ASIDE = auto()
    """Belongs to a group only between other work: notices of a tool, messages that no person sent."""
    WORK = auto()


class _TurnPiece(NamedTuple):
    kind: _PieceKind
    item: Item


def sections(items: Iterable[Item]) -> Iterator[Message | StepGroup]:
    """The messages and groups of steps of a turn, in order. A message that both says and does something comes in
    pieces, each with its own parts; every part of every message is in one of them, except uses of a tool whose call is
    an item, and messages of no parts, which say nothing."""
    items = tuple(items)
    called = {item.call_id for item in items if isinstance(item, ToolCall)}
    run: list[_TurnPiece] = []
    for piece in (piece for item in items for piece in _pieces_of(item, called)):
        if piece.kind is _PieceKind.SPOKEN:
            yield from _group_steps(run)
            run = []
            yield _message_of(piece)
        else:
            run.append(piece)
    yield from _group_steps(run)


def _message_of(piece: _TurnPiece) -> Message:
    assert isinstance(piece.item, Message)
    return piece.item


def _group_steps(run: list[_TurnPiece]) -> Iterator[Message | StepGroup]:
    """A run without its ends: asides before it, and words after it, stand by themselves."""
    work = [at for at, piece in enumerate(run) if piece.kind is _PieceKind.WORK]
    if not work:
        yield from map(_message_of, run)
        return
    start, end = work[0], work[-1] + 1
    while start and run[start - 1].kind is _PieceKind.REMARK:
        start -= 1
    yield from map(_message_of, run[:start])
    yield StepGroup(tuple(piece.item for piece in run[start:end]))
    yield from map(_message_of, run[end:])


def _pieces_of(item: Item, called: set[str]) -> Iterator[_TurnPiece]:
    """A message cut where its parts change from words to work or back."""
    if isinstance(item, ToolCall):
        yield _TurnPiece(_PieceKind.WORK, item)
        return
    parts = [part for part in item.content if not (isinstance(part, ToolUsePart) and part.id in called)]
    start = 0
    kinds = [_kind_of_part(item, part) for part in parts]
    for end in range(1, len(parts) + 1):
        if end == len(parts) or kinds[end] is not kinds[start]:
            whole = end - start == len(item.content)
            yield _TurnPiece(kinds[start], item if whole else replace(item, content=tuple(parts[start:end])))
            start = end


def _kind_of_part(message: Message, part: Part) -> _PieceKind:
    if isinstance(part, ToolUsePart | ToolResultPart | ReasoningPart) or message.role == "tool":
        return _PieceKind.WORK
    if message.role == "assistant":
        return _PieceKind.REMARK if isinstance(part, TextPart) and _is_remark(str(part.text)) else _PieceKind.SPOKEN
    return _PieceKind.SPOKEN if message.role == "user" and not is_from_tool(message) else _PieceKind.ASIDE


def _is_remark(text: str) -> bool:
    """One paragraph of a few lines."""
    text = text[: LONGEST_REMARK_CHARS + 1].strip()
    return len(text) <= LONGEST_REMARK_CHARS and "\n\n" not in text


def is_from_tool(message: Message) -> bool:
    """Was it put into the user's place by the tool itself, rather than sent by a person, an agent or a schedule?"""
    return message.source in ("event", "trigger")
