"""From native turns to the ledger's words: keys, records, parents, branches.

Every part of a turn that a compaction divides becomes a turn of its own, for the ledger's compaction stands between
two. The part before it keeps the turn's key; a part after it is `<key>#<compaction's key>`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from msgspec import Struct

from weft.exchange.importers.codex.entries import Sort, digest
from weft.exchange.importers.codex.groups import Group, Rollback
from weft.exchange.importers.codex.responses import Response
from weft.exchange.importers.codex.threads import Thread, config_of, global_id, permissions_of
from weft.exchange.importers.codex.turn_contents import Stretch, TurnContents
from weft.exchange.importers.codex.usage import Meter
from weft.exchange.importers.port import NativeMessage, NativeTurn, Report
from weft.exchange.importers.records.values import canonical_escaped, text, whole, without_none
from weft.kernel.enums import AgentRole

_ALWAYS = frozenset({Sort.META, Sort.TITLE})
"""Entries that tell of the session, whether or not a turn is made of their group."""
_NO_INTERRUPTION = frozenset({"review_ended"})
FINAL_ANSWER = "final_answer"


class _Step(Struct, frozen=True):
    """A native turn on the way from the root to the present."""

    last: int
    prompted: bool


class Turns:
    """Walks the groups of one file."""

    def __init__(self, thread: Thread, report: Report, is_over: Callable[[NativeTurn], bool]) -> None:
        """`report` and `is_over` are those of the reading at hand."""
        self._thread, self.report, self.is_over = thread, report, is_over
        self._meter = Meter()
        self._reports_first: dict[str | None, bool] = {}
        """By version: do reports of usage stand before their responses?"""
        self._path: list[_Step] = []
        self._keys: set[str] = set()
        self._made = 0
        self._native = 0

    def take(self, groups: Iterable[Group | Rollback]) -> Iterator[NativeTurn]:
        for group in groups:
            if isinstance(group, Rollback):
                self._roll_back(group)
            else:
                yield from self._map(group)

    def _roll_back(self, rollback: Rollback) -> None:
        """Turns that nobody asked for (compactions) go with those after them and are not counted."""
        left = rollback.turns
        while left and self._path:
            left -= self._path.pop().prompted
        self.report.mapped[rollback.entry.kind] += 1

    def _map(self, group: Group) -> Iterator[NativeTurn]:
        contents = TurnContents(self._thread, self._meter, group)
        contents.charge(self._learned(contents))
        turns = _GroupTurns(self, group, contents).turns()
        self._thread.take_later(contents.later_metas)
        self._count(contents, bool(turns))
        if not turns:
            return
        parent = self._path[-1].last if self._path else None
        for turn in turns:
            turn.parent = parent
            turn.link = self._thread.link() if parent is None else None
            parent = self._made
            self._made += 1
            yield turn
        self._native += 1
        self._path.append(_Step(self._made - 1, group.prompted))

    def _learned(self, reading: TurnContents) -> bool:
        """A subagent's copy lacks most of the responses that its reports are of: nothing is learned from copies."""
        version = self._thread.version
        first = reading.bill.comes_first()
        if first is not None and reading.copied is False:
            self._reports_first.setdefault(version, first)
        return self._reports_first.get(version, False)

    def _count(self, reading: TurnContents, is_turn: bool) -> None:
        report = self.report
        for entry, taken in reading.counted:
            if taken and (is_turn or entry.sort in _ALWAYS):
                report.mapped[entry.kind] += 1
                continue
            report.kept[entry.kind] += 1
            if entry.sort == Sort.UNKNOWN:
                report.unknown[entry.kind] += 1

    def unique(self, key: str) -> str:
        unique_key, again = key, 1
        while unique_key in self._keys:
            again += 1
            unique_key = f"{key}#{again}"
        self._keys.add(unique_key)
        return unique_key

    @property
    def thread(self) -> Thread:
        return self._thread

    @property
    def position(self) -> int:
        """How many native turns came before."""
        return self._native

    @property
    def made(self) -> int:
        """How many of the ledger's turns they became."""
        return self._made


