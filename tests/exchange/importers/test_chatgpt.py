"""ChatGPT: how the tree of a conversation becomes turns, with its traps."""

from __future__ import annotations

import tracemalloc
import zipfile
from pathlib import Path

import orjson
import pytest

import weft
from tests.exchange.fixtures.chatgpt.conversations import (
    AT_MS,
    CHATGPT,
    CONVERSATION,
    Line,
    assistant,
    conversation,
    dialogue,
    everything,
    id_of,
    node,
    user,
    write,
)
from tests.exchange.reading import called, read, read_one, said, shape, texts_of
from weft.exchange.importers.port import NativeTurn, Report
from weft.exchange.importers.testing import as_source
from weft.exchange.importing.run import ImportRun
from weft.kernel.clock import FixedClock
from weft.kernel.enums import FileKind, MessageRole, MessageSource, ToolCallStatus
from weft.ledger.model import FileNote, ImagePart, ReasoningPart, TextPart


def turns_of(folder: Path, *nodes: Line, current: str | None = None) -> list[NativeTurn]:
    return read_one(CHATGPT, write(folder, conversation(*nodes, current=current))).turns


def test_a_conversation_is_a_session_and_a_prompt_is_a_turn(tmp_path: Path) -> None:
    found = read_one(CHATGPT, write(tmp_path, conversation(*dialogue(), is_archived=True, gizmo_id="g-1")))
    session = found.session
    assert (session.id, session.title, session.created, session.archived) == (CONVERSATION, "Books", AT_MS, True)
    assert session.metadata["gizmo_id"] == "g-1"
    assert shape(found.turns) == [(id_of("u1"), None), (id_of("u2"), 0)]
    assert texts_of(found.turns[0]) == ["What is this?", "A test."]
    assert [each.source for each in said(found.turns[0])] == [MessageSource.HUMAN, None]
    assert (said(found.turns[0])[1].model, said(found.turns[0])[1].at) == ("gpt-5", AT_MS)
    assert said(found.turns[0])[1].tokens is None


def test_a_message_without_a_time_has_none(tmp_path: Path) -> None:
    nodes = [node("r", None), user("u1", "r", "Hi", create_time=None), assistant("a1", "u1", "Yes", create_time=None)]
    (turn,) = read_one(CHATGPT, write(tmp_path, conversation(*nodes))).turns
    assert (turn.started, turn.ended, [each.at for each in said(turn)]) == (None, None, [None, None])


def test_an_export_tells_of_no_tokens(tmp_path: Path) -> None:
    found = read_one(CHATGPT, write(tmp_path, conversation(*everything())))
    assert {each.tokens for turn in found.turns for each in said(turn)} == {None}


def test_mapping_order_is_not_conversation_order(tmp_path: Path) -> None:
    told = conversation(*dialogue())
    told["mapping"] = dict(reversed(told["mapping"].items()))
    assert shape(read_one(CHATGPT, write(tmp_path, told)).turns) == [(id_of("u1"), None), (id_of("u2"), 0)]


class TestBranches:
    def test_a_second_answer_is_a_turn_beside_the_first(self, tmp_path: Path) -> None:
        turns = turns_of(tmp_path, user("u1", None, "Hi"), assistant("a1", "u1", "1"), assistant("a2", "u1", "2"))
        assert shape(turns) == [(id_of("u1"), None), (f"{id_of('u1')}#{id_of('a2')}", None)]

    def test_an_edited_prompt_is_a_branch(self, tmp_path: Path) -> None:
        turns = turns_of(tmp_path, *dialogue(), user("u3", "a1", "Thank you."))
        assert shape(turns) == [(id_of("u1"), None), (id_of("u2"), 0), (id_of("u3"), 0)]

    @pytest.mark.parametrize(("current", "stands_on"), [("a2", "Welcome."), ("u3", "Thank you.")])
    def test_a_session_stands_on_the_current_node(self, tmp_path: Path, current: str, stands_on: str) -> None:
        path = write(tmp_path, conversation(*dialogue(), user("u3", "a1", "Thank you."), current=current))
        with weft.open(tmp_path / "ledger.db") as ledger:
            ImportRun(ledger, [CHATGPT], FixedClock(10**13)).run([path])
            (session,) = ledger.sessions()
            assert [message.text for message in ledger.thread(session.label).messages][-1] == stands_on

    def test_a_current_node_that_is_missing_is_the_one_made_last(self, tmp_path: Path) -> None:
        late = user("u3", "a1", "Thank you.", create_time=2_000_000_000.0)
        told = conversation(*dialogue(), late, assistant("a4", "a1", "More."))
        told["current_node"] = "gone"
        turns = read_one(CHATGPT, write(tmp_path, told)).turns
        assert max(turns, key=lambda turn: turn.end).key == id_of("u3")

    def test_a_later_export_moves_the_session_on_wherever_it_lies_in_the_file(self, tmp_path: Path) -> None:
        before = write(
            tmp_path, *(conversation(*dialogue(), id=f"other-{k}") for k in range(9)), conversation(*dialogue()[:3])
        )
        after = write(tmp_path, conversation(*dialogue()), name="later.json")
        with weft.open(tmp_path / "ledger.db") as ledger:
            ImportRun(ledger, [CHATGPT], FixedClock(10**13)).run([before, after])
            assert [message.text for message in ledger.thread(CONVERSATION).messages][-1] == "Welcome."
            assert list(ledger.verify()) == []


