"""What was spent: every provider response once, however many forks and copies contain it; what
a turn has cost with all that it started, its workers' turns and those of their workers; and what
was worked on: projects with their sessions, agents, files and cost, over all time or a period.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import date, datetime, timedelta, timezone, tzinfo
from fnmatch import fnmatchcase
from functools import cached_property
from itertools import chain
from typing import Any, TypedDict

from msgspec import Struct

from weft.kernel.errors import InvalidInput, quoted
from weft.ledger.arguments import checked_text
from weft.ledger.imports.sources import count_provisional
from weft.ledger.model import UNDATED as UNDATED_MODEL
from weft.ledger.read.access import access_of
from weft.ledger.read.revisions import read_moment, require
from weft.ledger.read.session_list import HERE, full_path, load_subjects, meaningful_title
from weft.ledger.read.sessions import Projects, RepositoryOf, project_of, shown_labels
from weft.ledger.reports.prices import (
    EMBEDDED_PROVIDER,
    FREE,
    PriceGroups,
    PriceTable,
    Spending,
    TallySums,
    TokenPrice,
    UnpricedModel,
    UsageRow,
    UsageTally,
    dearest_first,
    shipped_prices,
    total_of,
)
from weft.ledger.reports.responses import (
    CountedResponse,
    CoverageTree,
    Place,
    ReportedUsage,
    SessionHead,
    ThreadCount,
    ThreadReach,
    Values,
    count_responses,
    heads,
    repeated,
    reported,
    reported_elsewhere,
    reported_in,
    standing,
)
from weft.ledger.reports.usage_totals import (
    PROMPT_STEPS,
    SLOT,
    WORKED,
    CountedUsage,
    ResponseCell,
    Span,
    UsageTotals,
    WorkCell,
    counted_response,
    load_totals,
    scanned,
    split_period,
    work_of,
)
from weft.ledger.room_records import find_conversation
from weft.ledger.views.rows import SESSION, SessionRow, TurnRow, load_session_number, name_of, text_of
from weft.ledger.views.sightings import NO_SESSION_AGE, SessionAge, session_age
from weft.store.port import ReadTxn
from weft.store.sql import Row, rows_in

# --- What was spent: every provider response once, however many forks and copies contain it.

PERIODS = ("day", "week", "month")
BY = (*PERIODS, "project", "session", "model", "provider", "origin")
NONE, UNKNOWN, UNDATED = "(none)", "(unknown)", "(undated)"
_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)  # noqa: UP017 - the alias hides what it is


Prices = PriceTable | None
"""None: the table that is shipped."""


class UsageChoice(TypedDict, total=False):
    """What a report is limited to and how it is told. Times are Unix milliseconds or words; a day means all of it."""

    since: int | str | None
    until: int | str | None
    session: str | None
    """The session that made the turn."""
    room: str | None
    """The room that the turn answered in."""
    origin: str | None
    model: str | None
    """A name, or a pattern such as `claude-*`."""
    project: str | None
    """A folder with all below it, or its last name."""
    zone: tzinfo | None
    """Whose days they are; None: the ledger's."""
    prices: Prices


class UsageReport(Struct, frozen=True, kw_only=True):
    """Tokens and cost, by day, model, session or whatever was asked."""

    by: str
    zone: str
    since_at: int | None
    until_at: int | None
    rows: tuple[UsageRow, ...]
    """Periods in their order; everything else by cost, the dearest first."""
    total: Spending
    models: tuple[UsageRow, ...]
    unpriced: tuple[UnpricedModel, ...]
    abandoned: Spending
    """The part of the total that no session's thread contains any more."""
    naive: Spending
    """What a sum over every session's own history would have said."""
    naive_factor: float | None
    """Its tokens by those of the total; None where there are none."""
    prices_as_of: str | None
    """The day that the user's own file says it is of."""
    prices_from: str | None
    """The file or the table that they are from."""
    provisional: int = 0
    """Turns that other tools are still writing, whatever was chosen: they are in no sum yet."""


class BranchUsage(Struct, frozen=True, kw_only=True):
    """Tokens and cost of a session: of its whole thread, and of what no other session contains."""

    session: str
    session_id: str
    marginal: Spending
    """What only this branch contains: it would not have been spent without it."""
    marginal_turns: int
    """How many turns that is; those without recorded usage are not counted."""
    thread: Spending
    """All of its history, shared or not."""
    thread_turns: int
    """The same of all of its history."""
    models: tuple[UsageRow, ...]
    """Of the marginal part."""
    unpriced: tuple[UnpricedModel, ...]
    prices_as_of: str | None
    prices_from: str | None


class AbandonedRow(UsageRow, frozen=True, kw_only=True):
    status: str | None
    """Of the session that made the turns."""
    turns: int
    last_turn: str


