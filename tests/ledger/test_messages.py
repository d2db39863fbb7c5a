"""Messages: plain text or ordered parts, with everything recorded beside them, kept exactly."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import UNSET
from msgspec.structs import replace

import weft
from tests.conftest import NewPostgresLedger
from tests.ledger.histories import lines, problems, select, texts
from tests.sizes import sized
from weft import ImagePart, ReasoningPart, TextPart, ToolResultPart, ToolUsePart
from weft.kernel.clock import FixedClock, is_ulid
from weft.kernel.errors import ContentMissing, InvalidInput, NotFound
from weft.ledger.api.ledger import Ledger
from weft.ledger.model import Codeblock, Message
from weft.surfaces.opening import OpenLedger as OpenedLedger

ODD_TEXTS = ["", "\0", "a\0b", "\ud800 alone", "\U0001f9f5", "é", "line\r\nline\u2028", "﷽" * 2000]
PARTS: list[Any] = [
    TextPart("first"),
    ImagePart("https://example.org/a b.png", "high"),
    ImagePart("data:image/png;base64,AAAA", "a detail of its own"),
    ImagePart("https://example.org/c.png"),
    ToolUsePart("call 1", "my tool", {"deep": [1, {"x": None}], "big": 2**65}),
    ToolResultPart("call 1", ["any", {"json": 1.5}], True),
    ToolResultPart("call 2", "text", False),
    ToolResultPart("call 3", None),
    ReasoningPart("hm"),
    TextPart("first"),
    ReasoningPart("so"),
]

any_text = st.text(st.characters(codec=None, exclude_categories=()), max_size=12)
scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | any_text
any_json = st.recursive(scalars, lambda inner: st.lists(inner) | st.dictionaries(any_text, inner), max_leaves=5)
parts = st.one_of(
    st.builds(TextPart, any_text),
    st.builds(ReasoningPart, any_text),
    st.builds(ImagePart, any_text, any_text.filter(bool) | st.just(UNSET)),
    st.builds(ToolUsePart, any_text, any_text.filter(bool), any_json),
    st.builds(ToolResultPart, any_text, any_json, st.booleans() | st.just(UNSET)),
)


@pytest.mark.parametrize("text", ODD_TEXTS)
def test_any_text_comes_back_exactly(ledger: Ledger, text: str) -> None:
    made = ledger.record_turn(session="main", query=text, response=text)
    assert texts(ledger.messages(made.id)) == [text, text]
    assert texts(ledger.thread("main").messages) == [text, text]
    assert problems(ledger) == []


def test_parts_of_all_five_types_come_back_exactly_and_in_order(ledger: Ledger) -> None:
    made = ledger.record_turn(session="main", query={"content": PARTS})
    (message,) = ledger.messages(made.id)
    assert message.content == tuple(PARTS)
    assert message.text == "first\nfirst"
    assert message.thinking == "hm\nso"
    assert problems(ledger) == []


def test_parts_given_as_dicts_are_the_same_parts(ledger: Ledger) -> None:
    given_parts = [
        {"type": "text", "text": "t"},
        {"type": "image_url", "url": "u", "detail": "low"},
        {"type": "tool_use", "id": "i", "name": "n", "input": {}},
        {"type": "tool_result", "tool_call_id": "i", "output": [], "is_error": True},
        {"type": "reasoning", "text": "r"},
    ]
    made = ledger.record_turn(session="main", query={"content": given_parts})
    assert ledger.messages(made.id)[0].content == (
        TextPart("t"),
        ImagePart("u", "low"),
        ToolUsePart("i", "n", {}),
        ToolResultPart("i", [], True),
        ReasoningPart("r"),
    )


@settings(max_examples=sized(test=10, prove=1500))
@given(st.lists(st.lists(parts, max_size=4), min_size=1, max_size=3))
def test_any_parts_come_back_exactly(messages: list[list[Any]]) -> None:
    with weft.open(":memory:") as ledger:
        made = ledger.record_turn(query=[{"content": content} for content in messages])
        found = [list(message.content) for message in ledger.messages(made.id)]
        assert repr(found) == repr(messages)
        assert problems(ledger) == []


def test_a_message_of_no_parts_stays_one(ledger: Ledger) -> None:
    made = ledger.record_turn(session="main", query={"content": []})
    assert ledger.messages(made.id)[0].content == ()


def test_query_and_response_take_text_messages_and_lists_of_both(ledger: Ledger) -> None:
    made = ledger.record_turn(
        session="main",
        system=["rules", {"content": "more rules"}],
        query=["one", {"content": "two"}, {"role": "tool", "content": "three"}, [["four"]]],
        response=[{"content": "thinking aloud"}, {"role": "tool", "content": "found it"}, "the answer"],
    )
    found = [(message.role, message.text) for message in ledger.messages(made.id)]
    assert found == [
        ("system", "rules"), ("system", "more rules"), ("user", "one"), ("user", "two"), ("tool", "three"),
        ("user", "four"), ("assistant", "thinking aloud"), ("tool", "found it"), ("assistant", "the answer"),
    ]  # fmt: skip
    assert made.response_message_id == ledger.messages(made.id)[-1].id


def test_a_message_keeps_everything_beside_its_text(ledger: Ledger, clock: FixedClock) -> None:
    first = ledger.record_turn(session="main", query="before")
    parent = ledger.messages(first.id)[0].id
    clock.tick(1000)
    made = ledger.record_turn(
        session="main",
        query={
            "content": "q", "source": "webhook", "parent": parent, "context": {"injected": ["rules"]},
            "metadata": ["anything", 1], "model": "no model", "thinking_config": {"budget": 1},
        },
    )  # fmt: skip
    (message,) = ledger.messages(made.id)
    assert (message.source, message.parent_id, message.model) == ("webhook", parent, "no model")
    assert (message.context, message.metadata) == ({"injected": ["rules"]}, ["anything", 1])
    assert message.thinking_config == {"budget": 1}
    assert (message.sequence, message.created_at) == (0, clock.now_ms())


@pytest.mark.parametrize("source", ["human", "trigger", "agent", "webhook", "cron", "event"])
def test_a_message_says_who_started_it(ledger: Ledger, source: str) -> None:
    made = ledger.record_turn(session="main", query={"content": "q", "source": source})
    assert ledger.messages(made.id)[0].source == source


def test_message_ids_are_ulids_in_order_and_lead_to_message_and_turn(ledger: Ledger) -> None:
    turns = [ledger.record_turn(session=f"s{i % 3}", query=["a", "b"], response="c").id for i in range(6)]
    for turn in turns:
        messages = ledger.messages(turn)
        ids = [message.id for message in messages]
        assert ids == sorted(set(ids))
        assert all(is_ulid(id) for id in ids)
        assert [message.sequence for message in messages] == [0, 1, 2]
        assert [ledger.message(id) for id in ids] == messages
        assert {message.turn_id for message in messages} == {turn}


def test_a_message_that_is_not_there_is_not_found(ledger: Ledger) -> None:
    with pytest.raises(NotFound):
        ledger.message("01ARZ3NDEKTSV4RRFFQ69G5FAV")
    made = ledger.record_turn(session="main", query="q")
    for nobody in (made.id, "7" + "Z" * 25, "0" * 26):
        with pytest.raises(NotFound):
            ledger.message(nobody)


def test_files_and_lints_are_kept_once_each(disk: Ledger, path: Path) -> None:
    files = [
        {"kind": "read", "path": "a.py", "line_start": 1, "line_end": 9},
        {"kind": "read", "path": "a.py", "line_start": 1, "line_end": 9},
        {"kind": "written", "path": "a.py"},
    ]
    lints = [{"path": "a.py", "message": "unused", "source": "ruff", "severity": "hint", "start_line": 3}, {}]
    made = disk.record_turn(session="main", query={"content": "q", "files": files, "lints": lints})
    (message,) = disk.messages(made.id)
    rows = select(path, "SELECT kind, file_path, line_start, message_id FROM message_files ORDER BY id")
    assert [tuple(row.values()) for row in rows] == [
        ("read", "a.py", 1, message.id),
        ("written", "a.py", None, message.id),
    ]
    found = select(path, "SELECT file_path, message, lint_source, severity, start_line FROM message_lints ORDER BY id")
    assert [tuple(row.values()) for row in found] == [("a.py", "unused", "ruff", "hint", 3), (None,) * 5]
    assert problems(disk) == []


@pytest.mark.parametrize(
    "wrong",
    [
        {"files": [{"kind": "eaten", "path": "x"}]},
        {"files": [{"kind": "read"}]},
        {"files": [{"kind": "read", "path": "x", "line_start": 1.5}]},
        {"lints": [{"severity": "fatal"}]},
        {"codeblocks": [{"language": "py"}]},
        {"codeblocks": [Codeblock(content="x", line_start="1")]},  # type: ignore[arg-type]
        {"content": [ToolResultPart("c", 1, "yes")]},  # type: ignore[arg-type]
        {"content": [TextPart(5)]},  # type: ignore[arg-type]
        {"source": "stork"},
        {"parent": "not an id"},
        {"context": {"x": float("nan")}},
    ],
)
def test_a_message_with_a_wrong_field_is_refused(ledger: Ledger, wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput):
        ledger.record_turn(session="main", query={"content": "q", **wrong})
    assert lines(ledger) == []


def test_a_streamed_content_stands_wherever_a_text_is_taken(ledger: Ledger) -> None:
    text, blob = ledger.put_content("é€".encode() * 400_000), ledger.put_content(b"\xff\0\xfe")
    made = ledger.record_turn(
        session="main",
        query=[text, {"content": text}, {"content": [TextPart(text), ReasoningPart(text), ImagePart(blob)]}],
        tool_calls=[
            {"name": "t", "arguments": ledger.put_content(b'{"a":1}'), "result": ledger.put_content(b"no json")}
        ],
    )
    whole, again, third = ledger.messages(made.id)
    assert whole.text == again.text == third.text == third.thinking == "é€" * 400_000
    image = third.content[2]
    assert isinstance(image, ImagePart)
    assert image.url == "\udcff\0\udcfe"
    (call,) = ledger.tool_calls(made.id)
    assert (call.arguments, call.result) == ({"a": 1}, "no json")
    assert problems(ledger) == []


@pytest.mark.parametrize("ref", ["00" * 32, "zz", ""])
def test_a_content_that_is_not_here_cannot_be_referred_to(ledger: Ledger, ref: str) -> None:
    with pytest.raises(ContentMissing):
        ledger.record_turn(session="main", query=weft.StoredContent(ref, 1))


def test_equal_texts_within_a_tree_are_one_content(ledger: Ledger) -> None:
    for _ in range(5):
        ledger.record_turn(session="main", system="the same long rules", query="same", response="same")
    assert ledger.upkeep.stats()["contents"] == 3  # the label, the rules, the word


def test_a_message_that_was_read_can_be_recorded_again(ledger: Ledger) -> None:
    given = {
        "content": [{"type": "text", "text": "a\0\ud800"}, {"type": "image_url", "url": "u", "detail": "odd"}],
        "source": "webhook", "model": "m", "thinking_config": {"b": 1}, "context": {"c": [1]}, "metadata": {"d": None},
    }  # fmt: skip
    first = ledger.record_turn(session="main", query=given, response="r")
    query, response = ledger.messages(first.id)
    again = ledger.record_turn(session="other", query=[query], response=response)
    said = ("role", "content", "source", "model", "thinking_config", "context", "metadata")
    for old, new in zip((query, response), ledger.messages(again.id), strict=True):
        assert [getattr(new, name) for name in said] == [getattr(old, name) for name in said]
        assert new.id != old.id


def test_the_context_of_a_message_says_what_was_attached_to_it(ledger: Ledger) -> None:
    files = [{"kind": "attached", "path": "a.txt"}, {"kind": "read", "path": "b.txt"}]
    lines = {"kind": "attached", "path": "c.py", "line_start": 2, "line_end": 5}
    query: list[dict[str, Any]] = [
        {"content": "one", "files": files},
        {"content": "two", "files": [lines], "context": {"workspace": "/w"}},
        {"content": "three", "files": files, "context": {"attachments": "mine"}},
        {"content": "four", "files": files, "context": ["a", "list"]},
        {"content": "five", "files": files[1:]},
    ]
    ledger.record_turn(session="main", query=query, response="r")
    admitted = ledger.inbox.admit(query[1], session="main")
    wanted = [
        {"attachments": [{"path": "a.txt"}]},
        {"workspace": "/w"},
        {"attachments": "mine"},
        ["a", "list"],
        None,
    ]
    assert [message.context for message in ledger.messages("main")] == [*wanted, None]
    attached = [{"path": "c.py", "line_start": 2, "line_end": 5}]
    assert ledger.inbox.get(admitted.message).context == {"workspace": "/w", "attachments": attached}
    with ledger._store.read() as txn:
        rows = txn.sql.fetch_rows("SELECT context_json FROM messages WHERE role = 'user' ORDER BY sequence")
    assert [None if text is None else json.loads(text) for (text,) in rows] == wanted


def test_a_message_names_the_one_before_it(ledger: Ledger) -> None:
    ledger.record_turn(session="main", system="rules", query=["a", "b"], response="c")
    second = ledger.record_turn(session="main", query="d", response="e")
    messages = list(ledger.thread("main").messages)
    assert [m.parent_id for m in messages] == [None, *(m.id for m in messages[:-1])]
    assert ledger.messages(second.id) == messages[-2:]
    assert ledger.message(messages[-2].id).parent_id == messages[-3].id
    said = [m for told in ledger.full_threads("main").turns for m in told.items if isinstance(m, Message)]
    assert said == messages


def test_the_first_message_of_a_fork_names_the_last_one_that_the_fork_shows(ledger: Ledger) -> None:
    with ledger.begin_turn(session="main") as writer:
        query = writer.message({"role": "user", "content": "a"})
        writer.response("b")
        writer.finish()
    asked_in = next(event.id for event in ledger.events(writer.id) if b"history_append" in event.line)
    ledger.fork(asked_in, label="other")
    ledger.record_turn(session="other", query="c", response="d")
    asked, answer = ledger.messages("other")
    assert (asked.parent_id, answer.parent_id) == (query, asked.id)


@pytest.fixture(params=["sqlite", "postgres"])
def stored(
    request: pytest.FixtureRequest, tmp_path: Path, new_postgres_ledger: NewPostgresLedger
) -> Iterator[OpenedLedger]:
    with weft.open(tmp_path / "stored.db" if request.param == "sqlite" else new_postgres_ledger()) as ledger:
        yield ledger


def test_the_readable_table_names_the_message_before_each_one(stored: OpenedLedger) -> None:
    first = stored.record_turn(session="main", system="rules", query=["a", "b"], response="c")
    with stored.begin_turn(session="main") as writer:
        writer.message({"role": "user", "content": "d"})
        writer.response("e")
        writer.finish()
    stored.record_turn(session="main", query={"content": "f", "parent": first.response_message_id}, response="g")
    asked_in = next(event.id for event in stored.events(writer.id) if b"history_append" in event.line)
    stored.fork(asked_in, label="other")
    stored.record_turn(session="other", query="h", response="i")
    with stored.begin_turn(session="main") as silent:
        silent.finish()
    stored.record_turn(session="main", query="j", response="k")
    messages = [message for label in ("main", "other") for message in stored.thread(label).messages]
    with stored._store.read() as txn:
        parents: dict[str, str | None] = dict(txn.sql.fetch_rows("SELECT id, parent_message_id FROM messages"))
    assert parents == {message.id: message.parent_id for message in messages}
    assert sum(parent is None for parent in parents.values()) == 1


def test_an_answer_says_which_model_gave_it_whose_it_is_and_why_it_ended(stored: OpenedLedger) -> None:
    given: Any = {"model": "m1", "provider": "anthropic", "finish_reason": "stop"}
    stored.record_turn(session="main", query="a", response="b", **given)
    stored.record_turn(session="main", query="c", response="d", **given)
    answers = [{"role": "assistant", "content": "e"}, {"role": "assistant", "content": "f", "model": "m2"}]
    stored.record_turn(session="main", query={"role": "assistant", "content": "as if"}, response=answers, **given)
    with stored.begin_turn(session="main") as writer:
        writer.request("m3", provider="openai")
        writer.response("g", finish_reason="tool_use")
        writer.request("m4")
        writer.response("h")
        writer.finish()
    stored.record_turn(session="main", query="i", response="j")
    wanted = {
        **dict.fromkeys("bd", ("m1", "anthropic", "stop")),
        "as if": (None, None, None),
        "e": ("m1", "anthropic", None),
        "f": ("m2", "anthropic", "stop"),
        "g": ("m3", "openai", "tool_use"),
        "h": ("m4", None, None),
        "j": (None, None, None),
    }
    for messages in (stored.thread("main").messages, _full_messages(stored)):
        said = {m.text: (m.model, m.provider, m.finish_reason) for m in messages if m.role == "assistant"}
        assert said == wanted
    with stored._store.read() as txn:
        rows = txn.sql.fetch_rows(
            "SELECT content, model, provider, finish_reason FROM messages WHERE role = 'assistant'"
        )
    assert {content: tuple(row) for content, *row in rows} == wanted
    assert problems(stored) == []


def _full_messages(ledger: Ledger) -> list[Message]:
    return [item for turn in ledger.full_threads("main").turns for item in turn.items if isinstance(item, Message)]


def test_a_copied_message_follows_the_one_before_it_where_it_is_recorded(ledger: Ledger) -> None:
    ledger.record_turn(session="main", query="a", response="b")
    ledger.record_turn(session="main", query="c", response="d")
    copied = ledger.record_turn(session="other", query=ledger.messages("main")[:1], response="e")
    assert [m.parent_id for m in ledger.messages(copied.id)] == [None, ledger.messages(copied.id)[0].id]


def test_a_turn_says_what_it_was_asked_what_it_answered_and_what_it_called(ledger: Ledger) -> None:
    first = ledger.record_turn(
        session="main", system="rules", query="a", tool_calls=[{"name": "read", "id": "c1", "result": 1}],
        response="b", model="m", usage={"input_tokens": 3, "output_tokens": 2},
    )  # fmt: skip
    turn = ledger.turn(first.id)
    assert [(m.role, m.text) for m in turn.query_messages] == [("system", "rules"), ("user", "a")]
    assert turn.response_message is not None
    assert (turn.response_message.id, turn.response_message.text) == (first.response_message_id, "b")
    assert [call.call_id for call in turn.tool_calls] == ["c1"]
    assert (turn.token_count, turn.timestamp, turn.has_children) == (5, turn.started_at, False)
    second = ledger.record_turn(session="main", query="c")
    assert ledger.turn(first.id).has_children
    silent = ledger.turn(second.id)
    assert (silent.response_message, silent.tool_calls, silent.token_count) == (None, (), None)
    everywhere = [
        *ledger.log(),
        *ledger.thread("main").turns,
        *ledger.tree.turns("main"),
        *ledger.find_turns(role="unified"),
    ]
    assert all(each.query_messages for each in everywhere)
    assert turn == ledger.turn(first.id)


def test_a_turn_that_was_read_from_nowhere_says_so(ledger: Ledger) -> None:
    made = ledger.record_turn(session="main", query="a")
    alone = replace(ledger.turn(made.id))
    with pytest.raises(InvalidInput, match="was not read from a ledger"):
        alone.query_messages  # noqa: B018


def test_a_thread_says_its_persona_its_prompt_and_its_key(ledger: Ledger) -> None:
    ledger.record_turn(session="main", system="rules", query="a", response="b")
    ledger.record_turn(session="main", query="c", response="d")
    thread = ledger.thread("main")
    assert thread.turn_id == thread.id
    assert (thread.persona, thread.system_prompt, thread.thread_key) == ("local", "rules", "main#2")
    assert ledger.turn(str(thread.thread_key)).id == thread.id
    bare = ledger.record_turn(query="x")
    assert (ledger.thread(bare.id).thread_key, ledger.thread(bare.id).system_prompt) == (None, None)


def test_a_message_follows_one_that_is_here(ledger: Ledger) -> None:
    first = ledger.record_turn(session="main", query="a", response="b")
    before = ledger.upkeep.stats()["events"]
    for nobody in ("01M7EK42XE0TTJZQCRYZJ07TSY", first.id):
        with pytest.raises(NotFound, match="message"):
            ledger.record_turn(session="main", query={"content": "x", "parent": nobody})
    assert ledger.upkeep.stats()["events"] == before
    with ledger.begin_turn(session="main") as writer:
        said = writer.message({"content": "x", "parent": first.response_message_id})
        answered = writer.response({"content": "y", "parent": said})
        writer.finish()
    assert [message.parent_id for message in ledger.messages(writer.id)] == [first.response_message_id, said]
    assert answered == ledger.messages(writer.id)[1].id
    assert problems(ledger) == []


@pytest.mark.parametrize("part", [TextPart("a"), {"type": "text", "text": "a"}])
def test_a_part_alone_is_no_message(ledger: Ledger, part: Any) -> None:
    for query in (part, [part]):
        with pytest.raises(InvalidInput, match="is a part of a message"):
            ledger.record_turn(session="main", query=query)
