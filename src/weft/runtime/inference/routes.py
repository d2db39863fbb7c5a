"""Where a question goes: which protocol is spoken, to which URL, under which name, with which keys in which headers.

Pure functions of settings. Behind a gateway the provider is chosen from the model's name.
"""

from __future__ import annotations

import re
from enum import StrEnum
from urllib.parse import quote

from msgspec import Struct, field

from weft.kernel.errors import Action, InvalidInput
from weft.runtime.egress.credentials import Secret
from weft.runtime.inference.settings import ModelSettings, OpenAIApi, ProviderKind, ProviderSettings

CLOUDFLARE = "https://gateway.ai.cloudflare.com"


class Dialect(StrEnum):
    """The protocols that providers speak."""

    ANTHROPIC = "anthropic"
    OPENAI_CHAT = "openai-chat"
    OPENAI_RESPONSES = "openai-responses"
    GOOGLE = "google"


class KeySlot(Struct, frozen=True):
    """A header, what stands before the key in it, and the credential that the key comes from."""

    header: str
    before: str
    credential: str


class Route(Struct, frozen=True, kw_only=True):
    """Where a request goes: protocol, URL, model name, headers with keys."""

    dialect: Dialect
    url: str
    model: str
    keys: tuple[KeySlot, ...]
    own_keys: dict[str, Secret] = field(default_factory=dict)
    """Headers of a server that was started here, whose key nobody else knows."""
    compatible: bool = False
    """Not the provider's own server, but one that speaks as it does."""

    @property
    def takes_min_p(self) -> bool:
        return self.compatible and self.dialect in (Dialect.OPENAI_CHAT, Dialect.OPENAI_RESPONSES)


HOMES = {
    ProviderKind.ANTHROPIC: "https://api.anthropic.com",
    ProviderKind.OPENAI: "https://api.openai.com/v1",
    ProviderKind.GOOGLE: "https://generativelanguage.googleapis.com",
}
_KEY_OF = {
    Dialect.ANTHROPIC: ("x-api-key", ""),
    Dialect.OPENAI_CHAT: ("authorization", "Bearer "),
    Dialect.OPENAI_RESPONSES: ("authorization", "Bearer "),
    Dialect.GOOGLE: ("x-goog-api-key", ""),
}
_BEHIND_GATEWAY = (
    (re.compile(r"(?:anthropic/)?(claude-.+)"), "anthropic", Dialect.ANTHROPIC),
    (re.compile(r"(?:openai/)?((?:gpt-|chatgpt-|codex-|o\d).*)"), "openai", Dialect.OPENAI_CHAT),
    (re.compile(r"(?:google/|google-ai-studio/)?(gemini-.+)"), "google-ai-studio", Dialect.GOOGLE),
    (re.compile(r"(?:workers-ai/)?(@cf/.+)"), "workers-ai/v1", Dialect.OPENAI_CHAT),
    (re.compile(r"([a-z0-9-]+/.+)"), "compat", Dialect.OPENAI_CHAT),
)
"""What a model's name begins with, where the gateway wants it, and what is spoken there."""


def route_of(model: ModelSettings) -> Route:
    provider = model.provider
    match provider.kind:
        case ProviderKind.CLOUDFLARE:
            return _through_cloudflare(model)
        case ProviderKind.ANTHROPIC:
            return _straight(model, Dialect.ANTHROPIC)
        case ProviderKind.GOOGLE:
            return _straight(model, Dialect.GOOGLE)
        case ProviderKind.OPENAI:
            return _straight(model, _openai(provider, OpenAIApi.RESPONSES))
        case ProviderKind.OPENAI_COMPATIBLE:
            return _straight(model, _openai(provider, OpenAIApi.CHAT), compatible=True)
        case ProviderKind.LOCAL:
            raise InvalidInput("the embedded model has no route of its own", "start it first")


def _openai(provider: ProviderSettings, default: OpenAIApi) -> Dialect:
    is_chat = (provider.api or default) is OpenAIApi.CHAT
    return Dialect.OPENAI_CHAT if is_chat else Dialect.OPENAI_RESPONSES


def _straight(model: ModelSettings, dialect: Dialect, compatible: bool = False) -> Route:
    provider = model.provider
    url = provider.base_url or HOMES.get(provider.kind)
    if url is None:
        raise InvalidInput(f"provider {provider.id!r} has no URL", Action.GIVE_SERVER_URL)
    return Route(
        dialect=dialect,
        url=url.rstrip("/"),
        model=model.name,
        keys=_slots(dialect, provider.credential),
        compatible=compatible or provider.base_url is not None,
    )


def _slots(dialect: Dialect, credential: str | None) -> tuple[KeySlot, ...]:
    return () if credential is None else (KeySlot(*_KEY_OF[dialect], credential),)


def _through_cloudflare(model: ModelSettings) -> Route:
    provider = model.provider
    if not provider.account_id or not provider.gateway_id:
        raise InvalidInput(
            f"gateway {provider.id!r} lacks its account or its name",
            "set CLOUDFLARE_ACCOUNT_ID and CLOUDFLARE_GATEWAY_ID, or give it accountId and gatewayId",
        )
    base = (provider.base_url or CLOUDFLARE).rstrip("/")
    root = f"{base}/v1/{quote(provider.account_id, safe='')}/{quote(provider.gateway_id, safe='')}"
    for pattern, path, dialect in _BEHIND_GATEWAY:
        if found := pattern.fullmatch(model.name):
            return Route(
                dialect=dialect,
                url=f"{root}/{path}",
                model=found[1],
                keys=(*_gateway_slot(provider), *_slots(dialect, provider.credential)),
                compatible=True,
            )
    raise InvalidInput(
        f"nothing in {model.name!r} says whose model it is", "behind a gateway write it as provider/model"
    )


def _gateway_slot(provider: ProviderSettings) -> tuple[KeySlot, ...]:
    if provider.gateway_credential is None:
        return ()
    return (KeySlot("cf-aig-authorization", "Bearer ", provider.gateway_credential),)
