"""What is done about commands in the sandbox whose weft was killed before it could look at what they had left."""

from __future__ import annotations

from pathlib import Path

import click

from weft.surfaces.cli.user_files import state_folder
from weft.surfaces.plain_text import safe

COMMANDS = "commands"
"""The folder of the user's state in which commands are noted that run in the sandbox."""


def command_notes() -> Path:
    """Where notes lie of the commands that run in the sandbox."""
    return state_folder() / COMMANDS


def clean_up_commands() -> None:
    """Take away what they left, and say what. To be called before something is done where they may have worked."""
    if not command_notes().is_dir():  # as nearly always
        return
    from weft.runtime.sandbox.interrupted_commands import CommandNotes

    for command in CommandNotes(command_notes()).clean_up():
        for sentence in command.sentences:
            click.echo(safe(sentence), err=True)
