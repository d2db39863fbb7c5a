"""What a model is said not to take is what does not arrive at its server, and nothing else."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest

from tests.runtime.inference.asking import ask, provider
from tests.runtime.scripted import failure
from weft.runtime.assembly.configuration_layers import PARAMETER_NAMES
from weft.runtime.inference.dialects.model_clients import taken_parameters
from weft.runtime.inference.inference import Inference
from weft.runtime.inference.model_requests import (
    Dialect,
    ModelParameters,
    ModelRoute,
    ModelSettings,
    OpenAIApi,
    ProviderKind,
)

EVERYTHING = ModelParameters(
    temperature=0.25, max_tokens=3000, top_p=0.75, top_k=7, seed=11, stop=("END",), presence_penalty=0.5,
    frequency_penalty=1.5, thinking="low",
)  # fmt: skip
"""All but min_p, which is refused where it is not taken."""
SPELLINGS = {
    "max_tokens": ("max_tokens", "max_completion_tokens", "max_output_tokens", "maxOutputTokens"),
    "top_p": ("top_p", "topP"),
    "top_k": ("top_k", "topK"),
    "stop": ("stop", "stop_sequences", "stopSequences"),
    "presence_penalty": ("presence_penalty", "presencePenalty"),
    "frequency_penalty": ("frequency_penalty", "frequencyPenalty"),
    "thinking": ("thinking", "reasoning", "reasoning_effort", "thinkingConfig", "thinking_config"),
}


def arrived(body: dict[str, Any]) -> set[str]:
    """The parameters that a request names, in whatever spelling."""
    fields = {**body, **body.get("generationConfig", {})}
    names = EVERYTHING.given()
    return {name for name in names if any(fields.get(word) is not None for word in SPELLINGS.get(name, (name,)))}


@pytest.mark.parametrize(
    ("kind", "api", "name"),
    [
        (ProviderKind.ANTHROPIC, None, "claude-sonnet-4-5"),
        (ProviderKind.ANTHROPIC, None, "claude-3-5-haiku-latest"),
        (ProviderKind.ANTHROPIC, None, "claude-opus-4-7"),
        (ProviderKind.GOOGLE, None, "gemini-2.5-flash"),
        (ProviderKind.OPENAI, OpenAIApi.CHAT, "gpt-4o"),
        (ProviderKind.OPENAI, OpenAIApi.CHAT, "gpt-5.1"),
        (ProviderKind.OPENAI, OpenAIApi.RESPONSES, "gpt-4.1"),
        (ProviderKind.OPENAI, OpenAIApi.RESPONSES, "o3"),
        (ProviderKind.OPENAI_COMPATIBLE, None, "qwen3"),
    ],
)
@pytest.mark.parametrize("thinking", ["low", False, None])
def test_what_is_sendable_is_what_arrives(kind: ProviderKind, api: OpenAIApi | None, name: str, thinking: Any) -> None:
    parameters = ModelParameters(**{key: value for key, value in EVERYTHING.given().items() if key != "thinking"})
    if thinking is not None:
        parameters = ModelParameters(**parameters.given(), thinking=thinking)
    models: list[ModelSettings] = []

    def make(url: str) -> ModelSettings:
        models.append(ModelSettings(id="m", name=name, provider=provider(url, kind, api=api), parameters=parameters))
        return models[0]

    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)  # the model layer would warn of what it leaves out
        asked = ask(failure(500), make=make)
    sendable = set(Inference().sendable(models[0], parameters).given())
    (received,) = asked.server.received
    if thinking is False:  # a model that does not think anyway need not be told
        sendable, found = sendable - {"thinking"}, arrived(received.body) - {"thinking"}
    else:
        found = arrived(received.body)
    assert found == sendable


PAGE = Path(__file__).parents[3] / "docs" / "models.md"


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip("|\n").split("|")]


@pytest.mark.parametrize("dialect", Dialect)
def test_the_table_of_the_page_says_which_parameters_a_protocol_has(dialect: Dialect) -> None:
    lines = PAGE.read_text().splitlines()
    first = next(number for number, line in enumerate(lines) if line.startswith("| | `anthropic`"))
    column = cells(lines[first]).index(f"`{dialect}`")
    table = [cells(line) for line in lines[first:] if line.startswith("|") and len(cells(line)) == 5]
    told = {name.strip("`"): row[column] for row in table for name in row[0].split(", ")}
    route = ModelRoute(dialect=dialect, url="https://there.test", model="any-model", keys=(), compatible=True)
    taken = taken_parameters(route, ModelParameters(thinking="low"))
    if dialect is Dialect.ANTHROPIC:  # what a model that thinks does not take
        taken |= taken_parameters(route, ModelParameters())
    taken -= set() if route.takes_min_p else {"min_p"}
    said = {own for name, own in PARAMETER_NAMES.items() if told[name] not in ("not sent", "refused")}
    assert said == taken
