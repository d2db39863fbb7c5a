"""Random histories: messages of any parts in any role, calls that end in any way, forks anywhere, compactions."""

from contextlib import suppress
from typing import Any

from hypothesis import strategies as st

from tests.ledger.test_messages import any_json, any_text, parts
from weft.kernel.errors import NotApplicable
from weft.ledger.api.ledger import Ledger

NAMES = ("main", "side", "third")
ids = st.sampled_from(["c1", "c2", "c 3", "toolu_01", "weft_1", "é", "x" * 60])
roles = st.sampled_from(["user", "assistant", "system", "tool"])
messages = st.fixed_dictionaries({"role": roles, "content": st.lists(parts, max_size=3) | any_text})
calls = st.tuples(ids, st.sampled_from(["Bash", "mcp:a/b", "Edit"]), any_json, st.sampled_from("ok error open".split()))
turns = st.fixed_dictionaries(
    {
        "kind": st.just("turn"),
        "session": st.sampled_from(NAMES),
        "steps": st.lists(messages | calls, min_size=1, max_size=5),
        "end": st.sampled_from(["finish", "finish", "interrupt", "fail"]),
    }
)
forks = st.fixed_dictionaries({"kind": st.just("fork"), "at": st.integers(0, 99), "event": st.integers(0, 9)})
compactions = st.fixed_dictionaries(
    {"kind": st.just("compact"), "session": st.sampled_from(NAMES), "summary": any_text.filter(bool)}
)
histories = st.lists(turns | turns | forks | compactions, min_size=1, max_size=8)


def live(ledger: Ledger, history: list[dict[str, Any]]) -> list[str]:
    """Record a history; returns the labels of sessions that stand somewhere."""
    made: list[str] = []
    for number, action in enumerate(history):
        if action["kind"] == "turn":
            made.append(_turn(ledger, action))
        elif action["kind"] == "compact":
            with suppress(NotApplicable):
                if any(session.label == action["session"] and session.head for session in ledger.sessions()):
                    ledger.compactions.record(session=action["session"], summary=action["summary"])
        elif made:
            turn = made[action["at"] % len(made)]
            events = ledger.events(turn)
            ledger.fork(events[min(action["event"], len(events) - 1)].id, label=f"fork{number}")
            ledger.record_turn(session=f"fork{number}", query=f"from {number}", response="on")
    return [session.label for session in ledger.sessions() if session.head is not None]


def _turn(ledger: Ledger, action: dict[str, Any]) -> str:
    with ledger.begin_turn(session=action["session"]) as turn:
        for step in action["steps"]:
            if isinstance(step, dict):
                turn.message({"content": step["content"]}, role=step["role"])
                continue
            id, name, arguments, end = step
            call = turn.tool_call(name, id=id, arguments=arguments)
            if end == "ok":
                turn.tool_result(call, arguments)
            elif end == "error":
                turn.tool_result(call, error="it broke")
        if action["end"] == "fail":
            turn.fail("no more")
        elif action["end"] == "interrupt":
            turn.interrupt("crash")
        else:
            with suppress(NotApplicable):
                turn.finish()
                return turn.id
            turn.interrupt("crash")
    return turn.id
