"""What was done, what it cost, and what relates to what: usage, projects, the work of a period, audits, the size of the
ledger, and the agent graph.
"""

from __future__ import annotations

import re
from datetime import date, datetime, timedelta, timezone
from typing import TYPE_CHECKING, Annotated, Literal

from weft.kernel.clock import SystemClock
from weft.ledger.api import (
    AbandonedUsage,
    ActorEvent,
    AuditSeverity,
    AuditTally,
    BranchUsage,
    SuggestedGrant,
    UsageReport,
    UsageTree,
    WorkReport,
    read_moment,
)
from weft.ledger.api.base import zone_of
from weft.verbs.answers import LazyList, Listing
from weft.verbs.declaration import (
    HERE,
    SESSION,
    Machine,
    Names,
    OpenMode,
    RequestError,
    TypedForm,
    VerbGroup,
    arg,
    opt,
    verb,
)
from weft.verbs.exchange_answers import AuditAnswer, LedgerFigures, ProjectTotals, audit_answer, project_totals
from weft.verbs.session_verbs import ensure_known_origin

if TYPE_CHECKING:
    from weft.graph.edge_reader import (
        Ancestry,
        CallPair,
        GraphNode,
        GraphWalk,
        Neighbours,
        PathsFound,
        PolicyStep,
        ResourceState,
        RunHistory,
    )
    from weft.graph.graph import Graph
    from weft.ledger.api import Ledger

Since = Annotated[str | None, opt("Only from this time on; a day means all of it.", metavar="TIME")]
Until = Annotated[str | None, opt("Only until this time; a day means all of it.", metavar="TIME")]


# --- `usage`: what was spent, on what, and what forks and copies would have made of it.


def _check_usage(
    branch: str | None,
    tree: str | None,
    abandoned: bool,
    by: str | None,
    since: str | None,
    until: str | None,
    session: str | None,
    room: str | None,
    origin: str | None,
    model: str | None,
    project: str | None,
    limit: int | None = None,
    chart: bool | None = None,
) -> None:
    alone = [bool(branch), bool(tree), abandoned]
    others = (by, since, until, session, room, origin, model, project, limit, chart)
    if any(alone) and (any(others) or sum(alone) > 1):
        raise RequestError("{branch}, {tree} and {abandoned} stand alone")


@verb(
    "usage",
    opens=OpenMode.COUNTING,
    reads_with=("branch", "tree", "abandoned"),
    check=_check_usage,
    is_slow=True,
)
def usage(
    ledger: Ledger,
    by: Annotated[
        Literal["day", "week", "month", "project", "session", "model", "provider", "origin"] | None,
        opt("What to sum up by. Default: day."),
    ] = None,
    since: Since = None,
    until: Until = None,
    session: Annotated[str | None, opt("Only turns that this session made.", metavar="SESSION", names=SESSION)] = None,
    room: Annotated[str | None, opt("Only what the agents of this room answered there.", metavar="ROOM")] = None,
    origin: Annotated[str | None, opt("Only history of this origin; weft's own is weft.", metavar="NAME")] = None,
    model: Annotated[
        str | None, opt("Only this model, or those that fit a pattern such as 'claude-*'.", metavar="NAME")
    ] = None,
    project: Annotated[
        str | None,
        opt(
            "Only work in this project, in this folder or below it; its last name is enough.",
            metavar="PATH",
            typed=TypedForm.PLACE,
        ),
    ] = None,
    branch: Annotated[str | None, opt("What this session alone has cost.", metavar="SESSION", names=SESSION)] = None,
    tree: Annotated[
        str | None, opt("What this turn has cost with its workers' turns.", metavar="TURN", names=SESSION)
    ] = None,
    abandoned: Annotated[bool, opt("What turns have cost that no session contains any more.")] = False,
    prices: Annotated[
        str | None, opt("Your own prices; else prices.toml in weft's config folder.", metavar="FILE", is_path=True)
    ] = None,
    machine: Machine = HERE,
) -> UsageReport | BranchUsage | UsageTree | AbandonedUsage:
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
    table = machine.prices(prices)
    answer: UsageReport | BranchUsage | UsageTree | AbandonedUsage
    if branch is not None:
        answer = ledger.usage.branch(branch, prices=table)
    elif tree is not None:
        answer = ledger.usage.tree(tree, prices=table)
    elif abandoned:
        answer = ledger.usage.abandoned(prices=table)
    else:
        now, zone = SystemClock().now_ms(), zone_of(ledger)
        answer = ledger.usage.report(
            by or "day",
            since=read_moment(since, "since", now, zone),
            until=read_moment(until, "until", now, zone),
            session=session,
            room=room,
            origin=origin,
            model=model,
            project=project,
            zone=machine.zone,
            prices=table,
        )
        if not answer.rows:
            ensure_known_origin(ledger, origin)
    table.keep()
    return answer


