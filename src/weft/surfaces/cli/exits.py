"""What the program answers when it ends: exit codes by the tree of errors, and errors as people read them."""

from __future__ import annotations

from typing import Any

import click

from weft.kernel.errors import (
    AmbiguousName,
    CodeFailed,
    Damaged,
    InvalidInput,
    LedgerError,
    NotFound,
    OutsideError,
    StoreError,
    WeftError,
)
from weft.surfaces.cli.plain_text import safe, safe_lines

OK, DIFFERENT, USAGE, INTERRUPTED, BUG = 0, 1, 2, 130, 70

EXIT_CODES = {
    OK: "it worked",
    DIFFERENT: "verify, audit, doctor, secrets, import or task run found problems, or diff --exit-code a difference",
    USAGE: "the command line is wrong",
    3: "there is no such session, turn, message, move or program, or the name could mean several",
    4: "a conflict: somebody else was first, the request does not fit the ledger's state, or whoever acts may not",
    5: "the input cannot be recorded as it is",
    6: "the ledger is damaged: something stored is not what was written",
    7: "the file, the disk or the permissions are in the way, or there is no ledger",
    8: "something outside was not had: a key, a server, a model's reply",
    BUG: "a fault of weft itself; the traceback is worth a report",
    INTERRUPTED: "interrupted from the keyboard",
}
CODE_OF: dict[type[BaseException], int] = {
    click.ClickException: USAGE,
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


def describe(error: BaseException) -> dict[str, str]:
    """An error as the JSON that stands on stderr under `--json`."""
    made = {"type": type(error).__name__, "message": message_of(error), "hint": hint_of(error)}
    return {**made, "printed": error.printed} if isinstance(error, CodeFailed) else made


def lines_of(error: BaseException) -> list[str]:
    """An error as it stands on a terminal: on one line, but for code, which has more to tell."""
    if not isinstance(error, CodeFailed):
        return [f"weft: {safe(message_of(error))}"]
    first, *more = safe_lines(message_of(error)) or [""]
    printed = [f"  printed: {line}" for line in safe_lines(error.printed)] if error.printed else []
    return [f"weft: {first}", *(f"  {line}" for line in more), *printed]


def message_of(error: BaseException) -> str:
    if isinstance(error, click.ClickException):
        return error.format_message()
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    return str(error) or type(error).__name__


def hint_of(error: BaseException) -> str:
    if isinstance(error, WeftError):
        return error.hint
    if isinstance(error, click.UsageError):
        return usage_hint(error.ctx)
    if isinstance(error, OSError):
        return "check the path and its permissions"
    return ""


def usage_hint(ctx: Any) -> str:
    path = ctx.command_path if ctx is not None else "weft"
    return f"`{path} --help` shows how it is used"
