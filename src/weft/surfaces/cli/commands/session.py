"""`weft session`: a session as a program: made with a model, paused, resumed, completed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from weft.kernel.shell_words import shell_word
from weft.surfaces.cli.call import Call
from weft.surfaces.cli.command import group
from weft.surfaces.cli.program_call import (
    acting,
    answer,
    answer_invoked,
    as_actor,
    changing,
    complete_programs,
    given,
    invoked,
    said,
    session_argument,
    set_fields,
    with_fields,
)
from weft.surfaces.cli.screen import Span
from weft.surfaces.wire.forms import JsonValue

if TYPE_CHECKING:
    from weft.ledger.api import Ledger

command = group("session", "Make sessions with a model, send to them; pause, resume and complete them.")


@command.verb("create")
@click.argument("label", required=False)
@click.option("--model", metavar="NAME", shell_complete=complete_programs("model"), help="The model that it asks.")
@click.option("--owner", metavar="NAME", shell_complete=complete_programs("agent"), help="The agent that owns it.")
@set_fields
@acting
def create(
    call: Call,
    label: str | None,
    model: str | None,
    owner: str | None,
    fields: tuple[str, ...],
    actor: str,
    retry_key: str | None,
) -> None:
    """Make a session; without a label it gets one."""
    with changing(call, actor) as programs:
        created = programs.create_session(
            label, model=model, owner=owner, config=with_fields({}, fields), key=retry_key
        )
        answer(call, created)


@command.verb("configure")
@session_argument()
@click.option("--model", metavar="NAME", shell_complete=complete_programs("model"), help="Ask this model from now on.")
@set_fields
@acting
def configure(
    call: Call, session: str, model: str | None, fields: tuple[str, ...], actor: str, retry_key: str | None
) -> None:
    """Change some fields of a session's configuration."""
    with changing(call, actor) as programs:
        opened = programs.ledger.session(session)
        answer(call, programs.change(opened.id, with_fields(given(defaultModel=model), fields), key=retry_key))


@command.verb("send")
@session_argument()
@click.argument("message")
@click.option("--model", metavar="NAME", shell_complete=complete_programs("model"), help="Ask this model, this once.")
@click.option("--situation", metavar="NAME", help="Ask with the parameters of this situation.")
@click.option("--stream", is_flag=True, help="Show the answer as it comes.")
@as_actor
def send(
    call: Call, session: str, message: str, model: str | None, situation: str | None, stream: bool, actor: str
) -> None:
    """Send a message to a session; its model answers, and both become a turn. - reads it from standard input."""
    from weft.runtime.invoke.invocation import Invocation

    with call.reading() as ledger:
        opened = ledger.session(session)
    asked = Invocation(message=said(message), model=model, situation=situation)
    answer_invoked(call, invoked(call, actor, opened.id, asked, stream=stream), shown=stream)


@command.verb("history")
@session_argument()
def history(call: Call, session: str) -> None:
    """Show what was said in a session: as a log entry each with --json, without tool calls and thinking."""
    with call.reading() as ledger:
        opened = ledger.session(session)
        entries = [] if opened.head is None else list(_entries(ledger, opened.label))
    if call.json:
        call.documents(map(JsonValue, entries))
        return
    for entry in entries:
        message = entry["message"]
        by = f" {message['model']}" if "model" in message else ""
        call.screen.show(Span(f"{message['role']}{by}", "label"), Span(f" {entry.get('timestamp', '')}", "dim"))
        for line in message["content"].split("\n"):
            call.screen.show(f"  {line}")
    if not entries:
        call.note(f"nothing was said yet; `weft session send {shell_word(session)} TEXT` begins")


def _entries(ledger: Ledger, session: str) -> Iterator[dict[str, Any]]:
    from io import BytesIO

    import orjson

    from weft.exchange.exporters.export import export

    log = BytesIO()
    export(ledger, session, "jsonl", log)
    return map(orjson.loads, log.getvalue().splitlines())


def _step(verb: str, help: str) -> None:
    @session_argument()
    @click.option("--reason", metavar="TEXT", help="Why.")
    @acting
    def step(call: Call, session: str, reason: str | None, actor: str, retry_key: str | None) -> None:
        with changing(call, actor) as programs:
            opened = programs.ledger.session(session)
            answer(call, programs.step_session(opened.id, verb, reason=reason, key=retry_key))

    step.__doc__ = help
    command.verb(verb)(step)


_step("pause", "Let a session take no turns for now.")
_step("resume", "Let a paused session go on.")
_step("complete", "Let a session take no more turns; it can be forked.")
