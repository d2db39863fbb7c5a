"""How Claude Code's lines fall into turns: combs, branches, prompts that are none, compactions, interruptions."""

from pathlib import Path

import pytest

from tests.exchange.fixtures.claude_code.lines import (
    SESSION,
    Lines,
    Read,
    calls,
    image,
    messages,
    read,
    said,
    text,
    thinking,
    use,
)
from weft.kernel.enums import LinkReason, MessageSource, ToolCallStatus


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / f"{SESSION}.jsonl"


def turns_of(file: Path, lines: Lines) -> Read:
    file.write_bytes(lines.bytes())
    return read(file)


def test_a_turn_is_a_prompt_with_all_that_answers_it(file: Path) -> None:
    lines = Lines().user("p1", "do it").answer("a1", "sure", use("c1")).result("r1", "c1").answer("a2", "done")
    lines.user("p2", "thanks").answer("a3", "welcome")
    found = turns_of(file, lines)
    assert found.keys == ["p1", "p2"]
    assert found.parents == [None, 0]
    assert [said(message) for message in messages(found.turns[0])] == ["do it", "sure", "done"]
    assert [turn.closed for turn in found.turns] == [True, False]
    assert found.turns[0].names == ("p1", "a1", "r1", "a2")


def test_lines_of_one_api_message_are_one_message(file: Path) -> None:
    lines = Lines().user("p1", "go")
    lines.answer("a1", thinking("hm"), id="m").answer("a2", "on it", id="m").answer("a3", use("c1"), id="m")
    lines.result("r1", "c1").answer("a4", "done", id="m2")
    (turn,) = turns_of(file, lines).turns
    first, second = messages(turn, "assistant")
    assert [type(part).__name__ for part in first.parts] == ["ReasoningPart", "TextPart"]
    assert (first.native, second.native) == ("m", "m2")
    assert [type(item).__name__ for item in turn.items] == ["NativeMessage"] * 2 + ["NativeCall", "NativeMessage"]


def test_a_comb_of_parallel_calls_is_no_fork(file: Path) -> None:
    lines = Lines().user("p1", "go")
    lines.answer("a1", use("c1"), id="m").answer("a2", use("c2"), id="m", parent="a1").answer("a3", use("c3"), id="m")
    lines.result("r1", "c1", "one", parent="a1").result("r3", "c3", "three", parent="a3")
    lines.result("r2", "c2", "two", parent="a2").answer("a4", "done", id="m2", parent="r2")
    (turn,) = turns_of(file, lines).turns
    assert [(call.id, call.result, call.status) for call in calls(turn)] == [
        ("c1", "one", ToolCallStatus.OK),
        ("c2", "two", ToolCallStatus.OK),
        ("c3", "three", ToolCallStatus.OK),
    ]
    assert len(messages(turn, "assistant")) == 2


def test_a_result_is_found_by_its_call_wherever_in_the_turn_it_comes(file: Path) -> None:
    lines = Lines().user("p1", "go").answer("a1", use("c1")).answer("a2", use("c2"), parent="a1")
    lines.result("r2", "c2", "two").answer("a3", "still going").result("r1", "c1", "late", parent="a1")
    (turn,) = turns_of(file, lines).turns
    assert [call.result for call in calls(turn)] == ["late", "two"]


def test_progress_attachments_and_notices_are_transparent(file: Path) -> None:
    lines = Lines().add("progress", "x1", None, data={"type": "hook_progress"})
    lines.user("p1", "go").attach("x2", "task_reminder", content=[]).add(
        "progress", "x3", data={"type": "bash_progress"}
    )
    lines.system("x4", "informational", content="well").answer("a1", "done").end("x5").user("p2", "more")
    found = turns_of(file, lines)
    assert found.keys == ["p1", "p2"]
    assert found.parents == [None, 0]
    assert set(found.turns[0].names) == {"x1", "p1", "x2", "x3", "x4", "a1", "x5"}


def test_a_rewind_to_an_older_line_is_a_branch(file: Path) -> None:
    lines = Lines().user("p1", "one").answer("a1", "yes").end("e1").user("p2", "two").answer("a2", "yes")
    lines.user("p3", "rather this", parent="e1").answer("a3", "fine").user("p4", "on", parent="a2")
    found = turns_of(file, lines)
    assert found.keys == ["p1", "p2", "p3", "p4"]
    assert found.parents == [None, 0, 0, 1]


