"""Sessions of opencode 2: one row for a message, in tables of their own beside those of version 1."""

from __future__ import annotations

import json
from pathlib import Path

import apsw
import pytest

from tests.exchange.fixtures.opencode.sessions import (
    AT,
    NEWER,
    SESSION,
    Json,
    add_newer,
    answer,
    assert_counted,
    assert_sound,
    called,
    dialogue,
    newer,
    newer_export,
    ran,
    read,
    read_one,
    said,
    source_of,
    text,
    write_database,
    write_export,
    write_newer,
)
from weft.exchange.importers.opencode import Opencode
from weft.exchange.importers.port import NativeMessage, NativeTurn, Tokens
from weft.kernel.enums import FileKind, MessageRole, MessageSource, ToolCallStatus


def rows() -> list[Json]:
    """A prompt with a tool call and its answer, and one more prompt."""
    return [
        newer("model-switched", "msg_00", 0, model={"id": "large", "providerID": "acme", "variant": "high"}),
        newer("user", "msg_01", 1, text="What is this?"),
        answer("msg_02", {"type": "reasoning", "text": "Hm."}, ran("read", input={"path": "/a"}), finish="tool-calls"),
        answer("msg_03", text("A test."), at=4),
        newer("idle", "msg_04", 6, outcome="succeeded"),
        newer("user", "msg_05", 7, text="Thanks."),
        answer("msg_06", text("Welcome."), at=8),
        newer("idle", "msg_07", 10, outcome="succeeded"),
    ]


def turns(folder: Path, *told: Json, **session: str) -> list[NativeTurn]:
    found = read_one(write_newer(folder, list(told), **session))
    assert_sound(found)
    return found.turns


def ids(turn: NativeTurn) -> list[str | None]:
    return [message.native for message in said(turn)]


def words(message: NativeMessage) -> list[str]:
    return [str(part.text) for part in message.parts if hasattr(part, "text")]


def test_a_session_is_read_with_its_turns_calls_and_cost(tmp_path: Path) -> None:
    path = write_newer(tmp_path, rows(), agent="build", parent_id="ses_above")
    (found,), report = read(path)
    assert_counted(report)
    assert_sound(found)
    first, second = found.turns
    assert (found.session.id, found.session.title, found.session.workspace) == (SESSION, "A session", "/shop")
    assert (found.session.version, found.session.parent, found.session.created) == ("2.0.12", "ses_above", AT)
    assert [(turn.key, turn.parent, turn.closed, turn.error) for turn in found.turns] == [
        ("msg_01", None, True, None),
        ("msg_05", 0, True, None),
    ]
    assert (ids(first), ids(second)) == (["msg_01", "msg_02", "msg_03"], ["msg_05", "msg_06"])
    assert [words(message) for message in said(first)] == [["What is this?"], ["Hm."], ["A test."]]
    assert (said(first)[1].model, said(first)[1].provider) == ("large", "acme")
    assert said(first)[1].tokens == Tokens(input=10, output=25, cached=90, cache_write=10, reasoning=5)
    assert first.config == {"model": "large", "provider": "acme", "variant": "high"}
    assert (first.started, first.ended) == (AT + 1, AT + 5)
    (call,) = called(first)
    assert (call.id, call.name, call.result, call.status) == ("call_1", "read", "done", ToolCallStatus.OK)
    assert (call.at, call.done) == (AT + 11, AT + 20)
    assert [(note.kind, note.path) for note in call.files] == [(FileKind.READ, "/a")]
    assert report.mapped["session_message.idle"] == 2
    assert not report.unknown


def test_an_export_and_the_database_give_the_same_turns(tmp_path: Path) -> None:
    stored = read_one(write_newer(tmp_path, rows()))
    path = write_export(tmp_path, newer_export(rows()))
    assert Opencode().recognises(source_of(path))
    exported = read_one(path)
    assert_sound(exported)
    assert [turn.records for turn in exported.turns] == [turn.records for turn in stored.turns]
    assert [turn.items for turn in exported.turns] == [turn.items for turn in stored.turns]
    assert exported.session.workspace == "/shop"
    assert exported.turns[0].offset < exported.turns[0].end <= exported.turns[1].offset < exported.turns[1].end


