"""The first pass over a file of Claude Code.

Of every line its ids, its links and its place, and what notes say of the session; then how the
chain of lines, with its combs, branches and compactions, falls into turns.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Container, Iterator
from pathlib import Path
from sys import intern
from typing import Any, Final

import orjson
from msgspec import Struct, field

from weft.exchange.importers.claude_code.lines import (
    NOTICES,
    SESSION_TYPES,
    SILENT_TYPES,
    TREE_TYPES,
    Block,
    Kind,
    asking_call,
    blocks_of,
    call_id,
    is_known_label,
    label_of,
    listed_records,
    opening_text,
    printed_session,
    prompt_kind,
)
from weft.exchange.importers.foreign_files import ReadPosition, Record, record_at, records
from weft.exchange.importers.foreign_values import JsonObject, mapping, text
from weft.exchange.importers.port import Report, Source
from weft.kernel.enums import MessageSource

# --- The first pass over a file: of every line its ids, its links and its place, and what notes say of the session.

DOCUMENT_BYTES: Final = 16 * 1024 * 1024
HELD_BYTES: Final = 2 * 1024 * 1024
"""Of lines: what they say takes some times as much memory."""
ABSENT: Final = -1
MIRRORED, MIRRORED_PROMPT = 1, 2
"""How a subagent's line lies inside a progress line: as its message, or as the prompt told beside it."""

_agent_file: Final = re.compile(r"agent-([\w.@-]{1,128})\.jsonl").fullmatch
_SPAWNING: Final = frozenset({"Task", "Agent"})
_COSTS: Final = frozenset(
    "totalCostUSD totalAPIDuration totalToolDuration totalDuration totalLinesAdded totalLinesRemoved modelUsage"
    " hasUnknownModelCost".split()
)
"""What a session says at its end of what it cost: its helpers are in it, that write no lines."""
_RESULTS: Final = frozenset(
    "subtype is_error api_error_status duration_ms duration_api_ms num_turns stop_reason total_cost_usd modelUsage"
    " permission_denials errors".split()
)
"""What the program prints at its end."""
_WORDS: Final = {
    "agent-name": ("agentName", "agentName"),
    "agent-setting": ("agentSetting", "agentSetting"),
    "continued-in": ("continuedInSessionId", "continuedIn"),
    "relocated": ("relocatedCwd", "relocatedCwd"),
    "tag": ("tag", "tag"),
}
"""Notes of one word: its field, and what it is called among what is told of the session."""


class Entry(Struct, gc=False):
    """A line of the tree."""

    kind: Kind
    label: str
    line: int
    offset: int
    end: int
    uuid: str | None
    session: str | None
    agent: str | None
    """The subagent that wrote it, in its own file or mirrored in this one."""
    is_side: bool
    before: int
    """The line of the same session and agent that stands before it."""
    parent: int = ABSENT
    missing: str | None = None
    """A parent that the line names and this file does not hold."""
    message: str | None = None
    calls: tuple[str, ...] = ()
    source: MessageSource | None = None
    counts: bool = True
    """It says something that a turn takes up."""
    mirror: int = 0
    turn: int = ABSENT


class Preserved(Struct, frozen=True, gc=False):
    """The lines that a compaction kept in view: the first, the last, and the summary that the first was hung behind."""

    head: str
    tail: str | None = None
    anchor: str | None = None


class Notes(Struct):
    """What a file says about a session beside its turns; the last word of each kind holds."""

    custom_title: str | None = None
    ai_title: str | None = None
    metadata: JsonObject = field(default_factory=dict)
    pull_requests: dict[str, JsonObject] = field(default_factory=dict)


