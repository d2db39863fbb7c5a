"""The importer of Claude Code: where its files lie, which are its sessions, and how one is read.

The sessions of a file, with their turns made one at a time as they are asked for.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Container, Iterable, Iterator, Mapping
from hashlib import sha256
from pathlib import Path
from typing import BinaryIO, Final

import orjson
from msgspec import Struct, field

from weft.exchange.importers.claude_code.index import (
    ABSENT,
    Entry,
    Index,
    PlannedTurn,
    count_entries,
    index_file,
    index_more,
    plan_turns,
    unwrapped,
)
from weft.exchange.importers.claude_code.lines import SESSION_TYPES, SILENT_TYPES, TREE_TYPES, Kind, first_listed
from weft.exchange.importers.claude_code.turns import TurnLines
from weft.exchange.importers.foreign_files import BOM, first_objects, open_beneath, record_at
from weft.exchange.importers.foreign_values import JsonObject, UniqueKeys, mapping, text
from weft.exchange.importers.port import NativeLink, NativeSession, NativeTurn, Place, Report, Source, Transcript
from weft.kernel.enums import LinkReason

# --- The sessions of a file, with their turns made one at a time as they are asked for.


class TurnBasis(Struct, frozen=True, gc=False):
    """All that a turn is made of beside the bytes of its lines: equal ones make equal turns."""

    number: int
    plan: PlannedTurn
    spawned: tuple[str | None, ...]
    """The subagents of its calls, as far as the whole file tells them."""
    tools: tuple[str, ...] | None
    kept: int | None
    """The first turn that its compaction kept in view."""


class PastTurn(Struct, frozen=True):
    """A turn that was given."""

    basis: TurnBasis
    kept_id: str | None
    """The line that its compaction kept in view first."""
    name: str
    """Its key, before it was told apart from others."""
    started: int | None
    workspace: str | None
    git_branch: str | None
    version: str | None
    facts: JsonObject


PastTurns = dict[tuple[str, str | None], list[PastTurn]]
"""By main session and subagent, in order."""


READ_AHEAD_BYTES = 1 << 18
MOST_SESSIONS = 32
"""A file that names more sessions than this is taken as one."""

CARD_BYTES = 65536
_service_id = re.compile(r"(a[a-z][a-z_]*)-[0-9a-f]{4,}").fullmatch


class SessionPlan(Struct):
    """One session: its turns, and how it came to be."""

    parent: str
    """The native id of the main session."""
    agent: str | None
    plans: list[int] = field(default_factory=list)
    call: str | None = None
    is_over: bool = False
    """The call that started this subagent has its result."""

    @property
    def id(self) -> str:
        return self.parent if self.agent is None else f"{self.parent}/agent-{self.agent}"


def transcripts(
    index: Index, turns: list[PlannedTurn], main: str, past_turns: PastTurns, turns_taken: Mapping[str, int]
) -> Iterator[Transcript]:
    """Every session of a file whose main one is called `main`. Turns that were given before and taken (`turns_taken`)
    are left out where they would be the same again."""
    groups = _session_plans(index, turns, main)
    spawned = _spawned(index, turns, main, groups)
    tools = _known_tools(index, turns)
    for group in groups:
        session = _session(index, group, main)
        walk = _SessionWalk(index, turns, group, session, spawned, tools)
        past = past_turns.setdefault((group.parent, group.agent), [])
        known_turns = walk.recall(past, turns_taken.get(session.id, 0))
        yield Transcript(session=session, turns=walk.turns(past), known_turns=known_turns)


def main_session(index: Index) -> str:
    """The session that most lines name; of a file that names none, its own name."""
    if index.sessions:
        return index.sessions.most_common(1)[0][0]
    return (session_of_folder(index.source.path) if index.agent else None) or index.source.path.stem


def _session_plans(index: Index, turns: list[PlannedTurn], main: str) -> list[SessionPlan]:
    groups: dict[tuple[str, str | None], SessionPlan] = {}
    inline: dict[int, str] = {}
    is_one = len(index.sessions) > MOST_SESSIONS
    for number, turn in enumerate(turns):
        entry = index.entries[turn.first]
        agent = entry.agent
        if entry.is_side and agent is None:
            root = inline.get(turn.parent) if turn.parent != ABSENT else None
            agent = inline[number] = root or entry.uuid or f"line-{entry.line}"
        session = main if is_one else entry.session or main
        group = groups.setdefault((session, agent), SessionPlan(session, agent))
        group.plans.append(number)
    for group in groups.values():
        group.plans = sorted(_with_ancestors(turns, group.plans))
    return list(groups.values())


def _with_ancestors(plans: list[PlannedTurn], numbers: Iterable[int]) -> set[int]:
    with_ancestors: set[int] = set()
    for number in numbers:
        while number != ABSENT and number not in with_ancestors:
            with_ancestors.add(number)
            number = plans[number].parent
    return with_ancestors


def _spawned(index: Index, turns: list[PlannedTurn], main: str, groups: list[SessionPlan]) -> dict[str, str]:
    """Subagents by the call that started them, as far as only the whole file can tell: mirrored ones name it, inline
    ones have its prompt."""
    spawned = {call: f"{main}/agent-{agent}" for agent, call in index.mirrors.items() if call}
    for group in groups:
        if group.agent is not None:
            group.call = index.mirrors.get(group.agent) or _asking_call(index, turns[group.plans[0]].first, spawned)
            group.is_over = group.call in index.answered
            if group.call is not None:
                spawned[group.call] = group.id
    return spawned


def _asking_call(index: Index, place: int, used_calls: Container[str]) -> str | None:
    """The call that gave an inline subagent its prompt, and was still waiting for the answer when the agent began."""
    for call in index.spawning.get(index.openings.get(place, 0), ()):
        if call not in used_calls and index.callers[call] < place < index.answered.get(call, place + 1):
            return call
    return None


def _known_tools(index: Index, turns: list[PlannedTurn]) -> dict[int, tuple[str, ...]]:
    """The tools that had been made known when a turn ended."""
    tools: dict[int, tuple[str, ...]] = {}
    if not index.tools:
        return tools
    for number, turn in enumerate(turns):
        names = tools.get(turn.parent, ())
        for place in turn.entries:
            if place in index.tools:
                added, removed = index.tools[place]
                names = tuple(dict.fromkeys((*(name for name in names if name not in removed), *added)))
        if names:
            tools[number] = names
    return tools


def _session(index: Index, group: SessionPlan, main: str) -> NativeSession:
    session = NativeSession(id=group.id)
    if group.agent is None:
        _apply_notes(index, session, is_main=group.id == main)
        return session
    session.parent, session.spawn_call = group.parent, group.call
    session.agent, session.task = index.briefs.get(group.call or "", (None, None))
    metadata: JsonObject = {}
    if index.agent == group.agent:
        card = agent_card(index.source.path)
        session.agent = text(card.pop("agentType", None)) or session.agent
        session.task = text(card.pop("description", None)) or session.task
        session.spawn_call = text(card.pop("toolUseId", None)) or session.spawn_call
        if above := text(card.get("parentAgentId")):
            session.parent = f"{group.parent}/agent-{above}"
        metadata = card
        if workflow := workflow_of_folder(index.source.path):
            metadata["workflow"] = workflow
    session.agent = session.agent or service_name(group.agent)
    session.metadata = metadata or None
    return session


def session_of_folder(path: Path) -> str | None:
    """The session below whose folder a subagent's file lies."""
    for folder in path.parents:
        if folder.name == "subagents":
            return folder.parent.name or None
    return None


