"""The independent counter, on files small enough to count by hand."""

import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

from tests.exchange.independent_usage import (
    claude_code,
    codex,
    copilot_cli,
    cursor,
    gemini_cli,
    objects,
    opencode,
    pi,
    total,
)


def lines(path: Path, *records: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def kinds(
    input: int = 0, output: int = 0, cached: int = 0, cache_write: int = 0, reasoning: int = 0, cache_write_1h: int = 0
) -> dict[str, int]:
    return {
        "input": input,
        "output": output,
        "cached": cached,
        "cache_write": cache_write,
        "cache_write_1h": cache_write_1h,
        "reasoning": reasoning,
    }


def claude(id: str, output: int, model: str = "opus", **more: int) -> dict[str, Any]:
    usage = {"input_tokens": 10, "output_tokens": output, "cache_read_input_tokens": 7, **more}
    return {"type": "assistant", "uuid": f"{id}-{output}", "message": {"id": id, "model": model, "usage": usage}}


def test_glued_and_torn_lines_are_read_as_far_as_they_go(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"a":1}{"a":2}\n[3]\n\n{"a":4}\n{"a":')
    assert [record["a"] for record in objects(path)] == [1, 2, 4]


def test_a_claude_response_is_one_over_its_lines_and_its_copies(tmp_path: Path) -> None:
    one = lines(tmp_path / "one.jsonl", {"type": "user"}, claude("m1", 1), claude("m1", 5), claude("m2", 3, "haiku"))
    two = lines(tmp_path / "two.jsonl", claude("m1", 0, cache_creation_input_tokens=4), claude("n", 9, "<synthetic>"))
    inner = {"type": "progress", "data": {"type": "agent_progress", "message": claude("m3", 2, "haiku")}}
    lines(two.with_name("three.jsonl"), inner)
    found = claude_code([one, two, tmp_path / "three.jsonl"])
    assert found == {"haiku": kinds(20, 5, 14), "opus": kinds(10, 5, 7, 4)}
    assert total(found) == 65


def report(total: int, input: int, cached: int = 0, output: int = 0) -> dict[str, Any]:
    last = {"input_tokens": input, "cached_input_tokens": cached, "output_tokens": output}
    info = {"total_token_usage": {"total_tokens": total}, "last_token_usage": last}
    return {"type": "event_msg", "payload": {"type": "token_count", "info": info}}


def meta(id: str, **more: str) -> dict[str, Any]:
    return {"type": "session_meta", "payload": {"id": id, **more}}


def context(turn: str, model: str = "gpt") -> dict[str, Any]:
    return {"type": "turn_context", "payload": {"turn_id": turn, "model": model}}


def test_codex_reports_count_once_and_the_cache_lies_inside_the_input(tmp_path: Path) -> None:
    nothing = {"type": "event_msg", "payload": {"type": "token_count", "info": None}}
    path = lines(
        tmp_path / "a.jsonl",
        meta("s"),
        context("t1"),
        nothing,
        report(12, 10, 4, 2),
        report(12, 10, 4, 2),
        context("t2", "mini"),
        report(20, 8),
    )
    assert codex([path]) == {"gpt": kinds(6, 2, 4), "mini": kinds(8)}


def test_what_a_codex_child_copied_from_its_parent_counts_once(tmp_path: Path) -> None:
    past = [context("t1"), report(10, 10)]
    parent = lines(tmp_path / "parent.jsonl", meta("p"), *past, context("t2"), report(15, 5))
    child = lines(
        tmp_path / "child.jsonl", meta("c", forked_from_id="p"), meta("p"), *past, context("t3"), report(13, 3)
    )
    stranger = lines(tmp_path / "stranger.jsonl", meta("x"), *past)
    assert codex([parent, child]) == codex([child, parent]) == {"gpt": kinds(18)}
    assert codex([parent, child, stranger]) == {"gpt": kinds(28)}
    assert codex([child]) == {"gpt": kinds(13)}


def assistant(id: str, **tokens: Any) -> dict[str, Any]:
    return {"id": id, "role": "assistant", "modelID": "m", "tokens": tokens}


def test_opencode_messages_are_read_from_every_container(tmp_path: Path) -> None:
    counted = {"input": 10, "output": 5, "reasoning": 3, "cache": {"read": 2, "write": 1}}
    steps = [{"type": "step-finish", "tokens": {"input": 1, "output": 1}}] * 2
    export = tmp_path / "export.json"
    said = [
        {"info": {"id": "u", "role": "user"}, "parts": []},
        {"info": assistant("msg_1", total=21, **counted), "parts": []},
        {"info": assistant("REDACTED", input=100), "parts": []},
        {"info": assistant("REDACTED", input=100), "parts": []},
        {"info": assistant("msg_2", input=1), "parts": steps},
    ]
    export.write_text(json.dumps({"info": {}, "messages": said}))
    assert opencode([export, export])["m"] == kinds(412, 10, 2, 1, 3)  # those without an id cannot be told apart
    stored = lines(tmp_path / "storage" / "message" / "ses" / "msg_3.json", assistant("msg_3", **counted))
    lines(tmp_path / "storage" / "part" / "msg_3" / "prt_1.json", steps[0])
    assert opencode([stored]) == {"m": kinds(10, 5, 2, 1, 3)}
    database = tmp_path / "opencode.db"
    with closing(sqlite3.connect(database)) as connection:
        connection.execute("CREATE TABLE message (id, data)")
        connection.execute("CREATE TABLE part (id, message_id, data)")
        connection.execute("INSERT INTO message VALUES ('msg_4', ?)", [json.dumps(assistant("", input=4))])
        connection.commit()
    assert opencode([database]) == {"m": kinds(4)}


def test_a_pi_entry_that_was_copied_counts_once(tmp_path: Path) -> None:
    usage = {"input": 1, "output": 2, "cacheRead": 3, "cacheWrite": 4, "reasoning": 1}
    entry = {
        "type": "message",
        "id": "ab12",
        "message": {"role": "assistant", "model": "m", "timestamp": 5, "usage": usage},
    }
    later = {**entry, "message": {**entry["message"], "timestamp": 6}}  # type: ignore[dict-item]
    one = lines(tmp_path / "one.jsonl", {"type": "session"}, entry, {"type": "message", "message": {"role": "user"}})
    two = lines(tmp_path / "two.jsonl", entry, later)
    assert pi([one, two]) == {"m": kinds(2, 4, 6, 8, 2)}


def test_a_cursor_bubble_counts_once_under_its_own_model(tmp_path: Path) -> None:
    tokens = {"inputTokens": 30, "outputTokens": 4}
    rows = {
        "composerData:c": {"modelConfig": {"modelName": "large"}},
        "composerData:copy": {"modelConfig": {"modelName": "default"}},
        "bubbleId:c:1": {"tokenCount": tokens},
        "bubbleId:c:2": {"tokenCount": tokens, "modelInfo": {"modelName": "tiny"}},
        "bubbleId:c:3": {"tokenCount": {"inputTokens": 0, "outputTokens": 0}},
        "bubbleId:copy:1": {"tokenCount": tokens},
    }
    path = tmp_path / "state.vscdb"
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("CREATE TABLE cursorDiskKV (key TEXT, value BLOB)")
        connection.execute("INSERT INTO cursorDiskKV VALUES ('bubbleId:c:gone', NULL)")
        pairs = [(key, json.dumps(value)) for key, value in rows.items()]
        connection.executemany("INSERT INTO cursorDiskKV VALUES (?, ?)", pairs)
    assert cursor([path, tmp_path / "other.jsonl"]) == {"large": kinds(30, 4), "tiny": kinds(30, 4)}


def test_a_gemini_message_counts_in_its_last_form(tmp_path: Path) -> None:
    told = {"input": 10, "output": 2, "cached": 4, "thoughts": 3, "tool": 1}
    first = {"id": "g", "type": "gemini", "model": "m", "tokens": {**told, "output": 1}}
    last = {**first, "tokens": told}
    path = lines(tmp_path / "chat.jsonl", {"sessionId": "s"}, first, {"$set": {}}, last)
    document = tmp_path / "chat.json"
    document.write_text(json.dumps({"sessionId": "t", "messages": [last]}, indent=1))
    assert gemini_cli([path, document]) == {"m": kinds(14, 10, 8, 0, 6)}


def test_a_copilot_session_is_summed_up_at_its_end(tmp_path: Path) -> None:
    usage = {"inputTokens": 10, "outputTokens": 7, "cacheReadTokens": 4, "cacheWriteTokens": 1, "reasoningTokens": 2}
    path = lines(
        tmp_path / "events.jsonl",
        {"type": "assistant.message", "data": {"model": "m", "outputTokens": 5}},
        {"type": "session.shutdown", "data": {"modelMetrics": {"m": {"usage": usage}}}},
        {"type": "session.model_change", "data": {"newModel": "n"}},
        {"type": "assistant.message", "data": {"outputTokens": 3}},
    )
    assert copilot_cli([path]) == {"m": kinds(5, 7, 4, 1, 2), "n": kinds(0, 3)}