class Index(Struct):
    """A file after its first pass."""

    source: Source
    report: Report
    agent: str | None
    """The subagent whose file this is, by its name."""
    entries: list[Entry] = field(default_factory=list)
    places: dict[str, int] = field(default_factory=dict)
    """Where the latest line with an id is."""
    named: list[tuple[int, str]] = field(default_factory=list)
    """Lines whose parent had not been seen when they were read."""
    logical: dict[int, str] = field(default_factory=dict)
    preserved: dict[int, Preserved] = field(default_factory=dict)
    callers: dict[str, int] = field(default_factory=dict)
    answered: dict[str, int] = field(default_factory=dict)
    """Where calls that start a subagent have their result."""
    spawning: dict[int, list[str]] = field(default_factory=dict)
    """Calls that start a subagent, by the hash of the prompt they give it."""
    briefs: dict[str, tuple[str | None, str | None]] = field(default_factory=dict)
    """What such a call says of its subagent: its kind and its task."""
    printed: dict[str, str] = field(default_factory=dict)
    """Runs whose lines were printed, by the session they were printed for."""
    begun: dict[str | None, tuple[Any, Any, tuple[str, ...]]] = field(default_factory=dict)
    """What a program printed when it began: its folder, its version, its tools; by session."""
    forked: dict[str | None, str] = field(default_factory=dict)
    """The line of the main session that a subagent with all its context went on from, by agent."""
    openings: dict[int, int] = field(default_factory=dict)
    """The hash of the prompt of an inline subagent, by its line."""
    mirrors: dict[str, str | None] = field(default_factory=dict)
    """The call that started a mirrored subagent, by agent."""
    mirrored: set[tuple[str, str]] = field(default_factory=set)
    tools: dict[int, tuple[tuple[str, ...], tuple[str, ...]]] = field(default_factory=dict)
    """Names of tools that a line made known, and that it took away."""
    modes: dict[str, list[tuple[int, str]]] = field(default_factory=dict)
    """Where `permissionMode` and `mode` changed, and to what."""
    notes: dict[str | None, Notes] = field(default_factory=dict)
    summaries: list[tuple[str, str]] = field(default_factory=list)
    """Titles, each with the id of the line whose branch it names."""
    sessions: Counter[str] = field(default_factory=Counter)
    last: dict[tuple[str | None, str | None, bool], int] = field(default_factory=dict)
    reached: ReadPosition = field(default_factory=ReadPosition)
    hung: list[int] = field(default_factory=list)
    """Where each line hangs by what it says itself: what the whole file makes of that, it makes anew each time."""
    held: dict[int, JsonObject] = field(default_factory=dict)
    """What lines say that the second pass need not read again, by their places."""
    room: int = HELD_BYTES
    counted: int = 0
    """So many lines, and titles, an earlier reading has counted."""
    counted_titles: int = 0

    def session_of(self, value: JsonObject) -> str | None:
        return text(value.get("sessionId")) or printed_session(value, self.printed)

    def let_go(self) -> None:
        """Of what was held for the second pass, which is over."""
        self.held, self.room = {}, HELD_BYTES

    def notes_on(self, session: str | None) -> Notes:
        return self.notes.setdefault(session, Notes())


def index_file(source: Source, report: Report) -> Index:
    index = Index(source, report, agent_of_file(source.path))
    _take_records(index)
    return index


def agent_of_file(path: Path) -> str | None:
    """The subagent whose lines a file holds, by the file's name."""
    match = _agent_file(path.name)
    return match[1] if match else None


def index_more(index: Index, source: Source, report: Report) -> None:
    """Go on in a file that has grown since."""
    index.source, index.report = source, report
    index.counted, index.counted_titles = len(index.entries), len(index.summaries)
    for entry, parent in zip(index.entries, index.hung, strict=True):
        entry.parent, entry.missing, entry.turn = parent, None, ABSENT
    _take_records(index)


def _take_records(index: Index) -> None:
    for record in _records(index.source, index.report, index.reached):
        kind = record.value.get("type")
        if isinstance(kind, str) and kind in TREE_TYPES:
            _take_line(index, record)
        else:
            _take_note(index, record)
    _count_summaries(index)
    index.hung += [entry.parent for entry in index.entries[len(index.hung) :]]


def _records(source: Source, report: Report, read_position: ReadPosition) -> Iterator[Record]:
    """The lines; or the records of a list; or the one record of a file that spreads it over several lines."""
    begins = source.head.lstrip(b"\xef\xbb\xbf \t\r\n")[:2]
    if source.size <= DOCUMENT_BYTES and begins[:1] == b"[" and (listed := listed_records(source.path.read_bytes())):
        report.found += len(listed)
        read_position.is_torn = True
        yield from listed
        return
    if source.size <= DOCUMENT_BYTES and begins in (b"{\n", b"{\r"):
        data = source.path.read_bytes()
        try:
            value = orjson.loads(data)
        except orjson.JSONDecodeError:
            value = None
        if isinstance(value, dict):
            report.found += 1
            read_position.is_torn = True
            yield Record(1, 0, len(data), value)
            return
    yield from records(source, report, read_position)