def workflow_of_folder(path: Path) -> str | None:
    """The workflow run in whose folder a subagent's file lies."""
    return path.parent.name if path.parent.parent.name == "workflows" else None


def agent_card(path: Path) -> JsonObject:
    """What `agent-<id>.meta.json` says of the subagent whose file lies beside it."""
    try:
        with open_beneath(path.with_suffix(".meta.json"), path.parent) as file:
            card = orjson.loads(file.read(CARD_BYTES))
    except (OSError, orjson.JSONDecodeError):
        return {}
    return card if isinstance(card, dict) else {}


def service_name(agent: str) -> str | None:
    """Claude Code's own helpers carry their task in their id: `acompact-1a2b3c` compacts."""
    match = _service_id(agent)
    return match[1] if match else None


def _apply_notes(index: Index, session: NativeSession, is_main: bool) -> None:
    """Titles: a person's own, else a generated one, else the summary of a line that lies in this session."""
    all_notes = [index.notes[id] for id in ((None, session.id) if is_main else (session.id,)) if id in index.notes]
    metadata: JsonObject = {}
    ai_title = None
    for notes in all_notes:
        session.title, ai_title = notes.custom_title or session.title, notes.ai_title or ai_title
        metadata |= notes.metadata
        if notes.pull_requests:
            metadata["pullRequests"] = list(notes.pull_requests.values())
    session.title = session.title or ai_title or _summary(index, session.id, is_main)
    session.metadata = metadata or None


