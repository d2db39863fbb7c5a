"""One row of the table of kinds, and the kinds that are settings: models, providers, code, toolsets.

A row says what a kind's configuration holds, what it refers to, and what follows from it. Drafts of
models, providers and code are published, then deprecated.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Any
from urllib.parse import urlsplit

from msgspec import Struct

from weft.kernel import program_events
from weft.kernel.authority import SandboxFiles
from weft.kernel.contents import ROW_BYTES, json_bytes
from weft.kernel.enums import ProgramKind, ReferenceField
from weft.kernel.errors import InvalidConfig, InvalidInput, quoted
from weft.kernel.program_events import KindFacts
from weft.ledger.views.rows import ProgramRow
from weft.programs.config_fields import (
    CREDENTIAL,
    CREDENTIAL_LIMIT,
    FOLDER,
    METADATA,
    NOTHING,
    PRIVATE_HOSTS,
    SANDBOX,
    SERVICE,
    URL,
    VARIABLES,
    Check,
    ConfigFaults,
    ConfigFields,
    MachineField,
    MachineName,
    NamedObjects,
    NamedProgram,
    count,
    filled,
    flag,
    host_list,
    is_kept,
    member,
    names_in,
    names_of_change,
    no_secret,
    number,
    object_,
    one_of,
    or_variable,
    plain_keys,
    reference,
    reference_list,
    text,
    texts,
    unknown_fields,
    whole_number,
)
from weft.programs.config_fields import TOOLSET as TOOLSET_NAME
from weft.programs.program_records import check_schema, is_address, parse_address
from weft.programs.program_writer import ProgramWriter

# --- One row of the table of kinds: what a kind's configuration holds, what it refers to, and what follows from it.

Config = dict[str, Any]
Step = Callable[[ProgramWriter, ProgramRow, str | None], ProgramRow]
"""Takes a program one step of its lifecycle on, for a reason."""


COMMON_FIELDS: Mapping[str, Check] = MappingProxyType(
    {"name": text, "description": text, "visibility": member("public", "private"), METADATA: object_}
)
"""Fields that every kind's configuration may have: what is listed of a program, who may read it, what users keep."""
_COMMON_MACHINE = dict.fromkeys(("name", "description", "visibility", METADATA), NOTHING)


class ReferenceRule(Struct, frozen=True):
    """A field whose value is the address of a program, or a list of them: as what it is recorded, and of which kinds
    the program must be. Without kinds any will do. `not_programs` are names that stand for no program. With
    `takes_names` a plain name is an address, too."""

    field: ReferenceField
    kinds: tuple[str, ...] = ()
    not_programs: tuple[str, ...] = ()
    takes_names: bool = False


def _unchanged_config(config: Config) -> Config:
    return config


def _merged_config(before: Config, merged: Config, changes: Config) -> Config:
    return merged


def _no_fields(config: Config) -> Config:
    return {}


def _nothing_follows(writer: ProgramWriter, row: ProgramRow, before: Config, config: Config) -> ProgramRow:
    return row


def _any_name(name: str, config: Any) -> None:
    """Every name will do."""


def _faulty_paths(faults: ConfigFaults) -> tuple[str, ...]:
    return tuple(error.path for error in faults.errors if isinstance(error, InvalidConfig))


def _is_held(version: Any, config: Config, names: Iterable[str]) -> bool:
    """Whether an earlier version holds the same in these fields."""
    return isinstance(version, dict) and all(version.get(name) == config.get(name) for name in names)


