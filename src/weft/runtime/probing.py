"""Providers invoked: is it there, does it take the key, and which models does it have?"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from weft.kernel.errors import OutsideError, ReplyMalformed, Unsupported, WeftError
from weft.programs.model import Program
from weft.runtime.configuring import ensure_in_use, provider_settings
from weft.runtime.context import ExecutionContext
from weft.runtime.credentials import Secret
from weft.runtime.inference.routes import Dialect, Route, route_of
from weft.runtime.inference.settings import ModelSettings, ProviderKind, ProviderSettings
from weft.runtime.workshop import Given, Invoked, Workshop

if TYPE_CHECKING:
    from weft.runtime.connections import Client

MOST_PAGES = 20
_PATHS = {
    Dialect.ANTHROPIC: ("/v1/models", {"limit": "1000"}),
    Dialect.OPENAI_CHAT: ("/models", {}),
    Dialect.OPENAI_RESPONSES: ("/models", {}),
    Dialect.GOOGLE: ("/v1beta/models", {"pageSize": "1000"}),
}
_HEADERS = {Dialect.ANTHROPIC: {"anthropic-version": "2023-06-01"}}


async def invoke_provider(shop: Workshop, program: Program, given: Given) -> Invoked:
    """The models that it has for whoever holds its key."""
    shop.context.ensure_allowed(f"provider:{program.name}")
    settings, acting = provider_settings(ensure_in_use(program), shop.variable, shop.context)
    models = _embedded() if settings.kind is ProviderKind.LOCAL else await _listed(shop, settings, acting)
    return Invoked(program=program.name, kind=program.kind, result={"models": models})


def _embedded() -> list[str]:
    from weft.runtime.inference.local import NAME, find_weights

    find_weights()
    return [NAME]


async def _listed(shop: Workshop, settings: ProviderSettings, acting: ExecutionContext) -> list[str]:
    if settings.kind is ProviderKind.CLOUDFLARE:
        raise Unsupported(
            f"provider {settings.id!r} is a gateway, and a gateway lists no models", "invoke a model that it leads to"
        )
    route = route_of(ModelSettings(id="-", name="-", provider=settings))
    keys, headers = [], dict[str, Secret]()
    for slot in route.keys:
        secret = await acting.credential(slot.credential, route.url)
        keys.append(secret)
        headers[slot.header] = Secret(slot.before + secret.reveal())
    client, _ = shop.inference.connections.client(route.url, headers, settings.rules)
    failed: WeftError
    try:
        return await _pages(client, route, settings, keys)
    except Exception as error:  # whatever the connection raises becomes an error that says who must act
        from weft.runtime.inference.failures import failure_of

        failed = failure_of(error, settings.id, keys)
    raise failed  # out here, so that theirs, which quotes what was sent, does not hang on it


async def _pages(client: Client, route: Route, settings: ProviderSettings, keys: list[Secret]) -> list[str]:
    path, asked = _PATHS[route.dialect]
    found: list[str] = []
    for _ in range(MOST_PAGES):
        answer = await client.get(route.url + path, params=asked, headers=_HEADERS.get(route.dialect, {}))
        if answer.status_code != 200:
            raise _refused(answer.status_code, answer.text, settings, keys)
        names, more = _read(answer.content, settings)
        found += names
        if not more:
            break
        asked = {**asked, **more}
    return found


def _refused(status: int, text: str, settings: ProviderSettings, keys: list[Secret]) -> OutsideError:
    from weft.runtime.inference.failures import kind_of_status, redacted, said

    try:
        body: Any = msgspec.json.decode(text)
    except msgspec.DecodeError:
        body = text[:200]
    made = kind_of_status(status)(f"{settings.id}: {status}: {redacted(said(body), keys)}"[:500])
    made.status = status
    return made


def _read(data: bytes, settings: ProviderSettings) -> tuple[list[str], dict[str, str]]:
    """The names on a page, and what to ask the next one with."""
    try:
        body = msgspec.json.decode(data)
        if "models" in body:  # Google's
            names = [str(one["name"]).removeprefix("models/") for one in body["models"]]
            return names, {"pageToken": body["nextPageToken"]} if body.get("nextPageToken") else {}
        names = [str(one["id"]) for one in body["data"]]
        return names, {"after_id": names[-1]} if body.get("has_more") and names else {}
    except (msgspec.DecodeError, KeyError, TypeError):
        raise ReplyMalformed(f"{settings.id}: what it answered is no list of models") from None
