"""Resources as views tell, with their owners, uses, parts, handles, snapshots and restores, and
what is still to be done of these; for whoever may read them. With the records in which this is
told, and taken to be recorded.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import Struct, field

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
    VolumeMode,
)
from weft.kernel.errors import Action, AmbiguousName, NotFound
from weft.kernel.typed_names import name_in_address
from weft.ledger.read.access import READ_SESSION, Access, access_of
from weft.ledger.views.programs import text_digest
from weft.ledger.views.rows import LeaseKind, TurnRow, error_code_of, held_leases, load_session, load_turn, text_of
from weft.store.port import ReadTxn
from weft.store.replicas import is_written_here
from weft.store.sql import Row, Sql

# --- What is told of resources, and what is taken to record it.


class Owner(Struct, frozen=True):
    """Who owns a resource, or uses it: a session (that is, a branch), an agent, a run or a container."""

    kind: str
    id: str
    name: str | None = None
    """A session's label, an agent's name."""


class ResourcePart(Struct, frozen=True, kw_only=True):
    """A resource that is a part of another one."""

    resource: str
    part: SubresourcePart


class ResourceUse(Struct, frozen=True, kw_only=True):
    """That a resource is attached to somebody, or mounted somewhere."""

    way: str
    """`attached` or `mounted`."""
    user: Owner
    mode: MountMode
    since: int
    mount: str | None = None


class ResourceHandle(Struct, frozen=True, kw_only=True):
    """Through what a resource is acted on while it lives; it cannot be brought back."""

    id: str
    resource: str
    provider: str
    provider_id: str
    capabilities: tuple[HandleCapability, ...]
    opened_at: int
    closed_at: int | None = None
    restorable: bool = False


class Resource(Struct, frozen=True, kw_only=True):
    """Something that exists beside a conversation."""

    id: str
    kind: ResourceKind
    name: str
    place: str
    capabilities: tuple[ResourceCapability, ...]
    imperative: bool
    is_made: bool
    """Whether Weft made it, and may remove it."""
    is_own: bool
    """Whether this ledger declared it. The places of others lie elsewhere."""
    scope: dict[str, str] = field(default_factory=dict)
    metadata: Any = None
    owner: Owner | None = None
    liveness: ResourceLiveness = ResourceLiveness.UNKNOWN
    probed_at: int | None = None
    declared_by: str = ""
    declared_at: int = 0
    machine: str | None = None
    """The machine that has the place; None: it is bound to none, or to the one that has the ledger."""
    parts: tuple[ResourcePart, ...] = ()
    uses: tuple[ResourceUse, ...] = ()
    handles: tuple[ResourceHandle, ...] = ()

    def can(self, capability: ResourceCapability) -> bool:
        return capability in self.capabilities


class Snapshot(Struct, frozen=True, kw_only=True):
    """What a resource was like."""

    id: str
    resource: str
    state: SnapshotState
    created_at: int
    method: str | None = None
    external_kind: str | None = None
    external_id: str | None = None
    """How whoever took it finds it again."""
    consistency: SnapshotConsistency | None = None
    size_bytes: int | None = None
    restorable: bool = False
    run: str | None = None
    """The turn after which it shows the resource."""
    after: str | None = None
    """The event after which it was taken."""
    is_before: bool = False
    """Whether it shows what was there before the turn changed anything."""
    is_inferred: bool = False
    """Whether it was put together from what a source tells."""
    skipped: Any = None
    """What is not in it, and why."""
    error: str | None = None
    error_code: str | None = None


class KeptReference(Struct, frozen=True, kw_only=True):
    """How whoever took a snapshot finds again what it holds."""

    snapshot: str
    kind: str
    id: str
    is_own: bool
    """Whether it is of a resource that this ledger declared."""


class ResourceRestore(Struct, frozen=True, kw_only=True):
    """A wish that a snapshot be restored, and what came of it."""

    id: str
    snapshot: str
    requested_at: int
    new_resource: str | None = None
    """None: over the resource that the snapshot was taken of."""
    place: str | None = None
    owner: Owner | None = None
    outcome: RestoreOutcome | None = None
    """None: nobody has tried yet."""
    error: str | None = None
    error_code: str | None = None
    ended_at: int | None = None


class NewResource(Struct, frozen=True, kw_only=True):
    """A resource that is to be declared. Its owner is a session, by its name; without one, whoever declares it."""

    name: str
    kind: ResourceKind
    place: str
    capabilities: tuple[ResourceCapability, ...]
    imperative: bool = False
    is_made: bool = False
    session: str | None = None
    metadata: Any = None
    machine: str | None = None
    """The machine that has the place, where several share the ledger."""


class NewSnapshot(Struct, frozen=True, kw_only=True):
    """A snapshot that was taken."""

    method: str
    external_kind: str
    external_id: str
    consistency: SnapshotConsistency = SnapshotConsistency.CRASH_CONSISTENT
    size_bytes: int | None = None
    restorable: bool = True
    is_inferred: bool = False
    skipped: Any = None


class ResourceFailure(Struct, frozen=True):
    """Why something could not be done."""

    code: str
    message: str


class KeptState(Struct, frozen=True, kw_only=True):
    """What a resource was like after a call of a turn, or before the first one that could change it."""

    resource: str
    taken: NewSnapshot | ResourceFailure
    is_before: bool = False


class PlannedResource(Struct, frozen=True, kw_only=True):
    """What a fork does with one resource."""

    resource: str
    mode: VolumeMode
    is_kept_by_fork: bool = False
    """With `keep`: whether the fork owns it afterwards, not the session that it came from."""
    snapshot: str | None = None
    """With `snapshot`: the one that the fork gets a copy of."""
    place: str | None = None
    """Where the copy goes."""
    why_left: str | None = None
    """With `discard`: why what Weft made is left where it is."""


# --- Resources as views tell, with their owners, uses, parts and handles; for whoever may read them.

READ_RESOURCE, CHANGE_RESOURCE = "resource:read", "resource:change"
ULID_LETTERS, END_LETTERS = 26, 6
"""So long is an id, and so long is the end by which it is found; the schema has an index of these letters."""
_RESOURCE = (
    "SELECT id, n, replica, kind, name, place, capabilities, imperative, made, scope_agent, scope_run, scope_session,"
    " metadata, owner_kind, owner, liveness, probed_at, declared_by, declared_at, machine FROM resource"
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


def may_read(txn: ReadTxn, resource: Resource) -> bool:
    return may_use_resource(access_of(txn), txn, resource, READ_RESOURCE)


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
    rows = txn.sql.fetch_rows(f"{_RESOURCE}{where} ORDER BY n", tuple(value for _, value in conditions))
    found = (to_resource(txn, row) for row in rows)
    return [resource for resource in found if may_read(txn, resource)]


def load_resource(txn: ReadTxn, name: str) -> Resource:
    """By its id or the end of it, else by its name or place."""
    text = name_in_address(name.strip())
    found = _readable_resources(txn, rows_of_id(txn, _RESOURCE, "id", text))
    if not any(one.is_own or one.id == text.upper() for one in found):
        # another ledger chooses the ids of its resources: the end of one does not hide a name of this ledger
        found = list({one.id: one for one in (*found, *_readable_resources(txn, _rows_of_name(txn, text)))}.values())
    standing = [resource for resource in found if resource.owner is not None and resource.is_own] or found
    if not standing:
        raise NotFound("resource", name, Action.LIST_RESOURCES)
    if len(standing) > 1:
        raise AmbiguousName(name, [resource.id for resource in standing])
    return standing[0]


def _readable_resources(txn: ReadTxn, rows: Sequence[Row]) -> list[Resource]:
    return [resource for resource in (to_resource(txn, row) for row in rows) if may_read(txn, resource)]


def rows_of_id(txn: ReadTxn, select: str, column: str, text: str) -> list[Row]:
    """Of the resources or snapshots that an id means, or the end of one."""
    whole = txn.sql.fetch_rows(f"{select} WHERE {column} = ?", (text.upper(),))
    if whole or not END_LETTERS <= len(text) < ULID_LETTERS or not (text.isalnum() and text.isascii()):
        return whole
    end = text.upper()
    return txn.sql.fetch_rows(
        f"{select} WHERE substr({column}, {ULID_LETTERS - END_LETTERS + 1}) = ? AND {column} LIKE ? LIMIT 3",
        (end[-END_LETTERS:], f"%{end}"),
    )


def _rows_of_name(txn: ReadTxn, text: str) -> list[Row]:
    """Of the resources with a name or a place."""
    digest = text_digest(text)
    rows = [
        *txn.sql.fetch_rows(f"{_RESOURCE} WHERE name_digest = ?", (digest,)),
        *txn.sql.fetch_rows(f"{_RESOURCE} WHERE place_digest = ?", (digest,)),
    ]
    return sorted({row[0]: row for row in rows}.values(), key=lambda row: row[1])


def free_name(txn: ReadTxn, wanted: str) -> str:
    """This name, or the next with a number, that nothing has which somebody owns."""
    name, number = wanted, 1
    while txn.sql.fetch_row("SELECT 1 FROM resource WHERE name_digest = ? AND owner IS NOT NULL", (text_digest(name),)):
        number += 1
        name = f"{wanted}-{number}"
    return name


def find_resource(txn: ReadTxn, id: str) -> Resource | None:
    row = txn.sql.fetch_row(f"{_RESOURCE} WHERE id = ?", (id,))
    return None if row is None else to_resource(txn, row)


def standing_at(txn: ReadTxn, kind: ResourceKind, place: str, machine: str | None) -> Resource | None:
    """The resource of this ledger that somebody owns at a place of a machine, else one there that is bound to none;
    whoever may read it."""
    for on in dict.fromkeys((machine, None)):
        row = txn.sql.fetch_row(
            f"{_RESOURCE} WHERE place_digest = ? AND kind = ? AND COALESCE(machine, '') = ? AND stands = 1",
            (text_digest(place), kind.value, on or ""),
        )
        if row is not None:
            return to_resource(txn, row)
    return None


def to_resource(txn: ReadTxn, row: Sequence[Any]) -> Resource:
    (id, n, replica, kind, name, place, capabilities, imperative, made, *scope, metadata) = row[:13]
    (owner_kind, owner, liveness, probed_at, declared_by, declared_at, machine) = row[13:]
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
        metadata=json_of_content(txn, metadata),
        owner=owner_of(txn, owner_kind, owner),
        liveness=ResourceLiveness(liveness),
        probed_at=probed_at,
        declared_by=declared_by,
        declared_at=declared_at,
        machine=machine,
        parts=_resource_parts(txn, id),
        uses=_resource_uses(txn, id),
        handles=_resource_handles(txn, id),
    )


def owner_of(txn: ReadTxn, kind: str | None, id: str | None) -> Owner | None:
    if kind is None or id is None:
        return None
    if kind == "session":
        row = txn.sql.fetch_row("SELECT label FROM session WHERE id = ?", (id,))
    else:
        row = txn.sql.fetch_row("SELECT name FROM persona WHERE id = ?", (id,)) if kind == "agent" else None
    return Owner(kind, id, None if row is None else row[0])


def _resource_parts(txn: ReadTxn, id: str) -> tuple[ResourcePart, ...]:
    rows = txn.sql.fetch_rows("SELECT part_ref, part FROM resource_part WHERE resource = ? ORDER BY n, part_ref", (id,))
    return tuple(ResourcePart(resource=part, part=SubresourcePart(word)) for part, word in rows)


def _resource_uses(txn: ReadTxn, id: str) -> tuple[ResourceUse, ...]:
    rows = txn.sql.fetch_rows(
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


def _resource_handles(txn: ReadTxn, id: str) -> tuple[ResourceHandle, ...]:
    rows = txn.sql.fetch_rows(
        "SELECT id, provider, provider_id, capabilities, opened_at, closed_at FROM resource_handle WHERE resource = ?"
        " AND closed_at IS NULL ORDER BY n",
        (id,),
    )
    return tuple(
        ResourceHandle(
            id=handle,
            resource=id,
            provider=name_in(txn, provider) or "",
            provider_id=text_of(txn, provider_id) or "",
            capabilities=tuple(HandleCapability(word) for word in capabilities.split()),
            opened_at=opened_at,
            closed_at=closed_at,
        )
        for handle, provider, provider_id, capabilities, opened_at, closed_at in rows
    )


def json_of_content(txn: ReadTxn, number: int | None) -> Any:
    """None where it is not here, erased, or no JSON: another ledger may have written anything."""
    text = text_of(txn, number)
    try:
        return None if text is None else msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        return None


def name_in(txn: ReadTxn, value: str | None) -> str | None:
    """A name as it stands in a column: itself, or the number of the content that holds it."""
    if value is None or not value.startswith("#"):
        return value
    return text_of(txn, int(value[1:]))


# --- Snapshots and restores as views tell, and what is still to be done of them; for whoever may read them.

_SNAPSHOT = (
    "SELECT s.id, s.resource, s.state, s.created_at, s.method, s.ref_kind, s.ref, s.consistency, s.size_bytes,"
    " s.restorable, s.run, s.after, s.before, s.inferred, s.skipped, s.error, s.error_code FROM resource_snapshot s"
)
_RESTORE = (
    "SELECT id, snapshot, requested_at, new_resource, place, owner_kind, owner, outcome, error, error_code, ended_at"
    " FROM resource_restore"
)


def _skipped_paths(txn: ReadTxn, number: int | None) -> list[dict[str, Any]] | None:
    """What is not in a snapshot: paths, each with why, and how many more; what says neither is left out."""
    listed = json_of_content(txn, number)
    lines = [one for one in listed if isinstance(one, dict)] if isinstance(listed, list) else []
    return [one for one in lines if isinstance(one.get("path"), str) or type(one.get("more")) is int] or None


def listed_snapshots(txn: ReadTxn, resource: str, limit: int = 100) -> list[Snapshot]:
    """Of one resource, the newest first."""
    rows = txn.sql.fetch_rows(f"{_SNAPSHOT} WHERE s.resource = ? ORDER BY s.n DESC LIMIT ?", (resource, limit))
    return [to_snapshot(txn, row) for row in rows]


def find_snapshot(txn: ReadTxn, id: str) -> Snapshot | None:
    row = txn.sql.fetch_row(f"{_SNAPSHOT} WHERE s.id = ?", (id,))
    return None if row is None else to_snapshot(txn, row)


def load_snapshot(txn: ReadTxn, name: str) -> Snapshot:
    """By its id, or the end of it."""
    found = [to_snapshot(txn, row) for row in rows_of_id(txn, _SNAPSHOT, "s.id", name.strip())]
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
    if resource is not None and may_read(txn, resource):
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
        method=name_in(txn, method),
        external_kind=name_in(txn, ref_kind),
        external_id=text_of(txn, ref),
        consistency=None if consistency is None else SnapshotConsistency(consistency),
        size_bytes=size_bytes,
        restorable=bool(restorable),
        run=run,
        after=after,
        is_before=bool(before),
        is_inferred=bool(inferred),
        skipped=_skipped_paths(txn, skipped),
        error=text_of(txn, error),
        error_code=error_code_of(txn, error_code),
    )


def snapshots_of_turn(txn: ReadTxn, turn: TurnRow) -> list[Snapshot]:
    """What resources were like after a turn: of each the last good snapshot that was taken in it, or in the nearest
    turn before it that has one of that resource; the nearest first."""
    row: TurnRow | None = turn
    found: dict[str, Snapshot] = {}
    while row is not None:
        nearest = txn.sql.fetch_rows(
            "SELECT resource, MAX(depth) FROM resource_snapshot WHERE segment = ? AND depth <= ? AND state = 'ok'"
            " AND before = 0 GROUP BY resource ORDER BY MAX(depth) DESC, resource",
            (row.segment, row.depth),
        )
        for resource, depth in nearest:
            if resource not in found:
                counted = "s.segment = ? AND s.depth = ? AND s.resource = ? AND s.state = 'ok' AND s.before = 0"
                last = txn.sql.fetch_row(
                    f"{_SNAPSHOT} WHERE {counted} ORDER BY s.n DESC LIMIT 1", (row.segment, depth, resource)
                )
                assert last is not None, "it was found a moment ago"
                found[resource] = to_snapshot(txn, last)
        row = _parent_of_segment(txn, row)
    return list(found.values())


def tried_in(txn: ReadTxn, turn: str) -> list[Snapshot]:
    """Every snapshot that is one of a turn's files, by its id, whatever came of it, the oldest first."""
    rows = txn.sql.fetch_rows(f"{_SNAPSHOT} WHERE s.run = ? AND s.segment IS NOT NULL ORDER BY s.n", (turn,))
    found = [to_snapshot(txn, row) for row in rows]
    access = access_of(txn)
    return [one for one in found if _may_read_snapshot(access, txn, one)]


