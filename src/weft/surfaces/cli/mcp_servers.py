"""The user's MCP servers, and the definitions of their tools that were approved: two files beside the credentials."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import msgspec
from msgspec import Struct

from weft.kernel.errors import InvalidInput, NotFound
from weft.runtime.tools.mcp_server_settings import McpServer, PinnedTools, checked_server, ensure_distinct
from weft.runtime.tools.mcp_servers import McpConfiguration
from weft.surfaces.cli.locked_files import replace_json, sole_writer
from weft.surfaces.cli.user_files import configuration_folder

SERVERS_FILE = "mcp-servers.json"
PINS_FILE = "mcp-pins.json"


class _ServerFile(Struct, forbid_unknown_fields=True):
    servers: tuple[McpServer, ...] = ()


class _PinFile(Struct, forbid_unknown_fields=True):
    pins: tuple[PinnedTools, ...] = ()


_File = TypeVar("_File", _ServerFile, _PinFile)


def load_mcp_servers() -> McpConfiguration:
    """For `McpServers`, which reads it again at every turn."""
    servers = tuple(map(checked_server, _loaded(SERVERS_FILE, _ServerFile).servers))
    ensure_distinct(servers)
    return McpConfiguration(servers=servers, pins=_loaded(PINS_FILE, _PinFile).pins)


def find_server(name: str) -> McpServer:
    server = next((server for server in load_mcp_servers().servers if server.name == name), None)
    if server is None:
        raise NotFound("MCP server", name)
    return server


def change_servers(change: Callable[[tuple[McpServer, ...]], tuple[McpServer, ...]]) -> None:
    """Read, change and put back, as one step. What was approved of servers that are gone is forgotten."""
    path = configuration_folder() / SERVERS_FILE
    with sole_writer(path):
        servers = change(load_mcp_servers().servers)
        ensure_distinct(servers)
        names = {server.name for server in servers}
        pins = _loaded(PINS_FILE, _PinFile).pins
        if any(pin.server not in names for pin in pins):
            replace_json(path.with_name(PINS_FILE), _PinFile(tuple(pin for pin in pins if pin.server in names)))
        replace_json(path, _ServerFile(servers))


def keep_pins(pinned: PinnedTools) -> None:
    """In place of what was approved of this server before."""
    folder = configuration_folder()
    with sole_writer(folder / SERVERS_FILE):
        pins = (pin for pin in _loaded(PINS_FILE, _PinFile).pins if pin.server != pinned.server)
        replace_json(folder / PINS_FILE, _PinFile((*pins, pinned)))


def _loaded(name: str, kind: type[_File]) -> _File:
    path: Path = configuration_folder() / name
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return kind()
    try:
        return msgspec.json.decode(data, type=kind)
    except msgspec.DecodeError as error:
        raise InvalidInput(f"{path}: {error}", "mend the file, or remove it and add the servers again") from None
