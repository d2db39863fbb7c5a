"""`weft sandbox run` runs a command as the tool would, and ends as the command ends."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.runtime.sandbox.repositories import make_repository, person_git
from tests.sandbox import machine_sandbox
from tests.surfaces.shell import Shell

ON_DISK = True  # no sandbox takes a workspace in memory


def trust_list(shell: Shell) -> list[dict[str, Any]]:
    entries: list[dict[str, Any]] = shell.json("trust", "--list")
    return entries


@pytest.fixture(autouse=True)
def sandbox_here() -> None:
    machine_sandbox()


def test_a_command_runs_in_the_workspace(shell: Shell, tmp_path: Path) -> None:
    space = tmp_path / "space"
    space.mkdir()
    answer = shell(
        "sandbox", "run", "--in", str(space), "--", "sh", "-c", "pwd; echo made > made; echo bad >&2; exit 7"
    )
    assert (answer.code, answer.out.strip()) == (7, str(space))
    assert "bad" in answer.err
    assert (space / "made").read_text() == "made\n"


def test_the_answer_as_json_names_what_was_executed(shell: Shell, tmp_path: Path) -> None:
    (tmp_path / "space").mkdir()
    (tmp_path / "space" / "script.sh").write_text("echo $COLOR")
    options = ("--in", str(tmp_path / "space"), "--profile", "read-only", "--env", "COLOR=blue", "--json")
    answer = shell("sandbox", "run", *options, "--", "sh", "script.sh")
    told = answer.json
    assert (told["argv"], told["profile"], told["granted_by"], told["error"]) == (
        ["sh", "script.sh"], "read-only", None, None,
    )  # fmt: skip
    assert (told["result"]["rc"], told["result"]["stdout"]) == (0, "blue\n")
    assert list(told["files"]) == ["script.sh"]
    assert len(told["bound"]) == 64


def test_no_sandbox_needs_the_flag_of_the_person(shell: Shell) -> None:
    refused = shell("sandbox", "run", "--profile", "none", "--", "true")
    assert (refused.code, "hint: say --allow-none" in refused.err) == (5, True)
    assert shell("sandbox", "run", "--", "no-such-program") == (127, "", "no-such-program: No such file or directory\n")
    answer = shell("sandbox", "run", "--profile", "none", "--allow-none", "--json", "--", "echo", "hi")
    assert (answer.json["profile"], answer.json["result"]["stdout"]) == ("none", "hi\n")
    assert answer.json["granted_by"].endswith("at the command line")
    confined = shell("sandbox", "run", "--allow-none", "--json", "--", "true")
    assert (confined.json["profile"], confined.json["granted_by"]) == ("workspace", None)


def test_what_cannot_be_meant_is_refused(shell: Shell) -> None:
    for words in (
        ("--profile", "wide"), ("--profile", "network:127.0.0.1"), ("--in", "gone"), ("--env", "PATH=x"),
        ("--env", "x"),
    ):  # fmt: skip
        answer = shell("sandbox", "run", *words, "--json", "--", "true")
        assert (answer.code, answer.error["code"]) == (5, "invalid_input"), words


def test_a_command_whose_time_is_over_ends_with_124(shell: Shell) -> None:
    answer = shell("sandbox", "run", "--timeout-ms", "300", "--json", "--", "sh", "-c", "echo begun; sleep 100")
    assert (answer.code, answer.json["result"]["stdout"]) == (124, "begun\n")
    assert answer.json["error"].startswith("timed_out")


def test_output_drives_no_terminal(shell: Shell) -> None:
    assert "\x1b" not in shell("sandbox", "run", "--", "printf", "\\033[31mred\\n").out


def test_a_command_runs_where_a_ledger_was_made_and_sees_neither_it_nor_what_is_the_persons_own(
    shell: Shell, tmp_path: Path
) -> None:
    """In the folder where people start, which here contains the configuration, too."""
    shell.json("init", ".")
    own = tmp_path / "home" / ".config" / "weft"
    own.mkdir(parents=True, exist_ok=True)
    (own / "credentials.json").write_text('{"credentials": []}\n')
    (own / "notes").write_text("canary")
    script = "find . -type f; cat home/.config/weft/* work/.weft/*; echo end"
    answer = shell("sandbox", "run", "--in", str(tmp_path), "--", "sh", "-c", script)
    assert answer.code == 0, answer
    assert "canary" not in answer.out
    assert "credentials" not in answer.out
    assert "ledger.db" not in answer.out
    assert answer.out.endswith("end\n")


def test_no_command_writes_to_another_ledger_that_the_person_trusts(shell: Shell, tmp_path: Path) -> None:
    """It would act for the person when they open it."""
    shell.json("init", ".")
    space = tmp_path / "space"
    space.mkdir()
    others = [space / "shop.db", space / "node_modules" / "x" / ".weft" / "ledger.db"]
    for other in others:
        other.parent.mkdir(parents=True, exist_ok=True)
        assert shell("--ledger", str(other), "init").code == 0
    before = [other.read_bytes() for other in others]
    writing = " ".join(
        f"echo x >> {other}; echo x > {other}-journal; rm -f {other}; head -c 6 {other};" for other in others
    )
    answer = shell("sandbox", "run", "--in", str(space), "--", "sh", "-c", f"{writing} true")
    assert (answer.code, answer.out) == (0, "")
    assert [other.read_bytes() for other in others] == before
    assert [Path(f"{other}-journal").read_bytes() for other in others] == [b"", b""]
    shell("--ledger", str(others[0]), "trust", "--revoke")
    assert shell("sandbox", "run", "--in", str(space), "--", "head", "-c", "6", "shop.db").out == "SQLite\n"


def test_a_hidden_file_is_named_shown_and_hidden_again(shell: Shell, tmp_path: Path) -> None:
    space = tmp_path / "space"
    (space / "deep").mkdir(parents=True)
    for name in (".env", "deep/.env", "deep/token.p12"):
        (space / name).write_text("canary\n")
    reading = ("sandbox", "run", "--in", str(space), "--", "sh", "-c", "cat .env deep/.env deep/*.p12; test -s .env")
    hidden = shell(*reading)
    assert (hidden.code, hidden.out) == (1, "canary\n")
    assert f"hidden: .env of {space}: `weft trust {space} --show .env` lets commands see it" in hidden.err
    settings = tmp_path / "home" / ".config" / "weft" / "sandbox.toml"
    settings.parent.mkdir(parents=True, exist_ok=True)
    settings.write_text('secret_files = ["*.p12"]\n')
    assert shell(*reading).out == ""
    shown = shell("trust", str(space), "--show", "deep/.env")
    assert (shown.code, shown.out) == (0, f"deep/.env is seen by commands that work in {space}\n")
    assert shell(*reading).out == "canary\n"
    assert {"folder": str(space), "path": "deep/.env", "is_shown": True} in trust_list(shell)
    assert shell.json("trust", str(space), "--revoke", "deep/.env")["is_shown"] is False
    assert shell(*reading).out == ""
    settings.write_text("secret_file = 1\n")
    assert "docs/tools.md shows how it is written" in shell(*reading).err


@pytest.mark.parametrize(
    "words",
    [("{0}", "--show"), ("{0}", ".env"), ("{0}", "--show", "gone"), ("{0}", "--show", "../beside"), ("{0}", "--list")],
)
def test_what_cannot_be_shown_is_refused(shell: Shell, tmp_path: Path, words: tuple[str, ...]) -> None:
    (tmp_path / "space").mkdir()
    (tmp_path / "space" / ".env").touch()
    (tmp_path / "beside").touch()
    assert shell("trust", *(word.format(tmp_path / "space") for word in words)).code != 0
    assert [entry for entry in trust_list(shell) if "path" in entry] == []


def test_what_is_not_hidden_need_not_be_shown(shell: Shell, tmp_path: Path) -> None:
    space = tmp_path / "space"
    (space / "apps").mkdir(parents=True)
    for name in (".env", ".npmrc", "apps/plain.py"):
        (space / name).write_text("1\n")
    (space / "apps" / "other-name").hardlink_to(space / ".env")
    plain = shell("trust", str(space), "--show", "apps/plain.py")
    state = f"is not hidden: commands that work in {space} see it already; nothing changed"
    assert (plain.code, plain.out) == (0, f"apps/plain.py {state}\n")
    assert [entry for entry in trust_list(shell) if "path" in entry] == []
    for name in (".npmrc", "apps/other-name"):  # the first one is hidden when a token comes to stand in it
        assert shell("trust", str(space), "--show", name).out == f"{name} is seen by commands that work in {space}\n"
    assert shell("sandbox", "run", "--in", str(space), "--", "cat", "apps/other-name").out == "1\n"


def test_a_folder_that_takes_the_place_of_another_shows_nothing(shell: Shell, tmp_path: Path) -> None:
    space = tmp_path / "space"
    for name in ("first", "second"):
        space.mkdir()
        (space / ".env").write_text("canary")
        if name == "first":
            shell("trust", str(space), "--show", ".env")
            space.rename(tmp_path / "moved")
    assert shell("sandbox", "run", "--in", str(space), "--", "cat", ".env").out == ""


def test_a_commit_bears_the_persons_own_name_and_what_writes_the_configuration_says_where_to_do_it(
    shell: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home, space = tmp_path / "home", make_repository(tmp_path / "space", files={"a": "1\n"})
    home.mkdir(exist_ok=True)
    (home / ".gitconfig").write_text(
        '[include]\n\tpath = names\n[user]\n\temail = "ada@example.org"\n[alias]\n\tx = !x\n'
    )
    (home / "names").write_text("[user]\n\tname = Ada Person\n")
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    monkeypatch.delenv("GIT_CONFIG_GLOBAL", raising=False)
    words = ("sandbox", "run", "--in", str(space), "--")
    assert shell(*words, "git", "commit", "-q", "--allow-empty", "-m", "two").code == 0
    assert person_git(space, "log", "-1", "--format=%an %ae") == "Ada Person ada@example.org"
    answer = shell(*words, "git", "config", "core.fsmonitor", "x")
    assert answer.code == 4
    assert "outside of it" in answer.err