def taken_in(txn: ReadTxn, turn: str) -> list[Snapshot]:
    """Every snapshot of a turn, by its id, that holds something, or did: whoever was to throw that away may have died.
    Only those of this ledger's resources."""
    rows = txn.sql.fetch_rows(f"{_SNAPSHOT} WHERE s.run = ? AND s.state IN ('ok', 'discarded') ORDER BY s.n", (turn,))
    return [one for one in (to_snapshot(txn, row) for row in rows) if _is_own(txn, one.resource)]


def _is_own(txn: ReadTxn, resource: str) -> bool:
    """Whether this ledger declared a resource."""
    row = txn.sql.fetch_row("SELECT n, replica FROM resource WHERE id = ?", (resource,))
    return row is not None and is_written_here(txn.sql, row[0], row[1])


def kept_beside(txn: ReadTxn, references: Sequence[str]) -> list[Snapshot]:
    """Snapshots of no turn, such as those that were taken before something was overwritten, with one of these external
    ids."""
    rows = [
        row
        for reference in dict.fromkeys(references)
        for row in txn.sql.fetch_rows(
            f"{_SNAPSHOT} WHERE s.ref_digest = ? AND s.state = 'ok' AND s.run IS NULL ORDER BY s.n",
            (text_digest(reference),),
        )
    ]
    return [one for one in (to_snapshot(txn, row) for row in rows) if _is_own(txn, one.resource)]


