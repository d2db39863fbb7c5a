"""Which servers may be reached, and how: pure decisions about URLs and addresses."""

from __future__ import annotations

import ipaddress
from urllib.parse import urlsplit

from msgspec import Struct

from weft.kernel.errors import ConnectionForbidden


class Rules(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a client may do. `allow_private`: the name in its URL may lead to private addresses."""

    allow_private: bool = False
    ca_file: str | None = None
    connect_seconds: float = 10.0
    read_seconds: float = 120.0
    """How long nothing may come, before the first byte and between two."""


def ensure_safe(origin: str, rules: Rules) -> None:
    """Without TLS only to an address that the URL itself names as near."""
    if origin.startswith("http://") and not (_is_near_by_name(host_of(origin)) or rules.allow_private):
        raise ConnectionForbidden(f"{origin} has no TLS", "use https://; http is for servers on this machine")


def host_of(origin: str) -> str:
    return urlsplit(origin).hostname or ""


def _is_near_by_name(host: str) -> bool:
    """Whether a URL that names this host says so itself: localhost, or a literal address that is not public."""
    if host == "localhost":
        return True
    try:
        return not is_public(host)
    except ValueError:
        return False


def is_public(address: str) -> bool:
    """Whether an address belongs to the internet at large, also when it is wrapped in another form."""
    found = ipaddress.ip_address(address.partition("%")[0])
    inner = getattr(found, "ipv4_mapped", None) or getattr(found, "sixtofour", None)
    return (inner or found).is_global and not found.is_multicast


def may_reach(host: str, address: str, rules: Rules) -> bool:
    """Whether a connection to this host may go to this address."""
    if is_public(address):
        return True
    near = ipaddress.ip_address(address.partition("%")[0])
    if host == "localhost":
        return near.is_loopback
    return rules.allow_private or (_is_near_by_name(host) and near == ipaddress.ip_address(host))
