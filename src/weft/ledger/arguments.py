"""Arguments as they must be before anything looks at them: what does not fit is refused in words, never by accident."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from datetime import tzinfo
from functools import lru_cache
from itertools import repeat
from pathlib import Path
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType
from msgspec.structs import asdict

from weft.kernel.clock import is_ulid
from weft.kernel.contents import MAX_INTEGER
from weft.kernel.enums import MessageRole
from weft.kernel.errors import Action, Hint, InvalidInput, StoreError, Unsupported, hidden_address, quoted
from weft.kernel.events import Usage
from weft.kernel.foreign_input import is_digest
from weft.kernel.typed_names import (
    IN_MEMORY,
    Site,
    ensure_plain_path,
    is_visible,
    look_alikes,
    normal_form,
    visible_form,
)
from weft.ledger.dialects import foreign_usage, joined, plain, tool_use, translated
from weft.ledger.model import (
    DEFAULT_AGENT,
    Message,
    NewMessage,
    NewToolCall,
    Part,
    StoredContent,
    T,
    ToolUsePart,
)

_TOKEN_FIELDS = frozenset(Usage.__struct_fields__)
_DISJOINT = ("input_tokens", "cached_input_tokens", "cache_write_tokens", "output_tokens")
"""Counts of tokens that have nothing in common, so that their sum is a total."""


def checked_content(value: Any, what: str) -> str:
    """Text as a content may hold it, which a lone surrogate may be in."""
    if not isinstance(value, str):
        raise InvalidInput(f"{what} is {quoted(value)}, not text", "give it as text")
    return value


def checked_text(value: Any, what: str) -> str:
    """Text that a database can be asked for."""
    text = checked_content(value, what)
    try:
        text.encode()
    except UnicodeEncodeError:
        raise InvalidInput(
            f"{what} {quoted(text)} has a lone surrogate, which nothing is called by", "give well-formed text"
        ) from None
    return text


def checked_names(value: Any, what: str) -> list[str]:
    """One name, or several."""
    if isinstance(value, bytes | bytearray) or not isinstance(value, Iterable):
        raise InvalidInput(f"{what} is {quoted(value)}", "give a name, or a list of names")
    return [checked_text(name, what) for name in ([value] if isinstance(value, str) else value)]


def checked_list(value: Any, what: str) -> list[Any]:
    """Several, of whatever kind; text is none."""
    if isinstance(value, str | bytes | bytearray) or not isinstance(value, Iterable):
        raise InvalidInput(f"{what} is {quoted(value)}", "give a list")
    return list(value)


def checked_number(value: Any, what: str) -> int:
    if type(value) is not int or abs(value) > MAX_INTEGER:
        raise InvalidInput(f"{what} is {quoted(value)}", "it is a whole number below 2^53")
    return value


def checked_count(value: Any, what: str) -> int:
    if type(value) is not int or not 0 <= value <= MAX_INTEGER:
        raise InvalidInput(f"{what} is {quoted(value)}", "it is a whole number from 0")
    return value


def checked_whole(value: Any, what: str) -> int | UnsetType:
    """A number as an event may hold it: whole, and exact in every reader."""
    if value is None:
        return UNSET
    if type(value) is not int or abs(value) > MAX_INTEGER:
        raise InvalidInput(f"{what} is {quoted(value)}", "it is a whole number below 2^53")
    return value


def checked_id(value: str, what: str) -> str:
    if not isinstance(value, str) or not is_ulid(value):
        raise InvalidInput(f"{what}: {quoted(value)} is not an id of this ledger", "pass the full 26-letter id")
    return value


def checked_event(value: str, what: str) -> str:
    if not isinstance(value, str) or not is_digest(value):
        raise InvalidInput(f"{what}: {quoted(value)} is not the id of an event", "pass all 64 digits")
    return value


def checked_member(enum: Any, value: Any, what: str) -> Any:
    """A member of an enumeration of texts, given as itself or by its value. Whatever is no text is not given to
    `enum`, which writes out what it refuses: Python cannot do that with every value."""
    try:
        return enum(value if isinstance(value, str) else "")
    except ValueError:
        members = ", ".join(enum)
        raise InvalidInput(f"{what} is {quoted(value)}", f"it is one of {members}") from None


def checked_members(enum: Any, values: Any, what: str) -> list[Any]:
    """Several members of an enumeration, or one."""
    return [checked_member(enum, value, what) for value in checked_names(values, what)]


def checked_record(value: Any, record: type[T], what: str) -> T:
    """A record that a verb gave, as it is."""
    if not isinstance(value, record):
        raise InvalidInput(f"{what} is {quoted(value)}", f"give a {record.__name__}")
    return value


def checked_seconds(value: Any, what: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not value >= 0:
        raise InvalidInput(f"{what} is {quoted(value)}", "it is a number of seconds from 0")
    return min(value, MAX_INTEGER)


def checked_flag(value: Any, what: str) -> bool:
    if not isinstance(value, bool):
        raise InvalidInput(f"{what} is {quoted(value)}", "it is True or False")
    return value


def checked_progress(value: Any) -> Any:
    if value is not None and not callable(value):
        raise InvalidInput(f"progress is {type(value).__name__}", "give a function that is told how far it is")
    return value


def checked_call(value: Any, what: str) -> Any:
    if value is not None and not callable(value):
        raise InvalidInput(f"{what} is {type(value).__name__}", "give a function without arguments")
    return value


def checked_zone(value: Any) -> tzinfo:
    if not isinstance(value, tzinfo):
        raise InvalidInput(f"zone is {quoted(value)}", "give a time zone: zoneinfo.ZoneInfo(…)")
    return value


def checked_paths(value: Any, what: str) -> list[str | os.PathLike[str]]:
    """Several of them; one alone is no list of its letters."""
    if isinstance(value, str | bytes | os.PathLike) or not isinstance(value, Iterable):
        raise InvalidInput(f"{what} is {quoted(value)}", "give a list of paths")
    return list(value)


def checked_path(value: Any, what: str) -> Path:
    """A path in words; `os.PathLike` counts, bytes do not."""
    text = os.fspath(value) if isinstance(value, os.PathLike) else value
    if not isinstance(text, str) or not text or "\0" in text:
        raise InvalidInput(f"{what} is {quoted(value)}", "give a path as text")
    try:
        os.fsencode(text)
    except UnicodeEncodeError:
        raise InvalidInput(f"{what} {quoted(text)} cannot be the name of a file", "give another path") from None
    return Path(text)


def checked_place(value: Any, what: str) -> Path:
    """A path that a database can be opened at, and that can be noted in one."""
    path = checked_path(value, what)
    try:
        str(path).encode()
    except UnicodeEncodeError:
        raise InvalidInput(f"{what} {quoted(str(path))} is not UTF-8", "give another path") from None
    return path


def checked_file(value: Any, what: str, hint: Hint) -> Path:
    """The path of a file, where an address will not do; nothing of one is told, it may hold a password."""
    path = checked_place(value, what)
    if (site := Site.of(os.fspath(value))) is not Site.FILE:
        kind = "the address of a server" if site.is_address else IN_MEMORY
        raise Unsupported(f"{what} is {kind}, not a file", hint)
    if not os.path.exists(path):
        ensure_plain_path(str(path))
    return path


def path_error(path: Path, error: OSError) -> StoreError:
    return StoreError(f"{hidden_address(str(path))}: {error.strerror or error}", Action.CHECK_PATH)


LABEL_LIMIT = 512
ADDRESS_MARKS = ("~", "@{", "^")
_DEPTH = re.compile(r"(?<=.)#(?=\d+$)")
"""`main#3` is the third turn of `main`."""


def agent_named(agent: str | None, persona: Any) -> Any:
    """The agent that a caller names as `agent`, or as `persona`, which is the earlier spelling."""
    if agent is not None and persona not in (None, DEFAULT_AGENT, agent):
        raise InvalidInput("agent and persona name two agents", "give agent alone")
    return persona if agent is None else agent


def checked_label(label: Any, what: str = "label") -> str:
    """The label in its normal form. Labels are words people type: they can be seen, have no spaces at the ends, read
    like no other label, and are not to be mistaken for an address or an option."""
    text = checked_length(label, what)
    return _checked_words(text if text.isascii() else normal_form(text), what)


def checked_length(text: Any, what: str) -> str:
    if not isinstance(text, str) or not text or len(text) > LABEL_LIMIT:
        raise InvalidInput(f"{what} is {quoted(text)}", f"it is text of 1 to {LABEL_LIMIT} characters")
    return text


@lru_cache(maxsize=1024)
def _checked_words(label: str, what: str) -> str:
    is_plain = label.isascii() and label.isprintable()
    if not (is_plain or is_visible(label)) or label != label.strip():
        raise InvalidInput(f"{what} {quoted(label)} has invisible characters", "use printable characters only")
    if any(mark in label for mark in ADDRESS_MARKS) or _DEPTH.search(label):
        raise InvalidInput(f"{what} {quoted(label)} looks like an address", "leave out ~, ^, @{ and #number at the end")
    if label.startswith("-"):
        raise InvalidInput(f"{what} {quoted(label)} looks like an option", "begin with another character than -")
    if not is_plain and (letters := look_alikes(label)):
        codes = ", ".join(f"U+{ord(letter):04X}" for letter in sorted(letters))
        raise InvalidInput(
            f"{what} {quoted(label)} has characters that look like others ({codes})",
            "write a word in the letters of one script",
        )
    return label


def cleaned_label(text: str) -> str:
    """The nearest label that `checked_label` takes: what another program wrote must not act on a terminal, read like
    another label or shadow an address. Empty when nothing is left."""
    label = text[:LABEL_LIMIT]
    label = label if label.isascii() and label.isprintable() else visible_form(label)
    for mark in ADDRESS_MARKS:
        label = label.replace(mark, "-")
    label = _DEPTH.sub("-", label.strip())
    return f"_{label[1:]}" if label.startswith("-") else label


def as_record(value: Any, record: type[T], what: str) -> T:
    """A record, or a dict of its shape; anything else is refused with the field that does not fit."""
    if isinstance(value, record):
        return value
    try:
        return msgspec.convert(value, record, from_attributes=False)
    except msgspec.ValidationError as error:
        raise InvalidInput(f"{what}: {error}") from error
    except UnicodeEncodeError as error:
        raise InvalidInput(f"{what}: a lone surrogate stands where no text is taken") from error


def as_messages(value: Any, role: MessageRole, what: str, levels: int = 8) -> list[NewMessage]:
    """Plain text, a message, or a list of either, in order; lists within lists count as one. A message may be one of
    OpenAI's or Anthropic's, as it comes."""
    if value is None:
        return []
    if type(value) is str or isinstance(value, str | StoredContent):
        return [NewMessage(role=role, content=value)]
    if isinstance(value, list | tuple):
        if not levels:
            raise InvalidInput(f"{what} lies within too many lists", "give one list of messages")
        if role == MessageRole.SYSTEM and value and all(map(_is_text_block, value)):
            return as_messages({"role": role.value, "content": list(value)}, role, what, levels)
        lists = [as_messages(item, role, f"{what}[{i}]", levels - 1) for i, item in enumerate(value)]
        return joined(message for messages in lists for message in messages)
    if isinstance(value, Message):
        return [_copied_message(value, what)]
    return _as_message(value, role, what)


def _is_text_block(value: Any) -> bool:
    """Is it a part of Anthropic's system prompt?"""
    return isinstance(value, dict) and "role" not in value and value.get("type") == "text"


