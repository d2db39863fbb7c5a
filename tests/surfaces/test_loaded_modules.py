"""What a command loads, in a process of its own: the packages of others by name, and how many lines of code.

Whoever types a command waits for all of it. A package that is new here needs a reason; where the lines of Weft become
fewer, the number is made smaller.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.runtime.inference.asking import CANARY
from tests.runtime.scripted import MESSAGE, answer, chat
from tests.surfaces.serving import serving
from tests.surfaces.shell import Shell
from tests.surfaces.test_cli_broker import stock
from tests.surfaces.test_cli_served_send import broker

PROBE = """
import atexit, json, os, sys
from pathlib import Path

def tell():
    files = {name: getattr(module, "__file__", None) or "" for name, module in list(sys.modules.items())}
    own = {file: name for name, file in files.items() if name.partition(".")[0] == "weft" and file}
    packages = {
        name.partition(".")[0] for name, file in files.items() if "site-packages" in file or "dist-packages" in file
    }
    lines = 0
    for name in own.values():
        codes = [sys.modules[name].__loader__.get_code(name)]  # as it was compiled when it was loaded
        for code in codes:
            codes += [part for part in code.co_consts if hasattr(part, "co_lines")]
        lines += len({line for code in codes for _, _, line in code.co_lines() if line})
    modules = sorted(name for name in files if name.partition(".")[0] == "weft")
    Path(os.environ["PROBE_FILE"]).write_text(json.dumps([sorted(packages - {"weft"}), lines, modules]))

atexit.register(tell)
"""
COMMAND = PROBE + "sys.argv[0] = 'weft'\nfrom weft.surfaces.cli.entry import main\nsys.exit(main())\n"
SLACK = 1.02
"""So much more of Weft's own may be loaded than is written here."""
OF_THE_TESTS = {"_distutils_hack", "coverage", "a1_coverage", "sitecustomize"}
"""What an environment for tests loads at the start of every process."""
COMMON = {"click"}
STORE = COMMON | {"apsw", "msgspec", "orjson", "zstandard", "typing_extensions"}
HTTP = {"httpx2", "httpcore2", "h11", "anyio", "sniffio", "idna", "truststore"}
PRICES = {"genai_prices", "pydantic", "pydantic_core", "annotated_types", "typing_inspection"}
MODEL_LIBRARIES = {"openai", "anthropic", "google", "pydantic_ai", "httpx", "tiktoken"}


@pytest.fixture(autouse=True)
def _key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("THERE_KEY", CANARY)
    monkeypatch.setenv("USER", "tester")


class Loaded:
    """What a process had loaded when it ended."""

    def __init__(self, folder: Path, program: str, *arguments: str, typed: bytes = b"") -> None:
        file = folder / "loaded.json"
        subprocess.run(
            [sys.executable, "-c", program, *arguments],
            cwd=folder,
            env={**os.environ, "PROBE_FILE": str(file)},
            input=typed,
            check=True,
            capture_output=True,
        )
        packages, self.lines, self.modules = json.loads(file.read_text())
        self.packages = set(packages) - OF_THE_TESTS

    def check(self, packages: set[str], lines: int) -> None:
        assert self.packages == packages
        assert self.lines <= lines * SLACK, f"{self.lines} lines of Weft are loaded, {lines} are expected"

    def has(self, *prefixes: str) -> list[str]:
        return [name for name in self.modules if name.startswith(prefixes)]


def test_importing_weft(tmp_path: Path) -> None:
    Loaded(tmp_path, PROBE + "import weft").check(set(), 347)


def test_the_help(weft: Shell) -> None:
    Loaded(weft.folder, COMMAND, "--help").check(COMMON, 2960)


def test_the_log(weft: Shell) -> None:
    weft.record("hello")
    Loaded(weft.folder, COMMAND, "log").check(STORE, 30_050)


@pytest.mark.slow("starts an interpreter that loads all that a message needs")
def test_a_message_to_a_server_that_speaks_as_openai_does(weft: Shell) -> None:
    with serving(chat()) as server:
        stock(weft, server.url, "talk")
        loaded = Loaded(weft.folder, COMMAND, "send", "--session", "talk", "Begin")
    loaded.check(STORE | HTTP | PRICES, 65_610)
    assert not loaded.packages & MODEL_LIBRARIES
    assert loaded.has("weft.runtime.inference.dialects.google", "weft.runtime.inference.dialects.anthropic") == []


@pytest.mark.slow("starts an interpreter that loads all that a conversation needs")
def test_a_conversation_loads_no_library_of_a_vendor(weft: Shell) -> None:
    with serving(chat()) as server:
        stock(weft, server.url, "talk")
        loaded = Loaded(weft.folder, COMMAND, "chat", "talk", typed=b"Begin\n")
    assert len(server.received) == 1
    assert not loaded.packages & MODEL_LIBRARIES


@pytest.mark.slow("starts an interpreter that loads all that a message needs")
def test_a_message_to_anthropic(weft: Shell) -> None:
    with serving(answer(200, MESSAGE)) as server:
        stock(weft, server.url)
        for line in (
            f"provider create claude --type anthropic --base-url {server.url} --key-env THERE_KEY",
            "model create wise --backend claude-x --provider claude --set maxTokens=100",
            "session create talk --model wise",
        ):
            assert weft(*line.split()).code == 0
        loaded = Loaded(weft.folder, COMMAND, "send", "--session", "talk", "Begin")
    loaded.check(STORE | HTTP | PRICES, 65_360)


@pytest.mark.slow("starts a broker and an interpreter")
def test_a_message_beside_a_broker_that_runs(weft: Shell) -> None:
    with serving(chat()) as server:
        stock(weft, server.url, "talk")
        with broker(weft):
            loaded = Loaded(weft.folder, COMMAND, "send", "--session", "talk", "Begin")
    loaded.check(STORE, 34_600)
    heavy = ("weft.programs", "weft.runtime.broker", "weft.runtime.egress", "weft.runtime.sandbox", "weft.runtime.tool")
    assert loaded.has(*heavy, "weft.runtime.inference.dialects", "weft.runtime.inference.inference", "weft.aio") == []
    assert loaded.has("weft.runtime") == ["weft.runtime", "weft.runtime.replies"]
