"""Commands made of verbs: their arguments, options, completion and help from the declaration; the ledger opened as it
says; the answer as JSON, as a table, or as the lines that `@shows` makes of it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, TypeVar, get_origin

import click
from msgspec import NODEFAULT, Struct

from weft.kernel.errors import InvalidInput, ProtocolBroken, TokenRefused, Unsupported
from weft.surfaces.cli.arguments import (
    Complete,
    RenamedOption,
    WrittenPath,
    as_wanted,
    complete_approvals,
    complete_labels,
    complete_messages,
    complete_nodes,
)
from weft.surfaces.cli.command_line import OWNER, Call, SharedCommand, SharedGroup
from weft.surfaces.cli.screen import UTC, LocalZone, Span, local_minute, local_time
from weft.surfaces.cli.user_files import TOKEN_VARIABLE, ensure_no_server
from weft.verbs.answers import Answer, JsonValue, Listing
from weft.verbs.declaration import (
    Column,
    Names,
    OpenMode,
    Parameter,
    RequestError,
    Shown,
    Table,
    TypedForm,
    Verb,
    VerbGroup,
    means_nothing,
    parameters_of,
)

if TYPE_CHECKING:
    from weft.client import ServedLedger
    from weft.runtime.egress.execution_context import ExecutionContext

F = TypeVar("F", bound=Callable[..., None])
T = TypeVar("T")
ShowAnswer = Callable[..., None]
ExitCode = Callable[..., int]
Widen = Callable[[Any, dict[str, Any]], dict[str, Any]]
AnyVerb = Verb[..., Any]


# --- What terminals show of answers.


class _Look(Struct, frozen=True):
    """How the answers of a verb are shown, and which exit code they end with."""

    show: ShowAnswer | None = None
    exit_code: ExitCode | None = None
    widened: Widen | None = None


_LOOKS: dict[str, _Look] = {}
_QUESTIONS: dict[str, ShowAnswer] = {}
"""By verb what asks the person at the terminal before it."""


def shows(*verbs: AnyVerb, exit_code: ExitCode | None = None, widened: Widen | None = None) -> Callable[[F], F]:
    """Show the answers of verbs to people: `def show_renamed(call, answer)`.

    Further parameters are named as what the function is to be given: a parameter of the verb, as it was typed, or
    `ledger`, which is open. Those that are neither are options of the command line alone; `opt(…, before="limit")` says
    which one they stand before. `exit_code` tells the code that an answer ends with, where it is not 0; its further
    parameters are as those of the function. `widened(ledger, arguments)` are the arguments with which the verb is
    called where the answer is shown on a terminal and more is asked for than was typed."""

    def registered(function: F) -> F:
        for verb in verbs:
            _LOOKS[verb.name] = _Look(function, exit_code, widened)
        return function

    return registered


def asks_first(verb: AnyVerb) -> Callable[[F], F]:
    """Ask the person at the terminal before a verb: `def ask(call, ledger, rev, yes)`. The function raises Declined
    where the answer is no. Its parameters are as those of functions under `shows`."""

    def registered(function: F) -> F:
        _QUESTIONS[verb.name] = function
        return function

    return registered


def show_listing(call: Call, table: Table, listing: Listing[Any]) -> None:
    """A list as a table, or what is told where it is empty; then where the next page begins."""
    if listing.items:
        rows = [[_cell(column, record, call.screen.terminal) for column in table.columns] for record in listing.items]
        numbers = [column.name for column in table.columns if column.shown is Shown.NUMBER]
        call.screen.table(rows, table.header, numbers=numbers, spare=table.spare)
    else:
        call.note(table.empty)
    call.next_page(listing.next)


def _cell(column: Column, record: Any, terminal: bool) -> Span | str:
    value = column.value(record)
    if value is None:
        return column.absent
    match column.shown:
        case Shown.LABEL:
            return Span(str(value), "label")
        case Shown.ID:
            from weft.surfaces.cli.turn_lists import short

            return Span(short(value), "id")
        case Shown.TIME:
            return (local_minute if terminal else local_time)(value)
    return str(value)


# --- Commands.


def command_of(verb: AnyVerb, kind: type[SharedCommand] = SharedCommand) -> SharedCommand:
    """The command that calls a verb."""
    command = _VerbCommand(verb)
    return kind(
        verb.name.split()[-1],
        params=[param for parameter in command.typed_parameters() for param in parameter],
        callback=click.pass_obj(command.run),
        help=verb.help,
    )


def command_named(name: str) -> SharedCommand:
    """The command of a verb by its name. What shows its answer is loaded already."""
    from weft.verbs import find_verb

    verb = find_verb(name)
    assert verb is not None, f"{name} is a verb"
    return command_of(verb)


def group_of(group: VerbGroup, *verbs: AnyVerb) -> SharedGroup:
    """The commands of one word, in this order."""
    commands = {verb.name.split()[-1]: command_of(verb) for verb in verbs}
    return SharedGroup(group.name, commands, help=inspect.cleandoc(group.help))


def show_as(call: Call, verb: AnyVerb, answer: Any, **values: Any) -> None:
    """An answer as the command of a verb gives it, for another command. `values` are what the function that shows it
    asks for."""
    _VerbCommand(verb).respond(call, answer, values)


class _VerbCommand:
    """A verb as it is typed."""

    def __init__(self, verb: AnyVerb) -> None:
        self._verb, self._look = verb, _LOOKS.get(verb.name, _Look())
        self._question = _QUESTIONS.get(verb.name)
        self._parameters = [parameter for parameter in verb.parameters if not parameter.details.is_untyped]
        own = {parameter.name for parameter in verb.parameters} | {"ledger", *verb.machines}
        asking = ((self._look.show, 2), (self._look.exit_code, 1), (self._question, 1))
        functions = [(function, skipped) for function, skipped in asking if function is not None]
        shown = [
            parameter for function, skipped in functions for parameter in parameters_of(function, skipped, but=own)
        ]
        self._shown = list({parameter.name: parameter for parameter in shown}.values())

    def typed_parameters(self) -> Iterator[list[click.Parameter]]:
        """What is typed, in the order of the help page."""
        before: dict[str, list[Parameter]] = {}
        for parameter in self._shown:
            before.setdefault(parameter.details.before, []).append(parameter)
        actor: list[click.Parameter] = []
        if self._verb.takes_actor:
            from weft.surfaces.cli.programs.program_call import as_actor

            as_actor(actor_holder := _holder())
            actor = actor_holder.__click_params__  # type: ignore[attr-defined]
        for parameter in self._parameters:
            for shown in before.pop(parameter.name, ()):
                yield _typed(shown)
            if parameter.details.spellings == ("--key",):
                yield actor
                actor = []
            yield _typed(parameter)
        for shown in before.get("", ()):
            yield _typed(shown)
        yield actor

    def run(self, call: Call, /, **typed: Any) -> int | None:
        verb = self._verb
        actor = typed.pop("actor", call.actor)
        try:
            if call.server is not None:
                ensure_served(call, verb, actor)
                return self._ask_server(call, self._arguments(typed), typed)
            arguments = self._arguments(typed)
            with _opened(call, verb, arguments, actor) as ledger:
                own = {parameter.name: typed[parameter.name] for parameter in self._shown}
                values = {**arguments, **own, "ledger": ledger, **self._machines(call, ledger)}
                completed = self._completed(call, ledger, arguments)
                if completed is None:
                    return None
                if self._question is not None:
                    self._question(call, **_wanted(self._question, 1, {**values, **completed}))
                answer = self._called(call, ledger, completed, values, actor)
                self.respond(call, answer, values)
        except RequestError as error:
            raise click.UsageError(error.spelled(self._spelling)) from error
        exit_code = self._look.exit_code
        return None if exit_code is None else exit_code(answer, **_wanted(exit_code, 1, values))

    def _ask_server(self, call: Call, arguments: dict[str, Any], typed: Mapping[str, Any]) -> int | None:
        """The same through a server: its JSON as it comes, or the record, which is shown as that of an open ledger."""
        verb, exit_code, server = self._verb, self._look.exit_code, ServedSessions(call)
        values = {**arguments, **{parameter.name: typed[parameter.name] for parameter in self._shown}, "ledger": server}
        completed = self._completed(call, server, arguments)
        if completed is None:
            return None
        if self._question is not None:
            self._question(call, **_wanted(self._question, 1, {**values, **completed}))
        latest = [parameter for parameter in verb.parameters if parameter.details.is_latest]
        if any(completed[one.name] is None and not completed.get(one.details.not_latest_with) for one in latest):
            answer = verb.function(server, **verb.grouped(completed))  # there is no session: that takes no ledger
        elif exit_code is None and (call.json or self._needs_ledger):
            self._write_form(call, server.ask(lambda ledger: ledger.json(verb, completed)))
            call.note("as JSON: what people are shown of this needs the ledger itself")
            return None
        else:
            answer = server.ask(lambda ledger: ledger.record(verb, completed))
        if isinstance(answer, dict):
            raise ProtocolBroken("the server's version tells this otherwise", "ask it with --json")
        self.respond(call, answer, values)
        return None if exit_code is None else exit_code(answer, **_wanted(exit_code, 1, values))

    @property
    def _needs_ledger(self) -> bool:
        """Whether more of the ledger is read to show the answer than a server is asked for."""
        show = self._look.show
        return self._verb.name not in SHOWN_BY_LISTING and show is not None and "ledger" in _parameter_names(show)

    def _write_form(self, call: Call, form: Any) -> None:
        """What a server answered, as `respond` writes it."""
        from weft.surfaces.server.route_table import alternatives

        if form is None:
            return
        kinds = [get_origin(kind) or kind for kind in alternatives(self._verb.answer_type())]
        listings = [kind for kind in kinds if isinstance(kind, type) and issubclass(kind, Listing)]
        if not listings or not isinstance(form, dict) or "items" not in form:
            call.document(JsonValue(form))
        elif listings[0].IS_ONE_DOCUMENT:
            call.document(JsonValue(form["items"]))
        else:
            call.documents(map(JsonValue, form["items"]))
            call.next_page(form["next"])

    def _arguments(self, typed: Mapping[str, Any]) -> dict[str, Any]:
        """What was typed as the values that the verb takes, once it is clear that they go together."""
        given: dict[str, Any] = {}
        files: dict[str, str] = {}
        for parameter in self._parameters:
            name, value = parameter.name, typed[parameter.name]
            given[name] = None if value is None else _value(parameter, value)
            if (file := typed.get(_file_option(parameter))) is not None:
                files[name] = file
        own = {parameter.name: typed[parameter.name] for parameter in self._shown}
        texts = {name: files.get(name) if value is None else value for name, value in given.items()}
        self._verb.check({**own, **texts})
        for parameter in self._parameters:
            name, details = parameter.name, parameter.details
            if name in files:
                if given[name] is not None:
                    spelled = f"{max(_spellings(parameter), key=len)} or {_file_spelling(parameter)}"
                    raise click.UsageError(f"give the {details.what or name} once: {spelled}")
                given[name] = _file_text(parameter, files[name])
            elif details.is_piped_without and given[name] is None and not given.get(details.is_piped_without):
                given[name] = _file_text(parameter, None)
            elif details.typed is TypedForm.FILE and given[name] is not None:
                given[name] = _file_text(parameter, given[name])
            elif details.typed is TypedForm.TEXT and given[name] == "-":
                given[name] = _file_text(parameter, "-")
        return given

    def _machines(self, call: Call, ledger: Any) -> dict[str, Any]:
        if not self._verb.machines:
            return {}
        from weft.surfaces.cli.work.sandbox_access import LedgerMachine

        def acting() -> ExecutionContext:
            from weft.programs import Programs
            from weft.surfaces.cli.programs.program_call import acting_for

            return acting_for(call, Programs(ledger), call.actor)

        machine = LedgerMachine(ledger, call.trust_store, acting, UTC if call.json else LocalZone())
        return dict.fromkeys(self._verb.machines, machine)

    def _completed(self, call: Call, ledger: Any, arguments: dict[str, Any]) -> dict[str, Any] | None:
        """The arguments with what is meant where nobody said it. None: there is nothing to show, and a note says so."""
        from weft.surfaces.cli.turn_lists import named_or_latest, place_in_latest, require_named_or_latest

        completed, is_open = dict(arguments), self._verb.opening(arguments) is not OpenMode.ACTING
        for parameter in self._parameters:
            value, details = arguments[parameter.name], parameter.details
            if details.is_latest and is_open and arguments.get(details.not_latest_with) is None:
                with_turn = details.has_turn and not arguments.get(details.may_lack_turn_with)
                is_required = details.is_needed or (details.is_needed_as_json and call.json)
                choose = require_named_or_latest if is_required else named_or_latest
                chosen = choose(call, ledger, value, with_turn=with_turn)
                if chosen is None and details.is_needed_as_json:
                    return None
                completed[parameter.name] = value if details.stays_unsaid and value is None else chosen
            elif details.in_latest and value is not None:
                completed[parameter.name] = place_in_latest(call, ledger, value)
            elif details.typed is TypedForm.PLACE and value is not None:
                completed[parameter.name] = as_wanted(value)
            elif value is None and details.on_terminal is not None and call.screen.terminal and not call.json:
                completed[parameter.name] = details.on_terminal
        return completed

    def _called(self, call: Call, ledger: Any, arguments: dict[str, Any], values: Mapping[str, Any], actor: str) -> Any:
        verb = self._verb
        if verb.opening(arguments) is OpenMode.ACTING:
            return _act(call, verb, verb.grouped(arguments), actor, stream=values.get("stream", False))
        from weft.surfaces.cli.progress import progress

        if self._look.widened is not None and call.screen.terminal and not call.json:
            arguments = self._look.widened(ledger, arguments)
        with progress(call, verb.name, by_itself=True) if verb.terms.is_slow else nullcontext():
            machines = {name: values[name] for name in verb.machines}
            return verb.function(ledger, **verb.grouped(arguments), **machines)

    def respond(self, call: Call, answer: Any, values: Mapping[str, Any]) -> None:
        if call.json and not (isinstance(answer, Answer) and answer.is_silent):
            if isinstance(answer, Listing) and not answer.IS_ONE_DOCUMENT:
                call.documents(answer.items)
                if answer.left_out:
                    from weft.surfaces.cli.turn_lists import note_left_out

                    note_left_out(call, answer.left_out, "looked at")
                call.next_page(answer.next)
            else:
                call.document(answer)
        elif call.json:
            return
        elif self._look.show is not None:
            self._look.show(call, answer, **_wanted(self._look.show, 2, values))
        else:
            assert isinstance(answer, Listing), f"{self._verb.name} has what shows its answer"
            assert self._verb.table is not None, f"{self._verb.name} has a table"
            show_listing(call, self._verb.table, answer)

    def _spelling(self, name: str) -> str:
        parameters = (*self._verb.parameters, *self._shown)
        parameter = next(parameter for parameter in parameters if parameter.name == name)
        return max(_spellings(parameter), key=len) if parameter.details.is_option else name.upper()


def _wanted(function: Callable[..., Any], skipped: int, values: Mapping[str, Any]) -> dict[str, Any]:
    """What a function of the command line asks for behind its first parameters."""
    return {name: values[name] for name in _parameter_names(function)[skipped:]}


def _parameter_names(function: Callable[..., Any]) -> list[str]:
    return list(inspect.signature(function).parameters)


def _holder() -> Callable[..., Any]:
    def nothing() -> None: ...

    return nothing


@contextmanager
def _opened(call: Call, verb: AnyVerb, arguments: Mapping[str, Any], actor: str) -> Iterator[Any]:
    """The ledger as the verb wants it, in the name of whoever acts."""
    opening = verb.opening(arguments)
    if opening is OpenMode.ACTING:  # is opened with all that it acts with
        yield None
        return
    opens = {
        OpenMode.READING: call.reading,
        OpenMode.COUNTING: call.counting,
        OpenMode.SEARCHING: call.searching,
        OpenMode.GRAPHING: call.graphing,
        OpenMode.WRITING: call.writing,
        OpenMode.COPYING: call.copying,
    }
    with opens[opening]() as ledger:
        yield call.in_name_of(actor, ledger)


def _act(call: Call, verb: AnyVerb, arguments: Mapping[str, Any], actor: str, *, stream: bool) -> Any:
    """Call a verb that programs are invoked by; with `stream` a model's answer is shown as it comes."""
    from weft.surfaces.cli.programs.program_call import ReplyStream, with_invocations

    shown = ReplyStream(call) if stream else None
    try:
        return with_invocations(
            call,
            actor,
            lambda acting: verb.function(acting, **arguments),
            on_token=None if shown is None else shown.token,
        )
    finally:
        if shown is not None:
            shown.end()


