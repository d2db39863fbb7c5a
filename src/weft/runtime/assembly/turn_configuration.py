"""Collects the layers that configure a turn, from programs and earlier turns, and merges them.

In whose name a turn acts, which turns nobody watches that other people began, and the settings that
inference takes of a ledger's providers and models are found here as well.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Annotated, Any

import msgspec
from msgspec import UNSET, Struct, UnsetType, to_builtins
from msgspec.structs import replace

from weft.kernel.authority import LOCAL, Principal, PrincipalKind, SandboxFiles
from weft.kernel.enums import AgentRole, MessageSource, ProgramKind
from weft.kernel.errors import Action, InvalidConfig, InvalidInput, NotApplicable, NotFound, quoted
from weft.ledger.api import InboxMessage, Runs, is_recorded_here, principals_of
from weft.ledger.model import DEFAULT_AGENT, IMPORTED_AGENT
from weft.programs.config_fields import METADATA, SANDBOX, TOOLSET
from weft.programs.kind_table import KINDS, UNATTENDED_WRITES
from weft.programs.program_kinds import THINKING_CONFIG, refuse_headers
from weft.programs.program_records import Program, Resolver, parse_address, resolve_config, variables_in
from weft.programs.program_writer import ensure_own, ensure_vouched, is_owners_alone, may_pass_on
from weft.programs.programs import Programs
from weft.runtime.assembly.configuration_layers import (
    NO_OVERRIDES,
    ConfigLayer,
    EffectiveConfig,
    LayerName,
    MessageOverrides,
    WorkerConstraints,
    is_chosen_above,
    merge,
    parameters_of,
    read_constraints,
    spawner_layers,
    thread_layers,
)
from weft.runtime.egress.credentials import ConnectionRules
from weft.runtime.egress.execution_context import ExecutionContext
from weft.runtime.inference.inference import Inference
from weft.runtime.inference.local_models import LONGEST_ANSWER
from weft.runtime.inference.model_requests import (
    CLOUDFLARE,
    EMBEDDED_SAMPLING,
    HOMES,
    NO_PARAMETERS,
    FunctionReference,
    ModelParameters,
    ModelSettings,
    OpenAIApi,
    PromptCache,
    ProviderKind,
    ProviderSettings,
    is_budget,
    prompt_cache_fault,
    route_of,
)
from weft.runtime.ledger_port import Executor
from weft.runtime.tool.toolsets import GrantedPermissions, PermissionLimits, find_toolset, limits_of, limits_of_rights

# --- From what a ledger says of providers and models to the settings that inference takes.

Find = Callable[[str], Program]
"""A program by its address."""
KEYS = ("apiKey", "key", "secret", "password", "token")
_SECRETS = ("key", "token", "secret", "password", "credential")
_USUAL = {
    ProviderKind.ANTHROPIC: ("ANTHROPIC_API_KEY",),
    ProviderKind.OPENAI: ("OPENAI_API_KEY",),
    ProviderKind.GOOGLE: ("GEMINI_API_KEY", "GOOGLE_API_KEY"),
}
_USUAL_PARAMETERS = {ProviderKind.LOCAL: ModelParameters(max_tokens=LONGEST_ANSWER)}
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
        api=_api(config),
        prompt_cache=_prompt_cache(config),
    )
    ensure_thinking(settings)
    ensure_prompt_cache(settings)
    ensure_response_schema(settings)
    return ConfiguredModel(settings, acting)


def ensure_model_config(config: dict[str, Any], name: str, find: Find) -> None:
    """Refuse a configuration of a model, before it is written, that says how to think, what is cached, or what
    the answer is like in a way which cannot be sent.
    What stands in variables is known only where the model is asked. Raises InvalidConfig."""
    provider = find(str(config.get("provider")))
    given = provider.config if isinstance(provider.config, dict) else {}
    routing = (config.get("modelId"), config.get("api"), *(given.get(name) for name in _ROUTING_FIELDS))
    if "${" in str(routing):
        return
    situations = config.get("situations") or {}
    server = ProviderSettings(
        id=provider.name,
        kind=_kind(given, provider),
        base_url=given.get("baseUrl"),
        api=_api(given),
        account_id="any",
        gateway_id="any",
    )
    model = ModelSettings(
        id=name,
        name=str(config.get("modelId")),
        provider=server,
        parameters=_known_parameters(config),
        situations={name: _known_parameters(situation) for name, situation in situations.items()},
        api=_api(config),
        prompt_cache=None if "${" in str(config.get("promptCache")) else _prompt_cache(config),
    )
    ensure_thinking(model)
    ensure_prompt_cache(model)
    ensure_response_schema(model)


_ROUTING_FIELDS = ("providerType", "baseUrl", "api")
"""What of a provider decides how a model of it is asked; its key, for example, does not."""


def _known_parameters(config: dict[str, Any]) -> ModelParameters:
    names = ("thinking", THINKING_CONFIG, "maxTokens", "responseSchema")
    known = {name: config[name] for name in names if "${" not in str(config.get(name, "${"))}
    return parameters_of({name: value for name, value in known.items() if value is not None}, "config")


def ensure_thinking(model: ModelSettings) -> None:
    """Refuse a way to think that a model cannot be told. Raises InvalidConfig."""
    from weft.runtime.inference.dialects.model_clients import thinking_fault

    for situation, parameters in {"": model.parameters, **model.situations}.items():
        thinking = parameters.thinking
        if thinking is UNSET or thinking is False:
            continue
        if model.provider.is_embedded:
            fault: tuple[str, str] | None = ("the embedded model does not think", "leave thinking out")
        else:
            fault = thinking_fault(route_of(model), thinking)
        limit = parameters.over(model.parameters).max_tokens
        if fault is None and is_budget(thinking) and limit is not UNSET and limit <= thinking:
            fault = f"{thinking} tokens are no less than maxTokens, {limit}", "give a smaller budget, or more maxTokens"
        if fault is not None:
            place = f"config.situations.{situation}.thinking" if situation else "config.thinking"
            raise InvalidConfig(f"{place} of {model.id!r}", *fault)


def ensure_response_schema(model: ModelSettings) -> None:
    """Refuse a schema of answers that a model cannot be given. Raises InvalidConfig."""
    from weft.runtime.inference.dialects.model_clients import response_schema_fault

    for situation, parameters in {"": model.parameters, **model.situations}.items():
        if parameters.response_schema and (fault := response_schema_fault(model)) is not None:
            place = f"config.situations.{situation}.responseSchema" if situation else "config.responseSchema"
            raise InvalidConfig(f"{place} of {model.id!r}", *fault)


def ensure_prompt_cache(model: ModelSettings) -> None:
    """Refuse what a model's provider cannot be told of caching. Raises InvalidConfig."""
    fault = prompt_cache_fault(model)
    if fault is not None:
        raise InvalidConfig(f"config.promptCache of {model.id!r}", *fault)


