"""What the commands about programs have in common: who acts, fields of a configuration, how
programs are invoked and how they are shown. An agent's work as lines; a reply that broke off and
is asked for again, without what was shown already; the configuration of a turn: the options of a
message, and what is shown of the layers.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeVar

import click

from weft.kernel.typed_names import shell_word
from weft.surfaces.cli.arguments import complete_labels, read_named_text
from weft.surfaces.cli.command_line import OWNER, Call, SharedGroup
from weft.surfaces.cli.progress import abbreviated, counted, dollar_text
from weft.surfaces.cli.screen import Line, Span
from weft.surfaces.plain_text import TAB, cut, safe
from weft.verbs.answers import ConfiguredLimits, ConfiguredTurn, ConfiguredValue

if TYPE_CHECKING:
    from weft.kernel.errors import WeftError
    from weft.ledger.api import Ledger
    from weft.programs import Program, Programs
    from weft.runtime.agent_work import Move, WorkFacts, WorkProgress
    from weft.runtime.assembly.configuration_layers import EffectiveConfig, MessageOverrides
    from weft.runtime.assembly.turn_configuration import OtherModels, TurnConfiguration
    from weft.runtime.egress.execution_context import ExecutionContext
    from weft.runtime.inference.model_requests import ModelSettings
    from weft.runtime.invoke.invocation import Invocation, InvocationContext, InvocationResult
    from weft.runtime.replies import ReplyToken
    from weft.runtime.tool.toolsets import LimitingLayer


# --- What the commands about programs have in common: who acts, fields of a configuration, how programs are invoked
# and how they are shown.

KEY = "Idempotency key: a retry with the same key has no further effect."
F = TypeVar("F", bound=Callable[..., Any])
STATE_STYLES = {
    "published": "good", "active": "good", "completed": "good", "available": "good", "draft": "dim", "archived": "dim",
    "offline": "dim", "deprecated": "warn", "blocked": "warn", "paused": "warn", "failed": "bad", "error": "bad",
}  # fmt: skip


def complete_programs(*kinds: str) -> Callable[[click.Context, click.Parameter, str], list[str]]:
    """The names of programs of these kinds."""

    def complete(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
        from weft.kernel.errors import WeftError
        from weft.programs import Programs

        try:
            with Call.completing(ctx).reading() as ledger:
                names = [program.name for program in Programs(ledger).all() if not kinds or program.kind in kinds]
        except (WeftError, OSError):
            return []
        return [name for name in names if name.startswith(incomplete)]

    return complete


def named(name: str, *kinds: str, **details: Any) -> Callable[[F], F]:
    """An argument that names a program."""
    return click.argument(name, shell_complete=complete_programs(*kinds), **details)


def session_argument(*, required: bool = True) -> Callable[[F], F]:
    return click.argument("session", required=required, shell_complete=complete_labels)


def acting(function: F) -> F:
    """Options of every command that changes programs."""
    for option in (
        click.option("--key", "retry_key", metavar="KEY", help=KEY),
        as_actor,
    ):
        function = option(function)
    return function


def as_actor(function: F) -> F:
    """Who acts; without it whoever `weft --as NAME` names."""

    def actor(ctx: click.Context, parameter: click.Parameter, name: str | None) -> str:
        call = ctx.ensure_object(Call)
        call.ledger = ctx.params.get("ledger") or call.ledger  # of a server: the token is for that one to judge
        other = call.actor
        if name is not None and call.token_text:
            raise click.UsageError("--as and the token both say who acts: leave one out")
        if name is not None and other not in (OWNER, name):
            raise click.UsageError(f"--as names {other} and {name}: name one")
        return name or other

    return click.option("--as", "actor", metavar="NAME", callback=actor, help="Act as this person or agent.")(function)


def message_text(text: str | None) -> str | None:
    """A message from the command line, or with - from standard input."""
    if text != "-":
        return text
    from weft.kernel.contents import decode_utf8
    from weft.surfaces.cli.arguments import read_input

    return decode_utf8(read_input(None, "nothing was said: pipe the message in"), "the message")


def expecting(function: F) -> F:
    return click.option(
        "--expected", metavar="VERSION", type=int, help="Only if it is still at this version; else nothing is changed."
    )(function)


def set_fields(function: F) -> F:
    """Fields of a configuration that have no option of their own."""
    return click.option(
        "--set", "fields", metavar="FIELD=VALUE", multiple=True, help="A field of the configuration, as JSON or text."
    )(function)


def given(**fields: Any) -> dict[str, Any]:
    """Those that were given."""
    return {name: value for name, value in fields.items() if value is not None and value not in ((), [])}


def with_fields(config: dict[str, Any], fields: Iterable[str]) -> dict[str, Any]:
    """`harness.maxTurns=10` goes where it says."""
    from weft.verbs.declaration import RequestError, fields_set

    try:
        return fields_set(config, typed_fields(fields))
    except RequestError as error:
        raise click.UsageError(error.spelled(lambda _: "--set")) from error


def typed_fields(fields: Iterable[str]) -> dict[str, Any]:
    """The values by what stands before each `=`."""
    values: dict[str, Any] = {}
    for field in fields:
        name, equals, value = field.partition("=")
        if not equals or not name:
            raise click.UsageError(f"--set {field!r} is not FIELD=VALUE")
        values[name] = json_or_text(value)
    return values


def json_or_text(value: str) -> Any:
    import orjson

    try:
        return orjson.loads(value)
    except orjson.JSONDecodeError:
        return value


def json_of(value: str, what: str) -> Any:
    """A JSON value, or with @ the file that holds it."""
    import orjson

    from weft.kernel.errors import InvalidJson

    text = read_named_text(value[1:]) if value.startswith("@") else value
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise InvalidJson(f"{what}: {error}") from error


@contextmanager
def changing(call: Call, actor: str) -> Iterator[Programs]:
    from weft.programs import Programs

    with call.writing() as ledger:
        yield Programs(call.in_name_of(actor, ledger))


@contextmanager
def looking(call: Call) -> Iterator[Programs]:
    from weft.programs import Programs

    with call.reading() as ledger:
        yield Programs(ledger)


def answer(call: Call, program: Program, *more: Line) -> None:
    """One program, after a command that changed it."""
    call.answer(program, line_of(program), *more)


def show_program(call: Call, program: Program) -> None:
    """One program with its configuration."""
    from weft.surfaces.wire.forms import document

    lines: list[Line] = [line_of(program), *pending_lines(program)]
    lines += [[Span("tags ", "dim"), " ".join(program.tags)]] if program.tags else []
    config: list[Line] = [[line] for line in document(program.shape()["config"], indent=True).split("\n")]
    call.answer(program, *lines, *config)


def add_show(programs: SharedGroup, kind: str, article: str = "a") -> None:
    """The verb `show` of the commands of one kind."""

    def show(call: Call, name: str) -> None:
        with looking(call) as opened:
            program = opened.get(name, kind)
        show_program(call, program)

    whom = {"human": "person", "info": "piece of information", "code": "code program"}.get(kind, kind)
    show.__doc__ = f"Show {article} {whom}, or with NAME:VERSION an earlier configuration of it."
    programs.verb("show")(named("name", kind)(show))


def line_of(program: Program) -> Line:
    if program.state == "error":
        return [f"{program.kind} ", Span(program.name, "label"), " stands in an ", Span("error", "bad")]
    state = Span(program.state, STATE_STYLES.get(program.state, ""))
    version = f" (version {program.version})" if program.version > 1 else ""
    return [f"{program.kind} ", Span(program.name, "label"), " is ", state, version]


def pending_lines(program: Program) -> list[Line]:
    """What another ledger says of it and nobody here has taken over, and what was set by somebody who may not."""
    from weft.programs.program_writer import refusal

    unvouched: list[Line] = [
        [Span(str(refusal(program.kind, program.name, name)), "warn"), Span(": it is not used", "dim")]
        for name in program.unvouched
    ]
    if program.foreign:
        words = f"version {program.version} is what another ledger says, and does nothing here"
    elif program.pending_version is not None:
        words = f"version {program.pending_version} is what another ledger says, and is not taken over"
    else:
        return unvouched
    return [*unvouched, [Span(words, "warn"), Span(f": `weft pending show {shell_word(program.name)}`", "dim")]]


def show_list(
    call: Call,
    programs: list[Program],
    what: str,
    hint: str,
    *,
    kinds: bool = False,
    labels: Mapping[str, str] = MappingProxyType({}),
) -> None:
    """`labels`: what to type for sessions, by their label."""
    if call.json:
        call.documents(programs)
        return
    if not programs:
        call.note(f"there is no {what}; {hint}")
        return
    rows: list[list[Span | str]] = [
        [
            *([program.kind] if kinds else []),
            Span(labels.get(program.name, program.name) if program.kind == "session" else program.name, "label"),
            Span("not taken over", "warn")
            if program.foreign
            else Span(program.state, STATE_STYLES.get(program.state, "")),
            str(program.version),
            " ".join(program.tags),
            summary(program),
        ]
        for program in programs
    ]
    call.screen.table(rows, [*(["type"] if kinds else []), "name", "state", "version", "tags", "what"], spare=["tags"])


def summary(program: Program) -> str:
    """What a program is, in a few words."""
    config = program.config if isinstance(program.config, dict) else {}
    identity = config.get("identity")
    inner = identity if isinstance(identity, dict) else {}
    for value in (config.get("title"), config.get("modelId"), config.get("providerType"), inner.get("description"),
                  inner.get("name"), inner.get("soul"), config.get("description"), config.get("infoType"),
                  config.get("name"), config.get("defaultModel"), config.get("language")):  # fmt: skip
        if isinstance(value, str):
            return " ".join(value.split())
    return ""


T = TypeVar("T")


def invoked(call: Call, actor: str, name: str, invocation: Invocation, *, stream: bool = False) -> InvocationResult:
    """Invoke a program, and with `stream` show a model's answer as it comes."""
    from weft.runtime.invoke.handlers import invoke

    shown = ReplyStream(call) if stream else None
    try:
        return with_invocations(
            call,
            actor,
            lambda shop: invoke(shop, name, invocation),
            on_token=None if shown is None else shown.token,
        )
    finally:
        if shown is not None:
            shown.end()


