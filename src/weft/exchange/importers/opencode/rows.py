"""A session of opencode as rows, whichever of the three containers they come from.

Messages of opencode 2 are brought into the shape of version 1.
"""

from __future__ import annotations

from io import BytesIO
from typing import Any
from urllib.parse import unquote, urlsplit

import msgspec
import orjson
from msgspec import Raw, Struct, field

from weft.exchange.importers.foreign_values import Json, canonical, json_value, mapping, sequence, text, whole_number

# --- A session as rows, whichever of the three containers they come from.

HIDDEN = "REDACTED"
"""What a redacted export has for every id."""


class Row(Struct, frozen=True):
    """A message or a part; a database keeps its id beside the JSON, the other containers in it."""

    data: Json
    id: str | None = None


class MessageRow(Struct):
    """A message with its parts, and where it lies in the source."""

    row: Row
    parts: list[Row]
    offset: int = 0
    end: int = 0
    """Where it lies in the source: bytes of an export, else numbers of records."""


class Session(Struct):
    """One native session."""

    info: dict[str, Any]
    has_record: bool = True
    """There is a record of the session itself."""
    messages: list[MessageRow] = field(default_factory=list)
    todos: list[Any] = field(default_factory=list)
    mapped: dict[str, int] = field(default_factory=dict)
    """Records that are no messages and tell something of the session or its turns, by kind."""
    kept: dict[str, int] = field(default_factory=dict)
    """Records of this session that are told by the verbatim copy alone, by kind."""
    unknown: dict[str, int] = field(default_factory=dict)
    raw: bytes | None = None

    def count_mapped(self, kind: str) -> None:
        self.mapped[kind] = self.mapped.get(kind, 0) + 1

    def count(self, kind: str, is_mapped: bool, is_known: bool) -> None:
        """A row of version 2 that is no message."""
        if is_mapped:
            self.count_mapped(f"session_message.{kind}")
        else:
            self.count_kept(f"session_message.{kind}", is_unknown=not is_known)

    def count_kept(self, kind: str, is_unknown: bool) -> None:
        self.kept[kind] = self.kept.get(kind, 0) + 1
        if is_unknown:
            self.unknown[kind] = self.unknown.get(kind, 0) + 1


class _Info(Struct):
    id: Any = None
    role: Any = None
    parentID: Any = None  # noqa: N815 - as opencode spells it
    summary: Raw = Raw(b"null")
    begins: Any = None


class _Part(Struct):
    type: Any = None
    ignored: Any = None


class MessageHead(Struct, frozen=True):
    """What the index knows of a message."""

    id: str | None
    role: str
    parent: str | None
    is_summary: bool
    compacts: bool = False
    is_notice: bool = False
    """A user's message that the model was not shown: a plugin tells the person something."""
    begins: bool | None = None
    """Whether a turn begins with it, where its place among the others tells and not what it names."""


_info = msgspec.json.Decoder(_Info)
_part = msgspec.json.Decoder(_Part)


def head_of(message: MessageRow) -> MessageHead | None:
    """None: this is no message."""
    info = _decoded(_info, message.row)
    if info is None:
        return None
    role = text(info.role) or ""
    kinds = [part for row in message.parts if (part := _decoded(_part, row)) is not None] if role == "user" else []
    return MessageHead(
        id=message.row.id or text(info.id),
        role=role,
        parent=text(info.parentID),
        is_summary=role == "assistant" and bytes(info.summary).strip() == b"true",
        compacts=any(part.type == "compaction" for part in kinds),
        is_notice=bool(kinds) and all(part.type == "text" and part.ignored is True for part in kinds),
        begins=info.begins if isinstance(info.begins, bool) else None,
    )


def _decoded(decoder: msgspec.json.Decoder[Any], row: Row) -> Any:
    try:
        return decoder.decode(row.data)
    except (ValueError, RecursionError):
        return _decoded_slowly(decoder.type, row)


