"""Erasing: what it would take, what it would leave and why, before anything is done; then one
transaction that writes the tombstones and takes the bytes away, also verbatim copies of imported
sources; then the files are made clean.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import groupby

from msgspec import UNSET, Struct, UnsetType

from weft.kernel.enums import SessionStatus
from weft.kernel.errors import ContentMissing, ErasureChanged, StoreError
from weft.kernel.ledger_events import ContentErased, NodeTagged, NodeUntagged, SessionArchived
from weft.ledger.broker.workers import end_worker
from weft.ledger.imports import sources
from weft.ledger.imports.sources import HEAD_BYTES, REF_BYTES, count_of_references, references_in
from weft.ledger.model import DEFAULT_AGENT
from weft.ledger.read import search_index
from weft.ledger.read.access import READ_LEDGER, access_of
from weft.ledger.read.content_uses import (
    About,
    ContentUse,
    ContentUses,
    Report,
    Resolve,
    TaggedNodes,
    Target,
    find_target,
    find_uses,
    references,
)
from weft.ledger.read.sessions import sessions_containing
from weft.ledger.reports import usage_totals
from weft.ledger.secrets import scan as secrets
from weft.ledger.upkeep.ledger_copy import KnownCopy, known_copies
from weft.ledger.upkeep.verify import VIEWS_STALE, rebuild, silent
from weft.ledger.views import sightings
from weft.ledger.views import turns as views_turns
from weft.ledger.views.rows import (
    SESSION,
    SessionRow,
    decoded,
    load_session,
    load_turn,
    remainder_of,
    stream_of,
    text_of,
)
from weft.ledger.write.sessions import require_session
from weft.ledger.write.sessions import stream_of as stream_of_session
from weft.ledger.write.transaction import Append, LedgerWriter, forget_requests
from weft.store.fact_log import (
    IN_LOG,
    ErasedContents,
    is_erased_content,
    note_finished,
    note_rewritten,
    unfinished_erasure,
)
from weft.store.port import ReadTxn, Store, WriteTxn
from weft.store.replicas import counts
from weft.store.sql import Sql, rows_in

# --- Verbatim copies of imported sources: whoever loses a content loses the copies that spell it out.


def copies_of_sessions(txn: ReadTxn, sessions: Iterable[str], turns: Iterable[str]) -> set[int]:
    """Numbers of the stretches kept of these sessions, and of the sessions that these turns were seen in first."""
    numbers = {n for (n,) in rows_in(txn.sql, "SELECT n FROM session WHERE id IN", sessions)}
    numbers |= {n for (n,) in rows_in(txn.sql, "SELECT session FROM turn WHERE session IS NOT NULL AND id IN", turns)}
    return {n for (n,) in rows_in(txn.sql, "SELECT content FROM kept WHERE session IN", numbers)}


def copies_that_need(txn: ReadTxn, refs: set[bytes]) -> Iterator[int]:
    """Numbers of the stretches that were compressed against one of these contents."""
    for (n,) in txn.sql.fetch_rows("SELECT DISTINCT content FROM kept ORDER BY content"):
        row = txn.sql.fetch_row("SELECT salt FROM content WHERE n = ?", (n,))
        if row is not None and row[0] and not refs.isdisjoint(_dictionary_references(txn, n)):
            yield n


def _dictionary_references(txn: ReadTxn, n: int) -> list[bytes]:
    """The references at the head of a stretch, without reading all of it where that can be."""
    row = txn.sql.fetch_row("SELECT substr(bytes, 1, ?) FROM content WHERE n = ?", (HEAD_BYTES, n))
    head = bytes(row[0]) if row and row[0] is not None else txn.facts.content(n)
    wanted = HEAD_BYTES + REF_BYTES * count_of_references(head)
    if len(head) < wanted and row and row[0] is not None:
        row = txn.sql.fetch_row("SELECT substr(bytes, 1, ?) FROM content WHERE n = ?", (wanted, n))
        head = bytes(row[0]) if row and row[0] is not None else b""
    return references_in(head)


def forget_sources(txn: WriteTxn, turns: Iterable[str], names: Iterable[str]) -> None:
    """Native ids and file names of what is erased, as importing remembers them."""
    for turn in turns:
        txn.sql.run("DELETE FROM import_name WHERE turn = (SELECT n FROM turn WHERE id = ?)", (turn,))
        txn.sql.run("DELETE FROM import_wait WHERE child = ?", (turn,))
    for name in names:
        txn.sql.run("DELETE FROM import_source WHERE name = ?", (name,))


# --- What an erasure would take, what it would leave and why, before anything is done.

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
        nodes = _tagged_nodes(txn.sql, target)
        about = _admission_events(txn.sql, target) | _substitution_events(txn, target)
        uses = find_uses(txn.facts, target.streams(), target.contents, everywhere, report, nodes, about)
        return _erasure_plan(store, txn, target, uses, everywhere)


def _erasure_plan(store: Store, txn: ReadTxn, target: Target, uses: ContentUses, everywhere: bool) -> ErasurePlan:
    sizes, erased = _content_sizes(txn, uses.inside)
    shared = _shared_contents(txn, uses, everywhere, target.contents)
    going = [ref for ref in sizes if ref not in shared]
    reached = _reached_turns(txn.sql, target, uses)
    sessions = tuple(_affected_sessions(txn, target, [*target.turns, *reached], uses))
    copies = _verbatim_copies(txn, going, sessions, [*target.turns, *reached])
    remainders = _remainder_sizes(txn, uses.inside)
    sizes |= copies | remainders
    going += [ref for ref in (*copies, *remainders) if ref not in going]
    messages, calls = _message_counts(txn.sql, target.turns)
    return ErasurePlan(
        contents=tuple(_content_to_erase(ref, sizes[ref], uses, is_remainder=ref in remainders) for ref in going),
        bytes=sum(sizes[ref] for ref in going),
        turns=tuple(target.turns),
        reached=reached,
        messages=messages,
        tool_calls=calls,
        sessions=sessions,
        rooms=tuple(sorted(name for kind, _, name in map(_split_stream, uses.reached) if kind == CONVERSATION)),
        subagents=tuple(_subagent_labels(txn, target)),
        held=tuple(SharedTurn(id=turn, sessions=sessions) for turn, sessions in target.held.items()),
        stays=tuple(
            _shared_content(txn, ref, sizes[ref], uses) for ref in sizes if ref in shared and ref not in copies
        ),
        erased_already=erased,
        copies=_known_copies(store, txn, going),
        untagged=tuple(_untagged_nodes(txn.sql, uses, set(going), sizes)),
        until=txn.facts.tip().n,
        named_sessions=tuple(target.sessions),
        renames=any(ref in uses.names for ref in going),
        verbatim=len(copies),
        sources=tuple(ref.hex() for ref in going if any(map(_is_file, uses.of(ref)))),
    )


def _shared_contents(txn: ReadTxn, uses: ContentUses, everywhere: bool, named: Collection[bytes]) -> set[bytes]:
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


def _admission_events(sql: Sql, target: Target) -> dict[int, tuple[str | None, str | None]]:
    """The events that admitted the messages which these turns took: they hold the same words."""
    rows = rows_in(sql, "SELECT n, turn FROM inbox WHERE turn IN", list(target.turns))
    return {n: (turn, None) for n, turn in rows}


def _substitution_events(txn: ReadTxn, target: Target) -> dict[int, tuple[str | None, str | None]]:
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
    return any(counts(txn, n) for (n,) in txn.sql.fetch_rows("SELECT n FROM erasure WHERE turn = ?", (turn,)))


def _is_of_run(txn: ReadTxn, n: int) -> bool:
    line = txn.facts.line(n)
    return line is not None and stream_of(n, line).startswith("run:")


def _tagged_nodes(sql: Sql, target: Target) -> TaggedNodes:
    """What is named and can have tags: turns with their messages, and sessions."""
    nodes: dict[str, About] = {turn: (turn, None) for turn in target.turns}
    of_number = {turn.n: turn.id for turn in target.turns.values()}
    for message, number in rows_in(sql, "SELECT id, turn FROM message WHERE turn IN", list(of_number)):
        nodes[message] = (of_number[number], None)
    nodes |= {session: (None, session) for session in target.sessions}
    return TaggedNodes(frozenset(node for (node,) in sql.fetch_rows("SELECT DISTINCT node FROM node_tag")), nodes)


def _untagged_nodes(sql: Sql, uses: ContentUses, going: set[bytes], sizes: dict[bytes, int]) -> Iterator[UntaggedNode]:
    for node, tags in uses.tags.items():
        has_tags = sql.fetch_row("SELECT 1 FROM node_tag WHERE node = ?", (node,)) is not None
        if has_tags and (left := tuple(ref.hex() for ref in tags if ref in sizes and ref not in going)):
            yield UntaggedNode(node=node, tags=left)


def _reached_turns(sql: Sql, target: Target, uses: ContentUses) -> tuple[str, ...]:
    streams = (stream.partition(":") for stream in uses.reached)
    found = list(
        rows_in(sql, "SELECT id FROM turn WHERE id IN", [name for kind, _, name in streams if kind in TURN_STREAMS])
    )
    found += rows_in(sql, _SHOWING, _outside_runs(uses))
    return tuple(sorted({id for (id,) in found if id not in target.turns}))


def _outside_runs(uses: ContentUses) -> list[int]:
    """Events of ledgers' own streams that use a content which goes wherever it is used."""
    return [
        use.n
        for ref, found in uses.outside.items()
        if uses.everywhere is None or ref in uses.everywhere
        for use in found
        if use.stream.startswith("ledger:")
    ]


