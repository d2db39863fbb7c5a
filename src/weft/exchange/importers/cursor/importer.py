"""The importer of Cursor: one mapping for bubbles, another for messages of roles and blocks.

Messages of roles and blocks stand in transcripts of agents, in what a person exports, and in
`store.db` of the command line's agent.
"""

from __future__ import annotations

import re
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from enum import Enum, auto
from hashlib import sha256
from pathlib import Path
from typing import Any

from msgspec import UNSET, Struct, field
from msgspec.structs import replace

from weft.exchange.importers.cursor.bubbles import (
    SPAWNERS,
    decode_json_value,
    image_url,
    path_of,
    plain_name,
    tool_files,
    value_in_text,
    wire_fields,
)
from weft.exchange.importers.cursor.database import (
    CHATS,
    COMPOSERS,
    CONFIGS,
    HEADERS,
    TRANSCRIPTS,
    UUID,
    RowReader,
    is_in_database,
    read_database,
    session_without_header,
    transcript_id,
    transcripts_of,
)
from weft.exchange.importers.foreign_files import (
    MAGIC,
    UNREADABLE,
    Database,
    Record,
    RowLines,
    first_objects,
    open_beneath,
    open_database,
    peek,
    read_whole,
    records,
    text_lines,
)
from weft.exchange.importers.foreign_values import canonical, json_value, mapping, millis, present, sequence, text
from weft.exchange.importers.port import (
    HEAD_BYTES,
    Item,
    NativeCall,
    NativeCompaction,
    NativeMessage,
    NativeSession,
    NativeTurn,
    Place,
    Report,
    Source,
    Transcript,
)
from weft.kernel.enums import AgentRole, FileKind, MessageRole, MessageSource, ToolCallStatus
from weft.ledger.model import FileNote, ImagePart, Part, ReasoningPart, TextPart

# --- Messages of roles and blocks, as transcripts and stores have them, as turns: a prompt up to the next one.

QUERY = "user_query"
OPENED = re.compile(r"<([A-Za-z_][\w-]{0,60})(?:\s[^>\n]{0,400})?>")
CLOSED = re.compile(r"</([A-Za-z_][\w-]{0,60})>")
WORKSPACE_LINE = re.compile(r"^Workspace Path: (.+)$", re.MULTILINE)
TIME = re.compile(r"([A-Z][a-z]{2,8} \d{1,2}, \d{4}, \d{1,2}:\d\d [AP]M) \(UTC([+-]\d{1,2})?(?::(\d\d))?\)")
"""Such as `Sunday, Apr 26, 2026, 9:53 PM (UTC-4)`."""
FILE = re.compile(r"<(?:file|code_selection|file_contents)(?:\s[^<>\n]{0,400}?path=\"([^\"<\n]+)\"[^<>\n]*)?>([^<\n]*)")


class Prompt(Struct):
    """A prompt, unwrapped."""

    words: str
    context: dict[str, Any] = field(default_factory=dict)
    """By tag, what stands around them."""
    is_injected: bool = False
    """No person's words are in it."""
    at: int | None = None
    literal_time: str | None = None
    workspace: str | None = None
    paths: list[str] = field(default_factory=list)


def unwrapped_prompt(words: str) -> Prompt:
    tagged, outside_query = _without_tags(words, QUERY)
    queries = [_query(tag_text) for _, tag_text in tagged]
    context: dict[str, Any] = {}
    tagged_texts, untagged = _without_tags(outside_query)
    for name, tag_text in tagged_texts:
        context.setdefault(name, []).append(tag_text.strip())
    untagged = untagged.strip()
    if not queries and (untagged or not context):
        return Prompt(words)
    if untagged:
        context["text"] = [untagged]
    timestamp = "\n".join(context.get("timestamp", ()))
    path = WORKSPACE_LINE.search("\n".join(context.get("user_info", ())))
    return Prompt(
        words="\n\n".join(queries) if queries else words,
        context=context if queries else {},
        is_injected=not queries,
        at=_prompt_time(timestamp),
        literal_time=timestamp if timestamp and _prompt_time(timestamp) is None else None,
        workspace=path[1].strip() if path else None,
        paths=_attached_paths("\n".join(context.get("attached_files", ()))),
    )


