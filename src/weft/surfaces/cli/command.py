"""What every command has in common: the shared options, before or after its name, and help in one style."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from weft.kernel.errors import InvalidInput
from weft.surfaces.cli.call import Call

PATHS = ("file", "path", "receipt", "assets")
COMPLETION_VARIABLE = "_WEFT_COMPLETE"
"""Set by a shell that asks how a line goes on."""

SHARED = ("ledger", "json", "quiet", "no_color", "no_pager")


def shared_options() -> list[click.Parameter]:
    return [
        click.Option(
            ["--ledger"],
            metavar="PATH_OR_URL",
            type=click.Path(),
            help="The ledger to use; else WEFT_LEDGER, else .weft/ledger.db here or above, else the user's own.",
        ),
        click.Option(["--json"], is_flag=True, help="Answer with one JSON document."),
        click.Option(["-q", "--quiet"], is_flag=True, help="No notes, hints or progress."),
        click.Option(["--no-color"], is_flag=True, help="No colours, as with NO_COLOR."),
        click.Option(["--no-pager"], is_flag=True, help="Long output straight to the terminal."),
    ]


def take_shared(ctx: click.Context) -> Call:
    """Move the shared options out of the command's own into the call."""
    call = ctx.ensure_object(Call)
    call.take({name: ctx.params.pop(name) for name in SHARED})
    return call


class SharedCommand(click.Command):
    """A command with the shared options; its function gets the call first."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.params += shared_options()

    def invoke(self, ctx: click.Context) -> Any:
        take_shared(ctx)
        refuse_broken_text(ctx.params)
        return super().invoke(ctx)


class SharedGroup(click.Group):
    """A command that has commands of its own; all of them take the shared options."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.params += shared_options()

    def verb(self, name: str) -> Callable[[Callable[..., int | None]], SharedCommand]:
        """Make a function a command of this group."""

        def made(function: Callable[..., int | None]) -> SharedCommand:
            verb_command = command(name)(function)
            self.add_command(verb_command)
            return verb_command

        return made

    def list_commands(self, ctx: click.Context) -> list[str]:
        """In the order in which they were made."""
        return list(self.commands)

    def invoke(self, ctx: click.Context) -> Any:
        take_shared(ctx)
        return super().invoke(ctx)


def refuse_broken_text(params: dict[str, Any]) -> None:
    """What is not text in the shell's encoding would be recorded as something else; paths may be any bytes."""
    for name, value in params.items():
        if name not in PATHS and isinstance(value, str) and any("\udc80" <= c <= "\udcff" for c in value):
            raise InvalidInput(f"{name} is not valid text in this locale", "use UTF-8, or pipe the turn as JSON")


def group(name: str, help: str, *commands: click.Command) -> SharedGroup:
    """Commands under one name."""
    return SharedGroup(name, {str(member.name): member for member in commands}, help=help)


def command(
    name: str, cls: type[SharedCommand] = SharedCommand
) -> Callable[[Callable[..., int | None]], SharedCommand]:
    """Make a function a command. It returns an exit code where that is not 0."""

    def made(function: Callable[..., int | None]) -> SharedCommand:
        return click.command(name, cls=cls)(click.pass_obj(function))

    return made
