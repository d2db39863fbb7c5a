"""Conversations: who may do what in them, whom messages reach, what is read back."""

from __future__ import annotations

import re
from hashlib import sha256
from pathlib import Path

import pytest

import weft
from tests.ledger.histories import problems
from tests.ledger.rooms import Cast, answer, begin, cast
from weft.kernel.authority import LOCAL, rights
from weft.kernel.errors import NotAllowed, NotApplicable, NotFound
from weft.ledger.api import InboxMessage, Runs
from weft.ledger.api.base import store_of
from weft.ledger.api.ledger import Ledger
from weft.ledger.model import TextPart
from weft.ledger.room_records import RoomLimits
from weft.programs import Programs


@pytest.fixture
def people(ledger: Ledger) -> Cast:
    return cast(ledger)


def texts(ledger: Ledger, room: str) -> list[str]:
    return [message.text for message in ledger.rooms.messages(room, limit=1000)]


def sent_texts(message: InboxMessage) -> list[str]:
    return [str(part.text) for part in message.content if isinstance(part, TextPart)]


def names(ledger: Ledger, room: str) -> list[str]:
    return [one.name for one in ledger.rooms.participants(room)]


def test_a_public_agent_answers_whoever_mentions_it(people: Cast) -> None:
    bob = people.ledger_of("bob")
    room = bob.rooms.create("plans")
    posted = bob.rooms.post("plans", f"Hello {people.mention('helper')}, what now?")
    assert [one.name for one in posted.reached] == ["helper"]
    assert posted.joined == ("helper",)
    assert {one.name: one.status for one in bob.rooms.participants("plans")} == {
        "bob": "inactive",
        "triage": "inactive",
        "helper": "thinking",
    }
    turn = answer(people.ledger, "helper", "Nothing.")
    last = bob.rooms.messages("plans")[-1]
    assert (last.text, last.author_name, last.kind) == ("Nothing.", "helper", "participant")
    assert last.meta == {"turn": turn, "answers": posted.message, "root": posted.message, "hops": 1}
    assert bob.rooms.participants("plans")[-1].status == "inactive"
    assert bob.rooms.get(room.id).last_message_time is not None
    assert problems(people.ledger) == []


def test_what_an_agent_is_sent_says_who_said_what_and_copies_nothing(people: Cast) -> None:
    alice = people.ledger_of("alice")
    alice.rooms.create("plans", agents=["helper"], people=["bob"])
    words = "A sentence that is stored once."
    said = f"{people.mention('bob')} {words}"
    alice.rooms.post("plans", said)
    people.ledger_of("bob").rooms.post("plans", f"{people.mention('helper')} agreed?")
    (waiting,) = people.ledger.inbox.list()
    sent = sent_texts(waiting)
    assert sent[0].startswith(f"You are {people.mention('helper')} in the conversation “plans”.")
    marks = re.findall(r" \[([0-9a-f]{10})\] ", " ".join(sent[-4::2]))
    assert len(set(marks)) == 2
    assert sent[-4:] == [
        f"{sent[-4].partition(' ')[0]} [{marks[0]}] {people.mention('alice')}:",
        f"{people.mention('bob')} {words}",
        f"[/{marks[0]}] [{marks[1]}] {people.mention('bob')}:",
        f"{people.mention('helper')} agreed?",
    ]
    answer(people.ledger, "helper", "Yes.")
    query = people.ledger.messages(waiting.session)[0]
    assert [part.text for part in query.content if isinstance(part, TextPart)] == sent
    with store_of(people.ledger).read() as txn:
        (count,) = txn.sql.fetch_row(
            "SELECT count(*) FROM content WHERE digest = ?", (sha256(said.encode()).digest(),)
        ) or (0,)
    assert count == 1


