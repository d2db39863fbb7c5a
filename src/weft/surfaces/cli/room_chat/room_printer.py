"""A room that is followed, as a person or a program reads it: lines on a terminal or in a pipe, records as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from weft.chat.room_stream import RoomApprovalAsked, RoomFollowingEnded, RoomItem
from weft.surfaces.cli.room_chat.bottom_lines import BottomLines, Drawing
from weft.surfaces.cli.room_chat.room_view import RoomView
from weft.surfaces.cli.room_chat.terminal_mode import can_draw, write
from weft.surfaces.cli.rooms.text import INDENT
from weft.surfaces.cli.screen import Line, Span, terminal_size
from weft.surfaces.wire.forms import form
from weft.surfaces.wire.json_text import document

if TYPE_CHECKING:
    from weft.surfaces.cli.call import Call


class RoomPrinter:
    """Writes items one after another. On a terminal answers grow below what was said; in a pipe a line says who is
    answering, and an answer comes when it is posted."""

    def __init__(self, call: Call) -> None:
        self._call, self._view = call, RoomView()
        self._bottom = BottomLines(write) if can_draw() and not call.json else None
        self.position = 0
        """Of the last message that was told."""
        self.is_ended = False

    def show(self, item: RoomItem) -> None:
        self.position = item.position
        self.is_ended = isinstance(item, RoomFollowingEnded)
        if self._call.json:
            click.echo(document(form(item), indent=False), color=True)
            return
        before = self._view.thinking
        lines = self._view.take(item)
        if isinstance(item, RoomApprovalAsked):
            lines = [[INDENT, Span(f"{item.name} waits for a person: `weft approvals` shows what for", "warn")]]
        if self._bottom is None:
            self._print(lines)
            for name in self._view.thinking:
                if name not in before:
                    self._print([[INDENT, Span(f"{name} is answering", "dim")]])
            return
        columns, rows = terminal_size()
        drawn = self._view.drawn_lines(self._call.screen, columns, max(2, rows // 2))
        drawing = Drawing(drawn, max(0, len(drawn) - 1), 0)
        if lines:
            self._bottom.above([self._call.screen.render(line) for line in lines], drawing)
        else:
            self._bottom.draw(drawing)

    def _print(self, lines: Sequence[Line]) -> None:
        for line in lines:
            self._call.screen.show(*line)

    def close(self) -> None:
        if self._bottom is not None:
            self._bottom.erase()
