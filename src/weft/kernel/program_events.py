"""The programs' kinds of event: what was made, configured and published, and what agents, tasks
and people did; and, for each kind of program, the events that create, configure and move it, and
its states.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import ClassVar

from msgspec import UNSET, Struct, UnsetType

from weft.kernel import ledger_events as ledger
from weft.kernel.enums import CriterionType, EventClass, InfoType, MessageSource, Presence, ProgramKind
from weft.kernel.events import Content, Digest, ErrorFact, Event, Reference, Time, Ulid

# --- The programs' kinds: what was made, configured and published, and what agents, tasks and people did.


class Created(Event, frozen=True, gc=False, kw_only=True):
    """What every event has that makes a program."""

    category: ClassVar[EventClass] = EventClass.TRANSITION

    name: Content
    config: Content
    references: tuple[Reference, ...] | UnsetType = UNSET
    applied: bool | UnsetType = UNSET


class ConfiguredEvent(Event, frozen=True, gc=False, kw_only=True):
    """The same of events that give one another configuration, whole."""

    category: ClassVar[EventClass] = EventClass.TRANSITION

    config: Content
    references: tuple[Reference, ...] | UnsetType = UNSET
    applied: bool | UnsetType = UNSET
    reverts: int | UnsetType = UNSET
    reason: Content | UnsetType = UNSET


class LifecycleEvent(Event, frozen=True, gc=False, kw_only=True):
    """A step of a program's lifecycle, with a reason where somebody gave one."""

    category: ClassVar[EventClass] = EventClass.TRANSITION

    reason: Content | UnsetType = UNSET


class CodeCreated(Created, frozen=True, gc=False, kw_only=True, tag="code_created"):
    about: ClassVar[str] = "A code program got an id, a name and a configuration."


class ProviderCreated(Created, frozen=True, gc=False, kw_only=True, tag="provider_created"):
    about: ClassVar[str] = "A provider got an id, a name and a configuration."


class ModelCreated(Created, frozen=True, gc=False, kw_only=True, tag="model_created"):
    about: ClassVar[str] = "A model got an id, a name and a configuration."


class TaskCreated(Created, frozen=True, gc=False, kw_only=True, tag="task_created"):
    about: ClassVar[str] = "A task got an id, a name and a configuration."


class InformationCreated(Created, frozen=True, gc=False, kw_only=True, tag="information_created"):
    about: ClassVar[str] = "A piece of information got an id, a name and a configuration."

    info_type: InfoType


class HumanCreated(Created, frozen=True, gc=False, kw_only=True, tag="human_created"):
    about: ClassVar[str] = "A person got an id, a name and a configuration."


class ToolsetCreated(Created, frozen=True, gc=False, kw_only=True, tag="toolset_created"):
    about: ClassVar[str] = "A toolset got an id, a name and a configuration."


class TriggerCreated(Created, frozen=True, gc=False, kw_only=True, tag="trigger_created"):
    about: ClassVar[str] = "A trigger got an id, a name and a configuration."


class CodeConfigured(ConfiguredEvent, frozen=True, gc=False, kw_only=True, tag="code_configured"):
    about: ClassVar[str] = "A code program got another configuration; `reverts` is the version it takes up again."


class ProviderConfigured(ConfiguredEvent, frozen=True, gc=False, kw_only=True, tag="provider_configured"):
    about: ClassVar[str] = "A provider got another configuration; `reverts` is the version it takes up again."


class ModelConfigured(ConfiguredEvent, frozen=True, gc=False, kw_only=True, tag="model_configured"):
    about: ClassVar[str] = "A model got another configuration; `reverts` is the version it takes up again."


class TaskConfigured(ConfiguredEvent, frozen=True, gc=False, kw_only=True, tag="task_configured"):
    about: ClassVar[str] = "A task got another configuration; `reverts` is the version it takes up again."


class InformationUpdated(ConfiguredEvent, frozen=True, gc=False, kw_only=True, tag="information_updated"):
    about: ClassVar[str] = "A piece of information says something else."

    info_type: InfoType


class HumanConfigured(ConfiguredEvent, frozen=True, gc=False, kw_only=True, tag="human_configured"):
    about: ClassVar[str] = "A person got another configuration; `reverts` is the version it takes up again."


class ToolsetConfigured(ConfiguredEvent, frozen=True, gc=False, kw_only=True, tag="toolset_configured"):
    about: ClassVar[str] = "A toolset got another configuration; `reverts` is the version it takes up again."


