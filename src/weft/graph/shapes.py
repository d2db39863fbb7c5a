"""Events in the shapes of the agent graph's schema, with texts in the place of references; and back.

Nothing is lost: fields that the schema does not have, kinds that this program does not know, and values of a newer one
are shown as they are. `event_from_shape` takes such a shape and gives the event that it tells of.
"""

from __future__ import annotations

from collections.abc import Callable
from types import UnionType
from typing import Annotated, Any, Protocol, Union, get_args, get_origin

import msgspec
from msgspec import Struct

from weft.kernel.errors import InvalidInput
from weft.kernel.events import Event, UnknownEvent, kind_of
from weft.kernel.facts import field_types, markers
from weft.kernel.fields import Words
from weft.kernel.kinds import KINDS
from weft.kernel.weft_error import quoted
from weft.ledger.views.recorded_events import fields_of

JSON_CONTENTS = frozenset(
    "params tools_spec args result details metadata constraints config permissions_granted permissions_used context"
    " thinking_config effective_config input output skipped overrides route plan subjects state data payload observed"
    " schema value native_config".split()
)
"""Fields whose content is JSON; all others are text."""
_STREAM_IDS = {
    "run": "run_id",
    "session": "session_id",
    "program": "program_id",
    "conversation": "conversation_id",
    "resource": "resource_id",
}


class ContentTexts(Protocol):
    """Where the contents of events are read."""

    def text(self, ref: str) -> str: ...

    def json(self, ref: str) -> Any: ...


class NewContents(Protocol):
    """Where the contents of new events are put; each gives the reference."""

    def put_text(self, text: str) -> str: ...

    def put_json(self, value: Any) -> str: ...


# --- from events ---------------------------------------------------------------------------------------------------


def shape_of(contents: ContentTexts, n: int, event_id: str, line: bytes, event: Event | UnknownEvent) -> dict[str, Any]:
    """An event as the schema has it: `run_id` and `agent_id` in the place of its stream and actor, which stay too."""
    fields = fields_of(n, line)
    shown = _resolved(contents, fields, type(event)) if isinstance(event, Event) else fields
    shape: dict[str, Any] = {"kind": fields.get("kind"), "event_id": event_id, "ts": fields.get("ts")}
    stream, _, id = str(fields.get("stream", "")).partition(":")
    if stream in _STREAM_IDS:
        shape[_STREAM_IDS[stream]] = id
    shape["agent_id"] = fields.get("actor")
    renamed = {**shown}
    _rename(renamed)
    shape.update((name, value) for name, value in renamed.items() if name not in shape)
    return shape


def _rename(shape: dict[str, Any]) -> None:
    """The schema's names beside ours where they differ."""
    if isinstance(request := shape.get("input"), dict) and shape["kind"] == "model_request":
        shape["input_refs"] = list(request.get("then", ()))
    for name, wanted in (("output", "output_ref"), ("message", "message_ref")):
        if isinstance(message := shape.get(name), dict) and "id" in message:
            shape[wanted] = message["id"]
    if isinstance(usage := shape.get("usage"), dict):
        shape["usage"] = {**usage, **_usage_of(usage)}
    for name, wanted in (("run", "run_id"), ("session", "session_id")):
        if isinstance(shape.get(name), str):
            shape.setdefault(wanted, shape[name])


def _usage_of(usage: dict[str, Any]) -> dict[str, int]:
    """Tokens as the schema counts them: what was sent, with what a cache held of it, and what came back."""
    sent = [usage.get(name) for name in ("input_tokens", "cached_input_tokens", "cache_write_tokens")]
    counted = {}
    if any(count is not None for count in sent):
        counted["prompt_tokens"] = sum(count or 0 for count in sent)
    if usage.get("output_tokens") is not None:
        counted["completion_tokens"] = usage["output_tokens"]
    return counted