class KindRow(Struct, frozen=True, kw_only=True):
    """One kind of program."""

    facts: KindFacts
    """Its name, events and lifecycle, as the log knows them."""
    fields: Mapping[str, Check]
    """How each field of its configuration is checked, beside those that all kinds have."""
    new_checks: Mapping[str, Check] = MappingProxyType({})
    """More checks of fields that are written now; what an earlier version holds is not looked at."""
    machine: Mapping[str, MachineField]
    """What each of these fields names of the machine, by its place. None may be left out: see `machine_names`."""
    activity_fields: tuple[str, ...] = ()
    """Fields that are shown with its configuration and computed from events: nobody sets them."""
    required: tuple[str, ...] = ()
    references: Mapping[str, ReferenceRule] = MappingProxyType({})
    normalized: Callable[[Config], Config] = _unchanged_config
    """Brings a configuration to the form it is kept in, before its fields are checked."""
    holds_keys: bool = False
    """Fields whose names are those of keys must name a variable, wherever they stand."""
    changed: Callable[[Config, Config, Config], Config] = _merged_config
    """Takes the configuration before, the one with the changes merged in, and the changes."""
    event_fields: Callable[[Config], Config] = _no_fields
    """More fields of the events that create and configure it."""
    follow_config: Callable[[ProgramWriter, ProgramRow, Config, Config], ProgramRow] = _nothing_follows
    """What follows from a new configuration, in the same append. Takes the one before and the new one."""
    refuse_name: Callable[[str, Any], None] = _any_name
    """Refuses a name that a program with this configuration may not bear."""
    acts_by_itself: bool = False
    """It acts later, with all that whoever set it up may do: one whose rights a token limits sets none up."""
    is_made_by_everybody: bool = False
    """Does nobody need the permission `configure` to create one, and to change what they created?"""
    is_moved_by_turns: bool = False
    """Is its state also what its open turns do?"""
    file_states: tuple[str, ...] = ()
    """States that a file may ask for, in the order in which they are reached. None: a file has no say in its state."""
    state_in_use: str | None = None
    """The state in which a new program is left, and which a file means that asks for none."""
    steps: Mapping[str, Step] = MappingProxyType({})
    """By state: the step to the next of `file_states`."""
    ended_states: tuple[str, ...] = ()
    """States in which it cannot be configured any more."""

    def __post_init__(self) -> None:
        """A field of which nobody said what it names would be set by anybody: such a kind is not made."""
        declared = self.machine_fields
        places = {".".join(place) for place in self.form.names()}
        groups = {place.rpartition(".")[0] for place in places}
        within = {f"{place}.{name}" for place, field in declared.items() for name in field.within}
        wrong = (places - groups - declared.keys() - within) | (declared.keys() - places) | (within - places)
        names = ", ".join(sorted(wrong))
        assert not wrong, f"say of each field of {self.facts.name} what it names of the machine: {names}"

    @property
    def machine_fields(self) -> dict[str, MachineField]:
        return {**self.machine, **_COMMON_MACHINE}

    def machine_names(self, config: Any) -> frozenset[MachineName]:
        """All that a configuration names of the machine."""
        return names_in(self.machine_fields, config)

    def machine_changes(self, before: Any, after: Any) -> list[MachineName]:
        """What has to be permitted of a change of its configuration."""
        return names_of_change(self.machine_fields, before, after)

    def keeps_machine(self, before: Config, after: Config) -> bool:
        """Whether a change leaves alone all that concerns the machine, as an agent has to."""
        return is_kept(self.machine_fields, before, after)

    @property
    def name(self) -> str:
        return self.facts.name

    @property
    def form(self) -> ConfigFields:
        """All fields that its configuration may have."""
        return ConfigFields({**self.fields, **COMMON_FIELDS})

    def checked_config(self, config: Any, earlier: Iterable[Any] = (), activity: Config | None = None) -> Config:
        """A configuration in its one form. Raises InvalidConfig, with several faults in its `faults`.

        A field that nothing reads is refused, unless one of the `earlier` versions holds the same; `activity` is what
        is shown of a program's activity and may be given again."""
        faults = ConfigFaults()
        checked = self._examined_config(self._without_activity(config, activity or {}, faults), faults)
        refused = _faulty_paths(faults)
        newly = ConfigFaults()
        for name in self.new_checks.keys() & checked.keys():
            if not f"config.{name}".startswith(refused):
                newly.check(self.new_checks[name], f"config.{name}", checked[name])
        unknown = list(unknown_fields(self.form, checked, ()))
        versions = list(earlier) if newly.errors or unknown else []
        if newly.errors and not any(_is_held(version, checked, self.new_checks) for version in versions):
            faults.errors += newly.errors
        for field in unknown_fields(self.form, checked, versions):
            if not any(path.startswith(field.path) for path in refused):
                faults.errors.append(field.refusal(self.name, self.form))
        faults.raise_any()
        return checked

    def checked_values(self, config: Any) -> Config:
        """A configuration with every known field in its one form; what is unknown in it is not looked at."""
        faults = ConfigFaults()
        checked = self._examined_config(config, faults)
        faults.raise_any()
        return checked

    def _examined_config(self, config: Any, faults: ConfigFaults) -> Config:
        """The fields in their one form; those that were refused as they are."""
        if not isinstance(config, dict):
            raise InvalidConfig("config", f"{quoted(config)} is no object", "give it as a JSON object")
        if len(json_bytes(config, "config")) > ROW_BYTES:
            raise InvalidConfig(
                "config", f"it is larger than {ROW_BYTES} bytes", "keep what is large in a file and name that"
            )
        fields = self.normalized(config)
        for name in self.required:
            if name not in fields:
                hint = f"a {self.name} needs {', '.join(self.required)}"
                faults.errors.append(InvalidConfig(f"config.{name}", "is missing", hint))
        checks = self.form.fields
        checked = {
            name: faults.check(checks[name], f"config.{name}", value) if name in checks else value
            for name, value in fields.items()
        }
        if self.holds_keys:
            refused = _faulty_paths(faults)
            faults.errors += [error for error in plain_keys("config", fields) if not error.path.startswith(refused)]
        return checked

    def _without_activity(self, config: Any, activity: Config, faults: ConfigFaults) -> Any:
        if not isinstance(config, dict):
            return config
        for name in self.activity_fields:
            if name in config and config[name] != activity.get(name):
                hint = f"leave it out: it is computed from what the {self.name} does"
                faults.errors.append(InvalidConfig(f"config.{name}", "cannot be set", hint))
        return {name: value for name, value in config.items() if name not in self.activity_fields}

    def named_programs(self, config: Config) -> Iterator[NamedProgram]:
        """Every program that a checked configuration refers to."""
        for name, rule in self.references.items():
            value = config.get(name)
            addresses = value if isinstance(value, list) else [] if value is None else [value]
            for i, address in enumerate(addresses):
                if not isinstance(address, str) or not (rule.takes_names or is_address(address)):
                    continue
                if parse_address(address).name not in rule.not_programs:
                    path = f"config.{name}[{i}]" if isinstance(value, list) else f"config.{name}"
                    yield NamedProgram(rule.field, path, parse_address(address), rule.kinds)

    def config_event_fields(self, writer: ProgramWriter, config: Config) -> dict[str, Any]:
        """The fields of an event that brings this configuration: the content, and the programs that it names."""
        return {**writer.referred(config, self.named_programs(config)), **self.event_fields(config)}

    def put_in_use(self, writer: ProgramWriter, row: ProgramRow) -> ProgramRow:
        """Step by step to the state in which it can be used."""
        return row if self.state_in_use is None else self.bring_to(writer, row, self.state_in_use)

    def bring_to(self, writer: ProgramWriter, row: ProgramRow, state: str) -> ProgramRow:
        while row.state != state:
            row = self.steps[row.state](writer, row, None)
        return row


