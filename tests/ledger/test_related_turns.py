"""Turns that share words with a text: what people typed first, nothing that cannot be read or routed to."""

import pytest

from tests.ledger.imported import native_turn, take
from weft.kernel.errors import InvalidInput
from weft.ledger.api import Ledger, RelatedTurn
from weft.ledger.read import turn_lookups
from weft.ledger.read.turn_lookups import MOST_WINDOWS, WIDEST_GAP
from weft.programs import Programs

SAYINGS = {
    "hover": ("make the scramble hover demo tasteful", "the demo fades in"),
    "docker": ("why does the flutter docker image fail to build", "a layer lacks java"),
    "pasta": ("how long do I boil fresh pasta", "two minutes"),
}


def filled(ledger: Ledger) -> dict[str, str]:
    return {
        label: ledger.record_turn(session=label, query=query, response=response).id
        for label, (query, response) in SAYINGS.items()
    }


def by_session(ledger: Ledger, text: str) -> dict[str | None, RelatedTurn]:
    return {turn.session: turn for turn in ledger.related_turns(text).turns}


@pytest.mark.parametrize("indexed", [True, False])
def test_turns_are_found_by_the_words_that_they_share(ledger: Ledger, indexed: bool) -> None:
    turns = filled(ledger)
    if indexed:
        ledger.upkeep.catch_up()
    related = ledger.related_turns("The hover demo flickers; so does a layer of the Docker image")
    assert {turn.session: turn.turn_id for turn in related.turns} == {name: turns[name] for name in ("hover", "docker")}
    hover, docker = (next(turn for turn in related.turns if turn.session == name) for name in ("hover", "docker"))
    assert hover.said == ("demo", "hover", "the")
    assert docker.said == ("docker", "does", "image", "layer", "the")
    assert hover.said_words == len({*" ".join(SAYINGS["hover"]).split()})
    assert hover.is_head_of == "hover"
    assert hover.head == hover.turn_id
    weights = {word.word: word.weight for word in related.words}
    assert weights["flickers"] > weights["hover"] > weights["the"] > 0
    assert {word.word: word.passages for word in related.words}["the"] == 2


def test_a_turn_deep_in_a_thread_is_found_with_what_came_after_it(ledger: Ledger) -> None:
    turns = filled(ledger)
    for number in range(3):
        ledger.record_turn(session="hover", query=f"and now number {number}", response="done")
    head = ledger.session("hover").head
    turn = by_session(ledger, "scramble hover")["hover"]
    assert (turn.turn_id, turn.turns_behind, turn.head, turn.is_head_of) == (turns["hover"], 3, head, None)
    assert turn.is_alone_at_head
    ledger.fork(turns["docker"], label="other")
    docker = by_session(ledger, "flutter docker image")["docker"]
    assert not docker.is_alone_at_head
    assert docker.is_head_of is None


def test_sessions_that_take_no_messages_are_left_out(ledger: Ledger) -> None:
    turns = filled(ledger)
    ledger.labels.archive("hover")
    Programs(ledger).step_session("docker", "complete")
    take(ledger, "manager", native_turn("boil the pasta again"))
    take(ledger, "manager/worker", native_turn("boil pasta for the manager"), file="worker.jsonl", parent="manager")
    assert set(by_session(ledger, "scramble hover docker image pasta")) == {"pasta", "manager"}
    ledger.fork(turns["hover"], label="again")
    assert by_session(ledger, "scramble hover")["again"].turn_id == turns["hover"]


def test_further_turns_are_told_of_though_they_share_nothing(ledger: Ledger) -> None:
    turns = filled(ledger)
    related = ledger.related_turns("xylophone", also=[turns["pasta"], "01ARZ3NDEKTSV4RRFFQ69G5FAV"])
    assert [(turn.turn_id, turn.said) for turn in related.turns] == [(turns["pasta"], ())]
    assert ledger.related_turns("xylophone").turns == ()
    assert ledger.related_turns("?!").words == ()


def test_an_empty_ledger_has_no_related_turns(ledger: Ledger) -> None:
    related = ledger.related_turns("anything at all")
    assert related.turns == ()
    assert [word.word for word in related.words] == ["anything", "at", "all"]
    with pytest.raises(InvalidInput):
        ledger.related_turns(7)  # type: ignore[arg-type]