class AbandonedUsage(Struct, frozen=True, kw_only=True):
    """Turns that no session stands on or above, by the session that made them."""

    rows: tuple[AbandonedRow, ...]
    total: Spending
    turns: int
    unpriced: tuple[UnpricedModel, ...]
    prices_as_of: str | None
    prices_from: str | None


class ColumnNames:
    """What columns stand for, each looked up once."""

    def __init__(self, txn: ReadTxn, zone: tzinfo, projects: Projects) -> None:
        self._txn, self._zone, self._projects = txn, zone, projects
        self._models: dict[str | None, str] = {}
        self._texts: dict[int, str] = {}
        self._sessions: dict[int, SessionRow | None] = {}
        self._ages: dict[int | None, SessionAge] = {}
        self._days: dict[int, date | None] = {}

    def model(self, column: str | None) -> str:
        if column not in self._models:
            name = name_of(self._txn, column)
            self._models[column] = UNKNOWN if name is None or name == "unknown" else name
        return self._models[column]

    def session(self, n: int | None) -> SessionRow | None:
        if n is None:
            return None
        if n not in self._sessions:
            self._sessions[n] = load_session_number(self._txn.sql, n)
        return self._sessions[n]

    def hold_sessions(self, numbers: Iterable[int | None]) -> None:
        """Look these up at once."""
        missing = [n for n in numbers if n is not None and n not in self._sessions]
        for row in rows_in(self._txn.sql, f"{SESSION.select} WHERE n IN", missing):
            self._sessions[row[0]] = SessionRow(*row)

    def age(self, n: int | None) -> SessionAge:
        """For ordering sessions, the earliest first; what belongs to none comes last."""
        if n not in self._ages:
            session = self.session(n)
            self._ages[n] = NO_SESSION_AGE if session is None else session_age(session, self._txn.facts.text)
        return self._ages[n]

    def of_session(self, n: int | None) -> dict[str, Any]:
        """The fields of a row that tell of a session: its label, its id and its title."""
        session = self.session(n)
        if session is None:
            return {"key": NONE}
        return {"key": session.label, "session_id": session.id, "title": text_of(self._txn, session.title)}

    def project(self, row: ReportedUsage) -> str:
        """The repository or the folder that the turn belongs to."""
        folder = self.folder(row)
        return folder if folder == NONE else self._projects.of(folder).key

    def is_in(self, row: ReportedUsage, wanted: str) -> bool:
        """Did the turn work in this project, in this folder, or below it?"""
        folder = self.folder(row)
        return _is_in(folder, wanted) or (folder != NONE and self._projects.is_in(folder, wanted))

    def folder(self, row: ReportedUsage) -> str:
        """Where the turn worked, else where its session did."""
        number = row.turn.workspace
        if number is None and (session := self.session(row.turn.session)) is not None:
            number = session.workspace
        if number is None:
            return NONE
        if number not in self._texts:
            self._texts[number] = text_of(self._txn, number) or NONE
        return self._texts[number]

    def day(self, at: int | None) -> date | None:
        """In the viewer's zone; None: nobody knows, or no calendar has it."""
        if at is None:
            return None
        slot = at // SLOT
        if slot not in self._days:
            try:
                self._days[slot] = (_EPOCH + timedelta(milliseconds=slot * SLOT)).astimezone(self._zone).date()
            except (OverflowError, ValueError):
                self._days[slot] = None
        return self._days[slot]


def week_of(day: date) -> str:
    year, week, _ = day.isocalendar()
    return f"{year:04d}-W{week:02d}"


_PERIOD_NAMES: dict[str, Callable[[date], str]] = {
    "day": date.isoformat,
    "week": week_of,
    "month": lambda day: f"{day:%Y-%m}",
}


def key_of(by: str, names: ColumnNames) -> Callable[[ReportedUsage], Any]:
    if by in PERIODS:
        period = _PERIOD_NAMES[by]

        def period_of(row: ReportedUsage) -> str:
            day = names.day(row.at)
            return UNDATED if day is None else period(day)

        return period_of
    found: dict[str, Callable[[ReportedUsage], Any]] = {
        "project": names.project,
        "session": lambda row: row.turn.session,
        "model": lambda row: names.model(row.model),
        "provider": lambda row: names.model(row.provider),
        "origin": lambda row: row.turn.origin,
    }
    if by not in found:
        raise InvalidInput(f"usage by {quoted(by)}", f"it is by {', '.join(BY)}")
    return found[by]