def _without_tags(words: str, only: str | None = None) -> tuple[list[tuple[str, str]], str]:
    """What stands between tags of one name, with the name, and the text without it. A tag that is never closed is
    text. `only`: tags of this name, and without anything else in them."""
    ends: dict[str, deque[int]] = defaultdict(deque)
    for closing in CLOSED.finditer(words):
        ends[closing[1]].append(closing.start())
    tagged, untagged, copied_until, position = [], [], 0, 0
    while (opening := OPENED.search(words, position)) is not None:
        name, places = opening[1], ends[opening[1]]
        while places and places[0] < opening.end():
            places.popleft()
        if not places or (only is not None and opening[0] != f"<{only}>"):
            position = opening.start() + 1
            continue
        tagged.append((name, words[opening.end() : places[0]]))
        untagged.append(words[copied_until : opening.start()])
        copied_until = position = places[0] + len(f"</{name}>")
    return tagged, "".join(untagged) + words[copied_until:]


def _query(tag_text: str) -> str:
    """Without the white space and the line ends next to its tags."""
    words = tag_text.lstrip(" \t").removeprefix("\n")
    return words.rstrip(" \t").removesuffix("\n")


def _attached_paths(attached: str) -> list[str]:
    paths = (path or words.strip() for path, words in FILE.findall(attached))
    return list(dict.fromkeys(path for path in paths if path and len(path) < 1000))


def _prompt_time(words: str) -> int | None:
    """To the minute, as it was written, with its zone."""
    match = TIME.search(words)
    if match is None:
        return None
    for form in ("%b %d, %Y, %I:%M %p", "%B %d, %Y, %I:%M %p"):
        try:
            local = datetime.strptime(match[1], form).replace(tzinfo=UTC)
        except ValueError:
            continue
        hours, minutes = int(match[2] or 0), int(match[3] or 0)
        away = timedelta(hours=hours, minutes=-minutes if hours < 0 else minutes)
        return round((local - away).timestamp() * 1000)
    return None


CALLS = frozenset({"tool_use", "tool_call", "tool-call"})
RESULTS = frozenset({"tool_result", "tool-result"})
THOUGHTS = frozenset({"thinking", "reasoning", "redacted-reasoning", "redacted_thinking"})
NOT_RECORDED = {"outcome": "not recorded"}


class Message(Struct):
    """One message, with where it lies in its source."""

    role: str
    content: Any
    offset: int
    end: int
    fields: dict[str, Any] = field(default_factory=dict)
    """What stands beside its content."""

    @property
    def blocks(self) -> list[dict[str, Any]]:
        if isinstance(self.content, str):
            return [{"type": "text", "text": self.content}]
        listed = self.content if isinstance(self.content, list) else [self.content]
        return [{"type": "text", "text": item} if isinstance(item, str) else _block(item) for item in listed]


def _block(value: Any) -> dict[str, Any]:
    """A block; a kind that is no word is none."""
    block = mapping(value)
    return block if isinstance(block.get("type", ""), str) else {**block, "type": ""}


class Ending(Struct):
    """The turn under way is over, or something in it failed."""

    status: str
    offset: int
    end: int
    error: str | None = None
    closes: bool = True


TranscriptRecord = Message | Ending


class DialogueTurn(Struct):
    """A turn under way."""

    number: int
    """The place of its first message."""
    offset: int
    end: int = 0
    items: list[Item] = field(default_factory=list)
    records: list[bytes] = field(default_factory=list)
    times: list[int] = field(default_factory=list)
    is_prompted: bool = False
    is_ended: bool = False
    error: str | None = None
    interrupted: bool = False
    workspace: str | None = None
    summary: str | None = None


