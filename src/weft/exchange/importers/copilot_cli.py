"""Sessions of GitHub Copilot CLI: one file of events each, with the subagents' events among them.

The first pass tells what each event is, which of them make which turn, and what the session cost.
The second pass maps the events of one turn.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from msgspec import UNSET, Struct, field
from msgspec.structs import replace

from weft.exchange.importers.foreign_files import Record, first_objects, open_beneath, records
from weft.exchange.importers.foreign_values import (
    UniqueKeys,
    global_name,
    mapping,
    millis,
    object_in_text,
    present,
    sequence,
    text,
    whole_number,
)
from weft.exchange.importers.native_turns import (
    IN_TURNS,
    Entry,
    PendingCall,
    PlannedTurn,
    Role,
    TurnBuilder,
    TurnPlan,
    count_kept,
    entry_of,
    patched_paths,
    walk_turns,
    written_notes,
)
from weft.exchange.importers.port import (
    NativeCall,
    NativeCompaction,
    NativeMessage,
    NativeSession,
    NativeTurn,
    Place,
    Report,
    Source,
    Tokens,
    Transcript,
)
from weft.kernel.enums import AgentRole, FileKind, MessageRole, MessageSource, ToolCallStatus
from weft.ledger.model import FileNote, ImagePart, Part, ReasoningPart, TextPart

# --- The first pass over a session's events: what each is, which of them make which turn, and what the session cost.

ROLES = {
    "user.message": Role.PROMPT,
    "system.message": Role.PREFACE,
    "system.notification": Role.INJECTED,
    "skill.invoked": Role.INJECTED,
    "assistant.message": Role.ANSWER,
    "assistant.reasoning": Role.ANSWER,
    "assistant.usage": Role.DETAIL,
    "tool.user_requested": Role.ANSWER,
    "tool.execution_start": Role.ANSWER,
    "tool.execution_complete": Role.ANSWER,
    "abort": Role.DETAIL,
    "session.error": Role.DETAIL,
    "session.shutdown": Role.DETAIL,
    "session.truncation": Role.DETAIL,
    "session.task_complete": Role.DETAIL,
    "permission.requested": Role.DETAIL,
    "permission.completed": Role.DETAIL,
    "assistant.turn_end": Role.END,
    "session.idle": Role.END,
    "session.compaction_complete": Role.COMPACTION,
    "session.model_change": Role.SETTING,
    "session.mode_changed": Role.SETTING,
    "session.permissions_changed": Role.SETTING,
    "session.auto_mode_resolved": Role.SETTING,
    "session.start": Role.SESSION,
    "session.resume": Role.SESSION,
    "session.context_changed": Role.SESSION,
    "session.title_changed": Role.SESSION,
    "session.snapshot_rewind": Role.SESSION,
    "subagent.started": Role.AGENT,
    "subagent.completed": Role.AGENT,
    "subagent.failed": Role.AGENT,
    "assistant.turn_start": Role.IGNORED,
    "assistant.intent": Role.IGNORED,
    "assistant.message_delta": Role.IGNORED,
    "assistant.reasoning_delta": Role.IGNORED,
    "assistant.streaming_delta": Role.IGNORED,
    "tool.execution_partial_result": Role.IGNORED,
    "tool.execution_progress": Role.IGNORED,
    "hook.start": Role.IGNORED,
    "hook.end": Role.IGNORED,
    "session.info": Role.IGNORED,
    "session.warning": Role.IGNORED,
    "session.handoff": Role.IGNORED,
    "session.usage_info": Role.IGNORED,
    "session.usage_checkpoint": Role.IGNORED,
    "session.compaction_start": Role.IGNORED,
    "session.plan_changed": Role.IGNORED,
    "session.workspace_file_changed": Role.IGNORED,
    "session.remote_steerable_changed": Role.IGNORED,
    "subagent.selected": Role.IGNORED,
    "subagent.deselected": Role.IGNORED,
    "pending_messages.modified": Role.IGNORED,
}


class Settings(Struct, frozen=True):
    model: str | None = None
    effort: str | None = None
    mode: str | None = None
    allows_all: bool | None = None
    workspace: str | None = None
    branch: str | None = None
    version: str | None = None

    def changed(self, kind: str, data: dict[str, Any]) -> Settings:
        """As they are after an event of this kind."""
        if kind == "session.model_change":
            effort = text(data.get("reasoningEffort"))
            return replace(self, model=text(data.get("newModel")) or self.model, effort=effort or self.effort)
        if kind == "session.auto_mode_resolved":
            return replace(self, model=text(data.get("chosenModel")) or self.model)
        if kind == "session.mode_changed":
            return replace(self, mode=text(data.get("newMode")) or self.mode)
        if kind == "session.permissions_changed":
            allows_all = data.get("allowAllPermissions")
            return replace(self, allows_all=allows_all if isinstance(allows_all, bool) else self.allows_all)
        return self._moved(data)

    def _moved(self, data: dict[str, Any]) -> Settings:
        """A session's start and resumption tell the place within, a change of it as their own fields."""
        context = mapping(data.get("context")) or data
        return replace(
            self,
            workspace=text(context.get("cwd")) or self.workspace,
            branch=text(context.get("branch")) or self.branch,
            version=text(data.get("copilotVersion")) or self.version,
            model=text(data.get("selectedModel")) or self.model,
        )

    def config(self) -> dict[str, Any] | None:
        return present(model=self.model, effort=self.effort, mode=self.mode)