class TestHiddenNodes:
    def test_those_without_words_have_no_place(self, tmp_path: Path) -> None:
        nodes = [node("r", None), node("s1", "r", "system", "", weight=0), user("u1", "s1", "Hi"),
                 node("s2", "u1", "system", ""), assistant("a1", "s2", "Hello")]  # fmt: skip
        (found,), report = read(CHATGPT, write(tmp_path, conversation(*nodes)))
        assert shape(found.turns) == [(id_of("u1"), None)]
        assert texts_of(found.turns[0]) == ["Hi", "Hello"]
        assert report.kept == {"node": 1, "system.text.empty": 2}

    def test_what_a_person_wrote_about_themselves_is_no_prompt(self, tmp_path: Path) -> None:
        about = {"content_type": "user_editable_context", "user_profile": "I sell.", "user_instructions": "Be brief."}
        (turn,) = turns_of(tmp_path, user("c1", None, about), user("u1", "c1", "Hi"), assistant("a1", "u1", "Hello"))
        assert turn.key == id_of("u1")
        assert texts_of(turn) == ["I sell.", "Be brief.", "Hi", "Hello"]
        assert [each.source for each in said(turn)][:2] == [MessageSource.EVENT, MessageSource.HUMAN]

    def test_a_hidden_prompt_is_told_as_one(self, tmp_path: Path) -> None:
        hidden = {"is_visually_hidden_from_conversation": True}
        (turn,) = turns_of(
            tmp_path, user("u1", None, "Hi"), assistant("a1", "u1", "1"), user("u2", "a1", "Go on.", metadata=hidden)
        )
        assert said(turn)[2].metadata["hidden"] is True
        assert said(turn)[2].source is MessageSource.EVENT


class TestCalls:
    def test_a_message_for_a_tool_is_a_call_and_what_follows_is_its_outcome(self, tmp_path: Path) -> None:
        code = {"content_type": "code", "language": "python", "text": "print(1)"}
        out = {"content_type": "execution_output", "text": "1"}
        (turn,) = turns_of(
            tmp_path, user("u1", None, "Count."), assistant("p1", "u1", code, recipient="python"),
            node("x1", "p1", "tool", out, author={"role": "tool", "name": "python"}), assistant("a1", "x1", "One."),
        )  # fmt: skip
        (call,) = called(turn)
        assert (call.id, call.name, call.arguments, call.result, call.status) == (
            id_of("p1"), "python", "print(1)", "1", ToolCallStatus.OK,
        )  # fmt: skip
        assert [each.role for each in said(turn)] == [MessageRole.USER, MessageRole.ASSISTANT, MessageRole.ASSISTANT]

    def test_several_outcomes_are_all_of_them(self, tmp_path: Path) -> None:
        asked = assistant("b1", "u1", {"content_type": "code", "text": '{"query": "books"}'}, recipient="browser")
        quote = {"content_type": "tether_quote", "url": "https://b", "title": "B", "text": "Books."}
        image = {
            "content_type": "multimodal_text",
            "parts": [{"content_type": "image_asset_pointer", "asset_pointer": "sediment://f"}],
        }
        (turn,) = turns_of(
            tmp_path, user("u1", None, "Look."), asked, node("q1", "b1", "tool", quote), node("q2", "q1", "tool", image)
        )
        (call,) = called(turn)
        assert call.arguments == {"query": "books"}
        assert call.result == ["B\nhttps://b\nBooks.", {"image": "sediment://f"}]

    def test_one_that_failed(self, tmp_path: Path) -> None:
        error = {"content_type": "system_error", "name": "Oops", "text": "No."}
        (turn,) = turns_of(
            tmp_path,
            user("u1", None, "Go."),
            assistant("b1", "u1", "x", recipient="tool"),
            node("q1", "b1", "tool", error),
        )
        assert [(call.error, call.status) for call in called(turn)] == [("Oops: No.", ToolCallStatus.ERROR)]

    def test_a_tools_message_without_a_call_is_a_message(self, tmp_path: Path) -> None:
        (turn,) = turns_of(tmp_path, user("u1", None, "Go."), node("q1", "u1", "tool", "By itself."))
        assert [each.role for each in said(turn)] == [MessageRole.USER, MessageRole.TOOL]