def test_an_edited_first_prompt_is_a_second_root(file: Path) -> None:
    lines = Lines().attach("h1", "hook_success", None, content="hello").user("p1", "wrong").answer("a1", "no")
    lines.user("p2", "right", parent="h1").answer("a2", "yes")
    found = turns_of(file, lines)
    assert found.keys == ["p1", "p2"]
    assert found.parents == [None, None]


def test_a_second_answer_to_one_prompt_is_a_turn_of_its_own(file: Path) -> None:
    lines = Lines().user("p1", "go").answer("a1", "bad", id="m1").answer("a2", "good", id="m2", parent="p1")
    lines.user("p2", "nice", parent="a2")
    found = turns_of(file, lines)
    assert found.keys == ["p1", "p1#a2", "p2"]
    assert found.parents == [None, None, 1]
    assert [said(message) for message in messages(found.turns[1])] == ["go", "good"]
    assert found.turns[0].records[0] == found.turns[1].records[0]


def test_an_answer_after_calls_is_no_second_answer(file: Path) -> None:
    """A tool that borrowed the format hangs all answers of a turn from its prompt, and repeats calls as they stream."""
    lines = (
        Lines()
        .user("p1", "go")
        .answer("a1", use("c1"), id="m1")
        .answer("a2", use("c1"), use("c2"), id="m2", parent="p1")
    )
    lines.result("r1", "c1", parent="a2").result("r2", "c2", parent="a2").answer("a3", "done", id="m3", parent="p1")
    (turn,) = turns_of(file, lines).turns
    assert [call.id for call in calls(turn)] == ["c1", "c2"]
    assert all(call.status is ToolCallStatus.OK for call in calls(turn))


def test_a_parent_that_comes_later_in_the_file_is_found(file: Path) -> None:
    lines = Lines().user("p1", "one").answer("a1", "yes").user("p2", "two", parent="n1")
    lines.system("n1", "away_summary", "a1", content="away").answer("a2", "yes", parent="p2")
    found = turns_of(file, lines)
    assert found.keys == ["p1", "p2"]
    assert found.parents == [None, 0]


def test_a_circle_of_parents_is_cut(file: Path) -> None:
    lines = Lines().user("p1", "one", parent="a2").answer("a1", "yes").user("p2", "two").answer("a2", "yes")
    lines.user("self", "me", parent="self")
    found = turns_of(file, lines)
    assert sorted(found.keys) == ["p1", "p2", "self"]


def test_a_line_without_the_field_follows_the_line_before(file: Path) -> None:
    lines = Lines()
    for number, kind in enumerate(["user", "assistant", "user", "assistant"]):
        lines.raw(type=kind, uuid=f"u{number}", sessionId=SESSION, message={"role": kind, "content": f"say {number}"})
    found = turns_of(file, lines)
    assert found.keys == ["u0", "u2"]
    assert found.parents == [None, 0]


def test_an_answer_that_names_no_parent_follows_the_line_before(file: Path) -> None:
    found = turns_of(
        file, Lines().user("p1", "go").answer("a1", "yes", parent=None).answer("a2", "well", parent="gone")
    )
    assert found.keys == ["p1"]
    assert len(messages(found.turns[0])) == 3


def test_a_prompt_whose_parent_lies_elsewhere_is_linked_to_it(file: Path) -> None:
    found = turns_of(file, Lines().user("p1", "go on", parent="elsewhere").answer("a1", "yes"))
    (turn,) = found.turns
    assert turn.parent is None
    assert turn.link is not None
    assert (turn.link.to, turn.link.why) == ("elsewhere", LinkReason.CONTINUATION)


def test_a_prompt_whose_parent_was_left_out_of_an_export_follows_the_line_before(file: Path) -> None:
    found = turns_of(file, Lines().user("p1", "go").answer("a1", "yes").user("p2", "more", parent="left out"))
    assert found.parents == [None, 0]
    assert found.turns[1].link is None
    assert found.turns[1].metadata == {"parentUuid": "left out"}


def test_lines_without_ids_make_turns_with_stable_keys(file: Path, tmp_path: Path) -> None:
    lines = Lines()
    for kind in ("user", "assistant", "user"):
        lines.raw(type=kind, sessionId=SESSION, message={"role": kind, "content": "the same"})
    found = turns_of(file, lines)
    assert len(found.turns) == 2
    assert found.keys[0].startswith("record-")
    assert found.keys[1] == f"{found.keys[0]}~2"


