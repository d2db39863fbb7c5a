"""The kinds of value an event may hold, and the small structures made of them.

An event holds ids that Weft minted, members of closed sets, numbers, times, names of models, tools and providers,
and references. Every other string is a content, held here by its reference. The markers below say which is which:
documentation, checking and the search for references all read them from the types.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Annotated

from msgspec import UNSET, Meta, Struct, UnsetType

from weft.kernel.enums import (
    CompactionTrigger,
    FileKind,
    ImageDetail,
    LintSeverity,
    MessageRole,
    MessageSource,
    ParticipantKind,
    ReferenceField,
    VolumeMode,
)

NAME_PATTERN = r"[A-Za-z0-9_.:/-]{1,128}"
is_name = lru_cache(maxsize=1024)(re.compile(NAME_PATTERN).fullmatch)

Ulid = Annotated[str, Meta(extra={"is": "ulid"})]
Digest = Annotated[str, Meta(extra={"is": "digest"})]
Content = Annotated[str, Meta(extra={"is": "content"})]
Name = Annotated[str, Meta(extra={"is": "name"})]
Time = Annotated[str, Meta(extra={"is": "time"})]
NodeId = Annotated[str, Meta(extra={"is": "node"})]


class Words(Struct, frozen=True, gc=False, kw_only=True):
    """A name that does not look like one (spaces, other letters) and is therefore kept as a content."""

    content: Content


Named = Name | Words


class EventRef(Struct, frozen=True, gc=False):
    """A reference to an event inside another one."""

    event_id: Digest


class UriRef(Struct, frozen=True, gc=False):
    uri: Content


class PathRef(Struct, frozen=True, gc=False):
    path: Content


class ExtRef(Struct, frozen=True, gc=False):
    """A reference to something outside of the graph: its kind and its id."""

    kind: Named
    id: Content


class ForkPoint(Struct, frozen=True, gc=False):
    """The event of the parent turn that a run grows from: normally the last one."""

    turn: Ulid
    event: Digest


class ErrorFact(Struct, frozen=True, gc=False, kw_only=True):
    """An error inside an event: its kind, and its text as a content."""

    code: Named
    message: Content
    details: Content | UnsetType = UNSET


class Usage(Struct, frozen=True, gc=False, kw_only=True):
    """Tokens in disjoint parts: input excludes cache reads and writes. Reasoning lies inside output, and what
    is written to the cache for an hour inside what is written to it."""

    input_tokens: int | UnsetType = UNSET
    output_tokens: int | UnsetType = UNSET
    cached_input_tokens: int | UnsetType = UNSET
    cache_write_tokens: int | UnsetType = UNSET
    cache_write_1h_tokens: int | UnsetType = UNSET
    reasoning_tokens: int | UnsetType = UNSET
    total_tokens: int | UnsetType = UNSET


class TextFact(Struct, frozen=True, gc=False, kw_only=True, tag_field="type", tag="text"):
    """A text part inside an event."""

    text: Content


class ImageFact(Struct, frozen=True, gc=False, kw_only=True, tag_field="type", tag="image_url"):
    """An image part inside an event."""

    url: Content
    detail: ImageDetail | Words | UnsetType = UNSET


class ToolUseFact(Struct, frozen=True, gc=False, kw_only=True, tag_field="type", tag="tool_use"):
    """A tool use part inside an event."""

    id: Content
    name: Named
    input: Content


class ToolResultFact(Struct, frozen=True, gc=False, kw_only=True, tag_field="type", tag="tool_result"):
    """A tool result part inside an event."""

    tool_call_id: Content
    output: Content
    is_error: bool | UnsetType = UNSET


class ReasoningFact(Struct, frozen=True, gc=False, kw_only=True, tag_field="type", tag="reasoning"):
    """A reasoning part inside an event."""

    text: Content


PartFact = TextFact | ImageFact | ToolUseFact | ToolResultFact | ReasoningFact


class PolicyTests(Struct, frozen=True, gc=False, kw_only=True):
    """How the own tests of a policy ended."""

    total: int
    passed: int
    failed: int


class FileFact(Struct, frozen=True, gc=False, kw_only=True):
    """A file note inside an event."""

    kind: FileKind
    path: Content
    line_start: int | UnsetType = UNSET
    line_end: int | UnsetType = UNSET


class LintFact(Struct, frozen=True, gc=False, kw_only=True):
    """A linter's note inside an event."""

    path: Content | UnsetType = UNSET
    message: Content | UnsetType = UNSET
    source: Named | UnsetType = UNSET
    start_line: int | UnsetType = UNSET
    start_col: int | UnsetType = UNSET
    end_line: int | UnsetType = UNSET
    end_col: int | UnsetType = UNSET
    severity: LintSeverity | UnsetType = UNSET


