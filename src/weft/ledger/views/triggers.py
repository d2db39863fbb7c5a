"""What events mean for triggers: for which occasions they fired, and which times of their schedules they missed."""

from __future__ import annotations

from msgspec import UNSET

from weft.kernel.clock import ms_from_iso
from weft.kernel.events import Event
from weft.kernel.program_events import TriggerFired, TriggerMissed
from weft.ledger.views.program_rows import load_program
from weft.ledger.views.projector import OTHERS, Moment, Projector, handles, plain


def _trigger(view: Projector, event: Event) -> str | None:
    """The trigger that an event's stream belongs to."""
    kind, _, program = event.stream.partition(":")
    row = load_program(view.sql, program) if kind == "program" else None
    return None if row is None else row.id


@handles(TriggerFired, OTHERS)
def _trigger_fired(view: Projector, moment: Moment, event: TriggerFired) -> None:
    """The first firing for an occasion counts."""
    trigger = _trigger(view, event)
    if trigger is None:
        return
    error = None if event.error is UNSET else event.error
    view.sql.run(
        "INSERT INTO trigger_firing(trigger_id, occasion, n, replica, source, due, fired_at, message, posted, cause,"
        " hops, error, error_code) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING",
        (
            trigger,
            event.occasion,
            moment.n,
            plain(event.replica),
            event.source.value,
            None if event.due is UNSET else ms_from_iso(event.due),
            moment.when,
            plain(event.message),
            plain(event.posted),
            plain(event.cause),
            0 if event.hops is UNSET else event.hops,
            None if error is None else view.contents.number(error.message),
            None if error is None else view.name(error.code),
        ),
    )


@handles(TriggerMissed, OTHERS)
def _trigger_missed(view: Projector, moment: Moment, event: TriggerMissed) -> None:
    trigger = _trigger(view, event)
    if trigger is None:
        return
    view.sql.run(
        "INSERT INTO trigger_gap(n, trigger_id, replica, count, first, last, reason, noted_at)"
        " VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
        (
            moment.n,
            trigger,
            plain(event.replica),
            event.count,
            ms_from_iso(event.first),
            ms_from_iso(event.last),
            view.number(event.reason),
            moment.when,
        ),
    )
