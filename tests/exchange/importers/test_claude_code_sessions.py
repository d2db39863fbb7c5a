"""Sessions of Claude Code: titles, subagents in every layout, several sessions in a file, and damaged files."""

from pathlib import Path
from typing import Any

import orjson
import pytest

from tests.exchange.fixtures.claude_code.lines import (
    SESSION,
    Lines,
    assert_counted,
    calls,
    messages,
    read,
    said,
    source_of,
    use,
)
from weft.exchange.importers.claude_code import ClaudeCode
from weft.exchange.importers.port import HEAD_BYTES, Report
from weft.kernel.enums import AgentRole, LinkReason, MessageSource

AGENT = "a1b2c3"
CHILD = f"{SESSION}/agent-{AGENT}"
ASK = {"prompt": "look around", "description": "Look around", "subagent_type": "Explore"}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / f"{SESSION}.jsonl"


def write(path: Path, lines: Lines) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(lines.bytes())
    return path


def spoken(**common: Any) -> Lines:
    return Lines(**common).user("p1", "go").answer("a1", "yes")


def subagent(**common: Any) -> Lines:
    side: dict[str, Any] = {"isSidechain": True, "agentId": AGENT}
    lines = Lines(**(side | common))
    return lines.user("s1", ASK["prompt"]).answer("s2", use("d1")).result("s3", "d1").answer("s4", "seen")


def test_the_session_is_what_its_lines_say(file: Path) -> None:
    lines = spoken(entrypoint="cli", slug="calm-fox").answer("a2", "x", gitBranch="feature", version="2.1.201")
    lines.raw(type="pr-link", sessionId=SESSION, prNumber=3, prUrl="https://example.invalid/3", prRepository="o/r")
    lines.raw(type="agent-name", sessionId=SESSION, agentName="Fox")
    (session,) = read(write(file, lines)).sessions
    assert (session.id, session.workspace, session.git_branch, session.version) == (SESSION, "/shop", "main", "2.1.201")
    assert session.created == 1785585601000
    assert session.metadata["pullRequests"] == [
        {"prNumber": 3, "prRepository": "o/r", "prUrl": "https://example.invalid/3"}
    ]
    assert (session.metadata["slug"], session.metadata["agentName"]) == ("calm-fox", "Fox")


def test_a_copied_session_says_where_it_came_from(file: Path) -> None:
    (session,) = read(write(file, spoken(session_id="0ld"))).sessions
    assert session.metadata == {"session_id": "0ld"}
    (plain,) = read(write(file, spoken(session_id=SESSION))).sessions
    assert plain.metadata is None


def test_session_id_is_another_field_than_the_sessions_own(file: Path) -> None:
    (session,) = read(write(file, spoken(session_id="0ld"))).sessions
    assert session.id == SESSION


def test_a_summary_of_another_branch_is_no_title(file: Path) -> None:
    lines = spoken().raw(type="summary", summary="of another branch", leafUuid="elsewhere")
    assert read(write(file, lines)).sessions[0].title is None


def test_of_titles_that_repeat_the_last_one_counts(file: Path) -> None:
    lines = spoken()
    for title in ("first", "second", "third"):
        lines.raw(type="ai-title", aiTitle=title, sessionId=SESSION)
    assert read(write(file, lines)).sessions[0].title == "third"


def test_a_file_name_is_no_proof_of_the_session(tmp_path: Path) -> None:
    (session,) = read(write(tmp_path / "exported-0000.jsonl", spoken())).sessions
    assert session.id == SESSION


