"""Whatever is recorded comes back as it was, also from an export in another ledger; what cannot be kept is refused."""

import math
import resource
import time
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest

import weft
from tests.faults.checks import answers, end_of, facts_of
from tests.sizes import PROVING, Record, share, sized
from weft.kernel import contents
from weft.kernel.contents import MAX_CONTENT_BYTES
from weft.kernel.errors import ContentTooLarge, InvalidFact, InvalidInput
from weft.kernel.events import STREAM_KINDS
from weft.ledger.api.ledger import Ledger
from weft.ledger.upkeep.facts_file import event_line

MEGABYTES = sized(test=3, prove=100)
DEPTH = sized(test=150, prove=100_000)
CHILDREN = sized(test=80, prove=10_000)
KEYS = sized(test=4_000, prove=1_000_000)
TURNS = sized(test=200, prove=1_000_000)

TEXTS = {
    "empty": "",
    "nul": "a\0b",
    "only nul": "\0",
    "lone surrogate": "a\ud800b",
    "surrogates in a row": "\udfff\ud800\udc00",
    "beyond the basic plane": "🧵𝒳",
    "composed and decomposed": "é e\u0301",
    "bidi and zero width": "\u202eabc\u200b\ufeff",
    "line ends": "a\r\nb\rc\u2028d\n",
    "escapes": '"\\/\b\f\n\r\t\x1f\x7f\x80',
    "like a name": "#1",
    "like json": '{"a": [1, 2',
    "long": "x" * 1_048_576 + "é",
}

Place = Callable[[Ledger, str], object]


def in_query(ledger: Ledger, text: str) -> Any:
    turn = ledger.record_turn(session="main", query=text, response="yes").id
    return ledger.messages(turn)[0].text


def in_parts(ledger: Ledger, text: str) -> Any:
    content = [{"type": "text", "text": text}, {"type": "reasoning", "text": text}, {"type": "image_url", "url": text}]
    turn = ledger.record_turn(session="main", query="x", response={"content": content}).id
    text_part, reasoning, image = ledger.messages(turn)[-1].content
    assert text_part.text == reasoning.text == image.url  # type: ignore[union-attr]
    return text_part.text  # type: ignore[union-attr]


def in_a_tool_call(ledger: Ledger, text: str) -> Any:
    call = {"name": "t", "id": text or None, "arguments": {"a": text, text: 1}, "result": [text, {"b": text}]}
    turn = ledger.record_turn(session="main", query="x", tool_calls=[call]).id
    (found,) = ledger.tool_calls(turn)
    assert found.arguments == call["arguments"]
    return found.result[1]["b"]


def in_an_error(ledger: Ledger, text: str) -> Any:
    turn = ledger.record_turn(session="main", query="x", error={"message": text, "details": {text: text}}).id
    return ledger.turn(turn).error


def in_the_setting(ledger: Ledger, text: str) -> Any:
    turn = ledger.record_turn(session="main", query="x", workspace=text, effective_config={text: text}).id
    assert ledger.turn(turn).effective_config == {text: text}
    return ledger.turn(turn).workspace_path


def in_metadata(ledger: Ledger, text: str) -> Any:
    query = {"content": "x", "metadata": {"m": text}, "files": [{"kind": "read", "path": text}]}
    turn = ledger.record_turn(session="main", query=query).id
    return ledger.messages(turn)[0].metadata["m"]


def in_a_model_name(ledger: Ledger, text: str) -> Any:
    turn = ledger.record_turn(session="main", query="x", model=text or "-", response="yes").id
    return ledger.turn(turn).model if text else text


def in_a_summary(ledger: Ledger, text: str) -> Any:
    turn = ledger.compactions.record(session="main", summary=text, metadata=[text]).id
    return ledger.compactions.get(turn).summary


def in_a_stream(ledger: Ledger, text: str) -> Any:
    data = text.encode("utf-8", "surrogatepass")
    stored = ledger.put_content([data[i : i + 7] for i in range(0, min(len(data), 70), 7)] + [data[70:]])
    turn = ledger.record_turn(session="main", query=stored).id
    assert b"".join(ledger.read_content(stored.ref)) == data
    return ledger.messages(turn)[0].text


