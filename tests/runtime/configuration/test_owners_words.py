"""Whose words begin a turn: the ledger's owner alone gives it what they trust a folder for."""

from __future__ import annotations

from typing import Any

import pytest

from weft.kernel.enums import MessageSource
from weft.ledger.api import InboxMessage
from weft.ledger.model import DEFAULT_AGENT
from weft.runtime.assembly.turn_configuration import ROOM_FIELD, are_owners_words


def message(**fields: Any) -> InboxMessage:
    plain = {
        "id": "m",
        "n": 1,
        "session": "main",
        "session_id": "s",
        "state": "queued",
        "mode": "followup",
        "priority": 0,
        "sender": DEFAULT_AGENT,
        "source": "human",
        "content": (),
        "turn": None,
        "admitted_at": 0,
        "settled_at": None,
        "error": None,
        "again": None,
    }
    return InboxMessage(**{**plain, **fields})


def test_words_that_the_owner_sent_are_theirs() -> None:
    assert are_owners_words([message(), message(context={"workspace": "/work"})])


@pytest.mark.parametrize(
    "fields",
    [
        {"sender": "ann"},
        {"on_behalf_of": ("ann",)},
        {"trigger": "t"},
        {"context": {ROOM_FIELD: "plans"}},
        {"source": None},
        *({"source": source.value} for source in MessageSource if source is not MessageSource.HUMAN),
    ],
    ids=str,
)
def test_words_of_anybody_else_and_of_what_runs_by_itself_are_not(fields: dict[str, Any]) -> None:
    assert not are_owners_words([message(**fields)])
    assert not are_owners_words([message(), message(**fields)]), "nor where they come with the owner's"
