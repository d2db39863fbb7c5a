"""What people type for a turn."""

from datetime import timedelta, timezone
from pathlib import Path

import pytest

import weft
from tests.ledger.conftest import NOON, OpenLedger
from tests.ledger.histories import grow, problems, texts
from weft.kernel.clock import ALPHABET, FixedClock
from weft.kernel.errors import AmbiguousName, InvalidInput, NotFound
from weft.ledger.api.ledger import Ledger
from weft.ledger.read.revisions import parse_moment
from weft.programs import Programs

HOUR, DAY = 3_600_000, 86_400_000


@pytest.fixture
def turns(ledger: Ledger, clock: FixedClock) -> list[str]:
    """One turn a day in `main`, the last one today."""
    made: list[str] = []
    for _ in range(5):
        made += grow(ledger, "main", f"day {len(made)}")
        clock.tick(DAY)
    clock.tick(-DAY + HOUR)
    return made


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("main", 4),
        ("main~0", 4),
        ("main~", 3),
        ("main^", 3),
        ("main~1", 3),
        ("main~4", 0),
        ("main^^", 2),
        ("main~2^", 1),
        ("main@{0}", 4),
        ("main@{1}", 3),
        ("main@{4}", 0),
        ("main@{1}~2", 1),
        ("main@{1}^", 2),
        ("@{1}", 3),
        ("main@{now}", 4),
        ("main@{yesterday}", 3),
        ("main@{ 2 days ago }", 2),
        ("main@{2.days.ago}", 2),
        ("main@{last day}", 3),
        ("main@{25h}", 3),
        ("main@{30 minutes ago}", 4),
        ("main@{2 hours ago}", 3),
        ("main@{2026-11-16}", 1),
        ("main@{2026-11-16 23:59}", 1),
        ("main@{2026-11-17T00:00:00Z}", 2),
        ("main@{2026-11-17T00:00:00+01:00}", 1),
        ("main#1", 0),
        ("main#5", 4),
        ("main#5~3", 1),
    ],
)
def test_words_lead_to_turns(ledger: Ledger, turns: list[str], name: str, expected: int) -> None:
    assert ledger.resolve(name) == turns[expected]
    assert ledger.turn(name).id == turns[expected]
    assert ledger.thread(name).depth == expected + 1


@pytest.mark.parametrize(
    "name",
    [
        "nobody", "main~5", "main~99", "main@{5}", "main@{99}", "main@{2020-01-01}", "main#6", "main#0", "nobody@{1}",
        "nobody~1", "nobody#1", "01ARZ3NDEKTSV4RRFFQ69G5FAV", "0000000", "f" * 64, "ZZZZZZ", "main@{1}x", "main~x",
        "abcdef",
    ],
)  # fmt: skip
def test_words_that_lead_nowhere_say_so(ledger: Ledger, turns: list[str], name: str) -> None:
    with pytest.raises(NotFound) as lost:
        ledger.resolve(name)
    assert lost.value.hint or lost.value.name


@pytest.mark.parametrize("name", ["", "~", "^", "~3", "main@{whenever}", "main@{}", "main@{-1}"])
def test_words_without_a_meaning_are_refused(ledger: Ledger, turns: list[str], name: str) -> None:
    with pytest.raises(InvalidInput):
        ledger.resolve(name)


def test_a_turn_is_named_by_its_id_its_end_its_digest_and_its_beginning(ledger: Ledger, turns: list[str]) -> None:
    for turn in turns:
        digest = ledger.turn(turn).digest
        for name in (turn, turn.lower(), turn[-12:], turn[-12:].lower(), digest, digest[:16], digest[:15].upper()):
            assert ledger.resolve(name) == turn


def test_an_event_inside_a_turn_leads_to_the_turn_up_to_it(ledger: Ledger, turns: list[str]) -> None:
    event = ledger.events(turns[2])[1].id
    assert ledger.resolve(event[:20]) == turns[2]
    assert texts(ledger.thread(event[:20]).messages)[-1] == "day 2"
    assert texts(ledger.thread(turns[2]).messages)[-1] == "re: day 2"


def test_a_label_wins_over_an_id(ledger: Ledger, turns: list[str]) -> None:
    ledger.fork(turns[0], label=turns[3][-12:])
    assert ledger.resolve(turns[3][-12:]) == turns[0]


def test_no_label_reads_as_a_depth(ledger: Ledger, turns: list[str]) -> None:
    with pytest.raises(InvalidInput, match="looks like an address"):
        ledger.fork(turns[1], label="main#1")
    assert ledger.resolve("main#1") == turns[0]


def test_names_follow_aliases_and_new_labels(ledger: Ledger, turns: list[str]) -> None:
    ledger.labels.add_alias("nick", "main")
    assert ledger.resolve("nick~1") == ledger.resolve("nick@{1}") == ledger.resolve("nick#4") == turns[3]
    ledger.labels.rename("main", "trunk")
    assert ledger.resolve("trunk#4") == turns[3]
    with pytest.raises(NotFound):
        ledger.resolve("main#4")


