"""The job of a broker that has triggers fire: by the clock, by the log, and by folders.

Any number of brokers run it. What is due is computed from the ledger alone and fired in one transaction with the fact
that it was, so whoever comes second changes nothing. How far a trigger has looked is local state of the ledger; where
it is lost, occasions are looked at again and found done.

A time that comes up later than `LATE_MS` was missed: nobody was there, or the clock was set. `onMissed` says whether
all, the latest or none of these fire; the others are recorded as missed. A clock that is set back makes nothing fire
twice, and what a clock that ran ahead recorded as missed fires when its time comes.

A trigger that fails keeps no other from firing. What it failed with is recorded as an error of the trigger; where the
store cannot be read now, what was due for it is looked at again.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import count
from pathlib import Path
from typing import TypeVar

from msgspec.structs import replace

from weft.kernel.enums import MISSED_CHOICES, MessageSource
from weft.kernel.errors import Damaged, NotApplicable, NotFound, StoreError, WeftError
from weft.ledger.api import CursorMove, EventPlace, Occasion, TriggerStanding
from weft.programs.schedules import due_between, first_due
from weft.programs.vouching import ensure_vouched
from weft.runtime.triggers.event_matches import LOGGED, fits, may_read, payload_of, wanted_kind
from weft.runtime.triggers.folder_changes import FolderState, FolderWatch, changes_payload
from weft.runtime.triggers.sender import ReadyTrigger, TriggerSender, occasion_digest
from weft.runtime.turns.ledger_port import Crossing

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

    def __init__(self, sender: TriggerSender, crossing: Crossing) -> None:
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
        triggers = self._triggers(now_ms)
        due: list[int] = []
        for trigger in triggers:
            due += self._guarded(trigger, partial(self._by_itself, trigger, now_ms)) or []
        if any(trigger.occasion[0] == "file" for trigger in triggers):
            if now_ms >= self._next_folder_ms:
                self._next_folder_ms = now_ms + FOLDER_MS
            due.append(self._next_folder_ms)
        if self._by_log([trigger for trigger in triggers if trigger.occasion[0] in LOGGED]):
            due.append(now_ms)
        for error in self._failed.values():
            raise error
        return min(due, default=None)

    def _triggers(self, now_ms: int) -> list[ReadyTrigger]:
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

    def _guarded(self, trigger: ReadyTrigger, work: Callable[[], T]) -> T | None:
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
            self._sender.note_error(trigger, Occasion(digest=digest, source=source), error)
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
            occasion = Occasion(digest=digest, source=MessageSource.CRON, due_ms=time)
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
        positions = {trigger.id: self._position(trigger) for trigger in triggers}
        if not positions or min(positions.values()) >= newest:
            return False
        until, events = self._sender.log.events_after(min(positions.values()), MOST_EVENTS)
        reached = {trigger.id: max(positions[trigger.id], until) for trigger in triggers}
        wanted: dict[str, list[tuple[ReadyTrigger, dict[str, str]]]] = {}
        for trigger in triggers:
            ids = self._guarded(trigger, partial(self._ids, trigger))
            if ids is None:
                reached[trigger.id] = positions[trigger.id]
            else:
                wanted.setdefault(wanted_kind(trigger), []).append((trigger, ids))
        for n, fields in events:
            for trigger, ids in wanted.get(fields["kind"], ()):
                if positions[trigger.id] < n <= reached[trigger.id]:
                    self._guarded(trigger, partial(self._fire_event, trigger, n, fields, ids))
                    if trigger.id in self._failed:  # it is looked at again
                        reached[trigger.id] = n - 1
        for trigger in triggers:
            self._guarded(trigger, partial(self._remember, trigger, reached[trigger.id]))
        return until < newest

    def _position(self, trigger: ReadyTrigger) -> int:
        standing = trigger.standing
        cursor = standing.cursor
        kept = cursor.position if cursor is not None and cursor.version == standing.version else 0
        return max(kept, standing.since_n, self._positions.get((trigger.id, standing.version), 0))

    def _remember(self, trigger: ReadyTrigger, position: int) -> None:
        standing = trigger.standing
        self._positions[trigger.id, standing.version] = position
        cursor = standing.cursor
        kept = cursor.position if cursor is not None and cursor.version == standing.version else standing.since_n
        if position - kept >= SAVED_EVENTS:
            self._sender.log.move_cursor(trigger.id, CursorMove(standing.version, position))

    def _ids(self, trigger: ReadyTrigger) -> dict[str, str]:
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
        occasion = Occasion(
            digest=occasion_digest("event", fields["event_id"]),
            source=MessageSource.EVENT,
            cause=place.cause,
            hops=place.hops,
            payload=payload_of(fields, place),
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
        occasion = Occasion(
            digest=occasion_digest("file", version, standing.since_n, state.count),
            source=MessageSource.EVENT,
            payload=changes_payload(setting["folder"], changes),
        )
        self._sender.fire(trigger, occasion, move)


def _time_cursor(trigger: ReadyTrigger, time: int) -> CursorMove:
    """Up to which time a schedule was looked at, since the event that it counts from: such a time may lie before that
    event, where the clock was ahead then and was set back."""
    return CursorMove(trigger.standing.version, time, str(trigger.standing.since_n))
