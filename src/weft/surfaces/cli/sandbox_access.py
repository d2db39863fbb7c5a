"""What runs commands for this person: in the sandbox, without the ledger and what is the person's own of Weft."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from weft.kernel.errors import LedgerMissing, NotTrusted
from weft.kernel.sites import Site
from weft.surfaces.cli.resource_access import folder_beside, load_resource_settings
from weft.surfaces.cli.user_files import configuration_folder, find_ledger, state_folder, user_cache, user_ledger

if TYPE_CHECKING:
    from weft.ledger.api import Ledger
    from weft.runtime.sandbox.command_runner import CommandRunner
    from weft.runtime.sandbox.protected_places import ProtectedPlaces

SANDBOX_CACHES = "sandbox"
"""The folder of the user's caches in which package caches of sandboxed commands lie."""


def protected_places(ledger: str | None) -> ProtectedPlaces:
    """What no command in the sandbox sees: the ledger with what lies beside it, the person's own ledgers, keys,
    decisions, configuration, caches. What is kept of a ledger on a server lies beside the person's own ones."""
    from weft.runtime.sandbox.protected_places import ProtectedPlaces

    own = (configuration_folder(), state_folder(), user_ledger().parent, user_cache())
    if ledger is None or Site.of(ledger) is not Site.FILE:
        return ProtectedPlaces(ledgers=(), folders=own)
    return ProtectedPlaces(ledgers=(Path(ledger).absolute(),), folders=(*own, folder_beside(ledger)))


def command_runner(ledger: Ledger | str | None, readable: Sequence[Path] = ()) -> CommandRunner:
    """The one that everything is started by in one process. `ledger`: the one that is open, or where it lies. It shows
    `readable` beside what the person's configuration names."""
    from weft.runtime.sandbox.bubblewrap import STRICT_VARIABLE, is_strict
    from weft.runtime.sandbox.command_runner import CommandRunner
    from weft.runtime.sandbox.toolchain_places import manager_variables
    from weft.runtime.sandbox.workspace_view import PersonFolders

    place = ledger if ledger is None or isinstance(ledger, str) else ledger.path
    return CommandRunner(
        protected_places(place),
        strict=is_strict(os.environ.get(STRICT_VARIABLE)),
        readable=[*map(Path, load_resource_settings().sandbox.readable), *readable],
        person=PersonFolders(home=Path.home(), caches=sandbox_caches(), variables=manager_variables(os.environ.get)),
    )


def sandbox_caches() -> Path:
    """Where it lies what package managers fetched inside sandboxes."""
    return user_cache() / SANDBOX_CACHES


def nearby_ledger(option: str | None) -> str | None:
    """Where the ledger lies that is meant, for a command that does not open it; None where there is none to be used."""
    try:
        return find_ledger(option)
    except (LedgerMissing, NotTrusted):
        return None
