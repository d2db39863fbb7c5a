"""What the commands of rooms take: a room, those who take part, and in whose name; and how a shell completes them."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, Any, TypeVar

import click

from weft.kernel.typed_names import shell_line
from weft.surfaces.cli.call import OWNER, Call
from weft.surfaces.cli.program_call import as_actor
from weft.surfaces.cli.rooms.text import room_name

if TYPE_CHECKING:
    from weft.kernel.errors import NotAllowed

F = TypeVar("F", bound=Callable[..., Any])
MOST_ROOMS = 1000


def complete_rooms(*statuses: str) -> Callable[[click.Context, click.Parameter, str], list[str]]:
    """The titles of the rooms of whoever acts; of one without a title the end of its id."""

    def complete(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
        from weft.kernel.errors import WeftError

        try:
            with Call.completing(ctx).reading() as ledger:
                rooms = [room for status in statuses for room in ledger.rooms.list(status=status, limit=MOST_ROOMS)]
        except (WeftError, OSError):
            return []
        return [name for name in map(room_name, rooms) if name.startswith(incomplete)]

    return complete


def complete_participants(*kinds: str) -> Callable[[click.Context, click.Parameter, str], list[str]]:
    """The names of those who take part in the room that the line names."""

    def complete(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
        from weft.kernel.errors import WeftError

        try:
            with Call.completing(ctx).reading() as ledger:
                participants = ledger.rooms.participants(str(ctx.params.get("room")))
        except (WeftError, OSError):
            return []
        names = [one.name for one in participants if one.kind in kinds and one.system_kind is None]
        return [name for name in names if name.startswith(incomplete)]

    return complete


def complete_mentions(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
    """A message whose last word begins with an @: whom those letters may mean, participants first."""
    from weft.kernel.errors import WeftError

    before, at, letters = incomplete.rpartition("@")
    if not at:
        return []
    try:
        from weft.chat.room_stream import suggestions

        with Call.completing(ctx).reading() as ledger:
            names = [one.name for one in suggestions(ledger, str(ctx.params.get("room")), letters)]
    except (WeftError, OSError):
        return []
    return [f'{before}@"{name}"' if " " in name else f"{before}@{name}" for name in names]


def room_argument(*statuses: str) -> Callable[[F], F]:
    """An argument that names a room: by its title, its id or the end of that."""
    return click.argument("room", shell_complete=complete_rooms(*(statuses or ("active",))))


def in_persons_name(function: F) -> F:
    """`--as` behind the command means what it means before it. Whoever opened the ledger and takes no part in the room
    is told how to be let in."""

    @wraps(function)
    def run(call: Call, *arguments: Any, actor: str, **options: Any) -> Any:
        from weft.kernel.errors import NotAllowed

        call.actor = actor
        try:
            return function(call, *arguments, **options)
        except NotAllowed as error:
            if actor != OWNER or call.token is not None or "room" not in options:
                raise
            line = room_command_line(call, "invite", options["room"], OWNER)
            raise NotAllowed(error.right, error.chain, _what(error), f"`{line}` lets you in") from error

    wrapped: F = as_actor(run)  # type: ignore[assignment]
    return wrapped


def _what(error: NotAllowed) -> str:
    return str(error).partition(" may not ")[2]


def room_command_line(call: Call, *words: str) -> str:
    """A command of rooms as whoever acts would type it."""
    name = () if call.actor == OWNER or call.token is not None else ("--as", call.actor)
    return f"weft {shell_line(('room', *words, *name))}"