COUNTS = ("inputTokens", "outputTokens", "cacheReadTokens", "cacheWriteTokens", "reasoningTokens")
OLDER = {"inputTokens": "input", "outputTokens": "output", "cacheReadTokens": "cachedInput"}
Counts = dict[str, int]


class Spending:
    """What is told of the session's cost while its events are read."""

    def __init__(self) -> None:
        self._known: dict[str, Counts] = {}
        """By model, what responses have told themselves since the session was last summed up."""
        self._before: dict[str, Counts] = {}

    def note(self, model: str | None, counts: dict[str, Any]) -> None:
        totals = self._known.setdefault(model or "", dict.fromkeys(COUNTS, 0))
        for name, count in counts_of(counts).items():
            totals[name] += count

    def sum_up(self, end: dict[str, Any]) -> dict[str, Tokens]:
        """By model, what no response has told. A session that is resumed goes on counting; one that has less than it
        had has begun anew."""
        metrics = {model: counts_of(mapping(mapping(counts).get("usage"))) for model, counts in _metrics(end).items()}
        goes_on = all(metrics.get(model, {}).get(name, 0) >= count
                      for model, counts in self._before.items() for name, count in counts.items())  # fmt: skip
        rests = {}
        for model, counts in metrics.items():
            before = self._before.get(model, {}) if goes_on else {}
            counted = self._known.get(model, {})
            untold = {
                name: max(count - before.get(name, 0) - counted.get(name, 0), 0) for name, count in counts.items()
            }
            if any(untold.values()):
                rests[model] = tokens_of(untold)
        self._known, self._before = {}, metrics
        return rests


def _metrics(end: dict[str, Any]) -> dict[str, Any]:
    return mapping(end.get("modelMetrics"))


def counts_of(fields: dict[str, Any]) -> Counts:
    return {name: max(_count(fields, name) or 0, 0) for name in COUNTS}


def _count(fields: dict[str, Any], name: str) -> int | None:
    number = whole_number(fields.get(name))
    return whole_number(fields.get(OLDER[name])) if number is None and name in OLDER else number


def tokens_of(fields: dict[str, Any]) -> Tokens:
    """Input holds what was read from the cache and written to it."""
    prompt, output, cached, cache_written, reasoning = (_count(fields, name) for name in COUNTS)
    return Tokens(
        input=None if prompt is None else max(prompt - (cached or 0) - (cache_written or 0), 0),
        output=output,
        cached=cached,
        cache_write=cache_written,
        reasoning=reasoning,
    )


def compaction_usage(data: dict[str, Any]) -> tuple[str | None, dict[str, Any]]:
    used = mapping(data.get("compactionTokensUsed"))
    return text(used.get("model")), used


class CopilotTurn(PlannedTurn, kw_only=True):
    settings: Settings
    interaction: str | None = None
    has_calls: bool = False


class AgentTurns(Struct):
    """The turns of the session itself, or of one subagent."""

    plan: TurnPlan[CopilotTurn] = field(default_factory=TurnPlan[CopilotTurn])
    current: int | None = None
    """The turn that the next event follows."""
    waiting: list[int] = field(default_factory=list)
    """Events that belong to the turn that comes next."""
    agent: dict[str, Any] = field(default_factory=dict)
    """Of a subagent: its name, its task and how it ended."""

    @property
    def turn(self) -> CopilotTurn | None:
        return None if self.current is None else self.plan.turns[self.current]

    def begin_turn(self, turn: CopilotTurn) -> CopilotTurn:
        """Begin a turn with the events that waited for it; a compaction leaves them to the turn after it."""
        if not turn.is_compaction:
            turn.entries, self.waiting = self.waiting, []
        self.current = self.plan.begin_turn(turn)
        return turn

    def add(self, entry: Entry) -> None:
        """To the turn under way, with what waited for it."""
        self.waiting.append(self.plan.add(entry))
        if self.turn is not None:
            self.turn.entries += self.waiting
            self.waiting = []


class Index(Struct):
    start: dict[str, Any] = field(default_factory=dict)
    title: str | None = None
    settings: Settings = field(default_factory=Settings)
    end: dict[str, Any] = field(default_factory=dict)
    main: AgentTurns = field(default_factory=AgentTurns)
    agents: dict[str, AgentTurns] = field(default_factory=dict)
    tasks: dict[str, str] = field(default_factory=dict)
    """What calls have asked a subagent to do."""
    rests: list[dict[str, Tokens]] = field(default_factory=list)
    """Each time the session ended: by model, what no response had told of its cost."""


