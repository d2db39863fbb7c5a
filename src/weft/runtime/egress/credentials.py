"""Which servers may be reached, and how; and keys: where each is found, for which origin and for whom, and their traces
in server answers.

A credential is never the key itself. A server that was sent a key may send it back: what it answers
is looked through.
"""

from __future__ import annotations

import base64
import ipaddress
import re
import socket
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
from typing import Any, NoReturn
from urllib.parse import quote, urlsplit

from msgspec import Struct, structs

from weft.kernel.errors import (
    Action,
    ConnectionForbidden,
    CredentialMissing,
    CredentialWithheld,
    InvalidInput,
    hidden_address,
    quoted,
)

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


# --- Keys: where each is to be found, for which origin and for whom.

Variable = Callable[[str], str | None]
"""Looks one named variable of the environment up; surfaces hand it in."""
RunCommand = Callable[[tuple[str, ...]], Coroutine[Any, Any, str]]
"""Runs a command of the user's and answers what it printed."""

ORIGINS = {
    "ANTHROPIC_API_KEY": "https://api.anthropic.com",
    "OPENAI_API_KEY": "https://api.openai.com",
    "GEMINI_API_KEY": "https://generativelanguage.googleapis.com",
    "GOOGLE_API_KEY": "https://generativelanguage.googleapis.com",
    "CLOUDFLARE_API_TOKEN": "https://gateway.ai.cloudflare.com",
    "CF_AIG_TOKEN": "https://gateway.ai.cloudflare.com",
}
"""Whose keys people keep under these names."""
_DEFAULT_PORTS = {"http": 80, "https": 443}
_is_id = re.compile(r"[A-Za-z0-9_.-]{1,64}").fullmatch
_is_variable = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}").fullmatch


class Secret:
    """A key in memory. It is in no repr, no text, no pickle and no copy of anything that holds it."""

    __slots__ = ("_value",)

    def __init__(self, value: str) -> None:
        self._value = value

    def reveal(self) -> str:
        return self._value

    def __repr__(self) -> str:
        return "Secret(…)"

    def __reduce__(self) -> NoReturn:
        raise InvalidInput("a secret is not written down", "pass its credential's name on instead")


