"""Sessions of other tools: how they are listed, named, logged and shown."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pytest

import weft as library
from tests.ledger.imported import take
from tests.sizes import share
from tests.surfaces.shell import Shell, masked, on_terminal
from tests.surfaces.test_cli_terminal import FORBIDDEN, HOSTILE, plain
from weft.kernel.enums import FileKind, LinkReason, MessageRole, MessageSource, ToolCallStatus
from weft.ledger.api.ledger import Ledger
from weft.ledger.imports.imported_turns import (
    NativeCall,
    NativeCompaction,
    NativeLink,
    NativeMessage,
    NativeTurn,
    Tokens,
)
from weft.ledger.model import FileNote, ImagePart, Part, ReasoningPart, TextPart

MAIN = "f70db4c5-8eb1-4c18-b759-7c6c08c0f868"
AGENT = f"{MAIN}/agent-a123456789abcdef0"
OTHER = "f70db999-0000-4000-8000-000000000001"
HOME = "/home/dev/parser"
MINUTE = 60_000
START = 1_790_000_000_000


def asked(*parts: Part | str, source: MessageSource | None = MessageSource.HUMAN, **more: Any) -> NativeMessage:
    made = tuple(TextPart(part) if isinstance(part, str) else part for part in parts)
    return NativeMessage(role=MessageRole.USER, parts=made, source=source, **more)


def answered(*parts: Part | str, **more: Any) -> NativeMessage:
    made = tuple(TextPart(part) if isinstance(part, str) else part for part in parts)
    told = {"model": "model-large-20260801", "tokens": Tokens(input=1_000, output=500), **more}
    return NativeMessage(role=MessageRole.ASSISTANT, parts=made, **told)


def called(name: str, arguments: Any, result: Any = "done", **more: Any) -> NativeCall:
    told = {"id": f"call-{name}", "status": ToolCallStatus.OK, "at": START, "done": START + 1_200, **more}
    return NativeCall(name=name, arguments=arguments, result=result, **told)


def turn(key: str, *items: NativeMessage | NativeCall, n: int = 0, **more: Any) -> NativeTurn:
    told = {"started": START + n * MINUTE, "ended": START + n * MINUTE, "end": 10 * n + 10, "workspace": HOME, **more}
    return NativeTurn(key=key, records=(orjson.dumps([key, len(items)]),), items=items, **told)


@pytest.fixture
def history(weft: Shell, folder: Path) -> Shell:
    """A session of two turns with a subagent, one that goes on from it, and one made here."""
    reminder = asked("<system-reminder>be kind</system-reminder>", source=MessageSource.EVENT)
    first = turn("t1", reminder, asked("Mend the parser.\nIt drops offsets."), answered("I look."))
    spawn = called("Task", {"description": "Look for more", "prompt": "p"}, spawned=AGENT)
    second = turn(
        "t2", asked("And now?"), answered("Done."), spawn, n=1, parent=0, git_branch="fix", version="2.1.0",
        permissions={"mode": "auto"},
    )  # fmt: skip
    child = turn("c1", asked("Look for more", source=MessageSource.AGENT), answered("None."), n=1)
    linked = turn("o1", asked("Go on."), answered("Yes."), n=2, link=NativeLink(to="t2", why=LinkReason.CONTINUATION))
    with library.open(folder / ".weft" / "ledger.db") as ledger:
        take(ledger, MAIN, first, second, title="Mend the parser", workspace=HOME)
        take(ledger, AGENT, child, file="b.jsonl", parent=MAIN, workspace=HOME)
        take(ledger, OTHER, linked, file="c.jsonl", workspace="/home/dev")
        ledger.record_turn(session="main", query="My own question")
    return weft


Show = Callable[..., str]


@pytest.fixture
def show(weft: Shell, folder: Path) -> Show:
    """Imports one turn and shows it; options of `show` first."""

    def shown(*items: NativeMessage | NativeCall, options: tuple[str, ...] = (), **more: Any) -> str:
        with library.open(folder / ".weft" / "ledger.db") as ledger:
            take(ledger, MAIN, turn("t1", asked("Q"), answered("I do."), *items, **more), workspace=HOME)
        answer = weft("show", "f70db4c5", *options)
        assert answer.code == 0, answer.err
        return answer.out.partition("I do.\n")[2] or answer.out

    return shown


def test_a_title_that_says_nothing_is_shown_nowhere(weft: Shell, folder: Path) -> None:
    untold = "New session - 2026-08-03T16:17:45.628Z"
    with library.open(folder / ".weft" / "ledger.db") as ledger:
        take(ledger, MAIN, turn("t1", asked("Mend the parser:\nit drops offsets.")), title=untold)
        take(
            ledger, OTHER, turn("o1", asked("Go on."), link=NativeLink(to="t1", why=LinkReason.CONTINUATION)),
            file="c.jsonl", title="Child session - 2026-08-03T16:17:45.628Z",
        )  # fmt: skip
    title = "Mend the parser: it drops offsets."
    assert title in weft("sessions").out
    assert weft("read", "f70db4c5").out.splitlines()[0] == title
    for command in (["log"], ["log", OTHER], ["show", MAIN], ["read", OTHER], ["search", "offsets", "--newest"]):
        shown = weft(*command).out
        assert shown
        assert "session - 2026" not in shown
    assert weft.json("sessions")[1]["title"] == untold
    assert weft("archive", MAIN).code == 0
    assert "session - 2026" not in weft("archive", "--list").out


def test_lines_of_a_prompt_are_joined_wherever_it_stands_in_a_line(weft: Shell, folder: Path) -> None:
    for what in ("docs", "tests"):
        weft.record(f"Complete it thoroughly:\n\n# Target\n{what}", session=what)
    for command in (["log"], ["log", "--oneline"], ["sessions"], ["story", "all"], ["tree", "docs"]):
        assert "Complete it thoroughly: # Target docs" in weft(*command).out
    assert [turn["subject"] for turn in weft.json("log")] == [
        f"Complete it thoroughly: # Target {what}" for what in ("tests", "docs")
    ]
    narrow = on_terminal(folder, "log", "--no-color", COLUMNS="40")[1]
    assert "    Complete it thoroughly: # Target do…\n" in narrow


def test_a_time_that_its_origin_does_not_give_is_nowhere_made_up(weft: Shell, folder: Path) -> None:
    path = f"{HOME}/a.py"
    note = FileNote(kind=FileKind.WRITTEN, path=path)
    wrote = called("write", {"file_path": path, "content": "one\n"}, at=None, done=None, files=(note,))
    with library.open(folder / ".weft" / "ledger.db") as ledger:
        take(ledger, MAIN, turn("t1", asked("Write."), answered("Written."), wrote, started=None, ended=None))
    assert "Date:  unknown: its origin gives no time\n" in weft("log").out
    assert weft("files", "a.py").out.split("\t")[1] == "unknown"
    assert "  unknown     1  one\n" in weft("blame", "a.py").out
    assert " time unknown " in weft("search", "written").out
    for told in (["files", "a.py"], ["blame", "a.py"], ["search", "written"]):
        assert weft.json(*told)[0]["time_known"] is False
    assert weft.json("search", "written", "--since", "1970-01-01") == []


def test_a_session_without_a_time_is_found_by_its_title_without_one(weft: Shell, folder: Path) -> None:
    with library.open(folder / ".weft" / "ledger.db") as ledger:
        take(
            ledger, MAIN, turn("t1", asked("Write."), answered("Written."), started=None, ended=None), title="A letter"
        )
    assert [(hit["place"], hit["time_known"]) for hit in weft.json("search", "letter")] == [("title", False)]
    assert " time unknown " in weft("search", "letter").out
    _, shown = on_terminal(folder, "search", "letter", "--no-color")
    assert ", unknown" in shown
    assert "1970" not in shown
    assert weft.json("search", "letter", "--until", "2099-01-01") == []


def test_sessions_are_listed_by_what_to_type_and_what_they_are_about(history: Shell) -> None:
    code, shown = on_terminal(history.folder, "sessions", "--no-color", COLUMNS="110")
    assert code == 0
    lines = [re.sub(r"20\d\d-\d\d-\d\d \d\d:\d\d", "WHEN", line.rstrip()) for line in shown.splitlines()]
    assert [line.split() for line in lines[1:4]] == [
        ["main", "weft", "1", "WHEN", "My", "own", "question"],
        ["f70db999", "toy", "~", "1", "1.5k", "WHEN", "Go", "on."],
        ["f70db4c5", "toy", "parser", "2", "3.0k", "WHEN", "Mend", "the", "parser"],
    ]
    assert lines[0].split() == ["SESSION", "ORIGIN", "PROJECT", "TURNS", "TOKENS", "LAST", "CHANGE", "TITLE"]
    assert lines[4:] == ["1 session of subagents is not shown: --subagents lists them"]


@pytest.mark.parametrize(
    ("text", "told"), [("All is mended.", "All is mended."), ("", "its text was not kept by the tool that made it")]
)
def test_a_compaction_that_tells_little_says_no_more_than_it_knows(
    weft: Shell, folder: Path, text: str, told: str
) -> None:
    first = turn("t1", asked("Q"), answered("A"))
    second = turn("t2", n=1, parent=0, compaction=NativeCompaction(summary=text))
    with library.open(folder / ".weft" / "ledger.db") as ledger:
        take(ledger, MAIN, first, second)
    shown = masked(weft("show", "f70db4c5").out)
    assert re.search(rf"\nsummary through T\d+\n  {told}\n", shown)


def test_piped_sessions_have_whole_labels_and_every_column(history: Shell) -> None:
    rows = [line.split("\t") for line in history("sessions", "--subagents").out.splitlines()]
    assert [row[0] for row in rows] == ["main", OTHER, MAIN, AGENT]
    assert rows[2][1:5] == ["toy", "parser", "2", "3000"]
    assert {len(row) for row in rows} == {7}


def test_subagents_are_set_in_below_their_session(history: Shell) -> None:
    _, shown = on_terminal(history.folder, "sessions", "--no-color", "--subagents")
    assert shown.splitlines()[4].startswith("  f70db4c5/agent-a1")


def test_a_terminal_gets_fifty_sessions_and_a_pipe_all(weft: Shell, folder: Path) -> None:
    with library.open(folder / ".weft" / "ledger.db") as ledger:
        for i in range(53):
            ledger.create_session(f"s{i}")
    _, shown = on_terminal(folder, "sessions", "--no-color", LINES="99", COLUMNS="300")
    assert shown.count("\n") == 52
    assert "3 more sessions" in shown
    assert weft("sessions").out.count("\n") == len(weft.json("sessions")) == 53
    few = weft("sessions", "-n", "2")
    assert (few.out.count("\n"), len(weft.json("sessions", "-n", "2"))) == (2, 2)
    assert "51 more sessions" in few.err


@pytest.mark.parametrize(
    ("arguments", "labels"),
    [
        (("--origin", "toy"), [OTHER, MAIN]),
        (("--origin", "weft"), ["main"]),
        (("--project", "parser"), [MAIN]),
        (("--project", "~"), [OTHER]),
        (("--since", "2099-01-01"), []),
        (("--since", "2001-01-01", "-n", "1"), ["main"]),
        (("--all",), ["main", OTHER, MAIN, AGENT]),
    ],
)
def test_sessions_are_chosen_by_options(history: Shell, arguments: tuple[str, ...], labels: list[str]) -> None:
    assert [found["label"] for found in history.json("sessions", *arguments)] == labels


@pytest.mark.parametrize(
    "words", [("search", "x"), ("sessions",), ("usage",), ("replay", "--model", "x", "--sample", "1")]
)
def test_an_origin_that_nobody_knows_is_refused_with_the_known_ones(history: Shell, words: tuple[str, ...]) -> None:
    refused = history(*words, "--origin", "nope")
    assert (refused.code, refused.out) == (2, "")
    told, hint = refused.err.splitlines()
    assert "--origin: no tool is called 'nope'; known are aider, " in told
    assert all(f" {name}" in told for name in ("claude-code", "toy", "weft"))
    assert hint == f"hint: `weft {words[0]} --help` shows how it is used"
    assert history("search", "x", "--origin", "Codex").code == 0, "search takes any case"


def test_a_project_or_a_model_that_nobody_knows_is_told(history: Shell) -> None:
    for words in (("search", "x"), ("sessions",), ("usage",)):
        assert "no project of that name is known: `weft projects` lists" in history(*words, "--project", "nope").err
        told = history(*words, "--project", "parser", *(("--since", "2099-01-01") if words != ("search", "x") else ()))
        assert "no project" not in told.err
    for words in (("search", "x"), ("usage",)):
        assert "no model of that name is known: `weft usage --by model`" in history(*words, "--model", "nope").err


def test_a_choice_that_fits_nothing_says_so(history: Shell) -> None:
    answer = history("sessions", "--origin", "codex")
    assert (answer.code, answer.out, answer.err) == (0, "", "no such sessions\n")
    assert history("sessions", "--since", "whenever").code == 5


def test_json_has_the_fields_of_a_session_and_those_of_the_list(history: Shell) -> None:
    found = {item["label"]: item for item in history.json("sessions", "--all")}
    assert found[MAIN]["title"] == "Mend the parser"
    assert found[MAIN]["short_label"] == "f70db4c5"
    assert (found[MAIN]["depth"], found[MAIN]["total_tokens"], found[MAIN]["subagents"]) == (2, 3000, 1)
    assert (found[OTHER]["project"], found[OTHER]["subject"]) == ("~", "Go on.")
    assert (found[AGENT]["parent_session"], found[AGENT]["is_subagent"]) == (MAIN, True)


def test_every_command_takes_the_beginning_of_a_label(history: Shell) -> None:
    head = history.json("show", MAIN)["id"]
    for name in ("f70db4c5", "f70db4", "f70db4c5@{0}", "f70db4c5#2"):
        assert history.json("show", name)["id"] == head
    assert history.json("show", "f70db4c5~1")["depth"] == 1
    assert history.json("show", "f70db4c5/agent-a")["id"] == history.json("show", AGENT)["id"]
    assert len(history.json("log", "f70db4c5")) == len(history.json("log", "--session", "f70db4c5")) == 2
    assert len(history.json("reflog", "f70db4c5")) == 2
    assert history.json("context", "--session", "f70db4c5")["messages"]
    assert history.json("fork", "f70db4c5~1", "mine")["label"] == "mine"
    assert history.json("compact", "f70db4c5", "--summary", "all of it")["session"] == MAIN
    assert history.json("move", "f70db4c5", "f70db4c5~1")["label"] == MAIN
    assert history.json("delete", "f70db4c5")["label"] == MAIN
    assert history.json("restore", "f70db4c5-")["label"] == MAIN


def test_a_beginning_that_fits_several_sessions_is_refused_with_them(history: Shell) -> None:
    history("rename", OTHER, "f70db4-other")
    answer = history("show", "f70db4", "--json")
    assert answer.code == 3
    assert answer.error["code"] == "ambiguous_name"
    assert MAIN in answer.error["message"]
    assert "f70db4-other" in answer.error["message"]
    assert AGENT not in answer.error["message"]


def test_no_new_name_hides_a_session_that_lists_show_by_its_beginning(history: Shell) -> None:
    shown = history("fork", "f70db4c5~1", "f70db4c5")
    assert (shown.code, f"already the beginning of '{MAIN}'" in shown.err) == (4, True), shown
    history.record("Mine", session="mine")
    for verb in (("rename", "mine", "f70db4c5"), ("alias", "f70db4c5", "mine"), ("session", "create", "f70db4c5")):
        assert history(*verb, "--json").error["code"] == "label_taken", verb
    assert history("fork", "f70db4c5~1", "f70db").code == 0  # too short to be what a list shows
    assert history("rename", "f70db4c5", "f70db4c5").code == 0  # the session that it leads to already


def test_the_log_tells_prompts_titles_models_and_calls(history: Shell) -> None:
    assert (
        masked(history("log", "--session", "f70db4c5", "--oneline").out)
        == """\
