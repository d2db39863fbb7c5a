"""`weft program`: what all kinds of program have in common."""

from __future__ import annotations

from typing import Any

import click

from weft.surfaces.cli.call import Call
from weft.surfaces.cli.command import group
from weft.surfaces.cli.program_call import (
    acting,
    answer,
    answer_invoked,
    as_actor,
    changing,
    complete_programs,
    expecting,
    invoked,
    json_of,
    looking,
    message_text,
    named,
    set_fields,
    show_list,
    show_program,
    with_fields,
)
from weft.surfaces.cli.screen import Line, Span
from weft.surfaces.cli.times import local_time

command = group("program", "List, show, compare and retire programs of every kind.")
KINDS = ("code", "provider", "model", "session", "agent", "task", "information", "human")
STYLES = {"added": "good", "removed": "bad", "changed": "warn"}


@command.verb("list")
@click.option("--type", "kind", type=click.Choice(KINDS), help="Only programs of this kind.")
@click.option("--all", "hidden", is_flag=True, help="Also those that were deleted.")
def list_(call: Call, kind: str | None, hidden: bool) -> None:
    """List programs."""
    with looking(call) as programs:
        programs_listed = programs.all(kind, deleted=hidden)
        labels = programs.ledger.listing().short_labels() if call.screen.terminal else {}
    hint = "`weft help` shows how to make them"
    show_list(call, programs_listed, kind or "program", hint, kinds=True, labels=labels)


@command.verb("get")
@named("name")
def get(call: Call, name: str) -> None:
    """Show a program, or with NAME:VERSION an earlier configuration of it."""
    with looking(call) as programs:
        program = programs.get(name)
    show_program(call, program)


@command.verb("history")
@named("name")
def history(call: Call, name: str) -> None:
    """Show everything that happened to a program, the newest first."""
    with looking(call) as programs:
        changes = programs.history(name)
    if call.json:
        call.documents(changes)
        return
    rows = [
        (f"{one.version}" if one.config is not None else "", one.kind, one.state, one.actor, local_time(one.at),
         f"said by replica {one.replica}, not taken over" if one.foreign else one.reason or "")
        for one in changes
    ]  # fmt: skip
    call.screen.table(rows, ("version", "event", "state", "by", "when", "why"))


@command.verb("diff")
@named("name")
@click.argument("before", type=int, required=False)
@click.argument("after", type=int, required=False)
def diff(call: Call, name: str, before: int | None, after: int | None) -> None:
    """Show where two versions of a program's configuration differ: by default the last two."""
    with looking(call) as programs:
        differences = programs.diff(name, before, after)
    if call.json:
        call.documents(differences)
        return
    for one in differences:
        values = [_short(one.before)] if one.how != "added" else []
        values += [_short(one.after)] if one.how != "removed" else []
        call.screen.show(Span(f"{one.how:<8}", STYLES[one.how]), f" {one.path}: {' → '.join(values)}")
    if not differences:
        call.note("they do not differ")


def _short(value: Any) -> str:
    from weft.surfaces.wire.json_text import document

    return document(value)


@command.verb("configure")
@named("name")
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
) -> None:
    """Change some fields of a program's configuration; null takes one away."""
    with changing(call, actor) as programs:
        changes = with_fields({}, fields)
        answer(call, programs.change(name, changes, expected=expected, reason=reason, key=retry_key))


@command.verb("revert")
@named("name")
@click.argument("version", type=int)
@click.option("--reason", metavar="TEXT", help="Why.")
@expecting
@acting
def revert(
    call: Call, name: str, version: int, reason: str | None, expected: int | None, actor: str, retry_key: str | None
) -> None:
    """Take up an earlier version of a program's configuration again."""
    with changing(call, actor) as programs:
        answer(call, programs.revert(name, version, expected=expected, reason=reason, key=retry_key))


def _step(verb: str, help: str) -> None:
    @named("name")
    @click.option("--reason", metavar="TEXT", help="Why.")
    @acting
    def step(call: Call, name: str, reason: str | None, actor: str, retry_key: str | None) -> None:
        with changing(call, actor) as programs:
            steps = {"publish": programs.publish, "deprecate": programs.deprecate, "delete": programs.delete}
            program = steps[verb](name, reason=reason, key=retry_key)
            more: list[Line] = [["  hidden; its history stays"]] if verb == "delete" else []
            answer(call, program, *more)

    step.__doc__ = help
    command.verb(verb)(step)


_step("publish", "Let a draft be used.")
_step("deprecate", "Say that a program should not be used any longer.")
_step("delete", "Hide a program and free its name; its history stays.")


@command.verb("invoke")
@named("name")
@click.option("--message", metavar="TEXT", help="What is said to it; - reads it from standard input.")
@click.option("--input", "value", metavar="JSON", help="What it is given; with @ the file that holds it.")
@click.option("--model", metavar="NAME", shell_complete=complete_programs("model"), help="Ask this model, this once.")
@click.option("--situation", metavar="NAME", help="Ask with the parameters of this situation.")
@click.option("--stream", is_flag=True, help="Show a model's answer as it comes.")
@as_actor
def invoke(
    call: Call,
    name: str,
    message: str | None,
    value: str | None,
    model: str | None,
    situation: str | None,
    stream: bool,
    actor: str,
) -> None:
    """Put a program to work: ask a model, send to a session, run code, and so on, each kind in its way."""
    from msgspec import UNSET

    from weft.runtime.invoke.invocation import Invocation

    more = UNSET if value is None else json_of(value, "input")
    asked = Invocation(message=message_text(message), input=more, model=model, situation=situation)
    answer_invoked(call, invoked(call, actor, name, asked, stream=stream), shown=stream)
