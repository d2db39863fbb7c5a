"""The importer of Codex: its rollouts, and the runs that it printed. One file is one session.

From native turns to the ledger's words: keys, records, parents, branches. What `codex exec --json`
prints instead of what Codex keeps is read in each of the three forms that it has had.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from copy import deepcopy
from itertools import chain, islice
from pathlib import Path
from typing import Any

from msgspec import Struct, field

from weft.exchange.importers.codex.entries import EVENTS as ROLLOUT_EVENTS
from weft.exchange.importers.codex.entries import (
    Assembler,
    Entry,
    EntryEffect,
    Rollback,
    TurnEntries,
    digest,
    entries,
    is_rollout,
)
from weft.exchange.importers.codex.responses import Response, UsageMeter
from weft.exchange.importers.codex.turn_contents import (
    Thread,
    TurnContents,
    TurnSection,
    config_of,
    global_id,
    name_of,
    permissions_of,
    session_of,
)
from weft.exchange.importers.foreign_files import ReadPosition, Record, first_objects, records
from weft.exchange.importers.foreign_values import (
    canonical_escaped,
    epoch_millis,
    mapping,
    sequence,
    text,
    whole_number,
    without_none,
)
from weft.exchange.importers.port import NativeMessage, NativeSession, NativeTurn, Place, Report, Source, Transcript
from weft.kernel.enums import AgentRole

# --- From native turns to the ledger's words: keys, records, parents, branches.

_ALWAYS = frozenset({EntryEffect.META, EntryEffect.TITLE})
"""Entries that tell of the session, whether or not a turn is made of their group."""
_NO_INTERRUPTION = frozenset({"review_ended"})
FINAL_ANSWER = "final_answer"


class _Step(Struct, frozen=True):
    """A native turn on the way from the root to the present."""

    last: int
    prompted: bool


class Turns:
    """Walks the groups of one file."""

    def __init__(self, thread: Thread, report: Report, is_over: Callable[[NativeTurn], bool]) -> None:
        """`report` and `is_over` are those of the reading at hand."""
        self._thread, self.report, self.is_over = thread, report, is_over
        self._meter = UsageMeter()
        self._reports_first: dict[str | None, bool] = {}
        """By version: do reports of usage stand before their responses?"""
        self._path: list[_Step] = []
        self._keys: set[str] = set()
        self._turn_count = 0
        self._native = 0

    def walk_groups(self, groups: Iterable[TurnEntries | Rollback]) -> Iterator[NativeTurn]:
        for group in groups:
            if isinstance(group, Rollback):
                self._roll_back(group)
            else:
                yield from self._map(group)

    def _roll_back(self, rollback: Rollback) -> None:
        """Turns that nobody asked for (compactions) go with those after them and are not counted."""
        remaining = rollback.turns
        while remaining and self._path:
            remaining -= self._path.pop().prompted
        self.report.mapped[rollback.entry.kind] += 1

    def _map(self, group: TurnEntries) -> Iterator[NativeTurn]:
        contents = TurnContents(self._thread, self._meter, group)
        contents.charge(self._learned(contents))
        turns = _GroupTurns(self, group, contents).turns()
        self._thread.take_later(contents.later_metas)
        self._count(contents, bool(turns))
        if not turns:
            return
        parent = self._path[-1].last if self._path else None
        for turn in turns:
            turn.parent = parent
            turn.link = self._thread.link() if parent is None else None
            parent = self._turn_count
            self._turn_count += 1
            yield turn
        self._native += 1
        self._path.append(_Step(self._turn_count - 1, group.prompted))

    def _learned(self, reading: TurnContents) -> bool:
        """A subagent's copy lacks most of the responses that its reports are of: nothing is learned from copies."""
        version = self._thread.version
        first = reading.bill.comes_first()
        if first is not None and reading.copied is False:
            self._reports_first.setdefault(version, first)
        return self._reports_first.get(version, False)

    def _count(self, reading: TurnContents, is_turn: bool) -> None:
        report = self.report
        for entry, is_used in reading.counted:
            if is_used and (is_turn or entry.sort in _ALWAYS):
                report.mapped[entry.kind] += 1
                continue
            report.kept[entry.kind] += 1
            if entry.sort == EntryEffect.UNKNOWN:
                report.unknown[entry.kind] += 1

    def unique(self, key: str) -> str:
        unique_key, number = key, 1
        while unique_key in self._keys:
            number += 1
            unique_key = f"{key}#{number}"
        self._keys.add(unique_key)
        return unique_key

    @property
    def thread(self) -> Thread:
        return self._thread

    @property
    def position(self) -> int:
        """How many native turns came before."""
        return self._native

    @property
    def turn_count(self) -> int:
        """How many of the ledger's turns they became."""
        return self._turn_count


