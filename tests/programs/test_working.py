"""Agents, tasks and sessions at work."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import weft
from tests.ledger.histories import lines, problems
from tests.programs.stories import TASK
from weft.exchange.sync import pull
from weft.kernel.enums import MessageRole
from weft.kernel.errors import (
    CriteriaUnmet,
    IllegalTransition,
    InvalidConfig,
    InvalidInput,
    NotAllowed,
    NotApplicable,
    Unsupported,
    VersionConflict,
)
from weft.ledger.api.ledger import Ledger
from weft.ledger.model import NewMessage
from weft.programs import Programs
from weft.programs.config_fields import RIGHTS
from weft.programs.tasks import CommandResult, WorkspaceObservations, judge_criterion
from weft.surfaces.wire.hints import phrase

QUANTUM = "task-research-quantum"


def test_an_agent_gets_a_session_with_its_task(programs: Programs) -> None:
    agent = programs.assign("researcher", QUANTUM)
    config = agent.shape()["config"]
    assert config["currentTask"] == QUANTUM
    assert config["currentSession"].startswith(f"researcher_{QUANTUM}_")
    assert config["turnCount"] == 0
    session = programs.get(config["currentSession"])
    assert session.config == {"owner": "@(researcher)", "defaultModel": "@(claude-balanced)"}
    assert programs.ledger.session(session.name).task_description == TASK["title"]
    with pytest.raises(NotApplicable, match="has the task"):
        programs.assign("researcher", QUANTUM)


def test_turns_and_checkpoints_are_told_from_events(programs: Programs) -> None:
    programs.assign("researcher", QUANTUM)
    for verb in ("think", "execute", "think", "wait", "think"):
        programs.step_agent("researcher", verb)
    agent = programs.get("researcher")
    assert (agent.state, agent.turn_count) == ("thinking", 3)
    agent = programs.save_checkpoint("researcher", {"notes": ["a", "b"]})
    assert agent.shape()["config"]["lastCheckpoint"] == 3
    assert programs.load_checkpoint("researcher") == {"notes": ["a", "b"]}
    done = programs.step_agent("researcher", "complete")
    assert (done.state, done.current_task, done.turn_count) == ("idle", None, None)
    assert problems(programs.ledger) == []


def test_a_paused_agent_goes_on_where_it_was(programs: Programs) -> None:
    programs.step_agent("researcher", "think")
    programs.step_agent("researcher", "execute")
    assert programs.step_agent("researcher", "pause").state == "paused"
    assert programs.step_agent("researcher", "resume").state == "executing"
    assert programs.fail_agent("researcher", "no more quota", code="quota").state == "error"
    with pytest.raises(IllegalTransition) as refused:
        programs.step_agent("researcher", "think")
    assert set(refused.value.legal) == {"pause", "reset"}
    assert programs.step_agent("researcher", "reset").state == "idle"


def test_a_checkpoint_belongs_to_a_task(world: Programs) -> None:
    with pytest.raises(NotApplicable):
        world.save_checkpoint("researcher", {})
    with pytest.raises(InvalidInput):
        world.step_agent("researcher", "dance")


def test_a_task_is_blocked_by_what_it_waits_for(programs: Programs) -> None:
    programs.create("task", "a", {"title": "A"})
    programs.create("task", "b", {"title": "B"})
    programs.create("task", "c", {"title": "C", "dependencies": ["a", "@(b)"]})
    assert programs.start_task("c").state == "blocked"
    with pytest.raises(IllegalTransition):
        programs.complete_task("c")
    for name in ("a", "b"):
        programs.start_task(name)
        assert programs.get("c").state == "blocked"
        programs.complete_task(name)
    assert programs.get("c").state == "active"
    told = [change.kind for change in reversed(programs.history("c"))]
    assert told == ["task_created", "task_started", "task_blocked", "task_unblocked"]
    assert problems(programs.ledger) == []


def test_a_failed_task_unblocks_nobody_until_it_is_left_out(programs: Programs) -> None:
    programs.create("task", "a", {"title": "A"})
    programs.create("task", "b", {"title": "B", "dependencies": ["a"]})
    programs.start_task("b")
    programs.start_task("a")
    programs.fail_task("a", reason="nobody has time")
    assert programs.get("b").state == "blocked"
    assert programs.change("b", {"dependencies": []}).state == "active"
    programs.create("task", "c", {"title": "C"})
    assert programs.change("b", {"dependencies": ["c"]}).state == "blocked"


def test_tasks_do_not_wait_for_each_other_in_a_circle(programs: Programs) -> None:
    programs.create("task", "a", {"title": "A"})
    programs.create("task", "b", {"title": "B", "dependencies": ["a"]})
    programs.create("task", "c", {"title": "C", "dependencies": ["b"]})
    before = len(lines(programs.ledger))
    for dependencies in (["c"], ["a"], ["b"]):
        with pytest.raises(InvalidConfig, match="cycle"):
            programs.change("a", {"dependencies": dependencies})
    assert len(lines(programs.ledger)) == before


def test_a_task_completes_only_when_its_criteria_hold(programs: Programs, tmp_path: Path) -> None:
    programs.start_task(QUANTUM)
    with pytest.raises(CriteriaUnmet) as refused:
        programs.complete_task(QUANTUM, answer="too short", workspace=tmp_path)
    assert refused.value.failed == (0, 1)
    assert programs.get(QUANTUM).state == "active"
    (tmp_path / "quantum-research.md").write_text("a qubit")
    done = programs.complete_task(QUANTUM, answer="word " * 1000, workspace=tmp_path)
    assert done.state == "completed"
    assert [(one.criterion, one.passed, one.observed) for one in programs.checks(QUANTUM)] == [
        (0, False, False),
        (1, False, 2),
        (0, True, True),
        (1, True, 1000),
    ]
    told = [change.kind for change in reversed(programs.history(QUANTUM))]
    assert told[-3:] == ["task_checked", "task_checked", "task_completed"]


def test_nothing_is_looked_at_for_whoever_may_not_complete_a_task(programs: Programs, tmp_path: Path) -> None:
    programs.start_task(QUANTUM)
    programs.create("human", "eve", {})
    looked: list[str] = []

    class Watched(WorkspaceObservations):
        def file_exists(self, path: str) -> bool:
            looked.append(path)
            return True

    with pytest.raises(NotAllowed):
        programs.acting_as("eve").complete_task(QUANTUM, seen=Watched(tmp_path, "word"))
    assert looked == []


def test_criteria_that_changed_while_they_were_looked_at_do_not_count(programs: Programs, tmp_path: Path) -> None:
    programs.start_task(QUANTUM)

    class Slow(WorkspaceObservations):
        def file_exists(self, path: str) -> bool:
            programs.change(QUANTUM, {"priority": "P0"})
            return True

    with pytest.raises(VersionConflict):
        programs.complete_task(QUANTUM, seen=Slow(tmp_path, "word " * 1000))
    assert programs.checks(QUANTUM) == []


@pytest.mark.parametrize("path", ["../secret", "out/secret", "/etc/passwd", "link"])
def test_a_criterion_does_not_look_outside_of_the_workspace(tmp_path: Path, path: str) -> None:
    inside = tmp_path / "inside"
    inside.mkdir()
    (tmp_path / "secret").write_text("secret")
    (inside / "out").symlink_to(tmp_path)
    (inside / "link").symlink_to(tmp_path / "secret")
    seen = WorkspaceObservations(inside)
    for look in (seen.file_exists, seen.read_text):
        with pytest.raises(InvalidInput, match="outside"):
            look(path)


def test_links_within_the_workspace_are_followed(tmp_path: Path) -> None:
    (tmp_path / "a.md").write_text("three words here")
    (tmp_path / "b.md").symlink_to("a.md")
    assert WorkspaceObservations(tmp_path).read_text("b.md") == "three words here"
    assert WorkspaceObservations(tmp_path).file_exists("c.md") is False


NO_ARRAY = '$: {"a":1} is not of type "array"'
JUDGED: list[tuple[dict[str, Any], bool, Any]] = [
    ({"type": "file_exists", "path": "notes.md"}, True, True),
    ({"type": "file_exists", "path": "other.md"}, False, False),
    ({"type": "word_count", "path": "notes.md", "min": 2, "max": 3}, True, 3),
    ({"type": "word_count", "path": "notes.md", "max": 2}, False, 3),
    ({"type": "word_count", "path": "other.md", "min": 0}, False, None),
    ({"type": "word_count", "min": 1}, True, 1),
    ({"type": "contains", "path": "notes.md", "text": "Three"}, False, False),
    ({"type": "contains", "path": "notes.md", "text": "Three", "ignoreCase": True}, True, True),
    ({"type": "contains", "text": "ok"}, True, True),
    ({"type": "json_schema", "path": "data.json", "schema": {"type": "object"}}, True, []),
    (
        {"type": "json_schema", "path": "data.json", "schema": {"type": "array"}},
        False,
        ['$: {"a":1} is not of type "array"'],
    ),
    ({"type": "json_schema", "path": "notes.md", "schema": {}}, False, None),
    ({"type": "command", "command": ["true"]}, True, {"exitCode": 0, "stdout": "fine", "stderr": ""}),
    ({"type": "command", "command": "false", "exitCode": 1}, False, {"exitCode": 0, "stdout": "fine", "stderr": ""}),
    ({"type": "command", "command": "x", "stdout": "not"}, False, {"exitCode": 0, "stdout": "fine", "stderr": ""}),
]


@pytest.mark.parametrize(("criterion", "passed", "observed"), JUDGED)
def test_a_criterion_is_judged_by_what_is_there(
    tmp_path: Path, criterion: dict[str, Any], passed: bool, observed: Any
) -> None:
    (tmp_path / "notes.md").write_text("three words here")
    (tmp_path / "data.json").write_text('{"a": 1}')

    def run(command: str | list[str], folder: Path, timeout: float | None) -> CommandResult:
        assert folder == tmp_path.resolve()
        return CommandResult(exit_code=0, stdout="fine")

    (verdict,) = judge_criterion([criterion], WorkspaceObservations(tmp_path, "ok", run))
    assert verdict.passed is passed
    if observed is not None:
        assert verdict.observed == observed


@pytest.mark.parametrize(
    "criterion",
    [
        {"type": "vibes"},
        {"type": "file_exists"},
        {"type": "file_exists", "path": "../x"},
        {"type": "file_exists", "path": "/x"},
        {"type": "word_count"},
        {"type": "word_count", "min": "many"},
        {"type": "command", "command": []},
        {"type": "json_schema", "schema": {"type": "nonsense"}},
        {"type": "json_schema", "schema": {"$ref": "https://example.org/schema.json"}},
        {"type": "contains", "text": "x", "colour": "red"},
        "file_exists",
    ],
)
def test_a_criterion_that_is_none_is_refused(unchanged_world: Programs, criterion: Any) -> None:
    with pytest.raises(InvalidConfig) as refused:
        unchanged_world.create("task", "t", {"title": "T", "spec": {"successCriteria": [criterion]}})
    assert refused.value.path.startswith("config.spec.successCriteria[0]")


def test_a_command_needs_somebody_to_run_it(world: Programs, tmp_path: Path) -> None:
    world.create("task", "t", {"title": "T", "spec": {"successCriteria": [{"type": "command", "command": "true"}]}})
    world.start_task("t")
    with pytest.raises(Unsupported):
        world.complete_task("t", workspace=tmp_path)
    assert world.get("t").state == "active"
    with pytest.raises(InvalidInput, match="no workspace"):
        world.complete_task("t", run=lambda *_: CommandResult(exit_code=0))


def test_a_task_is_somebodys(programs: Programs) -> None:
    programs.create("task", "t", {"title": "T"})
    assert programs.assign_task("t", "bln").config["assignee"] == "@(bln)"
    assert "assignee" not in programs.assign_task("t", None).config
    told = [change.kind for change in reversed(programs.history("t"))]
    assert told == ["task_created", "task_configured", "task_assigned", "task_configured", "task_assigned"]


def test_rights_are_asked_for_by_the_verbs_that_need_them(programs: Programs) -> None:
    programs.create("human", "guest", {"permissions": ["session:read(ours)"]})
    programs.create("task", "t", {"title": "T", "assignee": "guest"})
    programs.add_tags("claude-balanced", "fast")
    programs.create_session("ours")
    guest, bln = programs.acting_as("guest"), programs.acting_as("bln")
    refused: list[Callable[[], object]] = [
        lambda: guest.create("provider", "p", {"providerType": "x"}),
        lambda: guest.change("claude-balanced", {"temperature": 0}),
        lambda: guest.deprecate("claude-balanced"),
        lambda: guest.delete("t"),
        lambda: guest.assign("researcher", "t"),
        lambda: guest.assign_task("t", "bln"),
        lambda: guest.start_task(QUANTUM),
        lambda: guest.step_agent("researcher", "reset"),
        lambda: guest.set_presence("bln", "away"),
        lambda: guest.archive("info-quantum-basics"),
        lambda: programs.acting_as("researcher").create("provider", "p", {"providerType": "x"}),
        lambda: guest.delete("ours"),
        lambda: guest.create_session("theirs", owner="bln"),
        lambda: guest.add_tags("bln", "trusted"),
        lambda: guest.remove_tags("claude-balanced", "fast"),
        lambda: guest.add_tags("ours", "trusted"),
    ]
    before = len(lines(programs.ledger))
    for attempt in refused:
        with pytest.raises(NotAllowed) as caught:
            attempt()
        assert caught.value.right in RIGHTS
    assert len(lines(programs.ledger)) == before
    assert guest.start_task("t").state == "active"
    assert guest.set_presence("guest", "busy").state == "busy"
    assert bln.create("code", "p", {"source": "x"}).created_by == "bln"
    assert programs.acting_as("researcher").step_agent("researcher", "think").state == "thinking"


def test_nobody_gives_a_right_that_they_lack_or_changes_their_own(programs: Programs) -> None:
    programs.create("human", "ann", {"permissions": ["configure", "configure(*)"]})
    ann = programs.acting_as("ann")
    refused: list[Callable[[], object]] = [
        lambda: ann.create("human", "twin", {"permissions": ["approve"]}),
        lambda: ann.create("agent", "deputy", {"permissions": {"programs": ["assign"]}}),
        lambda: ann.change("researcher", {"permissions": {"programs": ["assign"]}}),
        lambda: ann.change("ann", {"permissions": ["approve", "configure"]}),
        lambda: ann.change("ann", {"permissions": None}),
    ]
    for attempt in refused:
        with pytest.raises(NotAllowed):
            attempt()
    assert ann.create("human", "ben", {"permissions": ["configure"]}).created_by == "ann"
    assert ann.change("bln", {"permissions": ["approve"], "name": "B"}).config["permissions"] == ["approve"]
    assert ann.change("ann", {"name": "Ann"}).config["permissions"] == ["configure", "configure(*)"]


def test_an_agent_does_not_widen_what_it_may_use(programs: Programs) -> None:
    programs.change("researcher", {"permissions": {"programs": ["configure(researcher)"], "credentials": ["one"]}})
    agent = programs.acting_as("researcher")
    for permissions in ({"credentials": ["one", "two"]}, {"credentials": None}, {"tools": {"allow": ["shell"]}}):
        with pytest.raises(NotAllowed, match="its own permissions"):
            agent.change("researcher", {"permissions": permissions})


def test_who_may_assign_needs_no_other_right_for_the_session_that_comes_of_it(programs: Programs) -> None:
    programs.create("human", "lead", {"permissions": ["assign"]})
    agent = programs.acting_as("lead").assign("researcher", QUANTUM)
    assert programs.get(agent.current_session or "").config["defaultModel"] == "@(claude-balanced)"
    created = next(line for line in lines(programs.ledger) if b'"session_created"' in line)
    assert f'"actor":"{programs.get("lead").id}"'.encode() in created


def test_a_session_is_deleted_by_whose_it_is_and_in_their_name(programs: Programs) -> None:
    programs.create("human", "guest", {})
    guest = programs.acting_as("guest")
    made = guest.create_session("mine", model="claude-balanced")
    assert guest.add_tags("mine", "draft") == ["draft"]
    with pytest.raises(VersionConflict):
        guest.delete("mine", expected=7)
    assert guest.delete("@(mine)", reason="done", key="k").deleted
    assert guest.delete("@(mine)", reason="done", key="k").id == made.id
    assert f'"actor":"{programs.get("guest").id}"'.encode() in lines(programs.ledger)[-1]


def test_an_agent_may_what_its_permissions_say(programs: Programs) -> None:
    programs.change("researcher", {"permissions": {"programs": ["configure"], "tools": {"deny": ["rm"]}}})
    made = programs.acting_as("researcher").create("information", "found", {"infoType": "fact", "content": 1})
    assert made.created_by == "researcher"


def test_a_session_is_the_ledgers_own(programs: Programs) -> None:
    made = programs.create_session("talk", model="claude-balanced", owner="researcher")
    assert (made.kind, made.state, made.id) == ("session", "created", programs.ledger.session("talk").id)
    with pytest.raises(IllegalTransition):
        programs.step_session("talk", "pause")
    programs.ledger.record_turn(session="talk", query="hello")
    assert programs.step_session("talk", "pause").state == "paused"
    with pytest.raises(NotApplicable, match="paused"):
        programs.ledger.record_turn(session="talk", query="hello?")
    assert programs.step_session("talk", "resume").state == "active"
    programs.ledger.record_turn(session="talk", query="hello?")
    assert programs.step_session("talk", "complete", reason="all said").state == "completed"
    assert programs.ledger.session("talk").lifecycle == "completed"
    with pytest.raises(NotApplicable, match="completed"):
        programs.ledger.record_turn(session="talk", query="one more")
    with pytest.raises(IllegalTransition) as refused:
        programs.step_session("talk", "resume")
    assert refused.value.legal == {}
    told = [change.kind for change in reversed(programs.history("talk"))]
    assert told == [f"session_{step}" for step in ("created", "configured", "paused", "resumed", "completed")]
    assert problems(programs.ledger) == []


def test_moving_the_head_of_a_session_does_not_wake_it(programs: Programs) -> None:
    ledger = programs.ledger
    first = ledger.record_turn(session="main", query="a").id
    ledger.record_turn(session="main", query="b")
    programs.step_session("main", "complete")
    ledger.move_head("main", new=first)
    assert programs.get("main").state == "completed"


def test_a_session_switches_its_model(programs: Programs) -> None:
    programs.create("model", "gemini-flash", {"modelId": "gemini-flash", "provider": "cf-gateway"})
    programs.create_session("talk", model="claude-balanced")
    switched = programs.change("talk", {"defaultModel": "gemini-flash"}, expected=1)
    assert switched.config["defaultModel"] == "@(gemini-flash)"
    assert next(change.kind for change in programs.history("talk")) == "session_model_switched"
    assert programs.create_session().name.startswith("session-")


def test_completing_is_retried_with_its_key(programs: Programs) -> None:
    programs.create("task", "t", {"title": "T", "spec": {"successCriteria": [{"type": "contains", "text": "ok"}]}})
    programs.start_task("t")
    for _ in range(2):
        with pytest.raises(CriteriaUnmet):
            programs.complete_task("t", answer="no", key="k")
    done = programs.complete_task("t", answer="ok", key="k")
    assert programs.complete_task("t", answer="ok", key="k") == done
    assert [one.passed for one in programs.checks("t")] == [False, False, True]
    with pytest.raises(IllegalTransition):
        programs.complete_task("t", answer="ok")


@pytest.mark.parametrize(
    "fields",
    [{"workspace": "/srv"}, {"spec": {"successCriteria": [{"type": "command", "command": "touch .git/hooks/x"}]}}],
)
def test_a_task_of_another_ledger_chooses_neither_folders_nor_commands_here(
    ledger: Ledger, tmp_path: Path, fields: dict[str, Any]
) -> None:
    def run(*_: Any) -> CommandResult:
        raise AssertionError("it was run")

    with weft.open(tmp_path / "other.db") as other:
        Programs(other).create("task", "plain", {"title": "Plain"})
        Programs(other).create("task", "given", {"title": "Given", **fields})
    pull(ledger, str(tmp_path / "other.db"), weft.open)
    programs = Programs(ledger)
    assert [(one.name, one.foreign) for one in programs.all("task")] == [("given", True), ("plain", True)]
    programs.start_task("given")
    with pytest.raises(NotApplicable, match="configured in another ledger") as refused:
        programs.complete_task("given", workspace=tmp_path, run=run)
    assert "weft pending take given" in phrase(refused.value.advice)
    assert programs.checks("given") == []
    taken = programs.configure("given", programs.get("given").config)
    assert (taken.version, taken.foreign) == (2, False)
    assert programs.get("@(given:1)").foreign


def test_what_a_ledger_wrote_under_a_former_name_is_its_own(open_ledger: Callable[..., Ledger], tmp_path: Path) -> None:
    with weft.open(tmp_path / "first.db") as first:
        Programs(first).create("task", "mine", {"title": "Mine", "workspace": "here"})
        first.upkeep.backup(tmp_path / "copy.db")
        was = first.replica
    copy = open_ledger(tmp_path / "copy.db")
    assert copy.replica != was
    assert not Programs(copy).get("mine").foreign


def test_stopped_work_takes_back_its_own_messages_and_nobody_elses(ledger: Ledger) -> None:
    programs = Programs(ledger)
    programs.create("agent", "ada", {})
    programs.create("task", "shop", {"title": "Shop"})
    session = programs.assign("ada", "shop").current_session
    brief = NewMessage(
        role=MessageRole.USER, content="Shop", metadata={"work": "brief", "task": programs.get("shop").id}
    )
    own = ledger.inbox.admit(brief, session=session)
    other = ledger.inbox.admit("By the way", session=session)
    assert programs.stop_work("ada", reason="enough").state == "idle"
    assert (programs.get("shop").state, programs.get("ada").current_task) == ("failed", None)
    states = [ledger.inbox.get(one.message).state for one in (own, other)]
    assert states == ["cancelled", "queued"]
