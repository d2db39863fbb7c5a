"""Secrets: credentials that lie in contents and names."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from weft.kernel.errors import InvalidInput
from weft.ledger.api.base import LedgerPart
from weft.ledger.arguments import checked_flag, checked_progress, checked_text
from weft.ledger.imports.sources import import_secret
from weft.ledger.read.moments import read_moment
from weft.ledger.read.projects import Projects
from weft.ledger.secrets import (
    SecretMatch,
    SecretReport,
    SecretScanner,
    SecretsWanted,
    load_scanner,
    matches,
    names,
    report,
    scan,
)
from weft.ledger.secrets.repeats import find_again
from weft.ledger.secrets.scanner import checked_scanner
from weft.ledger.upkeep.recompute import silent
from weft.ledger.write.append import reads_whole, requires


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
            report.ensure_answerable(txn, criteria)
        scanned = scan.scan(self._store, knowing, report_progress, anew=checked_flag(anew, "anew"))
        self._store.catch_up()
        if checked_flag(again, "again"):
            find_again(self._store, knowing, criteria.fingerprints, report_progress)
        named = self._find_names(knowing)
        with self._store.read() as txn:
            projects = Projects(txn, self._repository_of)
            return report.make_report(txn, knowing, criteria, scanned, named, report_progress, projects)

    def _find_names(self, scanner: SecretScanner) -> list[names.NamedSecret]:
        """Credentials in names; their fingerprints are kept, so that they can be ignored."""
        key = import_secret(self._store)
        with self._store.read() as txn:
            found, noted = names.find_names(txn, scanner, key), names.fingerprints_found(txn.sql)
        if (fingerprints := {name.fingerprint for name in found}) != noted:
            self._store.write(partial(names.note_found, fingerprints))
        return found

    @reads_whole
    def matches(self, report: SecretReport, *, scanner: SecretScanner | None = None) -> list[SecretMatch]:
        """The credentials of a report themselves, one match in each content, with the words around it."""
        knowing = load_scanner() if scanner is None else checked_scanner(scanner)
        wanted = [(secret.fingerprint, secret.contents) for secret in _checked_report(report).secrets]
        return list(matches.matches(self._store, knowing, wanted))

    @reads_whole
    def remainders(self, report: SecretReport, *, scanner: SecretScanner | None = None) -> dict[str, str]:
        """By reference what is left of each content of a report without its credentials, for `erasure.erase`. A content
        that they cannot be taken out of, such as a copy of an imported source, is not among them."""
        knowing = load_scanner() if scanner is None else checked_scanner(scanner)
        secrets = _checked_report(report).secrets
        refs = (ref for secret in secrets for ref in secret.contents)
        return matches.remainders(self._store, knowing, refs, (secret.fingerprint for secret in secrets))

    @requires("secret:ignore", whole=True)
    def ignore(self, fingerprint: str, *, undo: bool = False) -> str:
        """Tell of this finding no more, or with `undo` again; returns the whole fingerprint. Local to this ledger."""
        verb = report.unignore if checked_flag(undo, "undo") else report.ignore
        return self._store.write(partial(verb, checked_text(fingerprint, "fingerprint")))


def _checked_fingerprints(fingerprints: Any) -> tuple[str, ...]:
    if isinstance(fingerprints, str) or not isinstance(fingerprints, Sequence):
        raise InvalidInput(f"fingerprints is {type(fingerprints).__name__}", "give a list of them")
    return tuple(checked_text(fingerprint, "fingerprint") for fingerprint in fingerprints)


def _checked_report(value: Any) -> SecretReport:
    if not isinstance(value, SecretReport):
        raise InvalidInput(f"report is {type(value).__name__}", "give what `find` returned")
    return value
