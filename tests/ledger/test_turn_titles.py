"""What turns are about, one by one and many at once."""

import pytest

from tests.ledger.histories import grow
from weft.kernel.contents import ROW_BYTES
from weft.kernel.errors import FactDamaged
from weft.ledger.api.ledger import Ledger
from weft.ledger.model import TextPart
from weft.ledger.read.session_list import LONGEST_CHARS
from weft.store.fact_log import LEDGER_SCOPE


def test_a_turn_is_about_what_was_asked_first(ledger: Ledger) -> None:
    large = "l" * (ROW_BYTES + 1)
    expected = {}
    for said, turn in (
        ("q", {"query": "q", "response": "r"}),
        ("q", {"system": "s", "query": ["  ", "q", "later"]}),
        ("r", {"query": " \n ", "response": "r"}),
        ("s", {"system": "s"}),
        ("in parts", {"query": {"content": [{"type": "image_url", "url": "u"}, {"type": "text", "text": "in parts"}]}}),
        ("l" * LONGEST_CHARS + "…", {"query": large}),
        ("zoë \0", {"query": "zoë\n\0"}),
        ("Complete it: # Target b", {"query": "Complete it:\n\n# Target\n  b\n", "response": "r"}),
        ("Now fix it.", {"query": ["Ran `git status`\n```\nclean\n```", "Now fix it."]}),
        ("Ran `git status`", {"query": "Ran `git status`\n```\nclean\n```", "response": "r"}),
    ):
        expected[ledger.record_turn(session="main", **turn).id] = said
    silent = ledger.record_turn(session="main", tool_calls=[{"name": "t"}]).id
    expected[ledger.compactions.record(session="main", summary="what\nit was").id] = "what it was"
    assert ledger.listing().subjects([*expected, silent]) == expected
    assert [ledger.listing().subjects([turn]) for turn in (*expected, silent)] == [
        *({t: s} for t, s in expected.items()),
        {},
    ]


def test_a_part_that_is_one_tagged_block_gives_way_to_what_was_typed_beside_it(ledger: Ledger) -> None:
    opened = TextPart("<ide_opened_file>The user opened a.html</ide_opened_file>")
    turns = [
        ledger.record_turn(session="main", query={"content": parts}, response="ok").id
        for parts in ([opened, TextPart("fix it")], [opened])
    ]
    assert list(ledger.listing().subjects(turns).values()) == ["fix it", "The user opened a.html"]


def test_many_turns_of_many_branches_are_read_at_once(ledger: Ledger) -> None:
    turns: dict[str, str] = {}
    for session in ("a", "b", "c"):
        asked = [f"{session} {i}" for i in range(200)]
        turns |= dict(zip(grow(ledger, session, *asked), asked, strict=True))
    assert ledger.listing().subjects(list(turns)) == turns
    assert [turn.id for turn in ledger.log()] == list(turns)[::-1]
    assert [turn.id for turn in ledger.log(37)] == list(turns)[::-1][:37]


def test_turns_that_are_not_here_have_no_subject(ledger: Ledger) -> None:
    assert ledger.listing().subjects([]) == {}
    assert ledger.listing().subjects(["01ARZ3NDEKTSV4RRFFQ69G5FAV"]) == {}


def test_a_damaged_text_is_nobodys_subject(ledger: Ledger) -> None:
    (turn,) = grow(ledger, "main", "asked")
    ledger._store.write(lambda txn: txn.sql.run("UPDATE content SET bytes = ? WHERE scope <> ?", (b"x", LEDGER_SCOPE)))
    with pytest.raises(FactDamaged):
        ledger.listing().subjects([turn])
