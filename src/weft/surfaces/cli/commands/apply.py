"""`weft apply`: many programs as files say them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from weft.surfaces.cli.arguments import STANDARD, read_input
from weft.surfaces.cli.call import Call
from weft.surfaces.cli.command import command as weft_command
from weft.surfaces.cli.figures import counted
from weft.surfaces.cli.program_call import acting, changing
from weft.surfaces.cli.screen import Span

if TYPE_CHECKING:
    from weft.programs.program_changes import PlannedProgram, WantedProgram

STYLES = {"create": "good", "change": "warn", "unchanged": "dim", "delete": "bad"}


@weft_command("apply")
@click.argument("file", nargs=-1, required=True, type=click.Path(exists=True, dir_okay=False, allow_dash=True))
@click.option("--dry-run", is_flag=True, help="Show what would be done, and stop.")
@click.option("--prune", is_flag=True, help="Delete programs that earlier files brought and these do not say.")
@acting
def command(call: Call, file: tuple[str, ...], dry_run: bool, prune: bool, actor: str, retry_key: str | None) -> None:
    """Create and change programs as files say.

    A FILE is YAML, one document or several, or JSON: objects with id, programType, config, and perhaps lifecycle and
    tags; - is standard input. All is done, or nothing, and then all that is wrong is said at once; applied again,
    nothing changes.
    """
    wanted = [one for name in file for one in _read(name)]
    with changing(call, actor) as programs:
        plan = programs.apply(wanted, prune=prune, dry_run=dry_run, key=retry_key)
    _show(call, plan, dry_run)


def _read(name: str) -> list[WantedProgram]:
    from weft.kernel.contents import decode_utf8
    from weft.programs.program_changes import read_files, read_text

    if name != STANDARD:
        return read_files([Path(name)])
    piped = read_input(None, "nothing is piped in")
    return read_text(decode_utf8(piped, "standard input"), "standard input")


def _show(call: Call, plan: list[PlannedProgram], dry_run: bool) -> None:
    if call.json:
        call.documents(plan)
        return
    for one in plan:
        changes = f" ({', '.join(one.changes)})" if one.changes else ""
        call.screen.show(
            Span(f"{one.action:<9}", STYLES[one.action]), f" {one.kind} ", Span(one.name, "label"), changes
        )
        for note in one.notes:
            call.note(f"{one.kind} {one.name}: {note}")
    done = sum(one.action != "unchanged" for one in plan)
    call.note(f"{counted(done, 'program')} {'would change' if dry_run else 'changed'}, of {len(plan)}")
