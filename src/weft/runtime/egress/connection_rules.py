"""Which servers may be reached, and how: pure decisions about URLs and addresses.

Beside them, whether somebody listens on a port of this machine: that connection is closed at once,
nothing is sent.
"""

from __future__ import annotations

import ipaddress
import socket
from urllib.parse import urlsplit

from msgspec import Struct

from weft.kernel.errors import ConnectionForbidden

# --- Which servers may be reached, and how: pure decisions about URLs and addresses.


class ConnectionRules(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a client may do. `allow_private`: the name in its URL may lead to private addresses."""

    allow_private: bool = False
    public_only: bool = False
    """Not even an address that the URL itself names may be a private one: somebody else chose the URL."""
    allow_plain: bool = False
    """Public servers without TLS, for requests that carry no key."""
    ca_file: str | None = None
    connect_seconds: float = 10.0
    read_seconds: float = 120.0
    """How long nothing may come, before the first byte and between two."""


def ensure_safe(origin: str, rules: ConnectionRules) -> None:
    """Without TLS only to an address that the URL itself names as near, unless the rules allow more."""
    host = host_of(origin)
    if rules.public_only and is_near_by_name(host):
        raise ConnectionForbidden(f"{host} is no part of the internet")
    if rules.allow_plain:
        return
    if origin.startswith("http://") and not (is_near_by_name(host) or rules.allow_private):
        raise ConnectionForbidden(f"{origin} has no TLS", "use https://; http is for servers on this machine")


def host_of(origin: str) -> str:
    return urlsplit(origin).hostname or ""


def is_near_by_name(host: str) -> bool:
    """Whether a URL that names this host says so itself: localhost, or a literal address that is not public."""
    if host == "localhost":
        return True
    try:
        return not is_public(host)
    except ValueError:
        return False


def is_public(address: str) -> bool:
    """Whether an address belongs to the internet at large, and every address inside it that it leads to does."""
    return all(map(_is_public_alone, reached(ipaddress.ip_address(address.partition("%")[0]))))


def reached(address: Address) -> tuple[Address, ...]:
    """The addresses that packets to this one are sent to: IPv4 inside IPv6 counts as that IPv4 address."""
    if isinstance(address, ipaddress.IPv4Address):
        return (address,)
    if address.teredo is not None:
        return (address, *address.teredo)
    if address.sixtofour is not None:
        return (address.sixtofour,)
    low = ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    if any(address in network for network in IPV4_IN_LOW_BITS) and int(address) > 1:
        return (low,)
    return (address, low) if (int(address) >> 32) & 0xFDFFFFFF == ISATAP else (address,)


def _is_public_alone(address: Address) -> bool:
    if address.is_multicast or not address.is_global:
        return False
    return address in IPV4_INTERNET or (address in IPV6_INTERNET and address not in IPV6_DOCUMENTATION)


Address = ipaddress.IPv4Address | ipaddress.IPv6Address
IPV4_IN_LOW_BITS = tuple(
    map(
        ipaddress.IPv6Network,
        (
            "::/96",  # IPv4-compatible
            "::ffff:0:0/96",  # IPv4-mapped
            "::ffff:0:0:0/96",  # IPv4-translated
            "64:ff9b::/96",  # NAT64; 64:ff9b:1::/48, which a network uses for itself, is outside IPV6_INTERNET
        ),
    )
)
"""Networks whose addresses have an IPv4 address in their last 32 bits."""
ISATAP = 0x00005EFE
"""Before an IPv4 address in the last bits: a tunnel to it. The bit 0x02000000 may be set."""
IPV4_INTERNET = ipaddress.IPv4Network("0.0.0.0/0")
IPV6_INTERNET = ipaddress.IPv6Network("2000::/3")
"""All that was ever assigned to networks of the internet. Site-local and local NAT64 addresses lie outside."""
IPV6_DOCUMENTATION = ipaddress.IPv6Network("3fff::/20")


def may_reach(host: str, address: str, rules: ConnectionRules) -> bool:
    """Whether a connection to this host may go to this address."""
    if is_public(address):
        return True
    if rules.public_only:
        return False
    near = ipaddress.ip_address(address.partition("%")[0])
    if host == "localhost":
        return near.is_loopback
    return rules.allow_private or (is_near_by_name(host) and near == ipaddress.ip_address(host))


# --- Whether somebody listens on a port of this machine.

LOOPBACK = "127.0.0.1"
CONNECT_SECONDS = 0.2


def is_listening(port: int) -> bool:
    with socket.socket() as connection:
        connection.settimeout(CONNECT_SECONDS)
        return connection.connect_ex((LOOPBACK, port)) == 0