# --- A ledger that a server answers for.

SHOWN_BY_LISTING = frozenset({"reflog", "program list"})
"""Verbs whose answers are shown with the labels of sessions, and with nothing else of the ledger."""


class ServedSessions:
    """What commands ask of an open ledger beside a verb, asked of a server."""

    def __init__(self, call: Call) -> None:
        self._call = call

    def ask(self, question: Callable[[ServedLedger], Coroutine[Any, Any, T]]) -> T:
        return ask_server(self._call, question)

    def listing(self) -> ServedSessions:
        return self

    def sessions(
        self, wanted: Any = None, *, limit: int | None = None, after: str | None = None, every: bool = False
    ) -> Any:
        """A page of them, as of a listing; with `every` all that there are."""
        from weft.ledger.read.session_list import SessionList
        from weft.verbs import session_verbs

        arguments = {"limit": limit, "after": after, "every": every}
        page = self.ask(lambda ledger: ledger.record(session_verbs.sessions, arguments))
        listed = [entry.listed for entry in page.items]
        if every:
            return [one.session for one in listed]
        return SessionList(
            sessions=listed, hidden=page.hidden, further=page.further, next=page.next, empty=page.without_turn
        )

    def __getattr__(self, name: str) -> Any:
        raise Unsupported("what is shown of this on a terminal needs the ledger itself", "ask the server with --json")

    def short_labels(self) -> dict[str, str]:
        """None: they are shown as they are, for to shorten them takes all of them."""
        return {}


