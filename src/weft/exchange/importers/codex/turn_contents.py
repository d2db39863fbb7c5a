"""The entries of one native turn, read into messages, calls and compactions.

With what holds for its whole thread: the session that its file is of, its name, and the settings in
force.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from itertools import takewhile
from pathlib import Path, PurePath
from typing import Any

import orjson
from msgspec import Struct, field

from weft.exchange.importers.codex.entries import Entry, EntryEffect, TurnEntries, digest
from weft.exchange.importers.codex.responses import (
    Call,
    Compaction,
    Content,
    EventEchoes,
    Prompts,
    Response,
    ResponseReports,
    UsageMeter,
    attached,
    call_of,
    compaction_of,
    content_of,
    event_words,
    names_of,
    output_text,
    says_usage,
    settle,
    take_end,
    take_event,
    take_output,
    tokens_of,
)
from weft.exchange.importers.foreign_files import read_beneath
from weft.exchange.importers.foreign_values import epoch_millis, mapping, sequence, text, whole_number, without_none
from weft.exchange.importers.port import NativeCall, NativeLink, NativeMessage, NativeSession, Source, Tokens
from weft.kernel.enums import LinkReason, MessageRole, MessageSource
from weft.ledger.model import FileNote, TextPart

# --- What holds for a whole thread: the session that its file is of, its name, and the settings in force.

_uuid = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.IGNORECASE)


class ThreadName(Struct, frozen=True):
    title: str
    at: int
    """When it was named; where that is not told, when the index was written."""


def id_in(name: str) -> str | None:
    """The thread that a file is called after."""
    ids = _uuid.findall(name)
    return ids[-1] if ids else None


def name_of(path: Path, id: str | None = None) -> ThreadName | None:
    """The last name of a thread, by default of the one that its file is called after."""
    id = id or id_in(path.name)
    for folder in path.parents[:5]:
        if id is not None and folder.name in ("sessions", "archived_sessions"):
            index = folder.parent / "session_index.jsonl"
            try:
                status = index.stat()
                return _thread_names(index, status.st_mtime_ns, status.st_size).get(id)
            except OSError:
                return None
    return None


@lru_cache(maxsize=4)
def _thread_names(index: Path, stamp: int, size: int) -> dict[str, ThreadName]:
    names: dict[str, ThreadName] = {}
    for line in read_beneath(index, index.parent).splitlines():
        try:
            entry = mapping(orjson.loads(line))
        except orjson.JSONDecodeError:
            continue
        id, title = text(entry.get("id")), text(entry.get("thread_name"))
        if id and title:
            names[id] = ThreadName(title, epoch_millis(entry.get("updated_at")) or stamp // 1_000_000)
    return names


_KEPT_OF_SESSION = (
    "session_id originator source thread_source model_provider forked_from_id parent_thread_id agent_nickname"
    " agent_role agent_path history_mode history_base subagent_history_start_ordinal memory_mode context_window git"
    " multi_agent_version"
).split()
_PERMISSIONS = (
    "approval_policy approvals_reviewer sandbox_policy permission_profile active_permission_profile"
    " file_system_sandbox_policy network_policy"
).split()
_CONTEXT = ("user_instructions", "developer_instructions", "base_instructions")
_NOT_CONFIG = frozenset({*_PERMISSIONS, *_CONTEXT, "turn_id", "type", "cwd", "model", "model_provider"})
_UUID7 = re.compile(r"([0-9a-f]{8})-([0-9a-f]{4})-7[0-9a-f]{3}-[0-9a-f]{4}-[0-9a-f]{12}", re.IGNORECASE)
_GLOBAL_LETTERS = 20
"""Ids of fewer letters (`4`, `turn-1`) are told apart only within their thread."""


def born_ms(id: str | None) -> int | None:
    """When a UUID of version 7 was made."""
    match = _UUID7.fullmatch(id) if id else None
    return int(match[1] + match[2], 16) if match else None


def session_of(source: Source, meta: dict[str, Any] | None) -> NativeSession:
    """The session of a file, by its first `session_meta`, else by its name."""
    file_name = PurePath(source.name.rpartition("!")[2]).name
    fallback = id_in(file_name) or file_name.partition(".")[0] or "unknown"
    session = NativeSession(id=_id(meta or {}) or fallback)
    session.archived = "archived_sessions" in PurePath(source.name).parts
    return session


def _id(meta: dict[str, Any]) -> str | None:
    return text(meta.get("id")) or text(meta.get("session_id"))


class _ThreadMeta(Struct):
    """What one thread's `session_meta` tells: the file's own, or that of the thread it was copied from."""

    is_subagent: bool = False
    version: str | None = None
    branch: str | None = None
    tools: tuple[str, ...] | None = None


class Thread:
    """The state of a thread while its entries are walked."""

    def __init__(self, session: NativeSession) -> None:
        self.session = session
        self.owner = session.id
        """Whose rollout the lines at hand are."""
        self.provider: str | None = None
        self.model: str | None = None
        self.workspace: str | None = None
        self._sides: dict[str, _ThreadMeta] = {session.id: _ThreadMeta()}
        self._side = self._sides[session.id]
        self._instruction_digests: dict[str, str] = {}
        """Digests of the instructions that were told last."""
        self._left_over: dict[str, Any] = {}
        self._forked_from: str | None = None
        self._starts_with_copy = False
        self._own_from: int | None = None
        self._indexed_name: ThreadName | None = None
        """Its name in the index."""
        self._told_title: tuple[str, int | None] | None = None
        """The title that the thread itself told last, and when."""
        self.printed_of: str | None = None
        """The thread of a printed run, whose ids are those of this run alone."""

    @property
    def is_subagent(self) -> bool:
        return self._sides[self.session.id].is_subagent

    @property
    def is_led(self) -> bool:
        """Does another agent write the prompts of the turn at hand?"""
        return self._side.is_subagent

    @property
    def version(self) -> str | None:
        return self._side.version

    @property
    def branch(self) -> str | None:
        return self._side.branch

    @property
    def tools(self) -> tuple[str, ...] | None:
        return self._side.tools

    def take_side(self, is_copied: bool | None) -> None:
        """From here on, the turns are those of the thread that made them."""
        self._side = self._sides.setdefault(self.owner_of(is_copied), _ThreadMeta())

    def take_meta(self, entry: Entry) -> dict[str, Any]:
        """Returns the instructions that it brings anew."""
        meta = entry.value
        self.owner = _id(meta) or self.session.id
        self._side = side = self._sides.setdefault(self.owner, _ThreadMeta())
        side.is_subagent = side.is_subagent or mapping(meta.get("source")).get("subagent") is not None
        side.version = text(meta.get("cli_version")) or side.version
        side.branch = text(mapping(meta.get("git")).get("branch")) or side.branch
        side.tools = _tools(meta.get("dynamic_tools")) or side.tools
        self.provider = text(meta.get("model_provider")) or self.provider
        self.workspace = text(meta.get("cwd")) or self.workspace
        if self.owner == self.session.id:
            self._take_own(meta, entry)
        else:
            self._starts_with_copy = True
        instructions = meta.get("instructions") or meta.get("base_instructions")
        return self.changed_instructions(
            base_instructions=text(instructions) or text(mapping(instructions).get("text"))
        )

    def _take_own(self, meta: dict[str, Any], entry: Entry) -> None:
        session = self.session
        session.version = self.version
        session.workspace = session.workspace or text(meta.get("cwd"))
        session.git_branch = self.branch
        session.created = session.created or epoch_millis(meta.get("timestamp")) or epoch_millis(entry.at)
        metadata = {name: meta[name] for name in _KEPT_OF_SESSION if meta.get(name) is not None}
        session.metadata = {**(session.metadata or {}), **metadata} or None
        self._own_from = whole_number(meta.get("subagent_history_start_ordinal")) or self._own_from
        self._take_origin(meta)

    def _take_origin(self, meta: dict[str, Any]) -> None:
        session = self.session
        subagent = mapping(meta.get("source")).get("subagent")
        spawn = mapping(mapping(subagent).get("thread_spawn"))
        parent = text(spawn.get("parent_thread_id")) or text(meta.get("parent_thread_id"))
        session.parent = session.parent or (parent if parent != session.id else None)
        role = text(meta.get("agent_role")) or text(spawn.get("agent_role"))
        nickname = text(meta.get("agent_nickname")) or text(spawn.get("agent_nickname"))
        kind = text(subagent) or text(mapping(subagent).get("other"))
        session.agent = session.agent or role or nickname or kind
        session.task = session.task or text(meta.get("agent_path")) or text(spawn.get("agent_path"))
        base = mapping(meta.get("history_base"))
        self._forked_from = text(meta.get("forked_from_id")) or text(base.get("thread_id")) or self._forked_from

    def take_settings(self, entry: Entry) -> dict[str, Any]:
        """Of a turn, or of the thread from now on. Returns the instructions that it brings anew."""
        settings = mapping(entry.value.get("thread_settings")) or entry.value
        self.model = text(settings.get("model")) or self.model
        self.provider = text(settings.get("model_provider")) or text(settings.get("model_provider_id")) or self.provider
        self.workspace = text(settings.get("cwd")) or self.workspace
        return self.changed_instructions(**{name: settings.get(name) for name in _CONTEXT})

    def changed_instructions(self, **instructions: Any) -> dict[str, Any]:
        """What differs from what was told before."""
        marks = {name: digest(fact) for name, fact in instructions.items() if fact is not None}
        changed = {
            name: instructions[name] for name, mark in marks.items() if self._instruction_digests.get(name) != mark
        }
        self._instruction_digests.update(marks)
        return changed

    def take_title(self, title: str | None, position: int | None) -> None:
        """A name that the thread itself tells, unless the index has a later one."""
        self._told_title = self._told_title if title is None else (title, position)
        self._entitle()

    def take_name(self, thread_name: ThreadName | None) -> None:
        """The name that the index has for it."""
        self._indexed_name = thread_name
        self._entitle()

    def _entitle(self) -> None:
        session, thread_name, titled = self.session, self._indexed_name, self._told_title
        session.told_at = None if thread_name is None else thread_name.at
        if titled is None or (thread_name is not None and titled[1] is not None and titled[1] < thread_name.at):
            session.title = None if thread_name is None else thread_name.title
            return
        session.title = titled[0]
        if thread_name is not None:
            session.told_at = max(thread_name.at, titled[1] or 0)

    def link(self) -> NativeLink | None:
        """Where the first turn grows from, if this file does not hold it."""
        if self._forked_from is None or self._starts_with_copy:
            return None
        why = LinkReason.SUBAGENT if self.is_subagent else LinkReason.FORK
        return NativeLink(to=self._forked_from, why=why, session=self._forked_from)

    def is_copied(self, group: TurnEntries) -> bool | None:
        """Was this turn made in another thread? Told by what copying leaves as it was: ordinals, ids, start times.
        None: nothing tells."""
        if not self._starts_with_copy and self._forked_from is None:
            return False
        comparison = self._compare(group)
        if self._starts_with_copy:
            return comparison
        if comparison:
            self._starts_with_copy, self.owner = True, self._forked_from or self.owner
        return comparison is True

    def _compare(self, group: TurnEntries) -> bool | None:
        ordinal = next((entry.ordinal for entry in reversed(group.entries) if type(entry.ordinal) is int), None)
        if self._own_from is not None and ordinal is not None:
            return bool(ordinal < self._own_from)
        turn_born, session_born = born_ms(group.id), born_ms(self.session.id)
        if turn_born is not None and session_born is not None:
            return turn_born < session_born
        started = next(
            (entry.value.get("started_at") for entry in group.entries if entry.sort == EntryEffect.START), None
        )
        began, created = epoch_millis(started), self.session.created
        return None if began is None or created is None else began < created - created % 1000

    def owner_of(self, is_copied: bool | None) -> str:
        """The thread that a turn was made in. Where nothing tells, it counts as copied: a copy must be known again."""
        return self.session.id if is_copied is False else self.owner

    def take_later(self, metas: Iterable[Entry]) -> None:
        """Those that came inside a turn, once the turn is made; what they tell is for the next one."""
        for entry in metas:
            self._left_over.update(self.take_meta(entry))

    def take_left_over(self) -> dict[str, Any]:
        instructions, self._left_over = self._left_over, {}
        return instructions


def global_id(id: str, owner: str) -> str:
    """An id that no other thread's turn has."""
    return id if len(id) >= _GLOBAL_LETTERS else f"{owner}/{id}"


