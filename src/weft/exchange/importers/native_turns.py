"""From records to native turns.

- The role of a record in the turns of its session.
- The first pass plans turns: which records each is made of, and which turn it follows. A tree of
messages is planned as turns too.
- The second pass reads the records of one planned turn again and builds the turn record by record.
- Content and usage of chat APIs, and files that a patch or a diff wrote.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import Enum, auto
from typing import Any, BinaryIO, Generic, Protocol, TypeVar

from msgspec import UNSET, Struct, field, to_builtins
from msgspec.structs import replace

from weft.exchange.importers.foreign_files import Record, record_at
from weft.exchange.importers.foreign_values import UniqueKeys, canonical, mapping, millis, sequence, text
from weft.exchange.importers.port import Item, NativeCall, NativeMessage, NativeTurn, Report, Source, Tokens
from weft.kernel.enums import FileKind, ToolCallStatus
from weft.ledger.dialects import TEXTS, THOUGHTS, chat_counts, image_url, response_counts, thought_text
from weft.ledger.model import FileNote, ImagePart, LintNote, Part, ReasoningPart, TextPart

# --- What a record is to the turns of its session.


class Role(Enum):
    """What a record is for the turns of its session."""

    PROMPT = auto()
    """A message of a person, or of whoever started the agent: a turn begins."""
    PREFACE = auto()
    """Written before the prompt that it belongs to."""
    INJECTED = auto()
    """Put into the context by the tool itself: part of the turn under way, or the beginning of one."""
    ANSWER = auto()
    """A response of the model, or the outcome of a call."""
    NOTICE = auto()
    """Shown to the person, not to the model."""
    DETAIL = auto()
    """Tells something about the turn under way."""
    END = auto()
    """Tells that, or how, a turn or a response ended."""
    COMPACTION = auto()
    """A summary that the conversation goes on from."""
    SETTING = auto()
    """Changes what later turns run with."""
    SESSION = auto()
    """Tells something about the session."""
    AGENT = auto()
    """Tells something about a subagent."""
    IGNORED = auto()
    """A known kind of which nothing is mapped: only the verbatim copy holds it."""
    UNKNOWN = auto()


IN_TURNS = frozenset({
    Role.PROMPT, Role.PREFACE, Role.INJECTED, Role.ANSWER, Role.NOTICE, Role.DETAIL, Role.COMPACTION,
})  # fmt: skip
"""Roles of records that turns are made of: `walk_turns` counts these as mapped when it reads them again."""


def count_kept(report: Report, kind: str, role: Role) -> None:
    """Count a record that only the verbatim copy holds."""
    report.kept[kind] += 1
    if role is Role.UNKNOWN:
        report.unknown[kind] += 1


# --- Turns as the first pass over a source plans them: which records each is made of, and which turn it follows.

LONGEST_SHARED_RECORDS = 256
"""An answer that leaves another one later than this is planned as its continuation, without the shared records."""


class Entry(Struct, frozen=True, gc=False):
    """A record of a turn: its kind as it is counted, its native id and its place in the source."""

    kind: str
    id: str | None
    line: int | None
    offset: int
    end: int
    nested: int | None = None
    """Its place in a list of messages that one record holds."""


def entry_of(record: Record, kind: str) -> Entry:
    return Entry(kind, text(record.value.get("id")), record.line, record.offset, record.end)


class PlannedTurn(Struct, kw_only=True):
    """A turn to be built. `entries` are numbers of entries of its `TurnPlan`; the first `shared` of them belong to an
    earlier answer to the same prompt too."""

    parent: int | None
    """The planned turn that it follows."""
    entries: list[int] = field(default_factory=list)
    shared: int = 0
    prompt: int | None = None
    """The entry of its first prompt."""
    continues: str | None = None
    """The key of the prompt that this turn goes on answering, or answers again."""
    is_compaction: bool = False
    is_answered: bool = False
    is_finished: bool = False
    """Its last response asked for no more calls, or its end was recorded."""
    first_kept: int | None = None
    """Of a compaction: the first turn that stays in the context."""
    is_split: bool = False
    """Only the end of that turn stays in the context."""
    compacted_prompt: str | None = None
    """Of a compaction: the key of the prompt that was being answered."""
    key: str = ""


Turn = TypeVar("Turn", bound=PlannedTurn)


class TurnPlan(Generic[Turn]):
    """The planned turns of one session, in the order in which they begin."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self.turns: list[Turn] = []

    def begin_turn(self, turn: Turn) -> int:
        self.turns.append(turn)
        return len(self.turns) - 1

    def begin_again(self, turn: Turn, earlier: Turn, depth: int) -> int:
        """Begin another answer to the prompt of an earlier turn: it shares the first `depth` entries."""
        turn.entries, turn.shared, turn.prompt = earlier.entries[:depth], depth, earlier.prompt
        return self.begin_turn(turn)

    def add(self, entry: Entry) -> int:
        """Take an entry that is not yet part of a turn; its number."""
        self.entries.append(entry)
        return len(self.entries) - 1

    def append(self, turn: int, entry: Entry) -> int:
        number = self.add(entry)
        self.turns[turn].entries.append(number)
        return number

    def entries_of(self, turn: Turn) -> list[Entry]:
        return [self.entries[number] for number in turn.entries]

    def last_summarised(self, turn: Turn) -> int | None:
        """Of a compaction: the last turn that its summary covers; None where that is its parent."""
        kept = turn.first_kept
        return None if kept is None else kept if turn.is_split else self.turns[kept].parent

    def prompt_key(self, turn: Turn, name_of: Callable[[int], str]) -> str:
        """The key that answers of this turn's prompt share; `name_of` names an entry by its number."""
        if turn.continues is not None:
            return turn.continues
        return name_of(turn.entries[0] if turn.prompt is None else turn.prompt)

    def assign_keys(self, name_of: Callable[[int], str]) -> None:
        """A turn is known by its prompt; one that continues or repeats an answer also by its own first entry."""
        keys = UniqueKeys()
        for turn in self.turns:
            key = self.prompt_key(turn, name_of)
            if turn.continues is not None:
                key = f"{key}#{name_of(turn.entries[turn.shared])}"
            turn.key = keys.claim(key)


