"""`weft read`: a whole conversation for reading. Prompts stand as they were typed, answers
in full, and the work between them in a line each; Markdown as lines of spans; the pager, set up
so that `n` goes from heading to heading.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache
from io import StringIO
from itertools import chain
from pathlib import PurePath
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, NamedTuple

import click

from weft.exchange.exporters.turn_contents import TooManyCells, with_bounded_tables
from weft.ledger.api import MessagePassage, StepGroup, is_from_tool, message_passages, sections, typed_command
from weft.ledger.model import ImagePart, Message, Part, TextPart, Turn
from weft.ledger.read.session_list import in_one_line, meaningful_title
from weft.surfaces.cli import turn_lists
from weft.surfaces.cli.command_line import Call
from weft.surfaces.cli.progress import counted
from weft.surfaces.cli.screen import Line, Screen, Span, local_minute, local_time, pager_words
from weft.surfaces.cli.transcript import Transcript, image_text, substitution_mark
from weft.surfaces.cli.turn_lists import STATE_WORDS, Reader, short, state_of
from weft.surfaces.cli.verb_commands import shows
from weft.surfaces.plain_text import cut_at_word, safe, safe_lines, width, wrapped
from weft.verbs import reading_verbs as verbs
from weft.verbs.answers import ReadTurn
from weft.verbs.declaration import opt

if TYPE_CHECKING:
    from markdown_it import MarkdownIt
    from rich.console import Console
    from rich.markdown import Markdown
    from rich.style import Style

    from weft.ledger.api import Ledger
    from weft.ledger.model import RevisionTarget, Session


# --- `weft read`: a whole conversation.

DAY = len("2026-11-15")


@shows(verbs.read)
def show_conversation(
    call: Call,
    conversation: verbs.ThreadPage,
    ledger: Ledger,
    steps: Annotated[
        bool, opt("The steps between prompts and answers, too: calls, results, thinking.", before="original")
    ] = False,
) -> None:
    below = list(turn_lists.provisional_page([tail.turn for tail in conversation.provisional], full=False))
    if conversation.first is None or conversation.end is None:
        call.screen.page(below[1:])
        return
    lines = _read_lines(call, ledger, conversation.first, conversation.end, conversation.items)
    show_folded(call.screen, chain(lines, map(ReadLine, below)), unfold=steps)


def _read_lines(
    call: Call, ledger: Ledger, first: str, point: RevisionTarget, turns: Iterable[ReadTurn]
) -> Iterator[ReadLine]:
    screen, reader, last = call.screen, Reader(ledger), ledger.turn(point.turn_id)
    title, facts = _title_and_facts(ledger, reader, _reached_by(reader, point, last), ledger.turn(first), last)
    yield from head_lines(title, facts, screen.columns)
    page = ReadingPage(
        columns=screen.columns,
        unicode=screen.unicode,
        is_plain=not screen.terminal,
        labels=reader.short_labels,
        turns=last.depth,
    )
    yield from page.lines(turns)


def _reached_by(reader: Reader, point: RevisionTarget, last: Turn) -> Session | None:
    """The session that was named. Where that is deleted, or its label is another's by now, the one that made the
    turn."""
    maker = reader.session(last.session_id)
    if maker is not None and maker.label == point.session:
        return maker
    return reader.active_session(point.session) or maker


def _title_and_facts(
    ledger: Ledger, reader: Reader, session: Session | None, first: Turn, last: Turn
) -> tuple[str, list[str]]:
    """The title of a thread, and what else is known of it. The session is the one that it was reached by; of a turn
    that was named by itself, the one that made it."""
    subject = ledger.listing().subjects([first.id]).get(first.id, "")
    title = (_own_title(session) if session else "") or subject or f"turn {short(last.id)}"
    facts = [reader.short_label(session) if session else short(last.id)]
    folder = last.workspace_path or (session.workspace_path if session else None) or first.workspace_path
    project = ledger.listing().projects([folder or ""])[folder or ""]
    facts += [last.origin or "", project, _days(first, last), counted(last.depth, "turn")]
    return " ".join(title.split()), [fact for fact in facts if fact]


def _own_title(session: Session) -> str:
    """What lists of sessions call it, too, where it says so itself."""
    return meaningful_title(session.title) or in_one_line(session.task_description or "")


def _days(first: Turn, last: Turn) -> str:
    if not (first.time_known and last.time_known):
        return ""
    begin, end = local_minute(first.started_at), local_minute(last.completed_at or last.started_at)
    if begin == end:
        return begin
    return f"{begin} to {end[DAY + 1 :] if begin[:DAY] == end[:DAY] else end}"


# --- A conversation for reading: prompts as they were typed, answers in full, and the work between them in a line
# each.

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

    def lines(self, turns: Iterable[ReadTurn]) -> Iterator[ReadLine]:
        session: str | None = None
        for read_turn in turns:
            yield ReadLine([])
            yield self._heading(read_turn.turn)
            if read_turn.session != session and read_turn.session is not None:
                if session is not None:
                    label = self._labels.get(read_turn.session, read_turn.session)
                    yield ReadLine([INDENT, Span(f"(from here on in session {safe(label)})", "dim")])
                session = read_turn.session
            yield from self._turn(read_turn)

    def _heading(self, turn: Turn) -> ReadLine:
        when = local_time(turn.started_at)[:MINUTE] if turn.time_known else "time unknown"
        state = STATE_WORDS.get(state_of(turn), "")
        words = [f"turn {turn.depth} of {self._turns}", when, short(turn.id), state]
        return heading(", ".join(word for word in words if word), self._columns, self._unicode)

    def _turn(self, read_turn: ReadTurn) -> Iterator[ReadLine]:
        turn, prompts = read_turn.turn, 0
        if read_turn.compaction is not None:
            yield from self._fold_away("summary of what came before", read_turn.compaction.summary)
        for section in sections(read_turn.items):
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
                yield from self._aside_lines(section)
        if turn.error is not None:
            yield ReadLine([])
            yield from self._indented_lines(
                (Span(line, "bad") for line in self._wrapped_text(f"error: {turn.error}")), INDENT
            )

    # --- what was said ----------------------------------------------------------------------------------------------

    def _prompt(self, message: Message) -> Iterator[ReadLine]:
        if message.source not in (None, "human"):
            yield ReadLine([INDENT, Span(f"({safe(str(message.source))})", "dim")])
        yield from self._substitution(message)
        for part in message.content:
            if isinstance(part, TextPart):
                yield from self._typed(str(part.text))
            else:
                yield from self._other_part(part)

    @staticmethod
    def _substitution(message: Message) -> Iterator[ReadLine]:
        if mark := substitution_mark(message.substituted):
            yield ReadLine([INDENT, *mark])

    def _typed(self, text: str) -> Iterator[ReadLine]:
        """As it was typed; what a tool wrapped around it is folded."""
        if (words := typed_command(text)) is not None:
            yield from self._quoted_text(words)
            return
        for passage in message_passages(text):
            if passage.is_injected:
                yield from self._fold_away(_name(passage), passage.text)
            else:
                yield from self._quoted_text(passage.text.strip("\n"))

    def _quoted_text(self, text: str) -> Iterator[ReadLine]:
        bar = Span(self._bar, "user")
        for line in self._wrapped_text(text):
            yield ReadLine([bar, line])

    def _answer(self, message: Message) -> Iterator[ReadLine]:
        yield from self._substitution(message)
        for part in message.content:
            if not isinstance(part, TextPart):
                yield from self._other_part(part)
            elif self._is_plain or not self._unicode:
                yield from self._indented_lines(self._wrapped_text(str(part.text)), INDENT)
            else:
                for line in markdown_lines(str(part.text), self._columns - len(INDENT)):
                    yield ReadLine([INDENT, *line] if line else [])

    def _aside_lines(self, message: Message) -> Iterator[ReadLine]:
        """What no person and no model said: a system prompt, a notice of the tool."""
        name = ADDED if is_from_tool(message) else ASIDES.get(message.role, message.role)
        for part in message.content:
            if isinstance(part, TextPart):
                yield from self._fold_away(name, str(part.text))
            else:
                yield from self._other_part(part)

    def _other_part(self, part: Part) -> Iterator[ReadLine]:
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
        lines = self._wrapped_text(text)
        yield self._fold_line(f"{name}, {counted(len(lines), 'line')}", "")
        yield from folded(([Span(line, "dim")] for line in lines), self._unicode)

    def _fold_line(self, words: str, hint: str) -> ReadLine:
        room = self._columns - len(INDENT) - len(self._fold)
        text = cut_at_word(safe(words), room)
        left = room - width(text) - 2
        about = f"  {cut_at_word(safe(hint), left)}" if hint and left >= HINT_COLUMNS else ""
        return ReadLine([INDENT, Span(self._fold + text, "tool"), Span(about, "dim")])

    # --- lines ------------------------------------------------------------------------------------------------------

    def _wrapped_text(self, text: str) -> list[str]:
        lines = safe_lines(text)
        return lines if self._is_plain else wrapped("\n".join(lines), self._columns - 4)

    @staticmethod
    def _indented_lines(lines: Iterable[Span | str], indent: str) -> Iterator[ReadLine]:
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


# --- Markdown as lines of spans, wrapped at words: headings, lists, quotes, tables and code as a terminal can show
# them.

LONGEST_CHARS = 50_000
MOST_CELLS = 3_000
"""Of all tables of a text: rich takes half a millisecond to lay out one cell."""
NOT_RENDERED = ("escape", "entity", "html_inline", "html_block", "image", "reference")
_CODE, _URL = "cyan", "blue"
THEME = {
    "markdown.code": _CODE,
    "markdown.code_block": _CODE,
    "markdown.link": "none",
    "markdown.link_url": _URL,
    "markdown.block_quote": "dim",
    "markdown.list": "none",
    "markdown.item.bullet": "none",
    "markdown.item.number": "none",
    "markdown.hr": "dim",
    "markdown.table.border": "dim",
    "markdown.table.header": "bold",
    **{f"markdown.h{level}": "bold" for level in range(1, 7)},
}


def markdown_lines(text: str, columns: int) -> Iterator[Line]:
    """The text as it is meant to look, no wider than so many columns."""
    source = "\n".join(safe_lines(text))
    lines = _lossless(source, columns) if len(source) <= LONGEST_CHARS else None
    yield from ([line] for line in wrapped(source, columns)) if lines is None else lines


def _lossless(source: str, columns: int) -> list[Line] | None:
    """The rendered lines; None where letters are missing in them or tables have too many cells."""
    try:
        lines = list(_rendered_markdown(source, columns))
    except TooManyCells:
        return None
    shown = "".join(span if isinstance(span, str) else span.text for line in lines for span in line)
    return None if _letter_counts(source) - _letter_counts(shown) else lines


def _letter_counts(text: str) -> Counter[str]:
    return Counter(re.sub(r"[\W_]+", "", text))


def _rendered_markdown(text: str, columns: int) -> Iterator[Line]:
    console = _console(columns)
    for segments in console.render_lines(_document(text), pad=False):
        spans = [Span(segment.text, _style_name(segment.style)) for segment in segments if not segment.control]
        yield _trimmed_spans(spans)


def _trimmed_spans(spans: list[Span]) -> list[Span]:
    """Without the blanks that fill the line."""
    while spans and not spans[-1].text.strip():
        spans.pop()
    if spans:
        spans[-1] = spans[-1]._replace(text=spans[-1].text.rstrip())
    return spans


def _style_name(style: Style | None) -> str:
    """The style of the screen that comes nearest."""
    if style is None:
        return ""
    colour = style.color.name if style.color else ""
    names = {_CODE: "code", _URL: "dim"}
    if colour in names:
        return names[colour]
    return "heading" if style.bold else "emphasis" if style.italic else "dim" if style.dim else ""


@cache
def _console(columns: int) -> Console:
    from rich.console import Console
    from rich.theme import Theme

    return Console(
        file=StringIO(),
        width=columns,
        force_terminal=True,
        color_system="standard",
        legacy_windows=False,
        emoji=False,
        theme=Theme(THEME),
        _environ={},
    )


def _document(text: str) -> Markdown:
    document = _document_class()("", hyperlinks=False)
    document.parsed = _parser().parse(text)
    return document


@cache
def _parser() -> MarkdownIt:
    from markdown_it import MarkdownIt

    parser = MarkdownIt("commonmark").enable(["strikethrough", "table"]).disable(list(NOT_RENDERED))
    return with_bounded_tables(parser, MOST_CELLS)


@cache
def _document_class() -> type[Markdown]:
    from rich.markdown import CodeBlock, Heading, Markdown, MarkdownElement
    from rich.padding import Padding
    from rich.text import Text

    class PlainCode(CodeBlock):
        """Code without colours of its own, set in, below the name of its language."""

        @classmethod
        def create(cls, markdown: Markdown, token: Any) -> PlainCode:
            return cls(token.info or "", "")

        def __rich_console__(self, console: Any, options: Any) -> Any:
            if self.lexer_name.strip():
                yield Padding(Text(self.lexer_name.strip(), style="dim", overflow="fold"), (0, 0, 0, 2))
            yield Padding(Text(str(self.text).rstrip(), style=_CODE, overflow="fold"), (0, 0, 0, 2))

    class LeftHeading(Heading):
        def __rich_console__(self, console: Any, options: Any) -> Any:
            self.text.justify = "left"
            yield self.text

    class PlainMarkdown(Markdown):
        elements: ClassVar[dict[str, type[MarkdownElement]]] = {
            **Markdown.elements,
            "heading_open": LeftHeading,
            "fence": PlainCode,
            "code_block": PlainCode,
        }

    return PlainMarkdown


# --- The pager for long reading: `less`, set up so that `n` goes from heading to heading and folded lines can be
# shown.

HEADING, ASCII_HEADING = "──", "--"
FOLD, ASCII_FOLD = "  │ ", "  | "
KEYS = "n, N\\: prompts  /\\: search  {steps}q\\: quit?e  (end)."
"""In the language of less: `(end)` stands at the end of the text."""
STEPS = "&, Enter\\: steps  "


class ReadLine(NamedTuple):
    """A line of a long text, and whether it is folded."""

    spans: Line
    is_folded: bool = False
    """Begins with the mark of folded lines."""


def show_folded(screen: Screen, lines: Iterable[ReadLine], *, unfold: bool) -> None:
    """Lines of a long text; `unfold` shows the folded ones from the beginning."""
    less = find_less() if screen.terminal and screen.paging else None
    if less is None:
        screen.page(line.spans for line in lines if unfold or not line.is_folded)
        return
    rest, first, visible = iter(lines), list[ReadLine](), 0
    for line in rest:
        first.append(line)
        visible += unfold or not line.is_folded
        if visible >= screen.rows - 1:
            break
    else:
        texts = [screen.render(line.spans) for line in first if unfold or not line.is_folded]
        click.echo("\n".join(texts), color=screen.color, nl=bool(texts))
        return
    handed_over = (screen.render(_beside_the_filter(line, screen.unicode)) for line in chain(first, rest))
    run_less(less, handed_over, unicode=screen.unicode, unfold=unfold)


def _beside_the_filter(line: ReadLine, unicode: bool) -> Line:
    """The line as it is; one that is not folded, and that the filter would hide, set in by one more blank."""
    text = "".join(span if isinstance(span, str) else span.text for span in line.spans)
    mark = (FOLD if unicode else ASCII_FOLD).rstrip()
    return line.spans if line.is_folded or not text.startswith(mark) else [" ", *line.spans]


def find_less() -> str | None:
    """Where less is; None: it is not there, or the user wants another pager."""
    words = pager_words() or ["less"]
    program = shutil.which(words[0]) if PurePath(words[0]).name == "less" else None
    return program if program and _is_real_less(program) else None


def _is_real_less(program: str) -> bool:
    """Small replacements of the same name know neither the filter nor these options."""
    answer = subprocess.run([program, "--version"], stdin=subprocess.DEVNULL, capture_output=True, check=False)
    return answer.stdout.startswith(b"less ")


def less_arguments(*, unicode: bool, unfold: bool) -> list[str]:
    """Options, and the keys pressed at the beginning: hide what is folded, look for headings, go to the top.

    The mark in Unicode stands outside brackets: where `less` matches bytes, these would hold for each byte of it, and
    so for lines that begin with a dash or a bullet.
    """
    rule, pattern = (HEADING, FOLD.rstrip()) if unicode else (ASCII_HEADING, ASCII_FOLD.rstrip().replace("|", "[|]"))
    prompt = KEYS.format(steps="" if unfold else STEPS)
    hide = "" if unfold else f"&!^{pattern}\n"
    keys = f"{hide}/^{rule} \ng"
    return ["-R", "-+F", *(f"-P{kind}{prompt}" for kind in "smM"), f"+{keys}"]


def run_less(program: str, texts: Iterable[str], *, unicode: bool, unfold: bool) -> None:
    environment = {"LESS": "-RX", **os.environ}
    command = [program, *less_arguments(unicode=unicode, unfold=unfold)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, env=environment) as less:
        assert less.stdin is not None
        with suppress(BrokenPipeError, KeyboardInterrupt):  # the reader has seen enough
            for text in texts:
                less.stdin.write(f"{text}\n".encode(sys.stdout.encoding or "utf-8", "backslashreplace"))
        with suppress(BrokenPipeError):
            less.stdin.close()
        while less.poll() is None:
            with suppress(KeyboardInterrupt):  # less hears it, too, and stays
                less.wait()


def folded(lines: Iterable[Line], unicode: bool) -> Iterator[ReadLine]:
    """Lines that are hidden until they are asked for."""
    mark = FOLD if unicode else ASCII_FOLD
    for line in lines:
        yield ReadLine([Span(mark, "line"), *line], is_folded=True)


def heading(words: str, columns: int, unicode: bool, style: str = "heading") -> ReadLine:
    """A line that the pager goes to, with a rule to the end of the page."""
    from weft.surfaces.plain_text import cut, safe, width

    rule = HEADING if unicode else ASCII_HEADING
    text = cut(safe(words), max(20, columns - 2 * len(rule) - 2))
    fill = rule[0] * max(0, columns - width(text) - len(rule) - 2)
    return ReadLine([Span(f"{rule} ", "line"), Span(text, style), Span(f" {fill}" if fill else "", "line")])
