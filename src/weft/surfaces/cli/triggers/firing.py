"""`weft trigger run` and `deliver`: a trigger fires now, by hand or for a delivery."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING

import click

from weft.surfaces.cli.arguments import stdin_bytes
from weft.surfaces.cli.call import Call
from weft.surfaces.cli.command import command as weft_command
from weft.surfaces.cli.program_call import acting_person
from weft.surfaces.cli.screen import Span
from weft.surfaces.cli.triggers.reading import trigger_argument
from weft.surfaces.wire.triggers import FiredTrigger

if TYPE_CHECKING:
    from weft.ledger.api import FiringOutcome
    from weft.runtime.invoke.trigger_firing import TriggerSender


@weft_command("run")
@trigger_argument
@click.option("--payload", metavar="JSON", help="What its message is told of.")
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