def _prompt_cache(config: dict[str, Any]) -> PromptCache | None:
    given = config.get("promptCache")
    try:
        return None if given is None else PromptCache(given)
    except ValueError:
        raise InvalidConfig(
            "config.promptCache", f"{quoted(given)} is not known", f"one of {', '.join(PromptCache)}"
        ) from None


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


def _parameters(config: dict[str, Any], program: Program) -> ModelParameters:
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
        rules=_converted(config, ConnectionRules, program, _RULES),
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


# --- An agent as whoever acts: its soul, and the execution context that its permissions leave it.


def soul_of(agent: Program) -> str | None:
    """What its model is told of itself: the system prompt."""
    identity = agent.config.get("identity") if isinstance(agent.config, dict) else None
    soul = identity.get("soul") if isinstance(identity, dict) else None
    return soul if isinstance(soul, str) and soul.strip() else None


def agent_context(context: ExecutionContext, agent: Program) -> ExecutionContext:
    """The agent, acting for everybody before it, with what its permissions leave of their rights."""
    return limited_by(context.delegate(Principal(PrincipalKind.AGENT, agent.name)), agent)


def limited_by(context: ExecutionContext, agent: Program) -> ExecutionContext:
    """The same principals, with what the permissions of an agent among them leave of their rights."""
    ensure_own(agent)
    configured = agent.config.get("permissions") if isinstance(agent.config, dict) else None
    limits = limits_of(configured)
    return context.child(rights=limits.rights(), credentials=limits.credentials)


