"""`weft resource probe`, `snapshot`, `restore` and `reconcile`: acts on what is outside of the ledger."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import click

from weft.kernel.enums import ResourceCapability, ResourceKind, RestoreOutcome, SnapshotState
from weft.kernel.errors import NotApplicable, Unsupported
from weft.kernel.typed_names import shell_line
from weft.surfaces.cli.arguments import complete_labels, session_option
from weft.surfaces.cli.call import Call, undo
from weft.surfaces.cli.command import command as weft_command
from weft.surfaces.cli.exits import DIFFERENT, OK
from weft.surfaces.cli.figures import counted
from weft.surfaces.cli.history import short
from weft.surfaces.cli.questions import confirm
from weft.surfaces.cli.resource_access import resource_controller
from weft.surfaces.cli.resources.reading import resource_argument
from weft.surfaces.cli.resources.text import change_lines, snapshot_lines
from weft.surfaces.cli.screen import Line, Span
from weft.surfaces.wire.resources import ProbedResource, ReconciledResources, RestoredSnapshot

if TYPE_CHECKING:
    from weft.ledger.api import Ledger, Resource, Restore, Snapshot
    from weft.runtime.resources.controller import ResourceController


@weft_command("probe")
@resource_argument
def probe(call: Call, resource: str) -> None:
    """Look whether a resource is there, and record what was seen. It is advice: it may change at any moment."""
    call.ensure_owner("resource probe")
    with call.writing() as ledger:
        found = ledger.resources.get(resource)
        status = resource_controller(ledger).probe(found)
    answer = ProbedResource(id=found.id, name=found.name, liveness=status.value)
    call.answer(answer, [Span(found.name, "label"), f" is {status.value}"])


@weft_command("snapshot")
@resource_argument
@click.option(
    "--turn",
    metavar="REV",
    shell_complete=complete_labels,
    help="As what it was like after this turn, such as one of `weft record` or of an import. Default: of no turn.",
)
@click.option(
    "--again", is_flag=True, help="With --turn: also where the turn has one; the new one counts from then on."
)
@click.option(
    "--method",
    metavar="NAME",
    type=click.Choice(["oci_commit", "app_checkpoint"]),
    help="Of a container: oci_commit keeps its files (the default), app_checkpoint its processes, too, where the engine"
    " makes checkpoints.",
)
def snapshot(call: Call, resource: str, turn: str | None, again: bool, method: str | None) -> int:
    """Keep what a resource is like now. Exits with 1 if it could not be kept, which is recorded."""
    call.ensure_owner("resource snapshot")
    if again and turn is None:
        raise click.UsageError("--again goes with --turn")
    with call.writing() as ledger:
        found = ledger.resources.get(resource)
        if not found.can(ResourceCapability.SNAPSHOT):
            raise Unsupported(f"nothing can be kept of a {found.kind.value}", "`weft resource show` tells what can")
        run = None if turn is None else _turn_without(ledger, turn, found, is_replaced=again)
        taken = resource_controller(ledger).snapshot(found, run=run, method=method)
    call.answer(taken, *snapshot_lines(found, taken))
    return OK if taken.state is SnapshotState.OK else DIFFERENT


def _turn_without(ledger: Ledger, rev: str, resource: Resource, *, is_replaced: bool) -> str:
    """The id of a turn that a snapshot is to be of. Raises NotApplicable where it has one of that resource."""
    turn = ledger.resolve(rev)
    of_turn = (one for one in ledger.resources.snapshots_of_turn(turn) if one.run == turn)
    known = next((one for one in of_turn if one.resource == resource.id), None)
    if known is not None and not is_replaced:
        words = ("resource", "snapshot", resource.name, "--turn", rev, "--again")
        raise NotApplicable(
            f"{short(turn)} has its files of {resource.name!r} already: snapshot {short(known.id)}",
            f"`weft {shell_line(words)}` puts what is there now in their place",
        )
    return turn


@weft_command("restore")
@click.argument("snapshot")
@click.option(
    "--to", "place", metavar="PLACE", type=click.Path(), help="As a new resource there; else over what it is of."
)
@session_option("A new resource for this session, beside the first one unless --to says where.")
@click.option("-y", "--yes", is_flag=True, help="Overwrite without asking.")
def restore(call: Call, snapshot: str, place: str | None, session: str | None, yes: bool) -> int:
    """Bring back what a snapshot kept: over the resource, or as a new one beside it.

    SNAPSHOT is the id of one, or its end, as `weft resource show` lists it. Before something is overwritten it is shown
    what would change, and what is there is kept as a snapshot of its own. Exits with 1 if it could not be restored.
    """
    call.ensure_owner("resource restore")
    with call.writing() as ledger:
        found = ledger.resources.snapshot(snapshot)
        resource = ledger.resources.get(found.resource)
        controller = resource_controller(ledger)
        controller.drivers.ensure_here(resource)
        if not found.restorable:
            raise Unsupported(f"snapshot {found.id} cannot be restored", "it tells what was, and holds no bytes")
        wanted = _new_place(ledger, controller, resource, place, session)
        before = None
        if wanted is None and resource.kind not in (ResourceKind.DIRECTORY, ResourceKind.FILE):
            raise Unsupported(
                f"a {resource.kind.value} is not restored over itself", "say --to PLACE or --session SESSION"
            )
        if wanted is None:
            _ask_first(call, controller, resource, found, is_sure=yes)
            before = controller.keep_present(resource).id
        done = controller.restore(found, place=wanted, session=session)
        is_new = done.outcome is RestoreOutcome.OK and done.new_resource is not None
        stands_at = ledger.resources.get(str(done.new_resource)).place if is_new else wanted or resource.place
    left = controller.notes.get(done.id, ())
    answer = RestoredSnapshot(restore=done, place=stands_at, before=before, left=left)
    call.answer(answer, *_restore_lines(resource, done, answer))
    if before is not None and done.outcome is RestoreOutcome.OK:
        call.note(undo("resource", "restore", short(before)))
    return OK if done.outcome is RestoreOutcome.OK else DIFFERENT


def _new_place(
    ledger: Ledger, controller: ResourceController, resource: Resource, place: str | None, session: str | None
) -> str | None:
    """Where a new resource goes; None: over the old one."""
    if place is not None:
        return controller.absolute_place(resource, os.path.expanduser(place))
    if session is None:
        return None
    return controller.drivers.of(resource.kind).new_place(resource, ledger.session(session).label)


def _ask_first(
    call: Call, controller: ResourceController, resource: Resource, snapshot: Snapshot, *, is_sure: bool
) -> None:
    if is_sure:
        return
    hint = "look at what would change and say --yes"
    if resource.kind is ResourceKind.DIRECTORY:
        from weft.runtime.resources.local_drivers import DirectoryDriver, tree_of

        driver = controller.drivers.of(resource.kind)
        assert isinstance(driver, DirectoryDriver)  # the one of its kind
        controller.ensure_own(resource, "look at files")
        present = driver.take_present(resource.place).external_id
        changes = driver.files.changes(present, tree_of(snapshot))
        for line in change_lines(changes):
            call.note(*line)
        hint = f"{counted(len(changes), 'path')} would change: say --yes if you mean it"
    confirm(call, f"overwrite {resource.place}?", hint, is_sure=False)


def _restore_lines(resource: Resource, done: Restore, answer: RestoredSnapshot) -> list[Line]:
    if done.outcome is None:
        return [["somebody else works on ", Span(resource.name, "label"), Span(": it is restored after them", "warn")]]
    if done.outcome is not RestoreOutcome.OK:
        word = "unsupported" if done.outcome is RestoreOutcome.UNSUPPORTED else "failed"
        return [[Span(resource.name, "label"), Span(f": {word}: {done.error}", "bad")]]
    lines: list[Line] = [["restored ", Span(resource.name, "label"), f" at {answer.place}"]]
    return [*lines, *([Span(f"  left as it was: {one}", "warn")] for one in answer.left)]


@weft_command("reconcile")
def reconcile(call: Call) -> int:
    """Carry out the snapshots and restores that are wanted and were not done, as after a crash.

    `weft broker` does the same while it runs. Exits with 1 if one of them failed.
    """
    call.ensure_owner("resource reconcile")
    with call.writing() as ledger:
        done = resource_controller(ledger).reconcile()
    answer = ReconciledResources(snapshots=done.snapshots, restores=done.restores, busy=done.busy, left=done.left)
    bad = [one.error for one in done.snapshots if one.state is not SnapshotState.OK]
    bad += [one.error for one in done.restores if one.outcome is not RestoreOutcome.OK]
    words = f"{counted(len(done.snapshots), 'snapshot')} taken, {counted(len(done.restores), 'restore')} done"
    if not done.snapshots and not done.restores:
        words = "nothing is open"
    lines: list[Line] = [[words], *([Span(f"  failed: {error}", "bad")] for error in bad)]
    lines += [[Span(f"  somebody else works on {one}", "warn")] for one in done.busy]
    lines += [[Span(f"  not removed: {one}", "warn")] for one in done.left]
    call.answer(answer, *lines)
    return DIFFERENT if bad else OK