def permissions_of(settings: dict[str, Any]) -> dict[str, Any] | None:
    return {name: settings[name] for name in _PERMISSIONS if settings.get(name) is not None} or None


def config_of(settings: dict[str, Any], start: dict[str, Any]) -> dict[str, Any] | None:
    config = {name: fact for name, fact in settings.items() if name not in _NOT_CONFIG and fact is not None}
    window = without_none(
        model_context_window=whole_number(start.get("model_context_window")),
        collaboration_mode_kind=text(start.get("collaboration_mode_kind")),
    )
    return {**config, **window} or None


def _tools(dynamic: Any) -> tuple[str, ...] | None:
    """Names of the tools that a client added; those that Codex brings itself are not recorded."""
    names: list[str] = []
    for tool in map(mapping, sequence(dynamic)):
        name, space = text(tool.get("name")), text(tool.get("namespace"))
        inner = [tool_name for entry in sequence(tool.get("tools")) if (tool_name := text(mapping(entry).get("name")))]
        if inner and name:
            names += [f"{name}.{entry}" for entry in inner]
        elif name:
            names.append(f"{space}.{name}" if space else name)
    return tuple(names) or None


def tool_names(payload: dict[str, Any]) -> tuple[str, ...]:
    return _tools(payload.get("tools")) or ()


