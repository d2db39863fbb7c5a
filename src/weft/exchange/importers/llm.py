"""Conversations of the `llm` command line tool, from its log database.

Two generations of tables (the older with a row for each prompt and its response, the newer with
messages by their hash) are read into rows of one shape; of these, turns are made: a prompt, and the
calls of models and tools that answer it.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from msgspec import Struct, field

from weft.exchange.importers.foreign_files import (
    MAGIC,
    UNREADABLE,
    Database,
    RowLines,
    open_database,
    peek,
    read_document,
)
from weft.exchange.importers.foreign_values import (
    JsonObject,
    canonical,
    fingerprint,
    json_in_text,
    mapping,
    present,
    sequence,
    text,
    whole_number,
)
from weft.exchange.importers.native_turns import (
    PendingCall,
    PlannedBranch,
    Tree,
    TreePart,
    finished_items,
    identity,
    response_tokens,
)
from weft.exchange.importers.port import (
    Item,
    NativeMessage,
    NativeSession,
    NativeTurn,
    Place,
    Report,
    Source,
    Tokens,
    Transcript,
)
from weft.kernel.enums import FileKind, MessageRole, MessageSource
from weft.ledger.model import FileNote, ImagePart, Part, ReasoningPart, TextPart

# --- What the database's rows say, in one shape for both generations of tables.


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


class ToolRequest(Struct):
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
    calls: list[ToolRequest] = field(default_factory=list)
    answers: list[Answer] = field(default_factory=list)
    files: list[FileNote] = field(default_factory=list)
    beside: list[Any] = field(default_factory=list)
    """What no part can hold."""
    call: str | None = None
    """The response that this message came with."""


def decode_column(value: Any) -> Any:
    """JSON in a column; what is none stays as it is."""
    if isinstance(value, bytes):
        value = value.decode("utf-8", "surrogateescape")
    if not isinstance(value, str) or not value:
        return value or None
    document = read_document(value.encode("utf-8", "surrogatepass"))
    return value if document.damage is not None else document.value


def utc_millis(value: Any) -> int | None:
    """Times are UTC, as their column says, also where they name no zone."""
    if not isinstance(value, str):
        return None
    try:
        moment = datetime.fromisoformat(value)
        moment = moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment
        return round(moment.timestamp() * 1000)
    except (ValueError, OverflowError):
        return None


def row_tokens(row: JsonObject) -> Tokens | None:
    """OpenAI's details lie inside the input, Anthropic's beside it."""
    details = mapping(decode_column(row.get("token_details")))
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
        at=utc_millis(row.get("datetime_utc")),
        duration=whole_number(row.get("duration_ms")),
        tokens=row_tokens(row),
        options=present(**mapping(decode_column(row.get("options_json")))),
        metadata=present(asked_for=alias if resolved else None, schema=row.get("schema_id"), **metadata),
    )


def attach_file(node: Node, row: JsonObject) -> None:
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
    node.beside.append(describe_attachment(row))


def describe_attachment(row: JsonObject) -> JsonObject:
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

    def count_row(
        self, kind: str, row: JsonObject, *, is_mapped: bool = True, is_unknown: bool = False, is_new: bool = True
    ) -> None:
        """A row: counted, and written down to the letter."""
        if not is_new:
            return
        self.report.found += 1
        (self.report.mapped if is_mapped else self.report.kept)[kind] += 1
        if is_unknown:
            self.report.unknown[kind] += 1
        self.lines.add(kind, canonical({name: _json_form(value) for name, value in row.items()}))


def _json_form(value: Any) -> Any:
    """Bytes as their hexadecimal digits: JSON has no other place for them."""
    return {"bytes": value.hex()} if isinstance(value, bytes) else value


# --- The older tables: a row of `responses` for each prompt with its response, in conversations.


class Classic:
    def __init__(self, database: Database) -> None:
        self._database = database
        self._newer: set[Any] | None = None
        self._indexes: dict[tuple[str, str], dict[Any, list[int]]] = {}

    @property
    def is_there(self) -> bool:
        return self._database.has("responses", "id", "prompt", "response")

    def _rows(self, table: str, sql: str, values: tuple[Any, ...] = ()) -> list[JsonObject]:
        return [dict(zip(self._database.columns[table], row, strict=False)) for row in self._database.rows(sql, values)]

    def conversations(self) -> dict[str, JsonObject]:
        """By id; a response without one is a conversation of its own."""
        objects: dict[str, JsonObject] = {}
        if self._database.has("conversations", "id"):
            for row in self._rows("conversations", "SELECT * FROM conversations ORDER BY id"):
                objects[str(row["id"])] = row
        if self._database.has("responses", "conversation_id"):
            for (id,) in self._database.rows("SELECT DISTINCT conversation_id FROM responses"):
                if id is not None:
                    objects.setdefault(str(id), {})
            for (id,) in self._database.rows("SELECT id FROM responses WHERE conversation_id IS NULL ORDER BY id"):
                objects.setdefault(str(id), {})
        return objects

    def responses(self, conversation: str, has_store: bool) -> list[JsonObject]:
        """Those that the newer tables do not have."""
        if not self.is_there:
            return []
        if has_store and self._newer is None:
            self._newer = {id for (id,) in self._database.rows("SELECT id FROM turns")}
        column = "conversation_id" if self._database.has("responses", "conversation_id") else "id"
        places = self._places("responses", column, "id").get(conversation)
        if places is None:  # a response without a conversation is one
            places = self._places("responses", "id", "id").get(conversation, [])
        rows = [row for place in places for row in self._rows_at("responses", place)]
        return [row for row in rows if row["id"] not in (self._newer or ())]

    def _places(self, table: str, column: str, order: str) -> dict[Any, list[int]]:
        """Where the rows of each value lie: no index has these columns, and many values are asked for."""
        if (table, column) not in self._indexes:
            index: dict[Any, list[int]] = {}
            sql = f'SELECT rowid, "{column}" FROM {table} ORDER BY "{order}"'
            for place, value in self._database.walk(sql):
                index.setdefault(value, []).append(place)
            self._indexes[table, column] = index
        return self._indexes[table, column]

    def _rows_at(self, table: str, place: int) -> list[JsonObject]:
        return self._rows(table, f"SELECT * FROM {table} WHERE rowid = ?", (place,))

    def _rows_of_response(self, table: str, response: Any) -> list[JsonObject]:
        if not self._database.has(table, "response_id"):
            return []
        order = "order" if self._database.has(table, "order") else "rowid"
        places = self._places(table, "response_id", order).get(response, [])
        return [row for place in places for row in self._rows_at(table, place)]

    def _row_by_id(self, table: str, id: Any) -> JsonObject:
        rows = (
            self._rows(table, f"SELECT * FROM {table} WHERE id = ?", (id,)) if self._database.has(table, "id") else []
        )
        return rows[0] if rows else {}

    def read(self, rows: list[JsonObject], session: Session) -> str | None:
        """A chain of messages, one response after the other; returns the last."""
        tip: str | None = None
        system: str | None = None
        for row in rows:
            session.count_row("response", row)
            id = str(row["id"])
            session.calls[id] = call_of(row, session.id)
            instructions = self._system(row, session)
            if instructions and instructions != system:
                tip = self._add(Node(f"{id}:system", "system", [TextPart(instructions)]), tip, session)
            system = instructions or system
            tip = self._add(self._results(row, session), tip, session)
            tip = self._add(self._prompt(row, session), tip, session)
            tip = self._add(self._response(row, session), tip, session, is_needed=True)
        return tip

    def _add(self, node: Node, tip: str | None, session: Session, is_needed: bool = False) -> str | None:
        if not (node.parts or node.calls or node.answers or node.files or node.beside or is_needed):
            return tip
        session.nodes[node.id], session.parents[node.id] = node, tip
        return node.id

    def _fragments(self, table: str, row: JsonObject, session: Session, node: Node | None) -> list[str]:
        words = []
        for link in self._rows_of_response(table, row["id"]):
            fragment = self._row_by_id("fragments", link.get("fragment_id"))
            if fragment:
                session.count_row("fragment", fragment, is_new=session.is_new("fragment", fragment.get("id")))
                words.append(str(fragment.get("content") or ""))
                note = source_note(fragment.get("source"))
                if node is not None and note is not None:
                    node.files.append(note)
        return words

    def _system(self, row: JsonObject, session: Session) -> str:
        """The instructions and their fragments, as they are put together."""
        texts = [*self._fragments("system_fragments", row, session, None), text(row.get("system")) or ""]
        return "\n\n".join(words.strip() for words in texts if words.strip())

    def _prompt(self, row: JsonObject, session: Session) -> Node:
        node = Node(f"{row['id']}:prompt", "user")
        prompt = text(row.get("prompt"))
        words = [*self._fragments("prompt_fragments", row, session, node), *([prompt] if prompt else [])]
        if words:
            node.parts.append(TextPart("\n".join(words)))
        for link in self._rows_of_response("prompt_attachments", row["id"]):
            attachment = self._row_by_id("attachments", link.get("attachment_id"))
            if attachment:
                session.count_row("attachment", attachment, is_new=session.is_new("attachment", attachment.get("id")))
                attach_file(node, attachment)
        return node

    def _results(self, row: JsonObject, session: Session) -> Node:
        node = Node(f"{row['id']}:results", "tool")
        for result in self._rows_of_response("tool_results", row["id"]):
            session.count_row("tool_result", result)
            output: Any = result.get("output")
            if attached := self._result_attachments(result, session):
                output = {"output": output, "attachments": attached}
            error = text(result.get("exception"))
            node.answers.append(Answer(text(result.get("tool_call_id")), text(result.get("name")), output, error))
        return node

    def _result_attachments(self, result: JsonObject, session: Session) -> list[JsonObject]:
        if not self._database.has("tool_results_attachments", "tool_result_id", "attachment_id"):
            return []
        sql = "SELECT * FROM tool_results_attachments WHERE tool_result_id = ? ORDER BY rowid"
        attachments = []
        for link in self._rows("tool_results_attachments", sql, (result.get("id"),)):
            row = self._row_by_id("attachments", link.get("attachment_id"))
            session.count_row("attachment", row, is_new=bool(row) and session.is_new("attachment", row.get("id")))
            attachments.append(describe_attachment(row or {"id": link.get("attachment_id")}))
        return attachments

    def _response(self, row: JsonObject, session: Session) -> Node:
        node = Node(f"{row['id']}:response", "assistant", call=str(row["id"]))
        if (thought := text(row.get("reasoning"))) is not None:
            node.parts.append(ReasoningPart(thought))
        if (words := text(row.get("response"))) is not None:
            node.parts.append(TextPart(words))
        for call in self._rows_of_response("tool_calls", row["id"]):
            session.count_row("tool_call", call)
            arguments = json_in_text(call.get("arguments"))
            node.calls.append(ToolRequest(text(call.get("tool_call_id")), text(call.get("name")) or "", arguments))
        return node

    def logs(self) -> list[JsonObject]:
        """Rows of the first table of all."""
        if not self._database.has("logs", "id", "prompt", "response"):
            return []
        return self._rows("logs", "SELECT * FROM logs ORDER BY id")

    def read_logs(self, rows: list[JsonObject], session: Session) -> None:
        tip: str | None = None
        for row in rows:
            session.count_row("log", row)
            id = f"log-{row['id']}"
            session.calls[id] = call_of({**row, "id": id}, session.id)
            for role, name in (("system", "system"), ("user", "prompt"), ("assistant", "response")):
                node = Node(f"{id}:{name}", role, call=id if role == "assistant" else None)
                if (words := text(row.get(name))) is not None:
                    node.parts.append(TextPart(words))
                tip = self._add(node, tip, session, is_needed=role == "assistant")


def count_repeated(chain: list[str], legacy: list[str], session: Session) -> int:
    """How many messages at the beginning of a newer chain repeat what the older tables hold: a conversation that goes
    on under a newer version begins with a copy of itself."""
    older_answers = [_answer_words(session.nodes[id]) for id in legacy if session.nodes[id].role == "assistant"]
    matched_count = 0
    for place, id in enumerate(chain):
        node = session.nodes[id]
        if node.role != "assistant":
            continue
        if (
            node.call is not None
            or matched_count >= len(older_answers)
            or _answer_words(node) != older_answers[matched_count]
        ):
            break
        matched_count += 1
        if matched_count == len(older_answers):
            return place + 1
    return 0


def _answer_words(node: Node) -> tuple[Any, ...]:
    words = "".join(str(part.text) for part in node.parts if isinstance(part, TextPart))
    return (words, tuple(call.name for call in node.calls))


# --- The newer tables: messages by the hash of what they say and follow, threads that point at them, and one row of
# `turns` for each call of a model.

LONGEST_CHAIN = 1_000_000


class Store:
    def __init__(self, database: Database, report: Report) -> None:
        self._database, self._report = database, report
        self.reached_messages: set[str] = set()
        """Messages that some thread leads to."""
        self._makers: dict[str, str] | None = None

    @property
    def is_there(self) -> bool:
        has = self._database.has
        return (
            has("messages", "hash", "parent_hash", "role")
            and has("parts", "message_hash", "position", "type")
            and has("threads", "id", "tip_message_hash")
            and has("turns", "id", "thread_id", "parent_message_hash", "tip_message_hash")
        )

    def threads(self) -> list[JsonObject]:
        threads = [self._row("threads", row) for row in self._database.rows("SELECT * FROM threads ORDER BY id")]
        ids = {row.get("id") for row in threads}
        nameless = self._database.rows("SELECT DISTINCT thread_id FROM turns ORDER BY thread_id")
        return threads + [{"id": id} for (id,) in nameless if id is not None and id not in ids]

    def _row(self, table: str, row: Any) -> JsonObject:
        return dict(zip(self._database.columns[table], row, strict=False))

    def _rows_where(self, table: str, column: str, value: Any, order: str = "rowid") -> list[JsonObject]:
        if not self._database.has(table, column):
            return []
        rows = self._database.rows(f'SELECT * FROM {table} WHERE "{column}" = ? ORDER BY {order}', (value,))
        return [self._row(table, row) for row in rows]

    def read(self, thread: JsonObject, session: Session) -> None:
        """A thread's calls with the messages that they made and followed."""
        calls = self._rows_where("turns", "thread_id", thread.get("id"), "id")
        for row in calls:
            session.count_row("turn", row)
            session.calls[str(row["id"])] = self._call(row, session.id)
            self._add_chain(row, session)
        if isinstance(tip := thread.get("tip_message_hash"), str):
            self._walk(tip, session)

    def _call(self, row: JsonObject, thread: str) -> Call:
        fragments = self._fragments_of("turn_fragments", "turn_id", row["id"])
        call = call_of(
            row, thread, fragments=[fragment.get("source") for fragment in fragments if fragment.get("source")]
        )
        return Call(**{name: getattr(call, name) for name in Call.__struct_fields__} | {"tools": self._tools(row)})

    def _tools(self, row: JsonObject) -> tuple[str, ...] | None:
        if not (self._database.has("turn_tools", "turn_id", "tool_id") and self._database.has("tools", "id", "name")):
            return None
        rows = self._database.rows(
            "SELECT tools.name FROM turn_tools JOIN tools ON tools.id = turn_tools.tool_id"
            " WHERE turn_tools.turn_id = ? ORDER BY tools.name",
            (row["id"],),
        )
        return tuple(name for (name,) in rows if isinstance(name, str)) or None

    def _fragments_of(self, table: str, column: str, value: Any) -> list[JsonObject]:
        if not (self._database.has(table, column, "fragment_id", "order") and self._database.has("fragments", "id")):
            return []
        rows = self._database.rows(
            f"SELECT fragments.* FROM {table} JOIN fragments ON fragments.id = {table}.fragment_id"
            f' WHERE {table}."{column}" = ? ORDER BY {table}."order"',
            (value,),
        )
        return [self._row("fragments", row) for row in rows]

    def _add_chain(self, row: JsonObject, session: Session) -> None:
        """The messages up to the end of a call; those after its parent are its own."""
        tip, parent = row.get("tip_message_hash"), row.get("parent_message_hash")
        if not isinstance(tip, str):
            return
        for hash in self._walk(tip, session, until=parent):
            node = session.nodes.get(hash)
            if node is not None and (node.call is None or session.calls[node.call].thread != session.id):
                node.call = str(row["id"])

    def _walk(self, tip: str, session: Session, until: Any = None) -> list[str]:
        """Brings the chain to `tip` into the session; returns what of it comes after `until`."""
        chain: list[tuple[str, str | None]] = []
        hash: str | None = tip
        walked: set[str] = set()
        while hash is not None and hash not in walked and hash not in session.parents:
            row = next(iter(self._rows_where("messages", "hash", hash)), None)
            if row is None:
                self._report.problem(None, f"the message {hash} is missing")
                break
            walked.add(hash)
            above = text(row.get("parent_hash"))
            session.nodes[hash] = self._node(row, session)
            chain.append((hash, above))
            hash = above
        for node, above in reversed(chain):
            session.parents[node] = above if above in session.parents else None
        self.reached_messages |= walked
        return list(_walk_up(tip, session.parents, until))

    def _node(self, row: JsonObject, session: Session) -> Node:
        node = Node(str(row["hash"]), text(row.get("role")) or "none")
        session.count_row("message", row)
        if (provider_metadata := decode_column(row.get("provider_metadata"))) is not None:
            node.beside.append({"provider_metadata": provider_metadata})
        for part in self._rows_where("parts", "message_hash", row["hash"], "position"):
            is_known = self._add_part(node, part, session)
            session.count_row(f"part.{part.get('type')}", part, is_mapped=is_known, is_unknown=not is_known)
        call = self._maker(node.id)
        if call is not None:
            node.call = call.id
            session.calls.setdefault(call.id, call)
        return node

    def _maker(self, hash: str) -> Call | None:
        """The first call, of whichever thread, that ended with this message."""
        if self._makers is None:
            sql = "SELECT tip_message_hash, min(id) FROM turns GROUP BY tip_message_hash"
            self._makers = {tip: id for tip, id in self._database.rows(sql) if tip is not None}
        row = next(iter(self._rows_where("turns", "id", self._makers[hash])), None) if hash in self._makers else None
        return None if row is None else self._call(row, str(row.get("thread_id")))

    def _add_part(self, node: Node, row: JsonObject, session: Session) -> bool:
        payload = mapping(decode_column(row.get("payload")))
        kind = row.get("type")
        if kind in ("text", "reasoning"):
            words = row.get("text") if isinstance(row.get("text"), str) else self._resolved(node, payload, session)
            if words:
                node.parts.append(TextPart(words) if kind == "text" else ReasoningPart(words))
            if payload.get("redacted"):
                node.beside.append({"reasoning": "redacted"})
        elif kind == "tool_call":
            detail = present(server_executed=payload.get("server_executed"))
            arguments = json_in_text(payload.get("arguments"))
            call = ToolRequest(text(payload.get("tool_call_id")), text(payload.get("name")) or "", arguments, detail)
            node.calls.append(call)
        elif kind == "tool_result":
            node.answers.append(self._answer(payload, session))
        elif kind == "attachment":
            for attachment in self._attachments([mapping(payload.get("attachment"))], session):
                attach_file(node, attachment)
        else:
            return False
        return True

    def _answer(self, payload: JsonObject, session: Session) -> Answer:
        output = payload.get("output")
        attached = self._attachments(
            [mapping(attachment) for attachment in sequence(payload.get("attachments"))], session
        )
        if attached:
            output = {"output": output, "attachments": [describe_attachment(attachment) for attachment in attached]}
        return Answer(
            text(payload.get("tool_call_id")), text(payload.get("name")), output, text(payload.get("exception"))
        )

    def _resolved(self, node: Node, payload: JsonObject, session: Session) -> str:
        """A text that borrows from fragments."""
        words = []
        for text_ref in map(mapping, sequence(payload.get("text_ref"))):
            if isinstance(text_ref.get("literal"), str):
                words.append(text_ref["literal"])
                continue
            for fragment in self._rows_where("fragments", "id", text_ref.get("fragment")):
                session.count_row("fragment", fragment, is_new=session.is_new("fragment", fragment.get("id")))
                words.append(str(fragment.get("content") or ""))
                if (note := source_note(fragment.get("source"))) is not None:
                    node.files.append(note)
        return "".join(words)

    def _attachments(self, objects: list[JsonObject], session: Session) -> Iterator[JsonObject] | list[JsonObject]:
        attachments = []
        for reference in objects:
            rows = self._rows_where("attachments", "id", reference.get("id"))
            for row in rows:
                session.count_row("attachment", row, is_new=session.is_new("attachment", row.get("id")))
            attachments += rows or [reference]
        return attachments

    def goes_on(self, hash: str, session: Session) -> bool:
        """Does an answer that breaks off here go on in another thread?"""
        below = self._rows_where("messages", "parent_hash", hash) if self.is_there else []
        return any(row.get("role") != "user" and row.get("hash") not in session.parents for row in below)

    def count_orphans(self, session: Session) -> None:
        """Messages that no thread leads to."""
        for row in self._database.walk("SELECT * FROM messages ORDER BY rowid"):
            message = self._row("messages", row)
            if message.get("hash") not in self.reached_messages:
                session.count_row("message.without thread", message, is_mapped=False)
                for part in self._rows_where("parts", "message_hash", message.get("hash"), "position"):
                    session.count_row("part.without thread", part, is_mapped=False)


