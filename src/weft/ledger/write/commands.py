"""Commands that are done once: a caller's retry key, a digest of what was asked for, and the first answer.

The key is written in the transaction of its command. A command that fails therefore leaves no key, and of two that are
sent at once with one key the second finds the first one's answer. Keys are kept for 30 days, as digests.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from hashlib import sha256
from typing import Any

from msgspec import UNSET, Struct
from msgspec.structs import asdict

from weft.kernel.authority import LOCAL, Authority
from weft.kernel.contents import json_bytes
from weft.kernel.errors import InvalidInput, KeyTaken
from weft.kernel.weft_error import quoted
from weft.ledger.write.append import Append
from weft.store.sql import Sql

KEPT_MS = 30 * 24 * 3600 * 1000
_LATER_FIELDS = frozenset({("Usage", "cache_write_1h_tokens")})
"""Fields that types got after requests were first digested. Where they are unset, the digest is that of before."""


class KeyedCommand(Struct, frozen=True):
    """A command that carries a retry key."""

    name: str
    key: str
    request: bytes
    """A digest of everything that was asked for."""

    @property
    def key_digest(self) -> bytes:
        return sha256(self.key.encode("utf-8", "surrogatepass")).digest()


class Answer(Struct, frozen=True):
    """What a command answered, by ids alone: names and texts are read anew, and may be erased meanwhile."""

    node: str
    """The turn or program that it made or changed."""
    details: str | None = None


def keyed_command(
    name: str, key: str | None, request: Sequence[Any], authority: Authority = LOCAL
) -> KeyedCommand | None:
    """None without a key: such a command is done as often as it is sent. In whose name it is sent is part of it."""
    if key is None:
        return None
    if not isinstance(key, str) or not key:
        raise InvalidInput(f"retry key is {quoted(key)}", "it is text that is not empty")
    try:
        plain = _plain(request if authority.is_local else [authority.chain, request])
    except RecursionError:
        raise InvalidInput("the request is nested too deeply", "flatten it, or give the inner part as text") from None
    return KeyedCommand(name, key, sha256(json_bytes(plain, "request")).digest())


def _plain(value: Any) -> Any:
    """JSON for a request's digest. JSON values stand for themselves, the ledger's own types by their name."""
    if isinstance(value, Struct):
        kind = type(value).__name__
        fields = {name: field for name, field in asdict(value).items() if not _is_later(kind, name, field)}
        return {kind: {name: _plain(field) for name, field in fields.items()}}
    if isinstance(value, bytes):
        return {"bytes": value.hex()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {name: _plain(item) for name, item in value.items()}
    return {"unset": True} if value is UNSET else value


def _is_later(kind: str, name: str, value: Any) -> bool:
    return value is UNSET and (kind, name) in _LATER_FIELDS


def find_answer(sql: Sql, command: KeyedCommand | None) -> Answer | None:
    """What this command answered before. Raises KeyTaken where its key came with another request."""
    if command is None:
        return None
    row = sql.one("SELECT command, request, node, details FROM command_done WHERE key = ?", (command.key_digest,))
    if row is None:
        return None
    name, request, node, details = row
    if name not in ("", command.name) or bytes(request) != command.request:  # older keys do not tell the name
        raise KeyTaken(command.key)
    return Answer(node, details)


def once(append: Append, command: KeyedCommand | None, work: Callable[[], Answer]) -> Answer:
    """Do the work, unless this command was done before: then answer what it answered, and write nothing."""
    answer = find_answer(append.sql, command)
    if answer is not None:
        return answer
    answer = work()
    if command is not None:
        append.sql.run(
            "INSERT INTO command_done(key, command, request, node, details, done_at) VALUES (?, ?, ?, ?, ?, ?)",
            (command.key_digest, command.name, command.request, answer.node, answer.details, append.now_ms),
        )
        append.sql.run("DELETE FROM command_done WHERE done_at < ?", (append.now_ms - KEPT_MS,))
    return answer


def forget_requests(sql: Sql, nodes: Iterable[str]) -> None:
    """Take away the digests of what these turns were asked for with: they could confirm a guess of erased words. The
    keys stay taken, for any request."""
    sql.run_many("UPDATE command_done SET request = ? WHERE node = ?", [(b"", node) for node in nodes])
