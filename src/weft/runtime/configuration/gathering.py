"""Collects the layers that configure a turn from programs and from the turn that it continues, and merges them.

What other layers choose decides which model is looked up: the last layer that names a model or a situation. Variables
that configurations name are looked up here. Values of a turn that another ledger recorded are not taken over; its
permissions are, since they only narrow.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from msgspec import UNSET, Struct, UnsetType, to_builtins
from msgspec.structs import replace

from weft.kernel.authority import LOCAL, SandboxFiles
from weft.kernel.enums import ProgramKind
from weft.kernel.errors import Action, InvalidInput, NotApplicable, NotFound
from weft.ledger.api import Runs, is_recorded_here
from weft.ledger.model import DEFAULT_AGENT, IMPORTED_AGENT
from weft.programs.addresses import parse_address
from weft.programs.machine_names import SANDBOX, TOOLSET
from weft.programs.model import Program
from weft.programs.placeholders import Resolver, resolve_config
from weft.programs.programs import Programs
from weft.programs.vouching import ensure_vouched, may_pass_on
from weft.runtime.configuration.layers import (
    ConfigLayer,
    EffectiveConfig,
    LayerName,
    is_chosen_above,
    merge,
    thread_layers,
)
from weft.runtime.configuration.message_overrides import NO_OVERRIDES, MessageOverrides
from weft.runtime.configuration.parameter_names import parameters_of
from weft.runtime.configuration.permissions import (
    GrantedPermissions,
    PermissionLimits,
    limits_of,
    limits_of_rights,
)
from weft.runtime.context import ExecutionContext
from weft.runtime.inference.inference import Inference
from weft.runtime.inference.settings import EMBEDDED_SAMPLING, ModelSettings
from weft.runtime.invoke.agent_rights import agent_context, soul_of
from weft.runtime.invoke.model_settings import ConfiguredModel, model_settings, plain_resolver
from weft.runtime.tools.toolsets import find_toolset
from weft.runtime.turns.ledger_port import Crossing
from weft.runtime.workers.constraints import WorkerConstraints, read_constraints, spawner_layers

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

    @property
    def persona_name(self) -> str:
        return DEFAULT_AGENT if self.persona is None else self.persona.name

    @property
    def system_prompt(self) -> str | None:
        """The soul of the agent that answers."""
        return None if self.persona is None else soul_of(self.persona)

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
        if self.session is None and self.persona is not None:
            name = self.persona.name
            raise NotApplicable(f"agent {name!r} has no model", Action.SET_AGENT_MODEL.of(agent=name))
        label = "" if self.session is None else self.session.name
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
    crossing: Crossing,
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
            *self._thread_layers(session, request.parent),
            *([] if session is None else [self._program_layer(LayerName.SESSION, session)]),
            request.overrides.layer(request.message),
        ]
        chosen = self._with_toolset(merge(layer for layer in layers if not layer.is_empty))
        configured = self._model(chosen.value("model"), session, acting)
        if configured is None:
            context = _narrowed(acting, chosen)
            return TurnConfiguration(
                effective=chosen, context=context, persona=persona, session=session, constraints=constraints
            )
        effective = self._with_model(chosen, configured.model)
        return TurnConfiguration(
            effective=effective,
            context=_narrowed(configured.context, effective),
            model=configured.model,
            persona=persona,
            session=session,
            constraints=constraints,
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

    def _with_toolset(self, chosen: EffectiveConfig) -> EffectiveConfig:
        """The same, with the limits of every toolset that a layer names: a later one narrows, and never widens."""
        names = dict.fromkeys(layer.values["toolset"] for layer in chosen.layers if "toolset" in layer.values)
        toolsets = [find_toolset(self._programs, name) for name in names]
        limits = [
            ConfigLayer(name=LayerName.TOOLSET, source=toolset.name, permissions=toolset.limits) for toolset in toolsets
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
            "situation": defaults.get("situation"),
            "toolset": config.get("toolset"),
        }
        values = {key: value for key, value in choices.items() if value is not None}
        parameters = parameters_of(defaults, f"defaultModelConfig in the {place}")
        limits = limits_of(config.get("permissions"))
        return ConfigLayer(name=name, source=program.name, values=values | parameters.given(), permissions=limits)

    def _thread_layers(self, session: Program | None, parent: str | UnsetType | None) -> list[ConfigLayer]:
        """What the turn takes over from the one that it continues."""
        ledger = self._programs.ledger
        if parent is UNSET:
            parent = None if session is None else ledger.session(session.id).head
        if parent is None:
            return []
        turn = ledger.turn(parent)
        is_same = session is not None and turn.session_id == session.id
        layers = thread_layers(turn.effective_config, same_session=is_same)
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