def test_a_persons_title_goes_before_a_generated_one_before_a_summary(file: Path) -> None:
    lines = spoken().raw(type="summary", summary="of another branch", leafUuid="elsewhere")
    assert read(write(file, lines)).sessions[0].title is None
    lines.raw(type="summary", summary="first", leafUuid="a1").raw(
        type="summary", summary="of this branch", leafUuid="a1"
    )
    lines.raw(type="summary", summary="of another", leafUuid="elsewhere")
    found = read(write(file, lines))
    assert found.sessions[0].title == "of this branch"
    assert (found.report.mapped["summary"], found.report.kept["summary"]) == (2, 2)
    lines.raw(type="ai-title", aiTitle="draft", sessionId=SESSION).raw(
        type="ai-title", aiTitle="made", sessionId=SESSION
    )
    assert read(write(file, lines)).sessions[0].title == "made"
    lines.raw(type="custom-title", customTitle="mine", sessionId=SESSION)
    lines.raw(type="ai-title", aiTitle="later", sessionId=SESSION)
    assert read(write(file, lines)).sessions[0].title == "mine"


def test_records_that_say_nothing_are_kept_and_unknown_ones_named(file: Path) -> None:
    lines = spoken().raw(type="file-history-snapshot", messageId="p1", snapshot={}, isSnapshotUpdate=False)
    lines.raw(type="queue-operation", operation="enqueue", sessionId=SESSION).raw(type="holo", x=1).raw(x=1)
    lines.system("x1", "vibes", content="good").add("progress", "x2", data={"type": "dance_progress"})
    report = read(write(file, lines)).report
    assert report.kept == {
        "file-history-snapshot": 1,
        "queue-operation": 1,
        "holo": 1,
        "(no type)": 1,
        "system/vibes": 1,
        "progress/dance_progress": 1,
    }
    assert set(report.unknown) == {"holo", "(no type)", "system/vibes", "progress/dance_progress"}


def test_a_file_without_turns_is_no_session(file: Path) -> None:
    found = read(write(file, Lines().raw(type="summary", summary="x", leafUuid="y")))
    assert found.sessions == []
    assert found.report.kept == {"summary": 1}


@pytest.mark.parametrize(
    "place",
    [
        f"agent-{AGENT}.jsonl",
        f"{SESSION}/subagents/agent-{AGENT}.jsonl",
        f"{SESSION}/subagents/workflows/wf_1/agent-{AGENT}.jsonl",
    ],
)
def test_a_subagent_in_its_own_file_has_one_id_in_every_layout(tmp_path: Path, place: str) -> None:
    path = write(tmp_path / place, subagent())
    path.with_suffix(".meta.json").write_bytes(orjson.dumps({"agentType": "Explore", "description": "Look around"}))
    found = read(path)
    (session,) = found.sessions
    assert (session.id, session.parent, session.agent, session.task) == (CHILD, SESSION, "Explore", "Look around")
    assert (session.metadata or {}).get("workflow") == ("wf_1" if "wf_1" in place else None)
    assert found.turns[0].role is AgentRole.WORKER
    assert messages(found.turns[0])[0].source is MessageSource.AGENT


def test_a_subagents_file_without_ids_is_known_by_its_name(tmp_path: Path) -> None:
    assert read(write(tmp_path / f"agent-{AGENT}.jsonl", subagent(agentId=None))).sessions[0].id == CHILD


def test_a_call_names_the_subagent_it_started(file: Path) -> None:
    lines = Lines().user("p1", "go").answer("a1", use("c1", "Task", **ASK)).answer("a2", use("c2", "Agent", **ASK))
    lines.result("r1", "c1", "seen", parent="a1", toolUseResult={"status": "completed", "agentId": AGENT})
    lines.result("r2", "c2", "launched", parent="a2", toolUseResult={"status": "async_launched", "agentId": "d4"})
    found = calls(read(write(file, lines)).turns[0])
    assert [call.spawned for call in found] == [CHILD, f"{SESSION}/agent-d4"]


