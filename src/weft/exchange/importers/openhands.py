"""Conversations of OpenHands: its first event stream (V0) and that of its software agent SDK (V1).

Events of V0 are actions and observations; an observation names the action that caused it. Events of
V1 that are calls of one response share its id. Four containers, two forms of events, one mapping.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from msgspec import Struct

from weft.exchange.importers.foreign_values import (
    JsonObject,
    json_in_text,
    mapping,
    millis,
    present,
    seconds_millis,
    sequence,
    text,
    whole_number,
)
from weft.exchange.importers.native_turns import PendingCall, chat_tokens, content_of, content_text, summed_tokens
from weft.exchange.importers.openhands_turns import (
    CALLS,
    LINES,
    Conversation,
    EventTreatment,
    Span,
    StorageForm,
    TurnEvents,
    action_files,
    classify,
    container,
    event_time,
    is_part,
    is_v1,
    part_files_of,
    read_folder,
    read_lines,
    read_list,
    session_file_of,
    settled_files,
    summary_message,
    tool_files,
)
from weft.exchange.importers.port import (
    NativeCompaction,
    NativeMessage,
    NativeSession,
    NativeTurn,
    Place,
    Report,
    Source,
    Tokens,
    Transcript,
)
from weft.kernel.enums import MessageRole, MessageSource, ToolCallStatus
from weft.ledger.dialects import plain_result, uncached_input
from weft.ledger.model import ImagePart, Part, ReasoningPart, TextPart

# --- Events of V0: actions and observations; an observation names the action that caused it.

INNER = frozenset(
    {"thought", "translated_ipython_code", "confirmation_state", "security_risk", "hidden", "impl_source"}
)
"""Arguments that OpenHands adds to what was asked for."""
ENDINGS = frozenset({"finish", "reject"})
V0_REPEATED = frozenset(
    {"command", "path", "content", "new_content", "old_content", "diff", "screenshot", "set_of_marks"}
)
"""What an observation's extras repeat, or what is too large to be told twice."""


