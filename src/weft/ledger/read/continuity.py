"""What the next session has to know of one that is merged into it, as a text that needs no model.

Told are when the session was used, how many turns it has that the other does not share, what people asked in a
line each, and what was left open: a question without an answer, tasks that agents and subagents have not finished.
"""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct

from weft.kernel.clock import iso_from_ms
from weft.kernel.enums import LinkReason, TaskStatus, TurnType
from weft.ledger.model import UNDATED
from weft.ledger.read.access import Access
from weft.ledger.read.sessions import to_sessions
from weft.ledger.read.threads import Range, common_depth, ranges_to
from weft.ledger.read.turn_titles import load_subjects
from weft.ledger.views.program_rows import load_program
from weft.ledger.views.rows import SESSION, SessionRow, TurnRow, load_turn
from weft.store.port import ReadTxn

TOPICS = 20
"""So many questions, and so many open tasks, are told; the latest ones."""
LINE_CHARACTERS = 200
_OPEN_TASK_STATES = ("pending", "active", "blocked")


class Continuity(Struct, frozen=True, kw_only=True):
    """What a merged session leaves behind."""

    label: str
    turns: int
    """Those that the other session's thread does not share."""
    first_at: int | None
    last_at: int | None
    topics: tuple[str, ...]
    """What was asked, in a line each, turn by turn; of a long session the latest."""
    unresolved: tuple[str, ...]

    def text(self, actor: str) -> str:
        """The summary, in the name of whoever merges."""
        lines = [f"Session {self.label!r} was merged into this one by {actor}. {self._extent()}"]
        if self.topics:
            more = self.turns - len(self.topics)
            lines += ["", "Asked there, the latest last:" if more > 0 else "Asked there:"]
            lines += [f"- ({more} earlier or without words)"] if more > 0 else []
            lines += [f"- {topic}" for topic in self.topics]
        lines += ["", "Unresolved:" if self.unresolved else "Nothing was left unresolved."]
        return "\n".join([*lines, *(f"- {action}" for action in self.unresolved)])

    def _extent(self) -> str:
        if not self.turns:
            return "It had no turns of its own."
        turns = "1 turn" if self.turns == 1 else f"{self.turns} turns"
        if self.first_at is None or self.last_at is None:
            return f"It had {turns}."
        return f"It had {turns}, from {_minute(self.first_at)} to {_minute(self.last_at)}."


def _minute(moment_ms: int) -> str:
    return f"{iso_from_ms(moment_ms)[:16].replace('T', ' ')} UTC"


def load_continuity(txn: ReadTxn, session: SessionRow, into: SessionRow, access: Access) -> Continuity:
    """Of a session that is merged into another one. Programs and subagents that `access` may not read are left out."""
    ranges = _own_ranges(txn, session, into)
    turns, first_at, last_at = _extent(txn, ranges)
    latest = _latest_turns(txn, ranges)
    subjects = load_subjects(txn, latest)
    return Continuity(
        label=session.label,
        turns=turns,
        first_at=first_at,
        last_at=last_at,
        topics=tuple(_clipped(subjects[turn]) for turn in latest if subjects.get(turn)),
        unresolved=(*_unanswered(txn, session), *_open_tasks(txn, session, access), *_subagents(txn, session, access)),
    )


def _own_ranges(txn: ReadTxn, session: SessionRow, into: SessionRow) -> list[Range]:
    """The session's thread without what the other's thread has too."""
    ours, theirs = _thread(txn, session), _thread(txn, into)
    common = common_depth(ours, theirs)
    depth = common[1] if common else 0
    return [Range(part.segment, max(part.low, depth + 1), part.high, None) for part in ours if part.high > depth]


def _thread(txn: ReadTxn, session: SessionRow) -> list[Range]:
    if session.head_segment is None or session.head_depth is None:
        return []
    return ranges_to(txn.sql, session.head_segment, session.head_depth)


