"""Names that people type behind an @, and whom they mean."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.kernel.message_text import Addressee, TypedMentions, find_mentions, write_typed_mentions


def agent(name: str, id: str, *, is_present: bool = True) -> Addressee:
    return Addressee(kind="agent", id=id, name=name, is_present=is_present)


ADDRESSEES = (
    agent("helper", "H1"),
    agent("Reviewer", "R1"),
    agent("two words", "W1"),
    agent("gpt-4.1", "G1", is_present=False),
    agent("Zoë", "Z1"),
    agent("twin", "T1"),
    agent("twin", "T2"),
    agent("elsewhere", "E1", is_present=False),
    agent("elsewhere", "E2", is_present=False),
    agent("known", "K1"),
    agent("known", "K2", is_present=False),
    Addressee(kind="user", id="U1", name="alice", is_present=True),
)


@pytest.mark.parametrize(
    ("typed", "written"),
    [
        ("@helper what now?", "@[helper](agent:H1) what now?"),
        ("ask @helper, @alice and @Reviewer.", "ask @[helper](agent:H1), @[alice](user:U1) and @[Reviewer](agent:R1)."),
        ("@reviewer, look", "@[Reviewer](agent:R1), look"),
        ('@"two words" and (@helper)', "@[two words](agent:W1) and (@[helper](agent:H1))"),
        ("@helper's idea, @gpt-4.1.", "@[helper](agent:H1)'s idea, @[gpt-4.1](agent:G1)."),
        ("@Zoe\u0308!", "@[Zoë](agent:Z1)!"),
        ("@known is the one who is here", "@[known](agent:K1) is the one who is here"),
        ("@helper @helper", "@[helper](agent:H1) @[helper](agent:H1)"),
    ],
)
def test_a_typed_name_of_exactly_one_addressee_becomes_a_mention(typed: str, written: str) -> None:
    assert write_typed_mentions(typed, ADDRESSEES) == TypedMentions(text=written)


@pytest.mark.parametrize(
    "text",
    [
        "write to me@helper.org",
        "`@helper` is code",
        "```\n@helper\n```",
        r"\@helper stays",
        "@[helper](agent:H1) is written out",
        "@[a @helper](agent:H1)",
        "@ nobody, @, and @@helper",
    ],
)
def test_what_is_no_typed_mention_stays_as_it_is(text: str) -> None:
    assert write_typed_mentions(text, ADDRESSEES) == TypedMentions(text=text)


def test_unknown_and_ambiguous_names_stay_text_and_are_told_once() -> None:
    text = '@nobody! @helpers @twin @elsewhere @"no such one" @nobody'
    typed = write_typed_mentions(text, ADDRESSEES)
    assert typed.text == text
    assert typed.unknown == ("nobody", "helpers", "no such one")
    assert typed.ambiguous == ("twin", "elsewhere")


@given(st.text(alphabet='@ab "`\n\\.[]()', max_size=60), st.lists(st.text(alphabet="ab. `[", min_size=1), max_size=4))
def test_whatever_is_typed_mentions_only_addressees_and_keeps_those_written_out(text: str, names: list[str]) -> None:
    addressees = [agent(name, f"A{number}") for number, name in enumerate(names)]
    typed = write_typed_mentions(text, addressees)
    assert {mention.id for mention in find_mentions(typed.text)} <= {one.id for one in addressees}
    assert write_typed_mentions(text, ()).text == text