def _walk_up(tip: str, parents: dict[str, str | None], until: Any) -> Iterator[str]:
    node: str | None = tip
    for _ in range(LONGEST_CHAIN):
        if node is None or node == until:
            return
        yield node
        node = parents.get(node)


# --- Turns of one conversation: a prompt, and the calls of models and tools that answer it.

ROLES = {
    "system": MessageRole.SYSTEM,
    "developer": MessageRole.SYSTEM,
    "user": MessageRole.USER,
    "assistant": MessageRole.ASSISTANT,
}


def turns_of(session: Session, goes_on: Callable[[str, Session], bool]) -> list[NativeTurn]:
    """`goes_on` tells whether a message that nothing follows here is followed in another conversation."""
    tree = Tree()
    for id, parent in session.parents.items():
        tree.add(id, parent, _tree_part(session, id, parent))
    keys: set[str] = set()
    turns = []
    places = {id: place for place, id in enumerate(session.parents, 1)}
    head = tree.turn_of(session.tip) if session.tip is not None and session.tip in tree else None
    for number, plan in enumerate(tree.plans):
        turn = _Turn(session, plan).native_turn(is_last=number == len(tree.plans) - 1)
        turn.end = places[plan.nodes[-1]] if number != head else len(places) + 1
        if goes_on(plan.nodes[-1], session):
            turn.key = f"{turn.key}#{plan.nodes[-1]}"
        if turn.key in keys:
            turn.key = f"{turn.key}~{fingerprint(plan.nodes)}"
        keys.add(turn.key)
        turns.append(turn)
    return turns


