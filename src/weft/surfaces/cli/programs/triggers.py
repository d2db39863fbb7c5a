"""`weft trigger`: messages that are sent by time, webhook, event or file, and triggers as
people read them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from inspect import cleandoc
from typing import TYPE_CHECKING, Any

import click

from weft.kernel.enums import MISSED_CHOICES, SCHEDULED
from weft.surfaces.cli.arguments import stdin_bytes
from weft.surfaces.cli.command_line import Call, group
from weft.surfaces.cli.command_line import command as weft_command
from weft.surfaces.cli.programs.program_call import acting_person, complete_programs, line_of
from weft.surfaces.cli.progress import counted
from weft.surfaces.cli.screen import Line, Span, local_time
from weft.surfaces.cli.verb_commands import command_of, shows
from weft.verbs import trigger_verbs as verbs
from weft.verbs.answers import Listing
from weft.verbs.program_answers import FiredTrigger, ListedTrigger, ShownTrigger

if TYPE_CHECKING:
    from weft.ledger.api import Firing, FiringOutcome
    from weft.programs import Program
    from weft.runtime.invoke.trigger_firing import TriggerSender


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


@shows(verbs.trigger_list)
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


@shows(verbs.trigger_show)
def show_trigger(call: Call, trigger: ShownTrigger) -> None:
    for line in trigger_lines(trigger):
        call.screen.show(*line)


@shows(verbs.trigger_history)
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


@shows(verbs.trigger_create)
def show_created(call: Call, trigger: Program) -> None:
    call.screen.show(*line_of(trigger))
    call.note("a broker has it fire: `weft broker` runs one")


@shows(verbs.trigger_configure, verbs.trigger_pause, verbs.trigger_resume)
def show_changed(call: Call, trigger: Program) -> None:
    call.screen.show(*line_of(trigger))


@shows(verbs.trigger_delete)
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
    verbs.trigger_group.name,
    cleandoc(verbs.trigger_group.help),
    command_of(verbs.trigger_create),
    command_of(verbs.trigger_list),
    command_of(verbs.trigger_show),
    command_of(verbs.trigger_configure),
    command_of(verbs.trigger_pause),
    command_of(verbs.trigger_resume),
    run,
    command_of(verbs.trigger_history),
    command_of(verbs.trigger_delete),
    deliver,
)