def _summary(index: Index, session: str, is_main: bool) -> str | None:
    summary = None
    for title, leaf in index.summaries:
        place = index.places.get(leaf, ABSENT)
        if place != ABSENT and index.entries[place].session in ((session, None) if is_main else (session,)):
            summary = title
    return summary


def _latest(index: Index, plans: list[PlannedTurn], group: SessionPlan) -> int:
    """The last turn of the file that no subagent took; a turn before it is not written to any more."""
    if group.agent is not None:
        return ABSENT
    return max(number for number, plan in enumerate(plans) if not index.entries[plan.first].is_side)


class _SessionWalk:
    """One session's turns, each read from the file when its turn comes."""

    def __init__(
        self,
        index: Index,
        plans: list[PlannedTurn],
        group: SessionPlan,
        session: NativeSession,
        spawned: dict[str, str],
        tools: dict[int, tuple[str, ...]],
    ) -> None:
        self.index, self.plans, self.group, self.session = index, plans, group, session
        self.spawned, self.tools = spawned, tools
        self.latest = _latest(index, plans, group)
        self.positions = {number: position for position, number in enumerate(group.plans)}
        self.keys: dict[int, str] = {}
        self._unique_keys = UniqueKeys()

    def recall(self, past: list[PastTurn], taken_count: int) -> int:
        """How many of the turns that were given and taken stand as they did. The others are forgotten."""
        known_count = 0
        for number, turn in zip(self.group.plans[:taken_count], past, strict=False):
            if turn.basis != self._basis(number, turn.kept_id):
                break
            self._name(number, turn.name)
            self._complete(turn)
            known_count += 1
        del past[known_count:]
        return known_count

    def turns(self, past: list[PastTurn]) -> Iterator[NativeTurn]:
        """Those behind the ones that are past, which become past as they are given."""
        with self.index.source.path.open("rb", buffering=READ_AHEAD_BYTES) as file:
            for position, number in enumerate(self.group.plans[len(past) :], len(past)):
                turn = self._turn(file, number, past)
                turn.closed |= position < len(self.group.plans) - 1 or number < self.latest
                yield turn

    def _basis(self, number: int, kept_id: str | None) -> TurnBasis:
        plan = self.plans[number]
        calls = (call for place in (*plan.shared, *plan.entries) for call in self.index.entries[place].calls)
        spawned = tuple(map(self.spawned.get, calls)) if self.spawned else ()
        kept_position = self._kept_position(kept_id, number) if kept_id is not None else None
        return TurnBasis(number, plan, spawned if any(spawned) else (), self.tools.get(number), kept_position)

    def _turn(self, file: BinaryIO, number: int, past: list[PastTurn]) -> NativeTurn:
        planned, entries = self.plans[number], self.index.entries
        builder = TurnLines(self.group.parent, self.spawned, planned.is_compaction)
        places = sorted(planned.entries)
        for place in (*planned.shared, *places):
            if (record := self._load(file, entries[place])) is not None:
                builder.add_record(entries[place], record)
        lines = [entries[place] for place in (*places, *planned.names)]
        names = tuple(entry.uuid for entry in lines if entry.uuid is not None)
        name = self._own_name(number, builder)
        turn = builder.turn(self._name(number, name), tuple(dict.fromkeys(names)), self.group.agent)
        turn.parent = self.positions.get(planned.parent)
        turn.link = self._link(planned)
        if planned.missing is not None and turn.link is None:
            turn.metadata = {**mapping(turn.metadata), "parentUuid": planned.missing}
        turn.closed = planned.is_ended or planned.is_interrupted or self.group.is_over
        turn.answered = builder.is_answered and self._ends_with_answer(planned)
        turn.offset, turn.end = min(entry.offset for entry in lines), max(entry.end for entry in lines)
        turn.places = self._places(planned, lines)
        turn.tools = self.tools.get(number)
        self._apply_beginning(turn)
        if planned.is_compaction:
            turn.compaction = builder.compaction(lambda id: self._kept_position(id, number))
        if self.group.agent is None:
            self._apply_modes(turn)
        basis = self._basis(number, builder.kept_from())
        past_turn = PastTurn(
            basis, builder.kept_from(), name, turn.started, turn.workspace, turn.git_branch, turn.version, builder.facts
        )
        past.append(past_turn)
        self._complete(past_turn)
        return turn

    def _ends_with_answer(self, plan: PlannedTurn) -> bool:
        """Whether nothing but notices came after its last answer."""
        entries = self.index.entries
        return all(entries[place].kind is Kind.ASIDE for place in plan.entries if place > plan.last_answer)

    def _places(self, plan: PlannedTurn, lines: list[Entry]) -> tuple[tuple[int, int], ...]:
        """In file order; a mirrored line does not lie there by itself."""
        shared = [self.index.entries[place] for place in plan.shared]
        if any(entry.mirror for entry in lines):
            return ()
        return tuple(sorted({(entry.offset, entry.end) for entry in (*shared, *lines)}))

    def _load(self, file: BinaryIO, entry: Entry) -> JsonObject | None:
        try:
            record = self.index.held.get(entry.offset) or record_at(file, entry.offset, entry.end)
        except (ValueError, RecursionError):
            report = self.index.report
            if entry.counts and report.mapped[entry.label]:
                entry.counts = False
                report.mapped[entry.label] -= 1
                report.damaged += 1
            report.problem(entry.line, "it changed while the file was read")
            return None
        return unwrapped(entry, record) if entry.mirror else record

    def _known_by(self, plan: PlannedTurn) -> int:
        """The line that a turn is known by: its prompt, else its first line that is no caveat. Sessions that go on
        after `/clear` share the caveat's id and nothing else."""
        if plan.first_prompt != ABSENT:
            return plan.first_prompt
        lines = (place for place in sorted(plan.entries) if self.index.entries[place].kind is not Kind.CAVEAT)
        return plan.first if self.index.entries[plan.first].kind is not Kind.CAVEAT else next(lines, plan.first)

    def _own_name(self, number: int, builder: TurnLines) -> str:
        planned = self.plans[number]
        uuid = self.index.entries[self._known_by(planned)].uuid
        if uuid is None:
            uuid = f"record-{sha256(builder.records[0] if builder.records else b'').hexdigest()[:32]}"
        return f"{self.keys[planned.answers]}#{uuid}" if planned.answers in self.keys else uuid

    def _name(self, number: int, name: str) -> str:
        """The key of a turn: its own name, told apart from those before it."""
        key = self._unique_keys.claim(name)
        self.keys[number] = key
        return key

    def _link(self, plan: PlannedTurn) -> NativeLink | None:
        """A service agent, or one that was given all the context, goes on from a line of the main session; else a file
        goes on where another one ended."""
        first = plan is self.plans[self.group.plans[0]]
        missing = plan.missing or (self.index.forked.get(self.group.agent) if self.group.agent and first else None)
        if missing is None or plan.parent != ABSENT:
            return None
        return NativeLink(to=missing, why=LinkReason.FORK if self.group.agent else LinkReason.CONTINUATION)

    def _kept_position(self, id: str, number: int) -> int | None:
        place = self.index.places.get(id, ABSENT)
        position = self.positions.get(self.index.entries[place].turn) if place != ABSENT else None
        return position if position is not None and position < self.positions[number] else None

    def _apply_beginning(self, turn: NativeTurn) -> None:
        """What lines that a program printed do not say themselves."""
        folder, version, tools = self.index.begun.get(self.group.parent, (None, None, ()))
        turn.workspace = turn.workspace or text(folder)
        turn.version = turn.version or text(version)
        if self.group.agent is None:
            turn.tools = turn.tools or tools or None

    def _apply_modes(self, turn: NativeTurn) -> None:
        """What a turn does not say itself, the session's last word before its end does."""
        if mode := self._mode("mode", turn.end):
            turn.config = {"mode": mode}
        if mode := self._mode("permissionMode", turn.end):
            turn.permissions = {"mode": mode, **mapping(turn.permissions)}

    def _mode(self, setting: str, until: int) -> str | None:
        changes = self.index.modes.get(setting, ())
        number = bisect_right(changes, until, key=lambda change: change[0])
        return changes[number - 1][1] if number else None

    def _complete(self, turn: PastTurn) -> None:
        """What the session is, its turns say: where and when it began, and what was last."""
        session = self.session
        session.workspace = session.workspace or turn.workspace
        session.created = turn.started if session.created is None else session.created
        session.git_branch = turn.git_branch or session.git_branch
        session.version = turn.version or session.version
        if turn.facts:
            session.metadata = {**turn.facts, **mapping(session.metadata)}


