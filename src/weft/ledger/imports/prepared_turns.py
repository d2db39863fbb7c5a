"""Turns prepared for the ledger by whoever reads them: everything that can be made without looking into it.

Of a turn that is its contents, its events as they are if nobody knows it yet, and the words by which search finds its
texts; of some turns together the stretch of the source that is kept with them. So a worker of its own can do that while
the ledger is written. Whoever writes sees whether a turn hangs where it was supposed to; else its events are made anew.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from msgspec import UNSET
from msgspec.structs import replace

from weft.kernel.contents import ROW_BYTES, Prepared, text_bytes
from weft.kernel.errors import WeftError
from weft.kernel.fields import ForkPoint
from weft.kernel.imported import ImportSecret, imported_turn_id
from weft.ledger.imports.chain import EventDraft, encoded_chain, json_content, value_bytes
from weft.ledger.imports.kept_sources import WORTH, RawFile, pack
from weft.ledger.imports.natives import (
    Item,
    NativeCall,
    NativeMessage,
    NativeSession,
    NativeTurn,
    PackedStretch,
    PreparedTurn,
    TurnDraft,
)
from weft.ledger.imports.sighting_events import Seeing, encoded_sighting
from weft.ledger.imports.sources import NativeNames, batches
from weft.ledger.model import ReasoningPart, TextPart
from weft.ledger.search.prepared_words import TextWords, words_in

PLAIN = (str, int, float, bool, type(None), type(UNSET))
"""Values that go as they are."""


class PreparedTranscript:
    """The turns of one transcript, prepared in order."""

    def __init__(
        self,
        session: NativeSession,
        turns: Iterator[NativeTurn],
        file: str,
        raw: RawFile,
        secret: ImportSecret,
        mapping: str,
        is_ahead: Callable[[], bool],
    ) -> None:
        """`file` is the name of the source, `raw` what is kept of it. While whoever prepares `is_ahead` of whoever
        writes, what the ledger could as well make itself is prepared, too."""
        self._session, self._turns, self._file, self._raw = session, turns, file, raw
        self._secret, self._mapping, self._is_ahead = secret, mapping, is_ahead
        self._names = NativeNames(secret, mapping.rpartition("/")[0])
        self._places: list[ForkPoint | None] = []
        """Where each turn ends, as far as that is known."""
        self._end = 0
        self.left: list[NativeTurn] = []
        """Turns that are prepared and were not given yet; those before one that failed are found here."""

    def batches(self) -> Iterator[list[NativeTurn]]:
        """As they will be written, so that what is kept with them is known."""
        for batch, is_last in batches(self._prepared()):
            self._keep_along(batch, is_last)
            self.left = self.left[len(batch) :]
            yield batch

    def _prepared(self) -> Iterator[NativeTurn]:
        for turn in self._turns:
            prepared = self._prepare(turn)
            self.left.append(prepared)
            yield prepared

    def _prepare(self, turn: NativeTurn) -> NativeTurn:
        secret, compaction = self._secret, turn.compaction
        if compaction is not None:
            compaction = replace(compaction, metadata=prepared_value(compaction.metadata))
        turn = replace(
            turn,
            items=tuple(map(_prepared_item, turn.items)),
            compaction=compaction,
            permissions=prepared_value(turn.permissions),
            config=prepared_value(turn.config),
            metadata=prepared_value(turn.metadata),
        )
        source, draft = secret.source(turn.records), None
        try:
            draft = self._draft(turn, source)
        except WeftError:  # told by whoever writes, who will try the same
            self._places.append(None)
        words = tuple(_words(turn, draft)) if draft is not None and self._is_ahead() else ()
        size, last_time = sum(map(len, turn.records)), turn.last_time
        turn.prepared = PreparedTurn(source, size, words, last_time, tuple(self._names.keys_of(turn)), draft)
        turn.records = turn.names = ()
        return turn

    def _draft(self, turn: NativeTurn, source: str) -> TurnDraft | None:
        """None for a turn whose place depends on one that has none."""
        through, kept = self._compacts(turn)
        parent = None if turn.parent is None else self._places[turn.parent]
        if turn.parent is not None and parent is None:
            self._places.append(None)
            return None
        grows_from = None if parent is None else parent.event
        id = imported_turn_id(grows_from, self._mapping, source)
        secret, session = self._secret, self._secret.session_id(self._session.id)
        chain = encoded_chain(
            turn, id, secret=secret, fork=parent, mapping=self._mapping, source=source, compacts=(through, kept)
        )
        origin = self._mapping.rpartition("/")[0]
        sighting = encoded_sighting(turn, id, secret=secret, origin=origin, session=session, file=self._file)
        self._places.append(ForkPoint(id, chain.ids[-1].hex()))
        chain, sighting = replace(chain, events=()), replace(sighting, events=())
        return TurnDraft(id, grows_from, (through, kept), session, self._file, chain, sighting)

    def _compacts(self, turn: NativeTurn) -> tuple[str | None, str | None]:
        compaction = turn.compaction
        if compaction is None:
            return None, None
        through = turn.parent if compaction.through is None else compaction.through
        return self._id_at(through), self._id_at(compaction.first_kept)

    def _id_at(self, index: int | None) -> str | None:
        place = self._places[index] if index is not None and 0 <= index < len(self._places) else None
        return None if place is None else place.turn

    def _keep_along(self, batch: list[NativeTurn], is_last: bool) -> None:
        """The stretch of the source that a batch comes from, as it is kept if all of its turns are new."""
        self._end = max([self._end, *(turn.end for turn in batch)])
        if not batch or not self._is_ahead():
            self._raw.at = self._raw.end if is_last else min(self._raw.end, max(self._raw.at, self._end))
            return
        contents = {content.ref: content for turn in batch for content in _contents_of(turn)}
        if is_last:
            contents.update((content.ref, content) for content in self._session_contents())
        worth = [(ref.hex(), content.data) for ref, content in contents.items() if len(content.data) >= WORTH]
        prepared = batch[-1].prepared
        assert prepared is not None
        prepared.stretches = tuple(
            PackedStretch(start, start + len(piece), pack(piece, worth))
            for start, piece in self._raw.take(None if is_last else self._end)
        )

    def _session_contents(self) -> tuple[Prepared, ...]:
        """What the source tells of the session itself, once it was walked."""
        draft = EventDraft(self._secret)
        origin, session = self._mapping.rpartition("/")[0], self._secret.session_id(self._session.id)
        Seeing(draft, origin, session, self._secret.session_id, self._file).session_sighting(
            prepare_session(self._session), 0
        )
        return draft.encoded().contents


def prepare_session(session: NativeSession) -> NativeSession:
    return replace(session, metadata=prepared_value(session.metadata))


def prepared_value(value: Any) -> Any:
    return value if type(value) in PLAIN else json_content(value)


def _prepared_item(item: Item) -> Item:
    if isinstance(item, NativeCall):
        arguments, result, detail = map(prepared_value, (item.arguments, item.result, item.detail))
        return replace(item, arguments=arguments, result=result, detail=detail)
    if item.context is None and item.metadata is None:
        return item
    return replace(item, context=_prepared_context(item.context), metadata=prepared_value(item.metadata))


def _prepared_context(context: Any) -> Any:
    """Its things one by one, as sightings keep them."""
    if not isinstance(context, dict):
        return prepared_value(context)
    return {
        name: [prepared_value(thing) for thing in given] if isinstance(given, list) else prepared_value(given)
        for name, given in context.items()
    }


def _contents_of(turn: NativeTurn) -> Iterator[Prepared]:
    draft = turn.prepared.draft if turn.prepared is not None else None
    if draft is not None:
        yield from draft.chain.contents
        yield from draft.sighting.contents


def _words(turn: NativeTurn, draft: TurnDraft) -> Iterator[tuple[str, bool, TextWords]]:
    """Of the texts that search reads. Those of more than one row are left to it: it reads their beginning."""
    refs = {content.data: content.ref for content in draft.chain.contents}
    for data, is_json in _texts(turn):
        ref = refs.get(data)
        if ref is not None and 0 < len(data) <= ROW_BYTES:
            yield ref.hex(), is_json, words_in(data, is_json)


def _texts(turn: NativeTurn) -> Iterator[tuple[bytes, bool]]:
    for item in turn.items:
        if isinstance(item, NativeMessage):
            texts = (part.text for part in item.parts if isinstance(part, TextPart | ReasoningPart))
            yield from ((text_bytes(text), False) for text in texts if isinstance(text, str))
            continue
        yield value_bytes(item.arguments), True
        if item.result is not UNSET:
            yield value_bytes(item.result), True
        if item.error is not None:
            yield text_bytes(item.error), False
    if turn.compaction is not None:
        yield text_bytes(turn.compaction.summary), False
