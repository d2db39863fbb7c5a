"""Claude.ai: how the messages of an export become turns, with projects, attachments and branches."""

from __future__ import annotations

import zipfile
from pathlib import Path

import orjson
import pytest

import weft
from tests.exchange.fixtures.claude_ai.exports import (
    AT_MS,
    CLAUDE,
    CONVERSATION,
    Line,
    assistant,
    conversation,
    dialogue,
    everything,
    human,
    id_of,
    project,
    result,
    use,
    write,
)
from tests.exchange.fixtures.claude_ai.exports import said as says
from tests.exchange.reading import called, read, read_one, said, shape, texts_of
from weft.exchange.importers.port import NativeTurn
from weft.exchange.importers.testing import as_source
from weft.exchange.importing.run import ImportRun
from weft.kernel.clock import FixedClock
from weft.kernel.enums import FileKind, MessageRole, MessageSource, ToolCallStatus
from weft.ledger.model import FileNote, TextPart


def turns_of(folder: Path, *messages: Line) -> list[NativeTurn]:
    return read_one(CLAUDE, write(folder, conversation(*messages))).turns


def test_a_conversation_is_a_session_and_a_prompt_is_a_turn(tmp_path: Path) -> None:
    inside = {"uuid": id_of("p1"), "name": "Shop"}
    found = read_one(CLAUDE, write(tmp_path, conversation(*dialogue(), project=inside, is_starred=True)))
    assert (found.session.id, found.session.title, found.session.created) == (CONVERSATION, "Books", AT_MS)
    assert found.session.metadata == {"is_starred": True, "project": inside}
    assert shape(found.turns) == [(id_of("u1"), None), (id_of("u2"), 0)]
    assert texts_of(found.turns[0]) == ["What is this?", "Hm.", "A test."]
    assert said(found.turns[0])[0].source is MessageSource.HUMAN
    assert said(found.turns[0])[1].model is None


class TestBranches:
    def test_they_are_told_by_parent_message_uuid(self, tmp_path: Path) -> None:
        again, edited = assistant("a3", "u1", "Another."), human("u3", "a1", "Thank you.")
        assert shape(turns_of(tmp_path, *dialogue(), again, edited)) == [
            (id_of("u1"), None), (id_of("u2"), 0), (id_of("u3"), 0), (f"{id_of('u1')}#{id_of('a3')}", None),
        ]  # fmt: skip

    def test_without_parents_each_message_follows_the_one_before(self, tmp_path: Path) -> None:
        older = [{name: value for name, value in each.items() if name != "parent_message_uuid"} for each in dialogue()]
        assert shape(turns_of(tmp_path, *older)) == [(id_of("u1"), None), (id_of("u2"), 0)]

    @pytest.mark.parametrize(("leaf", "stands_on"), [("a2", "Welcome."), ("u3", "Thank you."), (None, "Thank you.")])
    def test_a_session_stands_on_its_leaf(self, tmp_path: Path, leaf: str | None, stands_on: str) -> None:
        told = conversation(*dialogue(), human("u3", "a1", "Thank you.", created_at="2026-01-03T00:00:00Z"))
        if leaf is not None:
            told["current_leaf_message_uuid"] = id_of(leaf)
        with weft.open(tmp_path / "ledger.db") as ledger:
            ImportRun(ledger, [CLAUDE], FixedClock(10**13)).run([write(tmp_path, told)])
            assert [message.text for message in ledger.thread(CONVERSATION).messages][-1] == stands_on

    def test_a_parent_that_is_not_there_begins_a_tree(self, tmp_path: Path) -> None:
        assert shape(turns_of(tmp_path, human("u1", "gone", "Hi"), assistant("a1", "u1", "Hello"))) == [
            (id_of("u1"), None)
        ]