def test_a_repeated_line_counts_once_and_a_conflicting_one_is_another_turn(file: Path) -> None:
    lines = Lines().user("p1", "one").answer("a1", "yes")
    lines.lines.append(lines.lines[0] | {"sessionId": "other", "cwd": "/elsewhere"})
    lines.user("p1", "one, changed", parent=None)
    found = turns_of(file, lines)
    assert found.keys == ["p1", "p1~2"]
    assert found.report.kept["user"] == 1


def test_a_caveat_a_command_and_its_output_belong_to_the_prompt_behind_them(file: Path) -> None:
    lines = Lines().user("m1", "<local-command-caveat>Caveat: ...</local-command-caveat>", isMeta=True)
    lines.user("m2", "<command-name>/model</command-name>").user(
        "m3", "<local-command-stdout>set</local-command-stdout>"
    )
    lines.user("p1", "go").answer("a1", "yes").user("p2", "more")
    found = turns_of(file, lines)
    assert found.keys == ["p1", "p2"]
    assert [message.source for message in messages(found.turns[0], "user")] == [
        MessageSource.EVENT,
        MessageSource.HUMAN,
        MessageSource.EVENT,
        MessageSource.HUMAN,
    ]


def test_a_command_that_the_model_answers_is_a_turn(file: Path) -> None:
    lines = Lines().user("p1", "go").answer("a1", "yes").user("c1", "<command-message>x</command-message>")
    lines.user("c2", "Base directory for this skill: /s", isMeta=True).answer("a2", "reviewed").user("p2", "fine")
    found = turns_of(file, lines)
    assert found.keys == ["p1", "c1", "p2"]
    assert [said(message) for message in messages(found.turns[1])][1:] == [
        "Base directory for this skill: /s",
        "reviewed",
    ]


def test_shell_input_and_output_are_one_turn(file: Path) -> None:
    lines = Lines().user("p1", "go").answer("a1", "yes").end("e1").user("b1", "<bash-input>ls</bash-input>")
    lines.user("b2", "<bash-stdout>x</bash-stdout><bash-stderr></bash-stderr>").answer("a2", "I see x")
    found = turns_of(file, lines)
    assert found.keys == ["p1", "b1"]
    assert [message.source for message in messages(found.turns[1], "user")] == [
        MessageSource.HUMAN,
        MessageSource.EVENT,
    ]


def test_commands_hung_from_an_old_caveat_follow_what_was_written_last(file: Path) -> None:
    lines = Lines().user("m1", "Caveat: The messages below were generated by the user while ...", isMeta=True)
    lines.user("c1", "<command-name>/clear</command-name>").user("p1", "go").answer("a1", "yes").user("p2", "more")
    lines.answer("a2", "yes").user("b1", "<bash-input>ls</bash-input>", parent="m1")
    found = turns_of(file, lines)
    assert found.keys == ["p1", "p2", "b1"]
    assert found.parents == [None, 0, 1]


@pytest.mark.parametrize(
    ("fields", "opening", "source"),
    [
        ({}, "<task-notification>done</task-notification>", MessageSource.EVENT),
        ({"origin": {"kind": "task-notification"}}, "done", MessageSource.EVENT),
        ({}, '<teammate-message teammate_id="bob">hi</teammate-message>', MessageSource.AGENT),
        (
            {"isMeta": True, "origin": {"kind": "peer"}},
            "Another Claude session sent a message: hi",
            MessageSource.AGENT,
        ),
        ({"origin": {"kind": "human"}, "promptSource": "typed"}, "hi", MessageSource.HUMAN),
        ({"origin": {"kind": "from the future"}}, "wake up", MessageSource.EVENT),
        ({"origin": {"kind": "from the future"}, "promptSource": "typed"}, "hi", MessageSource.HUMAN),
        ({"origin": {"kind": "from the future"}, "promptSource": ["typed"]}, "hi", MessageSource.EVENT),
        ({"isMeta": True, "promptSource": "system", "scheduledTaskId": "t"}, "nightly check", MessageSource.CRON),
        ({"isMeta": True, "promptSource": "system"}, "wake up", MessageSource.EVENT),
    ],
)
def test_what_begins_a_turn_and_who_said_it(
    file: Path, fields: dict[str, object], opening: str, source: MessageSource
) -> None:
    lines = Lines().user("p1", "go").answer("a1", "yes").user("p2", opening, **fields).answer("a2", "so")
    found = turns_of(file, lines)
    assert found.keys == ["p1", "p2"]
    assert messages(found.turns[1])[0].source is source


