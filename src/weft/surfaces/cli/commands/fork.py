"""`weft fork`: a new session that stands at any turn, with what it works with."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from weft.kernel.enums import VolumeMode
from weft.kernel.typed_names import shell_line
from weft.surfaces.cli import arguments
from weft.surfaces.cli.call import Call
from weft.surfaces.cli.command import command as weft_command
from weft.surfaces.cli.exits import OK, UNFINISHED
from weft.surfaces.cli.history import short
from weft.surfaces.cli.resume_tools import origin_of, ways_on
from weft.surfaces.cli.screen import Line, Span
from weft.surfaces.wire.turn_files import ForkedSession, ForkPlan

if TYPE_CHECKING:
    from weft.ledger.api import Ledger
    from weft.runtime.resources.turn_files import ForkPlanner, PlanLine


@weft_command("fork")
@arguments.rev()
@click.argument("label", required=False)
@click.option("--label", "named", metavar="LABEL", help="The new session's label, instead of the argument.")
@click.option("--persona", metavar="NAME", help="The agent that the new session belongs to.")
@click.option(
    "--files",
    type=click.Choice([mode.value for mode in VolumeMode]),
    help="One decision about everything that the session works with.",
)
@click.option(
    "--plan", "plan_file", metavar="FILE", type=click.Path(), help="Decisions as JSON, such as --dry-run --json."
)
@click.option("--in", "folder", metavar="DIR", help="Where the copy of the working directory goes.")
@click.option("--dry-run", is_flag=True, help="Show what would become of files and other resources; fork nothing.")
def command(
    call: Call,
    rev: str,
    label: str | None,
    named: str | None,
    persona: str | None,
    files: str | None,
    plan_file: str | None,
    folder: str | None,
    dry_run: bool,
) -> int:
    """Start a new session at any turn.

    REV is a turn, or the digest of an event inside one. Of the conversation nothing is copied. What the session works
    with, such as a working directory, is copied as it was at that turn where it can be, beside the original; what
    cannot be copied stays where it is. `--files keep` copies nothing. Exits with 9 where a copy could not be made; the
    new session is there all the same.
    """
    if (label is None) == (named is None):
        raise click.UsageError("give the new session one label: `weft fork REV LABEL`")
    if files is not None and plan_file is not None:
        raise click.UsageError("decide once: --files or --plan")
    request = _ForkRequest(rev, str(named if label is None else label), persona, files, plan_file, folder)
    with call.reading() if dry_run else call.writing() as ledger:
        planner, lines = _planned(ledger, request)
        if dry_run:
            return _show(call, request, lines)
        if planner is None or not lines:
            forked = ForkedSession(session=ledger.fork(rev, label=request.label, persona=persona), resources=[])
            code = OK
        else:
            forked, code = _carry_out(call, ledger, planner, request, lines)
        origin = origin_of(ledger, request.label)
    _show_forked(call, forked, origin)
    return code


class _ForkRequest:
    """What was asked for."""

    def __init__(
        self, rev: str, label: str, persona: str | None, files: str | None, plan_file: str | None, folder: str | None
    ) -> None:
        self.rev, self.label, self.persona, self.folder = rev, label, persona, folder
        self.mode = None if files is None else VolumeMode(files)
        self.written = None if plan_file is None else Path(plan_file).read_bytes()


def _planned(ledger: Ledger, request: _ForkRequest) -> tuple[ForkPlanner | None, list[PlanLine]]:
    """None where the ledger has no resources at all: nothing of them is loaded then."""
    if not ledger.resources.list():
        if request.folder is not None or request.written is not None:
            raise click.UsageError("this session works with nothing that could be copied")
        return None, []
    from weft.runtime.resources.turn_files import ForkPlanner
    from weft.surfaces.cli.resource_access import resource_drivers

    planner = ForkPlanner(ledger, resource_drivers(ledger))
    lines = planner.propose(request.rev, request.label)
    if request.written is not None:
        lines = planner.read(lines, request.written, request.label)
    return planner, planner.changed(lines, request.mode, request.folder)


def _show(call: Call, request: _ForkRequest, lines: list[PlanLine]) -> int:
    from weft.surfaces.cli.fork_call import plan_lines, planned_copies

    copies = planned_copies(lines, request.label)
    if call.json:
        call.document(ForkPlan(resources=copies))
    elif not copies:
        call.screen.show("the session works with nothing beside the conversation")
    for line in () if call.json else plan_lines(copies, is_done=False):
        call.screen.show(*line)
    return OK


def _carry_out(
    call: Call, ledger: Ledger, planner: ForkPlanner, request: _ForkRequest, lines: list[PlanLine]
) -> tuple[ForkedSession, int]:
    from weft.surfaces.cli.fork_call import planned_copies, set_workspace

    point = ledger.point(request.rev)
    origin = point.session or ledger.turn(point.turn_id).session_id
    done = planner.carry_out(request.rev, request.label, lines, persona=request.persona)
    set_workspace(ledger, origin, done)
    for why in done.not_removed:
        call.note(Span(f"not removed, and tried again later: {why}", "warn"))
    copies = planned_copies(done.lines, request.label, done.restores)
    code = UNFINISHED if done.failures or done.not_removed else OK
    return ForkedSession(session=ledger.session(done.session), resources=copies), code


def _show_forked(call: Call, forked: ForkedSession, origin: str | None) -> None:
    from weft.surfaces.cli.fork_call import plan_lines

    session = forked.session
    line: Line = [Span(session.label, "label"), " stands at ", Span(short(str(session.head)), "id")]
    call.answer(forked, line, *plan_lines(forked.resources, is_done=True))
    for copy in forked.resources:
        if copy.changed_since:
            words = ("resource", "snapshot", copy.name, "--turn", str(session.head), "--again")
            call.note(f"the copy is of that turn; after `weft {shell_line(words)}` a fork has the present state")
    call.note(f"go on there {ways_on(session.label, origin)}")
