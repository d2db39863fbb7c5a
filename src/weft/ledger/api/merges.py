"""Merging in the small: turns and summaries of a branch, brought to another session with where they came from."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from msgspec import UNSET, UnsetType
from msgspec.json import decode, encode

from weft.kernel.enums import LinkReason
from weft.kernel.errors import InvalidInput, NotApplicable
from weft.ledger.api.base import WAIT, LedgerPart
from weft.ledger.api.lookups import ReadingLedger
from weft.ledger.arguments import checked_flag, checked_names, checked_text
from weft.ledger.model import Branch, Session, Turn
from weft.ledger.read.revisions import require
from weft.ledger.read.sessions import load_branches
from weft.ledger.sessions.merging import Pick, Provenance, Summary, Writer, merge, provenance
from weft.ledger.sessions.settling import SettleChoice, settle
from weft.ledger.sessions.unifying import Unification, UnifiedIds, separate, unify
from weft.ledger.views.rows import TurnRow
from weft.ledger.write.append import Append, Patience, requires
from weft.ledger.write.commands import Answer, keyed_command, once


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
        picks = [Pick(self._whole(name)) for name in names]
        sources = [pick.source.id for pick in picks]
        return self._merge(onto, picks, sources, LinkReason.CHERRY_PICK, None, expected, key, wait)

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
        tip = self._whole(branch)
        turns = self._merge(into, [Summary(tip, text)], [tip.id], LinkReason.SUMMARY, text, expected, key, wait)
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

        from weft.ledger.runs.worker_answers import end_worker

        def work(append: Append) -> Answer:
            def once_work() -> Answer:
                ids = unify(append, *names, summary, patience, key)
                end_worker(append, append.view.session(ids.archived))
                append.seal()
                return Answer(ids.turn, encode(ids).decode())

            return once(append, command, once_work)

        patience = Patience(self._writer, 0, self._ttl)
        answer = patience.keep_trying(lambda: self._writer.write(work))
        ids = decode(answer.details or "", type=UnifiedIds)
        return Unification(
            session=self._ledger._changed_session(ids.session),
            archived=self._ledger._changed_session(ids.archived),
            names=tuple(self._texts(ids.names)),
            summary=self._reader.turn(ids.turn),
        )

    def _texts(self, refs: Sequence[str]) -> Iterator[str]:
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
        patience = Patience(self._writer, 0, self._ttl)

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
        settle(self._writer, record.id, choice, reason, Patience(self._writer, 0, self._ttl))
        return self._ledger._changed_session(record.id)

    def _whole(self, name: str) -> TurnRow:
        with self._store.read() as txn:
            spot = self._resolve(txn, checked_text(name, "turn"))
        if spot.events is not None and spot.events < spot.turn.events:
            raise NotApplicable(f"{name} is inside a turn", "name the turn itself")
        return spot.turn

    def _merge(
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
        patience = Patience(self._writer, wait, self._ttl)
        target = self._ledger.session(checked_text(session, "session")).id
        command = keyed_command(why, key, [target, sources, text], self._writer.authority)

        def work(append: Append) -> Answer:
            return once(append, command, lambda: _answer(merge(append, target, expected, patience, key, writers)))

        answer = patience.keep_trying(lambda: self._writer.write(work))
        return [self._reader.turn(id) for id in decode(answer.details or "", type=list[str])]


def _answer(turns: list[str]) -> Answer:
    return Answer(turns[0], encode(turns).decode())
