"""Messages of opencode 2 in the shape of version 1.

Each is one row that holds all it says. Nothing names what it answers, so what begins a turn is told by the order:
opencode marks where it has come to rest, and everything between two marks is one turn, with the prompts that came
while it worked. Rows of the versions before that mark are told by whether the last response asked for tools.
"""

from __future__ import annotations

from typing import Any
from urllib.parse import unquote, urlsplit

from msgspec import Struct

from weft.exchange.importers.values import mapping, sequence, text, whole

SETTINGS = frozenset({"agent-switched", "model-switched", "location-switched", "idle"})
"""Rows that change or end something and say nothing."""
COUNTS = ("input", "output", "reasoning")
STOPPED = frozenset({"aborted", "tool.interrupted"})


class Reshaped(Struct):
    """A message, and its parts."""

    info: dict[str, Any]
    parts: list[Any]


class Newer:
    """Takes the rows of a session one after another."""

    def __init__(self) -> None:
        self._agent: str | None = None
        self._model: dict[str, Any] = {}
        self._folder: str | None = None
        self._last: Reshaped | None = None
        self._is_open = False
        """A turn is under way."""
        self._is_answered = self._is_working = self._is_marking = False

    def take(self, kind: str, id: str | None, row: dict[str, Any]) -> Reshaped | None:
        """The message that a row is; None if it is none, or one of a kind that is not known."""
        if kind in SETTINGS:
            self._set(kind, row)
            return None
        maker = MAKERS.get(kind)
        made = None if maker is None else maker(row)
        if made is None:
            return None
        info, parts = made
        info |= {"id": id, "time": mapping(row.get("time"))}
        if info["role"] == "assistant":
            self._answer(info, row)
        else:
            self._ask(info, is_prompt=kind == "user")
        self._last = Reshaped(info, parts)
        return self._last

    def _set(self, kind: str, row: dict[str, Any]) -> None:
        if kind == "agent-switched":
            self._agent = text(row.get("agent"))
        elif kind == "model-switched":
            self._model = _model(row)
        elif kind == "location-switched":
            self._folder = text(mapping(row.get("location")).get("directory"))
        else:
            self._is_open, self._is_marking = False, True
            if self._last is not None:
                self._last.info["outcome"] = text(row.get("outcome"))

    def _is_over(self) -> bool:
        if not self._is_open:
            return True
        return not self._is_marking and self._is_answered and not self._is_working

    def _begin(self) -> None:
        self._is_open, self._is_answered, self._is_working = True, False, False

    def _ask(self, info: dict[str, Any], is_prompt: bool) -> None:
        info["begins"] = self._is_over()
        if info["begins"]:
            self._begin()
        if is_prompt:
            model = self._model
            told = {"modelID": model.get("id"), "providerID": model.get("providerID"), "variant": _variant(model)}
            info |= {"agent": self._agent, "model": told}

    def _answer(self, info: dict[str, Any], row: dict[str, Any]) -> None:
        is_summary = info.get("summary") is True
        info["begins"] = is_summary or not self._is_open
        if info["begins"]:
            self._begin()
        finish, time = text(row.get("finish")), mapping(row.get("time"))
        self._is_answered = True
        self._is_working = not row.get("error") and (finish == "tool-calls" or not (finish or time.get("completed")))
        self._is_open = not is_summary
        model = _model(row)
        self._agent, self._model = text(row.get("agent")) or self._agent, model or self._model
        info |= {"agent": row.get("agent"), "finish": finish, "cost": row.get("cost"), "tokens": _tokens(row)}
        info |= {"modelID": model.get("id"), "providerID": model.get("providerID"), "variant": _variant(model)}
        if (error := _error(row.get("error"))) is not None:
            info["error"] = error
        if self._folder is not None:
            info["path"] = {"cwd": self._folder}


Made = tuple[dict[str, Any], list[Any]]


def _user(row: dict[str, Any]) -> Made:
    agents, skills = (sequence(row.get(name)) for name in ("agents", "skills"))
    parts = [
        *([{"type": "text", "text": row["text"]}] if isinstance(row.get("text"), str) else []),
        *(_file(mapping(each)) for each in sequence(row.get("files"))),
        *({"type": "agent", "name": mapping(each).get("name")} for each in agents),
        *({"type": "skill", "name": mapping(each).get("name") or mapping(each).get("id")} for each in skills),
    ]
    return {"role": "user"}, parts


def _synthetic(row: dict[str, Any]) -> Made:
    return {"role": "user"}, [{"type": "text", "text": row.get("text"), "synthetic": True}]


def _skill(row: dict[str, Any]) -> Made:
    info, parts = _synthetic(row)
    return info, [*parts, {"type": "skill", "name": row.get("name") or row.get("skill")}]


def _system(row: dict[str, Any]) -> Made:
    return {"role": "system"}, [{"type": "text", "text": row.get("text")}]


def _shell(row: dict[str, Any]) -> Made:
    """A command that a person ran, with what it printed."""
    output = row.get("output")
    printed = text(output) or text(mapping(output).get("output")) or ""
    command = text(row.get("command")) or ""
    shown = f"Ran `{command}`" + (f"\n```\n{printed}\n```" if printed else "")
    told = {"type": "shell", "command": command, "exit": row.get("exit"), "status": row.get("status")}
    return {"role": "user"}, [{"type": "text", "text": shown}, told]


