"""Writing: turns at once or by steps, compactions, late results, contents."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from inspect import signature
from typing import Any

from msgspec import UNSET, UnsetType

from weft.kernel.enums import AgentRole, ToolCallStatus
from weft.kernel.errors import InvalidInput
from weft.kernel.weft_error import quoted
from weft.ledger.api.base import WAIT, LedgerBase
from weft.ledger.arguments import as_record, checked_label, checked_member, checked_text
from weft.ledger.model import (
    DEFAULT_AGENT,
    AppliedSubstitution,
    ErrorInput,
    MessagesInput,
    NewError,
    RecordedTurn,
    StoredContent,
    ToolCallInput,
    UsageInput,
)
from weft.ledger.write.append import requires
from weft.ledger.write.late_results import record_late_result
from weft.ledger.write.new_turn import DEFAULT_SETTING, NewTurn
from weft.ledger.write.record_turn import RequestedTurn, record_turns
from weft.ledger.write.substitutions import find_event, find_replacement, last_substitution, substitute
from weft.ledger.write.turn_events import Setting
from weft.ledger.write.turn_writer import TurnWriter, begin_turn
from weft.store.records import LEDGER_SCOPE

CHUNK = 1024 * 1024
_PLACE = frozenset(("session", "parent", "expected", "key"))
_SETTING = frozenset(signature(Setting).parameters)
_TURN = frozenset(signature(NewTurn).parameters) - {"setting"}
"""The arguments of `record_turn`: where a turn goes, under which circumstances it ran, and what was said."""
_ARGUMENTS = _PLACE | _SETTING | _TURN


class RecordVerbs(LedgerBase):
    """What adds turns and contents."""

    @requires("turn:record")
    def record_turn(
        self,
        *,
        session: str | None = None,
        query: MessagesInput = None,
        response: MessagesInput = None,
        system: MessagesInput = None,
        model: str | None = None,
        provider: str | None = None,
        params: Any = None,
        usage: UsageInput = None,
        tool_calls: Sequence[ToolCallInput] | None = (),
        tools_spec: Any = None,
        finish_reason: str | None = None,
        error: ErrorInput | None = None,
        permissions_used: Any = None,
        persona: str = DEFAULT_AGENT,
        role: str = "unified",
        reason: str | None = None,
        toolset: str | None = None,
        tools_available: Sequence[str] | None = None,
        permissions_granted: Any = None,
        thinking_config: Any = None,
        effective_config: Any = None,
        workspace: str | None = None,
        source_event_id: str | None = None,
        parent: str | UnsetType | None = UNSET,
        expected: str | UnsetType | None = UNSET,
        wait: float = WAIT,
        key: str | None = None,
    ) -> RecordedTurn:
        """Record a whole turn, durably, and move the session's head to it.

        `query`, `response` and `system` are text, a message, or a list of them; messages, tool calls and usage of
        OpenAI's and Anthropic's APIs are taken as they come. A whole answer of theirs as the `response` also tells the
        model, the usage and the finish reason, unless these are given. A turn with `error` is a failed one: it stays,
        and the head does not move. `parent` and `expected` say where the session must stand, or the turn is
        refused with HeadMoved. Others who write to the session are waited for, `wait` seconds at most.
        With `key`, a retry key, it is recorded once: the same call again gives the first answer and writes nothing,
        another call with that key raises KeyTaken.
        """
        setting = _setting(
            role,
            reason=reason,
            toolset=toolset,
            tools_available=tools_available,
            permissions_granted=permissions_granted,
            thinking_config=thinking_config,
            effective_config=effective_config,
            workspace=workspace,
            source_event_id=source_event_id,
        )
        turn = NewTurn(
            query=query,
            response=response,
            system=system,
            model=model,
            provider=provider,
            params=params,
            usage=usage,
            tool_calls=tool_calls,
            tools_spec=tools_spec,
            finish_reason=finish_reason,
            error=error,
            permissions_used=permissions_used,
            persona=persona,
            setting=setting,
        )
        requested = _requested(turn, session=session, parent=parent, expected=expected, key=key)
        return record_turns(self._writer, [requested], wait=wait, ttl=self._ttl)[0]

    @requires("turn:record")
    def record_turns(self, turns: Sequence[Mapping[str, Any]], *, wait: float = WAIT) -> list[RecordedTurn]:
        """Record several turns in one transaction: all of them, or none.

        Each is a mapping of the arguments of `record_turn`, without `wait`. A turn follows what its session is at by
        then; one in no session, without `parent`, follows the turn before it in the list.
        """
        if isinstance(turns, str | bytes | Mapping) or not isinstance(turns, Sequence):
            raise InvalidInput(f"turns is {type(turns).__name__}", "give a list of dicts with arguments of record_turn")
        requested = [_requested_turn(fields, number) for number, fields in enumerate(turns, 1)]
        return record_turns(self._writer, requested, wait=wait, ttl=self._ttl) if requested else []

    @requires("turn:record")
    def begin_turn(
        self,
        *,
        session: str | None = None,
        parent: str | UnsetType | None = UNSET,
        expected: str | UnsetType | None = UNSET,
        persona: str = DEFAULT_AGENT,
        role: str = "unified",
        reason: str | None = None,
        toolset: str | None = None,
        tools_available: Sequence[str] | None = None,
        permissions_granted: Any = None,
        thinking_config: Any = None,
        effective_config: Any = None,
        workspace: str | None = None,
        source_event_id: str | None = None,
        wait: float = WAIT,
    ) -> TurnWriter:
        """Begin a turn under the session's lease; the parent is pinned, others wait or get SessionBusy."""
        if session is not None:
            session = checked_label(session, "session")
        check_pins(parent, expected)
        return begin_turn(
            self._writer,
            session=session,
            parent=parent,
            expected=expected,
            persona=persona,
            owner=self._owner,
            wait=wait,
            ttl=self._ttl,
            setting=Setting(
                role=role,
                reason=reason,
                toolset=toolset,
                tools_available=tools_available,
                permissions_granted=permissions_granted,
                thinking_config=thinking_config,
                effective_config=effective_config,
                workspace=workspace,
                source_event_id=source_event_id,
            ),
        )

    @requires("turn:record")
    def record_late_result(
        self,
        turn: str,
        call_id: str,
        result: Any = UNSET,
        *,
        error: ErrorInput | None = None,
        status: str | None = None,
    ) -> None:
        """The outcome of a tool call that its turn did not wait for; the turn's digest stays as it is. A turn that is
        parked until the outcome comes goes on."""
        fault = error if error is None or isinstance(error, str) else as_record(error, NewError, "error")
        ended = None if status is None else checked_member(ToolCallStatus, status, "status")
        checked_text(call_id, "tool call id")
        record_late_result(self._writer, self.resolve(turn), call_id, result, fault, ended)

    @requires("turn:record")
    def substitute(
        self, event: str, with_: Any = UNSET, *, with_event: str | None = None, reason: str | None = None
    ) -> AppliedSubstitution:
        """Have a message, a model's answer or the result of a tool shown with other words, or as another event of its
        kind tells it; `with_event` the event itself takes that back. Contexts, exports and searches go by it from now
        on. What was recorded stays, as does the digest of its turn; `originals` shows it. The event goes by the
        beginning of its id, by the id of its message, by that of its tool call, or by a turn, for its answer. Returns
        what is noted of it."""
        if (with_ is UNSET) == (with_event is None):
            raise InvalidInput("it is not said what is to be shown instead", "give words or an event, one of them")
        with self._store.read() as txn:
            original = find_event(txn, event, self._resolve)
            other = None if with_event is None else find_replacement(txn, with_event, original, self._resolve)
        substitute(self._writer, original, other, with_, None if reason is None else checked_text(reason, "reason"))
        with self._store.read() as txn:
            return last_substitution(txn, original)

    @requires("content:put")
    def put_content(self, data: bytes | Iterable[bytes] | Any) -> StoredContent:
        """Stream bytes, chunks or a binary file in; the result stands wherever a text is taken."""
        chunks: Iterable[bytes]
        if isinstance(data, bytes | bytearray | memoryview):
            chunks = (bytes(data),)
        elif hasattr(data, "read"):
            chunks = _checked_chunks(iter(lambda: data.read(CHUNK), b""))
        elif isinstance(data, str) or not isinstance(data, Iterable):
            raise InvalidInput(f"content is {type(data).__name__}", "give bytes, chunks of bytes or a binary file")
        else:
            chunks = _checked_chunks(data)
        stored = self._store.put_stream(chunks, LEDGER_SCOPE)
        with self._store.read() as txn:
            row = txn.facts.content_size(stored.n)
        self._writer.note_put(stored.ref.hex())
        return StoredContent(stored.ref.hex(), row)