def _tree_part(session: Session, id: str, parent: str | None) -> TreePart:
    """Several messages of the user in a row are one prompt; one that holds results is none."""
    node = session.nodes[id]
    if node.role == "assistant":
        return TreePart.ANSWER
    above = None if parent is None else session.nodes[parent]
    is_prompt = node.role == "user" and not node.answers and (above is None or above.role != "user")
    return TreePart.PROMPT if is_prompt else TreePart.OTHER


class _Turn:
    def __init__(self, session: Session, plan: PlannedBranch) -> None:
        self._session, self._plan = session, plan
        self._items: list[NativeMessage | PendingCall] = []
        self._open_calls: list[PendingCall] = []
        self._counted: set[str] = set()
        self._calls: list[Call] = []

    def native_turn(self, is_last: bool) -> NativeTurn:
        for place, id in enumerate(self._plan.nodes):
            self._add_node(self._session.nodes[id], is_shared=place < self._plan.shared)
        items: list[Item] = list(finished_items(self._items))
        starts = [call.at for call in self._calls if call.at is not None]
        ends = [call.at + (call.duration or 0) for call in self._calls if call.at is not None]
        first = self._calls[0] if self._calls else None
        return NativeTurn(
            key=self._key(),
            records=identity(items) or (canonical(self._plan.nodes),),
            names=tuple(call.id for call in self._calls),
            items=tuple(items),
            parent=self._plan.parent,
            closed=not (is_last and self._open_calls),
            started=min(starts, default=None),
            ended=max(ends, default=None),
            tools=next((call.tools for call in self._calls if call.tools), None),
            config=None if first is None else present(options=first.options),
            metadata=None if first is None else present(**mapping(first.metadata)),
        )

    def _key(self) -> str:
        """The first call, and the first of every thread that went on from another one's: forks share what is theirs."""
        texts: list[str] = []
        thread = None
        for call in self._calls:
            if call.thread != thread:
                texts.append(call.id)
            thread = call.thread
        return "#".join(texts) or f"{self._session.id}/{self._plan.nodes[-1]}"

    def _add_node(self, node: Node, is_shared: bool) -> None:
        call = None if node.call is None else self._session.calls.get(node.call)
        if call is not None and call not in self._calls:
            self._calls.append(call)
        for answer in node.answers:
            self._answer(answer)
        if node.role == "tool" and not (node.parts or node.beside):
            return
        self._items.append(self._message(node, call, is_shared))
        pending_calls = [
            PendingCall(tool_request.id or "", tool_request.name, tool_request.arguments, detail=tool_request.detail)
            for tool_request in node.calls
        ]
        self._open_calls = [*self._open_calls, *pending_calls] if pending_calls else self._open_calls
        self._items += pending_calls

    def _message(self, node: Node, call: Call | None, is_shared: bool) -> NativeMessage:
        role = ROLES.get(node.role, MessageRole.SYSTEM)
        is_first = call is not None and call.id not in self._counted
        if call is not None:
            self._counted.add(call.id)
        is_answer = role is MessageRole.ASSISTANT
        return NativeMessage(
            role=role,
            parts=tuple(node.parts),
            native=call.id if call is not None and is_first and is_answer else None,
            at=None if call is None else call.at,
            source=_source(role),
            model=None if call is None else call.model,
            tokens=call.tokens if call is not None and is_first and not is_shared else None,
            metadata=present(
                role=node.role if node.role not in ROLES else None,
                beside=node.beside,
                duration_ms=call.duration if call is not None and is_first else None,
            ),
            files=tuple(node.files),
        )

    def _answer(self, answer: Answer) -> None:
        """To the call of this id; without one, to the first of its name that is open."""
        candidates = [call for call in self._open_calls if answer.id is not None and call.id == answer.id]
        if not candidates:
            candidates = [
                call for call in self._open_calls if call.name == answer.name and (answer.id is None or not call.id)
            ]
        if not candidates:
            self._items.append(_stray_result(answer))
            return
        call = candidates[0]
        self._open_calls.remove(call)
        if answer.error is not None:
            call.fail(answer.error)
        call.result = answer.output
        if answer.error is None:
            call.answer(answer.output)


