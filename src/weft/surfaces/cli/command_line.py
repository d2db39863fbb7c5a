"""What every command has in common: the call, which is one run of the program, what was
asked for around the command itself, and how its answer goes out; the shared options, before or
after a command's name, and help in one style; exit codes by the tree of errors, and errors as
people read them; questions that are answered yes or no.
"""

from __future__ import annotations

import errno
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.core import augment_usage_errors

from weft.kernel.enums import ProgramKind
from weft.kernel.errors import (
    Action,
    Advice,
    AmbiguousName,
    CodeFailed,
    Damaged,
    InvalidConfig,
    InvalidInput,
    LedgerError,
    NotFound,
    OutsideError,
    SessionBusy,
    StoreError,
    WeftError,
    error_code,
    hidden_address,
    without_credentials,
)
from weft.kernel.typed_names import shell_line, shell_word
from weft.surfaces.cli.screen import Line, LocalZone, Screen, Span, colours_wanted, stdout_screen, terminal_size
from weft.surfaces.cli.user_files import SERVERS, TOKEN_VARIABLE, find_ledger, named_ledger
from weft.surfaces.plain_text import safe, safe_lines
from weft.surfaces.wire.hints import phrase

if TYPE_CHECKING:
    from msgspec import Struct

    from weft.aio.ledger import AsyncLedger
    from weft.kernel.authority import Authority
    from weft.ledger.api import Ledger
    from weft.runtime.egress.context_tokens import TokenContent
    from weft.store.replicas import TrustStore
    from weft.surfaces.wire.forms import ErrorDocument


# --- One run of the program: what was asked for around the command itself, and how its answer goes out.


LedgerT = TypeVar("LedgerT", "Ledger", "AsyncLedger")
OWNER = "local"
"""Whoever opened the ledger, in whose name commands are run unless `--as` names somebody else."""


MOST_UNCOUNTED_EVENTS = 512
"""So many events a command counts by itself each time, before it stores what it counted."""
MOST_UNINDEXED_EVENTS = 2048
"""So many events that search does not know yet are looked through each time; more are indexed first."""


