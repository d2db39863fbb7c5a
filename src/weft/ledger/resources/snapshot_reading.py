"""Snapshots and restores as views tell, and what is still to be done of them; for whoever may read them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from weft.kernel.advice import Action
from weft.kernel.enums import (
    RestoreOutcome,
    SnapshotConsistency,
    SnapshotState,
)
from weft.kernel.errors import AmbiguousName, NotFound
from weft.ledger.read.access import Access, access_of
from weft.ledger.resources.model import (
    KeptReference,
    Restore,
    Snapshot,
)
from weft.ledger.resources.reading import (
    CHANGE_RESOURCE,
    find_resource,
    json_of_content,
    may_read,
    may_use_resource,
    name_in,
    owner_of,
    rows_of_id,
)
from weft.ledger.views.lease_rows import LeaseKind, held_leases
from weft.ledger.views.resources import text_digest
from weft.ledger.views.rows import TurnRow, load_turn
from weft.ledger.views.values import error_code_of, text_of
from weft.store.authorship import is_written_here
from weft.store.port import ReadTxn
from weft.store.sql import Sql

_SNAPSHOT = (
    "SELECT s.id, s.resource, s.state, s.created_at, s.method, s.ref_kind, s.ref, s.consistency, s.size_bytes,"
    " s.restorable, s.run, s.after, s.before, s.inferred, s.skipped, s.error, s.error_code FROM resource_snapshot s"
)
_RESTORE = (
    "SELECT id, snapshot, requested_at, new_resource, place, owner_kind, owner, outcome, error, error_code, ended_at"
    " FROM resource_restore"
)


def _skipped(txn: ReadTxn, number: int | None) -> list[dict[str, Any]] | None:
    """What is not in a snapshot: paths, each with why, and how many more; what says neither is left out."""
    listed = json_of_content(txn, number)
    lines = [one for one in listed if isinstance(one, dict)] if isinstance(listed, list) else []
    return [one for one in lines if isinstance(one.get("path"), str) or type(one.get("more")) is int] or None


def listed_snapshots(txn: ReadTxn, resource: str, limit: int = 100) -> list[Snapshot]:
    """Of one resource, the newest first."""
    rows = txn.sql.all(f"{_SNAPSHOT} WHERE s.resource = ? ORDER BY s.n DESC LIMIT ?", (resource, limit))
    return [to_snapshot(txn, row) for row in rows]


def find_snapshot(txn: ReadTxn, id: str) -> Snapshot | None:
    row = txn.sql.one(f"{_SNAPSHOT} WHERE s.id = ?", (id,))
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
        skipped=_skipped(txn, skipped),
        error=text_of(txn, error),
        error_code=error_code_of(txn, error_code),
    )


def snapshots_of_turn(txn: ReadTxn, turn: TurnRow) -> list[Snapshot]:
    """What resources were like after a turn: of each the last good snapshot that was taken in it, or in the nearest
    turn before it that has one of that resource; the nearest first."""
    row: TurnRow | None = turn
    found: dict[str, Snapshot] = {}
    while row is not None:
        nearest = txn.sql.all(
            "SELECT resource, MAX(depth) FROM resource_snapshot WHERE segment = ? AND depth <= ? AND state = 'ok'"
            " AND before = 0 GROUP BY resource ORDER BY MAX(depth) DESC, resource",
            (row.segment, row.depth),
        )
        for resource, depth in nearest:
            if resource not in found:
                counted = "s.segment = ? AND s.depth = ? AND s.resource = ? AND s.state = 'ok' AND s.before = 0"
                last = txn.sql.one(
                    f"{_SNAPSHOT} WHERE {counted} ORDER BY s.n DESC LIMIT 1", (row.segment, depth, resource)
                )
                assert last is not None, "it was found a moment ago"
                found[resource] = to_snapshot(txn, last)
        row = _parent_of_segment(txn, row)
    return list(found.values())


def tried_in(txn: ReadTxn, turn: str) -> list[Snapshot]:
    """Every snapshot that is one of a turn's files, by its id, whatever came of it, the oldest first."""
    rows = txn.sql.all(f"{_SNAPSHOT} WHERE s.run = ? AND s.segment IS NOT NULL ORDER BY s.n", (turn,))
    found = [to_snapshot(txn, row) for row in rows]
    access = access_of(txn)
    return [one for one in found if _may_read_snapshot(access, txn, one)]


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
    rows = [
        row
        for reference in dict.fromkeys(references)
        for row in txn.sql.all(
            f"{_SNAPSHOT} WHERE s.ref_digest = ? AND s.state = 'ok' AND s.run IS NULL ORDER BY s.n",
            (text_digest(reference),),
        )
    ]
    return [one for one in (to_snapshot(txn, row) for row in rows) if _is_own(txn, one.resource)]


def is_held(txn: ReadTxn, kind: str, reference: str) -> bool:
    """Whether a snapshot of this ledger's resources still holds something under an external id, of one kind of
    reference."""
    rows = txn.sql.all(
        "SELECT resource, ref_kind FROM resource_snapshot WHERE ref_digest = ? AND state = 'ok'",
        (text_digest(reference),),
    )
    return any(name_in(txn, word) == kind and _is_own(txn, resource) for resource, word in rows)


def kept_references(txn: ReadTxn) -> list[KeptReference]:
    """Of every snapshot that holds something, as far as what it was called is not erased; the oldest first."""
    rows = txn.sql.all(
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
    wanted = txn.sql.all("SELECT resource FROM resource_snapshot WHERE state = 'requested'", ())
    return not held_leases(txn.sql, *kinds) and not any(_is_own(txn, resource) for (resource,) in wanted)


def replica_of_resource(txn: ReadTxn, resource: str) -> str | None:
    """The ledger that declared it, by its replica id; None where that is this one."""
    row = txn.sql.one("SELECT n, replica FROM resource WHERE id = ?", (resource,))
    return None if row is None or is_written_here(txn.sql, row[0], row[1]) else row[1]


def is_kept_in(sql: Sql, turn: str, resource: str) -> bool:
    """Whether a turn kept what a resource was like, or could not."""
    row = sql.one("SELECT 1 FROM resource_snapshot WHERE run = ? AND resource = ? LIMIT 1", (turn, resource))
    return row is not None


def is_begun(sql: Sql, turn: str, resource: str) -> bool:
    """Whether what a resource was like before a turn changed it is recorded, or that it could not be kept."""
    row = sql.one(
        "SELECT 1 FROM resource_snapshot WHERE run = ? AND resource = ? AND segment IS NOT NULL AND before = 1 LIMIT 1",
        (turn, resource),
    )
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
    worked_with = txn.sql.one(
        "SELECT 1 FROM resource_snapshot WHERE resource = ? AND n > ? AND run IS NOT NULL LIMIT 1", (resource, n)
    )
    wished_for = txn.sql.one(
        "SELECT 1 FROM resource_restore r JOIN resource_snapshot s ON s.id = r.snapshot WHERE r.n > ?"
        " AND r.new_resource IS NULL AND s.resource = ? LIMIT 1",
        (n, resource),
    )
    present = find_resource(txn, resource)
    is_given = present is None or present.owner is None or owner not in (None, present.owner.id)
    return worked_with is not None or wished_for is not None or is_given


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
        error_code=error_code_of(txn, error_code),
        ended_at=ended_at,
    )