class UsageScope:
    """What a report is limited to."""

    def __init__(self, txn: ReadTxn, names: ColumnNames, only: UsageChoice, now: int, zone: tzinfo) -> None:
        if unknown := set(only) - set(UsageChoice.__annotations__):
            raise InvalidInput(
                f"usage knows no {quoted(min(unknown))}", f"known: {', '.join(UsageChoice.__annotations__)}"
            )
        self._names = names
        self.since = read_moment(only.get("since"), "since", now, zone)
        self.until = read_moment(only.get("until"), "until", now, zone)
        self.sessions = _chosen_sessions(txn, only)
        """The numbers of those whose turns count; None: of all."""
        self.origin, self.model, self.project = (
            None if given is None else checked_text(given, what)
            for given, what in ((only.get(name), name) for name in ("origin", "model", "project"))
        )

    def takes(self, row: ReportedUsage, *, of_session: bool = True) -> bool:
        if of_session and self.sessions is not None and row.turn.session not in self.sessions:
            return False
        if self.origin is not None and row.turn.origin != self.origin:
            return False
        if self.model is not None and not _is_called(self._names.model(row.model), self.model):
            return False
        return self._is_then(row.at) and (self.project is None or self._names.is_in(row, self.project))

    def _is_then(self, at: int | None) -> bool:
        if self.since is None and self.until is None:
            return True
        return at is not None and (self.since is None or at >= self.since) and (self.until is None or at < self.until)


def _chosen_sessions(txn: ReadTxn, only: UsageChoice) -> set[int] | None:
    session, room = only.get("session"), only.get("room")
    chosen = None if session is None else {require(txn, session).n}
    if room is None:
        return chosen
    id = find_conversation(txn, access_of(txn), checked_text(room, "room"))[0].id
    query = "SELECT s.n FROM participant p JOIN session s ON s.id = p.session WHERE p.conversation = ?"
    of_room = {n for (n,) in txn.sql.fetch_rows(query, (id,))}
    return of_room if chosen is None else of_room & chosen


def _is_called(model: str, wanted: str) -> bool:
    return model == wanted or fnmatchcase(model, wanted)


def _is_in(path: str, wanted: str) -> bool:
    folder = wanted.rstrip("/") or "/"
    if "/" not in wanted:
        return path == wanted or path.rpartition("/")[2] == wanted
    return path.rstrip("/") == folder or path.startswith(folder.rstrip("/") + "/")


class UsageSurvey:
    """One reading of a ledger's responses: their names and prices, and where threads go."""

    def __init__(self, txn: ReadTxn, zone: tzinfo, prices: Prices, repository_of: RepositoryOf | None = None) -> None:
        if not isinstance(zone, tzinfo) or not isinstance(prices, PriceTable | None):
            raise InvalidInput("usage takes a zone as tzinfo and prices as PriceTable", "prices_from() makes one")
        self.txn, self.names, self.prices = (
            txn,
            ColumnNames(txn, zone, Projects(txn, repository_of)),
            prices or shipped_prices(),
        )
        self.tree = CoverageTree(txn.sql)
        self._steps: dict[str, frozenset[int] | None] = {}
        """By model the steps of its prices that totals do not know; None: they may change at any time."""
        self._distinct_prices: dict[TokenPrice | None, TokenPrice | None] = {}
        """One object for all prices that are equal."""
        self._known_prices: dict[tuple[str | None, int | None, int], TokenPrice | None] = {}
        self.as_of = None if self.prices.as_of is None else self.prices.as_of.isoformat()

    @cached_property
    def totals(self) -> UsageTotals | None:
        """None: all rows are scanned. Reports that look at responses alone never load them."""
        return load_totals(self.txn)

    def heads(self, where: str, *values: object) -> list[SessionHead]:
        return heads(self.txn.sql, where, values)

    def responses(self) -> Iterator[CountedResponse]:
        sql = self.txn.sql
        return count_responses(reported(sql), repeated(sql), standing(sql), self.names.age)

    def responses_of(
        self, rows: Sequence[ReportedUsage], is_inside: Callable[[int, Place], bool] | None = None
    ) -> Iterator[CountedResponse]:
        """The responses of these rows, each with all places that it has in the ledger. `is_inside` tells of a place
        whether it lies among what the rows are of: a response that stands there may be reported elsewhere alone."""
        sql, turns = self.txn.sql, {row.turn.id for row in rows}
        copied, stands = repeated(sql), standing(sql)
        several = copied | stands.keys()
        natives = {row.native for row in rows if row.native is not None and row.native in several}
        if is_inside is not None:
            natives |= {native for native, place in stands.items() if is_inside(*place)}
        return count_responses([*rows, *reported_elsewhere(sql, natives, turns)], copied, stands, self.names.age)

    def counted(self, since: int | None, until: int | None) -> Iterator[CountedUsage]:
        """Everything of a period that counts, in the sum of all or for each thread, from totals where they are there.
        What lies beside the period may be among it."""
        if self.totals is None:
            return scanned(self.txn.sql, self.names.age)
        return self.totals.responses(since, until, self._is_even)

    def _is_even(self, cell: ResponseCell) -> bool:
        """Has everything in a cell one price?"""
        model = self.names.model(cell.model)
        if model not in self._steps:
            steps = self.prices.steps(model)
            self._steps[model] = None if steps is None or not steps.is_by_quarters else steps.prompts - {*PROMPT_STEPS}
        others = self._steps[model]
        if not others:
            return others is not None
        return all(bisect_left(PROMPT_STEPS, prompt) != cell.step for prompt in others)

    def price(self, counted: CountedUsage) -> TokenPrice | None:
        row = counted.row
        if row.provider == EMBEDDED_PROVIDER and row.turn.origin == HERE:
            return FREE
        key = row.model, row.at, counted.prompt
        if key not in self._known_prices:
            price = self.prices.price(self.names.model(row.model), row.at, counted.prompt)
            self._known_prices[key] = self._distinct_prices.setdefault(price, price)
        return self._known_prices[key]

    def add(self, sums: TallySums, key: Any, counted: CountedUsage) -> None:
        sums.add(key, self.names.model(counted.row.model), counted, self.price(counted))


