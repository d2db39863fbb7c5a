"""The rules that know credentials: kingfisher's, which `weft[secrets]` brings.

A credential is turned into a fingerprint where it is found; only whoever looks for the same words elsewhere (`again`)
holds it for that long. A fingerprint is keyed with the ledger's own import secret: a plain hash of a password could be
guessed. Whether a credential still works is never asked: that would send it away.
"""

from __future__ import annotations

import hmac
import re
from collections.abc import Callable, Iterator
from functools import cache, cached_property
from hashlib import sha256
from pathlib import Path
from threading import Lock
from typing import Any, Protocol, cast

from msgspec import Struct

from weft.kernel.errors import InvalidInput, Unsupported
from weft.ledger.secrets.rule_patterns import load_patterns

DIGITS = 16
SHOWN = 4
LONG = 16
"""Of a credential shorter than this nothing is shown."""
COMPONENTS = frozenset(
    "betterleaks." + name
    for name in (
        "alibaba-sts-security-token", "aws-secret-access-key", "exoscale-api-secret", "ovh-consumer-key",
        "polymarket-api-secret", "polymarket-passphrase",
    )
)  # fmt: skip
"""Rules that only serve others in kingfisher's own reports, but whose matches are secret by themselves."""
QUICK_BYTES = 256 * 1024
"""So much is looked through by the patterns of rules before the rules themselves are compiled."""
UNKEPT_QUICK_BYTES = 4 * 1024 * 1024
"""The same where compiled rules are kept nowhere, and compiling them takes ten times as long as reading them."""
PIECE_BYTES, PIECE_OVERLAP_BYTES = 56 * 1024, 16 * 1024
"""A long text is handed to the patterns in pieces, which overlap by more than any credential has."""
NAME_LENGTH = 24
_name = re.compile(r"_?[a-z]+(?:_[a-z]+){2,}_?")
_breaks = re.compile(rb"(?<!\\)\\++[nrt]|\s+")
_kind_in_name = re.compile(r"^\w+ an? (?:possible |potential )?(.+)$", re.I)


def is_name(text: str) -> bool:
    """Whether this is a name of a program, such as `internal_chat_message_metadata`: small words, no digit. Rules that
    look for many letters take it for a random key, which would not lack capitals and digits."""
    return len(text) >= NAME_LENGTH and _name.fullmatch(text) is not None


class SecretTrace(Struct, frozen=True, gc=False):
    """A credential that a rule found, without the credential."""

    rule: str
    start: int
    fingerprint: str
    shown: str


class SecretScanner(Protocol):
    """Finds credentials in bytes, without asking anybody else."""

    @property
    def rules(self) -> str:
        """Which rules these are, and of which version: what was scanned with others is scanned again."""

    def scan(self, data: bytes, key: bytes) -> list[SecretTrace]:
        """What is found in these bytes; fingerprints are made with `key`."""

    def values(self, data: bytes, key: bytes) -> Iterator[tuple[str, str]]:
        """The fingerprints with the credentials themselves, to be looked for elsewhere and forgotten."""

    def kind(self, rule: str) -> str:
        """What a rule finds, in words."""


def checked_scanner(value: Any) -> SecretScanner:
    """Whatever has the parts of one; a class of scanners is none."""
    parts = (getattr(value, name, None) for name in ("scan", "values", "kind"))
    if isinstance(value, type) or not isinstance(getattr(value, "rules", None), str) or not all(map(callable, parts)):
        raise InvalidInput(f"scanner is {type(value).__name__}", "give what `load_scanner` returns, or none")
    return cast(SecretScanner, value)


def fingerprint(secret: str, key: bytes) -> str:
    """The same for one credential wherever and however it was wrapped; tells nothing to whoever lacks the key."""
    plain = _breaks.sub(b"", secret.encode("utf-8", "surrogatepass")).rstrip(b"\\")
    return hmac.new(key, b"weft.secret.1\n" + plain, sha256).hexdigest()[:DIGITS]


def redacted(secret: str) -> str:
    head = secret[:SHOWN] if len(secret) >= LONG else ""
    return "".join(c if " " < c < "\x7f" else "*" for c in head) + "…"


class CompiledRules(Struct, frozen=True):
    """All rules of kingfisher, and the scanner made of them."""

    catalog: Any
    scan: Callable[[bytes], list[Any]]