def test_a_private_agent_answers_only_those_it_works_for(people: Cast) -> None:
    alice, bob = people.ledger_of("alice"), people.ledger_of("bob")
    alice.rooms.create("plans", agents=["secret"], people=["bob"])
    posted = bob.rooms.post("plans", f"{people.mention('secret')}?")
    assert posted.reached == ()
    assert "is private: it answers only those it was shared with" in posted.notices[0]
    assert alice.rooms.post("plans", f"{people.mention('secret')}?").reached[0].name == "secret"
    Programs(alice).share_agent("secret", "bob")
    assert bob.rooms.post("plans", f"{people.mention('secret')}?").reached[0].name == "secret"
    with pytest.raises(NotFound):
        people.ledger_of("carol").rooms.create("mine", agents=["secret"])
    carol = people.ledger_of("carol")
    carol.rooms.create("mine")
    absent = carol.rooms.post("mine", f"{people.mention('secret')} and @[x](agent:01ARZ3NDEKTSV4RRFFQ69G5FAV)")
    assert absent.notices == ("The message mentions an agent that is not here and cannot be brought in.",)


def test_what_mentions_nobody_goes_to_triage_and_what_mentions_people_alone_does_not(people: Cast) -> None:
    alice = people.ledger_of("alice")
    alice.rooms.create("plans", agents=["helper"], people=["bob"])
    assert [one.name for one in alice.rooms.post("plans", "Anybody?").reached] == ["triage"]
    assert alice.rooms.post("plans", f"{people.mention('bob')}?").reached == ()
    answer(people.ledger, "triage", f"{people.mention('helper')} {people.mention('reviewer')}")
    assert names(alice, "plans") == ["alice", "triage", "bob", "helper", "reviewer"]
    waiting = {one.session.rpartition(":")[2]: one for one in people.ledger.inbox.list()}
    assert waiting.keys() == {"helper", "reviewer"}
    assert waiting["helper"].sender == people.ids["alice"]
    assert sent_texts(waiting["reviewer"])[-1] == "Anybody?"
    with pytest.raises(NotApplicable, match="system agent"):
        alice.rooms.remove("plans", "triage")


def test_agents_that_mention_each_other_stop_after_some_hops(people: Cast) -> None:
    alice = people.ledger_of("alice")
    alice.rooms.create("plans", agents=["helper", "reviewer"])
    alice.rooms.post("plans", f"{people.mention('helper')} begin")
    for hop in range(10):
        agent, other = ("helper", "reviewer") if hop % 2 == 0 else ("reviewer", "helper")
        if not people.ledger.inbox.list():
            break
        answer(people.ledger, agent, f"{people.mention(other)} your turn")
    assert people.ledger.inbox.list() == []
    assert texts(alice, "plans")[-1].startswith("Agents have answered each other 6 times")


def test_an_agents_mention_reaches_nobody_who_is_absent(people: Cast) -> None:
    alice = people.ledger_of("alice")
    alice.rooms.create("plans", agents=["helper"])
    alice.rooms.post("plans", f"{people.mention('helper')} begin")
    answer(people.ledger, "helper", f"{people.mention('reviewer')} {people.mention('bob')} help")
    assert names(alice, "plans") == ["alice", "triage", "helper"]
    assert (people.ledger.inbox.list(), alice.rooms.invitations()) == ([], [])


def test_a_failed_turn_is_told_in_the_room(people: Cast) -> None:
    alice = people.ledger_of("alice")
    alice.rooms.create("plans", agents=["helper"])
    alice.rooms.post("plans", f"{people.mention('helper')} begin")
    answer(people.ledger, "helper", None, error="the model is away")
    last = alice.rooms.messages("plans")[-1]
    assert (last.kind, last.notice) == ("system", "error")
    assert last.text == f"{people.mention('helper')} could not answer: the model is away"


