"""Rooms in other ledgers: copies keep them whole, and one that was pulled is read by the owner and says nothing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import weft
from tests.ledger.histories import problems
from tests.ledger.rooms import Cast, answer, cast
from weft.exchange.sync import clone, pull, push
from weft.kernel.errors import NotApplicable, NotFound
from weft.ledger.api import Ledger
from weft.programs import Programs
from weft.surfaces.opening import copy


@pytest.fixture
def people(tmp_path: Path) -> Iterator[Cast]:
    with weft.open(tmp_path / "here.db") as ledger:
        people = cast(ledger)
        alice = people.ledger_of("alice")
        alice.rooms.create("plans", agents=["helper"], people=["bob"])
        alice.rooms.post("plans", f"{people.mention('helper')} is the harbour deep?")
        answer(ledger, "helper", f"Deep, {people.mention('bob')}.")
        alice.rooms.post("plans", "somebody?")
        alice.rooms.fork("plans", title="fork")
        yield people


def told(ledger: Ledger, room: str) -> list[tuple[int, str | None, str]]:
    return [(one.position, one.author_name, one.text) for one in ledger.rooms.messages(room, limit=1000)]


def test_a_pulled_room_is_read_by_the_owner_alone_and_takes_and_answers_nothing(people: Cast, tmp_path: Path) -> None:
    with weft.open(tmp_path / "there.db") as there:
        pull(there, str(people.ledger.path), weft.open)
        assert [(room.title, room.is_foreign) for room in there.rooms.list()] == [("fork", True), ("plans", True)]
        for title in ("plans", "fork"):
            assert told(there, title) == told(people.ledger, title)
        assert [hit.room_title for hit in there.rooms.search("harbour")] == ["plans"]
        assert there.rooms.participants("plans") == []
        for name in ("alice", "bob"):
            theirs = there.acting_as(people.ids[name])
            assert theirs.rooms.list() == []
            assert theirs.rooms.search("harbour") == []
            with pytest.raises(NotFound):
                theirs.rooms.messages("plans")
        with pytest.raises(NotApplicable):
            there.rooms.post("plans", "hello")
        with pytest.raises(NotApplicable):
            there.rooms.retitle("plans", "mine")
        events = there.upkeep.stats()["events"]
        assert problems(there) == []
        there.upkeep.rebuild()
        assert there.upkeep.stats()["events"] == events
        assert told(there, "fork") == told(people.ledger, "fork")


def test_a_peer_cannot_speak_in_a_room_of_this_ledger(people: Cast, tmp_path: Path) -> None:
    alice, before = people.ledger_of("alice"), told(people.ledger_of("alice"), "plans")
    copy(people.ledger, str(tmp_path / "there.db"))
    with weft.open(tmp_path / "there.db") as there:
        there.acting_as("alice").rooms.post("plans", f"{people.mention('helper')} not alice")
        Programs(there).create("human", "eve", {})
        there.acting_as("alice").rooms.invite("plans", "eve")
    pull(people.ledger, str(tmp_path / "there.db"), weft.open)
    assert told(alice, "plans") == before
    assert {one.name for one in alice.rooms.participants("plans")} == {"alice", "bob", "triage", "helper"}
    assert [one for one in alice.rooms.pending("plans") if one.name == "helper"] == []
    posted = alice.rooms.post("plans", f"{people.mention('helper')} alice").position
    assert told(alice, "plans")[-1] == (posted, "alice", f"{people.mention('helper')} alice")
    assert problems(people.ledger) == []


def test_copies_facts_and_clones_keep_rooms(people: Cast, tmp_path: Path) -> None:
    copy(people.ledger, str(tmp_path / "copy.db"))
    people.ledger.upkeep.export_facts(tmp_path / "facts.jsonl")
    with weft.open(tmp_path / "clone.db") as cloned, weft.open(tmp_path / "facts.db") as restored:
        clone(cloned, str(people.ledger.path), weft.open)
        restored.upkeep.import_facts(tmp_path / "facts.jsonl")
    for name in ("copy.db", "clone.db", "facts.db"):
        with weft.open(tmp_path / name) as other:
            for title in ("plans", "fork"):
                assert told(other, title) == told(people.ledger, title), name
            assert problems(other) == []


def test_a_push_of_an_agents_session_sends_what_it_was_sent_and_not_the_room(people: Cast, tmp_path: Path) -> None:
    alice = people.ledger_of("alice")
    alice.rooms.post("plans", f"{people.mention('bob')} a secret of people")
    session = next(one.session for one in alice.rooms.participants("plans") if one.name == "helper")
    assert session is not None
    with weft.open(tmp_path / "there.db") as there:
        there.record_turn(session="own", query="q", response="r")
    push(people.ledger, str(tmp_path / "there.db"), weft.open, sessions=[session])
    with weft.open(tmp_path / "there.db") as there:
        assert there.rooms.list(status=None) == []
        assert there.search("harbour")
        assert there.search("secret") == []
        assert problems(there) == []