def spent_by(
    survey: UsageSurvey, wanted: UsageScope, keys: Sequence[Callable[[ReportedUsage], Any]]
) -> list[dict[Any, UsageTally]]:
    """What was spent by each of these keys, of one reading."""
    by_keys = [PriceGroups() for _ in keys]
    for counted in survey.counted(wanted.since, wanted.until):
        if counted.is_once and wanted.takes(counted.row):
            price = survey.price(counted)
            for key, groups in zip(keys, by_keys, strict=True):
                groups.add(key(counted.row), counted, price)
    return [groups.tallies() for groups in by_keys]


def report(
    txn: ReadTxn, by: str, only: UsageChoice, now: int, zone: tzinfo, repository_of: RepositoryOf | None = None
) -> UsageReport:
    """Days, and words for times, are those of the zone that is chosen, or else of this one."""
    zone = only.get("zone") or zone
    survey = UsageSurvey(txn, zone, only.get("prices"), repository_of)
    wanted = UsageScope(txn, survey.names, only, now, zone)
    key, living = key_of(checked_text(by, "by"), survey.names), survey.heads("status <> 'deleted'")
    reach, naive_sum = ThreadReach(survey.tree, living), _Naive(survey, wanted, living)
    by_key, by_model, abandoned = PriceGroups(), PriceGroups(), PriceGroups()
    for counted in survey.counted(wanted.since, wanted.until):
        if counted.is_naive:
            naive_sum.look(counted)
        if counted.is_once and wanted.takes(counted.row):
            price = survey.price(counted)
            by_key.add(key(counted.row), counted, price)
            by_model.add(survey.names.model(counted.row.model), counted, price)
            if not any(reach.contains(*place) for place in counted.places):
                abandoned.add(None, counted, price)
    sums = TallySums(by_key.tallies(), by_model.tallies())
    total, naive = sums.total.spending(), total_of(naive_sum.groups.tallies().values()).spending()
    return UsageReport(
        by=by,
        zone=_zone_name(zone),
        since_at=wanted.since,
        until_at=wanted.until,
        rows=usage_rows(by, sums.by_key, survey.names),
        total=total,
        models=sums.models(),
        unpriced=sums.unpriced(),
        abandoned=total_of(abandoned.tallies().values()).spending(),
        naive=naive,
        naive_factor=round(naive.total / total.total, 4) if total.total else None,
        prices_as_of=survey.as_of,
        prices_from=survey.prices.source,
        provisional=count_provisional(txn.sql),
    )


def _zone_name(zone: tzinfo) -> str:
    return getattr(zone, "key", None) or zone.tzname(None) or "local"


class _Naive:
    """Counts as if every session were a file by itself: what several threads contain counts for each of them, and so
    does an older version that one still has. Of one session, or of one room's, it is their whole threads."""

    def __init__(self, survey: UsageSurvey, wanted: UsageScope, living: list[SessionHead]) -> None:
        self._survey, self._wanted, self.groups = survey, wanted, PriceGroups()
        chosen = wanted.sessions
        self._count = ThreadCount(survey.tree, [head for head in living if chosen is None or head.session in chosen])

    def look(self, counted: CountedUsage) -> None:
        (place,) = counted.places
        threads = self._count.threads(*place)
        if threads and self._wanted.takes(counted.row, of_session=False):
            self.groups.add(None, counted, self._survey.price(counted), threads)


def usage_rows(by: str, tallies: dict[Any, UsageTally], names: ColumnNames) -> tuple[UsageRow, ...]:
    if by == "session":
        names.hold_sessions(tallies)
        rows = [UsageRow(**names.of_session(n), **tally.fields()) for n, tally in tallies.items()]
    else:
        rows = [UsageRow(key=key, **tally.fields()) for key, tally in tallies.items()]
    if by in PERIODS:
        return tuple(sorted(rows, key=lambda row: row.key))
    return tuple(sorted(rows, key=lambda row: (*dearest_first(row), str(row.session_id))))


