"""Who uses which content, read out of the log, since no view knows it; what an erasure is asked
for, and which contents that means; and tombstones: who erased what, when and why.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from operator import itemgetter
from types import MappingProxyType
from typing import Any

from msgspec import UNSET, Struct, field

from weft.kernel.clock import is_ulid
from weft.kernel.errors import InvalidInput, NotApplicable, NotFound
from weft.kernel.events import Event, MessagePosted, ToolResult, UnknownEvent, event_id
from weft.kernel.foreign_input import is_digest, strings
from weft.kernel.ledger_events import (
    AgentCreated,
    AliasAdded,
    ContentErased,
    NodeTagged,
    NodeUntagged,
    SessionCreated,
    SessionRenamed,
)
from weft.kernel.program_events import Created
from weft.ledger.arguments import checked_names
from weft.ledger.read.access import READ_LEDGER, access_of
from weft.ledger.read.revisions import Revision, session_beside_turns
from weft.ledger.read.sessions import agent_names
from weft.ledger.read.turns import ranges_to
from weft.ledger.views.rows import SESSION, TURN, SessionRow, TurnRow, crossings, decoded, stream_of, text_of
from weft.store.fact_log import FactReader
from weft.store.port import ReadTxn
from weft.store.replicas import authored_event
from weft.store.sql import Row, Sql, rows_in

# --- Who uses which content: read out of the log, since no view knows it.

Report = Callable[[str, int, int], None]
About = tuple[str | None, str | None]
KEPT_USES = 16
"""So many places are remembered of one content; of a system prompt there may be thousands."""
FEW = 16
"""So many streams or references are looked for one by one, in whole rows of the log; of more every line is looked
at."""
_NAMES: dict[type, str] = {
    SessionCreated: "$.label",
    SessionRenamed: "$.label",
    AliasAdded: "$.alias",
    AgentCreated: "$.name",
    **dict.fromkeys(Created.__subclasses__(), "$.name"),
    NodeTagged: "$.tags",
    NodeUntagged: "$.tags",
}
_hex = re.compile(rb"[0-9a-f]{64}").findall


class TaggedNodes(Struct, frozen=True):
    """What has tags now, and what of it, or else, is named, with the turn or session that it belongs to."""

    all: frozenset[str] = frozenset()
    named: Mapping[str, About] = MappingProxyType({})


NO_TAGS = TaggedNodes()


class ContentUse(Struct, frozen=True, gc=False):
    """One event that refers to a content, and where in it."""

    n: int
    kind: str
    path: str
    stream: str


class ContentUses(Struct):
    """What was found, by reference."""

    inside: dict[bytes, list[ContentUse]] = field(default_factory=dict)
    outside: dict[bytes, list[ContentUse]] = field(default_factory=dict)
    about: dict[bytes, About] = field(default_factory=dict)
    """The turn or session that a reference was found in first."""
    everywhere: frozenset[bytes] | None = frozenset()
    """Contents that go wherever they are used; None: all of them."""
    reached: set[str] = field(default_factory=set)
    """Streams outside that use one of those."""
    tags: dict[str, dict[bytes, None]] = field(default_factory=dict)
    """References of the tags of these nodes, by node."""
    names: set[bytes] = field(default_factory=set)
    """References of labels, aliases, programs' names and tags, which views hold as words."""

    def of(self, ref: bytes) -> Iterator[ContentUse]:
        """Wherever it was found."""
        yield from self.inside.get(ref, ())
        yield from self.outside.get(ref, ())


def references(event: Event | UnknownEvent) -> Iterator[tuple[str, str]]:
    """Every reference in an event with its place; of an event of a later form, everything that could be one."""
    if isinstance(event, UnknownEvent):
        yield from _digests_in(event.fields, "$")
        return
    for path, text, kinds in strings(event):
        if "content" in kinds:
            yield path, text