# --- The lifecycle that code, providers and models share: a draft is published, then deprecated.


def publish_program(writer: ProgramWriter, row: ProgramRow, reason: str | None = None) -> ProgramRow:
    writer.permit_configuring(f"publish {row.name!r}", row)
    return writer.take_step(row, "publish", reason)


def deprecate_program(writer: ProgramWriter, row: ProgramRow, reason: str | None = None) -> ProgramRow:
    writer.permit_configuring(f"deprecate {row.name!r}", row)
    return writer.take_step(row, "deprecate", reason)


FILE_STATES = ("draft", "published", "deprecated")
STATE_IN_USE = "published"
PUBLISHING_STEPS = {"draft": publish_program, "published": deprecate_program}
ENDED_STATES = ("deprecated",)


# --- Names of vendors are reserved: whoever says `anthropic` means the vendor, and no program stands in for it.

VENDORS = ("anthropic", "openai", "google")


def is_vendor_name(name: str) -> bool:
    """Whether this name, or what stands before a slash in it, is a vendor's."""
    return name.casefold().partition("/")[0] in VENDORS


def refuse_model_name(name: str, config: Any) -> None:
    if is_vendor_name(name):
        raise _vendor_name_refusal("model", name)


def refuse_provider_name(name: str, config: Any) -> None:
    fields = config if isinstance(config, dict) else {}
    is_vendors = fields.get("providerType") == name.casefold() and "baseUrl" not in fields
    if is_vendor_name(name) and not is_vendors:
        raise _vendor_name_refusal("provider", name)


