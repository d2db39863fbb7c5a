"""Gemini CLI: how chats become turns, with their branches, compressions and traps."""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path
from typing import Any

import orjson
import pytest

from tests.exchange.fixtures.gemini_cli.chats import (
    AT_MS,
    GEMINI,
    READ_IT,
    SESSION,
    SNAPSHOT,
    Line,
    call,
    dialogue,
    everything,
    gemini,
    header,
    id_of,
    message,
    touched,
    user,
    write,
    write_document,
)
from tests.exchange.reading import Read, called, read, read_one, said, shape, texts_of
from weft.exchange.importers.port import NativeTurn, Tokens
from weft.exchange.importers.testing import as_source
from weft.kernel.enums import AgentRole, FileKind, MessageRole, MessageSource, ToolCallStatus
from weft.ledger.model import FileNote, ImagePart, TextPart


def turns_of(folder: Path, *records: Line) -> list[NativeTurn]:
    return read_one(GEMINI, write(folder, header(), *records)).turns


def test_a_dialogue_is_a_turn_per_prompt(tmp_path: Path) -> None:
    found = read_one(GEMINI, write(tmp_path, *dialogue()))
    assert found.session.id == SESSION
    assert found.session.created == AT_MS
    assert shape(found.turns) == [(id_of("u1"), None), (id_of("u2"), 0)]
    assert texts_of(found.turns[0]) == ["What is this?", "Look\nHm.", "A test."]
    assert [message.role for message in said(found.turns[0])] == [MessageRole.USER, MessageRole.ASSISTANT]
    assert said(found.turns[0])[0].source is MessageSource.HUMAN
    assert said(found.turns[0])[1].model == "gemini-3-pro"


def test_the_document_and_the_log_of_a_chat_give_the_same_turns(tmp_path: Path) -> None:
    """A chat of an older version is written anew as a log when it is resumed."""
    messages = [line for line in dialogue() if "type" in line]
    old = read_one(GEMINI, write_document(tmp_path, *messages)).turns
    new = read_one(GEMINI, write(tmp_path, *dialogue())).turns
    assert [(turn.key, turn.records, turn.items) for turn in old] == [
        (turn.key, turn.records, turn.items) for turn in new
    ]


def test_a_message_that_comes_again_replaces_itself(tmp_path: Path) -> None:
    path = write(
        tmp_path, header(), user("u1", "Read."), gemini("g1", "I read."), touched(), gemini("g1", "I read.", call("c1"))
    )
    (found,), report = read(GEMINI, path)
    (turn,) = found.turns
    assert texts_of(turn) == ["Read.", "I read."]
    assert [each.id for each in called(turn)] == ["c1"]
    assert report.kept == {"gemini.earlier": 1}
    assert report.mapped == {"session": 1, "$set": 1, "user": 1, "gemini": 1}


def test_usage_counts_once_however_often_a_message_is_written(tmp_path: Path) -> None:
    (turn,) = turns_of(tmp_path, user("u1", "Hi"), *[gemini("g1", "Hi")] * 3)
    assert [each.tokens for each in said(turn) if each.tokens] == [
        Tokens(input=63, output=25, cached=40, cache_write=None, reasoning=5)
    ]


def test_cached_tokens_lie_inside_the_input_and_thoughts_beside_the_output(tmp_path: Path) -> None:
    told = {"input": 100, "output": 20, "cached": 40, "thoughts": 5, "tool": 3, "total": 128}
    (turn,) = turns_of(tmp_path, user("u1", "Hi"), {**gemini("g1", "Hi"), "tokens": told})
    (tokens,) = [each.tokens for each in said(turn) if each.tokens]
    assert (tokens.input, tokens.cached, tokens.output, tokens.reasoning) == (63, 40, 25, 5)