PLACES: tuple[Place, ...] = (
    in_query,
    in_parts,
    in_a_tool_call,
    in_an_error,
    in_the_setting,
    in_metadata,
    in_a_model_name,
    in_a_summary,
    in_a_stream,
)


IN_JSON = (in_a_tool_call, in_an_error, in_the_setting, in_metadata, in_a_summary)


def copy_by_facts(ledger: Ledger) -> Ledger:
    """The same facts, exported and imported into an empty ledger."""
    out = BytesIO()
    ledger.upkeep.export_facts(out)
    copy = weft.open(":memory:")
    copy.upkeep.import_facts(BytesIO(out.getvalue()))
    return copy


def assert_same_elsewhere(ledger: Ledger) -> None:
    """The digests, the messages and the facts survive export and import, and both ledgers verify."""
    assert list(ledger.verify()) == []
    with copy_by_facts(ledger) as copy:
        ours, theirs = answers(ledger), answers(copy)
        assert sorted(ours["facts"]) == sorted(theirs["facts"])
        assert all(ours[name] == theirs[name] for name in ("messages", "calls", "sessions", "turns"))
        assert list(copy.verify()) == []


@pytest.mark.slow("asks every question of each ledger that has the facts of odd texts")
@pytest.mark.parametrize("place", share(PLACES, test=1))
def test_any_text_comes_back_exactly_from_anywhere(place: Place) -> None:
    with weft.open(":memory:") as ledger:
        ledger.record_turn(session="main", query="first")
        for name, text in TEXTS.items():
            if place in IN_JSON and name == "surrogates in a row":
                with pytest.raises(InvalidInput, match="one character"):
                    place(ledger, text)
            else:
                assert place(ledger, text) == text, name
        assert_same_elsewhere(ledger)


@pytest.mark.parametrize("text", ["", "\0", "a\ud800", "a\nb", " a", "a~1", "a@{1}", "x" * 513, "\u202eabc"])
def test_a_label_that_nobody_could_type_is_refused(text: str) -> None:
    with weft.open(":memory:") as ledger:
        ledger.record_turn(session="main", query="x")
        before = end_of(ledger)
        for use in (ledger.create_session, lambda label: ledger.labels.add_alias(label, "main")):
            with pytest.raises(InvalidInput):
                use(text)
        with pytest.raises(InvalidInput):
            ledger.record_turn(session=text, query="x")
        assert end_of(ledger) == before


def nested(levels: int) -> Any:
    inner: Any = 1
    for _ in range(levels):
        inner = [inner]
    return inner


def endless() -> Any:
    found: dict[str, Any] = {}
    found["again"] = found
    return found


@pytest.mark.parametrize(
    "value",
    [
        math.nan,
        math.inf,
        nested(100_000),
        {1: 2},
        {"a": b"bytes"},
        {"a": {1, 2}},
        endless(),
        {"a": object()},
        10**400_000,
    ],
    ids=["nan", "infinity", "depth bomb", "key", "bytes", "set", "endless", "object", "400,000 digits"],
)
def test_a_value_that_json_has_no_form_for_is_refused_with_its_place(value: Any) -> None:
    with weft.open(":memory:") as ledger:
        before = ledger.upkeep.stats()
        odd = {"fine": 1, "odd": value}
        turns: tuple[dict[str, Any], ...] = (
            {"params": odd, "model": "m"},
            {"tool_calls": [{"name": "t", "arguments": odd}]},
            {"tool_calls": [{"name": "t", "result": odd}]},
            {"effective_config": odd},
            {"query": {"content": "x", "metadata": odd}},
            {"query": "x", "tool_calls": [{"name": "t", "arguments": {"odd": value, "float": 0.5}}]},
        )
        for turn in turns:
            with pytest.raises(InvalidInput):
                ledger.record_turn(session="main", **{"query": "x", **turn})
        assert ledger.upkeep.stats() == before


