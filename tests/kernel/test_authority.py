"""Principals, rights and the chain between them: what is added only narrows, and patterns are matched in one way."""

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.kernel.authority import (
    EVERYTHING,
    LOCAL,
    LONGEST_CHAIN,
    Authority,
    Layer,
    Principal,
    PrincipalKind,
    Rights,
    authority_of,
    covers,
    pattern_matcher,
    rights,
    strictest,
)
from weft.kernel.errors import InvalidInput, NotAllowed

PERSON = Principal(PrincipalKind.HUMAN, "bln")
AGENT = Principal(PrincipalKind.AGENT, "scout")
FEW_LETTERS = "ab:*?"
PATTERNS = st.text(FEW_LETTERS, min_size=1, max_size=6)
RIGHT_NAMES = [first + second for first in ("", "a", "b", "ab") for second in ("", ":a", ":b", ":ab", "b:a")]
LAYERS = st.builds(Layer, st.lists(PATTERNS, max_size=3).map(tuple), st.lists(PATTERNS, max_size=2).map(tuple))
RIGHTS = st.builds(Rights, st.lists(LAYERS, max_size=2).map(tuple))


def allowed(authority: Authority) -> set[str]:
    return {name for name in RIGHT_NAMES if authority.allows(name)}


def as_regex(pattern: str) -> str:
    return "".join({"*": ".*", "?": "."}.get(letter, re.escape(letter)) for letter in pattern)


@given(st.text(FEW_LETTERS + "\n[", max_size=8), st.text("ab:\n[", max_size=10))
def test_a_pattern_matches_what_the_same_regular_expression_matches(pattern: str, text: str) -> None:
    assert pattern_matcher(pattern)(text) == (re.fullmatch(as_regex(pattern), text, re.S) is not None)


@pytest.mark.parametrize("pattern", ["*a" * 200 + "b", "*?a" * 150 + "b", "?" * 300 + "*", "*" * 1000 + "b"])
def test_no_pattern_makes_matching_slow(pattern: str) -> None:
    """A backtracking matcher would not come to an end here."""
    assert not pattern_matcher(pattern)("a" * 5000 + "c") or pattern.endswith("*")


@given(RIGHTS, st.lists(st.tuples(st.booleans(), RIGHTS), max_size=5))
def test_no_chain_of_child_and_delegate_allows_more(first: Rights, steps: list[tuple[bool, Rights]]) -> None:
    authority = Authority((PERSON,), first)
    for delegates, more in steps:
        narrower = authority.delegate(AGENT, more) if delegates else authority.child(more)
        assert allowed(narrower) == {name for name in allowed(authority) if more.allows(name)}
        assert narrower.chain[: len(authority.chain)] == authority.chain
        authority = narrower


@given(LAYERS, st.sampled_from(RIGHT_NAMES))
def test_deny_wins_over_allow(layer: Layer, right: str) -> None:
    assert not Layer(layer.allow, (*layer.deny, right)).allows(right)
    assert Layer((*layer.allow, right), layer.deny).allows(right) == (not any(covers(p, right) for p in layer.deny))


def test_the_strictest_rule_that_fits_decides() -> None:
    assert strictest(["allow", "ask", "deny", "allow"]) == "deny"
    assert strictest(["allow", "ask"]) == "ask"
    assert strictest([]) is None


def test_the_chain_names_who_acts_and_for_whom() -> None:
    authority = LOCAL.delegate(PERSON).delegate(AGENT)
    assert authority.principal == AGENT
    assert authority.on_behalf_of == (PERSON, LOCAL.principal)
    assert (LOCAL.is_local, authority.is_local, LOCAL.child(rights([])).is_local) == (True, False, True)
    with pytest.raises(NotAllowed, match="agent:scout for human:bln for system:local may not use 'x'"):
        authority.child(rights([])).ensure_allowed("x")


def test_a_chain_has_a_beginning_and_an_end() -> None:
    with pytest.raises(InvalidInput, match="chain"):
        Authority(())
    with pytest.raises(InvalidInput, match="chain"):
        Authority((PERSON,) * LONGEST_CHAIN).delegate(AGENT)


@pytest.mark.parametrize("who", ["", None, 7, ["ann"]])
def test_nobody_is_no_authority(who: Any) -> None:
    with pytest.raises(InvalidInput):
        authority_of(who)


def test_a_name_is_the_authority_of_whoever_is_called_so() -> None:
    assert authority_of("local") is LOCAL
    assert authority_of("ann") == Authority((Principal(PrincipalKind.PROGRAM, "ann"),), EVERYTHING)
    assert authority_of(LOCAL) is LOCAL


def test_a_rule_for_some_uses_of_a_tool_needs_to_know_the_use() -> None:
    some = rights(["tool:Bash(git:*)", "tool:Read"], ["tool:Read(*.key)"])
    assert some.allows("tool:Bash", "git status")
    assert not some.allows("tool:Bash", "rm -rf /")
    assert not some.allows("tool:Bash")
    assert some.allows("tool:Read", "notes.md")
    assert not some.allows("tool:Read", "id.key")
    assert not some.allows("tool:Read")
