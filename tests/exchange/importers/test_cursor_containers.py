"""Stores, transcripts, plain texts and exported pages: messages of roles and blocks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import apsw

from tests.exchange.fixtures.cursor.sessions import (
    AGENT,
    AT,
    COMPOSER,
    ENDED,
    EXPORT,
    TEXT,
    Json,
    line,
    message,
    read,
    read_one,
    store_messages,
    text,
    transcript_lines,
    transcript_path,
    use,
    write_lines,
    write_store,
)
from tests.exchange.reading import called, said, texts
from weft.exchange.importers.cursor import Cursor
from weft.exchange.importers.cursor.importer import unwrapped_prompt
from weft.exchange.importers.port import NativeTurn
from weft.exchange.importers.testing import as_source
from weft.exchange.importing.sources import candidates
from weft.kernel.enums import MessageSource, ToolCallStatus
from weft.ledger.model import ImagePart, ReasoningPart, TextPart


def lines(folder: Path, *told: Json) -> list[NativeTurn]:
    return read_one(write_lines(transcript_path(folder, COMPOSER), list(told))).turns


def stored(folder: Path, *told: Json, **meta: Any) -> list[NativeTurn]:
    return read_one(write_store(folder / AGENT, list(told), **meta)).turns


def test_a_store_tells_messages_calls_and_outcomes(tmp_path: Path) -> None:
    found = read_one(write_store(tmp_path / AGENT, store_messages()))
    assert (found.session.title, found.session.created) == ("Listing", AT)
    assert found.session.metadata == {
        "mode": "default",
        "model": "small",
        "context_tokens": 10_000,
        "context_limit": 20_000,
    }
    first, second = found.turns
    assert [message.role.value for message in said(first)] == ["system", "user", "user", "assistant", "assistant"]
    assert [message.source for message in said(first)[:3]] == ["event", "event", "human"]
    assert said(first)[3].parts == (ReasoningPart("Hm."), TextPart("Looking."))
    assert said(first)[3].model == "small"
    (call,) = called(first)
    assert (call.id, call.name, call.arguments, call.result) == ("t1", "Shell", {"command": "ls"}, "a.py")
    assert (second.parent, second.workspace) == (0, "/shop")


def test_the_time_of_a_prompt_is_told_in_a_tag(tmp_path: Path) -> None:
    (first, _) = read_one(write_store(tmp_path / AGENT, store_messages())).turns
    assert first.started == 1_777_254_780_000  # 2026-04-27T01:53Z
    assert unwrapped_prompt(
        "<timestamp>Monday, May 4, 2026, 8:00 AM (UTC+5:30)</timestamp><user_query>x</user_query>"
    ).at == (1_777_861_800_000)
    odd = unwrapped_prompt("<timestamp>yesterday</timestamp><user_query>x</user_query>")
    assert (odd.at, odd.literal_time) == (None, "yesterday")


def test_a_summary_in_a_store_is_a_compaction(tmp_path: Path) -> None:
    summary = message("user", text("All so far."), providerOptions={"cursor": {"isSummary": True}})
    turns = stored(tmp_path, *store_messages(), summary, message("user", text("<user_query>On.</user_query>")))
    assert [turn.compaction.summary if turn.compaction else None for turn in turns] == [None, None, "All so far.", None]
    assert turns[3].parent == 2


def test_a_summary_that_comes_first_is_told_as_what_it_is(tmp_path: Path) -> None:
    """What it stands for is not listed any more, so there is nothing that it could be a compaction of."""
    summary = message("user", text("All so far."), providerOptions={"cursor": {"isSummary": True}})
    (turn,) = stored(
        tmp_path, summary, message("user", text("<user_query>On.</user_query>")), message("assistant", text("!"))
    )
    assert [message.source for message in said(turn)] == ["event", "human", None]


def test_images_in_a_store_are_images(tmp_path: Path) -> None:
    image = {"type": "image", "image": {"__type": "Uint8Array", "hex": "89504e47"}, "mimeType": "image/png"}
    (turn,) = stored(tmp_path, message("user", text("<user_query>See.</user_query>"), image))
    assert said(turn)[0].parts == (TextPart("See."), ImagePart("data:image/png;base64,iVBORw=="))


def test_a_failed_tool_says_so(tmp_path: Path) -> None:
    call = {"type": "tool-call", "toolCallId": "t", "toolName": "Read", "args": {"path": "a"}}
    result = {"type": "tool-result", "toolCallId": "t", "result": "no such file", "isError": True}
    (turn,) = stored(tmp_path, message("user", text("?")), message("assistant", call), message("tool", result))
    (made,) = called(turn)
    assert (made.status, made.error, made.files) == (ToolCallStatus.ERROR, "no such file", ())


def test_a_store_with_a_row_a_name_is_read(tmp_path: Path) -> None:
    path = write_store(tmp_path / AGENT, store_messages())
    connection = apsw.Connection(str(path))
    connection.execute("DELETE FROM meta")
    connection.execute("INSERT INTO meta VALUES ('name', 'Plain'), ('cwd', '/shop')")
    connection.close()
    (found,), _ = read(path)
    assert (found.session.title, found.session.id) == ("Plain (bubbles without headers)", f"{AGENT}/without-headers")


def test_results_without_ids_go_to_the_calls_in_their_order(tmp_path: Path) -> None:
    results = [{"type": "tool_result", "tool_use_id": f"t{n}", "content": [text(f"r{n}")]} for n in (1, 2)]
    asked = line("assistant", use("Read", path="a"), use("Grep", pattern="b"))
    (turn,) = lines(tmp_path, line("user", text("?")), asked, line("user", *results))
    assert [call.result for call in called(turn)] == ["r1", "r2"]


def test_the_end_of_a_turn_is_told(tmp_path: Path) -> None:
    open_tail = lines(tmp_path, *transcript_lines()[:-1])
    assert [turn.closed for turn in open_tail] == [True, False]
    (failed,) = lines(tmp_path, line("user", text("?")), {"type": "turn_ended", "status": "error"})
    assert (failed.closed, failed.error) == (True, "error")
    (stopped,) = lines(tmp_path, line("user", text("?")), {"type": "turn_ended", "status": "aborted"})
    assert (stopped.interrupted, stopped.error) == (True, None)


def test_an_error_line_fails_its_turn(tmp_path: Path) -> None:
    told = {"type": "error", "error": "Provider Error: upstream timeout"}
    (turn,) = lines(tmp_path, line("user", text("hi")), told, line("assistant", text("[REDACTED]")))
    assert turn.error == "Provider Error: upstream timeout"
    assert texts(said(turn)[1]) == ["[REDACTED]"]


def test_blocks_of_unknown_kinds_and_new_fields_stay_beside_the_message(tmp_path: Path) -> None:
    block = {"type": "custom_block", "text": "visible"}
    (turn,) = lines(tmp_path, line("user", text("?")), line("assistant", block, branch={"id": 1}, model="auto-1"))
    answer = said(turn)[1]
    assert answer.metadata == {"blocks": [block], "beside": {"branch": {"id": 1}}}
    assert answer.model == "auto-1"


def test_lines_of_unknown_kinds_are_kept_and_counted(tmp_path: Path) -> None:
    _, report = read(write_lines(transcript_path(tmp_path, COMPOSER), [*transcript_lines(), {"type": "hologram"}]))
    assert report.unknown == {"hologram": 1}


def test_a_subagents_transcript_names_its_parent(tmp_path: Path) -> None:
    path = transcript_path(tmp_path, AGENT, parent=COMPOSER)
    found = read_one(
        write_lines(path, [line("user", text("Explore.")), line("assistant", use("Grep", pattern="x")), ENDED])
    )
    assert (found.session.id, found.session.parent) == (AGENT, COMPOSER)
    assert found.session.metadata == {"project": "shop"}
    assert said(found.turns[0])[0].source is MessageSource.AGENT


def test_a_plain_transcript_is_words_thoughts_calls_and_outcomes(tmp_path: Path) -> None:
    path = tmp_path / "agent-transcripts" / "old.txt"
    path.parent.mkdir()
    path.write_text(TEXT)
    first, second = read_one(path).turns
    assert [texts(each) for each in said(first)] == [["Read it."], ["Which one?\nI will look."], ["It sets x."]]
    (call,) = called(first)
    assert (call.name, call.arguments, call.result) == ("Read", {"path": "/shop/a.py", "limit": "20"}, "x = 1")
    assert texts(said(second)[1]) == ["Welcome."]


def test_an_export_tells_its_title_and_version(tmp_path: Path) -> None:
    path = tmp_path / "cursor_find_the_bug.md"
    path.write_text(EXPORT)
    found = read_one(path)
    assert (found.session.title, found.session.version) == ("Find the bug", "0.50.4")
    assert found.session.metadata == {"exported": "Exported on 5/27/2025 at 13:38:27 GMT+3"}
    assert [[texts(each) for each in said(turn)] for turn in found.turns] == [
        [["Where is it?"], ["In `a.py`:\n\n```python\nx = 1\n```"]],
        [["Fix it."], ["Done."]],
    ]
    assert found.turns[-1].end == len(EXPORT)


def test_an_export_in_another_language_is_known_by_its_version(tmp_path: Path) -> None:
    path = tmp_path / "cursor_x.md"
    path.write_text(EXPORT.replace("Exported on 5/27/2025 at 13:38:27 GMT+3", "Exported on 2025. 7. 6. at 18시 15분"))
    assert Cursor().recognises(as_source(path))


def test_texts_are_looked_at_only_where_a_tool_writes_them(tmp_path: Path) -> None:
    names = ["agent-transcripts/s.txt", "cursor_a.md", "README.md", "notes.txt", "state.vscdb", "state.vscdb.backup"]
    for name in names:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("x")
    found = [str(each.path.relative_to(tmp_path)) for each in candidates(tmp_path, lambda path, error: None)]
    assert sorted(found) == ["agent-transcripts/s.txt", "cursor_a.md", "state.vscdb"]


def test_lines_of_roles_alone_are_somebody_elses(tmp_path: Path) -> None:
    """Sets of examples for models look like this."""
    path = tmp_path / "train.jsonl"
    path.write_text(json.dumps({"role": "user", "content": "hi"}) + "\n")
    assert not Cursor().recognises(as_source(path))


def test_places_cover_every_system(tmp_path: Path) -> None:
    found = [str(place.path.relative_to(tmp_path)) for place in Cursor().places(tmp_path, {})]
    assert ".config/Cursor/User/globalStorage" in found
    assert "Library/Application Support/Cursor/User/workspaceStorage" in found
    assert ".cursor/chats" in found
    moved = Cursor().places(tmp_path, {"XDG_CONFIG_HOME": "/etc/xdg"})
    assert any(str(place.path).startswith("/etc/xdg/Cursor") for place in moved)
