"""Codex files as they really are, and as nobody would write them."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.exchange.fixtures.codex.rollouts import (
    OTHER,
    SESSION,
    Imported,
    Line,
    call,
    complete,
    context,
    developer,
    event,
    import_file,
    item,
    line,
    messages,
    meta,
    output,
    said,
    source_of,
    started,
    thought,
    tokens,
    told,
    turn_id,
    user,
)
from weft.exchange.importers.codex import Codex
from weft.exchange.importers.port import NativeCall
from weft.ledger.model import ImagePart, ReasoningPart, TextPart

CORPUS = Path(__file__).parents[4] / "shared" / "corpus"
needs_corpus = pytest.mark.skipif(not CORPUS.is_dir(), reason="the corpus of published sessions is not here")


@cache
def corpus_files() -> list[Path]:
    return sorted([*CORPUS.glob("codex/**/*.jsonl"), *CORPUS.glob("growth-series/codex/**/*.jsonl")])


@cache
def imported(path: Path) -> Imported:
    """Read, counted and checked as every file is."""
    return import_file(path)


def records(path: Path) -> Iterator[dict[str, Any]]:
    for each in path.read_bytes().splitlines():
        try:
            found = orjson.loads(each)
        except orjson.JSONDecodeError:
            continue
        if isinstance(found, dict):
            yield found


@needs_corpus
def test_every_file_of_the_corpus_is_recognised_and_every_record_counted() -> None:
    assert len(corpus_files()) > 50
    for path in corpus_files():
        assert Codex().recognises(source_of(path)), path
        found = imported(path)
        assert found.report.found == sum(1 for _ in records(path)), path
        assert found.report.damaged == 0


@needs_corpus
def test_no_file_of_another_tool_is_taken_for_codex() -> None:
    files = [path for path in sorted(CORPUS.rglob("*")) if path.is_file()]
    others = [path for path in files if "codex" not in path.relative_to(CORPUS).parts[:2]]
    assert len(others) > 50
    assert [path for path in others if Codex().recognises(source_of(path))] == []


@needs_corpus
def test_what_responses_cost_sums_up_to_the_final_total() -> None:
    """Wherever the reports of the file itself do, leaving out those that repeat a total."""

    def size(usage: Any) -> int:
        return sum(usage.get(name, 0) for name in ("input_tokens", "output_tokens")) if usage else 0

    checked = 0
    for path in corpus_files():
        final, spent, last = None, 0, None
        for record in records(path):
            payload: Any = record.get("payload")
            is_report = isinstance(payload, dict) and payload.get("type") == "token_count"
            info = (payload.get("info") if is_report else None) or {}
            total = info.get("total_token_usage")
            if total is not None and total != last:
                last, final = total, size(total)
                spent += size(info.get("last_token_usage"))
        if not final or final != spent or not imported(path).turns:
            continue
        counted = [each.tokens for turn in imported(path).turns for each in messages(turn) if each.tokens]
        parts = [(each.input, each.cached, each.cache_write, each.output) for each in counted]
        assert sum(number or 0 for each in parts for number in each) == final, path
        checked += 1
    assert checked >= 30


@needs_corpus
def test_a_growing_session_keeps_its_closed_turns() -> None:
    for folder in sorted({path.parent for path in CORPUS.glob("growth-series/codex/**/*.jsonl")}):
        before: dict[str, tuple[bytes, ...]] = {}
        for path in sorted(folder.glob("*.jsonl")):
            turns = imported(path).turns
            known = {turn.key: turn.records for turn in turns}
            assert all(known.get(key) == found for key, found in before.items()), path
            before = {turn.key: turn.records for turn in turns if turn.closed}


@needs_corpus
def test_a_spawned_session_begins_with_its_parents_turn() -> None:
    folder = CORPUS / "codex/fayzan123+rungraph/tests/fixtures/codex/2026/08/01"
    parent = imported(next(folder.glob("*11-00-00*.jsonl")))
    child = imported(next(folder.glob("*11-01-00*.jsonl")))
    assert child.turns[0].key == parent.turns[0].key
    assert child.session.parent == parent.session.id
    spawned = [each.spawned for turn in parent.turns for each in turn.items if isinstance(each, NativeCall)]
    assert child.session.id in spawned


@needs_corpus
def test_everything_in_the_corpus_has_the_types_it_should() -> None:
    for path in corpus_files():
        for turn in imported(path).turns:
            assert all(isinstance(name, str) and name for name in turn.names)
            for each in turn.items:
                if isinstance(each, NativeCall):
                    assert isinstance(each.name, str)
                else:
                    assert all(isinstance(part, TextPart | ReasoningPart | ImagePart) for part in each.parts)


def a_bit_of_everything() -> list[Line]:
    """A rollout that touches every table of the importer."""
    one, two = turn_id(1), turn_id(2, 0x3000)
    spawn = {"subagent": {"thread_spawn": {"parent_thread_id": SESSION, "depth": 1, "agent_path": "/lead/x"}}}
    history = [{"type": "compaction", "id": "cmp_1", "encrypted_content": "g"}, {"role": "user", "content": "a"}]
    done = {"type": "CommandExecution", "id": "c1", "command": ["ls"], "parsed_cmd": [{"type": "read", "path": "x"}]}
    change = {"/a": {"type": "update", "unified_diff": "@@ -1 +1,2 @@\n", "move_path": "/b"}, "/n": {"type": "add"}}
    image = {"type": "input_image", "image_url": "data:,", "detail": "low"}
    return [
        meta(OTHER, source=spawn, forked_from_id=SESSION, dynamic_tools=[{"name": "n", "tools": [{"name": "t"}]}]),
        meta(git={"branch": "main"}, base_instructions={"text": "b"}),
        started(one, started_at=1767323000),
        context(one, sandbox_policy={"type": "read-only"}),
        developer("<permissions instructions>"),
        item("message", role="user", content=[{"type": "input_text", "text": "a"}, image, {"type": "odd"}]),
        told("a", local_images=["/p.png"], client_id="c"),
        line("world_state", {"full": True, "state": {}}),
        thought("one", id="rs_1", encrypted_content="g"),
        event("agent_reasoning", text="one"),
        event("agent_message", message="b"),
        said("b", id="msg_1", phase="commentary"),
        call("c1", "spawn_agent", '{"message":"x"}', namespace="collaboration", id="fc_1"),
        event("sub_agent_activity", event_id="c1", agent_thread_id=SESSION, kind="started"),
        event("exec_command_end", call_id="c1", exit_code=1, status="failed", duration={"secs": 1, "nanos": 1}),
        event("patch_apply_end", call_id="exec-1", success=True, changes=change),
        event("mcp_tool_call_end", call_id="c1", result={"Ok": {"isError": True}}, duration={"secs": 0}),
        event("item_completed", turn_id=one, item=done),
        output("c1", [{"type": "input_text", "text": "Exit code: 1\nSuccess. Updated the following files:\nM a\n"}]),
        item("web_search_call", id="ws_1", status="completed", action={"type": "search"}),
        item("tool_search_call", call_id="c3", arguments={"q": 1}),
        item("tool_search_output", call_id="c3", tools=[{"name": "t"}]),
        tokens(10, given=8, cached=3, out=2),
        line("compacted", {"message": "", "replacement_history": history, "window_id": "w", "window_number": 1}),
        event("context_compacted"),
        tokens(10, given=0),
        item("agent_message", author="/lead", recipient="/lead/x", content=[{"type": "input_text", "text": "go"}]),
        said("c"),
        tokens(20, given=8, out=2),
        line("token_usage_record", {"response_id": "r", "usage": {"input_tokens": 1, "output_tokens": 1}}),
        event("error", message="oops", codex_error_info="x"),
        event("thread_name_updated", thread_name="T"),
        event("turn_aborted", turn_id=one, reason="interrupted"),
        event("thread_rolled_back", num_turns=1),
        started(two),
        user("<subagent_notification>{}"),
        user("d"),
        told("d"),
        call("c4"),
        complete(two, last_agent_message="e", completed_at=1767323001, error={"message": "m"}),
        output("c4", {"success": False, "content": "no"}),
        event("thread_settings_applied", thread_settings={"model": "m", "cwd": "/w"}),
        user("f"),
        said("g"),
    ]


BASE = orjson.dumps(a_bit_of_everything())

junk = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Every place within a JSON value."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, each in inner:
        yield (*path, name)
        yield from places(each, (*path, name))


def parent_of(value: Any, path: tuple[Any, ...]) -> Any:
    for name in path[:-1]:
        value = value[name]
    return value


@st.composite
def mutated(draw: st.DrawFn) -> bytes:
    """A rollout with fields dropped or of other types, lines moved, doubled, cut or replaced."""
    lines: list[Any] = orjson.loads(BASE)
    for _ in range(draw(st.integers(1, 6))):
        number = draw(st.integers(0, len(lines) - 1))
        kind = draw(st.sampled_from(["drop", "swap", "swap", "swap", "move", "double", "junk"]))
        found = list(places(lines[number])) if isinstance(lines[number], dict) else []
        if kind in ("drop", "swap") and found:
            path = draw(st.sampled_from(found))
            inside = parent_of(lines[number], path)
            if kind == "drop":
                del inside[path[-1]]
            else:
                inside[path[-1]] = draw(junk)
        elif kind == "move":
            lines.insert(draw(st.integers(0, len(lines) - 1)), lines.pop(number))
        elif kind == "double":
            lines.append(orjson.loads(encoded(lines[number])))
        elif kind == "junk":
            lines[number] = draw(junk)
    data = bytearray(b"".join(encoded(each) + b"\n" for each in lines))
    for _ in range(draw(st.integers(0, 3))):
        at = draw(st.integers(0, len(data) - 1))
        if draw(st.booleans()):
            data[at] = draw(st.integers(0, 255))
        else:
            del data[at : at + draw(st.integers(1, 40))]
    cut = draw(st.integers(0, 40))
    return bytes(data[: len(data) - cut])


def encoded(value: Any) -> bytes:
    try:
        return orjson.dumps(value)
    except TypeError:
        return b"{}"


@given(mutated())
def test_no_damage_makes_reading_fail_or_loses_count(data: bytes) -> None:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "rollout.jsonl"
        path.write_bytes(data)
        Codex().recognises(source_of(path))
        import_file(path, quiet=False)


@given(st.binary(max_size=300), st.integers(0, 700))
def test_no_damage_makes_reading_generation_a_fail(noise: bytes, at: int) -> None:
    whole = (Path(__file__).parents[1] / "fixtures/codex/generation_a.json").read_bytes()
    with TemporaryDirectory() as folder:
        path = Path(folder) / "rollout.json"
        path.write_bytes(whole[: 40 + at] + noise + whole[40 + at + len(noise) :])
        import_file(path)


def test_deep_nesting_harms_nothing(tmp_path: Path) -> None:
    deep = b"[" * 900 + b"]" * 900
    for field in (b'"output"', b'"content"', b'"arguments"', b'"summary"', b'"info"', b'"message"', b'"changes"'):
        lines = b"".join(orjson.dumps(each) + b"\n" for each in a_bit_of_everything())
        path = tmp_path / "rollout.jsonl"
        path.write_bytes(lines.replace(field + b":", field + b":" + deep + b',"was":'))
        import_file(path)


def test_huge_numbers_harm_nothing(tmp_path: Path) -> None:
    lines = b"".join(orjson.dumps(each) + b"\n" for each in a_bit_of_everything())
    path = tmp_path / "rollout.jsonl"
    huge = b"9" * 40
    path.write_bytes(lines.replace(b":8,", b":" + huge + b",").replace(b'"num_turns":1', b'"num_turns":' + huge))
    assert import_file(path).turns