# --- The importer of Claude Code: where its files lie, which files are its sessions, and how one is read.

_is_journal: Final = re.compile(rb'\s*\{\s*"type"\s*:\s*"(launched|started)"').match
_is_safe_id: Final = re.compile(r"[\w-][\w.@-]{0,127}").fullmatch


def places(home: Path, environment: Mapping[str, str]) -> list[Place]:
    config_folders = environment.get("CLAUDE_CONFIG_DIR", "")
    config = environment.get("XDG_CONFIG_HOME") or home / ".config"
    folders = [
        *(Path(config_folder.strip()) for config_folder in config_folders.split(",") if config_folder.strip()),
        home / ".claude",
        Path(config) / "claude",
    ]
    return [Place(folder / "projects", "Claude Code sessions") for folder in dict.fromkeys(folders)]


def has_agent_file(path: Path, session: str | None, agent: str) -> bool:
    """Does a subagent of this session have a file of its own, in one of the known layouts?"""
    if not _is_safe_id(agent):
        return False
    name = f"agent-{agent}.jsonl"
    stems = {path.stem} | ({session} if session and _is_safe_id(session) else set())
    folders = [path.parent / stem / "subagents" for stem in sorted(stems)]
    files = [path.parent / name, path.parent / "agents" / name, *(folder / name for folder in folders)]
    if any(file.is_file() for file in files):
        return True
    return any(next((folder / "workflows").glob(f"*/{name}"), None) is not None for folder in folders)