class Dialogue:
    """Makes the turns of one session while its messages are walked."""

    def __init__(self, session: NativeSession, identity: str | None, *, model: str | None = None) -> None:
        self._session, self._identity, self._model = session, identity, model
        self._dialogue_turn: DialogueTurn | None = None
        self._turn_count = 0
        self._tag = 0

    def turns(self, records: Iterable[TranscriptRecord]) -> Iterator[NativeTurn]:
        for number, record in enumerate(records):
            if isinstance(record, Ending):
                self._add_ending(number, record)
                continue
            prompt = self._prompt(record)
            if self._begins(record, prompt):
                if self._dialogue_turn is not None:
                    yield self._finish_turn(is_last=False)
                self._dialogue_turn = DialogueTurn(number, record.offset)
            self._add_message(self._dialogue_turn or self._begin_turn(number, record.offset), record, prompt)
        if self._dialogue_turn is not None:
            yield self._finish_turn(is_last=True)

    def _begin_turn(self, number: int, offset: int) -> DialogueTurn:
        self._dialogue_turn = DialogueTurn(number, offset)
        return self._dialogue_turn

    def _prompt(self, message: Message) -> Prompt | None:
        """None: it is no prompt, but an answer or the outcome of tools."""
        if message.role != "user":
            return None
        texts = [
            words for block in message.blocks if block.get("type") == "text" and (words := text(block.get("text")))
        ]
        pictured = any(block.get("type") in ("image", "file") for block in message.blocks)
        return unwrapped_prompt("\n".join(texts)) if texts or pictured else None

    def _begins(self, message: Message, prompt: Prompt | None) -> bool:
        """What is put before a prompt belongs to it; between a call and its answer, to the turn under way."""
        dialogue_turn = self._dialogue_turn
        if prompt is None or dialogue_turn is None:
            return False
        if is_summary(message):
            return True
        if not prompt.is_injected:
            return dialogue_turn.is_prompted or dialogue_turn.is_ended
        return dialogue_turn.is_prompted and not isinstance(dialogue_turn.items[-1], NativeCall)

    def _add_message(self, dialogue_turn: DialogueTurn, message: Message, prompt: Prompt | None) -> None:
        dialogue_turn.end = message.end
        dialogue_turn.records.append(canonical([message.role, _message_identity(message)]))
        if prompt is not None:
            self._add_prompt(dialogue_turn, message, prompt)
        elif message.role == "assistant":
            dialogue_turn.items += self._answer(message)
        elif message.role == "system":
            dialogue_turn.items.append(_system(message))
        for block in message.blocks:
            if block.get("type") in RESULTS:
                _settle(dialogue_turn.items, block)

    def _add_prompt(self, dialogue_turn: DialogueTurn, message: Message, prompt: Prompt) -> None:
        dialogue_turn.is_prompted = dialogue_turn.is_prompted or not (prompt.is_injected or is_summary(message))
        dialogue_turn.workspace = prompt.workspace or dialogue_turn.workspace
        if prompt.at is not None:
            dialogue_turn.times.append(prompt.at)
        if is_summary(message) and self._turn_count:
            dialogue_turn.summary, dialogue_turn.is_prompted = prompt.words, True
            return
        parts: list[Part] = [TextPart(prompt.words)] if prompt.words else []
        is_event = prompt.is_injected or is_summary(message)
        human = MessageSource.AGENT if self._session.parent is not None else MessageSource.HUMAN
        dialogue_turn.items.append(
            NativeMessage(
                role=MessageRole.USER,
                parts=(*parts, *_images(message)),
                at=prompt.at,
                literal_time=prompt.literal_time,
                source=MessageSource.EVENT if is_event else human,
                context=prompt.context or None,
                metadata=_message_metadata(message),
                files=tuple(FileNote(kind=FileKind.ATTACHED, path=path) for path in prompt.paths),
            )
        )

    def _answer(self, message: Message) -> list[Item]:
        parts: list[Part] = []
        calls: list[Item] = []
        for block in message.blocks:
            kind = block.get("type")
            if kind == "text" and (words := text(block.get("text"))):
                parts.append(TextPart(words))
            elif kind in THOUGHTS and (words := text(block.get("thinking")) or text(block.get("text"))):
                parts.append(ReasoningPart(words))
            elif kind in CALLS:
                calls.append(_call(block))
        options = mapping(mapping(message.fields.get("providerOptions")).get("cursor"))
        answer = NativeMessage(
            role=MessageRole.ASSISTANT,
            parts=(*parts, *_images(message)),
            model=text(options.get("modelName")) or text(message.fields.get("model")) or self._model,
            metadata=_message_metadata(message),
        )
        return [answer, *calls]

    def _add_ending(self, number: int, ending: Ending) -> None:
        dialogue_turn = self._dialogue_turn or self._begin_turn(number, ending.offset)
        dialogue_turn.end, dialogue_turn.is_ended = ending.end, dialogue_turn.is_ended or ending.closes
        dialogue_turn.records.append(canonical(["ended", ending.status, ending.error]))
        dialogue_turn.error = ending.error or dialogue_turn.error
        dialogue_turn.interrupted = dialogue_turn.interrupted or ending.status in (
            "aborted",
            "cancelled",
            "canceled",
            "interrupted",
        )

    def _finish_turn(self, is_last: bool) -> NativeTurn:
        dialogue_turn = self._dialogue_turn
        assert dialogue_turn is not None
        self._dialogue_turn, number = None, self._turn_count
        self._turn_count += 1
        compaction = None if dialogue_turn.summary is None else NativeCompaction(summary=dialogue_turn.summary)
        records = (
            dialogue_turn.records
            if self._identity is None
            else [canonical(["session", self._identity, dialogue_turn.number]), *dialogue_turn.records]
        )
        return NativeTurn(
            key=f"{self._session.id}#{dialogue_turn.number}",
            records=tuple(records),
            items=tuple(_items_of(dialogue_turn)),
            parent=number - 1 if number else None,
            compaction=compaction,
            closed=not is_last or dialogue_turn.is_ended,
            error=dialogue_turn.error,
            interrupted=dialogue_turn.interrupted and dialogue_turn.error is None,
            started=min(dialogue_turn.times, default=None),
            ended=max(dialogue_turn.times, default=None),
            role=AgentRole.WORKER if self._session.parent is not None else AgentRole.UNIFIED,
            workspace=dialogue_turn.workspace or self._session.workspace,
            offset=dialogue_turn.offset,
            end=dialogue_turn.end,
        )


