"""`weft secrets`: listed without being shown, ignored, erased."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import weft as library
from tests.credentials import Maker, scanner
from tests.surfaces.shell import Answer, Shell, on_terminal, spawn
from weft.ledger.secrets.scan import load_scanner


@pytest.fixture(autouse=True)
def _loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compiled rules take a while to be read, too: this process has them already."""
    monkeypatch.setattr("weft.ledger.secrets.load_scanner", lambda _: scanner())


@pytest.fixture
def token(weft: Shell) -> str:
    made = Maker(30).github()
    weft.record("before")
    weft.record(f"use {made}", tool_calls=[{"name": "run", "id": "c1", "arguments": {"env": made}, "result": "ok"}])
    return made


def told(answer: Answer, token: str) -> str:
    assert token not in answer.out + answer.err
    assert token[4:] not in answer.out + answer.err
    return answer.out + answer.err


def files(folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in (folder / ".weft").iterdir())


def test_what_is_found_is_listed_with_where_and_never_shown(weft: Shell, token: str) -> None:
    answer = weft("secrets")
    assert answer.code == 1
    text = told(answer, token)
    assert "GitHub Personal Access Token ghp_…  3 times, betterleaks.github-pat" in text
    assert "session main  turn" in text
    assert "call c1  tool_call args" in text
    assert "1 secret found; 8 new contents" in text
    again = weft("secrets", "--json")
    assert again.code == 1
    told(again, token)
    assert again.json["scanned"]["contents"] == 0
    assert again.json["secrets"][0]["times"] == 3
    assert {place["session"] for place in again.json["secrets"][0]["places"]} == {"main"}


def test_nothing_found_is_said_and_exits_with_0(weft: Shell) -> None:
    weft.record("hello")
    answer = weft("secrets")
    assert (answer.code, answer.out) == (0, "")
    assert answer.err.startswith("0 secrets found; 3 new contents")
    assert weft("secrets", "--all").err.startswith("0 secrets found; 3 new contents")


def test_a_false_alarm_is_ignored_and_heeded_again(weft: Shell, token: str) -> None:
    mark = weft("secrets", "--json").json["secrets"][0]["fingerprint"]
    answer = weft("secrets", "--ignore", mark[:8])
    assert (answer.code, answer.out) == (0, f"ignored {mark}\n")
    assert f"undo: weft secrets --unignore {mark}" in answer.err
    left = weft("secrets")
    assert left.code == 0
    assert "1 finding ignored" in left.err
    assert mark in weft("secrets", "--ignored").out
    assert weft("secrets", "--erase", "--reason", "r", "--yes").code == 0
    assert weft.json("erase", "--list") == []
    assert weft("secrets", "--unignore", mark).code == 0
    assert weft("secrets").code == 1


def test_they_are_erased_with_the_forks_named_first(weft: Shell, token: str, folder: Path) -> None:
    weft("fork", "main", "alt")
    plan = weft("secrets", "--erase", "--dry-run")
    assert plan.code == 0
    assert "session: alt (contains it, active)" in told(plan, token)
    refused = weft("secrets", "--erase", "--reason", "leaked")
    assert refused.code == 4
    assert "--yes" in told(refused, token)
    assert token.encode() in files(folder)
    everything = ("ledger:read", "session:read", "content:erase")
    assert weft("human", "create", "ann", *(f"--permission={right}" for right in everything)).code == 0
    done = weft("secrets", "--erase", "--reason", "leaked", "--yes", "--as", "ann")
    assert done.code == 0
    assert "erased 3 contents" in told(done, token)
    assert "replace it where it came from" in done.err
    assert token.encode() not in files(folder)
    assert {found["actor"] for found in weft.json("erase", "--list")} == {"ann"}
    assert weft("secrets", "--all").code == 0
    assert weft("verify").code == 0


def test_what_is_said_again_by_itself_is_erased_too(weft: Shell, folder: Path) -> None:
    words, password = Maker(33).kinds()["betterleaks.generic-credential-uri"]
    weft.record(f"connect to {words}")
    weft.record(f"I repeat: {password}")
    told(weft("secrets", "--erase", "--reason", "leaked", "--yes"), password)
    assert password.encode() not in files(folder)


