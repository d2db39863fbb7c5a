"""`weft resource add`, `attach`, `detach`, `migrate` and `discard`: what resources there are, and whose they are."""

from __future__ import annotations

import os
import re

import click

from weft.kernel.enums import ResourceKind
from weft.kernel.errors import InvalidInput
from weft.surfaces.cli.arguments import complete_labels, session_option
from weft.surfaces.cli.call import Call
from weft.surfaces.cli.command import command as weft_command
from weft.surfaces.cli.questions import confirm
from weft.surfaces.cli.resource_access import resource_controller
from weft.surfaces.cli.resources.reading import KINDS, resource_argument
from weft.surfaces.cli.resources.text import owner_text, resource_lines
from weft.surfaces.cli.screen import Span

_ADDRESS = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:.+", re.DOTALL)
_OF_ENGINE = {
    "docker:volume/": ResourceKind.DOCKER_VOLUME,
    "docker:container/": ResourceKind.DOCKER_CONTAINER,
    "docker:image/": ResourceKind.DOCKER_IMAGE,
}


def guessed_kind(place: str) -> ResourceKind:
    """What a place most likely is. Raises InvalidInput where nothing is there, and it is no address."""
    for prefix, kind in _OF_ENGINE.items():
        if place.startswith(prefix):
            return kind
    if os.path.isdir(place):
        return ResourceKind.DIRECTORY
    if os.path.lexists(place):
        return ResourceKind.FILE
    if _ADDRESS.fullmatch(place):
        return ResourceKind.URI
    raise InvalidInput(
        f"nothing is at {place!r:.200}",
        "name a folder, a file, an address such as https://example.org/x, or docker:volume/NAME",
    )


@weft_command("add")
@click.argument("place")
@click.option("--kind", type=click.Choice(KINDS), help="What it is, where the place does not tell.")
@click.option("--name", metavar="NAME", help="What it is called; else as its place ends.")
@session_option("The session that owns it; else whoever declares it.")
def add(call: Call, place: str, kind: str | None, name: str | None, session: str | None) -> None:
    """Declare a resource: a folder, a file, an address, or something of a container engine.

    PLACE is a path, an address with its scheme, or docker:volume/NAME, docker:container/NAME or docker:image/NAME.
    What is declared already is looked at and described anew.
    """
    call.ensure_owner("resource add")
    wanted = guessed_kind(place) if kind is None else ResourceKind(kind)
    with call.writing() as ledger:
        controller = resource_controller(ledger)
        resource = controller.add(controller.drivers.of(wanted), place, name=name, session=session)
    call.answer(resource, *resource_lines(resource))


@weft_command("attach")
@resource_argument
@session_option("To this session; else to whoever acts.")
@click.option("--read-only", is_flag=True, help="To be read alone, which other sessions than its owner may have, too.")
def attach(call: Call, resource: str, session: str | None, read_only: bool) -> None:
    """Attach a resource to a session: to write to its owner alone, read-only to others where it can be shared."""
    with call.writing() as ledger:
        changed = ledger.resources.attach(resource, mode="ro" if read_only else "rw", session=session)
    call.answer(changed, *resource_lines(changed))


@weft_command("detach")
@resource_argument
@session_option("From this session; else from whoever acts.")
def detach(call: Call, resource: str, session: str | None) -> None:
    """Detach a resource from a session."""
    with call.writing() as ledger:
        changed = ledger.resources.detach(resource, session=session)
    call.answer(changed, *resource_lines(changed))


@weft_command("migrate")
@resource_argument
@click.option("--session", metavar="SESSION", required=True, help="The session that owns it from now on.")
@click.option(
    "--from", "former", metavar="SESSION", shell_complete=complete_labels, help="Only while this session owns it."
)
def migrate(call: Call, resource: str, session: str, former: str | None) -> None:
    """Let another session own a resource. One that cannot change hands is refused as unsupported."""
    with call.writing() as ledger:
        changed = ledger.resources.migrate(resource, session=session, former=former)
    call.answer(changed, [Span(changed.name, "label"), f" belongs to {owner_text(changed.owner)}"])


@weft_command("discard")
@resource_argument
@click.option("-y", "--yes", is_flag=True, help="Do it without asking.")
def discard(call: Call, resource: str, yes: bool) -> None:
    """Let nobody own or use a resource any more.

    What weft made itself, as a copy for a fork, is removed; everything else stays where it is. Snapshots stay.
    """
    with call.writing() as ledger:
        found = ledger.resources.get(resource)
        why_left: str | None = ""
        if found.is_made and found.is_own:
            call.ensure_owner("resource discard")
            controller = resource_controller(ledger)
            controller.drivers.of(found.kind)  # refused before anything is recorded
            confirm(call, f"remove {found.place}?", "look at it and say --yes", is_sure=yes)
            done = controller.discard(found)
            gone, why_left = done.resource, done.why_left
        else:
            gone = ledger.resources.discard(found.id)
    stays = f"; {found.place} stays as it is" + (f": {why_left}" if why_left else "")
    removed = f"; {found.place} was removed"
    call.answer(gone, [Span(gone.name, "label"), f" is discarded{removed if why_left is None else stays}"])