def with_invocations(
    call: Call,
    actor: str,
    work: Callable[[InvocationContext], Awaitable[T]],
    *,
    on_token: Callable[[ReplyToken], None] | None = None,
    has_default_model: bool = False,
) -> T:
    """Run a coroutine where programs can be invoked. With `has_default_model` a session that no model is configured for
    has the one that `weft chat` would choose."""
    import asyncio

    return asyncio.run(_with_invocations(call, actor, work, on_token, has_default_model=has_default_model))


async def _with_invocations(
    call: Call,
    actor: str,
    work: Callable[[InvocationContext], Awaitable[T]],
    on_token: Callable[[ReplyToken], None] | None,
    *,
    has_default_model: bool,
) -> T:
    from weft.aio.crossing import Pool
    from weft.aio.ledger import AsyncLedger
    from weft.programs import Programs
    from weft.runtime.inference.inference import Inference
    from weft.runtime.inference.local_models import model_folder
    from weft.runtime.invoke.invocation import InvocationContext
    from weft.surfaces.acting_ledger import ToolAccess
    from weft.surfaces.cli.work.approvals import ApprovalPrompts
    from weft.surfaces.cli.work.sandbox_access import command_runner, trusted_rules

    ledger, pool = call.writing(), Pool()
    try:
        acting = call.in_name_of(actor, ledger)
        programs = Programs(acting)
        on_retry, models = (lambda *failed: note_retry(call, *failed)), model_folder(os.environ.get)
        async with Inference(on_retry=on_retry, on_note=call.note, models=models) as inference:
            mirror = AsyncLedger(ledger, pool)
            person = acting_person(call, programs)
            runner = command_runner(ledger)
            people = InvocationContext(
                mirror, Programs(ledger), pool, inference, variable=os.environ.get, runner=runner, context=person
            )
            prompts = ApprovalPrompts(call, ledger, lambda: people)
            tools = ToolAccess(acting, pool, programs, lambda: acting_person(call, programs), prompts.asked)
            shop = InvocationContext(
                AsyncLedger(acting, pool),
                programs,
                pool,
                inference,
                variable=os.environ.get,
                runner=runner,
                context=acting_for(call, programs, actor),
                on_token=on_token,
                show=lambda name, text: _note_notice(call, name, text),
                other_models=_other_models(programs) if has_default_model else None,
                rules_of=trusted_rules(),
                equip=tools,
                on_progress=None if call.json else ProgressNotes(call),
            )
            try:
                with prompts.typed():
                    return await work(shop)
            finally:
                await prompts.aclose()
                await tools.aclose()
    finally:
        await pool.close(ledger.close)


