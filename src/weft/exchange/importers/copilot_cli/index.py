"""One pass over a session's events: which of them make which turn, and where they lie.

Events are a line, each naming the one before it. A turn is a prompt up to the next one that is not of the same
interaction: what is said while the agent works belongs to the turn under way. The events of a subagent stand among
those of the session that started it, marked with the call that did: they are a session of their own.
"""

from __future__ import annotations

from typing import Any

from msgspec import Struct, field

from weft.exchange.importers.copilot_cli.kinds import IN_TURNS, KINDS, Standing
from weft.exchange.importers.copilot_cli.settings import Settings
from weft.exchange.importers.copilot_cli.usage import Spending, of_compaction
from weft.exchange.importers.jsonl import Record
from weft.exchange.importers.port import Report
from weft.exchange.importers.transcript import Tokens
from weft.exchange.importers.values import mapping, sequence, text


class Entry(Struct, frozen=True, gc=False):
    """An event of a turn: where it lies, and by which id it is known."""

    kind: str
    id: str | None
    line: int
    offset: int
    end: int


class Plan(Struct):
    """A turn to be."""

    entries: list[Entry]
    parent: int | None
    settings: Settings
    prompt: str | None = None
    interaction: str | None = None
    continues: str | None = None
    """Key of the prompt that this turn goes on answering, behind a compaction."""
    is_compaction: bool = False
    is_answered: bool = False
    has_calls: bool = False
    is_finished: bool = False
    key: str = ""