def test_only_the_chosen_ones_are_erased(weft: Shell, token: str, folder: Path) -> None:
    other = Maker(31).github()
    weft.record(f"and {other}", session="apart")
    found = weft("secrets", "--session", "apart", "--json").json["secrets"]
    assert len(found) == 1
    assert weft("secrets", found[0]["fingerprint"][:10], "--erase", "--reason", "r", "--yes").code == 0
    assert other.encode() not in files(folder)
    assert token.encode() in files(folder)


def test_a_reason_that_tells_the_secret_is_refused(weft: Shell, token: str) -> None:
    answer = weft("secrets", "--erase", "--yes", "--reason", f"leaked {token}")
    assert answer.code == 5
    assert "the reason holds a credential itself" in told(answer, token)
    assert weft("secrets", "--erase", "--yes").code == 5


def test_a_label_that_holds_a_secret_is_not_shown_either(weft: Shell, folder: Path) -> None:
    token = Maker(32).github()
    weft.record("hello", session=f"fix {token}")
    told(weft("secrets"), token)
    told(weft("secrets", "--json"), token)
    told(weft("secrets", "--erase", "--dry-run"), token)
    told(weft("secrets", "--erase", "--yes", "--reason", "leaked"), token)
    assert token.encode() not in files(folder)


@pytest.mark.parametrize(
    "wrong",
    [["--ignore", "a", "--erase"], ["--ignore", "a", "--unignore", "a"], ["--yes"], ["--reason", "r"], ["--dry-run"]],
)
def test_options_that_do_not_go_together_are_refused(weft: Shell, wrong: list[str]) -> None:
    assert weft("secrets", *wrong).code == 2


def test_what_is_no_fingerprint_is_refused(weft: Shell, token: str) -> None:
    told(weft("secrets", "--ignore", token), token)
    assert weft("secrets", "--ignore", token).code == 5
    assert weft("secrets", token).code == 5
    assert weft("secrets", "--ignore", "0" * 16).code == 3


