"""The sandbox of this machine, found once, and programs that attack it from inside."""

from __future__ import annotations

import asyncio
import sys
from functools import cache
from pathlib import Path
from textwrap import dedent

import pytest

from weft.kernel.errors import Unsupported
from weft.runtime.sandbox.bubblewrap import Sandbox, find_sandbox, run_sandboxed
from weft.runtime.sandbox.hidden_places import ProtectedPlaces
from weft.runtime.sandbox.processes import DEFAULT_LIMITS, Limits, ProcessOutcome

UNPROTECTED = ProtectedPlaces(ledgers=(), folders=())
"""For commands of which it does not matter what they see beside their workspace."""


@cache
def machine_sandbox() -> Sandbox:
    try:
        return asyncio.run(find_sandbox())
    except Unsupported as error:
        pytest.skip(str(error))


def run_shell(script: str, workspace: Path, *words: str, limits: Limits = DEFAULT_LIMITS) -> ProcessOutcome:
    argv = ["/bin/sh", "-c", script, "sh", *words]
    return asyncio.run(run_sandboxed(machine_sandbox(), argv, UNPROTECTED, workspace=workspace, limits=limits))


def run_python(
    source: str, workspace: Path, *words: str, limits: Limits = DEFAULT_LIMITS, sandbox: Sandbox | None = None
) -> ProcessOutcome:
    """Real Python, which can do whatever a program that broke out of its interpreter could."""
    python = Path(sys.executable).resolve()
    return asyncio.run(
        run_sandboxed(
            sandbox or machine_sandbox(),
            [str(python), "-I", "-S", "-B", "-c", dedent(source), *words],
            UNPROTECTED,
            workspace=workspace,
            readable=[Path(sys.base_prefix)],
            limits=limits,
            limit_address_space=False,
        )
    )
