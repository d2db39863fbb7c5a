"""Events of V0: actions and observations; an observation names the action that caused it.

A response of the model is told whole beside each action it led to (`tool_call_metadata`), with what it cost; where it
is not, the running totals (`llm_metrics`) are, and their differences count.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from weft.exchange.importers.asked import Asked
from weft.exchange.importers.chat import apart, arguments, chat_tokens, said, words
from weft.exchange.importers.openhands.files import acted, settled
from weft.exchange.importers.openhands.kinds import CALLS
from weft.exchange.importers.openhands.making import Making, Span, summary_message
from weft.exchange.importers.openhands.times import moment, seconds
from weft.exchange.importers.transcript import NativeCompaction, NativeMessage, Tokens
from weft.exchange.importers.values import mapping, present, sequence, text, whole
from weft.kernel.enums import MessageRole, MessageSource, ToolCallStatus
from weft.ledger.model import ImagePart, Part, ReasoningPart, TextPart

Json = dict[str, Any]
INNER = frozenset(
    {"thought", "translated_ipython_code", "confirmation_state", "security_risk", "hidden", "impl_source"}
)
"""Arguments that OpenHands adds to what was asked for."""
ENDINGS = frozenset({"finish", "reject"})
REPEATED = frozenset({"command", "path", "content", "new_content", "old_content", "diff", "screenshot", "set_of_marks"})
"""What an observation's extras repeat, or what is too large to be told twice."""