def is_summary(message: Message) -> bool:
    return mapping(mapping(message.fields.get("providerOptions")).get("cursor")).get("isSummary") is True


def _message_identity(message: Message) -> Any:
    """What makes the identity of a message: its blocks, without what providers put beside them."""
    beside = ("providerOptions", "providerMetadata", "signature", "experimental_content", "metadata")
    return [{name: value for name, value in block.items() if name not in beside} for block in message.blocks]


def _images(message: Message) -> list[ImagePart]:
    images = []
    for block in message.blocks:
        if block.get("type") == "image":
            source = mapping(block.get("source"))
            mime = text(block.get("mimeType")) or text(block.get("mediaType")) or text(source.get("media_type"))
            url = image_url(block.get("image") or block.get("data") or source.get("data"), mime)
            images += [ImagePart(url)] if url is not None else []
    return images


def _system(message: Message) -> NativeMessage:
    words = [block_text for block in message.blocks if (block_text := text(block.get("text")))]
    return NativeMessage(
        role=MessageRole.SYSTEM, parts=tuple(TextPart(block_text) for block_text in words), source=MessageSource.EVENT
    )


def _message_metadata(message: Message) -> dict[str, Any] | None:
    """Blocks of kinds that nobody knows, and what a version to come puts beside a message."""
    known_kinds = {"text", "image", *CALLS, *RESULTS, *THOUGHTS}
    unknown_blocks = [block for block in message.blocks if block and block.get("type") not in known_kinds]
    fields = {name: value for name, value in message.fields.items() if name not in ("providerOptions", "model")}
    request = mapping(mapping(message.fields.get("providerOptions")).get("cursor")).get("requestId")
    return present(blocks=unknown_blocks, beside=fields, request=request)


def _call(block: dict[str, Any]) -> NativeCall:
    arguments = next((block[name] for name in ("input", "args", "arguments") if name in block), None)
    return NativeCall(
        id=text(block.get("id")) or text(block.get("toolCallId")) or "",
        name=text(block.get("name")) or text(block.get("toolName")) or "",
        arguments=value_in_text(arguments),
    )


def _settle(items: list[Item], block: dict[str, Any]) -> None:
    """An outcome goes to the call that it names; where calls have no ids, to the first that waits for one."""
    id, name = (
        text(block.get("tool_use_id")) or text(block.get("toolCallId")),
        text(block.get("name")) or text(block.get("toolName")),
    )
    waiting = [
        (position, item) for position, item in enumerate(items) if isinstance(item, NativeCall) and item.status is None
    ]
    exact = [(position, call) for position, call in waiting if id is not None and call.id == id]
    loose = [(position, call) for position, call in waiting if not call.id and name in (None, call.name)]
    for position, call in (exact or loose)[:1]:
        items[position] = _settled(call, block)