class CodeblockFact(Struct, frozen=True, gc=False, kw_only=True):
    language: Named | UnsetType = UNSET
    content: Content
    path: Content | UnsetType = UNSET
    line_start: int | UnsetType = UNSET
    line_end: int | UnsetType = UNSET


class MessageFact(Struct, frozen=True, gc=False, kw_only=True):
    """One message: an ordered list of parts, with everything that was recorded beside it."""

    id: Ulid
    role: MessageRole
    parts: tuple[PartFact, ...]
    native: Content | UnsetType = UNSET
    source: MessageSource | UnsetType = UNSET
    parent: Ulid | UnsetType = UNSET
    model: Named | UnsetType = UNSET
    thinking_config: Content | UnsetType = UNSET
    context: Content | UnsetType = UNSET
    metadata: Content | UnsetType = UNSET
    files: tuple[FileFact, ...] | UnsetType = UNSET
    lints: tuple[LintFact, ...] | UnsetType = UNSET
    codeblocks: tuple[CodeblockFact, ...] | UnsetType = UNSET


class SeenContext(Struct, frozen=True, gc=False, kw_only=True):
    """One thing that was injected beside a message; several of one `name` with `listed` make a list."""

    name: Named
    value: Content
    listed: bool | UnsetType = UNSET


class SeenMessage(Struct, frozen=True, gc=False, kw_only=True):
    """What a source tells of the `k`-th message of an imported turn (from 0) beside what it says."""

    k: int
    at: int | UnsetType = UNSET
    literal_time: Content | UnsetType = UNSET
    source: MessageSource | UnsetType = UNSET
    model: Named | UnsetType = UNSET
    provider: Named | UnsetType = UNSET
    usage: Usage | UnsetType = UNSET
    finish_reason: Named | UnsetType = UNSET
    context: tuple[SeenContext, ...] | UnsetType = UNSET
    metadata: Content | UnsetType = UNSET
    files: tuple[FileFact, ...] | UnsetType = UNSET
    lints: tuple[LintFact, ...] | UnsetType = UNSET


class SeenCall(Struct, frozen=True, gc=False, kw_only=True):
    """The same of its `k`-th tool call; `detail` is what the origin keeps beside what the model was given."""

    k: int
    at: int | UnsetType = UNSET
    done: int | UnsetType = UNSET
    detail: Content | UnsetType = UNSET
    spawned: Ulid | UnsetType = UNSET


class SeenCompaction(Struct, frozen=True, gc=False, kw_only=True):
    """The same of the compaction that a turn is."""

    model: Named | UnsetType = UNSET
    trigger: CompactionTrigger | UnsetType = UNSET
    tokens_before: int | UnsetType = UNSET
    tokens_after: int | UnsetType = UNSET
    duration_ms: int | UnsetType = UNSET
    metadata: Content | UnsetType = UNSET


class MentionFact(Struct, frozen=True, gc=False, kw_only=True):
    """A person or an agent that a message mentions."""

    kind: ParticipantKind
    id: Name | Ulid


class RequestInput(Struct, frozen=True, gc=False, kw_only=True):
    """What a model was sent: the first `keep` entries of an earlier request, then these.

    A whole list per request would store every ancestor again with every turn.
    """

    base: Digest | None
    keep: int
    then: tuple[Ulid | EventRef, ...]


class VolumePlan(Struct, frozen=True, gc=False, kw_only=True):
    """What a fork does with one resource, as the fact has it."""

    resource: NodeId
    mode: VolumeMode
    kept_by: Ulid | UnsetType = UNSET
    snapshot_ref: ExtRef | UnsetType = UNSET


class ResourceScope(Struct, frozen=True, gc=False, kw_only=True):
    """For whom a resource is there; as its owner, one of them."""

    agent: Name | Ulid | UnsetType = UNSET
    run: Ulid | UnsetType = UNSET
    session: Ulid | UnsetType = UNSET


class Reference(Struct, frozen=True, gc=False, kw_only=True):
    """A program that a configuration names, and as what; with `version` that version of it."""

    field: ReferenceField
    program: Ulid
    version: int | UnsetType = UNSET