class TriggerConfigured(ConfiguredEvent, frozen=True, gc=False, kw_only=True, tag="trigger_configured"):
    about: ClassVar[str] = "A trigger got another configuration; `reverts` is the version it takes up again."


class SessionConfigured(ConfiguredEvent, frozen=True, gc=False, kw_only=True, tag="session_configured"):
    about: ClassVar[str] = "A session got another configuration; `reverts` is the version it takes up again."


class AgentConfigured(ConfiguredEvent, frozen=True, gc=False, kw_only=True, tag="agent_configured"):
    about: ClassVar[str] = "An agent got another configuration; `reverts` is the version it takes up again."


class ProgramPublished(LifecycleEvent, frozen=True, gc=False, kw_only=True, tag="program_published"):
    about: ClassVar[str] = "A program may be used."


class ProgramDeprecated(LifecycleEvent, frozen=True, gc=False, kw_only=True, tag="program_deprecated"):
    about: ClassVar[str] = "A program should not be used any longer."


class ProgramDeleted(LifecycleEvent, frozen=True, gc=False, kw_only=True, tag="program_deleted"):
    about: ClassVar[str] = "A program is hidden and its name is free; its history stays."


class SessionPaused(LifecycleEvent, frozen=True, gc=False, kw_only=True, tag="session_paused"):
    about: ClassVar[str] = "A session takes no turns for now; messages wait."


class SessionResumed(LifecycleEvent, frozen=True, gc=False, kw_only=True, tag="session_resumed"):
    about: ClassVar[str] = "A paused session goes on."


class SessionCompleted(LifecycleEvent, frozen=True, gc=False, kw_only=True, tag="session_completed"):
    about: ClassVar[str] = "A session takes no more turns."


class SessionModelSwitched(LifecycleEvent, frozen=True, gc=False, kw_only=True, tag="session_model_switched"):
    about: ClassVar[str] = "A session asks another model from now on."

    model: Ulid


class AgentTaskAssigned(LifecycleEvent, frozen=True, gc=False, kw_only=True, tag="agent_task_assigned"):
    about: ClassVar[str] = "An agent got a task, and a session to work on it."

    task: Ulid
    session: Ulid


class AgentShared(LifecycleEvent, frozen=True, gc=False, kw_only=True, tag="agent_shared"):
    about: ClassVar[str] = "A private agent works for one more person or agent."

    principal: Ulid


class AgentUnshared(LifecycleEvent, frozen=True, gc=False, kw_only=True, tag="agent_unshared"):
    about: ClassVar[str] = "A private agent works for that person or agent no longer."

    principal: Ulid


class AgentThinking(LifecycleEvent, frozen=True, gc=False, kw_only=True, tag="agent_thinking"):
    about: ClassVar[str] = "An agent asks its model: one more turn of its work."


class AgentExecuting(LifecycleEvent, frozen=True, gc=False, kw_only=True, tag="agent_executing"):
    about: ClassVar[str] = "An agent acts on an answer."


class AgentWaiting(LifecycleEvent, frozen=True, gc=False, kw_only=True, tag="agent_waiting"):
    about: ClassVar[str] = "An agent waits for somebody or something."


class AgentPaused(LifecycleEvent, frozen=True, gc=False, kw_only=True, tag="agent_paused"):
    about: ClassVar[str] = "An agent was paused; `agent_resumed` takes it back to where it was."


class AgentResumed(LifecycleEvent, frozen=True, gc=False, kw_only=True, tag="agent_resumed"):
    about: ClassVar[str] = "A paused agent goes on where it was."


class AgentFailed(LifecycleEvent, frozen=True, gc=False, kw_only=True, tag="agent_failed"):
    about: ClassVar[str] = "An agent stopped with an error."

    error: ErrorFact | UnsetType = UNSET


class AgentCompleted(LifecycleEvent, frozen=True, gc=False, kw_only=True, tag="agent_completed"):
    about: ClassVar[str] = "An agent is done with its task and idle again."


class AgentCheckpoint(Event, frozen=True, gc=False, kw_only=True, tag="agent_checkpoint"):
    about: ClassVar[str] = "The state of an agent after so many turns, from which it can go on."
    category: ClassVar[EventClass] = EventClass.OBSERVATION

    turns: int
    state: Content


