"""What a model's provider is told of the caching of prompts, and what is refused because it cannot be told."""

from __future__ import annotations

import pytest

from tests.runtime.inference.asking import provider
from weft.kernel.errors import InvalidConfig
from weft.runtime.assembly.turn_configuration import ensure_prompt_cache
from weft.runtime.inference.model_requests import (
    ModelSettings,
    PromptCache,
    ProviderKind,
    asks_by_cache_key,
    prompt_cache_of,
    route_of,
)

MINUTES, HOUR, KEY, OFF = PromptCache.FIVE_MINUTES, PromptCache.ONE_HOUR, PromptCache.KEY, PromptCache.OFF
GATEWAY = {"account_id": "a", "gateway_id": "g"}


def settings(kind: ProviderKind, name: str, cache: PromptCache | None = None) -> ModelSettings:
    more = GATEWAY if kind is ProviderKind.CLOUDFLARE else {}
    return ModelSettings(id="m", name=name, provider=provider("http://x", kind, **more), prompt_cache=cache)


@pytest.mark.parametrize(
    ("kind", "name", "usual"),
    [
        (ProviderKind.ANTHROPIC, "claude-sonnet-4-5", MINUTES),
        (ProviderKind.OPENAI, "gpt-5", KEY),
        (ProviderKind.OPENAI_COMPATIBLE, "gpt-5", OFF),
        (ProviderKind.GOOGLE, "gemini-2.5-flash", OFF),
        (ProviderKind.CLOUDFLARE, "claude-sonnet-4-5", MINUTES),
        (ProviderKind.CLOUDFLARE, "gpt-5", KEY),
        (ProviderKind.CLOUDFLARE, "@cf/meta/llama", OFF),
    ],
)
def test_what_is_usual_is_said_by_who_is_asked(kind: ProviderKind, name: str, usual: PromptCache) -> None:
    model = settings(kind, name)
    assert prompt_cache_of(model, route_of(model).dialect) is usual
    assert asks_by_cache_key(model) == (usual is KEY)


@pytest.mark.parametrize(
    ("kind", "taken"),
    [
        (ProviderKind.ANTHROPIC, {MINUTES, HOUR, OFF}),
        (ProviderKind.OPENAI, {KEY, OFF}),
        (ProviderKind.OPENAI_COMPATIBLE, {KEY, OFF}),
        (ProviderKind.GOOGLE, set()),
        (ProviderKind.LOCAL, set()),
    ],
)
def test_what_cannot_be_told_is_refused(kind: ProviderKind, taken: set[PromptCache]) -> None:
    for cache in PromptCache:
        if cache in taken:
            ensure_prompt_cache(settings(kind, "m-1", cache))
            continue
        with pytest.raises(InvalidConfig, match="promptCache"):
            ensure_prompt_cache(settings(kind, "m-1", cache))