# --- `projects` and `story`: what was worked on, project by project.


class ProjectPage(Listing[ProjectTotals], frozen=True, kw_only=True):
    """`further`: how many there are beyond the limit."""

    further: int


@verb("projects", opens=OpenMode.COUNTING, is_slow=True)
def projects(
    ledger: Ledger,
    since: Annotated[str | None, opt("Only work from this time on; a day means all of it.", metavar="TIME")] = None,
    until: Annotated[str | None, opt("Only work until this time; a day means all of it.", metavar="TIME")] = None,
    limit: Annotated[int | None, opt("At most N projects.", "-n", "--limit", metavar="N", least=0)] = None,
    machine: Machine = HERE,
) -> ProjectPage:
    """List projects: sessions, agents, tokens and cost of each.

    A project is a repository with all its worktrees and clones, where it is known, else a folder. The latest first. In
    a pipe tokens are whole numbers, and the cost is in micro-dollars.

    The cost is empty where it is not known. docs/reading.md#projects says what a project is. `weft story` shows what
    was worked on, `weft usage` the cost by day or model.
    """
    prices = machine.prices(None)
    worked_on = ledger.usage.work(since=since, until=until, prices=prices, about=False).projects
    prices.keep()
    shown = [project_totals(project) for project in worked_on[:limit]]
    return ProjectPage(items=shown, further=len(worked_on) - len(shown))


ALL = "all"
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


@verb("story", opens=OpenMode.COUNTING, is_slow=True)
def story(
    ledger: Ledger,
    period: Annotated[tuple[str, ...], arg("When; in words, or dates.", names=Names("word", STORY_PERIODS))] = (),
    machine: Machine = HERE,
) -> WorkReport:
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
    utc = datetime.fromtimestamp(0, timezone.utc) + timedelta(milliseconds=SystemClock().now_ms())  # noqa: UP017
    since, until = period_ends(" ".join(period) or LATELY, utc.astimezone(zone_of(ledger)).date())
    prices = machine.prices(None)
    report = ledger.usage.work(since=since, until=until, prices=prices)
    prices.keep()
    return report


# --- A period as people write it: a day, a month, a year, `last week`, `FIRST..LAST`, or a time from which on.

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


# --- `audit`: did an agent use a tool that it should not have had?


def _check_audit(
    names: tuple[str, ...],
    tool: str | None,
    problems: bool,
    events: bool,
    suggest: bool,
    listed: bool = False,
    strict: bool = False,
) -> None:
    if suggest and (problems or listed or strict or events):
        raise RequestError("{suggest} takes names, {agent}, {tool}, {since} and {until} only")
    if events and (names or tool or problems or listed or strict):
        raise RequestError("{events} takes {agent}, {since} and {until} only")


