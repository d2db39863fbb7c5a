"""A session written for another tool: it holds what the thread says, comes back as the turns it was written from, and
what was said in it since continues them."""

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import weft
from tests.exchange.corpus import LONG_AGO
from tests.exchange.structure import check_claude_code, check_codex
from tests.ledger.imported import native_call, native_turn
from tests.ledger.imported import take as take_toy
from tests.postgres import shared_server
from weft import Ledger
from weft.exchange.importers.port import load_importers
from weft.exchange.importing.run import ImportRun, ImportSummary
from weft.exchange.resuming import FORMATS, Resume, load_format, prepare_resume, write_resume
from weft.kernel.clock import FixedClock, system_random
from weft.kernel.errors import InvalidInput, NotApplicable
from weft.ledger.imports import ImportCounts
from weft.ledger.imports.imported_turns import NativeCompaction, NativeSession
from weft.ledger.model import ANTHROPIC, SealedItem, sealed_metadata

TOOLS = tuple(FORMATS)
NOW = LONG_AGO * 1_000
PAGE = (Path(__file__).parents[2] / "docs" / "branches.md").read_text()
PNG = "data:image/png;base64,iVBORw0KGgo="


def resume(ledger: Ledger, rev: str, tool: str, root: Path, workspace: str | None = "/srv/work") -> Resume:
    """Written long ago, so that no tail of it is taken as still open."""
    made = prepare_resume(ledger, rev, tool, root, FixedClock(NOW), system_random, workspace=workspace)
    write_resume(ledger, made)
    os.utime(made.path, (LONG_AGO, LONG_AGO))
    return made


def take(ledger: Ledger, *paths: str | Path) -> ImportSummary:
    return ImportRun(ledger, load_importers(), FixedClock(NOW * 10)).run(map(Path, paths))


def records(made: Resume) -> list[Any]:
    return [json.loads(line) for line in made.data.splitlines()]


def said(ledger: Ledger, turn: str) -> list[Any]:
    return [(message.role, message.text) for message in ledger.messages(turn)]


def go_on(made: Resume, prompt: str, answer: str, age: int = 1) -> None:
    """The tool appends a turn, as it does when the session is resumed."""
    lines = {"claude-code": claude_turn, "codex": codex_turn}[made.tool](made, prompt, answer, age)
    with open(made.path, "a") as file:
        file.writelines(json.dumps(line) + "\n" for line in lines)
    os.utime(made.path, (LONG_AGO + age, LONG_AGO + age))


def claude_turn(made: Resume, prompt: str, answer: str, age: int) -> list[Any]:
    last = [json.loads(line) for line in Path(made.path).read_text().splitlines()][-1]["uuid"]
    common = {"isSidechain": False, "userType": "external", "cwd": made.workspace, "sessionId": made.session,
              "version": "2.1.240", "gitBranch": "main", "timestamp": f"2026-11-16T00:00:0{age}.000Z"}  # fmt: skip
    asked = {**common, "type": "user", "uuid": f"ask-{age}", "parentUuid": last, "promptId": f"p-{age}",
             "message": {"role": "user", "content": prompt}}  # fmt: skip
    use = {"type": "tool_use", "id": f"toolu_{age}", "name": "Read", "input": {"file_path": "/srv/shop/a.py"}}
    message = {"id": f"msg_{age}", "type": "message", "role": "assistant", "model": "claude-x", "stop_reason": None,
               "usage": {"input_tokens": 10, "output_tokens": 5}}  # fmt: skip
    called = {**common, "type": "assistant", "uuid": f"use-{age}", "parentUuid": f"ask-{age}",
              "message": {**message, "content": [use]}}  # fmt: skip
    result = {"type": "tool_result", "tool_use_id": f"toolu_{age}", "content": "1\tx = 1"}
    given = {**common, "type": "user", "uuid": f"result-{age}", "parentUuid": f"use-{age}",
             "message": {"role": "user", "content": [result]}, "sourceToolAssistantUUID": f"use-{age}"}  # fmt: skip
    told = {**common, "type": "assistant", "uuid": f"say-{age}", "parentUuid": f"result-{age}",
            "message": {**message, "id": f"msg_{age}b", "content": [{"type": "text", "text": answer}]}}  # fmt: skip
    ended = {**common, "type": "system", "subtype": "turn_duration", "uuid": f"end-{age}", "parentUuid": f"say-{age}",
             "durationMs": 10, "isMeta": False}  # fmt: skip
    return [asked, called, given, told, ended]


