"""What a verb is: one function of a ledger with annotated parameters, its help, its right and its answer.

The command line makes a command of it, and whatever else lets programs ask makes a route or a tool of the same
declaration. Nothing here reads arguments, the environment or a terminal. A verb's parameters are read from its
signature when somebody asks for them, so that to load a module of verbs loads little else.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from enum import Enum, StrEnum
from functools import cached_property, lru_cache, partial
from types import NoneType, UnionType
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Concatenate,
    Generic,
    Literal,
    ParamSpec,
    Protocol,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from weft.kernel.errors import InvalidInput, Unsupported
from weft.verbs.answers import LazyList, Listing

if TYPE_CHECKING:
    from datetime import tzinfo

    from weft.ledger.api import Ledger, PriceTable
    from weft.runtime.assembly.system_prompts import WorkspaceRules
    from weft.runtime.egress.execution_context import ExecutionContext
    from weft.runtime.folder_snapshots.snapshot_objects import ChangedPath
    from weft.runtime.ledger_port import Executor
    from weft.runtime.resources.drivers import Drivers
    from weft.runtime.resources.local_drivers import DirectoryDriver
    from weft.runtime.resources.turn_files import TurnFiles

P = ParamSpec("P")
R = TypeVar("R", covariant=True)
T = TypeVar("T")


# --- Parameters: what its annotation says of each, and what follows from it.


class Names(Struct, frozen=True):
    """What a text names, so that a shell completes it and a form lets people choose."""

    what: Literal["session", "program", "message", "approval", "node", "word", "room", "participant"]
    of: tuple[str, ...] = ()
    """Only programs of these kinds, messages or rooms in these states, or participants of these kinds; all, where it is
    empty. Of words: those that are proposed."""


SESSION = Names("session")
"""A label, an alias, an id or the beginning of a label; and what begins with parameter, such as `main~2`."""


def program(*kinds: str) -> Names:
    return Names("program", kinds)


class TypedForm(StrEnum):
    """How somebody types a value on a line of words. A program gives the value itself."""

    PLAIN = "plain"
    TEXT = "text"
    """`-` stands for what is piped in."""
    FILE = "file"
    """The name of a file stands for its text; `-` is what is piped in."""
    PLACE = "place"
    """A file or a folder: beginning with a dot or `~` one of this machine, else the end of its path."""
    FIELDS = "fields"
    """`FIELD=VALUE`, repeated: an object of fields."""
    JSON = "json"
    """A JSON value, or with `@` the file that holds it."""


class ParameterDetails(Struct, frozen=True, kw_only=True):
    """What an annotation says of a parameter. What is None or empty, it does not say."""

    help: str = ""
    spellings: tuple[str, ...] = ()
    """Of an option on the command line; `--NAME`, where there are none."""
    metavar: str | None = None
    names: Names | None = None
    least: int | None = None
    most: int | None = None
    typed: TypedForm = TypedForm.PLAIN
    from_file: str = ""
    """Help of a second option, `--NAME-from FILE`, by which a text can be given, too; `-` is what is piped in."""
    file_spelling: str = ""
    """Of that option, where it is called otherwise."""
    is_piped_without: str = ""
    """Without the text, and without this parameter, what is piped in is meant."""
    missing: str = ""
    """What is told where something should be piped in, and nothing is."""
    what: str = ""
    """What a file or a text is, in an error; the parameter's name, where it is empty."""
    is_option: bool = False
    is_hidden: bool = False
    is_untyped: bool = False
    """No option of the command line, which shows all of it: others ask for a part."""
    before: str = ""
    """Of an option of the command line alone: the parameter that it stands before; the last, where it is empty."""
    is_path: bool = False
    """A folder that is written to, or looked through later."""
    on_terminal: Any = None
    """What is meant where nobody says, and a person reads the answer on a terminal."""
    old: tuple[str, ...] = ()
    """Spellings that it had once: still taken, and shown nowhere."""
    is_latest: bool = False
    """Where no session is named, the latest is meant."""
    has_turn: bool = True
    """Of the latest session: one without a turn is passed over."""
    may_lack_turn_with: str = ""
    """With this parameter it is not."""
    is_needed: bool = False
    """There is nothing to answer where there is no session at all."""
    is_needed_as_json: bool = False
    """The same for programs; people are told, and shown nothing."""
    not_latest_with: str = ""
    """With this parameter no session is meant."""
    stays_unsaid: bool = False
    """The verb finds the latest session itself, and wants to know that nobody named one."""
    in_latest: bool = False
    """`@{1}` alone is a place where the latest session stood."""


