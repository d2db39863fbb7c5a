"""Where a Codex turn begins and ends, what it grows from, and by what it is known again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.exchange.fixtures.codex.rollouts import (
    AT_MS,
    OTHER,
    SESSION,
    Line,
    asked,
    call,
    complete,
    context,
    developer,
    event,
    import_lines,
    item,
    line,
    messages,
    meta,
    output,
    said,
    shown,
    started,
    thought,
    tokens,
    told,
    turn_id,
    user,
)
from weft.exchange.importers.port import NativeLink
from weft.kernel.enums import LinkReason, MessageRole, MessageSource

ONE, TWO, THREE, FOUR = (turn_id(number) for number in range(1, 5))
SPAWNED = {"subagent": {"thread_spawn": {"parent_thread_id": SESSION, "depth": 1}}}


def test_a_turn_goes_from_task_started_to_task_complete(tmp_path: Path) -> None:
    found = import_lines(tmp_path, [meta(), *asked(ONE, "a", "b"), *asked(TWO, "c", "d")])
    assert found.keys() == [ONE, TWO]
    assert found.parents() == [None, 0]
    assert [shown(turn) for turn in found.turns] == [["user: a", "assistant: b"], ["user: c", "assistant: d"]]
    assert all(turn.closed and not turn.interrupted and turn.error is None for turn in found.turns)
    assert found.turns[0].started == found.turns[0].ended == AT_MS
    assert found.turns[0].metadata == {"turn_id": ONE, "duration_ms": 5}


def test_turn_context_gives_model_permissions_workspace_and_settings(tmp_path: Path) -> None:
    told_by = context(ONE, cwd="/elsewhere", sandbox_policy={"type": "read-only"}, permission_profile={"type": "off"})
    found = import_lines(tmp_path, [meta(), started(ONE), told_by, user("a"), said("b"), complete(ONE)])
    turn = found.turns[0]
    assert turn.workspace == "/elsewhere"
    assert turn.permissions == {
        "approval_policy": "never",
        "sandbox_policy": {"type": "read-only"},
        "permission_profile": {"type": "off"},
    }
    assert turn.config == {"effort": "high", "model_context_window": 1000}
    assert (messages(turn)[1].model, messages(turn)[1].provider) == ("gpt-5", "openai")
    assert messages(turn)[0].model is None


def test_dynamic_tools_are_the_tools_that_are_recorded(tmp_path: Path) -> None:
    tools = [{"type": "namespace", "name": "app", "tools": [{"name": "open"}, {"name": "shut"}]}, {"name": "solo"}]
    found = import_lines(tmp_path, [meta(dynamic_tools=tools), *asked(ONE, "a", "b")])
    assert found.turns[0].tools == ("app.open", "app.shut", "solo")


def test_a_killed_turn_is_interrupted_when_another_follows(tmp_path: Path) -> None:
    killed = [started(ONE), context(ONE), user("a"), told("a"), thought()]
    found = import_lines(tmp_path, [meta(), *killed, *asked(TWO, "c", "d")])
    assert [turn.interrupted for turn in found.turns] == [True, False]
    assert found.turns[0].closed


def test_the_last_turn_without_its_end_is_open(tmp_path: Path) -> None:
    running = [meta(), started(ONE), user("a"), told("a"), said("b")]
    live = import_lines(tmp_path, running, quiet=False)
    quiet = import_lines(tmp_path, running)
    assert not live.turns[0].closed
    assert not live.turns[0].interrupted
    assert quiet.turns[0].interrupted
    assert live.turns[0].records == quiet.turns[0].records


@pytest.mark.parametrize(
    ("last", "is_interrupted"),
    [
        ([said("b", phase="final_answer")], False),
        ([said("b", phase="commentary")], True),
        ([said("b", phase="final_answer"), call("c1")], True),
    ],
)
def test_a_turn_that_ends_in_its_final_answer_was_not_cut_off(
    tmp_path: Path, last: list[Any], is_interrupted: bool
) -> None:
    begun = [started(ONE), user("a"), told("a"), *last]
    alone = import_lines(tmp_path, [meta(), *begun])
    followed = import_lines(tmp_path, [meta(), *begun, *asked(TWO, "c", "d")])
    assert [found.turns[0].interrupted for found in (alone, followed)] == [is_interrupted] * 2


def test_turn_aborted_interrupts(tmp_path: Path) -> None:
    aborted = [started(ONE), user("a"), told("a"), event("turn_aborted", turn_id=ONE, reason="interrupted")]
    found = import_lines(tmp_path, [meta(), *aborted])
    assert found.turns[0].interrupted
    assert found.turns[0].closed
    assert found.turns[0].metadata["aborted"] == "interrupted"


def test_the_end_of_a_review_is_no_interruption(tmp_path: Path) -> None:
    ended = [started(ONE), user("a"), told("a"), event("turn_aborted", turn_id=ONE, reason="review_ended")]
    assert not import_lines(tmp_path, [meta(), *ended]).turns[0].interrupted


def test_an_error_fails_its_turn(tmp_path: Path) -> None:
    failing = [started(ONE), user("a"), told("a"), event("error", message="usage limit", codex_error_info="limit")]
    found = import_lines(tmp_path, [meta(), *failing, complete(ONE, last_agent_message=None)])
    assert found.turns[0].error == "usage limit"


def test_task_complete_may_carry_the_error(tmp_path: Path) -> None:
    lines = [meta(), started(ONE), user("a"), told("a"), complete(ONE, error={"message": "too long"})]
    assert import_lines(tmp_path, lines).turns[0].error == "too long"


def test_a_refused_rollback_does_not_fail_the_turn(tmp_path: Path) -> None:
    refused = event("error", message="no", codex_error_info="thread_rollback_failed")
    lines = [meta(), started(ONE), user("a"), told("a"), refused, said("b"), complete(ONE)]
    assert import_lines(tmp_path, lines).turns[0].error is None


def test_prompts_typed_while_a_turn_runs_belong_to_it(tmp_path: Path) -> None:
    steered = [started(ONE), user("a"), told("a"), said("b"), user("wait"), told("wait"), said("c"), complete(ONE)]
    found = import_lines(tmp_path, [meta(), *steered])
    assert [shown(turn) for turn in found.turns] == [["user: a", "assistant: b", "user: wait", "assistant: c"]]


def test_a_prompt_written_before_its_task_started_belongs_to_it(tmp_path: Path) -> None:
    early = [context(TWO), told("c"), started(TWO), user("c"), said("d"), complete(TWO)]
    found = import_lines(tmp_path, [meta(), *asked(ONE, "a", "b"), *early])
    assert found.keys() == [ONE, TWO]
    assert shown(found.turns[1]) == ["user: c", "assistant: d"]
    assert found.turns[1].permissions == {"approval_policy": "never"}


def test_results_after_the_end_belong_to_the_turn_that_ended(tmp_path: Path) -> None:
    first = [started(ONE), user("a"), told("a"), call("c1"), event("turn_aborted", turn_id=ONE, reason="interrupted")]
    late = [output("c1", "aborted by user after 1s"), tokens(10, given=8, out=2)]
    found = import_lines(tmp_path, [meta(), *first, *late, context(TWO), *asked(TWO, "c", "d")])
    assert found.keys() == [ONE, TWO]
    assert messages(found.turns[0])[1].tokens is not None
    assert messages(found.turns[1])[1].tokens is None


def test_without_task_events_a_turn_goes_from_prompt_to_prompt(tmp_path: Path) -> None:
    """Codex before 0.40: item, then event, then a turn_context before every request."""
    first = [
        user("<environment_context>x"),
        user("a"),
        told("a"),
        context(),
        said("b"),
        context(),
        said("c"),
        context(),
    ]
    found = import_lines(tmp_path, [meta(), *first, user("d"), told("d"), context(), said("e")])
    assert [shown(turn) for turn in found.turns] == [["user: a", "assistant: b | c"], ["user: d", "assistant: e"]]
    assert [turn.closed for turn in found.turns] == [True, False]


def test_an_event_before_its_item_is_the_same_prompt(tmp_path: Path) -> None:
    found = import_lines(tmp_path, [meta(), told("a"), context(), user("a"), said("b"), user("c"), said("d")])
    assert [shown(turn) for turn in found.turns] == [["user: a", "assistant: b"], ["user: c", "assistant: d"]]


def test_prompts_without_an_answer_are_turns(tmp_path: Path) -> None:
    found = import_lines(tmp_path, [meta(), user("a"), told("a"), user("b"), told("b")])
    assert [shown(turn) for turn in found.turns] == [["user: a"], ["user: b"]]


def test_context_before_a_prompt_belongs_to_its_turn(tmp_path: Path) -> None:
    later = [developer("<permissions instructions>new"), user("<environment_context>y"), user("c"), said("d")]
    found = import_lines(tmp_path, [meta(), user("a"), said("b"), *later])
    assert len(messages(found.turns[1])[0].context["injected"]) == 2
    assert messages(found.turns[0])[0].context is None


def test_an_injection_starts_no_turn_and_is_no_message(tmp_path: Path) -> None:
    texts = [
        "# AGENTS.md instructions for /shop",
        "<environment_context>",
        "<turn_aborted>\nThe user interrupted",
        "<recommended_plugins>",
        "  <skill>\n<name>x",
        "<user_instructions>",
    ]
    found = import_lines(tmp_path, [meta(), user("a"), said("b"), *map(user, texts), developer("anything"), said("c")])
    assert [shown(turn) for turn in found.turns] == [["user: a", "assistant: b", "assistant: c"]]
    assert len(messages(found.turns[0])[0].context["injected"]) == len(texts) + 1


def test_what_a_person_wrote_is_a_prompt_even_if_it_looks_injected(tmp_path: Path) -> None:
    words = "<skill> tags: what are they?"
    found = import_lines(tmp_path, [meta(), started(ONE), user(words), told(words), said("b"), complete(ONE)])
    assert shown(found.turns[0])[0] == f"user: {words}"
    assert messages(found.turns[0])[0].source == MessageSource.HUMAN


def test_who_wrote_a_prompt_is_told_by_its_event(tmp_path: Path) -> None:
    lines = [
        started(ONE),
        user("a"),
        told("a", client_id="client-1"),
        said("b"),
        user("go on with the goal"),
        user("<subagent_notification>{}"),
        user('<hook_prompt hook_run_id="1">stop</hook_prompt>'),
        user("<user_shell_command>ls</user_shell_command>"),
        complete(ONE),
    ]
    found = import_lines(tmp_path, [meta(), *lines])
    sources = [each.source for each in messages(found.turns[0]) if each.role == MessageRole.USER]
    assert sources == [
        MessageSource.HUMAN,
        MessageSource.EVENT,
        MessageSource.AGENT,
        MessageSource.TRIGGER,
        MessageSource.EVENT,
    ]
    assert messages(found.turns[0])[0].metadata == {"client_id": "client-1"}


def test_messages_between_agents_are_messages_of_agents(tmp_path: Path) -> None:
    blocks = [{"type": "input_text", "text": "NEW_TASK"}, {"type": "encrypted_content", "encrypted_content": "gAAAA"}]
    letter = item("agent_message", id="amsg_1", author="/lead", recipient="/lead/map", content=blocks)
    note = line("inter_agent_communication_metadata", {"trigger_turn": True})
    found = import_lines(tmp_path, [meta(), started(ONE), note, letter, said("on it"), complete(ONE)])
    message = messages(found.turns[0])[0]
    assert (message.role, message.source, message.native) == (MessageRole.USER, MessageSource.AGENT, "amsg_1")
    assert message.metadata == {"encrypted_letters": 5, "author": "/lead", "recipient": "/lead/map"}
    assert found.report.kept == {"inter_agent_communication_metadata": 1}


def test_a_file_of_events_alone_gives_their_texts(tmp_path: Path) -> None:
    first = [told("a"), event("agent_reasoning", text="hm"), event("agent_message", message="b")]
    found = import_lines(tmp_path, [meta(), *first, told("c"), event("agent_message", message="d")])
    assert [shown(turn) for turn in found.turns] == [
        ["user: a", "assistant: thinking: hm | b"],
        ["user: c", "assistant: d"],
    ]


def test_the_last_agent_message_stands_in_where_nothing_else_is(tmp_path: Path) -> None:
    lines = [meta(), started(ONE), told("a"), complete(ONE, last_agent_message="b")]
    assert shown(import_lines(tmp_path, lines).turns[0]) == ["user: a", "assistant: b"]


def test_the_newest_history_tells_of_items_in_place_of_events(tmp_path: Path) -> None:
    def done(kind: str, **fields: Any) -> Line:
        return event("item_completed", turn_id=ONE, item={"type": kind, "id": "x", **fields})

    lines = [
        started(ONE),
        user("a"),
        done("UserMessage", content=[{"type": "text", "text": "a"}]),
        thought("hm"),
        done("Reasoning", summary_text=["hm"], raw_content=[]),
        said("b"),
        done("AgentMessage", content=[{"type": "Text", "text": "b"}]),
        done("Plan", text="1. rest"),
        done("Telepathy"),
        complete(ONE),
    ]
    found = import_lines(tmp_path, [meta(), *lines])
    assert shown(found.turns[0]) == ["user: a", "assistant: thinking: hm | b"]
    assert messages(found.turns[0])[0].source == MessageSource.HUMAN
    assert found.turns[0].metadata["notes"] == [{"event": "plan", "id": "x", "text": "1. rest"}]
    assert found.report.unknown == {"event_msg/item_completed/Telepathy": 1}


def test_rollback_makes_the_next_turn_a_child_of_the_turn_before_the_dropped_ones(tmp_path: Path) -> None:
    back = event("thread_rolled_back", num_turns=2)
    turns = [*asked(ONE, "a", "b"), *asked(TWO, "c", "d"), *asked(THREE, "e", "f"), back, *asked(FOUR, "g", "h")]
    found = import_lines(tmp_path, [meta(), *turns])
    assert found.keys() == [ONE, TWO, THREE, FOUR]
    assert found.parents() == [None, 0, 1, 0]


def test_rollback_of_everything_begins_at_the_root(tmp_path: Path) -> None:
    back = event("thread_rolled_back", num_turns=9)
    found = import_lines(tmp_path, [meta(), *asked(ONE, "a", "b"), back, *asked(TWO, "c", "d")])
    assert found.parents() == [None, None]


def test_rollback_counts_prompted_turns_only(tmp_path: Path) -> None:
    compacting = [started(TWO), line("compacted", {"message": "short"}), complete(TWO)]
    back = event("thread_rolled_back", num_turns=1)
    turns = [*asked(ONE, "a", "b"), *asked(THREE, "e", "f"), *compacting, back, *asked(FOUR, "g", "h")]
    found = import_lines(tmp_path, [meta(), *turns])
    assert found.parents() == [None, 0, 1, 0]


def test_rollback_of_nothing_or_nonsense_changes_nothing(tmp_path: Path) -> None:
    back = [event("thread_rolled_back"), event("thread_rolled_back", num_turns="x")]
    found = import_lines(tmp_path, [meta(), *back, *asked(ONE, "a", "b"), *back, *asked(TWO, "c", "d")])
    assert found.parents() == [None, 0]


def test_a_compaction_inside_a_turn_divides_it(tmp_path: Path) -> None:
    window = "019f0000-1002-7000-8000-00000000aaaa"
    history = [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": "a"}]}]
    history.append({"type": "compaction", "id": "cmp_1", "encrypted_content": "gAAAA"})
    compacted = line(
        "compacted", {"message": "", "replacement_history": history, "window_id": window, "window_number": 1}
    )
    shrunk = event(
        "token_count",
        info={
            "total_token_usage": {"total_tokens": 500, "input_tokens": 0, "output_tokens": 0},
            "last_token_usage": {"total_tokens": 40, "input_tokens": 0, "output_tokens": 0},
        },
    )
    lines = [
        started(ONE),
        context(ONE),
        user("a"),
        told("a"),
        call("c1"),
        output("c1"),
        tokens(500, given=490, out=10),
        compacted,
        context(ONE),
        shrunk,
        event("context_compacted"),
        said("b"),
        complete(ONE),
    ]
    found = import_lines(tmp_path, [meta(), *lines, *asked(TWO, "c", "d")])
    assert found.keys() == [ONE, window, f"{ONE}#{window}", TWO]
    assert found.parents() == [None, 0, 1, 2]
    assert [shown(turn) for turn in found.turns] == [
        ["user: a", "assistant: ", "call exec_command c1"],
        [],
        ["assistant: b"],
        ["user: c", "assistant: d"],
    ]
    compaction = found.turns[1].compaction
    assert compaction is not None
    assert (compaction.summary, compaction.trigger, compaction.model) == ("", "auto", "gpt-5")
    assert (compaction.tokens_before, compaction.tokens_after) == (500, 40)
    assert compaction.metadata["items_kept"] == 1
    assert compaction.metadata["encrypted_letters"] == 5
    assert not found.turns[0].interrupted
    assert found.turns[0].end <= found.turns[1].offset < found.turns[2].offset


def test_what_was_read_before_a_compaction_stays_when_the_session_is_named_anew_behind_it(tmp_path: Path) -> None:
    begun = [meta(), started("4"), context("4"), user("a"), said("b"), line("compacted", {"message": "short"})]
    early = import_lines(tmp_path, begun)
    late = import_lines(tmp_path, [*begun, meta(OTHER), said("c"), complete("4"), *asked("5", "d", "e")])
    assert early.keys() == [f"{SESSION}/4", f"{SESSION}/4#compaction-1"]
    assert late.keys() == [*early.keys(), f"{SESSION}/4#{early.keys()[1]}", f"{OTHER}/5"]
    assert [turn.records for turn in late.turns[:2]] == [turn.records for turn in early.turns]


def test_a_compaction_whose_summary_is_encrypted_has_an_empty_one(tmp_path: Path) -> None:
    history = [{"type": "compaction", "id": "cmp_1", "encrypted_content": "gAAAA"}]
    lines = [meta(), *asked(ONE, "a", "b"), line("compacted", {"message": "", "replacement_history": history})]
    told = [
        turn.compaction for turn in import_lines(tmp_path, [*lines, *asked(TWO, "c", "d")]).turns if turn.compaction
    ]
    assert [(each.summary, each.metadata["encrypted_letters"]) for each in told] == [("", 5)]


def test_a_compaction_that_a_person_asked_for_is_manual(tmp_path: Path) -> None:
    lines = [started(TWO), context(TWO), line("compacted", {"message": "We did much."}), event("context_compacted")]
    found = import_lines(tmp_path, [meta(), *asked(ONE, "a", "b"), *lines, complete(TWO), *asked(THREE, "c", "d")])
    assert found.keys() == [ONE, f"{TWO}#compaction-0", THREE]
    compaction = found.turns[1].compaction
    assert compaction is not None
    assert (compaction.summary, compaction.trigger, compaction.duration_ms) == ("We did much.", "manual", 5)


def test_a_compaction_before_the_prompt_stands_before_its_turn(tmp_path: Path) -> None:
    lines = [started(TWO), line("compacted", {"message": "s", "window_id": "w" * 30}), user("c"), told("c"), said("d")]
    found = import_lines(tmp_path, [meta(), *asked(ONE, "a", "b"), *lines, complete(TWO)])
    assert found.keys() == [ONE, "w" * 30, TWO]
    assert found.parents() == [None, 0, 1]


def test_a_summary_is_found_in_the_history_that_replaces(tmp_path: Path) -> None:
    words = "Another language model started to solve this problem and so on: all is well"
    history = [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": words}]}]
    lines = [meta(), user("a"), said("b"), line("compacted", {"message": "", "replacement_history": history})]
    compaction = import_lines(tmp_path, lines).turns[1].compaction
    assert compaction is not None
    assert compaction.summary == words


def test_a_compaction_of_the_wrong_shape_is_still_one(tmp_path: Path) -> None:
    lines = [meta(), user("a"), said("b"), line("compacted", {"message": None, "replacement_history": "x"})]
    found = import_lines(tmp_path, lines)
    assert found.turns[1].compaction is not None
    assert found.turns[1].compaction.summary == ""


def test_what_is_injected_after_a_compaction_is_told_with_the_answer(tmp_path: Path) -> None:
    compacted = line("compacted", {"message": "s"})
    lines = [started(ONE), user("a"), told("a"), said("b"), compacted, developer("rules"), said("c"), complete(ONE)]
    found = import_lines(tmp_path, [meta(), *lines])
    assert messages(found.turns[2])[0].context == {"injected": [{"role": "developer", "content": ["rules"]}]}


def test_a_compaction_stays_the_same_when_its_task_ends(tmp_path: Path) -> None:
    lines = [meta(), *asked(ONE, "a", "b"), started(TWO), line("compacted", {"message": "s"})]
    before = import_lines(tmp_path, lines, quiet=False)
    after = import_lines(tmp_path, [*lines, event("context_compacted"), complete(TWO)])
    assert before.turns[1].closed
    assert before.turns[1].records == after.turns[1].records


def rewritten(lines: list[Line]) -> list[Line]:
    """As a copy has them: the same payloads, the time of copying."""
    return [{**each, "timestamp": "2026-06-07T08:09:10.011Z"} for each in lines]


def rich_turn() -> list[Line]:
    return [
        started(ONE, started_at=1767323000),
        context(ONE),
        user("a"),
        told("a"),
        thought("hm", id="rs_1", encrypted_content="gAAAA"),
        call("call_1", id="fc_1"),
        output("call_1"),
        tokens(10, given=8, out=2),
        said("b", id="msg_1", phase="final_answer"),
        tokens(20, given=8, out=2),
        complete(ONE),
    ]


def test_copied_turns_are_the_same_turns(tmp_path: Path) -> None:
    own = [meta(), *rich_turn(), *asked(TWO, "c", "d")]
    fork = [
        meta(OTHER, forked_from_id=SESSION),
        *rewritten([meta(), *rich_turn()]),
        *asked(turn_id(9, 0x3000), "e", "f"),
    ]
    parent = import_lines(tmp_path, own, name="parent.jsonl")
    child = import_lines(tmp_path, fork, name="child.jsonl")
    assert (child.turns[0].key, child.turns[0].records) == (parent.turns[0].key, parent.turns[0].records)
    assert child.turns[0].items[0] != parent.turns[0].items[0]  # the time of copying is no time of writing
    assert messages(child.turns[0])[0].at is None
    assert child.turns[0].started == 1767323000000
    assert child.turns[0].metadata["copied_from"] == SESSION
    assert messages(child.turns[0])[1].tokens == messages(parent.turns[0])[1].tokens
    assert child.session.id == OTHER
    assert child.session.metadata["forked_from_id"] == SESSION
    assert child.parents() == [None, 0]
    assert [turn.link for turn in child.turns] == [None, None]
    assert messages(child.turns[1])[0].at == AT_MS


def test_a_fork_runs_in_its_own_version(tmp_path: Path) -> None:
    own = meta(OTHER, forked_from_id=SESSION, cli_version="0.150.0", git={"branch": "fork"})
    lines = [own, meta(git={"branch": "main"}), *rich_turn(), *asked(turn_id(9, 0x3000), "e", "f")]
    found = import_lines(tmp_path, lines)
    assert [(turn.version, turn.git_branch) for turn in found.turns] == [("0.140.0", "main"), ("0.150.0", "fork")]
    assert found.session.version == "0.150.0"


def test_a_copy_is_known_by_its_turns_where_its_session_meta_is_missing(tmp_path: Path) -> None:
    fork = [meta(OTHER, forked_from_id=SESSION), *rich_turn(), *asked(turn_id(9, 0x3000), "e", "f")]
    found = import_lines(tmp_path, fork)
    assert [turn.link for turn in found.turns] == [None, None]
    assert found.turns[0].metadata["copied_from"] == SESSION


def test_short_turn_ids_are_those_of_the_thread_that_made_them(tmp_path: Path) -> None:
    parent = import_lines(tmp_path, [meta(), *asked("4", "a", "b")])
    copied = [meta(OTHER, forked_from_id=SESSION), meta(), *asked("4", "a", "b")]
    child = import_lines(tmp_path, copied)
    alone = import_lines(tmp_path, [meta(OTHER), *asked("4", "a", "b")])
    assert parent.keys() == child.keys() == [f"{SESSION}/4"]
    assert alone.keys() == [f"{OTHER}/4"]
    assert parent.turns[0].records == child.turns[0].records


def test_turns_without_any_id_are_known_by_thread_place_and_text(tmp_path: Path) -> None:
    plain = [user("a"), said("b"), user("a"), said("b")]
    one = import_lines(tmp_path, [meta(), *plain])
    again = import_lines(tmp_path, [meta(OTHER, forked_from_id=SESSION), meta(), *plain])
    assert len(set(one.keys())) == 2
    assert one.keys() == again.keys()
    assert [turn.records for turn in one.turns] == [turn.records for turn in again.turns]
    assert all(turn.key.startswith(SESSION) for turn in one.turns)


def test_a_subagents_copy_has_the_cost_but_not_the_calls_of_its_parent(tmp_path: Path) -> None:
    """Codex leaves tool calls and thinking out of it, but not the reports of their cost, which then come too early."""
    dropped = {"function_call", "function_call_output", "reasoning"}
    copied = [each for each in rich_turn() if each["payload"].get("type") not in dropped]
    own = turn_id(9, 0x3000)
    asks = [started(own), user("look"), call("c9"), output("c9"), tokens(7, given=5), said("seen"), tokens(9, given=2)]
    spawned = meta(OTHER, source=SPAWNED, forked_from_id=SESSION)
    found = import_lines(tmp_path, [spawned, meta(), *copied, *asks, complete(own)])
    costs = [[each.tokens.input for each in messages(turn) if each.tokens] for turn in found.turns]
    assert costs == [[16], [5, 2]]
    assert [messages(turn)[0].source for turn in found.turns] == [MessageSource.HUMAN, MessageSource.AGENT]


def test_ordinals_tell_where_a_subagents_own_history_begins(tmp_path: Path) -> None:
    own = meta(OTHER, source=SPAWNED, subagent_history_start_ordinal=3)
    lines = [own, meta(), *asked("1", "a", "b"), *asked("2", "c", "d")]
    numbered = [{**each, "ordinal": 0 if k < 8 else k} for k, each in enumerate(lines)]
    found = import_lines(tmp_path, numbered)
    assert found.keys() == [f"{SESSION}/1", f"{OTHER}/2"]


def test_a_fork_without_the_copy_is_linked(tmp_path: Path) -> None:
    own = turn_id(9, 0x3000)
    found = import_lines(tmp_path, [meta(OTHER, forked_from_id=SESSION), *asked(own, "a", "b")])
    assert found.turns[0].link == NativeLink(to=SESSION, why=LinkReason.FORK, session=SESSION)


def test_a_history_base_is_linked(tmp_path: Path) -> None:
    base = {"thread_id": SESSION, "end_ordinal_exclusive": 7, "end_byte_offset": 900}
    lines = [meta(OTHER, history_base=base), *asked(turn_id(9, 0x3000), "a", "b"), *asked(turn_id(8, 0x3000), "c", "d")]
    found = import_lines(tmp_path, lines)
    assert [turn.link and turn.link.to for turn in found.turns] == [SESSION, None]


def test_a_forked_subagent_without_the_copy_is_linked_as_such(tmp_path: Path) -> None:
    own = meta(OTHER, source=SPAWNED, forked_from_id=SESSION)
    found = import_lines(tmp_path, [own, *asked(turn_id(9, 0x3000), "a", "b")])
    assert found.turns[0].link == NativeLink(to=SESSION, why=LinkReason.SUBAGENT, session=SESSION)
    assert found.session.parent == SESSION


def test_identity_does_not_know_time_place_version_cost_or_settings(tmp_path: Path) -> None:
    other = [
        {**each, "timestamp": "2027-01-01T00:00:00Z", "ordinal": k}
        for k, each in enumerate(rich_turn())
        if each["payload"].get("type") != "token_count" and each["type"] != "turn_context"
    ]
    one = import_lines(tmp_path, [meta(), *rich_turn()])
    two = import_lines(tmp_path, [meta(OTHER, cwd="/else", cli_version="9"), developer("new"), *other])
    assert one.turns[0].records == two.turns[0].records
    assert one.keys() == two.keys()


def test_a_grown_turn_keeps_its_key_and_changes_its_records(tmp_path: Path) -> None:
    short = import_lines(tmp_path, [meta(), *rich_turn()[:6]])
    grown = import_lines(tmp_path, [meta(), *rich_turn()])
    assert short.keys() == grown.keys()
    assert short.turns[0].records != grown.turns[0].records


def test_names_hold_the_ids_of_turn_items_and_calls(tmp_path: Path) -> None:
    found = import_lines(tmp_path, [meta(), *rich_turn()])
    assert found.turns[0].names == (ONE, "rs_1", "fc_1", "call_1", "msg_1")


def test_an_aborted_turn_without_a_word_is_still_a_turn(tmp_path: Path) -> None:
    empty = [started(ONE), event("turn_aborted", turn_id=ONE, reason="interrupted")]
    found = import_lines(tmp_path, [meta(), *empty, *asked(TWO, "a", "b")])
    assert found.keys() == [ONE, TWO]
    assert found.turns[0].items == ()


def test_repeated_turn_ids_stay_unique(tmp_path: Path) -> None:
    found = import_lines(tmp_path, [meta(), *asked(ONE, "a", "b"), *asked(ONE, "c", "d")])
    assert found.keys() == [ONE, f"{ONE}#2"]


def test_a_thousand_loose_records_wait_for_no_turn(tmp_path: Path) -> None:
    found = import_lines(tmp_path, [meta(), *[event("quantum_status")] * 5000, *asked(ONE, "a", "b")])
    assert found.keys() == [ONE]
    assert found.report.kept == {"event_msg/quantum_status": 5000}
