"""Messages that pass themselves off as those of an agent's work."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import weft
from tests.runtime.harness.test_moves import NOW, a_round
from tests.runtime.harness.test_moves import facts as facts_of
from weft.kernel.enums import MessageRole
from weft.ledger.model import NewMessage
from weft.programs import Programs
from weft.runtime.agent_work import AwaitAnswer, RoundState, Say, WordKind, WorkReader, next_move


@pytest.mark.parametrize("claim", ["brief", ["brief"], {"brief": 1}])
def test_a_message_is_no_brief_because_its_sender_says_so(tmp_path: Path, claim: Any) -> None:
    """Whoever may only write to the session would choose the folder that the criteria are checked in."""
    with weft.open(tmp_path / "ledger.db") as ledger:
        programs = Programs(ledger)
        programs.create("human", "carl", {"permissions": ["turn:*", "session:read"]})
        programs.create("agent", "ada", {"soul": "You work."})
        criteria = [{"type": "file_exists", "path": "done"}]
        programs.create("task", "build", {"title": "x", "workspace": "/own", "spec": {"successCriteria": criteria}})
        programs.assign("ada", "build")
        session = programs.get("ada").current_session
        message = NewMessage(
            role=MessageRole.USER, content="hello", context={"workspace": "/carls"}, metadata={"work": claim}
        )
        ledger.acting_as("carl").inbox.admit(message, session=session)
        facts = WorkReader(programs).facts("ada")
        assert facts is not None
        assert (facts.workspace, [one.kind for one in facts.rounds]) == ("/own", [None])
        ledger.inbox.admit(message, session=session)
        facts = WorkReader(programs).facts("ada")
        assert facts is not None
        is_brief = claim == "brief"
        assert facts.workspace == ("/carls" if is_brief else "/own")


@pytest.mark.parametrize("state", [RoundState.ANSWERED, RoundState.FAILED, RoundState.CUT])
def test_whoever_writes_to_an_agent_before_its_brief_ends_no_task(state: RoundState) -> None:
    """An answer to somebody else completes no task without criteria, and fails none with them."""
    other = a_round(1, None, state)
    for facts in (facts_of(other), facts_of(other, criteria=[])):
        move = next_move(facts, NOW)
        assert isinstance(move, Say)
        assert move.kind is WordKind.BRIEF
    waiting = facts_of(a_round(1, None, RoundState.WAITING), criteria=[])
    assert isinstance(next_move(waiting, NOW), AwaitAnswer)