def arg(help: str = "", **details: Any) -> ParameterDetails:
    """An argument: on the command line it stands by its place."""
    return ParameterDetails(help=help, **details)


def opt(help: str, *spellings: str, **details: Any) -> ParameterDetails:
    """An option: `opt("At most N sessions.", "-n", "--limit", metavar="N")`."""
    return ParameterDetails(help=help, spellings=spellings, is_option=True, **details)


SessionName = Annotated[
    str, arg("A session: its label, an alias, its id or the beginning of its label.", names=SESSION)
]
LatestSession = Annotated[
    str | None, arg("A session; without one it is the latest that has a turn.", names=SESSION, is_latest=True)
]
LatestRevision = Annotated[
    str | None, arg("A turn; without one it is where the latest session stands.", names=SESSION, is_latest=True)
]
Original = Annotated[bool, opt("Show the recorded text, ignoring substitutions.")]
Revision = Annotated[str, arg("A turn, as `weft help revisions` names it.", names=SESSION)]
Reason = Annotated[str | None, opt("Why.", "--reason", metavar="TEXT")]
MoveReason = Annotated[str | None, opt("Why, for the reflog.", "--reason", metavar="TEXT")]
RetryKey = Annotated[
    str | None, opt("Idempotency key: a retry with the same key has no further effect.", "--key", metavar="KEY")
]
ExpectedVersion = Annotated[
    int | None,
    opt("Only if it is still at this version; else nothing is changed.", "--expected", metavar="VERSION"),
]
Fields = Annotated[
    Mapping[str, Any] | None,
    opt("A field of the configuration, as JSON or text.", "--set", metavar="FIELD=VALUE", typed=TypedForm.FIELDS),
]
"""By path, such as `harness.maxTurns`."""
Cursor = Annotated[str | None, opt("Start after this cursor, which the page before gave.", "--after", metavar="CURSOR")]
PageLimit = Annotated[int | None, opt("At most so many.", "-n", "--limit", metavar="N", least=0, is_hidden=True)]
PageCursor = Annotated[Cursor, opt("", is_hidden=True)]
"""For a list that a person is shown whole: another caller reads it page by page."""


class ParameterGroup(Struct, frozen=True, kw_only=True):
    """Parameters that several verbs take together: each field is one of them, annotated as it would be in a
    signature."""


class Parameter(Struct, frozen=True, kw_only=True):
    """One parameter of a verb."""

    name: str
    annotation: Any
    """Its type, with its details."""
    default: Any = msgspec.NODEFAULT
    details: ParameterDetails = ParameterDetails()
    group: str | None = None
    """The parameter of the function whose field it is."""

    @property
    def is_required(self) -> bool:
        return self.default is msgspec.NODEFAULT

    @property
    def type(self) -> Any:
        """Its type without its details, and without None where that only means that nothing was given."""
        plain = _bare(self.annotation)
        if get_origin(plain) in (Union, UnionType):
            parts = [part for part in get_args(plain) if part is not NoneType]
            return parts[0] if len(parts) == 1 else plain
        return plain

    @property
    def is_flag(self) -> bool:
        return self.type is bool

    @property
    def is_repeated(self) -> bool:
        return get_origin(self.type) in (tuple, list) or self.details.typed is TypedForm.FIELDS

    @property
    def item_type(self) -> Any:
        """The type of one of its values, where it can be repeated."""
        return get_args(self.type)[0] if get_origin(self.type) in (tuple, list) else self.type

    @property
    def is_enum(self) -> bool:
        return isinstance(self.item_type, type) and issubclass(self.item_type, Enum)

    @property
    def choices(self) -> tuple[str, ...]:
        """The texts of which it is one; empty where it is none of a few."""
        kind = self.item_type
        if get_origin(kind) is Literal:
            return get_args(kind)
        return tuple(str(member.value) for member in kind) if self.is_enum else ()


