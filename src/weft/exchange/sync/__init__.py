"""Ledgers that exchange facts: what is missing travels, is verified on arrival, and nothing is lost."""

from weft.exchange.sync.addresses import Pipes
from weft.exchange.sync.commands import (
    ORIGIN,
    Synced,
    add_remote,
    clone,
    forget_peer,
    mark_as_copy,
    pull,
    push,
    refused_events,
    remote,
    remotes,
    remove_remote,
    repin_remote,
    serve,
    share_imports,
)
from weft.exchange.sync.conversation import Manners
from weft.exchange.sync.file_clone import CopiedFacts, FileClone
from weft.exchange.sync.peers import Remote

__all__ = [
    "ORIGIN",
    "CopiedFacts",
    "FileClone",
    "Manners",
    "Pipes",
    "Remote",
    "Synced",
    "add_remote",
    "clone",
    "forget_peer",
    "mark_as_copy",
    "pull",
    "push",
    "refused_events",
    "remote",
    "remotes",
    "remove_remote",
    "repin_remote",
    "serve",
    "share_imports",
]
