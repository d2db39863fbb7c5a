"""The importer of opencode: three containers with one mapping, and turns of one session, message by
message.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from enum import Enum, auto
from pathlib import Path
from typing import Any

import orjson
from msgspec import Struct, field

from weft.exchange.importers.foreign_files import BOM, MAGIC, read_whole
from weft.exchange.importers.foreign_values import canonical, json_object, mapping, millis, present, sequence, text
from weft.exchange.importers.opencode.containers import (
    announced,
    is_first_orphan,
    part_files_of,
    read_database,
    read_export,
    read_folder,
    read_orphans,
    session_file_of,
)
from weft.exchange.importers.opencode.messages import (
    MessageParts,
    add_part,
    completed_at,
    created_at,
    error_text,
    prompt_items,
    response_items,
    system_items,
)
from weft.exchange.importers.opencode.rows import HIDDEN, MessageHead, MessageRow, Row, Session, head_of
from weft.exchange.importers.port import (
    Item,
    NativeCompaction,
    NativeSession,
    NativeTurn,
    Place,
    Report,
    Source,
    Transcript,
)
from weft.kernel.enums import AgentRole
from weft.ledger.model import TextPart

# --- Turns of one session, message by message.

ROLES = frozenset({"user", "assistant", "system"})


class PlannedTurn(Struct):
    """A turn to be: numbers of its messages."""

    key: str
    messages: list[int]
    parent: int | None
    is_compaction: bool = False
    is_cut: bool = False
    """A compaction came in the middle of its answer: what follows is another turn."""


class TurnPlanner:
    """Takes the messages of a session one after another."""

    def __init__(self, session_id: str, heads: list[MessageHead | None]) -> None:
        self._session, self._heads = session_id, heads
        counted = Counter(head.id for head in heads if head is not None and head.id is not None)
        self._unique = {id for id, times in counted.items() if times == 1 and id != HIDDEN}
        self._ids = frozenset(counted)
        self._prompts: dict[str, int] = {}
        self._prompt: int | None = None
        self._goes_on: dict[int, int] = {}
        self._key_counts: dict[str, int] = {}
        self.plans: list[PlannedTurn] = []
        self.strays: list[int] = []
        """Messages that belong to no turn, since what they are is not known."""
        self.turns: dict[str, int] = {}
        """The turn that a message belongs to, by the message's id."""

    def plan(self) -> list[PlannedTurn]:
        for number, head in enumerate(self._heads):
            if head is not None and head.begins is not None:
                self._place_message(number, head)
            elif head is not None and head.role == "user":
                self._add_prompt(number, head)
            elif head is not None and head.role == "assistant":
                self._add_answer(number, head)
            elif head is None or head.role not in ROLES:
                self.strays.append(number)
            elif self.plans:
                self.plans[-1].messages.append(number)
            else:
                self._begin_turn(number, self._name(number))
        for turn, plan in enumerate(self.plans):
            self.turns |= {id: turn for number in plan.messages if (id := self.native(number)) is not None}
        return self.plans

    def native(self, number: int) -> str | None:
        """A message's own id, where it has one that tells it from others."""
        head = self._heads[number]
        return head.id if head is not None and head.id in self._unique else None

    def _name(self, number: int) -> str:
        return self.native(number) or f"{self._session}#{number}"

    def _begin_turn(self, number: int, key: str, is_compaction: bool = False) -> int:
        unique = key
        while unique in self._key_counts:
            self._key_counts[key] += 1
            unique = f"{key}~{self._key_counts[key]}"
        self._key_counts[unique] = 1
        parent = len(self.plans) - 1 if self.plans else None
        self.plans.append(PlannedTurn(unique, [number], parent, is_compaction))
        return len(self.plans) - 1

    def _place_message(self, number: int, head: MessageHead) -> None:
        if head.begins or not self.plans:
            self._begin_turn(number, self._name(number), head.is_summary)
        else:
            self.plans[-1].messages.append(number)

    def _add_prompt(self, number: int, head: MessageHead) -> None:
        if head.is_notice and self.plans:
            self.plans[-1].messages.append(number)
            return
        self._prompt = self._begin_turn(number, self._name(number), head.compacts)
        if (id := self.native(number)) is not None:
            self._prompts[id] = self._prompt

    def _add_answer(self, number: int, head: MessageHead) -> None:
        parent = None if head.parent == HIDDEN else head.parent
        target = self._answered_turn(parent)
        if head.is_summary and (target is None or not self.plans[target].is_compaction):
            self._begin_turn(number, self._name(number), is_compaction=True)
            if target is not None:
                self.plans[target].is_cut = True
        elif target is None:
            target = self._begin_turn(number, parent or self._name(number))
            if parent is not None:
                self._prompts[parent] = target
        elif self.plans[target].is_cut:
            first = self._prompts.get(parent or "", self._prompt)
            continuation = self._begin_turn(number, f"{self.plans[target].key}#{self._name(number)}")
            self._goes_on[target if first is None else first] = continuation
        else:
            self.plans[target].messages.append(number)

    def _answered_turn(self, parent: str | None) -> int | None:
        """The turn that a response belongs to. A parent that is not in the file will begin one of its own."""
        if parent is None or (parent in self._ids and parent not in self._prompts):
            turn = self._prompt
        else:
            turn = self._prompts.get(parent)
        return None if turn is None else self._goes_on.get(turn, turn)


