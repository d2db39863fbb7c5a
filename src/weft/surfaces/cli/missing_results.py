"""What becomes of a replayed call that has no recorded result: as the options say, or as the person at the terminal
answers. While they think about it the event loop goes on."""

from __future__ import annotations

import asyncio
import os
from enum import StrEnum
from typing import TYPE_CHECKING

import click

from weft.runtime.recorded_threads import NamedCall
from weft.runtime.thread_replay import RunTool, SkipTurn, StopReplay, UseResult
from weft.surfaces.cli.program_call import json_or_text
from weft.surfaces.cli.replay_report import call_text

if TYPE_CHECKING:
    from weft.ledger.model import ToolUsePart
    from weft.runtime.recorded_threads import RecordedExchange
    from weft.runtime.thread_replay import MissingAnswer

CHOICES = "give its [r]esult, go on with the [n]ext turn, or [s]top? "
RESULT = "the result, as JSON or text: "
READ_BYTES = 65_536


class MissingMode(StrEnum):
    STOP = "stop"
    SKIP = "skip"
    ASK = "ask"
    RUN = "run"


class MissingResults:
    """Settles calls in one way; `file` is where a person types."""

    def __init__(self, mode: MissingMode, file: int) -> None:
        self._mode, self._file, self._typed = mode, file, b""

    async def settle(self, exchange: RecordedExchange, use: ToolUsePart) -> MissingAnswer:
        """See `OnMissing`."""
        match self._mode:
            case MissingMode.STOP:
                return StopReplay()
            case MissingMode.SKIP:
                return SkipTurn()
            case MissingMode.RUN:
                return RunTool()
            case MissingMode.ASK:
                return await self._asked(exchange, use)

    async def _asked(self, exchange: RecordedExchange, use: ToolUsePart) -> MissingAnswer:
        """Who types no answer stops the replay."""
        wanted = call_text(NamedCall(name=use.name, arguments=use.input))
        click.echo(f"turn {exchange.turn}: no result is recorded of {wanted}", err=True)
        while True:
            match await self._line(CHOICES):
                case "r":
                    result = await self._line(RESULT)
                    return StopReplay() if result is None else UseResult(json_or_text(result))
                case "n":
                    return SkipTurn()
                case "s" | None:
                    return StopReplay()

    async def _line(self, question: str) -> str | None:
        """The next line that is typed; None where nothing more comes."""
        click.echo(question, nl=False, err=True)
        while b"\n" not in self._typed:
            await self._readable()
            data = os.read(self._file, READ_BYTES)
            if not data:
                return None
            self._typed += data
        line, _, self._typed = self._typed.partition(b"\n")
        return line.decode(errors="replace").strip()

    async def _readable(self) -> None:
        loop, ready = asyncio.get_running_loop(), asyncio.Event()
        loop.add_reader(self._file, ready.set)
        try:
            await ready.wait()
        finally:
            loop.remove_reader(self._file)