def test_nobody_reads_what_was_said_before_they_joined_or_after_they_left(people: Cast) -> None:
    alice, bob = people.ledger_of("alice"), people.ledger_of("bob")
    alice.rooms.create("plans")
    alice.rooms.post("plans", f"{people.mention('alice')} before")
    with pytest.raises(NotFound):
        bob.rooms.get("plans")
    alice.rooms.invite("plans", "bob")
    alice.rooms.post("plans", f"{people.mention('bob')} during")
    bob.rooms.leave("plans")
    alice.rooms.post("plans", f"{people.mention('alice')} after")
    assert texts(bob, "plans") == [f"{people.mention('bob')} joined.", f"{people.mention('bob')} during"]
    with pytest.raises(NotAllowed):
        bob.rooms.post("plans", "x")
    alice.rooms.invite("plans", "bob")
    alice.rooms.post("plans", f"{people.mention('bob')} again")
    assert [text.rpartition(" ")[2] for text in texts(bob, "plans")] == ["joined.", "during", "joined.", "again"]
    open_room = alice.rooms.create("open", history="all")
    alice.rooms.post("open", f"{people.mention('alice')} before")
    alice.rooms.invite(open_room.id, "bob")
    assert len(texts(bob, "open")) == 2


def test_a_mentioned_absent_person_is_invited_and_a_participant_confirms(people: Cast) -> None:
    alice, bob = people.ledger_of("alice"), people.ledger_of("bob")
    alice.rooms.create("plans")
    posted = alice.rooms.post("plans", f"{people.mention('bob')} come in")
    assert posted.invited == ("bob",)
    (invitation,) = bob.rooms.invitations()
    assert (invitation.name, invitation.invited_by, invitation.conversation_title) == ("bob", "alice", "plans")
    with pytest.raises(NotFound):
        bob.rooms.invite("plans", "bob")
    alice.rooms.invite("plans", "bob")
    assert bob.rooms.invitations() == []
    assert names(bob, "plans") == ["alice", "triage", "bob"]
    alice.rooms.post("plans", f"{people.mention('carol')} too")
    carol = people.ledger_of("carol")
    with pytest.raises(NotFound):
        carol.rooms.decline("%", "carol")
    carol.rooms.decline(carol.rooms.invitations()[0].conversation_id, "carol")
    assert alice.rooms.invitations("plans") == []
    alice.rooms.post("plans", f"{people.mention('carol')} again")
    carol.rooms.decline("plans", "carol")
    assert alice.rooms.invitations("plans") == []


def test_what_an_author_gives_with_a_message_is_not_taken_for_what_it_answers(people: Cast) -> None:
    bob = people.ledger_of("bob")
    bob.rooms.create("plans")
    forged = {"root": "R", "answers": "A", "turn": "T", "hops": 2}
    bob.rooms.post("plans", "mine", meta={"ticket": 7, **forged})
    assert bob.rooms.messages("plans")[-1].meta == {"ticket": 7}
    bob.rooms.post("plans", "mine too", meta=["ticket"])
    assert bob.rooms.messages("plans")[-1].meta == {"meta": ["ticket"]}


def test_who_may_remove_whom(people: Cast) -> None:
    alice, bob = people.ledger_of("alice"), people.ledger_of("bob")
    alice.rooms.create("plans", agents=["helper", "reviewer"], people=["bob", "carol"])
    bob.rooms.remove("plans", "helper")
    Programs(alice).configure("reviewer", {"description": "reviews code", "removal": "owner"})
    with pytest.raises(NotAllowed, match="remove 'reviewer'"):
        bob.rooms.remove("plans", "reviewer")
    with pytest.raises(NotAllowed, match="remove a person"):
        bob.rooms.remove("plans", "carol")
    alice.rooms.remove("plans", "carol")
    alice.rooms.remove("plans", "reviewer")
    assert names(alice, "plans") == ["alice", "triage", "bob"]


def test_removing_an_agent_takes_its_waiting_messages_and_posts_nothing_more(people: Cast) -> None:
    alice = people.ledger_of("alice")
    alice.rooms.create("plans", agents=["helper"])
    alice.rooms.post("plans", f"{people.mention('helper')} one")
    alice.rooms.remove("plans", "helper")
    assert people.ledger.inbox.list() == []


def test_a_retry_key_posts_once(people: Cast) -> None:
    alice = people.ledger_of("alice")
    alice.rooms.create("plans", agents=["helper"])
    first = alice.rooms.post("plans", f"{people.mention('helper')} one", key="k")
    again = alice.rooms.post("plans", f"{people.mention('helper')} one", key="k")
    assert (first.message, first.position, first.reached) == (again.message, again.position, again.reached)
    assert len(people.ledger.inbox.list()) == 1


