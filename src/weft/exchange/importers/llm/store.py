"""The newer tables: messages by the hash of what they say and follow, threads that point at them, and one row of
`turns` for each call of a model."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from weft.exchange.importers.databases import Database
from weft.exchange.importers.llm.rows import (
    Answer,
    Asking,
    Call,
    Node,
    Session,
    attach,
    call_of,
    described,
    loaded,
    source_note,
)
from weft.exchange.importers.port import Report
from weft.exchange.importers.records.values import JsonObject, json_in_text, mapping, present, sequence, text
from weft.ledger.model import ReasoningPart, TextPart

LONGEST_CHAIN = 1_000_000


class Store:
    def __init__(self, database: Database, report: Report) -> None:
        self._database, self._report = database, report
        self.seen: set[str] = set()
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
        found = [self._row("threads", row) for row in self._database.rows("SELECT * FROM threads ORDER BY id")]
        ids = {row.get("id") for row in found}
        nameless = self._database.rows("SELECT DISTINCT thread_id FROM turns ORDER BY thread_id")
        return found + [{"id": id} for (id,) in nameless if id is not None and id not in ids]

    def _row(self, table: str, row: Any) -> JsonObject:
        return dict(zip(self._database.columns[table], row, strict=False))

    def _found(self, table: str, column: str, value: Any, order: str = "rowid") -> list[JsonObject]:
        if not self._database.has(table, column):
            return []
        rows = self._database.rows(f'SELECT * FROM {table} WHERE "{column}" = ? ORDER BY {order}', (value,))
        return [self._row(table, row) for row in rows]

    def read(self, thread: JsonObject, session: Session) -> None:
        """A thread's calls with the messages that they made and followed."""
        calls = self._found("turns", "thread_id", thread.get("id"), "id")
        for row in calls:
            session.keep("turn", row)
            session.calls[str(row["id"])] = self._call(row, session.id)
            self._chain(row, session)
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
        found = self._database.rows(
            "SELECT tools.name FROM turn_tools JOIN tools ON tools.id = turn_tools.tool_id"
            " WHERE turn_tools.turn_id = ? ORDER BY tools.name",
            (row["id"],),
        )
        return tuple(name for (name,) in found if isinstance(name, str)) or None

    def _fragments_of(self, table: str, column: str, value: Any) -> list[JsonObject]:
        if not (self._database.has(table, column, "fragment_id", "order") and self._database.has("fragments", "id")):
            return []
        rows = self._database.rows(
            f"SELECT fragments.* FROM {table} JOIN fragments ON fragments.id = {table}.fragment_id"
            f' WHERE {table}."{column}" = ? ORDER BY {table}."order"',
            (value,),
        )
        return [self._row("fragments", row) for row in rows]

    def _chain(self, row: JsonObject, session: Session) -> None:
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
        seen: set[str] = set()
        while hash is not None and hash not in seen and hash not in session.parents:
            row = next(iter(self._found("messages", "hash", hash)), None)
            if row is None:
                self._report.problem(None, f"the message {hash} is missing")
                break
            seen.add(hash)
            above = text(row.get("parent_hash"))
            session.nodes[hash] = self._node(row, session)
            chain.append((hash, above))
            hash = above
        for node, above in reversed(chain):
            session.parents[node] = above if above in session.parents else None
        self.seen |= seen
        return list(_upwards(tip, session.parents, until))

    def _node(self, row: JsonObject, session: Session) -> Node:
        node = Node(str(row["hash"]), text(row.get("role")) or "none")
        session.keep("message", row)
        if (provider_metadata := loaded(row.get("provider_metadata"))) is not None:
            node.beside.append({"provider_metadata": provider_metadata})
        for part in self._found("parts", "message_hash", row["hash"], "position"):
            is_known = self._part(node, part, session)
            session.keep(f"part.{part.get('type')}", part, is_mapped=is_known, is_unknown=not is_known)
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
        row = next(iter(self._found("turns", "id", self._makers[hash])), None) if hash in self._makers else None
        return None if row is None else self._call(row, str(row.get("thread_id")))

    def _part(self, node: Node, row: JsonObject, session: Session) -> bool:
        payload = mapping(loaded(row.get("payload")))
        kind = row.get("type")
        if kind in ("text", "reasoning"):
            words = row.get("text") if isinstance(row.get("text"), str) else self._resolved(node, payload, session)
            if words:
                node.parts.append(TextPart(words) if kind == "text" else ReasoningPart(words))
            if payload.get("redacted"):
                node.beside.append({"reasoning": "redacted"})
        elif kind == "tool_call":
            detail = present(server_executed=payload.get("server_executed"))
            given = json_in_text(payload.get("arguments"))
            asked = Asking(text(payload.get("tool_call_id")), text(payload.get("name")) or "", given, detail)
            node.calls.append(asked)
        elif kind == "tool_result":
            node.answers.append(self._answer(payload, session))
        elif kind == "attachment":
            for attachment in self._attachments([mapping(payload.get("attachment"))], session):
                attach(node, attachment)
        else:
            return False
        return True

    def _answer(self, payload: JsonObject, session: Session) -> Answer:
        output = payload.get("output")
        attached = self._attachments(
            [mapping(attachment) for attachment in sequence(payload.get("attachments"))], session
        )
        if attached:
            output = {"output": output, "attachments": [described(attachment) for attachment in attached]}
        return Answer(
            text(payload.get("tool_call_id")), text(payload.get("name")), output, text(payload.get("exception"))
        )

    def _resolved(self, node: Node, payload: JsonObject, session: Session) -> str:
        """A text that borrows from fragments."""
        words = []
        for piece in map(mapping, sequence(payload.get("text_ref"))):
            if isinstance(piece.get("literal"), str):
                words.append(piece["literal"])
                continue
            for fragment in self._found("fragments", "id", piece.get("fragment")):
                session.keep("fragment", fragment, is_new=session.is_new("fragment", fragment.get("id")))
                words.append(str(fragment.get("content") or ""))
                if (note := source_note(fragment.get("source"))) is not None:
                    node.files.append(note)
        return "".join(words)

    def _attachments(self, objects: list[JsonObject], session: Session) -> Iterator[JsonObject] | list[JsonObject]:
        found = []
        for each in objects:
            rows = self._found("attachments", "id", each.get("id"))
            for row in rows:
                session.keep("attachment", row, is_new=session.is_new("attachment", row.get("id")))
            found += rows or [each]
        return found

    def goes_on(self, hash: str, session: Session) -> bool:
        """Does an answer that breaks off here go on in another thread?"""
        below = self._found("messages", "parent_hash", hash) if self.is_there else []
        return any(row.get("role") != "user" and row.get("hash") not in session.parents for row in below)

    def orphans(self, session: Session) -> None:
        """Messages that no thread leads to."""
        for row in self._database.walk("SELECT * FROM messages ORDER BY rowid"):
            message = self._row("messages", row)
            if message.get("hash") not in self.seen:
                session.keep("message.without thread", message, is_mapped=False)
                for part in self._found("parts", "message_hash", message.get("hash"), "position"):
                    session.keep("part.without thread", part, is_mapped=False)


def _upwards(tip: str, parents: dict[str, str | None], until: Any) -> Iterator[str]:
    node: str | None = tip
    for _ in range(LONGEST_CHAIN):
        if node is None or node == until:
            return
        yield node
        node = parents.get(node)
