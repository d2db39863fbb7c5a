"""`weft room`, and of its commands those that last: `chat` and `follow`, a room while things
happen in it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from weft.surfaces.cli.chat.rooms import (
    add,
    archive,
    create,
    decline,
    fork,
    in_persons_name,
    invitations,
    invite,
    leave,
    list_,
    post,
    profile,
    read,
    remove,
    restore,
    room_argument,
    room_command_line,
    show,
    title,
)
from weft.surfaces.cli.command_line import Call, group
from weft.surfaces.cli.command_line import command as weft_command

if TYPE_CHECKING:
    from weft.surfaces.cli.work.broker_call import BrokerAccess


# --- `weft room chat` and `weft room follow`: a room while things happen in it.


@weft_command("chat")
@room_argument()
@in_persons_name
def chat(call: Call, room: str) -> None:
    """Chat in a room: say things, see what others say, and answers while they are written.

    `@name` mentions somebody, and Tab completes it; agents that are mentioned answer, several at once. What you say is
    answered in this process, unless a broker is quicker. Tool calls that wait for a person are asked about here.

    On a terminal /help lists what else can be done. In a pipe every line is a message, answered before the next.

    Answers that are being written stand below what was said, one agent below the other; when they are posted they are
    shown whole, in their place among the messages. Ctrl-C drops the line that is typed; on an empty one it cuts the
    answers short that you wait for.

    \b
    weft room chat plans
    echo "@helper what is next?" | weft room chat plans
    """
    from weft.kernel.errors import NotApplicable
    from weft.surfaces.cli.chat.room_terminal import RoomTerminal, can_draw, run_piped
    from weft.surfaces.cli.work.broker_call import with_broker

    if call.json:
        raise click.UsageError("a conversation has no JSON form; `weft room post` and `weft room follow` have one")
    if call.token is not None:
        raise NotApplicable("whoever acts with a token runs no turns", "use `weft room post` and `weft room follow`")
    owner = call.of_owner()

    async def work(access: BrokerAccess) -> None:
        mirror = owner.in_name_of(call.actor, access.mirror)
        if can_draw():
            await RoomTerminal(owner, access, mirror).run(room)
        else:
            await run_piped(owner, access, mirror, room)

    with_broker(owner, work)


@weft_command("follow")
@room_argument("active", "archived")
@click.option("--after", type=int, metavar="POSITION", help="Start after this position; 0 is the beginning.")
@click.option("--wait", type=float, metavar="SECONDS", help="End when nothing has come for SECONDS; 0 does not wait.")
@in_persons_name
def follow(call: Call, room: str, after: int | None, wait: float | None) -> None:
    """Follow a room: what is said, who joins and leaves, and who is answering.

    It begins with what comes next, and goes on until it is interrupted or you take part no longer. With --after it goes
    on where somebody stopped: every message once and in order. With --json every line is a record
    with its `type`: messages, who came, went or is thinking, and answers piece by piece while they are written;
    docs/json.md has their fields.
    """
    import asyncio
    from contextlib import suppress

    from weft.surfaces.cli.chat.room_terminal import RoomPrinter

    printer = RoomPrinter(call)

    async def main() -> None:
        from weft.aio.crossing import Pool
        from weft.aio.ledger import AsyncLedger
        from weft.chat.room_stream import follow_room

        ledger, pool = call.reading(), Pool()
        try:
            async for item in follow_room(AsyncLedger(ledger, pool), room, after=after, wait=wait):
                printer.show(item)
        finally:
            await pool.close(ledger.close)

    with suppress(KeyboardInterrupt):  # how it ends
        asyncio.run(main())
    printer.close()
    if printer.position and not printer.is_ended and not call.json:
        call.note("what comes next: ", room_command_line(call, "follow", room, "--after", str(printer.position)))


# --- `weft room`: conversations of people and agents.

room_command = group(
    "room",
    """Talk in rooms: people and agents together.

    Agents answer where they are mentioned; a message that mentions nobody goes to the triage agent. ROOM is a title, an
    id or the end of one. Every command takes --as NAME: who acts, by default local, the ledger's owner, who reads every
    room. docs/rooms.md has the details.
    """,
    create,
    list_,
    show,
    post,
    read,
    chat,
    follow,
    add,
    invite,
    remove,
    invitations,
    decline,
    profile,
    title,
    fork,
    leave,
    archive,
    restore,
)
