"""`weft import`, as a newcomer runs it."""

import json
import os
import re
import zipfile
from pathlib import Path

import pytest

from tests.surfaces.shell import Shell, on_terminal
from weft.exchange.importers.port import importer_names
from weft.exchange.importing.run import ImportRun, ImportSummary, OriginTotals
from weft.surfaces.cli.ledgers.import_job import ORIGINS_HEADER, _summary_notes

LONG_AGO = 1_000_000_000
NO_FILES = "no sessions were found: there are no files there; without PATH the usual places of every tool are searched"
SESSION = "0a1b2c3d-1111-4111-8111-000000000001"


def line(uuid: str, parent: str | None, kind: str, content: object, **more: object) -> str:
    message: dict[str, object] = {"role": kind, "content": content}
    if kind == "assistant":
        message |= {"id": f"msg_{uuid}", "model": "claude-sonnet-4-5", "usage": {"input_tokens": 3, "output_tokens": 4}}
    record = {
        "type": kind,
        "uuid": uuid,
        "parentUuid": parent,
        "sessionId": SESSION,
        "timestamp": "2026-01-02T03:04:05.678Z",
        "cwd": "/home/dev/shop",
        "version": "2.1.0",
        "message": message,
        **more,
    }
    return json.dumps(record) + "\n"


@pytest.fixture
def claude(folder: Path) -> Path:
    """A session where Claude Code keeps it, under the home that the shell has."""
    path = folder.parent / "home" / ".claude" / "projects" / "-home-dev-shop" / f"{SESSION}.jsonl"
    path.parent.mkdir(parents=True)
    path.write_text(
        line("u1", None, "user", "Why is the cart empty?")
        + line("a1", "u1", "assistant", [{"type": "text", "text": "It is cleared on login."}])
    )
    os.utime(path, (LONG_AGO, LONG_AGO))
    return path


def test_the_usual_places_are_searched_and_a_ledger_is_made(shell: Shell, claude: Path) -> None:
    answer = shell("import")
    assert answer.code == 0
    assert answer.out.split("\t")[:5] == ["claude-code", "1", "0", "1", "1"]
    assert "made your ledger at" in answer.err
    assert "weft sessions" in answer.err
    assert "Why is the cart empty?" in shell("sessions").out
    assert "It is cleared on login." in shell("show", SESSION[:8]).out
    assert shell("verify").code == 0


def test_the_second_import_brings_nothing(shell: Shell, claude: Path) -> None:
    shell("import")
    assert shell("import").out.split("\t")[:5] == ["claude-code", "1", "1", "0", "0"]


def test_a_dry_run_makes_no_ledger(shell: Shell, claude: Path) -> None:
    answer = shell("import", "--dry-run", "--json")
    found = json.loads(answer.out)
    assert (found["dry_run"], found["origins"]["claude-code"]["counts"]["turns"]) == (True, 1)
    assert (found["stopped"], found["lost_worker"]) == (False, None)
    assert shell("import", "--dry-run").err.endswith("dry run: nothing was written\n")
    assert shell("sessions").code == 7


def test_nothing_to_import_is_said_and_makes_no_ledger(shell: Shell) -> None:
    answer = shell("import")
    assert (answer.code, answer.out) == (0, "")
    assert "name a file or a folder" in answer.err
    assert shell("sessions").code == 7


def test_a_damaged_line_is_told_and_the_rest_is_taken(shell: Shell, claude: Path) -> None:
    claude.write_text(claude.read_text() + "{nonsense}\n")
    os.utime(claude, (LONG_AGO, LONG_AGO))
    answer = shell("import")
    assert answer.code == 1
    fault = "not JSON from byte 0 on: there is no name in double quotes where one is expected"
    assert f"{claude}:3: {fault}\n" in answer.err
    assert answer.err.splitlines()[-1] == "1 problem, so the exit code is 1; everything else was read"
    assert answer.out.split("\t")[4] == "1"


