"""What is withheld from a bundle: messages, tool calls, turns and contents by name, and whatever matches a pattern.

A content that is withheld is so wherever it stands: equal texts of a tree are one content. Of a message, a call or a
turn all that was said goes; ids and names of tools and models stay. Verbatim sources, their file names, and what a
session's stream says beside its label are no part of a thread and never go out.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

from weft.exchange.bundles import form
from weft.exchange.bundles.stretches import Stretches, matches, windows
from weft.exchange.bundles.verification import KnownNames
from weft.kernel.clock import is_ulid, offset
from weft.kernel.errors import ContentGone, InvalidInput, NotFound, quoted
from weft.kernel.events import event_id
from weft.kernel.foreign_input import is_digest
from weft.ledger.api import LedgerBase, calls_of
from weft.ledger.read.thread_events import ThreadFacts
from weft.ledger.views.rows import load_turn
from weft.store.fact_log import ContentHead

WINDOW, OVERLAP = 8 * 1024 * 1024, 64 * 1024
NAMES = ("id", "tool_call_id", "call_id", "native", "model", "name", "tool", "server", "code", "list", "provider")
"""Fields that say by what something is called; they are not what was said."""
LABELS = ("session_created", "session_renamed")


class Withholding:
    """Decides of each content of some threads whether it goes out."""

    def __init__(self, facts: ThreadFacts, ledger: LedgerBase, names: Sequence[str], matching: str | None) -> None:
        self._facts = facts
        self._messages: set[str] = set()
        self._turns: set[str] = set()
        self._calls: set[str] = set()
        self._numbered_calls: set[tuple[str, int]] = set()
        self.refs: set[str] = set()
        self.stretches = Stretches()
        self._pattern = _compiled(matching)
        self._asked: dict[str, str] = {}
        """What each name led to, until that is met in the threads."""
        for name in names:
            self._resolve(ledger, name)
        if names or matching is not None:
            self._gather()

    @property
    def is_asked(self) -> bool:
        return bool(self.refs)

    def why(self, event: dict[str, Any], path: str, ref: str) -> str | None:
        """Why a content does not go out where it first stands; None if it does."""
        if ref in self.refs:
            return form.WITHHELD
        return form.OUTSIDE if _is_outside(event, path) and not self._is_taken(event, path) else None

    def _is_taken(self, event: dict[str, Any], path: str) -> bool:
        """Is it part of a message that a turn of these threads took out of the inbox? Then it is the turn's, too."""
        if event.get("kind") != "message_admitted" or not path.startswith("parts"):
            return False
        query = "SELECT turn FROM inbox WHERE message = ? AND turn IS NOT NULL"
        row = self._facts.txn.sql.one(query, (event.get("message"),))
        return row is not None and self._facts.contains_whole(row[0])

    def _resolve(self, ledger: LedgerBase, name: str) -> None:
        txn = self._facts.txn
        if is_digest(name) and txn.facts.find_content(bytes.fromhex(name)) is not None:
            self.refs.add(name)
            self._asked[name] = name
            return
        if is_ulid(name) and load_turn(txn.sql, name) is None:
            self._messages.add(name)
            self._asked[name] = name
            return
        turn, _, call = name.partition(":")
        row = ledger._resolve(txn, turn if call else name).turn
        if not call:
            self._turns.add(row.id)
            self._asked[row.id] = name
            return
        found = [
            each
            for each, tool_call in calls_of(txn, row)
            if call in (tool_call.call_id, tool_call.id.partition(":")[2])
        ]
        if not found:
            raise NotFound("tool call", name)
        for each in found:
            self._calls.add(bytes(each.event).hex())
            self._numbered_calls.add((row.id, each.seq))
            self._asked[bytes(each.event).hex()] = name

    def _gather(self) -> None:
        with KnownNames() as looked:
            for _, line in self._facts.events():
                id, event = event_id(line), form.parsed(line)
                for path, ref in form.references(event):
                    if self._is_named(id, event, path) or self._is_matched(event, path, ref, looked):
                        self.refs.add(ref)
                    if ref in self.refs:
                        self._asked.pop(ref, None)
        if self._asked:
            raise NotFound("such part of these threads", min(self._asked.values()), "name what the threads contain")
        for ref in self.refs:
            self._learn(ref)

    def _is_named(self, id: str, event: dict[str, Any], path: str) -> bool:
        """Is this place of an event part of something that is to be withheld? Notes which name that was."""
        if path.rpartition(".")[2] in NAMES and event.get("kind") != "session_created":
            return False
        for name in _places(id, event, path):
            if name in self._messages or name in self._turns or name in self._calls:
                self._asked.pop(name, None)
                return True
        seen = _seen_call(event, path)
        return seen in self._numbered_calls

    def _is_matched(self, event: dict[str, Any], path: str, ref: str, looked: KnownNames) -> bool:
        """Is the pattern found in this content, which is looked at once?"""
        if self._pattern is None or ref in self.refs or _is_outside(event, path) or looked.get(ref) is not None:
            return False
        looked.add(ref, "")
        return any(matches(self._pattern, text) for text in self.texts(ref))

    def texts(self, ref: str) -> Iterator[str]:
        """A content's text; in parts where it is large, nothing where it is gone."""
        if (head := self._head(ref)) is not None:
            yield from windows(self._facts.txn.facts.stream_content(head.n), WINDOW, OVERLAP)

    def _head(self, ref: str) -> ContentHead | None:
        try:
            return self._facts.content(ref)
        except ContentGone:
            return None

    def _learn(self, ref: str) -> None:
        for text in self.texts(ref):
            self.stretches.add(text.encode("utf-8", "surrogatepass"))


def _places(id: str, event: dict[str, Any], path: str) -> Iterator[Any]:
    """The turn, the message and the call that a place of an event belongs to."""
    kind, _, stream = str(event.get("stream")).partition(":")
    if kind == "run":
        yield stream
    if kind == "conversation":
        yield event.get("message")
    call = event.get("call")
    yield id if event.get("kind") == "tool_call" else call.get("event_id") if isinstance(call, dict) else None
    message = event.get(path.partition(".")[0])
    if isinstance(message, dict):
        yield message.get("id")
    if event.get("kind") == "sighting" and event.get("turn"):
        yield event["turn"]
        if (k := _numbered(event, path, "messages")) is not None:
            yield offset(event["turn"], k + 1)


def _seen_call(event: dict[str, Any], path: str) -> tuple[str, int] | None:
    k = _numbered(event, path, "calls") if event.get("kind") == "sighting" else None
    return None if k is None else (str(event.get("turn")), k)


def _numbered(event: dict[str, Any], path: str, field: str) -> int | None:
    """Which message or call of its turn an entry of a sighting is about."""
    match = re.match(rf"{field}\[(\d+)\]", path)
    k = event[field][int(match[1])].get("k") if match else None
    return k if isinstance(k, int) else None


def _is_outside(event: dict[str, Any], path: str) -> bool:
    if event.get("kind") == "sighting":
        return path in ("raw", "file")
    if str(event.get("stream")).startswith("program:"):
        return path != "name"
    return str(event.get("stream")).startswith("session:") and event.get("kind") not in LABELS


def _compiled(pattern: str | None) -> re.Pattern[str] | None:
    try:
        return None if pattern is None else re.compile(pattern)
    except re.error as error:
        raise InvalidInput(f"{quoted(pattern)} is no regular expression: {error}", "mend the pattern") from error
