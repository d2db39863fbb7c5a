"""What the verbs give back: programs, their history, verdicts and requests."""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from weft.kernel.program_kinds import PROGRAM_KINDS


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
    """It names variables, a folder or commands, and was configured in another ledger."""
    current_task: str | None = None
    current_session: str | None = None
    turn_count: int | None = None
    last_checkpoint: int | None = None
    result: str | None = None

    @property
    def address(self) -> str:
        return f"@({self.name})"

    def shape(self) -> dict[str, Any]:
        """The program as one JSON object: what is going on stands in its configuration, as far as there is any."""
        state_field = "state" if PROGRAM_KINDS[self.kind].is_activity else "lifecycle"
        activity = {
            "currentTask": self.current_task,
            "currentSession": self.current_session,
            "turnCount": self.turn_count,
            "lastCheckpoint": self.last_checkpoint,
        }
        shown = {name: value for name, value in activity.items() if value is not None}
        config = {**(self.config or {}), **shown} if isinstance(self.config, dict | None) else self.config
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
            **({"result": self.result} if self.result else {}),
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


class Check(Struct, frozen=True, kw_only=True):
    """A verdict that was recorded."""

    criterion: int
    type: str
    passed: bool
    observed: Any
    version: int
    at: int


class Request(Struct, frozen=True, kw_only=True):
    """What a person was told, or asked. Pending, approved and rejected are those that ask."""

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


class Tagged(Struct, frozen=True, kw_only=True):
    """A node with a tag: what it is, and what people call it."""

    id: str
    kind: str
    name: str
    tags: list[str]