T1 (f70db4c5 "Mend the parser") And now?  [model-large, 1 call]
T2 Mend the parser. It drops offsets.  [model-large]
"""
    )
    shown = history("log", "f70db4c5", "-n", "1").out
    assert "Agent: imported, model-large-20260801, 1 tool call, 1,500 tokens" in shown


@pytest.mark.parametrize("arguments", [("--oneline",), (), ("--graph",), ("--graph", "--oneline")])
def test_the_log_says_where_a_thread_goes_on_from_another_chain(history: Shell, arguments: tuple[str, ...]) -> None:
    lines = [line.strip(" |*:") for line in history("log", "f70db999", *arguments).out.splitlines()]
    assert lines.count('(goes on from session f70db4c5 "Mend the parser")') == 1
    assert "goes on from" not in history("log", "f70db4c5", *arguments).out
    assert "goes on from" not in history("log", *arguments).out


def test_show_tells_where_a_turn_came_from(history: Shell) -> None:
    shown = history("show", "f70db4c5").out
    for expected in (
        f"Session: {MAIN}, depth 2",
        "Title:   Mend the parser",
        "Origin:  toy 2.1.0",
        "Model:   model-large-20260801",
        "Project: parser",
        f"Folder:  {HOME}",
        "Branch:  fix",
        "Allowed: auto",
        "  * Task Look for more 1.2 s -> f70db4c5/agent-a1",
    ):
        assert expected in shown
    assert "user (event)\n  <system-reminder>" in history("show", "f70db4c5~1").out


@pytest.mark.parametrize(
    ("name", "arguments", "line"),
    share(
        [
            ("Bash", {"command": "ls -l", "description": "List", "timeout": 9}, "Bash ls -l  List"),
            ("exec", {"cmd": "cd /srv/app && make\nmake test"}, "exec make  in /srv/app, +1 line"),
            ("shell", {"command": ["bash", "-lc", "go test"]}, "shell go test"),
            ("shell", '{"command":["ls","-a"]}', "shell ls -a"),
            ("exec", 'const r = await tools.run({cmd:"git status",x:1});\ntext(r)', "exec git status"),
            ("exec", "first\nsecond", "exec first  +1 line"),
            ("Read", {"file_path": f"{HOME}/src/x.py", "offset": 3, "limit": 7}, "Read src/x.py:3-9"),
            ("Read", {"file_path": "/home/dev/other.py"}, "Read ~/other.py"),
            ("Grep", {"pattern": "def f", "path": f"{HOME}/src", "output_mode": "content"}, "Grep def f in src"),
            ("fetch", {"url": "https://example.org", "prompt": "long"}, "fetch https://example.org"),
            ("Task", {"description": "Look", "subagent_type": "explorer", "prompt": "p"}, "Task Look  explorer"),
            ("ask", {"questions": [{"question": "Which?", "options": []}]}, "ask Which?"),
            ("odd", {"at": 1, "deep": {"x": [2]}}, 'odd(at=1, deep={"x": [2]})'),
            ("odd", [1, 2], "odd [1, 2]"),
            ("none", {}, "none()"),
        ],
        test=5,
    ),
)
def test_a_call_is_a_line_with_the_argument_that_matters(show: Show, name: str, arguments: Any, line: str) -> None:
    assert show(called(name, arguments, "ok")).splitlines()[0] == f"  * {line} 1.2 s"


@pytest.mark.parametrize(
    ("status", "end"),
    [
        (ToolCallStatus.ERROR, "x Bash ls error 1.2 s"),
        (ToolCallStatus.TIMEOUT, "x Bash ls timeout 1.2 s"),
        (ToolCallStatus.CANCELED, "! Bash ls canceled 1.2 s"),
        (ToolCallStatus.INTERRUPTED, "! Bash ls interrupted 1.2 s"),
    ],
)
def test_a_call_that_did_not_end_well_says_how(show: Show, status: ToolCallStatus, end: str) -> None:
    shown = show(called("Bash", {"command": "ls"}, status=status, error="no such thing"))
    assert shown.splitlines()[:2] == [f"  {end}", "      error: no such thing"]


def test_an_exit_code_and_the_tools_own_time_are_told(show: Show) -> None:
    shown = show(called("run", {"command": "make"}, "bad", detail={"exit_code": 2, "duration_ms": 125_000}))
    assert shown.splitlines()[0] == "  * run make exit 2 2 min 5 s"


def test_an_exchange_of_texts_is_shown_as_a_diff(show: Show) -> None:
    old = "one\ntwo\nthree\nfour\nfive\nsix\nseven"
    edit = {"file_path": f"{HOME}/x.py", "old_string": old, "new_string": old.replace("four", "4")}
    assert (
        show(called("Edit", edit, f"The file {HOME}/x.py has been updated."))
        == """\
  * Edit x.py  (+1 -1) 1.2 s
       two
       three
      -four
      +4
       five
       six
