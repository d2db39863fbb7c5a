"""What was done, and what it cost: `weft usage`, `projects` and `audit`, and `story`, what
was worked on in a period, which is read as people write it.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from datetime import date, timedelta
from typing import TYPE_CHECKING, Any

import click
from msgspec.structs import replace

from weft.kernel.typed_names import shell_word
from weft.ledger.api import (
    BY,
    GROUPS,
    PERIODS,
    UNKNOWN,
    AbandonedUsage,
    AuditFinding,
    AuditSeverity,
    AuditTally,
    BranchUsage,
    FindingKind,
    ListedSession,
    ProjectWork,
    SessionFilter,
    SessionWork,
    Spending,
    TurnUsage,
    UsageReport,
    UsageRow,
    UsageTree,
    WorkReport,
)
from weft.surfaces.cli import arguments
from weft.surfaces.cli.arguments import NO_MODEL, NO_PROJECT, ensure_known_origin
from weft.surfaces.cli.command_line import DIFFERENT, OK, Call
from weft.surfaces.cli.command_line import command as weft_command
from weft.surfaces.cli.progress import abbreviated, bar, counted, dollar_text, dollars, progress
from weft.surfaces.cli.screen import (
    EPOCH,
    NO_DATE,
    Line,
    Period,
    Screen,
    Span,
    fitting,
    local_minute,
    local_time,
    read_period,
)
from weft.surfaces.cli.turn_lists import note_left_out, quoted_title, short
from weft.surfaces.cli.user_files import prices_in_force
from weft.surfaces.plain_text import cut, pad, safe, width
from weft.verbs.exchange_answers import audit_answer, project_totals

if TYPE_CHECKING:
    from weft.ledger.api import ActorEvent, Ledger, PriceTable


# --- `weft usage`: what was spent, on what, and what forks and copies would have made of it.

MODEL_COLUMNS = 60
USAGE_HEADER = ("tokens", "input", "cache write", "cache read", "output", "cost")
USAGE_SPARE = ("cache write", "cache read", "input", "output")
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
    "--project", metavar="PATH", help="Only work in this project, in this folder or below it; its last name is enough."
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
    "-n", "--limit", type=click.IntRange(min=1), metavar="N", help="At most N rows: the latest, or the most expensive."
)
def usage_command(
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

    By session the title stands beside the label. docs/reading.md#usage-and-cost says what is counted.

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
            nothing = "" if report.rows else _nothing_spent_words(ledger, options) if is_chosen else NOTHING
            _answer_report(call, ledger, report, limit, chart, nothing)
        prices.keep()


def _report(call: Call, ledger: Ledger, by: str, prices: PriceTable, options: dict[str, Any]) -> UsageReport:
    """Words for times are the viewer's, whatever the answer looks like; under --json days are UTC's."""
    from weft.kernel.clock import SystemClock
    from weft.ledger.api import read_moment
    from weft.surfaces.cli.screen import UTC, LocalZone

    now = SystemClock().now_ms()
    for what in ("since", "until"):
        options[what] = read_moment(options[what], what, now, LocalZone())
    if options["project"] is not None:
        options["project"] = _folder(options["project"])
    return ledger.usage.report(by, zone=UTC if call.json else LocalZone(), prices=prices, **options)


def _folder(name: str) -> str:
    """Names that begin at this folder or at home as whole paths; all others as they are."""
    return os.path.abspath(os.path.expanduser(name)) if name.startswith((".", "~")) else name


def _nothing_spent_words(ledger: Ledger, options: dict[str, Any]) -> str:
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
        header = (report.by, *USAGE_HEADER, *(("title",) if sessions else ()))
        screen.table([(row.key, *_plain_spending(row), *_title(row, sessions)) for row in rows], header)
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


def _plain_spending(row: Spending) -> tuple[str, ...]:
    """Whole numbers, for programs that read tables; cost in micro-dollars, empty where it is not known."""
    cost = "" if row.cost is None else str(row.cost)
    return (*map(str, (row.total, row.input, row.cache_write, row.cached, row.output)), cost)


def _page(
    screen: Screen, report: UsageReport, rows: tuple[UsageRow, ...], keys: list[str], chart: bool
) -> Iterator[Line]:
    names = (report.by, *USAGE_HEADER)
    lines = [
        names,
        *((key, *_shown_spending(row)) for key, row in zip(keys, rows, strict=True)),
        ("total", *_shown_spending(report.total)),
    ]
    every = [max(width(line[i]) for line in lines) for i in range(len(names))]
    least = {report.by: LEAST_NAME if report.by in ("project", "session") else LEAST_KEY}
    columns = fitting(names, every, screen.columns, USAGE_SPARE, least)
    widths = list(columns.values())
    header, *table, total = [tuple(line[i] for i in columns) for line in lines]
    yield [Span(_aligned_cells(header, widths).upper(), "dim")]
    room = min(LONGEST_BAR, screen.columns - sum(widths) - 2 * len(widths))
    by_cost = any(row.cost for row in rows)
    most = max((row.cost or 0) if by_cost else row.total for row in rows)
    for row, line in zip(rows, table, strict=True):
        drawn = bar((row.cost or 0) if by_cost else row.total, most, room, screen.unicode) if chart else ""
        aligned = _aligned_cells(line, widths)
        yield [aligned, "  ", Span(drawn, "good")] if drawn else [aligned]
    if len(rows) < len(report.rows):
        yield [Span(f"({len(report.rows) - len(rows)} more rows are in the total)", "dim")]
    yield [Span(_aligned_cells(total, widths), "heading")]
    yield []
    yield from _notes(report)


def _aligned_cells(cells: tuple[str, ...], widths: list[int]) -> str:
    numbers = [" " * (wide - width(cell)) + cell for cell, wide in zip(cells[1:], widths[1:], strict=True)]
    return "  ".join([pad(cut(cells[0], widths[0]), widths[0]), *numbers])


def _shown_spending(row: Spending) -> tuple[str, ...]:
    counts = (row.total, row.input, row.cache_write, row.cached, row.output)
    return (*(f"{count:,}" for count in counts), dollars(row))


def _notes(report: UsageReport) -> Iterator[Line]:
    total, naive = report.total, report.naive
    if report.by == "provider" and any(row.key == UNKNOWN for row in report.rows):
        yield [f"{UNKNOWN}: a server of your own, or a source that names no vendor; `weft usage --by model` tells more"]
    asked = total.input + total.cached + total.cache_write
    if total.cached:
        saved = f", which saved {dollar_text(total.saved)}" if total.saved > 0 else ""
        yield [f"{total.cached / asked:.0%} of all input came from caches{saved}"]
    if total.unspecified:
        yield [f"{total.unspecified:,} tokens were reported as a total only"]
    if report.abandoned.total:
        cost = "cost unknown" if report.abandoned.cost is None else dollars(report.abandoned)
        yield [f"{report.abandoned.total:,} tokens ({cost}) are in no session any more: `weft usage --abandoned`"]
    factor = f"{report.naive_factor or 0:.2f}"
    if float(factor) > 1:
        naive_cost = "" if naive.cost is None else f"{dollars(naive)}, "
        naive_text = f"{naive.total:,} tokens, {naive_cost}{factor} times as much"
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
        rows = (("marginal", *_plain_spending(usage.marginal)), ("thread", *_plain_spending(usage.thread)))
        call.screen.table(rows, ("what", *USAGE_HEADER))
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
    from weft.surfaces.cli.turn_lists import short

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
    from weft.surfaces.cli.turn_lists import short

    terminal = call.screen.terminal
    rows = [
        (
            Span(row.key, "label"),
            row.status or "-",
            str(row.turns),
            f"{row.total:,}" if terminal else str(row.total),
            dollars(row) if terminal else _plain_spending(row)[-1],
            Span(short(row.last_turn), "id"),
        )
        for row in usage.rows
    ]
    header = ("once in", "status", "turns", "tokens", "cost", "last turn")
    call.screen.table(rows, header, numbers=("turns", "tokens", "cost"), spare=("status", "turns"))
    total = [f"{usage.total.total:,} tokens, {dollars(usage.total)}, in {_turns(usage.turns)} with usage"]
    _show_notes(call, [total, *_price_notes(usage)])


# --- `weft projects`: what was worked on, project by project.

PROJECTS_HEADER = ("project", "sessions", "turns", "tokens", "cost", "last change", "agents", "repository or folder")
PROJECTS_SPARE = ("agents", "repository or folder", "turns", "sessions", "tokens", "cost")
PROJECT_COLUMNS = 20


@weft_command("projects")
@click.option("--since", metavar="TIME", help="Only work from this time on; a day means all of it.")
@click.option("--until", metavar="TIME", help="Only work until this time; a day means all of it.")
@click.option("-n", "--limit", type=click.IntRange(min=0), metavar="N", help="At most N projects.")
def projects_command(call: Call, since: str | None, until: str | None, limit: int | None) -> None:
    """List projects: sessions, agents, tokens and cost of each.

    A project is a repository with all its worktrees and clones, where it is known, else a folder. The latest first. In
    a pipe tokens are whole numbers, and the cost is in micro-dollars.

    The cost is empty where it is not known. docs/reading.md#projects says what a project is. `weft story` shows what
    was worked on, `weft usage` the cost by day or model.
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
        rows, least = (
            [_project_row(project_work, call.screen.terminal) for project_work in shown],
            {"project": PROJECT_COLUMNS},
        )
        call.screen.table(rows, PROJECTS_HEADER, numbers=numbers, spare=PROJECTS_SPARE, least=least)
    if not report.projects:
        call.note("no work in that time" if since or until else "no turns yet: `weft import` brings sessions in")
    elif len(shown) < len(report.projects):
        call.note(f"{len(report.projects) - len(shown):,} more: -n N lists more")


