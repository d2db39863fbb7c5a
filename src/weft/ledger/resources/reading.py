"""Resources, their snapshots and what is to be done with them, as views tell; for whoever may read them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from weft.kernel.advice import Action
from weft.kernel.enums import (
    HandleCapability,
    MountMode,
    ResourceCapability,
    ResourceKind,
    ResourceLiveness,
    RestoreOutcome,
    SnapshotConsistency,
    SnapshotState,
    SubresourcePart,
)
from weft.kernel.errors import AmbiguousName, NotFound
from weft.ledger.read.access import READ_SESSION, Access, access_of
from weft.ledger.resources.model import (
    Owner,
    Resource,
    ResourceHandle,
    ResourcePart,
    ResourceUse,
    Restore,
    Snapshot,
)
from weft.ledger.views.rows import TurnRow, load_session, load_turn
from weft.ledger.views.values import text_of
from weft.store.authorship import is_written_here
from weft.store.port import ReadTxn

READ_RESOURCE, CHANGE_RESOURCE = "resource:read", "resource:change"
_RESOURCE = (
    "SELECT id, n, replica, kind, name, place, capabilities, imperative, made, scope_agent, scope_run, scope_session,"
    " metadata, owner_kind, owner, liveness, probed_at, declared_by, declared_at FROM resource"
)
_SNAPSHOT = (
    "SELECT s.id, s.resource, s.state, s.created_at, s.method, s.ref_kind, s.ref, s.consistency, s.size_bytes,"
    " s.restorable, s.run, s.after, s.before, s.inferred, s.skipped, s.error, s.error_code FROM resource_snapshot s"
)
_RESTORE = (
    "SELECT id, snapshot, requested_at, new_resource, place, owner_kind, owner, outcome, error, error_code, ended_at"
    " FROM resource_restore"
)


# --- who may ---------------------------------------------------------------------------------------------------------


def may_use_resource(access: Access, txn: ReadTxn, resource: Resource, right: str) -> bool:
    """By the session that owns it; one that belongs to none, by whoever declared it."""
    if access.is_unlimited:
        return True
    owner = resource.owner
    session = load_session(txn.sql, owner.id) if owner is not None and owner.kind == "session" else None
    if session is not None:
        return access.may(READ_SESSION if right == READ_RESOURCE else right, session)
    return access.permits(right, (resource.declared_by,))


# --- resources -------------------------------------------------------------------------------------------------------


def listed_resources(
    txn: ReadTxn, *, session: str | None = None, kind: ResourceKind | None = None, is_discarded: bool = False
) -> list[Resource]:
    """Those that somebody owns, the oldest first; of one session by its id; with `is_discarded` also the others."""
    conditions = [("owner = ?", session)] if session is not None else []
    if kind is not None:
        conditions.append(("kind = ?", kind.value))
    words = [condition for condition, _ in conditions] + ([] if is_discarded else ["owner IS NOT NULL"])
    where = f" WHERE {' AND '.join(words)}" if words else ""
    rows = txn.sql.all(f"{_RESOURCE}{where} ORDER BY n", tuple(value for _, value in conditions))
    found = (to_resource(txn, row) for row in rows)
    access = access_of(txn)
    return [resource for resource in found if may_use_resource(access, txn, resource, READ_RESOURCE)]


def load_resource(txn: ReadTxn, name: str) -> Resource:
    """By its id or the end of it, else by its name."""
    text = name.strip()
    access = access_of(txn)
    is_id = len(text) > 5 and text.isalnum()
    rows = txn.sql.all(f"{_RESOURCE} WHERE id LIKE ? ORDER BY n LIMIT 3", (f"%{text.upper()}",)) if is_id else []
    found = [to_resource(txn, row) for row in rows] or [
        resource for resource in listed_resources(txn, is_discarded=True) if text in (resource.name, resource.place)
    ]
    found = [resource for resource in found if may_use_resource(access, txn, resource, READ_RESOURCE)]
    standing = [resource for resource in found if resource.owner is not None and resource.is_own] or found
    if not standing:
        raise NotFound("resource", name, Action.LIST_RESOURCES)
    if len(standing) > 1:
        raise AmbiguousName(name, [resource.id for resource in standing])
    return standing[0]


def find_resource(txn: ReadTxn, id: str) -> Resource | None:
    row = txn.sql.one(f"{_RESOURCE} WHERE id = ?", (id,))
    return None if row is None else to_resource(txn, row)


def find_at(txn: ReadTxn, kind: ResourceKind, place: str) -> Resource | None:
    """The resource of this ledger at a place, the newest where several were."""
    for resource in reversed(listed_resources(txn, kind=kind)):
        if resource.is_own and resource.place == place:
            return resource
    return None


def to_resource(txn: ReadTxn, row: Sequence[Any]) -> Resource:
    (id, n, replica, kind, name, place, capabilities, imperative, made, *scope, metadata) = row[:13]
    (owner_kind, owner, liveness, probed_at, declared_by, declared_at) = row[13:]
    words = zip(("agent", "run", "session"), scope, strict=True)
    return Resource(
        id=id,
        kind=ResourceKind(kind),
        name=text_of(txn, name) or id,
        place=text_of(txn, place) or "",
        capabilities=tuple(ResourceCapability(word) for word in capabilities.split()),
        imperative=bool(imperative),
        is_made=bool(made),
        is_own=is_written_here(txn.sql, n, replica),
        scope={word: value for word, value in words if value is not None},
        metadata=_json(txn, metadata),
        owner=owner_of(txn, owner_kind, owner),
        liveness=ResourceLiveness(liveness),
        probed_at=probed_at,
        declared_by=declared_by,
        declared_at=declared_at,
        parts=_parts(txn, id),
        uses=_uses(txn, id),
        handles=_handles(txn, id),
    )


def owner_of(txn: ReadTxn, kind: str | None, id: str | None) -> Owner | None:
    if kind is None or id is None:
        return None
    if kind == "session":
        row = txn.sql.one("SELECT label FROM session WHERE id = ?", (id,))
    else:
        row = txn.sql.one("SELECT name FROM persona WHERE id = ?", (id,)) if kind == "agent" else None
    return Owner(kind, id, None if row is None else row[0])


def _parts(txn: ReadTxn, id: str) -> tuple[ResourcePart, ...]:
    rows = txn.sql.all("SELECT part_ref, part FROM resource_part WHERE resource = ? ORDER BY n, part_ref", (id,))
    return tuple(ResourcePart(resource=part, part=SubresourcePart(word)) for part, word in rows)


def _uses(txn: ReadTxn, id: str) -> tuple[ResourceUse, ...]:
    rows = txn.sql.all(
        "SELECT way, user_kind, user_id, mode, since, mount FROM resource_use WHERE resource = ? ORDER BY n", (id,)
    )
    return tuple(
        ResourceUse(
            way=way,
            user=owner_of(txn, kind, user) or Owner(kind, user),
            mode=MountMode(mode),
            since=since,
            mount=text_of(txn, mount),
        )
        for way, kind, user, mode, since, mount in rows
    )


def _handles(txn: ReadTxn, id: str) -> tuple[ResourceHandle, ...]:
    rows = txn.sql.all(
        "SELECT id, provider, provider_id, capabilities, opened_at, closed_at FROM resource_handle WHERE resource = ?"
        " AND closed_at IS NULL ORDER BY n",
        (id,),
    )
    return tuple(
        ResourceHandle(
            id=handle,
            resource=id,
            provider=_name(txn, provider) or "",
            provider_id=text_of(txn, provider_id) or "",
            capabilities=tuple(HandleCapability(word) for word in capabilities.split()),
            opened_at=opened_at,
            closed_at=closed_at,
        )
        for handle, provider, provider_id, capabilities, opened_at, closed_at in rows
    )


def _json(txn: ReadTxn, number: int | None) -> Any:
    text = text_of(txn, number)
    return None if text is None else msgspec.json.decode(text)


def _name(txn: ReadTxn, value: str | None) -> str | None:
    """A name as it stands in a column: itself, or the number of the content that holds it."""
    if value is None or not value.startswith("#"):
        return value
    return text_of(txn, int(value[1:]))


# --- snapshots and restores ------------------------------------------------------------------------------------------


def listed_snapshots(txn: ReadTxn, resource: str, limit: int = 100) -> list[Snapshot]:
    """Of one resource, the newest first."""
    rows = txn.sql.all(f"{_SNAPSHOT} WHERE s.resource = ? ORDER BY s.n DESC LIMIT ?", (resource, limit))
    return [to_snapshot(txn, row) for row in rows]


def find_snapshot(txn: ReadTxn, id: str) -> Snapshot | None:
    row = txn.sql.one(f"{_SNAPSHOT} WHERE s.id = ?", (id,))
    return None if row is None else to_snapshot(txn, row)


def load_snapshot(txn: ReadTxn, name: str) -> Snapshot:
    """By its id, or the end of it."""
    text = name.strip().upper()
    is_id = len(text) > 5 and text.isalnum()
    rows = txn.sql.all(f"{_SNAPSHOT} WHERE s.id LIKE ? ORDER BY s.n LIMIT 3", (f"%{text}",)) if is_id else []
    found = [to_snapshot(txn, row) for row in rows]
    access = access_of(txn)
    found = [one for one in found if _may_read_snapshot(access, txn, one)]
    if not found:
        raise NotFound("snapshot", name, Action.LIST_RESOURCES)
    if len(found) > 1:
        raise AmbiguousName(name, [one.id for one in found])
    return found[0]


def _may_read_snapshot(access: Access, txn: ReadTxn, snapshot: Snapshot) -> bool:
    if access.is_unlimited:
        return True
    resource = find_resource(txn, snapshot.resource)
    if resource is not None and may_use_resource(access, txn, resource, READ_RESOURCE):
        return True
    turn = None if snapshot.run is None else load_turn(txn.sql, snapshot.run)
    return turn is not None and access.may_read_turn(turn)


def to_snapshot(txn: ReadTxn, row: Sequence[Any]) -> Snapshot:
    (id, resource, state, created_at, method, ref_kind, ref, consistency, size_bytes) = row[:9]
    (restorable, run, after, before, inferred, skipped, error, error_code) = row[9:]
    return Snapshot(
        id=id,
        resource=resource,
        state=SnapshotState(state),
        created_at=created_at,
        method=_name(txn, method),
        external_kind=_name(txn, ref_kind),
        external_id=text_of(txn, ref),
        consistency=None if consistency is None else SnapshotConsistency(consistency),
        size_bytes=size_bytes,
        restorable=bool(restorable),
        run=run,
        after=after,
        is_before=bool(before),
        is_inferred=bool(inferred),
        skipped=_json(txn, skipped),
        error=text_of(txn, error),
        error_code=_name(txn, error_code),
    )


def snapshots_of_turn(txn: ReadTxn, turn: TurnRow) -> list[Snapshot]:
    """What resources were like after a turn: the last good snapshot of each that was taken in it, or in the nearest
    turn before it that has any."""
    row: TurnRow | None = turn
    while row is not None:
        nearest = txn.sql.one(
            "SELECT run FROM resource_snapshot WHERE segment = ? AND depth <= ? AND state = 'ok' AND before = 0"
            " ORDER BY depth DESC LIMIT 1",
            (row.segment, row.depth),
        )
        if nearest is not None:
            counted = "s.run = ? AND s.segment IS NOT NULL AND s.state = 'ok' AND s.before = 0"
            rows = txn.sql.all(f"{_SNAPSHOT} WHERE {counted} ORDER BY s.n", nearest)
            newest = {one.resource: one for one in (to_snapshot(txn, row) for row in rows)}
            return list(newest.values())
        row = _parent_of_segment(txn, row)
    return []


def taken_in(txn: ReadTxn, turn: str) -> list[Snapshot]:
    """Every snapshot of a turn, by its id, that holds something, or did: whoever was to throw that away may have died.
    Only those of this ledger's resources."""
    rows = txn.sql.all(f"{_SNAPSHOT} WHERE s.run = ? AND s.state IN ('ok', 'discarded') ORDER BY s.n", (turn,))
    return [one for one in (to_snapshot(txn, row) for row in rows) if _is_own(txn, one.resource)]


