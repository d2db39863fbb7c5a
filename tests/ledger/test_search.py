"""Search finds what was said and done, by all its words, the newest first, and is never behind the ledger."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import weft
from tests.ledger.conftest import NOON, OpenLedger
from tests.ledger.histories import PROPERTY_SCALE, change, grow, problems
from tests.ledger.imported import native_turn, rich_import, take
from weft.kernel.clock import FixedClock
from weft.kernel.errors import InvalidInput, NotFound
from weft.ledger.api import SessionFilter
from weft.ledger.api.ledger import Ledger
from weft.ledger.read import search_index, search_matches
from weft.ledger.read.search_matches import Hit
from weft.store.testing import INJECTIONS

DAY = 86_400_000


@pytest.fixture(autouse=True)
def _always_indexed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small ledgers go through the index, too."""
    monkeypatch.setattr("weft.ledger.api.reading.INDEX_LAG_EVENTS", 0)


def said(hits: list[Hit]) -> list[str]:
    return [hit.snippet for hit in hits]


def found(ledger: Ledger, words: str, **filters: Any) -> list[str]:
    return said(ledger.search(words, **filters))


def call(name: str = "Bash", **more: Any) -> dict[str, Any]:
    return {"id": "c1", "name": name, "arguments": {}, **more}


def test_a_message_is_found_by_all_its_words_in_any_case(ledger: Ledger) -> None:
    grow(ledger, "main", "Where is the Config?", "where is my hat")
    assert found(ledger, "config WHERE") == ["re: Where is the Config?", "Where is the Config?"]
    assert found(ledger, "config hat") == []
    assert len(found(ledger, "where")) == 4


def test_the_newest_come_first_and_a_limit_cuts_the_oldest(ledger: Ledger, clock: FixedClock) -> None:
    for i in range(6):
        clock.sleep(1.0)
        ledger.record_turn(session=f"s{i % 3}", query=f"number {i}")
    assert found(ledger, "number") == [f"number {i}" for i in range(5, -1, -1)]
    assert found(ledger, "number", limit=2) == ["number 5", "number 4"]
    assert found(ledger, "number", limit=0) == []


@pytest.mark.parametrize("lag", [0, 1_000_000])
@pytest.mark.parametrize("words", ["ask", "as*", ""])
@pytest.mark.parametrize("few", [0, 2048])
def test_what_has_no_time_comes_last_on_every_page(
    ledger: Ledger, clock: FixedClock, monkeypatch: pytest.MonkeyPatch, lag: int, words: str, few: int
) -> None:
    monkeypatch.setattr("weft.ledger.api.reading.INDEX_LAG_EVENTS", lag)
    for name, value in (("FEW", few), ("STEP", 2), ("PROBED", 3)):
        monkeypatch.setattr(search_matches, name, value)
    dated: list[str] = []
    undated: list[str] = []
    for i in range(7):
        clock.sleep(60.0)
        take(ledger, f"undated {i}", native_turn(f"u{i}"), file=f"u{i}")
        take(ledger, f"dated {i}", native_turn(f"d{i}", started=NOON - i * DAY), file=f"d{i}")
        ledger.record_turn(session="main", query=f"ask m{i}")
        dated, undated = [f"m{i}", *dated, f"d{i}"], [f"u{i}", *undated]
    expected = [f"ask {key}" for key in (*dated, *undated)]
    assert found(ledger, words, role="user") == expected
    for limit in (1, 2, 5, 20):
        pages, after = [], None
        while True:
            page = ledger.search(words, role="user", limit=limit, after=after)
            pages += [(hit.snippet, hit.time_known) for hit in page]
            after = page.next
            if after is None:
                break
        assert pages == [(snippet, " u" not in snippet) for snippet in expected]