def test_a_prompt_behind_a_scheduled_task_comes_from_the_clock(file: Path) -> None:
    lines = (
        Lines().user("p1", "go").answer("a1", "yes").end("e1").system("s1", "scheduled_task_fire", content="nightly")
    )
    found = turns_of(file, lines.user("p2", "check", isMeta=True).answer("a2", "fine"))
    assert found.keys == ["p1", "p2"]
    assert messages(found.turns[1])[0].source is MessageSource.CRON


def test_feedback_of_a_hook_belongs_to_the_turn_that_runs(file: Path) -> None:
    lines = Lines().user("p1", "go").answer("a1", "done").user("m1", "Stop hook feedback: tests fail", isMeta=True)
    (turn,) = turns_of(file, lines.answer("a2", "fixed")).turns
    assert [message.source for message in messages(turn, "user")] == [MessageSource.HUMAN, MessageSource.TRIGGER]


def test_what_comes_after_the_mark_of_its_end_is_not_of_the_turn(file: Path) -> None:
    lines = Lines().user("p1", "go").answer("a1", "done").end("e1").user("m1", "a note", isMeta=True).answer("a2", "so")
    found = turns_of(file, lines.end("e2"))
    assert found.keys == ["p1", "m1"]
    assert [turn.closed for turn in found.turns] == [True, True]
    assert found.turns[0].metadata == {"durationMs": 1500, "messageCount": 2}


def test_a_resumed_session_begins_a_turn(file: Path) -> None:
    lines = (
        Lines().user("p1", "go").answer("a1", use("c1")).user("m1", "Continue from where you left off.", isMeta=True)
    )
    found = turns_of(file, lines.answer("a2", "No response requested.", model="<synthetic>").user("p2", "go"))
    assert found.keys == ["p1", "a2", "p2"]
    assert calls(found.turns[0])[0].status is None


def test_a_prompt_typed_while_the_agent_works_is_a_message_at_its_place(file: Path) -> None:
    lines = Lines().user("p1", "go").answer("a1", use("c1")).result("r1", "c1")
    lines.attach("q1", "queued_command", prompt="also this", commandMode="prompt", origin={"kind": "human"})
    lines.attach("q2", "queued_command", prompt=[text("see"), image()], commandMode="prompt")
    lines.attach("q3", "queued_command", prompt='<agent-message from="bob">hi</agent-message>')
    lines.attach("q4", "queued_command", prompt="<task-notification>x</task-notification>")
    lines.attach("q5", "queued_command", prompt="hm", origin={"kind": "peer", "from": "bob"}).answer("a2", "all done")
    (turn,) = turns_of(file, lines).turns
    users = messages(turn, "user")
    assert [said(message) for message in users][:3] == ["go", "also this", "see|(image)"]
    assert [message.source for message in users] == [
        MessageSource.HUMAN,
        MessageSource.HUMAN,
        MessageSource.HUMAN,
        MessageSource.AGENT,
        MessageSource.EVENT,
        MessageSource.AGENT,
    ]
    assert said(turn.items[-1]) == "all done"


def test_a_queued_prompt_behind_a_finished_turn_begins_one(file: Path) -> None:
    lines = Lines().user("p1", "go").answer("a1", "done").end("e1").attach("q1", "queued_command", prompt="next")
    assert turns_of(file, lines.answer("a2", "yes")).keys == ["p1", "q1"]


def test_an_interruption_marks_the_turn_and_ends_it(file: Path) -> None:
    lines = Lines().user("p1", "go").answer("a1", "I will", isAbortedMidStream=True)
    lines.user("i1", [text("[Request interrupted by user]")], interruptedMessageId="msg_a1")
    found = turns_of(file, lines)
    assert [(turn.interrupted, turn.closed) for turn in found.turns] == [(True, True)]
    found = turns_of(file, lines.user("p2", "other"))
    assert found.keys == ["p1", "p2"]
    assert found.parents == [None, 0]