def test_a_prompt_that_comes_while_the_agent_works_belongs_to_its_turn(tmp_path: Path) -> None:
    marked = turns(
        tmp_path,
        newer("user", "msg_01", text="One."),
        newer("idle", "msg_02", outcome="succeeded"),
        newer("user", "msg_03", text="Two."),
        answer("msg_04", text("Done.")),
        newer("user", "msg_05", text="And three."),
        answer("msg_06", text("Done too.")),
    )
    assert [ids(turn) for turn in marked] == [["msg_01"], ["msg_03", "msg_04", "msg_05", "msg_06"]]


def test_before_opencode_marked_where_it_rests_a_response_without_calls_ends_a_turn(tmp_path: Path) -> None:
    unmarked = turns(
        tmp_path,
        newer("user", "msg_01", text="One."),
        answer("msg_02", ran("bash"), finish="tool-calls"),
        newer("user", "msg_03", text="Also this."),
        answer("msg_04", text("Done.")),
        newer("user", "msg_05", text="Two."),
    )
    assert [ids(turn) for turn in unmarked] == [["msg_01", "msg_02", "msg_03", "msg_04"], ["msg_05"]]
    assert [turn.closed for turn in unmarked] == [True, False]


def test_what_nobody_typed_goes_with_the_prompt_that_follows_it_or_is_an_event(tmp_path: Path) -> None:
    one, two = turns(
        tmp_path,
        newer("system", "msg_01", text="Today is Monday."),
        newer("shell", "msg_02", shellID="sh_1", command="ls", status="exited", exit=0, output={"output": "a\n"}),
        newer("skill", "msg_03", skill="tidy", name="Tidy", text="How to tidy."),
        newer("user", "msg_04", text="Tidy up.", skills=[{"id": "tidy", "name": "Tidy"}], agents=[{"name": "explore"}]),
        answer("msg_05", text("Done.")),
        newer("idle", "msg_06", outcome="succeeded"),
        newer("synthetic", "msg_07", text="The subagent has finished."),
        answer("msg_08", text("Good.")),
    )
    assert ids(one) == ["msg_01", "msg_02", "msg_03", "msg_04", "msg_05"]
    told = [(message.role, message.source) for message in said(one)[:4]]
    assert told == [
        (MessageRole.SYSTEM, MessageSource.EVENT),
        (MessageRole.USER, MessageSource.HUMAN),
        (MessageRole.USER, MessageSource.EVENT),
        (MessageRole.USER, MessageSource.HUMAN),
    ]
    assert words(said(one)[1]) == ["Ran `ls`\n```\na\n\n```"]
    assert said(one)[3].metadata == {"skills": ["Tidy"], "agents": ["explore"]}
    assert (said(two)[0].source, words(said(two)[0])) == (MessageSource.EVENT, ["The subagent has finished."])


def test_an_interrupted_and_a_failed_turn_say_so(tmp_path: Path) -> None:
    stopped, broken, silent = turns(
        tmp_path,
        newer("user", "msg_01", text="One."),
        newer("idle", "msg_02", outcome="interrupted"),
        newer("user", "msg_03", text="Two."),
        answer("msg_04", finish="error", error={"type": "provider.error", "message": "overloaded", "status": 529}),
        newer("idle", "msg_05", outcome="failed"),
        newer("user", "msg_06", text="Three."),
        newer("idle", "msg_07", outcome="failed"),
    )
    assert [(turn.interrupted, turn.error) for turn in (stopped, broken, silent)] == [
        (True, None),
        (False, "provider.error: overloaded"),
        (False, "failed"),
    ]


