"""The scores of turns and threads, as pure functions."""

from collections.abc import Sequence

import pytest

from weft.ledger.api import QueryWord, RelatedTurn, RelatedTurns
from weft.runtime.invoke.message_routes import (
    HALF_LIFE_MS,
    HALVING_WORDS,
    confidence_of,
    length_factor,
    nearness,
    recency_of,
    score_threads,
)

NOW = 1_794_700_800_000
WORDS = (QueryWord("the", 0.5, 90), QueryWord("hover", 4.0, 2), QueryWord("demo", 3.0, 4))


def turn(
    name: str, said: Sequence[str], *, words: int = 20, session: str | None = "s", behind: int = 0, at: int = NOW
) -> RelatedTurn:
    return RelatedTurn(
        turn_id=name, at=at, session=session, session_title=None, head="head", is_alone_at_head=True,
        turns_behind=behind, is_head_of=None, said=tuple(said), said_words=words,
    )  # fmt: skip


def related(*turns: RelatedTurn) -> RelatedTurns:
    return RelatedTurns(words=WORDS, turns=turns)


def best(*turns: RelatedTurn, cosines: dict[str, float] | None = None) -> list[str]:
    return [thread.best.turn.turn_id for thread in score_threads(related(*turns), cosines or {}, NOW)]


def test_rare_words_count_most() -> None:
    assert best(turn("a", ["the", "demo"], session="a"), turn("b", ["hover"], session="b")) == ["b", "a"]


def test_a_turn_that_shares_nothing_is_no_candidate() -> None:
    assert best(turn("a", [])) == []
    assert confidence_of([]) == 0


def test_a_turn_stuffed_with_words_does_not_attract_everything() -> None:
    stuffed = turn("stuffed", ["the", "hover", "demo"], words=20_000, session="x")
    assert best(stuffed, turn("plain", ["hover"], session="y")) == ["plain", "stuffed"]
    assert score_threads(related(stuffed), {}, NOW)[0].score < 0.05


def test_the_longer_a_turn_is_the_less_its_words_count() -> None:
    factors = [length_factor(words) for words in (0, 10, HALVING_WORDS, 10_000)]
    assert factors == sorted(factors, reverse=True)
    assert factors[0] == 1
    assert factors[2] == 0.5


def test_the_words_of_other_turns_add_to_a_thread() -> None:
    whole = score_threads(related(turn("a", ["hover"]), turn("b", ["demo"], behind=3)), {}, NOW)
    alone = score_threads(related(turn("a", ["hover"])), {}, NOW)
    assert [len(thread.turns) for thread in whole] == [2]
    assert whole[0].score > alone[0].score
    assert whole[0].shared == ("hover", "demo")


def test_among_equals_what_is_newer_comes_first() -> None:
    old = turn("old", ["hover"], session="a", at=NOW - 10 * HALF_LIFE_MS)
    assert best(old, turn("new", ["hover"], session="b")) == ["new", "old"]
    assert best(old, turn("new", ["demo"], session="b")) == ["old", "new"]


def test_recency_is_halved_after_each_half_life() -> None:
    assert recency_of(NOW, NOW) == recency_of(NOW + 5, NOW) == 1
    assert recency_of(NOW - HALF_LIFE_MS, NOW) == pytest.approx(0.5)


def test_vectors_count_where_there_are_some() -> None:
    turns = turn("a", ["demo"], session="a"), turn("b", ["demo"], session="b")
    assert best(*turns, cosines={"b": 0.7}) == ["b", "a"]
    assert best(turn("c", [], session="c"), cosines={"c": 0.7}) == ["c"]
    assert nearness(None) == nearness(-1) == nearness(0.1) == 0
    assert nearness(0.99) == 1


def test_confidence_falls_the_nearer_the_next_thread_comes() -> None:
    first = turn("a", ["hover"], session="a")
    next_words: list[list[str]] = [[], ["the"], ["demo"], ["hover"]]
    sure = [confidence_of(score_threads(related(first, turn("b", some, session="b")), {}, NOW)) for some in next_words]
    assert sure == sorted(sure, reverse=True)
    assert len(set(sure)) == len(sure)
    assert sure[0] <= 1
    assert sure[-1] == 0


def test_every_score_is_between_0_and_1() -> None:
    every = related(*(turn(f"t{n}", [word.word for word in WORDS], words=n) for n in range(3)))
    for thread in score_threads(every, {"t0": 1.0}, NOW):
        assert 0 <= thread.score <= 1
