"""The tables of the agents ledger schema, as a plain read-only shell sees them."""

import json
import re
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

import weft
from tests.ledger.conftest import NOON, OpenLedger
from tests.ledger.histories import grow, plain_reader, problems, select
from tests.ledger.imported import rich_import
from weft.kernel.clock import FixedClock
from weft.ledger.api.ledger import Ledger

PAGE = Path(__file__).parents[2] / "docs" / "sql.md"
SEED = {
    "turns": "id parent_turn_id turn_type status started_at completed_at model provider role toolset_name"
    " tools_available permissions_granted permissions_used input_tokens output_tokens cached_input_tokens"
    " cache_write_tokens reasoning_tokens total_tokens query_message_ids response_message_id has_children"
    " tool_call_count source_event_id workspace_path",
    "threads": "turn_id ancestry total_tokens depth persona_id system_prompt_hash thread_key",
    "sessions": "label thread_id persona_id is_subagent parent_session_label parent_turn_id spawn_tool_call_id"
    " task_description task_status routing_key origin origin_session_id created_at updated_at status",
    "messages": "id turn_id role content source sequence created_at thinking context_json metadata_json",
    "tool_calls": "id turn_id message_id tool_name tool_number params_json result_json error status"
    " spawned_session_label started_at completed_at sequence",
    "compactions": "turn_id summary summarized_through_turn_id first_kept_turn_id turns_summarized compaction_type"
    " model provider tokens_before tokens_after summary_tokens summarization_input_tokens summarization_output_tokens"
    " duration_ms trigger metadata_json",
    "session_history": "id session_label thread_id changed_at",
    "session_aliases": "alias session_label created_at reason",
    "message_files": "id message_id kind file_path line_start line_end",
    "message_lints": "id message_id file_path message lint_source start_line start_col end_line end_col severity",
    "message_codeblocks": "id message_id idx language content file_path line_start line_end",
}
TOKENS: dict[str, Any] = {
    "input_tokens": 1, "output_tokens": 20, "cached_input_tokens": 300, "cache_write_tokens": 4000,
    "reasoning_tokens": 5, "total_tokens": 4321,
}  # fmt: skip
MEASURES: dict[str, Any] = {
    "tokens_before": 11, "tokens_after": 12, "summary_tokens": 13, "summarization_input_tokens": 14,
    "summarization_output_tokens": 15, "duration_ms": 16,
}  # fmt: skip
READ_BY_MODULE = """
import json, sqlite3, sys
connection = sqlite3.connect(f"file:{sys.argv[1]}?mode=ro", uri=True)
connection.row_factory = sqlite3.Row
print(json.dumps([dict(row) for row in connection.execute(sys.argv[2])]))
"""
Rows = list[dict[str, Any]]
Read = Callable[[str], Rows]


@pytest.fixture(params=["module", "binary"])
def read(request: pytest.FixtureRequest, path: Path) -> Read:
    """Reads the ledger in another process, by Python's own sqlite3 or by the shell."""
    binary = shutil.which("sqlite3")
    command = [sys.executable, "-c", READ_BY_MODULE, str(path)]
    if request.param == "binary":
        if binary is None:
            pytest.skip("there is no sqlite3 shell here")
        command = [binary, "-readonly", "-json", str(path)]

    def run(sql: str) -> Rows:
        done = subprocess.run([*command, sql], capture_output=True, text=True, check=True)
        return list(json.loads(done.stdout)) if done.stdout.strip() else []

    return run


