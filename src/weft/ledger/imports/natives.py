"""Sessions of other tools, in words that every origin shares: what the ledger takes from an importer.

Every record here has two halves. *Identity* is what the turn says: native ids and the contents of prompts, responses,
thinking, arguments and results. It is hashed, so it must be the same in every copy of the session. *Seen* is
everything else: when, where, by which version, at what cost. It may differ between copies and is merged.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from msgspec import UNSET, Struct

from weft.kernel.contents import Prepared
from weft.kernel.enums import AgentRole, LinkReason, MessageRole, MessageSource, ToolCallStatus
from weft.kernel.events import Event
from weft.ledger.model import FileNote, LintNote, Part
from weft.ledger.search.prepared_words import TextWords


class Tokens(Struct, frozen=True, kw_only=True):
    """What one provider response cost, in disjoint parts, as the origin itself counted; None where it says nothing.

    `input` excludes cache reads and writes; `output` includes reasoning; `cache_write` includes `cache_write_1h`, what
    was written to be kept for an hour.
    """

    input: int | None = None
    output: int | None = None
    cached: int | None = None
    cache_write: int | None = None
    cache_write_1h: int | None = None
    reasoning: int | None = None


class JsonContent(Struct, frozen=True, gc=False):
    """A JSON value as the bytes that the ledger keeps of it, in place of the value."""

    data: bytes
    is_exact: bool
    """False: the value has no exact form as JSON of other programs (too deep, lone surrogates, long integers)."""


class EncodedEvents(Struct, frozen=True, gc=False):
    """Events that are made and hashed, with the contents that they name, both in the order in which they are kept."""

    contents: tuple[Prepared, ...]
    lines: tuple[bytes, ...]
    ids: tuple[bytes, ...]
    events: tuple[Event, ...] = ()
    """The same as objects; nothing where another process made them."""


class TurnDraft(Struct, frozen=True, gc=False):
    """The events of a turn as they are if it hangs where its source alone says, and if nobody knows it yet."""

    id: str
    grows_from: str | None
    """The digest of its parent."""
    compacts: tuple[str | None, str | None]
    """The last turn that it summarises and the first that it keeps, if it is a compaction."""
    session: str
    file: str
    chain: EncodedEvents
    sighting: EncodedEvents


class PackedStretch(Struct, frozen=True, gc=False):
    """Bytes of a source from one place to another, as `kept_sources.pack` makes them."""

    start: int
    end: int
    packed: bytes


class PreparedTurn(Struct):
    """What can be worked out of a turn without looking into the ledger."""

    source: str
    """The digest of its records, as `ImportSecret.source` makes it."""
    size: int
    """Of its records, in bytes."""
    words: tuple[tuple[str, bool, TextWords], ...]
    """Of its contents, by their references and by whether search reads them as JSON."""
    last_time: int | None
    keys: tuple[bytes, ...]
    """Of its native ids, as `NativeNames` makes them: stand for `names`, which stay there."""
    draft: TurnDraft | None = None
    stretches: tuple[PackedStretch, ...] = ()
    """What is kept of the source with the batch that this turn ends."""
    items: bytes = b""
    """The turn's items, packed by whoever hands it over."""


class NativeMessage(Struct, frozen=True, kw_only=True):
    """One message of a turn; an assistant's is one response of its provider. Its tool calls follow it as calls."""

    role: MessageRole
    parts: tuple[Part, ...]
    """Identity: text, reasoning and images in the origin's order. Tool uses and results are not parts but calls."""
    native: str | None = None
    """Identity: the origin's own id of this message."""

    at: int | None = None
    """Seen: Unix milliseconds; None where the origin has no usable time."""
    literal_time: str | None = None
    """Seen: the origin's own words for it, where they name no zone or are no time."""
    source: MessageSource | None = None
    model: str | None = None
    provider: str | None = None
    tokens: Tokens | None = None
    finish_reason: str | None = None
    context: Any = None
    """Seen: what was injected beside the message (rules, hook output, selections), as JSON."""
    metadata: Any = None
    files: tuple[FileNote, ...] = ()
    lints: tuple[LintNote, ...] = ()