def ask_server(call: Call, question: Callable[[ServedLedger], Coroutine[Any, Any, T]]) -> T:
    """Ask the server that the call names, with the token that this process was given."""
    import asyncio

    try:
        from weft.client import connect
    except ImportError as error:
        hint = "install it with `pip install 'weft[server]'`"
        raise Unsupported(f"asking a server needs the package {error.name}", hint) from None
    assert call.server is not None
    if not call.token_text:
        raise TokenRefused(
            f"{call.server} asks for a token", f"set {TOKEN_VARIABLE}, or name a file that holds it with --token-file"
        )
    ledger = connect(call.server, token=call.token_text)

    async def ask() -> T:
        async with ledger:
            return await question(ledger)

    return asyncio.run(ask())


def ensure_served(call: Call, verb: AnyVerb, actor: str) -> None:
    """Refuse a verb without a route, and another name than the token's."""
    from weft.surfaces.server.route_table import ROUTES

    assert call.server is not None
    if verb.__name__ not in {route.verb_name for route in ROUTES}:
        ensure_no_server(call.server)
    if actor != OWNER:
        raise InvalidInput("a server takes who acts from the token alone", "leave --as out")


# --- Parameters as click has them.


def _spellings(parameter: Parameter) -> tuple[str, ...]:
    return parameter.details.spellings or (f"--{parameter.name.replace('_', '-')}",)