def test_json_at_the_edge_of_what_can_be_kept_comes_back() -> None:
    values = [nested(200), 2**53, -(10**300), 1e-300, -0.0, 1.0, "\ud800", {"": {"": None}}, [], {"é": 1, "e\u0301": 2}]
    with weft.open(":memory:") as ledger:
        for value in values:
            turn = ledger.record_turn(session="main", tool_calls=[{"name": "t", "result": value}])
            (call,) = ledger.tool_calls(turn.id)
            assert repr(call.result) == repr(value)
        assert_same_elsewhere(ledger)


def test_json_with_very_many_keys_comes_back() -> None:
    value = {f"key {k}": k for k in range(KEYS)}
    with weft.open(":memory:") as ledger:
        turn = ledger.record_turn(session="main", tool_calls=[{"name": "t", "arguments": value, "result": value}])
        (call,) = ledger.tool_calls(turn.id)
        assert call.arguments == call.result == value
        assert list(ledger.verify()) == []


@pytest.mark.parametrize("deep", ["[" * 100_000, '{"a":' * 100_000 + "1" + "}" * 100_000])
def test_arguments_that_a_provider_sent_as_text_are_kept_to_the_letter(deep: str) -> None:
    with weft.open(":memory:") as ledger:
        for text in (deep, '{"a": NaN}', '{"a":1,"a":2}', "{", '{"a": 1e999}'):
            turn = ledger.record_turn(session="main", tool_calls=[{"name": "t", "arguments": text, "result": text}])
            (call,) = ledger.tool_calls(turn.id)
            assert call.result == text
            assert call.arguments == text or isinstance(call.arguments, dict)
        assert_same_elsewhere(ledger)


@pytest.mark.parametrize(
    "query",
    [b"\xff", 7, {"content": 7}, {"content": b"\xff"}, {"role": "nobody", "content": "x"}, nested(100_000), [[b"x"]]],
    ids=["bytes", "number", "number inside", "bytes inside", "role", "depth bomb", "bytes in lists"],
)
def test_a_message_that_is_none_is_refused(query: Any) -> None:
    with weft.open(":memory:") as ledger:
        before = ledger.upkeep.stats()
        with pytest.raises(InvalidInput):
            ledger.record_turn(session="main", query=query)
        assert ledger.upkeep.stats() == before


def test_bytes_that_are_no_text_come_back_exactly_as_bytes() -> None:
    data = bytes(range(256)) * 20_000
    with weft.open(":memory:") as ledger:
        stored = ledger.put_content(data)
        ledger.record_turn(session="main", query="x", tool_calls=[{"name": "t", "result": {"bytes": stored.ref}}])
        assert b"".join(ledger.read_content(stored.ref)) == data
        with copy_by_facts(ledger) as copy:
            assert b"".join(copy.read_content(stored.ref)) == data