def test_an_import_of_which_nothing_can_be_read_says_so(shell: Shell, claude: Path) -> None:
    (shell.folder / "broken.zip").write_text("no archive")
    answer = shell("import", "broken.zip", "--dry-run")
    assert (answer.code, answer.err.splitlines()[1:]) == (
        1,
        ["dry run: nothing was written", "1 problem, so the exit code is 1; nothing was read"],
    )


def test_a_problem_is_wrapped_on_a_narrow_terminal(shell: Shell, claude: Path) -> None:
    claude.write_text(claude.read_text() + "{nonsense}\n")
    os.utime(claude, (LONG_AGO, LONG_AGO))
    code, shown = on_terminal(shell.folder, "import", COLUMNS="60")
    assert code == 1
    lines = [re.sub(r"\x1b\[[0-9;]*m", "", line) for line in shown.splitlines()]
    at = lines.index(f"{claude}:3:")
    assert lines[at + 1 : at + 3] == [
        "not JSON from byte 0 on: there is no name in double quotes",
        "where one is expected",
    ]
    assert f"\x1b[35m{claude}:3\x1b[0m" in shown


def test_a_path_that_is_not_there(shell: Shell) -> None:
    answer = shell("import", "nowhere")
    assert answer.code == 7
    assert "nowhere: No such file or directory" in answer.err


@pytest.mark.parametrize("mode", ["--dry-run", "--watch", "--background"])
def test_an_empty_path_is_not_the_current_folder(shell: Shell, mode: str) -> None:
    (shell.folder / "chat.json").write_text('{"messages": [{"role": "user", "content": "hi"}]}')
    for answer in (shell("import", ""), shell("import", mode, ".", "")):
        assert (answer.code, answer.out) == (5, "")
        assert answer.err == "weft: a path is empty\nhint: give . for the current folder\n"
    assert shell("sessions").code == 7


@pytest.mark.parametrize("dry", [[], ["--dry-run"]])
def test_a_place_without_sessions_says_what_was_looked_at(shell: Shell, dry: list[str]) -> None:
    shell("init")
    for name in ("empty", "empty/below", "images", "images/more"):
        (shell.folder / name).mkdir()
    for name in ("a.png", "more/b.png", "more/c.json"):
        (shell.folder / "images" / name).write_text("[]")
    with zipfile.ZipFile(shell.folder / "images" / "photos.zip", "w") as archive:
        archive.writestr("d.png", b"")
    last = ["dry run: nothing was written"] if dry else []
    empty = shell("import", "empty", *dry)
    assert (empty.code, empty.out) == (0, "")
    assert empty.err.splitlines() == [NO_FILES, *last]
    images = shell("import", "images", *dry)
    assert (images.code, images.out) == (0, "")
    assert images.err.splitlines() == [
        f"1 file of no known format passed over: {shell.folder}/images/more/c.json",
        "no sessions were found among 4 files; `weft import --help` lists the known formats",
        *last,
    ]


def test_a_file_that_is_passed_over_names_the_format_that_reads_it(shell: Shell) -> None:
    shell("init")
    path = shell.folder / "notes.jsonl"
    path.write_text('{"type": "user.message", "data": {"content": "Which files?"}}\n')
    os.utime(path, (1_700_000_000, 1_700_000_000))  # nobody writes to it
    told = shell("import", "notes.jsonl").err.splitlines()
    assert f"1 file of no known format passed over: {path}" in told
    assert f"--format copilot-cli reads {path}" in told
    assert shell("import", "notes.jsonl", "--format", "copilot-cli").code == 0
    assert "Which files?" in shell("read").out


def test_the_help_lists_the_formats_that_the_program_brings(shell: Shell) -> None:
    formats = shell("import", "--help").out.split("Known formats (a plugin may add more):\n")[1].split("\n\n")[0]
    assert [name for line in formats.splitlines() for name in line.strip(" ,").split(", ")] == importer_names()


