"""Says where the files of a snapshot are that this ledger only knows of."""

from __future__ import annotations

from pathlib import Path

from weft.exchange.sync.commands import remotes
from weft.kernel.errors import FilesElsewhere
from weft.ledger.api import Ledger, ResourceLog, Snapshot
from weft.runtime.resources.kept_files import KeptFiles

_THERE = "check them out there, or copy that ledger with its files"


def files_elsewhere(ledger: Ledger, kept: Path | None, snapshot: Snapshot) -> FilesElsewhere:
    """The error for a snapshot whose files are not here. `kept` is the folder in which this ledger's own lie."""
    origin = None if kept is None else KeptFiles(kept).origin
    if origin is not None:
        return FilesElsewhere(snapshot.id, f"they were left out of this copy of {origin}", _THERE)
    replica = ResourceLog(ledger).replica_of(snapshot.resource)
    if replica is None:
        return FilesElsewhere(
            snapshot.id,
            "the folder of kept files beside this ledger does not have them",
            "bring that folder back from a backup",
        )
    return FilesElsewhere(snapshot.id, f"{_ledger_of(ledger, replica)} has them", _THERE)


def _ledger_of(ledger: Ledger, replica: str) -> str:
    """Another ledger as its remote, for whoever may know those; else by the end of its replica id."""
    for remote in remotes(ledger) if ledger.authority.is_unlimited else ():
        if ledger.trust.pinned_replica(remote.address) == replica:
            return f"the ledger at {remote.address} (remote {remote.name})"
    return f"the ledger …{replica[-8:]}"