UNFINISHED = frozenset({"tool-calls", "unknown"})


class TurnMessages(Struct):
    """A turn under way."""

    items: list[Item] = field(default_factory=list)
    records: list[bytes] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    times: list[int] = field(default_factory=list)
    user: dict[str, Any] = field(default_factory=dict)
    last: dict[str, Any] = field(default_factory=dict)
    """The info of its last response."""
    has_calls: bool = False
    """That response asked for tools."""
    outcome: str | None = None
    """How opencode itself says that it ended."""
    compaction: dict[str, Any] | None = None
    summary: list[str] = field(default_factory=list)


class Turns:
    """Makes the turns of one session."""

    def __init__(self, session: Session, id: str, report: Report) -> None:
        self._session, self._report = session, report
        self._planner = TurnPlanner(id, [head_of(message) for message in session.messages])
        self._plans = self._planner.plan()
        self._is_subagent = text(session.info.get("parentID")) is not None
        reverted = text(mapping(session.info.get("revert")).get("messageID")) or ""
        self._reverted = self._planner.turns.get(reverted)

    def walk(self) -> Iterator[NativeTurn]:
        for number in self._planner.strays:
            self._count_stray(self._session.messages[number])
        for turn, plan in enumerate(self._plans):
            turn_messages = TurnMessages()
            for number in plan.messages:
                self._add_message(turn_messages, plan, self._session.messages[number], self._planner.native(number))
            yield self._native_turn(turn, plan, turn_messages)

    def _read_object(self, row: Row, label: str) -> dict[str, Any] | None:
        self._report.found += 1
        try:
            value = json_object(row.data)
        except ValueError as error:
            self._report.damaged += 1
            self._report.problem(None, f"a {label} of {self._session.info.get('id')} is not readable: {error}"[:300])
            return None
        if row.id is not None:
            value["id"] = row.id
        return value

    def _count_stray(self, message: MessageRow) -> None:
        info = self._read_object(message.row, "message")
        if info is not None:
            self._count_kept(f"message.{text(info.get('role')) or 'none'}", is_unknown=True)
        for row in message.parts:
            part_fields = self._read_object(row, "part")
            if part_fields is not None:
                self._count_kept(f"part.{text(part_fields.get('type')) or 'none'}", is_unknown=False)

    def _count_kept(self, kind: str, is_unknown: bool) -> None:
        self._report.kept[kind] += 1
        if is_unknown:
            self._report.unknown[kind] += 1

    def _add_message(
        self, turn_messages: TurnMessages, plan: PlannedTurn, message: MessageRow, native: str | None
    ) -> None:
        info = self._read_object(message.row, "message") or {}
        role = text(info.get("role")) or "none"
        if role in ROLES:
            self._report.mapped[f"message.{role}"] += 1
        elif info:
            self._count_kept(f"message.{role}", is_unknown=True)
        message_parts = MessageParts(is_prompt=role == "user")
        for row in message.parts:
            self._add_part(message_parts, row)
        error = error_text(info.get("error"))
        turn_messages.records.append(canonical([role, native, info.get("summary") is True, error]))
        turn_messages.records += [canonical(reduced) for reduced in message_parts.reduced]
        ids = (native, *(reduced[1] for reduced in message_parts.reduced))
        turn_messages.names += [id for id in ids if id is not None]
        turn_messages.times += [time for time in (created_at(info), completed_at(info)) if time is not None]
        self._add_items(turn_messages, plan, info, message_parts, native)

    def _add_part(self, message_parts: MessageParts, row: Row) -> None:
        part_fields = self._read_object(row, "part")
        if part_fields is None:
            return
        if part_fields.get("id") == HIDDEN:
            part_fields["id"] = None
        kind = f"part.{text(part_fields.get('type')) or 'none'}"
        if add_part(message_parts, part_fields):
            self._report.mapped[kind] += 1
        else:
            self._count_kept(kind, is_unknown=True)

    def _add_items(
        self,
        turn_messages: TurnMessages,
        plan: PlannedTurn,
        info: dict[str, Any],
        message_parts: MessageParts,
        native: str | None,
    ) -> None:
        role = info.get("role")
        turn_messages.outcome = text(info.get("outcome")) or turn_messages.outcome
        if role == "user":
            turn_messages.user = turn_messages.user or info
            turn_messages.compaction = turn_messages.compaction or message_parts.compaction
            says = message_parts.parts or message_parts.synthetic or message_parts.ignored or message_parts.files
            if says or message_parts.compaction is None:
                turn_messages.items.append(prompt_items(info, message_parts, native, self._is_subagent))
        elif role == "assistant":
            turn_messages.last, turn_messages.has_calls = info, bool(message_parts.calls)
            turn_messages.items += response_items(info, message_parts, native)
            turn_messages.compaction = turn_messages.compaction or message_parts.compaction
            if plan.is_compaction:
                turn_messages.summary += [str(part.text) for part in message_parts.parts if isinstance(part, TextPart)]
        elif role == "system":
            turn_messages.items += system_items(info, message_parts, native)

    def _native_turn(self, turn: int, plan: PlannedTurn, turn_messages: TurnMessages) -> NativeTurn:
        info, last, user = self._session.info, turn_messages.last, turn_messages.user
        error = mapping(last.get("error"))
        is_stopped = error.get("name") == "MessageAbortedError" or turn_messages.outcome == "interrupted"
        has_failed = bool(error) or turn_messages.outcome == "failed"
        first_message, last_message = (
            self._session.messages[plan.messages[0]],
            self._session.messages[plan.messages[-1]],
        )
        return NativeTurn(
            key=plan.key,
            records=tuple(turn_messages.records),
            names=tuple(turn_messages.names),
            items=tuple(turn_messages.items),
            parent=plan.parent,
            compaction=self._compaction(turn, plan, turn_messages) if plan.is_compaction else None,
            closed=turn < len(self._plans) - 1 or is_finished(turn_messages),
            error=error_text(error) or "failed" if has_failed and not is_stopped else None,
            interrupted=is_stopped,
            started=turn_messages.times[0] if turn_messages.times else None,
            ended=max(turn_messages.times, default=None),
            role=AgentRole.WORKER if self._is_subagent else AgentRole.UNIFIED,
            workspace=text(mapping(last.get("path")).get("cwd")) or text(info.get("directory")),
            version=text(info.get("version")),
            permissions=info.get("permission") or None,
            tools=_tools(user.get("tools")),
            toolset=text(user.get("agent")) or text(last.get("agent")) or text(last.get("mode")),
            config=_config(user),
            metadata=present(diffs=_diffs(user), reverted=self._is_reverted(turn, plan)),
            offset=first_message.offset,
            end=last_message.end,
        )

    def _is_reverted(self, turn: int, plan: PlannedTurn) -> bool | str | None:
        """Taken back by a person; a turn of which only the end was, by the id that it was taken back to."""
        if self._reverted is None or turn < self._reverted:
            return None
        reverted_to = text(mapping(self._session.info.get("revert")).get("messageID"))
        return reverted_to if turn == self._reverted and self._planner.native(plan.messages[0]) != reverted_to else True

    def _compaction(self, turn: int, plan: PlannedTurn, turn_messages: TurnMessages) -> NativeCompaction:
        part_fields = turn_messages.compaction
        tail = text(mapping(part_fields).get("tail_start_id")) or ""
        first_kept = self._planner.turns.get(tail, turn)
        begins = first_kept < turn and self._planner.native(self._plans[first_kept].messages[0]) == tail
        through = None if first_kept >= turn else self._plans[first_kept].parent if begins else first_kept
        began, done = created_at(turn_messages.last), completed_at(turn_messages.last)
        return NativeCompaction(
            summary="\n".join(turn_messages.summary),
            through=through,
            first_kept=first_kept if first_kept < turn else None,
            model=text(turn_messages.last.get("modelID")),
            trigger=None if part_fields is None else _trigger(part_fields),
            duration_ms=None if began is None or done is None else max(done - began, 0),
        )