class _GroupTurns:
    """Makes the turns of one group."""

    def __init__(self, turns: Turns, group: TurnEntries, reading: TurnContents) -> None:
        self._turns, self._group, self._reading = turns, group, reading
        self._thread = turns.thread
        self._sections = [section for section in reading.sections if section.messages or section.compaction is not None]
        _share_places(reading.sections, self._sections)
        if not self._sections and group.explicit and (reading.error or reading.abort):
            self._sections = reading.sections[-1:]

    def turns(self) -> list[NativeTurn]:
        turns: list[NativeTurn] = []
        key, after = self._key(), None
        for number, section in enumerate(self._sections):
            if section.compaction is not None:
                after = self._turns.unique(self._compaction_key(section, key, number))
                turns.append(self._compaction(section, after))
            elif any(turn.compaction is None for turn in turns):
                turns.append(self._normal(section, self._turns.unique(f"{key}#{after}"), after))
            else:
                key = self._turns.unique(key)
                turns.append(self._normal(section, key, None))
        if turns:
            self._finish(turns[-1])
            turns[0].started = self._reading.started or turns[0].started
        return turns

    def _key(self) -> str:
        """Its id; where it has none, that of its first item; where no item has one, its thread, place and text."""
        if self._thread.printed_of is not None:
            identities = [section.plain for section in self._sections]
            return f"{self._place}-{digest([identities, self._reading.error])[:16]}"
        sections = [section for section in self._sections if section.compaction is None]
        native = self._group.id or next((name for section in sections for name in section.names), None)
        if native is not None:
            return global_id(native, self._reading.owner)
        identities = next((section.plain for section in self._sections if section.plain), [])
        return f"{self._place}-{digest(identities[:1])[:16]}"

    @property
    def _place(self) -> str:
        return f"{self._reading.owner}/{self._turns.position}"

    def _compaction_key(self, section: TurnSection, key: str, number: int) -> str:
        compaction = section.compaction
        if compaction is not None and compaction.id is not None:
            return global_id(compaction.id, self._reading.owner)
        return f"{key}#compaction-{number}"

    def _records(self, section: TurnSection, after: str | None) -> tuple[bytes, ...]:
        identity_name = self._group.id if self._thread.printed_of is None else self._place
        turn = [canonical_escaped(["turn", identity_name, after])] if identity_name is not None else []
        return (*turn, *map(canonical_escaped, section.plain))

    def _normal(self, section: TurnSection, key: str, after: str | None) -> NativeTurn:
        turn = self._common(section, key, after)
        turn.items = section.items()
        turn.permissions = permissions_of(section.settings)
        turn.config = config_of(section.settings, self._reading.start)
        turn.tools = tuple(dict.fromkeys([*(self._thread.tools or ()), *self._reading.tools])) or None
        return turn

    def _compaction(self, section: TurnSection, key: str) -> NativeTurn:
        turn = self._common(section, key, None)
        compaction = section.compaction
        if compaction is not None:
            alone = len(self._sections) == 1
            manual = alone and self._group.explicit and self._group.closed
            trigger = "manual" if manual else "auto" if not alone else None
            duration = whole_number(self._reading.end.get("duration_ms")) if alone else None
            turn.compaction = compaction.native(trigger, duration)
            turn.items = section.items()
            turn.started = turn.ended = compaction.at
            turn.literal_time = compaction.literal_time
        return turn

    def _common(self, section: TurnSection, key: str, after: str | None) -> NativeTurn:
        thread = self._thread
        names = [*([self._group.id] if self._group.id else []), *section.names]
        if thread.printed_of is not None:
            names = [self._place]
        first, last = _span(section)
        return NativeTurn(
            key=key,
            records=self._records(section, after),
            names=tuple(dict.fromkeys(names)),
            role=AgentRole.WORKER if thread.is_led else AgentRole.UNIFIED,
            workspace=text(section.settings.get("cwd")) or thread.workspace,
            git_branch=thread.branch,
            version=thread.version,
            metadata=self._metadata(),
            offset=section.first.offset if section.first is not None else 0,
            end=section.end,
            places=tuple(section.places),
            started=first,
            ended=last,
            literal_time=next((message.literal_time for message in section.messages), None) if first is None else None,
        )

    def _metadata(self) -> dict[str, Any] | None:
        reading = self._reading
        return (
            without_none(
                turn_id=self._group.id,
                aborted=reading.abort,
                duration_ms=whole_number(reading.end.get("duration_ms")),
                time_to_first_token_ms=whole_number(reading.end.get("time_to_first_token_ms")),
                copied_from=reading.owner if reading.copied else None,
            )
            or None
        )

    def _finish(self, turn: NativeTurn) -> None:
        """How the turn ended is told by its last part, and is part of what it says."""
        group, reading = self._group, self._reading
        turn.closed = group.closed or turn.compaction is not None
        turn.ended = reading.ended or turn.ended
        if reading.notes:
            turn.metadata = {**(turn.metadata or {}), "notes": reading.notes}
        is_over = group.closed or self._turns.is_over(turn)
        unfinished = group.explicit and not group.ended and is_over and not _is_answered(turn)
        if turn.compaction is None:
            aborted = reading.abort is not None and reading.abort not in _NO_INTERRUPTION
            turn.interrupted = aborted or unfinished
        turn.error = reading.error
        if (group.ended and turn.compaction is None) or reading.error is not None:
            turn.records += (canonical_escaped(["end", reading.abort, reading.error]),)


