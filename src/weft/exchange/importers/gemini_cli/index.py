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

from weft.exchange.importers.gemini_cli.content import content_of, said
from weft.exchange.importers.gemini_cli.kinds import NOTICES, Standing, classify
from weft.exchange.importers.port import Report
from weft.exchange.importers.values import canonical, mapping, sequence, text

LONGEST_SHARED = 256
"""An answer that leaves another one later than this is told as its continuation, not with all that led to it."""
COMPRESSED = re.compile(r"compressed from ([0-9]{1,12}) to ([0-9]{1,12}) tokens")


class Entry(Struct, frozen=True, gc=False):
    """A message: where it lies, and by which id it is known. `nested` is its place in a list that one record holds."""

    kind: str
    id: str | None
    line: int | None
    offset: int
    end: int
    nested: int | None = None


class Slot(Struct, gc=False):
    """A message in the list that stands."""

    entry: int
    turn: int
    depth: int
    """How many messages of its turn lead up to it, itself among them."""
    mark: bytes
    """What it says, for a list that gives it another id."""
    is_said: bool


class Newcomer(Struct, frozen=True):
    """A message of a list that is put in place of another, known only from there."""

    number: int
    message: dict[str, Any]


class Plan(Struct):
    """A turn to be: its entries, of which the first `shared` belong to an earlier answer to the same prompt too."""

    entries: list[int]
    parent: int | None
    shared: int = 0
    prompt: int | None = None
    continues: str | None = None
    """Key of the prompt that this turn goes on answering, or answers again."""
    is_compaction: bool = False
    is_answered: bool = False
    first_kept: int | None = None
    is_split: bool = False
    """Only the end of the first turn that was kept was."""
    amid: str | None = None
    """Key of the prompt that was being answered when the context was compressed."""
    sizes: tuple[int, int] | None = None
    """Tokens before and after."""
    key: str = ""

    @property
    def is_begun(self) -> bool:
        return self.prompt is not None or self.is_answered or self.is_compaction


class Index(Struct):
    """What the pass has found."""

    told: dict[str, Any] = field(default_factory=dict)
    """What is said of the session; the last word on each point."""
    entries: list[Entry] = field(default_factory=list)
    plans: list[Plan] = field(default_factory=list)