class Indexer:
    def __init__(self, report: Report) -> None:
        self.index = Index()
        self._report = report
        self._turns: dict[str, int] = {}
        """The session's own turns by the ids of their events."""
        self._agents: dict[str, str] = {}
        """Which call started a subagent, by the subagent's id."""
        self._spending = Spending()

    def plan_record(self, record: Record) -> None:
        value = record.value
        kind, data = text(value.get("type")) or "untyped", mapping(value.get("data"))
        role = ROLES.get(kind, Role.UNKNOWN)
        if role in (Role.IGNORED, Role.UNKNOWN):
            count_kept(self._report, kind, role)
        elif role not in IN_TURNS:
            self._report.mapped[kind] += 1
        lane = self._lane(kind, value, data)
        self._count(kind, data)
        self._update_index(kind, role, data, lane)
        if role in IN_TURNS:
            self._place(lane, entry_of(record, kind), role, value, data)
        if lane is self.index.main and lane.current is not None and (id := text(value.get("id"))) is not None:
            self._turns[id] = lane.current

    def _count(self, kind: str, data: dict[str, Any]) -> None:
        """Costs, in the order of the file, whoever they are of; and the prompts that subagents may be given."""
        if kind == "assistant.message":
            model = text(data.get("model")) or self.index.settings.model
            self._spending.note(model, {"outputTokens": data.get("outputTokens")})
        elif kind == "assistant.usage":
            other_counts = {
                name: count for name, count in data.items() if name != "outputTokens"
            }  # a response tells that
            self._spending.note(text(data.get("model")), other_counts)
        elif kind == "session.compaction_complete":
            self._spending.note(*compaction_usage(data))
        elif kind == "session.shutdown":
            self.index.rests.append(self._spending.sum_up(data))
        elif kind == "tool.execution_start":
            call, prompt = text(data.get("toolCallId")), text(mapping(data.get("arguments")).get("prompt"))
            if call is not None and prompt is not None:
                self.index.tasks[call] = prompt

    def _lane(self, kind: str, value: dict[str, Any], data: dict[str, Any]) -> AgentTurns:
        agent, call = text(value.get("agentId")), text(data.get("parentToolCallId"))
        if kind.startswith("subagent."):
            call = text(data.get("toolCallId")) or call
            if agent is not None and call is not None:
                self._agents[agent] = call
        elif call is None and agent is not None:
            call = self._agents.get(agent, agent)
        is_main = call is None or kind == "session.shutdown"
        return self.index.main if is_main else self.index.agents.setdefault(str(call), AgentTurns())

    def _update_index(self, kind: str, role: Role, data: dict[str, Any], lane: AgentTurns) -> None:
        """What an event tells of the session or a subagent, of what turns run with, and of the end of one."""
        index = self.index
        if role is Role.AGENT:
            lane.agent |= {**data, "outcome": kind.removeprefix("subagent.")}
        elif kind == "session.snapshot_rewind":
            self._rewind(text(data.get("upToEventId")))
        elif kind == "session.title_changed":
            index.title = text(data.get("title")) or index.title
        elif role in (Role.SETTING, Role.SESSION):
            index.start = index.start or (data if kind == "session.start" else {})
            index.settings = index.settings.changed(kind, data)
        elif kind == "session.shutdown" and lane is index.main:
            index.end = data
        if lane.turn is not None and role is Role.END:
            lane.turn.is_finished = lane.turn.is_answered and not lane.turn.has_calls

    def _rewind(self, event: str | None) -> None:
        """The event and all after it are taken back."""
        turn = self._turns.get(event or "")
        if turn is not None:
            main = self.index.main
            entries = main.plan.entries_of(main.plan.turns[turn])
            main.current = main.plan.turns[turn].parent if entries and entries[0].id == event else turn

    def _place(self, lane: AgentTurns, entry: Entry, role: Role, value: dict[str, Any], data: dict[str, Any]) -> None:
        planned = lane.turn
        if role is Role.COMPACTION:
            if data.get("success") is False:
                lane.add(entry)
            else:
                self._compact(lane, planned, entry)
        elif role is Role.PROMPT:
            self._prompt(lane, planned, entry, value, data)
        elif role is Role.PREFACE or (role is Role.INJECTED and (planned is None or planned.is_finished)):
            lane.waiting.append(lane.plan.add(entry))
        elif role is Role.ANSWER:
            self._answer(lane, planned, entry, data)
        else:
            lane.add(entry)
            if planned is not None and entry.kind in ("abort", "session.shutdown"):
                planned.is_finished = True

    def _prompt(
        self, lane: AgentTurns, planned: CopilotTurn | None, entry: Entry, value: dict[str, Any], data: dict[str, Any]
    ) -> None:
        interaction = text(data.get("interactionId"))
        is_same = planned is not None and interaction is not None and planned.interaction == interaction
        if planned is None or not is_same:
            parent = lane.current
            if (
                lane is self.index.main
                and (parent_turn := self._turns.get(text(value.get("parentId")) or "")) is not None
            ):
                parent = parent_turn
            planned = lane.begin_turn(CopilotTurn(parent=parent, settings=self.index.settings, interaction=interaction))
        lane.add(entry)
        if planned.prompt is None and entry.id is not None:
            planned.prompt = planned.entries[-1]
        planned.is_finished = False

    def _answer(self, lane: AgentTurns, planned: CopilotTurn | None, entry: Entry, data: dict[str, Any]) -> None:
        if planned is None or (planned.is_finished and lane.waiting):
            planned = lane.begin_turn(CopilotTurn(parent=lane.current, settings=self.index.settings))
        elif planned.is_compaction:
            continues = planned.continues
            planned = lane.begin_turn(
                CopilotTurn(parent=lane.current, settings=self.index.settings, continues=continues)
            )
        lane.add(entry)
        planned.is_answered = True
        planned.is_finished = False
        if entry.kind == "assistant.message":
            planned.has_calls = bool(sequence(data.get("toolRequests")))

    def _compact(self, lane: AgentTurns, planned: CopilotTurn | None, entry: Entry) -> None:
        compaction = CopilotTurn(
            parent=lane.current, settings=self.index.settings, is_compaction=True, is_finished=True
        )
        if planned is not None:
            compaction.interaction = planned.interaction
            compaction.continues = planned.continues if planned.continues is not None else _prompt_id(lane, planned)
        lane.begin_turn(compaction)
        compaction.entries.append(lane.plan.add(entry))

    def finish(self, session: str) -> Index:
        for agent, lane in (("", self.index.main), *self.index.agents.items()):
            if lane.waiting and lane.turn is not None:  # of a turn that never came
                lane.turn.entries += lane.waiting
                lane.waiting = []
            elif lane.waiting:
                lane.begin_turn(CopilotTurn(parent=None, settings=self.index.settings))
            _assign_keys(lane, f"{session}/{agent}" if agent else session)
        return self.index


