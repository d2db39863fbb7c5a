"""What was worked on: projects with their sessions, agents, files and cost, over all time or a period."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from datetime import tzinfo
from itertools import chain

from msgspec import Struct

from weft.ledger.model import UNDATED
from weft.ledger.read.label_prefixes import shown_labels
from weft.ledger.read.moments import read_moment
from weft.ledger.read.projects import Projects, RepositoryOf, project_of
from weft.ledger.read.turn_titles import load_subjects, meaningful_title
from weft.ledger.reports.counted_turns import WORKED, WorkCell, work_of
from weft.ledger.reports.file_touches import full_path
from weft.ledger.reports.prices import PriceTable
from weft.ledger.reports.spending import Spending, Tally, UsageRow, total_of
from weft.ledger.reports.total_tables import Values
from weft.ledger.reports.totals_reading import Span, Totals, split_period
from weft.ledger.reports.usage import NONE, Survey, UsageScope, key_of, spent_by, usage_rows
from weft.ledger.views.rows import SESSION, SessionRow
from weft.ledger.views.values import name_of, text_of
from weft.store.port import ReadTxn
from weft.store.sql import rows_in

_TURNS = f"SELECT {WORKED} FROM turn WHERE current = 1 AND listed_at >= ? AND listed_at < ?"
_WRITTEN = (
    "SELECT t.session, t.workspace, f.path, count(DISTINCT f.message) FROM turn t JOIN message m ON m.turn = t.n"
    " JOIN message_file f ON f.message = m.id WHERE t.current = 1 AND t.listed_at >= ? AND t.listed_at < ?"
    " AND (? OR coalesce(t.synthesised, 0) = 0) AND f.kind = 'written' GROUP BY t.session, t.workspace, f.path"
)
_ALWAYS = 2**53
NOTHING = Tally().spending()


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
    survey = Survey(txn, zone, prices, repository_of)
    wanted = UsageScope(txn, survey.names, {"since": start, "until": end}, now, zone)
    keys = ("project", "session") if about else ("project",)
    tallies = spent_by(survey, wanted, [key_of(by, survey.names) for by in keys])
    spent = [usage_rows(by, of_keys, survey.names) for by, of_keys in zip(keys, tallies, strict=True)]
    of_projects = {row.key: _spending(row) for row in spent[0]}
    of_sessions = {str(row.session_id): _spending(row) for rows in spent[1:] for row in rows}
    reading = _Reading(txn, start, end, Projects(txn, repository_of), survey.totals, is_told=about)
    return WorkReport(
        since_at=start,
        until_at=end,
        projects=reading.projects(of_sessions, of_projects),
        total=total_of(tallies[0].values()).spending(),
        prices_as_of=survey.as_of,
    )


def _spending(row: UsageRow) -> Spending:
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
        totals: Totals | None,
        is_told: bool,
    ) -> None:
        """Of a period only turns are told whose time is known."""
        self._txn, self._projects, self._totals, self._is_told = txn, projects, totals, is_told
        self._is_of_all_time = since is None and until is None
        self._since, self._until = since, until
        rows = [SessionRow(*row) for row in txn.sql.all(SESSION.select)]
        self._sessions = {row.n: row for row in rows}
        self._short = shown_labels(txn.sql, rows) if is_told else {}
        self._folders: dict[int | None, str] = {None: NONE}

    def projects(self, by_session: dict[str, Spending], costs: dict[str, Spending]) -> tuple[ProjectWork, ...]:
        doings = self._doings()
        files = self._files()
        subjects = self._subjects({doing.first for doing in doings.values()}) if self._is_told else {}
        made: dict[str, list[SessionWork]] = {}
        for (folder, n), doing in doings.items():
            about = subjects.get(doing.first, "")
            made.setdefault(folder, []).append(self._session(n, doing, about, by_session))
        changes = self._changes(doings)
        found = [
            self._project(path, sessions, files.get(path, Counter()), costs, changes.get(path, UNDATED))
            for path, sessions in made.items()
        ]
        return tuple(sorted(found, key=lambda project: (not project.time_known, -project.last_at, project.path)))

    def _subjects(self, turns: set[int]) -> dict[int, str]:
        """What each of these turns is about, by their numbers."""
        ids: dict[int, str] = dict(rows_in(self._txn.sql, "SELECT n, id FROM turn WHERE n IN", turns))
        subjects = load_subjects(self._txn, list(ids.values()))
        return {n: subjects[id] for n, id in ids.items() if id in subjects}

    def _doings(self) -> dict[tuple[str, int | None], _Doing]:
        """By project and session, from the first turn on."""
        found: dict[tuple[str, int | None], _Doing] = {}
        for cell, values in sorted(self._work(), key=_first_turn):
            turns, failed, calls, at, first, last = values
            key = (self._project_key(self._folder(cell.workspace, cell.session)), cell.session)
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

    def _work(self) -> Iterator[tuple[WorkCell, Values]]:
        """Turns of the period, those of a cell that lies in it as a whole together."""
        cells = () if self._totals is None else self._totals.work(self._since, self._until)
        rows = (row for span in self._spans() for row in self._txn.sql.each(_TURNS, span))
        turns = (item for additions in work_of(rows).values() for item in additions.items())
        for cell, values in chain(cells, ((WorkCell(*name), values) for name, values in turns)):
            if self._is_of_all_time or not cell.is_undated:
                yield cell, values

    def _spans(self) -> tuple[Span, ...]:
        """What of the period is read turn by turn: where totals are there, its ends that lie within a slot."""
        if self._totals is not None:
            return split_period(self._since, self._until).ends
        return ((-_ALWAYS if self._since is None else self._since, _ALWAYS if self._until is None else self._until),)

    def _changes(self, doings: dict[tuple[str, int | None], _Doing]) -> dict[str, int]:
        """Over all time: by project, when the sessions last changed whose last turn was in it."""
        latest: dict[int, tuple[int, str]] = {}
        for (project, n), doing in doings.items():
            if n in self._sessions and self._is_of_all_time:
                latest[n] = max(latest.get(n, (doing.last_at, project)), (doing.last_at, project))
        found: dict[str, int] = {}
        for n, (_, project) in latest.items():
            found[project] = max(found.get(project, UNDATED), self._sessions[n].updated_at)
        return found

    def _folder(self, workspace: int | None, session: int | None) -> str:
        """Where a turn worked, else where its session did."""
        if workspace is None and session is not None and session in self._sessions:
            workspace = self._sessions[session].workspace
        if workspace not in self._folders:
            self._folders[workspace] = text_of(self._txn, workspace) or NONE
        return self._folders[workspace]

    def _project_key(self, folder: str) -> str:
        return folder if folder == NONE else self._projects.of(folder).key

    def _files(self) -> dict[str, Counter[str]]:
        found: dict[str, Counter[str]] = {}
        for (session, workspace, path), times in self._written().items():
            folder = self._folder(workspace, session)
            name = full_path(text_of(self._txn, path) or "", None if folder == NONE else folder)
            key = self._project_key(folder)
            if key != folder:  # one file in several worktrees is one file of the project
                name = name.removeprefix(f"{folder.rstrip('/')}/")
            found.setdefault(key, Counter())[name] += times
        return found

    def _written(self) -> Counter[tuple[int | None, int | None, int]]:
        """By session, folder and path, how many messages noted to have written it."""
        written: Counter[tuple[int | None, int | None, int]] = Counter()
        for cell, changes in () if self._totals is None else self._totals.files(self._since, self._until):
            if self._is_of_all_time or not cell.is_undated:
                written[cell.session, cell.workspace, cell.path] += changes
        for span in self._spans():
            for session, workspace, path, changes in self._txn.sql.all(_WRITTEN, (*span, self._is_of_all_time)):
                written[session, workspace, path] += changes
        return written

    def _session(self, n: int | None, doing: _Doing, about: str, spent: dict[str, Spending]) -> SessionWork:
        row = self._sessions.get(n) if n is not None else None
        title = None if row is None or not self._is_told else meaningful_title(text_of(self._txn, row.title))
        dated_by_session = row is not None and not doing.time_known and row.updated_at != UNDATED
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
    def _project(
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