def _settled(call: NativeCall, block: dict[str, Any]) -> NativeCall:
    result = next((block[name] for name in ("result", "content", "output") if name in block), UNSET)
    failed = block.get("is_error") is True or block.get("isError") is True
    return replace(
        call,
        result=_plain(result),
        error=str(_plain(result)) if failed else None,
        status=ToolCallStatus.ERROR if failed else ToolCallStatus.OK,
        spawned=text(mapping(value_in_text(result)).get("agentId"))
        if plain_name(call.name) in SPAWNERS and result is not UNSET
        else None,
        files=() if failed else tool_files(call.name, call.arguments),
    )


def _plain(result: Any) -> Any:
    """Blocks of text alone are the text that they hold."""
    blocks = [mapping(item) for item in sequence(result)]
    if blocks and all(block.get("type") == "text" and isinstance(block.get("text"), str) for block in blocks):
        return "\n".join(block["text"] for block in blocks)
    return result


def _items_of(dialogue_turn: DialogueTurn) -> list[Item]:
    """A call without an outcome was carried out if the agent went on after it: transcripts leave outcomes out."""
    answers = [
        position
        for position, item in enumerate(dialogue_turn.items)
        if isinstance(item, NativeMessage) and item.role == MessageRole.ASSISTANT
    ]
    went_on = max(answers, default=-1)
    is_over = dialogue_turn.is_ended and dialogue_turn.error is None and not dialogue_turn.interrupted
    return [
        replace(item, status=ToolCallStatus.OK, detail=NOT_RECORDED, files=tool_files(item.name, item.arguments))
        if isinstance(item, NativeCall) and item.status is None and (position < went_on or is_over)
        else item
        for position, item in enumerate(dialogue_turn.items)
    ]


# --- Transcripts of agents, and what a person exports.

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
    name_bytes = f"{head['title']}\n{head['when']}".encode("utf-8", "surrogateescape")
    session = NativeSession(
        id=f"export-{sha256(name_bytes).hexdigest()[:24]}",
        title=head["title"] or None,
        version=head["version"],
        metadata={"exported": head["when"]},
    )
    messages = list(_exported_messages(words, report))
    yield Transcript(session=session, turns=Dialogue(session, None).turns(messages))


def _exported_messages(words: str, report: Report) -> Iterator[Message]:
    speakers = list(SPEAKER.finditer(words))
    ends = [*(match.start() for match in speakers[1:]), len(words)]
    for match, end in zip(speakers, ends, strict=True):
        role = EXPORT_ROLES[match[1]]
        report.found += 1
        report.mapped[role] += 1
        start = _byte_size(words[: match.start()])
        yield Message(role, words[match.end() : end].strip(), start, start + _byte_size(words[match.start() : end]))


def _byte_size(words: str) -> int:
    return len(words.encode("utf-8", "surrogateescape"))


TRANSCRIPT_ROLES = frozenset({"user", "assistant", "system", "tool"})
MARK = re.compile(r"(user|assistant|A):(?:[ \t](.*))?|\[(Thinking|Tool call|Tool result)\][ \t]*(.*)", re.DOTALL)
"""What begins a message, or a block of one, in a plain text."""


def read_transcript(source: Source, report: Report) -> Iterator[Transcript]:
    session = session_of(source.path)
    transcript_records = _line_records(source, report)
    yield Transcript(session=session, turns=Dialogue(session, _identity(session)).turns(transcript_records))


def read_text(source: Source, report: Report) -> Iterator[Transcript]:
    session = session_of(source.path)
    yield Transcript(session=session, turns=Dialogue(session, _identity(session)).turns(_text_records(source, report)))


def session_of(path: Path) -> NativeSession:
    """A subagent's lies in a folder of its parent's."""
    is_child = path.parent.name == "subagents"
    parent = path.parent.parent.name if is_child else None
    return NativeSession(id=transcript_id(path), parent=parent, metadata=_project(path))


