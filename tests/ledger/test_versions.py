"""Versions of imported turns: they share what was said, and no session moves to one without a row of its history."""

import random
from typing import Any

import msgspec
import pytest

import weft
from tests.ledger.histories import exported, import_into, problems
from tests.ledger.imported import take
from weft import Ledger
from weft.kernel.enums import MessageRole
from weft.ledger.imports.imported_turns import NativeMessage, NativeTurn
from weft.ledger.model import TextPart

SHORT, RANDOM = "msg-001", "5f0c1f8e-2d1b-4a55-9c3e-8b7f6a1d2e90"
MOVED_SILENTLY = """
    SELECT s.label FROM sessions s WHERE COALESCE(s.thread_id, '') <> COALESCE(
        (SELECT h.thread_id FROM session_history h WHERE h.session_id = s.id ORDER BY h.k DESC LIMIT 1), '')"""
SHARED_KEYS = """
    SELECT h.thread_key FROM threads h JOIN turns t ON t.id = h.turn_id
    WHERE t.is_current = 1 AND h.thread_key IS NOT NULL GROUP BY h.thread_key HAVING count(*) > 1"""


def said(key: str, prompt: str, *answers: str, **more: Any) -> NativeTurn:
    """A turn that consists of these texts."""
    texts = [(MessageRole.USER, prompt), *((MessageRole.ASSISTANT, answer) for answer in answers)]
    items = tuple(NativeMessage(role=role, parts=(TextPart(text),)) for role, text in texts)
    return NativeTurn(key=key, records=(msgspec.json.encode([key, prompt, *answers]),), items=items, **more)


def prompts(ledger: Ledger) -> list[str]:
    """Of the turns that are current, in order of the alphabet."""
    return sorted(ledger.messages(turn.id)[0].text for turn in ledger.log(limit=1000))


def head(ledger: Ledger, session: str) -> str:
    return str(ledger.session(session).head)


def answers(ledger: Ledger, session: str) -> list[str]:
    return [message.text for message in ledger.messages(head(ledger, session))][1:]


def silent_moves(ledger: Ledger) -> list[Any]:
    """Sessions that stand elsewhere than the last row of their history says, and thread keys that two turns have; by
    the readable views alone."""
    with ledger._store.read() as txn:
        return [*txn.sql.fetch_rows(MOVED_SILENTLY), *txn.sql.fetch_rows(SHARED_KEYS)]


def test_turns_that_share_only_an_id_are_not_versions(ledger: Ledger) -> None:
    for key in (SHORT, "m1", "a1b2c3d4", RANDOM):
        one, two = f"{key}/one", f"{key}/two"
        take(ledger, one, said(key, "fix the parser", "done", end=1), file=one)
        take(ledger, two, said(key, "write a poem", "roses", end=1), file=two)
        assert answers(ledger, one) == ["done"]
        assert answers(ledger, two) == ["roses"]
    assert prompts(ledger) == ["fix the parser"] * 4 + ["write a poem"] * 4
    assert len(list(ledger.search("parser"))) == 4


def test_sessions_that_begin_with_the_same_words_under_one_id_stay_two(ledger: Ledger) -> None:
    take(ledger, "one", said("m1", "hello", "how can I help?", end=1), file="one")
    take(ledger, "two", said("m1", "hello", "good morning", end=1), file="two")
    assert prompts(ledger) == ["hello", "hello"]
    assert answers(ledger, "one") == ["how can I help?"]
    assert answers(ledger, "two") == ["good morning"]


@pytest.mark.parametrize("longer_first", [False, True])
def test_a_turn_that_has_grown_elsewhere_is_a_version(ledger: Ledger, longer_first: bool) -> None:
    files = [("one", said(SHORT, "go on", "first", end=1)), ("two", said(SHORT, "go on", "first", "second", end=2))]
    for session, turn in files[::-1] if longer_first else files:
        take(ledger, session, turn, file=session)
    assert prompts(ledger) == ["go on"]
    assert answers(ledger, "one") == answers(ledger, "two") == ["first", "second"]
    assert silent_moves(ledger) == []


def test_another_answer_at_the_same_place_is_a_version(ledger: Ledger) -> None:
    root = said("m1", "begin", "begun", end=1)
    take(ledger, "one", root, said("m2", "go on", "this way", parent=0, offset=1, end=2), file="one")
    take(ledger, "two", root, said("m2", "go on", "that way, and on", "more", parent=0, offset=1, end=3), file="two")
    assert prompts(ledger) == ["begin", "go on"]
    assert answers(ledger, "one") == ["that way, and on", "more"]


