"""Servers whose command fetches them: `uvx PACKAGE`, `npx PACKAGE` and the longer forms of these.

The first start of such a server may reach the hosts of its package index, which a person is asked about when the server
is added. What it fetches stays in caches of that server alone. Later starts find it there and reach no host for it.
"""

from __future__ import annotations

import configparser
import os
import re
import shutil
import tomllib
from collections.abc import Iterator, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from msgspec import Struct

from weft.kernel.errors import InvalidInput, quoted
from weft.runtime.egress.credentials import Variable
from weft.runtime.mcp.server_settings import HttpServer, McpServer, PackageSource
from weft.runtime.sandbox.private_home import named_caches
from weft.runtime.sandbox.profiles import SandboxProfile

FETCH_SECONDS = 300.0
"""So long the first start may take, which fetches."""
_LARGEST_FILE_BYTES = 256 * 1024
_CERTIFICATES = "/etc/ssl/certs/ca-certificates.crt"


class PackageIndex(StrEnum):
    PYPI = "PyPI"
    NPM = "npm"


class _IndexHosts(Struct, frozen=True):
    hosts: tuple[str, ...]
    variable: str
    """The variable that names another index to the programs that fetch."""


_USUAL = {
    PackageIndex.PYPI: _IndexHosts(("pypi.org", "files.pythonhosted.org"), "UV_DEFAULT_INDEX"),
    PackageIndex.NPM: _IndexHosts(("registry.npmjs.org",), "npm_config_registry"),
}
_PROGRAMS: dict[str, tuple[PackageIndex, tuple[tuple[str, ...], ...]]] = {
    "uvx": (PackageIndex.PYPI, ((),)),
    "uv": (PackageIndex.PYPI, (("tool", "run"), ("x",))),
    "npx": (PackageIndex.NPM, ((),)),
    "npm": (PackageIndex.NPM, (("exec",), ("x",))),
}
"""Programs that fetch what they run, each with the first words of the commands that do."""
INSTALLERS = {
    "uvx": "uv", "uv": "uv", "npx": "Node.js", "npm": "Node.js", "node": "Node.js", "python": "Python",
    "python3": "Python", "deno": "Deno", "bun": "Bun", "bunx": "Bun", "docker": "Docker", "pipx": "pipx",
}  # fmt: skip
"""What people install to have a program."""


def cache_name(server: McpServer) -> str:
    """By which the caches of a server are found again. They are its own: no other server, nor any command of an agent,
    writes what it will start."""
    return f"mcp-server {server.identity}"


def package_caches(server: McpServer, caches: Path | None) -> Path | None:
    """Where a server's packages lie once they were fetched, beneath a person's caches for the sandbox."""
    return None if caches is None else named_caches(caches, cache_name(server))


def has_packages(server: McpServer, caches: Path | None) -> bool:
    folder = package_caches(server, caches)
    return folder is not None and folder.is_dir()


def remove_packages(server: McpServer, caches: Path | None) -> None:
    """They are fetched again where a person agrees."""
    folder = package_caches(server, caches)
    if folder is not None:
        shutil.rmtree(folder, ignore_errors=True)


class PackageUse(Struct, frozen=True, kw_only=True):
    """How a server is started that fetches its packages, or has fetched them."""

    profile: SandboxProfile
    variables: dict[str, str]
    is_fetching: bool


def package_use(server: McpServer, caches: Path | None, *, may_fetch: bool) -> PackageUse | None:
    """None for a server that fetches nothing. `may_fetch`: a person agreed. Raises InvalidInput where the packages are
    not here and nobody agreed to fetch them."""
    settings = server.transport
    if isinstance(settings, HttpServer) or settings.packages is None:
        return None
    index = package_index((settings.command, *settings.args))
    is_fetching = not has_packages(server, caches)
    if index is None:
        raise InvalidInput(f"the command of {server.name} fetches no packages that are known of", "add it again")
    if is_fetching and not may_fetch:
        raise InvalidInput(
            f"the packages of the server {server.name} are not here: they were not fetched yet, or were removed",
            "approve it again, which asks whether it may fetch them",
        )
    is_online = is_fetching or bool(settings.sandbox.endpoints)
    return PackageUse(
        profile=settings.first_sandbox if is_fetching else settings.sandbox,
        variables=fetch_variables(index, settings.packages, is_online=is_online),
        is_fetching=is_fetching,
    )


