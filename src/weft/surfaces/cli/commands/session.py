"""`weft session`: a session as a program: made with a model, promoted, merged, paused, resumed, completed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from weft.kernel.contents import decode_utf8
from weft.kernel.typed_names import shell_word
from weft.surfaces.cli.arguments import complete_labels, read_input
from weft.surfaces.cli.call import Call, undo
from weft.surfaces.cli.command import group
from weft.surfaces.cli.default_session import named_or_latest
from weft.surfaces.cli.history import short
from weft.surfaces.cli.program_call import (
    acting,
    answer,
    answer_invoked,
    as_actor,
    changing,
    complete_programs,
    given,
    invoked,
    message_text,
    session_argument,
    set_fields,
    with_fields,
)
from weft.surfaces.cli.screen import Span
from weft.surfaces.wire.forms import JsonValue

if TYPE_CHECKING:
    from weft.ledger.api import Ledger, Unification

MAX_ENTRY_BYTES = 64 * 1024 * 1024
"""So much of a log's first line is read."""
command = group("session", "Create sessions, send to them, pause, resume, unify and complete them.")


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
@click.option("--owner", metavar="NAME", shell_complete=complete_programs("agent", "human"), help="Give it to another.")
@set_fields
@acting
def configure(
    call: Call,
    session: str,
    model: str | None,
    owner: str | None,
    fields: tuple[str, ...],
    actor: str,
    retry_key: str | None,
) -> None:
    """Change some fields of a session's configuration."""
    changes = with_fields(given(defaultModel=model, owner=owner), fields)
    with changing(call, actor) as programs:
        opened = programs.ledger.session(session)
        answer(call, programs.change(opened.id, changes, key=retry_key))


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
    asked = Invocation(message=message_text(message), model=model, situation=situation)
    answer_invoked(call, invoked(call, actor, opened.id, asked, stream=stream), shown=stream)


@command.verb("history")
@session_argument(required=False)
@click.option("--write", is_flag=True, help="Write the log entries into the session's logFile instead.")
def history(call: Call, session: str | None, write: bool) -> None:
    """Show what was said in a session, without one named in the latest: as a log entry each with --json, without tool
    calls and thinking."""
    if write:
        if session is None:
            raise click.UsageError("name the session whose log is written")
        _write_log(call, session)
        return
    with call.reading() as ledger:
        name = named_or_latest(call, ledger, session)
        entries = [] if name is None else _history(ledger, name)
    if call.json:
        call.documents(map(JsonValue, entries))
        return
    for entry in entries:
        message = entry["message"]
        by = f" {message['model']}" if "model" in message else ""
        call.screen.show(Span(f"{message['role']}{by}", "label"), Span(f" {entry.get('timestamp', '')}", "dim"))
        for line in message["content"].split("\n"):
            call.screen.show(f"  {line}")
    if name is not None and not entries:
        call.note(f"nothing was said yet; `weft session send {shell_word(name)} TEXT` begins")


def _history(ledger: Ledger, name: str) -> list[dict[str, Any]]:
    opened = ledger.session(name)
    return [] if opened.head is None else list(_entries(ledger, opened.label))


def _write_log(call: Call, session: str) -> None:
    """The log as it is now, in place of the one that was written before."""
    from weft.exchange.exporters.export import export
    from weft.kernel.errors import InvalidInput, NotApplicable
    from weft.programs import Programs
    from weft.programs.program_writer import ensure_vouched

    with call.copying() as ledger:
        opened = ledger.session(session)
        config = ensure_vouched(Programs(ledger).get(opened.id, "session")).config
        name = config.get("logFile") if isinstance(config, dict) else None
        if not isinstance(name, str):
            hint = f"`weft session configure {shell_word(session)} --set logFile=FILE`"
            raise NotApplicable(f"session {opened.label!r} has no logFile", hint)
        if Path(name).exists() and not _is_log(Path(name)):
            raise InvalidInput(f"{name} is there and is no log of a session", "move it away, or name another logFile")
        export(ledger, opened.label, "jsonl", name, force=True)
    call.note(f"written to {name}")


def _is_log(path: Path) -> bool:
    """Whether a file begins with a log entry, or is empty."""
    import orjson

    with path.open("rb") as file:
        first = file.readline(MAX_ENTRY_BYTES)
    try:
        return not first or "sessionId" in orjson.loads(first)
    except (orjson.JSONDecodeError, TypeError):
        return False


def _entries(ledger: Ledger, session: str) -> Iterator[dict[str, Any]]:
    from io import BytesIO

    import orjson

    from weft.exchange.exporters.export import export

    log = BytesIO()
    export(ledger, session, "jsonl", log)
    return map(orjson.loads, log.getvalue().splitlines())


@command.verb("promote")
@session_argument()
@click.argument("key")
@as_actor
def promote(call: Call, session: str, key: str, actor: str) -> None:
    """Let the key of a person or an agent lead to a session, once it is known whose session it is.

    The key becomes an alias of the session, with the reason identity_promotion.
    """
    with call.writing() as ledger:
        promoted = call.in_name_of(actor, ledger).labels.promote(session, key)
    call.answer(promoted, [Span(key, "label"), " leads to ", Span(promoted.label, "label")])


@command.verb("unify")
@session_argument()
@click.option("--into", metavar="SESSION", shell_complete=complete_labels, help="The session that stays.")
@click.option("--summary", metavar="TEXT", help="What the other session is told, instead of a list of what was asked.")
@click.option("--summary-from", metavar="FILE", type=click.Path(), help="Read it from here; - is standard input.")
@click.option("--undo", "back", is_flag=True, help="Make an archived session active again, with its names.")
@acting
def unify(
    call: Call,
    session: str,
    into: str | None,
    summary: str | None,
    summary_from: str | None,
    back: bool,
    actor: str,
    retry_key: str | None,
) -> None:
    """Make one session out of two that belong together.

    SESSION is archived. Its label and its aliases lead to the other session, where a turn tells when it was used, what
    was asked there and what is unresolved. Turns stay where they are. Refused while a turn of either is being recorded.
    """
    if back:
        if (into, summary, summary_from, retry_key) != (None,) * 4:
            raise click.UsageError("--undo takes a session and nothing else")
        with call.writing() as ledger:
            separated = call.in_name_of(actor, ledger).merges.separate(session)
        call.answer(separated, [Span(separated.label, "label"), " is a session of its own again"])
        return
    if into is None:
        raise click.UsageError("name the session that stays: --into SESSION")
    if summary is not None and summary_from is not None:
        raise click.UsageError("give the summary once: --summary or --summary-from")
    if summary_from is not None:
        summary = decode_utf8(read_input(summary_from, "no summary was piped in"), "summary").rstrip("\n")
    with call.writing() as ledger:
        unified = call.in_name_of(actor, ledger).merges.unify(session, into=into, summary=summary, key=retry_key)
    _answer_unified(call, unified)


def _answer_unified(call: Call, unified: Unification) -> None:
    stays, names = Span(unified.session.label, "label"), ", ".join(unified.names)
    archived = Span(unified.archived.label, "label")
    verb = "leads" if len(unified.names) == 1 else "lead"
    call.answer(
        unified,
        [Span(names, "label"), f" {verb} to ", stays],
        [Span(short(unified.summary.id), "id"), " on ", stays, " tells of ", archived, ", which is archived"],
    )
    call.note(undo("session", "unify", unified.archived.label, "--undo"))


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