# --- The entries of one native turn, read into messages, calls and compactions.

_HARMLESS = frozenset({"thread_rollback_failed", "active_turn_not_steerable"})
"""Errors of a request beside the turn, which go on with it."""
_NEAR_CALLS = 64
"""How many calls back an event's call is looked for that no id names."""


class Message(Struct, kw_only=True):
    """A message that no model gave."""

    role: MessageRole
    content: Content
    native: str | None
    at: int | None
    literal_time: str | None
    source: MessageSource | None
    files: tuple[FileNote, ...] = ()
    notes: dict[str, Any] = field(default_factory=dict)

    def items(self, context: dict[str, Any] | None) -> list[NativeMessage | NativeCall]:
        message = NativeMessage(
            role=self.role,
            parts=tuple(self.content.parts),
            native=self.native,
            at=self.at,
            literal_time=self.literal_time,
            source=self.source,
            context=context,
            metadata=self.notes or None,
            files=self.files,
        )
        return [message]


class TurnSection(Struct):
    """A section of a native turn: what lies before, between and after its compactions, or one of these."""

    messages: list[Message | Response] = field(default_factory=list)
    plain: list[Any] = field(default_factory=list)
    """Identity: what will be its records."""
    names: list[str] = field(default_factory=list)
    injected: list[dict[str, Any]] = field(default_factory=list)
    context: dict[str, Any] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)
    compaction: Compaction | None = None
    first: Entry | None = None
    end: int = 0
    places: list[tuple[int, int]] = field(default_factory=list)
    """Where its entries lie."""

    def items(self) -> tuple[NativeMessage | NativeCall, ...]:
        """What was injected is told with the first prompt, else with whatever comes first."""
        context = {**self.context, **({"injected": self.injected} if self.injected else {})} or None
        prompts = (
            message for message in self.messages if isinstance(message, Message) and message.role == MessageRole.USER
        )
        bearer = next(prompts, self.messages[0] if self.messages else None)
        return tuple(
            item for message in self.messages for item in message.items(context if message is bearer else None)
        )


