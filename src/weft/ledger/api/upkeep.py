"""The groups `upkeep`, `secrets` and `erasure`: views rebuilt and caught up, facts and backups
written, cold trees packed, sizes measured; credentials that lie in contents and names; what an
erasure would take, and letting it go.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from io import TextIOBase
from pathlib import Path
from typing import Any

from weft.kernel.errors import Action, ErasureChanged, InvalidInput, StoreError
from weft.ledger import erasing
from weft.ledger.api.base import LedgerBase, LedgerPart
from weft.ledger.arguments import (
    checked_call,
    checked_file,
    checked_flag,
    checked_names,
    checked_path,
    checked_place,
    checked_progress,
    checked_text,
    path_error,
)
from weft.ledger.erasing import Erasure, ErasurePlan
from weft.ledger.imports.sources import import_secret
from weft.ledger.read import content_uses, search_index
from weft.ledger.read.content_uses import Tombstone
from weft.ledger.read.revisions import read_moment
from weft.ledger.read.sessions import Projects
from weft.ledger.reports import usage_totals
from weft.ledger.secrets import SecretMatch, SecretReport, SecretScanner, SecretsWanted, findings, load_scanner, scan
from weft.ledger.secrets.findings import find_again
from weft.ledger.secrets.scan import checked_scanner
from weft.ledger.upkeep import doctor, facts_file, ledger_copy, verify
from weft.ledger.upkeep.ledger_copy import (
    BACKUP,
    EXPORT,
    FACTS,
    PackResult,
    note_copy,
    record_materialization,
    remembered,
)
from weft.ledger.upkeep.verify import silent
from weft.ledger.views import turns
from weft.ledger.write.transaction import reads_whole, requires

# --- Upkeep: views rebuilt and caught up, facts and backups written, cold trees packed, sizes measured.


class Upkeep(LedgerPart):
    """`ledger.upkeep`: rebuilds, copies, packs and measures a ledger."""

    @requires("upkeep:rebuild", whole=True)
    def rebuild(self, *, progress: Any = None) -> int:
        """Make every view anew from the facts; returns how many rows were wrong."""
        return self._rebuild_views(checked_progress(progress) or verify.silent)

    def _rebuild_views(self, report: verify.Progress) -> int:
        changed = verify.rebuild(self._store, report)
        turns.catch_up(self._store)
        search_index.catch_up(self._store)
        return changed + usage_totals.renew(self._store)

    def catch_up(self, *, progress: Any = None) -> None:
        """Bring every lagging view up to the newest fact."""
        report_progress = checked_progress(progress)
        self._store.catch_up()
        turns.catch_up(self._store)
        search_index.catch_up(self._store, progress=report_progress)
        usage_totals.catch_up(self._store)

    @reads_whole
    def export_facts(self, target: str | Path | Any, *, progress: Any = None) -> int:
        """Write every fact as a JSON line, to a new file or an open binary one; returns the number of lines."""
        lines = facts_file.export_lines(self._store, checked_progress(progress))
        if isinstance(target, TextIOBase):
            raise InvalidInput("target is a file of text", "open it for bytes, or give its path")
        if hasattr(target, "write"):
            return facts_file.write_lines(target, lines)
        path = checked_file(target, "target", Action.CHOOSE_NEW_FILE)
        try:
            with remembered(self._store, path, FACTS):
                return facts_file.write_new(path, lines)
        except OSError as error:
            raise path_error(path, error) from error

    @requires("facts:import", whole=True)
    def import_facts(
        self, source: str | Path | Any, *, excerpts: bool = False, progress: Any = None
    ) -> facts_file.ImportedFacts:
        """Bring facts in from a file of JSON lines; known ones are passed over. With `excerpts`, events of another
        ledger's own stream may come without those before them, as bundles bring them."""
        if not hasattr(source, "readline"):
            path = checked_path(source, "source")
            try:
                file = path.open("rb")
            except OSError as error:
                raise path_error(path, error) from error
            with file:
                return self._import_facts(file, excerpts, progress)
        return self._import_facts(source, excerpts, progress)

    def _import_facts(self, source: Any, excerpts: bool, progress: Any) -> facts_file.ImportedFacts:
        lines, report_progress = facts_file.limited_lines(source), checked_progress(progress)
        brought = facts_file.import_lines(
            self._store, lines, report_progress, excerpts=checked_flag(excerpts, "excerpts")
        )
        if facts_file.views_are_stale(self._store):
            self._rebuild_views(verify.silent)
        return brought

    @reads_whole
    def backup(self, target: str | Path, *, progress: Any = None, beside: Callable[[], object] | None = None) -> None:
        """Copy a consistent state to a new file while readers and writers go on; opened for writing, the copy goes by
        a replica id of its own. `beside` is called once the copy is written and before it has its name, so that what
        belongs beside it is there first; where it fails, there is no copy."""
        path, report_progress = checked_file(target, "target", Action.CHOOSE_NEW_FILE), checked_progress(progress)
        beside = checked_call(beside, "beside")
        try:
            with remembered(self._store, path, BACKUP):
                self._store.backup(path, report_progress, beside)
        except OSError as error:
            raise path_error(path, error) from error

    @reads_whole
    def note_export(self, target: str | Path, *, turn: str | None = None) -> None:
        """Remember that a file holds what was said here, so that an erasure names it; not if open for reading. `turn`:
        the one whose thread it shows, recorded as its Materialization where the ledger is trusted and has room."""
        path = str(checked_place(target, "target").absolute())
        shown = None if turn is None else self._ledger.resolve(checked_text(turn, "turn"))
        if self._store.read_only:
            return
        self._store.write(partial(note_copy, path, EXPORT))
        if shown is not None and self._ledger.trust.is_trusted:
            with suppress(StoreError):  # the file is there, and known to erasures: a record of it may be missing
                record_materialization(self._writer, path, shown)

    @reads_whole
    def disk_bytes(self) -> int:
        """How much room the ledger takes: its file and the log beside it, or its tables in a server."""
        return self._store.disk_bytes()

    @reads_whole
    def stats(self) -> dict[str, Any]:
        with self._store.read() as txn:
            return doctor.collect(txn, self._store.replica)

    @requires("upkeep:pack", whole=True)
    def pack(
        self,
        what: str | Sequence[str] = (),
        *,
        older_than: int | str | None = None,
        dry_run: bool = False,
        progress: Any = None,
    ) -> PackResult:
        """Compress the contents of whole trees: of those that these names lead to, or of all; with `older_than` (Unix
        ms, or words such as '90 days ago') only where nothing happened since. Everything reads as before."""
        return ledger_copy.pack(
            self._store,
            checked_names(what, "name"),
            None if older_than is None else self._moment(older_than, "older_than"),
            self._resolve,
            dry_run=checked_flag(dry_run, "dry_run"),
            report=checked_progress(progress) or silent,
        )

    @requires("upkeep:pack", whole=True)
    def unpack(self, what: str | Sequence[str] = (), *, progress: Any = None) -> PackResult:
        """Put contents back where a plain SQL shell reads them: of these trees, or all."""
        return ledger_copy.unpack(
            self._store, checked_names(what, "name"), self._resolve, checked_progress(progress) or silent
        )

    def search_lag(self) -> int:
        """How many events search has yet to index; until then it looks through them each time."""
        return search_index.lag_of(self._store)


