"""What the commands that sync have in common: which ledger is meant, how it is opened, and what is told afterwards."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from weft.kernel.errors import InvalidInput, NotApplicable, NotFound
from weft.kernel.typed_names import Site, shell_word
from weft.surfaces.cli.call import Call
from weft.surfaces.cli.figures import counted, size_text
from weft.surfaces.cli.screen import Line, Span
from weft.surfaces.cli.user_files import named_ledger

COMMAND = "cmd:"
silence_option = click.option(
    "--silence",
    type=click.FloatRange(min=1),
    default=300.0,
    metavar="SECONDS",
    help="Give the other side up when it says nothing for so long; without it 300.",
)

if TYPE_CHECKING:
    from weft.exchange.sync import Remote, Synced
    from weft.ledger.api import Ledger


def complete_remotes(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
    """The names of remotes. A shell in the middle of a line wants names or nothing, never an error."""
    from weft.exchange.sync import remotes
    from weft.kernel.errors import WeftError

    try:
        with Call.completing(ctx).reading() as ledger:
            return [remote.name for remote in remotes(ledger) if remote.name.startswith(incomplete)]
    except (WeftError, OSError):
        return []


def address_of(name: str) -> str:
    """An address as it is kept: a path from the root, so that it means the same in every folder."""
    from weft.exchange.sync.commands import FORMS

    if not name:
        raise InvalidInput("the name of a ledger is empty", FORMS)
    if _is_address(name):
        return name
    return os.path.realpath(named_ledger(name) or name)


def checked_source(call: Call, name: str, *, shares_secret: bool) -> str:
    """The address of a ledger that is to be cloned: looked at before anything is made, where it can be. One that is not
    trusted gives its import secret to nobody."""
    from weft.exchange.sync.commands import program_of, without_password

    address = address_of(name)
    without_password(address)
    if program_of(address) is None:
        with call.looking(address) as ledger:
            if shares_secret:
                ledger.trust.ensure("share its import secret (to clone without it: --no-imports-secret)")
    return address


def _is_address(name: str) -> bool:
    return name.startswith(COMMAND) or Site.of(name).is_address


def chosen_remote(ledger: Ledger, name: str | None) -> Remote:
    """The remote of this name, or an address; without one the remote `origin`, or the only one there is."""
    from weft.exchange.sync import ORIGIN, Remote, remotes

    listed = remotes(ledger)
    if name is None:
        fit = [remote for remote in listed if remote.name == ORIGIN] or listed
        if not fit:
            hint = "give an address, or remember one: `weft remote add origin ADDRESS`"
            raise NotApplicable("no ledger is named, and no remote is remembered", hint)
        if len(fit) != 1:
            raise NotApplicable(
                f"{counted(len(listed), 'remote')} and none called {ORIGIN}",
                "name one, or give an address; `weft remote list` shows what there is",
            )
        return fit[0]
    chosen = next((remote for remote in listed if remote.name == name), None)
    if chosen is None:
        address = address_of(name)
        if not _is_address(address) and not Path(address).exists():
            raise NotFound("remote", name, "`weft remote list` shows them; a path or an address will do, too")
        chosen = Remote(name=name, address=address)
    return chosen


def sync_lines(synced: Synced, verb: str, preposition: str) -> Iterator[Line]:
    """What was moved, for people."""
    facts = f"{counted(synced.events, 'event')}, {counted(synced.contents, 'content')}"
    moved = synced.event_bytes + synced.content_bytes
    if synced.dry_run:
        most = " at most" if synced.contents else ""
        yield [f"would {verb} {facts} ({size_text(moved)}{most}) {preposition} ", Span(synced.address, "heading")]
    elif synced.events or synced.contents:
        past = {"pull": "pulled", "push": "pushed"}[verb]
        yield [f"{past} {facts} ({size_text(moved)}) {preposition} ", Span(synced.address, "heading")]
    else:
        yield [f"nothing to {verb} {preposition} ", Span(synced.address, "heading")]


def replica_of_source(call: Call, ledger: Ledger, source: str) -> str:
    """The replica that a remote is: the one that answered there first, else the remote is asked. Other words name a
    replica themselves."""
    from weft.exchange.sync import pull, remotes

    remote = next((remote for remote in remotes(ledger) if remote.name == source), None)
    if remote is None:
        return source
    return ledger.trust.pinned_replica(remote.address) or pull(ledger, remote.address, call.looking, dry=True).replica


def note_pending(call: Call, ledger: Ledger) -> None:
    """How much other ledgers decided that nobody here has taken over."""
    from collections import Counter

    from weft.programs import Programs

    decisions = Counter(
        item.kind if item.kind in ("approval", "erasure") else "configuration" for item in Programs(ledger).pending()
    )
    if decisions:
        counts = ", ".join(counted(count, kind) for kind, count in decisions.items())
        call.note(f"{counts} of other ledgers wait for your word: `weft pending`")


def note_rest(call: Call, ledger: Ledger, synced: Synced) -> None:
    """What waits for somebody's word now."""
    from weft.exchange.sync import refused_events

    if synced.erased:
        call.note(f"{counted(synced.erased, 'content')} came that were erased there, and were refused")
    if refused := refused_events(ledger):
        replicas = ", ".join(sorted({event.peer[-6:].lower() for event in refused}))
        call.note(f"{counted(len(refused), 'event')} told by {replicas} contradict this ledger and are left out")
    note_pending(call, ledger)
    for label in sorted({branch.label for branch in ledger.merges.branches()}):
        joining = f"`weft settle {shell_word(label)}` joins them"
        call.note(f"{label} was moved elsewhere, too: `weft sessions` shows where, {joining}")