class Credential(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where a key is found (`env` or `command`), the one origin it is for, and the principals that may have it."""

    id: str
    origin: str
    env: str | None = None
    command: tuple[str, ...] = ()
    given_to: tuple[str, ...] = ("*",)


def checked_credential(found: Credential) -> Credential:
    """The credential with its origin in its one form, or what is wrong with it."""
    if not _is_id(found.id):
        raise InvalidInput(f"credential id {quoted(found.id, 20)}", "letters, digits, dots, - and _, at most 64")
    if (found.env is None) == (not found.command):
        raise InvalidInput(f"credential {found.id!r} names no place", Action.CHOOSE_ONE_KEY_SOURCE)
    if found.env is not None and not _is_variable(found.env):
        raise InvalidInput(
            f"what credential {found.id!r} names is no name of a variable", "name the variable, not the key itself"
        )
    return Credential(
        id=found.id,
        origin=origin_of(found.origin),
        env=found.env,
        command=found.command,
        given_to=found.given_to or ("*",),
    )


_FORM = "write it as https://host or https://host:port"


def origin_of(url: str) -> str:
    """Scheme, host and port of a URL, in one form."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        raise InvalidInput(f"URL {_shown_url(url)} cannot be read", _FORM) from None
    if parts.scheme not in _DEFAULT_PORTS or not host:
        raise InvalidInput(f"URL {_shown_url(url)} has no http(s) origin", _FORM)
    if parts.username is not None or parts.password is not None:
        raise InvalidInput(f"the URL of {host} carries a user or password", "keep it as a credential instead")
    shown = f"[{host}]" if ":" in host else host
    return f"{parts.scheme}://{shown}" + ("" if port in (None, _DEFAULT_PORTS[parts.scheme]) else f":{port}")


def _shown_url(url: str) -> str:
    """A URL for a message: without what may stand before its host or after its path."""
    return repr(hidden_address(url).partition("?")[0][:120])


class Keyring:
    """The credentials that are known, and how their places are looked at."""

    def __init__(
        self, credentials: Iterable[Credential] = (), variable: Variable | None = None, run: RunCommand | None = None
    ) -> None:
        self._known: Mapping[str, Credential] = {item.id: checked_credential(item) for item in credentials}
        self._variable, self._run = variable, run

    def credential(self, name: str) -> Credential:
        if name not in self._known:
            raise CredentialMissing(name, "there is none of this name")
        return self._known[name]

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._known)

    def knowing(self, found: Credential) -> Keyring:
        """The same with one more; a name that is known already keeps its meaning."""
        return Keyring((found, *self._known.values()), self._variable, self._run)

    def of_origin(self, url: str) -> Credential | None:
        """The first credential that is for this server."""
        origin = origin_of(url)
        return next((item for item in self._known.values() if item.origin == origin), None)

    def in_variable(self, variable: str, url: str) -> Credential:
        """A variable as the key of a server: a credential that says so, else one made of both. A variable that is known
        as the key of other servers is withheld from this one."""
        origin = origin_of(url)
        added = [item for item in self._known.values() if item.env == variable]
        homes = [item.origin for item in added] or ([ORIGINS[variable]] if variable in ORIGINS else [])
        if homes and origin not in homes:
            why = f"it is for {homes[0]}, not for {origin}"
            raise CredentialWithheld(variable, why, Action.ALLOW_VARIABLE.of(variable=variable, origin=origin))
        made = Credential(id=variable, origin=origin, env=variable)
        return next((item for item in added if item.origin == origin), made)

    async def read(self, found: Credential) -> Secret:
        """The key, from its place."""
        if found.env is not None:
            value = self._value_of(found.env, found.id)
        else:
            if self._run is None:
                raise CredentialMissing(found.id, "commands cannot be run here", "keep the key in a variable")
            value = await self._run(found.command)
            if not value.strip():
                raise CredentialMissing(found.id, "its command printed nothing", "run the command yourself and look")
        return checked_secret(found.id, value)

    def read_variable(self, name: str) -> Secret:
        """The key of a known credential that is kept in a variable; for any other name, the variable of this name."""
        known = self._known.get(name)
        if known is not None and known.env is None:
            raise CredentialMissing(name, "its command is run for a request alone", "keep the key in a variable")
        return checked_secret(name, self._value_of(name if known is None or known.env is None else known.env, name))

    def _value_of(self, variable: str, name: str) -> str:
        value = None if self._variable is None else self._variable(variable)
        if not value or not value.strip():
            raise CredentialMissing(name, f"the variable {variable} is not set", f"set {variable}")
        return value


def checked_secret(name: str, value: str) -> Secret:
    """A key as it can stand in a header; what is wrong with one that cannot is told without showing it."""
    key = value.strip()
    if not key.isascii() or not key.isprintable():
        raise CredentialMissing(name, "what is found there is no key: it has characters no header can hold")
    return Secret(key)


# --- Traces of keys in what a server answers: it was sent the key, and may send it back.

MARK = "…"
SHORTEST_KEY = 8
"""Shorter ones are words, such as the `none` that local servers are given."""
LONGEST_PIECE = 16
SHORTEST_RUN = 4
"""So many letters in a row that a key has, too, are held back in a stream until it is seen how they go on."""
_LOWER = {upper: upper + 32 for upper in range(ord("A"), ord("Z") + 1)}
_URLSAFE = str.maketrans("+/", "-_")


class _Form(Struct, frozen=True):
    """A key in one writing, with every piece of it that is long enough to give it away."""

    text: str
    length: int
    pieces: frozenset[str]
    blocks: tuple[str, ...]
    """Half as long as a piece, side by side: every piece holds one of them."""


