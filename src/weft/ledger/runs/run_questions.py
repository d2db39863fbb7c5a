"""What the writes of a broker's turn will most likely ask the ledger. A store that is far away is asked all of it when
the transaction begins, so that others do not wait for the lock while the work asks one thing after another.

Whatever is missing here, or comes out otherwise, is asked by the work itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from hashlib import sha256

from weft.kernel.contents import json_bytes, text_bytes
from weft.ledger.model import NewMessage, TextPart, ToolUsePart
from weft.ledger.runs.model import AddMessage, Entry, Finished, Interrupted, ModelAnswered, ToolEnded
from weft.ledger.views.inbox import admission_question
from weft.ledger.views.lease_rows import LeaseKind, lease_question
from weft.ledger.views.rows import session_number_question, session_question, turn_question
from weft.ledger.write.append import Append
from weft.store.records import Key
from weft.store.replica_names import OWN_NAMES
from weft.store.sql import Question

_QUEUED = "SELECT n, session FROM inbox WHERE message = ? AND state = 'queued'"


def queued_at(append: Append, message: str) -> tuple[int, int] | None:
    """The arrival number of a message that waits, and the number of its session."""
    row = append.sql.one(_QUEUED, (message,))
    return None if row is None else (int(row[0]), int(row[1]))


def questions_of_begin(session: str, messages: Sequence[str]) -> list[Question]:
    """Of a turn that is begun in a session, by its id, for some messages."""
    asked: list[Question] = [session_question(session), lease_question(LeaseKind.SESSION, session), OWN_NAMES]
    for message in messages:
        asked += [(_QUEUED, (message,)), admission_question(message)]
    return asked


def questions_of_step(turn: str, session: str) -> list[Question]:
    """Of a turn that goes on in a session, both by their ids."""
    return [lease_question(LeaseKind.SESSION, session), turn_question(turn)]


def questions_of_end(session_number: int, after: Sequence[Question]) -> list[Question]:
    """Of a turn that may end; `after` is what follows from that asks."""
    return [session_number_question(session_number), *after]


def may_end(entries: Sequence[Entry]) -> bool:
    """Whether a turn will most likely end with these entries."""
    return any(isinstance(entry, Finished | Interrupted) or _is_last_answer(entry) for entry in entries)


def _is_last_answer(entry: Entry) -> bool:
    if not isinstance(entry, ModelAnswered):
        return False
    parts = entry.message.content if entry.message is not None else ()
    return not (isinstance(parts, tuple) and any(isinstance(part, ToolUsePart) for part in parts))


def likely_contents(entries: Sequence[Entry], scope: int) -> list[Key]:
    """Contents that recording entries will put into a tree, those that are easily told."""
    return [(scope, sha256(data).digest()) for data in _contents(entries)]


def _contents(entries: Sequence[Entry]) -> Iterator[bytes]:
    for entry in entries:
        if isinstance(entry, AddMessage | ModelAnswered) and entry.message is not None:
            yield from _of_message(entry.message)
        elif isinstance(entry, ToolEnded) and isinstance(entry.result, str | dict | list):
            yield json_bytes(entry.result, "result")


def _of_message(message: NewMessage) -> Iterator[bytes]:
    if isinstance(message.content, str):
        yield text_bytes(message.content)
    for part in message.content if isinstance(message.content, tuple) else ():
        if isinstance(part, TextPart) and isinstance(part.text, str):
            yield text_bytes(part.text)
        elif isinstance(part, ToolUsePart):
            yield text_bytes(part.id)
            if isinstance(part.input, dict):
                yield json_bytes(part.input, "arguments")
