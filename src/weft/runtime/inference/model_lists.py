"""Requests to a provider's server as one principal makes them, and the models that it lists.

A model that a provider does not know is answered with the names nearest to it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from weft.kernel.errors import OutsideError, ReplyMalformed, Unsupported, WeftError
from weft.ledger.api import shipped_model_names
from weft.runtime.egress.credentials import KeyTraces, Secret
from weft.runtime.egress.execution_context import ExecutionContext
from weft.runtime.inference.model_requests import Dialect, ModelRoute, ModelSettings, ProviderSettings

if TYPE_CHECKING:
    from weft.runtime.egress.connections import Client, Connections

# --- Requests to a provider's server that ask no model anything.

T = TypeVar("T")
_LONGEST = 500


class Server:
    """A provider's server, as one principal asks it."""

    def __init__(self, client: Client, route: ModelRoute, provider: ProviderSettings, keys: list[Secret]) -> None:
        self.client, self.route, self.provider, self._keys = client, route, provider, keys

    def accept(self, answer: Any) -> bytes:
        """What it answered, unless it refuses; without the keys that it was sent."""
        if answer.status_code == 200:
            content = bytes(answer.content)
            shown = KeyTraces(self._keys).hidden_in(content.decode("utf-8", "surrogateescape"))
            return shown.encode("utf-8", "surrogateescape")
        raise self._status_error(answer)

    def _status_error(self, answer: Any) -> OutsideError:
        from weft.runtime.inference.dialects.server_answers import (
            kind_of_status,
            provider_message,
            redacted,
            retry_after,
        )

        try:
            body: Any = msgspec.json.decode(answer.content)
        except msgspec.DecodeError:
            body = answer.text[:200]
        words = redacted(provider_message(body), self._keys)
        error = kind_of_status(answer.status_code)(f"{self.provider.id}: {answer.status_code}: {words}"[:_LONGEST])
        error.status = answer.status_code
        error.retry_after = retry_after(answer.headers)
        return error


async def with_server(
    connections: Connections,
    route: ModelRoute,
    provider: ProviderSettings,
    acting: ExecutionContext,
    work: Callable[[Server], Awaitable[T]],
    *,
    most_bytes: int | None = None,
) -> T:
    """Do something with a provider's server. Whatever is raised is of our tree, and holds no key."""
    keys: list[Secret] = []
    headers: dict[str, Secret] = {}
    for slot in route.keys:
        secret = await acting.credential(slot.credential, route.url)
        keys.append(secret)
        headers[slot.header] = Secret(slot.before + secret.reveal())
    failed: WeftError
    try:
        client, _ = connections.client(route.url, headers, provider.rules, most_bytes=most_bytes)
        return await work(Server(client, route, provider, keys))
    except ImportError as error:
        failed = Unsupported(
            f"asking servers needs the package {error.name}", "install it with `pip install 'weft[providers]'`"
        )
    except Exception as error:  # whatever the connection raises becomes an error that says who must act
        from weft.runtime.inference.dialects.server_answers import failure_of

        failed = failure_of(error, provider.id, keys)
    raise failed  # out here, so that theirs, which quotes what was sent, does not hang on it


# --- The models that a provider lists.

MAX_PAGES = 20
_PATHS = {
    Dialect.ANTHROPIC: ("/v1/models", {"limit": "1000"}),
    Dialect.OPENAI_CHAT: ("/models", {}),
    Dialect.OPENAI_RESPONSES: ("/models", {}),
    Dialect.GOOGLE: ("/v1beta/models", {"pageSize": "1000"}),
}
_HEADERS = {Dialect.ANTHROPIC: {"anthropic-version": "2023-06-01"}}


async def listed_models(server: Server, *, most_pages: int = MAX_PAGES) -> list[str]:
    """The names of the models that a server has for whoever holds its key."""
    route = server.route
    path, parameters = _PATHS[route.dialect]
    models: list[str] = []
    for _ in range(most_pages):
        answer = await server.client.get(route.url + path, params=parameters, headers=_HEADERS.get(route.dialect, {}))
        names, more = _model_names(server.accept(answer), server.provider)
        models += names
        if not more:
            break
        parameters = {**parameters, **more}
    return models


def _model_names(data: bytes, settings: ProviderSettings) -> tuple[list[str], dict[str, str]]:
    """The names on a page, and what to ask the next one with."""
    try:
        body = msgspec.json.decode(data)
        if "models" in body:  # Google's
            names = [str(model["name"]).removeprefix("models/") for model in body["models"]]
            return names, {"pageToken": body["nextPageToken"]} if body.get("nextPageToken") else {}
        names = [str(model["id"]) for model in body["data"]]
        return names, {"after_id": names[-1]} if body.get("has_more") and names else {}
    except (msgspec.DecodeError, KeyError, TypeError, AttributeError):
        raise ReplyMalformed(f"{settings.id}: what it answered is no list of models") from None


# --- The names nearest to that of a model which a provider does not know.

LIST_SECONDS = 3.0
"""So long the list of the provider is waited for."""
MOST_LIST_BYTES = 4 * 1024 * 1024
MOST_NEAR, LEAST_LIKENESS, LONGEST_NAME = 3, 0.6, 100


async def nearest_words(
    connections: Connections, model: ModelSettings, route: ModelRoute, acting: ExecutionContext, seconds: float
) -> str:
    """What is said of a model that its provider does not know: the nearest names of those that the provider lists, and
    where it lists none within this time, of those in the table of prices. Nothing, where none is near."""
    provider, seconds = model.provider, min(seconds, LIST_SECONDS)
    try:
        async with asyncio.timeout(seconds):
            names = await with_server(
                connections,
                route,
                provider,
                acting,
                lambda server: listed_models(server, most_pages=1),
                most_bytes=MOST_LIST_BYTES,
            )
    except (WeftError, TimeoutError):  # it has no list for us: what the provider said of the model stands
        names = []
    source = "it lists" if names else "the table of prices has"
    near = nearest_names(route.model, names or shipped_model_names(model.vendor or ""))
    return f"{source} {', '.join(map(repr, near))}" if near else ""


def nearest_names(wanted: str, names: Iterable[str]) -> list[str]:
    """Those of the names that are most like this one; none where it is one of them."""
    by_lower = {name.lower(): name for name in names if name.isprintable() and 0 < len(name) <= LONGEST_NAME}
    if wanted in by_lower.values():
        return []
    return [by_lower[near] for near in get_close_matches(wanted.lower(), by_lower, MOST_NEAR, LEAST_LIKENESS)]