class Story:
    """A history that fills every column of every table."""

    def __init__(self, ledger: Ledger, clock: FixedClock) -> None:
        self.ledger, self.clock = ledger, clock
        self.root = ledger.record_turn(
            session="main", persona="ann", system="the rules", query="hello", response="hi"
        ).id
        clock.tick(1000)
        self.turn = self._full_turn()
        clock.tick(1000)
        self.worker = ledger.create_session(
            "worker", persona="ann", parent_session="main", parent_turn_id=self.turn, spawn_tool_call_id="c2",
            task_description="dig", routing_key="worker:ann", origin="cursor", origin_session_id="composer",
        )  # fmt: skip
        (self.dug,) = grow(ledger, "worker", "dig here")
        self.compaction = ledger.compactions.record(
            session="main", summary="it was said", through=self.root, first_kept=self.turn, model="small",
            provider="p", compaction_type="selective", trigger="manual", metadata={"v": 1}, **MEASURES,
        ).id  # fmt: skip
        ledger.labels.add_alias("nick", "main", reason="identity_merge")
        ledger.upkeep.catch_up()

    def _full_turn(self) -> str:
        block = {"content": "x = 1", "language": "py", "path": "a.py", "line_start": 1, "line_end": 2}
        files = [{"kind": "attached", "path": "b c.md", "line_start": 3, "line_end": 4}]
        lints = [{"path": "a.py", "message": "unused", "source": "ruff", "start_line": 5, "start_col": 6,
                  "end_line": 7, "end_col": 8, "severity": "warning"}]  # fmt: skip
        query = {
            "content": "look",
            "source": "human",
            "context": {"rules": 1},
            "metadata": [2],
            "files": files,
            "lints": lints,
        }
        answer = {
            "content": [{"type": "reasoning", "text": "hm"}, {"type": "text", "text": "see"}],
            "codeblocks": [block],
        }
        with self.ledger.begin_turn(
            session="main", role="manager", toolset="full", tools_available=["read", "a tool"], workspace="/w",
            permissions_granted={"allow": ["x"]}, source_event_id="ev 1",
        ) as writer:  # fmt: skip
            self.query = writer.message(query)
            writer.request("big", provider="anthropic")
            self.answer = writer.response(answer, usage=TOKENS)
            read, spawn = writer.tool_call("read", {"path": "x"}, id="c1", number=9), writer.tool_call("spawn", id="c2")
            writer.tool_result(spawn, {"ok": True}, spawned_session="spawned")
            self.clock.tick(50)
            writer.tool_result(read, error="gone")
            writer.finish(permissions_used=["x"])
        return writer.id


@pytest.fixture
def story(disk: Ledger, clock: FixedClock) -> Story:
    return Story(disk, clock)


@pytest.mark.parametrize("table", SEED)
def test_every_column_of_the_schema_is_there_and_filled(story: Story, read: Read, table: str) -> None:
    rows = read(f"SELECT * FROM {table}")
    assert rows
    for column in SEED[table].split():
        assert any(row[column] is not None for row in rows), f"{table}.{column}"


def only(rows: Rows, columns: str) -> Rows:
    return [{name: row[name] for name in columns.split()} for row in rows]


def test_a_turn_is_told_in_full(story: Story, read: Read) -> None:
    (row,) = only(read(f"SELECT * FROM turns WHERE id = '{story.turn}'"), SEED["turns"])
    assert row == {
        "id": story.turn, "parent_turn_id": story.root, "turn_type": "normal", "status": "completed",
        "started_at": NOON + 1000, "completed_at": NOON + 1050, "model": "big", "provider": "anthropic",
        "role": "manager", "toolset_name": "full", "tools_available": '["read","a tool"]',
        "permissions_granted": '{"allow":["x"]}', "permissions_used": '["x"]', **TOKENS,
        "query_message_ids": json.dumps([story.query]), "response_message_id": story.answer, "has_children": 1,
        "tool_call_count": 2, "source_event_id": "ev 1", "workspace_path": "/w",
    }  # fmt: skip


def test_threads_accumulate_what_their_turns_hold(story: Story, read: Read) -> None:
    rows = {row["turn_id"]: row for row in read("SELECT * FROM threads")}
    assert rows.keys() == {turn.id for turn in story.ledger.log()}
    assert only([rows[story.turn]], SEED["threads"]) == [
        {
            "turn_id": story.turn, "ancestry": json.dumps([story.root, story.turn], separators=(",", ":")),
            "total_tokens": 4321, "depth": 2, "persona_id": "ann",
            "system_prompt_hash": sha256(b"the rules").hexdigest(), "thread_key": "main#2",
        }
    ]  # fmt: skip
    for turn, row in rows.items():
        assert json.loads(row["ancestry"]) == list(story.ledger.thread(turn).ancestry)
        assert story.ledger.resolve(row["thread_key"]) == turn


