"""Sessions of aider: its chat history in Markdown, its history of inputs, and its log of what the
model was sent.

The chat history is read as blocks; blocks become sessions and turns. The files beside it tell when
a person typed what, and what the model was sent and gave back.
"""

from __future__ import annotations

import os
import re
from collections import defaultdict, deque
from collections.abc import Iterator, Mapping
from enum import StrEnum
from pathlib import Path, PurePath
from typing import Any, BinaryIO

from msgspec import Struct, field
from msgspec.structs import replace

from weft.exchange.importers.foreign_files import BOM, open_beneath, text_lines
from weft.exchange.importers.foreign_values import SIDECAR_BYTES, canonical, present
from weft.exchange.importers.port import (
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
from weft.ledger.model import FileNote, TextPart

# --- The chat history as blocks: what opens a session, what a person typed, what aider printed, what the model said.

HEADER = re.compile(r"# aider chat started at (.*\S|.)\s*")
HEADER_START = b"# aider chat started at "
HARD = "  "


class Kind(StrEnum):
    HEADER = "session"
    PROMPT = "prompt"
    OUTPUT = "output"
    ANSWER = "answer"


class Block(Struct):
    kind: Kind
    line: int
    offset: int
    end: int
    lines: list[str] = field(default_factory=list)

    @property
    def text(self) -> str:
        return "\n".join(self.lines).strip("\n")


def read_blocks(path: Path) -> Iterator[Block]:
    """Every block in order. What comes before the first session is as it is."""
    with path.open("rb") as file:
        reader = _Reader(_strictness(path))
        offset = 0
        for number, raw in enumerate(text_lines(file), 1):
            line = raw.decode("utf-8", "surrogateescape").rstrip("\r\n")
            if number == 1:
                line = line.removeprefix("\ufeff")
            finished_block = reader.add_line(line, number, offset, offset + len(raw))
            offset += len(raw)
            if finished_block is not None:
                yield finished_block
        if reader.block is not None and reader.block.lines:
            yield reader.block


def _strictness(path: Path) -> list[bool]:
    """For what comes before the first session, and for each session: has a prompt the two spaces?"""
    strict_flags = [False]
    with path.open("rb") as file:
        for raw in text_lines(file):
            if raw.startswith(HEADER_START):
                strict_flags.append(False)
            elif raw.startswith(b"####") and raw[4:5] == b" ":
                strict_flags[-1] |= raw.rstrip(b"\r\n").endswith(HARD.encode())
    return strict_flags


class _Reader:
    """Line after line."""

    def __init__(self, strictness: list[bool]) -> None:
        self._strictness = iter(strictness)
        self._is_strict = next(self._strictness)
        self.block: Block | None = None
        self._goes_on = False
        """The output has more lines, which bear no mark."""
        self._is_blank = True
        self._is_prompted = False

    def add_line(self, line: str, number: int, offset: int, end: int) -> Block | None:
        """The block that a line ends, if it does."""
        kind, words = self._kind(line)
        if kind is None:
            if self.block is not None and self.block.kind is Kind.ANSWER:
                self.block.lines.append("")
            self._is_blank = True
            return None
        finished_block, block = None, self.block
        is_apart = kind in (Kind.HEADER, Kind.PROMPT) and (self._is_blank or kind is Kind.HEADER)
        if block is None or block.kind is not kind or is_apart:
            finished_block, block = block, Block(kind, number, offset, end)
        self.block = block
        block.lines.append(words)
        block.end = end
        self._is_blank = False
        self._is_prompted = kind is Kind.PROMPT or (self._is_prompted and kind is not Kind.HEADER)
        return finished_block

    def _kind(self, line: str) -> tuple[Kind | None, str]:
        if (header := HEADER.fullmatch(line)) is not None:
            self._goes_on = False
            self._is_strict = next(self._strictness, self._is_strict)
            return Kind.HEADER, header[1]
        is_hard = line.endswith(HARD) or not self._is_strict
        if line.startswith("####") and line[4:5] in (" ", "") and is_hard:
            self._goes_on = False
            return Kind.PROMPT, line[5:].removesuffix(HARD)
        if self._goes_on:
            self._goes_on = not line.endswith(HARD)
            return Kind.OUTPUT, line.removesuffix(HARD)
        is_answering = self.block is not None and self.block.kind is Kind.ANSWER
        if line.startswith(">") and line[1:2] in (" ", "") and (is_hard or not is_answering):
            self._goes_on = not is_hard
            return Kind.OUTPUT, line[2:].removesuffix(HARD)
        if not line.strip():
            return None, ""
        return (Kind.ANSWER if self._is_prompted else Kind.OUTPUT), line


VERSION = re.compile(r"Aider v(\S+)")
MODEL = re.compile(r"(?:Main model|Models?): (\S+?)(?: with ([\w-]+) edit format)?(?:,.*)?")
REPOSITORY = re.compile(r"Git repo: (.+?)(?: with [\d,]+ files)?")
TOKENS = re.compile(r"Tokens: (?P<sent>[\d.,]+[kM]?) sent(?P<rest>.*)")
OLDER = re.compile(r"([\d,]+) prompt tokens, ([\d,]+) completion tokens(?:, \$([\d.]+) cost)?")
COUNT = re.compile(r"(?<![\d.,])([\d.,]++[kM]?) (received|cache write|cache hit)")
COST = re.compile(r"Cost: \$([\d.]+) message")
APPLIED = re.compile(r"Applied edit to (.+)")
ADDED = re.compile(r"Added (.+?) to (?:the chat|read-only files)\.?")
COMMIT = re.compile(r"Commit ([0-9a-f]{7,40}) (.*)")
STOPPED = re.compile(r"\^C.*|.*KeyboardInterrupt.*")


class Settings(Struct, frozen=True):
    """What turns run with, as the lines before them tell."""

    version: str | None = None
    model: str | None = None
    edit_format: str | None = None
    repository: str | None = None

    def changed(self, line: str) -> Settings:
        if (match := VERSION.fullmatch(line)) is not None:
            return replace(self, version=match[1])
        if (match := MODEL.fullmatch(line)) is not None:
            return replace(self, model=match[1], edit_format=match[2] or self.edit_format)
        if (match := REPOSITORY.fullmatch(line)) is not None and match[1] != "none":
            return replace(self, repository=match[1])
        return self

    def config(self) -> dict[str, Any] | None:
        return present(model=self.model, edit_format=self.edit_format)


class Notes(Struct):
    """What an output tells of the answer before it, or of the one that follows."""

    tokens: Tokens | None = None
    cost: float | None = None
    files: list[FileNote] = field(default_factory=list)
    commits: list[dict[str, str]] = field(default_factory=list)
    is_stopped: bool = False


def notes_of(lines: list[str]) -> Notes:
    notes = Notes()
    for line in map(str.strip, lines):
        if (tokens := TOKENS.match(line)) is not None:
            notes.tokens = _tokens(tokens["sent"], tokens["rest"])
            cost = COST.search(line)
            notes.cost = _money(cost[1]) if cost is not None else None
        elif (older := OLDER.fullmatch(line)) is not None:
            notes.tokens = Tokens(input=_number(older[1]), output=_number(older[2]))
            notes.cost = _money(older[3])
        elif (applied := APPLIED.fullmatch(line)) is not None:
            notes.files.append(FileNote(kind=FileKind.WRITTEN, path=applied[1]))
        elif (added := ADDED.fullmatch(line)) is not None:
            notes.files.append(FileNote(kind=FileKind.ATTACHED, path=added[1]))
        elif (commit := COMMIT.fullmatch(line)) is not None:
            notes.commits.append({"commit": commit[1], "message": commit[2]})
        notes.is_stopped |= STOPPED.fullmatch(line) is not None
    return notes


def _tokens(sent: str, details: str) -> Tokens:
    """As it printed them, which is rounded; what was sent includes the cache."""
    counts = {name: _number(count) for count, name in COUNT.findall(details)}
    cached, cache_written = counts.get("cache hit"), counts.get("cache write")
    sent_count = _number(sent)
    uncached = None if sent_count is None else max(sent_count - (cached or 0) - (cache_written or 0), 0)
    return Tokens(input=uncached, output=counts.get("received"), cached=cached, cache_write=cache_written)


def _money(words: str | None) -> float | None:
    try:
        return None if words is None else float(words.rstrip("."))
    except ValueError:
        return None


def _number(words: str) -> int | None:
    scale = {"k": 1_000, "M": 1_000_000}.get(words[-1], 1)
    try:
        return round(float(words.rstrip("kM").replace(",", "").rstrip(".")) * scale)
    except (ValueError, OverflowError):
        return None


# --- What lies beside the chat history: when a person typed what, and what the model was sent and gave back.

NAME = ".aider.input.history"


class Input(Struct, frozen=True):
    literal: str
    """When, in the local time of the machine it was typed at."""
    text: str
    offset: int
    end: int


def read_inputs(file: BinaryIO) -> Iterator[Input]:
    """`# time`, then what was typed, a `+` before each line."""
    literal, lines, offset, start, end = "", [], 0, 0, 0
    for raw in text_lines(file):
        line = raw.decode("utf-8", "surrogateescape").rstrip("\r\n")
        if line.startswith("+") and literal:
            lines.append(line[1:])
            end = offset + len(raw)
        elif line.startswith("# "):
            if lines:
                yield Input(literal, "\n".join(lines), start, end)
            literal, lines, start = line[2:].strip(), [], offset
        offset += len(raw)
    if lines:
        yield Input(literal, "\n".join(lines), start, end)


class Times:
    """When prompts were typed: each text's times in order."""

    def __init__(self, beside: Path) -> None:
        self._times: dict[str, deque[str]] = defaultdict(deque)
        path = beside.with_name(NAME)
        try:
            with open_beneath(path, path.parent) as file:
                typed_inputs = list(read_inputs(file)) if os.fstat(file.fileno()).st_size <= SIDECAR_BYTES else []
        except OSError:
            typed_inputs = []
        for typed_input in typed_inputs:
            self._times[typed_input.text.strip()].append(typed_input.literal)

    def take_time(self, words: str, since: str | None) -> str | None:
        """The first that is not before its session."""
        waiting = self._times.get(words.strip())
        while waiting and since is not None and waiting[0] < since:
            waiting.popleft()
        return waiting.popleft() if waiting else None


ENTRY = re.compile(r"(TO LLM|LLM RESPONSE) (\d{4}-\d\d-\d\dT[\d:]+)")
SPOKEN = re.compile(r"(SYSTEM|USER|ASSISTANT|TOOL)(?: (.*))?")
RULE = "-------"
ROLES = {
    "SYSTEM": MessageRole.SYSTEM,
    "USER": MessageRole.USER,
    "ASSISTANT": MessageRole.ASSISTANT,
    "TOOL": MessageRole.TOOL,
}


class LogEntry(Struct):
    kind: str
    literal: str
    offset: int
    end: int
    lines: list[str] = field(default_factory=list)


def is_log(head: bytes) -> bool:
    return ENTRY.fullmatch(head.split(b"\n", 1)[0].decode(errors="replace").strip()) is not None


def log_entries(source: Source) -> Iterator[LogEntry]:
    entry, offset = None, 0
    with source.path.open("rb") as file:
        for raw in text_lines(file):
            line = raw.decode("utf-8", "surrogateescape").rstrip("\r\n")
            if (match := ENTRY.fullmatch(line)) is not None:
                if entry is not None:
                    yield entry
                entry = LogEntry(match[1], match[2], offset, offset)
            elif entry is not None:
                entry.lines.append(line)
            offset += len(raw)
            if entry is not None:
                entry.end = offset
    if entry is not None:
        yield entry


def log_messages(lines: list[str]) -> list[tuple[str, str]]:
    """Who said what: a rule begins a message, and each of its lines names its speaker."""
    speaker_texts: list[tuple[str, list[str]]] = []
    is_new = True
    for line in lines:
        spoken = SPOKEN.fullmatch(line)
        if line == RULE:
            is_new = True
        elif spoken is not None and (is_new or not speaker_texts or speaker_texts[-1][0] != spoken[1]):
            speaker_texts.append((spoken[1], [spoken[2] or ""]))
            is_new = False
        elif speaker_texts:
            speaker_texts[-1][1].append((spoken[2] or "") if spoken is not None else line)
    return [(speaker, "\n".join(texts).strip("\n")) for speaker, texts in speaker_texts]


def read_log(source: Source, session: str, report: Report) -> Iterator[Transcript]:
    """A turn for each request: what it asks last, and the response. All that it repeats before is beside it."""
    yield Transcript(
        session=NativeSession(id=session, title="what the model was sent"), turns=_log_turns(source, session, report)
    )


def _log_turns(source: Source, session: str, report: Report) -> Iterator[NativeTurn]:
    number, request = 0, None
    for entry in log_entries(source):
        report.found += 1
        report.mapped["request" if entry.kind == "TO LLM" else "response"] += 1
        if entry.kind == "TO LLM" and request is not None:
            yield _log_turn(session, number, request, None)
            number += 1
        if entry.kind == "TO LLM":
            request = entry
            continue
        yield _log_turn(session, number, request, entry)
        number, request = number + 1, None
    if request is not None:
        yield _log_turn(session, number, request, None)


def _log_turn(session: str, number: int, request: LogEntry | None, response: LogEntry | None) -> NativeTurn:
    request_messages = log_messages(request.lines) if request is not None else []
    last = max((place for place, (speaker, _) in enumerate(request_messages) if speaker == "USER"), default=None)
    new_messages = [] if last is None else request_messages[last:]
    response_messages = log_messages(response.lines) if response is not None else []
    literal = next((log_entry.literal for log_entry in (request, response) if log_entry is not None), None)
    items = [
        NativeMessage(
            role=ROLES[speaker],
            parts=(TextPart(words),) if words else (),
            literal_time=entry.literal,
            source=MessageSource.EVENT if speaker != "ASSISTANT" else None,
            metadata={"context_messages": last} if entry is request and last else None,
        )
        for entry, spoken in ((request, new_messages), (response, response_messages))
        if entry is not None
        for speaker, words in spoken
    ]
    ends = [log_entry for log_entry in (request, response) if log_entry is not None]
    return NativeTurn(
        key=f"{session}#{number}",
        records=(canonical(["llm", literal, number, request_messages, response_messages]),),
        items=tuple(items),
        parent=number - 1 if number else None,
        closed=response is not None,
        literal_time=literal,
        offset=ends[0].offset if ends else 0,
        end=ends[-1].end if ends else 0,
    )


# --- aider: how blocks of its chat history become sessions and turns.

HISTORY = ".aider.chat.history.md"
ASKING = frozenset({"/ask", "/code", "/architect", "/context", "/help"})
"""Commands whose words go to the model."""


class Aider:
    origin = "aider"
    mapping = 1

    def places(self, home: Path, environment: Mapping[str, str]) -> list[Place]:
        """Histories lie in the repositories they are about; one may lie at home."""
        folder = environment.get("AIDER_CHAT_HISTORY_FILE")
        return [Place(home / folder if folder else home / HISTORY, "aider")]

    def recognises(self, source: Source) -> bool:
        return is_history(source.head) or is_log(source.head) or is_inputs(source)

    def is_part(self, source: Source) -> bool:
        """The times of prompts come with the chat history that lies beside them."""
        return is_inputs(source) and source.path.with_name(HISTORY).is_file()

    def session_file(self, source: Source) -> Path | None:
        return source.path.with_name(HISTORY)

    def part_files(self, path: Path) -> list[Path]:
        return []

    def read(self, source: Source, report: Report) -> Iterator[Transcript]:
        folder = PurePath(source.name.replace("!", "/")).parent.name
        if is_log(source.head):
            yield from read_log(source, f"{folder}/llm", report)
        elif is_inputs(source):
            yield _typed(source, f"{folder}/inputs", report)
        else:
            yield from _sessions(source, folder, report)


def is_history(head: bytes) -> bool:
    lines = head.removeprefix(BOM).decode("utf-8", "replace").splitlines()[:200]
    return any(HEADER.fullmatch(line) for line in lines)


def is_inputs(source: Source) -> bool:
    lines = source.head.lstrip(b"\n").split(b"\n")
    return source.path.name.endswith(NAME) and lines[0].startswith(b"# ") and any(line[:1] == b"+" for line in lines)


class TurnDraft(Struct):
    """A session on its way: its blocks by turns."""

    id: str
    started: str | None
    """When, in the local time of the machine."""
    turns: list[list[Block]] = field(default_factory=list)
    waiting: list[Block] = field(default_factory=list)
    """Blocks that belong to the turn that comes next: what is printed first, and commands."""
    is_commanded: bool = False
    end: int = 0

    def add_block(self, block: Block) -> None:
        self.end = block.end
        if block.kind is Kind.PROMPT and is_command(block.text):
            self.waiting.append(block)
            self.is_commanded = True
        elif block.kind is Kind.PROMPT or (block.kind is Kind.ANSWER and (self.is_commanded or not self.turns)):
            self.turns.append([*self.waiting, block])
            self.waiting, self.is_commanded = [], False
        elif self.is_commanded or not self.turns:
            self.waiting.append(block)
        else:
            self.turns[-1].append(block)

    def finish(self) -> None:
        """Commands that no prompt followed are a turn of their own; what was printed alone is none."""
        if any(block.kind is Kind.PROMPT for block in self.waiting):
            self.turns.append(self.waiting)


def is_command(words: str) -> bool:
    first, _, arguments = words.partition(" ")
    return words.startswith("!") or (words.startswith("/") and not (first in ASKING and arguments.strip()))


def _sessions(source: Source, folder: str, report: Report) -> Iterator[Transcript]:
    times, counts = Times(source.path), dict[str, int]()
    draft = TurnDraft(f"{folder}/before", None)
    for block in read_blocks(source.path):
        report.found += 1
        report.mapped[block.kind] += 1
        if block.kind is not Kind.HEADER:
            draft.add_block(block)
            continue
        if draft.end:
            yield _transcript(draft, source, times, until=block.offset)
        started = block.text
        counts[started] = counts.get(started, 0) + 1
        id = f"{folder}/{started}" + (f"~{counts[started]}" if counts[started] > 1 else "")
        draft = TurnDraft(id, started, end=block.end)
    if draft.end:
        yield _transcript(draft, source, times, until=None)


def _transcript(draft: TurnDraft, source: Source, times: Times, until: int | None) -> Transcript:
    draft.finish()
    settings = Settings()
    native_turns = []
    for number, turn in enumerate(draft.turns):
        is_last = until is None and number == len(draft.turns) - 1
        turn_blocks = _TurnBlocks(draft, settings, times)
        native_turns.append(turn_blocks.native_turn(turn, number, is_last, workspace_of(source)))
        settings = turn_blocks.settings
    for block in draft.waiting:
        for line in block.lines:
            settings = settings.changed(line.strip())
    session = NativeSession(
        id=draft.id,
        workspace=workspace_of(source),
        version=settings.version,
        metadata=present(started=draft.started, repository=settings.repository),
    )
    return Transcript(session=session, turns=native_turns, until=until)


def workspace_of(source: Source) -> str | None:
    """The history lies in the folder it is about; one that was unpacked does not."""
    return str(source.path.parent) if str(source.path) == source.name else None


class _TurnBlocks:
    """One turn."""

    def __init__(self, draft: TurnDraft, settings: Settings, times: Times) -> None:
        self._draft, self.settings, self._times = draft, settings, times
        self._items: list[NativeMessage] = []
        self._answer: int | None = None
        self._commits: list[dict[str, str]] = []
        self._is_stopped = False
        self._literal: str | None = None
        self._ahead: Notes | None = None
        """What the next answer cost."""

    def native_turn(self, turn: list[Block], number: int, is_last: bool, workspace: str | None) -> NativeTurn:
        records = []
        for place, block in enumerate(turn):
            records.append(canonical([str(block.kind), block.text]))
            self._add_block(block, f"{self._draft.id}#{number}.{place}")
        return NativeTurn(
            key=f"{self._draft.id}#{number}",
            records=(canonical([self._draft.started, number]), *records),
            items=tuple(self._items),
            parent=number - 1 if number else None,
            closed=not is_last,
            interrupted=self._is_stopped,
            literal_time=self._literal or self._draft.started,
            workspace=workspace,
            version=self.settings.version,
            config=self.settings.config(),
            metadata=present(commits=self._commits),
            offset=turn[0].offset,
            end=turn[-1].end,
        )

    def _add_block(self, block: Block, native: str) -> None:
        if block.kind is Kind.PROMPT:
            literal = self._times.take_time(block.text, self._draft.started)
            self._literal = literal or self._literal
            self._add(block, MessageRole.USER, source=MessageSource.HUMAN, literal_time=literal)
        elif block.kind is Kind.ANSWER:
            self._answer = len(self._items)
            self._is_stopped = False
            self._add(block, MessageRole.ASSISTANT, native=native, model=self.settings.model)
            ahead, self._ahead = self._ahead, None
            if ahead is not None:
                self._note_cost(ahead)
        else:
            self._add_output(block)

    def _add(self, block: Block, role: MessageRole, **fields: Any) -> None:
        self._items.append(NativeMessage(role=role, parts=(TextPart(block.text),) if block.text else (), **fields))

    def _add_output(self, block: Block) -> None:
        for line in block.lines:
            self.settings = self.settings.changed(line.strip())
        notes = notes_of(block.lines)
        self._add(block, MessageRole.SYSTEM, source=MessageSource.EVENT)
        self._commits += notes.commits
        self._is_stopped |= notes.is_stopped
        if self._answer is None:
            self._items[-1] = replace(self._items[-1], files=tuple(notes.files))
        else:
            answer = self._items[self._answer]
            self._items[self._answer] = replace(answer, files=(*answer.files, *notes.files))
        if notes.tokens is not None:
            self._note_cost(notes)

    def _note_cost(self, notes: Notes) -> None:
        """Of the answer before it; older versions tell it before the answer."""
        answer = None if self._answer is None else self._items[self._answer]
        if answer is None or self._answer is None or answer.tokens is not None:
            self._ahead = notes
            return
        fields = present(cost=notes.cost, rounded=True)
        self._items[self._answer] = replace(answer, tokens=notes.tokens, metadata=fields)


def _typed(source: Source, session: str, report: Report) -> Transcript:
    """Prompts of which nothing else is left."""
    turns = []
    with source.path.open("rb") as file:
        typed = list(read_inputs(file))
    for number, typed_input in enumerate(typed):
        report.found += 1
        report.mapped["input"] += 1
        message = NativeMessage(
            role=MessageRole.USER,
            parts=(TextPart(typed_input.text),) if typed_input.text else (),
            literal_time=typed_input.literal,
            source=MessageSource.HUMAN,
        )
        turns.append(
            NativeTurn(
                key=f"{session}#{number}",
                records=(canonical(["input", typed_input.literal, number, typed_input.text]),),
                items=(message,),
                parent=number - 1 if number else None,
                literal_time=typed_input.literal,
                workspace=workspace_of(source),
                offset=typed_input.offset,
                end=typed_input.end,
            )
        )
    return Transcript(session=NativeSession(id=session, workspace=workspace_of(source)), turns=turns)