def _is_own(txn: ReadTxn, resource: str) -> bool:
    """Whether this ledger declared a resource."""
    row = txn.sql.one("SELECT n, replica FROM resource WHERE id = ?", (resource,))
    return row is not None and is_written_here(txn.sql, row[0], row[1])


def kept_beside(txn: ReadTxn, references: Sequence[str]) -> list[Snapshot]:
    """Snapshots of no turn, such as those that were taken before something was overwritten, with one of these external
    ids."""
    rows = txn.sql.all(f"{_SNAPSHOT} WHERE s.run IS NULL AND s.state = 'ok' ORDER BY s.n", ())
    found = (to_snapshot(txn, row) for row in rows)
    return [one for one in found if one.external_id in references and _is_own(txn, one.resource)]


def held_references(txn: ReadTxn, kind: str) -> set[str]:
    """How whoever took snapshots finds those again that still hold something, of one kind of reference."""
    rows = txn.sql.all("SELECT ref, resource FROM resource_snapshot WHERE state = 'ok' AND ref_kind = ?", (kind,))
    own = {id for id in {resource for _, resource in rows} if _is_own(txn, id)}
    return {text for number, id in rows if id in own and (text := text_of(txn, number)) is not None}


def is_kept(txn: ReadTxn, turn: str) -> bool:
    row = txn.sql.one("SELECT 1 FROM resource_snapshot WHERE run = ? AND segment IS NOT NULL LIMIT 1", (turn,))
    return row is not None


