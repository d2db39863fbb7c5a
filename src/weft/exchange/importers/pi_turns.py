"""Session files of pi as turns.

The first pass tells what each record is, and which records make which turn. The second pass maps
the records of one turn to messages and calls, with the files that calls touched and what the tool
kept beside their results.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from msgspec import UNSET, Struct, field
from msgspec.structs import replace

from weft.exchange.importers.foreign_files import Record
from weft.exchange.importers.foreign_values import mapping, millis, names, present, sequence, text, whole_number
from weft.exchange.importers.native_turns import (
    IN_TURNS,
    LONGEST_SHARED_RECORDS,
    Entry,
    MessageContent,
    PendingCall,
    PlannedTurn,
    Role,
    TurnBuilder,
    TurnPlan,
    count_kept,
    entry_of,
    patched_paths,
    summed_tokens,
)
from weft.exchange.importers.port import NativeMessage, Report, Tokens
from weft.kernel.enums import FileKind, LintSeverity, MessageRole, MessageSource, ToolCallStatus
from weft.ledger.model import FileNote, ImagePart, LintNote, Part, ReasoningPart, TextPart

# --- The first pass over a session file of pi: what each record is, and which records make which turn.

LONGEST_WAY_TURNS = 1000
TERMINAL = frozenset({"stop", "length", "error", "aborted"})

MESSAGE_ROLES = {
    "user": Role.PROMPT,
    "assistant": Role.ANSWER,
    "toolResult": Role.ANSWER,
    "bashExecution": Role.INJECTED,
    "pythonExecution": Role.INJECTED,
    "fileMention": Role.INJECTED,
    "custom": Role.INJECTED,
    "hookMessage": Role.INJECTED,
    "branchSummary": Role.INJECTED,
    "compactionSummary": Role.INJECTED,
    "developer": Role.INJECTED,
    "system": Role.INJECTED,
}

RECORD_ROLES = {
    "custom_message": Role.INJECTED,
    "branch_summary": Role.INJECTED,
    "session_init": Role.INJECTED,
    "compaction": Role.COMPACTION,
    "model_change": Role.SETTING,
    "thinking_level_change": Role.SETTING,
    "mode_change": Role.SETTING,
    "service_tier_change": Role.SETTING,
    "active_tools_change": Role.SETTING,
    "reset_boundary": Role.SETTING,
    "session": Role.SESSION,
    "session_info": Role.SESSION,
    "title": Role.SESSION,
    "title_change": Role.SESSION,
    "label": Role.SESSION,
    "model_usage": Role.SESSION,
    "custom": Role.IGNORED,
    "archive": Role.IGNORED,
    "credential_pin": Role.IGNORED,
    "ttsr_injection": Role.IGNORED,
}

CORE_CUSTOM = frozenset({"tool_execution_start", "session_exit"})
"""`custom` records that oh-my-pi itself writes and that tell of calls or the session."""


def classify(value: dict[str, Any]) -> tuple[str, Role]:
    """A record's kind, as it is counted, and its role."""
    kind = text(value.get("type")) or "untyped"
    if kind == "message":
        role = text(mapping(value.get("message")).get("role")) or "none"
        return f"message.{role}", MESSAGE_ROLES.get(role, Role.UNKNOWN)
    if kind == "custom" and (custom := text(value.get("customType"))) in CORE_CUSTOM:
        return f"custom.{custom}", Role.SESSION
    return kind, RECORD_ROLES.get(kind, Role.UNKNOWN)


