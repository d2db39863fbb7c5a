"""What each kind of program is configured by: tables of fields, checked and brought to one form.

Fields that a table does not know stay as they are. References come in any spelling and are kept as `@(id)`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import urlsplit

from msgspec import Struct

from weft.kernel.contents import ROW_BYTES, json_bytes
from weft.kernel.enums import InfoType, ProgramKind, ReferenceField
from weft.kernel.errors import InvalidConfig
from weft.programs.addresses import ProgramAddress, is_address, parse_address
from weft.programs.criteria import checked_criteria
from weft.programs.placeholders import PLACEHOLDER, is_placeholder

Check = Callable[[str, Any], Any]
"""Takes a path and a value; returns the value in its one form, or raises InvalidConfig."""
RIGHTS = ("approve", "assign", "configure")
CHANNELS = ("terminal", "command", "webhook")
MOST_FALLBACKS = 8
PRIORITIES = ("P0", "P1", "P2", "P3", "P4")
LANGUAGES = ("javascript", "typescript", "python")
SOULS = ("soul", "systemPrompt", "personality")
"""One thing under three names; kept as the identity's soul."""
IDENTITY = ("name", "emoji", "avatar", "description")
RUNTIME = ("currentTask", "currentSession", "turnCount", "lastCheckpoint")
"""Told from events, never kept; a configuration that was read may be given again with them."""
PROVIDER_KEYS = ("apiKey", "token", "key", "secret", "password")
_KEY_ENDINGS = ("key", "token", "secret", "password", "passwd", "authorization")
"""What the names of fields end with that hold keys, however they are spelt."""


class Named(Struct, frozen=True):
    """A program that a configuration names: as what, where, and of which kind it must be."""

    field: ReferenceField
    path: str
    address: ProgramAddress
    kinds: tuple[ProgramKind, ...]


ACTORS = (ProgramKind.AGENT, ProgramKind.HUMAN)


def checked_config(kind: ProgramKind, config: Any) -> dict[str, Any]:
    """A configuration in its one form."""
    if not isinstance(config, dict):
        raise InvalidConfig("config", f"{config!r:.80} is no object", "give it as a JSON object")
    if len(json_bytes(config, "config")) > ROW_BYTES:
        raise InvalidConfig(
            "config", f"it is larger than {ROW_BYTES} bytes", "keep what is large in a file and name that"
        )
    given = {name: value for name, value in config.items() if name not in RUNTIME}
    if kind is ProgramKind.AGENT:
        given = _agent(given)
    required, fields = TABLES[kind]
    for name in required:
        if name not in given:
            raise InvalidConfig(f"config.{name}", "is missing", f"a {kind} needs {', '.join(required)}")
    made = {name: fields[name](f"config.{name}", one) if name in fields else one for name, one in given.items()}
    if kind in (ProgramKind.PROVIDER, ProgramKind.MODEL):
        _refuse_secrets("config", made)
    return made


def _agent(config: dict[str, Any]) -> dict[str, Any]:
    """Identity, permissions, tools, harness, default model, visibility, whoever made it: as it is kept."""
    identity = object_("config.identity", config.get("identity", {}))
    taken = {name: value for name, value in {**config, **identity}.items() if name in (*SOULS, *IDENTITY)}
    souls = {taken.pop(name) for name in SOULS if isinstance(taken.get(name), str)}
    if len(souls) > 1:
        raise InvalidConfig(
            "config.identity.soul", "is given twice, differently", f"{', '.join(SOULS)} are one thing: give one of them"
        )
    made = {name: text(f"config.identity.{name}", value) for name, value in taken.items()}
    if souls:
        made["soul"] = souls.pop()
    rest = {name: value for name, value in config.items() if name not in (*SOULS, *IDENTITY, "identity")}
    more = {name: value for name, value in identity.items() if name not in (*SOULS, *IDENTITY)}
    return {"identity": {**more, **made}, **rest}


def references(kind: ProgramKind, config: dict[str, Any]) -> Iterator[Named]:
    """Every program that a checked configuration names."""
    for name, (field, kinds) in REFERENCES[kind].items():
        value = config.get(name)
        many = value if isinstance(value, list) else [] if value is None else [value]
        for i, one in enumerate(many):
            if isinstance(one, str) and is_address(one):
                path = f"config.{name}[{i}]" if isinstance(value, list) else f"config.{name}"
                yield Named(field, path, parse_address(one), kinds)


