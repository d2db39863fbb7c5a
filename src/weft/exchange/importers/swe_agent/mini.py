"""mini-swe-agent's `.traj.json`: the messages of a run as they went to the model, with every response in full.

Version 1 asks for commands in fenced text and answers as the user; version 2 has tool calls, or items of OpenAI's
responses, and tells commands and outcomes in `extra`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from msgspec import Struct

from weft.exchange.importers.chat import chat_tokens, content_of
from weft.exchange.importers.port import Item, NativeMessage, NativeTurn, Report
from weft.exchange.importers.records.builder import PendingCall, identity
from weft.exchange.importers.records.values import JsonObject, json_in_text, mapping, millis, present, sequence, text
from weft.exchange.importers.swe_agent.runs import (
    RunItems,
    account,
    account_sections,
    answer,
    objects,
    patched,
    with_files,
)
from weft.kernel.enums import MessageRole, MessageSource
from weft.ledger.dialects import plain_result
from weft.ledger.model import Part, ReasoningPart

NEW_TASK = "The user added a new task: "
FENCE = re.compile(r"```(?:bash|mswea_bash_command)(\s*+)")
END = "\n```"
RETURNED = re.compile(r"<returncode>(-?\d{1,9})</returncode>")
ROLES = frozenset({"system", "developer", "user", "assistant", "tool", "exit"})
INTERRUPTED = frozenset({"UserInterruption", "KeyboardInterrupt"})
SETTINGS = ("model_name", "model_class", "model_kwargs", "temperature", "top_p")
SECRET = re.compile(r"key|token|secret|password|credential|header", re.IGNORECASE)


class MiniRun(Struct, frozen=True):
    """A run's messages and what is told of it."""

    messages: list[JsonObject]
    info: JsonObject

    @property
    def id(self) -> str | None:
        """The id of its first response: no other run has it."""
        words = (text(_response(message).get("id")) for message in self.messages)
        return next((id for id in words if id is not None), None)

    @property
    def beginning(self) -> list[Any]:
        """What was said up to the first response."""
        return [[_role(message), message.get("content"), message.get("output")] for message in self.messages[:3]]


def mini_run(document: JsonObject, report: Report) -> MiniRun:
    account_sections(report, document)
    messages = objects(sequence(document.get("messages")), "message", report)
    return MiniRun(messages, mapping(document.get("info")))


def read_mini(run: MiniRun, key: str, size: int, report: Report) -> Iterator[NativeTurn]:
    """A turn for the task, and one for each that a person added when the run would have ended."""
    begins = [number for number, each in enumerate(run.messages) if _is_task(each) and number > 0]
    ends = [*begins, len(run.messages)]
    given = 0
    for begin, end in zip([0, *begins], ends, strict=True):
        made = _Run(run, report)
        for message in run.messages[begin:end]:
            made.take(message)
        is_last = end == len(run.messages)
        items = made.run_items.finished()
        items = with_files(items, patched(run.info.get("submission"))) if is_last else items
        if items:
            turn_key = key if given == 0 else f"{key}#{given}"
            yield _turn(run, made, items, turn_key, size, is_last=is_last, parent=given - 1 if given else None)
            given += 1


def _is_task(message: JsonObject) -> bool:
    return mapping(message.get("extra")).get("interrupt_type") == "UserNewTask" or (
        message.get("role") == "user"
        and isinstance(content := message.get("content"), str)
        and content.startswith(NEW_TASK)
    )


def _turn(
    run: MiniRun, made: _Run, items: list[Item], key: str, size: int, *, is_last: bool, parent: int | None
) -> NativeTurn:
    status = text(run.info.get("exit_status")) if is_last else "Submitted"
    is_stopped = status in INTERRUPTED
    config = mapping(run.info.get("config"))
    fields = run.info if is_last else {}
    return NativeTurn(
        key=key,
        records=identity(items),
        names=tuple(item.native for item in items if isinstance(item, NativeMessage) and item.native),
        items=tuple(items),
        parent=parent,
        closed=status is not None,
        error=None if status in (None, "Submitted") or is_stopped else status,
        interrupted=is_stopped,
        started=made.times[0] if made.times else None,
        ended=made.times[-1] if made.times else None,
        workspace=text(mapping(config.get("environment")).get("cwd")),
        version=text(run.info.get("mini_version")),
        config=_settings(config),
        metadata=present(**{name: fields.get(name) for name in ("exit_status", "model_stats", "submission")}),
        end=size,
    )