def codex_turn(made: Resume, prompt: str, answer: str, age: int) -> list[Any]:
    turn = f"01a1df0b-0000-7000-8000-00000000000{age}"

    def line(kind: str, **payload: Any) -> Any:
        return {"timestamp": f"2026-11-16T00:00:0{age}.000Z", "type": kind, "payload": payload}

    return [
        line("event_msg", type="task_started", turn_id=turn, model_context_window=1),
        line("turn_context", turn_id=turn, cwd=made.workspace, model="gpt-x"),
        line("response_item", type="message", role="user", content=[{"type": "input_text", "text": prompt}]),
        line("event_msg", type="user_message", message=prompt, images=[]),
        line("response_item", type="message", role="assistant", content=[{"type": "output_text", "text": answer}]),
        line("event_msg", type="agent_message", message=answer),
        line("event_msg", type="task_complete", turn_id=turn, last_agent_message=answer),
    ]


@pytest.fixture(params=["disk", pytest.param("postgres", marks=pytest.mark.prove)])
def ledger(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Ledger]:
    where = tmp_path / "ledger.db" if request.param == "disk" else shared_server().address()
    with weft.open(where) as opened:
        yield opened


@pytest.fixture
def rich(ledger: Ledger) -> Ledger:
    """A native session `main` with everything that a turn may hold, and a branch `side`."""
    ledger.record_turn(session="main", system="be brief", query="hello", response="hi", workspace="/srv/work")
    ledger.fork("main", label="side")
    ledger.record_turn(session="side", query="elsewhere", response="yes")
    picture = {"content": [{"type": "text", "text": "look at this"}, {"type": "image_url", "url": PNG}]}
    thought = {"content": [{"type": "reasoning", "text": "hm"}, {"type": "text", "text": "a dot"}]}
    calls: list[dict[str, Any]] = [
        {"name": "Bash", "id": "call 1", "arguments": {"command": "ls"}, "result": "a\nb"},
        {"name": "mcp.read/file", "id": "call 1", "arguments": "raw", "error": "no such file"},
    ]
    ledger.record_turn(session="main", query=picture, response=thought, tool_calls=calls,
                       usage={"input_tokens": 7, "output_tokens": 2}, model="model-1")  # fmt: skip
    with ledger.begin_turn(session="main") as turn:
        turn.message("wait")
        turn.request("model-1")
        turn.tool_call("slow", {"n": 1}, id="open")
        turn.interrupt("canceled")
    return ledger


def test_claude_code_is_given_the_thoughts_that_its_vendor_signed(ledger: Ledger, tmp_path: Path) -> None:
    items = [SealedItem(0, 1, {"signature": "c2ln"}), SealedItem(1, 0, {"redacted": "ZGF0YQ=="})]
    parts = [{"type": "reasoning", "text": "hm"}, {"type": "text", "text": "a dot"}]
    answer = {"content": parts, "metadata": sealed_metadata(ANTHROPIC, items)}
    ledger.record_turn(session="main", query="look", response=answer, model="claude-x", workspace="/srv/work")
    made = resume(ledger, "main", "claude-code", tmp_path / "tool")
    checked(made)
    answers = [record["message"]["content"][0] for record in records(made) if record["type"] == "assistant"]
    assert answers == [
        {"type": "thinking", "thinking": "hm", "signature": "c2ln"},
        {"type": "redacted_thinking", "data": "ZGF0YQ=="},
        {"type": "text", "text": "a dot"},
    ]
    assert "thinking" not in made.lost
    before = [turn.digest for turn in ledger.log()]
    take(ledger, made.path)
    assert [turn.digest for turn in ledger.log()] == before


def checked(made: Resume) -> None:
    {"claude-code": check_claude_code, "codex": check_codex}[made.tool](made.data)


