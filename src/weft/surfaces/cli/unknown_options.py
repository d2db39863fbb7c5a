"""An option that a command does not have: the one of its own that was meant, or other commands that have it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from difflib import get_close_matches

import click

from weft.kernel.typed_names import shell_line

NAMED = 3
"""So many commands that have the option are named."""


def explained(error: click.NoSuchOption, groups: Mapping[str, Mapping[str, str]]) -> click.UsageError:
    """The same error in words that help; `groups` has the names of all commands, under what they are for."""
    if error.ctx is None:
        return error
    name, ctx = error.option_name, error.ctx
    message = f"{ctx.command_path} has no option {name!r}"
    if near := _near_options(ctx.command, name):
        message += f"; did you mean {' or '.join(near)}?"
    elif others := _commands_with(ctx, name, groups):
        owners = [f"`weft {shell_line((*other.split(), name))}`" for other in others]
        *first, last = owners
        message += f"; {', '.join(first)} and {last} have it" if first else f"; {last} has it"
    return click.NoSuchOption(name, message, ctx=ctx)


def _near_options(command: click.Command, name: str) -> list[str]:
    """Compared without their dashes, which make any two short ones look alike."""
    bare = {option.lstrip("-"): option for option in _long_options(command)}
    return [bare[match] for match in get_close_matches(name.lstrip("-"), bare)]


def _long_options(command: click.Command) -> Iterator[str]:
    for param in command.params:
        if isinstance(param, click.Option) and not param.hidden:
            yield from (option for option in (*param.opts, *param.secondary_opts) if option.startswith("--"))


def _commands_with(ctx: click.Context, name: str, groups: Mapping[str, Mapping[str, str]]) -> list[str]:
    """The first commands that have the very option, those for the same purpose before all others."""
    root = ctx.find_root()
    if not name.startswith("--") or not isinstance(root.command, click.Group):
        return []
    words = ctx.command_path.split()
    alike = [group for group in groups.values() if len(words) > 1 and words[1] in group]
    names = dict.fromkeys(command for group in (*alike, *groups.values()) for command in group)
    found = (other for command in names for other in _owners(root.command.get_command(root, command), command, name))
    return [other for other, _ in zip(found, range(NAMED), strict=False)]


def _owners(command: click.Command | None, path: str, option: str) -> Iterator[str]:
    if command is None:
        return
    if option in _long_options(command):
        yield path
    for name, verb in command.commands.items() if isinstance(command, click.Group) else ():
        yield from _owners(verb, f"{path} {name}", option)
