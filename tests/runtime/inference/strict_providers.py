"""What the real APIs refuse, as rules over the body of a request and what the same server answered before.

One function for each wire form says why a request is refused; nothing where it would be accepted. `StrictServer` serves
answers in order, each to a request that passes its rules, and refuses the others with status 400.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from tests.runtime.scripted import CLOSE, STREAM_HEAD, Script, answer, events
from weft.runtime.inference.model_requests import Dialect

Body = dict[str, Any]
Refusals = Iterator[str]
_is_name = re.compile(r"[a-zA-Z0-9_-]{1,64}").fullmatch


def unknown_fields(value: Body, known: str, where: str) -> Refusals:
    for name in value.keys() - set(known.split()):
        yield f"{where}: {name}: Extra inputs are not permitted"


# --- Anthropic's Messages.

ANTHROPIC_FIELDS = (
    "model messages system max_tokens metadata stop_sequences stream temperature top_k top_p thinking tool_choice tools"
    " output_config service_tier cache_control context_management container mcp_servers inference_geo"
)
ANTHROPIC_BLOCKS = {
    "text": "type text cache_control citations",
    "image": "type source cache_control",
    "document": "type source title context citations cache_control",
    "thinking": "type thinking signature",
    "redacted_thinking": "type data",
    "tool_use": "type id name input cache_control",
    "tool_result": "type tool_use_id content is_error cache_control",
    "server_tool_use": "type id name input cache_control caller",
    "web_search_tool_result": "type tool_use_id content cache_control caller",
}
THOUGHTS = ("thinking", "redacted_thinking")
MOST_MARKERS = 4
LEAST_BUDGET = 1024


def anthropic_refusals(body: Body, served: Sequence[Body]) -> Refusals:
    """`served` are whole messages."""
    yield from unknown_fields(body, ANTHROPIC_FIELDS, "body")
    if not isinstance(body.get("max_tokens"), int) or body["max_tokens"] < 1:
        yield "max_tokens: Field required"
    messages = body.get("messages") or []
    if not messages or messages[0]["role"] != "user":
        yield "messages: first message must use the user role"
    for number, (message, before) in enumerate(zip(messages, [None, *messages], strict=False)):
        where = f"messages.{number}"
        if message["role"] not in ("user", "assistant"):
            yield f"{where}.role: Input should be 'user' or 'assistant'"
        if before is not None and before["role"] == message["role"]:
            yield f"{where}: roles must alternate"
        yield from _anthropic_content(message, where)
        yield from _anthropic_results(before, message, where)
        if before is not None:
            yield from _anthropic_searches(before, where)
    if messages and messages[-1]["role"] == "assistant":
        yield from _anthropic_results(messages[-1], {"role": "user", "content": []}, "messages")
        yield from _anthropic_open_answer(messages[-1], served)
    yield from _anthropic_thoughts(body, served)
    yield from _anthropic_settings(body)
    markers = _count_markers([body.get("tools"), body.get("system"), messages])
    if markers > MOST_MARKERS:
        yield f"A maximum of {MOST_MARKERS} blocks with cache_control may be provided. Found {markers}."


def _blocks(message: Body) -> list[Body]:
    content = message["content"]
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


def _anthropic_content(message: Body, where: str) -> Refusals:
    blocks = _blocks(message)
    if not blocks:
        yield f"{where}: all messages must have non-empty content"
    for place, block in enumerate(blocks):
        at = f"{where}.content.{place}"
        if block["type"] not in ANTHROPIC_BLOCKS:
            yield f"{at}: Input tag {block['type']!r} does not match any of the expected tags"
            continue
        yield from unknown_fields(block, ANTHROPIC_BLOCKS[block["type"]], at)
        is_answer = message["role"] == "assistant"
        if (block["type"] in (*THOUGHTS, "tool_use")) and not is_answer:
            yield f"{at}: `{block['type']}` blocks can only be in `assistant` messages"
        if block["type"] in ("tool_result", "image", "document") and is_answer:
            yield f"{at}: `{block['type']}` blocks can only be in `user` messages"
        texts = [block, *(block["content"] if block["type"] == "tool_result" else ())]
        if any(text["type"] == "text" and not text["text"].strip() for text in texts):
            yield f"{at}: text content blocks must contain non-whitespace text"
        if block["type"] == "tool_result":
            kinds = {part["type"] for part in block["content"]}
            if block.get("is_error") and kinds - {"text"}:
                yield f"{at}: all content must be type `text` if `is_error` is true"
            if kinds - {"text", "image", "document", "search_result", "tool_reference"}:
                yield f"{at}.tool_result.content: Input tag does not match any of the expected tags"
        if block["type"] == "thinking" and not block.get("signature"):
            yield f"{at}.thinking.signature: Field required"
        if block["type"] == "tool_use" and not (_is_name(block["id"]) and _is_name(block["name"])):
            yield f"{at}.tool_use.id: String should match pattern '^[a-zA-Z0-9_-]+$'"
        if block["type"] == "tool_use" and not isinstance(block["input"], dict):
            yield f"{at}.tool_use.input: Input should be a valid dictionary"
    if message["role"] == "assistant" and blocks and blocks[-1]["type"] in THOUGHTS:
        yield f"{where}: The final block in an assistant message cannot be `thinking`."


def _anthropic_results(before: Body | None, message: Body, where: str) -> Refusals:
    """Each call is answered in the very next message, before anything else is said there."""
    called = [block["id"] for block in _blocks(before) if block["type"] == "tool_use"] if before else []
    results = [block["tool_use_id"] for block in _blocks(message) if block["type"] == "tool_result"]
    for id in called:
        if results.count(id) != 1:
            yield f"{where}: `tool_use` ids were found without `tool_result` blocks immediately after: {id}"
    for id in results:
        if id not in called:
            yield f"{where}: unexpected `tool_use_id` found in `tool_result` blocks: {id}"
    kinds = [block["type"] == "tool_result" for block in _blocks(message)]
    if kinds != sorted(kinds, reverse=True):
        yield f"{where}: `tool_result` blocks must come first in the content"


def _anthropic_searches(answered: Body, where: str) -> Refusals:
    """What the server ran itself has its result in the same answer."""
    made = {block["id"] for block in _blocks(answered) if block["type"] == "server_tool_use"}
    given = {block.get("tool_use_id") for block in _blocks(answered)}
    for id in sorted(made - given):
        yield f"{where}: `server_tool_use` ids were found without a corresponding result block: {id}"
    for id in sorted({str(block["tool_use_id"]) for block in _blocks(answered) if _is_search_result(block)} - made):
        yield f"{where}: unexpected `tool_use_id` found in a result block: {id}"


def _is_search_result(block: Body) -> bool:
    return str(block["type"]).endswith("_tool_result")


def _anthropic_open_answer(message: Body, served: Sequence[Body]) -> Refusals:
    """A conversation ends with an answer where that is what the server itself paused with."""
    blocks = _blocks(message)
    if blocks[-1]["type"] == "text" and blocks[-1]["text"] != blocks[-1]["text"].rstrip():
        yield "messages: final assistant content cannot end with trailing whitespace"
    said = [_said_in(block) for block in blocks if block["type"] not in THOUGHTS]
    paused = [_said_in(block) for block in _paused_blocks(served) if block["type"] not in THOUGHTS]
    if not paused or said[-len(paused) :] != paused:
        yield "This model does not support assistant message prefill. The conversation must end with a user message."


def _paused_blocks(served: Sequence[Body]) -> list[Body]:
    """What the last answers hold that the server paused with, one after the other."""
    blocks: list[Body] = []
    for made in reversed(served):
        if made.get("stop_reason") != "pause_turn":
            break
        blocks = [*made["content"], *blocks]
    return [block for block in blocks if block["type"] != "text" or block["text"].strip()]


def _said_in(block: Body) -> Body:
    plain = {name: value for name, value in block.items() if name not in ("cache_control", "citations")}
    return plain | ({"text": plain["text"].rstrip()} if plain["type"] == "text" else {})


def _anthropic_thoughts(body: Body, served: Sequence[Body]) -> Refusals:
    """What was thought comes back unchanged and in its place, at least in an open loop of calls."""
    known = [_thoughts(block) for message in served for block in message["content"] if block["type"] in THOUGHTS]
    messages = body["messages"]
    for number, message in enumerate(messages):
        for block in _blocks(message):
            if block["type"] in THOUGHTS and _thoughts(block) not in known:
                yield f"messages.{number}: Invalid `signature` in `thinking` block"
    loop = [message for message in _loop(messages) if message["role"] == "assistant"]
    is_enabled = (body.get("thinking") or {}).get("type") == "enabled"
    for message in loop:
        first = _blocks(message)[0]["type"]
        if is_enabled and first not in THOUGHTS:
            yield f"messages: Expected `thinking` or `redacted_thinking`, but found `{first}`"
        wanted = _as_served(message, served)
        is_off = (body.get("thinking") or {"type": "disabled"})["type"] == "disabled"
        if is_off and message is loop[-1]:
            kinds = {block["type"] for block in _blocks(message)}
            for kind in kinds.intersection(THOUGHTS):
                yield f"When thinking is disabled, the final message cannot contain `{kind}`"
        elif wanted is not None and [_thoughts(block) for block in _blocks(message)] != wanted:
            yield "messages: `thinking` or `redacted_thinking` blocks in the latest message cannot be modified"


def _thoughts(block: Body) -> tuple[Any, ...]:
    return tuple(block.get(name) for name in ("type", "thinking", "signature", "data", "id"))


def _loop(messages: Sequence[Body]) -> list[Body]:
    """The messages since somebody last said something: answers with calls, and results."""
    for start in range(len(messages) - 1, -1, -1):
        kinds = [block["type"] for block in _blocks(messages[start])]
        if messages[start]["role"] == "user" and "tool_result" not in kinds:
            return list(messages[start:])
    return list(messages)


def _as_served(message: Body, served: Sequence[Body]) -> list[tuple[Any, ...]] | None:
    """The blocks of the answer that holds these calls, as it was served."""
    called = {block["id"] for block in _blocks(message) if block["type"] == "tool_use"}
    for number, made in enumerate(served):
        if called & {block.get("id") for block in made["content"] if block["type"] == "tool_use"}:
            whole = [*_paused_blocks(served[:number]), *made["content"]]
            sent = [block for block in whole if block["type"] in ANTHROPIC_BLOCKS]
            return [_thoughts(block) for block in sent if block["type"] != "text" or block["text"].strip()]
    return None


def _anthropic_settings(body: Body) -> Refusals:
    thinking = body.get("thinking") or {}
    if thinking.get("type") == "enabled":
        budget = thinking.get("budget_tokens")
        if not isinstance(budget, int) or budget < LEAST_BUDGET:
            yield f"thinking.enabled.budget_tokens: Input should be greater than or equal to {LEAST_BUDGET}"
        elif budget >= body["max_tokens"]:
            yield "`max_tokens` must be greater than `thinking.budget_tokens`"
    elif thinking and thinking.get("type") not in ("adaptive", "disabled", "between_tools"):
        yield f"thinking: Input tag {thinking.get('type')!r} does not match any of the expected tags"
    if thinking.get("type") in ("enabled", "adaptive"):
        if body.get("temperature", 1) != 1:
            yield "`temperature` may only be set to 1 when thinking is enabled"
        if "top_k" in body:
            yield "`top_k` must be unset when thinking is enabled"
        if (body.get("tool_choice") or {}).get("type") in ("any", "tool"):
            yield "Thinking may not be enabled when tool_choice forces tool use."
    for tool in body.get("tools") or ():
        if not _is_name(tool["name"]) or tool.get("input_schema", {}).get("type") != "object":
            yield f"tools: {tool['name']} has no name or schema that is allowed"
    yield from _anthropic_answers(body)
    if any(not text.strip() for text in body.get("stop_sequences") or ()):
        yield "stop_sequences: each stop sequence must contain non-whitespace"


UNTAKEN_IN_ANSWERS = (
    "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf", "minLength", "maxLength", "maxItems",
    "uniqueItems",
)  # fmt: skip


def schema_refusals(schema: Any, where: str, *, all_required: bool = False, untaken: Sequence[str] = ()) -> Refusals:
    """What a schema may not say that an answer is held to strictly."""
    if isinstance(schema, list):
        for item in schema:
            yield from schema_refusals(item, where, all_required=all_required, untaken=untaken)
    if not isinstance(schema, dict):
        return
    if schema.get("type") == "object":
        if schema.get("additionalProperties") is not False:
            yield f"{where}: For 'object' type, 'additionalProperties' must be explicitly set to false"
        if all_required and set(schema.get("required") or ()) != set(schema.get("properties") or ()):
            yield f"{where}: 'required' is required to be supplied and to be an array including every key"
    for name in schema.keys() & set(untaken):
        yield f"{where}: property {name!r} is not supported"
    for key, value in schema.items():
        if key in ("enum", "const", "default", "examples"):
            continue
        inner = list(value.values()) if key in ("properties", "$defs") and isinstance(value, dict) else value
        yield from schema_refusals(inner, where, all_required=all_required, untaken=untaken)


def _anthropic_answers(body: Body) -> Refusals:
    config = body.get("output_config") or {}
    yield from unknown_fields(config, "effort format task_budget", "output_config")
    if answer_format := config.get("format"):
        yield from unknown_fields(answer_format, "type schema", "output_config.format")
        if answer_format.get("type") != "json_schema":
            yield "output_config.format.type: Input should be 'json_schema'"
        yield from schema_refusals(answer_format.get("schema"), "output_config.format", untaken=UNTAKEN_IN_ANSWERS)


def _openai_answers(answer_format: Body | None, where: str, known: str) -> Refusals:
    if answer_format is None:
        return
    yield from unknown_fields(answer_format, known, where)
    if not _is_name(answer_format.get("name") or ""):
        yield f"{where}.name: Missing required parameter"
    schema = answer_format.get("schema") or {}
    if schema.get("type") != "object":
        yield f"{where}: schema must be a JSON Schema of 'type: \"object\"'"
    if answer_format.get("strict"):
        yield from schema_refusals(schema, where, all_required=True)


def _count_markers(value: Any) -> int:
    if isinstance(value, dict):
        return ("cache_control" in value) + sum(map(_count_markers, value.values()))
    return sum(map(_count_markers, value)) if isinstance(value, list) else 0


# --- OpenAI's Chat Completions.

CHAT_FIELDS = (
    "model messages audio frequency_penalty function_call functions logit_bias logprobs max_completion_tokens"
    " max_tokens metadata modalities n parallel_tool_calls prediction presence_penalty prompt_cache_key"
    " prompt_cache_retention reasoning_effort response_format safety_identifier seed service_tier stop store stream"
    " stream_options temperature tool_choice tools top_logprobs top_p user verbosity web_search_options"
)
CHAT_MESSAGES = {
    "system": "role content name",
    "developer": "role content name",
    "user": "role content name",
    "assistant": "role content name refusal audio tool_calls function_call",
    "tool": "role content tool_call_id",
}
LONGEST_CALL_ID = 40


def chat_refusals(body: Body, served: Sequence[Body]) -> Refusals:
    yield from unknown_fields(body, CHAT_FIELDS, "body")
    waiting: list[str] = []
    for number, message in enumerate(body["messages"]):
        where, role = f"messages.[{number}]", message.get("role")
        if role not in CHAT_MESSAGES:
            yield f"{where}.role: {role!r} is none of the supported values"
            continue
        yield from unknown_fields(message, CHAT_MESSAGES[role], where)
        if role == "tool":
            if not isinstance(message["content"], str) and any(part["type"] != "text" for part in message["content"]):
                yield f"{where}: Image URLs are only allowed for messages with role 'user'"
            if message["tool_call_id"] not in waiting:
                yield f"{where}: 'tool' must be a response to a preceeding message with 'tool_calls'"
            else:
                waiting.remove(message["tool_call_id"])
            continue
        if waiting:
            yield f"{where}: tool_call_ids did not have response messages: {waiting}"
            waiting = []
        calls = message.get("tool_calls")
        if calls == []:
            yield f"{where}.tool_calls: expected an array with minimum length 1"
        if message.get("content") is None and not calls:
            yield f"{where}.content: expected a string, got null"
        for call in calls or ():
            waiting.append(call["id"])
            if not 0 < len(call["id"]) <= LONGEST_CALL_ID or not _is_name(call["function"]["name"]):
                yield f"{where}.tool_calls: string does not match or is too long: {call['id']}"
            if not isinstance(call["function"]["arguments"], str):
                yield f"{where}.tool_calls: arguments: expected a string"
    if waiting:
        yield f"messages: tool_call_ids did not have response messages: {waiting}"
    answer_format = body.get("response_format") or {}
    if answer_format.get("type", "json_schema") != "json_schema":
        yield "response_format.type: Invalid value"
    yield from _openai_answers(answer_format.get("json_schema"), "response_format", "name description schema strict")
    if body.get("reasoning_effort") is not None and body.get("temperature", 1) != 1:
        yield "Unsupported value: 'temperature' does not support other values with this model"


# --- OpenAI's Responses, used so that nothing is stored there.

RESPONSES_FIELDS = (
    "model input background conversation include instructions max_output_tokens max_tool_calls metadata"
    " parallel_tool_calls previous_response_id prompt prompt_cache_key prompt_cache_retention reasoning"
    " safety_identifier service_tier store stream stream_options temperature text tool_choice tools top_logprobs top_p"
    " truncation user"
)
RESPONSES_ITEMS = {
    "message": "type role id status phase content",
    "reasoning": "type id status summary content encrypted_content",
    "function_call": "type id status call_id name arguments",
    "function_call_output": "type id status call_id output",
}
ID_BEGINS = {"message": "msg_", "reasoning": "rs_", "function_call": "fc_"}
LONGEST_ID = 64


def responses_refusals(body: Body, served: Sequence[Body]) -> Refusals:
    """`served` are whole responses."""
    yield from unknown_fields(body, RESPONSES_FIELDS, "body")
    if body.get("store") is not False:
        yield "store: what is said here is kept by the server"
    if "previous_response_id" in body or "conversation" in body:
        yield "previous_response_id: nothing was stored"
    answer_format = (body.get("text") or {}).get("format")
    yield from _openai_answers(answer_format, "text.format", "type name description schema strict")
    items, waiting = body["input"], []
    if isinstance(items, str):
        return
    for number, item in enumerate(items):
        kind, where = item.get("type", "message"), f"input[{number}]"
        if kind not in RESPONSES_ITEMS:
            yield f"{where}: Invalid value: {kind!r}"
            continue
        yield from unknown_fields(item, RESPONSES_ITEMS[kind], where)
        if "id" in item and not (item["id"].startswith(ID_BEGINS.get(kind, "")) and len(item["id"]) <= LONGEST_ID):
            yield f"{where}.id: Invalid id: {item['id']}"
        if kind == "function_call":
            waiting.append(item["call_id"])
            if not 0 < len(item["call_id"]) <= LONGEST_ID or not _is_name(item["name"]):
                yield f"{where}: call_id or name is not allowed"
        if kind == "function_call_output":
            output = item["output"]
            kinds = set() if isinstance(output, str) else {part["type"] for part in output}
            if kinds - {"input_text", "input_image", "input_file"}:
                yield f"{where}.output: Invalid value: {kinds}"
            if item["call_id"] not in waiting:
                yield f"No tool call found for function call output with call_id {item['call_id']}."
            else:
                waiting.remove(item["call_id"])
        if kind == "message" and item["role"] == "user" and waiting:
            yield f"No tool output found for function call {waiting[0]}."
    if waiting:
        yield f"No tool output found for function call {waiting[0]}."
    yield from _responses_reasoning(items, served)


def _responses_reasoning(items: Sequence[Body], served: Sequence[Body]) -> Refusals:
    """What was thought is decrypted by who encrypted it, and stands right before what followed it."""
    followed: dict[str, str] = {}
    required: dict[str, str] = {}
    sealed: dict[str, str] = {}
    for response in served:
        output = [item for item in response["output"] if item["type"] in RESPONSES_ITEMS]
        for item, after in pairwise(output):
            if item["type"] == "reasoning" and after["type"] != "reasoning":
                followed[item["id"]], required[after["id"]] = after["id"], item["id"]
        sealed |= {item["id"]: item.get("encrypted_content") or "" for item in output if item["type"] == "reasoning"}
    calls = {
        item["call_id"]: item["id"]
        for response in served
        for item in response["output"]
        if item["type"] == "function_call"
    }
    ids = [item.get("id") for item in items]
    for number, item in enumerate(items):
        if item.get("type") == "reasoning":
            if not item.get("encrypted_content") or not isinstance(item.get("summary"), list):
                yield f"Item with id {item.get('id')!r} not found. Items are not persisted when `store` is false."
            elif sealed.get(item.get("id", ""), item["encrypted_content"]) != item["encrypted_content"] or not sealed:
                yield "The encrypted content could not be verified."
            after = ids[number + 1] if number + 1 < len(ids) else None
            if followed.get(item.get("id", ""), after) != after:
                yield f"Item {item['id']!r} of type 'reasoning' was provided without its required following item."
        wanted = required.get(item.get("id") or "")
        if wanted is not None and sealed.get(wanted) and (not number or ids[number - 1] != wanted):
            yield f"Item {item['id']!r} was provided without its required 'reasoning' item: {wanted!r}."
        call = calls.get(item.get("call_id", "")) if item.get("type") == "function_call" else None
        if call and sealed.get(required.get(call, "")) and item.get("id") != call:
            yield f"function call {item['call_id']!r} was thought about, and lost what was thought"


# --- Google's generateContent.

GOOGLE_FIELDS = (
    "contents tools toolConfig safetySettings systemInstruction generationConfig cachedContent serviceTier store"
)
DUMMY_SIGNATURE = base64.b64encode(b"skip_thought_signature_validator").decode()


def google_refusals(body: Body, served: Sequence[Body]) -> Refusals:
    """`served` are contents of a model: parts with their signatures."""
    yield from unknown_fields(body, GOOGLE_FIELDS, "body")
    contents = body["contents"]
    config = body.get("generationConfig") or {}
    if "responseJsonSchema" in config and config.get("responseMimeType") != "application/json":
        yield "generationConfig.responseJsonSchema: only with the response mime type application/json"
    if not contents or contents[0].get("role") != "user":
        yield "Please ensure that the first content is by the user"
    known = {_signature(part) for content in served for part in content["parts"] if "thoughtSignature" in part}
    for number, (content, before) in enumerate(zip(contents, [None, *contents], strict=False)):
        where, parts = f"contents[{number}]", content.get("parts") or []
        if content.get("role") not in ("user", "model"):
            yield f"{where}.role: Please use a valid role: user, model."
        is_behind_results = all("functionResponse" in part for part in (before or {}).get("parts", ()))
        if before is not None and before.get("role") == content.get("role") and not is_behind_results:
            yield f"{where}: roles must alternate"
        if not parts:
            yield f"{where}.parts: must not be empty"
        for part in parts:
            signature = _signature(part)
            if signature and signature not in known and signature != _plain(DUMMY_SIGNATURE):
                yield f"{where}: Thought signature is not valid."
        yield from _google_results(parts, where)
        called = [part["functionCall"]["name"] for part in (before or {}).get("parts", ()) if "functionCall" in part]
        results = [part["functionResponse"]["name"] for part in parts if "functionResponse" in part]
        if sorted(called) != sorted(results):
            yield f"{where}: the number of function response parts is not that of the function call parts"
    yield from _google_signatures(contents, served)


def _google_results(parts: Sequence[Body], where: str) -> Refusals:
    """A result is an object; what it shows stands beside that, as bytes. Nothing else is in the same content."""
    results = [part["functionResponse"] for part in parts if "functionResponse" in part]
    for result in results:
        yield from unknown_fields(result, "id name response parts willContinue scheduling", f"{where}.functionResponse")
        if not isinstance(result["response"], dict):
            yield f"{where}.functionResponse.response: Invalid value, a Struct is expected"
        if any(set(part) not in ({"inlineData"}, {"inline_data"}) for part in result.get("parts", ())):
            yield f"{where}.functionResponse.parts: Unknown name"
    if results and len(results) != len(parts):
        yield f"{where}: what stands beside results is taken for the model's own"


def _google_signatures(contents: Sequence[Body], served: Sequence[Body]) -> Refusals:
    """A part that came with a signature goes back with it. Texts that came one after the other in a stream may be
    joined."""
    signed = [part for content in served for part in content["parts"] if "thoughtSignature" in part]
    returned = [part for content in contents if content.get("role") == "model" for part in content["parts"]]
    for part in signed:
        if part.get("thought") and not part.get("text"):
            continue
        same = [sent for sent in returned if _signature(sent) == _signature(part)]
        is_text = "text" in part and len(same) == 1
        if len(same) != 1 or (
            part["text"] not in same[0].get("text", "") if is_text else _said(same[0]) != _said(part)
        ):
            yield f"Function call or text is missing a thought_signature: {_said(part)!r}"


def _said(part: Body) -> Any:
    call = part.get("functionCall")
    return (call["name"], call.get("args") or {}) if call else part.get("text") or ""


def _signature(part: Body) -> str:
    return _plain(part.get("thoughtSignature") or "")


def _plain(signature: str) -> str:
    """Base64 is sent in either of its alphabets."""
    return signature.replace("-", "+").replace("_", "/").rstrip("=")


# --- The endpoints that count a request and answer nothing. They know fewer fields than those that answer.

COUNTED_FIELDS = {
    Dialect.ANTHROPIC: (
        "model messages system tools tool_choice thinking output_config cache_control context_management mcp_servers"
    ),
    Dialect.OPENAI_RESPONSES: (
        "model input instructions tools tool_choice reasoning text truncation parallel_tool_calls conversation"
        " previous_response_id"
    ),
    Dialect.GOOGLE: "contents generateContentRequest",
}
COUNT_PATHS = {
    Dialect.ANTHROPIC: "/v1/messages/count_tokens",
    Dialect.OPENAI_RESPONSES: "/responses/input_tokens",
    Dialect.GOOGLE: ":countTokens",
}


def count_refusals(dialect: Dialect, body: Body) -> Refusals:
    yield from unknown_fields(body, COUNTED_FIELDS[dialect], "body")
    if dialect is Dialect.GOOGLE and "generateContentRequest" in body:
        inner = dict(body["generateContentRequest"])
        if not str(inner.pop("model", "")).startswith("models/"):
            yield "generateContentRequest.model: unexpected model name format"
        if "contents" in body:
            yield "contents and generateContentRequest are mutually exclusive"
        yield from google_refusals(inner, ())
    if dialect is Dialect.ANTHROPIC:
        yield from anthropic_refusals({**body, "max_tokens": 100_000}, ())
    if dialect is Dialect.OPENAI_RESPONSES:
        yield from responses_refusals({**body, "store": False}, ())


RULES: dict[Dialect, Callable[[Body, Sequence[Body]], Refusals]] = {
    Dialect.ANTHROPIC: anthropic_refusals,
    Dialect.OPENAI_CHAT: chat_refusals,
    Dialect.OPENAI_RESPONSES: responses_refusals,
    Dialect.GOOGLE: google_refusals,
}


# --- A server that holds requests to the rules.


@dataclass
class StrictServer:
    """Whole answers in the order in which they are served, each with its status, as JSON or as a stream."""

    dialect: Dialect
    answers: list[tuple[int, Any]] = field(default_factory=list)
    served: list[Body] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    bodies: list[Body] = field(default_factory=list)

    def script(self, body: Body, *, is_streamed: bool) -> Script:
        self.bodies.append(body)
        why = list(RULES[self.dialect](body, self.served))
        if why:
            self.refused += why
            return answer(400, {"type": "error", "error": {"type": "invalid_request_error", "message": "; ".join(why)}})
        status, served = self.answers.pop(0)
        if status != 200:
            return answer(status, served)
        self.served += remembered(self.dialect, served)
        if not is_streamed:
            return answer(200, served)
        return [STREAM_HEAD, *events(*stream_of(self.dialect, served)), CLOSE]


def remembered(dialect: Dialect, answered: Body) -> list[Body]:
    """What a server knows of an answer that it gave."""
    if dialect is Dialect.GOOGLE:
        contents = [candidate.get("content") or {} for candidate in answered.get("candidates") or ()]
        return [content for content in contents if content.get("parts")]
    return [answered]


def stream_of(dialect: Dialect, answered: Body) -> list[Any]:
    """A whole answer as the events of a stream."""
    match dialect:
        case Dialect.ANTHROPIC:
            return _message_events(answered)
        case Dialect.OPENAI_CHAT:
            return _completion_events(answered)
        case Dialect.OPENAI_RESPONSES:
            return _response_events(answered)
        case Dialect.GOOGLE:
            return [answered]


def _message_events(message: Body) -> list[Any]:
    made: list[Any] = [{"type": "message_start", "message": {**message, "content": [], "stop_reason": None}}]
    for index, block in enumerate(message["content"]):
        begun, deltas = dict(block), []
        if block["type"] == "text":
            begun["text"], deltas = "", [{"type": "text_delta", "text": block["text"]}]
        if block["type"] == "thinking":
            begun |= {"thinking": "", "signature": ""}
            deltas = [
                {"type": "thinking_delta", "thinking": block["thinking"]},
                {"type": "signature_delta", "signature": block["signature"]},
            ]
        if block["type"] in ("tool_use", "server_tool_use"):
            text = block["input"] if isinstance(block["input"], str) else json.dumps(block["input"])
            begun["input"] = {}
            deltas = [{"type": "input_json_delta", "partial_json": piece} for piece in (text[:3], text[3:])]
        made.append({"type": "content_block_start", "index": index, "content_block": begun})
        made += [{"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas]
        made.append({"type": "content_block_stop", "index": index})
    end = {"stop_reason": message["stop_reason"], "stop_sequence": message.get("stop_sequence")}
    return [*made, {"type": "message_delta", "delta": end, "usage": message["usage"]}, {"type": "message_stop"}]


def _completion_events(completion: Body) -> list[Any]:
    shared = {name: value for name, value in completion.items() if name not in ("choices", "usage")}
    (choice,) = completion["choices"]
    message = choice["message"]
    calls = [{"index": index, **call} for index, call in enumerate(message.get("tool_calls") or ())]
    delta = {name: value for name, value in message.items() if value and name != "tool_calls"}
    pieces = [delta, *({"tool_calls": [call]} for call in calls)]
    chunks = [{**shared, "choices": [{"index": 0, "delta": piece, "finish_reason": None}]} for piece in pieces]
    end = {**shared, "choices": [{"index": 0, "delta": {}, "finish_reason": choice["finish_reason"]}]}
    return [*chunks, end, {**shared, "choices": [], "usage": completion.get("usage")}, "[DONE]"]


def _response_events(response: Body) -> list[Any]:
    made: list[Any] = [{"type": "response.created", "response": {**response, "output": [], "status": "in_progress"}}]
    for index, item in enumerate(response["output"]):
        made.append({"type": "response.output_item.added", "output_index": index, "item": item})
        if item["type"] == "message":
            for part in item["content"]:
                if part.get("text"):
                    delta = {"output_index": index, "item_id": item["id"], "delta": part["text"]}
                    made.append({"type": "response.output_text.delta", **delta})
        made.append({"type": "response.output_item.done", "output_index": index, "item": item})
    kind = {"completed": "response.completed", "incomplete": "response.incomplete"}.get(response["status"])
    return [*made, {"type": kind or "response.failed", "response": response}]
