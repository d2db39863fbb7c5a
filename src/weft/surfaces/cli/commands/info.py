"""`weft info`: what is known, checked and found again."""

from __future__ import annotations

import click
from msgspec import UNSET

from weft.surfaces.cli.call import Call
from weft.surfaces.cli.command import group
from weft.surfaces.cli.program_call import (
    acting,
    answer,
    changing,
    complete_programs,
    given,
    json_of,
    json_or_text,
    looking,
    named,
    set_fields,
    show_list,
    with_fields,
)

command = group("info", "Manage information: checked against schemas, found by words, tags and paths.")
MAKE = "make some with `weft info create NAME --content JSON`"


@command.verb("create")
@click.argument("name")
@click.option("--type", "kind", metavar="TYPE", default="fact", help="fact (default), schema, workflow or pattern.")
@click.option("--content", metavar="JSON", required=True, help="What is known; with @ the file that holds it.")
@click.option("--schema", metavar="NAME", shell_complete=complete_programs("information"), help="Its schema.")
@click.option("--source", "sources", metavar="NAME", multiple=True, help="A program that it comes from; repeatable.")
@set_fields
@click.option("--draft", is_flag=True, help="Do not hold it against its schema yet.")
@acting
def create(
    call: Call,
    name: str,
    kind: str,
    content: str,
    schema: str | None,
    sources: tuple[str, ...],
    fields: tuple[str, ...],
    draft: bool,
    actor: str,
    retry_key: str | None,
) -> None:
    """Keep something that is known."""
    config = {"infoType": kind, "content": json_of(content, "content"), **given(schema=schema, sources=list(sources))}
    with changing(call, actor) as programs:
        answer(call, programs.create("information", name, with_fields(config, fields), draft=draft, key=retry_key))


def _step(verb: str, help: str) -> None:
    @named("name", "information")
    @click.option("--reason", metavar="TEXT", help="Why.")
    @acting
    def step(call: Call, name: str, reason: str | None, actor: str, retry_key: str | None) -> None:
        with changing(call, actor) as programs:
            steps = {"validate": programs.validate, "activate": programs.activate, "archive": programs.archive}
            answer(call, steps[verb](name, reason=reason, key=retry_key))

    step.__doc__ = help
    command.verb(verb)(step)


_step("validate", "Hold a draft against its schema.")
_step("activate", "Put information in use: what was validated, or put away.")
_step("archive", "Put information away.")


@command.verb("list")
@click.option("--type", "kind", metavar="TYPE", help="fact, schema, workflow or pattern.")
@click.option("--all", "archived", is_flag=True, help="Also drafts, and what is put away.")
def list_(call: Call, kind: str | None, archived: bool) -> None:
    """List what is known and in use."""
    with looking(call) as programs:
        show_list(call, programs.query(info_type=kind, archived=archived), "information", MAKE)


@command.verb("query")
@click.argument("text", required=False)
@click.option("--type", "kind", metavar="TYPE", help="fact, schema, workflow or pattern.")
@click.option("--tag", "tags", metavar="TAG", multiple=True, help="Only what has this tag; repeatable.")
@click.option("--path", metavar="PATH", help="Only what has a value there, such as $.codes[*].name.")
@click.option("--equals", metavar="VALUE", help="And this value, as JSON or text.")
@click.option("--all", "archived", is_flag=True, help="Also drafts, and what is put away.")
def query(
    call: Call,
    text: str | None,
    kind: str | None,
    tags: tuple[str, ...],
    path: str | None,
    equals: str | None,
    archived: bool,
) -> None:
    """Find information by words, type, tags, and by what stands at a path of its content."""
    wanted = UNSET if equals is None else json_or_text(equals)
    with looking(call) as programs:
        matches = programs.query(text, info_type=kind, tagged=tags, path=path, equals=wanted, archived=archived)
    show_list(call, matches, "such information", MAKE)
