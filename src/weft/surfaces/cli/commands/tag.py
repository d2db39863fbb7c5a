"""`weft tag`: words on anything that has an id."""

from __future__ import annotations

import click

from weft.kernel.errors import NotFound
from weft.kernel.typed_names import shell_word
from weft.surfaces.cli.call import Call
from weft.surfaces.cli.command import group
from weft.surfaces.cli.program_call import acting, changing, looking, named
from weft.surfaces.wire.sessions import NodeTags

command = group("tag", "Tag anything that has an id: programs, sessions, turns, messages, events.")


@command.verb("add")
@named("node")
@click.argument("tags", nargs=-1, required=True)
@acting
def add(call: Call, node: str, tags: tuple[str, ...], actor: str, retry_key: str | None) -> None:
    """Add tags."""
    with changing(call, actor) as programs:
        _show(call, node, programs.add_tags(node, *tags, key=retry_key))


@command.verb("remove")
@named("node")
@click.argument("tags", nargs=-1, required=True)
@acting
def remove(call: Call, node: str, tags: tuple[str, ...], actor: str, retry_key: str | None) -> None:
    """Take tags away.

    Where one of them is not there, none is taken. With a retry key those that are not there are passed over: a first
    try may have taken them.
    """
    from weft.programs.lookups import checked_tags

    with changing(call, actor) as programs:
        there = programs.tags(node)
        missing = [tag for tag in checked_tags(tags) if tag not in there] if retry_key is None else []
        if missing:
            raise NotFound(f"tag on {node}", missing[0], f"`weft tag list {shell_word(node)}` lists those that are")
        _show(call, node, programs.remove_tags(node, *tags, key=retry_key))


@command.verb("list")
@named("node")
def list_(call: Call, node: str) -> None:
    """List the tags of a node."""
    with looking(call) as programs:
        _show(call, node, programs.tags(node))


def _show(call: Call, node: str, tags: list[str]) -> None:
    if call.json:
        call.document(NodeTags(node=node, tags=tags))
    elif tags:
        for tag in tags:
            call.screen.show(tag)
    else:
        call.note(f"{node} has no tags")
