"""`weft resource`: folders, files, addresses and containers, declared, kept, brought back
and acted on. `weft sandbox`: commands in the sandbox, as agents' tools run them.
"""

from __future__ import annotations

import asyncio
import os
import pwd
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from msgspec import structs

from weft.kernel.enums import HandleCapability, ResourceCapability, ResourceKind, RestoreOutcome, SnapshotState
from weft.kernel.errors import InvalidInput, NotApplicable, Unsupported
from weft.kernel.typed_names import shell_line, shell_word
from weft.surfaces.cli.arguments import RenamedOption, complete_labels, session_option
from weft.surfaces.cli.command_line import DIFFERENT, OK, Call, confirm, group, undo
from weft.surfaces.cli.command_line import command as weft_command
from weft.surfaces.cli.ledgers.ledger_copies import absent_snapshots
from weft.surfaces.cli.progress import counted
from weft.surfaces.cli.screen import Line, Span, local_time
from weft.surfaces.cli.turn_files import (
    owner_text,
    resource_lines,
    resource_row,
    restore_lines,
    skipped_lines,
    snapshot_lines,
    snapshot_row,
)
from weft.surfaces.cli.turn_lists import short
from weft.surfaces.cli.work.sandbox_access import resource_controller
from weft.surfaces.plain_text import safe, safe_lines
from weft.verbs.program_answers import (
    HandleOutput,
    KilledResource,
    ProbedResource,
    ReconciledResources,
    ResourceOwnership,
    RestoredSnapshot,
    SandboxRun,
    ShownResource,
)

if TYPE_CHECKING:
    from weft.graph.edge_reader import Neighbours
    from weft.ledger.api import Ledger, Owner, Resource, ResourceRestore, Snapshot
    from weft.runtime.resources.controller import ResourceController
    from weft.runtime.resources.drivers import LiveHandle
    from weft.runtime.tool.tool_contract import CallPlan
    from weft.runtime.tools.shell import ShellTool


# --- `weft resource list`, `show` and `owners`.

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
@click.option(
    "-n",
    "--limit",
    "limit",
    metavar="N",
    type=click.IntRange(1, MOST_SNAPSHOTS),
    default=10,
    help="At most N snapshots. Default: 10.",
)
def show(call: Call, resource: str, limit: int) -> None:
    """Show a resource: what it is and can, who owns and uses it, its parts, handles and snapshots."""
    with call.reading() as ledger:
        record = ledger.resources.get(resource)
        snapshots = ledger.resources.snapshots(record.id, limit=limit)
        absent = absent_snapshots(ledger, snapshots)
        wanted = _wanted_ids(ledger, record)
        why = _obstacle(ledger, record) if wanted else None
    answer = ShownResource(
        resource=record, snapshots=tuple(snapshots), not_here=tuple(absent), wanted=wanted, waits_because=why
    )
    call.answer(answer, *resource_lines(record))
    if wanted:
        waits = "" if why is None else f": {why}"
        call.note(Span(f"wanted and not done yet: {', '.join(map(short, wanted))}", "warn"), safe(waits))
    if call.json:
        return
    if snapshots:
        call.screen.table(
            [snapshot_row(snapshot, is_here=snapshot.id not in absent) for snapshot in snapshots],
            list(SNAPSHOT_HEADER),
            numbers=("size",),
        )
        for line in skipped_lines(snapshots[0]):
            call.screen.show(*line)
    else:
        call.note("nothing is kept of it; `weft resource snapshot NAME` takes a snapshot")


def _wanted_ids(ledger: Ledger, resource: Resource) -> tuple[str, ...]:
    """The ids of snapshots and restores of it that are wanted and not carried out."""
    from weft.ledger.api import ResourceLog

    snapshots, restores = ResourceLog(ledger).pending()
    of_restores = [
        restore.id for restore in restores if ledger.resources.snapshot(restore.snapshot).resource == resource.id
    ]
    return (*(snapshot.id for snapshot in snapshots if snapshot.resource == resource.id), *of_restores)


def _obstacle(ledger: Ledger, resource: Resource) -> str | None:
    from weft.surfaces.cli.work.sandbox_access import resource_controller

    return resource_controller(ledger).obstacle(resource)