def test_calls_that_fail_are_stopped_or_have_not_ended(tmp_path: Path) -> None:
    picture = {"type": "file", "uri": "data:image/png;base64,AA", "mime": "image/png", "name": "a.png"}
    (turn,) = turns(
        tmp_path,
        newer("user", "msg_01", text="Go."),
        answer(
            "msg_02",
            ran("bash", "call_1", status="error", error={"type": "tool.execution", "message": "no such file"}),
            ran("bash", "call_2", status="error", error={"type": "tool.interrupted", "message": "stopped"}),
            ran("bash", "call_3", status="streaming", input='{"comm'),
            ran("read", "call_4", content=[text("a picture"), picture]),
            ran("subagent", "call_5", metadata={"sessionID": "ses_below", "status": "completed"}),
            finish="tool-calls",
        ),
    )
    outcomes = [(call.status, call.error, call.arguments) for call in called(turn)[:3]]
    assert outcomes == [
        (ToolCallStatus.ERROR, "no such file", {}),
        (ToolCallStatus.INTERRUPTED, "stopped", {}),
        (None, None, '{"comm'),
    ]
    assert called(turn)[3].result == {
        "output": "a picture",
        "attachments": [{"mime": "image/png", "filename": "a.png", "url": "data:image/png;base64,AA"}],
    }
    assert called(turn)[4].spawned == "ses_below"
    assert not turn.closed


def test_a_compaction_is_a_turn_of_its_own_and_the_answer_goes_on_behind_it(tmp_path: Path) -> None:
    one, summary, two = turns(
        tmp_path,
        newer("user", "msg_01", text="Go."),
        answer("msg_02", ran("bash"), finish="tool-calls"),
        newer(
            "compaction",
            "msg_03",
            status="completed",
            reason="auto",
            summary="It went.",
            recent="[User]: Go.",
            model={"id": "small", "providerID": "acme"},
            tokens={"input": 7, "output": 3},
        ),
        answer("msg_04", text("Done.")),
        newer("compaction", "msg_05", status="running", reason="manual", summary="", recent=""),
    )
    assert [ids(turn) for turn in (one, summary, two)] == [["msg_01", "msg_02"], ["msg_03"], ["msg_04"]]
    assert (one.compaction, two.compaction) == (None, None)
    assert summary.compaction is not None
    assert (summary.compaction.summary, summary.compaction.trigger, summary.compaction.model) == (
        "It went.",
        "auto",
        "small",
    )
    assert said(summary)[0].tokens == Tokens(input=7, output=3)


def test_the_cost_of_a_compaction_that_failed_is_counted(tmp_path: Path) -> None:
    failed = newer("compaction", "msg_02", status="failed", reason="auto", tokens={"input": 7, "output": 0},
                   error={"type": "provider.error", "message": "too long"})  # fmt: skip
    (turn,) = turns(tmp_path, newer("user", "msg_01", text="Go."), failed)
    assert (turn.compaction, said(turn)[1].tokens) == (None, Tokens(input=7, output=0))


def test_files_of_a_prompt_and_of_a_response(tmp_path: Path) -> None:
    written = ran("write", input={"path": "/shop/src/a.py"})
    prompt, response = said(
        turns(
            tmp_path,
            newer("user", "msg_01", text="See.", files=[
                {"data": "AA==", "mime": "image/png", "name": "p.png", "source": {"type": "inline"}},
                {"data": "aGk=", "mime": "text/plain", "name": "b.py",
                 "source": {"type": "uri", "uri": "file:///shop/b%20c.py?start=3&end=4"}}]),
            answer("msg_02", written, snapshot={"start": "1a", "end": "2b", "files": ["src/a.py", "src/c.py"]}),
        )[0]
    )  # fmt: skip
    assert [(note.path, note.line_start, note.line_end) for note in prompt.files] == [
        ("p.png", None, None),
        ("/shop/b c.py", 3, 4),
    ]
    assert len(prompt.parts) == 2
    assert [note.path for note in response.files] == ["src/c.py"]
    assert response.metadata["snapshots"] == ["1a", "2b"]


def test_what_stands_beside_a_response_is_no_part_of_its_identity(tmp_path: Path) -> None:
    """Snapshots come and go, and a retry is forgotten once it went well."""
    asked, plain = newer("user", "msg_01", text="Go."), answer("msg_02", text("Done."))
    retry = {"attempt": 2, "at": AT, "error": {"type": "provider.error", "message": "busy"}}
    (tmp_path / "two").mkdir()
    one = turns(tmp_path, asked, plain)
    two = turns(tmp_path / "two", asked, {**plain, "retry": retry, "snapshot": {"start": "1a", "files": ["a"]}})
    assert [turn.records for turn in one] == [turn.records for turn in two]
    assert said(two[0])[1].metadata["retries"] == [{"attempt": 2, "error": "provider.error: busy", "at": AT}]


