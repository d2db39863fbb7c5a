"""What an erasure would take, what it would leave and why, before anything is done."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import groupby

from msgspec import Struct

from weft.kernel.enums import SessionStatus
from weft.kernel.errors import ContentMissing
from weft.ledger.erasing.verbatim import copies_of_sessions, copies_that_need
from weft.ledger.read.access import READ_LEDGER, access_of
from weft.ledger.read.content_uses import About, ContentUse, Report, TaggedNodes, Uses, find_uses
from weft.ledger.read.sessions import sessions_containing
from weft.ledger.read.targets import Resolve, Target, find_target
from weft.ledger.upkeep.copy_register import KnownCopy, known_copies
from weft.ledger.views.recorded_events import stream_of
from weft.ledger.views.rows import SESSION, SessionRow, load_session, load_turn
from weft.ledger.views.values import remainder_of
from weft.store.authorship import counts
from weft.store.erased_contents import is_husk
from weft.store.port import ReadTxn, Store
from weft.store.sql import Sql, rows_in

CONVERSATION = "conversation"
TURN_STREAMS = ("run", "import")
"""Streams that tell of a turn."""


class ContentToErase(Struct, frozen=True, gc=False, kw_only=True):
    """A content that would go."""

    ref: str
    size: int
    what: str
    """The kind of event that brought it, and where in it."""
    turn_id: str | None = None
    session_id: str | None = None


class SharedContent(Struct, frozen=True, kw_only=True):
    """A content of what was named that stays, since others use it too."""

    ref: str
    size: int
    what: str
    used_by: tuple[str, ...]
    """Turns, sessions and other streams, a few of them."""


class AffectedSession(Struct, frozen=True, gc=False, kw_only=True):
    """A session that contains, or once contained, something that would go."""

    id: str
    label: str
    status: str
    named: bool
    """It was named itself; otherwise it is a fork, or shares a turn."""


class SharedTurn(Struct, frozen=True, gc=False, kw_only=True):
    """A turn of a named session that stays, since other sessions' threads contain it."""

    id: str
    sessions: tuple[str, ...]


class UntaggedNode(Struct, frozen=True, gc=False, kw_only=True):
    """A turn, session, message or event that loses tags whose words stay, since others have them too."""

    node: str
    tags: tuple[str, ...]
    """References of the words."""


class ErasurePlan(Struct, frozen=True, kw_only=True):
    """What would be erased. `until` is the event that it was made at."""

    contents: tuple[ContentToErase, ...]
    bytes: int
    turns: tuple[str, ...]
    """Turns that were named, themselves or by their session or tree."""
    reached: tuple[str, ...]
    """Other turns that would lose a content."""
    messages: int
    tool_calls: int
    sessions: tuple[AffectedSession, ...]
    rooms: tuple[str, ...]
    """Ids of conversations in which a content would go."""
    subagents: tuple[str, ...]
    """Sessions that the named ones started; they stay unless they are named too."""
    held: tuple[SharedTurn, ...]
    stays: tuple[SharedContent, ...]
    erased_already: int
    copies: tuple[KnownCopy, ...]
    untagged: tuple[UntaggedNode, ...]
    """Backups and exports that may hold it."""
    until: int
    named_sessions: tuple[str, ...]
    renames: bool
    """A label, an alias or an agent's name goes with it."""
    verbatim: int
    """How many of the contents are stretches of imported sources."""
    sources: tuple[str, ...]
    """References of the names of imported files among the contents."""

    @property
    def is_done(self) -> bool:
        """Nothing is left to be taken: no content, no tag, and no session that was named and still stands."""
        standing = any(session.named and session.status != SessionStatus.DELETED for session in self.sessions)
        return not (self.contents or self.untagged or standing)


_SHOWING = "SELECT t.id FROM substitution s JOIN turn t ON t.n = s.turn WHERE s.replacement_n IN"
"""Turns that show what an event says in the place of what was recorded."""


