"""The model layer's objects for a route. They speak the protocol; connections and keys are not theirs.

Each is given a key that means nothing: the guard of the connection puts the real one in. Making them takes longer than
recording what they answer, so they are kept between requests.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from msgspec import UNSET

from weft.runtime.inference.routes import Dialect, Route
from weft.runtime.inference.settings import Parameters, ProviderSettings

if TYPE_CHECKING:
    from pydantic_ai.models import Model
    from pydantic_ai.providers import Provider

    from weft.runtime.egress.connections import Client, Connections, KeptClient, Seen
    from weft.runtime.egress.credentials import Secret

NO_KEY = "kept-elsewhere"
MAX_IDLE_SPEAKERS = 64


class Speakers:
    """The model layer's objects, kept between requests. Each is used by one request at a time, with its keys alone."""

    def __init__(self, connections: Connections) -> None:
        self._connections = connections
        self._idle: dict[tuple[object, ...], list[tuple[Model, KeptClient]]] = {}
        self._idle_amount = 0

    @contextmanager
    def lent(
        self, route: Route, provider: ProviderSettings, keys: Mapping[str, Secret]
    ) -> Iterator[tuple[Model, Seen]]:
        """What speaks this route's protocol, and what it will have seen. It is kept for the next request where this one
        raises nothing."""
        rules = provider.rules
        place = (route.dialect, route.url, route.model, route.compatible, provider.id, rules)
        idle = self._idle.get(place)
        if idle:
            self._idle_amount -= 1
            model, client = idle.pop()
        else:
            client = self._connections.kept_client(route.url, rules)
            model = speaker(route, provider.id, client.client)
        try:
            yield model, client.lend(keys)
        finally:
            client.take_back()
        if self._idle_amount >= MAX_IDLE_SPEAKERS:
            self._idle, self._idle_amount = {}, 0
        self._idle.setdefault(place, []).append((model, client))
        self._idle_amount += 1


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
    from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
    from pydantic_ai.providers.openai import OpenAIProvider
    from pydantic_ai.providers.openai_compatible import OpenAICompatibleProvider

    from weft.runtime.inference.plain_bodies import PlainOpenAI

    sdk = PlainOpenAI(api_key=NO_KEY, base_url=route.url, http_client=client, max_retries=0)
    home = (
        OpenAICompatibleProvider(provider, openai_client=sdk) if route.compatible else OpenAIProvider(openai_client=sdk)
    )
    kind = OpenAIChatModel if route.dialect is Dialect.OPENAI_CHAT else OpenAIResponsesModel
    return kind(route.model, provider=home)


def _google(route: Route, client: Client) -> Model:
    from pydantic_ai.models.google import GoogleModel
    from pydantic_ai.providers.google import GoogleProvider

    return GoogleModel(route.model, provider=GoogleProvider(api_key=NO_KEY, http_client=client, base_url=route.url))


_SAMPLING = frozenset({"temperature", "top_p", "top_k", "presence_penalty", "frequency_penalty"})
_TAKEN_PARAMETERS = {
    Dialect.ANTHROPIC: frozenset({"max_tokens", "temperature", "top_p", "top_k", "stop"}),
    Dialect.GOOGLE: _SAMPLING | {"max_tokens", "seed", "stop"},
    Dialect.OPENAI_CHAT: _SAMPLING - {"top_k"} | {"max_tokens", "seed", "stop"},
    Dialect.OPENAI_RESPONSES: frozenset({"max_tokens", "temperature", "top_p"}),
}
"""What the model layer has a field for, by protocol."""
ALWAYS_SENT = frozenset({"min_p"})
"""Where it is not taken, the request is refused before it is sent."""


def embedded_parameters() -> frozenset[str]:
    """The parameters that an embedded model is sent: it cannot be told how to think."""
    return _TAKEN_PARAMETERS[Dialect.OPENAI_CHAT] | ALWAYS_SENT


def taken_parameters(route: Route, parameters: Parameters) -> frozenset[str]:
    """The names of the parameters that the model layer sends to this model; the others it leaves out."""
    profile: Mapping[str, Any] = _provider_of(route).model_profile(route.model) or {}
    taken = _TAKEN_PARAMETERS[route.dialect] | ALWAYS_SENT
    if profile.get("supports_thinking") or profile.get("thinking_always_enabled"):
        taken |= {"thinking"}
    is_openai = route.dialect in (Dialect.OPENAI_CHAT, Dialect.OPENAI_RESPONSES)
    if profile.get("anthropic_disallows_sampling_settings") or (is_openai and _reasons(profile, parameters)):
        taken -= _SAMPLING
    return taken - frozenset(profile.get("openai_unsupported_model_settings") or ())


def _reasons(profile: Mapping[str, Any], parameters: Parameters) -> bool:
    """Whether an OpenAI model reasons when it is asked so, and therefore takes no sampling parameters."""
    if not profile.get("openai_supports_reasoning"):
        return False
    efforts = profile.get("openai_reasoning_efforts")
    can_stop = profile.get("openai_supports_reasoning_effort_none") if efforts is None else "none" in efforts
    if not can_stop:
        return True
    if parameters.thinking is UNSET:
        return bool(profile.get("thinking_enabled_by_default"))
    return parameters.thinking is not False or bool(profile.get("thinking_always_enabled"))


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