@verb("audit", check=_check_audit, is_slow=True)
def audit(
    ledger: Ledger,
    names: Annotated[
        tuple[str, ...], arg("Sessions or turns; without any, every turn.", metavar="[SESSION|TURN]...", names=SESSION)
    ] = (),
    agent: Annotated[
        str | None, opt("Only what this agent did, by its name or id.", "--actor", metavar="AGENT")
    ] = None,
    tool: Annotated[
        str | None, opt("Only this tool, or those that fit a pattern such as 'mcp__github__*'.", metavar="NAME")
    ] = None,
    since: Since = None,
    until: Until = None,
    by: Annotated[
        Literal["turn", "session", "persona"], opt("What unused rights are gathered by. Default: session.")
    ] = "session",
    problems: Annotated[bool, opt("Only what was used without being allowed.")] = False,
    events: Annotated[bool, opt("Every event of --actor, or of anybody, in order of arrival instead.")] = False,
    suggest: Annotated[bool, opt("The smallest grant that each agent's calls would have needed instead.")] = False,
) -> AuditAnswer | Listing[SuggestedGrant] | Listing[ActorEvent]:
    """Show what agents used against what they were allowed.

    It lists tools that were called and did not exist, were denied or were not permitted, and rights that were used
    without a grant; then what is unknown because nobody recorded it; then what was granted or available and never used.
    Without names: every turn. A session stands for the turns it made. Exits with 1 if anything was used without being
    allowed.

    On a terminal it begins with a summary, and lists what was not allowed; --list, --problems or names list the rest.

    docs/reading.md#audit says how rules are read.
    """
    if events:
        return Listing(items=LazyList(ledger.audit.actor_history(agent, since=since, until=until)))
    if suggest:
        grants = ledger.audit.suggest(*names, actor=agent, tool=tool, since=since, until=until, by=by)
        return Listing(items=grants)
    tally = AuditTally()
    met = ledger.audit.findings(*names, tally=tally, actor=agent, tool=tool, since=since, until=until, by=by)
    findings = [finding for finding in met if not problems or finding.severity is AuditSeverity.PROBLEM]
    return audit_answer(findings, tally)


# --- `stats`: how much there is.


@verb("stats", is_slow=True)
def stats(ledger: Ledger) -> LedgerFigures:
    """Show how big the ledger is, and of what.

    Superseded versions of a turn are counted separately, without their messages, calls and tokens. The total of tokens
    adds up turns; `weft usage` counts a response once, also where several turns contain it. `weft story` shows what was
    worked on.
    """
    return LedgerFigures(path=ledger.path, file_bytes=ledger.upkeep.disk_bytes(), counts=ledger.upkeep.stats())


# --- `graph`: what relates to what, since when and until when, and what of it was known at a time.

graph_group = VerbGroup(
    "graph",
    """Ask what relates to what: turns, events, tools, resources, policies, forks.

    docs/concepts.md#the-agent-graph lists the types of nodes and edges, and explains the two times of an edge. The
    first question about a large ledger takes a while.
    """,
)
MOST_ROWS = 10_000
NODE = Names("node")
At = Annotated[str | None, opt("What held at this time.", metavar="TIME")]
KnownAt = Annotated[str | None, opt("What this ledger knew at this time.", metavar="TIME")]
EdgeTypes = Annotated[tuple[str, ...], opt("Only edges of this type; can be repeated.", "--type", metavar="TYPE")]
Rows = Annotated[int, opt("At most N rows. Default: 200.", "-n", "--limit", metavar="N", least=1, most=MOST_ROWS)]


def _graph(ledger: Ledger) -> Graph:
    from weft.graph.graph import Graph

    return Graph(ledger)


@verb("graph node", opens=OpenMode.GRAPHING)
def graph_node(
    ledger: Ledger, node: Annotated[str, arg("The node.", names=NODE)], known_at: KnownAt = None
) -> GraphNode:
    """Show what is known of a node.

    NODE is a turn (main~1), an event by the beginning of its id, or KIND:NAME, such as session:main,
    program:researcher, resource:folder, policy:careful. What other commands show is taken too.
    """
    return _graph(ledger).node(node, known_at=known_at)


@verb("graph neighbours", opens=OpenMode.GRAPHING)
def graph_neighbours(
    ledger: Ledger,
    node: Annotated[str, arg("The node.", names=NODE)],
    types: EdgeTypes = (),
    direction: Annotated[Literal["both", "out", "in"], opt("Edges from it, to it, or both.")] = "both",
    at: At = None,
    known_at: KnownAt = None,
    limit: Rows = 200,
) -> Neighbours:
    """List the edges of a node and what is at their other ends.

    \b
    weft graph neighbours main --type EVENT_PRODUCES
    weft graph neighbours resource:folder --at yesterday
    """
    return _graph(ledger).neighbours(node, types, direction=direction, at=at, known_at=known_at, limit=limit)