def make_plan(
    store: Store, names: str | Sequence[str], resolve: Resolve, *, tree: bool, everywhere: bool, report: Report
) -> ErasurePlan:
    store.catch_up()
    with store.read() as txn:
        target = find_target(txn, names, tree, resolve)
        nodes = _nodes(txn.sql, target)
        about = _admissions(txn.sql, target) | _substitutions(txn, target)
        uses = find_uses(txn.facts, target.streams(), target.contents, everywhere, report, nodes, about)
        return _plan(store, txn, target, uses, everywhere)


def _plan(store: Store, txn: ReadTxn, target: Target, uses: Uses, everywhere: bool) -> ErasurePlan:
    sizes, erased = _sizes(txn, uses.inside)
    shared = _shared(txn, uses, everywhere, target.contents)
    going = [ref for ref in sizes if ref not in shared]
    reached = _reached_turns(txn.sql, target, uses)
    sessions = tuple(_affected(txn, target, [*target.turns, *reached], uses))
    copies = _verbatim(txn, going, sessions, [*target.turns, *reached])
    remainders = _remainders(txn, uses.inside)
    sizes |= copies | remainders
    going += [ref for ref in (*copies, *remainders) if ref not in going]
    messages, calls = _counted(txn.sql, target.turns)
    return ErasurePlan(
        contents=tuple(_doomed(ref, sizes[ref], uses, is_remainder=ref in remainders) for ref in going),
        bytes=sum(sizes[ref] for ref in going),
        turns=tuple(target.turns),
        reached=reached,
        messages=messages,
        tool_calls=calls,
        sessions=sessions,
        rooms=tuple(sorted(name for kind, _, name in map(_split, uses.reached) if kind == CONVERSATION)),
        subagents=tuple(_subagents(txn, target)),
        held=tuple(SharedTurn(id=turn, sessions=sessions) for turn, sessions in target.held.items()),
        stays=tuple(_staying(txn, ref, sizes[ref], uses) for ref in sizes if ref in shared and ref not in copies),
        erased_already=erased,
        copies=_copies(store, txn, going),
        untagged=tuple(_untagged(txn.sql, uses, set(going), sizes)),
        until=txn.facts.tip().n,
        named_sessions=tuple(target.sessions),
        renames=any(ref in uses.names for ref in going),
        verbatim=len(copies),
        sources=tuple(ref.hex() for ref in going if any(map(_is_file, uses.of(ref)))),
    )


def _shared(txn: ReadTxn, uses: Uses, everywhere: bool, named: Collection[bytes]) -> set[bytes]:
    """Contents that others use, too. A turn that was erased itself uses nothing any more: it left them to others."""
    if everywhere:
        return set()
    erased: dict[str, bool] = {}

    def is_erased(use: ContentUse) -> bool:
        kind, _, name = use.stream.partition(":")
        if kind not in TURN_STREAMS:
            return False
        if name not in erased:
            erased[name] = _is_erased(txn, name)
        return erased[name]

    return {ref for ref, outside in uses.outside.items() if ref not in named and not all(map(is_erased, outside))}


def _admissions(sql: Sql, target: Target) -> dict[int, tuple[str | None, str | None]]:
    """The events that admitted the messages which these turns took: they hold the same words."""
    rows = rows_in(sql, "SELECT n, turn FROM inbox WHERE turn IN", list(target.turns))
    return {n: (turn, None) for n, turn in rows}


def _substitutions(txn: ReadTxn, target: Target) -> dict[int, tuple[str | None, str | None]]:
    """The events that substituted what these turns say, and those that are shown instead; but for what another turn
    says or shows, too."""
    of_number = {turn.n: turn.id for turn in target.turns.values()}
    columns = "SELECT turn, n, replacement_n FROM substitution WHERE"
    rows = list(rows_in(txn.sql, f"{columns} turn IN", list(of_number)))
    others = set(_shown_elsewhere(txn, of_number, [replacement for _, _, replacement in rows]))
    events = [(event, of_number[turn]) for turn, n, replacement in rows for event in (n, replacement)]
    return {event: (turn, None) for event, turn in events if event not in others and not _is_of_run(txn, event)}


