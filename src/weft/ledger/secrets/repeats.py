"""The same credential said again, where no rule knows it for one: a password of an address, alone in a sentence.

The credentials are taken out of the contents that hold them, looked for letter by letter in every content, and
forgotten. Short ones are left out: they may be words that mean something else.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial

from weft.ledger.imports.sources import import_secret
from weft.ledger.secrets.places import Report
from weft.ledger.secrets.scan import next_contents, note_found, windows_of, without_escapes
from weft.ledger.secrets.scanner import LONG, SecretScanner, SecretTrace, redacted
from weft.store.port import ReadTxn, Store
from weft.store.sql import rows_in

AGAIN = "weft.said-again"
_HOLDING = "SELECT DISTINCT content, fingerprint FROM secret_found WHERE rule <> ? AND fingerprint NOT IN"
Values = Mapping[bytes, SecretTrace]
"""Credentials as they are written, with what is told of them."""


def find_again(store: Store, scanner: SecretScanner, beginnings: Sequence[str], report: Report) -> None:
    """Note where else there is what was found and is not ignored; only of these fingerprints, if any are given."""
    values = _values(store, scanner, [each.lower() for each in beginnings])
    mark = 0
    while values:
        with store.read() as txn:
            numbers = next_contents(txn.sql, mark)
            (last,) = txn.sql.one("SELECT max(n) FROM content") or (0,)
            occurrences = [(n, trace) for n, _ in numbers for trace in _occurrences_in(txn, n, values)]
            known = set(
                rows_in(
                    txn.sql, "SELECT content, start FROM secret_found WHERE content IN", (n for n, _ in occurrences)
                )
            )
            found = [(n, trace) for n, trace in occurrences if (n, trace.start) not in known]
        if not numbers:
            return
        if found:
            store.write(partial(note_found, found))
        mark = numbers[-1][0]
        report("said again", mark, last)
        store.pause_reading()


def _values(store: Store, scanner: SecretScanner, beginnings: Sequence[str]) -> Values:
    key, values = import_secret(store), {}
    with store.read() as txn:
        rows = txn.sql.all(f"{_HOLDING} (SELECT fingerprint FROM secret_ignored) ORDER BY content", (AGAIN,))
        wanted = {mark for _, mark in rows if not beginnings or mark.startswith(tuple(beginnings))}
        for n in dict.fromkeys(n for n, mark in rows if mark in wanted):
            for window in windows_of(txn, n):
                for data in dict.fromkeys((window.data, without_escapes(window.data))):
                    for mark, secret in scanner.values(data, key):
                        written = secret.encode("utf-8", "surrogatepass")
                        if mark in wanted and len(written) >= LONG:
                            values[written] = SecretTrace(AGAIN, 0, mark, redacted(secret))
    return values


def _occurrences_in(txn: ReadTxn, n: int, values: Values) -> Iterator[SecretTrace]:
    for window in windows_of(txn, n):
        for written, trace in values.items():
            at = window.data.find(written)
            while at >= 0:
                start = window.at + at
                if window.low <= start < window.high:
                    yield SecretTrace(AGAIN, start, trace.fingerprint, trace.shown)
                at = window.data.find(written, at + 1)
