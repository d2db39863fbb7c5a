"""`weft completion`: what a shell needs to complete commands, options and sessions."""

from __future__ import annotations

import click

from weft.surfaces.cli.call import Call
from weft.surfaces.cli.command import COMPLETION_VARIABLE
from weft.surfaces.cli.command import command as weft_command
from weft.surfaces.wire.programs import ShellScript

SHELLS = ("bash", "zsh", "fish")


@weft_command("completion")
@click.argument("shell", type=click.Choice(SHELLS))
@click.pass_context
def command(ctx: click.Context, call: Call, shell: str) -> None:
    """Print the completion script of a shell.

    For bash add `eval "$(weft completion bash)"` to ~/.bashrc; for zsh the same with zsh to ~/.zshrc; for fish write
    the output to ~/.config/fish/completions/weft.fish.
    """
    from click.shell_completion import get_completion_class

    from weft.surfaces.cli.shell_scripts import register_shells

    register_shells()
    script_class = get_completion_class(shell)
    assert script_class is not None, "click completes for every shell of the choice"
    script = script_class(ctx.find_root().command, {}, "weft", COMPLETION_VARIABLE).source()
    if call.json:
        call.document(ShellScript(shell=shell, script=script))
    else:
        click.echo(script)
