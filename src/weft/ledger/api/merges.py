"""The groups `compactions`, `merges` and `imports`: what is brought to a session beside its own
turns, which are summaries, turns of a branch with where they came from, and other tools'
history.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from msgspec import UNSET, UnsetType
from msgspec.json import decode, encode

from weft.kernel.authority import IMPORTING
from weft.kernel.enums import LinkReason
from weft.kernel.errors import InvalidInput, NotApplicable
from weft.ledger.api.base import WAIT, LedgerBase, LedgerPart
from weft.ledger.api.reading import ReadingLedger
from weft.ledger.api.recording import check_pins
from weft.ledger.arguments import checked_count, checked_flag, checked_names, checked_record, checked_text
from weft.ledger.model import Branch, Compaction, RecordedTurn, Session, Turn, UsageInput
from weft.ledger.read.contexts import compactions_of, load_compaction
from weft.ledger.read.revisions import require
from weft.ledger.read.search_index import PreparedWords, catch_up_if_far_behind
from weft.ledger.read.sessions import load_branches
from weft.ledger.views.rows import TurnRow
from weft.ledger.write import sessions
from weft.ledger.write.session_merges import (
    BranchSummary,
    Provenance,
    SettleChoice,
    TurnPick,
    Unification,
    UnifiedIds,
    Writer,
    merge,
    provenance,
    separate,
    settle,
    unify,
)
from weft.ledger.write.transaction import (
    Append,
    CommandAnswer,
    LeasePatience,
    keyed_command,
    reads_whole,
    requires,
    run_once,
)

if TYPE_CHECKING:
    from weft.ledger.imports import ImportWriter, ProvisionalTurn, SourceRange


# --- Compactions: recorded, chosen by sessions, and read.


class Compactions(LedgerPart):
    """`ledger.compactions`: summaries that stand for turns, and which one a session goes by."""

    @requires("compaction:record")
    def record(
        self,
        *,
        summary: str,
        session: str | None = None,
        parent: str | UnsetType | None = UNSET,
        through: str | None = None,
        first_kept: str | None = None,
        model: str = "unknown",
        provider: str | None = None,
        compaction_type: str = "summary",
        trigger: str | None = None,
        metadata: Any = None,
        tokens_before: int | None = None,
        tokens_after: int | None = None,
        summary_tokens: int | None = None,
        summarization_input_tokens: int | None = None,
        summarization_output_tokens: int | None = None,
        duration_ms: int | None = None,
        usage: UsageInput = None,
        wait: float = WAIT,
    ) -> RecordedTurn:
        """A compaction turn: `summary` stands for all turns through `through`; turns from `first_kept` on are kept.
        `usage` is what a provider reported for writing the summary: reports of usage count it."""
        check_pins(parent, UNSET)
        compaction = sessions.NewCompaction(
            summary=summary,
            through=through,
            first_kept=first_kept,
            model=model,
            provider=provider,
            compaction_type=compaction_type,
            trigger=trigger,
            metadata=metadata,
            tokens_before=tokens_before,
            tokens_after=tokens_after,
            summary_tokens=summary_tokens,
            summarization_input_tokens=summarization_input_tokens,
            summarization_output_tokens=summarization_output_tokens,
            duration_ms=duration_ms,
            usage=usage,
        )
        patience = LeasePatience(self._writer, wait, self._ttl)
        return sessions.record_compaction(self._writer, compaction, session=session, parent=parent, patience=patience)

    @requires("compaction:choose")
    def choose(self, session: str, compaction: str | None) -> None:
        """Let a session go by another compaction of its thread; None: by none, the whole history is seen."""
        sessions.choose_compaction(self._writer, session, compaction)

    def get(self, turn: str) -> Compaction:
        with self._store.read() as txn:
            return load_compaction(txn, self._resolve(txn, turn).turn.id)

    def of_thread(self, name: str) -> list[Compaction]:
        """The compactions of a session's thread or a turn's, the oldest first: those on it, and those beside it, which
        a session can choose."""
        with self._store.read() as txn:
            spot = self._resolve(txn, name)
            return [load_compaction(txn, turn) for turn in compactions_of(txn, spot.turn, spot.events)]


# --- Merging in the small: turns and summaries of a branch, brought to another session with where they came from.


class Merges(LedgerPart):
    """`ledger.merges`: brings back what a branch found, makes two sessions one, joins what replicas moved apart."""

    def __init__(self, ledger: ReadingLedger) -> None:
        super().__init__(ledger)
        self._reader = ledger

    @requires("turn:merge")
    def cherry_pick(
        self,
        turns: str | Sequence[str],
        *,
        onto: str,
        expected: str | UnsetType | None = UNSET,
        key: str | None = None,
        wait: float = WAIT,
    ) -> list[Turn]:
        """New turns on a session that say what these turns said, by the same contents, each naming its source. All of
        them, or none. A retry with the same `key` gives the turns that were made then."""
        names = checked_names(turns, "turn")
        if not names:
            raise InvalidInput("no turn was named", "name one turn or more")
        picks = [TurnPick(self._whole_turn(name)) for name in names]
        sources = [pick.source.id for pick in picks]
        return self._merge_sessions(onto, picks, sources, LinkReason.CHERRY_PICK, None, expected, key, wait)

    @requires("turn:merge")
    def summarize(
        self,
        branch: str,
        *,
        into: str,
        text: str,
        expected: str | UnsetType | None = UNSET,
        key: str | None = None,
        wait: float = WAIT,
    ) -> Turn:
        """A new turn on a session with a text about a branch, which it names by the branch's last turn."""
        if not checked_text(text, "summary").strip():
            raise InvalidInput("the summary is empty", "say what the branch found")
        tip = self._whole_turn(branch)
        turns = self._merge_sessions(
            into, [BranchSummary(tip, text)], [tip.id], LinkReason.SUMMARY, text, expected, key, wait
        )
        return turns[0]

    @requires("turn:merge")
    def unify(self, session: str, *, into: str, summary: str | None = None, key: str | None = None) -> Unification:
        """One session out of two that belong together, in one transaction. `session` is archived; its label and its
        aliases lead to `into`, where a new turn tells what is to be known of it: `summary`, or without one when it was
        used, what was asked there and what is unresolved. No tree is rewritten. Refused while a turn of either is being
        recorded."""
        if summary is not None and not checked_text(summary, "summary").strip():
            raise InvalidInput("the summary is empty", "say what is to be known, or leave it out")
        names = checked_text(session, "session"), checked_text(into, "session")
        command = keyed_command("unify", key, [*names, summary], self._writer.authority)

        from weft.ledger.broker.workers import end_worker

        def work(append: Append) -> CommandAnswer:
            def once_work() -> CommandAnswer:
                ids = unify(append, *names, summary, patience, key)
                end_worker(append, append.view.session(ids.archived))
                append.seal()
                return CommandAnswer(ids.turn, encode(ids).decode())

            return run_once(append, command, once_work)

        patience = LeasePatience(self._writer, 0, self._ttl)
        answer = patience.keep_trying(lambda: self._writer.write(work))
        ids = decode(answer.details or "", type=UnifiedIds)
        return Unification(
            session=self._ledger._changed_session(ids.session),
            archived=self._ledger._changed_session(ids.archived),
            names=tuple(self._contents_of(ids.names)),
            summary=self._reader.turn(ids.turn),
        )

    def _contents_of(self, refs: Sequence[str]) -> Iterator[str]:
        """The contents of these references that are still there."""
        with self._store.read() as txn:
            for ref in refs:
                n = txn.facts.find_content(bytes.fromhex(ref))
                if n is not None and (text := txn.facts.text(n)) is not None:
                    yield text

    @requires("session:archive")
    def separate(self, session: str) -> Session:
        """Undo `unify`: the archived session, by its id or by the label that it has now, is active again and has its
        label and aliases back. The summary stays where it is, and so do turns that came since."""
        patience = LeasePatience(self._writer, 0, self._ttl)

        def work(append: Append) -> str:
            separated = separate(append, session, patience)
            append.seal()
            return separated

        return self._ledger._changed_session(patience.keep_trying(lambda: self._writer.write(work)))

    def provenance(self, turn: str) -> list[Provenance]:
        """Which turns a turn was made from, by picking or summing up; then what was made from it."""
        with self._store.read() as txn:
            return provenance(txn, self._resolve(txn, turn).turn)

    def branches(self, session: str | None = None) -> list[Branch]:
        """Where other replicas' branches stand, of one session or of all: those that moved it elsewhere."""
        with self._store.read() as txn:
            return load_branches(txn, None if session is None else require(txn, session).n)

    @requires("session:settle")
    def settle(
        self,
        session: str,
        *,
        to: str | None = None,
        ours: bool = False,
        theirs: bool = False,
        fork: str | None = None,
        reason: str | None = None,
    ) -> Session:
        """Join the branches of a session: at a turn, where this ledger stands, where the other one stands, or as two
        sessions, of which `fork` labels the other's. Every replica follows once it has synced."""
        point = None if to is None else self._ledger.point(to)
        choice = SettleChoice(
            turn=None if point is None else point.turn_id,
            event=None if point is None else point.event_id,
            ours=checked_flag(ours, "ours"),
            theirs=checked_flag(theirs, "theirs"),
            fork=fork,
        )
        record = self._ledger.session(session)
        self._store.catch_up()
        settle(self._writer, record.id, choice, reason, LeasePatience(self._writer, 0, self._ttl))
        return self._ledger._changed_session(record.id)

    def _whole_turn(self, name: str) -> TurnRow:
        with self._store.read() as txn:
            spot = self._resolve(txn, checked_text(name, "turn"))
        if spot.events is not None and spot.events < spot.turn.events:
            raise NotApplicable(f"{name} is inside a turn", "name the turn itself")
        return spot.turn

    def _merge_sessions(
        self,
        session: str,
        writers: Sequence[Writer],
        sources: list[str],
        why: LinkReason,
        text: str | None,
        expected: str | UnsetType | None,
        key: str | None,
        wait: float,
    ) -> list[Turn]:
        patience = LeasePatience(self._writer, wait, self._ttl)
        target = self._ledger.session(checked_text(session, "session")).id
        command = keyed_command(why, key, [target, sources, text], self._writer.authority)

        def work(append: Append) -> CommandAnswer:
            return run_once(
                append, command, lambda: _turns_answer(merge(append, target, expected, patience, key, writers))
            )

        answer = patience.keep_trying(lambda: self._writer.write(work))
        return [self._reader.turn(id) for id in decode(answer.details or "", type=list[str])]