# --- single fields ----------------------------------------------------------------------------------------------


def text(path: str, value: Any) -> str:
    if not isinstance(value, str):
        raise InvalidConfig(path, f"{value!r:.80} is no text", "give text")
    return value


def filled(path: str, value: Any) -> str:
    if not text(path, value).strip():
        raise InvalidConfig(path, "is empty", "give text")
    return str(value)


def flag(path: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise InvalidConfig(path, f"{value!r:.80} is neither true nor false", "give true or false")
    return value


def object_(path: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise InvalidConfig(path, f"{value!r:.80} is no object", "give an object")
    return value


def texts(path: str, value: Any) -> list[str]:
    if not isinstance(value, list):
        raise InvalidConfig(path, f"{value!r:.80} is no list", "give a list of texts")
    return [text(f"{path}[{i}]", one) for i, one in enumerate(value)]


def number(low: float, high: float | None = None) -> Check:
    def check(path: str, value: Any) -> Any:
        if isinstance(value, str) and PLACEHOLDER.fullmatch(value):
            return value
        if isinstance(value, bool) or not isinstance(value, int | float) or value < low or (high and value > high):
            raise InvalidConfig(path, f"{value!r:.80} is out of range", f"give a number from {low} to {high or 'any'}")
        return value

    return check


def count(path: str, value: Any) -> int:
    if type(value) is not int or value < 1:
        raise InvalidConfig(path, f"{value!r:.80} is no count", "give a whole number from 1")
    return value


def member(*of: str) -> Check:
    def check(path: str, value: Any) -> str:
        if value not in of:
            raise InvalidConfig(path, f"{value!r:.80} is not known", f"one of {', '.join(of)}")
        return str(value)

    return check


def members(*of: str) -> Check:
    one = member(*of)

    def check(path: str, value: Any) -> list[str]:
        return [one(f"{path}[{i}]", each) for i, each in enumerate(texts(path, value))]

    return check


def fields_of(**fields: Check) -> Check:
    def check(path: str, value: Any) -> dict[str, Any]:
        given = object_(path, value)
        return {name: fields[name](f"{path}.{name}", one) if name in fields else one for name, one in given.items()}

    return check


def reference(path: str, value: Any) -> str:
    return str(parse_address(value, path))


def reference_list(path: str, value: Any) -> list[str]:
    if not isinstance(value, list):
        raise InvalidConfig(path, f"{value!r:.80} is no list", "give a list of addresses")
    return [reference(f"{path}[{i}]", one) for i, one in enumerate(value)]


def _fallbacks(path: str, value: Any) -> list[str]:
    found = reference_list(path, value)
    if len(found) > MOST_FALLBACKS:
        raise InvalidConfig(path, f"names {len(found)} models", f"name at most {MOST_FALLBACKS}")
    return found


def no_secret(path: str, value: Any) -> Any:
    """A key stands in the environment, and the configuration names the variable."""
    if not is_placeholder(value):
        raise InvalidConfig(
            path, "would store a secret in the ledger", "write ${VARIABLE}; the key is read from there when it is used"
        )
    return value


def _refuse_secrets(path: str, value: Any) -> None:
    """Whatever a field for a key is called, and wherever it stands, it names a variable."""
    for name, one in value.items() if isinstance(value, dict) else ():
        if isinstance(one, str) and name.casefold().endswith(_KEY_ENDINGS):
            no_secret(f"{path}.{name}", one)
        _refuse_secrets(f"{path}.{name}", one)
    for i, one in enumerate(value) if isinstance(value, list) else ():
        _refuse_secrets(f"{path}[{i}]", one)


def server_url(path: str, value: Any) -> str:
    """Scheme, host and path of a server, and nothing that would be a key."""
    url = filled(path, value)
    try:
        parts = urlsplit(url)
    except ValueError as error:
        raise InvalidConfig(path, str(error), "write it as https://host/path") from None
    if "@" in parts.netloc:
        raise InvalidConfig(path, "carries a user or password", "put the key into a variable, and name it in apiKey")
    if parts.query or parts.fragment:
        raise InvalidConfig(path, "goes on after its path", "leave out what begins with ? or #; a key goes into apiKey")
    if parts.scheme not in ("http", "https") and not url.startswith("${"):
        raise InvalidConfig(path, "is no http(s) address", "write it as https://host/path")
    return url


def no_headers(path: str, value: Any) -> Any:
    """What a request carries beside its words is decided where it is sent; a header of one's own would go unsent."""
    raise InvalidConfig(path, "cannot be given: they are not sent", "take them out; a key goes into apiKey")


def _situations(path: str, value: Any) -> dict[str, Any]:
    return {name: PARAMETERS(f"{path}.{name}", one) for name, one in object_(path, value).items()}


_numbers: dict[str, Check] = {"temperature": number(0, 2), "maxTokens": count, "topP": number(0, 1)}
PARAMETERS = fields_of(**_numbers)
_HARNESS = fields_of(maxTurns=count, reflectOnFailure=flag, checkpointEvery=count)
_SPEC = fields_of(inputs=texts, outputs=texts, constraints=texts, successCriteria=checked_criteria)
_RULES = fields_of(allow=texts, deny=texts)
_PERMISSIONS = fields_of(tools=_RULES, credentials=texts, programs=members(*RIGHTS))
TABLES: dict[ProgramKind, tuple[tuple[str, ...], dict[str, Check]]] = {
    ProgramKind.CODE: (("source",), {"language": member(*LANGUAGES), "source": filled, "description": text}),
    ProgramKind.PROVIDER: (
        ("providerType",),
        {
            "providerType": filled, "baseUrl": server_url, "accountId": filled, "gatewayId": filled,
            "headers": no_headers, **dict.fromkeys(PROVIDER_KEYS, no_secret),
        },
    ),
    ProgramKind.MODEL: (
        ("modelId", "provider"),
        {
            "name": text, "modelId": filled, "provider": reference, **_numbers,
            "situations": _situations, "fallbacks": _fallbacks,
        },
    ),
    ProgramKind.SESSION: ((), {"defaultModel": reference}),
    ProgramKind.AGENT: (
        (),
        {
            "permissions": _PERMISSIONS, "tools": texts, "harness": _HARNESS, "defaultModel": reference,
            "visibility": member("public", "private"), "createdBy": text,
        },
    ),
    ProgramKind.TASK: (
        ("title",),
        {
            "title": filled, "spec": _SPEC, "assignee": reference, "priority": member(*PRIORITIES),
            "dependencies": reference_list, "workspace": filled,
        },
    ),
    ProgramKind.INFORMATION: (
        ("infoType", "content"),
        {"infoType": member(*InfoType), "schema": reference, "sources": reference_list},
    ),
    ProgramKind.HUMAN: (
        (),
        {
            "name": text, "permissions": members(*RIGHTS),
            "preferences": fields_of(notificationChannel=member(*CHANNELS)),
        },
    ),
}  # fmt: skip
REFERENCES: dict[ProgramKind, dict[str, tuple[ReferenceField, tuple[ProgramKind, ...]]]] = {
    ProgramKind.CODE: {},
    ProgramKind.PROVIDER: {},
    ProgramKind.MODEL: {
        "provider": (ReferenceField.PROVIDER, (ProgramKind.PROVIDER,)),
        "fallbacks": (ReferenceField.FALLBACK, (ProgramKind.MODEL,)),
    },
    ProgramKind.SESSION: {"defaultModel": (ReferenceField.DEFAULT_MODEL, (ProgramKind.MODEL,))},
    ProgramKind.AGENT: {
        "defaultModel": (ReferenceField.DEFAULT_MODEL, (ProgramKind.MODEL,)),
        "tools": (ReferenceField.TOOL, (ProgramKind.CODE,)),
    },
    ProgramKind.TASK: {
        "assignee": (ReferenceField.ASSIGNEE, ACTORS),
        "dependencies": (ReferenceField.DEPENDENCY, (ProgramKind.TASK,)),
    },
    ProgramKind.INFORMATION: {
        "schema": (ReferenceField.SCHEMA, (ProgramKind.INFORMATION,)),
        "sources": (ReferenceField.SOURCE, tuple(ProgramKind)),
    },
    ProgramKind.HUMAN: {},
}
