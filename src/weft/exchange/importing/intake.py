"""The sessions of one source on their way into the ledger: closed turns become facts, the open tail is noted."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from msgspec import Struct, field
from msgspec.structs import replace

from weft.exchange.importers.port import NativeSession, NativeTurn, Source, Transcript
from weft.ledger.imports import ImportCounts, ImportWriter, OpenTail, RawBytes, RawFile, TranscriptTurn, whole_turn


class EndedTurn(Struct, frozen=True, kw_only=True):
    """A turn that was not in the ledger before, and that its tool has ended."""

    session: str
    """The ids under which the ledger has them."""
    turn: str
    workspace: str | None
    ended_at: int | None
    """The latest time that its records tell, in Unix milliseconds."""
    is_subagent: bool = False
    """Whether a call of another session started its session."""


OnEnded = Callable[[Sequence[EndedTurn]], None]
"""Told of turns once they are facts. It must not raise, nor take long."""


class SourceIntake(Struct):
    """Takes what one reading of a source gives."""

    writer: ImportWriter
    source: Source
    stamp: int
    """The source's time."""
    file: RawFile
    """What of it is still to be kept."""
    counts: ImportCounts
    reread: bool
    known: Mapping[str, list[TranscriptTurn]]
    """What an earlier reading by the same reader took, by session."""
    landed: dict[str, list[TranscriptTurn]] = field(default_factory=dict)
    """What is taken now: of each session the turns before the first that was left open."""
    is_open: bool = False
    is_plain: bool = True
    """Nothing was passed over because it was erased, and no session came twice: a reader can go on from here."""
    on_ended: OnEnded | None = None

    def take(self, transcript: Transcript) -> None:
        session, counts = transcript.session, self.counts
        known = self.known.get(session.id, [])[: transcript.known]
        if len(known) < transcript.known:
            raise AssertionError(f"a reader passes over turns of {session.id} that nobody took")
        self.file.end = self.source.size if transcript.until is None else transcript.until
        raw = self.file if transcript.raw is None else RawBytes(transcript.raw)
        sieve, erased = OpenTailFilter(self.source, raw, OpenTail(self.stamp), known), counts.erased
        ends = None if self.on_ended is None else TurnEnds(session)
        closed = sieve.closed(transcript.turns)
        landed = self.writer.take(
            session,
            closed if ends is None else ends.noted(closed),
            self.source.name,
            counts,
            reread=self.reread,
            raw=raw,
            tail=sieve.tail,
            known=known,
        )
        counts.open_turns += sieve.left
        counts.answered_turns += sieve.answered
        self.is_open |= sieve.left > 0
        if session.id in self.landed or counts.erased > erased or self.writer.refuses(session):
            self.is_plain = False
        self.landed[session.id] = landed[: sieve.leading]
        if self.on_ended is not None and ends is not None:
            self.on_ended(ends.of_new(self.writer.secret.session_id(session.id), landed[len(known) :]))


class TurnEnds:
    """Where and when the turns of one transcript ended."""

    def __init__(self, session: NativeSession) -> None:
        self._session = session
        self._ends: list[tuple[str | None, int | None]] = []

    def noted(self, turns: Iterable[NativeTurn]) -> Iterator[NativeTurn]:
        for turn in turns:
            self._ends.append((turn.workspace, turn.last_time))
            yield turn

    def of_new(self, session: str, landed: Sequence[TranscriptTurn]) -> list[EndedTurn]:
        """Of those that the ledger did not have before. A session that was erased has landed none."""
        return [
            EndedTurn(
                session=session,
                turn=at.id,
                workspace=workspace or self._session.workspace,
                ended_at=ended_at,
                is_subagent=self._session.parent is not None,
            )
            for at, (workspace, ended_at) in zip(landed, self._ends, strict=False)
            if at.is_new
        ]


class OpenTailFilter:
    """The open tail of a source that is still written to is not a fact yet, nor is what grew from it. Nor is what
    stands there kept: a source that grows up to its last closed turn, another one once it is quiet. A tail whose
    records are old is closed, however new the file is."""

    def __init__(self, source: Source, raw: RawFile, tail: OpenTail, known: list[TranscriptTurn]) -> None:
        """`known` are turns that came before."""
        self.tail, self.left, self.answered = tail, 0, 0
        """Turns that are left out, how many, and how many of them end with their last record unless more comes."""
        self.leading = self._taken = len(known)
        """So many turns were taken before the first that was left out."""
        self._source, self._raw = source, raw
        self._places: dict[int | None, int | None] = {None: None, **{number: number for number in range(len(known))}}
        self._reach = max((turn.end for turn in known), default=0)

    def closed(self, turns: Iterable[NativeTurn]) -> Iterator[NativeTurn]:
        for number, turn in enumerate(turns, self._taken):
            if not self._source.quiet and not self._is_closed(turn):
                self.left += 1
                self.answered += turn.answered
                self.tail.add(whole_turn(turn), self._places.get(turn.parent))
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
