"""`weft code`: programs that run."""

from __future__ import annotations

from pathlib import Path

import click

from weft.surfaces.cli.call import Call
from weft.surfaces.cli.command import group
from weft.surfaces.cli.program_call import acting, answer, changing, given, looking, set_fields, show_list, with_fields

command = group("code", "Manage code programs, which agents can use as tools.")
MAKE = "make one with `weft code create NAME --file FILE`"
LANGUAGES = {".py": "python", ".js": "javascript", ".mjs": "javascript", ".ts": "typescript"}


@command.verb("create")
@click.argument("name")
@click.option("--file", type=click.Path(exists=True, dir_okay=False), help="The file that holds it.")
@click.option("--source", metavar="TEXT", help="The code itself.")
@click.option("--language", metavar="NAME", help="javascript, typescript or python; else by the file's ending.")
@click.option("--description", metavar="TEXT", help="What it does.")
@set_fields
@click.option("--draft", is_flag=True, help="Do not publish it yet.")
@acting
def create(
    call: Call,
    name: str,
    file: str | None,
    source: str | None,
    language: str | None,
    description: str | None,
    fields: tuple[str, ...],
    draft: bool,
    actor: str,
    retry_key: str | None,
) -> None:
    """Make a code program."""
    if (file is None) == (source is None):
        raise click.UsageError("give the code by --file or by --source")
    text = source if file is None else Path(file).read_text()
    spoken = language or LANGUAGES.get(Path(file or "").suffix)
    config = with_fields(given(language=spoken, source=text, description=description), fields)
    with changing(call, actor) as programs:
        answer(call, programs.create("code", name, config, draft=draft, key=retry_key))


@command.verb("list")
def list_(call: Call) -> None:
    """List code programs."""
    with looking(call) as programs:
        show_list(call, programs.all("code"), "code program", MAKE)