def test_a_message_that_mentions_a_thousand_reaches_as_many_as_allowed(people: Cast) -> None:
    alice = people.ledger_of("alice")
    own = Programs(alice)
    agents = [own.create("agent", f"agent-{n}", {}).id for n in range(8)]
    alice.rooms.create("plans")
    text = " ".join(f"@[a](agent:{id})" for id in agents * 100)
    posted = alice.rooms.post("plans", text, limits=RoomLimits(mentions=5))
    assert len(posted.reached) == 5
    assert posted.notices[0] == "The message mentions 8: only the first 5 of them are reached."
    one = alice.rooms.post("plans", text, limits=RoomLimits(deliveries=3))
    assert len(one.reached) == 3
    assert one.notices[-1].startswith("One message has reached agents 3 times")


def test_a_fork_goes_on_from_a_message_with_the_agents_sessions(people: Cast) -> None:
    alice = people.ledger_of("alice")
    alice.rooms.create("plans", agents=["helper"], people=["bob"])
    alice.rooms.post("plans", f"{people.mention('helper')} one")
    first = answer(people.ledger, "helper", "first answer")
    at = alice.rooms.get("plans").position
    alice.rooms.post("plans", f"{people.mention('helper')} two")
    answer(people.ledger, "helper", "second answer")
    fork = alice.rooms.fork("plans", at, title="other plans")
    assert texts(alice, fork.id) == [*texts(alice, "plans")[:at], f"{people.mention('alice')} forked the room here."]
    assert names(alice, fork.id) == ["alice", "triage", "helper"]
    helper = next(one for one in alice.rooms.participants(fork.id) if one.name == "helper")
    assert people.ledger.session(helper.session or "").head == first
    posted = alice.rooms.post(fork.id, f"{people.mention('helper')} three")
    assert posted.position == at + 2
    (waiting,) = people.ledger.inbox.list()
    sent = sent_texts(waiting)
    assert sent[-1] == f"{people.mention('helper')} three"
    assert "second answer" not in " ".join(sent)
    assert problems(people.ledger) == []


def test_whoever_opened_the_ledger_lists_all_rooms_with_reading_rights_alone(people: Cast) -> None:
    people.ledger_of("alice").rooms.create("plans", people=["bob"])
    people.ledger_of("alice").rooms.post("plans", "at nine")
    reading = people.ledger.acting_as(LOCAL.child(rights(["*:read"])))
    assert [one.title for one in reading.rooms.list()] == [one.title for one in people.ledger.rooms.list()] == ["plans"]
    assert [hit.snippet for hit in reading.rooms.search("nine")] == ["at nine"]
    assert people.ledger.acting_as(LOCAL.child(rights(["session:read"]))).rooms.list() == []


def test_titles_and_archiving_and_read_marks(people: Cast) -> None:
    alice, bob = people.ledger_of("alice"), people.ledger_of("bob")
    alice.rooms.create("plans", people=["bob"])
    alice.rooms.post("plans", f"{people.mention('bob')} look")
    room = bob.rooms.get("plans")
    assert (room.unread, room.unread_mentions) == (1, 1)
    bob.rooms.mark_read("plans")
    assert (bob.rooms.get("plans").unread, alice.rooms.get("plans").unread) == (0, 0)
    bob.rooms.retitle("plans", "new plans")
    assert [one.title for one in alice.rooms.list()] == ["new plans"]
    with pytest.raises(NotAllowed):
        bob.rooms.archive("new plans")
    alice.rooms.archive("new plans")
    assert (alice.rooms.list(), len(alice.rooms.list(status="archived"))) == ([], 1)
    with pytest.raises(NotApplicable, match="archived"):
        bob.rooms.post("new plans", "x")
    alice.rooms.restore("new plans")
    assert bob.rooms.post("new plans", "x").position > 0


