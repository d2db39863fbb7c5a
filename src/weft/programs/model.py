"""What the verbs give back: programs, their history, verdicts and requests."""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from weft.kernel.program_events import PROGRAM_KINDS


class UnvouchedName(Struct, frozen=True, kw_only=True):
    """A folder, a command or the like that a configuration names at a place. `by` are the names of those who set it and
    may not name it, whoever acted first."""

    path: str
    sort: str
    text: str
    by: tuple[str, ...]


class Program(Struct, frozen=True, kw_only=True):
    """One program as it is now. `name` is its id as people type it, `id` the one that was minted for it."""

    id: str
    name: str
    kind: str
    state: str
    config: Any
    """As it was given, placeholders included; None where nobody described it, a word where it was erased."""
    version: int
    tags: list[str]
    created_at: int
    updated_at: int
    created_by: str
    deleted: bool = False
    applied: bool = False
    foreign: bool = False
    """This configuration is what another ledger says: nobody here wrote it or took it over, and nothing uses it."""
    unvouched: tuple[UnvouchedName, ...] = ()
    """What it names of the machine and was set by somebody who may not: nothing uses such a configuration."""
    pending_version: int | None = None
    """The newest version, where another ledger wrote it and nobody here has taken it over."""
    current_task: str | None = None
    current_session: str | None = None
    turn_count: int | None = None
    last_checkpoint: int | None = None
    result: str | None = None
    shared_with: tuple[str, ...] = ()
    """The people and agents that an agent was shared with: it works for them though it is private."""

    @property
    def address(self) -> str:
        return f"@({self.name})"

    @property
    def visibility(self) -> str:
        """`private`, or `public` where its configuration says nothing."""
        config = self.config if isinstance(self.config, dict) else {}
        return str(config.get("visibility", "public"))

    @property
    def activity(self) -> dict[str, Any]:
        """What an agent is doing, as far as it does anything."""
        fields = {
            "currentTask": self.current_task,
            "currentSession": self.current_session,
            "turnCount": self.turn_count,
            "lastCheckpoint": self.last_checkpoint,
        }
        return {name: value for name, value in fields.items() if value is not None}

    def shape(self) -> dict[str, Any]:
        """The program as one JSON object: what is going on stands in its configuration, as far as there is any."""
        state_field = "state" if PROGRAM_KINDS[self.kind].is_activity else "lifecycle"
        config = {**(self.config or {}), **self.activity} if isinstance(self.config, dict | None) else self.config
        shape = {
            "id": self.name,
            "type": "program",
            "programType": self.kind,
            state_field: self.state,
            "config": config,
            "version": self.version,
            "tags": self.tags,
            "ulid": self.id,
            "createdAt": self.created_at,
            "updatedAt": self.updated_at,
            "createdBy": self.created_by,
        }
        return {
            **shape,
            **({"deleted": True} if self.deleted else {}),
            **({"foreign": True} if self.foreign else {}),
            **({"pendingVersion": self.pending_version} if self.pending_version is not None else {}),
            **({"result": self.result} if self.result else {}),
            **({"sharedWith": list(self.shared_with)} if self.shared_with else {}),
        }


class ProgramChange(Struct, frozen=True, kw_only=True):
    """One event of a program's history; `config` where it brought one."""

    n: int
    kind: str
    state: str
    version: int
    at: int
    actor: str
    reason: str | None = None
    config: Any = None
    replica: str | None = None
    """The replica that wrote it."""
    foreign: bool = False
    """A configuration or an answer of another ledger, which nobody here has taken over."""


class Difference(Struct, frozen=True):
    """One place at which two configurations differ; what is not there is None, and `before` or `after` says so."""

    path: str
    before: Any
    after: Any
    how: str
    """added, removed or changed"""


class CriterionVerdict(Struct, frozen=True, kw_only=True):
    """A success criterion held against what is there."""

    criterion: int
    type: str
    passed: bool
    observed: Any
    told: str = ""


class RecordedVerdict(Struct, frozen=True, kw_only=True):
    """A verdict that was recorded."""

    criterion: int
    type: str
    passed: bool
    observed: Any
    version: int
    at: int
    n: int
    """The arrival number of its event."""
    turn: str | None = None
    """The turn whose answer was judged; None where none is named, or where another ledger says so and nobody here took
    that over."""


class PersonRequest(Struct, frozen=True, kw_only=True):
    """What a person was told, or asked. Pending, approved and rejected are those that ask. An answer counts that was
    given here, or taken over here."""

    id: str
    human: str
    text: str | None
    asks: bool
    status: str
    asked_by: str
    asked_at: int
    program: str | None = None
    data: Any = None
    decided_at: int | None = None
    reason: str | None = None
    pending_answer: str | None = None
    """What another ledger says was answered, where nobody here has taken that over."""


class PendingItem(Struct, frozen=True, kw_only=True):
    """One decision of another ledger, by the id of its event."""

    id: str
    kind: str
    """A kind of program whose configuration it is, `approval` or `erasure`."""
    name: str
    """The program's name, the request's id, or the reference of the content."""
    what: str
    """In a few words: `version 5`, `approved`, `erased`."""
    status: str
    """waiting, taken or refused"""
    replica: str | None
    """The replica that wrote it."""
    actor: str
    at: int
    number: int
    """The arrival number of its event."""
    node: str
    """The ulid of the program, session or person; of an erasure the content's reference."""
    version: int | None = None
    counted_version: int | None = None
    """The version of the program that counts here; None where none does."""
    config: Any = None
    text: str | None = None
    """What the person was asked, or why it was erased."""


class TaggedNode(Struct, frozen=True, kw_only=True):
    """A node with a tag: what it is, and what people call it."""

    id: str
    kind: str
    name: str
    tags: list[str]
