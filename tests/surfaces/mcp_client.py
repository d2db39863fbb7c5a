"""The MCP client library, and the real command at the other end of its pipes."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

from mcp import Client, StdioServerParameters
from mcp.client.stdio import stdio_client

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
    parameters = StdioServerParameters(
        command=sys.executable,
        args=["-m", "weft.surfaces.cli", *before, "mcp", "serve", *after],
        env={**os.environ, **environment},
        cwd=folder,
    )
    async with Client(stdio_client(parameters), **options) as client:
        yield client


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
