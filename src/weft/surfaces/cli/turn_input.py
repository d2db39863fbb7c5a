"""A turn as JSON: the fields of `Ledger.record_turn`, or the messages of a conversation; read strictly."""

from __future__ import annotations

import json
from typing import Any

import msgspec
from msgspec import UNSET, Struct, UnsetType

from weft.kernel.contents import decode_utf8
from weft.kernel.enums import MessageRole
from weft.kernel.errors import InvalidInput, InvalidJson
from weft.ledger.arguments import as_messages
from weft.ledger.dialects import split_turns
from weft.ledger.model import NewError


class TurnInput(Struct, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """What may be said about a turn. A field that is not given is not passed on."""

    session: str | UnsetType | None = UNSET
    parent: str | UnsetType | None = UNSET
    expected: str | UnsetType | None = UNSET
    query: Any = UNSET
    response: Any = UNSET
    system: Any = UNSET
    messages: Any = UNSET
    model: str | UnsetType | None = UNSET
    provider: str | UnsetType | None = UNSET
    params: Any = UNSET
    usage: Any = UNSET
    tool_calls: list[dict[str, Any]] | UnsetType = UNSET
    tools_spec: Any = UNSET
    finish_reason: str | UnsetType | None = UNSET
    error: str | NewError | UnsetType | None = UNSET
    permissions_granted: Any = UNSET
    permissions_used: Any = UNSET
    persona: str | UnsetType = UNSET
    role: str | UnsetType = UNSET
    reason: str | UnsetType | None = UNSET
    toolset: str | UnsetType | None = UNSET
    tools_available: list[str] | UnsetType | None = UNSET
    thinking_config: Any = UNSET
    effective_config: Any = UNSET
    workspace: str | UnsetType | None = UNSET
    source_event_id: str | UnsetType | None = UNSET
    wait: float | UnsetType = UNSET
    key: str | UnsetType | None = UNSET

    def given(self) -> dict[str, Any]:
        fields = {name: getattr(self, name) for name in self.__struct_fields__}
        return {name: value for name, value in fields.items() if value is not UNSET}


def read_turn(data: bytes) -> TurnInput:
    """One JSON object, or a list of messages. Duplicate keys, NaN and bytes that are not UTF-8 are refused, as they
    have no single meaning."""
    value = strict_json(data, "the turn")
    if isinstance(value, list) and value and all(isinstance(item, dict) for item in value):
        value = {"messages": value}
    try:
        return msgspec.convert(value, TurnInput)
    except msgspec.ValidationError as error:
        fields = ", ".join(TurnInput.__struct_fields__)
        raise InvalidInput(f"the turn: {error}", f"a turn is a JSON object with some of: {fields}") from error


_OF_THE_FIRST = frozenset({"system", "parent", "expected"})
_OF_THE_LAST = frozenset({"usage", "finish_reason", "error", "tool_calls", "permissions_used", "source_event_id"})


def turns_in(fields: dict[str, Any]) -> list[dict[str, Any]]:
    """The turns to record: one, or those of the conversation that `messages` hold, one for each prompt. Where a turn
    goes is said of the first, how it ended of the last, and the rest of all of them."""
    if "messages" not in fields:
        return [fields]
    if both := sorted({"query", "response"} & fields.keys()):
        raise InvalidInput(f"messages and {both[0]} are both given", "give one of them")
    turns = split_turns(as_messages(fields["messages"], MessageRole.USER, "messages"))
    if not turns:
        raise InvalidInput("messages is empty", "give at least one message")
    shared = {name: value for name, value in fields.items() if name not in {"messages", *_OF_THE_FIRST, *_OF_THE_LAST}}
    dicts = [{**shared, "query": turn.query, "response": turn.response} for turn in turns]
    dicts[0] |= {name: fields[name] for name in _OF_THE_FIRST & fields.keys()}
    dicts[-1] |= {name: fields[name] for name in _OF_THE_LAST & fields.keys()}
    for number, turn in enumerate(dicts[:-1] if fields.get("key") is not None else (), 1):
        turn["key"] = f"{fields['key']}#{number}"
    return dicts


def strict_json(data: bytes, what: str) -> Any:
    text = decode_utf8(data, what)
    try:
        return json.loads(text, object_pairs_hook=_no_duplicates, parse_constant=_no_constant)
    except json.JSONDecodeError as error:
        raise InvalidJson(error.msg, len(text[: error.pos].encode("utf-8", "surrogatepass"))) from error
    except RecursionError:
        raise InvalidInput(f"{what} is nested too deeply", "flatten it, or record the inner part as text") from None
    except InvalidInput:
        raise
    except ValueError as error:
        raise InvalidInput(f"{what}: {error}") from error


def _no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) != len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise InvalidJson(f"the key {twice!r} stands twice in one object")
    return value


def _no_constant(name: str) -> Any:
    raise InvalidJson(f"{name} has no JSON form")
