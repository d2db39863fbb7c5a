"""Sessions of Factory's droid: one file of JSON lines a session, and its settings beside it.

The first pass tells which records make a turn, and which turn each follows. The second pass maps
the records of one turn.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from msgspec import UNSET, Struct, field
from msgspec.structs import replace

from weft.exchange.importers.foreign_files import FileRefused, Record, first_objects, read_beneath, records
from weft.exchange.importers.foreign_values import json_value, mapping, millis, present, sequence, text, whole_number
from weft.exchange.importers.native_turns import (
    Entry,
    PendingCall,
    PlannedTurn,
    Role,
    TurnBuilder,
    TurnPlan,
    count_kept,
    entry_of,
    patched_paths,
    walk_turns,
)
from weft.exchange.importers.port import (
    NativeCompaction,
    NativeLink,
    NativeMessage,
    NativeSession,
    NativeTurn,
    Place,
    Report,
    Source,
    Transcript,
)
from weft.kernel.enums import AgentRole, FileKind, LinkReason, MessageRole, MessageSource, ToolCallStatus
from weft.ledger.model import FileNote, ImagePart, Part, ReasoningPart, TextPart

# --- The first pass over a droid's session file: what each record is, which records make a turn, which turn each
# follows.

REMINDER = "<system-reminder>"
HIDDEN = frozenset({"llm_only", "user_only"})
"""Whom a message is shown to, where that is not everybody: then no person wrote it."""
HUMAN = frozenset({"user", "human", "cli", "tui", "web", "desktop", "ide"})


RECORD_ROLES = {
    "session_start": Role.SESSION,
    "session_settings": Role.SESSION,
    "session_end": Role.SESSION,
    "todo_state": Role.SESSION,
    "agent_turn_outcome": Role.END,
    "compaction_state": Role.COMPACTION,
}
MESSAGE_ROLES = frozenset({"user", "assistant", "system", "tool"})


def kind_of(value: dict[str, Any]) -> str:
    kind = text(value.get("type")) or "none"
    return f"message.{text(mapping(value.get('message')).get('role')) or 'none'}" if kind == "message" else kind


def role_of(value: dict[str, Any]) -> Role:
    kind, message = text(value.get("type")) or "", mapping(value.get("message"))
    if kind != "message":
        return RECORD_ROLES.get(kind, Role.UNKNOWN)
    role = text(message.get("role"))
    if role not in MESSAGE_ROLES:
        return Role.UNKNOWN
    if role == "system":
        return Role.INJECTED
    if role != "user" or is_outcome(message):
        return Role.ANSWER
    return Role.INJECTED if is_injected(message) else Role.PROMPT


def content_blocks(message: dict[str, Any]) -> list[dict[str, Any]]:
    content = message.get("content")
    listed = sequence(content) if isinstance(content, list) else [content]
    objects = [{"type": "text", "text": block} if isinstance(block, str) else mapping(block) for block in listed]
    return [block if isinstance(block.get("type", ""), str) else {**block, "type": ""} for block in objects]


def is_outcome(message: dict[str, Any]) -> bool:
    contents = content_blocks(message)
    has_results = any(block.get("type") == "tool_result" for block in contents)
    return has_results and not any(own_words(block) for block in contents)


def own_words(block: dict[str, Any]) -> str | None:
    """The text of a block that is not one of the tool's reminders."""
    words = text(block.get("text")) if block.get("type") == "text" else None
    return None if words is None or words.lstrip().startswith(REMINDER) else words


def is_injected(message: dict[str, Any]) -> bool:
    if text(message.get("visibility")) in HIDDEN or message.get("hookEventName"):
        return True
    contents = content_blocks(message)
    return bool(contents) and all(block.get("type") == "text" and own_words(block) is None for block in contents)


class DroidTurn(PlannedTurn, kw_only=True):
    ends: list[int] = field(default_factory=list)
    """The records that tell how it ended."""


