"""Names of servers that something may reach: `HOST`, `HOST:PORT`, `[IPv6]`, or `*` for every public one.

Each is kept as endpoints, a host in its one form with a port. A host without a port stands for the ports 80 and 443.
A number that is no address in its usual form (`0x7f.1`, `2130706433`) is refused: programs read such forms differently.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable

from msgspec import Struct

from weft.kernel.errors import InvalidInput
from weft.kernel.weft_error import quoted

WEB_PORTS = (80, 443)
ANY_HOST = "*"
_HIGHEST_PORT = 65535
_LONGEST_NAME = 253
_LABEL = r"[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?"
_NAME = re.compile(rf"{_LABEL}(?:\.{_LABEL})*")
_NUMBER = re.compile(r"[0-9]+|0x[0-9a-f]*")
_WITH_PORT = re.compile(r"(\*|\[[^\[\]]*\]|[^:\[\]]*)(?::([0-9]{1,5}))?")


class Endpoint(Struct, frozen=True, order=True):
    """A port of a host; the host `*` is every public one."""

    host: str
    port: int

    def covers(self, other: Endpoint) -> bool:
        return self.port == other.port and self.host in (ANY_HOST, other.host)


def host_name(text: str) -> str:
    """A host in its one form: lower case, without a dot at its end, addresses as Python writes them."""
    name = text.strip().lower().removesuffix(".")
    if name.startswith("[") and name.endswith("]"):
        return _address(text, name[1:-1])
    if not name.isascii() or len(name) > _LONGEST_NAME or not _NAME.fullmatch(name):
        raise _no_host(text)
    return _address(text, name) if _NUMBER.fullmatch(name.rpartition(".")[2]) else name


def _address(text: str, address: str) -> str:
    try:
        return str(ipaddress.ip_address(address))
    except ValueError:
        raise _no_host(text) from None


def _no_host(text: str) -> InvalidInput:
    return InvalidInput(f"{quoted(text)} is no host", "give a name such as pypi.org, or HOST:PORT")


def endpoints_of(hosts: Iterable[str]) -> frozenset[Endpoint]:
    """The endpoints that a list of hosts stands for."""
    return frozenset(endpoint for host in hosts for endpoint in _endpoints(host))


def _endpoints(text: str) -> list[Endpoint]:
    parts = _WITH_PORT.fullmatch(text.strip())
    if parts is None:
        raise _no_host(text)
    host = ANY_HOST if parts[1] == ANY_HOST else host_name(parts[1])
    ports = WEB_PORTS if parts[2] is None else (int(parts[2]),)
    if not all(0 < port <= _HIGHEST_PORT for port in ports):
        raise _no_host(text)
    return [Endpoint(host, port) for port in ports]


def common_endpoints(one: frozenset[Endpoint], other: frozenset[Endpoint]) -> frozenset[Endpoint]:
    """What both allow."""
    narrow = {endpoint for endpoint in one if any(wide.covers(endpoint) for wide in other)}
    return frozenset(narrow | {endpoint for endpoint in other if any(wide.covers(endpoint) for wide in one)})


def host_texts(endpoints: Iterable[Endpoint]) -> tuple[str, ...]:
    """The shortest list of hosts that stands for these endpoints."""
    ports: dict[str, set[int]] = {}
    for endpoint in sorted(endpoints):
        ports.setdefault(endpoint.host, set()).add(endpoint.port)
    texts: list[str] = []
    for host, numbers in ports.items():
        shown = f"[{host}]" if ":" in host else host
        texts += [shown] if numbers.issuperset(WEB_PORTS) else []
        singles = numbers - set(WEB_PORTS) if numbers.issuperset(WEB_PORTS) else numbers
        texts += [f"{shown}:{port}" for port in sorted(singles)]
    return tuple(texts)
