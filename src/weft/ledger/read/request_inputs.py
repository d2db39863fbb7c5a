"""What a model was sent, as references to what is recorded; and those references as messages again.

A request names the first entries of an earlier request's list, then the others: a whole list with every request would
store every ancestor again with every turn. It builds on the earlier request after which least is told again, yet never
on one that brought no more than itself, as a binary counter carries: so a list of n entries is found by way of at most
log n requests, and costs log n entries each on average.

An entry is a message, a compaction that stands for its summary, or the event of a tool call or of its result; such
neighbours of one turn are one message, as a transcript tells them. What was substituted is named by the event that is
shown in its place: so a request tells for ever what it was sent.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise

from msgspec import UNSET, Struct, UnsetType

from weft.kernel.dag_events import ModelRequest
from weft.kernel.errors import NotFound
from weft.kernel.events import event_id
from weft.kernel.fields import EventRef, RequestInput
from weft.ledger.model import Message, Part, TextPart, ToolCall, ToolUsePart
from weft.ledger.read.access import as_shown
from weft.ledger.read.substitutions import Change, change_to
from weft.ledger.read.turns import call_messages, calls_of, messages_between, placed_messages
from weft.ledger.views.recorded_events import place_of_event, recorded, run_events, stream_of
from weft.ledger.views.rows import TurnRow, is_message, load_turn, load_turn_number
from weft.ledger.views.substitutions import MESSAGE
from weft.ledger.views.values import shown_text
from weft.store.port import ReadTxn

Ref = str | EventRef
LOOK_BACK, MOST_TURNS = 32, 255
"""In so many ancestors a request is looked for that a new one can build on; so many turns are read at a time."""


# --- from messages to references --------------------------------------------------------------------------------


def input_of(txn: ReadTxn, turn: str, request: str | None, messages: Sequence[Message]) -> RequestInput | UnsetType:
    """What a request of this turn is sent; `request` is its last one before. Where a message has no fact of its own, as
    the end of a call that was never told, nothing is said: a list that is not quite what was sent would be no record.
    """
    refs = refs_of(txn, messages)
    if refs is None or list(map(_words, messages_named(txn, refs))) != list(map(_words, messages)):
        return UNSET
    return InputChain(_chain_before(txn, turn, request), refs).input()


def _words(message: Message) -> tuple[str, tuple[Part, ...]]:
    """What a model is sent of a message."""
    return message.role, message.content


def _base_and_keep(chain: Sequence[InputStep], shared: int, length: int) -> tuple[str | None, int]:
    """Which request of a chain, the newest first, a list of so many entries builds on, and how many of that request's
    entries it begins with; `shared` of them are those that the newest was sent."""
    keep = shared
    for step in chain:
        if min(keep, step.end) - step.begin > length - keep:
            return step.request, min(keep, step.end)
        keep = min(keep, step.begin)
    return None, keep


def _common_length(known: list[Ref], refs: list[Ref]) -> int:
    """With how many entries both begin. Whole lists are compared first: mostly the second extends the first."""
    length = min(len(known), len(refs))
    if known[:length] == refs[:length]:
        return length
    return next(i for i, (one, other) in enumerate(zip(known, refs, strict=False)) if one != other)


class InputChain:
    """What the requests of a thread were sent, kept in memory: the next one is named without reading them again. It
    belongs to one thread and grows at its end, by what is new: the entries before are neither copied nor compared."""

    def __init__(self, steps: Sequence[InputStep], refs: Sequence[Ref]) -> None:
        self._steps = [InputStep(step.request, step.refs, step.begin, step.end) for step in steps]
        """The requests so far, the newest first."""
        self._refs = list(refs)
        """The entries that the next request is sent, as far as they are known."""
        self._shared = _common_length(_joined(self._steps), self._refs)
        """With so many entries of the newest request they begin."""

    @property
    def refs(self) -> Sequence[Ref]:
        return self._refs

    def input(self, more: Sequence[Ref] = (), first: Sequence[Ref] = ()) -> RequestInput:
        """What names the known entries, some before and some after them."""
        if first:
            return InputChain(self._steps, [*first, *self._refs, *more]).input()
        base, keep = _base_and_keep(self._steps, self._shared, len(self._refs) + len(more))
        return RequestInput(base=base, keep=keep, then=(*self._refs[keep:], *more))

    def add_request(self, request: str, input: RequestInput) -> None:
        """A request was recorded with this input: the next one is sent the same, and more."""
        steps = self._steps
        while steps and steps[0].request != input.base:
            steps.pop(0)
        own = InputStep(request, input.then, input.keep, input.keep + len(input.then))
        for step in steps:
            if step.end <= own.begin:  # those before it end where it begins, or earlier
                break
            step.end, step.begin = own.begin, min(step.begin, own.begin)
        steps.insert(0, own)
        beyond_kept = len(self._refs) - input.keep
        if tuple(self._refs[input.keep :]) == input.then[:beyond_kept]:
            self._refs += input.then[beyond_kept:]
        else:  # something was put before them
            self._refs = _joined(steps)
        self._shared = len(self._refs)

    def add(self, ref: Ref) -> None:
        """The next request is sent this as well."""
        self._refs.append(ref)

    def part(self, begin: int, end: int | None = None) -> InputChain:
        """Another chain, whose next request is sent these of the entries."""
        return InputChain(self._steps, self._refs[begin:end])


def last_chain(txn: ReadTxn, turn: str) -> InputChain | None:
    """What the last request of a turn was sent; None where that was not recorded."""
    for found in reversed(list(run_events(txn.facts, _turn(txn, turn)))):
        if isinstance(found.event, ModelRequest):
            sent = found.event.input
            return None if sent is UNSET else InputChain(steps := _chain(txn, found.id, sent), _joined(steps))
    return None


def chain_at(txn: ReadTxn, turn: str | None, refs: Sequence[Ref]) -> InputChain:
    """The requests that a request after this turn, or in it, can build on."""
    if turn is None:
        return InputChain([], refs)
    row = _turn(txn, turn)
    for found in reversed(list(run_events(txn.facts, row))):
        if isinstance(found.event, ModelRequest) and found.event.input is not UNSET:
            return InputChain(_chain(txn, found.id, found.event.input), refs)
    return InputChain(_chain_before(txn, turn, None), refs)


def refs_of(txn: ReadTxn, messages: Iterable[Message]) -> list[Ref] | None:
    refs: list[Ref] = []
    turns: dict[str, TurnCalls] = {}
    for message in messages:
        place, _, of_calls = message.id.partition("#")
        if not of_calls:
            substituted = message.substituted
            refs.append(message.id if substituted is UNSET else EventRef(substituted.replacement))
            continue
        turn = place.partition(":")[0]
        if turn not in turns:
            turns[turn] = _calls_in(txn, turn)
        named = list(turns[turn].events_of(place, message))
        if None in named:
            return None
        refs += (EventRef(event) for event in named if event is not None)
    return refs


class TurnCalls(Struct):
    """A turn's tool calls in order, each with the events that made and ended it."""

    calls: list[tuple[ToolCall, str, str | None]]

    def events_of(self, first: str, message: Message) -> Iterator[str | None]:
        """The events that a message of calls tells, from the call `first` on; None where there is no such event."""
        rest = iter(self.calls[next(i for i, (call, *_) in enumerate(self.calls) if call.id == first) :])
        for part in message.content:
            name = part.id if isinstance(part, ToolUsePart) else getattr(part, "tool_call_id", None)
            _, made, ended = next(one for one in rest if one[0].call_id == name)
            yield made if isinstance(part, ToolUsePart) else ended