@weft_command("owners")
@resource_argument
def owners(call: Call, resource: str) -> None:
    """Show who owned a resource, and from when to when, the first owner first."""
    from weft.graph.graph import Graph

    with call.writing() as ledger:
        record = ledger.resources.get(resource)
        graph = Graph(ledger).neighbours(f"resource:{record.id}", ["OWNS_RESOURCE"], direction="in", limit=MOST_OWNERS)
    periods = _periods(graph)
    if call.json:
        call.documents(periods)
        return
    rows: list[list[Span | str]] = [
        [
            Span(owner_text(period.owner), "label"),
            local_time(period.since_at),
            "" if period.until_at is None else local_time(period.until_at),
            (period.why or "").replace("_", " "),
        ]
        for period in periods
    ]
    call.screen.table(rows, ["owner", "since", "until", "because"])


def _periods(graph: Neighbours) -> list[ResourceOwnership]:
    edges = sorted(graph.edges, key=lambda edge: edge.valid_from)
    return [
        ResourceOwnership(
            owner=_owner(edge.source, graph.nodes[edge.source].properties),
            why=_text_or_none(edge.attributes.get("why")),
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


def _text_or_none(value: Any) -> str | None:
    return None if value is None else str(value)


# --- `weft resource add`, `attach`, `detach`, `migrate` and `discard`: what resources there are, and whose they are.


@weft_command("add")
@click.argument("place")
@click.option("--kind", type=click.Choice(KINDS), help="What it is, where the place does not tell.")
@click.option("--name", metavar="NAME", help="Its name. Default: the last part of PLACE.")
@session_option("The session that owns it; else whoever declares it.")
def add(call: Call, place: str, kind: str | None, name: str | None, session: str | None) -> None:
    """Declare a resource: a folder, a file, an address, or something of a container engine.

    PLACE is a path, an address with its scheme, or docker:volume/NAME, docker:container/NAME or docker:image/NAME.
    What is declared already is looked at and described anew.
    """
    from weft.runtime.resources.drivers import guessed_kind

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
    """Transfer a resource to another session. One that cannot change hands is refused as unsupported."""
    with call.writing() as ledger:
        changed = ledger.resources.migrate(resource, session=session, former=former)
    call.answer(changed, [Span(changed.name, "label"), f" belongs to {owner_text(changed.owner)}"])


@weft_command("discard")
@resource_argument
@click.option("-y", "--yes", is_flag=True, help="Skip the confirmation prompt.")
def discard(call: Call, resource: str, yes: bool) -> None:
    """Release a resource from its owners and users.

    What weft made itself, as a copy for a fork, is removed; everything else stays where it is. Snapshots stay.
    """
    with call.writing() as ledger:
        record = ledger.resources.get(resource)
        why_left: str | None = ""
        if record.is_made and record.is_own:
            call.ensure_owner("resource discard")
            controller = resource_controller(ledger)
            controller.drivers.of(record.kind)  # refused before anything is recorded
            confirm(call, f"remove {record.place}?", "look at it and say --yes", is_sure=yes)
            done = controller.discard(record)
            gone, why_left = done.resource, done.why_left
        else:
            gone = ledger.resources.discard(record.id)
    stays = f"; {record.place} stays as it is" + (f": {why_left}" if why_left else "")
    removed = f"; {record.place} was removed"
    call.answer(gone, [Span(gone.name, "label"), f" is discarded{removed if why_left is None else stays}"])


# --- `weft resource exec`, `logs` and `kill`: acts through an open handle of a resource.

MOST_SECONDS, MOST_LINES = 3600, 100_000


def _handle(controller: ResourceController, resource: Resource, capability: HandleCapability) -> LiveHandle:
    """Raises Unsupported where a resource has no open handle for this."""
    controller.drivers.ensure_here(resource)
    handle = next((handle for handle in resource.handles if capability in handle.capabilities), None)
    if handle is None:
        raise Unsupported(
            f"{resource.name!r} has no open handle for {capability.value}",
            "only what runs has one: a container has, once it was added while it ran",
        )
    return controller.drivers.handle(resource.kind, handle.provider_id)


@weft_command("exec")
@resource_argument
@click.argument("words", nargs=-1, required=True, metavar="COMMAND...")
@click.option(
    "--timeout",
    "seconds",
    cls=RenamedOption,
    old=("--seconds",),
    type=click.IntRange(1, MOST_SECONDS),
    metavar="SECONDS",
    default=60,
    help="Wait at most SECONDS; the command may run on. Default: 60.",
)
def exec_(call: Call, resource: str, words: tuple[str, ...], seconds: int) -> int:
    """Run a command in a resource, such as a container. Exits with 1 unless the command ended with 0.

    Options of the command come after --.
    """
    call.ensure_owner("resource exec")
    with call.writing() as ledger:
        ledger.trust.ensure("act on a resource")
        record = ledger.resources.get(resource)
        handle = _handle(resource_controller(ledger), record, HandleCapability.EXEC)
        result = handle.exec(words, seconds=seconds)
    answer = HandleOutput(
        id=record.id,
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
    "-n",
    "--limit",
    "limit",
    metavar="N",
    type=click.IntRange(1, MOST_LINES),
    default=1000,
    help="The last N lines. Default: 1000.",
)
def logs(call: Call, resource: str, limit: int) -> None:
    """Show what a resource, such as a container, printed last."""
    call.ensure_owner("resource logs")
    with call.writing() as ledger:
        ledger.trust.ensure("act on a resource")
        record = ledger.resources.get(resource)
        printed = _handle(resource_controller(ledger), record, HandleCapability.LOGS).logs(lines=limit)
    _show(
        call,
        HandleOutput(
            id=record.id,
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
        record = ledger.resources.get(resource)
        controller = resource_controller(ledger)
        was_running = _handle(controller, record, HandleCapability.KILL).kill(signal)
        status = controller.probe(record)
    answer = KilledResource(id=record.id, was_running=was_running, liveness=status.value)
    was = "was sent the signal" if was_running else "was not running"
    call.answer(answer, [Span(record.name, "label"), f" {was}; it is {status.value}"])


def _show(call: Call, output: HandleOutput) -> None:
    lines: list[Line] = [[line] for line in safe_lines(output.stdout)]
    lines += [[Span(line, "warn")] for line in safe_lines(output.stderr)]
    call.answer(output, *lines)
    if output.is_truncated:
        call.note(Span("not all of what was printed is shown", "warn"))


# --- `weft resource probe`, `snapshot`, `restore` and `reconcile`: acts on what is outside of the ledger.


@weft_command("probe")
@resource_argument
def probe(call: Call, resource: str) -> None:
    """Look whether a resource is there, and record what was seen. It is advice: it may change at any moment."""
    call.ensure_owner("resource probe")
    with call.writing() as ledger:
        record = ledger.resources.get(resource)
        status = resource_controller(ledger).probe(record)
    answer = ProbedResource(id=record.id, name=record.name, liveness=status.value)
    call.answer(answer, [Span(record.name, "label"), f" is {status.value}"])


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
    """Take a snapshot of a resource. Exits with 1 if that fails; the failure is recorded."""
    call.ensure_owner("resource snapshot")
    if again and turn is None:
        raise click.UsageError("--again goes with --turn")
    with call.writing() as ledger:
        record = ledger.resources.get(resource)
        if not record.can(ResourceCapability.SNAPSHOT):
            raise Unsupported(f"nothing can be kept of a {record.kind.value}", "`weft resource show` tells what can")
        run = None if turn is None else _turn_without(ledger, turn, record, is_replaced=again)
        taken = resource_controller(ledger).snapshot(record, run=run, method=method)
    call.answer(taken, *snapshot_lines(record, taken))
    return OK if taken.state is SnapshotState.OK else DIFFERENT


def _turn_without(ledger: Ledger, rev: str, resource: Resource, *, is_replaced: bool) -> str:
    """The id of a turn that a snapshot is to be of. Raises NotApplicable where it has one of that resource."""
    turn = ledger.resolve(rev)
    of_turn = (snapshot for snapshot in ledger.resources.snapshots_of_turn(turn) if snapshot.run == turn)
    earlier = next((snapshot for snapshot in of_turn if snapshot.resource == resource.id), None)
    if earlier is not None and not is_replaced:
        words = ("resource", "snapshot", resource.name, "--turn", rev, "--again")
        raise NotApplicable(
            f"{short(turn)} has its files of {resource.name!r} already: snapshot {short(earlier.id)}",
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
    What cannot be restored, for nothing is kept of it or its kind allows none, is refused, and the attempt is recorded.
    """
    call.ensure_owner("resource restore")
    with call.writing() as ledger:
        record = ledger.resources.snapshot(snapshot)
        resource = ledger.resources.get(record.resource)
        controller = resource_controller(ledger)
        controller.drivers.ensure_here(resource)
        controller.refuse_unsupported(record, in_place=place is None and session is None)
        wanted = _new_place(ledger, controller, resource, place, session)
        before = None
        if wanted is None:
            _ask_first(call, controller, resource, record, is_sure=yes)
            before = controller.keep_present(resource).id
        done = controller.restore(record, place=wanted, session=session)
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
        for line in restore_lines(changes):
            call.note(*line)
        hint = f"{counted(len(changes), 'path')} would change: say --yes if you mean it"
    confirm(call, f"overwrite {resource.place}?", hint, is_sure=False)


def _restore_lines(resource: Resource, done: ResourceRestore, answer: RestoredSnapshot) -> list[Line]:
    if done.outcome is None:
        return [["somebody else works on ", Span(resource.name, "label"), Span(": it is restored after them", "warn")]]
    if done.outcome is not RestoreOutcome.OK:
        word = "unsupported" if done.outcome is RestoreOutcome.UNSUPPORTED else "failed"
        return [[Span(resource.name, "label"), Span(f": {word}: {done.error}", "bad")]]
    lines: list[Line] = [["restored ", Span(resource.name, "label"), f" at {answer.place}"]]
    return [*lines, *([Span(f"  left as it was: {file}", "warn")] for file in answer.left)]


@weft_command("reconcile")
def reconcile(call: Call) -> int:
    """Carry out the snapshots and restores that are wanted and were not done, as after a crash.

    `weft broker` does the same while it runs. Exits with 1 if one of them failed.
    """
    call.ensure_owner("resource reconcile")
    with call.writing() as ledger:
        done = resource_controller(ledger).reconcile()
    answer = ReconciledResources(snapshots=done.snapshots, restores=done.restores, busy=done.busy, left=done.left)
    bad = [snapshot.error for snapshot in done.snapshots if snapshot.state is not SnapshotState.OK]
    bad += [restore.error for restore in done.restores if restore.outcome is not RestoreOutcome.OK]
    words = f"{counted(len(done.snapshots), 'snapshot')} taken, {counted(len(done.restores), 'restore')} done"
    if not done.snapshots and not done.restores:
        words = "nothing is open"
    lines: list[Line] = [[words], *([Span(f"  failed: {error}", "bad")] for error in bad)]
    lines += [[Span(f"  somebody else works on {place}", "warn")] for place in done.busy]
    lines += [[Span(f"  not removed: {place}", "warn")] for place in done.left]
    call.answer(answer, *lines)
    return DIFFERENT if bad else OK


# --- `weft resource`: what conversations work with, and what is kept of it.

resource_command = group(
    "resource",
    """Manage resources: folders, files, addresses, containers, and their snapshots.

    A resource is named by its name, its place, or the end of its id. docs/branches.md#resources has the details.
    """,
    add,
    list_,
    show,
    attach,
    detach,
    probe,
    snapshot,
    restore,
    owners,
    migrate,
    discard,
    exec_,
    logs,
    kill,
    reconcile,
)


sandbox_command = group(
    "sandbox",
    """Run commands in the sandbox, as agents' tools do.

    docs/tools.md#the-sandbox says what each profile leaves to a command.
    """,
)
TIMED_OUT, ENDED = 124, 1
"""Exit codes where a limit ended the command."""


@sandbox_command.verb("run")
@click.argument("words", metavar="CMD...", nargs=-1, required=True, type=click.UNPROCESSED)
@click.option(
    "--profile",
    default="workspace",
    metavar="PROFILE",
    help="workspace, read-only, network:HOST[,HOST] or none. Default: workspace.",
)
@click.option("--in", "folder", default=".", metavar="DIR", help="The workspace. Default: the current folder.")
@click.option("--allow-none", is_flag=True, help="Grant the profile none: the command runs without a sandbox.")
@click.option(
    "--timeout", type=click.FloatRange(min=0.001), metavar="SECONDS", help="End it after SECONDS. Default: 120."
)
@click.option("--timeout-ms", type=click.IntRange(1), metavar="N", hidden=True, help="The same in milliseconds.")
@click.option("--env", "variables", multiple=True, metavar="NAME=VALUE", help="A variable for the command.")
@click.option(
    "--readable",
    multiple=True,
    metavar="PATH",
    help="Another path that it may read, such as where a language is installed.",
)
def run(
    call: Call,
    words: tuple[str, ...],
    profile: str,
    folder: str,
    allow_none: bool,
    timeout: float | None,
    timeout_ms: int | None,
    variables: tuple[str, ...],
    readable: tuple[str, ...],
) -> int:
    """Run a command exactly as the tool shell would: same sandbox, environment and limits.

    Write -- before the command. Ends with its exit code, with 127 where there is no such command, with 124 where its
    time was over, and with 1 where another limit ended it. With --json the answer names the toolchains of the home
    folder that the command was shown.
    """
    from weft.runtime.sandbox.profiles import NO_SANDBOX, parse_profile
    from weft.runtime.tools.shell import ShellTool
    from weft.surfaces.cli.work.sandbox_access import command_runner, nearby_ledger

    person = f"{pwd.getpwuid(os.getuid()).pw_name} at the command line"
    if profile == NO_SANDBOX and not allow_none:
        raise InvalidInput("the profile none is no sandbox", "say --allow-none, too, to run the command without one")
    chosen = parse_profile(profile, granted_by=person if allow_none else None)
    if not Path(folder).is_dir():
        raise InvalidInput(f"{folder} is not a folder", "name the workspace by --in DIR")
    shown = [Path(os.path.abspath(os.path.expanduser(path))) for path in readable]
    for path in shown:
        if not path.exists():
            raise InvalidInput(f"there is no {path}", "name what is there by --readable PATH")
    runner = command_runner(nearby_ledger(call.ledger), shown)
    tool = ShellTool(Path(folder).resolve(), profile=chosen, runner=runner)
    arguments: dict[str, Any] = {"cmd": list(words), "env": dict(map(_variable, variables))}
    if timeout is not None:
        timeout_ms = int(timeout * 1000)
    answer, code = asyncio.run(_perform_plan(tool, {**arguments, **({"timeout_ms": timeout_ms} if timeout_ms else {})}))
    if call.json:
        if not chosen.is_unconfined:
            toolchains = asyncio.run(runner.toolchains(Path(folder).resolve()))
            answer = structs.replace(answer, toolchains=toolchains.rows, hidden_programs=toolchains.hidden)
        call.document(answer)
    else:
        _show_run(answer, Path(folder).resolve())
    return code


def _variable(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals:
        raise InvalidInput(f"{text!r:.80} sets no variable", "give NAME=VALUE")
    return name, value


async def _perform_plan(tool: ShellTool, arguments: dict[str, Any]) -> tuple[SandboxRun, int]:
    """Plan it and perform the plan, as a turn does, only without anybody who decides in between."""
    from weft.runtime.tool.tool_contract import ToolCallContext, ToolFailure

    context = ToolCallContext(turn="", call="")
    try:
        plan = await tool.plan(arguments, context)
    except ToolFailure as failure:
        raise InvalidInput(failure.message, "see `weft help sandbox run`") from None
    try:
        result = (await tool.perform(plan, context)).result
    except ToolFailure as failure:
        if not isinstance(failure.details, dict) or "rc" not in failure.details:
            raise InvalidInput(failure.message, "run it again") from None
        code = TIMED_OUT if failure.code == "timed_out" else ENDED
        return _sandbox_run(plan, failure.details, f"{failure.code}: {failure.message}"), code
    return _sandbox_run(plan, result, None), result["rc"] if result["rc"] >= OK else 128 - result["rc"]


def _sandbox_run(plan: CallPlan, result: dict[str, Any], error: str | None) -> SandboxRun:
    exact = plan.exact
    return SandboxRun(
        argv=exact["argv"],
        cwd=exact["cwd"],
        profile=exact["profile"],
        granted_by=exact["granted_by"],
        plan_digest=plan.plan_digest,
        files=exact["files"],
        result=result,
        error=error,
    )


def _show_run(answer: SandboxRun, workspace: Path) -> None:
    """Each stream where it belongs, in characters that no terminal obeys."""
    for name, is_error in (("stdout", False), ("stderr", True)):
        for line in safe_lines(answer.result[name]):
            click.echo(line, err=is_error)
    for host in answer.result.get("refused_hosts", ()):
        click.echo(f"refused: {safe(host)}", err=True)
    for path in answer.result.get("hidden", ()):
        if path.endswith("/"):
            click.echo(safe(f"hidden: {path} of {workspace}: it holds too much that must be hidden"), err=True)
            continue
        showing = f"`weft trust {shell_word(str(workspace))} --show {shell_word(path)}` lets commands see it"
        click.echo(safe(f"hidden: {path} of {workspace}: {showing}"), err=True)
    for path in answer.result.get("shared_files", ()):
        click.echo(f"shared: {safe(path)} has another name elsewhere (a hard link), and changed there, too", err=True)
    for sentence in answer.result.get("git", ()):
        click.echo(f"git: {safe(sentence)}", err=True)
    if answer.error is not None:
        click.echo(safe(answer.error), err=True)
