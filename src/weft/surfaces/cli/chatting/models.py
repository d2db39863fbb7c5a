"""Which models a conversation can be had with: the embedded one, those whose key is in the environment, and model
programs. All of it decisions about values; nothing is asked yet."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

from msgspec import Struct

from weft.kernel.errors import InvalidInput, NotFound
from weft.programs.addresses import is_address, parse_address
from weft.programs.model import Program
from weft.programs.placeholders import PLACEHOLDER, resolve_config
from weft.runtime.credentials import ORIGINS, Credential, Variable, origin_of
from weft.runtime.inference.local import NAME as EMBEDDED_NAME
from weft.runtime.inference.settings import ModelSettings, Parameters, ProviderKind, ProviderSettings
from weft.surfaces.cli.chatting.vendors import VENDORS, Vendor, keyed

EMBEDDED = "local"
LONGEST_ANSWER = 512
"""Of the embedded model, in tokens: it rarely knows when to stop."""
KEY, GATEWAY_KEY = "chat-key", "chat-gateway-key"


class Choice(Struct, frozen=True, kw_only=True):
    """A model that can be talked to, by the name that people type, with the keys it needs."""

    name: str
    settings: ModelSettings
    about: str
    credentials: tuple[Credential, ...] = ()

    @property
    def is_embedded(self) -> bool:
        return self.settings.provider.kind is ProviderKind.LOCAL


def embedded() -> Choice:
    provider = ProviderSettings(id=EMBEDDED, kind=ProviderKind.LOCAL)
    parameters = Parameters(max_tokens=LONGEST_ANSWER, temperature=0.3)
    settings = ModelSettings(id=EMBEDDED, name=EMBEDDED_NAME, provider=provider, parameters=parameters)
    return Choice(name=EMBEDDED, settings=settings, about="embedded: no key, no network; small, and often wrong")


def of_vendor(vendor: Vendor, variable: str, model: str | None = None) -> Choice:
    """A vendor's model under the key in that variable; without a name its usual one."""
    kind, name = vendor.kind, model or vendor.default
    provider = ProviderSettings(id=kind.value, kind=kind, credential=KEY)
    called = kind.value if model is None else f"{kind.value}/{model}"
    return Choice(
        name=called,
        settings=ModelSettings(id=called, name=name, provider=provider),
        about=f"with the key in ${variable}",
        credentials=(Credential(id=KEY, origin=ORIGINS[variable], env=variable),),
    )


def of_program(model: Program, provider: Program, variable: Variable) -> Choice:
    """A model program at its provider."""
    config, about = _config(model), f"model program, at {provider.name}"
    settings, credentials = _provider_of(provider, variable)
    situations = {name: _parameters(one) for name, one in (config.get("situations") or {}).items()}
    return Choice(
        name=model.name,
        settings=ModelSettings(
            id=model.name,
            name=str(config["modelId"]),
            provider=settings,
            parameters=_parameters(config),
            situations=situations,
        ),
        about=about,
        credentials=credentials,
    )


def _config(program: Program) -> dict[str, Any]:
    if not isinstance(program.config, dict):
        raise InvalidInput(
            f"the {program.kind} {program.name!r} has no configuration that can be read", "configure it again"
        )
    return program.config


def _parameters(config: dict[str, Any]) -> Parameters:
    names = {"temperature": "temperature", "maxTokens": "max_tokens", "topP": "top_p"}
    return Parameters(**{ours: config[theirs] for theirs, ours in names.items() if theirs in config})