def _as_message(value: Any, role: MessageRole, what: str) -> list[NewMessage]:
    """A message of the ledger's own form first; of an API's if it is none."""
    if isinstance(value, Part) or (isinstance(value, dict) and "type" in value and "content" not in value):
        if (messages := _foreign_messages(value, role, what)) is None:
            raise InvalidInput(f"{what} is a part of a message", 'give it in a message: {"content": [part, …]}')
        return messages
    try:
        return [_native_message(value, role, what)]
    except InvalidInput:
        fields = plain(value)
        if (messages := _foreign_messages(fields, role, what)) is not None:
            return messages
        if fields == value:
            raise
    return [_native_message(fields, role, what)]


def _native_message(value: Any, role: MessageRole, what: str) -> NewMessage:
    named = {"role": role.value, **value} if isinstance(value, dict) and "role" not in value else value
    return as_record(named, NewMessage, what)


def _foreign_messages(value: Any, role: MessageRole, what: str) -> list[NewMessage] | None:
    messages = translated(value, role, what) if isinstance(value, dict) else None
    return None if messages is None else list[NewMessage](messages)


def as_calls(value: Any) -> tuple[list[NewToolCall], list[ToolUsePart]]:
    """Tool calls with their outcomes; and those in the form of an API, which has no outcomes."""
    if value is not None and not isinstance(value, list | tuple):
        raise InvalidInput(f"tool_calls is {type(value).__name__}", "it is a list of tool calls")
    calls: list[NewToolCall] = []
    uses: list[ToolUsePart] = []
    for number, call in enumerate(value or ()):
        what = f"tool_calls[{number}]"
        try:
            record = as_record(call, NewToolCall, what)
            if record.id is not None and not isinstance(record.id, str):
                raise InvalidInput(f"{what}: id is {type(record.id).__name__}, not text", "give it as text")
            calls.append(record)
        except InvalidInput:
            if not isinstance(fields := plain(call), dict) or ("type" not in fields and "function" not in fields):
                raise
            uses.append(tool_use(fields, what))
    return calls, uses


