"""Answers about resources."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

if TYPE_CHECKING:
    from weft.ledger.api import Owner, Resource, Restore, Snapshot


class ShownResource(Struct, frozen=True, kw_only=True):
    """`resource show`: a resource and its snapshots, the newest first; `not_here` has the ids of those whose files lie
    beside another ledger, or are lost. `wanted` are snapshots and restores that are not done yet, `waits_because` says
    what they wait for, where that is known."""

    resource: Resource
    snapshots: tuple[Snapshot, ...]
    not_here: tuple[str, ...]
    wanted: tuple[str, ...] = ()
    waits_because: str | None = None


class ProbedResource(Struct, frozen=True, kw_only=True):
    """`resource probe`: whether a resource was found alive."""

    id: str
    name: str
    liveness: str


class ResourceOwnership(Struct, frozen=True, kw_only=True):
    """`resource owners`: who owned a resource, and how long; `until_at` is null while it holds."""

    owner: Owner
    why: str | None
    since_at: int
    until_at: int | None


class RestoredSnapshot(Struct, frozen=True, kw_only=True):
    """`resource restore`: what came of it. `before` is the snapshot of what was overwritten; `left` is what could not
    be made equal."""

    restore: Restore
    place: str
    before: str | None
    left: tuple[str, ...]


class ReconciledResources(Struct, frozen=True, kw_only=True):
    """`resource reconcile`: the snapshots and restores that were carried out, the resources that somebody else works
    on, and what was to be removed and could not be."""

    snapshots: tuple[Snapshot, ...]
    restores: tuple[Restore, ...]
    busy: tuple[str, ...]
    left: tuple[str, ...]


class HandleOutput(Struct, frozen=True, kw_only=True):
    """`resource exec` and `resource logs`: what was printed. `rc` is null where nobody knows it."""

    id: str
    rc: int | None
    stdout: str
    stderr: str
    is_truncated: bool
    has_timed_out: bool


class KilledResource(Struct, frozen=True, kw_only=True):
    """`resource kill`: whether it was running when the signal was sent, and how it was found afterwards."""

    id: str
    was_running: bool
    liveness: str
