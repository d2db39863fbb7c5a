"""A room on a screen: what its items change there, or a room that is followed, as lines or
records; the last lines of a terminal, drawn again and again; a terminal that hands over every
key.
"""

from __future__ import annotations

import os
import sys
import termios
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

import click
from msgspec import Struct

from weft.chat.room_stream import (
    RoomAnswerEnded,
    RoomAnswerText,
    RoomApprovalAsked,
    RoomFollowingEnded,
    RoomItem,
    RoomMessageAdded,
    RoomParticipantChanged,
    RoomStateChanged,
)
from weft.kernel.message_text import shown_name
from weft.ledger.api import Participant
from weft.surfaces.cli.chat.rooms import INDENT, message_lines, name_style, plain_text
from weft.surfaces.cli.screen import Line, Screen, Span, terminal_size
from weft.surfaces.plain_text import cut, safe, safe_lines, width, wrapped
from weft.surfaces.wire.forms import document, form

if TYPE_CHECKING:
    from weft.surfaces.cli.command_line import Call


# --- What is shown of a room that is followed: what was said, for good, and answers while they are being written.

DRAWN_CHARACTERS = 4000
"""At most so much of the end of an answer is looked at for drawing it."""
ENDS = {
    "left": "you left this room",
    "removed": "you take part in this room no longer",
    "gone": "this room can be read no longer",
}


class WrittenAnswer(Struct):
    """An answer that is being written."""

    name: str
    text: str


