"""A conversation at a terminal: reads what is typed, shows what comes, and carries out commands.

What was typed before comes from the ledger, not from a file of its own: whatever is erased there is gone here too.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

import click

from weft.kernel.errors import NotApplicable, WeftError
from weft.ledger.api import has_title
from weft.runtime.inference.local_models import model_folder
from weft.runtime.replies import ReplyToken, TokenKind
from weft.surfaces.cli.approval_prompts import NO, YES
from weft.surfaces.cli.chat import reply_lines
from weft.surfaces.cli.chat.blocks import Answering, harmless
from weft.surfaces.cli.chat.conversation import Conversation, OnToken
from weft.surfaces.cli.chat.readiness import keyed
from weft.surfaces.cli.chat.typed_ahead import TypedAhead, descriptor_of
from weft.surfaces.cli.chat.typed_input import Command, TypedMessage, Unknown, completions, needs_more, read_typed
from weft.surfaces.cli.exits import OK, UNFINISHED
from weft.surfaces.cli.history import short
from weft.surfaces.cli.program_call import retry_words
from weft.surfaces.cli.repeated_text import RepeatedText
from weft.surfaces.cli.screen import Span, plain_line
from weft.surfaces.cli.turn_files_call import note_turn, turn_notes_of
from weft.surfaces.plain_text import safe

if TYPE_CHECKING:
    from rich.console import Console

    from weft.runtime.replies import TurnReply
    from weft.surfaces.cli.call import Call

RECALLED, REMEMBERED = 2, 200
"""So many exchanges are shown again; so many can be had back with the arrow keys."""
LONGEST_RECALL = 2000


class Terminal:
    """One conversation from the first prompt to the last."""

    def __init__(self, call: Call, talk: Conversation, path: str) -> None:
        self._call, self._talk, self._path = call, talk, path
        self._console = _console(call)
        self._shown: Answering | None = None
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
            "interrupt": lambda _: self._weft("interrupt", self._talk.label),
            "approve": partial(self._answer_call, "approve"),
            "reject": partial(self._answer_call, "reject"),
            "retry": lambda _: self._answered(self._talk.retry),
            "compact": self._compact,
            "tree": self._tree,
            "cost": self._cost,
            "sessions": lambda _: self._weft("sessions"),
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
                    self._answered(partial(self._talk.answer, admission))
                self._hear(self._read())
            except EOFError:
                click.echo()
                return
            except KeyboardInterrupt:  # what was typed is dropped, as in a shell
                click.echo()
            except WeftError as error:
                for line in reply_lines.failure(error):
                    self._call.screen.show(*line)

    def _hear(self, lines: list[str]) -> None:
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

    def _read(self) -> list[str]:
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
        return f"{safe(reply_lines.prompt_name(self._talk.label, title, self._talk.shortened_label()))}>"

    def _prompt(self) -> str:
        name = self._prompt_name()
        if not self._call.screen.color:
            return f"{name} "
        return f"\001\033[1;36m\002{name}\001\033[0m\002 "

    def _answer(self, text: str) -> None:
        self._answered(lambda hear: self._talk.say(text, hear))

    def _answered(self, ask: Callable[[OnToken], TurnReply | None]) -> None:
        """Show an answer as it comes, then what it was made of."""
        before, repeated = self._talk.head, RepeatedText()
        waiting = "loading the embedded model…" if self._talk.must_load else "…"
        with Answering(self._console, waiting) as shown:
            self._shown = shown

            def hear(token: ReplyToken) -> None:
                if token.kind is not TokenKind.TEXT:
                    shown.think()
                    return
                has_begun = bool(repeated.shown)
                is_other, new = repeated.add(token)
                if is_other and has_begun:
                    shown.begin_anew()
                shown.hear(new)

            self._talk.on_retry = lambda *failed: shown.note(retry_words(*failed))
            self._talk.on_note = shown.note
            try:
                with self._answering_calls(shown):
                    sent = ask(hear)
            finally:
                self._shown = None
            if sent is not None and (other := repeated.end()):
                shown.begin_anew()
                shown.hear(other)
            if sent is not None and not repeated.shown:  # another process answered
                shown.hear(sent.reply.text)
        if sent is not None:
            self._call.screen.show(Span(reply_lines.footer(sent), "dim"))
            note_turn(self._call, turn_notes_of(self._call, self._talk.ledger, [sent.turn.id]))
        else:
            head = self._talk.head
            kept = "" if head in (None, before) else f"; what had come is kept as {short(str(head))}"
            self._call.screen.show(Span(f"interrupted{kept}", "warn"))

    @contextmanager
    def _answering_calls(self, shown: Answering) -> Iterator[None]:
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
        self._weft(verb, id)

    def _greet(self) -> None:
        talk = self._talk
        choice = talk.choice or talk.choose()
        fetched = [file.name for file in model_folder(os.environ.get).fetched()]
        for line in reply_lines.greeting(talk.label, talk.is_new, choice, keyed(os.environ.get), fetched):
            self._call.screen.show(*line)
        self._recall()

    def _recall(self) -> None:
        """The last exchanges, and what was typed before for the arrow keys."""
        exchanges = self._talk.exchanges(RECALLED)
        for one in exchanges:
            self._call.screen.show()
            for line in harmless(one.asked[:LONGEST_RECALL]).split("\n"):
                self._call.screen.show(Span("> ", "user"), line)
            with Answering(self._console, "") as shown:
                shown.hear(one.answered[:LONGEST_RECALL])
        if exchanges:
            self._call.screen.show()
        self._remember([one.asked for one in self._talk.exchanges(REMEMBERED)])

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
        for line in reply_lines.help_lines():
            self._call.screen.show(*line)

    def _fork(self, label: str) -> None:
        before, label = self._here(), label or self._talk.free_label()
        if self._weft("--quiet", "fork", before, label) in (OK, UNFINISHED):
            self._talk.switch(label)
            self._call.screen.show(Span(label, "label"), " goes on from here; ", Span(before, "label"), " stays")

    def _undo(self, _: str) -> None:
        asked = self._talk.last_exchange().asked
        if self._weft("--quiet", "undo", self._here()) in (OK, UNFINISHED):
            self._call.screen.show("undone: ", Span(asked.split("\n")[0][:60], "dim"), "; /redo brings it back")

    def _redo(self, _: str) -> None:
        if self._weft("--quiet", "undo", self._talk.label, "--redo") in (OK, UNFINISHED):
            again = self._talk.last_exchange().asked
            self._call.screen.show("again there: ", Span(again.split("\n")[0][:60], "dim"))

    def _model(self, name: str) -> None:
        if name:
            self._call.screen.show("answered by ", *reply_lines.who(self._talk.choose(name)))
            return
        current = self._talk.choice
        for model in self._talk.model_names():
            mark = "* " if current is not None and model == current.name else "  "
            self._call.screen.show(mark, Span(model, "label"))
        self._call.screen.show(Span("/model NAME chooses one; `weft model create` makes more", "dim"))

    def _steer(self, text: str) -> None:
        if not text:
            raise NotApplicable("say what the turn is to know", "/steer TEXT")
        self._answered(lambda hear: self._talk.steer(text, hear))

    def _compact(self, focus: str) -> None:
        from weft.surfaces.cli.commands.compact import make_compaction

        make_compaction(self._call, self._here(), "summary", focus or None, has_default_model=True)

    def _tree(self, _: str) -> None:
        self._weft("tree", self._here())

    def _cost(self, _: str) -> None:
        self._weft("usage", "--branch", self._here())

    def _switch(self, session: str) -> None:
        if not session:
            raise NotApplicable("say which session", "/switch SESSION; /sessions lists them")
        self._talk.switch(session)
        choice = self._talk.choose()
        self._call.screen.show("session ", Span(self._talk.label, "label"), ", answered by ", *reply_lines.who(choice))
        self._recall()

    def _show(self, turn: str) -> None:
        self._weft("show", turn or self._here())

    def _quit(self, _: str) -> None:
        self._is_over = True

    def _here(self) -> str:
        session = self._talk.session()
        if session is None or session.head is None:
            raise NotApplicable("nothing was said here yet", "say something first")
        return session.label

    def _weft(self, *arguments: str) -> int:
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
