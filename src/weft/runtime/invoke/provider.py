"""Invokes providers: lists the models of one, which shows that it is there and takes the key."""

from __future__ import annotations

import msgspec

from weft.kernel.errors import ReplyMalformed, Unsupported
from weft.programs.model import Program
from weft.runtime.context import ExecutionContext
from weft.runtime.inference.model_files import Variable
from weft.runtime.inference.plain_requests import Server, with_server
from weft.runtime.inference.routes import Dialect, route_of
from weft.runtime.inference.settings import ModelSettings, ProviderKind, ProviderSettings
from weft.runtime.invoke.invocation import Invocation, InvocationContext, InvocationResult
from weft.runtime.invoke.model_settings import ensure_in_use, provider_settings

MAX_PAGES = 20
_PATHS = {
    Dialect.ANTHROPIC: ("/v1/models", {"limit": "1000"}),
    Dialect.OPENAI_CHAT: ("/models", {}),
    Dialect.OPENAI_RESPONSES: ("/models", {}),
    Dialect.GOOGLE: ("/v1beta/models", {"pageSize": "1000"}),
}
_HEADERS = {Dialect.ANTHROPIC: {"anthropic-version": "2023-06-01"}}


async def invoke_provider(context: InvocationContext, program: Program, invocation: Invocation) -> InvocationResult:
    """The models that it has for whoever holds its key."""
    context.execution_context.ensure_allowed(f"provider:{program.name}")
    settings, acting = provider_settings(ensure_in_use(program), context.variable, context.execution_context)
    if settings.is_embedded:
        models = _embedded_models(context.variable)
    else:
        models = await _server_models(context, settings, acting)
    return InvocationResult(program=program.name, kind=program.kind, result={"models": models})


def _embedded_models(variable: Variable) -> list[str]:
    from weft.runtime.inference.local import NAME, find_weights
    from weft.runtime.inference.model_files import model_folder

    find_weights()
    return [NAME, *(file.name for file in model_folder(variable).fetched())]


async def _server_models(context: InvocationContext, settings: ProviderSettings, acting: ExecutionContext) -> list[str]:
    if settings.kind is ProviderKind.CLOUDFLARE:
        raise Unsupported(
            f"provider {settings.id!r} is a gateway, and a gateway lists no models", "invoke a model that it leads to"
        )
    route = route_of(ModelSettings(id="-", name="-", provider=settings))
    return await with_server(context.inference, route, settings, acting, _pages)


async def _pages(server: Server) -> list[str]:
    route = server.route
    path, parameters = _PATHS[route.dialect]
    models: list[str] = []
    for _ in range(MAX_PAGES):
        answer = await server.client.get(route.url + path, params=parameters, headers=_HEADERS.get(route.dialect, {}))
        names, more = _read(server.accept(answer), server.provider)
        models += names
        if not more:
            break
        parameters = {**parameters, **more}
    return models


def _read(data: bytes, settings: ProviderSettings) -> tuple[list[str], dict[str, str]]:
    """The names on a page, and what to ask the next one with."""
    try:
        body = msgspec.json.decode(data)
        if "models" in body:  # Google's
            names = [str(model["name"]).removeprefix("models/") for model in body["models"]]
            return names, {"pageToken": body["nextPageToken"]} if body.get("nextPageToken") else {}
        names = [str(model["id"]) for model in body["data"]]
        return names, {"after_id": names[-1]} if body.get("has_more") and names else {}
    except (msgspec.DecodeError, KeyError, TypeError):
        raise ReplyMalformed(f"{settings.id}: what it answered is no list of models") from None
