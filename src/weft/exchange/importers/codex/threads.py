"""What holds for a whole thread: the session that its file is of, its name, and the settings in force.

A file's first `session_meta` names its session. The same id again: it was resumed. Another id after it: what follows is
a copy of that thread's rollout, from which this one was forked or spawned. Copies keep their turns' ids, but their
lines carry the time of copying, and a subagent's copy lacks tool calls and thinking.

Names that people gave to threads lie in `session_index.jsonl`, beside the folder of the sessions.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path, PurePath
from typing import Any

import orjson
from msgspec import Struct

from weft.exchange.importers.codex.entries import Entry, Sort, digest
from weft.exchange.importers.codex.groups import Group
from weft.exchange.importers.port import NativeLink, NativeSession, Source
from weft.exchange.importers.records.values import epoch_millis, mapping, sequence, text, whole, without_none
from weft.exchange.importers.sidecars import read_beneath
from weft.kernel.enums import LinkReason

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
    named = PurePath(source.name.rpartition("!")[2]).name
    fallback = id_in(named) or named.partition(".")[0] or "unknown"
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
        self._named: ThreadName | None = None
        """Its name in the index."""
        self._titled: tuple[str, int | None] | None = None
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
        return self.news(base_instructions=text(instructions) or text(mapping(instructions).get("text")))

    def _take_own(self, meta: dict[str, Any], entry: Entry) -> None:
        session = self.session
        session.version = self.version
        session.workspace = session.workspace or text(meta.get("cwd"))
        session.git_branch = self.branch
        session.created = session.created or epoch_millis(meta.get("timestamp")) or epoch_millis(entry.at)
        metadata = {name: meta[name] for name in _KEPT_OF_SESSION if meta.get(name) is not None}
        session.metadata = {**(session.metadata or {}), **metadata} or None
        self._own_from = whole(meta.get("subagent_history_start_ordinal")) or self._own_from
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
        return self.news(**{name: settings.get(name) for name in _CONTEXT})

    def news(self, **instructions: Any) -> dict[str, Any]:
        """What differs from what was told before."""
        marks = {name: digest(fact) for name, fact in instructions.items() if fact is not None}
        fresh = {
            name: instructions[name] for name, mark in marks.items() if self._instruction_digests.get(name) != mark
        }
        self._instruction_digests.update(marks)
        return fresh

    def take_title(self, title: str | None, at: int | None) -> None:
        """A name that the thread itself tells, unless the index has a later one."""
        self._titled = self._titled if title is None else (title, at)
        self._entitle()

    def take_name(self, named: ThreadName | None) -> None:
        """The name that the index has for it."""
        self._named = named
        self._entitle()

    def _entitle(self) -> None:
        session, named, titled = self.session, self._named, self._titled
        session.told_at = None if named is None else named.at
        if titled is None or (named is not None and titled[1] is not None and titled[1] < named.at):
            session.title = None if named is None else named.title
            return
        session.title = titled[0]
        if named is not None:
            session.told_at = max(named.at, titled[1] or 0)

    def link(self) -> NativeLink | None:
        """Where the first turn grows from, if this file does not hold it."""
        if self._forked_from is None or self._starts_with_copy:
            return None
        why = LinkReason.SUBAGENT if self.is_subagent else LinkReason.FORK
        return NativeLink(to=self._forked_from, why=why, session=self._forked_from)

    def is_copied(self, group: Group) -> bool | None:
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

    def _compare(self, group: Group) -> bool | None:
        ordinal = next((entry.ordinal for entry in reversed(group.entries) if type(entry.ordinal) is int), None)
        if self._own_from is not None and ordinal is not None:
            return bool(ordinal < self._own_from)
        turn_born, session_born = born_ms(group.id), born_ms(self.session.id)
        if turn_born is not None and session_born is not None:
            return turn_born < session_born
        started = next((entry.value.get("started_at") for entry in group.entries if entry.sort == Sort.START), None)
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
        left, self._left_over = self._left_over, {}
        return left


def global_id(id: str, owner: str) -> str:
    """An id that no other thread's turn has."""
    return id if len(id) >= _GLOBAL_LETTERS else f"{owner}/{id}"


def permissions_of(settings: dict[str, Any]) -> dict[str, Any] | None:
    return {name: settings[name] for name in _PERMISSIONS if settings.get(name) is not None} or None


def config_of(settings: dict[str, Any], start: dict[str, Any]) -> dict[str, Any] | None:
    config = {name: fact for name, fact in settings.items() if name not in _NOT_CONFIG and fact is not None}
    window = without_none(
        model_context_window=whole(start.get("model_context_window")),
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