def card_owner(path: Path) -> Path | None:
    """The file of the subagent that a card is of."""
    owner = path.with_name(f"{path.name.removesuffix('.meta.json')}.jsonl")
    return owner if path.name.endswith(".meta.json") and owner.is_file() else None


def is_sidecar(path: Path, head: bytes) -> bool:
    """Cards of subagents, journals and outcomes of workflows, titles and large outputs: they belong to a session file
    elsewhere."""
    if path.name.startswith("agent-") and path.name.endswith(".meta.json"):
        return True
    if path.parent.name == "tool-results" and path.parent.parent.with_suffix(".jsonl").is_file():
        return True
    if path.name == "custom-title.json" or path.parent.name == "workflows":
        folder = path.parent if path.name == "custom-title.json" else path.parent.parent
        return path.suffix == ".json" and folder.with_suffix(".jsonl").is_file()
    return path.name == "journal.jsonl" and workflow_of_folder(path) is not None and _is_journal(head) is not None


class ClaudeCodeReader:
    """Of one file."""

    def __init__(self) -> None:
        self._index: Index | None = None
        self._past_turns = PastTurns()

    def read(self, source: Source, report: Report, turns_taken: Mapping[str, int]) -> Iterator[Transcript]:
        index = self._indexed(source, report)
        session = main_session(index)
        mirrored = {agent for agent in index.mirrors if has_agent_file(source.path, session, agent)}
        turns = plan_turns(index, mirrored)
        count_entries(index)
        try:
            yield from transcripts(index, turns, session, self._past_turns, turns_taken)
        finally:
            index.let_go()

    def _indexed(self, source: Source, report: Report) -> Index:
        index, self._index = self._index, None
        if index is None or index.reached.is_torn:
            self._past_turns = PastTurns()
            index = index_file(source, report)
        else:
            index_more(index, source, report)
        self._index = index
        return index