def test_an_inline_subagent_is_a_session_found_by_its_prompt(file: Path) -> None:
    lines = Lines().user("p1", "go").answer("a1", use("c0", "Task", **ASK)).result("r0", "c0", "bad", is_error=True)
    lines.answer("a2", use("c1", "Task", **ASK)).answer("a3", use("c2", "Task", **ASK), parent="a2")
    side: dict[str, Any] = {"isSidechain": True}
    lines.user("s1", "look around", parent=None, **side).user("t1", "look around", parent=None, **side)
    lines.answer("s2", use("d1"), parent="s1", **side).answer("t2", "nothing", parent="t1", **side)
    lines.result("s3", "d1", parent="s2", **side).answer("s4", "seen", **side)
    lines.result("r1", "c1", "seen", parent="a2").result("r2", "c2", "nothing", parent="a3").answer("a4", "done")
    found = read(write(file, lines))
    assert [session.id for session in found.sessions] == [SESSION, f"{SESSION}/agent-s1", f"{SESSION}/agent-t1"]
    main, first, second = found.sessions
    assert [call.spawned for call in calls(found.turns[0])] == [None, first.id, second.id]
    assert (first.parent, first.spawn_call, first.task, first.agent) == (main.id, "c1", "Look around", "Explore")
    assert [turn.key for turn in found.turns_of[first.id]] == ["s1"]
    assert len(found.turns) == 1
    assert found.turns_of[first.id][0].closed
    assert len(found.turns_of[first.id][0].records) == 4


def mirrored() -> Lines:
    """A session that repeats its subagent's lines as progress, as versions 2.1.12 to 2.1.81 do."""
    lines = Lines().user("p1", "go").answer("a1", use("c1", "Task", **ASK))
    inner = subagent().lines
    for number, line in enumerate([*inner, inner[-1]]):
        told = {key: line[key] for key in ("type", "uuid", "timestamp", "message")}
        data = {
            "type": "agent_progress",
            "agentId": AGENT,
            "message": told,
            "prompt": ASK["prompt"] if not number else "",
        }
        lines.add("progress", f"x{number}", data=data, toolUseID=f"agent_{number}", parentToolUseID="c1")
    return lines.result("r1", "c1", "seen", parent="a1").answer("a2", "done")


def test_a_mirrored_subagent_is_a_session_where_its_file_is_missing(file: Path) -> None:
    found = read(write(file, mirrored()))
    assert [session.id for session in found.sessions] == [SESSION, CHILD]
    child = found.sessions[1]
    assert (child.parent, child.spawn_call, child.agent) == (SESSION, "c1", "Explore")
    (turn,) = found.turns_of[CHILD]
    assert [said(message) for message in messages(turn)] == ["look around", "", "seen"]
    assert calls(turn)[0].result == "ok"
    assert calls(found.turns[0])[0].spawned == CHILD
    assert found.report.mapped["progress/agent_progress"] == 4
    assert found.report.kept["progress/agent_progress"] == 1
    own = read(write(file.parent / "elsewhere" / f"agent-{AGENT}.jsonl", subagent()))
    assert turn.records == own.turns[0].records


@pytest.mark.parametrize("place", [f"agent-{AGENT}.jsonl", f"{SESSION}/subagents/agent-{AGENT}.jsonl"])
def test_a_mirrored_subagent_that_has_a_file_is_not_read_twice(file: Path, place: str) -> None:
    write(file.parent / place, subagent())
    found = read(write(file, mirrored()))
    assert [session.id for session in found.sessions] == [SESSION]
    assert calls(found.turns[0])[0].spawned == CHILD
    assert found.report.kept["progress/agent_progress"] == 5


def test_a_mirrored_subagent_whose_prompt_stands_beside_is_given_it(file: Path) -> None:
    lines = Lines().user("p1", "go").answer("a1", use("c1", "Task", **ASK))
    message = {"type": "assistant", "uuid": "s2", "message": {"id": "m", "role": "assistant", "content": "seen"}}
    data = {"type": "agent_progress", "agentId": AGENT, "prompt": "look around", "message": message}
    found = read(write(file, lines.add("progress", "x1", data=data, parentToolUseID="c1")))
    assert [said(message) for message in messages(found.turns_of[CHILD][0])] == ["look around", "seen"]


