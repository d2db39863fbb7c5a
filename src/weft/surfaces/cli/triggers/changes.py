"""`weft trigger create`, `configure`, `pause`, `resume` and `delete`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from weft.kernel.enums import MISSED_CHOICES, SESSION_PERIODS, WEBHOOK_SCHEMES
from weft.surfaces.cli.call import Call
from weft.surfaces.cli.command import command as weft_command
from weft.surfaces.cli.program_call import acting, answer, changing, expecting, set_fields, with_fields
from weft.surfaces.cli.screen import Span
from weft.surfaces.cli.triggers.reading import trigger_argument

DETAILS = {
    "zone": ("cron", "at"), "secret": ("webhook",), "where": ("event",), "pattern": ("file",),
}  # fmt: skip
"""Options that say more of one thing that sets a trigger off, and of which."""
OCCASION_OPTIONS = ("cron", "every", "at", "webhook", "event", "folder", "task", "room")
F = TypeVar("F", bound=Callable[..., Any])


OPTIONS: tuple[Callable[[Any], Any], ...] = (
    click.option("--cron", metavar="EXPRESSION", help="Five fields, such as '0 7 * * 1-5', or @daily."),
    click.option("--zone", metavar="ZONE", help="The time zone of --cron (default: UTC) or of --at."),
    click.option("--every", metavar="INTERVAL", help="90s, 15m, 2h, 1d or 1w."),
    click.option("--at", metavar="TIME", help="Once, such as 2026-12-24T18:00Z, or 2026-12-24T18:00 with --zone."),
    click.option(
        "--webhook", metavar="SCHEME", type=click.Choice(WEBHOOK_SCHEMES), help=f"One of {', '.join(WEBHOOK_SCHEMES)}."
    ),
    click.option("--secret", metavar="VARIABLE", help="The variable that holds the secret of --webhook."),
    click.option("--event", metavar="KIND", help="A kind of event of the ledger (docs/events.md)."),
    click.option("--where", metavar="FIELD=VALUE", multiple=True, help="A field that the event has; repeatable."),
    click.option("--file", "folder", metavar="DIR", type=click.Path(), help="Files in this folder."),
    click.option("--pattern", metavar="PATTERN", multiple=True, help="Which of them, such as '*.py'; repeatable."),
    click.option("--task", metavar="TASK", help="The completion of a task."),
    click.option("--room", metavar="ROOM", help="A message in a room."),
    click.option("--message", metavar="TEXT", help="What it sends; ${payload.FIELD}, ${time}, ${sessions} are put in."),
    click.option(
        "--to",
        "persona",
        metavar="AGENT",
        help="Who answers. Default: the agent that makes it; else session trigger:NAME.",
    ),
    click.option("--session", metavar="SESSION", help="The session that the message goes to."),
    click.option("--thread", metavar="TURN", help="The turn that the message goes on from."),
    click.option("--smart", metavar="SESSION", help="The thread that fits the message, else this session."),
    click.option("--post-to", metavar="ROOM", help="The room that it is posted to, where --to answers."),
    click.option(
        "--include", metavar="PERIOD", type=click.Choice(SESSION_PERIODS), help="Sessions of yesterday, today or week."
    ),
    click.option(
        "--on-missed", metavar="CHOICE", type=click.Choice(MISSED_CHOICES), help="report (the default), latest or all."
    ),
    click.option("--breaker", metavar="N", type=click.IntRange(1), help="Errors in a row that pause it. Default: 5."),
)
"""What sets a trigger off, what it says and to whom."""


def trigger_options(function: F) -> F:
    for option in reversed(OPTIONS):
        function = option(function)
    return function


@weft_command("create")
@click.argument("name")
@trigger_options
@acting
def create(call: Call, name: str, actor: str, retry_key: str | None, **options: Any) -> None:
    """Make a trigger: one thing that sets it off, a message, and where that goes. What it names must be there."""
    from weft.runtime.invoke.trigger_firing import ensure_there

    config = trigger_config(**options)
    with changing(call, actor) as programs:
        ensure_there(programs, config)
        answer(call, programs.create("trigger", name, config, key=retry_key))
    call.note("a broker has it fire: `weft broker` runs one")


@weft_command("configure")
@trigger_argument
@trigger_options
@set_fields
@click.option("--reason", metavar="TEXT", help="Why.")
@expecting
@acting
def configure(
    call: Call,
    name: str,
    fields: tuple[str, ...],
    reason: str | None,
    expected: int | None,
    actor: str,
    retry_key: str | None,
    **options: Any,
) -> None:
    """Change some of a trigger's configuration; it begins anew. What sets it off, and where its message goes, are
    replaced as a whole."""
    from weft.programs.program_records import merged
    from weft.runtime.invoke.trigger_firing import ensure_there

    with changing(call, actor) as programs:
        trigger = programs.get(name, "trigger")
        before = trigger.config if isinstance(trigger.config, dict) else {}
        config = trigger_config(is_change=True, **options)
        changes = with_fields({field: _replacing(before.get(field), value) for field, value in config.items()}, fields)
        if not changes:
            raise click.UsageError("say what is to be changed")
        ensure_there(programs, merged(before, changes))
        answer(call, programs.change(trigger.id, changes, expected=expected, reason=reason, key=retry_key))


def _replacing(former: Any, value: Any) -> Any:
    """A value with which a change replaces a former one: what is not named again in an object is taken away."""
    if not isinstance(former, dict) or not isinstance(value, dict):
        return value
    return {**dict.fromkeys(former), **{field: _replacing(former.get(field), inner) for field, inner in value.items()}}


def trigger_config(*, is_change: bool = False, **options: Any) -> dict[str, Any]:
    """The configuration that options describe; in a change, what sets the trigger off need not be named."""
    given = {name: value for name, value in options.items() if value not in (None, ())}
    has_occasion = any(option in given for option in (*OCCASION_OPTIONS, *DETAILS))
    config: dict[str, Any] = {} if is_change and not has_occasion else {"on": _occasion(given)}
    to = {
        field: given[option]
        for option, field in (
            ("persona", "persona"),
            ("session", "session"),
            ("thread", "thread"),
            ("smart", "smart"),
            ("post_to", "room"),
        )
        if option in given
    }
    if to:
        config["to"] = to
    if "include" in given:
        config["include"] = {"sessions": given["include"]}
    for option, field in (("message", "message"), ("on_missed", "onMissed"), ("breaker", "breaker")):
        if option in given:
            config[field] = given[option]
    return config


def _occasion(given: dict[str, Any]) -> dict[str, Any]:
    import os

    zone = {"zone": given["zone"]} if "zone" in given else {}
    forms: dict[str, Any] = {
        "cron": lambda: {"expression": given["cron"], **zone},
        "every": lambda: given["every"],
        "at": lambda: {"time": given["at"], **zone} if zone else given["at"],
        "webhook": lambda: {"scheme": given["webhook"], "secret": _variable(given.get("secret"))},
        "event": lambda: {"kind": given["event"], **({"filter": _filter(given["where"])} if "where" in given else {})},
        "folder": lambda: {
            "folder": os.path.abspath(given["folder"]),
            **({"patterns": list(given["pattern"])} if "pattern" in given else {}),
        },
        "task": lambda: given["task"],
        "room": lambda: given["room"],
    }
    named = [option for option in forms if option in given]
    if len(named) != 1:
        raise click.UsageError(
            "say once what sets it off: --cron, --every, --at, --webhook, --event, --file, --task or --room"
        )
    field = {"every": "interval", "folder": "file"}.get(named[0], named[0])
    for option, occasions in DETAILS.items():
        if option in given and field not in occasions:
            raise click.UsageError(f"only {' or '.join(f'--{name}' for name in occasions)} takes --{option}")
    return {field: forms[named[0]]()}


def _variable(name: str | None) -> str:
    if not name or not name.isidentifier():
        raise click.UsageError("--webhook needs the variable that holds its secret: name it with --secret")
    return f"${{{name}}}"


def _filter(where: tuple[str, ...]) -> dict[str, Any]:
    import json

    fields: dict[str, Any] = {}
    for item in where:
        field, equals, value = item.partition("=")
        if not equals:
            raise click.UsageError(f"--where {item!r} is no FIELD=VALUE")
        try:
            fields[field] = json.loads(value)
        except ValueError:
            fields[field] = value
    return fields


@weft_command("pause")
@trigger_argument
@click.option("--reason", metavar="TEXT", help="Why.")
@acting
def pause(call: Call, name: str, reason: str | None, actor: str, retry_key: str | None) -> None:
    """Keep a trigger from firing. What would have set it off meanwhile is passed over."""
    with changing(call, actor) as programs:
        answer(call, programs.step_trigger(name, "pause", reason=reason, key=retry_key))


@weft_command("resume")
@trigger_argument
@click.option("--reason", metavar="TEXT", help="Why.")
@acting
def resume(call: Call, name: str, reason: str | None, actor: str, retry_key: str | None) -> None:
    """Let a paused trigger fire again, from now on."""
    with changing(call, actor) as programs:
        answer(call, programs.step_trigger(name, "resume", reason=reason, key=retry_key))


@weft_command("delete")
@trigger_argument
@click.option("--reason", metavar="TEXT", help="Why.")
@expecting
@acting
def delete(call: Call, name: str, reason: str | None, expected: int | None, actor: str, retry_key: str | None) -> None:
    """Delete a trigger. Messages that it sent stay where they are."""
    with changing(call, actor) as programs:
        program = programs.get(name, "trigger")
        deleted = programs.delete(program.id, expected=expected, reason=reason, key=retry_key)
    call.answer(deleted, ["trigger ", Span(deleted.name, "label"), " is deleted"])
