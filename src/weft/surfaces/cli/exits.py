"""What the program answers when it ends: exit codes by the tree of errors, and errors as people read them."""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING

import click

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
    StoreError,
    WeftError,
    error_code,
    hidden_address,
    without_credentials,
)
from weft.surfaces.cli.questions import Declined
from weft.surfaces.plain_text import safe, safe_lines
from weft.surfaces.wire.hints import phrase

if TYPE_CHECKING:
    from weft.surfaces.wire.forms import ErrorDocument

NO_SPACE = (errno.ENOSPC, errno.EDQUOT)
OK, DIFFERENT, USAGE, UNFINISHED, INTERRUPTED, BUG = 0, 1, 2, 9, 130, 70

EXIT_CODES = {
    OK: "it worked",
    DIFFERENT: "verify, audit, doctor, secrets, import, replay, resource or task run found problems, or diff"
    " --exit-code a difference",
    USAGE: "the command line is wrong",
    3: "there is no such session, turn, message, move or program, or the name could mean several",
    4: "a conflict: somebody else was first, the request does not fit the ledger's state, whoever acts may not, or the"
    " answer to a question was no",
    5: "the input cannot be recorded as it is",
    6: "the ledger is damaged: something stored is not what was written",
    7: "the file, the disk or the permissions are in the way, or there is no ledger",
    8: "something outside was not had: a key, a server, a model's reply",
    UNFINISHED: "it was done in part: agent run or task run ended before the work did, or files of a fork, an undo or a"
    " merge could not be written",
    BUG: "a fault of weft itself; the traceback is worth a report",
    INTERRUPTED: "interrupted from the keyboard",
}
CODE_OF: dict[type[BaseException], int] = {
    click.ClickException: USAGE,
    Declined: 4,
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


def exit_code(error: BaseException) -> int:
    """The code of the nearest class that has one."""
    return next((CODE_OF[kind] for kind in type(error).__mro__ if kind in CODE_OF), BUG)


def published_code(error: BaseException) -> str:
    """The code of an error, also of one that only a command line knows."""
    if isinstance(error, click.ClickException):
        return "declined" if isinstance(error, Declined) else "usage"
    return "interrupted" if isinstance(error, KeyboardInterrupt) else error_code(error)


def error_document(error: BaseException) -> ErrorDocument:
    """An error as the JSON that stands on stderr under `--json`."""
    from msgspec import UNSET

    from weft.surfaces.wire.forms import ErrorDocument, ErrorForm

    advice = advice_for(error)
    shown = ErrorForm(
        code=published_code(error),
        message=message_of(error),
        hint=phrase(advice),
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
        return " ".join(error.format_message().split())  # click breaks lines where it lists choices
    if isinstance(error, OSError) and error.strerror:
        return f"{hidden_address(str(error.filename))}: {error.strerror}" if error.filename else error.strerror
    return str(error) or type(error).__name__


def advice_for(error: BaseException) -> Advice:
    """What to do about an error, also about those that are not of the tree."""
    if isinstance(error, WeftError):
        return error.advice
    if isinstance(error, click.UsageError):
        return Action.READ_HELP.of(command="weft" if error.ctx is None else error.ctx.command_path)
    if isinstance(error, OSError):
        return Advice(Action.FREE_SPACE_THERE if error.errno in NO_SPACE else Action.CHECK_PATH)
    return Advice(Action.OTHER)


def hint_of(error: BaseException) -> str:
    return phrase(advice_for(error))


def again_of(error: BaseException) -> str:
    """The command line that asks again for what failed; empty where there is none."""
    return error.again if isinstance(error, WeftError) else ""