class Call:
    """The options that every command takes, wherever they stand on the command line."""

    def __init__(self) -> None:
        self.ledger: str | None = None
        self._actor = OWNER
        self._token: TokenContent | None = None
        self.token_text = ""
        self.json = self.quiet = self.no_color = self.no_pager = False
        self.on_note: Callable[[Line], None] | None = None
        """Takes notes in place of the error stream, while something draws on the terminal."""

    @classmethod
    def completing(cls, ctx: click.Context) -> Call:
        """Of a shell that asks how a line goes on: the ledger and the name that the line has so far."""
        call, line = cls(), ctx.find_root().params
        call.ledger = ctx.params.get("ledger") or line.get("ledger")
        call.act_as(ctx.params.get("actor") or line.get("actor") or OWNER, line.get("token_file"))
        call.ensure_token()
        return call

    def act_as(self, actor: str, token_file: str | None) -> None:
        """In whose name the command acts: whom `--as` names, or whom a token names that was given to this process."""
        self._actor = actor
        if token_file is None and TOKEN_VARIABLE not in os.environ:
            return
        from weft.surfaces.cli.credentials import given_token

        if actor != OWNER:
            raise InvalidInput("--as and the token both say who acts", "leave one of them out")
        self.token_text = given_token(token_file)

    @property
    def server(self) -> str | None:
        """The address of the server that is asked, where the ledger is one that is served."""
        name = named_ledger(self.ledger)
        return name if name is not None and name.startswith(SERVERS) else None

    @property
    def actor(self) -> str:
        """In whose name the command acts: never the owner's, where a token was given that does not count."""
        self.ensure_token()
        return self._actor

    @actor.setter
    def actor(self, name: str) -> None:
        self.ensure_token()
        self._actor = name

    @property
    def token(self) -> TokenContent | None:
        """What the command acts with instead of all that the person may do. Raises TokenRefused."""
        self.ensure_token()
        return self._token

    def ensure_token(self) -> None:
        """Refuse a token that does not count. One for a server is that server's to judge."""
        if self._token is not None or not self.token_text or self.server is not None:
            return
        from weft.surfaces.cli.credentials import verified_token

        self._token = verified_token(self.token_text)
        self._actor = self._token.ledger_authority.principal.id

    def of_owner(self) -> Call:
        """The same call in the name of whoever opened the ledger: for work that the process does for the person whom
        `--as` names."""
        other = copy(self)
        other.actor = OWNER
        return other

    def take(self, options: dict[str, Any]) -> None:
        """Options after the command add to those before it."""
        if options["ledger"] == "":  # a variable of a script that is not set: no other ledger is meant
            raise InvalidInput("--ledger is empty", "name a ledger, or leave --ledger out")
        self.ledger = options["ledger"] or self.ledger
        self.json |= options["json"]
        self.quiet |= options["quiet"]
        self.no_color |= options["no_color"]
        self.no_pager |= options["no_pager"]

    @cached_property
    def screen(self) -> Screen:
        return stdout_screen(no_color=self.no_color, no_pager=self.no_pager)

    @cached_property
    def trust_store(self) -> TrustStore:
        """The ledgers that this person trusts."""
        from weft.surfaces.cli.user_files import trust_store

        return trust_store()

    def reading(self) -> Ledger:
        """The ledger, for a command that never writes. One that an older version made is upgraded first."""
        from weft.kernel.errors import LedgerTooOld

        path = find_ledger(self.ledger)
        try:
            return self._open(path, create=False, read_only=True)
        except LedgerTooOld as old:
            self._open(path, create=False).close()
            self.note(f"upgraded the ledger from schema {old.found} to {old.known}")
        return self._open(path, create=False, read_only=True)

    def counting(self) -> Ledger:
        """The ledger, for a command that reads totals of usage: open for writing where much is not counted yet and that
        can be, so that they catch up. A backup stays as it is."""
        from weft.surfaces.opening import is_backup

        ledger = self.reading()
        if self._acting_as is not None or ledger.usage.lag() <= MOST_UNCOUNTED_EVENTS or is_backup(ledger):
            return ledger
        ledger.close()
        try:
            return self.writing()
        except StoreError:  # such as a folder that may only be read
            return self.reading()

    def searching(self) -> Ledger:
        """The ledger, for a command that looks for words. Where search is far behind, as after an import that was cut
        off, its index is brought up to date first; where nothing can be written, everything is looked through."""
        from weft.surfaces.cli.progress import progress

        ledger = self.reading()
        if ledger.upkeep.search_lag() <= MOST_UNINDEXED_EVENTS:
            return ledger
        ledger.close()
        try:
            with self.writing() as ledger, progress(self, "index") as bar:
                ledger.upkeep.catch_up(progress=bar.counted)
        except StoreError as error:
            self.note(f"the index cannot be brought up to date ({error}), so this takes longer")
        return self.reading()

    def graphing(self) -> Ledger:
        """The ledger, for a question about the agent graph, which is brought up to date first; where nothing can be
        written, it is made for this question alone."""
        from weft.graph.graph import Graph
        from weft.surfaces.cli.progress import progress

        try:
            ledger = self.writing()
        except StoreError:
            ledger = self.reading()
        with progress(self, "graph") as bar:
            Graph(ledger).catch_up(progress=lambda _stage, done, of: bar.counted(done, of))
        return ledger

    def writing(self) -> Ledger:
        return self._open(find_ledger(self.ledger), create=False)

    def looking(self, path: str) -> Ledger:
        """Another ledger that is there already, only to be looked at."""
        with _elsewhere():
            return self._open(path, create=False, read_only=True)

    def joining(self, path: str) -> Ledger:
        """Another ledger that is there already, to be written to."""
        with _elsewhere():
            return self._open(path, create=False)

    def copying(self) -> Ledger:
        """The ledger, for a command that copies it: open for writing, so that the copy is remembered, where that can
        be."""
        try:
            return self.writing()
        except Damaged:
            raise
        except StoreError:
            return self.reading()

    def making(self, path: str) -> Ledger:
        return self._open(path, create=True)

    def bringing(self, name: str) -> Ledger:
        """A ledger that is there already, as `--ledger` would name it, to bring something in."""
        from weft.kernel.errors import LedgerMissing

        try:
            return self._open(find_ledger(name), create=False)
        except LedgerMissing as missing:
            raise LedgerMissing(missing.path, f"`weft init {shell_word(missing.path)}` makes one there") from None

    def recovering(self, path: str) -> Ledger:
        return self._open(path, create=False, accept=True)

    def _open(self, path: str, *, create: bool, read_only: bool = False, accept: bool = False) -> Ledger:
        from weft.surfaces.cli.progress import progress
        from weft.surfaces.cli.trust import prepare_question, trusted_repositories
        from weft.surfaces.opening import open as open_ledger

        with progress(self, "upgrade") as bar:
            ledger: Ledger = open_ledger(
                path,
                create=create,
                read_only=read_only,
                accept_rollback=accept,
                zone=LocalZone(),
                trust=self.trust_store,
                acting_as=self._acting_as,
                repository_of=trusted_repositories(lambda: ledger.trust.is_trusted),
                progress=bar.staged,
            )
        if (token := self._token_here()) is not None:
            self._ensure_unrevoked(ledger, token)
        if not (self.json or self.quiet or token):
            prepare_question(ledger, self.note)
        return ledger

    def _ensure_unrevoked(self, ledger: Ledger, token: TokenContent) -> None:
        """A token that was revoked in the ledger, perhaps on another machine, opens it no longer."""
        from weft.programs.accounts import Accounts

        try:
            token.ensure_valid(0, Accounts(ledger).revoked_among(token.ids))
        except BaseException:  # whatever it was, nobody has the ledger now to close it
            ledger.close()
            raise

    def _token_here(self) -> TokenContent | None:
        """The token that was given, for whatever is done on this machine: one for a server counts here as it would
        without one, and never leaves the owner's rights behind. Raises TokenRefused."""
        if self.token is not None or not self.token_text:
            return self.token
        from weft.surfaces.cli.credentials import verified_token

        return verified_token(self.token_text)

    @property
    def _acting_as(self) -> Authority | str | None:
        if (token := self._token_here()) is not None:
            return token.ledger_authority
        return None if self.actor == OWNER else self.actor

    def in_name_of(self, actor: str, ledger: LedgerT) -> LedgerT:
        """A ledger that this call opened, in the name of whom `--as` behind the command names."""
        return ledger if actor == self.actor else ledger.acting_as(actor)

    def ensure_owner(self, command: str) -> None:
        """Refuse a command that works on files of the person, or on a ledger as a file, to anybody but its owner, and
        to a token of theirs."""
        acting_as = self._acting_as
        if acting_as is not None:
            from weft.kernel.authority import authority_of

            raise authority_of(acting_as).refusal(f"weft:{command}", f"run the command {command}")

    def answer(self, value: Struct | Sequence[Struct], *lines: Line) -> None:
        """The outcome: a JSON document, or lines for people."""
        if self.json:
            self.document(value)
        else:
            for line in lines:
                self.screen.show(*line)

    def document(self, value: Struct | Sequence[Struct]) -> None:
        """A record, or a list that is known whole, as one JSON document."""
        from weft.surfaces.wire.forms import document, form

        click.echo(document(form(value), indent=self.screen.terminal), color=True)

    def documents(self, records: Iterable[Struct]) -> None:
        """A list as one JSON document, written while it is read."""
        from weft.surfaces.wire.forms import form, list_document

        for line in list_document(map(form, records)):
            click.echo(line, color=True)

    def next_page(self, cursor: str | None) -> None:
        """On the error stream: the cursor that the next page is asked for with, if there is one. A person at a terminal
        asks for more lines instead of typing it."""
        if cursor is None:
            return
        if self.json:
            from weft.surfaces.wire.forms import document

            click.echo(document({"next": cursor}, indent=False), err=True)
        else:
            self.note("there are more: a larger -n shows them" if _is_read() else f"next page: --after {cursor}")

    def page_hint(self, cursor: str | None) -> str:
        """The same as the end of a note that says how to see more."""
        return "" if cursor is None or _is_read() else f", the next page with --after {cursor}"

    def note(self, *line: Span | str, breaks_styles: bool = False) -> None:
        """Something a person may want to know beside the answer: what to do next, how to undo it. A line with styles
        stays whole on a narrow terminal, unless it is a long text."""
        if self.on_note is not None:
            self.on_note(line)
        elif not (self.quiet or self.json):
            self._show_aside(line, breaks_styles=breaks_styles)

    def wait_for(self, value: Struct, *line: Span | str) -> None:
        """Something that the command waits for: on the error stream under `--quiet`, too, and as a document under
        `--json`. Whoever reads neither would wait for ever."""
        if self.json:
            from weft.surfaces.wire.forms import document, form

            click.echo(document(form(value)), err=True)
        elif self.on_note is not None:
            self.on_note(line)
        else:
            self._show_aside(line)

    def _show_aside(self, line: Line, *, breaks_styles: bool = False) -> None:
        terminal = _is_read()
        aside = Screen(
            color=terminal and not self.no_color and colours_wanted(),
            unicode=False,
            terminal=terminal,
            columns=terminal_size(sys.stderr)[0],
            rows=0,
            paging=False,
        )
        for words in aside.wrap(line, breaks_styles=breaks_styles) if terminal else [line]:
            click.echo(aside.render(words), err=True, color=aside.color)