def means_nothing(value: Any) -> bool:
    """Whether a value stands for none: 0 is one."""
    return value is None or value is False or value == ()


def _bare(annotation: Any) -> Any:
    return get_args(annotation)[0] if get_origin(annotation) is Annotated else annotation


def _details_of(annotation: Any) -> ParameterDetails:
    """What the parts of an annotation say together; what stands later, says more."""
    details, unsaid = ParameterDetails(), ParameterDetails()
    for part in get_args(annotation)[1:] if get_origin(annotation) is Annotated else ():
        if isinstance(part, ParameterDetails):
            values = {name: getattr(part, name) for name in ParameterDetails.__struct_fields__}
            details = replace(details, **{name: v for name, v in values.items() if v != getattr(unsaid, name)})
        elif isinstance(part, Names):
            details = replace(details, names=part)
    return details


# --- What is reached beside the ledger.


class FolderTrust(Protocol):
    """Which folders a person trusts."""

    def trust_copy(self, original: str, copy: str) -> bool: ...

    def is_trusted_for_work(self, folder: str) -> bool: ...


class Machine(Protocol):
    """What a verb reaches beside the ledger, as whoever opened it configured it: folders, containers, git. No request
    gives a parameter of this type; each surface hands in its own."""

    def directories(self) -> DirectoryDriver:
        """What keeps working directories."""

    def drivers(self) -> Drivers:
        """What acts on resources of every kind."""

    def self_running(self, changes: Iterable[ChangedPath], places: Iterable[str]) -> Mapping[str, str]:
        """Those of the changed paths of these folders that something runs by itself, each with what runs it."""

    def ignored_self_running(self, files: TurnFiles, turns: Sequence[str]) -> Mapping[str, str]:
        """What of the files that something runs by itself is not what it was before these turns, whether a folder
        ignores it or not."""

    def text_of(self, path: str) -> str | None:
        """The text of a file; None where it is not here."""

    def acting(self) -> ExecutionContext:
        """In whose name models are asked."""

    def variable(self, name: str) -> str | None:
        """A variable of the environment."""

    def rules(self, workspace: str | None) -> WorkspaceRules | None:
        """What agents are told of the folder that a message is sent from: the present one, if it is trusted, else this
        one."""

    def prices(self, file: str | None) -> PriceTable:
        """What tokens cost: as the file says, or else as is configured."""

    @property
    def zone(self) -> tzinfo:
        """Whose days reports are told by."""

    @property
    def trust(self) -> FolderTrust: ...


HERE: Any = object()
"""As the default of such a parameter: that of the ledger that the verb is called with."""


# --- Parameters that are refused.


class RequestError(InvalidInput):
    """Parameters that do not go together. In the message `{name}` stands for a parameter, and every surface puts in
    how it is spelled there."""

    code = "usage"

    def __init__(self, template: str, **values: str) -> None:
        self.template, self.values = template, values
        super().__init__(template.format_map(_AsNamed(values)))

    def spelled(self, spelling: Callable[[str], str]) -> str:
        return self.template.format_map(_Spelled(self.values, spelling))


class _AsNamed(dict[str, str]):
    def __missing__(self, name: str) -> str:
        return name


class _Spelled(dict[str, str]):
    def __init__(self, values: Mapping[str, str], spelling: Callable[[str], str]) -> None:
        super().__init__(values)
        self._spelling = spelling

    def __missing__(self, name: str) -> str:
        return self._spelling(name)


