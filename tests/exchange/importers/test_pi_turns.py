"""The tree of a pi session as turns: branches, second answers, compactions, injected messages."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.exchange.fixtures.pi.sessions import (
    AT,
    AT_MS,
    SESSION,
    USAGE,
    Line,
    assistant,
    call,
    called,
    dialogue,
    entry,
    header,
    message,
    read,
    result,
    said,
    turns_of,
    user,
    words,
    write,
)
from weft.exchange.importers.port import Tokens
from weft.kernel.enums import MessageRole, MessageSource, ToolCallStatus
from weft.ledger.model import ImagePart, ReasoningPart, TextPart


def test_a_turn_is_a_prompt_up_to_the_next_one(tmp_path: Path) -> None:
    first, second = turns_of(tmp_path, *dialogue())
    assert (first.key, first.parent, second.key, second.parent) == ("u1", None, "u2", 0)
    assert words(first) == ["What is this?", "Hm.", "A test."]
    assert (first.names, first.started) == (("u1", "a1"), AT_MS)
    assert first.closed
    assert second.closed


def test_a_response_tells_its_model_cost_and_end(tmp_path: Path) -> None:
    records = dialogue()
    records[4]["message"] |= {"responseId": "r1", "usage": {**USAGE, "reasoning": 7}, "duration": 12.5}
    response = said(turns_of(tmp_path, *records)[0])[1]
    assert (response.native, response.model, response.provider, response.finish_reason) == (
        "a1",
        "large",
        "acme",
        "stop",
    )
    assert response.tokens == Tokens(input=10, output=20, cached=30, cache_write=5, reasoning=7)
    assert response.parts == (ReasoningPart("Hm."), TextPart("A test."))
    assert response.metadata == {"api": "messages", "responseId": "r1", "duration": 12.5, "cost": {"total": 0.5}}
    assert response.at == AT_MS


def test_a_branch_grows_from_an_older_turn(tmp_path: Path) -> None:
    turns = turns_of(
        tmp_path, *dialogue(), user("u3", "a1", "Or rather:"), assistant("a3", "u3", "Well."), user("u4", "a2", "Back.")
    )
    assert [(turn.key, turn.parent) for turn in turns] == [("u1", None), ("u2", 0), ("u3", 0), ("u4", 1)]


def test_an_edited_first_prompt_is_another_root(tmp_path: Path) -> None:
    turns = turns_of(tmp_path, *dialogue(), user("u3", None, "Afresh."), assistant("a3", "u3", "Yes."))
    assert [(turn.key, turn.parent) for turn in turns][2:] == [("u3", None)]


def test_a_second_answer_to_a_prompt_is_a_turn_with_the_same_prompt(tmp_path: Path) -> None:
    turns = turns_of(tmp_path, *dialogue(), assistant("a3", "u2", "You are very welcome."), user("u3", "a3", "Indeed."))
    again = turns[2]
    assert (again.key, again.parent, turns[3].parent) == ("u2#a3", 0, 2)
    assert words(again) == ["Thanks.", "You are very welcome."]
    assert again.names == ("u2", "a3")


def test_shared_entries_of_a_second_answer_are_counted_once(tmp_path: Path) -> None:
    _, report = read(write(tmp_path, *dialogue(), assistant("a3", "u2", "Once more.")))
    assert report.mapped["message.user"] == 2
    assert report.mapped["message.assistant"] == 3


def test_a_branch_in_the_middle_of_an_answer_repeats_its_beginning(tmp_path: Path) -> None:
    turns = turns_of(
        tmp_path,
        header(),
        user("u1", None, "Look."),
        assistant("a1", "u1", call("c1")),
        result("r1", "a1", "c1"),
        assistant("a2", "r1", "First."),
        assistant("a3", "r1", "Second."),
    )
    assert [turn.key for turn in turns] == ["u1", "u1#a3"]
    assert [[each.id for each in called(turn)] for turn in turns] == [["c1"], ["c1"]]
    assert called(turns[1])[0].result == "done"


def test_responses_that_two_answers_share_cost_once(tmp_path: Path) -> None:
    turns = turns_of(
        tmp_path,
        header(),
        user("u1", None, "Look."),
        assistant("a1", "u1", call("c1")),
        result("r1", "a1", "c1"),
        assistant("a2", "r1", "First."),
        assistant("a3", "r1", "Second."),
    )
    counted = [[each.native for each in said(turn) if each.tokens is not None] for turn in turns]
    assert counted == [["a1", "a2"], ["a3"]]


def test_labels_and_state_of_extensions_do_not_branch(tmp_path: Path) -> None:
    turns = turns_of(
        tmp_path,
        *dialogue()[:5],
        entry("label", "l1", "u1", targetId="u1", label="x"),
        entry("custom", "x1", "l1", customType="my-extension", data={"n": 1}),
        user("u2", "a1", "Thanks."),
        assistant("a2", "u2", "Welcome."),
    )
    assert [(turn.key, turn.parent) for turn in turns] == [("u1", None), ("u2", 0)]


def test_calls_get_the_results_that_name_them(tmp_path: Path) -> None:
    (turn,) = turns_of(
        tmp_path,
        header(),
        user("u1", None, "Look."),
        assistant("a1", "u1", "Both.", call("c1", "read", path="/a"), call("c2", command="ls")),
        result("r2", "a1", "c2", "b"),
        result("r1", "r2", "c1", "a"),
        assistant("a2", "r1", "There."),
    )
    assert [(each.id, each.name, each.result) for each in called(turn)] == [("c1", "read", "a"), ("c2", "bash", "b")]
    assert [type(item).__name__ for item in turn.items] == [
        "NativeMessage", "NativeMessage", "NativeCall", "NativeCall", "NativeMessage",
    ]  # fmt: skip


def test_call_ids_that_repeat_take_their_results_in_order(tmp_path: Path) -> None:
    (turn,) = turns_of(
        tmp_path,
        header(),
        user("u1", None, "Look."),
        assistant("a1", "u1", call("c"), call("c")),
        result("r1", "a1", "c", "1"),
        result("r2", "r1", "c", "2"),
    )
    assert [each.result for each in called(turn)] == ["1", "2"]


def test_a_result_without_its_call_is_a_message_of_the_tool(tmp_path: Path) -> None:
    (turn,) = turns_of(tmp_path, header(), user("u1", None, "Look."), result("r1", "u1", "c9", "lost"))
    assert [(each.role, each.native) for each in said(turn)][1:] == [(MessageRole.TOOL, "r1")]
    assert said(turn)[1].metadata == {"call": "c9", "tool": "bash"}


def test_openclaw_hangs_prompts_on_the_header_and_results_on_their_calls(tmp_path: Path) -> None:
    (turn,) = turns_of(
        tmp_path,
        header(),
        entry("model_change", "m1", SESSION, provider="acme", modelId="large"),
        entry("custom_message", "x1", "m1", customType="openclaw.runtime-context", content="Context.", display=False),
        user("u1", SESSION, "Look."),
        assistant("a1", "u1", call("c1"), call("c2")),
        result("r1", "c1", "c1", "a"),
        result("r2", "c2", "c2", "b"),
        assistant("a2", "r2", "There."),
    )
    assert (turn.key, turn.parent) == ("u1", None)
    assert words(turn) == ["Context.", "Look.", "There."]
    assert [each.result for each in called(turn)] == ["a", "b"]
    assert turn.config == {"model": "large", "provider": "acme"}


def old(*records: Line) -> list[Line]:
    """As the first version wrote them: without ids, one after another."""
    first = {"type": "session", "id": "old", "timestamp": AT, "cwd": "/shop"}
    return [
        first,
        *({name: value for name, value in each.items() if name not in ("id", "parentId")} for each in records),
    ]


def test_the_first_version_is_linear_and_turns_are_known_by_their_place(tmp_path: Path) -> None:
    turns = turns_of(tmp_path, *old(*dialogue()[1:]))
    assert [(turn.key, turn.parent) for turn in turns] == [("old#0", None), ("old#2", 0)]
    assert words(turns[1]) == ["Thanks.", "Welcome."]
    assert [message.native for message in said(turns[0])] == [None, None]


def compaction(id: str, parent: str | None, **fields: Any) -> Line:
    return entry("compaction", id, parent, **{"summary": "We greeted.", "tokensBefore": 900, **fields})


def test_a_compaction_is_a_turn_with_its_summary_and_what_it_keeps(tmp_path: Path) -> None:
    details = {"readFiles": ["a.py"], "modifiedFiles": []}
    turns = turns_of(
        tmp_path,
        *dialogue(),
        compaction("c1", "a2", firstKeptEntryId="u2", details=details, fromHook=True, usage=USAGE, tokensAfter=80),
        user("u3", "c1", "Go on."),
    )
    made = turns[2].compaction
    assert made is not None
    assert (made.summary, made.through, made.first_kept) == ("We greeted.", 0, 1)
    assert (made.tokens_before, made.tokens_after) == (900, 80)
    assert made.metadata == {"details": details, "from_extension": True}
    assert (turns[2].key, turns[2].parent, turns[3].parent) == ("c1", 1, 2)
    assert said(turns[2])[0].tokens == Tokens(input=10, output=20, cached=30, cache_write=5)


@pytest.mark.parametrize(
    ("fields", "through", "kept"),
    [
        ({"firstKeptEntryId": "a2"}, 1, 1),  # the middle of a turn
        ({"firstKeptEntryId": "t1"}, None, 0),  # a setting before the first turn
        ({"firstKeptEntryId": "gone"}, None, None),
        ({"retainedTail": [{"role": "user", "content": "x"}]}, None, None),
        ({}, None, None),
    ],
)
def test_what_a_compaction_keeps(tmp_path: Path, fields: Any, through: int | None, kept: int | None) -> None:
    made = turns_of(tmp_path, *dialogue(), compaction("c1", "a2", **fields))[2].compaction
    assert made is not None
    assert (made.through, made.first_kept) == (through, kept)


def test_a_setting_between_two_turns_keeps_from_the_second(tmp_path: Path) -> None:
    records = dialogue()
    records.insert(5, entry("model_change", "m2", "a1", provider="acme", modelId="large"))
    records[6]["parentId"] = "m2"
    made = turns_of(tmp_path, *records, compaction("c1", "a2", firstKeptEntryId="m2"))[2].compaction
    assert made is not None
    assert (made.through, made.first_kept) == (0, 1)


def test_an_older_compaction_counts_the_records_of_the_file(tmp_path: Path) -> None:
    records = old(*dialogue()[1:], compaction("c1", "a2", firstKeptEntryIndex=5))
    made = turns_of(tmp_path, *records)[2].compaction
    assert made is not None
    assert (made.through, made.first_kept) == (0, 1)


def test_an_answer_that_goes_on_after_a_compaction_is_a_turn_of_its_own(tmp_path: Path) -> None:
    turns = turns_of(
        tmp_path,
        header(),
        user("u1", None, "Work."),
        assistant("a1", "u1", call("c1")),
        result("r1", "a1", "c1"),
        compaction("k1", "r1", firstKeptEntryId="a1"),
        assistant("a2", "k1", call("c2")),
        result("r2", "a2", "c2"),
        compaction("k2", "r2"),
        assistant("a3", "k2", "Done."),
    )
    assert [turn.key for turn in turns] == ["u1", "k1", "u1#a2", "k2", "u1#a3"]
    assert [turn.parent for turn in turns] == [None, 0, 1, 2, 3]
    assert turns[1].compaction is not None
    assert (turns[1].compaction.through, turns[1].compaction.first_kept) == (0, 0)


def test_the_summary_of_a_branch_that_was_left_comes_before_the_next_prompt(tmp_path: Path) -> None:
    summary = entry("branch_summary", "s1", "a1", fromId="a2", summary="We tried thanks.", usage=USAGE)
    turns = turns_of(tmp_path, *dialogue(), summary, user("u3", "s1", "Or rather:"), assistant("a3", "u3", "Well."))
    assert [(turn.key, turn.parent) for turn in turns] == [("u1", None), ("u2", 0), ("u3", 0)]
    assert words(turns[2]) == ["We tried thanks.", "Or rather:", "Well."]
    first = said(turns[2])[0]
    assert (first.source, first.metadata) == (MessageSource.EVENT, {"branch_left": "a2"})


def test_a_message_put_in_while_the_agent_works_belongs_to_its_turn(tmp_path: Path) -> None:
    (turn,) = turns_of(
        tmp_path,
        header(),
        user("u1", None, "Work."),
        assistant("a1", "u1", call("c1")),
        result("r1", "a1", "c1"),
        entry("custom_message", "x1", "r1", customType="irc", content="Psst.", display=True, attribution="agent"),
        assistant("a2", "x1", "Heard."),
    )
    assert words(turn) == ["Work.", "Psst.", "Heard."]
    assert said(turn)[2].source is MessageSource.AGENT
    assert said(turn)[2].metadata == {"custom_type": "irc", "display": True}


def test_a_reminder_after_the_answer_begins_a_turn_that_no_person_asked_for(tmp_path: Path) -> None:
    reminder = message("d1", "a2", "developer", [{"type": "text", "text": "Idle."}], attribution="agent")
    turns = turns_of(tmp_path, *dialogue(), reminder, assistant("a3", "d1", "On it."))
    assert [(turn.key, turn.parent) for turn in turns][2:] == [("d1", 1)]
    assert (said(turns[2])[0].role, said(turns[2])[0].source) == (MessageRole.SYSTEM, MessageSource.EVENT)


def test_the_old_name_of_an_extensions_message_has_the_same_identity(tmp_path: Path) -> None:
    def turn(record: Line) -> tuple[bytes, ...]:
        return turns_of(tmp_path, header(), user("u1", None, "Hi."), record)[0].records

    content = [{"type": "text", "text": "Psst."}]
    new = message("x1", "u1", "custom", content, customType="irc", display=True)
    hook = message("x1", "u1", "hookMessage", content, customType="irc", display=True)
    whole = entry("custom_message", "x1", "u1", customType="irc", content="Psst.", display=True)
    assert turn(new) == turn(hook) == turn(whole)


def test_a_command_that_the_person_ran_stands_before_the_next_prompt(tmp_path: Path) -> None:
    ran = entry(
        "message", "b1", "a2",
        message={"role": "bashExecution", "command": "ls", "output": "a", "exitCode": 1, "cancelled": False,
                 "truncated": False, "excludeFromContext": True, "timestamp": AT_MS},
    )  # fmt: skip
    turns = turns_of(tmp_path, *dialogue(), ran, user("u3", "b1", "See?"))
    assert turns[2].key == "u3"
    command = said(turns[2])[0]
    assert command.parts == (TextPart("Ran `ls`\n```\na\n```"),)
    assert (command.source, command.metadata) == (
        MessageSource.HUMAN,
        {"command": "ls", "exit_code": 1, "excluded": True},
    )


def test_files_that_a_prompt_mentions_are_attached(tmp_path: Path) -> None:
    files = [
        {"path": "a.py", "content": "x = 1"},
        {"path": "b.png", "content": "", "image": {"type": "image", "data": "AAAA", "mimeType": "image/png"}},
    ]
    mention = entry("message", "f1", "u1", message={"role": "fileMention", "files": files, "timestamp": AT_MS})
    (turn,) = turns_of(tmp_path, header(), user("u1", None, "See @a.py"), mention, assistant("a1", "f1", "Seen."))
    attached = said(turn)[1]
    assert attached.parts == (TextPart("a.py\nx = 1"), ImagePart("data:image/png;base64,AAAA"))
    assert [note.path for note in attached.files] == ["a.py", "b.png"]


def test_images_are_data_urls_and_those_kept_elsewhere_stay_named(tmp_path: Path) -> None:
    blob = {"type": "image", "data": "blob:sha256:abc", "mimeType": "image/png"}
    image = {"type": "image", "data": "AAAA", "mimeType": "image/jpeg"}
    (turn,) = turns_of(tmp_path, header(), user("u1", None, [{"type": "text", "text": "See"}, image, blob]))
    (prompt,) = said(turn)
    assert prompt.parts == (TextPart("See"), ImagePart("data:image/jpeg;base64,AAAA"))
    assert prompt.metadata == {"blocks": [blob]}


def test_unknown_blocks_are_kept_beside_the_message(tmp_path: Path) -> None:
    odd = {"type": "hologram", "shape": [1, 2]}
    (turn,) = turns_of(tmp_path, header(), user("u1", None, "Hi."), assistant("a1", "u1", "Ho.", odd))
    assert said(turn)[1].metadata["blocks"] == [odd]
    assert words(turn) == ["Hi.", "Ho."]


def test_an_error_fails_the_turn_and_an_abort_interrupts_it(tmp_path: Path) -> None:
    failed = assistant("a1", "u1", stopReason="error", errorMessage="500: busy")
    stopped = assistant("a2", "u2", "I was", stopReason="aborted", errorMessage="Request was aborted")
    first, second = turns_of(tmp_path, header(), user("u1", None, "Hi."), failed, user("u2", "a1", "Again."), stopped)
    assert (first.error, first.interrupted) == ("500: busy", False)
    assert (second.error, second.interrupted, second.closed) == (None, True, True)


def test_a_turn_that_was_tried_again_and_succeeded_has_not_failed(tmp_path: Path) -> None:
    failed = assistant("a1", "u1", stopReason="error", errorMessage="500: busy")
    (turn,) = turns_of(tmp_path, header(), user("u1", None, "Hi."), failed, assistant("a2", "a1", "Ho."))
    assert turn.error is None
    assert len(said(turn)) == 3


@pytest.mark.parametrize(
    ("last", "closed"),
    [
        (assistant("a3", "u3", "Done."), True),
        (assistant("a3", "u3", call("c1")), False),
        (assistant("a3", "u3", "Cut.", stopReason="length"), True),
        (assistant("a3", "u3", "Old.", stopReason=None), True),
    ],
)
def test_the_last_turn_is_open_until_its_answer_is_finished(tmp_path: Path, last: Line, closed: bool) -> None:
    turns = turns_of(tmp_path, *dialogue(), user("u3", "a2", "And?"), last)
    assert [turn.closed for turn in turns] == [True, True, closed]


def test_turns_lie_one_after_another_in_the_file(tmp_path: Path) -> None:
    path = write(tmp_path, *dialogue())
    data = path.read_bytes()
    first, second = turns_of(tmp_path, *dialogue())
    assert data[first.offset : first.end].splitlines() == data.splitlines()[3:5]
    assert data[second.offset : second.end].splitlines() == data.splitlines()[5:7]


def test_a_grown_file_has_the_same_turns_and_more(tmp_path: Path) -> None:
    before = turns_of(tmp_path, *dialogue()[:5])
    after = turns_of(tmp_path, *dialogue())
    assert [(turn.key, turn.records) for turn in before] == [(turn.key, turn.records) for turn in after][:1]


DSH = [
    {"type": "session", "version": 0, "id": "dsh-1", "createdAt": AT_MS, "cwd": "/shop", "agentPreset": "standard"},
    {"type": "permission/preset", "seq": 0, "time": AT_MS, "data": {"preset": "standard"}},
    {"type": "turn/start", "seq": 1, "time": AT_MS, "data": {"turn": 1}},
    {"type": "user/message", "seq": 2, "time": AT_MS,
     "data": {"id": "m1", "source": {"kind": "user"}, "content": [{"type": "text", "text": "Look."}]}},
    {"type": "request/context", "seq": 3, "time": AT_MS, "data": {"provider": "acme", "model": "large"}},
    {"type": "assistant/chunk", "seq": 4, "time": AT_MS, "data": {"chunk": {"type": "usage", "usage": {}}}},
    {"type": "assistant/message", "seq": 5, "time": AT_MS,
     "data": {"turn": 1, "step": 1, "usage": {"inputTokens": 1, "outputTokens": 9, "reasoningTokens": 4},
              "message": {"id": "m2", "source": {"kind": "model", "provider": "acme", "model": "large"},
                          "content": [{"type": "reasoning", "text": "Hm."}, {"type": "tool-call", "id": "c1"}]}}},
    {"type": "tool/call", "seq": 6, "time": AT_MS,
     "data": {"turn": 1, "callId": "c1", "name": "read", "arguments": '{"file_path": "/a"}'}},
    {"type": "tool/result", "seq": 7, "time": AT_MS, "sourceEventSeqs": [6],
     "data": {"message": {"content": [{"type": "tool-result", "content": [{"type": "text", "text": "x"}]}]}}},
    {"type": "turn/end", "seq": 8, "time": AT_MS, "data": {"turn": 1, "reason": {"kind": "completed"}}},
    {"type": "compaction/summary", "seq": 9, "time": AT_MS,
     "data": {"compactionId": "k1", "summary": [{"type": "text", "text": "Looked."}], "shadowedTokenCount": 5}},
    {"type": "assistant/message", "seq": 10, "time": AT_MS,
     "data": {"turn": 2, "message": {"content": [{"type": "text", "text": "Again."}]}}},
    {"type": "tool/call", "seq": 11, "time": AT_MS, "data": {"callId": "c2", "name": "bash", "arguments": "{"}},
    {"type": "tool/result", "seq": 12, "time": AT_MS, "sourceEventSeqs": [11],
     "data": {"turn": 2, "message": {}, "error": {"name": "NotFound", "code": "ENOENT"}}},
    {"type": "turn/end", "seq": 13, "time": AT_MS, "data": {"turn": 2, "reason": {"kind": "aborted"}}},
]  # fmt: skip


def test_a_log_of_dsh_is_read_by_its_turns(tmp_path: Path) -> None:
    turns = turns_of(tmp_path, *DSH)
    assert [(turn.key, turn.parent) for turn in turns] == [("m1", None), ("k1", 0), ("dsh-1#2", 1)]
    assert words(turns[0]) == ["Look.", "Hm."]
    assert said(turns[0])[1].tokens == Tokens(input=1, output=9, reasoning=4)
    assert (turns[0].config, turns[0].permissions) == ({"model": "large", "provider": "acme"}, "standard")
    (looked,) = called(turns[0])
    assert (looked.arguments, looked.result, [note.path for note in looked.files]) == ({"file_path": "/a"}, "x", ["/a"])
    assert turns[1].compaction is not None
    assert (turns[1].compaction.summary, turns[1].compaction.tokens_before) == ("Looked.", 5)
    (failed,) = called(turns[2])
    assert (failed.arguments, failed.error, failed.status) == ("{", "NotFound", ToolCallStatus.ERROR)
    assert turns[2].interrupted
