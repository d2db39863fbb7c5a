"""One run of the program: what was asked for around the command itself, and how its answer goes out."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

import click

from weft.kernel.errors import InvalidInput
from weft.kernel.typed_names import shell_line, shell_word
from weft.surfaces.cli.screen import Line, Screen, Span, colours_wanted, stdout_screen, terminal_size
from weft.surfaces.cli.times import LocalZone
from weft.surfaces.cli.user_files import TOKEN_VARIABLE, find_ledger

if TYPE_CHECKING:
    from msgspec import Struct

    from weft.aio.ledger import AsyncLedger
    from weft.kernel.authority import Authority
    from weft.ledger.api import Ledger
    from weft.runtime.egress.context_tokens import TokenContent
    from weft.store.replicas import TrustStore


LedgerT = TypeVar("LedgerT", "Ledger", "AsyncLedger")
OWNER = "local"
"""Whoever opened the ledger, in whose name commands are run unless `--as` names somebody else."""


MOST_UNCOUNTED_EVENTS = 512
"""So many events a command counts by itself each time, before it stores what it counted."""


class Call:
    """The options that every command takes, wherever they stand on the command line."""

    def __init__(self) -> None:
        self.ledger: str | None = None
        self.actor = OWNER
        self.token: TokenContent | None = None
        """What the command acts with instead of all that the person may do."""
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
        return call

    def act_as(self, actor: str, token_file: str | None) -> None:
        """In whose name the command acts: whom `--as` names, or whom a token names that was given to this process."""
        self.actor = actor
        if token_file is None and TOKEN_VARIABLE not in os.environ:
            return
        from weft.surfaces.cli.token_files import given_token, verified_token

        if actor != OWNER:
            raise InvalidInput("--as and the token both say who acts", "leave one of them out")
        self.token_text = given_token(token_file)
        self.token = verified_token(self.token_text)
        self.actor = self.token.ledger_authority.principal.id

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
        from weft.surfaces.cli.trust import trust_store

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
        from weft.kernel.errors import StoreError
        from weft.surfaces.opening import is_backup

        ledger = self.reading()
        if self._acting_as is not None or ledger.usage.lag() <= MOST_UNCOUNTED_EVENTS or is_backup(ledger):
            return ledger
        ledger.close()
        try:
            return self.writing()
        except StoreError:  # such as a folder that may only be read
            return self.reading()

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
        from weft.kernel.errors import Damaged, StoreError

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
        from weft.surfaces.cli.repositories import trusted_repositories
        from weft.surfaces.cli.trust import prepare_question
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
        if not (self.json or self.quiet or self.token):
            prepare_question(ledger, self.note)
        return ledger

    @property
    def _acting_as(self) -> Authority | str | None:
        if self.token is not None:
            return self.token.ledger_authority
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
        from weft.surfaces.wire.forms import form
        from weft.surfaces.wire.json_text import document

        click.echo(document(form(value), indent=self.screen.terminal), color=True)

    def documents(self, records: Iterable[Struct]) -> None:
        """A list as one JSON document, written while it is read."""
        from weft.surfaces.wire.forms import form
        from weft.surfaces.wire.json_text import list_document

        for line in list_document(map(form, records)):
            click.echo(line, color=True)

    def next_page(self, cursor: str | None) -> None:
        """On the error stream: the cursor that the next page is asked for with, if there is one. A person at a terminal
        asks for more lines instead of typing it."""
        if cursor is None:
            return
        if self.json:
            from weft.surfaces.wire.json_text import document

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
            from weft.surfaces.wire.forms import form
            from weft.surfaces.wire.json_text import document

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