def fields_set(config: dict[str, Any], fields: Mapping[str, Any] | None) -> dict[str, Any]:
    """`harness.maxTurns` goes where it says."""
    for name, value in (fields or {}).items():
        place = config
        *above, last = name.split(".")
        for step in above:
            inner = place.setdefault(step, {})
            if not isinstance(inner, dict):
                raise RequestError("{fields} {typed}: {step} is no object", typed=repr(f"{name}={value}"), step=step)
            place = inner
        place[last] = value
    return config


# --- Tables: what is shown of a list of records, as data.


class Shown(StrEnum):
    """What kind of thing a cell holds, by which a surface chooses its look."""

    TEXT = "text"
    LABEL = "label"
    ID = "id"
    """The last letters of an id are shown."""
    TIME = "time"
    """Milliseconds; without the seconds on a terminal."""
    NUMBER = "number"


class Column(Struct, frozen=True):
    """A column of a table. Its cells are a field of the record, or what a function makes of it."""

    name: str
    cell: str | Callable[[Any], Any] = ""
    """The field; the name of the column, where it is empty."""
    shown: Shown = Shown.TEXT
    spare: int = 0
    """A narrow terminal does without these columns, 1 first."""
    absent: str = ""
    """Stands where the value is None."""

    def value(self, record: Any) -> Any:
        if callable(self.cell):
            return self.cell(record)
        return getattr(record, self.cell or self.name)


class Table(Struct, frozen=True):
    """How a list is shown: its columns, and what is told where it is empty."""

    columns: tuple[Column, ...]
    empty: str

    @property
    def header(self) -> tuple[str, ...]:
        return tuple(column.name for column in self.columns)

    @property
    def spare(self) -> tuple[str, ...]:
        """The columns that can be left out, the first of them first."""
        return tuple(c.name for c in sorted((c for c in self.columns if c.spare), key=lambda c: c.spare))


# --- Verbs.


class OpenMode(StrEnum):
    """How the ledger is opened for a verb."""

    READING = "reading"
    COUNTING = "counting"
    """To read totals of usage, which catch up first where they lag."""
    SEARCHING = "searching"
    """To look for words; where the index of them lags, it catches up first."""
    GRAPHING = "graphing"
    """To ask the agent graph, which catches up first."""
    WRITING = "writing"
    COPYING = "copying"
    """For writing where that can be, and else for reading."""
    ACTING = "acting"
    """For writing, with all that programs are invoked with: the function is asynchronous, and takes the
    `InvocationContext` in place of the ledger."""


class VerbTerms(Struct, frozen=True, kw_only=True):
    """What `verb` was told beside the function."""

    right: str | None = None
    method: str | None = None
    opens: OpenMode = OpenMode.READING
    reads_with: tuple[str, ...] = ()
    reads_without: tuple[str, ...] = ()
    takes_actor: bool = False
    table: Table | None = None
    check: Callable[..., None] | None = None
    is_slow: bool = False


class VerbGroup(Struct, frozen=True):
    """Verbs that are named by a common word: `session create`."""

    name: str
    help: str

    @property
    def summary(self) -> str:
        return self.help.strip().split("\n")[0]


