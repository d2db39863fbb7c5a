"""Events of V1, the software agent SDK. Calls of one response share its id; what it cost is told by running totals,
or, where the whole state is at hand, response by response."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from weft.exchange.importers.asked import Asked
from weft.exchange.importers.chat import arguments, plain, said, words
from weft.exchange.importers.openhands.files import called, settled
from weft.exchange.importers.openhands.making import Making, Span, summary_message
from weft.exchange.importers.openhands.stats import Stats
from weft.exchange.importers.openhands.times import moment
from weft.exchange.importers.transcript import NativeCompaction, NativeMessage
from weft.exchange.importers.values import mapping, present, sequence, text, whole
from weft.kernel.enums import MessageRole, MessageSource, ToolCallStatus
from weft.ledger.model import Part, ReasoningPart

Json = dict[str, Any]
REPEATED = frozenset(
    {"content", "output", "command", "path", "kind", "is_error", "old_content", "new_content", "metadata", "message"}
)
SOURCES = {"user": MessageSource.HUMAN, "agent": MessageSource.AGENT}


class V1:
    """Tells a making what events say."""

    def __init__(self, making: Making, stats: Stats) -> None:
        self._making, self._stats = making, stats

    def take(self, event: Json, span: Span) -> None:
        handler = HANDLERS.get(str(event.get("kind")))
        if handler is not None:
            handler(self, event, span)

    def _system(self, event: Json, span: Span) -> None:
        tools = (mapping(each) for each in sequence(event.get("tools")))
        named = (text(each.get("name")) or text(mapping(each.get("function")).get("name")) for each in tools)
        self._making.tools = tuple(name for name in named if name is not None) or None
        at, literal = moment(event)
        blocks = [event.get("system_prompt"), event.get("dynamic_context")]
        self._making.say(
            span,
            NativeMessage(
                role=MessageRole.SYSTEM,
                parts=tuple(said([block for block in blocks if block is not None]).parts),
                native=span.id,
                at=at,
                literal_time=literal,
                source=MessageSource.EVENT,
            ),
        )
        self._making.touch(span).tools = self._making.tools

    def _message(self, event: Json, span: Span) -> None:
        told = mapping(event.get("llm_message"))
        content = said(_images(told.get("content")))
        at, literal = moment(event)
        if event.get("source") == "agent" and told.get("role") != "user":
            self._respond(event, span, [*_thoughts(told), *content.parts], [])
            return
        sender = text(event.get("sender"))
        source = SOURCES.get(text(event.get("source")) or "", MessageSource.EVENT)
        self._making.prompt(
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
                    added=words(event.get("extended_content")),
                ),
                metadata=present(sender=sender, blocks=content.elsewhere),
            ),
        )

    def _action(self, event: Json, span: Span) -> None:
        call = mapping(event.get("tool_call"))
        told = mapping(call.get("function")) or call
        name = text(event.get("tool_name")) or text(told.get("name")) or ""
        given = arguments(told.get("arguments"))
        if given is None:
            given = {key: value for key, value in mapping(event.get("action")).items() if key != "kind"}
        asked = Asked(text(event.get("tool_call_id")) or f"event-{span.id}", name, given)
        asked.files = called(name, event.get("action") or given)
        asked.detail = present(summary=text(event.get("summary")), risk=_unusual(event.get("security_risk")))
        asked.at, _ = moment(event)
        content = said(event.get("thought"))
        self._respond(event, span, [*_thoughts(event), *content.parts], [asked])
        if mapping(event.get("action")).get("kind") == "FinishAction":
            self._making.state("finished")

    def _respond(self, event: Json, span: Span, parts: list[Part], calls: list[Asked]) -> None:
        group = text(event.get("llm_response_id"))
        at, literal = moment(event)
        model, tokens = self._stats.spent(group)
        self._making.respond(
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

    def _observe(self, event: Json, span: Span) -> None:
        call = self._making.call(text(event.get("tool_call_id")), text(event.get("action_id")))
        observed = mapping(event.get("observation"))
        content = observed.get("content", observed.get("output"))
        if call is None or not call.is_open:
            self._stray(event, content, span)
            return
        self._making.touch(span)
        failed = observed.get("is_error") is True
        result = plain(content)
        if failed:
            call.fail(words(content) or "error")
        else:
            call.answer(result, ToolCallStatus.TIMEOUT if observed.get("timeout") is True else ToolCallStatus.OK)
        call.done, _ = moment(event)
        call.files = settled(call.files, result, failed)
        outcome = mapping(observed.get("metadata"))
        beside = {name: value for name, value in observed.items() if name not in REPEATED and value not in (None, "")}
        code = observed.get("exit_code")
        beside["exit_code"] = outcome.get("exit_code") if code is None else code
        call.detail = present(**mapping(call.detail), **{k: v for k, v in beside.items() if v not in (False, [])})
        self._making.workspace = self._making.workspace or text(outcome.get("working_dir"))

    def _error(self, event: Json, span: Span) -> None:
        error = text(event.get("error")) or "error"
        call = self._making.call(text(event.get("tool_call_id")))
        if call is not None and call.is_open:
            self._making.touch(span)
            call.fail(error)
            call.done, _ = moment(event)
            call.files = ()
        else:
            self._stray(event, error, span)

    def _rejected(self, event: Json, span: Span) -> None:
        call = self._making.call(text(event.get("tool_call_id")), text(event.get("action_id")))
        reason = text(event.get("rejection_reason")) or "rejected"
        if call is not None and call.is_open:
            self._making.touch(span)
            call.fail(reason, ToolCallStatus.CANCELED)
            call.files = ()
        else:
            self._stray(event, reason, span)

    def _stray(self, event: Json, content: Any, span: Span) -> None:
        at, literal = moment(event)
        found = said(content)
        self._making.say(
            span,
            NativeMessage(
                role=MessageRole.SYSTEM,
                parts=tuple(found.parts),
                native=span.id,
                at=at,
                literal_time=literal,
                source=MessageSource.EVENT,
                metadata=present(event=event.get("kind"), tool=event.get("tool_name"), blocks=found.elsewhere),
            ),
        )

    def _condense(self, event: Json, span: Span) -> None:
        summary = text(event.get("summary"))
        gone = [each for each in sequence(event.get("forgotten_event_ids")) if isinstance(each, str)]
        at, literal = moment(event)
        group = text(event.get("llm_response_id"))
        model, tokens = self._stats.condensed(group)
        told = NativeCompaction(
            summary=summary or "", model=model, metadata=present(offset=whole(event.get("summary_offset")))
        )
        message = summary_message(
            summary, at=at, literal_time=literal, model=model, tokens=tokens, native=group or span.id
        )
        self._making.compact(span, told, gone, message)

    def _state(self, event: Json, span: Span) -> None:
        key, value = event.get("key"), event.get("value")
        if key == "stats":
            self._stats.update(value)
        elif key in ("execution_status", "agent_status"):
            self._making.state(text(value))
        elif key == "full_state":
            self._stats.update(mapping(value).get("stats"))
            self._making.state(text(mapping(value).get("execution_status")))

    def _failed(self, event: Json, span: Span) -> None:
        told = (text(event.get("code")), text(event.get("detail")))
        self._making.fail(span, ": ".join(word for word in told if word is not None) or "error")

    def _paused(self, event: Json, span: Span) -> None:
        self._making.interrupt()

    def _acp(self, event: Json, span: Span) -> None:
        """A call that another agent made behind this one; told again whenever it gets on."""
        id = text(event.get("tool_call_id")) or f"event-{span.id}"
        call = self._making.call(id)
        if call is None:
            call = Asked(id, text(event.get("tool_kind")) or text(event.get("title")) or "", event.get("raw_input"))
            at, literal = moment(event)
            message = NativeMessage(role=MessageRole.ASSISTANT, parts=(), native=span.id, at=at, literal_time=literal)
            self._making.respond(span, message, [call], None)
        else:
            self._making.touch(span)
        call.arguments = call.arguments if event.get("raw_input") is None else event["raw_input"]
        call.detail = present(title=event.get("title"), parent_call=event.get("parent_tool_call_id"))
        result = event.get("raw_output", event.get("content"))
        if event.get("is_error") is True or event.get("status") == "failed":
            call.fail(result if isinstance(result, str) else "failed")
        elif event.get("status") == "completed":
            call.answer(result)


HANDLERS: dict[str, Callable[[V1, Json, Span], None]] = {
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


def _thoughts(told: Json) -> list[Part]:
    reasoning = text(told.get("reasoning_content"))
    if reasoning is not None:
        return [ReasoningPart(reasoning)]
    blocks = said(sequence(told.get("thinking_blocks"))).parts or said([told.get("responses_reasoning_item")]).parts
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
    told = text(risk)
    return None if told == "UNKNOWN" else told
