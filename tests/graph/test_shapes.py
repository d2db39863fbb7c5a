"""Shapes of the agent graph's schema: its four examples go to events and back, and nothing of an event is lost."""

import json
from typing import Any

import msgspec
import pytest

import weft
from tests.graph.histories import tell_everything
from weft.graph.nodes import event_from_shape, shape_of
from weft.kernel.clock import is_ulid
from weft.kernel.errors import InvalidInput
from weft.kernel.events import encode, event_id, resource_stream, run_stream
from weft.kernel.foreign_input import KINDS, check_event

ULID, OTHER, DIGEST = "01ARZ3NDEKTSV4RRFFQ69G5FAV", "01BX5ZZKBKACTAV9WEVGEMMVRZ", "ab" * 32
ENVELOPE = {"ts": "2026-11-15T01:58:12.123Z", "agent_id": "local"}
EXAMPLES: dict[str, dict[str, Any]] = {  # with ids that Weft could have minted, and what our events need beside
    "model request": {
        "kind": "model_request",
        **ENVELOPE,
        "run_id": ULID,
        "model": "o4-mini",
        "params": {"temperature": 0.2},
        "input_refs": [{"event_id": DIGEST}],
        "correlation_id": OTHER,
    },
    "tool result": {
        "kind": "tool_result",
        **ENVELOPE,
        "run_id": ULID,
        "call_id": "exec-42",
        "status": "ok",
        "result": {"rc": 0, "stdout": "...", "stderr": "", "duration_ms": 120},
        "call": {"event_id": DIGEST},
        "correlation_id": OTHER,
    },
    "snapshot created": {
        "kind": "snapshot_created",
        **ENVELOPE,
        "resource_ref": ULID,
        "snapshot_ref": OTHER,
        "outcome": "ok",
    },
    "restore attempted": {
        "kind": "restore_attempted",
        **ENVELOPE,
        "snapshot_ref": OTHER,
        "outcome": "unsupported",
    },
}


class Contents:
    """Contents by a reference that says nothing."""

    def __init__(self) -> None:
        self._kept: dict[str, str] = {}

    def put_text(self, text: str) -> str:
        ref = f"{len(self._kept):064x}"
        self._kept[ref] = text
        return ref

    def put_json(self, value: Any) -> str:
        return self.put_text(json.dumps(value))

    def put_name(self, name: str) -> str | None:
        return None

    def text(self, ref: str) -> str:
        return self._kept[ref]

    def json(self, ref: str) -> Any:
        return json.loads(self._kept[ref])


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_of_the_schema_becomes_an_event_and_the_same_shape_again(name: str) -> None:
    shape, contents = EXAMPLES[name], Contents()
    stream = run_stream(shape["run_id"]) if "run_id" in shape else resource_stream(ULID)
    event = event_from_shape(shape, contents, stream=stream, prev=None)
    check_event(event)
    line = encode(event)
    again = shape_of(contents, 1, event_id(line), line, KINDS.decode(line))
    assert {key: again[key] for key in shape} == shape
    assert again["event_id"] == event_id(line)
    assert encode(event_from_shape(again, Contents(), stream=stream, prev=None)) == line


def test_a_shape_that_is_no_event_is_refused_with_why() -> None:
    with pytest.raises(InvalidInput, match="no kind of event"):
        event_from_shape({"kind": "wish"}, Contents(), stream=run_stream(ULID), prev=None)
    with pytest.raises(InvalidInput, match="model_request"):
        event_from_shape({**EXAMPLES["model request"], "model": 5}, Contents(), stream=run_stream(ULID), prev=None)


def test_kinds_and_fields_that_are_not_known_are_shown_as_they_are() -> None:
    fields = {
        "kind": "dream",
        "stream": run_stream(ULID),
        "prev": None,
        "actor": "local",
        "ts": None,
        "v": 1,
        "of": [1],
    }
    line = msgspec.json.encode(fields)
    shape = shape_of(Contents(), 1, DIGEST, line, KINDS.decode(line))
    assert shape.items() >= fields.items()
    known = {**fields, "kind": "mcp.resource_list_changed", "server": "s", "newer": {"content": "text"}}
    line = msgspec.json.encode(known)
    assert shape_of(Contents(), 1, DIGEST, line, KINDS.decode(line))["newer"] == {"content": "text"}


def test_every_event_of_a_history_keeps_all_its_fields_and_shows_no_reference_to_a_text() -> None:
    with weft.open(":memory:") as ledger:
        tell_everything(ledger)
        for recorded in ledger.changes():
            shape = ledger.graph.node(f"event:{recorded.id}").properties
            fields = json.loads(recorded.line)
            assert shape.keys() >= fields.keys() - {"ts"}
            for name in ("message", "model", "tool", "source", "label", "name", "call_id", "place"):
                value = shape.get(name)
                assert not (isinstance(value, str) and len(value) == 64 and not is_ulid(value)), (name, value)
