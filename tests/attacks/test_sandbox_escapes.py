"""A hundred and more scripts try to leave the sandbox: nothing is read, reached, changed or left behind."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.attacks.escapes import DRIVER, ESCAPES, PRELUDE
from tests.runtime.test_processes import stays
from tests.sandbox import UNPROTECTED, machine_sandbox
from weft.runtime.sandbox.command_runner import CommandRunner
from weft.runtime.sandbox.processes import Limits
from weft.runtime.sandbox.profiles import parse_profile
from weft.runtime.sandbox.system_calls import ARCHITECTURES

SECRET = "canary-7c1f0be2"
PROFILES = ("workspace", "read-only", "network:public.example")
HARMLESS = (
    "read the file",
    "read it by a relative path",
    "read it from the own root",
    "read it by a link of the workspace",
    "read the ledger of the workspace",
    "climb above the root",
    "connect to this machine",
    "look for a process outside",
    "connect to a socket by its path",
    "connect to an abstract socket",
    "read the users",
    "hold a process outside",
)
"""These change nothing where there is no sandbox."""
BOOT = Path("/proc/sys/kernel/random/boot_id")


class Outside:
    """What lies beside the sandbox: a secret, a ledger, somebody who listens, and this process."""

    def __init__(self, folder: Path, profile: str, stack: ExitStack) -> None:
        self.folder, self.workspace = folder / "outside", folder / "workspace"
        for path in (self.folder, self.workspace, self.workspace / ".weft"):
            path.mkdir()
        self.secret_file = self.folder / "canary"
        for path in (self.secret_file, self.workspace / ".weft" / "secret"):
            path.write_text(SECRET)
        (self.workspace / "planted-link").symlink_to(self.secret_file)
        (self.workspace / "planted-folder").symlink_to(self.folder)
        unix = str(folder / "socket")
        self.listeners = [socket.create_server(("0.0.0.0", 0))]
        for address in (unix, "\0" + unix):
            listener = socket.socket(socket.AF_UNIX)
            listener.bind(address)
            listener.listen()
            self.listeners.append(listener)
        for listener in self.listeners:
            stack.enter_context(listener)
            listener.setblocking(False)
        architecture = ARCHITECTURES[os.uname().machine]
        self.given = {
            "secret_file": str(self.secret_file),
            "outside": str(self.folder),
            "port": self.listeners[0].getsockname()[1],
            "unix": unix,
            "address": own_address(),
            "pid": os.getpid(),
            "mark": f"weft-mark-{os.getpid()}-{profile}",
            "numbers": {**architecture.refused, **architecture.absent, **architecture.checked},
            "escapes": ESCAPES,
        }

    def contacts(self) -> Iterator[object]:
        for listener in self.listeners:
            try:
                connection, peer = listener.accept()
            except BlockingIOError:
                continue
            connection.close()
            yield peer


def own_address() -> str:
    """The address by which this machine is reached; nothing is sent to learn it."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
        except OSError:
            return "127.0.0.2"
        return str(probe.getsockname()[0])


def run_escapes(outside: Outside, profile: str) -> dict[str, Any]:
    runner = CommandRunner(UNPROTECTED, sandbox=machine_sandbox(), readable=[Path(sys.base_prefix)])
    python = str(Path(sys.executable).resolve())
    argv = [python, "-I", "-S", "-B", "-c", PRELUDE + DRIVER, json.dumps(outside.given)]
    limits = Limits(seconds=120, processes=512)
    outcome = asyncio.run(runner.run(parse_profile(profile), argv, workspace=outside.workspace, limits=limits))
    assert outcome.succeeded, outcome
    answers: dict[str, Any] = json.loads(outcome.stdout)
    return answers


ALL = dict(zip(PROFILES, [list(ESCAPES)] * len(PROFILES), strict=True))
SHARED = {profile: list(ESCAPES)[place :: len(PROFILES)] for place, profile in enumerate(PROFILES)}
"""Each script under one of the profiles."""
CASES = [
    *(pytest.param(profile, names, id=profile) for profile, names in SHARED.items()),
    *(pytest.param(profile, names, id=f"all-{profile}", marks=pytest.mark.prove) for profile, names in ALL.items()),
]


def test_there_are_so_many_escapes() -> None:
    assert len(ESCAPES) >= 100
    assert len(set(ESCAPES.values())) == len(ESCAPES)
    assert sorted(name for names in SHARED.values() for name in names) == sorted(ESCAPES)


@pytest.mark.parametrize(("profile", "names"), CASES)
def test_no_script_leaves_the_sandbox(
    tmp_path: Path, profile: str, names: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Many in one sandbox, each in a process of its own; what each printed says what it got."""
    monkeypatch.setenv("ANTHROPIC_API_KEY", SECRET)
    with ExitStack() as stack:
        outside = Outside(tmp_path, profile, stack)
        outside.given["escapes"] = {name: ESCAPES[name] for name in names}
        descriptor = os.open(outside.secret_file, os.O_RDONLY)
        stack.callback(os.close, descriptor)
        os.set_inheritable(descriptor, True)
        modes = {path: os.stat(path).st_mode for path in ("/dev/null", "/usr/bin", str(outside.secret_file))}
        answers = run_escapes(outside, profile)
        assert {name: text for name, text in answers.items() if "ESCAPED" in text} == {}
        assert {name: text for name, text in answers.items() if SECRET in text} == {}
        assert BOOT.read_text().strip() not in json.dumps(answers)
        assert list(outside.contacts()) == []
        assert not stays(outside.given["mark"])
        assert {path: os.stat(path).st_mode for path in modes} == modes
        assert sorted(path.name for path in outside.folder.iterdir()) == ["canary"]
        assert sorted(path.name for path in tmp_path.iterdir()) == ["outside", "socket", "workspace"]
        assert outside.secret_file.read_text() == SECRET
    assert set(answers) == set(names)


def test_the_scripts_find_what_is_there_without_a_sandbox(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some of them, that change nothing: else their silence in the sandbox would say nothing."""
    monkeypatch.setenv("ANTHROPIC_API_KEY", SECRET)
    with ExitStack() as stack:
        outside = Outside(tmp_path, "none", stack)
        outside.given["escapes"] = {name: ESCAPES[name] for name in HARMLESS}
        profile = parse_profile("none", granted_by="human:ada")
        argv = [sys.executable, "-I", "-S", "-B", "-c", PRELUDE + DRIVER, json.dumps(outside.given)]
        outcome = asyncio.run(CommandRunner(UNPROTECTED).run(profile, argv, workspace=outside.workspace))
        answers = json.loads(outcome.stdout)
        assert [name for name, text in answers.items() if "ESCAPED" not in text and SECRET not in text] == []
        assert len(list(outside.contacts())) == 3