def _file_spelling(parameter: Parameter) -> str:
    return parameter.details.file_spelling or f"{max(_spellings(parameter), key=len)}-from"


def _file_option(parameter: Parameter) -> str:
    return f"{parameter.name}_from"


def _typed(parameter: Parameter) -> list[click.Parameter]:
    """A parameter as it is typed: an argument or an option, and one for a file beside it."""
    click_settings: dict[str, Any] = {"metavar": parameter.details.metavar, "type": _click_type(parameter)}
    if parameter.details.names is not None:
        click_settings["shell_complete"] = _completion(parameter.details.names)
    has_default = parameter.default is not NODEFAULT and not means_nothing(parameter.default)
    if has_default:
        click_settings["default"] = parameter.default
    if not parameter.details.is_option:
        nargs = -1 if parameter.is_repeated else 1
        return [click.Argument([parameter.name], required=parameter.is_required, nargs=nargs, **click_settings)]
    if parameter.is_flag:
        click_settings = {"is_flag": True}
        if has_default or parameter.default is None:
            click_settings["default"] = parameter.default
    kind = RenamedOption if parameter.details.old else click.Option
    if parameter.details.old:
        click_settings["old"] = parameter.details.old
    option = kind(
        [*_spellings(parameter), parameter.name],
        help=parameter.details.help,
        required=parameter.is_required,
        multiple=parameter.is_repeated,
        hidden=parameter.details.is_hidden,
        **click_settings,
    )
    if not parameter.details.from_file:
        return [option]
    file = [_file_spelling(parameter), _file_option(parameter)]
    return [option, click.Option(file, metavar="FILE", type=click.Path(), help=parameter.details.from_file)]