def _calls_in(txn: ReadTxn, turn: str) -> TurnCalls:
    row = _turn(txn, turn)
    events = [found.id for found in run_events(txn.facts, row)]
    found: list[tuple[ToolCall, str, str | None]] = []
    for place, call in calls_of(txn, row):
        ended, substituted = place.result_position, call.substituted
        if substituted is not UNSET:
            found.append((call, events[place.position], substituted.replacement))
        else:
            found.append((call, events[place.position], None if ended is None or ended < 0 else events[ended]))
    return TurnCalls(found)


def _turn(txn: ReadTxn, turn: str) -> TurnRow:
    row = load_turn(txn.sql, turn)
    if row is None:
        raise NotFound("turn", turn)
    return row


def _chain_before(txn: ReadTxn, turn: str, request: str | None) -> list[InputStep]:
    """The steps of the nearest request before that says what it was sent."""
    sent = None if request is None else _Requests(txn).get(request)
    if request is not None and sent is not None:
        return _chain(txn, request, sent)
    row, left = _turn(txn, turn), LOOK_BACK
    while row.parent is not None and left:
        row, left = _turn(txn, row.parent), left - 1
        for found in reversed(list(run_events(txn.facts, row))):
            if isinstance(found.event, ModelRequest) and found.event.input is not UNSET:
                return _chain(txn, found.id, found.event.input)
    return []