def _prompt_id(lane: AgentTurns, planned: CopilotTurn) -> str | None:
    return None if planned.prompt is None else lane.plan.entries[planned.prompt].id


def _assign_keys(lane: AgentTurns, session: str) -> None:
    """A turn is known by its prompt's id; an id that could be anybody's carries its session's."""
    keys = UniqueKeys()
    for number, planned in enumerate(lane.plan.turns):
        ids = (entry.id for entry in lane.plan.entries_of(planned) if entry.id)
        first = _prompt_id(lane, planned) or next(ids, None) or f"#{number}"
        key = global_name(session, first)
        if planned.continues is not None:
            key = f"{global_name(session, planned.continues)}#{key}"
        planned.key = keys.claim(key)


# --- The second pass: the events of one turn of Copilot CLI, mapped to what the ledger takes.

FAILURES = {
    "timeout": ToolCallStatus.TIMEOUT,
    "rejected": ToolCallStatus.CANCELED,
    "denied": ToolCallStatus.CANCELED,
    "cancelled": ToolCallStatus.CANCELED,
    "canceled": ToolCallStatus.CANCELED,
    "aborted": ToolCallStatus.INTERRUPTED,
    "interrupted": ToolCallStatus.INTERRUPTED,
}
READERS = frozenset({"view", "read_file", "show_file"})
WRITERS = frozenset({"edit", "create", "write", "str_replace", "insert"})
SEARCHERS = frozenset({"rg", "grep", "glob"})
EDITOR = "str_replace_editor"


class Call(PendingCall, kw_only=True):
    server: str | None = None

    outcome: dict[str, Any] | None = None
    """The event with the tool's outcome."""

    def finished(self) -> NativeCall:
        diff = shown_diff(self.outcome)
        self.result, self.error, self.status = outcome_of(self.outcome)
        self.detail = present(shown=diff, server=self.server, code=_error_code(self.outcome))
        is_well = self.status is ToolCallStatus.OK
        self.files = files(self.name, self.arguments, mapping(self.arguments), diff) if is_well else ()
        return super().finished()


def outcome_of(outcome: dict[str, Any] | None) -> tuple[Any, str | None, ToolCallStatus | None]:
    if outcome is None:
        return UNSET, None, None
    result = outcome.get("result")
    content = mapping(result).get("content", result)
    if outcome.get("success") is not False:
        return UNSET if content is None else content, None, ToolCallStatus.OK
    failure = mapping(outcome.get("error"))
    error = text(failure.get("message")) or text(outcome.get("error"))
    if error is None:
        error, content = (content if isinstance(content, str) else "failed"), None
    status = FAILURES.get(text(failure.get("code")) or "", ToolCallStatus.ERROR)
    return UNSET if content is None else content, error, status


