"""Which models a conversation can be had with: the embedded one, those whose key is in the
environment, and model programs; and who plans the turns that a command has answered, as they are
configured or by triage.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from difflib import get_close_matches
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from weft.chat.triage import TriagePlanner
from weft.kernel.errors import NotFound
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
from weft.runtime.invoke.turn_planner import ConfiguredPlanner, Equip, sender_context
from weft.surfaces.cli.chat.readiness import VENDORS, Vendor, ensure_installed, keyed
from weft.surfaces.cli.work.sandbox_access import trusted_rules

if TYPE_CHECKING:
    from weft.aio.ledger import AsyncLedger
    from weft.programs.program_records import Resolver


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
    return TriagePlanner(planner, ledger.sync, ledger.crossing, inference)
