"""`weft init`: a new ledger."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

import click

from weft.kernel.errors import LedgerMissing, NotApplicable, Unsupported
from weft.kernel.typed_names import Site, ensure_plain_path
from weft.store.private_files import make_folder
from weft.surfaces.cli.call import Call
from weft.surfaces.cli.command import command as weft_command
from weft.surfaces.cli.screen import Span
from weft.surfaces.cli.user_files import FOLDER, named_ledger, place_for, user_ledger
from weft.surfaces.wire.upkeep import CreatedLedger


@weft_command("init")
@click.argument("path", required=False, type=click.Path())
@click.option("--user", is_flag=True, help="Make your own ledger, used wherever there is no nearer one.")
def command(call: Call, path: str | None, user: bool) -> None:
    """Make a ledger in a folder, or as a file.

    In the folder PATH (this one if none is given) the ledger is .weft/ledger.db; a PATH that ends in .db is the file
    itself, and postgresql://user@host/database?ledger=NAME a schema of a database. A ledger that is already there is
    left as it is. At a terminal you are asked whether agents may work in the folder: see `weft trust --help`.
    """
    if path and user:
        raise click.UsageError("PATH and --user exclude each other")
    named = path if path and Site.of(path).is_address else named_ledger(call.ledger)
    if not user and named is not None and Site.of(named).is_address and path in (None, named):
        return _make_there(call, named)
    place = _place(named, path, user)
    is_new = not place.exists()
    if is_new:
        ensure_plain_path(str(place))
        if place.parent.name == FOLDER and place.parent.is_symlink():
            raise NotApplicable(f"{place.parent} is a link", "name the place that it leads to")
        make_folder(place.parent)
        _hide_from_git(place.parent)
    _answer(call, str(place), is_new)
    if is_new and not user and place.parent.name == FOLDER:
        from weft.surfaces.cli.work_trust import ask_about_work

        ask_about_work(call, str(place.parent.parent))


def _make_there(call: Call, address: str) -> None:
    """In a database: it is new if it cannot be opened without being made."""
    try:
        call.looking(address).close()
    except LedgerMissing:
        _answer(call, address, True)
    else:
        _answer(call, address, False)


def _answer(call: Call, place: str, is_new: bool) -> None:
    with call.making(place) as ledger:
        shown = ledger.path if Site.of(place).is_address else place
        answer = CreatedLedger(path=shown, created=is_new, replica=ledger.replica)
    outcome = "made a ledger at " if is_new else "there is a ledger already at "
    call.answer(answer, [outcome, Span(shown, "heading")])
    if is_new:
        call.note('record a turn with `weft record --query "…" --response "…"`, then look at it with `weft log`')


def _place(named: str | None, path: str | None, user: bool) -> Path:
    if user:
        return user_ledger()
    if path is not None or named is None:
        return place_for(path or ".").absolute()
    if Site.of(named) is Site.MEMORY:
        raise Unsupported(f"{named} is no place for a file", "give the path of a folder, or of a file ending in .db")
    return Path(named).absolute()


def _hide_from_git(folder: Path) -> None:
    """What agents said is not committed by accident with the code beside it."""
    if folder.name != FOLDER:
        return
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
    with suppress(FileExistsError):  # a link counts as there, wherever it leads
        descriptor = os.open(folder / ".gitignore", flags, 0o600)
        os.write(descriptor, b"*\n")
        os.close(descriptor)