def _take_note(index: Index, record: Record) -> None:
    """A record about the session, or one that nobody knows."""
    report, value, label = index.report, record.value, label_of(record.value)
    if label == "summary":
        title, leaf = text(value.get("summary")), text(value.get("leafUuid"))
        if title and leaf:
            index.summaries.append((title, leaf))
            return
    if (label in SESSION_TYPES or label == "result") and _take_session_note(index, value, label, record.offset):
        report.mapped[label] += 1
        return
    report.kept[label] += 1
    if label not in SESSION_TYPES and label not in SILENT_TYPES:
        report.unknown[label] += 1


def _take_session_note(index: Index, value: JsonObject, kind: str, offset: int) -> bool:
    """Take what a record says about its session; False if it says nothing."""
    notes = index.notes_on(index.session_of(value))
    match kind:
        case "custom-title" if title := text(value.get("customTitle")):
            notes.custom_title = title
        case "ai-title" if title := text(value.get("aiTitle")):
            notes.ai_title = title
        case "permission-mode" if mode := text(value.get("permissionMode")):
            _change_mode(index, "permissionMode", offset, mode)
        case "mode" if mode := text(value.get("mode")):
            _change_mode(index, "mode", offset, mode)
        case "pr-link" if url := text(value.get("prUrl")):
            notes.pull_requests[url] = {
                key: value[key] for key in ("prNumber", "prRepository", "prUrl") if key in value
            }
        case "worktree-state" if isinstance(state := value.get("worktreeSession"), dict):
            notes.metadata["worktree"] = state
        case "cost-state":
            notes.metadata["cost"] = {key: value[key] for key in sorted(_COSTS.intersection(value))}
        case "result" if "session_id" in value:
            notes.metadata["result"] = {key: value[key] for key in sorted(_RESULTS.intersection(value))}
        case "fork-context-ref" if last := text(value.get("parentLastUuid")):
            index.forked[text(value.get("agentId")) or index.agent] = last
        case _ if kind in _WORDS and (word := text(value.get(_WORDS[kind][0]))):
            notes.metadata[_WORDS[kind][1]] = word
        case _:
            return False
    return True


def _change_mode(index: Index, setting: str, offset: int, mode: str) -> None:
    changes = index.modes.setdefault(setting, [])
    if not changes or changes[-1][1] != mode:
        changes.append((offset, mode))


def _count_summaries(index: Index) -> None:
    for _, leaf in index.summaries[index.counted_titles :]:
        (index.report.mapped if leaf in index.places else index.report.kept)["summary"] += 1


def _take_line(index: Index, record: Record) -> None:
    """A line of the tree becomes an entry; one that is there already is only counted."""
    value = record.value
    uuid = text(value.get("uuid"))
    if uuid in index.places and _is_copy(index, index.places[uuid], value):
        index.report.kept[label_of(value)] += 1
        return
    entry = _entry(index, record, uuid)
    place = len(index.entries)
    index.entries.append(entry)
    if index.room >= entry.end - entry.offset:
        index.room -= entry.end - entry.offset
        index.held[entry.offset] = value
    _describe(index, entry, place, value)
    _set_parent(index, entry, place, value)
    index.last[entry.session, entry.agent, entry.is_side] = place
    if uuid is not None:
        index.places[uuid] = place
    if entry.session is not None:
        index.sessions[entry.session] += 1
    if entry.label == "progress/agent_progress":
        _take_mirror(index, entry, mapping(value.get("data")), value.get("parentToolUseID"))


