"""Which commands fetch their packages, from where, and what a server's start may reach for it."""

from __future__ import annotations

from pathlib import Path

import pytest

from weft.kernel.errors import InvalidInput
from weft.runtime.tools.mcp_server_settings import (
    CommandServer,
    McpServer,
    PackageIndex,
    PackageSource,
    checked_server,
    package_index,
    package_source,
)


@pytest.mark.parametrize(
    ("command", "index"),
    [
        ("uvx mcp-server-time", PackageIndex.PYPI),
        ("/home/ada/.local/bin/uvx --from x y", PackageIndex.PYPI),
        ("uv tool run mcp-server-time", PackageIndex.PYPI),
        ("uv run server.py", None),
        ("npx -y @modelcontextprotocol/server-memory", PackageIndex.NPM),
        ("npm exec -- server", PackageIndex.NPM),
        ("npm start", None),
        ("node server.js", None),
        ("uvx.sh", None),
    ],
)
def test_a_command_is_known_by_its_words_to_fetch(command: str, index: PackageIndex | None) -> None:
    assert package_index(command.split()) is index


CONFIGURED = [
    (PackageIndex.PYPI, {}, {}, ("pypi.org", "files.pythonhosted.org"), None),
    (PackageIndex.NPM, {}, {}, ("registry.npmjs.org",), None),
    (PackageIndex.PYPI, {"UV_DEFAULT_INDEX": "https://a.example/simple"}, {}, ("a.example",), "https://a.example/simple"),
    (PackageIndex.PYPI, {"PIP_INDEX_URL": "https://a.example:8443/s"}, {}, ("a.example:8443",), "https://a.example:8443/s"),
    (PackageIndex.PYPI, {}, {".config/pip/pip.conf": "[global]\nindex-url = https://b.example/x\n"}, ("b.example",),
     "https://b.example/x"),
    (PackageIndex.PYPI, {}, {".config/uv/uv.toml": '[[index]]\nurl = "https://c.example/"\ndefault = true\n'},
     ("c.example",), "https://c.example/"),
    (PackageIndex.NPM, {"npm_config_registry": "https://d.example/"}, {}, ("d.example",), "https://d.example/"),
    (PackageIndex.NPM, {}, {".npmrc": "//e.example/:_authToken=canary\nregistry=https://e.example/\n"}, ("e.example",),
     "https://e.example/"),
    (PackageIndex.NPM, {}, {".npmrc": "@mine:registry=https://e.example/\n"}, ("registry.npmjs.org",), None),
]  # fmt: skip


@pytest.mark.parametrize(("index", "variables", "files", "hosts", "index_url"), CONFIGURED)
def test_the_hosts_are_those_of_the_index_that_this_machine_uses(
    tmp_path: Path,
    index: PackageIndex,
    variables: dict[str, str],
    files: dict[str, str],
    hosts: tuple[str, ...],
    index_url: str | None,
) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    source = package_source(index, {"HOME": str(tmp_path), **variables}.get)
    assert source == PackageSource(hosts=hosts, index=index_url)


@pytest.mark.parametrize(
    "index_url", ["https://ada:canary@a.example/simple", "https://canary@a.example/", "file:///srv/canary", "canary"]
)
def test_an_index_that_no_sandbox_can_use_is_refused_without_its_key(tmp_path: Path, index_url: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        package_source(PackageIndex.PYPI, {"HOME": str(tmp_path), "UV_DEFAULT_INDEX": index_url}.get)
    assert "ada" not in str(refused.value)
    assert "install the server yourself" in refused.value.hint


def test_an_index_that_is_no_part_of_the_internet_is_refused() -> None:
    transport = CommandServer(command="uvx", args=("x",), packages=PackageSource(hosts=("localhost:8080",)))
    with pytest.raises(InvalidInput, match="no part of the internet"):
        checked_server(McpServer(name="x", transport=transport))


def test_a_server_that_fetches_nothing_is_identified_as_before() -> None:
    """What was approved of it stays approved."""
    plain = McpServer(name="x", transport=CommandServer(command="x"))
    assert plain.identity == "1b1dfe073866dab525643828c3ac889b6c90cfaba3dd4bd0891fa2d3bb4ba0b7"
    fetching = McpServer(name="x", transport=CommandServer(command="x", packages=PackageSource(hosts=("pypi.org",))))
    assert fetching.identity != plain.identity
