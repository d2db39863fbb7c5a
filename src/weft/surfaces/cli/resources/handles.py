"""`weft resource exec`, `logs` and `kill`: acts through an open handle of a resource."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from weft.kernel.enums import HandleCapability
from weft.kernel.errors import Unsupported
from weft.surfaces.cli.call import Call
from weft.surfaces.cli.command import command as weft_command
from weft.surfaces.cli.exits import DIFFERENT, OK
from weft.surfaces.cli.resource_access import resource_controller
from weft.surfaces.cli.resources.reading import resource_argument
from weft.surfaces.cli.screen import Line, Span
from weft.surfaces.plain_text import safe_lines
from weft.surfaces.wire.resources import HandleOutput, KilledResource

if TYPE_CHECKING:
    from weft.ledger.api import Resource
    from weft.runtime.resources.controller import ResourceController
    from weft.runtime.resources.drivers import LiveHandle

MOST_SECONDS, MOST_LINES = 3600, 100_000


def _handle(controller: ResourceController, resource: Resource, capability: HandleCapability) -> LiveHandle:
    """Raises Unsupported where a resource has no open handle for this."""
    controller.drivers.ensure_here(resource)
    handle = next((one for one in resource.handles if capability in one.capabilities), None)
    if handle is None:
        raise Unsupported(
            f"{resource.name!r} has no open handle for {capability.value}",
            "only what runs has one: a container has, once it was added while it ran",
        )
    return controller.drivers.handle(resource.kind, handle.provider_id)


@weft_command("exec")
@resource_argument
@click.argument("words", nargs=-1, required=True, metavar="COMMAND...")
@click.option("--seconds", type=click.IntRange(1, MOST_SECONDS), default=60, help="How long it is waited for.")
def exec_(call: Call, resource: str, words: tuple[str, ...], seconds: int) -> int:
    """Run a command in a resource, such as a container. Exits with 1 unless the command ended with 0.

    Options of the command come after --.
    """
    call.ensure_owner("resource exec")
    with call.writing() as ledger:
        ledger.trust.ensure("act on a resource")
        found = ledger.resources.get(resource)
        handle = _handle(resource_controller(ledger), found, HandleCapability.EXEC)
        result = handle.exec(words, seconds=seconds)
    answer = HandleOutput(
        id=found.id,
        rc=result.rc,
        stdout=result.stdout,
        stderr=result.stderr,
        is_truncated=result.is_truncated,
        has_timed_out=result.has_timed_out,
    )
    _show(call, answer)
    if result.has_timed_out:
        call.note(Span(f"it was not waited for longer than {seconds} s, and may run on", "warn"))
    elif result.rc != 0:
        call.note(Span(f"it ended with {'an unknown code' if result.rc is None else result.rc}", "warn"))
    return OK if result.rc == 0 else DIFFERENT


@weft_command("logs")
@resource_argument
@click.option(
    "-n", "limit", metavar="N", type=click.IntRange(1, MOST_LINES), default=1000, help="The last so many lines."
)
def logs(call: Call, resource: str, limit: int) -> None:
    """Show what a resource, such as a container, printed last."""
    call.ensure_owner("resource logs")
    with call.writing() as ledger:
        ledger.trust.ensure("act on a resource")
        found = ledger.resources.get(resource)
        printed = _handle(resource_controller(ledger), found, HandleCapability.LOGS).logs(lines=limit)
    _show(
        call,
        HandleOutput(
            id=found.id,
            rc=None,
            stdout=printed.stdout.decode(errors="replace"),
            stderr=printed.stderr.decode(errors="replace"),
            is_truncated=printed.is_truncated,
            has_timed_out=False,
        ),
    )


@weft_command("kill")
@resource_argument
@click.option("--signal", metavar="NAME", default="TERM", help="The signal: TERM, INT, KILL, …")
def kill(call: Call, resource: str, signal: str) -> None:
    """Send a signal to what runs in a resource, such as a container, and look whether it is still there."""
    call.ensure_owner("resource kill")
    with call.writing() as ledger:
        ledger.trust.ensure("act on a resource")
        found = ledger.resources.get(resource)
        controller = resource_controller(ledger)
        was_running = _handle(controller, found, HandleCapability.KILL).kill(signal)
        status = controller.probe(found)
    answer = KilledResource(id=found.id, was_running=was_running, liveness=status.value)
    was = "was sent the signal" if was_running else "was not running"
    call.answer(answer, [Span(found.name, "label"), f" {was}; it is {status.value}"])


def _show(call: Call, output: HandleOutput) -> None:
    lines: list[Line] = [[line] for line in safe_lines(output.stdout)]
    lines += [[Span(line, "warn")] for line in safe_lines(output.stderr)]
    call.answer(output, *lines)
    if output.is_truncated:
        call.note(Span("not all of what was printed is shown", "warn"))
