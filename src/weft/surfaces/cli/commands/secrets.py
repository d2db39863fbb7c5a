"""`weft secrets`: credentials that lie in what was recorded; found, never shown, and erased if asked to."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click
from msgspec.structs import replace

from weft.kernel.errors import InvalidInput, NotApplicable
from weft.surfaces.cli.arguments import session_option
from weft.surfaces.cli.call import Call, undo
from weft.surfaces.cli.command import command as weft_command
from weft.surfaces.cli.erasures import carry_out
from weft.surfaces.cli.exits import DIFFERENT, OK
from weft.surfaces.cli.figures import counted
from weft.surfaces.cli.filter_values import ensure_known_origin
from weft.surfaces.cli.history import short
from weft.surfaces.cli.program_call import as_actor
from weft.surfaces.cli.progress import progress
from weft.surfaces.cli.screen import Line, Span
from weft.surfaces.cli.user_files import user_cache
from weft.surfaces.wire.upkeep import IgnoredSecret

if TYPE_CHECKING:
    from weft.ledger.api import Ledger, SecretMatch, SecretPlace, SecretReport, SecretScanner

PLACES = 4


@weft_command("secrets")
@click.argument("fingerprints", nargs=-1, metavar="[FINGERPRINT]...")
@session_option("Only in the thread of this session, or told of it.")
@click.option("--origin", metavar="NAME", help="Only in turns of this tool; weft for those recorded here.")
@click.option("--project", metavar="NAME", help="Only in sessions of this folder, by its path or its last part.")
@click.option("--since", metavar="TIME", help="Only in turns from this time on; a day means all of it.")
@click.option("--all", "anew", is_flag=True, help="Look at every content again, not only at what is new.")
@click.option("--ignore", metavar="FINGERPRINT", help="A false alarm: tell of it no more.")
@click.option("--unignore", metavar="FINGERPRINT", help="Tell of it again.")
@click.option("--ignored", is_flag=True, help="Show what is ignored instead.")
@click.option("--erase", is_flag=True, help="Erase every content that holds one of those found, for good.")
@click.option("--redact", is_flag=True, help="Erase the credentials alone: the rest of each text is shown as it was.")
@click.option("--show", is_flag=True, help="Show the credentials themselves, with the words around them.")
@click.option("--reason", metavar="TEXT", help="Why; needed with --yes. Kept for ever, so say no more than you must.")
@as_actor
@click.option("--dry-run", is_flag=True, help="With --erase or --redact: show what would go, and stop.")
@click.option("-y", "--yes", is_flag=True, help="With --erase or --redact: do it without asking.")
def command(
    call: Call,
    fingerprints: tuple[str, ...],
    ignore: str | None,
    unignore: str | None,
    erase: bool,
    redact: bool,
    show: bool,
    reason: str | None,
    actor: str,
    dry_run: bool,
    yes: bool,
    **options: Any,
) -> int:
    """Find credentials in what was recorded, look at them, and erase them.

    Looks at contents that came since the last time and lists every credential that is known by now: by which rule,
    where, how often; itself only with --show. Nothing is sent anywhere. A fingerprint, or its beginning, stands for one
    of them. --erase takes every content that holds one; --redact leaves the rest of the text, with a mark in its place,
    and takes whole only copies of imported sources. Exits with 1 if there are any.
    """
    if (ignore is not None) + (unignore is not None) + erase + redact + show > 1:
        raise click.UsageError("say one of --ignore, --unignore, --show, --redact and --erase")
    if (reason is not None or dry_run or yes) and not (erase or redact):
        raise click.UsageError("--reason, --dry-run and --yes belong to --erase and --redact")
    with call.writing() as opened:
        ledger = call.in_name_of(actor, opened)
        if ignore is not None or unignore is not None:
            _choose(call, ledger, ignore, unignore)
            return OK
        report, scanner = _find(call, ledger, fingerprints, {**options, "again": erase or redact})
        if (erase or redact) and report.secrets:
            left = ledger.secrets.remainders(report, scanner=scanner) if redact else {}
            _erase(call, ledger, scanner, report, reason, left, dry_run=dry_run, yes=yes)
            return OK
        if show:
            matches = ledger.secrets.matches(report, scanner=scanner)
            call.documents(matches) if call.json else call.screen.page(_match_lines(report, matches))
            _note_names(call, report)
            return DIFFERENT if matches else OK
        call.answer(report, *_lines(report))
        _note(call, report)
        return DIFFERENT if report.secrets and not options["ignored"] else OK


def _find(
    call: Call, ledger: Ledger, fingerprints: tuple[str, ...], options: dict[str, Any]
) -> tuple[SecretReport, SecretScanner]:
    from weft.ledger.secrets import load_scanner

    with progress(call, "secrets", by_itself=True) as bar:
        scanner = load_scanner(user_cache())
        report = ledger.secrets.find(fingerprints=fingerprints, scanner=scanner, progress=bar.staged, **options)
    if not report.secrets:
        ensure_known_origin(ledger, options["origin"])
    return report, scanner


def _choose(call: Call, ledger: Ledger, ignore: str | None, unignore: str | None) -> None:
    if ignore is not None:
        mark = ledger.secrets.ignore(ignore)
        call.answer(IgnoredSecret(ignored=mark), ["ignored ", Span(mark, "id")])
        call.note(undo("secrets", "--unignore", mark))
    else:
        mark = ledger.secrets.ignore(unignore or "", undo=True)
        call.answer(IgnoredSecret(unignored=mark), ["no longer ignored: ", Span(mark, "id")])


def _erase(
    call: Call,
    ledger: Ledger,
    scanner: SecretScanner,
    report: SecretReport,
    reason: str | None,
    remainders: dict[str, str],
    *,
    dry_run: bool,
    yes: bool,
) -> None:
    """Labels that hold a credential are not shown in the plan either."""
    if reason is not None and _holds(scanner, reason):
        raise InvalidInput("the reason holds a credential itself", "say why, without saying what")
    refs = list(dict.fromkeys(ref for secret in report.secrets for ref in secret.contents))
    if not refs:
        raise NotApplicable("names in events cannot be erased", "replace the credential where it came from")
    with progress(call, "erase") as bar:
        plan = ledger.erasure.plan(refs, progress=bar.staged)
    named = tuple(
        replace(affected, label=affected.id) if _holds(scanner, affected.label) else affected
        for affected in plan.sessions
    )
    carry_out(call, ledger, replace(plan, sessions=named), reason, remainders=remainders, dry_run=dry_run, yes=yes)
    call.note("a credential that was recorded is known: replace it where it came from, too")


def _holds(scanner: SecretScanner, text: str) -> bool:
    return bool(scanner.scan(text.encode("utf-8", "replace"), b""))


def _lines(report: SecretReport) -> Iterator[Line]:
    for secret in report.secrets:
        yield [Span(secret.fingerprint, "id"), "  ", Span(secret.kind, "bad"), f" {secret.shown}  ",
               f"{counted(secret.times, 'time')}, {', '.join(secret.rules)}"]  # fmt: skip
        for place in secret.places[:PLACES]:
            yield _place(place)
        if secret.uses > PLACES:
            yield [f"    and {secret.uses - PLACES:,} more"]
        if not secret.uses:
            yield ["    in a content that nothing uses: ", Span(secret.contents[0][:16], "id")]


def _match_lines(report: SecretReport, matches: list[SecretMatch]) -> Iterator[Line]:
    kinds = {secret.fingerprint: secret.kind for secret in report.secrets}
    for match in matches:
        yield [Span(match.fingerprint, "id"), "  ", Span(kinds[match.fingerprint], "bad"), "  content ",
               Span(match.content[:16], "id")]  # fmt: skip
        before, after = (" ".join(text.split()) for text in (match.before, match.after))
        yield ["    ", Span(f"…{before} ", "dim"), Span(match.secret, "match"), Span(f" {after}…", "dim")]


def _place(place: SecretPlace) -> Line:
    line: list[Span | str] = ["    "]
    if place.session_id is not None:
        line += ["session ", Span(place.session or place.session_id, "label"), "  "]
    if place.turn_id is not None:
        line += ["turn ", Span(short(place.turn_id), "id"), "  "]
    if place.call_id is not None:
        line += [f"call {place.call_id}  "]
    elif place.message_id is not None:
        line += ["message ", Span(short(place.message_id), "id"), "  "]
    return [*line, place.what]


def _note(call: Call, report: SecretReport) -> None:
    looked = f"{counted(report.scanned.contents, 'new content')} ({report.scanned.bytes:,} bytes) looked at"
    call.note(f"{counted(len(report.secrets), 'secret')} found; {looked} with {report.rules}")
    if report.ignored:
        call.note(f"{counted(report.ignored, 'finding')} ignored; `weft secrets --ignored` shows them")
    _note_names(call, report)
    if any(secret.contents for secret in report.secrets):
        call.note("`weft secrets --show` shows them, `--redact` takes them out of what was said, `--erase` all of it")


def _note_names(call: Call, report: SecretReport) -> None:
    if named := sum(any(not place.content for place in secret.places) for secret in report.secrets):
        call.note(f"{counted(named, 'secret')} in names, which cannot be erased: replace them where they came from")
