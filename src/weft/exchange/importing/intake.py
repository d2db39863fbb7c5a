"""The sessions of one source on their way into the ledger: closed turns become facts, the open tail is noted."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from msgspec import Struct, field
from msgspec.structs import replace

from weft.exchange.importers.port import NativeTurn, Source, Transcript
from weft.ledger.imports import ImportCounts, ImportWriter, Landed, OpenTail, RawBytes, RawFile


class Taking(Struct):
    """Takes what one reading of a source gives."""

    writer: ImportWriter
    source: Source
    stamp: int
    """The source's time."""
    file: RawFile
    """What of it is still to be kept."""
    counts: ImportCounts
    reread: bool
    known: Mapping[str, list[Landed]]
    """What an earlier reading by the same reader took, by session."""
    landed: dict[str, list[Landed]] = field(default_factory=dict)
    """What is taken now: of each session the turns before the first that was left open."""
    is_open: bool = False
    is_plain: bool = True
    """Nothing was passed over because it was erased, and no session came twice: a reader can go on from here."""

    def take(self, transcript: Transcript) -> None:
        session, counts = transcript.session, self.counts
        known = self.known.get(session.id, [])[: transcript.known]
        if len(known) < transcript.known:
            raise AssertionError(f"a reader passes over turns of {session.id} that nobody took")
        self.file.end = self.source.size if transcript.until is None else transcript.until
        raw = self.file if transcript.raw is None else RawBytes(transcript.raw)
        sieve, erased = OpenTailFilter(self.source, raw, OpenTail(self.stamp), known), counts.erased
        landed = self.writer.take(
            session,
            sieve.closed(transcript.turns),
            self.source.name,
            counts,
            reread=self.reread,
            raw=raw,
            tail=sieve.tail,
            known=known,
        )
        counts.open_turns += sieve.left
        self.is_open |= sieve.left > 0
        if session.id in self.landed or counts.erased > erased or self.writer.refuses(session):
            self.is_plain = False
        self.landed[session.id] = landed[: sieve.leading]


class OpenTailFilter:
    """The open tail of a source that is still written to is not a fact yet, nor is what grew from it. Nor is what
    stands there kept: a source that grows up to its last closed turn, another one once it is quiet. A tail whose
    records are old is closed, however new the file is."""

    def __init__(self, source: Source, raw: RawFile, tail: OpenTail, known: list[Landed]) -> None:
        """`known` are turns that came before."""
        self.tail, self.left = tail, 0
        """Turns that are left out, and how many."""
        self.leading = self._taken = len(known)
        """So many turns were taken before the first that was left out."""
        self._source, self._raw = source, raw
        self._places: dict[int | None, int | None] = {None: None, **{number: number for number in range(len(known))}}
        self._reach = max((turn.end for turn in known), default=0)

    def closed(self, turns: Iterable[NativeTurn]) -> Iterator[NativeTurn]:
        for number, turn in enumerate(turns, self._taken):
            if not self._source.quiet and not self._is_closed(turn):
                self.left += 1
                self.tail.add(turn, self._places.get(turn.parent))
                continue
            self._places[number] = self._taken
            self._taken += 1
            self.leading += self.left == 0
            self._reach = max(self._reach, turn.end)
            yield turn if number < self._taken else _placed(turn, self._places)
        raw = self._raw
        if self.left:
            raw.end = max(raw.at, min(raw.end, self._reach)) if raw.grows else raw.at

    def _is_closed(self, turn: NativeTurn) -> bool:
        compaction = turn.compaction
        named = {turn.parent} | ({compaction.through, compaction.first_kept} if compaction else set())
        return named <= self._places.keys() and (turn.closed or self._source.is_over(turn))


def _placed(turn: NativeTurn, places: Mapping[int | None, int | None]) -> NativeTurn:
    """With its places counted among the turns that are taken."""
    compaction = turn.compaction
    if compaction is not None:
        through, kept = places[compaction.through], places[compaction.first_kept]
        compaction = replace(compaction, through=through, first_kept=kept)
    return replace(turn, parent=places[turn.parent], compaction=compaction)
