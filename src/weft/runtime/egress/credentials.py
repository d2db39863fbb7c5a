"""Keys: where each is to be found, for which origin and for whom. Never the key itself.

A credential is a name for a place: an environment variable, or a command that prints the key. What is read there is a
`Secret`, which shows itself to nobody who does not ask for it by name, and is asked for in one place:
where a connection puts it into a header.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Coroutine, Iterable, Mapping
from typing import Any, NoReturn
from urllib.parse import urlsplit

from msgspec import Struct

from weft.kernel.errors import Action, CredentialMissing, CredentialWithheld, InvalidInput, hidden_address, quoted

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
        raise InvalidInput(f"credential {found.id!r} names no place", Action.GIVE_ONE_KEY_SOURCE)
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
        raise InvalidInput(f"URL {_shown(url)} cannot be read", _FORM) from None
    if parts.scheme not in _DEFAULT_PORTS or not host:
        raise InvalidInput(f"URL {_shown(url)} has no http(s) origin", _FORM)
    if parts.username is not None or parts.password is not None:
        raise InvalidInput(f"the URL of {host} carries a user or password", "keep it as a credential instead")
    shown = f"[{host}]" if ":" in host else host
    return f"{parts.scheme}://{shown}" + ("" if port in (None, _DEFAULT_PORTS[parts.scheme]) else f":{port}")


def _shown(url: str) -> str:
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
            value = None if self._variable is None else self._variable(found.env)
            if not value or not value.strip():
                raise CredentialMissing(found.id, f"the variable {found.env} is not set", f"set {found.env}")
        else:
            if self._run is None:
                raise CredentialMissing(found.id, "commands cannot be run here", "keep the key in a variable")
            value = await self._run(found.command)
            if not value.strip():
                raise CredentialMissing(found.id, "its command printed nothing", "run the command yourself and look")
        return checked_secret(found.id, value)


def checked_secret(name: str, value: str) -> Secret:
    """A key as it can stand in a header; what is wrong with one that cannot is told without showing it."""
    key = value.strip()
    if not key.isascii() or not key.isprintable():
        raise CredentialMissing(name, "what is found there is no key: it has characters no header can hold")
    return Secret(key)
