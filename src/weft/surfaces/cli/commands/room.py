"""`weft room`: conversations of people and agents."""

from __future__ import annotations

from weft.surfaces.cli.command import group
from weft.surfaces.cli.rooms.changes import (
    add,
    archive,
    create,
    decline,
    fork,
    invite,
    leave,
    remove,
    restore,
    title,
)
from weft.surfaces.cli.rooms.posting import post
from weft.surfaces.cli.rooms.reading import invitations, list_, profile, read, show
from weft.surfaces.cli.rooms.talking import chat, follow

command = group(
    "room",
    "Talk in rooms: people and agents together.",
    create,
    list_,
    show,
    post,
    read,
    chat,
    follow,
    add,
    invite,
    remove,
    invitations,
    decline,
    profile,
    title,
    fork,
    leave,
    archive,
    restore,
)