def is_finished(turn_messages: TurnMessages) -> bool:
    """Does its last response say that no other follows?"""
    last = turn_messages.last
    if turn_messages.outcome is not None:
        return True
    if not last:
        return False
    if last.get("error"):
        return True
    finish = text(last.get("finish"))
    return completed_at(last) is not None and (
        not turn_messages.has_calls if finish is None else finish not in UNFINISHED
    )


def _trigger(part_fields: dict[str, Any]) -> str:
    return (
        "overflow" if part_fields.get("overflow") is True else "auto" if part_fields.get("auto") is True else "manual"
    )


def _tools(value: Any) -> tuple[str, ...] | None:
    """Those that a prompt turns on by name; one that only turns some off does not say which there were."""
    return tuple(sorted(name for name, is_on in mapping(value).items() if is_on is True)) or None


def _config(user: dict[str, Any]) -> dict[str, Any] | None:
    model = mapping(user.get("model"))
    return present(
        agent=user.get("agent"),
        model=model.get("modelID"),
        provider=model.get("providerID"),
        variant=model.get("variant") or user.get("variant"),
        tools=user.get("tools"),
    )


def _diffs(user: dict[str, Any]) -> list[Any]:
    """What the turn changed, without the texts."""
    diffs = map(mapping, sequence(mapping(user.get("summary")).get("diffs")))
    names = ("file", "status", "additions", "deletions")
    return [{name: diff[name] for name in names if diff.get(name) is not None} for diff in diffs]


