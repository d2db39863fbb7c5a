"""Turns of a trajectory: a user's step, and the agent's steps up to the next one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace

from weft.exchange.importers.chat import content_of, content_text
from weft.exchange.importers.port import Item, NativeCompaction, NativeMessage, NativeTurn, Tokens
from weft.exchange.importers.records.builder import MessageContent, PendingCall, finished_items, identity
from weft.exchange.importers.records.values import (
    JsonObject,
    canonical,
    mapping,
    millis,
    present,
    sequence,
    text,
    whole,
)
from weft.kernel.enums import AgentRole, FileKind, MessageRole, MessageSource
from weft.ledger.dialects import one_hour_writes, plain_result, uncached_input
from weft.ledger.model import FileNote, ReasoningPart

SOURCES = {"system": MessageRole.SYSTEM, "user": MessageRole.USER, "agent": MessageRole.ASSISTANT}
COUNTS = ("prompt_tokens", "completion_tokens", "cached_tokens")
LARGE = frozenset({"prompt_token_ids", "completion_token_ids", "logprobs"})


class TurnDraft(Struct):
    """A turn under way."""

    number: int
    parent: int | None
    items: list[NativeMessage | PendingCall] = field(default_factory=list)
    asked: list[PendingCall] = field(default_factory=list)
    """Calls of the last response."""
    times: list[int] = field(default_factory=list)
    literal: str | None = None
    compaction: NativeCompaction | None = None
    is_begun: bool = False
    """Somebody has asked or answered."""


class Turns:
    """Takes the steps one after another."""

    def __init__(self, agent: JsonObject, spawned: Callable[[JsonObject], str | None]) -> None:
        self._agent, self._spawned = agent, spawned
        self.drafts: list[TurnDraft] = []

    def take(self, number: int, step: JsonObject) -> None:
        role = SOURCES[str(step["source"])]
        copied = step.get("is_copied_context") is True
        if copied:
            self._say(self._draft(number), step, MessageRole.SYSTEM)
        elif role is MessageRole.USER:
            self._say(self._draft(number, begins=True), step, role)
            self.drafts[-1].is_begun = True
        elif role is MessageRole.SYSTEM:
            self._system(number, step)
        else:
            self._respond(self._draft(number), step)

    def _draft(self, number: int, begins: bool = False) -> TurnDraft:
        last = self.drafts[-1] if self.drafts else None
        if last is None or last.compaction is not None or (begins and last.is_begun):
            self.drafts.append(TurnDraft(number, len(self.drafts) - 1 if self.drafts else None))
        return self.drafts[-1]

    def _system(self, number: int, step: JsonObject) -> None:
        """Instructions, or a step that makes the context smaller: that is a turn of its own."""
        managed = mapping(mapping(step.get("extra")).get("context_management"))
        if not managed or not self.drafts:
            self._say(self._draft(number), step, MessageRole.SYSTEM)
            return
        draft = TurnDraft(number, len(self.drafts) - 1)
        results = [content_text(result.get("content")) for result in _results(step)]
        summary = text(managed.get("summary")) or "\n".join([content_text(step.get("message")), *results]).strip()
        draft.compaction = NativeCompaction(
            summary=summary,
            trigger=text(managed.get("trigger")),
            tokens_before=whole(managed.get("tokens_before")),
            tokens_after=whole(managed.get("tokens_after")),
            metadata=present(type=text(managed.get("type"))),
        )
        self.drafts.append(draft)
        self._timed(draft, step)

    def _timed(self, draft: TurnDraft, step: JsonObject) -> tuple[int | None, str | None]:
        timestamp = step.get("timestamp")
        at = millis(timestamp) if isinstance(timestamp, str) else None
        literal = text(timestamp) if at is None else None
        draft.times += [] if at is None else [at]
        draft.literal = draft.literal or literal
        return at, literal

    def _say(self, draft: TurnDraft, step: JsonObject, role: MessageRole) -> None:
        at, literal = self._timed(draft, step)
        content, files = _content(step.get("message"))
        is_copied = step.get("is_copied_context") is True
        draft.items.append(
            NativeMessage(
                role=role,
                parts=tuple(content.parts),
                at=at,
                literal_time=literal,
                source=None if role is MessageRole.USER else MessageSource.EVENT,
                context=present(observed=[plain_result(result.get("content")) for result in _results(step)]),
                metadata=present(
                    is_copied=is_copied or None,
                    source=step.get("source") if is_copied else None,
                    extra=step.get("extra"),
                    blocks=content.other_blocks,
                ),
                files=files,
            )
        )

    def _respond(self, draft: TurnDraft, step: JsonObject) -> None:
        draft.is_begun = True
        at, literal = self._timed(draft, step)
        content, files = _content(step.get("message"))
        thought = text(step.get("reasoning_content"))
        by_model = step.get("llm_call_count") != 0
        metrics = mapping(step.get("metrics"))
        draft.items.append(
            NativeMessage(
                role=MessageRole.ASSISTANT,
                parts=(*([] if thought is None else [ReasoningPart(thought)]), *content.parts),
                at=at,
                literal_time=literal,
                model=(text(step.get("model_name")) or text(self._agent.get("model_name"))) if by_model else None,
                tokens=tokens(metrics),
                metadata=present(
                    effort=step.get("reasoning_effort"),
                    calls_of_model=whole(step.get("llm_call_count")),
                    cost=metrics.get("cost_usd"),
                    metrics=_further(mapping(metrics.get("extra"))),
                    extra=step.get("extra"),
                    blocks=content.other_blocks,
                ),
                files=files,
            )
        )
        draft.asked = [_call(mapping(tool_call), at) for tool_call in sequence(step.get("tool_calls"))]
        draft.items += draft.asked
        for result in _results(step):
            self._observe(draft, result, at)

    def _observe(self, draft: TurnDraft, result: JsonObject, at: int | None) -> None:
        id = text(result.get("source_call_id"))
        named = [call for call in draft.asked if call.is_open and (id is None or call.id == id)]
        content, files = _content(result.get("content"))
        if not named or (id is None and len(draft.asked) > 1):
            draft.items.append(
                NativeMessage(
                    role=MessageRole.SYSTEM,
                    parts=tuple(content.parts),
                    at=at,
                    source=MessageSource.EVENT,
                    metadata=present(source_call=id, extra=result.get("extra"), blocks=content.other_blocks),
                    files=files,
                )
            )
            return
        call = named[0]
        call.answer(plain_result(result.get("content")))
        call.files = (*call.files, *files)
        refs = [mapping(each) for each in _refs(result)]
        call.spawned = next((found for ref in refs if (found := self._spawned(ref)) is not None), None)
        call.detail = present(extra=result.get("extra"), call=mapping(call.detail).get("call"), subagents=refs)

    def finished(self, session: str, size: int, final: JsonObject, role: AgentRole) -> list[NativeTurn]:
        totals = None
        if final and not any(_is_counted(draft) for draft in self.drafts):
            totals = tokens({name: final.get(f"total_{name}") for name in COUNTS})
        turns = []
        for place, draft in enumerate(self.drafts):
            is_last = place == len(self.drafts) - 1
            items: list[Item] = list(finished_items(draft.items))
            items = _with_totals(items, totals) if is_last and totals is not None else items
            turns.append(self._turn(draft, items, session, size, is_last and not final, role))
        return turns

    def _turn(
        self, draft: TurnDraft, items: list[Item], session: str, size: int, is_open: bool, role: AgentRole
    ) -> NativeTurn:
        tools = (mapping(mapping(tool).get("function")) or mapping(tool) for tool in self._defined())
        summary = () if draft.compaction is None else (canonical(draft.compaction.summary),)
        return NativeTurn(
            key=f"{session}/{draft.number}",
            records=identity(items) + summary or (canonical([draft.number]),),
            items=tuple(items),
            parent=draft.parent,
            compaction=draft.compaction,
            closed=not is_open,
            started=min(draft.times, default=None),
            ended=max(draft.times, default=None),
            literal_time=None if draft.times else draft.literal,
            role=role,
            version=text(self._agent.get("version")),
            tools=tuple(name for tool in tools if (name := text(tool.get("name"))) is not None) or None,
            config=present(agent=text(self._agent.get("name")), model=text(self._agent.get("model_name"))),
            end=size,
        )

    def _defined(self) -> list[Any]:
        return sequence(self._agent.get("tool_definitions"))


def _is_counted(draft: TurnDraft) -> bool:
    return any(isinstance(item, NativeMessage) and item.tokens is not None for item in draft.items)


def _with_totals(items: list[Item], totals: Tokens) -> list[Item]:
    """Where no step tells its tokens, those of the whole run count with its last response."""
    for place in range(len(items) - 1, -1, -1):
        item = items[place]
        if isinstance(item, NativeMessage) and item.role is MessageRole.ASSISTANT:
            fields = {**mapping(item.metadata), "tokens_of": "the whole run"}
            items[place] = replace(item, tokens=totals, metadata=fields)
            break
    return items


def tokens(metrics: JsonObject) -> Tokens | None:
    """What was cached lies inside the prompt."""
    prompt, output, cached = (whole(metrics.get(name)) for name in COUNTS)
    if prompt is None and output is None:
        return None
    further = mapping(metrics.get("extra"))
    written = whole(further.get("cache_creation_input_tokens"))
    reasoning = whole(further.get("reasoning_tokens"))
    return Tokens(
        input=uncached_input(prompt, cached, None),
        output=output,
        cached=cached,
        cache_write=written,
        cache_write_1h=one_hour_writes(further),
        reasoning=reasoning,
    )


def _further(extra: JsonObject) -> JsonObject:
    return {name: value for name, value in extra.items() if name not in LARGE}


def _results(step: JsonObject) -> list[JsonObject]:
    return [mapping(result) for result in sequence(mapping(step.get("observation")).get("results"))]


def _refs(result: JsonObject) -> list[Any]:
    refs = result.get("subagent_trajectory_ref")
    return refs if isinstance(refs, list) else [] if refs is None else [refs]


def _call(tool_call: JsonObject, at: int | None) -> PendingCall:
    extra = tool_call.get("extra")
    return PendingCall(
        text(tool_call.get("tool_call_id")) or "",
        text(tool_call.get("function_name")) or "",
        tool_call.get("arguments"),
        at=at,
        detail=None if extra is None else {"call": extra},
    )


def _content(content: Any) -> tuple[MessageContent, tuple[FileNote, ...]]:
    """Texts and images; an image is a file beside the trajectory."""
    found = content_of(content)
    files = []
    for block in map(mapping, found.other_blocks):
        path = text(mapping(block.get("source")).get("path"))
        if block.get("type") == "image" and path is not None and "://" not in path:
            files.append(FileNote(kind=FileKind.ATTACHED, path=path))
    return found, tuple(files)