_SPOKEN: Final = frozenset({"user", "assistant"})
_NOTES: Final = (SESSION_TYPES | SILENT_TYPES) - {"started", "result"}
_PRINTED: Final = frozenset({"user", "assistant", "system", "result", "stream_event"})
_SIGNS: Final = frozenset({"parent_tool_use_id", "uuid", "claude_code_version", "num_turns", "mcp_servers"})
_NOTED: Final = frozenset({"sessionId", "leafUuid", "messageId"})


class ClaudeCode:
    """Sessions of Claude Code, and of tools that write the same lines."""

    origin = "claude-code"
    mapping = 1

    def places(self, home: Path, environment: Mapping[str, str]) -> list[Place]:
        return places(home, environment)

    def recognises(self, source: Source) -> bool:
        objects = first_objects(source.head) or first_listed(source.head) or _first_object(source.head)
        if not objects:  # the first record is longer than what is looked at
            return all(mark in source.head for mark in (b'"parentUuid"', b'"sessionId"', b'"type"'))
        return 2 * sum(map(_is_line, objects)) >= len(objects)

    def is_part(self, source: Source) -> bool:
        return is_sidecar(source.path, source.head)

    def session_file(self, source: Source) -> Path | None:
        """A subagent's card belongs to its file. Journals and large outputs change nothing that is read."""
        return card_owner(source.path)

    def part_files(self, path: Path) -> list[Path]:
        return []

    def read(self, source: Source, report: Report) -> Iterator[Transcript]:
        return self.reader().read(source, report, {})

    def reader(self) -> ClaudeCodeReader:
        return ClaudeCodeReader()


def _first_object(head: bytes) -> list[JsonObject]:
    """The one record of a file that spreads it over several lines."""
    try:
        value = orjson.loads(head.removeprefix(BOM))
    except orjson.JSONDecodeError:
        return []
    return [value] if isinstance(value, dict) else []


def _is_line(value: JsonObject) -> bool:
    kind = value.get("type")
    if not isinstance(kind, str):
        return False
    if "session_id" in value and "sessionId" not in value:  # what the program prints, and not what it keeps
        return kind in _PRINTED and not _SIGNS.isdisjoint(value)
    if kind in _SPOKEN:
        return "message" in value and ("sessionId" in value or "uuid" in value)
    if kind in TREE_TYPES:
        return "sessionId" in value and "uuid" in value
    return kind in _NOTES and not _NOTED.isdisjoint(value)