def actor_context(context: ExecutionContext, actor: Program) -> ExecutionContext:
    """An agent or a person, acting for everybody in this context."""
    if actor.kind == ProgramKind.AGENT:
        return agent_context(context, actor)
    return context.delegate(Principal(PrincipalKind.HUMAN, actor.name))


# --- Collects the layers that configure a turn from programs and from the turn that it continues, and merges them.

OtherModels = Callable[[str | None, str | None, ExecutionContext], ConfiguredModel | None]
"""What a surface knows of models that are no programs: by a name and a session's id. Without a name it gives the
default one."""


class TurnRequest(Struct, frozen=True, kw_only=True):
    """The turn that is to be configured. `session` is an id, or the whole label of a session that may not exist yet;
    `persona` names the agent that answers where that is not the session's owner."""

    session: str | None = None
    persona: str | None = None
    parent: str | UnsetType | None = UNSET
    """The turn that it continues; unset, the head of the session."""
    overrides: MessageOverrides = NO_OVERRIDES
    message: str = ""
    """The id of the message, where it has one: the source of its overrides."""
    takes_defaults: bool = True
    """Whether a fork is sent by default what its parent's message was sent with. What does an earlier turn again has
    that turn's own message."""


class TurnConfiguration(Struct, frozen=True, kw_only=True):
    """A turn's configuration with what it names: the model's settings, the agent that answers, and the context that the
    permissions leave. `model` is None where no layer names one."""

    effective: EffectiveConfig
    context: ExecutionContext
    model: ModelSettings | None = None
    persona: Program | None = None
    session: Program | None = None
    constraints: WorkerConstraints | None = None
    """What limits the session, where it is a worker's."""
    functions: tuple[FunctionReference, ...] = ()
    """The functions that were given with the message."""
    is_owners_agent: bool = False
    """Whether the ledger's owner alone configured the agent that answers: then what it allows is given, without a
    toolset, too. What somebody else writes there only narrows."""

    @property
    def persona_name(self) -> str:
        return DEFAULT_AGENT if self.persona is None else self.persona.name

    @property
    def system_prompt(self) -> str | None:
        """The soul of the agent that answers."""
        return None if self.persona is None else soul_of(self.persona)

    @property
    def agent_tools(self) -> tuple[str, ...]:
        """The code programs that the agent's configuration lists."""
        config = None if self.persona is None else self.persona.config
        names = config.get("tools") if isinstance(config, dict) else None
        return tuple(names) if isinstance(names, list) else ()

    @property
    def allowed_tools(self) -> tuple[str, ...]:
        """The patterns of tools that the agent's configuration allows."""
        config = None if self.persona is None else self.persona.config
        return limits_of(config.get("permissions")).allow or () if isinstance(config, dict) else ()

    @property
    def gives_allowed_tools(self) -> bool:
        """Whether the turn has every tool that its agent is allowed: it has no toolset, and the owner allowed them."""
        return self.effective.toolset is None and self.is_owners_agent and bool(self.allowed_tools)

    @property
    def has_tools(self) -> bool:
        """Whether a turn has tools: those of a toolset, or without one those that the agent is allowed or lists, as
        somebody here has configured it."""
        is_own = self.persona is not None and not self.persona.foreign
        is_listed = is_own and bool(self.agent_tools)
        return self.effective.toolset is not None or is_listed or self.gives_allowed_tools

    @property
    def role(self) -> AgentRole | None:
        """The role that the session is given; None: its toolset implies it."""
        config = None if self.session is None else self.session.config
        role = config.get("role") if isinstance(config, dict) else None
        return AgentRole(role) if isinstance(role, str) else None

    @property
    def workspace(self) -> str | None:
        """The folder that the session is configured for; a worker's is its spawner's."""
        if self.constraints is not None:
            return self.constraints.workspace
        config = None if self.session is None else self.session.config
        workspace = config.get("workspace") if isinstance(config, dict) else None
        return workspace if isinstance(workspace, str) else None

    def require_model(self) -> ModelSettings:
        """Raises NotApplicable where no layer names a model."""
        if self.model is not None:
            return self.model
        if self.persona is not None:
            name = self.persona.name
            raise NotApplicable(f"agent {name!r} has no model", Action.SET_AGENT_MODEL.of(agent=name))
        if self.session is None:
            raise NotApplicable("nothing names a model", "name one, or configure the session or its agent with one")
        label = self.session.name
        raise NotApplicable(f"session {label!r} has no model", Action.SET_SESSION_MODEL.of(session=label))

    def turn_fields(self) -> dict[str, Any]:
        """What `begin_turn` records of it. Raises NotApplicable where no layer names a model."""
        model = self.require_model()
        chain = [str(principal) for principal in self.context.chain]
        config = self.effective.record(model=model.id, provider=model.provider.id, chain=chain)
        thinking = config["parameters"].get("thinking")
        return {
            "effective_config": config,
            "thinking_config": None if thinking is None else {"thinking": thinking},
            "permissions_granted": self.effective.permissions.record(),
        }