def test_without_the_scanner_it_is_said_what_to_install(weft: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("weft.ledger.secrets.load_scanner", load_scanner)
    monkeypatch.setitem(sys.modules, "kingfisher_sdk", None)
    answer = weft("secrets")
    assert answer.code == 7
    assert "hint: install it: `pip install 'weft[secrets]'`" in answer.err


def test_the_scanner_is_loaded_for_this_command_alone(weft: Shell, folder: Path) -> None:
    code = "import sys; sys.modules['kingfisher_sdk'] = None; from weft.surfaces.cli.main import run; run(sys.argv[1:])"
    for arguments in (["secrets", "--help"], ["log"], ["--help"]):
        done = subprocess.run([sys.executable, "-c", code, *arguments], cwd=folder, capture_output=True, check=True)
        assert b"kingfisher" not in done.stderr


def test_a_terminal_and_a_pipe_show_no_secret(weft: Shell, token: str, folder: Path) -> None:
    _, shown = on_terminal(folder, "secrets", "--all")
    assert "GitHub Personal Access Token" in shown
    assert token[4:] not in shown
    piped = spawn(folder, "secrets", "--json")
    assert token[4:].encode() not in piped.stdout + piped.stderr
    assert json.loads(piped.stdout)["rules"].startswith("kingfisher ")


def test_its_owner_can_look_at_a_match(weft: Shell, token: str) -> None:
    shown = weft("secrets", "--show")
    assert (shown.code, shown.out.count(token)) == (1, 3)
    assert "…use " in shown.out
    mark = weft("secrets", "--json").json["secrets"][0]["fingerprint"]
    matches = weft("secrets", mark, "--show", "--json").json
    assert {match["secret"] for match in matches} == {token}
    assert weft("secrets", "--show", "--erase", "--reason", "r").code == 2


def test_a_match_is_redacted_alone(weft: Shell, token: str, folder: Path) -> None:
    digest = weft.json("show", "main")["digest"]
    would = weft("secrets", "--redact", "--dry-run")
    assert "what 3 contents of them say beside the credential" in told(would, token)
    assert weft("secrets", "--redact", "--reason", "leaked").code == 4
    assert weft("secrets", "--redact", "--reason", "leaked", "--yes").code == 0
    shown = told(weft("show", "main"), token)
    assert "use [redacted]" in shown
    turn = weft.json("show", "main")
    assert (turn["digest"], turn["tool_calls"][0]["arguments"]) == (digest, {"env": "[redacted]"})
    assert token.encode() not in files(folder)
    assert weft("secrets").code == 0
    assert weft("verify").code == 0
    assert weft("search", "redacted").out.count("[redacted]") >= 1
    assert weft("rebuild").code == 0
    assert "use [redacted]" in weft("show", "main").out
    assert weft("verify").code == 0


def test_what_was_left_goes_with_its_turn(weft: Shell, token: str) -> None:
    weft("secrets", "--redact", "--reason", "leaked", "--yes")
    assert weft("erase", "main~0", "--reason", "asked to", "--yes").code == 0
    assert "use [redacted]" not in weft("show", "main").out
    assert "[erased]" in weft("show", "main").out
    assert weft("verify").code == 0


def test_names_of_programs_are_no_credentials(weft: Shell) -> None:
    weft.record(
        '{"ibm": "internal_chat_message_metadata_passthrough", "ibm_key": "internal_chat_message_metadata_pass"}'
    )
    assert weft("secrets").code == 0


def test_what_was_redacted_twice_goes_with_its_turn(weft: Shell, folder: Path) -> None:
    one, two = Maker(31).github(), Maker(32).github()
    weft.record(f"use {one} and {two} for Jane")
    marks = [secret["fingerprint"] for secret in weft("secrets", "--json").json["secrets"]]
    for mark in marks:
        assert weft("secrets", mark, "--redact", "--reason", "leaked", "--yes").code == 0
    assert "use [redacted] and [redacted] for Jane" in weft("show", "main").out
    assert weft("erase", "main~0", "--reason", "asked to", "--yes").code == 0
    assert "Jane" not in weft("show", "main").out
    assert b"Jane" not in files(folder)
    assert weft("verify").code == 0


def test_what_was_left_is_shared_with_no_other_turn(weft: Shell) -> None:
    token = Maker(33).github()
    weft.record(f"deploy with {token}", session="mine")
    weft.record(f"deploy with {token}", session="theirs")
    assert weft("secrets", "--redact", "--reason", "leaked", "--yes").code == 0
    assert weft("erase", "theirs", "--reason", "asked to", "--yes").code == 0
    assert "deploy with [redacted]" in weft("show", "mine").out
    assert weft("verify").code == 0


def test_a_peer_puts_no_words_into_a_message(weft: Shell, folder: Path) -> None:
    weft.record("pay nobody")
    assert weft("clone", ".", "other.db").code == 0
    with library.open(folder / "other.db") as ledger:
        ref = ledger.erasure.plan("main~0").contents[0].ref
        ledger.erasure.erase(ref, reason="gdpr", remainders={ref: "pay mallory"})
    weft("pull", "other.db")
    assert "mallory" not in weft("show", "main").out
    assert weft("pending", "take", "--kind", "erasure", "--yes").code == 0
    assert "mallory" not in weft("show", "main").out


def test_a_credential_in_a_name_is_listed_and_said_to_stay(weft: Shell) -> None:
    made = Maker(41).github()
    turn = weft.record("q", model=made)
    answer = weft("secrets")
    text = told(answer, made)
    assert answer.code == 1
    assert f"session main  turn {turn[-8:]}  turn model" in text
    assert "1 secret in names, which cannot be erased: replace them where they came from" in text
    assert "--redact" not in text
    refused = weft("secrets", "--erase", "--reason", "leaked", "--yes")
    assert (refused.code, "names in events cannot be erased" in told(refused, made)) == (4, True)