class Settings(Struct, frozen=True):
    """What turns run with, as the records before them have set it."""

    model: str | None = None
    provider: str | None = None
    thinking: str | None = None
    mode: str | None = None
    tier: Any = None
    tools: tuple[str, ...] | None = None
    is_reset: bool = False
    """The context was cleared, and no turn has begun since."""

    def begun(self, header: dict[str, Any]) -> Settings:
        """The first version of the format has them in its header."""
        return replace(
            self,
            model=text(header.get("modelId")),
            provider=text(header.get("provider")),
            thinking=text(header.get("thinkingLevel")),
        )

    def changed(self, kind: str, value: dict[str, Any]) -> Settings:
        """As they are after a record of this kind."""
        if kind == "model_change":
            provider, model = text(value.get("provider")), text(value.get("modelId"))
            if model is None and (model_name := text(value.get("model"))) is not None:  # oh-my-pi: provider/model
                provider, model = model_name.split("/", 1) if "/" in model_name else (None, model_name)
            return replace(self, provider=provider, model=model)
        if kind == "thinking_level_change":
            return replace(self, thinking=text(value.get("thinkingLevel")))
        if kind == "mode_change":
            return replace(self, mode=text(value.get("mode")))
        if kind == "service_tier_change":
            return replace(self, tier=value.get("serviceTier"))
        if kind == "active_tools_change":
            return replace(self, tools=names(value.get("activeToolNames")) or None)
        return replace(self, is_reset=True)

    def config(self) -> dict[str, Any] | None:
        return present(
            model=self.model, provider=self.provider, thinking=self.thinking, mode=self.mode, service_tier=self.tier
        )


class Place(Struct, frozen=True):
    """A point in the tree: after `depth` entries of a turn."""

    turn: int | None
    depth: int
    settings: Settings
    is_entry: bool = False
    """The last of those entries is the one that stands here; else something that has no place of its own."""


ROOT = Place(None, 0, Settings())


class PiTurn(PlannedTurn, kw_only=True):
    root: int
    """The first turn of its tree."""
    settings: Settings

    @property
    def is_begun(self) -> bool:
        return self.prompt is not None or self.is_answered


class Index(Struct):
    """What the pass has found."""

    header: dict[str, Any] = field(default_factory=dict)
    title: str | None = None
    init: dict[str, Any] = field(default_factory=dict)
    labels: dict[str, str] = field(default_factory=dict)
    exit: Any = None
    other_usage: list[Any] = field(default_factory=list)
    """Of model calls that are no part of the conversation."""
    plan: TurnPlan[PiTurn] = field(default_factory=TurnPlan[PiTurn])
    call_starts: dict[str, int] = field(default_factory=dict)
    first_time: int | None = None