async def gather_configuration(
    programs: Programs,
    crossing: Executor,
    inference: Inference,
    request: TurnRequest,
    *,
    variable: Resolver,
    context: ExecutionContext,
    other_models: OtherModels | None = None,
) -> TurnConfiguration:
    """The configuration of one turn, for whoever acts in this context."""
    reader = LayerReader(programs, inference, variable, context, other_models)
    return await crossing.run(lambda: reader.configuration(request))


class LayerReader:
    """Reads the layers of one turn. Synchronous, as programs and the ledger are."""

    def __init__(
        self,
        programs: Programs,
        inference: Inference,
        variable: Resolver,
        context: ExecutionContext,
        other_models: OtherModels | None = None,
    ) -> None:
        self._programs, self._inference, self._variable, self._context = programs, inference, variable, context
        self._other_models = other_models

    def configuration(self, request: TurnRequest) -> TurnConfiguration:
        session = self._session(request.session)
        persona = self._persona(session, request.persona)
        acting = self._context if persona is None else agent_context(self._context, persona)
        constraints = self._constraints(session)
        layers = [
            *_principal_layers(self._context),
            *([] if persona is None else [self._persona_layer(persona, is_worker=constraints is not None)]),
            *([] if constraints is None else spawner_layers(constraints)),
            *self._thread_layers(session, request),
            *([] if session is None else [self._program_layer(LayerName.SESSION, session)]),
            request.overrides.layer(request.message),
        ]
        functions = request.overrides.functions
        chosen = self._with_toolset(merge(layer for layer in layers if not layer.is_empty), functions)
        is_owners = persona is not None and not persona.foreign and is_owners_alone(self._programs.ledger, persona.id)
        configured = self._model(chosen.value("model"), session, acting)
        if configured is None:
            context = _narrowed(acting, chosen)
            return TurnConfiguration(
                is_owners_agent=is_owners,
                effective=chosen,
                context=context,
                persona=persona,
                session=session,
                constraints=constraints,
                functions=functions,
            )
        configured = self._with_fallback(chosen.value("fallback"), configured, session)
        effective = self._with_model(chosen, configured.model)
        return TurnConfiguration(
            is_owners_agent=is_owners,
            effective=effective,
            context=_narrowed(configured.context, effective),
            model=configured.model,
            persona=persona,
            session=session,
            constraints=constraints,
            functions=functions,
        )

    def _constraints(self, session: Program | None) -> WorkerConstraints | None:
        """What limits the turns of a session that is a worker's."""
        runs = Runs(self._programs.ledger)
        worker = None if session is None else runs.worker(session.id)
        if worker is None:
            return None
        constraints, above = read_constraints(worker.constraints, worker.label), worker.parent_session
        while (spawner := runs.worker(above)) is not None:
            above = spawner.parent_session
        self._ensure_folder_vouched(above, constraints.workspace)
        return constraints

    def _ensure_folder_vouched(self, session: str, folder: str | None) -> None:
        """A worker has the folder of the session at the top: where that one's is not used any more, neither is its."""
        top = self._programs.acting_as(LOCAL).get(session, ProgramKind.SESSION)
        if folder is not None and isinstance(top.config, dict) and top.config.get("workspace") == folder:
            ensure_vouched(top)

    def _persona_layer(self, persona: Program, *, is_worker: bool) -> ConfigLayer:
        """A worker has its spawner's persona, but the toolset that its spawner gives it."""
        layer = self._program_layer(LayerName.PERSONA, persona)
        if not is_worker:
            return layer
        return replace(layer, values={key: value for key, value in layer.values.items() if key != "toolset"})

    def _with_toolset(self, chosen: EffectiveConfig, functions: Sequence[FunctionReference]) -> EffectiveConfig:
        """The same, with the limits of every toolset that a layer names: a later one narrows, and never widens. A
        toolset lists tools of this runtime: functions that were given with the message come beside them."""
        names = dict.fromkeys(layer.values["toolset"] for layer in chosen.layers if "toolset" in layer.values)
        toolsets = [find_toolset(self._programs, name) for name in names]
        given = [one.name for one in functions]
        limits = [
            ConfigLayer(name=LayerName.TOOLSET, source=toolset.name, permissions=toolset.limits.beside(given))
            for toolset in toolsets
        ]
        return merge((*chosen.layers, *limits)) if limits else chosen

    def _model(self, name: str | None, session: Program | None, acting: ExecutionContext) -> ConfiguredModel | None:
        """The program of this name; else the model that the surface knows by it, or has as its default."""
        find, others = self._programs.get, self._other_models
        session_id = None if session is None else session.id
        if name is None:
            return None if others is None else others(None, session_id, acting)
        try:
            program = find(name, ProgramKind.MODEL)
        except NotFound:
            other = None if others is None else others(name, session_id, acting)
            if other is None:
                raise
            return other
        return model_settings(program, find, self._variable, acting)

    def _with_fallback(self, name: str | None, configured: ConfiguredModel, session: Program | None) -> ConfiguredModel:
        """The same, with the model that a layer names as fallback before those that the model itself names."""
        other = None if name is None else self._model(name, session, configured.context)
        if other is None or other.model.id == configured.model.id:
            return configured
        others = (one for one in configured.model.fallbacks if one.id != other.model.id)
        return ConfiguredModel(replace(configured.model, fallbacks=(other.model, *others)), other.context)

    def _session(self, name: str | None) -> Program | None:
        """None for one that does not exist. One that whoever acts may not read is refused: it may limit the turn."""
        if name is None:
            return None
        try:
            session = _whole_name(self._programs.get(name, ProgramKind.SESSION), name)
            return None if session is None else ensure_vouched(session)
        except NotFound:
            if _exists(self._programs.acting_as(LOCAL), name):
                raise
            return None

    def _persona(self, session: Program | None, name: str | None) -> Program | None:
        """The agent that answers, where somebody described one: the one that is named, else the session's owner."""
        config = None if session is None else session.config
        owner = name or (config.get("owner") if isinstance(config, dict) else None)
        if owner is None or parse_address(owner).name in (DEFAULT_AGENT, IMPORTED_AGENT):
            return None
        program = self._programs.get(owner)
        Runs(self._programs.ledger).ensure_works_for(program.id, ())
        return program if program.kind == ProgramKind.AGENT and program.version else None

    def _program_layer(self, name: LayerName, program: Program) -> ConfigLayer:
        """What an agent's or a session's configuration says of its turns."""
        config = program.config if isinstance(program.config, dict) else {}
        place = f"config of {program.kind} {program.name!r}"
        defaults = resolve_config(config.get("defaultModelConfig", {}), plain_resolver(self._variable), place)
        choices = {
            "model": config.get("defaultModel"),
            "fallback": config.get("fallback"),
            "situation": defaults.get("situation"),
            "toolset": config.get("toolset"),
        }
        values = {key: value for key, value in choices.items() if value is not None}
        parameters = parameters_of(defaults, f"defaultModelConfig in the {place}")
        limits = limits_of(config.get("permissions"))
        return ConfigLayer(name=name, source=program.name, values=values | parameters.given(), permissions=limits)

    def _thread_layers(self, session: Program | None, request: TurnRequest) -> list[ConfigLayer]:
        """What the turn takes over from the one that it continues."""
        ledger, parent = self._programs.ledger, request.parent
        if parent is UNSET:
            parent = None if session is None else ledger.session(session.id).head
        if parent is None:
            return []
        turn = ledger.turn(parent)
        is_same = session is not None and turn.session_id == session.id
        message = request.overrides if request.takes_defaults else None
        layers = thread_layers(turn.effective_config, same_session=is_same, message=message)
        if layers and not is_recorded_here(ledger, turn.id):
            return [closed_layer(replace(layer, values={})) for layer in layers]
        session_id = None if session is None else session.id
        return [layer if self._may_pass_on(layer, turn.id, session_id) else closed_layer(layer) for layer in layers]

    def _may_pass_on(self, layer: ConfigLayer, turn: str, session: str | None) -> bool:
        """Whether those who made a session and recorded the turn that it goes on from may name what a layer of that
        turn names of the machine."""
        sandbox = to_builtins(layer.permissions.sandbox)
        record = {"toolset": layer.values.get("toolset"), "sandbox": sandbox}
        return may_pass_on(self._programs.ledger, _PASSED_FIELDS, record, turn=turn, session=session)

    def _with_model(self, chosen: EffectiveConfig, model: ModelSettings) -> EffectiveConfig:
        """The layers with those of the model below them, and what of it all the model is not sent."""
        situation = chosen.value("situation")
        unknown = situation is not None and situation not in model.situations
        if unknown and not is_chosen_above(chosen.values, "model", "situation"):
            known = ", ".join(sorted(model.situations)) or "none"
            raise InvalidInput(f"model {model.id!r} knows no situation {situation!r}", f"it knows: {known}")
        below = [_layer(LayerName.MODEL, model.id, model.parameters.given())]
        if model.provider.is_embedded:
            below.insert(0, _layer(LayerName.PROVIDER, model.provider.id, EMBEDDED_SAMPLING.given()))
        if chosen.value("model") is None:
            below.insert(0, _layer(LayerName.PROVIDER, "the default model", {"model": model.id}))
        if situation is not None and not unknown:
            values = model.situations[situation].given()
            below.append(_layer(LayerName.SITUATION, f"{situation} of {model.id}", values))
        merged = merge((*(layer for layer in below if not layer.is_empty), *chosen.layers))
        effective = replace(merged, not_sent={"situation": situation} if unknown else {})
        return effective.sending(self._inference.sendable(model, effective.parameters))


