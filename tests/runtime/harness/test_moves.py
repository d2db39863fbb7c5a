"""What comes next in an agent's work, by facts alone."""

from __future__ import annotations

from typing import Any

import pytest

from weft.ledger.api import InboxMessage, Spending
from weft.ledger.model import TextPart
from weft.ledger.reports.prices import UsageTally
from weft.programs.program_records import Program, RecordedVerdict
from weft.programs.tasks import TaskAssignment
from weft.runtime.agent_work import (
    FIRST_PAUSE_MS,
    AwaitAnswer,
    AwaitWorkers,
    CheckCriteria,
    GiveUpWork,
    Leave,
    Move,
    Rest,
    RoundState,
    SaveCheckpoint,
    Say,
    StandStill,
    StartTask,
    WordKind,
    WorkFacts,
    WorkRound,
    doing_words,
    harness_of,
    next_move,
)

CRITERIA = [{"type": "contains", "text": "milk"}, {"type": "contains", "text": "eggs"}]
NOW = 1_000_000


def program(kind: str, name: str, state: str, config: dict[str, Any], **more: Any) -> Program:
    return Program(
        id=name, name=name, kind=kind, state=state, config=config, version=1, tags=[], created_at=0, updated_at=0,
        created_by="local", **more,
    )  # fmt: skip


def a_round(
    number: int,
    kind: str | None = WordKind.REFLECTION,
    state: RoundState = RoundState.ANSWERED,
    held: str = "..",
    **more: Any,
) -> WorkRound:
    """`held`: for each criterion `+` where it held, `-` where it did not, nothing where it was not checked."""
    message = InboxMessage(
        id=f"m{number}", n=number, session="s", session_id="s", state="answered", mode="followup", priority=0,
        sender="local", source=None, content=(TextPart(f"text {number}"),), turn=f"t{number}", admitted_at=0,
        settled_at=NOW, error=None, again=None,
    )  # fmt: skip
    verdicts = tuple(
        RecordedVerdict(criterion=i, type="contains", passed=mark == "+", observed=mark == "+", version=1, at=0, n=0)
        for i, mark in enumerate(held)
        if mark in "+-"
    )
    fields = {"message": message, "state": state, "turn": f"t{number}", "kind": kind, "answer": "a", "seconds": 10.0}
    return WorkRound(verdicts=verdicts, **{**fields, **more})


def spent(tokens: int = 0, cost: int | None = 0, unpriced: int = 0) -> Spending:
    return Spending(**{**UsageTally().fields(), "total": tokens, "cost": cost, "unpriced": unpriced})


def facts(
    *rounds: WorkRound,
    harness: dict[str, Any] | None = None,
    agent: str = "thinking",
    task: str = "active",
    criteria: list[dict[str, Any]] | None = None,
    **more: Any,
) -> WorkFacts:
    ada = program("agent", "ada", agent, {"harness": harness or {}}, current_task="shop", turn_count=len(rounds))
    spec = {"successCriteria": CRITERIA if criteria is None else criteria}
    fields = {
        "agent": ada,
        "task": program("task", "shop", task, {"title": "Shop", "spec": spec}),
        "settings": harness_of(ada),
        "assignment": TaskAssignment(n=0, at=0, task="shop", session="s", by=("local",)),
        "session": "s",
        "head": rounds[-1].turn if rounds else None,
        "rounds": rounds,
        "spent": spent(),
    }
    return WorkFacts(**{**fields, **more})


BRIEF = a_round(1, WordKind.BRIEF)
UNMET = a_round(1, WordKind.BRIEF, held="--")
FAILED = a_round(2, state=RoundState.FAILED, error="down", held="..")
CUT = a_round(2, state=RoundState.CUT, error="canceled", held="..")
REFLECTS = {"reflectOnFailure": True}
SAVES = {**REFLECTS, "checkpointEvery": 1}


@pytest.mark.parametrize(
    ("given", "move"),
    [
        (facts(task="pending", agent="idle"), StartTask),
        (facts(task="blocked"), Rest),
        (facts(task="completed"), Leave),
        (facts(task="failed", agent="error"), Rest),
        (facts(agent="paused"), Rest),
        (facts(BRIEF, agent="paused"), Rest),
        (facts(BRIEF, agent="error"), Rest),
        (facts(agent="idle"), Say),
        (facts(a_round(1, state=RoundState.WAITING)), AwaitAnswer),
        (facts(BRIEF), CheckCriteria),
        (facts(BRIEF, criteria=[]), CheckCriteria),
        (facts(BRIEF, workers=("w",)), AwaitWorkers),
        (facts(a_round(1, failed_calls=("shell: 1",)), criteria=[]), CheckCriteria),
        (facts(a_round(1, failed_calls=("shell: 1",)), criteria=[], harness=REFLECTS), Say),
        (facts(UNMET), GiveUpWork),
        (facts(UNMET, harness=REFLECTS), Say),
        (facts(UNMET, harness={**REFLECTS, "checkpointEvery": 1}), SaveCheckpoint),
        (facts(UNMET, harness={**REFLECTS, "checkpointEvery": 2}), Say),
        (facts(UNMET, harness=SAVES, checkpoint={"turn": "t1", "next": "x"}), Say),
        (facts(UNMET, harness=SAVES, checkpoint={"turn": "t1", "next": None}), SaveCheckpoint),
        (facts(a_round(1, state=RoundState.WAITING), harness={"checkpointEvery": 1}, is_parked=True), SaveCheckpoint),
        (facts(UNMET, FAILED), StandStill),
        (facts(UNMET, FAILED, agent="waiting"), Rest),
        (facts(UNMET, FAILED, harness=REFLECTS), Rest),
        (facts(UNMET, CUT, harness=REFLECTS), StandStill),
    ],
)  # fmt: skip
def test_what_comes_next(given: WorkFacts, move: type[Move]) -> None:
    found = next_move(given, NOW)
    assert isinstance(found, move), found
    assert doing_words(given, found)


