"""The credentials themselves: shown to whoever owns the ledger, and taken out of the texts that hold them.

Nothing here is stored. A text is read again, the rules find in it what they found before, and the words are handed to
whoever asked, or replaced by a mark in what becomes the remainder of an erased content.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence

from msgspec import Struct

from weft.kernel.contents import bytes_text
from weft.kernel.errors import ContentGone, ContentMissing
from weft.ledger.imports.kept_sources import MAGIC
from weft.ledger.imports.sources import import_secret
from weft.ledger.secrets.scan import windows_of, without_escapes
from weft.ledger.secrets.scanner import SecretScanner
from weft.store.port import ReadTxn, Store

REDACTED = "[redacted]"
LARGEST_BYTES = 16 * 1024 * 1024
"""A larger content is erased as a whole."""
AROUND = 60
"""So many characters are shown before and after a match."""


class SecretMatch(Struct, frozen=True, kw_only=True):
    """A credential as it stands in a content, with the words around it."""

    fingerprint: str
    content: str
    """The reference of the content that holds it."""
    secret: str
    before: str
    after: str


def matches(store: Store, scanner: SecretScanner, wanted: Iterable[tuple[str, Sequence[str]]]) -> Iterator[SecretMatch]:
    """By fingerprint and the references of its contents: the first match in each content that is still there."""
    key = import_secret(store)
    with store.read() as txn:
        for mark, refs in wanted:
            for ref in refs:
                n = txn.facts.find_content(bytes.fromhex(ref))
                match = None if n is None else _first_match(txn, n, scanner, key, mark)
                if match is not None:
                    secret, text = match
                    at = text.find(secret)
                    yield SecretMatch(
                        fingerprint=mark,
                        content=ref,
                        secret=secret,
                        before=text[max(0, at - AROUND) : max(0, at)],
                        after=text[at + len(secret) : at + len(secret) + AROUND] if at >= 0 else "",
                    )


def _first_match(txn: ReadTxn, n: int, scanner: SecretScanner, key: bytes, mark: str) -> tuple[str, str] | None:
    """The credential of this fingerprint, and the text that it was found in."""
    for window in windows_of(txn, n):
        for data in dict.fromkeys((window.data, without_escapes(window.data))):
            for fingerprint, secret in scanner.values(data, key):
                if fingerprint == mark:
                    return secret, data.decode("utf-8", "replace")
    return None


def remainders(store: Store, scanner: SecretScanner, refs: Iterable[str], marks: Iterable[str]) -> dict[str, str]:
    """By reference what is left of each of these contents without the credentials of these fingerprints. A content
    whose credentials cannot be taken out cleanly, or that is a copy of an imported source, is not among them."""
    key, wanted = import_secret(store), frozenset(marks)
    texts: dict[str, str] = {}
    with store.read() as txn:
        contents = [(ref, _text_bytes(txn, ref)) for ref in dict.fromkeys(refs)]
        secrets = {
            secret for _, data in contents if data is not None for secret in _secrets(scanner, data, key, wanted)
        }
        for ref, data in contents:
            text = None if data is None else _without(data, secrets)
            if text is not None and not any(True for _ in _secrets(scanner, text.encode("utf-8"), key, wanted)):
                texts[ref] = text
    return texts


def _text_bytes(txn: ReadTxn, ref: str) -> bytes | None:
    """The bytes of a content that is text; None of any other."""
    n = txn.facts.find_content(bytes.fromhex(ref))
    if n is None or txn.facts.content_size(n) > LARGEST_BYTES:
        return None
    try:
        data = txn.facts.content(n)
        data.decode("utf-8")
    except (ContentGone, ContentMissing, UnicodeDecodeError):
        return None
    return None if data.startswith(MAGIC) else data


def _secrets(scanner: SecretScanner, data: bytes, key: bytes, wanted: frozenset[str]) -> Iterator[str]:
    for text in dict.fromkeys((data, without_escapes(data))):
        yield from (secret for mark, secret in scanner.values(text, key) if mark in wanted)


def _without(data: bytes, secrets: Iterable[str]) -> str | None:
    """The text with a mark in place of each credential, however it is written; None where none of them is in it."""
    text = before = bytes_text(data)
    for secret in sorted(secrets, key=len, reverse=True):
        for written in (secret, json.dumps(secret)[1:-1], json.dumps(secret, ensure_ascii=False)[1:-1]):
            text = text.replace(written, REDACTED)
    return None if text == before else text
