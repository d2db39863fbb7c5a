"""The straight way of an ordinary turn: one call to the server, `append_turn` of own_0022.sql.

On the general way a writer takes the lock, asks, makes its turn and sends the rows, and everybody else waits meanwhile.
Here the turn is made before: by the very same work, run on what is remembered of its session and on provisional numbers
(`ProvisionalSql`). What it left goes to the server in one call, which takes the lock, sees whether all that was
remembered is still so, gives events and contents the numbers that come next, chains the events and writes the rows. The
receipt is made from its reply.

Work that asks for anything else, or leaves rows that the call has no place for, goes the general way; so does a turn
that the server refuses. Nothing has happened then, and the general way says what is wrong, if anything is.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from hashlib import sha256
from typing import Any, NoReturn

from msgspec import Struct
from msgspec.json import decode

from weft.kernel.clock import Clock
from weft.kernel.contents import SALT_BYTES, BorrowedSalts, SaltSource
from weft.kernel.errors import WeftError
from weft.store.fact_log import FactWriter, Key, LogTip, RecentContents, StoredContentRow
from weft.store.port import StraightTurn, WriteTxn
from weft.store.postgres.connection import PostgresAddress, PostgresSql, ServerCall, flush_and_ask
from weft.store.sql import Insert, Question, Row, Sql
from weft.store.sql_store import WriteWork

EVENTS_FROM, CONTENTS_FROM = 1 << 61, 1 << 62
"""Provisional numbers of events and of contents are larger than these; no ledger has so many of either."""
_DIGITS = str(EVENTS_FROM)[:12], str(CONTENTS_FROM)[:12]
"""What every provisional number begins with, should one stand in a text."""
_RENUMBERED = {
    "turn": frozenset({"n", "system"}),
    "message": frozenset({"turn", "text"}),
    "tool_call": frozenset({"turn", "call_id", "params", "result"}),
    "history": frozenset({"n"}),
    "thread_key": frozenset[str](),
}
"""The columns in which `append_turn` looks for provisional numbers."""
_MOVING = frozenset({"head", "head_segment", "head_depth", "moves", "since", "last_event", "updated_at"})
"""What `append_turn` changes of a session."""
_SENT = _MOVING | {"n", "id"}
"""What it is told of one."""
_VERSION = "CAST(CAST({}.xmin AS TEXT) AS BIGINT)"
_ONE_ROW, _SOME_ROWS = (
    frozenset({"log", "turn", "session", "history", "thread_key"}),
    frozenset({"message", "tool_call", "content"}),
)
HASH_BYTES = 32
HEADER_BYTES = HASH_BYTES + SALT_BYTES + HASH_BYTES
MOST_BYTES = 16 * 1024 * 1024
"""Of a turn's contents and events: a larger one goes in several statements, for a call has to fit into one message."""
LOCKS = 256
REMEMBERED = 512
"""So many sessions are remembered at most."""
CALL_NAME = b"weft_append_turn"
NUMBERS, BYTES, VERSIONS, ROWS = 6, 2, 3, 6
IS_BINARY = (*(False,) * NUMBERS, *(True,) * BYTES, False, False, False, True, *(False,) * (VERSIONS + ROWS))
"""Which values of the call are bytes: those of the events, and the contents in one piece."""
STATEMENT = f"SELECT * FROM append_turn({', '.join(f'${place}' for place in range(1, len(IS_BINARY) + 1))})"
DONE, KNOWN = "done", "known"
UNUSUAL, FAILED = "unusual", "failed"
NOBODY = b"\x00"


class UnusualTurn(Exception):
    """The turn has something about it that the call has no place for."""