def _vendor_name_refusal(kind: str, name: str) -> InvalidInput:
    vendor = name.casefold().partition("/")[0]
    return InvalidInput(
        f"{kind} {quoted(name)} bears the name of the vendor {vendor}, and is not the vendor's",
        f"choose another name; a provider may be called {vendor} if its type is {vendor} and it has no baseUrl",
    )


# --- Models: one of a provider's, with the parameters it is asked with, by situation, and those that stand in for it.

MAX_FALLBACKS = 8
THINKING_LEVELS = ("minimal", "low", "medium", "high")


def _thinking_level(path: str, value: Any) -> str:
    if value not in THINKING_LEVELS:
        raise InvalidConfig(
            path,
            f"{quoted(value)} is not known",
            f"one of {', '.join(THINKING_LEVELS)}, true, false, or a number of tokens",
        )
    return str(value)


PARAMETER_CHECKS: dict[str, Check] = {
    "temperature": number(0, 2),
    "maxTokens": count,
    "topP": number(0, 1),
    "topK": or_variable(count),
    "minP": number(0, 1),
    "seed": or_variable(whole_number),
    "stop": texts,
    "presencePenalty": number(-2, 2),
    "frequencyPenalty": number(-2, 2),
    "thinking": or_variable(one_of(flag, count, _thinking_level)),
}
"""The parameters of a request to a model, by the names that configurations and `--set` give them."""
THINKING_CONFIG = "thinkingConfig"
THINKING_FIELDS = ("enabled", "level", "budgetTokens")


def thinking_in(path: str, value: Any) -> Any:
    """What a `thinkingConfig` says, as the parameter `thinking` takes it: false where it is not enabled, else its level
    or its budget. Raises InvalidConfig."""
    fields = object_(path, value)
    amounts = [name for name in ("level", "budgetTokens") if name in fields]
    if not fields or not fields.keys() <= {*THINKING_FIELDS} or len(amounts) > 1:
        raise InvalidConfig(path, f"{quoted(value)} is no way to think", f"give one of {', '.join(THINKING_FIELDS)}")
    is_enabled = flag(f"{path}.enabled", fields.get("enabled", True))
    if not amounts:
        return is_enabled
    (name,) = amounts
    place = f"{path}.{name}"
    amount = count(place, fields[name]) if name == "budgetTokens" else text(place, fields[name])
    checked = PARAMETER_CHECKS["thinking"](place, amount)
    return checked if is_enabled else False


def _thinking_config(path: str, value: Any) -> dict[str, Any]:
    thinking_in(path, value)
    return object_(path, value)


PARAMETER_CHECKS[THINKING_CONFIG] = _thinking_config


def _response_schema(path: str, value: Any) -> dict[str, Any] | None:
    """The schema of an answer; null takes away what a layer below says."""
    return None if value is None else input_schema(path, value)


PARAMETER_CHECKS["responseSchema"] = _response_schema
PARAMETER_NAMES = (
    "temperature", "maxTokens", "topP", "topK", "minP", "seed", "stop", "presencePenalty", "frequencyPenalty",
    "thinking", THINKING_CONFIG, "responseSchema",
)  # fmt: skip
"""Those of them of which is known that they name nothing of the machine but variables."""


def _fallback_models(path: str, value: Any) -> list[str]:
    models = reference_list(path, value)
    if len(models) > MAX_FALLBACKS:
        raise InvalidConfig(path, f"names {len(models)} models", f"name at most {MAX_FALLBACKS}")
    return models


MODEL = KindRow(
    facts=program_events.MODEL,
    required=("modelId", "provider"),
    fields={
        "modelId": filled,
        "provider": reference,
        **PARAMETER_CHECKS,
        "situations": NamedObjects(ConfigFields(PARAMETER_CHECKS)),
        "fallbacks": _fallback_models,
        "images": or_variable(flag),
        "contextWindow": or_variable(count),
        "api": or_variable(member("chat", "responses")),
        "promptCache": or_variable(member("5m", "1h", "key", "off")),
    },
    machine=dict.fromkeys(
        (
            "modelId",
            "provider",
            *PARAMETER_NAMES,
            "situations",
            "fallbacks",
            "images",
            "contextWindow",
            "api",
            "promptCache",
        ),
        VARIABLES,
    ),
    references={
        "provider": ReferenceRule(ReferenceField.PROVIDER, (ProgramKind.PROVIDER,)),
        "fallbacks": ReferenceRule(ReferenceField.FALLBACK, (ProgramKind.MODEL,)),
    },
    holds_keys=True,
    refuse_name=refuse_model_name,
    file_states=FILE_STATES,
    state_in_use=STATE_IN_USE,
    steps=PUBLISHING_STEPS,
    ended_states=ENDED_STATES,
)


