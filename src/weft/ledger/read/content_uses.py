"""Who uses which content: read out of the log, since no view knows it.

Two passes. The first decodes what the target's streams say and gathers the references there; the second looks for the
same references anywhere else, as bytes, and decodes only the lines that hold one.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Any

from msgspec import Struct, field

from weft.kernel.clock import is_ulid
from weft.kernel.dag_events import ToolResult
from weft.kernel.events import Event, UnknownEvent, event_id
from weft.kernel.facts import is_digest, strings
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
from weft.ledger.views.recorded_events import decoded, stream_of
from weft.store.facts import FactReader

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


class Uses(Struct):
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
        yield from _digests(event.fields, "$")
        return
    for path, text, kinds in strings(event):
        if "content" in kinds:
            yield path, text


def _digests(value: Any, path: str) -> Iterator[tuple[str, str]]:
    if isinstance(value, dict):
        for name, each in value.items():
            if name != "prev":
                yield from _digests(each, f"{path}.{name}")
    elif isinstance(value, list):
        for i, each in enumerate(value):
            yield from _digests(each, f"{path}[{i}]")
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
) -> Uses:
    """The contents that these streams and these events, by their arrival numbers, name, and these contents, with
    everybody else who uses them. Tags of what is named, and of the events of turns, lie in the ledger's own stream and
    count as named by them."""
    until = facts.tip().n
    uses = Uses(inside={ref: [] for ref in contents})
    uses.everywhere = None if everywhere else frozenset(uses.inside)
    own = _gather(facts, streams, events, tagged, uses, until, report) if streams or events else set()
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
    """Whether one of these events, a row of the log, may be what `_gather` looks for: of a stream whose name ends so, a
    tag, or a late result. With None it always may."""
    if endings is None or any(ending in events for ending in endings):
        return True
    if b'"stream":"ledger:' not in events:
        return False
    return (bool(tagged.all) and b'"kind":"node_' in events) or (has_turns and b'"kind":"tool_result"' in events)


def _stream_endings(streams: Iterable[str], events: Mapping[int, About]) -> list[bytes] | None:
    """What the names of few streams end in; None: every event is looked at."""
    names = [stream.rpartition(":")[2] for stream in streams]
    return [name.encode() for name in names] if len(names) <= FEW and all(map(is_ulid, names)) and not events else None


def _stream(n: int, line: bytes) -> str:
    """The stream of an event, mostly without reading the rest of it."""
    if line.count(b'"stream":"') != 1:
        return stream_of(n, line)
    return line.partition(b'"stream":"')[2].partition(b'"')[0].decode()


def _lines(
    facts: FactReader, until: int, report: Report, may_hold: Callable[[bytes], bool]
) -> Iterator[tuple[int, bytes]]:
    """The events of rows that may hold one that is looked for, with their numbers."""
    for row in facts.rows():
        if row.first > until:
            return
        report("contents", row.n, until)
        if may_hold(row.events):
            yield from ((n, line) for n, line in enumerate(row.lines(), row.first) if n <= until)


def _gather(
    facts: FactReader,
    streams: dict[str, About],
    events: Mapping[int, About],
    tagged: TaggedNodes,
    uses: Uses,
    until: int,
    report: Report,
) -> set[int]:
    """The events of these streams, and late results of their calls and tags, which lie in the ledger's own stream."""
    own: set[int] = set()
    turns: dict[str, str | None] = {}
    taggings: list[tuple[int, NodeTagged | NodeUntagged]] = []
    endings = _stream_endings(streams, events)
    for n, line in _lines(facts, until, report, lambda row: _may_hold(row, endings, tagged, bool(turns))):
        stream = _stream(n, line)
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


def _note_inside(uses: Uses, n: int, event: Event | UnknownEvent, about: About) -> None:
    for path, ref in references(event):
        key = bytes.fromhex(ref)
        uses.about.setdefault(key, about)
        _note(uses.inside, key, n, event, path)
        if _NAMES.get(type(event)) == path.partition("[")[0]:
            uses.names.add(key)


def _note_outside(uses: Uses, n: int, line: bytes) -> None:
    event = decoded(n, line)
    if isinstance(event, ContentErased) and bytes.fromhex(event.reason) not in uses.inside:
        return
    for path, ref in references(event):
        key = bytes.fromhex(ref)
        if key in uses.inside:
            _note(uses.outside, key, n, event, path)
            if uses.everywhere is None or key in uses.everywhere:
                uses.reached.add(event.stream)
            if _NAMES.get(type(event)) == path.partition("[")[0]:
                uses.names.add(key)


def _note(found: dict[bytes, list[ContentUse]], key: bytes, n: int, event: Event | UnknownEvent, path: str) -> None:
    places = found.setdefault(key, [])
    if len(places) < KEPT_USES:
        kind = event.kind if isinstance(event, UnknownEvent) else str(event.__struct_config__.tag)
        places.append(ContentUse(n, kind, path[2:], event.stream))