class KeyTraces:
    """Finds keys that were sent to a server in what it answers."""

    def __init__(self, keys: Iterable[Secret]) -> None:
        values = [value for key in keys if len(value := key.reveal()) >= SHORTEST_KEY]
        self._forms = [_form_of_writing(text) for value in values for text in dict.fromkeys(_key_writings(value))]

    def hidden_in(self, text: str) -> str:
        """The text with a mark for every trace of a key."""
        return self._mark_traces(text, 0)

    def hidden_in_value(self, value: Any) -> Any:
        """The same for every text in a value: a record, a list, the keys and values of a mapping."""
        match value:
            case str():
                return self.hidden_in(value)
            case dict():
                return {self.hidden_in_value(name): self.hidden_in_value(inner) for name, inner in value.items()}
            case list() | tuple():
                return type(value)(map(self.hidden_in_value, value))
            case Struct():
                return structs.replace(value, **self.hidden_in_value(structs.asdict(value)))
            case _:
                return value

    def _mark_traces(self, text: str, shorter: int) -> str:
        """Pieces count that lack so many letters, which were let through before."""
        lowered = text.translate(_LOWER)
        spans = sorted(span for form in self._forms for span in _form_spans(form, lowered, shorter))
        parts: list[str] = []
        end = 0
        for start, stop in spans:
            if start >= end:
                parts += [text[end:start], MARK] if start > end or not parts else []
            end = max(end, stop)
        return "".join([*parts, text[end:]]) if spans else text

    def open_run(self, text: str) -> int:
        """How many letters at the end of a text stand in a key in the same order; 0 if they are few."""
        lowered, run = text.translate(_LOWER), SHORTEST_RUN
        while run <= len(lowered) and any(lowered[-run:] in form.text for form in self._forms):
            run += 1
        return 0 if run == SHORTEST_RUN else run - 1


class StreamedText:
    """A text that comes in pieces: what may be the beginning of a key is held back until it is seen how it goes on."""

    def __init__(self, traces: KeyTraces) -> None:
        self._traces, self._before, self._held = traces, "", ""

    def add(self, piece: str) -> str:
        """What can be let through now."""
        text = self._held + piece
        held = min(self._traces.open_run(self._before + text), len(text))
        ready, self._held = text[: len(text) - held], text[len(text) - held :]
        return self._let_through(ready)

    def end(self) -> str:
        """What was held back, when nothing more comes."""
        ready, self._held = self._held, ""
        return self._let_through(ready)

    def _let_through(self, text: str) -> str:
        shown = self._traces._mark_traces(text, len(self._before))
        self._before = (self._before + text)[-(SHORTEST_RUN - 1) :]
        return shown


def _key_writings(key: str) -> Iterator[str]:
    """The key as it is sent, and the forms that others write it in; base64 at each of its three alignments."""
    yield key
    yield quote(key, safe="")
    yield "".join(f"%{ord(letter):02x}" for letter in key)
    yield key.encode().hex()
    for offset, unsure in ((0, 0), (1, 2), (2, 3)):
        encoded = base64.b64encode(bytes(offset) + key.encode()).decode().rstrip("=")[unsure:-1]
        yield encoded
        yield encoded.translate(_URLSAFE)


def _form_of_writing(writing: str) -> _Form:
    text = writing.translate(_LOWER)
    length = max(SHORTEST_KEY, min(LONGEST_PIECE, len(text) // 2))
    pieces = frozenset(text[start : start + length] for start in range(len(text) - length + 1))
    half = (length - SHORTEST_RUN + 1) // 2
    blocks = tuple(text[start : start + half] for start in range(0, len(text) - half + 1, half))
    return _Form(text, length, pieces, blocks)


def _form_spans(form: _Form, lowered: str, shorter: int) -> Iterator[tuple[int, int]]:
    if not any(block in lowered for block in form.blocks):
        return
    length = form.length - shorter
    pieces = form.pieces if not shorter else {piece[shorter:] for piece in form.pieces}
    for start in range(len(lowered) - length + 1):
        if lowered[start : start + length] in pieces:
            yield start, start + length
