"""What is said in rooms is found by its words by those who may read it, and can be erased."""

from __future__ import annotations

import pytest

from tests.ledger.histories import problems
from tests.ledger.rooms import Cast, answer, cast
from weft.kernel.contents import ERASED
from weft.kernel.enums import InboxState
from weft.kernel.errors import InvalidInput, NotAllowed, NotFound
from weft.ledger import room_reading
from weft.ledger.api.ledger import Ledger
from weft.programs import Programs


@pytest.fixture
def people(ledger: Ledger) -> Cast:
    return cast(ledger)


def places(ledger: Ledger, words: str, room: str | None = None) -> list[tuple[str | None, int]]:
    return [(hit.room_title, hit.position) for hit in ledger.rooms.search(words, room=room)]


def test_words_are_found_by_those_who_may_read_them_and_each_message_once(people: Cast) -> None:
    alice, bob, carol = (people.ledger_of(name) for name in ("alice", "bob", "carol"))
    alice.rooms.create("plans", agents=["helper"])
    first = alice.rooms.post("plans", f"The harbour is deep, {people.mention('helper')}.")
    answer(people.ledger, "helper", "Deep indeed, the harbour.")
    alice.rooms.invite("plans", "bob")
    second = bob.rooms.post("plans", f"Which harbour, {people.mention('alice')}?")
    bob.rooms.leave("plans")
    third = alice.rooms.post("plans", f"The harbour of {people.mention('alice')}'s town.")
    everything = [third.position, second.position, first.position + 1, first.position]
    assert places(alice, "harbour") == [("plans", position) for position in everything]
    assert places(people.ledger, "harbour") == places(alice, "harbour")
    assert places(bob, "harbour") == [("plans", second.position)]
    assert places(carol, "harbour") == []
    (hit,) = bob.rooms.search("which harb", room="plans")
    assert (hit.message_id, hit.author_name, hit.snippet) == (second.message, "bob", "Which harbour, @alice?")
    assert [hit.snippet[low:high] for low, high in hit.marks] == ["Which", "harbour"]
    assert bob.rooms.messages("plans", after=hit.position - 1, limit=1)[0].id == hit.message_id
    assert places(alice, "user") == []
    assert places(alice, "joined") == []
    with pytest.raises(NotFound):
        carol.rooms.search("harbour", room="plans")
    with pytest.raises(InvalidInput):
        alice.rooms.search(" ")


def test_a_forks_earlier_messages_are_found_once(people: Cast) -> None:
    alice, bob = people.ledger_of("alice"), people.ledger_of("bob")
    alice.rooms.create("plans", people=["bob"])
    said = bob.rooms.post("plans", f"A harbour, {people.mention('alice')}.").position
    later = bob.rooms.post("plans", f"No harbour, {people.mention('alice')}.").position
    bob.rooms.fork("plans", said, title="one")
    alice.rooms.fork("plans", later, title="two")
    more = alice.rooms.post("two", f"Three harbours, {people.mention('alice')}.").position
    assert places(alice, "harbour*") == [("two", more), ("plans", later), ("plans", said)]
    assert places(bob, "harbour") == [("plans", later), ("plans", said)]
    assert places(alice, '"harbour"', "two") == [("two", later), ("two", said)]


def test_pages_go_on_where_the_one_before_stopped(people: Cast, monkeypatch: pytest.MonkeyPatch) -> None:
    alice = people.ledger_of("alice")
    for title in ("one", "two"):
        alice.rooms.create(title)
        for number in range(4):
            word = "harbour" if number % 2 else "quay"
            alice.rooms.post(title, f"{word} {number}, {people.mention('alice')}")
    whole = places(alice, "harbour")
    assert len(whole) == 4
    monkeypatch.setattr(room_reading, "MOST_MESSAGES", 3)
    pages, after = [alice.rooms.search("harbour", limit=1)], None
    alice.rooms.post("two", f"a later harbour, {people.mention('alice')}")
    while (after := pages[-1].next) is not None:
        pages.append(alice.rooms.search("harbour", limit=1, after=after))
    assert [(hit.room_title, hit.position) for page in pages for hit in page] == whole
    with pytest.raises(InvalidInput):
        alice.rooms.search("quay", limit=1, after=pages[0].next)


def test_an_erased_message_is_gone_from_the_room_its_forks_the_sessions_and_the_search(people: Cast) -> None:
    alice, ledger = people.ledger_of("alice"), people.ledger
    alice.rooms.create("plans", agents=["helper"], people=["bob"])
    posted = alice.rooms.post("plans", f"{people.mention('helper')} the password is swordfish")
    answer(ledger, "helper", "I keep swordfish to myself.")
    alice.rooms.post("plans", f"{people.mention('helper')} another thing")
    kept = alice.rooms.post("plans", f"{people.mention('bob')} nothing secret")
    alice.rooms.fork("plans", kept.position, title="fork")
    answers = [one for one in alice.rooms.messages("plans") if one.author_name == "helper"]
    assert ledger.search("swordfish")
    plan = ledger.erasure.plan([posted.message, answers[0].id])
    assert plan.rooms == (alice.rooms.get("plans").id,)
    ledger.erasure.erase(plan, reason="a password")
    for room in ("plans", "fork"):
        told = {one.id: one for one in alice.rooms.messages(room)}
        for id in (posted.message, answers[0].id):
            assert (told[id].text, told[id].is_erased) == (ERASED, True)
        assert not told[kept.message].is_erased
    assert places(alice, "swordfish") == places(ledger, "swordfish") == []
    assert ledger.search("swordfish") == []
    answer(ledger, "helper", "Another answer.")
    (reached,) = alice.rooms.post("fork", f"{people.mention('helper')} go on").reached
    answer(ledger, "helper", "Going on.", session=reached.session)
    assert "swordfish" not in "".join(map(str, ledger.inbox.list(states=[state.value for state in InboxState])))
    assert problems(ledger) == []


def test_only_whoever_may_erase_everything_erases_what_was_said_in_a_room(people: Cast) -> None:
    alice, ledger = people.ledger_of("alice"), people.ledger
    Programs(ledger).create("human", "dora", {"permissions": ["ledger:read", "content:erase(mine-*)"]})
    alice.rooms.create("plans", people=["bob"])
    posted = alice.rooms.post("plans", f"{people.mention('bob')} a secret")
    for name in ("alice", "bob"):
        with pytest.raises(NotFound):
            people.ledger_of(name).erasure.erase(posted.message, reason="mine")
    with pytest.raises(NotAllowed):
        people.ledger_of("dora").erasure.erase(posted.message, reason="not hers")
    assert not alice.rooms.messages("plans")[-1].is_erased
    ledger.erasure.erase(posted.message, reason="asked for")
    assert alice.rooms.messages("plans")[-1].is_erased