class AgentReset(LifecycleEvent, frozen=True, gc=False, kw_only=True, tag="agent_reset"):
    about: ClassVar[str] = "An agent is idle again, whatever it was doing, without a task."


class TaskAssigned(LifecycleEvent, frozen=True, gc=False, kw_only=True, tag="task_assigned"):
    about: ClassVar[str] = "A task is somebody's; null: nobody's any longer."

    assignee: Ulid | None


class TaskStarted(LifecycleEvent, frozen=True, gc=False, kw_only=True, tag="task_started"):
    about: ClassVar[str] = "Work on a task began."


class TaskBlocked(LifecycleEvent, frozen=True, gc=False, kw_only=True, tag="task_blocked"):
    about: ClassVar[str] = "A task waits for others."

    by: tuple[Ulid, ...]


class TaskUnblocked(LifecycleEvent, frozen=True, gc=False, kw_only=True, tag="task_unblocked"):
    about: ClassVar[str] = "Nothing is in the way of a task any longer."


class TaskChecked(Event, frozen=True, gc=False, kw_only=True, tag="task_checked"):
    about: ClassVar[str] = "A success criterion of a task, by its place from 0, was held against what is there."
    category: ClassVar[EventClass] = EventClass.OBSERVATION

    criterion: int
    type: CriterionType
    passed: bool
    observed: Content
    turn: Ulid | UnsetType = UNSET
    """The turn whose answer was judged."""


class TaskCompleted(LifecycleEvent, frozen=True, gc=False, kw_only=True, tag="task_completed"):
    about: ClassVar[str] = "A task is done; what was checked before says so."

    result: Content | UnsetType = UNSET


class TaskFailed(LifecycleEvent, frozen=True, gc=False, kw_only=True, tag="task_failed"):
    about: ClassVar[str] = "A task will not be done."


class InformationValidated(LifecycleEvent, frozen=True, gc=False, kw_only=True, tag="information_validated"):
    about: ClassVar[str] = "It fits its schema; `schema` and `version` name that, where it has one."

    schema: Ulid | UnsetType = UNSET
    version: int | UnsetType = UNSET


class InformationActivated(LifecycleEvent, frozen=True, gc=False, kw_only=True, tag="information_activated"):
    about: ClassVar[str] = "It is in use: for the first time, or again."


class InformationArchived(LifecycleEvent, frozen=True, gc=False, kw_only=True, tag="information_archived"):
    about: ClassVar[str] = "It is put away and can be taken up again."


class HumanPresence(Event, frozen=True, gc=False, kw_only=True, tag="human_presence"):
    about: ClassVar[str] = "A person is available, busy, away or offline."
    category: ClassVar[EventClass] = EventClass.OBSERVATION

    presence: Presence


class HumanNotified(Event, frozen=True, gc=False, kw_only=True, tag="human_notified"):
    about: ClassVar[str] = "A person is told something; with `asks` an answer is wanted."
    category: ClassVar[EventClass] = EventClass.INTENT

    request: Ulid
    text: Content
    asks: bool
    program: Ulid | UnsetType = UNSET
    data: Content | UnsetType = UNSET


class HumanApproved(LifecycleEvent, frozen=True, gc=False, kw_only=True, tag="human_approved"):
    about: ClassVar[str] = "A person said yes to what was asked."

    request: Ulid


class HumanRejected(LifecycleEvent, frozen=True, gc=False, kw_only=True, tag="human_rejected"):
    about: ClassVar[str] = "A person said no to what was asked."

    request: Ulid


class TriggerPaused(LifecycleEvent, frozen=True, gc=False, kw_only=True, tag="trigger_paused"):
    about: ClassVar[str] = "A trigger fires no more until it is resumed; repeated errors pause it by themselves."


class TriggerResumed(LifecycleEvent, frozen=True, gc=False, kw_only=True, tag="trigger_resumed"):
    about: ClassVar[str] = "A paused trigger fires again."


class TriggerFired(Event, frozen=True, gc=False, kw_only=True, tag="trigger_fired"):
    """The event that a trigger fired for an occasion."""

    about: ClassVar[str] = (
        "A trigger fired for one occasion: it sent a message, posted one to a conversation, or failed with `error`."
        " `due` is the time that its schedule named. No `payload` is written: what it was told of stands in its message"
        " alone, where it can be erased."
    )
    category: ClassVar[EventClass] = EventClass.TRANSITION

    occasion: Digest
    source: MessageSource
    due: Time | UnsetType = UNSET
    message: Ulid | UnsetType = UNSET
    posted: Ulid | UnsetType = UNSET
    cause: Ulid | UnsetType = UNSET
    """The turn, message or program whose event it answered."""
    payload: Content | UnsetType = UNSET
    hops: int | UnsetType = UNSET
    """How many firings lie between it and what no trigger caused."""
    error: ErrorFact | UnsetType = UNSET