def branch_usage(txn: ReadTxn, session: str, prices: Prices) -> BranchUsage:
    """What a session's thread holds, and what of it no other active session has."""
    row = require(txn, session)
    survey = UsageSurvey(txn, timezone.utc, prices)  # noqa: UP017 - the alias hides what it is
    reach = ThreadReach(survey.tree, survey.heads("status = 'active' OR n = ?", row.n))
    own = ThreadReach(survey.tree, survey.heads("n = ?", row.n))
    marginal, thread = TallySums(), UsageTally()
    turns: set[tuple[int, int]] = set()
    alone: set[tuple[int, int]] = set()
    rows = [each for segment in sorted(own.segments) for each in reported(txn.sql, segment)]
    for response in survey.responses_of(rows, own.contains):
        inside = [place for place in response.places if own.contains(*place)]
        if not inside:
            continue
        counted = counted_response(response)
        thread.add(response.tokens, survey.price(counted), counted.responses, recorded=response.recorded)
        turns |= {(segment, depth) for segment, (depth, _) in inside}
        if all(reach.sessions(*place) <= {row.n} for place in response.places):
            survey.add(marginal, None, counted)
            alone |= {(segment, depth) for segment, (depth, _) in inside}
    return BranchUsage(
        session=row.label,
        session_id=row.id,
        marginal=marginal.total.spending(),
        marginal_turns=len(alone),
        thread=thread.spending(),
        thread_turns=len(turns),
        models=marginal.models(),
        unpriced=marginal.unpriced(),
        prices_as_of=survey.as_of,
        prices_from=survey.prices.source,
    )


def abandoned_usage(txn: ReadTxn, prices: Prices) -> AbandonedUsage:
    """What was spent on turns that no session's thread contains any more."""
    survey = UsageSurvey(txn, timezone.utc, prices)  # noqa: UP017 - the alias hides what it is
    reach, sums = ThreadReach(survey.tree, survey.heads("status <> 'deleted'")), TallySums()
    turns: dict[int | None, dict[str, int]] = {}
    for response in survey.responses():
        row = response.first
        if not any(reach.contains(*place) for place in response.places):
            survey.add(sums, row.turn.session, counted_response(response))
            times = turns.setdefault(row.turn.session, {})
            times[row.turn.id] = max(row.at or 0, times.get(row.turn.id, 0))
    rows = [_abandoned_row(survey.names, n, tally, turns[n]) for n, tally in sums.by_key.items()]
    return AbandonedUsage(
        rows=tuple(sorted(rows, key=dearest_first)),
        total=sums.total.spending(),
        turns=sum(map(len, turns.values())),
        unpriced=sums.unpriced(),
        prices_as_of=survey.as_of,
        prices_from=survey.prices.source,
    )


def _abandoned_row(names: ColumnNames, n: int | None, tally: UsageTally, turns: dict[str, int]) -> AbandonedRow:
    last = max(turns, key=lambda turn: (turns[turn], turn))
    session = names.session(n)
    status = None if session is None else session.status
    return AbandonedRow(status=status, turns=len(turns), last_turn=last, **names.of_session(n), **tally.fields())


# --- What a turn has cost with everything that it started: its workers' turns, and those of their workers.


class TurnUsage(Struct, frozen=True, kw_only=True):
    """One turn: what it cost itself, and with its workers."""

    turn: str
    status: str
    own: Spending
    total: Spending
    workers: tuple[WorkerUsage, ...] = ()


class WorkerUsage(Struct, frozen=True, kw_only=True):
    """A session that a turn started, with all of its turns."""

    session: str
    session_id: str
    task: str | None
    total: Spending
    turns: tuple[TurnUsage, ...]


class UsageTree(Struct, frozen=True, kw_only=True):
    """What a turn has cost with its workers' turns and theirs."""

    session: str | None
    root: TurnUsage
    turns: int
    """How many there are in the tree."""
    unpriced: tuple[UnpricedModel, ...]
    prices_as_of: str | None
    prices_from: str | None