def _entry(index: Index, record: Record, uuid: str | None) -> Entry:
    value = record.value
    session, agent = index.session_of(value), text(value.get("agentId"))
    side = value.get("isSidechain")
    is_side = side is True or (index.agent is not None and agent == index.agent)
    if (asker := asking_call(value)) is not None:
        is_side, agent = True, asker
        index.mirrors.setdefault(asker, asker)
    if session is not None:
        session = intern(session.partition("#agent-")[0])  # as some exports tell a subagent's lines apart
    if is_side:
        agent = agent or index.agent
    agent = intern(agent) if is_side and agent is not None else None
    before = index.last.get((session, agent, is_side), ABSENT)
    return Entry(
        Kind.ASIDE,
        intern(label_of(value)),
        record.line,
        record.offset,
        record.end,
        uuid,
        session,
        agent,
        is_side,
        before,
    )


def _is_copy(index: Index, place: int, value: JsonObject) -> bool:
    """Is the line with the same id the same line?"""
    entry = index.entries[place]
    try:
        with index.source.path.open("rb") as file:
            return _substance(record_at(file, entry.offset, entry.end)) == _substance(value)
    except (ValueError, RecursionError):
        return False


def _substance(value: JsonObject) -> list[Any]:
    message = mapping(value.get("message"))
    content = blocks_of(value), message.get("id")
    return [content, *(value.get(key) for key in ("type", "subtype", "attachment", "data", "content"))]


def _describe(index: Index, entry: Entry, place: int, value: JsonObject) -> None:
    """What the line does in the tree."""
    match value["type"]:
        case "user":
            _describe_user(index, entry, place, value)
        case "assistant" | "tool" | "tool_use":
            _describe_answer(index, entry, place, value)
        case "tool_result" if blocks_of(value):
            entry.kind = Kind.RESULT
        case "system":
            _describe_system(index, entry, place, value)
        case "attachment":
            _describe_attachment(index, entry, place, mapping(value.get("attachment")))
        case _:
            entry.counts = False


def _describe_user(index: Index, entry: Entry, place: int, value: JsonObject) -> None:
    blocks = blocks_of(value)
    if not blocks:
        entry.counts = False
        return
    results = [block for block in blocks if block.get("type") == "tool_result"]
    if results:
        entry.kind = Kind.RESULT
        ids = [id for block in results if (id := text(block.get("tool_use_id")))]
        index.answered.update((id, place) for id in ids if id in index.briefs)
        if (caller := next((index.callers[id] for id in ids if id in index.callers), None)) is not None:
            entry.before = caller
        return
    words = opening_text(blocks)
    entry.kind, entry.source = prompt_kind(value, words)
    if entry.is_side:
        if entry.kind is Kind.PROMPT:
            entry.source = MessageSource.AGENT
        if entry.agent is None:
            index.openings[place] = hash(words)


def _describe_answer(index: Index, entry: Entry, place: int, value: JsonObject) -> None:
    blocks = blocks_of(value)
    message = value.get("message")
    if not blocks and not isinstance(message, dict):
        entry.counts = False
        return
    entry.kind = Kind.ANSWER
    if isinstance(message, dict):
        entry.message = text(message.get("id"))
    entry.calls = tuple(_calls(index, entry, place, blocks))


def _calls(index: Index, entry: Entry, place: int, blocks: list[Block]) -> Iterator[str]:
    for number, block in enumerate(blocks):
        if block.get("type") != "tool_use":
            continue
        id = call_id(block, entry.uuid, number)
        index.callers.setdefault(id, place)
        name = block.get("name")
        if isinstance(name, str) and name in _SPAWNING and isinstance(arguments := block.get("input"), dict):
            index.briefs[id] = text(arguments.get("subagent_type")), text(arguments.get("description"))
            if isinstance(prompt := arguments.get("prompt"), str):
                index.spawning.setdefault(hash(prompt), []).append(id)
        yield id


def _describe_system(index: Index, entry: Entry, place: int, value: JsonObject) -> None:
    subtype = value.get("subtype")
    if subtype == "compact_boundary":
        entry.kind = Kind.BOUNDARY
        if logical := text(value.get("logicalParentUuid")):
            index.logical[place] = logical
        if preserved := _preserved(mapping(value.get("compactMetadata"))):
            index.preserved[place] = preserved
    elif subtype == "init":
        entry.counts = False
        index.begun[entry.session] = value.get("cwd"), value.get("claude_code_version"), _names(value.get("tools"))
        if mode := text(value.get("permissionMode")):
            _change_mode(index, "permissionMode", entry.offset, mode)
    elif subtype == "custom_title":
        title = text(mapping(value.get("systemPayload")).get("customTitle"))
        index.notes_on(entry.session).custom_title = title
    elif subtype == "stop_hook_summary":
        entry.counts = bool(value.get("hookErrors")) or value.get("preventedContinuation") is True
    elif subtype is None:
        entry.counts = text(value.get("content")) is not None
    else:
        entry.counts = isinstance(subtype, str) and subtype in NOTICES