def _decoded_slowly(kind: type[Struct], row: Row) -> Any:
    """By the patient reader, for JSON that the quick one refuses."""
    try:
        value = json_value(row.data)
    except ValueError:
        return None
    if not isinstance(value, dict):
        return None
    known_fields: dict[str, Any] = {name: value[name] for name in kind.__struct_fields__ if name in value}
    if "summary" in known_fields:
        known_fields["summary"] = Raw(canonical(known_fields["summary"]))
    return kind(**known_fields)


_json = msgspec.json.Decoder(Raw)


class Span(Struct, frozen=True):
    """Where a row's JSON lies in the lines; what is no JSON stands here itself."""

    start: int
    end: int
    id: str | None
    odd: bytes | None = None


class RowDraft(Struct):
    """A message whose lines are written."""

    message: Span
    parts: list[Span]
    number: int
    """How many records stand before it."""


class Verbatim:
    """The records that were read, written one after the other as lines to be kept."""

    def __init__(self) -> None:
        self._file = BytesIO()
        self.count = 0

    def add(self, kind: str, id: str | None, data: bytes, **columns: Any) -> Span:
        self.count += 1
        head = orjson.dumps({"kind": kind, "id": id, **columns}, default=str)[:-1]
        is_json = _is_json(data)
        json_bytes = data if is_json else orjson.dumps(data.decode(errors="replace"))
        self._file.write(head)
        self._file.write(b',"data":')
        start = self._file.tell()
        self._file.write(json_bytes.replace(b"\r", b" ").replace(b"\n", b" "))
        end = self._file.tell()
        self._file.write(b"}\n")
        return Span(start, end, id, None if is_json else data)

    def finish(self, drafted: list[RowDraft]) -> tuple[bytes, list[MessageRow]]:
        raw = self._file.getvalue()
        view = memoryview(raw)
        rows = [
            MessageRow(
                _row(view, draft.message),
                [_row(view, part) for part in draft.parts],
                draft.number,
                draft.number + 1 + len(draft.parts),
            )
            for draft in drafted
        ]
        return raw, rows


def _is_json(data: bytes) -> bool:
    try:
        _json.decode(data)
    except (ValueError, RecursionError):
        return False
    return True


def _row(view: memoryview, span: Span) -> Row:
    return Row(view[span.start : span.end] if span.odd is None else span.odd, span.id)


# --- Messages of opencode 2 in the shape of version 1.

ASSISTANT = ("modelID", "providerID", "path", "cost", "tokens", "summary", "system")
STATES = {"partial-call": "pending", "call": "running", "result": "completed"}


def has_first_form(message: dict[str, Any]) -> bool:
    return isinstance(message.get("parts"), list) and isinstance(message.get("metadata"), dict)


def from_first_form(message: dict[str, Any]) -> tuple[dict[str, Any], list[Any]]:
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
    return info, [_first_part(part, tools) for part in sequence(message.get("parts"))]


def _first_part(part: Any, tools: dict[str, Any]) -> Any:
    kind = mapping(part).get("type")
    if kind == "tool-invocation":
        return _first_tool(mapping(part.get("toolInvocation")), tools)
    if kind == "file":
        return {"type": "file", "mime": part.get("mediaType"), "url": part.get("url"), "filename": part.get("filename")}
    return part


def _first_tool(invoked: dict[str, Any], tools: dict[str, Any]) -> dict[str, Any]:
    id = text(invoked.get("toolCallId"))
    beside = dict(mapping(tools.get(id or "")))
    state = {"status": STATES.get(text(invoked.get("state")) or "", "pending"), "input": invoked.get("args")}
    state |= {"title": beside.pop("title", None), "time": beside.pop("time", None), "metadata": beside}
    if state["status"] == "completed":
        state["output"] = invoked.get("result")
        if beside.get("error") is True:
            state |= {"status": "error", "error": invoked.get("result")}
    return {"type": "tool", "callID": id, "tool": invoked.get("toolName"), "state": state}


SETTINGS = frozenset({"agent-switched", "model-switched", "location-switched", "idle"})
"""Rows that change or end something and say nothing."""
COUNTS = ("input", "output", "reasoning")
STOPPED = frozenset({"aborted", "tool.interrupted"})


class MessageWithParts(Struct):
    """A message, and its parts."""

    info: dict[str, Any]
    parts: list[Any]