@pytest.mark.parametrize("tool", TOOLS)
def test_a_native_session_is_written_and_comes_back_as_itself(rich: Ledger, tool: str, tmp_path: Path) -> None:
    before = {turn.id: turn.digest for turn in rich.log()}
    made = resume(rich, "main", tool, tmp_path / "home")
    checked(made)
    summary = take(rich, made.path)
    assert summary.problems == []
    assert {turn.id: turn.digest for turn in rich.log()} == before
    assert rich.session(made.session).head == rich.session("main").head
    assert list(rich.verify()) == []


@pytest.mark.parametrize("tool", TOOLS)
def test_what_is_said_there_continues_the_turn_it_came_from(rich: Ledger, tool: str, tmp_path: Path) -> None:
    made = resume(rich, "main~1", tool, tmp_path / "home")
    go_on(made, "and now?", "done")
    take(rich, made.path)
    (child,) = [turn for turn in rich.tree.children("main~1") if turn.origin == tool]
    assert said(rich, child.id)[0] == ("user", "and now?")
    assert said(rich, child.id)[-1] == ("assistant", "done")
    assert [turn.id for turn in rich.thread(made.session).turns][:-1] == list(rich.thread("main~1").ancestry)
    go_on(made, "more?", "no", age=2)
    take(rich, made.path)
    assert [turn.parent_id for turn in rich.tree.children(child.id)] == [child.id]
    assert rich.session(made.session).head == rich.tree.children(child.id)[0].id
    assert rich.session("main").head != child.id
    assert list(rich.verify()) == []


@pytest.mark.parametrize("tool", TOOLS)
def test_a_session_is_known_again_before_and_after_it_has_grown(rich: Ledger, tool: str, tmp_path: Path) -> None:
    made = resume(rich, "main", tool, tmp_path / "home")
    take(rich, made.path)
    known = len(rich.log())
    go_on(made, "and now?", "done")
    take(rich, made.path)
    assert len(rich.log()) == known + 1
    assert [turn.origin for turn in rich.tree.children("main")] == [tool]


def other_origin(ledger: Ledger) -> None:
    """Two turns of another tool, the second with a call; then a compaction that keeps it."""
    first = native_turn("t1", started=1_000, ended=2_000, end=10)
    call = native_call("c1", at=2_500, done=2_600)
    second = native_turn("t2", parent=0, calls=[call], started=2_400, ended=3_000, offset=10, end=20)
    kept = NativeCompaction(summary="so far so good", through=0, first_kept=1, trigger="manual")
    third = native_turn("t3", parent=1, compaction=kept, started=4_000, ended=4_000, offset=20, end=30)
    third.items = ()
    fourth = native_turn("t4", parent=2, started=5_000, ended=6_000, offset=30, end=40)
    import_writer = ledger.imports.writer("toy", 1)
    import_writer.take(
        NativeSession(id="s1", workspace="/srv/work"), [first, second, third, fourth], "a.jsonl", ImportCounts()
    )


@pytest.mark.parametrize("tool", TOOLS)
def test_a_session_of_another_tool_goes_on_with_its_compaction(ledger: Ledger, tool: str, tmp_path: Path) -> None:
    other_origin(ledger)
    before = {turn.id: (turn.digest, turn.session_id, turn.started_at, turn.workspace_path) for turn in ledger.log()}
    made = resume(ledger, "s1", tool, tmp_path / "home", None)
    checked(made)
    if tool == "claude-code":
        (boundary,) = [line for line in records(made) if line.get("subtype") == "compact_boundary"]
        (summary,) = [line for line in records(made) if line.get("isCompactSummary")]
        assert (boundary["parentUuid"], summary["parentUuid"]) == (None, boundary["uuid"])
        assert summary["message"]["content"] == "so far so good"
        uuids = [line["uuid"] for line in records(made)]
        kept = boundary["compactMetadata"]["preservedSegment"]
        assert uuids.index(kept["headUuid"]) < uuids.index(kept["tailUuid"]) < uuids.index(boundary["uuid"])
    else:
        (compacted,) = [line["payload"] for line in records(made) if line["type"] == "compacted"]
        kinds = [item["type"] for item in compacted["replacement_history"]]
        assert kinds == ["message", "message", "message", "function_call", "function_call_output"]
        assert compacted["message"] == "so far so good"
    go_on(made, "and now?", "done")
    take(ledger, made.path)
    after = {turn.id: (turn.digest, turn.session_id, turn.started_at, turn.workspace_path) for turn in ledger.log()}
    assert before.items() <= after.items()
    (child,) = ledger.tree.children("s1")
    assert (child.origin, len(after)) == (tool, len(before) + 1)
    assert list(ledger.verify()) == []


