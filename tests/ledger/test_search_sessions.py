"""Search finds sessions by their titles and projects, and excerpts begin and end at words."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import weft
from tests.ledger.imported import native_turn, take
from weft.ledger.api import Ledger
from weft.ledger.read.search_index import EntryPlace
from weft.ledger.read.search_matches import TextMatch, snippet


@pytest.fixture
def ledger() -> Ledger:
    opened = weft.open(":memory:")
    for number, (title, folder) in enumerate(
        [("Fix flaky dates", "/src/shop"), ("Write the page", "/src/dates"), (None, "/src/shop"), ("Dates again", "/x")]
    ):
        turn = native_turn(f"turn-{number}-of-a-session", started=1_000 + number, workspace=folder, end=10)
        take(opened, f"s{number}", turn, file=f"{number}.jsonl", workspace=folder, title=title)
    return opened


def test_sessions_are_found_by_title_and_project(ledger: Ledger) -> None:
    with ledger:
        hits = ledger.search_sessions("dates")
        assert [(hit.session, hit.place, hit.snippet) for hit in hits] == [
            ("s3", "title", "Dates again"),
            ("s0", "title", "Fix flaky dates"),
            ("s1", "project", "dates"),
        ]
        assert [hit.snippet[low:high] for hit in hits for low, high in hit.marks] == ["Dates", "dates", "dates"]
        assert {(hit.role, hit.turn_id) for hit in hits} == {
            ("session", ledger.session(f"s{n}").head) for n in (3, 0, 1)
        }
        assert [hit.session for hit in ledger.search_sessions("shop flaky")] == ["s0"]
        assert [hit.session for hit in ledger.search_sessions("dat", limit=1)] == ["s3"]
        assert [hit.session for hit in ledger.search_sessions("dates", project="shop")] == ["s0"]
        assert [hit.session for hit in ledger.search_sessions("dates", origin="weft")] == []
        assert [hit.session for hit in ledger.search_sessions("dates", role="user")] == []


@given(
    st.lists(st.text(st.sampled_from("abé日"), min_size=1, max_size=30), min_size=1, max_size=60), st.integers(0, 59)
)
def test_an_excerpt_begins_and_ends_at_words(words: list[str], place: int) -> None:
    wanted = min(place, len(words) - 1)
    text = " ".join(words)
    start = len(" ".join(words[:wanted])) + (1 if wanted else 0)
    span = (start, start + len(words[wanted]))
    shown, marks = snippet(TextMatch(EntryPlace.TEXT, text, [span]))
    assert shown[marks[0][0] : marks[0][1]] == words[wanted]
    pieces = shown.removeprefix("…").removesuffix("…").split()
    assert " ".join(pieces) in text
    assert set(pieces) <= set(words)
    assert len(shown) <= 202


def test_a_session_without_a_time_is_found_without_one_and_in_no_period() -> None:
    with weft.open(":memory:") as opened:
        take(opened, "undated", native_turn("hello"), file="u.jsonl", workspace="/src/shop", title="Flaky dates")
        (hit,) = opened.search_sessions("flaky")
        assert (hit.place, hit.time_known) == ("title", False)
        periods: tuple[dict[str, Any], ...] = (
            {"since": 0},
            {"until": "2099-01-01"},
            {"since": 0, "until": 0},
            {"until": 0},
        )
        for period in periods:
            assert opened.search_sessions("flaky", **period) == []
            assert opened.search("hello", **period) == []
        assert len(opened.search("hello")) == 1