def test_the_session_of_an_agent_shows_nobody_more_of_the_room_than_the_room_does(people: Cast) -> None:
    alice, bob = people.ledger_of("alice"), people.ledger_of("bob")
    bob.rooms.create("plans", agents=["helper"], people=["alice"])
    posted = bob.rooms.post("plans", f"{people.mention('helper')} one")
    answer(people.ledger, "helper", "yes")
    label = posted.reached[0].session
    bob.rooms.leave("plans")
    alice.rooms.post("plans", f"{people.mention('helper')} two")
    answer(people.ledger, "helper", "after")
    fork = alice.rooms.fork("plans")
    forked = next(one.session for one in alice.rooms.participants(fork.id) if one.name == "helper")
    for person in (alice, bob):
        for session in (label, forked or ""):
            with pytest.raises(NotFound):
                person.session(session)
    assert people.ledger.session(label).head is not None


def test_a_mention_is_shown_by_the_name_that_its_id_has_now(people: Cast) -> None:
    alice = people.ledger_of("alice")
    alice.rooms.create("plans", agents=["helper"])
    alice.rooms.post("plans", f"@[its former name](agent:{people.ids['helper']}) hello")
    (mention,) = alice.rooms.messages("plans")[-1].mentions
    assert mention.name == "helper"


def test_whoever_let_an_agent_in_reads_nothing_in_its_session_when_they_have_left(people: Cast) -> None:
    alice, bob = people.ledger_of("alice"), people.ledger_of("bob")
    alice.rooms.create("plans", people=["bob"])
    bob.rooms.add("plans", "helper")
    bob.rooms.leave("plans")
    alice.rooms.post("plans", f"{people.mention('helper')} a secret")
    answer(people.ledger, "helper", "kept secret")
    alice.rooms.fork("plans", title="fork")
    sessions = [one.session for room in ("plans", "fork") for one in alice.rooms.participants(room) if one.session]
    assert [label for label in sessions if not label.startswith("room:")] == []
    for person in (alice, bob):
        assert person.sessions() == []
        assert person.search("secret") == []
        for label in sessions:
            with pytest.raises(NotFound):
                person.messages(label)
    assert [hit.text for hit in people.ledger_of("helper").messages(sessions[-1]) if hit.role == "assistant"]


def test_a_turn_in_a_room_is_listed_by_the_message_that_it_answers(people: Cast) -> None:
    alice = people.ledger_of("alice")
    alice.rooms.create("plans", agents=["helper"])
    alice.rooms.post("plans", f"{people.mention('helper')} is the harbour deep?")
    turn = answer(people.ledger, "helper", "Deep.")
    assert people.ledger.listing().subjects([turn]) == {turn: "@helper is the harbour deep?"}


def test_an_agent_mentions_the_participants_that_it_names(people: Cast) -> None:
    alice = people.ledger_of("alice")
    alice.rooms.create("plans", agents=["helper"], people=["bob"])
    Programs(people.ledger).create("agent", "two words", {})
    alice.rooms.add("plans", "two words")
    alice.rooms.post("plans", people.mention("helper"))
    said = '@"two words", @BOB: see `@alice`. me@reviewer @reviewer @triage @nobody @helper'
    answer(people.ledger, "helper", said)
    last = alice.rooms.messages("plans")[-1]
    assert (last.text, [one.name for one in last.mentions]) == (said, ["two words", "bob", "triage", "helper"])
    assert [one.session.rpartition(":")[2] for one in people.ledger.inbox.list()] == ["two words"]
    assert people.ledger_of("bob").rooms.get("plans").unread_mentions == 1
    answer(people.ledger, "two words", "Done.")
    posted = people.ledger.acting_as("two words").rooms.post("plans", "@helper go on. @reviewer too.")
    assert [one.name for one in posted.reached] == ["helper"]


