"""Triggers: made, configured, paused, resumed and deleted; what sets one off, where its messages go, what it did last
and does next, and which times it missed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

from weft.kernel.enums import WEBHOOK_SCHEMES, MissedChoice, SessionPeriod, WebhookScheme
from weft.ledger.api import Firing
from weft.verbs.answers import Listing
from weft.verbs.declaration import (
    ExpectedVersion,
    Fields,
    OpenMode,
    ParameterGroup,
    Reason,
    RequestError,
    RetryKey,
    VerbGroup,
    arg,
    fields_set,
    opt,
    program,
    verb,
)
from weft.verbs.program_answers import ListedTrigger, ShownTrigger

if TYPE_CHECKING:
    from weft.ledger.api import Ledger
    from weft.programs import Program, Programs

CONFIGURE = "program:trigger:configure"
MOST_FIRINGS = 10_000
MOST_GAPS = 100

TriggerName = Annotated[str, arg("A trigger.", names=program("trigger"))]

trigger_group = VerbGroup(
    "trigger",
    """Manage triggers: messages sent by time, webhook, event or file.

    A trigger is a program with versions, tags and rights; a broker (`weft broker`) has it fire, each occasion once.
    docs/agents.md#triggers has the details.
    """,
)


# --- What sets a trigger off, what it says and to whom.

OCCASIONS = {
    "cron": "cron", "every": "interval", "at": "at", "webhook": "webhook", "event": "event", "file": "file",
    "task": "task", "room": "room",
}  # fmt: skip
"""By parameter that names what sets a trigger off, the field of the configuration that holds it."""
DETAILS = {
    "zone": ("cron", "at"), "secret": ("webhook",), "where": ("event",), "pattern": ("file",),
}  # fmt: skip
"""Parameters that say more of one thing that sets a trigger off, and of which."""
TARGETS = {
    "to": "persona", "session": "session", "thread": "thread", "smart": "smart", "sender": "sender", "post_to": "room",
}  # fmt: skip
"""By parameter that says where messages go, the field of the configuration that holds it."""


class TriggerSettings(ParameterGroup, frozen=True, kw_only=True):
    """What sets a trigger off, what it says and to whom."""

    cron: Annotated[
        str | None,
        opt("Fire at these times: five fields, such as '0 7 * * 1-5', or @daily.", metavar="EXPRESSION"),
    ] = None
    zone: Annotated[str | None, opt("The time zone of --cron (default: UTC) or of --at.", metavar="ZONE")] = None
    every: Annotated[str | None, opt("Fire again and again: each 90s, 15m, 2h, 1d or 1w.", metavar="INTERVAL")] = None
    at: Annotated[str | None, opt("Fire once: 2026-12-24T18:00Z, or 2026-12-24T18:00 with --zone.", metavar="TIME")] = (
        None
    )
    webhook: Annotated[
        WebhookScheme | None,
        opt(f"Fire at a webhook of {', '.join(WEBHOOK_SCHEMES[:-1])} or {WEBHOOK_SCHEMES[-1]}.", metavar="SCHEME"),
    ] = None
    secret: Annotated[str | None, opt("The variable that holds the secret of --webhook.", metavar="VARIABLE")] = None
    event: Annotated[str | None, opt("Fire at events of this kind in the ledger (docs/events.md).", metavar="KIND")] = (
        None
    )
    where: Annotated[
        tuple[str, ...],
        opt("With --event: only if this field has this value; repeatable.", metavar="FIELD=VALUE"),
    ] = ()
    file: Annotated[str | None, opt("Fire when files in this folder change.", metavar="DIR", is_path=True)] = None
    pattern: Annotated[
        tuple[str, ...], opt("With --file: only files such as '*.py'; repeatable.", metavar="PATTERN")
    ] = ()
    task: Annotated[str | None, opt("Fire when this task is completed.", metavar="TASK")] = None
    room: Annotated[str | None, opt("Fire at a message in this room.", metavar="ROOM")] = None
    message: Annotated[
        str | None, opt("What it sends; ${payload.FIELD}, ${time}, ${sessions} are put in.", metavar="TEXT")
    ] = None
    to: Annotated[
        str | None,
        opt("Who answers. Default: the agent that makes it; else session trigger:NAME.", metavar="AGENT"),
    ] = None
    session: Annotated[str | None, opt("The session that the message goes to.", metavar="SESSION")] = None
    thread: Annotated[str | None, opt("The turn that the message goes on from.", metavar="TURN")] = None
    smart: Annotated[
        str | None, opt("To the thread that the message fits, else to this session.", metavar="SESSION")
    ] = None
    sender: Annotated[
        str | None,
        opt("To one session for each sender; PLACE is where the payload names the sender.", metavar="PLACE"),
    ] = None
    post_to: Annotated[str | None, opt("The room that it is posted to, where --to answers.", metavar="ROOM")] = None
    include: Annotated[
        SessionPeriod | None,
        opt("List the sessions of yesterday, today or the week for ${sessions}.", metavar="PERIOD"),
    ] = None
    on_missed: Annotated[
        MissedChoice | None,
        opt("What to do about missed times: report, latest or all. Default: report.", metavar="CHOICE"),
    ] = None
    breaker: Annotated[int | None, opt("Errors in a row that pause it. Default: 5.", metavar="N", least=1)] = None


NOTHING_SET = TriggerSettings()


def trigger_config(settings: TriggerSettings, *, is_change: bool = False) -> dict[str, Any]:
    """The configuration that settings describe; in a change, what sets the trigger off need not be named."""
    from msgspec.structs import asdict

    chosen = {name: value for name, value in asdict(settings).items() if value not in (None, ())}
    has_occasion = any(name in chosen for name in (*OCCASIONS, *DETAILS))
    config: dict[str, Any] = {} if is_change and not has_occasion else {"on": _occasion(chosen)}
    to = {field: chosen[name] for name, field in TARGETS.items() if name in chosen}
    if to:
        config["to"] = to
    if "include" in chosen:
        config["include"] = {"sessions": chosen["include"]}
    for name, field in (("message", "message"), ("on_missed", "onMissed"), ("breaker", "breaker")):
        if name in chosen:
            config[field] = chosen[name]
    return config


def _occasion(chosen: Mapping[str, Any]) -> dict[str, Any]:
    import os

    zone = {"zone": chosen["zone"]} if "zone" in chosen else {}
    forms: dict[str, Any] = {
        "cron": lambda: {"expression": chosen["cron"], **zone},
        "at": lambda: {"time": chosen["at"], **zone} if zone else chosen["at"],
        "webhook": lambda: {"scheme": chosen["webhook"], "secret": _variable(chosen.get("secret"))},
        "event": lambda: {
            "kind": chosen["event"],
            **({"filter": _filter(chosen["where"])} if "where" in chosen else {}),
        },
        "file": lambda: {
            "folder": os.path.abspath(chosen["file"]),
            **({"patterns": list(chosen["pattern"])} if "pattern" in chosen else {}),
        },
    }
    named = [name for name in OCCASIONS if name in chosen]
    if len(named) != 1:
        raise RequestError(
            "say once what sets it off: {cron}, {every}, {at}, {webhook}, {event}, {file}, {task} or {room}"
        )
    field = OCCASIONS[named[0]]
    for name, occasions in DETAILS.items():
        if name in chosen and field not in occasions:
            raise RequestError(f"only {' or '.join(f'{{{one}}}' for one in occasions)} takes {{{name}}}")
    return {field: forms[named[0]]() if named[0] in forms else chosen[named[0]]}


def _variable(name: str | None) -> str:
    if not name or not name.isidentifier():
        raise RequestError("{webhook} needs the variable that holds its secret: name it with {secret}")
    return f"${{{name}}}"


def _filter(where: tuple[str, ...]) -> dict[str, Any]:
    import json

    fields: dict[str, Any] = {}
    for item in where:
        field, equals, value = item.partition("=")
        if not equals:
            raise RequestError("{where} {typed} is no FIELD=VALUE", typed=repr(item))
        try:
            fields[field] = json.loads(value)
        except ValueError:
            fields[field] = value
    return fields


def _check_create(settings: TriggerSettings) -> None:
    trigger_config(settings)


@verb(
    "trigger create",
    right=CONFIGURE,
    method="programs.create",
    opens=OpenMode.WRITING,
    takes_actor=True,
    check=_check_create,
)
def trigger_create(
    ledger: Ledger,
    name: Annotated[str, arg("Its name.")],
    settings: TriggerSettings = NOTHING_SET,
    retry_key: RetryKey = None,
) -> Program:
    """Make a trigger: one thing that sets it off, a message, and where that goes. What it names must be there."""
    from weft.programs import Programs
    from weft.runtime.invoke.trigger_firing import ensure_there

    programs, config = Programs(ledger), trigger_config(settings)
    ensure_there(programs, config)
    return programs.create("trigger", name, config, key=retry_key)


@verb("trigger configure", right=CONFIGURE, method="programs.change", opens=OpenMode.WRITING, takes_actor=True)
def trigger_configure(
    ledger: Ledger,
    name: TriggerName,
    settings: TriggerSettings = NOTHING_SET,
    fields: Fields = None,
    reason: Reason = None,
    expected: ExpectedVersion = None,
    retry_key: RetryKey = None,
) -> Program:
    """Change some of a trigger's configuration; it begins anew. What sets it off, and where its message goes, are
    replaced as a whole."""
    from weft.programs import Programs
    from weft.programs.program_records import merged
    from weft.runtime.invoke.trigger_firing import ensure_there

    programs = Programs(ledger)
    trigger = programs.get(name, "trigger")
    before = trigger.config if isinstance(trigger.config, dict) else {}
    config = trigger_config(settings, is_change=True)
    changes = fields_set({field: _replacing(before.get(field), value) for field, value in config.items()}, fields)
    if not changes:
        raise RequestError("say what is to be changed")
    ensure_there(programs, merged(before, changes))
    return programs.change(trigger.id, changes, expected=expected, reason=reason, key=retry_key)


def _replacing(former: Any, value: Any) -> Any:
    """A value with which a change replaces a former one: what is not named again in an object is taken away."""
    if not isinstance(former, dict) or not isinstance(value, dict):
        return value
    return {**dict.fromkeys(former), **{field: _replacing(former.get(field), inner) for field, inner in value.items()}}


# --- Paused, resumed, deleted.


@verb("trigger pause", right=CONFIGURE, method="programs.step_trigger", opens=OpenMode.WRITING, takes_actor=True)
def trigger_pause(ledger: Ledger, name: TriggerName, reason: Reason = None, retry_key: RetryKey = None) -> Program:
    """Keep a trigger from firing. What would have set it off meanwhile is passed over."""
    from weft.programs import Programs

    return Programs(ledger).step_trigger(name, "pause", reason=reason, key=retry_key)


@verb("trigger resume", right=CONFIGURE, method="programs.step_trigger", opens=OpenMode.WRITING, takes_actor=True)
def trigger_resume(ledger: Ledger, name: TriggerName, reason: Reason = None, retry_key: RetryKey = None) -> Program:
    """Let a paused trigger fire again, from now on."""
    from weft.programs import Programs

    return Programs(ledger).step_trigger(name, "resume", reason=reason, key=retry_key)


@verb("trigger delete", right=CONFIGURE, method="programs.delete", opens=OpenMode.WRITING, takes_actor=True)
def trigger_delete(
    ledger: Ledger,
    name: TriggerName,
    reason: Reason = None,
    expected: ExpectedVersion = None,
    retry_key: RetryKey = None,
) -> Program:
    """Delete a trigger. Messages that it sent stay where they are."""
    from weft.programs import Programs

    programs = Programs(ledger)
    trigger = programs.get(name, "trigger")
    return programs.delete(trigger.id, expected=expected, reason=reason, key=retry_key)


# --- Listed and shown, with what they did last and do next.


@verb("trigger list")
def trigger_list(ledger: Ledger) -> Listing[ListedTrigger]:
    """List triggers: what sets each off, when it is due next, what it did last, and how many times it missed."""
    from weft.programs import Programs

    programs, now_ms = Programs(ledger), _now_ms()
    triggers = [ListedTrigger(**_trigger_fields(programs, program, now_ms)) for program in programs.all("trigger")]
    return Listing(items=triggers)


@verb("trigger show")
def trigger_show(ledger: Ledger, name: TriggerName) -> ShownTrigger:
    """Show a trigger: its configuration, what it did last and does next, and the times that it missed."""
    from weft.programs import Programs

    programs = Programs(ledger)
    trigger = programs.get(name, "trigger")
    gaps = tuple(programs.missed_times(trigger.id, limit=MOST_GAPS))
    return ShownTrigger(**_trigger_fields(programs, trigger, _now_ms()), config=trigger.config, gaps=gaps)


@verb("trigger history")
def trigger_history(
    ledger: Ledger,
    name: TriggerName,
    limit: Annotated[
        int, opt("At most N firings. Default: 20.", "-n", "--limit", metavar="N", least=1, most=MOST_FIRINGS)
    ] = 20,
) -> Listing[Firing]:
    """Show when and why a trigger fired, the newest first, and what became of its messages."""
    from weft.programs import Programs

    return Listing(items=Programs(ledger).trigger_firings(name, limit=limit))


def _now_ms() -> int:
    from weft.kernel.clock import SystemClock

    return SystemClock().now_ms()


def _trigger_fields(programs: Programs, program: Program, now_ms: int) -> dict[str, Any]:
    config, fault = _read_trigger(program)
    firings = programs.trigger_firings(program.id, limit=1)
    missed = programs.missed_times(program.id, limit=MOST_GAPS)
    changes = programs.history(program.id)
    since = max((change.at for change in changes if change.kind != "trigger_paused"), default=0)
    reason = next((change.reason for change in changes if change.kind == "trigger_paused"), None)
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
