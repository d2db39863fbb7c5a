"""What events mean for resources: what they are, who owns and uses them, their snapshots, and what is still to be done.

A resource is told of by the ledger that declared it: what another ledger adds to its stream is kept in the log and
changes no row here, for its places lie on another machine.
"""

from __future__ import annotations

from hashlib import sha256

from msgspec import UNSET, UnsetType

from weft.kernel import resource_events as kinds
from weft.kernel.enums import ResourceLiveness, RestoreOutcome, SnapshotOutcome, SnapshotState
from weft.kernel.events import Event
from weft.kernel.fields import ErrorFact, ResourceScope
from weft.ledger.views.projector import OTHERS, Moment, Projector, handles, plain
from weft.ledger.views.rows import TurnRow

ATTACHED, MOUNTED = "attached", "mounted"
Place = tuple[str, str, str]
"""The digest of a place, what kind of resource is there, and on which machine."""


def owner_columns(owner: ResourceScope | UnsetType | None) -> tuple[str | None, str | None]:
    """What kind of owner, and its id: the first that is named of session, agent and run."""
    if owner is None or owner is UNSET:
        return None, None
    for kind, value in (("session", owner.session), ("agent", owner.agent), ("run", owner.run)):
        if value is not UNSET:
            return kind, value
    return None, None


def _may_describe(view: Projector, moment: Moment, event: Event, resource: str) -> bool:
    """Whether the resource is known, and the event comes from the ledger that declared it: of what another ledger
    declared, a third one tells nothing."""
    row = view.sql.one("SELECT n, replica FROM resource WHERE id = ?", (resource,))
    if row is None:
        return False
    is_own = view.own_events.has(row[0], row[1])
    return view.own_events.has(moment.n, plain(event.replica)) if is_own else row[1] == plain(event.replica)


def text_digest(text: str) -> str:
    """By what a name, a place or a reference is found."""
    return sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def _digest(view: Projector, content: int | None) -> str | None:
    """Of a content's text; None where it is not here, or erased."""
    text = None if content is None else view.contents.content_text(content)
    return None if text is None else text_digest(text)


def _place_of(view: Projector, resource: str) -> Place | None:
    """Where a resource is; None: that is not known, or erased."""
    row = view.sql.one("SELECT place_digest, kind, COALESCE(machine, '') FROM resource WHERE id = ?", (resource,))
    return None if row is None or row[0] is None else (row[0], row[1], row[2])


def _settle(view: Projector, place: Place | None) -> None:
    """Of the resources of this ledger that somebody owns at one place, the newest stands there."""
    if place is None:
        return
    there = "place_digest = ? AND kind = ? AND COALESCE(machine, '') = ?"
    owned = view.sql.all(
        f"SELECT id, n, replica FROM resource WHERE {there} AND owner IS NOT NULL ORDER BY n DESC", place
    )
    newest = next((id for id, n, replica in owned if view.own_events.has(n, replica)), "")
    view.sql.run(f"UPDATE resource SET stands = NULL WHERE {there} AND stands = 1 AND id <> ?", (*place, newest))
    view.sql.run("UPDATE resource SET stands = 1 WHERE id = ?", (newest,))


def _error_columns(view: Projector, error: ErrorFact | UnsetType) -> tuple[int | None, str | None]:
    return (None, None) if error is UNSET else (view.contents.number(error.message), view.name(error.code))


