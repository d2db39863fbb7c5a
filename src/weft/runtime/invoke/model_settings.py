"""From what a ledger says of providers and models to the settings that inference takes.

Placeholders are put in here, by a function that looks variables up, and what they stand for goes no further than the
settings. A key is never looked at: a variable that holds one becomes a credential, bound to the provider's origin.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

import msgspec
from msgspec import Struct

from weft.kernel.errors import Action, InvalidConfig, NotApplicable, quoted
from weft.programs.config_fields import METADATA
from weft.programs.foreign import ensure_own
from weft.programs.kinds.provider import refuse_headers
from weft.programs.kinds.table import KINDS
from weft.programs.model import Program
from weft.programs.placeholders import Resolver, resolve_config, variables_in
from weft.runtime.configuration.parameter_names import parameters_of
from weft.runtime.context import ExecutionContext
from weft.runtime.egress.connection_rules import Rules
from weft.runtime.inference.local import LONGEST_ANSWER
from weft.runtime.inference.routes import CLOUDFLARE, HOMES
from weft.runtime.inference.settings import (
    NO_PARAMETERS,
    ModelSettings,
    OpenAIApi,
    Parameters,
    ProviderKind,
    ProviderSettings,
)

Find = Callable[[str], Program]
"""A program by its address."""
KEYS = ("apiKey", "key", "secret", "password", "token")
_SECRETS = ("key", "token", "secret", "password", "credential")
_USUAL = {
    ProviderKind.ANTHROPIC: ("ANTHROPIC_API_KEY",),
    ProviderKind.OPENAI: ("OPENAI_API_KEY",),
    ProviderKind.GOOGLE: ("GEMINI_API_KEY", "GOOGLE_API_KEY"),
}
_USUAL_PARAMETERS = {ProviderKind.LOCAL: Parameters(max_tokens=LONGEST_ANSWER)}
_GATEWAY = ("CF_AIG_TOKEN", "CLOUDFLARE_API_TOKEN")
_RULES = {
    "allowPrivate": "allow_private", "caFile": "ca_file", "connectSeconds": "connect_seconds",
    "readSeconds": "read_seconds", "timeout": "read_seconds",
}  # fmt: skip


class ConfiguredModel(Struct, frozen=True):
    """A model's settings, and a context that knows the keys which its providers name."""

    model: ModelSettings
    context: ExecutionContext


def ensure_in_use(program: Program) -> Program:
    """Drafts, what was deleted and what only another ledger configured are not invoked; what is deprecated still
    works."""
    if program.deleted:
        raise NotApplicable(f"{program.kind} {program.name!r} was deleted", "name another one")
    if program.state == "draft":
        publish = Action.VALIDATE_INFORMATION if program.kind == "information" else Action.PUBLISH_PROGRAM
        raise NotApplicable(f"{program.kind} {program.name!r} is a draft", publish.of(program=program.name))
    KINDS[program.kind].refuse_name(program.name, program.config)
    return ensure_own(program)


def plain_resolver(variable: Resolver) -> Resolver:
    """Looks up what is no key. A key put into a URL or a name would go wherever that goes."""

    def resolve(name: str) -> str | None:
        if any(word in name.casefold() for word in _SECRETS):
            raise InvalidConfig("config", f"${{{name}}} looks like a key", "a key stands in apiKey or token alone")
        return variable(name)

    return resolve


def model_settings(program: Program, find: Find, variable: Resolver, context: ExecutionContext) -> ConfiguredModel:
    """A model with its provider, and the models that its `fallbacks` name with theirs."""
    configured = _model(program, find, variable, context)
    fallbacks: list[ModelSettings] = []
    context = configured.context
    for name in _fallbacks(program):
        other = _model(find(name), find, variable, context)
        fallbacks.append(other.model)
        context = other.context
    return ConfiguredModel(msgspec.structs.replace(configured.model, fallbacks=tuple(fallbacks)), context)


def _fallbacks(program: Program) -> list[str]:
    models = program.config.get("fallbacks", []) if isinstance(program.config, dict) else []
    if not isinstance(models, list) or not all(isinstance(model, str) for model in models):
        raise InvalidConfig("config.fallbacks", f"{quoted(models)} is no list of models", "give a list of addresses")
    return models


def _model(program: Program, find: Find, variable: Resolver, context: ExecutionContext) -> ConfiguredModel:
    config = _config(ensure_in_use(program), plain_resolver(variable))
    provider, acting = provider_settings(ensure_in_use(find(str(config["provider"]))), variable, context)
    settings = ModelSettings(
        id=program.name,
        name=str(config["modelId"]),
        provider=provider,
        parameters=_parameters(config, program).over(_USUAL_PARAMETERS.get(provider.kind, NO_PARAMETERS)),
        situations={name: _parameters(situation, program) for name, situation in config.get("situations", {}).items()},
        images=_images(config),
        context_window=_context_window(config, program),
    )
    return ConfiguredModel(settings, acting)