def is_held(txn: ReadTxn, kind: str, reference: str) -> bool:
    """Whether a snapshot of this ledger's resources still holds something under an external id, of one kind of
    reference."""
    rows = txn.sql.fetch_rows(
        "SELECT resource, ref_kind FROM resource_snapshot WHERE ref_digest = ? AND state = 'ok'",
        (text_digest(reference),),
    )
    return any(name_in(txn, word) == kind and _is_own(txn, resource) for resource, word in rows)


def kept_references(txn: ReadTxn) -> list[KeptReference]:
    """Of every snapshot that holds something, as far as what it was called is not erased; the oldest first."""
    rows = txn.sql.fetch_rows(
        "SELECT id, ref_kind, ref, resource FROM resource_snapshot WHERE state = 'ok' AND ref IS NOT NULL ORDER BY n",
        (),
    )
    own = {id: _is_own(txn, id) for id in {resource for *_, resource in rows}}
    found = ((id, name_in(txn, kind), text_of(txn, ref), own[resource]) for id, kind, ref, resource in rows)
    return [
        KeptReference(snapshot=id, kind=kind, id=reference, is_own=is_own)
        for id, kind, reference, is_own in found
        if kind is not None and reference is not None
    ]


def is_quiet(txn: ReadTxn) -> bool:
    """Whether nobody records a turn, acts on a resource, or has wished for that: what is kept is named by a snapshot
    then, or by nobody. What is wished for in another ledger is kept there."""
    kinds = (LeaseKind.SESSION, LeaseKind.TURN, LeaseKind.RESOURCE)
    wanted = txn.sql.fetch_rows("SELECT resource FROM resource_snapshot WHERE state = 'requested'", ())
    return not held_leases(txn.sql, *kinds) and not any(_is_own(txn, resource) for (resource,) in wanted)


