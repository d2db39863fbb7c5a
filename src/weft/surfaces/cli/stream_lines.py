"""A session that is followed, as a person reads it: answers grow where they stand."""

from __future__ import annotations

from typing import Any

import click
import orjson

from weft.ledger.api import (
    AnswerStarted,
    AttemptReset,
    MessageAdded,
    MessageQueued,
    MessageSettled,
    StreamItem,
    TextAdded,
    ToolFinished,
    ToolStarted,
    TurnEnded,
    TurnInterrupted,
    TurnParked,
    TurnStarted,
)
from weft.surfaces.cli.screen import Line, Screen, Span
from weft.surfaces.plain_text import cut

SHOWN_CHARACTERS = 200
"""So much of a queued message, of arguments and of results is shown."""


class StreamPrinter:
    """Writes items one after another."""

    def __init__(self, screen: Screen) -> None:
        self._screen = screen
        self._kind = ""
        """Of the text at whose end the cursor stands; empty at the beginning of a line."""

    def show(self, item: StreamItem) -> None:
        if isinstance(item, TextAdded):
            self._write(item)
            return
        line = item_line(item)
        if line is not None:
            self.end_line()
            self._screen.show(*line)

    def end_line(self) -> None:
        if self._kind:
            click.echo()
        self._kind = ""

    def _write(self, item: TextAdded) -> None:
        """What a terminal would obey is written as an escape; line ends are line ends."""
        if self._kind != item.kind:
            self.end_line()
        self._kind = item.kind
        style = "dim" if item.kind == "thinking" else ""
        first, *more = item.text.split("\n")
        click.echo(self._screen.render([Span(first, style)]), nl=False, color=self._screen.color)
        for line in more:
            click.echo("\n" + self._screen.render([Span(line, style)]), nl=False, color=self._screen.color)


def item_line(item: StreamItem) -> Line | None:
    """The line of an item; None for what a person need not see."""
    line: Line | None = None
    match item:
        case MessageQueued():
            line = [Span("queued", "dim"), f" {item.sender}: {_short(item.text)}"]
        case MessageSettled():
            line = [Span(item.state, "bad"), f" message {item.message}", f": {item.reason}" if item.reason else ""]
        case TurnStarted():
            line = [Span("turn", "heading"), " ", Span(item.turn, "id"), f" of {item.actor}"]
        case MessageAdded():
            line = [Span(item.role, "user"), f" {_short(item.text)}"]
        case AnswerStarted():
            line = [Span("assistant", "assistant"), Span(f" {item.model}", "dim")]
        case AttemptReset():
            what = "it is asked again" if item.model else "what follows is another answer"
            line = [Span(f"the answer above is void ({item.reason}); {what}", "warn")]
        case ToolStarted():
            line = [Span("tool", "tool"), f" {item.tool} {_value(item.arguments)}"]
        case ToolFinished():
            outcome = item.error if item.error is not None else _value(item.result)
            line = [Span("tool", "tool"), f" {item.tool} {item.status}: {_short(outcome)}"]
        case TurnParked():
            until = f" until {item.until}" if item.until else ""
            line = [Span("parked", "warn"), f" {len(item.calls)} calls{until}", f": {item.why}" if item.why else ""]
        case TurnInterrupted():
            line = [Span("interrupted", "warn"), f" {item.reason}"]
        case TurnEnded():
            style = "good" if item.exit == "success" else "bad"
            line = [Span(f"ended: {item.exit}", style), f": {item.error}" if item.error else ""]
    return line


def _value(value: Any) -> str:
    return _short(value if isinstance(value, str) else orjson.dumps(value).decode())


def _short(text: str) -> str:
    return cut(" ".join(text.split()), SHOWN_CHARACTERS)