class ProvisionalSql:
    """A transaction that is yet to come: the one question is answered from memory, and rows are kept."""

    def __init__(self, question: Question, answer: Row) -> None:
        self._question, self._answer = question, answer
        self.inserts: dict[str, Insert] = {}
        self.rows: dict[str, list[Row]] = {}
        self.is_unusual = False

    def fetch_row(self, sql: str, values: Sequence[Any] = ()) -> Row:
        if (sql, tuple(values)) != self._question:
            self._refuse(sql)
        return self._answer

    def fetch_rows(self, sql: str, values: Sequence[Any] = ()) -> list[Row]:
        return [self.fetch_row(sql, values)]

    def iterate_rows(self, sql: str, values: Sequence[Any] = ()) -> Iterator[Row]:
        yield self.fetch_row(sql, values)

    def run(self, sql: str, values: Sequence[Any] = ()) -> None:
        self._refuse(sql)

    def run_many(self, sql: str, rows: Iterable[Sequence[Any]]) -> None:
        self._refuse(sql)

    def add(self, insert: Insert, rows: Sequence[Row]) -> None:
        if self.inserts.setdefault(insert.table, insert) is not insert:
            self._refuse(insert.statement(1))
        self.rows.setdefault(insert.table, []).extend(rows)

    def _refuse(self, what: str) -> NoReturn:
        self.is_unusual = True  # also if whoever asked can do without an answer
        raise UnusualTurn(what)


class ProvisionalContents(RecentContents):
    """What a store knows of contents; any other is taken for new, and the server says so if it is not."""

    def __init__(self, known: RecentContents) -> None:
        super().__init__()
        self.seen, self.filled, self.by_key = known.seen, known.filled, known.by_key

    def ask(self, sql: Sql, keys: Iterable[Key]) -> None:
        self.answered(keys, ())


class KnownStanding(Struct, frozen=True):
    """What a straight turn's question is answered, and which transactions wrote the rows of session, lease and head: as
    long as these are the rows' last writers, the answer is the same."""

    row: Row
    versions: tuple[int | None, int | None, int | None]


class TurnCall(Struct, frozen=True):
    """A turn that was made with provisional numbers, and the values of the call that appends it."""

    straight: StraightTurn
    result: Any
    id: str
    events: int
    session: Row
    lease: Row
    lease_version: int | None
    turn_row: Row
    """The rows of which the answer to its question is made once it is there, and who wrote that of the lease."""
    contents: list[Row]
    values: list[bytes | None]
    """Those of the call."""
    salts: BorrowedSalts

    def restated(self, tip: LogTip) -> Any:
        return self.straight.restate(self.result, tip)