def test_a_cursor_of_another_form_is_refused(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    grow(ledger, "main", "number 1", "number 2")
    cursor = ledger.search("number", limit=1).next
    monkeypatch.setattr(search_matches, "PLACE_VALUES", 3)
    with pytest.raises(InvalidInput, match="cursor is of another form"):
        ledger.search("number", limit=1, after=cursor)


def test_a_phrase_stands_together(ledger: Ledger) -> None:
    ledger.record_turn(session="main", query="open the red door; the door is red")
    ledger.record_turn(session="main", query="red is the door")
    assert len(found(ledger, '"the red door"')) == 1
    assert len(found(ledger, '"red door')) == 1
    assert len(found(ledger, "red door")) == 2
    assert found(ledger, '"door red"') == []


def test_what_is_typed_without_a_space_is_a_phrase(ledger: Ledger) -> None:
    ledger.record_turn(session="main", query="call read_file(path) in src/app.py")
    ledger.record_turn(session="main", query="a file to read, an app in src, py")
    for words in ("read_file", "src/app.py", "read_file(path)", "read.file"):
        assert len(found(ledger, words)) == 1, words


def test_the_last_word_may_be_a_beginning(ledger: Ledger) -> None:
    ledger.record_turn(session="main", query="configuration of the cat")
    assert len(found(ledger, "conf")) == len(found(ledger, "cat config")) == 1
    assert found(ledger, "conf cat") == []
    assert len(found(ledger, "conf* cat")) == 1
    assert found(ledger, '"conf"') == found(ledger, "co") == []
    assert len(found(ledger, "co*")) == 1


def test_scripts_without_spaces_are_found_by_any_run_of_letters(ledger: Ledger) -> None:
    ledger.record_turn(session="main", query="東京都に行きました。한국어 문서")
    for words in ("東", "東京", "京都に", "行き", "た", "한국", "국어", "문서", "東京都 문서"):
        assert len(found(ledger, words)) == 1, words
    assert found(ledger, "京東") == found(ledger, "東都") == []


def test_thinking_tools_arguments_results_and_errors_are_searched(ledger: Ledger) -> None:
    answer = {"role": "assistant", "content": [weft.ReasoningPart("pondering"), weft.TextPart("spoken")]}
    ledger.record_turn(
        session="main",
        query="asked",
        response=answer,
        tool_calls=[
            call("make_tea", arguments={"leaf": "oolong", "cups": [2, 3]}, result="steeped\nwell"),
            {"id": "c2", "name": "Bash", "arguments": {}, "error": "kettle broke", "status": "error"},
        ],
    )
    places = {word: ledger.search(word) for word in ("asked", "pondering", "spoken", "tea", "oolong", "well", "kettle")}
    assert {word: [hit.place for hit in hits] for word, hits in places.items()} == {
        "asked": ["text"],
        "pondering": ["thinking"],
        "spoken": ["text"],
        "tea": ["tool"],
        "oolong": ["arguments"],
        "well": ["result"],
        "kettle": ["error"],
    }
    [hit] = ledger.search("make_tea oolong steeped")
    assert hit.tool == "make_tea"
    assert hit.tool_call_id == ledger.tool_calls("main")[0].id
    assert hit.turn_id == ledger.resolve("main")
    assert found(ledger, "oolong kettle") == []


def test_a_number_of_any_size_is_searched(ledger: Ledger) -> None:
    call = {"name": "count", "arguments": {"n": 10**30, "half": 0.5, "yes": True}, "result": -(2**70)}
    ledger.record_turn(session="main", query="how many", tool_calls=[call])
    for words in (f"{10**30}", f"{2**70}", "true"):
        assert [hit.place for hit in ledger.search(words)]


def test_a_call_names_the_message_that_made_it(ledger: Ledger) -> None:
    with ledger.begin_turn(session="main") as turn:
        turn.message("go")
        turn.request("m")
        made_by = turn.response("doing")
        turn.tool_call("run", id="c1", arguments={"command": "whoami"})
        turn.tool_result("c1", "nobody")
        turn.finish()
    [hit] = ledger.search("nobody")
    assert hit.message_id == ledger.tool_calls("main")[0].message_id
    assert made_by is None or hit.role == "assistant"
    assert hit.role == "assistant"


def test_a_summary_is_found(ledger: Ledger) -> None:
    grow(ledger, "main", "a")
    ledger.compactions.record(session="main", summary="they spoke of marmalade")
    [hit] = ledger.search("marmalade")
    assert (hit.place, hit.message_id, hit.turn_id) == ("summary", None, ledger.resolve("main"))


def test_marks_tell_where_the_words_stand(ledger: Ledger) -> None:
    ledger.record_turn(session="main", query="x " * 200 + "the RED\n\n  door, a red thing " + "y " * 200)
    [hit] = ledger.search('"red door" thing')
    assert [hit.snippet[low:high] for low, high in hit.marks] == ["RED door", "thing"]
    assert hit.snippet.startswith("…")
    assert hit.snippet.endswith("…")
    assert "\n" not in hit.snippet
    assert len(hit.snippet) < 300


@pytest.mark.parametrize(
    ("filters", "expected"),
    [
        ({"role": "user"}, ["fix two", "fix one"]),
        ({"role": "assistant", "since": NOON + DAY}, ["fix done"]),
        ({"tool": "bash"}, ["fix done"]),
        ({"tool": "github"}, []),
        ({"model": "sonnet-4"}, ["fix done", "fix two"]),
        ({"model": "opus"}, ["fix one"]),
        ({"session": "two"}, ["fix done", "fix two"]),
        ({"until": NOON + DAY - 1}, ["fix one"]),
        ({"since": NOON + DAY}, ["fix done", "fix two"]),
        ({"since": NOON + 3 * DAY}, []),
        ({"since": NOON, "until": NOON + 1000}, ["fix one"]),
        ({"project": "Shop"}, ["fix done", "fix two"]),
        ({"project": "/home/ann/shop/"}, ["fix done", "fix two"]),
        ({"project": "ann"}, []),
        ({"origin": "weft"}, ["fix done", "fix two", "fix one"]),
        ({"origin": "codex"}, []),
        ({"path": "src/cart.py"}, ["fix done", "fix two"]),
        ({"path": "cart"}, ["fix done", "fix two"]),
        ({"path": "art.py"}, []),
    ],
)
def test_filters_narrow_a_search(
    ledger: Ledger, clock: FixedClock, filters: dict[str, Any], expected: list[str]
) -> None:
    ledger.record_turn(session="one", query="fix one", model="claude-opus-4")
    clock.sleep(DAY / 1000)
    note = {"content": "fix two", "files": [{"kind": "read", "path": "/home/ann/shop/src/cart.py"}]}
    made = call(arguments={"file": "src/cart.py"}, result="fix done")
    ledger.record_turn(
        session="two", query=note, model="claude-sonnet-4-5", workspace="/home/ann/shop", tool_calls=[made]
    )
    assert found(ledger, "fix", **filters) == expected


def test_a_session_holds_its_whole_thread_and_what_it_left(ledger: Ledger) -> None:
    first, second = grow(ledger, "main", "apple one", "apple two")
    ledger.fork(first, label="alt")
    grow(ledger, "alt", "apple three")
    ledger.move_head("main", new=first)
    grow(ledger, "other", "apple four")
    assert {hit.turn_id for hit in ledger.search("apple", session="alt", role="user")} == {
        first,
        ledger.resolve("alt"),
    }
    assert {hit.turn_id for hit in ledger.search("apple", session="main", role="user")} == {first, second}
    with pytest.raises(NotFound):
        ledger.search("apple", session="nowhere")


def test_hits_name_their_sessions(ledger: Ledger) -> None:
    grow(ledger, "main", "unique")
    ledger.fork("main", label="alt")
    hit = ledger.search("unique", role="user")[0]
    assert (hit.session, hit.session_status, hit.heads) == ("main", "active", ("alt", "main"))
    ledger.labels.archive("main")
    hit = ledger.search("unique", role="user")[0]
    assert (hit.session, hit.session_status, hit.heads) == ("main", "archived", ("alt",))


def test_filters_alone_list_what_fits(ledger: Ledger) -> None:
    grow(ledger, "main", "a", "b")
    assert found(ledger, "", role="user") == ["b", "a"]
    assert found(ledger, "", session="main", limit=1) == ["re: b"]


def test_a_query_without_anything_to_find_is_refused(ledger: Ledger) -> None:
    for words in ("", "  ", "!?", '""'):
        with pytest.raises(InvalidInput, match="nothing to search for"):
            ledger.search(words)
    odd: list[tuple[str, dict[str, Any]]] = [
        ("x" * 65, {}),
        ("a " * 65, {}),
        ("a", {"role": "king"}),
        ("a", {"role": ["user"]}),
        ("a", {"rank": "best"}),
        ("a", {"tool": "…"}),
        ("a", {"since": 1.5}),
        ("a", {"until": "one day"}),
        ("a", {"limit": -1}),
    ]
    for words, options in odd:
        with pytest.raises(InvalidInput):
            ledger.search(words, **options)
    with pytest.raises(TypeError, match="colour"):
        ledger.search("a", colour="red")  # type: ignore[call-arg]


@pytest.mark.parametrize("text", INJECTIONS)
def test_whatever_is_typed_is_only_ever_words(ledger: Ledger, text: str) -> None:
    ledger.record_turn(session="main", query=f"before {text} after")
    for words in (f"before {text} after", f'"before {text} after"', f"{text} after", f"after {text}"):
        assert len(found(ledger, words)) == 1, words
    assert problems(ledger) == []


# --- keeping up -------------------------------------------------------------------------------------------------


def test_a_turn_is_found_while_it_grows(ledger: Ledger) -> None:
    turn = ledger.begin_turn(session="main")
    turn.message("first words")
    assert found(ledger, "words") == ["first words"]
    turn.message("more words")
    assert found(ledger, "words") == ["more words", "first words"]
    turn.finish()
    assert found(ledger, "words") == ["more words", "first words"]
    assert problems(ledger) == []


def test_a_late_result_is_found(ledger: Ledger) -> None:
    with ledger.begin_turn(session="main") as turn:
        turn.tool_call("slow", id="c1")
        turn.interrupt("timeout")
    assert found(ledger, "finally") == []
    ledger.record_late_result("main", "c1", "finally there")
    assert found(ledger, "finally") == ["finally there"]
    assert problems(ledger) == []


def test_only_the_current_version_of_an_imported_turn_is_found(ledger: Ledger) -> None:
    take(ledger, "s", native_turn("a", "old answer", started=NOON))
    assert len(found(ledger, "answer")) == 1
    take(ledger, "s", native_turn("a", "new answer", started=NOON), reread=True)
    assert found(ledger, "answer") == ["new answer"]
    assert problems(ledger) == []


def test_an_imported_turn_is_found_at_its_own_time(ledger: Ledger, clock: FixedClock) -> None:
    grow(ledger, "main", "ask here")
    take(ledger, "s", native_turn("old", started=NOON - 9 * DAY), native_turn("older", started=NOON - 10 * DAY))
    assert found(ledger, "ask", role="user") == ["ask here", "ask old", "ask older"]
    assert found(ledger, "ask", until=NOON - 9 * DAY - 1) == ["ask older"]
    assert found(ledger, "ask", origin="toy", path="notes.md") == []
    assert found(ledger, "yes", origin="toy", path="notes.md") == ["yes", "yes"]


def test_what_was_said_before_1970_is_found_by_its_time(ledger: Ledger, clock: FixedClock) -> None:
    take(ledger, "main", native_turn("t1", answer="long ago", started=-5 * DAY, end=5))
    take(ledger, "other", native_turn("t2", answer="lately", started=NOON, end=5), file="b.jsonl")
    for _ in range(2):
        assert found(ledger, "ago", since=-6 * DAY, until=-4 * DAY) == ["long ago"]
        assert found(ledger, "", since=-6 * DAY, until=0, role="assistant") == ["long ago"]
        assert found(ledger, "ago", since=-4 * DAY, until=DAY) == []
        assert problems(ledger) == []
        ledger.upkeep.catch_up()


def test_an_index_that_lags_makes_no_difference(open_ledger: OpenLedger, clock: FixedClock) -> None:
    """A ledger that is read only cannot catch up; it looks through the rest by itself."""
    writer = open_ledger()
    grow(writer, "main", "old word")
    writer.upkeep.catch_up()
    grow(writer, "main", "new word")
    with writer.begin_turn(session="other") as turn:
        turn.message("open word")
        with open_ledger(read_only=True) as reader:
            before = found(reader, "word", role="user")
            assert search_index.lag_of(reader._store) > 0
        assert before == found(writer, "word", role="user") == ["open word", "new word", "old word"]
        turn.finish()


def test_a_ledger_that_is_closed_leaves_no_long_lag(open_ledger: OpenLedger, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("weft.ledger.read.search_index.LARGE_LAG_EVENTS", 5)
    with open_ledger() as ledger:
        grow(ledger, "main", "a", "b")
    with open_ledger(read_only=True) as ledger:
        assert search_index.lag_of(ledger._store) == 0
        assert len(found(ledger, "a")) == 2


def rich(ledger: Ledger, clock: FixedClock) -> None:
    rich_import(ledger)
    for i in range(40):
        clock.sleep(3_000.0)
        word = "odd" if i % 2 else "even"
        made = call(arguments={"n": i}, result=f"{word} result {i}")
        ledger.record_turn(session=f"s{i % 3}", query=f"{word} question {i}", response="fine", tool_calls=[made])


def test_much_that_fits_is_found_in_the_same_order(
    ledger: Ledger, clock: FixedClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where an index gives too much to be looked up one by one, it is asked for one stretch of time after another."""
    rich(ledger, clock)
    asked: list[Callable[[], list[str]]] = [
        lambda: found(ledger, "odd"),
        lambda: found(ledger, "question", limit=7),
        lambda: found(ledger, "even resu", until=NOON + DAY),
        lambda: found(ledger, "question", since=NOON + DAY // 2, session="s1"),
    ]
    few = [ask() for ask in asked]
    monkeypatch.setattr(search_matches, "FEW", 1)
    monkeypatch.setattr(search_matches, "STEP", 4)
    monkeypatch.setattr(search_matches, "PROBED", 3)
    assert [ask() for ask in asked] == few
    assert all(few)
    assert len(few[0]) == 40


def test_ranking_finds_the_same(ledger: Ledger, clock: FixedClock) -> None:
    rich(ledger, clock)
    for words in ("odd", "even question", "resu"):
        ranked = ledger.search(words, rank=True)
        assert sorted(said(ranked)) == sorted(found(ledger, words))
    assert len(ledger.search("odd", rank=True, limit=3)) == 3


@pytest.mark.parametrize("filters", [{"since": NOON + DAY // 2}, {"until": NOON + DAY}, {"role": "user"}])
def test_ranking_finds_the_same_where_more_fits_than_is_ranked(
    ledger: Ledger, clock: FixedClock, monkeypatch: pytest.MonkeyPatch, filters: dict[str, Any]
) -> None:
    rich(ledger, clock)
    ledger.upkeep.catch_up()
    monkeypatch.setattr(search_matches, "RANKED", 1)
    for words in ("odd", '"even question"', "question 3", ""):
        assert sorted(said(ledger.search(words, rank=True, **filters))) == sorted(found(ledger, words, **filters))


def test_search_looks_into_the_first_mebibyte_of_a_text(ledger: Ledger) -> None:
    ledger.record_turn(session="main", query="head " + "x " * 600_000 + "tail")
    assert len(found(ledger, "head")) == 1
    assert found(ledger, "tail") == []
    ledger.record_turn(session="main", query=b"bytes \xff\xfe words".decode("utf-8", "surrogateescape"))
    assert len(found(ledger, "bytes words")) == 1


def test_a_turn_of_many_messages_is_found_in_each_of_them(ledger: Ledger) -> None:
    answers = [{"role": "assistant", "content": f"answer common {i}"} for i in range(50)]
    loose = [call(id=f"c{i}", arguments={"text": f"common argument {i}"}) for i in range(30)]
    ledger.record_turn(session="main", query="ask", response=answers, tool_calls=loose)
    for lagging in (True, False):
        assert len(found(ledger, "answer")) == 50, lagging
        assert len(set(found(ledger, "argument"))) == 30
        assert found(ledger, "answer 37") == ["answer common 37"]
        ledger.upkeep.catch_up()
    assert problems(ledger) == []


# --- verified and made anew ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "harm",
    [
        "DELETE FROM passage WHERE n = 2",
        "UPDATE passage SET at = at + 1 WHERE n = 2",
        "UPDATE passage SET turn = 999999 WHERE n = 2",
        "DELETE FROM word WHERE rowid = 2",
        "INSERT INTO word(rowid, words) VALUES (777, 'ghost')",
        "INSERT INTO passage(n, turn, first, last, at) VALUES (777, 888888, 0, 0, 0)",
    ],
)
def test_a_wrong_index_is_noticed_and_made_anew(disk: Ledger, path: Path, harm: str) -> None:
    grow(disk, "main", "a few", "words here")
    disk.upkeep.catch_up()
    assert problems(disk) == []
    assert change(path, harm) > 0
    assert problems(disk) != []
    assert disk.upkeep.rebuild() > 0
    assert problems(disk) == []
    assert disk.upkeep.rebuild() == 0
    assert len(found(disk, "words")) == 2


# --- against a plain reading of everything ----------------------------------------------------------------------

WORDS = st.sampled_from(["cat", "Cats", "dog", "dot", "日本", "本", "é", "snake_case", "snake", "case", "x.y", "42"])
PHRASES = st.lists(WORDS, min_size=1, max_size=3).map(" ".join)


@st.composite
def histories(draw: st.DrawFn) -> list[dict[str, Any]]:
    turns = []
    for i in range(draw(st.integers(1, 6))):
        made = [
            call(
                id=f"c{k}", name=draw(st.sampled_from(["Cat", "Dog"])), arguments=[draw(PHRASES)], result=draw(PHRASES)
            )
            for k in range(draw(st.integers(0, 2)))
        ]
        turns.append(
            {
                "session": draw(st.sampled_from(["a", "b"])),
                "query": draw(PHRASES),
                "response": draw(PHRASES),
                "tool_calls": made,
                "gap": draw(st.sampled_from([0, 1, 50_000])),
                "number": i,
            }
        )
    return turns


def entries(ledger: Ledger) -> Iterator[tuple[str, str | None, str, str]]:
    """Everything that there is to find: message, call, role, text."""
    for turn in ledger.log():
        for message in ledger.messages(turn.id):
            yield message.id, None, message.role, message.text
        for each in ledger.tool_calls(turn.id):
            yield each.message_id or "", each.id, "assistant", f"{each.name}\n{each.arguments[0]}\n{each.result}"


def fits_plainly(text: str, words: list[str]) -> bool:
    """Told by hand for the few words above: each stands whole, among what is no letter, the last as a beginning."""
    folded = text.casefold()
    for i, word in enumerate(words):
        wanted, last = word.casefold(), i == len(words) - 1
        pieces = "".join(c if c.isalnum() else " " for c in folded).split()
        parts = "".join(c if c.isalnum() else " " for c in wanted).split()
        if wanted in ("日本", "本"):
            if wanted not in folded:
                return False
        elif not any(
            all(
                piece == part or (last and k == len(parts) - 1 and len(part) >= 3 and piece.startswith(part))
                for k, (piece, part) in enumerate(zip(pieces[at:], parts, strict=False))
            )
            and len(pieces) - at >= len(parts)
            for at in range(len(pieces))
        ):
            return False
    return True


@settings(max_examples=9 * PROPERTY_SCALE)
@given(histories(), st.lists(WORDS, min_size=1, max_size=2), st.booleans())
def test_search_finds_what_a_plain_reading_finds(
    turns: list[dict[str, Any]], words: list[str], caught_up: bool
) -> None:
    clock = FixedClock(NOON)
    with weft.open(":memory:", clock=clock) as ledger:
        for turn in turns:
            clock.sleep(turn.pop("gap"))
            turn.pop("number")
            ledger.record_turn(**turn)
            if caught_up:
                ledger.upkeep.catch_up()
        plain = {(message, id) for message, id, _, text in entries(ledger) if fits_plainly(text, words)}
        hits = ledger.search(" ".join(words))
        assert {(hit.message_id or "", hit.tool_call_id) for hit in hits} == plain
        assert len(hits) == len(plain)
        assert [hit.created_at for hit in hits] == sorted((hit.created_at for hit in hits), reverse=True)
        assert problems(ledger) == []


def test_a_day_means_all_of_it(ledger: Ledger, clock: FixedClock) -> None:
    """As in reports; NOON is the beginning of 2026-11-15."""
    for at in (NOON - 1, NOON, NOON + DAY - 1, NOON + DAY):
        take(ledger, f"s{at}", native_turn(f"at {at}", started=at), file=f"{at}.jsonl", title="at a time")
    whole = [f"ask at {NOON + DAY - 1}", f"ask at {NOON}"]
    clock.tick(DAY + 5_000)
    for day in ("2026-11-15", "yesterday", " Yesterday "):
        assert found(ledger, "at", role="user", since=day, until=day) == whole
        assert len(ledger.find_messages(role="user", since=day, until=day)) == 2
        assert len(ledger.find_turns(since=day, until=day)) == 2
        assert len(ledger.search_sessions("time", since=day, until=day)) == 2
        assert len(ledger.find_sessions(since=day)) == 3
        assert len(ledger.listing().sessions(SessionFilter(every=True, since=day)).sessions) == 3
    assert found(ledger, "at", role="user", since="today") == [f"ask at {NOON + DAY}"]
    assert len(found(ledger, "at", role="user", until="2026-11-15 00:00")) == 2


def test_what_has_no_time_is_in_no_period(ledger: Ledger, clock: FixedClock) -> None:
    take(ledger, "undated", native_turn("lost"), file="u.jsonl")
    take(ledger, "dated", native_turn("kept", started=NOON), file="d.jsonl")
    for _ in range(2):
        assert found(ledger, "ask", role="user", since=0) == ["ask kept"]
        assert found(ledger, "ask", role="user", until="2099-01-01") == ["ask kept"]
        assert found(ledger, "ask", role="user", since=NOON - DAY, until=NOON + DAY) == ["ask kept"]
        assert found(ledger, "ask", role="user") == ["ask kept", "ask lost"]
        ledger.upkeep.catch_up()
