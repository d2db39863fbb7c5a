"""The sandbox keeps what runs in it from everything else, and is never left out."""

from __future__ import annotations

import asyncio
import os
import socket
from pathlib import Path

import pytest

from tests.runtime.test_processes import running, stays
from tests.sandbox import UNPROTECTED
from weft.kernel.errors import InvalidInput, Unsupported
from weft.runtime.sandbox.bubblewrap import Sandbox, find_sandbox, forbidden_namespaces, run_sandboxed
from weft.runtime.sandbox.processes import DEFAULT_LIMITS, MIB, Ending, Limits, ProcessOutcome


def inside(
    sandbox: Sandbox, script: str, workspace: Path, *words: str, limits: Limits = DEFAULT_LIMITS
) -> ProcessOutcome:
    argv = ["/bin/sh", "-c", script, "sh", *words]
    return asyncio.run(run_sandboxed(sandbox, argv, UNPROTECTED, workspace=workspace, limits=limits))


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    made = tmp_path / "workspace"
    made.mkdir()
    return made


def test_the_workspace_is_where_it_is_and_can_be_written(sandbox: Sandbox, workspace: Path) -> None:
    outcome = inside(sandbox, "pwd && echo hello > made && cat made", workspace)
    assert outcome.stdout.decode() == f"{workspace}\nhello\n"
    assert (workspace / "made").read_text() == "hello\n"


@pytest.mark.parametrize("place", ["/usr/x", "/x", "/bin/x", "/etc/x", "/proc/x", "/home/x"])
def test_nothing_else_can_be_written(sandbox: Sandbox, workspace: Path, place: str) -> None:
    assert not inside(sandbox, f'echo x > "{place}"', workspace, str(workspace)).succeeded


def test_what_is_written_beside_the_workspace_is_gone(sandbox: Sandbox, workspace: Path) -> None:
    mark = f"weft-mark-{os.getpid()}"
    inside(sandbox, "echo x > ../x; rm -rf ../other; echo x > /tmp/$1", workspace, mark)
    assert sorted(path.name for path in workspace.parent.iterdir()) == ["workspace"]
    assert not Path("/tmp", mark).exists()


def test_what_lies_elsewhere_cannot_be_read(sandbox: Sandbox, workspace: Path) -> None:
    secret = workspace.parent / "secret"
    secret.write_text("canary")
    for path in (secret, Path("/etc/passwd"), Path.home(), Path(__file__)):
        assert not inside(sandbox, 'cat "$1" || ls "$1"', workspace, str(path)).succeeded, path


def test_a_link_out_of_the_workspace_leads_nowhere(sandbox: Sandbox, workspace: Path) -> None:
    (workspace.parent / "secret").write_text("canary")
    (workspace / "link").symlink_to("../secret")
    assert b"canary" not in inside(sandbox, "cat link", workspace).stdout


