"""`weft story`: what was worked on in a period."""

from __future__ import annotations

import click

from weft.kernel.typed_names import shell_word
from weft.surfaces.cli.call import Call
from weft.surfaces.cli.command import command as weft_command
from weft.surfaces.cli.periods import ALL, named_period
from weft.surfaces.cli.progress import progress
from weft.surfaces.cli.user_files import prices_in_force
from weft.surfaces.cli.work_report import work_lines

LATELY = "7 days ago"
PERIODS = ("today", "yesterday", "this week", "last week", "this month", "last month", "this year", "last year", ALL)


def _complete_periods(_: click.Context, __: click.Parameter, incomplete: str) -> list[str]:
    return [period for period in PERIODS if period.startswith(incomplete)]


@weft_command("story")
@click.argument("period", nargs=-1, shell_complete=_complete_periods)
@click.option("--full", is_flag=True, help="Every session and every file.")
def command(call: Call, period: tuple[str, ...], full: bool) -> None:
    """Show what was worked on in a period, project by project.

    Sessions, agents, files and cost of each project, the latest first. PERIOD is a day, a month or a year (today,
    2026-11-15, 2026-11, last week, this year), a time from which on ('2 weeks ago'), two of them with dots in between,
    or all. Without it: the last 7 days.

    \b
    weft story
    weft story last month
    weft story 2026-11-01..yesterday --full
    """
    words = " ".join(period) or LATELY
    with call.counting() as ledger, progress(call, "story", by_itself=True):
        prices = prices_in_force(None)
        report = ledger.usage.work(**named_period(words), prices=prices)
        prices.keep()
        is_empty = not report.projects and not ledger.log(1)
    if call.json:
        call.document(report)
    elif report.projects:
        call.screen.page(work_lines(report, call.screen.columns, full))
    elif is_empty:
        call.note("no turns yet: `weft import` brings in the sessions of other tools, `weft record` makes one")
    else:
        when = "in the last 7 days" if not period else f"in the period {words!r}"
        call.note(f"nothing was recorded {when}: `weft story {shell_word(ALL)}` tells everything")
