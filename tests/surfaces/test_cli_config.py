"""`weft config` shows what the next message to a session is answered with, from which layer, and refuses clearly."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.surfaces.shell import Shell
from tests.surfaces.test_cli_docs import run_example
from weft.kernel.authority import Vouched
from weft.kernel.errors import NotTrusted
from weft.ledger.api import Ledger

PAGE = (Path(__file__).parents[2] / "docs" / "models.md").read_text()


def run_page(shell: Shell) -> None:
    """The examples of the page, each with the output that it shows."""
    section = PAGE.split("## Configuration of a turn\n")[1].split("\n## ")[0]
    (block,) = re.findall(r"```console\n(.*?)```", section, re.DOTALL)
    for line, output in re.findall(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", block, re.MULTILINE):
        answer = run_example(shell, line)
        assert answer.code == 0, f"{line}\n{answer.err}"
        if output:
            assert answer.out == output


def test_the_configuration_of_a_session_is_shown_with_its_layers(shell: Shell) -> None:
    run_page(shell)
    shown = shell.json("config", "notes", "--situation", "coding", "--set", "topK=5")
    assert {name: shown[name] for name in ("session", "persona", "model", "provider", "situation")} == {
        "session": "notes", "persona": "ada", "model": "small", "provider": "nearby", "situation": "coding",
    }  # fmt: skip
    values = {value.pop("key"): value for value in shown["values"]}
    assert values["situation"] == {"value": "coding", "layer": "message", "source": "", "sent": True}
    assert values["topK"] == {"value": 5, "layer": "message", "source": "", "sent": False}
    assert [limits["allow"] for limits in shown["limits"]] == [["Read", "Bash"], None]
    assert (shown["credentials"], shown["files"], shown["network"]) == (None, None, False)
    for words, said in (
        (("config", "nowhere"), "no session 'nowhere'"),
        (("config", "notes", "--set", "temprature=1"), "did you mean temperature?"),
        (("config", "notes", "--situation", "calm"), "knows no situation 'calm'"),
        (("config", "notes", "--deny", "a:b"), "is no pattern for tools"),
        (("config", "notes", "--model", "grand"), "no model 'grand'"),
    ):
        refused = shell(*words)
        assert refused.code != 0
        assert said in refused.err
    shell("session", "create", "plain")
    assert shell("config", "plain").out == "tools\tall\tno layer limits them\n"
    assert "no layer names a model" in shell("config", "plain").err


def test_a_ledger_that_is_not_trusted_has_no_variables_looked_up(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    run_page(shell)
    monkeypatch.setenv("HEAT", "0.5")
    shell("session", "configure", "notes", "--set", "defaultModelConfig.temperature=${HEAT}")
    assert "temperature\t0.5\tsession notes" in shell("config", "notes").out

    class Distrust(Vouched):
        def ensure(self, action: str) -> None:
            raise NotTrusted("here", action, "by a test", "trust it")

    monkeypatch.setattr(Ledger, "trust", Distrust())
    assert "may not look up variables of the environment" in shell("config", "notes").err
