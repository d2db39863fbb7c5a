"""One thread: its checkpoints read in order, each as a list of messages.

Turns of a thread: what a person said, and everything up to the next time they did.
"""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import Struct, field

from weft.exchange.importers.langgraph.rows import Place, Row, Rows, Verbatim, Write, about
from weft.exchange.importers.langgraph.saved_values import (
    BROKEN,
    Checkpoint,
    Stored,
    Tagged,
    Unreadable,
    decoded,
    elements,
    plain,
)
from weft.exchange.importers.langgraph.states import EMPTY, Message, Node, State, States, replayed
from weft.exchange.importers.port import Item, NativeMessage, NativeTurn, Report
from weft.exchange.importers.records.builder import PendingCall, finished_items, identity
from weft.exchange.importers.records.values import canonical, mapping, millis, present, text
from weft.exchange.importers.trees import Part, PlannedBranch, Tree
from weft.kernel.enums import AgentRole, MessageRole, MessageSource
from weft.ledger.dialects import plain_result as words_or_blocks

USUAL = ("messages", "__root__")
OUTCOME_CHANNELS = frozenset({"__error__", "__interrupt__"})


class Outcome(Struct):
    """How a run that no other checkpoint follows ended, as its tasks wrote it down."""

    error: str | None = None
    interrupt: Any = None


class Thread(Struct):
    """What a thread's rows say."""

    place: Place
    root: str = ""
    """The id of its first checkpoint: no other database has it."""
    created: int | None = None
    states: States = field(default_factory=States)
    tips: dict[str, State] = field(default_factory=dict)
    outcomes: dict[str, Outcome] = field(default_factory=dict)
    """By the message that such a run had come to."""
    last: str | None = None
    metadata: dict[str, Any] = field(default_factory=dict)
    raw: bytes = b""