def _error_code(outcome: dict[str, Any] | None) -> str | None:
    return text(mapping(mapping(outcome).get("error")).get("code"))


def shown_diff(outcome: dict[str, Any] | None) -> str | None:
    """What the person was shown, where it is not what the model was given: a diff, for one."""
    result = mapping(mapping(outcome).get("result"))
    detailed = text(result.get("detailedContent"))
    return detailed if detailed != result.get("content") else None


def files(name: str, raw_arguments: Any, arguments: dict[str, Any], diff: str | None) -> tuple[FileNote, ...]:
    if name == "apply_patch":
        patch_text = text(arguments.get("input")) or text(arguments.get("patch")) or ""
        patch = raw_arguments if isinstance(raw_arguments, str) else patch_text
        return tuple(FileNote(kind=FileKind.WRITTEN, path=path) for path in patched_paths(patch))
    path = text(arguments.get("path")) or text(arguments.get("file_path"))
    command = text(arguments.get("command")) if name == EDITOR else name
    if path is None:
        paths = arguments.get("paths")
        path = text(paths) if name in SEARCHERS else None
    if path is None:
        return ()
    if command in READERS:
        lines = [whole_number(line) for line in sequence(arguments.get("view_range"))]
        start, end = (lines[0], lines[1]) if len(lines) == 2 else (None, None)
        return (FileNote(kind=FileKind.READ, path=path, line_start=start, line_end=end if (end or 0) > 0 else None),)
    if command in WRITERS:
        return written_notes(path, diff)
    return (FileNote(kind=FileKind.REFERENCED, path=path),) if command in SEARCHERS else ()


RESPONSE_FIELDS = ("phase", "apiCallId", "requestId", "chunkIndex", "chunkCount")