def _shown_elsewhere(txn: ReadTxn, named: Collection[int], replacements: Sequence[int]) -> Iterator[int]:
    """Those of the events that another turn shows which was not erased itself."""
    query = "SELECT s.replacement_n, t.n, t.id FROM substitution s JOIN turn t ON t.n = s.turn WHERE s.replacement_n IN"
    for replacement, number, turn in rows_in(txn.sql, query, replacements):
        if number not in named and not _is_erased(txn, turn):
            yield replacement


def _is_erased(txn: ReadTxn, turn: str) -> bool:
    return any(counts(txn, n) for (n,) in txn.sql.all("SELECT n FROM erasure WHERE turn = ?", (turn,)))


def _is_of_run(txn: ReadTxn, n: int) -> bool:
    line = txn.facts.line(n)
    return line is not None and stream_of(n, line).startswith("run:")


def _nodes(sql: Sql, target: Target) -> TaggedNodes:
    """What is named and can have tags: turns with their messages, and sessions."""
    nodes: dict[str, About] = {turn: (turn, None) for turn in target.turns}
    of_number = {turn.n: turn.id for turn in target.turns.values()}
    for message, number in rows_in(sql, "SELECT id, turn FROM message WHERE turn IN", list(of_number)):
        nodes[message] = (of_number[number], None)
    nodes |= {session: (None, session) for session in target.sessions}
    return TaggedNodes(frozenset(node for (node,) in sql.all("SELECT DISTINCT node FROM node_tag")), nodes)


def _untagged(sql: Sql, uses: Uses, going: set[bytes], sizes: dict[bytes, int]) -> Iterator[UntaggedNode]:
    for node, tags in uses.tags.items():
        has_tags = sql.one("SELECT 1 FROM node_tag WHERE node = ?", (node,)) is not None
        if has_tags and (left := tuple(ref.hex() for ref in tags if ref in sizes and ref not in going)):
            yield UntaggedNode(node=node, tags=left)


def _reached_turns(sql: Sql, target: Target, uses: Uses) -> tuple[str, ...]:
    streams = (stream.partition(":") for stream in uses.reached)
    found = list(
        rows_in(sql, "SELECT id FROM turn WHERE id IN", [name for kind, _, name in streams if kind in TURN_STREAMS])
    )
    found += rows_in(sql, _SHOWING, _outside_runs(uses))
    return tuple(sorted({id for (id,) in found if id not in target.turns}))


def _outside_runs(uses: Uses) -> list[int]:
    """Events of ledgers' own streams that use a content which goes wherever it is used."""
    return [
        use.n
        for ref, found in uses.outside.items()
        if uses.everywhere is None or ref in uses.everywhere
        for use in found
        if use.stream.startswith("ledger:")
    ]


def _verbatim(
    txn: ReadTxn, going: Sequence[bytes], sessions: Sequence[AffectedSession], turns: Sequence[str]
) -> dict[bytes, int]:
    """The verbatim copies that go along, with their sizes."""
    if not going:
        return {}
    numbers = copies_of_sessions(txn, [session.id for session in sessions], turns)
    numbers |= set(copies_that_need(txn, set(going)))
    rows = rows_in(txn.sql, "SELECT ref, size FROM content WHERE length(salt) > 0 AND n IN", sorted(numbers))
    return {bytes(ref): size for ref, size in rows}


def _split(stream: str) -> tuple[str, str, str]:
    return stream.partition(":")


def _is_file(use: ContentUse) -> bool:
    return (use.kind, use.path) == ("sighting", "file")


def _sizes(txn: ReadTxn, refs: Iterable[bytes]) -> tuple[dict[bytes, int], int]:
    """The sizes of contents that are here, and how many are erased already."""
    sizes: dict[bytes, int] = {}
    erased = 0
    for ref in refs:
        n = txn.facts.find_content(ref)
        row = None if n is None else txn.sql.one("SELECT size, salt FROM content WHERE n = ?", (n,))
        if row is not None and row[1]:
            sizes[ref] = row[0]
        erased += row is not None and not row[1]
    return sizes, erased