# --- Native turns built record by record.


class PendingCall(Struct):
    """A tool call whose outcome a later record may tell."""

    id: str
    name: str
    arguments: Any
    result: Any = UNSET
    error: str | None = None
    status: ToolCallStatus | None = None
    at: int | None = None
    done: int | None = None
    spawned: str | None = None
    detail: Any = None
    files: tuple[FileNote, ...] = ()
    lints: tuple[LintNote, ...] = ()

    @property
    def is_open(self) -> bool:
        return self.status is None

    def answer(self, result: Any, status: ToolCallStatus = ToolCallStatus.OK) -> None:
        self.result, self.status = result, status

    def fail(self, error: str, status: ToolCallStatus = ToolCallStatus.ERROR) -> None:
        self.error, self.status = error, status

    def finished(self) -> NativeCall:
        return NativeCall(
            id=self.id,
            name=self.name,
            arguments=self.arguments,
            result=self.result,
            error=self.error,
            status=self.status,
            at=self.at,
            done=self.done,
            spawned=self.spawned,
            detail=self.detail,
            files=self.files,
            lints=self.lints,
        )


class MessageContent(Struct):
    """What the content of one message holds."""

    parts: list[Part] = field(default_factory=list)
    calls: list[dict[str, Any]] = field(default_factory=list)
    """Blocks that ask for a tool."""
    results: list[dict[str, Any]] = field(default_factory=list)
    """Blocks with what tools gave back."""
    identity: list[Any] = field(default_factory=list)
    """Every block, reduced to what identifies it."""
    other_blocks: list[Any] = field(default_factory=list)
    """Blocks that no part can hold, as they are."""

    @property
    def texts(self) -> list[str]:
        return [str(part.text) for part in self.parts if isinstance(part, TextPart)]

    def add_text(self, words: str) -> None:
        self.identity.append(["text", words])
        if words:
            self.parts.append(TextPart(words))

    def add_other(self, block: Any) -> None:
        self.other_blocks.append(block)
        self.identity.append(block)


