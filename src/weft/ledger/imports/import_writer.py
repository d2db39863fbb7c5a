"""Writing one origin's sessions into a ledger: what is known is passed over, what is new
becomes a turn, prepared by whoever reads it as far as that goes without the ledger; turns whose
words an import put out of sight are counted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from hashlib import sha256
from typing import Any

from msgspec import UNSET
from msgspec.structs import replace

from weft.kernel.contents import ROW_BYTES, ImportSecret, PreparedContent, imported_turn_id, text_bytes
from weft.kernel.enums import LinkReason, SupersedeReason
from weft.kernel.errors import WeftError
from weft.kernel.events import ForkPoint, encode, import_stream, session_stream
from weft.kernel.ledger_events import SessionCreated, Sighting, TurnLinked, TurnSuperseded
from weft.ledger.imports.imported_turns import (
    EncodedEvents,
    EventDraft,
    Item,
    NativeCall,
    NativeMessage,
    NativeSession,
    NativeTurn,
    PackedStretch,
    PreparedTurn,
    SightingMaker,
    TurnDraft,
    encoded_chain,
    encoded_sighting,
    json_content,
    opening_bytes,
    value_bytes,
)
from weft.ledger.imports.sources import (
    NAMED,
    PIECE_BYTES,
    ROW_EVENTS,
    WORTH,
    ImportCounts,
    ImportSource,
    IntakeMark,
    NativeNames,
    OpenTail,
    RawFile,
    ReadSources,
    ResumedTurns,
    TranscriptIntake,
    TranscriptTurn,
    add_events,
    batches,
    erased_contents,
    fitting_draft,
    import_secret,
    is_erased_here,
    is_kept,
    is_packed_with,
    pack,
    was_erased,
    whole_turn,
    write_tail,
)
from weft.ledger.model import IMPORTED_AGENT, ReasoningPart, TextPart
from weft.ledger.read.search_index import PreparedWords, TextWords, words_in
from weft.ledger.views.rows import TurnRow, load_turn, recorded
from weft.ledger.views.sessions import TurnWords, mapping_number, versions_of
from weft.ledger.write.transaction import Append, ImportScope, LedgerWriter
from weft.store.fact_log import ERASING, KEY_BYTES
from weft.store.sql import rows_in

# --- Turns whose words an import put out of sight, counted by session.


def note_replaced(append: Append, counts: ImportCounts, *, landed: str, is_new: bool, is_remapping: bool) -> None:
    """Count the turns that another one replaced since this was last asked, or that did not come to stand in place of
    one, like the one that just `landed`. What a newer mapping spells another way is the same source, and is not counted
    here; nor are those again that an event supersedes."""
    pairs, append.view.replaced = append.view.replaced, []
    if is_remapping or not (pairs or is_new):
        return
    replaced = [(append.view.turn(old), append.view.turn(new)) for old, new in dict(pairs).items()]
    replaced = [(old, new) for old, new in replaced if not old.current]
    if is_new and not replaced:
        turn = append.view.turn(landed)
        replaced += [(old, turn) for old in _first_turns_like(append, turn)][:1]
    if replaced:
        append.view.flush(keep=True)
    for old, new in replaced:
        if _is_hidden(append, old, new):
            session = None if old.session is None else append.view.session_of_number(old.session)
            label = "" if session is None else session.label
            counts.replaced_in = {**counts.replaced_in, label: counts.replaced_in.get(label, 0) + 1}
            is_counted = append.sql.fetch_row("SELECT 1 FROM superseded WHERE turn = ? LIMIT 1", (old.id,)) is not None
            counts.superseded += old.id != landed and not is_counted


def _first_turns_like(append: Append, turn: TurnRow) -> Iterator[TurnRow]:
    """Current first turns of the same session that have the native id and the first words of this one."""
    if turn.parent is not None or not (turn.native and turn.current):
        return
    query = "SELECT id FROM turn WHERE native = ? AND id <> ? AND session = ? AND parent IS NULL AND current = 1"
    rows = append.sql.fetch_rows(f"{query} ORDER BY id", (turn.native, turn.id, turn.session))
    if rows:
        append.view.flush(keep=True)
    opening = TurnWords(append.sql, turn).opening if rows else frozenset[int]()
    for old in (append.view.turn(id) for (id,) in rows):
        if 0 not in opening and TurnWords(append.sql, old).opening == opening:
            yield old


def _is_hidden(append: Append, old: TurnRow, new: TurnRow) -> bool:
    """Are there words of one turn that the other one, which stands in its place, does not say?"""
    return not TurnWords(append.sql, old).certain <= TurnWords(append.sql, new).everything


def has_other_files(append: Append, session: int, file: str) -> bool:
    """Several may give themselves out as one session, such as fragments of it."""
    known = append.number(append.put_text(file))
    return (
        append.sql.fetch_row("SELECT 1 FROM kept WHERE session = ? AND file <> ? LIMIT 1", (session, known)) is not None
    )


def is_shown_from(append: Append, row: TurnRow, file: str) -> bool:
    """Is it this file whose telling of a turn is shown?"""
    n = None if row.seen is None else append.txn.facts.find_event(row.seen)
    line = None if n is None else append.txn.facts.line(n)
    event = None if n is None or line is None else recorded(n, line).event
    return not isinstance(event, Sighting) or event.file == append.put_text(file)


def last_round(append: Append, *turns: TurnRow) -> int:
    """How often versions of these turns have come back after others had replaced them."""
    ids = {row.id for turn in turns for row in versions_of(append.view, turn)}
    found = rows_in(append.sql, "SELECT round FROM superseded WHERE turn IN", ids)
    return max((int(round) for (round,) in found), default=0)


# --- Turns prepared for the ledger by whoever reads them: everything that can be made without looking into it.

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
        for batch, is_last in batches(self._prepared_turns()):
            self._keep_along(batch, is_last)
            self.left = self.left[len(batch) :]
            yield batch

    def _prepared_turns(self) -> Iterator[NativeTurn]:
        for turn in self._turns:
            prepared = self._prepare_turn(turn)
            self.left.append(prepared)
            yield prepared

    def _prepare_turn(self, turn: NativeTurn) -> NativeTurn:
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
            draft = self._turn_draft(turn, source)
        except WeftError:  # told by whoever writes, who will try the same
            self._places.append(None)
        words = tuple(_indexed_words(turn, draft)) if draft is not None and self._is_ahead() else ()
        size, last_time = sum(map(len, turn.records)), turn.last_time
        turn.prepared = PreparedTurn(source, size, words, last_time, tuple(self._names.keys_of(turn)), draft)
        turn.records = turn.names = ()
        return turn

    def _turn_draft(self, turn: NativeTurn, source: str) -> TurnDraft | None:
        """None for a turn whose place depends on one that has none."""
        through, kept = self._compacted_turns(turn)
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

    def _compacted_turns(self, turn: NativeTurn) -> tuple[str | None, str | None]:
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

    def _session_contents(self) -> tuple[PreparedContent, ...]:
        """What the source tells of the session itself, once it was walked."""
        draft = EventDraft(self._secret)
        origin, session = self._mapping.rpartition("/")[0], self._secret.session_id(self._session.id)
        SightingMaker(draft, origin, session, self._secret.session_id, self._file).session_sighting(
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


def _contents_of(turn: NativeTurn) -> Iterator[PreparedContent]:
    draft = turn.prepared.draft if turn.prepared is not None else None
    if draft is not None:
        yield from draft.chain.contents
        yield from draft.sighting.contents


def _indexed_words(turn: NativeTurn, draft: TurnDraft) -> Iterator[tuple[str, bool, TextWords]]:
    """Of the texts that search reads. Those of more than one row are left to it: it reads their beginning."""
    refs = {content.data: content.ref for content in draft.chain.contents}
    for data, is_json in _turn_texts(turn):
        ref = refs.get(data)
        if ref is not None and 0 < len(data) <= ROW_BYTES:
            yield ref.hex(), is_json, words_in(data, is_json)


def _turn_texts(turn: NativeTurn) -> Iterator[tuple[bytes, bool]]:
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


# --- Writing one origin's sessions into a ledger: what is known is passed over, what is new becomes a turn.


_SETS = (b'"stream":"import:', b'"stream":"ledger:', b'"stream":"resource:')
"""Streams in which events of imports stand each for itself."""


class ImportWriter:
    """One origin's way into one ledger."""

    def __init__(
        self,
        writer: LedgerWriter,
        origin: str,
        mapping: int,
        *,
        remap: bool = False,
        words: PreparedWords | None = None,
    ) -> None:
        """`words` takes the words that turns come with."""
        self._writer, self.origin, self.mapping = writer, origin, f"{origin}/{mapping}"
        self.secret = ImportSecret(import_secret(writer.store), origin)
        self._scope = -1 - int.from_bytes(sha256(origin.encode()).digest()[:4], "big")
        self._remap = remap
        self._sources = ReadSources(writer, self.secret, origin, self.mapping, remap=remap)
        self._resumes, self._names = ResumedTurns(self.mapping), NativeNames(self.secret, origin)
        self._written: set[bytes] = set()
        self._fresh: set[bytes] = set()
        self._words, self._fresh_words = words, dict[tuple[int, bool], TextWords]()
        self._looked: int | None = None
        self._has_erasures = True
        """Whether anything was ever erased here, as the transaction under way has found."""
        self._refused: set[str] = set()
        """Sessions of which something was passed over: nothing of their sources is kept again."""

    def last_read(self, name: str) -> ImportSource | None:
        """A source as it was when it was last read to its end, by whichever importer."""
        return self._sources.last_read(name)

    def is_due(self, source: ImportSource, quiet: bool) -> bool:
        """Is a source that has not changed to be read again: for a newer mapping, or for the turn left open then?"""
        return self._sources.is_due(source, quiet)

    def remember(self, source: ImportSource, *, alike: bool = False) -> None:
        """The source has been read to its end, or is `alike` to what was read then: noted with the next write, or by
        `finish`."""
        self._sources.remember(source, alike=alike)

    def finish(self) -> None:
        self._sources.finish()

    def forget_tails(self, is_there: Callable[[str], bool]) -> list[str]:
        """The open tails of sources that are gone go too; the sources' names."""
        return self._sources.forget_tails(is_there)

    def take(
        self,
        session: NativeSession,
        turns: Iterable[NativeTurn],
        file: str,
        counts: ImportCounts,
        *,
        reread: bool = False,
        raw: RawFile | None = None,
        tail: OpenTail | None = None,
        known: Sequence[TranscriptTurn] = (),
    ) -> list[TranscriptTurn]:
        """One transcript. `session` may be completed while its turns are walked; `raw` is kept along with them. `tail`
        has the turns left out, once all are walked. `known` are turns before these, as an earlier call returned them:
        so it returns them all."""
        task = TranscriptIntake(
            session, file, counts, reread, raw, tail, max((at.end for at in known), default=0), list(known)
        )
        counts.known += len(known)
        if self._is_erased(session):
            counts.erased += sum(1 for _ in turns)
            return []
        for batch, is_last in batches(turns):
            task.end = max([task.end, *(turn.end for turn in batch)])
            mark = task.mark()
            try:
                self._run(partial(self._write, task, mark, batch, is_last))
            except BaseException:  # whatever it was, this batch has not landed
                task.go_back(mark)
                raise
        return task.landed

    def erasures(self) -> int:
        """A number that changes with every erasure: what was known before it may not be there any more."""
        with self._writer.store.read() as txn:
            return txn.facts.watermark(ERASING)

    def refuses(self, session: NativeSession) -> bool:
        """Was something of this session passed over, because it was erased?"""
        return self.secret.session_id(session.id) in self._refused

    def _run(self, work: Callable[[Append], None], weight: int = 0) -> None:
        """A transaction. Its work may be run again before it lasts; what is noted beside the ledger counts after it."""

        def run(append: Append) -> int:
            self._fresh, self._fresh_words = set(), {}
            self._refuse_told_meanwhile(append)
            self._has_erasures = append.sql.fetch_row("SELECT 1 FROM erasure LIMIT 1") is not None
            work(append)
            append.seal()
            self._sources.note(append.txn)
            return append.first - 1

        self._looked = self._writer.write(run, weight, imported=ImportScope(self._scope, self.secret))
        self._written |= self._fresh
        if self._words is not None:
            self._words.put(self._fresh_words)
        self._sources.forget_noted()

    def _refuse_told_meanwhile(self, append: Append) -> None:
        """What others told meanwhile: the view that finds events by their ids may not have it yet."""
        facts = append.txn.facts
        after = facts.watermark("lookup_event") if self._looked is None else self._looked
        if after < append.first - 1:
            lines = (line for _, line in facts.lines(after) if any(stream in line for stream in _SETS))
            self._written.update(sha256(line).digest()[:KEY_BYTES] for line in lines)

    def add_apart(self, made: Sequence[EncodedEvents]) -> int:
        """Events that belong to no turn, each once, in one transaction. Returns how many are new."""
        counted = 0

        def work(append: Append) -> None:
            nonlocal counted
            counted = 0
            for each in made:
                if self._is_known(append, each.ids[0]):
                    continue
                append.contents.put_imported(each.contents)
                add_events(append, each)
                self._fresh.add(each.ids[0][:KEY_BYTES])
                counted += 1
                if len(append.lines) >= ROW_EVENTS:
                    append.seal()

        self._run(work)
        return counted

    def keep(self, session: NativeSession, file: str, piece: bytes, start: int = 0) -> None:
        """A stretch of a source, verbatim: whatever no turn is made of is not lost."""

        if self.secret.session_id(session.id) in self._refused or self._is_erased(session):
            return

        def work(append: Append) -> None:
            for at in range(0, len(piece) or 1, PIECE_BYTES):
                some = piece[at : at + PIECE_BYTES]
                self._keep_source_range(append, self._seeing(append, session, file), some, start + at, [])

        self._run(work, len(piece))

    def _keep_source_range(
        self,
        append: Append,
        seeing: SightingMaker,
        piece: bytes,
        start: int,
        contents: list[tuple[str, bytes]],
        prepared: Sequence[PackedStretch] = (),
    ) -> None:
        """Unless an import that was cut short has kept it: then it was packed with what it brought then."""
        session, file = append.view.session_number(seeing.session), append.number(append.put_text(seeing.file))
        place = (session, file, start, start + len(piece))
        if not is_kept(append.txn, place, piece):
            end = start + len(piece)
            packed = next((each.packed for each in prepared if (each.start, each.end) == (start, end)), None)
            if packed is None or not is_packed_with(packed, contents):
                packed = pack(piece, contents)
            self._write_sighting(append, seeing.kept(packed, start, end), new=False)

    def _seeing(self, append: Append, session: NativeSession, file: str) -> SightingMaker:
        return SightingMaker(
            append.contents, self.origin, self.secret.session_id(session.id), self.secret.session_id, file
        )

    def _write(
        self, task: TranscriptIntake, mark: IntakeMark, batch: list[NativeTurn], is_last: bool, append: Append
    ) -> None:
        task.go_back(mark)
        append.contents.stored = []
        self._ensure_session(append, task)
        seeing = self._seeing(append, task.session, task.file)
        for turn in batch:
            task.landed.append(self._land_turn(append, seeing, turn, task))
            if len(append.lines) >= ROW_EVENTS:
                append.seal()
        append.seal()
        self._names.note(append, batch, task.landed[mark.landed :])
        if is_last:
            self._bring_back(append, seeing, task)
            self._write_session_sighting(append, seeing, task)
            self._note_tail(append, seeing, task)
        stretches = [each for turn in batch if turn.prepared is not None for each in turn.prepared.stretches]
        self._keep_along(append, seeing, task, None if is_last else task.end, stretches)

    def _note_tail(self, append: Append, seeing: SightingMaker, task: TranscriptIntake) -> None:
        """What is still open, beside what is a fact now; of a session that lost something nothing is shown early."""
        if task.tail is None:
            return
        if seeing.session in self._refused or was_erased(append.sql, append.view.session(seeing.session).n):
            task.tail.turns.clear()
        now, place = self._writer.clock.now_ms(), (task.file, seeing.session)
        parents, is_erased = partial(_id_at, task.landed), erased_contents(append.txn, self.secret)
        write_tail(append.sql, place, self.origin, now, task.tail, parents, is_erased)

    def _keep_along(
        self,
        append: Append,
        seeing: SightingMaker,
        task: TranscriptIntake,
        until: int | None,
        prepared: Sequence[PackedStretch],
    ) -> None:
        """The stretch of the source that this batch comes from, compressed against what it brought."""
        if task.raw is None:
            return
        stored, append.contents.stored = append.contents.stored or [], None
        if self._spells_erased(append, seeing.session, stored):
            self._refused.add(seeing.session)
            return
        contents = [(ref, data) for ref, data in stored if len(data) >= WORTH]
        for start, piece in task.raw.take(until):
            self._keep_source_range(append, seeing, piece, start, contents, prepared)

    def _spells_erased(self, append: Append, session: str, stored: list[tuple[str, bytes]]) -> bool:
        """Would the source bring back what was erased: of this session, or a content that lies in this batch?"""
        if session in self._refused:
            return True
        if not self._has_erasures:
            return False
        husks = rows_in(
            append.sql,
            "SELECT 1 FROM content WHERE length(salt) = 0 AND n IN",
            {append.number(ref) for ref, _ in stored},
        )
        return next(husks, None) is not None or was_erased(append.sql, append.view.session(session).n)

    def _land_turn(
        self, append: Append, seeing: SightingMaker, turn: NativeTurn, task: TranscriptIntake
    ) -> TranscriptTurn:
        landed, counts = task.landed, task.counts
        parent = None if turn.parent is None else landed[turn.parent]
        grows_from = parent.digest if parent else None
        compacts = self._compacts(turn, landed)
        source, draft = self._source(turn), fitting_draft(turn, grows_from, compacts)
        id = draft.id if draft else imported_turn_id(grows_from, self.mapping, source)
        written = self._resumes.find(append.sql, append.view.find_turn, grows_from, source)
        row = written or append.view.find_turn(id) or self._mapped_before(append, turn, parent, source)
        gone = self._erased_version(append, seeing, row, turn)
        if gone is not None:
            self._refused.add(seeing.session)
            counts.erased += 1
            return TranscriptTurn(gone.id, gone.digest, turn.end, erased=True)
        new = row is None
        if row is None:
            older = self._outdated_turns(append, seeing, turn, landed) if task.reread or self._remap else []
            fork = ForkPoint(parent.id, parent.digest) if parent else None
            chain = draft.chain if draft else self._turn_chain(turn, id, fork, source, compacts)
            append.contents.put_imported(chain.contents)
            digest = add_events(append, chain)
            self._supersede_turns(append, older, id, counts)
            self._note_words(append, turn)
            counts.turns += 1
        else:
            id, digest = row.id, row.digest
            counts.known += 1
        if written is None:
            self._see_turn(append, seeing, id, turn, draft, new)
        else:
            self._write_sighting(append, seeing.copy(id, turn), new)
        note_replaced(append, counts, landed=id, is_new=new, is_remapping=self._remap)
        return TranscriptTurn(id, digest, turn.end, outdated=row is not None and not row.current, is_new=new)

    def _turn_chain(
        self, turn: NativeTurn, id: str, fork: ForkPoint | None, source: str, compacts: tuple[str | None, str | None]
    ) -> EncodedEvents:
        turn, secret = whole_turn(turn), self.secret
        return encoded_chain(turn, id, secret=secret, fork=fork, mapping=self.mapping, source=source, compacts=compacts)

    def _see_turn(
        self, append: Append, seeing: SightingMaker, id: str, turn: NativeTurn, draft: TurnDraft | None, new: bool
    ) -> None:
        """What the source tells of a turn, unless it is known; of a turn that is new itself nothing can be."""
        if draft is not None and (draft.id, draft.session, draft.file) == (id, seeing.session, seeing.file):
            sighting = draft.sighting
        else:
            place = {"session": seeing.session, "file": seeing.file}
            sighting = encoded_sighting(whole_turn(turn), id, secret=self.secret, origin=self.origin, **place)
        append.contents.put_imported(sighting.contents)
        if new or not self._is_known(append, sighting.ids[0]):
            add_events(append, sighting)
            self._fresh.add(sighting.ids[0][:KEY_BYTES])

    def _source(self, turn: NativeTurn) -> str:
        """The digest of its records."""
        return self.secret.source(turn.records) if turn.prepared is None else turn.prepared.source

    def _note_words(self, append: Append, turn: NativeTurn) -> None:
        if self._words is not None and turn.prepared is not None:
            for ref, is_json, words in turn.prepared.words:
                self._fresh_words[append.number(ref), is_json] = words

    def _is_erased(self, session: NativeSession) -> bool:
        """Was this session erased as a whole?"""
        id = self.secret.session_id(session.id)
        with self._writer.store.read() as txn:
            return is_erased_here(txn.sql, "session", id)

    def _erased_version(
        self, append: Append, seeing: SightingMaker, row: TurnRow | None, turn: NativeTurn
    ) -> TurnRow | None:
        """The turn, or a version of it, that was erased: another telling of the same would bring it back."""
        if not self._has_erasures:
            return None
        candidates = [row] if row is not None else self._turns_of_native_id(append, turn)
        for erased in (each for each in candidates if is_erased_here(append.sql, "turn", each.id)):
            if (
                erased is row
                or self._is_of_this_session(append, seeing, erased)
                or self._shares_words(append, erased, turn)
            ):
                return erased
        return None

    def _is_of_this_session(self, append: Append, seeing: SightingMaker, row: TurnRow) -> bool:
        return row.session is not None and row.session == append.view.session_number(seeing.session)

    def _shares_words(self, append: Append, row: TurnRow, turn: NativeTurn) -> bool:
        """Does a turn that is here begin with the words of this one?"""
        opening = {append.number(self.secret.reference(data).hex()) for data in opening_bytes(whole_turn(turn))}
        return 0 not in opening and TurnWords(append.sql, row).opening == opening

    def identify(self, turns: Iterable[NativeTurn]) -> Iterator[tuple[NativeTurn, str | None]]:
        """Each turn of a source with the id that it has here; None: it is not here."""
        digests: list[str | None] = []
        with self._writer.store.read() as txn:
            find = partial(load_turn, txn.sql)
            for turn in turns:
                grows_from = None if turn.parent is None else digests[turn.parent]
                row = None
                if turn.parent is None or grows_from is not None:
                    source = self._source(turn)
                    row = self._resumes.find(txn.sql, find, grows_from, source)
                    row = row or find(imported_turn_id(grows_from, self.mapping, source))
                digests.append(row.digest if row else None)
                yield turn, row.id if row else None

    def claim(self, turns: Iterable[tuple[NativeTurn, str]]) -> int:
        """A session file that Weft wrote, as this importer reads it: each of its turns with the turn that it was
        written from. Whoever imports that file, grown or not, lands on those. Returns how many links are new."""
        pairs = list(turns)
        if not pairs:
            return 0
        counted = 0

        def work(append: Append) -> None:
            nonlocal counted
            counted = self._resumes.claim(append, self.secret, pairs, self._is_known)

        self._run(work)
        return counted

    def _compacts(self, turn: NativeTurn, landed: list[TranscriptTurn]) -> tuple[str | None, str | None]:
        """The last turn that a compaction summarised, and the first that it kept."""
        compaction = turn.compaction
        if compaction is None:
            return None, None
        through = turn.parent if compaction.through is None else compaction.through
        return _id_at(landed, through), _id_at(landed, compaction.first_kept)

    def _turns_of_native_id(self, append: Append, turn: NativeTurn) -> list[TurnRow]:
        """Turns with the same native id that are here already."""
        n = append.number(append.put_text(turn.key))
        append.view.flush(keep=True)
        ids = append.sql.fetch_rows("SELECT id FROM turn WHERE native = ?", (n,))
        return [append.view.turn(id) for (id,) in ids]

    def _outdated_turns(
        self, append: Append, seeing: SightingMaker, turn: NativeTurn, landed: list[TranscriptTurn]
    ) -> list[TurnRow]:
        """Turns of the same session that its source no longer shows: older versions of this one, and what it took in;
        a copy elsewhere stands for itself, unless a newer mapping tells the same words."""
        session = append.view.session_number(seeing.session)
        keys = sorted(self._names.keys_of(turn))
        candidates = {row.id: row for row in self._turns_of_native_id(append, turn)}
        for key in keys:
            for (id,) in append.sql.fetch_rows(NAMED, (key,)):
                if id not in candidates and (row := append.view.find_turn(id)) is not None:
                    candidates[id] = row
        shown = {at.id for at in landed}
        others = (
            row for row in candidates.values() if row.id not in shown and row.current and row.origin == self.origin
        )
        left = [row for row in others if row.session == session or self._is_remapped(append, row, turn)]
        if self._remap or session is None or not has_other_files(append, session, seeing.file):
            return left
        return [row for row in left if is_shown_from(append, row, seeing.file)]

    def _is_remapped(self, append: Append, row: TurnRow, turn: NativeTurn) -> bool:
        return self._remap and self._shares_words(append, row, turn)

    def _mapped_before(
        self, append: Append, turn: NativeTurn, parent: TranscriptTurn | None, source: str
    ) -> TurnRow | None:
        """A source that an older mapping has read is not mapped again, unless that is wanted."""
        number = mapping_number(self.mapping)
        if self._remap or number <= 1:
            return None
        for row in self._turns_of_native_id(append, turn):
            same = row.source == bytes.fromhex(source) and row.parent == (parent.id if parent else None)
            if same and mapping_number(row.mapping) < number:
                return row
        return None

    def _supersede_turns(
        self, append: Append, older: list[TurnRow], by: str, counts: ImportCounts, back: bool = False
    ) -> None:
        """The same source, read again, tells it another way: this is the way it stands now, or stands once more."""
        for row in older:
            why = SupersedeReason.REREAD if row.mapping == self.mapping else SupersedeReason.REMAP
            round = last_round(append, row, append.view.turn(by)) + back
            event = TurnSuperseded(
                stream=import_stream(row.id),
                prev=None,
                actor=IMPORTED_AGENT,
                turn=row.id,
                by=by,
                why=why,
                round=round or UNSET,
            )
            append.add_event(event)
            counts.superseded += 1

    def _bring_back(self, append: Append, seeing: SightingMaker, task: TranscriptIntake) -> None:
        """A source that was rewritten and now shows again what it showed before: what replaced that goes."""
        if not task.reread:
            return
        session, shown = append.view.session_number(seeing.session), {at.id for at in task.landed}
        for id in [at.id for at in task.landed if at.outdated and not at.erased]:
            if append.view.turn(id).current:
                continue
            versions = append.sql.fetch_rows("SELECT by FROM superseded WHERE turn = ? ORDER BY by", (id,))
            rows = (append.view.find_turn(by) for (by,) in versions if by not in shown)
            rivals = [row for row in rows if row is not None and (row.session, row.origin) == (session, self.origin)]
            self._supersede_turns(append, rivals, id, task.counts, back=True)
            note_replaced(append, task.counts, landed=id, is_new=False, is_remapping=self._remap)

    def _write_sighting(self, append: Append, sighting: Sighting, new: bool) -> None:
        """Written unless it is known; of a turn that is new itself nothing can be."""
        line = encode(sighting)
        digest = sha256(line).digest()
        if new or not self._is_known(append, digest):
            append.add_event(sighting)
            self._fresh.add(digest[:KEY_BYTES])

    def _is_known(self, append: Append, event: bytes) -> bool:
        key = event[:KEY_BYTES]
        if key in self._written or key in self._fresh:
            return True
        for (n,) in append.sql.fetch_rows("SELECT n FROM lookup_event WHERE key = ?", (key,)):
            if append.txn.facts.event_id(n) == event:
                return True
        return False

    def _ensure_session(self, append: Append, task: TranscriptIntake) -> None:
        id = self.secret.session_id(task.session.id)
        if append.view.find_session_id(id) is not None:
            return
        native = append.put_text(task.session.id)
        append.add_event(
            SessionCreated(
                stream=session_stream(id),
                prev=None,
                actor=IMPORTED_AGENT,
                label=native,
                persona=IMPORTED_AGENT,
                origin=self.origin,
                origin_session_id=native,
            )
        )
        task.counts.sessions += 1

    def _write_session_sighting(self, append: Append, seeing: SightingMaker, task: TranscriptIntake) -> None:
        """What the source tells of the session itself, and links whose other end has come."""
        end = max(task.end, task.raw.end) if task.raw else task.end
        self._write_sighting(append, seeing.session_sighting(task.session, end), new=False)
        append.seal()
        for child, wants, why, session in self._names.waiting(append.sql):
            self._join_parent(append, child, wants, why, session, task.counts)

    def _join_parent(
        self, append: Append, child: str, wants: bytes, why: str, session: str | None, counts: ImportCounts
    ) -> None:
        parent = self._names.parent_of(append, child, wants, session)
        if parent is None:
            return
        event = TurnLinked(
            stream=import_stream(child),
            prev=None,
            actor=IMPORTED_AGENT,
            child=child,
            parent=parent.id,
            why=LinkReason(why),
        )
        if not self._is_known(append, sha256(encode(event)).digest()):
            append.add_event(event)
            counts.links += 1
        append.sql.run("DELETE FROM import_wait WHERE child = ? AND wants = ? AND why = ?", (child, wants, why))


def _id_at(landed: list[TranscriptTurn], index: int | None) -> str | None:
    """None for a turn that has not come, too."""
    return landed[index].id if index is not None and 0 <= index < len(landed) else None