class Lane(Struct):
    """The turns of the session itself, or of one subagent."""

    plans: list[Plan] = field(default_factory=list)
    at: int | None = None
    """The turn that the next event follows."""
    waiting: list[Entry] = field(default_factory=list)
    """Events that belong to the turn that comes next."""
    told: dict[str, Any] = field(default_factory=dict)
    """Of a subagent: its name, its task and how it ended."""


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
        standing = KINDS.get(kind, Standing.UNKNOWN)
        if standing in (Standing.ASIDE, Standing.UNKNOWN):
            self._report.kept[kind] += 1
            if standing is Standing.UNKNOWN:
                self._report.unknown[kind] += 1
        elif standing not in IN_TURNS:
            self._report.mapped[kind] += 1
        lane = self._lane(kind, value, data)
        self._count(kind, data)
        self._tell(kind, standing, data, lane)
        if standing in IN_TURNS:
            entry = Entry(kind, text(value.get("id")), record.line, record.offset, record.end)
            self._place(lane, entry, standing, value, data)
        if lane is self.index.main and lane.at is not None and (id := text(value.get("id"))) is not None:
            self._turns[id] = lane.at

    def _count(self, kind: str, data: dict[str, Any]) -> None:
        """Costs, in the order of the file, whoever they are of; and the prompts that subagents may be given."""
        if kind == "assistant.message":
            model = text(data.get("model")) or self.index.settings.model
            self._spending.note(model, {"outputTokens": data.get("outputTokens")})
        elif kind == "assistant.usage":
            told = {name: count for name, count in data.items() if name != "outputTokens"}  # its response has told that
            self._spending.note(text(data.get("model")), told)
        elif kind == "session.compaction_complete":
            self._spending.note(*of_compaction(data))
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

    def _tell(self, kind: str, standing: Standing, data: dict[str, Any], lane: Lane) -> None:
        """What an event tells of the session or a subagent, of what turns run with, and of the end of one."""
        index = self.index
        if standing is Standing.AGENT:
            lane.told |= {**data, "outcome": kind.removeprefix("subagent.")}
        elif kind == "session.snapshot_rewind":
            self._rewind(text(data.get("upToEventId")))
        elif kind == "session.title_changed":
            index.title = text(data.get("title")) or index.title
        elif standing in (Standing.SETTING, Standing.SESSION):
            index.start = index.start or (data if kind == "session.start" else {})
            index.settings = index.settings.changed(kind, data)
        elif kind == "session.shutdown" and lane is index.main:
            index.end = data
        if lane.at is not None and standing is Standing.END:
            plan = lane.plans[lane.at]
            plan.is_finished = plan.is_answered and not plan.has_calls

    def _rewind(self, to: str | None) -> None:
        """The event and all after it are taken back."""
        turn = self._turns.get(to or "")
        if turn is not None:
            plan = self.index.main.plans[turn]
            self.index.main.at = plan.parent if plan.entries and plan.entries[0].id == to else turn

    def _place(self, lane: Lane, entry: Entry, standing: Standing, value: dict[str, Any], data: dict[str, Any]) -> None:
        plan = None if lane.at is None else lane.plans[lane.at]
        if standing is Standing.COMPACTION:
            if data.get("success") is False:
                self._add(lane, entry)
            else:
                self._compact(lane, plan, entry)
        elif standing is Standing.PROMPT:
            self._prompt(lane, plan, entry, value, data)
        elif standing is Standing.LEADING or (standing is Standing.INJECTED and (plan is None or plan.is_finished)):
            lane.waiting.append(entry)
        elif standing is Standing.ANSWER:
            self._answer(lane, plan, entry, data)
        else:
            self._add(lane, entry)
            if plan is not None and entry.kind in ("abort", "session.shutdown"):
                plan.is_finished = True

    def _prompt(self, lane: Lane, plan: Plan | None, entry: Entry, value: dict[str, Any], data: dict[str, Any]) -> None:
        interaction = text(data.get("interactionId"))
        same = plan is not None and interaction is not None and plan.interaction == interaction
        if plan is None or not same:
            parent = lane.at
            if lane is self.index.main and (named := self._turns.get(text(value.get("parentId")) or "")) is not None:
                parent = named
            plan = self._begin(lane, parent)
            plan.interaction = interaction
        plan.prompt = plan.prompt or entry.id
        plan.is_finished = False
        self._add(lane, entry)

    def _answer(self, lane: Lane, plan: Plan | None, entry: Entry, data: dict[str, Any]) -> None:
        if plan is None or (plan.is_finished and lane.waiting):
            plan = self._begin(lane, lane.at)
        elif plan.is_compaction:
            plan = self._begin(lane, lane.at, continues=plan.continues)
        self._add(lane, entry)
        plan.is_answered = True
        plan.is_finished = False
        if entry.kind == "assistant.message":
            plan.has_calls = bool(sequence(data.get("toolRequests")))

    def _compact(self, lane: Lane, plan: Plan | None, entry: Entry) -> None:
        amid = None if plan is None else plan.continues if plan.continues is not None else plan.prompt
        interaction = None if plan is None else plan.interaction
        made = self._begin(lane, lane.at, is_compaction=True, is_finished=True, continues=amid)
        made.interaction = interaction
        made.entries.append(entry)

    def _begin(self, lane: Lane, parent: int | None, **what: Any) -> Plan:
        plan = Plan(entries=[], parent=parent, settings=self.index.settings, **what)
        if not plan.is_compaction:
            plan.entries, lane.waiting = lane.waiting, []
        lane.plans.append(plan)
        lane.at = len(lane.plans) - 1
        return plan

    def _add(self, lane: Lane, entry: Entry) -> None:
        """To the turn under way; with what waited for it."""
        if lane.at is None:
            lane.waiting.append(entry)
            return
        plan = lane.plans[lane.at]
        plan.entries += [*lane.waiting, entry]
        lane.waiting = []

    def finish(self, session: str) -> Index:
        for agent, lane in (("", self.index.main), *self.index.agents.items()):
            if lane.waiting:  # of a turn that never came
                if lane.at is None:
                    self._begin(lane, None)
                else:
                    self._add_left(lane)
            _name(lane, f"{session}/{agent}" if agent else session)
        return self.index

    def _add_left(self, lane: Lane) -> None:
        lane.plans[lane.at or 0].entries += lane.waiting
        lane.waiting = []


def _name(lane: Lane, session: str) -> None:
    """A turn is known by its prompt's id; an id that could be anybody's carries its session's."""
    taken: dict[str, int] = {}
    for number, plan in enumerate(lane.plans):
        first = plan.prompt or next((entry.id for entry in plan.entries if entry.id), None) or f"#{number}"
        key = own_name(session, first)
        if plan.continues is not None:
            key = f"{own_name(session, plan.continues)}#{key}"
        plan.key = key
        while plan.key in taken:
            taken[key] += 1
            plan.key = f"{key}~{taken[key]}"
        taken[plan.key] = 1


def own_name(session: str, id: str) -> str:
    return id if len(id) >= 32 else f"{session}/{id}"
