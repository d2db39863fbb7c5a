"""A function that a Python program gives with its messages runs outside of the sandbox. Somebody else names it in a
message of theirs: it does not run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import weft
from tests.attacks.test_unattended_writes import crew, prepared
from tests.runtime.workers.crew import Crew, call, say
from tests.sandbox import UNPROTECTED
from weft.runtime.invoke.toolbox import Toolbox
from weft.runtime.sandbox.command_runner import CommandRunner
from weft.runtime.tool.tool_contract import GivenFunctions, declared_tool


@pytest.mark.parametrize("reads", [True, False])
@pytest.mark.parametrize("who", ["ann", "local"])
def test_nobody_calls_a_function_of_another_persons_program(tmp_path: Path, reads: bool, who: str) -> None:
    called: list[str] = []

    @weft.tool(reads=reads)
    def customer(name: str) -> str:
        """Look a customer up."""
        called.append(name)
        return "their address"

    async def run(function: Any, arguments: dict[str, Any]) -> Any:
        return function(**arguments)

    async def body(team: Crew) -> None:
        prepared(team, tmp_path / "work", unattended_writes=True)
        functions = GivenFunctions()
        given = functions.add(declared_tool(customer), run)
        team.toolbox = Toolbox(
            team.ledger.sync, team.ledger.crossing, team.programs, CommandRunner(UNPROTECTED), functions=functions
        )
        team.answers(lambda asked: say("done") if asked.results else call(("customer", {"name": "eve"})))
        sender = team.ledger.sync if who == "local" else team.ledger.sync.acting_as(who)
        reference = {"name": given.reference.name, "digest": given.reference.digest}
        admission = sender.inbox.admit("go", session="work", overrides={"functions": [reference]})
        (message,) = await team.settled(admission.message)
        assert called == (["eve"] if who == "local" else [])
        assert who == "local" or "functions" in str(message.error)

    crew(tmp_path / "l.weft", body)