"""
    )


@pytest.mark.parametrize(
    "edits",
    [
        [{"old_string": "a", "new_string": "b"}, {"old_string": "c", "new_string": "d"}],
        [{"oldText": "a", "newText": "b"}, {"oldText": "c", "newText": "d"}],
    ],
)
def test_several_exchanges_are_one_diff(show: Show, edits: list[dict[str, str]]) -> None:
    lines = show(called("edit", {"path": "x.py", "edits": edits}, "Edit applied successfully.")).splitlines()
    assert lines == ["  * edit x.py  (+2 -2) 1.2 s", "      -a", "      +b", "      -c", "      +d"]


def test_a_written_file_is_all_new_and_folded(show: Show) -> None:
    text = "".join(f"line {i}\n" for i in range(40))
    folded = show(called("Write", {"file_path": f"{HOME}/new.py", "content": text}))
    assert folded.splitlines()[0] == "  * Write new.py  (+40 -0) 1.2 s"
    assert folded.count("      +line") == 20
    assert "… 20 more lines (--full)" in folded


PATCH = "*** Begin Patch\n*** Update File: a.py\n@@\n-x = 1\n+x = 2\n*** Add File: b.py\n+new\n*** End Patch"
UNIFIED = "--- a/a.py\n+++ b/a.py\n@@ -10,1 +10,1 @@\n-x = 1\n+x = 2\n"


@pytest.mark.parametrize(
    ("arguments", "detail"),
    [
        (PATCH, None),
        ({"patch": PATCH}, None),
        ({"input": PATCH, "i": "why"}, None),
        (f"const patch = {orjson.dumps(PATCH).decode()};\nrun(patch)", None),
        ("run()", {"events": [{"changes": {"a.py": {"type": "update", "unified_diff": UNIFIED},
                                           "b.py": {"type": "add", "content": "new\n"}}}]}),
        ("run()", {"changes": {"a.py": {"update": {"unified_diff": UNIFIED}}, "b.py": {"add": {"content": "new"}}}}),
    ],
)  # fmt: skip
def test_a_patch_is_shown_file_by_file(show: Show, arguments: Any, detail: Any) -> None:
    lines = show(called("apply", arguments, "Success.", detail=detail)).splitlines()
    assert lines[0].startswith("  * apply a.py")
    assert lines[0].endswith("(2 files) 1.2 s")
    rest = [line.strip() for line in lines[1:] if "@@" not in line]
    assert rest == ["a.py  (+1 -1)", "-x = 1", "+x = 2", "b.py  (+1 -0)", "+new"]


@pytest.mark.parametrize(
    "detail",
    [
        {"structuredPatch": [{"oldStart": 61, "oldLines": 2, "newStart": 61, "newLines": 2,
                              "lines": [" same", "-old", "+new"]}]},
        {"metadata": {"diff": "Index: x\n=====\n--- x\n+++ x\n@@ -61,2 +61,2 @@\n same\n-old\n+new\n"}},
    ],
)  # fmt: skip
def test_the_tools_own_patch_wins_because_it_has_line_numbers(show: Show, detail: Any) -> None:
    edit = {"file_path": "x.py", "old_string": "old", "new_string": "new"}
    lines = show(called("Edit", edit, detail=detail)).splitlines()
    assert lines[:5] == [
        "  * Edit x.py:61  (+1 -1) 1.2 s",
        "      @@ -61,2 +61,2 @@",
        "       same",
        "      -old",
        "      +new",
    ]


@pytest.mark.parametrize(
    "detail", [{"structuredPatch": [3, {"lines": 4}]}, {"changes": {"a": {}}}, {"events": 3}, {"diff": 3}, "text", [1]]
)
def test_outcomes_of_no_known_shape_are_passed_over(show: Show, detail: Any) -> None:
    edit = {"file_path": "x.py", "edits": [3, {"old_string": 1, "new_string": 2}]}
    assert show(called("Edit", edit, detail=detail)).startswith("  * Edit x.py")


def test_things_to_do_are_check_marks(show: Show, folder: Path) -> None:
    todos = [
        {"content": "first", "status": "completed"},
        {"content": "second", "status": "in_progress"},
        {"content": "third", "status": "pending"},
        {"content": "fourth", "status": "cancelled"},
    ]
    shown = show(called("TodoWrite", {"todos": todos}, "Todos have been modified."))
    assert (
        shown
        == """\
  * TodoWrite 1 of 4 done 1.2 s
      [x] first
      [>] second
      [ ] third
      [-] fourth
