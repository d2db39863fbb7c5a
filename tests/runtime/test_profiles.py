"""Profiles of the sandbox: read, printed, narrowed, and chosen by the permissions of a turn."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.runtime.test_processes import stays
from tests.sandbox import UNPROTECTED
from weft.kernel.authority import SandboxFiles
from weft.kernel.errors import InvalidInput, Unsupported
from weft.runtime.sandbox import hidden_places
from weft.runtime.sandbox.bubblewrap import Sandbox
from weft.runtime.sandbox.command_runner import CommandRunner
from weft.runtime.sandbox.hidden_places import ProtectedPlaces, SecretFiles, search_workspace
from weft.runtime.sandbox.processes import MIB, Ending, Limits, ProcessOutcome
from weft.runtime.sandbox.profiles import READ_ONLY_PROFILE, WORKSPACE_PROFILE, SandboxProfile, parse_profile
from weft.runtime.tool.toolsets import GrantedPermissions, LimitingLayer, PermissionLimits, SandboxLimits, limits_of

FORMS = (
    "workspace", "read-only", "network:pypi.org", "network:a.example,b.example:8443", "read-only+network:pypi.org",
    "network:*", "network:[2606:4700::1111]", "network:1.1.1.1:443",
)  # fmt: skip


@pytest.mark.parametrize("text", FORMS)
def test_a_profile_is_printed_as_it_is_read(text: str) -> None:
    assert str(parse_profile(text)) == text


@pytest.mark.parametrize(
    "text",
    [
        "", "everything", "Workspace", "network:", "network", "network:,", "network:a b", "network:http://a",
        "read-only+", "read-only+workspace", "workspace+network:a", "read-onlyx", "network:a:0", "network:a:65536",
        "network:a:b", "network:127.0.0.1", "network:localhost", "network:169.254.169.254", "network:10.0.0.1",
        "network:[::1]", "network:[::ffff:127.0.0.1]", "network:2130706433", "network:0x7f000001", "network:127.1",
        "network:0177.0.0.1", "network:[fe80::1]", "network:*.example", "network:a/b", "network:a@b",
        "network:ä.example", "network:a..b",
    ],
)  # fmt: skip
def test_what_is_no_profile_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput):
        parse_profile(text)


def test_no_sandbox_at_all_needs_the_person_who_granted_it() -> None:
    for nobody in (None, "", " "):
        with pytest.raises(InvalidInput, match="none"):
            parse_profile("none", granted_by=nobody)
        with pytest.raises(InvalidInput, match="none"):
            SandboxProfile(files=SandboxFiles.EVERYTHING, granted_by=nobody)
    profile = parse_profile("none", granted_by="human:ada")
    assert (str(profile), profile.granted_by, profile.is_unconfined) == ("none", "human:ada", True)


PROFILES = st.one_of(
    st.just(parse_profile("none", granted_by="human:ada")),
    st.builds(
        lambda files, hosts: parse_profile(
            "+".join(filter(None, (files, "network:" + ",".join(hosts)))) if hosts else files or "workspace"
        ),
        st.sampled_from(["", "read-only"]),
        st.lists(st.sampled_from(["a.example", "b.example", "b.example:8443", "*", "*:22", "1.1.1.1"]), max_size=3),
    ),
)
ASKED = [(host, port) for host in ("a.example", "b.example", "c.example") for port in (22, 80, 443, 8443)]


@given(PROFILES, PROFILES)
def test_two_profiles_leave_what_both_leave(one: SandboxProfile, other: SandboxProfile) -> None:
    both = one.narrowed(other)
    assert both == other.narrowed(one)
    for host, port in ASKED:
        assert both.allows_endpoint(host, port) == (
            one.allows_endpoint(host, port) and other.allows_endpoint(host, port)
        )
    assert both.is_unconfined == (one.is_unconfined and other.is_unconfined)
    assert both.is_read_only == (one.is_read_only or other.is_read_only)
    assert one.narrowed(one) == one


@pytest.mark.parametrize(
    ("limits", "profile"),
    [
        (SandboxLimits(), "workspace"),
        (SandboxLimits(files=SandboxFiles.READ_ONLY), "read-only"),
        (SandboxLimits(network=False), "workspace"),
        (SandboxLimits(network=True), "network:*"),
        (SandboxLimits(hosts=("pypi.org",)), "network:pypi.org"),
        (SandboxLimits(hosts=("pypi.org",), network=True), "network:pypi.org"),
        (SandboxLimits(hosts=("pypi.org",), network=False), "workspace"),
        (SandboxLimits(hosts=(), network=True), "workspace"),
        (SandboxLimits(files=SandboxFiles.READ_ONLY, hosts=("a", "b:1")), "read-only+network:a,b:1"),
        (SandboxLimits(files=SandboxFiles.EVERYTHING, network=False), "workspace"),
        (SandboxLimits(files=SandboxFiles.EVERYTHING, hosts=("a",)), "network:a"),
    ],
)
def test_permissions_choose_one_profile(limits: SandboxLimits, profile: str) -> None:
    assert str(limits.profile()) == profile


def test_permissions_that_limit_nothing_need_a_person_too() -> None:
    limits = SandboxLimits(files=SandboxFiles.EVERYTHING)
    with pytest.raises(InvalidInput, match="none"):
        limits.profile()
    assert str(limits.profile(granted_by="human:ada")) == "none"


def test_layers_leave_the_hosts_that_all_of_them_name() -> None:
    layers = [{"hosts": ["a.example", "b.example"]}, {"network": True}, {"hosts": ["b.example:443", "c.example"]}]
    granted = GrantedPermissions(
        tuple(LimitingLayer("session", str(i), limits_of({"sandbox": layer})) for i, layer in enumerate(layers))
    )
    assert granted.sandbox.hosts == ("b.example:443",)
    assert granted.record()["sandbox"] == {"network": True, "hosts": ("b.example:443",)}
    closed = GrantedPermissions(
        (*granted.layers, LimitingLayer("m", "", PermissionLimits(sandbox=SandboxLimits(network=False))))
    )
    assert str(closed.sandbox.profile()) == "workspace"


def run(
    sandbox: Sandbox, profile: SandboxProfile, script: str, workspace: Path, *words: str, seconds: float = 30
) -> ProcessOutcome:
    runner = CommandRunner(UNPROTECTED, sandbox=sandbox)
    argv = ["/bin/sh", "-c", script, "sh", *words]
    return asyncio.run(runner.run(profile, argv, workspace=workspace, limits=Limits(seconds=seconds)))


def test_a_read_only_workspace_cannot_be_written(sandbox: Sandbox, tmp_path: Path) -> None:
    (tmp_path / "kept").write_text("kept")
    (tmp_path / ".weft").mkdir()
    (tmp_path / ".weft" / "secret").write_text("canary")
    attempts = (
        ": > kept",
        ": > new",
        "rm kept",
        "chmod 0 kept",
        "mv kept x",
        "mkdir d",
        "ln -s a b",
        "cat .weft/secret",
    )
    for attempt in attempts:
        assert not run(sandbox, READ_ONLY_PROFILE, attempt, tmp_path).succeeded, attempt
    assert sorted(path.name for path in tmp_path.iterdir()) == [".weft", "kept"]
    outcome = run(sandbox, READ_ONLY_PROFILE, "cat kept; echo $HOME; echo x > $HOME/x && cat ~/x", tmp_path)
    assert outcome.stdout == b"kept/home/agent\nx\n"


@pytest.mark.parametrize("profile", [WORKSPACE_PROFILE, READ_ONLY_PROFILE])
def test_what_is_withheld_is_neither_read_nor_changed(
    sandbox: Sandbox, tmp_path: Path, profile: SandboxProfile
) -> None:
    folder, ledger = tmp_path / "private", tmp_path / "deep" / "ledger.db"
    for path in (folder / "secret", ledger, ledger.with_name("ledger.db-wal")):
        path.parent.mkdir(exist_ok=True)
        path.write_text("canary")
    (tmp_path / "link").symlink_to("deep")
    script = (
        "cat private/secret deep/* link/*; ls private; echo x > private/new; echo x > deep/ledger.db; rm deep/ledger.db"
    )
    protected = ProtectedPlaces(ledgers=(tmp_path / "link" / "ledger.db",), folders=(folder, tmp_path / "gone"))
    runner = CommandRunner(protected, sandbox=sandbox)
    outcome = asyncio.run(runner.run(profile, ["/bin/sh", "-c", script], workspace=tmp_path))
    assert outcome.stdout == b""
    assert [path.name for path in folder.iterdir()] == ["secret"]
    files = [path for path in (folder / "secret", *ledger.parent.iterdir()) if path.is_file()]
    assert {path.read_text() for path in files} - {""} == {"canary"}  # empty: names that are taken


@pytest.mark.parametrize("profile", [WORKSPACE_PROFILE, READ_ONLY_PROFILE])
def test_ledgers_of_projects_in_the_workspace_are_not_seen(
    sandbox: Sandbox, tmp_path: Path, profile: SandboxProfile
) -> None:
    ledgers = [tmp_path / place / ".weft" for place in (".", "one", "one/two/three")]
    for ledger in ledgers:
        ledger.mkdir(parents=True)
        (ledger / "secret").write_text("canary")
    (tmp_path / "one" / "plain.txt").write_text("plain\n")
    script = "find . -name secret; cat */.weft/* one/two/three/.weft/secret one/plain.txt; echo x > one/.weft/new"
    assert run(sandbox, profile, script, tmp_path).stdout == b"plain\n"
    assert [[path.name for path in ledger.iterdir()] for ledger in ledgers] == [["secret"]] * 3

    async def first_line() -> bytes | None:
        script = ["/bin/sh", "-c", "cat one/.weft/secret; echo end; cat"]
        async with CommandRunner(UNPROTECTED, sandbox=sandbox).started(profile, script, workspace=tmp_path) as process:
            try:
                return await process.line()
            finally:
                await process.stop()

    assert (asyncio.run(first_line()) or b"").strip() == b"end"


def test_ledgers_are_looked_for_in_all_of_a_workspace_or_it_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for place in ("a/.weft", "a/b/.WEFT", "node_modules/x/.weft", "c/d/e/.weft"):
        (tmp_path / place).mkdir(parents=True)
    (tmp_path / "link").symlink_to("a")
    entries = search_workspace(tmp_path, SecretFiles(), []).entries
    assert sorted(entry.path for entry in entries) == ["a/.weft", "a/b/.WEFT", "c/d/e/.weft"]
    assert entries[0].number == os.stat(tmp_path / entries[0].path).st_ino
    everything = search_workspace(tmp_path, SecretFiles(), None).entries
    assert {entry.path for entry in everything} - {entry.path for entry in entries} == {"node_modules/x/.weft"}
    monkeypatch.setattr(hidden_places, "MOST_FOLDERS", 5)
    with pytest.raises(InvalidInput, match=f"the workspace {tmp_path} has more than 5 folders, most of them in 'c'"):
        search_workspace(tmp_path, SecretFiles(), [])


def test_a_command_without_a_sandbox_has_an_empty_environment_all_the_same(
    sandbox: Sandbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-canary")
    outcome = run(sandbox, parse_profile("none", granted_by="human:ada"), "env; pwd", tmp_path)
    assert b"canary" not in outcome.stdout
    assert str(tmp_path).encode() in outcome.stdout


@pytest.mark.parametrize("profile", ["workspace", "read-only", "network:pypi.org", "none"])
def test_the_whole_tree_ends_with_the_time(sandbox: Sandbox, tmp_path: Path, profile: str) -> None:
    mark = f"weft-mark-{os.getpid()}-{profile}"
    script = f"sh -c 'sleep 1000; :' {mark} & sh -c 'sleep 1000; :' {mark}"
    outcome = run(sandbox, parse_profile(profile, granted_by="human:ada"), script, tmp_path, seconds=0.3)
    assert outcome.ending is Ending.TIMED_OUT
    assert not stays(mark)


@pytest.mark.parametrize("profile", ["workspace", "read-only", "network:pypi.org", "none"])
def test_the_whole_tree_ends_when_it_is_cancelled(sandbox: Sandbox, tmp_path: Path, profile: str) -> None:
    mark = f"weft-mark-{os.getpid()}-{profile}-cancelled"
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)

    async def cancelled() -> None:
        runner = CommandRunner(UNPROTECTED, sandbox=sandbox)
        argv = ["/bin/sh", "-c", f"sh -c 'sleep 1000; :' {mark} & echo > pipe; sleep 1000"]
        chosen = parse_profile(profile, granted_by="human:ada")
        task = asyncio.create_task(runner.run(chosen, argv, workspace=tmp_path))
        await asyncio.to_thread(pipe.read_bytes)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cancelled())
    assert not stays(mark)


@pytest.mark.parametrize("profile", [WORKSPACE_PROFILE, READ_ONLY_PROFILE, parse_profile("network:pypi.org")])
def test_where_there_is_no_sandbox_nothing_is_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, profile: SandboxProfile
) -> None:
    monkeypatch.setattr("weft.runtime.sandbox.bubblewrap.shutil.which", lambda *_, **__: None)
    with pytest.raises(Unsupported, match="no sandbox"):
        asyncio.run(CommandRunner(UNPROTECTED).run(profile, ["touch", "x"], workspace=tmp_path))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("profile", ["workspace", "read-only", "network:pypi.org"])
def test_limits_hold_under_every_profile(sandbox: Sandbox, tmp_path: Path, profile: str) -> None:
    """Output, processes, memory, and disk: the folders in memory are all that the stricter profiles can fill."""
    runner = CommandRunner(UNPROTECTED, sandbox=sandbox)

    def ending(script: str, limits: Limits) -> ProcessOutcome:
        argv = ["/bin/bash", "-c", script]
        return asyncio.run(runner.run(parse_profile(profile), argv, workspace=tmp_path, limits=limits))

    assert ending("yes", Limits(output=1000)).ending is Ending.TOO_MUCH_OUTPUT
    many = "for i in {1..60}; do sleep 1000 & done; wait"
    assert not ending(many, Limits(processes=20, seconds=20)).succeeded
    hungry = "x=x; while :; do x=$x$x; done"
    assert not ending(hungry, Limits(memory=64 * MIB, seconds=20)).succeeded
    greedy = "head -c 3000000 /dev/zero > $HOME/big"
    assert not ending(greedy, Limits(disk=MIB, seconds=20)).succeeded


@pytest.mark.parametrize("profile", ["workspace", "network:pypi.org"])
def test_what_is_withheld_is_not_shown_to_what_is_spoken_with_in_lines(
    sandbox: Sandbox, tmp_path: Path, profile: str
) -> None:
    (tmp_path / "ledger.db").write_text("canary")
    runner = CommandRunner(ProtectedPlaces(ledgers=(tmp_path / "ledger.db",), folders=()), sandbox=sandbox)

    async def first_line() -> bytes | None:
        script = ["/bin/sh", "-c", "cat ledger.db; echo end; cat"]
        async with runner.started(parse_profile(profile), script, workspace=tmp_path) as process:
            try:
                return await process.line()
            finally:
                await process.stop()

    assert (asyncio.run(first_line()) or b"").strip() == b"end"
