"""`weft sandbox run` runs a command as the tool would, and ends as the command ends."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.sandbox import machine_sandbox
from tests.surfaces.shell import Shell

ON_DISK = True  # no sandbox takes a workspace in memory


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
        assert (answer.code, answer.error["type"]) == (5, "InvalidInput"), words


def test_a_command_whose_time_is_over_ends_with_124(shell: Shell) -> None:
    answer = shell("sandbox", "run", "--timeout-ms", "300", "--json", "--", "sh", "-c", "echo begun; sleep 100")
    assert (answer.code, answer.json["result"]["stdout"]) == (124, "begun\n")
    assert answer.json["error"].startswith("timed_out")


def test_output_drives_no_terminal(shell: Shell) -> None:
    assert "\x1b" not in shell("sandbox", "run", "--", "printf", "\\033[31mred\\n").out