def _project_row(project: ProjectWork, terminal: bool) -> tuple[Span | str, ...]:
    when = (local_minute if terminal else local_time)(project.last_at)
    return (
        Span(project.name, "label"),
        *(_figures if terminal else _plain_project)(project),
        when if project.time_known else NO_DATE,
        ", ".join(project.origins),
        project.path,
    )


def _figures(project: ProjectWork) -> tuple[str, ...]:
    spent = project.spending
    counts = (f"{len(project.sessions):,}", f"{project.turns:,}")
    return (*counts, abbreviated(spent.total), dollars(spent) if spent.total else "")


def _plain_project(project: ProjectWork) -> tuple[str, ...]:
    """Whole numbers, for programs that read tables; cost in micro-dollars, empty where it is not known."""
    spent = project.spending
    counts = (str(len(project.sessions)), str(project.turns), str(spent.total))
    return (*counts, "" if spent.cost is None else str(spent.cost))


# --- `weft audit`: did an agent use a tool that it should not have had?

AUDIT_STYLES = {AuditSeverity.PROBLEM: "bad", AuditSeverity.UNKNOWN: "warn", AuditSeverity.NOTE: "dim"}
AUDIT_HEADER = ("finding", "session", "turn", "tool or right", "turns", "what")
PROBLEM_HEADER = ("finding", "session", "turn", "tool or right", "times", "what")
SHOWN_PROBLEMS, SHOWN_SUBJECTS = 20, 3
MEANINGS = {
    FindingKind.TOOL_NOT_AVAILABLE: "called, but not among its tools",
    FindingKind.TOOL_DENIED: "called, though denied",
    FindingKind.TOOL_NOT_PERMITTED: "called without permission",
    FindingKind.RIGHT_NOT_GRANTED: "right used, not granted",
    FindingKind.NOT_KNOWN: "called; whether allowed is not known",
    FindingKind.USE_NOT_RECORDED: "rights granted; which were used is not recorded",
    FindingKind.RIGHT_UNUSED: "right granted, never used",
    FindingKind.TOOL_UNUSED: "tool there, never called",
}
DEEDS = ("event", "when", "actor", "kind", "where", "tool")