"""
    )
    _, on_screen = on_terminal(folder, "show", "f70db4c5", "--no-color")
    for expected in ("✓ TodoWrite 1 of 4 done", "✓ first", "▸ second", "○ third", "✗ fourth"):
        assert expected in on_screen


@pytest.mark.parametrize(
    ("result", "lines"),
    share(
        [
            ("a\nb", ["a", "b"]),
            ([{"type": "text", "text": "a"}, {"type": "input_text", "text": "b"}], ["a", "b"]),
            ([{"type": "image", "source": {"type": "base64", "data": "A" * 61_440}}], ["[image, 46.1 kB]"]),
            ([{"type": "input_image", "image_url": "data:image/png;base64,AAAA"}], ["[image, 3 B]"]),
            ({"output": "a\n", "metadata": {"exit_code": 0}}, ["a"]),
            ('{"output":"a","metadata":{"exit_code":0}}', ["a"]),
            ({"stdout": "a", "stderr": "b"}, ["b", "a"]),
            ("Chunk ID: 1\nWall time: 3 seconds\nOutput:\na", ["a"]),
            ({"x": 1}, ["{", '  "x": 1', "}"]),
            ("", []),
        ],
        test=4,
    ),
)
def test_results_are_read_as_text(show: Show, result: Any, lines: list[str]) -> None:
    shown = show(called("odd", {"at": 1}, result)).splitlines()[1:]
    assert [line.removeprefix("      ") for line in shown] == lines


def test_a_file_that_was_read_is_folded_to_its_length(show: Show) -> None:
    text = "\n".join(f"line {i}" for i in range(30))
    assert show(called("Read", {"file_path": "x.py"}, text)).splitlines()[1:] == ["      … 30 lines (--full)"]


def test_full_folds_and_leaves_out_nothing(show: Show) -> None:
    text = "\n".join(f"line {i}" for i in range(30))
    calls = (
        called("Read", {"file_path": "x.py"}, text),
        called("Write", {"file_path": "y.py", "content": text.replace("line", "row")}),
        called("Task", {"description": "Look", "prompt": "the whole prompt", "timeout": 7}),
        called("Bash", {"command": "cd /srv && a\nb\nc\nd"}),
    )
    shown = show(*calls, options=("--full",))
    assert "--full" not in shown
    for expected in ("line 29", "+row 29", "the whole prompt", "timeout=7", "cd /srv && a", "\n      d\n"):
        assert expected in shown


def test_messages_show_thinking_images_and_files_in_short(show: Show) -> None:
    thinking = ReasoningPart("\n".join(f"thought {i}" for i in range(9)))
    image = ImagePart("data:image/png;base64," + "A" * 61_440)
    note = FileNote(kind=FileKind.ATTACHED, path=f"{HOME}/notes.md", line_start=3, line_end=9)
    command = "<command-message>m</command-message>\n<command-name>/review</command-name>"
    shown = show(
        asked("see", image, files=(note,)),
        asked(command),
        asked("\n".join(f"output {i}" for i in range(20)), source=MessageSource.EVENT),
        answered(thinking, "So it is."),
        answered(),
    )
    assert (
        shown
        == """\

