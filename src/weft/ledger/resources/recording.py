"""Facts about resources: declared, owned, divided into parts, attached, mounted, handled, looked at.

One owner at a time. Only the owner's branch has a resource to write to; others may have it read-only where it can be
shared. What another ledger declared is told of by that ledger alone.
"""

from __future__ import annotations

from typing import Any

from msgspec import UNSET

from weft.kernel.advice import Action
from weft.kernel.enums import (
    HandleCapability,
    MountMode,
    OwnershipReason,
    ResourceCapability,
    ResourceLiveness,
    SubresourcePart,
)
from weft.kernel.errors import InvalidInput, NotApplicable, NotFound
from weft.kernel.events import resource_stream
from weft.kernel.fields import ResourceScope
from weft.kernel.resource_events import (
    HandleClosed,
    HandleOpened,
    ResourceAttached,
    ResourceDeclared,
    ResourceDetached,
    ResourceLivenessProbe,
    ResourceMounted,
    ResourceOwned,
    ResourceUnmounted,
    SubresourceAdded,
    SubresourceRemoved,
)
from weft.ledger.arguments import checked_length, checked_text
from weft.ledger.model import DEFAULT_AGENT
from weft.ledger.read.access import READ_SESSION
from weft.ledger.resources.model import NewResource, Owner, Resource, ResourceUse
from weft.ledger.resources.reading import CHANGE_RESOURCE, READ_RESOURCE, load_resource, may_use_resource, standing_at
from weft.ledger.sessions.heads import require_session
from weft.ledger.views.resources import ATTACHED, MOUNTED
from weft.ledger.write.append import Append, EventStream, LedgerWriter
from weft.store.port import ReadTxn


def stream_of_resource(append: Append, id: str) -> EventStream:
    name = resource_stream(id)
    tip = append.sql.one("SELECT last FROM stream_tip WHERE stream = ?", (name,))
    return append.stream(name, bytes(tip[0]).hex() if tip else None)


def require_resource(append: Append, name: str) -> Resource:
    """A resource of this ledger that whoever acts may change."""
    txn = ReadTxn(append.sql, append.txn.facts)
    resource = load_resource(txn, checked_text(name, "resource"))
    if not may_use_resource(append.access, txn, resource, CHANGE_RESOURCE):
        if not may_use_resource(append.access, txn, resource, READ_RESOURCE):
            raise NotFound("resource", name, Action.LIST_RESOURCES)
        raise append.refusal(CHANGE_RESOURCE, f"change the resource {resource.name!r}")
    if not resource.is_own:
        raise NotApplicable(f"resource {resource.name!r} was declared by another ledger", "act on it there")
    return resource


def require_standing(append: Append, name: str) -> Resource:
    """One that somebody owns."""
    resource = require_resource(append, name)
    if resource.owner is None:
        raise NotApplicable(f"resource {resource.name!r} is discarded")
    return resource


def scope_of_owner(owner: Owner | None) -> ResourceScope | None:
    if owner is None:
        return None
    return ResourceScope(**{owner.kind: owner.id})


# --- declared and owned ----------------------------------------------------------------------------------------------


def declare(writer: LedgerWriter, new: NewResource) -> str:
    """A new resource with its first owner; its id. Where one stands at its place, which somebody else may have declared
    just now, it is that one."""
    writer.ensure_allowed(CHANGE_RESOURCE)

    def work(append: Append) -> str:
        standing = standing_at(ReadTxn(append.sql, append.txn.facts), new.kind, new.place, new.machine)
        if standing is not None:
            return require_resource(append, standing.id).id
        owner = _first_owner(append, new.session)
        id = add_declared(append, append.ulids.mint(), new, owner, OwnershipReason.DECLARED)
        append.seal()
        return id

    return writer.write(work)


def _first_owner(append: Append, session: str | None) -> Owner:
    if session is None:
        return Owner("agent", append.acting_ids[0])
    return Owner("session", require_session(append, session, CHANGE_RESOURCE).id)