def from_claude(uuid: str, parent: str | None, **more: Any) -> Any:
    kind = more.pop("type", "user")
    common = {"isSidechain": False, "userType": "external", "cwd": "/srv/work", "sessionId": "own", "gitBranch": "main",
              "version": "2.1.100", "timestamp": f"2026-11-01T00:00:{int(uuid[1:]):02d}.000Z"}  # fmt: skip
    return {"parentUuid": parent, **common, "type": kind, "uuid": uuid, **more}


def from_assistant(uuid: str, parent: str, id: str, block: Any) -> Any:
    message = {"id": id, "type": "message", "role": "assistant", "model": "claude-x", "content": [block],
               "stop_reason": None, "usage": {"input_tokens": 3, "output_tokens": 2}}  # fmt: skip
    return from_claude(uuid, parent, type="assistant", message=message, requestId="req")


def prompt(uuid: str, parent: str | None, words: str) -> Any:
    return from_claude(uuid, parent, message={"role": "user", "content": words}, permissionMode="plan")


@pytest.fixture
def own_session(ledger: Ledger, tmp_path: Path) -> Ledger:
    def result(uuid: str, parent: str, call: str) -> Any:
        block = {"type": "tool_result", "tool_use_id": call, "content": f"result of {call}"}
        return from_claude(uuid, parent, message={"role": "user", "content": [block]}, toolUseResult={"stdout": call})

    lines = [
        prompt("u01", None, "do both"),
        from_assistant("u02", "u01", "m1", {"type": "thinking", "thinking": "both", "signature": "sig"}),
        from_assistant("u03", "u02", "m1", {"type": "tool_use", "id": "c1", "name": "Bash", "input": {"command": "a"}}),
        result("u04", "u03", "c1"),
        from_assistant("u05", "u03", "m1", {"type": "tool_use", "id": "c2", "name": "Bash", "input": {"command": "b"}}),
        result("u06", "u05", "c2"),
        from_assistant("u07", "u06", "m2", {"type": "text", "text": "both done"}),
        prompt("u08", "u07", "a dead end"),
        from_assistant("u09", "u08", "m3", {"type": "text", "text": "dead"}),
        prompt("u10", "u07", "the other way"),
        from_assistant("u11", "u10", "m4", {"type": "tool_use", "id": "c3", "name": "Bash", "input": {"command": "c"}}),
    ]
    path = tmp_path / "own.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    os.utime(path, (LONG_AGO, LONG_AGO))
    take(ledger, path)
    return ledger


def test_records_of_the_tool_itself_stay_as_they_were(own_session: Ledger, tmp_path: Path) -> None:
    made = resume(own_session, "own~1", "claude-code", tmp_path / "home", None)
    checked(made)
    assert (made.turns, made.verbatim, made.lost) == (1, 1, {})
    written = [line for line in records(made) if "uuid" in line]
    assert [line["uuid"] for line in written] == [f"u0{n}" for n in range(1, 8)]
    assert {line["sessionId"] for line in written} == {made.session}
    assert written[1]["message"]["content"] == [{"type": "thinking", "thinking": "both", "signature": "sig"}]
    assert written[3]["toolUseResult"] == {"stdout": "c1"}
    assert "permissionMode" not in repr(written), "whoever goes on says how much is asked about"