def test_whoever_left_sees_the_room_as_it_was_then(people: Cast) -> None:
    alice, bob = people.ledger_of("alice"), people.ledger_of("bob")
    room = alice.rooms.create("plans", agents=["helper"], people=["bob", "carol"])
    bob.rooms.post("plans", people.mention("carol"))
    bob.rooms.leave("plans")
    before = bob.rooms.get("plans")
    assert (before.is_left, before.position, before.participants) == (True, 4, 4)
    assert people.ledger_of("carol").rooms.get("plans").is_left is False
    alice.rooms.retitle("plans", "their secret")
    alice.rooms.retitle("their secret", "their other secret")
    alice.rooms.post(room.id, people.mention("helper"))
    alice.rooms.remove(room.id, "carol")
    assert bob.rooms.get("plans") == before
    assert bob.rooms.list() == [before]
    assert [one.status for one in bob.rooms.participants("plans")] == ["inactive"] * 4
    assert [hit.room_title for hit in bob.rooms.search("carol")] == ["plans"]
    assert bob.rooms.mark_read("plans") == 4
    assert bob.rooms.fork("plans").title == "plans"
    for name in ("their secret", "their other secret"):
        with pytest.raises(NotFound):
            bob.rooms.get(name)
    assert alice.rooms.get("their other secret").position == 9
    carol = people.ledger_of("carol")
    assert carol.rooms.get(room.id).title == "their other secret"
    alice.rooms.retitle(room.id, "a third")
    assert carol.rooms.get("their other secret").title == "their other secret"
    notices = [message.text for message in alice.rooms.messages(room.id) if message.notice == "retitled"]
    assert notices[0] == f"{people.mention('alice')} changed the title to “their secret”."
    assert problems(people.ledger) == []


def test_an_agent_whose_process_is_gone_is_abandoned_until_a_broker_goes_on(people: Cast) -> None:
    alice = people.ledger_of("alice")
    alice.rooms.create("plans", agents=["helper"])
    posted = alice.rooms.post("plans", people.mention("helper"))

    def helper() -> tuple[str, bool]:
        one = alice.rooms.participants("plans")[2]
        return one.status, one.is_abandoned

    assert helper() == ("thinking", False)
    writer = begin(people.ledger, posted.reached[0])
    assert helper() == ("thinking", False)
    writer.leave()
    assert helper() == ("thinking", True)
    Runs(people.ledger).adopt(writer.id)
    assert helper() == ("thinking", False)


def test_only_those_concerned_interrupt_an_answer(people: Cast) -> None:
    alice, bob, carol = (people.ledger_of(name) for name in ("alice", "bob", "carol"))
    bob.rooms.create("plans", agents=["helper"], people=["alice", "carol"])
    modes = []
    for writer in (bob, carol, bob, alice):
        posted = writer.rooms.post("plans", people.mention("helper"), mode="interrupt")
        modes.append((people.ledger.inbox.get(posted.reached[0].message).mode, posted.notices))
    waits = f"{people.mention('helper')} has somebody else to answer: the message waits until that is done."
    assert modes == [("interrupt", ()), ("followup", (waits,)), ("followup", (waits,)), ("interrupt", ())]


def test_a_dead_message_that_is_sent_again_stays_its_authors(people: Cast) -> None:
    alice, bob = people.ledger_of("alice"), people.ledger_of("bob")
    Programs(alice).share_agent("secret", "bob")
    alice.rooms.create("plans", agents=["secret"], people=["bob"])
    (reached,) = bob.rooms.post("plans", f"{people.mention('secret')}?").reached
    answer(people.ledger, "secret", None, error="the model is away")
    again = people.ledger.inbox.send_again(reached.message)
    assert people.ledger.inbox.get(again.message).sender == people.ids["bob"]
    answer(people.ledger, "secret", None, error="the model is away")
    Programs(alice).unshare_agent("secret", "bob")
    once_more = people.ledger.inbox.send_again(again.message)
    with pytest.raises(NotFound):
        Runs(people.ledger).ensure_works_for(people.ids["secret"], [once_more.message])


