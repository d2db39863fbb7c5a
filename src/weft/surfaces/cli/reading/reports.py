"""What was done, and what it cost: `weft usage`, `projects` and `audit`, and `story`, what
was worked on in a period, which is read as people write it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, cast

from msgspec.structs import replace

from weft.kernel.typed_names import shell_word
from weft.ledger.api import (
    PERIODS,
    UNKNOWN,
    AbandonedUsage,
    AuditFinding,
    AuditSeverity,
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
from weft.surfaces.cli.arguments import NO_MODEL, NO_PROJECT, as_wanted
from weft.surfaces.cli.command_line import DIFFERENT, OK, Call
from weft.surfaces.cli.progress import abbreviated, bar, counted, dollar_text, dollars
from weft.surfaces.cli.screen import (
    NO_DATE,
    Line,
    Screen,
    Span,
    fitting,
    local_minute,
    local_time,
)
from weft.surfaces.cli.turn_lists import note_left_out, quoted_title, short
from weft.surfaces.cli.verb_commands import shows
from weft.surfaces.plain_text import cut, pad, safe, width
from weft.verbs import report_verbs as verbs
from weft.verbs.answers import Listing
from weft.verbs.declaration import opt
from weft.verbs.exchange_answers import AuditAnswer, AuditSummary, ProjectTotals
from weft.verbs.session_verbs import NOTHING_YET

if TYPE_CHECKING:
    from weft.ledger.api import ActorEvent, Ledger, SuggestedGrant


# --- `weft usage`: what was spent, on what, and what forks and copies would have made of it.

MODEL_COLUMNS = 60
USAGE_HEADER = ("tokens", "input", "cache write", "cache read", "output", "cost")
USAGE_SPARE = ("cache write", "cache read", "input", "output")
LONGEST_KEY, LONGEST_BAR, TASK_COLUMNS = 48, 30, 40
LEAST_KEY, LEAST_NAME = 32, 20
"""So many columns a key needs, and so many that of a project or a session, before columns of figures are left out."""
NOTHING = "no usage yet: record turns with their usage, or bring sessions in with `weft import`"
NOTHING_CHOSEN = "nothing was spent on that; `weft usage` shows all there is"


@shows(verbs.usage)
def show_usage(
    call: Call,
    usage: UsageReport | BranchUsage | UsageTree | AbandonedUsage,
    ledger: Ledger,
    since: str | None,
    until: str | None,
    session: str | None,
    room: str | None,
    origin: str | None,
    model: str | None,
    project: str | None,
    chart: Annotated[
        bool | None,
        opt("Bars beside the rows, or none with --no-chart. Default: on a terminal.", "--chart/--no-chart"),
    ] = None,
    limit: Annotated[
        int | None,
        opt("At most N rows: the latest, or the most expensive.", "-n", "--limit", metavar="N", least=1),
    ] = None,
) -> None:
    if isinstance(usage, BranchUsage):
        _show_branch(call, usage)
    elif isinstance(usage, UsageTree):
        _show_tree(call, usage)
    elif isinstance(usage, AbandonedUsage):
        _show_abandoned(call, usage)
    else:
        nothing = ""
        if not usage.rows:
            is_chosen = any((since, until, session, room, origin, model, project))
            nothing = _nothing_spent_words(ledger, model, project) if is_chosen else NOTHING
        _show_report(call, ledger, usage, limit, chart, nothing)


def _nothing_spent_words(ledger: Ledger, model: str | None, project: str | None) -> str:
    """What is told where nothing was spent on what was chosen."""
    if project is not None and not ledger.usage.report("project", project=as_wanted(project)).rows:
        return f"nothing was spent on that: {NO_PROJECT}"
    if model is not None and not ledger.usage.report("model", model=model).rows:
        return f"nothing was spent on that: {NO_MODEL}"
    return NOTHING_CHOSEN


def _show_report(
    call: Call, ledger: Ledger, report: UsageReport, limit: int | None, chart: bool | None, nothing: str
) -> None:
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


def _show_branch(call: Call, usage: BranchUsage) -> None:
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


def _show_tree(call: Call, usage: UsageTree) -> None:
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


def _show_abandoned(call: Call, usage: AbandonedUsage) -> None:
    if not usage.rows:
        call.note("nothing was abandoned: every turn that cost something is in a session")
        return
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


@shows(verbs.projects)
def show_projects(call: Call, page: verbs.ProjectPage, since: str | None, until: str | None) -> None:
    if page.items:
        rows = [_project_row(project, call.screen.terminal) for project in page.items]
        numbers, least = ("sessions", "turns", "tokens", "cost"), {"project": PROJECT_COLUMNS}
        call.screen.table(rows, PROJECTS_HEADER, numbers=numbers, spare=PROJECTS_SPARE, least=least)
    if page.further:
        call.note(f"{page.further:,} more: -n N lists more")
    elif not page.items:
        call.note("no work in that time" if since or until else "no turns yet: `weft import` brings sessions in")


def _project_row(project: ProjectTotals, terminal: bool) -> tuple[Span | str, ...]:
    when = (local_minute if terminal else local_time)(project.last_at)
    return (
        Span(project.name, "label"),
        *(_figures if terminal else _plain_project)(project),
        when if project.time_known else NO_DATE,
        ", ".join(project.origins),
        project.path,
    )


def _figures(project: ProjectTotals) -> tuple[str, ...]:
    spent = project.spending
    counts = (f"{project.sessions:,}", f"{project.turns:,}")
    return (*counts, abbreviated(spent.total), dollars(spent) if spent.total else "")


def _plain_project(project: ProjectTotals) -> tuple[str, ...]:
    """Whole numbers, for programs that read tables; cost in micro-dollars, empty where it is not known."""
    spent = project.spending
    counts = (str(project.sessions), str(project.turns), str(spent.total))
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


def _audit_exit_code(
    audit: AuditAnswer | Listing[SuggestedGrant] | Listing[ActorEvent],
    strict: Annotated[bool, opt("Exit with 1 also for what is not known.", before="events")] = False,
) -> int:
    if isinstance(audit, Listing):
        return OK
    return DIFFERENT if not audit.ok or (strict and audit.summary.not_known) else OK


@shows(verbs.audit, exit_code=_audit_exit_code)
def show_audit(
    call: Call,
    audit: AuditAnswer | Listing[SuggestedGrant] | Listing[ActorEvent],
    ledger: Ledger,
    names: tuple[str, ...],
    problems: bool,
    suggest: bool,
    listed: Annotated[
        bool, opt("Every finding, not a summary, also on a terminal.", "--list", before="events")
    ] = False,
) -> None:
    if isinstance(audit, AuditAnswer):
        is_summary = call.screen.terminal and not (listed or problems or names)
        (_show_summary if is_summary else _show_findings)(call, ledger, audit)
    elif suggest:
        grants = cast("Sequence[SuggestedGrant]", audit.items)
        rows = [(Span(grant.persona_id, "label"), pattern) for grant in grants for pattern in grant.allow]
        call.screen.table(rows, ("agent", "allow"))
        if rows:
            named = "`weft toolset create NAME --allow PATTERN …`"
            call.note(f"name a toolset of these: {named}; widen them where you see fit")
    else:
        deeds = cast("Sequence[ActorEvent]", audit.items)
        if call.screen.terminal:
            call.screen.page(_deed_lines(deeds))
        else:
            call.screen.table(map(_deed_cells, deeds), DEEDS)


def _show_findings(call: Call, ledger: Ledger, audit: AuditAnswer) -> None:
    labels = _shown_labels(call, ledger)
    rows = (_finding_row(finding, labels, finding.turns) for finding in audit.findings)
    call.screen.table(rows, AUDIT_HEADER, spare=("turns", "turn"))
    call.note(*_tally_line(audit.summary))


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


def _show_summary(call: Call, ledger: Ledger, audit: AuditAnswer) -> None:
    """How much of each kind there is and where most of it is; what was not allowed by turn and tool."""
    kinds: dict[FindingKind, _Kind] = {}
    problems: dict[AuditFinding, int] = {}
    for finding in audit.findings:
        kinds.setdefault(finding.kind, _Kind(finding.severity)).add(finding)
        if finding.severity is AuditSeverity.PROBLEM:
            in_turn = replace(finding, call_id=None)
            if in_turn in problems or len(problems) < SHOWN_PROBLEMS:
                problems[in_turn] = problems.get(in_turn, 0) + 1
    call.screen.show(*_tally_line(audit.summary))
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
    if more := audit.summary.problems - sum(problems.values()):
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


def _tally_line(tally: AuditSummary) -> Iterator[Span | str]:
    if not tally.turns:
        yield "no turns to audit: record some, or name others"
        return
    yield f"{counted(tally.turns, 'turn')}, {counted(tally.calls, 'call')}: {tally.allowed:,} allowed, "
    yield Span(f"{tally.problems:,} not allowed", "bad" if tally.problems else "good")
    yield f", {tally.not_known:,} not known"
    if tally.refused:
        malformed = f", {tally.malformed:,} of them for arguments that fit no tool" if tally.malformed else ""
        yield f"; {tally.refused:,} more refused before running{malformed}"


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


# --- `weft story`: what was worked on in a period.


@shows(verbs.story)
def show_story(
    call: Call,
    report: WorkReport,
    ledger: Ledger,
    period: tuple[str, ...],
    full: Annotated[bool, opt("Every session and every file.")] = False,
) -> None:
    if report.projects:
        call.screen.page(work_lines(report, call.screen.columns, full))
    elif not ledger.log(1):
        call.note(NOTHING_YET)
    else:
        when = "in the last 7 days" if not period else f"in the period {' '.join(period)!r}"
        call.note(f"nothing was recorded {when}: `weft story {shell_word(verbs.ALL)}` tells everything")


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
