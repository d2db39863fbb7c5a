"""Triggers as people read them: what sets one off, where its messages go, what it did last and does next."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from weft.kernel.enums import MISSED_CHOICES, SCHEDULED
from weft.surfaces.cli.figures import counted
from weft.surfaces.cli.screen import Line, Span
from weft.surfaces.cli.times import local_time
from weft.surfaces.wire.triggers import ListedTrigger, ShownTrigger

if TYPE_CHECKING:
    from weft.ledger.api import Firing
    from weft.programs import Program, Programs

MOST_GAPS = 100
MISSED_WORDS = {
    "report": "a missed time does not fire, and is told here",
    "latest": "the latest of missed times fires when a broker is back",
    "all": "every missed time fires when a broker is back",
}


def listed_trigger(programs: Programs, program: Program, now_ms: int) -> ListedTrigger:
    return ListedTrigger(**_fields(programs, program, now_ms))


def shown_trigger(programs: Programs, program: Program, now_ms: int) -> ShownTrigger:
    gaps = tuple(programs.missed_times(program.id, limit=MOST_GAPS))
    return ShownTrigger(**_fields(programs, program, now_ms), config=program.config, gaps=gaps)


def _fields(programs: Programs, program: Program, now_ms: int) -> dict[str, Any]:
    config, fault = _read(program)
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


def _read(program: Program) -> tuple[dict[str, Any], str | None]:
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