class Indexer:
    """Takes the records one after another."""

    def __init__(self, report: Report, fallback_id: str) -> None:
        self.index = Index()
        self._plan = self.index.plan
        self._report, self._fallback = report, fallback_id
        self._places: dict[str, Place] = {}
        self._calls: dict[str, int] = {}
        self._order: list[Place] = []
        self._last = ROOT
        self._has_prompt = False

    @property
    def session_id(self) -> str:
        return text(self.index.header.get("id")) or self._fallback

    def plan_record(self, record: Record) -> None:
        kind, role = classify(record.value)
        is_session_updated = role is Role.SESSION and self._update_session(kind, record.value)
        if is_session_updated or role is Role.SETTING:
            self._report.mapped[kind] += 1
        elif role not in IN_TURNS:
            count_kept(self._report, kind, role)
        if kind == "session":
            self._order.append(self._last)
        elif kind != "title":
            self._place_record(record, kind, role)

    def _place_record(self, record: Record, kind: str, role: Role) -> None:
        value = record.value
        place = self._origin(value)
        if role in IN_TURNS:
            place = self._add_after(place, entry_of(record, kind), role, value)
        elif role is Role.SETTING:
            place = Place(place.turn, place.depth, place.settings.changed(kind, value))
        elif place.is_entry:
            place = replace(place, is_entry=False)
        if self.index.first_time is None:
            self.index.first_time = millis(value.get("timestamp"))
        self._last = place
        self._order.append(place)
        if (id := text(value.get("id"))) is not None:
            self._places[id] = place

    def _origin(self, value: dict[str, Any]) -> Place:
        """Where a record continues: after its parent; in the first, linear version after the record before it."""
        if "parentId" not in value:
            return self._last
        parent = text(value["parentId"])
        if parent is not None and (place := self._places.get(parent)) is not None:
            return place
        if parent is not None and (turn := self._calls.get(parent)) is not None:  # OpenClaw hangs a result on its call
            planned = self._plan.turns[turn]
            return Place(turn, len(planned.entries), planned.settings)
        if not self._has_prompt and (parent is None or parent == self.index.header.get("id")):
            return self._last
        return ROOT

    def _add_after(self, place: Place, entry: Entry, role: Role, value: dict[str, Any]) -> Place:
        planned = None if place.turn is None else self._plan.turns[place.turn]
        tip = place.turn if planned is not None and place.depth == len(planned.entries) else None
        if role is Role.COMPACTION:
            turn = self._compact(place, planned, value)
        elif role is Role.ANSWER:
            turn = self._answer(place, planned, tip)
        elif planned is None or tip is None or planned.is_finished or (planned.is_begun and role is Role.PROMPT):
            turn = self._plan.begin_turn(self._planned(place))
        else:
            turn = tip
        self._has_prompt |= role is Role.PROMPT
        return self._append(turn, entry, role, value, place.settings)

    def _compact(self, place: Place, before: PiTurn | None, value: dict[str, Any]) -> int:
        compaction = self._planned(place)
        compaction.is_compaction = compaction.is_finished = True
        if before is not None:
            compaction.compacted_prompt = before.compacted_prompt if before.is_compaction else self._key_of(before)
        self._keep_from(compaction, value)
        return self._plan.begin_turn(compaction)

    def _answer(self, place: Place, planned: PiTurn | None, tip: int | None) -> int:
        if planned is None:
            return self._plan.begin_turn(self._planned(place))
        if planned.is_compaction:
            return self._plan.begin_turn(self._planned(place, planned.compacted_prompt))
        if tip is not None:
            return tip
        if place.depth > LONGEST_SHARED_RECORDS:
            return self._plan.begin_turn(self._planned(place, self._key_of(planned)))
        other_answer = self._planned(Place(planned.parent, 0, planned.settings), self._key_of(planned))
        return self._plan.begin_again(other_answer, planned, place.depth)

    def _planned(self, place: Place, continues: str | None = None) -> PiTurn:
        turns = self._plan.turns
        root = len(turns) if place.turn is None else turns[place.turn].root
        return PiTurn(parent=place.turn, root=root, settings=place.settings, continues=continues)

    def _append(self, turn: int, entry: Entry, role: Role, value: dict[str, Any], settings: Settings) -> Place:
        planned = self._plan.turns[turn]
        number = self._plan.append(turn, entry)
        if role is Role.PROMPT and planned.prompt is None:
            planned.prompt = number
        if not planned.is_answered:
            planned.settings = replace(settings, is_reset=settings.is_reset or planned.settings.is_reset)
        if entry.kind == "message.assistant":
            self._note_answer(turn, planned, mapping(value.get("message")))
        elif entry.kind == "session_init" and not self.index.init:
            self.index.init = {name: field for name, field in value.items() if name != "systemPrompt"}
        after = replace(settings, is_reset=False) if settings.is_reset else settings
        return Place(turn, len(planned.entries), after, is_entry=True)

    def _note_answer(self, turn: int, planned: PiTurn, message: dict[str, Any]) -> None:
        calls = [block for block in sequence(message.get("content")) if mapping(block).get("type") == "toolCall"]
        for block in calls:
            if (id := text(block.get("id"))) is not None:
                self._calls[id] = turn
        stop = text(message.get("stopReason"))
        planned.is_answered = True
        planned.is_finished = not calls if stop is None else stop in TERMINAL

    def _keep_from(self, compaction: PiTurn, value: dict[str, Any]) -> None:
        kept_place = self._places.get(text(value.get("firstKeptEntryId")) or "")
        if kept_place is None and (number := whole_number(value.get("firstKeptEntryIndex"))) is not None:
            kept_place = self._order[number] if 0 < number < len(self._order) else None
        if kept_place is not None and kept_place.is_entry:
            compaction.first_kept, compaction.is_split = kept_place.turn, kept_place.depth > 1
        elif kept_place is not None:
            compaction.first_kept = self._turn_after(kept_place.turn, compaction.parent)

    def _turn_after(self, turn: int | None, tip: int | None) -> int | None:
        """The turn that follows one on the way to another: what is kept is recent, so the way is short."""
        if turn is None:
            return None if tip is None else self._plan.turns[tip].root
        for _ in range(LONGEST_WAY_TURNS):
            if tip is None or tip == turn:
                break
            parent = self._plan.turns[tip].parent
            if parent == turn:
                return tip
            tip = parent
        return None

    def _key_of(self, planned: PiTurn) -> str:
        return self._plan.prompt_key(planned, self._name)

    def _name(self, number: int) -> str:
        """An entry's id; the first version of the format has none, so its place in the session stands for it."""
        return self._plan.entries[number].id or f"{self.session_id}#{number}"

    def finish(self) -> Index:
        self._plan.assign_keys(self._name)
        return self.index

    def _update_session(self, kind: str, value: dict[str, Any]) -> bool:
        """What a record tells of the session; False if it tells nothing."""
        index = self.index
        if kind == "session":
            if index.header:
                return False
            index.header = value
            index.title = text(value.get("title")) or index.title
            self._last = Place(None, 0, self._last.settings.begun(value))
        elif kind in ("title", "title_change"):
            index.title = text(value.get("title")) or index.title
        elif kind == "session_info":
            index.title = (text(value.get("name")) or "").strip() or index.title
        elif kind == "label":
            self._note_label(value)
        elif kind == "model_usage":
            index.other_usage.append({k: v for k, v in value.items() if k not in ("type", "id", "parentId")})
        elif kind == "custom.session_exit":
            index.exit = value.get("data")
        else:
            self._note_start(mapping(value.get("data")))
        return True

    def _note_label(self, value: dict[str, Any]) -> None:
        target, label = text(value.get("targetId")), text(value.get("label"))
        if target is not None and label is not None:
            self.index.labels[target] = label
        elif target is not None:
            self.index.labels.pop(target, None)

    def _note_start(self, data: dict[str, Any]) -> None:
        call, began = text(data.get("toolCallId")), millis(data.get("startedAt"))
        if call is not None and began is not None:
            self.index.call_starts.setdefault(call, began)


