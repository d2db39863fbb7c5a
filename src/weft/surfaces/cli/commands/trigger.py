"""`weft trigger`: messages that are sent without a person."""

from __future__ import annotations

from weft.surfaces.cli.command import group
from weft.surfaces.cli.triggers.changes import configure, create, delete, pause, resume
from weft.surfaces.cli.triggers.firing import deliver, run
from weft.surfaces.cli.triggers.reading import history, list_, show

command = group(
    "trigger",
    "Manage triggers: messages sent by time, webhook, event or file.",
    create,
    list_,
    show,
    configure,
    pause,
    resume,
    run,
    history,
    delete,
    deliver,
)
