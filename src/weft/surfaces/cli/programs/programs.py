"""Programs by kind: `weft provider`, `model`, `code` and `info`; of every kind `program`,
`apply`, `tag` and `nodes`; and `weft trigger`: messages that are sent by time, webhook, event or
file.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from inspect import cleandoc
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from msgspec import UNSET

from weft.kernel.enums import MISSED_CHOICES, SCHEDULED
from weft.kernel.errors import InvalidInput, Unsupported
from weft.kernel.typed_names import shell_word
from weft.surfaces.cli.arguments import STANDARD, read_input, read_named_text, stdin_bytes
from weft.surfaces.cli.command_line import Call, group
from weft.surfaces.cli.command_line import command as weft_command
from weft.surfaces.cli.programs.program_call import (
    F,
    acting,
    acting_person,
    answer,
    answer_invoked,
    as_actor,
    changing,
    complete_programs,
    given,
    invoked,
    json_of,
    json_or_text,
    line_of,
    looking,
    message_text,
    named,
    set_fields,
    show_list,
    show_program,
    with_fields,
)
from weft.surfaces.cli.progress import counted
from weft.surfaces.cli.screen import Line, Span, local_time
from weft.surfaces.cli.verb_commands import command_of, group_of, shows
from weft.verbs import program_verbs
from weft.verbs.answers import JsonValue, Listing, NodeTags
from weft.verbs.program_answers import FiredTrigger, ListedTrigger, ShownTrigger

if TYPE_CHECKING:
    from weft.ledger.api import Firing, FiringOutcome, Ledger
    from weft.programs import Program
    from weft.programs.program_changes import PlannedProgram, WantedProgram
    from weft.programs.program_records import Difference, ProgramChange
    from weft.runtime.egress.connections import Connections
    from weft.runtime.inference.local_models import ModelFile, ModelFolder
    from weft.runtime.invoke.trigger_firing import TriggerSender
    from weft.verbs.program_answers import FetchableModel


# --- `weft program`: what all kinds of program have in common.

DIFFERENCE_STYLES = {"added": "good", "removed": "bad", "changed": "warn"}


@shows(program_verbs.program_list)
def show_programs(call: Call, listed: Listing[Program], ledger: Ledger, kind: str | None) -> None:
    labels = ledger.listing().short_labels() if call.screen.terminal else {}
    hint = "`weft help` shows how to make them"
    show_list(call, list(listed.items), kind or "program", hint, kinds=True, labels=labels)


@shows(program_verbs.program_get)
def show_one_program(call: Call, program: Program) -> None:
    show_program(call, program)


@shows(program_verbs.program_history)
def show_program_history(call: Call, history: Listing[ProgramChange]) -> None:
    rows = [
        (f"{change.version}" if change.config is not None else "", change.kind, change.state, change.actor,
         local_time(change.at),
         f"said by replica {change.replica}, not taken over" if change.foreign else change.reason or "")
        for change in history.items
    ]  # fmt: skip
    call.screen.table(rows, ("version", "event", "state", "by", "when", "why"))


@shows(program_verbs.program_diff)
def show_program_differences(call: Call, differences: Listing[Difference]) -> None:
    for difference in differences.items:
        values = [_short_value(difference.before)] if difference.how != "added" else []
        values += [_short_value(difference.after)] if difference.how != "removed" else []
        call.screen.show(
            Span(f"{difference.how:<8}", DIFFERENCE_STYLES[difference.how]), f" {difference.path}: {' → '.join(values)}"
        )
    if not differences.items:
        call.note("they do not differ")


def _short_value(value: Any) -> str:
    from weft.surfaces.wire.forms import document

    return document(value)


@shows(
    program_verbs.program_configure,
    program_verbs.program_revert,
    program_verbs.program_publish,
    program_verbs.program_deprecate,
)
def show_changed_program(call: Call, program: Program) -> None:
    call.screen.show(*line_of(program))


@shows(program_verbs.program_delete)
def show_deleted_program(call: Call, program: Program) -> None:
    call.screen.show(*line_of(program))
    call.screen.show("  hidden; its history stays")


program_command = group_of(
    program_verbs.program_group,
    program_verbs.program_list,
    program_verbs.program_get,
    program_verbs.program_history,
    program_verbs.program_diff,
    program_verbs.program_configure,
    program_verbs.program_revert,
    program_verbs.program_publish,
    program_verbs.program_deprecate,
    program_verbs.program_delete,
)


@program_command.verb("invoke")
@named("name")
@click.option("--message", metavar="TEXT", help="What is said to it; - reads it from standard input.")
@click.option("--input", "value", metavar="JSON", help="What it is given; with @ the file that holds it.")
@click.option(
    "--model", metavar="NAME", shell_complete=complete_programs("model"), help="Ask this model this time only."
)
@click.option("--situation", metavar="NAME", help="Ask with the parameters of this situation.")
@click.option("--stream", is_flag=True, help="Show a model's answer as it comes.")
@as_actor
def invoke_program(
    call: Call,
    name: str,
    message: str | None,
    value: str | None,
    model: str | None,
    situation: str | None,
    stream: bool,
    actor: str,
) -> None:
    """Put a program to work: ask a model, send to a session, run code, and so on, each kind in its way.

    docs/agents.md#programs tells what each kind takes and answers.
    """
    from msgspec import UNSET

    from weft.runtime.invoke.invocation import Invocation

    more = UNSET if value is None else json_of(value, "input")
    asked = Invocation(message=message_text(message), input=more, model=model, situation=situation)
    answer_invoked(call, invoked(call, actor, name, asked, stream=stream), shown=stream)


# --- `weft apply`: many programs as files say them.

APPLY_STYLES = {"create": "good", "change": "warn", "unchanged": "dim", "delete": "bad"}


@weft_command("apply")
@click.argument("file", nargs=-1, required=True, type=click.Path(exists=True, dir_okay=False, allow_dash=True))
@click.option("--dry-run", is_flag=True, help="Show what would be done; do nothing.")
@click.option("--prune", is_flag=True, help="Delete programs that earlier files made or changed and these do not name.")
@acting
def apply_command(
    call: Call, file: tuple[str, ...], dry_run: bool, prune: bool, actor: str, retry_key: str | None
) -> None:
    """Create and change programs as files say.

    A FILE is YAML, one document or several, or JSON: objects with id, programType, config, and perhaps lifecycle and
    tags; - is standard input. Everything is done, or nothing, and then all faults are reported at once. Applying the
    same files again changes nothing.

    `weft program get --json` shows such objects; a list of them is taken, too, or one under programs. All is done in
    one append. YAML is read as version 1.2 says, without aliases.
    """
    wanted = [program for name in file for program in _read_programs(name)]
    with changing(call, actor) as programs:
        plan = programs.apply(wanted, prune=prune, dry_run=dry_run, key=retry_key)
    _show(call, plan, dry_run)


def _read_programs(name: str) -> list[WantedProgram]:
    from weft.kernel.contents import decode_utf8
    from weft.programs.program_changes import read_files, read_text
    from weft.surfaces.cli.work.sandbox_access import ensure_not_led_away

    if name != STANDARD:
        ensure_not_led_away(name)
        return read_files([Path(name)])
    piped = read_input(None, "nothing is piped in")
    return read_text(decode_utf8(piped, "standard input"), "standard input")


def _show(call: Call, plan: list[PlannedProgram], dry_run: bool) -> None:
    if call.json:
        call.documents(plan)
        return
    for planned in plan:
        changes = f" ({', '.join(planned.changes)})" if planned.changes else ""
        call.screen.show(
            Span(f"{planned.action:<9}", APPLY_STYLES[planned.action]),
            f" {planned.kind} ",
            Span(planned.name, "label"),
            changes,
        )
        for note in planned.notes:
            call.note(f"{planned.kind} {planned.name}: {note}")
    done = sum(planned.action != "unchanged" for planned in plan)
    call.note(f"{counted(done, 'program')} {'would change' if dry_run else 'changed'}, of {len(plan)}")


# --- `weft tag`: words on anything that has an id.


@shows(program_verbs.tag_add, program_verbs.tag_remove, program_verbs.tag_list)
def show_tags(call: Call, answer: NodeTags) -> None:
    for tag in answer.tags:
        call.screen.show(tag)
    if not answer.tags:
        call.note(f"{answer.node} has no tags")


tag_command = group_of(program_verbs.tag_group, program_verbs.tag_add, program_verbs.tag_remove, program_verbs.tag_list)


# --- `weft provider`: where models are reached.

MAKE_PROVIDER = "make one with `weft provider create NAME --type TYPE`"


@shows(
    program_verbs.provider_create,
    program_verbs.model_create,
    program_verbs.model_configure,
    program_verbs.info_validate,
    program_verbs.info_activate,
    program_verbs.info_archive,
)
def show_changed_of_kind(call: Call, program: Program) -> None:
    call.screen.show(*line_of(program))


@shows(program_verbs.provider_configure)
def show_configured_provider(call: Call, configured: program_verbs.ConfiguredProvider) -> None:
    call.screen.show(*line_of(configured.program))
    if configured.dropped:
        dropped = ", ".join(configured.dropped)
        call.note(f"it goes to somebody else now, and left {dropped} behind; give it anew with --key-env VAR")


@shows(program_verbs.provider_show, program_verbs.model_show)
def show_one_of_kind(call: Call, program: Program) -> None:
    show_program(call, program)


@shows(program_verbs.provider_list)
def show_providers(call: Call, listed: Listing[Program]) -> None:
    show_list(call, list(listed.items), "provider", MAKE_PROVIDER)


provider_command = group_of(
    program_verbs.provider_group,
    program_verbs.provider_create,
    program_verbs.provider_configure,
    program_verbs.provider_list,
    program_verbs.provider_show,
)


@provider_command.verb("models")
@named("name", "provider")
@as_actor
def provider_models(call: Call, name: str, actor: str) -> None:
    """Ask a provider which models it has; that also tells whether it is there and takes the key."""
    from weft.runtime.invoke.invocation import Invocation

    with looking(call) as programs:
        provider = programs.get(name, "provider")
    listed = invoked(call, actor, provider.id, Invocation()).result["models"]
    call.answer(JsonValue(listed), *([name] for name in listed))
    if not listed:
        call.note(f"{name} answers, and has no models")


# --- `weft model`: what is asked, and how.

MAKE_MODEL = "make one with `weft model create NAME --backend MODEL --provider PROVIDER`"


def parameters(function: F) -> F:
    for option in (
        click.option("--top-p", type=float, help="Nucleus sampling, 0 to 1."),
        click.option("--max-tokens", type=int, help="Maximum output tokens."),
        click.option("--temperature", type=float, help="Sampling temperature, 0 to 2."),
    ):
        function = option(function)
    return function


@shows(program_verbs.model_list)
def show_models(call: Call, listed: Listing[Program]) -> None:
    show_list(call, list(listed.items), "model", MAKE_MODEL)


model_command = group_of(
    program_verbs.model_group,
    program_verbs.model_create,
    program_verbs.model_configure,
    program_verbs.model_list,
    program_verbs.model_show,
)


@model_command.verb("invoke")
@named("name", "model")
@click.option("--message", metavar="TEXT", help="What it is asked; - reads it from standard input.")
@click.option("--messages", metavar="JSON", help="A list of messages, the last one the user's; - reads it there.")
@click.option("--stream", is_flag=True, help="Show the answer as it comes.")
@click.option("--situation", metavar="NAME", help="Ask with the parameters of this situation.")
@parameters
@as_actor
def invoke_model(
    call: Call,
    name: str,
    message: str | None,
    messages: str | None,
    stream: bool,
    situation: str | None,
    temperature: float | None,
    max_tokens: int | None,
    top_p: float | None,
    actor: str,
) -> None:
    """Ask a model by itself, without anything that was said before; recorded in the session model:NAME.

    It needs a provider that answers: `weft model invoke claude-fast --message "Hello" --stream`. With --json the answer
    is told with its usage, request id, latency and turn. A failure ends with exit code 8 and leaves a failed turn; no
    reply is made up.

    With --messages the conversation before the last message is recorded, too, and the answer in a session of its own
    that goes on from there: `--messages '[{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"},
    {"role": "user", "content": "And now?"}]'`. System messages come first.
    """
    from weft.runtime.inference.model_requests import ModelParameters
    from weft.runtime.invoke.invocation import Invocation

    with looking(call) as programs:
        model_program = programs.get(name, "model")
    own = ModelParameters(**given(temperature=temperature, max_tokens=max_tokens, top_p=top_p))
    if message is not None and messages is not None:
        raise InvalidInput("--message and --messages exclude each other", "give the message as the last of the list")
    conversation = message_text(message) if messages is None else json_of(message_text(messages) or "", "messages")
    asked = Invocation(message=conversation, situation=situation, parameters=own)
    answer_invoked(call, invoked(call, actor, model_program.id, asked, stream=stream), shown=stream)


def complete_model_files(_: click.Context, __: click.Parameter, incomplete: str) -> list[str]:
    from weft.runtime.inference.local_models import MODEL_FILES

    return [file.name for file in MODEL_FILES if file.name.startswith(incomplete)]


@model_command.verb("get")
@click.argument("name", required=False, shell_complete=complete_model_files)
@click.option(
    "--from", "source", metavar="FILE", type=click.Path(path_type=Path), help="Take it from a file, without a network."
)
@click.option("--list", "listed", is_flag=True, help="List the models that can be fetched.")
def get_model(call: Call, name: str | None, source: Path | None, listed: bool) -> None:
    """Fetch a small model, to be run on this machine.

    It is its maker's own file, checked against a pinned size and SHA-256. What was interrupted goes on where it stood.

    On a machine without a network, name with --from a file that was brought there.
    docs/models.md#larger-models-on-this-machine tells which models there are.
    """
    from weft.runtime.inference.local_models import MODEL_FILES, known_model_file, model_folder

    folder = model_folder(os.environ.get)
    if listed or name is None:
        if name is not None or source is not None:
            raise click.UsageError("--list takes no other argument")
        if not listed:
            raise click.UsageError("say which model; `weft model get --list` names them")
        _list_model_files(call, [_fetchable(file, folder) for file in MODEL_FILES])
        return
    file = known_model_file(name)
    path = _bring_model(call, file, folder, source)
    size = f"{file.size_bytes / 1_000_000:,.0f} MB"
    call.answer(_fetchable(file, folder), [Span(file.name, "label"), f" is at {path} ({size}, its SHA-256 is right)"])
    call.note(f"`weft chat --model {shell_word(file.name)}` talks with it; `rm {shell_word(str(path))}` removes it")


def _list_model_files(call: Call, models: list[FetchableModel]) -> None:
    if call.json:
        call.documents(models)
        return
    for model in models:
        size = f"{model.size_bytes / 1_000_000:,.0f} MB".rjust(9)
        call.screen.show(
            Span(model.name.ljust(24), "label"), size, f"  {model.license}", "" if not model.path else "  here"
        )


def _fetchable(file: ModelFile, folder: ModelFolder) -> FetchableModel:
    from weft.verbs.program_answers import FetchableModel

    return FetchableModel(
        name=file.name,
        url=file.url,
        size_bytes=file.size_bytes,
        sha256=file.sha256,
        license=file.license,
        path=str(folder.place_of(file)) if folder.has(file) else None,
    )


def _bring_model(call: Call, file: ModelFile, folder: ModelFolder, source: Path | None) -> Path:
    """Where the model lies, after it was fetched or copied, if it was not there already."""
    import asyncio

    from weft.runtime.inference.local_models import fetch_model, is_whole, take_model
    from weft.surfaces.cli.progress import progress

    if is_whole(file, folder):
        return folder.place_of(file)
    with progress(call, file.name, in_bytes=True) as bar:
        if source is not None:
            return take_model(file, folder, source, bar.counted)

        async def fetched() -> Path:
            connections = _connections()
            try:
                return await fetch_model(file, folder, connections, bar.counted)
            finally:
                await connections.aclose()

        return asyncio.run(fetched())


def _connections() -> Connections:
    try:
        from weft.runtime.egress.connections import Connections
    except ImportError as error:
        raise Unsupported(
            f"fetching needs the package {error.name}", "install it with `pip install 'weft[providers]'`"
        ) from None
    return Connections()


# --- `weft code`: programs that run.

code_command = group(
    "code",
    """Manage code programs, which agents can use as tools.

    They run in the sandbox, and not at all where there is none.
    """,
)
MAKE_CODE = "make one with `weft code create NAME --file FILE`"
LANGUAGES = {".py": "python", ".js": "javascript", ".mjs": "javascript", ".ts": "typescript"}


@code_command.verb("create")
@click.argument("name")
@click.option("--file", type=click.Path(exists=True, dir_okay=False), help="The file that holds it.")
@click.option("--source", metavar="TEXT", help="The code itself.")
@click.option("--language", metavar="NAME", help="javascript, typescript or python; else by the file's ending.")
@click.option("--description", metavar="TEXT", help="What it does.")
@set_fields
@click.option("--draft", is_flag=True, help="Do not publish it yet.")
@acting
def create_code(
    call: Call,
    name: str,
    file: str | None,
    source: str | None,
    language: str | None,
    description: str | None,
    fields: tuple[str, ...],
    draft: bool,
    actor: str,
    retry_key: str | None,
) -> None:
    """Make a code program."""
    if (file is None) == (source is None):
        raise click.UsageError("give the code by --file or by --source")
    text = source if file is None else read_named_text(file)
    spoken = language or LANGUAGES.get(Path(file or "").suffix)
    config = with_fields(given(language=spoken, source=text, description=description), fields)
    with changing(call, actor) as programs:
        answer(call, programs.create("code", name, config, draft=draft, key=retry_key))


@shows(program_verbs.code_list)
def show_code_programs(call: Call, listed: Listing[Program]) -> None:
    show_list(call, list(listed.items), "code program", MAKE_CODE)


code_command.add_command(command_of(program_verbs.code_list))


# --- `weft info`: what is known, checked and found again.

info_command = group(
    "info",
    """Manage information: checked against schemas, found by words, tags and paths.

    What does not fit its schema is refused, or stays a draft.
    """,
)
MAKE_INFO = "make some with `weft info create NAME --content JSON`"


@info_command.verb("create")
@click.argument("name")
@click.option("--type", "kind", metavar="TYPE", default="fact", help="fact (default), schema, workflow or pattern.")
@click.option("--content", metavar="JSON", required=True, help="What is known; with @ the file that holds it.")
@click.option("--schema", metavar="NAME", shell_complete=complete_programs("information"), help="Its schema.")
@click.option("--source", "sources", metavar="NAME", multiple=True, help="A program that it comes from; repeatable.")
@set_fields
@click.option("--draft", is_flag=True, help="Keep it as a draft, not yet checked against its schema.")
@acting
def create_info(
    call: Call,
    name: str,
    kind: str,
    content: str,
    schema: str | None,
    sources: tuple[str, ...],
    fields: tuple[str, ...],
    draft: bool,
    actor: str,
    retry_key: str | None,
) -> None:
    """Create information."""
    config = {"infoType": kind, "content": json_of(content, "content"), **given(schema=schema, sources=list(sources))}
    with changing(call, actor) as programs:
        answer(call, programs.create("information", name, with_fields(config, fields), draft=draft, key=retry_key))


@shows(program_verbs.info_list)
def show_information(call: Call, listed: Listing[Program]) -> None:
    show_list(call, list(listed.items), "information", MAKE_INFO)


for information_verb in (
    program_verbs.info_validate,
    program_verbs.info_activate,
    program_verbs.info_archive,
    program_verbs.info_list,
):
    info_command.add_command(command_of(information_verb))


@info_command.verb("query")
@click.argument("text", required=False)
@click.option("--type", "kind", metavar="TYPE", help="fact, schema, workflow or pattern.")
@click.option("--tag", "tags", metavar="TAG", multiple=True, help="Only what has this tag; repeatable.")
@click.option("--path", metavar="PATH", help="Only what has a value there, such as $.codes[*].name.")
@click.option("--equals", metavar="VALUE", help="And this value, as JSON or text.")
@click.option("--all", "archived", is_flag=True, help="Also drafts and archived information.")
def query_information(
    call: Call,
    text: str | None,
    kind: str | None,
    tags: tuple[str, ...],
    path: str | None,
    equals: str | None,
    archived: bool,
) -> None:
    """Find information by words, type, tags, and by what stands at a path of its content."""
    wanted = UNSET if equals is None else json_or_text(equals)
    with looking(call) as programs:
        matches = programs.query(text, info_type=kind, tagged=tags, path=path, equals=wanted, archived=archived)
    show_list(call, matches, "such information", MAKE_INFO)


# --- Triggers as people read them: what sets one off, where its messages go, what it did last and does next.

MISSED_WORDS = {
    "report": "a missed time does not fire, and is told here",
    "latest": "the latest of missed times fires when a broker is back",
    "all": "every missed time fires when a broker is back",
}


def occasion_text(on: Mapping[str, Any]) -> str:
    """What sets a trigger off, in a few words."""
    none: tuple[str, Any] = ("nothing", "")
    name, setting = next(iter(on.items()), none)
    if name == "cron":
        return f"cron {setting['expression']} {setting.get('zone', 'UTC')}"
    if name == "at":
        return f"at {setting['time']} {setting.get('zone', '')}".strip()
    if name == "webhook":
        return f"webhook of {setting['scheme']}"
    if name == "event":
        filter = " ".join(f"{field}={value}" for field, value in setting.get("filter", {}).items())
        return f"event {setting['kind']} {filter}".strip()
    if name == "file":
        return f"files {', '.join(setting.get('patterns', [])) or '*'} in {setting['folder']}"
    return f"every {setting}" if name == "interval" else f"{name} {setting}"


def target_text(trigger: ListedTrigger | ShownTrigger) -> str:
    """Where its messages go. Without a target that is the agent that made it, or a session of the trigger's own."""
    if trigger.fault is not None:
        return ""
    words = [f"{name} {value}" for name, value in trigger.to.items()]
    return ", ".join(words) or f"its maker, or session trigger:{trigger.name}"


