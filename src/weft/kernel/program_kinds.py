"""What the log knows of each kind of program: the events that create, configure and move it, and its states.

One row for each kind. A verb takes a program from one state to another. `BEFORE` stands for the state that a paused
agent was in. An event of another replica that does not fit the state here leaves the state as it is: the views follow
these rows, too.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from msgspec import Struct

from weft.kernel import ledger_events as ledger
from weft.kernel import program_events as program
from weft.kernel.enums import ProgramKind
from weft.kernel.events import Event

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
_PUBLISHED_STEPS = {"publish": program.ProgramPublished, "deprecate": program.ProgramDeprecated}
_WORKING = ("thinking", "executing", "waiting")
_AGENT = ("idle", *_WORKING, "error")

CODE = KindFacts(
    name=ProgramKind.CODE,
    created=program.CodeCreated,
    configured=program.CodeConfigured,
    first_state="draft",
    verbs=_PUBLISHED,
    steps=_PUBLISHED_STEPS,
)
PROVIDER = KindFacts(
    name=ProgramKind.PROVIDER,
    created=program.ProviderCreated,
    configured=program.ProviderConfigured,
    first_state="draft",
    verbs=_PUBLISHED,
    steps=_PUBLISHED_STEPS,
)
MODEL = KindFacts(
    name=ProgramKind.MODEL,
    created=program.ModelCreated,
    configured=program.ModelConfigured,
    first_state="draft",
    verbs=_PUBLISHED,
    steps=_PUBLISHED_STEPS,
)
SESSION = KindFacts(
    name=ProgramKind.SESSION,
    created=ledger.SessionCreated,
    configured=program.SessionConfigured,
    first_state="created",
    verbs={
        "begin": {"created": "active"},
        "pause": {"active": "paused"},
        "resume": {"paused": "active"},
        "complete": {"active": "completed", "paused": "completed"},
    },
    steps={
        "pause": program.SessionPaused,
        "resume": program.SessionResumed,
        "complete": program.SessionCompleted,
    },
    stream="session",
)
AGENT = KindFacts(
    name=ProgramKind.AGENT,
    created=ledger.AgentCreated,
    configured=program.AgentConfigured,
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
        "think": program.AgentThinking,
        "execute": program.AgentExecuting,
        "wait": program.AgentWaiting,
        "pause": program.AgentPaused,
        "resume": program.AgentResumed,
        "fail": program.AgentFailed,
        "complete": program.AgentCompleted,
        "reset": program.AgentReset,
    },
    is_activity=True,
    acts=True,
)
TASK = KindFacts(
    name=ProgramKind.TASK,
    created=program.TaskCreated,
    configured=program.TaskConfigured,
    first_state="pending",
    verbs={
        "start": {"pending": "active"},
        "block": {"active": "blocked"},
        "unblock": {"blocked": "active"},
        "complete": {"active": "completed"},
        "fail": {"active": "failed"},
    },
    steps={
        "start": program.TaskStarted,
        "block": program.TaskBlocked,
        "unblock": program.TaskUnblocked,
        "complete": program.TaskCompleted,
        "fail": program.TaskFailed,
    },
)
INFORMATION = KindFacts(
    name=ProgramKind.INFORMATION,
    created=program.InformationCreated,
    configured=program.InformationUpdated,
    first_state="draft",
    verbs={
        "validate": {"draft": "validated"},
        "activate": {"validated": "active", "archived": "active"},
        "archive": {"active": "archived"},
    },
    steps={
        "validate": program.InformationValidated,
        "activate": program.InformationActivated,
        "archive": program.InformationArchived,
    },
)
HUMAN = KindFacts(
    name=ProgramKind.HUMAN,
    created=program.HumanCreated,
    configured=program.HumanConfigured,
    first_state="available",
    verbs={
        "available": dict.fromkeys(("busy", "away", "offline"), "available"),
        "busy": {"available": "busy"},
        "away": {"available": "away"},
        "offline": dict.fromkeys(("available", "busy", "away"), "offline"),
    },
    is_activity=True,
    acts=True,
)
TOOLSET = KindFacts(
    name=ProgramKind.TOOLSET,
    created=program.ToolsetCreated,
    configured=program.ToolsetConfigured,
    first_state="active",
    verbs={},
)
TRIGGER = KindFacts(
    name=ProgramKind.TRIGGER,
    created=program.TriggerCreated,
    configured=program.TriggerConfigured,
    first_state="active",
    verbs={"pause": {"active": "paused"}, "resume": {"paused": "active"}},
    steps={"pause": program.TriggerPaused, "resume": program.TriggerResumed},
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