def test_a_strangers_session_grants_nothing_to_the_tool_that_goes_on_with_it(
    ledger: Ledger, rich: Ledger, tmp_path: Path
) -> None:
    first = resume(rich, "main", "codex", tmp_path / "first")
    grants = {"approval_policy": "never", "sandbox_policy": {"type": "danger-full-access"}, "permission_profile": "all"}
    lines = records(first)
    for line in lines:
        if line["type"] == "turn_context":
            line["payload"] |= grants
    stranger = tmp_path / "stranger" / Path(first.path).name
    stranger.parent.mkdir()
    stranger.write_text("".join(json.dumps(line) + "\n" for line in lines))
    with weft.open(tmp_path / "other.db") as other:
        take(other, stranger)
        made = resume(other, other.sessions()[0].label, "codex", tmp_path / "home")
    assert made.verbatim > 0
    contexts = [line["payload"] for line in records(made) if line["type"] == "turn_context"]
    assert contexts
    for context in contexts:
        assert (context["approval_policy"], context["sandbox_policy"]) == ("on-request", {"type": "read-only"})
        assert "permission_profile" not in context


def test_a_strangers_attachment_allows_no_tool_where_its_session_is_gone_on_with(
    ledger: Ledger, tmp_path: Path
) -> None:
    grant = {"type": "command_permissions", "allowedTools": ["Bash(*)"], "model": "claude-y"}
    lines = [
        prompt("u01", None, "begin"),
        from_claude("u02", "u01", type="attachment", attachment=grant),
        from_assistant("u03", "u02", "m1", {"type": "text", "text": "begun"}),
    ]
    path = tmp_path / "strange.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    os.utime(path, (LONG_AGO, LONG_AGO))
    take(ledger, path)
    made = resume(ledger, ledger.sessions()[0].label, "claude-code", tmp_path / "home", None)
    checked(made)
    assert made.verbatim == 1
    written = [line for line in records(made) if "uuid" in line]
    assert [(line["uuid"], line["parentUuid"]) for line in written] == [("u01", None), ("u03", "u01")]
    assert "Bash(*)" not in repr(written)


def test_words_that_were_substituted_are_gone_on_from(own_session: Ledger, tmp_path: Path) -> None:
    own_session.substitute("own~1", "all of it done")
    made = resume(own_session, "own~1", "claude-code", tmp_path / "home", None)
    assert made.verbatim == 0
    text = json.dumps(records(made))
    assert ("all of it done" in text, "both done" in text) == (True, False)


def test_any_branch_of_a_session_can_be_gone_on_from(own_session: Ledger, tmp_path: Path) -> None:
    known = {turn.id for turn in own_session.log()}
    dead = next(turn for turn in own_session.tree.children("own~1") if said(own_session, turn.id)[0][1] == "a dead end")
    made = resume(own_session, dead.id, "claude-code", tmp_path / "home", None)
    assert [line["uuid"] for line in records(made) if "uuid" in line][-2:] == ["u08", "u09"]
    go_on(made, "wake it", "up")
    take(own_session, made.path)
    (child,) = own_session.tree.children(dead.id)
    assert {turn.id for turn in own_session.log()} == known | {child.id}


def test_turns_of_the_same_origin_keep_session_and_place(own_session: Ledger, tmp_path: Path) -> None:
    before = {turn.id: turn for turn in own_session.log()}
    made = resume(own_session, "own", "claude-code", tmp_path / "home", "/elsewhere")
    take(own_session, made.path)
    assert {turn.id: turn for turn in own_session.log()} == before


def test_a_call_without_a_result_gets_one(own_session: Ledger, tmp_path: Path) -> None:
    made = resume(own_session, "own", "claude-code", tmp_path / "home", None)
    checked(made)
    last = records(made)[-1]
    assert last["message"]["content"][0]["tool_use_id"] == "c3"
    assert last["sourceToolAssistantUUID"] == "u11"


def test_a_turn_goes_from_one_tool_to_the_other_and_back(own_session: Ledger, tmp_path: Path) -> None:
    known = len(own_session.log())
    first = resume(own_session, "own", "codex", tmp_path / "codex", None)
    checked(first)
    go_on(first, "in codex", "yes")
    take(own_session, first.path)
    second = resume(own_session, first.session, "claude-code", tmp_path / "claude", None)
    checked(second)
    assert (second.turns, second.verbatim) == (3, 2)
    go_on(second, "back in claude", "yes")
    take(own_session, second.path)
    assert len(own_session.log()) == known + 2
    assert [turn.origin for turn in own_session.thread(second.session).turns][-2:] == ["codex", "claude-code"]
    assert list(own_session.verify()) == []