def firing_text(firing: Firing | None) -> str:
    if firing is None:
        return ""
    outcome = firing.error or firing.state or "sent"
    return f"{local_time(firing.fired_at)} {outcome}"


def trigger_lines(trigger: ShownTrigger) -> list[Line]:
    state = f"{trigger.state}: {trigger.reason}" if trigger.reason else trigger.state
    lines: list[Line] = [["trigger ", Span(trigger.name, "label"), f" is {state}"]]
    if trigger.fault is not None:
        return [*lines, [Span(f"  cannot be read: {trigger.fault}", "bad")]]
    config, is_scheduled = trigger.config, any(name in SCHEDULED for name in trigger.on)
    for what, value in (
        ("on", occasion_text(trigger.on)),
        ("to", target_text(trigger)),
        ("message", config.get("message", "")),
        ("include", ", ".join(f"{name} {value}" for name, value in config.get("include", {}).items())),
        ("late", MISSED_WORDS[config.get("onMissed", MISSED_CHOICES[0])] if is_scheduled else ""),
        ("next", "" if trigger.next_due is None else local_time(trigger.next_due)),
        ("last", firing_text(trigger.fired)),
    ):
        if value:
            lines.append([Span(f"  {what:<8}", "dim"), str(value)])
    for gap in trigger.gaps:
        span = f"{local_time(gap.first)} to {local_time(gap.last)}"
        lines.append([Span("  missed  ", "warn"), f"{counted(gap.count, 'time')}, {span}"])
    return lines