@handles(kinds.ResourceDeclared, OTHERS)
def _resource_declared(view: Projector, moment: Moment, event: kinds.ResourceDeclared) -> None:
    stream, _, resource = event.stream.partition(":")
    if stream != "resource":
        return
    scope = event.scope if event.scope is not UNSET else ResourceScope()
    name, place = view.contents.number(event.name), view.contents.number(event.place)
    described = (
        event.resource_kind.value,
        name,
        place,
        " ".join(sorted(capability.value for capability in event.capabilities)),
        int(event.imperative is True),
        int(event.made is True),
        plain(scope.agent),
        plain(scope.run),
        plain(scope.session),
        view.number(event.metadata),
        plain(event.machine),
        _digest(view, name),
        _digest(view, place),
    )
    if view.sql.one("SELECT 1 FROM resource WHERE id = ?", (resource,)) is None:
        view.sql.run(
            "INSERT INTO resource(id, n, replica, kind, name, place, capabilities, imperative, made, scope_agent,"
            " scope_run, scope_session, metadata, machine, name_digest, place_digest, liveness, declared_by,"
            " declared_at) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (
                resource,
                moment.n,
                plain(event.replica),
                *described,
                ResourceLiveness.UNKNOWN.value,
                event.actor,
                moment.when,
            ),
        )
    elif _may_describe(view, moment, event, resource):
        before = _place_of(view, resource)
        view.sql.run(
            "UPDATE resource SET kind = ?, name = ?, place = ?, capabilities = ?, imperative = ?, made = ?,"
            " scope_agent = ?, scope_run = ?, scope_session = ?, metadata = ?, machine = ?, name_digest = ?,"
            " place_digest = ?, stands = NULL WHERE id = ?",
            (*described, resource),
        )
        _settle(view, before)
        _settle(view, _place_of(view, resource))


@handles(kinds.ResourceOwned, OTHERS)
def _resource_owned(view: Projector, moment: Moment, event: kinds.ResourceOwned) -> None:
    if _may_describe(view, moment, event, event.resource_ref):
        view.sql.run(
            "UPDATE resource SET owner_kind = ?, owner = ? WHERE id = ?",
            (*owner_columns(event.owner), event.resource_ref),
        )
        _settle(view, _place_of(view, event.resource_ref))


@handles(kinds.SubresourceAdded, OTHERS)
def _subresource_added(view: Projector, moment: Moment, event: kinds.SubresourceAdded) -> None:
    if _may_describe(view, moment, event, event.resource_ref):
        view.sql.run(
            "INSERT INTO resource_part(resource, part_ref, part, n) VALUES (?, ?, ?, ?) ON CONFLICT DO NOTHING",
            (event.resource_ref, event.part_ref, event.part.value, moment.n),
        )


@handles(kinds.SubresourceRemoved, OTHERS)
def _subresource_removed(view: Projector, moment: Moment, event: kinds.SubresourceRemoved) -> None:
    if _may_describe(view, moment, event, event.resource_ref):
        view.sql.run(
            "DELETE FROM resource_part WHERE resource = ? AND part_ref = ?", (event.resource_ref, event.part_ref)
        )


@handles(kinds.HandleOpened, OTHERS)
def _handle_opened(view: Projector, moment: Moment, event: kinds.HandleOpened) -> None:
    if not _may_describe(view, moment, event, event.resource_ref):
        return
    capabilities = () if event.capabilities is UNSET else event.capabilities
    view.sql.run(
        "INSERT INTO resource_handle(id, n, replica, resource, provider, provider_id, capabilities, opened_at)"
        " VALUES (?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING",
        (
            event.handle,
            moment.n,
            plain(event.replica),
            event.resource_ref,
            view.name(event.provider),
            view.contents.number(event.provider_id),
            " ".join(sorted(capability.value for capability in capabilities)),
            moment.when,
        ),
    )


@handles(kinds.HandleClosed, OTHERS)
def _handle_closed(view: Projector, moment: Moment, event: kinds.HandleClosed) -> None:
    if _may_describe(view, moment, event, event.resource_ref):
        view.sql.run(
            "UPDATE resource_handle SET closed_at = ? WHERE id = ? AND resource = ? AND closed_at IS NULL",
            (moment.when, event.handle, event.resource_ref),
        )


def attachment_user(event: kinds.ResourceAttached | kinds.ResourceDetached) -> tuple[str, str]:
    """To what a resource is attached: a run, else a session, else an agent; where none is named, the one that acted."""
    if event.run is not UNSET:
        return "run", event.run
    if event.session is not UNSET:
        return "session", event.session
    return "agent", event.actor if event.agent is UNSET else event.agent


def mount_user(event: kinds.ResourceMounted | kinds.ResourceUnmounted) -> tuple[str, str] | None:
    """What sees a resource: a container, else a run."""
    if event.container is not UNSET:
        return "container", event.container
    return None if event.run is UNSET else ("run", event.run)