class TestRewindTo:
    """`$rewindTo` takes back a message and all after it; the ledger keeps them as a branch."""

    def test_the_next_prompt_follows_what_is_left(self, tmp_path: Path) -> None:
        turns = turns_of(
            tmp_path,
            user("u1", "One"), gemini("g1", "1"), user("u2", "Two"), gemini("g2", "2"), user("u3", "Three"),
            {"$rewindTo": id_of("u2")}, user("u4", "Other"), gemini("g4", "4"),
        )  # fmt: skip
        assert shape(turns) == [(id_of("u1"), None), (id_of("u2"), 0), (id_of("u3"), 1), (id_of("u4"), 0)]

    def test_to_the_beginning_gives_another_root(self, tmp_path: Path) -> None:
        turns = turns_of(tmp_path, user("u1", "One"), gemini("g1", "1"), {"$rewindTo": id_of("u1")}, user("u2", "Two"))
        assert shape(turns) == [(id_of("u1"), None), (id_of("u2"), None)]

    def test_into_an_answer_gives_a_second_answer_to_its_prompt(self, tmp_path: Path) -> None:
        turns = turns_of(
            tmp_path,
            user("u1", "One"), gemini("g1", "1"), gemini("g2", "2"), {"$rewindTo": id_of("g2")}, gemini("g3", "3"),
        )  # fmt: skip
        assert shape(turns) == [(id_of("u1"), None), (f"{id_of('u1')}#{id_of('g3')}", None)]
        assert texts_of(turns[1]) == ["One", "1", "3"]
        assert [bool(each.tokens) for each in said(turns[1])] == [False, False, True]

    def test_to_a_message_that_is_not_there_takes_back_all_of_them_as_the_tool_does(self, tmp_path: Path) -> None:
        path = write(tmp_path, header(), user("u1", "One"), {"$rewindTo": "gone"}, user("u2", "Two"))
        (found,), report = read(GEMINI, path)
        assert shape(found.turns) == [(id_of("u1"), None), (id_of("u2"), None)]
        assert [(problem.line, "not here" in problem.what) for problem in report.problems] == [(3, True)]

    def test_a_taken_back_message_that_is_written_again_is_a_message_of_its_own(self, tmp_path: Path) -> None:
        turns = turns_of(tmp_path, user("u1", "One"), {"$rewindTo": id_of("u1")}, user("u1", "One, again"))
        assert shape(turns) == [(id_of("u1"), None), (f"{id_of('u1')}~2", None)]


