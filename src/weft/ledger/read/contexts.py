"""What an agent saw at a turn, or would see at the next one.

System prompt, then the summary of the compaction in effect, then the turns it kept and all after it, then the query.
Where the model request itself recorded what it was sent, that record is the answer.
"""

from __future__ import annotations

from msgspec import UNSET, Struct
from msgspec.structs import replace

from weft.kernel.dag_events import ModelRequest
from weft.kernel.enums import TurnType
from weft.kernel.errors import NotFound
from weft.ledger.model import COMPACTION_MEASURES, Compaction, Message, TextPart
from weft.ledger.read.access import access_of
from weft.ledger.read.agent_shares import is_private
from weft.ledger.read.context_cuts import NO_CUT, ContextCut, as_sent, cut_in_effect, cut_of_request
from weft.ledger.read.kept_turns import TurnMemory
from weft.ledger.read.plain_turns import split_system, spoken_turns
from weft.ledger.read.request_inputs import Ref, messages_named, resolve, summary_message
from weft.ledger.read.session_owners import prompt_of, session_owner
from weft.ledger.read.threads import Range, ranges_to
from weft.ledger.read.turns import WITHHELD, calls_of, messages_between, placed_messages, transcript_of
from weft.ledger.views.program_rows import load_program
from weft.ledger.views.recorded_events import run_events
from weft.ledger.views.rows import SessionRow, TurnRow, load_turn
from weft.ledger.views.values import json_of, name_of, text_of
from weft.store.port import ReadTxn


class Context(Struct, frozen=True):
    """An ordered list of messages. `observed` is true where it is the recorded input of the model request. `cut` is
    what that request was cut by, which its messages show; of a session, what its last request was cut by: a broker cuts
    the next one in the same way."""

    messages: tuple[Message, ...]
    turns: tuple[str, ...]
    compaction: str | None
    observed: bool = False
    cut: ContextCut = NO_CUT


def context_of_turn(txn: ReadTxn, turn: TurnRow, memory: TurnMemory | None = None) -> Context:
    """What the agent saw when it began to answer this turn's query. `memory` has turns that were read before."""
    asked, sent, cut = _first_request(txn, turn)
    if sent is not None:
        return Context(as_sent(messages_named(txn, sent), cut), (), turn.compaction, True, cut)
    query = _query(txn, turn, asked)
    return _assemble(txn, _before(txn, turn), turn.compaction, query, turn.n, turn.persona, memory)


def _before(txn: ReadTxn, turn: TurnRow) -> list[Range]:
    """Everything that a turn grows from."""
    ranges = ranges_to(txn.sql, turn.segment, turn.depth)
    *_, last = ranges
    return [*ranges[:-1], *([Range(last.segment, last.low, last.high - 1, None)] if last.high > last.low else [])]


def sent_to_model(txn: ReadTxn, turn: TurnRow, memory: TurnMemory | None = None) -> list[Message]:
    """What the last request of a turn was sent, as it was recorded; else all that the turn sees, and what an open turn
    has said and done so far."""
    sent: list[Ref] | None = None
    cut = NO_CUT
    for found in run_events(txn.facts, turn):
        if isinstance(found.event, ModelRequest):
            sent = None if found.event.input is UNSET else resolve(txn, found.id, found.event.input)
            cut = cut_of_request(txn, found.event)
    if sent is not None:
        return list(as_sent(messages_named(txn, sent), cut))
    if turn.closed:
        return list(context_of_turn(txn, turn, memory).messages)
    transcript = transcript_of(txn, turn, None)
    return list(_assemble(txn, _before(txn, turn), turn.compaction, transcript, turn.n, turn.persona, memory).messages)


def context_after(
    txn: ReadTxn,
    head: TurnRow | None,
    events: int | None,
    compaction: str | None,
    prompt: Message | None = None,
    persona: str | None = None,
    memory: TurnMemory | None = None,
) -> Context:
    """What the next turn would see before its own query. `prompt` is what its request begins with, where somebody says
    so; it stands for the system prompt so far, unless that is the same text. `persona` is the id of who will answer."""
    ranges = [] if head is None else ranges_to(txn.sql, head.segment, head.depth, events)
    cut = cut_in_effect(txn, head, events, compaction)
    context = replace(_assemble(txn, ranges, compaction, [], None, persona, memory), cut=cut)
    leading, others = split_system(context.messages)
    if prompt is None or (leading and leading[0].text == prompt.text):
        return context
    return replace(context, messages=(prompt, *others))


def _assemble(
    txn: ReadTxn,
    ranges: list[Range],
    compaction: str | None,
    own: list[Message],
    arrived: int | None,
    persona: str | None,
    memory: TurnMemory | None,
) -> Context:
    """`arrived` is where the log stood when the agent looked: what came later it did not see. A private agent's prompt
    is its own: another `persona` that goes on from its turns sees none of theirs."""
    start, summary = _start(txn, compaction)
    turns: list[str] = []
    rest: list[Message] = []
    system: list[Message] = []
    for stretch in spoken_turns(txn, _from_depth(ranges, start), arrived, memory):
        for author, prompt in stretch.prompts:
            system = _passed_on(txn, author, persona, prompt) or system
        turns += stretch.turns
        rest += stretch.messages
    leading, query = split_system(own)
    opening = leading or system or _earlier_system(txn, ranges, start, arrived, persona)
    return Context((*opening, *summary, *rest, *query), tuple(turns), compaction)


def _from_depth(ranges: list[Range], start: int) -> list[Range]:
    """What of a thread lies at a depth or below it."""
    return [replace(part, low=max(part.low, start)) for part in ranges if part.high >= start]


