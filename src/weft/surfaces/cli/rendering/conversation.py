"""A conversation for reading: prompts as they were typed, answers in full, and the work between them in a line each.

The lines of the work itself, of thinking, and of what tools put into prompts are folded.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from weft.ledger.api import FullTurn, MessagePassage, StepGroup, is_from_tool, message_passages, sections, typed_command
from weft.ledger.model import ImagePart, Message, Part, TextPart, Turn
from weft.surfaces.cli.figures import counted
from weft.surfaces.cli.history import short
from weft.surfaces.cli.pager import ReadLine, folded, heading
from weft.surfaces.cli.rendering.markdown import markdown_lines
from weft.surfaces.cli.rendering.messages import substitution_mark
from weft.surfaces.cli.rendering.page import image_text
from weft.surfaces.cli.rendering.transcript import Transcript
from weft.surfaces.cli.screen import Span
from weft.surfaces.cli.times import local_time
from weft.surfaces.cli.turn_lines import STATE_WORDS, state_of
from weft.surfaces.plain_text import cut_at_word, safe, safe_lines, width, wrapped

WIDEST_COLUMNS = 100
"""Longer lines are hard to read, however wide the terminal is."""
INDENT = "  "
HINT_COLUMNS = 20
ADDED = "added by the tool"
ASIDES = {"system": "system prompt", "tool": "result"}
MINUTE = len("2026-11-15 09:30")


class ReadingPage:
    """Turns as lines. `is_plain`: for a file or another program, so nothing is wrapped and Markdown stays as it is."""

    def __init__(self, *, columns: int, unicode: bool, is_plain: bool, labels: Mapping[str, str], turns: int) -> None:
        self._columns, self._unicode, self._is_plain = min(columns, WIDEST_COLUMNS), unicode, is_plain
        self._labels, self._turns = labels, turns
        self._fold, self._bar = ("▸ ", "▌ ") if unicode else ("+ ", "> ")

    def lines(self, turns: Iterable[FullTurn]) -> Iterator[ReadLine]:
        session: str | None = None
        for full_turn in turns:
            yield ReadLine([])
            yield self._heading(full_turn.turn)
            if full_turn.session != session and full_turn.session is not None:
                if session is not None:
                    label = self._labels.get(full_turn.session, full_turn.session)
                    yield ReadLine([INDENT, Span(f"(from here on in session {safe(label)})", "dim")])
                session = full_turn.session
            yield from self._turn(full_turn)

    def _heading(self, turn: Turn) -> ReadLine:
        when = local_time(turn.started_at)[:MINUTE] if turn.time_known else "time unknown"
        state = STATE_WORDS.get(state_of(turn), "")
        words = [f"turn {turn.depth} of {self._turns}", when, short(turn.id), state]
        return heading(", ".join(word for word in words if word), self._columns, self._unicode)

    def _turn(self, full_turn: FullTurn) -> Iterator[ReadLine]:
        turn, prompts = full_turn.turn, 0
        if full_turn.summary is not None:
            yield from self._fold_away("summary of what came before", full_turn.summary.summary)
        for section in sections(full_turn.items):
            if isinstance(section, StepGroup):
                yield ReadLine([])
                yield from self._steps(section, turn)
            elif section.role == "user" and not is_from_tool(section):
                if prompts:
                    yield ReadLine([])
                    yield heading(f"turn {turn.depth} goes on", self._columns, self._unicode, "dim")
                prompts += 1
                yield from self._prompt(section)
            elif section.role == "assistant":
                yield ReadLine([])
                yield from self._answer(section)
            else:
                yield from self._aside(section)
        if turn.error is not None:
            yield ReadLine([])
            yield from self._indented((Span(line, "bad") for line in self._wrapped(f"error: {turn.error}")), INDENT)

    # --- what was said ----------------------------------------------------------------------------------------------

    def _prompt(self, message: Message) -> Iterator[ReadLine]:
        if message.source not in (None, "human"):
            yield ReadLine([INDENT, Span(f"({safe(str(message.source))})", "dim")])
        yield from self._substitution(message)
        for part in message.content:
            if isinstance(part, TextPart):
                yield from self._typed(str(part.text))
            else:
                yield from self._other(part)

    @staticmethod
    def _substitution(message: Message) -> Iterator[ReadLine]:
        if mark := substitution_mark(message.substituted):
            yield ReadLine([INDENT, *mark])

    def _typed(self, text: str) -> Iterator[ReadLine]:
        """As it was typed; what a tool wrapped around it is folded."""
        if (words := typed_command(text)) is not None:
            yield from self._quoted(words)
            return
        for passage in message_passages(text):
            if passage.is_injected:
                yield from self._fold_away(_name(passage), passage.text)
            else:
                yield from self._quoted(passage.text.strip("\n"))

    def _quoted(self, text: str) -> Iterator[ReadLine]:
        bar = Span(self._bar, "user")
        for line in self._wrapped(text):
            yield ReadLine([bar, line])

    def _answer(self, message: Message) -> Iterator[ReadLine]:
        yield from self._substitution(message)
        for part in message.content:
            if not isinstance(part, TextPart):
                yield from self._other(part)
            elif self._is_plain or not self._unicode:
                yield from self._indented(self._wrapped(str(part.text)), INDENT)
            else:
                for line in markdown_lines(str(part.text), self._columns - len(INDENT)):
                    yield ReadLine([INDENT, *line] if line else [])

    def _aside(self, message: Message) -> Iterator[ReadLine]:
        """What no person and no model said: a system prompt, a notice of the tool."""
        name = ADDED if is_from_tool(message) else ASIDES.get(message.role, message.role)
        for part in message.content:
            if isinstance(part, TextPart):
                yield from self._fold_away(name, str(part.text))
            else:
                yield from self._other(part)

    def _other(self, part: Part) -> Iterator[ReadLine]:
        if isinstance(part, ImagePart):
            yield ReadLine([INDENT, Span(image_text(str(part.url)), "dim")])

    # --- what was done ----------------------------------------------------------------------------------------------

    def _steps(self, group: StepGroup, turn: Turn) -> Iterator[ReadLine]:
        yield self._fold_line(group.summary, group.hint().strip("*#_ "))
        transcript = Transcript(
            full=False,
            columns=self._columns - 4,
            unicode=self._unicode,
            workspace=turn.workspace_path,
            labels=self._labels,
            wraps=not self._is_plain,
            unfold=f"weft show {short(turn.id)} --full",
        )
        yield from folded(transcript.lines(group.items), self._unicode)

    def _fold_away(self, name: str, text: str) -> Iterator[ReadLine]:
        lines = self._wrapped(text)
        yield self._fold_line(f"{name}, {counted(len(lines), 'line')}", "")
        yield from folded(([Span(line, "dim")] for line in lines), self._unicode)

    def _fold_line(self, words: str, hint: str) -> ReadLine:
        room = self._columns - len(INDENT) - len(self._fold)
        text = cut_at_word(safe(words), room)
        left = room - width(text) - 2
        about = f"  {cut_at_word(safe(hint), left)}" if hint and left >= HINT_COLUMNS else ""
        return ReadLine([INDENT, Span(self._fold + text, "tool"), Span(about, "dim")])

    # --- lines ------------------------------------------------------------------------------------------------------

    def _wrapped(self, text: str) -> list[str]:
        lines = safe_lines(text)
        return lines if self._is_plain else wrapped("\n".join(lines), self._columns - 4)

    @staticmethod
    def _indented(lines: Iterable[Span | str], indent: str) -> Iterator[ReadLine]:
        for line in lines:
            yield ReadLine([indent, line] if line else [])


def _name(passage: MessagePassage) -> str:
    return f"{ADDED}: {passage.tag}" if passage.tag else ADDED


def head_lines(title: str, facts: Sequence[str], columns: int) -> Iterator[ReadLine]:
    """What is read, and what is known of it."""
    room = min(columns, WIDEST_COLUMNS)
    yield ReadLine([Span(cut_at_word(safe(title), room), "heading")])
    for line in wrapped(", ".join(safe(fact) for fact in facts), room):
        yield ReadLine([Span(line, "dim")])