def _begin_use(
    view: Projector, moment: Moment, resource: str, way: str, user: tuple[str, str], mode: str, mount: int | None
) -> None:
    view.sql.run(
        "INSERT INTO resource_use(resource, way, user_kind, user_id, n, mode, mount, since)"
        " VALUES (?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (resource, way, user_kind, user_id)"
        " DO UPDATE SET n = excluded.n, mode = excluded.mode, mount = excluded.mount, since = excluded.since",
        (resource, way, *user, moment.n, mode, mount, moment.when),
    )


def _end_use(view: Projector, resource: str, way: str, user: tuple[str, str]) -> None:
    view.sql.run(
        "DELETE FROM resource_use WHERE resource = ? AND way = ? AND user_kind = ? AND user_id = ?",
        (resource, way, *user),
    )


@handles(kinds.ResourceAttached, OTHERS)
def _resource_attached(view: Projector, moment: Moment, event: kinds.ResourceAttached) -> None:
    if _may_describe(view, moment, event, event.resource_ref):
        _begin_use(view, moment, event.resource_ref, ATTACHED, attachment_user(event), event.mode.value, None)


@handles(kinds.ResourceDetached, OTHERS)
def _resource_detached(view: Projector, moment: Moment, event: kinds.ResourceDetached) -> None:
    if _may_describe(view, moment, event, event.resource_ref):
        _end_use(view, event.resource_ref, ATTACHED, attachment_user(event))


@handles(kinds.ResourceMounted, OTHERS)
def _resource_mounted(view: Projector, moment: Moment, event: kinds.ResourceMounted) -> None:
    user = mount_user(event)
    if user is not None and _may_describe(view, moment, event, event.resource_ref):
        mount = view.contents.number(event.mount)
        _begin_use(view, moment, event.resource_ref, MOUNTED, user, event.mode.value, mount)


@handles(kinds.ResourceUnmounted, OTHERS)
def _resource_unmounted(view: Projector, moment: Moment, event: kinds.ResourceUnmounted) -> None:
    user = mount_user(event)
    if user is not None and _may_describe(view, moment, event, event.resource_ref):
        _end_use(view, event.resource_ref, MOUNTED, user)


@handles(kinds.ResourceLivenessProbe, OTHERS)
def _resource_liveness_probe(view: Projector, moment: Moment, event: kinds.ResourceLivenessProbe) -> None:
    if _may_describe(view, moment, event, event.resource_ref):
        view.sql.run(
            "UPDATE resource SET liveness = ?, probed_at = ? WHERE id = ?",
            (event.status.value, moment.when, event.resource_ref),
        )


@handles(kinds.SnapshotRequested, OTHERS)
def _snapshot_requested(view: Projector, moment: Moment, event: kinds.SnapshotRequested) -> None:
    if _may_describe(view, moment, event, event.resource_ref):
        view.sql.run(
            "INSERT INTO resource_snapshot(id, n, replica, resource, state, run, method, before, inferred,"
            " created_at) VALUES (?, ?, ?, ?, ?, ?, ?, 0, 0, ?) ON CONFLICT DO NOTHING",
            (
                event.snapshot_ref,
                moment.n,
                plain(event.replica),
                event.resource_ref,
                SnapshotState.REQUESTED.value,
                plain(event.run),
                view.name(event.method),
                moment.when,
            ),
        )


def _may_describe_turn(view: Projector, moment: Moment, event: Event, turn: TurnRow) -> bool:
    """What another ledger says of a turn's files counts in sessions of other ledgers alone."""
    if view.own_events.has(moment.n, plain(event.replica)):
        return True
    session = None if turn.session is None else view.session_of_number(turn.session)
    return session is not None and view.may_change(moment, event, (session.n, session.replica))