def finished_items(items: Iterable[NativeMessage | PendingCall]) -> tuple[Item, ...]:
    return tuple(item.finished() if isinstance(item, PendingCall) else item for item in items)


class TurnBuilder(Struct, kw_only=True):
    """A turn while its records are read. An origin's builder has `add_record` or `add_message`, which
    maps one."""

    items: list[NativeMessage | PendingCall] = field(default_factory=list)
    records: list[bytes] = field(default_factory=list)
    """The identity of each record, reduced to native ids and contents."""
    times: list[int] = field(default_factory=list)
    error: str | None = None
    is_interrupted: bool = False

    def note_time(self, value: Any) -> None:
        if (time := millis(value)) is not None:
            self.times.append(time)

    def add(self, identity: list[Any], message: NativeMessage) -> None:
        self.records.append(canonical(identity))
        self.items.append(message)

    def add_identity(self, *identity: Any) -> None:
        """Of a record that adds no item of its own."""
        self.records.append(canonical(list(identity)))

    def forget_costs(self) -> None:
        """Remove the token counts of responses that another turn has too: they were paid for once."""
        for number, item in enumerate(self.items):
            if isinstance(item, NativeMessage) and item.tokens is not None:
                self.items[number] = replace(item, tokens=None)

    def turn(self, planned: PlannedTurn, entries: list[Entry], **fields: Any) -> NativeTurn:
        """The native turn; `entries` are those of the plan, `fields` what the origin knows besides."""
        own_entries = entries[planned.shared :]
        fields.setdefault("started", min(self.times, default=None))
        fields.setdefault("ended", max(self.times, default=None))
        return NativeTurn(
            key=planned.key,
            records=tuple(self.records) or (canonical([planned.key]),),
            items=finished_items(self.items),
            parent=planned.parent,
            error=None if self.is_interrupted else self.error,
            interrupted=self.is_interrupted,
            offset=min((entry.offset for entry in own_entries), default=0),
            end=max((entry.end for entry in own_entries), default=0),
            **fields,
        )


def identity(items: Iterable[Item]) -> tuple[bytes, ...]:
    """The identity of a turn whose items say all of it: one record for each item."""
    return tuple(canonical(_item_identity(item)) for item in items)


def _item_identity(item: Item) -> list[Any]:
    if isinstance(item, NativeMessage):
        return [item.role, item.native, [to_builtins(part) for part in item.parts]]
    result = [] if item.result is UNSET else [item.result]
    return ["call", item.id, item.name, item.arguments, result, item.error, item.status]


# --- The second pass over a source: the records of each planned turn, read again from their places and built into a
# turn.


class RecordBuilder(Protocol):
    """A turn builder that is given records one after another."""

    def add_record(self, entry: Entry, value: dict[str, Any]) -> None:
        """Map one record more."""

    def forget_costs(self) -> None:
        """The records up to here belong to another turn too."""


Builder = TypeVar("Builder", bound=RecordBuilder)


def walk_turns(
    source: Source,
    plan: TurnPlan[Turn],
    report: Report,
    builder_of: Callable[[int, Turn], Builder],
    turn_of: Callable[[int, Turn, Builder], NativeTurn],
) -> Iterator[NativeTurn]:
    """The turns of a plan. `builder_of` gives a builder for a planned turn, `turn_of` the turn of a builder that has
    taken all its records. A record counts as mapped when it is read, once, though several turns share it."""
    with source.path.open("rb") as file:
        places = RecordPlaces(file, report)
        for number, planned in enumerate(plan.turns):
            builder = builder_of(number, planned)
            for depth, entry in enumerate(plan.entries_of(planned)):
                if depth == planned.shared and depth:
                    builder.forget_costs()
                value = places.read(entry, is_shared=depth < planned.shared)
                if value is not None:
                    builder.add_record(entry, value)
            yield turn_of(number, planned, builder)