def _is_answered(turn: NativeTurn) -> bool:
    """Codex itself calls its last message the final answer: only the record that the turn is complete is not there."""
    last = turn.items[-1] if turn.items else None
    return isinstance(last, NativeMessage) and (last.metadata or {}).get("phase") == FINAL_ANSWER


def _share_places(sections: list[TurnSection], used_sections: list[TurnSection]) -> None:
    """Records of a piece that makes no turn (how a turn began or ended) lie with the turn beside them."""
    chosen = {id(section) for section in used_sections}
    before: TurnSection | None = None
    leading: list[tuple[int, int]] = []
    for section in sections if used_sections else []:
        if id(section) in chosen:
            section.places = [*leading, *section.places]
            before, leading = section, []
        elif before is not None:
            before.places += section.places
        else:
            leading += section.places


def _span(section: TurnSection) -> tuple[int | None, int | None]:
    """When its first and last message were written."""
    times = [message.at for message in section.messages if message.at is not None]
    calls = [
        call.done
        for message in section.messages
        if isinstance(message, Response)
        for call in message.calls
        if call.done
    ]
    return (min(times) if times else None), (max([*times, *calls]) if times or calls else None)


# --- What Codex prints (`codex exec --json`) instead of what it keeps, in each of the three forms that it has had.

OPENINGS = frozenset({"thread.started", "thread.resumed", "session.created"})
MESSAGES = frozenset({"agent_message", "assistant_message", "reasoning"})
NOTES = frozenset({"todo_list", "plan", "error"})
CALLS = {
    "command_execution": ("command",),
    "file_change": ("changes",),
    "mcp_tool_call": ("arguments",),
    "collab_tool_call": ("prompt", "receiver_thread_ids"),
    "web_search": ("query", "action"),
}
"""Items that are tool calls, and what of them is an argument."""
_ENDS = {"collab_tool_call": "collabagenttoolcall"}
_BEGINNINGS = {
    "exec_command_begin": ("exec_command", ("command", "cwd")),
    "patch_apply_begin": ("apply_patch", ("changes",)),
    "mcp_tool_call_begin": ("", ()),
    "web_search_begin": ("web_search", ("query",)),
}
_CLOSINGS = frozenset({"exec_command_end", "patch_apply_end", "mcp_tool_call_end", "web_search_end"})
EVENT_TYPES = ROLLOUT_EVENTS.keys() | _BEGINNINGS.keys()
_COUNTED_FLAT = "input_tokens"


