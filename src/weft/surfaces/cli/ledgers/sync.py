"""Ledgers that share what they have: `weft clone`, `pull`, `push`, `pending`, `remote`,
`replica` and `sync-stdio`, and facts as lines with `facts export` and `facts import`. Which
ledger is meant, how it is opened, what is told afterwards.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import click

from weft.kernel.errors import InvalidInput, NotApplicable, NotFound
from weft.kernel.typed_names import Site, shell_word
from weft.ledger.api import Ledger, ResourceLog, Runs
from weft.store.private_files import make_folder
from weft.store.replicas import CLONED, StoredTrust
from weft.surfaces.cli.arguments import (
    STANDARD,
    ReadPath,
    RenamedOption,
    WrittenPath,
    complete_labels,
    piped_input,
    stdout_bytes,
)
from weft.surfaces.cli.command_line import OK, Call, SharedGroup, ask, confirm, group, is_person_there
from weft.surfaces.cli.command_line import command as weft_command
from weft.surfaces.cli.command_line import undo as undo_line
from weft.surfaces.cli.ledgers.ledger_copies import FilesBeside, files_option, folder_of
from weft.surfaces.cli.programs.program_call import F, as_actor, changing, looking
from weft.surfaces.cli.progress import counted, progress, size_text
from weft.surfaces.cli.screen import Line, Span, local_time
from weft.surfaces.cli.user_files import look_outside_of_work, named_ledger, place_for
from weft.surfaces.cli.work.sandbox_access import files_folder
from weft.verbs.answers import FactsFile, ReplicaName
from weft.verbs.exchange_answers import ClonedLedger, ListedRemote, Removed, RepinnedRemote

if TYPE_CHECKING:
    from weft.exchange.sync import CopiedFacts, Remote, Synced
    from weft.programs import Programs
    from weft.programs.program_records import PendingItem


# --- What the commands that sync have in common: which ledger is meant, how it is opened, and what is told afterwards.

COMMAND = "cmd:"
silence_option = click.option(
    "--timeout",
    "silence",
    cls=RenamedOption,
    old=("--silence",),
    type=click.FloatRange(min=1),
    default=300.0,
    metavar="SECONDS",
    help="Give up after SECONDS without data. Default: 300.",
)


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

    look_outside_of_work()
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

    look_outside_of_work()  # for `ssh`, or whatever program the address names
    listed = remotes(ledger)
    if name is None:
        fit = [remote for remote in listed if remote.name == ORIGIN] or listed
        if not fit:
            hint = "give an address, or remember one: `weft remote add origin ADDRESS`"
            raise NotApplicable("no ledger is named, and no remote is remembered", hint)
        if len(fit) != 1:
            raise NotApplicable(
                f"{counted(len(listed), 'remote')} and none called {ORIGIN}",
                "name one, or give an address; `weft remote list` lists them",
            )
        return fit[0]
    chosen = next((remote for remote in listed if remote.name == name), None)
    if chosen is None:
        address = address_of(name)
        if not _is_address(address) and not Path(address).exists():
            raise NotFound("remote", name, "`weft remote list` lists them; a path or an address can be given too")
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


# --- `weft clone`: a new ledger with everything of another one.


@weft_command("clone")
@click.argument("source", type=click.Path())
@click.argument("dest", required=False, type=WrittenPath())
@click.option("--no-imports-secret", is_flag=True, help="Imports there and here stay two trees.")
@files_option
@silence_option
def clone_command(
    call: Call, source: str, dest: str | None, no_imports_secret: bool, no_files: bool, silence: float
) -> int:
    """Make a new ledger with everything of another one.

    SOURCE is a path, postgresql://…, ssh://host/path or cmd:COMMAND. DEST is a folder, a file that ends in .db or a
    PostgreSQL address; without it, this folder. The import secret comes along, so that what both import later is one
    tree: clone to a ledger of the same owner, or say --no-imports-secret. SOURCE becomes the remote origin. The kept
    files of turns come along where SOURCE is on this machine, and stay there where it is reached by a command. A
    trusted file is copied where its views say the same in a clone; anything else is told and checked fact by fact. A
    clone that was cut short is run again and goes on where it was.

    Turns that have not ended there come as far as they were recorded, and a line says how many: no answer is made up
    for them, they go on there alone, and `weft pull` brings their end. docs/sharing.md#how-a-clone-is-made tells more.

    A clone is a second ledger to work in, which pulls and pushes. `weft copy` puts one ledger in another place, `weft
    backup` makes a safety copy.
    """
    from weft.exchange.sync import clone
    from weft.exchange.sync.commands import program_of

    address = checked_source(call, source, shares_secret=not no_imports_secret)
    place, is_near = _place(dest or "."), program_of(address) is None
    copied = _copied_file(call, address, place, shares_secret=not no_imports_secret) if is_near else None
    with call.making(place) as ledger:
        if isinstance(ledger.trust, StoredTrust) and ledger.trust.is_trusted:
            ledger.trust.allow(CLONED)
        files = _files(call, address, ledger, is_left_out=no_files) if is_near else None
        with progress(call, "clone") as bar, nullcontext() if files is None else files.held():
            done = clone(
                ledger,
                address,
                call.looking,
                secret=not no_imports_secret,
                report=bar.counted,
                silence_seconds=silence,
            )
            if files is not None:
                files.carry()
        done = done if copied is None else done.beside(copied)
        carried = None if files is None else files.carried
        unfinished = Runs(ledger).unfinished_turns()
        answer = ClonedLedger(
            path=ledger.path, created_as=ledger.replica, synced=done, kept=carried, unfinished=unfinished
        )
        facts = f"{counted(done.events, 'event')}, {counted(done.contents, 'content')}"
        call.answer(answer, [f"cloned {facts} to ", Span(ledger.path, "heading")])
        if unfinished:
            turns = (
                "1 turn has not ended: it is" if unfinished == 1 else f"{unfinished:,} turns have not ended: they are"
            )
            call.note(f"{turns} here as far as recorded, and only the other ledger goes on; `weft pull` brings the end")
        if files is None and ResourceLog(ledger).kept_references():
            call.note("the kept files of turns stay where the other ledger is")
        return OK if files is None else files.note_carried(call)


def _copied_file(call: Call, address: str, place: str, *, shares_secret: bool) -> CopiedFacts | None:
    """What came with the file of a ledger that can be cloned so; the rest is told fact by fact."""
    from weft.exchange.sync import ORIGIN, FileClone, Remote

    if Site.of(address) is not Site.FILE or Site.of(place) is not Site.FILE:
        return None
    origin = Remote(name=ORIGIN, address=address, shares_imports=shares_secret)
    with call.looking(address) as source, progress(call, "clone") as bar:
        return FileClone(source, origin, bar.staged).make_clone(Path(place), call.trust_store)


def _files(call: Call, address: str, ledger: Ledger, *, is_left_out: bool) -> FilesBeside:
    return FilesBeside(address, folder_of(call, address), files_folder(ledger), is_left_out=is_left_out)


def _place(dest: str) -> str:
    """Where the clone will lie; its folder is made."""
    if Site.of(dest).is_address:
        return dest
    place = place_for(dest).absolute()
    make_folder(place.parent)
    return str(place)


# --- `weft pull`: what another ledger has and this one lacks.

APPLIED = "the erasure of another ledger, applied with its pull"


@weft_command("pull")
@click.argument("remote", required=False, shell_complete=complete_remotes)
@click.option("--dry-run", is_flag=True, help="Show how much would come; pull nothing.")
@click.option("--apply-erasures", is_flag=True, help="What was erased there is erased here, too.")
@silence_option
def pull_command(call: Call, remote: str | None, dry_run: bool, apply_erasures: bool, silence: float) -> None:
    """Bring in what another ledger has and this one lacks.

    REMOTE is a name from `weft remote`, a path, postgresql://…, ssh://host/path or cmd:COMMAND; without it the remote
    origin, or the only one there is. Everything is verified before any of it can be seen. A pull that was cut short is
    run again and goes on where it was.
    """
    from weft.exchange.sync import pull

    with call.writing() as ledger:
        chosen = chosen_remote(ledger, remote)
        with progress(call, "pull") as bar:
            done = pull(ledger, chosen.address, call.looking, report=bar.counted, dry=dry_run, silence_seconds=silence)
        waiting = [] if dry_run or not apply_erasures else [tomb.ref for tomb in ledger.erasure.pending()]
        if waiting:
            ledger.erasure.erase(waiting, reason=APPLIED)
        call.answer(done, *sync_lines(done, "pull", "from"))
        if not dry_run:
            note_rest(call, ledger, done)


# --- `weft push`: what this ledger has and another one lacks.


@weft_command("push")
@click.argument("remote", required=False, shell_complete=complete_remotes)
@click.argument("sessions", nargs=-1, metavar="[SESSION]...", shell_complete=complete_labels)
@click.option("--dry-run", is_flag=True, help="Show how much would go; push nothing.")
@silence_option
def push_command(call: Call, remote: str | None, sessions: tuple[str, ...], dry_run: bool, silence: float) -> None:
    """Send what this ledger has and another one lacks.

    REMOTE is named as for `weft pull`. With SESSIONs, or a remote that was added with --sessions, only these sessions
    go, with every turn that they grow from; nothing that was said elsewhere leaves this ledger.
    """
    from weft.exchange.sync import push

    with call.writing() as ledger:
        chosen = chosen_remote(ledger, remote)
        with progress(call, "push") as bar:
            done = push(
                ledger,
                chosen.address,
                call.joining,
                sessions=sessions or chosen.sessions,
                report=bar.counted,
                dry=dry_run,
                silence_seconds=silence,
            )
        call.answer(done, *sync_lines(done, "push", "to"))
        if not dry_run:
            note_rest(call, ledger, done)


# --- `weft pending`: what other ledgers decided, and whether it counts here.

KINDS = ("code", "provider", "model", "session", "agent", "task", "information", "human", "approval", "erasure")
STYLES = {"waiting": "warn", "taken": "good", "refused": "bad"}
STATES = {"waiting": ", not taken over", "taken": ", taken over here", "refused": ", refused here"}
ID_LETTERS = 12


@click.pass_context
def _list_by_default(ctx: click.Context) -> None:
    if ctx.invoked_subcommand is None:
        show_pending(ctx.ensure_object(Call), None, None, False)


pending_command = SharedGroup(
    "pending",
    callback=_list_by_default,
    invoke_without_command=True,
    help="""Show what other ledgers decided, and take it over or refuse it.

    Configurations, answers of people and erasures that another ledger wrote do nothing here until somebody here takes
    them over. Without a command it lists what waits.""",
)


def complete_pending(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
    """Names and ids of what waits; with `undo` of what was decided."""
    from weft.kernel.errors import WeftError
    from weft.programs import Programs

    try:
        with Call.completing(ctx).reading() as ledger:
            items = Programs(ledger).pending(decided=ctx.info_name == "undo")
    except (WeftError, OSError):
        return []
    names = [name for item in items for name in (item.name, item.id[:ID_LETTERS])]
    return [name for name in dict.fromkeys(names) if name.startswith(incomplete)]


def _kind(function: F) -> F:
    return click.option("--kind", type=click.Choice(KINDS), help="Only of this kind.")(function)


def _source(function: F) -> F:
    return click.option(
        "--from", "source", metavar="REMOTE|REPLICA", shell_complete=complete_remotes,
        help="Only what this ledger wrote or brought: a remote's name, or a replica id or its last letters.",
    )(function)  # fmt: skip


@pending_command.verb("list")
@_kind
@_source
@click.option("--decided", is_flag=True, help="What was taken over or refused, instead of what waits.")
def list_pending(call: Call, kind: str | None, source: str | None, decided: bool) -> None:
    """List what waits, by arrival."""
    show_pending(call, kind, source, decided)


def show_pending(call: Call, kind: str | None, source: str | None, decided: bool) -> None:
    opening = looking(call) if source is None else changing(call, call.actor)  # a remote is asked which replica it is
    with opening as programs:
        replica = None if source is None else replica_of_source(call, programs.ledger, source)
        items = programs.pending(kind=kind, source=replica, decided=decided)
    if call.json:
        call.documents(items)
        return
    if not items:
        call.note("nothing was taken over or refused" if decided else "nothing of other ledgers waits for your word")
        return
    rows: list[list[Span | str]] = [
        [
            Span(item.id[:ID_LETTERS], "id"),
            item.kind,
            Span(item.name if item.kind != "erasure" else item.name[:16], "label"),
            item.what,
            *([Span(item.status, STYLES[item.status])] if decided else []),
            item.actor,
            (item.replica or "")[-8:],
            local_time(item.at),
        ]
        for item in items
    ]
    heads = ["id", "kind", "name", "what", *(["decided"] if decided else []), "by", "replica", "when"]
    call.screen.table(rows, heads, spare=["replica", "by", "kind"])
    hint = (
        "`weft pending undo NAME` lets one wait again" if decided else "`weft pending show NAME`, then take or refuse"
    )
    call.note(hint)


@pending_command.verb("show")
@click.argument("name", shell_complete=complete_pending)
def show_waiting_change(call: Call, name: str) -> None:
    """Show what another ledger decided, whole, and where it differs from what counts here."""
    with looking(call) as programs:
        items = _known(programs, name)
        configs = [programs.get(item.node).config if item.version is not None else None for item in items]
    if call.json:
        call.documents(items)
        return
    for item, config in zip(items, configs, strict=True):
        for line in _lines(item, config):
            call.screen.show(*line)


def _known(programs: Programs, name: str) -> list[PendingItem]:
    """What waits under this name, else what was decided under it."""
    with suppress(NotFound, NotApplicable):
        return programs.pending(name)
    return programs.pending(name, decided=True)


def _lines(item: PendingItem, counted_config: object) -> list[Line]:
    from weft.programs.program_records import differences
    from weft.surfaces.wire.forms import document

    lines: list[Line] = [
        [f"{item.kind} ", Span(item.name, "label"), f" {item.what}"],
        [Span("said by ", "dim"), item.actor, Span(" in replica ", "dim"), item.replica or "unknown",
         Span(STATES[item.status], STYLES[item.status])],
    ]  # fmt: skip
    if item.text is not None:
        lines.append([Span("says ", "dim"), item.text])
    if item.version is None:
        return lines
    if item.counted_version:
        lines.append([Span(f"differs from version {item.counted_version}, which counts here:", "dim")])
        lines += [
            [f"  {difference.how} {difference.path}: {document(difference.before)} → {document(difference.after)}"]
            for difference in differences(counted_config, item.config)
        ]
    else:
        lines.append([Span("nothing of it counts here so far", "dim")])
    return [*lines, *([line] for line in document(item.config, indent=True).split("\n"))]


@pending_command.verb("take")
@click.argument("names", nargs=-1, metavar="[NAME|ID]...", shell_complete=complete_pending)
@_kind
@_source
@click.option("-y", "--yes", is_flag=True, help="Skip the confirmation prompt.")
@as_actor
def take_over_pending(
    call: Call, names: tuple[str, ...], kind: str | None, source: str | None, yes: bool, actor: str
) -> None:
    """Let decisions of other ledgers count here: by name or id, or all of a kind or a source.

    A configuration that is taken over is used from now on, whatever it names: servers, variables, folders, commands.
    An erasure is carried out, which cannot be undone. A later version of the same program waits again.

    A person does this: an agent may not. On a terminal a kind or a source is listed first, and asked about; so are
    erasures, everywhere.
    """
    with changing(call, actor) as programs:
        replica = None if source is None else replica_of_source(call, programs.ledger, source)
        _require_choice(names, kind, source)
        items = programs.pending(*names, kind=kind, source=replica)
        if erasures := [item for item in items if item.kind == "erasure"]:
            _confirm_erasures(call, len(erasures), yes)
        elif items and not names:
            _confirm_several(call, items, yes)
        taken = programs.take_over(*(item.id for item in items)) if items else []
    _show_items(call, taken, "took over")
    if undoable := [item for item in taken if item.kind != "erasure"]:
        call.note(undo_line("pending", "undo", *(item.id[:ID_LETTERS] for item in undoable)))


def _require_choice(names: tuple[str, ...], kind: str | None, source: str | None) -> None:
    if not names and kind is None and source is None:
        raise click.UsageError("name what you mean, or say --kind or --from")


def _confirm_several(call: Call, items: list[PendingItem], yes: bool) -> None:
    """Somebody at a terminal who names a kind or a source sees what that takes over, and is asked."""
    if yes or not is_person_there(call):
        return
    for item in items:
        call.note(f"  {item.kind} ", Span(item.name, "label"), f" {item.what}")
    ask(f"let {counted(len(items), 'decision')} of another ledger count here?")


def _confirm_erasures(call: Call, count: int, yes: bool) -> None:
    hint = "look at it with `weft erase --apply --dry-run`, then say --yes"
    confirm(call, f"erase {counted(count, 'content')} for good?", hint, is_sure=yes)


@pending_command.verb("refuse")
@click.argument("names", nargs=-1, metavar="[NAME|ID]...", shell_complete=complete_pending)
@_kind
@_source
@as_actor
def refuse_pending(call: Call, names: tuple[str, ...], kind: str | None, source: str | None, actor: str) -> None:
    """Do not take decisions over, and do not list them any more."""
    with changing(call, actor) as programs:
        replica = None if source is None else replica_of_source(call, programs.ledger, source)
        _require_choice(names, kind, source)
        refused = programs.refuse(*names, kind=kind, source=replica)
    _show_items(call, refused, "refused")
    if refused:
        call.note(undo_line("pending", "undo", *(item.id[:ID_LETTERS] for item in refused)))


@pending_command.verb("undo")
@click.argument("names", nargs=-1, metavar="[NAME|ID]...", shell_complete=complete_pending)
@_kind
@_source
@as_actor
def undo_pending(call: Call, names: tuple[str, ...], kind: str | None, source: str | None, actor: str) -> None:
    """Let what was taken over or refused wait again; an erasure that was carried out stays so."""
    with changing(call, actor) as programs:
        replica = None if source is None else replica_of_source(call, programs.ledger, source)
        _require_choice(names, kind, source)
        waiting = programs.reconsider(*names, kind=kind, source=replica)
    _show_items(call, waiting, "waits again:")


def _show_items(call: Call, items: list[PendingItem], verb: str) -> None:
    if call.json:
        call.documents(items)
        return
    for item in items:
        call.screen.show(f"{verb} {item.kind} ", Span(item.name, "label"), f" {item.what}")
    if not items:
        call.note("nothing of other ledgers waits for your word")


# --- `weft remote`: other ledgers by a name.

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
def remote_command(
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


# --- `weft replica`: what a ledger goes by among its copies.


@weft_command("replica")
@click.option("--new", is_flag=True, help="Go by a new replica id from now on.")
@click.option("--forget", metavar="REPLICA", help="Forget what another replica said of itself.")
def replica_command(call: Call, new: bool, forget: str | None) -> None:
    """Show or change the id of this ledger among its copies.

    Copies made by `weft backup`, `weft copy` and `weft clone` have ids of their own. A file that was copied by other
    means has its origin's; once both go on, syncing refuses them, and --new, in both, tells them apart. Close other
    programs that have the ledger open first.
    """
    from weft.exchange.sync import forget_peer, mark_as_copy

    if forget is not None:
        with call.writing() as ledger:
            forget_peer(ledger, forget)
        call.note(f"forgot {forget}: the next sync with it begins anew")
    if new:
        with call.writing() as ledger:
            was = ledger.replica
            mark_as_copy(ledger)
        with call.writing() as ledger:
            call.answer(
                ReplicaName(replica=ledger.replica, was=was),
                ["this ledger goes by ", Span(ledger.replica, "id"), ", no longer by ", Span(was, "id")],
            )
        return
    with call.reading() as ledger:
        call.answer(ReplicaName(replica=ledger.replica), [Span(ledger.replica, "id")])


# --- `weft sync-stdio`: the other end of a sync.


@weft_command("sync-stdio")
@click.option("--read-only", is_flag=True, help="Let others pull, and refuse what they push.")
@click.option("--no-imports-secret", is_flag=True, help="Do not share the import secret.")
@silence_option
def sync_stdio_command(call: Call, read_only: bool, no_imports_secret: bool, silence: float) -> None:
    """Serve a ledger over standard input and output.

    This is what ssh://host/path runs on the other machine: `ssh host weft sync-stdio --ledger PATH`. It speaks bytes
    and ends when whoever asked has left.

    The protocol stands in docs/sharing.md#the-protocol-of-syncing-version-1.
    """
    from weft.exchange.sync import PipeStream, ServePermissions, serve
    from weft.surfaces.cli.arguments import stdin_bytes, stdout_bytes

    with call.reading() if read_only else call.writing() as ledger:
        serve(
            ledger,
            PipeStream(stdin_bytes(), stdout_bytes(), silence),
            ServePermissions(takes=not read_only, shares_secret=not no_imports_secret),
        )


# --- `weft facts`: the facts, as lines that another ledger can take in.

facts_command = group(
    "facts",
    """Export every fact as a JSON line, or import such lines.

    The lines are plain text for other programs, and for a ledger of another version. To move a ledger, `weft copy` and
    `weft clone` are quicker, and bring the kept files of turns along.
    """,
)


@facts_command.verb("export")
@click.argument("file", type=WrittenPath(), default=STANDARD)
def export_facts(call: Call, file: str) -> None:
    """Export every fact as a JSON line.

    FILE must not exist yet; without it, or with -, they go to standard output. Into an empty ledger the lines give the
    same digests.
    """
    with call.copying() as ledger:
        if file == STANDARD and call.screen.terminal:
            raise click.UsageError("facts are for files and pipes: stored text could control the terminal")
        with progress(call, "export") as bar:
            lines = ledger.upkeep.export_facts(stdout_bytes() if file == STANDARD else file, progress=bar.counted)
    if file != STANDARD:
        call.answer(FactsFile(file=file, lines=lines), [f"wrote {counted(lines, 'fact')} to ", Span(file, "heading")])


NO_FACTS = "no facts were given: pipe them in, or name a FILE"


@facts_command.verb("import")
@click.argument("file", type=ReadPath(), default=STANDARD)
def import_facts(call: Call, file: str) -> None:
    """Import facts from JSON lines.

    FILE is what `weft facts export` wrote; without it, or with -, standard input is read. Facts that are known already
    are passed over, so an import that was cut short is simply run again.
    """
    with call.writing() as ledger, progress(call, "import") as bar:
        source = piped_input(NO_FACTS) if file == STANDARD else file
        brought = ledger.upkeep.import_facts(source, progress=bar.counted)
    new = f"{counted(brought.events, 'new event')}, {counted(brought.contents, 'new content')}"
    call.answer(brought, [f"{new}, {brought.known:,} known already"])
    if brought.erased:
        call.note(f"{counted(brought.erased, 'content')} passed over: erased here, so not brought back")
    with call.reading() as ledger:
        note_pending(call, ledger)
