"""log, show, tree, diff, context, sessions, reflog and stats."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import weft as library
from tests.surfaces.shell import Shell, masked, on_terminal
from weft.kernel.clock import FixedClock, SystemClock, ms_from_iso
from weft.kernel.events import Usage
from weft.store.sqlite.connection import SqliteSql
from weft.surfaces import demo
from weft.surfaces.cli.reading.turns import permissions_text
from weft.surfaces.cli.screen import UTC, LocalZone, local_time

LONG = "\n".join(f"line {i}" for i in range(40))
SUMMARY = (
    "The parser now reads dates with datetime.fromisoformat, so offsets such as +02:00 are kept. All 42 tests pass."
    " Still open: a line in the changelog, and dates without a year."
)


@pytest.fixture
def story(shell: Shell, folder: Path) -> Shell:
    """A shell in a folder with the demo's ledger: a fork, a compaction, a failed turn."""
    clock = FixedClock(ms_from_iso(demo.STARTED))
    (folder / ".weft").mkdir()
    with library.open(folder / ".weft" / "ledger.db", clock=clock) as ledger:
        demo.fill(ledger, clock)
    return shell


def test_the_graph_of_a_forked_history(story: Shell) -> None:
    assert (
        masked(story("log", "--graph", "--oneline").out)
        == f"""\
* T1 (main) Add a line to the changelog.
| x T2 [failed] Add a line to the changelog.
|/
# T3 [compaction] {SUMMARY}
* T4 Fix it, please.
| * T5 (by-hand) Could we keep strptime and cut the offset off instead?
|/
* T6 test_dates fails since this morning. What is wrong?
"""
    )


def test_the_graph_with_whole_entries(story: Shell) -> None:
    assert (
        masked(story("log", "--graph", "-n", "3").out)
        == """\
* turn T1 (main)
| Date:  2026-03-02 13:40:00 +0000
| Agent: local, sonnet-large, 1 tool call, 447 tokens
|
|     Add a line to the changelog.
|
| x turn T2 [failed]
| | Date:  2026-03-02 13:33:00 +0000
| | Agent: local, sonnet-large
| | Error: 529 overloaded, try again later
| | Again: weft retry T2
| |
| |     Add a line to the changelog.
| |
|/
:

* turn T3 (by-hand)
| Date:  2026-03-02 13:26:00 +0000
| Agent: local, sonnet-large, 2,076 tokens
|
|     Could we keep strptime and cut the offset off instead?
|
:
"""
    )


def test_the_log_is_newest_first_and_a_thread_goes_to_its_root(story: Shell) -> None:
    every = [turn["subject"] for turn in story.json("log")]
    assert len(every) == 6
    assert every[-1].startswith("test_dates fails")
    thread = story("log", "by-hand", "--oneline").out.splitlines()
    assert [line.split(" ", 1)[1] for line in thread] == [
        "(by-hand) Could we keep strptime and cut the offset off instead?",
        "test_dates fails since this morning. What is wrong?",
    ]


def test_children_come_before_their_parents(story: Shell) -> None:
    turns = story.json("log")
    seen: set[str] = set()
    for turn in turns:
        assert turn["parent_id"] not in seen
        seen.add(turn["id"])


def test_the_log_of_one_session_has_only_the_turns_it_made(story: Shell) -> None:
    assert [turn["heads"] for turn in story.json("log", "--session", "by-hand")] == [["by-hand"]]
    assert len(story.json("log", "by-hand", "--session", "main")) == 1
    assert story("log", "--session", "nobody").code == 3
    graph = story("log", "--session", "by-hand", "--graph", "--oneline").out.splitlines()
    assert len(graph) == 2
    assert graph[1] == ":"


