"""Messages of opencode's first months, which held their parts themselves, in today's shape."""

from __future__ import annotations

from typing import Any

from weft.exchange.importers.values import mapping, sequence, text

ASSISTANT = ("modelID", "providerID", "path", "cost", "tokens", "summary", "system")
STATES = {"partial-call": "pending", "call": "running", "result": "completed"}


def is_older(message: dict[str, Any]) -> bool:
    return isinstance(message.get("parts"), list) and isinstance(message.get("metadata"), dict)


def modern(message: dict[str, Any]) -> tuple[dict[str, Any], list[Any]]:
    """Its info, and its parts."""
    metadata = mapping(message.get("metadata"))
    info = {
        "id": message.get("id"),
        "sessionID": metadata.get("sessionID"),
        "role": message.get("role"),
        "time": metadata.get("time"),
    }
    assistant = mapping(metadata.get("assistant"))
    info |= {name: assistant[name] for name in ASSISTANT if name in assistant}
    if metadata.get("error") is not None:
        info["error"] = metadata["error"]
    tools = mapping(metadata.get("tool"))
    return info, [_part(part, tools) for part in sequence(message.get("parts"))]


def _part(part: Any, tools: dict[str, Any]) -> Any:
    kind = mapping(part).get("type")
    if kind == "tool-invocation":
        return _tool(mapping(part.get("toolInvocation")), tools)
    if kind == "file":
        return {"type": "file", "mime": part.get("mediaType"), "url": part.get("url"), "filename": part.get("filename")}
    return part


def _tool(invoked: dict[str, Any], tools: dict[str, Any]) -> dict[str, Any]:
    id = text(invoked.get("toolCallId"))
    beside = dict(mapping(tools.get(id or "")))
    state = {"status": STATES.get(text(invoked.get("state")) or "", "pending"), "input": invoked.get("args")}
    state |= {"title": beside.pop("title", None), "time": beside.pop("time", None), "metadata": beside}
    if state["status"] == "completed":
        state["output"] = invoked.get("result")
        if beside.get("error") is True:
            state |= {"status": "error", "error": invoked.get("result")}
    return {"type": "tool", "callID": id, "tool": invoked.get("toolName"), "state": state}
