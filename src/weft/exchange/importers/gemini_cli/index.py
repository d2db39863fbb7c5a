"""One pass over a chat: which messages make which turn, and where they lie.

A chat is a list of messages that changes: a message that comes again replaces itself, `$rewindTo` takes back a message
and all after it, `$set` with messages puts another list in place (after a compression, or when a prompt was taken
back). What is taken back stays here as a branch of its own; the list that stands says only what the next message
follows.
"""

from __future__ import annotations

import re
from hashlib import sha256
from typing import Any

from msgspec import Struct, field

from weft.exchange.importers.gemini_cli.messages import NOTICES, classify, message_content
from weft.exchange.importers.port import Report
from weft.exchange.importers.records.planned_turns import LONGEST_SHARED_RECORDS, Entry, PlannedTurn, TurnPlan
from weft.exchange.importers.records.roles import Role, count_kept
from weft.exchange.importers.records.values import canonical, global_name, mapping, sequence, text

COMPRESSED = re.compile(r"compressed from ([0-9]{1,12}) to ([0-9]{1,12}) tokens")


class Slot(Struct, gc=False):
    """A message in the list that stands."""

    entry: int
    turn: int
    depth: int
    """How many messages of its turn lead up to it, itself among them."""
    mark: bytes
    """What it says, for a list that gives it another id."""
    is_content: bool


class Newcomer(Struct, frozen=True):
    """A message of a list that is put in place of another, known only from there."""

    number: int
    message: dict[str, Any]


class GeminiTurn(PlannedTurn, kw_only=True):
    sizes: tuple[int, int] | None = None
    """Of a compaction: tokens before and after."""

    @property
    def is_begun(self) -> bool:
        return self.prompt is not None or self.is_answered or self.is_compaction


class Index(Struct):
    """What the pass has found."""

    facts: dict[str, Any] = field(default_factory=dict)
    """What is said of the session; the last word on each point."""
    plan: TurnPlan[GeminiTurn] = field(default_factory=TurnPlan[GeminiTurn])


