"""Turns of a session of Kiro, step by step: a prompt up to the next one.

Every store of Kiro is read into the same form, a list of steps. A call's tool and arguments tell which files it
touched.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Iterator
from enum import Enum, auto
from typing import Any

from msgspec import UNSET, Struct, field
from msgspec.structs import replace

from weft.exchange.importers.foreign_values import canonical, mapping, sequence, text, whole_number
from weft.exchange.importers.port import (
    Item,
    NativeCall,
    NativeCompaction,
    NativeMessage,
    NativeSession,
    NativeTurn,
    Tokens,
)
from weft.kernel.enums import AgentRole, FileKind, MessageRole, MessageSource, ToolCallStatus
from weft.ledger.model import FileNote, ImagePart, Part


class Kind(Enum):
    """What a step is."""

    PROMPT = auto()
    """A turn begins."""
    INJECTED = auto()
    """Put into the context by Kiro: it belongs to the prompt after it."""
    ANSWER = auto()
    RESULTS = auto()
    COMPACTION = auto()
    CLEAR = auto()
    """The context was emptied: what follows grows from nothing."""
    ENDED = auto()
    """The turn under way is over."""
    BESIDE = auto()
    """Tells more of the turn under way."""


class Outcome(Struct, frozen=True):
    """What a tool gave back."""

    id: str
    result: Any = UNSET
    failed: bool = False
    cancelled: bool = False
    duration_ms: int | None = None


class Step(Struct, kw_only=True):
    """One thing that happened in a Kiro session, read from one or more records."""

    kind: Kind
    offset: int = 0
    end: int = 0
    id: str | None = None
    at: int | None = None
    done: int | None = None
    literal_time: str | None = None
    parts: list[Part] = field(default_factory=list)
    calls: list[NativeCall] = field(default_factory=list)
    outcomes: list[Outcome] = field(default_factory=list)
    source: MessageSource | None = None
    model: str | None = None
    tokens: Tokens | None = None
    words: str = ""
    """Of a summary, or how a turn ended."""
    stopped: bool = False
    error: str | None = None
    context: Any = None
    metadata: dict[str, Any] | None = None
    workspace: str | None = None
    identity: Any = None
    """What makes it what it is: ids and contents."""


def image_part(value: Any) -> ImagePart | None:
    """An image with its format and its bytes, written as numbers or in base64."""
    image = mapping(value)
    source = image.get("source")
    data: Any = mapping(source).get("data", mapping(source).get("Bytes", mapping(source).get("bytes", source)))
    kind = text(image.get("format")) or text(image.get("mimeType")) or "png"
    mime = kind if "/" in kind else f"image/{kind.lower()}"
    if isinstance(data, str) and data:
        return ImagePart(data if data.startswith("data:") else f"data:{mime};base64,{data}")
    numbers = sequence(data)
    if not numbers or not all(type(number) is int and 0 <= number < 256 for number in numbers):
        return None
    return ImagePart(f"data:{mime};base64,{base64.b64encode(bytes(numbers)).decode()}")


def plain_content(content: Any) -> Any:
    """What a tool gave back, as the text or the value that it is: `{"Text": …}`, `{"kind": "text", "data": …}`."""
    if not isinstance(content, list):
        return content
    values = [_value(value) for value in content]
    if all(isinstance(value, str) for value in values):
        return "\n".join(values)
    return values[0] if len(values) == 1 else values


def _value(value: Any) -> Any:
    block = mapping(value)
    for name in ("Text", "Json", "data", "text"):
        if name in block:
            return block[name]
    return value


READERS = frozenset({"fs_read", "read", "readFile", "read_file", "readMultipleFiles", "readCode", "read_code"})
WRITERS = frozenset(
    {
        "fs_write", "write", "fsWrite", "fsAppend", "fs_append", "strReplace", "str_replace", "deleteFile",
        "delete_file", "editCode", "edit_code", "create_file", "createFile", "smartRelocate",
    }
)  # fmt: skip
SEARCHERS = frozenset(
    {"grep", "glob", "grepSearch", "grep_search", "fileSearch", "file_search", "listDirectory", "list_directory", "ls"}
)
PATHS = ("path", "file_path", "filePath", "targetFile", "target_file", "file")


def touched_files(name: str, arguments: Any) -> tuple[FileNote, ...]:
    fields = mapping(arguments)
    if name in WRITERS:
        return tuple(FileNote(kind=FileKind.WRITTEN, path=path) for path in _paths(fields))
    if name in SEARCHERS:
        return tuple(FileNote(kind=FileKind.REFERENCED, path=path) for path in _paths(fields))
    if name not in READERS:
        return ()
    operations = [mapping(operation) for operation in sequence(fields.get("operations"))] or [fields]
    return tuple(note for operation in operations for note in _read_notes(operation))


def _read_notes(fields: dict[str, Any]) -> list[FileNote]:
    """A directory is looked into, not read; lines may be counted from the end."""
    if fields.get("mode") in ("Directory", "Search"):
        return [FileNote(kind=FileKind.REFERENCED, path=path) for path in _paths(fields)]
    start = _line(fields, "start_line", "startLine", "offset")
    end = _line(fields, "end_line", "endLine")
    return [FileNote(kind=FileKind.READ, path=path, line_start=start, line_end=end) for path in _paths(fields)]


def _line(fields: dict[str, Any], *names: str) -> int | None:
    numbers = (whole_number(fields.get(name)) for name in names)
    return next((line for line in numbers if line is not None and line > 0), None)


def _paths(fields: dict[str, Any]) -> list[str]:
    single_path = next((path for name in PATHS if (path := text(fields.get(name)))), None)
    several = [value for name in ("paths", "image_paths", "files") for value in sequence(fields.get(name))]
    return (
        [single_path]
        if single_path
        else [path for value in several if (path := text(value) or text(mapping(value).get("path")))]
    )


class TurnSteps(Struct):
    """A turn under way."""

    key: str
    parent: int | None
    offset: int = 0
    end: int = 0
    items: list[Item] = field(default_factory=list)
    records: list[bytes] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    times: list[int] = field(default_factory=list)
    literal_time: str | None = None
    workspace: str | None = None
    is_prompted: bool = False
    is_ended: bool = False
    stopped: bool = False
    error: str | None = None
    summary: str | None = None
    metadata: dict[str, Any] = field(default_factory=dict)

    def note(self, step: Step) -> None:
        self.end = max(self.end, step.end)
        self.times += [time for time in (step.at, step.done) if time is not None]
        self.names += [] if step.id is None else [step.id]
        self.literal_time = self.literal_time or step.literal_time
        self.workspace = step.workspace or self.workspace
        self.stopped, self.error = self.stopped or step.stopped, step.error or self.error


class Turns:
    """Puts the steps of one Kiro session together into turns."""

    def __init__(self, session: NativeSession, identity: str | None = None, reach: int = 0) -> None:
        """`reach`: how far on the last turn lies, where a session that is summed up becomes shorter."""
        self._session, self._identity, self._reach = session, identity, reach
        self._turn_steps: TurnSteps | None = None
        self._turn_count = 0
        self._used_keys: set[str] = set()
        self._waiting: list[Step] = []
        self._is_cleared = False

    def walk(self, steps: Iterable[Step]) -> Iterator[NativeTurn]:
        for number, step in enumerate(steps):
            if step.kind is Kind.CLEAR:
                self._is_cleared = True
            elif step.kind is Kind.INJECTED:
                self._waiting.append(step)
            else:
                if self._begins(step):
                    if self._turn_steps is not None:
                        yield self._finish_turn(is_last=False)
                    self._begin_turn(number, step)
                self._add_step(step)
        if self._waiting and self._turn_steps is None:
            self._begin_turn(0, self._waiting[0])
        if self._turn_steps is not None:
            self._join(self._turn_steps)
            yield self._finish_turn(is_last=True)

    def _begins(self, step: Step) -> bool:
        if self._turn_steps is None or step.kind in (Kind.PROMPT, Kind.COMPACTION):
            return True
        return self._turn_steps.summary is not None and step.kind in (Kind.ANSWER, Kind.RESULTS)

    def _begin_turn(self, number: int, step: Step) -> None:
        key = step.id if step.id is not None and step.id not in self._used_keys else f"{self._session.id}#{number}"
        self._used_keys.add(key)
        parent = self._turn_count - 1 if self._turn_count and not self._is_cleared else None
        self._is_cleared = False
        self._turn_steps = TurnSteps(key, parent, offset=step.offset)
        if step.kind is not Kind.COMPACTION:
            self._join(self._turn_steps)

    def _join(self, turn_steps: TurnSteps) -> None:
        for step in self._waiting:
            turn_steps.note(step)
            turn_steps.offset = min(turn_steps.offset, step.offset)
            turn_steps.records.append(canonical(["injected", step.identity]))
            turn_steps.items.append(_message(step, MessageRole.USER, MessageSource.EVENT))
        self._waiting = []

    def _add_step(self, step: Step) -> None:
        turn_steps = self._turn_steps
        assert turn_steps is not None
        turn_steps.note(step)
        if step.metadata and step.kind in (Kind.ENDED, Kind.BESIDE):
            turn_steps.metadata |= step.metadata
        if step.kind is Kind.BESIDE:
            return
        turn_steps.records.append(canonical([step.kind.name.lower(), step.id, step.identity]))
        if step.kind is Kind.PROMPT:
            turn_steps.is_prompted = True
            human = MessageSource.AGENT if self._session.parent is not None else MessageSource.HUMAN
            turn_steps.items.append(_message(step, MessageRole.USER, step.source or human))
        elif step.kind is Kind.ANSWER:
            self._answer(turn_steps, step)
        elif step.kind is Kind.COMPACTION and self._turn_count:
            turn_steps.summary = step.words
        elif step.kind is Kind.ENDED:
            turn_steps.is_ended = True
        for outcome in step.outcomes:
            _settle(turn_steps.items, outcome, step.at)

    def _answer(self, turn_steps: TurnSteps, step: Step) -> None:
        """A call without words belongs to the message before it; one that is told again is told better."""
        answers = turn_steps.items and not (
            isinstance(turn_steps.items[-1], NativeMessage) and turn_steps.items[-1].role != MessageRole.ASSISTANT
        )
        if step.parts or not step.calls or not answers:
            turn_steps.items.append(_message(step, MessageRole.ASSISTANT, None))
        for call in step.calls:
            matches = [position for position, item in enumerate(turn_steps.items) if _is_same(item, call)]
            if matches:
                turn_steps.items[matches[0]] = call
            else:
                turn_steps.items.append(call)

    def _finish_turn(self, is_last: bool) -> NativeTurn:
        turn_steps = self._turn_steps
        assert turn_steps is not None
        self._turn_steps = None
        self._turn_count += 1
        session_records = [canonical(["session", self._identity])] if self._identity is not None else []
        return NativeTurn(
            key=turn_steps.key,
            records=(*session_records, *turn_steps.records) or (canonical(["empty", turn_steps.key]),),
            names=tuple(turn_steps.names),
            items=tuple(turn_steps.items),
            parent=turn_steps.parent,
            compaction=None if turn_steps.summary is None else NativeCompaction(summary=turn_steps.summary),
            closed=not is_last or turn_steps.is_ended or turn_steps.summary is not None,
            error=turn_steps.error,
            interrupted=turn_steps.stopped and turn_steps.error is None,
            started=min(turn_steps.times, default=None),
            ended=max(turn_steps.times, default=None),
            literal_time=turn_steps.literal_time,
            role=AgentRole.WORKER if self._session.parent is not None else AgentRole.UNIFIED,
            workspace=turn_steps.workspace or self._session.workspace,
            metadata=turn_steps.metadata or None,
            offset=turn_steps.offset,
            end=max(turn_steps.end, self._reach) if is_last else turn_steps.end,
        )


def _message(step: Step, role: MessageRole, source: MessageSource | None) -> NativeMessage:
    return NativeMessage(
        role=role,
        parts=tuple(step.parts),
        native=step.id,
        at=step.at,
        source=source,
        model=step.model,
        tokens=step.tokens,
        context=step.context,
        metadata=step.metadata,
    )


def _is_same(item: Item, call: NativeCall) -> bool:
    return isinstance(item, NativeCall) and bool(call.id) and item.id == call.id and item.status is None


def _settle(items: list[Item], outcome: Outcome, time: int | None) -> None:
    for place, item in enumerate(items):
        if isinstance(item, NativeCall) and item.status is None and item.id == outcome.id:
            items[place] = _settled(item, outcome, time)
            return


def _settled(call: NativeCall, outcome: Outcome, time: int | None) -> NativeCall:
    words = outcome.result if isinstance(outcome.result, str) else None
    status = ToolCallStatus.ERROR if outcome.failed else ToolCallStatus.OK
    return replace(
        call,
        result=outcome.result,
        error=(words or "error") if outcome.failed or outcome.cancelled else None,
        status=ToolCallStatus.CANCELED if outcome.cancelled else status,
        done=time,
        detail=call.detail if outcome.duration_ms is None else {"duration_ms": outcome.duration_ms},
        files=() if outcome.failed or outcome.cancelled else touched_files(call.name, call.arguments),
    )