def _other_models(programs: Programs) -> OtherModels:
    from weft.surfaces.cli.chat.models import other_models

    return other_models(programs, os.environ.get, is_embedded_default=True)


def note_retry(call: Call, error: WeftError, model: str, wait: float) -> None:
    """A provider that fails can take minutes: whoever waits is told why."""
    call.note(retry_words(error, model, wait))


def retry_words(error: WeftError, model: str, wait: float) -> str:
    return f"{error}; {model} is asked {f'again in {wait:.1f} s' if wait else 'next'}"


def acting_for(call: Call, programs: Programs, actor: str) -> ExecutionContext:
    """The person at the terminal, and on their behalf whoever `--as` names; or all whom the token names."""
    from weft.ledger.model import DEFAULT_AGENT
    from weft.runtime.assembly.turn_configuration import actor_context

    person = acting_person(call, programs)
    if actor == DEFAULT_AGENT or call.token is not None:
        return person
    return actor_context(person, programs.get(actor, "human", "agent"))


def acting_person(call: Call, programs: Programs) -> ExecutionContext:
    """The person at the terminal; or what a token says, with what the present permissions of its agents leave."""
    from weft.kernel.authority import PrincipalKind
    from weft.runtime.assembly.turn_configuration import limited_by
    from weft.surfaces.cli.credentials import person_acting

    if call.token is None:
        return person_acting()
    context = call.token.context
    for principal in context.chain:
        if principal.kind is PrincipalKind.AGENT:
            context = limited_by(context, programs.get(principal.id, "agent"))
    return context