class Index:
    def __init__(self, report: Report, fallback: str) -> None:
        self._report, self.session = report, fallback
        self.start: dict[str, Any] = {}
        self.session_records: dict[str, dict[str, Any]] = {}
        """Other records that tell of the session, of each kind the last."""
        self.plan: TurnPlan[DroidTurn] = TurnPlan()
        self.turns: dict[str, int] = {}
        """The turn of each message, by its id."""
        self._waiting: list[int] = []
        self._summaries: list[Entry] = []
        self._keys: set[str] = set()

    def plan_record(self, record: Record) -> None:
        value = record.value
        kind, role = kind_of(value), role_of(value)
        entry = entry_of(record, kind)
        if role is Role.UNKNOWN:
            count_kept(self._report, kind, role)
        elif role is Role.SESSION:
            self._report.mapped[kind] += 1
            self._note_session(kind, value)
        elif role is Role.END:
            self._add_ending(entry, text(value.get("turnId")))
        elif role is Role.COMPACTION:
            self._summaries.append(entry)
        elif role is Role.INJECTED:
            self._waiting.append(self.plan.add(entry))
        else:
            self._plan_message(entry, role, text(value.get("parentId")))

    def finish(self) -> None:
        if self._waiting:
            first = self.plan.entries[self._waiting[0]]
            self._join(self._begin_turn(first) if not self.plan.turns else self.plan.turns[-1])
        self._sum_up()
        for planned in self.plan.turns:
            planned.entries += planned.ends

    def _note_session(self, kind: str, value: dict[str, Any]) -> None:
        if kind == "session_start" and not self.start:
            self.start = mapping(value.get("session")) or value
            self.session = text(self.start.get("id")) or self.session
        else:
            self.session_records[kind] = value

    def _add_ending(self, entry: Entry, turn: str | None) -> None:
        number = self.turns.get(turn or "", len(self.plan.turns) - 1)
        if number >= 0:
            self.plan.turns[number].ends.append(self.plan.add(entry))
        else:
            self._report.mapped[entry.kind] += 1

    def _plan_message(self, entry: Entry, role: Role, parent: str | None) -> None:
        if role is Role.PROMPT or not self.plan.turns:
            self._sum_up()
            planned = self._begin_turn(entry)
            before = self.turns.get(parent or "")
            if before is not None and not self._has_summary_after(before):
                planned.parent = before
        planned = self.plan.turns[-1]
        if role is Role.PROMPT or self._waiting:
            self._join(planned)
        self.plan.append(len(self.plan.turns) - 1, entry)
        self._note_turn(entry)

    def _has_summary_after(self, turn: int) -> bool:
        """A summary that follows a turn stands between it and what grows from it."""
        return any(planned.is_compaction and planned.parent == turn for planned in self.plan.turns)

    def _begin_turn(self, entry: Entry) -> DroidTurn:
        key = entry.id if entry.id is not None and entry.id not in self._keys else f"{self.session}#{entry.offset}"
        self._keys.add(key)
        last = len(self.plan.turns) - 1
        self.plan.begin_turn(DroidTurn(key=key, parent=last if last >= 0 else None))
        return self.plan.turns[-1]

    def _join(self, planned: DroidTurn) -> None:
        planned.entries += self._waiting
        for number in self._waiting:
            self._note_turn(self.plan.entries[number])
        self._waiting = []

    def _note_turn(self, entry: Entry) -> None:
        if entry.id is not None:
            self.turns.setdefault(entry.id, len(self.plan.turns) - 1)

    def _sum_up(self) -> None:
        """Summaries come after the turn in which they were made."""
        for entry in self._summaries:
            planned = self._begin_turn(entry)
            planned.is_compaction = True
            planned.entries = [self.plan.add(entry)]
            self._note_turn(entry)
        self._summaries = []


# --- The second pass: the records of one turn of a droid, mapped to what the ledger takes.

KNOWN = frozenset({"text", "thinking", "redacted_thinking", "tool_use", "tool_result", "image", "document"})
WRITERS = frozenset({"Edit", "MultiEdit", "Create", "Write", "ApplyPatch", "NotebookEdit"})
SEARCHERS = frozenset({"LS", "Grep", "Glob"})
PATHS = ("file_path", "path", "directory_path", "folder", "notebook_path")
REFUSED = re.compile(
    r"(?:Error: )?(?:Tool execution|Request|Permission|Command) (?:was )?(?:cancel|reject|denied)", re.IGNORECASE
)


