"""`weft trust`: which ledgers may act for this person."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import click

from weft.kernel.errors import NotApplicable
from weft.kernel.typed_names import Site
from weft.surfaces.cli.call import Call, undo
from weft.surfaces.cli.command import command as weft_command
from weft.surfaces.cli.sandbox_access import is_plainly_seen
from weft.surfaces.cli.screen import Span
from weft.surfaces.cli.trust import allowed_lines, describe_trust
from weft.surfaces.cli.user_files import find_ledger
from weft.surfaces.cli.work_trust import allow_work
from weft.surfaces.wire.upkeep import RevokedFolder, RevokedTrust, ShownSecret

if TYPE_CHECKING:
    from weft.ledger.api import Ledger
    from weft.store.replicas import StoredTrust, TrustedLedger


@weft_command("trust")
@click.argument("folder", required=False, metavar="[FOLDER]", type=click.Path())
@click.argument("path", required=False, metavar="[PATH]", type=click.Path())
@click.option(
    "--show",
    is_flag=True,
    help="List what trusting the ledger allows, and change nothing. With FOLDER: let commands see the file PATH of it.",
)
@click.option("--work", is_flag=True, help="Let agents work in FOLDER without asking; with --revoke, no longer.")
@click.option("--list", "listing", is_flag=True, help="List the ledgers and the folders that you trust.")
@click.option("--revoke", is_flag=True, help="Trust the ledger, or FOLDER, no longer, or hide PATH again.")
def command(
    call: Call, folder: str | None, path: str | None, show: bool, work: bool, listing: bool, revoke: bool
) -> None:
    """Manage trust in ledgers, in folders' rules and in folders for work.

    In a ledger that is not trusted everything can be read and recorded, and nothing acts: no command is started, no
    connection opened, no key sent, no program run, no approval taken, no history imported. Ledgers that you make,
    clone, copy or back up with weft are trusted. What you trust is kept in your state folder: by path, owner, inode
    and replica, or by server, database, schema and replica. What takes the place of a trusted ledger is not trusted.

    With FOLDER: its file AGENTS.md is read into the system prompt of messages that are sent from there. The file of a
    folder that is not trusted is never read.

    With FOLDER --work: in turns that you begin there, or in a folder in it, agents change files and run commands in
    the sandbox without asking, where no network is granted and `weft undo` can take it back, the git repository too.
    All else is asked about as before. It includes what FOLDER alone allows.

    With FOLDER --show PATH: commands in the sandbox that work in FOLDER see that file, which is hidden from them since
    such files commonly hold secrets. --revoke with FOLDER and PATH hides it again.
    """
    if show + listing + revoke > 1:
        raise click.UsageError("--show, --list and --revoke exclude each other")
    is_about_file, takes_file = path is not None, show or revoke
    if work and (folder is None or is_about_file or show):
        raise click.UsageError("--work stands with FOLDER, and perhaps with --revoke")
    if folder is not None and (listing or (is_about_file and not takes_file) or (show and not is_about_file)):
        raise click.UsageError("FOLDER stands alone, with --revoke, with --show PATH, or with --revoke PATH")
    if folder is not None and path is not None:
        _show_file(call, folder, path, revoke=revoke)
        return
    if folder is not None:
        _trust_folder(call, folder, work=work, revoke=revoke)
        return
    if listing:
        _list(call)
        return
    if revoke:
        _revoke(call)
        return
    with call.reading() if show else call.copying() as ledger:
        trust = _stored(ledger)
        is_new = not (show or trust.is_trusted)
        if is_new:
            trust.allow()
        answer = describe_trust(ledger, trust)
    if call.json:
        call.document(answer)
        return
    state = f"is trusted: {answer.how}" if answer.trusted else f"is not trusted: {answer.doubt}"
    call.screen.show(Span(answer.ledger, "heading"), f" {state}")
    for line in allowed_lines(answer):
        call.screen.show(*line)
    if is_new:
        call.note(undo("--ledger", answer.ledger, "trust", "--revoke"))


def _revoke(call: Call) -> None:
    """By its place: the ledger itself may be gone, or another one by now."""
    place = find_ledger(call.ledger)
    if Site.of(place) is Site.FILE:
        place = os.path.realpath(place)
    else:
        with call.reading() as ledger:
            place = _stored(ledger).identity.place
    was_trusted = call.trust_store.revoke(place)
    call.answer(
        RevokedTrust(ledger=place, was_trusted=was_trusted),
        [Span(place, "heading"), " is trusted no longer" if was_trusted else " was not trusted; nothing changed"],
    )


def _trust_folder(call: Call, folder: str, *, work: bool, revoke: bool) -> None:
    place = os.path.realpath(folder)
    if revoke:
        if work:
            _revoke_work(call, folder)
            return
        was_trusted = call.trust_store.revoke_folder(folder)
        what = " is trusted no longer" if was_trusted else " was not trusted; nothing changed"
        call.answer(RevokedFolder(folder=place, was_trusted=was_trusted), [Span(place, "heading"), what])
        return
    if work:
        what = " is trusted for work: agents change files and run commands in the sandbox there without asking"
        call.answer(allow_work(call, folder), [Span(place, "heading"), what])
        return
    trusted = call.trust_store.allow_folder(folder)
    call.answer(
        trusted, [Span(place, "heading"), " is trusted: agents are told its AGENTS.md in messages sent from there"]
    )
    call.note(undo("trust", place, "--revoke"))


def _revoke_work(call: Call, folder: str) -> None:
    place, granting = os.path.realpath(folder), call.trust_store.revoke_work(folder)
    if granting is None:
        what = " was not trusted for work; nothing changed"
    elif granting.place == place:
        what = " is trusted for work no longer; agents are told its rules still: --revoke without --work ends that"
    else:
        what = f" is trusted for work no longer; {granting.place}, which it lies in, still is"
    call.answer(RevokedFolder(folder=place, was_trusted=granting is not None), [Span(place, "heading"), what])


def _show_file(call: Call, folder: str, path: str, *, revoke: bool) -> None:
    place = os.path.realpath(folder)
    if revoke:
        was_shown = call.trust_store.hide_file(folder, path)
        state = " is hidden from commands again" if was_shown else " was not shown; nothing changed"
        call.answer(ShownSecret(folder=place, path=path, is_shown=False), [Span(path, "heading"), state])
        return
    if is_plainly_seen(place, path):
        state = f" is not hidden: commands that work in {place} see it already; nothing changed"
        call.answer(ShownSecret(folder=place, path=path, is_shown=True), [Span(path, "heading"), state])
        return
    shown = call.trust_store.show_file(folder, path)
    answer = ShownSecret(folder=place, path=shown.path, is_shown=True)
    call.answer(answer, [Span(shown.path, "heading"), f" is seen by commands that work in {place}"])
    call.note(undo("trust", place, "--revoke", shown.path))


def _stored(ledger: Ledger) -> StoredTrust:
    from weft.store.replicas import StoredTrust

    if not isinstance(ledger.trust, StoredTrust):
        raise NotApplicable("a ledger in memory is its maker's own", "name a file or a server")
    return ledger.trust


def _change(call: Call, known: TrustedLedger) -> str:
    """What became of a file that was trusted."""
    place = known.identity.place
    if known.identity.inode is None:
        return ""
    if not os.path.exists(place):
        return ", gone"
    return "" if call.trust_store.is_file_trusted(place) else ", another file is there now: not trusted"


def _list(call: Call) -> None:
    ledgers, folders = call.trust_store.ledgers(), call.trust_store.folders()
    shown = [ShownSecret(folder=file.folder.place, path=file.path, is_shown=True) for file in call.trust_store.shown()]
    if call.json:
        call.documents([*ledgers, *folders, *shown])
        return
    for known in ledgers:
        call.screen.show(Span(known.identity.place, "heading"), f"  {known.how}{_change(call, known)}")
    for folder in folders:
        is_same = call.trust_store.is_folder_trusted(folder.place)
        change = "" if is_same else ", gone, or another folder is there now: not trusted"
        call.screen.show(Span(folder.place, "heading"), f"  folder{', for work' if folder.is_for_work else ''}{change}")
    for file in shown:
        call.screen.show(Span(os.path.join(file.folder, file.path), "heading"), "  seen by commands")
    if not ledgers and not folders:
        call.note("you trust no ledger yet: `weft init` makes one")