def _is_read() -> bool:
    """Whether notes go to a terminal."""
    return sys.stderr.isatty()


@contextmanager
def _elsewhere() -> Iterator[None]:
    """Where another ledger than the one in use is missing, its address is wrong: none is to be made."""
    from weft.kernel.errors import Action, LedgerMissing

    try:
        yield
    except LedgerMissing as missing:
        raise LedgerMissing(missing.path, Action.CHECK_ADDRESS) from None


def undo(*words: str) -> str:
    """The command that takes back what was just done."""
    return f"undo: weft {shell_line(words)}"


# --- What every command has in common: the shared options, before or after its name, and help in one style.

PATHS = ("file", "path", "receipt", "assets")
COMPLETION_VARIABLE = "_WEFT_COMPLETE"
"""Set by a shell that asks how a line goes on."""

ALL_COMMANDS = "weft.all_commands"
"""Set in the context of a help text that lists every command."""
MOVED = {"mcp-server": ("mcp",), "export-facts": ("facts", "export"), "import-facts": ("facts", "import")}
"""Names that commands had before, which still work, and are shown nowhere."""
SHARED = ("ledger", "json", "quiet", "no_color", "no_pager")


def shared_options() -> list[click.Parameter]:
    return [
        click.Option(
            ["--ledger"],
            metavar="PATH_OR_URL",
            type=click.Path(),
            help="The ledger to use; else WEFT_LEDGER, else .weft/ledger.db here or above, else the user's own.",
        ),
        click.Option(["--json"], is_flag=True, help="Answer with one JSON document."),
        click.Option(["-q", "--quiet"], is_flag=True, help="No notes, hints or progress; only what is waited for."),
        click.Option(["--no-color"], is_flag=True, help="Disable colours (or set NO_COLOR)."),
        click.Option(["--no-pager"], is_flag=True, help="Do not use a pager."),
    ]