def test_limits_hold(story: Shell) -> None:
    assert len(story.json("log", "-n", "2")) == 2
    assert story.json("log", "-n", "0") == []
    assert story("log", "main", "-n", "2", "--oneline").out.count("\n") == 2
    for words in (("log",), ("log", "main"), ("log", "--session", "main"), ("embed", "--all", "turn")):
        assert story(*words, "-n", "9" * 20).code == 5
    assert story("files", "x", "-n", "9" * 20).code == 0
    assert story("log", "-n", "-1").code == 2


def test_a_long_thread_is_read_page_by_page_from_its_end(weft: Shell, folder: Path) -> None:
    with library.open(folder / ".weft" / "ledger.db") as ledger:
        ids = [turn.id for turn in ledger.record_turns([{"session": "main", "query": f"q{i}"} for i in range(700)])]
        ledger.fork("main~650", label="early")
        ids.append(ledger.record_turn(session="early", query="other").id)
    thread = weft.json("log", "main")
    assert [turn["id"] for turn in thread] == ids[699::-1]
    assert [turn["id"] for turn in weft.json("log")] == ids[::-1]
    assert [turn["subject"] for turn in weft.json("log", "early", "-n", "2")] == ["other", "q49"]


def count_statements(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Every question that is put to the database from now on."""
    asked: list[str] = []

    def counting(real: Callable[..., Any]) -> Callable[..., Any]:
        def ask(sql: SqliteSql, text: str, *values: Any) -> Any:
            asked.append(text)
            return real(sql, text, *values)

        return ask

    for verb in ("fetch_row", "fetch_rows"):
        monkeypatch.setattr(SqliteSql, verb, counting(getattr(SqliteSql, verb)))
    return asked


def test_many_turns_are_read_in_few_steps(weft: Shell, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with library.open(folder / ".weft" / "ledger.db") as ledger:
        for i in range(300):
            ledger.record_turn(session="main", query=f"question {i}\nmore", response="r")
    asked = count_statements(monkeypatch)
    for command in ("log", "log --oneline", "log --graph", "log --json", "log main", "tree main", "sessions"):
        asked.clear()
        answer = weft(*command.split())
        assert answer.code == 0, command
        assert answer.out.count("question") == (1 if command == "sessions" else 300), command
        assert 0 < len(asked) < 100, command


def test_an_empty_ledger_says_what_to_do_next(weft: Shell) -> None:
    for command, hint in (("log", "weft record"), ("sessions", "weft record")):
        answer = weft(command)
        assert (answer.code, answer.out) == (0, "")
        assert hint in answer.err
        assert weft.json(command) == []
        assert weft(command, "--quiet").err == ""


def test_an_empty_session_says_what_to_do_next(weft: Shell) -> None:
    weft.record("one")
    weft("move", "main", "--reset")
    assert "nothing has been said" in weft("context").err
    assert weft.json("context")["messages"] == []
    answer = weft("log", "main")
    assert answer.code == 3
    assert "nothing is recorded in it, or all of it was undone" in answer.err


def test_show_has_messages_calls_thinking_usage_model_and_digest(story: Shell) -> None:
    shown = masked(story("show", "main~2").out)
    assert (
        shown.split("\n", 2)[2]
        == """\
Parent:  T2
Session: main, depth 2
Date:    2026-03-02 13:19:00 +0000
Agent:   local
Model:   sonnet-large (example)
Usage:   input 2,210, output 148, total 2,358

user
  Fix it, please.

  * edit_file src/parser.py  (+1 -1)
      -strptime(text,\x20
      +fromisoformat(text
      1 line changed
  * run_tests()
      42 passed in 0.79s

assistant
    thinking: fromisoformat knows offsets.
    No new dependency.
    The pattern can go.
  Done: fromisoformat reads dates with and without an offset. 42 tests pass.
"""
    )
    assert len(story.json("show", "main~2")["digest"]) == 64


def test_long_results_and_thinking_are_folded_unless_full(weft: Shell) -> None:
    parts = [{"type": "reasoning", "text": LONG}, {"type": "text", "text": LONG}]
    calls = [{"name": "cat", "arguments": {"text": "x" * 500}, "result": LONG}, {"name": "rm", "error": LONG}]
    weft.record("q", response={"content": parts}, tool_calls=calls)
    folded, full = weft("show", "main").out, weft("show", "main", "--full").out
    assert folded.count("… 35 more lines (--full)") == 2
    assert folded.count("… 37 more lines (--full)") == 1
    assert folded.count("line 39") == 1
    assert "x" * 500 not in folded
    assert full.count("line 39") == 4
    assert "x" * 500 in full


RESULTS_AS_TEXT: list[tuple[str, dict[str, Any], dict[str, Any], str]] = [
    (
        "shell",
        {"cmd": "make"},
        {"rc": 2, "stdout": "one\ntwo\n", "stderr": "make: no rule\n", "duration_ms": 1200, "git": ["No commit."]},
        """\
  * shell make exit 2
      make: no rule
      one
      two
      No commit.
""",
    ),
    (
        "read",
        {"path": "a.py", "limit": 2},
        {
            "path": "a.py",
            "total_lines": 9,
            "first_line": 1,
            "last_line": 2,
            "text": "1\tx = 1\n2\ty = 2",
            "more": "7 lines",
        },
        """\
  * read a.py:1-2
      … 3 lines (--full)
""",
    ),
    (
        "list",
        {"folder": "src"},
        {"path": "src", "entries": ["a.py", "b.py"], "total": 2},
        """\
  * list(folder="src")
      a.py
      b.py
""",
    ),
    (
        "grep",
        {"pattern": "x"},
        {"path": ".", "matches": 1, "files": 1, "text": "a.py:1:x", "note": "2 files could not be read"},
        """\
  * grep x
      a.py:1:x
      2 files could not be read
""",
    ),
    (
        "fetch_url",
        {"url": "https://example.org/"},
        {"url": "https://example.org/", "status": 404, "content_type": "text/plain", "bytes": 4, "text": "gone"},
        """\
  * fetch_url https://example.org/
      status 404
      gone
""",
    ),
    (
        "write",
        {"path": "a.py", "content": "x = 1\n"},
        {
            "path": "a.py",
            "bytes": 6,
            "created": True,
            "changed_lines": ["1"],
            "lints": ["a.py:1: error: E1", "a.py:1: error: E2"],
        },
        """\
  * write a.py  (+1 -0)
      +x = 1
      a.py:1: error: E1
      a.py:1: error: E2
""",
    ),
]


@pytest.mark.parametrize(("tool", "asked", "result", "lines"), RESULTS_AS_TEXT)
def test_results_of_the_products_own_tools_are_shown_as_output_and_files(
    weft: Shell, tool: str, asked: dict[str, Any], result: dict[str, Any], lines: str
) -> None:
    weft.record("q", tool_calls=[{"name": tool, "arguments": asked, "result": result}])
    for shown in (weft("show", "main", "--full").out, weft("read", "--steps").out):
        assert "\\n" not in shown
        assert "{" not in shown
    assert lines in weft("show", "main").out


def test_show_tells_how_a_turn_ended(weft: Shell, folder: Path) -> None:
    with library.open(folder / ".weft" / "ledger.db") as ledger:
        with ledger.begin_turn(session="main") as turn:
            turn.message("run it")
            turn.request("m")
            turn.tool_call("sleep", {"seconds": 9})
            turn.interrupt("timeout")
        ledger.begin_turn(session="open").message("still going")
        assert "[being recorded] still going" in weft("log", "--oneline").out
        assert "o " in weft("log", "--graph", "--oneline").out
    shown = weft("show", "main").out
    assert "[interrupted]" in shown
    assert "Cut off: timeout" in shown
    assert "sleep(seconds=9) interrupted" in shown
    assert "!" in weft("log", "main", "--graph", "--oneline").out


def test_show_has_images_tool_parts_and_every_role(weft: Shell) -> None:
    query = [
        {"content": [{"type": "image_url", "url": "data:image/png;base64," + "A" * 300}], "source": "webhook"},
        {"role": "assistant", "content": [{"type": "tool_use", "id": "u1", "name": "look", "input": {"at": 1}}]},
        {"role": "tool", "content": [{"type": "tool_result", "tool_call_id": "u1", "output": {"seen": True}}]},
    ]
    turn = {"query": query, "system": "be brief", "workspace": "/srv/app"}
    weft("record", stdin=json.dumps(turn))
    shown = weft("show", "main").out
    for expected in ("system\n  be brief", "user (webhook)", "[image, 225 B]", "look(at=1)", "result of look"):
        assert expected in shown
    assert '"seen": true' in shown
    assert "Folder:  /srv/app" in shown
    assert "A" * 300 not in shown


def test_show_says_which_tokens_lie_inside_others(weft: Shell) -> None:
    shares = {"cache_write_1h_tokens": 2, "reasoning_tokens": 7, "total_tokens": 4_000}
    counts = {name: shares.get(name, 1_000) for name in Usage.__struct_fields__}
    recorded = weft("record", stdin=json.dumps({"query": "count", "response": "done", "usage": counts}))
    assert recorded.code == 0, recorded.err
    assert (
        "Usage: input 1,000, cache read 1,000, cache write 1,000, of these for an hour 2, "
        "output 1,000, of these reasoning 7, total 4,000"
    ) in " ".join(weft("show", "main").out.split())


@pytest.mark.parametrize(
    ("granted", "words"),
    [
        ({"mode": "auto"}, "auto"),
        (
            {"approval_policy": "never", "sandbox_policy": {"type": "read-only"}},
            "asks a person: never, sandbox: read-only",
        ),
        ({"other": 1}, '{"other": 1}'),
        (None, ""),
    ],
)
def test_show_says_which_permission_is_which(granted: object, words: str) -> None:
    assert permissions_text(granted) == words


def test_show_of_a_compaction_has_its_summary_and_range(story: Shell) -> None:
    shown = masked(story("show", "main~1").out)
    assert "summary of 2 turns, through T" in shown
    assert "  All 42 tests pass." in shown
    assert "[compaction]" in shown


def test_a_tool_use_that_is_also_a_call_is_shown_once(weft: Shell) -> None:
    use = {
        "content": [{"type": "text", "text": "I look."}, {"type": "tool_use", "id": "c", "name": "look", "input": {}}]
    }
    weft.record("q", response=use, tool_calls=[{"id": "c", "name": "look", "result": "seen"}])
    assert weft("show", "main").out.count("look(") == 1


def test_the_tree_runs_from_the_root_with_branches_set_in(story: Shell) -> None:
    assert (
        masked(story("tree", "by-hand").out)
        == f"""\
* T1 test_dates fails since this morning. What is wrong?
|-* T2 (by-hand) Could we keep strptime and cut the offset off instead?
`-* T3 Fix it, please.
  # T4 [compaction] {SUMMARY}
  |-x T5 [failed] Add a line to the changelog.
  `-* T6 (main) Add a line to the changelog.
"""
    )
    assert [turn["depth"] for turn in story.json("tree", "main")] == [1, 2, 3, 2, 4, 4]


def test_diff_shows_where_two_threads_part(story: Shell) -> None:
    assert (
        masked(story("diff", "main~2", "by-hand").out)
        == """\
--- main~2 (1 turn of its own)
+++ by-hand (1 turn of its own)
  T1 test_dates fails since this morning. What is wrong?
- T2 Fix it, please.
+ T3 (by-hand) Could we keep strptime and cut the offset off instead?
"""
    )
    found = story.json("diff", "main", "by-hand")
    assert (len(found["left"]), len(found["right"])) == (3, 1)
    assert found["ancestor"] == story.json("log")[-1]["id"]


def test_diff_answers_by_exit_code_when_asked(story: Shell) -> None:
    assert story("diff", "main", "by-hand").code == 0
    assert story("diff", "main", "by-hand", "--exit-code").code == 1
    assert story("diff", "main", "main", "--exit-code").code == 0


def test_diff_of_strangers_says_that_they_share_nothing(weft: Shell) -> None:
    weft.record("one")
    weft.record("two", session="other")
    assert "the threads share no turn" in weft("diff", "main", "other").out
    assert weft.json("diff", "main", "other")["ancestor"] is None


def test_a_patch_has_what_was_said_on_each_side(story: Shell) -> None:
    lines = story("diff", "main~2", "by-hand", "--patch").out.splitlines()
    assert "-     Fix it, please." in lines
    assert "+     Yes, but times from two zones would then compare wrongly. I would not." in lines


def test_context_is_what_the_agent_saw_or_would_see(story: Shell) -> None:
    saw = [(m["role"], m["content"][0].get("text", "")) for m in story.json("context", "main~2")["messages"]]
    assert [role for role, _ in saw] == ["system", "user", "assistant", "tool", "assistant", "user"]
    assert saw[-1] == ("user", "Fix it, please.")
    after = story("context").out
    assert after.startswith("6 messages, after compaction")
    assert "The parser now reads dates" in after
    assert "Fix it, please." not in after
    assert "Could we keep" in story("context", "--session", "by-hand").out
    assert story("context", "main", "--session", "main").code == 2


def test_sessions_are_listed_with_their_heads(story: Shell) -> None:
    rows = [line.split("\t") for line in story("sessions").out.splitlines()]
    assert [row[:6] for row in rows] == [
        ["main", "weft", "", "4", "4741", "2026-03-02 13:40:00 +0000"],
        ["by-hand", "weft", "", "2", "4012", "2026-03-02 13:26:00 +0000"],
    ]
    assert [row[6] for row in rows] == [
        "test_dates fails since this morning. What is wrong?",
        "Could we keep strptime and cut the offset off instead?",
    ]
    found = story.json("sessions")[0]
    assert (found["updated_at"], found["status"]) == ("2026-03-02T13:40:00.000Z", "active")
    assert (found["depth"], found["total_tokens"], found["short_label"]) == (4, 4741, "main")


def test_the_reflog_numbers_every_place_a_session_stood(story: Shell) -> None:
    rows = [line.split("\t") for line in story("reflog", "main").out.splitlines()]
    assert [row[0] for row in rows] == [f"main@{{{n}}}" for n in range(4)]
    assert {row[3] for row in rows} == {"turn"}
    assert len(story.json("reflog", "main", "-n", "2")) == 2
    assert story("reflog", "nobody").code == 3


def test_stats_count_what_there_is(story: Shell) -> None:
    found = story.json("stats")
    assert (found["turns"], found["sessions"], found["compactions"], found["forks"]) == (6, 2, 1, 2)
    plain = dict(line.split("\t") for line in story("stats").out.splitlines())
    assert plain["turns"] == "6"
    assert plain["turns_by_status"] == "5 completed, 1 failed"
    size = f"{found['file_bytes']:,}"
    assert f"file bytes {size}" in " ".join(on_terminal(story.folder, "stats", NO_COLOR="1")[1].split())


def test_turns_are_found_by_every_kind_of_name(weft: Shell) -> None:
    ids = [weft.record(f"q{i}") for i in range(4)]
    digest = weft.json("show", ids[2])["digest"]
    weft("fork", ids[1], "side")
    weft("alias", "trunk", "main")
    for name, turn in {
        "main": 3,
        "main~2": 1,
        "main^": 2,
        "main~1^": 1,
        "main@{0}": 3,
        "main@{2}": 1,
        "main@{1}": 2,
        "main#2": 1,
        "side": 1,
        "trunk~1": 2,
        ids[0]: 0,
        ids[2][-8:]: 2,
        ids[2][-6:].lower(): 2,
        digest[:8]: 2,
        digest: 2,
    }.items():
        assert weft.json("show", name)["id"] == ids[turn], name


def test_a_place_without_a_session_is_one_of_the_latest_where_it_is_read(weft: Shell) -> None:
    weft.record("in main")
    first, second = (weft.record(f"q{i}", session="side") for i in range(2))
    shown = weft("show", "@{1}")
    assert (shown.code, "the latest session: q0 (side)" in shown.err) == (0, True)
    assert weft.json("show", "@{1}")["id"] == first
    assert [turn["id"] for turn in weft.json("log", "@{0}")] == [second, first]
    assert weft.json("tree", "@{1}") == weft.json("tree", "side")
    assert weft.json("context", "@{1}") == weft.json("context", "side@{1}")
    assert weft.json("diff", "@{1}", "@{0}") == weft.json("diff", "side~1", "side")
    assert weft("export", "@{1}", "--as", "jsonl").out == weft("export", "side@{1}", "--as", "jsonl").out
    assert weft("read", "@{1}").out == weft("read", "side@{1}").out
    assert weft("fork", "@{0}", "copy").code == 0  # what writes keeps to main
    assert weft.json("show", "copy")["id"] == weft.json("show", "main")["id"]


def test_a_session_is_found_where_it_stood_at_a_time(shell: Shell, folder: Path) -> None:
    clock = FixedClock(SystemClock().now_ms() - 3 * 86_400_000)
    with library.open(folder / "old.db", clock=clock) as ledger:
        old = ledger.record_turn(session="main", query="long ago").id
        clock.tick(3 * 86_400_000)
        ledger.record_turn(session="main", query="just now")
    shell("init")
    for when in ("yesterday", "2 days ago", "36 hours ago"):
        assert shell.json("show", f"main@{{{when}}}", "--ledger", "old.db")["id"] == old
    assert shell("show", "main@{a week ago}", "--ledger", "old.db").code == 5
    assert shell("show", "main@{9 days ago}", "--ledger", "old.db").code == 3


def test_times_are_in_the_viewers_zone_and_in_utc_as_json(story: Shell, zone: Callable[[str], None]) -> None:
    zone("CET-1CEST,M3.5.0,M10.5.0/3")
    assert "Date:    2026-03-02 14:40:00 +0100" in story("show", "main").out
    assert story.json("show", "main")["started_at"] == "2026-03-02T13:40:00.000Z"
    assert story.json("show", "main@{2026-03-02 14:20}")["depth"] == 3


def test_summer_and_winter_each_have_their_offset(zone: Callable[[str], None]) -> None:
    zone("CET-1CEST,M3.5.0,M10.5.0/3")
    assert local_time(ms_from_iso("2026-01-15T12:00:00.000Z")) == "2026-01-15 13:00:00 +0100"
    assert local_time(ms_from_iso("2026-07-15T12:00:00.000Z")) == "2026-07-15 14:00:00 +0200"
    for month, hours in ((1, 1), (7, 2)):
        moment = datetime(2026, month, 15, 12, tzinfo=LocalZone())
        assert moment.utcoffset() == timedelta(hours=hours)
        assert moment.astimezone(UTC).astimezone(LocalZone()) == moment


def test_reading_writes_nothing(story: Shell, folder: Path) -> None:
    before = (folder / ".weft" / "ledger.db").read_bytes()
    for command in (("log",), ("show", "main"), ("sessions",), ("stats",), ("verify",), ("context",), ("tree", "main")):
        assert story(*command).code == 0
    assert (folder / ".weft" / "ledger.db").read_bytes() == before


def test_json_may_stand_before_or_after_the_command(story: Shell) -> None:
    assert json.loads(story("--json", "stats").out) == json.loads(story("stats", "--json").out)


READING = (
    ("read",),
    ("show",),
    ("tree",),
    ("reflog",),
    ("context", "--session"),
    ("session", "history"),
    ("diff", "main~1"),
    ("export", "--as", "markdown"),
    ("resume", "--as", "codex", "--in", ".", "--dry-run", "--quiet"),
)
"""Commands that take a session as their last argument, and read it."""


def test_where_nothing_is_named_a_reader_means_the_latest_session(story: Shell) -> None:
    titles = {"by hand": "Ship it.", "main": "test_dates fails since this morning. What is wrong?"}
    for label, title in titles.items():
        story.record("Ship it.", session=label)
        for command in READING:
            bare = tuple(word for word in command if word != "--session")
            answer, named = story(*bare), story(*command, label)
            assert (answer.code, without_new_ids(answer.out)) == (0, without_new_ids(named.out))
            assert answer.err.startswith("" if "--quiet" in command else f"the latest session: {title} ({label})\n")
            assert "the latest session" not in named.err
    assert story("show", "--json").err == ""


def test_what_writes_does_not_mean_the_latest_session(story: Shell) -> None:
    story.record("Ship it.", session="elsewhere")
    for command in (("compact", "--summary", "so far"), ("record", "--query", "q", "--response", "a")):
        assert story(*command).code == 0
        assert story.json("sessions")[0]["label"] == "main"
        story.record("Ship it again.", session="elsewhere")
    for missing in (("session", "history", "--write"), ("bundle", "create", "-o", "x.weft"), ("fork",), ("move",)):
        assert story(*missing).code == 2


def test_a_reader_without_any_session_says_what_to_do_next(weft: Shell) -> None:
    for command in READING:
        bare = tuple(word for word in command if word not in ("--session", "--quiet"))
        answer = weft(*bare)
        is_list = bare[0] in ("read", "tree", "reflog", "session")
        assert (answer.code, answer.out) == (0 if is_list or bare[0] in ("show", "context") else 3, "")
        assert "no turns yet: `weft import`" in answer.err
        if is_list:
            assert weft.json(*bare) == []
        elif bare[0] != "export":
            assert weft(*bare, "--json").error["code"] == "not_found"


def test_what_needs_a_session_says_that_there_is_none(weft: Shell) -> None:
    for command in (("undo",), ("export", "--as", "markdown"), ("diff", "@{1}")):
        answer = weft(*command)
        assert (answer.code, answer.err.splitlines()[0]) == (3, "weft: this ledger has no session")
        assert "no turns yet: `weft import`" in answer.err
    weft("session", "create", "empty")
    for words in ("undo", "export --all --as markdown"):
        assert weft(*words.split()).err.startswith("weft: this ledger has no session with a turn\n")
    weft.record("a question")
    assert weft("archive", "main").code == 0
    for words in ("undo", "export --all --as markdown"):
        assert weft(*words.split()).err.startswith(
            "weft: this ledger has no active session with a turn\nhint: `weft sessions --all`"
        )


def test_the_latest_session_is_not_compared_with_itself(story: Shell) -> None:
    story.record("Ship it.")
    for words in (("main",), ("main", "--files"), ("main~0", "--json"), ("@{0}",)):
        answer = story("diff", *words)
        assert (answer.code, answer.out) == (2, "")
        assert "is the latest session itself: name another one to compare it with" in answer.err
    assert story("diff", "main", "main").code == 0
    assert story("diff", "main~1").code == 0
    story("fork", "main", "aside")
    assert story("diff", "aside" if story.json("sessions")[0]["label"] == "main" else "main").code == 0


def test_a_session_without_a_turn_is_the_latest_only_for_what_it_has(weft: Shell) -> None:
    weft.record("one")
    weft.record("two", session="other")
    weft("move", "other", "--reset")
    assert "(main)" in weft("show").err
    assert weft("reflog").out.startswith("other@{0}")
    assert "nothing has been said" in weft("context").err


def without_new_ids(text: str) -> str:
    """`weft resume` makes an id for the session that it would write."""
    return re.sub(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", "ID", text)


def test_a_bare_number_limits_the_log(story: Shell) -> None:
    assert story("log", "-2", "--oneline").out == story("log", "-n", "2", "--oneline").out
    assert story("log", "main", "-1", "--oneline").out.count("\n") == 1
    assert story("log", "-n", "-1").code == 2
