"""Sessions of Gemini CLI: chats as one document or as a log of changes, saved chats, and prompts
alone.

Its files lie at `tmp/<project>/chats/<file>`; what lies around them is read with them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from enum import Enum, auto
from hashlib import sha256
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from weft.exchange.importers.foreign_files import BOM, Record, document_elements, first_objects, read_beneath, records
from weft.exchange.importers.foreign_values import (
    canonical,
    json_value,
    mapping,
    millis,
    present,
    sequence,
    text,
    whole_number,
)
from weft.exchange.importers.gemini_cli_turns import TYPES, GeminiBuilder, GeminiTurn, Index, Indexer, classify
from weft.exchange.importers.native_turns import Entry, entry_of, walk_turns
from weft.exchange.importers.port import (
    NativeCompaction,
    NativeMessage,
    NativeSession,
    NativeTurn,
    Place,
    Report,
    Source,
    Transcript,
)
from weft.kernel.enums import AgentRole, MessageRole, MessageSource
from weft.ledger.model import TextPart

# --- The files of Gemini CLI, and what lies around them: `tmp/<project>/chats/<file>`.

CHATS = "chats"
STAMPED = re.compile(r"session-\d{4}-\d\d-\d\dT\d\d-\d\d-(.+)")
SMALL_BYTES = 1 << 20


def project_folder(path: Path) -> Path | None:
    """`tmp/<project>`, for a chat, a subagent's chat, a saved chat or the prompts."""
    for folder in path.parents[:3]:
        if folder.name == CHATS:
            return folder.parent
    return path.parent if path.parent.parent.name == "tmp" else None


def parent_session(path: Path) -> str | None:
    """Of a subagent's file: the session that started it."""
    return path.parent.name if path.parent.parent.name == CHATS else None


def workspace(path: Path, project_hash: str | None) -> str | None:
    """The folder that a project's chats are about, where it is written down."""
    project = project_folder(path)
    if project is None:
        return None
    root = _small_file(project / ".project_root", project)
    if root is not None and root.strip():
        return root.decode(errors="replace").strip()
    register = _small_file(project.parent.parent / "projects.json", project.parent.parent)
    if register is None:
        return None
    try:
        projects = mapping(mapping(json_value(register)).get("projects"))
    except ValueError:
        return None
    names = {project.name, project_hash}
    return next((folder for folder, name in projects.items() if name in names or _folder_hash(folder) in names), None)


def _folder_hash(folder: str) -> str:
    return sha256(folder.encode("utf-8", "surrogatepass")).hexdigest()


def _small_file(path: Path, root: Path) -> bytes | None:
    try:
        return read_beneath(path, root, SMALL_BYTES)
    except OSError:
        return None


def has_chat(path: Path, session: str) -> bool:
    """Is there a chat of a session whose prompts are logged here?"""
    folder = path.parent / CHATS
    try:
        stems = [text(file.stem) or "" for file in folder.iterdir()]
    except OSError:
        return False
    return any(stem == session or (STAMPED.fullmatch(stem) and stem.endswith(f"-{session[:8]}")) for stem in stems)


MESSAGE_SIGN = re.compile(rb'[,\[]\s*(\{\s*"(?:id|type|timestamp|role)"\s*:)')


def index_lines(source: Source, indexer: Indexer, report: Report) -> None:
    for record in records(source, report):
        _take_line(record, indexer, report)


def _take_line(record: Record, indexer: Indexer, report: Report) -> None:
    value = record.value
    kind, _ = classify(value)
    entry = entry_of(record, kind)
    if (target := text(value.get("$rewindTo"))) is not None:
        report.mapped["$rewindTo"] += 1
        indexer.rewind(target, record.line)
    elif entry.id is not None and "sessionId" not in value:
        indexer.add_message(value, entry)
    elif isinstance(facts := value.get("$set"), dict):
        report.mapped["$set"] += 1
        indexer.add_facts(facts)
        if isinstance(messages := facts.get("messages"), list):
            indexer.replace(messages, entry)
    elif text(value.get("sessionId")) is not None:
        report.mapped["session"] += 1
        indexer.add_facts(value)
        for number, message in enumerate(sequence(value.get("messages"))):
            if isinstance(message, dict):
                inner = classify(message)[0], text(message.get("id"))
                indexer.add_message(message, Entry(*inner, record.line, record.offset, record.end, number))
    else:
        report.kept["untyped"] += 1
        report.unknown["untyped"] += 1