@weft_command("audit")
@click.argument("names", nargs=-1, metavar="[SESSION|TURN]...", shell_complete=arguments.complete_labels)
@click.option("--actor", metavar="AGENT", help="Only what this agent did, by its name or id.")
@click.option("--tool", metavar="NAME", help="Only this tool, or those that fit a pattern such as 'mcp__github__*'.")
@click.option("--since", metavar="TIME", help="Only from this time on; a day means all of it.")
@click.option("--until", metavar="TIME", help="Only until this time; a day means all of it.")
@click.option(
    "--by", type=click.Choice(GROUPS), default="session", help="What unused rights are gathered by. Default: session."
)
@click.option("--problems", is_flag=True, help="Only what was used without being allowed.")
@click.option("--list", "listed", is_flag=True, help="Every finding, not a summary, also on a terminal.")
@click.option("--strict", is_flag=True, help="Exit with 1 also for what is not known.")
@click.option("--events", is_flag=True, help="Every event of --actor, or of anybody, in order of arrival instead.")
@click.option("--suggest", is_flag=True, help="The smallest grant that each agent's calls would have needed instead.")
def audit_command(
    call: Call,
    names: tuple[str, ...],
    problems: bool,
    listed: bool,
    strict: bool,
    events: bool,
    suggest: bool,
    **options: Any,
) -> int:
    """Show what agents used against what they were allowed.

    It lists tools that were called and did not exist, were denied or were not permitted, and rights that were used
    without a grant; then what is unknown because nobody recorded it; then what was granted or available and never used.
    Without names: every turn. A session stands for the turns it made. Exits with 1 if anything was used without being
    allowed.

    On a terminal it begins with a summary, and lists what was not allowed; --list, --problems or names list the rest.

    docs/reading.md#audit says how rules are read.
    """
    if suggest:
        if problems or listed or strict or events:
            raise click.UsageError("--suggest takes names, --actor, --tool, --since and --until only")
        _suggest(call, names, options)
        return OK
    if events:
        if names or options["tool"] or problems or listed or strict:
            raise click.UsageError("--events takes --actor, --since and --until only")
        _answer_deeds(call, options)
        return OK
    tally = AuditTally()
    with call.reading() as ledger:
        findings = ledger.audit.findings(*names, tally=tally, **options)
        shown = (finding for finding in findings if not problems or finding.severity is AuditSeverity.PROBLEM)
        if call.screen.terminal and not (call.json or listed or problems or names):
            _summarise(call, ledger, shown, tally)
        else:
            _answer(call, ledger, shown, tally)
    return DIFFERENT if tally.problems or (strict and tally.not_known) else OK