def _project(path: Path) -> dict[str, str] | None:
    """The folder it ran in, as Cursor spells it: its separators are lost."""
    folder_names = path.parts
    position = (
        folder_names.index("projects") if "projects" in folder_names and "agent-transcripts" in folder_names else None
    )
    return None if position is None or position + 1 >= len(folder_names) else {"project": folder_names[position + 1]}


def _identity(session: NativeSession) -> str | None:
    """Two sessions that begin with the same words are two; a name that is no id tells nothing."""
    return session.id if UUID.fullmatch(session.id) else None


def _line_records(source: Source, report: Report) -> Iterator[TranscriptRecord]:
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
    if role in TRANSCRIPT_ROLES:
        message = mapping(value.get("message"))
        content = message.get("content", value.get("content"))
        fields = {name: field for name, field in value.items() if name not in ("role", "message", "content", "type")}
        fields |= {name: field for name, field in message.items() if name not in ("role", "content")}
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


def _text_records(source: Source, report: Report) -> Iterator[TranscriptRecord]:
    """Messages of a plain text, and what they are made of: words, thoughts, calls and their outcomes."""
    role, start, offset = "", 0, 0
    blocks: list[_Block] = []
    with source.path.open("rb") as file:
        for line in text_lines(file):
            words = line.decode("utf-8", "surrogateescape").rstrip("\r\n")
            mark = MARK.fullmatch(words)
            if mark is not None and mark[1] is not None:
                if role:
                    yield _message(role, blocks, start, offset, report)
                role, start, blocks = (
                    "user" if mark[1] == "user" else "assistant",
                    offset,
                    [_Block("text", [mark[2] or ""])],
                )
            elif mark is not None:
                blocks.append(_Block(mark[3], [mark[4]]))
            elif blocks:
                blocks[-1].lines.append(words)
            offset += len(line)
    if role:
        yield _message(role, blocks, start, offset, report)


def _message(role: str, blocks: list[_Block], start: int, end: int, report: Report) -> Message:
    report.found += 1
    report.mapped[role] += 1
    texts = [(block.kind, "\n".join(block.lines).strip()) for block in blocks]
    return Message(role, [_transcript_block(kind, words) for kind, words in texts if words], start, end)


def _transcript_block(kind: str, words: str) -> dict[str, object]:
    name, _, body = words.partition("\n")
    if kind == "Thinking":
        return {"type": "thinking", "thinking": words}
    if kind == "Tool call":
        name, _, beside = name.strip().partition(" ")
        return {"type": "tool_use", "name": name, "input": _arguments(beside, body)}
    if kind == "Tool result":
        return {"type": "tool_result", "name": name.strip() or None, "content": body.strip()}
    return {"type": "text", "text": words}


def _arguments(beside: str, body: str) -> dict[str, str] | str:
    """`name: value` on lines of their own; what looks otherwise stays as it is."""
    lines: dict[str, list[str]] = {}
    for line in body.splitlines():
        name, colon, value = line.strip().partition(": ")
        if colon and re.fullmatch(r"\w+", name):
            lines[name] = [value]
        elif lines and line.strip():
            lines[next(reversed(lines))].append(line)
        elif line.strip():
            return f"{beside}\n{body}".strip()
    return {name: "\n".join(value) for name, value in lines.items()} or beside


# --- `store.db` of the command line's agent: contents by their hash, and a root that lists the messages that stand.

MESSAGES, TOKENS, WORKSPACE = 1, 5, 9
"""Fields of a root."""
STORED_ROLES = frozenset({"system", "user", "assistant", "tool"})


class Root(Struct):
    """What the newest root tells."""

    messages: list[str]
    workspace: str | None = None
    context_tokens: int | None = None
    context_limit: int | None = None


def read_store(path: Path, report: Report) -> Iterator[Transcript]:
    with open_database(path, report) as database:
        if database is None or not database.has("blobs", "id", "data"):
            return
        try:
            transcripts = list(_Store(path, database, report).transcripts())
        except UNREADABLE as error:
            report.problem(None, f"the store is not readable: {error}"[:300])
        else:
            yield from transcripts