class CopilotBuilder(TurnBuilder, kw_only=True):
    """A turn of Copilot CLI, event by event."""

    session: str
    is_subagent: bool
    agents: frozenset[str]
    """Calls that started a subagent."""
    model: str | None
    """In effect, for responses of versions that do not name it."""
    rests: Iterator[dict[str, Tokens]]
    """What the session cost beside what its responses told, for each time it ended."""
    calls: dict[str, Call] = field(default_factory=dict)
    thinking: list[str] = field(default_factory=list)
    permissions: dict[str, dict[str, Any]] = field(default_factory=dict)
    notes: dict[str, Any] = field(default_factory=dict)
    compaction: dict[str, Any] = field(default_factory=dict)

    def add_record(self, entry: Entry, value: dict[str, Any]) -> None:
        self.note_time(value.get("timestamp"))
        HANDLERS[entry.kind](self, value, mapping(value.get("data")))

    def add_prompt(self, event: dict[str, Any], data: dict[str, Any]) -> None:
        typed, sent = text(data.get("content")), text(data.get("transformedContent"))
        source = text(data.get("source"))
        is_event = typed is None or (source is not None and source != "user")
        person = MessageSource.AGENT if self.is_subagent else MessageSource.HUMAN
        words = typed or sent
        images, files = attached_files(data.get("attachments"))
        parts: list[Part] = [TextPart(words)] if words else []
        item = self._message(
            event,
            data,
            MessageRole.USER,
            [*parts, *images],
            source=MessageSource.EVENT if is_event else person,
            context=present(sent=sent if typed and sent != typed else None),
            metadata=present(
                source=source,
                delivery=data.get("delivery"),
                mode=data.get("agentMode"),
                attachments=data.get("attachments"),
            ),
            files=files,
        )
        self.add(["user", text(event.get("id")), typed, sent, [image.url for image in images]], item)

    def add_task(self, call: str, words: str) -> None:
        """What a subagent was asked to do, where only the call that started it says so."""
        item = NativeMessage(role=MessageRole.USER, parts=(TextPart(words),), source=MessageSource.AGENT)
        self.add(["task", call, words], item)

    def add_system(self, event: dict[str, Any], data: dict[str, Any]) -> None:
        self._add_words(event, data, MessageRole.SYSTEM, "system")

    def add_injected(self, event: dict[str, Any], data: dict[str, Any]) -> None:
        metadata = present(kind=data.get("kind"), skill=data.get("name"), path=data.get("path"))
        self._add_words(event, data, MessageRole.USER, "notification", metadata=metadata)

    def _add_words(
        self, event: dict[str, Any], data: dict[str, Any], role: MessageRole, name: str, **fields: Any
    ) -> None:
        words = text(data.get("content")) or ""
        parts: list[Part] = [TextPart(words)] if words else []
        item = self._message(event, data, role, parts, source=MessageSource.EVENT, **fields)
        self.add([name, text(event.get("id")), words], item)

    def add_reasoning(self, event: dict[str, Any], data: dict[str, Any]) -> None:
        words = text(data.get("content"))
        self.add_identity("reasoning", text(event.get("id")), words)
        if words is not None:
            self.thinking.append(words)

    def add_response(self, event: dict[str, Any], data: dict[str, Any]) -> None:
        own_thought, words, model = (
            text(data.get("reasoningText")),
            text(data.get("content")),
            text(data.get("model")) or self.model,
        )
        thoughts = [*self.thinking, *([own_thought] if own_thought and own_thought not in self.thinking else [])]
        self.thinking = []
        parts: list[Part] = [*map(ReasoningPart, thoughts), *([TextPart(words)] if words else [])]
        output = whole_number(data.get("outputTokens"))
        requests = [request for request in sequence(data.get("toolRequests")) if isinstance(request, dict)]
        item = self._message(
            event,
            data,
            MessageRole.ASSISTANT,
            parts,
            model=model,
            tokens=None if output is None else Tokens(output=output),
            metadata=present(**{name: data[name] for name in RESPONSE_FIELDS if data.get(name) is not None}),
        )
        identities = [
            [tool_request.get("toolCallId"), tool_request.get("name"), tool_request.get("arguments")]
            for tool_request in requests
        ]
        self.add(["assistant", item.native, words, thoughts, identities], item)
        for request in requests:
            self._call(request.get("toolCallId"), request.get("name"), request)
        self.error, self.is_interrupted = None, False

    def begin_call(self, event: dict[str, Any], data: dict[str, Any]) -> None:
        """A call that no response asked for (a person did) stands here."""
        call = self._call(data.get("toolCallId"), data.get("toolName"), data)
        call.at = call.at or millis(event.get("timestamp"))
        self.add_identity("begun", call.id)

    def settle_call(self, event: dict[str, Any], data: dict[str, Any]) -> None:
        call = self._call(data.get("toolCallId"), data.get("toolName"), data)
        call.outcome, call.done = data, millis(event.get("timestamp"))
        result = mapping(data.get("result")).get("content", data.get("result"))
        self.add_identity("ended", call.id, data.get("success") is not False, result, data.get("error"))

    def _call(self, id: Any, name: Any, fields: dict[str, Any]) -> Call:
        call = self.calls.get(text(id) or "")
        if call is not None:
            call.name = call.name or text(name) or ""
            call.arguments = object_in_text(fields.get("arguments")) if call.arguments is None else call.arguments
            call.server = call.server or text(fields.get("mcpServerName"))
            return call
        call = Call(id=text(id) or "", name=text(name) or "", arguments=object_in_text(fields.get("arguments")))
        call.server = text(fields.get("mcpServerName"))
        call.spawned = f"{self.session}/{call.id}" if call.id in self.agents else None
        self.calls[call.id] = call
        self.items.append(call)
        return call

    def add_costs(self, event: dict[str, Any], data: dict[str, Any]) -> None:
        """All that the response before it cost."""
        for number in range(len(self.items) - 1, -1, -1):
            item = self.items[number]
            if isinstance(item, NativeMessage) and item.role is MessageRole.ASSISTANT:
                tokens = tokens_of({"outputTokens": item.tokens.output if item.tokens else None, **data})
                self.items[number] = replace(item, tokens=tokens, model=item.model or text(data.get("model")))
                return

    def add_session_costs(self, event: dict[str, Any], data: dict[str, Any]) -> None:
        """What the session cost beside what its responses told: a message without words, for each model."""
        self.add_identity("shutdown", text(event.get("id")))
        for number, (model, tokens) in enumerate(next(self.rests, {}).items()):
            metadata = {"notice": "what the session cost beside the output of its responses"}
            item = self._message(event, {}, MessageRole.SYSTEM, [], source=MessageSource.EVENT, metadata=metadata)
            self.items.append(replace(item, native=f"{item.native}#{number}", model=model, tokens=tokens))

    def add_error(self, event: dict[str, Any], data: dict[str, Any]) -> None:
        self.error = text(data.get("message")) or "error"
        metadata = present(notice="error", type=data.get("errorType"), status=data.get("statusCode"))
        item = self._message(
            event, data, MessageRole.SYSTEM, [TextPart(self.error)], source=MessageSource.EVENT, metadata=metadata
        )
        self.add(["error", text(event.get("id")), self.error], item)

    def note_abort(self, event: dict[str, Any], data: dict[str, Any]) -> None:
        self.is_interrupted = True
        self.add_identity("abort", text(event.get("id")))
        self.notes["abort"] = data.get("reason")

    def note_permission(self, event: dict[str, Any], data: dict[str, Any]) -> None:
        id = text(data.get("requestId")) or text(event.get("id")) or ""
        request, result = mapping(data.get("permissionRequest")), mapping(data.get("result"))
        permission = self.permissions.setdefault(id, {})
        call = text(data.get("toolCallId")) or text(request.get("toolCallId"))
        permission |= present(call=call, kind=request.get("kind"), result=result.get("kind")) or {}

    def note_truncation(self, event: dict[str, Any], data: dict[str, Any]) -> None:
        self.notes.setdefault("truncations", []).append(data)

    def note_completion(self, event: dict[str, Any], data: dict[str, Any]) -> None:
        self.notes["task_complete"] = data

    def take_compaction(self, event: dict[str, Any], data: dict[str, Any]) -> None:
        if data.get("success") is False:
            self.notes.setdefault("failed_compactions", []).append(present(error=data.get("error")))
            return
        self.compaction = data
        summary = text(data.get("summaryContent")) or ""
        model, used = compaction_usage(data)
        tokens = tokens_of(used) if used else None
        parts: list[Part] = [TextPart(summary)] if summary else []
        item = self._message(event, {}, MessageRole.ASSISTANT, parts, model=model, tokens=tokens)
        self.add(["compaction", text(event.get("id")), summary], item)

    def _message(
        self, event: dict[str, Any], data: dict[str, Any], role: MessageRole, parts: list[Part], **fields: Any
    ) -> NativeMessage:
        id, timestamp = text(data.get("messageId")) or text(event.get("id")), event.get("timestamp")
        time = millis(timestamp)
        return NativeMessage(
            role=role,
            parts=tuple(parts),
            native=None if id is None else global_name(self.session, id),
            at=time,
            literal_time=text(timestamp) if time is None else None,
            **fields,
        )


