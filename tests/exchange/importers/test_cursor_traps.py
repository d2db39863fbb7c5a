"""Each trap of Cursor's formats, by name."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import apsw
import pytest

import weft
from tests.exchange.fixtures.cursor.sessions import (
    AGENT,
    COMPOSER,
    FOLDER,
    answer,
    chat_items,
    composer,
    composer_items,
    dialogue,
    put,
    read,
    read_one,
    read_rows,
    rows_of,
    session_rows,
    stamp,
    store_messages,
    tool,
    transcript_lines,
    transcript_path,
    user,
    write_lines,
    write_state,
    write_store,
)
from tests.exchange.reading import called, said, texts
from weft.exchange.importers.cursor import Cursor
from weft.exchange.importers.port import Report
from weft.exchange.importers.testing import as_source
from weft.exchange.importing.run import ImportRun, ImportSummary
from weft.kernel.clock import SystemClock

LONG_AGO = 1_000_000_000


def take(ledger: weft.Ledger, path: Path, age: int = 0) -> ImportSummary:
    for file in (path, *path.rglob("*")) if path.is_dir() else (path,):
        os.utime(file, (LONG_AGO + age, LONG_AGO + age))
    return ImportRun(ledger, [Cursor()], SystemClock()).run([path])


def test_order_exists_only_in_headers(tmp_path: Path) -> None:
    bubbles = dialogue()
    told = composer(*bubbles)
    (found,), _ = read(write_state(tmp_path, rows_of(told, bubbles[::-1])))
    assert [turn.names for turn in found.turns] == [("b1", "b2", "b3", "b4"), ("b5", "b6")]


def test_bubbles_without_headers(tmp_path: Path) -> None:
    """Taken back or generated anew: found apart, by time, never where nobody knows that they belong."""
    standing = [user("b1", "One?", createdAt=stamp(0)), answer("b2", "Two.", createdAt=stamp(50))]
    lost = [
        user("x1", "Wrong?", createdAt=stamp(20)),
        answer("x2", "Quite.", createdAt=stamp(21)),
        answer("y1", "Too early.", createdAt=stamp(-9)),
    ]
    (main, apart), report = read(write_state(tmp_path, rows_of(composer(*standing), [*standing, *lost])))
    assert [turn.key for turn in main.turns] == ["b1"]
    assert apart.session.id == f"{COMPOSER}/without-headers"
    assert apart.session.archived
    assert [(turn.key, turn.names, turn.parent) for turn in apart.turns] == [
        ("y1", ("y1",), None),
        ("x1", ("x1", "x2"), None),
    ]
    assert all(turn.metadata == {"without_header": True} for turn in apart.turns)
    assert report.mapped["bubble.assistant"] == 3


def test_an_answer_without_header_does_not_follow_a_prompt_from_before_another(tmp_path: Path) -> None:
    standing = [user("b1", "Next?", createdAt=stamp(30)), answer("b2", "Yes.", createdAt=stamp(50))]
    lost = [user("x1", "First?", createdAt=stamp(10)), answer("x2", "Regenerated.", createdAt=stamp(40))]
    (_, apart), _ = read(write_state(tmp_path, rows_of(composer(*standing), [*standing, *lost])))
    assert [turn.names for turn in apart.turns] == [("x1",), ("x2",)]


def test_bubbles_whose_session_is_gone_are_found(tmp_path: Path) -> None:
    rows = session_rows(*dialogue()) | {f"composerData:{COMPOSER}": None}
    (found,), report = read(write_state(tmp_path, rows))
    assert found.session.id.endswith("/without-headers")
    assert [turn.key for turn in found.turns] == ["b1", "b5"]
    assert report.kept["composer.deleted"] == 1


def test_a_rewind_leaves_a_branch_and_moves_the_head(tmp_path: Path) -> None:
    """What was taken back keeps its place in the tree, though the session has fewer turns now."""
    longer = [*dialogue(), user("b7", "More?", createdAt=stamp(20)), answer("b8", "More.", createdAt=stamp(21))]
    again = [*dialogue()[:4], user("c1", "Other?", createdAt=stamp(60)), answer("c2", "Other.", createdAt=stamp(61))]
    with weft.open(tmp_path / "ledger.db") as ledger:
        path = write_state(tmp_path / "home", session_rows(*longer))
        take(ledger, path)
        before = list(ledger.thread(COMPOSER).turns)
        rows = rows_of(composer(*again, lastUpdatedAt=1_780_000_099_000), [*longer, *again[4:]])
        take(ledger, write_state(tmp_path / "home", rows), age=1)
        after = ledger.thread(COMPOSER)
        assert [turn.id for turn in after.turns][:1] == [turn.id for turn in before][:1]
        assert [message.text for message in after.messages][-2:] == ["Other?", "Other."]
        old = ledger.turn(before[-1].id)
        assert old.is_current
        assert old.depth == 3
        assert list(ledger.verify()) == []


def test_tool_bubbles_have_no_text(tmp_path: Path) -> None:
    found = read_rows(tmp_path, session_rows(user("b1", "?"), tool("b2"), tool("b3", name="list_dir")))
    assert [call.name for call in called(found.turns[0])] == ["read_file_v2", "list_dir"]


def test_tool_calls_in_a_users_bubble_begin_no_turn(tmp_path: Path) -> None:
    odd = tool("b3") | {"type": 1}
    found = read_rows(tmp_path, session_rows(user("b1", "?"), answer("b2", "!"), odd, answer("b4", "Then.")))
    (turn,) = found.turns
    assert len(called(turn)) == 1
    assert [message.role.value for message in said(turn)] == ["user", "assistant", "assistant"]


def test_tools_without_a_name_are_told_by_number(tmp_path: Path) -> None:
    bubbles = user("b1", "?"), tool("b2", name="", tool=15), tool("b3", name="", tool=777)
    found = read_rows(tmp_path, session_rows(*bubbles))
    assert [call.name for call in called(found.turns[0])] == ["run_terminal_cmd", "tool:777"]


def test_values_are_null_blobs_or_encoded_twice(tmp_path: Path) -> None:
    rows = session_rows(*dialogue())
    rows[f"bubbleId:{COMPOSER}:b1"] = json.dumps(json.dumps(rows[f"bubbleId:{COMPOSER}:b1"]))
    rows[f"bubbleId:{COMPOSER}:b4"] = json.dumps(rows[f"bubbleId:{COMPOSER}:b4"]).encode()
    rows[f"bubbleId:{COMPOSER}:b6"] = None
    (found,), report = read(write_state(tmp_path, rows))
    assert [texts(each) for each in said(found.turns[0])] == [["What is this?"], ["Hm."], ["A test."]]
    assert [texts(each) for each in said(found.turns[1])] == [["Thanks."]]
    assert report.kept["bubble.deleted"] == 1
    assert found.turns[1].metadata == {"missing": ["b6"]}


def test_noughts_are_no_counts(tmp_path: Path) -> None:
    zero = {"inputTokens": 0, "outputTokens": 0}
    found = read_rows(tmp_path, session_rows(user("b1", "?"), answer("b2", "!", tokenCount=zero)))
    assert said(found.turns[0])[1].tokens is None


@pytest.mark.parametrize("nested", [True, False])
def test_the_summary_is_an_object_in_an_object_or_a_text(tmp_path: Path, nested: bool) -> None:
    bubbles = [*dialogue(), user("b7", "Go on."), answer("b8", "Sure.")]
    inside: dict[str, Any] = {"summary": "So far.", "truncationLastBubbleIdInclusive": "b4"}
    inside["clientShouldStartSendingFromInclusiveBubbleId"] = "b5"
    told = {"summary": inside, "lastBubbleId": "b6"} if nested else {**inside, "lastBubbleId": "b6"}
    found = read_rows(tmp_path, session_rows(*bubbles, latestConversationSummary=told))
    assert [turn.key for turn in found.turns] == ["b1", "b5", f"{COMPOSER}#summary#b4", "b7"]
    compaction = found.turns[2].compaction
    assert compaction is not None
    assert (compaction.summary, compaction.through, compaction.first_kept) == ("So far.", 0, 1)
    assert found.turns[3].parent == 2


def test_a_summary_of_bubbles_that_are_gone_is_told_with_the_session(tmp_path: Path) -> None:
    told = {"summary": {"summary": "Long ago.", "truncationLastBubbleIdInclusive": "gone"}}
    found = read_rows(tmp_path, session_rows(*dialogue(), latestConversationSummary=told))
    assert len(found.turns) == 2
    assert found.session.metadata["summaries"] == ["Long ago."]


def test_older_composers_keep_their_bubbles_inline(tmp_path: Path) -> None:
    told = composer(conversation=dialogue(), fullConversationHeadersOnly=[])
    found = read_rows(tmp_path, rows_of(told, []))
    assert [turn.key for turn in found.turns] == ["b1", "b5"]


def test_the_last_bubble_of_a_chat_is_the_box_for_the_next_prompt(tmp_path: Path) -> None:
    chat = chat_items(
        {"type": "user", "id": "u1", "text": "Hello?", "fileSelections": [{"uri": {"fsPath": "/shop/a.py"}}]},
        {"type": "ai", "id": "a1", "text": "Yes.", "rawText": "Yes.", "modelType": "m-1", "requestId": "r1"},
    )
    (found,), report = read(write_state(tmp_path, {}, chat))
    assert (found.session.id, found.session.title) == ("tab-1", "Old chat")
    (turn,) = found.turns
    assert (said(turn)[1].model, turn.closed) == ("m-1", True)
    assert report.kept["bubble.draft"] == 1


def test_a_list_that_only_names_sessions_is_no_session(tmp_path: Path) -> None:
    pointers = {"composer.composerData": {"allComposers": [{"composerId": COMPOSER, "type": "head"}]}}
    found, report = read(write_state(tmp_path, {}, pointers))
    assert found == []
    assert report.found == 1


def test_the_folder_of_older_sessions_is_told_by_their_workspace(tmp_path: Path) -> None:
    user_folder = tmp_path / "Cursor" / "User"
    pointers = {"composer.composerData": {"allComposers": [{"composerId": COMPOSER}]}}
    write_state(user_folder / "workspaceStorage" / "aa11", {}, pointers)
    (user_folder / "workspaceStorage" / "aa11" / "workspace.json").write_text('{"folder":"file:///old%20shop"}')
    rows = session_rows(*dialogue(), workspaceIdentifier=None)
    found = read_one(write_state(user_folder / "globalStorage", rows))
    assert found.session.workspace == "/old shop"
    older = composer_items(user("c1", "Do it."), answer("c2", "Done."))
    found = read_one(write_state(user_folder / "workspaceStorage" / "aa11", {}, older))
    assert found.session.workspace == "/old shop"
    assert found.turns[0].workspace == "/old shop"


def test_a_database_in_use_is_copied_with_its_log(tmp_path: Path) -> None:
    path = tmp_path / "state.vscdb"
    connection = apsw.Connection(str(path))
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA wal_autocheckpoint = 0")
    connection.execute("CREATE TABLE cursorDiskKV (key TEXT UNIQUE ON CONFLICT REPLACE, value BLOB)")
    put(connection, "cursorDiskKV", session_rows(*dialogue()))
    connection.execute("BEGIN EXCLUSIVE")
    before = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
    try:
        assert Cursor().recognises(as_source(path))
        assert len(read_one(path).turns) == 2
        assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == before
    finally:
        connection.execute("ROLLBACK")
        connection.close()


def test_accounts_are_never_read(tmp_path: Path) -> None:
    secrets = {"cursorAuth/accessToken": "cursor-canary", "cursorAuth/cachedEmail": "canary@example.com"}
    found, _ = read(write_state(tmp_path, session_rows(*dialogue()), secrets))
    assert all(b"canary" not in (each.raw or b"") for each in found)


def test_transcripts_have_no_results_and_a_call_that_was_followed_is_done(tmp_path: Path) -> None:
    found = read_one(write_lines(transcript_path(tmp_path, COMPOSER), transcript_lines()))
    write, shell = called(found.turns[0])
    assert (write.status, shell.status) == ("ok", "ok")
    assert write.detail == {"outcome": "not recorded"}
    assert [note.path for note in write.files] == ["/shop/test_x.py"]
    cut = read_one(write_lines(transcript_path(tmp_path, AGENT), transcript_lines()[:2]))
    assert [call.status for call in called(cut.turns[0])] == [None, None]


def test_a_prompt_is_wrapped_in_user_query(tmp_path: Path) -> None:
    found = read_one(write_lines(transcript_path(tmp_path, COMPOSER), transcript_lines()))
    prompt = said(found.turns[0])[0]
    assert texts(prompt) == ["Add tests."]
    assert prompt.context == {"attached_files": ["<file>x.py</file>"]}
    assert [note.path for note in prompt.files] == ["x.py"]


def test_two_sessions_that_begin_with_the_same_words_are_two(tmp_path: Path) -> None:
    one, two = (read_one(write_lines(transcript_path(tmp_path, id), transcript_lines())) for id in (COMPOSER, AGENT))
    assert one.turns[0].records != two.turns[0].records


@pytest.mark.parametrize("kind", ["state", "store"])
def test_a_transcript_of_a_session_that_a_database_has_is_kept_with_it(tmp_path: Path, kind: str) -> None:
    """One session, not two: the transcript is the lesser copy."""
    home = tmp_path / "home"
    id = COMPOSER if kind == "state" else AGENT
    transcript = write_lines(transcript_path(home / ".cursor", id), transcript_lines())
    other = write_lines(transcript_path(home / ".cursor", "55555555-eeee-4eee-8eee-000000000005"), transcript_lines())
    assert not Cursor().is_part(as_source(transcript))
    if kind == "state":
        write_state(home / ".config" / "Cursor" / "User" / "globalStorage", session_rows(*dialogue()))
    else:
        write_store(home / ".cursor" / "chats" / "00ff" / AGENT, store_messages())
    assert Cursor().is_part(as_source(transcript))
    assert not Cursor().is_part(as_source(other))
    with weft.open(tmp_path / "ledger.db") as ledger:
        summary = take(ledger, home)
        assert summary.problems == []
        assert {session.label for session in ledger.sessions()} == {id, "55555555-eeee-4eee-8eee-000000000005"}
        assert summary.of("cursor").kept >= len(transcript_lines())
        assert list(ledger.verify()) == []


def test_messages_that_no_root_lists_lie_apart(tmp_path: Path) -> None:
    lost = ({"role": "user", "content": "<user_query>Never mind.</user_query>"},)
    (main, apart), report = read(write_store(tmp_path / AGENT, store_messages(), unlisted=lost))
    assert (main.session.id, main.session.workspace) == (AGENT, FOLDER)
    assert apart.session.id == f"{AGENT}/without-headers"
    assert [texts(each) for each in said(apart.turns[0])] == [["Never mind."]]
    assert report.kept["node"] == 1


def test_a_cut_root_is_reported_and_its_messages_are_found(tmp_path: Path) -> None:
    path = write_store(tmp_path / AGENT, store_messages())
    connection = apsw.Connection(str(path))
    connection.execute("UPDATE blobs SET data = substr(data, 1, 40) WHERE hex(substr(data, 1, 1)) <> '7B'")
    connection.close()
    report = Report(str(path))
    found = [(each.session.id, list(each.turns)) for each in Cursor().read(as_source(path), report)]
    assert [problem.what for problem in report.problems] == [
        "the root of the store is damaged: a field of no known kind or size"
    ]
    assert sum(len(turns) for _, turns in found) >= 2