class StraightAppends:
    """The straight way of one store, and what it remembers of sessions."""

    def __init__(
        self, address: PostgresAddress, schema: int, recent: RecentContents, salts: SaltSource, clock: Clock
    ) -> None:
        self._lock, self._schema = address.lock, schema
        self.call = ServerCall(CALL_NAME, STATEMENT, IS_BINARY, flush_and_ask(address.listening))
        self._recent, self._salts, self._clock = recent, salts, clock
        self._standings: dict[Question, KnownStanding] = {}
        self.can_retry = False
        """The last turn was refused for contents that are known now: made again, it can refer to them."""
        self.is_heard = True
        """Whether anybody listened for commits when the last turn was flushed."""
        self.verdicts: Counter[str] = Counter()
        """How often the server said what; turns that were not sent are `unusual`, or `failed` where making them raised
        what no caller's work raises."""
        self.locks: deque[tuple[int, int]] = deque(maxlen=LOCKS)
        """Where the log ended with the last turns, and when each took the lock: microseconds of the server's clock."""

    def forget(self) -> None:
        self._standings.clear()

    def make_provisional(self, sql: PostgresSql, work: WriteWork, serial: int) -> TurnCall | None:
        """The turn that the work makes, if nothing about it is unusual. Nothing is changed in the database."""
        straight = work.straight
        if straight is None or self._recent.seen < 0:
            return None
        standing = self._standings.get(straight.question) or _read_standing(sql, straight)
        if standing is None:
            return None
        provisional, salts = ProvisionalSql(straight.question, standing.row), BorrowedSalts(self._salts)
        facts = FactWriter(
            provisional,
            recent=ProvisionalContents(self._recent),
            log_tip=LogTip(EVENTS_FROM, b"", CONTENTS_FROM),
            salts=salts,
            now_ms=self._clock.now_ms(),
        )
        try:
            result = work.run(WriteTxn(provisional, facts, serial=serial, is_provisional=True))
            facts.flush()
            return self._turn(straight, result, standing, provisional, salts)
        except Exception as error:  # whatever it is, on the general way it is found out whether it is so
            salts.return_all()
            self.verdicts[UNUSUAL if isinstance(error, UnusualTurn | WeftError) else FAILED] += 1
            return None

    def _turn(
        self,
        straight: StraightTurn,
        result: Any,
        standing: KnownStanding,
        provisional: ProvisionalSql,
        salts: BorrowedSalts,
    ) -> TurnCall:
        """What the work left, as values of the call; `UnusualTurn` where it has no place for them."""
        rows, inserts, parts = provisional.rows, provisional.inserts, straight.parts
        if provisional.is_unusual or not _ONE_ROW <= rows.keys() <= _ONE_ROW | _SOME_ROWS or standing.row[-1]:
            raise UnusualTurn("tables")
        if (inserts["session"].columns, inserts["turn"].columns) != (parts.session, parts.turn):
            raise UnusualTurn("columns")
        (session,), (turn,), (log_row,) = rows["session"], rows["turn"], rows["log"]
        if turn[parts.turn.index("parent")] != standing.row[parts.session.index("head")]:
            raise UnusualTurn("parent")
        new_rows = {
            table: [_composite_text(inserts[table].columns, row, renumbered) for row in rows.get(table, ())]
            for table, renumbered in _RENUMBERED.items()
        }
        (new_turn,), (move,), (key,) = (new_rows[name] for name in ("turn", "history", "thread_key"))
        several = [_array_text(map(_quoted_value, new_rows[name])) for name in ("message", "tool_call")]
        composites = (_moved_session(parts.session, standing.row, session), new_turn, *several, move, key)
        contents, lines = rows.get("content", []), log_row[-1]
        if len(lines) + sum(row[5] for row in contents) > MOST_BYTES:
            raise UnusualTurn("size")
        ids = b"".join([sha256(line).digest() for line in lines.split(b"\n")])
        numbers = (self._lock, self._schema, self._recent.erasures, *self._seen_and_filled(contents), log_row[2])
        values = [
            *[b"%d" % number for number in numbers],
            ids,
            lines,
            *_packed_contents(contents),
            *[None if version is None else b"%d" % version for version in standing.versions],
            *[composite.encode() for composite in composites],
        ]
        lease = standing.row[len(session) : len(session) + len(parts.lease)]
        return TurnCall(
            straight, result, turn[parts.turn.index("id")], log_row[1],
            session, lease, standing.versions[1], turn, contents, values, salts,
        )  # fmt: skip

    def _seen_and_filled(self, contents: Sequence[Row]) -> tuple[int, int]:
        """Up to where, and from where on, this ledger's program knows the contents of their tree."""
        if not contents:
            return CONTENTS_FROM, 0
        return max(self._recent.seen, self._recent.seen_in.get(contents[0][1], 0)), self._recent.filled

    def send(self, sql: PostgresSql, turn: TurnCall) -> LogTip | None:
        """Where the log ends with the turn; None where it was refused, and nothing has happened."""
        self._standings.pop(turn.straight.question, None)
        (*row, _, heard) = sql.call(turn.values, self.call)
        verdict, n, chain, content, newer, locked_at, written_by = _turn_answer(row)
        self.is_heard = heard != NOBODY
        self.verdicts[verdict] += 1
        self.can_retry = verdict == KNOWN
        for number, digest, ref in newer:  # of the tree whose contents the turn has
            self._recent.by_key[turn.contents[0][1], bytes.fromhex(digest)] = StoredContentRow(
                number, bytes.fromhex(ref)
            )
        if verdict != DONE:
            turn.salts.return_all()
            return None
        self.locks.append((n, locked_at))
        tip = LogTip(n, chain, content)
        self._settle(turn, tip, written_by)
        return tip

    def _settle(self, turn: TurnCall, tip: LogTip, written_by: int) -> None:
        """The turn is there: what is remembered gets the numbers that it has."""
        recent, amount = self._recent, len(turn.contents)
        before = tip.contents - amount
        for k, (_, tree, ref, _, digest, *_) in enumerate(turn.contents, before + 1):
            recent.by_key[tree, digest] = StoredContentRow(k, ref)
            recent.seen_in[tree] = tip.contents
        if recent.seen == before:
            recent.seen = tip.contents
        recent.newest = max(recent.newest, tip.contents)
        if len(self._standings) >= REMEMBERED:
            self._standings.clear()
        row = [_renumbered_value(value, tip.n - turn.events, before) for value in turn.turn_row]
        self._standings[turn.straight.question] = KnownStanding(
            (*turn.session, *turn.lease, *row, 0), (written_by, turn.lease_version, written_by)
        )