class Kingfisher:
    """Kingfisher's rules. They are compiled for the first text in which one of them may find something, or once so much
    was looked at that they are faster: compiling takes seconds, reading what an earlier process compiled half a second.
    Scanning is local; its validation, which is not, is never called."""

    def __init__(self, sdk: Any, folder: Path | None) -> None:
        self._sdk, self._folder = sdk, folder
        self._patterns = load_patterns(sdk.__version__)
        self._compiling = Lock()
        self._compiled: CompiledRules | None = None
        self._quick_bytes = QUICK_BYTES if folder is not None else UNKEPT_QUICK_BYTES
        self._looked_at = 0

    @property
    def name(self) -> str:
        """Names these rules in one word."""
        return f"kingfisher.{self._sdk.__version__}"

    @property
    def rules(self) -> str:
        count = len(self._ready().catalog) if self._patterns is None else self._patterns.count
        return f"kingfisher {self._sdk.__version__}, {count} rules, names of programs left out"

    def scan(self, data: bytes, key: bytes) -> list[SecretTrace]:
        return [
            SecretTrace(
                found.rule_id, found.location["start_offset"], fingerprint(found.secret, key), redacted(found.secret)
            )
            for found in self._found(data)
        ]

    def values(self, data: bytes, key: bytes) -> Iterator[tuple[str, str]]:
        return ((fingerprint(found.secret, key), found.secret) for found in self._found(data))

    def _found(self, data: bytes) -> Iterator[Any]:
        if not self._may_match(data):
            return iter(())
        found = (found for found in self._ready().scan(data) if found.visible or found.rule_id in COMPONENTS)
        return (match for match in found if not is_name(match.secret))

    def _may_match(self, data: bytes) -> bool:
        if self._compiled is not None or self._patterns is None:
            return True
        self._looked_at += len(data)
        return self._looked_at > self._quick_bytes or self._patterns.may_match(data)

    def secrets(self, text: str) -> Iterator[tuple[str, str]]:
        """The credentials in a text as they are written there, each with its kind. Of what stands in base64 that is the
        base64."""
        whole = text.encode("utf-8", "surrogatepass")
        for data in (whole,) if self._compiled is not None else pieces_of(whole):
            for found in self._found(data):
                place = found.location
                coded = data[place["start_offset"] : place["end_offset"]].decode("utf-8", "replace")
                yield self.kind(found.rule_id), coded if found.is_base64_encoded else found.secret

    def kind(self, rule: str) -> str:
        if self._patterns is not None and rule in self._patterns.rules:
            return self._patterns.rules[rule].kind
        return self._kinds.get(rule, rule)

    @cached_property
    def _kinds(self) -> dict[str, str]:
        return {rule["id"]: in_short(rule["name"]) for rule in self._ready().catalog.metadata()}

    def _ready(self) -> CompiledRules:
        with self._compiling:
            if self._compiled is None:
                catalog = self._sdk.Rules(cache=self._folder is not None, cache_dir=self._folder)
                policy = self._sdk.DetectionPolicy(inline_ignores=False, markup_context=False)
                self._compiled = CompiledRules(catalog, self._sdk.Scanner(catalog, policy=policy).scan)
            return self._compiled


def pieces_of(data: bytes) -> Iterator[bytes]:
    """The pieces of a text that the patterns look through."""
    yield data[:PIECE_BYTES]
    for end in range(PIECE_BYTES, len(data), PIECE_BYTES - PIECE_OVERLAP_BYTES):
        yield data[end - PIECE_OVERLAP_BYTES : end - PIECE_OVERLAP_BYTES + PIECE_BYTES]


def in_short(name: str) -> str:
    """A rule's name, without what may come of it: `Found a Stripe Access Token, posing …`."""
    found = _kind_in_name.match(name.partition(",")[0].rstrip("."))
    return found[1] if found else name.partition(",")[0].rstrip(".")


def load_scanner(folder: Path | None = None) -> Kingfisher:
    """Kingfisher with all its rules. Where they have to be compiled that takes some seconds, once in a process;
    `folder` keeps them for the next one."""
    try:
        import kingfisher_sdk
    except ImportError as error:
        raise Unsupported(
            f"finding secrets needs kingfisher-secret-scanner ({error})", "install it: `pip install 'weft[secrets]'`"
        ) from error
    return _scanner_of(kingfisher_sdk, folder)


@cache
def _scanner_of(sdk: Any, folder: Path | None) -> Kingfisher:
    return Kingfisher(sdk, folder)