def _digests_in(value: Any, path: str) -> Iterator[tuple[str, str]]:
    if isinstance(value, dict):
        for name, each in value.items():
            if name != "prev":
                yield from _digests_in(each, f"{path}.{name}")
    elif isinstance(value, list):
        for i, each in enumerate(value):
            yield from _digests_in(each, f"{path}[{i}]")
    elif isinstance(value, str) and is_digest(value):
        yield path, value


def find_uses(
    facts: FactReader,
    streams: dict[str, About],
    contents: Iterable[bytes],
    everywhere: bool,
    report: Report,
    tagged: TaggedNodes = NO_TAGS,
    events: Mapping[int, About] = MappingProxyType({}),
) -> ContentUses:
    """The contents that these streams and these events, by their arrival numbers, name, and these contents, with
    everybody else who uses them. Tags of what is named, and of the events of turns, lie in the ledger's own stream and
    count as named by them."""
    until = facts.tip().n
    uses = ContentUses(inside={ref: [] for ref in contents})
    uses.everywhere = None if everywhere else frozenset(uses.inside)
    own = _events_of_streams(facts, streams, events, tagged, uses, until, report) if streams or events else set()
    wanted = {ref.hex().encode() for ref in uses.inside}
    for row in facts.rows():
        if row.first > until:
            break
        if _names_any(row.events, wanted):
            for n, line in enumerate(row.lines(), row.first):
                if n not in own and n <= until and not wanted.isdisjoint(_hex(line)):
                    _note_outside(uses, n, line)
        report("who uses it", row.n, until)
    return uses


def _names_any(events: bytes, refs: set[bytes]) -> bool:
    """Whether one of these references, as digits, stands somewhere in these lines. Few are looked for one by one."""
    if len(refs) <= FEW:
        return any(ref in events for ref in refs)
    return not refs.isdisjoint(_hex(events))


def _may_hold(events: bytes, endings: list[bytes] | None, tagged: TaggedNodes, has_turns: bool) -> bool:
    """Whether one of these events, a row of the log, may be what `_events_of_streams` looks for: of a stream whose
    name ends so, a tag, or a late result. With None it always may."""
    if endings is None or any(ending in events for ending in endings):
        return True
    if b'"stream":"ledger:' not in events:
        return False
    return (bool(tagged.all) and b'"kind":"node_' in events) or (has_turns and b'"kind":"tool_result"' in events)


def _stream_endings(streams: Iterable[str], events: Mapping[int, About]) -> list[bytes] | None:
    """What the names of few streams end in; None: every event is looked at."""
    names = [stream.rpartition(":")[2] for stream in streams]
    return [name.encode() for name in names] if len(names) <= FEW and all(map(is_ulid, names)) and not events else None


def _stream_of_line(n: int, line: bytes) -> str:
    """The stream of an event, mostly without reading the rest of it."""
    if line.count(b'"stream":"') != 1:
        return stream_of(n, line)
    return line.partition(b'"stream":"')[2].partition(b'"')[0].decode()


def _lines_that_may_hold(
    facts: FactReader, until: int, report: Report, may_hold: Callable[[bytes], bool]
) -> Iterator[tuple[int, bytes]]:
    """The events of rows that may hold one that is looked for, with their numbers."""
    for row in facts.rows():
        if row.first > until:
            return
        report("contents", row.n, until)
        if may_hold(row.events):
            yield from ((n, line) for n, line in enumerate(row.lines(), row.first) if n <= until)