user
  see
  [image, 46.1 kB]
  attached notes.md:3-9

user
  /review

user (event)
  output 0
  output 1
  output 2
  output 3
  output 4
  … 15 more lines (--full)

assistant
    thinking: thought 0
    thought 1
    thought 2
    … 6 more lines (--full)
  So it is.
"""
    )


def test_changes_are_coloured_on_a_terminal(show: Show, folder: Path) -> None:
    show(called("Edit", {"file_path": "x.py", "old_string": "old", "new_string": "new"}))
    _, shown = on_terminal(folder, "show", "f70db4c5")
    assert "\x1b[31m-old\x1b[0m" in shown
    assert "\x1b[32m+new\x1b[0m" in shown
    assert "\x1b[32m✓\x1b[0m" in shown


def hostile(ledger: Ledger) -> None:
    """Whatever another tool may have written, in every place that is shown."""
    swap = {"file_path": HOSTILE, "old_string": HOSTILE, "new_string": f"{HOSTILE}x"}
    calls = [
        called(HOSTILE, {"command": HOSTILE, "description": HOSTILE}, HOSTILE),
        called("Edit", swap, [{"type": "text", "text": HOSTILE}]),
        called("Edit", PATCH.replace("a.py", HOSTILE.replace("\r", "")), detail={"diff": f"@@ -1 +1 @@\n+{HOSTILE}"}),
        called("todo", {"todos": [{"content": HOSTILE, "status": HOSTILE}]}),
        called("Grep", {"pattern": HOSTILE, "path": HOSTILE, HOSTILE: HOSTILE}, {"output": HOSTILE}),
        called("Task", {"description": HOSTILE}, error=HOSTILE, status=ToolCallStatus.ERROR),
    ]
    note = FileNote(kind=FileKind.READ, path=HOSTILE)
    items = (
        asked(HOSTILE),
        asked(HOSTILE, source=MessageSource.EVENT, files=(note,)),
        answered(HOSTILE, model=HOSTILE),
    )
    last = turn(
        "t", *items, *calls, workspace=HOSTILE, git_branch=HOSTILE, version=HOSTILE, permissions={"mode": HOSTILE}
    )
    take(ledger, MAIN, last, title=HOSTILE, workspace=HOSTILE, task=HOSTILE)


@pytest.mark.parametrize(
    "arguments", [("sessions",), ("log",), ("log", "--graph", "--oneline"), ("show", "f70db4c5"),
                  ("show", "f70db4c5", "--full"), ("sessions", "--json"), ("tree", "f70db4c5")]
)  # fmt: skip
def test_nothing_that_another_tool_wrote_can_drive_the_terminal(
    weft: Shell, folder: Path, arguments: tuple[str, ...]
) -> None:
    with library.open(folder / ".weft" / "ledger.db") as ledger:
        hostile(ledger)
    piped = weft(*arguments)
    assert piped.code == 0
    _, shown = on_terminal(folder, *arguments)
    for text in (piped.out, plain(shown)):
        assert text
        assert not FORBIDDEN.search(text)