def _verbatim_copies(
    txn: ReadTxn, going: Sequence[bytes], sessions: Sequence[AffectedSession], turns: Sequence[str]
) -> dict[bytes, int]:
    """The verbatim copies that go along, with their sizes."""
    if not going:
        return {}
    numbers = copies_of_sessions(txn, [session.id for session in sessions], turns)
    numbers |= set(copies_that_need(txn, set(going)))
    rows = rows_in(txn.sql, "SELECT ref, size FROM content WHERE length(salt) > 0 AND n IN", sorted(numbers))
    return {bytes(ref): size for ref, size in rows}


def _split_stream(stream: str) -> tuple[str, str, str]:
    return stream.partition(":")


def _is_file(use: ContentUse) -> bool:
    return (use.kind, use.path) == ("sighting", "file")


def _content_sizes(txn: ReadTxn, refs: Iterable[bytes]) -> tuple[dict[bytes, int], int]:
    """The sizes of contents that are here, and how many are erased already."""
    sizes: dict[bytes, int] = {}
    erased = 0
    for ref in refs:
        n = txn.facts.find_content(ref)
        row = None if n is None else txn.sql.fetch_row("SELECT size, salt FROM content WHERE n = ?", (n,))
        if row is not None and row[1]:
            sizes[ref] = row[0]
        erased += row is not None and not row[1]
    return sizes, erased