def snapshots_before_turn(txn: ReadTxn, turn: TurnRow) -> list[Snapshot]:
    """What resources were like before a turn changed them: what was kept then, else what the turns before it left."""
    rows = txn.sql.all(
        f"{_SNAPSHOT} WHERE s.run = ? AND s.segment IS NOT NULL AND s.state = 'ok' AND s.before = 1 ORDER BY s.n DESC",
        (turn.id,),
    )
    first = {one.resource: one for one in (to_snapshot(txn, row) for row in rows)}
    parent = None if turn.parent is None else load_turn(txn.sql, turn.parent)
    left = [] if parent is None else snapshots_of_turn(txn, parent)
    return [*first.values(), *(one for one in left if one.resource not in first)]


def _parent_of_segment(txn: ReadTxn, turn: TurnRow) -> TurnRow | None:
    """The turn that the segment of a turn grew from."""
    row = txn.sql.one("SELECT parent, parent_depth FROM segment WHERE n = ?", (turn.segment,))
    if row is None or row[0] is None:
        return None
    above = txn.sql.one("SELECT id FROM turn WHERE segment = ? AND depth = ?", (row[0], row[1]))
    return None if above is None else load_turn(txn.sql, above[0])


def pending_snapshots(txn: ReadTxn) -> list[Snapshot]:
    """Wishes of this ledger that nobody has carried out, the oldest first."""
    rows = txn.sql.all(f"{_SNAPSHOT} JOIN resource r ON r.id = s.resource WHERE s.state = 'requested' ORDER BY s.n", ())
    return [one for one in (to_snapshot(txn, row) for row in rows) if _may_act_on(txn, one.resource)]