# --- Tool calls: their outcome, the files they touched and what the tool kept beside its result.

READERS = frozenset({"read", "read_file", "view"})
WRITERS = frozenset({"write", "edit", "multi_edit", "write_file", "edit_file", "create_file", "apply_patch"})
SEARCHERS = frozenset({"grep", "find", "ls", "glob", "search"})
PATHS = ("path", "file_path", "filePath")
REPEATED = frozenset({"displayContent", "content", "truncation"})
"""What a tool's details repeat of its result."""

SELECTED = re.compile(r"(.+):([0-9]{1,9})(?:-([0-9]{1,9}))?")
LINT = re.compile(
    r"(?P<path>.+?):(?P<line>[0-9]{1,9}):(?P<col>[0-9]{1,9}) \[(?P<severity>[a-z]+)\] "
    r"(?:\[(?P<source>[^\]]+)\] )?(?P<what>.*)",
    re.DOTALL,
)
SEVERITIES = {severity.value: severity for severity in LintSeverity}


class Call(PendingCall):
    """A tool call of Pi that waits for the message with its result."""

    asked_by: int = 0
    """Which of its turn's items is the response that asked for it."""

    def settle(self, outcome: dict[str, Any], done: int | None) -> None:
        """Take the message with the tool's result."""
        content, details = outcome.get("content"), mapping(outcome.get("details"))
        failed = outcome.get("isError") is True
        result = plain_content(content)
        self.error = words(content) if failed else None
        only_error = failed and isinstance(result, str)
        self.result = UNSET if only_error or result is None else result
        self.status = error_status(self.error) if self.error is not None else ToolCallStatus.OK
        self.done, self.detail = done, call_detail(outcome)
        self.files = () if failed else touched_files(self.name, mapping(self.arguments), details)
        self.lints = lint_notes(details)


def call_of(block: dict[str, Any], starts: dict[str, int]) -> Call:
    id = text(block.get("id")) or ""
    return Call(id, text(block.get("name")) or "", block.get("arguments"), at=starts.get(id))