def _suggest(call: Call, names: tuple[str, ...], options: dict[str, Any]) -> None:
    with call.reading() as ledger, progress(call, "audit", by_itself=True):
        grants = ledger.audit.suggest(*names, **options)
    if call.json:
        call.documents(grants)
        return
    rows = [(Span(grant.persona_id, "label"), pattern) for grant in grants for pattern in grant.allow]
    call.screen.table(rows, ("agent", "allow"))
    if rows:
        call.note("name a toolset of these: `weft toolset create NAME --allow PATTERN …`; widen them where you see fit")


def _answer(call: Call, ledger: Ledger, audit_findings: Iterable[AuditFinding], tally: AuditTally) -> None:
    if call.json:
        findings = list(audit_findings)  # which fills the tally
        call.document(audit_answer(findings, tally))
        return
    labels = _shown_labels(call, ledger)
    if call.screen.terminal:  # where a table needs all of its rows
        with progress(call, "audit", by_itself=True):
            audit_findings = list(audit_findings)
    rows = (_finding_row(finding, labels, finding.turns) for finding in audit_findings)
    call.screen.table(rows, AUDIT_HEADER, spare=("turns", "turn"))
    call.note(*_tally_line(tally))


def _shown_labels(call: Call, ledger: Ledger) -> dict[str, str]:
    """What to type for each session, by its label; other programs read the labels as they are."""
    return ledger.listing().short_labels() if call.screen.terminal else {}


class _Kind:
    """The findings of one kind, counted."""

    def __init__(self, severity: AuditSeverity) -> None:
        self.severity, self.count = severity, 0
        self.sessions: set[str] = set()
        self.subjects: Counter[str] = Counter()

    def add(self, finding: AuditFinding) -> None:
        self.count += 1
        self.sessions.add(finding.session_id or finding.persona_id or "")
        of_no_name = "any right" if finding.kind is FindingKind.USE_NOT_RECORDED else "any tool"
        self.subjects[finding.tool or finding.right or of_no_name] += finding.turns