def replica_of_resource(txn: ReadTxn, resource: str) -> str | None:
    """The ledger that declared it, by its replica id; None where that is this one."""
    row = txn.sql.fetch_row("SELECT n, replica FROM resource WHERE id = ?", (resource,))
    return None if row is None or is_written_here(txn.sql, row[0], row[1]) else row[1]


def is_kept_in(sql: Sql, turn: str, resource: str) -> bool:
    """Whether a turn kept what a resource was like, or could not."""
    row = sql.fetch_row("SELECT 1 FROM resource_snapshot WHERE run = ? AND resource = ? LIMIT 1", (turn, resource))
    return row is not None


def is_begun(sql: Sql, turn: str, resource: str) -> bool:
    """Whether what a resource was like before a turn changed it is recorded, or that it could not be kept."""
    row = sql.fetch_row(
        "SELECT 1 FROM resource_snapshot WHERE run = ? AND resource = ? AND segment IS NOT NULL AND before = 1 LIMIT 1",
        (turn, resource),
    )
    return row is not None


def snapshots_before_turn(txn: ReadTxn, turn: TurnRow) -> list[Snapshot]:
    """What resources were like before a turn changed them: what was kept then, else what the turns before it left."""
    rows = txn.sql.fetch_rows(
        f"{_SNAPSHOT} WHERE s.run = ? AND s.segment IS NOT NULL AND s.state = 'ok' AND s.before = 1 ORDER BY s.n DESC",
        (turn.id,),
    )
    first = {one.resource: one for one in (to_snapshot(txn, row) for row in rows)}
    parent = None if turn.parent is None else load_turn(txn.sql, turn.parent)
    left = [] if parent is None else snapshots_of_turn(txn, parent)
    return [*first.values(), *(one for one in left if one.resource not in first)]


