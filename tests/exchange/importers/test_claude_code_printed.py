"""What Claude Code prints while it runs, saved to a file: the same messages with other words around them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson
import pytest

from tests.exchange.fixtures.claude_code.lines import Read, calls, messages, read, source_of
from weft.exchange.importers.claude_code import ClaudeCode
from weft.exchange.importers.port import Tokens
from weft.kernel.enums import AgentRole, MessageSource

SESSION = "7515f181-14c5-4540-9107-4f1d1267cf83"
RUN = f"{SESSION}/print-e0c1aa11"
Json = dict[str, Any]


def printed(kind: str, uuid: str, **fields: Any) -> Json:
    return {"type": kind, "session_id": SESSION, "uuid": uuid, **fields}


def begun(uuid: str = "e0c1aa11-0000", **fields: Any) -> Json:
    told = {"cwd": "/shop", "tools": ["Bash", "Task"], "mcp_servers": [], "model": "claude-opus-5"}
    told |= {"permissionMode": "plan", "claude_code_version": "2.1.270"}
    return printed("system", uuid, subtype="init", **told, **fields)


def answered(uuid: str, id: str, *content: Json, asker: str | None = None) -> Json:
    usage = {"input_tokens": 1, "output_tokens": 2, "cache_read_input_tokens": 3, "cache_creation_input_tokens": 4}
    message = {"id": id, "role": "assistant", "model": "claude-opus-5", "content": list(content), "usage": usage}
    return printed("assistant", uuid, message=message, parent_tool_use_id=asker)


def told(uuid: str, *content: Json, asker: str | None = None) -> Json:
    return printed("user", uuid, message={"role": "user", "content": list(content)}, parent_tool_use_id=asker)


def said(words: str) -> Json:
    return {"type": "text", "text": words}


def asked(id: str, name: str, **given: Any) -> Json:
    return {"type": "tool_use", "id": id, "name": name, "input": given}


def result(id: str, words: str) -> Json:
    return {"type": "tool_result", "tool_use_id": id, "content": words}


def run() -> list[Json]:
    """One that asks a subagent."""
    return [
        begun(),
        answered("a1", "m1", said("I look.")),
        answered("a2", "m1", asked("c1", "Task", description="Look around", prompt="Look", subagent_type="Explore")),
        told("s1", said("Look"), asker="c1"),
        answered("s2", "m2", asked("c2", "Bash", command="ls"), asker="c1"),
        told("s3", result("c2", "a.py"), asker="c1"),
        told("a3", result("c1", "found a.py")),
        printed("rate_limit_event", "x1", rate_limit_info={}),
        answered("a4", "m3", said("Done.")),
        printed("result", "x2", subtype="success", is_error=False, num_turns=3, total_cost_usd=0.1, result="Done."),
    ]


def write_lines(folder: Path, lines: list[Json]) -> Path:
    path = folder / "run.jsonl"
    path.write_bytes(b"".join(orjson.dumps(line) + b"\n" for line in lines))
    return path


def write_list(folder: Path, lines: list[Json]) -> Path:
    path = folder / "execution-output.json"
    path.write_bytes(orjson.dumps(lines, option=orjson.OPT_INDENT_2))
    return path


def check(found: Read) -> None:
    main, child = found.sessions
    assert (main.id, main.workspace, main.version, main.parent) == (RUN, "/shop", "2.1.270", None)
    assert main.metadata["session_id"] == SESSION
    assert main.metadata["result"] == {"subtype": "success", "is_error": False, "num_turns": 3, "total_cost_usd": 0.1}
    assert (child.id, child.parent, child.spawn_call) == (f"{RUN}/agent-c1", RUN, "c1")
    assert (child.agent, child.task) == ("Explore", "Look around")
    (first,), (second,) = found.turns_of.values()
    assert (first.tools, first.permissions, first.workspace) == (("Bash", "Task"), {"mode": "plan"}, "/shop")
    assert [message.native for message in messages(first)] == ["m1", "m3"]
    assert messages(first)[0].tokens == Tokens(input=1, output=2, cached=3, cache_write=4)
    (call,) = calls(first)
    assert (call.id, call.result, call.spawned) == ("c1", "found a.py", child.id)
    assert (second.role, messages(second)[0].source) == (AgentRole.WORKER, MessageSource.AGENT)
    assert [call.result for call in calls(second)] == ["a.py"]
    assert (second.workspace, second.tools) == ("/shop", None)
    assert (set(found.report.kept), found.report.unknown) == ({"system/init", "rate_limit_event"}, {})


@pytest.mark.parametrize("write", [write_lines, write_list])
def test_a_run_is_a_session_and_the_subagents_in_it_are_others(tmp_path: Path, write: Any) -> None:
    path = write(tmp_path, run())
    assert ClaudeCode().recognises(source_of(path))
    check(read(path))


def test_a_long_list_is_recognised_by_its_beginning(tmp_path: Path) -> None:
    path = write_list(tmp_path, [*run(), *(answered(f"b{n}", f"n{n}", said("x" * 1000)) for n in range(100))])
    assert ClaudeCode().recognises(source_of(path))
    assert len(messages(read(path).turns[0])) == 102


def test_runs_of_one_session_stay_apart(tmp_path: Path) -> None:
    """What is printed when a session is resumed does not tell what came before."""
    again = [begun("f1d2bb22-0000"), answered("b1", "n1", said("Again."))]
    found = read(write_lines(tmp_path, [begun(), answered("a1", "m1", said("Once.")), *again]))
    assert [session.id for session in found.sessions] == [RUN, f"{SESSION}/print-f1d2bb22"]
    assert [[turn.parent for turn in turns] for turns in found.turns_of.values()] == [[None], [None]]


def test_lines_of_older_versions_have_no_ids(tmp_path: Path) -> None:
    lines = [{name: value for name, value in line.items() if name != "uuid"} for line in run()]
    path = write_lines(tmp_path, lines)
    assert ClaudeCode().recognises(source_of(path))
    found = read(path)
    assert [session.id for session in found.sessions] == [f"{SESSION}/print-whole", f"{SESSION}/print-whole/agent-c1"]
    (first,), (second,) = found.turns_of.values()
    assert [call.result for turn in (first, second) for call in calls(turn)] == ["found a.py", "a.py"]


@pytest.mark.parametrize(
    "data",
    [
        b'[{"role": "user", "content": "hi"}, {"role": "assistant", "content": "ho"}]',
        b'[{"type": "user", "message": {"role": "user", "content": "hi"}}]',
        b"[1, 2, 3]",
        b"[" * 5000,
        b'[{"type": "user", "session_id": "s", "text": "hi"}]',
    ],
)
def test_other_lists_are_not_recognised_and_read_without_harm(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "list.json"
    path.write_bytes(data)
    assert not ClaudeCode().recognises(source_of(path))
    read(path)
