"""`weft replay` and `weft bisect` through the command line, against a scripted server."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import click
import pytest

from tests.runtime.inference.asking import CANARY
from tests.runtime.replay.scripted_answers import saying
from tests.sandbox import machine_sandbox
from tests.surfaces.serving import serving
from tests.surfaces.shell import Shell, on_terminal, spawn
from tests.surfaces.test_cli_broker import stock
from tests.surfaces.test_cli_policy import READER
from weft.surfaces.cli.main import weft as program

MORE_THAN_A_PIPE_HOLDS = 1 << 20
READ_A, READ_B = ("Read", {"file_path": "a"}), ("Read", {"file_path": "b"})
AS_RECORDED = (saying("", [READ_A]), saying("re: look"), saying("re: thanks"))


@pytest.fixture(autouse=True)
def _key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("THERE_KEY", CANARY)
    monkeypatch.setenv("USER", "tester")


def record(weft: Shell, session: str = "main") -> list[str]:
    read = [{"name": "Read", "id": "r", "arguments": {"file_path": "a"}, "result": "alpha"}]
    usage = {"input_tokens": 1000, "output_tokens": 100}
    look = weft.record("look", session=session, tool_calls=read, model="claude-sonnet-4-5", usage=usage)
    return [look, weft.record("thanks", session=session, model="claude-sonnet-4-5")]


def write_reader(file: str) -> None:
    """The policy of docs/permissions.md that allows nothing but reading."""
    assert READER is not None
    Path(file).write_text(READER[1])


def test_a_thread_is_replayed_with_another_model_and_reported(weft: Shell) -> None:
    with serving(*AS_RECORDED) as server:
        stock(weft, server.url)
        look, thanks = record(weft)
        (thread,) = weft.json("replay", "main", "--model", "fast", "--exit-code")["threads"]
        assert (thread["outcome"], thread["session"], thread["first"]) == ("same", "replay:main:1", None)
        assert (thread["thread"], thread["recorded"], len(thread["exchanges"])) == (thanks, 2, 2)
        assert thread["recorded_spending"]["cost"] == 4500
        assert len(server.received) == 3
        first = weft.json("show", thread["exchanges"][0]["replayed"])
        assert first["effective_config"]["replays"] == look
        assert [call["result"] for call in first["tool_calls"]] == ["alpha"]
        assert len(weft.json("diff", "main", "replay:main:1")["right"]) == 2
        assert weft.json("inbox") == []
        assert weft("verify").code == 0


def test_the_first_divergence_stands_beside_what_was_recorded(weft: Shell) -> None:
    with serving(saying("", [READ_A]), saying("re: look"), saying("Goodbye")) as server:
        stock(weft, server.url)
        _, thanks = record(weft)
        answer = weft("replay", "main", "--model", "fast", "--exit-code")
    assert answer.code == 1, answer.err
    lines = answer.out.splitlines()
    assert lines[0] == "main was replayed in replay:main:1 by m-1 in place of claude-sonnet-4-5"
    assert lines[1] == "diverged: 2 of 2 exchanges replayed"
    assert lines[2] == f"first divergence: turn {thanks}, answer 1: text"
    assert [line.split() for line in lines[3:5]] == [["-", "re:", "thanks"], ["+", "Goodbye"]]
    assert lines[-1].split("\t")[:2] == ["cost", "$0.0045+"]


def test_a_call_without_a_recorded_result_stops_or_is_skipped(weft: Shell) -> None:
    stopped = (saying("", [READ_B]), saying("re: thanks"))
    with serving(*stopped) as server:
        stock(weft, server.url)
        look, _ = record(weft)
        answer = weft("replay", "main", "--model", "fast")
        assert 'it stopped at a call that has no recorded result: Read {"file_path":"b"}' in answer.out
        assert (answer.code, len(server.received)) == (0, 1)
    with serving(*stopped) as server:
        weft.json("provider", "configure", "there", "--set", f"baseUrl={server.url}")
        (thread,) = weft.json("replay", "main", "--model", "fast", "--skip")["threads"]
        assert [one["outcome"] for one in thread["exchanges"]] == ["stopped", "same"]
        assert weft.json("show", thread["exchanges"][1]["replayed"])["parent_id"] == look


def test_a_person_is_asked_what_a_call_gives(weft: Shell) -> None:
    with serving(saying("", [READ_B]), saying("re: look"), saying("re: thanks")) as server:
        stock(weft, server.url)
        record(weft)
        typed = 'what\nr\n{"text": "beta"}\n'
        code, shown = on_terminal(weft.folder, "replay", "main", "--model", "fast", "--ask", typed=typed)
        assert code == 0, shown
        assert 'no result is recorded of Read {"file_path":"b"}' in shown
        tool = [message for message in server.received[1].body["messages"] if message["role"] == "tool"]
        assert [json.loads(message["content"]) for message in tool] == [{"text": "beta"}]
        assert len(server.received) == 3


def test_tools_run_only_where_that_is_asked_for_and_allowed(weft: Shell) -> None:
    """What is recorded is answered from the record: the file is not what it was."""
    machine_sandbox()
    Path("folder").mkdir()
    for name in ("a", "b"):
        Path("folder", name).write_text(f"{name} as it is now\n")
    recorded = [{"name": "read", "id": "r", "arguments": {"path": "a"}, "result": "a as it was"}]
    both = saying("", [("read", {"path": "a"}), ("read", {"path": "b"}), ("write", {"path": "c", "content": "x"})])
    with serving(both, saying("re: look")) as server:
        stock(weft, server.url)
        weft.record("look", tool_calls=recorded)
        refused = weft("replay", "main", "--model", "fast", "--live-tools")
        assert (refused.code, "has no toolset" in refused.out) == (1, True)
        options = ("--live-tools", "--toolset", "worker", "--workspace", "folder")
        write_reader("reader.py")
        weft.json("policy", "propose", "reader.py")
        assert weft("policy", "activate", "reader", "--yes").code == 0
        (thread,) = weft.json("replay", "main", "--model", "fast", *options)["threads"]
        calls = weft.json("show", thread["exchanges"][0]["replayed"])["tool_calls"]
    assert calls[0]["result"] == "a as it was"
    assert "b as it is now" in json.dumps(calls[1]["result"])
    assert (calls[2]["status"], Path("folder", "c").exists()) == ("failed", False)


def test_ranges_prompts_and_samples(weft: Shell) -> None:
    prompt = Path("prompt.md")
    prompt.write_text("Be kind")
    with serving(saying("re: thanks")) as server:
        stock(weft, server.url)
        record(weft)
        record(weft, "other")
        weft.record("alone", session="other")
        (thread,) = weft.json("replay", "main~1..main", "--model", "fast", "--prompt", "@prompt.md")["threads"]
        assert (thread["outcome"], thread["recorded"]) == ("same", 1)
        messages = server.received[0].body["messages"]
        assert messages[0] == {"role": "system", "content": "Be kind"}
        assert [message["role"] for message in messages].count("tool") == 1
        (open_range,) = weft.json("replay", "main~1..", "--model", "fast")["threads"]
        assert (open_range["thread"], open_range["recorded"]) == (thread["thread"], 1)
        report = weft.json("replay", "--sample", "5", "--seed", "3", "--model", "fast", "--texts", "ignore")
        assert {one["recorded_session"] for one in report["threads"]} == {"main", "other"}
        table = weft("replay", "--sample", "5", "--model", "fast", "--skip")
        assert table.code == 0, table.err
        rows = [line.split("\t") for line in table.out.splitlines()]
        assert {row[0] for row in rows if len(row) == 7} == {"main", "other"}
        assert any(row[0].startswith("2 threads: ") for row in rows)


def test_what_does_not_go_together_is_refused(weft: Shell) -> None:
    weft.record("look")
    for arguments in (
        (), ("--model", "x", "--policy", "p.py"), ("--model", "x", "--skip", "--ask"),
        ("main", "--sample", "3", "--model", "x"), ("--model", "x", "--origin", "codex"),
        ("--model", "x", "--workspace", "."),
    ):  # fmt: skip
        assert weft("replay", *arguments).code == 2, arguments
    asked = weft("replay", "--model", "x", "--ask")
    assert (asked.code, "nobody is there" in asked.err) == (4, True)


def test_a_model_that_is_unknown_or_has_no_price_for_a_budget_is_refused_before_anything_is_recorded(
    weft: Shell,
) -> None:
    with serving(*AS_RECORDED) as server:
        stock(weft, server.url)
        record(weft)
        assert weft("replay", "main", "--model", "nonesuch").code == 3
        by_name = weft("replay", "main", "--model", "fast", "--max-cost", "1")
        assert (by_name.code, "model 'fast' has no price" in by_name.err) == (8, True), by_name.err
        weft.json("agent", "create", "ada", "--set", "defaultModel=fast")
        weft.record("hello", session="of-ada", persona="ada")
        by_agent = weft("replay", "of-ada", "--prompt", "Be brief", "--max-cost", "1", "--skip")
        assert (by_agent.code, "model 'fast' has no price" in by_agent.err) == (8, True), by_agent.err
        by_nothing = weft("replay", "main", "--prompt", "Be brief", "--max-cost", "1", "--skip")
        assert (by_nothing.code, "nothing names a model" in by_nothing.err) == (4, True), by_nothing.err
        assert (len(weft.json("sessions")), server.received) == (2, [])


def test_a_replay_ends_where_its_budget_pays_for_no_answer(weft: Shell) -> None:
    with serving(*AS_RECORDED) as server:
        stock(weft, server.url)
        assert weft("model", "create", "dear", "--backend", "claude-opus-4-5", "--provider", "there").code == 0
        record(weft)
        record(weft, "other")
        many = weft("replay", "main", "other", "--model", "dear", "--max-cost", "0.0001", "--skip")
        assert (many.code, server.received) == (1, [])
        assert "the budget is spent: 1 more" in many.err
        assert len(weft.json("sessions")) == 3


def test_another_policy_names_the_first_call_that_it_decides_otherwise(weft: Shell) -> None:
    machine_sandbox()
    calls = [
        {"name": "Read", "id": "r", "arguments": {"file_path": "a"}},
        {"name": "Bash", "id": "b", "arguments": {"command": "git status"}},
    ]
    weft.record("look")
    turn = weft.record("do it", tool_calls=calls)
    write_reader("strict.py")
    answer = weft("replay", "main", "--policy", "strict.py", "--exit-code", "--json")
    assert answer.code == 1, answer.err
    (thread,) = answer.json["threads"]
    assert (thread["turns"], thread["calls"], thread["changed"]) == (2, 2, 1)
    first = thread["first"]
    assert (first["turn"], first["call"], first["after"]) == (turn, "b", "deny_continue")
    shown = weft("replay", "main", "--policy", "strict.py")
    assert (shown.code, "strict would decide otherwise about 1 of 2 recorded calls" in shown.out) == (0, True)


@pytest.mark.slow("runs a check after several turns, each in a sandbox")
def test_bisect_names_the_first_turn_after_which_the_check_fails(weft: Shell) -> None:
    turns = [weft.record(f"step {number}{' oops' if number == 5 else ''}") for number in range(9)]
    result = weft.json("bisect", "main", "--check", "! grep -q oops")
    assert (result["first_bad"], result["last_good"], result["turns"]) == (turns[5], turns[4], 9)
    assert len(result["steps"]) <= 6
    assert [step["verdict"] for step in result["steps"]][:2] == ["good", "bad"]
    shown = weft("bisect", "main", "--check", "! grep -q oops")
    assert shown.out.splitlines()[0].startswith(f"{turns[5][-8:]} is the first bad turn")
    assert "is good (exit code 0)" in shown.err
    limited = weft.json("bisect", "main", "--check", "! grep -q oops", "--good", turns[3], "--bad", turns[6])
    assert (limited["first_bad"], limited["turns"]) == (turns[5], 4)
    skipping = 'python3 -c "import json, sys; n = len(json.load(sys.stdin)); sys.exit(125 if n in (5, 6) else n > 5)"'
    skipped = weft.json("bisect", "main", "--check", skipping)
    assert (skipped["first_bad"], skipped["candidates"]) == (None, turns[4:7])
    for arguments, words in (
        (("--check", "true"), "is still good"),
        (("--check", "false"), "is already bad"),
        (("--check", "exit 255"), "ended with 255"),
        (("--check", "true", "--good", turns[6], "--bad", turns[3]), "comes after"),
    ):
        refused = weft("bisect", "main", *arguments)
        assert (refused.code in (4, 5, 8), words in refused.err) == (True, True), refused.err
    assert weft("bisect", "main").code == 2
    assert weft("bisect", "main", "--check", "x", "--model-check", "y").code == 2


def test_the_commands_of_the_page_are_understood() -> None:
    page = (Path(__file__).parents[2] / "docs" / "branches.md").read_text()
    lines = re.findall(r"^weft (replay|bisect) (.*)$", page, re.MULTILINE)
    assert len(lines) >= 8
    for name, arguments in lines:
        command = program.get_command(click.Context(program), name)
        assert command is not None
        command.make_context(name, shlex.split(arguments, comments=True))


def test_a_check_that_does_not_read_the_thread_ends_nothing_else(weft: Shell, folder: Path) -> None:
    for _ in range(2):
        weft.record("x" * MORE_THAN_A_PIPE_HOLDS)
    searched = spawn(folder, "bisect", "main", "--check", "true")
    assert searched.returncode == 4, searched
    assert b"the last turn" in searched.stderr


def test_a_check_is_given_what_read_prints(weft: Shell) -> None:
    for number in range(2):
        weft.record(f"step {number}")
    weft("bisect", "main", "--check", "cat > got-$$.json; ls got-*.json | wc -l | grep -q 1")
    documents = [json.loads(path.read_text()) for path in Path().glob("got-*.json")]
    assert weft.json("read", "main") in documents
    assert weft.json("read", "main~1") in documents


def test_a_model_judges_in_a_word(weft: Shell) -> None:
    answers = [saying(text) for text in ("YES", "no.", "hard to say", "Yes")]
    with serving(*answers) as server:
        stock(weft, server.url)
        turns = [weft.record(f"step {number}") for number in range(4)]
        result = weft.json("bisect", "main", "--model-check", "Is it fine?", "--model", "fast")
        assert (result["first_bad"], result["last_good"]) == (turns[3], turns[2])
        assert [step["verdict"] for step in result["steps"]] == ["good", "bad", "skip", "good"]
        assert "Is it fine?" in server.received[0].body["messages"][0]["content"]
        assert weft.json("log", "model:fast", "-n", "9")