class _Store:
    def __init__(self, path: Path, database: Database, report: Report) -> None:
        self._path, self._database, self._report = path, database, report
        self._lines = RowLines()
        self._meta = self._read_meta()
        self._nodes: dict[str, bytes] = {}
        self._messages = self._read_blobs()

    def _read_meta(self) -> dict[str, Any]:
        """One row of JSON in hexadecimal digits; older stores have a row a name."""
        fields: dict[str, Any] = {}
        rows = (
            self._database.rows("SELECT key, value FROM meta ORDER BY key")
            if self._database.has("meta", "key", "value")
            else []
        )
        for key, value in rows:
            self._report.found += 1
            self._report.mapped["meta"] += 1
            self._lines.add_value(f"meta:{key}", value if isinstance(value, str | int | float) else None)
            unhexed = _decode_hex(value)
            fields |= unhexed if isinstance(unhexed, dict) else {str(key): unhexed}
        return fields

    def _read_blobs(self) -> dict[str, Message]:
        """Messages by their hash, in the order in which they were written."""
        messages: dict[str, Message] = {}
        for number, (id, data) in enumerate(
            self._database.walk("SELECT id, CAST(data AS BLOB) FROM blobs ORDER BY rowid")
        ):
            self._report.found += 1
            self._lines.add(f"blob:{id}", data or b"")
            value = _object(data or b"")
            if value is not None and str(value.get("role")) in STORED_ROLES:
                fields = {name: field for name, field in value.items() if name not in ("role", "content", "id")}
                messages[str(id)] = Message(str(value["role"]), value.get("content"), number, number + 1, fields)
                self._report.mapped[str(value["role"])] += 1
            else:
                self._nodes[str(id)] = data or b""
                self._report.kept["node" if value is None else "content"] += 1
        return messages

    def transcripts(self) -> Iterator[Transcript]:
        root = self._root()
        id = text(self._meta.get("agentId")) or self._path.parent.name
        if (beside := transcripts_of(self._path).get(id)) is not None:
            RowReader(self._report, self._lines).keep_transcript(beside)
        session = self._session(id, root)
        model = text(self._meta.get("lastUsedModel"))
        listed_messages = [self._messages[message_id] for message_id in root.messages if message_id in self._messages]
        chosen = set(root.messages)
        other_messages = [message for message_id, message in self._messages.items() if message_id not in chosen]
        if listed_messages or not other_messages:
            dialogue = Dialogue(session, id, model=model)
            placed = [
                Message(listed_message.role, listed_message.content, position, position + 1, listed_message.fields)
                for position, listed_message in enumerate(listed_messages)
            ]
            yield Transcript(session=session, turns=dialogue.turns(placed), raw=self._lines.finish())
        if other_messages:
            apart = session_without_header(session)
            raw = b"" if listed_messages else self._lines.finish()
            yield Transcript(session=apart, turns=Dialogue(apart, apart.id, model=model).turns(other_messages), raw=raw)

    def _session(self, id: str, root: Root) -> NativeSession:
        name = text(self._meta.get("name"))
        return NativeSession(
            id=id,
            title=None if name == "New Agent" else name,
            workspace=root.workspace or text(self._meta.get("cwd")),
            created=millis(self._meta.get("createdAt")),
            metadata=present(
                mode=self._meta.get("mode"),
                model=self._meta.get("lastUsedModel"),
                context_tokens=root.context_tokens,
                context_limit=root.context_limit,
            ),
        )

    def _root(self) -> Root:
        root = Root([])
        id = text(self._meta.get("latestRootBlobId"))
        if id is None:
            return root
        try:
            for number, value in wire_fields(self._nodes.get(id, b"")):
                if number == MESSAGES and isinstance(value, bytes):
                    root.messages.append(value.hex())
                elif number == WORKSPACE and isinstance(value, bytes):
                    root.workspace = root.workspace or path_of(value.decode("utf-8", "replace"))
                elif number == TOKENS and isinstance(value, bytes):
                    counts = {name: count for name, count in wire_fields(value) if isinstance(count, int)}
                    root.context_tokens, root.context_limit = counts.get(1), counts.get(2)
        except ValueError as error:
            self._report.problem(None, f"the root of the store is damaged: {error}")
        return root


def _decode_hex(value: Any) -> Any:
    words = value.decode("utf-8", "replace") if isinstance(value, bytes) else value
    if not isinstance(words, str):
        return words
    try:
        return decode_json_value(bytes.fromhex(words))
    except ValueError:
        pass
    try:
        return decode_json_value(words)
    except ValueError:
        return words


