"""An agent edits, runs the tests and commits in each kind of place in which people start."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import weft
from tests.runtime.broker.crash_driver import Doom
from tests.runtime.homes import link, program
from tests.runtime.sandbox.repositories import PERSON, make_repository, person_git
from tests.runtime.scripted import Script, chat_saying, scripted
from tests.runtime.tools.test_coding_session import work
from tests.sandbox import machine_sandbox
from weft.ledger.model import ToolCall
from weft.programs import Programs
from weft.runtime.sandbox.command_runner import CommandRunner
from weft.runtime.sandbox.hidden_places import ProtectedPlaces
from weft.runtime.sandbox.sandbox_plan import PersonFolders

CALC = "add() { echo $(($1 - $2)); }\n"
TEST = """#!/bin/sh
. ./calc.sh
[ "$(add 2 3)" = 5 ] && echo passed
"""
SHELL_FILES = {"calc.sh": CALC, "test.sh": TEST}
COMMIT = "git add -A && git commit -qm 'Add, not subtract' && git status --short"


class Place(NamedTuple):
    """A workspace, with what is asked of the agent there."""

    workspace: Path
    test: str = "sh test.sh"
    file: str = "calc.sh"
    commit: str = COMMIT
    shown: str = "passed\n"


def initialised(top: Path, home: Path) -> Place:
    """A folder in which nothing was but the ledger."""
    folder = top / "new"
    folder.mkdir()
    for path, text in SHELL_FILES.items():
        (folder / path).write_text(text)
    return Place(folder, commit=f"git init -q -b main && {COMMIT}")


def repository(top: Path, home: Path) -> Place:
    return Place(make_repository(top / "repository", files=SHELL_FILES))


def second_tree(top: Path, home: Path) -> Place:
    person_git(make_repository(top / "repository", files=SHELL_FILES), "worktree", "add", "-q", str(top / "tree"))
    return Place(top / "tree")


def subfolder(top: Path, home: Path) -> Place:
    files = {"beside": "not the agent's\n", **{f"deep/part/{path}": text for path, text in SHELL_FILES.items()}}
    return Place(make_repository(top / "repository", files=files) / "deep/part")


def with_submodules(top: Path, home: Path) -> Place:
    """The agent works in the submodule, and commits there and in the repository around it."""
    library = make_repository(top / "library", files=SHELL_FILES)
    folder = make_repository(top / "repository", files={"test.sh": "cd library && exec sh test.sh\n"})
    person_git(folder, "submodule", "--quiet", "add", str(library), "library")
    person_git(folder, "commit", "-qm", "with a library")
    return Place(folder, file="library/calc.sh", commit=f"(cd library && {COMMIT}) && {COMMIT}")


def virtual_environment(top: Path, home: Path) -> Place:
    """Its interpreter lies in the home folder, where pyenv puts it. It is the machine's own."""
    python = Path("/usr/bin/python3").resolve()
    library = Path("/usr/lib") / python.name
    if not (library / "os.py").exists():
        pytest.skip("there is no Python of the system")
    version = home / ".pyenv/versions" / python.name.removeprefix("python")
    (version / "bin").mkdir(parents=True)
    shutil.copy2(python, version / "bin" / python.name)
    link(version / "lib" / python.name, library)
    files = {
        "calc.py": "def add(one, other):\n    return one - other\n",
        "test_calc.py": "import sys, unittest, calc\n\n\nclass AddTest(unittest.TestCase):\n    def test_add(self):\n"
        "        print(sys.executable)\n        self.assertEqual(calc.add(2, 3), 5)\n",
        ".gitignore": ".venv\n__pycache__\n",
    }
    folder = make_repository(top / "repository", files=files)
    link(folder / ".venv/bin/python", version / "bin" / python.name)
    (folder / ".venv/pyvenv.cfg").write_text(f"home = {version / 'bin'}\nversion = {version.name}\n")
    test = ".venv/bin/python -B -m unittest -b test_calc && .venv/bin/python -c 'import sys; print(sys.base_prefix)'"
    return Place(folder, test=test, file="calc.py", shown=f"{version}\n")