def message_parts(message: dict[str, Any], is_prompt: bool) -> list[Part]:
    """A prompt without the tool's reminders; those stand beside it."""
    message_parts: list[Part] = []
    for block in content_blocks(message):
        kind = block.get("type")
        words = text(block.get("text")) if kind == "text" else None
        if words is not None and not (is_prompt and own_words(block) is None):
            message_parts.append(TextPart(words))
        elif kind == "thinking" and (thought := text(block.get("thinking")) or text(block.get("text"))):
            message_parts.append(ReasoningPart(thought))
        elif kind == "image" and (url := _image_url(block)) is not None:
            message_parts.append(ImagePart(url))
    return message_parts


def _image_url(block: dict[str, Any]) -> str | None:
    source = mapping(block.get("source"))
    data, url = text(source.get("data")), text(source.get("url"))
    if data is None:
        return url
    return data if data.startswith("data:") else f"data:{text(source.get('media_type')) or 'image/png'};base64,{data}"


def reminders(message: dict[str, Any]) -> list[str]:
    texts = (text(block.get("text")) for block in content_blocks(message) if block.get("type") == "text")
    return [words for words in texts if words is not None and words.lstrip().startswith(REMINDER)]


def documents(message: dict[str, Any]) -> tuple[list[dict[str, Any]], list[FileNote]]:
    """What is attached beside images, without the contents that the verbatim copy has, and where it lies."""
    sources = [mapping(block.get("source")) for block in content_blocks(message) if block.get("type") == "document"]
    descriptions = [
        present(name=file.get("name"), type=file.get("media_type"), path=file.get("path")) or {} for file in sources
    ]
    notes = [FileNote(kind=FileKind.ATTACHED, path=path) for source in sources if (path := text(source.get("path")))]
    return descriptions, notes


def unknown_blocks(message: dict[str, Any]) -> list[dict[str, Any]]:
    """Blocks of kinds that nobody knows."""
    return [block for block in content_blocks(message) if block and block.get("type") not in KNOWN]


def message_calls(message: dict[str, Any], time: int | None) -> list[PendingCall]:
    return [_call(block, time) for block in content_blocks(message) if block.get("type") == "tool_use"]


def _call(block: dict[str, Any], time: int | None) -> PendingCall:
    return PendingCall(
        id=text(block.get("id")) or "",
        name=text(block.get("name")) or "",
        arguments=block.get("input"),
        at=time,
        detail=present(namespace=block.get("namespace"), script=block.get("script_execution")),
    )


def result_blocks(message: dict[str, Any]) -> list[dict[str, Any]]:
    return [block for block in content_blocks(message) if block.get("type") == "tool_result"]


def settle_call(call: PendingCall, block: dict[str, Any], time: int | None) -> None:
    """Give a call its outcome."""
    call.result, call.done = plain_result(block.get("content", UNSET)), time
    words = call.result if isinstance(call.result, str) else ""
    if block.get("is_error") is True or block.get("isError") is True:
        call.fail(words or "error", ToolCallStatus.CANCELED if REFUSED.match(words) else ToolCallStatus.ERROR)
    else:
        call.status = ToolCallStatus.OK
        call.files = touched_files(call.name, call.arguments)


def plain_result(result: Any) -> Any:
    """Blocks of text alone are the text that they hold."""
    contents = [mapping(block) for block in sequence(result)]
    if contents and all(block.get("type") == "text" and isinstance(block.get("text"), str) for block in contents):
        return "\n".join(block["text"] for block in contents)
    return result


