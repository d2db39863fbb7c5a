"""Routes of texts over a ledger whose answers are known."""

import asyncio
from collections.abc import Iterator, Mapping

import pytest

import weft
from weft.aio.crossing import Pool
from weft.kernel.clock import FixedClock
from weft.kernel.errors import InvalidInput
from weft.ledger.api import Ledger
from weft.programs import Programs
from weft.runtime.invoke.message_routes import LEFT_BEHIND_TURNS, RouteChoice, choose_route, find_route

NOON = 1_794_700_800_000
HOUR = 3_600_000
THREADS = {
    "hover": ("make the scramble hover demo tasteful", "it fades in now", "the hover colours are too bright"),
    "docker": ("why does the flutter docker image fail to build", "the java layer is missing"),
    "pasta": ("how long do I boil fresh pasta", "and the sauce with basil"),
}


@pytest.fixture
def clock() -> FixedClock:
    return FixedClock(NOON)


@pytest.fixture
def ledger(clock: FixedClock) -> Iterator[Ledger]:
    with weft.open(":memory:", clock=clock) as opened:
        for label, texts in THREADS.items():
            for text in texts:
                opened.record_turn(session=label, query=text, response="very well")
        yield opened


def route(ledger: Ledger, text: str, cosines: Mapping[str, float] | None = None, **options: float) -> RouteChoice:
    related = ledger.related_turns(text, also=tuple(cosines or ()))
    return choose_route(related, cosines or {}, now_ms=NOON + HOUR, fallback="main", **options)  # type: ignore[arg-type]


def test_a_text_goes_to_the_head_of_the_thread_that_it_belongs_to(ledger: Ledger) -> None:
    choice = route(ledger, "the scramble demo is not tasteful yet")
    assert choice.turn == ledger.session("hover").head
    assert (choice.session, choice.thread_session, choice.fallback) == ("hover", "hover", None)
    assert choice.confidence >= choice.threshold
    assert choice.reasons[0].startswith("shares the words ")
    assert all(word in choice.reasons[0] for word in ("scramble", "demo", "tasteful"))
    assert "by words alone" in " ".join(choice.reasons)
    assert choice.reasons[-1] == "last matching turn 1 h ago"


def test_a_text_that_belongs_nowhere_is_not_routed(ledger: Ledger) -> None:
    for text in ("when does the ferry to Hvar leave on sunday", "xylophone", "?!"):
        choice = route(ledger, text)
        assert (choice.turn, choice.session, choice.fallback) == (None, None, "main")
        assert choice.reasons
    assert "no turn holds" in " ".join(route(ledger, "the ferry to Hvar").reasons)
    assert route(ledger, "xylophone").reasons == ("no turn that can be read shares a word with the text",)


def test_the_threshold_decides_and_what_came_near_is_told(ledger: Ledger) -> None:
    text = "is the java layer of the hover demo fresh"
    bold, shy = route(ledger, text, threshold=0), route(ledger, text, threshold=1)
    assert bold.turn is not None
    assert shy.turn is None
    assert shy.alternatives[0].turn == bold.turn
    assert {option.thread_session for option in shy.alternatives} == {"hover", "docker", "pasta"}
    assert bold.turn not in {option.turn for option in bold.alternatives}
    assert len(route(ledger, text, limit=1).alternatives) == 1
    assert route(ledger, text, limit=0, threshold=1).alternatives == ()


def test_two_threads_that_fit_equally_well_are_not_chosen_between(ledger: Ledger) -> None:
    ledger.record_turn(session="hover two", query=THREADS["hover"][0], response="very well")
    choice = route(ledger, "scramble hover demo tasteful")
    assert choice.turn is None
    assert "several threads fit about equally well" in choice.reasons