# --- Providers: a server that has models, and the variables that its keys are in.

PROVIDER_KEYS = ("apiKey", "token", "key", "secret", "password")


def server_url(path: str, value: Any) -> str:
    """Scheme, host and path of a server, and nothing that would be a key."""
    url = filled(path, value)
    try:
        parts = urlsplit(url)
    except ValueError:
        raise InvalidConfig(path, "cannot be read", "write it as https://host/path") from None
    if "@" in parts.netloc:
        raise InvalidConfig(path, "carries a user or password", "put the key into a variable, and name it in apiKey")
    if parts.query or parts.fragment:
        raise InvalidConfig(path, "goes on after its path", "leave out what begins with ? or #; a key goes into apiKey")
    if parts.scheme not in ("http", "https") and not url.startswith("${"):
        raise InvalidConfig(path, "is no http(s) address", "write it as https://host/path")
    return url


def refuse_headers(path: str, value: Any) -> Any:
    """Headers of one's own are not sent, so a configuration that has them is refused."""
    raise InvalidConfig(path, "cannot be given: they are not sent", "take them out; a key goes into apiKey")


def _without_moved_keys(before: Config, merged: Config, changes: Config) -> Config:
    """A provider that moves to another server leaves its keys behind, unless they are given anew."""
    if not isinstance(merged, dict) or not _changes_server(before, merged):
        return merged
    return {name: value for name, value in merged.items() if name not in PROVIDER_KEYS or name in changes}


def _changes_server(before: Config, after: Config) -> bool:
    """Whether requests would go to somebody else: another server, another vendor's own, another account's gateway."""
    account = before.get("accountId")
    return _provider_server(before) != _provider_server(after) or (
        account is not None and account != after.get("accountId")
    )


def _provider_server(config: Config) -> tuple[str, str]:
    """Scheme and host, or where no URL is given the vendor."""
    if not isinstance(config.get("baseUrl"), str):
        return "", str(config.get("providerType"))
    parts = urlsplit(config["baseUrl"])
    return parts.scheme, parts.netloc.casefold()


PROVIDER = KindRow(
    facts=program_events.PROVIDER,
    required=("providerType",),
    fields={
        "providerType": filled,
        "baseUrl": server_url,
        "accountId": filled,
        "gatewayId": filled,
        "api": or_variable(member("chat", "responses")),
        "credential": filled,
        "gatewayCredential": filled,
        "allowPrivate": or_variable(flag),
        "caFile": filled,
        **dict.fromkeys(("connectSeconds", "readSeconds", "timeout"), number(0)),
        "headers": refuse_headers,
        **dict.fromkeys(PROVIDER_KEYS, no_secret),
    },
    machine={
        "baseUrl": URL,
        **dict.fromkeys(("providerType", "accountId", "gatewayId"), SERVICE),
        **dict.fromkeys(("credential", "gatewayCredential"), CREDENTIAL),
        "allowPrivate": PRIVATE_HOSTS,
        "caFile": FOLDER,
        **dict.fromkeys(("api", "connectSeconds", "readSeconds", "timeout"), VARIABLES),
        **dict.fromkeys(("apiKey", "token", "key", "secret", "password"), VARIABLES),
        "headers": NOTHING,
    },
    holds_keys=True,
    changed=_without_moved_keys,
    refuse_name=refuse_provider_name,
    file_states=FILE_STATES,
    state_in_use=STATE_IN_USE,
    steps=PUBLISHING_STEPS,
    ended_states=ENDED_STATES,
)


# --- Code: a source text in one of three languages, run in the sandbox when it is invoked.

LANGUAGES = ("javascript", "typescript", "python")


def input_schema(path: str, value: Any) -> dict[str, Any]:
    """The JSON Schema of what it is called with as a tool, which is an object."""
    schema = object_(path, value)
    if schema.get("type") != "object":
        raise InvalidConfig(f"{path}.type", "is not object", "the arguments of a tool are an object")
    check_schema(schema, path)
    return schema


