"""Names of tools on the wire: every provider takes them, and each names one tool."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.kernel.enums import MessageRole
from weft.ledger.model import NewMessage, TextPart, ToolResultPart, ToolUsePart
from weft.runtime.inference.settings import ToolSpec
from weft.runtime.inference.tool_names import WireNames, wire_name

NAMES = st.text(st.sampled_from("ab_-/.h0\u202e"), min_size=1, max_size=12) | st.text(max_size=90)


@pytest.mark.parametrize(
    ("name", "sent"),
    [
        ("read", "read"),
        ("mcp__github__create_issue", "mcp__github__create_issue"),
        ("github/create_issue", "github--create_issue"),
        ("my-server/do-it", "my-server--do-it"),
    ],
)
def test_names_that_people_use_stay_readable(name: str, sent: str) -> None:
    assert wire_name(name) == sent


@pytest.mark.parametrize(
    "name",
    ["github--create_issue", "a/b/c", "a/b.c", "a-/b", "a/-b", "a--b/c", "x" * 65, f"a/{'x' * 63}", "\ud800", ""],
)
def test_every_other_name_is_told_apart_by_a_hash(name: str) -> None:
    assert re.fullmatch(r"[A-Za-z0-9_]+--h--[0-9a-f]{20}", wire_name(name))


@given(NAMES, NAMES)
def test_no_two_names_are_sent_alike_and_every_provider_takes_them(one: str, other: str) -> None:
    assert (wire_name(one) == wire_name(other)) == (one == other)
    assert re.fullmatch(r"[A-Za-z0-9_-]{1,64}", wire_name(one))
    assert WireNames([one, other]).name(wire_name(one)) == one


def test_a_name_that_was_not_offered_stays_as_it_was_called() -> None:
    assert WireNames(["github/read"]).name("github--write") == "github--write"


def test_a_conversation_is_sent_with_them_and_read_back() -> None:
    from pydantic_ai import messages as m

    from weft.runtime.inference.translation import Translation, from_model, to_tools

    translation = Translation()
    translation.extend(
        [
            NewMessage(role=MessageRole.USER, content="go"),
            NewMessage(role=MessageRole.ASSISTANT, content=(TextPart("so"), ToolUsePart("1", "github/read", {}))),
            NewMessage(role=MessageRole.TOOL, content=(ToolResultPart("1", "done"),)),
        ]
    )
    _, response, returned = translation.ending_in_request()
    assert [part.tool_name for part in response.parts if isinstance(part, m.ToolCallPart)] == ["github--read"]
    assert [part.tool_name for part in returned.parts if isinstance(part, m.ToolReturnPart)] == ["github--read"]
    tools = [ToolSpec(name="github/read")]
    assert [tool.name for tool in to_tools(tools).function_tools] == ["github--read"]
    (part,) = from_model([m.ToolCallPart("github--read", "{}", "2")], tools)
    assert part == ToolUsePart("2", "github/read", {})
