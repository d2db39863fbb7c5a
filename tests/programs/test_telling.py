"""Information, people, tags, placeholders and paths."""

from typing import Any

import pytest

from tests.ledger.histories import problems
from weft.kernel.errors import (
    IllegalTransition,
    InvalidInput,
    NotAllowed,
    NotApplicable,
    NotFound,
    SchemaMismatch,
    VariableMissing,
)
from weft.programs import Programs
from weft.programs.program_records import found_at, parse_path, resolve_config, variables_in


def test_information_is_held_against_its_schema(programs: Programs) -> None:
    fact = {"infoType": "fact", "content": {"spin": 1}, "schema": "quantum-schema"}
    with pytest.raises(SchemaMismatch) as refused:
        programs.create("information", "bad", fact)
    assert refused.value.problems == ('$: "qubit" is a required property',)
    with pytest.raises(NotFound):
        programs.get("bad")
    assert programs.create("information", "bad", fact, draft=True).state == "draft"
    with pytest.raises(SchemaMismatch):
        programs.validate("bad")
    assert programs.get("bad").state == "draft"
    programs.change("bad", {"content": {"qubit": "now it is there"}})
    assert programs.validate("bad").state == "validated"
    assert programs.activate("bad").state == "active"


def test_information_in_use_stays_valid(programs: Programs) -> None:
    with pytest.raises(SchemaMismatch):
        programs.change("info-quantum-basics", {"content": {"qubit": None}})
    assert programs.get("info-quantum-basics").version == 1
    told = [change.kind for change in reversed(programs.history("info-quantum-basics"))]
    assert told == ["information_created", "information_validated", "information_activated"]
    assert programs.archive("info-quantum-basics").state == "archived"
    with pytest.raises(IllegalTransition):
        programs.validate("info-quantum-basics")
    assert programs.activate("info-quantum-basics").state == "active"


def test_a_version_of_a_schema_can_be_held_to(programs: Programs) -> None:
    programs.change("quantum-schema", {"content": {"required": ["spin"]}})
    config = {"infoType": "fact", "content": {"qubit": 1}, "schema": "@(quantum-schema:1)"}
    assert programs.create("information", "old", config).state == "active"
    with pytest.raises(SchemaMismatch):
        programs.create("information", "new", {**config, "schema": "@(quantum-schema)"})


def test_information_is_found_by_type_tag_path_and_words(programs: Programs) -> None:
    content: dict[str, Any] = {
        "topic": "error correction",
        "codes": [{"name": "surface"}, {"name": "toric"}],
        "year": 1997,
    }
    programs.create("information", "codes", {"infoType": "pattern", "content": content}, tagged=["trusted"])

    def names(*args: Any, **asked: Any) -> list[str]:
        return [one.name for one in programs.query(*args, **asked)]

    assert names() == ["codes", "info-quantum-basics", "quantum-schema"]
    assert names(info_type="pattern") == names(tagged=["trusted"]) == names("surface topic") == ["codes"]
    assert names(path="$.codes[*].name", equals="toric") == names(path="$.year", equals=1997) == ["codes"]
    assert names(path="$.year", equals=1998) == names("nonsense") == names(tagged=["trusted", "x"]) == []
    assert names("two-lev") == ["info-quantum-basics"]
    programs.archive("codes")
    assert names(info_type="pattern") == []
    assert names(info_type="pattern", archived=True) == ["codes"]
    for asked in ({"info_type": "x"}, {"equals": 1}, {"path": "$.["}, {"text": "…"}):
        with pytest.raises(InvalidInput):
            programs.query(**asked)


@pytest.mark.parametrize(
    ("path", "found"),
    [
        ("$", [{"a": [1, {"b": 2}], "c d": {"b": 3}}]),
        ("$.a", [[1, {"b": 2}]]),
        ("a[0]", [1]),
        ("$.a[-1].b", [2]),
        ("$['c d'].b", [3]),
        ("$.a[*]", [1, {"b": 2}]),
        ("$..b", [2, 3]),
        ("$.*.b", [3]),
        ("$.a[9]", []),
        ("$.x.y", []),
    ],
)
def test_a_path_leads_to_every_value_at_its_place(path: str, found: list[Any]) -> None:
    assert list(found_at({"a": [1, {"b": 2}], "c d": {"b": 3}}, parse_path(path))) == found