def _remainder_sizes(txn: ReadTxn, refs: Iterable[bytes]) -> dict[bytes, int]:
    """What is shown in place of contents that are erased already, with its sizes."""
    numbers = (txn.facts.find_content(ref) for ref in refs)
    erased = [n for n in numbers if n is not None and is_erased_content(txn.sql, n)]
    remainders = [remainder for n in erased if (remainder := remainder_of(txn.facts, n)) is not None]
    rows = rows_in(txn.sql, "SELECT ref, size FROM content WHERE length(salt) > 0 AND n IN", remainders)
    return {bytes(ref): size for ref, size in rows}


def _known_copies(store: Store, txn: ReadTxn, going: Sequence[bytes]) -> tuple[KnownCopy, ...]:
    """Where backups lie is told to whoever may read the whole ledger."""
    if not access_of(txn).may_whole(READ_LEDGER):
        return ()
    numbers = [n for ref in going if (n := txn.facts.find_content(ref)) is not None]
    return tuple(known_copies(store, txn, min(numbers))) if numbers else ()


def _content_to_erase(ref: bytes, size: int, uses: ContentUses, *, is_remainder: bool) -> ContentToErase:
    turn, session = uses.about.get(ref, (None, None))
    what = "content_erased remainder" if is_remainder else _use_words(ref, uses)
    return ContentToErase(ref=ref.hex(), size=size, what=what, turn_id=turn, session_id=session)