def _preserved(metadata: JsonObject) -> Preserved | None:
    segment = mapping(metadata.get("preservedSegment"))
    messages = mapping(metadata.get("preservedMessages"))
    ids = _names(messages.get("uuids")) or (None,)
    head, tail = text(segment.get("headUuid")) or ids[0], text(segment.get("tailUuid")) or ids[-1]
    anchor = text(segment.get("anchorUuid")) or text(messages.get("anchorUuid"))
    return Preserved(head, tail, anchor) if head else None


def _describe_attachment(index: Index, entry: Entry, place: int, attachment: JsonObject) -> None:
    match attachment.get("type"):
        case "queued_command" if attachment.get("prompt"):
            entry.kind = Kind.QUEUED
        case "deferred_tools_delta":
            added = (*_names(attachment.get("addedNames")), *_names(attachment.get("readdedNames")))
            index.tools[place] = added, _names(attachment.get("removedNames"))
        case "hook_success":
            entry.counts = bool(attachment.get("content"))
        case "async_hook_response":
            entry.counts = bool(attachment.get("response")) or bool(attachment.get("stdout"))
        case None:
            entry.counts = False


def _names(value: Any) -> tuple[str, ...]:
    return tuple(intern(name) for name in value if isinstance(name, str)) if isinstance(value, list) else ()


def _set_parent(index: Index, entry: Entry, place: int, value: JsonObject) -> None:
    """Where the line hangs. A line without the field follows what stands before it; so does an answer that names
    nobody, because it must answer something."""
    if "parentUuid" not in value:
        entry.parent = entry.before if entry.kind is not Kind.BOUNDARY else ABSENT
    elif parent := text(value["parentUuid"]):
        if parent in index.places:
            entry.parent = index.places[parent]
        else:
            index.named.append((place, parent))
    elif entry.kind in (Kind.ANSWER, Kind.RESULT):
        entry.parent = entry.before
    above = index.entries[entry.parent].label if entry.parent != ABSENT else None
    if above == "system/scheduled_task_fire" and entry.kind in (Kind.META, Kind.PROMPT):
        entry.kind, entry.source = Kind.PROMPT, MessageSource.CRON


def _take_mirror(index: Index, outer: Entry, data: JsonObject, caller: Any) -> None:
    """A subagent's line that the main file repeats as progress: an entry of its own, in that agent's chain."""
    agent, inner = text(data.get("agentId")), mapping(data.get("message"))
    if agent is None:
        return
    is_first = agent not in index.mirrors
    if is_first or index.mirrors[agent] is None:
        index.mirrors[agent] = text(caller)
    prompt = text(data.get("prompt"))
    if is_first and prompt is not None and inner.get("type") != "user":
        _mirror(index, outer, agent, {"type": "user", "message": {"role": "user", "content": prompt}}, MIRRORED_PROMPT)
    id = text(inner.get("uuid"))
    if inner.get("type") in ("user", "assistant") and (id is None or (agent, id) not in index.mirrored):
        if id is not None:
            index.mirrored.add((agent, id))
        _mirror(index, outer, agent, inner, MIRRORED)


def _mirror(index: Index, outer: Entry, agent: str, inner: JsonObject, mirror: int) -> None:
    before = index.last.get((outer.session, agent, True), ABSENT)
    entry = Entry(
        Kind.ASIDE,
        outer.label,
        outer.line,
        outer.offset,
        outer.end,
        text(inner.get("uuid")),
        outer.session,
        intern(agent),
        True,
        before,
        mirror=mirror,
    )
    place = len(index.entries)
    index.entries.append(entry)
    _describe(index, entry, place, inner)
    entry.parent = entry.before
    index.last[outer.session, agent, True] = place


