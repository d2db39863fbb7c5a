"""The nine invariants of the agents ledger schema, asked in SQL, and the real ledger held against the plain one."""

from typing import Any

import apsw

from tests.ledger.histories import copy_in_memory, problems
from tests.ledger.plain_model import PlainLedger, PlainSession
from weft.ledger.api.ledger import Ledger

# Each question must have an empty answer. The ninth is asked of the plain ledger, which counts every movement.
BROKEN = {
    "2. every turn but a root has a parent": """
        SELECT c.id FROM turns c LEFT JOIN turns p ON p.id = c.parent_turn_id
        WHERE c.parent_turn_id IS NOT NULL AND p.id IS NULL""",
    "3. every turn has a thread": """
        SELECT id FROM turns EXCEPT SELECT turn_id FROM threads
        UNION ALL SELECT turn_id FROM threads EXCEPT SELECT id FROM turns""",
    "4. a session points to a thread": """
        SELECT label FROM sessions WHERE thread_id IS NOT NULL AND thread_id NOT IN (SELECT turn_id FROM threads)""",
    "5. messages of a turn are in sequence": """
        SELECT turn_id FROM messages GROUP BY turn_id
        HAVING min(sequence) <> 0 OR max(sequence) <> count(*) - 1 OR count(DISTINCT id) <> count(*)""",
    "6. a completed turn has no open calls": """
        SELECT c.id FROM tool_calls c JOIN turns t ON t.id = c.turn_id
        WHERE t.status = 'completed' AND c.status IN ('pending', 'running')""",
    "7. the whole chain can be walked": """
        SELECT turn_id FROM threads WHERE json_array_length(ancestry) <> depth
        OR json_extract(ancestry, '$[#-1]') <> turn_id""",
    "8. a compaction has its details": """
        SELECT id FROM turns WHERE turn_type = 'compaction' EXCEPT SELECT turn_id FROM compactions
        UNION ALL SELECT turn_id FROM compactions EXCEPT SELECT id FROM turns WHERE turn_type = 'compaction'""",
    "9. a session stands where its history says": """
        SELECT s.id FROM sessions s WHERE s.thread_id IS NOT (
            SELECT h.thread_id FROM session_history h WHERE h.session_id = s.id ORDER BY h.k DESC LIMIT 1)""",
}


def check_step(sql: apsw.Connection, plain: PlainLedger) -> None:
    def rows(query: str) -> list[tuple[Any, ...]]:
        return sql.execute(query).fetchall()

    for invariant, query in BROKEN.items():
        assert rows(query) == [], invariant
    turns = {turn.id: (turn.parent, turn.kind, turn.status, turn.tokens or None) for turn in plain.turns.values()}
    stored = rows("SELECT id, parent_turn_id, turn_type, status, total_tokens FROM turns")
    assert {id: tuple(rest) for id, *rest in stored} == turns, "1. turns are never lost or changed"
    sessions = {s.id: (s.label, s.head, s.head_events, s.status) for s in plain.sessions.values()}
    stored = rows("SELECT id, label, thread_id, head_events, status FROM sessions")
    assert {id: tuple(rest) for id, *rest in stored} == sessions
    history = [(s.id, k, turn) for s in plain.sessions.values() for k, (turn, _) in enumerate(s.history)]
    moves = rows("SELECT session_id, k, thread_id FROM session_history")
    assert sorted(moves) == sorted(history), "9. every movement of a head is logged"
    told = [(turn.id, call, outcome) for turn in plain.turns.values() for call, outcome in turn.calls.items()]
    erased = {turn.id for turn in plain.turns.values() if turn.erased}
    stored = rows("SELECT turn_id, call_id, outcome FROM tool_calls")
    assert _without_ids(stored, erased) == _without_ids(told, erased)


def _without_ids(calls: list[tuple[Any, ...]], erased: set[str]) -> list[tuple[Any, ...]]:
    """Tool calls in some order; the ids of those whose turn was erased may be gone."""
    return sorted(((turn, "" if turn in erased else call, outcome) for turn, call, outcome in calls), key=repr)


def check_names(ledger: Ledger, plain: PlainLedger, names: list[str]) -> None:
    """Label, then alias."""
    every = {session.label: session.id for session in ledger.sessions(every=True) if session.status != "deleted"}
    assert every == {s.label: s.id for s in plain.sessions.values() if s.status != "deleted"}
    for name in names:
        expected = plain.find(name)
        if expected is not None:
            assert ledger.session(name).id == expected.id


def check_reading(ledger: Ledger, plain: PlainLedger) -> None:
    """Threads, contents of sessions and contexts, all of them."""
    for turn in plain.turns.values():
        thread = ledger.thread(turn.id)
        assert list(thread.ancestry) == plain.ancestry(turn.id)
        assert [message.text for message in thread.messages] == plain.texts(turn.id)
        found = {session.id for session in ledger.tree.sessions_containing(turn.id)}
        assert found == {s.id for s in plain.sessions.values() if turn.id in plain.contained(s)}
    completed = {turn.id for turn in plain.turns.values() if turn.status == "completed"}
    parents = {plain.turns[id].parent for id in completed}
    assert [turn.id for turn in ledger.tree.heads()] == [id for id in plain.turns if id not in parents]
    for session in plain.sessions.values():
        if session.head is not None and session.status != "deleted":
            said = [message.text for message in ledger.thread(session.label).messages]
            assert said == plain.texts(session.head, session.head_events)
            check_context(ledger, plain, session)


def check_context(ledger: Ledger, plain: PlainLedger, session: PlainSession) -> None:
    """Every turn of the thread is seen, or lies within what the compaction in effect has summarised: all that the
    thread holds of it, and no more."""
    context, head = ledger.context(session=session.id), str(session.head)
    thread = [turn for turn in plain.ancestry(head) if plain.turns[turn].kind == "normal"]
    hidden = thread[: len(thread) - len(context.turns)]
    assert list(context.turns) == thread[len(hidden) :]
    if context.compaction is None:
        assert hidden == []
    else:
        through = ledger.compactions.get(context.compaction).summarized_through
        assert set(hidden) <= set(plain.ancestry(through))
        assert through in plain.ancestry(head)
        ours = plain.events_seen(through, head, session.head_events)
        assert hidden == [] or through in context.turns or ours == plain.events_seen(through, context.compaction, None)


def check_all(ledger: Ledger, plain: PlainLedger) -> None:
    """Views equal to a rebuild; facts that give the same ledger elsewhere; reading as the plain ledger reads."""
    assert problems(ledger) == []
    check_reading(ledger, plain)
    with copy_in_memory(ledger) as other:
        assert other.upkeep.stats()["log"] == ledger.upkeep.stats()["log"]
        assert [turn.digest for turn in other.log()] == [turn.digest for turn in ledger.log()]
        assert other.sessions(every=True) == ledger.sessions(every=True)
        assert problems(other) == []
