"""Answers about sessions and turns that are more than one record of the ledger, or less."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from msgspec import UNSET, Struct, UnsetType

if TYPE_CHECKING:
    from collections.abc import Sequence

    from weft.kernel.events import Usage
    from weft.ledger.api import ListedSession, Provenance, ProvisionalTurn
    from weft.ledger.model import Compaction, Message, ToolCall, Turn


class UnfinishedTurn(Struct, frozen=True, kw_only=True):
    """A turn that another tool is still writing. It has no id yet."""

    provisional: Literal[True] = True
    id: None = None
    turn: ProvisionalTurn


class SessionEntry(Struct, frozen=True, kw_only=True):
    """`sessions`: a session with what lists add to it, and what is still being written in it."""

    listed: ListedSession
    provisional: Sequence[UnfinishedTurn]


class ListedTurn(Struct, frozen=True, kw_only=True):
    """`log`, `tree`: a turn with what it is about, and the sessions that stand there."""

    turn: Turn
    subject: str
    heads: Sequence[str]
    on_behalf_of: Sequence[str] | UnsetType = UNSET
    """The principals on whose behalf it was run, where somebody acted for others."""


class ShownEvent(Struct, frozen=True, kw_only=True):
    """An event inside a turn: the `number`-th `of` so many."""

    id: str
    kind: str
    number: int
    of: int


class ShownTurn(Struct, frozen=True, kw_only=True):
    """`show`: a turn with all that it holds, up to `event` where one is named."""

    turn: Turn
    event: ShownEvent | None
    messages: Sequence[Message]
    tool_calls: Sequence[ToolCall]
    compaction: Compaction | None
    provenance: Sequence[Provenance]
    provisional: Sequence[UnfinishedTurn]
    on_behalf_of: Sequence[str] | UnsetType = UNSET


class ReadTurn(Struct, frozen=True, kw_only=True):
    """`read`: one turn of a thread, the oldest first, with all that was said and done."""

    turn: Turn
    session: str | None
    """The label of the session that made it."""
    messages: Sequence[Message]
    tool_calls: Sequence[ToolCall]
    compaction: Compaction | None


class PickedTurn(Struct, frozen=True, kw_only=True):
    """`cherry-pick`: a new turn and the turn that it says again."""

    turn: Turn
    source_id: str


class SummaryTurn(Struct, frozen=True, kw_only=True):
    """`summarize`: a new turn, the last turn of the branch that it sums up, and where that branch left."""

    turn: Turn
    source_id: str
    left_id: str | None


class ChatReply(Struct, frozen=True, kw_only=True):
    """`chat`: one answer of a model, and the turn that it became. `runs_by_itself` is as in `send`."""

    session: str
    turn: str
    text: str
    thinking: str | None
    model: str
    model_id: str
    provider: str
    finish: str
    usage: Usage | None
    cost: int | None
    """Millionths of a US dollar."""
    latency_ms: int
    request_id: str | None
    attempts: int
    runs_by_itself: dict[str, str]
    not_kept: list[str] = []
    """What the turn could change without asking and `undo` does not give back."""
    git_changes: list[str] = []
    """Where `HEAD`, a branch, a tag or the index is not what it was before the turn, in a folder trusted for work."""


class BlamedLine(Struct, frozen=True, kw_only=True):
    """`blame`: a line of a file, and the turn that wrote it; without a turn nobody knows who did."""

    line: int
    text: str
    turn_id: str | None = None
    call_id: str | None = None
    session_id: str | UnsetType | None = UNSET
    started_at: int | UnsetType = UNSET
    time_known: bool | UnsetType = UNSET
    model: str | UnsetType | None = UNSET


class NodeTags(Struct, frozen=True, kw_only=True):
    """`tag`: the tags of a node."""

    node: str
    tags: Sequence[str]