def test_a_turn_that_its_session_left_behind_is_forked_from(ledger: Ledger) -> None:
    turn = ledger.record_turn(session="long", query="calibrate the spectrometer with olive oil", response="done").id
    for number in range(LEFT_BEHIND_TURNS + 1):
        ledger.record_turn(session="long", query=f"chapter {number} of the novel", response="done")
    choice = route(ledger, "calibrate the olive oil spectrometer")
    assert (choice.turn, choice.session, choice.thread_session) == (turn, None, "long")
    assert "a message forks here" in choice.reasons[-1]
    ledger.record_turn(session="long", query="the spectrometer and its olive oil", response="done")
    again = route(ledger, "calibrate the olive oil spectrometer")
    assert (again.turn, again.session) == (ledger.session("long").head, "long")


def test_where_several_sessions_stand_at_the_head_none_is_named(ledger: Ledger) -> None:
    ledger.fork("pasta", label="other")
    choice = route(ledger, "boil fresh pasta")
    assert (choice.turn, choice.session) == (ledger.session("pasta").head, None)


def test_a_turn_stuffed_with_words_attracts_nothing(ledger: Ledger) -> None:
    words = " ".join(f"word{number}" for number in range(5_000))
    stuffing = " ".join(text for texts in THREADS.values() for text in texts)
    ledger.record_turn(session="trap", query=f"{stuffing} {words}", response="yes")
    for label, text in (("hover", "the scramble demo tasteful"), ("docker", "flutter docker image fail to build")):
        choice = route(ledger, text)
        assert choice.thread_session == label
        assert all(option.score < 0.1 for option in choice.alternatives if option.thread_session == "trap")


def test_meaning_counts_where_there_are_vectors(ledger: Ledger) -> None:
    head = ledger.session("pasta").head
    assert head is not None
    choice = route(ledger, "spaghetti", {head: 0.8})
    assert (choice.session, choice.by_vectors) == ("pasta", True)
    assert "its meaning is near: cosine 0.80" in choice.reasons
    assert route(ledger, "spaghetti").turn is None


def test_whoever_may_not_read_a_thread_is_neither_routed_to_it_nor_told_of_it(ledger: Ledger) -> None:
    Programs(ledger).create("agent", "eve", {"permissions": {"programs": ["session:read(pasta)"]}})
    eve = ledger.acting_as("eve")
    hidden = ledger.session("hover").head
    assert hidden is not None
    before = route(eve, "the scramble hover demo is tasteful, fresh pasta")
    assert {before.thread_session, *(option.thread_session for option in before.alternatives)} <= {"pasta", None}
    stuffed = route(eve, "scramble hover demo", {hidden: 0.99}, threshold=0)
    assert (stuffed.turn, stuffed.alternatives) == (None, ())
    ledger.record_turn(session="hover", query="scramble hover demo tasteful fresh pasta", response="very well")
    assert route(eve, "the scramble hover demo is tasteful, fresh pasta") == before


def test_an_empty_ledger_routes_nowhere() -> None:
    with weft.open(":memory:") as empty:
        assert route(empty, "anything").turn is None


def test_find_route_asks_for_the_nearest_turns_first(ledger: Ledger) -> None:
    head = ledger.session("pasta").head
    assert head is not None
    asked: list[str] = []

    async def nearest(text: str) -> Mapping[str, float]:
        asked.append(text)
        return {head: 0.8}

    async def ask() -> tuple[RouteChoice, RouteChoice]:
        from weft.aio.ledger import AsyncLedger

        opened = AsyncLedger(ledger, pool)
        near = await find_route(opened, "spaghetti", now_ms=NOON, nearest=nearest)
        return near, await find_route(opened, "boil fresh pasta", now_ms=NOON)

    pool = Pool()
    near, by_words = asyncio.run(ask())
    assert (near.session, by_words.session, asked) == ("pasta", "pasta", ["spaghetti"])
    for text, options in (("  ", {}), ("a", {"threshold": 2.0}), ("a", {"limit": -1})):
        with pytest.raises(InvalidInput):
            asyncio.run(find_route(AsyncNothing(), text, now_ms=NOON, **options))  # type: ignore[arg-type]


class AsyncNothing:
    """Is never asked: the arguments are refused before."""
