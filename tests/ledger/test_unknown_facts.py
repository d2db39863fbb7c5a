"""Facts of a later program, and facts that came without their contents: kept to the byte, chained, passed on."""

import json
from typing import Any

import pytest

from tests.ledger.conftest import OpenLedger
from tests.ledger.histories import exported, grow, import_into, lines, problems, queries, texts
from tests.ledger.test_facts_file import as_facts, records, reseal
from weft.kernel.contents import ABSENT
from weft.kernel.errors import InvalidFact
from weft.kernel.events import UnknownEvent
from weft.ledger.api.ledger import Ledger

LATER = {"kind": "moon_landed", "crew": ["a text with spaces", {"deep": [1, None, 1.5]}], "v": 1}


@pytest.fixture
def empty(open_ledger: OpenLedger) -> Ledger:
    return open_ledger(":memory:")


def insert_after(values: list[dict[str, Any]], kind: str, event: dict[str, Any]) -> dict[str, Any]:
    """Put an event into the stream of the first one of this kind, right behind it, and chain the rest again."""
    at = next(i for i, value in enumerate(values) if value.get("kind") == kind)
    stream = values[at]["stream"]
    added = reseal({"stream": stream, "prev": values[at]["event_id"], "actor": "local", **event})
    values.insert(at + 1, added)
    relink(values)
    return added


def relink(values: list[dict[str, Any]]) -> None:
    """Give every event the id it has now, and name it so wherever it is named."""
    renamed: dict[str, str] = {}
    tips: dict[str, str] = {}
    for i, value in enumerate(values):
        if "event_id" in value:
            text = json.dumps(value)
            for old, new in renamed.items():
                text = text.replace(old, new)
            event = json.loads(text)
            event["prev"] = tips.get(event["stream"])
            values[i] = reseal(event)
            renamed[value["event_id"]] = values[i]["event_id"]
            tips[event["stream"]] = values[i]["event_id"]


@pytest.mark.parametrize("after", ["run_started", "history_append", "session_created", "session_moved"])
def test_an_unknown_kind_is_kept_chained_and_passed_on(disk: Ledger, empty: Ledger, after: str) -> None:
    grow(disk, "main", "a", "b")
    values = records(exported(disk))
    added = insert_after(values, after, LATER)
    import_into(empty, as_facts(values))
    (kept,) = [found for found in empty.changes() if isinstance(found.event, UnknownEvent)]
    assert kept.id == added["event_id"]
    assert isinstance(kept.event, UnknownEvent)
    assert (kept.event.kind, kept.event.fields["crew"]) == ("moon_landed", LATER["crew"])
    assert kept.line in lines(empty)
    assert [json.loads(line)["event_id"] for line in exported(empty).splitlines() if b"event_id" in line] == [
        value["event_id"] for value in values if "event_id" in value
    ]
    assert queries(empty, "main") == ["a", "b"]
    assert grow(empty, "main", "c")
    assert problems(empty) == []


def test_an_unknown_kind_may_have_a_stream_of_its_own(empty: Ledger) -> None:
    first = reseal({**LATER, "stream": "conversation:01ARZ3NDEKTSV4RRFFQ69G5FAV", "prev": None})
    second = reseal({**LATER, "stream": first["stream"], "prev": first["event_id"]})
    assert import_into(empty, as_facts([first, second])) == (2, 0, 0)
    with pytest.raises(InvalidFact, match="begins a second time"):
        import_into(empty, as_facts([reseal({**first, "crew": []})]))
    with pytest.raises(InvalidFact, match="not here"):
        import_into(empty, as_facts([reseal({**second, "prev": "0" * 64})]))
    assert problems(empty) == []


def test_an_unknown_field_of_a_known_kind_is_kept_to_the_byte(disk: Ledger, empty: Ledger) -> None:
    grow(disk, "main", "a")
    values = records(exported(disk))
    for value in values:
        if "event_id" in value:
            value["zz_later"] = {"of": "a later program", "n": [1.5, "x"]}
    relink(values)
    import_into(empty, as_facts(values))
    assert all(b'"zz_later":{"n":[1.5,"x"],"of":"a later program"}' in line for line in lines(empty))
    assert [value["event_id"] for value in values if "event_id" in value] == [found.id for found in empty.changes()]
    assert queries(empty, "main") == ["a"]
    assert exported(empty).count(b"zz_later") == len(lines(empty))
    assert problems(empty) == []


def test_an_unknown_value_of_a_known_kind_makes_the_event_unknown_and_nothing_else(disk: Ledger, empty: Ledger) -> None:
    grow(disk, "main", "a")
    disk.labels.archive("main")
    values = records(exported(disk))
    values[-1] = reseal({**values[-1], "status": "lent"})
    import_into(empty, as_facts(values))
    assert empty.session("main").status == "active"
    assert empty.labels.rename("main", "still here").head == disk.resolve("main")
    assert problems(empty) == []


def without_contents(facts: bytes) -> bytes:
    return as_facts([value for value in records(facts) if "event_id" in value])


def test_events_whose_contents_are_withheld_still_verify(disk: Ledger, empty: Ledger) -> None:
    (turn,) = grow(disk, "main", "a", persona="ann", tool_calls=[{"name": "my tool", "result": 1}])
    import_into(empty, without_contents(exported(disk)))
    assert empty.turn(turn).digest == disk.turn(turn).digest
    assert problems(empty) == []
    assert texts(empty.messages(turn)) == [ABSENT, ABSENT]
    assert [(call.name, call.result) for call in empty.tool_calls(turn)] == [(ABSENT, ABSENT)]
    (session,) = empty.sessions()
    assert session.label == session.id


def test_contents_that_come_later_fill_the_views(disk: Ledger, empty: Ledger) -> None:
    (turn,) = grow(disk, "main", "a", persona="ann")
    facts = exported(disk)
    import_into(empty, without_contents(facts))
    grow(empty, "mine", "in between")
    import_into(empty, facts)
    assert texts(empty.messages(turn)) == ["a", "re: a"]
    assert (empty.session("main").persona_id, queries(empty, "mine")) == ("ann", ["in between"])
    assert problems(empty) == []
    assert empty.upkeep.rebuild() == 0
