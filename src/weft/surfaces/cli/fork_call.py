"""What `weft fork` does with the resources of a session: shows the plan, carries it out, tells what came of it."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from weft.kernel.enums import ResourceKind, RestoreOutcome, VolumeMode
from weft.surfaces.cli.figures import counted, size_text
from weft.surfaces.cli.resources.text import skipped_count
from weft.surfaces.cli.screen import Line, Span
from weft.surfaces.wire.turn_files import PlannedCopy

if TYPE_CHECKING:
    from weft.ledger.api import Ledger, Restore
    from weft.runtime.resources.turn_files import ForkedResources, PlanLine


def planned_copies(lines: Sequence[PlanLine], fork: str, restores: Sequence[Restore] = ()) -> list[PlannedCopy]:
    """A plan, and what came of it, as it is told; `fork` is the label of the new session."""
    by_snapshot = {one.snapshot: one for one in restores}
    return [_copy(line, fork, by_snapshot.get(line.snapshot.id if line.snapshot else "")) for line in lines]


def _copy(line: PlanLine, fork: str, restore: Restore | None) -> PlannedCopy:
    owner = line.resource.owner
    origin = None if owner is None else owner.name or owner.id
    return PlannedCopy(
        resource_id=line.resource.id,
        name=line.resource.name,
        kind=line.resource.kind.value,
        mode=line.mode,
        why=line.why,
        kept_by=None if line.mode is not VolumeMode.KEEP else fork if line.is_kept_by_fork else origin,
        snapshot_id=None if line.snapshot is None else line.snapshot.id,
        size_bytes=None if line.snapshot is None else line.snapshot.size_bytes,
        place=line.place,
        changed_since=line.changed_since if line.mode is VolumeMode.SNAPSHOT else 0,
        skipped=0 if line.snapshot is None else skipped_count(line.snapshot),
        outcome=None if restore is None else restore.outcome,
        error=None if restore is None else restore.error,
    )


def plan_lines(copies: Sequence[PlannedCopy], *, is_done: bool) -> Iterator[Line]:
    for copy in copies:
        yield ["  ", Span(copy.name, "label"), " ", *_copy_line(copy, is_done=is_done)]


def _copy_line(copy: PlannedCopy, *, is_done: bool) -> Line:
    if copy.mode is VolumeMode.DISCARD:
        return [f"{'is' if is_done else 'would be'} nobody's any more; only what weft made of it is removed"]
    if copy.mode is VolumeMode.KEEP:
        return [f"stays with {copy.kept_by} ({copy.why})"]
    details = ", ".join((copy.why, *_details(copy)))
    if not is_done:
        return [f"would be copied to {copy.place} ({details})"]
    if copy.outcome is RestoreOutcome.OK:
        return [f"was copied to {copy.place} ({details})"]
    reason = copy.error or "somebody works on it; the broker copies it later"
    return [Span(f"could not be copied: {reason}", "bad")]


def _details(copy: PlannedCopy) -> Iterator[str]:
    """How large it is, and what is not in it."""
    if copy.size_bytes is not None:
        yield size_text(copy.size_bytes)
    if copy.changed_since:
        yield f"without what changed since in {counted(copy.changed_since, 'path')}"
    if copy.skipped:
        yield f"without {counted(copy.skipped, 'path')} that could not be kept"
    if copy.kind == ResourceKind.DIRECTORY:
        yield "without .git and ignored files"


def set_workspace(ledger: Ledger, origin: str | None, done: ForkedResources) -> str | None:
    """Where the session that was forked works in a folder by its configuration, the fork works in its copy; which."""
    from weft.programs import Programs

    session = None if origin is None else Programs(ledger).get(origin, "session")
    config = None if session is None or session.unvouched else session.config  # the fork makes no folder its owner's
    folder = config.get("workspace") if isinstance(config, dict) else None
    done_of = {one.snapshot: one for one in done.restores if one.outcome is RestoreOutcome.OK}
    for line in done.lines:
        is_copied = line.snapshot is not None and line.snapshot.id in done_of
        if folder is not None and is_copied and line.resource.place == os.path.realpath(folder):
            Programs(ledger).change(done.session, {"workspace": line.place})
            return line.place
    return None