def _use_words(ref: bytes, uses: ContentUses) -> str:
    found = uses.inside.get(ref) or uses.outside.get(ref)
    return f"{found[0].kind} {found[0].path}" if found else "sighting raw"


def _shared_content(txn: ReadTxn, ref: bytes, size: int, uses: ContentUses) -> SharedContent:
    users = tuple(dict.fromkeys(_user_words(use) for use in uses.outside[ref] if _is_readable(txn, use)))
    return SharedContent(ref=ref.hex(), size=size, what=_use_words(ref, uses), used_by=users)


def _is_readable(txn: ReadTxn, use: ContentUse) -> bool:
    """Whether it can be told who uses a content."""
    access = access_of(txn)
    kind, _, name = use.stream.partition(":")
    turn = load_turn(txn.sql, name) if kind in TURN_STREAMS else None
    if access.is_unlimited or (turn is not None and access.may_read_turn(turn)):
        return True
    return kind in ("session", "import") and access.readable(load_session(txn.sql, name)) is not None


def _user_words(use: ContentUse) -> str:
    kind, _, name = use.stream.partition(":")
    return f"turn {name}" if kind == "run" else f"{kind} {name}"


def _message_counts(sql: Sql, turns: Iterable[str]) -> tuple[int, int]:
    rows = list(rows_in(sql, "SELECT messages, calls FROM turn WHERE id IN", turns))
    return sum(row[0] for row in rows), sum(row[1] for row in rows)


def _affected_sessions(
    txn: ReadTxn, target: Target, turns: Sequence[str], uses: ContentUses
) -> Iterable[AffectedSession]:
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


def _subagent_labels(txn: ReadTxn, target: Target) -> Iterable[str]:
    query = f"{SESSION.select} WHERE status <> 'deleted' AND parent_session IN"
    rows = (SessionRow(*row) for row in rows_in(txn.sql, query, target.sessions))
    return (row.label for row in rows if row.id not in target.sessions and access_of(txn).may_read(row))


def numbers_of(txn: ReadTxn, plan: ErasurePlan) -> list[int]:
    found = [(doomed.ref, txn.facts.find_content(bytes.fromhex(doomed.ref))) for doomed in plan.contents]
    missing = [ref for ref, n in found if n is None]
    if missing:
        raise ContentMissing(missing[0])
    return [n for _, n in found if n is not None]


# --- Erasing: one transaction that writes the tombstones and takes the bytes away, then the files are made clean.

ROW_EVENTS = 128
RIGHT = "content:erase"
FORGETTERS: list[Callable[[Store, WriteTxn, ErasedContents], None]] = [
    views_turns.forget,
    sightings.forget,
    search_index.forget_passages,
    secrets.forget,
    sources.forget,
    search_index.forget_vectors,
    usage_totals.forget,
]
"""Views and local state that tell of contents: called once the bytes are gone, in the same transaction. A view that
keeps words and is not here brings them back to light."""

CHANGED = "what was planned to be erased has changed since"


class Erasure(Struct, frozen=True, kw_only=True):
    """What was erased."""

    contents: int
    bytes: int
    turns: int
    sessions: int
    erased_already: int
    stays: int
    copies: tuple[KnownCopy, ...]
    complete: bool
    """The files are clean, too; otherwise somebody still reads what was there before, and the next open goes on."""


