"""Two sessions that belong together become one: names, a summary, an archived session, and the way back."""

from typing import Any

import pytest

from tests.programs.stories import stocked
from weft import Ledger
from weft.kernel.clock import FixedClock
from weft.kernel.errors import InvalidInput, KeyTaken, LabelTaken, NotAllowed, NotApplicable, NotFound, SessionBusy
from weft.ledger.write.session_merges import TOPICS
from weft.programs import Programs


@pytest.fixture
def pair(ledger: Ledger, clock: FixedClock) -> Ledger:
    """`mail` with one turn; `chat`, which has other names too, with an answer and an open question."""
    ledger.record_turn(session="mail", query="hello by mail", response="hi")
    ledger.create_session("chat", routing_key="dm:ann:bot")
    ledger.record_turn(session="chat", query="where is it?\nI looked everywhere.", response="at line 42")
    clock.sleep(90 * 60)
    ledger.record_turn(session="chat", query="and the other one?")
    ledger.labels.add_alias("nick", "chat")
    ledger.labels.promote("chat", "person:ann")
    return ledger


def text_of(ledger: Ledger, turn: str) -> str:
    (message,) = ledger.messages(turn)
    return str(message.text)


def aliases(ledger: Ledger) -> dict[str, tuple[str, str]]:
    with ledger._store.read() as txn:
        rows = txn.sql.fetch_rows("SELECT alias, session_label, reason FROM session_aliases")
    return {alias: (label, reason) for alias, label, reason in rows}


def appended(ledger: Ledger) -> int:
    with ledger._store.read() as txn:
        ((count,),) = txn.sql.fetch_rows("SELECT count(*) FROM log")
    return int(count)


def is_sound(ledger: Ledger) -> bool:
    """Verified as it is, and the same after its views were made anew."""
    before = aliases(ledger), {session.id: session for session in ledger.sessions(every=True)}
    sound = list(ledger.verify()) == []
    ledger.upkeep.rebuild()
    after = aliases(ledger), {session.id: session for session in ledger.sessions(every=True)}
    return sound and before == after and list(ledger.verify()) == []


def test_a_promoted_key_leads_to_the_session_and_a_repeated_promotion_changes_nothing(ledger: Ledger) -> None:
    ledger.record_turn(session="channel:7", query="q")
    ledger.record_turn(session="other", query="q")
    ledger.labels.add_alias("nick", "other")
    assert ledger.labels.promote("channel:7", "person:ann").label == "channel:7"
    before = ledger.newest()
    assert ledger.labels.promote("person:ann", "person:ann").label == "channel:7"
    assert ledger.labels.promote("channel:7", "channel:7").label == "channel:7"
    assert ledger.newest() == before
    assert aliases(ledger)["person:ann"] == ("channel:7", "identity_promotion")
    assert ledger.record_turn(session="person:ann", query="again").session == "channel:7"
    for taken in ("other", "nick", ledger.session("other").id):
        with pytest.raises(LabelTaken):
            ledger.labels.promote("channel:7", taken)
    with pytest.raises(NotFound):
        ledger.labels.promote("nobody", "person:bob")


def test_a_merged_session_is_archived_and_all_its_names_lead_to_the_other(pair: Ledger) -> None:
    gone, head = pair.session("chat").id, pair.session("chat").head
    before, appends = {turn.id: turn.digest for turn in pair.log()}, appended(pair)
    unified = pair.merges.unify("chat", into="mail")
    assert appended(pair) == appends + 1, "all of it is one append"
    assert unified.names == ("chat", "nick", "person:ann", "dm:ann:bot")
    assert (unified.session.label, unified.archived.id) == ("mail", gone)
    assert (unified.archived.label, unified.archived.status) == ("unified/chat", "archived")
    assert {pair.session(name).label for name in unified.names} == {"mail"}
    assert aliases(pair) == dict.fromkeys(unified.names, ("mail", "identity_merge"))
    for name in unified.names:
        assert pair.record_turn(session=name, query="more", response="yes").session == "mail"
    assert before.items() <= {turn.id: turn.digest for turn in pair.log()}.items(), "no tree is rewritten"
    assert pair.session("unified/chat").head == head
    with pytest.raises(NotApplicable):
        pair.record_turn(session="unified/chat", query="more")
    assert is_sound(pair)


