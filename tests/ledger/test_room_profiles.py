"""What agents and people tell of themselves, who may read and change it, and what stays of a deleted agent in rooms."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import weft
from tests.ledger.histories import problems
from tests.ledger.rooms import Cast, answer, cast
from weft.exchange.sync import pull
from weft.kernel.errors import InvalidConfig, NotAllowed, NotApplicable, NotFound
from weft.ledger.api.ledger import Ledger
from weft.programs import Programs


@pytest.fixture
def people(ledger: Ledger) -> Cast:
    return cast(ledger)


def test_a_profile_has_every_field_and_is_read_by_those_the_agent_works_for(people: Cast) -> None:
    alice, bob = people.ledger_of("alice"), people.ledger_of("bob")
    own = Programs(alice)
    own.change("helper", {"personality": "calm", "emoji": "🦉", "avatar": "https://host/owl.png"})
    Programs(people.ledger).change("helper", {"toolset": "worker"})
    profile = bob.rooms.agent("helper")
    assert (profile.id, profile.name, profile.kind, profile.system_agent_kind) == (
        people.ids["helper"],
        "helper",
        "user_agent",
        None,
    )
    assert (profile.description, profile.personality) == ("answers questions", "calm")
    assert (profile.created_by, profile.created_by_name) == (people.ids["alice"], "alice")
    assert (profile.avatar_url, profile.emoji, profile.toolset) == ("https://host/owl.png", "🦉", "worker")
    assert (profile.public, profile.private, profile.last_active_time) == (True, False, None)
    with pytest.raises(NotFound):
        bob.rooms.agent("secret")
    assert alice.rooms.agent("secret").private
    own.share_agent("secret", "bob")
    assert bob.rooms.agent("secret").emoji == "🤖"
    with pytest.raises(NotFound):
        people.ledger_of("carol").rooms.agent(people.ids["secret"])


def test_an_avatar_that_is_no_picture_is_not_given(people: Cast) -> None:
    own = Programs(people.ledger_of("alice"))
    own.change("helper", {"avatar": "javascript:alert(1)", "emoji": "x" * 40})
    profile = people.ledger.rooms.agent("helper")
    assert (profile.avatar_url, profile.emoji) == (None, "🤖")


def test_an_agent_was_last_active_when_it_last_answered(people: Cast) -> None:
    alice = people.ledger_of("alice")
    alice.rooms.create("plans", agents=["helper"])
    alice.rooms.post("plans", f"{people.mention('helper')} hello")
    answer(people.ledger, "helper", "hi")
    last = alice.rooms.messages("plans")[-1]
    assert alice.rooms.agent("helper").last_active_time == last.posted_at
    assert alice.rooms.person("alice").last_active_time is not None
    assert alice.rooms.person("bob").last_active_time is None
    assert alice.rooms.person("local").name == "local"


def test_a_person_has_an_address_of_mail_and_a_picture(people: Cast) -> None:
    programs = Programs(people.ledger)
    programs.change("bob", {"email": "bob@example.org", "image": "https://host/bob.png"})
    profile = people.ledger_of("alice").rooms.person("bob")
    assert (profile.name, profile.email, profile.image) == ("bob", "bob@example.org", "https://host/bob.png")
    assert profile.emoji == "👤"
    for address in ("bob", "@host", "a b@host", "a@b@c"):
        with pytest.raises(InvalidConfig):
            programs.change("bob", {"email": address})


def test_only_the_creator_edits_deletes_and_changes_the_visibility_of_an_agent(people: Cast) -> None:
    bobs, alices = Programs(people.ledger_of("bob")), Programs(people.ledger_of("alice"))
    deeds: list[Callable[[], object]] = [
        lambda: bobs.change("helper", {"description": "bob's"}),
        lambda: bobs.change("helper", {"visibility": "private"}),
        lambda: bobs.delete("helper"),
        lambda: bobs.share_agent("helper", "bob"),
    ]
    for deed in deeds:
        with pytest.raises(NotAllowed):
            deed()
    alices.change("helper", {"visibility": "private", "description": "mine"})
    with pytest.raises(NotFound):
        people.ledger_of("bob").rooms.agent("helper")
    alices.delete("helper")
    assert people.ledger_of("alice").rooms.agent(people.ids["helper"]).is_deleted


def test_a_deleted_agent_stays_named_in_its_rooms_and_gets_nothing_more(people: Cast) -> None:
    alice = people.ledger_of("alice")
    alice.rooms.create("plans", agents=["helper"])
    alice.rooms.post("plans", f"{people.mention('helper')} hello")
    answer(people.ledger, "helper", "hi")
    alice.rooms.post("plans", f"{people.mention('helper')} and now?")
    Programs(alice).delete("helper")
    (shown,) = [one for one in alice.rooms.participants("plans") if one.name == "helper"]
    assert (shown.is_deleted, shown.status) == (True, "inactive")
    assert alice.rooms.pending("plans") == []
    assert alice.rooms.post("plans", f"{people.mention('helper')} still there?").reached == ()
    spoken = [one for one in alice.rooms.messages("plans") if one.text == "hi"]
    assert spoken[0].author_name == "helper"
    assert alice.rooms.messages("plans", after=spoken[0].position)[0].mentions[0].name == "helper"
    assert problems(people.ledger) == []


def test_the_triage_agent_cannot_be_deleted_hidden_or_shared_by_anybody(people: Cast) -> None:
    people.ledger_of("alice").rooms.create("plans")
    profile = people.ledger_of("bob").rooms.agent("triage")
    assert (profile.kind, profile.system_agent_kind, profile.public, profile.emoji) == (
        "system_agent",
        "triage",
        True,
        "🧭",
    )
    owner = Programs(people.ledger)
    deeds: list[Callable[[], object]] = [
        lambda: owner.delete("triage"),
        lambda: owner.configure("triage", {"visibility": "private"}),
        lambda: owner.share_agent("triage", "bob"),
    ]
    for deed in deeds:
        with pytest.raises(NotApplicable):
            deed()
    for name in ("alice", "bob"):
        with pytest.raises(NotAllowed):
            Programs(people.ledger_of(name)).change("triage", {"description": "mine"})
    with pytest.raises(InvalidConfig):
        Programs(people.ledger_of("bob")).create("agent", "mine", {"systemAgentKind": "triage"})


def test_a_system_agent_of_another_ledger_is_none_here(people: Cast, tmp_path: Path) -> None:
    with weft.open(tmp_path / "other.db") as other:
        other.rooms.create("theirs")
        forged = other.rooms.agent("triage").id
    pull(people.ledger, str(tmp_path / "other.db"), weft.open)
    assert people.ledger.rooms.agent(forged).kind == "user_agent"
    alice = people.ledger_of("alice")
    room = alice.rooms.create("plans")
    (triage,) = [one for one in alice.rooms.participants(room.id) if one.system_kind == "triage"]
    assert triage.agent_id != forged
    alice.rooms.add(room.id, forged)
    (reached,) = alice.rooms.post(room.id, "who knows?").reached
    assert reached.agent == triage.agent_id
    alice.rooms.remove(room.id, forged)
    assert problems(people.ledger) == []


def test_a_system_agent_is_taken_out_of_a_room_by_nobody(people: Cast) -> None:
    alice = people.ledger_of("alice")
    alice.rooms.create("plans")
    with pytest.raises(NotApplicable, match="'triage' is a system agent") as refused:
        alice.rooms.remove("plans", "triage")
    assert refused.value.hint == "it stays in every room"
    assert "triage" in [each.name for each in alice.rooms.participants("plans")]
