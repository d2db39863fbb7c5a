"""The older tables: a row of `responses` for each prompt with its response, in conversations.

The results of tools are told with the response that was given them, which is the one after the response that asked.
Before those came one table `logs`.
"""

from __future__ import annotations

from typing import Any

from weft.exchange.importers.databases import Database
from weft.exchange.importers.llm.rows import Answer, Asking, Node, Session, attach, call_of, described, source_note
from weft.exchange.importers.records.values import JsonObject, json_in_text, text
from weft.ledger.model import ReasoningPart, TextPart


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
        rows = [row for place in places for row in self._at("responses", place)]
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

    def _at(self, table: str, place: int) -> list[JsonObject]:
        return self._rows(table, f"SELECT * FROM {table} WHERE rowid = ?", (place,))

    def _of(self, table: str, response: Any) -> list[JsonObject]:
        if not self._database.has(table, "response_id"):
            return []
        order = "order" if self._database.has(table, "order") else "rowid"
        places = self._places(table, "response_id", order).get(response, [])
        return [row for place in places for row in self._at(table, place)]

    def _one(self, table: str, id: Any) -> JsonObject:
        found = (
            self._rows(table, f"SELECT * FROM {table} WHERE id = ?", (id,)) if self._database.has(table, "id") else []
        )
        return found[0] if found else {}

    def read(self, rows: list[JsonObject], session: Session) -> str | None:
        """A chain of messages, one response after the other; returns the last."""
        tip: str | None = None
        system: str | None = None
        for row in rows:
            session.keep("response", row)
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
        for link in self._of(table, row["id"]):
            fragment = self._one("fragments", link.get("fragment_id"))
            if fragment:
                session.keep("fragment", fragment, is_new=session.is_new("fragment", fragment.get("id")))
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
        asked = text(row.get("prompt"))
        words = [*self._fragments("prompt_fragments", row, session, node), *([asked] if asked else [])]
        if words:
            node.parts.append(TextPart("\n".join(words)))
        for link in self._of("prompt_attachments", row["id"]):
            attachment = self._one("attachments", link.get("attachment_id"))
            if attachment:
                session.keep("attachment", attachment, is_new=session.is_new("attachment", attachment.get("id")))
                attach(node, attachment)
        return node

    def _results(self, row: JsonObject, session: Session) -> Node:
        node = Node(f"{row['id']}:results", "tool")
        for result in self._of("tool_results", row["id"]):
            session.keep("tool_result", result)
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
        found = []
        for link in self._rows("tool_results_attachments", sql, (result.get("id"),)):
            row = self._one("attachments", link.get("attachment_id"))
            session.keep("attachment", row, is_new=bool(row) and session.is_new("attachment", row.get("id")))
            found.append(described(row or {"id": link.get("attachment_id")}))
        return found

    def _response(self, row: JsonObject, session: Session) -> Node:
        node = Node(f"{row['id']}:response", "assistant", call=str(row["id"]))
        if (thought := text(row.get("reasoning"))) is not None:
            node.parts.append(ReasoningPart(thought))
        if (words := text(row.get("response"))) is not None:
            node.parts.append(TextPart(words))
        for call in self._of("tool_calls", row["id"]):
            session.keep("tool_call", call)
            given = json_in_text(call.get("arguments"))
            node.calls.append(Asking(text(call.get("tool_call_id")), text(call.get("name")) or "", given))
        return node

    def logs(self) -> list[JsonObject]:
        """Rows of the first table of all."""
        if not self._database.has("logs", "id", "prompt", "response"):
            return []
        return self._rows("logs", "SELECT * FROM logs ORDER BY id")

    def read_logs(self, rows: list[JsonObject], session: Session) -> None:
        tip: str | None = None
        for row in rows:
            session.keep("log", row)
            id = f"log-{row['id']}"
            session.calls[id] = call_of({**row, "id": id}, session.id)
            for role, name in (("system", "system"), ("user", "prompt"), ("assistant", "response")):
                node = Node(f"{id}:{name}", role, call=id if role == "assistant" else None)
                if (words := text(row.get(name))) is not None:
                    node.parts.append(TextPart(words))
                tip = self._add(node, tip, session, is_needed=role == "assistant")


def joined(chain: list[str], legacy: list[str], session: Session) -> int:
    """How many messages at the beginning of a newer chain repeat what the older tables hold: a conversation that goes
    on under a newer version begins with a copy of itself."""
    older_answers = [_words(session.nodes[id]) for id in legacy if session.nodes[id].role == "assistant"]
    found = 0
    for place, id in enumerate(chain):
        node = session.nodes[id]
        if node.role != "assistant":
            continue
        if node.call is not None or found >= len(older_answers) or _words(node) != older_answers[found]:
            break
        found += 1
        if found == len(older_answers):
            return place + 1
    return 0


def _words(node: Node) -> tuple[Any, ...]:
    words = "".join(str(part.text) for part in node.parts if isinstance(part, TextPart))
    return (words, tuple(call.name for call in node.calls))