def _passed_on(txn: ReadTxn, author: str, persona: str | None, prompt: list[Message]) -> list[Message]:
    """What of an agent's system prompt another one begins with that goes on from its turn."""
    if not prompt or author == persona:
        return prompt
    agent = load_program(txn.sql, author)
    return [] if agent is not None and is_private(txn, agent) else prompt


def readable_prompt(txn: ReadTxn, session: SessionRow) -> Message | None:
    """The prompt of a session's next request, withheld from whoever may not read the agent that it describes."""
    prompt, agent = prompt_of(txn, session), load_program(txn.sql, session_owner(txn, session))
    if prompt is None or agent is None or access_of(txn).may_read_program(agent):
        return prompt
    return replace(prompt, content=(TextPart(WITHHELD),))


def _earlier_system(
    txn: ReadTxn, ranges: list[Range], start: int, arrived: int | None, persona: str | None
) -> list[Message]:
    """The system prompt in effect, where the last turn that brought one was summarised away."""
    for part in reversed(ranges):
        last = min(part.high, start - 1)
        system_row = txn.sql.one("SELECT system FROM turn WHERE segment = ? AND depth = ?", (part.segment, last))
        if system_row is not None and system_row[0] is None:
            return []
        row = txn.sql.one(
            "SELECT t.depth, t.persona FROM turn t JOIN message m ON m.turn = t.n"
            " WHERE t.segment = ? AND t.depth BETWEEN ? AND ? AND m.seq = 0 AND m.role = 'system'"
            " ORDER BY t.depth DESC LIMIT 1",
            (part.segment, part.low, last),
        )
        if row is not None:
            leading, _ = split_system(messages_between(txn, part.segment, row[0], row[0], arrived))
            return _passed_on(txn, row[1], persona, leading)
    return []


def _start(txn: ReadTxn, compaction: str | None) -> tuple[int, list[Message]]:
    """The depth from which turns are shown in full, and the summary of what lies before it, unless it is empty: what a
    sliding window leaves out is told by nothing."""
    if compaction is None:
        return 1, []
    row = txn.sql.one("SELECT summary, through, first_kept FROM compaction WHERE turn = ?", (compaction,))
    if row is None:
        raise NotFound("compaction", compaction)
    summary, through, first_kept = row
    kept = load_turn(txn.sql, first_kept or through)
    if kept is None:
        raise NotFound("turn", first_kept or through)
    message = summary_message(txn, compaction, summary)
    return kept.depth + (0 if first_kept else 1), [message] if message.text else []


def _query(txn: ReadTxn, turn: TurnRow, asked: int | None) -> list[Message]:
    """A turn's messages until its model was asked; where that was not recorded, until the agent first acted. What was
    substituted later it did not see."""
    messages = placed_messages(txn, turn.segment, turn.depth, main_only=True, until=0)
    if asked is not None:
        return [placed.message for placed in messages if placed.position < asked]
    called = min((row.position for row, _ in calls_of(txn, turn)), default=turn.events)
    answered = (placed.position for placed in messages if placed.message.role in ("assistant", "tool"))
    acted = min([called, *answered])
    return [placed.message for placed in messages if placed.position < acted]


def _first_request(txn: ReadTxn, turn: TurnRow) -> tuple[int | None, list[Ref] | None, ContextCut]:
    """Which event of the turn first asked the model, what it was sent, where that was recorded, and cut by."""
    for position, found in enumerate(run_events(txn.facts, turn)):
        if isinstance(found.event, ModelRequest):
            sent = found.event.input
            refs = None if sent is UNSET else resolve(txn, found.id, sent)
            return position, refs, cut_of_request(txn, found.event)
    return None, None, NO_CUT


def compactions_of(txn: ReadTxn, head: TurnRow, events: int | None = None) -> list[str]:
    """The compactions of a thread in the order of their making: those on it, and those that lie beside it."""
    ids: set[str] = set()
    for part in ranges_to(txn.sql, head.segment, head.depth, events):
        place = (part.segment, part.low, part.high, TurnType.COMPACTION.value)
        on_thread = "SELECT id FROM turn WHERE segment = ? AND depth BETWEEN ? AND ? AND type = ?"
        beside = (
            "SELECT t.id FROM segment s JOIN turn t ON t.segment = s.n AND t.depth = s.base"
            " WHERE s.parent = ? AND s.parent_depth BETWEEN ? AND ? AND t.type = ?"
        )
        ids |= {id for query in (on_thread, beside) for (id,) in txn.sql.all(query, place)}
    may_read = access_of(txn).may_read_turn
    turns = [turn for id in ids if (turn := load_turn(txn.sql, id)) is not None and may_read(turn)]
    return [turn.id for turn in sorted(turns, key=lambda turn: turn.n)]


def load_compaction(txn: ReadTxn, turn: str) -> Compaction:
    row = txn.sql.one(
        "SELECT turn, summary, through, first_kept, turns_summarized, type, model, provider, tokens_before,"
        " tokens_after, summary_tokens, summarization_input_tokens, summarization_output_tokens, duration_ms,"
        ' "trigger", metadata FROM compaction WHERE turn = ?',
        (turn,),
    )
    if row is None:
        raise NotFound("compaction", turn)
    return Compaction(
        turn_id=row[0],
        summary=text_of(txn, row[1]) or "",
        summarized_through=row[2],
        first_kept=row[3],
        turns_summarized=row[4],
        compaction_type=row[5],
        model=name_of(txn, row[6]) or "",
        provider=name_of(txn, row[7]),
        **dict(zip(COMPACTION_MEASURES, row[8:14], strict=True)),
        trigger=row[14],
        metadata=json_of(txn, row[15]),
    )