def test_the_help_explains_every_column_of_the_answer(shell: Shell) -> None:
    columns = shell("import", "--help").out.split("The columns of the answer:\n")[1].split("\n\n")[0]
    assert [line.split()[0] for line in columns.splitlines()] == list(ORIGINS_HEADER[1:])


def test_the_page_about_importing_explains_every_column_of_the_answer() -> None:
    page = (Path(__file__).parents[2] / "docs" / "importing.md").read_text()
    part = page.split("\n## What an import answers\n")[1].split("\n## ")[0]
    assert re.findall(r"^\| `([A-Z]+)` \|", part, re.MULTILINE) == [name.upper() for name in ORIGINS_HEADER]


def test_a_format_that_is_not_that_of_the_file_is_a_problem_and_writes_nothing(shell: Shell, claude: Path) -> None:
    shell("init")
    wrong = shell("import", "--format", "codex", str(claude.parent))
    assert wrong.code == 1
    assert wrong.err.splitlines()[:2] == [
        f"{claude}: no turn could be read as codex: it looks like claude-code",
        "leave --format out, or give --format claude-code",
    ]
    assert wrong.err.splitlines()[2:] == ["1 problem, so the exit code is 1; nothing was read"]
    assert wrong.out.split("\t")[:6] == ["codex", "1", "0", "0", "0", "0"]
    assert shell.json("sessions", "--all") == []
    assert shell("import", str(claude.parent)).out.split("\t")[:5] == ["claude-code", "1", "0", "1", "1"]


def test_sessions_without_turns_are_not_said_to_be_known(shell: Shell, claude: Path) -> None:
    claude.write_text('{"type":"session_meta","payload":{"id":"0a1b2c3d-1111-4111-8111-000000000009"}}\n')
    answer = shell("import", str(claude), "--format", "codex")
    assert answer.out.split("\t")[:6] == ["codex", "1", "0", "1", "0", "0"]
    assert answer.err.splitlines()[-1] == "no turns: the sessions that were read hold none"


def test_turns_that_were_known_are_said_to_be(shell: Shell, claude: Path) -> None:
    shell("import")
    copy = claude.with_name("copy.jsonl")
    copy.write_text(claude.read_text())
    os.utime(copy, (LONG_AGO, LONG_AGO))
    assert shell("import").err.splitlines()[-1] == "no new turns: they were in the ledger already"