def _summarise(call: Call, ledger: Ledger, findings: Iterable[AuditFinding], tally: AuditTally) -> None:
    """How much of each kind there is and where most of it is; what was not allowed by turn and tool."""
    kinds: dict[FindingKind, _Kind] = {}
    problems: dict[AuditFinding, int] = {}
    with progress(call, "audit", by_itself=True):
        for finding in findings:
            kinds.setdefault(finding.kind, _Kind(finding.severity)).add(finding)
            if finding.severity is AuditSeverity.PROBLEM:
                in_turn = replace(finding, call_id=None)
                if in_turn in problems or len(problems) < SHOWN_PROBLEMS:
                    problems[in_turn] = problems.get(in_turn, 0) + 1
    call.screen.show(*_tally_line(tally))
    if kinds:
        call.screen.show("")
        rows = [_kind_row(kind, kinds[kind]) for kind in FindingKind if kind in kinds]
        call.screen.table(rows, ("what", "findings", "sessions", "mostly"), numbers=("findings", "sessions"))
    if problems:
        call.screen.show("")
        labels = _shown_labels(call, ledger)
        call.screen.table(
            [_finding_row(problem, labels, times) for problem, times in problems.items()],
            PROBLEM_HEADER,
            spare=("times", "turn"),
        )
    if more := tally.problems - sum(problems.values()):
        call.note(f"{more:,} more were not allowed: `weft audit --problems`")
    elif kinds:
        call.note("`weft audit --list` shows each; `weft audit SESSION` those of one session")


def _kind_row(kind: FindingKind, counted_kind: _Kind) -> tuple[Span | str, ...]:
    mostly = ", ".join(f"{name} ({turns:,})" for name, turns in counted_kind.subjects.most_common(SHOWN_SUBJECTS))
    return (
        Span(MEANINGS[kind], AUDIT_STYLES[counted_kind.severity]),
        f"{counted_kind.count:,}",
        f"{len(counted_kind.sessions):,}",
        mostly,
    )


def _finding_row(finding: AuditFinding, labels: dict[str, str], count: int) -> tuple[Span | str, ...]:
    session = finding.session or finding.persona_id or ""
    return (
        Span(finding.kind.value, AUDIT_STYLES[finding.severity]),
        Span(labels.get(session, session), "label"),
        Span("" if finding.turn_id is None else short(finding.turn_id), "id"),
        finding.tool or finding.right or "",
        str(count),
        finding.detail,
    )


def _tally_line(tally: AuditTally) -> Iterator[Span | str]:
    if not tally.turns:
        yield "no turns to audit: record some, or name others"
        return
    yield f"{counted(tally.turns, 'turn')}, {counted(tally.calls, 'call')}: {tally.allowed:,} allowed, "
    yield Span(f"{tally.problems:,} not allowed", "bad" if tally.problems else "good")
    yield f", {tally.not_known:,} not known"
    if tally.refused:
        malformed = f", {tally.malformed:,} of them for arguments that fit no tool" if tally.malformed else ""
        yield f"; {tally.refused:,} more refused before running{malformed}"


def _answer_deeds(call: Call, options: dict[str, Any]) -> None:
    with call.reading() as ledger:
        deeds = ledger.audit.actor_history(options["actor"], since=options["since"], until=options["until"])
        if call.json:
            call.documents(deeds)
        else:
            call.screen.page(_deed_lines(deeds)) if call.screen.terminal else call.screen.table(
                map(_deed_cells, deeds), DEEDS
            )


def _deed_cells(deed: ActorEvent) -> tuple[str, ...]:
    when = local_time(deed.arrived_at if deed.happened_at is None else deed.happened_at)
    actor = " for ".join((deed.actor, *deed.on_behalf_of))
    return str(deed.n), when, actor, deed.kind, _place_of_deed(deed), deed.tool or ""


def _place_of_deed(deed: ActorEvent) -> str:
    kind, _, name = deed.stream.partition(":")
    return f"{'turn' if kind == 'run' else kind} {short(name)}"


def _deed_lines(deeds: Iterable[ActorEvent]) -> Iterator[list[Span | str]]:
    """As they are read: a log may be longer than memory."""
    for deed in deeds:
        n, when, actor, kind, where, tool = _deed_cells(deed)
        yield [
            Span(f"{n:>8}", "id"),
            f"  {when}  ",
            Span(actor, "label"),
            f"  {kind:<20}  {where}  ",
            Span(tool, "tool"),
        ]


# --- A period as people write it: a day, a month, a year, `last week`, `FIRST..LAST`, or a time from which on.

