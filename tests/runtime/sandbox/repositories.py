"""Repositories that a person has, and commands of an agent in them."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
from pathlib import Path

from tests.sandbox import UNPROTECTED, machine_sandbox
from weft.runtime.sandbox.command_runner import CommandRunner
from weft.runtime.sandbox.git_settings import GitIdentity
from weft.runtime.sandbox.processes import ProcessOutcome
from weft.runtime.sandbox.profiles import SandboxProfile
from weft.runtime.sandbox.sandbox_plan import PersonFolders

PERSON = GitIdentity("Ada Person", "ada@example.org")
_OUTSIDE = {"PATH": os.environ["PATH"], "GIT_CONFIG_NOSYSTEM": "1", "HOME": "/nonexistent"}
_SETTINGS = ("-c", "user.name=Ada", "-c", "user.email=ada@example.org", "-c", "protocol.file.allow=always")


def person_git(folder: Path, *words: str, is_plain: bool = False) -> str:
    """What the person's git answers, outside of the sandbox. Plain: with nothing but the repository's configuration."""
    command = ["git", *(() if is_plain else _SETTINGS), *words]
    return subprocess.run(command, cwd=folder, env=_OUTSIDE, check=True, capture_output=True, text=True).stdout.strip()


def make_repository(folder: Path, *, files: dict[str, str] | None = None) -> Path:
    """One with a commit of these files, or without any."""
    folder.mkdir(parents=True, exist_ok=True)
    person_git(folder, "init", "-q", "-b", "main")
    if files:
        for path, text in files.items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_text(text)
        person_git(folder, "add", "-A")
        person_git(folder, "commit", "-qm", "first")
    return folder


def bind_at(listener: socket.socket, place: Path) -> None:
    """Binds a socket of the person there, however long the path is: a name of a socket has room for 107 bytes."""
    if len(os.fsencode(place)) <= 107:
        listener.bind(str(place))
        return
    folder = os.open(place.parent, os.O_PATH)
    try:
        listener.bind(f"/proc/self/fd/{folder}/{place.name}")
    finally:
        os.close(folder)


def agent_runs(
    workspace: Path,
    script: str,
    *,
    profile: SandboxProfile | None = None,
    identity: GitIdentity | None = PERSON,
    caches: Path | None = None,
    home: Path | None = None,
    commands: Path | None = None,
) -> ProcessOutcome:
    """A script of an agent in the sandbox, with this workspace. `home` is the person's, with what their git reads,
    `commands` is where commands that run are noted."""
    settings = () if home is None else (home / ".config/git/config", home / ".gitconfig")
    person = PersonFolders(identity=identity, caches=caches, home=home, git_settings=settings, command_notes=commands)
    runner = CommandRunner(UNPROTECTED, sandbox=machine_sandbox(), person=person)
    words = ["sh", "-c", script]
    return asyncio.run(runner.run(profile or SandboxProfile(), words, workspace=workspace))


def agent_does(
    workspace: Path, script: str, *, identity: GitIdentity | None = PERSON, caches: Path | None = None
) -> str:
    """What a script answers that goes well."""
    outcome = agent_runs(workspace, f"set -e\n{script}", identity=identity, caches=caches)
    assert outcome.succeeded, outcome.stderr.decode() + outcome.stdout.decode()
    return outcome.stdout.decode().strip()
