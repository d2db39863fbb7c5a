"""One row of the table of kinds: what a kind's configuration holds, what it refers to, and what follows from it.

A row is data. What needs code is a function in the row, with a default that does nothing; nothing outside of the row
asks which kind it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Any

from msgspec import Struct

from weft.kernel.contents import ROW_BYTES, json_bytes
from weft.kernel.enums import ReferenceField
from weft.kernel.errors import InvalidConfig, quoted
from weft.kernel.program_events import KindFacts
from weft.ledger.views.rows import ProgramRow
from weft.programs.addresses import is_address, parse_address
from weft.programs.config_fields import (
    METADATA,
    Check,
    Faults,
    Fields,
    NamedProgram,
    member,
    object_,
    plain_keys,
    text,
    unknown_fields,
)
from weft.programs.machine_names import NOTHING, MachineField, MachineName, is_kept, names_in, names_of_change
from weft.programs.program_writer import ProgramWriter

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
    the program must be. Without kinds any will do. `not_programs` are names that stand for no program."""

    field: ReferenceField
    kinds: tuple[str, ...] = ()
    not_programs: tuple[str, ...] = ()


def _same(config: Config) -> Config:
    return config


def _merged(before: Config, merged: Config, changes: Config) -> Config:
    return merged


def _no_fields(config: Config) -> Config:
    return {}


def _nothing_follows(writer: ProgramWriter, row: ProgramRow, before: Config, config: Config) -> ProgramRow:
    return row


def _any_name(name: str, config: Any) -> None:
    """Every name will do."""


def _paths(faults: Faults) -> tuple[str, ...]:
    return tuple(error.path for error in faults.errors if isinstance(error, InvalidConfig))


class KindRow(Struct, frozen=True, kw_only=True):
    """One kind of program."""

    facts: KindFacts
    """Its name, events and lifecycle, as the log knows them."""
    fields: Mapping[str, Check]
    """How each field of its configuration is checked, beside those that all kinds have."""
    machine: Mapping[str, MachineField]
    """What each of these fields names of the machine, by its place. None may be left out: see `machine_names`."""
    activity_fields: tuple[str, ...] = ()
    """Fields that are shown with its configuration and computed from events: nobody sets them."""
    required: tuple[str, ...] = ()
    references: Mapping[str, ReferenceRule] = MappingProxyType({})
    normalized: Callable[[Config], Config] = _same
    """Brings a configuration to the form it is kept in, before its fields are checked."""
    holds_keys: bool = False
    """Fields whose names are those of keys must name a variable, wherever they stand."""
    changed: Callable[[Config, Config, Config], Config] = _merged
    """Takes the configuration before, the one with the changes merged in, and the changes."""
    event_fields: Callable[[Config], Config] = _no_fields
    """More fields of the events that create and configure it."""
    follow_config: Callable[[ProgramWriter, ProgramRow, Config, Config], ProgramRow] = _nothing_follows
    """What follows from a new configuration, in the same append. Takes the one before and the new one."""
    refuse_name: Callable[[str, Any], None] = _any_name
    """Refuses a name that a program with this configuration may not bear."""
    is_made_by_everybody: bool = False
    """Does nobody need the permission `configure` to create one, and to change what they created?"""
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
    def form(self) -> Fields:
        """All fields that its configuration may have."""
        return Fields({**self.fields, **COMMON_FIELDS})

    def checked_config(self, config: Any, earlier: Iterable[Any] = (), activity: Config | None = None) -> Config:
        """A configuration in its one form. Raises InvalidConfig, with several faults in its `faults`.

        A field that nothing reads is refused, unless one of the `earlier` versions holds the same; `activity` is what
        is shown of a program's activity and may be given again."""
        faults = Faults()
        checked = self._examined(self._without_activity(config, activity or {}, faults), faults)
        refused = _paths(faults)
        for field in unknown_fields(self.form, checked, earlier):
            if not any(path.startswith(field.path) for path in refused):
                faults.errors.append(field.refusal(self.name, self.form))
        faults.raise_any()
        return checked

    def checked_values(self, config: Any) -> Config:
        """A configuration with every known field in its one form; what is unknown in it is not looked at."""
        faults = Faults()
        checked = self._examined(config, faults)
        faults.raise_any()
        return checked

    def _examined(self, config: Any, faults: Faults) -> Config:
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
            refused = _paths(faults)
            faults.errors += [error for error in plain_keys("config", fields) if not error.path.startswith(refused)]
        return checked

    def _without_activity(self, config: Any, activity: Config, faults: Faults) -> Any:
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
                if not isinstance(address, str) or not is_address(address):
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