def test_an_import_tells_in_which_session_other_words_took_the_place_of_an_answer(ledger: Ledger) -> None:
    root, answer = said("m1", "begin", "begun", end=1), said("m2", "go on", "this way", parent=0, offset=1, end=2)
    assert take(ledger, "one", root, answer, file="one").replaced_in == {}
    grown = said("m2", "go on", "this way", "and on", parent=0, offset=1, end=3)
    counts = take(ledger, "one", root, grown, file="again")
    assert (counts.superseded, counts.replaced_in) == (0, {})
    other = said("m2", "go on", "that way", "a bit", "further", parent=0, offset=1, end=4)
    counts = take(ledger, "one", root, other, file="stranger")
    assert (counts.turns, counts.superseded, counts.replaced_in) == (1, 1, {"one": 1})
    assert answers(ledger, "one") == ["that way", "a bit", "further"]
    counts = take(ledger, "one", root, other, file="stranger", reread=True)
    assert (counts.superseded, counts.replaced_in) == (0, {})


def test_an_import_tells_in_which_session_a_source_was_rewritten(ledger: Ledger) -> None:
    take(ledger, "one", said("m1", "begin", "begun", end=1))
    counts = take(ledger, "one", said("m1", "begin", "begun", "and on", end=2), reread=True)
    assert (counts.superseded, counts.replaced_in) == (1, {})
    counts = take(ledger, "one", said("m1", "begin", "ended", end=2), reread=True)
    assert (counts.superseded, counts.replaced_in) == (1, {"one": 1})
    assert answers(ledger, "one") == ["ended"]


def test_first_turns_of_one_session_with_other_answers_are_told(ledger: Ledger) -> None:
    take(ledger, "one", said("m1", "begin", "this way", end=1), file="one")
    counts = take(ledger, "one", said("m1", "begin", "that way", end=2), file="stranger")
    assert (counts.superseded, counts.replaced_in) == (1, {"one": 1})
    assert answers(ledger, "one") == ["that way"]
    counts = take(ledger, "one", said("m1", "something else", "that way", end=3), file="unrelated")
    assert (counts.superseded, counts.replaced_in) == (0, {})


def test_an_import_tells_of_an_answer_that_came_and_is_not_shown(ledger: Ledger) -> None:
    root = said("m1", "begin", "begun", end=1)
    take(ledger, "one", root, said("m2", "go on", "this way", "and on", parent=0, offset=1, end=2), file="one")
    counts = take(ledger, "two", root, said("m2", "go on", "that way", parent=0, offset=1, end=2), file="two")
    assert (counts.turns, counts.superseded, counts.replaced_in) == (1, 0, {"two": 1})
    assert answers(ledger, "two") == ["this way", "and on"]


def test_a_source_that_is_read_again_replaces_its_words(ledger: Ledger) -> None:
    take(ledger, "one", said("m1", "helo", "hi", end=1))
    take(ledger, "two", said("m1", "write a poem", "roses", end=1), file="two")
    assert take(ledger, "one", said("m1", "hello", "hi", end=1), reread=True).superseded == 1
    assert prompts(ledger) == ["hello", "write a poem"]
    assert silent_moves(ledger) == []


def test_a_newer_mapping_replaces_no_turn_of_other_words(ledger: Ledger) -> None:
    take(ledger, "one", said("m1", "fix the parser", "done", end=1), file="one")
    take(ledger, "two", said("m1", "write a poem", "roses", end=1), file="two")
    counts = take(ledger, "two", said("m1", "write a poem", "roses", end=1), file="two", mapping=2, remap=True)
    assert counts.superseded == 1
    assert prompts(ledger) == ["fix the parser", "write a poem"]


def test_what_was_erased_keeps_out_only_what_tells_the_same(disk: Ledger) -> None:
    take(disk, "one", said("m1", "my secret", "hush", end=1), file="one")
    disk.erasure.erase(head(disk, "one"), reason="a secret")
    assert take(disk, "two", said("m1", "write a poem", "roses", end=1), file="two").erased == 0
    assert take(disk, "three", said("m1", "my secret", "hush", "psst", end=1), file="three").erased == 1
    assert take(disk, "one", said("m1", "my secret!", "hush", end=1), file="one", reread=True).erased == 1


def test_one_event_that_moves_several_sessions_tells_each_of_them(ledger: Ledger) -> None:
    short, sessions = said("m1", "go on", "first", end=1), ["a", "b", "c"]
    for session in sessions:
        take(ledger, session, short, file=session)
    take(ledger, "d", said("m1", "go on", "first", "second", end=2), file="d")
    assert {head(ledger, session) for session in sessions} == {head(ledger, "d")}
    assert [len(ledger.reflog(session)) for session in sessions] == [2, 2, 2]
    assert silent_moves(ledger) == []
    assert problems(ledger) == []


def test_turns_beside_the_thread_of_a_session_share_no_thread_key(ledger: Ledger) -> None:
    """Fragments of a session: each file has a root of its own, and none leads to another."""
    for number, end in enumerate((9, 5, 7)):
        take(ledger, "one", said(f"m{number}", f"part {number}", "yes", end=end), file=str(number))
    assert len(prompts(ledger)) == 3
    assert silent_moves(ledger) == []