class V0:
    """Tells a turn_events what events say."""

    def __init__(self, turn_events: TurnEvents) -> None:
        self._turn_events = turn_events
        self._spent: JsonObject = {}
        self._answered: set[str] = set()

    def add_event(self, event: JsonObject, span: Span) -> None:
        action = text(event.get("action"))
        if action is not None:
            V0_HANDLERS.get(action, V0._add_call if action in CALLS else V0._ignore)(self, event, span)
        else:
            self._observe(event, text(event.get("observation")) or "", span)

    def _ignore(self, event: JsonObject, span: Span) -> None:
        """Said by the verbatim copy alone."""

    def _add_message(self, event: JsonObject, span: Span) -> None:
        args = mapping(event.get("args"))
        parts = _message_parts(args)
        time, literal = event_time(event)
        if event.get("source") == "agent":
            self._respond(event, span, parts, [])
            if args.get("wait_for_response") is True:
                self._turn_events.set_state("awaiting_user_input")
            return
        self._turn_events.add_prompt(
            span,
            NativeMessage(
                role=MessageRole.USER,
                parts=tuple(parts),
                native=span.id,
                at=time,
                literal_time=literal,
                source=MessageSource.HUMAN if event.get("source") == "user" else MessageSource.EVENT,
                metadata=present(files=args.get("file_urls")),
            ),
        )

    def _add_system_message(self, event: JsonObject, span: Span) -> None:
        args = mapping(event.get("args"))
        tools = (text(mapping(mapping(tool).get("function")).get("name")) for tool in sequence(args.get("tools")))
        self._turn_events.tools = tuple(name for name in tools if name is not None) or None
        time, literal = event_time(event)
        self._turn_events.add_message(
            span,
            NativeMessage(
                role=MessageRole.SYSTEM,
                parts=tuple(content_of(args.get("content")).parts),
                native=span.id,
                at=time,
                literal_time=literal,
                source=MessageSource.EVENT,
                metadata=present(agent=text(args.get("agent_class")), version=text(args.get("openhands_version"))),
            ),
        )
        self._turn_events.touch(span).tools = self._turn_events.tools

    def _touch_turn(self, event: JsonObject, span: Span) -> None:
        self._turn_events.touch(span)

    def _set_state(self, event: JsonObject, span: Span) -> None:
        self._turn_events.set_state(text(mapping(event.get("args")).get("agent_state")))

    def _condense(self, event: JsonObject, span: Span) -> None:
        args = mapping(event.get("args"))
        summary = text(args.get("summary"))
        forgotten_ids = [str(event_id) for event_id in sequence(args.get("forgotten_event_ids"))]
        first, last = (
            whole_number(args.get("forgotten_events_start_id")),
            whole_number(args.get("forgotten_events_end_id")),
        )
        if first is not None and last is not None and 0 <= last - first < 1_000_000:
            forgotten_ids += [str(number) for number in range(first, last + 1)]
        time, literal = event_time(event)
        compaction = NativeCompaction(summary=summary or "", metadata=present(offset=args.get("summary_offset")))
        self._turn_events.compact(
            span, compaction, forgotten_ids, summary_message(summary, at=time, literal_time=literal)
        )

    def _add_call(self, event: JsonObject, span: Span) -> None:
        """A tool call, or what a person did in the agent's terminal."""
        args, kind = mapping(event.get("args")), str(event.get("action"))
        if event.get("source") == "user":
            self._add_manual_action(event, span, args, kind)
            return
        metadata = mapping(event.get("tool_call_metadata"))
        id = text(metadata.get("tool_call_id")) or f"event-{span.id}"
        call = PendingCall(id, text(metadata.get("function_name")) or kind, _asked_arguments(metadata, args, id))
        call.files = action_files(kind, args)
        call.detail = present(confirmation=_unusual(args.get("confirmation_state")), risk=args.get("security_risk"))
        if kind in ENDINGS:
            call.status = ToolCallStatus.OK
        thought = text(args.get("thought")) or (text(args.get("final_thought")) if kind in ENDINGS else None)
        parts: list[Part] = [TextPart(thought)] if thought is not None and kind != "think" else []
        self._respond(event, span, parts, [call])
        if kind in ENDINGS:
            self._turn_events.set_state("finished")

    def _add_manual_action(self, event: JsonObject, span: Span, args: JsonObject, kind: str) -> None:
        time, literal = event_time(event)
        words = text(args.get("command")) or text(args.get("code")) or text(args.get("path")) or kind
        self._turn_events.add_message(
            span,
            NativeMessage(
                role=MessageRole.SYSTEM,
                parts=(TextPart(words),),
                native=span.id,
                at=time,
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
        time, literal = event_time(event)
        created_time = seconds_millis(response.get("created"))
        self._turn_events.respond(
            span,
            NativeMessage(
                role=MessageRole.ASSISTANT,
                parts=(*_thoughts(message), *(content_of(message.get("content")).parts or parts)),
                native=group or span.id,
                at=created_time if time is None else time,
                literal_time=literal if created_time is None else None,
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
            self._turn_events.set_state(name, reason or "error" if name == "error" else None)
        elif kind == "recall":
            self._turn_events.inject(span, present(content=text(event.get("content")), **extras) or {})
        elif kind in ("null", "condense", "llm_response"):
            return
        else:
            self._settle_call(event, kind, extras, span)

    def _settle_call(self, event: JsonObject, kind: str, extras: JsonObject, span: Span) -> None:
        metadata, cause = mapping(event.get("tool_call_metadata")), event.get("cause")
        call = self._turn_events.call(text(metadata.get("tool_call_id")), None if cause is None else str(cause))
        content = event.get("content")
        if call is None or not call.is_open:
            self._add_stray_outcome(event, kind, content, span)
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
            name: value
            for name, value in extras.items()
            if name not in V0_REPEATED and value not in (None, "", [], False)
        }
        outcome = mapping(extras.get("metadata"))
        call.detail = present(
            **mapping(call.detail),
            exit_code=outcome.get("exit_code", extras.get("exit_code")),
            **{name: value for name, value in beside.items() if name not in ("metadata", "exit_code")},
        )
        self._turn_events.workspace = self._turn_events.workspace or text(outcome.get("working_dir"))

    def _add_stray_outcome(self, event: JsonObject, kind: str, content: Any, span: Span) -> None:
        """An outcome of something that no call was made for."""
        time, literal = event_time(event)
        message_content = content_of(content)
        self._turn_events.add_message(
            span,
            NativeMessage(
                role=MessageRole.SYSTEM,
                parts=tuple(message_content.parts),
                native=span.id,
                at=time,
                literal_time=literal,
                source=MessageSource.EVENT,
                metadata=present(observation=kind, blocks=message_content.other_blocks),
            ),
        )


V0_HANDLERS: dict[str, Callable[[V0, JsonObject, Span], None]] = {
    "message": V0._add_message,
    "system": V0._add_system_message,
    "recall": V0._touch_turn,
    "change_agent_state": V0._set_state,
    "condensation": V0._condense,
}


def _message_parts(args: JsonObject) -> list[Part]:
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


def _asked_arguments(metadata: JsonObject, args: JsonObject, id: str) -> Any:
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
    total = {name: whole_number(now.get(name)) for name in names}
    old = {name: whole_number(before.get(name)) or 0 for name in names}
    if any(value is not None and value < old[name] for name, value in total.items()):
        old = dict.fromkeys(names, 0)
    grown = {name: None if value is None else value - old[name] for name, value in total.items()}
    if not any(grown.values()):
        return None
    cached, cache_written = grown["cache_read_tokens"], grown["cache_write_tokens"]
    return Tokens(
        input=uncached_input(grown["prompt_tokens"], cached, cache_written),
        output=grown["completion_tokens"],
        cached=cached,
        cache_write=cache_written,
        reasoning=grown["reasoning_tokens"],
    )


# --- Events of V1, the software agent SDK.

CONDENSER = "condenser"


class UnclaimedTokens(Struct):
    """Tokens that a running total grew by and that no response has taken yet."""

    model: str | None
    tokens: Tokens


class Stats:
    def __init__(self, state: Any) -> None:
        self._by_response: dict[str, tuple[str | None, Tokens]] = {}
        self._totals: dict[str, JsonObject] = {}
        self._pending: dict[str, UnclaimedTokens] = {}
        self._counted_responses: set[str] = set()
        self._model: str | None = None
        for metrics in map(mapping, mapping(mapping(state).get("usage_to_metrics")).values()):
            self._model = self._model or text(metrics.get("model_name"))
            for usage in map(mapping, sequence(metrics.get("token_usages"))):
                self._learn(usage, text(metrics.get("model_name")))

    def _learn(self, usage: JsonObject, model: str | None) -> None:
        id = text(usage.get("response_id"))
        prompt, cached = whole_number(usage.get("prompt_tokens")), whole_number(usage.get("cache_read_tokens"))
        cache_written = whole_number(usage.get("cache_write_tokens"))
        tokens = Tokens(
            input=uncached_input(prompt, cached, cache_written),
            output=whole_number(usage.get("completion_tokens")),
            cached=cached,
            cache_write=cache_written,
            reasoning=whole_number(usage.get("reasoning_tokens")),
        )
        if id is not None:
            self._by_response[id] = (text(usage.get("model")) or model, tokens)

    def update(self, value: Any) -> None:
        """New running totals, by what the model is used for."""
        # Counts by response are exact: running totals would count the same tokens a second time.
        if self._by_response:
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
                self._pending[purpose] = UnclaimedTokens(model, tokens)

    def spent(self, response: str | None) -> tuple[str | None, Tokens | None]:
        """By a response, which takes what the totals grew by since the last one."""
        return self._take_tokens(response, "agent")

    def condensed(self, response: str | None) -> tuple[str | None, Tokens | None]:
        return self._take_tokens(response, CONDENSER)

    def _take_tokens(self, response: str | None, purpose: str) -> tuple[str | None, Tokens | None]:
        if response is not None and response in self._by_response:
            model, tokens = self._by_response[response]
            is_first = response not in self._counted_responses
            self._counted_responses.add(response)
            return model, tokens if is_first else None
        pending = self._pending.pop(purpose, None)
        return (self._model, None) if pending is None else (pending.model, pending.tokens)

    def unclaimed(self) -> Tokens | None:
        """What no response has taken."""
        tokens = None
        for pending in self._pending.values():
            tokens = pending.tokens if tokens is None else summed_tokens(tokens, pending.tokens)
        return tokens


V1_REPEATED = frozenset(
    {"content", "output", "command", "path", "kind", "is_error", "old_content", "new_content", "metadata", "message"}
)
SOURCES = {"user": MessageSource.HUMAN, "agent": MessageSource.AGENT}


class V1:
    """Tells a turn_events what events say."""

    def __init__(self, turn_events: TurnEvents, stats: Stats) -> None:
        self._turn_events, self._stats = turn_events, stats

    def add_event(self, event: JsonObject, span: Span) -> None:
        handler = V1_HANDLERS.get(str(event.get("kind")))
        if handler is not None:
            handler(self, event, span)

    def _add_system_message(self, event: JsonObject, span: Span) -> None:
        tools = (mapping(tool) for tool in sequence(event.get("tools")))
        tool_names = (text(tool.get("name")) or text(mapping(tool.get("function")).get("name")) for tool in tools)
        self._turn_events.tools = tuple(name for name in tool_names if name is not None) or None
        time, literal = event_time(event)
        blocks = [event.get("system_prompt"), event.get("dynamic_context")]
        self._turn_events.add_message(
            span,
            NativeMessage(
                role=MessageRole.SYSTEM,
                parts=tuple(content_of([block for block in blocks if block is not None]).parts),
                native=span.id,
                at=time,
                literal_time=literal,
                source=MessageSource.EVENT,
            ),
        )
        self._turn_events.touch(span).tools = self._turn_events.tools

    def _add_message(self, event: JsonObject, span: Span) -> None:
        fields = mapping(event.get("llm_message"))
        content = content_of(_images(fields.get("content")))
        time, literal = event_time(event)
        if event.get("source") == "agent" and fields.get("role") != "user":
            self._respond(event, span, [*_thoughts_of_v1(fields), *content.parts], [])
            return
        sender = text(event.get("sender"))
        source = SOURCES.get(text(event.get("source")) or "", MessageSource.EVENT)
        self._turn_events.add_prompt(
            span,
            NativeMessage(
                role=MessageRole.USER,
                parts=tuple(content.parts),
                native=span.id,
                at=time,
                literal_time=literal,
                source=MessageSource.AGENT if sender is not None else source,
                context=present(
                    skills=event.get("activated_skills") or event.get("activated_microagents"),
                    added=content_text(event.get("extended_content")),
                ),
                metadata=present(sender=sender, blocks=content.other_blocks),
            ),
        )

    def _add_call(self, event: JsonObject, span: Span) -> None:
        call = mapping(event.get("tool_call"))
        fields = mapping(call.get("function")) or call
        name = text(event.get("tool_name")) or text(fields.get("name")) or ""
        arguments = json_in_text(fields.get("arguments"))
        if arguments is None:
            arguments = {key: value for key, value in mapping(event.get("action")).items() if key != "kind"}
        pending_call = PendingCall(text(event.get("tool_call_id")) or f"event-{span.id}", name, arguments)
        pending_call.files = tool_files(name, event.get("action") or arguments)
        pending_call.detail = present(
            summary=text(event.get("summary")), risk=_unusual_of_v1(event.get("security_risk"))
        )
        pending_call.at, _ = event_time(event)
        content = content_of(event.get("thought"))
        self._respond(event, span, [*_thoughts_of_v1(event), *content.parts], [pending_call])
        if mapping(event.get("action")).get("kind") == "FinishAction":
            self._turn_events.set_state("finished")

    def _respond(self, event: JsonObject, span: Span, parts: list[Part], calls: list[PendingCall]) -> None:
        group = text(event.get("llm_response_id"))
        time, literal = event_time(event)
        model, tokens = self._stats.spent(group)
        self._turn_events.respond(
            span,
            NativeMessage(
                role=MessageRole.ASSISTANT,
                parts=tuple(parts),
                native=group or span.id,
                at=time,
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
            self._add_stray_outcome(event, content, span)
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
        beside = {
            name: value for name, value in observed.items() if name not in V1_REPEATED and value not in (None, "")
        }
        code = observed.get("exit_code")
        beside["exit_code"] = outcome.get("exit_code") if code is None else code
        call.detail = present(**mapping(call.detail), **{k: v for k, v in beside.items() if v not in (False, [])})
        self._turn_events.workspace = self._turn_events.workspace or text(outcome.get("working_dir"))

    def _fail_call(self, event: JsonObject, span: Span) -> None:
        error = text(event.get("error")) or "error"
        call = self._turn_events.call(text(event.get("tool_call_id")))
        if call is not None and call.is_open:
            self._turn_events.touch(span)
            call.fail(error)
            call.done, _ = event_time(event)
            call.files = ()
        else:
            self._add_stray_outcome(event, error, span)

    def _cancel_call(self, event: JsonObject, span: Span) -> None:
        call = self._turn_events.call(text(event.get("tool_call_id")), text(event.get("action_id")))
        reason = text(event.get("rejection_reason")) or "rejected"
        if call is not None and call.is_open:
            self._turn_events.touch(span)
            call.fail(reason, ToolCallStatus.CANCELED)
            call.files = ()
        else:
            self._add_stray_outcome(event, reason, span)

    def _add_stray_outcome(self, event: JsonObject, content: Any, span: Span) -> None:
        time, literal = event_time(event)
        message_content = content_of(content)
        self._turn_events.add_message(
            span,
            NativeMessage(
                role=MessageRole.SYSTEM,
                parts=tuple(message_content.parts),
                native=span.id,
                at=time,
                literal_time=literal,
                source=MessageSource.EVENT,
                metadata=present(
                    event=event.get("kind"), tool=event.get("tool_name"), blocks=message_content.other_blocks
                ),
            ),
        )

    def _condense(self, event: JsonObject, span: Span) -> None:
        summary = text(event.get("summary"))
        forgotten_ids = [
            event_id for event_id in sequence(event.get("forgotten_event_ids")) if isinstance(event_id, str)
        ]
        time, literal = event_time(event)
        group = text(event.get("llm_response_id"))
        model, tokens = self._stats.condensed(group)
        compaction = NativeCompaction(
            summary=summary or "", model=model, metadata=present(offset=whole_number(event.get("summary_offset")))
        )
        message = summary_message(
            summary, at=time, literal_time=literal, model=model, tokens=tokens, native=group or span.id
        )
        self._turn_events.compact(span, compaction, forgotten_ids, message)

    def _take_state(self, event: JsonObject, span: Span) -> None:
        key, value = event.get("key"), event.get("value")
        if key == "stats":
            self._stats.update(value)
        elif key in ("execution_status", "agent_status"):
            self._turn_events.set_state(text(value))
        elif key == "full_state":
            self._stats.update(mapping(value).get("stats"))
            self._turn_events.set_state(text(mapping(value).get("execution_status")))

    def _note_failure(self, event: JsonObject, span: Span) -> None:
        code_and_detail = (text(event.get("code")), text(event.get("detail")))
        self._turn_events.fail(span, ": ".join(word for word in code_and_detail if word is not None) or "error")

    def _note_pause(self, event: JsonObject, span: Span) -> None:
        self._turn_events.interrupt()

    def _take_acp_call(self, event: JsonObject, span: Span) -> None:
        """A call that another agent made behind this one; told again whenever it gets on."""
        id = text(event.get("tool_call_id")) or f"event-{span.id}"
        call = self._turn_events.call(id)
        if call is None:
            call = PendingCall(
                id, text(event.get("tool_kind")) or text(event.get("title")) or "", event.get("raw_input")
            )
            time, literal = event_time(event)
            message = NativeMessage(role=MessageRole.ASSISTANT, parts=(), native=span.id, at=time, literal_time=literal)
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


V1_HANDLERS: dict[str, Callable[[V1, JsonObject, Span], None]] = {
    "SystemPromptEvent": V1._add_system_message,
    "MessageEvent": V1._add_message,
    "ActionEvent": V1._add_call,
    "ObservationEvent": V1._observe,
    "AgentErrorEvent": V1._fail_call,
    "UserRejectObservation": V1._cancel_call,
    "Condensation": V1._condense,
    "ConversationStateUpdateEvent": V1._take_state,
    "ConversationErrorEvent": V1._note_failure,
    "PauseEvent": V1._note_pause,
    "InterruptEvent": V1._note_pause,
    "ACPToolCallEvent": V1._take_acp_call,
}


def _thoughts_of_v1(fields: JsonObject) -> list[Part]:
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


def _unusual_of_v1(risk: Any) -> str | None:
    words = text(risk)
    return None if words == "UNKNOWN" else words


# --- OpenHands: four containers, two forms of events, one mapping.

READERS = {StorageForm.LIST: read_list, StorageForm.LINES: read_lines, StorageForm.FOLDER: read_folder}
SETTINGS = ("model", "temperature", "top_p", "reasoning_effort", "max_output_tokens", "usage_id")


class OpenHands:
    origin = "openhands"
    mapping = 1

    def places(self, home: Path, environment: Mapping[str, str]) -> list[Place]:
        folder = environment.get("OPENHANDS_CONVERSATIONS_DIR")
        store = environment.get("FILE_STORE_PATH")
        root = home / store[2:] if store and store.startswith("~/") else Path(store) if store else home / ".openhands"
        return [
            Place(Path(folder) if folder else home / ".openhands" / "conversations", "OpenHands"),
            Place(root / "sessions", "OpenHands before 1.0"),
            Place(root / "users", "OpenHands before 1.0"),
            Place(home / ".openhands-state" / "sessions", "OpenHands before 0.40"),
        ]

    def recognises(self, source: Source) -> bool:
        return container(source) is not None

    def is_part(self, source: Source) -> bool:
        return is_part(source)

    def session_file(self, source: Source) -> Path | None:
        return session_file_of(source.path)

    def part_files(self, path: Path) -> list[Path]:
        return part_files_of(path)

    def read(self, source: Source, report: Report) -> Iterator[Transcript]:
        kind = container(source)
        if kind is None:
            kind = StorageForm.LINES if source.path.suffix in LINES else StorageForm.LIST
        for conversation in READERS[kind](source, report):
            yield _transcript(conversation, source, report)


def _transcript(conversation: Conversation, source: Source, report: Report) -> Transcript:
    turns = _turns(conversation, source, report)
    workspace = text(mapping(conversation.state.get("workspace")).get("working_dir"))
    for turn in turns:
        turn.workspace = turn.workspace or workspace
        turn.config = turn.config or _config(conversation.state)
    return Transcript(session=_session(conversation, workspace), turns=turns, raw=conversation.raw)


def _turns(conversation: Conversation, source: Source, report: Report) -> list[NativeTurn]:
    newer = any(is_v1(event.value) for event in conversation.events) or bool(conversation.state)
    turn_events = TurnEvents("" if newer else f"{conversation.id}/")
    stats = Stats(conversation.state.get("stats"))
    forms: dict[bool, V0 | V1] = {True: V1(turn_events, stats), False: V0(turn_events)}
    for number, event in enumerate(conversation.events):
        kind, treatment = classify(event.value)
        (report.mapped if treatment is EventTreatment.MAPPED else report.kept)[kind] += 1
        if treatment is EventTreatment.UNKNOWN:
            report.unknown[kind] += 1
        elif treatment is EventTreatment.MAPPED:
            id = event.value.get("id")
            event_id = text(id) or (str(id) if isinstance(id, int) else f"#{number}")
            forms[is_v1(event.value)].add_event(event.value, Span(event_id, event.offset, event.end))
    if (unclaimed := stats.unclaimed()) is not None:
        turn_events.spend(unclaimed)
    turn_events.set_state(
        text(conversation.state.get("execution_status")) or text(conversation.state.get("agent_status"))
    )
    if (error := text(conversation.details.get("error"))) is not None and turn_events.drafts:
        turn_events.drafts[-1].error = turn_events.drafts[-1].error or error
    return turn_events.turns(source.size)


def _session(conversation: Conversation, workspace: str | None) -> NativeSession:
    details = conversation.details
    return NativeSession(
        id=conversation.id,
        title=text(details.get("title")) or text(details.get("instance_id")),
        workspace=workspace,
        git_branch=text(details.get("selected_branch")),
        created=millis(details.get("created_at")) if isinstance(details.get("created_at"), str) else None,
        metadata=present(
            repository=text(details.get("selected_repository")),
            trigger=text(details.get("trigger")),
            agent=text(mapping(conversation.state.get("agent")).get("kind")),
            model=text(details.get("llm_model")),
            cost=details.get("accumulated_cost"),
        ),
    )


def _config(state: dict[str, Any]) -> dict[str, Any] | None:
    """The model's settings, chosen by name: keys lie beside them."""
    model = mapping(mapping(state.get("agent")).get("llm"))
    fields = present(**{name: model.get(name) for name in SETTINGS})
    policy = text(mapping(state.get("confirmation_policy")).get("kind"))
    return present(model=fields, confirmation=policy, iterations=state.get("max_iterations"))