def test_rooms_survive_a_backup_and_its_restoring(disk: Ledger, tmp_path: Path) -> None:
    people = cast(disk)
    alice, bob = people.ledger_of("alice"), people.ledger_of("bob")
    alice.rooms.create("plans", agents=["helper"], people=["bob"])
    alice.rooms.post("plans", f"{people.mention('helper')} one?")
    answer(disk, "helper", "One.")
    alice.rooms.fork("plans", title="fork")
    bob.rooms.mark_read("plans")
    bob.rooms.post("plans", f"{people.mention('helper')} two?")

    def state(ledger: Ledger) -> list[object]:
        rooms = [*ledger.acting_as("bob").rooms.list(), *ledger.rooms.list()]
        names = [[one.name for one in ledger.rooms.participants(room.id)] for room in rooms]
        return [*zip(rooms, [texts(ledger, room.id) for room in rooms], names, strict=True)]

    saved = state(disk)
    disk.upkeep.backup(tmp_path / "saved.db")
    alice.rooms.post("plans", f"{people.mention('bob')} lost")
    path = disk.path
    disk.close()
    weft.restore(tmp_path / "saved.db", path)
    with weft.open(path, accept_rollback=True) as restored:
        assert state(restored) == saved
        bob = restored.acting_as("bob")
        (waiting,) = restored.inbox.list()
        assert (waiting.is_elsewhere, bob.rooms.pending("plans")) == (True, [])
        again = restored.inbox.send_again(waiting.id)
        assert [one.message for one in bob.rooms.pending("plans")] == [again.message]
        assert restored.inbox.get(again.message).sender == people.ids["bob"]
        assert restored.rooms.get("fork").forked_from == restored.rooms.get("plans").id
        answer(restored, "helper", "Two.")
        assert [message.text for message in bob.rooms.messages("plans")][-1] == "Two."
        assert bob.rooms.post("plans", f"{people.mention('helper')} three?").reached[0].name == "helper"
        assert problems(restored) == []


def test_a_mention_takes_the_name_that_commands_take_and_is_stored_by_id(people: Cast) -> None:
    bob = people.ledger_of("bob")
    bob.rooms.create("plans")
    posted = bob.rooms.post("plans", "@[Helper](agent:helper), @[A](user:alice) and @reviewer: ready?")
    assert [one.name for one in posted.reached] == ["helper", "reviewer"]
    assert (posted.joined, posted.invited) == (("helper", "reviewer"), ("alice",))
    said = bob.rooms.messages("plans")[0]
    ids = people.ids
    assert said.text == (
        f"@[Helper](agent:{ids['helper']}), @[A](user:{ids['alice']}) and {people.mention('reviewer')}: ready?"
    )
    assert [one.id for one in said.mentions] == [ids["helper"], ids["alice"], ids["reviewer"]]
    again = bob.rooms.post("plans", "@[Helper](agent:helper) again")
    assert ([one.name for one in again.reached], again.joined) == (["helper"], ())
    answer(people.ledger, "helper", "@[R](agent:reviewer) knows.", session=again.reached[0].session)
    assert bob.rooms.messages("plans")[-1].mentions[0].name == "reviewer"
    assert problems(people.ledger) == []


def test_a_name_that_means_nobody_to_its_author_is_answered_by_the_system_and_by_nobody_else(people: Cast) -> None:
    alice, bob = people.ledger_of("alice"), people.ledger_of("bob")
    bob.rooms.create("plans")
    forms = ("@[x](agent:{})?", "@{} are you there?")
    for form in forms:
        answers = {}
        for name in ("secret", "ghost"):
            posted = bob.rooms.post("plans", form.format(name))
            assert (posted.reached, posted.joined, posted.invited) == ((), (), ())
            (answers[name],) = posted.notices
            said = bob.rooms.messages("plans")[-2:]
            assert (said[0].text, said[0].mentions, said[1].notice) == (form.format(name), (), "absent")
        assert answers["secret"].replace("secret", "ghost") == answers["ghost"]
    assert bob.rooms.post("plans", "@[x](user:helper)?").notices == (
        "@helper is nobody who is here or can be brought in.",
    )
    assert bob.rooms.post("plans", "@[x](user:01ARZ3NDEKTSV4RRFFQ69G5FAV)?").notices == (
        "The message mentions a person who is not here and cannot be invited.",
    )
    alice.rooms.create("hers", agents=["secret"], people=["bob"])
    for form in forms:
        assert (
            "is private: it answers only those it was shared with"
            in (bob.rooms.post("hers", form.format("secret")).notices[0])
        )
        assert alice.rooms.post("hers", form.format("secret")).reached[0].name == "secret"