class Indexer:
    """Takes what changes the list, one after another."""

    def __init__(self, report: Report, fallback_id: str) -> None:
        self.index = Index()
        self._report, self._fallback = report, fallback_id
        self._live: list[Slot] = []
        self._by_id: dict[str, Slot] = {}
        self._compaction: int | None = None
        """The turn whose summary the list begins with."""
        self._sizes: tuple[int, int] | None = None

    @property
    def session_id(self) -> str:
        return text(self.index.told.get("sessionId")) or self._fallback

    def tell(self, told: dict[str, Any]) -> None:
        self.index.told.update({name: value for name, value in told.items() if name != "messages"})

    def take(self, message: dict[str, Any], entry: Entry) -> None:
        """A message: a new one, or a new form of one that stands."""
        standing = classify(message)[1]
        if standing is Standing.UNKNOWN:
            self._keep(entry, is_unknown=True)
            return
        slot = self._by_id.get(entry.id or "")
        if slot is not None:
            self._keep(self.index.entries[slot.entry], is_unknown=False)
            self.index.entries[slot.entry], slot.mark = entry, mark_of(message)
        else:
            self._add(message, entry, standing)

    def rewind(self, id: str, line: int | None) -> None:
        at = next((at for at in range(len(self._live) - 1, -1, -1) if self._is(self._live[at], id)), None)
        if at is None:
            self._report.problem(line, "it rewinds to a message that is not here: all of them are taken back")
        self._stand(self._live[: at or 0])

    def replace(self, messages: list[Any], entry: Entry) -> None:
        """Another list in place of the one that stands. Those of its messages that are known, by their ids or by what
        they say, stay what they are."""
        unmatched = {slot.entry: slot for slot in self._live if slot.is_said}
        stands: list[Slot | Newcomer] = []
        aliases: dict[str, Slot] = {}
        for number, message in enumerate(messages):
            if not isinstance(message, dict) or classify(message)[1] is Standing.UNKNOWN:
                continue
            slot = self._known(message, unmatched, aliases)
            is_told = not stands or isinstance(stands[-1], Slot)
            if slot is None and is_result(message) and is_told:
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
        for each in stands:
            if isinstance(each, Slot):
                self._put_back(each)
                continue
            kind, standing = classify(each.message)
            inner = Entry(kind, text(each.message.get("id")), entry.line, entry.offset, entry.end, each.number)
            is_first = dropped is not None and self._compaction is None
            if standing is Standing.COMPACTION or (is_first and standing is Standing.PROMPT):
                self._compact(each.message, inner, kept, dropped)
                for message, before in waiting:
                    self._append(self._compaction or 0, message, before, Standing.INJECTED)
            elif is_first and standing is Standing.INJECTED:
                waiting.append((each.message, inner))  # it belongs to the summary that follows, if one does
            else:
                self._add(each.message, inner, standing)

    def _compact(self, message: dict[str, Any], entry: Entry, kept: list[Slot], summarised: Slot | None) -> None:
        tip = kept[-1] if kept else summarised
        before = None if tip is None else tip.turn
        amid = None if before is None else self._amid(before)
        plan = Plan(entries=[], parent=before, is_compaction=True, amid=amid, sizes=self._sizes)
        self._sizes = None
        if kept:
            plan.first_kept, plan.is_split = kept[0].turn, kept[0].depth > 1
        self.index.plans.append(plan)
        self._compaction = len(self.index.plans) - 1
        self._append(self._compaction, message, entry, Standing.COMPACTION)

    def _amid(self, turn: int) -> str | None:
        plan = self.index.plans[turn]
        return plan.amid if plan.is_compaction else self._key_of(plan)

    def _add(self, message: dict[str, Any], entry: Entry, standing: Standing) -> None:
        turn, depth = self._place()
        plan = None if turn is None else self.index.plans[turn]
        tip = turn if plan is not None and depth == len(plan.entries) else None
        if standing is Standing.COMPACTION:
            self._compact(message, entry, [], self._live[-1] if self._live else None)
            return
        if standing is Standing.ANSWER:
            at = self._answer(turn, depth, tip, is_listed=entry.nested is not None)
        elif plan is None or tip is None or (plan.is_begun and standing is Standing.PROMPT):
            at = self._begin(turn)
        elif plan.is_compaction and standing is Standing.INJECTED:
            at = self._begin(turn, continues=plan.amid)
        else:
            at = tip
        if standing is Standing.NOTICE:
            self._note_sizes(message, self.index.plans[at])
        self._append(at, message, entry, standing)

    def _note_sizes(self, notice: dict[str, Any], plan: Plan) -> None:
        """A notice of how much was compressed comes before the compaction, or after it."""
        found = COMPRESSED.search("\n".join(said(content_of(notice)).texts))
        if found is None:
            return
        sizes = (int(found[1]), int(found[2]))
        if plan.is_compaction and plan.sizes is None:
            plan.sizes = sizes
        else:
            self._sizes = sizes

    def _answer(self, turn: int | None, depth: int, tip: int | None, is_listed: bool) -> int:
        if turn is None:
            return self._begin(turn)
        plan = self.index.plans[turn]
        says_it_was_read = tip is not None and is_listed and not plan.is_answered
        if plan.is_compaction and not says_it_was_read:
            return self._begin(turn, continues=plan.amid)
        if tip is not None:
            return tip
        if depth > LONGEST_SHARED:
            return self._begin(turn, continues=self._key_of(plan))
        again = self._begin(plan.parent, continues=self._key_of(plan), prompt=plan.prompt)
        self.index.plans[again].entries.extend(plan.entries[:depth])
        self.index.plans[again].shared = depth
        return again

    def _begin(self, parent: int | None, **what: Any) -> int:
        self.index.plans.append(Plan(entries=[], parent=parent, **what))
        return len(self.index.plans) - 1

    def _append(self, turn: int, message: dict[str, Any], entry: Entry, standing: Standing) -> None:
        plan, number = self.index.plans[turn], len(self.index.entries)
        plan.entries.append(number)
        self.index.entries.append(entry)
        if standing is Standing.PROMPT and plan.prompt is None:
            plan.prompt = number
        plan.is_answered |= standing is Standing.ANSWER
        slot = Slot(number, turn, len(plan.entries), mark_of(message), standing is not Standing.NOTICE)
        self._live.append(slot)
        if entry.id is not None:
            self._by_id[entry.id] = slot

    def _place(self) -> tuple[int | None, int]:
        """The turn that the next message follows, and after how many of its messages."""
        if not self._live:
            return None, 0
        last = self._live[-1]
        if self._compaction is not None and self._compaction > last.turn:  # what was kept stands behind the summary
            return self._compaction, len(self.index.plans[self._compaction].entries)
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
        if (name := self.index.entries[slot.entry].id) is not None:
            self._by_id[name] = slot
        if self.index.plans[slot.turn].is_compaction:
            self._compaction = slot.turn

    def _is(self, slot: Slot, id: str) -> bool:
        return self._by_id.get(id) is slot

    def _keep(self, entry: Entry, is_unknown: bool) -> None:
        """Held by the verbatim copy alone; a message of a list is not a record of its own."""
        if entry.nested is not None:
            return
        kind = entry.kind if is_unknown else f"{entry.kind}.earlier"
        self._report.kept[kind] += 1
        if is_unknown:
            self._report.unknown[kind] += 1

    def _key_of(self, plan: Plan) -> str:
        if plan.continues is not None:
            return plan.continues
        return self.name(plan.entries[0] if plan.prompt is None else plan.prompt)

    def name(self, number: int) -> str:
        told = self.index.entries[number].id
        return f"{self.session_id}#{number}" if told is None else own_name(self.session_id, told)

    def finish(self) -> Index:
        taken: dict[str, int] = {}
        for plan in self.index.plans:
            key = plan.key = self._key_of(plan)
            if plan.continues is not None:
                key = plan.key = f"{key}#{self.name(plan.entries[plan.shared])}"
            while plan.key in taken:
                taken[key] += 1
                plan.key = f"{key}~{taken[key]}"
            taken[plan.key] = 1
        return self.index


def own_name(session: str, id: str) -> str:
    """A message's id, with its session's where it could be anybody's."""
    return id if len(id) >= 32 else f"{session}/{id}"


def mark_of(message: dict[str, Any]) -> bytes:
    """What a message says, whichever form it is written in."""
    content = said(content_of(message))
    asked = {text(call.get("id")) or text(call.get("name")) for call in content.calls}
    asked |= {text(mapping(call).get("id")) for call in sequence(message.get("toolCalls"))}
    kind = classify(message)[0]
    words = "" if kind in NOTICES else "\n".join(content.texts)
    return sha256(canonical([kind, words, sorted(each or "" for each in asked)])).digest()[:16]


def is_result(message: dict[str, Any]) -> bool:
    """A message that only carries what tools gave back: its calls are told with it."""
    content = said(content_of(message))
    return message.get("type") == "user" and bool(content.results) and not content.parts
