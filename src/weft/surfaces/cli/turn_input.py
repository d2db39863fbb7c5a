"""A turn as JSON: the fields of `Ledger.record_turn`, read strictly."""

from __future__ import annotations

import json
from typing import Any

import msgspec
from msgspec import UNSET, Struct, UnsetType

from weft.kernel.contents import decode_utf8
from weft.kernel.errors import InvalidInput, InvalidJson
from weft.ledger.model import NewError


class TurnInput(Struct, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """What may be said about a turn. A field that is not given is not passed on."""

    session: str | UnsetType | None = UNSET
    parent: str | UnsetType | None = UNSET
    expected: str | UnsetType | None = UNSET
    query: Any = UNSET
    response: Any = UNSET
    system: Any = UNSET
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
    """One JSON object. Duplicate keys, NaN and bytes that are not UTF-8 are refused, as they have no single meaning."""
    value = strict_json(data, "the turn")
    try:
        return msgspec.convert(value, TurnInput)
    except msgspec.ValidationError as error:
        fields = ", ".join(TurnInput.__struct_fields__)
        raise InvalidInput(f"the turn: {error}", f"a turn is a JSON object with some of: {fields}") from error


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