def _events_of_streams(
    facts: FactReader,
    streams: dict[str, About],
    events: Mapping[int, About],
    tagged: TaggedNodes,
    uses: ContentUses,
    until: int,
    report: Report,
) -> set[int]:
    """The events of these streams, and late results of their calls and tags, which lie in the ledger's own stream."""
    own: set[int] = set()
    turns: dict[str, str | None] = {}
    taggings: list[tuple[int, NodeTagged | NodeUntagged]] = []
    endings = _stream_endings(streams, events)
    for n, line in _lines_that_may_hold(facts, until, report, lambda row: _may_hold(row, endings, tagged, bool(turns))):
        stream = _stream_of_line(n, line)
        about = streams.get(stream) or events.get(n)
        if about is None and tagged.all and b'"kind":"node_' in line and stream.startswith("ledger:"):
            if isinstance(tagging := decoded(n, line), NodeTagged | NodeUntagged):
                taggings.append((n, tagging))
            continue
        if about is None and not (turns and b'"kind":"tool_result"' in line and stream.startswith("ledger:")):
            continue
        event = decoded(n, line)
        if about is None:
            called = event.call.event_id if isinstance(event, ToolResult) else ""
            if called not in turns:
                continue
            about = (turns[called], None)
        elif stream.startswith("run:"):
            turns[event_id(line)] = about[0]
        own.add(n)
        _note_inside(uses, n, event, about)
    for n, tagging in taggings:  # a tag from another ledger may have come before what it is on
        node = tagging.node
        about = (turns[node], None) if node in turns else tagged.named.get(node)
        if about is not None:
            _note_inside(uses, n, tagging, about)
            uses.tags.setdefault(node, {}).update(dict.fromkeys(map(bytes.fromhex, tagging.tags)))
        if about is not None or node not in tagged.all:  # what lost its tags keeps no words of theirs
            own.add(n)
    return own


def _note_inside(uses: ContentUses, n: int, event: Event | UnknownEvent, about: About) -> None:
    for path, ref in references(event):
        key = bytes.fromhex(ref)
        uses.about.setdefault(key, about)
        _note_use(uses.inside, key, n, event, path)
        if _NAMES.get(type(event)) == path.partition("[")[0]:
            uses.names.add(key)


def _note_outside(uses: ContentUses, n: int, line: bytes) -> None:
    event = decoded(n, line)
    if isinstance(event, ContentErased) and bytes.fromhex(event.reason) not in uses.inside:
        return
    for path, ref in references(event):
        key = bytes.fromhex(ref)
        if key in uses.inside:
            _note_use(uses.outside, key, n, event, path)
            if uses.everywhere is None or key in uses.everywhere:
                uses.reached.add(event.stream)
            if _NAMES.get(type(event)) == path.partition("[")[0]:
                uses.names.add(key)


def _note_use(found: dict[bytes, list[ContentUse]], key: bytes, n: int, event: Event | UnknownEvent, path: str) -> None:
    places = found.setdefault(key, [])
    if len(places) < KEPT_USES:
        kind = event.kind if isinstance(event, UnknownEvent) else str(event.__struct_config__.tag)
        places.append(ContentUse(n, kind, path[2:], event.stream))


# --- What an erasure is asked for: contents, turns, sessions, whole trees, messages of conversations; and which turns
# of a session are its own.

Resolve = Callable[[ReadTxn, str], Revision]