# --- The importer of opencode: three containers with one mapping.


class StorageForm(Enum):
    DATABASE = auto()
    EXPORT = auto()
    FOLDER = auto()
    ORPHANS = auto()
    """Messages in the folder whose session file is gone."""


DATABASE_NAME = re.compile(r"opencode([-.].+)?\.db")
TABLE = re.compile(rb'CREATE TABLE\s+[`"\']?(?:session_)?message[`"\']?\s*\(')
EXPORT = re.compile(rb'\s*\{\s*("info"\s*:\s*\{|"messages"\s*:\s*\[\s*\{\s*"(info|parts)")')
EXPORT_SIGNS = (b'"messages"', b'"projectID"', b'"directory"', b'"sessionID"', b'"slug"')
SESSION_SIGNS = (b'"projectID"', b'"directory"', b'"time"')
SESSION_FIELDS = ("projectID", "directory", "slug", "version", "title", "parentID")
MESSAGE_SIGNS = (b'"sessionID"', b'"role"')
PART_SIGNS = (b'"sessionID"', b'"messageID"', b'"type"')
BESIDE = frozenset({"todo", "session_diff", "session_share"})


def container(source: Source) -> StorageForm | None:
    """Which of the three a file is, if any."""
    head = source.head.removeprefix(BOM)
    head = head[announced(head) :]
    if head.startswith(MAGIC):
        return StorageForm.DATABASE if _is_database(source) else None
    if _is_message(source):
        return StorageForm.ORPHANS if is_first_orphan(source.path) else None
    value = _short_document(source, head)
    if value is not None:
        return _container_of(value)
    if EXPORT.match(head) and sum(sign in head for sign in EXPORT_SIGNS) >= 2:
        return StorageForm.EXPORT
    is_session = source.path.name.startswith("ses_") and head.lstrip().startswith(b"{")
    return StorageForm.FOLDER if is_session and all(sign in head for sign in SESSION_SIGNS) else None


def _is_database(source: Source) -> bool:
    has_table = TABLE.search(source.head) is not None and b"session_id" in source.head
    return has_table or DATABASE_NAME.fullmatch(source.path.name) is not None


def _short_document(source: Source, head: bytes) -> dict[str, Any] | None:
    """The document, if it is short and sound."""
    if source.size > len(source.head):
        return None
    try:
        value = orjson.loads(head)
    except orjson.JSONDecodeError:
        return None
    return value if isinstance(value, dict) else None


def _container_of(value: dict[str, Any]) -> StorageForm | None:
    info = mapping(value.get("info"))
    if info and isinstance(value.get("messages"), list):
        return StorageForm.EXPORT if _is_session(info) else None
    return StorageForm.FOLDER if _is_session(value) and "messages" not in value else None


def _is_session(info: dict[str, Any]) -> bool:
    """A session's info: its id, its times, and where it ran."""
    id = text(info.get("id"))
    if id is None or "role" in info or "type" in info:
        return False
    signs = sum(name in info for name in SESSION_FIELDS)
    return signs >= (1 if id.startswith("ses_") else 2) and "created" in mapping(info.get("time"))


def _is_message(source: Source) -> bool:
    path = source.path
    if path.suffix != ".json" or path.parent.parent.name != "message":
        return False
    return path.name.startswith("msg_") or all(sign in source.head for sign in MESSAGE_SIGNS)


def session_named(head: bytes) -> str | None:
    """The session that a message or a part says it belongs to."""
    match = re.search(rb'"sessionID"\s*:\s*"([\w-]{1,128})"', head)
    return match[1].decode() if match else None


