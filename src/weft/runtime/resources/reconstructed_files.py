"""Files of turns that were put together from what a session tells, where nobody kept them: in a new folder, or recorded
as a snapshot that says that it is inferred, and what is missing.

Such a snapshot is never restored over a directory: whatever the session did not tell of would be removed there.
"""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from msgspec.structs import replace

from weft.exchange.file_reconstruction import Reconstruction, reconstruct, write_reconstruction
from weft.kernel.enums import ResourceKind
from weft.kernel.errors import NotApplicable
from weft.ledger.api import Ledger, NewResource, ResourceLog, Snapshot
from weft.runtime.resources.directory_driver import CAPABILITIES, MOST_SKIPPED, DirectoryDriver, new_folder


def check_out_reconstruction(ledger: Ledger, rev: str, to: str) -> Reconstruction:
    """What a session tells of the files after a turn, in a new folder. Raises NotApplicable where it tells of none."""
    ledger.trust.ensure("write files")
    found = reconstruct(ledger, rev)
    _ensure_any(found)
    write_reconstruction(found, new_folder(to))
    return found


def record_reconstruction(ledger: Ledger, driver: DirectoryDriver, found: Reconstruction) -> Snapshot:
    """Record it as a snapshot of the workspace after its turn, which cannot be restored over it."""
    ledger.trust.ensure("keep files")
    _ensure_any(found)
    assert found.workspace is not None  # else no path would lie in it
    log = ResourceLog(ledger)
    with TemporaryDirectory(prefix="weft-reconstruction-") as made, driver.files.hold():
        folder = Path(made) / "files"
        write_reconstruction(found, folder)
        taken = driver.take(folder)
        new = replace(taken, is_inferred=True, restorable=False, skipped=[*(taken.skipped or ()), *_missing(found)])
        resource = _workspace_of(log, ledger, driver.machine, found.workspace, found.turn)
        return log.record_snapshot(resource, new, run=found.turn)


def _ensure_any(found: Reconstruction) -> None:
    if not found.files:
        why = f": {found.gaps[0].why}" if found.gaps else ""
        raise NotApplicable(f"no file of {found.turn} is known whole{why}", "its edits are shown with the turn")


def _workspace_of(log: ResourceLog, ledger: Ledger, machine: str | None, place: str, turn: str) -> str:
    """The resource at the workspace, which need not be on this machine, though what was put together is kept here; its
    owner stays who it is."""
    known = log.find_at(ResourceKind.DIRECTORY.value, place, machine)
    if known is not None:
        return known.id
    session = ledger.turn(turn).session_id
    new = NewResource(
        name=Path(place).name or "/",
        kind=ResourceKind.DIRECTORY,
        place=place,
        capabilities=CAPABILITIES,
        session=session,
        machine=machine,
    )
    return log.declare(new).id


def _missing(found: Reconstruction) -> list[dict[str, Any]]:
    gaps: list[dict[str, Any]] = [{"path": gap.path or "", "why": gap.why.value} for gap in found.gaps]
    if len(gaps) > MOST_SKIPPED:
        gaps = [*gaps[:MOST_SKIPPED], {"more": len(gaps) - MOST_SKIPPED}]
    return gaps