# --- What is shown of the verbs.


@shows(program_verbs.trigger_list)
def show_triggers(call: Call, triggers: Listing[ListedTrigger]) -> None:
    rows: list[list[Span | str]] = [
        [
            Span(trigger.name, "label"),
            "of another ledger" if trigger.foreign else trigger.state,
            occasion_text(trigger.on) if trigger.fault is None else Span(f"cannot be read: {trigger.fault}", "bad"),
            target_text(trigger),
            "" if trigger.next_due is None else local_time(trigger.next_due),
            firing_text(trigger.fired),
            Span(str(trigger.missed or ""), "warn"),
        ]
        for trigger in triggers.items
    ]
    if not rows:
        call.note("there is no trigger; make one with `weft trigger create NAME --cron '0 7 * * *' --message TEXT`")
        return
    call.screen.table(rows, ["name", "state", "on", "to", "next", "last", "missed"], numbers=("missed",))
    if any(trigger.missed for trigger in triggers.items):
        call.note(
            Span("some times were missed", "warn"),
            ": `weft trigger show NAME` tells which; the configuration's onMissed says what is done with them",
        )


@shows(program_verbs.trigger_show)
def show_trigger(call: Call, trigger: ShownTrigger) -> None:
    for line in trigger_lines(trigger):
        call.screen.show(*line)


