"""What each kind of program may become: tables, and one function that reads them.

A verb takes a program from one state to another. `BEFORE` stands for the state that a paused agent was in. Where an
event of another replica arrives that does not fit the state here, the state stays: views follow these tables, too.
"""

from __future__ import annotations

from weft.kernel.enums import ProgramKind

Verbs = dict[str, dict[str, str]]
BEFORE = "(before)"

_PUBLISHED: Verbs = {
    "publish": {"draft": "published"},
    "deprecate": {"published": "deprecated"},
}
_WORKING = ("thinking", "executing", "waiting")
_AGENT = ("idle", *_WORKING, "error")
MACHINES: dict[ProgramKind, Verbs] = {
    ProgramKind.CODE: _PUBLISHED,
    ProgramKind.PROVIDER: _PUBLISHED,
    ProgramKind.MODEL: _PUBLISHED,
    ProgramKind.SESSION: {
        "begin": {"created": "active"},
        "pause": {"active": "paused"},
        "resume": {"paused": "active"},
        "complete": {"active": "completed", "paused": "completed"},
    },
    ProgramKind.AGENT: {
        "think": {"idle": "thinking", "executing": "thinking", "waiting": "thinking"},
        "execute": {"thinking": "executing"},
        "wait": {"thinking": "waiting"},
        "pause": dict.fromkeys(_AGENT, "paused"),
        "resume": {"paused": BEFORE},
        "fail": dict.fromkeys(("idle", *_WORKING, "paused"), "error"),
        "complete": dict.fromkeys(_WORKING, "idle"),
        "reset": dict.fromkeys((*_AGENT, "paused"), "idle"),
    },
    ProgramKind.TASK: {
        "start": {"pending": "active"},
        "block": {"active": "blocked"},
        "unblock": {"blocked": "active"},
        "complete": {"active": "completed"},
        "fail": {"active": "failed"},
    },
    ProgramKind.INFORMATION: {
        "validate": {"draft": "validated"},
        "activate": {"validated": "active", "archived": "active"},
        "archive": {"active": "archived"},
    },
    ProgramKind.HUMAN: {
        "available": dict.fromkeys(("busy", "away", "offline"), "available"),
        "busy": {"available": "busy"},
        "away": {"available": "away"},
        "offline": dict.fromkeys(("available", "busy", "away"), "offline"),
    },
}
FIRST_STATES: dict[ProgramKind, str] = {
    ProgramKind.CODE: "draft",
    ProgramKind.PROVIDER: "draft",
    ProgramKind.MODEL: "draft",
    ProgramKind.SESSION: "created",
    ProgramKind.AGENT: "idle",
    ProgramKind.TASK: "pending",
    ProgramKind.INFORMATION: "draft",
    ProgramKind.HUMAN: "available",
}
RUNTIME_STATES = frozenset({ProgramKind.AGENT, ProgramKind.HUMAN})
"""Kinds whose state says what they are doing (`state`), not how far they have come (`lifecycle`)."""


def next_state(kind: ProgramKind, state: str, verb: str, before: str | None = None) -> str | None:
    """The state that a verb leads to; None where it may not be done. `before` is where a paused agent was."""
    found = MACHINES[kind].get(verb, {}).get(state)
    return (before or FIRST_STATES[kind]) if found == BEFORE else found


def legal_verbs(kind: ProgramKind, state: str, before: str | None = None) -> dict[str, str]:
    """Every verb that may be done now, and the state it leads to."""
    ways = ((verb, next_state(kind, state, verb, before)) for verb in MACHINES[kind])
    return {verb: to for verb, to in ways if to is not None}