def plain_content(content: Any) -> Any:
    """What a tool gave back: a text where it is one, else its blocks."""
    if isinstance(content, list) and len(content) == 1:
        block = content[0]
        if isinstance(block, dict) and block.get("type") == "text" and isinstance(block.get("text"), str):
            return block["text"]
    return content


def words(content: Any) -> str:
    """The text in it."""
    if isinstance(content, str):
        return content
    texts = (block.get("text") for block in sequence(content) if isinstance(block, dict))
    return "\n".join(words for words in texts if isinstance(words, str))


def error_status(error: str) -> ToolCallStatus:
    error_end = error[-200:]
    if "Command timed out after" in error_end:
        return ToolCallStatus.TIMEOUT
    is_stopped = error_end.endswith(("Command aborted", "Operation aborted"))
    return ToolCallStatus.INTERRUPTED if is_stopped else ToolCallStatus.ERROR


def call_detail(outcome: dict[str, Any]) -> Any:
    details = outcome.get("details")
    if isinstance(details, dict):
        details = {name: value for name, value in details.items() if name not in REPEATED}
    if (usage := outcome.get("usage")) is not None:
        return {"details": details or None, "usage": usage}
    return details or None


def touched_files(name: str, arguments: dict[str, Any], details: dict[str, Any]) -> tuple[FileNote, ...]:
    if name in READERS:
        return _read_notes(arguments, details)
    if name in WRITERS:
        return tuple(FileNote(kind=FileKind.WRITTEN, path=path) for path in _written_paths(arguments, details))
    if name in SEARCHERS and (path := _path(arguments)) is not None and not set(path) & set("*?;{"):
        return (FileNote(kind=FileKind.REFERENCED, path=path),)
    return ()


def _path(arguments: dict[str, Any]) -> str | None:
    named_path = next((path for name in PATHS if (path := text(arguments.get(name))) is not None), None)
    return None if named_path is None or "://" in named_path else named_path


def _read_notes(arguments: dict[str, Any], details: dict[str, Any]) -> tuple[FileNote, ...]:
    path = _path(arguments)
    if path is None:
        return ()
    start, limit = whole_number(arguments.get("offset")), whole_number(arguments.get("limit"))
    end = None if limit is None else (start or 1) + limit - 1
    source = mapping(mapping(details.get("meta")).get("source"))
    if source.get("type") == "path" and (selected := SELECTED.fullmatch(path)) is not None:  # oh-my-pi: path:from-to
        path, start = selected[1], int(selected[2])
        end = int(selected[3]) if selected[3] else None
    return (FileNote(kind=FileKind.READ, path=path, line_start=start or (end and 1), line_end=end),)


def _written_paths(arguments: dict[str, Any], details: dict[str, Any]) -> list[str]:
    path = text(details.get("resolvedPath")) or _path(arguments) or text(details.get("path"))
    if path is not None:
        return [path]
    patch = text(arguments.get("input")) or text(arguments.get("patch")) or ""
    return patched_paths(patch)


def lint_notes(details: dict[str, Any]) -> tuple[LintNote, ...]:
    """oh-my-pi: lines such as `src/a.ts:3:7 [error] [tsserver] what is wrong`."""
    messages = mapping(details.get("diagnostics")).get("messages")
    return tuple(_lint(line) for line in sequence(messages) if isinstance(line, str))


def _lint(line: str) -> LintNote:
    match = LINT.fullmatch(line)
    if match is None:
        return LintNote(message=line)
    return LintNote(
        path=match["path"],
        message=match["what"],
        source=match["source"],
        start_line=int(match["line"]),
        start_col=int(match["col"]),
        severity=SEVERITIES.get(match["severity"]),
    )


def done_at(entry: dict[str, Any], message: dict[str, Any]) -> int | None:
    return millis(message.get("timestamp")) or millis(entry.get("timestamp"))


# --- The second pass: the records of one turn of pi, mapped to messages and calls.

BLOB = "blob:"
"""oh-my-pi keeps large images in files of their own and writes only what they are called."""