def touched_files(name: str, arguments: Any) -> tuple[FileNote, ...]:
    fields = mapping(arguments)
    path = next((value for key in PATHS if (value := text(fields.get(key)))), None)
    if name in WRITERS:
        patch = next((words for key in ("input", "patch") if isinstance(words := fields.get(key), str)), "")
        paths = [path] if path else patched_paths(patch)
        return tuple(FileNote(kind=FileKind.WRITTEN, path=written_path) for written_path in paths)
    if path is None:
        return ()
    if name == "Read":
        start, limit = whole_number(fields.get("offset")), whole_number(fields.get("limit"))
        first = None if start is None else start + 1  # droid counts lines from 0
        last = None if limit is None else (first or 1) + limit - 1
        return (FileNote(kind=FileKind.READ, path=path, line_start=first, line_end=last),)
    return (FileNote(kind=FileKind.REFERENCED, path=path),) if name in SEARCHERS else ()


FAILED = ("error", "fail", "timeout", "limit")
STOPPED = ("interrupt", "cancel", "abort", "reject", "stop")


class Setting(Struct, frozen=True):
    """What holds for every message of a session."""

    model: str | None = None
    provider: str | None = None
    is_subagent: bool = False


class DroidBuilder(TurnBuilder, kw_only=True):
    """A turn of a droid, record by record."""

    setting: Setting
    names: list[str] = field(default_factory=list)
    compaction: NativeCompaction | None = None
    anchor: str | None = None
    """The last message that the compaction summarised."""
    result: Any = None

    def add_record(self, entry: Entry, value: dict[str, Any]) -> None:
        role = role_of(value)
        if role is Role.END:
            self._note_ending(value)
            return
        self.note_time(value.get("timestamp"))
        if entry.id is not None:
            self.names.append(entry.id)
        if role is Role.COMPACTION:
            self._sum_up(value)
            return
        message, time = mapping(value.get("message")), millis(value.get("timestamp"))
        self.add_identity(message.get("role"), entry.id, [_block_identity(block) for block in content_blocks(message)])
        if role in (Role.PROMPT, Role.INJECTED):
            self.items.append(self._prompt(message, entry.id, time))
        elif message.get("role") == "assistant":
            self.items += self._answer(message, entry.id, time)
        for block in result_blocks(message):
            self._settle(block, time)

    def _prompt(self, message: dict[str, Any], id: str | None, time: int | None) -> NativeMessage:
        is_own = not is_injected(message) and message.get("role") == "user"
        attached, notes = documents(message)
        hook = {name: field for name, field in message.items() if name.startswith("hook")}
        return NativeMessage(
            role=MessageRole.SYSTEM if message.get("role") == "system" else MessageRole.USER,
            parts=tuple(message_parts(message, is_prompt=is_own)),
            native=id,
            at=time,
            source=self._source(message) if is_own else MessageSource.EVENT,
            context=present(reminders=reminders(message) if is_own else None),
            metadata=present(
                visibility=message.get("visibility"),
                source=message.get("userMessageSource"),
                hook=hook,
                documents=attached,
                blocks=unknown_blocks(message),
            ),
            files=tuple(notes),
        )

    def _source(self, message: dict[str, Any]) -> MessageSource:
        source = text(message.get("userMessageSource"))
        if source is not None and source not in HUMAN:
            return MessageSource.TRIGGER
        return MessageSource.AGENT if self.setting.is_subagent else MessageSource.HUMAN

    def _answer(self, message: dict[str, Any], id: str | None, time: int | None) -> list[NativeMessage | PendingCall]:
        answer = NativeMessage(
            role=MessageRole.ASSISTANT,
            parts=tuple(message_parts(message, is_prompt=False)),
            native=id,
            at=time,
            model=text(message.get("modelId")) or text(message.get("model")) or self.setting.model,
            provider=text(message.get("apiProvider")) or self.setting.provider,
            metadata=present(
                effort=message.get("reasoningEffort"),
                router=message.get("routerId"),
                response=message.get("openaiMessageId"),
                reasoning=message.get("openaiReasoningSummary"),
                blocks=unknown_blocks(message),
            ),
        )
        return [answer, *message_calls(message, time)]

    def _settle(self, block: dict[str, Any], time: int | None) -> None:
        """The outcome of the call that it names, of those with this id the first that waits."""
        id = text(block.get("tool_use_id"))
        for item in self.items:
            if isinstance(item, PendingCall) and item.is_open and item.id == id:
                settle_call(item, block, time)
                return

    def _sum_up(self, value: dict[str, Any]) -> None:
        """Newer versions have the words beside the record, older ones a title and a body."""
        summary = mapping(value.get("summary"))
        texts = (
            text(value.get("summaryText")),
            text(value.get("summary")),
            text(summary.get("body")),
            text(summary.get("title")),
        )
        words = next((candidate for candidate in texts if candidate), "")
        self.anchor = text(mapping(value.get("anchorMessage")).get("id"))
        self.add_identity("summary", text(value.get("id")), words, self.anchor)
        self.compaction = NativeCompaction(
            summary=words,
            tokens_after=whole_number(value.get("summaryTokens")),
            metadata=present(
                kind=value.get("summaryKind"), removed=value.get("removedCount"), title=summary.get("title")
            ),
        )

    def _note_ending(self, value: dict[str, Any]) -> None:
        """How the turn ended, in the tool's own words."""
        reason = text(value.get("reason")) or "ended"
        self.result = present(kind=value.get("resultKind"), result=value.get("result"))
        self.add_identity("ended", reason, self.result)
        error = text(value.get("error")) or text(mapping(value.get("error")).get("message"))
        if error is not None:
            reason = f"{reason}: {error}" if _names_one(reason, FAILED) else f"error: {error}"
        self.error = reason if _names_one(reason, FAILED) else None
        self.is_interrupted = self.error is None and _names_one(reason, STOPPED)