def _config(program: Program, resolver: Resolver) -> dict[str, Any]:
    if not isinstance(program.config, dict):
        raise NotApplicable(f"{program.kind} {program.name!r} has no configuration", "configure it first")
    return {
        name: value if name in KEYS else resolve_config(value, resolver, f"config.{name}")
        for name, value in program.config.items()
        if name != METADATA
    }


def _images(config: dict[str, Any]) -> bool | None:
    """Whether the configuration says that the model takes images."""
    images = config.get("images")
    if images is None or isinstance(images, bool):
        return images
    return str(images).casefold() == "true"


def _context_window(config: dict[str, Any], program: Program) -> int | None:
    window = config.get("contextWindow")
    try:
        return None if window is None else msgspec.convert(window, Annotated[int, msgspec.Meta(ge=1)], strict=False)
    except msgspec.ValidationError as error:
        raise InvalidConfig(f"config.contextWindow of {program.name!r}", str(error), "give a count of tokens") from None


def _converted(value: Any, kind: Any, program: Program, names: dict[str, str]) -> Any:
    try:
        return msgspec.convert({ours: value[name] for name, ours in names.items() if name in value}, kind, strict=False)
    except msgspec.ValidationError as error:
        raise InvalidConfig(f"config of {program.kind} {program.name!r}", str(error), "mend it") from None


def _parameters(config: dict[str, Any], program: Program) -> Parameters:
    return parameters_of(config, f"config of {program.kind} {program.name!r}")


def provider_settings(
    program: Program, variable: Resolver, context: ExecutionContext
) -> tuple[ProviderSettings, ExecutionContext]:
    """A provider, and a context that knows its keys."""
    ensure_own(program)
    config = _config(program, plain_resolver(variable))
    kind = _kind(config, program)
    if "headers" in config:  # of a ledger that was not asked before it took them: nothing is left out in silence
        refuse_headers("config.headers", config["headers"])
    url = config.get("baseUrl")
    context, credential, gateway = _keys(config, kind, variable, context)
    settings = ProviderSettings(
        id=program.name,
        kind=kind,
        base_url=url,
        api=_api(config),
        credential=credential,
        gateway_credential=gateway,
        rules=_converted(config, Rules, program, _RULES),
    )
    if kind is not ProviderKind.CLOUDFLARE:
        return settings, context
    account = config.get("accountId") or variable("CLOUDFLARE_ACCOUNT_ID")
    name = config.get("gatewayId") or variable("CLOUDFLARE_GATEWAY_ID")
    return msgspec.structs.replace(settings, account_id=account, gateway_id=name), context


def _kind(config: dict[str, Any], program: Program) -> ProviderKind:
    try:
        return ProviderKind(str(config.get("providerType")))
    except ValueError:
        raise InvalidConfig(
            f"config.providerType of {program.name!r}",
            f"{quoted(config.get('providerType'))} is not known",
            f"one of {', '.join(ProviderKind)}",
        ) from None


def _api(config: dict[str, Any]) -> OpenAIApi | None:
    try:
        return None if config.get("api") is None else OpenAIApi(config["api"])
    except ValueError:
        raise InvalidConfig(
            "config.api", f"{quoted(config['api'])} is not known", f"one of {', '.join(OpenAIApi)}"
        ) from None


def _keys(
    config: dict[str, Any], kind: ProviderKind, variable: Resolver, context: ExecutionContext
) -> tuple[ExecutionContext, str | None, str | None]:
    """The names of the provider's own key and of the gateway's before it."""
    is_gateway = kind is ProviderKind.CLOUDFLARE
    url = config.get("baseUrl") or (CLOUDFLARE if is_gateway else HOMES.get(kind))
    if kind is ProviderKind.LOCAL or url is None:
        return context, None, None
    own = KEYS[:-1] if is_gateway else KEYS
    context, credential = _named(config, "credential", own, url, context)
    if is_gateway:
        context, gateway = _named(config, "gatewayCredential", ("token",), url, context)
        usual = [name for name in _GATEWAY if variable(name)] if "baseUrl" not in config else []
        if gateway is None and usual:
            context, gateway = context.key_in(usual[0], url)
        return context, credential, gateway
    credential = credential or context.key_of(url)
    names = _USUAL.get(kind, ())
    if credential is None and names and "baseUrl" not in config:
        context, credential = context.key_in(next((name for name in names if variable(name)), names[0]), url)
    return context, credential, None


def _named(
    config: dict[str, Any],
    field: str,
    keys: tuple[str, ...],
    url: str,
    context: ExecutionContext,
) -> tuple[ExecutionContext, str | None]:
    """A credential by its name, or by the variable that a configuration says the key is in."""
    if config.get(field) is not None:
        return context, str(config[field])
    for name in keys:
        for variable in variables_in(config.get(name)):
            return context.key_in(variable, url)
    return context, None