def _copied_message(message: Message, what: str) -> NewMessage:
    """A message that was read, to be recorded as a new one: all of it but its id, its place and its time."""
    fields = "content source model thinking_config context metadata".split()
    values = {name: getattr(message, name) for name in fields}
    return as_record({"role": message.role, **values}, NewMessage, what)


def as_usage(value: Any) -> Usage | UnsetType:
    """The agents ledger's token fields, or an API's usage that says nothing more than those."""
    usage, rest = as_usage_and_rest(value)
    if rest:
        raise InvalidInput(
            f"usage: {', '.join(rest)} can be kept only beside an answer", "give the usage with the response"
        )
    return usage


def as_usage_and_rest(value: Any) -> tuple[Usage | UnsetType, dict[str, Any]]:
    """The agents ledger's token fields, and what an API's usage says besides. A total that is not the sum of its
    disjoint parts is refused."""
    if value is None:
        return UNSET, {}
    tokens = _given_tokens(value) if isinstance(value, Usage) else value
    if type(tokens) is not dict or not tokens.keys() <= _TOKEN_FIELDS:
        tokens = plain(tokens)
        if not isinstance(tokens, dict):
            raise InvalidInput(
                f"usage is {type(value).__name__}, not a dict", f"known: {', '.join(sorted(_TOKEN_FIELDS))}"
            )
        if (foreign := foreign_usage(tokens)) is not None:
            return foreign.usage, foreign.rest
    for name, count in tokens.items():
        if name not in _TOKEN_FIELDS:
            raise InvalidInput(f"usage: unknown field {quoted(name)}", f"known: {', '.join(sorted(_TOKEN_FIELDS))}")
        if type(count) is not int or not 0 <= count < 2**53:
            raise InvalidInput(f"usage: {name} is {quoted(count)}", "token counts are whole numbers from 0")
    if "total_tokens" in tokens:
        _check_total(tokens)
    _check_one_hour(tokens)
    if (total := sum(map(tokens.get, _DISJOINT, repeat(0)))) >= 2**53:
        raise InvalidInput(f"usage: its parts add up to {total}", "a turn has at most 2^53-1 tokens")
    return Usage(**tokens), {}


