"""The job of a broker that has triggers fire: by the clock, by the log, and by folders."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from hashlib import sha256
from itertools import count
from pathlib import Path
from typing import Any, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from weft.kernel.enums import MISSED_CHOICES, MessageSource
from weft.kernel.errors import Damaged, NotApplicable, NotFound, StoreError, WeftError
from weft.kernel.foreign_input import MIB, ReadBudget, ReadLimits
from weft.ledger.api import CursorMove, EventPlace, TriggerOccasion, TriggerStanding
from weft.programs import Programs
from weft.programs.program_writer import ensure_vouched
from weft.programs.triggers import due_between, first_due
from weft.runtime.invoke.trigger_firing import ReadyTrigger, TriggerSender, occasion_digest
from weft.runtime.ledger_port import Executor
from weft.runtime.tool.tool_contract import ToolFailure
from weft.runtime.tool.workspace import FolderWalk, PathPattern, WorkspaceFolder

# --- Which events of the log set a trigger off: of a kind, with certain fields; a completed task; a message in a room.

LOGGED = ("event", "task", "room")
"""What sets a trigger off that stands in the log."""
TRIGGER_KINDS = ("trigger_fired", "trigger_missed")
"""What triggers say of themselves sets nothing off."""


def wanted_kind(trigger: ReadyTrigger) -> str:
    """The kind of event that a trigger of the log waits for."""
    name, setting = trigger.occasion
    return {"task": "task_completed", "room": "message_posted"}.get(name) or str(setting["kind"])


def fits(trigger: ReadyTrigger, fields: Mapping[str, Any], place: EventPlace, ids: Mapping[str, str]) -> bool:
    """Whether an event of the wanted kind is meant. `ids` are those of the task or the room by the names that triggers
    have for them."""
    name, setting = trigger.occasion
    if fields["kind"] in TRIGGER_KINDS or fields.get("actor") == trigger.id:
        return False
    if name == "task":
        return place.program is not None and place.program == ids.get(setting)
    if name == "room":
        return place.room is not None and place.room == ids.get(setting) and fields.get("message_kind") == "participant"
    return all(_event_has(fields, place, path, value) for path, value in setting.get("filter", {}).items())


def _event_has(fields: Mapping[str, Any], place: EventPlace, path: str, wanted: Any) -> bool:
    """`session`, `turn`, `room` and `program` are what the event belongs to; all else is a field of it."""
    if path in ("session", "turn", "room", "program"):
        return bool(getattr(place, path) == wanted)
    value: Any = fields
    for step in path.split("."):
        value = value.get(step) if isinstance(value, Mapping) else None
    return bool(value == wanted)


def may_read(programs: Programs, place: EventPlace) -> bool:
    """Whether whoever these programs are read as may know of an event."""
    ledger = programs.ledger
    try:
        if place.turn is not None:
            ledger.turn(place.turn)
        elif place.session is not None:
            ledger.session(place.session)
        elif place.room is not None:
            return not ledger.rooms.get(place.room).is_left
        elif place.program is not None:
            programs.get(place.program)
        else:
            return ledger.authority.is_unlimited
    except StoreError:  # the ledger cannot be read now
        raise
    except WeftError:
        return False
    return True


def payload_of(fields: Mapping[str, Any], place: EventPlace) -> dict[str, Any]:
    """What a trigger tells of an event: ids, names and numbers, as they stand in it."""
    about = {"session": place.session, "turn": place.turn, "room": place.room, "program": place.program}
    hidden = ("v", "prev", "replica", "on_behalf_of")
    event = {name: value for name, value in fields.items() if name not in hidden}
    return {"event": event, **{name: value for name, value in about.items() if value is not None}}


# --- What changed in a folder since it was last looked at: files added, changed and removed, by their digests.

MOST_FILES = 20_000
MOST_FILE_BYTES = 64 * MIB
SHOWN_CHANGES = 200
LIMITS = ReadLimits(entries=10 * MOST_FILES, seconds=30)


class FileMark(Struct, frozen=True):
    """What a file was like: its size, when it was written, and a digest of what it holds."""

    size: int
    time_ns: int
    digest: str


class FolderState(Struct, frozen=True):
    """A folder as it was last looked at; `count` says how often it had changed by then."""

    count: int
    files: Mapping[str, FileMark]

    def encode(self) -> str:
        files = {path: [mark.size, mark.time_ns, mark.digest] for path, mark in self.files.items()}
        return json.dumps([self.count, files], sort_keys=True)

    @classmethod
    def decode(cls, text: str) -> FolderState:
        count, files = json.loads(text)
        return cls(count, {path: FileMark(*mark) for path, mark in files.items()})


class FolderWatch:
    """Looks at one folder. Keeps in memory what was seen at the last look and is not yet settled."""

    def __init__(self, folder: str, patterns: Sequence[str], withheld: Iterable[Path] = ()) -> None:
        self._folder, self._withheld = folder, tuple(withheld)
        self._patterns = [PathPattern(pattern if "/" in pattern else f"**/{pattern}") for pattern in patterns]
        self._last: dict[str, tuple[int, int]] = {}

    def look(self, before: FolderState | None) -> tuple[FolderState, list[dict[str, str]]]:
        """The folder as it is, and what of it changed. What is being written is left to a later look. The first look at
        a folder finds no changes."""
        workspace = WorkspaceFolder(Path(self._folder), withheld=self._withheld)
        found = self._folder_stats(workspace)
        old = {} if before is None else before.files
        moved = {path for path, stat in found.items() if path not in old or stat != (old[path].size, old[path].time_ns)}
        settled = {path for path in moved if before is None or self._last.get(path) == found[path]}
        gone = set(old) - set(found)
        gone_for_good = {path for path in gone if path not in self._last}
        self._last = found
        files = {path: old[path] for path in old if path not in gone_for_good and path not in settled}
        changes: list[dict[str, str]] = [{"path": path, "change": "removed"} for path in gone_for_good]
        for path in settled:
            mark = self._file_mark(workspace, path, found[path])
            if mark is None:
                continue
            files[path] = mark
            if path not in old or old[path].digest != mark.digest:
                changes.append({"path": path, "change": "changed" if path in old else "added"})
        if before is None:
            changes = []
        count = (0 if before is None else before.count) + bool(changes)
        changes.sort(key=lambda change: change["path"])
        return FolderState(count, files), changes

    def _folder_stats(self, workspace: WorkspaceFolder) -> dict[str, tuple[int, int]]:
        walk = FolderWalk(workspace, ReadBudget(LIMITS))
        found: dict[str, tuple[int, int]] = {}
        for path in walk.files(".", lambda parts: True):
            parts = tuple(path.split("/"))
            if self._patterns and not any(pattern.matches(parts) for pattern in self._patterns):
                continue
            try:
                stat = os.stat(workspace.root / path, follow_symlinks=False)
            except OSError:  # gone since
                continue
            found[path] = (stat.st_size, stat.st_mtime_ns)
            if len(found) > MOST_FILES:
                raise ToolFailure("limit", f"the folder has more than {MOST_FILES} files that fit: name fewer")
        if not walk.is_complete:
            raise ToolFailure("limit", "the folder is too large to be looked through: name a smaller one")
        return found

    def _file_mark(self, workspace: WorkspaceFolder, path: str, stat: tuple[int, int]) -> FileMark | None:
        """None where it cannot be read. What is very large is told by its size and time alone."""
        size, time_ns = stat
        if size > MOST_FILE_BYTES:
            return FileMark(size, time_ns, f"{size} {time_ns}")
        try:
            data = workspace.read_if_there(path)
        except ToolFailure:
            return FileMark(size, time_ns, f"{size} {time_ns}")
        return None if data is None else FileMark(size, time_ns, sha256(data.data).hexdigest())


def changes_payload(folder: str, changes: list[dict[str, str]]) -> dict[str, Any]:
    """What a trigger tells of changes."""
    payload: dict[str, Any] = {"folder": folder, "changes": changes[:SHOWN_CHANGES]}
    if len(changes) > SHOWN_CHANGES:
        payload["left_out"] = len(changes) - SHOWN_CHANGES
    return payload


# --- The job of a broker that has triggers fire: by the clock, by the log, and by folders.

T = TypeVar("T")
LATE_MS = 60_000
"""A time fires on its own so long after it; later it was missed."""
MOST_TIMES = 100
"""So many missed times of a schedule are fired at once; the rest follow with the next look."""
MOST_COUNTED = 100_000
"""So many are noted at once."""
MOST_EVENTS = 5000
"""So many events are looked at in one go."""
SAVED_EVENTS = 2000
"""How far the log was read is kept at least so often."""
READ_AGAIN_MS = 5000
FOLDER_MS = 2000
"""So often folders are looked at."""


class TriggerJob:
    """A `BackgroundJob`."""

    name = "triggers"

    def __init__(self, sender: TriggerSender, crossing: Executor) -> None:
        self._sender, self._crossing = sender, crossing
        self._positions: dict[tuple[str, int], int] = {}
        """How far each trigger has read the log, by its id and version: beyond what is kept in the ledger."""
        self._watches: dict[tuple[str, int], FolderWatch] = {}
        self._read: tuple[tuple[tuple[str, int], ...], int, list[ReadyTrigger]] | None = None
        """The triggers as they were last read: after which changes, and when."""
        self._next_times: dict[str, tuple[TriggerStanding, int | None]] = {}
        """When each trigger is due next, as long as it stands as it did."""
        self._next_folder_ms = self._last_ms = 0
        self._failed: dict[str, StoreError] = {}
        """Triggers for which the store could not be read or written in this run, by their ids."""
        self._numbers = count()
        """Of the failures that are recorded: several may be at one moment."""

    async def run_due(self, now_ms: int) -> int | None:
        return await self._crossing.run(lambda: self.run(now_ms))

    def run(self, now_ms: int) -> int | None:
        """Fire all that is due; when to look again at the latest. Raises the first error of the store, after every
        trigger was looked at."""
        if now_ms < self._last_ms:  # the clock was set back
            self._next_times.clear()
            self._next_folder_ms = now_ms
        self._last_ms = now_ms
        self._failed = {}
        triggers = self._ready_triggers(now_ms)
        due: list[int] = []
        for trigger in triggers:
            due += self._guarded_work(trigger, partial(self._by_itself, trigger, now_ms)) or []
        if any(trigger.occasion[0] == "file" for trigger in triggers):
            if now_ms >= self._next_folder_ms:
                self._next_folder_ms = now_ms + FOLDER_MS
            due.append(self._next_folder_ms)
        if self._by_log([trigger for trigger in triggers if trigger.occasion[0] in LOGGED]):
            due.append(now_ms)
        for error in self._failed.values():
            raise error
        return min(due, default=None)

    def _ready_triggers(self, now_ms: int) -> list[ReadyTrigger]:
        """Those that fire. They are read again where an event about one came, and from time to time: what is taken over
        from other ledgers is no event."""
        changes = self._sender.log.last_changes()
        if self._read is None or self._read[0] != changes or not 0 <= now_ms - self._read[1] < READ_AGAIN_MS:
            self._read = (changes, now_ms, self._sender.all())
            self._forget_others(self._read[2])
            return self._read[2]
        cursors = self._sender.log.cursors()
        return [
            ReadyTrigger(trigger.program, replace(trigger.standing, cursor=cursors.get(trigger.id)))
            for trigger in self._read[2]
        ]

    def _forget_others(self, triggers: list[ReadyTrigger]) -> None:
        """Keep nothing of triggers that fire no more, nor of former versions."""
        keys = {(trigger.id, trigger.standing.version) for trigger in triggers}
        ids = {trigger.id for trigger in triggers}
        self._positions = {key: position for key, position in self._positions.items() if key in keys}
        self._watches = {key: watch for key, watch in self._watches.items() if key in keys}
        self._next_times = {id: times for id, times in self._next_times.items() if id in ids}

    def _guarded_work(self, trigger: ReadyTrigger, work: Callable[[], T]) -> T | None:
        """Work for one trigger, whose failure keeps no other from firing; None where it failed."""
        try:
            return work()
        except Exception as error:  # whatever it is: it is recorded, or raised when all were looked at
            if isinstance(error, StoreError) and not isinstance(error, Damaged):
                self._failed.setdefault(trigger.id, error)
            else:
                self._note_failure(trigger, error)
        return None

    def _note_failure(self, trigger: ReadyTrigger, error: Exception) -> None:
        source = MessageSource.EVENT if trigger.schedule is None else MessageSource.CRON
        digest = occasion_digest("failure", trigger.standing.version, self._last_ms, next(self._numbers))
        try:
            self._sender.note_error(trigger, TriggerOccasion(digest=digest, source=source), error)
        except (NotApplicable, NotFound):  # paused, deleted or configured anew meanwhile: which is what it failed with
            return
        except StoreError as failure:
            self._failed.setdefault(trigger.id, failure)

    def _by_itself(self, trigger: ReadyTrigger, now_ms: int) -> list[int]:
        """Fire where the clock or a folder says so; when it is due next."""
        if trigger.schedule is not None:
            return self._by_time(trigger, now_ms)
        if trigger.occasion[0] == "file" and now_ms >= self._next_folder_ms:
            self._by_folder(trigger)
        return []

    # --- by the clock --------------------------------------------------------------------------------------------

    def _by_time(self, trigger: ReadyTrigger, now_ms: int) -> list[int]:
        schedule = trigger.schedule
        assert schedule is not None
        standing, next_ms = self._next_times.get(trigger.id, (None, None))
        if standing == trigger.standing and (next_ms is None or now_ms < next_ms):
            return [] if next_ms is None else [next_ms]
        choice = trigger.config.get("onMissed", MISSED_CHOICES[0])
        most = MOST_TIMES if choice == "all" else MOST_COUNTED
        times = due_between(schedule, self._looked_until(trigger, now_ms), now_ms, most)
        has_more = len(times) == most  # the rest follow with the next look
        missed = [time for time in times if time < now_ms - LATE_MS]
        on_time = times[len(missed) :]
        caught_up = missed if choice == "all" else missed[-1:] if choice == "latest" and not has_more else []
        if len(missed) > len(caught_up):
            self._note_missed(trigger, missed[: len(missed) - len(caught_up)])
        for time in (*caught_up, *on_time):
            digest = occasion_digest("time", time)
            occasion = TriggerOccasion(digest=digest, source=MessageSource.CRON, due_ms=time)
            if self._sender.fire(trigger, occasion, _time_cursor(trigger, time)).paused is not None:
                return []
        if has_more:
            return [now_ms]
        following = first_due(schedule, now_ms)
        if not times:
            self._next_times[trigger.id] = (trigger.standing, following)
        return [] if following is None else [following]

    def _looked_until(self, trigger: ReadyTrigger, now_ms: int) -> int:
        """The time behind which nothing was looked at. Where that lies ahead, the clock was set back: it is now."""
        standing = trigger.standing
        cursor = standing.cursor
        position = standing.since_ms
        if cursor is not None and cursor.version == standing.version:
            is_current = cursor.state == str(standing.since_n)
            position = cursor.position if is_current else max(cursor.position, position)
        if position <= now_ms + LATE_MS:
            return position
        self._sender.log.move_cursor(trigger.id, replace(_time_cursor(trigger, now_ms), is_set_back=True))
        return now_ms

    def _note_missed(self, trigger: ReadyTrigger, times: list[int]) -> None:
        reason = "no broker was there to fire it in time"
        self._sender.log.record_missed(trigger.id, times, reason, _time_cursor(trigger, times[-1]))

    # --- by the log ----------------------------------------------------------------------------------------------

    def _by_log(self, triggers: list[ReadyTrigger]) -> bool:
        """Whether there is more to look at."""
        newest = self._sender.log.newest()
        positions = {trigger.id: self._trigger_position(trigger) for trigger in triggers}
        if not positions or min(positions.values()) >= newest:
            return False
        until, events = self._sender.log.events_after(min(positions.values()), MOST_EVENTS)
        reached = {trigger.id: max(positions[trigger.id], until) for trigger in triggers}
        wanted: dict[str, list[tuple[ReadyTrigger, dict[str, str]]]] = {}
        for trigger in triggers:
            ids = self._guarded_work(trigger, partial(self._named_ids, trigger))
            if ids is None:
                reached[trigger.id] = positions[trigger.id]
            else:
                wanted.setdefault(wanted_kind(trigger), []).append((trigger, ids))
        for n, fields in events:
            for trigger, ids in wanted.get(fields["kind"], ()):
                if positions[trigger.id] < n <= reached[trigger.id]:
                    self._guarded_work(trigger, partial(self._fire_event, trigger, n, fields, ids))
                    if trigger.id in self._failed:  # it is looked at again
                        reached[trigger.id] = n - 1
        for trigger in triggers:
            self._guarded_work(trigger, partial(self._remember_position, trigger, reached[trigger.id]))
        return until < newest

    def _trigger_position(self, trigger: ReadyTrigger) -> int:
        standing = trigger.standing
        cursor = standing.cursor
        kept = cursor.position if cursor is not None and cursor.version == standing.version else 0
        return max(kept, standing.since_n, self._positions.get((trigger.id, standing.version), 0))

    def _remember_position(self, trigger: ReadyTrigger, position: int) -> None:
        standing = trigger.standing
        self._positions[trigger.id, standing.version] = position
        cursor = standing.cursor
        kept = cursor.position if cursor is not None and cursor.version == standing.version else standing.since_n
        if position - kept >= SAVED_EVENTS:
            self._sender.log.move_cursor(trigger.id, CursorMove(standing.version, position))

    def _named_ids(self, trigger: ReadyTrigger) -> dict[str, str]:
        """The id of the task or the room that a trigger names, where whoever it acts for may know of it."""
        name, setting = trigger.occasion
        try:
            programs = self._sender.acting(trigger)
            if name == "task":
                return {setting: programs.get(setting, "task").id}
            return {setting: programs.ledger.rooms.get(setting).id} if name == "room" else {}
        except StoreError:  # the ledger cannot be read now: the event is looked at again
            raise
        except WeftError:
            return {}

    def _fire_event(self, trigger: ReadyTrigger, n: int, fields: dict[str, object], ids: dict[str, str]) -> None:
        place = self._sender.log.place_of(n, fields)
        if not fits(trigger, fields, place, ids) or not self._is_readable(trigger, place):
            return
        occasion = TriggerOccasion(
            digest=occasion_digest("event", fields["event_id"]),
            source=MessageSource.EVENT,
            cause=place.cause,
            hops=place.hops,
            payload=payload_of(fields, place),
            event_id=str(fields["event_id"]),
        )
        self._sender.fire(trigger, occasion, CursorMove(trigger.standing.version, n))

    def _is_readable(self, trigger: ReadyTrigger, place: EventPlace) -> bool:
        """Whether whoever the trigger acts for may know of an event. Where they are not there any more it fires, which
        records that error."""
        try:
            programs = self._sender.acting(trigger)
        except StoreError:
            raise
        except WeftError:
            return True
        return may_read(programs, place)

    # --- by folders ----------------------------------------------------------------------------------------------

    def _by_folder(self, trigger: ReadyTrigger) -> None:
        ensure_vouched(trigger.program)
        _, setting = trigger.occasion
        standing, version = trigger.standing, trigger.standing.version
        ledger_file = Path(self._sender.programs.ledger.path)
        withheld = [ledger_file] if ledger_file.exists() else []
        watch = self._watches.setdefault(
            (trigger.id, version), FolderWatch(setting["folder"], setting.get("patterns", []), withheld)
        )
        cursor = standing.cursor
        is_current = cursor is not None and (cursor.version, cursor.position) == (version, standing.since_n)
        text = cursor.state if cursor is not None and is_current else None  # what was before a pause sets nothing off
        before = None if text is None else FolderState.decode(text)
        state, changes = watch.look(before)
        if before is not None and state == before:
            return
        move = CursorMove(version, standing.since_n, state.encode(), text, is_compared=True)
        if not changes:
            self._sender.log.move_cursor(trigger.id, move)
            return
        occasion = TriggerOccasion(
            digest=occasion_digest("file", version, standing.since_n, state.count),
            source=MessageSource.EVENT,
            payload=changes_payload(setting["folder"], changes),
        )
        self._sender.fire(trigger, occasion, move)


def _time_cursor(trigger: ReadyTrigger, time: int) -> CursorMove:
    """Up to which time a schedule was looked at, since the event that it counts from: such a time may lie before that
    event, where the clock was ahead then and was set back."""
    return CursorMove(trigger.standing.version, time, str(trigger.standing.since_n))
