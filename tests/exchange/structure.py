"""Is a session file built like those that its tool wrote? What holds for every such file is said here; which keys a
record must have, and of which type, is learned from real files."""

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

ENOUGH = 5
"""So many real records of a kind tell what all of them have."""
SEVERAL = 3
_CALLS = ("function_call", "custom_tool_call", "local_shell_call")


def loaded(data: bytes) -> list[Any]:
    return [json.loads(line) for line in data.splitlines()]


def check_claude_code(data: bytes) -> None:
    """Unique ids, links to lines above, one session, and a result for every call."""
    lines = [line for line in loaded(data) if "uuid" in line]
    assert {line["sessionId"] for line in loaded(data)} == {lines[0]["sessionId"]}
    seen: dict[str, Any] = {}
    calls: dict[str, str] = {}
    answered: set[str] = set()
    for line in lines:
        assert line["uuid"] not in seen
        is_boundary = line.get("subtype") == "compact_boundary"
        above = line["logicalParentUuid"] if is_boundary else line["parentUuid"]
        assert above in seen if seen else above is None, line
        assert line["isSidechain"] is False
        seen[line["uuid"]] = line
        for block in _blocks(line):
            if block["type"] == "tool_use":
                calls[block["id"]] = line["uuid"]
            elif block["type"] == "tool_result" and block["tool_use_id"] in calls:
                answered.add(block["tool_use_id"])
                source = line.get("sourceToolAssistantUUID")
                assert source is None or source in seen
    assert calls.keys() == answered


def _blocks(line: Any) -> list[Any]:
    content = line.get("message", {}).get("content")
    return [block for block in content if isinstance(block, dict)] if isinstance(content, list) else []


def check_codex(data: bytes) -> None:
    """The session first and once; turns that are told apart; an output for every call."""
    lines = loaded(data)
    assert [line["type"] for line in lines].index("session_meta") == 0
    assert sum(line["type"] == "session_meta" for line in lines) == 1
    items = [line["payload"] for line in lines if line["type"] == "response_item"]
    calls = [item["call_id"] for item in items if item.get("type") in _CALLS and item.get("call_id")]
    outputs = [item.get("call_id") for item in items if str(item.get("type")).endswith("_output")]
    assert set(calls) <= set(outputs)
    started = [line["payload"]["turn_id"] for line in lines if line["payload"].get("type") == "task_started"]
    assert len(set(started)) == len(started)


class Structure:
    """Which keys the records of each kind have in real files: always, or ever, and of which types."""

    def __init__(self, records: Iterable[tuple[str, dict[str, Any]]]) -> None:
        self._count: dict[str, int] = defaultdict(int)
        self._having: dict[str, dict[str, int]] = defaultdict(lambda: defaultdict(int))
        self._types: dict[tuple[str, str], set[str]] = defaultdict(set)
        for kind, record in records:
            self._count[kind] += 1
            for key, value in record.items():
                self._having[kind][key] += 1
                self._types[kind, key].add(_type(value))
        partly = Counter(key for kind, keys in self._having.items() for key, n in keys.items() if n < self._count[kind])
        self._loose = {key for key, kinds in partly.items() if kinds >= SEVERAL}

    def kinds(self) -> set[str]:
        return {kind for kind, count in self._count.items() if count >= ENOUGH}

    def required(self, kind: str) -> set[str]:
        """What every record of this kind has. Fields that several kinds have now and then (a session's nickname) come
        with the session, not with the record."""
        if self._count[kind] < ENOUGH:
            return set()
        return {key for key, n in self._having[kind].items() if n == self._count[kind]} - self._loose

    def faults(self, kind: str, record: dict[str, Any]) -> Iterator[str]:
        if self._count[kind] < ENOUGH:
            return
        for key in self.required(kind) - record.keys():
            yield f"{kind} lacks {key}"
        for key, value in record.items():
            if key not in self._having[kind]:
                yield f"{kind} has {key}, which no real one has"
            elif _type(value) not in self._types[kind, key]:
                yield f"{kind}.{key} is {_type(value)}, in real ones {sorted(self._types[kind, key])}"


def _type(value: Any) -> str:
    if isinstance(value, bool):
        return "bool"
    return "number" if isinstance(value, int | float) else type(value).__name__


def claude_records(lines: Iterable[Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every record with its kind; what lies inside one is a record of its own."""
    for line in lines:
        kind = line.get("type")
        message = line.get("message")
        if kind == "system":
            yield f"system/{line.get('subtype')}", line
        elif kind == "user" and isinstance(message, dict):
            results = [block for block in _blocks(line) if block.get("type") == "tool_result"]
            named = "summary" if line.get("isCompactSummary") else "result" if results else "prompt"
            yield f"user/{named}", line
            yield from ((f"block/{block.get('type')}", block) for block in _blocks(line))
        elif kind == "assistant" and isinstance(message, dict):
            yield "assistant", line
            yield "message", message
            if isinstance(message.get("usage"), dict):
                yield "usage", message["usage"]
            yield from ((f"block/{block.get('type')}", block) for block in _blocks(line))
        elif kind == "ai-title":
            yield kind, line


def codex_records(lines: Iterable[Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    for line in lines:
        payload = line.get("payload")
        if not isinstance(payload, dict):
            continue
        yield "line", line
        kind = line["type"]
        if kind in ("response_item", "event_msg"):
            role = f"/{payload['role']}" if payload.get("type") == "message" else ""
            yield f"{kind}/{payload.get('type')}{role}", payload
            content = payload.get("content")
            blocks = content if isinstance(content, list) else []
            yield from ((f"block/{block.get('type')}", block) for block in blocks if isinstance(block, dict))
        else:
            yield kind, payload


def real_lines(folder: Path) -> Iterator[tuple[Path, list[Any]]]:
    """The whole lines of every real file below a folder."""
    for path in sorted(folder.rglob("*.jsonl")):
        lines = []
        for line in path.read_bytes().splitlines():
            try:
                found = json.loads(line)
            except ValueError:
                continue
            if isinstance(found, dict):
                lines.append(found)
        yield path, lines


def learn_claude_code(folder: Path) -> Structure:
    """From sessions of the structure that is written, of some length: fixtures are short."""

    def real() -> Iterator[Any]:
        for _, lines in real_lines(folder):
            versions = [str(line.get("version")) for line in lines if "version" in line]
            if len(lines) >= 20 and versions and all(version.startswith("2.1.") for version in versions):
                yield from lines

    return Structure(claude_records(real()))


def learn_codex(folder: Path) -> Structure:
    def real() -> Iterator[Any]:
        for _, lines in real_lines(folder):
            meta = lines[0].get("payload") if lines else None
            version = str(meta.get("cli_version")) if isinstance(meta, dict) else ""
            if len(lines) >= 20 and version.startswith("0.14"):
                yield from lines

    return Structure(codex_records(real()))
