"""What runs commands for this person: in the sandbox, without the ledger and what is the person's own of Weft.

`sandbox.toml` of the configuration folder names more files of secrets than the usual ones. Which of them commands may
see is noted where the trusted folders are.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from msgspec import Struct

from weft.kernel.errors import InvalidInput, LedgerMissing, NotTrusted, quoted
from weft.kernel.typed_names import Site
from weft.surfaces.cli.interrupted_commands import clean_up_commands, command_notes
from weft.surfaces.cli.resource_access import folder_beside
from weft.surfaces.cli.trust import trust_store
from weft.surfaces.cli.user_files import configuration_folder, find_ledger, state_folder, user_cache, user_ledger

if TYPE_CHECKING:
    from weft.ledger.api import Ledger
    from weft.runtime.sandbox.command_runner import CommandRunner
    from weft.runtime.sandbox.git_settings import GitIdentity
    from weft.runtime.sandbox.hidden_places import ProtectedPlaces

SETTINGS_FILE = "sandbox.toml"
_MOST_INCLUDES = 10
SANDBOX_CACHES = "sandbox"
"""The folder of the user's caches in which package caches of sandboxed commands lie."""
SANDBOX_PLACES = "sandbox"
"""The folder of the user's state in which it is noted what was covered in workspaces."""


class SandboxSettings(Struct, frozen=True, forbid_unknown_fields=True):
    """The file `sandbox.toml`."""

    secret_files: tuple[str, ...] = ()
    """Names of files that are hidden from commands beside the usual ones; `*` and `?` stand for any characters."""
    readable: tuple[str, ...] = ()
    """Files and folders that commands can read beside the workspace, such as where a language is installed."""


def load_sandbox_settings() -> SandboxSettings:
    path = configuration_folder() / SETTINGS_FILE
    try:
        text = path.read_text()
    except FileNotFoundError:
        return SandboxSettings()
    except ValueError as error:
        raise InvalidInput(f"{path}: {error}", "write it in UTF-8") from None
    import tomllib

    try:
        settings = msgspec.convert(tomllib.loads(text), SandboxSettings)
    except (tomllib.TOMLDecodeError, msgspec.ValidationError) as error:
        raise InvalidInput(f"{path}: {error}", "docs/sandbox.md shows how it is written") from None
    for place in settings.readable:
        if not os.path.isabs(place) or not os.path.exists(place):
            raise InvalidInput(
                f"{path}: {quoted(place, 300)}, which the sandbox is to show, is not there",
                "give whole paths of what is",
            )
    return settings


def protected_places(ledger: str | None) -> ProtectedPlaces:
    """What no command in the sandbox sees: the ledger with what lies beside it, others that the person trusts, keys,
    decisions, configuration, caches, and files of secrets. What is kept of a ledger on a server lies beside the
    person's own ones."""
    from weft.runtime.sandbox.hidden_places import ProtectedPlaces, SecretFiles

    own = (configuration_folder(), state_folder(), user_ledger().parent, user_cache())
    secrets = SecretFiles(more=load_sandbox_settings().secret_files, shown=trust_store().shown_files)
    if ledger is None or Site.of(ledger) is not Site.FILE:
        return ProtectedPlaces(ledgers=(), folders=own, others=_trusted_files, secrets=secrets)
    folders = (*own, folder_beside(ledger))
    named = (Path(ledger).absolute(),)
    return ProtectedPlaces(ledgers=named, folders=folders, others=_trusted_files, secrets=secrets)


def _trusted_files() -> tuple[str, ...]:
    """Where ledgers lie that may act for this person: what a command wrote there would act as well."""
    identities = [known.identity for known in trust_store().ledgers()]
    return tuple(identity.place for identity in identities if identity.inode is not None)


def is_plainly_seen(folder: str, path: str) -> bool:
    """Whether commands that work in a folder see a file of it though nobody showed it to them. One that is hidden where
    something stands in it is not, whatever stands in it now. `folder` has no links on its way."""
    from weft.runtime.sandbox.hidden_places import SecretFiles, search_workspace
    from weft.runtime.sandbox.profiles import is_beneath

    secrets = SecretFiles(more=load_sandbox_settings().secret_files)
    real = os.path.realpath(os.path.join(folder, path))
    if not (is_beneath(real, folder) and os.path.isfile(real)) or secrets.is_named(path) or secrets.is_named(real):
        return False
    return all(os.path.join(folder, entry.path) != real for entry in search_workspace(Path(folder), secrets).entries)


def command_runner(ledger: Ledger | str | None, readable: Sequence[Path] = ()) -> CommandRunner:
    """The one that everything is started by in one process. `ledger`: the one that is open, or where it lies. It shows
    `readable` beside what the person's configuration names."""
    from weft.runtime.sandbox.bubblewrap import STRICT_VARIABLE, is_strict
    from weft.runtime.sandbox.command_runner import CommandRunner
    from weft.runtime.sandbox.git_settings import SYSTEM_SETTINGS, person_settings
    from weft.runtime.sandbox.sandbox_plan import PersonFolders
    from weft.runtime.sandbox.toolchain_places import manager_variables

    place = ledger if ledger is None or isinstance(ledger, str) else ledger.path
    clean_up_commands()
    return CommandRunner(
        protected_places(place),
        strict=is_strict(os.environ.get(STRICT_VARIABLE)),
        readable=[*map(Path, load_sandbox_settings().readable), *readable],
        person=PersonFolders(
            home=Path.home(),
            caches=sandbox_caches(),
            covered_places=state_folder() / SANDBOX_PLACES,
            variables=manager_variables(os.environ.get),
            identity=git_identity(),
            git_settings=(*SYSTEM_SETTINGS, *person_settings(os.environ.get, Path.home())),
            command_notes=command_notes(),
        ),
    )


def sandbox_caches() -> Path:
    """Where it lies what package managers fetched inside sandboxes."""
    return user_cache() / SANDBOX_CACHES


def git_identity() -> GitIdentity:
    """Who this person is in commits, by their global configuration of git: what `git config --global --includes` says
    of `user.name` and `user.email`. Files that are included only under a condition are not read."""
    from weft.runtime.sandbox.git_settings import GitIdentity, person_settings

    files = person_settings(os.environ.get, Path.home())
    values = dict(pair for file in files for pair in _user_settings(file, _MOST_INCLUDES))
    return GitIdentity(values.get("user.name", ""), values.get("user.email", ""))


def _user_settings(file: Path, levels: int) -> Iterator[tuple[str, str]]:
    from weft.runtime.sandbox.git_settings import CONFIG_BYTES, read_settings

    try:
        with file.open("rb") as opened:
            config = opened.read(CONFIG_BYTES)
    except OSError:  # as git does with a file that is not there or cannot be read
        return
    for setting in read_settings(config):
        if setting.key == "include.path" and levels:
            yield from _user_settings(file.parent / Path(setting.value).expanduser(), levels - 1)
        elif setting.section == "user":
            yield setting.key, setting.value


def nearby_ledger(option: str | None) -> str | None:
    """Where the ledger lies that is meant, for a command that does not open it; None where there is none to be used."""
    try:
        return find_ledger(option)
    except (LedgerMissing, NotTrusted):
        return None
