"""What was worked on in a period, as lines: projects, sessions, agents, cost and the files that were changed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from weft.ledger.api import ProjectWork, SessionWork, WorkReport
from weft.surfaces.cli.figures import abbreviated, counted, dollars
from weft.surfaces.cli.screen import Line, Span
from weft.surfaces.cli.times import local_time
from weft.surfaces.plain_text import cut, safe

DAY = len("2026-11-15")
SESSIONS, FILES = 12, 8
NARROWEST = 30
UNDATED_HEADING = "without a date (their tools noted none):"


def work_lines(report: WorkReport, columns: int, full: bool) -> Iterator[Line]:
    subagents = {session.session_id: session.is_subagent for project in report.projects for session in project.sessions}
    yield [Span(_when(report), "heading")]
    helpers = sum(subagents.values())
    main = len(subagents) - helpers
    counts = [
        counted(main, "session") + (f" and {counted(helpers, 'subagent')}" if helpers else ""),
        counted(len(report.projects), "project"),
        counted(sum(project.turns for project in report.projects), "turn"),
    ]
    yield [", ".join(counts)]
    yield [", ".join(_spent(report))]
    for project in report.projects:
        yield []
        yield from _project(project, columns, full)


def _when(report: WorkReport) -> str:
    dated = [session for project in report.projects for session in project.sessions if session.time_known]
    if not dated:
        return "no dates"
    start = report.since_at if report.since_at is not None else min(session.first_at for session in dated)
    end = max(session.last_at for session in dated)
    if report.until_at is not None:
        end = min(end, report.until_at - 1)  # a turn of the period may have ended after it
    first, last = local_time(start)[:DAY], local_time(end)[:DAY]
    return first if first == last else f"{first} to {last}"


def _spent(report: WorkReport) -> Iterator[str]:
    total = report.total
    if total.total:
        yield f"{abbreviated(total.total)} tokens"
        yield dollars(total)
    else:
        yield "no usage recorded"


def _project(project: ProjectWork, columns: int, full: bool) -> Iterator[Line]:
    cost = f", {dollars(project.spending)}" if project.spending.total else ""
    agents = f", with {_listed(project.origins)}" if project.origins != ("weft",) else ""
    figures = f"  {counted(project.turns, 'turn')}{agents}{cost}"
    yield [Span(project.name, "label"), Span(figures, "dim")]
    main = [session for session in project.sessions if not session.is_subagent] or list(project.sessions)
    alike = _alike(main)
    shown = alike if full else alike[:SESSIONS]
    for sessions in (group for group in shown if group[0].time_known):
        yield _sessions(sessions, columns)
    if undated := [group for group in shown if not group[0].time_known]:
        yield ["  ", Span(UNDATED_HEADING, "dim")]
        for sessions in undated:
            yield _sessions(sessions, columns)
    if left := len(main) - sum(map(len, shown)):
        yield ["  ", Span(f"… {counted(left, 'more session')} (--full)", "dim")]
    yield from _files(project, columns, full)


def _alike(sessions: Sequence[SessionWork]) -> list[list[SessionWork]]:
    """Sessions with the same words to them are told once, those without a date by themselves."""
    by_words: dict[tuple[bool, str], list[SessionWork]] = {}
    for session in sessions:
        by_words.setdefault((session.time_known, session.about or session.session_id), []).append(session)
    return list(by_words.values())


def _sessions(sessions: list[SessionWork], columns: int) -> Line:
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


def _listed(words: Sequence[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"
