"""What the database's rows say, in one shape for both generations of tables.

A *call* is one response of a model. A *node* is one message; in the newer tables its hash names it together with all
that came before it.

One conversation as it is gathered from rows: messages and their parents, calls, and a verbatim copy of the rows.
"""

from __future__ import annotations

import base64
from datetime import UTC, datetime
from typing import Any

from msgspec import Struct, field

from weft.exchange.importers.chat import response_tokens
from weft.exchange.importers.databases import RowLines
from weft.exchange.importers.documents import read_document
from weft.exchange.importers.port import Report, Tokens
from weft.exchange.importers.records.values import JsonObject, canonical, mapping, present, text, whole
from weft.kernel.enums import FileKind
from weft.ledger.model import FileNote, ImagePart, Part


class Call(Struct, frozen=True):
    """One response, and what it took."""

    id: str
    thread: str
    model: str | None = None
    at: int | None = None
    duration: int | None = None
    tokens: Tokens | None = None
    options: Any = None
    metadata: Any = None
    tools: tuple[str, ...] | None = None


class Answer(Struct):
    """A tool's result."""

    id: str | None
    name: str | None
    output: Any
    error: str | None = None


class Asking(Struct):
    """A tool that was asked for."""

    id: str | None
    name: str
    arguments: Any
    detail: Any = None


class Node(Struct):
    """One message."""

    id: str
    role: str
    parts: list[Part] = field(default_factory=list)
    calls: list[Asking] = field(default_factory=list)
    answers: list[Answer] = field(default_factory=list)
    files: list[FileNote] = field(default_factory=list)
    beside: list[Any] = field(default_factory=list)
    """What no part can hold."""
    call: str | None = None
    """The response that this message came with."""


def loaded(value: Any) -> Any:
    """JSON in a column; what is none stays as it is."""
    if isinstance(value, bytes):
        value = value.decode("utf-8", "surrogateescape")
    if not isinstance(value, str) or not value:
        return value or None
    document = read_document(value.encode("utf-8", "surrogatepass"))
    return value if document.damage is not None else document.value


def utc(value: Any) -> int | None:
    """Times are UTC, as their column says, also where they name no zone."""
    if not isinstance(value, str):
        return None
    try:
        when = datetime.fromisoformat(value)
        when = when.replace(tzinfo=UTC) if when.tzinfo is None else when
        return round(when.timestamp() * 1000)
    except (ValueError, OverflowError):
        return None


def tokens(row: JsonObject) -> Tokens | None:
    """OpenAI's details lie inside the input, Anthropic's beside it."""
    details = mapping(loaded(row.get("token_details")))
    usage = {"input_tokens": row.get("input_tokens"), "output_tokens": row.get("output_tokens"), **details}
    usage.setdefault("input_tokens_details", details.get("prompt_tokens_details"))
    usage.setdefault("output_tokens_details", details.get("completion_tokens_details"))
    return response_tokens(usage)


def call_of(row: JsonObject, thread: str, **metadata: Any) -> Call:
    """Of a row of `turns` or `responses`, which share their columns."""
    alias, resolved = text(row.get("model")), text(row.get("resolved_model"))
    return Call(
        id=str(row.get("id")),
        thread=thread,
        model=resolved or alias,
        at=utc(row.get("datetime_utc")),
        duration=whole(row.get("duration_ms")),
        tokens=tokens(row),
        options=present(**mapping(loaded(row.get("options_json")))),
        metadata=present(asked_for=alias if resolved else None, schema=row.get("schema_id"), **metadata),
    )


def attach(node: Node, row: JsonObject) -> None:
    """A file beside a message: an image is a part, of others it is told where they lie."""
    kind, path, url = text(row.get("type")), text(row.get("path")), text(row.get("url"))
    if path is not None:
        node.files.append(FileNote(kind=FileKind.ATTACHED, path=path))
    content = row.get("content")
    if kind is not None and kind.startswith("image/") and (content or url):
        data = f"data:{kind};base64,{base64.b64encode(content).decode()}" if isinstance(content, bytes) else url
        if data is not None:
            node.parts.append(ImagePart(data))
            return
    node.beside.append(described(row))


def described(row: JsonObject) -> JsonObject:
    content = row.get("content")
    size = len(content) if isinstance(content, bytes) else None
    fields = {name: row.get(name) for name in ("id", "type", "path", "url")}
    return present(**fields, size=size) or {}


def source_note(source: Any) -> FileNote | None:
    """A fragment that came from a file."""
    path = text(source)
    return None if path is None or "://" in path or path == "-" else FileNote(kind=FileKind.ATTACHED, path=path)


class Session(Struct):
    """One conversation of `llm`, with its messages and how they follow each other."""

    id: str
    report: Report
    name: str | None = None
    created: int | None = None
    forked_from: str | None = None
    tip: str | None = None
    """The message that the conversation stands on, where one is named."""
    nodes: dict[str, Node] = field(default_factory=dict)
    parents: dict[str, str | None] = field(default_factory=dict)
    """Every node's parent, parents first."""
    calls: dict[str, Call] = field(default_factory=dict)
    lines: RowLines = field(default_factory=RowLines)
    _known: set[tuple[str, Any]] = field(default_factory=set)

    def is_new(self, kind: str, id: Any) -> bool:
        """Is this the first time that a row which many refer to comes up?"""
        is_new = (kind, id) not in self._known
        self._known.add((kind, id))
        return is_new

    def keep(
        self, kind: str, row: JsonObject, *, is_mapped: bool = True, is_unknown: bool = False, is_new: bool = True
    ) -> None:
        """A row: counted, and written down to the letter."""
        if not is_new:
            return
        self.report.found += 1
        (self.report.mapped if is_mapped else self.report.kept)[kind] += 1
        if is_unknown:
            self.report.unknown[kind] += 1
        self.lines.add(kind, canonical({name: _shown(value) for name, value in row.items()}))


def _shown(value: Any) -> Any:
    """Bytes as their hexadecimal digits: JSON has no other place for them."""
    return {"bytes": value.hex()} if isinstance(value, bytes) else value
