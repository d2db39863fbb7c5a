"""Whom typed letters may mean."""

from __future__ import annotations

import gc
from pathlib import Path
from weakref import ref

import pytest
from hypothesis import given
from hypothesis import strategies as st

import weft
from tests.conftest import NewPostgresLedger
from tests.ledger.rooms import answer, cast
from weft.chat.room_stream import IndexedName, MentionSuggester, NameIndex, folded_name, suggestions
from weft.kernel.errors import NotFound
from weft.kernel.message_text import mentioned
from weft.ledger.api import Ledger
from weft.programs import Programs


def index(*names: str) -> NameIndex:
    return NameIndex(IndexedName("agent", f"{number:03d}", name) for number, name in enumerate(names))


def names(found: list[IndexedName]) -> list[str]:
    return [one.name for one in found]


def test_beginnings_come_before_words_initials_and_letters_in_order() -> None:
    index_of_names = index("xcodexreviewer", "Anna Crespo-Rey", "CodeReviewer", "crane", "the crab", "bob")
    assert names(index_of_names.matches("cr", 10)) == [
        "crane",
        "Anna Crespo-Rey",
        "the crab",
        "CodeReviewer",
        "xcodexreviewer",
    ]
    assert names(index_of_names.matches("rev", 10)) == ["CodeReviewer", "xcodexreviewer"]
    assert names(index_of_names.matches("cr", 2)) == ["crane", "Anna Crespo-Rey"]
    assert index_of_names.matches("zz", 10) == []
    assert index_of_names.matches("cr", 0) == []
    assert len(index_of_names.matches("", 100)) == len(index_of_names) == 6


@pytest.mark.parametrize(
    ("letters", "name"),
    [
        ("zoe", "Zoë"),
        ("ZOË", "zoe"),
        ("strasse", "Straße"),
        ("two w", "two_words"),
        ("two-w", "Two Words"),
        ("שלו", "שלום"),
        ("🤖", "the 🤖 robot"),
        ("ﬁx", "fixer"),
        ("[x]", "x (y)"),
        ("\u202ead", "admin"),
        ("^a", "a]\\^-"),
        ("]-", "a-]"),
    ],
)
def test_case_accents_and_punctuation_do_not_matter(letters: str, name: str) -> None:
    assert names(index("other", name).matches(letters, 1)) in (
        [name],
        ["other"] if not folded_name(letters) else [name],
    )


def test_letters_that_look_alike_are_different_letters() -> None:
    assert names(index("аdmin", "admin").matches("ad", 10)) == ["admin"]


def test_whoever_was_active_last_comes_first_among_equals() -> None:
    people = [
        IndexedName("user", id, name, at) for id, name, at in [("1", "anna", 5), ("2", "anne", 9), ("3", "ann", 5)]
    ]
    assert names(NameIndex(people).matches("ann", 9)) == ["anne", "ann", "anna"]
    assert names(NameIndex(people[::-1]).matches("ann", 9)) == ["anne", "ann", "anna"]
    assert names(NameIndex(people).matches("ann", 9, skipped={"2"})) == ["ann", "anna"]


LETTERS = st.text(alphabet="abcAB -_é]^\\\n🤖", max_size=6)


@given(st.lists(LETTERS, max_size=12), LETTERS, st.integers(1, 14))
def test_the_index_finds_what_looking_at_every_name_finds(all_names: list[str], letters: str, limit: int) -> None:
    people = [IndexedName("user", str(number), name, number % 3) for number, name in enumerate(all_names)]
    query = folded_name(letters)

    def rank(name: str) -> int | None:
        key, remaining = folded_name(name), iter(folded_name(name))
        words = folded_name(
            "".join(f" {c}" if c.isupper() and p.islower() else c for p, c in zip(f" {name}", name, strict=False))
        )
        joined = query.replace(" ", "")
        if key.startswith(query):
            return 0
        if f" {query}" in f" {words}":
            return 1
        if len(joined) > 1 and "".join(word[0] for word in words.split()).startswith(joined):
            return 2
        return 3 if all(letter in remaining for letter in joined) else None

    ranked = [(rank(one.name), -one.active_at, folded_name(one.name), one.id) for one in people]
    expected = sorted(entry for entry in ranked if entry[0] is not None)[:limit]
    assert [one.id for one in NameIndex(people).matches(letters, limit)] == [entry[3] for entry in expected]


@pytest.fixture(params=["disk", "postgres"])
def ledger(request: pytest.FixtureRequest, tmp_path: Path, new_postgres_ledger: NewPostgresLedger) -> Ledger:
    return weft.open(new_postgres_ledger() if request.param == "postgres" else tmp_path / "ledger.db")


def test_participants_come_first_then_agents_then_people_in_the_name_of_whoever_types(ledger: Ledger) -> None:
    with ledger:
        everybody = cast(ledger)
        alice, bob = everybody.ledger_of("alice"), everybody.ledger_of("bob")
        Programs(bob).create("agent", "hidden helper", {"visibility": "private"})
        room = alice.rooms.create("plans", agents=["reviewer", "secret"], people=["bob"]).id

        def found(reader: Ledger, letters: str, limit: int = 9) -> list[tuple[str, bool]]:
            return [(one.name, one.is_participant) for one in suggestions(reader, room, letters, limit)]

        assert found(alice, "") == [
            ("bob", True),
            ("reviewer", True),
            ("secret", True),
            ("triage", True),
            ("helper", False),
            ("carol", False),
            ("local", False),
        ]
        assert found(alice, "e", 3) == [("reviewer", True), ("secret", True), ("triage", True)]
        # what is private appears to those alone that it works for, present or absent
        assert found(bob, "e") == [
            ("alice", True),
            ("reviewer", True),
            ("triage", True),
            ("helper", False),
            ("hidden helper", False),
        ]
        assert found(alice, "hid") == []
        assert mentioned(suggestions(bob, room, "hid")[0].mention)[0][0] == "agent"
        with pytest.raises(NotFound):
            suggestions(everybody.ledger_of("carol"), room, "a")
        once = everybody.ledger_of("bob")
        assert suggestions(once, room, "revi")
        reference = ref(once)
        del once
        gc.collect()
        assert reference() is None, "one call keeps nothing"


def test_the_names_follow_what_happens(ledger: Ledger) -> None:
    with ledger:
        everybody = cast(ledger)
        alice = everybody.ledger_of("alice")
        room = alice.rooms.create("plans", agents=["helper", "reviewer"]).id
        suggester = MentionSuggester(alice)

        def found(letters: str) -> list[str]:
            return [one.name for one in suggester.suggest(room, letters)]

        assert found("rev") == ["reviewer"]
        own = Programs(alice)
        own.create("agent", "reverser", {})
        assert found("rev") == ["reviewer", "reverser"]
        own.create("agent", "scout", {})
        own.configure("scout", {"visibility": "private"})
        assert found("sco") == ["scout"]
        assert [one.name for one in suggestions(everybody.ledger_of("bob").acting_as("alice"), room, "sco")] == [
            "scout"
        ]
        own.delete("scout")
        assert found("sco") == []
        alice.rooms.post(room, everybody.mention("reviewer"))
        answer(ledger, "reviewer", "here")
        assert found("e")[:2] == ["reviewer", "helper"]
        alice.rooms.remove(room, "reviewer")
        assert [(one.name, one.is_participant) for one in suggester.suggest(room, "revi")] == [("reviewer", False)]