def test_the_summary_tells_when_what_was_asked_and_what_is_unresolved(pair: Ledger) -> None:
    left = pair.session("mail").head
    unified = pair.merges.unify("chat", into="mail")
    assert text_of(pair, unified.summary.id) == (
        "Session 'chat' was merged into this one by local."
        " It had 2 turns, from 2026-11-15 00:00 UTC to 2026-11-15 01:30 UTC.\n\n"
        "Asked there:\n- where is it? I looked everywhere.\n- and the other one?\n\n"
        "Unresolved:\n- not answered: and the other one?"
    )
    assert (unified.summary.parent_id, pair.session("mail").head) == (left, unified.summary.id)
    (provenance,) = pair.merges.provenance(unified.summary.id)
    assert (provenance.why, provenance.source_id) == ("summary", pair.session("unified/chat").head)
    assert "not answered" in str([message.text for message in pair.context(session="mail").messages])


def test_the_summary_tells_of_failed_turns_and_subagents_and_only_of_turns_that_are_not_shared(
    ledger: Ledger,
) -> None:
    ledger.record_turn(session="main", query="shared", response="yes")
    ledger.fork("main", label="side")
    for i in range(TOPICS + 3):
        ledger.record_turn(session="side", query=f"question {i} {'x' * 300}", response="yes")
    ledger.begin_turn(session="side").fail("no answer")
    asked = ledger.begin_turn(session="side")
    asked.message("will you answer?")
    asked.fail("no answer")
    ledger.create_session("helper", parent_session="side")
    text = text_of(ledger, ledger.merges.unify("side", into="main").summary.id)
    topics = [line for line in text.splitlines() if line.startswith("- question")]
    assert [topic.split()[2] for topic in topics] == [str(i) for i in range(3, TOPICS + 3)]
    assert max(map(len, text.splitlines())) < 210
    assert f"It had {TOPICS + 3} turns" in text
    assert "- (3 earlier or without words)" in text
    assert "shared" not in text
    assert text.splitlines()[-2:] == ["- not answered: will you answer?", "- subagent helper is pending"]


def test_the_summary_tells_of_tasks_that_are_worked_on(ledger: Ledger) -> None:
    ledger.record_turn(session="main", query="q")
    programs = stocked(ledger)
    programs.assign("researcher", "task-research-quantum")
    (work,) = [session.label for session in ledger.sessions() if session.label != "main"]
    text = text_of(ledger, ledger.merges.unify(work, into="main").summary.id)
    assert text.endswith("Unresolved:\n- task task-research-quantum is pending")


def test_whoever_merges_may_say_what_the_summary_is(pair: Ledger) -> None:
    unified = pair.merges.unify("chat", into="mail", summary="Ann asked for a line number.")
    assert text_of(pair, unified.summary.id) == "Ann asked for a line number."
    with pytest.raises(InvalidInput):
        pair.merges.unify("unified/chat", into="mail", summary=" ")


def test_sessions_without_turns_can_be_merged_too(ledger: Ledger) -> None:
    ledger.create_session("a")
    ledger.create_session("b")
    unified = ledger.merges.unify("a", into="b")
    assert "It had no turns of its own.\n\nNothing was left unresolved." in text_of(ledger, unified.summary.id)
    assert ledger.merges.provenance(unified.summary.id) == []
    assert (unified.summary.depth, ledger.session("a").label) == (1, "b")


def test_names_never_lead_to_names_however_often_sessions_are_merged(pair: Ledger) -> None:
    pair.record_turn(session="desk", query="at the desk", response="yes")
    pair.merges.unify("chat", into="mail")
    unified = pair.merges.unify("mail", into="desk")
    assert unified.names == ("mail", "chat", "dm:ann:bot", "nick", "person:ann")
    assert {label for label, _ in aliases(pair).values()} == {"desk"}
    assert "not answered" not in text_of(pair, unified.summary.id), "a summary expects no answer"
    assert pair.merges.separate("unified/chat").label == "chat"
    assert {name: pair.session(name).label for name in unified.names} == {
        "mail": "desk", "chat": "chat", "dm:ann:bot": "chat", "nick": "chat", "person:ann": "chat",
    }  # fmt: skip
    assert is_sound(pair)