# --- and back ---------------------------------------------------------------------------------------------------


class InputStep(Struct):
    """What one request of a chain brings to the list: the entries from `begin` up to `end`."""

    request: str
    refs: tuple[Ref, ...]
    begin: int
    end: int


class _Requests:
    """Requests by their ids. The newest, which no index holds yet, are looked through once."""

    def __init__(self, txn: ReadTxn) -> None:
        self._txn = txn
        self._newest: dict[str, bytes] | None = None

    def get(self, request: str) -> RequestInput | None:
        if self._newest is None:
            mark = self._txn.facts.watermark("lookup_event")
            lines = (line for _, line in self._txn.facts.lines(mark) if b"model_request" in line)
            self._newest = {event_id(line): line for line in lines}
        line = self._newest.get(request)
        n = None if line is not None else self._txn.facts.find_event(bytes.fromhex(request))
        line = self._txn.facts.line(n) if n is not None else line
        event = None if line is None else recorded(n or 0, line).event
        return event.input if isinstance(event, ModelRequest) and event.input is not UNSET else None


def _chain(txn: ReadTxn, request: str, sent: RequestInput) -> list[InputStep]:
    """A request and those it builds on, the newest first, each with its place in the list."""
    steps, requests = [(request, sent)], _Requests(txn)
    while (base := steps[-1][1].base) is not None:
        below = requests.get(base)
        if below is None:
            raise NotFound("model request with a recorded input", base)
        steps.append((base, below))
    length, found = 0, []
    for name, step in reversed(steps):
        begin = min(step.keep, length)
        length = begin + len(step.then)
        found.append(InputStep(name, step.then, begin, length))
    found.reverse()
    for above, below_it in pairwise(found):
        below_it.end = min(below_it.end, above.begin)
        below_it.begin = min(below_it.begin, above.begin)
    return found


def _joined(chain: Sequence[InputStep]) -> list[Ref]:
    refs: list[Ref] = []
    for step in reversed(chain):
        refs += step.refs[: step.end - step.begin]
    return refs


def resolve(txn: ReadTxn, request: str, sent: RequestInput) -> list[Ref]:
    """The whole list that a request was sent: its own entries, before them those of its base, and so on."""
    return _joined(_chain(txn, request, sent))


def messages_named(txn: ReadTxn, refs: Sequence[Ref]) -> list[Message]:
    """The messages that references stand for."""
    known = _messages(txn, [ref for ref in refs if not isinstance(ref, EventRef)])
    found: list[Message] = []
    calls: list[ToolCall] = []
    of: tuple[str, bool] | None = None
    for ref in refs:
        entry = known[ref] if not isinstance(ref, EventRef) else _message_or_call(txn, ref.event_id)
        now = None if isinstance(entry, Message) else (entry[0].turn_id, entry[1])
        if now != of:
            found += _as_message(calls, of)
            calls, of = [], now
        if isinstance(entry, Message):
            found.append(entry)
        else:
            calls.append(entry[0])
    return [*found, *_as_message(calls, of)]


