"""`weft remote`: other ledgers by a name."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from weft.kernel.typed_names import shell_word
from weft.surfaces.cli.arguments import complete_labels
from weft.surfaces.cli.call import Call
from weft.surfaces.cli.command import command as weft_command
from weft.surfaces.cli.figures import counted
from weft.surfaces.cli.screen import Line, Span
from weft.surfaces.cli.sync_call import address_of, chosen_remote, complete_remotes
from weft.surfaces.wire.exchange import ListedRemote, Removed, RepinnedRemote

if TYPE_CHECKING:
    from weft.exchange.sync import Remote
    from weft.ledger.api import Ledger

SHARED = {
    "same": "both have one import secret already",
    "taken": "its import secret was taken over",
    "given": "it took over the import secret of this ledger",
}


@weft_command("remote")
@click.argument("action", type=click.Choice(["list", "add", "remove", "show", "repin"]), default="list")
@click.argument("name", required=False, shell_complete=complete_remotes)
@click.argument("address", required=False, type=click.Path())
@click.option("--share-imports", is_flag=True, help="With add: have one import secret with it, from now on.")
@click.option(
    "--sessions",
    multiple=True,
    metavar="SESSION",
    shell_complete=complete_labels,
    help="With add: push these sessions only; may be given several times.",
)
def command(
    call: Call, action: str, name: str | None, address: str | None, share_imports: bool, sessions: tuple[str, ...]
) -> None:
    """Manage remotes: other ledgers, remembered by a name.

    An ADDRESS is a path, postgresql://user@host/database?ledger=NAME, ssh://host/path or cmd:COMMAND. A password in it
    is not kept. With --share-imports both ledgers name what they import alike, so that the same source is one tree;
    that is possible while one of them has imported nothing.

    Which replica answers at an address is remembered when it is first spoken to, and another one there is refused.
    After `weft remote repin NAME` (or ADDRESS) the next replica that answers there is taken for the right one.
    """
    if action == "list":
        _list(call)
    elif name is None:
        raise click.UsageError(f"say which remote: `weft remote {shell_word(action)} NAME`")
    elif action == "add":
        _add(call, name, address, share_imports, sessions)
    elif action == "remove":
        _remove(call, name)
    elif action == "repin":
        _repin(call, name)
    else:
        _show(call, name)


def _list(call: Call) -> None:
    from weft.exchange.sync import remotes

    with call.reading() as ledger:
        remote_list = [_listed(ledger, remote) for remote in remotes(ledger)]
    if call.json:
        call.documents(remote_list)
        return
    for remote in remote_list:
        call.screen.show(*_line(remote))
    if not remote_list:
        call.note("no remotes yet: `weft remote add NAME ADDRESS` remembers one")


def _listed(ledger: Ledger, remote: Remote) -> ListedRemote:
    """A remote with the replica that answered there first."""
    return ListedRemote.of(remote, ledger.trust.pinned_replica(remote.address))


def _line(remote: ListedRemote) -> Line:
    limited = f"  {counted(len(remote.sessions), 'session')} only" if remote.sessions else ""
    pinned: Line = [] if remote.replica is None else ["  is replica ", Span(remote.replica, "id")]
    sharing = "  shares imports" * remote.shares_imports
    return [Span(remote.name, "label"), "  ", remote.address, limited, sharing, *pinned]


def _add(call: Call, name: str, address: str | None, share: bool, sessions: tuple[str, ...]) -> None:
    from weft.exchange.sync import Remote, add_remote, share_imports

    if address is None:
        raise click.UsageError("say where it is: `weft remote add NAME ADDRESS`")
    with call.writing() as ledger:
        ids = tuple(ledger.session(session).id for session in sessions)
        wanted = Remote(name=name, address=address_of(address), sessions=ids, shares_imports=share)
        shared = share_imports(ledger, wanted.address, call.joining) if share else None
        added = _listed(ledger, add_remote(ledger, wanted))
    call.answer(added, _line(added))
    if shared is not None:
        call.note(SHARED[shared])


def _remove(call: Call, name: str) -> None:
    from weft.exchange.sync import remove_remote

    with call.writing() as ledger:
        remove_remote(ledger, name)
    call.answer(Removed(removed=name), ["forgot ", Span(name, "label")])


def _repin(call: Call, name: str) -> None:
    from weft.exchange.sync import repin_remote
    from weft.exchange.sync.commands import without_password

    with call.writing() as ledger:
        address = chosen_remote(ledger, name).address
        was = repin_remote(ledger, address)
    former: Line = ["; it was ", Span(was, "id")] if was is not None else []
    place = Span(without_password(address), "heading")
    call.answer(
        RepinnedRemote(repinned=name, was=was),
        ["the next replica at ", place, " is taken for the right one", *former],
    )


def _show(call: Call, name: str) -> None:
    from weft.exchange.sync import remote

    with call.reading() as ledger:
        shown_remote = _listed(ledger, remote(ledger, name))
        labels = [_label(ledger, session) for session in shown_remote.sessions]
    lines: list[Line] = [_line(shown_remote)]
    lines += [["  ", Span(label, "label")] for label in labels]
    call.answer(shown_remote, *lines)


def _label(ledger: Ledger, session: str) -> str:
    return next((listed.label for listed in ledger.sessions(every=True) if listed.id == session), session)
