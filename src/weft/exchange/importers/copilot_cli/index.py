"""The first pass over a session's events: what each is, which of them make which turn, and what the session cost.

Events are a line, each naming the one before it. A turn is a prompt up to the next one that is not of the same
interaction: what is said while the agent works belongs to the turn under way. The events of a subagent stand among
those of the session that started it, marked with the call that did: they are a session of their own.

A response tells its output tokens alone; all other costs are told by model when the session ends.
"""

from __future__ import annotations

from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace

from weft.exchange.importers.port import Report, Tokens
from weft.exchange.importers.records.jsonl import Record
from weft.exchange.importers.records.planned_turns import Entry, PlannedTurn, TurnPlan, entry_of
from weft.exchange.importers.records.roles import IN_TURNS, Role, count_kept
from weft.exchange.importers.records.values import UniqueKeys, global_name, mapping, present, sequence, text, whole

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
            known = self._known.get(model, {})
            left = {name: max(count - before.get(name, 0) - known.get(name, 0), 0) for name, count in counts.items()}
            if any(left.values()):
                rests[model] = tokens_of(left)
        self._known, self._before = {}, metrics
        return rests


def _metrics(end: dict[str, Any]) -> dict[str, Any]:
    return mapping(end.get("modelMetrics"))


def counts_of(fields: dict[str, Any]) -> Counts:
    return {name: max(_count(fields, name) or 0, 0) for name in COUNTS}


def _count(fields: dict[str, Any], name: str) -> int | None:
    number = whole(fields.get(name))
    return whole(fields.get(OLDER[name])) if number is None and name in OLDER else number


def tokens_of(fields: dict[str, Any]) -> Tokens:
    """Input holds what was read from the cache and written to it."""
    prompt, output, cached, written, reasoning = (_count(fields, name) for name in COUNTS)
    return Tokens(
        input=None if prompt is None else max(prompt - (cached or 0) - (written or 0), 0),
        output=output,
        cached=cached,
        cache_write=written,
        reasoning=reasoning,
    )


def compaction_usage(data: dict[str, Any]) -> tuple[str | None, dict[str, Any]]:
    used = mapping(data.get("compactionTokensUsed"))
    return text(used.get("model")), used


class CopilotTurn(PlannedTurn, kw_only=True):
    settings: Settings
    interaction: str | None = None
    has_calls: bool = False


class Lane(Struct):
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

    def begin(self, turn: CopilotTurn) -> CopilotTurn:
        """Begin a turn with the events that waited for it; a compaction leaves them to the turn after it."""
        if not turn.is_compaction:
            turn.entries, self.waiting = self.waiting, []
        self.current = self.plan.begin(turn)
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
    main: Lane = field(default_factory=Lane)
    agents: dict[str, Lane] = field(default_factory=dict)
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

    def take(self, record: Record) -> None:
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
            others = {name: count for name, count in data.items() if name != "outputTokens"}  # a response tells that
            self._spending.note(text(data.get("model")), others)
        elif kind == "session.compaction_complete":
            self._spending.note(*compaction_usage(data))
        elif kind == "session.shutdown":
            self.index.rests.append(self._spending.sum_up(data))
        elif kind == "tool.execution_start":
            call, prompt = text(data.get("toolCallId")), text(mapping(data.get("arguments")).get("prompt"))
            if call is not None and prompt is not None:
                self.index.tasks[call] = prompt

    def _lane(self, kind: str, value: dict[str, Any], data: dict[str, Any]) -> Lane:
        agent, call = text(value.get("agentId")), text(data.get("parentToolCallId"))
        if kind.startswith("subagent."):
            call = text(data.get("toolCallId")) or call
            if agent is not None and call is not None:
                self._agents[agent] = call
        elif call is None and agent is not None:
            call = self._agents.get(agent, agent)
        is_main = call is None or kind == "session.shutdown"
        return self.index.main if is_main else self.index.agents.setdefault(str(call), Lane())

    def _update_index(self, kind: str, role: Role, data: dict[str, Any], lane: Lane) -> None:
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

    def _rewind(self, to: str | None) -> None:
        """The event and all after it are taken back."""
        turn = self._turns.get(to or "")
        if turn is not None:
            main = self.index.main
            entries = main.plan.entries_of(main.plan.turns[turn])
            main.current = main.plan.turns[turn].parent if entries and entries[0].id == to else turn

    def _place(self, lane: Lane, entry: Entry, role: Role, value: dict[str, Any], data: dict[str, Any]) -> None:
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
        self, lane: Lane, planned: CopilotTurn | None, entry: Entry, value: dict[str, Any], data: dict[str, Any]
    ) -> None:
        interaction = text(data.get("interactionId"))
        is_same = planned is not None and interaction is not None and planned.interaction == interaction
        if planned is None or not is_same:
            parent = lane.current
            if lane is self.index.main and (named := self._turns.get(text(value.get("parentId")) or "")) is not None:
                parent = named
            planned = lane.begin(CopilotTurn(parent=parent, settings=self.index.settings, interaction=interaction))
        lane.add(entry)
        if planned.prompt is None and entry.id is not None:
            planned.prompt = planned.entries[-1]
        planned.is_finished = False

    def _answer(self, lane: Lane, planned: CopilotTurn | None, entry: Entry, data: dict[str, Any]) -> None:
        if planned is None or (planned.is_finished and lane.waiting):
            planned = lane.begin(CopilotTurn(parent=lane.current, settings=self.index.settings))
        elif planned.is_compaction:
            continues = planned.continues
            planned = lane.begin(CopilotTurn(parent=lane.current, settings=self.index.settings, continues=continues))
        lane.add(entry)
        planned.is_answered = True
        planned.is_finished = False
        if entry.kind == "assistant.message":
            planned.has_calls = bool(sequence(data.get("toolRequests")))

    def _compact(self, lane: Lane, planned: CopilotTurn | None, entry: Entry) -> None:
        compaction = CopilotTurn(
            parent=lane.current, settings=self.index.settings, is_compaction=True, is_finished=True
        )
        if planned is not None:
            compaction.interaction = planned.interaction
            compaction.continues = planned.continues if planned.continues is not None else _prompt_id(lane, planned)
        lane.begin(compaction)
        compaction.entries.append(lane.plan.add(entry))

    def finish(self, session: str) -> Index:
        for agent, lane in (("", self.index.main), *self.index.agents.items()):
            if lane.waiting and lane.turn is not None:  # of a turn that never came
                lane.turn.entries += lane.waiting
                lane.waiting = []
            elif lane.waiting:
                lane.begin(CopilotTurn(parent=None, settings=self.index.settings))
            _assign_keys(lane, f"{session}/{agent}" if agent else session)
        return self.index


def _prompt_id(lane: Lane, planned: CopilotTurn) -> str | None:
    return None if planned.prompt is None else lane.plan.entries[planned.prompt].id


def _assign_keys(lane: Lane, session: str) -> None:
    """A turn is known by its prompt's id; an id that could be anybody's carries its session's."""
    keys = UniqueKeys()
    for number, planned in enumerate(lane.plan.turns):
        ids = (entry.id for entry in lane.plan.entries_of(planned) if entry.id)
        first = _prompt_id(lane, planned) or next(ids, None) or f"#{number}"
        key = global_name(session, first)
        if planned.continues is not None:
            key = f"{global_name(session, planned.continues)}#{key}"
        planned.key = keys.claim(key)
