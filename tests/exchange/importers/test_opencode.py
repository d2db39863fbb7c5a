"""opencode's files: how they are known, where they lie, and what they tell of their session."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.exchange.fixtures.opencode.sessions import (
    AT,
    SESSION,
    assistant,
    dialogue,
    export,
    file,
    info,
    read_one,
    source_of,
    text,
    turns_of,
    user,
    write_database,
    write_export,
    write_folder,
)
from weft.exchange.importers.opencode import Opencode
from weft.kernel.enums import AgentRole, MessageSource


def test_places_are_the_database_and_the_older_folders() -> None:
    places = [place.path for place in Opencode().places(Path("/home/ada"), {})]
    data = Path("/home/ada/.local/share/opencode")
    assert places == [data / "opencode.db", data / "storage", data / "project"]


def test_the_data_folder_and_the_database_can_be_elsewhere(tmp_path: Path) -> None:
    (tmp_path / "opencode").mkdir()
    (tmp_path / "opencode" / "opencode-dev.db").touch()
    environment = {"XDG_DATA_HOME": str(tmp_path), "OPENCODE_DB": "/srv/mine.db"}
    places = [place.path for place in Opencode().places(Path("/home/ada"), environment)]
    assert places[0] == tmp_path / "opencode" / "opencode.db"
    assert places[-2:] == [tmp_path / "opencode" / "opencode-dev.db", Path("/srv/mine.db")]


def test_all_three_containers_are_recognised(tmp_path: Path) -> None:
    opencode = Opencode()
    for path in (
        write_export(tmp_path, export(dialogue())),
        write_folder(tmp_path, dialogue()),
        write_database(tmp_path, dialogue()),
    ):
        assert opencode.recognises(source_of(path))
        assert not opencode.is_part(source_of(path))


def test_a_long_export_is_recognised_by_its_beginning(tmp_path: Path) -> None:
    path = write_export(tmp_path, export([user("msg_01", text("x" * 100_000))]))
    assert Opencode().recognises(source_of(path))


def test_a_database_under_another_name_is_recognised_by_its_tables(tmp_path: Path) -> None:
    path = write_database(tmp_path, dialogue()).rename(tmp_path / "backup.sqlite")
    assert Opencode().recognises(source_of(path))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{}",
        b"[1, 2]",
        b'{"info": 3, "messages": []}',
        b'{"sessionId": "a", "messages": []}',
        b'{"type": "session", "id": "ses_1", "time": {"created": 1}, "title": "x"}',
        b"SQLite format 3\0" + b"\0" * 100,
        b"\xff\xfe\x00",
        b"not json at all",
    ],
)
def test_files_of_others_are_not_recognised(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "some.json"
    path.write_bytes(data)
    assert not Opencode().recognises(source_of(path))
    assert not Opencode().is_part(source_of(path))


def test_messages_and_parts_of_the_folder_are_parts_of_their_session(tmp_path: Path) -> None:
    path = write_folder(tmp_path, dialogue())
    storage = path.parents[2]
    (storage / "todo").mkdir()
    (storage / "todo" / f"{SESSION}.json").write_text("[]")
    (storage / "project").mkdir()
    (storage / "project" / "project1.json").write_text('{"id": "project1", "worktree": "/shop", "time": {}}')
    others = [each for each in storage.rglob("*.json") if each != path]
    assert len(others) == 4 + 5 + 2
    for each in others:
        assert Opencode().is_part(source_of(each))
        assert not Opencode().recognises(source_of(each))


def test_a_file_of_somebody_else_in_a_folder_called_message_is_no_part(tmp_path: Path) -> None:
    path = tmp_path / "message" / "a" / "b.json"
    path.parent.mkdir(parents=True)
    path.write_text('{"subject": "hello"}')
    assert not Opencode().is_part(source_of(path))


def test_what_the_info_says_is_told_of_the_session(tmp_path: Path) -> None:
    session = info(
        title="Fix it",
        time={"created": AT, "updated": AT, "archived": AT + 5},
        share={"url": "https://example.org/s/1"},
        summary={"additions": 1, "deletions": 2, "files": 1, "diffs": [{"file": "a", "patch": "..."}]},
        cost=0.25,
    )
    found = read_one(write_export(tmp_path, export(dialogue(), session, todos=[{"content": "x", "status": "pending"}])))
    told = found.session
    assert (told.id, told.title, told.workspace, told.version, told.created) == (
        SESSION,
        "Fix it",
        "/shop",
        "1.18.4",
        AT,
    )
    assert told.archived
    assert told.parent is None
    assert told.metadata["share"] == "https://example.org/s/1"
    assert told.metadata["summary"] == {"additions": 1, "deletions": 2, "files": 1}
    assert told.metadata["cost"] == 0.25
    assert told.metadata["todos"] == [{"content": "x", "status": "pending"}]


def test_a_subagents_session_names_its_parent_task_and_agent(tmp_path: Path) -> None:
    session = info(parentID="ses_above", title="Find the tests (@explore subagent)")
    found = read_one(write_export(tmp_path, export(dialogue(), session)))
    assert (found.session.parent, found.session.task, found.session.agent) == ("ses_above", "Find the tests", "explore")
    assert {turn.role for turn in found.turns} == {AgentRole.WORKER}
    assert found.turns[0].items[0].source is MessageSource.AGENT  # type: ignore[union-attr]


def test_a_turn_says_where_how_and_by_what_it_ran(tmp_path: Path) -> None:
    tools = {"bash": True, "edit": False, "read": True}
    (turn,) = turns_of(
        tmp_path,
        user("msg_01", text("Go."), tools=tools, summary={"diffs": [{"file": "a.py", "additions": 1, "patch": "p"}]}),
        assistant("msg_02", "msg_01", text("Gone.")),
        session=info(permission=[{"permission": "bash", "pattern": "*", "action": "ask"}]),
    )
    assert (turn.workspace, turn.version, turn.toolset) == ("/shop/sub", "1.18.4", "build")
    assert turn.tools == ("bash", "read")
    assert turn.permissions == [{"permission": "bash", "pattern": "*", "action": "ask"}]
    assert turn.config == {"agent": "build", "model": "large", "provider": "acme", "variant": "high", "tools": tools}
    assert turn.metadata == {"diffs": [{"file": "a.py", "additions": 1}]}
    assert (turn.started, turn.ended) == (AT + 1, AT + 3)


def test_tools_that_are_only_turned_off_do_not_say_which_there_were(tmp_path: Path) -> None:
    turns = turns_of(tmp_path, user("msg_01", text("Go."), tools={"todowrite": False}))
    assert turns[0].tools is None


def test_an_untitled_subagent_keeps_its_title(tmp_path: Path) -> None:
    found = read_one(write_export(tmp_path, export(dialogue(), info(parentID="ses_above", title="Plain"))))
    assert (found.session.title, found.session.task) == ("Plain", None)


def test_nothing_named_in_a_transcript_is_opened(tmp_path: Path) -> None:
    secret = tmp_path / "secret.txt"
    secret.write_text("hidden words")
    turns = turns_of(tmp_path, user("msg_01", text("See."), file(secret.as_uri(), filename="secret.txt")))
    assert "hidden words" not in json.dumps([record.decode() for record in turns[0].records])
    assert "hidden words" not in repr(turns)