ALL = "all"
_MONTH = re.compile(r"(\d{4})-(\d\d)")
_YEAR = re.compile(r"\d{4}")
_DAY = re.compile(r"\d{4}-\d\d-\d\d|today|yesterday")


def period_ends(words: str, today: date) -> tuple[str | None, str | None]:
    """The first and the last time of a period, each as `--since` and `--until` read it; None: it has no such end.

    A day, a month and a year are meant whole; whatever is no period is a time from which on.
    """
    text = " ".join(words.lower().split())
    if text == ALL:
        return None, None
    if ".." in text:
        first, _, last = text.partition("..")
        return period_ends(first, today)[0] if first.strip() else None, _end(last, today)
    if calendar := _calendar_days(text, today):
        return calendar[0].isoformat(), calendar[1].isoformat()
    return (text, text) if _DAY.fullmatch(text) else (text, None)


def _end(words: str, today: date) -> str | None:
    """The end of what stands behind the dots; of a plain time, that time."""
    if not words.strip():
        return None
    first, last = period_ends(words, today)
    return last or first


def _calendar_days(text: str, today: date) -> tuple[date, date] | None:
    """The first and the last day of a week, month or year."""
    if (month := _MONTH.fullmatch(text)) and 1 <= int(month[2]) <= 12 and int(month[1]):
        return _month(int(month[1]), int(month[2]))
    if _YEAR.fullmatch(text) and int(text):
        return _year(int(text))
    monday, month_before = today - timedelta(days=today.weekday()), today.replace(day=1) - timedelta(days=1)
    named = {
        "this week": (monday, monday + timedelta(days=6)),
        "last week": (monday - timedelta(days=7), monday - timedelta(days=1)),
        "this month": _month(today.year, today.month),
        "last month": _month(month_before.year, month_before.month),
        "this year": _year(today.year),
        "last year": _year(today.year - 1),
    }
    return named.get(text)


def _month(year: int, month: int) -> tuple[date, date]:
    last = 31 if month == 12 else (date(year, month + 1, 1) - timedelta(days=1)).day
    return date(year, month, 1), date(year, month, last)


def _year(year: int) -> tuple[date, date]:
    return date(year, 1, 1), date(year, 12, 31)


def named_period(words: str) -> Period:
    """The period that these words mean today, on this machine's calendar."""
    from weft.kernel.clock import SystemClock

    today = (EPOCH + timedelta(milliseconds=SystemClock().now_ms())).astimezone().date()
    return read_period(*period_ends(words, today))


# --- `weft story`: what was worked on in a period.

LATELY = "7 days ago"
STORY_PERIODS = (
    "today",
    "yesterday",
    "this week",
    "last week",
    "this month",
    "last month",
    "this year",
    "last year",
    ALL,
)


def _complete_periods(_: click.Context, __: click.Parameter, incomplete: str) -> list[str]:
    return [period for period in STORY_PERIODS if period.startswith(incomplete)]


