"""The model layer's objects for a route. They speak the protocol; connections and keys are not theirs.

Each is given a key that means nothing: the guard of the connection puts the real one in.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from weft.runtime.inference.routes import Dialect, Route

if TYPE_CHECKING:
    from pydantic_ai.models import Model
    from pydantic_ai.providers import Provider

    from weft.runtime.egress.connections import Client

NO_KEY = "kept-elsewhere"


def speaker(route: Route, provider: str, client: Client) -> Model:
    """What speaks this route's protocol over this client."""
    match route.dialect:
        case Dialect.ANTHROPIC:
            return _anthropic(route, client)
        case Dialect.GOOGLE:
            return _google(route, client)
        case Dialect.OPENAI_CHAT | Dialect.OPENAI_RESPONSES:
            return _openai(route, provider, client)


def _anthropic(route: Route, client: Client) -> Model:
    from anthropic import AsyncAnthropic
    from pydantic_ai.models.anthropic import AnthropicModel
    from pydantic_ai.providers.anthropic import AnthropicProvider

    sdk = AsyncAnthropic(api_key=NO_KEY, base_url=route.url, http_client=client, max_retries=0)
    return AnthropicModel(route.model, provider=AnthropicProvider(anthropic_client=sdk))


def _openai(route: Route, provider: str, client: Client) -> Model:
    from openai import AsyncOpenAI
    from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
    from pydantic_ai.providers.openai import OpenAIProvider
    from pydantic_ai.providers.openai_compatible import OpenAICompatibleProvider

    sdk = AsyncOpenAI(api_key=NO_KEY, base_url=route.url, http_client=client, max_retries=0)
    home = (
        OpenAICompatibleProvider(provider, openai_client=sdk) if route.compatible else OpenAIProvider(openai_client=sdk)
    )
    kind = OpenAIChatModel if route.dialect is Dialect.OPENAI_CHAT else OpenAIResponsesModel
    return kind(route.model, provider=home)


def _google(route: Route, client: Client) -> Model:
    from pydantic_ai.models.google import GoogleModel
    from pydantic_ai.providers.google import GoogleProvider

    return GoogleModel(route.model, provider=GoogleProvider(api_key=NO_KEY, http_client=client, base_url=route.url))


def takes_thinking(route: Route) -> bool:
    """Whether the model layer sends a thinking setting to this model; elsewhere it leaves it out."""
    profile = _provider_of(route).model_profile(route.model) or {}
    return bool(profile.get("supports_thinking") or profile.get("thinking_always_enabled"))


def _provider_of(route: Route) -> type[Provider[Any]]:
    match route.dialect:
        case Dialect.ANTHROPIC:
            from pydantic_ai.providers.anthropic import AnthropicProvider

            return AnthropicProvider
        case Dialect.GOOGLE:
            from pydantic_ai.providers.google import GoogleProvider

            return GoogleProvider
        case Dialect.OPENAI_CHAT | Dialect.OPENAI_RESPONSES:
            from pydantic_ai.providers.openai import OpenAIProvider
            from pydantic_ai.providers.openai_compatible import OpenAICompatibleProvider

            return OpenAICompatibleProvider if route.compatible else OpenAIProvider