def test_images_are_named_by_where_they_lie_and_attachments_are_noted(tmp_path: Path) -> None:
    (found,), _ = read(CHATGPT, write(tmp_path, conversation(*everything())))
    prompt = said(found.turns[0])[1]
    assert prompt.parts == (TextPart("See."), ImagePart("file-service://file-1"))
    assert prompt.files == (FileNote(kind=FileKind.ATTACHED, path="list.csv"),)
    assert prompt.metadata["content"] == [{"asset_pointer": "file-service://file-1", "size_bytes": 9, "width": 3}]


def test_thoughts_are_thinking(tmp_path: Path) -> None:
    thoughts = {"content_type": "thoughts", "thoughts": [{"summary": "Look", "content": "Hm."}]}
    recap = {"content_type": "reasoning_recap", "content": "Thought for 2 s"}
    (turn,) = turns_of(tmp_path, user("u1", None, "Hi"), assistant("t1", "u1", thoughts), assistant("t2", "t1", recap))
    assert [part for each in said(turn)[1:] for part in each.parts] == [
        ReasoningPart("Look\nHm."),
        ReasoningPart("Thought for 2 s"),
    ]


def test_an_answer_that_was_stopped_interrupts_its_turn(tmp_path: Path) -> None:
    stopped = assistant("a1", "u1", "So.", metadata={"finish_details": {"type": "interrupted"}})
    (turn,) = turns_of(tmp_path, user("u1", None, "Hi"), stopped)
    assert turn.interrupted
    assert said(turn)[1].finish_reason == "interrupted"


def test_every_node_is_mapped_kept_or_unknown(tmp_path: Path) -> None:
    (found,), report = read(CHATGPT, write(tmp_path, conversation(*everything())))
    assert report.found == 1 + len(everything())
    assert report.unknown == {"user.hologram": 1}
    assert report.damaged == 0
    assert len(found.turns) == 5


class TestExports:
    def test_each_conversation_is_kept_to_the_letter(self, tmp_path: Path) -> None:
        told = [conversation(*dialogue(), id=f"c-{k}") for k in range(3)]
        found, _ = read(CHATGPT, write(tmp_path, *told))
        assert [orjson.loads(each.raw or b"") for each in found] == told

    @pytest.mark.parametrize("wrapped", [False, True])
    def test_one_alone_and_a_list_within_an_object(self, tmp_path: Path, wrapped: bool) -> None:
        told = conversation(*dialogue())
        path = tmp_path / "conversation.json"
        path.write_bytes(
            orjson.dumps(
                {"version": 1, "conversations": [told, told | {"id": "x", "conversation_id": "x"}]} if wrapped else told
            )
        )
        assert CHATGPT.recognises(as_source(path))
        found, _ = read(CHATGPT, path)
        assert [each.session.id for each in found] == ([CONVERSATION, "x"] if wrapped else [CONVERSATION])

    def test_inside_its_archive(self, tmp_path: Path) -> None:
        path = write(tmp_path, conversation(*dialogue()))
        with zipfile.ZipFile(tmp_path / "export.zip", "w") as archive:
            archive.write(path, "conversations.json")
            archive.writestr("user.json", '{"id": "user-1"}')
            archive.writestr("file-1.png", b"\x89PNG")
        with weft.open(tmp_path / "ledger.db") as ledger:
            summary = ImportRun(ledger, [CHATGPT], FixedClock(10**13)).run([tmp_path / "export.zip"])
            assert summary.of("chatgpt").counts.turns == 2
            assert [session.label for session in ledger.sessions()] == [CONVERSATION]

    @pytest.mark.slow("counts every allocation while 23 MB are read")
    def test_memory_does_not_grow_with_the_export(self, tmp_path: Path) -> None:
        big = orjson.dumps(conversation(*dialogue(), user("u9", "a2", "lorem ipsum " * 16000)))
        path = tmp_path / "conversations.json"
        path.write_bytes(b"[" + b",".join([big] * 120) + b"]")
        tracemalloc.start()
        try:
            assert sum(len(list(each.turns)) for each in CHATGPT.read(as_source(path), Report("x"))) == 360
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert peak < path.stat().st_size / 2


def test_an_export_has_no_usual_place(tmp_path: Path) -> None:
    assert CHATGPT.places(tmp_path, {}) == []