class TriggerMissed(Event, frozen=True, gc=False, kw_only=True, tag="trigger_missed"):
    """The event that a trigger did not fire at times of its schedule."""

    about: ClassVar[str] = "A trigger did not fire at so many times of its schedule, the first and the last of them."
    category: ClassVar[EventClass] = EventClass.OBSERVATION

    count: int
    first: Time
    last: Time
    reason: Content | UnsetType = UNSET


ProgramEvent = (
    CodeCreated
    | ProviderCreated
    | ModelCreated
    | TaskCreated
    | InformationCreated
    | HumanCreated
    | ToolsetCreated
    | TriggerCreated
    | CodeConfigured
    | ProviderConfigured
    | ModelConfigured
    | TaskConfigured
    | InformationUpdated
    | HumanConfigured
    | ToolsetConfigured
    | TriggerConfigured
    | SessionConfigured
    | AgentConfigured
    | ProgramPublished
    | ProgramDeprecated
    | ProgramDeleted
    | SessionPaused
    | SessionResumed
    | SessionCompleted
    | SessionModelSwitched
    | AgentTaskAssigned
    | AgentShared
    | AgentUnshared
    | AgentThinking
    | AgentExecuting
    | AgentWaiting
    | AgentPaused
    | AgentResumed
    | AgentFailed
    | AgentCompleted
    | AgentCheckpoint
    | AgentReset
    | TaskAssigned
    | TaskStarted
    | TaskBlocked
    | TaskUnblocked
    | TaskChecked
    | TaskCompleted
    | TaskFailed
    | InformationValidated
    | InformationActivated
    | InformationArchived
    | HumanPresence
    | HumanNotified
    | HumanApproved
    | HumanRejected
    | TriggerPaused
    | TriggerResumed
    | TriggerFired
    | TriggerMissed
)


# --- What the log knows of each kind of program: the events that create, configure and move it, and its states.

Verbs = Mapping[str, Mapping[str, str]]
"""By verb: the states it starts from, and the state that each of them leads to."""
BEFORE = "(before)"


class KindFacts(Struct, frozen=True, kw_only=True):
    """One kind of program as events record it."""

    name: str
    created: type[Event]
    configured: type[Event]
    first_state: str
    verbs: Verbs
    steps: Mapping[str, type[Event]] = MappingProxyType({})
    """The event that records a verb. A verb without one is recorded by an event of several verbs, or follows from
    another event."""
    stream: str = "program"
    """In which kind of stream its events stand: a session's are in its session's."""
    is_activity: bool = False
    """Its state says what it is doing (`state`), not how far it has come (`lifecycle`)."""
    acts: bool = False
    """It can be the actor of an event."""

    def verb_of(self, event: type[Event]) -> str | None:
        """The verb that an event records of this kind; None where it records none."""
        return next((verb for verb, kind in self.steps.items() if kind is event), None)


_PUBLISHED: Verbs = {"publish": {"draft": "published"}, "deprecate": {"published": "deprecated"}}
_PUBLISHED_STEPS = {"publish": ProgramPublished, "deprecate": ProgramDeprecated}
_WORKING = ("thinking", "executing", "waiting")
_AGENT = ("idle", *_WORKING, "error")

