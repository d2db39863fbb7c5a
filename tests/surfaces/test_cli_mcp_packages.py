"""`weft mcp add NAME -- uvx …`: the first start may fetch, where a person agreed; later ones have no network."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import pytest

from tests.runtime.homes import link, program
from tests.runtime.mcp.configured import PYTHON, SCRIPT
from tests.runtime.mcp.test_real_servers import NODE, PACKAGES
from tests.sandbox import machine_sandbox
from tests.surfaces.shell import Shell
from tests.surfaces.test_cli_toolchains import install_node, linked
from weft.runtime.sandbox.toolchains import MANAGERS
from weft.runtime.tools.mcp_server_settings import CommandServer, PackageSource, package_caches
from weft.surfaces.cli.credentials import find_server, load_mcp_servers
from weft.surfaces.cli.work.sandbox_access import sandbox_caches

ON_DISK = True  # no sandbox takes a workspace in memory
SERVER = f"exec {PYTHON} -I -S -B {SCRIPT} echoes\n"
UVX = f"""#!/bin/sh
echo "${{UV_OFFLINE:-online}} ${{HTTPS_PROXY:-no-proxy}} $HOME" >> ~/.cache/starts
[ -n "$UV_OFFLINE" ] || echo fetched > ~/.cache/$1
[ "$(cat ~/.cache/$1)" = fetched ] || {{ echo "$1 is not here" >&2; exit 2; }}
[ "$1" != broken ] || {{ echo "$1 has no program" >&2; exit 3; }}
{SERVER}"""
"""Stands for uv: fetches a package into its cache where it may, and starts what is there."""
READABLE = ("--readable", sys.base_prefix, "--readable", str(SCRIPT))


@pytest.fixture(autouse=True)
def home(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> Path:
    machine_sandbox()
    for name in [manager.variable for manager in MANAGERS] + ["UV_INDEX_URL", "UV_DEFAULT_INDEX", "PIP_INDEX_URL"]:
        monkeypatch.delenv(name or "", raising=False)
    folder = Path(os.environ["HOME"])
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder / ".cache"))
    program(folder / ".local/bin/uvx", UVX)
    return folder


def starts(name: str) -> list[str]:
    """How a server was started, each time: online or not, by a proxy or none, and where it is at home."""
    folder = package_caches(find_server(name), sandbox_caches())
    assert folder is not None
    (noted,) = folder.glob("cache-*/starts")
    return noted.read_text().splitlines()


def test_the_hosts_are_named_and_nothing_is_fetched_unasked(shell: Shell) -> None:
    refused = shell("mcp-server", "add", "time", *READABLE, "--", "uvx", "mcp-time", "--yes")
    assert refused.code == 4
    assert (
        "uvx mcp-time --yes fetches packages: its first start reaches pypi.org, files.pythonhosted.org" in refused.err
    )
    assert "say --yes" in refused.err
    assert load_mcp_servers().servers == ()
    assert not sandbox_caches().exists()


@pytest.mark.slow("starts a server in a sandbox with each of three commands")
def test_the_first_start_fetches_and_later_ones_have_no_network(shell: Shell, home: Path) -> None:
    added = shell("mcp-server", "add", "time", "--yes", *READABLE, "--", "uvx", "mcp-time")
    assert added.code == 0, added.err
    transport = find_server("time").transport
    assert isinstance(transport, CommandServer)
    assert transport.packages == PackageSource(hosts=("pypi.org", "files.pythonhosted.org"))
    assert transport.profile == "workspace"
    assert shell.json("mcp-server", "tools", "time")[0]["state"] == "approved"
    assert starts("time") == ["online http://127.0.0.1:3128 /home/agent", "1 no-proxy /home/agent"]
    assert shell("mcp-server", "approve", "time").code == 0  # it is asked nothing: the packages are here
    assert starts("time")[-1] == "1 no-proxy /home/agent"
    shell("mcp-server", "remove", "time")
    assert not any(sandbox_caches().iterdir())


def test_a_server_that_was_not_started_fetches_when_it_is_approved(shell: Shell) -> None:
    shell("mcp-server", "add", "time", "--no-start", *READABLE, "--", "uvx", "mcp-time")
    waiting = shell("mcp-server", "tools", "time")
    assert "the packages of the server time are not here" in waiting.err
    assert "approve it again" in waiting.err
    assert "its first start reaches pypi.org" in shell("mcp-server", "approve", "time").err
    assert shell("mcp-server", "approve", "time", "--yes").code == 0
    assert [start.split()[0] for start in starts("time")] == ["online"]


def test_of_a_first_start_that_failed_nothing_is_left(shell: Shell) -> None:
    refused = shell("mcp-server", "add", "broken", "--yes", *READABLE, "--", "uvx", "broken")
    assert "broken has no program" in refused.err
    assert load_mcp_servers().servers == ()
    assert not any(sandbox_caches().iterdir())


def test_an_index_of_ones_own_is_asked_about_and_told(shell: Shell, home: Path) -> None:
    program(home / ".config/pip/pip.conf", "[global]\nindex-url = https://packages.example.org/simple\n")
    refused = shell("mcp-server", "add", "time", *READABLE, "--", "uvx", "mcp-time")
    assert "its first start reaches packages.example.org" in refused.err
    shell("mcp-server", "add", "time", "--yes", *READABLE, "--", "uvx", "mcp-time")
    transport = find_server("time").transport
    assert isinstance(transport, CommandServer)
    assert transport.packages is not None
    assert transport.packages.index == "https://packages.example.org/simple"


@pytest.mark.parametrize(
    ("words", "what", "advice"),
    [
        (("npxy", "-y", "x"), "there is no program npxy where its sandbox looks", "install it, or give the whole path"),
        (("deno", "run"), "there is no program deno where", "install Deno, or give"),
        (("/gone/bin/server",), "there is no /gone/bin/server", "give the path of a program that is there"),
    ],
)
def test_a_missing_command_is_named_with_what_to_do(
    shell: Shell, words: tuple[str, ...], what: str, advice: str
) -> None:
    refused = shell("mcp-server", "add", "missing", "--", *words)
    assert what in refused.err
    assert f"hint: {advice}" in refused.err


@pytest.mark.slow("starts a server in a sandbox, and looks through the folders of two that do not start")
def test_a_server_of_an_environment_starts_whose_interpreter_lies_with_a_version_manager(
    shell: Shell, home: Path
) -> None:
    project = shell.folder / "project"
    python = program(home / ".pyenv/versions/3.9.99/bin/python", f"#!/bin/sh\n{SERVER}")
    link(project / ".venv/bin/python", python)
    run = ("--folder", str(project), *READABLE, "--", str(project / ".venv/bin/python"))
    added = shell("mcp-server", "add", "own", *run)
    assert added.code == 0, added.err
    hidden = program(home / "builds/python", python.read_text())
    (project / ".venv/bin/python").unlink()
    link(project / ".venv/bin/python", hidden)
    refused = shell("mcp-server", "add", "hidden", *run)
    assert f".venv/bin/python leads to {hidden}, which the sandbox hides" in refused.err
    assert "by --readable" in refused.err
    lone = shell("mcp-server", "add", "lone", "--", str(hidden))
    assert f"{hidden} is hidden from it" in lone.err


@pytest.mark.slow("starts npm and a server of Node, twice")
@pytest.mark.skipif(not (PACKAGES / "node_modules/.bin/mcp-server-memory").exists(), reason="npm installed nothing")
def test_a_real_server_starts_by_npx_as_people_write_it(shell: Shell, home: Path) -> None:
    """Its package lies in its folder, so npm reaches no host for it; the second start could reach none."""
    version = home / ".nvm/versions/node/v99.0.0"
    install_node(version)
    shutil.copytree(NODE.parents[1] / "lib/node_modules/npm", version / "lib/node_modules/npm", copy_function=linked)
    link(version / "bin/npx", "../lib/node_modules/npm/bin/npx-cli.js")
    words = ("npx", "-y", "@modelcontextprotocol/server-memory")
    added = shell(
        "mcp-server", "add", "memory", "--yes", "--folder", str(PACKAGES), "--profile", "read-only", "--", *words
    )
    assert added.code == 0, added.err
    assert {tool["state"] for tool in shell.json("mcp-server", "tools", "memory")} == {"approved"}
    assert "network:" not in shell("mcp-server", "list").out


def test_what_takes_no_yes_says_so(shell: Shell) -> None:
    assert "weft mcp remove has no option '--yes'" in shell("mcp-server", "remove", "time", "--yes").err
    assert "weft mcp list has no option '--variable'" in shell("mcp-server", "list", "--variable", "X").err