class ThreadReader:
    """Reads one thread."""

    def __init__(self, rows: Rows, place: Place, report: Report) -> None:
        self._rows, self._place, self._report = rows, place, report
        self._thread = Thread(place)
        self._verbatim = Verbatim()
        self._channel: str | None = None
        self._replayed = False

    def read(self) -> Thread:
        writes: dict[str, list[Write]] = {}
        for write in self._rows.writes(self._place):
            writes.setdefault(write.checkpoint, []).append(write)
        parents = self._rows.parents(self._place)
        for id in _ordered(parents):
            self._checkpoint(self._rows.checkpoint(self._place, id), writes)
        followed = set(parents.values())
        for id, written in writes.items():
            self._outcome(id, written, is_leaf=id not in followed)
        self._keep_writes(writes)
        self._keep_blobs()
        self._thread.raw = self._verbatim.finish()
        return self._thread

    def _checkpoint(self, row: Row, writes: dict[str, list[Write]]) -> None:
        self._report.found += 1
        metadata = about(row)
        columns = {
            "checkpoint_id": row.id, "parent_checkpoint_id": row.parent, "type": row.kind,
            "metadata": row.metadata.decode("utf-8", "replace"),
        }  # fmt: skip
        try:
            found = self._rows.read(row)
        except Unreadable as error:
            self._report.kept[f"checkpoint.{row.kind}"] += 1
            self._report.problem(None, f"{self._place.thread}: {error}"[:300])
            self._inherit(row)
            self._verbatim.row("checkpoint", columns, row.data)
            return
        except BROKEN as error:
            self._report.damaged += 1
            self._report.problem(None, f"the checkpoint {row.id} is not readable: {error}"[:300])
            self._inherit(row)
            self._verbatim.row("checkpoint", columns, row.data)
            return
        at = millis(found.at) if isinstance(found.at, str) else None
        thread = self._thread
        thread.root = thread.root or row.id
        thread.created = thread.created or at
        thread.last = row.id
        thread.metadata = thread.metadata or metadata
        source = text(metadata.get("source")) or "none"
        self._report.mapped[f"checkpoint.{source}"] += 1
        listed = self._listed(row, found, writes)
        before = self._before(row)
        thread.tips[row.id] = before if listed is None else thread.states.advance(before, listed, at, row.id)
        own = listed if listed is not None and not self._replayed and not self._rows.is_apart else None
        self._verbatim.row("checkpoint", columns, row.data, own)

    def _before(self, row: Row) -> State:
        return EMPTY if row.parent is None else self._thread.tips.get(row.parent, EMPTY)

    def _inherit(self, row: Row) -> None:
        self._thread.tips[row.id] = self._before(row)

    def _listed(self, row: Row, checkpoint: Checkpoint, writes: dict[str, list[Write]]) -> list[Stored] | None:
        """The messages at a checkpoint; None where nothing tells of any."""
        self._replayed = False
        listed = self._value(checkpoint)
        if listed is None and self._channel is not None and self._channel in checkpoint.versions and row.parent:
            written = [each for each in writes.get(row.parent, ()) if each.channel == self._channel]
            if written:
                listed = self._replay(self._thread.states.stored(self._before(row)), written)
                self._replayed = True
        if listed is None and self._channel is None:
            listed = self._first_writes(row, checkpoint, writes)
        return listed

    def _first_writes(self, row: Row, checkpoint: Checkpoint, writes: dict[str, list[Write]]) -> list[Stored] | None:
        """A channel that keeps only what is added may tell of its first messages by writes alone."""
        for name in sorted(checkpoint.versions, key=lambda name: (name not in USUAL, name)):
            written = [each for each in writes.get(row.parent or "", ()) if each.channel == name]
            if name not in checkpoint.channels and written:
                listed = self._replay([], written)
                if self._thread.states.is_list_of_messages(listed):
                    self._channel, self._replayed = name, True
                    return listed
        return None

    def _value(self, checkpoint: Checkpoint) -> list[Stored] | None:
        names = [self._channel] if self._channel is not None else self._candidates(checkpoint)
        for name in names:
            stored = checkpoint.channels.get(name) or self._rows.blob(self._place, name, checkpoint.versions.get(name))
            try:
                listed = None if stored is None else elements(stored)
            except BROKEN:
                continue
            if listed is not None and (self._channel == name or self._thread.states.is_list_of_messages(listed)):
                self._channel = name
                return listed
        return None

    def _candidates(self, checkpoint: Checkpoint) -> list[str]:
        names = {*checkpoint.channels, *(checkpoint.versions if self._rows.is_apart else ())}
        return sorted(names, key=lambda name: (USUAL.index(name) if name in USUAL else len(USUAL), name))

    def _replay(self, before: list[Stored], written: list[Write]) -> list[Stored]:
        """What was written since, added as LangGraph itself would."""
        base, more = before, list[Stored]()
        for write in written:
            try:
                fresh = self._written(write)
            except BROKEN:
                continue
            if fresh is None:
                base, more = self._overwritten(write), []
            else:
                more += fresh
        return replayed(base, more, self._thread.states)

    def _written(self, write: Write) -> list[Stored] | None:
        """One message or several; None where the whole list was replaced."""
        stored = Stored(write.kind, write.data)
        listed = elements(stored)
        if listed is not None:
            return [stored] if self._thread.states.known(stored)[1] is not None else listed
        value = decoded(write.kind, write.data)
        is_whole = isinstance(value, Tagged) and value.kind == "Overwrite"
        return None if is_whole or "__overwrite__" in mapping(value) else [stored]

    def _overwritten(self, write: Write) -> list[Stored]:
        value = decoded(write.kind, write.data)
        inner = mapping(value.value).get("value") if isinstance(value, Tagged) else mapping(value).get("__overwrite__")
        return [Stored("msgpack", msgspec.msgpack.encode(plain(each))) for each in inner or ()]

    def _outcome(self, id: str, written: list[Write], is_leaf: bool) -> None:
        state = self._thread.tips.get(id)
        if not is_leaf or state is None or state.tip is None:
            return
        for write in written:
            if write.channel not in OUTCOME_CHANNELS:
                continue
            try:
                value = plain(decoded(write.kind, write.data))
            except BROKEN:
                value = None
            outcome = self._thread.outcomes.setdefault(state.tip, Outcome())
            if write.channel == "__error__":
                outcome.error = text(value) or "error"
            else:
                outcome.interrupt = value

    def _keep_writes(self, writes: dict[str, list[Write]]) -> None:
        for id, written in writes.items():
            for each in written:
                is_mapped = each.channel in OUTCOME_CHANNELS or each.channel == self._channel
                kind = "write.branch" if each.channel.startswith("branch:") else f"write.{each.channel}"
                self._report.found += 1
                (self._report.mapped if is_mapped else self._report.kept)[kind] += 1
                columns = {
                    "checkpoint_id": id, "task_id": each.task, "task_path": each.path, "idx": each.index,
                    "channel": each.channel, "type": each.kind,
                }  # fmt: skip
                self._verbatim.row("write", columns, each.data)

    def _keep_blobs(self) -> None:
        for blob in self._rows.blobs(self._place):
            holds_messages = blob.channel == self._channel
            self._report.found += 1
            (self._report.mapped if holds_messages else self._report.kept)[
                f"blob.{'messages' if holds_messages else 'other'}"
            ] += 1
            listed = None
            if holds_messages:
                try:
                    listed = elements(Stored(blob.kind, blob.data))
                except BROKEN:
                    listed = None
            columns = {"channel": blob.channel, "version": blob.version, "type": blob.kind}
            self._verbatim.row("blob", columns, blob.data, listed)


def _ordered(parents: dict[str, str | None]) -> list[str]:
    """Parents first; a chain that runs in a circle is cut."""
    done: dict[str, None] = {}
    for id in parents:
        chain: dict[str, None] = {}
        at: str | None = id
        while at is not None and at in parents and at not in done and at not in chain:
            chain[at] = None
            at = parents[at]
        done |= dict.fromkeys(reversed(chain))
    return list(done)


ROLES = {"user": MessageRole.USER, "assistant": MessageRole.ASSISTANT}


