"""An agent has workers: spawned by its tool calls, answered for, cut short with it, with no more rights than it has."""

from __future__ import annotations

import asyncio
from pathlib import Path

from tests.runtime.scripted import Script
from tests.runtime.workers.crew import Asked, Crew, call, crew_at, say

COMPARE = [("spawn", {"task": f"task: colour {n}", "name": f"w{n}"}) for n in range(3)]


def leading(asked: Asked) -> Script:
    """The manager spawns three workers, waits for all of them and tells what they said."""
    if asked.first.startswith("task:"):
        return say(f"done: {asked.first}")
    if not asked.results:
        return call(*COMPARE)
    if len(asked.results) == 3:
        return call(("await_workers", {}))
    return say(" | ".join(f"{one['worker']} {one['answer']}" for one in asked.results[-1]["answers"]))


def test_a_manager_gets_what_its_workers_answer(address: str | Path) -> None:
    async def body() -> None:
        async with crew_at(address) as crew:
            crew.boss()
            crew.answers(leading)
            message = crew.send("compare colours")
            await crew.settled(message)
            names = [f"worker:boss:main:w{n}" for n in range(3)]
            answers = [f"{name} done: task: colour {n}" for n, name in enumerate(names)]
            assert crew.answer_to(message) == " | ".join(answers)
            check_links(crew, message, names)

    asyncio.run(asyncio.wait_for(body(), 60))


def check_links(crew: Crew, message: str, names: list[str]) -> None:
    """Both sides name each other, in plain SQL."""
    turn = crew.ledger.sync.inbox.get(message).turn
    rows = crew.sql(
        "SELECT s.label, s.is_subagent, s.parent_session_label, s.parent_turn_id, c.spawned_session_label, c.tool_name"
        " FROM sessions s JOIN tool_calls c ON c.id = s.spawn_tool_call_id ORDER BY s.label"
    )
    assert rows == [(name, 1, "boss:main", turn, name, "spawn") for name in names]
