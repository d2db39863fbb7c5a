"""init, record and compact."""

from __future__ import annotations

import inspect
import json
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from tests.surfaces.shell import Shell, on_terminal
from weft.ledger.api.ledger import Ledger
from weft.ledger.write.record_turn import NewTurn
from weft.ledger.write.turn_events import RunConfig
from weft.surfaces.cli.sessions.recording import TurnInput


def test_init_makes_a_ledger_in_this_folder_and_says_where(shell: Shell, folder: Path) -> None:
    answer = shell("init")
    assert answer.code == 0
    assert answer.out == f"made a ledger at {folder}/.weft/ledger.db\n"
    assert "weft record" in answer.err
    assert (folder / ".weft" / "ledger.db").is_file()


def test_init_again_leaves_the_ledger_as_it_is(weft: Shell) -> None:
    turn = weft.record("hello")
    answer = weft("init")
    assert (answer.code, answer.out.split(" at ")[0]) == (0, "there is a ledger already")
    assert [found["id"] for found in weft.json("log")] == [turn]
    assert weft.json("init")["created"] is False


def test_init_keeps_the_ledger_out_of_git(weft: Shell, folder: Path) -> None:
    assert (folder / ".weft" / ".gitignore").read_text() == "*\n"


@pytest.mark.parametrize(
    ("name", "place"),
    [("sub", "sub/.weft/ledger.db"), ("a/b", "a/b/.weft/ledger.db"), ("my.db", "my.db"), ("x/y.sqlite", "x/y.sqlite")],
)
def test_init_takes_a_folder_or_a_file(shell: Shell, folder: Path, name: str, place: str) -> None:
    assert shell.json("init", name)["path"] == str(folder / place)
    assert (folder / place).is_file()


