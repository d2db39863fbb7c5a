"""Which ledgers the person at the terminal trusts, and the question that is asked once about
any other; the repositories of folders on this machine, read off their `.git`: no command is run,
and little is read.
"""

from __future__ import annotations

import os
import re
import stat
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from weft.kernel.errors import InvalidInput
from weft.kernel.typed_names import Site, shell_line
from weft.surfaces.cli.user_files import trust_store
from weft.surfaces.plain_text import safe

if TYPE_CHECKING:
    from weft.ledger.api import Ledger
    from weft.store.replicas import StoredTrust
    from weft.surfaces.cli.screen import Line
    from weft.verbs.answers import TrustAnswer


Note = Callable[[str], None]

# --- Which ledgers the person at the terminal trusts, and the question that is asked about any other.

LISTED = 12
"""So many lines of what trust would allow stand above the question; `weft trust --show` lists all."""


def workspace_of(folder: str | None) -> str | None:
    """The folder that a message is sent from: the one that is named, else this one where the person trusts it."""
    if folder is not None:
        if not os.path.isdir(folder):
            raise InvalidInput(f"{folder} is no folder", "name a folder that is there")
        return os.path.realpath(folder)
    here = os.path.realpath(os.getcwd())
    return here if trust_store().is_folder_trusted(here) else None


def workspace_for(ledger: Ledger, session: str | None, turn: str | None = None, note: Note | None = None) -> str | None:
    """The folder that a message to a session, or after a turn, is sent from where nobody names one: the copy that a
    fork made for the session, else the folder that its last turn worked in, else this folder where the person trusts
    it. None where the session is configured for a folder: its turns work there, wherever a message is sent from, and
    whatever was restored for it. `note` is told where that is another one than whoever sends it would expect."""
    from weft.ledger.api import Runs

    if session is not None and Runs(ledger).configured_folder(session) is not None:
        return None
    copied = copied_workspace(ledger, session)
    kept, here = copied or last_workspace(ledger, session, turn), workspace_of(None)
    if kept is None:
        return here
    if os.path.isdir(kept):
        if note is not None and kept != os.path.realpath(os.getcwd()):
            why = "the copy that its fork made" if copied else "as the turn before"
            note(f"in {safe(kept)}, {why}; --in DIR names another folder")
        return kept
    if note is not None:
        where = "in no folder" if here is None else f"in {safe(here)}"
        note(f"{where}: {safe(kept)}, where the turn before worked, is not there any more")
    return here


def last_workspace(ledger: Ledger, session: str | None, turn: str | None) -> str | None:
    """The folder that the turn worked in which a message would be answered after, where it was one of this ledger's."""
    from weft.kernel.errors import NotFound
    from weft.ledger.api import Runs

    try:
        if turn is not None:
            head: str | None = ledger.point(turn).turn_id
        else:
            head = None if session is None else ledger.session(session).head
    except NotFound:
        return None  # a session that begins with the message
    return None if head is None else Runs(ledger).worked_folder(head)


def note_other_folder(ledger: Ledger, session: str | None, turn: str | None, folder: str, note: Note) -> None:
    """Say before a message is sent that it names another folder than its session worked in."""
    kept = last_workspace(ledger, session, turn)
    if kept not in (None, folder):
        note(f"in {safe(folder)}; the turn before worked in {safe(str(kept))}")


def turn_folder(ledger: Ledger, session: str | None) -> str | None:
    """Where turns work that begin with a message from here: the folder that the session is configured for, else the one
    that the message is sent from."""
    from weft.ledger.api import Runs

    configured = None if session is None else Runs(ledger).configured_folder(session)
    return configured or workspace_for(ledger, session)


def copied_workspace(ledger: Ledger, session: str | None) -> str | None:
    """The one directory of a session that Weft made for it, where it is there."""
    from weft.kernel.errors import NotFound
    from weft.ledger.api import Resources

    recorded = Resources(ledger)  # `ledger.resources` would load what acts on them
    try:
        owned = [] if session is None else recorded.list(session=session, kind="directory")
    except NotFound:
        return None  # a session that begins with the message
    made_folders = [
        directory.place
        for directory in owned
        if directory.is_own and directory.is_made and os.path.isdir(directory.place)
    ]
    return made_folders[0] if len(made_folders) == 1 else None


