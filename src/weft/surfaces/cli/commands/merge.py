"""`weft merge`: a branch brought back, its files by a three-way merge."""

from __future__ import annotations

import click

from weft.kernel.contents import decode_utf8
from weft.kernel.enums import RestoreOutcome
from weft.kernel.typed_names import shell_line
from weft.surfaces.cli import arguments
from weft.surfaces.cli.arguments import complete_labels, read_input
from weft.surfaces.cli.call import Call
from weft.surfaces.cli.command import command as weft_command
from weft.surfaces.cli.exits import DIFFERENT, OK, UNFINISHED
from weft.surfaces.cli.figures import counted
from weft.surfaces.cli.history import short
from weft.surfaces.cli.screen import Line, Span
from weft.surfaces.cli.turn_files_call import note_self_running, self_running_changes, turn_files
from weft.surfaces.plain_text import safe
from weft.surfaces.wire.turn_files import MergedBranch, MergeObstacle

NO_TEXT = "no summary was given: use --text or --file, or pipe it in; --pick brings the turns themselves"


@weft_command("merge")
@arguments.rev("branch")
@click.option(
    "--into", metavar="SESSION", required=True, shell_complete=complete_labels, help="The session that gets it."
)
@click.option("--text", metavar="TEXT", help="What the branch found, as a turn of the session.")
@click.option("--file", metavar="FILE", type=click.Path(), help="Read that from here; - is standard input.")
@click.option("--pick", is_flag=True, help="Bring the last turn of the branch itself, instead of a summary.")
def command(call: Call, branch: str, into: str, text: str | None, file: str | None, pick: bool) -> int:
    """Bring a branch back into a session: what it found, and its files.

    The conversation gets one turn, as `weft summarize` or `weft cherry-pick` make it. The files are merged as git
    merges three versions: those of the branch, those of the session, and those of the turn where they parted. With
    conflicts nothing at all is done; they are listed, and the exit code is 1.
    """
    if pick and (text is not None or file is not None):
        raise click.UsageError("bring the turn itself or a summary: --pick, or --text and --file")
    summary = None if pick else text if text is not None else _read(file)
    with call.writing() as ledger:
        files = turn_files(ledger)
        merged = files.merge(branch, into) if ledger.resources.list(kind="directory") else None
        obstacles = [MergeObstacle(one.path, one.why) for one in merged.merge.conflicts] if merged else []
        if obstacles:
            return _refuse(call, branch, obstacles)
        if summary is None:
            turn = ledger.merges.cherry_pick(branch, onto=into)[0]
        else:
            turn = ledger.merges.summarize(branch, into=into, text=summary)
        running = {} if merged is None else self_running_changes(files.changes_of_merge(merged))
        done = None if merged is None else files.apply_merge(merged, turn.id)
        label = ledger.session(into).label
    place = None if merged is None else merged.resource.place
    files_text = "; no files were kept of it" if place is None else f"; its files are in {safe(place)}"
    call.answer(
        MergedBranch(turn=turn, place=place, conflicts=[], runs_by_itself=running),
        [Span(short(turn.id), "id"), " on ", Span(label, "label"), files_text],
    )
    note_self_running(call, running)
    call.note(f"undo: weft {shell_line(('undo', label))}")
    if done is not None and done.outcome is not RestoreOutcome.OK:
        call.note(f"the files were not written: {safe(done.error or 'somebody works on them')}")
        return UNFINISHED
    return OK


def _read(file: str | None) -> str:
    return decode_utf8(read_input(file, NO_TEXT), "summary").rstrip("\n")


def _refuse(call: Call, branch: str, obstacles: list[MergeObstacle]) -> int:
    lines: list[Line] = [["  ", Span(safe(one.path), "bad"), f"  {safe(one.why)}"] for one in obstacles]
    head = [f"{counted(len(obstacles), 'path')} in conflict; nothing was changed"]
    call.answer(MergedBranch(turn=None, place=None, conflicts=obstacles), head, *lines)
    call.note(
        f"look at the files of the branch with `weft {shell_line(('checkout', branch, '--to', 'DIR'))}`, settle the"
        " conflicts, and try again"
    )
    return DIFFERENT