def content_of(value: Any) -> MessageContent:
    """A text, or a list of blocks. What is neither is kept beside the message."""
    content = MessageContent()
    if isinstance(value, str):
        content.add_text(value)
    elif isinstance(value, list):
        for block in value:
            _add_block(content, block)
    elif value is not None:
        content.add_other(value)
    return content


def _add_block(content: MessageContent, block: Any) -> None:
    kind = block.get("type") if isinstance(block, dict) else None
    if kind == "text" and isinstance(words := block.get("text"), str):
        content.add_text(words)
    elif kind == "thinking" and isinstance(thinking := block.get("thinking"), str):
        content.identity.append(["thinking", thinking])
        if thinking:
            content.parts.append(ReasoningPart(thinking))
    elif kind == "toolCall":
        content.calls.append(block)
        content.identity.append(["call", block.get("id"), block.get("name"), block.get("arguments")])
    elif kind == "image" and (url := image_url(block)) is not None:
        content.identity.append(["image", url])
        content.parts.append(ImagePart(url))
    elif isinstance(block, str):
        content.add_text(block)
    else:
        content.add_other(block)


def image_url(block: dict[str, Any]) -> str | None:
    data, mime = text(block.get("data")), text(block.get("mimeType"))
    if data is None or data.startswith(BLOB):
        return None
    return data if data.startswith("data:") else f"data:{mime or 'application/octet-stream'};base64,{data}"


RESPONSE_FIELDS = ("api", "responseId", "responseModel", "providerThinkingLevel", "rawStopReason", "duration", "ttft")
"""Small facts of a response that have no place of their own."""


def response_message(entry: dict[str, Any], message: dict[str, Any], content: MessageContent) -> NativeMessage:
    facts = {name: message[name] for name in RESPONSE_FIELDS if message.get(name) is not None}
    return NativeMessage(
        role=MessageRole.ASSISTANT,
        parts=tuple(content.parts),
        native=text(entry.get("id")),
        at=millis(message.get("timestamp")) or millis(entry.get("timestamp")),
        model=text(message.get("model")),
        provider=text(message.get("provider")),
        tokens=usage_tokens(message.get("usage")),
        finish_reason=text(message.get("stopReason")),
        metadata=present(
            **facts,
            cost=mapping(message.get("usage")).get("cost"),
            error=text(message.get("errorMessage")),
            blocks=content.other_blocks,
        ),
    )


def usage_tokens(usage: Any) -> Tokens | None:
    """Its parts are disjoint already; reasoning lies inside the output."""
    if not isinstance(usage, dict):
        return None
    reasoning = whole_number(usage.get("reasoning"))
    return Tokens(
        input=whole_number(usage.get("input")),
        output=whole_number(usage.get("output")),
        cached=whole_number(usage.get("cacheRead")),
        cache_write=whole_number(usage.get("cacheWrite")),
        reasoning=whole_number(usage.get("reasoningTokens")) if reasoning is None else reasoning,
    )


def error_and_stop(message: dict[str, Any]) -> tuple[str | None, bool]:
    """The error a response ended with, and whether somebody stopped it."""
    stop = message.get("stopReason")
    if stop == "error":
        return text(message.get("errorMessage")) or "error", False
    return None, stop == "aborted"


Injected = tuple[list[Any], NativeMessage]
SOURCES = {"user": MessageSource.HUMAN, "agent": MessageSource.AGENT}


def injected_message(kind: str, entry: dict[str, Any]) -> Injected:
    """The entry reduced to what makes its identity, and its message."""
    message = mapping(entry.get("message")) if kind.startswith("message.") else entry
    return INJECTED_KINDS[kind](entry, message)


def _injected(entry: dict[str, Any], message: dict[str, Any], parts: tuple[Part, ...], **fields: Any) -> NativeMessage:
    defaults: dict[str, Any] = {"role": MessageRole.USER, "source": MessageSource.EVENT}
    time = millis(message.get("timestamp")) or millis(entry.get("timestamp"))
    return NativeMessage(parts=parts, native=text(entry.get("id")), at=time, **{**defaults, **fields})


