"""Events of V0: actions and observations; an observation names the action that caused it.

A response of the model is told whole beside each action it led to (`tool_call_metadata`), with what it cost; where it
is not, the running totals (`llm_metrics`) are, and their differences count.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from weft.exchange.importers.chat import chat_tokens, content_of, content_text
from weft.exchange.importers.openhands.conversations import CALLS
from weft.exchange.importers.openhands.turns import (
    Span,
    TurnEvents,
    action_files,
    event_time,
    settled_files,
    summary_message,
)
from weft.exchange.importers.port import NativeCompaction, NativeMessage, Tokens
from weft.exchange.importers.records.builder import PendingCall
from weft.exchange.importers.records.values import (
    JsonObject,
    json_in_text,
    mapping,
    present,
    seconds_millis,
    sequence,
    text,
    whole,
)
from weft.kernel.enums import MessageRole, MessageSource, ToolCallStatus
from weft.ledger.dialects import uncached_input
from weft.ledger.model import ImagePart, Part, ReasoningPart, TextPart

INNER = frozenset(
    {"thought", "translated_ipython_code", "confirmation_state", "security_risk", "hidden", "impl_source"}
)
"""Arguments that OpenHands adds to what was asked for."""
ENDINGS = frozenset({"finish", "reject"})
REPEATED = frozenset({"command", "path", "content", "new_content", "old_content", "diff", "screenshot", "set_of_marks"})
"""What an observation's extras repeat, or what is too large to be told twice."""


