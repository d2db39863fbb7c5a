"""Bundles of some kilobytes whose lines would take hundreds of megabytes once they are parsed."""

from hashlib import sha256
from pathlib import Path

import pytest

from tests.attacks.confined import run_confined
from tests.exchange.bundles.reading import is_refused, sealed
from tests.sizes import share
from weft.exchange.bundles.verification import LIMITS

HEADER = b'{"bundle":1,"heads":[{"event":"%s","turn":"01ARZ3NDEKTSV4RRFFQ69G5FAV"}]}' % (b"0" * 64)
OURS = "import sys, weft.exchange.bundles as bundles; bundles.verify_bundle(sys.argv[1])"
THEIRS = "import sys; sys.path.insert(0, 'tools'); import verify_bundle; verify_bundle.verify(sys.argv[1])"


def event(values: bytes) -> bytes:
    stored = b'{"kind":"run_started","x":[' + values + b"]}"
    return b'{"event_id":"' + sha256(stored).hexdigest().encode() + b'",' + stored[1:]


LINES = {
    "lists in an event": event(b"[]," * (5 << 20) + b"[]"),
    "lists in a content": b'{"ref":[' + b"[]," * (5 << 20) + b"[]]}",
    "objects in an absence": b'{"absent":"' + b"0" * 64 + b'","why":[' + b"{}," * (5 << 20) + b"{}]}",
    "heads": b'{"bundle":1,"heads":[' + b"{}," * (5 << 20) + b"{}]}",
}


@pytest.mark.slow("two processes, each reads megabytes of signs in as much memory as it may have")
@pytest.mark.parametrize("name", share(list(LINES), test=1))
def test_a_small_bundle_that_grows_in_memory_is_refused_by_both_verifiers(tmp_path: Path, name: str) -> None:
    bomb = tmp_path / "bomb.weft"
    bomb.write_bytes(sealed([LINES[name]] if name == "heads" else [HEADER, LINES[name]]))
    assert bomb.stat().st_size < 64_000
    ours, theirs = run_confined(OURS, bomb, megabytes=300), run_confined(THEIRS, bomb, megabytes=300)
    assert "InvalidBundle: the bundle is refused: a line holds" in ours.stderr
    assert theirs.stderr == "refused: a line with too many values\n"


def test_a_long_text_with_many_commas_is_no_attack(tmp_path: Path) -> None:
    """The signs count outside of strings alone: both verifiers go on to what is wrong with this line."""
    text = tmp_path / "text.weft"
    line = (
        b'{"ref":"' + b"0" * 64 + b'","salt":"' + b"0" * 32 + b'","text":"' + b'[{,\\"' * (LIMITS.values // 2) + b'"}'
    )
    text.write_bytes(sealed([HEADER, line]))
    assert is_refused(text)
    assert "a content does not hash" in run_confined(OURS, text).stderr
    assert "a content does not hash" in run_confined(THEIRS, text).stderr