def test_an_agent_id_that_is_a_path_is_no_path(file: Path) -> None:
    lines = Lines().user("p1", "go").answer("a1", "yes")
    message = {"type": "assistant", "message": {"role": "assistant", "content": "seen"}}
    data = {"type": "agent_progress", "agentId": "../../x", "message": message}
    assert len(read(write(file, lines.add("progress", "x1", data=data))).sessions) == 2


@pytest.mark.parametrize("name", ["acompact", "aprompt_suggestion"])
def test_a_service_agent_goes_on_from_a_line_of_its_session(tmp_path: Path, name: str) -> None:
    lines = (
        Lines(isSidechain=True, agentId=f"{name}-1f2e3d").user("s1", "summarise", parent="of-main").answer("s2", "so")
    )
    found = read(write(tmp_path / f"agent-{name}-1f2e3d.jsonl", lines))
    (session,) = found.sessions
    assert (session.id, session.parent, session.agent) == (f"{SESSION}/agent-{name}-1f2e3d", SESSION, name)
    link = found.turns[0].link
    assert link is not None
    assert (link.to, link.why) == ("of-main", LinkReason.FORK)


def test_a_session_that_goes_on_from_another_in_one_file_has_its_history(file: Path) -> None:
    lines = Lines("one").user("p1", "go").answer("a1", "yes").user("p2", "more").answer("a2", "yes")
    lines.session = "two"
    lines.user("p3", "resumed", parent="a1").answer("a3", "yes")
    found = read(write(file, lines))
    assert [session.id for session in found.sessions] == ["one", "two"]
    assert [turn.key for turn in found.turns_of["one"]] == ["p1", "p2"]
    assert [turn.key for turn in found.turns_of["two"]] == ["p1", "p3"]
    assert found.turns_of["one"][0].records == found.turns_of["two"][0].records
    assert found.turns_of["one"][-1].closed


def test_independent_sessions_in_one_file_stay_apart(file: Path) -> None:
    lines = Lines("one").user("p1", "go")
    lines.session = "two"
    lines.user("p2", "other", parent=None).answer("a2", "yes")
    lines.session = "one"
    found = read(write(file, lines.answer("a1", "yes", parent="p1")))
    assert {id: [turn.key for turn in turns] for id, turns in found.turns_of.items()} == {"one": ["p1"], "two": ["p2"]}


def test_lines_that_name_no_session_belong_to_the_files(file: Path) -> None:
    assert read(write(file, spoken(sessionId=None))).sessions[0].id == SESSION
    mixed = spoken().user("p2", "x", sessionId=7)
    assert [session.id for session in read(write(file, mixed)).sessions] == [SESSION]


def test_glued_lines_are_both_read(file: Path) -> None:
    data = spoken().bytes()
    file.write_bytes(data.replace(b"}\n{", b"}{", 1))
    assert len(messages(read(file).turns[0])) == 2


def test_a_cut_tail_is_left_for_the_next_time(file: Path) -> None:
    whole = spoken().user("p2", "more").bytes()
    file.write_bytes(whole[:-40])
    found = read(file)
    assert found.keys == ["p1"]
    assert found.report.open_tail
    file.write_bytes(whole)
    assert read(file).keys == ["p1", "p2"]


def test_damaged_lines_harm_no_others(file: Path) -> None:
    lines = spoken().bytes().split(b"\n")
    file.write_bytes(b"\n".join([b"{not json}", lines[0], b"[1,2]", b"\0\0", b'"text"', lines[1], b""]))
    found = read(file)
    assert len(messages(found.turns[0])) == 2
    assert found.report.damaged == 3
    assert [problem.line for problem in found.report.problems] == [1, 3, 5]


def test_a_byte_order_mark_and_windows_line_ends_are_no_matter(file: Path) -> None:
    file.write_bytes(b"\xef\xbb\xbf" + spoken().bytes().replace(b"\n", b"\r\n"))
    assert len(messages(read(file).turns[0])) == 2