class Target(Struct):
    """Everything that was named, by what it is."""

    contents: dict[bytes, None] = field(default_factory=dict)
    turns: dict[str, TurnRow] = field(default_factory=dict)
    sessions: dict[str, SessionRow] = field(default_factory=dict)
    held: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Turns of a named session that stay, with the other sessions whose threads contain them."""

    def streams(self) -> dict[str, tuple[str | None, str | None]]:
        """The streams that tell of them, each with the turn or session that it is about."""
        found: dict[str, tuple[str | None, str | None]] = {}
        for turn in self.turns:
            found[f"run:{turn}"] = found[f"import:{turn}"] = (turn, None)
        for session in self.sessions:
            found[f"session:{session}"] = found[f"import:{session}"] = (None, session)
        return found


def find_target(txn: ReadTxn, names: str | Sequence[str], tree: bool, resolve: Resolve) -> Target:
    """A label or a session's id means the session, a reference its content, the id of a message of a conversation what
    it says, anything else a turn; with `tree` all turns of the tree that it belongs to, and the sessions that stand in
    it."""
    target, asked = Target(), checked_names(names, "name")
    if not asked:
        raise InvalidInput("nothing was named to be erased", "name a turn, a session or a content")
    for name in asked:
        _add_target(txn, target, name, tree, resolve)
    own = set(target.sessions)
    for session in list(target.sessions.values()) if not tree else ():
        _add_own_turns(txn, target, session, own)
    for turn in target.turns.values():
        if not turn.closed:
            raise NotApplicable(f"turn {turn.id} is still {turn.status}", "wait until it has ended, or fail it first")
    return target


def _add_target(txn: ReadTxn, target: Target, name: str, tree: bool, resolve: Resolve) -> None:
    access = access_of(txn)
    session = session_beside_turns(txn, name)
    if not tree and session is not None:
        target.sessions[session.id] = session
        return
    if not tree and access.may_whole(READ_LEDGER) and _is_content(txn, name):
        target.contents[bytes.fromhex(name)] = None
        return
    if not tree and session is None and (refs := _message_contents(txn, name)) is not None:
        target.contents |= dict.fromkeys(refs)
        return
    if tree and session is not None and session.head is None:
        raise NotFound("turn in session", session.label, "it has no head; name one of its turns")
    turn = resolve(txn, name if session is None or session.head is None else session.head).turn
    if tree:
        _add_tree(txn, target, turn.root)
    else:
        target.turns[turn.id] = turn


def _message_contents(txn: ReadTxn, name: str) -> list[bytes] | None:
    """The contents of a message of a conversation, by its id; told to whoever may read the whole ledger, as with
    contents."""
    if not is_ulid(name.upper()) or not access_of(txn).may_whole(READ_LEDGER):
        return None
    row = txn.sql.fetch_row("SELECT n FROM room_message WHERE id = ?", (name.upper(),))
    line = None if row is None else txn.facts.line(row[0])
    event = None if row is None or line is None else decoded(row[0], line)
    if not isinstance(event, MessagePosted):
        return None
    is_answer = event.turn is not UNSET  # what is kept beside an answer is the same of many
    return [bytes.fromhex(ref) for path, ref in references(event) if path.startswith("$.parts") or not is_answer]


def _is_content(txn: ReadTxn, name: str) -> bool:
    return is_digest(name.lower()) and txn.facts.find_content(bytes.fromhex(name)) is not None


def _add_tree(txn: ReadTxn, target: Target, root: int) -> None:
    """What can be read of a tree."""
    sql, access = txn.sql, access_of(txn)
    rows = sql.fetch_rows(
        f"{TURN.select} WHERE segment IN (SELECT n FROM segment WHERE root = ?) ORDER BY n",
        (root,),
    )
    target.turns |= {row.id: row for row in (TurnRow(*row) for row in rows) if access.may_read_turn(row)}
    standing = sql.fetch_rows(
        f"{SESSION.select} WHERE head_segment IN (SELECT n FROM segment WHERE root = ?) ORDER BY n", (root,)
    )
    target.sessions |= {row.id: row for row in (SessionRow(*row) for row in standing) if access.may_read(row)}


def _add_own_turns(txn: ReadTxn, target: Target, session: SessionRow, named: set[str]) -> None:
    """What a session made, and the thread that it stands on; but for turns that another session's thread contains.
    Sessions that cannot be read hold turns, too, and are not named."""
    sql, access = txn.sql, access_of(txn)
    rows = {
        row.id: row
        for row in (TurnRow(*row) for row in sql.fetch_rows(f"{TURN.select} WHERE session = ?", (session.n,)))
    }
    if session.head_segment is not None and session.head_depth is not None:
        for part in ranges_to(sql, session.head_segment, session.head_depth):
            found = sql.fetch_rows(
                f"{TURN.select} WHERE segment = ? AND depth BETWEEN ? AND ?", (part.segment, part.low, part.high)
            )
            rows |= {row.id: row for row in (TurnRow(*row) for row in found)}
    others = _standing_elsewhere(sql, {row.root for row in rows.values()}, named)
    for row in rows.values():
        holders = [n for n, _, reach in others if row.depth <= reach.get(row.segment, 0)]
        if holders:
            target.held[row.id] = tuple(
                label for n, label, _ in others if n in holders and (access.is_unlimited or access.session_of_number(n))
            )
        else:
            target.turns[row.id] = row


def _standing_elsewhere(sql: Sql, roots: Iterable[int], named: set[str]) -> list[tuple[int, str, dict[int, int]]]:
    """Other sessions, not deleted, whose threads reach into these trees, by label, with how deep each into which
    segment."""
    query = (
        "SELECT s.n, s.id, s.label, s.head_segment, s.head_depth FROM session s JOIN segment g ON g.n = s.head_segment"
        " WHERE s.status <> 'deleted' AND g.root IN"
    )
    found = []
    for n, id, label, segment, depth in rows_in(sql, query, sorted(_trees_that_lead_to(sql, set(roots)))):
        if id not in named:
            parts = ranges_to(sql, segment, depth, across=True)
            found.append((n, label, {part.segment: part.high for part in parts}))
    return sorted(found, key=itemgetter(1))


def _trees_that_lead_to(sql: Sql, roots: set[int]) -> set[int]:
    """These trees, and those whose threads go on in one of them across a link."""
    links = crossings(sql)
    if not links:
        return roots
    segments = {segment for spots in links.items() for segment, _ in spots}
    tree: dict[int, int] = dict(rows_in(sql, "SELECT n, root FROM segment WHERE n IN", segments))
    found = set(roots)
    while more := {tree[child] for (child, _), (above, _) in links.items() if tree[above] in found} - found:
        found |= more
    return found


# --- Tombstones: who erased what, when and why; and those of others that nobody here has said yes to.

_COLUMNS = "SELECT e.n, e.ref, e.erased_at, e.actor, e.replica, e.reason, e.turn, e.session FROM erasure e"


class Tombstone(Struct, frozen=True, kw_only=True):
    """One content that somebody erased."""

    ref: str
    erased_at: int
    actor: str
    reason: str | None
    replica: str | None
    """The ledger it was erased in."""
    turn_id: str | None
    session_id: str | None
    number: int
    """The arrival number of the tombstone."""


def tombstones(txn: ReadTxn) -> list[Tombstone]:
    """The newest first."""
    return _read_tombstones(txn, txn.sql.fetch_rows(f"{_COLUMNS} ORDER BY e.n DESC"))


def pending(txn: ReadTxn) -> list[Tombstone]:
    """Tombstones that came from elsewhere, of contents that are still here; not those that somebody here refused."""
    rows = txn.sql.fetch_rows(
        f"{_COLUMNS} JOIN lookup_content l ON l.key = substr(e.ref, 1, 8) JOIN content c ON c.n = l.n"
        " WHERE c.ref = e.ref AND length(c.salt) > 0 ORDER BY e.n"
    )
    return [tombstone for tombstone in _read_tombstones(txn, rows) if not _is_refused(txn, tombstone.number)]


def _is_refused(txn: ReadTxn, n: int) -> bool:
    event = authored_event(txn, n)
    return event is not None and event.is_refused


def _read_tombstones(txn: ReadTxn, rows: Sequence[Row]) -> list[Tombstone]:
    names = agent_names(txn.sql, {row[3] for row in rows})
    return [
        Tombstone(
            ref=bytes(ref).hex(),
            erased_at=erased_at,
            actor=names[actor],
            reason=text_of(txn, reason) if reason else None,
            replica=replica,
            turn_id=turn,
            session_id=session,
            number=n,
        )
        for n, ref, erased_at, actor, replica, reason, turn, session in rows
    ]