def _source(role: MessageRole) -> MessageSource | None:
    if role is MessageRole.USER:
        return MessageSource.HUMAN
    return MessageSource.EVENT if role is MessageRole.SYSTEM else None


def _stray_result(answer: Answer) -> NativeMessage:
    """A result that nobody asked for here."""
    value: Any = present(id=answer.id, name=answer.name, output=answer.output, error=answer.error)
    return NativeMessage(
        role=MessageRole.SYSTEM, parts=(), source=MessageSource.EVENT, metadata={"tool_result": value or {}}
    )


# --- llm: one SQLite database for everything that was ever asked.

TABLES = "SELECT name FROM sqlite_schema WHERE type = 'table'"
SIGNS = (
    frozenset({"conversations", "responses", "_llm_migrations"}),
    frozenset({"messages", "parts", "threads", "turns", "part_fragments"}),
    frozenset({"logs", "_llm_migrations"}),
)


class Llm:
    origin = "llm"
    mapping = 1

    def places(self, home: Path, environment: Mapping[str, str]) -> list[Place]:
        if user_path := environment.get("LLM_USER_PATH"):
            return [Place(Path(user_path) / "logs.db", "llm")]
        config = environment.get("XDG_CONFIG_HOME")
        folders = [Path(config) if config else home / ".config", home / "Library/Application Support"]
        return [Place(folder / "io.datasette.llm" / "logs.db", "llm") for folder in folders]

    def recognises(self, source: Source) -> bool:
        if not source.head.startswith(MAGIC):
            return False
        tables = {name for (name,) in peek(source.path, TABLES)}
        is_at_home = source.path.name == "logs.db" and source.path.parent.name == "io.datasette.llm"
        return any(signs <= tables for signs in SIGNS) or (is_at_home and not tables)

    def is_part(self, source: Source) -> bool:
        return False

    def read(self, source: Source, report: Report) -> Iterator[Transcript]:
        with open_database(source.path, report) as database:
            if database is not None:
                yield from _Reading(database, report).transcripts()