def test_sessions_are_told_in_full(story: Story, read: Read) -> None:
    rows = {row["label"]: row for row in only(read("SELECT * FROM sessions"), SEED["sessions"])}
    assert rows["worker"] == {
        "label": "worker", "thread_id": story.dug, "persona_id": "ann", "is_subagent": 1,
        "parent_session_label": "main", "parent_turn_id": story.turn, "spawn_tool_call_id": "c2",
        "task_description": "dig", "task_status": "completed", "routing_key": "worker:ann", "origin": "cursor",
        "origin_session_id": "composer", "created_at": NOON + 2050, "updated_at": NOON + 2050, "status": "active",
    }  # fmt: skip
    assert rows["main"]["thread_id"] == story.compaction
    assert (rows["main"]["is_subagent"], rows["main"]["task_status"], rows["main"]["origin"]) == (0, None, "weft")
    assert rows["spawned"]["thread_id"] is None


def test_messages_and_calls_are_told_in_full(story: Story, read: Read) -> None:
    asked, answered = only(
        read(f"SELECT * FROM messages WHERE turn_id = '{story.turn}' ORDER BY sequence"), SEED["messages"]
    )
    assert asked == {
        "id": story.query, "turn_id": story.turn, "role": "user", "content": "look", "source": "human", "sequence": 0,
        "created_at": NOON + 1000, "thinking": None, "context_json": '{"rules":1}', "metadata_json": "[2]",
    }  # fmt: skip
    assert (answered["content"], answered["thinking"], answered["sequence"]) == ("see", "hm", 1)
    read_call, spawn = only(read("SELECT * FROM tool_calls ORDER BY sequence"), SEED["tool_calls"])
    assert read_call == {
        "id": f"{story.turn}:c1", "turn_id": story.turn, "message_id": story.answer, "tool_name": "read",
        "tool_number": 9, "params_json": '{"path":"x"}', "result_json": None, "error": "gone", "status": "failed",
        "spawned_session_label": None, "started_at": NOON + 1000, "completed_at": NOON + 1050, "sequence": 0,
    }  # fmt: skip
    assert (spawn["result_json"], spawn["spawned_session_label"], spawn["status"]) == (
        '{"ok":true}',
        "spawned",
        "completed",
    )


def test_compactions_history_and_aliases_are_told_in_full(story: Story, read: Read) -> None:
    assert only(read("SELECT * FROM compactions"), SEED["compactions"]) == [
        {
            "turn_id": story.compaction, "summary": "it was said", "summarized_through_turn_id": story.root,
            "first_kept_turn_id": story.turn, "turns_summarized": 1, "compaction_type": "selective", "model": "small",
            "provider": "p", "trigger": "manual", "metadata_json": '{"v":1}', **MEASURES,
        }
    ]  # fmt: skip
    moves = read("SELECT * FROM session_history ORDER BY id")
    assert [(row["session_label"], row["thread_id"], row["changed_at"] - NOON) for row in moves] == [
        ("main", story.root, 0),
        ("main", story.turn, 1050),
        ("worker", story.dug, 2050),
        ("main", story.compaction, 2050),
    ]
    assert read("SELECT * FROM session_aliases") == [
        {"alias": "nick", "session_label": "main", "created_at": NOON + 2050, "reason": "identity_merge"}
    ]


def test_what_messages_carry_is_told_in_full(story: Story, read: Read) -> None:
    (file,) = read("SELECT * FROM message_files")
    (lint,) = read("SELECT * FROM message_lints")
    (block,) = read("SELECT * FROM message_codeblocks")
    assert list(file.values())[1:] == [story.query, "attached", "b c.md", 3, 4]
    assert list(lint.values())[1:] == [story.query, "a.py", "unused", "ruff", 5, 6, 7, 8, "warning"]
    assert list(block.values())[1:] == [story.answer, 0, "py", "x = 1", "a.py", 1, 2]