# --- Secrets: credentials that lie in contents and names.


class Secrets(LedgerPart):
    """`ledger.secrets`: credentials in contents and names, and which findings are none."""

    @reads_whole
    def find(
        self,
        *,
        session: str | None = None,
        origin: str | None = None,
        project: str | None = None,
        since: int | str | None = None,
        fingerprints: Sequence[str] = (),
        ignored: bool = False,
        anew: bool = False,
        again: bool = False,
        scanner: SecretScanner | None = None,
        progress: Any = None,
    ) -> SecretReport:
        """Credentials in contents and names, none of them shown. Looks at contents that came since the last time, then
        tells of all that was ever found; `anew` looks at everything again. With `again` the same words are looked for
        where no rule knows them, which reads every content. Erase them by their contents: `erase(secret.contents)`.

        `scanner` comes from `load_scanner`. Its rules are compiled once something is to be looked at that they may find
        something in: some seconds, unless it is given a folder where an earlier process kept them.
        """
        report_progress = checked_progress(progress) or silent
        criteria = SecretsWanted(
            session=session,
            origin=origin,
            project=project,
            since=read_moment(since, "since", self._clock.now_ms(), self._zone),
            fingerprints=_checked_fingerprints(fingerprints),
            ignored=checked_flag(ignored, "ignored"),
        )
        knowing = load_scanner() if scanner is None else checked_scanner(scanner)
        with self._store.read() as txn:
            findings.ensure_answerable(txn, criteria)
        scanned = scan.scan(self._store, knowing, report_progress, anew=checked_flag(anew, "anew"))
        self._store.catch_up()
        if checked_flag(again, "again"):
            find_again(self._store, knowing, criteria.fingerprints, report_progress)
        named = self._find_names(knowing)
        with self._store.read() as txn:
            projects = Projects(txn, self._repository_of)
            return findings.make_report(txn, knowing, criteria, scanned, named, report_progress, projects)

    def _find_names(self, scanner: SecretScanner) -> list[findings.NamedSecret]:
        """Credentials in names; their fingerprints are kept, so that they can be ignored."""
        key = import_secret(self._store)
        with self._store.read() as txn:
            found, noted = findings.find_names(txn, scanner, key), findings.fingerprints_found(txn.sql)
        if (fingerprints := {name.fingerprint for name in found}) != noted:
            self._store.write(partial(findings.note_found, fingerprints))
        return found

    @reads_whole
    def matches(self, report: SecretReport, *, scanner: SecretScanner | None = None) -> list[SecretMatch]:
        """The credentials of a report themselves, one match in each content, with the words around it."""
        knowing = load_scanner() if scanner is None else checked_scanner(scanner)
        wanted = [(secret.fingerprint, secret.contents) for secret in _checked_report(report).secrets]
        return list(findings.matches(self._store, knowing, wanted))

    @reads_whole
    def remainders(self, report: SecretReport, *, scanner: SecretScanner | None = None) -> dict[str, str]:
        """By reference what is left of each content of a report without its credentials, for `erasure.erase`. A content
        that they cannot be taken out of, such as a copy of an imported source, is not among them."""
        knowing = load_scanner() if scanner is None else checked_scanner(scanner)
        secrets = _checked_report(report).secrets
        refs = (ref for secret in secrets for ref in secret.contents)
        return findings.remainders(self._store, knowing, refs, (secret.fingerprint for secret in secrets))

    @requires("secret:ignore", whole=True)
    def ignore(self, fingerprint: str, *, undo: bool = False) -> str:
        """Tell of this finding no more, or with `undo` again; returns the whole fingerprint. Local to this ledger."""
        verb = findings.unignore if checked_flag(undo, "undo") else findings.ignore
        return self._store.write(partial(verb, checked_text(fingerprint, "fingerprint")))