class RecordPlaces:
    """Records of an open source, read again. A record that holds a list of messages is decoded once for all of them."""

    def __init__(self, file: BinaryIO, report: Report) -> None:
        self._file, self._report = file, report
        self._list_place: tuple[int, int] | None = None
        self._list: list[Any] = []

    def read(self, entry: Entry, *, is_shared: bool) -> dict[str, Any] | None:
        """None where the source has changed since the first pass. A message of a list is no record of its own."""
        is_counted = not is_shared and entry.nested is None
        try:
            value = self._value(entry)
        except (ValueError, RecursionError):
            self._report.damaged += is_counted
            if not is_shared:
                self._report.problem(entry.line, "changed while it was read")
            return None
        if is_counted:
            self._report.mapped[entry.kind] += 1
        return value

    def _value(self, entry: Entry) -> dict[str, Any]:
        if entry.nested is None:
            return record_at(self._file, entry.offset, entry.end)
        if self._list_place != (entry.offset, entry.end):
            value = record_at(self._file, entry.offset, entry.end)
            self._list_place = entry.offset, entry.end
            self._list = sequence(mapping(value.get("$set", value)).get("messages"))
        if entry.nested >= len(self._list):
            raise ValueError("the source changed while it was read")
        return mapping(self._list[entry.nested])


# --- Files that a tool call wrote, as told by the patch it applied or the diff it showed.

_patched_file = re.compile(r"^\*\*\* (?:(?:Add|Update|Delete) File|Move to): (.+)$", re.MULTILINE)
_hunk = re.compile(r"^@@ -[0-9]{1,9}(?:,[0-9]{1,9})? \+([0-9]{1,9})(?:,([0-9]{1,9}))? @@", re.MULTILINE)


def patched_paths(patch: str) -> list[str]:
    """The files that an `apply_patch` text adds, changes, moves or deletes."""
    return list(dict.fromkeys(path.strip() for path in _patched_file.findall(patch)))


def written_notes(path: str, diff: str | None) -> tuple[FileNote, ...]:
    """A file that was written, with the lines of each hunk of its diff where there is one."""
    spans = hunk_lines(diff or "")
    if not spans:
        return (FileNote(kind=FileKind.WRITTEN, path=path),)
    return tuple(FileNote(kind=FileKind.WRITTEN, path=path, line_start=first, line_end=last) for first, last in spans)


def hunk_lines(diff: str) -> list[tuple[int, int]]:
    """The first and the last line of each hunk, counted in the new file."""
    hunks = ((int(start), int(lines or 1)) for start, lines in _hunk.findall(diff))
    return [(start, start + max(lines, 1) - 1) for start, lines in hunks]


# --- Content and usage in the shapes of chat APIs, which many tools write down in messages of their own.


def content_of(value: Any) -> MessageContent:
    """A text, or a list of texts and blocks; what is neither is kept beside the message."""
    content = MessageContent()
    for block in value if isinstance(value, list) else [] if value is None else [value]:
        _add_block(content, block)
    return content


def _add_block(content: MessageContent, block: Any) -> None:
    if isinstance(block, str):
        if block:
            content.parts.append(TextPart(block))
        return
    kind = text(block.get("type")) if isinstance(block, dict) else None
    if kind in TEXTS and isinstance(words := block.get("text"), str):
        if words:
            content.parts.append(TextPart(words))
    elif kind in THOUGHTS and (thought := thought_text(block)) is not None:
        content.parts.append(ReasoningPart(thought))
    elif kind in ("tool_use", "tool_call"):
        content.calls.append(block)
    elif isinstance(block, dict) and (url := image_url(block)) is not None:
        content.parts.append(ImagePart(url))
    elif block is not None:
        content.other_blocks.append(block)


def content_text(content: Any) -> str:
    """The text of a content."""
    return "\n".join(content_of(content).texts)


