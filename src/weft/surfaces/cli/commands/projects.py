"""`weft projects`: what was worked on, project by project."""

from __future__ import annotations

import click

from weft.ledger.api import ProjectWork
from weft.surfaces.cli.call import Call
from weft.surfaces.cli.command import command as weft_command
from weft.surfaces.cli.figures import abbreviated, dollars
from weft.surfaces.cli.progress import progress
from weft.surfaces.cli.screen import Span
from weft.surfaces.cli.times import NO_DATE, local_minute, local_time, read_period
from weft.surfaces.cli.user_files import prices_in_force
from weft.surfaces.wire.reports import project_totals

HEADER = ("project", "sessions", "turns", "tokens", "cost", "last change", "agents", "repository or folder")
SPARE = ("agents", "repository or folder", "turns", "sessions", "tokens", "cost")
PROJECT_COLUMNS = 20


@weft_command("projects")
@click.option("--since", metavar="TIME", help="Only work from this time on; a day means all of it.")
@click.option("--until", metavar="TIME", help="Only work until this time; a day means all of it.")
@click.option("-n", "--limit", type=click.IntRange(min=0), metavar="N", help="At most N projects.")
def command(call: Call, since: str | None, until: str | None, limit: int | None) -> None:
    """List projects: sessions, agents, tokens and cost of each.

    A project is a repository with all its worktrees and clones, where it is known, else a folder. The latest first. In
    a pipe tokens are whole numbers, and the cost is in micro-dollars.
    """
    with call.counting() as ledger, progress(call, "projects", by_itself=True):
        prices = prices_in_force(None)
        report = ledger.usage.work(**read_period(since, until), prices=prices, about=False)
        prices.keep()
    shown = report.projects[:limit]
    if call.json:
        call.documents(map(project_totals, shown))
    elif shown:
        numbers = ("sessions", "turns", "tokens", "cost")
        rows, least = [_row(project_work, call.screen.terminal) for project_work in shown], {"project": PROJECT_COLUMNS}
        call.screen.table(rows, HEADER, numbers=numbers, spare=SPARE, least=least)
    if not report.projects:
        call.note("no work in that time" if since or until else "no turns yet: `weft import` brings sessions in")
    elif len(shown) < len(report.projects):
        call.note(f"{len(report.projects) - len(shown):,} more: -n N lists more")


def _row(project: ProjectWork, terminal: bool) -> tuple[Span | str, ...]:
    when = (local_minute if terminal else local_time)(project.last_at)
    return (
        Span(project.name, "label"),
        *(_figures if terminal else _plain)(project),
        when if project.time_known else NO_DATE,
        ", ".join(project.origins),
        project.path,
    )


def _figures(project: ProjectWork) -> tuple[str, ...]:
    spent = project.spending
    counts = (f"{len(project.sessions):,}", f"{project.turns:,}")
    return (*counts, abbreviated(spent.total), dollars(spent) if spent.total else "")


def _plain(project: ProjectWork) -> tuple[str, ...]:
    """Whole numbers, for programs that read tables; cost in micro-dollars, empty where it is not known."""
    spent = project.spending
    counts = (str(len(project.sessions)), str(project.turns), str(spent.total))
    return (*counts, "" if spent.cost is None else str(spent.cost))
