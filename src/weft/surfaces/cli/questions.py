"""Questions to the person at the terminal that are answered yes or no."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from weft.kernel.errors import InvalidInput

if TYPE_CHECKING:
    from weft.surfaces.cli.call import Call


class Declined(click.ClickException):
    """The person at the terminal was asked, and answered no."""

    def __init__(self) -> None:
        super().__init__("nothing was changed")


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
        raise InvalidInput("nobody is there to say yes", hint)
    ask(question)