def _settings(config: JsonObject) -> dict[str, Any] | None:
    """The model's and the limits, without what may be a key."""
    model, agent = mapping(config.get("model")), mapping(config.get("agent"))
    model_settings = {name: model.get(name) for name in SETTINGS if name != "model_kwargs"}
    further = {name: value for name, value in mapping(model.get("model_kwargs")).items() if not SECRET.search(name)}
    limits = {name: agent.get(name) for name in ("step_limit", "cost_limit", "mode")}
    return present(model=present(**model_settings, model_kwargs=further), **limits)


def _response(message: JsonObject) -> JsonObject:
    """What the provider sent, in full."""
    if message.get("object") == "response":
        return message
    return mapping(mapping(message.get("extra")).get("response"))


class _Run:
    def __init__(self, run: MiniRun, report: Report) -> None:
        self._run, self._report = run, report
        self.run_items = RunItems()
        self.times: list[int] = []
        self._number = 0
        self._has_answered = False
        model = mapping(mapping(run.info.get("config")).get("model"))
        self._model = text(model.get("model_name"))

    def take(self, message: JsonObject) -> None:
        kind = "output" if message.get("type") == "function_call_output" else _role(message)
        is_known = kind in ROLES or kind == "output"
        account(self._report, f"message.{kind}", is_mapped=is_known, is_unknown=not is_known)
        when = _time(message)
        self.times += [] if when is None else [when]
        if kind == "assistant":
            self._respond(message, when)
        elif is_known:
            self._other(message, kind, when)

    def _other(self, message: JsonObject, kind: str, when: int | None) -> None:
        extra = mapping(message.get("extra"))
        content = message.get("output") if kind == "output" else message.get("content")
        id = text(message.get("tool_call_id")) or text(message.get("call_id"))
        is_answer = kind in ("user", "tool", "output") and extra.get("interrupt_type") is None
        call = self.run_items.waiting([id] if id is not None else ()) if is_answer else None
        if call is not None:
            _answer(call, content, extra, when)
            return
        found = content_of(content)
        if kind == "exit" and not found.parts:
            return
        is_prompt = kind == "user"
        self.run_items.items.append(
            NativeMessage(
                role=MessageRole.USER if is_prompt else MessageRole.SYSTEM,
                parts=tuple(found.parts),
                at=when,
                source=self._source(message, is_prompt),
                metadata=present(
                    role=kind if kind not in ("user", "system") else None,
                    interrupt=extra.get("interrupt_type"),
                    exit_status=extra.get("exit_status"),
                    blocks=found.other_blocks,
                ),
            )
        )

    def _source(self, message: JsonObject, is_prompt: bool) -> MessageSource | None:
        """A task may come from anybody; what is added to it while it runs comes from a person."""
        kind = text(mapping(message.get("extra")).get("interrupt_type")) or ""
        if kind.startswith("User") or (is_prompt and _is_task(message)):
            return MessageSource.HUMAN
        return None if is_prompt and not self._has_answered else MessageSource.EVENT

    def _respond(self, message: JsonObject, when: int | None) -> None:
        self._has_answered = True
        response, extra = _response(message), mapping(message.get("extra"))
        parts, calls = _parts_and_calls(message)
        choice = mapping(next(iter(sequence(response.get("choices"))), None))
        asked = calls or self._actions(message, extra)
        for call in asked:
            call.at = when
        self.run_items.say(
            NativeMessage(
                role=MessageRole.ASSISTANT,
                parts=(*_reasoning(message, mapping(choice.get("message")), parts), *parts),
                native=text(response.get("id")),
                at=when,
                model=text(response.get("model")) or self._model,
                provider=text(response.get("provider")),
                tokens=chat_tokens(response.get("usage")),
                finish_reason=text(choice.get("finish_reason")) or text(response.get("status")),
                metadata=present(cost=extra.get("cost") or mapping(response.get("usage")).get("cost")),
            ),
            asked,
        )

    def _actions(self, message: JsonObject, extra: JsonObject) -> list[PendingCall]:
        """Commands in the text: as the tool itself read them, or as it would have."""
        words = [text(mapping(action).get("command")) for action in sequence(extra.get("actions"))]
        commands = [command for command in words if command is not None]
        if not commands and "actions" not in extra:
            content = message.get("content")
            commands = [command.strip() for command in _fenced(content if isinstance(content, str) else "")]
            commands = commands if len(commands) == 1 else []  # anything else was refused, and asked for again
        found = []
        for command in commands:
            self._number += 1
            found.append(PendingCall(f"command-{self._number}", "bash", {"command": command}))
        return found


