"""Invokes people: what they are told or asked is recorded first, and then brought to them.

A terminal is a surface's business. A command is one of this machine's own, named by a variable: what a ledger says is
never run. A webhook gets JSON, over a guarded connection. If bringing it fails, it is kept all the same, and the error
says so.
"""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

from msgspec import UNSET

from weft.kernel.clock import iso_from_ms
from weft.kernel.contents import json_bytes
from weft.kernel.errors import Action, InvalidConfig, InvalidInput, ProviderUnreachable, Unsupported, WeftError
from weft.programs.foreign import ensure_own
from weft.programs.model import PersonRequest, Program
from weft.programs.placeholders import is_placeholder, resolve_config
from weft.programs.programs import Programs
from weft.programs.vouching import ensure_vouched
from weft.runtime.egress.connection_rules import Rules
from weft.runtime.invoke.invocation import Invocation, InvocationContext, InvocationResult
from weft.runtime.invoke.model_settings import plain_resolver
from weft.runtime.sandbox.key_commands import NEEDED
from weft.runtime.sandbox.processes import Limits, run_process

COMMAND = "${WEFT_NOTIFY_COMMAND}"
_LIMITS = Limits(seconds=30, output=64 * 1024)
_RULES = Rules(connect_seconds=10, read_seconds=20)


async def invoke_human(context: InvocationContext, program: Program, invocation: Invocation) -> InvocationResult:
    """Tell a person something, or with `asks` have them decide: pending until they approve or reject it."""
    if not isinstance(invocation.message, str):
        raise InvalidInput("a person is told text", Action.GIVE_MESSAGE)
    ensure_own(program)
    context.execution_context.ensure_allowed(f"human:{program.name}")
    request, is_new = await context.across(lambda: _record(context.programs, program, invocation))
    channel = await deliver(context, program, request) if is_new else None
    result = {"request": request.id, "status": request.status, "channel": channel}
    return InvocationResult(program=program.name, kind=program.kind, result=result)


def _record(programs: Programs, human: Program, invocation: Invocation) -> tuple[PersonRequest, bool]:
    """What they are told, recorded; a repeated command finds what it made before, and tells nobody again."""
    before = {request.id for request in programs.requests(human.id)} if invocation.key is not None else set()
    data = None if invocation.input is UNSET else invocation.input
    request = programs.notify(
        human.id, invocation.message, asks=invocation.asks, program=invocation.about, data=data, key=invocation.key
    )
    return request, request.id not in before


async def deliver(context: InvocationContext, human: Program, request: PersonRequest) -> str:
    """Bring it to them by the channel that they prefer; returns which."""
    channel = channel_of(ensure_vouched(human))
    try:
        await _CHANNELS[channel](context, human, request)
    except WeftError as error:
        hint = error.hint
        kept = Action.READ_REQUEST_AFTER.of(hint=hint, human=human.name)
        error.advice = kept if hint else Action.READ_REQUEST.of(human=human.name)
        raise
    return channel


def channel_of(human: Program) -> str:
    """How they want to be told."""
    return str(_preferences(human).get("notificationChannel", "terminal"))


def _preferences(human: Program) -> dict[str, Any]:
    preferences = human.config.get("preferences") if isinstance(human.config, dict) else None
    return preferences if isinstance(preferences, dict) else {}


async def _terminal(context: InvocationContext, _: Program, request: PersonRequest) -> None:
    if context.show is None:
        raise Unsupported("there is no terminal here to show it on", "prefer another channel")
    context.show(request.human, request.text or "")


async def _command(context: InvocationContext, human: Program, request: PersonRequest) -> None:
    variable = _preferences(human).get("command", COMMAND)
    if not is_placeholder(variable):
        raise InvalidConfig(
            "config.preferences.command", "is a command itself", f"name a variable that holds one, such as {COMMAND}"
        )
    words = shlex.split(str(resolve_config(variable, context.variable, "config.preferences.command")))
    environment = {name: value for name in NEEDED if (value := context.variable(name)) is not None}
    outcome = await run_process(
        words, environment=environment, folder=Path("/"), stdin=(request.text or "").encode() + b"\n", limits=_LIMITS
    )
    if not outcome.succeeded:
        ended = f"ended with {outcome.code}" if outcome.ending == "exited" else str(outcome.ending)
        raise Unsupported(f"the command that should tell {request.human!r} {ended}", "run it yourself and look")


async def _webhook(context: InvocationContext, human: Program, request: PersonRequest) -> None:
    preferences = _preferences(human)
    if not isinstance(preferences.get("webhook"), str):
        raise InvalidConfig("config.preferences.webhook", "is missing", "give the URL that is to be told")
    url = resolve_config(preferences["webhook"], plain_resolver(context.variable), "config.preferences.webhook")
    body = json_bytes(_request_fields(request), "notification")
    client, _ = context.inference.connections.client(url, {}, _RULES)
    from weft.runtime.egress.connections import TransportError

    try:
        answer = await client.post(url, content=body, headers={"content-type": "application/json"})
    except TransportError as error:
        raise ProviderUnreachable(f"the webhook of {request.human!r}: {type(error).__name__}") from None
    if answer.status_code >= 300:
        raise ProviderUnreachable(f"the webhook of {request.human!r} answered {answer.status_code}")


def _request_fields(request: PersonRequest) -> dict[str, Any]:
    fields = {
        "request": request.id,
        "human": request.human,
        "text": request.text,
        "asks": request.asks,
        "status": request.status,
        "askedBy": request.asked_by,
        "askedAt": iso_from_ms(request.asked_at),
        "program": request.program,
        "data": request.data,
    }
    return {name: value for name, value in fields.items() if value is not None}


_CHANNELS = {"terminal": _terminal, "command": _command, "webhook": _webhook}
