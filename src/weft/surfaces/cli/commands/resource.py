"""`weft resource`: what conversations work with, and what is kept of it."""

from __future__ import annotations

from weft.surfaces.cli.command import group
from weft.surfaces.cli.resources.changes import add, attach, detach, discard, migrate
from weft.surfaces.cli.resources.handles import exec_, kill, logs
from weft.surfaces.cli.resources.keeping import probe, reconcile, restore, snapshot
from weft.surfaces.cli.resources.reading import list_, owners, show

command = group(
    "resource",
    "Manage resources: folders, files, addresses, containers, and their snapshots.",
    add,
    list_,
    show,
    attach,
    detach,
    probe,
    snapshot,
    restore,
    owners,
    migrate,
    discard,
    exec_,
    logs,
    kill,
    reconcile,
)
