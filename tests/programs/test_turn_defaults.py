"""How agents and sessions configure their turns: a model with parameters, and permissions that only people change."""

from __future__ import annotations

from typing import Any

import pytest

from weft.kernel.errors import InvalidConfig, NotAllowed
from weft.programs import Programs

DEFAULTS = {"model": "claude-balanced", "temperature": 0.2, "maxTokens": 900, "thinking": "low", "situation": "coding"}
LIMITS = {
    "tools": {"allow": ["Read"], "deny": ["Bash"]},
    "sandbox": {"files": "workspace", "network": False},
    "credentials": ["mine"],
}


def made(world: Programs, kind: str, config: dict[str, Any]) -> dict[str, Any]:
    program = world.create_session("talk", config=config) if kind == "session" else world.create(kind, "ada", config)
    return dict(program.config)


@pytest.mark.parametrize("kind", ["agent", "session"])
def test_a_model_has_one_place_whichever_name_it_is_given_under(world: Programs, kind: str) -> None:
    config = made(world, kind, {"defaultModelConfig": DEFAULTS, "permissions": LIMITS})
    others = {name: value for name, value in DEFAULTS.items() if name != "model"}
    assert (config["defaultModel"], config["defaultModelConfig"]) == ("@(claude-balanced)", others)
    assert config["permissions"] == LIMITS
    name = "talk" if kind == "session" else "ada"
    world.create("model", "small", {"modelId": "m", "provider": "cf-gateway"})
    changed = world.change(name, {"defaultModelConfig": {"model": "small", "maxTokens": None}}).config
    assert changed["defaultModel"] == "@(small)"
    assert changed["defaultModelConfig"] == {"temperature": 0.2, "thinking": "low", "situation": "coding"}
    assert "defaultModel" not in world.change(name, {"defaultModelConfig": {"model": None}}).config
    with pytest.raises(InvalidConfig, match="names another model than defaultModel"):
        world.change(name, {"defaultModel": "small", "defaultModelConfig": {"model": "claude-balanced"}})


@pytest.mark.parametrize("kind", ["agent", "session"])
@pytest.mark.parametrize(
    ("config", "path", "hint"),
    [
        ({"defaultModelConfig": {"temprature": 1}}, "config.defaultModelConfig.temprature", "Config.temperature"),
        ({"defaultModelConfig": {"temperature": 9}}, "config.defaultModelConfig.temperature", "from 0 to 2"),
        ({"permissions": {"sandbox": {"files": "none"}}}, "config.permissions.sandbox.files", "read-only"),
        ({"permissions": {"tools": {"alow": []}}}, "config.permissions.tools.alow", "permissions.tools.allow"),
    ],
)  # fmt: skip
def test_a_field_that_no_turn_has_is_refused_with_what_was_meant(
    world: Programs, kind: str, config: dict[str, Any], path: str, hint: str
) -> None:
    with pytest.raises(InvalidConfig) as refused:
        made(world, kind, config)
    assert refused.value.path == path
    assert hint in refused.value.hint


def test_a_default_model_must_be_a_model(world: Programs) -> None:
    with pytest.raises(InvalidConfig, match="not a model"):
        made(world, "agent", {"defaultModelConfig": {"model": "cf-gateway"}})


def test_an_agent_sets_limits_on_its_session_once_and_changes_none(world: Programs) -> None:
    world.create("agent", "ada", {"permissions": {"programs": ["configure", "configure(bob)"], **LIMITS}})
    world.create("agent", "bob", {"permissions": LIMITS})
    world.create_session("talk", owner="ada")
    ada = world.acting_as("ada")
    ada.change("talk", {"permissions": {"tools": {"deny": ["Bash"]}}})
    changes: list[dict[str, Any]] = [{"permissions": None}, {"permissions": {"tools": {"deny": []}}}]
    for change in changes:
        with pytest.raises(NotAllowed, match="change the permissions of the session 'talk'"):
            ada.change("talk", change)
    with pytest.raises(NotAllowed, match="which keys, folders"):
        ada.change("bob", {"permissions": {"sandbox": {"network": True}}})
    assert world.change("talk", {"permissions": None}).config == {"owner": "@(ada)"}