def test_people_answer_what_they_were_asked_once(programs: Programs) -> None:
    request = programs.notify("bln", "Ship it?", asks=True, program="claude-balanced", data={"risk": "low"})
    assert (request.status, request.program, request.asked_by) == ("pending", "claude-balanced", "local")
    assert programs.requests("bln", status="pending") == [request]
    bln = programs.acting_as("bln")
    approved = bln.approve(request.id[-8:], reason="go")
    assert (approved.status, approved.reason) == ("approved", "go")
    with pytest.raises(NotApplicable):
        bln.reject(request.id)
    assert programs.notify("bln", "by the way").status == "told"
    kinds = [change.kind for change in reversed(programs.history("bln"))]
    assert kinds == ["human_created", "human_notified", "human_approved", "human_notified"]
    assert problems(programs.ledger) == []


def test_only_the_person_who_was_asked_and_may_can_answer(programs: Programs) -> None:
    programs.create("human", "guest", {})
    asked = [programs.notify(human, "Ship it?", asks=True) for human in ("bln", "guest")]
    for request in asked:
        for actor in ("local", "guest", "researcher"):
            with pytest.raises(NotAllowed):
                programs.acting_as(actor).approve(request.id)
        assert programs.request(request.id).status == "pending"
    with pytest.raises(NotAllowed) as another:
        programs.acting_as("guest").approve(asked[0].id)
    assert (another.value.hint, "guest may not" in str(another.value)) == ("only 'bln' answers it", True)
    with pytest.raises(NotAllowed) as unpermitted:
        programs.acting_as("guest").approve(asked[1].id)
    assert unpermitted.value.hint == "it needs the permission 'approve' in its configuration"
    with pytest.raises(NotFound):
        programs.acting_as("nobody").approve(asked[0].id)
    with pytest.raises(NotFound):
        programs.acting_as("bln").approve("NOTHING")


def test_presence_goes_its_ways_and_no_others(programs: Programs) -> None:
    assert programs.set_presence("bln", "busy").state == "busy"
    assert programs.set_presence("bln", "away").state == "away"
    assert programs.set_presence("bln", "offline").state == "offline"
    with pytest.raises(IllegalTransition) as refused:
        programs.set_presence("bln", "busy")
    assert refused.value.legal == {"available": "available"}
    assert programs.set_presence("bln", "available").state == "available"
    with pytest.raises(InvalidInput):
        programs.set_presence("bln", "asleep")


def test_anything_with_an_id_can_be_tagged(programs: Programs) -> None:
    ledger = programs.ledger
    turn = ledger.record_turn(session="main", query="q", response="r")
    message, event = ledger.messages(turn.id)[0].id, ledger.events(turn.id)[0].id
    for node in ("claude-balanced", "main", turn.id, message, event):
        assert programs.add_tags(node, "trusted", "two words") == ["trusted", "two words"]
        assert programs.add_tags(node, "trusted") == programs.tags(node)
    found = programs.tagged("trusted", "two words")
    assert [one.kind for one in found] == ["program", "session", "turn", "message", "event"]
    assert [one.name for one in found[:2]] == ["claude-balanced", "main"]
    assert programs.remove_tags("@(claude-balanced)", "trusted", "unknown") == ["two words"]
    assert len(programs.tagged("trusted")) == 4
    assert programs.tags(turn.id[-8:]) == programs.tags("main~0")
    assert problems(ledger) == []
    for node in ("nothing", "", "0f" * 32):
        with pytest.raises((NotFound, InvalidInput)):
            programs.add_tags(node, "x")
    with pytest.raises(InvalidInput):
        programs.add_tags("main")


