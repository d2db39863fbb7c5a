"""`weft bundle`: threads in a file that others can verify."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import click

from weft.exchange.bundles.creation import CreatedBundle
from weft.exchange.bundles.verification import VISIBLE, AbsentContent, BundleReport
from weft.kernel.typed_names import shell_word
from weft.surfaces.cli import arguments
from weft.surfaces.cli.command_line import DIFFERENT, Call, group
from weft.surfaces.cli.command_line import command as weft_command
from weft.surfaces.cli.progress import counted, progress
from weft.surfaces.cli.screen import Line, Span
from weft.surfaces.cli.user_files import complete_keys, key_ring, open_signer
from weft.verbs.exchange_answers import BundleFile, ImportedBundle, SignedBundle

if TYPE_CHECKING:
    pass

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
@click.option("-o", "--output", "file", type=click.Path(), required=True, metavar="FILE", help="The file to write.")
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
@click.argument("file", type=click.Path())
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
@click.argument("file", type=click.Path())
@click.argument("keys", metavar="KEY...", nargs=-1, required=True, shell_complete=complete_keys)
@click.option("-o", "--output", "path", type=click.Path(), required=True, metavar="FILE", help="The file to write.")
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
@click.argument("file", type=click.Path())
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
    from weft.surfaces.cli.reading.turns import show_log, show_turn

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
            show_turn(call, ledger, rev, full)
        else:
            head = report.heads[0].event if len(report.heads) == 1 else None
            show_log(call, ledger, head, oneline=oneline, limit=limit)


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