class TestCalls:
    def test_a_call_stands_between_two_responses(self, tmp_path: Path) -> None:
        blocks = [says("I look."), use("web_search", {"query": "books"}), result("web_search", "Found."), says("So.")]
        (turn,) = turns_of(tmp_path, human("u1", None, "Look."), assistant("a1", "u1", blocks))
        assert [type(item).__name__ for item in turn.items] == [
            "NativeMessage",
            "NativeMessage",
            "NativeCall",
            "NativeMessage",
        ]
        assert [each.native for each in said(turn)] == [id_of("u1"), id_of("a1"), f"{id_of('a1')}#1"]
        (call,) = called(turn)
        assert (call.name, call.arguments, call.result, call.status, call.at, call.done) == (
            "web_search", {"query": "books"}, "Found.", ToolCallStatus.OK, AT_MS, AT_MS,
        )  # fmt: skip

    def test_results_that_name_no_call_go_to_the_first_of_their_tool(self, tmp_path: Path) -> None:
        blocks = [use("a", 1), use("b", 2), result("b", "B"), result("a", "A"), use("a", 3)]
        (turn,) = turns_of(tmp_path, human("u1", None, "Go."), assistant("a1", "u1", blocks))
        assert [(call.name, call.result if call.status else None) for call in called(turn)] == [
            ("a", "A"),
            ("b", "B"),
            ("a", None),
        ]

    def test_results_that_name_a_call_go_to_it(self, tmp_path: Path) -> None:
        blocks = [
            use("a", 1, id="t1"),
            use("a", 2, id="t2"),
            result("a", "2", tool_use_id="t2"),
            result("a", "?", tool_use_id="t9"),
        ]
        (turn,) = turns_of(tmp_path, human("u1", None, "Go."), assistant("a1", "u1", blocks))
        assert [call.status for call in called(turn)] == [None, ToolCallStatus.OK]
        assert said(turn)[-1].role is MessageRole.TOOL

    def test_one_that_failed_and_files_that_were_touched(self, tmp_path: Path) -> None:
        blocks = [use("view", {"path": "/a"}), result("view", "No.", is_error=True),
                  use("create_file", {"path": "/b"}), result("create_file", "Made.")]  # fmt: skip
        (turn,) = turns_of(tmp_path, human("u1", None, "Go."), assistant("a1", "u1", blocks))
        assert [(call.error, call.files) for call in called(turn)] == [
            ("No.", ()), (None, (FileNote(kind=FileKind.WRITTEN, path="/b"),)),
        ]  # fmt: skip


class TestAttachments:
    def test_what_was_pasted_is_part_of_the_prompt(self, tmp_path: Path) -> None:
        """A long paste is an attachment without a name, and often all that a prompt has."""
        paste = {"file_name": "", "file_type": "txt", "file_size": 9, "extracted_content": "A long text."}
        (turn,) = turns_of(tmp_path, human("u1", None, [], attachments=[paste]))
        assert said(turn)[0].parts == (TextPart("A long text."),)

    def test_files_are_noted_once_though_told_twice(self, tmp_path: Path) -> None:
        file = {"file_name": "a.png", "file_uuid": "f-1", "file_kind": "image"}
        (turn,) = turns_of(tmp_path, human("u1", None, "See.", files=[file], files_v2=[file]))
        assert said(turn)[0].files == (FileNote(kind=FileKind.ATTACHED, path="a.png"),)
        assert said(turn)[0].metadata == {"files": [file]}


def test_text_is_taken_where_there_are_no_blocks(tmp_path: Path) -> None:
    (turn,) = turns_of(tmp_path, human("u1", None, [], text="Hi"), assistant("a1", "u1", "Hello", text="not this"))
    assert texts_of(turn) == ["Hi", "Hello"]


def test_an_answer_that_was_stopped_interrupts_its_turn(tmp_path: Path) -> None:
    stopped = turns_of(tmp_path, human("u1", None, "Hi"), assistant("a1", "u1", "He", stop_reason="user_canceled"))
    cut = turns_of(
        tmp_path,
        human("u1", None, "Hi"),
        assistant("a1", "u1", [{"type": "thinking", "thinking": "H", "cut_off": True}]),
    )
    assert [turn.interrupted for turn in (*stopped, *cut)] == [True, True]


def test_every_message_is_mapped_kept_or_unknown(tmp_path: Path) -> None:
    (found,), report = read(CLAUDE, write(tmp_path, conversation(*everything(), 7)))
    assert (report.found, report.damaged) == (2 + len(everything()), 1)
    assert report.unknown == {"message.oracle": 1}
    assert len(found.turns) == 3


class TestProjects:
    @pytest.mark.parametrize("is_listed", [True, False])
    def test_a_project_is_a_session_with_its_instructions_and_documents(self, tmp_path: Path, is_listed: bool) -> None:
        path = tmp_path / "projects.json"
        path.write_bytes(orjson.dumps([project()] if is_listed else project()))
        assert CLAUDE.recognises(as_source(path))
        (found,), report = read(CLAUDE, path)
        assert (found.session.id, found.session.title) == (f"project/{id_of('p1')}", "Shop")
        (turn,) = found.turns
        assert texts_of(turn) == ["Be brief.", "# Prices"]
        assert said(turn)[1].files == (FileNote(kind=FileKind.ATTACHED, path="prices.md"),)
        assert report.mapped == {"project": 1, "project.document": 1}


def test_an_export_in_its_archive(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "data.zip", "w") as archive:
        archive.writestr("conversations.json", orjson.dumps([conversation(*dialogue())]))
        archive.writestr("projects.json", orjson.dumps([project()]))
        archive.writestr("users.json", orjson.dumps([{"uuid": "acc", "full_name": "A"}]))
    with weft.open(tmp_path / "ledger.db") as ledger:
        summary = ImportRun(ledger, [CLAUDE], FixedClock(10**13)).run([tmp_path / "data.zip"])
        assert summary.of("claude-ai").counts.turns == 3
        assert [Path(name).name for name in summary.unrecognised] == ["data.zip!users.json"]
        assert list(ledger.verify()) == []


def test_an_export_has_no_usual_place(tmp_path: Path) -> None:
    assert CLAUDE.places(tmp_path, {}) == []