def _names_one(reason: str, words: tuple[str, ...]) -> bool:
    return any(word in reason.lower() for word in words)


def _block_identity(block: dict[str, Any]) -> Any:
    """What makes the identity of a block: not the provider's signatures, which are made anew."""
    volatile = ("signature", "signatureProvider", "durationMs", "thought_signature", "cache_control")
    return {name: value for name, value in block.items() if name not in volatile}


# --- Factory's droid: one file of JSON lines a session, and its settings beside it.

SETTINGS = ".settings.json"
STARTED = ("cwd", "owner", "title", "sessionTitle", "version", "hostId", "session")
"""What a droid's first line has beside its id; other tools begin sessions too."""


class FactoryDroid:
    origin = "factory-droid"
    mapping = 1

    def places(self, home: Path, environment: Mapping[str, str]) -> list[Place]:
        folder = environment.get("FACTORY_DIR")
        base = Path(folder) if folder else home / ".factory"
        return [Place(base / "sessions", "Factory's droid"), Place(base / "projects", "Factory's droid, by project")]

    def recognises(self, source: Source) -> bool:
        objects = first_objects(source.head, limit=16)
        if any(is_start(value) for value in objects):
            return True
        return any(is_message(value) for value in objects) and ".factory" in source.path.parts

    def is_part(self, source: Source) -> bool:
        """A session's settings are told with it."""
        name = source.path.name
        return name.endswith(SETTINGS) and source.path.with_name(f"{name.removesuffix(SETTINGS)}.jsonl").is_file()

    def session_file(self, source: Source) -> Path | None:
        return source.path.with_name(f"{source.path.name.removesuffix(SETTINGS)}.jsonl")

    def part_files(self, path: Path) -> list[Path]:
        return []

    def read(self, source: Source, report: Report) -> Iterator[Transcript]:
        index = Index(report, source.path.stem)
        for record in records(source, report):
            index.plan_record(record)
        index.finish()
        if report.found:
            settings = _settings(source.path, index, report)
            session = replace(session_of(index, settings), told_at=_settings_time(source.path))
            yield Transcript(session=session, turns=_turns(source, index, settings, report))


def is_start(value: dict[str, Any]) -> bool:
    if value.get("type") != "session_start":
        return False
    session_fields = mapping(value.get("session")) or value
    return text(session_fields.get("id")) is not None and any(name in value for name in STARTED)


def is_message(value: dict[str, Any]) -> bool:
    return value.get("type") == "message" and "role" in mapping(value.get("message")) and "content" in value["message"]