class TestAnotherList:
    """`$set` with messages: what the model is shown from then on."""

    def test_a_compression_is_a_turn_that_the_next_one_follows(self, tmp_path: Path) -> None:
        kept = [user("u2", "Two"), gemini("g2", "2")]
        turns = turns_of(
            tmp_path,
            user("u1", "One"), gemini("g1", "1"), *kept,
            message("i1", "info", "Chat history compressed from 9000 to 1200 tokens."),
            {"$set": {"messages": [user("s1", SNAPSHOT), gemini("s2", READ_IT), *kept]}},
            user("u3", "Three"), gemini("g3", "3"),
        )  # fmt: skip
        assert shape(turns) == [(id_of("u1"), None), (id_of("u2"), 0), (id_of("s1"), 1), (id_of("u3"), 2)]
        compaction = turns[2].compaction
        assert compaction is not None
        assert (compaction.summary, compaction.through, compaction.first_kept) == (SNAPSHOT, 0, 1)
        assert (compaction.tokens_before, compaction.tokens_after) == (9000, 1200)
        assert texts_of(turns[2]) == [SNAPSHOT, READ_IT]

    def test_messages_that_got_other_ids_are_known_by_what_they_say(self, tmp_path: Path) -> None:
        asked = [{"text": "2"}, {"functionCall": {"id": "c1", "name": "read_file", "args": {}}}]
        given = [{"functionResponse": {"id": "c1", "name": "read_file", "response": {"output": "text"}}}]
        turns = turns_of(
            tmp_path,
            user("u1", "One"), gemini("g1", "1"), user("u2", "Two"), gemini("g2", "2", call("c1")),
            {"$set": {"messages": [user("x0", "No tag, but a summary."), gemini("x1", READ_IT), user("x2", "Two"),
                                   gemini("x3", asked), user("x4", given)]}},
            {"$rewindTo": id_of("x2")},
            user("u3", "Three"),
        )  # fmt: skip
        assert shape(turns) == [(id_of("u1"), None), (id_of("u2"), 0), (id_of("x0"), 1), (id_of("u3"), 2)]
        assert turns[2].compaction is not None
        assert turns[2].compaction.summary == "No tag, but a summary."

    def test_an_answer_that_was_under_way_goes_on_behind_the_summary(self, tmp_path: Path) -> None:
        turns = turns_of(
            tmp_path,
            user("u1", "One"), gemini("g1", "1", call("c1")),
            {"$set": {"messages": [user("c0", "<session_context>"), user("s1", SNAPSHOT), gemini("s2", READ_IT)]}},
            gemini("g2", "2"),
        )  # fmt: skip
        assert shape(turns) == [(id_of("u1"), None), (id_of("s1"), 0), (f"{id_of('u1')}#{id_of('g2')}", 1)]
        assert texts_of(turns[1]) == [SNAPSHOT, "<session_context>", READ_IT]

    def test_a_prompt_that_was_cancelled_and_taken_back_is_a_branch(self, tmp_path: Path) -> None:
        turns = turns_of(
            tmp_path,
            user("u1", "One"), gemini("g1", "1"), user("u2", "Two"), message("i1", "info", "Request cancelled."),
            {"$set": {"messages": [user("u1", "One"), gemini("g1", "1")]}},
            user("u3", "Three"),
        )  # fmt: skip
        assert shape(turns) == [(id_of("u1"), None), (id_of("u2"), 0), (id_of("u3"), 0)]
        assert [turn.interrupted for turn in turns] == [False, True, False]

    def test_an_output_that_was_masked_later_stays_what_it_was(self, tmp_path: Path) -> None:
        masked = gemini("g1", [{"text": "1"}], call("c1", output="(masked)"))
        turns = turns_of(
            tmp_path,
            user("u1", "One"),
            gemini("g1", "1", call("c1", output="All of it.")),
            {"$set": {"messages": [user("u1", "One"), masked]}},
        )
        assert [each.result for each in called(turns[0])] == ["All of it."]

    def test_what_is_known_only_from_a_list_is_taken_from_there(self, tmp_path: Path) -> None:
        asked = [{"text": "1"}, {"functionCall": {"id": "c1", "name": "glob", "args": {"pattern": "*"}}}]
        given = [{"functionResponse": {"id": "c1", "name": "glob", "response": {"output": "a.py"}}}]
        (turn,) = turns_of(
            tmp_path, {"$set": {"messages": [user("u1", "One"), gemini("g1", asked), user("r1", given)]}}
        )
        assert texts_of(turn) == ["One", "1"]
        assert [(each.name, each.result, each.status) for each in called(turn)] == [("glob", "a.py", ToolCallStatus.OK)]


class TestPromptsThatNobodyTyped:
    @pytest.mark.parametrize(
        "written", ["<session_context>\nToday.", "System: Please continue.", "<hook_context>Rules.</hook_context>"]
    )
    def test_they_belong_to_the_turn_under_way(self, tmp_path: Path, written: str) -> None:
        turns = turns_of(tmp_path, user("u1", "One"), gemini("g1", "1"), user("x1", written), gemini("g2", "2"))
        assert shape(turns) == [(id_of("u1"), None)]
        assert [each.source for each in said(turns[0])][2] is MessageSource.EVENT

    def test_the_context_of_a_session_belongs_to_its_first_turn(self, tmp_path: Path) -> None:
        turns = turns_of(tmp_path, {"$set": {"messages": [user("c0", "<session_context>")]}}, user("u1", "One"))
        assert shape(turns) == [(id_of("u1"), None)]
        assert texts_of(turns[0]) == ["<session_context>", "One"]

    def test_what_was_typed_is_the_prompt_and_what_was_sent_is_beside_it(self, tmp_path: Path) -> None:
        sent = [{"text": "Explain @a.py"}, {"text": "\n--- Content from referenced files ---"},
                {"text": "\nContent from @src/a.py:\n"}, {"text": "x = 1"}]  # fmt: skip
        (turn,) = turns_of(tmp_path, user("u1", sent, displayContent=[{"text": "Explain @a.py"}]))
        (prompt,) = said(turn)
        assert prompt.parts == (TextPart("Explain @a.py"),)
        assert prompt.context["sent"][-1] == "x = 1"
        assert prompt.files == (FileNote(kind=FileKind.ATTACHED, path="src/a.py"),)


