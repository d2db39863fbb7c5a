"""The frozen form: what was once an event with this id is one for ever."""

import json
from hashlib import sha256
from pathlib import Path

import pytest
from msgspec import UNSET

from weft.kernel.contents import ImportSecret, content_ref, imported_turn_id
from weft.kernel.events import Event, encode, kind_of
from weft.kernel.foreign_input import KINDS, check_event

GOLDEN = [json.loads(line) for line in (Path(__file__).parent / "golden_events.jsonl").read_text().splitlines()]
SECRET = bytes(range(32))


@pytest.mark.parametrize("vector", GOLDEN, ids=lambda vector: vector["event_id"][:12])
def test_an_event_reads_and_writes_as_it_always_did(vector: dict[str, str]) -> None:
    line = vector["line"].encode()
    assert sha256(line).hexdigest() == vector["event_id"]
    event = KINDS.decode(line)
    assert isinstance(event, Event)
    assert encode(event) == line
    check_event(event)


def test_every_kind_and_every_field_has_a_vector() -> None:
    """A kind or field without one is new: `scripts/golden_vectors.py` adds it, and changes nothing that is there."""
    seen: dict[str, set[str]] = {}
    for vector in GOLDEN:
        event = KINDS.decode(vector["line"].encode())
        assert isinstance(event, Event)
        fields = {name for name in event.__struct_fields__ if getattr(event, name) is not UNSET}
        seen.setdefault(kind_of(event), set()).update(fields)
    assert seen == {name: set(kind.__struct_fields__) for name, kind in KINDS.kinds.items()}


def test_names_of_contents_and_of_imported_things() -> None:
    secret = ImportSecret(SECRET, "claude-code")
    source = secret.source([b"first", b"second"])
    assert content_ref(bytes(16), b"hello").hex() == "2a03e6683107c53621507b8b3b0d8daadcf9536290dc7cdd232b17125e1ec981"
    assert secret.salt(sha256(b"hello").digest()).hex() == "d04fc44296c70393229bce2f0cedccc6"
    assert [secret.reference(data) for data in (b"hello", b"x" * 999)] == [
        secret.prepare(data).ref for data in (b"hello", b"x" * 999)
    ]
    assert secret.session_id("session-1") == "586MK3MDJ1DGKMDK94J0CCKP9Z"
    assert secret.node_id("resource", "res-1") == "2RVPY4NRTENG4111JK2T785D3R"
    assert source == "13938192fa13bfe3c888515d18ec71802c8be32eb0a72b6202800675ef6bbba0"
    assert imported_turn_id(None, "claude-code/1", source) == "7SHCV4YK9M9BRYJCRPKZ5W7586"
    assert imported_turn_id("0f" * 32, "claude-code/1", source) == "6X5NTD9NE86BKB39ZKCHDW7AA5"
    assert secret.source([b"firstsecond"]) != source