def attached_files(value: Any) -> tuple[list[ImagePart], tuple[FileNote, ...]]:
    """Files, folders and selections that a prompt carries, and the images whose bytes are here."""
    images, notes = [], []
    for attachment in map(mapping, sequence(value)):
        data, mime = text(attachment.get("data")), text(attachment.get("mimeType"))
        if data is not None and mime is not None and mime.startswith("image/"):
            images.append(ImagePart(f"data:{mime};base64,{data}"))
        path = text(attachment.get("path")) or text(attachment.get("filePath"))
        lines = mapping(attachment.get("selection"))
        start, end = (
            whole_number(mapping(lines.get("start")).get("line")),
            whole_number(mapping(lines.get("end")).get("line")),
        )
        if path is not None:
            first, last = (None, None) if start is None else (start + 1, None if end is None else end + 1)
            notes.append(FileNote(kind=FileKind.ATTACHED, path=path, line_start=first, line_end=last))
    return images, tuple(notes)


HANDLERS: dict[str, Callable[[CopilotBuilder, dict[str, Any], dict[str, Any]], None]] = {
    "user.message": CopilotBuilder.add_prompt,
    "system.message": CopilotBuilder.add_system,
    "system.notification": CopilotBuilder.add_injected,
    "skill.invoked": CopilotBuilder.add_injected,
    "assistant.message": CopilotBuilder.add_response,
    "assistant.reasoning": CopilotBuilder.add_reasoning,
    "assistant.usage": CopilotBuilder.add_costs,
    "tool.user_requested": CopilotBuilder.begin_call,
    "tool.execution_start": CopilotBuilder.begin_call,
    "tool.execution_complete": CopilotBuilder.settle_call,
    "abort": CopilotBuilder.note_abort,
    "session.error": CopilotBuilder.add_error,
    "session.shutdown": CopilotBuilder.add_session_costs,
    "session.truncation": CopilotBuilder.note_truncation,
    "session.task_complete": CopilotBuilder.note_completion,
    "permission.requested": CopilotBuilder.note_permission,
    "permission.completed": CopilotBuilder.note_permission,
    "session.compaction_complete": CopilotBuilder.take_compaction,
}


# --- GitHub Copilot CLI: where its sessions lie, and how their events become turns.

FILE = "events.jsonl"
TITLE = re.compile(rb"^(?:summary|name|title):(.+)$", re.MULTILINE)
SMALL_BYTES = 1 << 16
NAMELESS = frozenset({b"|", b"|-", b">", b">-", b"null", b"~"})


class CopilotCli:
    origin = "copilot-cli"
    mapping = 1

    def places(self, home: Path, environment: Mapping[str, str]) -> list[Place]:
        folder = environment.get("COPILOT_HOME")
        return [Place((Path(folder) if folder else home / ".copilot") / "session-state", "GitHub Copilot CLI")]

    def recognises(self, source: Source) -> bool:
        is_named = source.path.name == FILE
        return any(is_event(value) or (is_named and is_short_event(value)) for value in first_objects(source.head))

    def is_part(self, source: Source) -> bool:
        return False

    def read(self, source: Source, report: Report) -> Iterator[Transcript]:
        indexer = Indexer(report)
        for record in records(source, report):
            indexer.plan_record(record)
        if not report.found:
            return
        path = source.path
        fallback = path.parent.name if path.name == FILE else path.stem
        id = text(indexer.index.start.get("sessionId")) or fallback
        index = indexer.finish(id)
        rests = iter(index.rests)
        yield Transcript(
            session=session_of(index, id, path), turns=_turns(source, index, index.main, None, rests, report, id)
        )
        for call, lane in index.agents.items():
            session = agent_session(index, lane, id, call)
            yield Transcript(session=session, turns=_turns(source, index, lane, call, rests, report, session.id))