def _custom(entry: dict[str, Any], message: dict[str, Any]) -> Injected:
    """Both shapes and the old name of an extension's message are one thing."""
    content = content_of(message.get("content"))
    kind = text(message.get("customType"))
    item = _injected(
        entry,
        message,
        tuple(content.parts),
        source=SOURCES.get(text(message.get("attribution")) or "", MessageSource.EVENT),
        metadata=present(
            custom_type=kind,
            details=message.get("details"),
            display=message.get("display"),
            blocks=content.other_blocks,
        ),
    )
    return ["custom", text(entry.get("id")), kind, content.identity], item


def _system(entry: dict[str, Any], message: dict[str, Any]) -> Injected:
    content = content_of(message.get("content"))
    item = _injected(
        entry, message, tuple(content.parts), role=MessageRole.SYSTEM, metadata=present(blocks=content.other_blocks)
    )
    return ["system", text(entry.get("id")), content.identity], item


def _initial(entry: dict[str, Any], message: dict[str, Any]) -> Injected:
    """oh-my-pi: the system prompt that a subagent was started with."""
    content = content_of(entry.get("systemPrompt"))
    item = _injected(entry, message, tuple(content.parts), role=MessageRole.SYSTEM)
    return ["system", text(entry.get("id")), content.identity], item


def _ran(name: str) -> Callable[[dict[str, Any], dict[str, Any]], Injected]:
    """A command that a person ran themselves, with what it printed."""

    def message_of(entry: dict[str, Any], message: dict[str, Any]) -> Injected:
        command, output = text(message.get(name)) or "", text(message.get("output")) or ""
        code, is_cancelled = message.get("exitCode"), message.get("cancelled") is True
        words = f"Ran `{command}`" + (f"\n```\n{output}\n```" if output else "")
        metadata = present(
            command=command,
            exit_code=code,
            cancelled=is_cancelled or None,
            truncated=message.get("truncated") or None,
            excluded=message.get("excludeFromContext") or None,
        )
        identity = [name, text(entry.get("id")), command, output, code, is_cancelled]
        return identity, _injected(entry, message, (TextPart(words),), source=MessageSource.HUMAN, metadata=metadata)

    return message_of


def _mentioned(entry: dict[str, Any], message: dict[str, Any]) -> Injected:
    """oh-my-pi: files that a prompt mentions, read for it."""
    parts: list[Part] = []
    notes: list[FileNote] = []
    identity: list[Any] = []
    for file in map(mapping, sequence(message.get("files"))):
        path, content = text(file.get("path")), text(file.get("content"))
        url = image_url(mapping(file.get("image")))
        identity.append([path, content, url])
        if path is not None:
            notes.append(FileNote(kind=FileKind.ATTACHED, path=path))
        if content is not None:
            parts.append(TextPart(f"{path}\n{content}" if path else content))
        if url is not None:
            parts.append(ImagePart(url))
    return ["files", text(entry.get("id")), identity], _injected(entry, message, tuple(parts), files=tuple(notes))


def _summary(entry: dict[str, Any], message: dict[str, Any]) -> Injected:
    """What was found on a branch that the conversation has left."""
    summary = text(message.get("summary")) or ""
    item = _injected(
        entry,
        message,
        (TextPart(summary),) if summary else (),
        tokens=usage_tokens(message.get("usage")),
        metadata=present(branch_left=message.get("fromId"), details=message.get("details")),
    )
    return ["summary", text(entry.get("id")), summary], item


INJECTED_KINDS: dict[str, Callable[[dict[str, Any], dict[str, Any]], Injected]] = {
    "custom_message": _custom,
    "message.custom": _custom,
    "message.hookMessage": _custom,
    "message.system": _system,
    "message.developer": _system,
    "session_init": _initial,
    "message.bashExecution": _ran("command"),
    "message.pythonExecution": _ran("code"),
    "message.fileMention": _mentioned,
    "branch_summary": _summary,
    "message.branchSummary": _summary,
    "message.compactionSummary": _summary,
}