def _note_notice(call: Call, name: str, text: str) -> None:
    """What a person is told stands beside the answer."""
    call.note(Span(f"to {name}: ", "label"), text)


class ReplyStream:
    """A reply as it comes, on standard output; under `--json` the whole answer comes at the end instead."""

    def __init__(self, call: Call) -> None:
        self._call, self._text = call, RepeatedText()

    def token(self, token: ReplyToken) -> None:
        if self._call.json or token.kind != "text":
            return
        has_begun = bool(self._text.shown)
        is_other, new = self._text.add(token)
        if is_other and has_begun:
            self._begin_anew()
        self._echo(new)

    @property
    def has_begun(self) -> bool:
        return bool(self._text.shown)

    def end(self) -> None:
        if other := self._text.end():
            self._begin_anew()
            self._echo(other)
        if self._text.shown:
            click.echo()

    def _begin_anew(self) -> None:
        click.echo()
        self._call.note("the reply broke off, and another one came")

    def _echo(self, text: str) -> None:
        lines = text.replace("\t", TAB).split("\n")
        click.echo("\n".join(map(safe, lines)), nl=False)


def answer_invoked(call: Call, invoked_program: InvocationResult, *, shown: bool = False) -> None:
    """The outcome of an invocation: text as it was said, anything else as JSON."""
    call.answer(invoked_program, *([] if shown else result_lines(invoked_program.result)))