@verb("graph path", opens=OpenMode.GRAPHING)
def graph_path(
    ledger: Ledger,
    start: Annotated[str, arg("The node that it begins at.", metavar="FROM", names=NODE)],
    end: Annotated[str, arg("The node that it ends at.", metavar="TO", names=NODE)],
    types: EdgeTypes = (),
    at: At = None,
    known_at: KnownAt = None,
    limit: Annotated[int, opt("At most N paths. Default: 3.", "-n", "--limit", metavar="N", least=1, most=100)] = 3,
    longest: Annotated[int, opt("Only paths of at most N edges. Default: 12.", metavar="N", least=1, most=50)] = 12,
) -> PathsFound:
    """Show the shortest paths between two nodes; edges count in both directions.

    An edge costs 1, and more where it is one of many: the agent of a thousand turns is far from each of them. The ways
    that cost least are shown.
    """
    return _graph(ledger).path(start, end, types, at=at, known_at=known_at, limit=limit, longest=longest)


@verb("graph history", opens=OpenMode.GRAPHING)
def graph_history(
    ledger: Ledger,
    run: Annotated[str, arg("The turn.", metavar="TURN", names=NODE)],
    known_at: KnownAt = None,
    limit: Rows = 200,
) -> RunHistory:
    """List the events of a turn in order."""
    return _graph(ledger).history(run, known_at=known_at, limit=limit)


@verb("graph lineage", opens=OpenMode.GRAPHING)
def graph_lineage(
    ledger: Ledger,
    node: Annotated[str, arg("The node.", names=NODE)],
    at: At = None,
    known_at: KnownAt = None,
    limit: Rows = 200,
) -> GraphWalk:
    """Show what a node was derived from, step by step."""
    return _graph(ledger).lineage(node, at=at, known_at=known_at, limit=limit)


@verb("graph calls", opens=OpenMode.GRAPHING)
def graph_calls(
    ledger: Ledger,
    node: Annotated[str, arg("A turn, or one of its answers.", metavar="TURN|CALL", names=NODE)],
    known_at: KnownAt = None,
    limit: Rows = 200,
) -> Listing[CallPair]:
    """List the tool calls of a turn or of an answer, each with its results."""
    return Listing(items=_graph(ledger).calls(node, known_at=known_at, limit=limit))


@verb("graph resources", opens=OpenMode.GRAPHING)
def graph_resources(
    ledger: Ledger,
    node: Annotated[str | None, arg("A resource, or whose resources are meant.", names=NODE)] = None,
    at: At = None,
    known_at: KnownAt = None,
    limit: Rows = 200,
) -> Listing[ResourceState]:
    """Show who owned, used and mounted resources at a time, by default now.

    NODE is a resource, or a turn, a session or an agent whose resources are meant; without it, all of them.
    """
    return Listing(items=_graph(ledger).resources(node, at=at, known_at=known_at, limit=limit))


@verb("graph policies", opens=OpenMode.GRAPHING)
def graph_policies(
    ledger: Ledger,
    node: Annotated[str | None, arg("A policy, or an agent.", names=NODE)] = None,
    at: At = None,
    known_at: KnownAt = None,
    limit: Rows = 200,
) -> Listing[PolicyStep]:
    """List which approval policies were proposed and active, and for how long.

    NODE is a policy, or an agent whose policies are meant; without it, all of them.
    """
    return Listing(items=_graph(ledger).policies(node, at=at, known_at=known_at, limit=limit))


@verb("graph ancestry", opens=OpenMode.GRAPHING)
def graph_ancestry(
    ledger: Ledger,
    node: Annotated[str, arg("A session or a turn.", metavar="SESSION|TURN", names=NODE)],
    known_at: KnownAt = None,
    limit: Rows = 200,
) -> Ancestry:
    """Show what a session was forked from or started by, back to the first session."""
    return _graph(ledger).ancestry(node, known_at=known_at, limit=limit)
