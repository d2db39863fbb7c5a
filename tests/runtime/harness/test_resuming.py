"""Work on a task that is killed anywhere ends as work that nothing broke off."""

from __future__ import annotations

import asyncio
import signal
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import weft
from tests.runtime.broker.crash_driver import Died, Doom, raise_died
from tests.runtime.broker.test_crashes import dead_owner
from tests.runtime.harness import work_driver
from tests.runtime.harness.work_driver import ANSWERS, PLAN, next_reply, prepare, serve_until_over
from tests.runtime.scripted import scripted
from tests.sizes import share, sized
from tests.surfaces.forking import shared_forker
from weft.ledger.api import Ledger
from weft.programs import Programs
from weft.runtime.broker import broker as broker_module


def outcome(ledger: Ledger, workspace: Path) -> dict[str, Any]:
    """Roles, texts, calls, results, verdicts and files in the end."""
    programs = Programs(ledger)
    session = next(one for one in ledger.sessions() if one.label.startswith("ada_shop"))
    assert session.head is not None
    thread = ledger.thread(session.head)
    turns = list(thread.ancestry)
    calls = [call for turn in turns for call in ledger.tool_calls(turn)]
    return {
        "said": [(message.role, message.text) for message in thread.messages],
        "calls": [(call.name, call.arguments, call.outcome, call.error, call.result) for call in calls],
        "verdicts": [(check.criterion, check.passed, check.observed) for check in programs.checks("shop")],
        "files": {path.name: path.read_text() for path in workspace.iterdir()},
        "task": (programs.get("shop").state, programs.get("shop").result),
        "agent": (programs.get("ada").state, programs.get("ada").current_task),
    }


async def killed_and_resumed(folder: Path, point: str, owner: str) -> tuple[bool, Ledger, Path]:
    """Whether the point was met, and the ledger afterwards."""
    workspace, doom = folder / "work", Doom(point, raise_died)
    workspace.mkdir(parents=True)
    async with scripted([]) as server:
        server.script_of = next_reply
        with weft.open(folder / "ledger.db") as ledger:
            prepare(ledger, server.url, workspace)
            ledger._owner = owner
            with suppress(Died):
                await serve_until_over(ledger, server.url, doom)
            ledger._writer.give_all_up()  # a process that dies gives nothing back
        ledger = weft.open(folder / "ledger.db")
        await serve_until_over(ledger, server.url, Doom())
        return doom.is_met, ledger, workspace


def ended(folder: Path, point: str, owner: str) -> tuple[bool, dict[str, Any]]:
    is_met, ledger, workspace = asyncio.run(asyncio.wait_for(killed_and_resumed(folder, point, owner), 300))
    with ledger:
        assert list(ledger.verify()) == []
        return is_met, outcome(ledger, workspace)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(broker_module, "NEWS_SECONDS", 0.02)


POINTS = [
    "checkpoint:1",
    "checkpoint:2",
    *(f"after:{number}" for number in range(1, 26)),
    *(f"before:{number}" for number in range(1, 120, 3)),
]
KILLS = sized(test=["checkpoint:1"], prove=["after:7", "checkpoint:1", "after:6", "checkpoint:2"])


@pytest.mark.slow("runs a task of three turns twice")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # a process that dies closes nothing
def test_killed_after_every_checkpoint_and_at_commits_it_ends_the_same(tmp_path: Path) -> None:
    owner = dead_owner()
    is_met, whole = ended(tmp_path / "whole", "", owner)
    assert not is_met
    assert [text for role, text in whole["said"] if role == "assistant" and text] == list(ANSWERS)
    assert [passed for criterion, passed, _ in whole["verdicts"] if criterion == 0] == [False, False, True]
    reflections = [text for role, text in whole["said"] if role == "user"][1:]
    assert ["read: 'missing.txt' is not there" in text for text in reflections] == [False, True]
    assert whole["files"] == {"notes.txt": "one\n", "done.txt": "milk\n"}
    assert (whole["task"], whole["agent"]) == (("completed", "third"), ("idle", None))
    for point in share(POINTS, test=1):
        is_met, resumed = ended(tmp_path / point.replace(":", "-"), point, owner)
        assert is_met, point
        assert resumed == whole, point


def test_a_checkpoint_holds_plan_progress_and_pending_calls(tmp_path: Path) -> None:
    async def body() -> None:
        workspace = tmp_path / "work"
        workspace.mkdir()
        async with scripted([]) as server:
            server.script_of = next_reply
            with weft.open(tmp_path / "ledger.db") as ledger:
                prepare(ledger, server.url, workspace)
                ledger._owner = dead_owner()
                with suppress(Died):
                    await serve_until_over(ledger, server.url, Doom("checkpoint:2", raise_died))
                ledger._writer.give_all_up()
                saved = Programs(ledger).load_checkpoint("ada")
        assert saved["plan"] == PLAN
        assert saved["next"].startswith("Not done yet:")
        progress = saved["progress"]
        assert (progress["turns"], progress["criteria"]) == (
            2, [{"criterion": 0, "passed": False}, {"criterion": 1, "passed": True}],
        )  # fmt: skip
        assert (progress["tokens"] > 0, saved["pendingCalls"]) == (True, [])

    asyncio.run(asyncio.wait_for(body(), 300))


def test_a_process_that_is_killed_leaves_work_that_another_goes_on_with(tmp_path: Path) -> None:
    """With real processes and real signals."""
    workspace = tmp_path / "work"
    workspace.mkdir()

    async def body() -> None:
        async with scripted([]) as server:
            server.script_of = next_reply
            with weft.open(tmp_path / "ledger.db") as ledger:
                prepare(ledger, server.url, workspace)
            for point in KILLS:
                arguments = (work_driver.__name__, str(tmp_path / "ledger.db"), server.url, point)
                process = shared_forker().run_main(*arguments)
                assert await asyncio.to_thread(process.wait) == -signal.SIGKILL
            with weft.open(tmp_path / "ledger.db") as ledger:
                await serve_until_over(ledger, server.url, Doom())

    asyncio.run(asyncio.wait_for(body(), 300))
    with weft.open(tmp_path / "ledger.db") as ledger:
        result = outcome(ledger, workspace)
    assert [text for role, text in result["said"] if role == "assistant" and text] == list(ANSWERS)
    assert [passed for criterion, passed, _ in result["verdicts"] if criterion == 0] == [False, False, True]
    assert result["task"] == ("completed", "third")
