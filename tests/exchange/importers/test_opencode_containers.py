"""The same session read from opencode's folder, database and export is the same session."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import apsw
import orjson
import pytest

from tests.exchange.fixtures.opencode.sessions import (
    AT,
    SCHEMA,
    SESSION,
    Json,
    Message,
    add_session,
    assert_counted,
    assert_sound,
    assistant,
    dialogue,
    export,
    file,
    info,
    read,
    read_one,
    reasoning,
    said,
    source_of,
    text,
    tool,
    user,
    write_database,
    write_export,
    write_folder,
)
from weft.exchange.importers.opencode import Opencode


def everything() -> list[Message]:
    """A session with a part of every kind."""
    other = {"type": "from the future", "data": [1]}
    steps: list[Json] = [
        {"type": "step-start", "snapshot": "s"},
        {"type": "step-finish", "tokens": {"input": 1}, "cost": 0},
    ]
    messages = [
        user("msg_01", text("See"), file("data:image/png;base64,AA", "image/png"), text("injected", synthetic=True)),
        assistant(
            "msg_02", "msg_01", steps[0], reasoning("Hm."), tool("task", metadata={"sessionId": "ses_x"}), steps[1]
        ),
        assistant("msg_03", "msg_01", text("So."), {"type": "patch", "hash": "h", "files": ["/a"]}, other),
        user("msg_04", {"type": "compaction", "auto": False, "tail_start_id": "msg_01"}),
        assistant("msg_05", "msg_04", text("Summed up."), summary=True),
        user(
            "msg_06",
            {"type": "agent", "name": "a"},
            {"type": "subtask", "prompt": "p", "agent": "b", "description": "d"},
        ),
        assistant("msg_07", "msg_06", tool(status="error", error="broken"), error={"name": "X", "data": {}}),
    ]
    for number, (message, _) in enumerate(messages):
        message["time"] = {"created": AT + 10 * number, "completed": AT + 10 * number + 5}
    return messages


def test_all_containers_give_equal_keys_records_and_items(tmp_path: Path) -> None:
    paths = [write_export(tmp_path, export(everything())), write_folder(tmp_path, everything()),
             write_database(tmp_path, everything())]  # fmt: skip
    one, two, three = (read_one(path) for path in paths)
    for other in (two, three):
        assert [turn.key for turn in one.turns] == [turn.key for turn in other.turns]
        assert [turn.records for turn in one.turns] == [turn.records for turn in other.turns]
        assert [turn.items for turn in one.turns] == [turn.items for turn in other.turns]
        assert [turn.compaction for turn in one.turns] == [turn.compaction for turn in other.turns]
        assert one.session == other.session
    reports = [read(path)[1] for path in paths]
    assert reports[0].mapped == reports[1].mapped == reports[2].mapped
    assert [report.unknown for report in reports] == [{"part.from the future": 1}] * 3


def test_the_order_of_messages_is_the_order_of_time_and_not_of_file_names(tmp_path: Path) -> None:
    messages = [
        user("msg_b", text("One."), time={"created": AT}),
        assistant("msg_a", "msg_b", time={"created": AT + 1}),
    ]
    for path in (write_folder(tmp_path, messages), write_database(tmp_path, messages)):
        found = read_one(path)
        assert [message.native for message in said(found.turns[0])] == ["msg_b", "msg_a"]


@pytest.mark.parametrize("write", [write_folder, write_database])
def test_the_verbatim_copy_holds_every_row_as_a_json_line(tmp_path: Path, write: Any) -> None:
    found = read_one(write(tmp_path, dialogue()))
    assert found.raw is not None
    lines = [orjson.loads(line) for line in found.raw.splitlines()]
    assert [line["kind"] for line in lines] == ["session", "message", "part", "message", "part", "part",
                                                "message", "part", "message", "part"]  # fmt: skip
    assert lines[2]["data"]["text"] == "What is this?"
    assert [(turn.offset, turn.end) for turn in found.turns] == [(1, 6), (6, 10)]


def test_an_export_is_its_own_verbatim_copy(tmp_path: Path) -> None:
    assert read_one(write_export(tmp_path, export(dialogue()))).raw is None


def test_a_database_gives_one_transcript_per_session(tmp_path: Path) -> None:
    path = write_database(tmp_path, dialogue())
    connection = apsw.Connection(str(path))
    child: list[Message] = [({**message, "id": f"{message['id']}x"}, []) for message, _ in dialogue()[:1]]
    add_session(connection, child, info(id="ses_two", parentID=SESSION, time={"created": AT + 5, "updated": AT}))
    connection.close()
    found, report = read(path)
    assert [(each.session.id, each.session.parent, len(each.turns)) for each in found] == [
        (SESSION, None, 2),
        ("ses_two", SESSION, 1),
    ]
    assert_counted(report)


def test_what_is_only_in_the_write_ahead_log_is_read_and_nothing_is_written(tmp_path: Path) -> None:
    """The tool is running: its database is open, and the newest rows are in the log alone."""
    path = tmp_path / "opencode.db"
    writer = apsw.Connection(str(path))
    writer.execute("PRAGMA journal_mode = WAL; PRAGMA wal_autocheckpoint = 0")
    writer.execute(SCHEMA)
    add_session(writer, dialogue())
    writer.execute("BEGIN IMMEDIATE")
    before = {each.name: (each.stat().st_size, each.stat().st_mtime_ns) for each in tmp_path.glob("opencode.db*")}
    found = read_one(path)
    assert len(found.turns) == 2
    assert {
        each.name: (each.stat().st_size, each.stat().st_mtime_ns) for each in tmp_path.glob("opencode.db*")
    } == before
    writer.close()


def test_the_copy_of_a_database_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    read_one(write_database(tmp_path, dialogue()))
    assert os.listdir(tmp_path / "temporary") == []


def test_messages_without_a_session_row_make_a_session(tmp_path: Path) -> None:
    path = tmp_path / "opencode.db"
    connection = apsw.Connection(str(path))
    connection.execute("CREATE TABLE message(id TEXT PRIMARY KEY, session_id TEXT NOT NULL, data TEXT NOT NULL)")
    data = {"id": "inside", "role": "assistant", "time": {"created": AT + 0.0, "completed": AT + 5.0}}
    connection.execute("INSERT INTO message VALUES ('row-1', 'ses-old', ?)", (json.dumps(data),))
    connection.close()
    found = read_one(path)
    assert (found.session.id, [turn.key for turn in found.turns], found.turns[0].started) == ("ses-old", ["row-1"], AT)


def test_rows_that_are_no_json_and_parts_without_a_message_harm_no_others(tmp_path: Path) -> None:
    path = write_database(tmp_path, dialogue())
    connection = apsw.Connection(str(path))
    connection.execute("INSERT INTO part VALUES ('prt_02_99', 'msg_02', 'ses_one', 1, 1, '{broken')")
    connection.execute("INSERT INTO part VALUES ('prt_lost', 'msg_gone', 'ses_one', 1, 1, '{\"type\": \"text\"}')")
    connection.execute("INSERT INTO message VALUES ('msg_99', 'ses_one', 99, 1, NULL)")
    connection.execute("INSERT INTO todo VALUES ('ses_one', 'tidy up', 'pending', 'low', 0)")
    connection.close()
    (found,), report = read(path)
    assert_counted(report)
    assert_sound(found)
    assert (report.damaged, report.kept) == (2, {"part.without message": 1})
    assert [part.text for part in said(found.turns[0])[1].parts] == ["Hm.", "A test."]  # type: ignore[union-attr]
    assert found.session.metadata["todos"] == [{"content": "tidy up", "status": "pending", "priority": "low"}]
    assert found.raw is not None
    assert b"{broken" in found.raw


def test_messages_that_are_told_a_second_time_in_the_form_of_a_later_version_are_kept(tmp_path: Path) -> None:
    path = write_database(tmp_path, dialogue())
    connection = apsw.Connection(str(path))
    connection.execute("CREATE TABLE session_message(id text, session_id text, type text, data text)")
    connection.execute("INSERT INTO session_message VALUES ('1', 'ses_one', 'shell', '{}')")
    connection.close()
    (found,), report = read(path)
    assert_counted(report)
    assert (len(found.turns), report.kept, report.unknown) == (2, {"session_message.shell": 1}, {})


def test_tables_with_accounts_are_never_read(tmp_path: Path) -> None:
    path = write_database(tmp_path, dialogue())
    connection = apsw.Connection(str(path))
    connection.execute("INSERT INTO account VALUES ('ada@example.org', 'top-secret')")
    connection.close()
    found = read_one(path)
    assert b"top-secret" not in (found.raw or b"")


def test_views_in_place_of_tables_are_not_run(tmp_path: Path) -> None:
    path = tmp_path / "opencode.db"
    connection = apsw.Connection(str(path))
    endless = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT i id, i session_id, i data FROM n"
    connection.execute(f"CREATE VIEW message AS {endless}; CREATE TABLE session(id text)")
    connection.close()
    found, report = read(path)
    assert (found, report.found) == ([], 0)


@pytest.mark.parametrize("keep", [100, 1500, 5000])
def test_a_damaged_database_is_reported(tmp_path: Path, keep: int) -> None:
    path = write_database(tmp_path, dialogue() * 1)
    data = path.read_bytes()
    path.write_bytes(data[:keep] + b"\xa5" * (len(data) - keep))
    found, report = read(path)
    assert_counted(report)
    assert report.problems or sum(len(each.turns) for each in found) == 2


def test_the_older_layout_below_project_is_read(tmp_path: Path) -> None:
    root = tmp_path / "project" / "work" / "storage" / "session"
    for path, value in [
        (root / "info" / "ses_one.json", info()),
        *((root / "message" / "ses_one" / f"{message['id']}.json", message) for message, _ in dialogue()),
        *(
            (root / "part" / "ses_one" / message["id"] / f"{part['id']}.json", part)
            for message, parts in dialogue()
            for part in parts
        ),
    ]:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(value))
    older = read_one(root / "info" / "ses_one.json")
    assert older.turns[1].items == read_one(write_export(tmp_path, export(dialogue()))).turns[1].items


def test_messages_that_hold_their_parts_themselves_are_read(tmp_path: Path) -> None:
    path = write_folder(tmp_path, [])
    messages = path.parents[2] / "message" / SESSION
    messages.mkdir(parents=True)
    call = {"state": "result", "toolCallId": "call_1", "toolName": "bash", "args": {"command": "ls"}, "result": "a"}
    for message in (
        {"id": "msg_1", "role": "user", "parts": [{"type": "text", "text": "List."}],
         "metadata": {"sessionID": SESSION, "time": {"created": AT}}},
        {"id": "msg_2", "role": "assistant",
         "parts": [{"type": "step-start"}, {"type": "tool-invocation", "toolInvocation": call},
                   {"type": "file", "mediaType": "image/png", "url": "data:image/png;base64,AA"},
                   {"type": "text", "text": "There."}],
         "metadata": {"sessionID": SESSION, "time": {"created": AT + 1, "completed": AT + 2},
                      "tool": {"call_1": {"title": "ls", "time": {"start": AT, "end": AT + 1}}},
                      "assistant": {"modelID": "m", "providerID": "p", "cost": 1, "path": {"cwd": "/w"},
                                    "tokens": {"input": 1, "output": 2}}}},
    ):  # fmt: skip
        (messages / f"{message['id']}.json").write_text(json.dumps(message))
    (turn,) = read_one(path).turns
    prompt, response = said(turn)
    (call_made,) = [item for item in turn.items if not hasattr(item, "role")]
    assert (prompt.native, response.native, response.model, turn.workspace) == ("msg_1", "msg_2", "m", "/w")
    assert (call_made.result, call_made.done) == ("a", AT + 1)
    assert len(response.parts) == 2


def test_a_session_file_whose_messages_are_gone_is_an_empty_session(tmp_path: Path) -> None:
    path = write_folder(tmp_path, [])
    found = read_one(path)
    assert (found.session.id, found.turns) == (SESSION, [])


def test_files_that_are_just_being_written_are_passed_over(tmp_path: Path) -> None:
    path = write_folder(tmp_path, dialogue())
    (path.parents[2] / "message" / SESSION / ".oc-msg_09.json.1.tmp").write_text("{")
    (path.parents[2] / "message" / SESSION / ".msg_08.json").write_text("{")
    assert len(read_one(path).turns) == 2


def test_messages_whose_session_file_is_gone_are_read_together(tmp_path: Path) -> None:
    session = write_folder(tmp_path, dialogue())
    session.unlink()
    messages = sorted((session.parents[2] / "message" / SESSION).iterdir())
    opencode = Opencode()
    assert [opencode.is_part(source_of(each)) for each in messages] == [False, True, True, True]
    assert [opencode.recognises(source_of(each)) for each in messages] == [True, False, False, False]
    found = read_one(messages[0])
    assert (found.session.id, [turn.key for turn in found.turns]) == (SESSION, ["msg_01", "msg_03"])


def test_links_in_the_folder_are_not_followed(tmp_path: Path) -> None:
    session = write_folder(tmp_path, dialogue())
    secret = tmp_path / "secret.json"
    secret.write_text('{"type": "text", "text": "hidden words"}')
    (session.parents[2] / "part" / "msg_01" / "prt_link.json").symlink_to(secret)
    found = read_one(session)
    assert b"hidden words" not in (found.raw or b"")
