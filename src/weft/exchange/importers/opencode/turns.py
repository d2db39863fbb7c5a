"""Turns of one session, message by message."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from msgspec import Struct, field

from weft.exchange.importers.loading import loaded_object
from weft.exchange.importers.opencode import messages
from weft.exchange.importers.opencode.messages import Said, completed, created, failure
from weft.exchange.importers.opencode.plans import ROLES, Plan, Planner
from weft.exchange.importers.opencode.rows import HIDDEN, MessageRow, Row, Session, head_of
from weft.exchange.importers.port import Report
from weft.exchange.importers.transcript import Item, NativeCompaction, NativeTurn
from weft.exchange.importers.values import canonical, mapping, present, sequence, text
from weft.kernel.enums import AgentRole
from weft.ledger.model import TextPart

UNFINISHED = frozenset({"tool-calls", "unknown"})


class Making(Struct):
    """A turn under way."""

    items: list[Item] = field(default_factory=list)
    records: list[bytes] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    times: list[int] = field(default_factory=list)
    user: dict[str, Any] = field(default_factory=dict)
    last: dict[str, Any] = field(default_factory=dict)
    """The info of its last response."""
    has_calls: bool = False
    """That response asked for tools."""
    outcome: str | None = None
    """How opencode itself says that it ended."""
    compaction: dict[str, Any] | None = None
    summary: list[str] = field(default_factory=list)


class Turns:
    """Makes the turns of one session."""

    def __init__(self, session: Session, id: str, report: Report) -> None:
        self._session, self._report = session, report
        self._planner = Planner(id, [head_of(message) for message in session.messages])
        self._plans = self._planner.plan()
        self._is_subagent = text(session.info.get("parentID")) is not None
        reverted = text(mapping(session.info.get("revert")).get("messageID")) or ""
        self._reverted = self._planner.turns.get(reverted)

    def walk(self) -> Iterator[NativeTurn]:
        for number in self._planner.strays:
            self._stray(self._session.messages[number])
        for turn, plan in enumerate(self._plans):
            making = Making()
            for number in plan.messages:
                self._take(making, plan, self._session.messages[number], self._planner.native(number))
            yield self._made(turn, plan, making)

    def _object(self, row: Row, what: str) -> dict[str, Any] | None:
        self._report.found += 1
        try:
            value = loaded_object(row.data)
        except ValueError as error:
            self._report.damaged += 1
            self._report.problem(None, f"a {what} of {self._session.info.get('id')} is not readable: {error}"[:300])
            return None
        if row.id is not None:
            value["id"] = row.id
        return value

    def _stray(self, message: MessageRow) -> None:
        info = self._object(message.row, "message")
        if info is not None:
            self._keep(f"message.{text(info.get('role')) or 'none'}", is_unknown=True)
        for row in message.parts:
            part = self._object(row, "part")
            if part is not None:
                self._keep(f"part.{text(part.get('type')) or 'none'}", is_unknown=False)

    def _keep(self, kind: str, is_unknown: bool) -> None:
        self._report.kept[kind] += 1
        if is_unknown:
            self._report.unknown[kind] += 1

    def _take(self, making: Making, plan: Plan, message: MessageRow, native: str | None) -> None:
        info = self._object(message.row, "message") or {}
        role = text(info.get("role")) or "none"
        if role in ROLES:
            self._report.mapped[f"message.{role}"] += 1
        elif info:
            self._keep(f"message.{role}", is_unknown=True)
        said = Said(is_prompt=role == "user")
        for row in message.parts:
            self._part(said, row)
        error = failure(info.get("error"))
        making.records.append(canonical([role, native, info.get("summary") is True, error]))
        making.records += [canonical(reduced) for reduced in said.reduced]
        ids = (native, *(reduced[1] for reduced in said.reduced))
        making.names += [id for id in ids if id is not None]
        making.times += [when for when in (created(info), completed(info)) if when is not None]
        self._say(making, plan, info, said, native)

    def _part(self, said: Said, row: Row) -> None:
        part = self._object(row, "part")
        if part is None:
            return
        if part.get("id") == HIDDEN:
            part["id"] = None
        kind = f"part.{text(part.get('type')) or 'none'}"
        if messages.take(said, part):
            self._report.mapped[kind] += 1
        else:
            self._keep(kind, is_unknown=True)

    def _say(self, making: Making, plan: Plan, info: dict[str, Any], said: Said, native: str | None) -> None:
        role = info.get("role")
        making.outcome = text(info.get("outcome")) or making.outcome
        if role == "user":
            making.user = making.user or info
            making.compaction = making.compaction or said.compaction
            says = said.parts or said.synthetic or said.ignored or said.files
            if says or said.compaction is None:
                making.items.append(messages.prompt(info, said, native, self._is_subagent))
        elif role == "assistant":
            making.last, making.has_calls = info, bool(said.calls)
            making.items += messages.response(info, said, native)
            making.compaction = making.compaction or said.compaction
            if plan.is_compaction:
                making.summary += [str(part.text) for part in said.parts if isinstance(part, TextPart)]
        elif role == "system":
            making.items += messages.system(info, said, native)

    def _made(self, turn: int, plan: Plan, making: Making) -> NativeTurn:
        info, last, user = self._session.info, making.last, making.user
        error = mapping(last.get("error"))
        is_stopped = error.get("name") == "MessageAbortedError" or making.outcome == "interrupted"
        has_failed = bool(error) or making.outcome == "failed"
        first, end = self._session.messages[plan.messages[0]], self._session.messages[plan.messages[-1]]
        return NativeTurn(
            key=plan.key,
            records=tuple(making.records),
            names=tuple(making.names),
            items=tuple(making.items),
            parent=plan.parent,
            compaction=self._compaction(turn, plan, making) if plan.is_compaction else None,
            closed=turn < len(self._plans) - 1 or is_finished(making),
            error=failure(error) or "failed" if has_failed and not is_stopped else None,
            interrupted=is_stopped,
            started=making.times[0] if making.times else None,
            ended=max(making.times, default=None),
            role=AgentRole.WORKER if self._is_subagent else AgentRole.UNIFIED,
            workspace=text(mapping(last.get("path")).get("cwd")) or text(info.get("directory")),
            version=text(info.get("version")),
            permissions=info.get("permission") or None,
            tools=_tools(user.get("tools")),
            toolset=text(user.get("agent")) or text(last.get("agent")) or text(last.get("mode")),
            config=_config(user),
            metadata=present(diffs=_diffs(user), reverted=self._is_reverted(turn, plan)),
            offset=first.offset,
            end=end.end,
        )

    def _is_reverted(self, turn: int, plan: Plan) -> bool | str | None:
        """Taken back by a person; a turn of which only the end was, by the id that it was taken back to."""
        if self._reverted is None or turn < self._reverted:
            return None
        at = text(mapping(self._session.info.get("revert")).get("messageID"))
        return at if turn == self._reverted and self._planner.native(plan.messages[0]) != at else True

    def _compaction(self, turn: int, plan: Plan, making: Making) -> NativeCompaction:
        part = making.compaction
        tail = text(mapping(part).get("tail_start_id")) or ""
        kept = self._planner.turns.get(tail, turn)
        begins = kept < turn and self._planner.native(self._plans[kept].messages[0]) == tail
        through = None if kept >= turn else self._plans[kept].parent if begins else kept
        began, done = created(making.last), completed(making.last)
        return NativeCompaction(
            summary="\n".join(making.summary),
            through=through,
            first_kept=kept if kept < turn else None,
            model=text(making.last.get("modelID")),
            trigger=None if part is None else _trigger(part),
            duration_ms=None if began is None or done is None else max(done - began, 0),
        )


def is_finished(making: Making) -> bool:
    """Does its last response say that no other follows?"""
    last = making.last
    if making.outcome is not None:
        return True
    if not last:
        return False
    if last.get("error"):
        return True
    finish = text(last.get("finish"))
    return completed(last) is not None and (not making.has_calls if finish is None else finish not in UNFINISHED)


def _trigger(part: dict[str, Any]) -> str:
    return "overflow" if part.get("overflow") is True else "auto" if part.get("auto") is True else "manual"


def _tools(told: Any) -> tuple[str, ...] | None:
    """Those that a prompt turns on by name; one that only turns some off does not say which there were."""
    return tuple(sorted(name for name, is_on in mapping(told).items() if is_on is True)) or None


def _config(user: dict[str, Any]) -> dict[str, Any] | None:
    model = mapping(user.get("model"))
    return present(
        agent=user.get("agent"),
        model=model.get("modelID"),
        provider=model.get("providerID"),
        variant=model.get("variant") or user.get("variant"),
        tools=user.get("tools"),
    )


def _diffs(user: dict[str, Any]) -> list[Any]:
    """What the turn changed, without the texts."""
    found = map(mapping, sequence(mapping(user.get("summary")).get("diffs")))
    names = ("file", "status", "additions", "deletions")
    return [{name: each[name] for name in names if each.get(name) is not None} for each in found]