def test_notices_are_no_words_of_the_model(tmp_path: Path) -> None:
    turns = turns_of(tmp_path, user("u1", "One"), message("e1", "error", "Quota exceeded."))
    assert [each.role for each in said(turns[0])] == [MessageRole.USER, MessageRole.SYSTEM]
    assert turns[0].error == "Quota exceeded."
    assert (
        turns_of(tmp_path, user("u1", "One"), message("e1", "error", "Try again."), gemini("g1", "1"))[0].error is None
    )


def test_images_are_parts_and_other_bytes_are_named(tmp_path: Path) -> None:
    picture, sound = {"mimeType": "image/png", "data": "AAAA"}, {"mimeType": "audio/wav", "data": "BBBB"}
    (turn,) = turns_of(tmp_path, user("u1", ["See", {"inlineData": picture}, {"inlineData": sound}]))
    (prompt,) = said(turn)
    assert prompt.parts == (TextPart("See"), ImagePart("data:image/png;base64,AAAA"))
    assert prompt.metadata == {"parts": [{"inlineData": "audio/wav"}]}


class TestCalls:
    def one(self, folder: Path, told: Line) -> Any:
        (turn,) = turns_of(folder, user("u1", "Do."), gemini("g1", "", told))
        (found,) = called(turn)
        return found

    def test_an_outcome_in_words_is_a_text(self, tmp_path: Path) -> None:
        found = self.one(tmp_path, call("c1", "run_shell_command", "a.txt", args={"command": "ls"}))
        assert (found.id, found.result, found.status, found.done) == ("c1", "a.txt", ToolCallStatus.OK, AT_MS)

    @pytest.mark.parametrize(
        ("status", "expected"), [("error", ToolCallStatus.ERROR), ("cancelled", ToolCallStatus.CANCELED)]
    )
    def test_a_failure_is_an_error(self, tmp_path: Path, status: str, expected: ToolCallStatus) -> None:
        found = self.one(tmp_path, call("c1", output="No such file.", status=status))
        assert (found.status, found.error, found.files) == (expected, "No such file.", ())

    def test_one_that_has_not_ended_has_no_outcome(self, tmp_path: Path) -> None:
        found = self.one(tmp_path, {**call("c1"), "status": "executing", "result": None})
        assert (found.status, found.done) == (None, None)

    def test_a_subagent_is_named_by_the_call_that_started_it(self, tmp_path: Path) -> None:
        found = self.one(tmp_path, call("c1", "codebase_investigator", agentId="abc123"))
        assert found.spawned == "abc123"

    @pytest.mark.parametrize(
        ("name", "args", "note"),
        [
            ("read_file", {"file_path": "a"}, FileNote(kind=FileKind.READ, path="a")),
            ("read_file", {"absolute_path": "/a", "offset": 10, "limit": 5},
             FileNote(kind=FileKind.READ, path="/a", line_start=11, line_end=15)),
            ("read_file", {"file_path": "a", "start_line": 3, "end_line": 9},
             FileNote(kind=FileKind.READ, path="a", line_start=3, line_end=9)),
            ("write_file", {"file_path": "a"}, FileNote(kind=FileKind.WRITTEN, path="a")),
            ("read_many_files", {"include": ["a", "*.py"]}, FileNote(kind=FileKind.READ, path="a")),
            ("list_directory", {"dir_path": "src"}, FileNote(kind=FileKind.REFERENCED, path="src")),
        ],
    )  # fmt: skip
    def test_files_are_noted(self, tmp_path: Path, name: str, args: Line, note: FileNote) -> None:
        assert self.one(tmp_path, call("c1", name, args=args)).files == (note,)

    def test_a_shown_change_tells_the_lines(self, tmp_path: Path) -> None:
        diff = "--- a\n+++ a\n@@ -1,2 +1,3 @@\n+x\n@@ -9 +10,0 @@\n-y\n"
        shown = {
            "fileDiff": diff,
            "fileName": "a",
            "filePath": "/shop/a",
            "originalContent": "long",
            "newContent": "long",
        }
        found = self.one(tmp_path, call("c1", "replace", args={"file_path": "a"}, resultDisplay=shown))
        assert [(note.path, note.line_start, note.line_end) for note in found.files] == [
            ("/shop/a", 1, 3),
            ("/shop/a", 10, 10),
        ]
        assert "originalContent" not in found.detail["shown"]