def test_an_interrupted_import_says_so_and_goes_on(shell: Shell, claude: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(ImportRun, "carry_out", interrupted)
        answer = shell("import", "--json")
        assert (answer.code, answer.json["stopped"]) == (130, True)
        assert shell("import", "--dry-run").err.endswith("dry run: nothing was written\n")
        assert shell("import").err.splitlines()[-1] == (
            "stopped: what was read is in the ledger; the same command goes on from here"
        )
    assert shell("import").out.startswith("claude-code")


def test_every_record_of_an_unknown_kind_is_counted() -> None:
    totals = OriginTotals(unknown={f"kind-{k}": 10 - k for k in range(7)})
    (note,) = _summary_notes(ImportSummary(origins={"toy": totals}))
    assert note.startswith("49 records of kinds not known here, kept verbatim: kind-0 10, ")
    assert note.endswith("kind-4 6 and 9 of other kinds; --json lists them")


def test_an_import_that_brings_nothing_says_so(shell: Shell, claude: Path) -> None:
    shell("import")
    assert shell("import").err == "nothing new\n"


def test_numbers_are_for_programs_in_a_pipe_and_for_people_on_a_terminal(shell: Shell, claude: Path) -> None:
    size = claude.stat().st_size
    assert shell("import", "--dry-run").out.rstrip("\n").split("\t")[-2:] == ["2", str(size)]
    _, shown = on_terminal(shell.folder, "import", "--no-color")
    header, row = shown[shown.index("ORIGIN") :].splitlines()[:2]
    assert row.split() == ["claude-code", "1", "0", "1", "1", "0", "0", "2", str(size), "B"]
    assert len(header) == len(row)
    assert row[header.index("FILES") + len("FILES") - 1] == "1"


BAR_OF_AN_IMPORT = """
from types import SimpleNamespace
from weft.exchange.importing.run import ImportStep
from weft.surfaces.cli.ledgers.import_job import import_progress
with import_progress(SimpleNamespace(quiet=False, json=False)) as show:
    show(ImportStep(files=1, of_files=2, bytes=1, of_bytes=2, sessions=1, name="a"))
"""


def test_the_bar_of_an_import_counts_one_session_as_one(folder: Path) -> None:
    code, shown = on_terminal(folder, script=BAR_OF_AN_IMPORT, NO_COLOR="1")
    assert code == 0
    assert "import 1 session " in shown


def test_a_narrow_terminal_gets_the_columns_that_matter(shell: Shell, claude: Path) -> None:
    _, shown = on_terminal(shell.folder, "import", "--no-color", "--quiet", COLUMNS="50")
    assert shown.split("\n")[0].split() == ["ORIGIN", "FILES", "SESSIONS", "TURNS", "KNOWN"]
    for command in (("sessions",), ("usage", "--by", "session")):
        _, shown = on_terminal(shell.folder, *command, "--no-color", "--quiet", COLUMNS="60")
        table = shown.split("\n\n")[0].splitlines()
        assert max(map(len, table)) <= 60
        assert SESSION[:8] in table[1]


def test_an_unknown_format(shell: Shell, claude: Path) -> None:
    answer = shell("import", "--format", "nobody", str(claude))
    assert answer.code == 5
    assert "known: " in answer.err
    assert "claude-code" in answer.err


def test_only_what_changed_since(shell: Shell, claude: Path) -> None:
    nothing = shell("import", "--since", "yesterday")
    assert (nothing.out, nothing.err.splitlines()[1:]) == ("", ["1 file passed over: last changed before --since"])
    assert shell("import", "--json", "--since", "yesterday").json["older_files"] == 1
    assert shell("import", "--since", "2001-01-01").out.startswith("claude-code")


@pytest.mark.parametrize("turns", [1, 2])
def test_an_import_says_which_session_another_file_changed(shell: Shell, claude: Path, turns: int) -> None:
    """The same session, the same ids, the same question, and another answer; of two turns the longer one is shown."""
    told = "It is cleared on login." if turns == 1 else "Kept."
    lines = claude.read_text().splitlines(keepends=True)[: 2 * turns]
    if turns == 2:
        lines += [line("u2", "a1", "user", "And now?"), line("a2", "u2", "assistant", [{"type": "text", "text": told}])]

    def written(path: Path, *answers: str) -> str:
        before, text = [f"u{turns}", *(f"{path.stem}{number}" for number in range(9))], "".join(lines[:-1])
        for number, answer in enumerate(answers):
            text += line(before[number + 1], before[number], "assistant", [{"type": "text", "text": answer}])
        path.write_text(text)
        os.utime(path, (LONG_AGO, LONG_AGO))
        return str(path)

    claude.write_text("".join(lines))
    os.utime(claude, (LONG_AGO, LONG_AGO))
    assert "replaced" not in shell("import").err
    stranger = shell("import", written(claude.parents[4] / "stranger.jsonl", "Ask Mallory.", "She knows."), "--json")
    counted = json.loads(stranger.out)["origins"]["claude-code"]["counts"]
    assert (counted["superseded"], counted["replaced_in"]) == (1, {SESSION: 1})
    assert told not in shell("show", SESSION).out
    imported = shell("import", written(claude.parents[4] / "another.jsonl", "Ask", "somebody", "else."))
    assert f"1 turn replaced by a version with other words, in session {SESSION} (1)" in imported.err