Remainders = Mapping[str, str]
"""By reference of a content the text that is shown in its place."""


def erase(writer: LedgerWriter, plan: ErasurePlan, reason: str, remainders: Remainders) -> Erasure:
    """Carry a plan out, if it still says the truth."""
    if not plan.is_done:
        writer.write(lambda append: _write_erasure(writer.store, append, plan, reason, remainders))
    return Erasure(
        contents=len(plan.contents),
        bytes=plan.bytes,
        turns=len(plan.turns) if plan.contents else 0,
        sessions=0 if plan.is_done else len(plan.named_sessions),
        erased_already=plan.erased_already,
        stays=len(plan.stays),
        copies=plan.copies,
        complete=_try_finish(writer.store),
    )


def _try_finish(store: Store) -> bool:
    """The erasure itself is done by now; a disk that has no room to write the files anew only delays the rest."""
    try:
        return finish(store)
    except StoreError:
        return False


def _write_erasure(store: Store, append: Append, plan: ErasurePlan, reason: str, remainders: Remainders) -> None:
    _ensure_allowed(append, plan)
    _ensure_unchanged(append, plan)
    renames = plan.renames or _names_spawn_calls(append, plan)
    if plan.contents:
        _erase_contents(store, append, plan)
    if plan.contents or plan.untagged:
        _add_tombstones(append, plan, reason, remainders)
    for session in plan.named_sessions:
        row = require_session(append, session, RIGHT)
        if row.status != SessionStatus.DELETED:
            stream_of_session(append, row, DEFAULT_AGENT).add(SessionArchived, status=SessionStatus.DELETED)
            end_worker(append, append.view.session(row.id))
    append.seal_and_forget()
    if remainders:
        search_index.forget_passages(
            store, append.txn, ErasedContents((), (*plan.turns, *plan.reached))
        )  # indexes what is left
    if renames:
        _note_stale(append)


def _names_spawn_calls(append: Append, plan: ErasurePlan) -> bool:
    """Does the id of a call that started a session go? A session's row has it as text."""
    contents = set(numbers_of(ReadTxn(append.sql, append.txn.facts), plan))
    calls = append.sql.fetch_rows("SELECT call_id FROM tool_call WHERE spawned IS NOT NULL")
    calls += append.sql.fetch_rows("SELECT spawn_call FROM session WHERE spawn_call_name IS NOT NULL")
    return not contents.isdisjoint(number for (number,) in calls)


def _erase_contents(store: Store, append: Append, plan: ErasurePlan) -> None:
    reading = ReadTxn(append.sql, append.txn.facts)
    numbers = numbers_of(reading, plan)
    forget_sources(append.txn, plan.turns, [text_at(reading, ref) for ref in plan.sources])
    turns = (*plan.turns, *plan.reached)
    forget_requests(append.sql, (*turns, *_messages_of(append, turns, plan.named_sessions)))
    append.txn.facts.erase(numbers)
    for forget in FORGETTERS:
        forget(store, append.txn, ErasedContents(numbers, (*plan.turns, *plan.reached)))


def _messages_of(append: Append, turns: Sequence[str], sessions: Sequence[str]) -> list[str]:
    """Messages of inboxes that these turns took, or that were sent to these sessions."""
    taken = rows_in(append.sql, "SELECT message FROM inbox WHERE turn IN", list(turns))
    numbers = [append.view.session(session).n for session in sessions]
    return [
        message for (message,) in (*taken, *rows_in(append.sql, "SELECT message FROM inbox WHERE session IN", numbers))
    ]


def text_at(txn: ReadTxn, ref: str) -> str:
    return text_of(txn, txn.facts.find_content(bytes.fromhex(ref))) or ""


