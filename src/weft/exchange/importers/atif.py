"""Trajectories in ATIF, the agent trajectory interchange format.

A trajectory is one JSON document, or a line of many. A turn is a user's step, and the agent's steps
up to the next one.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import orjson
from msgspec import Struct, field
from msgspec.structs import replace

from weft.exchange.importers.foreign_files import (
    BOM,
    first_objects,
    read_beneath,
    read_document,
    read_whole,
    records,
    report_damage,
)
from weft.exchange.importers.foreign_values import (
    JsonObject,
    canonical,
    fingerprint,
    mapping,
    millis,
    present,
    sequence,
    text,
    whole_number,
)
from weft.exchange.importers.native_turns import (
    MessageContent,
    PendingCall,
    content_of,
    content_text,
    finished_items,
    identity,
)
from weft.exchange.importers.port import (
    Item,
    NativeCall,
    NativeCompaction,
    NativeLink,
    NativeMessage,
    NativeSession,
    NativeTurn,
    Place,
    Report,
    Source,
    Tokens,
    Transcript,
)
from weft.kernel.enums import AgentRole, FileKind, LinkReason, MessageRole, MessageSource
from weft.ledger.dialects import one_hour_writes, plain_result, uncached_input
from weft.ledger.model import FileNote, ReasoningPart

# --- By which id a trajectory is known, and which others it refers to: subagents, and what it goes on from.

UNIQUE = re.compile(r"(?=.*\d)[\w.:/-]{16,}")
"""Long enough, and with a digit: no name that somebody gives to every run."""
NEIGHBOURS = 64


def trajectory_id(value: JsonObject) -> str:
    """Its own id, or that of its run; one that others may have too gets a mark of how the trajectory begins."""
    words = text(value.get("trajectory_id")) or text(value.get("session_id"))
    if words is not None and UNIQUE.fullmatch(words):
        return words
    return f"{words or 'trajectory'}@{fingerprint(_beginning(value))}"


def _beginning(value: JsonObject) -> list[Any]:
    """The first steps, as they stay while it grows: up to the first response."""
    values: list[Any] = [mapping(value.get("agent")).get("name")]
    for step in map(mapping, sequence(value.get("steps"))):
        values.append([step.get(name) for name in ("source", "timestamp", "message", "tool_calls")])
        if step.get("source") == "agent":
            break
    return values


def embedded_trajectories(value: JsonObject) -> dict[str, JsonObject]:
    """Trajectories of subagents inside this one, by their ids."""
    fields = (mapping(trajectory) for trajectory in sequence(value.get("subagent_trajectories")))
    return {id: trajectory for trajectory in fields if (id := text(trajectory.get("trajectory_id"))) is not None}


def embedded_id(parent: str, id: str) -> str:
    """Such an id is unique within its parent only."""
    return id if UNIQUE.fullmatch(id) else f"{parent}/{id}"


def referred_trajectory(
    ref: JsonObject, parent: str, embedded_by_id: dict[str, JsonObject], folder: Path | None
) -> str | None:
    """The trajectory that a reference names."""
    id = text(ref.get("trajectory_id"))
    if id is not None and id in embedded_by_id:
        return embedded_id(parent, id)
    path = text(ref.get("trajectory_path"))
    if path is not None and folder is not None and (value := _load_beside(folder, path)):
        return trajectory_id(value)
    return id or text(ref.get("session_id"))


def earlier_trajectory(path: Path) -> str | None:
    """The trajectory that goes on in this file, if one lies beside it and says so."""
    try:
        files = sorted(
            candidate for candidate in path.parent.glob("*.json") if candidate != path and not candidate.is_symlink()
        )
    except OSError:
        return None
    sign = f'"{path.name}"'.encode()
    for file in files[:NEIGHBOURS]:
        value = _load_trajectory(file, path.parent, sign)
        ref = text(value.get("continued_trajectory_ref"))
        if ref is not None and Path(ref).name == path.name:
            return trajectory_id(value)
    return None


def _load_beside(folder: Path, path: str) -> JsonObject:
    """A file below the same folder; a reference does not lead out of it."""
    target = (folder / path).resolve()
    return _load_trajectory(target, folder.resolve()) if target.is_relative_to(folder.resolve()) else {}


def _load_trajectory(file: Path, root: Path, sign: bytes = b"") -> JsonObject:
    try:
        data = read_beneath(file, root)
    except OSError:
        return {}
    value = mapping(read_document(data).value) if sign in data else {}
    return value if is_trajectory(value) else {}


def is_trajectory(value: JsonObject) -> bool:
    version = text(value.get("schema_version")) or ""
    return version.startswith("ATIF-") and isinstance(value.get("steps"), list)


# --- Turns of a trajectory: a user's step, and the agent's steps up to the next one.

SOURCES = {"system": MessageRole.SYSTEM, "user": MessageRole.USER, "agent": MessageRole.ASSISTANT}
COUNTS = ("prompt_tokens", "completion_tokens", "cached_tokens")
LARGE = frozenset({"prompt_token_ids", "completion_token_ids", "logprobs"})


class TurnDraft(Struct):
    """A turn under way."""

    number: int
    parent: int | None
    items: list[NativeMessage | PendingCall] = field(default_factory=list)
    last_calls: list[PendingCall] = field(default_factory=list)
    """Calls of the last response."""
    times: list[int] = field(default_factory=list)
    literal: str | None = None
    compaction: NativeCompaction | None = None
    is_begun: bool = False
    """Somebody has asked or answered."""


class Turns:
    """Takes the steps one after another."""

    def __init__(self, agent: JsonObject, spawned: Callable[[JsonObject], str | None]) -> None:
        self._agent, self._spawned = agent, spawned
        self.drafts: list[TurnDraft] = []

    def add_step(self, number: int, step: JsonObject) -> None:
        role = SOURCES[str(step["source"])]
        copied = step.get("is_copied_context") is True
        if copied:
            self._add_message(self._draft(number), step, MessageRole.SYSTEM)
        elif role is MessageRole.USER:
            self._add_message(self._draft(number, begins=True), step, role)
            self.drafts[-1].is_begun = True
        elif role is MessageRole.SYSTEM:
            self._add_system_step(number, step)
        else:
            self._respond(self._draft(number), step)

    def _draft(self, number: int, begins: bool = False) -> TurnDraft:
        last = self.drafts[-1] if self.drafts else None
        if last is None or last.compaction is not None or (begins and last.is_begun):
            self.drafts.append(TurnDraft(number, len(self.drafts) - 1 if self.drafts else None))
        return self.drafts[-1]

    def _add_system_step(self, number: int, step: JsonObject) -> None:
        """Instructions, or a step that makes the context smaller: that is a turn of its own."""
        managed = mapping(mapping(step.get("extra")).get("context_management"))
        if not managed or not self.drafts:
            self._add_message(self._draft(number), step, MessageRole.SYSTEM)
            return
        draft = TurnDraft(number, len(self.drafts) - 1)
        results = [content_text(result.get("content")) for result in _results(step)]
        summary = text(managed.get("summary")) or "\n".join([content_text(step.get("message")), *results]).strip()
        draft.compaction = NativeCompaction(
            summary=summary,
            trigger=text(managed.get("trigger")),
            tokens_before=whole_number(managed.get("tokens_before")),
            tokens_after=whole_number(managed.get("tokens_after")),
            metadata=present(type=text(managed.get("type"))),
        )
        self.drafts.append(draft)
        self._note_time(draft, step)

    def _note_time(self, draft: TurnDraft, step: JsonObject) -> tuple[int | None, str | None]:
        timestamp = step.get("timestamp")
        time = millis(timestamp) if isinstance(timestamp, str) else None
        literal = text(timestamp) if time is None else None
        draft.times += [] if time is None else [time]
        draft.literal = draft.literal or literal
        return time, literal

    def _add_message(self, draft: TurnDraft, step: JsonObject, role: MessageRole) -> None:
        time, literal = self._note_time(draft, step)
        content, files = _content(step.get("message"))
        is_copied = step.get("is_copied_context") is True
        draft.items.append(
            NativeMessage(
                role=role,
                parts=tuple(content.parts),
                at=time,
                literal_time=literal,
                source=None if role is MessageRole.USER else MessageSource.EVENT,
                context=present(observed=[plain_result(result.get("content")) for result in _results(step)]),
                metadata=present(
                    is_copied=is_copied or None,
                    source=step.get("source") if is_copied else None,
                    extra=step.get("extra"),
                    blocks=content.other_blocks,
                ),
                files=files,
            )
        )

    def _respond(self, draft: TurnDraft, step: JsonObject) -> None:
        draft.is_begun = True
        time, literal = self._note_time(draft, step)
        content, files = _content(step.get("message"))
        thought = text(step.get("reasoning_content"))
        by_model = step.get("llm_call_count") != 0
        metrics = mapping(step.get("metrics"))
        draft.items.append(
            NativeMessage(
                role=MessageRole.ASSISTANT,
                parts=(*([] if thought is None else [ReasoningPart(thought)]), *content.parts),
                at=time,
                literal_time=literal,
                model=(text(step.get("model_name")) or text(self._agent.get("model_name"))) if by_model else None,
                tokens=metrics_tokens(metrics),
                metadata=present(
                    effort=step.get("reasoning_effort"),
                    calls_of_model=whole_number(step.get("llm_call_count")),
                    cost=metrics.get("cost_usd"),
                    metrics=_small_fields(mapping(metrics.get("extra"))),
                    extra=step.get("extra"),
                    blocks=content.other_blocks,
                ),
                files=files,
            )
        )
        draft.last_calls = [_call(mapping(tool_call), time) for tool_call in sequence(step.get("tool_calls"))]
        draft.items += draft.last_calls
        for result in _results(step):
            self._observe(draft, result, time)

    def _observe(self, draft: TurnDraft, result: JsonObject, time: int | None) -> None:
        id = text(result.get("source_call_id"))
        candidates = [call for call in draft.last_calls if call.is_open and (id is None or call.id == id)]
        content, files = _content(result.get("content"))
        if not candidates or (id is None and len(draft.last_calls) > 1):
            draft.items.append(
                NativeMessage(
                    role=MessageRole.SYSTEM,
                    parts=tuple(content.parts),
                    at=time,
                    source=MessageSource.EVENT,
                    metadata=present(source_call=id, extra=result.get("extra"), blocks=content.other_blocks),
                    files=files,
                )
            )
            return
        call = candidates[0]
        call.answer(plain_result(result.get("content")))
        call.files = (*call.files, *files)
        refs = [mapping(value) for value in _refs(result)]
        call.spawned = next((session for ref in refs if (session := self._spawned(ref)) is not None), None)
        call.detail = present(extra=result.get("extra"), call=mapping(call.detail).get("call"), subagents=refs)

    def finished(self, session: str, size: int, final: JsonObject, role: AgentRole) -> list[NativeTurn]:
        totals = None
        if final and not any(_is_counted(draft) for draft in self.drafts):
            totals = metrics_tokens({name: final.get(f"total_{name}") for name in COUNTS})
        turns = []
        for place, draft in enumerate(self.drafts):
            is_last = place == len(self.drafts) - 1
            items: list[Item] = list(finished_items(draft.items))
            items = _with_totals(items, totals) if is_last and totals is not None else items
            turns.append(self._turn(draft, items, session, size, is_last and not final, role))
        return turns

    def _turn(
        self, draft: TurnDraft, items: list[Item], session: str, size: int, is_open: bool, role: AgentRole
    ) -> NativeTurn:
        tools = (mapping(mapping(tool).get("function")) or mapping(tool) for tool in self._defined())
        summary = () if draft.compaction is None else (canonical(draft.compaction.summary),)
        return NativeTurn(
            key=f"{session}/{draft.number}",
            records=identity(items) + summary or (canonical([draft.number]),),
            items=tuple(items),
            parent=draft.parent,
            compaction=draft.compaction,
            closed=not is_open,
            started=min(draft.times, default=None),
            ended=max(draft.times, default=None),
            literal_time=None if draft.times else draft.literal,
            role=role,
            version=text(self._agent.get("version")),
            tools=tuple(name for tool in tools if (name := text(tool.get("name"))) is not None) or None,
            config=present(agent=text(self._agent.get("name")), model=text(self._agent.get("model_name"))),
            end=size,
        )

    def _defined(self) -> list[Any]:
        return sequence(self._agent.get("tool_definitions"))


def _is_counted(draft: TurnDraft) -> bool:
    return any(isinstance(item, NativeMessage) and item.tokens is not None for item in draft.items)


def _with_totals(items: list[Item], totals: Tokens) -> list[Item]:
    """Where no step tells its tokens, those of the whole run count with its last response."""
    for place in range(len(items) - 1, -1, -1):
        item = items[place]
        if isinstance(item, NativeMessage) and item.role is MessageRole.ASSISTANT:
            fields = {**mapping(item.metadata), "tokens_of": "the whole run"}
            items[place] = replace(item, tokens=totals, metadata=fields)
            break
    return items


def metrics_tokens(metrics: JsonObject) -> Tokens | None:
    """What was cached lies inside the prompt."""
    prompt, output, cached = (whole_number(metrics.get(name)) for name in COUNTS)
    if prompt is None and output is None:
        return None
    extra = mapping(metrics.get("extra"))
    cache_written = whole_number(extra.get("cache_creation_input_tokens"))
    reasoning = whole_number(extra.get("reasoning_tokens"))
    return Tokens(
        input=uncached_input(prompt, cached, None),
        output=output,
        cached=cached,
        cache_write=cache_written,
        cache_write_1h=one_hour_writes(extra),
        reasoning=reasoning,
    )


def _small_fields(extra: JsonObject) -> JsonObject:
    return {name: value for name, value in extra.items() if name not in LARGE}


def _results(step: JsonObject) -> list[JsonObject]:
    return [mapping(result) for result in sequence(mapping(step.get("observation")).get("results"))]


def _refs(result: JsonObject) -> list[Any]:
    refs = result.get("subagent_trajectory_ref")
    return refs if isinstance(refs, list) else [] if refs is None else [refs]


def _call(tool_call: JsonObject, time: int | None) -> PendingCall:
    extra = tool_call.get("extra")
    return PendingCall(
        text(tool_call.get("tool_call_id")) or "",
        text(tool_call.get("function_name")) or "",
        tool_call.get("arguments"),
        at=time,
        detail=None if extra is None else {"call": extra},
    )


def _content(content: Any) -> tuple[MessageContent, tuple[FileNote, ...]]:
    """Texts and images; an image is a file beside the trajectory."""
    message_content = content_of(content)
    files = []
    for block in map(mapping, message_content.other_blocks):
        path = text(mapping(block.get("source")).get("path"))
        if block.get("type") == "image" and path is not None and "://" not in path:
            files.append(FileNote(kind=FileKind.ATTACHED, path=path))
    return message_content, tuple(files)


# --- ATIF: a trajectory is one JSON document, or a line of many.

BEGINS = re.compile(rb'\s*\{\s*"[a-z_]+"\s*:')
SIGN = re.compile(rb'"schema_version"\s*:\s*"ATIF-v?\d')
KNOWN_SECTIONS = frozenset(
    {
        "schema_version", "session_id", "trajectory_id", "agent", "notes", "final_metrics", "continued_trajectory_ref",
        "extra",
    }
)  # fmt: skip
LISTS = frozenset({"steps", "subagent_trajectories"})
DEEPEST = 16


class Atif:
    origin = "atif"
    mapping = 1

    def places(self, home: Path, environment: Mapping[str, str]) -> list[Place]:
        """Harbor writes them into the folders of its jobs: name those."""
        return []

    def recognises(self, source: Source) -> bool:
        head = source.head.removeprefix(BOM)
        if source.size <= len(source.head):
            try:
                return is_trajectory(mapping(orjson.loads(head)))
            except orjson.JSONDecodeError:
                pass
        if any(is_trajectory(value) for value in first_objects(head, 4)):
            return True
        return BEGINS.match(head) is not None and SIGN.search(head) is not None

    def is_part(self, source: Source) -> bool:
        return False

    def read(self, source: Source, report: Report) -> Iterator[Transcript]:
        if source.path.suffix in (".jsonl", ".ndjson"):
            for record in records(source, report):
                if is_trajectory(record.value):
                    report.mapped["line"] += 1
                    yield from _Reading(record.value, None, record.end, report).transcripts()
                else:
                    report.kept["line"] += 1
                    report.unknown["line"] += 1
            return
        document = read_document(read_whole(source))
        report_damage(document, report)
        value = mapping(document.value)
        if value:
            yield from _Reading(value, source.path, source.size, report).transcripts()
        elif document.damage is None:
            report.found += 1
            report.damaged += 1
            report.problem(None, f"a JSON {type(document.value).__name__}, not a trajectory")


class _Reading:
    """One trajectory with those of its subagents."""

    def __init__(self, value: JsonObject, path: Path | None, size: int, report: Report) -> None:
        self._value, self._path, self._size, self._report = value, path, size, report

    def transcripts(self) -> Iterator[Transcript]:
        id = trajectory_id(self._value)
        earlier = None if self._path is None else earlier_trajectory(self._path)
        link = None
        if earlier is not None and earlier != id:
            link = NativeLink(to=earlier, why=LinkReason.CONTINUATION, session=earlier)
        yield from self._trajectory(self._value, id, None, None, 0, link)

    def _trajectory(
        self,
        value: JsonObject,
        id: str,
        parent: str | None,
        call: str | None,
        depth: int,
        link: NativeLink | None = None,
    ) -> Iterator[Transcript]:
        self._count_sections(value)
        embedded_by_id = embedded_trajectories(value)
        folder = None if self._path is None else self._path.parent
        agent = mapping(value.get("agent"))
        turns = Turns(agent, lambda ref: referred_trajectory(ref, id, embedded_by_id, folder))
        self._add_steps(value, turns)
        role = AgentRole.WORKER if parent is not None else AgentRole.UNIFIED
        native_turns = turns.finished(id, self._size, mapping(value.get("final_metrics")), role)
        if native_turns:
            native_turns[0].link = link
        yield Transcript(session=_session(value, id, parent, call), turns=native_turns)
        calls = (item for turn in native_turns for item in turn.items if isinstance(item, NativeCall))
        spawns = {call.spawned: call.id for call in calls}
        self._count_unnamed(value, embedded_by_id)
        for name, embedded_value in embedded_by_id.items() if depth < DEEPEST else ():
            child = embedded_id(id, name)
            yield from self._trajectory(embedded_value, child, id, spawns.get(child), depth + 1)

    def _count_sections(self, value: JsonObject) -> None:
        for name in value:
            if name in LISTS:
                continue
            is_known = name in KNOWN_SECTIONS
            self._report.found += 1
            (self._report.mapped if is_known else self._report.kept)[name] += 1
            if not is_known:
                self._report.unknown[name] += 1

    def _add_steps(self, value: JsonObject, turns: Turns) -> None:
        for number, step in enumerate(sequence(value.get("steps")), 1):
            self._report.found += 1
            if not isinstance(step, dict):
                self._report.damaged += 1
                self._report.problem(None, f"step {number} is a JSON {type(step).__name__}, not an object")
                continue
            source = text(step.get("source")) or "none"
            if source not in SOURCES:
                self._report.kept[f"step.{source}"] += 1
                self._report.unknown[f"step.{source}"] += 1
                continue
            self._report.mapped[f"step.{source}"] += 1
            turns.add_step(number, step)

    def _count_unnamed(self, value: JsonObject, embedded_by_id: dict[str, JsonObject]) -> None:
        """Those that cannot be told apart are kept, and counted as such."""
        unnamed_count = len(sequence(value.get("subagent_trajectories"))) - len(embedded_by_id)
        if unnamed_count > 0:
            self._report.found += unnamed_count
            self._report.kept["subagent without id"] += unnamed_count


def _session(value: JsonObject, id: str, parent: str | None, call: str | None) -> NativeSession:
    agent = mapping(value.get("agent"))
    extra = mapping(agent.get("extra"))
    folders, branches = sequence(extra.get("cwds")), sequence(extra.get("git_branches"))
    return NativeSession(
        id=id,
        workspace=text(folders[0]) if folders else text(extra.get("cwd")),
        git_branch=text(branches[0]) if branches else None,
        version=text(agent.get("version")),
        parent=parent,
        spawn_call=call,
        agent=text(agent.get("name")),
        metadata=present(
            schema=text(value.get("schema_version")),
            run=text(value.get("session_id")),
            notes=text(value.get("notes")),
            final_metrics=value.get("final_metrics"),
            continued_in=text(value.get("continued_trajectory_ref")),
            extra=value.get("extra"),
        ),
    )