def add_declared(append: Append, id: str, new: NewResource, owner: Owner | None, why: OwnershipReason) -> str:
    stream = stream_of_resource(append, id)
    _add_description(append, stream, new, scope_of_owner(owner))
    stream.add(ResourceOwned, resource_ref=id, owner=scope_of_owner(owner), before=None, why=why)
    return id


def _add_description(append: Append, stream: EventStream, new: NewResource, scope: ResourceScope | None) -> None:
    name = checked_length(checked_text(new.name, "name"), "name")
    place = checked_text(new.place, "place")
    if not name.strip() or not place:
        raise InvalidInput("a resource needs a name and a place", "give both")
    stream.add(
        ResourceDeclared,
        name=append.put_text(name, "name"),
        resource_kind=new.kind,
        capabilities=tuple(sorted(new.capabilities)),
        place=append.put_text(place, "place"),
        imperative=new.imperative or UNSET,
        made=new.is_made or UNSET,
        scope=UNSET if scope is None else scope,
        metadata=UNSET if new.metadata is None else append.put_json(new.metadata, "metadata"),
        machine=UNSET if new.machine is None else new.machine,
    )


def describe(writer: LedgerWriter, name: str, new: NewResource) -> None:
    """Say anew what a resource is; owner, uses and snapshots stay."""

    def work(append: Append) -> None:
        resource = require_resource(append, name)
        scope = ResourceScope(**resource.scope) if resource.scope else None
        _add_description(append, stream_of_resource(append, resource.id), new, scope)
        append.seal()

    writer.write(work)


def add_owned(
    append: Append, resource: Resource, owner: Owner | None, why: OwnershipReason, reason: str | None = None
) -> None:
    """Another owner, or none; whoever had it attached to write has it no more, and where there is none, nobody uses
    it."""
    stream = stream_of_resource(append, resource.id)
    stream.add(
        ResourceOwned,
        resource_ref=resource.id,
        owner=scope_of_owner(owner),
        before=scope_of_owner(resource.owner),
        why=why,
        reason=UNSET if reason is None else append.put_text(reason, "reason"),
    )
    for use in resource.uses:
        is_owners = owner is not None and (use.user.kind, use.user.id) == (owner.kind, owner.id)
        if use.way == MOUNTED and owner is None:
            stream.add(ResourceUnmounted, resource_ref=resource.id, **{use.user.kind: use.user.id})
        is_ended = use.way == ATTACHED and not is_owners and (owner is None or use.mode is MountMode.RW)
        if is_ended:
            stream.add(ResourceDetached, resource_ref=resource.id, **_attachment_fields(use.user))


def migrate(writer: LedgerWriter, name: str, session: str, former: str | None = None) -> None:
    """Another session owns the resource, where such a resource can change hands; with `former`, only while that one
    owns it."""

    def work(append: Append) -> None:
        resource = require_standing(append, name)
        if not resource.can(ResourceCapability.MIGRATE):
            raise NotApplicable(
                f"unsupported: a {resource.kind} such as {resource.name!r} cannot change hands",
                "take a snapshot and restore it for the other session",
            )
        owner = Owner("session", require_session(append, session, CHANGE_RESOURCE).id)
        present = resource.owner
        if present is not None and owner.id == present.id:
            raise NotApplicable(f"{session!r} owns {resource.name!r} already")
        if former is not None and present is not None:
            expected = require_session(append, former, READ_SESSION)
            if present.id != expected.id:
                name_of_owner = present.name or present.id
                raise NotApplicable(f"{resource.name!r} belongs to {name_of_owner!r}, not to {former!r}", "ask there")
        add_owned(append, resource, owner, OwnershipReason.MIGRATE)
        append.seal()

    writer.write(work)


def take_over(writer: LedgerWriter, name: str, session: str) -> None:
    """A session that works with a resource owns it from now on, whoever did before."""

    def work(append: Append) -> None:
        resource = require_resource(append, name)
        owner = Owner("session", require_session(append, session, CHANGE_RESOURCE).id)
        add_owned(append, resource, owner, OwnershipReason.MIGRATE)
        append.seal()

    writer.write(work)