def thread_of(value: dict[str, Any]) -> str | None:
    """The thread that a run is of, where this line tells."""
    if text(value.get("type")) in OPENINGS:
        return text(value.get("thread_id")) or text(value.get("session_id"))
    message = mapping(value.get("msg"))
    return text(message.get("session_id")) if message.get("type") == "session_configured" else None


class PrintedLines:
    """The lines of one run, in their order."""

    def __init__(self, session: str, thread: str | None) -> None:
        self._session, self._thread = session, thread
        self._begun: set[str] = set()
        self._patches: dict[str, Any] = {}
        self._settings: dict[str, Any] = {}

    def entries(self, record: Record) -> list[Entry]:
        """The first stands for the line where records are counted."""
        value, top = record.value, record.value.get("type")
        if isinstance(value.get("msg"), dict):
            line_entries = self._event(record, value["msg"])
        elif not isinstance(top, str):
            line_entries = self._opening(record)
        elif top.startswith("item.") and isinstance(value.get("item"), dict):
            line_entries = self._item(record, top.removeprefix("item."), value["item"])
        else:
            line_entries = self._line(record, top)
        for extra in line_entries[1:]:
            extra.kind = ""
        return line_entries

    def _meta(self, record: Record, kind: str, fields: dict[str, Any]) -> Entry:
        fields = without_none(session_id=self._thread, cwd=fields.get("cwd"), timestamp=fields.get("timestamp"))
        return _entry(record, kind, EntryEffect.META, "session", {"id": self._session, **fields})

    def _line(self, record: Record, top: str) -> list[Entry]:
        value = record.value
        if top in OPENINGS:
            return [self._meta(record, top, value)]
        if top == "turn.completed":
            return [_entry(record, top, EntryEffect.END, top, {}), _entry(record, top, EntryEffect.USAGE, top, value)]
        sort = {"turn.started": EntryEffect.START, "turn.failed": EntryEffect.END, "error": EntryEffect.ERROR}.get(
            top, EntryEffect.UNKNOWN
        )
        return [_entry(record, top[:80], sort, top, value)]

    def _opening(self, record: Record) -> list[Entry]:
        """Before there were threads: the settings of a run, and its prompt."""
        value = record.value
        if isinstance(value.get("prompt"), str):
            fields = {"role": "user", "content": [{"type": "input_text", "text": value["prompt"]}]}
            return [_entry(record, "prompt", EntryEffect.USER, "message", fields)]
        if "workdir" not in value:
            return [_entry(record, "untyped", EntryEffect.UNKNOWN, "untyped", value)]
        names = {"workdir": "cwd", "provider": "model_provider", "approval": "approval_policy"}
        names |= {"sandbox": "sandbox_policy"}
        self._settings = {names.get(name, name): fact for name, fact in value.items()}
        return [_entry(record, "settings", EntryEffect.SETTINGS, "turn_context", self._settings)]

    def _item(self, record: Record, stage: str, item: dict[str, Any]) -> list[Entry]:
        name = text(item.get("type")) or text(item.get("item_type")) or "untyped"
        kind, is_whole = f"item.{stage}/{name}"[:80], stage == "completed"
        if name in CALLS:
            return self._call(record, kind, name, item, is_whole)
        if name in MESSAGES or name in NOTES:
            sort, fields = _sort_and_fields(name, item.get("text")) if name in MESSAGES else (EntryEffect.NOTE, item)
            return [_entry(record, kind, sort if is_whole else EntryEffect.SILENT, name, fields)]
        return [_entry(record, kind, EntryEffect.UNKNOWN, name, item)]

    def _call(self, record: Record, kind: str, name: str, item: dict[str, Any], is_whole: bool) -> list[Entry]:
        """An item begins and ends, or ends without having begun."""
        id, call_entries = text(item.get("id")) or "", []
        arguments = {field_name: item[field_name] for field_name in CALLS[name] if item.get(field_name) is not None}
        if id not in self._begun:
            self._begun.add(id)
            fields = {"call_id": id, "name": text(item.get("tool")) or name, "namespace": item.get("server")}
            fields["arguments"] = item.get("arguments") if name == "mcp_tool_call" else arguments
            call_entries.append(_entry(record, kind, EntryEffect.CALL, name, fields))
        if is_whole:
            self._begun.discard(id)
            outcome = {
                field_name: fact
                for field_name, fact in item.items()
                if field_name not in arguments and field_name != "item_type"
            }
            if name == "file_change":
                outcome["changes"] = _by_path(item.get("changes"))
            if name == "collab_tool_call":
                outcome |= without_none(tool=(text(item.get("tool")) or "").replace("_", ""))
                outcome |= without_none(receiver_thread_ids=item.get("receiver_thread_ids"))
            outcome_name = _ENDS.get(name, name.replace("_", ""))
            call_entries.append(_entry(record, kind, EntryEffect.SETTLED, outcome_name, {**outcome, "call_id": id}))
        return call_entries or [_entry(record, kind, EntryEffect.SILENT, name, item)]

    def _event(self, record: Record, event: dict[str, Any]) -> list[Entry]:
        """What a rollout has as `event_msg`; its end is not printed, so that its beginning says nothing."""
        name = text(event.get("type")) or "untyped"
        kind = f"msg/{name}"[:80]
        if name == "session_configured":
            turn_context = self._settings | without_none(model=event.get("model"))
            settings = _entry(record, kind, EntryEffect.SETTINGS, "turn_context", turn_context)
            return [self._meta(record, kind, event), settings]
        if name in ("agent_message", "agent_reasoning"):
            sort, fields = _sort_and_fields(name, event.get("message") or event.get("text"))
            return [_entry(record, kind, sort, name, fields)]
        if name in _BEGINNINGS:
            return [self._begin_call(record, kind, name, event)]
        if name in _CLOSINGS:
            return [self._end_call(record, kind, name, event)]
        if name == "token_count" and _COUNTED_FLAT in event:
            event = {"info": {"last_token_usage": event}}
        sort = (
            EntryEffect.SILENT
            if name in ("task_started", "turn_started")
            else ROLLOUT_EVENTS.get(name, EntryEffect.UNKNOWN)
        )
        return [_entry(record, kind, sort, name, event)]

    def _begin_call(self, record: Record, kind: str, name: str, event: dict[str, Any]) -> Entry:
        tool, argument_names = _BEGINNINGS[name]
        invocation = mapping(event.get("invocation"))
        id = text(event.get("call_id")) or ""
        fields: dict[str, Any] = {"call_id": id, "name": text(invocation.get("tool")) or tool}
        if name == "patch_apply_begin":
            self._patches[id] = event.get("changes")
        arguments = {
            field_name: event[field_name] for field_name in argument_names if event.get(field_name) is not None
        }
        fields |= {
            "namespace": invocation.get("server"),
            "arguments": invocation.get("arguments") if invocation else arguments,
        }
        return _entry(record, kind, EntryEffect.CALL, name, fields)

    def _end_call(self, record: Record, kind: str, name: str, event: dict[str, Any]) -> Entry:
        outputs = [event.get(field_name) for field_name in ("aggregated_output", "formatted_output")]
        outputs.append("".join(filter(None, (text(event.get("stdout")), text(event.get("stderr"))))) or None)
        outcome = {field_name: fact for field_name, fact in event.items() if field_name != "invocation"}
        outcome |= without_none(aggregated_output=next((words for words in outputs if isinstance(words, str)), None))
        if name == "patch_apply_end":
            outcome |= without_none(changes=self._patches.pop(text(event.get("call_id")) or "", None))
        return _entry(record, kind, EntryEffect.SETTLED, name, outcome)


