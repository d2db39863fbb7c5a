"""Projects: what a person has told Claude to know and do in all conversations of one."""

from __future__ import annotations

from typing import Any

from weft.exchange.importers.exports import Conversation
from weft.exchange.importers.port import Report
from weft.exchange.importers.transcript import NativeMessage, NativeSession, NativeTurn, Transcript
from weft.exchange.importers.values import canonical, mapping, millis, present, sequence, text
from weft.kernel.enums import FileKind, MessageRole, MessageSource
from weft.ledger.model import FileNote, TextPart


def is_project(value: dict[str, Any]) -> bool:
    is_named = text(value.get("uuid")) is not None and "name" in value
    return is_named and isinstance(value.get("docs"), list) and "chat_messages" not in value


def project_session(id: str) -> str:
    return f"project/{id}"


def project(conversation: Conversation, report: Report) -> Transcript:
    """One turn without an answer: the instructions, and each document."""
    value = conversation.value
    id = text(value.get("uuid")) or ""
    docs = [doc for doc in sequence(value.get("docs")) if isinstance(doc, dict)]
    spoiled = len(sequence(value.get("docs"))) - len(docs)
    report.found += 1 + len(docs) + spoiled
    report.mapped["project"] += 1
    report.mapped["project.document"] += len(docs)
    report.damaged += spoiled
    created = millis(value.get("created_at"))
    session = NativeSession(
        id=project_session(id),
        title=text(value.get("name")),
        created=created,
        archived=value.get("archived_at") is not None,
        told_at=millis(value.get("updated_at")),
        metadata=present(description=value.get("description"), private=value.get("is_private")),
    )
    words = text(value.get("prompt_template")) or ""
    items = [_message(id, words, created), *(_document(doc, id) for doc in docs)]
    reduced = [[doc.get("uuid"), doc.get("filename"), doc.get("content")] for doc in docs]
    turn = NativeTurn(
        key=f"project/{id}",
        records=(canonical(["project", id, words, reduced]),),
        items=tuple(items),
        started=created,
        ended=millis(value.get("updated_at")) or created,
        end=len(conversation.data),
    )
    return Transcript(session=session, turns=[turn], raw=conversation.data)


def _message(native: str, words: str, at: int | None, **more: Any) -> NativeMessage:
    parts = (TextPart(words),) if words else ()
    return NativeMessage(role=MessageRole.SYSTEM, parts=parts, native=native, at=at, source=MessageSource.EVENT, **more)


def _document(doc: dict[str, Any], project: str) -> NativeMessage:
    name, id = text(doc.get("filename")), text(doc.get("uuid"))
    notes = () if name is None else (FileNote(kind=FileKind.ATTACHED, path=name),)
    native = id or f"{project}/{name}"
    return _message(native, text(doc.get("content")) or "", millis(doc.get("created_at")), files=notes)


def project_of(value: dict[str, Any]) -> Any:
    """The project that a conversation belongs to, as it tells."""
    told = mapping(value.get("project"))
    return present(uuid=told.get("uuid") or value.get("project_uuid"), name=told.get("name"))