class Version2:
    """Takes the rows of a session one after another."""

    def __init__(self) -> None:
        self._agent: str | None = None
        self._model: dict[str, Any] = {}
        self._folder: str | None = None
        self._last: MessageWithParts | None = None
        self._is_open = False
        """A turn is under way."""
        self._is_answered = self._is_working = self._is_marking = False

    def add_row(self, kind: str, id: str | None, row: dict[str, Any]) -> MessageWithParts | None:
        """The message that a row is; None if it is none, or one of a kind that is not known."""
        if kind in SETTINGS:
            self._apply_setting(kind, row)
            return None
        maker = MAKERS.get(kind)
        info_and_parts = None if maker is None else maker(row)
        if info_and_parts is None:
            return None
        info, parts = info_and_parts
        info |= {"id": id, "time": mapping(row.get("time"))}
        if info["role"] == "assistant":
            self._add_answer(info, row)
        else:
            self._add_prompt(info, is_prompt=kind == "user")
        self._last = MessageWithParts(info, parts)
        return self._last

    def _apply_setting(self, kind: str, row: dict[str, Any]) -> None:
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

    def _begin_turn(self) -> None:
        self._is_open, self._is_answered, self._is_working = True, False, False

    def _add_prompt(self, info: dict[str, Any], is_prompt: bool) -> None:
        info["begins"] = self._is_over()
        if info["begins"]:
            self._begin_turn()
        if is_prompt:
            model = self._model
            fields = {"modelID": model.get("id"), "providerID": model.get("providerID"), "variant": _variant(model)}
            info |= {"agent": self._agent, "model": fields}

    def _add_answer(self, info: dict[str, Any], row: dict[str, Any]) -> None:
        is_summary = info.get("summary") is True
        info["begins"] = is_summary or not self._is_open
        if info["begins"]:
            self._begin_turn()
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


InfoAndParts = tuple[dict[str, Any], list[Any]]


def _user(row: dict[str, Any]) -> InfoAndParts:
    agents, skills = (sequence(row.get(name)) for name in ("agents", "skills"))
    parts = [
        *([{"type": "text", "text": row["text"]}] if isinstance(row.get("text"), str) else []),
        *(_file(mapping(file)) for file in sequence(row.get("files"))),
        *({"type": "agent", "name": mapping(agent).get("name")} for agent in agents),
        *({"type": "skill", "name": mapping(skill).get("name") or mapping(skill).get("id")} for skill in skills),
    ]
    return {"role": "user"}, parts


def _synthetic(row: dict[str, Any]) -> InfoAndParts:
    return {"role": "user"}, [{"type": "text", "text": row.get("text"), "synthetic": True}]


def _skill(row: dict[str, Any]) -> InfoAndParts:
    info, parts = _synthetic(row)
    return info, [*parts, {"type": "skill", "name": row.get("name") or row.get("skill")}]


def _system(row: dict[str, Any]) -> InfoAndParts:
    return {"role": "system"}, [{"type": "text", "text": row.get("text")}]


def _shell(row: dict[str, Any]) -> InfoAndParts:
    """A command that a person ran, with what it printed."""
    output = row.get("output")
    printed = text(output) or text(mapping(output).get("output")) or ""
    command = text(row.get("command")) or ""
    words = f"Ran `{command}`" + (f"\n```\n{printed}\n```" if printed else "")
    fields = {"type": "shell", "command": command, "exit": row.get("exit"), "status": row.get("status")}
    return {"role": "user"}, [{"type": "text", "text": words}, fields]


def _assistant(row: dict[str, Any]) -> InfoAndParts:
    snapshot = mapping(row.get("snapshot"))
    hashes = [snapshot[name] for name in ("start", "end") if snapshot.get(name)]
    beside = [{"type": "snapshot", "snapshot": hash} for hash in hashes]
    if files := sequence(snapshot.get("files")):
        beside.append({"type": "patch", "files": files})
    if retry := mapping(row.get("retry")):
        fields = {"attempt": retry.get("attempt"), "error": _error(retry.get("error"))}
        beside.append({"type": "retry", **fields, "time": {"created": retry.get("at")}})
    content = [_content(item) for item in sequence(row.get("content"))]
    return {"role": "assistant"}, [*content, *({**part, "beside": True} for part in beside)]