def chat_tokens(usage: Any) -> Tokens | None:
    """The count of chat completions, or of another API."""
    counts = chat_counts(usage)
    return None if counts is None else Tokens(**counts)


def response_tokens(usage: dict[str, Any]) -> Tokens | None:
    """The count of OpenAI's responses or of Anthropic's messages."""
    counts = response_counts(usage)
    return None if counts is None else Tokens(**counts)


def summed_tokens(tokens: Tokens, added_tokens: Tokens) -> Tokens:
    """Both together; what neither tells stays untold."""

    def summed_count(count: int | None, added_count: int | None) -> int | None:
        return added_count if count is None else count if added_count is None else count + added_count

    return Tokens(
        input=summed_count(tokens.input, added_tokens.input),
        output=summed_count(tokens.output, added_tokens.output),
        cached=summed_count(tokens.cached, added_tokens.cached),
        cache_write=summed_count(tokens.cache_write, added_tokens.cache_write),
        cache_write_1h=summed_count(tokens.cache_write_1h, added_tokens.cache_write_1h),
        reasoning=summed_count(tokens.reasoning, added_tokens.reasoning),
    )


# --- From a tree of messages to turns: a prompt with all that answers it, up to the next prompt.

LONGEST_SHARED = 256
"""An answer that leaves another one later than this is told as its continuation, not with all that led to it."""


class TreePart(Enum):
    """What a message is to the turns."""

    PROMPT = auto()
    """A turn begins, unless nothing was asked or answered yet."""
    ANSWER = auto()
    OTHER = auto()
    """Put there by nobody who asks or answers: it belongs to whatever it stands in."""
    NOTHING = auto()
    """It says nothing: what follows it follows its parent."""


class PlannedBranch(Struct):
    """A turn to be: its messages, of which the first `shared` belong to an earlier answer too."""

    nodes: list[str]
    parent: int | None
    shared: int = 0
    first_spoken: int | None = None
    """The place of the first message that asks or answers."""
    prompt: str | None = None
    leaves: str | None = None
    """The message that the answer is known by which this one leaves."""
    is_followed: bool = False


class _Place(Struct, frozen=True):
    """After `depth` messages of a turn."""

    turn: int
    depth: int