CODE = KindFacts(
    name=ProgramKind.CODE,
    created=CodeCreated,
    configured=CodeConfigured,
    first_state="draft",
    verbs=_PUBLISHED,
    steps=_PUBLISHED_STEPS,
)
PROVIDER = KindFacts(
    name=ProgramKind.PROVIDER,
    created=ProviderCreated,
    configured=ProviderConfigured,
    first_state="draft",
    verbs=_PUBLISHED,
    steps=_PUBLISHED_STEPS,
)
MODEL = KindFacts(
    name=ProgramKind.MODEL,
    created=ModelCreated,
    configured=ModelConfigured,
    first_state="draft",
    verbs=_PUBLISHED,
    steps=_PUBLISHED_STEPS,
)
SESSION = KindFacts(
    name=ProgramKind.SESSION,
    created=ledger.SessionCreated,
    configured=SessionConfigured,
    first_state="created",
    verbs={
        "begin": {"created": "active"},
        "pause": {"active": "paused"},
        "resume": {"paused": "active"},
        "complete": {"active": "completed", "paused": "completed"},
    },
    steps={
        "pause": SessionPaused,
        "resume": SessionResumed,
        "complete": SessionCompleted,
    },
    stream="session",
)
AGENT = KindFacts(
    name=ProgramKind.AGENT,
    created=ledger.AgentCreated,
    configured=AgentConfigured,
    first_state="idle",
    verbs={
        "think": {"idle": "thinking", "executing": "thinking", "waiting": "thinking"},
        "execute": {"thinking": "executing"},
        "wait": {"thinking": "waiting", "executing": "waiting"},
        "pause": dict.fromkeys(_AGENT, "paused"),
        "resume": {"paused": BEFORE},
        "fail": dict.fromkeys(("idle", *_WORKING, "paused"), "error"),
        "complete": dict.fromkeys(_WORKING, "idle"),
        "reset": dict.fromkeys((*_AGENT, "paused"), "idle"),
    },
    steps={
        "think": AgentThinking,
        "execute": AgentExecuting,
        "wait": AgentWaiting,
        "pause": AgentPaused,
        "resume": AgentResumed,
        "fail": AgentFailed,
        "complete": AgentCompleted,
        "reset": AgentReset,
    },
    is_activity=True,
    acts=True,
)
TASK = KindFacts(
    name=ProgramKind.TASK,
    created=TaskCreated,
    configured=TaskConfigured,
    first_state="pending",
    verbs={
        "start": {"pending": "active"},
        "block": {"active": "blocked"},
        "unblock": {"blocked": "active"},
        "complete": {"active": "completed"},
        "fail": {"active": "failed"},
    },
    steps={
        "start": TaskStarted,
        "block": TaskBlocked,
        "unblock": TaskUnblocked,
        "complete": TaskCompleted,
        "fail": TaskFailed,
    },
)
INFORMATION = KindFacts(
    name=ProgramKind.INFORMATION,
    created=InformationCreated,
    configured=InformationUpdated,
    first_state="draft",
    verbs={
        "validate": {"draft": "validated"},
        "activate": {"validated": "active", "archived": "active"},
        "archive": {"active": "archived"},
    },
    steps={
        "validate": InformationValidated,
        "activate": InformationActivated,
        "archive": InformationArchived,
    },
)
HUMAN = KindFacts(
    name=ProgramKind.HUMAN,
    created=HumanCreated,
    configured=HumanConfigured,
    first_state="available",
    verbs={
        "available": dict.fromkeys(("busy", "away", "offline"), "available"),
        "busy": {"available": "busy"},
        "away": dict.fromkeys(("available", "busy"), "away"),
        "offline": dict.fromkeys(("available", "busy", "away"), "offline"),
    },
    is_activity=True,
    acts=True,
)
TOOLSET = KindFacts(
    name=ProgramKind.TOOLSET,
    created=ToolsetCreated,
    configured=ToolsetConfigured,
    first_state="active",
    verbs={},
)
TRIGGER = KindFacts(
    name=ProgramKind.TRIGGER,
    created=TriggerCreated,
    configured=TriggerConfigured,
    first_state="active",
    verbs={"pause": {"active": "paused"}, "resume": {"paused": "active"}},
    steps={"pause": TriggerPaused, "resume": TriggerResumed},
    acts=True,
)
PROGRAM_KINDS: dict[str, KindFacts] = {
    facts.name: facts for facts in (CODE, PROVIDER, MODEL, SESSION, AGENT, TASK, INFORMATION, HUMAN, TOOLSET, TRIGGER)
}


def next_state(kind: str, state: str, verb: str, before: str | None = None) -> str | None:
    """The state that a verb leads to; None where it may not be done. `before` is where a paused agent was."""
    facts = PROGRAM_KINDS[kind]
    target = facts.verbs.get(verb, {}).get(state)
    return (before or facts.first_state) if target == BEFORE else target


def legal_verbs(kind: str, state: str, before: str | None = None) -> dict[str, str]:
    """Every verb that may be done now, and the state it leads to."""
    targets = ((verb, next_state(kind, state, verb, before)) for verb in PROGRAM_KINDS[kind].verbs)
    return {verb: target for verb, target in targets if target is not None}