def test_a_thread_that_left_inside_a_turn_is_written_up_to_there(rich: Ledger, tmp_path: Path) -> None:
    inside = next(found.id for found in rich.events("main~1") if found.event.__struct_config__.tag == "tool_call")
    rich.fork(inside, label="inner")
    with pytest.raises(NotApplicable, match="inside"):
        resume(rich, "inner", "claude-code", tmp_path / "home")
    rich.record_turn(session="inner", query="another way", response="fine")
    made = resume(rich, "inner", "claude-code", tmp_path / "home")
    assert b"a dot" not in made.data
    assert b"look at this" in made.data
    known = len(rich.log())
    take(rich, made.path)
    assert len(rich.log()) == known


@pytest.mark.parametrize("tool", TOOLS)
def test_the_same_thread_written_twice_has_the_same_records_in_two_sessions(
    rich: Ledger, tool: str, tmp_path: Path
) -> None:
    first, second = (resume(rich, "main", tool, tmp_path / "home") for _ in range(2))
    assert first.session != second.session
    assert [turn.key for turn, _ in first.claims] == [turn.key for turn, _ in second.claims]
    known = len(rich.log())
    go_on(first, "one", "1")
    go_on(second, "two", "2", age=2)
    take(rich, first.path, second.path)
    assert len(rich.log()) == known + 2
    assert len(rich.tree.children("main")) == 2


def test_another_ledger_that_has_the_facts_knows_the_session_too(rich: Ledger, tmp_path: Path) -> None:
    made = resume(rich, "main", "claude-code", tmp_path / "home")
    go_on(made, "and now?", "done")
    facts = tmp_path / "facts.jsonl"
    with facts.open("wb") as file:
        rich.upkeep.export_facts(file)
    with weft.open(tmp_path / "other.db") as other:
        other.imports.share_with(rich)
        with facts.open("rb") as file:
            other.upkeep.import_facts(file)
        known = len(other.log())
        take(other, made.path)
        take(rich, made.path)
        assert len(other.log()) == known + 1
        assert {turn.id for turn in other.log()} == {turn.id for turn in rich.log()}


@pytest.mark.parametrize(
    ("settings", "provider"),
    [
        (None, "openai"),
        ('model = "m"\n', "openai"),
        ('model_provider = "azure"\n', "azure"),
        ('model_provider = "azure"\nprofile = "own"\n[profiles.own]\nmodel_provider = "local"\n', "local"),
        ('model_provider = "azure"\nprofile = "own"\n[profiles.own]\nmodel = "m"\n', "azure"),
    ],
)
def test_codex_is_given_the_provider_that_it_is_configured_for(
    rich: Ledger, tmp_path: Path, settings: str | None, provider: str
) -> None:
    if settings is not None:
        (tmp_path / "config.toml").write_text(settings)
    meta = json.loads(resume(rich, "main", "codex", tmp_path).data.splitlines()[0])
    assert (meta["type"], meta["payload"]["model_provider"]) == ("session_meta", provider)