def test_the_history_of_a_session_begins_with_its_creation(programs: Programs) -> None:
    programs.create_session("talk", config={"defaultModel": "claude-balanced"})
    programs.ledger.record_turn(session="made by a turn", query="q", response="r")
    programs.step_session("made by a turn", "complete", reason="said all")
    first, *_, last = reversed(programs.history("talk"))
    assert (first.kind, first.state, first.version, first.config) == ("session_created", "created", 0, None)
    assert (last.kind, last.version) == ("session_configured", 1)
    kinds = [(one.kind, one.state, one.actor) for one in programs.history("made by a turn")]
    assert kinds == [("session_completed", "completed", "local"), ("session_created", "created", "local")]
    assert problems(programs.ledger) == []


def test_a_room_takes_tags_by_its_title_its_id_and_its_address(programs: Programs) -> None:
    rooms = programs.ledger.rooms
    room, main = rooms.create("Launch week"), rooms.create("main")
    programs.ledger.record_turn(session="main", query="q", response="r")
    assert programs.add_tags("Launch week", "urgent") == ["urgent"]
    assert programs.add_tags(f"@({room.id})", "autumn") == programs.tags(room.id[-8:]) == ["autumn", "urgent"]
    programs.add_tags("main", "urgent")
    programs.add_tags("room:main", "urgent")
    found = programs.tagged("urgent")
    assert [(one.kind, one.name, one.id) for one in found if one.kind == "room"] == [
        ("room", "Launch week", room.id),
        ("room", "main", main.id),
    ]
    assert [one.name for one in found if one.kind == "session"] == ["main"]
    rooms.retitle(room.id, "After launch")
    assert [one.name for one in programs.tagged("autumn")] == ["After launch"]
    assert programs.remove_tags("After launch", "autumn") == ["urgent"]
    assert problems(programs.ledger) == []


def test_the_tags_of_a_room_are_for_those_who_may_read_it(programs: Programs) -> None:
    programs.create("human", "ann", {})
    programs.create("human", "eve", {})
    room = programs.ledger.rooms.create("Secret plan", people=["ann"])
    programs.add_tags(room.id, "urgent")
    assert [one.name for one in programs.acting_as("ann").tagged("urgent")] == ["Secret plan"]
    eve = programs.acting_as("eve")
    assert eve.tagged("urgent") == []
    for name in (room.id, "Secret plan"):
        with pytest.raises(NotFound):
            eve.tags(name)


def test_an_erased_tag_is_gone(programs: Programs) -> None:
    programs.add_tags("claude-balanced", "secret-client")
    line = next(one.line for one in programs.ledger.changes() if b'"node_tagged"' in one.line)
    programs.ledger.erasure.erase(line.partition(b'"tags":["')[2][:64].decode(), reason="asked to")
    programs.ledger.erasure.finish()
    assert programs.tags("claude-balanced") == []
    assert problems(programs.ledger) == []


def test_variables_are_put_in_at_use_and_never_kept(world: Programs) -> None:
    config = world.get("cf-gateway").config
    there = {"CLOUDFLARE_ACCOUNT_ID": "acc", "CLOUDFLARE_GATEWAY_ID": "gate"}
    assert sorted(variables_in(config)) == sorted(there)
    assert resolve_config(config, there.get)["accountId"] == "acc"
    assert world.get("cf-gateway").config == config
    nested = {"a": ["x-${ONE}-${TWO}", 1, None], "b": {"c": "$ONE ${not-a-name}"}}
    assert resolve_config(nested, {"ONE": "1", "TWO": "2"}.get) == {
        "a": ["x-1-2", 1, None],
        "b": {"c": "$ONE ${not-a-name}"},
    }
    with pytest.raises(VariableMissing) as refused:
        resolve_config(nested, {"ONE": "the value"}.get)
    assert (refused.value.variable, refused.value.path) == ("TWO", "config.a[0]")
    assert "the value" not in str(refused.value)


@pytest.mark.parametrize("info_type", ["fact", "schema", "workflow", "pattern"])
def test_information_is_of_each_type(programs: Programs, info_type: str) -> None:
    programs.create("information", "new", {"infoType": info_type, "content": {"type": "object"}})
    assert "new" in [told.name for told in programs.query(info_type=info_type)]