def test_a_session_that_moves_runs_its_later_turns_elsewhere(tmp_path: Path) -> None:
    one, two = turns(
        tmp_path,
        newer("user", "msg_01", text="One."),
        answer("msg_02", text("Done.")),
        newer("location-switched", "msg_03", location={"directory": "/shop/tree"}),
        newer("agent-switched", "msg_04", agent="plan"),
        newer("user", "msg_05", text="Two."),
        answer("msg_06", text("Done."), agent="plan"),
    )
    assert [(turn.workspace, turn.toolset) for turn in (one, two)] == [("/shop", "build"), ("/shop/tree", "plan")]


def test_a_migrated_session_is_told_by_version_one_and_goes_on_with_version_two(tmp_path: Path) -> None:
    path = write_database(tmp_path, dialogue())
    before = read_one(path)
    connection = apsw.Connection(str(path))
    connection.execute(NEWER)
    copied = [
        newer("user", "msg_01", 1, text="What is this?"),
        newer("synthetic", "msg_01ABC", 1, text="reminder"),
        answer("msg_02", text("A test.")),
        newer("user", "msg_03", 4, text="Thanks."),
        answer("msg_04", text("Welcome."), at=5),
    ]
    later = [newer("user", "msg_05", 20, text="More."), answer("msg_06", text("There."), at=21)]
    add_newer(connection, [*copied, *later], title="Renamed")
    connection.close()
    (found,), report = read(path)
    assert_counted(report)
    assert_sound(found)
    assert [turn.records for turn in found.turns[:2]] == [turn.records for turn in before.turns]
    assert [ids(turn) for turn in found.turns[2:]] == [["msg_05", "msg_06"]]
    assert (found.session.title, found.session.version) == ("Renamed", "2.0.12")
    assert (report.kept.total(), report.unknown) == (5, {})


def test_a_fork_shares_the_messages_that_it_copied(tmp_path: Path) -> None:
    path = write_newer(tmp_path, rows())
    connection = apsw.Connection(str(path))
    copied = [{**row, "id": f"msg_c{number}"} for number, row in enumerate(rows()[:5])]
    own = [newer("user", "msg_f1", 30, text="Otherwise."), answer("msg_f2", text("So."), at=31)]
    boundary = json.dumps({"type": "through", "messageID": "msg_04"})
    fork = {"fork_session_id": SESSION, "fork_boundary": boundary, "time_created": AT + 30}
    add_newer(connection, [*copied, *own], id="ses_fork", **fork)
    again = [{**row, "id": f"msg_d{number}"} for number, row in enumerate([*copied, *own])]
    add_newer(connection, again, id="ses_again", fork_session_id="ses_fork", time_created=AT + 40)
    connection.close()
    (first, fork_found, again_found), report = read(path)
    assert_counted(report)
    assert [turn.records for turn in fork_found.turns[:1]] == [turn.records for turn in first.turns[:1]]
    assert [turn.key for turn in fork_found.turns] == ["msg_01", "msg_f1"]
    assert [turn.records for turn in again_found.turns] == [turn.records for turn in fork_found.turns]
    assert fork_found.session.metadata["fork"] == {"session": SESSION, "message": "msg_04"}


def test_what_version_one_wrote_into_both_tables_is_told_once(tmp_path: Path) -> None:
    path = write_database(tmp_path, dialogue())
    connection = apsw.Connection(str(path))
    connection.execute(NEWER)
    add_newer(connection, [newer("user", "msg_03", 4, text="Thanks."), answer("evt_04", text("Welcome."), at=5)])
    connection.execute("DELETE FROM session_v2")
    connection.close()
    (found,), report = read(path)
    assert_counted(report)
    assert [ids(turn) for turn in found.turns] == [["msg_01", "msg_02"], ["msg_03", "msg_04"]]
    assert report.kept.total() == 2