class PiBuilder(TurnBuilder, kw_only=True):
    """A turn of pi, entry by entry."""

    starts: dict[str, int]
    """When calls began, by their ids."""
    waiting: dict[str, list[Call]] = field(default_factory=dict)
    """Calls without an outcome, by their ids, which may repeat."""
    summary: str = ""
    compaction: dict[str, Any] | None = None

    def add_record(self, entry: Entry, value: dict[str, Any]) -> None:
        self.note_time(value.get("timestamp"))
        if entry.kind == "message.assistant":
            self._add_response(value)
        elif entry.kind == "message.toolResult":
            self._add_result(value)
        elif entry.kind == "message.user":
            self._add_prompt(value)
        elif entry.kind == "compaction":
            self._take_compaction(value)
        else:
            self.add(*injected_message(entry.kind, value))

    def _add_prompt(self, entry: dict[str, Any]) -> None:
        message = mapping(entry.get("message"))
        content = content_of(message.get("content"))
        id = text(entry.get("id"))
        item = NativeMessage(
            role=MessageRole.USER,
            parts=tuple(content.parts),
            native=id,
            at=done_at(entry, message),
            source=SOURCES.get(text(message.get("attribution")) or "user", MessageSource.HUMAN),
            metadata=present(blocks=content.other_blocks),
        )
        self.add(["user", id, content.identity], item)

    def _add_response(self, entry: dict[str, Any]) -> None:
        message = mapping(entry.get("message"))
        content = content_of(message.get("content"))
        self.error, self.is_interrupted = error_and_stop(message)
        id = text(entry.get("id"))
        identity = ["assistant", id, content.identity]
        if self.error is not None or self.is_interrupted:
            identity += [message.get("stopReason"), self.error]
        self.add(identity, response_message(entry, message, content))
        asked_by = len(self.items) - 1
        for call in (call_of(block, self.starts) for block in content.calls):
            call.asked_by = asked_by
            self.items.append(call)
            self.waiting.setdefault(call.id, []).append(call)

    def _add_result(self, entry: dict[str, Any]) -> None:
        message = mapping(entry.get("message"))
        called = text(message.get("toolCallId")) or ""
        content = content_of(message.get("content"))
        id = text(entry.get("id"))
        identity = ["result", id, called, content.identity, message.get("isError") is True]
        if waiting := self.waiting.get(called):
            call = waiting.pop(0)
            call.settle(message, done_at(entry, message))
            self._charge(call, message)
            self.add_identity(*identity)
            return
        item = NativeMessage(
            role=MessageRole.TOOL,
            parts=tuple(content.parts),
            native=id,
            at=done_at(entry, message),
            tokens=usage_tokens(message.get("usage")),
            metadata=present(
                call=called, tool=message.get("toolName"), details=message.get("details"), blocks=content.other_blocks
            ),
        )
        self.add(identity, item)

    def _charge(self, call: Call, message: dict[str, Any]) -> None:
        """A tool may ask models itself: what that took counts with the response that asked for the tool."""
        asker, spent = self.items[call.asked_by], usage_tokens(message.get("usage"))
        if spent is not None and isinstance(asker, NativeMessage):
            cost = mapping(mapping(message.get("usage")).get("cost")).get("total")
            metadata = mapping(asker.metadata)
            if cost is not None:
                metadata = {**metadata, "tool_costs": [*metadata.get("tool_costs", []), cost]}
            self.items[call.asked_by] = replace(
                asker, tokens=summed_tokens(asker.tokens or Tokens(), spent), metadata=metadata or None
            )

    def _take_compaction(self, entry: dict[str, Any]) -> None:
        self.compaction = entry
        summary = entry.get("summary")
        self.summary = summary if isinstance(summary, str) else ""
        id = text(entry.get("id"))
        first_kept = entry.get("firstKeptEntryId", entry.get("firstKeptEntryIndex"))
        item = NativeMessage(
            role=MessageRole.ASSISTANT,
            parts=(TextPart(self.summary),) if self.summary else (),
            native=id,
            at=millis(entry.get("timestamp")),
            tokens=usage_tokens(entry.get("usage")),
        )
        self.add(["compaction", id, self.summary, first_kept], item)
