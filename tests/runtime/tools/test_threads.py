"""Steps of tools run in threads: quick ones share one, a slow one holds up no other, and none holds up the loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec import Struct

from tests.sandbox import UNPROTECTED, machine_sandbox
from weft.runtime.sandbox.command_runner import CommandRunner
from weft.runtime.tool import tool_contract
from weft.runtime.tool.tool_contract import CallPlan, StructTool, ToolCallContext, ToolFailure, ToolOutput, in_thread
from weft.runtime.tools import shell
from weft.runtime.tools.shell import ShellTool

CONTEXT = ToolCallContext(turn="turn", call="call")
NEVER_SECONDS = 3600.0
PATIENCE_SECONDS = 30


class Nothing(Struct):
    pass


class ThreadTool(StructTool[Nothing]):
    """Says in which thread it was planned."""

    def __init__(self) -> None:
        super().__init__("thread", "", Nothing)

    def plan_of(self, arguments: Nothing) -> CallPlan:
        return CallPlan(tool="thread", exact={"thread": threading.get_ident()})

    async def perform(self, plan: CallPlan, context: ToolCallContext) -> ToolOutput:
        return ToolOutput(result=plan.exact["thread"])


def test_a_plan_is_made_outside_of_the_event_loop() -> None:
    assert asyncio.run(ThreadTool().invoke({}, CONTEXT)) != threading.get_ident()


def test_a_command_is_looked_at_outside_of_the_event_loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    places: list[int] = []
    found = shell.named_files

    def noted(*arguments: Any) -> shell.NamedFiles:
        places.append(threading.get_ident())
        return found(*arguments)

    monkeypatch.setattr(shell, "named_files", noted)
    tool = ShellTool(tmp_path, runner=CommandRunner(UNPROTECTED, sandbox=machine_sandbox()))
    assert asyncio.run(tool.invoke({"cmd": "true"}, CONTEXT))["rc"] == 0
    assert len(places) == 2, "planned, and compared before it ran"
    assert threading.get_ident() not in places


def test_quick_steps_of_one_moment_share_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tool_contract, "JOIN_SECONDS", NEVER_SECONDS)

    async def body() -> list[tuple[int, int]]:
        return await asyncio.gather(*(in_thread(_numbered(number)) for number in range(10)))

    outcomes = asyncio.run(body())
    assert [number for number, _ in outcomes] == list(range(10))
    assert len({thread for _, thread in outcomes}) == 1


def _numbered(number: int) -> Callable[[], tuple[int, int]]:
    return lambda: (number, threading.get_ident())


def test_a_slow_step_holds_up_no_other() -> None:
    is_over = threading.Event()

    async def body() -> bool:
        slow = asyncio.ensure_future(in_thread(lambda: is_over.wait(PATIENCE_SECONDS)))
        assert [await in_thread(lambda: 1) for _ in range(3)] == [1, 1, 1]
        assert await asyncio.gather(*(in_thread(lambda: 2) for _ in range(3))) == [2, 2, 2]
        assert not slow.done()
        is_over.set()
        return await slow

    assert asyncio.run(body()), "it was waited for until the others were done"


def test_what_is_done_before_a_slow_step_is_told_at_once() -> None:
    is_over = threading.Event()

    async def body() -> bool:
        quick, slow, last = (
            asyncio.ensure_future(in_thread(step))
            for step in (lambda: True, lambda: is_over.wait(PATIENCE_SECONDS), lambda: True)
        )
        assert list(await asyncio.gather(quick, last)) == [True, True]
        assert not slow.done()
        is_over.set()
        return await slow

    assert asyncio.run(body())


def test_what_a_step_raises_is_raised_where_it_is_awaited() -> None:
    async def body() -> list[Any]:
        steps = [in_thread(lambda: 1), in_thread(lambda: 1 // 0), in_thread(lambda: 2)]
        return await asyncio.gather(*steps, return_exceptions=True)

    first, error, last = asyncio.run(body())
    assert (first, last) == (1, 2)
    assert isinstance(error, ZeroDivisionError)


def test_a_step_whose_task_was_cancelled_in_time_is_not_made() -> None:
    calls: list[str] = []

    async def body() -> None:
        cancelled = asyncio.ensure_future(in_thread(lambda: calls.append("cancelled")))
        kept = asyncio.ensure_future(in_thread(lambda: calls.append("kept")))
        await asyncio.sleep(0)
        cancelled.cancel()
        await asyncio.gather(cancelled, kept, return_exceptions=True)

    asyncio.run(body())
    assert calls == ["kept"]


def test_a_command_of_many_words_and_folders_is_refused_before_files_are_looked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(20):
        (tmp_path / f"folder-{number}").mkdir()
    folders = [f"folder-{number}" for number in range(20)]
    words = [f"word-{number}" for number in range(shell.MOST_PATHS // 15)]
    assert shell.named_files(str(tmp_path), str(tmp_path), [" ".join(words)]).digests == {}
    monkeypatch.setattr(shell, "_described", None)
    with pytest.raises(ToolFailure) as raised:
        shell.named_files(str(tmp_path), str(tmp_path), [" ".join([*folders, *words])])
    assert raised.value.code == "too_large"
