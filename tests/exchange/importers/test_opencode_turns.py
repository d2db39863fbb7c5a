"""Which messages of opencode make a turn, who said them, and what they cost."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.exchange.fixtures.opencode.sessions import (
    AT,
    SESSION,
    assistant,
    called,
    dialogue,
    export,
    file,
    info,
    read_one,
    reasoning,
    said,
    text,
    tool,
    turns_of,
    user,
    write_export,
)
from weft.exchange.importers.port import Tokens
from weft.kernel.enums import FileKind, MessageRole, MessageSource
from weft.ledger.model import FileNote, ImagePart, ReasoningPart, TextPart


def test_a_turn_is_a_prompt_and_every_response_that_names_it(tmp_path: Path) -> None:
    first, second = turns_of(
        tmp_path,
        user("msg_01", text("One.")),
        assistant("msg_02", "msg_01", text("Looking."), tool(), finish="tool-calls"),
        assistant("msg_03", "msg_01", text("Found.")),
        user("msg_04", text("Two.")),
        assistant("msg_05", "msg_04", text("Done.")),
    )
    assert (first.key, first.parent, second.key, second.parent) == ("msg_01", None, "msg_04", 0)
    assert [message.native for message in said(first)] == ["msg_01", "msg_02", "msg_03"]
    assert [call.id for call in called(first)] == ["call_1"]
    assert [type(item).__name__ for item in first.items][:3] == ["NativeMessage", "NativeMessage", "NativeCall"]
    assert "msg_02" in first.names
    assert "prt_02_00" in first.names


def test_a_response_to_an_older_prompt_belongs_to_that_one(tmp_path: Path) -> None:
    first, second = turns_of(
        tmp_path,
        user("msg_01", text("One.")),
        user("msg_02", text("Two, while you work.")),
        assistant("msg_03", "msg_01", text("One is done.")),
        assistant("msg_04", "msg_02", text("So is two.")),
    )
    assert [message.native for message in said(first)] == ["msg_01", "msg_03"]
    assert [message.native for message in said(second)] == ["msg_02", "msg_04"]


def test_a_response_whose_prompt_is_missing_makes_a_turn_known_by_that_prompt(tmp_path: Path) -> None:
    turns = turns_of(
        tmp_path, assistant("msg_02", "msg_01", text("Half.")), assistant("msg_03", "msg_01", text("A whole."))
    )
    assert [turn.key for turn in turns] == ["msg_01"]
    assert len(said(turns[0])) == 2


def test_text_thinking_and_images_keep_their_order(tmp_path: Path) -> None:
    image = "data:image/png;base64,AAAA"
    (turn,) = turns_of(
        tmp_path,
        user("msg_01", text("See"), file(image, "image/png", filename="shot.png"), text("this")),
        assistant("msg_02", "msg_01", reasoning("Hm."), text("Yes."), reasoning("Or?"), text("")),
    )
    prompt, response = said(turn)
    assert prompt.parts == (TextPart("See"), ImagePart(image), TextPart("this"))
    assert response.parts == (ReasoningPart("Hm."), TextPart("Yes."), ReasoningPart("Or?"))
    assert prompt.files == (FileNote(kind=FileKind.ATTACHED, path="shot.png"),)


def test_a_response_tells_its_model_finish_time_and_cost(tmp_path: Path) -> None:
    (turn,) = turns_of(tmp_path, user("msg_01", text("Hi.")), assistant("msg_02", "msg_01", text("Ho.")))
    response = said(turn)[1]
    assert (response.model, response.provider, response.finish_reason, response.at) == ("large", "acme", "stop", AT + 2)
    assert response.tokens == Tokens(input=10, output=20, cached=90, cache_write=10, reasoning=0)
    assert response.metadata == {"agent": "build", "cost": 0.5, "completed": AT + 3}


CACHE = {"read": 100, "write": 5}


@pytest.mark.parametrize(
    ("counted", "output"),
    [
        ({"total": 175, "input": 10, "output": 40, "reasoning": 20, "cache": CACHE}, 60),  # beside the output
        ({"total": 155, "input": 10, "output": 40, "reasoning": 20, "cache": CACHE}, 40),  # inside it
        ({"total": 134, "input": 10, "output": 0, "reasoning": 20, "cache": CACHE}, 19),  # counted past the output
        ({"total": 50, "input": 10, "output": 40, "reasoning": 20, "cache": CACHE}, 40),  # a total without the cache
        ({"input": 10, "output": 40, "reasoning": 20, "cache": CACHE}, 40),
        ({"input": 10, "output": 5, "reasoning": 20, "cache": CACHE}, 25),  # there is no room for it inside
        ({"total": 155, "input": 10, "output": 40, "reasoning": 0, "cache": CACHE}, 40),
    ],
)
def test_reasoning_is_counted_inside_the_output_once(tmp_path: Path, counted: Any, output: int) -> None:
    (turn,) = turns_of(tmp_path, user("msg_01", text("Hi.")), assistant("msg_02", "msg_01", tokens=counted))
    tokens = said(turn)[1].tokens
    assert tokens is not None
    assert tokens.output == output
    assert (tokens.input, tokens.cached, tokens.cache_write) == (10, 100, 5)


def test_a_message_of_several_steps_costs_what_they_cost_together(tmp_path: Path) -> None:
    step = {"type": "step-finish", "reason": "stop", "cost": 1}
    one = {"input": 1, "output": 2, "reasoning": 0, "cache": {"read": 3, "write": 0}}
    two = {"input": 10, "output": 20, "reasoning": 0, "cache": {"read": 30, "write": 0}}
    (turn,) = turns_of(
        tmp_path,
        user("msg_01", text("Hi.")),
        assistant("msg_02", "msg_01", {**step, "tokens": one}, {**step, "tokens": two}, tokens=two),
    )
    assert said(turn)[1].tokens == Tokens(input=11, output=22, cached=33, cache_write=0, reasoning=0)


def test_what_opencode_wrote_into_a_prompt_is_context(tmp_path: Path) -> None:
    (turn,) = turns_of(
        tmp_path,
        user(
            "msg_01",
            text("Fix @a.py"),
            text("Called the Read tool", synthetic=True),
            text("<content>", synthetic=True),
            file("file:///shop/a%20b.py?start=3&end=9", filename="a b.py"),
            system="Be brief.",
        ),
    )
    (prompt,) = said(turn)
    assert prompt.source is MessageSource.HUMAN
    assert prompt.parts == (TextPart("Fix @a.py"),)
    assert prompt.context == {"system": "Be brief.", "injected": ["Called the Read tool", "<content>"]}
    assert prompt.files == (FileNote(kind=FileKind.ATTACHED, path="/shop/a b.py", line_start=3, line_end=9),)


def test_a_prompt_that_only_opencode_wrote_is_an_event(tmp_path: Path) -> None:
    (turn,) = turns_of(tmp_path, user("msg_01", text("Continue if you have next steps.", synthetic=True)))
    (prompt,) = said(turn)
    assert (prompt.source, prompt.parts) == (MessageSource.EVENT, (TextPart("Continue if you have next steps."),))


def test_a_notice_that_the_model_never_saw_begins_no_turn(tmp_path: Path) -> None:
    notice = user("msg_02", text("pruned 2K", ignored=True))
    (turn,) = turns_of(
        tmp_path,
        user("msg_01", text("Hi.")),
        notice,
        assistant("msg_03", "msg_01", text("Ho.")),
    )
    assert [message.native for message in said(turn)] == ["msg_01", "msg_02", "msg_03"]
    assert said(turn)[1].source is MessageSource.EVENT
    assert said(turn)[1].metadata == {"not_shown": True}


def test_mentioned_agents_subtasks_and_files_are_kept_beside_the_prompt(tmp_path: Path) -> None:
    subtask = {
        "type": "subtask",
        "prompt": "Review it.",
        "description": "review",
        "agent": "critic",
        "command": "review",
    }
    (turn,) = turns_of(
        tmp_path,
        user(
            "msg_01",
            {"type": "agent", "name": "explore"},
            subtask,
            file("data:application/pdf;base64,AAAA", "application/pdf", filename="paper.pdf"),
            file("data:image/png;base64,BBBB", "image/png", source={"type": "file", "path": "clipboard"}),
            file("x", source={"type": "symbol", "path": "a.ts", "range": {"start": {"line": 4}, "end": {"line": 6}}}),
        ),
    )
    (prompt,) = said(turn)
    assert prompt.parts == (TextPart("Review it."), ImagePart("data:image/png;base64,BBBB"))
    assert prompt.metadata["agents"] == ["explore"]
    assert prompt.metadata["subtasks"] == [{"agent": "critic", "description": "review", "command": "review"}]
    assert prompt.metadata["attachments"][0] == {"mime": "application/pdf", "filename": "paper.pdf"}
    assert [(note.path, note.line_start, note.line_end) for note in prompt.files] == [
        ("paper.pdf", None, None),
        ("a.ts", 5, 7),
    ]


COMPACTION = {"type": "compaction", "auto": True, "tail_start_id": "msg_03"}


def compacted(**part: Any) -> list[Any]:
    return [
        *dialogue(),
        user("msg_05", {**COMPACTION, **part}),
        assistant("msg_06", "msg_05", text("We greeted."), summary=True, agent="compaction", modelID="small"),
        user("msg_07", text("Go on.")),
    ]


def test_a_compaction_is_a_turn_with_its_summary_and_what_it_keeps(tmp_path: Path) -> None:
    turns = turns_of(tmp_path, *compacted())
    compaction = turns[2].compaction
    assert compaction is not None
    assert (compaction.summary, compaction.model, compaction.trigger) == ("We greeted.", "small", "auto")
    assert (compaction.through, compaction.first_kept, compaction.duration_ms) == (0, 1, 1)
    assert [message.role for message in said(turns[2])] == [MessageRole.ASSISTANT]
    assert (turns[2].key, turns[2].parent, turns[3].parent) == ("msg_05", 1, 2)


def test_a_compaction_that_keeps_the_end_of_a_turn_has_summarised_its_beginning(tmp_path: Path) -> None:
    compaction = turns_of(tmp_path, *compacted(tail_start_id="msg_04"))[2].compaction
    assert compaction is not None
    assert (compaction.through, compaction.first_kept) == (1, 1)


@pytest.mark.parametrize(
    ("part", "trigger"), [({"auto": False}, "manual"), ({"overflow": True}, "overflow"), ({"auto": True}, "auto")]
)
def test_what_triggered_a_compaction_is_told(tmp_path: Path, part: Any, trigger: str) -> None:
    compaction = turns_of(tmp_path, *compacted(**part))[2].compaction
    assert compaction is not None
    assert compaction.trigger == trigger


def test_a_compaction_without_a_kept_end_summarises_everything(tmp_path: Path) -> None:
    compaction = turns_of(tmp_path, *compacted(tail_start_id="msg_99"))[2].compaction
    assert compaction is not None
    assert (compaction.through, compaction.first_kept) == (None, None)


def test_an_older_summary_in_the_middle_of_an_answer_cuts_the_turn(tmp_path: Path) -> None:
    turns = turns_of(
        tmp_path,
        user("msg_01", text("Work.")),
        assistant("msg_02", "msg_01", tool(), finish="tool-calls"),
        assistant("msg_03", "msg_01", text("So far: much."), summary=True),
        assistant("msg_04", "msg_01", tool(id="call_2"), finish="tool-calls"),
        assistant("msg_05", "msg_01", text("Done.")),
    )
    assert [turn.key for turn in turns] == ["msg_01", "msg_03", "msg_01#msg_04"]
    assert turns[1].compaction is not None
    assert turns[1].compaction.summary == "So far: much."
    assert [turn.parent for turn in turns] == [None, 0, 1]
    assert [message.native for message in said(turns[2])] == ["msg_04", "msg_05"]


def failed(name: str, **data: Any) -> Any:
    return assistant("msg_02", "msg_01", error={"name": name, "data": data}, finish=None)


def test_an_error_fails_the_turn_with_its_words(tmp_path: Path) -> None:
    broken = failed("APIError", message="no credit", statusCode=402, responseHeaders={"server": "x"})
    (turn,) = turns_of(tmp_path, user("msg_01", text("Hi.")), broken)
    assert (turn.error, turn.interrupted, turn.closed) == ("APIError: no credit", False, True)
    assert said(turn)[1].metadata["error"] == {"name": "APIError", "data": {"message": "no credit", "statusCode": 402}}


def test_an_abort_is_an_interruption_and_no_failure(tmp_path: Path) -> None:
    (turn,) = turns_of(tmp_path, user("msg_01", text("Hi.")), failed("MessageAbortedError", message="Aborted"))
    assert (turn.error, turn.interrupted) == (None, True)


def test_a_turn_that_recovered_from_an_error_has_not_failed(tmp_path: Path) -> None:
    retry = assistant("msg_03", "msg_01", text("Now."))
    (turn,) = turns_of(tmp_path, user("msg_01", text("Hi.")), failed("APIError", message="busy"), retry)
    assert turn.error is None


def test_retries_are_told_beside_the_response(tmp_path: Path) -> None:
    part = {
        "type": "retry",
        "attempt": 2,
        "error": {"name": "APIError", "data": {"message": "busy"}},
        "time": {"created": 7},
    }
    (turn,) = turns_of(tmp_path, user("msg_01", text("Hi.")), assistant("msg_02", "msg_01", part))
    assert said(turn)[1].metadata["retries"] == [{"attempt": 2, "error": "APIError: busy", "at": 7}]


@pytest.mark.parametrize(
    ("fields", "closed"),
    [
        ({}, True),
        ({"finish": "tool-calls"}, False),
        ({"finish": None}, True),
        ({"time": {"created": AT}}, False),
        ({"finish": "length"}, True),
    ],
)
def test_the_last_turn_is_open_until_opencode_says_that_it_ended(tmp_path: Path, fields: Any, closed: bool) -> None:
    (turn,) = turns_of(tmp_path, user("msg_01", text("Hi.")), assistant("msg_02", "msg_01", text("Ho."), **fields))
    assert turn.closed is closed


def test_a_prompt_without_an_answer_is_an_open_turn(tmp_path: Path) -> None:
    turns = turns_of(tmp_path, *dialogue(), user("msg_05", text("And?")))
    assert [turn.closed for turn in turns] == [True, True, False]


def test_turns_that_were_reverted_are_marked_and_the_session_says_where(tmp_path: Path) -> None:
    session = info(revert={"messageID": "msg_03", "snapshot": "abc", "diff": "long"})
    found = read_one(write_export(tmp_path, export(dialogue(), session)))
    assert found.session.metadata["revert"] == {"messageID": "msg_03", "snapshot": "abc"}
    assert [turn.metadata for turn in found.turns] == [None, {"reverted": True}]


def test_a_turn_of_which_only_the_end_was_reverted_says_from_where(tmp_path: Path) -> None:
    session = info(revert={"messageID": "msg_02", "partID": "prt_02_01"})
    found = read_one(write_export(tmp_path, export(dialogue(), session)))
    assert [turn.metadata for turn in found.turns] == [{"reverted": "msg_02"}, {"reverted": True}]


def redacted() -> list[Any]:
    """As a redacting export leaves it: every id the same word."""
    messages = dialogue()
    for message, parts in messages:
        message["id"] = "REDACTED"
        if "parentID" in message:
            message["parentID"] = "REDACTED"
        for part in parts:
            part["id"] = part["messageID"] = "REDACTED"
    return messages


def test_redacted_ids_lose_nothing_and_turns_are_known_by_their_place(tmp_path: Path) -> None:
    turns = turns_of(tmp_path, *redacted())
    assert [turn.key for turn in turns] == [f"{SESSION}#0", f"{SESSION}#2"]
    assert [[message.native for message in said(turn)] for turn in turns] == [[None, None], [None, None]]
    words = [part for turn in turns for message in said(turn) for part in message.parts if isinstance(part, TextPart)]
    assert [part.text for part in words] == ["What is this?", "A test.", "Thanks.", "Welcome."]
    assert all(b"REDACTED" not in record for turn in turns for record in turn.records)


def test_keys_of_redacted_turns_stay_the_same_when_the_session_grows(tmp_path: Path) -> None:
    before = turns_of(tmp_path, *redacted()[:2])
    after = turns_of(tmp_path, *redacted())
    assert [turn.key for turn in before] == [turn.key for turn in after][:1]
    assert before[0].records == after[0].records


def test_a_copy_under_another_session_has_the_same_records(tmp_path: Path) -> None:
    other = info(id="ses_two", slug="other", directory="/elsewhere", version="9.9.9", time={"created": 1, "updated": 2})
    messages = dialogue()
    for message, parts in messages:
        message |= {"sessionID": "ses_two", "cost": 9, "path": {"cwd": "/elsewhere"}, "tokens": {}, "agent": "plan"}
        message["time"] = {"created": 5, "completed": 6}
        for part in parts:
            part |= {"sessionID": "ses_two", "time": {"start": 1}}
    one, two = turns_of(tmp_path, *dialogue()), turns_of(tmp_path, *messages, session=other)
    assert [turn.records for turn in one] == [turn.records for turn in two]
    assert [turn.key for turn in one] == [turn.key for turn in two]


def test_a_grown_message_is_another_version_of_the_same_turn(tmp_path: Path) -> None:
    running = assistant("msg_02", "msg_01", tool(status="running", output=None), finish=None)
    (before,) = turns_of(tmp_path, user("msg_01", text("Go.")), running)
    (after,) = turns_of(tmp_path, user("msg_01", text("Go.")), assistant("msg_02", "msg_01", tool()))
    assert before.key == after.key
    assert before.records != after.records


def test_turns_lie_one_after_another_in_the_file(tmp_path: Path) -> None:
    path = write_export(tmp_path, export(dialogue()))
    turns = read_one(path).turns
    data = path.read_bytes()
    assert data[turns[0].offset : turns[0].end].count(b'"role"') == 2
    assert turns[0].end == turns[1].offset
    assert b"What is this?" in data[turns[0].offset : turns[0].end]
    assert b"Welcome." in data[turns[1].offset : turns[1].end]