def _role(message: JsonObject) -> str:
    return "assistant" if message.get("object") == "response" else text(message.get("role")) or "none"


def _time(message: JsonObject) -> int | None:
    """When a message was written; else when its response was made."""
    seconds = mapping(message.get("extra")).get("timestamp")
    if seconds is None:
        response = _response(message)
        seconds = response.get("created") or response.get("created_at")
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not abs(seconds) < 1e12:
        return None
    return millis(seconds * 1000)


def _parts_and_calls(message: JsonObject) -> tuple[list[Part], list[PendingCall]]:
    """Text and calls of a chat message, or of the items of a response."""
    if message.get("object") != "response":
        fields = [mapping(tool_call) for tool_call in sequence(message.get("tool_calls"))]
        calls = [_call(text(tool_call.get("id")), mapping(tool_call.get("function"))) for tool_call in fields]
        return content_of(message.get("content")).parts, calls
    parts: list[Part] = []
    calls = []
    for item in map(mapping, sequence(message.get("output"))):
        if item.get("type") == "function_call":
            calls.append(_call(text(item.get("call_id")) or text(item.get("id")), item))
        elif item.get("type") == "reasoning":
            parts += content_of([item]).parts
        else:
            parts += content_of(item.get("content")).parts
    return parts, calls


def _call(id: str | None, function: JsonObject) -> PendingCall:
    return PendingCall(id or "", text(function.get("name")) or "", json_in_text(function.get("arguments")))


def _reasoning(message: JsonObject, choice: JsonObject, parts: list[Part]) -> list[Part]:
    """What a provider gives beside the text."""
    if any(isinstance(part, ReasoningPart) for part in parts):
        return []
    for fields in (message, choice):
        for name in ("reasoning_content", "reasoning"):
            if (thought := text(fields.get(name))) is not None:
                return [ReasoningPart(thought)]
        if thoughts := content_of(sequence(fields.get("thinking_blocks"))).parts:
            return thoughts
    return []


def _answer(call: PendingCall, content: Any, extra: JsonObject, when: int | None) -> None:
    answer(call, plain_result(content))
    call.done = when
    code = RETURNED.search(content[:2000]) if isinstance(content, str) else None
    call.detail = present(
        returncode=int(code[1]) if code else extra.get("returncode"), exception=extra.get("exception_info")
    )


def _fenced(text: str) -> Iterator[str]:
    """The blocks of commands in a text. White space before a command belongs to its fence."""
    at = 0
    while (fence := FENCE.search(text, at)) is not None:
        lines = fence[1].split("\n")
        at = fence.end()
        if len(lines) == 1:  # something else stands on the fence's own line
            continue
        start = fence.end() - len(lines[-1])
        end = text.find(END, start)
        if end < 0 and len(lines) > 2:  # nothing but white space is in it
            start -= len(lines[-2]) + 1
            end = text.find(END, start)
        if end < 0:
            return  # nor does any block behind it end
        yield text[start:end]
        at = end + len(END)
