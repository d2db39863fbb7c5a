"""Erasing: one transaction that writes the tombstones and takes the bytes away, then the files are made clean.

Killed before the commit, nothing has happened. After it every reader sees the contents as erased; old bytes may still
lie in free pages, in the write-ahead log or in a label, and a mark says so. Whoever opens the ledger next finishes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from msgspec import UNSET, Struct, UnsetType

from weft.kernel.enums import SessionStatus
from weft.kernel.errors import ErasureChanged, StoreError
from weft.kernel.ledger_events import ContentErased, NodeTagged, NodeUntagged, SessionArchived
from weft.ledger.erasing.plan import ErasurePlan, numbers_of
from weft.ledger.erasing.verbatim import forget_sources
from weft.ledger.imports import provisional
from weft.ledger.model import DEFAULT_AGENT
from weft.ledger.read.content_uses import references
from weft.ledger.read.sessions import sessions_containing
from weft.ledger.reports import usage_totals
from weft.ledger.runs.worker_answers import end_worker
from weft.ledger.search import passages, vectors
from weft.ledger.secrets import scan as secrets
from weft.ledger.sessions.heads import require_session, stream_of
from weft.ledger.upkeep.copy_register import KnownCopy
from weft.ledger.upkeep.recompute import VIEWS_STALE, rebuild, silent
from weft.ledger.views import codeblocks, metadata_figures
from weft.ledger.views.recorded_events import decoded
from weft.ledger.views.rows import load_turn
from weft.ledger.views.values import text_of
from weft.ledger.write.append import Append, LedgerWriter
from weft.ledger.write.commands import forget_requests
from weft.store.erased_contents import IN_LOG, ErasedContents, note_finished, note_rewritten, unfinished
from weft.store.port import ReadTxn, Store, WriteTxn
from weft.store.sql import rows_in

ROW_EVENTS = 128
RIGHT = "content:erase"
FORGETTERS: list[Callable[[Store, WriteTxn, ErasedContents], None]] = [
    codeblocks.forget,
    metadata_figures.forget,
    passages.forget,
    secrets.forget,
    provisional.forget,
    vectors.forget,
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
        writer.write(lambda append: _write(writer.store, append, plan, reason, remainders))
    return Erasure(
        contents=len(plan.contents),
        bytes=plan.bytes,
        turns=len(plan.turns) if plan.contents else 0,
        sessions=0 if plan.is_done else len(plan.named_sessions),
        erased_already=plan.erased_already,
        stays=len(plan.stays),
        copies=plan.copies,
        complete=_finished(writer.store),
    )


def _finished(store: Store) -> bool:
    """The erasure itself is done by now; a disk that has no room to write the files anew only delays the rest."""
    try:
        return finish(store)
    except StoreError:
        return False


def _write(store: Store, append: Append, plan: ErasurePlan, reason: str, remainders: Remainders) -> None:
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
            stream_of(append, row, DEFAULT_AGENT).add(SessionArchived, status=SessionStatus.DELETED)
            end_worker(append, append.view.session(row.id))
    append.seal_and_forget()
    if remainders:
        passages.forget(store, append.txn, ErasedContents((), (*plan.turns, *plan.reached)))  # indexes what is left
    if renames:
        _note_stale(append)


def _names_spawn_calls(append: Append, plan: ErasurePlan) -> bool:
    """Does the id of a call that started a session go? A session's row has it as text."""
    contents = set(numbers_of(ReadTxn(append.sql, append.txn.facts), plan))
    calls = append.sql.all("SELECT call_id FROM tool_call WHERE spawned IS NOT NULL")
    calls += append.sql.all("SELECT spawn_call FROM session WHERE spawn_call_name IS NOT NULL")
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
        what = unfinished(txn.sql)
        stale = txn.sql.one("SELECT 1 FROM local WHERE key = ?", (VIEWS_STALE,)) is not None
    if what is None:
        return True
    if stale:
        rebuild(store, silent)
        codeblocks.catch_up(store)
    clean = store.empty_log(patience) if what.endswith(IN_LOG) else store.rewrite(patience)
    if clean:
        store.write(lambda txn: note_finished(txn.sql, what))
    elif not what.endswith(IN_LOG):
        store.write(lambda txn: note_rewritten(txn.sql, what))
    return clean