class RoomView:
    """Takes the items of a room's stream and says what they change on the screen."""

    def __init__(self) -> None:
        self.position = 0
        self.participants: dict[str, Participant] = {}
        """By node, those who take part."""
        self._names: dict[str, str] = {}
        self._answers: dict[str, WrittenAnswer] = {}
        """By turn, in the order in which they began."""

    def take(self, item: RoomItem) -> list[Line]:
        """The lines that an item adds for good."""
        self.position = item.position
        match item:
            case RoomMessageAdded(message=message):
                self._answers.pop(message.meta.get("turn") or "", None)
                return message_lines(message, self._names)
            case RoomAnswerText():
                answer = self._answers.setdefault(item.turn, WrittenAnswer(item.name, ""))
                answer.text = answer.text[: item.start] + item.text
            case RoomAnswerEnded():
                self._answers.pop(item.turn, None)
            case RoomParticipantChanged(participant=participant):
                self._change(participant)
            case RoomStateChanged():
                return [[Span(self._state(item), "dim")]]
            case RoomFollowingEnded():
                self._answers.clear()
                return [[Span(ENDS[item.reason], "warn")]]
        return []

    def _change(self, participant: Participant) -> None:
        self._names[participant.node] = participant.name
        if participant.is_removed:
            self.participants.pop(participant.node, None)
        else:
            self.participants[participant.node] = participant

    def _state(self, item: RoomStateChanged) -> str:
        return "the room is archived" if item.status == "archived" else f"the room is {item.title or 'without a title'}"

    def drawn_lines(self, screen: Screen, columns: int, rows: int) -> list[str]:
        """Answers that are being written and who thinks, in at most so many rows; each row is narrower than the
        screen."""
        thinking = self.thinking
        if thinking:
            rows -= 1
        share = max(1, rows // max(1, len(self._answers)))
        lines = [
            line for answer in self._answers.values() for line in self._answer_lines(screen, answer, columns, share)
        ]
        lines = lines[-max(1, rows) :]
        if thinking:
            lines.append(
                screen.render([Span(cut(safe(f"{', '.join(map(shown_name, thinking))} …"), columns - 1), "dim")])
            )
        return lines

    @property
    def thinking(self) -> list[str]:
        """Who has something to answer and has said nothing yet."""
        writing = {answer.name for answer in self._answers.values()}
        return [
            participant.name
            for participant in self.participants.values()
            if participant.status == "thinking" and participant.name not in writing
        ]

    def _answer_lines(self, screen: Screen, answer: WrittenAnswer, columns: int, rows: int) -> Iterator[str]:
        """The name and the end of the text, one beside the other where that fits."""
        text = "\n".join(safe_lines(plain_text(answer.text[-DRAWN_CHARACTERS:], self._names)))
        name = cut(safe(shown_name(answer.name)), columns // 2)
        room = max(1, columns - width(name) - 4)
        lines = wrapped(text, room)[-rows:] or [""]
        for number, line in enumerate(lines):
            lead = Span(f"{name} ", name_style(answer.name)) if number == 0 else " " * (width(name) + 1)
            yield screen.render([lead, Span("│ ", "line"), Span(cut(line, room), "dim")])


# --- A room that is followed, as a person or a program reads it: lines on a terminal or in a pipe, records as JSON.


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


# --- The last lines of a terminal, which are drawn again and again: answers that are being written, and the line that
# a person types.


class Drawing(NamedTuple):
    """Lines, and the row and column of them where the cursor stands."""

    lines: Sequence[str]
    row: int
    column: int


class BottomLines:
    """`write` sends text to the terminal. No line that is drawn is as wide as the screen, so the terminal breaks
    none."""

    def __init__(self, write: Callable[[str], None]) -> None:
        self._write = write
        self._lines: list[str] = []
        self._row = self._column = 0
        """Where the cursor stands within the lines."""

    @property
    def is_drawn(self) -> bool:
        """Whether anything stands there."""
        return bool(self._lines)

    def draw(self, drawing: Drawing) -> None:
        """Another drawing takes the place of what is there."""
        if (list(drawing.lines), drawing.row, drawing.column) != (self._lines, self._row, self._column):
            self._write(self._erased() + self._drawn_lines(*drawing))

    def above(self, texts: Sequence[str], drawing: Drawing | None = None) -> None:
        """Write lines for good; below them stands the other drawing from then on, or what is drawn."""
        below = drawing or Drawing(self._lines, self._row, self._column)
        finished_lines = "".join(f"{text}\n" for text in texts)
        self._write(self._erased() + finished_lines + self._drawn_lines(*below))

    def redraw(self) -> None:
        """On a screen that something else wrote to."""
        lines, row, column = self._lines, self._row, self._column
        self._write("\x1b[H\x1b[2J" + self._drawn_lines(lines, row, column))

    def erase(self) -> None:
        self._write(self._erased())

    def _erased(self) -> str:
        up = f"\x1b[{self._row}A" if self._row else ""
        self._lines, self._row, self._column = [], 0, 0
        return f"{up}\r\x1b[J"

    def _drawn_lines(self, lines: Sequence[str], row: int, column: int) -> str:
        self._lines, self._row, self._column = list(lines), row, column
        up = f"\x1b[{len(lines) - 1 - row}A" if len(lines) - 1 > row else ""
        right = f"\x1b[{column}C" if column else ""
        return "\n".join(lines) + up + "\r" + right


# --- A terminal that hands every key over as it is pressed, and is afterwards what it was.

BRACKETED_PASTE_ON, BRACKETED_PASTE_OFF = "\x1b[?2004h", "\x1b[?2004l"


def can_draw() -> bool:
    """Whether somebody sits at a terminal that lines can be drawn on again."""
    return sys.stdin.isatty() and sys.stdout.isatty() and os.environ.get("TERM", "") != "dumb"


@contextmanager
def reading_keys(file: int) -> Iterator[Callable[[], None]]:
    """Keys are neither echoed nor gathered into lines, and Ctrl-C is a key; Ctrl-Z and Ctrl-\\ do what they always do.
    Gives a function that makes it so once more, after a shell had the terminal."""
    before = termios.tcgetattr(file)
    mode = termios.tcgetattr(file)
    mode[0] &= ~(termios.ICRNL | termios.IXON)
    mode[3] &= ~(termios.ICANON | termios.ECHO | termios.IEXTEN)
    mode[6][termios.VINTR] = os.fpathconf(file, "PC_VDISABLE").to_bytes(1, "big")
    mode[6][termios.VMIN], mode[6][termios.VTIME] = 1, 0

    def set_mode() -> None:
        termios.tcsetattr(file, termios.TCSADRAIN, mode)
        write(BRACKETED_PASTE_ON)

    set_mode()
    try:
        yield set_mode
    finally:
        write(BRACKETED_PASTE_OFF)
        termios.tcsetattr(file, termios.TCSADRAIN, before)


def write(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()
