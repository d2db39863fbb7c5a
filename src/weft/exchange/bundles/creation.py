"""Making a bundle: the facts of some threads in order of arrival, each content right before the event that names it.

Written aside and renamed once it has been verified as a stranger would: either the file is there and holds, or it is
not there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from msgspec import Struct

from weft.exchange.bundles import form
from weft.exchange.bundles.container import Packer, unpacked_lines
from weft.exchange.bundles.intake import verify_bundle
from weft.exchange.bundles.keys import Signer
from weft.exchange.bundles.report import BundleReport
from weft.exchange.bundles.verification import KnownNames
from weft.exchange.bundles.withheld_contents import Withholding
from weft.kernel.errors import ContentGone, FactDamaged, InvalidBundle, NotApplicable, StoreError, WithheldShows
from weft.ledger.api import Ledger, open_thread_facts
from weft.ledger.arguments import checked_file, checked_path, path_error
from weft.ledger.read.thread_events import ThreadFacts
from weft.ledger.upkeep.facts_file import event_line
from weft.ledger.upkeep.ledger_copy import BUNDLE, remembered
from weft.store.private_files import aside_of, open_aside, put_in_place

LEAKS = 20
Report = Callable[[int, int], None]


class CreatedBundle(Struct, frozen=True, kw_only=True):
    """A bundle that was made, and verified."""

    path: str
    bytes: int
    report: BundleReport
    shows: tuple[str, ...]
    """Places where words of withheld texts stand all the same, by the maker's will."""


def create_bundle(
    ledger: Ledger,
    threads: Sequence[str],
    target: str | Path,
    *,
    rooms: Sequence[str] = (),
    withhold: Sequence[str] = (),
    matching: str | None = None,
    signers: Sequence[Signer] = (),
    force: bool = False,
    progress: Report | None = None,
) -> CreatedBundle:
    """Write the threads that end at these turns or sessions to a new file. `rooms` names conversations that go along
    whole: what was said in them, the names of whoever takes part, and the threads of the agents that answered there.

    `withhold` names messages, tool calls (`turn:call`), turns or contents whose texts stay out, and `matching` is a
    regular expression for more of them. Raises WithheldShows where their words stand elsewhere, unless `force`.
    """
    path = checked_file(target, "target", "give the path of a new file")
    if path.exists():
        raise StoreError(f"{path} exists already", "choose a new file; bundles are never overwritten")
    aside = aside_of(path)
    conversations = [ledger.rooms.get(room).id for room in rooms]
    threads = [*threads, *(thread for room in conversations for thread in _threads_of(ledger, room))]
    try:
        with open_thread_facts(ledger, threads, conversations) as facts, KnownNames() as known:
            withholding = Withholding(facts, ledger, withhold, matching)
            with open_aside(aside) as out:
                writing = _Writing(facts, withholding, known, Packer(out))
                writing.write(signers, progress)
            if writing.leaks and not force:
                raise WithheldShows(writing.leaks[:LEAKS], max(0, len(writing.leaks) - LEAKS))
        report, size = verify_bundle(aside, [signer.public for signer in signers]), aside.stat().st_size
        with remembered(ledger._store, path, BUNDLE):
            put_in_place(aside, path)
    except OSError as error:
        raise path_error(path, error) from error
    except InvalidBundle as error:  # the ledger's own facts do not lead to these heads
        raise FactDamaged("thread", ", ".join(threads), error.reason) from error
    finally:
        with suppress(OSError):
            aside.unlink(missing_ok=True)
    return CreatedBundle(path=str(path), bytes=size, report=report, shows=tuple(writing.leaks))


def _threads_of(ledger: Ledger, room: str) -> list[str]:
    """The sessions of the agents that answered in a room."""
    labels = [one.session for one in ledger.rooms.participants(room, removed=True) if one.session is not None]
    threads = [label for label in dict.fromkeys(labels) if ledger.session(label).head is not None]
    if not threads:
        raise NotApplicable("no agent has answered in the room", "a bundle holds at least one thread: export the room")
    return threads