def _entry(record: Record, kind: str, sort: EntryEffect, name: str, value: dict[str, Any]) -> Entry:
    return Entry(record.line, record.offset, record.end, kind, sort, name, value)


def _sort_and_fields(name: str, words: Any) -> tuple[EntryEffect, dict[str, Any]]:
    if name in ("reasoning", "agent_reasoning"):
        return EntryEffect.THOUGHT, {"summary": words}
    return EntryEffect.ANSWER_TEXT, {"role": "assistant", "content": words}


def _by_path(changes: Any) -> dict[str, Any]:
    """As a rollout tells them: an update as a diff, a file that was added or deleted as its text."""
    fields: dict[str, Any] = {}
    for change in map(mapping, sequence(changes)):
        kind = text(change.get("kind")) or text(mapping(change.get("kind")).get("type"))
        if (path := text(change.get("path"))) is not None:
            diff = text(change.get("diff"))
            fields[path] = without_none(type=kind, **{"unified_diff" if kind == "update" else "content": diff})
    return fields


_ITEMS = CALLS.keys() | MESSAGES | NOTES
_QUIET = frozenset({"turn.started", "task_started", "session_configured"})


def is_printed(head: bytes) -> bool:
    """Does a file that begins like this hold what Codex printed?"""
    objects = first_objects(head)
    if any(value.get("type") == "thread.started" and text(value.get("thread_id")) for value in objects):
        return True
    return bool(objects) and sum(map(_is_sign, objects)) * 2 >= len(objects)