def test_a_rejected_call_is_canceled(file: Path) -> None:
    lines = Lines().user("p1", "go").answer("a1", use("c1"))
    lines.result(
        "r1", "c1", "The user doesn't want to proceed with this tool use. The tool use was rejected", is_error=True
    )
    lines.user("i1", [text("[Request interrupted by user for tool use]")])
    (turn,) = turns_of(file, lines).turns
    assert turn.interrupted
    assert calls(turn)[0].status is ToolCallStatus.CANCELED


def test_a_prompt_without_an_answer_is_a_turn(file: Path) -> None:
    found = turns_of(file, Lines().user("p1", "go").answer("a1", "yes").user("p2", "hm").user("p3", "well"))
    assert found.keys == ["p1", "p2", "p3"]
    assert found.parents == [None, 0, 1]


def test_an_api_error_is_the_error_of_the_turn(file: Path) -> None:
    lines = Lines().user("p1", "go").system("e1", "api_error", error={"status": 529}, retryAttempt=1, maxRetries=10)
    lines.answer("a1", "API Error: overloaded", model="<synthetic>", isApiErrorMessage=True)
    (turn,) = turns_of(file, lines).turns
    assert turn.error == "API Error: overloaded"
    assert turn.metadata["notices"][0]["retryAttempt"] == 1
    (message,) = messages(turn, "assistant")
    assert (message.model, message.provider, message.tokens) == (None, None, None)


def test_an_error_that_was_overcome_is_none(file: Path) -> None:
    lines = Lines().user("p1", "go").answer("a1", "API Error", model="<synthetic>", isApiErrorMessage=True)
    (turn,) = turns_of(file, lines.answer("a2", "done")).turns
    assert turn.error is None


def test_a_compaction_is_a_turn_below_the_last_one(file: Path) -> None:
    lines = Lines().user("p1", "one").answer("a1", "yes").user("p2", "two").answer("a2", use("c1")).result("r1", "c1")
    lines.boundary("b1", "r1", trigger="auto", preTokens=900, postTokens=90, durationMs=12, cumulativeDroppedTokens=810)
    lines.summary("s1", "We did things.").attach("f1", "compact_file_reference", filename="/shop/x.py")
    lines.answer("a3", "going on", id="m3").user("p3", "three")
    found = turns_of(file, lines)
    assert found.keys == ["p1", "p2", "b1", "a3", "p3"]
    assert found.parents == [None, 0, 1, 2, 3]
    compaction = found.turns[2].compaction
    assert compaction is not None
    assert compaction.summary == "We did things."
    assert (compaction.through, compaction.first_kept) == (None, None)
    assert (compaction.trigger, compaction.tokens_before, compaction.tokens_after) == ("auto", 900, 90)
    assert compaction.duration_ms == 12
    assert compaction.metadata["cumulativeDroppedTokens"] == 810
    assert found.turns[2].items == ()
    assert messages(found.turns[3])[0].files[0].path == "/shop/x.py"


@pytest.mark.parametrize(
    "kept", [{"preservedSegment": {"headUuid": "a1", "tailUuid": "r1"}}, {"preservedMessages": {"uuids": ["a1", "r1"]}}]
)
def test_a_compaction_says_from_which_turn_on_all_was_kept(file: Path, kept: dict[str, object]) -> None:
    lines = Lines().user("p0", "zero").answer("a0", "yes").user("p1", "one").answer("a1", use("c1")).result("r1", "c1")
    compaction = turns_of(file, lines.boundary("b1", "r1", trigger="manual", **kept).summary("s1")).turns[2].compaction
    assert compaction is not None
    assert (compaction.first_kept, compaction.trigger) == (1, "manual")


def test_lines_kept_by_a_compaction_and_written_behind_it_are_put_back(file: Path, tmp_path: Path) -> None:
    """A session copied after its compaction has them hanging from the summary; the original has them before it."""
    original = (
        Lines().user("p1", "one").answer("a1", "yes").user("p2", "two").answer("a2", use("c1")).result("r1", "c1")
    )
    copy = Lines("c0b1").user("p1", "one").answer("a1", "yes").user("p2", "two")
    copy.boundary("b1", "r1", trigger="auto", preservedSegment={"headUuid": "a2", "anchorUuid": "s1", "tailUuid": "r1"})
    copy.summary("s1").answer("a2", use("c1"), usage={"input_tokens": 0}).result("r1", "c1")
    copy.attach("f1", "compact_file_reference", filename="/x").answer("a3", "going on")
    found, copied = turns_of(file, original), turns_of(tmp_path / "copy.jsonl", copy)
    assert copied.keys == ["p1", "p2", "b1", "a3"]
    assert copied.parents == [None, 0, 1, 2]
    assert [(turn.key, turn.records) for turn in copied.turns[:2]] == [(turn.key, turn.records) for turn in found.turns]
    compaction = copied.turns[2].compaction
    assert compaction is not None
    assert compaction.first_kept == 1


