"""The rules of the chat APIs, as their documentation states them; written without a look at the exporters."""

import json
import re
from typing import Any

ID = re.compile(r"[a-zA-Z0-9_-]+")
OPENAI_NAME, ANTHROPIC_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}"), re.compile(r"[a-zA-Z0-9_-]{1,128}")


def check_openai(document: dict[str, Any]) -> None:
    assert set(document) == {"messages"}
    open_calls: list[str] = []
    seen: set[str] = set()
    for message in document["messages"]:
        role = message["role"]
        if role == "tool":
            assert set(message) == {"role", "tool_call_id", "content"}
            assert isinstance(message["content"], str)
            assert message["tool_call_id"] in open_calls, "a result without a call right before it"
            open_calls.remove(message["tool_call_id"])
            continue
        assert not open_calls, "a call is not answered before somebody else speaks"
        assert role in ("system", "user", "assistant")
        if role == "assistant":
            open_calls = [_check_openai_call(call, seen) for call in message.get("tool_calls", ())]
            assert set(message) <= {"role", "content", "tool_calls"}
            assert isinstance(message["content"], str) or (message["content"] is None and open_calls)
        elif role == "system":
            assert isinstance(message["content"], str)
        else:
            _check_openai_content(message["content"])
    assert not open_calls, "the list ends before a call is answered"


def _check_openai_call(call: dict[str, Any], seen: set[str]) -> str:
    assert set(call) == {"id", "type", "function"}
    assert call["type"] == "function"
    assert ID.fullmatch(call["id"])
    assert len(call["id"]) <= 40
    assert call["id"] not in seen, "an id comes twice"
    seen.add(call["id"])
    assert OPENAI_NAME.fullmatch(call["function"]["name"])
    assert isinstance(json.loads(call["function"]["arguments"]), dict)
    return str(call["id"])


def _check_openai_content(content: Any) -> None:
    if isinstance(content, str):
        return
    assert content, "an empty list of parts"
    for part in content:
        if part["type"] == "text":
            assert isinstance(part["text"], str)
        else:
            assert part["type"] == "image_url"
            assert part["image_url"]["url"].lower().startswith(("http://", "https://", "data:image/"))
            assert part["image_url"].get("detail", "auto") in ("auto", "low", "high")


def check_anthropic(document: dict[str, Any], *, signed: bool = True) -> None:
    assert set(document) <= {"messages", "system"}
    for block in document.get("system", ()):
        assert (block["type"], bool(block["text"].strip())) == ("text", True)
    expected, open_calls, seen = "user", list[str](), set[str]()
    for message in document["messages"]:
        assert message["role"] == expected, "roles do not alternate, beginning with the user's"
        assert message["content"], "a message without content"
        results = [block["tool_use_id"] for block in message["content"] if block["type"] == "tool_result"]
        if expected == "user":
            leading = message["content"][: len(results)]
            assert all(block["type"] == "tool_result" for block in leading), "results come first"
            assert sorted(results) == sorted(open_calls), "each call is answered once, right after it"
            open_calls = []
        else:
            assert not results
            open_calls = [block["id"] for block in message["content"] if block["type"] == "tool_use"]
            assert len(set(open_calls)) == len(open_calls)
            assert not seen.intersection(open_calls), "an id comes twice"
            seen.update(open_calls)
        for block in message["content"]:
            _check_anthropic_block(block, expected, signed=signed)
        expected = "assistant" if expected == "user" else "user"
    assert not open_calls, "the list ends before a call is answered"


def _check_anthropic_block(block: dict[str, Any], role: str, *, signed: bool) -> None:
    match block["type"]:
        case "text":
            assert block["text"].strip()
        case "image":
            assert role == "user"
            _check_source(block["source"])
        case "tool_use":
            assert role == "assistant"
            assert ID.fullmatch(block["id"])
            assert ANTHROPIC_NAME.fullmatch(block["name"])
            assert isinstance(block["input"], dict)
        case "tool_result":
            assert role == "user"
            assert block.get("is_error", True) is True
            if not isinstance(block["content"], str):
                for inner in block["content"]:
                    assert inner["type"] in ("text", "image")
        case "thinking":
            assert role == "assistant"
            assert isinstance(block["thinking"], str)
            assert not signed or isinstance(block["signature"], str)
        case other:
            raise AssertionError(f"no block of the API: {other}")


def _check_source(source: dict[str, Any]) -> None:
    if source["type"] == "base64":
        assert source["media_type"] in ("image/png", "image/jpeg", "image/gif", "image/webp")
    else:
        assert source["type"] == "url"
        assert source["url"].lower().startswith(("http://", "https://"))