def unwrapped(entry: Entry, record: JsonObject) -> JsonObject:
    """The line itself, where it lies inside a progress line."""
    data = mapping(record.get("data"))
    if entry.mirror == MIRRORED_PROMPT:
        return {**record, "type": "user", "message": {"role": "user", "content": data.get("prompt")}}
    outer = {key: value for key, value in record.items() if key not in ("data", "uuid", "parentUuid")}
    return {**outer, **mapping(data.get("message"))}


def count_entries(index: Index) -> None:
    """Every new line once: mapped where a turn takes it up, else kept."""
    report, new = index.report, index.entries[index.counted :]
    mirrored = {entry.offset for entry in new if entry.mirror and entry.turn != ABSENT}
    for entry in new:
        if entry.mirror:
            continue
        if (entry.counts and entry.turn != ABSENT) or entry.offset in mirrored:
            report.mapped[entry.label] += 1
        else:
            report.kept[entry.label] += 1
            if not is_known_label(entry.label):
                report.unknown[entry.label] += 1


# --- From lines to turns: how the chain of lines, with its combs, branches and compactions, falls into turns.

_BEGINNING = frozenset({Kind.PROMPT, Kind.COMMAND, Kind.COMPACT, Kind.CAVEAT, Kind.CONTINUED})
_COMMANDS = frozenset({Kind.COMMAND, Kind.COMPACT})
_COMPACTING = frozenset({Kind.BOUNDARY, Kind.SUMMARY})
_LATE = frozenset({Kind.RESULT, Kind.OUTPUT, Kind.INTERRUPT})
"""What joins even a turn that was marked as ended."""
_AFTER_INTERRUPT = frozenset({Kind.META, Kind.QUEUED})


class PlannedTurn(Struct, gc=False):
    """A turn to be mapped: which lines it is made of."""

    first: int
    """The line whose id is its key."""
    parent: int
    entries: list[int] = field(default_factory=list)
    names: list[int] = field(default_factory=list)
    """Transparent lines that say nothing: only their ids count."""
    answers: int = ABSENT
    """The turn whose prompt it answers a second time; `shared` are the lines of that prompt."""
    shared: tuple[int, ...] = ()
    missing: str | None = None
    """A parent that is named and not in the file."""
    first_prompt: int = ABSENT
    first_answer: int = ABSENT
    last_answer: int = ABSENT
    is_compaction: bool = False
    is_ended: bool = False
    is_interrupted: bool = False

    @property
    def is_preface(self) -> bool:
        """Nothing but commands and what came with them: a prompt that follows belongs to it."""
        is_asked = self.first_prompt != ABSENT or self.first_answer != ABSENT
        return not (is_asked or self.is_compaction or self.is_ended or self.is_interrupted)

    @property
    def opened(self) -> int:
        """Its first prompt, or the first answer where there is none."""
        places = [place for place in (self.first_prompt, self.first_answer) if place != ABSENT]
        return min(places, default=self.first)


def plan_turns(index: Index, unwanted: Container[str]) -> list[PlannedTurn]:
    """Every turn of a file, parents before children. Marks in each entry which turn it belongs to. Mirrored lines of
    the unwanted subagents are left out: those have files of their own."""
    _link(index)
    _undo_relinks(index)
    tree = _Tree(index.entries)
    for place in _order(index.entries):
        entry = index.entries[place]
        if not (entry.mirror and entry.agent in unwanted):
            tree.place(place, entry)
    return tree.plans


def _link(index: Index) -> None:
    """Parents that came later in the file, or that it does not hold: some exports leave lines out, so a line whose
    parent is missing follows what stands before it, and only the first line of all hangs from another file."""
    entries = index.entries
    for place, parent in index.named:
        entry, above = entries[place], index.places.get(parent, ABSENT)
        if above not in (ABSENT, place):
            entry.parent = above
        else:
            entry.parent, entry.missing = entry.before, parent
    for place, entry in enumerate(entries):
        if entry.kind is Kind.BOUNDARY and entry.parent == ABSENT:
            logical_parent = index.logical.get(place)
            above = index.places.get(logical_parent, ABSENT) if logical_parent else ABSENT
            entry.parent = entry.before if above in (ABSENT, place) else above
            entry.missing = logical_parent if entry.parent == ABSENT else None