def _settings_time(path: Path) -> int | None:
    """When the settings beside it were."""
    try:
        return path.with_name(f"{path.stem}{SETTINGS}").stat().st_mtime_ns // 1_000_000
    except OSError:
        return None


def _settings(path: Path, index: Index, report: Report) -> dict[str, Any]:
    """From beside the file, else as the file itself has them last."""
    try:
        file_settings = mapping(json_value(read_beneath(path.with_name(f"{path.stem}{SETTINGS}"), path.parent)))
    except FileRefused as error:
        report.problem(None, f"{path.stem}{SETTINGS}: {error.strerror}")
        file_settings = {}
    except (OSError, ValueError):
        file_settings = {}
    record = index.session_records.get("session_settings", {})
    recorded_settings = mapping(record.get("settings")) or {
        name: value for name, value in record.items() if name != "type"
    }
    return file_settings or recorded_settings


def session_of(index: Index, settings: dict[str, Any]) -> NativeSession:
    start = index.start
    parent = text(start.get("callingSessionId"))
    title = text(start.get("sessionTitle")) or text(start.get("title"))
    todos = index.session_records.get("todo_state", {}).get("todos")
    return NativeSession(
        id=index.session,
        title=title,
        workspace=text(start.get("cwd")),
        git_branch=text(mapping(start.get("gitRepo")).get("branch")) or text(start.get("gitBranch")),
        created=millis(start.get("timestamp")),
        parent=parent,
        spawn_call=text(start.get("callingToolUseId")),
        task=title if parent is not None else None,
        archived=text(settings.get("archivedAt")) is not None,
        metadata=present(
            settings=settings,
            owner=start.get("owner"),
            host=start.get("hostId"),
            form=start.get("version"),
            forked_from=start.get("parent"),
            forked_at=start.get("forkedAtMessageId"),
            kind=start.get("decompSessionType"),
            mission=start.get("decompMissionId"),
            todos=todos,
        ),
    )


def _turns(source: Source, index: Index, settings: dict[str, Any], report: Report) -> Iterator[NativeTurn]:
    setting = Setting(
        model=text(settings.get("model")),
        provider=text(settings.get("apiProviderLock")) or text(settings.get("providerLock")),
        is_subagent=text(index.start.get("callingSessionId")) is not None,
    )
    last = len(index.plan.turns) - 1

    def turn_of(number: int, planned: DroidTurn, builder: DroidBuilder) -> NativeTurn:
        return builder.turn(
            planned,
            index.plan.entries_of(planned),
            names=tuple(builder.names),
            link=_link(index) if planned.parent is None else None,
            compaction=_compaction(index, number, builder),
            closed=number < last or bool(planned.ends) or planned.is_compaction,
            role=AgentRole.WORKER if setting.is_subagent else AgentRole.UNIFIED,
            workspace=text(index.start.get("cwd")),
            tools=_tools(settings),
            toolset=text(settings.get("interactionMode")),
            permissions=present(autonomy=settings.get("autonomyLevel") or settings.get("autonomyMode")),
            config=present(model=settings.get("model"), effort=settings.get("reasoningEffort")),
            metadata=builder.result,
        )

    return walk_turns(source, index.plan, report, lambda number, planned: DroidBuilder(setting=setting), turn_of)


def _compaction(index: Index, number: int, builder: DroidBuilder) -> NativeCompaction | None:
    if builder.compaction is None:
        return None
    through = index.turns.get(builder.anchor or "")
    return replace(builder.compaction, through=through if through is not None and through < number else None)


def _link(index: Index) -> NativeLink | None:
    """A fork names the session and the message that it grew from; where it holds copies of them, it names itself."""
    parent, fork_message = text(index.start.get("parent")), text(index.start.get("forkedAtMessageId"))
    if parent is None or fork_message in index.turns:
        return None
    return NativeLink(to=fork_message or parent, why=LinkReason.FORK, session=parent)


def _tools(settings: dict[str, Any]) -> tuple[str, ...] | None:
    names = {name for id in sequence(settings.get("enabledToolIds")) if (name := text(id))}
    return tuple(sorted(names)) or None
