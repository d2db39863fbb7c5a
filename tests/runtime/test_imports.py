"""What is heavy is loaded only where it is used."""

import subprocess
import sys

import pytest

HEAVY = (
    "pydantic_ai",
    "pydantic",
    "httpx2",
    "openai",
    "anthropic",
    "google",
    "xllamacpp",
    "pydantic_monty",
    "mcp",
    "asyncio",
)


def loaded(*modules: str) -> set[str]:
    program = f"import sys\nfor name in {modules!r}: __import__(name)\nprint(*(set(sys.modules) & set({HEAVY!r})))"
    shown = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    return set(shown.stdout.split())


@pytest.mark.slow("starts three interpreters")
def test_the_command_line_loads_nothing_that_asks_models() -> None:
    assert loaded("weft", "weft.surfaces.cli.main", "weft.surfaces.cli.trust_commands") == set()
    assert loaded("weft.surfaces.cli.chat.chat", "weft.surfaces.cli.ledgers.ledger_copies") == set()
    names = (
        "weft.runtime.tools.mcp_servers",
        "weft.runtime.tools.mcp_servers",
        "weft.surfaces.cli.programs.mcp_servers",
    )
    assert loaded(*names, "weft.surfaces.cli.programs.mcp_servers") <= {"asyncio"}


def test_settings_and_contexts_need_no_extra() -> None:
    names = (
        "weft.runtime.egress.execution_context",
        "weft.runtime.inference.model_requests",
        "weft.runtime.inference.inference",
    )
    assert loaded(*names, "weft.runtime.inference.local_models", "weft.runtime.sandbox.command_runner") <= {"asyncio"}