def sign_bundle(source: str | Path, target: str | Path, signers: Sequence[Signer]) -> BundleReport:
    """The same bundle in a new file, with further signatures. It is verified before anybody signs it."""
    path, proved = checked_path(target, "target"), verify_bundle(source)
    if path.exists():
        raise StoreError(f"{path} exists already", "choose a new file; bundles are never overwritten")
    aside = aside_of(path)
    statement = form.statement(proved.digest, proved.heads)
    try:
        with checked_path(source, "bundle").open("rb") as file, open_aside(aside) as out:
            packer = Packer(out)
            signatures = {
                signer.public.bytes: form.signature_line(signer.public.bytes, signer.sign(statement))
                for signer in signers
            }
            for line in unpacked_lines(file):
                if packer.lines.hexdigest() != proved.digest:
                    packer.add(line)
                else:
                    signatures.setdefault(bytes.fromhex(form.parsed(line)["key"]), line)
            for key in sorted(signatures):
                packer.add(signatures[key])
            packer.finish()
        report = verify_bundle(aside, [signer.public for signer in signers])
        put_in_place(aside, path)
    except OSError as error:
        raise path_error(path, error) from error
    finally:
        with suppress(OSError):
            aside.unlink(missing_ok=True)
    return report


class _Writing:
    """One bundle in the making."""

    def __init__(self, facts: ThreadFacts, withholding: Withholding, known: KnownNames, packer: Packer) -> None:
        self._facts, self._withholding, self._known, self._packer = facts, withholding, known, packer
        self._events = self._contents = self._absent = 0
        self.leaks: list[str] = []

    def write(self, signers: Sequence[Signer], progress: Report | None) -> None:
        packer, heads = self._packer, self._facts.heads
        packer.add(form.header_line(heads))
        of = self._facts.txn.facts.tip().n
        for n, line in self._facts.events():
            self._add_event(line)
            if progress is not None:
                progress(n, of)
        packer.add(form.end_line(self._events, self._contents, self._absent, packer.lines.hexdigest()))
        statement = form.statement(packer.lines.hexdigest(), heads)
        by_key = {signer.public.bytes: signer for signer in signers}
        for key in sorted(by_key):
            packer.add(form.signature_line(key, by_key[key].sign(statement)))
        packer.finish()

    def _add_event(self, line: bytes) -> None:
        """The tombstones of what it names and was erased, its contents, and the event itself."""
        event = form.parsed(line)
        named = [(path, ref) for path, ref in form.references(event) if self._known.get(ref) is None]
        for _, ref in named:
            if self._known.get(ref) is None and self._is_erased(ref) and (tombstones := self._facts.tombstones(ref)):
                self._add_absent(ref, form.ERASED)
                for tombstone in tombstones:
                    self._add_event(tombstone)
        for path, ref in named:
            if self._known.get(ref) is None:
                self._add_content(event, path, ref)
        self._packer.add(event_line(line))
        self._events += 1

    def _is_erased(self, ref: str) -> bool:
        try:
            self._facts.content(ref)
        except ContentGone:
            return True
        return False

    def _add_absent(self, ref: str, why: str) -> None:
        self._known.add(ref, why)
        self._packer.add(form.absent_line(ref, why))
        self._absent += 1

    def _add_content(self, event: dict[str, Any], path: str, ref: str) -> None:
        try:
            head = self._facts.content(ref)
        except ContentGone:
            self._add_absent(ref, form.ERASED)
            return
        why = form.MISSING if head is None else self._withholding.why(event, path, ref)
        if why is not None or head is None:
            self._add_absent(ref, why or form.MISSING)
            return
        if self._withholding.is_asked:
            self._look_for_leaks(event, path, ref)
        self._known.add(ref, "")
        for line in form.content_lines(ref, head.salt, head.size, self._facts.txn.facts.stream_content(head.n)):
            self._packer.add(line)
        self._contents += 1

    def _look_for_leaks(self, event: dict[str, Any], path: str, ref: str) -> None:
        if any(map(self._withholding.stretches.found_in, self._withholding.texts(ref))):
            stream = str(event["stream"]).replace("run:", "turn ")
            self.leaks.append(f"{stream}, {event['kind']} {path} (content {ref})")
