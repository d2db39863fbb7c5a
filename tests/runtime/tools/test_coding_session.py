"""A coding session on a real repository: read, grep, edit, run the tests, fail, mend, pass; through the broker, the
sandbox, the default policy and a person's approvals. Killed at each recorded step, it ends the same."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import weft
from tests.runtime.broker.crash_driver import Died, Doom, DoomedCrossing, raise_died
from tests.runtime.broker.test_crashes import dead_owner
from tests.runtime.homes import link, program
from tests.runtime.inference.asking import model, person
from tests.runtime.scripted import Script, chat_saying, scripted
from tests.sandbox import UNPROTECTED, machine_sandbox
from tests.sizes import PROVING, points
from weft.ledger.api import Ledger, RunConfig, SessionStanding
from weft.ledger.model import ToolCall
from weft.programs import Programs
from weft.runtime.assembly.turn_configuration import LayerReader, TurnRequest
from weft.runtime.broker.broker import Broker
from weft.runtime.broker.turn_plans import TurnPlan
from weft.runtime.inference.inference import Inference
from weft.runtime.inference.model_requests import ModelSettings, RetryPolicy
from weft.runtime.invoke.toolbox import Toolbox, ToolboxSettings
from weft.runtime.sandbox.command_runner import CommandRunner
from weft.runtime.sandbox.sandbox_plan import PersonFolders
from weft.runtime.tools.mcp_servers import McpServers

CALC = "add() { echo $(($1 - $2)); }\n"
TEST = """#!/bin/sh
echo run >> runs.log
. ./calc.sh
[ "$(add 2 3)" = 5 ] || { echo "add 2 3 is $(add 2 3)"; exit 1; }
echo passed
"""
CALLS: Sequence[tuple[str, dict[str, Any]]] = (
    ("read", {"path": "calc.sh"}),
    ("grep", {"pattern": "add"}),
    ("edit", {"path": "calc.sh", "old_text": "$1 - $2", "new_text": "$1 * $2"}),
    ("shell", {"cmd": "./test.sh"}),
    ("edit", {"path": "calc.sh", "old_text": "$1 * $2", "new_text": "$1 + $2"}),
    ("shell", {"cmd": "./test.sh"}),
)
MOST_COMMITS = 60


def next_reply(body: Any) -> Script:
    """What comes after the results that a request brings, whoever asks."""
    place = sum(message["role"] == "tool" for message in body["messages"])
    if place == len(CALLS):
        return chat_saying({"content": "Done"})
    name, arguments = CALLS[place]
    function = {"name": name, "arguments": json.dumps(arguments)}
    uses = [{"id": f"call-{place}", "type": "function", "function": function}]
    return chat_saying({"content": None, "tool_calls": uses}, "tool_calls")


def repository(folder: Path) -> Path:
    workspace = folder / "repository"
    workspace.mkdir(parents=True)
    (workspace / "calc.sh").write_text(CALC)
    (workspace / "test.sh").write_text(TEST)
    (workspace / "test.sh").chmod(0o755)
    (workspace / ".gitignore").write_text("runs.log\n")
    git(workspace, "init", "-q")
    git(workspace, "add", ".")
    git(workspace, "-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "Begin")
    return workspace


def git(workspace: Path, *words: str) -> str:
    environment = {"PATH": os.environ["PATH"], "HOME": str(workspace), "GIT_CONFIG_NOSYSTEM": "1"}
    return subprocess.run(
        ["git", *words], cwd=workspace, env=environment, check=True, capture_output=True, text=True
    ).stdout


async def work(
    ledger: Ledger,
    url: str,
    workspace: Path,
    doom: Doom,
    settings: ModelSettings | None = None,
    servers: McpServers | None = None,
    tools: ToolboxSettings | None = None,
    *,
    key: str = "once",
    runner: CommandRunner | None = None,
) -> str:
    """Admit the message, unless it is admitted already, and serve its session until it is settled. A person grants
    whatever is asked, tests for the whole session."""
    crossing = DoomedCrossing(doom, ledger)
    programs = Programs(ledger)
    toolbox = Toolbox(
        ledger,
        crossing,
        programs,
        runner or CommandRunner(UNPROTECTED),
        servers=servers,
        settings=tools,
        on_asked=lambda request: grant(),
    )

    def grant() -> None:
        async def granted() -> None:
            for request in ledger.approvals.list(states=("open",)):
                scope = "session" if request.tool == "shell" else "once"
                ledger.approvals.grant(request.id, plan_digest=request.plan_digest, scope=scope)
            broker.wake()

        granting.append(asyncio.ensure_future(granted()))

    granting: list[asyncio.Task[None]] = []
    async with Inference(policy=RetryPolicy(attempts=1)) as inference:

        async def plan(standing: SessionStanding, messages: Sequence[Any]) -> TurnPlan:
            reader = LayerReader(programs, inference, lambda name: None, person(url))
            configuration = reader.configuration(TurnRequest(session=standing.id))
            planned = TurnPlan(
                model=settings or model(url),
                inference=inference,
                acting=configuration.context,
                setting=RunConfig(workspace=str(workspace)),
            )
            await toolbox.equip(planned, configuration, standing)
            return planned

        broker = Broker(ledger, crossing, plan)
        try:
            admission = await crossing.run(
                lambda: ledger.inbox.admit("Mend it", session="main", persona="coder", key=key)
            )
            grant()
            await broker.wait_for_answer(admission.message, admission.session_id)
            return admission.message
        finally:
            await toolbox.aclose()


def prepare(folder: Path) -> Path:
    workspace = repository(folder)
    with weft.open(folder / "ledger.db") as ledger:
        Programs(ledger).create("agent", "coder", {"toolset": "worker"})
    return workspace


def check(ledger: Ledger, message: str, workspace: Path) -> list[ToolCall]:
    """The same files, and the same calls with the same outcomes but for those that a crash interrupted. A command runs
    at most once for each call."""
    turn = ledger.inbox.get(message).turn
    assert turn is not None
    assert ledger.turn(turn).status == "completed"
    calls = list(ledger.tool_calls(turn))
    assert [(call.name, call.arguments) for call in calls] == list(CALLS)
    assert {call.outcome for call in calls} <= {"ok", "interrupted"}, [call.error for call in calls]
    assert all(call.outcome == "ok" for call in calls if call.name != "shell")
    runs = (workspace / "runs.log").read_text().splitlines() if (workspace / "runs.log").exists() else []
    finished = [call.result["rc"] for call in calls if call.name == "shell" and call.outcome == "ok"]
    assert len(finished) <= len(runs) <= 2
    assert finished in ([1, 0], [1], [0], [])
    assert (workspace / "calc.sh").read_text() == CALC.replace("-", "+")
    assert git(workspace, "status", "--porcelain") == " M calc.sh\n"
    assert list(ledger.verify()) == []
    return calls


async def kill_and_go_on(folder: Path, point: str, owner: str) -> tuple[bool, list[ToolCall]]:
    """Whether the point was met, and the calls of the turn in the end."""
    workspace, doom = prepare(folder), Doom(point, raise_died)
    async with scripted([]) as server:
        server.script_of = next_reply
        with weft.open(folder / "ledger.db") as ledger:
            ledger._owner = owner
            with suppress(Died):
                await work(ledger, server.url, workspace, doom)
            ledger._writer.give_all_up()  # a process that dies gives nothing back
        with weft.open(folder / "ledger.db") as ledger:
            message = await work(ledger, server.url, workspace, Doom())
            return doom.is_met, check(ledger, message, workspace)


def test_a_coding_session_reads_edits_fails_mends_and_passes(tmp_path: Path) -> None:
    machine_sandbox()
    is_met, calls = asyncio.run(kill_and_go_on(tmp_path / "whole", "", dead_owner()))
    assert not is_met
    assert [call.result["rc"] for call in calls if call.name == "shell"] == [1, 0]
    assert "add 2 3 is 6" in calls[3].result["stdout"]
    with weft.open(tmp_path / "whole" / "ledger.db", read_only=True) as ledger:
        turn = ledger.session("main").head
        assert turn is not None
        decisions = [(one.tool, one.decision, one.by) for one in ledger.approvals.decisions(turn)]
        asked = [tool for tool, decision, _ in decisions if decision == "ask"]
        assert asked == ["edit", "shell", "edit"], "the second run of the tests was granted with the first"
        assert ("shell", "allow", "session_grant") in decisions
        assert ledger.turn(turn).toolset_name == "worker"
        used = ["edit(calc.sh)", "grep(add)", "read(calc.sh)", "shell(./test.sh)"]
        assert ledger.turn(turn).permissions_used == used
        (grant,) = ledger.audit.suggest()
        assert (grant.persona_id, grant.calls, list(grant.allow)) == (ledger.turn(turn).persona_id, 6, used)
        assert not [one for one in ledger.audit.findings() if one.severity == "problem"]


POINTS = [f"{when}:{number}" for number in range(1, MOST_COMMITS) for when in ("after", "before")]
CERTAIN = 20
"""So many of them are met whatever comes."""


def test_killed_at_any_step_it_ends_the_same(tmp_path: Path) -> None:
    machine_sandbox()
    owner = dead_owner()
    for number in points(len(POINTS) if PROVING else CERTAIN, test=1):
        folder = tmp_path / POINTS[number].replace(":", "-")
        is_met, _ = asyncio.run(kill_and_go_on(folder, POINTS[number], owner))
        assert is_met or number >= CERTAIN


def test_an_agent_runs_tests_by_an_interpreter_of_a_version_manager(tmp_path: Path) -> None:
    """The environment of the project leads into the home folder, which the sandbox hides."""
    machine_sandbox()
    home, workspace = tmp_path / "home", prepare(tmp_path)
    python = program(home / ".pyenv/versions/3.9.99/bin/python", '#!/bin/sh\nexec /bin/sh "$@"\n')
    link(workspace / ".venv/bin/python", python)
    (workspace / "tests").write_text(TEST)
    (workspace / "test.sh").write_text("#!/bin/sh\nexec .venv/bin/python tests\n")
    (workspace / ".gitignore").write_text("runs.log\n.venv\ntests\n")
    git(workspace, "-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qam", "Use an environment")
    runner = CommandRunner(UNPROTECTED, person=PersonFolders(home=home))

    async def session() -> list[ToolCall]:
        async with scripted([]) as server:
            server.script_of = next_reply
            with weft.open(tmp_path / "ledger.db") as ledger:
                return check(ledger, await work(ledger, server.url, workspace, Doom(), runner=runner), workspace)

    calls = asyncio.run(session())
    assert [call.result["rc"] for call in calls if call.name == "shell"] == [1, 0]
