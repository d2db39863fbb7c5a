"""What was decided about tool calls and by whom, and the programs that decide: approval policies."""

from __future__ import annotations

from typing import ClassVar

from msgspec import UNSET, UnsetType

from weft.kernel.enums import Decision, DecisionSource, EventClass, GrantScope
from weft.kernel.events import Event
from weft.kernel.fields import Content, Digest, EventRef, NodeId, PolicyTests, Time, Ulid


class ToolDecided(Event, frozen=True, gc=False, kw_only=True, tag="tool_decided"):
    """The event that says what may be done with a tool call."""

    about: ClassVar[str] = (
        "What may be done with a tool call was decided; `bound` is the hash of exactly what would run, `plan` that"
        " itself where it can be done again after a crash, `grant` the person's answer that is used up by it."
    )
    category: ClassVar[EventClass] = EventClass.TRANSITION

    call: EventRef
    decision: Decision
    by: DecisionSource
    bound: Digest | UnsetType = UNSET
    policy: NodeId | UnsetType = UNSET
    grant: EventRef | UnsetType = UNSET
    rationale: Content | UnsetType = UNSET
    plan: Content | UnsetType = UNSET


class ApprovalRequested(Event, frozen=True, gc=False, kw_only=True, tag="approval_requested"):
    """The event that asks a person about a tool call."""

    about: ClassVar[str] = (
        "A person is asked; `bound` is the hash of exactly what would run, `shown` what they are shown of it,"
        " `subjects` what the tool would be used on."
    )
    category: ClassVar[EventClass] = EventClass.INTENT

    call: EventRef
    bound: Digest
    rationale: Content | UnsetType = UNSET
    shown: Content | UnsetType = UNSET
    subjects: Content | UnsetType = UNSET
    expires: Time | UnsetType = UNSET


class ApprovalGranted(Event, frozen=True, gc=False, kw_only=True, tag="approval_granted"):
    """The event of a person who allows a tool call, once."""

    about: ClassVar[str] = "A person allowed it, once; `scope` says whether the same use may follow without asking."
    category: ClassVar[EventClass] = EventClass.TRANSITION

    request: EventRef
    bound: Digest
    reason: Content | UnsetType = UNSET
    scope: GrantScope | UnsetType = UNSET


class ApprovalDenied(Event, frozen=True, gc=False, kw_only=True, tag="approval_denied"):
    """The event of a person who refuses a tool call."""

    about: ClassVar[str] = "A person refused it."
    category: ClassVar[EventClass] = EventClass.TRANSITION

    request: EventRef
    abort: bool
    reason: Content | UnsetType = UNSET


class PolicyProposed(Event, frozen=True, gc=False, kw_only=True, tag="policy_proposed"):
    about: ClassVar[str] = "An approval policy was proposed, for one agent or for all."
    category: ClassVar[EventClass] = EventClass.INTENT

    policy_ref: NodeId
    source: Content
    notes: Content | UnsetType = UNSET
    name: Content | UnsetType = UNSET
    agent: Ulid | UnsetType = UNSET
    digest: Digest | UnsetType = UNSET
    docstring: Content | UnsetType = UNSET
    uri: Content | UnsetType = UNSET
    """Under which it can be read while it is active."""
    tests: PolicyTests | UnsetType = UNSET


class PolicyRejected(Event, frozen=True, gc=False, kw_only=True, tag="policy_rejected"):
    about: ClassVar[str] = "A proposed policy was refused."
    category: ClassVar[EventClass] = EventClass.TRANSITION

    policy_ref: NodeId
    reason: Content | UnsetType = UNSET


class PolicyActivated(Event, frozen=True, gc=False, kw_only=True, tag="policy_activated"):
    about: ClassVar[str] = "An approval policy became the active one; `digest` is that of the source that was read."
    category: ClassVar[EventClass] = EventClass.TRANSITION

    policy_ref: NodeId
    notes: Content | UnsetType = UNSET
    digest: Digest | UnsetType = UNSET
    tests: PolicyTests | UnsetType = UNSET


class PolicyRolledBack(Event, frozen=True, gc=False, kw_only=True, tag="policy_rolled_back"):
    about: ClassVar[str] = "An earlier policy is active again."
    category: ClassVar[EventClass] = EventClass.TRANSITION

    policy_ref: NodeId
    to: NodeId
    reason: Content | UnsetType = UNSET
    digest: Digest | UnsetType = UNSET


ApprovalEvent = (
    ToolDecided
    | ApprovalRequested
    | ApprovalGranted
    | ApprovalDenied
    | PolicyProposed
    | PolicyRejected
    | PolicyActivated
    | PolicyRolledBack
)
