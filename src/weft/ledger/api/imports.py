"""Other tools' history: the way in, and what was kept of its sources."""

from __future__ import annotations

from typing import TYPE_CHECKING

from weft.kernel.authority import IMPORTING
from weft.kernel.errors import InvalidInput
from weft.ledger.api.base import LedgerBase, LedgerPart
from weft.ledger.arguments import checked_count, checked_record, checked_text
from weft.ledger.read.revisions import require
from weft.ledger.search.passages import catch_up_if_far_behind
from weft.ledger.search.prepared_words import PreparedWords
from weft.ledger.write.append import reads_whole, requires

if TYPE_CHECKING:
    from weft.ledger.imports import ImportWriter, ProvisionalTurn, SourceRange


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
            if txn.sql.one("SELECT 1 FROM provisional LIMIT 1") is None:  # mostly: then nothing need be loaded
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