def _compaction(row: dict[str, Any]) -> InfoAndParts | None:
    """One that is still running has changed nothing yet; one that failed has only cost something."""
    status = row.get("status", "completed")
    if status == "completed":
        fields = {"type": "compaction", "auto": row.get("reason") == "auto"}
        return {"role": "assistant", "summary": True}, [fields, {"type": "text", "text": row.get("summary")}]
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
    fields = mapping(item)
    if fields.get("type") == "tool":
        return _tool(fields)
    if fields.get("type") in ("text", "reasoning"):
        return {"type": fields["type"], "text": fields.get("text")}
    return item


def _tool(item: dict[str, Any]) -> dict[str, Any]:
    state, time = mapping(item.get("state")), mapping(item.get("time"))
    arguments, status = state.get("input"), state.get("status")
    content = [mapping(block) for block in sequence(state.get("content"))]
    texts = [block["text"] for block in content if block.get("type") == "text" and isinstance(block.get("text"), str)]
    metadata = dict(mapping(state.get("metadata")) or mapping(state.get("structured")))
    fields: dict[str, Any] = {
        "status": "pending" if status == "streaming" else status,
        "input": None if isinstance(arguments, str) else arguments,
        "raw": arguments if isinstance(arguments, str) else None,
        "metadata": metadata,
        "time": {"start": time.get("ran") or time.get("created"), "end": time.get("completed")},
    }
    if status == "completed":
        fields["output"] = "\n".join(texts) if texts or "result" not in state else state["result"]
        fields["attachments"] = [_file(block) for block in content if block.get("type") == "file"]
    elif status == "error":
        error = mapping(state.get("error"))
        fields["error"] = text(error.get("message")) or text(error.get("type")) or "error"
        metadata |= {"interrupted": True} if text(error.get("type")) in STOPPED else {}
        metadata |= {"output": "\n".join(texts)} if texts else {}
    return {"type": "tool", "callID": item.get("callID") or item.get("id"), "tool": item.get("name"), "state": fields}


def _file(file: dict[str, Any]) -> dict[str, Any]:
    """A file by its address; an image, and what has no address of its own, by its content."""
    mime, data = text(file.get("mime")), text(file.get("data"))
    uri = text(file.get("uri")) or text(mapping(file.get("source")).get("uri"))
    is_image = mime is not None and mime.startswith("image/")
    url = f"data:{mime or 'application/octet-stream'};base64,{data}" if data and (is_image or not uri) else uri
    fields = {"type": "file", "mime": mime, "filename": file.get("name"), "url": url}
    if uri is not None and uri != url:
        fields["source"] = {"path": _path(uri)}
    return fields


def _path(uri: str) -> str:
    try:
        return unquote(urlsplit(uri).path) if uri.startswith("file:") else uri
    except ValueError:
        return uri


def _model(row: dict[str, Any]) -> dict[str, Any]:
    fields = mapping(row.get("model"))
    return {name: fields[name] for name in ("id", "providerID", "variant") if text(fields.get(name)) is not None}


def _variant(model: dict[str, Any]) -> str | None:
    return None if model.get("variant") == "default" else model.get("variant")


def _tokens(row: dict[str, Any]) -> dict[str, Any] | None:
    """Its counts are disjoint, reasoning from output too, which the total tells."""
    tokens = row.get("tokens")
    if not isinstance(tokens, dict):
        return None
    counts = [*(tokens.get(name) for name in COUNTS), *mapping(tokens.get("cache")).values()]
    return {**tokens, "total": sum(count for number in counts if (count := whole_number(number)) is not None)}


def _error(error: Any) -> dict[str, Any] | None:
    fields = mapping(error)
    if not fields:
        return None
    name = "MessageAbortedError" if fields.get("type") == "aborted" else text(fields.get("type")) or "error"
    return {"name": name, "data": {key: value for key, value in fields.items() if key != "type"}}