_PASSED_FIELDS = {"toolset": TOOLSET, "sandbox": SANDBOX}
"""What a layer of a thread may name of the machine."""


def closed_layer(layer: ConfigLayer) -> ConfigLayer:
    """A layer with all that it narrows and nothing that it opens: no toolset, no files outside, no hosts."""
    sandbox = layer.permissions.sandbox
    files = None if sandbox.files is SandboxFiles.EVERYTHING else sandbox.files
    is_open = sandbox.network is True or sandbox.hosts is not None
    closed = replace(sandbox, files=files, network=False if is_open else sandbox.network, hosts=None)
    values = {key: value for key, value in layer.values.items() if key != "toolset"}
    return replace(layer, values=values, permissions=replace(layer.permissions, sandbox=closed))


def _principal_layers(context: ExecutionContext) -> list[ConfigLayer]:
    """The limits of whoever acts."""
    source = str(context.principal)
    limits = [limits_of_rights(layer) for layer in context.rights.layers]
    if context.credentials is not None:
        limits.append(PermissionLimits(credentials=tuple(sorted(context.credentials))))
    return [ConfigLayer(name=LayerName.PRINCIPAL, source=source, permissions=one) for one in limits]


def _narrowed(context: ExecutionContext, effective: EffectiveConfig) -> ExecutionContext:
    """The context with what the layers leave of its rights. Those of whoever acts are in it already."""
    layers = effective.permissions.layers
    others = GrantedPermissions(tuple(layer for layer in layers if layer.layer != LayerName.PRINCIPAL))
    return others.narrowed(context)


