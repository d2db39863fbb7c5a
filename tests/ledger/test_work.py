"""What was worked on: projects, their sessions, files and cost, over all time or a period."""

import pytest

import weft
from tests.ledger.conftest import NOON
from tests.ledger.imported import native_call, native_turn, take
from tests.ledger.test_usage import PRICES
from weft import Ledger
from weft.kernel.clock import FixedClock
from weft.kernel.enums import FileKind
from weft.kernel.errors import InvalidInput
from weft.ledger.api import SessionFilter
from weft.ledger.model import FileNote

HOUR = 3_600_000


@pytest.fixture
def clock() -> FixedClock:
    return FixedClock(NOON)


@pytest.fixture
def ledger(clock: FixedClock) -> Ledger:
    return weft.open(":memory:", clock=clock)


def work(ledger: Ledger, session: str, folder: str | None, query: str = "do it", *files: str) -> None:
    answer = {"role": "assistant", "content": "ok", "files": [{"kind": "written", "path": path} for path in files]}
    usage = {"input_tokens": 1000, "output_tokens": 100}
    ledger.record_turn(session=session, query=query, response=answer, workspace=folder, model="model-1", usage=usage)


def test_projects_come_with_their_sessions_files_and_cost(ledger: Ledger, clock: FixedClock) -> None:
    work(ledger, "a", "/src/app", "First thing.", "/src/app/x.py", "y.py")
    clock.tick(HOUR)
    work(ledger, "b", "/src/lib", "Second thing.")
    clock.tick(HOUR)
    work(ledger, "a", "/src/app", "Third thing.", "x.py")
    app, lib = ledger.usage.work(prices=PRICES).projects
    assert (app.path, app.name, app.turns, app.origins) == ("/src/app", "app", 2, ("weft",))
    assert [(file.path, file.changes) for file in app.files] == [("/src/app/x.py", 2), ("/src/app/y.py", 1)]
    (session,) = app.sessions
    assert (session.label, session.about, session.turns, session.models) == ("a", "First thing.", 2, ("model-1",))
    assert (session.first_at, session.last_at, app.last_at) == (NOON, NOON + 2 * HOUR, NOON + 2 * HOUR)
    assert (app.spending.total, app.spending.cost) == (2200, 9000)
    assert (lib.path, [each.about for each in lib.sessions], lib.spending.cost) == ("/src/lib", ["Second thing."], 4500)
    assert session.spending == ledger.usage.report("session", session="a", prices=PRICES).total


def test_a_period_has_what_was_done_in_it(ledger: Ledger, clock: FixedClock) -> None:
    work(ledger, "a", "/src/app", "Before.")
    clock.tick(HOUR)
    work(ledger, "a", "/src/app", "Within.", "x.py")
    clock.tick(HOUR)
    work(ledger, "a", "/src/app", "After.")
    found = ledger.usage.work(since=NOON + HOUR, until=NOON + 2 * HOUR, prices=PRICES)
    (project,) = found.projects
    assert (project.turns, project.sessions[0].about, project.spending.cost) == (1, "Within.", 4500)
    assert found.total.total == 1100
    assert (found.since_at, found.until_at) == (NOON + HOUR, NOON + 2 * HOUR)
    assert ledger.usage.work(since=NOON + 9 * HOUR).projects == ()


def test_turns_without_a_folder_are_told_as_such(ledger: Ledger) -> None:
    work(ledger, "a", None)
    (project,) = ledger.usage.work().projects
    assert (project.path, project.name, project.turns) == ("(none)", "(none)", 1)


def test_a_time_that_is_not_known_is_in_no_period(ledger: Ledger) -> None:
    take(ledger, "s", native_turn("undated"))
    assert sum(project.turns for project in ledger.usage.work().projects) == 1
    assert ledger.usage.work(since=0).projects == ()


def test_projects_without_times_come_after_those_that_have_any(ledger: Ledger) -> None:
    take(ledger, "s", native_turn("undated", workspace="/src/undated"))
    take(ledger, "t", native_turn("dated", started=NOON - HOUR, workspace="/src/dated"))
    take(ledger, "u", native_turn("other", workspace="/src/dated"))
    dated, undated = ledger.usage.work().projects
    assert [(each.path, each.time_known) for each in (dated, undated)] == [
        ("/src/dated", True),
        ("/src/undated", False),
    ]
    assert dated.last_at == NOON - HOUR
    assert [session.time_known for session in dated.sessions] == [True, False]


def test_a_period_has_the_work_of_other_tools_whose_time_is_known(ledger: Ledger) -> None:
    wrote = native_call("c1", files=(FileNote(kind=FileKind.WRITTEN, path="/src/app/x.py"),))
    dated = native_turn("dated", calls=(wrote,), started=NOON - HOUR, ended=NOON, workspace="/src/app")
    take(ledger, "s", native_turn("undated", workspace="/src/app"))
    take(ledger, "t", dated)
    (project,) = ledger.usage.work(since=NOON - 2 * HOUR).projects
    assert (project.turns, project.origins) == (1, ("toy",))
    assert [(file.path, file.changes) for file in project.files] == [("/src/app/x.py", 1)]
    assert ledger.usage.work(until=NOON - 2 * HOUR).projects == ()


def test_a_period_that_is_none_is_refused(ledger: Ledger) -> None:
    with pytest.raises(InvalidInput):
        ledger.usage.work(since="no such time")


def test_a_project_last_changed_when_its_sessions_did(ledger: Ledger) -> None:
    take(ledger, "s", native_turn("t", started=NOON - 2 * HOUR, ended=NOON - HOUR, workspace="/src/app"))
    (listed,) = ledger.listing().sessions(SessionFilter()).sessions
    (project,) = ledger.usage.work().projects
    assert project.last_at == listed.session.updated_at == NOON - HOUR
    (period,) = ledger.usage.work(since=NOON - 3 * HOUR).projects
    assert (period.sessions[0].first_at, period.last_at) == (NOON - 2 * HOUR, NOON - HOUR)


def test_a_change_of_a_session_counts_for_the_project_of_its_last_turn(ledger: Ledger, clock: FixedClock) -> None:
    work(ledger, "a", "/src/lib")
    clock.tick(HOUR)
    work(ledger, "a", "/src/app")
    clock.tick(HOUR)
    ledger.move_head("a", new=ledger.resolve("a~1"))
    app, lib = ledger.usage.work().projects
    assert (app.path, app.last_at) == ("/src/app", NOON + 2 * HOUR)
    assert (lib.path, lib.last_at) == ("/src/lib", NOON)
    assert ledger.usage.work(since=NOON).projects[0].last_at == NOON + HOUR


def test_a_project_without_times_has_no_last_change(ledger: Ledger) -> None:
    take(ledger, "s", native_turn("undated", workspace="/src/undated"))
    (project,) = ledger.usage.work().projects
    assert (project.last_at, project.time_known) == (0, False)
