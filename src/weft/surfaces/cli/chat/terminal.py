"""A conversation at a terminal: reads what is typed, shows what comes, carries out commands,
and says what an answer took or what went wrong. An answer is shown as Markdown as it comes:
whole blocks stay, the last one is drawn again.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from weft.kernel.errors import NotApplicable, OutsideError, WeftError
from weft.kernel.events import Usage
from weft.ledger.api import has_title
from weft.runtime.inference.local_models import model_folder
from weft.runtime.replies import ReplyToken, TokenKind, TurnReply
from weft.surfaces.cli.chat.conversation import Conversation, OnToken
from weft.surfaces.cli.chat.models import EMBEDDED, ModelChoice, Vendor, keyed
from weft.surfaces.cli.chat.typed_input import (
    COMMANDS,
    Command,
    TypedMessage,
    Unknown,
    completions,
    needs_more,
    read_typed,
)
from weft.surfaces.cli.command_line import OK, UNFINISHED
from weft.surfaces.cli.programs.program_call import RepeatedText, retry_words
from weft.surfaces.cli.screen import Line, Span, plain_line
from weft.surfaces.cli.trust import turn_folder
from weft.surfaces.cli.trust_commands import ask_about_rules
from weft.surfaces.cli.turn_files import note_turn, turn_notes_of
from weft.surfaces.cli.turn_lists import short
from weft.surfaces.cli.work.approvals import NO, YES, TypedAhead, descriptor_of
from weft.surfaces.plain_text import safe, safe_lines
from weft.surfaces.wire.hints import phrase

if TYPE_CHECKING:
    from rich.console import Console
    from rich.live import Live

    from weft.surfaces.cli.command_line import Call


# --- A conversation at a terminal: reads what is typed, shows what comes, and carries out commands.

RECALLED, REMEMBERED = 2, 200
"""So many exchanges are shown again; so many can be had back with the arrow keys."""
LONGEST_RECALL = 2000


class Terminal:
    """One conversation from the first prompt to the last."""

    def __init__(self, call: Call, talk: Conversation, path: str) -> None:
        self._call, self._talk, self._path = call, talk, path
        self._console = _console(call)
        self._shown: AnswerDisplay | None = None
        """The answer that comes now."""
        self._typed = talk.typed = TypedAhead(descriptor_of(sys.stdin), self._hear_beside)
        self._is_over = False
        self._do: dict[str, Callable[[str], object]] = {
            "help": self._help,
            "fork": self._fork,
            "undo": self._undo,
            "redo": self._redo,
            "model": self._model,
            "steer": self._steer,
            "interrupt": lambda _: self._run_weft("interrupt", self._talk.label),
            "approve": partial(self._answer_call, "approve"),
            "reject": partial(self._answer_call, "reject"),
            "retry": lambda _: self._show_answer(self._talk.retry),
            "compact": self._compact,
            "tree": self._tree,
            "cost": self._cost,
            "sessions": lambda _: self._run_weft("sessions"),
            "switch": self._switch,
            "show": self._show,
            "quit": self._quit,
        }

    def run(self) -> None:
        self._set_up_editing()
        self._greet()
        while not self._is_over:
            try:
                for admission in self._talk.unanswered_steering():
                    self._show_answer(partial(self._talk.answer, admission))
                self._handle_input(self._read_input())
            except EOFError:
                click.echo()
                return
            except KeyboardInterrupt:  # what was typed is dropped, as in a shell
                click.echo()
            except WeftError as error:
                for line in failure(error):
                    self._call.screen.show(*line)

    def _handle_input(self, lines: list[str]) -> None:
        match read_typed(lines):
            case TypedMessage(text):
                self._answer(text)
            case Command(name, argument):
                self._do[name](argument)
            case Unknown(name, near):
                meant = f"did you mean /{near}?" if near else "/help lists what there is"
                self._call.screen.show(Span(f"there is no command /{name}; {meant}", "warn"))
            case None:
                pass

    def _read_input(self) -> list[str]:
        lines: list[str] = []
        while needs_more(lines):
            typed = self._typed.next_line()
            if typed is None:
                typed = input(self._prompt() if not lines else "... ")
            else:
                self._call.screen.show(Span("..." if lines else self._prompt_name(), "label"), f" {typed}")
            lines += typed.split("\n")
        return lines

    def _hear_beside(self, line: str) -> bool:
        """Whether a line that was typed while an answer comes is for the turn that gives it: /steer and /interrupt, and
        answers for its tool calls."""
        shown = self._shown
        if shown is None:
            return False
        shown.take_back_line()
        if self._answers_call(line):
            return True
        match read_typed([line]):
            case Command("steer", text) if text:
                steer_note = f"{text}: told to the turn, if its model is asked again; else answered next"
                self._talk.steer_awaited(text, lambda: shown.note(steer_note))
                return True
            case Command("interrupt"):
                self._talk.interrupt_awaited()
                return True
        return False

    def _answers_call(self, line: str) -> bool:
        """Whether a line answers for a tool call that waits: y, s, r, n, a, /approve and /reject."""
        prompts, answers = self._talk.prompts, {"approve": YES, "reject": NO}
        if prompts is None or prompts.take(line):
            return prompts is not None
        match read_typed([line]):
            case Command(verb, id) if verb in answers:
                prompts.answer(id or None, answers[verb])
                return True
        return False

    def _prompt_name(self) -> str:
        session = self._talk.session()
        title = session.title if session is not None and has_title(session) else None
        return f"{safe(prompt_name(self._talk.label, title, self._talk.shortened_label()))}>"

    def _prompt(self) -> str:
        name = self._prompt_name()
        if not self._call.screen.color:
            return f"{name} "
        return f"\001\033[1;36m\002{name}\001\033[0m\002 "

    def _answer(self, text: str) -> None:
        ask_about_rules(self._call, turn_folder(self._talk.ledger, self._talk.label))
        self._show_answer(lambda on_token: self._talk.say(text, on_token))

    def _show_answer(self, ask: Callable[[OnToken], TurnReply | None]) -> None:
        """Show an answer as it comes, then what it was made of."""
        before, repeated = self._talk.head, RepeatedText()
        waiting = "loading the embedded model…" if self._talk.must_load else "…"
        with AnswerDisplay(self._console, waiting) as shown:
            self._shown = shown

            def on_token(token: ReplyToken) -> None:
                if token.kind is not TokenKind.TEXT:
                    shown.think()
                    return
                has_begun = bool(repeated.shown)
                is_other, new = repeated.add(token)
                if is_other and has_begun:
                    shown.begin_anew()
                shown.add_text(new)

            self._talk.on_retry = lambda *failed: shown.note(retry_words(*failed))
            self._talk.on_note = shown.note
            try:
                with self._answering_calls(shown):
                    sent = ask(on_token)
            finally:
                self._shown = None
            if sent is not None and (other := repeated.end()):
                shown.begin_anew()
                shown.add_text(other)
            if sent is not None and not repeated.shown:  # another process answered
                shown.add_text(sent.reply.text)
        if sent is not None:
            self._call.screen.show(Span(footer(sent), "dim"))
            note_turn(self._call, turn_notes_of(self._call, self._talk.ledger, [sent.turn.id]))
        else:
            head = self._talk.head
            kept_part = "" if head in (None, before) else f"; what had come is kept as {short(str(head))}"
            self._call.screen.show(Span(f"interrupted{kept_part}", "warn"))

    @contextmanager
    def _answering_calls(self, shown: AnswerDisplay) -> Iterator[None]:
        """Tool calls that wait for a person are shown beside the answer, and answered by what is typed there."""
        prompts = self._talk.prompts
        if prompts is None:
            yield
            return
        prompts.show = lambda lines: shown.show_lines([plain_line(line) for line in lines])
        try:
            with prompts.answered_here():
                yield
        finally:
            prompts.show = None

    def _answer_call(self, verb: str, id: str) -> None:
        if not id:
            raise NotApplicable("no tool call waits here", f"/{verb} ID; `weft approvals` lists what waits elsewhere")
        self._run_weft(verb, id)

    def _greet(self) -> None:
        talk = self._talk
        choice = talk.choice or talk.choose()
        fetched = [file.name for file in model_folder(os.environ.get).fetched()]
        for line in greeting(talk.label, talk.is_new, choice, keyed(os.environ.get), fetched):
            self._call.screen.show(*line)
        self._recall()

    def _recall(self) -> None:
        """The last exchanges, and what was typed before for the arrow keys."""
        exchanges = self._talk.exchanges(RECALLED)
        for exchange in exchanges:
            self._call.screen.show()
            for line in harmless(exchange.asked[:LONGEST_RECALL]).split("\n"):
                self._call.screen.show(Span("> ", "user"), line)
            with AnswerDisplay(self._console, "") as shown:
                shown.add_text(exchange.answered[:LONGEST_RECALL])
        if exchanges:
            self._call.screen.show()
        self._remember([exchange.asked for exchange in self._talk.exchanges(REMEMBERED)])

    def _remember(self, typed: list[str]) -> None:
        try:
            import readline
        except ImportError:  # a Python without line editing: input works, plainly
            return
        readline.clear_history()
        for text in typed:
            if text.isprintable() and text:
                readline.add_history(text)

    def _set_up_editing(self) -> None:
        try:
            import readline
        except ImportError:
            return
        matches: list[str] = []

        def complete(_: str, state: int) -> str | None:
            if state == 0:
                line = readline.get_line_buffer()[: readline.get_endidx()]
                matches[:] = completions(line, self._talk.labels(), self._talk.model_names())
            return matches[state] if state < len(matches) else None

        readline.set_completer(complete)
        readline.set_completer_delims(" ")
        is_libedit = "libedit" in (readline.__doc__ or "")
        readline.parse_and_bind("bind ^I rl_complete" if is_libedit else "tab: complete")

    def _help(self, _: str) -> None:
        for line in help_lines():
            self._call.screen.show(*line)

    def _fork(self, label: str) -> None:
        before, label = self._command_line_here(), label or self._talk.free_label()
        if self._run_weft("--quiet", "fork", before, label) in (OK, UNFINISHED):
            self._talk.switch(label)
            self._call.screen.show(Span(label, "label"), " goes on from here; ", Span(before, "label"), " stays")

    def _undo(self, _: str) -> None:
        asked = self._talk.last_exchange().asked
        if self._run_weft("--quiet", "undo", self._command_line_here()) in (OK, UNFINISHED):
            self._call.screen.show("undone: ", Span(asked.split("\n")[0][:60], "dim"), "; /redo brings it back")

    def _redo(self, _: str) -> None:
        if self._run_weft("--quiet", "undo", self._talk.label, "--redo") in (OK, UNFINISHED):
            again = self._talk.last_exchange().asked
            self._call.screen.show("again there: ", Span(again.split("\n")[0][:60], "dim"))

    def _model(self, name: str) -> None:
        if name:
            self._call.screen.show("answered by ", *who(self._talk.choose(name)))
            return
        current = self._talk.choice
        for model in self._talk.model_names():
            mark = "* " if current is not None and model == current.name else "  "
            self._call.screen.show(mark, Span(model, "label"))
        self._call.screen.show(Span("/model NAME chooses one; `weft model create` makes more", "dim"))

    def _steer(self, text: str) -> None:
        if not text:
            raise NotApplicable("say what the turn is to know", "/steer TEXT")
        self._show_answer(lambda on_token: self._talk.steer(text, on_token))

    def _compact(self, focus: str) -> None:
        from weft.surfaces.cli.sessions.recording import make_compaction

        make_compaction(self._call, self._command_line_here(), "summary", focus or None, has_default_model=True)

    def _tree(self, _: str) -> None:
        self._run_weft("tree", self._command_line_here())

    def _cost(self, _: str) -> None:
        self._run_weft("usage", "--branch", self._command_line_here())

    def _switch(self, session: str) -> None:
        if not session:
            raise NotApplicable("say which session", "/switch SESSION; /sessions lists them")
        self._talk.switch(session)
        choice = self._talk.choose()
        self._call.screen.show("session ", Span(self._talk.label, "label"), ", answered by ", *who(choice))
        self._recall()

    def _show(self, turn: str) -> None:
        self._run_weft("show", turn or self._command_line_here())

    def _quit(self, _: str) -> None:
        self._is_over = True

    def _command_line_here(self) -> str:
        session = self._talk.session()
        if session is None or session.head is None:
            raise NotApplicable("nothing was said here yet", "say something first")
        return session.label

    def _run_weft(self, *arguments: str) -> int:
        """The command of this name, which says itself what goes wrong; its exit code."""
        from weft.surfaces.cli.main import run

        plain = ["--no-color"] if self._call.no_color else []
        return run(["--ledger", self._path, *plain, *arguments])


def _console(call: Call) -> Console:
    from rich.console import Console

    screen = call.screen
    return Console(
        file=sys.stdout,
        color_system="auto" if screen.color else None,
        highlight=False,
        width=screen.columns,
        legacy_windows=False,
    )


# --- An answer as it comes, shown as Markdown: whole blocks stay, the last one is drawn again with each piece.

_FENCE = re.compile(r" {0,3}(`{3,}|~{3,})")


def split_blocks(text: str) -> tuple[str, str]:
    """What of a Markdown text is settled, and what may still change.

    A block is settled where an empty line ends it and the next line is not set in, outside of a fence of code.
    """
    settled, fence, is_gap, at = 0, "", False, 0
    for line in text.splitlines(keepends=True):
        mark = _FENCE.match(line)
        if not fence and is_gap and line.strip() and not line[0].isspace():
            settled = at
        if mark and not fence:
            fence = mark[1]
        elif mark and mark[1].startswith(fence) and not line.strip().strip(fence[0]):
            fence = ""
        is_gap = not line.strip() and not fence
        at += len(line)
    return text[:settled], text[settled:]


def harmless(text: str) -> str:
    """Nothing in it drives the terminal."""
    return "\n".join(safe_lines(text))


class AnswerDisplay:
    """Shows one answer. Only what is not settled yet is drawn twice, and never more of it than the screen holds."""

    def __init__(self, console: Console, waiting: str) -> None:
        self._console, self._waiting = console, waiting
        self._live: Live | None = None
        self._open = ""
        self._has_shown = False
        self._lines = 0
        """So many lines of it are on the screen for good."""

    def __enter__(self) -> AnswerDisplay:
        self._wait()
        return self

    def _wait(self) -> None:
        from rich.live import Live
        from rich.text import Text

        first = Text(self._waiting, style="dim")
        self._live = Live(first, console=self._console, auto_refresh=False, transient=True)
        self._live.start(refresh=True)

    def __exit__(self, *_: object) -> None:
        """What is left is shown for good."""
        if self._live is not None:
            self._live.stop()
            self._live = None
        self._keep(self._open)
        self._open = ""

    def think(self) -> None:
        from rich.text import Text

        if self._live is not None and not self._open:
            self._live.update(Text("thinking…", style="dim"), refresh=True)

    def note(self, text: str) -> None:
        """A line beside the answer."""
        from rich.text import Text

        self._print(Text(harmless(text), style="dim"))

    def show_lines(self, lines: Sequence[str]) -> None:
        """Lines as they are, broken by the terminal alone, that stay on the screen whatever comes of the answer."""
        from rich.text import Text

        self._lines += self._console.size.height
        self._console.print(Text("\n".join(lines)), soft_wrap=True)

    def take_back_line(self) -> None:
        """The terminal echoed a line that was typed: the cursor goes back to where the answer is drawn."""
        if self._console.is_terminal and not self._console.is_dumb_terminal:
            self._console.file.write("\x1b[1A")

    def begin_anew(self) -> None:
        """Another answer takes the place of what was shown, as far as that is still on the screen."""
        had_shown, self._open, self._has_shown = self._has_shown, "", False
        if self._lines < self._console.size.height - 1 and self._console.is_terminal and self._live is not None:
            self._live.stop()
            if self._lines and not self._console.is_dumb_terminal:
                self._console.file.write(f"\x1b[{self._lines}A\x1b[J")
            self._lines = 0
            self._wait()
        elif had_shown:
            self.note("(that broke off; here is another answer)")

    def add_text(self, piece: str) -> None:
        self._open += piece
        settled, self._open = split_blocks(self._open)
        self._keep(settled)
        if self._live is not None:
            self._live.update(LastLines(self._open, has_gap=self._has_shown), refresh=True)

    def _keep(self, text: str) -> None:
        if text.strip():
            self._print(LastLines(text, has_gap=self._has_shown, is_whole=True))
            self._has_shown = True

    def _print(self, block: Any) -> None:
        """Above what may still change."""
        self._lines += len(self._console.render_lines(block, pad=False))
        self._console.print(block)


class LastLines:
    """Blocks of Markdown, or as many of their last lines as fit on the screen."""

    def __init__(self, text: str, *, has_gap: bool, is_whole: bool = False) -> None:
        self._text, self._has_gap, self._is_whole = text, has_gap, is_whole

    def __rich_console__(self, console: Any, options: Any) -> Any:
        from rich.markdown import Markdown
        from rich.segment import Segment

        shown = Markdown(harmless(self._text), hyperlinks=False, code_theme="ansi_dark")
        lines = console.render_lines(shown, options.update(height=None), pad=False)
        if not self._is_whole:
            lines = lines[-max(1, console.size.height - 2) :]
        if self._has_gap:
            yield Segment.line()
        for line in lines:
            yield from line
            yield Segment.line()


# --- What a conversation says of itself: how it begins, what an answer took, what went wrong and who must act.

HINT = "/help lists the commands. Ctrl-C stops an answer, Ctrl-D leaves."
TINY = (
    "A tiny model that comes with weft for trying things out, not for work. `weft model get --list` names better ones."
)
MILLION = 1_000_000
TITLE_CHARACTERS = 40
"""So much of a title stands in a prompt."""
_ID = re.compile(r"[0-9a-f]{8}(-?[0-9a-f]{4,12}){0,6}|[0-9A-HJKMNP-TV-Z]{26}|(session|ses|agent)[-_][0-9A-Za-z]{8,}")
"""Labels that no person typed."""


def greeting(
    label: str, is_new: bool, choice: ModelChoice, keys: Sequence[tuple[Vendor, str]], fetched: Sequence[str] = ()
) -> Iterator[Line]:
    yield ["session ", Span(label, "label"), " (new)" if is_new else "", ", answered by ", *who(choice)]
    if choice.name == EMBEDDED:
        yield [Span(TINY, "dim")]
        for name in fetched:
            yield [Span(f"{name} is on this machine: /model {name} uses it", "dim")]
    for vendor, variable in keys:
        if choice.settings.provider.id != vendor.kind.value:
            yield [Span(f"a key is in ${variable}: /model {vendor.kind.value} uses it", "dim")]
    yield [Span(HINT, "dim")]


def prompt_name(label: str, title: str | None, shortened: str) -> str:
    """What a session is called where somebody types: a label that is an id stands behind the title, shortened."""
    if title is None or not _ID.fullmatch(label):
        return label
    words = " ".join(title.split())
    if len(words) > TITLE_CHARACTERS:
        words = words[:TITLE_CHARACTERS].rpartition(" ")[0] or words[:TITLE_CHARACTERS]
        words += "…"
    return f"{words} ({shortened})"


def who(choice: ModelChoice) -> Line:
    return [Span(choice.settings.name, "assistant"), Span(f" ({choice.about})", "dim")]


def help_lines() -> Iterator[Line]:
    for name, (takes, what) in COMMANDS.items():
        yield [Span(f"/{name} {takes}".ljust(18), "label"), what]
    yield ['A line that ends with \\ goes on in the next one; """ begins and ends a text of several lines.']
    yield ["A message that begins with a slash is written with two."]


