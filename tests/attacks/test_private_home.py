"""A workspace brings its own configuration of tools, as if it were somebody's home folder: no tool reads it."""

from __future__ import annotations

import asyncio
import os
import subprocess
from pathlib import Path

import pytest

from tests.sandbox import UNPROTECTED, machine_sandbox
from weft.runtime.sandbox.command_runner import CommandRunner
from weft.runtime.sandbox.hidden_places import ProtectedPlaces
from weft.runtime.sandbox.processes import ProcessOutcome
from weft.runtime.sandbox.profiles import SandboxProfile, is_beneath, parse_profile
from weft.runtime.sandbox.sandbox_plan import PersonFolders, home_beside

PROFILES = [parse_profile("workspace"), parse_profile("read-only"), parse_profile("network:public.example")]
PLANTED = "#!/bin/sh\necho planted >&2\nexit 1\n"
TRAPS = {
    "git's configuration": (".gitconfig", "[core]\n\tfsmonitor = sh {0}/x.sh; false\n", "git status"),
    "git's other configuration": (".config/git/config", "[core]\n\tfsmonitor = sh {0}/x.sh; false\n", "git status"),
    "an alias of git": (".gitconfig", "[alias]\n\tnewest = !sh {0}/x.sh\n", "git newest"),
    "a login shell's profile": (".profile", "sh {0}/x.sh\n", "sh -l -c true"),
    "bash's profile": (".bash_profile", "sh {0}/x.sh\n", "bash -l -c true"),
    "bash's settings": (".bashrc", "sh {0}/x.sh\n", "bash -i -c true"),
    "a module of the user's Python": (
        ".local/lib/python{1}/site-packages/usercustomize.py",
        "import os; os.system('sh {0}/x.sh')\n",
        "python3 -c pass",
    ),
}


def run(
    workspace: Path, script: str, profile: SandboxProfile = PROFILES[0], person: PersonFolders | None = None
) -> ProcessOutcome:
    runner = CommandRunner(UNPROTECTED, sandbox=machine_sandbox(), person=person or PersonFolders())
    return asyncio.run(runner.run(profile, ["/bin/sh", "-c", script], workspace=workspace))


def system_python() -> str:
    """Whose modules of the user a command in the sandbox could load."""
    words = ["/usr/bin/python3", "-c", "import sys; print(*sys.version_info[:2], sep='.')"]
    try:
        return subprocess.run(words, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "3"


@pytest.mark.parametrize("name", TRAPS)
def test_no_tool_obeys_a_workspace_that_looks_like_a_home_folder(tmp_path: Path, name: str) -> None:
    """`git status` of a cloned repository that tracks `.gitconfig` ran a program of that repository."""
    file, text, command = TRAPS[name]
    trap = tmp_path / file.format("", system_python())
    trap.parent.mkdir(parents=True, exist_ok=True)
    trap.write_text(text.format(tmp_path))
    (tmp_path / "x.sh").write_text(PLANTED)
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    assert b"planted" not in run(tmp_path, command).stderr


@pytest.mark.parametrize("profile", PROFILES, ids=str)
def test_the_home_folder_is_empty_and_what_is_written_there_is_gone(tmp_path: Path, profile: SandboxProfile) -> None:
    script = 'ls -A "$HOME"; echo $HOME; echo "[alias]" > ~/.gitconfig && cat ~/.gitconfig'
    for _ in range(2):
        outcome = run(tmp_path, script, profile)
        assert outcome.stdout == b"/home/agent\n[alias]\n", outcome
    assert list(tmp_path.iterdir()) == []


def test_caches_of_packages_last_for_their_workspace_alone(tmp_path: Path) -> None:
    first, second, caches = tmp_path / "first", tmp_path / "second", tmp_path / "caches"
    first.mkdir()
    second.mkdir()
    person = PersonFolders(caches=caches)
    run(first, "echo kept > ~/.cache/a; echo kept > ~/.npm/b; echo gone > ~/.npmrc", person=person)
    assert (
        run(first, "cat ~/.cache/a ~/.npm/b ~/.npmrc; ls -A ~", person=person).stdout == b"kept\nkept\n.cache\n.npm\n"
    )
    assert run(second, "cat ~/.cache/* ~/.npm/*", person=person).stdout == b""
    assert run(first, "cat ~/.cache/* ~/.npm/*", PROFILES[1], person).stdout == b""
    first.rename(tmp_path / "moved")
    first.mkdir()
    assert run(first, "cat ~/.cache/* ~/.npm/*", person=person).stdout == b""
    assert os.stat(next(caches.iterdir())).st_mode & 0o077 == 0


def test_caches_are_not_seen_in_a_workspace_that_contains_them(tmp_path: Path) -> None:
    """Nor is another workspace's cache: who puts programs there has them run by others."""
    other = tmp_path / "other"
    other.mkdir()
    person = PersonFolders(caches=tmp_path / "caches")
    run(other, "echo private > ~/.cache/a", person=person)
    protected = ProtectedPlaces(ledgers=(), folders=(tmp_path / "caches",))
    runner = CommandRunner(protected, sandbox=machine_sandbox(), person=person)
    script = "cat caches/*/*/*; echo planted > ~/.cache/b; cat ~/.cache/*"
    outcome = asyncio.run(runner.run(PROFILES[0], ["/bin/sh", "-c", script], workspace=tmp_path))
    assert outcome.stdout == b"planted\n"


@pytest.mark.parametrize("workspace", ["/home/agent", "/home/agent/project", "/home"])
def test_the_home_folder_is_never_in_the_workspace_nor_around_it(workspace: str) -> None:
    home = home_beside(workspace)
    assert not is_beneath(home, workspace)
    assert not is_beneath(workspace, home)
    assert home_beside("/home/agent2") == home_beside(None) == "/home/agent"


def test_a_command_without_a_sandbox_is_not_at_home_in_the_workspace(tmp_path: Path) -> None:
    profile, home = parse_profile("none", granted_by="human:ada"), tmp_path / "home"
    assert run(tmp_path, "echo $HOME", profile, PersonFolders(home=home)).stdout == f"{home}\n".encode()
    assert run(tmp_path, "echo $HOME", profile).stdout == b"\n"
