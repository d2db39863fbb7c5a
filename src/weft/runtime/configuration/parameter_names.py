"""The two spellings of a request's parameters: in configurations (`maxTokens`) and in `Parameters` (`max_tokens`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from weft.kernel.errors import InvalidConfig
from weft.runtime.inference.settings import Parameters

PARAMETER_NAMES = {
    "temperature": "temperature", "maxTokens": "max_tokens", "topP": "top_p", "topK": "top_k", "minP": "min_p",
    "seed": "seed", "stop": "stop", "presencePenalty": "presence_penalty", "frequencyPenalty": "frequency_penalty",
    "thinking": "thinking",
}  # fmt: skip
"""By the name in a configuration, that in `Parameters`."""
CONFIGURED_NAMES = {own: name for name, own in PARAMETER_NAMES.items()}


def parameters_of(config: Mapping[str, Any], place: str) -> Parameters:
    """The parameters among the fields of a configuration; `place` names it in a refusal."""
    values = {own: config[name] for name, own in PARAMETER_NAMES.items() if name in config}
    try:
        return msgspec.convert(values, Parameters, strict=False)
    except msgspec.ValidationError as error:
        raise InvalidConfig(place, str(error), "mend it") from None
