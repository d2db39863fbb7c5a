"""Resources and snapshots as people read them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from weft.kernel.enums import ResourceCapability
from weft.surfaces.cli.figures import counted, size_text
from weft.surfaces.cli.history import short
from weft.surfaces.cli.screen import Line, Span
from weft.surfaces.cli.times import local_time

if TYPE_CHECKING:
    from weft.ledger.api import Owner, Resource, Snapshot
    from weft.runtime.folder_snapshots.snapshot_objects import ChangedPath

MOST_SKIPPED, MOST_CHANGES = 10, 20
INFERRED = Span("reconstruction", "warn")
"""The state of a snapshot that was put together from what a session tells."""
STATE_STYLES = {"ok": "good", "error": "bad", "requested": "warn", "discarded": "dim"}


def owner_text(owner: Owner | None) -> str:
    if owner is None:
        return "nobody"
    return f"{owner.kind} {owner.name or owner.id}"


def resource_row(resource: Resource) -> list[Span | str]:
    return [
        Span(short(resource.id), "id"),
        Span(resource.name, "label"),
        resource.kind.value,
        owner_text(resource.owner),
        resource.liveness.value,
        resource.place if resource.is_own else f"{resource.place} (of another ledger)",
    ]


def restored_text(resource: Resource) -> str:
    """Where snapshots of it can be brought back."""
    from weft.runtime.resources.drivers import RESTORED_AS_NEW

    if not resource.can(ResourceCapability.RESTORE):
        return "never"
    return "as a new one only, not in place" if resource.kind in RESTORED_AS_NEW else "in place, or as a new one"


def resource_lines(resource: Resource) -> list[Line]:
    made = ", made by weft" if resource.is_made else ""
    lines: list[Line] = [[f"{resource.kind.value} ", Span(resource.name, "label"), " ", Span(resource.id, "id")]]
    probed = "" if resource.probed_at is None else f", {local_time(resource.probed_at)}"
    for what, value in (
        ("place", resource.place + made),
        ("owner", owner_text(resource.owner)),
        ("can", ", ".join(resource.capabilities) or "nothing"),
        ("restored", restored_text(resource)),
        ("alive", resource.liveness.value + probed),
        ("declared", f"{local_time(resource.declared_at)} by {resource.declared_by}"),
    ):
        lines.append([Span(f"  {what:<9}", "dim"), value])
    for use in resource.uses:
        where = "" if use.mount is None else f" at {use.mount}"
        lines.append([Span(f"  {use.way:<9}", "dim"), f"{owner_text(use.user)}{where}, {use.mode.value}"])
    for part in resource.parts:
        lines.append([Span("  part     ", "dim"), f"{part.part.value} ", Span(part.resource, "id")])
    for handle in resource.handles:
        able = ", ".join(handle.capabilities) or "nothing"
        lines.append([Span("  handle   ", "dim"), f"{handle.provider} {handle.provider_id:.12}: {able}"])
    return lines


def snapshot_row(snapshot: Snapshot, *, is_here: bool) -> list[Span | str]:
    state = INFERRED if snapshot.is_inferred else Span(snapshot.state.value, STATE_STYLES[snapshot.state.value])
    return [
        Span(short(snapshot.id), "id"),
        local_time(snapshot.created_at),
        state if is_here else Span("not here", "warn"),
        "" if snapshot.size_bytes is None else size_text(snapshot.size_bytes),
        snapshot.method or "",
        "" if snapshot.run is None else ("before " if snapshot.is_before else "after ") + short(snapshot.run),
        snapshot.error or (f"without {counted(missing, 'path')}" if (missing := skipped_count(snapshot)) else ""),
    ]


def snapshot_lines(resource: Resource, snapshot: Snapshot) -> list[Line]:
    """What was kept, how and how much, or why it was not; and what is not in it."""
    if snapshot.error is not None:
        return [[Span(resource.name, "label"), Span(f" was not kept: {snapshot.error}", "bad")]]
    size = "" if snapshot.size_bytes is None else f", {size_text(snapshot.size_bytes)}"
    lines: list[Line] = [
        ["kept ", Span(resource.name, "label"), " as ", Span(snapshot.id, "id"), f" ({snapshot.method}{size})"]
    ]
    return [*lines, *skipped_lines(snapshot)]


def skipped_count(snapshot: Snapshot) -> int:
    """How many paths are not in a snapshot."""
    skipped = [one for one in snapshot.skipped or () if isinstance(one, dict)]
    return sum(int(one["more"]) if "more" in one else 1 for one in skipped)


def skipped_lines(snapshot: Snapshot) -> list[Line]:
    skipped = [one for one in snapshot.skipped or () if isinstance(one, dict)]
    listed = [one for one in skipped if "path" in one]
    more = sum(int(one["more"]) for one in skipped if "more" in one) + max(0, len(listed) - MOST_SKIPPED)
    lines: list[Line] = [
        [Span(f"  without {one['path']}: {str(one.get('why', '')).replace('_', ' ')}", "warn")]
        for one in listed[:MOST_SKIPPED]
    ]
    return [*lines, [Span(f"  and {more} more", "warn")]] if more else lines


def change_lines(changes: Sequence[ChangedPath]) -> list[Line]:
    """What a restore would do to a folder."""
    words = {
        "added": "write",
        "deleted": "remove",
        "modified": "write",
        "mode": "change the mode of",
        "kind": "replace",
    }
    lines: list[Line] = [[f"  {words[one.status.value]} {one.path}"] for one in changes[:MOST_CHANGES]]
    more = len(changes) - MOST_CHANGES
    return [*lines, [f"  and {counted(more, 'more change')}"]] if more > 0 else lines
