"""The commands that change a room or who takes part in it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import click

from weft.kernel.typed_names import shell_word
from weft.surfaces.cli import arguments
from weft.surfaces.cli.call import Call
from weft.surfaces.cli.command import command as weft_command
from weft.surfaces.cli.program_call import complete_programs, named
from weft.surfaces.cli.rooms.options import complete_participants, in_persons_name, room_argument, room_command_line
from weft.surfaces.cli.rooms.text import short_id
from weft.surfaces.cli.screen import Line, Span
from weft.surfaces.wire.rooms import DeclinedInvitation

if TYPE_CHECKING:
    from weft.ledger.api import Ledger, Room

HISTORIES = ("joined", "all")


def room_line(room: Room, *words: Span | str) -> Line:
    return ["room ", Span(short_id(room.id), "id"), " ", Span(room.title or "", "label"), *words]


@weft_command("create")
@click.argument("title", required=False)
@click.option(
    "--agent", "agents", metavar="AGENT", multiple=True, shell_complete=complete_programs("agent"),
    help="An agent that takes part; repeatable.",
)  # fmt: skip
@click.option(
    "--person", "people", metavar="PERSON", multiple=True, shell_complete=complete_programs("human"),
    help="A person who takes part beside you; repeatable.",
)  # fmt: skip
@click.option(
    "--history", type=click.Choice(HISTORIES), default="joined",
    help="What those read who join later: what is said from then on, or all. Default: joined.",
)  # fmt: skip
@arguments.key_option
@in_persons_name
def create(
    call: Call,
    title: str | None,
    agents: tuple[str, ...],
    people: tuple[str, ...],
    history: str,
    key: str | None,
) -> None:
    """Make a room, with agents and people in it. You take part, and so does the triage agent."""
    with call.writing() as ledger:
        room = ledger.rooms.create(title, agents=agents, people=people, history=history, key=key)
    call.answer(room, room_line(room))
    call.note("undo: ", room_command_line(call, "archive", short_id(room.id)))


@weft_command("add")
@room_argument()
@named("agents", "agent", nargs=-1, required=True, metavar="AGENT...")
@in_persons_name
def add(call: Call, room: str, agents: tuple[str, ...]) -> None:
    """Let agents into a room: public ones, and private ones that work for you."""
    _let_in(call, room, agents, lambda ledger, id, agent: ledger.rooms.add(id, agent))


@weft_command("invite")
@room_argument()
@named("people", "human", nargs=-1, required=True, metavar="PERSON...")
@in_persons_name
def invite(call: Call, room: str, people: tuple[str, ...]) -> None:
    """Let people into a room. That confirms the invitation of somebody who was mentioned there."""
    _let_in(call, room, people, lambda ledger, id, person: ledger.rooms.invite(id, person))


def _let_in(call: Call, room: str, names: tuple[str, ...], let_in: Callable[[Ledger, str, str], Room]) -> None:
    """Each name is a change of its own: those before one that is refused have taken place."""
    with call.writing() as ledger:
        changed = ledger.rooms.get(room)
        for name in dict.fromkeys(names):
            changed = let_in(ledger, changed.id, name)
    call.answer(changed, room_line(changed, ": ", ", ".join(names), " takes part" if len(names) == 1 else " take part"))
    for name in names:
        call.note("undo: ", room_command_line(call, "remove", room, name))


@weft_command("decline")
@room_argument()
@named("person", "human", required=False)
@in_persons_name
def decline(call: Call, room: str, person: str | None) -> None:
    """End an invitation without anybody joining: your own, or as a participant that of PERSON."""
    invited = person or call.actor
    with call.writing() as ledger:
        ledger.rooms.decline(room, invited)
    declined = DeclinedInvitation(room=room, person=invited)
    call.answer(declined, ["the invitation of ", Span(invited, "user"), " is over"])


@weft_command("remove")
@room_argument()
@click.argument("who", shell_complete=complete_participants("agent", "user"))
@in_persons_name
def remove(call: Call, room: str, who: str) -> None:
    """Take an agent or a person out of a room. What was said stays; what an agent has not begun to answer is dropped.

    People are removed by whoever made the room. An agent's owner may keep its removal to
    themselves; system agents stay.
    """
    with call.writing() as ledger:
        record = ledger.rooms.get(room)
        participant = next((one for one in ledger.rooms.participants(record.id) if who in (one.name, one.node)), None)
        ledger.rooms.remove(record.id, who)
        changed = ledger.rooms.get(record.id)
    call.answer(changed, room_line(changed, ": ", who, " takes part no longer"))
    if participant is not None:
        verb = "add" if participant.kind == "agent" else "invite"
        call.note("undo: ", room_command_line(call, verb, room, who))


@weft_command("leave")
@room_argument()
@in_persons_name
def leave(call: Call, room: str) -> None:
    """Take part in a room no longer. What was said until then you can still read."""
    with call.writing() as ledger:
        record = ledger.rooms.get(room)
        participants = ledger.rooms.participants(record.id)
        ledger.rooms.leave(record.id)
        left = ledger.rooms.get(record.id)
    call.answer(left, room_line(left, ": you take part no longer"))
    is_agent = any(one.kind == "agent" and call.actor in (one.name, one.node) for one in participants)
    verb = "add" if is_agent else "invite"
    call.note("a participant can let you in again: ", f"weft room {verb} {shell_word(room)} {shell_word(call.actor)}")


@weft_command("title")
@room_argument()
@click.argument("title")
@in_persons_name
def title(call: Call, room: str, title: str) -> None:
    """Give a room another title."""
    with call.writing() as ledger:
        before = ledger.rooms.get(room)
        changed = ledger.rooms.retitle(before.id, title)
    call.answer(changed, room_line(changed))
    if before.title:
        call.note("undo: ", room_command_line(call, "title", short_id(changed.id), before.title))


@weft_command("archive")
@room_argument()
@in_persons_name
def archive(call: Call, room: str) -> None:
    """Put a room away: nothing more is said in it, and lists leave it out. Whoever made it does that."""
    with call.writing() as ledger:
        archived = ledger.rooms.archive(room)
    call.answer(archived, room_line(archived, " is archived"))
    call.note("undo: ", room_command_line(call, "restore", short_id(archived.id)))


@weft_command("restore")
@room_argument("archived")
@in_persons_name
def restore(call: Call, room: str) -> None:
    """Bring an archived room back."""
    with call.writing() as ledger:
        restored = ledger.rooms.restore(room)
    call.answer(restored, room_line(restored, " takes messages again"))
    call.note("undo: ", room_command_line(call, "archive", short_id(restored.id)))


@weft_command("fork")
@room_argument("active", "archived")
@click.argument("position", required=False, type=click.IntRange(1))
@click.option("--title", metavar="TITLE", help="The new room's title. Default: that of the other one.")
@in_persons_name
def fork(call: Call, room: str, position: int | None, title: str | None) -> None:
    """Make a new room that goes on from a message of another one, by default its newest.

    The agents that were there come along, with forks of their sessions; of the people only you. Both rooms go on
    independently.
    """
    with call.writing() as ledger:
        forked = ledger.rooms.fork(room, position, title=title)
    call.answer(forked, room_line(forked, f" goes on from message {forked.fork_position}"))
    if title is None and forked.title is not None:
        call.note("both rooms have that title: name this one by its id, or `weft room title` gives it another")
    call.note("undo: ", room_command_line(call, "archive", short_id(forked.id)))