class V0:
    """Tells a turn_events what events say."""

    def __init__(self, turn_events: TurnEvents) -> None:
        self._turn_events = turn_events
        self._spent: JsonObject = {}
        self._answered: set[str] = set()

    def take(self, event: JsonObject, span: Span) -> None:
        action = text(event.get("action"))
        if action is not None:
            HANDLERS.get(action, V0._action if action in CALLS else V0._nothing)(self, event, span)
        else:
            self._observe(event, text(event.get("observation")) or "", span)

    def _nothing(self, event: JsonObject, span: Span) -> None:
        """Said by the verbatim copy alone."""

    def _message(self, event: JsonObject, span: Span) -> None:
        args = mapping(event.get("args"))
        parts = _parts(args)
        at, literal = event_time(event)
        if event.get("source") == "agent":
            self._respond(event, span, parts, [])
            if args.get("wait_for_response") is True:
                self._turn_events.state("awaiting_user_input")
            return
        self._turn_events.prompt(
            span,
            NativeMessage(
                role=MessageRole.USER,
                parts=tuple(parts),
                native=span.id,
                at=at,
                literal_time=literal,
                source=MessageSource.HUMAN if event.get("source") == "user" else MessageSource.EVENT,
                metadata=present(files=args.get("file_urls")),
            ),
        )

    def _system(self, event: JsonObject, span: Span) -> None:
        args = mapping(event.get("args"))
        tools = (text(mapping(mapping(tool).get("function")).get("name")) for tool in sequence(args.get("tools")))
        self._turn_events.tools = tuple(name for name in tools if name is not None) or None
        at, literal = event_time(event)
        self._turn_events.say(
            span,
            NativeMessage(
                role=MessageRole.SYSTEM,
                parts=tuple(content_of(args.get("content")).parts),
                native=span.id,
                at=at,
                literal_time=literal,
                source=MessageSource.EVENT,
                metadata=present(agent=text(args.get("agent_class")), version=text(args.get("openhands_version"))),
            ),
        )
        self._turn_events.touch(span).tools = self._turn_events.tools

    def _recall(self, event: JsonObject, span: Span) -> None:
        self._turn_events.touch(span)

    def _state(self, event: JsonObject, span: Span) -> None:
        self._turn_events.state(text(mapping(event.get("args")).get("agent_state")))

    def _condense(self, event: JsonObject, span: Span) -> None:
        args = mapping(event.get("args"))
        summary = text(args.get("summary"))
        gone = [str(event_id) for event_id in sequence(args.get("forgotten_event_ids"))]
        first, last = whole(args.get("forgotten_events_start_id")), whole(args.get("forgotten_events_end_id"))
        if first is not None and last is not None and 0 <= last - first < 1_000_000:
            gone += [str(number) for number in range(first, last + 1)]
        at, literal = event_time(event)
        compaction = NativeCompaction(summary=summary or "", metadata=present(offset=args.get("summary_offset")))
        self._turn_events.compact(span, compaction, gone, summary_message(summary, at=at, literal_time=literal))

    def _action(self, event: JsonObject, span: Span) -> None:
        """A tool call, or what a person did in the agent's terminal."""
        args, kind = mapping(event.get("args")), str(event.get("action"))
        if event.get("source") == "user":
            self._by_hand(event, span, args, kind)
            return
        metadata = mapping(event.get("tool_call_metadata"))
        id = text(metadata.get("tool_call_id")) or f"event-{span.id}"
        asked = PendingCall(id, text(metadata.get("function_name")) or kind, _asked_for(metadata, args, id))
        asked.files = action_files(kind, args)
        asked.detail = present(confirmation=_unusual(args.get("confirmation_state")), risk=args.get("security_risk"))
        if kind in ENDINGS:
            asked.status = ToolCallStatus.OK
        thought = text(args.get("thought")) or (text(args.get("final_thought")) if kind in ENDINGS else None)
        parts: list[Part] = [TextPart(thought)] if thought is not None and kind != "think" else []
        self._respond(event, span, parts, [asked])
        if kind in ENDINGS:
            self._turn_events.state("finished")

    def _by_hand(self, event: JsonObject, span: Span, args: JsonObject, kind: str) -> None:
        at, literal = event_time(event)
        words = text(args.get("command")) or text(args.get("code")) or text(args.get("path")) or kind
        self._turn_events.say(
            span,
            NativeMessage(
                role=MessageRole.SYSTEM,
                parts=(TextPart(words),),
                native=span.id,
                at=at,
                literal_time=literal,
                source=MessageSource.HUMAN,
                metadata={"action": kind},
            ),
        )

    def _respond(self, event: JsonObject, span: Span, parts: list[Part], calls: list[PendingCall]) -> None:
        response = mapping(mapping(event.get("tool_call_metadata")).get("model_response"))
        group = text(response.get("id"))
        choice = mapping(next(iter(sequence(response.get("choices"))), None))
        message = mapping(choice.get("message"))
        at, literal = event_time(event)
        made = seconds_millis(response.get("created"))
        self._turn_events.respond(
            span,
            NativeMessage(
                role=MessageRole.ASSISTANT,
                parts=(*_thoughts(message), *(content_of(message.get("content")).parts or parts)),
                native=group or span.id,
                at=made if at is None else at,
                literal_time=literal if made is None else None,
                model=text(response.get("model")),
                tokens=self._tokens(event, response, group),
                finish_reason=text(choice.get("finish_reason")),
            ),
            calls,
            group,
        )

    def _tokens(self, event: JsonObject, response: JsonObject, group: str | None) -> Tokens | None:
        """Of a response that was not counted yet."""
        totals = mapping(mapping(event.get("llm_metrics")).get("accumulated_token_usage"))
        before, self._spent = self._spent, totals or self._spent
        if group is not None and group in self._answered:
            return None
        self._answered |= {group} if group is not None else set()
        tokens = chat_tokens(response.get("usage"))
        return tokens if tokens is not None else difference(totals, before)

    def _observe(self, event: JsonObject, kind: str, span: Span) -> None:
        extras = mapping(event.get("extras"))
        if kind == "agent_state_changed":
            name, reason = text(extras.get("agent_state")), text(extras.get("reason"))
            self._turn_events.state(name, reason or "error" if name == "error" else None)
        elif kind == "recall":
            self._turn_events.inject(span, present(content=text(event.get("content")), **extras) or {})
        elif kind in ("null", "condense", "llm_response"):
            return
        else:
            self._outcome(event, kind, extras, span)

    def _outcome(self, event: JsonObject, kind: str, extras: JsonObject, span: Span) -> None:
        metadata, cause = mapping(event.get("tool_call_metadata")), event.get("cause")
        call = self._turn_events.call(text(metadata.get("tool_call_id")), None if cause is None else str(cause))
        content = event.get("content")
        if call is None or not call.is_open:
            self._stray(event, kind, content, span)
            return
        self._turn_events.touch(span)
        failed = kind in ("error", "user_rejected") or extras.get("error") is True
        if kind == "user_rejected":
            call.fail(content_text(content) or kind, ToolCallStatus.CANCELED)
        elif failed:
            call.fail(content_text(content) or kind)
        else:
            call.answer(content)
        call.done, _ = event_time(event)
        call.files = settled_files(call.files, content, failed)
        beside = {
            name: value for name, value in extras.items() if name not in REPEATED and value not in (None, "", [], False)
        }
        outcome = mapping(extras.get("metadata"))
        call.detail = present(
            **mapping(call.detail),
            exit_code=outcome.get("exit_code", extras.get("exit_code")),
            **{name: value for name, value in beside.items() if name not in ("metadata", "exit_code")},
        )
        self._turn_events.workspace = self._turn_events.workspace or text(outcome.get("working_dir"))

    def _stray(self, event: JsonObject, kind: str, content: Any, span: Span) -> None:
        """An outcome of something that no call was made for."""
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
                metadata=present(observation=kind, blocks=found.other_blocks),
            ),
        )