def footer(sent: TurnReply) -> str:
    """`m-1, 20 tokens in, 5 out, 1.2 s, 6X2ZK4PD`; with its cost, unless it is free or nobody knows it."""
    reply = sent.reply
    figures = [reply.model, *_tokens(reply.usage), f"{reply.latency_ms / 1000:.1f} s"]
    if reply.cost:
        figures.append(f"${reply.cost / MILLION:.4f}")
    if reply.finish != "stop":
        figures.append(f"ended by {reply.finish}")
    return ", ".join([*figures, short(sent.turn.id)])


def _tokens(usage: Usage | None) -> list[str]:
    if usage is None:
        return ["tokens not reported"]
    read = [usage.input_tokens, usage.cached_input_tokens, usage.cache_write_tokens]
    written = usage.output_tokens if isinstance(usage.output_tokens, int) else 0
    return [f"{sum(count for count in read if isinstance(count, int)):,} tokens in", f"{written:,} out"]


def failure(error: WeftError) -> Iterator[Line]:
    """What went wrong, who must act, and what to do."""
    yield [Span(str(error), "bad")]
    if isinstance(error, OutsideError):
        yield [f"{error.acts} must act" if error.acts != "us" else "a fault of weft", f": {phrase(error.advice)}"]
    elif error.hint:
        yield ["hint: ", phrase(error.advice)]
