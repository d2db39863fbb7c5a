"""Fields that agents and sessions share: how their turns ask a model unless a message says otherwise, and what their
turns may do at most.

The model has two names, `defaultModel` and `defaultModelConfig.model`. It is kept as the first; given under both names
with two values it is refused.
"""

from __future__ import annotations

from typing import Any

from weft.kernel.authority import SandboxFiles
from weft.kernel.errors import InvalidConfig, quoted
from weft.programs.addresses import parse_address
from weft.programs.config_fields import Check, Fields, filled, flag, host_list, member, reference, texts
from weft.programs.kinds.kind import Config
from weft.programs.kinds.model import PARAMETER_CHECKS, PARAMETER_NAMES
from weft.programs.machine_names import CREDENTIAL_LIMIT, NOTHING, SANDBOX, TOOLSET, VARIABLES, MachineField

MODEL_CONFIG = "defaultModelConfig"
MODEL_CONFIG_CHECK = Fields({"model": reference, "situation": filled, **PARAMETER_CHECKS})
LIMIT_CHECKS: dict[str, Check] = {
    "tools": Fields({"allow": texts, "deny": texts}),
    "sandbox": Fields({"files": member(*SandboxFiles), "network": flag, "hosts": host_list}),
    "credentials": texts,
}
"""Permissions that only narrow: tools by patterns, the sandbox, the credentials that may be used."""
TURN_MACHINE: dict[str, MachineField] = {
    **dict.fromkeys((f"{MODEL_CONFIG}.{name}" for name in ("model", "situation", *PARAMETER_NAMES)), VARIABLES),
    "defaultModel": NOTHING,
    "permissions.tools.allow": NOTHING,
    "permissions.tools.deny": NOTHING,
    "permissions.sandbox": SANDBOX,
    "permissions.credentials": CREDENTIAL_LIMIT,
    "toolset": TOOLSET,
    **dict.fromkeys(
        (
            f"compaction.{name}"
            for name in ("model", "strategy", "threshold", "everyTurns", "everyTokens", "keep", "focus", "automatic")
        ),
        VARIABLES,
    ),
}
"""What the fields that agents and sessions share name of the machine."""


def with_one_model(config: Config) -> Config:
    """The configuration with `defaultModelConfig.model` moved to `defaultModel`."""
    defaults = config.get(MODEL_CONFIG)
    if not isinstance(defaults, dict) or "model" not in defaults:
        return config
    model = defaults["model"]
    if "defaultModel" in config and not _is_same_model(config["defaultModel"], model):
        raise InvalidConfig(
            f"config.{MODEL_CONFIG}.model",
            f"names another model than defaultModel, {quoted(config['defaultModel'])}",
            "they are one field: give one of them",
        )
    others = {name: value for name, value in defaults.items() if name != "model"}
    kept = {name: value for name, value in config.items() if name != MODEL_CONFIG}
    return {**kept, "defaultModel": model, **({MODEL_CONFIG: others} if others else {})}


def _is_same_model(one: Any, other: Any) -> bool:
    try:
        return parse_address(one) == parse_address(other)
    except InvalidConfig:  # each is refused where its own field is checked
        return False


def with_changed_model(before: Config, merged: Config, changes: Config) -> Config:
    """Changes that name the model as `defaultModelConfig.model` replace, or with None remove, the `defaultModel`."""
    defaults = changes.get(MODEL_CONFIG)
    if isinstance(defaults, dict) and "model" in defaults and "defaultModel" not in changes:
        return {name: value for name, value in merged.items() if name != "defaultModel"}
    return merged