def _parent_of_segment(txn: ReadTxn, turn: TurnRow) -> TurnRow | None:
    """The turn that the segment of a turn grew from."""
    row = txn.sql.fetch_row("SELECT parent, parent_depth FROM segment WHERE n = ?", (turn.segment,))
    if row is None or row[0] is None:
        return None
    above = txn.sql.fetch_row("SELECT id FROM turn WHERE segment = ? AND depth = ?", (row[0], row[1]))
    return None if above is None else load_turn(txn.sql, above[0])


def pending_snapshots(txn: ReadTxn) -> list[Snapshot]:
    """Wishes of this ledger that nobody has carried out, the oldest first."""
    rows = txn.sql.fetch_rows(
        f"{_SNAPSHOT} JOIN resource r ON r.id = s.resource WHERE s.state = 'requested' ORDER BY s.n", ()
    )
    return [one for one in (to_snapshot(txn, row) for row in rows) if _may_act_on(txn, one.resource)]


def pending_restores(txn: ReadTxn) -> list[ResourceRestore]:
    rows = txn.sql.fetch_rows(f"{_RESTORE} WHERE outcome IS NULL ORDER BY n", ())
    found = []
    for row in rows:
        snapshot = txn.sql.fetch_row("SELECT resource FROM resource_snapshot WHERE id = ?", (row[1],))
        if snapshot is not None and _may_act_on(txn, snapshot[0]):
            found.append(to_restore(txn, row))
    return found