class _TurnTree:
    """The turns below one, by the sessions that it started, and the tallies of them all."""

    def __init__(self, txn: ReadTxn) -> None:
        self._sql = txn.sql
        self.sessions: dict[str, list[Row]] = defaultdict(list)
        """By turn those that it started."""
        self.seen: dict[str, None] = {}
        """The turns, in the order in which they were found."""
        self.sums = TallySums()

    @cached_property
    def turns(self) -> dict[int, list[Row]]:
        """Of all sessions that a turn started: a session's turns are not indexed, so they are read at once."""
        found: dict[int, list[Row]] = defaultdict(list)
        for n, id, status in self._sql.fetch_rows(
            "SELECT session, id, status FROM turn WHERE session IN"
            " (SELECT n FROM session WHERE parent_turn IS NOT NULL) ORDER BY n"
        ):
            found[n].append((str(id), str(status)))
        return found

    def find(self, turn: str) -> None:
        """Note every turn below one, each once, whatever sessions name as their parents."""
        query = "SELECT n, id, label, task, parent_turn FROM session WHERE parent_turn IN"
        level = {turn: None}
        while level:
            self.seen |= level
            started = sorted(rows_in(self._sql, query, level))
            for *session, parent in started:
                self.sessions[parent].append(tuple(session))
            below = dict.fromkeys(id for session in started for id, _ in self.turns[session[0]])
            level = {id: None for id in below if id not in self.seen}

    def node(self, txn: ReadTxn, turn: str, status: str, above: frozenset[str]) -> tuple[TurnUsage, UsageTally]:
        """A turn with what it started, and the sum of it all."""
        own = self.sums.by_key.get(turn) or UsageTally()
        total, workers, above = UsageTally(), list[WorkerUsage](), above | {turn}
        total.add_tally(own)
        for n, id, label, task in self.sessions[turn]:
            nodes = [self.node(txn, below, state, above) for below, state in self.turns[n] if below not in above]
            spent = UsageTally()
            for _, tally in nodes:
                spent.add_tally(tally)
            total.add_tally(spent)
            workers.append(
                WorkerUsage(
                    session=label,
                    session_id=id,
                    task=None if task is None else text_of(txn, task),
                    total=spent.spending(),
                    turns=tuple(node for node, _ in nodes),
                )
            )
        usage = TurnUsage(turn=turn, status=status, own=own.spending(), total=total.spending(), workers=tuple(workers))
        return usage, total


def usage_tree(txn: ReadTxn, root: TurnRow, prices: Prices) -> UsageTree:
    """What a turn and everything below it cost."""
    survey = UsageSurvey(txn, timezone.utc, prices)  # noqa: UP017 - the alias hides what it is
    tree = _TurnTree(txn)
    tree.find(root.id)
    for response in survey.responses_of(list(reported_in(txn.sql, tree.seen))):
        if response.first.turn.id in tree.seen:
            survey.add(tree.sums, response.first.turn.id, counted_response(response))
    session = None if root.session is None else load_session_number(txn.sql, root.session)
    usage, _ = tree.node(txn, root.id, root.status, frozenset())
    return UsageTree(
        session=None if session is None else session.label,
        root=usage,
        turns=len(tree.seen),
        unpriced=tree.sums.unpriced(),
        prices_as_of=survey.as_of,
        prices_from=survey.prices.source,
    )


# --- What was worked on: projects with their sessions, agents, files and cost, over all time or a period.

_TURNS = f"SELECT {WORKED} FROM turn WHERE current = 1 AND listed_at >= ? AND listed_at < ?"
_WRITTEN = (
    "SELECT t.session, t.workspace, f.path, count(DISTINCT f.message) FROM turn t JOIN message m ON m.turn = t.n"
    " JOIN message_file f ON f.message = m.id WHERE t.current = 1 AND t.listed_at >= ? AND t.listed_at < ?"
    " AND (? OR coalesce(t.synthesised, 0) = 0) AND f.kind = 'written' GROUP BY t.session, t.workspace, f.path"
)
_ALWAYS = 2**53
NOTHING = UsageTally().spending()


class FileWork(Struct, frozen=True):
    """How much was done with one file in the period."""

    path: str
    changes: int
    """Messages that noted to have written it."""


class SessionWork(Struct, frozen=True, kw_only=True):
    """What one session did in the period."""

    session_id: str
    label: str
    short_label: str
    origin: str
    about: str
    """Its title, or what it was first asked to do in the period."""
    is_subagent: bool
    turns: int
    failed: int
    tool_calls: int
    models: tuple[str, ...]
    first_at: int
    last_at: int
    """When its last turn ended, as far as it has."""
    time_known: bool = True
    """False: its source tells no time of any kind, and these are the beginning of 1970."""
    spending: Spending


class ProjectWork(Struct, frozen=True, kw_only=True):
    """One project's share, its sessions by when they last worked, the latest first."""

    path: str
    """Its repository, such as `github.com/owner/name`, where one is known; else its folder."""
    name: str
    sessions: tuple[SessionWork, ...]
    turns: int
    origins: tuple[str, ...]
    files: tuple[FileWork, ...]
    """Files that were written, most often first."""
    last_at: int
    """When its last turn ended; over all time, when any of its sessions last changed, as lists of sessions say."""
    time_known: bool = True
    """False: of none of its sessions, and this is the beginning of 1970."""
    spending: Spending


class WorkReport(Struct, frozen=True, kw_only=True):
    """What was worked on in a period."""

    since_at: int | None
    until_at: int | None
    projects: tuple[ProjectWork, ...]
    """The latest first."""
    total: Spending
    prices_as_of: str | None


class _Doing:
    """One session's turns in one project, counted."""

    def __init__(self, first: int, at: int) -> None:
        """`first` is the number of the first turn."""
        self.first, self.first_at = first, at
        self.turns = self.failed = self.calls = 0
        self.last_at, self.time_known = at, False
        self.models: Counter[str] = Counter()
        self.origins: Counter[str] = Counter()

    def see(self, at: int, last: int, time_known: bool) -> None:
        """Turns from when to when. Times that are known go before those that are not."""
        if time_known and not self.time_known:
            self.first_at, self.time_known = at, True
            self.last_at = last
        elif time_known == self.time_known:
            self.last_at = max(self.last_at, last)


