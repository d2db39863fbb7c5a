"""The person at the terminal, in whose name commands act, and their credentials: a file of places where keys are found.

It lies in weft's configuration folder and holds no key. Others may not read it: it says where keys lie.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from msgspec import Struct

from weft.kernel.errors import InvalidInput
from weft.runtime.egress.credentials import Credential, checked_credential
from weft.surfaces.cli.locked_files import replace_json, sole_writer
from weft.surfaces.cli.user_files import configuration_folder

if TYPE_CHECKING:
    from weft.runtime.egress.credentials import Keyring
    from weft.runtime.egress.execution_context import ExecutionContext

CREDENTIALS_FILE = "credentials.json"


class _CredentialFile(Struct, forbid_unknown_fields=True):
    credentials: tuple[Credential, ...] = ()


def credentials_file() -> Path:
    return configuration_folder() / CREDENTIALS_FILE


def load_credentials() -> tuple[Credential, ...]:
    path = credentials_file()
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return ()
    try:
        return tuple(checked_credential(item) for item in msgspec.json.decode(data, type=_CredentialFile).credentials)
    except msgspec.DecodeError as error:
        raise InvalidInput(f"{path}: {error}", "mend the file, or remove it and add the credentials again") from None


def change_credentials(change: Callable[[tuple[Credential, ...]], tuple[Credential, ...]]) -> tuple[Credential, ...]:
    """Read, change and put back, as one step."""
    path = credentials_file()
    with sole_writer(path):
        changed = change(load_credentials())
        replace_json(path, _CredentialFile(changed))
    return changed


def person_acting() -> ExecutionContext:
    """The context that a command acts in without a token. Of the environment, single variables are looked up by name
    when needed."""
    from weft.kernel.authority import Principal, PrincipalKind
    from weft.runtime.egress.execution_context import context_for

    name = os.environ.get("USER") or os.environ.get("LOGNAME") or "local"
    return context_for(Principal(PrincipalKind.HUMAN, name), keyring=user_keyring())


def user_keyring() -> Keyring:
    """The credentials of the person at the terminal, and how their keys are read."""
    from weft.runtime.egress.credentials import Keyring
    from weft.runtime.sandbox.processes import command_runner

    return Keyring(load_credentials(), os.environ.get, command_runner(os.environ.get))
