"""A turn as what was said and groups of steps, and which passages of a message a tool put there."""

from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.exchange.exporters.stories import call, told
from tests.sizes import sized
from weft.ledger.api import Item, StepGroup, message_passages, sections, typed_command
from weft.ledger.model import Message, ReasoningPart, TextPart, ToolCall, ToolResultPart, ToolUsePart

LONG = "This plan has several parts. " * 20


def shape(*said: Any) -> list[str]:
    """Each section in a few words: who says what, or the summary of a group."""
    return [
        section.summary if isinstance(section, StepGroup) else f"{section.role}: {section.text[:20]}"
        for section in sections(told(1, *said).items)
    ]


def test_the_work_between_prompt_and_answer_is_one_group() -> None:
    calls = [call(i, "Bash") for i in range(9)] + [call(10 + i, "Edit") for i in range(2)]
    calls += [call(20 + i, f"tool{i}") for i in range(3)]
    said = [("user", "go"), ("assistant", [ReasoningPart("hm"), TextPart("I look.")]), *calls, ("assistant", "Done.")]
    assert shape(*said) == ["user: go", "14 steps: 9 Bash, 2 Edit, 1 tool0, 1 tool1, 1 tool2", "assistant: Done."]
    more = [*said[:2], *calls, call(30, "tool3"), ("assistant", "Done.")]
    assert shape(*more)[1] == "15 steps: 9 Bash, 2 Edit, 1 tool0, 1 tool1, 2 others"


def test_long_words_and_words_of_people_are_never_taken_into_a_group() -> None:
    said = [("user", "go"), call(1), ("assistant", LONG), call(2), ("user", "stop"), ("assistant", "ok"), call(3)]
    assert shape(*said) == [
        "user: go", "1 step: Bash", f"assistant: {LONG[:20]}", "1 step: Bash", "user: stop", "1 step: Bash",
    ]  # fmt: skip
    assert shape(("assistant", "Two.\n\nParagraphs."), call(1))[0] == "assistant: Two.\n\nParagraphs."


def test_failures_and_what_it_was_about_are_told() -> None:
    items = told(1, ("assistant", [ReasoningPart("\n why?\nbecause")]), call(1, outcome="error"), call(2)).items
    (group,) = sections(items)
    assert isinstance(group, StepGroup)
    assert (group.summary, group.hint()) == ("2 steps: 2 Bash · 1 failed", "why?")
    assert group.hint(thinking=False) == ""


def test_calls_that_only_messages_tell_count_once() -> None:
    use, result = ToolUsePart("c1", "Bash", {}), ToolResultPart("c1", "out")
    assert shape(("assistant", [TextPart("now"), use]), ("tool", [result])) == ["1 step: Bash"]
    assert shape(("assistant", [use]), call(1), ("user", [result])) == ["1 step: Bash"]
    assert shape(("assistant", [ReasoningPart("hm")]), ("assistant", "a")) == ["Thinking", "assistant: a"]


def test_what_a_tool_sent_in_the_users_place_does_not_end_a_group() -> None:
    items = told(1, call(1), ("user", "<task-notification>"), call(2), ("user", "by the tool")).items
    sent = tuple(replace(item, source="event") if isinstance(item, Message) else item for item in items)
    group, last = sections(sent)
    assert isinstance(group, StepGroup)
    assert (group.summary, len(group.items)) == ("2 steps: 2 Bash", 3)
    assert isinstance(last, Message)


parts = st.sampled_from(
    [TextPart("a"), TextPart(LONG), ReasoningPart("b"), ToolUsePart("c1", "n", {}), ToolResultPart("c1", "o")]
)
steps = st.tuples(st.sampled_from(["user", "assistant", "system", "tool"]), st.lists(parts, max_size=4))


@settings(max_examples=sized(test=25, prove=4500))
@given(st.lists(steps | st.sampled_from([call(2), call(3, "Edit")]), max_size=8))
def test_every_part_and_call_is_in_one_section(said: list[Any]) -> None:
    def content(items: Any) -> Counter[Any]:
        return Counter(
            repr(part)
            for item in items
            for part in ((item,) if isinstance(item, ToolCall) else [(item.id, p) for p in item.content])
        )

    items = told(1, *said).items
    inside: list[Item] = []
    for section in sections(items):
        inside += section.items if isinstance(section, StepGroup) else (section,)
    assert content(inside) == content(items)


INJECTED = "<system-reminder>\nfacts\n</system-reminder>\n"


def test_passages_that_a_tool_put_there_are_told_apart() -> None:
    found = message_passages(f"{INJECTED}fix <div>\n  it</div>\n{INJECTED}\n")
    assert [(passage.text, passage.is_injected) for passage in found] == [
        (INJECTED, True), ("fix <div>\n  it</div>\n", False), (f"{INJECTED}\n", True),
    ]  # fmt: skip
    assert [passage.tag for passage in found] == ["system-reminder", "", "system-reminder"]
    codex = "# AGENTS.md instructions for /a\n\n<INSTRUCTIONS>\nbe brief\n</INSTRUCTIONS>"
    assert [passage.is_injected for passage in message_passages(f"{codex}\nhi")] == [True, False]
    assert [passage.is_injected for passage in message_passages(f"hi\n{codex[33:]}")] == [False]


@pytest.mark.parametrize(
    "text", ["", " \n", "say `<system-reminder>`", "<system-reminder> open", "a <system-reminder></"]
)
def test_what_a_person_may_have_typed_stays_theirs(text: str) -> None:
    assert [(passage.text, passage.is_injected) for passage in message_passages(text)] == [(text, False)]


def test_a_typed_command_is_found_in_its_wrapper() -> None:
    wrapper = "<command-message>review</command-message>\n<command-name>/review</command-name>\n"
    wrapper += "<command-args>12</command-args>"
    assert typed_command(wrapper) == "/review 12"
    assert typed_command("<bash-input>ls -l</bash-input>") == "! ls -l"
    assert typed_command("/review 12") is None


tags = st.sampled_from(["<system-reminder>", "</system-reminder>", "<INSTRUCTIONS>", "</INSTRUCTIONS>", "\n", " ", "x",
    "# AGENTS.md instructions for y\n", "<div>", "<command-name>", "</command-name>"])  # fmt: skip


@settings(max_examples=sized(test=25, prove=4500))
@given(st.lists(tags, max_size=14).map("".join))
def test_passages_together_are_the_text(text: str) -> None:
    assert "".join(passage.text for passage in message_passages(text)) == text