def work_report(
    txn: ReadTxn,
    since: int | str | None,
    until: int | str | None,
    now: int,
    zone: tzinfo,
    prices: PriceTable | None,
    repository_of: RepositoryOf | None = None,
    *,
    about: bool = True,
) -> WorkReport:
    """Without `about` nothing is told of what each session is called, was asked to do and spent."""
    start, end = (read_moment(given, what, now, zone) for given, what in ((since, "since"), (until, "until")))
    survey = UsageSurvey(txn, zone, prices, repository_of)
    wanted = UsageScope(txn, survey.names, {"since": start, "until": end}, now, zone)
    keys = ("project", "session") if about else ("project",)
    tallies = spent_by(survey, wanted, [key_of(by, survey.names) for by in keys])
    spent = [usage_rows(by, of_keys, survey.names) for by, of_keys in zip(keys, tallies, strict=True)]
    of_projects = {row.key: _spending_of(row) for row in spent[0]}
    of_sessions = {str(row.session_id): _spending_of(row) for rows in spent[1:] for row in rows}
    reading = _Reading(txn, start, end, Projects(txn, repository_of), survey.totals, is_told=about)
    return WorkReport(
        since_at=start,
        until_at=end,
        projects=reading.projects(of_sessions, of_projects),
        total=total_of(tallies[0].values()).spending(),
        prices_as_of=survey.as_of,
    )


def _spending_of(row: UsageRow) -> Spending:
    return Spending(**{field: getattr(row, field) for field in Spending.__struct_fields__})


def _first_turn(item: tuple[WorkCell, Values]) -> tuple[int, int]:
    """When the first turn is listed, and its number."""
    _, values = item
    return values[3], values[4]


