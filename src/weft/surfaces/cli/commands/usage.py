"""`weft usage`: what was spent, on what, and what forks and copies would have made of it."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import click

from weft.ledger.api import (
    BY,
    PERIODS,
    AbandonedUsage,
    BranchUsage,
    ListedSession,
    SessionFilter,
    Spending,
    TurnUsage,
    UsageReport,
    UsageRow,
    UsageTree,
)
from weft.surfaces.cli import arguments
from weft.surfaces.cli.call import Call
from weft.surfaces.cli.command import command as weft_command
from weft.surfaces.cli.figures import bar, dollar_text, dollars
from weft.surfaces.cli.filter_values import NO_MODEL, NO_PROJECT, ensure_known_origin
from weft.surfaces.cli.history import quoted_title
from weft.surfaces.cli.progress import progress
from weft.surfaces.cli.provisional import note_left_out
from weft.surfaces.cli.screen import Line, Screen, Span, fitting
from weft.surfaces.plain_text import cut, pad, safe, width

if TYPE_CHECKING:
    from weft.ledger.api import Ledger, PriceTable

MODEL_COLUMNS = 60
HEADER = ("tokens", "input", "cache write", "cache read", "output", "cost")
SPARE = ("cache write", "cache read", "input", "output")
LONGEST_KEY, LONGEST_BAR, TASK_COLUMNS = 48, 30, 40
LEAST_KEY, LEAST_NAME = 32, 20
"""So many columns a key needs, and so many that of a project or a session, before columns of figures are left out."""
NOTHING = "no usage yet: record turns with their usage, or bring sessions in with `weft import`"
NOTHING_CHOSEN = "nothing was spent on that; `weft usage` shows all there is"


@weft_command("usage")
@click.option("--by", type=click.Choice(BY), help="What to sum up by. Default: day.")
@click.option("--since", metavar="TIME", help="Only from this time on; a day means all of it.")
@click.option("--until", metavar="TIME", help="Only until this time; a day means all of it.")
@arguments.session_option("Only turns that this session made.")
@click.option("--room", metavar="ROOM", help="Only what the agents of this room answered there.")
@click.option("--origin", metavar="NAME", help="Only history of this origin; weft's own is weft.")
@click.option("--model", metavar="NAME", help="Only this model, or those that fit a pattern such as 'claude-*'.")
@click.option(
    "--project", metavar="PATH", help="Only work in this project, in this folder or below it; a last name will do."
)
@click.option(
    "--branch", metavar="SESSION", shell_complete=arguments.complete_labels, help="What this session alone has cost."
)
@click.option(
    "--tree",
    metavar="TURN",
    shell_complete=arguments.complete_labels,
    help="What this turn has cost with its workers' turns.",
)
@click.option("--abandoned", is_flag=True, help="What turns have cost that no session contains any more.")
@click.option(
    "--prices",
    "path",
    metavar="FILE",
    type=click.Path(),
    help="Your own prices; else prices.toml in weft's config folder.",
)
@click.option(
    "--chart/--no-chart", default=None, help="Bars beside the rows, or none with --no-chart. Default: on a terminal."
)
@click.option(
    "-n", "--limit", type=click.IntRange(min=1), metavar="N", help="At most N rows: the last, or the dearest."
)
def command(
    call: Call,
    by: str | None,
    branch: str | None,
    tree: str | None,
    abandoned: bool,
    path: str | None,
    limit: int | None,
    **options: Any,
) -> None:
    """Show tokens and cost, by day, model, project and more.

    Every response of a provider counts once, however many forks and copies contain it. Prices are public list prices.
    Where a model has none, the cost that its tool noted counts; a model without either is listed.

    Your own prices go before the list, from $XDG_CONFIG_HOME/weft/prices.toml or --prices, in micro-dollars for a
    million tokens (1_000_000 is one dollar). A name with a dot stands in quotes; one that ends in * is a beginning:

    \b
        [models."gpt-4.1"]
        input = 2_000_000
        output = 8_000_000
        cached = 500_000              # cache reads
        cache_write = 2_500_000       # kept for five minutes
        cache_write_1h = 4_000_000    # kept for an hour; else twice the input

    \b
        [models."my-*"]
        input = 0
        output = 0
    """
    from weft.surfaces.cli.user_files import prices_in_force

    chart = options.pop("chart")
    alone = [bool(branch), bool(tree), abandoned]
    if any(alone) and (any([*options.values(), by, limit, chart]) or sum(alone) > 1):
        raise click.UsageError("--branch, --tree and --abandoned stand alone")
    prices = prices_in_force(path)
    with call.reading() if any(alone) else call.counting() as ledger:
        if branch is not None:
            _answer_branch(call, ledger.usage.branch(branch, prices=prices))
        elif tree is not None:
            _answer_tree(call, ledger.usage.tree(tree, prices=prices))
        elif abandoned:
            _answer_abandoned(call, ledger.usage.abandoned(prices=prices))
        else:
            is_chosen = any(options.values())
            with progress(call, "usage", by_itself=True):
                report = _report(call, ledger, by or "day", prices, options)
            nothing = "" if report.rows else _nothing(ledger, options) if is_chosen else NOTHING
            _answer_report(call, ledger, report, limit, chart, nothing)
        prices.keep()


def _report(call: Call, ledger: Ledger, by: str, prices: PriceTable, options: dict[str, Any]) -> UsageReport:
    """Words for times are the viewer's, whatever the answer looks like; under --json days are UTC's."""
    from weft.kernel.clock import SystemClock
    from weft.ledger.api import read_moment
    from weft.surfaces.cli.times import UTC, LocalZone

    now = SystemClock().now_ms()
    for what in ("since", "until"):
        options[what] = read_moment(options[what], what, now, LocalZone())
    if options["project"] is not None:
        options["project"] = _folder(options["project"])
    return ledger.usage.report(by, zone=UTC if call.json else LocalZone(), prices=prices, **options)


def _folder(name: str) -> str:
    """Names that begin at this folder or at home as whole paths; all others as they are."""
    return os.path.abspath(os.path.expanduser(name)) if name.startswith((".", "~")) else name


def _nothing(ledger: Ledger, options: dict[str, Any]) -> str:
    """What is told where nothing was spent on what was chosen."""
    ensure_known_origin(ledger, options["origin"])
    for by, unknown in (("project", NO_PROJECT), ("model", NO_MODEL)):
        if options[by] is not None and not ledger.usage.report(by, **{by: options[by]}).rows:
            return f"nothing was spent on that: {unknown}"
    return NOTHING_CHOSEN


def _answer_report(
    call: Call, ledger: Ledger, report: UsageReport, limit: int | None, chart: bool | None, nothing: str
) -> None:
    if call.json:
        call.document(report)
        return
    note_left_out(call, report.provisional, "counted")
    if not report.rows:
        call.note(nothing)
        return
    rows = report.rows if limit is None else report.rows[-limit:] if report.by in PERIODS else report.rows[:limit]
    screen, sessions = call.screen, _sessions(ledger) if report.by == "session" else {}
    if not screen.terminal and not chart:
        header = (report.by, *HEADER, *(("title",) if sessions else ()))
        screen.table([(row.key, *_plain(row), *_title(row, sessions)) for row in rows], header)
        _show_notes(call, _notes(report))
        return
    keys = [_key(row, sessions, screen.columns) for row in rows]
    screen.page(_page(screen, report, rows, keys, chart is not False))


def _sessions(ledger: Ledger) -> dict[str, ListedSession]:
    """By id every session as lists show it."""
    listed_sessions = ledger.listing().sessions(SessionFilter(every=True, subagents=True)).sessions
    return {listed.session.id: listed for listed in listed_sessions}


def _title(row: UsageRow, sessions: dict[str, ListedSession]) -> tuple[str, ...]:
    """The last cell of a row of a session, for programs that read tables."""
    if not sessions:
        return ()
    listed = sessions.get(str(row.session_id))
    return (" ".join(listed.title.split()) if listed else "",)


def _key(row: UsageRow, sessions: dict[str, ListedSession], columns: int) -> str:
    """What a row is about: a session by what to type for it and its title, for which half of the screen is there."""
    listed = sessions.get(str(row.session_id))
    if listed is None:
        return cut(safe(row.key), LONGEST_KEY)
    label = safe(listed.short_label)
    return cut(f"{label}{quoted_title(listed.title)}", min(LONGEST_KEY, max(width(label), columns // 2)))


def _show_notes(call: Call, lines: Iterable[Line]) -> None:
    """On a terminal below the answer; in a pipe, where rows are read by programs, beside it."""
    for line in lines:
        if call.screen.terminal:
            call.screen.show(*line)
        else:
            call.note(*line)


def _plain(row: Spending) -> tuple[str, ...]:
    """Whole numbers, for programs that read tables; cost in micro-dollars, empty where it is not known."""
    cost = "" if row.cost is None else str(row.cost)
    return (*map(str, (row.total, row.input, row.cache_write, row.cached, row.output)), cost)


def _page(
    screen: Screen, report: UsageReport, rows: tuple[UsageRow, ...], keys: list[str], chart: bool
) -> Iterator[Line]:
    names = (report.by, *HEADER)
    lines = [
        names,
        *((key, *_shown(row)) for key, row in zip(keys, rows, strict=True)),
        ("total", *_shown(report.total)),
    ]
    every = [max(width(line[i]) for line in lines) for i in range(len(names))]
    least = {report.by: LEAST_NAME if report.by in ("project", "session") else LEAST_KEY}
    columns = fitting(names, every, screen.columns, SPARE, least)
    widths = list(columns.values())
    header, *table, total = [tuple(line[i] for i in columns) for line in lines]
    yield [Span(_aligned(header, widths).upper(), "dim")]
    room = min(LONGEST_BAR, screen.columns - sum(widths) - 2 * len(widths))
    by_cost = any(row.cost for row in rows)
    most = max((row.cost or 0) if by_cost else row.total for row in rows)
    for row, line in zip(rows, table, strict=True):
        drawn = bar((row.cost or 0) if by_cost else row.total, most, room, screen.unicode) if chart else ""
        aligned = _aligned(line, widths)
        yield [aligned, "  ", Span(drawn, "good")] if drawn else [aligned]
    if len(rows) < len(report.rows):
        yield [Span(f"({len(report.rows) - len(rows)} more rows are in the total)", "dim")]
    yield [Span(_aligned(total, widths), "heading")]
    yield []
    yield from _notes(report)


def _aligned(cells: tuple[str, ...], widths: list[int]) -> str:
    numbers = [" " * (wide - width(cell)) + cell for cell, wide in zip(cells[1:], widths[1:], strict=True)]
    return "  ".join([pad(cut(cells[0], widths[0]), widths[0]), *numbers])


def _shown(row: Spending) -> tuple[str, ...]:
    counts = (row.total, row.input, row.cache_write, row.cached, row.output)
    return (*(f"{count:,}" for count in counts), dollars(row))


def _notes(report: UsageReport) -> Iterator[Line]:
    total, naive = report.total, report.naive
    asked = total.input + total.cached + total.cache_write
    if total.cached:
        yield [f"{total.cached / asked:.0%} of all input came from caches"]
    if total.unspecified:
        yield [f"{total.unspecified:,} tokens were reported as a total only"]
    if report.abandoned.total:
        yield [
            f"{report.abandoned.total:,} tokens ({dollars(report.abandoned)}) are in no session any more:"
            " `weft usage --abandoned`"
        ]
    factor = f"{report.naive_factor or 0:.2f}"
    if float(factor) > 1:
        naive_text = f"{naive.total:,} tokens, {dollars(naive)}, {factor} times as much"
        yield [f"a sum over every session by itself would say {naive_text}"]
    if total.cache_write_1h:
        yield [f"{total.cache_write_1h:,} tokens were written to the cache for an hour, which costs more"]
    yield from _recorded_notes(report.models)
    yield from _price_notes(report)


def _recorded_notes(models: tuple[UsageRow, ...]) -> Iterator[Line]:
    """Costs that tools noted themselves: where they count, and where they differ from ours."""
    for row in models:
        recorded = row.recorded
        if recorded is not None and recorded.used:
            yield [f"{safe(row.key)}: {dollar_text(recorded.used)} as its tool noted, since it has no price"]
        if recorded is not None and recorded.differs:
            noted, priced = dollar_text(recorded.noted), dollar_text(recorded.priced)
            yield [f"{safe(row.key)}: its tool noted {noted} for what costs {priced} at these prices"]


def _price_notes(usage: UsageReport | BranchUsage | UsageTree | AbandonedUsage) -> Iterator[Line]:
    if usage.unpriced:
        named = ", ".join(f"{cut(safe(row.model), MODEL_COLUMNS)} ({row.tokens:,})" for row in usage.unpriced)
        yield [Span(f"without a price, and in no cost (tokens): {named}", "warn")]
    as_of = "" if usage.prices_as_of is None else f", as of {usage.prices_as_of}"
    prices_text = f"prices from {safe(usage.prices_from or '?')}{as_of}; `weft help usage` tells how to give your own"
    yield [Span(prices_text, "dim")]


def _turns(count: int) -> str:
    return "1 turn" if count == 1 else f"{count:,} turns"


def _answer_branch(call: Call, usage: BranchUsage) -> None:
    if call.json:
        call.document(usage)
        return
    if not call.screen.terminal:
        rows = (("marginal", *_plain(usage.marginal)), ("thread", *_plain(usage.thread)))
        call.screen.table(rows, ("what", *HEADER))
        _show_notes(call, _price_notes(usage))
        return
    alone, whole = usage.marginal, usage.thread
    call.screen.show(
        Span(usage.session, "label"),
        f" alone: {alone.total:,} tokens, {dollars(alone)}, in {_turns(usage.marginal_turns)} with usage",
    )
    in_turns = f"in {_turns(usage.thread_turns)} with usage"
    call.screen.show(f"its whole thread: {whole.total:,} tokens, {dollars(whole)}, {in_turns}")
    for row in usage.models:
        call.screen.show(f"  {safe(row.key)}: {row.total:,} tokens, {dollars(row)}")
    _show_notes(call, _price_notes(usage))


def _answer_tree(call: Call, usage: UsageTree) -> None:
    if call.json:
        call.document(usage)
        return
    from weft.surfaces.cli.history import short

    call.screen.show(
        Span(f"turn {short(usage.root.turn)}", "label"),
        f" with {_turns(usage.turns - 1)} of workers: {usage.root.total.total:,} tokens, {dollars(usage.root.total)}",
    )
    for line in _tree_lines(usage.root, 1):
        call.screen.show(*line)
    _show_notes(call, _price_notes(usage))


def _tree_lines(turn: TurnUsage, level: int) -> Iterator[Line]:
    """What the turn cost itself, then each of its workers with its turns."""
    yield (f"{'  ' * level}itself: {turn.own.total:,} tokens, {dollars(turn.own)}",)
    for worker in turn.workers:
        task = f" ({cut(safe(worker.task), TASK_COLUMNS)})" if worker.task else ""
        sums = f": {worker.total.total:,} tokens, {dollars(worker.total)}, in {_turns(len(worker.turns))}{task}"
        yield ("  " * level, Span(worker.session, "label"), sums)
        for below in worker.turns:
            if below.workers:
                yield from _tree_lines(below, level + 1)


def _answer_abandoned(call: Call, usage: AbandonedUsage) -> None:
    if call.json:
        call.document(usage)
        return
    if not usage.rows:
        call.note("nothing was abandoned: every turn that cost something is in a session")
        return
    from weft.surfaces.cli.history import short

    terminal = call.screen.terminal
    rows = [
        (
            Span(row.key, "label"),
            row.status or "-",
            str(row.turns),
            f"{row.total:,}" if terminal else str(row.total),
            dollars(row) if terminal else _plain(row)[-1],
            Span(short(row.last_turn), "id"),
        )
        for row in usage.rows
    ]
    header = ("once in", "status", "turns", "tokens", "cost", "last turn")
    call.screen.table(rows, header, numbers=("turns", "tokens", "cost"), spare=("status", "turns"))
    total = [f"{usage.total.total:,} tokens, {dollars(usage.total)}, in {_turns(usage.turns)} with usage"]
    _show_notes(call, [total, *_price_notes(usage)])
