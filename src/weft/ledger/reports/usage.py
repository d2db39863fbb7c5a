"""What was spent: every provider response once, however many forks and copies contain it.

A report reads totals of responses, or scans them where the totals are far behind, beside the segments: how far threads
go tells what only one branch contains, what none contains any more, and what a sum over all sessions would have
counted.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import date, datetime, timedelta, timezone, tzinfo
from fnmatch import fnmatchcase
from functools import cached_property
from typing import Any, TypedDict

from msgspec import Struct

from weft.kernel.errors import InvalidInput
from weft.kernel.weft_error import quoted
from weft.ledger.arguments import checked_text
from weft.ledger.imports.provisional import count_provisional
from weft.ledger.read.access import access_of
from weft.ledger.read.listing import HERE
from weft.ledger.read.moments import read_moment
from weft.ledger.read.projects import Projects, RepositoryOf
from weft.ledger.read.revisions import require
from weft.ledger.reports.counted_turns import PROMPT_STEPS, SLOT, Counted, ResponseCell, counted_response, scanned
from weft.ledger.reports.coverage import Count, CoverageTree, Place, Reach, SessionHead, heads
from weft.ledger.reports.maintained_prices import shipped_prices
from weft.ledger.reports.prices import EMBEDDED_PROVIDER, FREE, Price, PriceTable
from weft.ledger.reports.responses import (
    Reported,
    Response,
    once,
    repeated,
    reported,
    reported_elsewhere,
    standing,
)
from weft.ledger.reports.spending import (
    PriceGroups,
    Spending,
    Sums,
    Tally,
    UnpricedModel,
    UsageRow,
    dearest_first,
    total_of,
)
from weft.ledger.reports.totals_reading import Totals, load_totals
from weft.ledger.rooms.rows import find_conversation
from weft.ledger.views.rows import SESSION, SessionRow, load_session_number
from weft.ledger.views.turn_owners import NO_SESSION_AGE, SessionAge, session_age
from weft.ledger.views.values import name_of, text_of
from weft.store.port import ReadTxn
from weft.store.sql import rows_in

PERIODS = ("day", "week", "month")
BY = (*PERIODS, "project", "session", "model", "origin")
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


class Names:
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

    def project(self, row: Reported) -> str:
        """The repository or the folder that the turn belongs to."""
        folder = self.folder(row)
        return folder if folder == NONE else self._projects.of(folder).key

    def is_in(self, row: Reported, wanted: str) -> bool:
        """Did the turn work in this project, in this folder, or below it?"""
        folder = self.folder(row)
        return _is_in(folder, wanted) or (folder != NONE and self._projects.is_in(folder, wanted))

    def folder(self, row: Reported) -> str:
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


def key_of(by: str, names: Names) -> Callable[[Reported], Any]:
    if by in PERIODS:
        period = _PERIOD_NAMES[by]

        def period_of(row: Reported) -> str:
            day = names.day(row.at)
            return UNDATED if day is None else period(day)

        return period_of
    found: dict[str, Callable[[Reported], Any]] = {
        "project": names.project,
        "session": lambda row: row.turn.session,
        "model": lambda row: names.model(row.model),
        "origin": lambda row: row.turn.origin,
    }
    if by not in found:
        raise InvalidInput(f"usage by {quoted(by)}", f"it is by {', '.join(BY)}")
    return found[by]


class UsageScope:
    """What a report is limited to."""

    def __init__(self, txn: ReadTxn, names: Names, only: UsageChoice, now: int, zone: tzinfo) -> None:
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

    def takes(self, row: Reported, *, of_session: bool = True) -> bool:
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
    of_room = {n for (n,) in txn.sql.all(query, (id,))}
    return of_room if chosen is None else of_room & chosen


def _is_called(model: str, wanted: str) -> bool:
    return model == wanted or fnmatchcase(model, wanted)


def _is_in(path: str, wanted: str) -> bool:
    folder = wanted.rstrip("/") or "/"
    if "/" not in wanted:
        return path == wanted or path.rpartition("/")[2] == wanted
    return path.rstrip("/") == folder or path.startswith(folder.rstrip("/") + "/")


class Survey:
    """One reading of a ledger's responses: their names and prices, and where threads go."""

    def __init__(self, txn: ReadTxn, zone: tzinfo, prices: Prices, repository_of: RepositoryOf | None = None) -> None:
        if not isinstance(zone, tzinfo) or not isinstance(prices, PriceTable | None):
            raise InvalidInput("usage takes a zone as tzinfo and prices as PriceTable", "prices_from() makes one")
        self.txn, self.names, self.prices = (
            txn,
            Names(txn, zone, Projects(txn, repository_of)),
            prices or shipped_prices(),
        )
        self.tree = CoverageTree(txn.sql)
        self._steps: dict[str, frozenset[int] | None] = {}
        """By model the steps of its prices that totals do not know; None: they may change at any time."""
        self._distinct_prices: dict[Price | None, Price | None] = {}
        """One object for all prices that are equal."""
        self._known_prices: dict[tuple[str | None, int | None, int], Price | None] = {}
        self.as_of = None if self.prices.as_of is None else self.prices.as_of.isoformat()

    @cached_property
    def totals(self) -> Totals | None:
        """None: all rows are scanned. Reports that look at responses alone never load them."""
        return load_totals(self.txn)

    def heads(self, where: str, *values: object) -> list[SessionHead]:
        return heads(self.txn.sql, where, values)

    def responses(self) -> Iterator[Response]:
        sql = self.txn.sql
        return once(reported(sql), repeated(sql), standing(sql), self.names.age)

    def responses_of(
        self, rows: Sequence[Reported], is_inside: Callable[[int, Place], bool] | None = None
    ) -> Iterator[Response]:
        """The responses of these rows, each with all places that it has in the ledger. `is_inside` tells of a place
        whether it lies among what the rows are of: a response that stands there may be reported elsewhere alone."""
        sql, turns = self.txn.sql, {row.turn.id for row in rows}
        copied, stands = repeated(sql), standing(sql)
        several = copied | stands.keys()
        natives = {row.native for row in rows if row.native is not None and row.native in several}
        if is_inside is not None:
            natives |= {native for native, place in stands.items() if is_inside(*place)}
        return once([*rows, *reported_elsewhere(sql, natives, turns)], copied, stands, self.names.age)

    def counted(self, since: int | None, until: int | None) -> Iterator[Counted]:
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

    def price(self, counted: Counted) -> Price | None:
        row = counted.row
        if row.provider == EMBEDDED_PROVIDER and row.turn.origin == HERE:
            return FREE
        key = row.model, row.at, counted.prompt
        if key not in self._known_prices:
            price = self.prices.price(self.names.model(row.model), row.at, counted.prompt)
            self._known_prices[key] = self._distinct_prices.setdefault(price, price)
        return self._known_prices[key]

    def add(self, sums: Sums, key: Any, counted: Counted) -> None:
        sums.add(key, self.names.model(counted.row.model), counted, self.price(counted))