@handles(kinds.SnapshotCreated, OTHERS)
def _snapshot_created(view: Projector, moment: Moment, event: kinds.SnapshotCreated) -> None:
    """The outcome of a request, or a snapshot that nobody had asked for; the first outcome counts. It is one of the
    turn's files (it has a segment and a depth) where it comes from the ledger that began the turn's session."""
    if not _may_describe(view, moment, event, event.resource_ref):
        return
    is_ok = event.outcome is SnapshotOutcome.OK
    reference = None if event.external_ref is UNSET else event.external_ref
    reference_id = None if reference is None else view.contents.number(reference.id)
    turn = None if event.run is UNSET else view.find_turn(event.run)
    if turn is not None and not _may_describe_turn(view, moment, event, turn):
        turn = None
    after = None if event.after is UNSET else event.after.event_id
    view.sql.run(
        "INSERT INTO resource_snapshot(id, n, replica, resource, state, run, segment, depth, after, before, method,"
        " ref_kind, ref, ref_digest, consistency, size_bytes, restorable, inferred, skipped, error, error_code,"
        " created_at) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
        " ON CONFLICT (id) DO UPDATE SET state = excluded.state,"
        " run = coalesce(excluded.run, resource_snapshot.run), after = excluded.after, segment = excluded.segment,"
        " depth = excluded.depth, before = excluded.before,"
        " method = excluded.method, ref_kind = excluded.ref_kind, ref = excluded.ref, ref_digest = excluded.ref_digest,"
        " consistency = excluded.consistency, size_bytes = excluded.size_bytes, restorable = excluded.restorable,"
        " inferred = excluded.inferred, skipped = excluded.skipped, error = excluded.error,"
        " error_code = excluded.error_code, created_at = excluded.created_at"
        " WHERE resource_snapshot.state = 'requested' AND resource_snapshot.resource = excluded.resource",
        (
            event.snapshot_ref,
            moment.n,
            plain(event.replica),
            event.resource_ref,
            (SnapshotState.OK if is_ok else SnapshotState.ERROR).value,
            plain(event.run),
            None if turn is None else turn.segment,
            None if turn is None else turn.depth,
            after,
            int(event.before is True),
            view.name(event.method),
            None if reference is None else view.name(reference.kind),
            reference_id,
            _digest(view, reference_id),
            plain(event.consistency),
            plain(event.size_bytes),
            int(is_ok and event.restorable is not False),
            int(event.inferred is True),
            view.number(event.skipped),
            *_error_columns(view, event.error),
            moment.when,
        ),
    )


@handles(kinds.SnapshotDiscarded, OTHERS)
def _snapshot_discarded(view: Projector, moment: Moment, event: kinds.SnapshotDiscarded) -> None:
    if _may_describe(view, moment, event, event.resource_ref):
        view.sql.run(
            "UPDATE resource_snapshot SET state = ?, restorable = 0 WHERE id = ? AND resource = ?",
            (SnapshotState.DISCARDED.value, event.snapshot_ref, event.resource_ref),
        )


def _may_restore(view: Projector, moment: Moment, event: Event, snapshot: str) -> bool:
    row = view.sql.one("SELECT resource FROM resource_snapshot WHERE id = ?", (snapshot,))
    return row is not None and _may_describe(view, moment, event, row[0])


@handles(kinds.RestoreRequested, OTHERS)
def _restore_requested(view: Projector, moment: Moment, event: kinds.RestoreRequested) -> None:
    if event.restore is UNSET or not _may_restore(view, moment, event, event.snapshot_ref):
        return
    view.sql.run(
        "INSERT INTO resource_restore(id, n, replica, snapshot, new_resource, place, owner_kind, owner, requested_at)"
        " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING",
        (
            event.restore,
            moment.n,
            plain(event.replica),
            event.snapshot_ref,
            plain(event.new_resource_ref),
            view.number(event.place),
            *owner_columns(event.owner),
            moment.when,
        ),
    )


@handles(kinds.RestoreAttempted, OTHERS)
def _restore_attempted(view: Projector, moment: Moment, event: kinds.RestoreAttempted) -> None:
    """The first outcome of a wish counts."""
    if event.restore is UNSET or not _may_restore(view, moment, event, event.snapshot_ref):
        return
    view.sql.run(
        "UPDATE resource_restore SET outcome = ?, error = ?, error_code = ?, ended_at = ?"
        " WHERE id = ? AND snapshot = ? AND outcome IS NULL",
        (
            RestoreOutcome(event.outcome).value,
            *_error_columns(view, event.error),
            moment.when,
            event.restore,
            event.snapshot_ref,
        ),
    )
