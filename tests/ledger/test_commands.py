"""A retry key: the same turn sent again is recorded once, and the same key with another turn is refused."""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

import weft
from tests.faults.processes import Process, Say
from tests.ledger.conftest import OpenLedger
from tests.ledger.histories import problems, select, texts
from weft.kernel.clock import FixedClock
from weft.kernel.enums import MessageRole
from weft.kernel.errors import HeadMoved, InvalidInput, KeyTaken, SessionBusy
from weft.ledger.api.ledger import Ledger
from weft.ledger.model import NewMessage, RecordedTurn

DAY_MS = 24 * 3600 * 1000
TURN: dict[str, Any] = {
    "session": "main",
    "query": "What is in x?",
    "response": "A list.",
    "system": "Be brief.",
    "model": "m-1",
    "params": {"temperature": 0.5},
    "usage": {"input_tokens": 9, "output_tokens": 2},
    "tool_calls": [{"id": "c1", "name": "read", "arguments": {"path": "x"}, "result": [1, 2.5, None]}],
    "key": "k",
}
OTHERS: list[dict[str, Any]] = [
    {"query": "What is in y?"},
    {"response": None},
    {"session": "side"},
    {"session": None},
    {"parent": None},
    {"expected": None},
    {"model": "m-2"},
    {"params": {"temperature": 0.25}},
    {"usage": {"input_tokens": 9, "output_tokens": 3}},
    {"tool_calls": []},
    {"persona": "ann"},
    {"workspace": "/x"},
    {"error": "it broke"},
]


def newest(ledger: Ledger) -> int:
    return int(ledger.upkeep.stats()["events"])


def test_the_same_turn_with_the_same_key_is_recorded_once(ledger: Ledger) -> None:
    first = ledger.record_turn(**TURN)
    ledger.record_turn(session="main", query="between")
    events = newest(ledger)
    assert ledger.record_turn(**TURN) == first
    assert newest(ledger) == events
    assert ledger.turn(first.id).digest == first.digest
    assert problems(ledger) == []


def test_a_key_is_remembered_by_every_ledger_that_is_opened_later(ledger: Ledger, open_ledger: OpenLedger) -> None:
    if ledger.path == ":memory:":
        pytest.skip("what lies in memory is not opened again")
    first = ledger.record_turn(**TURN)
    ledger.close()
    assert open_ledger(ledger.path).record_turn(**TURN) == first


@pytest.mark.parametrize("other", OTHERS, ids=lambda other: f"{next(iter(other.items()))}")
def test_another_turn_with_the_same_key_is_refused(ledger: Ledger, other: dict[str, Any]) -> None:
    ledger.record_turn(**TURN)
    events = newest(ledger)
    with pytest.raises(KeyTaken, match="'k'"):
        ledger.record_turn(**{**TURN, **other})
    assert newest(ledger) == events


def test_a_turn_told_in_other_types_is_the_same_turn(ledger: Ledger) -> None:
    first = ledger.record_turn(session="main", query="q", response="r", key="k", wait=1)
    query, response = NewMessage(role=MessageRole.USER, content="q"), {"role": "assistant", "content": "r"}
    assert ledger.record_turn(session="main", query=query, response=[response], key="k", wait=2) == first


def test_stored_contents_of_a_request_are_compared_by_their_reference(ledger: Ledger) -> None:
    chart, map = ledger.put_content(b"a chart"), ledger.put_content(b"a map")
    first = ledger.record_turn(session="main", query=chart, key="k")
    assert ledger.record_turn(session="main", query=chart, key="k") == first
    with pytest.raises(KeyTaken):
        ledger.record_turn(session="main", query=map, key="k")


def test_turns_without_a_session_and_failed_ones_have_keys_too(ledger: Ledger) -> None:
    requests: list[dict[str, Any]] = [
        {"query": "q"},
        {"session": "main", "query": "q", "error": {"message": "overloaded"}},
    ]
    for fields in requests:
        key = f"key of {sorted(fields)}"
        first = ledger.record_turn(**fields, key=key)
        assert ledger.record_turn(**fields, key=key) == first
    assert len(list(ledger.log())) == 2


def test_different_keys_record_the_same_turn_twice(ledger: Ledger) -> None:
    turns = [ledger.record_turn(session="main", query="q", key=key) for key in ("k1", "k2")]
    assert turns[1].parent_id == turns[0].id


@pytest.mark.parametrize("key", ["", 7, b"k"])
def test_a_key_is_text_that_is_not_empty(ledger: Ledger, key: Any) -> None:
    with pytest.raises(InvalidInput, match="retry key"):
        ledger.record_turn(session="main", query="q", key=key)
    assert newest(ledger) == 0


def test_a_key_whose_turn_was_not_recorded_is_free(ledger: Ledger) -> None:
    ledger.record_turn(session="main", query="q")
    with pytest.raises(HeadMoved):
        ledger.record_turn(session="main", query="next", expected=None, key="k")
    with pytest.raises(InvalidInput):
        ledger.record_turn(session="main", query="next", params=object(), key="k")
    with ledger.begin_turn(session="main") as writer, pytest.raises(SessionBusy):
        ledger.record_turn(session="main", query="next", wait=0, key="k")
    assert ledger.record_turn(session="main", query="another", key="k").parent_id == writer.id


def test_a_retry_waits_for_nobody_and_follows_no_head(ledger: Ledger) -> None:
    first = ledger.record_turn(session="main", query="q", expected=None, key="k")
    with ledger.begin_turn(session="main"):
        assert ledger.record_turn(session="main", query="q", expected=None, key="k", wait=0) == first