def is_there(looking: Callable[[str], Ledger], path: str) -> bool:
    """Whether there is a ledger already, whoever made it."""
    from weft.kernel.errors import LedgerMissing

    if Site.of(path) is Site.FILE:
        return os.path.lexists(path)
    try:
        looking(path).close()
    except LedgerMissing:
        return False
    return True


def carry_trust(
    looking: Callable[[str], Ledger], writing: Callable[[str], Ledger], source: str, target: str, how: str
) -> None:
    """A ledger that was made from a trusted one is trusted, too."""
    from weft.store.replicas import StoredTrust

    with looking(source) as ledger:
        is_trusted = ledger.trust.is_trusted
    if is_trusted:
        with writing(target) as ledger:
            if isinstance(ledger.trust, StoredTrust):
                ledger.trust.allow(how)


def is_granted(question: str) -> bool:
    """Ask the person at the terminal for their trust, in a command that goes on without it: the end of the input is a
    no. Ctrl-C ends the command."""
    import click

    try:
        return click.confirm(question, default=False, err=True)
    except click.Abort as aborted:
        if not isinstance(aborted.__context__, EOFError):
            raise
        click.echo("no: the input ended", err=True)
        return False


def prepare_question(ledger: Ledger, note: Callable[..., None]) -> None:
    """Where somebody is at the terminal, they are asked when something would act."""
    from weft.store.replicas import StoredTrust

    trust = ledger.trust
    if isinstance(trust, StoredTrust) and sys.stdin.isatty() and sys.stderr.isatty():
        trust.ask = lambda action: ask(ledger, trust, action, note)


def ask(ledger: Ledger, trust: StoredTrust, action: str, note: Callable[..., None]) -> bool:
    from weft.surfaces.cli.screen import Span

    note(Span(ledger.path, "heading"), f" would {action}, but {trust.doubt}")
    lines = list(allowed_lines(describe_trust(ledger, trust)))
    for line in lines[:LISTED]:
        note(*line)
    if len(lines) > LISTED:
        note(f"  … {len(lines) - LISTED} more: weft {shell_line(('--ledger', ledger.path, 'trust', '--show'))}")
    return is_granted("do you trust it?")


def describe_trust(ledger: Ledger, trust: StoredTrust) -> TrustAnswer:
    """Whether a ledger is trusted, and what it could do then."""
    from weft.exchange.sync import remotes
    from weft.programs import Programs
    from weft.programs.program_records import reach_of
    from weft.verbs.answers import TrustAnswer

    return TrustAnswer(
        ledger=trust.identity.place,
        trusted=trust.is_trusted,
        how=trust.how,
        doubt=None if trust.is_trusted else trust.doubt,
        remotes=remotes(ledger),
        reaches=[reach for program in Programs(ledger).all() for reach in reach_of(program)],
    )


def allowed_lines(answer: TrustAnswer) -> Iterator[Line]:
    """What trust allows, one line for each thing outside that the ledger names."""
    from weft.surfaces.cli.screen import Span

    for remote in answer.remotes:
        verb = "start the command" if remote.address.startswith("cmd:") else "connect to"
        yield ["  ", Span(f"remote {remote.name}", "label"), f" would {verb} {remote.address.removeprefix('cmd:')}"]
    for reach in answer.reaches:
        what = f"names the {reach.what} {reach.value}" if reach.what != "code" else f"would run {reach.value} code"
        yield ["  ", Span(f"{reach.kind} {reach.program}", "label"), f" {what}"]
    if not answer.remotes and not answer.reaches:
        yield ["  it names no remote, server, variable, folder or command"]


def ensure_own_session(ledger: Ledger, label: str, how: str) -> None:
    """Refuse to continue the default session unasked where its last turn was imported or came from another ledger.
    `how` says how whoever means it names it."""
    from weft.kernel.errors import NotApplicable, NotFound

    try:
        session = ledger.session(label)
    except NotFound:
        return
    for stranger in ledger.strangers(session.head) if session.head else ():
        verb = "imported from" if stranger.kind == "import" else "written by replica"
        raise NotApplicable(f"the last turn of {label!r} was {verb} {stranger.id}, not here", how)


# --- The repositories of folders on this machine, read off their `.git`: no command is run, and little is read.

