"""Transcripts of agents, and what a person exports.

Transcripts lie in `agent-transcripts/<session>/<session>.jsonl`, subagents in a folder beside them; before that they
were plain texts. An export is a Markdown page, `**User**` and `**Cursor**` by turns under rules. It names no session
and no times but that of the export, in the words of the person's own language.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path

from msgspec import Struct

from weft.exchange.importers.cursor.dialogue import Dialogue, Ending, Message, TranscriptRecord
from weft.exchange.importers.cursor.homes import UUID, transcript_id
from weft.exchange.importers.port import NativeSession, Report, Source, Transcript
from weft.exchange.importers.records.jsonl import Record, read_whole, records, text_lines
from weft.exchange.importers.records.values import mapping, text

HEAD = re.compile(
    r"(?:\ufeff)?# (?P<title>[^\n]*)\r?\n_(?P<when>[^\n]{4,200}?) from Cursor \((?P<version>[\w.+-]{1,40})\)_\r?\n"
)
SPEAKER = re.compile(r"^---\r?\n\r?\n\*\*(User|Cursor)\*\*\r?\n(?:\r?\n)?", re.MULTILINE)
EXPORT_ROLES = {"User": "user", "Cursor": "assistant"}


def is_export(head: bytes) -> bool:
    return HEAD.match(head.decode("utf-8", "replace")) is not None


def read_export(source: Source, report: Report) -> Iterator[Transcript]:
    words = read_whole(source).decode("utf-8", "surrogateescape")
    head = HEAD.match(words)
    if head is None:
        report.problem(1, "this is no page that Cursor exported")
        return
    report.found += 1
    report.mapped["export"] += 1
    named = f"{head['title']}\n{head['when']}".encode("utf-8", "surrogateescape")
    session = NativeSession(
        id=f"export-{sha256(named).hexdigest()[:24]}",
        title=head["title"] or None,
        version=head["version"],
        metadata={"exported": head["when"]},
    )
    messages = list(_exported_messages(words, report))
    yield Transcript(session=session, turns=Dialogue(session, None).turns(messages))


def _exported_messages(words: str, report: Report) -> Iterator[Message]:
    found = list(SPEAKER.finditer(words))
    ends = [*(match.start() for match in found[1:]), len(words)]
    for match, end in zip(found, ends, strict=True):
        role = EXPORT_ROLES[match[1]]
        report.found += 1
        report.mapped[role] += 1
        start = _byte_size(words[: match.start()])
        yield Message(role, words[match.end() : end].strip(), start, start + _byte_size(words[match.start() : end]))


def _byte_size(words: str) -> int:
    return len(words.encode("utf-8", "surrogateescape"))


ROLES = frozenset({"user", "assistant", "system", "tool"})
MARK = re.compile(r"(user|assistant|A):(?:[ \t](.*))?|\[(Thinking|Tool call|Tool result)\][ \t]*(.*)", re.DOTALL)
"""What begins a message, or a block of one, in a plain text."""


def read_transcript(source: Source, report: Report) -> Iterator[Transcript]:
    session = session_of(source.path)
    transcript_records = _lines(source, report)
    yield Transcript(session=session, turns=Dialogue(session, _identity(session)).turns(transcript_records))


def read_text(source: Source, report: Report) -> Iterator[Transcript]:
    session = session_of(source.path)
    yield Transcript(session=session, turns=Dialogue(session, _identity(session)).turns(_marked(source, report)))


def session_of(path: Path) -> NativeSession:
    """A subagent's lies in a folder of its parent's."""
    is_child = path.parent.name == "subagents"
    parent = path.parent.parent.name if is_child else None
    return NativeSession(id=transcript_id(path), parent=parent, metadata=_project(path))


def _project(path: Path) -> dict[str, str] | None:
    """The folder it ran in, as Cursor spells it: its separators are lost."""
    parts = path.parts
    at = parts.index("projects") if "projects" in parts and "agent-transcripts" in parts else None
    return None if at is None or at + 1 >= len(parts) else {"project": parts[at + 1]}


def _identity(session: NativeSession) -> str | None:
    """Two sessions that begin with the same words are two; a name that is no id tells nothing."""
    return session.id if UUID.fullmatch(session.id) else None


def _lines(source: Source, report: Report) -> Iterator[TranscriptRecord]:
    for record in records(source, report):
        transcript_record = _transcript_record(record)
        kind = text(record.value.get("role")) or text(record.value.get("type")) or "none"
        if transcript_record is None:
            report.kept[kind] += 1
            report.unknown[kind] += 1
            continue
        report.mapped[kind] += 1
        yield transcript_record


def _transcript_record(record: Record) -> TranscriptRecord | None:
    value = record.value
    role, kind = text(value.get("role")), value.get("type")
    if role in ROLES:
        message = mapping(value.get("message"))
        content = message.get("content", value.get("content"))
        fields = {name: each for name, each in value.items() if name not in ("role", "message", "content", "type")}
        fields |= {name: each for name, each in message.items() if name not in ("role", "content")}
        return Message(role or "", content, record.offset, record.end, fields)
    if kind == "turn_ended":
        status = text(value.get("status")) or "ended"
        failed = status in ("error", "failed")
        return Ending(status, record.offset, record.end, error=text(value.get("error")) or status if failed else None)
    if kind == "error":
        return Ending("error", record.offset, record.end, error=text(value.get("error")) or "error", closes=False)
    return None


class _Block(Struct):
    """A part of a message, line by line."""

    kind: str
    lines: list[str]


def _marked(source: Source, report: Report) -> Iterator[TranscriptRecord]:
    """Messages of a plain text, and what they are made of: words, thoughts, calls and their outcomes."""
    role, start, at = "", 0, 0
    blocks: list[_Block] = []
    with source.path.open("rb") as file:
        for line in text_lines(file):
            words = line.decode("utf-8", "surrogateescape").rstrip("\r\n")
            mark = MARK.fullmatch(words)
            if mark is not None and mark[1] is not None:
                if role:
                    yield _message(role, blocks, start, at, report)
                role, start, blocks = (
                    "user" if mark[1] == "user" else "assistant",
                    at,
                    [_Block("text", [mark[2] or ""])],
                )
            elif mark is not None:
                blocks.append(_Block(mark[3], [mark[4]]))
            elif blocks:
                blocks[-1].lines.append(words)
            at += len(line)
    if role:
        yield _message(role, blocks, start, at, report)


def _message(role: str, blocks: list[_Block], start: int, end: int, report: Report) -> Message:
    report.found += 1
    report.mapped[role] += 1
    texts = [(block.kind, "\n".join(block.lines).strip()) for block in blocks]
    return Message(role, [_block(kind, words) for kind, words in texts if words], start, end)


def _block(kind: str, words: str) -> dict[str, object]:
    name, _, rest = words.partition("\n")
    if kind == "Thinking":
        return {"type": "thinking", "thinking": words}
    if kind == "Tool call":
        name, _, beside = name.strip().partition(" ")
        return {"type": "tool_use", "name": name, "input": _arguments(beside, rest)}
    if kind == "Tool result":
        return {"type": "tool_result", "name": name.strip() or None, "content": rest.strip()}
    return {"type": "text", "text": words}


def _arguments(beside: str, rest: str) -> dict[str, str] | str:
    """`name: value` on lines of their own; what looks otherwise stays as it is."""
    lines: dict[str, list[str]] = {}
    for line in rest.splitlines():
        name, colon, value = line.strip().partition(": ")
        if colon and re.fullmatch(r"\w+", name):
            lines[name] = [value]
        elif lines and line.strip():
            lines[next(reversed(lines))].append(line)
        elif line.strip():
            return f"{beside}\n{rest}".strip()
    return {name: "\n".join(value) for name, value in lines.items()} or beside