def take_shared(ctx: click.Context) -> Call:
    """Move the shared options out of the command's own into the call."""
    call = ctx.ensure_object(Call)
    call.take({name: ctx.params.pop(name) for name in SHARED})
    return call


class SharedCommand(click.Command):
    """A command with the shared options; its function gets the call first."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.params += shared_options()

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        with augment_usage_errors(ctx):  # a fault that the parser finds then names this command's help
            return super().parse_args(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        take_shared(ctx).ensure_token()
        refuse_broken_text(ctx.params)
        return super().invoke(ctx)


class SharedGroup(click.Group):
    """A command that has commands of its own; all of them take the shared options."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.params += shared_options()

    def verb(self, name: str) -> Callable[[Callable[..., int | None]], SharedCommand]:
        """Make a function a command of this group."""

        def made(function: Callable[..., int | None]) -> SharedCommand:
            verb_command = command(name)(function)
            self.add_command(verb_command)
            return verb_command

        return made

    def list_commands(self, ctx: click.Context) -> list[str]:
        """In the order in which they were made."""
        return list(self.commands)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Without arguments it answers with its help, as `weft` does, unless it does something by itself."""
        if not args and self.no_args_is_help and not ctx.resilient_parsing:
            click.echo(ctx.get_help())
            ctx.exit()
        with augment_usage_errors(ctx):
            return super().parse_args(ctx, args)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args[0] not in self.commands and not args[0].startswith("-") and not ctx.resilient_parsing:
            near = " or ".join(f"`{name}`" for name in self._near_commands(ctx, args[0]))
            ctx.fail(f"{ctx.command_path} has no command {args[0]!r}" + (f"; did you mean {near}?" if near else ""))
        return super().resolve_command(ctx, args)

    def _near_commands(self, ctx: click.Context, name: str) -> list[str]:
        """The commands that a wrong name may mean: of this group, or of those that list and show programs."""
        from difflib import get_close_matches

        begun = [command_name for command_name in self.commands if command_name.startswith(f"{name}-")]
        if near := begun or get_close_matches(name, self.commands):
            return [f"{ctx.command_path} {command_name}" for command_name in near]
        root = ctx.find_root()
        if not isinstance(root.command, click.Group):
            return []
        if name == "list" and f"{self.name}s" in root.command.list_commands(root):
            return [f"{root.command_path} {self.name}s"]
        programs = root.command.get_command(root, "program")
        is_verb = isinstance(programs, click.Group) and name in programs.commands
        is_kind = any(kind.startswith(str(self.name)) for kind in ProgramKind)
        return [f"{root.command_path} program {name}"] if is_verb and is_kind else []

    def invoke(self, ctx: click.Context) -> Any:
        take_shared(ctx)
        return super().invoke(ctx)


def refuse_broken_text(params: dict[str, Any]) -> None:
    """What is not text in the shell's encoding would be recorded as something else; paths may be any bytes."""
    for name, value in params.items():
        if name not in PATHS and isinstance(value, str) and any("\udc80" <= c <= "\udcff" for c in value):
            raise InvalidInput(f"{name} is not valid text in this locale", "use UTF-8, or pipe the turn as JSON")