def _requested_turn(fields: Any, number: int) -> RequestedTurn:
    """A turn of a list, checked as `record_turn` checks its arguments."""
    if not isinstance(fields, Mapping):
        raise InvalidInput(f"turn {number} is {type(fields).__name__}", "give a dict with arguments of record_turn")
    if unknown := sorted(map(str, fields.keys() - _ARGUMENTS)):
        raise InvalidInput(f"turn {number} has {quoted(unknown[0])}", "give arguments of record_turn by their names")
    setting = _setting(**{name: fields[name] for name in _SETTING & fields.keys()})
    turn = NewTurn(**{name: fields[name] for name in _TURN & fields.keys()}, setting=setting)
    return _requested(turn, **{name: fields[name] for name in _PLACE & fields.keys()})


def _setting(role: Any = AgentRole.UNIFIED, **circumstances: Any) -> Setting:
    """The circumstances of a turn, by their names; the default ones where its caller said nothing about them."""
    is_default = role == AgentRole.UNIFIED and all(value is None for value in circumstances.values())
    return DEFAULT_SETTING if is_default else Setting(role=role, **circumstances)


def _requested(
    turn: NewTurn,
    *,
    session: Any = None,
    parent: str | UnsetType | None = UNSET,
    expected: str | UnsetType | None = UNSET,
    key: str | None = None,
) -> RequestedTurn:
    label = None if session is None else checked_label(session, "session")
    check_pins(parent, expected)
    return RequestedTurn(turn=turn, session=label, parent=parent, expected=expected, key=key)


def check_pins(parent: Any, expected: Any) -> None:
    """Where a turn shall go: turn ids, or None for no turn; both together must mean the same."""
    for pin, what in ((parent, "parent"), (expected, "expected")):
        if pin is not UNSET and pin is not None:
            checked_text(pin, what)
    if parent is not UNSET and expected is not UNSET and parent != expected:
        raise InvalidInput(f"parent is {quoted(parent)}, but expected is {quoted(expected)}", "give one of them")


def _checked_chunks(chunks: Iterable[Any]) -> Iterator[bytes]:
    for chunk in chunks:
        if not isinstance(chunk, bytes | bytearray | memoryview):
            raise InvalidInput(f"a chunk of content is {type(chunk).__name__}", "give bytes")
        yield bytes(chunk)