def is_event(value: dict[str, Any]) -> bool:
    return is_short_event(value) and "timestamp" in value and "parentId" in value


def is_short_event(value: dict[str, Any]) -> bool:
    """Also one without its time and its place: enough in a file that is called as Copilot calls it."""
    return text(value.get("type")) in ROLES and isinstance(value.get("data"), dict)


def session_of(index: Index, id: str, path: Path) -> NativeSession:
    start, end = index.start, index.end
    context = mapping(start.get("context"))
    return NativeSession(
        id=id,
        title=index.title or _title_beside(path),
        workspace=text(context.get("cwd")) or index.settings.workspace,
        git_branch=text(context.get("branch")),
        version=text(start.get("copilotVersion")),
        created=millis(start.get("startTime")),
        metadata=present(
            producer=start.get("producer"),
            repository=context.get("repository"),
            git_root=context.get("gitRoot"),
            commit=context.get("headCommit"),
            end=end.get("shutdownType"),
            metrics=end.get("modelMetrics"),
            changes=end.get("codeChanges"),
            premium_requests=end.get("totalPremiumRequests"),
        ),
    )


def _title_beside(path: Path) -> str | None:
    """What the session is called, in the file beside its events."""
    try:
        with open_beneath(path.with_name("workspace.yaml"), path.parent) as file:
            match = TITLE.search(file.read(SMALL_BYTES)) if path.name == FILE else None
    except OSError:
        return None
    title = b"" if match is None else match[1].strip(b" \t\r")
    if len(title) > 2 and title[:1] in (b"'", b'"') and title.endswith(title[:1]):
        title = title[1:-1]
    return None if title in NAMELESS else text(title.decode(errors="replace").strip())


def agent_session(index: Index, lane: AgentTurns, parent: str, call: str) -> NativeSession:
    agent = lane.agent
    return NativeSession(
        id=f"{parent}/{call}",
        title=text(agent.get("agentDisplayName")),
        workspace=index.settings.workspace,
        parent=parent,
        spawn_call=call,
        task=text(agent.get("agentDescription")),
        agent=text(agent.get("agentName")),
        metadata=present(
            outcome=agent.get("outcome"),
            error=agent.get("error"),
            tokens=agent.get("totalTokens"),
            calls=agent.get("totalToolCalls"),
            duration_ms=agent.get("durationMs"),
        ),
    )


def _turns(
    source: Source,
    index: Index,
    lane: AgentTurns,
    call: str | None,
    rests: Iterator[dict[str, Tokens]],
    report: Report,
    id: str,
) -> Iterator[NativeTurn]:
    """Of the session called `id`; of a subagent, by the call that started it."""
    last = len(lane.plan.turns) - 1

    def builder_of(number: int, planned: CopilotTurn) -> CopilotBuilder:
        builder = CopilotBuilder(
            session=id,
            is_subagent=call is not None,
            agents=frozenset(index.agents),
            model=planned.settings.model,
            rests=rests,
        )
        if call is not None and number == 0 and planned.prompt is None and call in index.tasks:
            builder.add_task(call, index.tasks[call])
        return builder

    def turn_of(number: int, planned: CopilotTurn, builder: CopilotBuilder) -> NativeTurn:
        settings, entries = planned.settings, lane.plan.entries_of(planned)
        is_over = planned.is_finished or lane.agent.get("outcome") in ("completed", "failed")
        return builder.turn(
            planned,
            entries,
            names=_names(entries),
            compaction=_compaction(planned, builder.compaction),
            closed=number < last or is_over,
            role=AgentRole.UNIFIED if call is None else AgentRole.WORKER,
            workspace=settings.workspace,
            git_branch=settings.branch,
            version=settings.version,
            permissions=present(asked=list(builder.permissions.values()), allow_all=settings.allows_all),
            config=settings.config(),
            metadata=present(**builder.notes),
        )

    return walk_turns(source, lane.plan, report, builder_of, turn_of)


def _names(entries: list[Entry]) -> tuple[str, ...]:
    return tuple(entry.id for entry in entries if entry.id is not None and len(entry.id) >= 32)


def _compaction(planned: CopilotTurn, data: dict[str, Any]) -> NativeCompaction | None:
    if not planned.is_compaction:
        return None
    used = mapping(data.get("compactionTokensUsed"))
    return NativeCompaction(
        summary=text(data.get("summaryContent")) or "",
        model=text(used.get("model")),
        trigger=text(data.get("trigger")),
        tokens_before=whole_number(data.get("preCompactionTokens")),
        tokens_after=whole_number(data.get("postCompactionTokens")),
        duration_ms=whole_number(used.get("duration")),
        metadata=present(checkpoint=data.get("checkpointPath"), instructions=data.get("customInstructions")),
    )
