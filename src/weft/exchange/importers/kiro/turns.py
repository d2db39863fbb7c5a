"""Turns of a session, step by step: a prompt up to the next one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace

from weft.exchange.importers.kiro.steps import Kind, Outcome, Step
from weft.exchange.importers.kiro.tools import files
from weft.exchange.importers.transcript import (
    Item,
    NativeCall,
    NativeCompaction,
    NativeMessage,
    NativeSession,
    NativeTurn,
)
from weft.exchange.importers.values import canonical
from weft.kernel.enums import AgentRole, MessageRole, MessageSource, ToolCallStatus


class Making(Struct):
    """A turn under way."""

    key: str
    parent: int | None
    offset: int = 0
    end: int = 0
    items: list[Item] = field(default_factory=list)
    records: list[bytes] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    times: list[int] = field(default_factory=list)
    literal_time: str | None = None
    workspace: str | None = None
    is_prompted: bool = False
    is_ended: bool = False
    stopped: bool = False
    error: str | None = None
    summary: str | None = None
    metadata: dict[str, Any] = field(default_factory=dict)

    def note(self, step: Step) -> None:
        self.end = max(self.end, step.end)
        self.times += [when for when in (step.at, step.done) if when is not None]
        self.names += [] if step.id is None else [step.id]
        self.literal_time = self.literal_time or step.literal_time
        self.workspace = step.workspace or self.workspace
        self.stopped, self.error = self.stopped or step.stopped, step.error or self.error


class Turns:
    def __init__(self, session: NativeSession, identity: str | None = None, reach: int = 0) -> None:
        """`reach`: how far on the last turn lies, where a session that is summed up becomes shorter."""
        self._session, self._identity, self._reach = session, identity, reach
        self._making: Making | None = None
        self._made = 0
        self._taken: set[str] = set()
        self._waiting: list[Step] = []
        self._is_cleared = False

    def walk(self, steps: Iterable[Step]) -> Iterator[NativeTurn]:
        for number, step in enumerate(steps):
            if step.kind is Kind.CLEAR:
                self._is_cleared = True
            elif step.kind is Kind.INJECTED:
                self._waiting.append(step)
            else:
                if self._begins(step):
                    if self._making is not None:
                        yield self._finished(is_last=False)
                    self._begin(number, step)
                self._take(step)
        if self._waiting and self._making is None:
            self._begin(0, self._waiting[0])
        if self._making is not None:
            self._join(self._making)
            yield self._finished(is_last=True)

    def _begins(self, step: Step) -> bool:
        if self._making is None or step.kind in (Kind.PROMPT, Kind.COMPACTION):
            return True
        return self._making.summary is not None and step.kind in (Kind.ANSWER, Kind.RESULTS)

    def _begin(self, number: int, step: Step) -> None:
        key = step.id if step.id is not None and step.id not in self._taken else f"{self._session.id}#{number}"
        self._taken.add(key)
        parent = self._made - 1 if self._made and not self._is_cleared else None
        self._is_cleared = False
        self._making = Making(key, parent, offset=step.offset)
        if step.kind is not Kind.COMPACTION:
            self._join(self._making)

    def _join(self, making: Making) -> None:
        for step in self._waiting:
            making.note(step)
            making.offset = min(making.offset, step.offset)
            making.records.append(canonical(["injected", step.identity]))
            making.items.append(_message(step, MessageRole.USER, MessageSource.EVENT))
        self._waiting = []

    def _take(self, step: Step) -> None:
        making = self._making
        assert making is not None
        making.note(step)
        if step.metadata and step.kind in (Kind.ENDED, Kind.BESIDE):
            making.metadata |= step.metadata
        if step.kind is Kind.BESIDE:
            return
        making.records.append(canonical([step.kind.name.lower(), step.id, step.identity]))
        if step.kind is Kind.PROMPT:
            making.is_prompted = True
            human = MessageSource.AGENT if self._session.parent is not None else MessageSource.HUMAN
            making.items.append(_message(step, MessageRole.USER, step.source or human))
        elif step.kind is Kind.ANSWER:
            self._answer(making, step)
        elif step.kind is Kind.COMPACTION and self._made:
            making.summary = step.words
        elif step.kind is Kind.ENDED:
            making.is_ended = True
        for outcome in step.outcomes:
            _settle(making.items, outcome, step.at)

    def _answer(self, making: Making, step: Step) -> None:
        """A call without words belongs to the message before it; one that is told again is told better."""
        answers = making.items and not (
            isinstance(making.items[-1], NativeMessage) and making.items[-1].role != MessageRole.ASSISTANT
        )
        if step.parts or not step.calls or not answers:
            making.items.append(_message(step, MessageRole.ASSISTANT, None))
        for call in step.calls:
            known = [at for at, item in enumerate(making.items) if _is_same(item, call)]
            if known:
                making.items[known[0]] = call
            else:
                making.items.append(call)

    def _finished(self, is_last: bool) -> NativeTurn:
        making = self._making
        assert making is not None
        self._making = None
        self._made += 1
        told = [canonical(["session", self._identity])] if self._identity is not None else []
        return NativeTurn(
            key=making.key,
            records=(*told, *making.records) or (canonical(["empty", making.key]),),
            names=tuple(making.names),
            items=tuple(making.items),
            parent=making.parent,
            compaction=None if making.summary is None else NativeCompaction(summary=making.summary),
            closed=not is_last or making.is_ended or making.summary is not None,
            error=making.error,
            interrupted=making.stopped and making.error is None,
            started=min(making.times, default=None),
            ended=max(making.times, default=None),
            literal_time=making.literal_time,
            role=AgentRole.WORKER if self._session.parent is not None else AgentRole.UNIFIED,
            workspace=making.workspace or self._session.workspace,
            metadata=making.metadata or None,
            offset=making.offset,
            end=max(making.end, self._reach) if is_last else making.end,
        )


def _message(step: Step, role: MessageRole, source: MessageSource | None) -> NativeMessage:
    return NativeMessage(
        role=role,
        parts=tuple(step.parts),
        native=step.id,
        at=step.at,
        source=source,
        model=step.model,
        tokens=step.tokens,
        context=step.context,
        metadata=step.metadata,
    )


def _is_same(item: Item, call: NativeCall) -> bool:
    return isinstance(item, NativeCall) and bool(call.id) and item.id == call.id and item.status is None


def _settle(items: list[Item], outcome: Outcome, at: int | None) -> None:
    for place, item in enumerate(items):
        if isinstance(item, NativeCall) and item.status is None and item.id == outcome.id:
            items[place] = _settled(item, outcome, at)
            return


def _settled(call: NativeCall, outcome: Outcome, at: int | None) -> NativeCall:
    words = outcome.result if isinstance(outcome.result, str) else None
    status = ToolCallStatus.ERROR if outcome.failed else ToolCallStatus.OK
    return replace(
        call,
        result=outcome.result,
        error=(words or "error") if outcome.failed or outcome.cancelled else None,
        status=ToolCallStatus.CANCELED if outcome.cancelled else status,
        done=at,
        detail=call.detail if outcome.duration_ms is None else {"duration_ms": outcome.duration_ms},
        files=() if outcome.failed or outcome.cancelled else files(call.name, call.arguments),
    )