class Indexer:
    """Takes what changes the list, one after another."""

    def __init__(self, report: Report, fallback_id: str) -> None:
        self.index = Index()
        self._plan = self.index.plan
        self._report, self._fallback = report, fallback_id
        self._live: list[Slot] = []
        self._by_id: dict[str, Slot] = {}
        self._compaction: int | None = None
        """The turn whose summary the list begins with."""
        self._sizes: tuple[int, int] | None = None

    @property
    def session_id(self) -> str:
        return text(self.index.facts.get("sessionId")) or self._fallback

    def add_facts(self, facts: dict[str, Any]) -> None:
        self.index.facts.update({name: value for name, value in facts.items() if name != "messages"})

    def take(self, message: dict[str, Any], entry: Entry) -> None:
        """A message: a new one, or a new form of one that stands."""
        role = classify(message)[1]
        if role is Role.UNKNOWN:
            self._keep(entry, is_unknown=True)
            return
        slot = self._by_id.get(entry.id or "")
        if slot is not None:
            self._keep(self._plan.entries[slot.entry], is_unknown=False)
            self._plan.entries[slot.entry], slot.mark = entry, mark_of(message)
        else:
            self._add(message, entry, role)

    def rewind(self, id: str, line: int | None) -> None:
        at = next((at for at in range(len(self._live) - 1, -1, -1) if self._is(self._live[at], id)), None)
        if at is None:
            self._report.problem(line, "it rewinds to a message that is not here: all of them are taken back")
        self._stand(self._live[: at or 0])

    def replace(self, messages: list[Any], entry: Entry) -> None:
        """Another list in place of the one that stands. Those of its messages that are known, by their ids or by what
        they say, stay what they are."""
        unmatched = {slot.entry: slot for slot in self._live if slot.is_content}
        stands: list[Slot | Newcomer] = []
        aliases: dict[str, Slot] = {}
        for number, message in enumerate(messages):
            if not isinstance(message, dict) or classify(message)[1] is Role.UNKNOWN:
                continue
            slot = self._known(message, unmatched, aliases)
            is_after_known = not stands or isinstance(stands[-1], Slot)
            if slot is None and is_result(message) and is_after_known:
                continue  # of a call that is known, with its outcome
            stands.append(Newcomer(number, message) if slot is None else slot)
        self._restand(stands, next(reversed(unmatched.values()), None), entry)
        self._by_id |= aliases

    def _known(self, message: dict[str, Any], unmatched: dict[int, Slot], aliases: dict[str, Slot]) -> Slot | None:
        id = text(message.get("id"))
        slot = self._by_id.get(id or "")
        if slot is None:
            mark = mark_of(message)
            slot = next((slot for slot in unmatched.values() if slot.mark == mark), None)
        if slot is None:
            return None
        unmatched.pop(slot.entry, None)
        if id is not None:
            aliases[id] = slot
        return slot

    def _restand(self, stands: list[Slot | Newcomer], dropped: Slot | None, entry: Entry) -> None:
        kept = [slot for slot in stands if isinstance(slot, Slot)]
        self._stand([])
        waiting: list[tuple[dict[str, Any], Entry]] = []
        for member in stands:
            if isinstance(member, Slot):
                self._put_back(member)
                continue
            kind, role = classify(member.message)
            inner = Entry(kind, text(member.message.get("id")), entry.line, entry.offset, entry.end, member.number)
            is_first = dropped is not None and self._compaction is None
            if role is Role.COMPACTION or (is_first and role is Role.PROMPT):
                self._compact(member.message, inner, kept, dropped)
                for message, before in waiting:
                    self._append(self._compaction or 0, message, before, Role.INJECTED)
            elif is_first and role is Role.INJECTED:
                waiting.append((member.message, inner))  # it belongs to the summary that follows, if one does
            else:
                self._add(member.message, inner, role)

    def _compact(self, message: dict[str, Any], entry: Entry, kept: list[Slot], summarised: Slot | None) -> None:
        tip = kept[-1] if kept else summarised
        before = None if tip is None else tip.turn
        prompt = None if before is None else self._prompt_before(before)
        planned = GeminiTurn(parent=before, is_compaction=True, compacted_prompt=prompt, sizes=self._sizes)
        self._sizes = None
        if kept:
            planned.first_kept, planned.is_split = kept[0].turn, kept[0].depth > 1
        self._compaction = self._plan.begin(planned)
        self._append(self._compaction, message, entry, Role.COMPACTION)

    def _prompt_before(self, turn: int) -> str | None:
        planned = self._plan.turns[turn]
        return planned.compacted_prompt if planned.is_compaction else self._key_of(planned)

    def _add(self, message: dict[str, Any], entry: Entry, role: Role) -> None:
        turn, depth = self._place()
        planned = None if turn is None else self._plan.turns[turn]
        tip = turn if planned is not None and depth == len(planned.entries) else None
        if role is Role.COMPACTION:
            self._compact(message, entry, [], self._live[-1] if self._live else None)
            return
        if role is Role.ANSWER:
            at = self._answer(turn, depth, tip, is_listed=entry.nested is not None)
        elif planned is None or tip is None or (planned.is_begun and role is Role.PROMPT):
            at = self._begin(turn)
        elif planned.is_compaction and role is Role.INJECTED:
            at = self._begin(turn, continues=planned.compacted_prompt)
        else:
            at = tip
        if role is Role.NOTICE:
            self._note_sizes(message, self._plan.turns[at])
        self._append(at, message, entry, role)

    def _note_sizes(self, notice: dict[str, Any], planned: GeminiTurn) -> None:
        """A notice of how much was compressed comes before the compaction, or after it."""
        match = COMPRESSED.search("\n".join(message_content(notice).texts))
        if match is None:
            return
        sizes = (int(match[1]), int(match[2]))
        if planned.is_compaction and planned.sizes is None:
            planned.sizes = sizes
        else:
            self._sizes = sizes

    def _answer(self, turn: int | None, depth: int, tip: int | None, is_listed: bool) -> int:
        if turn is None:
            return self._begin(turn)
        planned = self._plan.turns[turn]
        says_it_was_read = tip is not None and is_listed and not planned.is_answered
        if planned.is_compaction and not says_it_was_read:
            return self._begin(turn, continues=planned.compacted_prompt)
        if tip is not None:
            return tip
        if depth > LONGEST_SHARED_RECORDS:
            return self._begin(turn, continues=self._key_of(planned))
        again = GeminiTurn(parent=planned.parent, continues=self._key_of(planned))
        return self._plan.begin_again(again, planned, depth)

    def _begin(self, parent: int | None, continues: str | None = None) -> int:
        return self._plan.begin(GeminiTurn(parent=parent, continues=continues))

    def _append(self, turn: int, message: dict[str, Any], entry: Entry, role: Role) -> None:
        planned, number = self._plan.turns[turn], self._plan.append(turn, entry)
        if role is Role.PROMPT and planned.prompt is None:
            planned.prompt = number
        planned.is_answered |= role is Role.ANSWER
        slot = Slot(number, turn, len(planned.entries), mark_of(message), role is not Role.NOTICE)
        self._live.append(slot)
        if entry.id is not None:
            self._by_id[entry.id] = slot

    def _place(self) -> tuple[int | None, int]:
        """The turn that the next message follows, and after how many of its messages."""
        if not self._live:
            return None, 0
        last = self._live[-1]
        if self._compaction is not None and self._compaction > last.turn:  # what was kept stands behind the summary
            return self._compaction, len(self._plan.turns[self._compaction].entries)
        return last.turn, last.depth

    def _stand(self, slots: list[Slot]) -> None:
        """These messages stand, and no others."""
        staying = {id(slot) for slot in slots}
        self._by_id = {name: slot for name, slot in self._by_id.items() if id(slot) in staying}
        self._live = slots
        has_summary = any(slot.turn == self._compaction for slot in slots)
        self._compaction = self._compaction if has_summary else None

    def _put_back(self, slot: Slot) -> None:
        self._live.append(slot)
        if (name := self._plan.entries[slot.entry].id) is not None:
            self._by_id[name] = slot
        if self._plan.turns[slot.turn].is_compaction:
            self._compaction = slot.turn

    def _is(self, slot: Slot, id: str) -> bool:
        return self._by_id.get(id) is slot

    def _keep(self, entry: Entry, is_unknown: bool) -> None:
        """Held by the verbatim copy alone; a message of a list is not a record of its own."""
        if entry.nested is not None:
            return
        if is_unknown:
            count_kept(self._report, entry.kind, Role.UNKNOWN)
        else:
            self._report.kept[f"{entry.kind}.earlier"] += 1

    def _key_of(self, planned: GeminiTurn) -> str:
        return self._plan.prompt_key(planned, self.name)

    def name(self, number: int) -> str:
        """A message's id; its place in the chat where it has none."""
        id = self._plan.entries[number].id
        return f"{self.session_id}#{number}" if id is None else global_name(self.session_id, id)

    def finish(self) -> Index:
        self._plan.assign_keys(self.name)
        return self.index


def mark_of(message: dict[str, Any]) -> bytes:
    """What a message says, whichever form it is written in."""
    content = message_content(message)
    asked = {text(call.get("id")) or text(call.get("name")) for call in content.calls}
    asked |= {text(mapping(call).get("id")) for call in sequence(message.get("toolCalls"))}
    kind = classify(message)[0]
    words = "" if kind in NOTICES else "\n".join(content.texts)
    return sha256(canonical([kind, words, sorted(id or "" for id in asked)])).digest()[:16]


def is_result(message: dict[str, Any]) -> bool:
    """A message that only carries what tools gave back: its calls are told with it."""
    content = message_content(message)
    return message.get("type") == "user" and bool(content.results) and not content.parts
