"""What a terminal shows of branches of a conversation and their files: `weft fork`, `merge`,
`cherry-pick` and `summarize`, `undo` of the last turn, and `checkout` of the files of any.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, NamedTuple

from weft.kernel.typed_names import shell_line
from weft.surfaces.cli.command_line import DIFFERENT, OK, UNFINISHED, Call, confirm
from weft.surfaces.cli.command_line import undo as undo_line
from weft.surfaces.cli.ledgers.exports import ways_on
from weft.surfaces.cli.progress import counted
from weft.surfaces.cli.screen import Line, Span
from weft.surfaces.cli.turn_files import (
    MOST_LISTED,
    file_change,
    note_self_running,
    plan_lines,
    short_change_lines,
    skipped_lines,
    turn_files,
)
from weft.surfaces.cli.turn_lists import short
from weft.surfaces.cli.verb_commands import asks_first, shows
from weft.surfaces.plain_text import safe
from weft.verbs import branch_verbs as verbs
from weft.verbs.declaration import opt
from weft.verbs.exchange_answers import ForkPlan, ReconstructedFiles, UndoneFiles, UndoneTurn

if TYPE_CHECKING:
    from weft.ledger.api import Ledger


# --- `weft fork`: a new session that stands at any turn, with what it works with.


def _fork_code(answer: verbs.Fork | ForkPlan | verbs.UnbegunFork) -> int:
    return UNFINISHED if isinstance(answer, verbs.Fork) and not answer.is_whole else OK


@shows(verbs.fork, exit_code=_fork_code)
def show_forked(call: Call, answer: verbs.Fork | ForkPlan | verbs.UnbegunFork) -> None:
    if isinstance(answer, verbs.UnbegunFork):
        label, origin = safe(answer.label), safe(answer.origin)
        if answer.forked is None:
            call.note(f"{origin} has no turn: {label} would begin as it does")
            return
        call.screen.show(Span(answer.label, "label"), f" begins as {origin} does, without a turn")
        call.note(undo_line("delete", answer.label))
        return
    if isinstance(answer, ForkPlan):
        if not answer.resources:
            call.screen.show("the session works with nothing beside the conversation")
        for line in plan_lines(answer.resources, is_done=False):
            call.screen.show(*line)
        return
    for trusted in answer.trusted:
        how = "trusted for work" if trusted.for_work else "trusted"
        call.note(f"{safe(trusted.copy)} is {how} as {safe(trusted.original)} is")
    for why in answer.not_removed:
        call.note(Span(f"not removed, and tried again later: {why}", "warn"))
    session, copies = answer.forked.session, answer.forked.resources
    call.screen.show(Span(session.label, "label"), " stands at ", Span(short(str(session.head)), "id"))
    for line in plan_lines(copies, is_done=True):
        call.screen.show(*line)
    for copy in copies:
        if copy.changed_since:
            words = ("resource", "snapshot", copy.name, "--turn", str(session.head), "--again")
            call.note(f"the copy is of that turn; after `weft {shell_line(words)}` a fork has the present state")
    call.note(f"go on there {ways_on(session.label, answer.origin)}")


# --- `weft merge`, `cherry-pick` and `summarize`.


def _merge_code(answer: verbs.Merge) -> int:
    if answer.merged.conflicts:
        return DIFFERENT
    return OK if answer.error is None else UNFINISHED


@shows(verbs.merge, exit_code=_merge_code)
def show_merged(call: Call, answer: verbs.Merge, branch: str) -> None:
    merged = answer.merged
    if merged.turn is None:
        call.screen.show(f"{counted(len(merged.conflicts), 'path')} in conflict; nothing was changed")
        for obstacle in merged.conflicts:
            call.screen.show("  ", Span(safe(obstacle.path), "bad"), f"  {safe(obstacle.why)}")
        look = f"weft {shell_line(('checkout', branch, '--to', 'DIR'))}"
        call.note(f"look at the files of the branch with `{look}`, settle the conflicts, and try again")
        return
    files = "; no files were kept of it" if merged.place is None else f"; its files are in {safe(merged.place)}"
    call.screen.show(Span(short(merged.turn.id), "id"), " on ", Span(answer.label, "label"), files)
    note_self_running(call, merged.runs_by_itself)
    call.note(undo_line("undo", answer.label))
    if answer.error is not None:
        call.note(f"the files were not written: {safe(answer.error)}")


@shows(verbs.cherry_pick)
def show_picked(call: Call, picked: verbs.PickedTurns) -> None:
    for item in picked.items:
        label, source = Span(picked.label, "label"), Span(short(item.source_id), "id")
        call.screen.show(Span(short(item.turn.id), "id"), " on ", label, " from ", source)
    call.note(undo_line("restore", picked.label, *([str(len(picked.items))] if len(picked.items) > 1 else [])))


@shows(verbs.summarize)
def show_summarized(call: Call, answer: verbs.Summary) -> None:
    summary, label = answer.summary, answer.label
    line: Line = [Span(short(summary.turn.id), "id"), " on ", Span(label, "label"), " sums up the branch to "]
    line = [*line, Span(short(summary.source_id), "id")]
    if summary.left_id is not None:
        line = [*line, ", which left at ", Span(short(summary.left_id), "id")]
    call.screen.show(*line)
    call.note(undo_line("restore", label))


# --- `weft undo`: the last turn of a session taken back, with its files.


def _undo_code(answer: verbs.Undo) -> int:
    return UNFINISHED if any(directory.error is not None for directory in answer.undone.directories) else OK


@shows(verbs.undo, exit_code=_undo_code)
def show_undone(call: Call, answer: verbs.Undo, redo: bool, files: str) -> None:
    line: Line = [Span(answer.label, "label"), ": ", *_place(answer.before), " -> ", *_place(answer.head)]
    if not answer.is_done:
        line = [*line, Span(" (nothing was done)", "dim")]
    call.screen.show(*line)
    outcome = _Outcome(answer.written, files == "keep", is_done=answer.is_done)
    for directory_line in _directory_lines(answer.undone.directories, outcome):
        call.screen.show(*directory_line)
    if isinstance(answer.undone, UndoneTurn):
        for note in answer.undone.notes:
            call.screen.show(Span(f"  left as it was: {safe(note)}", "warn"))
        call.note(undo_line("undo", answer.label) if redo else undo_line("undo", answer.label, "--redo"))


def _place(turn: str | None) -> Line:
    return [Span("no turn" if turn is None else short(turn), "id")]


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


def _directory_lines(directories: list[UndoneFiles], outcome: _Outcome) -> list[Line]:
    if not directories:
        return [["  ", str(outcome)]]
    return [["  ", safe(files.place), ": ", *_files_line(files, is_done=outcome.is_done)] for files in directories]


def _files_line(files: UndoneFiles, *, is_done: bool) -> Line:
    if files.error is not None:
        return [Span(f"files were not restored: {safe(files.error)}", "bad")]
    counts = [f"{files.changed} changed", f"{files.removed} removed", f"{files.restored} restored"]
    are = "are" if is_done else "would be"
    kept_words = f"; git and the ignored files that were kept {are} as they were, new ignored files stay"
    beside = kept_words if files.is_whole else ""
    if files.changed + files.removed + files.restored == 0:
        return [f"no file differs{beside}"]
    paths = counted(files.changed + files.removed + files.restored, "path")
    return [f"{paths}{'' if is_done else ' would be'}: {', '.join(counts)}{beside}"]


def _moved_line(label: str, before: str | None, head: str | None) -> Line:
    return [Span(label, "label"), ": ", *_place_words(before), " -> ", *_place_words(head)]


def _place_words(turn: str | None) -> Line:
    return [Span("no turn" if turn is None else short(turn), "id")]


# --- `weft checkout`: the files of any turn, beside the working directory or over it.


@asks_first(verbs.checkout)
def ask_to_overwrite(
    call: Call,
    ledger: Ledger,
    rev: str,
    to: str | None,
    resource: str | None,
    yes: Annotated[
        bool, opt("Overwrite the working directory without asking.", "-y", "--yes", before="reconstruct")
    ] = False,
) -> None:
    """Show what would change in the directory, and ask."""
    if to is not None:
        return
    files = turn_files(ledger)
    snapshot = files.snapshot_of(ledger.resolve(rev), resource)
    place = ledger.resources.get(snapshot.resource)
    changes = [file_change(change) for change in files.changes_of_checkout(snapshot)]
    call.note(f"{counted(len(changes), 'path')} of {safe(place.place)} would change")
    for line in short_change_lines(changes):
        call.note(*line)
    if changes:
        confirm(call, "overwrite them?", "say --yes, or --to DIR for a folder beside it", is_sure=yes)


@shows(verbs.checkout)
def show_checked_out(call: Call, answer: verbs.Checkout | ReconstructedFiles) -> None:
    if isinstance(answer, ReconstructedFiles):
        files = f" has {counted(answer.files, 'file')} that "
        call.screen.show(safe(answer.place), files, Span(short(answer.turn_id), "id"), " tells of")
        _note_gaps(call, answer)
        return
    call.screen.show(safe(answer.files.place), " has the files of ", Span(short(answer.files.turn_id), "id"))
    for note in answer.files.notes:
        call.note(safe(note))
    if answer.snapshot.is_inferred:
        call.note("this is a reconstruction: what the session did not touch is not in it")
        for line in skipped_lines(answer.snapshot):
            call.note(*line)
    if answer.kept is not None:
        call.note(undo_line("resource", "restore", answer.kept, "--yes"))


def _note_gaps(call: Call, answer: ReconstructedFiles) -> None:
    call.note("this is a reconstruction: what the session did not touch is not in it")
    for gap in answer.gaps[:MOST_LISTED]:
        where = "some files" if gap.path is None else safe(gap.path)
        call.note(Span(where, "warn"), f": {gap.why}")
    if len(answer.gaps) > MOST_LISTED:
        call.note(f"… {counted(len(answer.gaps) - MOST_LISTED, 'more gap')}; --json lists all")