def _click_type(parameter: Parameter) -> Any:
    if parameter.choices:
        return click.Choice(parameter.choices)
    if parameter.details.is_path:
        return WrittenPath()
    if parameter.details.typed is TypedForm.FILE:
        return click.Path()
    kind = parameter.item_type
    least, most = parameter.details.least, parameter.details.most
    if kind is int:
        return int if least is None and most is None else click.IntRange(min=least, max=most)
    if kind is float:
        return float if least is None and most is None else click.FloatRange(min=least, max=most)
    return None


def _completion(names: Names) -> Complete:
    if names.what == "session":
        return complete_labels
    if names.what == "room":
        return complete_rooms(*names.of)
    if names.what == "participant":
        return complete_participants(*names.of)
    if names.what == "approval":
        return complete_approvals
    if names.what == "message":
        return complete_messages(*names.of)
    if names.what == "node":
        return complete_nodes
    if names.what == "word":
        return lambda _, __, incomplete: [word for word in names.of if word.startswith(incomplete)]

    def complete(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
        from weft.surfaces.cli.programs.program_call import complete_programs

        return complete_programs(*names.of)(ctx, param, incomplete)

    return complete


# --- Values as they are typed.


MOST_ROOMS = 1000
ROOM_ID_LETTERS = 8


def complete_rooms(*statuses: str) -> Complete:
    """The titles of the rooms of whoever acts; of one without a title the end of its id."""

    def complete(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
        from weft.kernel.errors import WeftError

        try:
            with Call.completing(ctx).reading() as ledger:
                rooms = [room for status in statuses for room in ledger.rooms.list(status=status, limit=MOST_ROOMS)]
        except (WeftError, OSError):
            return []
        names = [room.title or room.id[-ROOM_ID_LETTERS:] for room in rooms]
        return [name for name in names if name.startswith(incomplete)]

    return complete


def complete_participants(*kinds: str) -> Complete:
    """The names of those who take part in the room that the line names."""

    def complete(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
        from weft.kernel.errors import WeftError

        try:
            with Call.completing(ctx).reading() as ledger:
                participants = ledger.rooms.participants(str(ctx.params.get("room")))
        except (WeftError, OSError):
            return []
        names = [
            participant.name
            for participant in participants
            if participant.kind in kinds and participant.system_kind is None
        ]
        return [name for name in names if name.startswith(incomplete)]

    return complete


def _value(parameter: Parameter, typed: Any) -> Any:
    """What was typed, as far as it says everything by itself."""
    if parameter.details.typed is TypedForm.FIELDS:
        from weft.surfaces.cli.programs.program_call import typed_fields

        return typed_fields(typed)
    if parameter.details.typed is TypedForm.JSON:
        from weft.surfaces.cli.programs.program_call import json_of

        what = parameter.details.what or parameter.name
        return tuple(json_of(text, what) for text in typed) if parameter.is_repeated else json_of(typed, what)
    return parameter.item_type(typed) if parameter.is_enum and not parameter.is_repeated else typed


def _file_text(parameter: Parameter, file: str | None) -> str:
    from weft.kernel.contents import decode_utf8
    from weft.surfaces.cli.arguments import read_input

    text = decode_utf8(read_input(file, parameter.details.missing), parameter.details.what or parameter.name)
    return text if parameter.details.typed is TypedForm.TEXT else text.rstrip("\n")