def _object(data: bytes) -> dict[str, Any] | None:
    if data.lstrip()[:1] != b"{":
        return None
    try:
        value = json_value(data)
    except ValueError:
        return None
    return mapping(value) or None


# --- The importer of Cursor: one mapping for bubbles, another for messages of roles and blocks.

SPEAKING_ROLES = ("user", "assistant")
MARKED = re.compile(rb"\s*(?:user|assistant|A):")


class StorageForm(Enum):
    STATE = auto()
    """`state.vscdb`, of a workspace or of all."""
    STORE = auto()
    """`store.db` of one session of the command line's agent."""
    TRANSCRIPT = auto()
    TEXT = auto()
    """A transcript as plain text."""
    EXPORT = auto()


def container(source: Source) -> StorageForm | None:
    head = source.head
    if head.startswith(MAGIC):
        return _database(source)
    if is_export(head[:2000]):
        return StorageForm.EXPORT
    is_here = TRANSCRIPTS in source.path.parts or TRANSCRIPTS in source.name
    if any(_is_line(value, is_here) for value in first_objects(head, limit=8)):
        return StorageForm.TRANSCRIPT
    if is_here and source.path.suffix == ".txt" and MARKED.match(head):
        return StorageForm.TEXT
    return None


def _database(source: Source) -> StorageForm | None:
    head = source.head
    if b"cursorDiskKV" in head or _is_only_logged(source):
        return StorageForm.STATE
    if b"ItemTable" in head:
        sql = "SELECT 1 FROM ItemTable WHERE key IN (?, ?, ?) LIMIT 1"
        return StorageForm.STATE if peek(source.path, sql, (CHATS, COMPOSERS, HEADERS), "ItemTable") else None
    has_tables = re.search(rb"CREATE TABLE\s+\S*blobs", head) and re.search(rb"CREATE TABLE\s+\S*meta\b", head)
    return StorageForm.STORE if has_tables and source.path.name.endswith("store.db") else None


def _is_only_logged(source: Source) -> bool:
    """A database whose tables have not come out of its log yet."""
    if source.path.suffix != ".vscdb":
        return False
    log = source.path.with_name(f"{source.path.name}-wal")
    try:
        with open_beneath(log, log.parent) as file:
            return b"cursorDiskKV" in file.read(HEAD_BYTES)
    except OSError:
        return False


def _is_line(value: dict[str, Any], is_here: bool) -> bool:
    """Other tools' lines have a type, an id or a time beside the role."""
    if value.get("role") not in SPEAKING_ROLES or "type" in value:
        return False
    inside = mapping(value.get("message"))
    return ("content" in inside and "role" not in inside) or (is_here and ("content" in value or "content" in inside))


class Cursor:
    origin = "cursor"
    mapping = 1

    def places(self, home: Path, environment: Mapping[str, str]) -> list[Place]:
        config_home = environment.get("XDG_CONFIG_HOME")
        configs = [home / config for config in CONFIGS]
        if config_home:
            configs[0] = Path(config_home)
        places = [
            Place(config / "Cursor" / "User" / folder, label)
            for config in configs
            for folder, label in (("globalStorage", "Cursor"), ("workspaceStorage", "Cursor, by workspace"))
        ]
        for name in (".cursor", ".cursor-server"):
            places.append(Place(home / name / "chats", "Cursor's command line agent"))
            places.append(Place(home / name / "projects", "Cursor's transcripts"))
        return places

    def recognises(self, source: Source) -> bool:
        return container(source) is not None

    def is_part(self, source: Source) -> bool:
        return TRANSCRIPTS in source.path.parts and is_in_database(source.path)

    def read(self, source: Source, report: Report) -> Iterator[Transcript]:
        kind = container(source)
        if kind is StorageForm.STORE:
            yield from read_store(source.path, report)
        elif kind is StorageForm.STATE or source.head.startswith(MAGIC):
            yield from read_database(source.path, report)
        elif kind is StorageForm.EXPORT:
            yield from read_export(source, report)
        elif kind is StorageForm.TEXT:
            yield from read_text(source, report)
        else:
            yield from read_transcript(source, report)
