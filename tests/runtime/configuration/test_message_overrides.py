"""What a command line says of one message becomes overrides, or a refusal that names what was meant."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from weft.kernel.errors import InvalidInput
from weft.runtime.assembly.configuration_layers import (
    NO_OVERRIDES,
    ConfigLayer,
    LayerName,
    MessageOverrides,
    combined_overrides,
    merge,
    parse_overrides,
)
from weft.runtime.inference.model_requests import ModelParameters
from weft.runtime.tool.toolsets import limits_of


def test_settings_are_parameters_by_their_names_in_a_configuration() -> None:
    settings = ("temperature=0.2", "maxTokens=900", "thinking=high", 'stop=["END"]', "temperature=0.4")
    overrides = parse_overrides(model="fast", situation="coding", settings=settings, deny=["Bash(rm *)", "mcp__*"])
    assert overrides == MessageOverrides(
        model="fast",
        situation="coding",
        parameters=ModelParameters(temperature=0.4, max_tokens=900, thinking="high", stop=("END",)),
        deny=("Bash(rm *)", "mcp__*"),
    )
    assert msgspec.json.decode(msgspec.json.encode(overrides), type=MessageOverrides) == overrides
    assert parse_overrides() == NO_OVERRIDES
    assert NO_OVERRIDES.layer().is_empty


@pytest.mark.parametrize(
    ("setting", "reason", "hint"),
    [
        ("temperature", "is not KEY=VALUE", "temperature=0.2"),
        ("=5", "is not KEY=VALUE", "temperature=0.2"),
        ("temprature=0.2", "'temprature' is no parameter", "did you mean temperature?"),
        ("max_tokens=5", "'max_tokens' is no parameter", "did you mean maxTokens?"),
        ("zzz=1", "'zzz' is no parameter", "one of temperature, maxTokens"),
        ("model=fast", "'model' is no parameter", "give it as --model"),
        ("temperature=7", "temperature: 7 is out of range", "from 0 to 2"),
        ("temperature=NaN", "temperature: 'NaN' is out of range", "from 0 to 2"),
        ("maxTokens=many", "maxTokens: 'many' is no count", "whole number"),
        ("stop=END", "stop: 'END' is no list", "list of texts"),
        (
            "thinking=hard",
            "thinking: 'hard' is not known",
            "minimal, low, medium, high, true, false, or a number of tokens",
        ),
        ("temperature=${HEAT}", "names no variable", "the value itself"),
    ],
)
def test_a_setting_that_no_model_has_is_refused_with_what_was_meant(setting: str, reason: str, hint: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        parse_overrides(settings=[setting])
    assert reason in str(refused.value)
    assert hint in refused.value.hint


def test_a_denial_that_is_no_pattern_for_tools_is_refused() -> None:
    with pytest.raises(InvalidInput, match="is no pattern for tools"):
        parse_overrides(deny=["repo:write"])


def test_every_limit_of_a_message_is_one_of_its_turn() -> None:
    overrides = parse_overrides(
        allow=["read", "shell(git *)"], sandbox="read-only+network:example.org", credentials=["one"], thinking="low"
    )
    assert msgspec.json.decode(msgspec.json.encode(overrides), type=MessageOverrides) == overrides
    limits = overrides.layer().permissions
    assert (limits.allow, limits.credentials) == (("read", "shell(git *)"), ("one",))
    assert (limits.sandbox.files, limits.sandbox.hosts) == ("read-only", ("example.org",))
    assert overrides.parameters == ModelParameters(thinking="low")


@pytest.mark.parametrize("profile", ["none", "everything", ""])
def test_no_message_takes_its_commands_out_of_the_sandbox(profile: str) -> None:
    with pytest.raises(InvalidInput, match="no sandbox") as refusal:
        parse_overrides(sandbox=profile)
    assert refusal.value.hint.startswith("give workspace, read-only, network:HOST")
    with pytest.raises(InvalidInput, match="no sandbox"):
        MessageOverrides(sandbox=profile).layer()


@pytest.mark.parametrize(
    ("configured", "given", "left"),
    [
        ({}, "workspace", "workspace"),
        ({}, "network:example.org", "workspace"),  # what nothing opens stays closed
        ({"network": True}, "network:example.org", "network:example.org"),
        ({"network": True, "hosts": ["example.org", "example.com"]}, "network:example.org", "network:example.org"),
        ({"network": True, "hosts": ["example.com"]}, "network:example.org", "workspace"),
        ({"network": True}, "read-only", "read-only"),
        ({"network": False}, "network:*", "workspace"),
        ({"network": True}, "network:*", "network:*"),
        ({"files": "everything"}, "read-only", "read-only"),
        ({"files": "everything"}, "network:example.org", "network:example.org"),
        ({"files": "read-only"}, "network:example.org", "read-only"),
    ],
)
def test_a_message_leaves_its_turn_a_sandbox_that_opens_nothing(
    configured: dict[str, Any], given: str, left: str
) -> None:
    session = ConfigLayer(name=LayerName.SESSION, permissions=limits_of({"sandbox": configured}))
    message = parse_overrides(sandbox=given).layer("M1")
    assert str(merge([session, message]).permissions.sandbox.profile()) == left


def test_messages_that_are_answered_together_are_limited_by_all_of_them() -> None:
    one = parse_overrides(
        allow=["read", "shell", "mcp__*"], sandbox="network:example.org,example.com", credentials=["a", "b"]
    )
    other = parse_overrides(
        allow=["shell(git *)", "mcp__calendar", "edit", "mcp?"], sandbox="read-only+network:example.org",
        credentials=["b"],
    )  # fmt: skip
    both = combined_overrides([one, MessageOverrides(), other])
    assert both.allow is not None
    assert set(both.allow) == {"shell(git *)", "mcp__calendar"}
    assert (both.sandbox, both.credentials) == ("read-only+network:example.org", ("b",))