class _Reading:
    def __init__(self, database: Database, report: Report) -> None:
        self._store, self._classic = Store(database, report), Classic(database)
        self._report = report

    def transcripts(self) -> Iterator[Transcript]:
        try:
            threads = {str(row["id"]): row for row in self._store.threads()} if self._store.is_there else {}
            conversations = self._classic.conversations() if self._classic.is_there else {}
        except UNREADABLE as error:
            self._report.problem(None, f"the database is not readable: {error}"[:300])
            return
        for id in dict.fromkeys((*conversations, *threads)):
            try:
                transcript = self._transcript(self._session(id, threads.get(id), conversations.get(id)))
            except UNREADABLE as error:
                self._report.problem(None, f"the conversation {id} is not readable: {error}"[:300])
            else:
                yield transcript
        yield from self._remaining_transcripts()

    def _session(self, id: str, thread: JsonObject | None, conversation: JsonObject | None) -> Session:
        session = Session(id, self._report)
        for kind, row in (("conversation", conversation), ("thread", thread)):
            if row and "name" in row:
                session.count_row(kind, row)
                session.name = text(row.get("name")) or session.name
        older = self._classic.responses(id, self._store.is_there)
        tip = self._classic.read(older, session)
        legacy = list(session.parents)
        if thread is not None:
            session.created = utc_millis(thread.get("datetime_utc"))
            session.forked_from = text(thread.get("forked_from"))
            session.tip = text(thread.get("tip_message_hash"))
            self._store.read(thread, session)
            _join_chains(session, legacy, tip)
        return session

    def _remaining_transcripts(self) -> Iterator[Transcript]:
        """The first table of all, and messages that belong to no conversation."""
        try:
            chats: dict[str, list[JsonObject]] = {}
            for row in self._classic.logs():
                chats.setdefault(f"log-{row.get('chat_id') or row.get('id')}", []).append(row)
            for id, rows in chats.items():
                session = Session(id, self._report)
                self._classic.read_logs(rows, session)
                yield self._transcript(session)
            if self._store.is_there:
                session = Session("messages without a thread", self._report)
                self._store.count_orphans(session)
                if session.lines.count:
                    yield self._transcript(session)
        except UNREADABLE as error:
            self._report.problem(None, f"the database is not readable: {error}"[:300])

    def _transcript(self, session: Session) -> Transcript:
        turns = turns_of(session, self._store.goes_on)
        native_session = NativeSession(
            id=session.id,
            title=session.name,
            created=session.created or (turns[0].started if turns else None),
            metadata=present(forked_from=session.forked_from),
        )
        return Transcript(session=native_session, turns=turns, raw=session.lines.finish())


def _join_chains(session: Session, legacy: list[str], tip: str | None) -> None:
    """Newer messages that repeat older ones give way to those."""
    if not legacy:
        return
    children: dict[str, str | None] = {}
    for root in [id for id, parent in session.parents.items() if parent is None and id not in legacy]:
        chain = _first_chain(session, root)
        count = count_repeated(chain, legacy, session)
        if count:
            for id in chain[:count]:
                del session.parents[id]
            repeated = set(chain[:count])
            children |= {id: tip for id, parent in session.parents.items() if parent in repeated}
    session.parents |= children


def _first_chain(session: Session, root: str) -> list[str]:
    """From a root down, as long as nothing forks."""
    below: dict[str | None, list[str]] = {}
    for id, parent in session.parents.items():
        below.setdefault(parent, []).append(id)
    chain = [root]
    while len(next_ := below.get(chain[-1], [])) == 1:
        chain += next_
    return chain