GIT = ".git"
POINTER_BYTES = 4096
CONFIG_BYTES = 256 * 1024
MOST_LEVELS = 64
_HEADING = re.compile(r'\[\s*([\w.-]+(?:\s+"[^"]*")?)\s*\]')
_REMOTE = re.compile(r'remote\s+"([^"]*)"', re.IGNORECASE)
_SETTING = re.compile(r"(\w+)\s*=\s*(.+)")


def trusted_repositories(is_trusted: Callable[[], bool]) -> Callable[[str], str | None]:
    """Gives repositories of folders, and a folder itself that lies here and belongs to none; nothing where the ledger
    that names the folders is not trusted, as nothing on this machine is looked at for such a one."""
    trusted = cache(is_trusted)

    def repository_of(folder: str) -> str | None:
        if not trusted() or not _is_here(folder):
            return None
        return local_repository(folder) or folder

    return repository_of


@cache
def local_repository(folder: str) -> str | None:
    """The remote of the repository that a folder here belongs to, as `host/path`; of one without a remote its main
    folder, which all its worktrees share. None: no such folder, or no repository."""
    if not _is_here(folder):
        return None
    path = Path(os.path.normpath(folder))
    for place in (path, *path.parents)[:MOST_LEVELS]:
        try:
            mode = os.lstat(place / GIT).st_mode
        except OSError:
            continue
        try:
            shared = place / GIT if stat.S_ISDIR(mode) else _shared_folder(place)
            if shared is None:
                return None
            return _remote_address(shared) or str(shared.parent if shared.name == GIT else shared)
        except (OSError, ValueError):  # it is no file of git, or cannot be read
            return None
    return None


def _is_here(folder: str) -> bool:
    return os.path.isabs(folder) and not folder.startswith("//") and "\0" not in folder and os.path.isdir(folder)


def _shared_folder(place: Path) -> Path | None:
    """The folder of git that a `.git` file leads to: that of a submodule, or the one that a worktree shares with the
    others. None where that folder does not name this place as its own, as git writes it on both sides: a file alone
    would make any folder part of any repository."""
    lead, _, target = _read_beginning(place / GIT, POINTER_BYTES).partition(":")
    if lead != "gitdir":
        return None
    own = Path(os.path.normpath(place / target.strip()))
    try:
        common = _read_beginning(own / "commondir", POINTER_BYTES).strip()
    except FileNotFoundError:
        return own if _is_submodule(own, place) else None
    shared = Path(os.path.normpath(own / common))
    back = _read_beginning(own / "gitdir", POINTER_BYTES).strip()
    return shared if own.parent == shared / "worktrees" and _is_same(own / back, place / GIT) else None


def _is_submodule(own: Path, place: Path) -> bool:
    """Does a folder of git lie below the `modules` of a `.git`, with its files at this place?"""
    parts = own.parts
    if GIT not in parts or "modules" not in parts[parts.index(GIT) : -1]:
        return False
    files = dict(_settings(own)).get(("core", "worktree"))
    return files is not None and _is_same(own / files, place)


def _is_same(path: Path, other: Path) -> bool:
    return os.path.realpath(path) == os.path.realpath(other)


def _remote_address(shared: Path) -> str | None:
    """The address of `origin`, or of the first remote."""
    from weft.ledger.api import repository_name

    addresses: dict[str, str] = {}
    for (section, name), value in _settings(shared):
        if name == "url" and (remote := _REMOTE.fullmatch(section)) is not None:
            addresses.setdefault(remote[1], value)
    address = addresses.get("origin") or next(iter(addresses.values()), "")
    return repository_name(address)


def _settings(own: Path) -> Iterator[tuple[tuple[str, str], str]]:
    """What the configuration of a folder of git sets: sections and names, with their values."""
    section = ""
    for line in map(str.strip, _read_beginning(own / "config", CONFIG_BYTES).splitlines()):
        if line.startswith("["):
            heading = _HEADING.match(line)
            section = "" if heading is None else heading[1]
        elif (setting := _SETTING.fullmatch(line)) is not None:
            yield (section, setting[1].lower()), setting[2].strip().strip('"')


def _read_beginning(path: Path, most: int) -> str:
    from weft.exchange.importers.foreign_files import read_beneath

    return read_beneath(path, path.parent, most).decode("utf-8", "replace")