class TestWhereAFileLies:
    def test_the_folder_of_a_project_is_found_beside_its_chats(self, tmp_path: Path) -> None:
        path = write(tmp_path / "tmp/shop/chats", *dialogue())
        (tmp_path / "tmp/shop/.project_root").write_text("/shop\n")
        found = read_one(GEMINI, path)
        assert (found.session.workspace, found.turns[0].workspace) == ("/shop", "/shop")

    @pytest.mark.parametrize("told", [{"/shop": "shop-1"}, {"/other": "x", "/shop": "y"}])
    def test_or_in_the_list_of_projects_by_name_or_hash(self, tmp_path: Path, told: dict[str, str]) -> None:
        folder = "shop-1" if "shop-1" in told.values() else sha256(b"/shop").hexdigest()
        path = write(tmp_path / f".gemini/tmp/{folder}/chats", *dialogue())
        (tmp_path / ".gemini/projects.json").write_bytes(orjson.dumps({"projects": told}))
        assert read_one(GEMINI, path).session.workspace == "/shop"

    def test_a_subagent_lies_in_the_folder_of_who_started_it(self, tmp_path: Path) -> None:
        path = write(
            tmp_path / f"tmp/shop/chats/{SESSION}",
            header(sessionId="abc123", kind="subagent"),
            *dialogue()[1:],
            name="abc123.jsonl",
        )
        found = read_one(GEMINI, path)
        assert (found.session.id, found.session.parent) == ("abc123", SESSION)
        assert found.turns[0].role is AgentRole.WORKER
        assert said(found.turns[0])[0].source is MessageSource.AGENT

    def test_the_usual_place_can_be_moved(self, tmp_path: Path) -> None:
        assert [place.path for place in GEMINI.places(tmp_path, {})] == [tmp_path / ".gemini/tmp"]
        assert [place.path for place in GEMINI.places(tmp_path, {"GEMINI_CLI_HOME": "/g"})] == [Path("/g/.gemini/tmp")]


class TestPromptsAlone:
    LOG = (
        {
            "sessionId": SESSION,
            "messageId": 0,
            "type": "user",
            "message": "One",
            "timestamp": "2026-01-02T03:04:05.006Z",
        },
        {
            "sessionId": "other",
            "messageId": 0,
            "type": "user",
            "message": "Two",
            "timestamp": "2026-01-02T03:04:05.006Z",
        },
        {
            "sessionId": SESSION,
            "messageId": 1,
            "type": "user",
            "message": "/quit",
            "timestamp": "2026-01-02T03:04:05.006Z",
        },
    )

    def log(self, folder: Path, *entries: Any) -> Path:
        path = folder / "tmp/shop/logs.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(orjson.dumps(list(entries), option=orjson.OPT_INDENT_2))
        return path

    def test_a_log_without_chats_gives_its_prompts(self, tmp_path: Path) -> None:
        found, report = read(GEMINI, self.log(tmp_path, *self.LOG))
        assert [(each.session.id, [texts_of(turn) for turn in each.turns]) for each in found] == [
            (SESSION, [["One"], ["/quit"]]),
            ("other", [["Two"]]),
        ]
        assert report.mapped == {"log.prompt": 3}
        assert found[1].raw is not None
        assert orjson.loads(found[1].raw) == self.LOG[1]

    def test_prompts_of_a_chat_that_is_here_are_left_to_it(self, tmp_path: Path) -> None:
        write(tmp_path / "tmp/shop/chats", *dialogue())
        found, report = read(GEMINI, self.log(tmp_path, *self.LOG))
        assert [each.session.id for each in found] == ["other"]
        assert (report.mapped, report.kept) == ({"log.prompt": 1}, {"log.prompt": 2})

    def test_what_is_no_prompt_is_kept(self, tmp_path: Path) -> None:
        _, report = read(GEMINI, self.log(tmp_path, *self.LOG, 7, {"type": "model"}))
        assert (report.damaged, report.unknown) == (1, {"log.other": 1})