def _checked_fingerprints(fingerprints: Any) -> tuple[str, ...]:
    if isinstance(fingerprints, str) or not isinstance(fingerprints, Sequence):
        raise InvalidInput(f"fingerprints is {type(fingerprints).__name__}", "give a list of them")
    return tuple(checked_text(fingerprint, "fingerprint") for fingerprint in fingerprints)


def _checked_report(value: Any) -> SecretReport:
    if not isinstance(value, SecretReport):
        raise InvalidInput(f"report is {type(value).__name__}", "give what `find` returned")
    return value


# --- Erasing: what would go, and letting it go.

ATTEMPTS = 5


class Erasures(LedgerPart):
    """`ledger.erasure`: takes contents away for good."""

    def __init__(self, ledger: LedgerBase) -> None:
        super().__init__(ledger)
        self._plans: list[ErasurePlan] = []
        """Made here for somebody who may not erase everything: no other plan is carried out for them."""

    def plan(
        self, what: str | Sequence[str], *, tree: bool = False, everywhere: bool = False, progress: Any = None
    ) -> ErasurePlan:
        """What `erase` would take, what it would leave and why, and which copies hold it.

        A content is named by its reference, a session by its label or id, a turn by any name of it. `tree` means all
        turns of the tree and the sessions in it; `everywhere` also takes contents that other turns use too.
        """
        if checked_flag(everywhere, "everywhere"):
            self._writer.ensure_whole("content:erase")
        plan = erasing.make_plan(
            self._store,
            what,
            self._resolve,
            tree=checked_flag(tree, "tree"),
            everywhere=everywhere,
            report=checked_progress(progress) or silent,
        )
        if not self._writer.authority.is_unlimited:
            self._plans.append(plan)
        return plan

    @requires("content:erase")
    def erase(
        self,
        what: str | Sequence[str] | ErasurePlan,
        *,
        reason: str,
        tree: bool = False,
        everywhere: bool = False,
        remainders: Mapping[str, str] | None = None,
        progress: Any = None,
    ) -> Erasure:
        """Erase contents for good. A plan is carried out as it stands, or refused if it no longer holds. `remainders`
        are texts, by the reference of the content that each is shown in place of."""
        if not checked_text(reason, "reason").strip():
            raise InvalidInput("an erasure needs a reason", "say why, without saying what")
        texts = _checked_remainders(remainders)
        if isinstance(what, ErasurePlan):
            if what not in self._plans:
                self._writer.ensure_whole("content:erase")
            return erasing.erase(self._writer, what, reason, texts)
        for _ in range(ATTEMPTS - 1):
            try:
                plan = self.plan(what, tree=tree, everywhere=everywhere, progress=progress)
                return erasing.erase(self._writer, plan, reason, texts)
            except ErasureChanged:
                continue
        plan = self.plan(what, tree=tree, everywhere=everywhere, progress=progress)
        return erasing.erase(self._writer, plan, reason, texts)

    @requires("content:erase", whole=True)
    def finish(self) -> bool:
        """Go on with an erasure that could not be finished, since somebody read what was there before. True when
        nothing is left to be done; opening a ledger for writing tries it, too."""
        return erasing.finish(self._store)

    @reads_whole
    def done(self) -> list[Tombstone]:
        """Who erased what, when and why; the newest first."""
        with self._store.read() as txn:
            return content_uses.tombstones(txn)

    @reads_whole
    def pending(self) -> list[Tombstone]:
        """Erasures of other ledgers that came with their facts, of contents that are still here."""
        self._store.catch_up()
        with self._store.read() as txn:
            return content_uses.pending(txn)


def _checked_remainders(remainders: Any) -> dict[str, str]:
    if remainders is None:
        return {}
    if not isinstance(remainders, Mapping):
        raise InvalidInput(f"remainders is {type(remainders).__name__}", "give texts by the references of contents")
    return {checked_text(ref, "reference"): checked_text(text, "remainder") for ref, text in remainders.items()}
