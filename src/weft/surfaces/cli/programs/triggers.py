"""`weft trigger`: messages that are sent by time, webhook, event or file, and triggers as
people read them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import click

from weft.kernel.enums import MISSED_CHOICES, SCHEDULED, SESSION_PERIODS, WEBHOOK_SCHEMES
from weft.surfaces.cli.arguments import stdin_bytes
from weft.surfaces.cli.command_line import Call, group
from weft.surfaces.cli.command_line import command as weft_command
from weft.surfaces.cli.programs.program_call import (
    acting,
    acting_person,
    answer,
    changing,
    complete_programs,
    expecting,
    looking,
    set_fields,
    with_fields,
)
from weft.surfaces.cli.progress import counted
from weft.surfaces.cli.screen import Line, Span, local_time
from weft.verbs.program_answers import FiredTrigger, ListedTrigger, ShownTrigger

if TYPE_CHECKING:
    from weft.ledger.api import Firing, FiringOutcome
    from weft.programs import Program, Programs
    from weft.runtime.invoke.trigger_firing import TriggerSender


# --- Triggers as people read them: what sets one off, where its messages go, what it did last and does next.

MOST_GAPS = 100
MISSED_WORDS = {
    "report": "a missed time does not fire, and is told here",
    "latest": "the latest of missed times fires when a broker is back",
    "all": "every missed time fires when a broker is back",
}


def listed_trigger(programs: Programs, program: Program, now_ms: int) -> ListedTrigger:
    return ListedTrigger(**_trigger_fields(programs, program, now_ms))


def shown_trigger(programs: Programs, program: Program, now_ms: int) -> ShownTrigger:
    gaps = tuple(programs.missed_times(program.id, limit=MOST_GAPS))
    return ShownTrigger(**_trigger_fields(programs, program, now_ms), config=program.config, gaps=gaps)


def _trigger_fields(programs: Programs, program: Program, now_ms: int) -> dict[str, Any]:
    config, fault = _read_trigger(program)
    firings = programs.trigger_firings(program.id, limit=1)
    missed = programs.missed_times(program.id, limit=MOST_GAPS)
    since = max((change.at for change in programs.history(program.id) if change.kind != "trigger_paused"), default=0)
    reason = next((change.reason for change in programs.history(program.id) if change.kind == "trigger_paused"), None)
    return {
        "id": program.id,
        "name": program.name,
        "state": program.state,
        "version": program.version,
        "foreign": program.foreign,
        "on": config.get("on", {}),
        "to": config.get("to", {}),
        "next_due": _next_due(programs, program, now_ms),
        "fired": firings[0] if firings else None,
        "missed": sum(gap.count for gap in missed if gap.noted_at >= since),
        "reason": reason if program.state == "paused" else None,
        "fault": fault,
    }


def _read_trigger(program: Program) -> tuple[dict[str, Any], str | None]:
    """The configuration of a trigger, and why it cannot be read where it cannot: another ledger may have written it."""
    from weft.kernel.errors import InvalidConfig
    from weft.runtime.invoke.trigger_firing import readable_config

    try:
        return readable_config(program), None
    except InvalidConfig as error:
        return {}, str(error)


def _next_due(programs: Programs, program: Program, now_ms: int) -> int | None:
    from weft.ledger.api import TriggerLog
    from weft.programs.triggers import first_due
    from weft.runtime.invoke.trigger_firing import find_ready

    ready = find_ready(TriggerLog(programs.ledger), program) if program.state == "active" else None
    return None if ready is None or ready.schedule is None else first_due(ready.schedule, now_ms)


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


# --- `weft trigger list`, `show` and `history`.

trigger_argument = click.argument("name", shell_complete=complete_programs("trigger"))
MOST_FIRINGS = 10_000


def _now_ms() -> int:
    from weft.kernel.clock import SystemClock

    return SystemClock().now_ms()


@weft_command("list")
def list_(call: Call) -> None:
    """List triggers: what sets each off, when it is due next, what it did last, and how many times it missed."""
    with looking(call) as programs:
        triggers = [listed_trigger(programs, program, _now_ms()) for program in programs.all("trigger")]
    if call.json:
        call.documents(triggers)
        return
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
        for trigger in triggers
    ]
    if not triggers:
        call.note("there is no trigger; make one with `weft trigger create NAME --cron '0 7 * * *' --message TEXT`")
        return
    call.screen.table(rows, ["name", "state", "on", "to", "next", "last", "missed"], numbers=("missed",))
    missed = [trigger.name for trigger in triggers if trigger.missed]
    if missed:
        call.note(
            Span("some times were missed", "warn"),
            ": `weft trigger show NAME` tells which; the configuration's onMissed says what is done with them",
        )


@weft_command("show")
@trigger_argument
def show(call: Call, name: str) -> None:
    """Show a trigger: its configuration, what it did last and does next, and the times that it missed."""
    with looking(call) as programs:
        trigger = shown_trigger(programs, programs.get(name, "trigger"), _now_ms())
    call.answer(trigger, *trigger_lines(trigger))


@weft_command("history")
@trigger_argument
@click.option(
    "-n",
    "--limit",
    "limit",
    metavar="N",
    type=click.IntRange(1, MOST_FIRINGS),
    default=20,
    help="At most N firings. Default: 20.",
)
def history(call: Call, name: str, limit: int) -> None:
    """Show when and why a trigger fired, the newest first, and what became of its messages."""
    with looking(call) as programs:
        firings = programs.trigger_firings(name, limit=limit)
    if call.json:
        call.documents(firings)
        return
    rows: list[list[Span | str]] = [
        [
            local_time(firing.fired_at),
            firing.source,
            "" if firing.due is None else local_time(firing.due),
            Span(firing.message or firing.posted or "", "id"),
            Span(firing.error, "bad") if firing.error else firing.state or "",
        ]
        for firing in firings
    ]
    if not firings:
        call.note(f"{name} has not fired; `weft trigger run NAME` has a trigger fire now")
    call.screen.table(rows, ["fired", "source", "due", "message", "outcome"])


# --- `weft trigger create`, `configure`, `pause`, `resume` and `delete`.

DETAILS = {
    "zone": ("cron", "at"), "secret": ("webhook",), "where": ("event",), "pattern": ("file",),
}  # fmt: skip
"""Options that say more of one thing that sets a trigger off, and of which."""
OCCASION_OPTIONS = ("cron", "every", "at", "webhook", "event", "folder", "task", "room")
F = TypeVar("F", bound=Callable[..., Any])


OPTIONS: tuple[Callable[[Any], Any], ...] = (
    click.option(
        "--cron", metavar="EXPRESSION", help="Fire at these times: five fields, such as '0 7 * * 1-5', or @daily."
    ),
    click.option("--zone", metavar="ZONE", help="The time zone of --cron (default: UTC) or of --at."),
    click.option("--every", metavar="INTERVAL", help="Fire again and again: each 90s, 15m, 2h, 1d or 1w."),
    click.option("--at", metavar="TIME", help="Fire once: 2026-12-24T18:00Z, or 2026-12-24T18:00 with --zone."),
    click.option(
        "--webhook",
        metavar="SCHEME",
        type=click.Choice(WEBHOOK_SCHEMES),
        help=f"Fire at a webhook of {', '.join(WEBHOOK_SCHEMES[:-1])} or {WEBHOOK_SCHEMES[-1]}.",
    ),
    click.option("--secret", metavar="VARIABLE", help="The variable that holds the secret of --webhook."),
    click.option("--event", metavar="KIND", help="Fire at events of this kind in the ledger (docs/events.md)."),
    click.option(
        "--where",
        metavar="FIELD=VALUE",
        multiple=True,
        help="With --event: only if this field has this value; repeatable.",
    ),
    click.option("--file", "folder", metavar="DIR", type=click.Path(), help="Fire when files in this folder change."),
    click.option(
        "--pattern", metavar="PATTERN", multiple=True, help="With --file: only files such as '*.py'; repeatable."
    ),
    click.option("--task", metavar="TASK", help="Fire when this task is completed."),
    click.option("--room", metavar="ROOM", help="Fire at a message in this room."),
    click.option("--message", metavar="TEXT", help="What it sends; ${payload.FIELD}, ${time}, ${sessions} are put in."),
    click.option(
        "--to",
        "persona",
        metavar="AGENT",
        help="Who answers. Default: the agent that makes it; else session trigger:NAME.",
    ),
    click.option("--session", metavar="SESSION", help="The session that the message goes to."),
    click.option("--thread", metavar="TURN", help="The turn that the message goes on from."),
    click.option("--smart", metavar="SESSION", help="To the thread that the message fits, else to this session."),
    click.option(
        "--sender", metavar="PLACE", help="To one session for each sender; PLACE is where the payload names the sender."
    ),
    click.option("--post-to", metavar="ROOM", help="The room that it is posted to, where --to answers."),
    click.option(
        "--include",
        metavar="PERIOD",
        type=click.Choice(SESSION_PERIODS),
        help="List the sessions of yesterday, today or the week for ${sessions}.",
    ),
    click.option(
        "--on-missed",
        metavar="CHOICE",
        type=click.Choice(MISSED_CHOICES),
        help="What to do about missed times: report, latest or all. Default: report.",
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
    chosen = {name: value for name, value in options.items() if value not in (None, ())}
    has_occasion = any(option in chosen for option in (*OCCASION_OPTIONS, *DETAILS))
    config: dict[str, Any] = {} if is_change and not has_occasion else {"on": _occasion(chosen)}
    to = {
        field: chosen[option]
        for option, field in (
            ("persona", "persona"),
            ("session", "session"),
            ("thread", "thread"),
            ("smart", "smart"),
            ("sender", "sender"),
            ("post_to", "room"),
        )
        if option in chosen
    }
    if to:
        config["to"] = to
    if "include" in chosen:
        config["include"] = {"sessions": chosen["include"]}
    for option, field in (("message", "message"), ("on_missed", "onMissed"), ("breaker", "breaker")):
        if option in chosen:
            config[field] = chosen[option]
    return config


def _occasion(chosen: dict[str, Any]) -> dict[str, Any]:
    import os

    zone = {"zone": chosen["zone"]} if "zone" in chosen else {}
    forms: dict[str, Any] = {
        "cron": lambda: {"expression": chosen["cron"], **zone},
        "every": lambda: chosen["every"],
        "at": lambda: {"time": chosen["at"], **zone} if zone else chosen["at"],
        "webhook": lambda: {"scheme": chosen["webhook"], "secret": _variable(chosen.get("secret"))},
        "event": lambda: {
            "kind": chosen["event"],
            **({"filter": _filter(chosen["where"])} if "where" in chosen else {}),
        },
        "folder": lambda: {
            "folder": os.path.abspath(chosen["folder"]),
            **({"patterns": list(chosen["pattern"])} if "pattern" in chosen else {}),
        },
        "task": lambda: chosen["task"],
        "room": lambda: chosen["room"],
    }
    named = [option for option in forms if option in chosen]
    if len(named) != 1:
        raise click.UsageError(
            "say once what sets it off: --cron, --every, --at, --webhook, --event, --file, --task or --room"
        )
    field = {"every": "interval", "folder": "file"}.get(named[0], named[0])
    for option, occasions in DETAILS.items():
        if option in chosen and field not in occasions:
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


# --- `weft trigger run` and `deliver`: a trigger fires now, by hand or for a delivery.


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
    "trigger",
    """Manage triggers: messages sent by time, webhook, event or file.

    A trigger is a program with versions, tags and rights; a broker (`weft broker`) has it fire, each occasion once.
    docs/agents.md#triggers has the details.
    """,
    create,
    list_,
    show,
    configure,
    pause,
    resume,
    run,
    history,
    delete,
    deliver,
)
