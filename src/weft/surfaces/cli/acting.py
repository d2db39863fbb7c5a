"""In whose name the command line acts: the person at the terminal, with their credentials."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from weft.runtime.context import ExecutionContext


def person_acting() -> ExecutionContext:
    """The context that a command acts in. Of the environment, single variables are looked up by name when needed."""
    from weft.kernel.authority import Principal, PrincipalKind
    from weft.runtime.context import context_from_env
    from weft.runtime.sandbox.key_commands import command_runner
    from weft.surfaces.cli.credential_files import load_credentials

    name = os.environ.get("USER") or os.environ.get("LOGNAME") or "local"
    variable = os.environ.get
    return context_from_env(
        Principal(PrincipalKind.HUMAN, name),
        variable,
        credentials=load_credentials(),
        run=command_runner(variable),
    )