HANDLERS: dict[str, Callable[[V0, JsonObject, Span], None]] = {
    "message": V0._message,
    "system": V0._system,
    "recall": V0._recall,
    "change_agent_state": V0._state,
    "condensation": V0._condense,
}


def _parts(args: JsonObject) -> list[Part]:
    parts = content_of(args.get("content")).parts
    urls = sequence(args.get("image_urls")) or sequence(args.get("images_urls"))
    return [*parts, *(ImagePart(url) for url in urls if isinstance(url, str) and url)]


def _thoughts(message: JsonObject) -> list[Part]:
    reasoning = text(message.get("reasoning_content"))
    if reasoning is not None:
        return [ReasoningPart(reasoning)]
    return [
        part for part in content_of(sequence(message.get("thinking_blocks"))).parts if isinstance(part, ReasoningPart)
    ]


def _asked_for(metadata: JsonObject, args: JsonObject, id: str) -> Any:
    """The arguments as the model gave them; else as OpenHands understood them."""
    choice = mapping(next(iter(sequence(mapping(metadata.get("model_response")).get("choices"))), None))
    for call in map(mapping, sequence(mapping(choice.get("message")).get("tool_calls"))):
        if call.get("id") == id:
            return json_in_text(mapping(call.get("function")).get("arguments"))
    return {name: value for name, value in args.items() if name not in INNER}


def _unusual(state: Any) -> str | None:
    words = text(state)
    return None if words == "confirmed" else words


def difference(now: JsonObject, before: JsonObject) -> Tokens | None:
    """Between two running totals; a total that shrank has begun again."""
    if not now:
        return None
    names = ("prompt_tokens", "completion_tokens", "cache_read_tokens", "cache_write_tokens", "reasoning_tokens")
    total = {name: whole(now.get(name)) for name in names}
    old = {name: whole(before.get(name)) or 0 for name in names}
    if any(value is not None and value < old[name] for name, value in total.items()):
        old = dict.fromkeys(names, 0)
    grown = {name: None if value is None else value - old[name] for name, value in total.items()}
    if not any(grown.values()):
        return None
    cached, written = grown["cache_read_tokens"], grown["cache_write_tokens"]
    return Tokens(
        input=uncached_input(grown["prompt_tokens"], cached, written),
        output=grown["completion_tokens"],
        cached=cached,
        cache_write=written,
        reasoning=grown["reasoning_tokens"],
    )