def test_a_depth_names_the_turn_that_the_session_made_there_last(ledger: Ledger, turns: list[str]) -> None:
    ledger.move_head("main", new=turns[1])
    (again,) = grow(ledger, "main", "another third day")
    ledger.record_turn(session="main", query="it failed", error="x")
    assert ledger.resolve("main#3") == again
    assert ledger.resolve("main#4") == turns[3]


def test_a_session_without_a_head_names_no_turn(ledger: Ledger, turns: list[str]) -> None:
    ledger.create_session("empty")
    ledger.heads.reset("main")
    for name in ("empty", "empty~1", "main", "main@{0}", "main@{now}"):
        with pytest.raises(NotFound):
            ledger.resolve(name)
    assert ledger.resolve("main@{1}") == turns[4]


def test_a_time_finds_a_head_inside_a_turn(ledger: Ledger, clock: FixedClock) -> None:
    (turn,) = grow(ledger, "main", "a")
    ledger.fork(ledger.events(turn)[1].id, label="inside")
    clock.tick(2 * DAY)
    ledger.move_head("inside", new=turn)
    assert texts(ledger.thread("inside@{yesterday}").messages) == texts(ledger.thread("inside@{1}").messages) == ["a"]


def test_days_are_counted_in_the_zone_of_the_viewer(open_ledger: OpenLedger, clock: FixedClock) -> None:
    east = open_ledger(":memory:", zone=timezone(timedelta(hours=9)))
    clock.set(NOON - 2 * HOUR)
    (first,) = grow(east, "main", "a")
    clock.set(NOON + 2 * HOUR)
    (second,) = grow(east, "main", "b")
    assert east.resolve("main@{2026-11-15 08:00}") == first
    assert east.resolve("main@{2026-11-15 12:00}") == second


def test_a_routing_key_leads_to_the_one_session_that_has_it(ledger: Ledger) -> None:
    ledger.create_session("a", routing_key="dm:ann")
    ledger.create_session("b", routing_key="dm:ben")
    (turn,) = grow(ledger, "a", "q")
    assert (ledger.session("dm:ann").label, ledger.resolve("dm:ann")) == ("a", turn)
    ledger.create_session("c", routing_key="dm:ben")
    with pytest.raises(NotFound):
        ledger.session("dm:ben")
    ledger.labels.delete("c")
    assert ledger.session("dm:ben").label == "b"
    ledger.create_session("dm:ann")
    assert ledger.session("dm:ann").label == "dm:ann"


def same_end(size: int) -> bytes:
    """Randomness that gives all ids of a millisecond the same ending."""
    return bytes(range(size))


def test_an_end_that_many_turns_share_is_ambiguous(path: Path, clock: FixedClock) -> None:
    with weft.open(path, clock=clock, random_bytes=same_end) as ledger:
        turns = []
        for _ in range(3):
            turns.append(ledger.record_turn(query="q").id)
            clock.tick(1000)
        assert len({turn[-10:] for turn in turns}) == 1
        with pytest.raises(AmbiguousName) as unclear:
            ledger.resolve(turns[0][-10:])
        assert unclear.value.candidates == tuple(turns)
        assert ledger.resolve(turns[0][-20:]) == turns[0]


def test_digits_that_end_an_id_and_begin_a_digest_are_ambiguous(clock: FixedClock) -> None:
    chosen = list[bytes]()
    with weft.open(
        ":memory:", clock=clock, random_bytes=lambda size: chosen.pop() if size == 10 and chosen else bytes(size)
    ) as ledger:
        digest = ledger.record_turn(query="q").digest
        letters = digest[:7].upper()
        value = 0
        for letter in letters:
            value = value * 32 + ALPHABET.index(letter)
        chosen.append(value.to_bytes(10, "big"))
        clock.tick()
        other = ledger.record_turn(query="r")
        assert other.id.endswith(letters)
        with pytest.raises(AmbiguousName):
            ledger.resolve(digest[:7])
        assert ledger.turn(digest[:8]).digest == digest


LONG = "f70db4c5-8eb1-4c18-b759-7c6c08c0f868"


def test_a_session_is_named_by_the_beginning_of_its_label(ledger: Ledger) -> None:
    first, second = grow(ledger, LONG, "a", "b")
    assert ledger.session("f70db4").label == LONG
    assert ledger.resolve("f70db4c5") == ledger.resolve(LONG[:20]) == second
    assert ledger.resolve("f70db4c5~1") == ledger.resolve("f70db4c5@{1}") == ledger.resolve("f70db4c5#1") == first
    assert ledger.move_head("f70db4c5", new=first).label == LONG
    assert ledger.labels.add_alias("nick", "f70db4c5").label == LONG
    assert ledger.labels.archive("f70db4c5").status == "archived"
    assert ledger.labels.rename("f70db4c5", "short").label == "short"