CODE = KindRow(
    facts=program_events.CODE,
    required=("source",),
    fields={"language": member(*LANGUAGES), "source": filled, "inputSchema": input_schema},
    machine=dict.fromkeys(("language", "source", "inputSchema"), NOTHING),
    file_states=FILE_STATES,
    state_in_use=STATE_IN_USE,
    steps=PUBLISHING_STEPS,
    ended_states=ENDED_STATES,
)


# --- Fields that agents and sessions share: how their turns ask a model unless a message says otherwise, and what
# their turns may do at most.

MODEL_CONFIG = "defaultModelConfig"
MODEL_CONFIG_CHECK = ConfigFields({"model": reference, "situation": filled, **PARAMETER_CHECKS})
LIMIT_CHECKS: dict[str, Check] = {
    "tools": ConfigFields({"allow": texts, "deny": texts}),
    "sandbox": ConfigFields({"files": member(*SandboxFiles), "network": flag, "hosts": host_list}),
    "credentials": texts,
}
"""Permissions that only narrow: tools by patterns, the sandbox, the credentials that may be used."""
TURN_MACHINE: dict[str, MachineField] = {
    **dict.fromkeys((f"{MODEL_CONFIG}.{name}" for name in ("model", "situation", *PARAMETER_NAMES)), VARIABLES),
    "defaultModel": NOTHING,
    "fallback": NOTHING,
    "permissions.tools.allow": NOTHING,
    "permissions.tools.deny": NOTHING,
    "permissions.sandbox": SANDBOX,
    "permissions.credentials": CREDENTIAL_LIMIT,
    "toolset": TOOLSET_NAME,
    **dict.fromkeys(
        (
            f"compaction.{name}"
            for name in ("model", "strategy", "threshold", "everyTurns", "everyTokens", "keep", "focus", "automatic")
        ),
        VARIABLES,
    ),
}
"""What the fields that agents and sessions share name of the machine."""


def with_one_model(config: Config) -> Config:
    """The configuration with `defaultModelConfig.model` moved to `defaultModel`."""
    defaults = config.get(MODEL_CONFIG)
    if not isinstance(defaults, dict) or "model" not in defaults:
        return config
    model = defaults["model"]
    if "defaultModel" in config and not _is_same_model(config["defaultModel"], model):
        raise InvalidConfig(
            f"config.{MODEL_CONFIG}.model",
            f"names another model than defaultModel, {quoted(config['defaultModel'])}",
            "they are one field: give one of them",
        )
    others = {name: value for name, value in defaults.items() if name != "model"}
    kept = {name: value for name, value in config.items() if name != MODEL_CONFIG}
    return {**kept, "defaultModel": model, **({MODEL_CONFIG: others} if others else {})}


def _is_same_model(one: Any, other: Any) -> bool:
    try:
        return parse_address(one) == parse_address(other)
    except InvalidConfig:  # each is refused where its own field is checked
        return False


def with_changed_model(before: Config, merged: Config, changes: Config) -> Config:
    """Changes that name the model as `defaultModelConfig.model` replace, or with None remove, the `defaultModel`."""
    defaults = changes.get(MODEL_CONFIG)
    if isinstance(defaults, dict) and "model" in defaults and "defaultModel" not in changes:
        return {name: value for name, value in merged.items() if name != "defaultModel"}
    return merged


# --- Toolsets: named lists of tool patterns with the sandbox that their tools run in; agents and sessions name one.

BUILT_IN_TOOLSETS = ("manager", "worker", "full")
"""Names that stand for no program: these are always there, and cannot be changed."""


def refuse_built_in(name: str, config: Any) -> None:
    if name.casefold() in BUILT_IN_TOOLSETS:
        raise InvalidInput(f"the toolset {name.casefold()!r} is built in", "choose another name")


TOOLSET = KindRow(
    facts=program_events.TOOLSET,
    required=("tools",),
    fields={"tools": LIMIT_CHECKS["tools"], "sandbox": LIMIT_CHECKS["sandbox"], "workers": filled},
    refuse_name=refuse_built_in,
    machine={**dict.fromkeys(("tools.allow", "tools.deny"), NOTHING), "sandbox": SANDBOX, "workers": TOOLSET_NAME},
)
