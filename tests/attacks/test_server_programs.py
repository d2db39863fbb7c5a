"""An MCP server whose program lies in the workspace is started with its keys, hosts or without a sandbox, and a command
that prints a key outside of it, as are pagers, ssh and git: nothing that an agent does there unasked changes what is
started."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from tests.attacks.test_folders_for_work import _machine, begin, calling, folder, project, running, weft
from tests.surfaces.shell import Shell, on_terminal
from weft.runtime.sandbox.own_git import find_git
from weft.runtime.tools.mcp_server_settings import CommandServer, McpServer, program_places
from weft.surfaces.cli.credentials import user_keyring
from weft.surfaces.cli.user_files import outside_of_work

__all__ = ["_machine", "folder", "project", "weft"]
ON_DISK = True  # no sandbox takes a workspace in memory
FILES = (
    "server.py",
    "tools/other.js",
    "tools/beside.js",
    "env/pyvenv.cfg",
    "env/bin/serve",
    "env/lib/module.py",
    "installed/a/module.py",
    "data/rows.json",
    "docs/page.md",
)
SERVERS: tuple[tuple[str, ...], ...] = (
    ("first", "--no-sandbox", "--", "python3", "{folder}/server.py", "{folder}/data/rows.json", "{folder}/docs"),
    ("second", "--variable", "KEY", "--folder", "{folder}", "--", "node", "tools/other.js"),
    ("third", "--profile", "network:example.org", "--", "{folder}/env/bin/serve"),
    ("fourth", "--readable", "{folder}/installed", "--", "/usr/bin/serve"),
)
HELD = FILES[:7]
COMMANDS = (
    *(f"echo evil >> {path}" for path in HELD),
    *(f"rm -f {path}" for path in HELD),
    "echo evil > tools/new.js",
    "echo evil > env/lib/evil.pth",
    "mv env aside && mkdir -p env/bin && echo evil > env/bin/serve",
    "mv tools aside",
    "echo evil > other && mv other server.py",
    "ln -sf data/rows.json server.py",
)


@pytest.fixture
def served(weft: Shell, project: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("KEY", "canary-of-the-server")
    for path in FILES:
        (project / path).parent.mkdir(parents=True, exist_ok=True)
        (project / path).write_text("good\n")
    for words in SERVERS:
        name, *options = (word.format(folder=project) for word in words)
        added = weft("mcp", "add", name, "--no-start", "--yes", *options)
        assert added.code == 0, added.err
    return project


def contents(folder: Path) -> dict[str, str]:
    return {path: (folder / path).read_text() for path in FILES}


def test_no_command_changes_what_a_server_is_started_from(weft: Shell, served: Path) -> None:
    before = contents(served)
    assert begin(weft, running("; ".join(f"({command})" for command in COMMANDS))) == []
    assert contents(served) == before
    assert not (served / "tools" / "new.js").exists()
    for command in COMMANDS:
        assert weft("sandbox", "run", "--", "sh", "-c", command).code != 0, command
        assert contents(served) == before, command


@pytest.mark.parametrize("path", ["server.py", "tools/beside.js", "env/lib/evil.pth", "installed/a/module.py"])
def test_a_file_tool_asks_before_it_changes_that(weft: Shell, served: Path, path: str) -> None:
    before = contents(served)
    (asked,) = begin(weft, calling("write", path=path, content="evil\n"))
    assert f"{path} is a part of a program that is started with more" in (asked.rationale or "")
    assert contents(served) == before


def test_what_a_server_works_on_is_written(weft: Shell, served: Path) -> None:
    assert begin(weft, running("echo more >> data/rows.json && echo more >> docs/page.md && echo new > new.txt")) == []
    assert (served / "data" / "rows.json").read_text() == (served / "docs" / "page.md").read_text() == "good\nmore\n"
    assert (served / "new.txt").exists()


def test_a_server_of_packages_is_its_folder_of_packages(tmp_path: Path) -> None:
    place = tmp_path / "web" / "node_modules" / "server" / "dist" / "index.mjs"
    place.parent.mkdir(parents=True)
    place.write_text("")
    server = McpServer(name="a", transport=CommandServer(command="node", args=(str(place), "--port=1", "missing")))
    assert program_places(server) == (str(place), str(place.parent), str(tmp_path / "web" / "node_modules"))


def test_a_command_that_prints_a_key_is_none_that_an_agent_planted(
    weft: Shell, project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mark, own = tmp_path / "planted", tmp_path / "bin"
    own.mkdir()
    (own / "get-key").write_text("#!/bin/sh\necho real-key-of-the-person\n")
    (own / "get-key").chmod(0o755)
    (project / "keys.sh").write_text("#!/bin/sh\necho another-key\n")
    (project / "keys.sh").chmod(0o755)
    monkeypatch.setenv("PATH", f"{project / 'env' / 'bin'}:env/bin:{own}:{os.environ['PATH']}")
    assert weft("credential", "add", "k", "--cmd", "get-key", "--origin", "https://example.org").code == 0
    assert (
        weft("credential", "add", "l", "--cmd", str(project / "keys.sh"), "--origin", "https://example.com").code == 0
    )
    planted = f"#!/bin/sh\ntouch {mark}\necho planted-key\n"
    script = f"mkdir -p env/bin && printf '{planted}' > env/bin/get-key && chmod +x env/bin/get-key"
    script += "; cp env/bin/get-key keys.sh"
    assert begin(weft, running(script)) == []
    assert (project / "env" / "bin" / "get-key").exists()
    keyring = user_keyring()
    keys = [asyncio.run(keyring.read(keyring.credential(name))) for name in "kl"]
    assert [key.reveal() for key in keys] == ["real-key-of-the-person", "another-key"]
    assert not mark.exists()


@pytest.fixture
def planted(weft: Shell, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What exists once a program ran that lies in an activated environment of a folder for work."""
    mark, programs = tmp_path / "planted", folder / "env" / "bin"
    programs.mkdir(parents=True)
    for name in ("less", "ssh", "git", "serve"):
        (programs / name).write_text(f"#!/bin/sh\n: > {mark}\necho less 600\n/bin/cat\n")
        (programs / name).chmod(0o755)
    assert weft("trust", ".", "--work").code == 0
    monkeypatch.setenv("PATH", f"{programs}:{tmp_path / 'empty'}")
    return mark


@pytest.mark.parametrize("words", [("log",), ("read", "main")])
def test_no_pager_is_started_that_an_agent_planted(
    weft: Shell, folder: Path, planted: Path, words: tuple[str, ...]
) -> None:
    for number in range(3):
        weft.record(f"question {number}", response="line\n" * 40)
    code, _ = on_terminal(folder, *words, PAGER="less", LINES="5")
    assert code == 0
    assert not planted.exists()


def test_no_ssh_is_started_that_an_agent_planted(weft: Shell, planted: Path) -> None:
    assert weft("pull", "ssh://ledgers.example/a.db").code != 0
    assert not planted.exists()


def test_no_server_is_started_by_a_name_that_an_agent_planted(weft: Shell, planted: Path) -> None:
    assert weft("mcp", "add", "some", "--no-sandbox", "--yes", "--", "serve").code != 0
    assert not planted.exists()


def test_no_git_is_taken_from_where_agents_work(planted: Path) -> None:
    assert find_git(searched="/nonexistent", path=outside_of_work(f"{os.environ['PATH']}:/usr/bin")) == "/usr/bin/git"
    assert not planted.exists()