def test_a_long_message_comes_back_whole(tmp_path: Path, record_property: Record) -> None:
    text = "".join(f"{k:09d}é" for k in range(MEGABYTES * 1_000_000 // 11))
    with weft.open(tmp_path / "ledger.db") as ledger:
        turn = ledger.record_turn(session="main", query=text, response="long")
        streamed = ledger.put_content(text[i : i + 99_999].encode() for i in range(0, len(text), 99_999))
        again = ledger.record_turn(session="main", query=streamed)
        assert ledger.messages(turn.id)[0].text == text
        assert ledger.messages(again.id)[0].text == text
        assert list(ledger.verify()) == []
        with (tmp_path / "facts.jsonl").open("wb") as out:
            ledger.upkeep.export_facts(out)
    with weft.open(tmp_path / "copy.db") as copy:
        copy.upkeep.import_facts(tmp_path / "facts.jsonl")
        assert copy.thread("main").digest == again.digest
        assert copy.messages(turn.id)[0].text == text
    record_property("measured", f"{MEGABYTES} MB")


@pytest.mark.skipif(not PROVING, reason="writes a quarter of a gigabyte")
def test_a_content_beyond_the_limit_is_refused(tmp_path: Path) -> None:
    with weft.open(tmp_path / "ledger.db") as ledger:
        before = ledger.upkeep.stats()
        with pytest.raises(ContentTooLarge):
            ledger.put_content(b"x" * 1_000_000 for _ in range(MAX_CONTENT_BYTES // 1_000_000 + 1))
        with pytest.raises(ContentTooLarge):
            ledger.record_turn(session="main", query="x" * (MAX_CONTENT_BYTES + 1))
        assert ledger.upkeep.stats() == before
        assert list(ledger.verify()) == []


def test_a_deep_thread_reads_verifies_and_travels(tmp_path: Path, record_property: Record) -> None:
    with weft.open(tmp_path / "ledger.db") as ledger:
        for k in range(DEPTH):
            ledger.record_turn(session="main", query=f"{k}")
        thread = ledger.thread("main")
        assert thread.depth == DEPTH
        assert [message.text for message in thread.messages] == [f"{k}" for k in range(DEPTH)]
        assert ledger.resolve(f"main~{DEPTH - 1}") == next(thread.turns).id
        ledger.fork(f"main~{DEPTH // 2}", label="middle")
        ledger.record_turn(session="middle", query="from the middle")
        assert ledger.tree.common_ancestor("main", "middle") == ledger.resolve(f"main~{DEPTH // 2}")
        assert list(ledger.verify()) == []
        ledger.upkeep.export_facts(tmp_path / "facts.jsonl")
        with weft.open(tmp_path / "copy.db") as copy:
            copy.upkeep.import_facts(tmp_path / "facts.jsonl")
            assert copy.thread("main").digest == thread.digest
            assert list(copy.verify()) == []
    record_property("measured", f"{DEPTH} turns deep")


def pace(ledger: Ledger, tenth: int) -> float:
    """A tenth of a very long session; returns the milliseconds of CPU that a turn took."""
    times = TURNS // 10
    started = time.process_time()
    for k in range(tenth * times, (tenth + 1) * times):
        ledger.record_turn(session="main", query=f"{k}", response="yes")
    return (time.process_time() - started) / times * 1000


def test_a_very_long_session_goes_on_as_it_began(tmp_path: Path, record_property: Record) -> None:
    """Nothing of a session is held in memory, and neither its head nor its middle is far away."""
    with weft.open(tmp_path / "ledger.db") as ledger:
        paces = [pace(ledger, tenth) for tenth in range(10)]
        held = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
        last = ledger.session("main").head
        assert ledger.thread("main").depth == ledger.upkeep.stats()["turns"] == TURNS
        assert ledger.messages(f"main~{TURNS - 1}")[0].text == "0"
        ledger.fork(f"main~{TURNS // 2}", label="middle")
        made = ledger.record_turn(session="middle", query="from the middle")
        assert ledger.messages(str(made.parent_id))[0].text == f"{TURNS - 1 - TURNS // 2}"
        assert [turn.id for turn in ledger.log(2)] == [made.id, last]
        assert len(ledger.reflog("main", limit=10)) == 10
        assert list(ledger.verify()) == []
    told = f"{TURNS} turns, {paces[0]:.2f} ms CPU a turn in the first tenth, {paces[-1]:.2f} in the last, {held} MB"
    record_property("measured", told)


def test_many_children_of_one_turn_are_all_there(tmp_path: Path, record_property: Record) -> None:
    with weft.open(tmp_path / "ledger.db") as ledger:
        root = ledger.record_turn(session="main", query="root")
        made = [ledger.record_turn(parent=root.id, query=f"{k}").id for k in range(CHILDREN)]
        assert [turn.id for turn in ledger.tree.children(root.id)] == made
        assert [turn.id for turn in ledger.tree.heads()] == made
        assert [turn.id for turn in ledger.tree.turns(root.id)] == [root.id, *made]
        assert list(ledger.verify()) == []
        ledger.upkeep.export_facts(tmp_path / "facts.jsonl")
        with weft.open(tmp_path / "copy.db") as copy:
            copy.upkeep.import_facts(tmp_path / "facts.jsonl")
            assert [turn.digest for turn in copy.tree.children(root.id)] == [
                turn.digest for turn in ledger.tree.children(root.id)
            ]
            assert list(copy.verify()) == []
    record_property("measured", f"{CHILDREN} children")


def a_fact() -> bytes:
    with weft.open(":memory:") as ledger:
        ledger.create_session("main")
        return facts_of(ledger)[-1]


@pytest.mark.parametrize(
    "spoil",
    [
        lambda line: line[:-1] + b',"v":1}',
        lambda line: line[:-1] + b',"actor":"local"}',
        lambda line: line.replace(b'"v":1', b'"v":NaN'),
        lambda line: line.replace(b'"v":1', b'"v":' + b"[" * 100_000),
        lambda line: line.replace(b'"v":1', b'"v":1e400'),
        lambda line: line.replace(b'"local"', b'"loc\xff"'),
        lambda line: line.replace(b'"local"', b'"\\ud800"'),
        lambda line: line.replace(b'"local"', b'"l\\u006fcal "'),
        lambda line: line[: len(line) // 2],
        lambda line: line + line,
        lambda line: b"[" + line + b"]",
        lambda line: b'"text"',
        lambda line: b"\xff\xfe",
        lambda line: b"\0",
        lambda line: line.replace(b'"event_id":"', b'"event_id":"0'),
        lambda line: b"{" + b" " * 17_000_000 + line[1:],
    ],
    ids=range(16),
)
def test_a_line_of_facts_that_is_not_what_it_says_is_refused_with_its_number(spoil: Callable[[bytes], bytes]) -> None:
    with weft.open(":memory:") as ledger:
        ledger.record_turn(session="main", query="x")
        before = ledger.upkeep.stats()
        with pytest.raises(InvalidFact, match="line 2"):
            ledger.upkeep.import_facts(BytesIO(b"\n" + spoil(a_fact()) + b"\n"))
        assert ledger.upkeep.stats() == before
        assert list(ledger.verify()) == []


def test_a_fact_written_with_other_spaces_numbers_and_order_is_the_same_fact() -> None:
    line = a_fact()
    fields = line[1:-1].replace(b'"v":1', b'"v" : 1.0').split(b',"')
    shuffled = b'{ "' + b' , "'.join(part.lstrip(b'"') for part in reversed(fields)) + b" }"
    with weft.open(":memory:") as ledger:
        with pytest.raises(InvalidFact):
            ledger.upkeep.import_facts(BytesIO(line.replace(b"session_created", b"session_renamed")))
        ledger.upkeep.import_facts(BytesIO(shuffled))
        assert line in facts_of(ledger)


def elsewhere(line: bytes, stream: str) -> bytes:
    """The same event as the first of another stream, told by another replica, with the id that it has there."""
    fields = {**contents.loads(line), "stream": stream, "prev": None, "replica": "01ARZ3NDEKTSV4RRFFQ69G5FAV"}
    del fields["event_id"]
    moved = contents.dumps(fields)
    return event_line(moved)


@pytest.mark.parametrize("stream", STREAM_KINDS)
def test_an_event_in_a_stream_where_it_does_not_belong_is_kept_or_refused_and_harms_nothing(stream: str) -> None:
    with weft.open(":memory:") as ledger:
        call = {"name": "t", "result": 1}
        ledger.record_turn(session="main", query="x", response="y", model="m", tool_calls=[call], persona="Zoe")
        ledger.compactions.record(session="main", summary="short")
        ledger.labels.add_alias("other", "main")
        ledger.fork("main", label="fork")
        before = ledger.upkeep.stats()
        events = [line for line in facts_of(ledger) if b'"event_id"' in line]
        for i, line in enumerate(events):
            try:
                ledger.upkeep.import_facts(BytesIO(elsewhere(line, f"{stream}:01ARZ3NDEKTSV4RRFFQ69G{i:04d}")))
            except InvalidFact:
                continue
        assert list(ledger.verify()) == []
        begun = ("run_started", "session_created")
        added = (
            ledger.upkeep.stats()["turns"] + ledger.upkeep.stats()["sessions"] - before["turns"] - before["sessions"]
        )
        assert added <= sum(any(kind.encode() in line for kind in begun) for line in events)