class _GroupTurns:
    """Makes the turns of one group."""

    def __init__(self, turns: Turns, group: Group, reading: TurnContents) -> None:
        self._turns, self._group, self._reading = turns, group, reading
        self._thread = turns.thread
        self._pieces = [piece for piece in reading.pieces if piece.things or piece.compaction is not None]
        _share_places(reading.pieces, self._pieces)
        if not self._pieces and group.explicit and (reading.error or reading.abort):
            self._pieces = reading.pieces[-1:]

    def turns(self) -> list[NativeTurn]:
        turns: list[NativeTurn] = []
        key, after = self._key(), None
        for number, piece in enumerate(self._pieces):
            if piece.compaction is not None:
                after = self._turns.unique(self._compaction_key(piece, key, number))
                turns.append(self._compaction(piece, after))
            elif any(turn.compaction is None for turn in turns):
                turns.append(self._normal(piece, self._turns.unique(f"{key}#{after}"), after))
            else:
                key = self._turns.unique(key)
                turns.append(self._normal(piece, key, None))
        if turns:
            self._finish(turns[-1])
            turns[0].started = self._reading.started or turns[0].started
        return turns

    def _key(self) -> str:
        """Its id; where it has none, that of its first item; where no item has one, its thread, place and text."""
        if self._thread.printed_of is not None:
            identities = [piece.plain for piece in self._pieces]
            return f"{self._place}-{digest([identities, self._reading.error])[:16]}"
        pieces = [piece for piece in self._pieces if piece.compaction is None]
        native = self._group.id or next((name for piece in pieces for name in piece.names), None)
        if native is not None:
            return global_id(native, self._reading.owner)
        identities = next((piece.plain for piece in self._pieces if piece.plain), [])
        return f"{self._place}-{digest(identities[:1])[:16]}"

    @property
    def _place(self) -> str:
        return f"{self._reading.owner}/{self._turns.position}"

    def _compaction_key(self, piece: Stretch, key: str, number: int) -> str:
        compaction = piece.compaction
        if compaction is not None and compaction.id is not None:
            return global_id(compaction.id, self._reading.owner)
        return f"{key}#compaction-{number}"

    def _records(self, piece: Stretch, after: str | None) -> tuple[bytes, ...]:
        named = self._group.id if self._thread.printed_of is None else self._place
        turn = [canonical_escaped(["turn", named, after])] if named is not None else []
        return (*turn, *map(canonical_escaped, piece.plain))

    def _normal(self, piece: Stretch, key: str, after: str | None) -> NativeTurn:
        turn = self._common(piece, key, after)
        turn.items = piece.items()
        turn.permissions = permissions_of(piece.settings)
        turn.config = config_of(piece.settings, self._reading.start)
        turn.tools = tuple(dict.fromkeys([*(self._thread.tools or ()), *self._reading.tools])) or None
        return turn

    def _compaction(self, piece: Stretch, key: str) -> NativeTurn:
        turn = self._common(piece, key, None)
        compaction = piece.compaction
        if compaction is not None:
            alone = len(self._pieces) == 1
            manual = alone and self._group.explicit and self._group.closed
            trigger = "manual" if manual else "auto" if not alone else None
            duration = whole(self._reading.end.get("duration_ms")) if alone else None
            turn.compaction = compaction.native(trigger, duration)
            turn.items = piece.items()
            turn.started = turn.ended = compaction.at
            turn.literal_time = compaction.literal_time
        return turn

    def _common(self, piece: Stretch, key: str, after: str | None) -> NativeTurn:
        thread = self._thread
        names = [*([self._group.id] if self._group.id else []), *piece.names]
        if thread.printed_of is not None:
            names = [self._place]
        first, last = _span(piece)
        return NativeTurn(
            key=key,
            records=self._records(piece, after),
            names=tuple(dict.fromkeys(names)),
            role=AgentRole.WORKER if thread.is_led else AgentRole.UNIFIED,
            workspace=text(piece.settings.get("cwd")) or thread.workspace,
            git_branch=thread.branch,
            version=thread.version,
            metadata=self._metadata(),
            offset=piece.first.offset if piece.first is not None else 0,
            end=piece.end,
            places=tuple(piece.places),
            started=first,
            ended=last,
            literal_time=next((thing.literal_time for thing in piece.things), None) if first is None else None,
        )

    def _metadata(self) -> dict[str, Any] | None:
        reading = self._reading
        return (
            without_none(
                turn_id=self._group.id,
                aborted=reading.abort,
                duration_ms=whole(reading.end.get("duration_ms")),
                time_to_first_token_ms=whole(reading.end.get("time_to_first_token_ms")),
                copied_from=reading.owner if reading.copied else None,
            )
            or None
        )

    def _finish(self, turn: NativeTurn) -> None:
        """How the turn ended is told by its last part, and is part of what it says."""
        group, reading = self._group, self._reading
        turn.closed = group.closed or turn.compaction is not None
        turn.ended = reading.ended or turn.ended
        if reading.notes:
            turn.metadata = {**(turn.metadata or {}), "notes": reading.notes}
        is_over = group.closed or self._turns.is_over(turn)
        unfinished = group.explicit and not group.ended and is_over and not _is_answered(turn)
        if turn.compaction is None:
            aborted = reading.abort is not None and reading.abort not in _NO_INTERRUPTION
            turn.interrupted = aborted or unfinished
        turn.error = reading.error
        if (group.ended and turn.compaction is None) or reading.error is not None:
            turn.records += (canonical_escaped(["end", reading.abort, reading.error]),)


def _is_answered(turn: NativeTurn) -> bool:
    """Codex itself calls its last message the final answer: only the record that the turn is complete is not there."""
    last = turn.items[-1] if turn.items else None
    return isinstance(last, NativeMessage) and (last.metadata or {}).get("phase") == FINAL_ANSWER


def _share_places(pieces: list[Stretch], kept: list[Stretch]) -> None:
    """Records of a piece that makes no turn (how a turn began or ended) lie with the turn beside them."""
    chosen = {id(piece) for piece in kept}
    before: Stretch | None = None
    leading: list[tuple[int, int]] = []
    for piece in pieces if kept else []:
        if id(piece) in chosen:
            piece.places = [*leading, *piece.places]
            before, leading = piece, []
        elif before is not None:
            before.places += piece.places
        else:
            leading += piece.places


def _span(piece: Stretch) -> tuple[int | None, int | None]:
    """When its first and last message were written."""
    times = [thing.at for thing in piece.things if thing.at is not None]
    calls = [call.done for thing in piece.things if isinstance(thing, Response) for call in thing.calls if call.done]
    return (min(times) if times else None), (max([*times, *calls]) if times or calls else None)