def group(name: str, help: str, *commands: click.Command) -> SharedGroup:
    """Commands under one name."""
    return SharedGroup(name, {str(member.name): member for member in commands}, help=help)


def command(
    name: str, cls: type[SharedCommand] = SharedCommand
) -> Callable[[Callable[..., int | None]], SharedCommand]:
    """Make a function a command. It returns an exit code where that is not 0."""

    def made(function: Callable[..., int | None]) -> SharedCommand:
        return click.command(name, cls=cls)(click.pass_obj(function))

    return made


# --- Questions to the person at the terminal that are answered yes or no.


class Declined(click.ClickException):
    """The person at the terminal was asked, and answered no."""

    def __init__(self) -> None:
        super().__init__("nothing was changed")


class NobodyToAsk(click.ClickException):
    """A person has to answer, and nobody is at a terminal. `hint` says how to answer on the command line."""

    def __init__(self, message: str, hint: str) -> None:
        super().__init__(message)
        self.hint = hint


def is_person_there(call: Call) -> bool:
    """Whether a person reads what stands on the error stream, and can answer it."""
    return sys.stdin.isatty() and sys.stderr.isatty() and not call.json


def ask(question: str, *, default: bool = False) -> None:
    """Ask the person at the terminal. Raises Declined where the answer is no."""
    if not click.confirm(question, default=default, err=True):
        raise Declined


