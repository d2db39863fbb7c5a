"""What every command has in common: the shared options, before or after its name, and help in one style."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click
from click.core import augment_usage_errors

from weft.kernel.enums import ProgramKind
from weft.kernel.errors import InvalidInput
from weft.surfaces.cli.call import Call

PATHS = ("file", "path", "receipt", "assets")
COMPLETION_VARIABLE = "_WEFT_COMPLETE"
"""Set by a shell that asks how a line goes on."""

ALL_COMMANDS = "weft.all_commands"
"""Set in the context of a help text that lists every command."""
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
        click.Option(["-q", "--quiet"], is_flag=True, help="No notes, hints or progress; only what is waited for."),
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

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        with augment_usage_errors(ctx):  # a fault that the parser finds then names this command's help
            return super().parse_args(ctx, args)

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

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Without arguments it answers with its help, as `weft` does, unless it does something by itself."""
        if not args and self.no_args_is_help and not ctx.resilient_parsing:
            click.echo(ctx.get_help())
            ctx.exit()
        with augment_usage_errors(ctx):
            return super().parse_args(ctx, args)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args[0] not in self.commands and not args[0].startswith("-") and not ctx.resilient_parsing:
            near = " or ".join(f"`{name}`" for name in self._near_commands(ctx, args[0]))
            ctx.fail(f"{ctx.command_path} has no command {args[0]!r}" + (f"; did you mean {near}?" if near else ""))
        return super().resolve_command(ctx, args)

    def _near_commands(self, ctx: click.Context, name: str) -> list[str]:
        """The commands that a wrong name may mean: of this group, or of those that list and show programs."""
        from difflib import get_close_matches

        begun = [command_name for command_name in self.commands if command_name.startswith(f"{name}-")]
        if near := begun or get_close_matches(name, self.commands):
            return [f"{ctx.command_path} {command_name}" for command_name in near]
        root = ctx.find_root()
        if not isinstance(root.command, click.Group):
            return []
        if name == "list" and f"{self.name}s" in root.command.list_commands(root):
            return [f"{root.command_path} {self.name}s"]
        programs = root.command.get_command(root, "program")
        is_verb = isinstance(programs, click.Group) and name in programs.commands
        is_kind = any(kind.startswith(str(self.name)) for kind in ProgramKind)
        return [f"{root.command_path} program {name}"] if is_verb and is_kind else []

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