def test_a_compaction_that_names_a_line_nobody_has_follows_what_stands_before(file: Path) -> None:
    found = turns_of(file, Lines().user("p1", "one").answer("a1", "yes").boundary("b1", "gone").summary("s1"))
    assert found.parents == [None, 0]


def test_a_command_to_compact_and_its_output_are_part_of_the_compaction(file: Path) -> None:
    lines = Lines().user("p1", "one").answer("a1", "yes").user("c1", "/compact").boundary("b1", "a1", trigger="manual")
    lines.summary("s1").user("m1", "<local-command-caveat>Caveat</local-command-caveat>", isMeta=True)
    lines.user("m2", "<command-name>/compact</command-name>").user(
        "m3", "<local-command-stdout>ok</local-command-stdout>"
    )
    lines.attach("f1", "file", filename="/x").user("b2", "<bash-input>ls</bash-input>").answer("a2", "I see")
    found = turns_of(file, lines)
    assert found.keys == ["p1", "c1", "b2"]
    assert found.parents == [None, 0, 1]
    assert found.turns[1].compaction is not None
    assert len(messages(found.turns[1])) == 4


def test_a_continuation_in_a_new_file_is_a_compaction_at_its_root(file: Path) -> None:
    opening = "This session is being continued from a previous conversation that ran out of context. We did things."
    found = turns_of(file, Lines().user("s1", opening).answer("a1", "going on").user("p1", "more"))
    assert found.keys == ["s1", "a1", "p1"]
    compaction = found.turns[0].compaction
    assert compaction is not None
    assert compaction.summary == opening
    assert found.turns[0].link is None
    linked = turns_of(file, Lines().user("s1", opening, parent="elsewhere").answer("a1", "going on"))
    assert linked.turns[0].link is not None
    assert linked.turns[0].link.to == "elsewhere"


def test_the_same_words_said_by_a_person_are_a_prompt(file: Path) -> None:
    opening = "This session is being continued from a previous conversation, they said. Why?"
    found = turns_of(file, Lines().user("p1", "go").answer("a1", "yes").user("p2", opening).answer("a2", "well"))
    assert [turn.compaction for turn in found.turns] == [None, None]


def test_a_microcompaction_is_a_notice_of_its_turn(file: Path) -> None:
    lines = Lines().user("p1", "go").answer("a1", "yes")
    lines.system("x1", "microcompact_boundary", microcompactMetadata={"tokensSaved": 9, "compactedToolIds": ["c1"]})
    (turn,) = turns_of(file, lines.answer("a2", "done")).turns
    assert turn.metadata["notices"][0]["microcompactMetadata"]["tokensSaved"] == 9


def test_times_that_go_back_reorder_nothing(file: Path) -> None:
    """Lines lie in the order of the file, whatever their clocks say."""
    lines = Lines().user("p1", "go", timestamp="2026-08-01T12:00:09.000Z")
    lines.answer("a1", use("c1"), timestamp="2026-08-01T12:00:05.000Z")
    lines.result("r1", "c1", timestamp="2026-08-01T12:00:07.000Z")
    lines.answer("a2", "done", timestamp="2026-08-01T12:00:01.000Z").user(
        "p2", "next", timestamp="2026-08-01T11:00:00.000Z"
    )
    found = turns_of(file, lines)
    assert (found.keys, found.parents) == (["p1", "p2"], [None, 0])
    assert found.turns[0].names == ("p1", "a1", "r1", "a2")


def test_the_outcome_of_an_agent_in_the_background_comes_later_as_a_prompt_of_no_person(file: Path) -> None:
    lines = Lines().user("p1", "go").answer("a1", use("c1", "Agent", prompt="look"))
    lines.result("r1", "c1", "launched", toolUseResult={"status": "async_launched", "agentId": "d4"}).answer("a2", "so")
    lines.user("n1", "<task-notification>seen</task-notification>").answer("a3", "it has looked")
    found = turns_of(file, lines)
    assert found.keys == ["p1", "n1"]
    assert messages(found.turns[1])[0].source is MessageSource.EVENT