def index_document(source: Source, indexer: Indexer, report: Report) -> None:
    """One object with its messages in a list. What is said of the session is one record, each message another."""
    report.found += 1
    report.mapped["session"] += 1
    for element in document_elements(source.path, "messages", MESSAGE_SIGN):
        value = element.value
        if element.name is not None:
            indexer.add_facts({element.name: value})
            continue
        report.found += 1
        if isinstance(value, dict):
            indexer.add_message(
                value, Entry(classify(value)[0], text(value.get("id")), None, element.offset, element.end)
            )
        else:
            report.damaged += 1
            damage = "is no object" if element.is_whole else "is cut or damaged"
            report.problem(None, f"the message at byte {element.offset} {damage}")


LOGGED_SIGN = re.compile(rb'[,\[]\s*(\{\s*"(?:sessionId|messageId|type)"\s*:)')


LoggedEntry = tuple[int, int, bytes, dict[str, Any]]
"""Offset, end, JSON text and value of a logged prompt."""


def saved_name(source: Source) -> str:
    return unquote(source.path.stem.removeprefix("checkpoint-"))


def saved_session(source: Source) -> str:
    """A saved conversation has no id: its project and its name stand for one."""
    return f"{source.path.parent.name}/{source.path.stem}"


def index_saved(source: Source, indexer: Indexer, report: Report) -> None:
    """The messages as the API has them, with a role each and no ids or times."""
    for element in document_elements(source.path, "history", MESSAGE_SIGN):
        report.found += 1
        value = element.value
        if element.name is not None:
            report.mapped["saved"] += 1
            indexer.add_facts({element.name: value})
        elif isinstance(value, dict):
            indexer.add_message(value, Entry(classify(value)[0], None, None, element.offset, element.end))
        else:
            report.damaged += 1
            report.problem(None, f"the message at byte {element.offset} is cut or damaged")


def read_log(source: Source, report: Report) -> Iterator[Transcript]:
    """Prompts alone, of every session of a project. Those whose chats are here too are left to these."""
    sessions: dict[str, list[LoggedEntry]] = {}
    for element in document_elements(source.path, sign=LOGGED_SIGN):
        report.found += 1
        value = element.value
        session = text(value.get("sessionId")) if isinstance(value, dict) else None
        if not isinstance(value, dict):
            report.damaged += 1
            report.problem(None, f"the prompt at byte {element.offset} is cut or damaged")
        elif session is None or text(value.get("message")) is None or value.get("type") != "user":
            report.kept["log.other"] += 1
            report.unknown["log.other"] += 1
        else:
            sessions.setdefault(session, []).append((element.offset, element.end, element.data, value))
    folder = workspace(source.path, None)
    for session, entries in sessions.items():
        if has_chat(source.path, session):
            report.kept["log.prompt"] += len(entries)
            continue
        report.mapped["log.prompt"] += len(entries)
        turns = [_logged_prompt(session, number, entry, folder) for number, entry in enumerate(entries)]
        raw = b"".join(entry[2].replace(b"\n", b" ") + b"\n" for entry in entries)
        described = NativeSession(id=session, workspace=folder, created=turns[0].started)
        yield Transcript(session=described, turns=turns, raw=raw)


def _logged_prompt(session: str, number: int, entry: LoggedEntry, folder: str | None) -> NativeTurn:
    offset, end, _, value = entry
    id, words, time = whole_number(value.get("messageId")), str(value["message"]), millis(value.get("timestamp"))
    message = NativeMessage(
        role=MessageRole.USER, parts=(TextPart(words),), at=time, source=MessageSource.HUMAN, metadata={"log": id}
    )
    return NativeTurn(
        key=f"{session}#log{number}",
        records=(canonical(["log", session, number, words]),),
        items=(message,),
        parent=number - 1 if number else None,
        started=time,
        ended=time,
        workspace=folder,
        offset=offset,
        end=end,
    )


# --- Gemini CLI: what its files are, and how a chat becomes turns.


class StorageForm(Enum):
    DOCUMENT = auto()
    LINES = auto()
    SAVED = auto()
    LOG = auto()


DOCUMENT = re.compile(rb"\s*\{\s*\"")
LOGGED = re.compile(rb'\s*\[\s*\{(?>[^{}]*?"sessionId"\s*:)[^{}]*"messageId"\s*:')
CONTENT = re.compile(rb'\s*(?:\{\s*"history"\s*:\s*)?\[\s*\{\s*"(?:role|parts)"\s*:')


