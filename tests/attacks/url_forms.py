"""URLs that lead to this machine or to its network, in more than five hundred forms."""

from __future__ import annotations

from collections.abc import Iterator
from ipaddress import IPv4Address, IPv6Address

from tests.attacks.test_addresses import WRAPPINGS

NEAR_ADDRESSES = (
    "127.0.0.1", "127.8.9.1", "10.0.0.1", "192.168.1.1", "172.16.0.1", "169.254.169.254", "100.64.0.1",
    "100.100.100.200", "0.0.0.0", "192.0.0.192", "198.18.0.1", "224.0.0.1", "240.0.0.1", "255.255.255.255",
)  # fmt: skip
NEAR_IPV6 = ("::1", "::", "fe80::1", "fc00::1", "fd00:ec2::254", "fec0::1", "ff02::1", "2001:db8::1")
NEAR_NAMES = (
    "localhost", "LOCALHOST", "localhost.", "private.example", "flipping.example", "metadata.example", "ip6.example",
)  # fmt: skip
"""The names of `example` lead to near addresses by the resolver of the tests."""


def number_forms(address: str) -> Iterator[str]:
    """One IPv4 address as programs that read numbers would take it."""
    number = int(IPv4Address(address))
    a, b, c, d = address.split(".")
    yield from (address, address + ".", str(number), hex(number), f"0{number:o}", f"0x{number:08X}")
    yield ".".join(hex(int(part)) for part in (a, b, c, d))
    yield ".".join(f"0{int(part):o}" for part in (a, b, c, d))
    yield ".".join(f"{int(part):04d}" for part in (a, b, c, d))
    yield f"{a}.{(int(b) << 16) + (int(c) << 8) + int(d)}"
    yield f"{a}.{b}.{(int(c) << 8) + int(d)}"
    yield f"{hex(int(a))}.{b}.0{int(c):o}.{d}"
    yield str(number + (1 << 32))
    yield "".join(chr(0xFF10 + int(character)) if character.isdecimal() else character for character in address)
    yield "".join(f"%{ord(character):02x}" for character in address)
    yield address.replace(".", "\u3002")
    yield f"{address}.nip.example"
    yield f"{address}%00.public.example"


def hosts() -> Iterator[str]:
    for address in NEAR_ADDRESSES:
        yield from number_forms(address)
        for wrapped in WRAPPINGS.values():
            yield f"[{wrapped(address)}]"
            yield f"[{IPv6Address(wrapped(address)).exploded}]"
    for address in NEAR_IPV6:
        yield from (f"[{address}]", f"[{address}%25lo]", f"[{address}%lo]", address)
    yield from NEAR_NAMES


def url_forms() -> list[str]:
    """The URLs. Many have two readings, of which one is near."""
    urls: list[str] = []
    for number, host in enumerate(hosts()):
        scheme = ("http", "https")[number % 2]
        urls.append(f"{scheme}://{host}/")
    for address in ("127.0.0.1", "169.254.169.254", "[::1]", "private.example"):
        for text in (
            "http://public.example@{}/", "http://public.example:80@{}/", "http://{}@public.example@{}/", "http://{}:80/",
            "http://public.example#@{}/", "http://public.example\\@{}/", "http://{}\\@public.example/", "http:///{}/",
            "http://{}\t.public.example/", "http://{}\r\nHost: public.example/", "http://{} /", "//{}/",
            "http:{}/", "http:/{}/",
            "http://{}:0/", "http://{}:65536/", "http://{}:22/", "http://{}:-80/", "http://{}:80:80/", "http://[{}]/",
            "ftp://{}/", "file://{}/etc/passwd", "gopher://{}:70/_x", "ws://{}/", "unix://{}/", "data://{}/", "HTTP://{}/",
            "http://public.example, {}/", "http://{}.public.example@{}/", "http://{}?@public.example/", "http://{}/../",
        ):  # fmt: skip
            urls.append(text.replace("{}", address))
    return list(dict.fromkeys(urls))
