"""Models: one of a provider's, with the parameters it is asked with, by situation, and those that stand in for it."""

from __future__ import annotations

from typing import Any

from weft.kernel import program_events
from weft.kernel.enums import ProgramKind, ReferenceField
from weft.kernel.errors import InvalidConfig
from weft.programs.config_fields import (
    Check,
    Fields,
    NamedObjects,
    count,
    filled,
    flag,
    member,
    number,
    one_of,
    or_variable,
    reference,
    reference_list,
    texts,
    whole_number,
)
from weft.programs.kinds import published
from weft.programs.kinds.kind import KindRow, ReferenceRule
from weft.programs.kinds.vendor_names import refuse_model_name
from weft.programs.machine_names import VARIABLES

MAX_FALLBACKS = 8
PARAMETER_CHECKS: dict[str, Check] = {
    "temperature": number(0, 2),
    "maxTokens": count,
    "topP": number(0, 1),
    "topK": or_variable(count),
    "minP": number(0, 1),
    "seed": or_variable(whole_number),
    "stop": texts,
    "presencePenalty": number(-2, 2),
    "frequencyPenalty": number(-2, 2),
    "thinking": or_variable(one_of(flag, member("minimal", "low", "medium", "high"))),
}
"""The parameters of a request to a model, by the names that configurations and `--set` give them."""
PARAMETER_NAMES = (
    "temperature", "maxTokens", "topP", "topK", "minP", "seed", "stop", "presencePenalty", "frequencyPenalty",
    "thinking",
)  # fmt: skip
"""Those of them of which is known that they name nothing of the machine but variables."""


def _fallbacks(path: str, value: Any) -> list[str]:
    models = reference_list(path, value)
    if len(models) > MAX_FALLBACKS:
        raise InvalidConfig(path, f"names {len(models)} models", f"name at most {MAX_FALLBACKS}")
    return models


MODEL = KindRow(
    facts=program_events.MODEL,
    required=("modelId", "provider"),
    fields={
        "modelId": filled,
        "provider": reference,
        **PARAMETER_CHECKS,
        "situations": NamedObjects(Fields(PARAMETER_CHECKS)),
        "fallbacks": _fallbacks,
        "images": or_variable(flag),
        "contextWindow": or_variable(count),
    },
    machine=dict.fromkeys(
        ("modelId", "provider", *PARAMETER_NAMES, "situations", "fallbacks", "images", "contextWindow"), VARIABLES
    ),
    references={
        "provider": ReferenceRule(ReferenceField.PROVIDER, (ProgramKind.PROVIDER,)),
        "fallbacks": ReferenceRule(ReferenceField.FALLBACK, (ProgramKind.MODEL,)),
    },
    holds_keys=True,
    refuse_name=refuse_model_name,
    file_states=published.FILE_STATES,
    state_in_use=published.STATE_IN_USE,
    steps=published.STEPS,
    ended_states=published.ENDED_STATES,
)
