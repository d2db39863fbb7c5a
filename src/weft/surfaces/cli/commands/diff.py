"""`weft diff`: two threads from where they part."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import click

from weft.ledger.api import ThreadDiff
from weft.ledger.model import Turn
from weft.surfaces.cli import arguments
from weft.surfaces.cli.call import Call
from weft.surfaces.cli.command import command as weft_command
from weft.surfaces.cli.default_session import place_in_latest, require_named_or_latest
from weft.surfaces.cli.exits import DIFFERENT, OK
from weft.surfaces.cli.figures import counted
from weft.surfaces.cli.history import Reader, short
from weft.surfaces.cli.rendering.transcript import Transcript, in_order
from weft.surfaces.cli.screen import Line, Span
from weft.surfaces.cli.turn_lines import one_line

if TYPE_CHECKING:
    from weft.ledger.api import Ledger
    from weft.runtime.folder_snapshots.snapshot_objects import ChangedPath
    from weft.runtime.resources.turn_files import TurnFiles


@weft_command("diff")
@arguments.rev("left", required=False)
@arguments.rev("right", required=False)
@click.option("-p", "--patch", is_flag=True, help="What was said and done in the turns, not only their first lines.")
@click.option("--files", is_flag=True, help="Compare the files of the two turns, not what was said.")
@click.option("--exit-code", is_flag=True, help="Exit with 1 if they differ.")
def command(call: Call, left: str | None, right: str | None, patch: bool, files: bool, exit_code: bool) -> int:
    """Show where two threads part, or how their files differ.

    Turns that only LEFT has are marked with -, turns that only RIGHT has with +. Without RIGHT it is the latest
    session. With --files: A added, D deleted, M modified, P another mode, T another type; with -p the lines, too.
    With --files alone: what the latest turn of the latest session changed.
    """
    if left is None and not files:
        raise click.UsageError("Missing argument 'LEFT'; --files alone compares the latest turn")
    with call.reading() as ledger:
        other = require_named_or_latest(call, ledger, right)
        if left is None:
            return _show_changed_files(call, ledger, other, patch=patch, exit_code=exit_code)
        left = place_in_latest(call, ledger, left)
        if right is None and ledger.point(left) == ledger.point(other):
            raise click.UsageError(f"{left} is the latest session itself: name another one to compare it with")
        if files:
            return _compare_files(call, ledger, left, other, patch=patch, exit_code=exit_code)
        difference = ledger.diff(left, other)
        if call.json:
            call.document(difference)
        else:
            comparison = _Comparison(ledger, patch, call.screen.columns, call.screen.unicode)
            call.screen.page(comparison.lines(left, other, difference))
    return DIFFERENT if exit_code and (difference.left or difference.right) else OK


def _show_changed_files(call: Call, ledger: Ledger, session: str, *, patch: bool, exit_code: bool) -> int:
    """What the last turn of a session changed, in all directories that it worked in."""
    from weft.surfaces.cli.turn_files_call import git_changes_since, turn_files

    turn = ledger.turn(session)
    call.note("its latest turn: ", Span(short(turn.id), "id"))
    kept = turn_files(ledger)
    kept.snapshot_of(turn.id)  # or nothing is known of its files
    changes = kept.changes_of_turn(turn.id)
    git_changes = git_changes_since(call, kept, [turn.id])
    ids = (turn.parent_id, turn.id)
    return _show_changes(call, kept, ids, changes, git_changes, patch=patch, exit_code=exit_code)


def _compare_files(call: Call, ledger: Ledger, left: str, right: str, *, patch: bool, exit_code: bool) -> int:
    from weft.surfaces.cli.turn_files_call import turn_files

    kept = turn_files(ledger)
    changes = kept.changes(kept.snapshot_of(left), kept.snapshot_of(right))
    ids = (ledger.resolve(left), ledger.resolve(right))
    return _show_changes(call, kept, ids, changes, patch=patch, exit_code=exit_code)


def _show_changes(
    call: Call,
    kept: TurnFiles,
    ids: tuple[str | None, str],
    changed_paths: Sequence[ChangedPath],
    git_changes: Sequence[str] = (),
    *,
    patch: bool,
    exit_code: bool,
) -> int:
    """The paths that differ between the files of two turns of these ids; the first is None where no turn was before."""
    from weft.surfaces.cli.turn_files_call import (
        change_lines,
        file_change,
        note_git_changes,
        note_self_running,
        self_running_changes,
    )
    from weft.surfaces.wire.turn_files import FilesDiff

    changes = [file_change(one, kept.text_diff(one) if patch else None) for one in changed_paths]
    running = self_running_changes(changed_paths)
    left_id, right_id = ids
    if call.json:
        call.document(
            FilesDiff(
                left_id=left_id,
                right_id=right_id,
                changes=changes,
                runs_by_itself=running,
                git_changes=list(git_changes),
            )
        )
    else:
        call.screen.page(change_lines(changes))
        note_self_running(call, running)
        note_git_changes(call, git_changes)
    if not changes:
        call.note("their files are equal")
    return DIFFERENT if exit_code and (changes or git_changes) else OK


class _Comparison:
    """The lines of a difference."""

    def __init__(self, ledger: Ledger, patch: bool, columns: int, unicode: bool) -> None:
        self._ledger, self._patch, self._columns, self._unicode = ledger, patch, columns, unicode
        self._reader = Reader(ledger)

    def lines(self, left: str, right: str, difference: ThreadDiff) -> Iterator[Line]:
        yield [Span(f"--- {left} ({counted(len(difference.left), 'turn')} of its own)", "heading")]
        yield [Span(f"+++ {right} ({counted(len(difference.right), 'turn')} of its own)", "heading")]
        if difference.ancestor is None:
            yield [Span("the threads share no turn", "dim")]
        else:
            yield ["  ", *one_line(self._ledger.turn(difference.ancestor), self._reader, self._columns - 2)]
        yield from self._side("- ", "bad", difference.left)
        yield from self._side("+ ", "good", difference.right)

    def _side(self, sign: str, style: str, turns: Sequence[Turn]) -> Iterator[Line]:
        for turn in self._reader.ahead(turns):
            yield [Span(sign, style), *one_line(turn, self._reader, self._columns - 2)]
            if self._patch:
                transcript = Transcript(
                    full=True, columns=self._columns, unicode=self._unicode, workspace=turn.workspace_path
                )
                for line in transcript.lines(in_order(self._ledger, turn.id)):
                    yield [Span(sign, style), "  ", *line]