class _Reading:
    def __init__(
        self,
        txn: ReadTxn,
        since: int | None,
        until: int | None,
        projects: Projects,
        totals: UsageTotals | None,
        is_told: bool,
    ) -> None:
        """Of a period only turns are told whose time is known."""
        self._txn, self._projects, self._totals, self._is_told = txn, projects, totals, is_told
        self._is_of_all_time = since is None and until is None
        self._since, self._until = since, until
        rows = [SessionRow(*row) for row in txn.sql.fetch_rows(SESSION.select)]
        self._sessions = {row.n: row for row in rows}
        self._short = shown_labels(txn.sql, rows) if is_told else {}
        self._folders: dict[int | None, str] = {None: NONE}

    def projects(self, by_session: dict[str, Spending], costs: dict[str, Spending]) -> tuple[ProjectWork, ...]:
        doings = self._doings_by_session()
        files = self._written_files()
        subjects = self._turn_subjects({doing.first for doing in doings.values()}) if self._is_told else {}
        made: dict[str, list[SessionWork]] = {}
        for (folder, n), doing in doings.items():
            about = subjects.get(doing.first, "")
            made.setdefault(folder, []).append(self._session(n, doing, about, by_session))
        changes = self._last_changes(doings)
        found = [
            self._project_work(path, sessions, files.get(path, Counter()), costs, changes.get(path, UNDATED_MODEL))
            for path, sessions in made.items()
        ]
        return tuple(sorted(found, key=lambda project: (not project.time_known, -project.last_at, project.path)))

    def _turn_subjects(self, turns: set[int]) -> dict[int, str]:
        """What each of these turns is about, by their numbers."""
        ids: dict[int, str] = dict(rows_in(self._txn.sql, "SELECT n, id FROM turn WHERE n IN", turns))
        subjects = load_subjects(self._txn, list(ids.values()))
        return {n: subjects[id] for n, id in ids.items() if id in subjects}

    def _doings_by_session(self) -> dict[tuple[str, int | None], _Doing]:
        """By project and session, from the first turn on."""
        found: dict[tuple[str, int | None], _Doing] = {}
        for cell, values in sorted(self._work_cells(), key=_first_turn):
            turns, failed, calls, at, first, last = values
            key = (self._project_key(self._folder_of_turn(cell.workspace, cell.session)), cell.session)
            doing = found.get(key)
            if doing is None:
                doing = found[key] = _Doing(first, at)
            doing.turns += turns
            doing.failed += failed
            doing.calls += calls
            doing.see(at, last, not cell.is_undated)
            doing.origins[cell.origin] += turns
            if cell.model is not None:
                doing.models[cell.model] += turns
        return found

    def _work_cells(self) -> Iterator[tuple[WorkCell, Values]]:
        """Turns of the period, those of a cell that lies in it as a whole together."""
        cells = () if self._totals is None else self._totals.work(self._since, self._until)
        rows = (row for span in self._spans_read_by_turn() for row in self._txn.sql.iterate_rows(_TURNS, span))
        turns = (item for additions in work_of(rows).values() for item in additions.items())
        for cell, values in chain(cells, ((WorkCell(*name), values) for name, values in turns)):
            if self._is_of_all_time or not cell.is_undated:
                yield cell, values

    def _spans_read_by_turn(self) -> tuple[Span, ...]:
        """What of the period is read turn by turn: where totals are there, its ends that lie within a slot."""
        if self._totals is not None:
            return split_period(self._since, self._until).ends
        return ((-_ALWAYS if self._since is None else self._since, _ALWAYS if self._until is None else self._until),)

    def _last_changes(self, doings: dict[tuple[str, int | None], _Doing]) -> dict[str, int]:
        """Over all time: by project, when the sessions last changed whose last turn was in it."""
        latest: dict[int, tuple[int, str]] = {}
        for (project, n), doing in doings.items():
            if n in self._sessions and self._is_of_all_time:
                latest[n] = max(latest.get(n, (doing.last_at, project)), (doing.last_at, project))
        found: dict[str, int] = {}
        for n, (_, project) in latest.items():
            found[project] = max(found.get(project, UNDATED_MODEL), self._sessions[n].updated_at)
        return found

    def _folder_of_turn(self, workspace: int | None, session: int | None) -> str:
        """Where a turn worked, else where its session did."""
        if workspace is None and session is not None and session in self._sessions:
            workspace = self._sessions[session].workspace
        if workspace not in self._folders:
            self._folders[workspace] = text_of(self._txn, workspace) or NONE
        return self._folders[workspace]

    def _project_key(self, folder: str) -> str:
        return folder if folder == NONE else self._projects.of(folder).key

    def _written_files(self) -> dict[str, Counter[str]]:
        found: dict[str, Counter[str]] = {}
        for (session, workspace, path), times in self._write_counts().items():
            folder = self._folder_of_turn(workspace, session)
            name = full_path(text_of(self._txn, path) or "", None if folder == NONE else folder)
            key = self._project_key(folder)
            if key != folder:  # one file in several worktrees is one file of the project
                name = name.removeprefix(f"{folder.rstrip('/')}/")
            found.setdefault(key, Counter())[name] += times
        return found

    def _write_counts(self) -> Counter[tuple[int | None, int | None, int]]:
        """By session, folder and path, how many messages noted to have written it."""
        written: Counter[tuple[int | None, int | None, int]] = Counter()
        for cell, changes in () if self._totals is None else self._totals.files(self._since, self._until):
            if self._is_of_all_time or not cell.is_undated:
                written[cell.session, cell.workspace, cell.path] += changes
        for span in self._spans_read_by_turn():
            for session, workspace, path, changes in self._txn.sql.fetch_rows(_WRITTEN, (*span, self._is_of_all_time)):
                written[session, workspace, path] += changes
        return written

    def _session(self, n: int | None, doing: _Doing, about: str, spent: dict[str, Spending]) -> SessionWork:
        row = self._sessions.get(n) if n is not None else None
        title = None if row is None or not self._is_told else meaningful_title(text_of(self._txn, row.title))
        dated_by_session = row is not None and not doing.time_known and row.updated_at != UNDATED_MODEL
        models = (name_of(self._txn, model) or "" for model, _ in doing.models.most_common())
        return SessionWork(
            session_id=row.id if row else "",
            label=row.label if row else NONE,
            short_label=self._short.get(row.label, row.label) if row else NONE,
            origin=doing.origins.most_common(1)[0][0],
            about=title or about,
            is_subagent=bool(row and (row.parent_session or row.parent_turn)),
            turns=doing.turns,
            failed=doing.failed,
            tool_calls=doing.calls,
            models=tuple(model for model in models if model not in ("", "unknown")),
            first_at=row.created_at if row is not None and dated_by_session else doing.first_at,
            last_at=row.updated_at if row is not None and dated_by_session else doing.last_at,
            time_known=doing.time_known or dated_by_session,
            spending=spent.get(row.id, NOTHING) if row else NOTHING,
        )

    @staticmethod
    def _project_work(
        path: str, sessions: Iterable[SessionWork], files: Counter[str], costs: dict[str, Spending], changed_at: int
    ) -> ProjectWork:
        ordered = sorted(sessions, key=lambda session: (not session.time_known, -session.last_at, session.label))
        return ProjectWork(
            path=path,
            name=project_of(path) if path != NONE else NONE,
            sessions=tuple(ordered),
            turns=sum(session.turns for session in ordered),
            origins=tuple(dict.fromkeys(session.origin for session in ordered)),
            files=tuple(FileWork(*each) for each in sorted(files.items(), key=lambda file: (-file[1], file[0]))),
            last_at=max(ordered[0].last_at, changed_at),
            time_known=ordered[0].time_known,
            spending=costs.get(path, NOTHING),
        )
