"""Turns of a conversation, event by event. Both forms of events say the same things; here they are said once.

A turn begins with a user's message. A condensation in the middle of an answer is a turn of its own, and what follows it
another one.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace

from weft.exchange.importers.chat import summed_tokens
from weft.exchange.importers.openhands.conversations import DONE
from weft.exchange.importers.port import Item, NativeCompaction, NativeMessage, NativeTurn, Tokens
from weft.exchange.importers.records.builder import PendingCall, finished_items, identity
from weft.exchange.importers.records.values import canonical, mapping, millis, present, sequence, text, whole
from weft.kernel.enums import FileKind, MessageRole, MessageSource
from weft.ledger.model import FileNote, TextPart


def event_time(event: dict[str, Any]) -> tuple[int | None, str | None]:
    """Unix milliseconds, or the words that name no zone."""
    timestamp = event.get("timestamp")
    at = millis(timestamp) if isinstance(timestamp, str) else None
    return at, text(timestamp) if at is None else None


LISTED = "Here's the files and directories"
"""How the editor begins where it was to view a folder."""
EDITORS = frozenset({"file_editor", "str_replace_editor", "planning_file_editor"})


def action_files(action: str, arguments: dict[str, Any]) -> tuple[FileNote, ...]:
    """V0: actions are named by what they do."""
    path = text(arguments.get("path"))
    if path is None or action not in ("read", "write", "edit"):
        return ()
    if action != "read":
        return (FileNote(kind=FileKind.WRITTEN, path=path),)
    seen = sequence(arguments.get("view_range")) or [arguments.get("start"), arguments.get("end")]
    return (_read_note(path, seen),)


def _read_note(path: str, seen: list[Any]) -> FileNote:
    """From a line to a line; an end of -1 is that of the file."""
    first, last = (whole(number) for number in [*seen, None, None][:2])
    end = last if last is not None and last > 0 else None
    start = first if end is not None or (first or 0) > 0 else None
    return FileNote(kind=FileKind.READ, path=path, line_start=start, line_end=end)


def tool_files(tool: str, arguments: Any) -> tuple[FileNote, ...]:
    """V1: the editor that Anthropic defined."""
    fields = mapping(arguments)
    path, command = text(fields.get("path")), text(fields.get("command"))
    if tool not in EDITORS or path is None:
        return ()
    if command == "view":
        return (_read_note(path, sequence(fields.get("view_range"))),)
    return (FileNote(kind=FileKind.WRITTEN, path=path),)


def settled_files(notes: tuple[FileNote, ...], result: Any, is_error: bool) -> tuple[FileNote, ...]:
    """As the outcome shows them: a failed call touched nothing, and a folder is no file."""
    if is_error:
        return ()
    if isinstance(result, str) and result.startswith(LISTED):
        return tuple(FileNote(kind=FileKind.REFERENCED, path=note.path) for note in notes)
    return notes


class Span(Struct, frozen=True):
    """Where an event lies in its source, and by which id the conversation knows it."""

    id: str
    offset: int = 0
    end: int = 0


class TurnDraft(Struct):
    """A turn under way."""

    key: str
    parent: int | None
    offset: int
    end: int = 0
    items: list[NativeMessage | PendingCall] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    times: list[int] = field(default_factory=list)
    literal: str | None = None
    injected: list[Any] = field(default_factory=list)
    """What was put beside the prompt: rules, knowledge, the workspace."""
    forgotten: tuple[str, ...] | None = None
    """Of a condensation: the events that left the context."""
    compaction: NativeCompaction | None = None
    error: str | None = None
    is_interrupted: bool = False
    is_done: bool = False
    """The agent said, or was said to be in a state, that ends a turn."""
    tools: tuple[str, ...] | None = None

    @property
    def has_prompt(self) -> bool:
        return any(isinstance(item, NativeMessage) and item.role is MessageRole.USER for item in self.items)

    @property
    def is_answered(self) -> bool:
        return any(isinstance(item, PendingCall) or item.role is MessageRole.ASSISTANT for item in self.items)


class TurnEvents:
    """Takes what the events say, one after another."""

    def __init__(self, prefix: str) -> None:
        """`prefix` makes the ids of events unique where they only count within a conversation."""
        self._prefix = prefix
        self.drafts: list[TurnDraft] = []
        self._groups: dict[str, int] = {}
        self._calls: dict[str, PendingCall] = {}
        self._turn_of: dict[str, int] = {}
        self._prompt_key: str | None = None
        self._keys: set[str] = set()
        self.tools: tuple[str, ...] | None = None
        self.workspace: str | None = None

    def _draft(self, span: Span) -> TurnDraft:
        """The turn that an event belongs to; it begins one if none is under way."""
        if not self.drafts or self.drafts[-1].forgotten is not None:
            self._begin(span, None if self._prompt_key is None else f"{self._prompt_key}#{span.id}")
        draft = self.drafts[-1]
        draft.end = max(draft.end, span.end)
        draft.names.append(span.id)
        self._turn_of[span.id] = len(self.drafts) - 1
        return draft

    def _begin(self, span: Span, key: str | None = None) -> None:
        unique = wanted = key or f"{self._prefix}{span.id}"
        number = 1
        while unique in self._keys:
            number += 1
            unique = f"{wanted}~{number}"
        self._keys.add(unique)
        parent = len(self.drafts) - 1 if self.drafts else None
        self.drafts.append(TurnDraft(key=unique, parent=parent, offset=span.offset, tools=self.tools))
        self._groups = {}

    def prompt(self, span: Span, message: NativeMessage) -> None:
        """A user's message: a turn begins, unless nothing has happened in this one yet but what comes before."""
        begun = self.drafts[-1] if self.drafts else None
        if begun is None or begun.forgotten is not None or begun.is_answered or begun.has_prompt:
            self._begin(span)
        draft = self._draft(span)
        self._prompt_key = draft.key
        draft.items.append(message)
        self._timed(draft, message)
        draft.is_done = False

    def say(self, span: Span, message: NativeMessage) -> None:
        """Words that neither begin a turn nor are a response."""
        draft = self._draft(span)
        draft.items.append(message)
        self._timed(draft, message)

    def inject(self, span: Span, value: Any) -> None:
        self._draft(span).injected.append(value)

    def respond(self, span: Span, message: NativeMessage, calls: Iterable[PendingCall], group: str | None) -> None:
        """A response; calls that came with one that is known already join it."""
        draft = self._draft(span)
        asked = list(calls)
        place = None if group is None else self._groups.get(group)
        if place is None:
            self._groups = {} if group is None else {group: len(draft.items)}
            draft.items.append(message)
        else:
            draft.items[place] = _joined(draft.items[place], message)
        draft.items += asked
        for call in asked:
            self._calls[span.id] = self._calls[call.id] = call
        self._timed(draft, message)
        draft.is_done = draft.is_interrupted = False
        draft.error = None

    def call(self, *names: str | None) -> PendingCall | None:
        """The call of this id, or that this event made."""
        return next((found for name in names if name is not None and (found := self._calls.get(name))), None)

    def touch(self, span: Span) -> TurnDraft:
        return self._draft(span)

    def compact(self, span: Span, compaction: NativeCompaction, forgotten: Iterable[str], items: list[Item]) -> None:
        self._begin(span)
        draft = self._draft(span)
        draft.compaction, draft.forgotten, draft.is_done = compaction, tuple(forgotten), True
        draft.items += [item for item in items if isinstance(item, NativeMessage)]

    def state(self, name: str | None, error: str | None = None) -> None:
        """The agent is in a state now."""
        if not self.drafts or name is None:
            return
        draft = self.drafts[-1]
        if draft.is_answered or error is not None:
            draft.is_done = name in DONE
        if error is not None:
            draft.error = error

    def fail(self, span: Span, error: str) -> None:
        draft = self._draft(span)
        draft.error, draft.is_done = error, True

    def interrupt(self) -> None:
        if self.drafts:
            self.drafts[-1].is_interrupted = True

    def spend(self, tokens: Tokens) -> None:
        """What was spent after the last response, or beside it: it counts with that."""
        for draft in reversed(self.drafts):
            for place in range(len(draft.items) - 1, -1, -1):
                item = draft.items[place]
                if isinstance(item, NativeMessage) and item.role is MessageRole.ASSISTANT:
                    total = tokens if item.tokens is None else summed_tokens(item.tokens, tokens)
                    draft.items[place] = replace(item, tokens=total)
                    return

    def _timed(self, draft: TurnDraft, message: NativeMessage) -> None:
        if message.at is not None:
            draft.times.append(message.at)
        elif draft.literal is None:
            draft.literal = message.literal_time

    def turns(self, size: int) -> list[NativeTurn]:
        return [self._turn(number, draft, size) for number, draft in enumerate(self.drafts)]

    def _turn(self, number: int, draft: TurnDraft, size: int) -> NativeTurn:
        items = _finished(draft)
        is_last = number == len(self.drafts) - 1
        return NativeTurn(
            key=draft.key,
            records=identity(items) + (() if draft.compaction is None else (canonical([draft.compaction.summary]),))
            or (canonical([draft.key]),),
            names=tuple(dict.fromkeys(draft.names)),
            items=tuple(items),
            parent=draft.parent,
            compaction=self._compaction(number, draft),
            closed=not is_last or draft.is_done,
            error=draft.error,
            interrupted=draft.is_interrupted,
            started=min(draft.times, default=None),
            ended=max(draft.times, default=None),
            literal_time=draft.literal if not draft.times else None,
            workspace=self.workspace,
            tools=draft.tools,
            offset=draft.offset,
            end=draft.end or size,
        )

    def _compaction(self, number: int, draft: TurnDraft) -> NativeCompaction | None:
        """Up to the turn of the last event forgotten, keeping from the turn of the first event after it."""
        if draft.compaction is None:
            return None
        gone = set(draft.forgotten or ())
        order = [(id, turn) for id, turn in self._turn_of.items() if turn < number]
        last = max((place for place, (id, _) in enumerate(order) if id in gone), default=None)
        if last is None:
            return draft.compaction
        kept = order[last + 1][1] if last + 1 < len(order) else None
        return replace(draft.compaction, through=order[last][1], first_kept=kept)


def _joined(first: NativeMessage | PendingCall, more: NativeMessage) -> NativeMessage | PendingCall:
    """One response told by several events: each says what the others leave out."""
    if isinstance(first, PendingCall) or not more.parts or more.parts == first.parts:
        return first
    return replace(first, parts=first.parts + tuple(part for part in more.parts if part not in first.parts))


def _finished(draft: TurnDraft) -> list[Item]:
    items: list[Item] = list(finished_items(draft.items))
    if draft.injected:
        place = next((n for n, item in enumerate(items) if getattr(item, "role", None) is MessageRole.USER), None)
        if place is None:
            items.insert(0, NativeMessage(role=MessageRole.SYSTEM, parts=(), source=MessageSource.EVENT))
            place = 0
        found = items[place]
        if isinstance(found, NativeMessage):
            items[place] = replace(found, context=present(**mapping(found.context), injected=draft.injected))
    return items


def summary_message(summary: str | None, **fields: Any) -> list[Item]:
    if not summary:
        return []
    return [NativeMessage(role=MessageRole.ASSISTANT, parts=(TextPart(summary),), **fields)]
