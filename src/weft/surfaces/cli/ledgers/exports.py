"""Threads for others to read: `weft export`, as Markdown, HTML, JSON lines or message lists,
and `weft resume`, for another tool to go on with.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from weft.kernel.clock import SystemClock, system_random
from weft.kernel.errors import InvalidInput
from weft.kernel.typed_names import shell_line
from weft.surfaces.cli import arguments
from weft.surfaces.cli.arguments import STANDARD, stdout_bytes
from weft.surfaces.cli.command_line import Call
from weft.surfaces.cli.command_line import command as weft_command
from weft.surfaces.cli.progress import counted, progress
from weft.surfaces.cli.screen import Line, Span
from weft.surfaces.cli.turn_lists import nothing_found, require_named_or_latest
from weft.verbs.branch_verbs import origin_of
from weft.verbs.exchange_answers import ExportedFile, ResumedSession

if TYPE_CHECKING:
    from weft.exchange.exporters.export import Exported
    from weft.exchange.resuming import Resume
    from weft.ledger.api import Ledger


# --- `weft export`: threads in forms that people and other programs read.

BY_SUFFIX = {".md": "markdown", ".markdown": "markdown", ".html": "html", ".htm": "html", ".jsonl": "jsonl"}
FORMS, ROOM_FORMS = ("markdown", "html", "jsonl", "openai", "anthropic"), ("markdown", "html", "jsonl")
"""The forms of threads and of rooms."""
PASSAGES = {"thinking": "passage of thinking", "unsigned thinking": "passage of unsigned thinking"}
"""What was left out, where it has no plural."""


def _complete_forms(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
    from weft.exchange.exporters.port import exporter_names

    return [name for name in exporter_names() if name.startswith(incomplete)]


@weft_command("export")
@click.argument("revs", nargs=-1, shell_complete=arguments.complete_labels)
@click.option(
    "--format",
    "form",
    cls=arguments.RenamedOption,
    old=("--as",),
    metavar="FORM",
    shell_complete=_complete_forms,
    help="markdown, html, jsonl, openai, anthropic, or what a plugin adds. Default: by the end of FILE's name.",
)
@click.option(
    "-o", "--output", "file", metavar="FILE", type=click.Path(), default=STANDARD, help="Where to. Default: -, stdout."
)
@click.option("--force", is_flag=True, help="Replace FILE if it exists.")
@click.option("--context", is_flag=True, help="What the model would see, instead of the whole thread.")
@click.option("--tree", is_flag=True, help="Everything that shares a root with REVS, with all branches.")
@click.option("--all", "every", is_flag=True, help="Every session that is not archived or deleted.")
@click.option("--room", metavar="ROOM", help="What was said in this room, instead of threads.")
@click.option("--title", metavar="TEXT", help="The title of the page. Default: the session's, or what it began with.")
@click.option(
    "--thinking",
    metavar="WHICH",
    type=click.Choice(["all", "signed", "none"]),
    help="all, signed or none of the models' thinking. Default: all; signed for anthropic.",
)
@click.option("--no-tools", is_flag=True, help="Leave tool calls and their results out.")
@click.option("--assets", metavar="DIR", type=click.Path(), help="A folder for the images of Markdown.")
@arguments.original_option
def export_command(
    call: Call,
    revs: tuple[str, ...],
    form: str | None,
    file: str,
    force: bool,
    context: bool,
    tree: bool,
    every: bool,
    room: str | None,
    title: str | None,
    thinking: str | None,
    no_tools: bool,
    assets: str | None,
    original: bool,
) -> None:
    """Write threads as Markdown, HTML, JSON lines or message lists.

    REVS are turns or sessions; each stands for the thread that ends there, from its root. Without them it is the latest
    session. The HTML page is one file that fetches nothing. Messages for OpenAI's and Anthropic's APIs are those of one
    thread. A file is complete or not there, and none is replaced without --force. With --room it is what was said in a
    room, as Markdown, HTML or JSON lines.

    What a form has no place for is left out and counted. docs/sharing.md#exports says what each form holds.

    \b
    weft export main -o main.html
    weft export main by-hand --format markdown -o both.md
    weft export main --context --format anthropic
    weft export --room plans -o plans.html
    """
    from weft.exchange.exporters.export import export
    from weft.surfaces.cli.user_files import prices_in_force

    if revs and every:
        raise click.UsageError("name turns or sessions, or say --all: not both")
    if room is not None and (revs or every or tree or context or thinking or no_tools or assets or original):
        raise click.UsageError("--room goes with --as, -o, --title and --force alone")
    if room is not None:
        _export_room(call, room, form, file, title, force)
        return
    with call.copying() if file != STANDARD else call.reading() as ledger, progress(call, "export") as bar:
        names = _heads(ledger) if every else _found_revisions(call, ledger, revs)
        chosen = _form_of(call, form, file, FORMS)
        done = export(
            ledger.originals() if original else ledger,
            names,
            chosen,
            stdout_bytes() if file == STANDARD else file,
            trees=tree,
            context=context,
            title=title,
            thinking=thinking,
            tools=not no_tools,
            assets=assets,
            force=force,
            prices=prices_in_force(None) if chosen == "html" else None,
            progress=bar.counted,
        )
    _show_exported(call, done, file)


def _found_revisions(call: Call, ledger: Ledger, revs: tuple[str, ...]) -> list[str]:
    """What is exported; one that is not there is told before anything else is asked for."""
    names = [require_named_or_latest(call, ledger, rev) for rev in revs or (None,)]
    for name in names:
        ledger.point(name)
    return names


def _export_room(call: Call, room: str, form: str | None, file: str, title: str | None, force: bool) -> None:
    from weft.exchange.exporters.export import export_room
    from weft.exchange.exporters.port import exporter_names

    if form is not None and form not in exporter_names():
        line = shell_line(("--as", form, "export", "--room", room, "-o", file))
        raise click.UsageError(
            f"--format takes {', '.join(ROOM_FORMS)} here; in the name of {form!r} it is: weft {line}"
        )
    with call.copying() if file != STANDARD else call.reading() as ledger:
        ledger.rooms.get(room)
        chosen = _form_of(call, form, file, ROOM_FORMS)
        out = stdout_bytes() if file == STANDARD else file
        _show_exported(call, export_room(ledger, room, chosen, out, title=title, force=force), file)


def _form_of(call: Call, form: str | None, file: str, forms: Sequence[str]) -> str:
    """The form that is asked for, or that the name of the file says; refused where it could not be written."""
    chosen = form or BY_SUFFIX.get(Path(file).suffix.lower())
    if chosen is None:
        first, *others = forms
        named = "name a file that ends in .md, .html or .jsonl with -o"
        raise click.UsageError(f"in which form? add --format {first} (or {', '.join(others)}), or {named}")
    if file == STANDARD:
        _check_stdout(call)
    return chosen


def _check_stdout(call: Call) -> None:
    if call.json:
        raise click.UsageError("--json tells about a file: name one with -o")
    if call.screen.terminal:
        what_else = "name a file with -o, use a pipe, or look at it with `weft read`"
        raise click.UsageError(f"stored text could control the terminal: {what_else}")


def _heads(ledger: Ledger) -> list[str]:
    labels = [session.label for session in ledger.sessions() if session.head is not None]
    if not labels:
        raise nothing_found(ledger, "session with a turn")
    return labels


def _show_exported(call: Call, done: Exported, file: str) -> None:
    if done.left_out:
        counts = ", ".join(counted(count, PASSAGES.get(what, what)) for what, count in done.left_out.items())
        call.note(f"left out: {counts}")
    if file != STANDARD:
        amount = counted(done.turns, "turn") if done.turns else counted(done.messages, "message")
        size = f" ({amount}, {done.bytes:,} bytes)"
        call.answer(ExportedFile(file=file, exported=done), [f"wrote {done.form} to ", Span(file, "heading"), size])


# --- The tools that `weft resume` writes sessions for, and the one of them that a turn comes from.

TOOLS = {"claude-code": "Claude Code", "codex": "Codex"}
"""What `--tool` takes, and what each tool calls itself."""


def ways_on(label: str, origin: str | None) -> str:
    """How a session goes on here, and in the tool that it comes from; without one, in each tool that can be named."""
    chat, resume = (f"weft {shell_line((command, label))}" for command in ("chat", "resume"))
    if origin is not None and origin in TOOLS:
        return f"with `{chat}`, or in {TOOLS[origin]} with `{resume}`"
    (first, title), *others = TOOLS.items()
    rest = ", ".join(f"{other}: `--tool {tool}`" for tool, other in others)
    return f"with `{chat}`, or in {title} with `{resume} --tool {first}` ({rest})"


# --- `weft resume`: go on from any turn in another tool.


@weft_command("resume")
@arguments.rev(required=False)
@click.option(
    "--tool",
    cls=arguments.RenamedOption,
    old=("--as",),
    type=click.Choice(list(TOOLS)),
    help="The tool to go on in. Default: the one it comes from.",
)
@click.option(
    "--in", "folder", metavar="DIR", type=click.Path(), help="The folder to go on in. Default: the recorded folder."
)
@click.option("--dry-run", is_flag=True, help="Write nothing; say what would be written and what is lost.")
def resume_command(call: Call, rev: str | None, tool: str | None, folder: str | None, dry_run: bool) -> None:
    """Write a session that another tool can resume, up to any turn.

    REV is a turn or a session, of any branch and from any tool; without it, the latest session. The file lies where the
    tool looks for its sessions, under a new id; nothing that is there is touched. What is said in it from then on comes
    back with `weft import`, as a continuation of REV. Some things no format carries: `--dry-run` lists them. Nothing is
    written for a folder that is not there.

    docs/branches.md#continuing-in-another-tool has the details.
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
        for line in _resume_lines(prepared, written=not dry_run):
            call.screen.show(*line)
    if not is_there:
        call.note(f"{prepared.workspace} is no folder here: say where to go on with `--in DIR`")