class V0:
    """Tells a making what events say."""

    def __init__(self, making: Making) -> None:
        self._making = making
        self._spent: Json = {}
        self._answered: set[str] = set()

    def take(self, event: Json, span: Span) -> None:
        action = text(event.get("action"))
        if action is not None:
            HANDLERS.get(action, V0._action if action in CALLS else V0._nothing)(self, event, span)
        else:
            self._observe(event, text(event.get("observation")) or "", span)

    def _nothing(self, event: Json, span: Span) -> None:
        """Said by the verbatim copy alone."""

    def _message(self, event: Json, span: Span) -> None:
        args = mapping(event.get("args"))
        parts = _parts(args)
        at, literal = moment(event)
        if event.get("source") == "agent":
            self._respond(event, span, parts, [])
            if args.get("wait_for_response") is True:
                self._making.state("awaiting_user_input")
            return
        self._making.prompt(
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

    def _system(self, event: Json, span: Span) -> None:
        args = mapping(event.get("args"))
        tools = (text(mapping(mapping(each).get("function")).get("name")) for each in sequence(args.get("tools")))
        self._making.tools = tuple(name for name in tools if name is not None) or None
        at, literal = moment(event)
        self._making.say(
            span,
            NativeMessage(
                role=MessageRole.SYSTEM,
                parts=tuple(said(args.get("content")).parts),
                native=span.id,
                at=at,
                literal_time=literal,
                source=MessageSource.EVENT,
                metadata=present(agent=text(args.get("agent_class")), version=text(args.get("openhands_version"))),
            ),
        )
        self._making.touch(span).tools = self._making.tools

    def _recall(self, event: Json, span: Span) -> None:
        self._making.touch(span)

    def _state(self, event: Json, span: Span) -> None:
        self._making.state(text(mapping(event.get("args")).get("agent_state")))

    def _condense(self, event: Json, span: Span) -> None:
        args = mapping(event.get("args"))
        summary = text(args.get("summary"))
        gone = [str(each) for each in sequence(args.get("forgotten_event_ids"))]
        first, last = whole(args.get("forgotten_events_start_id")), whole(args.get("forgotten_events_end_id"))
        if first is not None and last is not None and 0 <= last - first < 1_000_000:
            gone += [str(number) for number in range(first, last + 1)]
        at, literal = moment(event)
        told = NativeCompaction(summary=summary or "", metadata=present(offset=args.get("summary_offset")))
        self._making.compact(span, told, gone, summary_message(summary, at=at, literal_time=literal))

    def _action(self, event: Json, span: Span) -> None:
        """A tool call, or what a person did in the agent's terminal."""
        args, kind = mapping(event.get("args")), str(event.get("action"))
        if event.get("source") == "user":
            self._by_hand(event, span, args, kind)
            return
        metadata = mapping(event.get("tool_call_metadata"))
        id = text(metadata.get("tool_call_id")) or f"event-{span.id}"
        asked = Asked(id, text(metadata.get("function_name")) or kind, _asked_for(metadata, args, id))
        asked.files = acted(kind, args)
        asked.detail = present(confirmation=_unusual(args.get("confirmation_state")), risk=args.get("security_risk"))
        if kind in ENDINGS:
            asked.status = ToolCallStatus.OK
        thought = text(args.get("thought")) or (text(args.get("final_thought")) if kind in ENDINGS else None)
        parts: list[Part] = [TextPart(thought)] if thought is not None and kind != "think" else []
        self._respond(event, span, parts, [asked])
        if kind in ENDINGS:
            self._making.state("finished")

    def _by_hand(self, event: Json, span: Span, args: Json, kind: str) -> None:
        at, literal = moment(event)
        told = text(args.get("command")) or text(args.get("code")) or text(args.get("path")) or kind
        self._making.say(
            span,
            NativeMessage(
                role=MessageRole.SYSTEM,
                parts=(TextPart(told),),
                native=span.id,
                at=at,
                literal_time=literal,
                source=MessageSource.HUMAN,
                metadata={"action": kind},
            ),
        )

    def _respond(self, event: Json, span: Span, parts: list[Part], calls: list[Asked]) -> None:
        response = mapping(mapping(event.get("tool_call_metadata")).get("model_response"))
        group = text(response.get("id"))
        choice = mapping(next(iter(sequence(response.get("choices"))), None))
        message = mapping(choice.get("message"))
        at, literal = moment(event)
        made = seconds(response.get("created"))
        self._making.respond(
            span,
            NativeMessage(
                role=MessageRole.ASSISTANT,
                parts=(*_thoughts(message), *(said(message.get("content")).parts or parts)),
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

    def _tokens(self, event: Json, response: Json, group: str | None) -> Tokens | None:
        """Of a response that was not counted yet."""
        totals = mapping(mapping(event.get("llm_metrics")).get("accumulated_token_usage"))
        before, self._spent = self._spent, totals or self._spent
        if group is not None and group in self._answered:
            return None
        self._answered |= {group} if group is not None else set()
        told = chat_tokens(response.get("usage"))
        return told if told is not None else difference(totals, before)

    def _observe(self, event: Json, kind: str, span: Span) -> None:
        extras = mapping(event.get("extras"))
        if kind == "agent_state_changed":
            name, reason = text(extras.get("agent_state")), text(extras.get("reason"))
            self._making.state(name, reason or "error" if name == "error" else None)
        elif kind == "recall":
            self._making.inject(span, present(content=text(event.get("content")), **extras) or {})
        elif kind in ("null", "condense", "llm_response"):
            return
        else:
            self._outcome(event, kind, extras, span)

    def _outcome(self, event: Json, kind: str, extras: Json, span: Span) -> None:
        metadata, cause = mapping(event.get("tool_call_metadata")), event.get("cause")
        call = self._making.call(text(metadata.get("tool_call_id")), None if cause is None else str(cause))
        content = event.get("content")
        if call is None or not call.is_open:
            self._stray(event, kind, content, span)
            return
        self._making.touch(span)
        failed = kind in ("error", "user_rejected") or extras.get("error") is True
        if kind == "user_rejected":
            call.fail(words(content) or kind, ToolCallStatus.CANCELED)
        elif failed:
            call.fail(words(content) or kind)
        else:
            call.answer(content)
        call.done, _ = moment(event)
        call.files = settled(call.files, content, failed)
        beside = {
            name: value for name, value in extras.items() if name not in REPEATED and value not in (None, "", [], False)
        }
        outcome = mapping(extras.get("metadata"))
        call.detail = present(
            **mapping(call.detail),
            exit_code=outcome.get("exit_code", extras.get("exit_code")),
            **{name: value for name, value in beside.items() if name not in ("metadata", "exit_code")},
        )
        self._making.workspace = self._making.workspace or text(outcome.get("working_dir"))

    def _stray(self, event: Json, kind: str, content: Any, span: Span) -> None:
        """An outcome of something that no call was made for."""
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
                metadata=present(observation=kind, blocks=found.elsewhere),
            ),
        )


HANDLERS: dict[str, Callable[[V0, Json, Span], None]] = {
    "message": V0._message,
    "system": V0._system,
    "recall": V0._recall,
    "change_agent_state": V0._state,
    "condensation": V0._condense,
}


def _parts(args: Json) -> list[Part]:
    parts = said(args.get("content")).parts
    urls = sequence(args.get("image_urls")) or sequence(args.get("images_urls"))
    return [*parts, *(ImagePart(url) for url in urls if isinstance(url, str) and url)]


def _thoughts(message: Json) -> list[Part]:
    reasoning = text(message.get("reasoning_content"))
    if reasoning is not None:
        return [ReasoningPart(reasoning)]
    return [part for part in said(sequence(message.get("thinking_blocks"))).parts if isinstance(part, ReasoningPart)]


def _asked_for(metadata: Json, args: Json, id: str) -> Any:
    """The arguments as the model gave them; else as OpenHands understood them."""
    choice = mapping(next(iter(sequence(mapping(metadata.get("model_response")).get("choices"))), None))
    for call in map(mapping, sequence(mapping(choice.get("message")).get("tool_calls"))):
        if call.get("id") == id:
            return arguments(mapping(call.get("function")).get("arguments"))
    return {name: value for name, value in args.items() if name not in INNER}


def _unusual(state: Any) -> str | None:
    told = text(state)
    return None if told == "confirmed" else told


def difference(now: Json, before: Json) -> Tokens | None:
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
        input=apart(grown["prompt_tokens"], cached, written),
        output=grown["completion_tokens"],
        cached=cached,
        cache_write=written,
        reasoning=grown["reasoning_tokens"],
    )
