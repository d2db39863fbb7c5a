"""The MCP client library, and the command at the other end of its pipes."""

from __future__ import annotations

import asyncio
import math
import os
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

import anyio
from anyio import to_thread
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp import Client
from mcp.shared.message import SessionMessage
from mcp_types import jsonrpc_message_adapter

from tests.surfaces.forking import Forked, shared_forker
from tests.surfaces.shell import ending
from weft.surfaces.mcp.answers import ANSWER_BYTES

T = TypeVar("T")
NOTHING: Mapping[str, str] = MappingProxyType({})


@asynccontextmanager
async def connected(
    folder: Path, *arguments: str, environment: Mapping[str, str] = NOTHING, **options: Any
) -> AsyncIterator[Client]:
    """`arguments` stand before `mcp serve`, and behind it what follows a `--`."""
    before, after = list(arguments), list[str]()
    if "--" in before:
        at = before.index("--")
        before, after = before[:at], before[at + 1 :]
    async with Client(_served(folder, [*before, "mcp", "serve", *after], environment), **options) as client:
        yield client


@asynccontextmanager
async def _served(folder: Path, arguments: Sequence[str], environment: Mapping[str, str]) -> AsyncIterator[Any]:
    """The pipes of a server. It ends when its input does."""
    forker = shared_forker()
    forker.load("weft.surfaces.mcp.server")
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with ending(forker.start(arguments, folder, {**os.environ, **environment}, **pipes)) as program:
        answered, answers = anyio.create_memory_object_stream[SessionMessage](math.inf)
        asked, questions = anyio.create_memory_object_stream[SessionMessage](0)
        async with anyio.create_task_group() as both:
            both.start_soon(_read_answers, program, answered)
            both.start_soon(_write_questions, program, questions)
            try:
                yield answers, asked
            except BaseException:
                program.kill()
                raise
            finally:
                asked.close()


async def _read_answers(program: Forked, answered: MemoryObjectSendStream[SessionMessage]) -> None:
    assert program.stdout is not None
    async with answered:
        while line := await to_thread.run_sync(program.stdout.readline):
            with suppress(anyio.BrokenResourceError):  # the talk is over
                answered.send_nowait(SessionMessage(jsonrpc_message_adapter.validate_json(line, by_name=False)))


async def _write_questions(program: Forked, questions: MemoryObjectReceiveStream[SessionMessage]) -> None:
    assert program.stdin is not None
    try:
        async for question in questions:
            line = question.message.model_dump_json(by_alias=True, exclude_unset=True)
            program.stdin.write(line.encode() + b"\n")
            program.stdin.flush()
    except BrokenPipeError:
        pass  # it has ended, which closes its answers
    finally:
        questions.close()
        with suppress(BrokenPipeError):
            program.stdin.close()


def talking(
    talk: Callable[[Client], Awaitable[T]],
    folder: Path,
    *arguments: str,
    environment: Mapping[str, str] = NOTHING,
    **options: Any,
) -> T:
    """What comes of a talk with a server of this folder."""

    async def main() -> T:
        async with asyncio.timeout(240):
            async with connected(folder, *arguments, environment=environment, **options) as client:
                return await talk(client)

    return asyncio.run(main())


class Told:
    """An answer of a tool, within its bytes."""

    def __init__(self, result: Any) -> None:
        (block,) = result.content
        self.is_error, self.text, self.content = bool(result.is_error), str(block.text), result.structured_content
        assert len(self.text.encode()) <= ANSWER_BYTES + 400
        assert self.is_error or len(result.model_dump_json(by_alias=True).encode()) <= 2 * ANSWER_BYTES + 2000

    @property
    def items(self) -> list[dict[str, Any]]:
        items: list[dict[str, Any]] = self.content["items"]
        return items

    @property
    def next(self) -> str | None:
        found: str | None = self.content.get("next")
        return found


async def ask(client: Client, tool: str, **arguments: Any) -> Told:
    return Told(await client.call_tool(tool, arguments))


async def ask_all(client: Client, tool: str, **arguments: Any) -> list[Told]:
    """Every answer, to the last page."""
    answers = [await ask(client, tool, **arguments)]
    while (cursor := answers[-1].next) is not None:
        answers.append(await ask(client, tool, **arguments, cursor=cursor))
    return answers