@shows(program_verbs.trigger_history)
def show_history(call: Call, firings: Listing[Firing], name: str) -> None:
    rows: list[list[Span | str]] = [
        [
            local_time(firing.fired_at),
            firing.source,
            "" if firing.due is None else local_time(firing.due),
            Span(firing.message or firing.posted or "", "id"),
            Span(firing.error, "bad") if firing.error else firing.state or "",
        ]
        for firing in firings.items
    ]
    if not rows:
        call.note(f"{name} has not fired; `weft trigger run NAME` has a trigger fire now")
    call.screen.table(rows, ["fired", "source", "due", "message", "outcome"])


@shows(program_verbs.trigger_create)
def show_created(call: Call, trigger: Program) -> None:
    call.screen.show(*line_of(trigger))
    call.note("a broker has it fire: `weft broker` runs one")


@shows(program_verbs.trigger_configure, program_verbs.trigger_pause, program_verbs.trigger_resume)
def show_changed(call: Call, trigger: Program) -> None:
    call.screen.show(*line_of(trigger))


@shows(program_verbs.trigger_delete)
def show_deleted(call: Call, trigger: Program) -> None:
    call.screen.show("trigger ", Span(trigger.name, "label"), " is deleted")


# --- `weft trigger run` and `deliver`: a trigger fires now, by hand or for a delivery.