class GeminiCli:
    origin = "gemini-cli"
    mapping = 1

    def places(self, home: Path, environment: Mapping[str, str]) -> list[Place]:
        folder = environment.get("GEMINI_CLI_HOME")
        return [Place((Path(folder) if folder else home) / ".gemini" / "tmp", "Gemini CLI")]

    def recognises(self, source: Source) -> bool:
        return container(source) is not None

    def is_part(self, source: Source) -> bool:
        return False

    def read(self, source: Source, report: Report) -> Iterator[Transcript]:
        kind = container(source)
        if kind is StorageForm.LOG:
            yield from read_log(source, report)
            return
        fallback = STAMPED.fullmatch(source.path.stem)
        indexer = Indexer(report, fallback[1] if fallback else source.path.stem)
        if kind is StorageForm.SAVED:
            indexer.add_facts({"sessionId": saved_session(source)})
            index_saved(source, indexer, report)
        elif kind is StorageForm.DOCUMENT:
            index_document(source, indexer, report)
        else:
            index_lines(source, indexer, report)
        index = indexer.finish()
        if report.found:
            session = session_of(index, indexer.session_id, source, is_saved=kind is StorageForm.SAVED)
            yield Transcript(session=session, turns=_turns(source, indexer, session, report))


def container(source: Source) -> StorageForm | None:
    head = source.head.removeprefix(BOM)
    if LOGGED.match(head):
        return StorageForm.LOG
    if CONTENT.match(head):
        return StorageForm.SAVED if source.path.name.startswith("checkpoint-") else None
    objects, is_named_lines = first_objects(head), source.path.suffix == ".jsonl"
    if any(_is_line(value) for value in objects) and (is_named_lines or len(objects) > 1):
        return StorageForm.LINES
    if not DOCUMENT.match(head) or not _is_document(head, len(head) >= source.size):
        return None
    return StorageForm.LINES if is_named_lines else StorageForm.DOCUMENT


def _is_line(value: dict[str, Any]) -> bool:
    """What begins a log of changes, or changes it, and is in no other tool's files."""
    is_header = text(value.get("sessionId")) is not None and text(value.get("projectHash")) is not None
    is_change = len(value) == 1 and (isinstance(value.get("$set"), dict) or text(value.get("$rewindTo")) is not None)
    is_answer = value.get("type") == "gemini" and "timestamp" in value and text(value.get("id")) is not None
    return (is_header and "type" not in value) or is_change or is_answer


def _is_document(head: bytes, is_whole: bool) -> bool:
    if is_whole:
        try:
            value = mapping(json_value(head))
        except ValueError:
            value = {}
        if value:
            messages = value.get("messages")
            is_named = text(value.get("sessionId")) is not None and isinstance(messages, list)
            types = {text(mapping(message).get("type")) for message in sequence(messages)}
            return is_named and ("projectHash" in value or bool(types & TYPES))
    is_named = b'"sessionId"' in head and b'"projectHash"' in head
    return is_named or (b'"messages"' in head and re.search(rb'"type"\s*:\s*"gemini"', head) is not None)


def session_of(index: Index, id: str, source: Source, is_saved: bool) -> NativeSession:
    facts = index.facts
    is_subagent = facts.get("kind") == "subagent"
    return NativeSession(
        id=id,
        title=text(facts.get("summary")) or (saved_name(source) if is_saved else None),
        workspace=workspace(source.path, text(facts.get("projectHash"))),
        created=millis(facts.get("startTime")),
        told_at=millis(facts.get("lastUpdated")),
        parent=parent_session(source.path) if is_subagent else None,
        metadata=present(
            project=facts.get("projectHash"),
            directories=facts.get("directories"),
            kind=facts.get("kind"),
            extension=facts.get("activeExtensionName"),
            scratchpad=facts.get("memoryScratchpad"),
        ),
    )


def _turns(source: Source, indexer: Indexer, session: NativeSession, report: Report) -> Iterator[NativeTurn]:
    index = indexer.index
    is_subagent = index.facts.get("kind") == "subagent"
    last = len(index.plan.turns) - 1

    def builder_of(number: int, planned: GeminiTurn) -> GeminiBuilder:
        summary = index.plan.entries[planned.entries[0]] if planned.is_compaction else None
        return GeminiBuilder(session=session.id, is_subagent=is_subagent, summary_entry=summary)

    def turn_of(number: int, planned: GeminiTurn, builder: GeminiBuilder) -> NativeTurn:
        return builder.turn(
            planned,
            index.plan.entries_of(planned),
            names=tuple(indexer.name(entry) for entry in planned.entries if index.plan.entries[entry].id),
            compaction=_compaction(index, planned, builder),
            closed=number < last or planned.is_compaction or builder.is_interrupted,
            role=AgentRole.WORKER if is_subagent else AgentRole.UNIFIED,
            workspace=session.workspace,
        )

    return walk_turns(source, index.plan, report, builder_of, turn_of)


def _compaction(index: Index, planned: GeminiTurn, builder: GeminiBuilder) -> NativeCompaction | None:
    if not planned.is_compaction:
        return None
    before, after = planned.sizes or (None, None)
    return NativeCompaction(
        summary=builder.summary or "",
        through=index.plan.last_summarised(planned),
        first_kept=planned.first_kept,
        tokens_before=before,
        tokens_after=after,
    )