def _undo_relinks(index: Index) -> None:
    """A session copied after a compaction hangs the lines it kept behind the summary, though they came before it."""
    entries: list[Entry] = index.entries
    moved: dict[int, int] = {}
    for place, kept_segment in index.preserved.items():
        head, tail, anchor = (
            index.places.get(id or "", ABSENT) for id in (kept_segment.head, kept_segment.tail, kept_segment.anchor)
        )
        if place < head <= tail and anchor != ABSENT and entries[head].parent == anchor:
            before = entries[place].before
            is_command = before != ABSENT and entries[before].kind is Kind.COMPACT
            entries[head].parent = entries[before].parent if is_command else before
            entries[place].parent = tail
            moved[tail] = anchor
    if moved:
        for place, entry in enumerate(entries):
            if entry.parent in moved and place > entry.parent and entry.kind is not Kind.BOUNDARY:
                entry.parent = moved[entry.parent]


def _order(entries: list[Entry]) -> list[int]:
    """File order, but parents first; circles of parents are cut."""
    order: list[int] = []
    state = bytearray(len(entries))  # 1: on the way up, 2: done
    for start in range(len(entries)):
        path = _way_up(entries, state, start)
        while path and (top := entries[path[-1]].parent) != ABSENT and state[top] == 1:
            _cut(entries, path[path.index(top) :])
            for place in path:
                state[place] = 0
            path = _way_up(entries, state, start)
        for place in reversed(path):
            state[place] = 2
            order.append(place)
    return order


def _way_up(entries: list[Entry], state: bytearray, place: int) -> list[int]:
    path = []
    while place != ABSENT and not state[place]:
        state[place] = 1
        path.append(place)
        place = entries[place].parent
    return path


def _cut(entries: list[Entry], circle: list[int]) -> None:
    """A compaction only says where it logically belongs, so its link is the first to go; else the earliest line's."""
    place = next((line for line in circle if entries[line].kind is Kind.BOUNDARY), min(circle))
    entry = entries[place]
    is_new = entry.kind is Kind.BOUNDARY and entry.parent != entry.before
    entry.parent = entry.before if is_new and entry.before not in circle else ABSENT


