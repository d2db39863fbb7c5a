"""`weft trigger list`, `show` and `history`."""

from __future__ import annotations

import click

from weft.surfaces.cli.call import Call
from weft.surfaces.cli.command import command as weft_command
from weft.surfaces.cli.program_call import complete_programs, looking
from weft.surfaces.cli.screen import Span
from weft.surfaces.cli.times import local_time
from weft.surfaces.cli.triggers.text import firing_text, listed_trigger, occasion_text, shown_trigger, target_text
from weft.surfaces.cli.triggers.text import trigger_lines as lines_of

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
            Span(one.name, "label"),
            "of another ledger" if one.foreign else one.state,
            occasion_text(one.on) if one.fault is None else Span(f"cannot be read: {one.fault}", "bad"),
            target_text(one),
            "" if one.next_due is None else local_time(one.next_due),
            firing_text(one.fired),
            Span(str(one.missed or ""), "warn"),
        ]
        for one in triggers
    ]
    if not triggers:
        call.note("there is no trigger; make one with `weft trigger create NAME --cron '0 7 * * *' --message TEXT`")
        return
    call.screen.table(rows, ["name", "state", "on", "to", "next", "last", "missed"], numbers=("missed",))
    missed = [one.name for one in triggers if one.missed]
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
    call.answer(trigger, *lines_of(trigger))


@weft_command("history")
@trigger_argument
@click.option("-n", "limit", metavar="N", type=click.IntRange(1, MOST_FIRINGS), default=20, help="At most so many.")
def history(call: Call, name: str, limit: int) -> None:
    """Show for what a trigger fired, the newest first, and what became of its messages."""
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