def test_after_a_failed_turn_the_next_one_is_put_off_longer_and_longer() -> None:
    waits = []
    for count in (1, 2, 3):
        failed = [a_round(2 + k, state=RoundState.FAILED, error="down") for k in range(count)]
        given = facts(UNMET, *failed, harness={**REFLECTS, "maxReflections": 9})
        rest = next_move(given, NOW)
        assert isinstance(rest, Rest)
        assert rest.until_ms is not None
        waits.append(rest.until_ms - NOW)
        said = next_move(given, rest.until_ms)
        assert isinstance(said, Say)
        assert said.text.startswith("text 2\n\nAn earlier try of this ended with an error: down")
        assert (said.reason or "").startswith(f"reflection {count + 1} of 9: the last turn failed")
    assert waits == [FIRST_PAUSE_MS, 2 * FIRST_PAUSE_MS, 4 * FIRST_PAUSE_MS]


def test_what_was_interrupted_goes_on_where_somebody_asks() -> None:
    for last in (CUT, FAILED):
        assert isinstance(next_move(facts(UNMET, last, agent="waiting"), NOW, is_asked=True), Say)
    saved = {"head": "t2", "next": "Go on with the eggs"}
    found = next_move(facts(UNMET, CUT, agent="waiting", checkpoint=saved), NOW, is_asked=True)
    assert isinstance(found, Say)
    assert (found.kind, found.text) == (WordKind.RESUMPTION, "Go on with the eggs")


@pytest.mark.parametrize(
    ("held", "is_over"),
    [
        (["--", "--", "--", "--"], True),
        (["--", "--", "+-", "+-", "+-", "+-"], True),
        (["--", "--", "--", "+-"], False),
        (["--", "--", "+-", "-+", "+-"], False),  # each of these holds something that did not hold before
        (["--", "--", "--"], False),
    ],
)
def test_reflections_in_a_row_that_bring_nothing_new_are_bounded(held: list[str], is_over: bool) -> None:
    rounds = [a_round(i, WordKind.REFLECTION if i else WordKind.BRIEF, held=marks) for i, marks in enumerate(held)]
    found = next_move(facts(*rounds, harness=REFLECTS), NOW)
    assert isinstance(found, GiveUpWork if is_over else Say), found
    if isinstance(found, GiveUpWork):
        assert found.reason.startswith("3 reflections in a row brought nothing new")


@pytest.mark.parametrize(
    ("harness", "spending", "words"),
    [
        ({"maxTurns": 1}, spent(), "budget: 1 turn was not enough"),
        ({"maxTokens": 500}, spent(500), "budget: 500 of 500 tokens are spent"),
        ({"maxSeconds": 10}, spent(), "budget: 10 of 10 seconds are spent"),
        ({"maxCost": 0.5}, spent(9, 500_000), "budget: $0.5000 of $0.5000 are spent"),
        ({"maxCost": 0.5}, spent(9, None, 9), "budget: nobody knows what the turns cost"),
        ({"maxTurns": 2, "maxTokens": 501, "maxSeconds": 11, "maxCost": 0.6}, spent(500, 500_000), None),
    ],
)
def test_a_spent_budget_stops_the_work_with_a_word(
    harness: dict[str, Any], spending: Spending, words: str | None
) -> None:
    found = next_move(facts(UNMET, harness={**REFLECTS, **harness}, spent=spending), NOW)
    if words is None:
        assert isinstance(found, Say)
        return
    assert isinstance(found, GiveUpWork), found
    assert found.code == "budget_spent"
    assert found.reason.startswith(words)
    assert "does not contain 'milk'" in found.reason


def test_a_turn_that_the_budget_ended_is_no_failure_to_reflect_on() -> None:
    spent_money = a_round(2, state=RoundState.FAILED, error="9 of 9 are spent", error_code="budget_spent")
    cut = a_round(2, state=RoundState.CUT, error="timeout", error_code="timeout")
    for last, harness in ((spent_money, {}), (cut, {"maxSeconds": 15})):
        found = next_move(facts(UNMET, last, harness={**REFLECTS, **harness}), NOW)
        assert isinstance(found, GiveUpWork), found
        assert (found.code, found.reason[:7]) == ("budget_spent", "budget:")