def _exists(programs: Programs, session: str) -> bool:
    try:
        return _whole_name(programs.get(session, ProgramKind.SESSION), session) is not None
    except NotFound:
        return False


def _whole_name(session: Program, name: str) -> Program | None:
    """The session, unless the name is only the beginning of its label: a new session may have that name."""
    is_beginning = name != session.name and session.name.startswith(name)
    return None if is_beginning else session


def _layer(name: LayerName, source: str, values: dict[str, Any]) -> ConfigLayer:
    return ConfigLayer(name=name, source=source, values=values)


# --- Which turns nobody watches that other people began: by a trigger, in a room, as a worker's, or by a message that
# the owner's broker answers.

ROOM_FIELD = "room"
"""The field of a message's context that says in which conversation it was posted."""


class UnattendedTurn(Struct, frozen=True):
    """How a turn was begun that nobody watches, and by the words of which other people."""

    origin: str
    people: tuple[str, ...]

    def reason(self, agent: str) -> str:
        """Why a tool that writes is withheld from it."""
        return (
            f"{self.origin} of {' for '.join(self.people)} began this turn, and nobody watches it: tools that write are"
            f" withheld until the ledger's owner sets {UNATTENDED_WRITES} of the agent {agent!r} to true"
        )


def unattended_turn(programs: Programs, messages: Sequence[InboxMessage], *, is_worker: bool) -> UnattendedTurn | None:
    """How the turn of these messages was begun; None where the owner's words began it, or those of whoever runs this
    process."""
    is_owners_broker = programs.ledger.authority.is_local
    for message in messages:
        origin = _origin(message, is_worker=is_worker) or ("a message" if is_owners_broker else None)
        people = () if origin is None else other_people(programs, message)
        if origin is not None and people:
            return UnattendedTurn(origin, people)
    return None


