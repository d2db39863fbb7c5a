"""Threads for others to read: `weft export`, as Markdown, HTML, JSON lines or message lists,
`weft resume`, for another tool to go on with, and `weft bundle`, a file that others can verify.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import click

from weft.exchange.bundles.creation import CreatedBundle
from weft.exchange.bundles.verification import VISIBLE, AbsentContent, BundleReport
from weft.kernel.clock import SystemClock, system_random
from weft.kernel.errors import InvalidInput
from weft.kernel.typed_names import shell_line, shell_word
from weft.surfaces.cli import arguments
from weft.surfaces.cli.arguments import STANDARD, ReadPath, WrittenPath, stdout_bytes
from weft.surfaces.cli.command_line import DIFFERENT, Call, group
from weft.surfaces.cli.command_line import command as weft_command
from weft.surfaces.cli.progress import counted, progress
from weft.surfaces.cli.screen import Line, Span
from weft.surfaces.cli.turn_lists import require_named_or_latest
from weft.surfaces.cli.user_files import complete_keys, key_ring, open_signer
from weft.verbs.branch_verbs import origin_of
from weft.verbs.exchange_answers import BundleFile, ExportedFile, ImportedBundle, ResumedSession, SignedBundle
from weft.verbs.session_verbs import nothing_found

if TYPE_CHECKING:
    from weft.exchange.exporters.export import Exported
    from weft.exchange.resuming import Resume
    from weft.ledger.api import Ledger

    pass


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
    "-o",
    "--output",
    "file",
    metavar="FILE",
    type=WrittenPath(),
    default=STANDARD,
    help="Where to. Default: -, stdout.",
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
@click.option("--assets", metavar="DIR", type=WrittenPath(), help="A folder for the images of Markdown.")
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


PLACES = 40
WORDS = {
    "withheld": "withheld",
    "erased": "erased where it comes from",
    "missing": "missing where it comes from",
}
"""Of a content that a reader would miss: why it is not in the bundle."""


def created_lines(bundle: CreatedBundle) -> Iterator[Line]:
    report = bundle.report
    yield [
        f"wrote {counted(len(report.threads), 'thread')}, {_rooms(report)}{counted(report.turns, 'turn')},"
        f" {counted(report.contents, 'content')}, {bundle.bytes:,} bytes to ",
        Span(bundle.path, "heading"),
    ]
    yield ["bundle ", Span(report.digest, "id")]
    yield from signature_lines(report)
    yield from _absent_lines(report)
    if report.absent.get("withheld"):
        yield [f"{VISIBLE}."]
    for place in bundle.shows:
        yield [Span("withheld words also stand in ", "bad"), place]


def report_lines(report: BundleReport) -> Iterator[Line]:
    yield [Span("it holds", "good"), ": bundle ", Span(report.digest, "id")]
    for thread in report.threads:
        yield [f"thread {thread.digest}, {counted(thread.turns, 'turn')}, ends with turn ", Span(thread.turn_id, "id")]
    counts = (counted(report.turns, "turn"), counted(report.events, "event"), counted(report.contents, "content"))
    yield [f"{_rooms(report)}{', '.join(counts)}"]
    if report.first_time is not None:
        yield [f"its events say that they are from {report.first_time} to {report.last_time}"]
    yield from signature_lines(report)
    yield from _absent_lines(report)
    yield ["It proves"]
    yield from ([f"  {sentence}"] for sentence in report.proves)
    yield ["It does not prove"]
    yield from ([f"  {sentence}"] for sentence in report.does_not_prove)


def _rooms(report: BundleReport) -> str:
    return f"{counted(report.rooms, 'room')}, " if report.rooms else ""


def signature_lines(report: BundleReport) -> Iterator[Line]:
    if not report.signatures:
        yield ["unsigned: nobody vouches for it"]
    for signature in report.signatures:
        key = f"{signature.name}, a key that you trust" if signature.trusted else "a key that you do not know"
        yield [f"signed with {key} ({signature.key[:16]})"]


def _absent_lines(report: BundleReport) -> Iterator[Line]:
    for why, count in report.absent.items():
        if why == "outside":
            yield [f"{counted(count, 'content')} left out, no part of the thread (--json lists them)"]
            continue
        yield [f"{counted(count, 'content')} {WORDS[why]}:"]
        places = [place for place in report.places if place.why == why]
        yield from ([f"  {words}"] for words in _place_words(places[:PLACES]))
        if len(places) > PLACES:
            yield [f"  and {len(places) - PLACES:,} more places (--json lists them)"]


def _place_words(places: Iterable[AbsentContent]) -> Iterator[str]:
    for place in places:
        where = f"message {place.message_id}" if place.message_id else place.stream.replace("run:", "turn ")
        yield f"{where}: {place.what}"


@weft_command("create")
@click.argument("threads", metavar="THREAD...", nargs=-1, shell_complete=arguments.complete_labels)
@click.option("-o", "--output", "file", type=WrittenPath(), required=True, metavar="FILE", help="The file to write.")
@click.option("--room", "rooms", multiple=True, metavar="ROOM", help="A room, with the threads of its agents.")
@click.option("--withhold", multiple=True, metavar="WHAT", help="Leave out a message, a call, a turn or a content.")
@click.option("--withhold-matching", metavar="PATTERN", help="Leave out every content that PATTERN is found in.")
@click.option("--sign", multiple=True, metavar="KEY", shell_complete=complete_keys, help="Sign it with this key.")
@click.option("--force", is_flag=True, help="Write it even if withheld words stand elsewhere in it.")
def create(
    call: Call,
    threads: tuple[str, ...],
    file: str,
    rooms: tuple[str, ...],
    withhold: tuple[str, ...],
    withhold_matching: str | None,
    sign: tuple[str, ...],
    force: bool,
) -> None:
    """Write threads to a file that anybody can verify.

    THREAD is a session or a turn; its whole ancestry goes along. WHAT is a message's id, a call as TURN:CALL, a turn,
    or a content's reference; texts that are left out are listed, and cannot be guessed from what is in the file. With
    --room all that was said in a room goes along, with the threads of the agents that answered there.

    Where words of a withheld text stand elsewhere, nothing is written, unless --force is said.
    """
    from weft.exchange.bundles import create_bundle

    if not threads and not rooms:
        raise click.UsageError("name a thread, or a room with --room")
    with call.copying() as ledger:
        signers = [open_signer(name) for name in sign]
        with progress(call, "bundle") as bar:
            bundle = create_bundle(
                ledger,
                threads,
                file,
                rooms=rooms,
                withhold=withhold,
                matching=withhold_matching,
                signers=signers,
                force=force,
                progress=bar.counted,
            )
    answer = BundleFile(file=file, bytes=bundle.bytes, shows=bundle.shows, report=bundle.report)
    call.answer(answer, *created_lines(bundle))


@weft_command("verify")
@click.argument("file", type=ReadPath())
@click.option("--signed", is_flag=True, help="Fail unless a key that you trust signed it.")
def verify(call: Call, file: str, signed: bool) -> int | None:
    """Check every hash, link and signature of a bundle, and say what it proves.

    Nothing but the file is needed. A file that was changed in any way is refused.
    """
    from weft.exchange.bundles import verify_bundle

    keys = key_ring().believed()
    with progress(call, "verify", by_itself=True):
        report = verify_bundle(file, keys)
    call.answer(report, *report_lines(report))
    if signed and not any(signature.trusted for signature in report.signatures):
        call.note("no key that you trust signed it")
        return DIFFERENT
    return None


@weft_command("sign")
@click.argument("file", type=ReadPath())
@click.argument("keys", metavar="KEY...", nargs=-1, required=True, shell_complete=complete_keys)
@click.option("-o", "--output", "path", type=WrittenPath(), required=True, metavar="FILE", help="The file to write.")
def sign(call: Call, file: str, keys: tuple[str, ...], path: str) -> None:
    """Add your signature to a bundle, in a new file.

    It is verified first. Look at what is in it: your signature says that these are the threads you mean.
    """
    from weft.exchange.bundles import sign_bundle

    signers = [open_signer(name) for name in keys]
    with progress(call, "sign", by_itself=True):
        report = sign_bundle(file, path, signers)
    call.answer(SignedBundle(file=path, report=report), [f"signed {file} in {path}"], *signature_lines(report))


@weft_command("open")
@click.argument("file", type=ReadPath())
@click.argument("rev", required=False)
@click.option("--into", metavar="LEDGER", type=click.Path(), help="Bring its facts into this ledger.")
@click.option("--full", is_flag=True, help="Show results, arguments and thinking in full.")
@click.option("--oneline", is_flag=True, help="One line for each turn.")
@click.option("-n", "--limit", type=click.IntRange(min=0), metavar="N", help="At most N turns.")
def open_(
    call: Call, file: str, rev: str | None, into: str | None, full: bool, oneline: bool, limit: int | None
) -> None:
    """Verify a bundle and read it.

    Without REV its turns are shown as `weft log` shows them, with REV one turn as `weft show` does. No ledger of yours
    is touched, unless --into names one.
    """
    from weft.exchange.bundles import import_bundle
    from weft.surfaces.cli.reading import turns  # noqa: F401 - shows them
    from weft.surfaces.cli.verb_commands import show_as
    from weft.verbs import reading_verbs as verbs

    keys = key_ring().believed()
    if into is not None:
        if rev is not None:
            raise click.UsageError("give REV or --into, not both")
        _bring(call, file, into, keys)
        return
    with TemporaryDirectory(prefix="weft-bundle-") as folder, call.making(str(Path(folder) / "ledger.db")) as ledger:
        with progress(call, "open") as bar:
            report, _ = import_bundle(ledger, file, keys, progress=bar.counted)
        call.note(_signer_words(report))
        if rev is not None:
            show_as(call, verbs.show, verbs.show.function(ledger, rev), ledger=ledger, full=full)
        else:
            head = report.heads[0].event if len(report.heads) == 1 else None
            asked = {"rev": head, "session": None, "limit": limit}
            log = verbs.log.function(ledger, **asked)
            show_as(call, verbs.log, log, ledger=ledger, graph=False, oneline=oneline, **asked)


def _bring(call: Call, file: str, into: str, keys: Any) -> None:
    from weft.exchange.bundles import import_bundle

    with call.bringing(into) as ledger, progress(call, "import") as bar:
        report, brought = import_bundle(ledger, file, keys, progress=bar.counted)
    new = f"{counted(brought.events, 'new event')}, {counted(brought.contents, 'new content')}"
    answer = ImportedBundle(
        new_events=brought.events,
        new_contents=brought.contents,
        known=brought.known,
        erased=brought.erased,
        report=report,
    )
    call.answer(answer, [f"{new}, {brought.known:,} known already"])
    call.note(_signer_words(report))
    for thread in report.threads:
        call.note(f"go on from it: `weft fork {shell_word(thread.digest[:12])} LABEL`")


def _signer_words(report: BundleReport) -> str:
    """Who vouches for it, in a few words."""
    trusted = [signature.name for signature in report.signatures if signature.trusted and signature.name]
    if trusted:
        return f"signed by {', '.join(trusted)}"
    return "signed by nobody that you trust" if report.signatures else "unsigned: nobody vouches for it"


HELP = """Bundle threads into a file that others can verify.

The file holds a thread from its root on, each event hashed over the one before it. Texts can be withheld: what is
left still verifies.

docs/sharing.md#bundles says what is in it, what it proves, and what its form is.
"""
bundle_command = group("bundle", HELP, create, verify, sign, open_)