trigger_argument = click.argument("name", shell_complete=complete_programs("trigger"))


@weft_command("run")
@trigger_argument
@click.option("--payload", metavar="JSON", help="The payload that its message is filled from.")
def run(call: Call, name: str, payload: str | None) -> None:
    """Have a trigger fire now. Its message waits in an inbox until a broker answers it."""
    import json

    try:
        value = None if payload is None else json.loads(payload)
    except ValueError:
        value = payload
    _fire(call, name, lambda sender: sender.fire_by_hand(sender.require(name), value))


@weft_command("deliver")
@trigger_argument
def deliver(call: Call, name: str) -> None:
    """Deliver a webhook to a trigger: headers, an empty line and the body on standard input.

    The signature is checked with the secret of the trigger. The same delivery again, however it is encoded, gives the
    same answer and sends nothing.
    """
    from weft.runtime.invoke import trigger_firing
    from weft.runtime.invoke.trigger_firing import MOST_BODY_BYTES, MOST_HEADER_BYTES, read_delivery

    call.ensure_owner("trigger deliver")
    delivery = read_delivery(stdin_bytes().read(MOST_BODY_BYTES + MOST_HEADER_BYTES + 4))
    _fire(call, name, lambda sender: trigger_firing.deliver(sender, name, delivery, os.environ.get))