@pytest.mark.parametrize("seed", range(4))
def test_no_head_moves_without_a_row_and_no_key_is_shared(seed: int) -> None:
    """Whatever is imported, read again, rewritten, copied, or comes from another ledger."""
    chance = random.Random(seed)
    with weft.open(":memory:") as one, weft.open(":memory:") as two:
        two.imports.share_with(one)
        read: dict[Ledger, set[str]] = {one: set(), two: set()}
        for _ in range(12):
            ledger, session = chance.choice((one, two)), chance.choice("abc")
            turns = _random_turns(chance)
            take(ledger, session, *turns, file=session, reread=session in read[ledger])
            read[ledger].add(session)
            if chance.random() < 0.3:
                source, target = chance.sample((one, two), 2)
                import_into(target, exported(source))
            assert silent_moves(one) == silent_moves(two) == []
        import_into(two, exported(one))
        import_into(one, exported(two))
        assert {turn.id for turn in one.log(limit=1000)} == {turn.id for turn in two.log(limit=1000)}
        assert problems(one) == problems(two) == []


def _random_turns(chance: random.Random) -> list[NativeTurn]:
    turns: list[NativeTurn] = []
    for number in range(chance.randint(1, 3)):
        words = [chance.choice(("yes", "no")) for _ in range(chance.randint(0, 2))]
        parent = chance.choice((None, *range(number))) if number else None
        prompt = chance.choice(("hello", "go on"))
        turns.append(said(f"m{number}", prompt, *words, parent=parent, offset=number, end=number + 1))
    return turns


def test_plain_sql_names_the_version_that_stands_in_place_of_each(ledger: Ledger) -> None:
    for session, texts in {"a": ("one", "x"), "b": ("two", "x"), "c": ("one", "x", "y")}.items():
        take(ledger, session, said("m1", *texts, end=1), file=session)
    with ledger._store.read() as txn:
        rows = txn.sql.fetch_rows("SELECT turn_id, current_turn_id FROM turn_versions WHERE native_id = 'm1'")
    current: dict[str, str] = dict(rows)
    (old,) = set(current) - {head(ledger, "b"), head(ledger, "c")}
    assert current == {old: head(ledger, "c"), **{head(ledger, name): head(ledger, name) for name in "bc"}}


def test_plain_sql_names_the_turn_that_took_another_in_and_no_namesake(ledger: Ledger) -> None:
    take(ledger, "b", said("1", "bake a cake", "ok", end=1), file="b")
    take(ledger, "a", said("1", "fix the bug", "done", end=1), file="a")
    old = head(ledger, "a")
    take(ledger, "a", said("9", "fix the bug today", "done, all", end=1, names=("1",)), file="a", reread=True)
    new = head(ledger, "a")
    with ledger._store.read() as txn:
        current: dict[str, str] = dict(txn.sql.fetch_rows("SELECT turn_id, current_turn_id FROM turn_versions"))
    assert new != old
    assert current == {old: new, new: new, head(ledger, "b"): head(ledger, "b")}
    assert problems(ledger) == []


def test_one_event_moves_many_sessions_and_their_moves_stay_in_order(ledger: Ledger) -> None:
    """More sessions than the last import has events, with the views of lookups caught up before and after it."""
    for number in range(30):
        take(ledger, f"s{number}", said("m1", "hello", "yes", end=1), file=f"{number}")
    ledger.upkeep.catch_up()
    with ledger._store.read() as txn:
        before = txn.facts.tip().n
    take(ledger, "s0", said("m1", "hello", "yes", "and more", end=1), file="0", reread=True)
    new = head(ledger, "s0")
    assert {head(ledger, f"s{number}") for number in range(30)} == {new}
    late = ledger.tree.moves_to(new)
    ledger.upkeep.catch_up()
    assert len(late) == 30
    assert ledger.tree.moves_to(new) == late
    with ledger._store.read() as txn:
        rows = txn.sql.fetch_rows("SELECT session, k, n, turn FROM history ORDER BY session, k")
    assert all(n > before for _, _, n, turn in rows if turn == new)
    assert rows == sorted(rows, key=lambda row: (row[0], row[2], row[1]))
    assert problems(ledger) == []
    assert list(ledger.verify()) == []


def test_turns_by_status_are_the_turns_that_are_counted(ledger: Ledger) -> None:
    take(ledger, "s", said("t1", "fix it", "do", end=1))
    take(ledger, "s", said("t1", "fix it", "do", "done", end=2))
    stats = ledger.upkeep.stats()
    assert (stats["turns"], stats["superseded_turns"]) == (1, 1)
    assert stats["turns_by_status"] == {"completed": 1}
