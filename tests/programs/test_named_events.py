"""Every event that the program types name is written, as the kind that Weft calls so."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

import weft
import weft.aio
from tests.programs.stories import TASK, stocked
from tests.runtime.invoking import VARIABLES, stock
from tests.runtime.scripted import chat, scripted
from weft.kernel.events import Event, kind_of
from weft.programs import Programs

EVENTS = {
    "PROVIDER_CREATED": "provider_created",
    "PROVIDER_CONFIGURED": "provider_configured",
    "MODEL_CREATED": "model_created",
    "MODEL_CONFIGURED": "model_configured",
    "MODEL_INFERENCE_REQUESTED": "model_request",
    "MODEL_INFERENCE_COMPLETED": "model_response",
    "SESSION_CREATED": "session_created",
    "SESSION_MESSAGE": "history_append",
    "SESSION_MODEL_SWITCHED": "session_model_switched",
    "SESSION_COMPLETED": "session_completed",
    "AGENT_CREATED": "agent_created",
    "AGENT_TASK_ASSIGNED": "agent_task_assigned",
    "AGENT_THINKING": "agent_thinking",
    "AGENT_EXECUTING": "agent_executing",
    "AGENT_COMPLETED": "agent_completed",
    "AGENT_CHECKPOINT": "agent_checkpoint",
    "AGENT_RESET": "agent_reset",
    "TASK_CREATED": "task_created",
    "TASK_ASSIGNED": "task_assigned",
    "TASK_STARTED": "task_started",
    "TASK_COMPLETED": "task_completed",
    "TASK_FAILED": "task_failed",
    "INFORMATION_CREATED": "information_created",
    "INFORMATION_VALIDATED": "information_validated",
    "INFORMATION_UPDATED": "information_updated",
    "HUMAN_NOTIFIED": "human_notified",
    "HUMAN_APPROVED": "human_approved",
    "HUMAN_REJECTED": "human_rejected",
    "NodeTagged": "node_tagged",
    "NodeUntagged": "node_untagged",
}
QUANTUM = "task-research-quantum"


def work(programs: Programs) -> None:
    """One of each of what the program types tell of, but for asking a model."""
    programs.change("cf-gateway", {"gatewayId": "other"})
    programs.change("claude-balanced", {"temperature": 0})
    programs.create("model", "gemini", {"modelId": "m-2", "provider": "cf-gateway"})
    programs.create_session("talk", model="claude-balanced")
    programs.change("talk", {"defaultModel": "gemini"})
    programs.ledger.record_turn(session="talk", query="q")
    programs.step_session("talk", "complete")
    programs.assign("researcher", QUANTUM)
    programs.start_task(QUANTUM)
    for verb in ("think", "execute"):
        programs.step_agent("researcher", verb)
    programs.save_checkpoint("researcher", {"notes": []})
    for verb in ("complete", "reset"):
        programs.step_agent("researcher", verb)
    programs.fail_task(QUANTUM, reason="nobody has time")
    programs.create("task", "done", {"title": TASK["title"]})
    programs.start_task("done")
    programs.complete_task("done")
    programs.change("info-quantum-basics", {"content": {"qubit": "two levels"}})
    bln = programs.acting_as("bln")
    bln.approve(programs.notify("bln", "Ship it?", asks=True).id)
    bln.reject(programs.notify("bln", "Ship that, too?", asks=True).id)
    programs.add_tags("claude-balanced", "trusted")
    programs.remove_tags("claude-balanced", "trusted")


@pytest.fixture(scope="module")
def kinds(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    """The kinds of event of a ledger in which all that has happened."""
    path: Path = tmp_path_factory.mktemp("named") / "ledger.db"
    with weft.open(path) as ledger:
        work(stocked(ledger))

    async def ask() -> None:
        async with scripted(chat()) as server, weft.aio.open(path, variable=VARIABLES.get) as ledger:
            await ledger._pool.run(lambda: stock(ledger.programs._sync, server.url))
            await ledger.programs["fast"].invoke("hello")

    asyncio.run(ask())
    with weft.open(path, read_only=True) as ledger:
        return {kind_of(change.event) for change in ledger.changes() if isinstance(change.event, Event)}


@pytest.mark.parametrize("name", EVENTS)
def test_an_event_that_the_program_types_name_is_written(kinds: set[str], name: str) -> None:
    assert EVENTS[name] in kinds
