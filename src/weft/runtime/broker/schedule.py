"""Which sessions a broker takes next, and when it looks at the ledger again.

Nothing here reads or writes. Among sessions of equal priority the one that was served longest ago goes first. Brokers
that share a ledger see the same sessions: whoever finds that others were quicker tries the next ones at times of its
own, after which it looks again whether they are still free. A broker that is alone never waits.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from zlib import crc32

from weft.ledger.api import WaitingSession

BEGINNING_TOGETHER = 8
"""So many sessions are taken at a time where nobody else was quicker for a while: what other brokers take meanwhile is
not tried here."""
BEGINNING_MS = 1000
"""A session that takes longer than this to begin with holds nobody up."""
BUSY_SECONDS = 0.25
"""How soon a session is looked at again that another broker holds."""
HELD_MS = 1000
"""How soon sessions are looked at again whose turns other brokers work on."""
FIRST_WINDOW_MS, LONGEST_WINDOW_MS = 50, 2000
"""Within how long a free session is tried, once another broker was quicker, and where that happens again and again."""
AHEAD_MS = 200
"""So much sooner than the others whoever served a session last may begin with it again."""
LONGEST_WAIT_MS = 30_000


class SessionSchedule:
    """The sessions that wait, as one broker sees them. Times are Unix milliseconds."""

    def __init__(self, owner: str, capacity: int) -> None:
        self._owner, self._capacity = owner, capacity
        self._not_before: dict[str, int] = {}
        self._turns_begun = 0
        self._served: dict[str, int] = {}
        """Which turn of this broker was the last of a session."""
        self._started_at: dict[str, int] = {}
        """When work on a session was begun that has no running turn yet."""
        self._free_since: dict[str, tuple[int, int]] = {}
        """By session, the message that waits longest there, and when it was first seen here."""
        self._from_others: set[str] = set()
        """Sessions that this broker is about to begin with and did not serve last."""
        self._window_ms = 0
        self._together = 1
        """So many sessions are taken at a time now."""
        self._look_at: int | None = None

    # --- what happened -------------------------------------------------------------------------------------------

    def postpone(self, session: str, until: int) -> None:
        self._not_before[session] = until

    def postponed_until(self, session: str) -> int:
        return self._not_before.get(session, 0)

    def start(self, session: str, now: int) -> None:
        """Work on a session begins."""
        self._started_at[session] = now

    def serve(self, session: str) -> None:
        """A turn of a session is about to be begun."""
        self._turns_begun += 1
        self._served[session] = self._turns_begun

    def run(self, session: str) -> None:
        """A turn of a session runs here: nobody else took it."""
        self._started_at.pop(session, None)
        if session in self._from_others:
            self._from_others.discard(session)
            self._window_ms = self._window_ms * 3 // 4
        self._together = min(self._together + 1, BEGINNING_TOGETHER)

    def lose(self, session: str, now: int, ms: int) -> None:
        """Somebody else has a session: it is looked at again after so many milliseconds, and later where others are
        quicker again and again."""
        self._from_others.discard(session)
        self.postpone(session, now + ms + self._window_ms)
        self._window_ms = min(max(FIRST_WINDOW_MS, 2 * self._window_ms), LONGEST_WINDOW_MS)
        self._together = 1

    def stop(self, session: str) -> None:
        """Work on a session is over."""
        self._started_at.pop(session, None)
        self._from_others.discard(session)

    # --- what comes next -----------------------------------------------------------------------------------------

    def choose(
        self, waiting: Sequence[WaitingSession], working: Collection[str], unleft: Collection[str], now: int
    ) -> Sequence[WaitingSession]:
        """The sessions to begin with now. `working`: those that this broker works on; `unleft`: those whose turn it
        holds and does not work on."""
        self._not_before = {session: until for session, until in self._not_before.items() if until > now}
        others = [one for one in waiting if one.session not in working and one.session not in self._not_before]
        free = [one for one in others if not one.is_held or one.session in unleft]
        ready_at = self._ready_times(free, now)
        ready = sorted(
            (one for one in free if ready_at[one.session] <= now), key=lambda one: (*self._urgency(one), one.oldest)
        )
        del ready[max(0, self._capacity - len(working)) :]
        ready.sort(key=lambda one: (*self._urgency(one), self._own_order(one)))
        beginning = sum(now - started < BEGINNING_MS for started in self._started_at.values())
        chosen = ready[: max(0, self._together - beginning)]
        self._from_others |= {one.session for one in chosen if one.served_by != self._owner}
        times = [at for at in ready_at.values() if at > now]
        if len(chosen) < len(ready) or len(free) < len(others):
            times.append(now + HELD_MS)
        self._look_at = min(times, default=None)
        return chosen

    def seconds_to_wait(self, due: int | None, now: int) -> float:
        """Until the next look at the ledger, where nothing happens before; `due`: when a parked turn can go on."""
        times = (*self._not_before.values(), due, self._look_at)
        until = min((time for time in times if time is not None and time > now), default=now + LONGEST_WAIT_MS)
        return max(0.01, min(until - now, LONGEST_WAIT_MS) / 1000)

    def _ready_times(self, free: Sequence[WaitingSession], now: int) -> dict[str, int]:
        self._free_since = {one.session: (one.oldest, self._since(one, now)) for one in free}
        return {one.session: self._free_since[one.session][1] + self._delay(one) for one in free}

    def _since(self, waiting: WaitingSession, now: int) -> int:
        oldest, since = self._free_since.get(waiting.session, (None, now))
        return since if oldest == waiting.oldest else now

    def _delay(self, waiting: WaitingSession) -> int:
        """Whoever served a session last goes before the others: it has what was said there."""
        if waiting.served_by == self._owner:
            return 0
        ahead = 0 if waiting.served_by is None else AHEAD_MS
        return ahead + (self._window_ms + self._own_order(waiting) % max(1, self._window_ms)) // 2

    def _urgency(self, waiting: WaitingSession) -> tuple[bool, int, int]:
        return (waiting.turn is None, -waiting.priority, self._served.get(waiting.session, 0))

    def _own_order(self, waiting: WaitingSession) -> int:
        """An order in which hardly two brokers begin with what is equally urgent."""
        return crc32(f"{self._owner} {waiting.oldest}".encode())