def test_a_merge_is_undone_with_all_names_and_can_be_done_again(pair: Ledger) -> None:
    before = aliases(pair)
    gone = pair.merges.unify("chat", into="mail").archived
    summary = pair.session("mail").head
    separated = pair.merges.separate(gone.id)
    assert (separated.id, separated.label, separated.status) == (gone.id, "chat", "active")
    assert before.items() <= aliases(pair).items()
    assert {pair.session(name).id for name in ("chat", "nick", "person:ann", "dm:ann:bot")} == {gone.id}
    assert pair.session("mail").head == summary
    assert pair.record_turn(session="nick", query="more", response="yes").session == "chat"
    for name in ("chat", "mail"):
        with pytest.raises(NotApplicable):
            pair.merges.separate(name)
    assert pair.merges.unify("chat", into="mail").archived.label == "unified/chat"
    assert pair.session("nick").label == "mail"
    assert is_sound(pair)


def test_a_label_that_is_taken_is_not_taken_twice(pair: Ledger) -> None:
    pair.create_session("unified/chat")
    assert pair.merges.unify("chat", into="mail").archived.label == "unified/chat-2"
    long = "l" * 512
    pair.create_session(long)
    assert len(pair.merges.unify(long, into="mail").archived.label) <= 512
    assert pair.session(long).label == "mail"


def refused(ledger: Ledger, error: type[Exception], session: str, into: str) -> None:
    before = ledger.newest()
    with pytest.raises(error):
        ledger.merges.unify(session, into=into)
    assert ledger.newest() == before, "nothing of it is recorded"


def test_a_merge_is_refused_whole(pair: Ledger) -> None:
    for busy in ("chat", "mail"):
        turn = pair.begin_turn(session=busy)
        refused(pair, SessionBusy, "chat", "mail")
        turn.fail("ended")
    refused(pair, NotApplicable, "chat", "nick")
    refused(pair, NotFound, "nobody", "mail")
    refused(pair, NotFound, "chat", "nobody")
    pair.labels.archive("mail")
    refused(pair, NotApplicable, "chat", "mail")
    deleted = pair.labels.delete("chat").id
    pair.labels.unarchive("mail")
    refused(pair, NotApplicable, deleted, "mail")


def test_a_repeated_merge_with_the_same_key_answers_what_it_answered(pair: Ledger) -> None:
    unified = pair.merges.unify("chat", into="mail", key="k")
    before = pair.newest()
    assert pair.merges.unify("chat", into="mail", key="k") == unified
    assert pair.newest() == before
    with pytest.raises(KeyTaken):
        pair.merges.unify("chat", into="mail", summary="another", key="k")


def test_it_needs_rights_over_both_sessions_and_names_who_did_it(pair: Ledger) -> None:
    permits: list[Any] = [f"{right}(chat)" for right in ("session:read", "session:rename", "session:archive")]
    permits += [f"{right}(mail)" for right in ("session:read", "session:rename", "turn:merge")]
    programs = Programs(pair)
    for i, _ in enumerate(permits):
        programs.create("human", f"eve{i}", {"permissions": permits[:i] + permits[i + 1 :]})
        with pytest.raises((NotAllowed, NotFound)):
            pair.acting_as(f"eve{i}").merges.unify("chat", into="mail")
    programs.create("human", "ann", {"permissions": permits})
    ann = pair.acting_as("ann")
    gone = ann.merges.unify("chat", into="mail").archived
    assert " by ann." in text_of(pair, str(pair.session("mail").head))
    programs.create("human", "bob", {"permissions": ["session:read", "session:archive", "session:rename(unified/*)"]})
    with pytest.raises(NotAllowed):
        pair.acting_as("bob").merges.separate(gone.id)
    assert pair.session("chat").label == "mail"
