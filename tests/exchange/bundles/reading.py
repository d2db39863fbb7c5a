"""Bundles as tests look at them: through both verifiers, which must agree, and as bare lines."""

import importlib.util
import zlib
from collections.abc import Callable, Iterable, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

import orjson

from weft.exchange.bundles import BundleReport, KeyRing, PublicKey, Signer, verify_bundle
from weft.exchange.bundles.verification import end_line
from weft.kernel.errors import InvalidBundle

VERIFIER = Path(__file__).parents[3] / "tools" / "verify_bundle.py"
MAGIC = b"weft bundle 1\n"


def independent() -> Any:
    """The verifier that shares no code with ours."""
    found = importlib.util.spec_from_file_location("independent_verifier", VERIFIER)
    assert found is not None
    assert found.loader is not None
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


INDEPENDENT = independent()


def verified(path: Path, keys: Sequence[PublicKey] = ()) -> BundleReport:
    """What both say of a bundle that holds: the same."""
    ours = verify_bundle(path, keys)
    theirs = INDEPENDENT.verify(path, [key.bytes.hex() for key in keys])
    assert theirs == {
        "digest": ours.digest,
        "threads": [{"turn": each.turn_id, "digest": each.digest, "turns": each.turns} for each in ours.threads],
        "turns": ours.turns,
        "events": ours.events,
        "contents": ours.contents,
        "absent": {why: ours.absent.get(why, 0) for why in ("withheld", "erased", "missing", "outside")},
        "signatures": [{"key": each.key, "trusted": each.trusted} for each in ours.signatures],
    }
    return ours


def is_refused(path: Path) -> bool:
    """Do both refuse it? They must agree."""
    ours = theirs = False
    try:
        verify_bundle(path)
    except InvalidBundle:
        ours = True
    try:
        INDEPENDENT.verify(path)
    except SystemExit as said:
        theirs = str(said).startswith("refused: ")
    assert ours == theirs, f"ours {'refuses' if ours else 'accepts'} it, the other does not agree"
    return ours


def lines_of(path: Path) -> list[bytes]:
    return zlib.decompress(path.read_bytes()[len(MAGIC) : -32]).split(b"\n")[:-1]


def sealed(lines: Iterable[bytes]) -> bytes:
    """A bundle of these lines, with the digest that the file then has."""
    body = MAGIC + zlib.compress(b"".join(line + b"\n" for line in lines))
    return body + sha256(body).digest()


def resealed(path: Path, change: Callable[[list[bytes]], Iterable[bytes]], target: Path) -> Path:
    """A bundle whose facts were changed by somebody who then counts and hashes all anew, as a forger would."""
    lines = lines_of(path)
    at = next(i for i, line in enumerate(lines) if b'"sha256"' in line and line.startswith(b'{"absent":'))
    facts, signatures = list(change(lines[:at])), lines[at + 1 :]
    events = sum(line.startswith(b'{"event_id"') for line in facts)
    absent = sum(line.startswith(b'{"absent":"') for line in facts)
    pieces = sum("piece" in value and value["piece"] > 0 for value in map(orjson.loads, facts[1:]))
    digest = sha256(b"".join(line + b"\n" for line in facts)).hexdigest()
    end = end_line(events, len(facts) - 1 - events - absent - pieces, absent, digest)
    target.write_bytes(sealed([*facts, end, *signatures]))
    return target


def signer(folder: Path, name: str = "ann") -> Signer:
    ring = KeyRing(folder)
    ring.create(name, sha256(name.encode()).digest())
    return ring.signer(name)