def package_index(words: Sequence[str]) -> PackageIndex | None:
    """Where the packages come from that a command fetches; None: it fetches none that is known of."""
    index, beginnings = _PROGRAMS.get(os.path.basename(words[0]), (None, ()))
    following = tuple(words[1:])
    return index if any(following[: len(beginning)] == beginning for beginning in beginnings) else None


def package_source(index: PackageIndex, variable: Variable) -> PackageSource:
    """The hosts that a first start reaches: of the usual index, or of the one that the configuration of pip, uv or npm
    on this machine names. Raises InvalidInput for an index that wants a key: the sandbox has none."""
    named = next(filter(None, _named_indexes(index, variable)), None)
    if named is None:
        return PackageSource(hosts=_USUAL[index].hosts)
    url = urlsplit(named)
    if url.scheme not in ("http", "https") or not url.hostname:
        raise InvalidInput(
            f"the package index {quoted(_without_key(named), 200)} is no address of the web",
            "install the server yourself, and add it with the whole path of its program",
        )
    if url.username or url.password:
        raise InvalidInput(
            f"the package index {_without_key(named)} wants a key, which no server in the sandbox is given",
            "install the server yourself, and add it with the whole path of its program",
        )
    host = url.hostname if url.port in (None, 80, 443) else f"{url.hostname}:{url.port}"
    return PackageSource(hosts=(host,), index=named)


def _without_key(address: str) -> str:
    return re.sub(r"//[^/@]*@", "//", address)


def fetch_variables(index: PackageIndex, source: PackageSource, *, is_online: bool) -> dict[str, str]:
    """What tells the programs that fetch which index to use, and whether it can be reached."""
    variables = {_USUAL[index].variable: source.index} if source.index is not None else {}
    if index is PackageIndex.PYPI:
        variables |= {"UV_PYTHON_DOWNLOADS": "never", "UV_NO_CONFIG": "1"}
        # the system's certificates are shown only to what has hosts, and uv does not start without them
        return {**variables, **({"UV_SYSTEM_CERTS": "true"} if is_online else {"UV_OFFLINE": "1"})}
    variables |= {"npm_config_update_notifier": "false", "npm_config_audit": "false", "npm_config_fund": "false"}
    if not is_online:
        return {**variables, "npm_config_offline": "true"}
    return {**variables, **({"NODE_EXTRA_CA_CERTS": _CERTIFICATES} if os.path.exists(_CERTIFICATES) else {})}


def _named_indexes(index: PackageIndex, variable: Variable) -> Iterator[str | None]:
    """What this machine's configuration names, in the order in which it counts."""
    home = variable("HOME") or ""
    folders = [Path(home)] if home.startswith("/") else []
    if index is PackageIndex.NPM:
        yield variable("npm_config_registry")
        yield variable("NPM_CONFIG_REGISTRY")
        for file in (*(folder / ".npmrc" for folder in folders), Path("/etc/npmrc")):
            yield _npm_registry(_text_of(file))
        return
    yield variable("UV_DEFAULT_INDEX")
    yield variable("UV_INDEX_URL")
    for file in (*(folder / ".config/uv/uv.toml" for folder in folders), Path("/etc/uv/uv.toml")):
        yield _uv_index(_text_of(file))
    yield variable("PIP_INDEX_URL")
    pip_files = [folder / name for folder in folders for name in (".config/pip/pip.conf", ".pip/pip.conf")]
    for file in (*pip_files, Path("/etc/pip.conf")):
        yield _pip_index(_text_of(file))


def _text_of(file: Path) -> str:
    try:
        with file.open("rb") as opened:
            return opened.read(_LARGEST_FILE_BYTES).decode(errors="replace")
    except OSError:  # most people have none of them
        return ""


def _npm_registry(text: str) -> str | None:
    matches = re.findall(r"(?m)^[ \t]*registry[ \t]*=[ \t]*(\S+)[ \t]*$", text)
    return matches[-1].strip("\"'") if matches else None


def _uv_index(text: str) -> str | None:
    try:
        document: dict[str, Any] = tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        return None
    indexes = document.get("index")
    default = [
        one.get("url")
        for one in (indexes if isinstance(indexes, list) else [])
        if isinstance(one, dict) and one.get("default") is True
    ]
    return next((url for url in (*default, document.get("index-url")) if isinstance(url, str)), None)


def _pip_index(text: str) -> str | None:
    parser = configparser.RawConfigParser(strict=False)
    try:
        parser.read_string(text)
    except configparser.Error:
        return None
    return parser.get("global", "index-url", fallback=None)