def test_a_fork_of_a_migrated_session_shares_what_version_one_tells(tmp_path: Path) -> None:
    path = write_database(tmp_path, dialogue())
    connection = apsw.Connection(str(path))
    connection.execute(NEWER)
    copied = [
        newer("user", "msg_01", 1, text="What is this?"),
        answer("msg_02", text("A test.")),
        newer("user", "msg_03", 4, text="Thanks."),
        answer("msg_04", text("Welcome."), at=5),
    ]
    add_newer(connection, copied)
    forked = [{**row, "id": f"msg_c{number}"} for number, row in enumerate(copied[:2])]
    own = [newer("user", "msg_f1", 30, text="Otherwise."), answer("msg_f2", text("So."), at=31)]
    add_newer(connection, [*forked, *own], id="ses_fork", fork_session_id=SESSION, time_created=AT + 30)
    connection.close()
    (first, fork), report = read(path)
    assert_counted(report)
    assert_sound(fork)
    assert fork.turns[0].records == first.turns[0].records
    assert [turn.key for turn in fork.turns] == ["msg_01", "msg_f1"]


def test_forks_that_lead_back_to_themselves_are_read(tmp_path: Path) -> None:
    path = write_newer(tmp_path, rows(), fork_session_id="ses_other")
    connection = apsw.Connection(str(path))
    connection.execute("UPDATE session_v2 SET fork_session_id = id")
    connection.close()
    assert len(read_one(path).turns) == 2


def test_rows_of_unknown_kinds_and_rows_that_are_no_json_harm_no_others(tmp_path: Path) -> None:
    path = write_newer(tmp_path, [*rows(), newer("hologram", "msg_90", 50, text="?")])
    connection = apsw.Connection(str(path))
    for place, data in enumerate(("{broken", "[1]", "")):
        values = (f"msg_9{place + 1}", SESSION, "user", 90 + place, AT + 90, AT, data)
        connection.execute("INSERT INTO session_message VALUES (?, ?, ?, ?, ?, ?, ?)", values)
    connection.close()
    (found,), report = read(path)
    assert_counted(report)
    assert_sound(found)
    assert (len(found.turns), report.damaged, report.unknown) == (2, 3, {"session_message.hologram": 1})
    assert found.raw is not None
    assert b"hologram" in found.raw
    assert b"{broken" in found.raw


@pytest.mark.parametrize("odd", [[], {}, 7, None, "x"])
def test_fields_of_another_type_are_never_fatal(tmp_path: Path, odd: object) -> None:
    failed = ran("shell", status="error", error={"type": odd, "message": odd}, input=odd, content=odd, metadata=odd)
    told = answer("msg_02", failed, model=odd, finish=odd, tokens=odd, snapshot=odd, retry=odd, error=odd, agent=odd)
    (turn,) = turns(tmp_path, newer("user", "msg_01", text="Go.", files=[odd], agents=odd, skills=[odd]), told)
    assert [call.status for call in called(turn)] == [ToolCallStatus.ERROR]


def test_messages_without_a_session_row_or_places_make_a_session(tmp_path: Path) -> None:
    path = tmp_path / "copy-of-a-store.db"
    connection = apsw.Connection(str(path))
    connection.execute("CREATE TABLE `session_message`(id text, session_id text, type text, data text)")
    connection.execute(
        "INSERT INTO session_message VALUES ('msg_1', 'ses_lost', 'user', ?)",
        (json.dumps({"text": "Hello.", "time": {"created": AT}}),),
    )
    connection.close()
    assert Opencode().recognises(source_of(path))
    found = read_one(path)
    assert (found.session.id, [turn.key for turn in found.turns]) == ("ses_lost", ["msg_1"])


@pytest.mark.parametrize("line", ["Exporting session: ses_one", "\nExporting session: latest\n"])
def test_an_export_that_begins_with_an_announcement_is_read(tmp_path: Path, line: str) -> None:
    """Its errors and its output went into one file."""
    messages = [{"info": info, "parts": parts} for info, parts in dialogue()]
    session = {"id": SESSION, "projectID": "p", "directory": "/shop", "time": {"created": AT}}
    path = tmp_path / "export.json"
    path.write_text(line + json.dumps({"info": session, "messages": messages}))
    assert Opencode().recognises(source_of(path))
    found = read_one(path)
    assert [turn.key for turn in found.turns] == ["msg_01", "msg_03"]