def check_input(txn: ReadTxn, sent: RequestInput) -> None:
    """Refuse what could never be told again: entries that are no message here, a base that names none."""
    if sent.base is not None and _Requests(txn).get(sent.base) is None:
        raise NotFound("model request with a recorded input", sent.base)
    for ref in sent.then:
        if isinstance(ref, EventRef):
            _message_or_call(txn, ref.event_id)
        elif not _can_be_sent(txn, ref):
            raise NotFound("message", ref)


def _can_be_sent(txn: ReadTxn, id: str) -> bool:
    """A message, or a compaction that stands for its summary."""
    if txn.sql.one("SELECT 1 FROM compaction WHERE turn = ?", (id,)) is not None:
        return True
    return is_message(txn.sql, id)


def _as_message(calls: list[ToolCall], of: tuple[str, bool] | None) -> Iterator[Message]:
    """Neighbouring calls, or their results, of one turn."""
    if of is not None:
        ids = {call.call_id for call in calls}
        yield from call_messages(calls, set() if of[1] else ids, ids if of[1] else set())


def _message_or_call(txn: ReadTxn, event: str) -> Message | tuple[ToolCall, bool]:
    """What an event brought: a message, or a tool call and whether it is its beginning. Or what it was put in the place
    of, where it belongs to no turn."""
    if (change := change_to(txn, event)) is not None and not _is_of_run(txn, change.replacement_n):
        return _substituted_message_or_call(txn, change)
    turn, position = place_of_event(txn.sql, txn.facts, event)
    for placed in placed_messages(txn, turn.segment, turn.depth, until=0):
        if placed.position == position:
            return placed.message
    for place, call in calls_of(txn, turn, until=0):
        if position in (place.position, place.result_position):
            return call, position == place.position
    raise NotFound("message of event", event)


def _is_of_run(txn: ReadTxn, n: int) -> bool:
    line = txn.facts.line(n)
    return line is not None and stream_of(n, line).startswith("run:")


def _substituted_message_or_call(txn: ReadTxn, change: Change) -> Message | tuple[ToolCall, bool]:
    """A message or a tool call as a substitution left it: that was sent, whatever the reader is shown else."""
    txn = as_shown(txn)
    turn = load_turn_number(txn.sql, change.turn)
    if turn is None:
        raise NotFound("turn of event", change.original.hex())
    if change.place == MESSAGE:
        messages = messages_between(txn, turn.segment, turn.depth, turn.depth, change.n)
        return next(message for message in messages if message.sequence == change.seq)
    return next(call for place, call in calls_of(txn, turn, until=change.n) if place.seq == change.seq), False


def _messages(txn: ReadTxn, ids: Sequence[str]) -> dict[str, Message]:
    """Messages by their ids, and the summaries of compactions by their turns'."""
    found: dict[str, Message] = {}
    more = 0
    for id in ids:
        if id in found:
            continue
        compaction = txn.sql.one("SELECT summary FROM compaction WHERE turn = ?", (id,))
        if compaction is not None:
            found[id] = summary_message(txn, id, compaction[0])
            continue
        found |= {message.id: message for message in _neighbours(txn, id, more, until=0)}
        more = min(2 * more + 1, MOST_TURNS)  # they mostly follow one another: more at a time, the longer the list
        if id not in found:
            raise NotFound("message", id)
    return found


def summary_message(txn: ReadTxn, compaction: str, summary: int) -> Message:
    turn = load_turn(txn.sql, compaction)
    text = shown_text(txn.facts, summary)
    return Message(compaction, "user", (TextPart(text),), -1, turn.started_at if turn else 0)


def find_message(txn: ReadTxn, message: str) -> Message | None:
    return next((found for found in _neighbours(txn, message) if found.id == message), None)


def _neighbours(txn: ReadTxn, message: str, more: int = 0, until: int | None = None) -> list[Message]:
    """All messages of its turn, and of so many turns that follow. A message's id lies just behind its turn's, so the
    turn before it in id order is the one to ask."""
    row = txn.sql.one("SELECT id, segment, depth FROM turn WHERE id < ? ORDER BY id DESC LIMIT 1", (message,))
    return [] if row is None else messages_between(txn, row[1], row[2], row[2] + more, until)