def _before_compaction(group: TurnEntries) -> Iterator[Entry]:
    return takewhile(lambda entry: entry.sort != EntryEffect.COMPACTED, group.entries)


class TurnContents:
    """Walks the entries of one group."""

    def __init__(self, thread: Thread, meter: UsageMeter, group: TurnEntries) -> None:
        self._thread, self._meter, self._group = thread, meter, group
        metas = [entry for entry in _before_compaction(group) if entry.sort == EntryEffect.META]
        self._instructions_by_meta = {id(entry): thread.take_meta(entry) for entry in metas}
        self.later_metas: list[Entry] = []
        """Those behind a compaction, before which the turn may have been read already: they are for what comes next."""
        self.copied = thread.is_copied(group)
        self.owner = thread.owner_of(self.copied)
        thread.take_side(self.copied)
        self.sections = [TurnSection(context=thread.take_left_over())]
        self.start: dict[str, Any] = {}
        self.end: dict[str, Any] = {}
        self.started: int | None = None
        self.ended: int | None = None
        self.abort: str | None = None
        self.error: str | None = None
        self.notes: list[dict[str, Any]] = []
        self.counted: list[tuple[Entry, bool]] = []
        self.tools: list[str] = []
        self._prompts = Prompts(group.entries)
        self._echoes = EventEchoes(group.entries)
        self._open: Response | None = None
        self._responses: list[Response] = []
        self._marks: list[int | Tokens] = []
        self._usage_marks: list[int | Tokens] = []
        self._reports_total = False
        self._calls: list[Call] = []
        self._by_id: dict[str, list[int]] = {}
        self._oldest = 0
        """Every call before it has its output."""
        self._settled: dict[int, int] = {}
        """Where in the group a call's output came."""
        self._outcomes: list[tuple[int, int, Entry]] = []
        for position, entry in enumerate(group.entries):
            self._add_entry(position, entry)
        self._resolve()

    def _add_entry(self, position: int, entry: Entry) -> None:
        if entry.sort != EntryEffect.COMPACTED:
            section = self.sections[-1]
            section.first = section.first or entry
            section.end = max(section.end, entry.end)
            if entry.kind:
                section.places.append((entry.offset, entry.end))
        is_used = _TAKERS[entry.sort](self, position, entry)
        if entry.kind:
            self.counted.append((entry, is_used is not False))

    def _time(self, entry: Entry) -> tuple[int | None, str | None]:
        """When it was written; the lines of a copy tell only when it was copied."""
        if self.copied:
            return None, None
        time = epoch_millis(entry.at)
        return time, None if time is not None else text(entry.at)

    def _turn_time(self, entry: Entry, name: str) -> int | None:
        """When a turn began or ended: by its line, but where that may be a copy's, by what the event itself tells."""
        written, stated = self._time(entry)[0], epoch_millis(entry.value.get(name))
        return (written or stated) if self.copied is False else (stated or written)

    def _skip(self, position: int, entry: Entry) -> bool:
        return False

    def _add_meta(self, position: int, entry: Entry) -> None:
        if id(entry) in self._instructions_by_meta:
            self.sections[-1].context.update(self._instructions_by_meta[id(entry)])
        else:
            self.later_metas.append(entry)

    def _take_settings(self, position: int, entry: Entry) -> None:
        section = self.sections[-1]
        section.context.update(self._thread.take_settings(entry))
        if entry.name == "turn_context":
            section.settings = entry.value
        else:
            self._note(position, entry)

    def _note_start(self, position: int, entry: Entry) -> None:
        self.start = entry.value
        self.started = self._turn_time(entry, "started_at")

    def _note_ending(self, position: int, entry: Entry) -> None:
        self.end = entry.value
        self.ended = self._turn_time(entry, "completed_at")
        if entry.sort == EntryEffect.ABORT:
            self.abort = text(entry.value.get("reason")) or "unknown"
        failure = entry.value.get("error")
        self.error = text(failure) or text(mapping(failure).get("message")) or self.error
        if entry.name == "turn.completed":  # errors that are printed on the way were overcome
            self.error = None
        last = text(entry.value.get("last_agent_message"))
        if last is not None and not self._echoes.answers:
            self._echoes.answers = True
            self._response(entry).add_event_text(last)

    def _fail(self, position: int, entry: Entry) -> None:
        failure = mapping(entry.value.get("error"))
        info = text(entry.value.get("codex_error_info"))
        if info not in _HARMLESS:
            words = text(entry.value.get("message")) or text(failure.get("message"))
            self.error = words or self.error or info or "error"
        self._note(position, entry)

    def _add_user_message(self, position: int, entry: Entry) -> None:
        """A prompt, or something that stands in its place."""
        if entry.sort == EntryEffect.INJECTED and position not in self._prompts.events:
            self._inject(entry)
            return
        content = self._prompts.contents[position]
        source = self._prompts.source(position, entry.sort, self._thread.is_led)
        message = self._add_message(entry, MessageRole.USER, content, source, self._prompts.files(position))
        event = self._prompts.events.get(position)
        if event is not None and (client := text(event.value.get("client_id"))) is not None:
            message.notes["client_id"] = client

    def _inject(self, entry: Entry) -> None:
        content = content_of(entry.value.get("content"))
        self.sections[-1].injected.append({"role": entry.value.get("role"), "content": content.plain})
        self._open = None

    def _add_lone_user_event(self, position: int, entry: Entry) -> None:
        content = self._prompts.alone.get(position)
        if content is not None:
            source = self._prompts.source(position, EntryEffect.USER, self._thread.is_led)
            self._add_message(entry, MessageRole.USER, content, source, attached(entry))

    def _add_agent_message(self, position: int, entry: Entry) -> None:
        item = entry.value
        message = self._add_message(entry, MessageRole.USER, content_of(item.get("content")), MessageSource.AGENT)
        parties = without_none(author=text(item.get("author")), recipient=text(item.get("recipient")))
        message.notes.update(parties)
        self.sections[-1].plain[-1].append(parties)

    def _add_tool_text(self, position: int, entry: Entry) -> None:
        message = self._add_message(entry, MessageRole.TOOL, content_of(entry.value.get("content")), None)
        message.notes.update(without_none(name=text(entry.value.get("name"))))

    def _add_message(
        self,
        entry: Entry,
        role: MessageRole,
        content: Content,
        source: MessageSource | None,
        files: tuple[FileNote, ...] = (),
    ) -> Message:
        section = self.sections[-1]
        time, words = self._time(entry)
        id = None if entry.sort == EntryEffect.PROMPT_EVENT else text(entry.value.get("id"))
        message = Message(
            role=role, content=content, native=id, at=time, literal_time=words, source=source, files=files
        )
        if content.strange:
            message.notes["blocks"] = content.strange
        if content.sealed:
            message.notes["encrypted_letters"] = content.sealed
        section.messages.append(message)
        section.plain.append([role, id, content.plain])
        section.names += names_of(entry.value) if id else []
        self._open = None
        return message

    def _response(self, entry: Entry) -> Response:
        """The response at hand, or a new one."""
        if self._open is None:
            time, words = self._time(entry)
            plain: list[Any] = ["response"]
            thread = self._thread
            self._open = Response(
                at=time, literal_time=words, model=thread.model, provider=thread.provider, plain=plain
            )
            self._marks.append(len(self._responses))
            self._usage_marks.append(len(self._responses))
            self._responses.append(self._open)
            self.sections[-1].messages.append(self._open)
            self.sections[-1].plain.append(plain)
        return self._open

    def _add_answer_text(self, position: int, entry: Entry) -> None:
        self._response(entry).add_message(entry)
        self.sections[-1].names += names_of(entry.value)

    def _add_thoughts(self, position: int, entry: Entry) -> None:
        self._response(entry).add_thoughts(entry)
        self.sections[-1].names += names_of(entry.value)

    def _add_call(self, position: int, entry: Entry) -> None:
        call = call_of(entry, self._time(entry)[0])
        self._response(entry).add_call(call, entry.value)
        self._by_id.setdefault(call.id, []).append(len(self._calls))
        self._calls.append(call)
        self.sections[-1].names += names_of(entry.value)

    def _add_event_text(self, position: int, entry: Entry) -> None:
        words = event_words(entry)
        if self._echoes.is_new_text(words, entry.name):
            self._response(entry).add_event_text(words)

    def _add_event_thoughts(self, position: int, entry: Entry) -> None:
        if new_thoughts := self._echoes.new_thoughts(entry):
            self._response(entry).add_event_thoughts(new_thoughts)

    def _add_output(self, position: int, entry: Entry) -> None:
        self._open = None
        call = self._call_for(text(entry.value.get("call_id")))
        if call is None:
            self._add_stray_output(entry)
            return
        take_output(self._calls[call], entry, self._time(entry)[0])
        self._settled.setdefault(call, position)
        self.sections[-1].names += names_of(entry.value)

    def _add_stray_output(self, entry: Entry) -> None:
        """The output of a call that this turn does not have."""
        output = entry.value.get("output")
        words = output_text(output)
        message = self._add_message(
            entry, MessageRole.TOOL, Content([TextPart(words)] if words else [], [output]), None
        )
        shape = None if isinstance(output, str) else output
        message.notes.update(without_none(call_id=text(entry.value.get("call_id")), output=shape))

    def _call_for(self, id: str | None) -> int | None:
        """The call that an output answers: the oldest of that id without one; without an id, the oldest of all."""
        if id is not None:
            numbers = self._by_id.get(id, [])
            return next((k for k in numbers if k not in self._settled), numbers[-1] if numbers else None)
        while self._oldest in self._settled:
            self._oldest += 1
        return self._oldest if self._oldest < len(self._calls) else None

    def _settle(self, position: int, entry: Entry) -> None:
        self._open = None
        call = self._call_for(text(entry.value.get("call_id")))
        if call is None:
            self._note(position, entry)
            return
        take_end(self._calls[call], entry)
        self._settled.setdefault(call, position)

    def _keep_outcome(self, position: int, entry: Entry) -> None:
        """Resolved when all calls are known: some events stand before the item of their call."""
        self._outcomes.append((position, len(self._calls), entry))

    def _note_tokens(self, position: int, entry: Entry) -> bool:
        report = self._meter.read(entry.value)
        section = self.sections[-2] if len(self.sections) > 1 else None
        if section is not None and section.compaction is not None and section.compaction.tokens_after is None:
            section.compaction.tokens_after = self._meter.context
        if report is not None:
            self._marks.append(report)
        return says_usage(entry.value)

    def _note_usage(self, position: int, entry: Entry) -> bool:
        report = tokens_of(entry.value.get("usage"))
        if report is not None:
            self._usage_marks.append(report)
            self._reports_total = entry.name == "turn.completed"
        return report is not None

    def _add_compaction(self, position: int, entry: Entry) -> None:
        self._open = None
        compaction = compaction_of(entry, self._time(entry), self._meter.context, self._thread.model)
        compaction_section = TurnSection(
            plain=[compaction.plain], names=list(compaction.names), compaction=compaction, first=entry, end=entry.end
        )
        compaction_section.places.append((entry.offset, entry.end))
        self.sections += [compaction_section, TurnSection(settings=self.sections[-1].settings)]

    def _is_compaction_note(self, position: int, entry: Entry) -> bool:
        return self._group.compacts

    def _add_world_state(self, position: int, entry: Entry) -> None:
        self.sections[-1].context.setdefault("world_state", []).append(entry.value)

    def _add_tools(self, position: int, entry: Entry) -> None:
        self.tools += tool_names(entry.value)

    def _take_title(self, position: int, entry: Entry) -> None:
        if text(entry.value.get("thread_id")) in (None, self._thread.session.id):
            self._thread.take_title(text(entry.value.get("thread_name")), epoch_millis(entry.at))

    def _note(self, position: int, entry: Entry) -> None:
        fields = {name: fact for name, fact in entry.value.items() if name not in ("type", "turn_id", "thread_id")}
        self.notes.append({"event": entry.name, **fields})

    def _resolve(self) -> None:
        """Once the whole turn is known."""
        for position, call_count, entry in self._outcomes:
            self._give_outcome(position, call_count, entry)
        for call in self._calls:
            settle(call, self._thread.workspace)
        reported = any(isinstance(mark, Tokens) for mark in self._marks)
        self.bill = ResponseReports(self._marks if reported else self._usage_marks)
        if self.bill.marks and not self._responses:
            self._answer_unseen()

    def _answer_unseen(self) -> None:
        """A report without any response: something was answered, a summary perhaps, and nothing of it was written."""
        thread = self._thread
        unseen = Response(at=None, literal_time=None, model=thread.model, provider=thread.provider, plain=["response"])
        section = next(
            (candidate for candidate in self.sections if candidate.compaction is not None), self.sections[-1]
        )
        section.messages.append(unseen)
        section.plain.append(unseen.plain)
        self._responses.append(unseen)
        self.bill.marks.insert(0, 0)

    def _give_outcome(self, position: int, call_count: int, entry: Entry) -> None:
        event = entry.value
        id_fields = ("call_id", "callId", "event_id", "target_item_id", "id")
        ids = [id for name in id_fields if (id := text(event.get(name))) is not None]
        own_call = next((self._by_id[id][-1] for id in ids if id in self._by_id), None)
        if own_call is not None:
            take_event(self._calls[own_call], entry, is_own=True)
        elif call_count:
            near = range(call_count - 1, max(call_count - _NEAR_CALLS, 0) - 1, -1)
            running = next((k for k in near if self._settled.get(k, position + 1) > position), call_count - 1)
            take_event(self._calls[running], entry, is_own=False)
        else:
            self._note(position, entry)

    def charge(self, reports_first: bool) -> None:
        """Give every response what it cost."""
        for k, tokens in self.bill.shares(reports_first).items():
            self._responses[k].tokens = tokens
            if self._reports_total:  # of the thread up to here: it is one sum, in however many runs it is told
                self._responses[k].native = f"{self._thread.printed_of}/total"


