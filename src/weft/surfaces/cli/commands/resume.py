"""`weft resume`: go on from any turn in another tool."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import click

from weft.kernel.clock import SystemClock, system_random
from weft.kernel.errors import InvalidInput
from weft.surfaces.cli import arguments
from weft.surfaces.cli.call import Call
from weft.surfaces.cli.command import command as weft_command
from weft.surfaces.cli.default_session import require_named_or_latest
from weft.surfaces.cli.figures import counted
from weft.surfaces.cli.resume_tools import TOOLS, origin_of
from weft.surfaces.cli.screen import Line, Span
from weft.surfaces.wire.exchange import ResumedSession

if TYPE_CHECKING:
    from weft.exchange.resuming import Resume
    from weft.ledger.api import Ledger


@weft_command("resume")
@arguments.rev(required=False)
@click.option(
    "--as", "tool", type=click.Choice(list(TOOLS)), help="The tool to go on in. Default: the one it comes from."
)
@click.option("--in", "folder", metavar="DIR", type=click.Path(), help="The folder to go on in. Default: the recorded.")
@click.option("--dry-run", is_flag=True, help="Write nothing; say what would be written and what is lost.")
def command(call: Call, rev: str | None, tool: str | None, folder: str | None, dry_run: bool) -> None:
    """Write a session that another tool can resume, up to any turn.

    REV is a turn or a session, of any branch and from any tool; without it, the latest session. The file lies where the
    tool looks for its sessions, under a new id; nothing that is there is touched. What is said in it from then on comes
    back with `weft import`, as a continuation of REV. Some things no format carries: `--dry-run` lists them. Nothing is
    written for a folder that is not there.
    """
    from weft.exchange.resuming import prepare_resume, write_resume

    place = None if folder is None else str(Path(os.path.expanduser(folder)).absolute())
    with call.reading() if dry_run else call.writing() as ledger:
        name = require_named_or_latest(call, ledger, rev)
        tool = tool or _origin(ledger, name)
        root = ROOTS[tool](Path.home(), os.environ)
        prepared = prepare_resume(ledger, name, tool, root, SystemClock(), system_random, workspace=place)
        is_there = Path(prepared.workspace).is_dir()
        if not dry_run:
            if not is_there:
                hint = "say where to go on: `--in DIR`; `--dry-run` shows what would be written"
                raise InvalidInput(f"{prepared.workspace} is no folder here", hint)
            write_resume(ledger, prepared)
    if call.json:
        call.document(ResumedSession(resume=prepared, written=not dry_run))
    elif call.quiet:
        call.screen.show(prepared.command)
    else:
        for line in _lines(prepared, written=not dry_run):
            call.screen.show(*line)
    if not is_there:
        call.note(f"{prepared.workspace} is no folder here: say where to go on with `--in DIR`")


def _origin(ledger: Ledger, rev: str) -> str:
    """The tool that a turn or its session comes from, where that is one that can be gone on in."""
    origin = origin_of(ledger, rev)
    if origin is not None and origin in TOOLS:
        return origin
    raise click.UsageError(
        f"{rev} comes from {origin or 'weft'}: say which tool to go on in, --as {' or --as '.join(TOOLS)}"
    )


def _claude_root(home: Path, environment: Mapping[str, str]) -> Path:
    named = [part.strip() for part in environment.get("CLAUDE_CONFIG_DIR", "").split(",") if part.strip()]
    return Path(named[0]).expanduser() if named else home / ".claude"


def _codex_root(home: Path, environment: Mapping[str, str]) -> Path:
    named = environment.get("CODEX_HOME")
    return Path(named).expanduser() if named else home / ".codex"


ROOTS: dict[str, Callable[[Path, Mapping[str, str]], Path]] = {"claude-code": _claude_root, "codex": _codex_root}
"""Where each tool keeps its things."""


def _lines(prepared: Resume, *, written: bool) -> list[Line]:
    from weft.exchange.resuming import load_format

    format = load_format(prepared.tool)
    own = f", {prepared.verbatim:,} as {prepared.tool} wrote them" if prepared.verbatim else ""
    lines: list[Line] = [
        [Span("turns    ", "dim"), f"{counted(prepared.turns, 'turn')} in {counted(prepared.records, 'record')}{own}"],
        [Span("format   ", "dim"), f"{prepared.tool} {prepared.structure}, {_checked(format.verified)}"],
        [Span("file     " if written else "would be ", "dim"), prepared.path],
    ]
    for name, count in prepared.lost.items():
        lines.append([Span("lost     ", "warn"), f"{count:,} × {name}: {format.lost[name]}"])
    return [*lines, [Span("run      ", "dim"), prepared.command]]


def _checked(verified: tuple[str, ...]) -> str:
    return (
        f"tried with {', '.join(verified)}"
        if verified
        else "compared with real files, not yet tried in the tool itself"
    )