class _Tree:
    """The turns so far, and where the next line goes."""

    def __init__(self, entries: list[Entry]) -> None:
        self.entries = entries
        self.plans: list[PlannedTurn] = []

    def place(self, place: int, entry: Entry) -> None:
        """Give a line to its turn, or begin one with it."""
        if entry.kind is Kind.ASIDE:
            self._place_aside(place, entry)
            return
        base, above, pending = self._above(entry)
        if entry.kind is Kind.BOUNDARY and (command_turn := self._command_for(entry)) is not None:
            base = command_turn
        elif base is None or self._begins(entry, base, above):
            if base is not None and entry.kind in _COMMANDS and self.entries[above].kind is Kind.CAVEAT:
                base, above = self._latest(entry, base, above)
            base = self._begin_turn(place, entry, base, above, pending)
        for waiting in reversed(pending):
            self._add(base, waiting, self.entries[waiting])
        self._add(base, place, entry)

    def _place_aside(self, place: int, entry: Entry) -> None:
        """A transparent line goes with the line it hangs from; behind a compaction, and where there is no turn yet, it
        waits for the turn that will hang from it."""
        upper_entry = self.entries[entry.parent] if entry.parent != ABSENT else entry
        if (
            upper_entry.turn != ABSENT
            and _same_chain(entry, upper_entry)
            and not self.plans[upper_entry.turn].is_compaction
        ):
            self._add(self.plans[upper_entry.turn], place, entry)

    def _above(self, entry: Entry) -> tuple[PlannedTurn | None, int, list[int]]:
        """The turn that a line hangs from, the line of it, and transparent lines between that wait for a turn."""
        pending: list[int] = []
        above = entry.parent
        while above != ABSENT and _same_chain(entry, upper_entry := self.entries[above]):
            if upper_entry.turn != ABSENT:
                return self.plans[upper_entry.turn], above, pending
            pending.append(above)
            above = upper_entry.parent
        return None, ABSENT, pending

    def _command_for(self, entry: Entry) -> PlannedTurn | None:
        """The turn of the command that asked for this compaction, where it stands alone before it."""
        if entry.before == ABSENT or self.entries[entry.before].kind is not Kind.COMPACT:
            return None
        turn = self.entries[entry.before].turn
        return self.plans[turn] if turn != ABSENT and self.plans[turn].is_preface else None

    def _latest(self, entry: Entry, base: PlannedTurn, above: int) -> tuple[PlannedTurn, int]:
        """Old versions hang every command from the first caveat of a session, however long ago that was: such a command
        follows what was written before it."""
        turn = self.entries[entry.before].turn if entry.before != ABSENT else ABSENT
        return (base, above) if turn == ABSENT else (self.plans[turn], entry.before)

    def _begins(self, entry: Entry, base: PlannedTurn, above: int) -> bool:
        kind, upper_kind = entry.kind, self.entries[above].kind
        if kind in _BEGINNING:
            return not base.is_preface and not (base.is_compaction and _reports_compaction(entry, above, upper_kind))
        if kind in _COMPACTING:
            return kind is Kind.BOUNDARY or upper_kind is not Kind.BOUNDARY
        if base.is_compaction:
            return kind is not Kind.OUTPUT
        if base.is_ended and kind not in _LATE:
            return True
        if kind is Kind.ANSWER:
            return self._is_second_answer(entry, base, above)
        return base.is_interrupted and kind in _AFTER_INTERRUPT

    def _is_second_answer(self, entry: Entry, base: PlannedTurn, above: int) -> bool:
        if base.first_answer == ABSENT or above >= base.first_answer:
            return False
        first, last = self.entries[base.first_answer], self.entries[base.last_answer]
        is_same = entry.message in (first.message, last.message) if entry.message else entry.uuid == last.uuid
        return not is_same and not last.calls

    def _begin_turn(
        self, place: int, entry: Entry, base: PlannedTurn | None, above: int, pending: list[int]
    ) -> PlannedTurn:
        parent = ABSENT
        if base is not None:
            parent = base.parent if above < base.opened and not base.is_compaction else self.entries[base.first].turn
        missing_parents = (self.entries[waiting].missing for waiting in pending)
        missing = entry.missing or next((parent_id for parent_id in missing_parents if parent_id), None)
        plan = PlannedTurn(place, parent, missing=missing)
        if base is not None and entry.kind is Kind.ANSWER and not base.is_compaction and not base.is_ended:
            plan.parent, plan.answers = base.parent, self.entries[base.first].turn
            plan.shared = tuple(before for before in base.entries if before <= above)
        self.plans.append(plan)
        entry.turn = len(self.plans) - 1
        if entry.kind in _COMPACTING or (entry.kind is Kind.CONTINUED and base is None):
            plan.is_compaction = True
        return plan

    def _add(self, plan: PlannedTurn, place: int, entry: Entry) -> None:
        entry.turn = self.entries[plan.first].turn
        (plan.entries if entry.counts else plan.names).append(place)
        match entry.kind:
            case Kind.PROMPT | Kind.CONTINUED | Kind.QUEUED if plan.first_prompt == ABSENT:
                plan.first_prompt = place
            case Kind.ANSWER:
                plan.first_answer = place if plan.first_answer == ABSENT else plan.first_answer
                plan.last_answer = place
            case Kind.INTERRUPT:
                plan.is_interrupted = True
            case Kind.BOUNDARY:
                plan.is_compaction = True
            case Kind.ASIDE if entry.label == "system/turn_duration":
                plan.is_ended = True
            case _:
                pass


def _same_chain(entry: Entry, other_entry: Entry) -> bool:
    """Lines of a subagent hang from lines of that subagent only."""
    return entry.is_side == other_entry.is_side and entry.agent == other_entry.agent


def _reports_compaction(entry: Entry, above: int, upper_kind: Kind) -> bool:
    """The caveat and the command of `/compact` are written right behind the summary it made."""
    if entry.parent != above:
        return False
    return (entry.kind is Kind.CAVEAT and upper_kind is Kind.SUMMARY) or entry.kind is Kind.COMPACT