_TAKERS: dict[EntryEffect, Callable[[TurnContents, int, Entry], bool | None]] = {
    EntryEffect.META: TurnContents._add_meta,
    EntryEffect.SETTINGS: TurnContents._take_settings,
    EntryEffect.START: TurnContents._note_start,
    EntryEffect.END: TurnContents._note_ending,
    EntryEffect.ABORT: TurnContents._note_ending,
    EntryEffect.PROMPT_EVENT: TurnContents._add_lone_user_event,
    EntryEffect.USER: TurnContents._add_user_message,
    EntryEffect.NOTICE: TurnContents._add_user_message,
    EntryEffect.INJECTED: TurnContents._add_user_message,
    EntryEffect.AGENT: TurnContents._add_agent_message,
    EntryEffect.ANSWER_TEXT: TurnContents._add_answer_text,
    EntryEffect.THOUGHT: TurnContents._add_thoughts,
    EntryEffect.CALL: TurnContents._add_call,
    EntryEffect.ANSWER_TEXT_EVENT: TurnContents._add_event_text,
    EntryEffect.THOUGHT_EVENT: TurnContents._add_event_thoughts,
    EntryEffect.OUTPUT: TurnContents._add_output,
    EntryEffect.TOOL_TEXT: TurnContents._add_tool_text,
    EntryEffect.OUTCOME: TurnContents._keep_outcome,
    EntryEffect.SETTLED: TurnContents._settle,
    EntryEffect.TOKENS: TurnContents._note_tokens,
    EntryEffect.USAGE: TurnContents._note_usage,
    EntryEffect.COMPACTED: TurnContents._add_compaction,
    EntryEffect.COMPACTED_NOTE: TurnContents._is_compaction_note,
    EntryEffect.ROLLBACK: TurnContents._skip,
    EntryEffect.ERROR: TurnContents._fail,
    EntryEffect.TITLE: TurnContents._take_title,
    EntryEffect.WORLD: TurnContents._add_world_state,
    EntryEffect.TOOLS: TurnContents._add_tools,
    EntryEffect.NOTE: TurnContents._note,
    EntryEffect.SILENT: TurnContents._skip,
    EntryEffect.UNKNOWN: TurnContents._skip,
}
