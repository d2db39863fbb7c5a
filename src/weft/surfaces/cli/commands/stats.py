"""`weft stats`: how much there is, or what was done in a period."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from weft.surfaces.cli.call import Call
from weft.surfaces.cli.command import command as weft_command
from weft.surfaces.wire.forms import form
from weft.surfaces.wire.reports import LedgerFigures

if TYPE_CHECKING:
    from weft.ledger.api import Ledger

LATELY = "7 days ago"


@weft_command("stats")
@click.option("--story", is_flag=True, help="What was worked on, with which agents, files and cost.")
@click.option("--since", metavar="TIME", help="With --story: from this time on. Default: 7 days ago.")
@click.option("--until", metavar="TIME", help="With --story: until this time; a day means all of it.")
@click.option("--full", is_flag=True, help="With --story: every session and every file.")
def command(call: Call, story: bool, since: str | None, until: str | None, full: bool) -> None:
    """Show how big the ledger is, and of what.

    With --story: what was worked on in a period, project by project.
    """
    if not story and (since or until or full):
        raise click.UsageError("--since, --until and --full belong to --story")
    with call.reading() as ledger:
        if story:
            _tell(call, ledger, since, until, full)
            return
        figures = LedgerFigures(path=ledger.path, file_bytes=ledger.upkeep.disk_bytes(), counts=ledger.upkeep.stats())
    if call.json:
        call.document(figures)
    else:
        call.screen.table([(name, _text(value)) for name, value in form(figures).items()], ("what", "value"))


def _tell(call: Call, ledger: Ledger, since: str | None, until: str | None, full: bool) -> None:
    from weft.surfaces.cli.times import read_period
    from weft.surfaces.cli.user_files import prices_in_force
    from weft.surfaces.cli.work_report import work_lines

    report = ledger.usage.work(**read_period(since or LATELY, until), prices=prices_in_force(None))
    if call.json:
        call.document(report)
    elif report.projects:
        call.screen.page(work_lines(report, call.screen.columns, full))
    else:
        call.note(f"nothing was recorded since {since or LATELY}; --since goes further back")


def _text(value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{count} {name}" for name, count in value.items()) or "none"
    return str(value)