def _may_act_on(txn: ReadTxn, id: str) -> bool:
    """Whether it is a resource of this ledger, and of whoever asks."""
    resource = find_resource(txn, id)
    if resource is None or not resource.is_own:
        return False
    return may_use_resource(access_of(txn), txn, resource, CHANGE_RESOURCE)


def is_superseded(txn: ReadTxn, restore: ResourceRestore) -> bool:
    """Whether, since a restore over a resource was wished for, it was given to another, another such wish came, or a
    turn kept what it had made of it."""
    resource, n, owner = txn.sql.fetch_rows(
        "SELECT s.resource, r.n, r.owner FROM resource_restore r JOIN resource_snapshot s ON s.id = r.snapshot"
        " WHERE r.id = ?",
        (restore.id,),
    )[0]
    worked_with = txn.sql.fetch_row(
        "SELECT 1 FROM resource_snapshot WHERE resource = ? AND n > ? AND run IS NOT NULL LIMIT 1", (resource, n)
    )
    wished_for = txn.sql.fetch_row(
        "SELECT 1 FROM resource_restore r JOIN resource_snapshot s ON s.id = r.snapshot WHERE r.n > ?"
        " AND r.new_resource IS NULL AND s.resource = ? LIMIT 1",
        (n, resource),
    )
    present = find_resource(txn, resource)
    is_given = present is None or present.owner is None or owner not in (None, present.owner.id)
    return worked_with is not None or wished_for is not None or is_given


def load_restore(txn: ReadTxn, id: str) -> ResourceRestore:
    row = txn.sql.fetch_row(f"{_RESTORE} WHERE id = ?", (id,))
    snapshot = None if row is None else txn.sql.fetch_row(f"{_SNAPSHOT} WHERE s.id = ?", (row[1],))
    may_read = snapshot is not None and _may_read_snapshot(access_of(txn), txn, to_snapshot(txn, snapshot))
    if row is None or not may_read:
        raise NotFound("restore", id, Action.LIST_RESOURCES)
    return to_restore(txn, row)


def to_restore(txn: ReadTxn, row: Sequence[Any]) -> ResourceRestore:
    (id, snapshot, requested_at, new_resource, place, owner_kind, owner, outcome, error, error_code, ended_at) = row
    return ResourceRestore(
        id=id,
        snapshot=snapshot,
        requested_at=requested_at,
        new_resource=new_resource,
        place=text_of(txn, place),
        owner=owner_of(txn, owner_kind, owner),
        outcome=None if outcome is None else RestoreOutcome(outcome),
        error=text_of(txn, error),
        error_code=error_code_of(txn, error_code),
        ended_at=ended_at,
    )
