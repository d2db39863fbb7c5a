"""Events of V1, the software agent SDK. Calls of one response share its id.

What a response cost is told by the state, response by response, where the whole state is at hand; events tell running
totals only, just before the response that made them grow.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from msgspec import Struct

from weft.exchange.importers.chat import content_of, content_text, summed_tokens
from weft.exchange.importers.openhands.turns import (
    Span,
    TurnEvents,
    event_time,
    settled_files,
    summary_message,
    tool_files,
)
from weft.exchange.importers.openhands.v0 import difference
from weft.exchange.importers.port import NativeCompaction, NativeMessage, Tokens
from weft.exchange.importers.records.builder import PendingCall
from weft.exchange.importers.records.values import JsonObject, json_in_text, mapping, present, sequence, text, whole
from weft.kernel.enums import MessageRole, MessageSource, ToolCallStatus
from weft.ledger.dialects import plain_result, uncached_input
from weft.ledger.model import Part, ReasoningPart

CONDENSER = "condenser"


class Pending(Struct):
    """Tokens that a running total grew by and that no response has taken yet."""

    model: str | None
    tokens: Tokens


class Stats:
    def __init__(self, state: Any) -> None:
        self._known: dict[str, tuple[str | None, Tokens]] = {}
        self._totals: dict[str, JsonObject] = {}
        self._pending: dict[str, Pending] = {}
        self._taken: set[str] = set()
        self._model: str | None = None
        for metrics in map(mapping, mapping(mapping(state).get("usage_to_metrics")).values()):
            self._model = self._model or text(metrics.get("model_name"))
            for usage in map(mapping, sequence(metrics.get("token_usages"))):
                self._learn(usage, text(metrics.get("model_name")))

    def _learn(self, usage: JsonObject, model: str | None) -> None:
        id = text(usage.get("response_id"))
        prompt, cached = whole(usage.get("prompt_tokens")), whole(usage.get("cache_read_tokens"))
        written = whole(usage.get("cache_write_tokens"))
        tokens = Tokens(
            input=uncached_input(prompt, cached, written),
            output=whole(usage.get("completion_tokens")),
            cached=cached,
            cache_write=written,
            reasoning=whole(usage.get("reasoning_tokens")),
        )
        if id is not None:
            self._known[id] = (text(usage.get("model")) or model, tokens)

    def update(self, value: Any) -> None:
        """New running totals, by what the model is used for."""
        if self._known:
            return
        for usage_id, metrics in mapping(mapping(value).get("usage_to_metrics")).items():
            fields = mapping(metrics)
            totals = mapping(fields.get("accumulated_token_usage"))
            grown = difference(totals, self._totals.get(usage_id, {}))
            self._totals[usage_id] = totals or self._totals.get(usage_id, {})
            model = text(fields.get("model_name")) or text(totals.get("model"))
            self._model = self._model or model
            if grown is not None:
                purpose = CONDENSER if CONDENSER in usage_id else "agent"
                waiting = self._pending.get(purpose)
                tokens = grown if waiting is None else summed_tokens(waiting.tokens, grown)
                self._pending[purpose] = Pending(model, tokens)

    def spent(self, response: str | None) -> tuple[str | None, Tokens | None]:
        """By a response, which takes what the totals grew by since the last one."""
        return self._take(response, "agent")

    def condensed(self, response: str | None) -> tuple[str | None, Tokens | None]:
        return self._take(response, CONDENSER)

    def _take(self, response: str | None, purpose: str) -> tuple[str | None, Tokens | None]:
        if response is not None and response in self._known:
            model, tokens = self._known[response]
            is_first = response not in self._taken
            self._taken.add(response)
            return model, tokens if is_first else None
        pending = self._pending.pop(purpose, None)
        return (self._model, None) if pending is None else (pending.model, pending.tokens)

    def left(self) -> Tokens | None:
        """What no response has taken."""
        found = None
        for pending in self._pending.values():
            found = pending.tokens if found is None else summed_tokens(found, pending.tokens)
        return found


REPEATED = frozenset(
    {"content", "output", "command", "path", "kind", "is_error", "old_content", "new_content", "metadata", "message"}
)
SOURCES = {"user": MessageSource.HUMAN, "agent": MessageSource.AGENT}


class V1:
    """Tells a turn_events what events say."""

    def __init__(self, turn_events: TurnEvents, stats: Stats) -> None:
        self._turn_events, self._stats = turn_events, stats

    def take(self, event: JsonObject, span: Span) -> None:
        handler = HANDLERS.get(str(event.get("kind")))
        if handler is not None:
            handler(self, event, span)

    def _system(self, event: JsonObject, span: Span) -> None:
        tools = (mapping(tool) for tool in sequence(event.get("tools")))
        named = (text(tool.get("name")) or text(mapping(tool.get("function")).get("name")) for tool in tools)
        self._turn_events.tools = tuple(name for name in named if name is not None) or None
        at, literal = event_time(event)
        blocks = [event.get("system_prompt"), event.get("dynamic_context")]
        self._turn_events.say(
            span,
            NativeMessage(
                role=MessageRole.SYSTEM,
                parts=tuple(content_of([block for block in blocks if block is not None]).parts),
                native=span.id,
                at=at,
                literal_time=literal,
                source=MessageSource.EVENT,
            ),
        )
        self._turn_events.touch(span).tools = self._turn_events.tools

    def _message(self, event: JsonObject, span: Span) -> None:
        fields = mapping(event.get("llm_message"))
        content = content_of(_images(fields.get("content")))
        at, literal = event_time(event)
        if event.get("source") == "agent" and fields.get("role") != "user":
            self._respond(event, span, [*_thoughts(fields), *content.parts], [])
            return
        sender = text(event.get("sender"))
        source = SOURCES.get(text(event.get("source")) or "", MessageSource.EVENT)
        self._turn_events.prompt(
            span,
            NativeMessage(
                role=MessageRole.USER,
                parts=tuple(content.parts),
                native=span.id,
                at=at,
                literal_time=literal,
                source=MessageSource.AGENT if sender is not None else source,
                context=present(
                    skills=event.get("activated_skills") or event.get("activated_microagents"),
                    added=content_text(event.get("extended_content")),
                ),
                metadata=present(sender=sender, blocks=content.other_blocks),
            ),
        )

    def _action(self, event: JsonObject, span: Span) -> None:
        call = mapping(event.get("tool_call"))
        fields = mapping(call.get("function")) or call
        name = text(event.get("tool_name")) or text(fields.get("name")) or ""
        given = json_in_text(fields.get("arguments"))
        if given is None:
            given = {key: value for key, value in mapping(event.get("action")).items() if key != "kind"}
        asked = PendingCall(text(event.get("tool_call_id")) or f"event-{span.id}", name, given)
        asked.files = tool_files(name, event.get("action") or given)
        asked.detail = present(summary=text(event.get("summary")), risk=_unusual(event.get("security_risk")))
        asked.at, _ = event_time(event)
        content = content_of(event.get("thought"))
        self._respond(event, span, [*_thoughts(event), *content.parts], [asked])
        if mapping(event.get("action")).get("kind") == "FinishAction":
            self._turn_events.state("finished")

    def _respond(self, event: JsonObject, span: Span, parts: list[Part], calls: list[PendingCall]) -> None:
        group = text(event.get("llm_response_id"))
        at, literal = event_time(event)
        model, tokens = self._stats.spent(group)
        self._turn_events.respond(
            span,
            NativeMessage(
                role=MessageRole.ASSISTANT,
                parts=tuple(parts),
                native=group or span.id,
                at=at,
                literal_time=literal,
                model=model,
                tokens=tokens,
                metadata=present(critic=event.get("critic_result")),
            ),
            calls,
            group,
        )

    def _observe(self, event: JsonObject, span: Span) -> None:
        call = self._turn_events.call(text(event.get("tool_call_id")), text(event.get("action_id")))
        observed = mapping(event.get("observation"))
        content = observed.get("content", observed.get("output"))
        if call is None or not call.is_open:
            self._stray(event, content, span)
            return
        self._turn_events.touch(span)
        failed = observed.get("is_error") is True
        result = plain_result(content)
        if failed:
            call.fail(content_text(content) or "error")
        else:
            call.answer(result, ToolCallStatus.TIMEOUT if observed.get("timeout") is True else ToolCallStatus.OK)
        call.done, _ = event_time(event)
        call.files = settled_files(call.files, result, failed)
        outcome = mapping(observed.get("metadata"))
        beside = {name: value for name, value in observed.items() if name not in REPEATED and value not in (None, "")}
        code = observed.get("exit_code")
        beside["exit_code"] = outcome.get("exit_code") if code is None else code
        call.detail = present(**mapping(call.detail), **{k: v for k, v in beside.items() if v not in (False, [])})
        self._turn_events.workspace = self._turn_events.workspace or text(outcome.get("working_dir"))

    def _error(self, event: JsonObject, span: Span) -> None:
        error = text(event.get("error")) or "error"
        call = self._turn_events.call(text(event.get("tool_call_id")))
        if call is not None and call.is_open:
            self._turn_events.touch(span)
            call.fail(error)
            call.done, _ = event_time(event)
            call.files = ()
        else:
            self._stray(event, error, span)

    def _rejected(self, event: JsonObject, span: Span) -> None:
        call = self._turn_events.call(text(event.get("tool_call_id")), text(event.get("action_id")))
        reason = text(event.get("rejection_reason")) or "rejected"
        if call is not None and call.is_open:
            self._turn_events.touch(span)
            call.fail(reason, ToolCallStatus.CANCELED)
            call.files = ()
        else:
            self._stray(event, reason, span)

    def _stray(self, event: JsonObject, content: Any, span: Span) -> None:
        at, literal = event_time(event)
        found = content_of(content)
        self._turn_events.say(
            span,
            NativeMessage(
                role=MessageRole.SYSTEM,
                parts=tuple(found.parts),
                native=span.id,
                at=at,
                literal_time=literal,
                source=MessageSource.EVENT,
                metadata=present(event=event.get("kind"), tool=event.get("tool_name"), blocks=found.other_blocks),
            ),
        )

    def _condense(self, event: JsonObject, span: Span) -> None:
        summary = text(event.get("summary"))
        gone = [event_id for event_id in sequence(event.get("forgotten_event_ids")) if isinstance(event_id, str)]
        at, literal = event_time(event)
        group = text(event.get("llm_response_id"))
        model, tokens = self._stats.condensed(group)
        compaction = NativeCompaction(
            summary=summary or "", model=model, metadata=present(offset=whole(event.get("summary_offset")))
        )
        message = summary_message(
            summary, at=at, literal_time=literal, model=model, tokens=tokens, native=group or span.id
        )
        self._turn_events.compact(span, compaction, gone, message)

    def _state(self, event: JsonObject, span: Span) -> None:
        key, value = event.get("key"), event.get("value")
        if key == "stats":
            self._stats.update(value)
        elif key in ("execution_status", "agent_status"):
            self._turn_events.state(text(value))
        elif key == "full_state":
            self._stats.update(mapping(value).get("stats"))
            self._turn_events.state(text(mapping(value).get("execution_status")))

    def _failed(self, event: JsonObject, span: Span) -> None:
        code_and_detail = (text(event.get("code")), text(event.get("detail")))
        self._turn_events.fail(span, ": ".join(word for word in code_and_detail if word is not None) or "error")

    def _paused(self, event: JsonObject, span: Span) -> None:
        self._turn_events.interrupt()

    def _acp(self, event: JsonObject, span: Span) -> None:
        """A call that another agent made behind this one; told again whenever it gets on."""
        id = text(event.get("tool_call_id")) or f"event-{span.id}"
        call = self._turn_events.call(id)
        if call is None:
            call = PendingCall(
                id, text(event.get("tool_kind")) or text(event.get("title")) or "", event.get("raw_input")
            )
            at, literal = event_time(event)
            message = NativeMessage(role=MessageRole.ASSISTANT, parts=(), native=span.id, at=at, literal_time=literal)
            self._turn_events.respond(span, message, [call], None)
        else:
            self._turn_events.touch(span)
        call.arguments = call.arguments if event.get("raw_input") is None else event["raw_input"]
        call.detail = present(title=event.get("title"), parent_call=event.get("parent_tool_call_id"))
        result = event.get("raw_output", event.get("content"))
        if event.get("is_error") is True or event.get("status") == "failed":
            call.fail(result if isinstance(result, str) else "failed")
        elif event.get("status") == "completed":
            call.answer(result)


HANDLERS: dict[str, Callable[[V1, JsonObject, Span], None]] = {
    "SystemPromptEvent": V1._system,
    "MessageEvent": V1._message,
    "ActionEvent": V1._action,
    "ObservationEvent": V1._observe,
    "AgentErrorEvent": V1._error,
    "UserRejectObservation": V1._rejected,
    "Condensation": V1._condense,
    "ConversationStateUpdateEvent": V1._state,
    "ConversationErrorEvent": V1._failed,
    "PauseEvent": V1._paused,
    "InterruptEvent": V1._paused,
    "ACPToolCallEvent": V1._acp,
}


def _thoughts(fields: JsonObject) -> list[Part]:
    reasoning = text(fields.get("reasoning_content"))
    if reasoning is not None:
        return [ReasoningPart(reasoning)]
    blocks = (
        content_of(sequence(fields.get("thinking_blocks"))).parts
        or content_of([fields.get("responses_reasoning_item")]).parts
    )
    return [part for part in blocks if isinstance(part, ReasoningPart)]


def _images(content: Any) -> Any:
    """V1 keeps several images in one block."""
    if not isinstance(content, list):
        return content
    blocks: list[Any] = []
    for block in content:
        urls = sequence(mapping(block).get("image_urls"))
        blocks += [{"type": "image_url", "image_url": url} for url in urls] if urls else [block]
    return blocks


def _unusual(risk: Any) -> str | None:
    words = text(risk)
    return None if words == "UNKNOWN" else words