def test_settings_of_codex_that_cannot_be_read_are_named(rich: Ledger, tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text("model_provider = \n")
    with pytest.raises(InvalidInput, match=r"config\.toml cannot be read"):
        resume(rich, "main", "codex", tmp_path)


def test_nothing_is_overwritten_and_nothing_is_left_beside(rich: Ledger, tmp_path: Path) -> None:
    made = prepare_resume(rich, "main", "codex", tmp_path, FixedClock(NOW), system_random, workspace="/w")
    Path(made.path).parent.mkdir(parents=True)
    Path(made.path).write_text("mine")
    with pytest.raises(InvalidInput, match="there already"):
        write_resume(rich, made)
    assert Path(made.path).read_text() == "mine"
    assert [path.name for path in Path(made.path).parent.iterdir()] == [Path(made.path).name]


def test_the_file_is_its_owners_alone(rich: Ledger, tmp_path: Path) -> None:
    made = resume(rich, "main", "claude-code", tmp_path)
    assert Path(made.path).stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("tool", ["claude-code", "codex"])
def test_an_erasure_names_the_files_that_hold_what_was_said(rich: Ledger, tool: str, tmp_path: Path) -> None:
    made = resume(rich, "main", tool, tmp_path)
    (copy,) = rich.erasure.plan(made.turn_id).copies
    assert (copy.path, copy.kind, copy.exists) == (made.path, "export", True)


def test_a_folder_is_called_as_the_system_calls_it(rich: Ledger, tmp_path: Path) -> None:
    """A tool that is started in a link to a folder finds itself in the folder, and looks for its sessions there."""
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    made = resume(rich, "main", "claude-code", tmp_path, str(tmp_path / "link"))
    assert made.workspace == os.path.realpath(tmp_path / "real")
    assert Path(made.path).parent.name.endswith("-real")
    assert all(record["cwd"] == made.workspace for record in records(made) if "cwd" in record)
    assert resume(rich, "main", "codex", tmp_path, "C:\\work").workspace == "C:\\work"


def test_a_session_without_a_folder_asks_for_one(ledger: Ledger, tmp_path: Path) -> None:
    ledger.record_turn(session="main", query="q", response="r")
    with pytest.raises(InvalidInput, match="no folder"):
        resume(ledger, "main", "codex", tmp_path, None)


def test_a_turn_that_is_being_recorded_is_refused(ledger: Ledger, tmp_path: Path) -> None:
    with ledger.begin_turn(session="main") as turn:
        turn.message("q")
        with pytest.raises(NotApplicable, match="not ended"):
            resume(ledger, turn.id, "codex", tmp_path)


def test_the_files_lie_where_their_tools_look(rich: Ledger, tmp_path: Path) -> None:
    claude = resume(rich, "main", "claude-code", tmp_path, "/srv/my work/x.y")
    assert claude.path == f"{tmp_path}/projects/-srv-my-work-x-y/{claude.session}.jsonl"
    assert claude.command == f"cd '/srv/my work/x.y' && claude --resume {claude.session}"
    codex = resume(rich, "main", "codex", tmp_path, "/srv/work")
    assert re.fullmatch(rf"{tmp_path}/sessions/2001/09/09/rollout-2001-09-09T\S+-{codex.session}\.jsonl", codex.path)
    assert codex.command == f"cd /srv/work && codex resume {codex.session}"


@pytest.fixture
def everything(rich: Ledger) -> Ledger:
    """A session with all that a format may fail to carry."""
    made = {"content": [{"type": "text", "text": "here"}, {"type": "image_url", "url": PNG}]}
    spawned = [{"name": "agent", "result": "ok", "spawned_session": "child"}]
    rich.record_turn(session="main", query="draw", response=made, tool_calls=spawned)
    rich.record_turn(session="main", query="fail", error="broke")
    failed = rich.log(1)[0].id
    rich.record_turn(session="main", query={"content": "again", "context": {"rules": "r"}}, response="ok",
                     parent=failed)  # fmt: skip
    rich.compactions.record(session="main", summary="")
    detailed = native_turn("t1", calls=[native_call("c1", detail={"exit_code": 0})], started=1_000, end=10)
    take_toy(rich, "s1", detailed)
    return rich


@pytest.mark.parametrize("tool", TOOLS)
def test_what_a_format_cannot_carry_is_exactly_what_it_says(everything: Ledger, tool: str, tmp_path: Path) -> None:
    lost: set[str] = set()
    for session in ("main", "s1"):
        made = resume(everything, session, tool, tmp_path)
        checked(made)
        lost |= made.lost.keys()
    assert lost == load_format(tool).lost.keys()


@pytest.mark.parametrize("tool", TOOLS)
def test_the_page_lists_what_a_format_cannot_carry(tool: str) -> None:
    section = PAGE.split(f"### {tool}\n")[1].split("\n#")[0]
    assert dict(re.findall(r"^- \*(.+?)\*: (.+)$", section, re.MULTILINE)) == load_format(tool).lost


@pytest.mark.parametrize("tool", TOOLS)
def test_the_page_says_which_versions_a_person_has_tried(tool: str) -> None:
    format = load_format(tool)
    (row,) = re.findall(rf"^\| {tool} \| (.+?) \| (.+?) \|$", PAGE, re.MULTILINE)
    assert row == (format.structure, ", ".join(format.verified) or "none yet")
