"""Tool calls of bubbles: the call and its outcome lie in one record, arguments and result as JSON in texts."""

from __future__ import annotations

from typing import Any

from msgspec import UNSET

from weft.exchange.importers.cursor import tools
from weft.exchange.importers.cursor.values import inner
from weft.exchange.importers.transcript import NativeCall
from weft.exchange.importers.values import mapping, millis, present, sequence, text
from weft.kernel.enums import ToolCallStatus

STATUSES = {
    "completed": ToolCallStatus.OK,
    "error": ToolCallStatus.ERROR,
    "cancelled": ToolCallStatus.CANCELED,
    "canceled": ToolCallStatus.CANCELED,
    "rejected": ToolCallStatus.CANCELED,
    "aborted": ToolCallStatus.INTERRUPTED,
    "timeout": ToolCallStatus.TIMEOUT,
}
SHOWN = ("modelVisibleErrorMessage", "clientVisibleErrorMessage", "actualErrorMessage", "message", "error")
BESIDE = ("userDecision", "toolIndex", "modelCallId", "additionalData")


def call(former: dict[str, Any], bubble: str | None, at: int | None) -> NativeCall:
    name, arguments, result = name_of(former), given(former), outcome(former)
    status = _status(former, result)
    is_done = status is ToolCallStatus.OK
    return NativeCall(
        id=text(former.get("toolCallId")) or bubble or "",
        name=name,
        arguments=arguments,
        result=result,
        error=failure(former, status),
        status=status,
        at=at,
        done=millis(former.get("endTime")),
        spawned=_spawned(name, former, result),
        detail=_detail(former, bubble),
        files=tools.files(name, inner(former.get("params")), arguments) if is_done else (),
    )


def reduced(former: dict[str, Any]) -> list[Any]:
    """What makes the identity of a call."""
    result = outcome(former)
    status = _status(former, result)
    return [
        former.get("toolCallId"),
        name_of(former),
        given(former),
        None if result is UNSET else result,
        failure(former, status),
        status,
    ]


def name_of(former: dict[str, Any]) -> str:
    return text(former.get("name")) or tools.name_of(former.get("tool")) or ""


def given(former: dict[str, Any]) -> Any:
    """As the model wrote them; else as Cursor understood them."""
    raw = inner(former.get("rawArgs"))
    return inner(former.get("params")) if raw in (None, "", {}) else raw


def outcome(former: dict[str, Any]) -> Any:
    result = inner(former.get("result"))
    return UNSET if result is None else result


def _status(former: dict[str, Any], result: Any) -> ToolCallStatus | None:
    told = STATUSES.get(str(former.get("status")))
    if mapping(None if result is UNSET else result).get("rejected") is True:
        return ToolCallStatus.CANCELED
    if told is None and former.get("status") is None and result is not UNSET:
        return ToolCallStatus.OK
    return told


def failure(former: dict[str, Any], status: ToolCallStatus | None) -> str | None:
    """An error in words; of a call that went well there is none."""
    if status in (None, ToolCallStatus.OK):
        return None
    told = inner(former.get("error"))
    words = (
        told
        if isinstance(told, str)
        else next((found for key in SHOWN if (found := text(mapping(told).get(key)))), None)
    )
    return words or text(former.get("status"))


def _spawned(name: str, former: dict[str, Any], result: Any) -> str | None:
    """The session of a subagent that this call started."""
    if tools.plain(name) not in tools.SPAWNERS:
        return None
    told, beside = mapping(None if result is UNSET else result), mapping(former.get("additionalData"))
    names = (told.get("agentId"), beside.get("subagentComposerId"), beside.get("composerId"))
    return next((id for each in names if (id := text(each))), None)


def _detail(former: dict[str, Any], bubble: str | None) -> dict[str, Any] | None:
    beside = {name: former.get(name) for name in BESIDE}
    has_raw = inner(former.get("rawArgs")) not in (None, "", {})
    return present(bubble=bubble, params=inner(former.get("params")) if has_raw else None, **beside)


def blocks(bubble: dict[str, Any]) -> list[dict[str, Any]]:
    return [mapping(block) for block in sequence(bubble.get("codeBlocks"))]