def result_lines(result: Any) -> list[Line]:
    from weft.surfaces.wire.forms import document

    if isinstance(result, dict) and isinstance(result.get("text"), str):
        result = result["text"]
    text = result if isinstance(result, str) else document(result, indent=True)
    return [[line] for line in text.split("\n")]


# --- An agent's work on a task, as lines for people: what it does, what it has spent, which criteria hold.

DOING_CHARACTERS = 200
PLAN_MARKS = {"done": "x", "in_progress": ">", "dropped": "-"}


class ProgressNotes:
    """Notes each step of work on standard error. It is an `OnProgress`."""

    def __init__(self, call: Call) -> None:
        self._call, self._last = call, ""

    def __call__(self, facts: WorkFacts, move: Move) -> None:
        from weft.kernel.clock import SystemClock
        from weft.runtime.agent_work import GiveUpWork, Rest, StandStill, doing_words, progress_of

        is_plain = not facts.criteria and not facts.rounds[1:]  # its answer says all that there is to say
        if isinstance(move, GiveUpWork | StandStill) or (is_plain and not isinstance(move, Rest)):
            return
        progress = progress_of(facts, SystemClock().now_ms())
        words = cut(doing_words(facts, move, is_served=True), DOING_CHARACTERS)
        line = f"{words}; {spent_words(progress)}{_held_words(progress)}"
        if line != self._last:
            self._last = line
            self._call.note(Span(facts.agent.name, "label"), f" {line}")


def spent_words(progress: WorkProgress) -> str:
    """`turn 2 of 50, 1.2k tokens, $0.0100 of $1.00, 12 s`."""
    words = [f"{counted(progress.turns, 'turn')} of {progress.max_turns}"]
    limit = "" if progress.max_tokens is None else f" of {abbreviated(progress.max_tokens)}"
    words.append(f"{abbreviated(progress.tokens) or '0'}{limit} tokens")
    cost = "cost unknown" if progress.cost is None else dollar_text(progress.cost)
    words.append(cost if progress.max_cost is None else f"{cost} of {dollar_text(progress.max_cost)}")
    words.append(f"{progress.seconds} s" + ("" if progress.max_seconds is None else f" of {progress.max_seconds} s"))
    return ", ".join(words)


def _held_words(progress: WorkProgress) -> str:
    if not progress.criteria:
        return ""
    held = sum(criterion.passed is True for criterion in progress.criteria)
    return f"; {held} of {counted(len(progress.criteria), 'criterion').replace('criterions', 'criteria')} hold"


def progress_line(agent: str, progress: WorkProgress) -> Line:
    """One agent's work in one line."""
    doing = cut(progress.doing, DOING_CHARACTERS)
    return [
        Span(agent, "label"),
        " on ",
        Span(progress.task, "label"),
        f": {doing}; {spent_words(progress)}{_held_words(progress)}",
    ]


def progress_lines(progress: WorkProgress) -> list[Line]:
    """The same in full, below the agent."""
    lines: list[Line] = [
        _field("doing", progress.doing),
        _field("spent", spent_words(progress)),
    ]
    if progress.reflections:
        lines.append(_field("reflections", f"{progress.reflections} in a row without anything new"))
    for criterion in progress.criteria:
        mark = {True: Span("  held       ", "good"), False: Span("  unmet      ", "bad")}.get(criterion.passed)  # type: ignore[arg-type]
        lines.append([mark or Span("  unchecked  ", "dim"), criterion.words])
    for item in progress.plan:
        lines.append([Span("  plan       ", "dim"), f"[{PLAN_MARKS.get(item['status'], ' ')}] {item['text']}"])
    return lines