def turns_of(thread: Thread, session: str) -> list[NativeTurn]:
    nodes = thread.states.nodes
    tree = Tree()
    for id, node in nodes.items():
        tree.add(id, node.parent, _part(node, nodes))
    keys: set[str] = set()
    turns = [_Turn(thread, session, plan, keys).made(plan is tree.plans[-1]) for plan in tree.plans]
    for place, state in enumerate(thread.tips.values(), 1):  # the session stands where its last checkpoint does
        if state.tip is not None:
            turns[tree.turn_of(state.tip)].end = place
    return turns


def _part(node: Node, nodes: dict[str, Node]) -> Part:
    """Messages of a person that came together are one prompt."""
    if node.message.role == "assistant":
        return Part.ANSWER
    above = None if node.parent is None else nodes[node.parent]
    goes_on = above is not None and above.message.role == "user" and above.checkpoint == node.checkpoint
    return Part.PROMPT if node.message.role == "user" and not goes_on else Part.OTHER


class _Turn:
    def __init__(self, thread: Thread, session: str, plan: PlannedBranch, keys: set[str]) -> None:
        self._thread, self._session, self._plan, self._keys = thread, session, plan, keys
        self._nodes = [thread.states.nodes[id] for id in plan.nodes]
        self._items: list[NativeMessage | PendingCall] = []
        self._open: dict[str, PendingCall] = {}

    def made(self, is_last: bool) -> NativeTurn:
        for place, node in enumerate(self._nodes):
            self._take(node, is_shared=place < self._plan.shared)
        items: list[Item] = list(finished_items(self._items))
        times = [node.at for node in self._nodes if node.at is not None]
        outcome = self._thread.outcomes.get(self._plan.nodes[-1], Outcome())
        last = self._nodes[-1].message
        is_answered = last.role == "assistant" and not last.calls
        return NativeTurn(
            key=self._key(),
            records=identity(items) or (canonical(self._plan.nodes),),
            names=tuple(id for node in self._nodes if (id := node.message.id) is not None),
            items=tuple(items),
            parent=self._plan.parent,
            closed=not is_last or (is_answered and outcome.interrupt is None),
            error=outcome.error,
            started=min(times, default=None),
            ended=max(times, default=None),
            role=AgentRole.WORKER if self._thread.place.namespace else AgentRole.UNIFIED,
            metadata=present(
                interrupt=outcome.interrupt,
                checkpoint=self._nodes[-1].checkpoint,
                run=text(self._thread.metadata.get("run_id")),
            ),
        )

    def _key(self) -> str:
        """The first prompt's id, which is its own within a thread; of another answer, also where that begins."""
        first = next((node for node in self._nodes if node.message.role == "user"), self._nodes[0])
        key = f"{self._session}/{first.message.id or first.id}"
        if self._plan.shared:
            own = self._nodes[min(self._plan.shared, len(self._nodes) - 1)]
            key = f"{key}#{own.message.id or own.id}"
        if key in self._keys:
            key = f"{key}~{self._nodes[-1].id}"
        self._keys.add(key)
        return key

    def _take(self, node: Node, is_shared: bool) -> None:
        message = node.message
        if message.role == "tool" and self._answer(node):
            return
        content = message.content
        role = ROLES.get(message.role, MessageRole.SYSTEM)
        is_answer = role is MessageRole.ASSISTANT
        response = message.response
        self._items.append(
            NativeMessage(
                role=role,
                parts=tuple(content.parts),
                native=message.id,
                at=node.at,
                source=_source(message, role),
                model=message.model if is_answer else None,
                provider=text(response.get("model_provider")) if is_answer else None,
                tokens=message.tokens if is_answer and not is_shared else None,
                finish_reason=text(response.get("finish_reason")) or text(response.get("stop_reason")),
                metadata=present(
                    name=text(message.value.get("name")),
                    role="tool" if message.role == "tool" else None,
                    response_id=text(response.get("id")),
                    blocks=[block for block in content.other_blocks if mapping(block).get("type") != "tool_use"],
                ),
            )
        )
        self._ask(message, node)

    def _ask(self, message: Message, node: Node) -> None:
        for id, name, given in message.calls:
            asked = PendingCall(id, name, given, at=node.at)
            self._items.append(asked)
            self._open[id or name] = asked

    def _answer(self, node: Node) -> bool:
        """A tool's message as the outcome of the call that it names."""
        message = node.message
        asked = self._open.pop(message.answers or "", None)
        if asked is None:
            return False
        result = words_or_blocks(plain(message.value.get("content")))
        if message.value.get("status") == "error":
            asked.fail(result if isinstance(result, str) else str(result))
        else:
            asked.answer(result)
        asked.done = node.at
        asked.detail = present(artifact=plain(message.value.get("artifact")), message=message.id)
        return True


def _source(message: Message, role: MessageRole) -> MessageSource | None:
    """A message that another agent wrote in a person's place says so by its name."""
    if role is MessageRole.USER:
        return MessageSource.HUMAN if text(message.value.get("name")) is None else MessageSource.AGENT
    return MessageSource.EVENT if role is MessageRole.SYSTEM else None
