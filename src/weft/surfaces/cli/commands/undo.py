"""`weft undo`: the last turn of a session taken back, with its files."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import click

from weft.kernel.enums import RestoreOutcome
from weft.surfaces.cli import arguments
from weft.surfaces.cli.call import Call, undo
from weft.surfaces.cli.command import command as weft_command
from weft.surfaces.cli.default_session import require_named_or_latest
from weft.surfaces.cli.exits import OK, UNFINISHED
from weft.surfaces.cli.figures import counted
from weft.surfaces.cli.history import short
from weft.surfaces.cli.screen import Line, Span
from weft.surfaces.cli.turn_files_call import turn_files, written_paths
from weft.surfaces.plain_text import safe
from weft.surfaces.wire.turn_files import PlannedUndo, UndoneFiles, UndoneTurn

if TYPE_CHECKING:
    from weft.ledger.api import Ledger
    from weft.runtime.resources.turn_files import DirectoryChanges, TurnFiles, Undone, UndoPlan


@weft_command("undo")
@arguments.session(required=False)
@click.option("--redo", is_flag=True, help="Take the last undo back; again, the one before it.")
@click.option(
    "--files",
    type=click.Choice(("restore", "keep")),
    default="restore",
    help="Leave them as they are with `keep`: the conversation alone goes back.",
)
@click.option("--dry-run", is_flag=True, help="Show what would become of the head and of files; do nothing.")
@click.option("--force", is_flag=True, help="Also where another session works in the directory by now.")
def command(call: Call, session: str | None, redo: bool, files: str, dry_run: bool, force: bool) -> int:
    """Take back the last turn of a session, and its files.

    The head goes back by one turn, and the working directory to what it was before that turn changed it, also by
    commands of a shell. In a folder that is trusted for work, so do the references, HEAD and index of its git
    repository, and files that it ignores, but those that were too large to keep. What is there now is kept first:
    `weft undo --redo` brings both back, one undo after the other until the head is moved otherwise. Where it is not
    known what the directory was like, nothing is done, unless the files are to stay as they are. Of a turn that was
    imported nothing was kept: its files stay as they are. Without SESSION it is the latest one.

    Exits with 9 where the head moved and files could not be restored.
    """
    keeps_files = files == "keep"
    if redo and keeps_files:
        raise click.UsageError("--redo brings back what the undo took, files with it: leave --files out")
    with call.reading() if dry_run else call.writing() as ledger:
        name = require_named_or_latest(call, ledger, session, with_turn=not redo)  # an undo can leave it without one
        label = ledger.session(name).label
        turns = turn_files(ledger)
        if dry_run:
            plan = turns.plan_redo(label) if redo else turns.plan_undo(label, keeps_files=keeps_files)
            written = 0 if redo else _written(ledger, plan.before)
            return _show(call, turns, plan, _Outcome(written, keeps_files, is_done=False), force=force)
        done = turns.redo(label, force=force) if redo else turns.undo(label, force=force, keeps_files=keeps_files)
        answer = UndoneTurn(
            session=ledger.session(label),
            before_id=done.before,
            directories=_directories(done),
            notes=list(done.left),
        )
        outcome = _Outcome(0 if redo else _written(ledger, done.before), keeps_files, is_done=True)
    left: list[Line] = [[Span(f"  left as it was: {safe(note)}", "warn")] for note in answer.notes]
    moved = _line(label, done.before, done.head)
    call.answer(answer, moved, *_directory_lines(answer.directories, outcome), *left)
    call.note(undo("undo", label) if redo else undo("undo", label, "--redo"))
    return UNFINISHED if any(one.error is not None for one in answer.directories) else OK


class _Outcome(NamedTuple):
    """What is told where no directory is restored: how many files the turn wrote, and whether they were to stay."""

    written: int
    keeps_files: bool
    is_done: bool

    def __str__(self) -> str:
        if self.written == 0:
            return f"no files {'were' if self.is_done else 'would be'} touched"
        they = "it stays as it is" if self.written == 1 else "they stay as they are"
        wrote = f"this turn wrote {counted(self.written, 'file')}; "
        if self.keeps_files:
            return wrote + they
        return f"{wrote}what {'it was' if self.written == 1 else 'they were'} before it is not known, so {they}"


def _written(ledger: Ledger, turn: str | None) -> int:
    return 0 if turn is None else len(written_paths(ledger, turn))


def _show(call: Call, files: TurnFiles, plan: UndoPlan, outcome: _Outcome, *, force: bool) -> int:
    answer = PlannedUndo(
        label=plan.session,
        before_id=plan.before,
        head_id=plan.head,
        directories=[_counts(one) for one in files.present_changes(plan, force=force)],
    )
    moved = [*_line(plan.session, plan.before, plan.head), Span(" (nothing was done)", "dim")]
    call.answer(answer, moved, *_directory_lines(answer.directories, outcome))
    return OK


def _directories(done: Undone) -> list[UndoneFiles]:
    return [
        _counts(
            changes,
            None if one.outcome is RestoreOutcome.OK else one.error or "somebody works on them; it is done after them",
        )
        for one, changes in zip(done.restores, done.changes, strict=True)
    ]


def _counts(changes: DirectoryChanges, error: str | None = None) -> UndoneFiles:
    return UndoneFiles(
        place=changes.place,
        changed=changes.changed,
        removed=changes.removed,
        restored=changes.restored,
        is_whole=changes.is_whole,
        error=error,
    )


def _directory_lines(directories: list[UndoneFiles], outcome: _Outcome) -> list[Line]:
    if not directories:
        return [["  ", str(outcome)]]
    return [["  ", safe(one.place), ": ", *_files_line(one, is_done=outcome.is_done)] for one in directories]


def _files_line(one: UndoneFiles, *, is_done: bool) -> Line:
    if one.error is not None:
        return [Span(f"files were not restored: {safe(one.error)}", "bad")]
    counts = [f"{one.changed} changed", f"{one.removed} removed", f"{one.restored} restored"]
    are = "are" if is_done else "would be"
    kept = f"; git and the ignored files that were kept {are} as they were, new ignored files stay"
    beside = kept if one.is_whole else ""
    if one.changed + one.removed + one.restored == 0:
        return [f"no file differs{beside}"]
    paths = counted(one.changed + one.removed + one.restored, "path")
    return [f"{paths}{'' if is_done else ' would be'}: {', '.join(counts)}{beside}"]


def _line(label: str, before: str | None, head: str | None) -> Line:
    return [Span(label, "label"), ": ", *_place(before), " -> ", *_place(head)]


def _place(turn: str | None) -> Line:
    return [Span("no turn" if turn is None else short(turn), "id")]
