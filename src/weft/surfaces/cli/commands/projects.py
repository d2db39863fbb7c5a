"""`weft projects`: what was worked on, folder by folder."""

from __future__ import annotations

from typing import Any

import click

from weft.ledger.reports.work import ProjectWork
from weft.surfaces.cli.call import Call
from weft.surfaces.cli.command import command as weft_command
from weft.surfaces.cli.commands.sessions import abbreviated
from weft.surfaces.cli.money import dollars
from weft.surfaces.cli.periods import read_period
from weft.surfaces.cli.price_files import prices_in_force
from weft.surfaces.cli.screen import Span
from weft.surfaces.cli.shapes import to_json
from weft.surfaces.cli.zones import NO_DATE, local_time

HEADER = ("project", "sessions", "turns", "tokens", "cost", "last change", "agents", "folder")
SPARE = ("agents", "tokens", "cost")


@weft_command("projects")
@click.option("--since", metavar="TIME", help="Only work from this time on; a day means all of it.")
@click.option("--until", metavar="TIME", help="Only work until this time; a day means all of it.")
@click.option("-n", "--limit", type=click.IntRange(min=0), metavar="N", help="At most N projects.")
def command(call: Call, since: str | None, until: str | None, limit: int | None) -> None:
    """List projects: sessions, agents, tokens and cost of each.

    A project is the folder that turns worked in. The latest first.
    """
    with call.reading() as ledger:
        found = ledger.usage.work(**read_period(since, until), prices=prices_in_force(None))
    shown = found.projects[:limit]
    if call.json:
        call.documents(map(_shape, shown))
    elif shown:
        numbers = ("sessions", "turns", "tokens", "cost")
        call.screen.table([_row(each) for each in shown], HEADER, numbers=numbers, spare=SPARE)
    if not found.projects:
        call.note("no work in that time" if since or until else "no turns yet: `weft import` brings sessions in")
    elif len(shown) < len(found.projects):
        call.note(f"{len(found.projects) - len(shown):,} more: -n N lists more")


def _shape(project: ProjectWork) -> dict[str, Any]:
    """Its own figures; `weft stats --story --json` has the sessions and files too."""
    shown: dict[str, Any] = to_json(project)
    return {**shown, "sessions": len(project.sessions), "files": len(project.files)}


def _row(project: ProjectWork) -> tuple[Span | str, ...]:
    return (
        Span(project.name, "label"),
        f"{len(project.sessions):,}",
        f"{project.turns:,}",
        abbreviated(project.spending.total),
        dollars(project.spending) if project.spending.total else "",
        local_time(project.last_at) if project.time_known else NO_DATE,
        ", ".join(project.origins),
        project.path,
    )