def _is_sign(record: dict[str, Any]) -> bool:
    message, item = mapping(record.get("msg")), mapping(record.get("item"))
    if message:
        return text(message.get("type")) in EVENT_TYPES and isinstance(record.get("id"), str)
    stage, kind = text(record.get("type")), text(item.get("type")) or text(item.get("item_type"))
    return stage in ("item.started", "item.updated", "item.completed") and kind in _ITEMS


class _Run(Struct):
    """The lines of one run."""

    lines: list[Record] = field(default_factory=list)
    is_opening: bool = True

    def accepts(self, record: Record) -> bool:
        """Is this line one more of it?"""
        return self.is_opening or not _opens(record.value)

    def add(self, record: Record) -> None:
        self.lines.append(record)
        self.is_opening &= _opens(record.value)


def _opens(value: dict[str, Any]) -> bool:
    top = value.get("type")
    return top in OPENINGS if isinstance(top, str) else "msg" not in value and ("prompt" in value or "workdir" in value)


def _says(value: dict[str, Any]) -> bool:
    return not _opens(value) and (text(mapping(value.get("msg")).get("type")) or text(value.get("type"))) not in _QUIET


def transcripts(source: Source, report: Report) -> Iterator[Transcript]:
    """Every run of a file, one in memory at a time."""
    run = _Run()
    for record in records(source, report):
        if not run.accepts(record):
            yield from _transcript(run, source, report, record.offset)
            run = _Run()
        run.add(record)
    yield from _transcript(run, source, report, None)


def _transcript(run: _Run, source: Source, report: Report, until: int | None) -> Iterator[Transcript]:
    first = next((line.value for line in run.lines if _says(line.value)), None)
    native = next((thread_id for line in run.lines if (thread_id := thread_of(line.value)) is not None), None)
    if first is None:
        report.kept.update("opening" for _ in run.lines)
        return
    mark = digest(first)
    session = NativeSession(id=f"print-{mark[:16]}" if native is None else f"{native}/print-{mark[:8]}")
    times = (epoch_millis(line.value.get("timestamp")) for line in run.lines)
    session.created = next(filter(None, times), None)
    thread = Thread(session)
    thread.printed_of = native or session.id
    turns = _turns(run, Turns(thread, report, source.is_over), PrintedLines(session.id, native))
    yield Transcript(session=session, turns=turns, until=until)


def _turns(run: _Run, turns: Turns, lines: PrintedLines) -> Iterator[NativeTurn]:
    assembler = Assembler()
    for entry in _entries(run, lines):
        yield from turns.walk_groups(assembler.feed(entry))
    yield from turns.walk_groups(assembler.finish())