def _provider_of(program: Program, variable: Variable) -> tuple[ProviderSettings, tuple[Credential, ...]]:
    config = _config(program)
    kind = _kind(program.name, config.get("providerType"))
    plain = {name: config.get(name) for name in ("baseUrl", "accountId", "gatewayId")}
    plain = resolve_config({name: value for name, value in plain.items() if value is not None}, variable)
    held = {KEY: _variable(config.get("apiKey")), GATEWAY_KEY: _variable(_gateway_header(config))}
    home = plain.get("baseUrl") or _HOMES.get(kind)
    credentials = tuple(
        Credential(id=name, origin=origin_of(home), env=where)
        for name, where in held.items()
        if where is not None and home is not None
    )
    known = {one.id for one in credentials}
    own = config.get("credential")
    return ProviderSettings(
        id=program.name,
        kind=kind,
        base_url=plain.get("baseUrl"),
        account_id=plain.get("accountId"),
        gateway_id=plain.get("gatewayId"),
        credential=KEY if KEY in known else own if isinstance(own, str) else None,
        gateway_credential=GATEWAY_KEY if GATEWAY_KEY in known else None,
    ), credentials


_HOMES = {
    ProviderKind.ANTHROPIC: ORIGINS["ANTHROPIC_API_KEY"],
    ProviderKind.OPENAI: ORIGINS["OPENAI_API_KEY"],
    ProviderKind.GOOGLE: ORIGINS["GEMINI_API_KEY"],
    ProviderKind.CLOUDFLARE: ORIGINS["CF_AIG_TOKEN"],
}


def _kind(provider: str, given: Any) -> ProviderKind:
    try:
        return ProviderKind(given)
    except ValueError:
        known = ", ".join(ProviderKind)
        raise InvalidInput(f"provider {provider!r} is of no known type: {given!r}", f"known are {known}") from None


def _variable(placeholder: Any) -> str | None:
    found = PLACEHOLDER.search(placeholder) if isinstance(placeholder, str) else None
    return None if found is None else found[1]


def _gateway_header(config: dict[str, Any]) -> Any:
    headers = config.get("headers")
    if not isinstance(headers, dict):
        return None
    return next((value for name, value in headers.items() if name.lower() == "cf-aig-authorization"), None)


def find_choice(name: str, programs: Sequence[Program], providers: Sequence[Program], variable: Variable) -> Choice:
    """The model of this name: a program, the embedded one, a vendor, or any model of a vendor whose key is here."""
    wanted = _name(name)
    for program in programs:
        if wanted in (program.name, program.id):
            return of_program(program, _provider(program, providers), variable)
    if wanted in (EMBEDDED, EMBEDDED_NAME):
        return embedded()
    for vendor, held in keyed(variable):
        if wanted == vendor.kind.value:
            return of_vendor(vendor, held)
        bare = wanted.removeprefix(f"{vendor.kind.value}/")
        if bare and (bare != wanted or re.match(vendor.names, wanted)):
            return of_vendor(vendor, held, bare)
    raise NotFound("model", name, _missing(wanted, programs, variable))


def _name(text: str) -> str:
    return parse_address(text).name if is_address(text) else text


def _missing(wanted: str, programs: Sequence[Program], variable: Variable) -> str:
    for vendor in VENDORS:
        if wanted.partition("/")[0] == vendor.kind.value or re.match(vendor.names, wanted):
            return f"put a key into ${vendor.variables[0]} to talk to {vendor.kind.value}"
    return f"there are: {', '.join(names(programs, variable))}"


def names(programs: Iterable[Program], variable: Variable) -> list[str]:
    """What can be typed after `/model`."""
    vendors = [vendor.kind.value for vendor, _ in keyed(variable)]
    return [EMBEDDED, *vendors, *(program.name for program in programs)]


def _provider(model: Program, providers: Sequence[Program]) -> Program:
    named = _name(str(_config(model).get("provider")))
    found = next((one for one in providers if named in (one.name, one.id)), None)
    if found is None:
        raise NotFound("provider", named, f"the model {model.name!r} names it; make it with `weft provider create`")
    return found


def default_name(
    asked: str | None, configured: str | None, last: str | None, programs: Sequence[Program], variable: Variable
) -> str:
    """Which model answers: the one that is asked for, the session's own, the one that answered last, one whose key is
    in the environment, the embedded one."""
    if asked or configured:
        return str(asked or configured)
    known = names(programs, variable)
    if last is not None and last != EMBEDDED and (last in known or last.partition("/")[0] in known[1:]):
        return last
    return known[1] if keyed(variable) else EMBEDDED