def test_the_events_themselves_can_be_read(story: Story, read: Read) -> None:
    rows = read("SELECT * FROM events ORDER BY n")
    assert [json.loads(row["event_json"]) for row in rows] == [json.loads(c.line) for c in story.ledger.changes()]
    assert {row["kind"] for row in rows} >= {"run_started", "tool_result", "session_moved"}


def test_keys_of_threads_are_unique_and_lead_to_their_turns(disk: Ledger, read: Read) -> None:
    turns = grow(disk, "main", "a", "b", "c")
    disk.record_turn(session="main", query="it failed", error="x")
    disk.move_head("main", new=turns[0])
    grow(disk, "main", "another b")
    disk.labels.delete("main")
    grow(disk, "main", "a new main")
    disk.begin_turn(session="main")
    keys = [row["thread_key"] for row in read("SELECT thread_key FROM threads") if row["thread_key"]]
    assert len(keys) == len(set(keys)) == 1
    assert all(disk.resolve(key) for key in keys)


def test_odd_texts_and_names_are_readable(disk: Ledger, read: Read) -> None:
    tool = {"type": "tool_use", "id": "i", "name": "my tool", "input": {}}
    disk.record_turn(
        session="main", query="nul \0 and \ud800", response={"content": [tool]}, model="my model", toolset="my set",
        tool_calls=[{"name": "my tool", "server": "my server", "error": {"message": "m", "code": "my code"}}],
    )  # fmt: skip
    assert read("SELECT content FROM messages WHERE role = 'user'") == [{"content": "nul \ufffd and \ufffd"}]
    assert read("SELECT model, toolset_name FROM turns") == [{"model": "my model", "toolset_name": "my set"}]
    assert read("SELECT tool_name, server, error_code FROM tool_calls") == [
        {"tool_name": "my tool", "server": "my server", "error_code": "my code"}
    ]
    (row,) = read("SELECT parts_json FROM messages WHERE role = 'assistant'")
    assert json.loads(row["parts_json"])[0]["name"] == "my tool"


def test_a_large_text_is_readable(disk: Ledger, read: Read) -> None:
    disk.record_turn(session="main", query="€" * 500_000, response=disk.put_content("€".encode() * 500_000))
    assert (
        read("SELECT length(content) AS n, substr(content, 349525, 2) AS cut FROM messages")
        == [{"n": 500_000, "cut": "€€"}] * 2
    )


def test_ancestry_is_null_beyond_depth_1000(read: Read, path: Path) -> None:
    with weft.open(":memory:") as ledger:
        turns = [ledger.record_turn(session="main").id for _ in range(1002)]
        ledger.upkeep.backup(path)
    rows = read("SELECT depth, ancestry FROM threads WHERE depth >= 1000 ORDER BY depth")
    assert [row["ancestry"] is None for row in rows] == [False, True, True]
    assert json.loads(rows[0]["ancestry"]) == turns[:1000]


def test_a_reader_sees_each_append_at_once_and_blocks_nobody(open_ledger: OpenLedger, read: Read) -> None:
    ledger = open_ledger()
    for i in range(3):
        ledger.record_turn(session="main", query=f"{i}")
        assert read("SELECT count(*) AS n FROM turns") == [{"n": i + 1}]
    assert problems(ledger) == []


def documented() -> dict[str, dict[str, bool]]:
    """Table -> column -> is it one of the schema's, read from the page."""
    found = {}
    for entry in PAGE.read_text().split("\n## `")[1:]:
        name, _, text = entry.partition("`")
        rows = re.findall(r"^\| `(\w+)` \| (seed)? ?\| .+ \|$", text, re.M)
        found[name] = {column: bool(seed) for column, seed in rows}
    return found