def spent_by(survey: Survey, wanted: UsageScope, keys: Sequence[Callable[[Reported], Any]]) -> list[dict[Any, Tally]]:
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
    survey = Survey(txn, zone, only.get("prices"), repository_of)
    wanted = UsageScope(txn, survey.names, only, now, zone)
    key, living = key_of(checked_text(by, "by"), survey.names), survey.heads("status <> 'deleted'")
    reach, naive_sum = Reach(survey.tree, living), _Naive(survey, wanted, living)
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
    sums = Sums(by_key.tallies(), by_model.tallies())
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

    def __init__(self, survey: Survey, wanted: UsageScope, living: list[SessionHead]) -> None:
        self._survey, self._wanted, self.groups = survey, wanted, PriceGroups()
        chosen = wanted.sessions
        self._count = Count(survey.tree, [head for head in living if chosen is None or head.session in chosen])

    def look(self, counted: Counted) -> None:
        (place,) = counted.places
        threads = self._count.threads(*place)
        if threads and self._wanted.takes(counted.row, of_session=False):
            self.groups.add(None, counted, self._survey.price(counted), threads)


def usage_rows(by: str, tallies: dict[Any, Tally], names: Names) -> tuple[UsageRow, ...]:
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
    survey = Survey(txn, timezone.utc, prices)  # noqa: UP017 - the alias hides what it is
    reach = Reach(survey.tree, survey.heads("status = 'active' OR n = ?", row.n))
    own = Reach(survey.tree, survey.heads("n = ?", row.n))
    marginal, thread = Sums(), Tally()
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
    survey = Survey(txn, timezone.utc, prices)  # noqa: UP017 - the alias hides what it is
    reach, sums = Reach(survey.tree, survey.heads("status <> 'deleted'")), Sums()
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


def _abandoned_row(names: Names, n: int | None, tally: Tally, turns: dict[str, int]) -> AbandonedRow:
    last = max(turns, key=lambda turn: (turns[turn], turn))
    session = names.session(n)
    status = None if session is None else session.status
    return AbandonedRow(status=status, turns=len(turns), last_turn=last, **names.of_session(n), **tally.fields())