class Tree:
    """Takes messages one after another, parents first."""

    def __init__(self, *, whole_answers: bool = False) -> None:
        self._whole_answers = whole_answers
        self.plans: list[PlannedBranch] = []
        self._places: dict[str, _Place] = {}
        self._cuts: dict[_Place, int] = {}

    def __contains__(self, node: str) -> bool:
        return node in self._places

    def turn_of(self, node: str) -> int:
        """The turn that ends with this message, or that had come as far first."""
        place = self._places[node]
        return self._cuts.get(place, place.turn)

    def add(self, node: str, parent: str | None, tree_part: TreePart) -> None:
        """A message under another; one that is known already stays where it is."""
        if node in self._places:
            return
        place = None if parent is None else self._places.get(parent)
        if tree_part is not TreePart.NOTHING:
            place = (
                self._begin_branch(node, None, tree_part) if place is None else self._add_after(place, node, tree_part)
            )
        if place is not None:
            self._places[node] = place

    def _begin_branch(self, node: str, parent: int | None, tree_part: TreePart, leaves: str | None = None) -> _Place:
        first_spoken = None if tree_part is TreePart.OTHER else 0
        prompt = node if tree_part is TreePart.PROMPT else None
        self.plans.append(PlannedBranch([node], parent, first_spoken=first_spoken, prompt=prompt, leaves=leaves))
        return _Place(len(self.plans) - 1, 1)

    def _add_after(self, place: _Place, node: str, tree_part: TreePart) -> _Place:
        plan = self.plans[place.turn]
        is_tip = place.depth == len(plan.nodes)
        if tree_part is TreePart.PROMPT and self._is_begun(plan, place.depth):
            owner = place.turn if is_tip or self._whole_answers else self._cut(place)
            self.plans[owner].is_followed = not self._whole_answers
            return self._begin_branch(node, owner, tree_part)
        if is_tip and not plan.is_followed:
            plan.nodes.append(node)
            if plan.first_spoken is None and tree_part is not TreePart.OTHER:
                plan.first_spoken = place.depth
                plan.prompt = node if tree_part is TreePart.PROMPT else None
            return _Place(place.turn, place.depth + 1)
        if place.depth > LONGEST_SHARED:
            plan.is_followed = not self._whole_answers
            return self._begin_branch(node, place.turn, tree_part, known_by(plan))
        return self._branch(plan, place.depth, [node], tree_part)

    def _is_begun(self, plan: PlannedBranch, depth: int) -> bool:
        """Has anybody asked or answered so far; in a whole answer: at all?"""
        if self._whole_answers:
            return plan.first_spoken is not None or depth < len(plan.nodes)
        return plan.first_spoken is not None and plan.first_spoken < depth

    def _branch(self, plan: PlannedBranch, depth: int, added_nodes: list[str], tree_part: TreePart) -> _Place:
        first_spoken = plan.first_spoken if plan.first_spoken is not None and plan.first_spoken < depth else None
        if first_spoken is None and added_nodes and tree_part is not TreePart.OTHER:
            first_spoken = depth
        nodes = [*plan.nodes[:depth], *added_nodes]
        self.plans.append(PlannedBranch(nodes, plan.parent, depth, first_spoken, leaves=known_by(plan)))
        return _Place(len(self.plans) - 1, depth + len(added_nodes))

    def _cut(self, place: _Place) -> int:
        """A turn that ends here."""
        if place.depth > LONGEST_SHARED:
            return place.turn
        if place not in self._cuts:
            branch_place = self._branch(self.plans[place.turn], place.depth, [], TreePart.OTHER)
            self._cuts[place] = branch_place.turn
        return self._cuts[place]


def known_by(plan: PlannedBranch) -> str:
    """Its prompt, or its first message; of an answer that leaves another, the other's."""
    return plan.leaves or plan.prompt or plan.nodes[0]


def keys_of(plans: Sequence[PlannedBranch], name: Callable[[str], str]) -> list[str]:
    """What each turn goes by: of several answers to a prompt the first goes by the prompt's name, the others by it and
    by the first message of their own."""
    counts: dict[str, int] = {}
    keys: list[str] = []
    for plan in plans:
        key = name(known_by(plan))
        if plan.leaves is not None:
            key = f"{key}#{name(plan.nodes[min(plan.shared, len(plan.nodes) - 1)])}"
        unique_key = key
        while unique_key in counts:
            counts[key] += 1
            unique_key = f"{key}~{counts[key]}"
        counts[unique_key] = 1
        keys.append(unique_key)
    return keys


def ends_of(tree: Tree, order: Sequence[str], last: str | None, size: int) -> list[int]:
    """How far each turn goes into the bytes of its conversation: all the way for the one that the conversation stands
    on, `last`; else by the place of its last message."""
    head = tree.turn_of(last) if last is not None and last in tree else None
    places = {node: number for number, node in enumerate(order, 1)}
    return [
        size if number == head else min(max(places[node] for node in plan.nodes), max(size - 1, 0))
        for number, plan in enumerate(tree.plans)
    ]


def in_order(parents: dict[str, str | None], children: Callable[[str], list[str]]) -> list[str]:
    """Every node after its parent, branch by branch; those whose parent is not there, or leads back to them, begin a
    tree."""
    roots = [id for id, parent in parents.items() if parent is None or parent not in parents]
    order: list[str] = []
    seen: set[str] = set()
    for start in [*roots, *parents]:  # what no root leads to comes last
        waiting = [start]
        while waiting:
            id = waiting.pop()
            if id in seen:
                continue
            seen.add(id)
            order.append(id)
            waiting += reversed([child for child in children(id) if child in parents and child not in seen])
    return order
