"""`weft human`: people, what they are asked and what they answer."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from weft.surfaces.cli.approval_requests import ULID_LETTERS, tool_requests, waiting_call
from weft.surfaces.cli.call import Call
from weft.surfaces.cli.command import group
from weft.surfaces.cli.program_call import (
    KEY,
    acting,
    answer,
    changing,
    given,
    invoked,
    json_of,
    looking,
    named,
    set_fields,
    show_list,
    with_fields,
)
from weft.surfaces.cli.screen import Span
from weft.surfaces.cli.times import local_time

if TYPE_CHECKING:
    from weft.ledger.api import Approval, Ledger
    from weft.programs.program_records import PersonRequest

command = group("human", "Manage people: describe them, ask them, record their answers.")
MAKE = "make one with `weft human create NAME`"
YES = "Do not ask about a tool call; needed where nobody is at a terminal."
STYLES = {"approved": "good", "rejected": "bad", "pending": "warn"}


@command.verb("create")
@click.argument("name")
@click.option("--display-name", metavar="TEXT", help="What they are called.")
@click.option(
    "--permission",
    "permissions",
    metavar="RIGHT",
    multiple=True,
    help="approve, assign, configure, or such as session:read(LABEL) or machine:folder(/srv/*).",
)
@click.option("--channel", metavar="NAME", help="How they are told: terminal, command or webhook.")
@set_fields
@acting
def create(
    call: Call,
    name: str,
    display_name: str | None,
    permissions: tuple[str, ...],
    channel: str | None,
    fields: tuple[str, ...],
    actor: str,
    retry_key: str | None,
) -> None:
    """Make a person."""
    preferences = None if channel is None else {"notificationChannel": channel}
    config = given(name=display_name, preferences=preferences)
    config = with_fields({**config, "permissions": list(permissions)}, fields)
    with changing(call, actor) as programs:
        answer(call, programs.create("human", name, config, key=retry_key))


@command.verb("list")
def list_(call: Call) -> None:
    """List people."""
    with looking(call) as programs:
        show_list(call, programs.all("human"), "person", MAKE)


@command.verb("presence")
@named("name", "human")
@click.argument("presence", type=click.Choice(["available", "busy", "away", "offline"]))
@acting
def presence(call: Call, name: str, presence: str, actor: str, retry_key: str | None) -> None:
    """Say whether a person is there."""
    with changing(call, actor) as programs:
        answer(call, programs.set_presence(name, presence, key=retry_key))


def _add_message_verb(verb: str, asks: bool, help: str) -> None:
    @named("name", "human")
    @click.argument("text")
    @click.option("--about", metavar="PROGRAM", help="The program that it is about.")
    @click.option("--data", metavar="JSON", help="What belongs to it.")
    @acting
    def send_message(
        call: Call, name: str, text: str, about: str | None, data: str | None, actor: str, retry_key: str | None
    ) -> None:
        from msgspec import UNSET

        from weft.runtime.invoke.invocation import Invocation

        with looking(call) as programs:
            human = programs.get(name, "human")
        more = UNSET if data is None else json_of(data, "data")
        asked = Invocation(message=text, input=more, asks=asks, about=about, key=retry_key)
        request = invoked(call, actor, human.id, asked).result["request"]
        with looking(call) as programs:
            _show(call, programs.request(request))

    send_message.__doc__ = help
    command.verb(verb)(send_message)


_add_message_verb("notify", False, "Tell a person something, by the channel that they prefer.")
_add_message_verb("ask", True, "Ask a person for a decision; it waits until they approve or reject it.")


@command.verb("requests")
@named("name", "human", required=False)
@click.option("--status", metavar="STATE", help="pending, approved, rejected or told.")
def requests(call: Call, name: str | None, status: str | None) -> None:
    """List what people were told and asked."""
    with looking(call) as programs:
        requests_listed = programs.requests(name, status=status)
        requests_listed += tool_requests(programs, name, status)
        requests_listed.sort(key=lambda one: one.asked_at)
    if call.json:
        call.documents(requests_listed)
    elif requests_listed:
        rows = [
            (Span(_short(one), "id"), one.human, Span(_status(one), STYLES.get(one.status, "")),
             local_time(one.asked_at), one.text or "")
            for one in requests_listed
        ]  # fmt: skip
        call.screen.table(rows, ("request", "person", "status", "asked", "what"))
    else:
        call.note("nobody was asked anything; ask with `weft human ask NAME TEXT`")


def _short(request: PersonRequest) -> str:
    """As much of an id as is typed: the end of one, of a tool call's request the beginning."""
    return request.id[:12] if len(request.id) > ULID_LETTERS else request.id[-8:]


def _status(request: PersonRequest) -> str:
    """With what another ledger says was answered, where nobody here has taken that over."""
    return (
        request.status if request.pending_answer is None else f"{request.status} ({request.pending_answer} elsewhere)"
    )


def _answer(verb: str, help: str) -> None:
    @named("name", "human")
    @click.argument("request")
    @click.option("--reason", metavar="TEXT", help="Why.")
    @click.option("--key", "retry_key", metavar="KEY", help=KEY)
    def decide(
        call: Call, name: str, request: str, reason: str | None, retry_key: str | None, yes: bool = False
    ) -> None:
        with changing(call, name) as programs:
            if (approval := waiting_call(programs, request)) is not None:
                _answer_call(call, programs.ledger, approval, verb, reason, is_sure=yes)
                return
            chosen = programs.approve if verb == "approve" else programs.reject
            _show(call, chosen(request, reason=reason, key=retry_key))

    decide.__doc__ = help
    if verb == "approve":
        decide = click.option("-y", "--yes", is_flag=True, help=YES)(decide)
    command.verb(verb)(decide)


_answer("approve", "Say yes to what a person was asked, as that person.")
_answer("reject", "Say no to what a person was asked, as that person.")


def _answer_call(
    call: Call, ledger: Ledger, approval: Approval, verb: str, reason: str | None, *, is_sure: bool
) -> None:
    """The same request that `weft approve` and `weft reject` answer."""
    from weft.surfaces.cli.approval_call import ApprovalAnswer, decide

    decide(call, ledger, approval, ApprovalAnswer(is_granted=verb == "approve", reason=reason), is_sure=is_sure)


def _show(call: Call, request: PersonRequest) -> None:
    call.answer(
        request, ["request ", Span(_short(request), "id"), " is ", Span(request.status, STYLES.get(request.status, ""))]
    )
