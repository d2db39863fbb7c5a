"""What a command line says of one message becomes overrides, or a refusal that names what was meant."""

from __future__ import annotations

import msgspec
import pytest

from weft.kernel.errors import InvalidInput
from weft.runtime.assembly.configuration_layers import NO_OVERRIDES, MessageOverrides, parse_overrides
from weft.runtime.inference.model_requests import Parameters


def test_settings_are_parameters_by_their_names_in_a_configuration() -> None:
    settings = ("temperature=0.2", "maxTokens=900", "thinking=high", 'stop=["END"]', "temperature=0.4")
    overrides = parse_overrides(model="fast", situation="coding", settings=settings, deny=["Bash(rm *)", "mcp__*"])
    assert overrides == MessageOverrides(
        model="fast",
        situation="coding",
        parameters=Parameters(temperature=0.4, max_tokens=900, thinking="high", stop=("END",)),
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
        ("thinking=hard", "thinking: 'hard' is not known", "minimal, low, medium, high"),
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
