"""Resources as views tell, with their owners, uses, parts and handles; for whoever may read them."""

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
)
from weft.ledger.views.resources import text_digest
from weft.ledger.views.rows import load_session
from weft.ledger.views.values import text_of
from weft.store.authorship import is_written_here
from weft.store.port import ReadTxn
from weft.store.sql import Row

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
    rows = txn.sql.all(f"{_RESOURCE}{where} ORDER BY n", tuple(value for _, value in conditions))
    found = (to_resource(txn, row) for row in rows)
    return [resource for resource in found if may_read(txn, resource)]


def load_resource(txn: ReadTxn, name: str) -> Resource:
    """By its id or the end of it, else by its name or place."""
    text = name.strip()
    found = _readable(txn, rows_of_id(txn, _RESOURCE, "id", text))
    if not any(one.is_own or one.id == text.upper() for one in found):
        # another ledger chooses the ids of its resources: the end of one does not hide a name of this ledger
        found = list({one.id: one for one in (*found, *_readable(txn, _rows_of_name(txn, text)))}.values())
    standing = [resource for resource in found if resource.owner is not None and resource.is_own] or found
    if not standing:
        raise NotFound("resource", name, Action.LIST_RESOURCES)
    if len(standing) > 1:
        raise AmbiguousName(name, [resource.id for resource in standing])
    return standing[0]


def _readable(txn: ReadTxn, rows: Sequence[Row]) -> list[Resource]:
    return [resource for resource in (to_resource(txn, row) for row in rows) if may_read(txn, resource)]


def rows_of_id(txn: ReadTxn, select: str, column: str, text: str) -> list[Row]:
    """Of the resources or snapshots that an id means, or the end of one."""
    whole = txn.sql.all(f"{select} WHERE {column} = ?", (text.upper(),))
    if whole or not END_LETTERS <= len(text) < ULID_LETTERS or not (text.isalnum() and text.isascii()):
        return whole
    end = text.upper()
    return txn.sql.all(
        f"{select} WHERE substr({column}, {ULID_LETTERS - END_LETTERS + 1}) = ? AND {column} LIKE ? LIMIT 3",
        (end[-END_LETTERS:], f"%{end}"),
    )


def _rows_of_name(txn: ReadTxn, text: str) -> list[Row]:
    """Of the resources with a name or a place."""
    digest = text_digest(text)
    rows = [
        *txn.sql.all(f"{_RESOURCE} WHERE name_digest = ?", (digest,)),
        *txn.sql.all(f"{_RESOURCE} WHERE place_digest = ?", (digest,)),
    ]
    return sorted({row[0]: row for row in rows}.values(), key=lambda row: row[1])


def free_name(txn: ReadTxn, wanted: str) -> str:
    """This name, or the next with a number, that nothing has which somebody owns."""
    name, number = wanted, 1
    while txn.sql.one("SELECT 1 FROM resource WHERE name_digest = ? AND owner IS NOT NULL", (text_digest(name),)):
        number += 1
        name = f"{wanted}-{number}"
    return name


def find_resource(txn: ReadTxn, id: str) -> Resource | None:
    row = txn.sql.one(f"{_RESOURCE} WHERE id = ?", (id,))
    return None if row is None else to_resource(txn, row)


def standing_at(txn: ReadTxn, kind: ResourceKind, place: str, machine: str | None) -> Resource | None:
    """The resource of this ledger that somebody owns at a place of a machine, else one there that is bound to none;
    whoever may read it."""
    for on in dict.fromkeys((machine, None)):
        row = txn.sql.one(
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
