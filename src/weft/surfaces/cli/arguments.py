"""Arguments and options that several commands take, how a shell completes them, the files
that they name; tools, projects and models that filters name and nobody knows.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, BinaryIO, TypeVar

import click
from msgspec import UNSET, UnsetType

if TYPE_CHECKING:
    from weft.ledger.api import Ledger


# --- Arguments and options that several commands take, how a shell completes them, and the files that they name.


class RenamedOption(click.Option):
    """An option that was spelled otherwise once: `old` are spellings that are still taken, and shown nowhere."""

    def __init__(self, *args: Any, old: Sequence[str], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.old = tuple(old)

    def add_to_parser(self, parser: Any, ctx: click.Context) -> None:
        shown, self.opts = self.opts, [*self.opts, *self.old]
        super().add_to_parser(parser, ctx)
        self.opts = shown


F = TypeVar("F", bound=Callable[..., Any])
Complete = Callable[[click.Context, click.Parameter, str], list[str]]
"""How a shell goes on with a word."""


def complete_labels(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
    """The labels of active sessions. A shell in the middle of a line wants names or nothing, never an error."""
    from weft.kernel.errors import WeftError
    from weft.surfaces.cli.command_line import Call

    try:
        with Call.completing(ctx).reading() as ledger:
            labels = [session.label for session in ledger.sessions()]
    except (WeftError, OSError):
        return []
    return [label for label in labels if label.startswith(incomplete)]


def complete_messages(*states: str) -> Complete:
    """The ids of messages in these states."""

    def complete(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
        from weft.kernel.errors import WeftError
        from weft.surfaces.cli.command_line import Call

        try:
            with Call.completing(ctx).reading() as ledger:
                ids = [message.id for message in ledger.inbox.list(states=states)]
        except (WeftError, OSError):
            return []
        return [id for id in ids if id.startswith(incomplete)]

    return complete


def complete_approvals(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
    """The ids of tool calls that wait for a person."""
    from weft.kernel.errors import WeftError
    from weft.surfaces.cli.command_line import Call
    from weft.verbs.answers import short_id

    try:
        with Call.completing(ctx).reading() as ledger:
            ids = [short_id(approval) for approval in ledger.approvals.list()]
    except (WeftError, OSError):
        return []
    return [id for id in ids if id.startswith(incomplete)]


def complete_nodes(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Sessions, and what has a name: programs, resources and policies."""
    from weft.kernel.errors import WeftError
    from weft.surfaces.cli.command_line import Call

    labels = complete_labels(ctx, param, incomplete)
    try:
        with Call.completing(ctx).reading() as ledger:
            from weft.programs import Programs

            named = [f"program:{program.name}" for program in Programs(ledger).all()]
            named += [f"resource:{resource.name}" for resource in ledger.resources.list()]
            named += [f"policy:{policy.name}" for policy in ledger.policies.list()]
    except (WeftError, OSError):
        return labels
    return [*labels, *(name for name in dict.fromkeys(named) if name.startswith(incomplete))]


def rev(name: str = "rev", **details: Any) -> Callable[[F], F]:
    """A turn as people write it."""
    return click.argument(name, shell_complete=complete_labels, **details)


def session(name: str = "session", **details: Any) -> Callable[[F], F]:
    return click.argument(name, shell_complete=complete_labels, **details)


def after_option() -> Callable[[F], F]:
    return click.option("--after", metavar="CURSOR", help="Start after this cursor, which the page before gave.")


def session_option(help: str) -> Callable[[F], F]:
    return click.option("--session", metavar="SESSION", shell_complete=complete_labels, help=help)


expected_option = click.option("--expected", metavar="REV", help="Fail unless the session's head is REV.")
key_option = click.option(
    "--key", metavar="KEY", help="Idempotency key: a retry with the same key has no further effect."
)


def original_option(command: F) -> F:
    return click.option("--original", is_flag=True, help="Show the recorded text, ignoring substitutions.")(command)


def expected_head(ledger: Ledger, rev: str | None) -> str | UnsetType:
    return UNSET if rev is None else ledger.resolve(rev)


def as_wanted(path: str) -> str:
    """A path that begins with a dot or `~` is a place on this machine; any other is looked for as it is written."""
    return os.path.abspath(os.path.expanduser(path)) if path.startswith((".", "~")) else path


STANDARD = "-"


def stdin_bytes() -> BinaryIO:
    return sys.stdin.buffer


def stdout_bytes() -> BinaryIO:
    return sys.stdout.buffer


def read_input(file: str | None, missing: str) -> bytes:
    """The bytes of a file, or of what is piped in; nobody types a whole document at a terminal."""
    if file not in (None, STANDARD):
        return read_named_file(str(file))
    return piped_input(missing).read()


def read_named_file(file: str, most: int = -1) -> bytes:
    """The bytes of a file that the person names, at most so many. Raises InvalidInput where a link that an agent may
    have made leads to another file."""
    from weft.surfaces.cli.work.sandbox_access import ensure_not_led_away

    with open(file, "rb") as opened:
        ensure_not_led_away(file, opened.fileno())
        return opened.read(most)


def read_named_text(file: str) -> str:
    """The same of a text."""
    from weft.kernel.contents import decode_utf8

    return decode_utf8(read_named_file(file), file)


class ReadPath(click.Path):
    """A file that is read elsewhere. Refused where a link that an agent may have made leads to another one."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        from weft.surfaces.cli.work.sandbox_access import ensure_not_led_away

        path = os.fsdecode(super().convert(value, param, ctx))
        if path != STANDARD and os.path.exists(path):
            ensure_not_led_away(path)
        return path


class WrittenPath(click.Path):
    """Where something is written. Refused where a link that an agent may have made leads elsewhere."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        from weft.surfaces.cli.work.sandbox_access import ensure_not_led_away

        path = os.fsdecode(super().convert(value, param, ctx))
        if path != STANDARD:
            ensure_not_led_away(path if os.path.exists(path) else os.path.dirname(path) or os.curdir)
        return path


def piped_input(missing: str) -> BinaryIO:
    if sys.stdin.isatty():
        raise click.UsageError(missing)
    return stdin_bytes()


# --- Values of filters that nothing fits: a tool, a project or a model that is not known is told apart from one of
# which nothing was found.

NO_PROJECT = "no project of that name is known: `weft projects` lists them"
NO_MODEL = "no model of that name is known: `weft usage --by model` lists them"


def ensure_known_origin(ledger: Ledger, origin: str | None, *, any_case: bool = False) -> None:
    """Refuse an `--origin` that found nothing and is neither a tool that is imported from nor one in the ledger."""
    from weft.verbs import session_verbs
    from weft.verbs.declaration import RequestError

    try:
        session_verbs.ensure_known_origin(ledger, origin, any_case=any_case)
    except RequestError as error:
        ctx = click.get_current_context(silent=True)
        raise click.UsageError(error.spelled(lambda _: "--origin"), ctx=ctx) from error