def confirm(call: Call, question: str, hint: str, *, is_sure: bool) -> None:
    """Ask, unless the answer stood on the command line. Where nobody can be asked nothing is done: `hint` says how to
    look first and say yes then."""
    if is_sure:
        return
    if not is_person_there(call):
        raise NobodyToAsk("nobody is there to say yes", hint)
    ask(question)


# --- What the program answers when it ends: exit codes by the tree of errors, and errors as people read them.

NO_SPACE = (errno.ENOSPC, errno.EDQUOT)
OK, DIFFERENT, USAGE, UNFINISHED, INTERRUPTED, BUG = 0, 1, 2, 9, 130, 70

EXIT_CODES = {
    OK: "it worked",
    DIFFERENT: "verify, audit, doctor, secrets, import, replay, resource or task run found problems, or diff"
    " --exit-code a difference",
    USAGE: "the command line is wrong",
    3: "there is no such session, turn, message, move or program, or the name could mean several",
    4: "a conflict: somebody else was first, the request does not fit the ledger's state, whoever acts may not, or the"
    " answer to a question was no, or nobody was there to give it",
    5: "the input cannot be recorded as it is",
    6: "the ledger is damaged: something stored is not what was written",
    7: "the file, the disk or the permissions are in the way, or there is no ledger",
    8: "an external dependency failed: a key, a server, a model's reply",
    UNFINISHED: "it was done in part: agent run or task run ended before the work did, or files of a fork, an undo or a"
    " merge could not be written",
    BUG: "internal error; please report the traceback",
    INTERRUPTED: "interrupted from the keyboard",
}
CODE_OF: dict[type[BaseException], int] = {
    click.ClickException: USAGE,
    Declined: 4,
    NobodyToAsk: 4,
    NotFound: 3,
    AmbiguousName: 3,
    LedgerError: 4,
    InvalidInput: 5,
    Damaged: 6,
    StoreError: 7,
    OutsideError: 8,
    WeftError: 7,
    OSError: 7,
}


CLICK_CODES: dict[type[BaseException], str] = {Declined: "declined", NobodyToAsk: "nobody_to_ask"}


def exit_code(error: BaseException) -> int:
    """The code of the nearest class that has one."""
    return next((CODE_OF[kind] for kind in type(error).__mro__ if kind in CODE_OF), BUG)


def published_code(error: BaseException) -> str:
    """The code of an error, also of one that only a command line knows."""
    if isinstance(error, click.ClickException):
        return CLICK_CODES.get(type(error), "usage")
    return "interrupted" if isinstance(error, KeyboardInterrupt) else error_code(error)


def error_document(error: BaseException) -> ErrorDocument:
    """An error as the JSON that stands on stderr under `--json`."""
    from msgspec import UNSET

    from weft.surfaces.wire.forms import ErrorDocument, ErrorForm

    advice = advice_for(error)
    shown = ErrorForm(
        code=published_code(error),
        message=message_of(error),
        hint=hint_of(error),
        action=advice.action,
        arguments=advice.arguments,
        printed=error.printed if isinstance(error, CodeFailed) else UNSET,
        again=again_of(error) or UNSET,
    )
    return ErrorDocument(error=shown)


def lines_of(error: BaseException) -> list[str]:
    """An error as it stands on a terminal: on one line, but for code, which has more to tell, and several faults."""
    if not (isinstance(error, CodeFailed) or (isinstance(error, InvalidConfig) and error.faults)):
        return [f"weft: {safe(message_of(error))}"]
    first, *more = safe_lines(message_of(error)) or [""]
    output = error.printed if isinstance(error, CodeFailed) else ""
    printed = [f"  printed: {line}" for line in safe_lines(output)] if output else []
    return [f"weft: {first}", *(f"  {line}" for line in more), *printed]


