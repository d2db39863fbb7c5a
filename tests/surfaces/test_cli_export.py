"""`weft export`: what goes where, what is refused, and what is told."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.surfaces.shell import Shell, on_terminal, spawn
from weft.exchange.exporters.testing import PIXEL
from weft.surfaces.cli.progress import counted


def test_the_end_of_a_files_name_says_the_form(weft: Shell, folder: Path) -> None:
    weft.record("hi")
    for name, beginning in (("a.md", "# hi"), ("a.html", "<!doctype html>"), ("a.jsonl", '{"uuid"')):
        answer = weft("export", "main", "-o", name)
        assert (answer.code, answer.err) == (0, "")
        assert answer.out.startswith(f"wrote {'markdown' if name == 'a.md' else name[2:]} to {name} (1 turn, ")
        assert (folder / name).read_text().startswith(beginning)


def test_a_page_tells_the_cost_at_ones_own_prices(
    weft: Shell, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = tmp_path / "config" / "weft" / "prices.toml"
    own.parent.mkdir(parents=True)
    own.write_text('[models."my-*"]\noutput = 2_000_000')
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    weft.record("hi", model="my-model", usage={"input_tokens": 0, "output_tokens": 1_000_000})
    assert weft("export", "main", "-o", "a.html").code == 0
    assert " · 1,000,000 tokens · $2.00</p>" in (folder / "a.html").read_text()


def test_without_a_file_it_goes_to_stdout(weft: Shell) -> None:
    weft.record("hi")
    for arguments in ((), ("-o", "-")):
        answer = weft("export", "main", "--format", "openai", *arguments)
        assert [message["content"] for message in answer.json["messages"]] == ["hi", "re: hi"]
        assert answer.err == ""


def test_json_tells_what_was_written(weft: Shell, folder: Path) -> None:
    weft.record("hi", tool_calls=[{"name": "x"}])
    told = weft.json("export", "main", "-o", "a.jsonl")
    assert told == {
        "file": "a.jsonl", "form": "jsonl", "bytes": (folder / "a.jsonl").stat().st_size, "turns": 1, "messages": 2,
        "tool_calls": 1, "left_out": {"tool call": 1}, "assets": 0,
    }  # fmt: skip
    answer = weft("export", "main", "--format", "openai", "--json")
    assert answer.code == 2
    assert "name one with -o" in answer.error["message"]


def test_what_is_left_out_is_told_beside(weft: Shell) -> None:
    weft.record("hi", tool_calls=[{"name": "x"}, {"name": "y"}], system="rules")
    answer = weft("export", "main", "--format", "jsonl")
    assert answer.err == "left out: 1 system message, 2 tool calls\n"
    assert weft("export", "main", "--format", "jsonl", "-q").err == ""


def test_what_is_left_out_is_counted_in_the_plural(weft: Shell) -> None:
    thought = [{"type": "reasoning", "text": "hm"}, {"type": "text", "text": "yes"}]
    for query in ("one", "two"):
        weft.record(query, response={"role": "assistant", "content": thought})
        assert weft("compact", "--summary", f"so far {query}").code == 0
    answer = weft("export", "main", "--format", "jsonl")
    assert answer.err == "left out: 2 summaries, 2 passages of thinking\n"
    assert weft("export", "main~2", "--format", "jsonl").err == "left out: 1 summary, 1 passage of thinking\n"


@pytest.mark.parametrize(
    ("count", "noun", "shown"),
    [
        (2, "part of a tool call", "2 parts of a tool call"),
        (1, "part of a tool call", "1 part of a tool call"),
        (2, "day", "2 days"),
        (1_661, "passage of thinking", "1,661 passages of thinking"),
    ],
)
def test_counts_are_written_as_people_say_them(count: int, noun: str, shown: str) -> None:
    assert counted(count, noun) == shown


def test_nothing_is_replaced_without_force(weft: Shell, folder: Path) -> None:
    weft.record("hi")
    (folder / "a.md").write_text("mine")
    answer = weft("export", "main", "-o", "a.md")
    assert (answer.code, (folder / "a.md").read_text()) == (7, "mine")
    assert "--force" in answer.err
    assert weft("export", "main", "-o", "a.md", "--force").code == 0
    assert sorted(path.name for path in folder.iterdir()) == [".weft", "a.md"]


def test_one_says_what_and_in_which_form(weft: Shell) -> None:
    weft.record("hi")
    assert "--format" in weft("export", "main").err
    assert weft("export", "--format", "html").out.startswith("<!doctype html>")
    assert weft("export", "main", "--all", "--format", "html").code == 2
    answer = weft("export", "main", "--format", "word")
    assert answer.code == 5
    assert "known: anthropic, html, jsonl, markdown, openai" in answer.err
    assert weft("export", "nobody", "--format", "html").code == 3
    assert weft("export", "main", "--tree", "--format", "openai").code == 5


def test_what_is_missing_is_told_before_the_form_is_asked_for(weft: Shell, folder: Path) -> None:
    empty = weft("export")
    assert (empty.code, "no turns yet" in empty.err) == (3, True)
    weft.record("hi")
    for words in (("nobody",), ("main", "nobody"), ("nobody", "-o", "a.xyz")):
        missing = weft("export", *words)
        assert (missing.code, "'nobody'" in missing.err, "form" in missing.err) == (3, True, False), words
    code, shown = on_terminal(folder, "export", "nobody", "--format", "markdown")
    assert (code, "'nobody'" in shown) == (3, True)
    assert weft("export", "--room", "nowhere").code == 3
    unformed: list[tuple[str, ...]] = [(), ("main",), ("main", "-o", "a.xyz")]
    for arguments in unformed:
        unsaid = weft("export", *arguments)
        assert unsaid.code == 2
        assert "in which form? add --format markdown (or html, jsonl, openai, anthropic), or name a file" in unsaid.err
    assert sorted(path.name for path in folder.iterdir()) == [".weft"]


def test_every_session_is_exported_at_once(weft: Shell) -> None:
    empty = weft("export", "--all", "--format", "markdown")
    assert (empty.code, "this ledger has no session with a turn" in empty.err) == (3, True)
    weft.record("one")
    weft.record("two", session="other")
    weft.json("fork", "main", "side")
    weft.record("three", session="side")
    text = weft("export", "--all", "--format", "markdown").out
    assert [text.count(f"\n> {word}\n") for word in ("one", "two", "three")] == [1, 1, 1]


def test_a_tree_has_all_branches_and_a_context_the_summary(weft: Shell) -> None:
    weft.record("one")
    weft.json("fork", "main", "side")
    weft.record("three", session="side")
    assert "> three" in weft("export", "main", "--tree", "--format", "markdown").out
    weft.json("compact", "--summary", "all so far")
    said = weft("export", "main", "--context", "--format", "openai").json["messages"]
    assert said == [{"role": "user", "content": "all so far"}]


def test_images_go_to_a_folder(weft: Shell, folder: Path) -> None:
    said = {"session": "main", "query": {"content": [{"type": "image_url", "url": PIXEL}]}, "response": "seen"}
    weft.json("record", stdin=json.dumps(said))
    assert weft.json("export", "main", "-o", "a.md", "--assets", "images")["assets"] == 1
    [image] = (folder / "images").iterdir()
    assert f"](images/{image.name})" in (folder / "a.md").read_text()


def test_an_export_is_named_when_something_is_erased(weft: Shell) -> None:
    weft.record("hi")
    weft("export", "main", "-o", "a.md")
    assert "a.md may still hold it" in weft("erase", "main", "--dry-run").out


def test_a_terminal_is_not_written_to(weft: Shell, folder: Path) -> None:
    weft.record("hi")
    code, shown = on_terminal(folder, "export", "main", "--format", "markdown")
    assert (code, "name a file with -o" in shown) == (2, True)


def test_a_pipe_gets_bytes(weft: Shell, folder: Path) -> None:
    weft.record("hé \ud800".encode("utf-8", "surrogatepass").decode("utf-8", "replace"))
    ran = spawn(folder, "export", "main", "--format", "jsonl", environment={"PYTHONIOENCODING": "ascii"})
    assert json.loads(ran.stdout.splitlines()[0])["message"]["content"].startswith("hé ")


def test_forms_are_completed(weft: Shell, folder: Path) -> None:
    environment = {"_WEFT_COMPLETE": "bash_complete", "COMP_WORDS": "weft export main --format ", "COMP_CWORD": "4"}
    ran = spawn(folder, environment=environment)
    assert {line.split(b",")[1] for line in ran.stdout.splitlines()} == {
        b"anthropic", b"html", b"jsonl", b"markdown", b"openai",
    }  # fmt: skip
