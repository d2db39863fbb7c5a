"""`weft tag`: words on anything that has an id."""

from __future__ import annotations

import click

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
    """Take tags away."""
    with changing(call, actor) as programs:
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