def node_version_manager(top: Path, home: Path) -> Place:
    """Node lies in the home folder, where nvm puts it. It is the machine's own, as is its npm."""
    node, npm = shutil.which("node"), Path("/usr/lib/node_modules/npm")
    if node is None or not npm.is_dir():
        pytest.skip("there is no Node of the system")
    version = home / ".nvm/versions/node/v20.20.2"
    (version / "bin").mkdir(parents=True)
    shutil.copy2(node, version / "bin/node")
    link(version / "lib/node_modules/npm", npm)
    link(version / "bin/npm", "../lib/node_modules/npm/bin/npm-cli.js")
    program(home / ".nvm/alias/default", "v20.20.2\n")
    files = {
        "calc.js": "exports.add = (one, other) => one - other;\n",
        "test.js": "require('assert').equal(require('./calc').add(2, 3), 5); console.log(process.execPath);\n",
        "package.json": json.dumps({"name": "calc", "version": "1.0.0", "scripts": {"test": "node test.js"}}),
        ".nvmrc": "20\n",
    }
    folder = make_repository(top / "repository", files=files)
    return Place(folder, test="npm test --silent", file="calc.js", shown=f"{version / 'bin/node'}\n")


PLACES: Sequence[Callable[[Path, Path], Place]] = (
    initialised, repository, second_tree, subfolder, with_submodules, virtual_environment, node_version_manager,
)  # fmt: skip


def calls_in(place: Place) -> list[tuple[str, dict[str, Any]]]:
    return [
        ("read", {"path": place.file}),
        ("shell", {"cmd": place.test}),
        ("edit", {"path": place.file, "old_text": " - ", "new_text": " + "}),
        ("shell", {"cmd": place.test}),
        ("shell", {"cmd": place.commit}),
    ]


def answering(calls: Sequence[tuple[str, dict[str, Any]]]) -> Callable[[Any], Script]:
    """A model that wants these calls one after the other."""

    def next_reply(body: Any) -> Script:
        number = sum(message["role"] == "tool" for message in body["messages"])
        if number == len(calls):
            return chat_saying({"content": "Done"})
        name, arguments = calls[number]
        function = {"name": name, "arguments": json.dumps(arguments)}
        uses = [{"id": f"call-{number}", "type": "function", "function": function}]
        return chat_saying({"content": None, "tool_calls": uses}, "tool_calls")

    return next_reply


async def session_in(place: Place, home: Path, ledger_file: Path) -> list[ToolCall]:
    runner = CommandRunner(
        ProtectedPlaces(ledgers=(ledger_file,), folders=()), person=PersonFolders(home=home, identity=PERSON)
    )
    async with scripted([]) as server:
        server.script_of = answering(calls_in(place))
        with weft.open(ledger_file) as ledger:
            Programs(ledger).create("agent", "coder", {"toolset": "worker"})
            message = await work(ledger, server.url, place.workspace, Doom(), runner=runner)
            turn = ledger.inbox.get(message).turn
            assert turn is not None
            return list(ledger.tool_calls(turn))


@pytest.mark.slow("serves a model, and starts an interpreter in some")
@pytest.mark.parametrize("made", PLACES, ids=lambda made: made.__name__)
def test_an_agent_edits_runs_the_tests_and_commits(made: Callable[[Path, Path], Place], tmp_path: Path) -> None:
    machine_sandbox()
    home = tmp_path / "home"
    home.mkdir()
    place = made(tmp_path, home)
    ledger_file = place.workspace / ".weft/ledger.db" if made is initialised else tmp_path / "ledger.db"
    ledger_file.parent.mkdir(exist_ok=True)
    if made is initialised:
        (ledger_file.parent / ".gitignore").write_text("*\n")  # as `weft init` does
    calls = asyncio.run(session_in(place, home, ledger_file))
    assert [call.outcome for call in calls] == ["ok"] * len(calls), [call.error for call in calls]
    failed, passed, committed = [call.result for call in calls if call.name == "shell"]
    assert failed["rc"] != 0
    assert passed["rc"] == 0, passed
    assert passed["stdout"].endswith(place.shown)
    assert (committed["rc"], committed["stdout"]) == (0, ""), committed
    assert person_git(place.workspace, "log", "-1", "--format=%an <%ae> %s") == (
        f"{PERSON.name} <{PERSON.email}> Add, not subtract"
    )
    assert person_git(place.workspace, "status", "--porcelain") == ""
    folder, file = os.path.split(place.workspace / place.file)
    assert " + " in person_git(Path(folder), "show", f"HEAD:./{file}")
