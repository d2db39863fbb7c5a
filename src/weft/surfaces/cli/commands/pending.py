"""`weft pending`: what other ledgers decided, and whether it counts here."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

import click

from weft.kernel.errors import NotApplicable, NotFound
from weft.surfaces.cli.call import Call
from weft.surfaces.cli.call import undo as undo_line
from weft.surfaces.cli.command import SharedGroup
from weft.surfaces.cli.figures import counted
from weft.surfaces.cli.program_call import F, as_actor, changing, looking
from weft.surfaces.cli.questions import ask, confirm, is_person_there
from weft.surfaces.cli.screen import Line, Span
from weft.surfaces.cli.sync_call import complete_remotes, replica_of_source
from weft.surfaces.cli.times import local_time

if TYPE_CHECKING:
    from weft.programs import Programs
    from weft.programs.program_records import PendingItem

KINDS = ("code", "provider", "model", "session", "agent", "task", "information", "human", "approval", "erasure")
STYLES = {"waiting": "warn", "taken": "good", "refused": "bad"}
STATES = {"waiting": ", not taken over", "taken": ", taken over here", "refused": ", refused here"}
ID_LETTERS = 12


@click.pass_context
def _list_by_default(ctx: click.Context) -> None:
    if ctx.invoked_subcommand is None:
        show_pending(ctx.ensure_object(Call), None, None, False)


command = SharedGroup(
    "pending",
    callback=_list_by_default,
    invoke_without_command=True,
    help="""Show what other ledgers decided, and take it over or refuse it.

    Configurations, answers of people and erasures that another ledger wrote do nothing here until somebody here takes
    them over. Without a command it lists what waits.""",
)


def complete_pending(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
    """Names and ids of what waits; with `undo` of what was decided."""
    from weft.kernel.errors import WeftError
    from weft.programs import Programs

    try:
        with Call.completing(ctx).reading() as ledger:
            items = Programs(ledger).pending(decided=ctx.info_name == "undo")
    except (WeftError, OSError):
        return []
    names = [name for item in items for name in (item.name, item.id[:ID_LETTERS])]
    return [name for name in dict.fromkeys(names) if name.startswith(incomplete)]


def _kind(function: F) -> F:
    return click.option("--kind", type=click.Choice(KINDS), help="Only of this kind.")(function)


def _source(function: F) -> F:
    return click.option(
        "--from", "source", metavar="REMOTE|REPLICA", shell_complete=complete_remotes,
        help="Only what this ledger wrote or brought here: a remote, a replica id or its end.",
    )(function)  # fmt: skip


@command.verb("list")
@_kind
@_source
@click.option("--decided", is_flag=True, help="What was taken over or refused, instead of what waits.")
def list_(call: Call, kind: str | None, source: str | None, decided: bool) -> None:
    """List what waits, by arrival."""
    show_pending(call, kind, source, decided)


def show_pending(call: Call, kind: str | None, source: str | None, decided: bool) -> None:
    opening = looking(call) if source is None else changing(call, call.actor)  # a remote is asked which replica it is
    with opening as programs:
        replica = None if source is None else replica_of_source(call, programs.ledger, source)
        items = programs.pending(kind=kind, source=replica, decided=decided)
    if call.json:
        call.documents(items)
        return
    if not items:
        call.note("nothing was taken over or refused" if decided else "nothing of other ledgers waits for your word")
        return
    rows: list[list[Span | str]] = [
        [
            Span(item.id[:ID_LETTERS], "id"),
            item.kind,
            Span(item.name if item.kind != "erasure" else item.name[:16], "label"),
            item.what,
            *([Span(item.status, STYLES[item.status])] if decided else []),
            item.actor,
            (item.replica or "")[-8:],
            local_time(item.at),
        ]
        for item in items
    ]
    heads = ["id", "kind", "name", "what", *(["decided"] if decided else []), "by", "replica", "when"]
    call.screen.table(rows, heads, spare=["replica", "by", "kind"])
    hint = (
        "`weft pending undo NAME` lets one wait again" if decided else "`weft pending show NAME`, then take or refuse"
    )
    call.note(hint)


@command.verb("show")
@click.argument("name", shell_complete=complete_pending)
def show(call: Call, name: str) -> None:
    """Show what another ledger decided, whole, and where it differs from what counts here."""
    with looking(call) as programs:
        items = _known(programs, name)
        configs = [programs.get(item.node).config if item.version is not None else None for item in items]
    if call.json:
        call.documents(items)
        return
    for item, config in zip(items, configs, strict=True):
        for line in _lines(item, config):
            call.screen.show(*line)


def _known(programs: Programs, name: str) -> list[PendingItem]:
    """What waits under this name, else what was decided under it."""
    with suppress(NotFound, NotApplicable):
        return programs.pending(name)
    return programs.pending(name, decided=True)


def _lines(item: PendingItem, counted_config: object) -> list[Line]:
    from weft.programs.program_records import differences
    from weft.surfaces.wire.json_text import document

    lines: list[Line] = [
        [f"{item.kind} ", Span(item.name, "label"), f" {item.what}"],
        [Span("said by ", "dim"), item.actor, Span(" in replica ", "dim"), item.replica or "unknown",
         Span(STATES[item.status], STYLES[item.status])],
    ]  # fmt: skip
    if item.text is not None:
        lines.append([Span("says ", "dim"), item.text])
    if item.version is None:
        return lines
    if item.counted_version:
        lines.append([Span(f"differs from version {item.counted_version}, which counts here:", "dim")])
        lines += [
            [f"  {one.how} {one.path}: {document(one.before)} → {document(one.after)}"]
            for one in differences(counted_config, item.config)
        ]
    else:
        lines.append([Span("nothing of it counts here so far", "dim")])
    return [*lines, *([line] for line in document(item.config, indent=True).split("\n"))]


@command.verb("take")
@click.argument("names", nargs=-1, metavar="[NAME|ID]...", shell_complete=complete_pending)
@_kind
@_source
@click.option("-y", "--yes", is_flag=True, help="Without asking.")
@as_actor
def take(call: Call, names: tuple[str, ...], kind: str | None, source: str | None, yes: bool, actor: str) -> None:
    """Let decisions of other ledgers count here: by name or id, or all of a kind or a source.

    A configuration that is taken over is used from now on, whatever it names: servers, variables, folders, commands.
    An erasure is carried out, which cannot be undone. A later version of the same program waits again.
    """
    with changing(call, actor) as programs:
        replica = None if source is None else replica_of_source(call, programs.ledger, source)
        _require_choice(names, kind, source)
        items = programs.pending(*names, kind=kind, source=replica)
        if erasures := [item for item in items if item.kind == "erasure"]:
            _confirm_erasures(call, len(erasures), yes)
        elif items and not names:
            _confirm_several(call, items, yes)
        taken = programs.take_over(*(item.id for item in items)) if items else []
    _show_items(call, taken, "took over")
    if undoable := [item for item in taken if item.kind != "erasure"]:
        call.note(undo_line("pending", "undo", *(item.id[:ID_LETTERS] for item in undoable)))


def _require_choice(names: tuple[str, ...], kind: str | None, source: str | None) -> None:
    if not names and kind is None and source is None:
        raise click.UsageError("name what you mean, or say --kind or --from")


def _confirm_several(call: Call, items: list[PendingItem], yes: bool) -> None:
    """Somebody at a terminal who names a kind or a source sees what that takes over, and is asked."""
    if yes or not is_person_there(call):
        return
    for item in items:
        call.note(f"  {item.kind} ", Span(item.name, "label"), f" {item.what}")
    ask(f"let {counted(len(items), 'decision')} of another ledger count here?")


def _confirm_erasures(call: Call, count: int, yes: bool) -> None:
    hint = "look at it with `weft erase --apply --dry-run`, then say --yes"
    confirm(call, f"erase {counted(count, 'content')} for good?", hint, is_sure=yes)


@command.verb("refuse")
@click.argument("names", nargs=-1, metavar="[NAME|ID]...", shell_complete=complete_pending)
@_kind
@_source
@as_actor
def refuse(call: Call, names: tuple[str, ...], kind: str | None, source: str | None, actor: str) -> None:
    """Do not take decisions over, and do not list them any more."""
    with changing(call, actor) as programs:
        replica = None if source is None else replica_of_source(call, programs.ledger, source)
        _require_choice(names, kind, source)
        refused = programs.refuse(*names, kind=kind, source=replica)
    _show_items(call, refused, "refused")
    if refused:
        call.note(undo_line("pending", "undo", *(item.id[:ID_LETTERS] for item in refused)))


@command.verb("undo")
@click.argument("names", nargs=-1, metavar="[NAME|ID]...", shell_complete=complete_pending)
@_kind
@_source
@as_actor
def undo(call: Call, names: tuple[str, ...], kind: str | None, source: str | None, actor: str) -> None:
    """Let what was taken over or refused wait again; an erasure that was carried out stays so."""
    with changing(call, actor) as programs:
        replica = None if source is None else replica_of_source(call, programs.ledger, source)
        _require_choice(names, kind, source)
        waiting = programs.reconsider(*names, kind=kind, source=replica)
    _show_items(call, waiting, "waits again:")


def _show_items(call: Call, items: list[PendingItem], verb: str) -> None:
    if call.json:
        call.documents(items)
        return
    for item in items:
        call.screen.show(f"{verb} {item.kind} ", Span(item.name, "label"), f" {item.what}")
    if not items:
        call.note("nothing of other ledgers waits for your word")