def message_of(error: BaseException) -> str:
    return without_credentials(_message_of(error))


def _message_of(error: BaseException) -> str:
    if isinstance(error, click.ClickException):
        return in_plain_words(" ".join(error.format_message().split()))  # click breaks lines where it lists choices
    if isinstance(error, OSError) and error.strerror:
        return f"{hidden_address(str(error.filename))}: {error.strerror}" if error.filename else error.strerror
    if isinstance(error, SessionBusy):
        from weft.store.replicas import owner_words

        return str(error).replace(error.owner, owner_words(error.owner))
    return str(error) or type(error).__name__


def in_plain_words(message: str) -> str:
    """What click says, in words of people and in the style of every other error: no capital, no full stop."""
    for pattern, words in PLAIN_WORDS:
        message = pattern.sub(words, message)
    if message[1:2].islower():
        message = message[0].lower() + message[1:]
    return message.removesuffix(".")


PLAIN_WORDS = (
    (re.compile(r"^Missing option '(-\w)' / '"), r"Missing option '\1 or "),
    (re.compile(r"^Missing (argument|option) '(.+?)'\.$"), r"the \1 \2 is missing"),
    (re.compile(r"^Missing (argument|option) '([^']+)'\. Choose from:? (.+)$"), r"the \1 \2 is missing: one of \3"),
    (re.compile(r"^Got unexpected extra argument \((.*)\)$"), r"there is one argument too many: \1"),
    (re.compile(r"^Got unexpected extra arguments \((.*)\)$"), r"there are too many arguments: \1"),
    (re.compile(r" is not a valid integer( range)?\.$"), " is no whole number."),
    (re.compile(r" is not a valid float( range)?\.$"), " is no number."),
    (re.compile(r"(\S+) is not in the range x>=(\S+)\.$"), r"\1 is less than \2."),
    (re.compile(r"(\S+) is not in the range x>(\S+)\.$"), r"\1 is not more than \2."),
    (re.compile(r"(\S+) is not in the range ([^\s<]+)<=x<=(\S+)\.$"), r"\1 is not between \2 and \3."),
)


def advice_for(error: BaseException) -> Advice:
    """What to do about an error, also about those that are not of the tree."""
    if isinstance(error, WeftError):
        return error.advice
    if isinstance(error, NobodyToAsk):
        return Advice(Action.OTHER, {}, error.hint)
    if isinstance(error, click.UsageError):
        return Action.READ_HELP.of(command="weft" if error.ctx is None else error.ctx.command_path)
    if isinstance(error, OSError):
        return Advice(Action.FREE_SPACE_THERE if error.errno in NO_SPACE else Action.CHECK_PATH)
    return Advice(Action.OTHER)


LIST_COMMANDS = {
    "agent": "agent list",
    "provider": "provider list",
    "model": "model list",
    "task": "task list",
    "trigger": "trigger list",
    "code": "code list",
    "toolset": "toolset list",
    "information": "info list --all",
    "human": "human list",
    "MCP server": "mcp list",
    "snapshot": "resource show RESOURCE",
}
"""By what is not there: the command that lists what is."""


LISTING = (Action.LIST_PROGRAMS, Action.LIST_HISTORY, Action.LIST_RESOURCES)


def hint_of(error: BaseException) -> str:
    advice = advice_for(error)
    listed = advice.action in LISTING and not advice.detail
    if listed and isinstance(error, NotFound) and error.what in LIST_COMMANDS:
        return f"`weft {shell_line(LIST_COMMANDS[error.what].split())}` lists them"
    return phrase(advice)


def again_of(error: BaseException) -> str:
    """The command line that asks again for what failed; empty where there is none."""
    return error.again if isinstance(error, WeftError) else ""
