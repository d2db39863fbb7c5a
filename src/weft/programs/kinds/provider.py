"""Providers: a server that has models, and the variables that its keys are in."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

from weft.kernel import program_events
from weft.kernel.errors import InvalidConfig
from weft.programs.config_fields import filled, flag, member, no_secret, number, or_variable
from weft.programs.kinds import published
from weft.programs.kinds.kind import Config, KindRow
from weft.programs.kinds.vendor_names import refuse_provider_name
from weft.programs.machine_names import CREDENTIAL, FOLDER, NOTHING, PRIVATE_HOSTS, SERVICE, URL, VARIABLES

PROVIDER_KEYS = ("apiKey", "token", "key", "secret", "password")


def server_url(path: str, value: Any) -> str:
    """Scheme, host and path of a server, and nothing that would be a key."""
    url = filled(path, value)
    try:
        parts = urlsplit(url)
    except ValueError:
        raise InvalidConfig(path, "cannot be read", "write it as https://host/path") from None
    if "@" in parts.netloc:
        raise InvalidConfig(path, "carries a user or password", "put the key into a variable, and name it in apiKey")
    if parts.query or parts.fragment:
        raise InvalidConfig(path, "goes on after its path", "leave out what begins with ? or #; a key goes into apiKey")
    if parts.scheme not in ("http", "https") and not url.startswith("${"):
        raise InvalidConfig(path, "is no http(s) address", "write it as https://host/path")
    return url


def refuse_headers(path: str, value: Any) -> Any:
    """Headers of one's own are not sent, so a configuration that has them is refused."""
    raise InvalidConfig(path, "cannot be given: they are not sent", "take them out; a key goes into apiKey")


def _without_moved_keys(before: Config, merged: Config, changes: Config) -> Config:
    """A provider that moves to another server leaves its keys behind, unless they are given anew."""
    if not isinstance(merged, dict) or not _moves(before, merged):
        return merged
    return {name: value for name, value in merged.items() if name not in PROVIDER_KEYS or name in changes}


def _moves(before: Config, after: Config) -> bool:
    """Whether requests would go to somebody else: another server, another vendor's own, another account's gateway."""
    account = before.get("accountId")
    return _server(before) != _server(after) or (account is not None and account != after.get("accountId"))


def _server(config: Config) -> tuple[str, str]:
    """Scheme and host, or where no URL is given the vendor."""
    if not isinstance(config.get("baseUrl"), str):
        return "", str(config.get("providerType"))
    parts = urlsplit(config["baseUrl"])
    return parts.scheme, parts.netloc.casefold()


PROVIDER = KindRow(
    facts=program_events.PROVIDER,
    required=("providerType",),
    fields={
        "providerType": filled,
        "baseUrl": server_url,
        "accountId": filled,
        "gatewayId": filled,
        "api": or_variable(member("chat", "responses")),
        "credential": filled,
        "gatewayCredential": filled,
        "allowPrivate": or_variable(flag),
        "caFile": filled,
        **dict.fromkeys(("connectSeconds", "readSeconds", "timeout"), number(0)),
        "headers": refuse_headers,
        **dict.fromkeys(PROVIDER_KEYS, no_secret),
    },
    machine={
        "baseUrl": URL,
        **dict.fromkeys(("providerType", "accountId", "gatewayId"), SERVICE),
        **dict.fromkeys(("credential", "gatewayCredential"), CREDENTIAL),
        "allowPrivate": PRIVATE_HOSTS,
        "caFile": FOLDER,
        **dict.fromkeys(("api", "connectSeconds", "readSeconds", "timeout"), VARIABLES),
        **dict.fromkeys(("apiKey", "token", "key", "secret", "password"), VARIABLES),
        "headers": NOTHING,
    },
    holds_keys=True,
    changed=_without_moved_keys,
    refuse_name=refuse_provider_name,
    file_states=published.FILE_STATES,
    state_in_use=published.STATE_IN_USE,
    steps=published.STEPS,
    ended_states=published.ENDED_STATES,
)