def test_init_makes_the_ledger_that_the_option_or_the_environment_names(
    shell: Shell, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert shell.json("--ledger", "named.db", "init")["path"] == str(folder / "named.db")
    monkeypatch.setenv("WEFT_LEDGER", str(folder / "other.db"))
    assert shell.json("init")["path"] == str(folder / "other.db")


def test_init_user_makes_the_ledger_that_is_used_everywhere_else(shell: Shell, tmp_path: Path) -> None:
    own = tmp_path / "home/.local/share/weft/ledger.db"
    assert shell.json("init", "--user")["path"] == str(own)
    assert shell.json("stats")["path"] == str(own)


def test_init_refuses_a_file_that_is_no_ledger(shell: Shell, folder: Path) -> None:
    (folder / "notes.db").write_text("not a database, but quite long enough to be mistaken for one")
    answer = shell("init", "notes.db")
    assert answer.code == 7
    assert "not a Weft ledger" in answer.err


def test_init_refuses_what_is_no_place_for_a_file(shell: Shell, folder: Path) -> None:
    assert shell("--ledger", "postgresql://host/db", "init").code == 7
    assert shell("init", "there", "--user").code == 2
    assert list(folder.iterdir()) == []


def test_a_ledger_above_this_folder_is_found(weft: Shell, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    deep = folder / "a" / "b"
    deep.mkdir(parents=True)
    monkeypatch.chdir(deep)
    assert weft.json("stats")["path"] == str(folder / ".weft" / "ledger.db")


def test_the_option_wins_over_the_environment_and_both_over_the_folder(
    weft: Shell, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("one.db", "two.db"):
        weft("init", name)
    monkeypatch.setenv("WEFT_LEDGER", "one.db")
    assert weft.json("stats")["path"] == "one.db"
    assert weft.json("stats", "--ledger", "two.db")["path"] == "two.db"
    assert weft.json("--ledger", "two.db", "stats")["path"] == "two.db"
    assert weft.json("stats", "--ledger", str(folder))["path"] == str(folder / ".weft" / "ledger.db")


def test_record_takes_a_turn_as_json_and_answers_id_digest_and_receipt(weft: Shell) -> None:
    turn = {
        "session": "work",
        "query": "what is in x?",
        "response": "a list",
        "model": "m-1",
        "usage": {"input_tokens": 9, "output_tokens": 2},
        "tool_calls": [{"id": "c1", "name": "read", "arguments": {"path": "x"}, "result": [1, 2]}],
    }
    made = weft.json("record", stdin=json.dumps(turn))
    assert made["session"] == "work"
    assert made["receipt"]["digest"] == made["digest"]
    shown = weft.json("show", made["id"])
    assert shown["usage"] == {"input_tokens": 9, "output_tokens": 2, "total_tokens": 11}
    assert shown["tool_calls"][0]["arguments"] == {"path": "x"}
    assert shown["tool_calls"][0]["result"] == [1, 2]


def test_record_prints_lines_for_people_and_the_id_alone_when_quiet(weft: Shell) -> None:
    answer = weft("record", "--query", "hello", "--response", "hi", "--model", "m")
    assert [line.split()[0] for line in answer.out.splitlines()] == ["turn", "session", "digest", "receipt"]
    quiet = weft("record", "--query", "more", "--quiet")
    assert len(quiet.out.strip()) == 26
    assert quiet.err == ""


def test_record_goes_to_main_unless_told_otherwise(weft: Shell) -> None:
    weft("record", "--query", "one")
    weft("record", "--query", "two", "--session", "other")
    weft("record", stdin='{"query": "three", "session": "third"}')
    assert {session["label"] for session in weft.json("sessions")} == {"main", "other", "third"}


def test_record_reads_a_file_and_options_win_over_its_fields(weft: Shell, folder: Path) -> None:
    (folder / "turn.json").write_text('{"query": "from the file", "response": "yes", "session": "a"}')
    made = weft.json("record", "turn.json", "--session", "b", "--query", "from the option")
    assert made["session"] == "b"
    assert [message["content"][0]["text"] for message in weft.json("show", "b")["messages"]] == [
        "from the option",
        "yes",
    ]


def test_record_pins_a_parent_by_any_name(weft: Shell) -> None:
    first = weft.record("one")
    weft.record("two")
    made = weft.json("record", stdin='{"query": "aside", "parent": "main~1"}')
    assert (made["parent_id"], made["session"]) == (first, None)
    stale = weft("record", stdin='{"query": "late", "session": "main", "expected": "main~1"}')
    assert stale.code == 4


def test_a_recorded_error_leaves_a_failed_turn_and_the_head_where_it_was(weft: Shell) -> None:
    first = weft.record("one")
    weft("record", stdin='{"query": "two", "error": {"message": "overloaded", "code": "529"}}')
    newest = weft.json("log")[0]
    assert (newest["status"], newest["error"], newest["error_code"]) == ("failed", "overloaded", "529")
    assert weft.json("sessions")[0]["head"] == first


def test_record_with_a_key_is_done_once(weft: Shell) -> None:
    first = weft.json("record", "--query", "one", "--key", "job-1")
    assert weft.json("record", "--query", "one", "--key", "job-1") == first
    assert weft.json("record", stdin='{"query": "one", "key": "job-1"}') == first
    assert [turn["id"] for turn in weft.json("log")] == [first["id"]]
    refused = weft("record", "--query", "two", "--key", "job-1")
    assert (refused.code, "job-1" in refused.err) == (4, True)
    assert len(weft.json("log")) == 1


def test_record_with_a_key_pins_turns_by_their_ids_alone(weft: Shell) -> None:
    first = weft.record("one")
    for pin in ("parent", "expected"):
        refused = weft("record", "--key", "k", stdin=json.dumps({"query": "two", "session": "main", pin: "main"}))
        assert (refused.code, f"{pin} is 'main'" in refused.err) == (5, True)
    again = [weft.json("record", "--key", "k", stdin=json.dumps({"query": "two", "parent": first})) for _ in range(2)]
    assert again[0] == again[1]
    assert again[0]["parent_id"] == first


CONVERSATION: list[dict[str, Any]] = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": [{"type": "text", "text": "ls"}]},
    {"role": "assistant", "content": None, "tool_calls": [
        {"id": "call_1", "type": "function", "function": {"name": "ls", "arguments": '{"path": "."}'}},
    ]},
    {"role": "tool", "tool_call_id": "call_1", "content": "notes.txt"},
    {"role": "assistant", "content": "One file."},
    {"role": "user", "content": "Thanks."},
    {"role": "assistant", "content": "You are welcome."},
]  # fmt: skip
TOKENS = {"prompt_tokens": 20, "completion_tokens": 4, "total_tokens": 24}


def test_a_conversation_is_recorded_whole_or_not_at_all(weft: Shell) -> None:
    before = weft.record("first", key="taken")
    wrong = {"messages": CONVERSATION, "usage": {"prompt_tokens": -1}}
    assert weft("record", stdin=json.dumps(wrong)).code == 5
    assert weft("record", "--key", "taken", stdin=json.dumps({"messages": CONVERSATION})).code == 4
    assert [turn["id"] for turn in weft.json("log", "main")] == [before]
    answer = weft("record", stdin=json.dumps({"messages": CONVERSATION, "parent": before, "wait": 1}))
    assert answer.code == 0, answer.err
    *_, first = weft.json("log", "main", "-n", "9")
    assert first["id"] == before


def test_record_takes_a_conversation_of_messages_turn_by_turn(weft: Shell) -> None:
    turn = {"messages": CONVERSATION, "model": "gpt-x", "usage": TOKENS, "key": "k"}
    recorded = weft.json("record", stdin=json.dumps(turn))
    assert recorded["depth"] == 2
    assert weft.json("record", stdin=json.dumps(turn)) == recorded
    document = json.loads(weft("export", "main", "--as", "openai").out)
    assert document["messages"] == [
        {**CONVERSATION[1], "content": "ls"} if m == CONVERSATION[1] else m for m in CONVERSATION
    ]
    shown = weft.json("show", "main")
    assert shown["usage"]["total_tokens"] == 24
    for form in ("openai", "anthropic"):
        exported = weft("export", "main", "--as", form).out
        weft("record", "--session", form, stdin=exported)
        assert weft("export", form, "--as", form).out == exported
    weft("record", "--session", "list", stdin=json.dumps(CONVERSATION))
    assert "both given" in weft("record", stdin='{"messages": [], "query": "x"}').err
    assert "empty" in weft("record", stdin='{"messages": []}').err


def test_every_field_of_record_turn_can_be_given_as_json() -> None:
    accepted = {"session", "query", "response", "parent", "expected", "wait", "key"}
    accepted.add("agent")  # of which `persona` is an earlier spelling
    accepted.add("messages")  # which become a query and a response for each prompt
    for source in (NewTurn, RunConfig):
        accepted |= {name for name, p in inspect.signature(source).parameters.items() if p.kind is p.KEYWORD_ONLY}
    accepted.remove("setting")  # its fields are given one by one
    assert set(TurnInput.__struct_fields__) == accepted
    assert accepted >= set(inspect.signature(Ledger.record_turn).parameters) - {"self", "turn"}


@pytest.mark.parametrize(
    ("stdin", "complaint"),
    [
        (b"{", "not valid JSON"),
        (b"[1]", "Expected `object`"),
        (b'{"qeury": "x"}', "qeury"),
        (b'{"query": 5}', "query"),
        (b'{"model": 5}', "$.model"),
        (b'{"tools_available": 5}', "$.tools_available"),
        (b'{"query": "a", "query": "b"}', "'query' stands twice"),
        (b'{"params": NaN}', "NaN"),
        (b'{"params": 1e999}', "inf"),
        (b'{"query": "\xff"}', "not UTF-8 (byte 11)"),
        (b'{"params": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", "nested"),
        (b'{"tool_calls": [{"id": "c"}]}', "tool_calls[0]"),
        (b'{"usage": {"tokens": 1}}', "usage"),
        (b'{"role": "boss"}', "role"),
        (b'{"query": "x", "session": "a~1"}', "looks like an address"),
    ],
)
def test_a_turn_that_has_no_single_meaning_is_refused_with_the_place(weft: Shell, stdin: bytes, complaint: str) -> None:
    answer = weft("record", stdin=stdin)
    assert (answer.code, answer.out) == (5, "")
    assert complaint in answer.err
    assert weft.json("log") == []


@pytest.mark.parametrize("stdin", [b"", b" \n"])
@pytest.mark.parametrize("file", [(), ("-",)])
def test_nothing_piped_in_is_no_turn(weft: Shell, stdin: bytes, file: tuple[str, ...]) -> None:
    answer = weft("record", *file, "--session", "main", stdin=stdin)
    assert (answer.code, answer.out) == (2, "")
    assert "no turn was given: pipe it as JSON, name a FILE, or use --query and --response" in answer.err


@pytest.mark.parametrize(
    "text", ["nul \0 inside", "lone \ud800 surrogate", "\N{GRINNING FACE} \u202e bidi", "1" * 100_000]
)
def test_any_text_comes_back_exactly(weft: Shell, text: str) -> None:
    turn = weft.record(text, tool_calls=[{"name": "t", "arguments": {"n": 2**70, text[:9]: text}, "result": text}])
    shown = weft.json("show", turn)
    assert shown["messages"][0]["content"] == [{"type": "text", "text": text}]
    assert shown["tool_calls"][0]["arguments"] == {"n": 2**70, text[:9]: text}
    assert shown["tool_calls"][0]["result"] == text


def test_arguments_that_are_not_text_are_refused(weft: Shell) -> None:
    answer = weft("record", "--query", "caf\udce9")
    assert answer.code == 5
    assert "UTF-8" in answer.err


@pytest.mark.parametrize("command", ["record", "compact"])
def test_nobody_is_left_waiting_at_a_terminal_for_what_should_be_piped(weft: Shell, command: str) -> None:
    code, shown = on_terminal(weft.folder, command)
    assert code == 2
    assert "was given: pipe it" in shown


def test_a_compaction_is_a_turn_that_stands_for_what_lies_before_it(weft: Shell) -> None:
    first, kept = weft.record("one"), weft.record("two")
    made = weft.json("compact", "--summary", "so far", "--first-kept", "main", "--model", "small")
    shown = weft.json("show", made["id"])
    assert shown["turn_type"] == "compaction"
    assert (shown["compaction"]["summarized_through"], shown["compaction"]["first_kept"]) == (first, kept)
    assert shown["compaction"]["trigger"] == "manual"
    assert "; made by hand\n" in weft("show", made["id"]).out
    texts = [part["text"] for m in weft.json("context")["messages"] for part in m["content"]]
    assert texts == ["so far", "two", "re: two"]


def test_a_summary_can_be_piped_in(weft: Shell) -> None:
    weft.record("one")
    answer = weft("compact", "main", stdin="all that matters\n")
    assert answer.code == 0
    assert "undo: weft compact main --undo" in answer.err
    assert weft("log", "--oneline", "-n", "1").out.split(" ", 1)[1] == "(main) [compaction] all that matters\n"


def test_a_session_switches_between_compactions_and_back_to_none(weft: Shell) -> None:
    weft.record("one")
    first = weft.json("compact", "--summary", "short")["id"]
    weft.json("compact", "--summary", "shorter")
    assert weft.json("context")["compaction"] != first
    assert weft("compact", "--use", first).code == 0
    assert weft.json("context")["compaction"] == first
    assert weft("compact", "--undo").code == 0
    assert weft.json("context")["compaction"] is None
    assert len(weft.json("context")["messages"]) == 2


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("--summary", "x"), 4),
        (("nobody", "--summary", "x"), 3),
        (("--summary", "  "), 5),
        (("--use", "main", "--undo"), 2),
        (("--undo", "--summary", "x"), 2),
    ],
)
def test_a_compaction_that_cannot_be_is_refused(weft: Shell, arguments: tuple[str, ...], code: int) -> None:
    weft("move", "main", "--reset")
    weft("record", "--session", "other", "--query", "x")
    weft("record", "--query", "gone")
    weft("move", "main", "--reset")
    assert weft("compact", *arguments).code == code


def test_what_is_recorded_here_can_be_read_with_a_plain_sqlite_shell(weft: Shell, folder: Path) -> None:
    turn = weft.record("hello")
    database = sqlite3.connect(f"file:{folder}/.weft/ledger.db?mode=ro", uri=True)
    assert database.execute("SELECT id FROM turns").fetchall() == [(turn,)]
    database.close()


def test_a_new_session_whose_name_another_begins_with_is_told(weft: Shell) -> None:
    weft.record("q", session="f70db4c5-8eb1")
    answer = weft("record", "--session", "f70db4c5", "--query", "q", "--response", "r")
    assert "to record in f70db4c5-8eb1, give its whole label" in answer.err
    assert weft("record", "--session", "f70db4c5", "--query", "q", "--response", "r").err == ""
    assert weft("record", "--session", "other-one", "--query", "q", "--response", "r").err == ""