def _extent(txn: ReadTxn, ranges: list[Range]) -> tuple[int, int | None, int | None]:
    """How many turns, when the first began and when the last ended; of imported turns without a time only how many."""
    rows = [
        txn.sql.one(
            "SELECT count(*), min(CASE WHEN started_at <> ? THEN started_at END),"
            " max(CASE WHEN started_at <> ? THEN COALESCE(completed_at, started_at) END)"
            " FROM turn WHERE segment = ? AND depth BETWEEN ? AND ?",
            (UNDATED, UNDATED, part.segment, part.low, part.high),
        )
        for part in ranges
    ]
    found = [row for row in rows if row is not None]
    starts = [row[1] for row in found if row[1] is not None]
    ends = [row[2] for row in found if row[2] is not None]
    return sum(row[0] for row in found), min(starts, default=None), max(ends, default=None)


def _latest_turns(txn: ReadTxn, ranges: list[Range]) -> list[str]:
    """Ids of the latest turns, the oldest of them first."""
    turns: list[str] = []
    for part in reversed(ranges):
        rows = txn.sql.all(
            "SELECT id FROM turn WHERE segment = ? AND depth BETWEEN ? AND ? ORDER BY depth DESC LIMIT ?",
            (part.segment, part.low, part.high, TOPICS - len(turns)),
        )
        turns += [row[0] for row in rows]
        if len(turns) == TOPICS:
            break
    return turns[::-1]


def _unanswered(txn: ReadTxn, session: SessionRow) -> Iterator[str]:
    """The last question: of a turn that failed after the head, else of a head without a response."""
    row = txn.sql.one(
        "SELECT id FROM turn WHERE session = ? AND status <> 'completed' AND current = 1 AND n > COALESCE("
        "(SELECT h.n FROM history h WHERE h.session = ? ORDER BY h.k DESC LIMIT 1), 0) ORDER BY n DESC LIMIT 1",
        (session.n, session.n),
    )
    head = None if session.head is None else load_turn(txn.sql, session.head)
    turn = row[0] if row is not None else None if head is None or not _asks(txn, head) else head.id
    subject = None if turn is None else load_subjects(txn, [turn]).get(turn)
    if subject:
        yield f"not answered: {_clipped(subject)}"


def _asks(txn: ReadTxn, turn: TurnRow) -> bool:
    """Whether a turn has a question without a response. A summary of another session expects none."""
    if turn.response is not None or turn.type != TurnType.NORMAL:
        return False
    links = "SELECT 1 FROM link WHERE child = ? AND why = ?"
    return txn.sql.one(links, (turn.id, LinkReason.SUMMARY)) is None


def _open_tasks(txn: ReadTxn, session: SessionRow, access: Access) -> Iterator[str]:
    """Tasks that an agent works on in this session."""
    rows = txn.sql.all(
        "SELECT DISTINCT task FROM program WHERE session = ? AND deleted = 0 AND task IS NOT NULL ORDER BY task",
        (session.id,),
    )
    tasks = [task for row in rows if (task := load_program(txn.sql, row[0])) is not None]
    for task in tasks[-TOPICS:]:
        if task.state in _OPEN_TASK_STATES and not task.deleted and access.may_read_program(task):
            yield f"task {task.name} is {task.state}"


def _subagents(txn: ReadTxn, session: SessionRow, access: Access) -> Iterator[str]:
    """Subagents of this session that have not finished."""
    rows = txn.sql.all(f"{SESSION.select} WHERE parent_session = ? AND status = 'active' ORDER BY n", (session.id,))
    subagents = to_sessions(txn, [row for row in (SessionRow(*values) for values in rows) if access.may_read(row)])
    is_open = (TaskStatus.PENDING.value, TaskStatus.RUNNING.value)
    for subagent in [subagent for subagent in subagents if subagent.task_status in is_open][-TOPICS:]:
        yield f"subagent {subagent.label} is {subagent.task_status}"


def _clipped(line: str) -> str:
    return line if len(line) <= LINE_CHARACTERS else f"{line[: LINE_CHARACTERS - 1]}…"