def test_a_retry_of_a_large_turn_stores_nothing(ledger: Ledger) -> None:
    large = "0123456789" * 300_000
    first = ledger.record_turn(session="main", query=large, key="k")
    contents = ledger.upkeep.stats()["contents"]
    assert ledger.record_turn(session="main", query=large, key="k") == first
    assert ledger.upkeep.stats()["contents"] == contents


def test_a_retry_names_the_session_as_it_is_called_now(ledger: Ledger) -> None:
    first = ledger.record_turn(session="main", query="q", key="k")
    ledger.labels.rename("main", "harbour")
    assert ledger.record_turn(session="main", query="q", key="k") == replace(first, session="harbour")


def test_a_key_is_forgotten_after_thirty_days(ledger: Ledger, clock: FixedClock) -> None:
    first = ledger.record_turn(session="main", query="q", key="k")
    clock.tick(29 * DAY_MS)
    ledger.record_turn(session="main", query="other", key="k2")
    assert ledger.record_turn(session="main", query="q", key="k") == first
    clock.tick(2 * DAY_MS)
    ledger.record_turn(session="main", query="other", key="k3")
    assert ledger.record_turn(session="main", query="q", key="k").id != first.id


def test_a_key_is_one_for_turns_and_programs(ledger: Ledger) -> None:
    ledger.record_turn(session="main", query="q", key="k")
    with pytest.raises(KeyTaken):
        weft.Programs(ledger).create("agent", "ada", {}, key="k")


def test_merges_have_keys_of_the_same_kind(ledger: Ledger) -> None:
    source = ledger.record_turn(session="side", query="q", response="r")
    ledger.record_turn(session="main", query="q")
    picked = ledger.merges.cherry_pick(source.id, onto="main", key="pick")
    summary = ledger.merges.summarize(source.id, into="main", text="t", key="sum up")
    ledger.record_turn(session="main", query="between")
    events = newest(ledger)
    assert ledger.merges.cherry_pick(source.id, onto="main", key="pick") == picked
    assert ledger.merges.summarize(source.id, into="main", text="t", key="sum up") == summary
    refused: list[Callable[[], object]] = [
        lambda: ledger.merges.cherry_pick(source.id, onto="side", key="pick"),
        lambda: ledger.merges.cherry_pick(source.id, onto="main", key="sum up"),
        lambda: ledger.merges.summarize(source.id, into="main", text="another", key="sum up"),
        lambda: ledger.record_turn(session="main", query="q", key="pick"),
    ]
    for work in refused:
        with pytest.raises(KeyTaken):
            work()
    assert newest(ledger) == events


def test_an_erased_turn_leaves_no_digest_of_what_was_asked(disk: Ledger, path: Path) -> None:
    turn = disk.record_turn(session="main", query="rosebud", key="k")
    disk.record_turn(session="side", query="q", key="k2")
    disk.erasure.erase(turn.id, reason="it was a secret")
    digests = select(path, "SELECT length(request) AS size FROM command_done ORDER BY done_at, size")
    assert [row["size"] for row in digests] == [0, 32]
    with pytest.raises(KeyTaken):
        disk.record_turn(session="main", query="rosebud", key="k")
    assert texts(disk.thread("main").messages) != ["rosebud"]


def test_neither_keys_nor_requests_are_kept_in_words(disk: Ledger, path: Path) -> None:
    disk.record_turn(session="a label", query="a question", key="a key")
    (row,) = select(path, "SELECT * FROM command_done")
    assert (row["command"], len(row["key"]), len(row["request"])) == ("record_turn", 32, 32)
    assert not any(word in str(row) for word in ("a label", "a question", "a key"))


def test_a_copy_remembers_the_keys_of_its_origin(disk: Ledger, tmp_path: Path) -> None:
    first = disk.record_turn(**TURN)
    weft.copy(disk, tmp_path / "copy.db")
    with weft.open(tmp_path / "copy.db") as copy:
        assert copy.record_turn(**TURN) == first


# --- two at once ------------------------------------------------------------------------------------------------


def record_once(say: Say, address: str) -> None:
    with weft.open(address) as ledger:
        say("ready")
        say(ledger.record_turn(**TURN).id)


def all_at_once(works: list[Callable[[], RecordedTurn]]) -> list[RecordedTurn]:
    """Each in a thread of its own, begun together."""
    begin, answers = threading.Barrier(len(works)), list[RecordedTurn]()

    def run(work: Callable[[], RecordedTurn]) -> None:
        begin.wait()
        answers.append(work())

    threads = [threading.Thread(target=run, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return answers


def test_threads_that_race_with_one_key_record_one_turn(ledger: Ledger) -> None:
    answers = all_at_once([lambda: ledger.record_turn(**TURN)] * 8)
    assert len(answers) == 8
    assert {answer.id for answer in answers} == {turn.id for turn in ledger.log()}
    assert len(set(map(repr, answers))) == 1


def test_processes_that_race_with_one_key_record_one_turn(ledger: Ledger) -> None:
    if ledger.path == ":memory:":
        pytest.skip("no other process sees it")
    others = [Process(record_once, ledger.path) for _ in range(3)]
    for other in others:
        assert other.hear() == "ready"
    ours = ledger.record_turn(**TURN)
    assert {*(other.hear() for other in others), ours.id} == {turn.id for turn in ledger.log()}
    assert [other.end() for other in others] == [0, 0, 0]
    assert problems(ledger) == []