def _turns_answer(turns: list[str]) -> CommandAnswer:
    return CommandAnswer(turns[0], encode(turns).decode())


# --- Other tools' history: the way in, and what was kept of its sources.


class Imports(LedgerPart):
    """`ledger.imports`: the way in for other tools' history, and what was kept of its sources."""

    @requires("history:import", whole=True)
    def writer(
        self, origin: str, mapping: int, *, remap: bool = False, words: PreparedWords | None = None
    ) -> ImportWriter:
        """The way in for one origin's history; `mapping` numbers how its records become turns. `words` takes what
        search will ask for, as far as turns come with it."""
        from weft.ledger.imports import ImportWriter

        self._ledger.trust.ensure(IMPORTING)
        self._store.catch_up()
        return ImportWriter(
            self._writer, checked_text(origin, "origin"), checked_count(mapping, "mapping"), remap=remap, words=words
        )

    @reads_whole
    def index(self, words: PreparedWords | None = None, *, beyond: int | None = None) -> None:
        """Let search catch up where more events than `beyond` came since it last did, many where it is not given, or
        where no more `words` for it have room."""
        if words is not None:
            checked_record(words, PreparedWords, "words")
        most = None if beyond is None else checked_count(beyond, "beyond")
        catch_up_if_far_behind(self._store, None, self._clock.monotonic, words, most)

    @reads_whole
    def kept_sources(self, session_or_file: str) -> list[SourceRange]:
        """What was kept verbatim of the sources of a session, or of one source file, in order."""
        from weft.ledger.imports import kept_stretches

        name = checked_text(session_or_file, "session or file")
        with self._store.read() as txn:
            return kept_stretches(txn, name)

    def provisional(self, session: str | None = None) -> list[ProvisionalTurn]:
        """Turns that other tools are still writing, as they were last read: of a session, or of all, the latest first.
        They are no facts: they have no id, and go once they are turns or their source is gone."""
        with self._store.read() as txn:
            session_id = None if session is None else require(txn, session).id
            if txn.sql.fetch_row("SELECT 1 FROM provisional LIMIT 1") is None:  # mostly: then nothing need be loaded
                return []
            from weft.ledger.imports import provisional_turns

            return provisional_turns(txn, session_id)

    @requires("history:import", whole=True)
    def share_with(self, other: LedgerBase) -> None:
        """From now on imports here get the same ids as there. Whoever holds both ledgers can compare what they hold."""
        from weft.ledger.imports import adopt_secret, import_secret

        if not isinstance(other, LedgerBase):
            raise InvalidInput(f"other is {type(other).__name__}", "give an open ledger")
        adopt_secret(self._store, import_secret(other._store))