def summed_usage(usages: Iterable[Usage | UnsetType]) -> Usage | UnsetType:
    """What several answers of one turn took together; a field that none of them tells stays untold."""
    counted = [_given_tokens(usage) for usage in usages if isinstance(usage, Usage)]
    if not counted:
        return UNSET
    names = sorted({name for tokens in counted for name in tokens if name != "total_tokens"})
    return as_usage({name: sum(tokens.get(name, 0) for tokens in counted) for name in names})


def _given_tokens(usage: Usage) -> dict[str, int]:
    return {name: count for name, count in asdict(usage).items() if count is not UNSET}


def _check_one_hour(tokens: dict[str, int]) -> None:
    one_hour, written = tokens.get("cache_write_1h_tokens", 0), tokens.get("cache_write_tokens", 0)
    if one_hour > written:
        raise InvalidInput(
            f"usage: cache_write_1h_tokens is {one_hour}, cache_write_tokens is {written}",
            "what is written to the cache for an hour is a part of cache_write_tokens: count it there, too",
        )


def _check_total(tokens: dict[str, int]) -> None:
    parts = [tokens[part] for part in _DISJOINT if part in tokens]
    if parts and tokens["total_tokens"] != sum(parts):
        raise InvalidInput(
            f"usage: total_tokens is {tokens['total_tokens']}, its parts add up to {sum(parts)}",
            "input_tokens excludes cache reads and writes; reasoning_tokens lie inside output_tokens",
        )
