"""`weft resource list`, `show` and `owners`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from weft.surfaces.cli.arguments import session_option
from weft.surfaces.cli.call import Call
from weft.surfaces.cli.command import command as weft_command
from weft.surfaces.cli.file_checks import absent_snapshots
from weft.surfaces.cli.history import short
from weft.surfaces.cli.resources.text import owner_text, resource_lines, resource_row, skipped_lines, snapshot_row
from weft.surfaces.cli.screen import Span
from weft.surfaces.cli.times import local_time
from weft.surfaces.plain_text import safe
from weft.surfaces.wire.resources import ResourceOwnership, ShownResource

if TYPE_CHECKING:
    from weft.graph.edge_reader import Neighbours
    from weft.ledger.api import Ledger, Owner, Resource

KINDS = ("directory", "file", "uri", "docker_volume", "docker_container", "docker_image")
SNAPSHOT_HEADER = ("snapshot", "taken", "state", "size", "method", "turn", "error")
MOST_SNAPSHOTS, MOST_OWNERS = 10_000, 10_000


def complete_resources(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
    """Names of resources. A shell in the middle of a line wants names or nothing."""
    from weft.kernel.errors import WeftError

    try:
        with Call.completing(ctx).reading() as ledger:
            names = [resource.name for resource in ledger.resources.list()]
    except (WeftError, OSError):
        return []
    return [name for name in dict.fromkeys(names) if name.startswith(incomplete)]


resource_argument = click.argument("resource", shell_complete=complete_resources)


@weft_command("list")
@session_option("Only what this session owns.")
@click.option("--kind", type=click.Choice(KINDS), help="Only of this kind.")
@click.option("--all", "is_all", is_flag=True, help="Also those that nobody owns any more.")
def list_(call: Call, session: str | None, kind: str | None, is_all: bool) -> None:
    """List resources, the oldest first: what they are, who owns them, where they are."""
    with call.reading() as ledger:
        resources = ledger.resources.list(session=session, kind=kind, include_discarded=is_all)
    if call.json:
        call.documents(resources)
        return
    if not resources:
        call.note(
            "there is no resource; `weft resource add PLACE` declares one, and so does a turn that works in a folder"
        )
        return
    header = ["resource", "name", "kind", "owner", "alive", "place"]
    call.screen.table([resource_row(resource) for resource in resources], header)


@weft_command("show")
@resource_argument
@click.option("-n", "limit", metavar="N", type=click.IntRange(1, MOST_SNAPSHOTS), default=10, help="So many snapshots.")
def show(call: Call, resource: str, limit: int) -> None:
    """Show a resource: what it is and can, who owns and uses it, its parts, handles and snapshots."""
    with call.reading() as ledger:
        found = ledger.resources.get(resource)
        snapshots = ledger.resources.snapshots(found.id, limit=limit)
        absent = absent_snapshots(ledger, snapshots)
        wanted = _wanted(ledger, found)
        why = _obstacle(ledger, found) if wanted else None
    answer = ShownResource(
        resource=found, snapshots=tuple(snapshots), not_here=tuple(absent), wanted=wanted, waits_because=why
    )
    call.answer(answer, *resource_lines(found))
    if wanted:
        waits = "" if why is None else f": {why}"
        call.note(Span(f"wanted and not done yet: {', '.join(map(short, wanted))}", "warn"), safe(waits))
    if call.json:
        return
    if snapshots:
        call.screen.table(
            [snapshot_row(one, is_here=one.id not in absent) for one in snapshots],
            list(SNAPSHOT_HEADER),
            numbers=("size",),
        )
        for line in skipped_lines(snapshots[0]):
            call.screen.show(*line)
    else:
        call.note("nothing is kept of it; `weft resource snapshot NAME` takes a snapshot")


def _wanted(ledger: Ledger, resource: Resource) -> tuple[str, ...]:
    """The ids of snapshots and restores of it that are wanted and not carried out."""
    from weft.ledger.api import ResourceLog

    snapshots, restores = ResourceLog(ledger).pending()
    of_restores = [one.id for one in restores if ledger.resources.snapshot(one.snapshot).resource == resource.id]
    return (*(one.id for one in snapshots if one.resource == resource.id), *of_restores)


def _obstacle(ledger: Ledger, resource: Resource) -> str | None:
    from weft.surfaces.cli.resource_access import resource_controller

    return resource_controller(ledger).obstacle(resource)


@weft_command("owners")
@resource_argument
def owners(call: Call, resource: str) -> None:
    """Show who owned a resource, and from when to when, the first owner first."""
    from weft.graph.graph import Graph

    with call.writing() as ledger:
        found = ledger.resources.get(resource)
        graph = Graph(ledger).neighbours(f"resource:{found.id}", ["OWNS_RESOURCE"], direction="in", limit=MOST_OWNERS)
    periods = _periods(graph)
    if call.json:
        call.documents(periods)
        return
    rows: list[list[Span | str]] = [
        [
            Span(owner_text(one.owner), "label"),
            local_time(one.since_at),
            "" if one.until_at is None else local_time(one.until_at),
            (one.why or "").replace("_", " "),
        ]
        for one in periods
    ]
    call.screen.table(rows, ["owner", "since", "until", "because"])


def _periods(graph: Neighbours) -> list[ResourceOwnership]:
    edges = sorted(graph.edges, key=lambda edge: edge.valid_from)
    return [
        ResourceOwnership(
            owner=_owner(edge.source, graph.nodes[edge.source].properties),
            why=_text(edge.attributes.get("why")),
            since_at=edge.valid_from,
            until_at=edge.valid_to,
        )
        for edge in edges
    ]


def _owner(name: str, properties: dict[str, Any]) -> Owner:
    """A node of the graph as an owner."""
    from weft.ledger.api import Owner

    kind, _, id = name.partition(":")
    return Owner("agent" if kind == "program" else kind, id, properties.get("label") or properties.get("name"))


def _text(value: Any) -> str | None:
    return None if value is None else str(value)