class NativeCall(Struct, frozen=True, kw_only=True):
    """One tool call of the assistant message before it, with its outcome."""

    id: str
    """Identity: the origin's call id; it may repeat."""
    name: str
    arguments: Any
    """Identity: a JSON value; a string where the origin has raw text."""
    result: Any = UNSET
    """Identity: what the model was given back (text or JSON)."""
    error: str | None = None
    status: ToolCallStatus | None = None
    """None: no outcome was recorded."""

    at: int | None = None
    """Seen."""
    done: int | None = None
    spawned: str | None = None
    """Seen: native id of the session that this call started (a subagent)."""
    detail: Any = None
    """Seen: what the origin keeps about the outcome beside what the model was given (exit code, patch, diff)."""
    files: tuple[FileNote, ...] = ()
    lints: tuple[LintNote, ...] = ()


Item = NativeMessage | NativeCall


class NativeCompaction(Struct, frozen=True, kw_only=True):
    """A turn that summarised what came before it."""

    summary: str
    """Identity; empty where the origin keeps none."""
    through: int | None = None
    """Index of the last turn summarised; None: the turn's parent."""
    first_kept: int | None = None
    """Index of the first turn kept in context, where any was."""

    model: str | None = None
    """Seen."""
    trigger: str | None = None
    tokens_before: int | None = None
    tokens_after: int | None = None
    duration_ms: int | None = None
    metadata: Any = None


class NativeLink(Struct, frozen=True, kw_only=True):
    """A parent that this file only names: it lies in another one, perhaps not imported yet."""

    to: str
    """Native id of a record (message, turn) or, with `session`, of nothing more than that session's last turn then."""
    why: LinkReason
    session: str | None = None


class NativeTurn(Struct, kw_only=True):
    """A prompt up to the next one."""

    key: str
    """Native id by which versions of this turn are recognised: normally that of its first prompt. Turns of other
    sessions must not have it, unless they are copies; a second answer to one prompt is `<prompt id>#<first id
    of the answer>`."""
    records: tuple[bytes, ...]
    """Identity: the normalised native records, each reduced to native ids and contents, in order. Two copies of a
    turn have equal ones; a longer or rewritten version has not."""
    names: tuple[str, ...] = ()
    """Native ids of all its records (for links from other files)."""
    items: tuple[Item, ...] = ()
    parent: int | None = None
    """Index of the parent among the turns already given; None: a root of this file."""
    link: NativeLink | None = None
    compaction: NativeCompaction | None = None
    closed: bool = True
    """False: the open tail of a file that may still be written to."""
    answered: bool = False
    """Its last record says that the model had nothing more to do. It ends with that, unless more comes soon."""
    error: str | None = None
    interrupted: bool = False

    started: int | None = None
    """Seen, as all below."""
    ended: int | None = None
    literal_time: str | None = None
    role: AgentRole = AgentRole.UNIFIED
    workspace: str | None = None
    git_branch: str | None = None
    version: str | None = None
    permissions: Any = None
    tools: tuple[str, ...] | None = None
    toolset: str | None = None
    config: Any = None
    metadata: Any = None
    offset: int = 0
    """Where its first record begins in the source, and where its last one ends."""
    end: int = 0
    places: tuple[tuple[int, int], ...] = ()
    """Where each of its records lies, where they lie as they are; else nothing."""
    prepared: PreparedTurn | None = None
    """Of a turn that another process read: stands for `records`, which stay there."""
    load_items: Callable[[], tuple[Item, ...]] | None = None
    """Of such a turn: its items, which are not here until somebody needs them."""

    @property
    def last_time(self) -> int | None:
        """The latest time that any of its records tells, in Unix milliseconds; None where none does."""
        if self.prepared is not None:
            return self.prepared.last_time
        ends = (item.done for item in self.items if isinstance(item, NativeCall))
        times = (self.started, self.ended, *(item.at for item in self.items), *ends)
        return max((time for time in times if time is not None), default=None)


class NativeSession(Struct, kw_only=True):
    """A session as its origin knows it."""

    id: str
    title: str | None = None
    workspace: str | None = None
    git_branch: str | None = None
    version: str | None = None
    created: int | None = None
    parent: str | None = None
    """Native id of the session that started this one (a subagent's)."""
    spawn_call: str | None = None
    """Native id of the parent's tool call, where this file itself names it."""
    task: str | None = None
    agent: str | None = None
    archived: bool = False
    told_at: int | None = None
    """When this was told, of a source that is written anew, or beside which some of it stands: the latest holds. Of one
    that only grows the longest does."""
    metadata: Any = None