def _entries(run: _Run, lines: PrintedLines) -> Iterator[Entry]:
    """The session's own line first, wherever it stands."""
    entries = [entry for record in run.lines for entry in lines.entries(record)]
    yield from (entry for entry in entries if entry.sort == EntryEffect.META)
    yield from (entry for entry in entries if entry.sort != EntryEffect.META)


# --- The importer of Codex: its rollouts, and the runs that it printed.

_FIRST_ENTRIES = 64
"""So many records are looked through for the session's own."""


class _State(Struct):
    """A rollout as far as it was read."""

    turns: Turns
    thread: Thread
    assembler: Assembler = field(default_factory=Assembler)

    def copy(self) -> _State:
        """Entries are only ever looked at, and a report belongs to one reading."""
        shared: dict[int, Any] = {id(entry): entry for entry in self.assembler.waiting}
        shared[id(self.turns.report)] = self.turns.report
        return deepcopy(self, shared)


class CodexReader:
    """Of one rollout."""

    def __init__(self) -> None:
        self._state: _State | None = None
        self._read_position = ReadPosition()

    def read(self, source: Source, report: Report, turns_taken: Mapping[str, int]) -> Iterator[Transcript]:
        state, self._state = self._state, None
        if is_printed(source.head) and not is_rollout(source.head):
            yield from transcripts(source, report)
            return
        if (
            state is None
            or self._read_position.is_torn
            or turns_taken.get(state.thread.session.id, 0) < state.turns.turn_count
        ):
            yield from self._read_anew(source, report)
            return
        session = state.thread.session
        state.thread.take_name(name_of(source.path, session.id))
        state.turns.report, state.turns.is_over = report, source.is_over
        new_entries = entries(source, report, self._read_position)
        yield Transcript(
            session=session, turns=self._walk(state, new_entries, True), known_turns=state.turns.turn_count
        )

    def _read_anew(self, source: Source, report: Report) -> Iterator[Transcript]:
        self._read_position = ReadPosition()
        all_entries = entries(source, report, self._read_position)
        first = list(islice(all_entries, _FIRST_ENTRIES))
        if not first:
            return
        meta = next((entry.value for entry in first if entry.sort == EntryEffect.META), None)
        thread = Thread(session_of(source, meta))
        thread.take_name(name_of(source.path, thread.session.id))
        state = _State(Turns(thread, report, source.is_over), thread)
        is_session_known = meta is not None or len(first) == _FIRST_ENTRIES
        yield Transcript(session=thread.session, turns=self._walk(state, chain(first, all_entries), is_session_known))

    def _walk(self, state: _State, new_entries: Iterator[Entry], is_session_known: bool) -> Iterator[NativeTurn]:
        """`is_session_known`: whose session it is will not change."""
        for entry in new_entries:
            yield from state.turns.walk_groups(state.assembler.feed(entry))
        # Copied before the assembler gives the turn under way: the next reading goes on within that turn.
        self._state = state.copy() if is_session_known else None
        yield from state.turns.walk_groups(state.assembler.finish())


class Codex:
    origin = "codex"
    mapping = 3

    def places(self, home: Path, environment: Mapping[str, str]) -> list[Place]:
        root = Path(environment["CODEX_HOME"]) if environment.get("CODEX_HOME") else home / ".codex"
        return [
            Place(root / "sessions", "Codex sessions"),
            Place(root / "archived_sessions", "archived Codex sessions"),
        ]

    def recognises(self, source: Source) -> bool:
        return not self.is_part(source) and (is_rollout(source.head) or is_printed(source.head))

    def is_part(self, source: Source) -> bool:
        """The index of thread names, which every session looks its own up in."""
        return Path(source.name).name == "session_index.jsonl" and b'"thread_name"' in source.head

    def is_renamed(self, path: Path, since: int) -> bool:
        thread_name = name_of(path)
        return thread_name is not None and thread_name.at >= since

    def read(self, source: Source, report: Report) -> Iterator[Transcript]:
        return self.reader().read(source, report, {})

    def reader(self) -> CodexReader:
        return CodexReader()
