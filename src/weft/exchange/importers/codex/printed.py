"""What Codex prints (`codex exec --json`) instead of what it keeps, in each of the three forms that it has had.

First lines of settings and of the prompt, then events, `{"id", "msg"}`; then `session.created` and `item.*`
(`--experimental-json`); now `thread.started`, `turn.*` and `item.*`. All become the entries of a rollout.

A run that goes on with a thread tells nothing of what came before, and counts its items from nought again. So it is a
session of its own, `<thread>/print-<digest>`, by the first line that tells something: a file may hold several, and two
of one thread may begin alike. That is why a turn is known by all that it says.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from msgspec import Struct, field

from weft.exchange.importers.codex.entries import EVENTS as ROLLOUT_EVENTS
from weft.exchange.importers.codex.entries import Entry, Sort, digest
from weft.exchange.importers.codex.groups import Assembler
from weft.exchange.importers.codex.threads import Thread
from weft.exchange.importers.codex.turns import Turns
from weft.exchange.importers.port import NativeSession, NativeTurn, Report, Source, Transcript
from weft.exchange.importers.records.jsonl import Record, first_objects, records
from weft.exchange.importers.records.values import epoch_millis, mapping, sequence, text, without_none

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
            found = self._event(record, value["msg"])
        elif not isinstance(top, str):
            found = self._opening(record)
        elif top.startswith("item.") and isinstance(value.get("item"), dict):
            found = self._item(record, top.removeprefix("item."), value["item"])
        else:
            found = self._line(record, top)
        for extra in found[1:]:
            extra.kind = ""
        return found

    def _meta(self, record: Record, kind: str, fields: dict[str, Any]) -> Entry:
        fields = without_none(session_id=self._thread, cwd=fields.get("cwd"), timestamp=fields.get("timestamp"))
        return _entry(record, kind, Sort.META, "session", {"id": self._session, **fields})

    def _line(self, record: Record, top: str) -> list[Entry]:
        value = record.value
        if top in OPENINGS:
            return [self._meta(record, top, value)]
        if top == "turn.completed":
            return [_entry(record, top, Sort.END, top, {}), _entry(record, top, Sort.USAGE, top, value)]
        sort = {"turn.started": Sort.START, "turn.failed": Sort.END, "error": Sort.ERROR}.get(top, Sort.UNKNOWN)
        return [_entry(record, top[:80], sort, top, value)]

    def _opening(self, record: Record) -> list[Entry]:
        """Before there were threads: the settings of a run, and its prompt."""
        value = record.value
        if isinstance(value.get("prompt"), str):
            fields = {"role": "user", "content": [{"type": "input_text", "text": value["prompt"]}]}
            return [_entry(record, "prompt", Sort.USER, "message", fields)]
        if "workdir" not in value:
            return [_entry(record, "untyped", Sort.UNKNOWN, "untyped", value)]
        names = {"workdir": "cwd", "provider": "model_provider", "approval": "approval_policy"}
        names |= {"sandbox": "sandbox_policy"}
        self._settings = {names.get(name, name): fact for name, fact in value.items()}
        return [_entry(record, "settings", Sort.SETTINGS, "turn_context", self._settings)]

    def _item(self, record: Record, stage: str, item: dict[str, Any]) -> list[Entry]:
        name = text(item.get("type")) or text(item.get("item_type")) or "untyped"
        kind, is_whole = f"item.{stage}/{name}"[:80], stage == "completed"
        if name in CALLS:
            return self._call(record, kind, name, item, is_whole)
        if name in MESSAGES or name in NOTES:
            sort, fields = _sort_and_fields(name, item.get("text")) if name in MESSAGES else (Sort.NOTE, item)
            return [_entry(record, kind, sort if is_whole else Sort.SILENT, name, fields)]
        return [_entry(record, kind, Sort.UNKNOWN, name, item)]

    def _call(self, record: Record, kind: str, name: str, item: dict[str, Any], is_whole: bool) -> list[Entry]:
        """An item begins and ends, or ends without having begun."""
        id, found = text(item.get("id")) or "", []
        given = {part: item[part] for part in CALLS[name] if item.get(part) is not None}
        if id not in self._begun:
            self._begun.add(id)
            fields = {"call_id": id, "name": text(item.get("tool")) or name, "namespace": item.get("server")}
            fields["arguments"] = item.get("arguments") if name == "mcp_tool_call" else given
            found.append(_entry(record, kind, Sort.CALL, name, fields))
        if is_whole:
            self._begun.discard(id)
            rest = {part: fact for part, fact in item.items() if part not in given and part != "item_type"}
            if name == "file_change":
                rest["changes"] = _by_path(item.get("changes"))
            if name == "collab_tool_call":
                rest |= without_none(tool=(text(item.get("tool")) or "").replace("_", ""))
                rest |= without_none(receiver_thread_ids=item.get("receiver_thread_ids"))
            end = _ENDS.get(name, name.replace("_", ""))
            found.append(_entry(record, kind, Sort.SETTLED, end, {**rest, "call_id": id}))
        return found or [_entry(record, kind, Sort.SILENT, name, item)]

    def _event(self, record: Record, event: dict[str, Any]) -> list[Entry]:
        """What a rollout has as `event_msg`; its end is not printed, so that its beginning says nothing."""
        name = text(event.get("type")) or "untyped"
        kind = f"msg/{name}"[:80]
        if name == "session_configured":
            turn_context = self._settings | without_none(model=event.get("model"))
            settings = _entry(record, kind, Sort.SETTINGS, "turn_context", turn_context)
            return [self._meta(record, kind, event), settings]
        if name in ("agent_message", "agent_reasoning"):
            sort, fields = _sort_and_fields(name, event.get("message") or event.get("text"))
            return [_entry(record, kind, sort, name, fields)]
        if name in _BEGINNINGS:
            return [self._begin(record, kind, name, event)]
        if name in _CLOSINGS:
            return [self._end(record, kind, name, event)]
        if name == "token_count" and _COUNTED_FLAT in event:
            event = {"info": {"last_token_usage": event}}
        sort = Sort.SILENT if name in ("task_started", "turn_started") else ROLLOUT_EVENTS.get(name, Sort.UNKNOWN)
        return [_entry(record, kind, sort, name, event)]

    def _begin(self, record: Record, kind: str, name: str, event: dict[str, Any]) -> Entry:
        tool, parts = _BEGINNINGS[name]
        asked = mapping(event.get("invocation"))
        id = text(event.get("call_id")) or ""
        fields: dict[str, Any] = {"call_id": id, "name": text(asked.get("tool")) or tool}
        if name == "patch_apply_begin":
            self._patches[id] = event.get("changes")
        given = {part: event[part] for part in parts if event.get(part) is not None}
        fields |= {"namespace": asked.get("server"), "arguments": asked.get("arguments") if asked else given}
        return _entry(record, kind, Sort.CALL, name, fields)

    def _end(self, record: Record, kind: str, name: str, event: dict[str, Any]) -> Entry:
        shown = [event.get(part) for part in ("aggregated_output", "formatted_output")]
        shown.append("".join(filter(None, (text(event.get("stdout")), text(event.get("stderr"))))) or None)
        outcome = {part: fact for part, fact in event.items() if part != "invocation"}
        outcome |= without_none(aggregated_output=next((words for words in shown if isinstance(words, str)), None))
        if name == "patch_apply_end":
            outcome |= without_none(changes=self._patches.pop(text(event.get("call_id")) or "", None))
        return _entry(record, kind, Sort.SETTLED, name, outcome)


def _entry(record: Record, kind: str, sort: Sort, name: str, value: dict[str, Any]) -> Entry:
    return Entry(record.line, record.offset, record.end, kind, sort, name, value)


def _sort_and_fields(name: str, words: Any) -> tuple[Sort, dict[str, Any]]:
    if name in ("reasoning", "agent_reasoning"):
        return Sort.THOUGHT, {"summary": words}
    return Sort.ANSWER_TEXT, {"role": "assistant", "content": words}


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

    def takes(self, record: Record) -> bool:
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
        if not run.takes(record):
            yield from _transcript(run, source, report, record.offset)
            run = _Run()
        run.add(record)
    yield from _transcript(run, source, report, None)


def _transcript(run: _Run, source: Source, report: Report, until: int | None) -> Iterator[Transcript]:
    first = next((line.value for line in run.lines if _says(line.value)), None)
    native = next((found for line in run.lines if (found := thread_of(line.value)) is not None), None)
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
        yield from turns.take(assembler.feed(entry))
    yield from turns.take(assembler.finish())


def _entries(run: _Run, lines: PrintedLines) -> Iterator[Entry]:
    """The session's own line first, wherever it stands."""
    entries = [entry for record in run.lines for entry in lines.entries(record)]
    yield from (entry for entry in entries if entry.sort == Sort.META)
    yield from (entry for entry in entries if entry.sort != Sort.META)