class Verb(Generic[P, R]):
    """A verb of the ledger. Called with a ledger it does its work."""

    def __init__(self, function: Callable[..., R], name: str, terms: VerbTerms) -> None:
        self.function, self.name, self.terms = function, name, terms
        self.right, self.method, self.table = terms.right, terms.method, terms.table
        self.takes_actor = terms.takes_actor
        self.__doc__ = function.__doc__
        self.__name__, self.__module__ = function.__name__, function.__module__

    def __repr__(self) -> str:
        return f"<verb {self.name}>"

    @property
    def help(self) -> str:
        return inspect.cleandoc(self.function.__doc__ or "")

    @property
    def summary(self) -> str:
        return self.help.split("\n")[0]

    @cached_property
    def parameters(self) -> tuple[Parameter, ...]:
        """In the order of the signature; those of a group stand where the group does."""
        return parameters_of(self.function)

    @cached_property
    def machines(self) -> tuple[str, ...]:
        """The parameter that takes a machine, if there is one."""
        parameters = inspect.signature(self.function).parameters
        return tuple(name for name, parameter in parameters.items() if parameter.default is HERE)

    def parameter(self, name: str) -> Parameter:
        return next(parameter for parameter in self.parameters if parameter.name == name)

    def request_type(self, name: str = "", without: Collection[str] = ()) -> type[Struct]:
        """A record of the parameters, but for some: what a request of this verb holds, and what its JSON Schema is made
        of. It is called by `name`, or by the verb's."""
        fields = [
            (parameter.name, _field_type(parameter))
            if parameter.is_required
            else (parameter.name, _field_type(parameter), parameter.default)
            for parameter in self.parameters
            if parameter.name not in without
        ]
        title = "".join(word.title() for word in (name or self.__name__).split("_")) + "Request"
        return msgspec.defstruct(title, fields, kw_only=True, frozen=True, forbid_unknown_fields=True)

    def answer_type(self) -> Any:
        """What it answers, as it is annotated."""
        return get_type_hints(self.function, localns=dict(names_for_types(self.function.__module__)))["return"]

    def opening(self, given: Mapping[str, Any]) -> OpenMode:
        """How the ledger is opened for these arguments: some change nothing."""
        terms = self.terms
        is_given = {name for name, value in given.items() if not means_nothing(value)}
        if is_given.intersection(terms.reads_with):
            return OpenMode.READING
        if terms.reads_without and is_given.isdisjoint(terms.reads_without):
            return OpenMode.READING
        return terms.opens

    def check(self, arguments: Mapping[str, Any]) -> None:
        """Refuse arguments that do not go together, before anything is opened."""
        if self.terms.check is not None:
            names = inspect.signature(self.terms.check).parameters
            known = {**self.grouped(arguments), **arguments}
            self.terms.check(**{name: known[name] for name in names if name in known})

    def grouped(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments of the function, for values by parameter: those of a group become its record."""
        arguments: dict[str, Any] = {}
        groups: dict[str, dict[str, Any]] = {}
        for parameter in self.parameters:
            if parameter.name not in given:
                continue
            place = arguments if parameter.group is None else groups.setdefault(parameter.group, {})
            place[parameter.name] = given[parameter.name]
        if groups:
            annotations = {name: self.function.__annotations__[name] for name in groups}
            kinds = _resolved(annotations, self.function)
            arguments |= {name: _bare(kinds[name])(**fields) for name, fields in groups.items()}
        return arguments

    def __call__(self, ledger: Ledger, /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Raises Unsupported of a verb that takes more than a ledger."""
        if self.terms.opens is OpenMode.ACTING:
            raise Unsupported(f"{self.name} takes what programs are invoked with, and no ledger", "use `ledger.send`")
        if self.terms.check is not None:
            bound = inspect.signature(self.function).bind(ledger, *args, **kwargs)
            bound.apply_defaults()
            self.check(bound.arguments)
        for name in self.machines:
            kwargs.setdefault(name, ledger.machine)  # type: ignore[attr-defined]
        answer: Any = self.function(ledger, *args, **kwargs)
        if isinstance(answer, Listing) and isinstance(answer.items, LazyList):
            answer = replace(answer, items=answer.items.read_all())  # whoever asks may close the ledger now
        whole: R = answer
        return whole

    async def awaited(self, ledger: AwaitedLedger, /, *args: P.args, **kwargs: P.kwargs) -> R:
        """The same on a ledger of `weft.aio`, in one of its threads."""
        return await ledger.crossing.run(partial(self, ledger.sync, *args, **kwargs))


class AwaitedLedger:
    """What is needed of an asynchronous ledger."""

    sync: Ledger
    crossing: Executor


def verb(
    name: str,
    *,
    right: str | None = None,
    method: str | None = None,
    opens: OpenMode = OpenMode.READING,
    reads_with: Sequence[str] = (),
    reads_without: Sequence[str] = (),
    takes_actor: bool = False,
    table: Table | None = None,
    check: Callable[..., None] | None = None,
    is_slow: bool = False,
) -> Callable[[Callable[Concatenate[Any, P], T]], Verb[P, T]]:
    """Make a function a verb. `name` is what it is called on the command line, with the word of its group before it.

    `right` is what whoever changes something needs, as the ledger's verb requires it; `method` is that verb, where the
    ledger has one of its own: `labels.rename`. `opens` is how the ledger is opened; with one of `reads_with`, or
    without all of `reads_without`, nothing is changed, and it is opened for reading. `takes_actor`: it can be done in
    another's name. `table` shows its list. `check` refuses parameters that do not go together; it takes those that it
    names, those of a group as the group's record. `is_slow`: whoever waits for it is shown that it works."""
    terms = VerbTerms(
        right=right,
        method=method,
        opens=opens,
        reads_with=tuple(reads_with),
        reads_without=tuple(reads_without),
        takes_actor=takes_actor,
        table=table,
        check=check,
        is_slow=is_slow,
    )
    return lambda function: Verb(function, name, terms)


def parameters_of(
    function: Callable[..., Any], skipped: int = 1, *, but: Collection[str] = ()
) -> tuple[Parameter, ...]:
    """Those of a function but for the first ones, and others by name, of which nobody outside gives any."""
    signature = inspect.signature(function).parameters
    names = [name for name in list(signature)[skipped:] if name not in but and signature[name].default is not HERE]
    annotations = {name: signature[name].annotation for name in names}
    parameters: list[Parameter] = []
    for name, annotation in _resolved(annotations, function).items():
        kind = _bare(annotation)
        if isinstance(kind, type) and issubclass(kind, ParameterGroup):
            parameters += _fields(kind, name)
            continue
        default = signature[name].default
        default = msgspec.NODEFAULT if default is inspect.Parameter.empty else default
        parameters.append(Parameter(name=name, annotation=annotation, default=default, details=_details_of(annotation)))
    return tuple(parameters)


def _resolved(annotations: Mapping[str, Any], function: Callable[..., Any]) -> dict[str, Any]:
    """Annotations as they were meant: those of parameters name nothing that is loaded later."""

    class Resolved:
        __annotations__ = dict(annotations)

    return get_type_hints(Resolved, globalns=function.__globals__, include_extras=True)


def _fields(group: type[ParameterGroup], name: str) -> list[Parameter]:
    annotations = get_type_hints(group, include_extras=True)
    return [
        Parameter(
            name=field.name,
            annotation=annotations[field.name],
            default=field.default,
            details=_details_of(annotations[field.name]),
            group=name,
        )
        for field in msgspec.structs.fields(group)
    ]


def _field_type(parameter: Parameter) -> Any:
    """Its type with its help and its limits, as a schema tells them."""
    kind, details = _bare(parameter.annotation), parameter.details
    if details.least is not None or details.most is not None:
        plain = parameter.type
        kind = Annotated[plain, msgspec.Meta(ge=details.least, le=details.most)]
        kind = kind if parameter.default is not None else kind | None
    return Annotated[kind, msgspec.Meta(description=details.help)]


@lru_cache
def names_for_types(module: str) -> Mapping[str, Any]:
    """What a module imports for its types alone."""
    import ast
    import sys
    from importlib import import_module

    names: dict[str, Any] = {}
    tree = ast.parse(inspect.getsource(sys.modules[module]))
    blocks = [node for node in tree.body if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"]
    for node in (node for block in blocks for node in block.body if isinstance(node, ast.ImportFrom)):
        for alias in node.names:
            names[alias.asname or alias.name] = getattr(import_module(str(node.module)), alias.name)
    return names
