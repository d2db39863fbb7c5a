"""What an erasure is asked for: contents, turns, sessions, whole trees, messages of conversations; and which turns of a
session are its own."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from operator import itemgetter

from msgspec import UNSET, Struct, field

from weft.kernel.clock import is_ulid
from weft.kernel.conversation_events import MessagePosted
from weft.kernel.errors import InvalidInput, NotApplicable, NotFound
from weft.kernel.facts import is_digest
from weft.ledger.arguments import checked_names
from weft.ledger.read.access import READ_LEDGER, access_of
from weft.ledger.read.content_uses import references
from weft.ledger.read.revisions import Revision, session_beside_turns
from weft.ledger.read.threads import ranges_to
from weft.ledger.views.recorded_events import decoded
from weft.ledger.views.rows import SESSION, TURN, SessionRow, TurnRow, crossings
from weft.store.port import ReadTxn
from weft.store.sql import Sql, rows_in

Resolve = Callable[[ReadTxn, str], Revision]


class Target(Struct):
    """Everything that was named, by what it is."""

    contents: dict[bytes, None] = field(default_factory=dict)
    turns: dict[str, TurnRow] = field(default_factory=dict)
    sessions: dict[str, SessionRow] = field(default_factory=dict)
    held: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Turns of a named session that stay, with the other sessions whose threads contain them."""

    def streams(self) -> dict[str, tuple[str | None, str | None]]:
        """The streams that tell of them, each with the turn or session that it is about."""
        found: dict[str, tuple[str | None, str | None]] = {}
        for turn in self.turns:
            found[f"run:{turn}"] = found[f"import:{turn}"] = (turn, None)
        for session in self.sessions:
            found[f"session:{session}"] = found[f"import:{session}"] = (None, session)
        return found


def find_target(txn: ReadTxn, names: str | Sequence[str], tree: bool, resolve: Resolve) -> Target:
    """A label or a session's id means the session, a reference its content, the id of a message of a conversation what
    it says, anything else a turn; with `tree` all turns of the tree that it belongs to, and the sessions that stand in
    it."""
    target, asked = Target(), checked_names(names, "name")
    if not asked:
        raise InvalidInput("nothing was named to be erased", "name a turn, a session or a content")
    for name in asked:
        _add(txn, target, name, tree, resolve)
    own = set(target.sessions)
    for session in list(target.sessions.values()) if not tree else ():
        _add_own_turns(txn, target, session, own)
    for turn in target.turns.values():
        if not turn.closed:
            raise NotApplicable(f"turn {turn.id} is still {turn.status}", "wait until it has ended, or fail it first")
    return target


def _add(txn: ReadTxn, target: Target, name: str, tree: bool, resolve: Resolve) -> None:
    access = access_of(txn)
    session = session_beside_turns(txn, name)
    if not tree and session is not None:
        target.sessions[session.id] = session
        return
    if not tree and access.may_whole(READ_LEDGER) and _is_content(txn, name):
        target.contents[bytes.fromhex(name)] = None
        return
    if not tree and session is None and (refs := _message_contents(txn, name)) is not None:
        target.contents |= dict.fromkeys(refs)
        return
    if tree and session is not None and session.head is None:
        raise NotFound("turn in session", session.label, "it has no head; name one of its turns")
    turn = resolve(txn, name if session is None or session.head is None else session.head).turn
    if tree:
        _add_tree(txn, target, turn.root)
    else:
        target.turns[turn.id] = turn


def _message_contents(txn: ReadTxn, name: str) -> list[bytes] | None:
    """The contents of a message of a conversation, by its id; told to whoever may read the whole ledger, as with
    contents."""
    if not is_ulid(name.upper()) or not access_of(txn).may_whole(READ_LEDGER):
        return None
    row = txn.sql.one("SELECT n FROM room_message WHERE id = ?", (name.upper(),))
    line = None if row is None else txn.facts.line(row[0])
    event = None if row is None or line is None else decoded(row[0], line)
    if not isinstance(event, MessagePosted):
        return None
    is_answer = event.turn is not UNSET  # what is kept beside an answer is the same of many
    return [bytes.fromhex(ref) for path, ref in references(event) if path.startswith("$.parts") or not is_answer]


def _is_content(txn: ReadTxn, name: str) -> bool:
    return is_digest(name.lower()) and txn.facts.find_content(bytes.fromhex(name)) is not None


def _add_tree(txn: ReadTxn, target: Target, root: int) -> None:
    """What can be read of a tree."""
    sql, access = txn.sql, access_of(txn)
    rows = sql.all(
        f"{TURN.select} WHERE segment IN (SELECT n FROM segment WHERE root = ?) ORDER BY n",
        (root,),
    )
    target.turns |= {row.id: row for row in (TurnRow(*row) for row in rows) if access.may_read_turn(row)}
    standing = sql.all(
        f"{SESSION.select} WHERE head_segment IN (SELECT n FROM segment WHERE root = ?) ORDER BY n", (root,)
    )
    target.sessions |= {row.id: row for row in (SessionRow(*row) for row in standing) if access.may_read(row)}


def _add_own_turns(txn: ReadTxn, target: Target, session: SessionRow, named: set[str]) -> None:
    """What a session made, and the thread that it stands on; but for turns that another session's thread contains.
    Sessions that cannot be read hold turns, too, and are not named."""
    sql, access = txn.sql, access_of(txn)
    rows = {row.id: row for row in (TurnRow(*row) for row in sql.all(f"{TURN.select} WHERE session = ?", (session.n,)))}
    if session.head_segment is not None and session.head_depth is not None:
        for part in ranges_to(sql, session.head_segment, session.head_depth):
            found = sql.all(
                f"{TURN.select} WHERE segment = ? AND depth BETWEEN ? AND ?", (part.segment, part.low, part.high)
            )
            rows |= {row.id: row for row in (TurnRow(*row) for row in found)}
    others = _standing_elsewhere(sql, {row.root for row in rows.values()}, named)
    for row in rows.values():
        holders = [n for n, _, reach in others if row.depth <= reach.get(row.segment, 0)]
        if holders:
            target.held[row.id] = tuple(
                label for n, label, _ in others if n in holders and (access.is_unlimited or access.session_of_number(n))
            )
        else:
            target.turns[row.id] = row


def _standing_elsewhere(sql: Sql, roots: Iterable[int], named: set[str]) -> list[tuple[int, str, dict[int, int]]]:
    """Other sessions, not deleted, whose threads reach into these trees, by label, with how deep each into which
    segment."""
    query = (
        "SELECT s.n, s.id, s.label, s.head_segment, s.head_depth FROM session s JOIN segment g ON g.n = s.head_segment"
        " WHERE s.status <> 'deleted' AND g.root IN"
    )
    found = []
    for n, id, label, segment, depth in rows_in(sql, query, sorted(_trees_that_lead_to(sql, set(roots)))):
        if id not in named:
            parts = ranges_to(sql, segment, depth, across=True)
            found.append((n, label, {part.segment: part.high for part in parts}))
    return sorted(found, key=itemgetter(1))


def _trees_that_lead_to(sql: Sql, roots: set[int]) -> set[int]:
    """These trees, and those whose threads go on in one of them across a link."""
    links = crossings(sql)
    if not links:
        return roots
    segments = {segment for spots in links.items() for segment, _ in spots}
    tree: dict[int, int] = dict(rows_in(sql, "SELECT n, root FROM segment WHERE n IN", segments))
    found = set(roots)
    while more := {tree[child] for (child, _), (above, _) in links.items() if tree[above] in found} - found:
        found |= more
    return found
