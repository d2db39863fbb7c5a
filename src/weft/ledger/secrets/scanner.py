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
from typing import Any, Protocol, cast

from msgspec import Struct

from weft.kernel.errors import InvalidInput, Unsupported

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

    rules: str
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


class Kingfisher:
    """Kingfisher's rules, compiled. Scanning is local; its validation, which is not, is never called."""

    def __init__(self, sdk: Any, rules: Any) -> None:
        policy = sdk.DetectionPolicy(inline_ignores=False, markup_context=False)
        self._scan: Callable[[bytes], list[Any]] = sdk.Scanner(rules, policy=policy).scan
        self._rules = rules
        self.rules = f"kingfisher {sdk.__version__}, {len(rules)} rules, names of programs left out"

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
        found = (found for found in self._scan(data) if found.visible or found.rule_id in COMPONENTS)
        return (match for match in found if not is_name(match.secret))

    def kind(self, rule: str) -> str:
        return self._kinds.get(rule, rule)

    @cached_property
    def _kinds(self) -> dict[str, str]:
        return {rule["id"]: in_short(rule["name"]) for rule in self._rules.metadata()}


def in_short(name: str) -> str:
    """A rule's name, without what may come of it: `Found a Stripe Access Token, posing …`."""
    found = _kind_in_name.match(name.partition(",")[0].rstrip("."))
    return found[1] if found else name.partition(",")[0].rstrip(".")


def load_scanner(folder: Path | None = None) -> SecretScanner:
    """Kingfisher with all its rules. Compiling them takes some seconds, once in a process; `folder` keeps
    them for the next one."""
    try:
        import kingfisher_sdk
    except ImportError as error:
        raise Unsupported(
            f"finding secrets needs kingfisher-secret-scanner ({error})", "install it: `pip install 'weft[secrets]'`"
        ) from error
    return _compiled(kingfisher_sdk, folder)


@cache
def _compiled(sdk: Any, folder: Path | None) -> SecretScanner:
    return Kingfisher(sdk, sdk.Rules(cache=folder is not None, cache_dir=folder))
