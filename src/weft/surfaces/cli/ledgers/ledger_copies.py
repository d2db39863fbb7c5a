"""A ledger as a whole: `weft init`, `stats`, `pack`, `backup`, `copy` and `recover`, `doctor`,
`verify` and `rebuild`, and the files beside it, which are taken along and checked.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click
import msgspec
from msgspec import UNSET
from msgspec.structs import replace

from weft.kernel.enums import SnapshotState
from weft.kernel.errors import Action, InvalidInput, LedgerMissing, LedgerTooOld, LogCut, NotApplicable, Unsupported
from weft.kernel.events import Receipt
from weft.kernel.typed_names import Site, ensure_plain_path, shell_word
from weft.ledger.api import KeptReference, Ledger, Problem, ResourceLog, Snapshot
from weft.store.port import Diagnosis, DiagnosisSeverity, as_far_as_it_goes, error, good, note, warning
from weft.store.private_files import make_folder
from weft.store.replicas import COPIED, RECOVERED, identity_of
from weft.surfaces.cli.arguments import WrittenPath, complete_labels, read_input
from weft.surfaces.cli.command_line import DIFFERENT, OK, Call, exit_code, undo
from weft.surfaces.cli.command_line import command as weft_command
from weft.surfaces.cli.progress import awaited, counted, progress, size_text
from weft.surfaces.cli.screen import Span, local_time
from weft.surfaces.cli.trust import carry_trust, is_there
from weft.surfaces.cli.user_files import FOLDER, find_ledger, named_ledger, place_for, user_ledger
from weft.surfaces.cli.verb_commands import shows
from weft.surfaces.cli.work.sandbox_access import (
    command_notes,
    files_folder,
    folder_beside,
    kept_files,
    load_sandbox_settings,
)
from weft.surfaces.plain_text import safe
from weft.surfaces.wire.forms import form
from weft.surfaces.wire.hints import phrase
from weft.verbs.answers import (
    BackupFile,
    CarriedFilesForm,
    CopiedLedger,
    CreatedLedger,
    Examination,
    PackAnswer,
    RebuiltViews,
    RecoveryAnswer,
    SalvageAnswer,
    Verification,
)
from weft.verbs.exchange_answers import LedgerFigures
from weft.verbs.report_verbs import stats

if TYPE_CHECKING:
    from weft.ledger.api import Ledger, PackResult, SalvageResult


# --- The files that are kept beside a ledger, taken along by `backup`, `copy`, `clone` and `recover`.

files_option = click.option(
    "--no-files", is_flag=True, help="Leave the kept files of turns where they are; the copy tells where that is."
)


def folder_of(call: Call, address: str) -> Path:
    """Where the kept files of a ledger lie, by its address. One on a server is asked who it is."""
    if Site.of(address) is Site.FILE:
        return folder_beside(address)
    with call.looking(address) as ledger:
        return files_folder(ledger)


class FilesBeside:
    """The files of one ledger on their way to a copy of it."""

    def __init__(self, origin: str, source: Path, target: Path | None, *, is_left_out: bool = False) -> None:
        """From one folder to another; without one, `carry` is told it. `origin` is the ledger, as it is named."""
        self._origin, self._source, self._target = origin, source, target
        self._kept, self._is_left_out = kept_files(source), is_left_out
        self.carried = CarriedFilesForm(left_out=is_left_out and self._kept.is_there)

    @contextmanager
    def held(self) -> Iterator[None]:
        """While the ledger is copied nothing is removed that the copy may name."""
        with self._kept.hold():
            yield

    def carry(self, target: Path | None = None) -> None:
        """Before the copy can be opened, all that it names lies beside it."""
        folder = target or self._target
        if folder is None or not self._kept.is_there:
            return
        if self._is_left_out:
            kept_files(folder).leave_out(self._origin)
            return
        done = self._kept.copy_to(kept_files(folder))
        self.carried = CarriedFilesForm(snapshots=done.snapshots, files=done.files, damaged=done.damaged)

    def note_carried(self, call: Call) -> int:
        """What went along, for people; the code to end with."""
        carried = self.carried
        if carried.left_out:
            call.note(f"without the files of turns: they stay in {safe(str(self._source))}")
        elif carried.snapshots or carried.files:
            files = f", {counted(carried.files, 'other file')}" if carried.files else ""
            call.note(f"with {counted(carried.snapshots, 'snapshot')} of directories{files}")
        for name in carried.damaged:
            call.note(Span("not whole, left out: ", "bad"), safe(name))
        if carried.damaged:
            call.note("`weft verify` says what is wrong with them")
        return DIFFERENT if carried.damaged else OK


# --- `weft init`: a new ledger.


@weft_command("init")
@click.argument("path", required=False, type=click.Path())
@click.option("--user", is_flag=True, help="Make your own ledger, used wherever there is no nearer one.")
def init_command(call: Call, path: str | None, user: bool) -> None:
    """Make a ledger in a folder, or as a file.

    In the folder PATH (this one if none is given) the ledger is .weft/ledger.db; a PATH that ends in .db is the file
    itself, and postgresql://user@host/database?ledger=NAME a schema of a database. A ledger that is already there is
    left as it is. At a terminal you are asked whether agents may work in the folder: see `weft trust --help`.

    The folder .weft is kept out of git.
    """
    if path and user:
        raise click.UsageError("PATH and --user exclude each other")
    named = path if path and Site.of(path).is_address else named_ledger(call.ledger)
    if not user and named is not None and Site.of(named).is_address and path in (None, named):
        return _make_there(call, named)
    place = _place_of_ledger(named, path, user)
    is_new = not place.exists()
    if not user and (is_new or path is not None or named is None):
        _refuse_links(place)
    if is_new:
        ensure_plain_path(str(place))
        make_folder(place.parent)
        _hide_from_git(place.parent)
    _answer(call, str(place), is_new)
    if is_new and not user and place.parent.name == FOLDER:
        from weft.surfaces.cli.trust_commands import ask_about_work

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


def _place_of_ledger(named: str | None, path: str | None, user: bool) -> Path:
    if user:
        return user_ledger()
    if path is not None or named is None:
        return _without_way_up(place_for(path or "."))
    if Site.of(named) is Site.MEMORY:
        raise Unsupported(f"{named} is no place for a file", "give the path of a folder, or of a file ending in .db")
    return _without_way_up(Path(named))


def _without_way_up(path: Path) -> Path:
    """The absolute path without `..`. Behind the last `..` links stay links: those are refused."""
    parts = path.absolute().parts
    if ".." not in parts:
        return path.absolute()
    behind = len(parts) - parts[::-1].index("..")
    return Path(*parts[:behind]).resolve().joinpath(*parts[behind:])


def _refuse_links(ledger: Path) -> None:
    """In a folder that came from elsewhere a link leads to a ledger that the person trusts, or to where one would be
    made."""
    if ledger.parent.name == FOLDER:
        for place in (ledger.parent, ledger):
            if place.is_symlink():
                raise NotApplicable(
                    f"{place} is a link", "remove it, or name the ledger that it leads to with --ledger if you mean it"
                )


def _hide_from_git(folder: Path) -> None:
    """What agents said is not committed by accident with the code beside it."""
    if folder.name != FOLDER:
        return
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
    with suppress(FileExistsError):  # a link counts as there, wherever it leads
        descriptor = os.open(folder / ".gitignore", flags, 0o600)
        os.write(descriptor, b"*\n")
        os.close(descriptor)


# --- `weft stats`: how much there is.


@shows(stats)
def show_figures(call: Call, figures: LedgerFigures) -> None:
    readable = call.screen.terminal
    rows = [
        (name.replace("_", " ") if readable else name, _text(value, readable)) for name, value in form(figures).items()
    ]
    call.screen.table(rows, ("what", "value"))


def _text(value: object, readable: bool) -> str:
    """A figure, for people with its thousands set apart."""
    if isinstance(value, dict):
        return ", ".join(f"{_text(count, readable)} {name}" for name, count in value.items()) or "none"
    return f"{value:,}" if readable and isinstance(value, int) else str(value)


# --- `weft pack`: what is cold takes less room.

DEFAULT = "90d"


@weft_command("pack")
@click.argument("what", nargs=-1, metavar="[SESSION|TURN]...", shell_complete=complete_labels)
@click.option("--older-than", metavar="TIME", help="Only trees in which nothing happened since, such as 90d.")
@click.option("--undo", "back", is_flag=True, help="Unpack instead.")
@click.option("--dry-run", is_flag=True, help="Show how much it would save; pack nothing.")
def pack_command(call: Call, what: tuple[str, ...], older_than: str | None, back: bool, dry_run: bool) -> None:
    """Compress what is cold, or decompress it again.

    Whole trees are packed: those that the names lead to, or, without any, those in which nothing happened for 90 days.
    Everything stays addressable, readable, verified and exported as before; only a plain SQL shell cannot read the long
    texts of a packed tree. Kept files of turns take less room, too.

    docs/operating.md#making-a-ledger-smaller says more.
    """
    if back and (older_than or dry_run):
        raise click.UsageError("--undo takes names only")
    when = older_than or (None if what else DEFAULT)
    with call.writing() as ledger, progress(call, "pack") as bar:
        before = ledger.upkeep.disk_bytes()
        if back:
            done = ledger.upkeep.unpack(list(what), progress=bar.staged)
        else:
            done = ledger.upkeep.pack(list(what), older_than=when, dry_run=dry_run, progress=bar.staged)
        after = ledger.upkeep.disk_bytes()
        if not (back or dry_run):
            _pack_files(ledger)
    answer = PackAnswer(packed=done, dry_run=dry_run, file_bytes_before=before, file_bytes_after=after)
    call.answer(answer, [Span(_verb(back, dry_run), "good"), _words(done)])
    if done.contents and not dry_run:
        call.note(f"the ledger took {before:,} bytes and takes {after:,}")
        if not back:
            call.note(undo("pack", "--undo", *what))
    if not done.complete:
        call.note("somebody still reads what was there before: the room is given back once that has ended")
    if not (done.contents or back):
        call.note(_why_nothing(done, bool(what), when))


def _pack_files(ledger: Ledger) -> None:
    """Let the kept files of turns take less room, too, where there are any."""
    if ledger.resources.list(kind="directory", include_discarded=True):
        from weft.surfaces.cli.turn_files import turn_files

        turn_files(ledger).pack()


def _verb(back: bool, dry_run: bool) -> str:
    return "unpacked " if back else "would pack " if dry_run else "packed "


def _words(done: PackResult) -> str:
    contents = f"{counted(done.contents, 'content')} of {counted(done.trees, 'tree')}"
    return f"{contents}: {done.bytes:,} bytes, in packs {done.packed_bytes:,}"


def _why_nothing(done: PackResult, named: bool, when: str | None) -> str:
    if not done.trees and when is not None:
        return f"nothing is colder than {when}; name sessions to pack them anyway"
    return "nothing there is long enough to be worth it, or it is packed already"


# --- `weft backup`: a copy of one moment, while everybody goes on.


@weft_command("backup")
@click.argument("file", type=WrittenPath())
@files_option
def backup_command(call: Call, file: str, no_files: bool) -> int:
    """Copy the ledger while it is in use, with the files of turns.

    FILE must not exist yet; it is a ledger itself. The kept files of turns go to FILE-files. Exits with 1 if some of
    them are damaged and were left out.

    A backup is for the day when this ledger is lost. A second ledger to work in is made by `weft clone`, another place
    or another backend for this one by `weft copy`.

    Once the copy is written to, it goes by a name of its own; docs/operating.md#putting-a-backup-back says how to put
    it back after a loss.
    """
    with call.copying() as ledger, progress(call, "backup") as bar:
        files = FilesBeside(ledger.path, files_folder(ledger), folder_beside(file), is_left_out=no_files)
        with files.held():
            ledger.upkeep.backup(file, progress=bar.counted, beside=files.carry)
        is_trusted = ledger.trust.is_trusted
    if is_trusted:
        call.trust_store.allow(identity_of(file, None), COPIED)
    size = Path(file).stat().st_size
    answer = BackupFile(file=file, bytes=size, kept=files.carried)
    call.answer(answer, ["copied to ", Span(file, "heading"), f" ({size:,} bytes)"])
    return files.note_carried(call)


# --- `weft copy`: a ledger at another address.


@weft_command("copy")
@click.argument("source", metavar="FROM", type=click.Path())
@click.argument("target", metavar="TO", type=click.Path())
@files_option
def copy_command(call: Call, source: str, target: str, no_files: bool) -> int:
    """Copy a ledger to a new address, on any backend.

    FROM and TO are files or addresses; TO must not hold anything yet. The copy has the same facts in the same order
    with the same digests, and a replica id of its own; the kept files of turns go with it. One that was cut short is
    run again and goes on where it was. Exits with 1 if some of the files are damaged and were left out.

    A copy is for another place or another backend, such as from a file to PostgreSQL, and for putting a backup into
    use. `weft clone` makes a second ledger that syncs with this one, `weft backup` a safety copy.
    """
    from weft.surfaces.opening import copy

    source, target = named_ledger(source) or source, named_ledger(target) or target
    was_there = is_there(call.looking, target)
    place = folder_beside(target) if Site.of(target) is Site.FILE else None
    files = FilesBeside(source, folder_of(call, source), place, is_left_out=no_files)
    with progress(call, "copy") as bar, files.held():
        try:
            copied = copy(source, target, progress=bar.counted, beside=files.carry)
        except LedgerMissing as missing:
            raise LedgerMissing(missing.path, Action.CHECK_PATH) from None
        if place is None:  # of a ledger on a server it is known once that can be opened
            files.carry(folder_of(call, target))
    if not was_there:
        carry_trust(call.looking, call.joining, source, target, COPIED)
    facts = f"{counted(copied.events, 'event')}, {counted(copied.contents, 'content')}"
    answer = CopiedLedger(copied=copied, kept=files.carried)
    call.answer(answer, [f"copied {facts} to ", Span(copied.target, "heading")])
    call.note(f"it is replica {copied.replica}")
    return files.note_carried(call)


# --- `weft recover`: a ledger that lost something.


@weft_command("recover")
@click.option("--accept", is_flag=True, help="Go on from what is there; what is missing is given up.")
@click.option("--from", "backup", metavar="BACKUP", type=click.Path(), help="Put a backup in the ledger's place.")
@click.option(
    "--salvage",
    nargs=2,
    metavar="DAMAGED NEW",
    type=click.Path(),
    help="Make a new ledger of all that still verifies in a damaged file.",
)
@click.option(
    "--with", "others", multiple=True, metavar="FILE", type=click.Path(), help="An older copy that fills its holes."
)
def recover_command(
    call: Call, accept: bool, backup: str | None, salvage: tuple[str, str] | None, others: tuple[str, ...]
) -> int:
    """Recover what was lost: a backup, or what still verifies.

    A ledger remembers beside its database how much it has acknowledged. When the database holds less, or something
    else, nothing is opened until the newer copy is put back, a backup is put in its place with --from, or the loss is
    accepted. A file that cannot be read any more is searched with --salvage, page by page. No file is ever deleted.

    After an accepted loss the ledger goes on under a new replica id, and receipts for what it still holds stay good.
    --salvage exits with 1 if anything was lost. docs/operating.md#backups tells when to do what.
    """
    if salvage is not None:
        if accept or backup:
            raise click.UsageError("--salvage stands alone, or with --with")
        return _salvage(call, *salvage, others)
    if others:
        raise click.UsageError("--with belongs to --salvage")
    if backup is not None:
        _put_back(call, backup)
    return _accept(call, accept)


def _put_back(call: Call, backup: str) -> None:
    from weft.surfaces.opening import restore

    path = named_ledger(call.ledger) or str(_present(call))
    is_trusted = call.trust_store.is_file_trusted(backup)
    files = FilesBeside(backup, folder_beside(backup), folder_beside(path))
    with progress(call, "restore") as bar:
        restored = restore(backup, path, progress=bar.counted, beside=files.carry)
    if is_trusted:
        call.trust_store.allow(identity_of(path, None), RECOVERED)
    call.note(f"{backup} with {counted(restored.events, 'event')} lies at {path} now")
    if restored.replaced is not None:
        call.note(f"what lay there is {restored.replaced}")
    files.note_carried(call)
    if (origin := kept_files(folder_beside(backup)).origin) is not None:
        call.note(f"the backup was made without the files of turns: {safe(origin)} has them")


def _present(call: Call) -> str:
    from weft.kernel.errors import LedgerMissing

    try:
        return find_ledger(call.ledger)
    except LedgerMissing:  # its file is gone, which is why a backup is to take its place
        return str(place_for("."))


def _accept(call: Call, accept: bool) -> int:
    cut = _cut(call)
    if cut is None:
        call.answer(RecoveryAnswer(damaged=False), [Span("nothing to recover: the ledger is whole", "good")])
        return OK
    answer = RecoveryAnswer(damaged=True, acknowledged=cut.n, present=cut.found, message=str(cut))
    if not accept:
        call.answer(answer, [Span(str(cut), "bad")])
        call.note("put the newer copy back if there is one. `weft recover --accept` goes on without what is missing")
        return exit_code(cut)
    with call.recovering(find_ledger(call.ledger)) as ledger:
        replica = ledger.replica
    accepted = replace(answer, accepted=True, replica=replica)
    call.answer(accepted, [f"accepted at event {cut.found}; the ledger goes on as replica {replica}"])
    call.note("receipts for what is missing do not hold for it; run `weft verify` and make a backup")
    return OK


def _cut(call: Call) -> LogCut | None:
    try:
        call.reading().close()
    except LogCut as error:
        return error
    return None


def _salvage(call: Call, damaged: str, new: str, others: tuple[str, ...]) -> int:
    from weft.surfaces.opening import salvage

    with progress(call, "search") as bar:
        saved = salvage(damaged, new, others=others, progress=bar.staged)
    if call.trust_store.is_file_trusted(damaged):
        call.trust_store.allow(identity_of(new, None), RECOVERED)
    if call.json:
        call.document(SalvageAnswer(new=new, whole=saved.is_whole, salvaged=saved))
    else:
        _show_salvaged(call, saved, new)
    return OK if saved.is_whole else DIFFERENT


def _show_salvaged(call: Call, saved: SalvageResult, new: str) -> None:
    facts = f"{counted(saved.events, 'event')} and {counted(saved.contents, 'content')}"
    call.screen.show(f"saved {facts} to ", Span(new, "heading"))
    for first, last in saved.lost_events:
        call.screen.show(Span("lost", "bad"), f" events {first} to {last}")
    if saved.lost_events and saved.unproved_events:
        call.note(f"{counted(saved.unproved_events, 'line')} were found that nothing vouches for, and left out")
    if saved.missing_contents:
        call.screen.show(Span("lost", "bad"), f" {counted(saved.missing_contents, 'content')} that events name")
    if saved.unplaced_events:
        call.screen.show(
            Span("aside", "warn"),
            f" {counted(saved.unplaced_events, 'event')} that grow from something lost, in {saved.unplaced_file}",
        )
        call.note("older copies fill holes: `weft recover --salvage DAMAGED NEW --with OLDER`")
    if saved.is_whole:
        call.screen.show(Span("nothing is lost", "good"))


# --- The files beside a ledger, which `weft verify` checks, and the other files that `weft doctor` looks at.


class FileCheck:
    """Compares what snapshots hold with its hashes. Files of other ledgers need not be here."""

    def __init__(self, ledger: Ledger) -> None:
        self._kept = kept_files(files_folder(ledger))
        self._references = ResourceLog(ledger).kept_references()
        self.read = self.elsewhere = 0

    def problems(self) -> Iterator[Problem]:
        absent = {
            reference.snapshot for reference in self._kept.absent(self._references) if self._may_be_elsewhere(reference)
        }
        wanted = [reference for reference in self._references if reference.snapshot not in absent]
        self.elsewhere, self.read = len(absent), len(wanted)
        for problem in self._kept.problems(wanted):
            yield Problem("files", f"snapshot {problem.reference.snapshot}", problem.why)

    def _may_be_elsewhere(self, reference: KeptReference) -> bool:
        return not reference.is_own or self._kept.origin is not None

    def note_counts(self, call: Call) -> None:
        """What was looked at, for people."""
        if self.read:
            call.note(f"the kept files of {counted(self.read, 'snapshot')} are whole")
        if self.elsewhere:
            call.note(f"the files of {counted(self.elsewhere, 'snapshot')} are not here: another ledger has them")


def absent_snapshots(ledger: Ledger, snapshots: Sequence[Snapshot]) -> list[str]:
    """The ids of those whose files are not here: another ledger has them, or they are lost."""
    references = [
        KeptReference(snapshot=snapshot.id, kind=snapshot.external_kind, id=snapshot.external_id, is_own=True)
        for snapshot in snapshots
        if snapshot.state is SnapshotState.OK
        and snapshot.external_kind is not None
        and snapshot.external_id is not None
    ]
    return [one.snapshot for one in kept_files(files_folder(ledger)).absent(references)] if references else []


def examine_git() -> Diagnosis:
    """Which git keeps the files of turns."""
    from weft.runtime.sandbox.own_git import dotted, find_git, git_version

    try:
        program = find_git(path=os.environ.get("PATH", ""))
    except Unsupported as why:
        return note("git", str(why), "turns are recorded without their files", why.advice)
    return good("git", f"{program}, {dotted(git_version(program))}, keeps the files of turns")


def examine_commands() -> Iterator[Diagnosis]:
    """Commands of the sandbox whose weft was killed, so that nobody looked at what they left. Changes nothing."""
    from weft.runtime.sandbox.leftovers import CommandNotes

    for command in CommandNotes(command_notes()).interrupted():
        began = local_time(round(command.seconds * 1000))
        yield warning(
            "commands",
            safe(f"a command in {command.workspace}, begun at {began}, was cut off: weft was killed"),
            "what git would obey of what it left is still there",
            f"weft sandbox run --in {shell_word(command.workspace)} -- true",
        )


def examine_toolchains() -> Iterator[Diagnosis]:
    """What of the home folder a command in the sandbox is shown here, and to what this folder leads that it is not."""
    from weft.runtime.sandbox.toolchains import PersonalHome, find_toolchains

    here, settings = os.getcwd(), load_sandbox_settings()
    toolchains = find_toolchains(PersonalHome.of(os.environ.get), here, None, settings.readable)
    for row in toolchains.rows:
        yield good("toolchains", safe(f"{row.name} at {row.place}: {row.why}"))
    for program in toolchains.hidden:
        yield note("toolchains", safe(program.sentence))


def examine_files(ledger: Ledger) -> Iterator[Diagnosis]:
    """What is kept beside a ledger: how much, what is missing, and what somebody left there who died."""
    files, references = kept_files(files_folder(ledger)), ResourceLog(ledger).kept_references()
    absent = files.absent(references)
    lost = [reference for reference in absent if reference.is_own]
    if lost and files.origin is not None:
        yield note(
            "files", f"the files of {counted(len(lost), 'snapshot')} were left out of this copy", _at(files.origin)
        )
    elif lost:
        what = f"the files of {counted(len(lost), 'snapshot')} are not in {safe(str(files_folder(ledger)))}"
        yield error("files", what, "they cannot be brought back", "bring that folder back from a backup")
    if foreign := len(absent) - len(lost):
        yield note(
            "files", f"the files of {counted(foreign, 'snapshot')} of other ledgers are not here", "they stay there"
        )
    if not files.is_there:
        return
    here = {(reference.kind, reference.id) for reference in references} - {
        (reference.kind, reference.id) for reference in absent
    }
    size = size_text(files.size_bytes())
    yield good("files", f"{counted(len(here), 'state')} of resources kept beside the ledger, {size}")
    if unused := files.unused(references):
        what = f"{counted(len(unused), 'state')} kept there that no snapshot names"
        why = "whoever kept them died before that was recorded, or before they were thrown away"
        yield note("files", what, why, Action.FINISH_ERASURE)
    if begun := files.unfinished():
        why = "whoever was at them died, or is at them now"
        yield note("files", f"{counted(begun, 'unfinished restore')}, or removals", why, Action.RECONCILE_RESOURCES)


def _at(origin: str) -> str:
    return f"they are beside {safe(origin)}"


# --- `weft doctor`: what is wrong with a ledger, what to do, and what is here for talking to models.

STYLES = {
    DiagnosisSeverity.ERROR: "bad",
    DiagnosisSeverity.WARNING: "warn",
    DiagnosisSeverity.NOTE: "dim",
    DiagnosisSeverity.GOOD: "good",
}


@weft_command("doctor")
@click.option("--full", is_flag=True, help="Verify every fact and every view, too.")
@click.option("--strict", is_flag=True, help="Exit with 1 also for warnings.")
def doctor_command(call: Call, full: bool, strict: bool) -> int:
    """Explain what is wrong with a ledger, and what to do.

    It looks at the file, its place, who has it open, what was acknowledged, facts, views, open turns, imports, clocks
    and the kept files of turns, in whatever state they are, and changes nothing. Exits with 1 if there is an error.
    Beside the ledger it says what is here for talking to models and running code, and how to get what is not; that is
    never an error.

    docs/operating.md#the-doctor lists what it looks at.
    """
    findings: list[Diagnosis] = []
    for diagnosis in awaited(call, "doctor", _examined(call, full)):
        findings.append(diagnosis)
        if not call.json:
            _show(call, diagnosis)
    bad = sum(finding.grade is DiagnosisSeverity.ERROR for finding in findings)
    doubtful = sum(finding.grade is DiagnosisSeverity.WARNING for finding in findings)
    if call.json:
        call.document(Examination(ok=not bad, errors=bad, warnings=doubtful, findings=findings))
    elif bad or doubtful:
        call.note(f"{counted(bad, 'error')}, {counted(doubtful, 'warning')}")
    else:
        call.note("nothing is wrong" + ("" if full else "; `weft doctor --full` verifies everything"))
    return DIFFERENT if bad or (strict and doubtful) else OK


def _examined(call: Call, full: bool) -> Iterator[Diagnosis]:
    from weft.surfaces.opening import examine

    try:
        path = find_ledger(call.ledger)
    except LedgerMissing as missing:
        yield error("file", str(missing), "nothing can be opened", missing.advice)
    else:
        is_sound = True
        for diagnosis in examine(path, full=full):
            is_sound &= diagnosis.grade is not DiagnosisSeverity.ERROR
            yield diagnosis
        if is_sound:
            with suppress(LedgerTooOld):  # the next command upgrades it; the doctor changes nothing
                yield _trust(call, path)
                yield from _open_requests(call, path)
                with call.looking(path) as ledger:
                    yield from as_far_as_it_goes("files", partial(examine_files, ledger))
    yield examine_git()
    yield from as_far_as_it_goes("commands", examine_commands)
    yield from as_far_as_it_goes("toolchains", examine_toolchains)
    from weft.surfaces.cli.chat.conversation import examine_servers
    from weft.surfaces.cli.chat.models import examine_talking

    yield from examine_servers()
    yield from examine_talking(os.environ.get)


def _trust(call: Call, path: str) -> Diagnosis:
    """Whether this person lets the ledger act."""
    from weft.store.replicas import StoredTrust

    with call.looking(path) as ledger:
        trust = ledger.trust
        if trust.is_trusted or not isinstance(trust, StoredTrust):
            return good("trust", "you trust it: it may act for you")
        why = f"it may not act for you: {trust.doubt}"
    return note("trust", why, "reading and recording work", Action.TRUST_LEDGER.of(ledger=path))


def _open_requests(call: Call, path: str) -> Iterator[Diagnosis]:
    """Snapshots and restores that somebody asked for and nobody carried out."""
    from weft.ledger.api import ResourceLog

    with call.looking(path) as ledger:
        snapshots, restores = ResourceLog(ledger).pending()
    if snapshots or restores:
        open_ones = f"{counted(len(snapshots), 'snapshot')} and {counted(len(restores), 'restore')} of resources"
        why = "whoever asked for them ended before they were done, or is at them now"
        yield note("resources", f"{open_ones} are wanted and not done", why, Action.RECONCILE_RESOURCES)


def _show(call: Call, finding: Diagnosis) -> None:
    call.screen.show(
        Span(f"{finding.grade.value:<8}", STYLES[finding.grade]), Span(f"{finding.check:<12}", "dim"), finding.what
    )
    if finding.why:
        call.screen.show(" " * 20, Span(finding.why, "dim"))
    if mend := phrase(finding.advice):
        call.screen.show(" " * 20, "do: ", Span(mend, "heading"))


# --- `weft verify`: is everything as it was written?

_SHOWN = re.compile(r"^digest +([0-9a-f]{64})\r?\nreceipt +(\w{1,64}) ([0-9]{1,18}) ([0-9a-f]{64})\r?$", re.MULTILINE)
"""A receipt as `weft record` shows it; of several, the last one covers the most."""


@weft_command("verify")
@click.option("--facts-only", is_flag=True, help="Only events and contents against their hashes.")
@click.option("--views-only", is_flag=True, help="Only turns, sessions and the other views against the facts.")
@click.option("--files-only", is_flag=True, help="Only the kept files of turns against their hashes.")
@click.option(
    "--receipt",
    metavar="FILE",
    type=click.Path(),
    help="Also check the ledger against the receipt in FILE, which `weft record` printed.",
)
def verify_command(call: Call, facts_only: bool, views_only: bool, files_only: bool, receipt: str | None) -> int:
    """Check every fact, every view, and the kept files of turns.

    Exits with 1 if there is any problem.

    Each byte of the kept files (docs/branches.md#the-files-of-a-turn) is hashed, those that several snapshots have
    once. Files that another ledger keeps, or that were left out of a copy, are counted and are no problem.
    """
    if facts_only + views_only + files_only > 1:
        raise click.UsageError("--facts-only, --views-only and --files-only exclude each other")
    if files_only and receipt is not None:
        raise click.UsageError("a receipt is about facts: leave --files-only out")
    held = None if receipt is None else _read_receipt(receipt)
    problems: list[Problem] = []

    def show(problem: Problem) -> None:
        problems.append(problem)
        if not call.json:
            call.screen.show(Span(problem.what, "bad"), f" {problem.where}: {safe(problem.detail)}")

    with call.reading() as ledger, progress(call, "verify") as bar:
        if not files_only:
            for problem in ledger.verify(facts=not views_only, views=not facts_only, receipt=held, progress=bar.staged):
                show(problem)
        check = None if facts_only or views_only else FileCheck(ledger)
        for problem in () if check is None else check.problems():
            show(problem)
        erased = 0 if problems else ledger.upkeep.stats()["erased_contents"]
    read, elsewhere = (UNSET, UNSET) if check is None else (check.read, check.elsewhere)
    if problems:
        call.answer(Verification(ok=False, problems=problems, snapshots=read, files_elsewhere=elsewhere))
        mends = "Views: `weft rebuild` mends them. Facts and files: restore a backup."
        call.note(f"{counted(len(problems), 'problem')}. {mends}")
        return DIFFERENT
    answer = Verification(ok=True, problems=[], erased_contents=erased, snapshots=read, files_elsewhere=elsewhere)
    call.answer(answer, [Span("no problems", "good")])
    if check is not None:
        check.note_counts(call)
    if erased:
        call.note(f"{counted(erased, 'content')} erased: `weft erase --list` tells why")
    return OK


def _read_receipt(name: str) -> Receipt:
    data = read_input(name, "no receipt was given: name its FILE")
    if shown := _SHOWN.findall(data.decode("utf-8", "replace")):
        digest, replica, n, log = shown[-1]
        return Receipt(replica, int(n), log, digest)
    try:
        answer = msgspec.json.decode(data)
        return msgspec.convert(answer.get("receipt", answer) if isinstance(answer, dict) else answer, Receipt)
    except msgspec.DecodeError as error:
        raise InvalidInput(
            f"{name} is not a receipt: {error}", "keep what `weft record` answers, with --json or without"
        ) from error


# --- `weft rebuild`: every view from the facts.


@weft_command("rebuild")
def rebuild_command(call: Call) -> None:
    """Rebuild every view from the facts.

    Facts are never touched; readers go on meanwhile.
    """
    with call.writing() as ledger, progress(call, "rebuild") as bar:
        changed = ledger.upkeep.rebuild(progress=bar.staged)
    outcome = f"mended {counted(changed, 'row')}" if changed else "every view was right already"
    call.answer(RebuiltViews(changed=changed), [outcome])
