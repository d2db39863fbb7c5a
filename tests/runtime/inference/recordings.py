"""Exchanges that were recorded with real providers: their answers, whole, and what is to be recorded of each.

What is to be recorded is read here from the answer itself, by other code than Weft's.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from msgspec import Struct

from weft.runtime.inference.model_requests import Dialect, Thinking

RECORDINGS = Path(__file__).parents[2] / "data" / "wire"
DIALECT_OF_PATH = {
    "/chat/completions": Dialect.OPENAI_CHAT,
    "/responses": Dialect.OPENAI_RESPONSES,
    "/v1/messages": Dialect.ANTHROPIC,
    ":generateContent": Dialect.GOOGLE,
    ":streamGenerateContent": Dialect.GOOGLE,
}


class RecordedFacts(Struct, frozen=True):
    """What is to be recorded of one answer. `sealed` holds what the provider wants back, in its order."""

    text: str
    thinking: str
    sealed: tuple[str, ...]
    calls: tuple[tuple[str, Any], ...]
    call_ids: tuple[str, ...]
    usage: tuple[int, int, int, int, int]
    """Fresh input, output, read from a cache, written to one, reasoning."""
    finish: str


class RecordedAnswer(Struct, frozen=True):
    """One answer of a recorded exchange."""

    dialect: Dialect
    model: str
    thinking: Thinking | None
    status: int
    whole: Any
    is_streamed: bool


def recording_names() -> list[str]:
    return sorted(str(path.relative_to(RECORDINGS)) for path in RECORDINGS.glob("*/*.yaml"))


def dialect_of(path: str) -> Dialect | None:
    place = path.partition("?")[0]
    return next((dialect for end, dialect in DIALECT_OF_PATH.items() if place.endswith(end)), None)


@cache
def recorded_answers(name: str) -> tuple[RecordedAnswer, ...]:
    """The answers of a recording in their order; requests for something else are left out."""
    interactions = yaml.load((RECORDINGS / name).read_bytes(), yaml.CSafeLoader)["interactions"]
    return tuple(answer for interaction in interactions if (answer := _recorded(interaction)) is not None)


def _recorded(interaction: dict[str, Any]) -> RecordedAnswer | None:
    request, response = interaction["request"], interaction["response"]
    dialect = dialect_of(request["uri"])
    if dialect is None:
        return None
    asked = request.get("parsed_body") or {}
    model = asked.get("model") or request["uri"].rpartition("/")[2].partition(":")[0]
    types = [values[0] for name, values in response["headers"].items() if name.lower() == "content-type"]
    is_streamed = "event-stream" in types[0]
    if is_streamed:
        text = response["body"]["string"]
        whole = _whole(dialect, text if isinstance(text, str) else text.decode())
    else:
        whole = response["parsed_body"]
    return RecordedAnswer(dialect, model, _thinking(asked), response["status"]["code"], whole, is_streamed)


def _thinking(asked: dict[str, Any]) -> Thinking | None:
    if "thinking" in asked:
        return bool(asked["thinking"]["type"] != "disabled")
    effort: Any = asked.get("reasoning_effort") or (asked.get("reasoning") or {}).get("effort")
    levels: dict[Any, Thinking] = {"minimal": "minimal", "low": "low", "medium": "medium", "high": "high"}
    return levels.get(effort)


def _events(text: str) -> Iterator[Any]:
    for line in text.replace("\r\n", "\n").split("\n"):
        data = line.removeprefix("data:").strip() if line.startswith("data:") else ""
        if data and data != "[DONE]":
            yield json.loads(data)


def _whole(dialect: Dialect, text: str) -> Any:
    """The answer that a stream makes when it has ended."""
    happened = list(_events(text))
    match dialect:
        case Dialect.ANTHROPIC:
            return _whole_message(happened)
        case Dialect.OPENAI_CHAT:
            return _whole_completion(happened)
        case Dialect.OPENAI_RESPONSES:
            ends = [event["response"] for event in happened if event["type"] in ("response.completed",)]
            done = [event["item"] for event in happened if event["type"] == "response.output_item.done"]
            return {**ends[-1], "output": ends[-1]["output"] or done}
        case Dialect.GOOGLE:
            return _whole_content(happened)


def _whole_message(happened: list[Any]) -> Any:
    message: dict[str, Any] = {}
    blocks: dict[int, dict[str, Any]] = {}
    for event in happened:
        match event["type"]:
            case "message_start":
                message = dict(event["message"])
            case "content_block_start":
                blocks[event["index"]] = dict(event["content_block"])
            case "content_block_delta":
                block, delta = blocks[event["index"]], event["delta"]
                for name in ("text", "thinking", "signature", "partial_json"):
                    if name in delta:
                        block[name] = block.get(name, "") + delta[name]
            case "message_delta":
                message |= {name: value for name, value in event["delta"].items() if value is not None}
                message["usage"] = {**message["usage"], **event["usage"]}
    for block in blocks.values():
        if "partial_json" in block:
            block["input"] = json.loads(block.pop("partial_json") or "{}")
    return {**message, "content": [block for _, block in sorted(blocks.items())]}


def _whole_completion(happened: list[Any]) -> Any:
    message: dict[str, Any] = {"role": "assistant", "content": ""}
    finish, usage = None, None
    for event in happened:
        usage = event.get("usage") or usage
        for choice in event["choices"]:
            message["content"] += choice["delta"].get("content") or ""
            finish = choice["finish_reason"] or finish
            for piece in choice["delta"].get("tool_calls") or ():
                calls = message.setdefault("tool_calls", [])
                if piece["index"] == len(calls):
                    calls.append({"id": piece["id"], "type": "function", "function": dict(piece["function"])})
                else:
                    calls[piece["index"]]["function"]["arguments"] += piece["function"]["arguments"]
    first = {name: value for name, value in happened[0].items() if name not in ("choices", "usage")}
    message["content"] = message["content"] or None
    choice = {"index": 0, "finish_reason": finish, "message": message}
    return {**first, "object": "chat.completion", "choices": [choice], "usage": usage}


def _whole_content(happened: list[Any]) -> Any:
    parts: list[dict[str, Any]] = []
    finish = None
    for event in happened:
        candidate = event["candidates"][0]
        finish = candidate.get("finishReason") or finish
        for part in (candidate.get("content") or {}).get("parts") or ():
            is_plain = set(part) <= {"text", "thought"} and parts and set(parts[-1]) == set(part)
            if is_plain:
                parts[-1] = {**parts[-1], "text": parts[-1]["text"] + part["text"]}
            elif part != {"text": ""}:
                parts.append(dict(part))
    candidate = {"content": {"role": "model", "parts": parts}, "finishReason": finish, "index": 0}
    return {**happened[-1], "candidates": [candidate]}


# --- What is to be recorded of an answer.


def facts_of_answer(dialect: Dialect, whole: Any) -> RecordedFacts:
    match dialect:
        case Dialect.ANTHROPIC:
            return _message_facts(whole)
        case Dialect.OPENAI_CHAT:
            return _completion_facts(whole)
        case Dialect.OPENAI_RESPONSES:
            return _response_facts(whole)
        case Dialect.GOOGLE:
            return _content_facts(whole)


def _message_facts(message: Any) -> RecordedFacts:
    blocks, usage = message["content"], message["usage"]
    counts = [usage.get(name) or 0 for name in _MESSAGE_COUNTS]
    for round in usage.get("iterations") or ():
        if round["type"] == "compaction":
            counts = [count + (round.get(name) or 0) for count, name in zip(counts, _MESSAGE_COUNTS, strict=True)]
    finish = {"tool_use": "tool_call", "max_tokens": "length", "refusal": "content_filter"}
    calls = [block for block in blocks if block["type"] == "tool_use"]
    return RecordedFacts(
        text="".join(block["text"] for block in blocks if block["type"] == "text"),
        thinking="".join(block["thinking"] for block in blocks if block["type"] == "thinking"),
        sealed=tuple(block.get("signature") or block["data"] for block in blocks if "thinking" in block["type"]),
        calls=tuple((call["name"], call["input"]) for call in calls),
        call_ids=tuple(call["id"] for call in calls),
        usage=(*counts, (usage.get("output_tokens_details") or {}).get("thinking_tokens") or 0),  # type: ignore[arg-type]
        finish=finish.get(message["stop_reason"], "stop"),
    )


_MESSAGE_COUNTS = ("input_tokens", "output_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")


def _completion_facts(completion: Any) -> RecordedFacts:
    (choice,) = completion["choices"]
    message, usage = choice["message"], completion["usage"]
    cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
    written = (usage.get("prompt_tokens_details") or {}).get("cache_write_tokens") or 0
    reasoning = (usage.get("completion_tokens_details") or {}).get("reasoning_tokens") or 0
    output = usage["completion_tokens"]
    calls = message.get("tool_calls") or []
    finish = {"tool_calls": "tool_call", "length": "length", "content_filter": "content_filter"}
    return RecordedFacts(
        text=message.get("content") or "",
        thinking="",
        sealed=(),
        calls=tuple((call["function"]["name"], json.loads(call["function"]["arguments"] or "{}")) for call in calls),
        call_ids=tuple(call["id"] for call in calls if call["id"]),
        usage=(usage["prompt_tokens"] - cached - written, output, cached, written, reasoning),
        finish=finish.get(choice["finish_reason"], "stop"),
    )


def _response_facts(response: Any) -> RecordedFacts:
    output, usage = response["output"], response["usage"]
    thoughts = [item for item in output if item["type"] == "reasoning"]
    texts = [part for item in output if item["type"] == "message" for part in item["content"]]
    summaries = [part["text"] for item in thoughts for part in item.get("summary") or ()]
    told = [part["text"] for item in thoughts if not item.get("summary") for part in item.get("content") or ()]
    calls = [item for item in output if item["type"] == "function_call"]
    details = usage.get("input_tokens_details") or {}
    cached, written = details.get("cached_tokens") or 0, details.get("cache_write_tokens") or 0
    reasoning = (usage.get("output_tokens_details") or {}).get("reasoning_tokens") or 0
    return RecordedFacts(
        text="".join(part["text"] for part in texts),
        thinking="".join([*summaries, *told]),
        sealed=tuple(item["encrypted_content"] for item in thoughts if item.get("encrypted_content")),
        calls=tuple((call["name"], json.loads(call["arguments"])) for call in calls),
        call_ids=tuple(call["call_id"] for call in calls),
        usage=(usage["input_tokens"] - cached - written, usage["output_tokens"], cached, written, reasoning),
        finish="stop" if response["status"] == "completed" else "length",
    )


def _content_facts(answered: Any) -> RecordedFacts:
    candidate, usage = answered["candidates"][0], answered["usageMetadata"]
    parts = (candidate.get("content") or {}).get("parts") or []
    calls = [part["functionCall"] for part in parts if "functionCall" in part]
    cached, thought = usage.get("cachedContentTokenCount") or 0, usage.get("thoughtsTokenCount") or 0
    asked = usage["promptTokenCount"] + (usage.get("toolUsePromptTokenCount") or 0)
    return RecordedFacts(
        text="".join(part["text"] for part in parts if "text" in part and not part.get("thought")),
        thinking="".join(part["text"] for part in parts if part.get("thought")),
        sealed=tuple(part["thoughtSignature"] for part in parts if "thoughtSignature" in part),
        calls=tuple((call["name"], call.get("args") or {}) for call in calls),
        call_ids=tuple(call["id"] for call in calls if "id" in call),
        usage=(asked - cached, (usage.get("candidatesTokenCount") or 0) + thought, cached, 0, thought),
        finish="length" if candidate["finishReason"] == "MAX_TOKENS" else "stop",
    )
