"""Arguments that several commands take, and how a shell completes them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])


def complete_labels(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
    """The labels of active sessions. A shell in the middle of a line wants names or nothing, never an error."""
    from weft.kernel.errors import WeftError
    from weft.surfaces.cli.call import Call

    call = Call()
    call.ledger = ctx.params.get("ledger") or ctx.find_root().params.get("ledger")
    try:
        with call.reading() as ledger:
            labels = [session.label for session in ledger.sessions()]
    except (WeftError, OSError):
        return []
    return [label for label in labels if label.startswith(incomplete)]


MAIN = "main"
"""The session that is meant where none is named, as in `@{1}`."""


def rev(name: str = "rev", **details: Any) -> Callable[[F], F]:
    """A turn as people write it."""
    return click.argument(name, shell_complete=complete_labels, **details)


def session(name: str = "session", **details: Any) -> Callable[[F], F]:
    return click.argument(name, shell_complete=complete_labels, **details)


def after_option() -> Callable[[F], F]:
    return click.option("--after", metavar="CURSOR", help="The next page: from the cursor that the page before gave.")


def session_option(help: str) -> Callable[[F], F]:
    return click.option("--session", metavar="SESSION", shell_complete=complete_labels, help=help)
