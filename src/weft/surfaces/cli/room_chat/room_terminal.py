"""A room at a terminal: what was said scrolls up, answers that are being written and the line that is typed stay below.

Keys, items of the room and signals come one after another in one event loop, so no two of them write at once.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from weft.surfaces.cli.room_chat.bottom_lines import BottomLines, Drawing
from weft.surfaces.cli.room_chat.keys import KeyReader
from weft.surfaces.cli.room_chat.line_editor import Edit, LineEditor
from weft.surfaces.cli.room_chat.room_talk import RoomTalk
from weft.surfaces.cli.room_chat.terminal_mode import reading_keys, write
from weft.surfaces.cli.screen import Line, Span, terminal_size
from weft.surfaces.plain_text import cut, safe, width

if TYPE_CHECKING:
    from weft.aio.ledger import AsyncLedger
    from weft.surfaces.cli.broker_call import BrokerAccess
    from weft.surfaces.cli.call import Call

DRAW_SECONDS = 0.03
"""So far apart are drawings that answers cause."""
READ_BYTES = 65536
TITLE_COLUMNS = 30


class RoomTerminal:
    """One sitting in a room, from the first prompt to the last."""

    def __init__(self, call: Call, access: BrokerAccess, mirror: AsyncLedger) -> None:
        """`call` is the one that the broker tells its notes to."""
        self._call, self._access = call, access
        self._talk = RoomTalk(access, mirror, self._show, self._draw_soon)
        self._editor = LineEditor(self._talk.completions)
        self._bottom = BottomLines(write)
        self._keys = KeyReader()
        self._submitted_lines: asyncio.Queue[str] = asyncio.Queue()
        self._over = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None
        self._interrupting: asyncio.Task[None] | None = None
        self._asked_to_close = False

    async def run(self, room: str) -> None:
        loop, file = asyncio.get_running_loop(), sys.stdin.fileno()
        prompts = self._access.prompts
        prompts.show = self._show
        self._call.on_note = lambda line: self._show([line])
        with reading_keys(file) as read_keys, prompts.answered_here():
            loop.add_reader(file, self._read, file)
            loop.add_signal_handler(signal.SIGWINCH, self._redraw)
            loop.add_signal_handler(signal.SIGCONT, self._go_on, read_keys)
            try:
                await self._talk.enter(room)
                self._draw()
                await self._work()
            finally:
                for number in (signal.SIGWINCH, signal.SIGCONT):
                    loop.remove_signal_handler(number)
                loop.remove_reader(file)
                if self._timer is not None:
                    self._timer.cancel()
                self._bottom.erase()
                prompts.show, self._call.on_note = None, None

    async def _work(self) -> None:
        """Follow the room and do what is typed, until one of them ends."""
        tasks = [asyncio.ensure_future(work) for work in (self._talk.follow(), self._hear_all(), self._over.wait())]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            await self._talk.close()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _hear_all(self) -> None:
        while True:
            await self._talk.hear(await self._submitted_lines.get())
            if self._talk.is_over:
                self._over.set()

    # --- keys ----------------------------------------------------------------------------------------------------

    def _read(self, file: int) -> None:
        try:
            data = os.read(file, READ_BYTES)
        except OSError:  # the terminal is gone
            data = b""
        if not data:
            asyncio.get_running_loop().remove_reader(file)
            self._over.set()
            return
        for key in self._keys.feed(data):
            edit = self._editor.press(key)
            self._asked_to_close = self._asked_to_close and edit is Edit.END
            match edit:
                case Edit.SUBMIT:
                    self._submitted_lines.put_nowait(self._editor.take())
                case Edit.INTERRUPT:
                    self._interrupt()
                case Edit.END:
                    self._close()
                case Edit.REDRAW:
                    self._bottom.redraw()
        self._draw()

    def _interrupt(self) -> None:
        """Ctrl-C drops the line; on an empty one it cuts answers short."""
        if self._editor.text:
            self._editor.clear()
        elif not self._talk.is_answering:
            self._show([[Span("nothing is being answered to you; Ctrl-D closes this", "dim")]])
        elif self._interrupting is None or self._interrupting.done():
            self._interrupting = asyncio.ensure_future(self._interrupted())

    async def _interrupted(self) -> None:
        if await self._talk.interrupt():
            self._show([[Span("interrupted; what had come is kept", "warn")]])

    def _close(self) -> None:
        if self._talk.is_answering and not self._asked_to_close:
            self._asked_to_close = True
            self._show([[Span("you are being answered; Ctrl-D again cuts that short and closes this", "warn")]])
        else:
            self._over.set()

    # --- drawing -------------------------------------------------------------------------------------------------

    def _show(self, lines: Sequence[Line]) -> None:
        """What is drawn below is as new as the lines: an answer that was posted is drawn there no longer."""
        drawing = self._drawing() if self._bottom.is_drawn else None
        self._bottom.above([self._call.screen.render(line) for line in lines], drawing)

    def _draw_soon(self) -> None:
        if self._talk.is_over:
            self._over.set()
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(DRAW_SECONDS, self._draw)

    def _go_on(self, read_keys: Callable[[], None]) -> None:
        """After Ctrl-Z and `fg`."""
        read_keys()
        self._redraw()

    def _redraw(self) -> None:
        self._bottom.erase()
        self._draw()

    def _draw(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._bottom.draw(self._drawing())

    def _drawing(self) -> Drawing:
        columns, rows = terminal_size()
        screen = self._call.screen
        lines = self._talk.view.drawn_lines(screen, columns, max(2, rows // 2))
        if self._editor.completions:
            lines.append(self._completion_line(columns))
        prompt = f"{safe(cut(self._talk.title, TITLE_COLUMNS))}> "
        text, column = self._editor.shown(max(8, columns - width(prompt) - 1))
        lines.append(screen.render([Span(prompt, "label"), text]))
        return Drawing(lines, len(lines) - 1, width(prompt) + column)

    def _completion_line(self, columns: int) -> str:
        chosen, room = self._editor.chosen, columns - 1
        spans: list[Span | str] = []
        for word in self._editor.completions:
            shown = safe(word.strip())
            if width(shown) + 2 > room:
                break
            room -= width(shown) + 2
            spans += [Span(shown, "label" if word == chosen else "dim"), "  "]
        return self._call.screen.render(spans)


async def run_piped(call: Call, access: BrokerAccess, mirror: AsyncLedger, room: str) -> None:
    """Without a terminal: each line that comes in is said or done, and waited for, before the next one."""

    def show(lines: Sequence[Line]) -> None:
        for line in lines:
            call.screen.show(*line)

    talk = RoomTalk(access, mirror, show, lambda: None)
    await talk.enter(room)
    following = asyncio.ensure_future(talk.follow())
    try:
        while not talk.is_over and not following.done():
            line = await asyncio.to_thread(sys.stdin.readline)
            if not line:
                break
            await talk.hear(line.rstrip("\n"))
            await talk.settled()
        if following.done():
            following.result()
    finally:
        await talk.close()
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)