def _add_tombstones(append: Append, plan: ErasurePlan, reason: str, remainders: Remainders) -> None:
    """In the ledger's own stream, so that no turn's digest changes; and the ends of tags whose words stay."""
    why, stream = append.put_text(reason, "reason"), append.ledger_stream()
    for doomed in plan.contents:
        stream.add(
            ContentErased,
            content=doomed.ref,
            reason=why,
            turn=doomed.turn_id or UNSET,
            session=doomed.session_id or UNSET,
            remainder=_put_remainder(append, doomed.ref, remainders),
        )
        if len(append.lines) >= ROW_EVENTS:
            append.seal()
    for untagged in plan.untagged:
        stream.add(NodeUntagged, node=untagged.node, tags=untagged.tags)


def _put_remainder(append: Append, ref: str, remainders: Remainders) -> str | UnsetType:
    """The reference of what is left of a content. Its scope is the content's own, so that it is shared with nothing
    else, and can be erased without asking who uses it."""
    if ref not in remainders:
        return UNSET
    n = append.txn.facts.find_content(bytes.fromhex(ref))
    return append.contents_of(-(n or 0)).put_text(remainders[ref], "remainder")


def _note_stale(append: Append) -> None:
    """Labels and names are words in views: those are made anew from what is left."""
    append.sql.run(
        "INSERT INTO local(key, value) VALUES (?, ?) ON CONFLICT (key) DO UPDATE SET value = excluded.value",
        (VIEWS_STALE, f"erased at {append.txn.facts.tip().n}"),
    )


def _ensure_allowed(append: Append, plan: ErasurePlan) -> None:
    """Erasing needs the right over every session that contains one of the turns, not only over the one that made it;
    and over the whole ledger for what was said in a conversation, which everybody there has."""
    access = append.access
    if access.is_unlimited:
        return
    if plan.rooms:
        access.ensure_whole(RIGHT)
    for session in plan.named_sessions:
        require_session(append, session, RIGHT)
    reading = ReadTxn(append.sql, append.txn.facts)
    for turn in (*plan.turns, *plan.reached):
        row = load_turn(append.sql, turn)
        if row is None:
            raise ErasureChanged(CHANGED)
        access.ensure_turn(RIGHT, row, turn)
        if not all(access.may(RIGHT, session) for session in sessions_containing(reading, row.segment, row.depth)):
            raise access.authority.refusal(RIGHT, f"use {RIGHT!r} on turn {turn}, which another session contains")


def _ensure_unchanged(append: Append, plan: ErasurePlan) -> None:
    """Nobody has used these contents since, or gone on in what was named, or begun a turn there."""
    refs = {doomed.ref for doomed in plan.contents}
    streams = {f"session:{session}" for session in plan.named_sessions}
    streams |= {f"{kind}:{name}" for name in (*plan.turns, *plan.named_sessions) for kind in ("run", "import")}
    named = {*plan.turns, *plan.named_sessions}
    for n, line in append.txn.facts.lines(plan.until):
        event = decoded(n, line)
        is_tag = isinstance(event, NodeTagged) and event.node in named
        if is_tag or event.stream in streams or any(ref in refs for _, ref in references(event)):
            raise ErasureChanged(CHANGED)
    for turn in plan.turns:
        row = load_turn(append.sql, turn)
        if row is None or not row.closed:
            raise ErasureChanged(CHANGED)


def finish(store: Store, patience: float = 5.0) -> bool:
    """Make views anew that held erased words, and the files clean. True when nothing is left to be done.

    The database is written anew once; where somebody then still reads from before it, only the log waits.
    """
    with store.read() as txn:
        what = unfinished_erasure(txn.sql)
        stale = txn.sql.fetch_row("SELECT 1 FROM local WHERE key = ?", (VIEWS_STALE,)) is not None
    if what is None:
        return True
    if stale:
        rebuild(store, silent)
        views_turns.catch_up(store)
    clean = store.empty_log(patience) if what.endswith(IN_LOG) else store.rewrite(patience)
    if clean:
        store.write(lambda txn: note_finished(txn.sql, what))
    elif not what.endswith(IN_LOG):
        store.write(lambda txn: note_rewritten(txn.sql, what))
    return clean