def _fire(call: Call, name: str, fire: Callable[[TriggerSender], FiringOutcome]) -> None:
    from weft.kernel.clock import SystemClock
    from weft.programs import Programs
    from weft.runtime.invoke.trigger_firing import TriggerSender

    with call.writing() as ledger:
        ledger.trust.ensure("have a trigger fire")
        programs = Programs(ledger)
        outcome = fire(TriggerSender(programs, acting_person(call, programs), SystemClock()))
        firing = outcome.firing
        message = None if firing is None or firing.message is None else ledger.inbox.get(firing.message)
    answer = FiredTrigger(
        trigger=name,
        is_new=outcome.is_new,
        message=None if firing is None else firing.message,
        session=None if message is None else message.session,
        posted=None if firing is None else firing.posted,
        paused=outcome.paused,
    )
    if answer.paused is not None:
        call.answer(answer, [Span(name, "label"), f" was paused: {answer.paused}"])
        return
    words = "sent message" if answer.is_new else "had sent message"
    line: list[Span | str] = [Span(name, "label"), f" {words} ", Span(answer.message or "", "id")]
    call.answer(answer, [*line, " to ", Span(answer.session or "", "label")])
    if message is not None and message.state == "queued":
        call.note("a broker answers it: `weft broker` runs one")


# --- `weft trigger`: messages that are sent without a person.

trigger_command = group(
    program_verbs.trigger_group.name,
    cleandoc(program_verbs.trigger_group.help),
    command_of(program_verbs.trigger_create),
    command_of(program_verbs.trigger_list),
    command_of(program_verbs.trigger_show),
    command_of(program_verbs.trigger_configure),
    command_of(program_verbs.trigger_pause),
    command_of(program_verbs.trigger_resume),
    run,
    command_of(program_verbs.trigger_history),
    command_of(program_verbs.trigger_delete),
    deliver,
)