def _origin(ledger: Ledger, rev: str) -> str:
    """The tool that a turn or its session comes from, where that is one that can be gone on in."""
    origin = origin_of(ledger, rev)
    if origin is not None and origin in TOOLS:
        return origin
    raise click.UsageError(
        f"{rev} comes from {origin or 'weft'}: say which tool to go on in, --tool {' or --tool '.join(TOOLS)}"
    )


def _claude_root(home: Path, environment: Mapping[str, str]) -> Path:
    named = [part.strip() for part in environment.get("CLAUDE_CONFIG_DIR", "").split(",") if part.strip()]
    return Path(named[0]).expanduser() if named else home / ".claude"


def _codex_root(home: Path, environment: Mapping[str, str]) -> Path:
    named = environment.get("CODEX_HOME")
    return Path(named).expanduser() if named else home / ".codex"


ROOTS: dict[str, Callable[[Path, Mapping[str, str]], Path]] = {"claude-code": _claude_root, "codex": _codex_root}
"""Where each tool keeps its things."""


def _resume_lines(prepared: Resume, *, written: bool) -> list[Line]:
    from weft.exchange.resuming import load_format

    format = load_format(prepared.tool)
    own = f", {prepared.verbatim:,} as {prepared.tool} wrote them" if prepared.verbatim else ""
    lines: list[Line] = [
        [Span("turns    ", "dim"), f"{counted(prepared.turns, 'turn')} in {counted(prepared.records, 'record')}{own}"],
        [Span("format   ", "dim"), f"{prepared.tool} {prepared.structure}, {_verified_words(format.verified)}"],
        [Span("file     " if written else "would be ", "dim"), prepared.path],
    ]
    for name, count in prepared.lost.items():
        lines.append([Span("lost     ", "warn"), f"{count:,} × {name}: {format.lost[name]}"])
    return [*lines, [Span("run      ", "dim"), prepared.command]]


def _verified_words(verified: tuple[str, ...]) -> str:
    return (
        f"tried with {', '.join(verified)}"
        if verified
        else "compared with real files, not yet tried in the tool itself"
    )
