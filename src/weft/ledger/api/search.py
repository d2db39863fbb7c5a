"""Search: what was said and done, by its words."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from itertools import islice
from typing import Unpack

from weft.kernel.errors import InvalidInput, StoreError
from weft.ledger.api.base import LedgerBase
from weft.ledger.arguments import checked_flag, checked_names, checked_text
from weft.ledger.read.access import READ_LEDGER
from weft.ledger.read.pages import Page, mapped
from weft.ledger.read.projects import Projects
from weft.ledger.search import passages
from weft.ledger.search.filters import SearchFilters, as_filters
from weft.ledger.search.hits import Hit, to_hits
from weft.ledger.search.matches import Finder
from weft.ledger.search.query import parse_query
from weft.ledger.search.related_turns import RelatedTurns, find_related
from weft.ledger.search.session_names import named_sessions

MOMENT = 1.0
"""Seconds for which a search lets the index catch up before it looks through the rest by itself."""
INDEX_LAG_EVENTS = 128
"""So many events are looked through rather than indexed, which takes a commit."""


class SearchVerbs(LedgerBase):
    """What finds."""

    def search(
        self,
        words: str = "",
        *,
        limit: int | None = None,
        after: str | None = None,
        rank: bool = False,
        **filters: Unpack[SearchFilters],
    ) -> Page[Hit]:
        """Messages and tool calls that hold all these words, the newest first.

        `"a phrase"` stands together, as does what is typed without a space; the last word may be the beginning of one.
        Filters: session, role, tool, path, since, until (Unix ms, or words such as 'yesterday'; a day means all of it),
        model, project, origin. With `rank` the best come first, by the engine's own idea of it; these have no further
        pages, since what is recorded meanwhile changes the order.
        """
        query, ranked = parse_query(checked_text(words, "words")), checked_flag(rank, "rank")
        if ranked and after is not None:
            raise InvalidInput("ranked hits have no further pages", "raise the limit, or leave out rank")
        if ranked:
            self._writer.ensure_whole(READ_LEDGER)  # the engine ranks by the words of everything
        request = self._request("search", {"words": words, **filters}, limit, after)
        wanted = as_filters(filters, self._period(filters, request.now))
        if not query.phrases and not wanted.any:
            raise InvalidInput("there is nothing to search for", "give a word, or filter by role, tool or session")
        self._let_index_catch_up()
        with self._store.read() as txn:
            start = self._begin(request, txn)
            finder = Finder(
                txn, self._store.word_index(txn.sql), query, wanted, start.position, Projects(txn, self._repository_of)
            )
            if ranked:
                return Page(to_hits(txn, list(islice(finder.best(), request.limit))))
            return mapped(request.page(start, finder.newest()), partial(to_hits, txn))

    def search_sessions(self, words: str, *, limit: int | None = None, **filters: Unpack[SearchFilters]) -> list[Hit]:
        """Sessions whose title or project holds all these words, those with a title so first, then the latest first.

        Each is a hit with place `title` or `project`, at the turn where the session stands. Filters are those of
        `search`; one that speaks of messages or calls (session, role, tool, path, model) leaves nothing.
        """
        query = parse_query(checked_text(words, "words"))
        request = self._request("search_sessions", {"words": words, **filters}, limit, None)
        wanted = as_filters(filters, self._period(filters))
        with self._store.read() as txn:
            return named_sessions(txn, query, wanted, Projects(txn, self._repository_of))[: request.limit]

    def related_turns(self, text: str, *, also: Sequence[str] = ()) -> RelatedTurns:
        """Turns that share words with a text, each with the words that it shares; a bounded number of them.

        Only turns that a message can be routed to: the newest version of a turn, of a session that is active, not
        completed and no subagent's. `also` names further turns by their ids, such as those with a similar meaning; ids
        of turns that cannot be read are passed over.
        """
        checked_text(text, "text")
        ids = checked_names(also, "also")
        self._let_index_catch_up()
        with self._store.read() as txn:
            return find_related(txn, self._store.word_index(txn.sql), text, ids)

    def _let_index_catch_up(self) -> None:
        with suppress(StoreError):  # a full disk keeps the index behind; what it lacks is looked through instead
            if passages.lag_of(self._store) > INDEX_LAG_EVENTS:
                passages.catch_up(self._store, MOMENT, self._clock.monotonic)
