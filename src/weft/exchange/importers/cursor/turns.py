"""Turns of a session of bubbles: a user's bubble up to the next one.

Summaries take the place of earlier bubbles: the newest lies with the session, others with the bubbles after them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from msgspec import Struct, field

from weft.exchange.importers.cursor.bubbles import Bubble, begun_at, bubble_error, ended_at, tool_name
from weft.exchange.importers.cursor.messages import (
    Setting,
    bubble_identity,
    is_prompt,
    is_spoken,
    message_call,
    prompt_message,
    response_message,
)
from weft.exchange.importers.port import Item, NativeCompaction, NativeMessage, NativeTurn
from weft.exchange.importers.records.values import canonical, mapping, present, sequence, text, whole
from weft.kernel.enums import AgentRole, MessageRole

BESIDE = ("conversationSummary", "cachedConversationSummary")


class Summary(Struct, frozen=True):
    """A summary, with the ids of bubbles."""

    words: str
    at: str | None
    """The last one when it was made."""
    through: str | None
    """The last that it stands for."""
    kept: str | None
    """The first that was still sent."""
    tokens_before: int | None = None

    @property
    def anchors(self) -> tuple[str, ...]:
        """Where it may lie, best first."""
        return tuple(id for id in (self.at, self.through) if id is not None)


def summaries(composer: dict[str, Any], bubbles: list[Bubble]) -> list[Summary]:
    """Each once, in the order of the bubbles that they end at."""
    candidates = [
        *((bubble.value.get(name), bubble.id) for bubble in bubbles for name in BESIDE),
        (composer.get("latestConversationSummary"), None),
    ]
    found: dict[tuple[str, str | None], Summary] = {}
    for value, where in candidates:
        made = _summary(value, where)
        if made is not None:
            found.setdefault((made.words, made.through), made)
    return list(found.values())


def _summary(value: Any, where: str | None) -> Summary | None:
    """Newer versions wrap it in an object of its own; older ones have the words there."""
    outer = mapping(value)
    inside = outer.get("summary")
    fields = mapping(inside) or outer
    words = text(inside) or text(mapping(inside).get("summary"))
    if words is None:
        return None
    last = text(outer.get("lastBubbleId")) or text(fields.get("lastBubbleId"))
    return Summary(
        words=words,
        at=last or where,
        through=text(fields.get("truncationLastBubbleIdInclusive")),
        kept=text(fields.get("clientShouldStartSendingFromInclusiveBubbleId")),
        tokens_before=whole(fields.get("tokensBefore")),
    )


ENDED = frozenset({"completed", "aborted", "cancelled", "canceled", "error"})
STOPPED = frozenset({"aborted", "cancelled", "canceled"})


class PlannedTurn(Struct):
    """A turn to be."""

    key: str
    bubbles: list[Bubble] = field(default_factory=list)
    summary: Summary | None = None


class Session(Struct):
    """One composer, or one tab of the older chat, as its turns need it."""

    id: str
    bubbles: list[Bubble]
    composer: dict[str, Any] = field(default_factory=dict)
    setting: Setting = field(default_factory=Setting)
    summaries: list[Summary] = field(default_factory=list)
    workspace: str | None = None
    missing: list[str] = field(default_factory=list)
    """Bubbles that the session names and that are not there."""
    headless: bool = False
    """Its bubbles are those that no header names."""
    starts: set[int] = field(default_factory=set)
    """Numbers of bubbles that do not go on from the one before them."""


class Turns:
    def __init__(self, session: Session) -> None:
        self._session = session
        self._plans = plan_turns(session)
        self._places = {
            bubble.id: number
            for number, plan in enumerate(self._plans)
            for bubble in plan.bubbles
            if bubble.id is not None
        }

    def walk(self) -> Iterator[NativeTurn]:
        for number, plan in enumerate(self._plans):
            yield self._compacted(number, plan.summary, plan.key) if plan.summary else self._turn(number, plan)

    def _turn(self, number: int, plan: PlannedTurn) -> NativeTurn:
        session, values = self._session, [bubble.value for bubble in plan.bubbles]
        items = items_of(plan.bubbles, session.setting)
        times = [when for value in values for when in (begun_at(value), ended_at(value)) if when is not None]
        failures = [why for value in values if (why := bubble_error(value)) is not None]
        is_last = number == len(self._plans) - 1
        status = text(session.composer.get("status"))
        return NativeTurn(
            key=plan.key,
            records=tuple(canonical(bubble_identity(bubble)) for bubble in plan.bubbles),
            names=tuple(bubble.id for bubble in plan.bubbles if bubble.id is not None),
            items=items,
            parent=self._parent(number),
            closed=not is_last or is_finished(session, items),
            error=failures[-1] if failures else None,
            interrupted=is_last and status in STOPPED and not failures,
            started=min(times, default=None),
            ended=max(times, default=None),
            role=AgentRole.WORKER if session.setting.is_subagent else AgentRole.UNIFIED,
            workspace=session.workspace,
            tools=_tools(values),
            toolset=text(session.composer.get("unifiedMode")),
            config=_config(session.composer),
            metadata=present(without_header=session.headless or None, missing=session.missing if is_last else None),
            offset=plan.bubbles[0].number,
            end=self._end(number, plan.bubbles[-1].number + 1),
        )

    def _parent(self, number: int) -> int | None:
        """What no header names has no known place: each of its turns stands for itself."""
        return number - 1 if number and not self._session.headless else None

    def _end(self, number: int, end: int) -> int:
        """The last turn lies as far on as its session is old: one that was taken back and begun anew has fewer
        bubbles and is further on all the same."""
        if number < len(self._plans) - 1:
            return end
        composer, times = self._session.composer, [begun_at(bubble.value) or 0 for bubble in self._session.bubbles]
        updated = begun_at({"createdAt": composer.get("lastUpdatedAt")}) or 0
        return max(end, updated, *times, 0)

    def _compacted(self, number: int, summary: Summary, key: str) -> NativeTurn:
        through, kept = self._places.get(summary.through or ""), self._places.get(summary.kept or "")
        through = through if through is not None and through < number else None
        return NativeTurn(
            key=key,
            records=(canonical(["summary", summary.words, summary.through, summary.kept]),),
            parent=self._parent(number),
            compaction=NativeCompaction(
                summary=summary.words,
                through=through,
                first_kept=kept if kept is not None and kept < number else None,
                tokens_before=summary.tokens_before,
            ),
            workspace=self._session.workspace,
            offset=number,
            end=self._end(number, number + 1),
        )


def plan_turns(session: Session) -> list[PlannedTurn]:
    plans: list[PlannedTurn] = []
    taken: set[str] = set()
    for number, bubble in enumerate(session.bubbles):
        if not plans or is_prompt(bubble) or bubble.number in session.starts:
            plans.append(PlannedTurn(_key(session, bubble, number, taken)))
        plans[-1].bubbles.append(bubble)
    for summary in session.summaries:
        _place(session.id, plans, summary)
    return plans


def _key(session: Session, bubble: Bubble, number: int, taken: set[str]) -> str:
    key = bubble.id if bubble.id is not None and bubble.id not in taken else f"{session.id}#{number}"
    taken.add(key)
    return key


def _place(id: str, plans: list[PlannedTurn], summary: Summary) -> None:
    """After the turn in which it was made; one whose place is not known is in the session's metadata alone."""
    for anchor in summary.anchors:
        for at, plan in enumerate(plans):
            if any(bubble.id == anchor for bubble in plan.bubbles):
                key = f"{id}#summary#{summary.through or anchor}"
                if all(other.key != key for other in plans):
                    plans.insert(at + 1, PlannedTurn(key, summary=summary))
                return