def test_the_page_lists_every_table_and_column_and_no_others(disk: Ledger, path: Path) -> None:
    with plain_reader(path) as ask:
        views = [row["name"] for row in ask("SELECT name FROM sqlite_schema WHERE type = 'view'")]
        columns = {
            view: [row["name"] for row in ask(f"SELECT name FROM pragma_table_info('{view}')")] for view in views
        }
    assert {name: list(listed) for name, listed in documented().items()} == columns


def test_the_page_marks_the_columns_of_the_schema() -> None:
    marked = {name: [column for column, seed in listed.items() if seed] for name, listed in documented().items()}
    assert {name: listed for name, listed in marked.items() if listed} == {
        name: listed.split() for name, listed in SEED.items()
    }


def test_imported_history_is_in_the_tables_too(disk: Ledger, path: Path) -> None:
    rich_import(disk)
    (session,) = select(path, "SELECT title, origin FROM sessions WHERE label = 'main'")
    assert session == {"title": "A title", "origin": "toy"}
    turns = select(path, "SELECT native_id, is_current, time_known FROM turns ORDER BY native_id, is_current")
    assert [(row["native_id"], row["is_current"]) for row in turns] == [
        ("k1", 1),
        ("t1", 1),
        ("t2", 0),
        ("t2", 1),
        ("t3", 1),
    ]
    assert {row["native_id"] for row in turns if not row["time_known"]} == {"k1", "t3"}
    (answer,) = select(path, "SELECT * FROM messages WHERE native_id = 't1-answer'")
    assert (answer["model"], answer["input_tokens"], answer["output_tokens"]) == ("model-1", 10, 5)
    assert json.loads(answer["context_json"]) == {"rules": ["be kind", {"file": "x"}], "branch": "main"}
    assert len(select(path, "SELECT * FROM turn_links")) == 1
    versions = select(path, "SELECT turn_id, current_turn_id FROM turn_versions WHERE native_id = 't2'")
    assert len({row["current_turn_id"] for row in versions}) == 1


def test_the_sqlite_of_python_reads_every_view(path: Path, open_ledger: OpenLedger) -> None:
    """It is often older than the one that Weft brings, and refuses some questions that the newer one answers."""
    with open_ledger() as ledger:
        grow(ledger, "main")
        rich_import(ledger)
    connection = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
    try:
        views = [name for (name,) in connection.execute("SELECT name FROM sqlite_schema WHERE type = 'view'")]
        assert set(SEED) | {"turn_versions", "programs"} <= set(views)
        rows = {view: connection.execute(f"SELECT * FROM {view}").fetchall() for view in views}
    finally:
        connection.close()
    assert all(rows[view] for view in ("turns", "turn_versions", "session_history"))


def test_a_plain_shell_sees_code_blocks_once_the_ledger_is_closed(path: Path, open_ledger: OpenLedger) -> None:
    ledger = open_ledger()
    ledger.record_turn(session="main", query="q", response="see\n```py\nx = 1\n```\n")
    ledger.record_turn(session="main", query="q", response={"content": "", "codeblocks": [{"content": "y"}]})
    ledger.close()
    found = select(path, "SELECT language, content FROM message_codeblocks ORDER BY id")
    assert [tuple(row.values()) for row in found] == [("py", "x = 1\n"), (None, "y")]


def test_closing_reads_no_code_blocks_out_of_a_large_text(path: Path, open_ledger: OpenLedger) -> None:
    ledger = open_ledger()
    ledger.record_turn(session="main", query="q", response="```py\nx\n```\n")
    large = ledger.record_turn(session="main", query="q", response="```py\ny\n```\n" + " " * 1024 * 1024)
    ledger.record_turn(session="main", query="q", response="```py\nz\n```\n")
    ledger.close()
    asked = "SELECT content FROM message_codeblocks ORDER BY id"
    assert [row["content"] for row in select(path, asked)] == ["x\n"]
    again = open_ledger()
    assert [block.content for block in again.codeblocks(str(large.response_message_id))] == ["y\n"]
    assert [row["content"] for row in select(path, asked)] == ["x\n", "y\n", "z\n"]
    assert problems(again) == []