def test_words_that_tools_put_into_a_message_do_not_count(ledger: Ledger) -> None:
    ledger.record_turn(session="a", query="<system-reminder>quokka habitat</system-reminder>\nhello", response="hi")
    assert all(turn.said == () for turn in ledger.related_turns("quokka habitat").turns)


def test_a_common_word_leads_nowhere_by_itself_unless_all_are_common(
    disk: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(turn_lookups, "RARE_PASSAGES", 3)
    for number in range(6):
        disk.record_turn(session=f"s{number}", query=f"common word{number}", response="yes")
    disk.upkeep.catch_up()
    related = disk.related_turns("common word2")
    assert {turn.session for turn in related.turns} == {"s2"}
    common, rare = related.words
    assert common.passages == 6
    assert common.weight < rare.weight
    assert len(disk.related_turns("common").turns) == 6


def test_no_session_keeps_the_others_out(disk: Ledger) -> None:
    for number in range(60):
        disk.record_turn(session="loud", query=f"purple elephant parade {number}", response="yes")
    disk.record_turn(session="quiet", query="an elephant", response="yes")
    sessions = [turn.session for turn in disk.related_turns("purple elephant parade").turns]
    assert "quiet" in sessions
    assert sessions.count("loud") <= 2 * turn_lookups.TURNS_PER_SESSION


def test_whoever_may_not_read_a_session_learns_nothing_of_it(ledger: Ledger) -> None:
    turns = filled(ledger)
    programs = Programs(ledger)
    programs.create("agent", "eve", {"permissions": {"programs": ["session:read(pasta)"]}})
    eve = ledger.acting_as("eve")
    hidden = ["scramble hover demo", "flutter docker image fail to build"]
    for text in (*hidden, *(f"{text} pasta" for text in hidden)):
        related = eve.related_turns(text, also=[turns["hover"], turns["docker"]])
        assert {turn.session for turn in related.turns} <= {"pasta"}
        assert {word.passages for word in related.words if word.word != "pasta"} == {0}
    assert by_session(eve, "boil pasta")["pasta"].turn_id == turns["pasta"]


@pytest.mark.parametrize("indexed", [True, False])
def test_what_others_record_in_the_same_tree_changes_nothing_for_a_limited_reader(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch, indexed: bool
) -> None:
    monkeypatch.setattr(turn_lookups, "RARE_PASSAGES", 3)
    monkeypatch.setattr(turn_lookups, "SAMPLED_PASSAGES", 4)
    monkeypatch.setattr(turn_lookups, "WIDEST_GAP", 2)
    Programs(ledger).create("human", "eve", {"permissions": ["session:read(shared)"]})
    eve = ledger.acting_as("eve")
    ledger.record_turn(session="trunk", system="be terse", query="a common merger", response="yes")
    ledger.record_turn(session="between", query="a common bluebird", response="no")
    ledger.record_turn(session="trunk", query="the common harbour", response="yes")
    ledger.fork("trunk", label="shared")
    for number in range(3):
        ledger.record_turn(session="shared", query=f"common words {number}", response="a lighthouse")
    texts = ("merger", "harbour", "bluebird", "common", "lighthouse", "yes", "common bluebird and merger", "terse")
    before = [eve.related_turns(text) for text in texts]
    assert [words.words[0].passages for words in before[:4]] == [1, 1, 0, 5]
    if indexed:
        ledger.upkeep.catch_up()
        assert [eve.related_turns(text).turns for text in texts[:3]] == [found.turns for found in before[:3]]
        before = [eve.related_turns(text) for text in texts]
    ledger.fork("shared", label="secret")
    for label in ("trunk", "secret", "between"):
        for number in range(2):
            query = f"common merger bluebird harbour {number}"
            ledger.record_turn(session=label, system="be terse", query=query, response="yes, a lighthouse")
    if indexed:
        ledger.upkeep.catch_up()
    assert [eve.related_turns(text) for text in texts] == before


def test_scattered_passages_are_looked_up_in_few_ranges() -> None:
    for count in (0, 1, MOST_WINDOWS, 300):
        numbers = [k * (WIDEST_GAP + 2) for k in range(count, 0, -1)]
        ranges = list(turn_lookups._number_windows(numbers))
        assert len(ranges) == min(count, MOST_WINDOWS)
        assert all(any(first <= n <= last for first, last in ranges) for n in numbers)
    assert list(turn_lookups._number_windows([5, 4, 1])) == [(1, 5)]