def pending_restores(txn: ReadTxn) -> list[Restore]:
    rows = txn.sql.all(f"{_RESTORE} WHERE outcome IS NULL ORDER BY n", ())
    found = []
    for row in rows:
        snapshot = txn.sql.one("SELECT resource FROM resource_snapshot WHERE id = ?", (row[1],))
        if snapshot is not None and _may_act_on(txn, snapshot[0]):
            found.append(to_restore(txn, row))
    return found


def _may_act_on(txn: ReadTxn, id: str) -> bool:
    """Whether it is a resource of this ledger, and of whoever asks."""
    resource = find_resource(txn, id)
    if resource is None or not resource.is_own:
        return False
    return may_use_resource(access_of(txn), txn, resource, CHANGE_RESOURCE)


def is_superseded(txn: ReadTxn, restore: Restore) -> bool:
    """Whether, since a restore over a resource was wished for, it was given to another, another such wish came, or a
    turn kept what it had made of it."""
    resource, n, owner = txn.sql.all(
        "SELECT s.resource, r.n, r.owner FROM resource_restore r JOIN resource_snapshot s ON s.id = r.snapshot"
        " WHERE r.id = ?",
        (restore.id,),
    )[0]
    newer = txn.sql.one(
        "SELECT 1 FROM resource_snapshot s WHERE s.resource = ? AND (s.n > ? AND s.run IS NOT NULL OR EXISTS"
        " (SELECT 1 FROM resource_restore r WHERE r.snapshot = s.id AND r.n > ? AND r.new_resource IS NULL)) LIMIT 1",
        (resource, n, n),
    )
    present = find_resource(txn, resource)
    is_given = present is None or present.owner is None or owner not in (None, present.owner.id)
    return newer is not None or is_given


def load_restore(txn: ReadTxn, id: str) -> Restore:
    row = txn.sql.one(f"{_RESTORE} WHERE id = ?", (id,))
    snapshot = None if row is None else txn.sql.one(f"{_SNAPSHOT} WHERE s.id = ?", (row[1],))
    may_read = snapshot is not None and _may_read_snapshot(access_of(txn), txn, to_snapshot(txn, snapshot))
    if row is None or not may_read:
        raise NotFound("restore", id, Action.LIST_RESOURCES)
    return to_restore(txn, row)


def to_restore(txn: ReadTxn, row: Sequence[Any]) -> Restore:
    (id, snapshot, requested_at, new_resource, place, owner_kind, owner, outcome, error, error_code, ended_at) = row
    return Restore(
        id=id,
        snapshot=snapshot,
        requested_at=requested_at,
        new_resource=new_resource,
        place=text_of(txn, place),
        owner=owner_of(txn, owner_kind, owner),
        outcome=None if outcome is None else RestoreOutcome(outcome),
        error=text_of(txn, error),
        error_code=_name(txn, error_code),
        ended_at=ended_at,
    )