def test_there_is_no_network(sandbox: Sandbox, workspace: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        script = f"exec 3<>/dev/tcp/127.0.0.1/{port}"
        argv = ["/bin/bash", "-c", script]
        assert not asyncio.run(run_sandboxed(sandbox, argv, UNPROTECTED, workspace=workspace)).succeeded
        server.setblocking(False)
        with pytest.raises(BlockingIOError):
            server.accept()


def test_other_processes_cannot_be_seen_or_killed(sandbox: Sandbox, workspace: Path) -> None:
    outcome = inside(sandbox, f"ls /proc | grep -c '^[0-9]' ; kill -0 {os.getpid()}", workspace)
    assert not outcome.succeeded
    assert int(outcome.stdout) < 10


def test_the_environment_holds_only_what_is_named(
    sandbox: Sandbox, workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-canary")
    made = run_sandboxed(sandbox, ["/usr/bin/env"], UNPROTECTED, workspace=workspace, environment={"NAMED": "yes"})
    names = {line.partition("=")[0] for line in asyncio.run(made).stdout.decode().splitlines()}
    assert names - {"PWD", "SHLVL", "_", "OLDPWD"} == {"PATH", "HOME", "NAMED", "GIT_CONFIG_SYSTEM"}


def test_values_of_the_environment_are_in_no_process_list(sandbox: Sandbox, workspace: Path) -> None:
    mark = f"sk-canary-{os.getpid()}"

    async def look() -> list[str]:
        script = ["/bin/sh", "-c", "echo > begun; cat"]
        task = asyncio.create_task(
            run_sandboxed(
                sandbox,
                script,
                UNPROTECTED,
                workspace=workspace,
                environment={"KEY": mark},
                stdin=b"",
                limits=Limits(seconds=30),
            )
        )
        while not (workspace / "begun").exists():
            await asyncio.sleep(0.005)
        found = running(mark)
        await task
        return found

    assert asyncio.run(look()) == []


def test_memory_is_limited(sandbox: Sandbox, workspace: Path) -> None:
    script = "x=x; while :; do x=$x$x; done"
    outcome = inside(sandbox, script, workspace, limits=Limits(memory=64 * MIB))
    assert outcome.ending is Ending.EXITED
    assert outcome.code != 0


def test_what_hides_in_a_session_of_its_own_dies_too(sandbox: Sandbox, workspace: Path) -> None:
    mark = f"weft-mark-{os.getpid()}-hidden"
    script = "setsid sh -c 'echo > begun; sleep 1000; :' $1 & while [ ! -e begun ]; do sleep 0.01; done; sleep 1000"
    outcome = inside(sandbox, script, workspace, mark, limits=Limits(seconds=3))
    assert outcome.ending is Ending.TIMED_OUT
    assert (workspace / "begun").exists()
    assert not stays(mark)


@pytest.mark.parametrize("place", ["/", "/proc", "gone"])
def test_a_workspace_that_cannot_be_one_is_refused(sandbox: Sandbox, tmp_path: Path, place: str) -> None:
    with pytest.raises(InvalidInput, match="workspace"):
        asyncio.run(run_sandboxed(sandbox, ["true"], UNPROTECTED, workspace=tmp_path / place))


@pytest.mark.parametrize(
    ("name", "value", "allowing"),
    [
        ("user/max_user_namespaces", "0\n", "more than 0"),
        ("kernel/unprivileged_userns_clone", "0\n", "1"),
        ("kernel/apparmor_restrict_unprivileged_userns", "1\n", "0, or give bwrap a profile"),
    ],
)
def test_the_setting_that_forbids_user_namespaces_is_named(
    tmp_path: Path, name: str, value: str, allowing: str
) -> None:
    assert forbidden_namespaces(tmp_path) is None
    (tmp_path / name).parent.mkdir()
    (tmp_path / name).write_text("5" if value == "0\n" else "0")
    assert forbidden_namespaces(tmp_path) is None
    (tmp_path / name).write_text(value)
    why, advice = forbidden_namespaces(tmp_path) or ("", "")
    assert why == f"this machine forbids user namespaces, for sysctl {name.replace('/', '.')} is {value.strip()}"
    assert advice.startswith(f"set sysctl {name.replace('/', '.')} to {allowing}")


def test_without_bubblewrap_nothing_is_run(tmp_path: Path) -> None:
    with pytest.raises(Unsupported, match="bubblewrap is not installed"):
        asyncio.run(find_sandbox(str(tmp_path)))


@pytest.mark.parametrize("script", ["#!/bin/sh\necho no user namespaces >&2\nexit 1\n", "#!/no/such/shell\n"])
def test_a_bubblewrap_that_does_not_work_is_none(tmp_path: Path, script: str) -> None:
    (tmp_path / "bwrap").write_text(script)
    (tmp_path / "bwrap").chmod(0o755)
    with pytest.raises(Unsupported, match="there is no sandbox here"):
        asyncio.run(find_sandbox(str(tmp_path)))