@pytest.mark.parametrize(
    "name", ["f70db", "f70db~1", "70db4c5-8", "F70DB4C5-", "f70db4c5x", "f70db4c5-8eb1/", "/f70db4c5"]
)
def test_too_little_of_a_label_or_something_else_names_nothing(ledger: Ledger, name: str) -> None:
    grow(ledger, LONG, "a")
    with pytest.raises(NotFound):
        ledger.resolve(name)


def test_a_beginning_of_several_labels_is_refused_with_their_labels(ledger: Ledger) -> None:
    grow(ledger, "session-1", "a")
    grow(ledger, "session-2", "b")
    for ask in (ledger.resolve, ledger.session, lambda name: ledger.move_head(name, new=None)):
        with pytest.raises(AmbiguousName) as unclear:
            ask("session")
        assert unclear.value.candidates == ("session-1", "session-2")
    for i in range(10, 30):
        ledger.create_session(f"session-{i}")
    with pytest.raises(AmbiguousName) as unclear:
        ledger.resolve("session-")
    assert unclear.value.candidates[-1] == "14 more"


def test_the_label_of_a_deleted_session_does_not_lead_to_another_one(ledger: Ledger) -> None:
    grow(ledger, "session-1", "a")
    grow(ledger, "session-10", "b")
    ledger.labels.delete("session-1")
    with pytest.raises(NotFound):
        ledger.labels.delete("session-1")
    assert ledger.session("session-").label == "session-10"


def test_a_session_is_named_by_the_end_of_its_id(ledger: Ledger) -> None:
    first, second = ledger.create_session("one"), ledger.create_session("two")
    turn = ledger.record_turn(session="one", query="q", response="r").id
    end = first.id[-8:]
    assert ledger.session(end).id == ledger.session(end.lower()).id == first.id
    assert ledger.turn(end).id == ledger.turn(f"{end}~0").id == turn
    assert ledger.labels.rename(end, "three").label == "three"
    programs = Programs(ledger)
    assert programs.get(f"@({end})").name == programs.get(end).name == "three"
    assert programs.add_tags(end, "urgent") == ["urgent"]
    ledger.create_session(second.id[-8:])  # a label wins over the end of an id
    assert ledger.session(second.id[-8:]).label == second.id[-8:]
    ledger.labels.delete("three")
    for name in (end, end[:5], f"%{end[1:]}"):
        with pytest.raises(NotFound):
            ledger.session(name)
    assert problems(ledger) == []


def test_labels_aliases_and_ids_win_over_beginnings(ledger: Ledger) -> None:
    (turn,) = grow(ledger, "main", "a")
    grow(ledger, f"{turn[-8:]}-more", "b")
    grow(ledger, "aliased-name", "c")
    grow(ledger, "label-longer", "d")
    (exact,) = grow(ledger, "label-", "e")
    ledger.labels.add_alias("aliased", "main")
    assert ledger.resolve(turn[-8:]) == turn
    assert ledger.resolve("aliased") == turn
    assert ledger.resolve("label-") == exact


def test_subagents_do_not_make_the_beginning_of_their_session_ambiguous(ledger: Ledger) -> None:
    (turn,) = grow(ledger, LONG, "a")
    (child,) = grow(ledger, f"{LONG}/agent-a123", "b")
    (other,) = grow(ledger, f"{LONG}/agent-b456", "c")
    assert ledger.resolve("f70db4c5") == turn
    assert ledger.resolve("f70db4c5/agent-a") == ledger.resolve(f"{LONG}/agent-a") == child
    assert ledger.resolve("f70db4c5/agent-b~0") == other
    with pytest.raises(AmbiguousName):
        ledger.resolve("f70db4c5/agent-")
    ledger.labels.delete(LONG)
    with pytest.raises(NotFound):
        ledger.session("f70db4c5")
    assert ledger.resolve("f70db4c5/agent-a") == child


def test_recording_takes_a_label_as_it_stands(ledger: Ledger) -> None:
    grow(ledger, LONG, "a")
    ledger.record_turn(session="f70db4c5", query="b")
    assert ledger.session("f70db4c5").label == "f70db4c5"


def test_a_move_that_was_not_made_says_how_often_the_session_moved(ledger: Ledger) -> None:
    ledger.create_session("main")
    for hint in ("it has not moved yet", "it has moved once", "it has moved 2 times"):
        with pytest.raises(NotFound) as unresolved:
            ledger.resolve("main@{9}")
        with pytest.raises(NotFound) as unrestored:
            ledger.heads.restore("main", 9)
        assert (unresolved.value.hint, unrestored.value.hint) == (hint, hint)
        ledger.record_turn(session="main", query="q")


def test_a_time_before_the_calendar_is_its_beginning() -> None:
    assert parse_moment("999999999999 years ago", 0, timezone.utc) == parse_moment("0001-01-01", 0, timezone.utc)  # noqa: UP017