def discard(writer: LedgerWriter, name: str, reason: str | None = None) -> None:
    """Nobody owns or uses the resource any more; the reason says why what Weft made of it is left where it is."""

    def work(append: Append) -> None:
        resource = require_resource(append, name)
        add_discarded(append, resource, reason)
        append.seal()

    writer.write(work)


def add_discarded(append: Append, resource: Resource, reason: str | None = None) -> None:
    if resource.owner is None:
        raise NotApplicable(f"resource {resource.name!r} is discarded already")
    stream = stream_of_resource(append, resource.id)
    for handle in resource.handles:
        stream.add(HandleClosed, handle=handle.id, resource_ref=resource.id)
    add_owned(append, resource, None, OwnershipReason.DISCARD, reason)


# --- parts and handles -----------------------------------------------------------------------------------------------


def add_part(writer: LedgerWriter, name: str, part_name: str, part: SubresourcePart) -> None:
    def work(append: Append) -> None:
        resource, inner = require_standing(append, name), require_standing(append, part_name)
        if inner.id == resource.id:
            raise InvalidInput("a resource is no part of itself", "name another one")
        stream_of_resource(append, resource.id).add(
            SubresourceAdded, resource_ref=resource.id, part_ref=inner.id, part=part
        )
        append.seal()

    writer.write(work)


def remove_part(writer: LedgerWriter, name: str, part_name: str) -> None:
    def work(append: Append) -> None:
        resource, inner = require_resource(append, name), require_resource(append, part_name)
        if inner.id not in {part.resource for part in resource.parts}:
            raise NotApplicable(f"{inner.name!r} is no part of {resource.name!r}")
        stream_of_resource(append, resource.id).add(SubresourceRemoved, resource_ref=resource.id, part_ref=inner.id)
        append.seal()

    writer.write(work)


def open_handle(
    writer: LedgerWriter, name: str, provider: str, provider_id: str, capabilities: tuple[HandleCapability, ...]
) -> str:
    """Its id. One that is open for the same thing is given again."""

    def work(append: Append) -> str:
        resource = require_standing(append, name)
        for handle in resource.handles:
            if (handle.provider, handle.provider_id) == (provider, provider_id):
                return handle.id
        id = append.ulids.mint()
        stream_of_resource(append, resource.id).add(
            HandleOpened,
            handle=id,
            resource_ref=resource.id,
            provider=append.named(provider, "provider"),
            provider_id=append.put_text(checked_text(provider_id, "provider_id"), "provider_id"),
            capabilities=tuple(sorted(capabilities)),
        )
        append.seal()
        return id

    return writer.write(work)


def close_handle(writer: LedgerWriter, name: str, handle: str, reason: str | None) -> None:
    def work(append: Append) -> None:
        resource = require_resource(append, name)
        if handle not in {one.id for one in resource.handles}:
            raise NotFound("open handle", handle)
        stream_of_resource(append, resource.id).add(
            HandleClosed,
            handle=handle,
            resource_ref=resource.id,
            reason=UNSET if reason is None else append.put_text(reason, "reason"),
        )
        append.seal()

    writer.write(work)


# --- uses and liveness -----------------------------------------------------------------------------------------------


def attach(writer: LedgerWriter, name: str, mode: MountMode, session: str | None, run: str | None) -> None:
    """To a session, a run, or else whoever acts. To write it is attached to its owner alone; read-only also to others,
    where it can be shared."""

    def work(append: Append) -> None:
        resource = require_standing(append, name)
        user = _user(append, session, run)
        _ensure_attachable(append, resource, mode, user)
        stream_of_resource(append, resource.id).add(
            ResourceAttached, resource_ref=resource.id, mode=mode, **_attachment_fields(user)
        )
        append.seal()

    writer.write(work)