class TestSavedChats:
    HISTORY = (
        {"role": "user", "parts": [{"text": "Hi"}]},
        {"role": "model", "parts": [{"text": "Hello"}, {"functionCall": {"id": "f", "name": "glob", "args": {}}}]},
        {"role": "user", "parts": [{"functionResponse": {"id": "f", "name": "glob", "response": {"error": "No."}}}]},
        {"role": "model", "parts": [{"text": "Sorry."}]},
    )

    @pytest.mark.parametrize("is_bare", [True, False])
    def test_a_chat_saved_under_a_name_is_a_session(self, tmp_path: Path, is_bare: bool) -> None:
        path = tmp_path / "tmp/shop/checkpoint-my%20idea.json"
        path.parent.mkdir(parents=True)
        path.write_bytes(orjson.dumps(self.HISTORY if is_bare else {"history": self.HISTORY, "authType": "key"}))
        found = read_one(GEMINI, path)
        assert (found.session.id, found.session.title) == ("shop/checkpoint-my%20idea", "my idea")
        (turn,) = found.turns
        assert texts_of(turn) == ["Hi", "Hello", "Sorry."]
        assert [(each.error, each.status) for each in called(turn)] == [("No.", ToolCallStatus.ERROR)]


def test_every_kind_of_record_is_mapped_kept_or_unknown(tmp_path: Path) -> None:
    (found,), report = read(GEMINI, write(tmp_path, *everything()))
    assert report.unknown == {"untyped": 1, "message.hologram": 1}
    assert report.kept == {"untyped": 1, "message.hologram": 1, "gemini.earlier": 1}
    assert found.session.title == "Books"
    assert len(found.turns) == 5


def test_only_what_no_other_message_can_change_is_closed(tmp_path: Path) -> None:
    """A response is written before its calls are: nothing says that it is complete."""
    assert [turn.closed for turn in read_one(GEMINI, write(tmp_path, *dialogue())).turns] == [True, False]


def test_ids_that_anybody_could_have_carry_their_session(tmp_path: Path) -> None:
    short = [{**user(None, "One"), "id": "m1"}, {**gemini(None, "1"), "id": "m2"}, user(None, "Two")]
    found = read_one(GEMINI, write_document(tmp_path, *short))
    assert shape(found.turns) == [(f"{SESSION}/m1", None), (f"{SESSION}#2", 0)]


@pytest.mark.parametrize(
    "data",
    [
        b'{"type":"user","sessionId":"x","uuid":"y","message":{"role":"user","content":"hi"}}\n',
        b'{"history": [{"role": "user", "parts": [{"text": "x"}]}]}',
        b'[{"role": "user", "content": "x"}]',
        b'{"info": {"id": "ses_1"}, "messages": []}',
    ],
)
def test_files_of_others_are_not_its_own(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "other.json"
    path.write_bytes(data)
    assert not GEMINI.recognises(as_source(path))


def test_turns_are_read_again_from_where_they_lie(tmp_path: Path) -> None:
    path = write(tmp_path, *everything())
    data = path.read_bytes()
    found: Read = read_one(GEMINI, path)
    assert all(0 <= turn.offset < turn.end <= len(data) for turn in found.turns)
