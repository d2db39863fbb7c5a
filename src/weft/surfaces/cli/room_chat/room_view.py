"""What is shown of a room that is followed: what was said, for good, and answers while they are being written.

An answer that is being written is drawn below what was said, each agent's by itself. When it is posted it is shown
whole, in its place among the messages.
"""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct

from weft.chat.room_stream import (
    RoomAnswerEnded,
    RoomAnswerText,
    RoomFollowingEnded,
    RoomItem,
    RoomMessageAdded,
    RoomParticipantChanged,
    RoomStateChanged,
)
from weft.kernel.message_text import shown_name
from weft.ledger.api import Participant
from weft.surfaces.cli.rooms.text import message_lines, name_style, plain_text
from weft.surfaces.cli.screen import Line, Screen, Span
from weft.surfaces.plain_text import cut, safe, safe_lines, width, wrapped

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
        lines = [line for one in self._answers.values() for line in self._answer_lines(screen, one, columns, share)]
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
        return [one.name for one in self.participants.values() if one.status == "thinking" and one.name not in writing]

    def _answer_lines(self, screen: Screen, answer: WrittenAnswer, columns: int, rows: int) -> Iterator[str]:
        """The name and the end of the text, one beside the other where that fits."""
        text = "\n".join(safe_lines(plain_text(answer.text[-DRAWN_CHARACTERS:], self._names)))
        name = cut(safe(shown_name(answer.name)), columns // 2)
        room = max(1, columns - width(name) - 4)
        lines = wrapped(text, room)[-rows:] or [""]
        for number, line in enumerate(lines):
            lead = Span(f"{name} ", name_style(answer.name)) if number == 0 else " " * (width(name) + 1)
            yield screen.render([lead, Span("│ ", "line"), Span(cut(line, room), "dim")])