def detach(writer: LedgerWriter, name: str, session: str | None, run: str | None) -> None:
    def work(append: Append) -> None:
        resource = require_resource(append, name)
        user = _user(append, session, run)
        if not any(_is_use(use, ATTACHED, user) for use in resource.uses):
            raise NotApplicable(f"{resource.name!r} is not attached there")
        stream_of_resource(append, resource.id).add(
            ResourceDetached, resource_ref=resource.id, **_attachment_fields(user)
        )
        append.seal()

    writer.write(work)


def _user(append: Append, session: str | None, run: str | None) -> Owner:
    if run is not None:
        turn = append.view.find_turn(run)
        if turn is None:
            raise NotFound("turn", run)
        append.access.ensure_turn("turn:record", turn, run)
        return Owner("run", turn.id)
    if session is not None:
        return Owner("session", require_session(append, session, READ_SESSION).id)
    return Owner("agent", append.acting_ids[0])


def _ensure_attachable(append: Append, resource: Resource, mode: MountMode, user: Owner) -> None:
    owner = resource.owner
    assert owner is not None, "resources without an owner are refused"
    turn = append.view.find_turn(user.id) if user.kind == "run" else None
    session = None if turn is None or turn.session is None else append.view.session_of_number(turn.session)
    ids = {user.id} | ({session.id} if session is not None else set())
    if owner.id in ids or (owner.kind == "agent" and user.kind == "agent" and owner.id == DEFAULT_AGENT):
        return
    if mode is MountMode.RW:
        name = owner.name or owner.id
        raise NotApplicable(f"{resource.name!r} belongs to {name!r}, who alone writes to it", "attach it read-only")
    if not resource.can(ResourceCapability.SHARE):
        raise NotApplicable(
            f"unsupported: a {resource.kind} such as {resource.name!r} cannot be shared", "take a snapshot of it"
        )


def _is_use(use: ResourceUse, way: str, user: Owner) -> bool:
    return (use.way, use.user.kind, use.user.id) == (way, user.kind, user.id)


def _attachment_fields(user: Owner) -> dict[str, Any]:
    return {user.kind: user.id} if user.kind in ("session", "run", "agent") else {}


def mount(
    writer: LedgerWriter, name: str, path: str, mode: MountMode, *, run: str | None = None, container: str | None = None
) -> None:
    """A run, or a container that is a resource, sees the resource under a path."""

    def work(append: Append) -> None:
        resource = require_standing(append, name)
        stream_of_resource(append, resource.id).add(
            ResourceMounted,
            resource_ref=resource.id,
            mount=append.put_text(checked_text(path, "path"), "path"),
            mode=mode,
            **_mounting_fields(append, run, container),
        )
        append.seal()

    writer.write(work)


def unmount(writer: LedgerWriter, name: str, *, run: str | None = None, container: str | None = None) -> None:
    def work(append: Append) -> None:
        resource = require_resource(append, name)
        fields = _mounting_fields(append, run, container)
        (kind, id), *_ = fields.items()
        if not any(_is_use(use, MOUNTED, Owner(kind, id)) for use in resource.uses):
            raise NotApplicable(f"{resource.name!r} is not mounted there")
        stream_of_resource(append, resource.id).add(ResourceUnmounted, resource_ref=resource.id, **fields)
        append.seal()

    writer.write(work)


def _mounting_fields(append: Append, run: str | None, container: str | None) -> dict[str, str]:
    if (run is None) == (container is None):
        raise InvalidInput("a mount is a run's or a container's", "name one of them")
    if run is not None:
        return {"run": _user(append, None, run).id}
    assert container is not None
    return {"container": require_resource(append, container).id}


def record_probe(writer: LedgerWriter, name: str, status: ResourceLiveness) -> None:
    def work(append: Append) -> None:
        resource = require_resource(append, name)
        stream_of_resource(append, resource.id).add(ResourceLivenessProbe, resource_ref=resource.id, status=status)
        append.seal()

    writer.write(work)
