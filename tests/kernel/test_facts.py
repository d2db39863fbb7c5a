"""What an event may hold, the contents it refers to, and the chain of arrival."""

import re
from hashlib import sha256
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.kernel.event_strategies import events, streams
from tests.sizes import share
from weft.kernel import contents
from weft.kernel.errors import InvalidFact
from weft.kernel.events import GENESIS, Event, extend
from weft.kernel.foreign_input import EVENT_KINDS, KINDS, check_event, content_refs, is_digest, strings
from weft.kernel.ledger_events import NodeTagged, Sighting

ULID = "01ARZ3NDEKTSV4RRFFQ69G5FAV"
NOT_A_NAME = "canary ⟨…⟩ with spaces"
STEPS = re.compile(r"\.(\w+)|\[(\d+)\]")


def with_value(event: Event, path: str, value: object) -> Event:
    """The event with another value at this path."""
    fields = msgspec.json.decode(msgspec.json.encode(event))
    *way, last = [name or int(index) for name, index in STEPS.findall(path)]
    place: Any = fields
    for step in way:
        place = place[step]
    place[last] = value
    changed = KINDS.decode(contents.dumps(fields) if value != 2**53 else msgspec.json.encode(fields))
    assert isinstance(changed, Event)
    return changed


@pytest.mark.parametrize("name", share(list(EVENT_KINDS), test=25))
@settings(max_examples=8)
@given(st.data())
def test_events_of_every_kind_pass_the_check_and_a_wrong_string_is_refused_by_its_path(
    name: str, data: st.DataObject
) -> None:
    event = data.draw(events(EVENT_KINDS[name]))
    check_event(event)
    for path, _, _ in list(strings(event)):
        with pytest.raises(InvalidFact) as refused:
            check_event(with_value(event, path, NOT_A_NAME))
        assert refused.value.where == path


def test_an_integer_that_readers_would_round_is_refused_by_its_path() -> None:
    event = Sighting(stream=f"import:{ULID}", prev=None, actor="imported", session=ULID, origin="pi", offset=1)
    with pytest.raises(InvalidFact) as refused:
        check_event(with_value(event, "$.offset", 2**53))
    assert refused.value.where == "$.offset"


@pytest.mark.parametrize(
    "stream", ["", "run", f"run{ULID}", "run:", f"run:{ULID.lower()}", f"room:{ULID}", f"run:{ULID}:", f"RUN:{ULID}"]
)
def test_a_stream_is_one_of_seven_kinds_and_an_id(stream: str) -> None:
    tagged = NodeTagged(stream=stream, prev=None, actor="local", node=ULID, tags=())
    with pytest.raises(InvalidFact, match="names no stream"):
        check_event(tagged)


@given(streams)
def test_streams_of_all_kinds_pass(stream: str) -> None:
    check_event(NodeTagged(stream=stream, prev=None, actor="local", node=ULID, tags=()))


@pytest.mark.parametrize("actor", ["a b", "é", "x" * 129, "", "a\n"])
def test_an_actor_is_a_name_or_an_id(actor: str) -> None:
    with pytest.raises(InvalidFact) as refused:
        check_event(NodeTagged(stream=f"run:{ULID}", prev=None, actor=actor, node=ULID, tags=()))
    assert refused.value.where == "$.actor"


def test_the_contents_of_an_event_are_found_wherever_they_lie() -> None:
    refs = [sha256(bytes([i])).hexdigest() for i in range(8)]
    line = contents.dumps(
        {
            "v": 1, "kind": "history_append", "stream": f"run:{ULID}", "prev": refs[7], "actor": "local",
            "list": "main",
            "message": {
                "id": ULID, "role": "user", "context": refs[0], "model": {"content": refs[1]},
                "parts": [
                    {"type": "text", "text": refs[2]},
                    {"type": "image_url", "url": refs[3], "detail": {"content": refs[4]}},
                ],
                "files": [{"kind": "read", "path": refs[5]}], "lints": [{"source": {"content": refs[6]}}],
            },
        }
    )  # fmt: skip
    event = KINDS.decode(line)
    assert isinstance(event, Event)
    assert sorted(content_refs(event)) == sorted(refs[:7])


def test_a_digest_is_64_small_hex_digits() -> None:
    assert is_digest("0af" + "0" * 61)
    assert not any(map(is_digest, ["", "0" * 63, "0" * 65, "A" * 64, "g" * 64, "0" * 64 + "\n"]))


@given(st.lists(st.binary(min_size=32, max_size=32), max_size=6), st.integers(0, 6))
def test_the_chain_of_arrival_is_the_same_however_it_is_cut(ids: list[bytes], cut: int) -> None:
    assert extend(extend(GENESIS, ids[:cut]), ids[cut:]) == extend(GENESIS, ids)


def test_the_chain_of_arrival_hashes_the_link_before_with_the_event() -> None:
    one, two = sha256(b"1").digest(), sha256(b"2").digest()
    first = sha256(bytes(32) + one).digest()
    assert extend(GENESIS, [one, two]) == sha256(first + two).digest()
    assert extend(GENESIS, [two, one]) != extend(GENESIS, [one, two])
