"""Which threads a command runs again: those that are named, or a sample of the ledger's sessions."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import TYPE_CHECKING

from msgspec import Struct

from weft.kernel.errors import NotFound
from weft.surfaces.cli.default_session import place_in_latest, require_named_or_latest
from weft.surfaces.cli.filter_values import ensure_known_origin

if TYPE_CHECKING:
    from weft.ledger.api import Ledger
    from weft.runtime.thread_replay import ThreadRange
    from weft.surfaces.cli.call import Call

RANGE_MARK = ".."


class SessionSample(Struct, frozen=True, kw_only=True):
    """So many sessions, chosen by a seed among those that fit."""

    size: int
    seed: int = 0
    origin: str | None = None
    project: str | None = None
    since: str | None = None


def thread_range(call: Call, ledger: Ledger, name: str) -> ThreadRange:
    """`REV` is the whole thread to it, `REV..REV` the turns after the first one, `REV..` those to where the session
    stands that made it."""
    from weft.runtime.thread_replay import ThreadRange

    before, mark, last = name.partition(RANGE_MARK)
    if not mark or _is_session(ledger, name):
        point = ledger.point(place_in_latest(call, ledger, name))
        return ThreadRange(last=point.event_id or point.turn_id, session=point.session)
    after = ledger.turn(place_in_latest(call, ledger, before)) if before else None
    if not last and after is not None and after.session_id is not None:
        last = ledger.session(after.session_id).label
    point = ledger.point(require_named_or_latest(call, ledger, last or None))
    return ThreadRange(
        last=point.event_id or point.turn_id, after=None if after is None else after.id, session=point.session
    )


def _is_session(ledger: Ledger, name: str) -> bool:
    try:
        return ledger.session(name).label == name
    except NotFound:
        return False


def sampled_threads(ledger: Ledger, sample: SessionSample) -> list[ThreadRange]:
    """Threads of sessions that have turns; those of replays are left out. They are chosen by hashes of the seed and
    their ids, so that a session more or less changes little."""
    from weft.ledger.api import SessionFilter
    from weft.runtime.thread_replay import REPLAY_PREFIX, ThreadRange

    wanted = SessionFilter(origin=sample.origin, project=sample.project, since=sample.since)
    sessions = [listed.session for listed in ledger.listing().sessions(wanted).sessions]
    if not sessions:
        ensure_known_origin(ledger, sample.origin)
    fitting = [session for session in sessions if session.head and not session.label.startswith(REPLAY_PREFIX)]
    fitting.sort(key=lambda session: hashlib.sha256(f"{sample.seed}:{session.id}".encode()).digest())
    return [ThreadRange(last=str(session.head), session=session.label) for session in fitting[: sample.size]]


def threads_to_replay(
    call: Call, ledger: Ledger, names: Sequence[str], sample: SessionSample | None
) -> list[ThreadRange]:
    if sample is not None:
        return sampled_threads(ledger, sample)
    chosen = names or [require_named_or_latest(call, ledger, None)]
    return [thread_range(call, ledger, name) for name in chosen]