def items_of(bubbles: list[Bubble], setting: Setting) -> tuple[Item, ...]:
    """A call without words of its own belongs to the message before it."""
    items: list[Item] = []
    answers = False
    for bubble in bubbles:
        if is_prompt(bubble):
            items.append(prompt_message(bubble, setting))
            answers = False
            continue
        call, answer = message_call(bubble), response_message(bubble, setting)
        if is_spoken(bubble) or (not answers if call else answer.files):
            items.append(answer)
            answers = True
        if call is not None:
            items.append(call)
    return tuple(items)


def is_finished(session: Session, items: tuple[Item, ...]) -> bool:
    """Does the session say that nothing more is on its way?"""
    status = text(session.composer.get("status"))
    if session.composer.get("generatingBubbleIds") or status == "generating":
        return False
    is_answered = any(isinstance(item, NativeMessage) and item.role == MessageRole.ASSISTANT for item in items)
    return is_answered or status in ENDED or session.headless


def _tools(values: list[dict[str, Any]]) -> tuple[str, ...] | None:
    """Those that the model was given, by the numbers that the bubbles have."""
    supported_tools = next((found for value in values if (found := sequence(value.get("supportedTools")))), [])
    names = {name for each in supported_tools if (name := tool_name(each)) is not None}
    return tuple(sorted(names)) or None


def _config(composer: dict[str, Any]) -> dict[str, Any] | None:
    fields = mapping(composer.get("modelConfig"))
    return present(
        model=text(fields.get("modelName")),
        max_mode=fields.get("maxMode") if isinstance(fields.get("maxMode"), bool) else None,
        mode=text(composer.get("unifiedMode")),
        forced=text(composer.get("forceMode")),
        agentic=composer.get("isAgentic") if isinstance(composer.get("isAgentic"), bool) else None,
    )