def _remainders(txn: ReadTxn, refs: Iterable[bytes]) -> dict[bytes, int]:
    """What is shown in place of contents that are erased already, with its sizes."""
    numbers = (txn.facts.find_content(ref) for ref in refs)
    erased = [n for n in numbers if n is not None and is_husk(txn.sql, n)]
    remainders = [remainder for n in erased if (remainder := remainder_of(txn.facts, n)) is not None]
    rows = rows_in(txn.sql, "SELECT ref, size FROM content WHERE length(salt) > 0 AND n IN", remainders)
    return {bytes(ref): size for ref, size in rows}


def _copies(store: Store, txn: ReadTxn, going: Sequence[bytes]) -> tuple[KnownCopy, ...]:
    """Where backups lie is told to whoever may read the whole ledger."""
    if not access_of(txn).may_whole(READ_LEDGER):
        return ()
    numbers = [n for ref in going if (n := txn.facts.find_content(ref)) is not None]
    return tuple(known_copies(store, txn, min(numbers))) if numbers else ()


def _doomed(ref: bytes, size: int, uses: Uses, *, is_remainder: bool) -> ContentToErase:
    turn, session = uses.about.get(ref, (None, None))
    what = "content_erased remainder" if is_remainder else _what(ref, uses)
    return ContentToErase(ref=ref.hex(), size=size, what=what, turn_id=turn, session_id=session)


def _what(ref: bytes, uses: Uses) -> str:
    found = uses.inside.get(ref) or uses.outside.get(ref)
    return f"{found[0].kind} {found[0].path}" if found else "sighting raw"


def _staying(txn: ReadTxn, ref: bytes, size: int, uses: Uses) -> SharedContent:
    users = tuple(dict.fromkeys(_user(use) for use in uses.outside[ref] if _is_readable(txn, use)))
    return SharedContent(ref=ref.hex(), size=size, what=_what(ref, uses), used_by=users)


def _is_readable(txn: ReadTxn, use: ContentUse) -> bool:
    """Whether it can be told who uses a content."""
    access = access_of(txn)
    kind, _, name = use.stream.partition(":")
    turn = load_turn(txn.sql, name) if kind in TURN_STREAMS else None
    if access.is_unlimited or (turn is not None and access.may_read_turn(turn)):
        return True
    return kind in ("session", "import") and access.readable(load_session(txn.sql, name)) is not None


def _user(use: ContentUse) -> str:
    kind, _, name = use.stream.partition(":")
    return f"turn {name}" if kind == "run" else f"{kind} {name}"


def _counted(sql: Sql, turns: Iterable[str]) -> tuple[int, int]:
    rows = list(rows_in(sql, "SELECT messages, calls FROM turn WHERE id IN", turns))
    return sum(row[0] for row in rows), sum(row[1] for row in rows)


def _affected(txn: ReadTxn, target: Target, turns: Sequence[str], uses: Uses) -> Iterable[AffectedSession]:
    """Those named first, then those that ever contained one of the turns, or tell a content of their own."""
    places = sorted(rows_in(txn.sql, "SELECT segment, depth FROM turn WHERE id IN", turns))
    found: dict[str, SessionRow] = dict(target.sessions)
    for segment, some in groupby(places, key=lambda place: place[0]):
        for row in sessions_containing(txn, segment, next(some)[1]):
            found.setdefault(row.id, row)
    for stream in sorted(uses.reached):
        kind, _, name = stream.partition(":")
        session = load_session(txn.sql, name) if kind in ("session", "import") else None
        if session is not None:
            found.setdefault(session.id, session)
    for row in found.values():
        yield AffectedSession(id=row.id, label=row.label, status=row.status, named=row.id in target.sessions)


def _subagents(txn: ReadTxn, target: Target) -> Iterable[str]:
    query = f"{SESSION.select} WHERE status <> 'deleted' AND parent_session IN"
    rows = (SessionRow(*row) for row in rows_in(txn.sql, query, target.sessions))
    return (row.label for row in rows if row.id not in target.sessions and access_of(txn).may_read(row))


def numbers_of(txn: ReadTxn, plan: ErasurePlan) -> list[int]:
    found = [(doomed.ref, txn.facts.find_content(bytes.fromhex(doomed.ref))) for doomed in plan.contents]
    missing = [ref for ref, n in found if n is None]
    if missing:
        raise ContentMissing(missing[0])
    return [n for _, n in found if n is not None]