def message_shape(contents: ContentTexts, message: Struct, created_at: str | None) -> dict[str, Any]:
    """A message as the schema has it."""
    shown = _resolved(contents, msgspec.to_builtins(message), type(message))
    shown["content"] = shown.pop("parts", [])
    return {**shown, "created_at": created_at}


def _resolved(contents: ContentTexts, value: dict[str, Any], record: type[Struct]) -> dict[str, Any]:
    types = field_types(record)
    return {name: _shown(contents, name, item, types[name]) if name in types else item for name, item in value.items()}


def _shown(contents: ContentTexts, name: str, value: Any, annotation: Any) -> Any:
    if isinstance(value, str):
        if markers(annotation) != {"content"}:
            return value
        return contents.json(value) if name in JSON_CONTENTS else contents.text(value)
    if isinstance(value, list):
        return [_shown(contents, name, item, annotation) for item in value]
    if not isinstance(value, dict):
        return value
    record = _record_of(annotation, value)
    if record is Words:
        return contents.text(value["content"])
    return value if record is None else _resolved(contents, value, record)


def _records_in(annotation: Any) -> list[type[Struct]]:
    if isinstance(annotation, type) and issubclass(annotation, Struct):
        return [annotation]
    if get_origin(annotation) is Annotated:
        return _records_in(get_args(annotation)[0])
    if get_origin(annotation) in (Union, UnionType, tuple):
        return [record for part in get_args(annotation) for record in _records_in(part)]
    return []


def _record_of(annotation: Any, value: dict[str, Any]) -> type[Struct] | None:
    """Which of the structures that a field may hold a value is: by its tag, else by its fields."""
    records = _records_in(annotation)
    tagged = [record for record in records if record.__struct_config__.tag == value.get("type")]
    if tagged and "type" in value:
        return tagged[0]
    fitting = [record for record in records if value.keys() <= set(record.__struct_fields__)]
    return fitting[0] if fitting else None


# --- to events -----------------------------------------------------------------------------------------------------


def event_from_shape(shape: dict[str, Any], contents: NewContents, **envelope: Any) -> Event:
    """The event that a shape of the schema tells of; `envelope` has `stream`, `prev` and what else an event's envelope
    needs. The id is not read: it comes from the event."""
    kind = KINDS.kinds.get(str(shape.get("kind")))
    if kind is None:
        raise InvalidInput(f"{quoted(shape.get('kind'))} is no kind of event", "use one of docs/events.md")
    given = dict(shape)
    if kind_of(kind) == "model_request" and "input_refs" in given:
        given["input"] = {"base": None, "keep": 0, "then": given.pop("input_refs")}
    types, put = field_types(kind), _putter(contents)
    fields: dict[str, Any] = {"kind": kind_of(kind), "ts": shape.get("ts"), "actor": shape.get("agent_id"), **envelope}
    for name, value in given.items():
        if name in types and name not in fields:
            fields[name] = _stored(put, name, value, types[name])
    try:
        return msgspec.convert(fields, kind)
    except msgspec.ValidationError as error:
        raise InvalidInput(f"the shape is no {kind_of(kind)}: {error}", "see docs/events.md for its fields") from error


def _putter(contents: NewContents) -> Callable[[str, Any], str]:
    def put(name: str, value: Any) -> str:
        if name in JSON_CONTENTS:
            return contents.put_json(value)
        return contents.put_text(value if isinstance(value, str) else str(value))

    return put


def _stored(put: Callable[[str, Any], str], name: str, value: Any, annotation: Any) -> Any:
    if markers(annotation) == {"content"} and (name in JSON_CONTENTS or isinstance(value, str)):
        return put(name, value)
    if isinstance(value, list):
        return [_stored(put, name, item, annotation) for item in value]
    if isinstance(value, dict):
        record = _record_of(annotation, value)
        if record is not None:
            types = field_types(record)
            return {key: _stored(put, key, item, types[key]) if key in types else item for key, item in value.items()}
    return value