@weft_command("story")
@click.argument("period", nargs=-1, shell_complete=_complete_periods)
@click.option("--full", is_flag=True, help="Every session and every file.")
def story_command(call: Call, period: tuple[str, ...], full: bool) -> None:
    """Show what was worked on in a period, project by project.

    Sessions, agents, files and cost of each project, the latest first. PERIOD is a day, a month or a year (today,
    2026-11-15, 2026-11, last week, this year), a time from which on ('2 weeks ago'), two of them with dots in between,
    or all. Without it: the last 7 days.

    A day or a month is that day or month, a week is from Monday to Sunday, '2 weeks ago' is from then on,
    2026-11-01..yesterday, 2026-11.. and ..2025 go from the beginning of the first to the end of the last, and all is
    everything, also what has no date.

    The story tells the sessions and files of a period; `weft projects` only adds up each project, and `weft usage`
    tells tokens and cost by day, model and more.

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


# --- What was worked on in a period, as lines: projects, sessions, agents, cost and the files that were changed.

DAY = len("2026-11-15")
SESSIONS, FILES = 12, 8
NARROWEST = 30
UNDATED_HEADING = "without a date (their tools noted none):"


def work_lines(report: WorkReport, columns: int, full: bool) -> Iterator[Line]:
    subagents = {session.session_id: session.is_subagent for project in report.projects for session in project.sessions}
    yield [Span(_period_words(report), "heading")]
    helpers = sum(subagents.values())
    main = len(subagents) - helpers
    counts = [
        counted(main, "session") + (f" and {counted(helpers, 'subagent')}" if helpers else ""),
        counted(len(report.projects), "project"),
        counted(sum(project.turns for project in report.projects), "turn"),
    ]
    yield [", ".join(counts)]
    yield [", ".join(_spending_words(report))]
    for project in report.projects:
        yield []
        yield from _project(project, columns, full)


def _period_words(report: WorkReport) -> str:
    dated = [session for project in report.projects for session in project.sessions if session.time_known]
    if not dated:
        return "no dates"
    start = report.since_at if report.since_at is not None else min(session.first_at for session in dated)
    end = max(session.last_at for session in dated)
    if report.until_at is not None:
        end = min(end, report.until_at - 1)  # a turn of the period may have ended after it
    first, last = local_time(start)[:DAY], local_time(end)[:DAY]
    return first if first == last else f"{first} to {last}"


def _spending_words(report: WorkReport) -> Iterator[str]:
    total = report.total
    if total.total:
        yield f"{abbreviated(total.total)} tokens"
        yield dollars(total)
    else:
        yield "no usage recorded"


def _project(project: ProjectWork, columns: int, full: bool) -> Iterator[Line]:
    cost = f", {dollars(project.spending)}" if project.spending.total else ""
    agents = f", with {_listed_words(project.origins)}" if project.origins != ("weft",) else ""
    figures = f"  {counted(project.turns, 'turn')}{agents}{cost}"
    yield [Span(project.name, "label"), Span(figures, "dim")]
    main = [session for session in project.sessions if not session.is_subagent] or list(project.sessions)
    alike = _grouped_alike(main)
    shown = alike if full else alike[:SESSIONS]
    for sessions in (group for group in shown if group[0].time_known):
        yield _session_lines(sessions, columns)
    if undated := [group for group in shown if not group[0].time_known]:
        yield ["  ", Span(UNDATED_HEADING, "dim")]
        for sessions in undated:
            yield _session_lines(sessions, columns)
    if left := len(main) - sum(map(len, shown)):
        yield ["  ", Span(f"… {counted(left, 'more session')} (--full)", "dim")]
    yield from _files(project, columns, full)


def _grouped_alike(sessions: Sequence[SessionWork]) -> list[list[SessionWork]]:
    """Sessions with the same words to them are told once, those without a date by themselves."""
    by_words: dict[tuple[bool, str], list[SessionWork]] = {}
    for session in sessions:
        by_words.setdefault((session.time_known, session.about or session.session_id), []).append(session)
    return list(by_words.values())


def _session_lines(sessions: list[SessionWork], columns: int) -> Line:
    session = sessions[0]
    day = local_time(session.last_at)[:DAY] if session.time_known else " " * DAY
    several = [counted(len(sessions), "session")] if len(sessions) > 1 else []
    models = dict.fromkeys(model for work in sessions for model in work.models)
    beside = [*several, counted(sum(work.turns for work in sessions), "turn"), *list(models)[:2]]
    if failed := sum(work.failed for work in sessions):
        beside.append(f"{failed} failed")
    if spent := [work.spending for work in sessions if work.spending.total]:
        beside.append(dollars(*spent))
    tail = f"  [{', '.join(safe(word) for word in beside)}]"
    about = " ".join(session.about.split()) or session.short_label
    return [
        "  ",
        Span(day, "dim"),
        "  ",
        cut(safe(about), max(NARROWEST, columns - DAY - 4 - len(tail))),
        Span(tail, "dim"),
    ]


def _files(project: ProjectWork, columns: int, full: bool) -> Iterator[Line]:
    if not project.files:
        return
    shown = project.files if full else project.files[:FILES]
    yield ["  ", Span(f"{counted(len(project.files), 'file')} written:", "dim")]
    lead = f"{project.path.rstrip('/')}/"
    for file in shown:
        times = f"  ({file.changes}x)" if file.changes > 1 else ""
        yield ["    ", cut(safe(file.path.removeprefix(lead)), max(NARROWEST, columns - 12)), Span(times, "dim")]
    if len(shown) < len(project.files):
        yield ["    ", Span(f"… {len(project.files) - len(shown):,} more (--full)", "dim")]


def _listed_words(words: Sequence[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"