def are_owners_words(messages: Sequence[InboxMessage]) -> bool:
    """Whether the ledger's owner wrote all of them: no trigger, no room, no agent, and nobody on whose behalf."""
    return all(map(_is_owners, messages))


def _is_owners(message: InboxMessage) -> bool:
    is_direct = message.source == MessageSource.HUMAN and _origin(message, is_worker=False) is None
    return is_direct and not principals_of(message)


def _origin(message: InboxMessage, *, is_worker: bool) -> str | None:
    if message.trigger is not None:
        return "a trigger"
    if isinstance(message.context, dict) and ROOM_FIELD in message.context:
        return "a room"
    if is_worker:
        return "a worker"
    return "an agent" if message.source == MessageSource.AGENT else None


def other_people(programs: Programs, message: InboxMessage) -> tuple[str, ...]:
    """The names of everybody but the ledger's owner in whose name a message was sent; of an agent that only they made,
    too."""
    everything = programs.acting_as(LOCAL)
    ids = (id for id in principals_of(message) if id not in (DEFAULT_AGENT, message.trigger))
    return tuple(dict.fromkeys(_others(everything.get(id) for id in ids)))


def _others(actors: Iterable[Program]) -> Iterable[str]:
    for actor in actors:
        is_owners = actor.kind == ProgramKind.AGENT and actor.created_by == DEFAULT_AGENT
        if not is_owners:
            yield actor.name


def may_write_unattended(agent: Program | None) -> bool:
    """Whether the ledger's owner lets an agent write in turns that nobody watches."""
    config = {} if agent is None else ensure_vouched(agent).config
    return isinstance(config, dict) and config.get(UNATTENDED_WRITES) is True