def _read_standing(sql: PostgresSql, straight: StraightTurn) -> KnownStanding | None:
    """The versions first: if somebody writes in between, they are too old, and the server refuses the turn. Both as the
    server has them now, whatever was foreseen."""
    question, values = straight.question
    versions = f"SELECT {', '.join(_VERSION.format(table) for table in 'slt')}{straight.parts.source}"
    version_rows, rows = sql.ask_together([(versions, values), (question, values)])
    return KnownStanding(rows[0], version_rows[0]) if rows and version_rows else None


def _moved_session(columns: Sequence[str], before: Row, after: Row) -> str:
    """What `append_turn` needs of a session; `UnusualTurn` where a turn changed something else of it."""
    needed: list[Any] = []
    for column, old, new in zip(columns, before, after, strict=False):
        if column not in _SENT and old != new:
            raise UnusualTurn("session")
        needed.append(new if column in _SENT else None)
    return _composite_text(columns, tuple(needed), frozenset())


def _renumbered_value(value: Any, n: int, content: int) -> Any:
    if type(value) is not int or value < EVENTS_FROM:
        return value
    return value - CONTENTS_FROM + content if value >= CONTENTS_FROM else value - EVENTS_FROM + n


def _composite_text(columns: Sequence[str], row: Row, renumbered: frozenset[str]) -> str:
    """A row as PostgreSQL reads it; provisional numbers stand in these columns alone."""
    fields: list[str] = []
    for column, value in zip(columns, row, strict=True):
        if value is None:
            fields.append("")
        elif isinstance(value, str):
            if _DIGITS[0] in value or _DIGITS[1] in value or "\0" in value:
                raise UnusualTurn(column)
            fields.append(_quoted_value(value))
        elif isinstance(value, bytes):
            fields.append(f'"\\\\x{value.hex()}"')
        elif value >= EVENTS_FROM and column not in renumbered:
            raise UnusualTurn(column)
        else:
            fields.append(str(value))
    return f"({','.join(fields)})"


def _quoted_value(value: str) -> str:
    """One value among others, in a row or an array."""
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _packed_contents(contents: Sequence[Row]) -> tuple[bytes, bytes, bytes, bytes]:
    """Their tree; where each begins and how long it is; and all of them in one piece."""
    starts, pieces, place = list[str](), list[bytes](), 1
    for _, tree, ref, salt, digest, size, shown, data in contents:
        header = ref + salt + digest
        if shown is not None or data is None or len(header) != HEADER_BYTES or tree != contents[0][1] or tree < 0:
            raise UnusualTurn("content")
        starts.append(str(place))
        pieces += (header, data)
        place += HEADER_BYTES + size
    tree = contents[0][1] if contents else 0
    return (
        b"%d" % tree,
        _array_text(starts).encode(),
        _array_text(str(row[5]) for row in contents).encode(),
        b"".join(pieces),
    )


def _array_text(items: Iterable[str]) -> str:
    return f"{{{','.join(items)}}}"


def _turn_answer(row: Sequence[bytes | None]) -> tuple[str, int, bytes, int, list[tuple[int, str, str]], int, int]:
    """The columns that `append_turn` gives, from the server's binary form."""
    verdict, n, chain, content, newer, locked_at, written_by = row
    last_n, last_content, at, writer = [
        int.from_bytes(value or b"", "big") for value in (n, content, locked_at, written_by)
    ]
    return (verdict or b"").decode(), last_n, chain or b"", last_content, decode(newer) if newer else [], at, writer