def is_part_file(source: Source) -> bool:
    """A message, a part or what else lies in the folder of session files."""
    path, head = source.path, source.head
    if path.suffix != ".json":
        return False
    if path.parent.name in BESIDE:
        return path.name.startswith("ses_")
    if path.parent.name == "project":
        return b'"worktree"' in head and b'"time"' in head
    if _is_message(source):
        return not is_first_orphan(path)
    above = path.parent.parent
    if above.name == "part" or above.parent.name == "part":
        return path.name.startswith("prt_") or all(sign in head for sign in PART_SIGNS)
    return False


SUBAGENT = " subagent)"
"""How opencode titles the session of a subagent: its task and its name."""


class Opencode:
    origin = "opencode"
    mapping = 1

    def places(self, home: Path, environment: Mapping[str, str]) -> list[Place]:
        folder = environment.get("XDG_DATA_HOME")
        data = (Path(folder) if folder else home / ".local/share") / "opencode"
        places = [
            Place(data / "opencode.db", "opencode"),
            Place(data / "storage", "opencode before 1.2"),
            Place(data / "project", "opencode before 0.5"),
        ]
        try:
            channel_databases = sorted(path for path in data.glob("opencode-*.db") if path.is_file())
        except OSError:
            channel_databases = []
        places += [Place(path, "opencode, another release channel") for path in channel_databases]
        if database := environment.get("OPENCODE_DB"):
            places.append(Place(data / database, "opencode"))
        return places

    def recognises(self, source: Source) -> bool:
        return container(source) is not None

    def is_part(self, source: Source) -> bool:
        return is_part_file(source)

    def session_file(self, source: Source) -> Path | None:
        return session_file_of(source.path, session_named(source.head))

    def part_files(self, path: Path) -> list[Path]:
        return part_files_of(path) if path.suffix == ".json" else []

    def read(self, source: Source, report: Report) -> Iterator[Transcript]:
        for session in _sessions(source, report):
            yield _transcript(session, source.path.stem, report)


def _sessions(source: Source, report: Report) -> Iterator[Session]:
    kind = container(source)
    if kind is StorageForm.DATABASE or source.head.startswith(MAGIC):
        yield from read_database(source.path, report)
    elif kind is StorageForm.FOLDER:
        session = read_folder(source, report)
        if session is not None:
            yield session
    elif kind is StorageForm.ORPHANS:
        yield read_orphans(source.path, report)
    else:
        yield read_export(read_whole(source), report)


def _transcript(session: Session, fallback: str, report: Report) -> Transcript:
    info = session.info
    id = text(info.get("id"))
    id = fallback if id is None or id == HIDDEN else id
    mapped = {"session": int(session.has_record), "todo": len(session.todos), **session.mapped}
    report.found += sum(mapped.values()) + sum(session.kept.values())
    report.mapped.update({kind: count for kind, count in mapped.items() if count})
    report.kept.update(session.kept)
    report.unknown.update(session.unknown)
    return Transcript(session=session_of(id, session), turns=Turns(session, id, report).walk(), raw=session.raw)


def _subagent(title: str) -> tuple[str | None, str | None]:
    """The task and the name of a subagent, as the title of its session has them."""
    task, _, name = title.removesuffix(SUBAGENT).rpartition(" (@")
    return (task, name) if task and name and title.endswith(SUBAGENT) else (None, None)


def session_of(id: str, session: Session) -> NativeSession:
    info = session.info
    title, time = text(info.get("title")), mapping(info.get("time"))
    parent = text(info.get("parentID"))
    task, name = _subagent(title or "") if parent else (None, None)
    revert = {name: value for name, value in mapping(info.get("revert")).items() if name != "diff"}
    return NativeSession(
        id=id,
        title=title,
        workspace=text(info.get("directory")),
        version=text(info.get("version")),
        created=millis(time.get("created")),
        parent=parent,
        task=task,
        agent=text(info.get("agent")) or name,
        archived=millis(time.get("archived")) is not None,
        told_at=millis(time.get("updated")),
        metadata=present(
            slug=info.get("slug"),
            project=info.get("projectID"),
            share=mapping(info.get("share")).get("url"),
            summary=_without_diffs(info.get("summary")),
            model=info.get("model"),
            cost=info.get("cost"),
            tokens=info.get("tokens"),
            revert=revert,
            todos=session.todos,
            metadata=info.get("metadata"),
            fork=info.get("fork"),
        ),
    )


def _without_diffs(summary: Any) -> dict[str, Any]:
    return {name: value for name, value in mapping(summary).items() if name != "diffs"}
