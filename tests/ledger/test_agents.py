"""Agents own sessions and turns; code blocks are read out of answers, or named by whoever records them."""

from typing import Any

import pytest

from tests.ledger.histories import grow, lines, problems
from weft import Codeblock
from weft.kernel.errors import InvalidInput
from weft.ledger.api.ledger import Ledger

ANSWER = """Two ways:

```python
print("one")
```
and
~~~~ sh -x
echo two
~~~~

```
no language
```

~~~
```nested```
~~~
``` not closed
to the end"""


def test_the_default_agent_is_local(ledger: Ledger) -> None:
    made = ledger.record_turn(session="main", query="q")
    assert ledger.turn(made.id).persona_id == ledger.session("main").persona_id == "local"
    assert all(b'"actor":"local"' in line for line in lines(ledger))


def test_an_agent_is_made_when_it_is_first_named(ledger: Ledger) -> None:
    first = ledger.record_turn(session="main", persona="Ann Ω", query="q")
    second = ledger.record_turn(session="other", persona="Ann Ω", query="q")
    assert ledger.session("main").persona_id == ledger.session("other").persona_id == "Ann Ω"
    assert ledger.turn(first.id).persona_id == ledger.turn(second.id).persona_id == "Ann Ω"
    assert sum(b'"agent_created"' in line for line in lines(ledger)) == 1
    assert problems(ledger) == []


def test_an_agent_is_named_as_agent_and_in_the_earlier_spelling(ledger: Ledger) -> None:
    spellings: list[dict[str, Any]] = [{"agent": "ann"}, {"persona": "ann"}, {"agent": "ann", "persona": "ann"}]
    for agent in spellings:
        label = "-".join(agent)
        turn = ledger.record_turn(session=label, query="q", **agent)
        (again,) = ledger.record_turns([{"session": label, "query": "r", **agent}])
        with ledger.begin_turn(session=label, **agent) as writer:
            writer.finish()
        made = ledger.create_session(f"{label}-made", **agent)
        fork = ledger.fork(turn.id, **agent)
        turns = [ledger.turn(id).persona_id for id in (turn.id, again.id, writer.id)]
        assert {*turns, made.persona_id, fork.persona_id, ledger.session(label).persona_id} == {"ann"}
        found = ledger.find_turns(limit=100, **agent)
        assert {turn.id, again.id, writer.id} <= {one.id for one in found}
        assert made.id in {one.id for one in ledger.find_sessions(**agent)}
        assert ledger.inbox.admit("Hello", **agent).session.startswith("ann")
    assert ledger.record_turn(session="other", query="q").id not in {one.id for one in ledger.find_turns(agent="ann")}
    with pytest.raises(InvalidInput, match="two agents"):
        ledger.record_turn(session="main", query="q", agent="ann", persona="ben")
    with pytest.raises(InvalidInput, match="two agents"):
        ledger.find_turns(agent="ann", persona="ben")


def test_turns_of_a_session_are_its_owners_unless_they_say_otherwise(ledger: Ledger) -> None:
    ledger.create_session("main", persona="ann")
    (owned,) = grow(ledger, "main", "q")
    (lent,) = grow(ledger, "main", "q", persona="ben")
    with ledger.begin_turn(session="main") as writer:
        writer.finish()
    assert [ledger.turn(turn).persona_id for turn in (owned, lent, writer.id)] == ["ann", "ben", "ann"]
    assert ledger.session("main").persona_id == "ann"


def test_a_fork_belongs_to_the_session_it_leaves_or_to_another_agent(ledger: Ledger) -> None:
    (turn,) = grow(ledger, "main", "q", persona="ann")
    assert ledger.fork("main", label="a").persona_id == "ann"
    assert ledger.fork(turn, label="b").persona_id == "ann"
    assert ledger.fork(turn, label="c", persona="ben").persona_id == "ben"
    assert ledger.fork(turn, label="d", session="c").persona_id == "ben"
    ledger.create_session("by id", persona=ledger.events(turn)[0].event.actor)
    assert ledger.session("by id").persona_id == "ann"


def test_blocks_are_read_out_of_an_answer(ledger: Ledger) -> None:
    made = ledger.record_turn(session="main", query=ANSWER, response=ANSWER)
    query, answer = ledger.messages(made.id)
    assert [(block.language, block.content) for block in ledger.codeblocks(answer.id)] == [
        ("python", 'print("one")\n'),
        ("sh", "echo two\n"),
        (None, "no language\n"),
        (None, "```nested```\n"),
        ("not", "to the end"),
    ]
    assert ledger.codeblocks(query.id) == []
    assert problems(ledger) == []


@pytest.mark.parametrize("before", ["", "é€\U0001f9f5", "\0\0", "\ud800 \udfff"])
def test_blocks_are_exact_whatever_stands_before_them(ledger: Ledger, before: str) -> None:
    made = ledger.record_turn(session="main", response=f"{before}\n```py\nx = '{before}'\n```\n")
    (block,) = ledger.codeblocks(str(made.response_message_id))
    assert block.content == f"x = '{before}'\n"


def test_named_blocks_stand_in_place_of_those_in_the_text(ledger: Ledger) -> None:
    blocks = [
        Codeblock(content="x", language="my language", path="a b.py", line_start=3, line_end=9),
        Codeblock(content="y\0\ud800"),
    ]
    made = ledger.record_turn(session="main", response={"content": ANSWER, "codeblocks": blocks})
    assert ledger.codeblocks(str(made.response_message_id)) == blocks
    assert problems(ledger) == []


def test_blocks_are_found_in_every_text_part_of_every_answer_of_a_turn(ledger: Ledger) -> None:
    part = {"type": "text", "text": "```a\n1\n```"}
    made = ledger.record_turn(session="main", response=[{"content": [part, part]}, "```b\n2\n```"])
    found = [[block.language for block in ledger.codeblocks(message.id)] for message in ledger.messages(made.id)]
    assert found == [["a", "a"], ["b"]]


def test_a_message_that_is_not_there_has_no_blocks(ledger: Ledger) -> None:
    assert ledger.codeblocks("01ARZ3NDEKTSV4RRFFQ69G5FAV") == []