def _assistant(row: dict[str, Any]) -> Made:
    snapshot = mapping(row.get("snapshot"))
    hashes = [snapshot[name] for name in ("start", "end") if snapshot.get(name)]
    beside = [{"type": "snapshot", "snapshot": hash} for hash in hashes]
    if files := sequence(snapshot.get("files")):
        beside.append({"type": "patch", "files": files})
    if retry := mapping(row.get("retry")):
        told = {"attempt": retry.get("attempt"), "error": _error(retry.get("error"))}
        beside.append({"type": "retry", **told, "time": {"created": retry.get("at")}})
    content = [_content(each) for each in sequence(row.get("content"))]
    return {"role": "assistant"}, [*content, *({**part, "beside": True} for part in beside)]


def _compaction(row: dict[str, Any]) -> Made | None:
    """One that is still running has changed nothing yet; one that failed has only cost something."""
    status = row.get("status", "completed")
    if status == "completed":
        told = {"type": "compaction", "auto": row.get("reason") == "auto"}
        return {"role": "assistant", "summary": True}, [told, {"type": "text", "text": row.get("summary")}]
    return ({"role": "assistant"}, []) if status == "failed" else None


MAKERS = {
    "user": _user,
    "synthetic": _synthetic,
    "skill": _skill,
    "system": _system,
    "shell": _shell,
    "assistant": _assistant,
    "compaction": _compaction,
}


def is_known(kind: str) -> bool:
    return kind in MAKERS or kind in SETTINGS


def _content(item: Any) -> Any:
    told = mapping(item)
    if told.get("type") == "tool":
        return _tool(told)
    if told.get("type") in ("text", "reasoning"):
        return {"type": told["type"], "text": told.get("text")}
    return item


def _tool(item: dict[str, Any]) -> dict[str, Any]:
    state, time = mapping(item.get("state")), mapping(item.get("time"))
    given, status = state.get("input"), state.get("status")
    content = [mapping(each) for each in sequence(state.get("content"))]
    texts = [each["text"] for each in content if each.get("type") == "text" and isinstance(each.get("text"), str)]
    metadata = dict(mapping(state.get("metadata")) or mapping(state.get("structured")))
    made: dict[str, Any] = {
        "status": "pending" if status == "streaming" else status,
        "input": None if isinstance(given, str) else given,
        "raw": given if isinstance(given, str) else None,
        "metadata": metadata,
        "time": {"start": time.get("ran") or time.get("created"), "end": time.get("completed")},
    }
    if status == "completed":
        made["output"] = "\n".join(texts) if texts or "result" not in state else state["result"]
        made["attachments"] = [_file(each) for each in content if each.get("type") == "file"]
    elif status == "error":
        error = mapping(state.get("error"))
        made["error"] = text(error.get("message")) or text(error.get("type")) or "error"
        metadata |= {"interrupted": True} if text(error.get("type")) in STOPPED else {}
        metadata |= {"output": "\n".join(texts)} if texts else {}
    return {"type": "tool", "callID": item.get("callID") or item.get("id"), "tool": item.get("name"), "state": made}


def _file(told: dict[str, Any]) -> dict[str, Any]:
    """A file by its address; an image, and what has no address of its own, by its content."""
    mime, data = text(told.get("mime")), text(told.get("data"))
    uri = text(told.get("uri")) or text(mapping(told.get("source")).get("uri"))
    is_image = mime is not None and mime.startswith("image/")
    url = f"data:{mime or 'application/octet-stream'};base64,{data}" if data and (is_image or not uri) else uri
    made = {"type": "file", "mime": mime, "filename": told.get("name"), "url": url}
    if uri is not None and uri != url:
        made["source"] = {"path": _path(uri)}
    return made


def _path(uri: str) -> str:
    try:
        return unquote(urlsplit(uri).path) if uri.startswith("file:") else uri
    except ValueError:
        return uri


def _model(row: dict[str, Any]) -> dict[str, Any]:
    told = mapping(row.get("model"))
    return {name: told[name] for name in ("id", "providerID", "variant") if text(told.get(name)) is not None}


def _variant(model: dict[str, Any]) -> str | None:
    return None if model.get("variant") == "default" else model.get("variant")


def _tokens(row: dict[str, Any]) -> dict[str, Any] | None:
    """Its counts are disjoint, reasoning from output too, which the total tells."""
    told = row.get("tokens")
    if not isinstance(told, dict):
        return None
    counts = [*(told.get(name) for name in COUNTS), *mapping(told.get("cache")).values()]
    return {**told, "total": sum(count for each in counts if (count := whole(each)) is not None)}


def _error(error: Any) -> dict[str, Any] | None:
    told = mapping(error)
    if not told:
        return None
    name = "MessageAbortedError" if told.get("type") == "aborted" else text(told.get("type")) or "error"
    return {"name": name, "data": {key: value for key, value in told.items() if key != "type"}}