def test_one_record_spread_over_lines_is_read(tmp_path: Path) -> None:
    path = tmp_path / "assistant.json"
    path.write_bytes(orjson.dumps(spoken().lines[1] | {"parentUuid": "gone"}, option=orjson.OPT_INDENT_2))
    assert ClaudeCode().recognises(source_of(path))
    found = read(path)
    assert found.keys == ["a1"]
    assert found.report.found == 1


def test_a_file_that_changes_while_it_is_read_is_told_of(file: Path) -> None:
    write(file, spoken().user("p2", "more"))
    report = Report("x")
    (transcript,) = ClaudeCode().read(source_of(file), report)
    file.write_bytes(b"x" * file.stat().st_size)
    assert len(list(transcript.turns)) == 2
    assert_counted(report)
    assert report.damaged == 3


@pytest.mark.parametrize(
    "first",
    [
        Lines().user("p1", "hi"),
        Lines().raw(type="file-history-snapshot", messageId="x", snapshot={}),
        Lines().raw(type="queue-operation", operation="enqueue", sessionId=SESSION),
        Lines().raw(type="summary", summary="x", leafUuid="y"),
        Lines().raw(type="last-prompt", sessionId=SESSION),
        Lines().raw(type="brand-new-note", x=1).user("p1", "hi").answer("a1", "yes"),
        Lines().user("p1", "x" * 2 * HEAD_BYTES),
    ],
)
def test_a_session_is_recognised_whatever_its_first_line(file: Path, first: Lines) -> None:
    assert ClaudeCode().recognises(source_of(write(file, first)))


@pytest.mark.parametrize(
    "line",
    [
        {"type": "session_meta", "payload": {"id": "x"}},
        {"type": "session", "id": "x", "version": 3, "cwd": "/"},
        {"type": "user.message", "data": {}, "id": "x", "parentId": None},
        {"role": "user", "message": {"content": []}},
        {"type": "user", "content": "hi", "id": "1"},
        {"display": "hi", "project": "/x", "timestamp": 1},
        {"type": "started", "key": "v2:x", "agentId": "a"},
    ],
)
def test_other_peoples_lines_are_not_recognised(file: Path, line: dict[str, Any]) -> None:
    assert not ClaudeCode().recognises(source_of(write(file, Lines().raw(**line))))


@pytest.mark.parametrize("data", [b"", b"\n\n", b"hello", b"{}", b"[]", b"\xff\xfe\x00", b"{" * 1000])
def test_what_is_no_session_is_not_recognised_and_read_without_harm(file: Path, data: bytes) -> None:
    file.write_bytes(data)
    assert not ClaudeCode().recognises(source_of(file))
    assert read(file).sessions == []


def test_cards_journals_and_large_outputs_are_parts_of_other_files(tmp_path: Path) -> None:
    write(tmp_path / f"{SESSION}.jsonl", spoken())
    folder = tmp_path / SESSION
    run = folder / "subagents" / "workflows" / "wf_1"
    card, journal, output = run / f"agent-{AGENT}.meta.json", run / "journal.jsonl", folder / "tool-results" / "x.txt"
    for path, data in (
        (card, b'{"agentType":"x"}'),
        (journal, b'{"type":"started","key":"v2:1"}\n'),
        (output, b"long"),
    ):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        assert ClaudeCode().is_part(source_of(path))
    assert not ClaudeCode().is_part(source_of(tmp_path / f"{SESSION}.jsonl"))
    assert not ClaudeCode().is_part(source_of(write(run / f"agent-{AGENT}.jsonl", subagent())))


def test_sessions_lie_in_the_usual_folders_or_where_the_environment_says(tmp_path: Path) -> None:
    usual = [place.path for place in ClaudeCode().places(tmp_path, {})]
    assert usual == [tmp_path / ".claude/projects", tmp_path / ".config/claude/projects"]
    named = ClaudeCode().places(tmp_path, {"CLAUDE_CONFIG_DIR": "/a, /b", "XDG_CONFIG_HOME": "/c"})
    assert [str(place.path) for place in named][:2] == ["/a/projects", "/b/projects"]
    assert Path("/c/claude/projects") in [place.path for place in named]
