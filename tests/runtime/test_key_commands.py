"""Keys that commands print."""

from __future__ import annotations

import asyncio

import pytest

from weft.kernel.errors import CredentialMissing
from weft.runtime.sandbox.processes import Limits, command_runner

CANARY = "sk-canary-command"
PRINT = "printf %s-%s sk canary-command"
"""Prints the key without being called by it."""
VARIABLES = {"PATH": "/usr/bin:/bin", "HOME": "/nowhere", "ANTHROPIC_API_KEY": CANARY}


def run(*words: str, seconds: float = 20) -> str:
    return asyncio.run(command_runner(VARIABLES.get, Limits(seconds=seconds))(words))


def test_a_command_answers_what_it_prints() -> None:
    assert run("echo", "a key") == "a key\n"


def test_a_command_sees_only_what_it_needs_of_the_environment() -> None:
    assert {line.partition("=")[0] for line in run("env").splitlines()} == {"PATH", "HOME"}


@pytest.mark.parametrize("words", [("sh", "-c", f"{PRINT}; {PRINT} >&2; exit 1"), ("/no/such/program",)])
def test_a_failing_command_is_told_without_what_it_printed(words: tuple[str, ...]) -> None:
    with pytest.raises(CredentialMissing) as caught:
        run(*words)
    assert CANARY not in str(caught.value) + caught.value.hint


def test_a_command_that_waits_for_ever_is_ended() -> None:
    with pytest.raises(CredentialMissing, match="timed_out"):
        run("sleep", "1000", seconds=0.2)