def _field(name: str, value: str) -> Line:
    return [Span(f"  {name:<11}", "dim"), value]


# --- The text of a reply that is asked for again after it broke off, without what a reader has seen of it already.


class RepeatedText:
    """What is new in the pieces of a reply. An attempt that begins as the one before goes on where that stopped; one
    that says something else is told whole."""

    def __init__(self) -> None:
        self.shown = ""
        self._attempt, self._length = 1, 0
        """The attempt's text is the beginning of what was shown, of this length."""

    def add(self, token: ReplyToken) -> tuple[bool, str]:
        """Whether this is another text than what was shown, and what is to be shown now."""
        if token.attempt != self._attempt:
            self._attempt, self._length = token.attempt, 0
        if self.shown.startswith(token.text, self._length):
            self._length += len(token.text)
            return False, ""
        rest = self.shown[self._length :]
        is_other = not token.text.startswith(rest)
        if is_other:
            self.shown = new = self.shown[: self._length] + token.text
        else:
            new = token.text[len(rest) :]
            self.shown += new
        self._length = len(self.shown)
        return is_other, new

    def end(self) -> str:
        """The whole text, where it ended before what was shown of an earlier attempt."""
        is_shorter = 0 < self._length < len(self.shown)
        self.shown = self.shown[: self._length]
        return self.shown if is_shorter else ""


# --- The configuration of a turn on the command line: the options of a message, and what is shown of the layers.

RUN_TOOLSET = "worker"
"""What `weft agent run` gives a message where nothing names a toolset."""
Row = list[Span | str]


def override_options(function: F) -> F:
    """What one message is answered with instead of what is configured; `parse_overrides` takes them."""
    model = complete_programs("model")
    for option in (
        click.option("--thinking", metavar="LEVEL", help="How much the model thinks: minimal, low, medium or high."),
        click.option(
            "--credential", "credentials", metavar="ID", multiple=True, help="Allow only this credential; repeatable."
        ),
        click.option("--sandbox", metavar="PROFILE", help="The widest sandbox profile for commands, as read-only."),
        click.option(
            "--deny", metavar="PATTERN", multiple=True, help="Deny this tool: NAME or NAME(PATTERN); repeatable."
        ),
        click.option("--allow", metavar="PATTERN", multiple=True, help="Allow only this tool; repeatable."),
        click.option("--set", "settings", metavar="KEY=VALUE", multiple=True, help="Set a parameter: temperature=0.2."),
        click.option("--toolset", metavar="NAME", help="What its tools are at most; `weft toolset list` shows them."),
        click.option("--situation", metavar="NAME", help="The situation whose parameters are used."),
        click.option("--model", metavar="NAME", shell_complete=model, help="The model that is asked."),
    ):  # fmt: skip
        function = option(function)
    return function


def ensure_toolset(ledger: Ledger, name: str | None) -> None:
    """Refuse a toolset that there is not before a message names it: a turn for the message would fail."""
    if name is not None:
        from weft.programs import Programs
        from weft.runtime.tool.toolsets import find_toolset

        find_toolset(Programs(ledger), name)


def read_configuration(
    call: Call,
    ledger: Ledger,
    session: str | None,
    overrides: MessageOverrides,
    message: str = "",
    persona: str | None = None,
) -> TurnConfiguration:
    """What the next turn of a session, or of an agent, would be configured with. Variables are looked up in a
    trusted ledger alone."""
    from weft.programs import Programs
    from weft.runtime.assembly.turn_configuration import LayerReader, TurnRequest
    from weft.runtime.inference.inference import Inference

    def variable(name: str) -> str | None:
        ledger.trust.ensure("look up variables of the environment")
        return os.environ.get(name)

    programs = Programs(ledger)
    reader = LayerReader(programs, Inference(), variable, acting_for(call, programs, call.actor))
    return reader.configuration(TurnRequest(session=session, persona=persona, overrides=overrides, message=message))


def configured_turn(label: str, configuration: TurnConfiguration) -> ConfiguredTurn:
    """A configuration as it goes out."""
    effective, model = configuration.effective, configuration.model
    granted = effective.permissions
    return ConfiguredTurn(
        session=label,
        persona=configuration.persona_name,
        model=None if model is None else model.id,
        provider=None if model is None else model.provider.id,
        protocol=None if model is None else _protocol(model),
        situation=effective.situation,
        values=tuple(_values(effective, None if model is None else model.id)),
        limits=tuple(map(_limits, granted.layers)),
        credentials=None if granted.credentials is None else tuple(sorted(granted.credentials)),
        files=granted.sandbox.files,
        network=granted.sandbox.network,
        hosts=granted.sandbox.hosts,
    )


def _protocol(model: ModelSettings) -> str | None:
    """None for the embedded model, and where nothing says where its provider is."""
    from weft.kernel.errors import InvalidInput
    from weft.runtime.inference.model_requests import route_of

    if model.provider.is_embedded:
        return None
    try:
        return str(route_of(model).dialect)
    except InvalidInput:
        return None


def _values(effective: EffectiveConfig, model: str | None) -> Iterator[ConfiguredValue]:
    """The model and the situation, then parameters in the order in which configurations list them. The model is shown
    by its name, however it was addressed."""
    from weft.runtime.assembly.configuration_layers import CHOICES, PARAMETER_NAMES

    names = {name: name for name in CHOICES} | PARAMETER_NAMES
    for name, key in names.items():
        if (sourced := effective.values.get(key)) is not None:
            yield ConfiguredValue(
                key=name,
                value=model if key == "model" else sourced.value,
                layer=sourced.layer,
                source=sourced.source,
                sent=key not in effective.not_sent,
            )


def _limits(layer: LimitingLayer) -> ConfiguredLimits:
    limits = layer.limits
    return ConfiguredLimits(
        layer=layer.layer,
        source=layer.source,
        allow=limits.allow,
        deny=limits.deny,
        credentials=limits.credentials,
        files=limits.sandbox.files,
        network=limits.sandbox.network,
        hosts=limits.sandbox.hosts,
    )


def configuration_rows(turn: ConfiguredTurn) -> Iterator[Row]:
    """One row for each value and each limit: what it is, how it is set, and where."""
    for value in turn.values:
        note = "" if value.sent else " (not sent)"
        yield [Span(value.key, "label"), _text(value.value), _place(value.layer, value.source) + note]
        if value.key == "model" and turn.protocol is not None:
            yield [Span("protocol", "label"), turn.protocol, f"provider {turn.provider}"]
    for limits in turn.limits:
        place = _place(limits.layer, limits.source)
        for key, text in _limit_texts(limits):
            yield [Span(key, "label"), text, place]
    if not any(limits.allow is not None or limits.deny for limits in turn.limits):
        yield [Span("tools", "label"), "all", "no layer limits them"]


def _limit_texts(limits: ConfiguredLimits) -> Iterator[tuple[str, str]]:
    if limits.allow is not None:
        yield "tools allowed", ", ".join(limits.allow) or "none"
    if limits.deny:
        yield "tools denied", ", ".join(limits.deny)
    if limits.credentials is not None:
        yield "credentials", ", ".join(limits.credentials) or "none"
    if limits.files is not None:
        yield "sandbox files", limits.files
    if limits.network is not None:
        yield "sandbox network", "open" if limits.network else "closed"
    if limits.hosts is not None:
        yield "sandbox hosts", ", ".join(limits.hosts) or "none"


def _place(layer: str, source: str) -> str:
    return f"{layer} {source}".rstrip()


def _text(value: Any) -> str:
    from weft.surfaces.wire.forms import document

    return value if isinstance(value, str) else document(value)
